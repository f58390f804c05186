"""The usual pods: what matters about pods for the room that nodes have for more of their kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

import msgspec

from hami.model import ContainerKind, Request, Selector
from hami.scheduling.fit import accepts_model
from hami.scheduling.node_resources import NodeResources
from hami.scheduling.pod_request import PodRequest
from hami.vendors.spec import CoreUnit, Vendor

QUARTER = 25  # percent of a device
MAX_STEPS = 8  # requests of one pod that count
COMMON, MERGED = 32, 32
"""Kinds of usual pods that are kept as they are, and those into which rarer ones are merged. None is dropped: nobody
would keep room for it."""
STAYS = 2.0
"""How many times as often as a current kind another must come to take its place."""


class UsualPod(msgspec.Struct, frozen=True):
    """A kind of pods: that of them on which it depends how many more a node takes.

    *count*: devices of *vendor*, each with *cores* (percent) and *memory_mib* (MiB), or *memory_percent* of its memory.
    *milli_cpu*: for all its containers. *alone*: it shares no device. *by_claims*: it gets its devices by a claim.
    *use_types*, *nouse_types*: as in Selector.
    """

    vendor: str
    count: int
    cores: int = 0
    memory_mib: int = 0
    memory_percent: int = 0
    milli_cpu: int = 0
    alone: bool = False
    by_claims: bool = False
    use_types: tuple[str, ...] | None = None
    nouse_types: tuple[str, ...] | None = None

    @property
    def types(self) -> tuple[object, object]:
        """The lists that select models."""
        return self.use_types, self.nouse_types

    def accepts(self, model: str) -> bool:
        """Reports whether such a pod uses devices of *model*."""
        selector = Selector(use_types=self.use_types, nouse_types=self.nouse_types)
        return accepts_model(selector, model)


def usual_pod(request: PodRequest, resources: NodeResources) -> UsualPod | None:
    """Returns the kind of the pods that make *request* and request *resources* of their node; ``None`` if room does not
    say how good a node is for them: their vendor has a score of its own, or they ask several vendors."""
    if len(request.vendor_requests) != 1:
        return None
    (vendor_request,) = request.vendor_requests
    if not has_room(vendor_request.vendor):
        return None
    steps = running_requests(request)
    memory_mib, memory_percent = max([_memory(step) for step in steps])
    return UsualPod(
        vendor=vendor_request.vendor.key,
        count=sum([step.count for step in steps]),
        cores=max([step.device_cores for step in steps]),
        memory_mib=memory_mib,
        memory_percent=memory_percent,
        milli_cpu=resources.milli_cpu,
        alone=request.needs_devices_alone,
        by_claims=request.by_claims,
        use_types=vendor_request.selector.use_types,
        nouse_types=vendor_request.selector.nouse_types,
    )


def has_room(vendor: Vendor) -> bool:
    """Reports whether room says how good a node is for pods with devices of *vendor*."""
    return vendor.decision.node_score is None and vendor.resources.core_unit is not CoreUnit.MASK


def running_requests(request: PodRequest) -> list[Request]:
    """Returns the requests of the containers that run together; of a pod with init containers alone, theirs."""
    running: list[Request] = []
    for container in request.containers:
        if container.kind is not ContainerKind.INIT:
            running += container.requests
    if not running:
        running += request.distinct_requests
    return running[:MAX_STEPS]


def _memory(request: Request) -> tuple[int, int]:
    """Returns MiB, and the percentage if there are none."""
    if request.memory_mib or request.memory_percent is None:
        return request.memory_mib, 0
    return 0, request.memory_percent


def few(
    kinds: Mapping[UsualPod, float], current: Collection[UsualPod] = ()
) -> dict[UsualPod, float]:
    """Returns the most common of *kinds*, COMMON at least, and the rarer ones merged in groups, each of which needs as
    much as its largest: what takes that takes all. Those that are *current* stay before others that are hardly as rare:
    the room for a new kind has to be computed on all nodes."""
    if len(kinds) <= COMMON + MERGED:
        return dict(kinds)
    weights = dict(kinds)
    for kind in current:
        if kind in weights:
            weights[kind] *= STAYS
    ordered = sorted(kinds, key=lambda kind: -weights[kind])
    made = {kind: kinds[kind] for kind in ordered[:COMMON]}
    for members in _groups(ordered[COMMON:], kinds):
        largest = _largest(members)
        made[largest] = made.get(largest, 0.0) + sum([kinds[kind] for kind in members])
    return made


def _groups(kinds: Collection[UsualPod], often: Mapping[UsualPod, float]) -> list[list[UsualPod]]:
    """Returns at most MERGED groups of *kinds* that are alike, the closer the more *often* they come: too much room is
    kept for those that are taken for larger ones."""
    groups = _split(kinds, _vendor)
    for tell_apart in (_count, _types, _cpu, _part_of_device):
        groups.sort(key=lambda members: -sum([often[kind] for kind in members]))
        left = MERGED - len(groups)
        finer: list[list[UsualPod]] = []
        for members in groups:
            parts = _split(members, tell_apart)
            if len(parts) - 1 > left:
                parts = [members]
            left -= len(parts) - 1
            finer += parts
        groups = finer
    return groups


def _split(
    kinds: Iterable[UsualPod], tell_apart: Callable[[UsualPod], Hashable]
) -> list[list[UsualPod]]:
    groups: dict[Hashable, list[UsualPod]] = defaultdict(list)
    for kind in kinds:
        groups[tell_apart(kind)].append(kind)
    return list(groups.values())


def _vendor(kind: UsualPod) -> Hashable:
    return kind.vendor, kind.by_claims


def _count(kind: UsualPod) -> Hashable:
    return kind.count


def _types(kind: UsualPod) -> Hashable:
    return kind.types


def _cpu(kind: UsualPod) -> Hashable:
    """At most half of the CPU of one kind is not needed by another."""
    return kind.milli_cpu.bit_length()


def _part_of_device(kind: UsualPod) -> Hashable:
    """A quarter, half, or more of a device, or the doublings of memory."""
    quarters = max(kind.cores, kind.memory_percent) // QUARTER
    return quarters, kind.memory_mib.bit_length()


def _largest(kinds: Iterable[UsualPod]) -> UsualPod:
    first, *others = kinds
    largest = first
    for kind in others:
        has_same_types = kind.types == largest.types
        largest = msgspec.structs.replace(
            largest,
            count=max(largest.count, kind.count),
            cores=max(largest.cores, kind.cores),
            memory_mib=max(largest.memory_mib, kind.memory_mib),
            memory_percent=max(largest.memory_percent, kind.memory_percent),
            milli_cpu=max(largest.milli_cpu, kind.milli_cpu),
            alone=largest.alone or kind.alone,
            use_types=largest.use_types if has_same_types else None,
            nouse_types=largest.nouse_types if has_same_types else None,
        )
    return largest
