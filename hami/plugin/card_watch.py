"""Watches the cards of the node, and tells all who offer them what has changed."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from hami.codec.health import DeviceHealth
from hami.devices.cards import Card, MigDevice, XidEvent
from hami.devices.nvml_library import DriverLibrary
from hami.devices.registration import MIG
from hami.errors import HamiError
from hami.node.dynamic_mig import DynamicMig
from hami.plugin.card_reader import CardReader
from hami.plugin.health_reporter import HealthReporter
from hami.plugin.holders import CardHolders
from hami.plugin.known_cards import NO_ANSWER
from hami.plugin.kubelet_servers import KubeletServers
from hami.plugin.node import PluginNode
from hami.plugin.static_mig import StaticMig
from hami.runtime.once import OncePerKey
from hami.runtime.parts import Part, join_reasons
from hami.runtime.tasks import PeriodicTask

log = logging.getLogger(__name__)

SILENT_S = 20.0
"""Seconds without an answer of the driver after which nobody knows the state of the cards."""
SILENT = "silent"
"""The cause of an unknown state: a call of the driver does not end."""
OPENED = "opened"
"""The same: the driver has not answered since the start."""
SILENCE_CHECK_S = 5.0
MISSING_S = 30.0
"""Seconds between two looks for a driver that is missing."""


class Offer(Protocol):
    """Offers cards, or instances on them: see `DeviceInventory`."""

    def report(self, uuid: str, reason: str) -> None: ...
    def report_unknown(self, cause: str, reason: str) -> None: ...
    def close(self) -> None: ...


class CardWatch(Part):
    """Reads the cards of a node again and again, and watches their health: hears of it as a `HealthListener`."""

    def __init__(
        self,
        node: PluginNode,
        library: DriverLibrary,
        servers: KubeletServers,
        mig: DynamicMig | None,
        reporter: HealthReporter,
        holders: CardHolders,
    ) -> None:
        """*library*: that of the driver. *servers*: serve the instances of static MIG. *mig*: ``None`` unless the node
        makes instances. *reporter*: is told of the cards' health. *holders*: is told of the instances of static MIG."""
        self._node = node
        self._reporter = reporter
        self._library = library
        self._reported = OncePerKey()  # why the state of the cards is unknown, by cause
        self._stopped = threading.Event()
        self._has_found_driver = threading.Event()
        self._offers: list[Offer] = [*node.inventories, node.all_cards]
        self._listeners: list[Callable[[Sequence[Card]], None]] = [
            node.cdi.update_cards,
            node.all_cards.update,
        ]
        if node.settings.is_divided:
            self._listeners.append(node.claimed.update)
        self._switches: list[Callable[[], None]] = []
        if mig is not None:
            self._switches.append(mig.start)
        self.reader = CardReader(self._read_cards, node.inventory, self._report_unknown)
        self._health = PeriodicTask("health", self._watch_health, math.inf)
        silence = PeriodicTask("silence", self.check_silence, SILENCE_CHECK_S)
        super().__init__(self._health, self.reader, silence)
        if node.source is None or node.is_silent:
            self.tasks.append(PeriodicTask("driver", self._look_for_driver, MISSING_S))
        elif node.settings.mig_strategy != "none" and node.settings.operating_mode != MIG:

            def on_instances(instances: Sequence[MigDevice]) -> None:
                holders.update_instances(instances)
                node.cdi.update_instances(instances)

            static_mig = StaticMig(
                node.settings,
                node.settings.mig_strategy,
                node.source.instances,
                node.host,
                on_instances=on_instances,
                on_resource=servers.serve_instances,
            )
            self._offers.append(static_mig)
            self._listeners.append(static_mig.update_cards)

    def prepare(self) -> None:
        """Looks at the cards' health, reads them, and switches their MIG mode if need be. Raises: HamiError."""
        restored = self._reporter.restore()
        if self._node.is_silent:
            self._report_unknown(OPENED, NO_ANSWER)
        if self._node.source is not None:
            self._node.source.look(self, restored)
        self.reader.read()
        for switch in self._switches:
            switch()
            self.reader.read()

    def has_found_driver(self) -> bool:
        """Reports whether a driver that was missing at the start is there."""
        return self._has_found_driver.is_set()

    def unready_reason(self) -> str:
        """Returns why the state of the cards is unknown; empty if it is known."""
        unknown = self._node.inventory.snapshot().unknown
        return f"the state of the devices is unknown: {unknown}" if unknown else ""

    def hung_reason(self) -> str:
        """Returns which threads have died or hang, and why only a new process can use the driver; empty if nothing is
        wrong."""
        return join_reasons([self._library.restart_reason(), super().hung_reason()])

    def stop(self) -> None:
        """Makes the tasks end after their current steps."""
        self._stopped.set()
        super().stop()

    def close(self) -> None:
        """Ends all waits for changes of the cards."""
        for offer in self._offers:
            offer.close()

    def check_silence(self) -> None:
        """Reports a call of the driver that does not end: its thread cannot."""
        now = time.monotonic()
        reason = ""
        if max(self.reader.silence_s(now), self._health.silence_s(now)) > SILENT_S:
            reason = f"the driver has not answered for {SILENT_S:g} s"
        self._report_unknown(SILENT, reason)

    def _read_cards(self) -> Sequence[Card]:
        """Returns the cards. Writes their specifications, and serves their MIG instances, before they are offered."""
        self._node.check_files()
        cards = self._node.read_cards(self._library)
        for listener in self._listeners:
            listener(cards)
        return cards

    def _look_for_driver(self) -> None:
        try:
            self._library.open(self._node.settings.driver_root_in_container)
        except HamiError as error:
            log.debug("still no driver", extra={"reason": str(error)})
        else:
            self._has_found_driver.set()

    def _watch_health(self) -> None:
        if self._node.source is not None:
            self._node.source.watch_health(self, self._stopped, self._health.beat)

    def report(self, gpu: str, health: DeviceHealth | None, action: int | None) -> None:
        """Takes the health of a card, or of all cards: see `HealthListener`."""
        self._reporter.report(gpu, health, action)
        reason = "" if health is None else health.cause
        for offer in self._offers:
            offer.report(gpu, reason)
        self.reader.wake()  # it may have been the driver

    def report_xid(self, event: XidEvent) -> None:
        """Takes an error that the driver reports."""
        self._reporter.report_xid(event)

    def _report_unknown(self, cause: str, reason: str) -> None:
        if not reason:
            self._reported.clear(cause)
        elif self._reported.is_new(cause, reason):
            self._node.warn("DevicesUnknown", reason)
        for offer in self._offers:
            offer.report_unknown(cause, reason)
