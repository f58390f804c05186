"""What the device plugin knows of its cards, whoever told it: NVML, or a file that stands in for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hami.model import MigProfile

__all__ = ["Card", "CardSource", "Instance", "Instances", "MigDevice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One physical card. Memory in MiB as the driver counts it, unscaled; 0 when it does not say.

    *index*: NVML's; *minor*: the number in ``/dev/nvidia<minor>``; *model*: NVML's name, without a prefix of ours.
    *shared_node*: the device node of all cards, where each has none of its own (WSL). *numa*: ``None`` when unknown.
    *mig*: the card is in MIG mode now. *profiles*: the sizes in which it can be cut. *links*: scores of the links to
    other cards, by their uuid. *problem*: why the card cannot be used, empty if it can.
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
        """The path of its device node."""
        return self.shared_node or f"/dev/nvidia{self.minor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A MIG instance that exists on a card: where it lies (memory slices) and how it is called.

    *uuid*: empty for one that was made, or destroyed, by half: nothing can run in it. *busy*: something does, or nobody
    can tell.
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
    """A MIG instance as programs can use it. *gpu*: the uuid of its card. *profile*: the driver's word for its size,
    such as ``1g.10gb``, ``1g.10gb+me``, or ``1c.3g.40gb`` for a part of a GPU instance."""

    gpu: str
    uuid: str
    profile: str
    memory_mib: int
    gpu_instance: int
    compute_instance: int


class Instances(Protocol):
    """Finds, makes and destroys MIG instances. Each method may raise HamiError, which names the card and what NVML
    said."""

    def existing(self, gpu: str) -> Sequence[Instance]: ...
    def devices(self, gpu: str) -> Sequence[MigDevice]: ...
    def create(self, gpu: str, profile: str, start: int, size: int) -> Instance: ...
    def destroy(self, instance: Instance) -> None: ...
    def enable_mig(self, gpu: str) -> None: ...


class CardSource(Protocol):
    """Where cards come from. A card that cannot be read is left out, or has a *problem*; it never hides the others."""

    def cards(self) -> Sequence[Card]: ...

    def watch_health(self, report: Callable[[str, str], None], stopped: Callable[[], bool]) -> None:
        """Call *report* with a card's uuid (empty: all cards) and the reason whenever one turns bad (an empty reason:
        it is well again), until *stopped*."""

    @property
    def instances(self) -> Instances: ...
