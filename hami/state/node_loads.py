"""Pods that hold no devices, and what they leave of their nodes' CPU and memory for pods with devices."""

from __future__ import annotations

import functools
from collections.abc import Collection

from hami.model import Pod
from hami.scheduling.node_resources import NOTHING, NodeResources, requested
from hami.state.table import Table

MAX_SHARED = 4096
"""Different amounts that are remembered: most pods of a cluster request the same few."""
_NOT_KNOWN = ""  # the uid of pods that are not known one by one


class NodeLoads:
    """Tells *table* what nodes have for pods with devices, beside what the other pods on them request.

    Who changes it holds the lock of the store. Pods of nodes that are not known are left out.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self.pods: dict[str, dict[str, NodeResources]] = {}
        """What each requests, by node and uid."""
        self._shared = functools.lru_cache(MAX_SHARED)(_same)  # equal ones are one object

    def set_allocatable(self, node: str, resources: NodeResources | None) -> None:
        """Sets what *node* has for pods; ``None``: it is gone, with its pods."""
        allocatable = self._table.allocatable
        if resources is None:
            self._table.set_left(node, None)
            allocatable.pop(node, None)
            self.pods.pop(node, None)
            return
        earlier = allocatable.get(node)
        if earlier != resources:
            allocatable[node] = resources
            self._leave(node, resources - (earlier or NOTHING))

    def put(self, pod: Pod) -> None:
        """Notes a version of *pod*, which holds no devices."""
        if pod.node_name not in self._table.allocatable:
            return
        if pod.is_terminated:
            self.remove(pod)
            return
        self._set(pod.node_name, pod.ref.uid, self._shared(requested(pod)))

    def put_sum(self, node: str, resources: NodeResources) -> None:
        """Notes what pods of *node* request together that are not known one by one."""
        if node in self._table.allocatable:
            self._set(node, _NOT_KNOWN, resources)

    def _set(self, node: str, uid: str, resources: NodeResources) -> None:
        pods = self.pods.setdefault(node, {})
        earlier = pods.get(uid)
        if earlier != resources:
            pods[uid] = resources
            self._leave(node, (earlier or NOTHING) - resources)

    def remove(self, pod: Pod) -> None:
        """Forgets *pod*, which has ended."""
        self.drop(pod.node_name, pod.ref.uid)

    def drop(self, node: str, uid: str) -> None:
        """Forgets a pod that was on *node*, if it was known: it has ended, or counts with the devices that it holds."""
        earlier = self.pods.get(node, {}).pop(uid, None)
        if earlier is not None:
            self._leave(node, earlier)

    def prune(self, seen: Collection[str]) -> None:
        """Forgets the pods that are not in a complete list."""
        for node, pods in self.pods.items():
            gone = [uid for uid in pods if uid not in seen]
            for uid in gone:
                self._leave(node, pods.pop(uid))

    def _leave(self, node: str, more: NodeResources) -> None:
        self._table.set_left(node, self._table.left.get(node, NOTHING) + more)


def _same(resources: NodeResources) -> NodeResources:
    return resources
