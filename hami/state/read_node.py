"""Nodes as the store keeps them, read from what their watch shows. Reading takes no lock: filters wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import msgspec

from hami.codec.keys import LOCK_FREE, NODE_LOCK
from hami.codec.objects import parse_resource_version
from hami.codec.states import parse_lock_free
from hami.model import Device, Node
from hami.state.inventories import Sources, device_count, devices_on, excess_of, inventory_sources
from hami.state.liveness import (
    PluginLiveness,
    PluginObservation,
    is_schedulable,
    needs_handshake_request,
    observe,
)
from hami.state.sighting import Sighting, Sightings
from hami.vendors.inventory import gives_by_claims
from hami.vendors.spec import Vendor

Texts = Mapping[str, str]


class Inventory(msgspec.Struct, frozen=True):
    """A node's devices of one vendor."""

    sources: Sources
    """The texts that the devices are read from."""
    devices: tuple[Device, ...]
    problem: str | None
    """Why the devices cannot be read."""
    liveness: PluginLiveness
    report_due: bool
    """The device plugin should be asked to report."""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a node that the scheduler remembers."""

    name: str
    version: int
    seen_at: float
    """When it was last in a list or event, on the monotonic clock."""
    locks: Texts
    """The texts of the node locks, by annotation."""
    lock_sightings: Mapping[str, Sighting]
    """Since when they read so."""
    lock_free: frozenset[str]
    """The vendors whose device plugins need no lock."""
    facts: tuple[Texts, ...]
    """All that inventories are read from, so that an unrelated change costs little."""
    unschedulable: bool
    """It is cordoned."""
    inventories: Mapping[str, Inventory]
    excess: str | None
    """Why none of its devices counts; ``None`` while all vendors together have no more than MAX_DEVICES."""

    def problem_of(self, inventory: Inventory) -> str | None:
        """Returns why the devices of one of its inventories cannot be used; ``None`` if they can."""
        if inventory.problem is None and inventory.devices:
            return self.excess
        return inventory.problem


def offers(record: NodeRecord, vendor: Vendor, clock: float) -> bool:
    """Reports whether pods may be placed on *vendor*'s devices of the node."""
    if record.excess is not None:
        return False
    liveness = record.inventories[vendor.key].liveness
    if not vendor.annotations.handshake:
        return liveness.observation.allocatable != 0
    return is_schedulable(liveness, clock)


class NodeReader:
    """Reads nodes. *clock* is monotonic, *now* is the time of day in UTC."""

    def __init__(
        self,
        vendors: Iterable[Vendor],
        sightings: Sightings,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._vendors = tuple(vendors)
        self._sightings = sightings
        self._clock = clock
        self._now = now
        lock_keys = {NODE_LOCK, *(vendor.annotations.lock for vendor in self._vendors)}
        self._lock_keys = tuple(sorted(lock_keys - {""}))

    def read(self, node: Node, earlier: NodeRecord | None) -> NodeRecord:
        """Returns *node* as the store keeps it. *earlier*: its record so far."""
        annotations = dict(node.annotations)
        locks = {}
        for key in self._lock_keys:
            if key in annotations:
                locks[key] = annotations.pop(key)
        facts = (annotations, node.labels, node.capacity, node.allocatable)
        lock_free = parse_lock_free(annotations.get(LOCK_FREE))
        if earlier is not None and earlier.facts == facts:
            # the same object, by which the store sees that it is so
            facts = earlier.facts
            inventories, excess = earlier.inventories, earlier.excess
        else:
            inventories = self._inventories(node, earlier, lock_free)
            excess = excess_of({key: len(each.devices) for key, each in inventories.items()})
        return NodeRecord(
            name=node.name,
            version=parse_resource_version(node.resource_version),
            seen_at=self._clock(),
            locks=locks,
            lock_sightings=self._lock_sightings(locks, earlier),
            lock_free=lock_free,
            facts=facts,
            unschedulable=node.unschedulable,
            inventories=inventories,
            excess=excess,
        )

    def _lock_sightings(self, locks: Texts, earlier: NodeRecord | None) -> dict[str, Sighting]:
        sightings = {}
        for key, text in locks.items():
            if earlier is not None and earlier.locks.get(key) == text:
                sightings[key] = earlier.lock_sightings[key]
            else:
                sightings[key] = self._sightings.make()
        return sightings

    def _inventories(
        self, node: Node, earlier: NodeRecord | None, lock_free: frozenset[str]
    ) -> Mapping[str, Inventory]:
        inventories: dict[str, Inventory] = {}
        if earlier is not None:
            inventories.update(earlier.inventories)
        for vendor in self._vendors:
            sources = inventory_sources(vendor, node)
            if sources is None:
                inventories.pop(vendor.key, None)
                continue
            last = inventories.get(vendor.key)
            inventories[vendor.key] = self._inventory(vendor, node, sources, last, lock_free)
        return inventories

    def _inventory(
        self,
        vendor: Vendor,
        node: Node,
        sources: Sources,
        earlier: Inventory | None,
        lock_free: frozenset[str],
    ) -> Inventory:
        """Reads the devices of *vendor*, unless *earlier* has been read from the same texts."""
        if earlier is not None and earlier.sources == sources:
            devices, problem = earlier.devices, earlier.problem
        else:
            devices, problem = devices_on(vendor, node)
        allocatable: int | None = None
        if not gives_by_claims(vendor, node):
            allocatable = device_count(node.allocatable.get(vendor.resources.count))
        elif vendor.key in lock_free:
            # the kubelet offers none, but while it can call the driver, this is marked
            allocatable = len(devices)
        handshake = node.annotations.get(vendor.annotations.handshake)
        observation = PluginObservation(handshake, sources[0] or "", allocatable)
        last = None if earlier is None else earlier.liveness
        liveness = observe(last, observation, self._clock(), self._now())
        report_due = False
        if vendor.annotations.handshake:
            report_due = needs_handshake_request(liveness)
        return Inventory(sources, devices, problem, liveness, report_due)
