"""The facts on which the resize of a bound pod depends, read from its annotations and from what is booked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hami.codec.allocation import parse_shares, render_shares
from hami.codec.keys import GPU_ALLOCATED, NODE_RESIZES, RESIZE_TARGET, RESIZED
from hami.codec.objects import parse_resource_version
from hami.errors import MalformedInput
from hami.model import Allocation, Budget, Node, Pod, QuotaLimits
from hami.quantity import INT32_MAX
from hami.scheduling.placement import NodeUsage
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.quota import counted_by_kubernetes
from hami.scheduling.resize import ResizableDevices, ResizePlan, has_same_devices, without_charges
from hami.scheduling.usage import Charge, peak_charges, total_charge
from hami.state.read_pod import PodRecord
from hami.vendors.shares import read_allocation
from hami.vendors.spec import Catalog


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


def resizable_devices(
    pod: Pod,
    request: PodRequest | None,
    vendors: Catalog,
    node: Node | None,
    usages: NodeUsage,
    booked: Mapping[str, Sequence[Charge]],
    budgets: Mapping[str, Budget],
    quotas: Iterable[QuotaLimits],
) -> ResizableDevices:
    """Returns what a resize of *pod* depends on. *booked*: what it holds of the *usages* of its *node*, by vendor.
    *budgets*: what the *quotas* of its namespace leave beside it.

    Raises: MalformedInput if it has no allocation that can be resized.
    """
    allocated = pod.annotations.get(GPU_ALLOCATED, "")
    vendor = next(iter(vendors.allocated_in((GPU_ALLOCATED,))), None)
    charges: tuple[Charge, ...] = ()
    if vendor is not None:
        charges = tuple(booked.get(vendor.key, ()))
    if vendor is None or request is None or not charges or not allocated:
        raise MalformedInput(GPU_ALLOCATED, allocated, "the pod holds no GPUs")
    held = read_allocation(pod, vendor, INT32_MAX)
    kinds = [container.kind for container in pod.containers]
    if peak_charges(kinds, held, init_done=pod.init_done) != charges:
        raise MalformedInput(
            GPU_ALLOCATED,
            allocated,
            "the pod holds something else: its annotations have been edited",
        )
    memory, cores, devices = total_charge(charges)
    left = budgets.get(vendor.key, Budget())
    return ResizableDevices(
        pod=pod,
        request=request,
        vendor=vendor,
        current=held,
        target=_target(pod, held) or held,
        usages=without_charges(usages.get(vendor.key, ()), charges),
        budget=left.without(-memory, -cores, -devices),
        node_resizes=node is not None and node.annotations.get(NODE_RESIZES) == "true",
        evaded=counted_by_kubernetes(
            quotas,
            pod.scope,
            {vendor.resources.memory, vendor.resources.memory_percent, vendor.resources.cores},
        ),
    )


def resized_annotations(plan: ResizePlan) -> dict[str, str | None]:
    """Returns the annotations of a pod that say what is booked for it and what it is to have."""
    booked, target = render_shares(plan.booked), render_shares(plan.target)
    return {
        RESIZED: booked,
        GPU_ALLOCATED: booked,
        RESIZE_TARGET: target if target != booked else None,
    }


def as_resized(pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
    """Returns *pod* as it will be with these *annotations*."""
    resized = dict(pod.annotations)
    for key, text in annotations.items():
        if text is not None:
            resized[key] = text
        else:
            resized.pop(key, None)
    return replace(pod, annotations=resized)


def _target(pod: Pod, held: Allocation) -> Allocation | None:
    """Returns what *pod* is to have of the devices that it *held*, if its annotations say so."""
    try:
        target = parse_shares(RESIZE_TARGET, pod.annotations.get(RESIZE_TARGET, ""))
    except MalformedInput:
        return None
    return target if has_same_devices(target, held) else None
