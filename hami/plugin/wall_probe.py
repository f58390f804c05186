"""Whether NVIDIA's driver limits device memory by control group on a node, and through what."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hami.devices.cards import Card
from hami.devices.config import LIMITER, PluginConfig
from hami.devices.memory_limits import GroupLimits
from hami.errors import DriverError, HamiError

PROBE_S = 600.0
"""Seconds after which the driver is asked again."""


class WallProbe:
    """Asks the driver of one node. Threads may share it."""

    def __init__(
        self,
        config: PluginConfig,
        open_driver: Callable[[], GroupLimits],
        cards: Callable[[], Sequence[Card]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*open_driver* may raise HamiError."""
        self.root = config.cgroup_root.rstrip("/")
        """Where the node's control groups are; empty if they are not seen."""
        self._way = config.memory_by
        self._open_driver = open_driver
        self._cards = cards
        self._clock = clock
        self._switched_off = ""
        self._lock = threading.Lock()  # guards what follows; held across calls of the driver
        self._driver: GroupLimits | None = None
        self._asked: tuple[float, str] | None = None

    def switch_off(self, reason: str) -> None:
        """Leaves memory to the limiter alone from now on, unless *reason* is empty."""
        self._switched_off = reason

    def reason_off(self) -> str:
        """Returns why the driver cannot limit memory here; empty if it can."""
        if self._way == LIMITER:
            return f"--memory-by={LIMITER}"
        if self._switched_off:
            return self._switched_off
        if not self.root:
            return "the device plugin does not see the control groups of the node (--cgroup-root)"
        with self._lock:
            now = self._clock()
            if self._asked is None or now - self._asked[0] >= PROBE_S:
                self._asked = now, self._ask()
            return self._asked[1]

    def state(self) -> str:
        """Returns the annotation of the node: how the driver limits memory, or why not; empty if nobody has asked it
        to."""
        if self._way == LIMITER or not self.root:
            return ""
        reason = self.reason_off()
        if reason:
            return f"off: {reason}"
        return self.backend()

    def backend(self) -> str:
        """Returns what accounts the memory: the controller ``dmem`` of the kernel, or the driver itself, ``misc``."""
        return "dmem" if any(Path(self.root).glob("kubepods*/dmem.max")) else "misc"

    def driver(self) -> GroupLimits:
        """Returns the limits of the driver that can. Raises: DriverError."""
        reason = self.reason_off()
        if reason or self._driver is None:
            raise DriverError(f"the driver does not limit memory: {reason}")
        return self._driver

    def _ask(self) -> str:
        if not Path(self.root, "cgroup.controllers").is_file():
            return f"{self.root} has no control groups of version 2"
        cards = self._cards()
        if not cards:
            return "the node has no cards"
        whole = [card for card in cards if not card.mig]
        if not whole:
            return "all cards are in MIG mode"
        try:
            self._driver = self._open_driver()
        except HamiError as error:
            return str(error)
        return self._driver.reason_not_supported(whole[0].uuid, self.root)
