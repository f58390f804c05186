"""The score of a node: how full it is. The node policy compares it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy

from hami.model import DeviceUsage

f32 = numpy.float32


def node_score(usages: Iterable[DeviceUsage]) -> float:
    """Returns the score of a node with the devices *usages*, of all vendors. The pod to be placed does not count."""
    sums = [0] * 6
    for usage in usages:
        device = usage.device
        for place, amount in enumerate(
            (
                device.slots,
                usage.slots_used,
                device.memory_mib,
                usage.memory_used_mib,
                device.cores,
                usage.cores_used,
            )
        ):
            sums[place] += amount
    return score_of_sums(*sums)


def score_of_sums(
    slots: int, slots_used: int, memory_mib: int, memory_used_mib: int, cores: int, cores_used: int
) -> float:
    """Returns the sum of used/available slots, cores and memory, each from 0 to 10. Single precision, as upstream.

    Source: HAMi v2.10, pkg/scheduler/policy/node_policy.go, ComputeDefaultScore.
    """
    if not slots or not cores or not memory_mib:
        return 0.0
    return float(
        f32(10)
        * (
            f32(slots_used) / f32(slots)
            + f32(cores_used) / f32(cores)
            + f32(memory_used_mib) / f32(memory_mib)
        )
    )
