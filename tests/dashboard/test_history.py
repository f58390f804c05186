"""The last hours, as Prometheus has them: queries, hostile answers, bounds, and what a page shows."""

import json

import pytest

from hami.dashboard.history import (
    MAX_POINTS,
    STEP_S,
    UsageHistory,
    expression,
    latest,
    polyline,
    read_history,
)
from hami.dashboard.settings import DashboardSettings
from hami.errors import HamiError, MalformedInput
from testing.cases import cases
from testing.fake_api import node
from testing.nodes import gpu
from tests.dashboard.stage import Stage

NOW = 1_800_000_123.0
END = NOW // STEP_S * STEP_S
START = END - (MAX_POINTS - 1) * STEP_S


def answer(*values):
    return json.dumps({"status": "success", "data": {"result": [{"values": values}]}}).encode()


def of(body):
    return read_history(lambda query, start, end, step: body, "n1", NOW)


def test_both_shares_are_asked_for_the_node():
    asked = []

    def fetch(query, start, end, step):
        asked.append((query, start, end, step))
        return answer([END, "0.5"])

    read_history(fetch, "n1", NOW)
    each = 'max by (node, device_uuid) (%s{node="n1"})'
    total = each % "hami_gpu_memory_limit_bytes"
    assert asked == [
        (f"sum({each % metric}) / sum({total})", START, END, STEP_S)
        for metric in ("hami_gpu_memory_allocated_bytes", "hami_host_gpu_memory_used_bytes")
    ]


def test_a_name_cannot_leave_its_selector():
    assert r'{node="a\"} or x{\\"}' in expression("m", 'a"} or x{\\')
    assert "{" not in expression("m", "")


@cases(
    "values, places",
    ("at both ends", [[START, "0"], [END, "1"]], {0: 0, -1: 100}),
    ("over-committed", [[END, "1.25"]], {-1: 125}),
    ("before and after", [[START - STEP_S, "1"], [END + STEP_S, "1"]], {}),
    ("no numbers", [[END, "NaN"], [END, "+Inf"], [END, "-1"], [END, "3"], [END, "x" * 99]], {}),
    ("many", [[END, "0.5"]] * 10_000, {-1: 50}),
)
def test_only_shares_within_the_hours_are_taken(values, places):
    expected = [None] * MAX_POINTS
    for place, share in places.items():
        expected[place] = share
    found = of(answer(*values))
    assert found.allocated == tuple(expected)
    assert found.used == tuple(expected)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"data": 1}', b'{"data": {"result": [{"values": [[1]]}]}}', b"\xff"]
)
def test_what_cannot_be_read_is_an_error(body):
    with pytest.raises(MalformedInput):
        of(body)


def test_without_a_series_nothing_is_known():
    body = b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'
    assert set(of(body).used) == {None}


@cases(
    "shares, lines",
    ((), []),
    ((None, None), []),
    ((0, 100), ["0.0,100 100.0,0"]),
    ((50, None, 200), ["0.0,50", "100.0,0"]),
)
def test_a_gap_begins_a_new_line(shares, lines):
    assert polyline(shares) == lines


def test_the_latest_number_is_that_before_a_gap():
    assert latest((1, 2, None)) == 2
    assert latest((None,)) is None


KNOWN = UsageHistory(6, STEP_S, (40, 60, 50), (None, 20, None))
UNKNOWN = UsageHistory(6, STEP_S, (None,), (None,))


@cases(
    "source, text",
    (None, "where the dashboard has <code>--prometheus-url</code>"),
    (lambda node: None, "Prometheus has no numbers"),
    (lambda node: UNKNOWN, "Prometheus has no numbers"),
    (lambda node: KNOWN, "50% now, 60% at most"),
    (lambda node: KNOWN, "20% now, 20% at most"),
    (lambda node: KNOWN, '<polyline class="allocated" points="0.0,60 50.0,40 100.0,50"/>'),
)
@pytest.mark.parametrize("path", ["/", "/nodes/n1"])
def test_pages_show_the_last_hours_or_say_what_is_missing(source, text, path):
    assert text in Stage([node("n1", gpu())], history=source).ask(path).text


def test_each_page_asks_for_its_own():
    asked = []
    stage = Stage([node("n1", gpu())], history=asked.append)
    stage.ask("/")
    stage.ask("/nodes/n1")
    assert asked == ["", "n1"]


def test_an_address_has_a_scheme():
    with pytest.raises(HamiError, match="expected a URL"):
        DashboardSettings(prometheus_url="prometheus:9090")
