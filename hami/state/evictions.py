"""The part of the store for evictions, and those that are under way: the pods that carry the condition of one, by those
that are evicted together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from hami.codec.pods import preempting_on
from hami.model import Pod
from hami.state.decisions import Decisions, State
from hami.state.filtering import by_priority
from hami.state.promises import Promise, Stage
from hami.state.read_pod import PodRecord

FindRecord = Callable[[str], PodRecord | None]
"""Returns the record of the pod with this uid."""


@dataclass(frozen=True, slots=True)
class MarkedUnit:
    """Pods that are evicted together or not at all, as their conditions say it: those of them that hold devices still,
    also those that are being deleted.

    *preemptor*: the uid of the pod for which they are evicted; empty if kube-scheduler evicts them. *has_begun*: one of
    them has been deleted. *is_complete*: all of them are marked, else none has been deleted.
    """

    preemptor: str
    records: tuple[PodRecord, ...]
    has_begun: bool
    is_complete: bool


def marked_units(preempted: Iterable[PodRecord], find: FindRecord) -> list[MarkedUnit]:
    """Returns the units to which the pods *preempted*, which carry the condition, belong."""
    by_unit = defaultdict[tuple[str, str], list[PodRecord]](list)
    for record in preempted:
        last = record.ref.uid
        if record.evicted_with is not None:
            last = record.evicted_with.last
        by_unit[record.preemptor, last].append(record)
    return [_unit(*key, records, find) for key, records in by_unit.items()]


def _unit(preemptor: str, last: str, records: list[PodRecord], find: FindRecord) -> MarkedUnit:
    in_order = tuple(sorted(records, key=lambda record: record.ref.uid))
    together = in_order[0].evicted_with
    has_begun = any(record.is_ending for record in in_order)
    if together is not None:
        if not _is_marked(find(last), preemptor):
            return MarkedUnit(preemptor, in_order, has_begun=False, is_complete=False)
        gone = together.count - len(in_order)
        if in_order[-1].ref.uid != last:
            gone -= 1  # it is deleted last: while others are there, it has ended by itself
        if gone > 0:
            has_begun = True
    return MarkedUnit(preemptor, in_order, has_begun=has_begun, is_complete=True)


def _is_marked(last: PodRecord | None, preemptor: str) -> bool:
    """Reports whether the pod that is marked last has been marked. If it is gone, so it has: it is deleted last."""
    if last is None:
        return True
    if last.terminated or not last.node:
        return True
    return last.preempted and last.preemptor == preemptor


@dataclass(frozen=True, slots=True)
class PlanUnderWay:
    """*pod* waits for the devices that the *units* leave on *node*. They are empty if these have ended."""

    pod: Pod
    node: str
    units: tuple[tuple[PodRecord, ...], ...]

    @property
    def is_of_kube_scheduler(self) -> bool:
        """Reports whether kube-scheduler evicts them."""
        for unit in self.units:
            if any(record.preemptor for record in unit):
                return False
        return True


class Evictions:
    """Carries out plans."""

    def __init__(self, state: State, decisions: Decisions) -> None:
        self._state = state
        self._decisions = decisions

    def units_of(self, plan: Promise) -> list[tuple[PodRecord, ...]]:
        """Returns the victims of *plan* that have not ended, by those that are evicted together; none if its pod fits
        without their end, and then they are spared."""
        with self._state.lock:
            if self._state.promises.plan_for(plan.ref.uid) is not plan or plan.is_assumed:
                return []
            units = [self._alive(unit) for unit in sorted(plan.units, key=sorted)]
            units = [unit for unit in units if unit]
            if not _have_begun(units) and self._decisions.renew(plan, ()):
                plan.mark_evicted(are_spared=True)
                self._decisions.settle()
                return []
            return units

    def still_wanted(self, plan: Promise) -> bool:
        """Reports whether *plan* stands and its pod waits, so that the rest of its victims may be evicted."""
        with self._state.lock:
            self._decisions.settle()
            return self._state.promises.get(plan.ref.uid) is plan and not plan.is_assumed

    def are_under_way(self, uids: Collection[str]) -> bool:
        """Reports whether one of the pods is a victim of a plan whose victims have not all been deleted."""
        with self._state.lock:
            self._decisions.settle()
            for plan in self._state.promises.plans():
                if plan.stage is Stage.PLANNED and not plan.victims.isdisjoint(uids):
                    return True
            return False

    def mark_evicted(self, plan: Promise) -> None:
        """Records that the victims of *plan* have been deleted."""
        with self._state.lock:
            plan.mark_evicted()

    def inherited_units(self) -> list[MarkedUnit]:
        """Returns the pods that carry the condition of an eviction by the preemptor of another term, by those that are
        evicted together. Where no node of theirs is known, another scheduler has these, and evicts them."""
        units: list[MarkedUnit] = []
        with self._state.lock:
            is_known = self._state.nodes.is_known
            for unit in marked_units(self._state.pods.preempted(), self._state.pods.get):
                if unit.preemptor and any(is_known(record.node) for record in unit.records):
                    units.append(unit)
        return units

    def _alive(self, uids: Collection[str]) -> tuple[PodRecord, ...]:
        alive: list[PodRecord] = []
        for uid in sorted(uids):
            record = self._state.pods.get(uid)
            if record is not None and not record.terminated:
                alive.append(record)
        return tuple(alive)


def plans_under_way(state: State) -> list[PlanUnderWay]:
    """Returns the plans for pods without a promise for which others are evicted, with those victims that have not
    ended, highest priority first. Pods that are evicted together count once all of them are marked."""
    units = _units_without_promise(state)
    plans: list[PlanUnderWay] = []
    for pod in sorted(filter(preempting_on, state.pods.waiting()), key=by_priority):
        if state.promises.get(pod.ref.uid) is None:
            node = preempting_on(pod)
            of_pod = tuple([unit.records for unit in units if _is_for(unit, pod, node)])
            plans.append(PlanUnderWay(pod, node, of_pod))
    return plans


def _units_without_promise(state: State) -> list[MarkedUnit]:
    """Returns the units that are marked as a whole, and of which no promise has victims."""
    promised: set[str] = set()
    for plan in state.promises.plans():
        promised |= plan.victims
    units: list[MarkedUnit] = []
    for unit in marked_units(state.pods.preempted(), state.pods.get):
        uids = {record.ref.uid for record in unit.records}
        if not unit.is_complete:
            continue
        if promised.isdisjoint(uids):
            units.append(unit)
    return units


def _have_begun(units: Iterable[tuple[PodRecord, ...]]) -> bool:
    for records in units:
        if any(record.preempted or record.is_ending for record in records):
            return True
    return False


def _is_for(unit: MarkedUnit, pod: Pod, node: str) -> bool:
    """Reports whether *unit* is evicted for *pod*, which waits for room on *node*."""
    if any(record.priority >= pod.priority for record in unit.records):
        return False
    if unit.preemptor:
        return unit.preemptor == pod.ref.uid
    return all(record.node == node for record in unit.records)
