"""PreFilter: a pod's request as one value that can be compared and remembered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hami.codec.claim_amounts import VENDOR
from hami.codec.keys import CLAIM_AMOUNTS, GPU_POLICY, NUMA_BIND, WEIGHTS
from hami.codec.policies import parse_device_policy, parse_weights
from hami.codec.register import parse_bool
from hami.errors import MalformedInput
from hami.model import (
    Budget,
    ContainerKind,
    DevicePolicy,
    DeviceUsage,
    Pod,
    Request,
    Selector,
    Share,
    Weights,
)
from hami.vendors.claims import too_many_devices, unclaimable
from hami.vendors.request import MAX_CONTAINERS, device_requests
from hami.vendors.spec import Catalog, FitContext, Rule, Vendor
from hami.vendors.vocabulary import DEVICE_POLICY_WORDS, word_or

ORDER_OF_PLACING = (ContainerKind.SIDECAR, ContainerKind.INIT, ContainerKind.APP)


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """The requests of one container, one for each vendor, sorted by vendor."""

    kind: ContainerKind
    requests: tuple[Request, ...] = ()

    def request_to(self, vendor: str) -> Request | None:
        """The request for devices of the vendor with the key *vendor*."""
        for request in self.requests:
            if request.vendor == vendor:
                return request
        return None


@dataclass(frozen=True, slots=True)
class VendorRequest:
    """The part that a pod's requests to one vendor share. *annotations*: the pod annotations that the vendor reads."""

    vendor: Vendor
    selector: Selector
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PodRequest:
    """Everything about a pod that decides whether and how it fits a node. Equal requests get equal results on the same
    usage. What a quota has left is no part of it. *by_claims*: it gets its devices by a claim of its own."""

    containers: tuple[ContainerRequest, ...]
    vendor_requests: tuple[VendorRequest, ...]
    policy: DevicePolicy
    weights: Weights
    by_claims: bool = False

    def vendor_request(self, vendor: str) -> VendorRequest:
        """The vendor request for the vendor with the key *vendor*."""
        return next(request for request in self.vendor_requests if request.vendor.key == vendor)

    def fit_context(
        self,
        vendor: str,
        usages: Sequence[DeviceUsage] = (),
        kind: ContainerKind = ContainerKind.APP,
        placed: tuple[tuple[ContainerKind, tuple[Share, ...]], ...] = (),
        budget: Budget | None = None,
    ) -> FitContext:
        """The context for the rules of *vendor*, for a container of *kind* on a node with *usages*."""
        shared = self.vendor_request(vendor)
        return FitContext(
            vendor=shared.vendor,
            policy=self.policy,
            weights=self.weights,
            selector=shared.selector,
            budget=budget or Budget(),
            annotations=shared.annotations,
            usages=usages,
            kind=kind,
            placed=placed,
            by_claims=self.by_claims,
        )

    @property
    def needs_devices_alone(self) -> bool:
        """Reports whether the pod shares no device, whatever amounts it asks for."""
        for request in self.vendor_requests:
            if Rule.UNUSED in request.vendor.decision.rules:
                return True
        return self.policy.mutex

    @property
    def kinds(self) -> tuple[ContainerKind, ...]:
        """The kind of each container, init containers first."""
        return tuple(container.kind for container in self.containers)

    @property
    def in_order_of_placing(self) -> tuple[Request, ...]:
        """The requests of all containers, without duplicates, in the order in which they are placed."""
        requests: dict[Request, None] = {}
        for kind in ORDER_OF_PLACING:
            for container in self.containers:
                if container.kind is kind:
                    requests.update(dict.fromkeys(container.requests))
        return tuple(requests)

    @property
    def distinct_requests(self) -> tuple[Request, ...]:
        """The requests of all containers, without duplicates."""
        return tuple(dict.fromkeys(_requests(self.containers)))


def make_pod_request(pod: Pod, vendors: Catalog, device_policy: str) -> PodRequest | None:
    """Returns the request of *pod*; ``None`` if it requests no device.

    *device_policy*: the default if the pod's annotation does not set one.
    Raises: MalformedInput if the weights annotation cannot be read, *pod* has too many containers or too long lists
    of devices, or it has a claim that cannot give it what it requests.
    """
    containers = tuple(
        ContainerRequest(container.kind, device_requests(vendors, container))
        for container in pod.containers
    )
    requests = list(_requests(containers))
    if pod.claim:
        _check_claim(pod, requests, vendors)
    if not requests:
        return None
    if len(containers) > MAX_CONTAINERS:
        raise MalformedInput("containers", len(containers), f"expected at most {MAX_CONTAINERS}")
    annotations = pod.annotations
    keys = sorted({request.vendor for request in requests})
    weights = annotations.get(WEIGHTS, "")
    return PodRequest(
        containers=containers,
        vendor_requests=tuple(_vendor_request(vendors[key], annotations) for key in keys),
        policy=parse_device_policy(
            _policy_of(annotations, device_policy),
            numa_bind=is_numa_bound(annotations),
        ),
        weights=parse_weights(weights.lower()) if weights.strip() else Weights(),
        by_claims=bool(pod.claim),
    )


def is_numa_bound(annotations: Mapping[str, str]) -> bool:
    """Reports whether all devices of a container are to be on one NUMA node, by the *annotations* of its pod."""
    return parse_bool(annotations.get(NUMA_BIND, "").strip().lower()) is True


def _policy_of(annotations: Mapping[str, str], default: str) -> str:
    text = annotations.get(GPU_POLICY)
    if text is None:  # as nearly always
        return default
    return word_or(DEVICE_POLICY_WORDS, text, default)


def _requests(containers: Iterable[ContainerRequest]) -> Iterator[Request]:
    for container in containers:
        yield from container.requests


def _check_claim(pod: Pod, requests: Sequence[Request], vendors: Catalog) -> None:
    """Raises: MalformedInput if no claim can give *pod* what its containers request."""
    problem = _claim_problem(pod, requests, vendors)
    if problem:
        text = pod.annotations.get(CLAIM_AMOUNTS, "")
        raise MalformedInput(CLAIM_AMOUNTS, text, problem, message=f"claim {pod.claim}: {problem}")


def _claim_problem(pod: Pod, requests: Sequence[Request], vendors: Catalog) -> str:
    if pod.claim_problem:
        return pod.claim_problem
    if VENDOR not in [request.vendor for request in requests]:
        return f"the pod has a claim, but requests no {VENDOR} GPU"
    for problem in unclaimable(pod, vendors):
        return problem
    return too_many_devices(requests, vendors)


def _vendor_request(vendor: Vendor, annotations: Mapping[str, str]) -> VendorRequest:
    selected = []
    for key in vendor.annotations.pod_keys:
        text = annotations.get(key, "")
        if text.strip():
            selected.append((key, text))
    selector = vendor.annotations.selectors.select(annotations)
    return VendorRequest(vendor, selector, tuple(selected))
