"""The cards that a node had when its driver last answered.

A plugin that is restarted while the driver hangs cannot ask for them. It offers none of them then, but containers that
start again have had theirs, and get them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hami.codec.health import DeviceHealth
from hami.devices.cards import Card, HealthListener, Instances
from hami.devices.nvml_library import DriverLibrary
from hami.errors import DriverError, HamiError
from hami.runtime.files import write_atomically
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)

OPEN_S = 25.0
"""Seconds without an answer of the driver, after which a start goes on with the cards that are known."""
NO_ANSWER = "the driver has not answered since the device plugin was started"
_BEAT_S = 5.0
_CARDS = msgspec.json.Decoder(tuple[Card, ...])


class KnownCards:
    """Keeps cards in a file."""

    def __init__(self, path: Path | None) -> None:
        """*path*: ``None`` to keep nothing."""
        self._path = path

    def save(self, cards: Sequence[Card]) -> None:
        """Replaces the cards, unless they are the same. Logs a failure."""
        if self._path is None:
            return
        try:
            write_atomically(self._path, msgspec.json.encode(cards), durable=False)
        except OSError as error:
            log.warning("cards not saved", extra={"path": str(self._path), "error": error})

    def load(self) -> Sequence[Card]:
        """Returns the cards; none if there is no file that can be read."""
        if self._path is None:
            return ()
        try:
            return _CARDS.decode(self._path.read_bytes())
        except (OSError, msgspec.MsgspecError) as error:
            log.debug("no cards are known", extra={"path": str(self._path), "error": error})
            return ()


class SilentDriver:
    """A card source for a driver that does not answer: lists the cards that are known. Threads may share it."""

    def __init__(self, cards: Sequence[Card]) -> None:
        self._cards = cards

    def cards(self) -> Sequence[Card]:
        """Returns the cards."""
        return self._cards

    def look(
        self, listener: HealthListener, restored: Mapping[str, DeviceHealth] | None = None
    ) -> None:
        """Reports nothing."""

    def watch_health(
        self,
        listener: HealthListener,
        stopped: threading.Event,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Reports nothing, until *stopped*."""
        while not stopped.wait(_BEAT_S):
            beat()

    @property
    def instances(self) -> Instances:
        """Has none. Raises: DriverError."""
        raise DriverError(NO_ANSWER)


class DriverOpening(Task):
    """Opens the driver in a thread of its own: a call that does not end cannot be ended."""

    def __init__(self, library: DriverLibrary, root: str) -> None:
        super().__init__("driver-opening")
        self._library = library
        self._root = root
        self._nvml: Any = None
        self._error: HamiError | None = None

    def step(self) -> None:
        """Opens it."""
        try:
            self._nvml = self._library.open(self._root)
        except HamiError as error:
            self._error = error

    def result(self, seconds: float) -> Any:
        """Returns pynvml; ``None`` if there is no answer within so many *seconds*. Raises: HamiError, as `open` of the
        library."""
        self.start()
        self.join(seconds)
        if self._error is not None:
            raise self._error
        return self._nvml
