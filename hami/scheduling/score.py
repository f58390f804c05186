"""The score of a node: how full it is. The node policy compares it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy

from hami.model import DeviceUsage

f32 = numpy.float32


def node_score(usages: Iterable[DeviceUsage]) -> float:
    """Returns the sum of used/available slots, cores and memory over all devices of all vendors, each from 0 to 10.

    The pod to be placed does not count. Single precision, as upstream.
    Source: HAMi v2.10, pkg/scheduler/policy/node_policy.go, ComputeDefaultScore.
    """
    slots = cores = memory = slots_used = cores_used = memory_used = 0
    for usage in usages:
        device = usage.device
        slots += device.slots
        cores += device.cores
        memory += device.memory_mib
        slots_used += usage.slots_used
        cores_used += usage.cores_used
        memory_used += usage.memory_used_mib
    if not slots or not cores or not memory:
        return 0.0
    return float(f32(10) * (f32(slots_used) / f32(slots) + f32(cores_used) / f32(cores)
                            + f32(memory_used) / f32(memory)))
