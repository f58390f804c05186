"""The usage of cards: memory and utilization, of the card and of each process, as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """The usage of a process on one card. *memory*: bytes. *sm*: percent. ``None`` if the driver does not say."""

    memory: int | None
    sm: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUsage:
    """The usage of a card, or of a MIG instance. Memory in bytes, utilization in percent; ``None``: the driver does not
    say.

    *memory*: what there is; 0 if unknown. *memory_utilization*: that of the memory controller. *processes*: by PID as
    the host sees it. *instances*: of a card in MIG mode, whose own *processes* are then unknown. *problems*: why a part
    could not be read.
    """

    uuid: str
    index: int
    model: str = ""
    memory: int = 0
    memory_used: int | None = None
    utilization: int | None = None
    memory_utilization: int | None = None
    processes: Mapping[int, ProcessUsage] | None = None
    instances: tuple[CardUsage, ...] = ()
    problems: tuple[str, ...] = ()
