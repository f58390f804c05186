"""Devices that are free, but of no use to the usual pods, and why.

Free of a device is what is left of both its cores and its memory. Of the devices of one model on a node, a kind of
usual pods can use what as many of them take as the node has room for, if only such pods came. The rest is stranded for
that kind. Of a model, each kind that accepts it counts by how often it comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.scheduling import columns
from hami.scheduling.columns import DeviceColumns
from hami.scheduling.room import UsualPods, accepted, device_room, device_share, node_room

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeDevices:
    """The free parts of devices, added up, and what of them is stranded for each cause."""

    devices: int = 0
    """The number of devices, without those that serve nobody."""
    free: float = 0.0
    lacks_cpu: float = 0.0
    """Their node lacks the CPU that the usual pods request beside devices."""
    crumbs: float = 0.0
    """They lie in parts into which no other usual pod fits."""
    not_accepted: float = 0.0
    """No usual pod accepts the model."""

    def __add__(self, other: FreeDevices) -> FreeDevices:
        return FreeDevices(
            devices=self.devices + other.devices,
            free=self.free + other.free,
            lacks_cpu=self.lacks_cpu + other.lacks_cpu,
            crumbs=self.crumbs + other.crumbs,
            not_accepted=self.not_accepted + other.not_accepted,
        )

    @property
    def by_cause(self) -> dict[str, float]:
        """The stranded devices for each cause."""
        return {"cpu": self.lacks_cpu, "crumbs": self.crumbs, "model": self.not_accepted}

    @property
    def stranded(self) -> float:
        """The stranded devices."""
        return sum(self.by_cause.values())


def free_devices(
    devices: DeviceColumns, milli_cpu: Array, pods: UsualPods, vendors: Collection[str]
) -> Iterator[tuple[int, str, FreeDevices]]:
    """Yields what is free of each model on each node, with the position of the node; nothing without usual *pods*.

    *milli_cpu*: the free CPU of each node. *vendors*: those of which usual pods are known. Partitioned devices are left
    out, since columns do not tell what is free of them, and so are devices that are unhealthy or cordoned.
    """
    if not len(pods):
        return
    places = _serving(devices, vendors)
    facts, owner = devices.facts[:, places], devices.owner[places]
    models = {number: text for text, number in devices.models.items()}
    groups, firsts, counts = numpy.unique(
        numpy.array([owner, facts[columns.MODEL]]), axis=1, return_index=True, return_counts=True
    )
    if not len(firsts):
        return
    nodes, numbers = groups
    free = numpy.add.reduceat(_free(facts), firsts)
    lacks_cpu, crumbs, not_accepted = _stranded(facts, firsts, free, milli_cpu[nodes], pods)
    for place, node in enumerate(nodes.tolist()):
        of_model = FreeDevices(
            devices=int(counts[place]),
            free=float(free[place]),
            lacks_cpu=float(lacks_cpu[place]),
            crumbs=float(crumbs[place]),
            not_accepted=float(not_accepted[place]),
        )
        yield node, models[int(numbers[place])], of_model


def _serving(devices: DeviceColumns, vendors: Collection[str]) -> Array:
    """Returns the positions of the devices of *vendors* that serve pods, ordered by node and model."""
    facts = devices.facts
    numbers: list[int] = []
    for vendor in vendors:
        if vendor in devices.vendors:
            numbers.append(devices.vendors[vendor])
    serves = numpy.isin(facts[columns.VENDOR], numbers)
    serves &= facts[columns.HEALTHY] != 0
    serves &= facts[columns.CORDONED] == 0
    serves &= facts[columns.IN_PARTS] == 0
    places = numpy.flatnonzero(serves)
    order = numpy.lexsort((facts[columns.MODEL, places], devices.owner[places]))
    return numpy.asarray(places[order])


def _free(facts: Array) -> Array:
    """Returns the free part of each device."""
    free = numpy.ones(facts.shape[1])
    for amount, used in (
        (columns.CORES, columns.CORES_USED),
        (columns.MEMORY, columns.MEMORY_USED),
    ):
        part = facts[used] / numpy.maximum(facts[amount], 1)
        numpy.minimum(free, 1 - part, out=free)
    return numpy.asarray(numpy.maximum(free, 0.0))


def _stranded(
    facts: Array, firsts: Array, free: Array, milli_cpu: Array, pods: UsualPods
) -> tuple[Array, Array, Array]:
    """Returns what is stranded of each group for want of CPU, in crumbs, and because no usual pod accepts it.

    *firsts*: where the groups begin, each devices of one model on one node. *free*: what is free of each. *milli_cpu*:
    the free CPU of its node.
    """
    accepts = numpy.logical_or.reduceat(accepted(facts, pods), firsts, axis=0)
    share = accepts * pods.share
    total = share.sum(axis=1)
    share /= numpy.where(total > 0, total, 1)[:, None]
    size = pods.count * device_share(facts[:, firsts], pods)
    room = numpy.add.reduceat(device_room(facts, pods), firsts, axis=0)
    without_limit = numpy.full(len(firsts), numpy.inf)
    by_devices = _usable(node_room(room, without_limit, pods), size, free)
    by_both = _usable(node_room(room, milli_cpu, pods), size, free)
    lacks_cpu = ((by_devices - by_both) * share).sum(axis=1)
    crumbs = ((free[:, None] - by_devices) * share).sum(axis=1)
    return lacks_cpu, crumbs, numpy.where(total > 0, 0.0, free)


def _usable(room: Array, size: Array, free: Array) -> Array:
    """Returns what pods of each kind (columns) can use of what is *free* of each group. Part of a pod uses nothing."""
    return numpy.asarray(numpy.minimum(free[:, None], numpy.floor(room) * size))
