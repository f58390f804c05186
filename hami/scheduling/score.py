"""How full a node is, which is what the node policy goes by."""

from __future__ import annotations

from collections.abc import Iterable

import numpy

from hami.model import DeviceUsage

__all__ = ["node_score"]

f32 = numpy.float32


def node_score(views: Iterable[DeviceUsage]) -> float:
    """Used over available slots, cores and memory of all devices of all vendors, each 0 to 10, added up.

    The pod that is being placed is not counted. Single precision, as upstream's.
    Source: HAMi v2.10, pkg/scheduler/policy/node_policy.go, ComputeDefaultScore.
    """
    slots = cores = memory = slots_used = cores_used = memory_used = 0
    for view in views:
        device = view.device
        slots += device.slots
        cores += device.cores
        memory += device.memory_mib
        slots_used += view.slots_used
        cores_used += view.cores_used
        memory_used += view.memory_used_mib
    if not slots or not cores or not memory:
        return 0.0
    return float(f32(10) * (f32(slots_used) / f32(slots) + f32(cores_used) / f32(cores)
                            + f32(memory_used) / f32(memory)))
