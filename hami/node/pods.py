"""The pods of one node as a watch tells of them: in the order in which they changed, but always a little late.

How late cannot be told by looking. But a change that this process makes to one of the pods comes back by the same
watch, and all that was written before it has come by then: that is how a view is proven, see `NodePods.after`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hami.codec.objects import parse_resource_version
from hami.kube.reflector import Lines, Reflector, Source
from hami.codec.objects import parse_environment, parse_pod
from hami.errors import MalformedInput
from hami.model import Pod

__all__ = ["NodePod", "NodePods", "NodePodsSnapshot"]

Environments = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod, and the variables that each of its containers sets to a literal value: they never change."""

    pod: Pod
    environments: Environments = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class NodePodsSnapshot:
    """All pods of the node as they were at some moment. *version*: all changes up to it have been taken over."""

    node_pods: tuple[NodePod, ...]
    version: int

    @property
    def pods(self) -> list[Pod]:
        """The pods alone."""
        return [resident.pod for resident in self.node_pods]

    def environment(self, uid: str, container: str) -> Mapping[str, str]:
        """The literal variables of a container of the pod *uid*, which is in this view."""
        return next(one.environments for one in self.node_pods if one.pod.ref.uid == uid).get(container, {})


class NodePods:
    """Watches the pods that are bound to one node. Threads may share it; one of them calls `run`."""

    def __init__(self, api: Source, node: str) -> None:
        self._news = threading.Condition()  # guards what follows
        self._node_pods: dict[str, NodePod] = {}
        self._unreadable: set[str] = set()
        self._version = 0
        self._whole = False  # not while a list is being taken over: it tells of pods in no order
        self._reflector: Reflector[NodePod] = Reflector(
            _Noticed(api, self), "/api/v1/pods", _parse, lambda one: one.pod.ref.uid, self, name="pods of the node",
            query={"fieldSelector": f"spec.nodeName={node}"})

    def run(self) -> None:
        """Watch until `stop`; never raises."""
        self._reflector.run()

    def stop(self) -> None:
        """End `run` promptly, from any thread."""
        self._reflector.stop()

    def now(self) -> NodePodsSnapshot | None:
        """What has been told; ``None`` when that is not all the pods, or not all of them can be read."""
        return self._view_when(lambda: True, 0)

    def holding(self, namespace: str, name: str, timeout: float) -> NodePodsSnapshot | None:
        """What has been told, once that pod is among it; ``None`` when that is not so within *timeout* seconds, or
        when not all pods can be read."""
        def is_told() -> bool:
            return any((one.pod.ref.namespace, one.pod.ref.name) == (namespace, name)
                       for one in self._node_pods.values())
        return self._view_when(is_told, timeout)

    def after(self, view: NodePodsSnapshot, version: str, timeout: float) -> NodePodsSnapshot | None:
        """What there was at *version* or later; ``None`` when that is not told within *timeout* seconds.

        *version*: resource version of a pod of this node, by a write that was begun after *view* was taken. One that is
        not newer than *view* is not comparable, or nothing was changed: it proves nothing.
        """
        wanted = parse_resource_version(version)
        return self._view_when(lambda: self._version >= wanted, timeout) if wanted > view.version else None

    def _view_when(self, holds: Callable[[], bool], timeout: float) -> NodePodsSnapshot | None:
        with self._news:
            if not self._news.wait_for(lambda: self._whole and not self._unreadable and holds(), timeout):
                return None
            return NodePodsSnapshot(tuple(self._node_pods.values()), self._version)

    # -- what the reflector tells

    def upsert(self, item: NodePod) -> None:
        """*item* is on the node, in this state."""
        with self._news:
            self._node_pods[item.pod.ref.uid] = item
            self._unreadable.discard(item.pod.ref.uid)
            self._advance(item)

    def remove(self, item: NodePod) -> None:
        """*item* has been deleted."""
        with self._news:
            self._node_pods.pop(item.pod.ref.uid, None)
            self._unreadable.discard(item.pod.ref.uid)
            self._advance(item)

    def prune(self, seen: set[str], started: float) -> None:
        """A list is complete, and has no pods but those *seen*."""
        with self._news:
            self._node_pods = {uid: one for uid, one in self._node_pods.items() if uid in seen}
            self._unreadable &= seen
            self._whole = True
            self._news.notify_all()

    def unreadable(self, key: str, error: MalformedInput) -> None:
        """There is a pod of which nobody knows what it asks for."""
        with self._news:
            self._unreadable.add(key)

    def begin_list(self) -> None:
        """A list is asked for. Versions begin anew: it may be the first of a cluster restored from a copy."""
        with self._news:
            self._whole = False
            self._version = 0

    def _advance(self, item: NodePod) -> None:
        self._version = max(self._version, parse_resource_version(item.pod.resource_version))
        self._news.notify_all()


class _Noticed:
    """The API server, with lists noticed before they are asked for."""

    def __init__(self, api: Source, node_pods: NodePods) -> None:
        self._api = api
        self._node_pods = node_pods

    def request(self, method: str, path: str, *, query: Mapping[str, str] | None = None) -> bytes:
        self._node_pods.begin_list()
        return self._api.request(method, path, query=query)

    def stream(self, path: str, query: Mapping[str, str], *, read_timeout: float) -> Lines:
        return self._api.stream(path, query, read_timeout=read_timeout)


def _parse(data: bytes) -> NodePod:
    return NodePod(parse_pod(data), parse_environment(data)[1])
