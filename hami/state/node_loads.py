"""Pods without devices, and what they leave of their nodes' CPU and memory for pods with devices."""

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
        self._allocatable: dict[str, NodeResources] = {}
        self._pods: dict[str, dict[str, NodeResources]] = {}  # by node, then by uid
        self._shared = functools.lru_cache(MAX_SHARED)(_same)  # equal ones are one object

    def set_allocatable(self, node: str, resources: NodeResources | None) -> None:
        """Sets what *node* has for pods; ``None``: it is gone, with its pods."""
        if resources is None:
            self._table.set_left(node, None)
            self._allocatable.pop(node, None)
            self._pods.pop(node, None)
            return
        earlier = self._allocatable.get(node, NOTHING)
        if earlier != resources or node not in self._allocatable:
            self._allocatable[node] = resources
            self._leave(node, resources - earlier)

    def put(self, pod: Pod) -> None:
        """Notes a version of *pod*, which requests no devices."""
        if pod.node_name not in self._allocatable:
            return
        if pod.is_terminated:
            self.remove(pod)
            return
        self._set(pod.node_name, pod.ref.uid, self._shared(requested(pod)))

    def put_sum(self, node: str, resources: NodeResources) -> None:
        """Notes what pods of *node* request together that are not known one by one."""
        if node in self._allocatable:
            self._set(node, _NOT_KNOWN, resources)

    def _set(self, node: str, uid: str, resources: NodeResources) -> None:
        pods = self._pods.setdefault(node, {})
        earlier = pods.get(uid)
        if earlier != resources:
            pods[uid] = resources
            self._leave(node, (earlier or NOTHING) - resources)

    def remove(self, pod: Pod) -> None:
        """Forgets *pod*, which has ended."""
        earlier = self._pods.get(pod.node_name, {}).pop(pod.ref.uid, None)
        if earlier is not None:
            self._leave(pod.node_name, earlier)

    def prune(self, seen: Collection[str]) -> None:
        """Forgets the pods that are not in a complete list."""
        for node, pods in self._pods.items():
            gone = [uid for uid in pods if uid not in seen]
            for uid in gone:
                self._leave(node, pods.pop(uid))

    def _leave(self, node: str, more: NodeResources) -> None:
        self._table.set_left(node, self._table.left.get(node, NOTHING) + more)


def _same(resources: NodeResources) -> NodeResources:
    return resources
