"""Moves: which pods leave a node so that another one fits there, by arithmetic on its devices, and which pods stay.

A move: a pod is evicted, its controller makes it again, and the scheduler places it. Whether a set of pods is enough is
decided elsewhere, by the decision itself: here are the sets that are worth asking for.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hami.codec.keys import DO_NOT_MOVE, PREEMPTIBLE, SAFE_TO_EVICT, SAFE_VOLUMES
from hami.codec.times import parse_time
from hami.model import DeviceUsage, DisruptionBudget, Immovable, Partition, Pod, Request
from hami.scheduling.usage import Charge

T = TypeVar("T", bound=Hashable)

STEADY_CONTROLLERS = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""The controllers that make the same pod again, and whose pods have begun nothing that must end."""
MAX_OPTIONS = 64  # sets of pods of one device
MAX_SETS = 256  # sets of pods of one node
MAX_STEPS = 4096  # of the search for them, of one device or node
_NO_CHOICE = (-1, frozenset[str]())


MEANINGS: Mapping[Immovable, str] = {
    Immovable.PRIORITY: "a higher priority than the pod that waits",
    Immovable.SIBLING: "of the controller of the pod that waits",
    Immovable.ENDING: "not running, or about to end",
    Immovable.NODE_AGENT: "of a DaemonSet, or run by the node itself",
    Immovable.NO_CONTROLLER: "no controller makes them again",
    Immovable.UNKNOWN_CONTROLLER: "a controller that may not make them again",
    Immovable.JOB: f"of a Job, whose work would be lost (unless {SAFE_TO_EVICT}=true)",
    Immovable.DO_NOT_MOVE: f"annotation {DO_NOT_MOVE}=true",
    Immovable.NOT_SAFE: f"annotation {SAFE_TO_EVICT}=false",
    Immovable.PREEMPTIBLE: f"label {PREEMPTIBLE}=false",
    Immovable.GANG: "of a group of pods that are placed together",
    Immovable.CLAIMS: "with claims that HAMi does not allocate",
    Immovable.LOCAL_STORAGE: f"local volumes (unless {SAFE_TO_EVICT}=true, or {SAFE_VOLUMES} names them)",
    Immovable.BUDGET: "a PodDisruptionBudget permits no eviction now",
    Immovable.YOUNG: "started too recently",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRules:
    """Who may be moved. *now*: Unix seconds. *min_runtime_s*: pods that have run for less stay. *budgets*: all
    PodDisruptionBudgets. *claiming*: uids of the pods with claims of other allocators."""

    now: float
    min_runtime_s: float = 0.0
    budgets: Sequence[DisruptionBudget] = ()
    claiming: Collection[str] = ()

    def why_stays(self, pod: Pod, waiting: Pod | None = None) -> Immovable | None:
        """Returns why *pod* stays where it is; ``None`` if it may be moved. *waiting*: the pod for which it is moved,
        ``None`` if it is moved for no certain one."""
        reason = None if waiting is None else _by_waiting(pod, waiting)
        if reason is not None:
            return reason
        if pod.is_terminated or pod.deleting or not pod.node_name or pod.preempted:
            return Immovable.ENDING
        return _by_owner(pod) or _by_author(pod) or self._by_cluster(pod)

    def _by_cluster(self, pod: Pod) -> Immovable | None:
        if pod.group:
            return Immovable.GANG
        if pod.other_claims or pod.ref.uid in self.claiming:
            return Immovable.CLAIMS
        if _has_data(pod):
            return Immovable.LOCAL_STORAGE
        if self._is_protected(pod):
            return Immovable.BUDGET
        if self.min_runtime_s:
            started = parse_time(pod.started)
            if started == 0 or self.now - started < self.min_runtime_s:
                return Immovable.YOUNG
        return None

    def _is_protected(self, pod: Pod) -> bool:
        """The API server refuses to evict a pod of several budgets, too."""
        labels = dict(pod.labels)
        budgets = [budget for budget in self.budgets if budget.selects(pod.ref.namespace, labels)]
        return len(budgets) > 1 or any(budget.allowed <= 0 for budget in budgets)


def _by_waiting(pod: Pod, waiting: Pod) -> Immovable | None:
    if pod.priority > waiting.priority:
        return Immovable.PRIORITY
    if pod.controller and pod.controller == waiting.controller:
        return Immovable.SIBLING  # one could not tell whose place the controller's next pod takes
    return None


def _by_owner(pod: Pod) -> Immovable | None:
    if pod.is_node_agent:
        return Immovable.NODE_AGENT
    if not pod.controller:
        return Immovable.NO_CONTROLLER
    if pod.controller_kind in STEADY_CONTROLLERS or _is_safe(pod):
        return None
    return Immovable.JOB if pod.controller_kind == "Job" else Immovable.UNKNOWN_CONTROLLER


def _by_author(pod: Pod) -> Immovable | None:
    if _is_true(pod.annotations.get(DO_NOT_MOVE, "")):
        return Immovable.DO_NOT_MOVE
    if pod.annotations.get(SAFE_TO_EVICT) == "false":
        return Immovable.NOT_SAFE
    if pod.labels.get(PREEMPTIBLE) == "false":
        return Immovable.PREEMPTIBLE
    return None


def _has_data(pod: Pod) -> bool:
    if _is_safe(pod):
        return False
    lost = {name.strip() for name in pod.annotations.get(SAFE_VOLUMES, "").split(",")}
    return not lost.issuperset(pod.local_volumes)


def _is_safe(pod: Pod) -> bool:
    return pod.annotations.get(SAFE_TO_EVICT) == "true"


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("true", "1", "t")


@dataclass(frozen=True, slots=True)
class MovableDevice:
    """A device of a node and the parts of it that pods hold which may be moved, by uid."""

    usage: DeviceUsage
    charges: Mapping[str, Charge]


Passes = Callable[[DeviceUsage], bool]
"""Reports whether the pod that waits would get a part of the device as it is then."""


def victim_sets(
    devices: Sequence[MovableDevice], request: Request, size: int, passes: Passes
) -> list[frozenset[str]]:
    """Returns sets of *size* pods (uids) without which as many of the *devices* pass as *request* needs; at most
    MAX_SETS, and none if so many pass already. No pod is in a set that does not help on any device."""
    options: list[list[frozenset[str]]] = []
    free = 0
    for device in devices:
        fewest = _fewest(device, request)
        if fewest == 0 and passes(device.usage):
            free += 1
            continue
        sets = _sets_of(device, max(1, fewest), size, passes)
        if sets:
            options.append(sets)
    needed = request.count - free
    if needed <= 0 or len(options) < needed:
        return []
    options.sort(key=lambda sets: (len(sets[0]), sorted(sets[0])))
    found: dict[frozenset[str], None] = {}
    for union in _unions(options, needed, size):
        if len(union) == size:
            found[union] = None
        if len(found) == MAX_SETS:
            break
    return list(found)


def without(usage: DeviceUsage, charges: Collection[Charge]) -> DeviceUsage:
    """Returns *usage* without *charges* of it."""
    slots, memory, cores = usage.slots_used, usage.memory_used_mib, usage.cores_used
    partitions: list[Partition] = []
    co_tenants: list[str] = []
    for charge in charges:
        slots -= charge.slots
        memory -= charge.memory_mib
        cores -= charge.cores
        partitions += charge.partitions
        co_tenants += charge.co_tenants
    return DeviceUsage(
        usage.device,
        slots,
        memory,
        cores,
        _less(usage.partitions, partitions),
        _less(usage.co_tenants, co_tenants),
    )


def _less(items: tuple[T, ...], others: Sequence[T]) -> tuple[T, ...]:
    """Returns *items* without as many of each as *others* has."""
    if not others:  # as nearly always
        return items
    return tuple((Counter(items) - Counter(others)).elements())


def _sets_of(device: MovableDevice, fewest: int, size: int, passes: Passes) -> list[frozenset[str]]:
    """Returns the smallest sets of *fewest* to *size* pods without which *device* passes: none contains another."""
    if fewest > size or not passes(without(device.usage, list(device.charges.values()))):
        return []
    found: list[frozenset[str]] = []
    for uids in itertools.islice(_combinations(device, fewest, size), MAX_STEPS):
        union = frozenset(uids)
        if any(smaller <= union for smaller in found):
            continue
        if passes(without(device.usage, [device.charges[uid] for uid in uids])):
            found.append(union)
            if len(found) == MAX_OPTIONS:
                break
    return found


def _combinations(device: MovableDevice, fewest: int, size: int) -> Iterator[tuple[str, ...]]:
    """Yields sets of *fewest* to *size* pods of a device, small sets and large pods first."""
    charges = device.charges
    uids = sorted(charges, key=lambda uid: (-charges[uid].memory_mib, -charges[uid].cores, uid))
    for number in range(fewest, size + 1):
        yield from itertools.combinations(uids, number)


def _fewest(device: MovableDevice, request: Request) -> int:
    """Returns the number of pods that have to leave at least, so that memory and cores suffice; above all others if
    they never do."""
    usage, charges = device.usage, device.charges.values()
    memory = request.memory_on(usage.device) - usage.memory_free_mib
    fewest = _largest_first([charge.memory_mib for charge in charges], memory)
    if usage.device.is_partitioned:
        return fewest
    cores = request.device_cores - (usage.device.cores - usage.cores_used)
    return max(fewest, _largest_first([charge.cores for charge in charges], cores))


def _largest_first(amounts: Sequence[int], needed: int) -> int:
    """Returns how many of *amounts* make *needed*; more than there are if all of them do not."""
    if needed <= 0:
        return 0
    total = 0
    for number, amount in enumerate(sorted(amounts, reverse=True), 1):
        total += amount
        if total >= needed:
            return number
    return len(amounts) + 1


def _unions(
    options: Sequence[Sequence[frozenset[str]]], needed: int, size: int
) -> Iterator[frozenset[str]]:
    """Yields unions of *needed* sets, each of another device, with at most *size* pods; smaller sets first."""
    stack = [(needed, frozenset[str](), _choices(options, 0, needed))]
    for _ in range(MAX_STEPS):
        if not stack:
            return
        missing, union, choices = stack[-1]
        place, pods = next(choices, _NO_CHOICE)
        if place < 0:
            stack.pop()
            continue
        larger = union | pods
        if len(larger) > size:
            continue
        if missing == 1:
            yield larger
        else:
            further = _choices(options, place + 1, missing - 1)
            stack.append((missing - 1, larger, further))


def _choices(
    options: Sequence[Sequence[frozenset[str]]], start: int, missing: int
) -> Iterator[tuple[int, frozenset[str]]]:
    """Yields the sets of each device from *start* on after which *missing* devices may still be had."""
    for place in range(start, len(options) - missing + 1):
        for pods in options[place]:
            yield place, pods
