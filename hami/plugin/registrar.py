"""WatchAndRegister: one loop that reads the cards and keeps the node's annotations saying what they are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from hami.errors import ClusterError, HamiError, NotFound
from hami.model import Node
from hami.devices.cards import Card, CardSource
from hami.devices.config import PluginConfig
from hami.devices.registration import SCORES, RegistrationKeys, annotation_changes, node_annotations
from hami.devices.inventory import InventorySnapshot, DeviceInventory

__all__ = ["NodeRegistrar", "NodeCalls"]

log = logging.getLogger(__name__)

ROUND_S = 30.0
"""Seconds between two looks at the cards and at what the node says, when nothing happens."""
RETRY_S = 5.0
"""Seconds until the next attempt after one that failed."""


class NodeCalls(Protocol):
    """The calls of `hami.kube.cluster.Cluster` that registration makes."""

    def node(self, name: str, *, timeout: float | None = None) -> Node | None: ...

    def annotate_node(self, name: str, annotations: Mapping[str, str | None], resource_version: str = "", *,
                      timeout: float | None = None) -> Node: ...


class NodeRegistrar:
    """Writes what has changed, and nothing else: the node itself is asked what it says, so that nothing is taken for
    written that was not, and what somebody has removed comes back."""

    def __init__(self, cluster: NodeCalls, source: CardSource, inventory: DeviceInventory, config: PluginConfig,
                 keys: RegistrationKeys, *, now: Callable[[], datetime],
                 before: Callable[[Sequence[Card]], None] = lambda cards: None) -> None:
        """*before* is told what cards there are before anybody is offered them. It may raise HamiError."""
        self._cluster = cluster
        self._source = source
        self._inventory = inventory
        self._config = config
        self._keys = keys
        self._now = now
        self._before = before
        self._stopped = threading.Event()
        self._reading = threading.Lock()
        self._told: Mapping[str, str] = {}

    def run(self) -> None:
        """Read and write, again at once when a card turns bad or well, until `stop`."""
        said = ""
        while not self._stopped.is_set():
            version = self._inventory.snapshot().version
            pause = ROUND_S
            try:
                self.read()
                version = self.announce().version
                said = ""
            except HamiError as error:
                if said != (said := str(error)):  # an API server that is away is away for a while
                    log.warning("registration of the node failed", extra={"node": self._config.node, "error": error})
                pause = RETRY_S
            except Exception:
                log.exception("registration of the node failed")
                pause = RETRY_S
            self._inventory.wait(version, pause) if pause == ROUND_S else self._stopped.wait(pause)

    def read(self) -> None:
        """Read the cards once, in any thread; `run` announces what is new. Raises: HamiError when the source cannot be
        read at all, or they cannot be offered."""
        with self._reading:
            cards = self._source.cards()
            self._before(cards)
            self._inventory.update(cards)
            self._tell(self._inventory.snapshot())

    def announce(self) -> InventorySnapshot:
        """Make the node say what the cards are; they are returned. Raises: ClusterError."""
        roll = self._inventory.snapshot()
        name = self._config.node
        node = self._cluster.node(name)
        if node is None:
            raise NotFound(f"there is no node {name}: is --node-name right?", 404)
        wanted = node_annotations(roll, self._config, self._keys)
        if changes := annotation_changes(node, wanted, self._config, self._keys, self._now()):
            self._cluster.annotate_node(name, changes)
            log.info("registered", extra={"node": name, "cards": len(roll.cards), "unwell": len(roll.unhealthy),
                                          "annotations": sorted(changes)})
        return roll

    def stop(self) -> None:
        """End `run` soon; the inventory's end ends its waiting."""
        self._stopped.set()

    def withdraw(self) -> None:
        """Remove what was written: the node offers no cards any more. Tried once."""
        try:
            self._cluster.annotate_node(self._config.node, {self._keys.register: None, SCORES: None})
            log.info("registration removed", extra={"node": self._config.node})
        except ClusterError as error:
            log.warning("the registration stays", extra={"node": self._config.node, "error": error})

    def _tell(self, roll: InventorySnapshot) -> None:
        """A line for each card that has turned bad, or well again, since the last time."""
        for uuid in roll.unhealthy.keys() | self._told.keys():
            reason = roll.unhealthy.get(uuid, "")
            if reason != self._told.get(uuid, ""):
                level, says = (logging.WARNING, "card unhealthy") if reason else (logging.INFO, "card healthy again")
                log.log(level, says, extra={"card": uuid, "reason": reason})
        self._told = roll.unhealthy
