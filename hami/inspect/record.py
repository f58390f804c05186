"""The knowledge about a cluster at one moment: the record from which all answers are made.

It holds only what HAMi's decision reads, and what names an object to people: no environment variables, no secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from hami.codec.keys import (
    CORDON, GPU_POLICY, LOCK_FREE, NODE_LOCK, NODE_POLICY, NUMA_BIND, WEIGHTS, is_scheduler_owned,
)
from hami.model import Node, Pod, QuotaLimits
from hami.state.view import Policies
from hami.vendors.inventory import PAIR_SCORES
from hami.vendors.request import requests_devices
from hami.vendors.spec import Catalog

_NODE_KEYS = frozenset({NODE_LOCK, LOCK_FREE, CORDON, PAIR_SCORES})
SELECTION_KEYS = frozenset({NODE_POLICY, GPU_POLICY, WEIGHTS, NUMA_BIND})
"""Annotations of all vendors with which the author of a pod selects nodes and devices."""


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object of the API server that cannot be read. *kind*: such as ``pod``. *problem*: the reason."""

    kind: str
    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class SchedulingEvent:
    """An event about a pod. *component*: who says so. *last*: in the API server's format."""

    component: str
    reason: str
    message: str
    count: int
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """Nodes, pods that hold or request devices, and quotas.

    *taken*: when the record was begun. *device_config*: the YAML text of the device configuration, empty for the
    chart's. *policies*: of the scheduler, for pods that name none. *events*: by uid of the pod, in
    snapshots only.
    """

    taken: datetime
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    quotas: tuple[QuotaLimits, ...] = ()
    device_config: str = ""
    policies: Policies = Policies()
    unreadable: tuple[UnreadableObject, ...] = ()
    events: Mapping[str, tuple[SchedulingEvent, ...]] = field(default_factory=dict)


class RecordFilter:
    """Reduces nodes and pods to what *vendors* read of them."""

    def __init__(self, vendors: Catalog) -> None:
        self._vendors = vendors
        self._node_keys = _NODE_KEYS | {
            key for keys in (vendor.annotations for vendor in vendors)
            for key in (keys.register, keys.handshake, keys.lock, *keys.node_keys) if key}
        self._pod_keys = SELECTION_KEYS | {
            key for vendor in vendors
            for key in (vendor.annotations.to_allocate, vendor.annotations.allocated,
                        vendor.resources.no_cores_annotation[0], *vendor.annotations.pod_keys,
                        *vendor.annotations.extra_keys, *vendor.annotations.selectors.names) if key}

    def node(self, node: Node) -> Node:
        """Returns *node* without foreign annotations."""
        return replace(node, annotations=_only(self._node_keys, node.annotations))

    def pod(self, pod: Pod) -> Pod | None:
        """Returns *pod* without foreign annotations; ``None`` if it neither requests nor carries devices."""
        annotations = {key: text for key, text in pod.annotations.items()
                       if key in self._pod_keys or is_scheduler_owned(key)}
        carries = any(is_scheduler_owned(key) for key in annotations)
        if not carries and not requests_devices(self._vendors, pod.containers):
            return None
        return replace(pod, annotations=annotations)


def _only(keys: Iterable[str], annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: annotations[key] for key in keys if key in annotations}
