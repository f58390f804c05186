"""The watches of a whole cluster: nodes, pods and quotas, each passed to a sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hami.codec.objects import parse_namespace, parse_node, parse_quota
from hami.codec.pods import parse_pod
from hami.errors import ClusterError
from hami.kube.api import Api
from hami.kube.reflector import Reflector, Sink, WatchedResource
from hami.model import Namespace, Node, Pod, QuotaLimits

STALE_S = 120.0  # without an answer of the API server for this long, a cache is stale
RELIST_TIMEOUT_S = 30.0


class Watches:
    """The reflectors. Nodes are listed before pods, which hold devices of nodes.

    *node_selector*: a label selector, which the API server evaluates; empty for all nodes.
    """

    def __init__(
        self,
        api: Api,
        *,
        nodes: Sink[Node],
        pods: Sink[Pod],
        quotas: Sink[QuotaLimits] | None,
        node_selector: str,
    ) -> None:
        """*quotas*: ``None``: they are not watched."""
        selector = {"labelSelector": node_selector} if node_selector else {}
        of_nodes = Reflector(
            api,
            WatchedResource(
                name="nodes",
                path="/api/v1/nodes",
                parse=parse_node,
                key=lambda node: node.name,
                query=selector,
            ),
            nodes,
        )
        of_pods = self._pods = Reflector(
            api,
            WatchedResource(
                name="pods", path="/api/v1/pods", parse=parse_pod, key=lambda pod: pod.ref.uid
            ),
            pods,
            after=of_nodes,
        )
        self.tasks: tuple[Reflector[Any], ...] = (of_nodes, of_pods)
        if quotas is None:
            return
        of_quotas = Reflector(
            api,
            WatchedResource(
                name="resourcequotas",
                path="/api/v1/resourcequotas",
                parse=parse_quota,
                key=lambda quota: quota.uid,
            ),
            quotas,
        )
        self.tasks += (of_quotas,)

    def catch_up(self, *, relist: bool) -> None:
        """Returns when the cache has been filled. *relist*: reads nodes and pods again. Raises: ClusterError."""
        if not self.is_synced(RELIST_TIMEOUT_S):
            raise ClusterError("the caches have not been filled yet")
        for reflector in self.tasks[:2] if relist else ():
            reflector.relist(RELIST_TIMEOUT_S)

    def is_synced(self, timeout: float = 0.0) -> bool:
        """Reports whether the cache has been filled. Waits for that at most *timeout* seconds for each resource."""
        return all(reflector.synced.wait(timeout) for reflector in self.tasks)

    def is_watching_pods(self) -> bool:
        """Reports whether the changes of pods are known at once."""
        return self._pods.is_connected

    def ages(self) -> Mapping[str, Callable[[], float]]:
        """Returns functions that return the seconds since the API server's last answer, by resource."""
        return {reflector.name: reflector.age for reflector in self.tasks}

    def unready_reason(self) -> str | None:
        """Returns why the cache cannot be relied on; ``None`` if it can."""
        for reflector in self.tasks:
            if not reflector.synced.is_set():
                return f"{reflector.name} have not been read yet"
            if reflector.age() > STALE_S:
                return f"no answer of the API server about {reflector.name} for {reflector.age():.0f} s"
        return None


def watch_namespaces(api: Api, sink: Sink[Namespace]) -> Reflector[Namespace]:
    """Returns the reflector of namespaces. Nobody waits for it: placing needs none."""
    return Reflector(
        api,
        WatchedResource(
            name="namespaces",
            path="/api/v1/namespaces",
            parse=parse_namespace,
            key=lambda namespace: namespace.name,
        ),
        sink,
    )
