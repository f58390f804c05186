"""What of each device is taken, and what a pod's shares amount to over its life."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hami.model import ContainerKind, Share, Partition, DeviceUsage

__all__ = ["Charge", "charge_views", "collapse", "hold_partitions", "total"]


@dataclass(frozen=True, slots=True)
class Charge:
    """What one pod takes of one device: slots, memory in MiB, cores in percent; *partitions* and *co_tenants* as in DeviceUsage."""

    uuid: str
    slots: int
    memory_mib: int
    cores: int
    partitions: tuple[Partition, ...] = ()
    co_tenants: tuple[str, ...] = ()


def charge_views(views: Sequence[DeviceUsage], shares: Iterable[Share]) -> tuple[DeviceUsage, ...]:
    """*views* after *shares* were taken from them, a slot for each share."""
    taken = list(shares)
    return tuple(
        _charged(view, mine) if (mine := [share for share in taken if share.uuid == view.device.uuid]) else view
        for view in views)


def hold_partitions(views: Sequence[DeviceUsage], shares: Iterable[Share]) -> Sequence[DeviceUsage]:
    """*views* with the partitions of *shares* taken, and nothing else of them."""
    held = [share for share in shares if share.partitions]
    return tuple(replace(view, partitions=(*view.partitions, *(partition for share in held if share.uuid == view.device.uuid
                                                     for partition in share.partitions))) for view in views) if held else views


def collapse(kinds: Sequence[ContainerKind], containers: Sequence[Iterable[Share]], *,
             init_done: bool = False) -> tuple[Charge, ...]:
    """What the pod takes at most at any time, by device, sorted by uuid.

    Sidecars run all the time; init containers run one by one before the app containers:
    ``sidecars + max(largest init container, sum of app containers)``, the init containers only until *init_done*.
    When there are not as many *containers* as *kinds* (HAMi up to v2.10 left empty ones out) nobody can tell
    which is which, and all are counted as running together. Spots are held by init containers and app containers
    side by side, since a node agent hands them out before any container runs.
    """
    if len(kinds) != len(containers):
        kinds = [ContainerKind.APP] * len(containers)
    charges = _amounts(kinds, containers, init_done)
    if any(share.partitions or share.co_tenants for shares in containers for share in shares):
        running = [shares for kind, shares in zip(kinds, containers) if kind is not ContainerKind.INIT or not init_done]
        return tuple(_marked(charge, [share for shares in running for share in shares if share.uuid == charge.uuid])
                     for charge in charges)
    return charges


def total(charges: Iterable[Charge]) -> tuple[int, int]:
    """Memory in MiB and cores in percent over all devices: what a quota counts."""
    memory = cores = 0
    for charge in charges:
        memory += charge.memory_mib
        cores += charge.cores
    return memory, cores


_NONE = (0, 0, 0)


def _charged(view: DeviceUsage, shares: Sequence[Share]) -> DeviceUsage:
    charged = view.charged(len(shares), sum(s.memory_mib for s in shares), sum(s.cores for s in shares))
    if not any(share.partitions or share.co_tenants for share in shares):
        return charged
    return replace(charged, partitions=(*view.partitions, *(partition for share in shares for partition in share.partitions)),
                   co_tenants=(*view.co_tenants, *(tag for share in shares for tag in share.co_tenants)))


def _marked(charge: Charge, shares: Sequence[Share]) -> Charge:
    """*charge* with the partitions and co_tenants of *shares*: each partition is a slot, what several containers say of the pod counts
    once."""
    partitions = tuple(sorted({partition for share in shares for partition in share.partitions}))
    co_tenants = tuple(sorted({tag for share in shares for tag in share.co_tenants}))
    return replace(charge, slots=max(charge.slots, len(partitions)), partitions=partitions, co_tenants=co_tenants)


def _amounts(kinds: Sequence[ContainerKind], containers: Sequence[Iterable[Share]],
             init_done: bool) -> tuple[Charge, ...]:
    peaks: dict[str, tuple[int, int, int]] = {}
    sums: dict[str, tuple[int, int, int]] = {}
    always: dict[str, tuple[int, int, int]] = {}
    for kind, shares in zip(kinds, containers):
        for uuid, amounts in _by_device(shares).items():
            if kind is ContainerKind.INIT:
                if not init_done:
                    peaks[uuid] = _larger(peaks.get(uuid, _NONE), amounts)
            else:
                running = always if kind is ContainerKind.SIDECAR else sums
                running[uuid] = _plus(running.get(uuid, _NONE), amounts)
    return tuple(Charge(uuid, *_plus(always.get(uuid, _NONE),
                                     _larger(peaks.get(uuid, _NONE), sums.get(uuid, _NONE))))
                 for uuid in sorted(peaks.keys() | sums.keys() | always.keys()))


def _by_device(shares: Iterable[Share]) -> dict[str, tuple[int, int, int]]:
    amounts: dict[str, tuple[int, int, int]] = {}
    for share in shares:
        amounts[share.uuid] = _plus(amounts.get(share.uuid, _NONE), (1, share.memory_mib, share.cores))
    return amounts


def _plus(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int]:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _larger(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int]:
    return max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2])
