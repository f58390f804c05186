"""Evictions that are under way: the pods that carry the condition of one, by those that are evicted together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hami.model import Pod
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
    if last is None or last.terminated or not last.node:
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
