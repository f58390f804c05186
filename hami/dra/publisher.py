"""Publishes the cards of the node as ResourceSlices, and again when somebody deletes or changes them.

The kubelet deletes the slices of its node when it starts, and those of a driver soon after its last socket has gone.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami.codec.keys import CORDON
from hami.codec.policies import parse_list
from hami.codec.slices import is_published, render_slices
from hami.devices.config import PluginConfig
from hami.devices.inventory import DeviceInventory, InventorySnapshot
from hami.devices.registration import devices
from hami.errors import HamiError, NotFound
from hami.kube.claims import DynamicResources
from hami.kube.cluster import Cluster
from hami.kube.pages import ObjectMeta
from hami.kube.retry import WATCH_WAIT, Backoff
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)

_Document = dict[str, Any]
"""A slice as JSON."""

INTERVAL_S = 30.0
"""Seconds between two comparisons while nothing changes: a cordon of the node is found by them."""


class SlicePublisher(Task):
    """Writes only what has changed, compared to the slices as they are. The sink of the watch of the slices."""

    def __init__(
        self,
        config: PluginConfig,
        cluster: Cluster,
        resources: DynamicResources,
        inventory: DeviceInventory,
    ) -> None:
        super().__init__("slices")
        self._config = config
        self._cluster = cluster
        self._resources = resources
        self._inventory = inventory
        self._is_registered = False
        self._changed = threading.Event()  # set when somebody has changed a slice
        self._backoff = Backoff(WATCH_WAIT)
        self._reported = OncePerKey()
        # versions of slices that the API server did not store as they were written
        self._altered: set[str] = set()
        self.unready_reason = "the devices are not published yet"
        """Why kube-scheduler does not know the devices; empty if it does."""

    def publish(self) -> None:
        """Begins to publish, or compares again: the kubelet has registered the driver, and can prepare claims."""
        self._is_registered = True
        self._look_again()

    def upsert(self, item: ObjectMeta, as_of: float = -math.inf) -> None:
        """A slice was written."""
        self._look_again()

    def remove(self, item: ObjectMeta) -> None:
        """A slice was deleted."""
        self._look_again()

    def prune(self, seen: set[str], started: float) -> None:
        """The slices were listed."""
        self._look_again()

    def step(self) -> float:
        """Publishes, then waits until something has changed."""
        if not self._is_registered:
            return math.inf
        self._changed.clear()
        try:
            snapshot = self.reconcile()
        except HamiError as error:
            self.unready_reason = f"the devices cannot be published: {error}"
            if self._reported.is_new("publish", str(error)):
                log.warning(
                    "slices cannot be written", extra={"node": self._config.node, "error": error}
                )
            return self._backoff.next(error)
        self.unready_reason = ""
        self._reported.clear("publish")
        self._backoff.reset()
        self._inventory.wait_until(
            lambda latest: latest is not snapshot or self._changed.is_set() or self.is_stopping(),
            INTERVAL_S,
        )
        return 0.0

    def reconcile(self) -> InventorySnapshot:
        """Makes the slices say what the node has; returns the cards that they describe. Raises: HamiError."""
        name, snapshot = self._config.node, self._inventory.snapshot()
        node = self._cluster.node(name)
        if node is None:
            raise NotFound(f"there is no node {name}: check --node-name", 404)
        cordoned = parse_list(node.annotations.get(CORDON)) or ()
        cards = [
            replace(device, cordoned=device.uuid in cordoned, by_claims=self._config.is_managed)
            for device in devices(snapshot, self._config)
        ]
        present = {item["metadata"]["name"]: item for item in self._resources.slices()}
        generations = {item["spec"]["pool"]["generation"] for item in present.values()}
        latest = max(generations, default=0)
        target = render_slices(name, cards, generation=latest + 1, node_uid=node.uid)
        if len(generations) > 1 or not self._is_up_to_date(present, target):
            self._write(present, target)
            count = sum(len(document["spec"].get("devices", ())) for document in target)
            log.info(
                "slices written",
                extra={"node": name, "devices": count, "generation": latest + 1},
            )
        return snapshot

    def _is_up_to_date(self, present: Mapping[str, _Document], target: Sequence[_Document]) -> bool:
        """Reports whether the slices that are *present*, by name, say what *target* does.

        Raises: HamiError if the API server would alter them again.
        """
        if len(present) != len(target):
            return False
        differing = [
            present.get(document["metadata"]["name"])
            for document in target
            if not is_published(present.get(document["metadata"]["name"], {}), document)
        ]
        if any(_version(document) not in self._altered for document in differing):
            return False
        if differing:  # another attempt would end the same
            raise HamiError(
                "the API server leaves out parts of the slices: Kubernetes 1.36 is needed, with the "
                "feature gates DRAConsumableCapacity and DRAPartitionableDevices"
            )
        return True

    def _write(self, present: dict[str, _Document], target: Sequence[_Document]) -> None:
        """Replaces the slices that are *present*, by name, by those of *target*."""
        self._altered.clear()
        for document in target:
            current = present.pop(document["metadata"]["name"], None)
            if current is not None:
                document["metadata"]["resourceVersion"] = _version(current)
            stored = self._resources.write_slice(document)
            if not is_published(stored, document):
                self._altered.add(_version(stored))
        for leftover in present:
            self._resources.delete_slice(leftover)

    def wake(self) -> None:
        """Ends a wait, or the wait within a step."""
        super().wake()
        self._inventory.notify()

    def _look_again(self) -> None:
        self._changed.set()
        self.wake()


def _version(document: Mapping[str, Any] | None) -> str:
    return str(document["metadata"]["resourceVersion"]) if document is not None else ""
