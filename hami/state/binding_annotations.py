"""The annotations and the label that a Binding carries; `read_pod` reads them back.

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
    is_allocation,
    is_label_value,
)
from hami.model import Allocation, BindPhase, DeviceUsage, Pod, Share
from hami.scheduling.usage import shares_of
from hami.vendors.spec import AnnotationContext, Catalog, Vendor

# texts of allocations that allocate nothing; the empty text elsewhere
EMPTY = {MIG_ALLOCATIONS: "[]"}


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
    for key in pod.annotations:
        if key not in annotations and is_allocation(key):
            annotations[key] = EMPTY.get(key, "")
    return annotations


def render_vendor_annotations(vendor: Vendor, context: AnnotationContext) -> dict[str, str]:
    """Returns the pod annotations for *vendor*: the allocation, and whatever else its node agent reads."""
    keys, shares = vendor.annotations, context.shares
    if keys.writes_model:
        shares = tuple([_with_models(container, context) for container in shares])
    text = render_shares(shares)
    annotations: dict[str, str] = {}
    for key in (keys.to_allocate, keys.allocated):
        if key:
            annotations[key] = text
    if keys.annotate is not None:
        annotations.update(keys.annotate(vendor, context))
    return annotations


def _with_models(shares: Sequence[Share], context: AnnotationContext) -> tuple[Share, ...]:
    """Returns *shares* with the models of their devices in place of their types."""
    return tuple([replace(share, type=context.devices[share.uuid].model) for share in shares])


def render_labels(node: str) -> dict[str, str]:
    """Returns the labels of a pod that is assigned to *node*; none if the node's name cannot stand in a label."""
    return {ASSIGNED_NODE: node} if is_label_value(node) else {}


def failed_allocation(vendors: Catalog) -> dict[str, str | None]:
    """Returns the annotations of a pod whose allocation has failed: no device plugin can hand out its devices."""
    annotations: dict[str, str | None] = {BIND_PHASE: BindPhase.FAILED.value}
    for vendor in vendors:
        if vendor.annotations.to_allocate:
            annotations[vendor.annotations.to_allocate] = ""
    return annotations


def add_bind_time(annotations: Mapping[str, str], now: datetime) -> dict[str, str]:
    """Returns *annotations* with the time of the bind."""
    return {**annotations, BIND_TIME: _unix(now)}


def carries_allocation(pod: Pod, annotations: Mapping[str, str], vendors: Catalog) -> bool:
    """Reports whether *pod* carries the assignment and allocation in *annotations*.

    Annotations that a device plugin changes after the Binding are not compared.
    """
    keys = {ASSIGNED_NODE, ASSIGNED_TIME}
    for vendor in vendors:
        keys.add(vendor.annotations.allocated)
    for key, text in annotations.items():
        if key in keys and pod.annotations.get(key) != text:
            return False
    return True


def expected_label(node: str) -> str | None:
    """Returns the value of the label of a pod on *node*; ``None`` if it must have no such label."""
    return render_labels(node).get(ASSIGNED_NODE)


def _unix(now: datetime) -> str:
    return str(int(now.timestamp()))
