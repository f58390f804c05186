"""The text of a pod in the words of Dynamic Resource Allocation: the same pod with a claim instead of amounts.

Each container that asks for NVIDIA GPUs gets a request of its own in the pod's claim, named after the container. Init
containers end before the others begin, so they take the cards of the largest of these: its request is raised to what
they need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hami.codec.claim_amounts import CLAIM, VENDOR, is_claim_name
from hami.codec.claim_templates import (
    MAX_TEXT,
    ClaimRequest,
    claim_spec,
    is_template_name,
    render_claim_request,
    template_name,
)
from hami.codec.claims import MAX_SELECTED, WHOLE, Inexpressible, needs_card_sizes
from hami.codec.documents import entries
from hami.codec.keys import CLAIM_REQUEST, GPU_POLICY, KUBE_POLICY, NODE_POLICY, WEIGHTS
from hami.codec.policies import parse_list
from hami.model import Container, ContainerKind, DevicePolicy, Pod, Request
from hami.scheduling.pod_request import PodRequest, make_pod_request
from hami.vendors.admission import admit_pod
from hami.vendors.claims import too_many_devices, unclaimable
from hami.vendors.draft import PodDraft
from hami.vendors.spec import Catalog, Vendor

NO_OTHERS = "the scheduler that allocates claims for GPUs allocates no others"
_ORDERS = ("spread", "numa")  # policies that order cards by their use
MAX_ANNOTATIONS = 262_144  # bytes of all annotations of a pod
_SHOWN = 100  # characters of a value in a reason


@dataclass(frozen=True, slots=True)
class Translation:
    """A pod that gets its cards by a claim. *text*: what it asks for, from which its template is made."""

    pod: Mapping[str, Any]
    text: str

    @property
    def template(self) -> str:
        """The name of the template."""
        return template_name(self.text)


@dataclass(frozen=True, slots=True)
class SharedRequests:
    """The requests of a claim, and the name of that which each container uses."""

    requests: Mapping[str, Request]
    users: Mapping[str, str]


def translate(
    wire: Mapping[str, Any],
    vendors: Catalog,
    device_policy: str,
    card_sizes: Collection[int],
    namespace: str = "",
) -> Translation | Inexpressible | None:
    """Returns the new pod *wire* with a claim for the cards that it requests, or why there is none; None if it requests
    none.

    *device_policy*: the default if the pod's annotation does not set one. *card_sizes*: the different amounts of memory
    (MiB) that cards have which claims can get. *namespace*: in which it is created, if it does not say so itself.
    Raises: MalformedInput, PodRefused, like admission.
    """
    draft = PodDraft(wire, namespace)
    admit_pod(vendors, draft)
    pod = draft.changed()
    request = make_pod_request(pod, vendors, device_policy)
    if request is None or all(shared.vendor.key != VENDOR for shared in request.vendor_requests):
        return None
    if (reason := next(_objections(pod, draft, request, vendors), None)) is not None:
        return Inexpressible(reason)
    shared = share_requests(pod, request)
    if isinstance(shared, Inexpressible):
        return shared
    if reason := too_many_devices(shared.requests.values(), vendors):
        return Inexpressible(reason)
    selector = request.vendor_request(VENDOR).selector
    sizes = card_sizes if needs_card_sizes(shared.requests.values(), selector) else ()
    claim = ClaimRequest(
        requests=shared.requests,
        selector=selector,
        numa_bind=request.policy.numa_bind,
        card_sizes=frozenset(sizes),
    )
    if isinstance(spec := claim_spec(claim, request.policy), Inexpressible):
        return spec
    text = render_claim_request(claim)
    if len(text) > MAX_TEXT:
        return Inexpressible(
            f"the lists of types and UUIDs are too long, {len(text)} characters of at most {MAX_TEXT}"
        )
    names = frozenset(vendors[VENDOR].resources.names)
    claiming = with_claim(
        draft.render(),
        names,
        shared.users,
        {CLAIM_REQUEST: text},
        resourceClaimTemplateName=template_name(text),
    )
    reason = too_long_annotations(claiming)
    return Inexpressible(reason) if reason else Translation(claiming, text)


def has_claim(wire: Mapping[str, Any]) -> bool:
    """Reports whether the pod *wire* has a claim that admission gave it."""
    return any(
        entry.get("name") == CLAIM
        and (
            is_template_name(str(entry.get("resourceClaimTemplateName")))
            or is_claim_name(str(entry.get("resourceClaimName")))
        )
        for entry in claims_of(wire)
    )


def too_long_annotations(wire: Mapping[str, Any]) -> str:
    """Returns why the API server does not accept the annotations of the pod *wire*, to which that of its claim has been
    added; empty if it does. Source: k8s.io/apimachinery, pkg/api/validation, TotalAnnotationSizeLimitB."""
    annotations = wire["metadata"]["annotations"]
    size = sum(
        len(f"{key}{text}".encode(errors="surrogatepass")) for key, text in annotations.items()
    )
    return (
        ""
        if size <= MAX_ANNOTATIONS
        else (
            f"metadata.annotations: {size} bytes with that of the claim, and a pod has at most {MAX_ANNOTATIONS}"
        )
    )


def claims_of(wire: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the claims that the pod *wire* names."""
    return entries((wire.get("spec") or {}).get("resourceClaims"))


def _objections(pod: Pod, draft: PodDraft, request: PodRequest, vendors: Catalog) -> Iterator[str]:
    """Yields why *pod* cannot get its devices by a claim. Each names a field and its value."""
    if privileged := [container.name for container in draft.containers if container.is_privileged]:
        yield f"container {privileged[0]} is privileged"
    if pod.node_name:
        yield f"spec.nodeName={pod.node_name}: nobody allocates a claim of a pod that has a node already"
    if any(entry.get("name") == CLAIM for entry in claims_of(draft.wire)):
        yield f"spec.resourceClaims: the pod has a claim named {CLAIM} already"
    yield from unclaimable(pod, vendors)
    yield from _annotation_objections(pod.annotations, request.policy, vendors[VENDOR])


def _annotation_objections(
    annotations: Mapping[str, str], policy: DevicePolicy, vendor: Vendor
) -> Iterator[str]:
    def field(key: str) -> str:
        return f"annotation {key}={annotations[key][:_SHOWN]}"

    if GPU_POLICY in annotations and any(
        token.strip() in _ORDERS for token in annotations[GPU_POLICY].split(",")
    ):
        yield f"{field(GPU_POLICY)}: kube-scheduler takes the first GPUs of a node that fit"
    if policy.topology_aware:
        where = (
            field(GPU_POLICY)
            if GPU_POLICY in annotations
            else "--gpu-scheduler-policy=topology-aware"
        )
        yield f"{where}: kube-scheduler cannot compare the links between GPUs"
    if annotations.get(NODE_POLICY, KUBE_POLICY) != KUBE_POLICY:
        yield f"{field(NODE_POLICY)}: kube-scheduler chooses nodes by its own scores"
    if WEIGHTS in annotations:
        yield f"{field(WEIGHTS)}: kube-scheduler does not score GPUs"
    keys = vendor.annotations.selectors
    for key in keys.names:
        if key != keys.mode and len(parse_list(annotations.get(key)) or ()) > MAX_SELECTED:
            yield f"{field(key)}: a claim selects GPUs by at most {MAX_SELECTED} types or UUIDs"


def share_requests(pod: Pod, request: PodRequest) -> SharedRequests | Inexpressible:
    """Returns the requests of the claim of *pod*, in the order of the containers that run at the same time."""
    asking = [
        (container, part.requests[0])
        for container, part in zip(pod.containers, request.containers, strict=True)
        if part.requests
    ]
    requests = {
        container.name: part
        for container, part in asking
        if container.kind is not ContainerKind.INIT
    }
    inits = [
        (container, part) for container, part in asking if container.kind is ContainerKind.INIT
    ]
    users = {name: name for name in requests}
    if inits:
        largest = _largest(asking, ContainerKind.APP) or _largest(asking, ContainerKind.INIT)
        units = [part for container, part in inits if container.name != largest]
        first = requests.get(largest) or next(
            part for container, part in inits if container.name == largest
        )
        if len({_is_percent(part) for part in (first, *units) if not _is_whole(part)}) > 1:
            return Inexpressible(
                f"container {largest} and init containers, which use its GPUs before it, ask for memory in MiB and in "
                "percent: use one of them"
            )
        requests[largest] = functools.reduce(_larger, units, first)
        users |= {container.name: largest for container, _ in inits}
    return SharedRequests(requests, users)


def _largest(asking: Iterable[tuple[Container, Request]], kind: ContainerKind) -> str:
    """Returns the container of *kind* that requests most; empty if there is none."""
    candidates = [(container.name, part) for container, part in asking if container.kind is kind]
    return max(candidates, key=lambda candidate: _size(candidate[1]), default=("", None))[0]


def _size(request: Request) -> tuple[int, bool, int, int, int]:
    return request.count, *memory_size(request), request.cores


def memory_size(request: Request) -> tuple[bool, int, int]:
    """Returns the memory that *request* needs, in an order of those that have one unit: whole cards need most."""
    return _is_whole(request), request.memory_mib, request.memory_percent or 0


def _is_percent(request: Request) -> bool:
    return request.memory_mib == 0 and not _is_whole(request)


def _is_whole(request: Request) -> bool:
    """Reports whether *request* is for all memory of each card."""
    return request.memory_mib == 0 and (request.memory_percent or WHOLE) >= WHOLE


def _larger(first: Request, second: Request) -> Request:
    """Returns a request that has room for either of the two, whose memory has one unit."""
    larger = replace(
        first, count=max(first.count, second.count), cores=max(first.cores, second.cores)
    )
    if _is_whole(first) or _is_whole(second):
        return replace(larger, memory_mib=0, memory_percent=WHOLE)
    if _is_percent(first):
        return replace(
            larger, memory_percent=max(first.memory_percent or 0, second.memory_percent or 0)
        )
    return replace(larger, memory_mib=max(first.memory_mib, second.memory_mib))


def with_claim(
    wire: Mapping[str, Any],
    names: frozenset[str],
    users: Mapping[str, str],
    annotations: Mapping[str, str],
    **source: str,
) -> dict[str, Any]:
    """Returns the pod *wire* with a claim and *annotations*. *names*: resources to remove. *users*: the request that
    each container uses. *source*: the field that says where the claim comes from."""
    meta, changed = (
        wire.get("metadata") or {},
        with_containers(wire, lambda container: _claiming(container, names, users)),
    )
    return {
        **changed,
        "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), **annotations}},
        "spec": {
            **changed["spec"],
            "resourceClaims": [*claims_of(wire), {"name": CLAIM, **source}],
        },
    }


def with_containers(
    wire: Mapping[str, Any], change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the pod *wire* with the result of *change* in place of each container."""
    spec = wire["spec"]
    return {
        **wire,
        "spec": {
            **spec,
            **{
                key: list(map(change, spec[key]))
                for key in ("initContainers", "containers")
                if spec.get(key)
            },
        },
    }


def without_resources(container: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Returns the resources of *container* without *names* in limits and requests."""
    resources = dict(container.get("resources") or {})
    for part in ("limits", "requests"):
        if kept := {
            name: amount
            for name, amount in (resources.get(part) or {}).items()
            if name not in names
        }:
            resources[part] = kept
        else:
            resources.pop(part, None)
    return resources


def _claiming(
    container: Mapping[str, Any], names: frozenset[str], users: Mapping[str, str]
) -> Mapping[str, Any]:
    before, resources = container.get("resources") or {}, without_resources(container, names)
    if request := users.get(str(container.get("name"))):
        resources["claims"] = [*(before.get("claims") or ()), {"name": CLAIM, "request": request}]
    return {**container, "resources": resources} if resources != before else container
