"""Keeps containers from filling the disk of the node with the files to which they may write."""

from __future__ import annotations

import logging

from hami.errors import HamiError
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import PodRef
from hami.node.host import Host
from hami.runtime.once import OncePerKey

log = logging.getLogger(__name__)


class RegionGuard:
    """Truncates or replaces shared regions that containers of one node have enlarged, and reports these containers."""

    def __init__(self, node: str, cluster: Cluster, host: Host, events: EventRecorder) -> None:
        self._node = node
        self._cluster = cluster
        self._host = host
        self._events = events
        self._reported = OncePerKey()
        self._pods: dict[str, PodRef | None] = {}  # by directory, of those that were enlarged

    def shrink(self) -> None:
        """Truncates enlarged files; logs a container the first time, and records an event each time.

        Logs once what fails; never raises a HamiError.
        """
        try:
            shrunk = self._host.shrink_regions()
        except HamiError as error:
            self._warn("sizes of regions cannot be checked", error)
            return
        for name, is_truncated in shrunk.items():
            try:
                self._report(
                    name,
                    "was truncated"
                    if is_truncated
                    else "cannot be truncated and was replaced: the "
                    "monitor ends the containers of the pod",
                )
            except HamiError as error:
                self._warn("the pod of an enlarged region cannot be found", error)

    def _warn(self, message: str, error: HamiError) -> None:
        if self._reported.is_new(message, str(error)):
            log.warning(message, extra={"node": self._node, "error": error})

    def _report(self, name: str, outcome: str) -> None:
        uid, _, container = name.rpartition("_")
        if self._reported.is_new(name, outcome):
            log.warning(
                "region was enlarged by its container",
                extra={"pod": uid, "container": container, "node": self._node, "outcome": outcome},
            )
        if name not in self._pods:
            refs = [pod.ref for pod in self._cluster.pods_on(self._node) if pod.ref.uid == uid]
            present = self._host.directories()
            self._pods = {
                directory: pod for directory, pod in self._pods.items() if directory in present
            }
            self._pods[name] = refs[0] if refs else None
        if (pod := self._pods[name]) is not None:
            self._events.record(
                pod,
                "Warning",
                "RegionEnlarged",
                f"container {container} has enlarged its shared region, which {outcome}",
            )
