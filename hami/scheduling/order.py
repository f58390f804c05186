"""The order in which a node's devices are tried: device scores and the device policy."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy
from numpy.typing import NDArray

from hami.model import Device, DevicePolicy, DeviceUsage, OrderKey, Request, Weights

f32 = numpy.float32


def device_scores(usages: Sequence[DeviceUsage], request: Request, weights: Weights) -> list[float]:
    """Returns how full each of *usages* is with *request* included, from 0 to 10 for each unit of weight.

    A request counts as one slot, for any number of devices. Single precision, rounded after each step, as upstream; of
    all devices at once, since numbers of single precision are slow one by one.
    Source: HAMi v2.10, pkg/scheduler/policy/gpu_policy.go, ComputeScore, with the request counted (#2870).
    """
    amounts = []
    for usage in usages:
        device = usage.device
        memory = usage.memory_used_mib + _memory_for_score(request, device)
        amounts.append(
            (
                usage.slots_used + 1,
                usage.cores_used + request.cores,
                memory,
                device.slots,
                device.cores,
                device.memory_mib,
            )
        )
    columns = numpy.array(amounts, dtype=f32).reshape(-1, 6).T
    used, totals = columns[:3], columns[3:]
    slots, cores, memories = _weights(weights) * (used / numpy.maximum(totals, 1))
    scores = f32(10) * (slots + cores + memories)
    scores[~totals.all(axis=0)] = 0
    result: list[float] = scores.tolist()
    return result


def _weights(weights: Weights) -> NDArray[f32]:
    return numpy.array([[weights.slot], [weights.core], [weights.memory]], dtype=f32)


def in_order_of_trying(
    usages: Sequence[DeviceUsage], policy: DevicePolicy, scores: Sequence[float]
) -> list[DeviceUsage]:
    """Returns *usages*, those with the greatest keys of *policy* first; among equals, the one registered last."""
    columns = []
    for key in policy.order:
        columns.append(_column(key, usages, scores))
    keys = list(zip(*columns, range(len(usages)), strict=True))
    keys.sort(reverse=True)
    return [usages[key[-1]] for key in keys]


def _column(
    key: OrderKey, usages: Sequence[DeviceUsage], scores: Sequence[float]
) -> Sequence[float]:
    """Returns the values of *key* for *usages*."""
    attribute, sign = _KEYS[key]
    values = scores
    if attribute is not None:
        values = list(map(attribute, usages))
    if sign > 0:
        return values
    return list(map(operator.neg, values))


_KEYS: dict[OrderKey, tuple[Callable[[DeviceUsage], float] | None, int]] = {
    OrderKey.SCORE: (None, 1),
    OrderKey.SCORE_DESCENDING: (None, -1),
    OrderKey.NUMA: (operator.attrgetter("device.numa"), 1),
    OrderKey.NUMA_DESCENDING: (operator.attrgetter("device.numa"), -1),
    OrderKey.USED_DESCENDING: (operator.attrgetter("slots_used"), -1),
    OrderKey.INDEX: (operator.attrgetter("device.index"), 1),
}
"""An attribute of usages, otherwise the score, and 1, or -1 where the lowest is the greatest."""


def _memory_for_score(request: Request, device: Device) -> int:
    """Returns the memory in MiB. Unlike in the fit, a percentage takes precedence over MiB, as upstream."""
    if request.memory_percent:
        return device.memory_mib * request.memory_percent // 100
    return request.memory_mib
