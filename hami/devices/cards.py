"""Cards and MIG instances as records, independent of their source: NVML or a mock file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hami.codec.health import DeviceHealth
from hami.devices.xids import XidKind
from hami.model import MigProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One physical card. Memory in MiB as the driver reports it, unscaled; 0 if unknown.

    *index*: NVML's index. *minor*: the number in ``/dev/nvidia<minor>``. *model*: NVML's name, unprefixed.
    *shared_node*: the device node that all cards share (WSL), empty if each has its own. *numa*: None if unknown.
    *mig*: whether MIG mode is enabled. *profiles*: MIG profiles that may be created. *links*: link scores by UUID of
    the other card. *problem*: why the card cannot be used, empty if it can.
    """

    uuid: str
    index: int
    minor: int
    model: str
    memory_mib: int
    numa: int | None = None
    mig: bool = False
    profiles: tuple[MigProfile, ...] = ()
    links: Mapping[str, int] = field(default_factory=dict, hash=False)
    problem: str = ""
    shared_node: str = ""

    @property
    def node(self) -> str:
        """The path of the device node."""
        return self.shared_node or f"/dev/nvidia{self.minor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A MIG instance on a card: its placement (memory slices) and its names.

    *uuid*: empty if creation or destruction was incomplete; no process can run in it. *busy*: processes run in it, or
    may run in it.
    """

    gpu: str
    profile: str
    start: int
    size: int
    uuid: str
    gpu_instance: int
    compute_instance: int
    busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A MIG device that processes can use. *gpu*: the UUID of its card. *profile*: the driver's name, such as
    ``1g.10gb``, ``1g.10gb+me``, or ``1c.3g.40gb`` for a part of a GPU instance."""

    gpu: str
    uuid: str
    profile: str
    memory_mib: int
    gpu_instance: int
    compute_instance: int


class Instances(Protocol):
    """Lists, creates and destroys MIG instances. Each method may raise HamiError with the card and the driver's
    error."""

    def existing(self, gpu: str) -> Sequence[Instance]: ...
    def devices(self, gpu: str) -> Sequence[MigDevice]: ...
    def create(self, gpu: str, profile: str, start: int, size: int) -> Instance: ...
    def destroy(self, instance: Instance) -> None: ...
    def enable_mig(self, gpu: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """An error that the driver has reported."""

    gpu: str
    """The UUID of the card; empty if it is unknown."""
    xid: int
    kind: XidKind
    instance: tuple[int, int] | None = None
    """The numbers of GPU instance and compute instance, if it concerns only one."""


class HealthListener(Protocol):
    """Hears of the cards' health."""

    def report(self, gpu: str, health: DeviceHealth | None, action: int | None) -> None:
        """Takes the health of a card, or of all cards if *gpu* is empty; ``None``: it is healthy. *action*: what the
        driver asks for; ``None``: it does not say."""

    def report_xid(self, event: XidEvent) -> None:
        """Takes an error."""


class CardSource(Protocol):
    """Lists cards and watches their health. An unreadable card is skipped or has a *problem*; the others are listed."""

    def cards(self) -> Sequence[Card]: ...

    def look(
        self, listener: HealthListener, restored: Mapping[str, DeviceHealth] | None = None
    ) -> None:
        """Reports the health of the cards once, unless it is that of the last look. *restored*: the health of cards
        when an earlier process looked."""

    def watch_health(
        self,
        listener: HealthListener,
        stopped: threading.Event,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Reports changes of the cards' health. Returns when *stopped*."""

    @property
    def instances(self) -> Instances: ...
