"""The annotations and the label that a Binding carries: made here, and read back from pods here.

The API server merges them into the pod in the write that sets its node, so a pod is bound if and only if it carries
its allocation. The time of the bind is added when the Binding is written: the device plugin's deadline counts from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from hami.codec.allocation import render_shares
from hami.codec.keys import (
    ASSIGNED_NODE,
    ASSIGNED_TIME,
    BIND_PHASE,
    BIND_TIME,
    MIG_ALLOCATIONS,
    NODE_LOCK,
    is_allocation,
    is_label_value,
)
from hami.codec.times import parse_unix
from hami.model import Allocation, BindPhase, DeviceUsage, Pod
from hami.scheduling.usage import shares_of
from hami.vendors.spec import AnnotationContext, Catalog, Vendor

EMPTY = {
    MIG_ALLOCATIONS: "[]"
}  # texts of allocations that allocate nothing; the empty text elsewhere


def render_annotations(
    pod: Pod,
    node: str,
    vendors: Sequence[Vendor],
    placement: Allocation,
    lock_free: Collection[str],
    usages: Mapping[str, Sequence[DeviceUsage]],
    now: datetime,
) -> dict[str, str]:
    """Returns the annotations that assign *pod* to *node* with the shares of *placement*, which are of *vendors*.

    *lock_free*: vendors whose device plugin on the node needs no lock. Such a plugin never reports completion, so no
    to-allocate annotation is written. *usages*: the node's devices by vendor. Allocations that *pod* carries from an
    earlier assignment are emptied.
    """
    is_done = all(vendor.key in lock_free for vendor in vendors)
    phase = BindPhase.SUCCESS if is_done else BindPhase.ALLOCATING
    annotations = {ASSIGNED_NODE: node, ASSIGNED_TIME: _unix(now), BIND_PHASE: phase.value}
    for vendor in vendors:
        devices = {usage.device.uuid: usage.device for usage in usages.get(vendor.key, ())}
        annotations |= render_vendor_annotations(
            vendor,
            AnnotationContext(
                pod=pod,
                node=node,
                shares=shares_of(vendor.key, placement),
                devices=devices,
                now=now,
            ),
        )
        if vendor.key in lock_free:
            annotations.pop(vendor.annotations.to_allocate, None)
    earlier = (key for key in pod.annotations if key not in annotations and is_allocation(key))
    return annotations | {key: EMPTY.get(key, "") for key in earlier}


def render_vendor_annotations(vendor: Vendor, context: AnnotationContext) -> dict[str, str]:
    """Returns the pod annotations for *vendor*: the allocation, and whatever else its node agent reads."""
    shares, annotate = context.shares, vendor.annotations.annotate
    if vendor.annotations.writes_model:
        shares = tuple(
            tuple(replace(share, type=context.devices[share.uuid].model) for share in container)
            for container in shares
        )
    text = render_shares(shares)
    annotations = {
        key: text for key in (vendor.annotations.to_allocate, vendor.annotations.allocated) if key
    }
    return annotations | dict(annotate(vendor, context) if annotate is not None else {})


def render_labels(node: str) -> dict[str, str]:
    """Returns the labels of a pod that is assigned to *node*; none if the node's name cannot stand in a label."""
    return {ASSIGNED_NODE: node} if is_label_value(node) else {}


def failed_allocation(vendors: Catalog) -> dict[str, str | None]:
    """Returns the annotations of a pod whose allocation has failed: no device plugin can hand out its devices."""
    cleared = {key: "" for vendor in vendors if (key := vendor.annotations.to_allocate)}
    return {**cleared, BIND_PHASE: BindPhase.FAILED.value}


def add_bind_time(annotations: Mapping[str, str], now: datetime) -> dict[str, str]:
    """Returns *annotations* with the time of the bind."""
    return {**annotations, BIND_TIME: _unix(now)}


def carries_allocation(pod: Pod, annotations: Mapping[str, str], vendors: Catalog) -> bool:
    """Reports whether *pod* carries the assignment and allocation in *annotations*.

    Annotations that a device plugin changes after the Binding are not compared.
    """
    keys = {ASSIGNED_NODE, ASSIGNED_TIME, *(vendor.annotations.allocated for vendor in vendors)}
    return all(pod.annotations.get(key) == text for key, text in annotations.items() if key in keys)


def assigned_node(pod: Pod) -> str:
    """Returns the node that *pod* is bound to or, before that, the node that its annotations name."""
    return pod.node_name or pod.annotations.get(ASSIGNED_NODE, "")


def expected_label(node: str) -> str | None:
    """Returns the value of the label of a pod on *node*; ``None`` if it must have no such label."""
    return render_labels(node).get(ASSIGNED_NODE)


def assigned_at(pod: Pod) -> int:
    """Returns when *pod* was assigned in Unix seconds; 0 if its annotations do not say."""
    return parse_unix(pod.annotations.get(ASSIGNED_TIME, ""))


def bound_at(pod: Pod) -> int:
    """Returns when *pod*'s Binding was written in Unix seconds; 0 if its annotations do not say."""
    return parse_unix(pod.annotations.get(BIND_TIME, ""))


def is_allocating(pod: Pod, vendors: Catalog) -> bool:
    """Reports whether a device plugin still has to allocate *pod*'s devices.

    Only device plugins that know HAMi's node lock report when they are done. Those that need no lock report nothing;
    their vendors have no text to allocate.
    """
    annotations = pod.annotations
    return annotations.get(BIND_PHASE) == BindPhase.ALLOCATING and any(
        keys.lock == NODE_LOCK
        and keys.allocated in annotations
        and (not keys.to_allocate or bool(annotations.get(keys.to_allocate)))
        for keys in (vendor.annotations for vendor in vendors)
    )


def awaits_allocation(pod: Pod, vendors: Catalog) -> bool:
    """Reports whether *pod* is bound without a lock, and its kubelet has not had its devices allocated yet."""
    annotations = pod.annotations
    return (
        bool(pod.node_name)
        and not pod.admitted
        and not pod.is_terminated
        and annotations.get(BIND_PHASE) == BindPhase.SUCCESS
        and any(
            keys.lock == NODE_LOCK
            and bool(keys.to_allocate)
            and keys.to_allocate not in annotations
            for keys in (vendor.annotations for vendor in vendors.allocated_in(annotations))
        )
    )


def _unix(now: datetime) -> str:
    return str(int(now.timestamp()))
