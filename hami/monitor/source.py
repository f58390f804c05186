"""Where the usage of cards comes from: the driver, which may be lost and come back, or a file that replaces it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from hami.devices.cards import Card
from hami.devices.nvml_library import DriverLibrary
from hami.devices.usage import CardUsage, NvmlUsage
from hami.errors import HamiError
from hami.quantity import MIB
from hami.runtime.once import OncePerKey

log = logging.getLogger(__name__)

REOPEN_S = 30.0
"""Seconds until a driver that was lost is opened again."""


class UsageSource(Protocol):
    """Reads the usage of the node's cards."""

    def read(self, now: float) -> Sequence[CardUsage] | None:
        """Returns all readable cards, by index; ``None`` without a driver. *now*: Unix seconds. Never raises."""

    def restart_reason(self) -> str:
        """Returns why only a new process can read the usage; empty if this one can, or waits for a driver."""


class DriverSource:
    """Asks the driver through NVML, and opens it again after it was lost. One thread calls it."""

    def __init__(self, library: DriverLibrary, root: str) -> None:
        """*library*: that of this process. *root*: of the driver."""
        self._library = library
        self._root = root
        self._nvml: Any = None
        self._usage: NvmlUsage | None = None
        self._retry_at = -math.inf
        self._reported = OncePerKey()

    def read(self, now: float) -> Sequence[CardUsage] | None:
        """Returns all readable cards, by index; ``None`` without a driver. *now*: Unix seconds."""
        if self._usage is None and 0 <= self._retry_at - now <= REOPEN_S:
            return None
        try:
            if self._usage is None:
                self._nvml = self._library.open(self._root)
                self._usage = NvmlUsage(self._nvml)
            cards = self._library.noted(partial(self._usage.read, now))
        except HamiError as error:
            self._close(str(error))
            self._retry_at = now + REOPEN_S
            return None
        if self._reported.clear("driver"):
            log.info("driver is back")
        return cards

    def restart_reason(self) -> str:
        """Returns why only a new process can use the driver; empty if this one can, or waits for one."""
        return self._library.restart_reason()

    def _close(self, problem: str) -> None:
        if self._reported.is_new("driver", problem):
            log.warning("no driver: usage is what shared regions say", extra={"reason": problem})
        if self._usage is not None:
            self._usage = None
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError as error:
                log.debug("driver cannot be closed", extra={"error": str(error)})


class FixedSource:
    """Cards that are known without a driver, which says nothing about their use."""

    def __init__(self, cards: Callable[[], Sequence[Card]]) -> None:
        """*cards*: reads them, for each round."""
        self._cards = cards
        self._reported = OncePerKey()

    def restart_reason(self) -> str:
        """Returns an empty text: a file can always be read again."""
        return ""

    def read(self, now: float) -> Sequence[CardUsage] | None:
        """Returns the cards; ``None`` while they cannot be read."""
        try:
            cards = self._cards()
        except HamiError as error:
            if self._reported.is_new("cards", str(error)):
                log.warning("cards cannot be read", extra={"reason": error})
            return None
        self._reported.clear("cards")
        return [
            CardUsage(
                uuid=card.uuid, index=card.index, model=card.model, memory=card.memory_mib * MIB
            )
            for card in cards
        ]
