"""The text of a pod with a claim of its own, which the scheduler makes and allocates when it binds the pod; and that
claim, if the pod waits for long.

What the containers request moves from their resources to an annotation (:mod:`hami.codec.claim_amounts`), from where it
is read back wherever a pod is parsed. So such a pod requests the same as before, and all policies hold for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hami.codec.claim_amounts import (
    CLAIM,
    VENDOR,
    Amounts,
    parse_claim_amounts,
    render_claim_amounts,
)
from hami.codec.claim_spec import Inexpressible, needs_card_sizes, render_claim_spec
from hami.codec.documents import entries
from hami.codec.hami_claims import render_waiting_claim
from hami.codec.keys import CLAIM_AMOUNTS, CLAIM_RESOURCE
from hami.codec.pods import convert_pod
from hami.dra.pod_claims import (
    NO_OTHERS,
    claims_of,
    with_claim,
    with_containers,
    without_resources,
)
from hami.dra.shared_requests import SharedRequests, memory_size, share_requests
from hami.errors import MalformedInput, PodRefused
from hami.model import Container, ContainerKind, Pod, Request
from hami.scheduling.pod_request import PodRequest, make_pod_request
from hami.vendors.claims import too_many_devices, unclaimable
from hami.vendors.request import device_request
from hami.vendors.spec import Catalog, Vendor

_MARK = {CLAIM_RESOURCE: "1"}


@dataclass(frozen=True, slots=True)
class ClaimedPod:
    """A pod that has a claim of its own. *plain*: the pod without it. *name*: of the claim. *users*: the request that
    each container uses."""

    plain: Mapping[str, Any]
    name: str
    users: Mapping[str, str]


def make_claim_name() -> str:
    """Returns a name for a claim that nobody can guess."""
    return f"hami-{secrets.token_hex(16)}"


def give_claim(
    wire: Mapping[str, Any],
    vendors: Catalog,
    device_policy: str,
    name: str,
    scheduler: str,
    users: Mapping[str, str] | None = None,
) -> Mapping[str, Any] | None:
    """Returns the admitted pod *wire* with the claim *name* for the GPUs that it requests; None if it requests none.

    *device_policy*: the default if the pod's annotation does not set one. *scheduler*: the name by which pods with
    claims are placed; empty to leave that of the pod. *users*: the request that each container uses, if it is given.
    Raises: Inexpressible if no claim can give it these; MalformedInput.
    """
    pod = convert_pod(wire)
    request = make_pod_request(pod, vendors, device_policy)
    if request is None:
        return None
    if all(shared.vendor.key != VENDOR for shared in request.vendor_requests):
        return None
    if claims_of(wire):
        raise Inexpressible(f"spec.resourceClaims: {NO_OTHERS}")
    shared = _shared_requests(pod, request, vendors)
    users = users or shared.users
    amounts: dict[str, dict[str, str]] = {}
    for container in pod.containers:
        if users.get(container.name) == container.name:
            amounts[container.name] = _amounts(pod, vendors[VENDOR], container.name, users)
    try:
        text = render_claim_amounts(amounts)
    except MalformedInput as error:
        raise Inexpressible(str(error)) from None
    claiming = with_claim(wire, name, vendors[VENDOR].resources.names, users, {CLAIM_AMOUNTS: text})
    return _marked(claiming, next(iter(amounts)), scheduler)


def _shared_requests(pod: Pod, request: PodRequest, vendors: Catalog) -> SharedRequests:
    """Returns the requests of the claim of *pod*. Raises: Inexpressible if no claim can give it these."""
    for reason in unclaimable(pod, vendors):
        raise Inexpressible(reason)
    shared = share_requests(pod, request)
    reason = too_many_devices(shared.requests.values(), vendors)
    if reason:
        raise Inexpressible(reason)
    return shared


def waiting_claim(
    pod: Pod, vendors: Catalog, device_policy: str, card_sizes: Callable[[], Collection[int]]
) -> dict[str, Any]:
    """Returns the claim of *pod*, which has one and waits.

    What a claim cannot say of a policy is left out: the scheduler decides, and not by the claim. *card_sizes* returns
    the different amounts of memory (MiB) of the devices that pods get by claims.
    Raises: Inexpressible if it gets none yet; MalformedInput.
    """
    request = make_pod_request(pod, vendors, device_policy)
    if request is None:
        raise Inexpressible("the pod requests no devices")
    requests: dict[str, Request] = {}
    for container, part in zip(pod.containers, request.containers, strict=True):
        if part.requests:
            requests[container.name] = part.requests[0]
    selector = request.vendor_request(VENDOR).selector
    sizes = frozenset[int]()
    if needs_card_sizes(requests.values(), selector):
        sizes = frozenset(card_sizes())
    spec = render_claim_spec(requests, selector, sizes, numa_bind=request.policy.numa_bind)
    return render_waiting_claim(pod, spec["devices"])


def take_claim(wire: Mapping[str, Any], pod: Pod, vendors: Catalog) -> ClaimedPod:
    """Returns the pod *wire*, which was decoded as *pod* and has a claim of its own, as it was without that claim.

    A container that uses the request of another one requests what that one does.
    Raises: MalformedInput if :func:`give_claim` returns no such pod.
    """
    if pod.claim_problem:
        raise PodRefused(pod.claim_problem)
    amounts = parse_claim_amounts(pod.annotations[CLAIM_AMOUNTS])
    names = _resource_names(vendors)
    foreign: set[str] = set()
    for of_container in amounts.values():
        foreign.update(of_container.keys() - names)
    if foreign:
        raise MalformedInput(CLAIM_AMOUNTS, min(foreign), f"expected a resource of {VENDOR} GPUs")
    users = _users(wire, pod, amounts)

    def plain(container: Mapping[str, Any]) -> Mapping[str, Any]:
        name = str(container.get("name") or "")
        resources = without_resources(container, _MARK)
        named = {*resources.get("limits", ()), *resources.get("requests", ())}
        beside = sorted(named & names)
        if beside:
            raise PodRefused(f"container {name} requests {beside[0]} beside its claim")
        if name in users:
            resources["limits"] = {**resources.get("limits", {}), **amounts[users[name]]}
            del resources["claims"]
        if not resources and "resources" not in container:
            return container
        return {**container, "resources": resources}

    changed = with_containers(wire, plain)
    meta, spec = dict(wire["metadata"]), changed["spec"]
    meta["annotations"] = {
        key: text for key, text in meta["annotations"].items() if key != CLAIM_AMOUNTS
    }
    others = [entry for entry in claims_of(wire) if entry.get("name") != CLAIM]
    spec.pop("resourceClaims", None)
    if others:
        spec["resourceClaims"] = others
    return ClaimedPod({**changed, "metadata": meta}, pod.claim, users)


def _resource_names(vendors: Catalog) -> set[str]:
    """Returns the resources of the vendor whose devices claims give."""
    names: set[str] = set()
    for vendor in vendors:
        if vendor.key == VENDOR:
            names.update(vendor.resources.names)
    return names


def _users(wire: Mapping[str, Any], pod: Pod, amounts: Amounts) -> dict[str, str]:
    """Returns the request of the claim that each container uses. Raises: PodRefused for one that it must not use."""
    kinds = {container.name: container.kind for container in pod.containers}
    has_app = any(kinds.get(name) is ContainerKind.APP for name in amounts)
    # whose requests a container without an own one may use
    sharing = {
        ContainerKind.INIT: ContainerKind.APP if has_app else ContainerKind.INIT,
        ContainerKind.APP: ContainerKind.APP,
    }
    spec = wire["spec"]
    users: dict[str, str] = {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        name = container.get("name") or ""
        used = _used(container)
        if name in amounts:
            if used != [name]:
                raise _misused(pod, name, used, "its own request")
        elif not used:
            continue
        elif len(used) > 1 or used[0] not in amounts:
            raise _misused(pod, name, used, "none of its requests")
        elif kinds[used[0]] is not sharing.get(kinds[name]):
            raise _misused(pod, name, used, "none of its requests")
        users[name] = used[0]
    return users


def _used(container: Mapping[str, Any]) -> list[str]:
    """Returns the requests of the scheduler's claim that *container* uses."""
    used: list[str] = []
    for entry in entries((container.get("resources") or {}).get("claims")):
        if entry.get("name") == CLAIM:
            used.append(str(entry.get("request")))
    return used


def _misused(pod: Pod, container: str, used: Collection[str], expected: str) -> PodRefused:
    return PodRefused(
        f"container {container} uses {', '.join(used) or 'nothing'} of the claim {pod.claim}, expected {expected}"
    )


def _amounts(pod: Pod, vendor: Vendor, name: str, users: Mapping[str, str]) -> dict[str, str]:
    """Returns the amounts of the container *name*, raised to those of the init containers that use its request.

    Raises: PodRefused if it requests no GPU.
    """
    resources = vendor.resources
    asking: list[tuple[Mapping[str, str], Request]] = []
    for container in sorted(pod.containers, key=lambda container: container.name != name):
        request = _request(vendor, container, users, name)
        if request is not None:
            asking.append((resources.amounts(container.limits, container.requests), request))
    if not asking:
        raise PodRefused(f"container {name} requests no GPU by its claim")
    amounts: dict[str, str] = {}
    for names, size in (
        ((resources.count,), _count),
        ((resources.memory, resources.memory_percent), memory_size),
        ((resources.cores,), _cores),
    ):
        largest, _ = max(asking, key=lambda part: size(part[1]))
        for resource in names:
            if resource in largest:
                amounts[resource] = largest[resource]
    # else admission would give all cores to a request for whole GPUs
    if len(asking) > 1 and resources.cores:
        amounts.setdefault(resources.cores, str(max(request.cores for _, request in asking)))
    return amounts


def _request(
    vendor: Vendor, container: Container, users: Mapping[str, str], name: str
) -> Request | None:
    """Returns what *container* requests by the request *name* of the claim; None if it does not use that one."""
    if users.get(container.name) != name:
        return None
    return device_request(vendor, container)


def _count(request: Request) -> int:
    return request.count


def _cores(request: Request) -> int:
    return request.cores


def _marked(wire: Mapping[str, Any], name: str, scheduler: str) -> Mapping[str, Any]:
    """Returns the pod *wire* with the mark by which kube-scheduler calls the extender, in the container *name*."""

    def mark(container: Mapping[str, Any]) -> Mapping[str, Any]:
        if container.get("name") != name:
            return container
        resources = dict(container["resources"])
        for part in ("limits", "requests"):
            resources[part] = {**resources.get(part, {}), **_MARK}
        return {**container, "resources": resources}

    marked = with_containers(wire, mark)
    if scheduler:
        marked["spec"]["schedulerName"] = scheduler
    return marked
