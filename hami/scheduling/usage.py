"""Usage of devices, and the peak of a pod's shares over its life."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import msgspec

from hami.model import Allocation, ContainerKind, DeviceUsage, Partition, Share

_Amounts = tuple[int, int, int]  # slots, memory in MiB, cores in percent
_NONE: _Amounts = (0, 0, 0)


class Charge(msgspec.Struct, frozen=True, gc=False):
    """The amounts of one device that one pod takes. *partitions* and *co_tenants*: as in DeviceUsage."""

    uuid: str
    slots: int
    memory_mib: int
    cores: int
    partitions: tuple[Partition, ...] = ()
    co_tenants: tuple[str, ...] = ()


def charge_shares(
    usages: Sequence[DeviceUsage], shares: Iterable[Share]
) -> tuple[DeviceUsage, ...]:
    """Returns *usages* with *shares* added, one slot for each share."""
    by_uuid = _by_uuid(shares)
    charged = list(usages)
    for index, usage in enumerate(usages):
        if usage.device.uuid in by_uuid:
            charged[index] = _charged(usage, by_uuid[usage.device.uuid])
    return tuple(charged)


def charge_partitions(
    usages: Sequence[DeviceUsage], shares: Iterable[Share]
) -> Sequence[DeviceUsage]:
    """Returns *usages* with only the partitions of *shares* added."""
    by_uuid = _by_uuid(share for share in shares if share.partitions)
    charged = list(usages)
    for index, usage in enumerate(usages):
        if usage.device.uuid in by_uuid:
            partitions = usage.partitions + _partitions(by_uuid[usage.device.uuid])
            charged[index] = replace(usage, partitions=partitions)
    return charged


def charged_by(usage: DeviceUsage, charge: Charge) -> DeviceUsage:
    """Returns *usage* with *charge* added."""
    return DeviceUsage(
        usage.device,
        usage.slots_used + charge.slots,
        usage.memory_used_mib + charge.memory_mib,
        usage.cores_used + charge.cores,
        usage.partitions + charge.partitions,
        usage.co_tenants + charge.co_tenants,
    )


def peak_charges(
    kinds: Sequence[ContainerKind],
    containers: Sequence[Sequence[Share]],
    *,
    init_done: bool = False,
) -> tuple[Charge, ...]:
    """Returns the largest amounts that the pod takes at any one time, for each device, sorted by uuid.

    Sidecars run all the time; init containers run one after the other before the app containers:
    ``sidecars + max(largest init container, sum of app containers)``. Init containers count until *init_done*.
    If *containers* and *kinds* differ in number (HAMi up to v2.10 omits empty containers), the kinds are unknown and
    all containers count as app containers. Partitions of init and app containers count together, since the node agent
    allocates all of them before any container runs.
    """
    if len(kinds) != len(containers):
        kinds = [ContainerKind.APP] * len(containers)
    counted = []
    together: list[Share] = []
    for kind, shares in zip(kinds, containers):
        if init_done and kind is ContainerKind.INIT:
            continue
        counted.append((kind, shares))
        together += shares
    if len(together) == 1 and not _has_details(together[0]):  # as most pods
        share = together[0]
        return (Charge(share.uuid, 1, share.memory_mib, share.cores),)
    if ContainerKind.INIT in kinds:
        return _charges(_peaks(counted), together)
    return _charges(_by_device(together), together)  # all run at the same time


def _charges(peaks: Mapping[str, _Amounts], shares: Sequence[Share]) -> tuple[Charge, ...]:
    charges = tuple([Charge(uuid, *peaks[uuid]) for uuid in sorted(peaks)])
    if not any(map(_has_details, shares)):
        return charges
    by_uuid = _by_uuid(shares)
    return tuple([_with_details(charge, by_uuid[charge.uuid]) for charge in charges])


def _has_details(share: Share) -> bool:
    return bool(share.partitions or share.co_tenants)


def shares_of(vendor: str, placement: Allocation) -> Allocation:
    """Returns *placement* without the shares of other vendors."""
    return tuple(tuple([share for share in shares if share.type == vendor]) for shares in placement)


class Amounts(NamedTuple):
    """Memory in MiB, cores and slots: of a device, or of several as a quota counts them."""

    memory_mib: int = 0
    cores: int = 0
    slots: int = 0

    def plus(self, other: Amounts, sign: int = 1) -> Amounts:
        """Returns the sum with *other*, or the difference (*sign* -1)."""
        return Amounts(
            self.memory_mib + sign * other.memory_mib,
            self.cores + sign * other.cores,
            self.slots + sign * other.slots,
        )


def total_charge(charges: Iterable[Charge]) -> Amounts:
    """Returns memory in MiB, cores in percent and slots over all devices: the amounts that a quota counts."""
    memory = cores = slots = 0
    for charge in charges:
        memory += charge.memory_mib
        cores += charge.cores
        slots += charge.slots
    return Amounts(memory, cores, slots)


def usage_by_device(
    usages: Mapping[str, Sequence[DeviceUsage]],
) -> dict[tuple[str, str], DeviceUsage]:
    """Returns the *usages* of a node by vendor and uuid."""
    by_device: dict[tuple[str, str], DeviceUsage] = {}
    for vendor, of_vendor in usages.items():
        for usage in of_vendor:
            by_device[vendor, usage.device.uuid] = usage
    return by_device


def _by_uuid(shares: Iterable[Share]) -> dict[str, list[Share]]:
    by_uuid: dict[str, list[Share]] = {}
    for share in shares:
        by_uuid.setdefault(share.uuid, []).append(share)
    return by_uuid


def _charged(usage: DeviceUsage, shares: Sequence[Share]) -> DeviceUsage:
    co_tenants = usage.co_tenants
    for share in shares:
        co_tenants += share.co_tenants
    return DeviceUsage(
        usage.device,
        usage.slots_used + len(shares),
        usage.memory_used_mib + sum(share.memory_mib for share in shares),
        usage.cores_used + sum(share.cores for share in shares),
        usage.partitions + _partitions(shares),
        co_tenants,
    )


def _partitions(shares: Iterable[Share]) -> tuple[Partition, ...]:
    return tuple(chain.from_iterable(share.partitions for share in shares))


def _with_details(charge: Charge, shares: Sequence[Share]) -> Charge:
    """Returns *charge* with the partitions and co-tenants of *shares*, without duplicates. Each partition is a slot."""
    partitions = tuple(sorted(set(_partitions(shares))))
    co_tenants = set(chain.from_iterable(share.co_tenants for share in shares))
    return msgspec.structs.replace(
        charge,
        slots=max(charge.slots, len(partitions)),
        partitions=partitions,
        co_tenants=tuple(sorted(co_tenants)),
    )


def _peaks(containers: Iterable[tuple[ContainerKind, Sequence[Share]]]) -> dict[str, _Amounts]:
    inits: dict[str, _Amounts] = {}
    apps: dict[str, _Amounts] = {}
    sidecars: dict[str, _Amounts] = {}
    for kind, shares in containers:
        for uuid, amounts in _by_device(shares).items():
            if kind is ContainerKind.INIT:
                inits[uuid] = _larger(inits.get(uuid, _NONE), amounts)
            else:
                running = sidecars if kind is ContainerKind.SIDECAR else apps
                running[uuid] = _plus(running.get(uuid, _NONE), amounts)
    peaks = {}
    for uuid in inits.keys() | apps.keys() | sidecars.keys():
        in_turn = _larger(inits.get(uuid, _NONE), apps.get(uuid, _NONE))
        peaks[uuid] = _plus(sidecars.get(uuid, _NONE), in_turn)
    return peaks


def _by_device(shares: Iterable[Share]) -> dict[str, _Amounts]:
    amounts: dict[str, _Amounts] = {}
    for share in shares:
        slots, memory, cores = amounts.get(share.uuid, _NONE)
        amounts[share.uuid] = slots + 1, memory + share.memory_mib, cores + share.cores
    return amounts


def _plus(a: _Amounts, b: _Amounts) -> _Amounts:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _larger(a: _Amounts, b: _Amounts) -> _Amounts:
    return max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2])
