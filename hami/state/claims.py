"""The devices that nodes publish in ResourceSlices, and what claims hold of them, in a table of their own.

The scheduler's decision never sees this table: kube-scheduler allocates claims. Devices whose claims HAMi's scheduler
allocates are not in it: they are in the table of the store, with the pods that hold them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hami.codec.claims import AllocatedClaim, ClaimedDevice
from hami.codec.slices import (
    SHARE,
    PublishedInstance,
    PublishedSlice,
    device_name,
    divided_cards,
    pool_name,
)
from hami.model import Device, MigProfile
from hami.scheduling.usage import Charge
from hami.state.table import Booking, Table
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
        self._on: dict[
            str, dict[str, AllocatedClaim]
        ] = {}  # the claims that hold devices of each pool

    def at_once(self, facts: Facts) -> Claimed:
        """Returns the content. *facts*: of the store beside it."""
        with self._lock:
            holders = {uid: claim.pods[0] for uid, claim in self._claims.items() if claim.pods}
            instances = {
                name: instance for own in self._instances.values() for name, instance in own.items()
            }
            devices = self._devices | {name: instance.card for name, instance in instances.items()}
            return Claimed(
                View(self._table.copy(), replace(facts, pods={}, reserved=holders)),
                devices,
                self._claims.copy(),
                instances,
            )

    def version(self) -> int:
        """Returns a number that increases with every change of devices or their usage."""
        with self._lock:
            self._table.refresh()
            return self._table.changes

    def set_slice(self, uid: str, published: PublishedSlice | None) -> None:
        """Takes a slice as it is now; ``None``: it is gone, or not one of ours."""
        with self._lock:
            if (earlier := self._slices.pop(uid, None)) is not None:
                del self._parts[earlier.node][uid]
            if published is not None:
                self._slices[uid] = published
                self._parts.setdefault(published.node, {})[uid] = published
            for node in dict.fromkeys(
                part.node for part in (earlier, published) if part is not None
            ):
                parts = latest_slices(self._parts[node].values())
                instances = [
                    instance
                    for part in parts
                    for instance in part.instances
                    if not instance.card.by_claims
                ]
                cards = (*latest_devices(parts), *divided_cards(instances))
                self._instances[pool_name(node)] = {
                    (pool_name(node), each.name): each for each in instances
                }
                self._offer(node, tuple(device for device in cards if not device.by_claims))

    def set_claim(self, uid: str, claim: AllocatedClaim | None) -> None:
        """Takes a claim as it is now; ``None``: it is gone. One without devices of ours is not kept."""
        with self._lock:
            if (earlier := self._claims.pop(uid, None)) is not None:
                for pool in _pools(earlier):
                    del self._on[pool][uid]
                    if not self._on[pool]:
                        del self._on[pool]
                self._table.unbook(uid)
            if claim is not None and claim.requests:
                self._claims[uid] = claim
                for pool in _pools(claim):
                    self._on.setdefault(pool, {})[uid] = claim
                self._book(claim)

    def keep_slices(self, uids: set[str]) -> None:
        """Forgets slices that are not in *uids*."""
        for uid in [uid for uid in list(self._slices) if uid not in uids]:
            self.set_slice(uid, None)

    def keep_claims(self, uids: set[str]) -> None:
        """Forgets claims that are not in *uids*."""
        for uid in [uid for uid in list(self._claims) if uid not in uids]:
            self.set_claim(uid, None)

    def _offer(self, node: str, devices: tuple[Device, ...]) -> None:
        pool, table = pool_name(node), self._table
        earlier = table.nodes[node].devices if node in table.nodes else {}
        for vendor in dict.fromkeys((*earlier, *(device.vendor for device in devices))):
            table.set_devices(
                node, vendor, tuple(device for device in devices if device.vendor == vendor)
            )
        for device in (device for own in earlier.values() for device in own):
            self._devices.pop((pool, device_name(device.uuid)), None)
        self._devices |= {(pool, device_name(device.uuid)): device for device in devices}
        if not self._parts[node]:
            del self._parts[node]
            del self._instances[pool]
        for claim in self._on.get(pool, {}).values():
            self._book(claim)

    def _book(self, claim: AllocatedClaim) -> None:
        """Books what *claim* holds of devices that are published; all are on one node."""
        charges: dict[str, dict[str, Charge]] = {}
        node = ""
        for claimed in (
            device for request in claim.requests if not request.admin for device in request.devices
        ):
            instance = self._instances.get(claimed.pool, {}).get((claimed.pool, claimed.device))
            device = (
                instance.card
                if instance is not None
                else self._devices.get((claimed.pool, claimed.device))
            )
            if device is not None and (not node or claimed.pool == pool_name(node)):
                node = claimed.pool.removeprefix(pool_name(""))
                own = charges.setdefault(device.vendor, {})
                charge = own.get(device.uuid, Charge(device.uuid, 0, 0, 0))
                own[device.uuid] = (
                    _more(charge, claimed, device)
                    if instance is None
                    else _with_instance(charge, instance.profile)
                )
        if charges:
            self._table.book(
                Booking(
                    claim.uid,
                    claim.namespace,
                    node,
                    tuple((vendor, tuple(own.values())) for vendor, own in charges.items()),
                )
            )
        else:
            self._table.unbook(claim.uid)


def latest_devices(slices: Iterable[PublishedSlice]) -> tuple[Device, ...]:
    """Returns the devices in *slices* of one node, without those of earlier generations."""
    devices = {device.uuid: device for part in latest_slices(slices) for device in part.devices}
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
    return dict.fromkeys(device.pool for request in claim.requests for device in request.devices)


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
