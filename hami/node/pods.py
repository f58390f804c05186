"""The pods of one node, as a watch reports them. They may be late: decisions need a list from the API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hami.codec.objects import ContainerRuns, parse_environment, parse_pod, parse_runs
from hami.kube.api import Api
from hami.kube.reflector import Reflector, WatchedResource
from hami.model import Pod
from hami.runtime.tasks import Task

SYNC_S = 10.0
"""Seconds to wait for the first list; the kubelet gives a container 30 s to be prepared."""


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod, the environment variables that each of its containers sets to a literal value, and how they run."""

    pod: Pod
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    runs: ContainerRuns = ContainerRuns()


class NodePods:
    """The pods that are bound to one node. Threads may share it."""

    def __init__(self, api: Api, node: str, on_pod: Callable[[Pod], None] = lambda pod: None) -> None:
        """*on_pod*: receives each new state of a pod, in the thread of the watch; must be quick."""
        self._on_pod = on_pod
        self._lock = threading.Lock()  # guards _node_pods; never held across I/O
        self._node_pods: dict[str, NodePod] = {}  # by uid
        self._reflector: Reflector[NodePod] = Reflector(
            api, WatchedResource(name="pods of the node", path="/api/v1/pods", parse=_parse,
                                 key=lambda one: one.pod.ref.uid, query={"fieldSelector": f"spec.nodeName={node}"}),
            self)

    @property
    def task(self) -> Task:
        """The watch."""
        return self._reflector

    def pods(self) -> list[Pod] | None:
        """Returns the pods last reported; ``None`` before the first list is complete."""
        known = self.node_pods()
        return None if known is None else [one.pod for one in known]

    def node_pods(self) -> list[NodePod] | None:
        """Returns what was last reported of each pod; ``None`` before the first list is complete."""
        if not self._reflector.synced.is_set():
            return None
        with self._lock:
            return list(self._node_pods.values())

    def wait_synced(self, timeout: float) -> bool:
        """Waits for the first list, for at most *timeout* seconds; returns whether it is complete."""
        return self._reflector.synced.wait(timeout)

    def pod(self, uid: str) -> Pod | None:
        """Returns the pod last reported; ``None`` if it is not known, even once the first list is complete."""
        self._reflector.synced.wait(SYNC_S)
        with self._lock:
            known = self._node_pods.get(uid)
        return None if known is None else known.pod

    def environment(self, uid: str, container: str) -> Mapping[str, str] | None:
        """Returns the literal environment variables of a container; ``None`` if the pod is not known."""
        with self._lock:
            known = self._node_pods.get(uid)
        return None if known is None else known.environments.get(container, {})

    def upsert(self, item: NodePod) -> None:
        """Takes the new state of a pod, from the reflector."""
        with self._lock:
            self._node_pods[item.pod.ref.uid] = item
        self._on_pod(item.pod)

    def remove(self, item: NodePod) -> None:
        """Forgets a deleted pod, from the reflector."""
        with self._lock:
            self._node_pods.pop(item.pod.ref.uid, None)

    def prune(self, seen: set[str], started: float) -> None:
        """Forgets all pods that a complete list does not have, from the reflector."""
        with self._lock:
            self._node_pods = {uid: one for uid, one in self._node_pods.items() if uid in seen}

    def reset(self) -> None:
        """Does nothing: each new state is taken, whatever its version."""


def _parse(data: bytes) -> NodePod:
    return NodePod(parse_pod(data), parse_environment(data)[1], parse_runs(data))
