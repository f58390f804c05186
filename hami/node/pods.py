"""The pods of one node, as a watch reports them. They may be late: decisions need a list from the API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from hami.codec.device_requests import UsedClaims
from hami.codec.pods import NodePod, parse_node_pod
from hami.kube.api import Api
from hami.kube.reflector import Reflector, WatchedResource
from hami.model import Pod
from hami.runtime.tasks import Task

SYNC_S = 10.0
"""Seconds to wait for the first list; the kubelet gives a container 30 s to be prepared."""


class NodePods:
    """The pods that are bound to one node. Threads may share it."""

    def __init__(
        self, api: Api, node: str, on_pod: Callable[[Pod], None] = lambda pod: None
    ) -> None:
        """*on_pod*: receives each new state of a pod, in the thread of the watch; must be quick."""
        self._on_pod = on_pod
        self._lock = threading.Lock()  # guards _pods; never held across I/O
        self._pods: dict[str, NodePod] = {}  # by uid
        self._reflector: Reflector[NodePod] = Reflector(
            api,
            WatchedResource(
                name="pods of the node",
                path="/api/v1/pods",
                parse=parse_node_pod,
                key=lambda item: item.pod.ref.uid,
                query={"fieldSelector": f"spec.nodeName={node}"},
            ),
            self,
            resumes=True,
        )

    @property
    def task(self) -> Task:
        """The watch."""
        return self._reflector

    def pods(self) -> list[Pod] | None:
        """Returns the pods last reported; ``None`` before the first list is complete."""
        items = self.node_pods()
        if items is None:
            return None
        return [item.pod for item in items]

    def node_pods(self) -> list[NodePod] | None:
        """Returns what was last reported of each pod; ``None`` before the first list is complete."""
        if not self._reflector.synced.is_set():
            return None
        with self._lock:
            return list(self._pods.values())

    def wait_synced(self, timeout: float) -> bool:
        """Waits for the first list, for at most *timeout* seconds; returns whether it is complete."""
        return self._reflector.synced.wait(timeout)

    def pod(self, uid: str) -> Pod | None:
        """Returns the pod last reported; ``None`` if it is not known, even once the first list is complete."""
        self._reflector.synced.wait(SYNC_S)
        item = self._item(uid)
        if item is None:
            return None
        return item.pod

    def environment(self, uid: str, container: str) -> Mapping[str, str] | None:
        """Returns the literal environment variables of a container; ``None`` if the pod is not known."""
        item = self._item(uid)
        if item is None:
            return None
        return item.environments.get(container, {})

    def claims(self, uid: str) -> UsedClaims | None:
        """Returns the claims that the containers of a pod use; ``None`` if it is not known, or they cannot be read."""
        item = self._item(uid)
        if item is None:
            return None
        return item.claims

    def _item(self, uid: str) -> NodePod | None:
        with self._lock:
            return self._pods.get(uid)

    def upsert(self, item: NodePod, as_of: float = 0.0) -> None:
        """Takes the new state of a pod, from the reflector, whatever its version."""
        with self._lock:
            self._pods[item.pod.ref.uid] = item
        self._on_pod(item.pod)

    def remove(self, item: NodePod) -> None:
        """Forgets a deleted pod, from the reflector."""
        with self._lock:
            self._pods.pop(item.pod.ref.uid, None)

    def prune(self, seen: set[str], started: float) -> None:
        """Forgets all pods that a complete list does not have, from the reflector."""
        with self._lock:
            self._pods = {uid: item for uid, item in self._pods.items() if uid in seen}
