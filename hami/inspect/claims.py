"""Pods whose claims users have written and kube-scheduler allocates: why they wait, and how many of them fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hami.codec.claim_amounts import MAX_RESULTS, VENDOR
from hami.codec.claims import AllocatedClaim
from hami.codec.device_requests import DeviceClaim, DeviceRequest, DeviceSubRequest
from hami.codec.keys import ALLOCATION_MODE, REQUIRED
from hami.codec.slices import DRIVER, MIG_CLASS, SHARE, device_name, pool_name
from hami.dra.written_claims import plain_pod
from hami.errors import MalformedInput
from hami.inspect.claim_fit import (
    ClaimPlacement,
    ClaimUnfit,
    SharedDevice,
    Undecided,
    allocate,
    request_of,
    unread_selectors,
)
from hami.inspect.cluster import InspectedCluster, SchedulingEvent
from hami.inspect.explain import NodeShortage, RequestedDevices, WaitingReport, device_shortage
from hami.inspect.tables import counted
from hami.inspect.top import age_of
from hami.model import Pod
from hami.scheduling.refusal import request_text
from hami.vendors.request import requests_devices

SHOWN = 200  # characters of a selector
MAX_NOTES = 20

ClaimNodes = Mapping[str, tuple[SharedDevice, ...]]
"""The devices that kube-scheduler may allocate, by node, in the order of their slices."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim of a pod. *title*: kind and name of its object. *requested*: what it asks for. *allocated*: what it has
    got of our driver; ``None`` before it is allocated. *has_template*: each pod gets its own."""

    title: str
    requested: DeviceClaim
    allocated: AllocatedClaim | None = None
    has_template: bool = True


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of a pod. *problems*: a sentence for each part that could not be read.

    *pod*: the pod, and *templates*: those that it names, by name, as JSON.
    """

    claims: tuple[PodClaim, ...]
    problems: tuple[str, ...] = ()
    pod: Mapping[str, Any] = field(default_factory=dict)
    templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def has_ours(self) -> bool:
        """Reports whether one is about devices of our driver."""
        return any(claim.requested.is_ours for claim in self.claims)

    @property
    def waiting(self) -> list[DeviceClaim]:
        """The requests of the claims that are not allocated yet."""
        return [claim.requested for claim in self.claims if claim.allocated is None]

    def made_again(self) -> PodClaims:
        """Returns the claims of a pod that replaces this one: those of templates are not allocated yet."""
        return replace(
            self,
            claims=tuple(
                replace(claim, allocated=None) if claim.has_template else claim
                for claim in self.claims
            ),
        )

    @property
    def is_read(self) -> bool:
        """Reports whether everything that decides on devices is read: ours, and no others."""
        return not self.problems and not any(
            any(unread_selectors(claim)) or not all(request.is_ours for request in claim.requests)
            for claim in self.waiting
        )


def decide(cluster: InspectedCluster, pod: Pod, claims: PodClaims | None) -> bool:
    """Reports whether *claims* decide on the devices of *pod*: one is about ours; or it requests no devices otherwise,
    and one cannot be read."""
    return claims is not None and (
        claims.has_ours
        or bool(claims.problems)
        and not requests_devices(cluster.vendors, pod.containers)
    )


def claim_nodes(cluster: InspectedCluster) -> dict[str, tuple[SharedDevice, ...]]:
    """Returns the devices of *cluster* that kube-scheduler may allocate, and what claims hold of them."""
    held: dict[tuple[str, str], int] = {}
    for claim in cluster.claimed.claims.values():
        for request in claim.requests:
            for device in request.devices:  # one with adminAccess holds nothing
                key = (device.pool, device.device)
                held[key] = held.get(key, 0) + device.share_milli
    return {
        node: tuple(
            SharedDevice(usage, held.get((pool_name(node), device_name(usage.device.uuid)), 0))
            for usage in usages.get(VENDOR, ())
        )
        for node, usages in sorted(cluster.claimed.view.nodes.items())
    }


def judge(
    cluster: InspectedCluster,
    pod: Pod,
    claims: PodClaims,
    nodes: ClaimNodes,
) -> dict[str, ClaimPlacement | ClaimUnfit | Undecided]:
    """Returns what *pod* would get on each node of *nodes* that kube-scheduler may offer it, by name."""
    homes = {
        device.pool
        for claim in claims.claims
        if claim.allocated is not None
        for request in claim.allocated.requests
        for device in request.devices
    }
    return {
        name: allocate(nodes[name], claims.waiting)
        for name in cluster.offered
        if name in nodes and homes <= {pool_name(name)}
    }


def explain_claims(
    cluster: InspectedCluster, pod: Pod, claims: PodClaims, events: Sequence[SchedulingEvent]
) -> WaitingReport:
    """Returns the report on *pod*, which waits. *events*: those about it."""
    nodes = claim_nodes(cluster)
    results = judge(cluster, pod, claims, nodes)
    refusals = nearest(results)
    reasons: dict[str, list[str]] = {}
    for name, refusal in refusals:
        for reason, _ in refusal.unfit.reasons:
            reasons.setdefault(str(reason), []).append(name)
    undecided = [name for name, result in results.items() if isinstance(result, Undecided)]
    fits = next(
        (name for name, result in results.items() if isinstance(result, ClaimPlacement)), ""
    )
    return WaitingReport(
        namespace=pod.ref.namespace,
        name=pod.ref.name,
        age_s=age_of(pod.created, cluster.record.taken),
        scheduler=pod.scheduler_name,
        requests=tuple(requested_by(cluster, claims)),
        annotations={},
        fits=fits or next(iter(undecided), ""),
        is_certain=bool(fits) and claims.is_read,
        reasons={reason: tuple(sorted(names)) for reason, names in reasons.items()},
        nodes=tuple(shortage(name, refusal) for name, refusal in refusals),
        cordoned=tuple(sorted(cluster.cordoned & nodes.keys())),
        without_devices=0,
        events=tuple(events),
        suggestions=(),
        claim_notes=tuple(_notes(cluster, pod, claims, undecided)),
    )


def nearest(
    results: Mapping[str, ClaimPlacement | ClaimUnfit | Undecided],
) -> list[tuple[str, ClaimUnfit]]:
    """Returns the nodes of *results* that do not fit, nearest first."""
    refusals = [
        (name, result) for name, result in results.items() if isinstance(result, ClaimUnfit)
    ]
    return sorted(refusals, key=lambda item: (item[1].order, item[0]))


def shortage(node: str, refusal: ClaimUnfit) -> NodeShortage:
    """Returns why claims do not fit *node*, nearest device first."""
    devices = sorted(
        refusal.devices,
        key=lambda device: (device.distance, device.device.index, device.device.uuid),
    )
    return NodeShortage(
        node, str(refusal.unfit), refusal.request, tuple(map(device_shortage, devices))
    )


def requested_by(cluster: InspectedCluster, claims: PodClaims) -> Iterator[RequestedDevices]:
    """Yields what each request of *claims* asks for, in words, an entry for each alternative."""
    for claim in claims.claims:
        for request in claim.requested.requests if claim.allocated is None else ():
            yield RequestedDevices(
                request.name,
                tuple(_subrequest_text(cluster, sub) for sub in request.subrequests if sub.is_ours)
                or (f"devices of the class {request.subrequests[0].device_class}",),
            )


def _subrequest_text(cluster: InspectedCluster, sub: DeviceSubRequest) -> str:
    """Returns a request in words: ``small: 1 × NVIDIA with 3000 MiB, 30 cores, share 100, selected by …``."""
    share = f", share {sub.share_milli / 1000:g} of {SHARE}" if sub.share_milli is not None else ""
    selectors = "".join(
        f", selected by {text[:SHOWN]}" for text in sub.selectors if not _is_of_class(text)
    )
    if sub.is_instance:
        memory = f" with {sub.memory_mib} MiB" if sub.memory_mib is not None else ""
        text = f"{sub.count or 1} × MIG instance{memory}"
    else:
        text = request_text(request_of(sub), cluster.vendors[VENDOR])
    return (f"{sub.name}: " if sub.name else "") + text + share + selectors


def _is_of_class(selector: str) -> bool:
    """Reports whether *selector* is one that our own class has: which driver the device is of."""
    return selector.startswith("device.driver ==")


def _notes(
    cluster: InspectedCluster, pod: Pod, claims: PodClaims, undecided: Sequence[str]
) -> Iterator[str]:
    """Yields what is to be known about *claims*, at most MAX_NOTES sentences."""
    notes = [*claims.problems, *_publication_notes(cluster, claims)]
    for claim in claims.claims:
        notes += (
            _allocation_notes(pod, claim) if claim.allocated is not None else _claim_notes(claim)
        )
    if undecided:
        notes.append(
            f"{counted(len(undecided), 'node')}: too many combinations of devices to try here."
        )
    yield from notes[:MAX_NOTES]
    if len(notes) > MAX_NOTES:
        yield f"And {len(notes) - MAX_NOTES} more of the kind."


def _publication_notes(cluster: InspectedCluster, claims: PodClaims) -> Iterator[str]:
    managed = {
        part.node
        for part in cluster.record.slices
        if any(
            card.by_claims
            for card in (*part.devices, *(instance.card for instance in part.instances))
        )
    }
    if managed:
        yield (
            f"HAMi's scheduler allocates the devices of {counted(len(managed), 'node')}, and kube-scheduler gives "
            "them to no claim that users have written."
        )
        yield _translation_note(cluster, claims)


def _translation_note(cluster: InspectedCluster, claims: PodClaims) -> str:
    """Returns what HAMi's scheduler would do about *claims* of a pod, if that had the label by which it sees them."""
    try:
        translated = plain_pod(
            claims.pod,
            claims.templates.get,
            cluster.vendors,
            lambda: {
                usage.device.memory_mib for _, usage in cluster.usages() if usage.device.by_claims
            },
        )
    except MalformedInput as error:
        return f"HAMi's scheduler makes no claim in place of these: {error}."
    if translated is None:
        return (
            "HAMi's scheduler makes claims in place of those of templates, with a deviceClassName of "
            f"{DRIVER} or {MIG_CLASS}."
        )
    return f"A pod with the label {ALLOCATION_MODE}={REQUIRED} gets a claim of HAMi's scheduler in place of these."


def _allocation_notes(pod: Pod, claim: PodClaim) -> Iterator[str]:
    assert claim.allocated is not None
    pools = {device.pool for request in claim.allocated.requests for device in request.devices}
    where = (
        f" on {', '.join(sorted(pool.removeprefix(pool_name('')) for pool in pools))}"
        if pools
        else (", with no device of HAMi")
    )
    yield f"{claim.title} is allocated{where}: the pod waits for that node."
    if others := [ref for ref in claim.allocated.pods if ref.uid != pod.ref.uid]:
        yield (
            f"{claim.title} is reserved for {counted(len(others), 'other pod')}: a claim of HAMi's devices is for "
            "one pod at a time."
        )


def _claim_notes(claim: PodClaim) -> Iterator[str]:
    ours = [request for request in claim.requested.requests if request.is_ours]
    if (
        results := sum(min(sub.count or 1 for sub in request.subrequests) for request in ours)
    ) > MAX_RESULTS:
        yield f"{claim.title} asks for {results} devices, and a claim gets at most {MAX_RESULTS}."
    for request in claim.requested.requests:
        about = f"{claim.title}, request {request.name}"
        if not request.is_ours:
            yield f"{about}: devices of the class {request.subrequests[0].device_class} are not HAMi's, and not judged."
        yield from (f"{about}: {problem}." for problem in _request_problems(request))
    yield from _unread_parts(claim)


def unread_notes(claims: PodClaims) -> Iterator[str]:
    """Yields a sentence for what keeps *claims* from being judged, and what a node refuses."""
    for claim in claims.claims:
        if claim.allocated is None:
            yield from _claim_notes(claim)


def _unread_parts(claim: PodClaim) -> Iterator[str]:
    for name, part in unread_selectors(claim.requested):
        yield (
            f"{claim.title}{f', request {name}' if name else ''}: {part[:SHOWN]} is not evaluated here. Nodes are "
            "judged without it: one that does not fit would not fit with it either."
        )


def _request_problems(request: DeviceRequest) -> Iterable[str]:
    if any(sub.is_admin for sub in request.subrequests):
        yield "adminAccess is refused"
    for name in sorted(
        {name for sub in request.subrequests if sub.is_ours for name in sub.unknown_capacities}
    ):
        yield f"no device of HAMi has the capacity {name}"
