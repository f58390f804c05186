"""Reads the cards of the node, again and again, and reports when they cannot be read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from hami.devices.cards import Card
from hami.devices.inventory import DeviceInventory
from hami.errors import HamiError
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)

INTERVAL_S = 30.0
"""Seconds between two reads."""
RETRY_S = 5.0
"""Seconds until the next attempt after a failure."""
READ = "read"
"""The cause of an unknown state, for `DeviceInventory.report_unknown`: the cards cannot be read."""


class CardReader(Task):
    """Keeps the inventory up to date. A read may hang in the driver, so nobody else's work is in its thread."""

    def __init__(
        self,
        read_cards: Callable[[], Sequence[Card]],
        inventory: DeviceInventory,
        report_unknown: Callable[[str, str], None],
    ) -> None:
        """*read_cards*: reads the cards of the node, and prepares what has to be ready before they are offered to
        anybody. It may raise HamiError. *report_unknown*: receives READ and why the state of all cards is unknown,
        empty if it is known."""
        super().__init__("cards")
        self._read_cards = read_cards
        self._inventory = inventory
        self._report_unknown = report_unknown
        # one read of the cards at a time, driver and file I/O included
        self._lock = threading.Lock()
        self._reported = OncePerKey()

    def step(self) -> float:
        """Reads the cards."""
        return INTERVAL_S if self.try_read() else RETRY_S

    def try_read(self) -> bool:
        """Reads the cards once, in any thread, and reports whether that was possible: as the result, and to all who
        rely on the state of the cards."""
        problem = "reading the cards failed: see the log of the device plugin"
        try:
            self.read()
            problem = ""
        except HamiError as error:
            problem = str(error)
        finally:
            self._report_unknown(READ, problem)
        if problem:
            if self._reported.is_new(READ, problem):
                log.warning("cards cannot be read", extra={"error": problem})
            return False
        if self._reported.clear(READ):
            log.info("cards can be read again")
        self._log_health()
        return True

    def read(self) -> None:
        """Reads the cards once, in any thread.

        Raises: HamiError if the source cannot be read or the cards cannot be offered.
        """
        with self._lock:
            self._inventory.update(self._read_cards())

    def _log_health(self) -> None:
        snapshot = self._inventory.snapshot()
        for card in snapshot.cards:
            reason = snapshot.unhealthy.get(card.uuid)
            if reason and self._reported.is_new(card.uuid, reason):
                log.warning("device unhealthy", extra={"device": card.uuid, "reason": reason})
            if not reason and self._reported.clear(card.uuid):
                log.info("device healthy", extra={"device": card.uuid})
