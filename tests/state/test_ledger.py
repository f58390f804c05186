from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hami.codec.usage_sums import (
    DAY_S,
    HOUR_S,
    OTHERS,
    HeldAmounts,
    OwnerKey,
    TotalKey,
    UsageGap,
    UsageKey,
    UsageSums,
    parse_usage,
    render_usage,
)
from hami.state import ledger as ledgers
from hami.state.ledger import HeldDevices, HeldInterval, Ledger, fresh_sums, resumed

MIDNIGHT = 1795824000
START = MIDNIGHT + 10 * HOUR_S
KEY = UsageKey("ci", "NVIDIA", "A100", "", "device-plugin")
QUARTER = HeldAmounts(1, 10_000, 25, 250)
HALF = HeldAmounts(1, 20_000, 50, 500)


def held(amounts: HeldAmounts = QUARTER, key: UsageKey = KEY, name: str = "train") -> HeldDevices:
    return HeldDevices(("Deployment", name), ((key, amounts),))


def shares(sums: UsageSums) -> int:
    """Returns thousandths of a device times seconds, of all days."""
    return sum(amounts.share for amounts in sums.counters().values())


def test_a_pod_counts_from_its_binding_to_its_end() -> None:
    ledger = Ledger(fresh_sums(START))
    ledger.begin("a", held(), START + 100)
    assert shares(ledger.checkpoint(START + 60)) == 0
    assert shares(ledger.checkpoint(START + 110)) == 10 * 250
    ledger.end("a", START + 120)
    sums = ledger.checkpoint(START + 1000)
    assert sums.day.sums()[KEY] == HeldAmounts(20, 200_000, 500, 5000)
    assert sums.day.owners == {
        OwnerKey("ci", "Deployment", "train", "NVIDIA", "A100"): sums.day.sums()[KEY]
    }


def test_what_lies_after_a_checkpoint_is_not_in_it() -> None:
    ledger = Ledger(fresh_sums(START))
    ledger.begin("a", held(), START + 10)
    ledger.end("a", START + 50)
    assert shares(ledger.checkpoint(START + 30)) == 20 * 250
    assert shares(ledger.checkpoint(START + 60)) == 40 * 250


def test_an_end_that_is_known_late_takes_nothing_back() -> None:
    ledger = Ledger(fresh_sums(START))
    ledger.begin("a", held(), START)
    before = shares(ledger.checkpoint(START + 100))
    ledger.end("a", START + 50)
    assert shares(ledger.checkpoint(START + 200)) == before


def test_a_resize_ends_an_interval_and_begins_one() -> None:
    ledger = Ledger(fresh_sums(START))
    ledger.begin("a", held(QUARTER), START)
    ledger.end("a", START + 100)
    ledger.begin("a", held(HALF), START + 100)
    ledger.end("a", START + 200)
    assert shares(ledger.checkpoint(START + 300)) == 100 * 250 + 100 * 500


def test_a_clock_that_is_set_back_counts_nothing_twice() -> None:
    ledger = Ledger(fresh_sums(START))
    ledger.begin("a", held(), START)
    before = ledger.checkpoint(START + HOUR_S)
    ledger.begin("b", held(), START + 60)
    assert ledger.checkpoint(START + 60) == before
    sums = ledger.checkpoint(START + HOUR_S + 10)
    assert shares(sums) == (HOUR_S + 10) * 250 + 10 * 250


def test_hours_and_days_are_told_apart() -> None:
    ledger = Ledger(fresh_sums(MIDNIGHT + 22 * HOUR_S + 1800))
    ledger.begin("a", held(), MIDNIGHT)
    sums = ledger.checkpoint(MIDNIGHT + DAY_S + 10)
    (ended,) = ledger.ended_days()
    assert {hour: each.devices for hour, each in ended.hours[KEY].items()} == {22: 1800, 23: 3600}
    assert sums.day.start == MIDNIGHT + DAY_S
    assert sums.day.hours[KEY][0].devices == 10
    assert sums.totals[TotalKey("ci", "NVIDIA", "A100")].devices == 5400
    ledger.drop_days([ended])
    assert ledger.ended_days() == []


def test_the_next_leader_goes_on_where_the_last_one_stopped() -> None:
    first = Ledger(fresh_sums(START))
    first.begin("a", held(), START)
    first.begin("b", held(), START)
    sums = first.checkpoint(START + 300)
    pods = [
        HeldInterval("a", held(), START),
        HeldInterval("b", held(), START, START + 310),
        HeldInterval("c", held(), START + 200, START + 250),  # it is in the checkpoint, or nowhere
        HeldInterval("d", held(), START + 305, START + 310),
    ]
    second = resumed(parse_usage(render_usage(sums)), START + 400, pods)
    assert shares(second.checkpoint(START + 500)) == (500 + 310 + 5) * 250
    assert second.checkpoint(START + 500).day.gaps == ()


def test_a_long_time_without_a_leader_is_a_gap_of_each_of_its_days() -> None:
    sums = Ledger(fresh_sums(MIDNIGHT)).checkpoint(MIDNIGHT + 60)
    now = MIDNIGHT + 2 * DAY_S + 120
    ledger = resumed(sums, now, [HeldInterval("a", held(), MIDNIGHT + 10)])
    last = ledger.checkpoint(now + 60).day
    first, second = ledger.ended_days()
    assert first.gaps == (UsageGap(MIDNIGHT + 60, MIDNIGHT + DAY_S),)
    assert second.gaps == (UsageGap(MIDNIGHT + DAY_S, MIDNIGHT + 2 * DAY_S),)
    assert last.gaps == (UsageGap(MIDNIGHT + 2 * DAY_S, now),)
    assert second.sums()[KEY].devices == DAY_S


def test_of_a_year_without_a_leader_only_the_end_is_counted() -> None:
    sums = Ledger(fresh_sums(MIDNIGHT)).checkpoint(MIDNIGHT + 60)
    now = MIDNIGHT + 365 * DAY_S
    ledger = resumed(sums, now, [HeldInterval("a", held(), MIDNIGHT)])
    assert shares(ledger.checkpoint(now)) == ledgers.MAX_GAP_S * 250


def test_too_many_keys_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MAX_KEYS", 2)
    monkeypatch.setattr(ledgers, "MAX_OWNERS", 3)
    ledger = Ledger(fresh_sums(START))
    for number in range(9):
        key = KEY._replace(namespace=f"team-{number % 5}", model=f"m{number}")
        ledger.begin(f"{number}", held(key=key, name=f"{number}"), START)
    day = ledger.checkpoint(START + 10).day
    assert sum(amounts.devices for amounts in day.sums().values()) == 90
    assert sum(amounts.devices for amounts in day.owners.values()) == 90
    assert {key.namespace for key in day.hours} == {"team-0", "team-1", "team-2", "team-3", OTHERS}
    assert len(day.owners) == 4


@pytest.mark.parametrize("seed", range(50))
def test_any_order_of_events_gives_the_seconds_that_were_held(seed: int) -> None:
    """Begins, ends and resizes are known at their time; checkpoints and new leaders come in between."""
    random_of = random.Random(seed)
    ledger, now, expected = Ledger(fresh_sums(START)), START, 0
    pods: dict[str, HeldInterval] = {}
    ended: list[HeldInterval] = []
    for number in range(300):
        now += random_of.randrange(600)
        event = random_of.random()
        uid = random_of.choice([*pods, "none"])
        if event < 0.4:
            pods[f"{number}"] = HeldInterval(f"{number}", held(), now)
            ledger.begin(f"{number}", held(), now)
        elif event < 0.7 and uid in pods:
            expected += (now - pods[uid].begin) * pods[uid].held.parts[0][1].share
            ended.append(pods.pop(uid)._replace(end=now))
            ledger.end(uid, now)
        elif event < 0.8 and uid in pods:
            expected += (now - pods[uid].begin) * pods[uid].held.parts[0][1].share
            ended.append(pods[uid]._replace(end=now))
            pods[uid] = HeldInterval(uid, held(HALF), now)
            ledger.end(uid, now)
            ledger.begin(uid, held(HALF), now)
        elif event < 0.9:
            ledger.checkpoint(now - random_of.randrange(60))
        else:
            sums = ledger.checkpoint(now - 30)
            sums = replace(parse_usage(render_usage(sums)), day=sums.day)
            ledger = resumed(sums, now, [*pods.values(), *ended])
    for pod in pods.values():
        expected += (now - pod.begin) * pod.held.parts[0][1].share
    assert shares(ledger.checkpoint(now)) == expected
