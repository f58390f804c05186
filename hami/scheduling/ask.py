"""PreFilter: what a pod asks of the scheduler, as one value that can be compared and remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hami.codec.keys import GPU_POLICY, NODE_POLICY, NUMA_BIND, WEIGHTS
from hami.codec.policies import parse_device_policy, parse_node_policy, parse_weights
from hami.codec.register import parse_bool
from hami.model import ContainerKind, DevicePolicy, NodePolicy, Pod, Request, Selector, Weights
from hami.scheduling.quota import Budget
from hami.vendors.request import request_of
from hami.vendors.spec import Rule, SelectorKeys, Vendor

__all__ = ["Ask", "Claim", "ContainerAsk", "ask_of", "node_policy_of"]


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """What one container asks, a request a vendor, sorted by vendor."""

    kind: ContainerKind
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """What a pod's requests to one vendor have in common."""

    vendor: str
    rules: tuple[Rule, ...]
    selector: Selector
    budget: Budget


@dataclass(frozen=True, slots=True)
class Ask:
    """All that decides whether and how a pod fits a node. Equal asks get equal answers on an unchanged node."""

    containers: tuple[ContainerAsk, ...]
    claims: tuple[Claim, ...]
    policy: DevicePolicy
    weights: Weights

    def claim(self, vendor: str) -> Claim:
        """The claim that goes with requests to *vendor*."""
        return next(claim for claim in self.claims if claim.vendor == vendor)

    @property
    def kinds(self) -> tuple[ContainerKind, ...]:
        """The kind of each container, init containers first."""
        return tuple(container.kind for container in self.containers)


def ask_of(pod: Pod, vendors: Sequence[Vendor], device_policy: str,
           budgets: Mapping[str, Budget]) -> Ask | None:
    """What *pod* asks; ``None`` when it asks for no device.

    *device_policy* holds where the pod's annotation says nothing. *budgets*: what the pod's namespace has left,
    by vendor; no entry means no limit.
    Raises: MalformedInput when the weights annotation cannot be read.
    """
    containers = tuple(
        ContainerAsk(container.kind, tuple(request for vendor in vendors if (request := request_of(vendor, container))))
        for container in pod.containers)
    asked = {request.vendor for container in containers for request in container.requests}
    if not asked:
        return None
    annotations = pod.annotations
    weights = annotations.get(WEIGHTS)
    return Ask(
        containers=containers,
        claims=tuple(_claim(vendor, annotations, budgets) for vendor in vendors if vendor.key in asked),
        policy=parse_device_policy(annotations.get(GPU_POLICY, device_policy),
                                   numa_bind=parse_bool(annotations.get(NUMA_BIND, "")) is True),
        weights=Weights() if weights is None else parse_weights(weights),
    )


def node_policy_of(pod: Pod, default: str) -> NodePolicy:
    """The policy by which *pod*'s node is chosen among those that fit."""
    return parse_node_policy(pod.annotations.get(NODE_POLICY, default))


def _claim(vendor: Vendor, annotations: Mapping[str, str], budgets: Mapping[str, Budget]) -> Claim:
    budget = budgets.get(vendor.key, Budget()) if Rule.QUOTA in vendor.rules else Budget()
    keys: SelectorKeys = vendor.selectors
    return Claim(vendor.key, vendor.rules, keys.select(annotations), budget)
