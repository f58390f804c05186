"""Removes what containers, claims and pods that are gone have left on the node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from hami.dra.guard import PreparedRequest
from hami.errors import HamiError
from hami.kube.cluster import Cluster
from hami.node.host import Host
from hami.plugin.deferred_writes import CALLS_S
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)


class Cleanup(Task):
    """Runs all *steps* again and again. Logs what fails of them with a HamiError."""

    def __init__(
        self, name: str, node: str, interval_s: float, steps: Sequence[Callable[[], object]]
    ) -> None:
        super().__init__(name, limit_s=CALLS_S)
        self._node = node
        self._interval_s = interval_s
        self._steps = steps

    def step(self) -> float:
        """Runs the steps once."""
        for work in self._steps:
            try:
                work()
            except HamiError as error:
                log.warning("cleanup failed", extra={"node": self._node, "error": error})
        return self._interval_s


def remove_directories(
    node: str,
    cluster: Cluster,
    host: Host,
    prepared: Callable[[], Iterable[PreparedRequest]] = tuple,
) -> None:
    """Removes the directories of containers that are gone. *prepared*: returns what is prepared for claims: containers
    of a pod that was deleted by force use theirs until the kubelet unprepares its claim.

    Raises: HamiError.
    """
    directories = host.directories()  # before the pods: see Host.sweep
    if not directories:
        return
    live = {pod.ref.uid for pod in cluster.pods_on(node)}
    live |= {request.pod for request in prepared()}
    removed = host.sweep(directories, live)
    if removed:
        log.info("container directories removed", extra={"directories": removed})
