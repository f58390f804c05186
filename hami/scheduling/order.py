"""In which order a node's devices are tried: their scores, and the device policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy

from hami.model import Device, DevicePolicy, OrderKey, Request, DeviceUsage, Weights

__all__ = ["device_score", "sort_views"]

f32 = numpy.float32


def device_score(view: DeviceUsage, request: Request, weights: Weights) -> float:
    """How full *view* is with the container's *request* to its vendor counted in, 0 to 10 for each unit of weight.

    A request counts as one slot, for however many devices. Single precision, rounded after each step, as upstream's.
    Source: HAMi v2.10, pkg/scheduler/policy/gpu_policy.go, ComputeScore, with the request counted (#2870).
    """
    device = view.device
    if not device.slots or not device.cores or not device.memory_mib:
        return 0.0
    slots, cores = view.slots_used + 1, view.cores_used + request.cores
    memory = view.memory_used_mib + _memory_for_score(request, device)
    return float(f32(10) * (f32(weights.slot) * (f32(slots) / f32(device.slots))
                            + f32(weights.core) * (f32(cores) / f32(device.cores))
                            + f32(weights.memory) * (f32(memory) / f32(device.memory_mib))))


def sort_views(views: Sequence[DeviceUsage], policy: DevicePolicy, scores: Sequence[float]) -> list[DeviceUsage]:
    """*views* sorted by *policy*; the last is tried first, and of equals the one that was registered last."""
    keys = [_KEYS[key] for key in policy.order]
    order = sorted(range(len(views)), key=lambda i: tuple(key(views[i], scores[i]) for key in keys))
    return [views[i] for i in order]


_KEYS: dict[OrderKey, Callable[[DeviceUsage, float], float]] = {
    OrderKey.SCORE: lambda view, score: score,
    OrderKey.SCORE_DESCENDING: lambda view, score: -score,
    OrderKey.NUMA: lambda view, score: view.device.numa,
    OrderKey.NUMA_DESCENDING: lambda view, score: -view.device.numa,
    OrderKey.USED_DESCENDING: lambda view, score: -view.slots_used,
    OrderKey.INDEX: lambda view, score: view.device.index,
}


def _memory_for_score(request: Request, device: Device) -> int:
    """A percentage counts before an absolute amount here, unlike in the fit: so it is upstream."""
    if request.memory_percent:
        return device.memory_mib * request.memory_percent // 100
    return request.memory_mib
