"""Removes what earlier calls, processes and pods have left on the node."""

from __future__ import annotations

import logging

from hami.devices.dynamic_mig import DynamicMig
from hami.errors import HamiError
from hami.kube.cluster import Cluster
from hami.node.host import Host
from hami.plugin.allocator import Allocator
from hami.plugin.deferred_writes import DeferredWrites

__all__ = ["NodeCleanup"]

log = logging.getLogger(__name__)


class NodeCleanup:
    """Cleans up one node: deferred writes, stale node locks, directories of containers, MIG instances."""

    def __init__(self, node: str, cluster: Cluster, host: Host, mig: DynamicMig | None, allocator: Allocator,
                 deferred: DeferredWrites) -> None:
        self._node = node
        self._cluster = cluster
        self._host = host
        self._mig = mig
        self._allocator = allocator
        self._deferred = deferred

    def run_once(self) -> None:
        """Cleans up once. Logs what fails; never raises a HamiError."""
        for step in (self._allocator.release_stale_lock, self._deferred.flush, self._remove_directories,
                     self._destroy_instances):
            try:
                step()
            except HamiError as error:
                log.warning("cleanup failed", extra={"node": self._node, "error": error})

    def _remove_directories(self) -> None:
        directories = self._host.directories()  # before the pods: see Host.sweep
        if directories:
            pods = self._cluster.pods_on(self._node)
            if removed := self._host.sweep(directories, {pod.ref.uid for pod in pods}):
                log.info("container directories removed", extra={"directories": removed})

    def _destroy_instances(self) -> None:
        if self._mig is not None:
            self._mig.reconcile()
