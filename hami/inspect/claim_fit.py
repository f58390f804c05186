"""The devices of one node that kube-scheduler could allocate to claims that users have written, or why it cannot.

It tries the devices in the order of their slices, as kube-scheduler does. Selectors that are not read here accept every
device: a node that does not fit without them does not fit with them either. Of a request for MIG instances, it only
looks for a card in MIG mode with so much memory left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hami.codec.claim_amounts import VENDOR
from hami.codec.device_requests import DeviceClaim, DeviceConstraint, DeviceSubRequest
from hami.codec.expressions import attribute_of, parse_condition
from hami.codec.keys import CORDONED_TAINT, UNHEALTHY_TAINT
from hami.codec.slices import NUMA_NODE, SHARE, least_share
from hami.model import DeviceUsage, Reason, Request
from hami.scheduling.amounts import Amounts
from hami.scheduling.fit import Unfit
from hami.scheduling.refusal import DeviceRefusal, Distance, nearest_sum
from hami.scheduling.usage import Charge, charged_by

MAX_TRIALS = 20_000  # devices that are tried on a node
MAX_REQUESTS, MAX_PICKS = 64, 256  # of all claims of a pod, and the devices that these get
_WHOLE_SHARE = SHARE * 1000


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """A device and what claims hold of it. *share_milli*: of its 100, in thousandths."""

    usage: DeviceUsage
    share_milli: int = 0


@dataclass(frozen=True, slots=True)
class ClaimPlacement:
    """The devices of a node after an allocation. *picks*: what was allocated, as positions of devices, by request."""

    devices: tuple[SharedDevice, ...]
    picks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ClaimUnfit:
    """A node that claims do not fit. *request*: the name of the first request that cannot be served, beside those
    before it. *devices*: what each has for its nearest alternative. *distance*: from serving that, as that of pods.
    *served*: the number of requests before it."""

    request: str
    unfit: Unfit
    devices: tuple[DeviceRefusal, ...]
    distance: Distance
    served: int = 0

    @property
    def order(self) -> tuple[int, Distance]:
        """A key by which the nearest node is first: distances from serving different requests cannot be compared."""
        return -self.served, self.distance


@dataclass(frozen=True, slots=True)
class Undecided:
    """There are too many combinations of devices to try."""


def allocate(
    devices: Sequence[SharedDevice], claims: Sequence[DeviceClaim]
) -> ClaimPlacement | ClaimUnfit | Undecided:
    """Returns what *claims* of one pod get of *devices*, those of a node in the order of their slices."""
    requests = [request for claim in claims for request in claim.requests]
    picks = sum(
        min(max(sub.count or 1 for sub in request.subrequests), len(devices))
        for request in requests
    )
    if len(requests) > MAX_REQUESTS or picks > MAX_PICKS:
        return Undecided()
    search = _Search(devices, claims)
    try:
        return (
            ClaimPlacement(tuple(search.devices), tuple(search.picks))
            if search.serve(0)
            else search.refusal()
        )
    except _Exhausted:
        return Undecided()


def unread_selectors(claim: DeviceClaim) -> Iterator[tuple[str, str]]:
    """Yields the parts of *claim* that are not judged: the name of the request (empty for the claim), and the text."""
    for request in claim.requests:
        if request.is_instance:
            yield request.name, "the choice of a MIG instance"
        for sub in request.subrequests if request.is_ours and not request.is_instance else ():
            yield from (
                (request.name, f"selector {text}")
                for text in sub.selectors
                if parse_condition(text) is None
            )
            if sub.count is None:
                yield request.name, "allocationMode All"
    yield from (
        ("", f"constraint on {constraint.attribute}")
        for constraint in claim.constraints
        if not _is_read(constraint)
    )


class _Exhausted(Exception):
    """MAX_TRIALS devices have been tried."""


class _Search:
    """The trials on one node, depth first. *devices*, *picks*: as they are after what has been allocated."""

    def __init__(self, devices: Sequence[SharedDevice], claims: Sequence[DeviceClaim]) -> None:
        self.devices = list(devices)
        self.picks: list[tuple[int, ...]] = []
        self._requests = [
            (claim, request) for claim in claims for request in claim.requests if request.is_ours
        ]
        self._taken: list[
            tuple[DeviceClaim, str, str, int]
        ] = []  # claim, request, subrequest, device
        self._trials = 0
        self._deepest = -1
        self._at_deepest: tuple[SharedDevice, ...] = tuple(devices)

    def serve(self, position: int) -> bool:
        """Serves the requests from *position* on; reports whether all can be."""
        if position > self._deepest:
            self._deepest, self._at_deepest = position, tuple(self.devices)
        if position == len(self._requests):
            return True
        return any(
            self._pick(position, sub, 0, ())
            for sub in self._requests[position][1].subrequests
            if sub.is_ours
        )

    def refusal(self) -> ClaimUnfit:
        """Returns why not all can be served: the first request that none of the trials served."""
        claim, request = self._requests[self._deepest]
        broken = (
            Reason.NUMA
            if any(constraint.attribute == NUMA_NODE for constraint in claim.constraints)
            else Reason.CUSTOM_RULE
        )
        refusals = [
            _refusal(request.name, sub, self._at_deepest, broken)
            for sub in request.subrequests
            if sub.is_ours
        ]
        _, position = min((refusal.distance, position) for position, refusal in enumerate(refusals))
        return replace(refusals[position], served=self._deepest)

    def _pick(
        self, position: int, sub: DeviceSubRequest, start: int, picked: tuple[int, ...]
    ) -> bool:
        claim, request = self._requests[position]
        if len(picked) == _picks(sub):
            self.picks.append(picked)
            if self.serve(position + 1):
                return True
            self.picks.pop()
            return False
        for index in range(start, len(self.devices)):
            self._trials += 1
            if self._trials > MAX_TRIALS:
                raise _Exhausted
            before = self.devices[index]
            if objection(before, sub) is not None or not self._is_allowed(
                claim, request.name, sub.name, index
            ):
                continue
            self.devices[index] = _charged(before, sub)
            self._taken.append((claim, request.name, sub.name, index))
            if self._pick(position, sub, index + 1, (*picked, index)):
                return True
            self._taken.pop()
            self.devices[index] = before
        return False

    def _is_allowed(self, claim: DeviceClaim, request: str, sub: str, index: int) -> bool:
        """Reports whether the constraints of *claim* allow a device beside those that it has."""
        for constraint in claim.constraints:
            if not constraint.applies_to(request, sub) or not _is_read(constraint):
                continue
            own = attribute_of(self.devices[index].usage.device, constraint.attribute)
            others = [
                attribute_of(self.devices[other].usage.device, constraint.attribute)
                for owner, name, alternative, other in self._taken
                if owner is claim and constraint.applies_to(name, alternative)
            ]
            if own in others if constraint.is_distinct else any(other != own for other in others):
                return False
        return True


def objection(device: SharedDevice, sub: DeviceSubRequest) -> Reason | None:
    """Returns the first reason why *device* cannot serve *sub*; ``None`` if it can."""
    usage, registered = device.usage, device.usage.device
    if registered.is_partitioned != sub.is_instance:
        return Reason.TYPE_MISMATCH
    if not registered.healthy and not _tolerates(sub, UNHEALTHY_TAINT):
        return Reason.UNHEALTHY
    if registered.cordoned and not _tolerates(sub, CORDONED_TAINT):
        return Reason.CORDONED
    if sub.is_instance:
        return Reason.NO_MEMORY if (sub.memory_mib or 1) > usage.memory_free_mib else None
    for text in sub.selectors:
        if (condition := parse_condition(text)) is not None and not condition(registered):
            return _reason_of(text)
    if sub.unknown_capacities:
        return Reason.CUSTOM_RULE
    share = _share_of(device, sub)
    if share > _WHOLE_SHARE - device.share_milli:
        return Reason.NOT_ALONE if sub.share_milli == _WHOLE_SHARE else Reason.NO_SLOT
    if _memory_of(device, sub) > usage.memory_free_mib:
        return Reason.NO_MEMORY
    return Reason.NO_CORES if sub.cores > registered.cores - usage.cores_used else None


def _refusal(
    request: str, sub: DeviceSubRequest, devices: Sequence[SharedDevice], broken: Reason
) -> ClaimUnfit:
    """Returns why *devices* do not serve *sub*. *broken*: the reason if each could, but no combination of them."""
    refusals = tuple(_device_refusal(device, sub) for device in devices)
    reasons = Counter(refusal.reason for refusal in refusals if refusal.reason is not None)
    count, serving = _picks(sub), sum(refusal.reason is None for refusal in refusals)
    distance = nearest_sum((refusal.distance for refusal in refusals), count)
    if count > len(devices):
        return ClaimUnfit(request, Unfit.too_few_devices(len(devices)), refusals, distance)
    if serving >= count:
        return ClaimUnfit(request, Unfit(((broken, serving),), len(devices)), refusals, distance)
    return ClaimUnfit(request, Unfit.of(reasons, serving, len(devices)), refusals, distance)


def _device_refusal(device: SharedDevice, sub: DeviceSubRequest) -> DeviceRefusal:
    usage, registered = device.usage, device.usage.device
    least, share = least_share(registered.slots), _share_of(device, sub)
    free_share = _WHOLE_SHARE - device.share_milli
    slots = -(-share // least)
    if share <= _WHOLE_SHARE:
        slots = min(slots, registered.slots)
    total = Amounts(registered.memory_mib, registered.cores, registered.slots)
    free = Amounts(
        usage.memory_free_mib,
        registered.cores - usage.cores_used,
        min(free_share // least, registered.slots),
    )
    return DeviceRefusal(
        registered,
        Amounts(_memory_of(device, sub), sub.cores, slots),
        free,
        total,
        True,
        objection(device, sub),
        missing_slots=max(0, share - free_share) / share,
    )


def _charged(device: SharedDevice, sub: DeviceSubRequest) -> SharedDevice:
    """Returns *device* with what *sub* gets of it, if that is known."""
    if sub.is_instance:
        return device
    registered, share = device.usage.device, _share_of(device, sub)
    slots = share // least_share(registered.slots)
    charge = Charge(registered.uuid, slots, _memory_of(device, sub), sub.cores)
    return replace(
        device, usage=charged_by(device.usage, charge), share_milli=device.share_milli + share
    )


def request_of(sub: DeviceSubRequest) -> Request:
    """Returns what *sub* asks for, in the words of the device plugin."""
    return Request(
        vendor=VENDOR,
        count=sub.count or 1,
        memory_mib=sub.memory_mib or 0,
        cores=sub.cores,
        memory_percent=100 if sub.memory_mib is None else None,
    )


def _picks(sub: DeviceSubRequest) -> int:
    """Returns on how many devices *sub* is tried: several MIG instances may be those of one card."""
    return 1 if sub.is_instance else sub.count or 1


def _memory_of(device: SharedDevice, sub: DeviceSubRequest) -> int:
    if sub.memory_mib is None:
        return 0 if sub.is_instance else device.usage.device.memory_mib
    return max(sub.memory_mib, 1)


def _share_of(device: SharedDevice, sub: DeviceSubRequest) -> int:
    return max(sub.share_milli or 0, least_share(device.usage.device.slots))


def _tolerates(sub: DeviceSubRequest, taint: str) -> bool:
    return any(toleration.tolerates(taint) for toleration in sub.tolerations)


def _reason_of(selector: str) -> Reason:
    """Returns the reason for a device that does not meet *selector*."""
    if ".uuid" in selector:
        return Reason.UUID_MISMATCH
    return (
        Reason.TYPE_MISMATCH
        if ".productName" in selector or ".mode" in selector
        else Reason.CUSTOM_RULE
    )


def _is_read(constraint: DeviceConstraint) -> bool:
    return constraint.attribute in _READ


_READ = frozenset(
    {
        NUMA_NODE,
        *(
            f"{domain}{name}"
            for domain in ("", "gpu.hami.io/")
            for name in ("type", "uuid", "productName", "mode", "index", "memoryMiB")
        ),
    }
)
