"""The devices that nodes publish in ResourceSlices, and what claims hold of them, in a table of their own.

The scheduler's decision never sees this table: kube-scheduler allocates claims. Devices whose claims HAMi's scheduler
allocates are not in it: they are in the table of the store, with the pods that hold them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hami.codec.claims import AllocatedClaim, ClaimedDevice
from hami.codec.slices import (
    SHARE,
    PublishedInstance,
    PublishedSlice,
    card_name,
    device_name,
    divided_cards,
    pool_name,
)
from hami.model import Device, MigProfile, PodRef
from hami.scheduling.usage import Charge
from hami.state.bookings import Booking
from hami.state.table import Table
from hami.state.view import Facts, View

NamedDevices = Mapping[tuple[str, str], Device]
"""Devices by pool and name."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """Devices and claims at one moment. *view*: what claims hold, booked with the uids of the *claims*. *devices*: for
    MIG instances, their cards. *instances*: by pool and name."""

    view: View
    devices: NamedDevices
    claims: Mapping[str, AllocatedClaim]
    instances: Mapping[tuple[str, str], PublishedInstance]


class ClaimCache:
    """Slices, and claims that hold devices of them, by uid. Threads may share it.

    Each of the two comes from one list or watch, so that what comes later is later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all that follows
        self._table = Table()
        self._slices: dict[str, PublishedSlice] = {}
        self._parts: dict[str, dict[str, PublishedSlice]] = {}  # the slices of each node
        self._devices: dict[tuple[str, str], Device] = {}
        self._instances: dict[str, dict[tuple[str, str], PublishedInstance]] = {}  # by pool
        self._claims: dict[str, AllocatedClaim] = {}
        # the claims that hold devices of each pool
        self._on: dict[str, dict[str, AllocatedClaim]] = {}

    def at_once(self, facts: Facts) -> Claimed:
        """Returns the content. *facts*: of the store beside it."""
        with self._lock:
            instances: dict[tuple[str, str], PublishedInstance] = {}
            for of_pool in self._instances.values():
                instances.update(of_pool)
            devices = self._devices.copy()
            for name, instance in instances.items():
                devices[name] = instance.card
            holders = {}
            for uid, claim in self._claims.items():
                if claim.pods:
                    holders[uid] = claim.pods[0]
            view = View(self._table.copy(), replace(facts, pods={}, reserved=holders))
            return Claimed(view, devices, self._claims.copy(), instances)

    def version(self) -> int:
        """Returns a number that increases with every change of devices or their usage."""
        with self._lock:
            self._table.refresh()
            return self._table.changes

    def published(self) -> list[tuple[str, Device]]:
        """Returns the devices that claims may hold, each with its node. Of MIG instances, their cards."""
        with self._lock:
            found = []
            for (pool, _), device in self._devices.items():
                found.append((pool.removeprefix(pool_name("")), device))
            return found

    def pods_on(self, node: str, uuid: str) -> list[PodRef]:
        """Returns the pods whose claims hold a device of *node*, or MIG instances on it, published or not."""
        name = device_name(uuid)
        pods: dict[PodRef, None] = {}
        with self._lock:
            for claim in self._on.get(pool_name(node), {}).values():
                for device in _devices_of(claim):
                    if card_name(device.device) == name:
                        pods.update(dict.fromkeys(claim.pods))
        return list(pods)

    def set_slice(self, uid: str, published: PublishedSlice | None) -> None:
        """Takes a slice as it is now; ``None``: it is gone, or not one of ours."""
        with self._lock:
            earlier = self._slices.pop(uid, None)
            nodes: dict[str, None] = {}
            if earlier is not None:
                del self._parts[earlier.node][uid]
                nodes[earlier.node] = None
            if published is not None:
                self._slices[uid] = published
                self._parts.setdefault(published.node, {})[uid] = published
                nodes[published.node] = None
            for node in nodes:
                self._set_node(node)

    def set_claim(self, uid: str, claim: AllocatedClaim | None) -> None:
        """Takes a claim as it is now; ``None``: it is gone. One without devices of ours is not kept."""
        with self._lock:
            earlier = self._claims.pop(uid, None)
            if earlier is not None:
                for pool in _pools(earlier):
                    del self._on[pool][uid]
                    if not self._on[pool]:
                        del self._on[pool]
                self._table.bookings.pop(uid)
            if claim is None or not claim.requests:
                return
            self._claims[uid] = claim
            for pool in _pools(claim):
                self._on.setdefault(pool, {})[uid] = claim
            self._book(claim)

    def keep_slices(self, uids: set[str]) -> None:
        """Forgets slices that are not in *uids*."""
        for uid in self._slices.keys() - uids:
            self.set_slice(uid, None)

    def keep_claims(self, uids: set[str]) -> None:
        """Forgets claims that are not in *uids*."""
        for uid in self._claims.keys() - uids:
            self.set_claim(uid, None)

    def _set_node(self, node: str) -> None:
        """Takes the slices of *node* as they are now, and books the claims on it again."""
        pool = pool_name(node)
        parts = latest_slices(self._parts[node].values())
        instances: list[PublishedInstance] = []
        for part in parts:
            instances += [each for each in part.instances if not each.card.by_claims]
        devices = []
        for device in (*latest_devices(parts), *divided_cards(instances)):
            if not device.by_claims:
                devices.append(device)
        self._instances[pool] = {(pool, each.name): each for each in instances}
        self._set_devices(node, pool, devices)
        if not self._parts[node]:
            del self._parts[node]
            del self._instances[pool]
        for claim in self._on.get(pool, {}).values():
            self._book(claim)

    def _set_devices(self, node: str, pool: str, devices: Sequence[Device]) -> None:
        by_vendor: dict[str, list[Device]] = {}
        entry = self._table.nodes.get(node)
        if entry is not None:
            for vendor, earlier in entry.devices.items():
                by_vendor[vendor] = []
                for device in earlier:
                    self._devices.pop((pool, device_name(device.uuid)), None)
        for device in devices:
            by_vendor.setdefault(device.vendor, []).append(device)
            self._devices[pool, device_name(device.uuid)] = device
        for vendor, of_vendor in by_vendor.items():
            self._table.set_devices(node, vendor, tuple(of_vendor))

    def _book(self, claim: AllocatedClaim) -> None:
        """Books what *claim* holds of devices that are published; all are on one node."""
        charges: dict[str, dict[str, Charge]] = {}
        node = ""
        for claimed in _devices_of(claim):
            name = claimed.pool, claimed.device
            instance = self._instances.get(claimed.pool, {}).get(name)
            device = self._devices.get(name) if instance is None else instance.card
            if device is None:
                continue
            if node and claimed.pool != pool_name(node):
                continue
            node = claimed.pool.removeprefix(pool_name(""))
            of_vendor = charges.setdefault(device.vendor, {})
            charge = of_vendor.get(device.uuid, Charge(device.uuid, 0, 0, 0))
            if instance is None:
                of_vendor[device.uuid] = _more(charge, claimed, device)
            else:
                of_vendor[device.uuid] = _with_instance(charge, instance.profile)
        if not charges:
            self._table.bookings.pop(claim.uid)
            return
        by_vendor = [(vendor, tuple(each.values())) for vendor, each in charges.items()]
        self._table.bookings.put(Booking(claim.uid, claim.namespace, node, tuple(by_vendor)))


def latest_devices(slices: Iterable[PublishedSlice]) -> tuple[Device, ...]:
    """Returns the devices in *slices* of one node, without those of earlier generations."""
    devices: dict[str, Device] = {}
    for part in latest_slices(slices):
        for device in part.devices:
            devices[device.uuid] = device
    return tuple(sorted(devices.values(), key=lambda device: (device.index, device.uuid)))


def latest_slices(slices: Iterable[PublishedSlice]) -> list[PublishedSlice]:
    """Returns those of *slices* of one node that have the latest generation."""
    parts = tuple(slices)
    latest = max((part.generation for part in parts), default=0)
    return [part for part in parts if part.generation == latest]


def _with_instance(charge: Charge, profile: MigProfile) -> Charge:
    """Returns *charge* with an instance of *profile* added, which has its place only."""
    partitions = tuple(replace(place, name=profile.name) for place in profile.placements)
    return Charge(
        charge.uuid,
        charge.slots + 1,
        charge.memory_mib + profile.memory_mib,
        charge.cores + profile.cores,
        charge.partitions + partitions,
    )


def _pools(claim: AllocatedClaim) -> dict[str, None]:
    pools: dict[str, None] = {}
    for request in claim.requests:
        for device in request.devices:
            pools[device.pool] = None
    return pools


def _devices_of(claim: AllocatedClaim) -> Iterator[ClaimedDevice]:
    """Yields the devices that *claim* holds, without those for administrators."""
    for request in claim.requests:
        if not request.admin:
            yield from request.devices


def _more(charge: Charge, claimed: ClaimedDevice, device: Device) -> Charge:
    """Returns *charge* with what was *claimed* of *device* added."""
    slots = claimed.share_milli // max(SHARE * 1000 // max(device.slots, 1), 1)
    return Charge(
        device.uuid,
        charge.slots + slots,
        charge.memory_mib + claimed.memory_mib,
        charge.cores + claimed.cores,
        charge.partitions,
    )
