"""Simulates the device plugins of all vendors on all fake nodes, in one process.

The agent registers devices and answers handshakes like old plugins, or not at all like new ones. When the kubelet would
call Allocate, because a pod is bound and its ``bind-phase`` is ``allocating``, the agent waits, empties the to-allocate
annotation, sets ``bind-phase=success`` and releases the lock of the node. That takes two requests for each pod, three
if the node has changed. Like the real plugin it serves the pod that the lock names. The scheduler must ensure that this
is the pod that the kubelet starts; ``surprises`` lists the exceptions.

Where a pod has been resized, the agent writes back what it is to have, as a plugin does once that is enforced.

Plugins of other vendors that use this lock do the same. Cambricon's plugin does not know HAMi: it sets
``CAMBRICON_DSMLU_ASSIGNED=true`` and removes its own lock, which contains only a time. The others write nothing.
``python -m testing.agent --kubeconfig FILE`` runs the agent alone.
"""

from __future__ import annotations

import argparse
import enum
import heapq
import itertools
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import urllib3

from hami.errors import ClusterError
from hami.kube.api import Api
from testing import interrupts
from testing.kube import ApiError, Kube
from testing.nodes import REGISTER
from testing.vendors import MLU_ASSIGNED, MLU_LOCK, MUTEX, PHASE, VENDORS

__all__ = ["Mishap", "NodeAgent"]

log = logging.getLogger(__name__)

Object = dict[str, Any]
HANDSHAKE = "hami.io/node-handshake"
RESIZED, TARGET, APPLIED = (
    "hami.io/vgpu-devices-resized",
    "hami.io/vgpu-devices-target",
    "hami.io/resize-applied",
)
LOCK_OF = {vendor.allocated: vendor.lock for vendor in VENDORS if vendor.lock}
TO_ALLOCATE = {vendor.to_allocate for vendor in VENDORS if vendor.lock == MUTEX}
FAKE = "kwok.x-k8s.io/node"
BOUND = {"fieldSelector": "spec.nodeName!="}


class Mishap(enum.Enum):
    """Failures of a node agent while a pod holds ``hami.io/mutex.lock``."""

    FAILS = "bind-phase=failed, lock released"
    DIES_BEFORE = "nothing is written at all"
    DIES_HALFWAY = "devices consumed, bind-phase still allocating, lock kept"
    DIES_UNLOCKED = "bind-phase=success, lock kept"


class NodeAgent:
    """The device plugins of all fake nodes. Call ``start`` and ``stop``, or use it as a context manager.

    *delay*: seconds from the bind to Allocate. *answers_handshake*: writes ``Reported …`` like old plugins.
    *register_every*: seconds between checks of the register annotation. *mishap* returns the failure for a pod, given
    its namespace and name. *confirms* likewise reports whether a resize holds on the node: whether the plugin has
    enforced it, and the pod uses no more.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        delay: float = 0.02,
        workers: int = 8,
        answers_handshake: bool = False,
        register_every: float = 30,
    ) -> None:
        self.kube = kube
        self.delay = delay
        self.answers_handshake = answers_handshake
        self.register_every = register_every
        self.mishap: Callable[[str, str], Mishap | None] = lambda namespace, name: None
        self.confirms: Callable[[str, str], bool] = lambda namespace, name: True
        self.surprises: list[str] = []
        self.served = 0
        self._workers = workers
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._changed = threading.Condition()
        self._nodes: dict[str, Object] = {}
        self._inventories: dict[str, str] = {}
        self._pods: dict[str, Object] = {}
        self._due: list[tuple[float, int, str]] = []
        self._resized: dict[str, Object] = {}
        self._taken: set[str] = set()
        self._sequence = itertools.count()

    # -- life

    def start(self) -> NodeAgent:
        loops = [
            ("nodes", lambda: self._follow("Node", {}, self._see_nodes, self._see_node)),
            ("pods", lambda: self._follow("Pod", BOUND, self._see_pods, self._see_pod)),
            ("register", self._register),
            ("resize", self._confirm),
            *((f"allocate-{number}", self._allocate) for number in range(self._workers)),
        ]
        self._ended.clear()
        self._threads = [
            threading.Thread(target=target, name=f"agent-{name}", daemon=True)
            for name, target in loops
        ]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        self._ended.set()
        self._running.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=5)

    def __enter__(self) -> NodeAgent:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def pause(self) -> None:
        """Stops all plugins: they allocate, register and answer nothing."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def reset(self) -> None:
        """Returns to the initial behavior, without failures."""
        self.mishap = lambda namespace, name: None
        self.confirms = lambda namespace, name: True
        self.delay = 0.02
        self.answers_handshake = False
        self.surprises.clear()
        self.resume()

    # -- reading

    def _follow(
        self,
        kind: str,
        query: Object,
        relisted: Callable[[list[Object]], None],
        seen: Callable[[str, Object], None],
    ) -> None:
        """Lists and watches until the end; lists again after a broken watch."""
        for change, item in self.kube.follow(kind, self._ended, **query):
            if change == "LISTED":
                relisted(item["items"] or [])
            else:
                seen(change, item)

    def _see_nodes(self, nodes: list[Object]) -> None:
        with self._changed:
            self._nodes = {node["metadata"]["name"]: node for node in nodes if is_fake(node)}
        for node in nodes:
            self._see_node("ADDED", node)

    def _see_node(self, change: str, node: Object) -> None:
        name = node["metadata"]["name"]
        if change == "DELETED":
            with self._changed:
                self._nodes.pop(name, None)
                self._inventories.pop(name, None)
            return
        if not is_fake(node):
            return
        with self._changed:
            self._nodes[name] = node
            if text := annotations(node).get(REGISTER):
                self._inventories.setdefault(name, text)
        if (
            self.answers_handshake
            and self._running.is_set()
            and "Requesting" in annotations(node).get(HANDSHAKE, "")
        ):
            self._report(name)

    def _see_pods(self, pods: list[Object]) -> None:
        with self._changed:  # at once: a worker that finds no pod takes it for deleted
            self._pods, self._resized = {}, {}
            self._taken &= {pod["metadata"]["uid"] for pod in pods}
            for pod in pods:
                self._expect(pod)

    def _see_pod(self, change: str, pod: Object) -> None:
        with self._changed:
            if change == "DELETED":
                self._pods.pop(pod["metadata"]["uid"], None)
                self._resized.pop(pod["metadata"]["uid"], None)
                self._taken.discard(pod["metadata"]["uid"])
            else:
                self._expect(pod)

    def _expect(self, pod: Object) -> None:
        """Queues a pod that the kubelet would start now, once, and one that is resized. The caller holds the lock."""
        uid = pod["metadata"]["uid"]
        self._resized.pop(uid, None)
        if (answer := applied(pod)) is not None and annotations(pod).get(APPLIED) != answer:
            self._resized[uid] = pod
        if annotations(pod).get(PHASE) == "allocating" and awaited(pod):
            self._pods[uid] = pod
            if uid not in self._taken:
                self._taken.add(uid)
                heapq.heappush(
                    self._due, (time.monotonic() + self.delay, next(self._sequence), uid)
                )
                self._changed.notify()

    # -- allocating

    def _allocate(self) -> None:
        while (uid := self._next()) is not None:
            with self._changed:
                pod = self._pods.pop(uid, None)
            if pod is None:
                continue  # deleted meanwhile
            node = pod["spec"]["nodeName"]
            if node not in self._nodes and self._lock_of(node) is None:
                continue  # not ours
            try:
                locks = awaited(pod)
                if MLU_LOCK in locks:
                    self._serve_mlu(pod)
                if MUTEX in locks:
                    self._serve(pod)
            except (ApiError, urllib3.exceptions.HTTPError) as error:
                if getattr(error, "status", None) == 404:
                    continue
                log.info("%s: %s; again", pod["metadata"]["name"], error)
                with self._changed:  # retry, as the kubelet does
                    self._pods.setdefault(uid, pod)
                    heapq.heappush(self._due, (time.monotonic() + 0.2, next(self._sequence), uid))

    def _next(self) -> str | None:
        """Returns the pod that is due; ``None`` at the end."""
        with self._changed:
            while not self._ended.is_set():
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    uid = heapq.heappop(self._due)[2]
                    break
                self._changed.wait(wait)
            else:
                return None
        self._running.wait()
        return None if self._ended.is_set() else uid

    def _serve(self, pod: Object) -> None:
        meta, node = pod["metadata"], pod["spec"]["nodeName"]
        namespace, name = meta["namespace"], meta["name"]
        lock = annotations(self._nodes.get(node, {})).get(MUTEX) or ""
        if holder(lock) != (namespace, name):
            lock = self._lock_of(node) or ""  # the event of the pod may precede that of the node
        if holder(lock) != (namespace, name):
            if has_ended(self.kube.find("Pod", name, namespace)):
                return  # kwok terminates the pods of a Job at once, which releases their locks
            self.surprises.append(
                f"pod {namespace}/{name} starts on {node}, but the lock contains {lock!r}"
            )
        mishap = self.mishap(namespace, name)
        if mishap is Mishap.DIES_BEFORE:
            return
        consumed = {
            key: emptied(text) for key, text in annotations(pod).items() if key in TO_ALLOCATE
        }
        phase = {Mishap.FAILS: {PHASE: "failed"}, Mishap.DIES_HALFWAY: {}}.get(
            mishap, {PHASE: "success"}
        )
        written = phase if mishap is Mishap.FAILS else consumed | phase
        self.kube.merge_patch(
            "Pod", name, {"metadata": {"uid": meta["uid"], "annotations": written}}, namespace
        )
        self.served += 1
        if mishap not in (Mishap.DIES_HALFWAY, Mishap.DIES_UNLOCKED):
            self._release(node, namespace, name)

    def _serve_mlu(self, pod: Object) -> None:
        """Acts as Cambricon's plugin: allocates what the profile says, and removes the lock regardless of
        its holder."""
        meta, node = pod["metadata"], pod["spec"]["nodeName"]
        if self._lock_of(node, MLU_LOCK) == "":
            self.surprises.append(
                f"pod {meta['namespace']}/{meta['name']} is being started on {node} without MLU lock"
            )
        self.kube.merge_patch(
            "Pod",
            meta["name"],
            {"metadata": {"uid": meta["uid"], "annotations": {MLU_ASSIGNED: "true"}}},
            meta["namespace"],
        )
        self.served += 1
        self.kube.merge_patch("Node", node, {"metadata": {"annotations": {MLU_LOCK: None}}})

    def _release(self, node: str, namespace: str, name: str) -> None:
        """Removes the lock by compare-and-swap if the pod holds it."""
        known = self._nodes.get(node) or self.kube.get("Node", node)
        for _ in range(10):
            if holder(annotations(known).get(MUTEX, "")) == (namespace, name):
                version = known["metadata"]["resourceVersion"]
                patch = {"metadata": {"resourceVersion": version, "annotations": {MUTEX: None}}}
                try:
                    self.kube.merge_patch("Node", node, patch)
                    return
                except ApiError as error:
                    if error.status == 404:
                        return
                    if error.status != 409:
                        raise
            known = self.kube.find("Node", node)
            if known is None or holder(annotations(known).get(MUTEX, "")) != (namespace, name):
                return

    def _lock_of(self, node: str, key: str = MUTEX) -> str | None:
        """Returns the current lock of the node, empty without one; ``None`` for a node that is gone or not fake."""
        found = self.kube.find("Node", node)
        return annotations(found).get(key, "") if found is not None and is_fake(found) else None

    # -- resizing

    def _confirm(self) -> None:
        while not self._ended.wait(0.05):
            with self._changed:
                due = list(self._resized.items()) if self._running.is_set() else []
            for uid, pod in due:
                if pod["spec"]["nodeName"] not in self._nodes or not self.confirms(*name_of(pod)):
                    continue
                try:
                    self._write_applied(pod)
                except (ApiError, urllib3.exceptions.HTTPError) as error:
                    if getattr(error, "status", None) not in (404, 409):
                        log.info("%s: %s; again", name_of(pod), error)
                        continue
                with self._changed:
                    if self._resized.get(uid) is pod:
                        del self._resized[uid]

    def _write_applied(self, pod: Object) -> None:
        """Confirms what this version of the pod is to have; a newer one is not confirmed by that."""
        namespace, name = name_of(pod)
        self.kube.merge_patch(
            "Pod",
            name,
            {
                "metadata": {
                    "resourceVersion": pod["metadata"]["resourceVersion"],
                    "annotations": {APPLIED: applied(pod)},
                }
            },
            namespace,
        )

    # -- registering

    def _register(self) -> None:
        while not self._ended.wait(self.register_every):
            for name, node in list(self._nodes.items()):
                if self._running.is_set() and not self._ended.is_set():
                    if REGISTER not in annotations(node) and name in self._inventories:
                        self._annotate(name, {REGISTER: self._inventories[name]})
                    if self.answers_handshake:
                        self._report(name)

    def _report(self, node: str) -> None:
        now = datetime.now(UTC)
        self._annotate(
            node,
            {
                HANDSHAKE: f"Reported {now:%Y-%m-%d %H:%M:%S.%f}000 +0000 UTC m=+{time.monotonic():.9f}"
            },
        )

    def _annotate(self, node: str, values: dict[str, str]) -> None:
        try:
            self.kube.merge_patch("Node", node, {"metadata": {"annotations": values}})
        except (ApiError, urllib3.exceptions.HTTPError) as error:
            log.info("node %s: %s", node, error)


def annotations(item: Object) -> dict[str, str]:
    return item.get("metadata", {}).get("annotations") or {}


def name_of(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def applied(pod: Object) -> str | None:
    """Returns the answer of a plugin that enforces what a resized pod is to have; ``None``: it is not resized."""
    sizes = annotations(pod).get(TARGET, annotations(pod).get(RESIZED))
    return sizes and json.dumps({"sizes": sizes})


def is_fake(node: Object) -> bool:
    return annotations(node).get(FAKE) == "fake"


def has_ended(pod: Object | None) -> bool:
    """Reports whether the pod is gone or terminated, so that no kubelet starts it."""
    return pod is None or pod["status"].get("phase") in ("Succeeded", "Failed")


def awaited(pod: Object) -> set[str]:
    """Returns the locks under which *pod* has devices that are not allocated yet."""
    notes = annotations(pod)
    locks = {lock for key, lock in LOCK_OF.items() if key in notes}
    return locks - {MLU_LOCK} if notes.get(MLU_ASSIGNED) == "true" else locks


def holder(lock: str) -> tuple[str, str] | None:
    """Returns namespace and name of the pod in a lock."""
    parts = lock.split(",")
    return (parts[1], parts[2]) if len(parts) == 3 else None


def emptied(text: str) -> str:
    """Returns a to-allocate value whose containers have all been served."""
    return re.sub(r"[^;]", "", text)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m testing.agent", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument(
        "--delay", type=float, default=0.02, metavar="SECONDS", help="from bind to Allocate"
    )
    parser.add_argument(
        "--answers-handshake", action="store_true", help="write Reported, as plugins up to v2.7 do"
    )
    arguments = parser.parse_args()
    try:
        Api.connect(kubeconfig=str(arguments.kubeconfig))
    except ClusterError as error:
        parser.error(str(error))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    with NodeAgent(
        Kube(arguments.kubeconfig),
        delay=arguments.delay,
        answers_handshake=arguments.answers_handshake,
    ):
        interrupts.wait()
    return 0


if __name__ == "__main__":
    sys.exit(interrupts.run(main))
