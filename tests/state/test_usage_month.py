"""A month of 20,000 pods, in which leaders are killed, is recorded to a thousandth.

The clock is simulated, and so is the one object in which checkpoints are kept. Pods come and go as they do in clusters:
half of them take less than two minutes, and many are deleted in the second in which they end.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from hami.codec.usage_sums import DAY_S, HOUR_S, HeldAmounts, UsageKey, UsageSums
from hami.errors import Conflict
from hami.state.ledger import HeldDevices, HeldInterval, fresh_sums, resumed

BEGIN = 1795824000
DAYS = 30
PODS = 20_000
NAMESPACES = 40
INTERVAL_S, LAG_S = 300, 30
KEPT_S = 300  # that a pod which has ended stays at the API server, on average
LARGE = 100 * 1000 * HOUR_S  # 100 GPU-hours, in thousandths of a device times seconds


@dataclass
class SimulatedStore:
    """The API server: the pods that exist, and one object that is written by compare-and-swap."""

    pods: dict[str, HeldInterval] = field(default_factory=dict)
    sums: UsageSums | None = None
    version: int = 0

    def write(self, version: int, sums: UsageSums) -> int:
        if version != self.version:
            raise Conflict("the object has been changed")
        self.sums = sums
        self.version += 1
        return self.version


class SimulatedLeader:
    def __init__(self, store: SimulatedStore, now: int) -> None:
        self._store = store
        self.resume(now)

    def resume(self, now: int) -> None:
        self._version = self._store.version
        sums = self._store.sums or fresh_sums(now)
        self.ledger = resumed(sums, now, self._store.pods.values())

    def write(self, now: int) -> None:
        sums = self.ledger.checkpoint(now - LAG_S)
        self._version = self._store.write(self._version, sums)
        self.ledger.drop_days(self.ledger.ended_days())


@dataclass(frozen=True, slots=True)
class Month:
    """What came of it, in thousandths of a device times seconds by namespace."""

    truth: Mapping[str, int]
    recorded: Mapping[str, int]
    conflicts: int
    is_monotonic: bool


def some_pods(random_of: random.Random) -> Iterator[HeldInterval]:
    names = [f"team-{number}" for number in range(NAMESPACES)]
    weights = [1 / (number + 1) for number in range(NAMESPACES)]
    for number, namespace in enumerate(random_of.choices(names, weights, k=PODS)):
        begin = BEGIN + random_of.randrange(DAYS * DAY_S)
        mean_s = random_of.choices([120, HOUR_S, 2 * DAY_S], [5, 4, 1])[0]
        end = min(begin + 1 + int(random_of.expovariate(1 / mean_s)), BEGIN + DAYS * DAY_S)
        share = random_of.choice([100, 250, 500, 1000])
        key = UsageKey(namespace, "NVIDIA", "A100", "", "device-plugin")
        amounts = HeldAmounts(1, share * 80, share // 10, share)
        held = HeldDevices(("Job", "job"), ((key, amounts),))
        yield HeldInterval(f"{number}", held, begin, end)


def some_kills(random_of: random.Random, a_day: float) -> Iterator[tuple[int, int]]:
    """Yields when the leader is killed, and for how many seconds nobody leads then."""
    now = 0.0
    while a_day and (now := now + random_of.expovariate(a_day / DAY_S)) < DAYS * DAY_S:
        yield BEGIN + int(now), random_of.choice([1, 12, 12, 25, 40])


def events_of(
    pods: Mapping[str, HeldInterval], kills: Mapping[int, int], random_of: random.Random
) -> Iterator[tuple[int, int, str, str]]:
    """Yields the events of the month in their order: time, order in a second, what, and which pod."""
    events = []
    for uid, pod in pods.items():
        kept_s = 0 if random_of.random() < 0.4 else int(random_of.expovariate(1 / KEPT_S))
        events.append((pod.begin, 0, "begin", uid))
        events.append((pod.end or 0, 1, "end", uid))
        events.append(((pod.end or 0) + kept_s, 2, "delete", uid))
    for at in kills:
        events.append((at, 3, "kill", ""))
    for at in range(BEGIN + INTERVAL_S, BEGIN + DAYS * DAY_S + HOUR_S, INTERVAL_S):
        events.append((at, 4, "write", ""))
    heapq.heapify(events)
    while events:
        yield heapq.heappop(events)


class SimulatedMonth:
    def __init__(self, seed: int, *, kills_a_day: float, outage: tuple[int, int] | None) -> None:
        self._random = random.Random(seed)
        self._pods = {pod.uid: pod for pod in some_pods(self._random)}
        self._kills = dict(some_kills(self._random, kills_a_day))
        if outage is not None:
            self._kills[outage[0]] = outage[1]
        self._store = SimulatedStore()
        self._leader: SimulatedLeader | None = SimulatedLeader(self._store, BEGIN)
        self._stale: SimulatedLeader | None = None
        self._nobody_until = 0
        self._conflicts = 0
        self._last = 0
        self._is_monotonic = True

    def run(self) -> Month:
        for at, _, what, uid in events_of(self._pods, self._kills, self._random):
            if self._leader is None and at >= self._nobody_until:
                self._leader = SimulatedLeader(self._store, at)
            getattr(self, f"_{what}")(at, uid)
        assert self._store.sums is not None
        recorded: dict[str, int] = defaultdict(int)
        for key, amounts in self._store.sums.counters().items():
            recorded[key.namespace] += amounts.share
        truth: dict[str, int] = defaultdict(int)
        for pod in self._pods.values():
            for key, amounts in pod.held.parts:
                truth[key.namespace] += amounts.share * ((pod.end or 0) - pod.begin)
        return Month(
            truth,
            recorded,
            self._conflicts,
            self._is_monotonic,
        )

    def _begin(self, at: int, uid: str) -> None:
        self._store.pods[uid] = self._pods[uid]._replace(end=None)
        if self._leader is not None:
            self._leader.ledger.begin(uid, self._pods[uid].held, at)

    def _end(self, at: int, uid: str) -> None:
        self._store.pods[uid] = self._pods[uid]
        if self._leader is not None:
            self._leader.ledger.end(uid, at)

    def _delete(self, at: int, uid: str) -> None:
        del self._store.pods[uid]

    def _kill(self, at: int, _: str) -> None:
        self._stale, self._leader = self._leader or self._stale, None
        self._nobody_until = at + self._kills[at]

    def _write(self, at: int, _: str) -> None:
        if self._leader is not None:
            self._try(self._leader, at)
        if self._stale is not None and self._random.random() < 0.3:
            self._try(self._stale, at)  # it does not know yet that it leads no longer
            self._stale = None
        sums = self._store.sums
        if sums is not None and at % HOUR_S == 0:
            total = sum(amounts.share for amounts in sums.counters().values())
            self._is_monotonic = self._is_monotonic and total >= self._last
            self._last = total

    def _try(self, leader: SimulatedLeader, at: int) -> None:
        try:
            leader.write(at)
        except Conflict:
            self._conflicts += 1
            if leader is self._leader:
                leader.resume(at)


@cache
def month(kills_a_day: float, outage: tuple[int, int] | None = None) -> Month:
    return SimulatedMonth(1, kills_a_day=kills_a_day, outage=outage).run()


def errors_of(month: Month) -> dict[str, float]:
    """Returns the error of each namespace of more than 100 GPU-hours, as a share of what it held."""
    errors = {}
    for namespace, held in month.truth.items():
        if held > LARGE:
            errors[namespace] = abs(month.recorded.get(namespace, 0) - held) / held
    return errors


def test_without_kills_every_second_is_recorded() -> None:
    assert month(0).recorded == month(0).truth


def test_with_four_kills_a_day_no_namespace_is_off_by_more_than_a_thousandth() -> None:
    errors = errors_of(month(4))
    assert len(errors) > 30
    assert max(errors.values()) <= 0.001


def test_counters_never_go_back() -> None:
    assert month(4).is_monotonic


def test_of_two_leaders_one_is_refused() -> None:
    assert month(4).conflicts > 10


def test_two_days_without_a_leader_lose_only_what_came_and_went() -> None:
    """Nobody binds pods meanwhile, as long as HAMi's scheduler does; here, they come and go on."""
    with_outage = month(4, (BEGIN + 12 * DAY_S, 48 * HOUR_S))
    total, recorded = sum(with_outage.truth.values()), sum(with_outage.recorded.values())
    assert abs(total - recorded) / total <= 0.01
