"""The order in which a node's devices are tried: device scores and the device policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy

from hami.model import Device, DevicePolicy, DeviceUsage, OrderKey, Request, Weights

f32 = numpy.float32


def device_score(usage: DeviceUsage, request: Request, weights: Weights) -> float:
    """Returns how full *usage* is with *request* included, from 0 to 10 for each unit of weight.

    A request counts as one slot, for any number of devices. Single precision, rounded after each step, as upstream.
    Source: HAMi v2.10, pkg/scheduler/policy/gpu_policy.go, ComputeScore, with the request counted (#2870).
    """
    device = usage.device
    if not device.slots or not device.cores or not device.memory_mib:
        return 0.0
    slots, cores = usage.slots_used + 1, usage.cores_used + request.cores
    memory = usage.memory_used_mib + _memory_for_score(request, device)
    return float(
        f32(10)
        * (
            f32(weights.slot) * (f32(slots) / f32(device.slots))
            + f32(weights.core) * (f32(cores) / f32(device.cores))
            + f32(weights.memory) * (f32(memory) / f32(device.memory_mib))
        )
    )


def in_order_of_trying(
    usages: Sequence[DeviceUsage], policy: DevicePolicy, scores: Sequence[float]
) -> list[DeviceUsage]:
    """Returns *usages*, those with the greatest keys of *policy* first; among equals, the one registered last."""
    keys = [_KEYS[key] for key in policy.order]
    order = sorted(
        reversed(range(len(usages))),
        reverse=True,
        key=lambda i: tuple(key(usages[i], scores[i]) for key in keys),
    )
    return [usages[i] for i in order]


_KEYS: dict[OrderKey, Callable[[DeviceUsage, float], float]] = {
    OrderKey.SCORE: lambda usage, score: score,
    OrderKey.SCORE_DESCENDING: lambda usage, score: -score,
    OrderKey.NUMA: lambda usage, score: usage.device.numa,
    OrderKey.NUMA_DESCENDING: lambda usage, score: -usage.device.numa,
    OrderKey.USED_DESCENDING: lambda usage, score: -usage.slots_used,
    OrderKey.INDEX: lambda usage, score: usage.device.index,
}


def _memory_for_score(request: Request, device: Device) -> int:
    """Returns the memory in MiB. Unlike in the fit, a percentage takes precedence over MiB, as upstream."""
    if request.memory_percent:
        return device.memory_mib * request.memory_percent // 100
    return request.memory_mib
