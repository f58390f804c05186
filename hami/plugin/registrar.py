"""Registers the node: keeps its annotations up to date with the cards."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from hami.codec.health import NOT_WATCHED, render_condition
from hami.codec.keys import ALLOCATION_MODE, GPU_LABELS, MEMORY_WALL, NODE_RESIZES
from hami.codec.register import parse_devices
from hami.devices.config import DRA, OFF, REQUESTS, PluginConfig
from hami.devices.inventory import DeviceInventory, InventorySnapshot
from hami.devices.registration import (
    annotation_changes,
    lock_free_changes,
    node_annotations,
    node_labels,
    render_devices,
)
from hami.errors import ClusterError, Conflict, HamiError, NotFound
from hami.kube.cluster import Cluster
from hami.kube.retry import brief_retry, is_conflict
from hami.model import Node, Pod
from hami.plugin.capacity import publish_capacity
from hami.runtime.clock import utc_now
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import PeriodicTask, Task
from hami.vendors.inventory import PAIR_SCORES
from hami.vendors.spec import Vendor

log = logging.getLogger(__name__)

INTERVAL_S = 30.0
"""Seconds between reads of the node while nothing changes."""
LOCK_FREE_S = 1.0
"""The same while it is not known yet whether the node is lock-free, and during RECHECK_S."""
RECHECK_S = 10.0
"""Seconds after a registration with the kubelet in which the node is read each second: a kubelet that has lost its
state may set the capacity of its node to 0, which then fails pods."""
RETRY_S = 5.0
"""Seconds until the next attempt after a failure."""
CONFLICT_S = 0.1
"""The same if somebody else has changed the node meanwhile: the kubelet writes it in the seconds of a registration,
until which pods need the node lock."""
WITHDRAW_S = 30.0
"""Seconds for which a start waits for a withdrawal that has begun, which would otherwise take back what the start
registers."""


class NodeRegistrar(Task):
    """Writes only what has changed, compared to the node as it is: annotations that somebody removed are restored."""

    def __init__(
        self,
        cluster: Cluster,
        inventory: DeviceInventory,
        config: PluginConfig,
        vendor: Vendor,
        *,
        now: Callable[[], datetime],
        is_lock_free: Callable[[], bool] | None = None,
        watched_pods: Callable[[], Collection[Pod] | None] = lambda: None,
        memory_wall: Callable[[], str] = str,
    ) -> None:
        """*is_lock_free*: reports whether the kubelet allocates without a node lock by now; ``None`` if it never will.
        *watched_pods*: as for `publish_capacity`. *memory_wall*: returns how the driver limits memory, or why it does
        not; empty if it is not to be said."""
        super().__init__("node")
        self._cluster = cluster
        self._inventory = inventory
        self._config = config
        self._vendor = vendor
        self._now = now
        self._is_lock_free = is_lock_free
        self._watched_pods = watched_pods
        self._memory_wall = memory_wall
        self._retry_conflicts = brief_retry(is_conflict, time.sleep)
        self._has_registered = threading.Event()
        self._recheck_until = -math.inf
        self._reported = OncePerKey()

    def step(self) -> float:
        """Registers, then waits until it is due again, or until a card or its health changes."""
        node, recheck_until = self._config.node, self._recheck_until
        try:
            registered = self.register()
        except Conflict:
            return CONFLICT_S
        except HamiError as error:
            if self._reported.is_new(node, str(error)):
                log.warning("node registration failed", extra={"node": node, "error": error})
            return RETRY_S
        self._reported.clear(node)
        is_complete = self._is_lock_free is None or self._is_lock_free()
        is_settled = is_complete and time.monotonic() > recheck_until
        self._inventory.wait_until(
            lambda snapshot: snapshot is not registered or self._recheck_until != recheck_until,
            INTERVAL_S if is_settled else LOCK_FREE_S,
        )
        return 0.0

    def recheck(self) -> None:
        """Reads the node again at once, and some times more, if its capacity may fail pods."""
        if self._config.publish_capacity == REQUESTS:
            self._recheck_until = time.monotonic() + RECHECK_S
            self._inventory.notify()

    def register(self) -> InventorySnapshot:
        """Writes the node's annotations; returns the cards that they describe. Raises: ClusterError."""
        snapshot = self._inventory.snapshot()
        name = self._config.node
        node = self._read_node()
        wanted = node_annotations(snapshot, self._config, self._vendor)
        wanted[MEMORY_WALL] = self._memory_wall() or None
        changes = annotation_changes(node, wanted, self._config, self._vendor, self._now())
        shared: dict[str, str | None] = {}
        if self._is_lock_free is None or not snapshot.cards:
            shared = lock_free_changes(node, False)
        elif self._is_lock_free():
            shared = lock_free_changes(node, True)
        if changes := {**changes, **shared}:
            node = self._cluster.annotate_node(
                name, changes, node.resource_version if shared else ""
            )
            log.info(
                "node registered",
                extra={
                    "node": name,
                    "cards": len(snapshot.cards),
                    "unhealthy": len(snapshot.unhealthy),
                    "annotations": sorted(changes),
                },
            )
        self._has_registered.set()
        self._attempt("labels", node, lambda: self._label(node, snapshot))
        self._attempt("capacity", node, lambda: self._publish_capacity(node))
        return snapshot

    def wait_registered(self, seconds: float) -> bool:
        """Reports whether the node's annotations have been right once, after at most so many seconds."""
        return self._has_registered.wait(seconds)

    def remove_other_allocation_modes(self) -> None:
        """Removes what the node offers in another allocation mode than that of the configuration, or in this one to
        another allocator. Raises: ClusterError."""
        if not self._config.is_managed:
            self.register()
        elif self._read_node().annotations.get(ALLOCATION_MODE) != DRA:
            self.leave(unregister=True)

    def leave(self, *, unregister: bool) -> None:
        """Removes the annotations that this plugin alone may promise, since it ends: its successor may need node locks.
        *unregister*: the node no longer offers cards, either."""
        try:
            self._retry_conflicts(self._leave, unregister)
        except ClusterError as error:
            log.warning(
                "node annotations cannot be removed",
                extra={"node": self._config.node, "error": error},
            )

    def _leave(self, unregister: bool) -> None:
        """Raises: Conflict if somebody else has changed the node meanwhile; ClusterError."""
        name = self._config.node
        changes: dict[str, str | None] = {}
        if unregister:
            keys = self._vendor.annotations.register, PAIR_SCORES, ALLOCATION_MODE
            changes = dict.fromkeys(keys)
        shared: dict[str, str | None] = {}
        version = ""
        node = self._cluster.node(name)
        if node is not None:
            if NODE_RESIZES in node.annotations:
                changes[NODE_RESIZES] = None
            shared = lock_free_changes(node, False)
            version = node.resource_version if shared else ""
        if changes := {**changes, **shared}:
            self._cluster.annotate_node(name, changes, version)
            log.info(
                "node annotations removed", extra={"node": name, "annotations": sorted(changes)}
            )
        if unregister and node is not None:
            publish_capacity(self._cluster, node, self._vendor, OFF)
            if self._config.gpu_labels:
                self._cluster.label_node(name, dict.fromkeys(GPU_LABELS))

    def _read_node(self) -> Node:
        name = self._config.node
        if (node := self._cluster.node(name)) is None:
            raise NotFound(f"there is no node {name}: check --node-name", 404)
        return node

    def _publish_capacity(self, node: Node) -> None:
        """Publishes the sums of the devices that *node* registers. Raises: HamiError."""
        publish_capacity(
            self._cluster, node, self._vendor, self._config.publish_capacity, self._watched_pods
        )

    def _label(self, node: Node, snapshot: InventorySnapshot) -> None:
        """Gives *node* its labels. Raises: ClusterError."""
        wanted = node_labels(snapshot, self._config)
        changes = {key: text for key, text in wanted.items() if node.labels.get(key) != text}
        if changes:
            self._cluster.label_node(node.name, changes)
            log.info("node labeled", extra={"node": node.name, "labels": changes})

    def _attempt(self, what: str, node: Node, write: Callable[[], None]) -> None:
        """Writes what nobody needs to place or start a pod: a failure, such as a right that is missing, is only
        logged."""
        try:
            write()
        except HamiError as error:
            if self._reported.is_new(what, str(error)):
                fields = {"node": node.name, "error": error}
                log.warning("node %s cannot be published", what, extra=fields)
        else:
            self._reported.clear(what)


@contextmanager
def withdrawn_unless_read(
    cluster: Cluster, config: PluginConfig, vendor: Vendor, seconds: float
) -> Iterator[None]:
    """Marks the devices that the node registers as unhealthy if they cannot be read meanwhile, or after so many
    *seconds*: an earlier plugin has registered them, and nobody knows their state any more."""

    def withdraw_later() -> None:
        if not task.pause(seconds):
            withdraw_devices(cluster, config, vendor)

    task = PeriodicTask("withdraw", withdraw_later, math.inf)
    task.start()
    try:
        yield
    except HamiError:
        withdraw_devices(cluster, config, vendor)
        raise
    finally:
        task.stop()
        task.join(WITHDRAW_S)


def withdraw_devices(cluster: Cluster, config: PluginConfig, vendor: Vendor) -> None:
    """Marks the devices that the node registers as unhealthy. Logs a failure."""
    try:
        brief_retry(is_conflict, time.sleep)(_withdraw, cluster, config, vendor)
    except HamiError as error:
        log.warning(
            "devices cannot be registered as unhealthy", extra={"node": config.node, "error": error}
        )


def _withdraw(cluster: Cluster, config: PluginConfig, vendor: Vendor) -> None:
    """Raises: Conflict if somebody else has changed the node meanwhile; HamiError."""
    key = vendor.annotations.register
    node = cluster.node(config.node)
    text = node.annotations.get(key) if node is not None else None
    if node is None or not text:
        return
    devices = parse_devices(key, text, vendor.key)
    withdrawn = tuple(replace(device, healthy=False) for device in devices)
    if withdrawn == devices:
        return
    cluster.annotate_node(
        node.name, {key: render_devices(withdrawn, config)}, node.resource_version
    )
    message = "the device plugin cannot read the cards"
    condition = render_condition("Unknown", NOT_WATCHED, message, utc_now(), is_change=True)
    cluster.publish_health(node.name, {}, condition)
    log.info("devices registered as unhealthy", extra={"node": node.name, "devices": len(devices)})
