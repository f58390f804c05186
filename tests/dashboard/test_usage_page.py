"""The page Usage: bars over days and namespaces, of what the viewer may see."""

import pytest

from hami.codec.usage_sums import DAY_S, HOUR_S, HeldAmounts
from hami.dashboard.usage_page import (
    DAYS,
    MAX_NAMESPACES,
    RecordedDays,
    UsageView,
    read_days,
    usage_poller,
)
from hami.errors import HamiError, NotFound
from testing.cases import cases
from tests.dashboard.stage import Rights, Stage
from tests.inspect.test_usage import FIRST, LAST, NOW, objects

RIGHTS = Rights(users={"t-ci": "ci-dev", "t-all": "admin"}, may={"ci-dev": {"ci"}, "admin": {""}})


def request(method, path):
    if path not in objects():
        raise NotFound("there is none", 404)
    return objects()[path]


def stage(rights=None):
    return Stage(rights=rights, usage=UsageView("hami-usage", lambda key: read_days(request, key)))


def test_the_last_days_are_read():
    recorded = read_days(request, "hami-usage")
    assert (len(recorded.dates), recorded.dates[-2:]) == (DAYS, (FIRST.date, LAST.date))
    assert recorded.settled == NOW
    vision = {date: held.share // HOUR_S for date, held in recorded.held["team-vision"].items()}
    assert vision == {FIRST.date: 12_000, LAST.date: 2_000}


def test_without_records_there_are_no_days():
    with pytest.raises(HamiError, match="no usage is recorded"):
        read_days(request, "elsewhere")


def test_the_log_says_why_records_cannot_be_read(caplog):
    days = usage_poller(request, clock=lambda: 0.0)
    days.view("elsewhere")
    days.step()
    assert days.view("elsewhere") is None
    [line] = [entry for entry in caplog.records if entry.levelname == "WARNING"]
    assert line.getMessage() == "records of usage cannot be read"
    assert "no usage is recorded" in line.error


def names(page):
    return {item["name"]: item["gpuHours"] for item in page["namespaces"]}


def test_the_greatest_namespaces_are_first():
    page = stage().json("/usage")
    assert list(names(page).items()) == [("team-vision", 14.0), ("ci", 0.5)]
    assert [item["gpuHours"] for item in page["days"][-2:]] == [12.0, 2.5]


def test_a_viewer_sees_the_namespaces_whose_pods_the_viewer_may_list():
    site = stage(RIGHTS)
    assert names(site.json("/usage", "t-all")) == {"team-vision": 14.0, "ci": 0.5}
    page = site.json("/usage?namespace=ci", "t-ci")
    assert names(page) == {"ci": 0.5}
    assert sum(item["gpuHours"] for item in page["days"]) == 0.5
    assert site.ask("/usage", "t-ci").status_code == 403


def test_bars_are_as_long_as_their_parts_of_the_longest():
    text = stage().ask("/usage").text
    assert 'width="100.0%" height="8"' in text
    assert 'width="20.8%" height="8"' in text  # 2.5 of 12 hours
    assert "2026-11-28T03:00:00Z" in text


@cases(
    "usage, text",
    ("off", UsageView("", lambda key: None), "has no <code>--usage-namespace</code>"),
    ("unread", UsageView("x", lambda key: None), "not read yet, or cannot be read"),
    (
        "nobody",
        UsageView("x", lambda key: RecordedDays(settled=NOW, dates=("2026-11-28",), held={})),
        "What pods have held",
    ),
)
def test_what_is_missing_is_said_in_a_sentence(usage, text):
    answer = Stage(usage=usage).ask("/usage")
    assert (answer.status_code, text in answer.text) == (200, True)


def test_only_so_many_namespaces_are_shown():
    held = HeldAmounts(share=1000 * DAY_S)
    many = {f"n{number}": {"2026-11-28": held} for number in range(MAX_NAMESPACES + 3)}
    recorded = RecordedDays(settled=NOW, dates=("2026-11-28",), held=many)
    site = Stage(usage=UsageView("x", lambda key: recorded))
    page = site.json("/usage")
    assert (len(page["namespaces"]), page["others"]) == (MAX_NAMESPACES, 3)
    assert "3 namespaces more." in site.ask("/usage").text
