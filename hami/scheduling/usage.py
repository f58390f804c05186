"""What of each device is taken, and what a pod's shares amount to over its life."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hami.model import ContainerKind, Device, Share

__all__ = ["Charge", "View", "charge_views", "collapse", "total"]


@dataclass(frozen=True, slots=True)
class Charge:
    """What one pod takes of one device: slots, memory in MiB, cores in percent."""

    uuid: str
    slots: int
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True)
class View:
    """A device and what of it is taken."""

    device: Device
    slots_used: int = 0
    memory_used_mib: int = 0
    cores_used: int = 0

    def charged(self, slots: int, memory_mib: int, cores: int) -> View:
        """The same device with so much more taken."""
        return View(self.device, self.slots_used + slots, self.memory_used_mib + memory_mib, self.cores_used + cores)

    @property
    def is_over(self) -> bool:
        """More is taken than there is."""
        device = self.device
        return (self.slots_used > device.slots or self.memory_used_mib > device.memory_mib
                or self.cores_used > device.cores)


def charge_views(views: Sequence[View], shares: Iterable[Share]) -> tuple[View, ...]:
    """*views* after *shares* were taken from them, a slot for each share."""
    taken = list(shares)
    return tuple(
        view.charged(len(mine), sum(s.memory_mib for s in mine), sum(s.cores for s in mine))
        if (mine := [share for share in taken if share.uuid == view.device.uuid]) else view
        for view in views)


def collapse(kinds: Sequence[ContainerKind], containers: Sequence[Iterable[Share]], *,
             init_done: bool = False) -> tuple[Charge, ...]:
    """What the pod takes at most at any time, by device, sorted by uuid.

    Sidecars run all the time; init containers run one by one before the app containers:
    ``sidecars + max(largest init container, sum of app containers)``, the init containers only until *init_done*.
    When there are not as many *containers* as *kinds* (HAMi up to v2.10 left empty ones out) nobody can tell
    which is which, and all are counted as running together.
    """
    if len(kinds) != len(containers):
        kinds = [ContainerKind.APP] * len(containers)
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


def total(charges: Iterable[Charge]) -> tuple[int, int]:
    """Memory in MiB and cores in percent over all devices: what a quota counts."""
    memory = cores = 0
    for charge in charges:
        memory += charge.memory_mib
        cores += charge.cores
    return memory, cores


_NONE = (0, 0, 0)


def _by_device(shares: Iterable[Share]) -> dict[str, tuple[int, int, int]]:
    amounts: dict[str, tuple[int, int, int]] = {}
    for share in shares:
        amounts[share.uuid] = _plus(amounts.get(share.uuid, _NONE), (1, share.memory_mib, share.cores))
    return amounts


def _plus(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int]:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _larger(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int]:
    return max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2])
