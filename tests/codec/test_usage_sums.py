from __future__ import annotations

import base64
import random
import zlib
from dataclasses import replace

import pytest

from hami.codec.usage_sums import (
    DAY_S,
    OTHERS,
    HeldAmounts,
    NewerUsage,
    OwnerKey,
    TotalKey,
    UsageDay,
    UsageGap,
    UsageKey,
    UsageSums,
    date_of,
    parse_date,
    parse_day,
    parse_owners,
    parse_usage,
    render_day,
    render_owners,
    render_usage,
)
from hami.errors import MalformedInput

MIDNIGHT = 1795824000
VISION = UsageKey("team-vision", "NVIDIA", "A100", "high", "device-plugin")
CI = UsageKey("ci", "NVIDIA", "T4", "", "dra")
JOB = OwnerKey("ci", "CronJob", "nightly", "NVIDIA", "T4")
DAY = UsageDay(
    start=MIDNIGHT,
    recorded_from=MIDNIGHT + 60,
    hours={
        VISION: {3: HeldAmounts(3600, 7200, 100, 250), 5: HeldAmounts(1, 2, 3, 4)},
        CI: {23: HeldAmounts(1)},
    },
    owners={JOB: HeldAmounts(5, 6, 7, 8)},
    gaps=(UsageGap(MIDNIGHT + 100, MIDNIGHT + 1200),),
)
SUMS = UsageSums(
    settled=MIDNIGHT + 7000,
    totals={TotalKey("ci", "NVIDIA", "T4"): HeldAmounts(10, 20, 30, 40)},
    day=DAY,
)


def test_sums_are_read_as_they_were_written() -> None:
    assert parse_usage(render_usage(SUMS)) == replace(SUMS, day=replace(DAY, owners={}))


def test_a_day_and_its_workloads_are_read_as_they_were_written() -> None:
    assert parse_day(render_day(DAY)) == replace(DAY, owners={})
    assert parse_owners(render_owners(DAY)) == (MIDNIGHT, DAY.owners)


def test_counters_are_all_days_and_the_current_one() -> None:
    counters = SUMS.counters()
    assert counters[TotalKey("ci", "NVIDIA", "T4")] == HeldAmounts(11, 20, 30, 40)
    assert counters[TotalKey("team-vision", "NVIDIA", "A100")].share == 254


def test_dates() -> None:
    assert date_of(MIDNIGHT + DAY_S - 1) == "2026-11-28"
    assert parse_date("2026-11-28") == MIDNIGHT


@pytest.mark.parametrize("text", ["", "20261128", "2026-11-31", "0001-01-01", "now"])
def test_what_is_no_date(text: str) -> None:
    assert parse_date(text) is None


def packed(data: bytes, checksum: str | None = None, version: str = "1") -> str:
    sum_of = render_usage(SUMS).split(":")[1] if checksum is None else checksum
    return f"{version}:{sum_of}:{base64.b64encode(zlib.compress(data)).decode()}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no text",
        "1::",
        "¹:a:b",
        "9999999:a:b",
        render_usage(SUMS)[:-8],
        render_usage(SUMS)[:-1],
        render_usage(SUMS).replace("1:", "1:0", 1),
        packed(b"{}"),
        packed(b"0" * (65 * 1024 * 1024)),
        "1:0:" + base64.b64encode(b"x").decode(),
    ],
    ids=range(11),
)
def test_a_text_that_was_edited_is_refused(text: str) -> None:
    with pytest.raises(MalformedInput):
        parse_usage(text)


def test_a_text_of_a_later_version_is_told_apart() -> None:
    with pytest.raises(NewerUsage, match="version 1 at most"):
        parse_usage(packed(b"{}", version="2"))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SUMS, settled=MIDNIGHT + DAY_S),
        replace(SUMS, settled=1 << 40),
        replace(SUMS, day=replace(DAY, start=MIDNIGHT + 1)),
        replace(SUMS, day=replace(DAY, hours={CI: {1: HeldAmounts(-1)}})),
        replace(SUMS, day=replace(DAY, hours={CI: {23: HeldAmounts(1), 24: HeldAmounts(1)}})),
        replace(SUMS, day=replace(DAY, hours={CI._replace(model="m" * 254): {}})),
    ],
    ids=["another day", "the far future", "no midnight", "less than nothing", "hour 24", "a name"],
)
def test_sums_that_cannot_be_are_refused(wrong: UsageSums) -> None:
    with pytest.raises(MalformedInput):
        parse_usage(render_usage(wrong))


def many_keys(count: int, random_of: random.Random) -> UsageDay:
    hours, owners = {}, {}
    for number in range(count):
        key = UsageKey(f"team-{number}", "NVIDIA", "A100", f"{random_of.random()}", "dra")
        amounts = HeldAmounts(*[random_of.randrange(1 << 40) for _ in range(4)])
        hours[key] = dict.fromkeys(range(24), amounts)
        owners[OwnerKey(f"team-{number}", "Job", "j" * 200, "NVIDIA", "A100")] = amounts
    return UsageDay(start=MIDNIGHT, hours=hours, owners=owners)


def test_a_text_has_a_limit_and_keeps_the_sum_and_the_largest() -> None:
    day = many_keys(300, random.Random(1))
    text, owners_text = render_day(day, 4000), render_owners(day, 2000)
    assert len(text) <= 4000
    assert len(owners_text) <= 2000
    shown, owners = parse_day(text).sums(), parse_owners(owners_text)[1]
    sums = day.sums()
    assert sum(each.share for each in shown.values()) == sum(each.share for each in sums.values())
    assert sum(each.share for each in owners.values()) * 24 == sum(
        each.share for each in sums.values()
    )
    assert max(sums, key=lambda key: sums[key].share) in shown
    assert {key.namespace for key in owners if key.namespace == OTHERS} == {OTHERS}
