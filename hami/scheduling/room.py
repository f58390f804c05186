"""The room that nodes have for the usual pods, and what a placement takes of it.

The room of a node for a pod is how many more of its kind the node would take if only such pods came, by its devices and
its CPU. A placement is good if it takes little room from the pods that find little elsewhere: each kind is weighed by
how often it comes, over a power of the room that the cluster has for it.

Where no pods end, what is kept is never used, and what counts is how much is allocated: then the power is low, between
the most room for all together, with 0, and proportional fairness, with 1. Where as many pods end as come, devices
become free again, and what counts is how long pods wait for that. The time until the next of a kind finds a place is
one over its room, so with a power of 2 all wait least together, and with more of it those count more who wait longest:
rare room, such as whole nodes, is kept for those who need it. Between both, the power follows the turnover. The powers
are those that did best in `python -m benchmarks trace`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.scheduling import columns
from hami.scheduling.columns import DeviceColumns
from hami.scheduling.device_needs import UNLIMITED, DeviceNeeds, inverse, offers, uses
from hami.scheduling.usual_pods import UsualPod

Array = NDArray[Any]

f32 = numpy.float32
POWER = 0.5, 5.0
"""The power of the room in the weights, where no pods end, and where as many end as come."""
SLACK = 1.0, 5.0
"""Pods that are added to the room of the cluster, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UsualPods:
    """The usual pods, an item for each in every array. *share*: of all pods; the sum is 1.

    *count*: of devices. *several*: 1 for those with several devices, else 0. *milli_cpu*: 1 at least. *without_cpu*:
    UNLIMITED for those that request no CPU, else 0. *need*: which of *needs* they have.
    """

    count: Array
    several: Array
    milli_cpu: Array
    without_cpu: Array
    share: Array
    need: Array
    needs: DeviceNeeds

    @classmethod
    def of(cls, pods: Mapping[UsualPod, float], devices: DeviceColumns) -> UsualPods:
        """Returns *pods* with how often they come. *devices*: columns with the numbers of vendors and models."""
        needs, need = DeviceNeeds.of(pods, devices)
        count = numpy.array([kind.count for kind in pods], dtype=f32)
        milli_cpu = numpy.array([kind.milli_cpu for kind in pods], dtype=f32)
        return cls(
            count=count,
            several=(count > 1).astype(f32),
            milli_cpu=numpy.maximum(milli_cpu, 1),
            without_cpu=numpy.where(milli_cpu > 0, f32(0), UNLIMITED),
            share=_shares(pods.values()),
            need=need,
            needs=needs,
        )

    def with_shares(self, often: Iterable[float]) -> UsualPods:
        """Returns the same pods that come so *often*."""
        return replace(self, share=_shares(often))

    def __len__(self) -> int:
        return len(self.count)

    def weights(self, total: Array, turnover: float) -> Array:
        """Returns the value of a place for each kind if the cluster has room for *total* of each; their sum is 1.

        *turnover*: how many pods end for one that comes, at most 1.
        """
        worth = self.share / (total + _between(SLACK, turnover)) ** _between(POWER, turnover)
        return numpy.asarray(worth / max(worth.sum(), 1e-300), dtype=f32)


def _between(ends: tuple[float, float], turnover: float) -> float:
    """Returns what lies between the *ends*: the first without turnover, the second with all of it."""
    never, always = ends
    return never + (always - never) * turnover


def _shares(often: Iterable[float]) -> Array:
    share = numpy.array(list(often), dtype=float)
    return numpy.asarray(share / max(share.sum(), 1e-300))


def device_room(facts: Array, pods: UsualPods) -> Array:
    """Returns how many pods with one device that have each of the needs (columns) each device (rows) would take.
    *facts*: columns as in DeviceColumns. A partitioned device takes none: columns do not tell what room it has."""
    needs = pods.needs
    cores = facts[columns.CORES]
    free_cores = cores - facts[columns.CORES_USED]
    # a device that has no cores left serves nobody, not even those who request none
    free_cores[(cores > 0) & (free_cores == 0)] = -1
    room = _pods_in(free_cores, needs.per_core)
    free_memory = facts[columns.MEMORY] - facts[columns.MEMORY_USED]
    numpy.minimum(room, _pods_in(free_memory, _per_mib(facts, needs)), out=room)
    numpy.floor(room, out=room)
    slots = facts[columns.SLOTS] - facts[columns.SLOTS_USED]
    is_well = (facts[columns.HEALTHY] != 0) & (facts[columns.CORDONED] == 0)
    slots *= is_well & (facts[columns.IN_PARTS] == 0)
    numpy.minimum(room, slots.astype(f32)[:, None], out=room)
    numpy.minimum(room, needs.most, out=room)
    numpy.maximum(room, 0, out=room)
    room *= needs.serves[offers(facts, uses(facts))]
    room *= needs.accepts[facts[columns.MODEL]]
    return room


def accepted(facts: Array, pods: UsualPods) -> Array:
    """Returns whether pods of each kind (columns) may use each device (rows), whatever is free of it."""
    needs = pods.needs
    accepts = needs.serves[offers(facts, 0)] * needs.accepts[facts[columns.MODEL]]
    return numpy.asarray(accepts > 0)[:, pods.need]


def device_share(facts: Array, pods: UsualPods) -> Array:
    """Returns the part of each device (rows) that a pod of each kind (columns) takes: the larger part of its cores and
    its memory, or a slot if it requests neither."""
    needs = pods.needs
    by_cores = _part_of(facts[columns.CORES], needs.per_core)
    by_memory = _part_of(facts[columns.MEMORY], _per_mib(facts, needs))
    share = numpy.maximum(by_cores, by_memory)
    slot = _part_of(facts[columns.SLOTS], numpy.ones(1))
    share = numpy.where(share > 0, share, slot)
    return numpy.where(needs.most == 1, 1.0, numpy.minimum(share, 1.0))[:, pods.need]


def _part_of(amounts: Array, per_unit: Array) -> Array:
    """Returns the part of *amounts* that pods take of which *per_unit* share one unit; 0 for those that take none."""
    units = 1 / per_unit
    return numpy.where(per_unit == UNLIMITED, 0.0, units / numpy.maximum(amounts, 1)[:, None])


def _per_mib(facts: Array, needs: DeviceNeeds) -> Array:
    """Returns how many pods of each kind one MiB of each device is enough for; one row for devices of one size."""
    sizes = facts[columns.MEMORY]
    if (sizes == sizes[:1]).all():
        sizes = sizes[:1]
    percent = numpy.floor(sizes.astype(f32)[:, None] * needs.memory_percent / 100)
    return numpy.where(needs.memory_percent > 0, inverse(percent), needs.per_mib)


def _pods_in(free: Array, per_unit: Array) -> Array:
    """Returns for how many pods, and a fraction of one, what is *free* of each device is enough."""
    return numpy.asarray(_rounded(free)[:, None] * per_unit)


def _rounded(free: Array) -> Array:
    """Returns amounts, which are integers: a fraction more is not enough for another pod, and makes up for what the
    inverse of its request has been rounded."""
    return free.astype(f32) + f32(0.25)


def node_room(devices: Array, milli_cpu: Array, pods: UsualPods) -> Array:
    """Returns how many pods of each kind (columns) nodes (rows) would take. *devices*: the sums of `device_room` over
    their devices. *milli_cpu*: their free CPU."""
    by_devices = devices.take(pods.need, axis=1)
    by_devices /= pods.count
    partial = _partial(by_devices, pods)
    numpy.floor(by_devices, out=by_devices)
    numpy.maximum(by_devices, partial, out=by_devices)
    by_cpu = numpy.maximum(milli_cpu, f32(0))[:, None] / pods.milli_cpu
    by_cpu += pods.without_cpu
    numpy.copyto(by_cpu, _partial(by_cpu, pods), where=by_cpu < 1)
    return numpy.asarray(numpy.minimum(by_devices, by_cpu, out=by_devices))


def _partial(room: Array, pods: UsualPods) -> Array:
    """Returns what partial room counts: its fourth power, for pods with several devices. A node that is nearly free for
    one of these is worth more than one with crumbs."""
    part = numpy.minimum(room, pods.several)
    part *= part
    part *= part
    return part


def sums_by_node(devices: Array, owner: Array) -> tuple[Array, Array]:
    """Returns the nodes of *devices* (rows), which are side by side for each node, and their sums."""
    firsts = columns.firsts(owner)
    if len(firsts) == len(owner):
        return owner, devices
    return owner[firsts], numpy.add.reduceat(devices, firsts, axis=0)
