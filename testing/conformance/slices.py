"""Which pods of the tests were bound, and which of these have a slice of a GPU."""

from __future__ import annotations

import threading
from typing import Any

from testing.eventually import eventually
from testing.kube import Follower, Kube
from testing.sandbox import ALLOCATED

__all__ = ["SliceWatch", "is_of_test"]

Object = dict[str, Any]
SYSTEM = {"default", "kube-node-lease", "kube-public", "kube-system"}
"""Namespaces that are not of a test; pods there get no slice."""


def is_of_test(pod: Object) -> bool:
    """Reports whether a test has created the pod, in a namespace of its own."""
    return pod["metadata"]["namespace"] not in SYSTEM


class SliceWatch(Follower):
    """Follows the pods of the tests. Use it as a context manager."""

    def __init__(self, kube: Kube) -> None:
        super().__init__(kube, "Pod")
        self._lock = threading.Lock()  # guards the next three
        self._bound: dict[str, str] = {}  # pods by uid, also of earlier tests
        self._with_slice: set[str] = set()
        self._present: set[str] = set()

    def settle(self) -> None:
        """Waits until the watch has shown that the pods of the last test are gone."""
        eventually(lambda: not self._present, "the watch has shown all changes of pods")

    def bound(self) -> int:
        """Returns the number of pods that have been bound."""
        with self._lock:
            return len(self._bound)

    def without_slice(self) -> list[str]:
        """Returns the bound pods that hold nothing, as namespace/name."""
        with self._lock:
            return sorted(self._bound[uid] for uid in self._bound.keys() - self._with_slice)

    def take(self, change: str, item: Object) -> None:
        with self._lock:
            if change == "LISTED":
                self._present.clear()
                for pod in item["items"] or []:
                    self._see("ADDED", pod)
            else:
                self._see(change, item)

    def _see(self, change: str, pod: Object) -> None:
        """Takes an event of a pod into account. The caller holds the lock."""
        if not is_of_test(pod):
            return
        meta = pod["metadata"]
        uid = meta["uid"]
        if change == "DELETED":
            self._present.discard(uid)
        else:
            self._present.add(uid)
        if not pod["spec"].get("nodeName"):
            return
        self._bound[uid] = f"{meta['namespace']}/{meta['name']}"
        if ALLOCATED in (meta.get("annotations") or {}):
            self._with_slice.add(uid)
