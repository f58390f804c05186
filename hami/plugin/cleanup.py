"""Removes what earlier calls, processes and pods have left on the node."""

from __future__ import annotations

import logging

from hami.devices.dynamic_mig import DynamicMig
from hami.errors import HamiError
from hami.kube.cluster import Cluster
from hami.node.host import Host
from hami.plugin.allocator import Allocator
from hami.plugin.deferred_writes import DeferredWrites

__all__ = ["clean_up_node"]

log = logging.getLogger(__name__)


def clean_up_node(node: str, cluster: Cluster, host: Host, mig: DynamicMig | None, allocator: Allocator,
                  deferred: DeferredWrites) -> None:
    """Cleans up: deferred writes, stale node locks, directories of containers, MIG instances.

    Logs what fails; never raises a HamiError.
    """
    def remove_directories() -> None:
        if directories := host.directories():  # before the pods: see Host.sweep
            if removed := host.sweep(directories, {pod.ref.uid for pod in cluster.pods_on(node)}):
                log.info("container directories removed", extra={"directories": removed})
    for step in (allocator.release_stale_lock, deferred.flush, remove_directories,
                 *([mig.reconcile] if mig is not None else [])):
        try:
            step()
        except HamiError as error:
            log.warning("cleanup failed", extra={"node": node, "error": error})
