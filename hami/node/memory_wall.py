"""The hook that sets the driver's own limit of device memory for a container: docs/limiter.md describes its program.

A limit holds for the control group of the container, which is known when the runtime has made it: so a hook of the
container's CDI specification sets it, before the container's program runs, and again whenever the container starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from hami.devices.cards import Card
from hami.devices.config import LIMITER, MEMORY_BY_BEST, MEMORY_BY_DRIVER, PluginConfig
from hami.errors import HostError
from hami.model import Share
from hami.node.driver import driver_files
from hami.node.grant import Grant, Hook
from hami.node.wall_records import WallRecords
from hami.quantity import MIB
from hami.runtime.once import OncePerKey

log = logging.getLogger(__name__)

PROGRAM = "hami-memory-wall"
LIBRARY = "libnvidia-ml.so.1"
TIMEOUT_S = 10
"""Seconds for the hook: the driver may have to start first."""


class MemoryWall:
    """Adds the hook to the grants of a node."""

    def __init__(
        self,
        config: PluginConfig,
        driver_root: Path,
        reason_off: Callable[[], str] = lambda: "not asked",
    ) -> None:
        """*driver_root*: the driver's root as this process sees it. *reason_off*: returns why the driver cannot limit
        memory, empty if it can; asked if the configuration leaves it to that."""
        self._config = config
        self._reason_off = reason_off
        self._records = WallRecords(config.hook_path).folder if config.cgroup_root else None
        self._program = Path(config.hook_path) / "vgpu" / PROGRAM
        self._driver_root = driver_root
        self._reported = OncePerKey()

    def with_hook(self, grant: Grant, parts: Sequence[tuple[Card, Share]]) -> Grant:
        """Returns *grant* with the hook that limits memory on the cards of *parts*, the shares with their cards.

        Raises: HostError if the driver has to limit it, and the program is missing.
        """
        way = self._config.memory_by
        if way == LIMITER or (way == MEMORY_BY_BEST and self._reason_off()):
            return grant
        if not self._program.is_file():
            return self._without_program(grant)
        words = [PROGRAM]
        if way != MEMORY_BY_DRIVER:
            words.append("--best-effort")
        words += ["--library", self._library()]
        if self._records is not None:
            words += ["--records", str(self._records)]
        for uuid, size in _sizes(parts).items():
            words += ["--limit", f"{uuid}={size}"]
        hook = Hook(path=str(self._program), args=tuple(words), timeout_s=TIMEOUT_S)
        return replace(grant, hooks=(*grant.hooks, hook))

    def _without_program(self, grant: Grant) -> Grant:
        if self._config.memory_by == MEMORY_BY_DRIVER:
            raise HostError(
                f"{self._program} is missing: --memory-by {MEMORY_BY_DRIVER} needs it, "
                "and the limiter of HAMi does not have it"
            )
        if self._reported.is_new(str(self._program)):
            log.warning(
                "the driver does not limit memory: the program is missing",
                extra={"path": str(self._program)},
            )
        return grant

    def _library(self) -> str:
        """Returns the path of NVML on the host; only its name, for the linker, if the driver is in the host's root or
        cannot be looked at."""
        root = self._config.driver_root.rstrip("/")
        if not root:
            return LIBRARY
        try:
            libraries = driver_files(self._driver_root).libraries
        except HostError:
            return LIBRARY
        for library in libraries:
            path = PurePosixPath(library.path)
            if path.name.startswith("libnvidia-ml.so."):
                return f"{root}{path.parent / LIBRARY}"
        return LIBRARY


def _sizes(parts: Sequence[tuple[Card, Share]]) -> dict[str, int]:
    """Returns the bytes of each card, by UUID: of all its shares, at most what it has."""
    sizes: dict[str, int] = {}
    for card, share in parts:
        size = sizes.get(card.uuid, 0) + share.memory_mib * MIB
        sizes[card.uuid] = min(size, card.memory_mib * MIB)
    return sizes
