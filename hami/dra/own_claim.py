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
from hami.codec.claim_templates import ClaimRequest, claim_spec
from hami.codec.claims import Inexpressible, needs_card_sizes
from hami.codec.documents import entries
from hami.codec.keys import CLAIM_AMOUNTS, CLAIM_RESOURCE
from hami.codec.own_claims import render_waiting_claim
from hami.codec.pods import convert_pod
from hami.dra.translate import (
    NO_OTHERS,
    claims_of,
    memory_size,
    share_requests,
    too_long_annotations,
    with_claim,
    with_containers,
    without_resources,
)
from hami.errors import MalformedInput, PodRefused
from hami.model import ContainerKind, Pod, Request
from hami.scheduling.pod_request import make_pod_request
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
) -> Mapping[str, Any] | Inexpressible | None:
    """Returns the admitted pod *wire* with the claim *name* for the GPUs that it requests, or why there is none; None
    if it requests none.

    *device_policy*: the default if the pod's annotation does not set one. *scheduler*: the name by which pods with
    claims are placed; empty to leave that of the pod. *users*: the request that each container uses, if it is given.
    Raises: MalformedInput.
    """
    pod = convert_pod(wire)
    request = make_pod_request(pod, vendors, device_policy)
    if request is None or all(shared.vendor.key != VENDOR for shared in request.vendor_requests):
        return None
    if claims_of(wire):
        return Inexpressible(f"spec.resourceClaims: {NO_OTHERS}")
    if (reason := next(unclaimable(pod, vendors), None)) is not None:
        return Inexpressible(reason)
    shared = share_requests(pod, request)
    if isinstance(shared, Inexpressible):
        return shared
    users = users or shared.users
    if reason := too_many_devices(shared.requests.values(), vendors):
        return Inexpressible(reason)
    amounts = {
        container.name: _amounts(pod, vendors[VENDOR], container.name, users)
        for container in pod.containers
        if users.get(container.name) == container.name
    }
    try:
        text = render_claim_amounts(amounts)
    except MalformedInput as error:
        return Inexpressible(str(error))
    names = frozenset(vendors[VENDOR].resources.names)
    claiming = with_claim(wire, names, users, {CLAIM_AMOUNTS: text}, resourceClaimName=name)
    if reason := too_long_annotations(claiming):
        return Inexpressible(reason)
    return _marked(claiming, next(iter(amounts)), scheduler)


def waiting_claim(
    pod: Pod, vendors: Catalog, device_policy: str, card_sizes: Callable[[], Collection[int]]
) -> dict[str, Any] | Inexpressible:
    """Returns the claim of *pod*, which has one and waits, or why it gets none yet.

    What a claim cannot say of a policy is left out: the scheduler decides, and not by the claim. *card_sizes* returns
    the different amounts of memory (MiB) of the devices that pods get by claims. Raises: MalformedInput.
    """
    request = make_pod_request(pod, vendors, device_policy)
    if request is None:
        return Inexpressible("the pod requests no devices")
    requests = {
        container.name: part.requests[0]
        for container, part in zip(pod.containers, request.containers, strict=True)
        if part.requests
    }
    selector = request.vendor_request(VENDOR).selector
    sizes = card_sizes() if needs_card_sizes(requests.values(), selector) else ()
    spec = claim_spec(
        ClaimRequest(
            requests=requests,
            selector=selector,
            numa_bind=request.policy.numa_bind,
            card_sizes=frozenset(sizes),
        )
    )
    return spec if isinstance(spec, Inexpressible) else render_waiting_claim(pod, spec["devices"])


def take_claim(wire: Mapping[str, Any], pod: Pod, vendors: Catalog) -> ClaimedPod:
    """Returns the pod *wire*, which was decoded as *pod* and has a claim of its own, as it was without that claim.

    A container that uses the request of another one requests what that one does.
    Raises: MalformedInput if :func:`give_claim` returns no such pod.
    """
    if pod.claim_problem:
        raise PodRefused(pod.claim_problem)
    amounts = parse_claim_amounts(pod.annotations[CLAIM_AMOUNTS])
    names = {name for vendor in vendors if vendor.key == VENDOR for name in vendor.resources.names}
    if foreign := {name for of_container in amounts.values() for name in of_container} - names:
        raise MalformedInput(CLAIM_AMOUNTS, min(foreign), f"expected a resource of {VENDOR} GPUs")
    users = _users(wire, pod, amounts)

    def restored(container: Mapping[str, Any]) -> Mapping[str, Any]:
        resources = without_resources(container, _MARK)
        named = {name for part in ("limits", "requests") for name in resources.get(part, ())}
        if beside := sorted(named & names):
            raise PodRefused(
                f"container {container.get('name')} requests {beside[0]} beside its claim"
            )
        if (used := users.get(container.get("name") or "")) is not None:
            resources["limits"] = {**resources.get("limits", {}), **amounts[used]}
            del resources["claims"]
        return (
            {**container, "resources": resources}
            if resources or "resources" in container
            else container
        )

    meta, plain = wire["metadata"], with_containers(wire, restored)
    annotations = {key: text for key, text in meta["annotations"].items() if key != CLAIM_AMOUNTS}
    spec = {key: value for key, value in plain["spec"].items() if key != "resourceClaims"}
    if others := [entry for entry in claims_of(wire) if entry.get("name") != CLAIM]:
        spec["resourceClaims"] = others
    return ClaimedPod(
        {**plain, "metadata": {**meta, "annotations": annotations}, "spec": spec}, pod.claim, users
    )


def _users(wire: Mapping[str, Any], pod: Pod, amounts: Amounts) -> dict[str, str]:
    """Returns the request of the claim that each container uses. Raises: PodRefused for one that it must not use."""
    spec, users = wire["spec"], dict[str, str]()
    kinds = {container.name: container.kind for container in pod.containers}
    shared = (
        ContainerKind.APP if ContainerKind.APP in map(kinds.get, amounts) else ContainerKind.INIT
    )
    sharing = {ContainerKind.INIT: shared, ContainerKind.APP: ContainerKind.APP}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        name = container.get("name") or ""
        used = [
            str(entry.get("request"))
            for entry in entries((container.get("resources") or {}).get("claims"))
            if entry.get("name") == CLAIM
        ]
        if not used and name not in amounts:
            continue
        own = used == [name] and name in amounts
        if not own and (
            name in amounts
            or len(used) != 1
            or used[0] not in amounts
            or kinds[used[0]] is not sharing.get(kinds[name])
        ):
            raise PodRefused(
                f"container {name} uses {', '.join(used) or 'nothing'} of the claim {pod.claim}, expected "
                f"{'its own request' if name in amounts else 'none of its requests'}"
            )
        users[name] = used[0]
    return users


def _amounts(pod: Pod, vendor: Vendor, name: str, users: Mapping[str, str]) -> dict[str, str]:
    """Returns the amounts of the container *name*, raised to those of the init containers that use its request.

    Raises: PodRefused if it requests no GPU.
    """
    resources = vendor.resources
    asking = [
        (resources.amounts(container.limits, container.requests), request)
        for container in sorted(pod.containers, key=lambda container: container.name != name)
        if users.get(container.name) == name
        and (request := device_request(vendor, container)) is not None
    ]
    if not asking:
        raise PodRefused(f"container {name} requests no GPU by its claim")
    amounts: dict[str, str] = {}
    for of_size, size in (
        ((resources.count,), _count),
        ((resources.memory, resources.memory_percent), memory_size),
        ((resources.cores,), _cores),
    ):
        given, _ = max(asking, key=lambda part: size(part[1]))
        amounts |= {resource: given[resource] for resource in of_size if resource in given}
    if (
        len(asking) > 1 and resources.cores
    ):  # else admission would give all cores to a request for whole GPUs
        amounts.setdefault(resources.cores, str(max(request.cores for _, request in asking)))
    return amounts


def _count(request: Request) -> int:
    return request.count


def _cores(request: Request) -> int:
    return request.cores


def _marked(wire: Mapping[str, Any], name: str, scheduler: str) -> Mapping[str, Any]:
    """Returns the pod *wire* with the mark by which kube-scheduler calls the extender, in the container *name*."""

    def mark(container: Mapping[str, Any]) -> Mapping[str, Any]:
        if container.get("name") != name:
            return container
        resources = container["resources"]
        return {
            **container,
            "resources": {
                **resources,
                **{part: {**resources.get(part, {}), **_MARK} for part in ("limits", "requests")},
            },
        }

    marked = with_containers(wire, mark)
    return (
        {**marked, "spec": {**marked["spec"], "schedulerName": scheduler}} if scheduler else marked
    )
