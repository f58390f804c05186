"""The facts on which the resize of a bound pod depends, read from its annotations and from what is booked."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from hami.codec.allocation import parse_shares, render_shares
from hami.codec.keys import GPU_ALLOCATED, NODE_RESIZES, RESIZE_TARGET, RESIZED
from hami.codec.objects import parse_resource_version
from hami.codec.resize import Size
from hami.errors import MalformedInput
from hami.model import Allocation, Budget, Node, Pod
from hami.quantity import INT32_MAX
from hami.scheduling.quota import counted_by_kubernetes
from hami.scheduling.resize import (
    ResizableDevices,
    ResizePlan,
    ResizeRefusal,
    has_same_devices,
    plan_resize,
    without_charges,
)
from hami.scheduling.usage import Charge, peak_charges, total_charge
from hami.state.read_pod import PodRecord
from hami.state.view import View
from hami.vendors.shares import read_allocation


def keeps_devices(record: PodRecord) -> bool:
    """Reports whether a pod is bound and goes on to hold its devices."""
    if record.ends_by or record.preempted:
        return False
    return record.is_running


def is_current(pod: Pod, record: PodRecord) -> bool:
    """Reports whether *record* is that of this version of *pod*, which goes on to hold its devices."""
    if record.version != parse_resource_version(pod.resource_version):
        return False
    return keeps_devices(record)


def plan_resize_in(
    view: View, pod: Pod, sizes: Mapping[str, Size], node: Node | None
) -> ResizePlan | ResizeRefusal:
    """Returns what would follow from the *sizes* that the containers of *pod*, which is on *node*, are to have.

    Raises: MalformedInput if the pod has no allocation that can be resized.
    """
    return plan_resize(sizes, _resizable_devices(view, pod, node))


def _resizable_devices(view: View, pod: Pod, node: Node | None) -> ResizableDevices:
    """Returns what a resize of *pod* depends on. Raises: MalformedInput if nothing that it holds can be resized."""
    request = view.request_of(pod)
    allocated = pod.annotations.get(GPU_ALLOCATED, "")
    vendor = next(iter(view.vendors.allocated_in((GPU_ALLOCATED,))), None)
    booking = view.booking(pod.ref.uid)
    charges: tuple[Charge, ...] = ()
    if vendor is not None and booking is not None:
        charges = dict(booking.charges).get(vendor.key, ())
    if vendor is None or request is None or not charges or not allocated:
        raise MalformedInput(GPU_ALLOCATED, allocated, "the pod holds no GPUs")
    current = read_allocation(pod, vendor, INT32_MAX)
    kinds = [container.kind for container in pod.containers]
    if peak_charges(kinds, current, init_done=pod.init_done) != charges:
        raise MalformedInput(
            GPU_ALLOCATED,
            allocated,
            "the pod holds something else: its annotations have been edited",
        )
    memory, cores, devices = total_charge(charges)
    budget = view.budgets(pod.ref.namespace, pod.scope).get(vendor.key, Budget())
    return ResizableDevices(
        pod=pod,
        request=request,
        vendor=vendor,
        current=current,
        target=_target(pod, current),
        usages=without_charges(view.usages(pod.node_name).get(vendor.key, ()), charges),
        budget=budget.without(-memory, -cores, -devices),
        node_resizes=node is not None and node.annotations.get(NODE_RESIZES) == "true",
        evaded=counted_by_kubernetes(
            view.quotas_of(pod.ref.namespace),
            pod.scope,
            {vendor.resources.memory, vendor.resources.memory_percent, vendor.resources.cores},
        ),
    )


def resized_annotations(plan: ResizePlan) -> dict[str, str | None]:
    """Returns the annotations of a pod that say what is booked for it and what it is to have."""
    booked, target = render_shares(plan.booked), render_shares(plan.target)
    annotations: dict[str, str | None] = {
        RESIZED: booked,
        GPU_ALLOCATED: booked,
        RESIZE_TARGET: None,
    }
    if target != booked:
        annotations[RESIZE_TARGET] = target
    return annotations


def as_resized(pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
    """Returns *pod* as it will be with these *annotations*."""
    resized = dict(pod.annotations)
    for key, text in annotations.items():
        if text is not None:
            resized[key] = text
        else:
            resized.pop(key, None)
    return replace(pod, annotations=resized)


def _target(pod: Pod, current: Allocation) -> Allocation:
    """Returns what *pod* is to have of its *current* devices; what it has unless its annotations say otherwise."""
    with contextlib.suppress(MalformedInput):
        target = parse_shares(RESIZE_TARGET, pod.annotations.get(RESIZE_TARGET, ""))
        if has_same_devices(target, current):
            return target
    return current
