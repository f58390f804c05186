"""What was used of what was held: queries, answers that cannot be, workloads by the names of pods, resizes that fit."""

import json
import re
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.codec.keys import NODE_RESIZES
from hami.codec.usage_sums import DAY_S, HOUR_S, HeldAmounts, OwnerKey
from hami.errors import HamiError, NotFound
from hami.inspect.measured_use import read_use, use_by_owner
from hami.inspect.usage import MeasuredUse, UsageQuery, make_row
from hami.quantity import GIB, MIB
from testing.cases import cases
from testing.fake_api import FakeApi, bound, node
from testing.prometheus_server import prometheus
from tests.inspect.test_usage import objects

NOW = 1_800_000_000
HELD = HeldAmounts(HOUR_S, 40960 * HOUR_S, 100 * HOUR_S, 1000 * HOUR_S, 500 * HOUR_S)
"""A whole device by its cores, and half of its memory, for an hour."""


def answer(*series):
    """The answer with these series: labels, and values at some moments."""
    result = []
    for labels, *values in series:
        result.append({"metric": labels, "values": [[NOW, value] for value in values]})
    return json.dumps({"status": "success", "data": {"result": result}}).encode()


def use_of(body, since=NOW - DAY_S, labels=("namespace",), namespace=""):
    return read_use(lambda *question: body, since, NOW, labels, namespace)


def test_the_question_is_in_parts_of_a_day_at_most():
    asked = []

    def fetch(*question):
        asked.append(question)
        return answer()

    read_use(fetch, NOW - 25 * HOUR_S, NOW, ("namespace", "pod"), 'a"b')
    step = 25 * HOUR_S // 2
    names = ["compute_seconds", "memory_byte_seconds", "memory_given_byte_seconds"]
    assert asked == [
        (
            f"sum by (namespace, pod) "
            f'(increase(hami_container_{name}_total{{namespace="a\\"b"}}[{step}s]))',
            NOW - step,
            NOW,
            step,
        )
        for name in names
    ]


def test_the_parts_are_added_up():
    found = use_of(answer(({"namespace": "a"}, "1.5", "2"), ({"namespace": "b"}, "0")))
    assert found["a",] == MeasuredUse(compute_s=3.5, memory_byte_s=3.5, given_byte_s=3.5)
    assert found["b",] == MeasuredUse()


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-1", "1e30", "x" * 99])
def test_numbers_that_cannot_be_are_left_out(text):
    assert use_of(answer(({"namespace": "a"}, text, "1")))["a",].compute_s == 1


def test_a_time_that_is_too_long_is_refused():
    with pytest.raises(HamiError, match="within 62 days"):
        use_of(answer(), since=NOW - 63 * DAY_S)


@cases(
    "share, used, wasted",
    ("dominant", 0.25, 0.75),
    ("memory", 0.25, 0.25),
    ("cores", 0.1, 0.9),
    ("mean", 0.175, 0.575),
)
def test_what_was_used_goes_by_the_share_that_is_asked_for(share, used, wasted):
    use = MeasuredUse(
        compute_s=0.1 * HOUR_S, memory_byte_s=20 * GIB * HOUR_S, given_byte_s=40 * GIB * HOUR_S
    )
    row = make_row("a", {"A100": HELD}, UsageQuery(since=0, until=HOUR_S, share=share), use)
    assert (row.used_gpu_hours, row.wasted_gpu_hours) == (used, wasted)
    assert row.used_gib_hours == 20


def test_only_as_much_as_was_measured_can_be_wasted():
    use = MeasuredUse(memory_byte_s=0, given_byte_s=10 * GIB * HOUR_S)
    row = make_row("a", {"A100": HELD}, UsageQuery(since=0, until=HOUR_S), use)
    assert row.wasted_gpu_hours == 0.25


@pytest.mark.parametrize("use", [None, MeasuredUse(compute_s=5)])
def test_nothing_is_known_where_nobody_has_measured(use):
    row = make_row("a", {"A100": HELD}, UsageQuery(since=0, until=HOUR_S), use)
    assert (row.used_gpu_hours, row.wasted_gpu_hours, row.used_gib_hours) == (None, None, None)


def owner(kind, name):
    return OwnerKey("ns", kind, name, "NVIDIA", "A100")


OWNERS = [
    owner("Deployment", "web"),
    owner("Deployment", "web-api"),
    owner("Pod", "web-api-once"),
    owner("Job", "both"),
    owner("StatefulSet", "both"),
]


@cases(
    "pod, expected",
    ("web-5d9f-x2x", ("ns", "Deployment", "web")),
    ("web-api-5d9f-x2x", ("ns", "Deployment", "web-api")),
    ("web-api-once", ("ns", "Pod", "web-api-once")),
    ("webapi-1", None),
    ("both-1", None),
)
def test_the_workload_of_a_pod_is_told_by_its_name(pod, expected):
    use = MeasuredUse(compute_s=1)
    found = use_by_owner({("ns", pod): use, ("other", pod): use}, OWNERS)
    assert found == ({expected: use} if expected else {})


# -- the command

COUNTERS = {
    "compute_seconds": str(0.5 * HOUR_S),
    "memory_byte_seconds": str(10 * GIB * HOUR_S),
    "given_byte_seconds": str(20 * GIB * HOUR_S),
}
GAUGES = {"memory_used_bytes": str(1000 * MIB), "utilization_ratio": "11"}


def reply(labels):
    """Answers each query with its figure, for each of these labels."""

    def of(query):
        for name, value in {**COUNTERS, **GAUGES}.items():
            if re.search(name + r"(_total)?[\[{]", query):
                return answer(*[(each, value) for each in labels])
        raise AssertionError(query)

    return of


@contextmanager
def measured(*labels):
    with prometheus(200, reply(labels)) as (_, url):
        yield "--prometheus", url


def run(api, *args):
    return CliRunner().invoke(main, ["usage", *args], obj=lambda client: api)


def records(method, path, *, query=None):
    if path not in objects():
        raise NotFound("there is none", 404)
    return objects()[path]


def test_namespaces_that_no_monitor_has_measured_have_no_figure():
    with measured({"namespace": "team-vision"}) as options:
        lines = run(records, *options).stdout.splitlines()
    assert lines[0].split() == (
        "NAMESPACE GPU-HOURS USED WASTED GIB-HOURS GIB USED CORE-HOURS".split()
    )
    # 20 of 560 GiB-hours were measured: half a GPU-hour, of which half of the memory was used, and more compute
    assert lines[1].split() == "team-vision 14.0 100 % 0.0 560 10 14.0".split()
    assert lines[2].split() == "ci 0.5 – – 4 – 0.5".split()


def test_csv_has_what_was_used():
    with measured({"namespace": "team-vision"}) as options:
        lines = run(records, *options, "-o", "csv").stdout.splitlines()
    assert lines[0].endswith(",cost,used_gpu_hours,wasted_gpu_hours,used_gib_hours")
    assert lines[1].endswith(",,0.5,0.0,10.0")
    assert lines[2].endswith(",,,,")


def test_what_a_model_has_used_is_not_known():
    with measured({"namespace": "team-vision"}) as options:
        result = run(records, "--by", "model", *options)
    assert "known by namespace, owner and pod only" in result.stderr
    assert "USED" not in result.stdout


def api():
    devices = node("n1", annotations={NODE_RESIZES: "true"})
    return FakeApi([devices], [bound("train", "n1", (0, 8000, 50))]).request


def test_pods_that_exist_need_no_record_of_usage():
    result = run(api(), "--by", "pod", "--since", "24h", "-o", "json")
    assert "pods that have ended are known with --prometheus only" in result.stderr
    (row,) = json.loads(result.stdout)["items"]
    assert (row["name"], row["gpuHours"], row["coreHours"]) == ("default/train", 12.0, 12.0)
    assert row["usedGpuHours"] is None


def test_pods_with_the_resize_that_would_fit():
    labels = {"namespace": "default", "container": "main"}
    ended = {**labels, "pod": "ended"}
    with measured({**labels, "pod": "train"}, ended, {"pod": ""}) as options:
        result = run(api(), "--waste", *options, "-o", "json")
    assert result.exit_code == 0, result.output
    first, last = json.loads(result.stdout)["items"]
    assert first["name"] == "default/train"
    assert first["resize"] == ["kubectl hami resize -n default train main --memory 1280 --cores 15"]
    assert (last["name"], last["gpuHours"], last["gibHours"]) == ("default/ended", None, 20.0)
    assert (last["usedGpuHours"], last["wastedGpuHours"]) == (0.5, None)


@cases(
    "args, message",
    (["--waste"], "--waste: requires --prometheus"),
    (["--prometheus", "localhost"], "--prometheus=localhost: expected a URL"),
    (["--by", "pod", "-o", "focus"], "rows of pods are not known by the hour"),
    (["--prometheus", "http://127.0.0.1:1"], "Prometheus does not answer"),
)
def test_errors_are_one_line(args, message):
    result = run(records, *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
