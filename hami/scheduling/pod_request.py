"""PreFilter: what a pod asks of the scheduler, as one value that can be compared and remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hami.codec.keys import GPU_POLICY, NODE_POLICY, NUMA_BIND, WEIGHTS
from hami.codec.policies import parse_device_policy, parse_node_policy, parse_weights
from hami.codec.register import parse_bool
from hami.model import (
    Budget, ContainerKind, DevicePolicy, NodePolicy, Pod, Request, Selector, Share, DeviceUsage, Weights,
)
from hami.vendors.request import requests_of
from hami.vendors.spec import FitContext, Catalog, Rule, Vendor

__all__ = ["PodRequest", "VendorRequest", "ContainerRequest", "make_pod_request", "node_policy_of"]


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container asks, a request a vendor, sorted by vendor."""

    kind: ContainerKind
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True)
class VendorRequest:
    """What a pod's requests to one vendor have in common. *said*: the annotations of the pod that the vendor reads."""

    vendor: Vendor
    selector: Selector
    budget: Budget
    said: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PodRequest:
    """All that decides whether and how a pod fits a node. Equal asks get equal answers on an unchanged node."""

    containers: tuple[ContainerRequest, ...]
    vendor_requests: tuple[VendorRequest, ...]
    policy: DevicePolicy
    weights: Weights

    def vendor_request(self, vendor: str) -> VendorRequest:
        """The vendor_request that goes with requests to *vendor*."""
        return next(vendor_request for vendor_request in self.vendor_requests if vendor_request.vendor.key == vendor)

    def case(self, vendor: str, views: Sequence[DeviceUsage] = (), kind: ContainerKind = ContainerKind.APP,
             placed: tuple[tuple[ContainerKind, tuple[Share, ...]], ...] = ()) -> FitContext:
        """What the rules for *vendor*'s devices may look at, for a container of *kind* on a node with *views*."""
        vendor_request = self.vendor_request(vendor)
        return FitContext(vendor=vendor_request.vendor, policy=self.policy, weights=self.weights, selector=vendor_request.selector,
                    budget=vendor_request.budget, said=vendor_request.said, views=views, kind=kind, placed=placed)

    @property
    def kinds(self) -> tuple[ContainerKind, ...]:
        """The kind of each container, init containers first."""
        return tuple(container.kind for container in self.containers)


def make_pod_request(pod: Pod, vendors: Catalog, device_policy: str,
           budgets: Mapping[str, Budget]) -> PodRequest | None:
    """What *pod* asks; ``None`` when it asks for no device.

    *device_policy* holds where the pod's annotation says nothing. *budgets*: what the pod's namespace has left,
    by vendor; no entry means no limit.
    Raises: MalformedInput when the weights annotation cannot be read.
    """
    containers = tuple(
        ContainerRequest(container.kind, requests_of(vendors, container)) for container in pod.containers)
    asked = {request.vendor for container in containers for request in container.requests}
    if not asked:
        return None
    annotations = pod.annotations
    weights = annotations.get(WEIGHTS)
    return PodRequest(
        containers=containers,
        vendor_requests=tuple(_vendor_request(vendors.named(key), annotations, budgets) for key in sorted(asked)),
        policy=parse_device_policy(annotations.get(GPU_POLICY, device_policy),
                                   numa_bind=parse_bool(annotations.get(NUMA_BIND, "")) is True),
        weights=Weights() if weights is None else parse_weights(weights),
    )


def node_policy_of(pod: Pod, default: str) -> NodePolicy:
    """The policy by which *pod*'s node is chosen among those that fit."""
    return parse_node_policy(pod.annotations.get(NODE_POLICY, default))


def _vendor_request(vendor: Vendor, annotations: Mapping[str, str], budgets: Mapping[str, Budget]) -> VendorRequest:
    budget = budgets.get(vendor.key, Budget()) if Rule.QUOTA in vendor.rules else Budget()
    said = tuple((key, annotations[key]) for key in vendor.pod_keys if key in annotations)
    return VendorRequest(vendor, vendor.selectors.select(annotations), budget, said)
