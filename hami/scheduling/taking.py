"""The devices that a pod takes of nodes, by columns: what the decision does, but for NUMA nodes and links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.model import DevicePolicy, OrderKey, Request, Weights
from hami.scheduling import columns
from hami.scheduling.columns import DeviceColumns
from hami.scheduling.pod_request import PodRequest

Array = NDArray[Any]

f32 = numpy.float32
UNFIT = f32(-numpy.inf)
FEW = 32  # values among which the highest are found one by one


def device_values(devices: DeviceColumns, step: Request, request: PodRequest) -> Array:
    """Returns the value of each of *devices* for *step* of *request* by its device policy; UNFIT if it does not fit."""
    context = request.fit_context(step.vendor)
    passes = devices.of(context)
    for _, fails in columns.failing(devices, step, context):
        passes &= ~fails
    values = numpy.zeros(len(devices.owner), dtype=f32)
    sign = _sign(request.policy)
    if sign:
        values = sign * _fullness(devices.facts, step, request.weights)
    return numpy.where(passes, values, UNFIT)


def charged(facts: Array, step: Request) -> Array:
    """Returns the *facts* of devices after each has been taken for *step*."""
    facts = facts.copy()
    memory = columns.memory_on(facts, step)
    facts[columns.SLOTS_USED] += 1
    facts[columns.CORES_USED] += step.device_cores
    facts[columns.MEMORY_USED] += memory
    return facts


def highest(values: Array, owner: Array, count: int) -> Array:
    """Returns the positions of the *count* highest *values* of each owner. Those that are UNFIT do not count."""
    if len(values) <= FEW:
        return _highest_of_few(values.tolist(), owner.tolist(), count)
    chosen = numpy.flatnonzero(values != UNFIT)
    values, owner = values[chosen], owner[chosen]
    if count == 1 and len(chosen):
        return numpy.asarray(chosen[_best(values, owner)])
    # of equal devices, the one that was registered last comes first
    order = numpy.lexsort((-chosen, -values, owner))
    owner = owner[order]
    place = numpy.arange(len(order)) - numpy.searchsorted(owner, owner)
    return numpy.asarray(chosen[order[place < count]])


def _highest_of_few(values: Sequence[float], owner: Sequence[int], count: int) -> Array:
    """Does the same without arrays, which cost more than a few values do."""
    fitting = [place for place, value in enumerate(values) if value != UNFIT]
    fitting.sort(key=lambda place: (owner[place], -values[place], -place))
    taken: list[int] = []
    places, current = 0, -1
    for place in fitting:
        if owner[place] != current:
            places, current = 0, owner[place]
        if places < count:
            taken.append(place)
            places += 1
    return numpy.array(taken, dtype=numpy.intp)


def _best(values: Array, owner: Array) -> Array:
    """Returns the position of the greatest of *values* of each owner, and of equal ones the last."""
    firsts = columns.firsts(owner)
    greatest = numpy.zeros(owner[-1] + 1, dtype=values.dtype)
    greatest[owner[firsts]] = numpy.maximum.reduceat(values, firsts)
    equal = numpy.flatnonzero(values == greatest[owner])
    last = numpy.full(len(greatest), -1)
    last[owner[equal]] = equal  # of several positions of an owner, the last stays
    return numpy.asarray(last[last >= 0])


def _sign(policy: DevicePolicy) -> int:
    """Returns 1 if *policy* prefers full devices, -1 if it prefers empty ones, and 0 if it does not look at that."""
    for key in policy.order:
        if key is OrderKey.SCORE:
            return 1
        if key is OrderKey.SCORE_DESCENDING:
            return -1
    return 0


def _fullness(facts: Array, request: Request, weights: Weights) -> Array:
    """Returns the score of each device, as `hami.scheduling.order.device_scores`."""
    memory: Array | int = request.memory_mib
    if request.memory_percent:
        memory = facts[columns.MEMORY] * request.memory_percent // 100
    parts = (
        (weights.slot, facts[columns.SLOTS_USED] + 1, facts[columns.SLOTS]),
        (weights.core, facts[columns.CORES_USED] + request.cores, facts[columns.CORES]),
        (weights.memory, facts[columns.MEMORY_USED] + memory, facts[columns.MEMORY]),
    )
    score = numpy.zeros(facts.shape[1], dtype=f32)
    for weight, used, amount in parts:
        score += f32(weight) * (used.astype(f32) / numpy.maximum(amount, 1).astype(f32))
    return score
