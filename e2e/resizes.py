"""Resizes of running pods, as their owners ask for them, and what becomes of them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import urllib3

from e2e import audit
from e2e.agent import APPLIED, RESIZED, TARGET
from e2e.kube import ApiError, Kube, path_of
from e2e.nodes import LOCK_FREE
from e2e.sandbox import ALLOCATED, Sandbox

__all__ = ["ANSWERS", "APPLIED", "RESIZABLE", "RESIZE", "RESIZED", "STATUS", "TARGET", "CardWatch", "answered",
           "applied", "booked", "disagreements", "resize"]

Object = dict[str, Any]
Sizes = Mapping[str, Mapping[str, Any]]
RESIZE, STATUS = "hami.io/resize", "hami.io/resize-status"
ANSWERS = frozenset({RESIZED, TARGET, APPLIED, STATUS})
"""The annotations with which scheduler and device plugin answer."""
RESIZABLE = {**LOCK_FREE, "hami.io/node-resizes": "true"}
"""Annotations of a node whose device plugin changes the limits of running containers."""
DECIDED = ("Applied", "Deferred", "Infeasible")


def resize(sandbox: Sandbox, name: str, sizes: Sizes | str, *, kube: Kube | None = None) -> str:
    """Asks for *sizes* by container, or for a text of a user; returns the text. *kube*: the client of the owner."""
    text = sizes if isinstance(sizes, str) else json.dumps(sizes)
    patch = {"metadata": {"annotations": {RESIZE: text}}}
    (kube or sandbox.kube).merge_patch("Pod", name, patch, sandbox.namespace)
    return text


def answered(sandbox: Sandbox, name: str, text: str, *states: str, containing: str = "", timeout: float = 60) -> str:
    """Waits until the status of the pod is about *text*, in one of *states*; returns its message."""
    def found(pods: dict[str, Object]) -> Object | None:
        status: Object = json.loads((pods[name]["metadata"]["annotations"]).get(STATUS, "{}"))
        told = status.get("request") == text and status["state"] in states and containing in status.get("message", "")
        return status if told else None

    status = sandbox.kube.wait("Pod", found, sandbox.namespace, timeout=timeout,
                               what=f"{text} is {' or '.join(states)} {containing}",
                               fieldSelector=f"metadata.name={name}")
    return str(status.get("message", ""))


def booked(sandbox: Sandbox, name: str, key: str, memory: int, *, timeout: float = 60) -> None:
    """Waits until a share in the annotation *key* of the pod has so much memory in MiB."""
    sandbox.kube.wait("Pod", lambda pods: f",{memory}," in pods[name]["metadata"]["annotations"].get(key, ""),
                      sandbox.namespace, timeout=timeout, what=f"{key} of {name} says {memory}",
                      fieldSelector=f"metadata.name={name}")


def applied(sandbox: Sandbox, name: str, sizes: Sizes, *, timeout: float = 60) -> None:
    """Asks for *sizes* and waits until they are enforced."""
    answered(sandbox, name, resize(sandbox, name, sizes), "Applied", timeout=timeout)


def disagreements(sandbox: Sandbox) -> list[str]:
    """Returns pods with a resize whose annotations do not say the same; empty if all have been decided and hold."""
    wrong = []
    for item in sandbox.kube.list("Pod", sandbox.namespace):
        notes = item["metadata"].get("annotations") or {}
        status = json.loads(notes.get(STATUS, "{}"))
        sizes = json.loads(notes.get(APPLIED, "{}")).get("sizes")
        held = notes.get(RESIZED)
        if RESIZE in notes and (status.get("request") != notes[RESIZE] or status["state"] not in DECIDED
                                or TARGET in notes or sizes != held or held not in (None, notes[ALLOCATED])):
            answers = {key: notes.get(key) for key in (RESIZE, ALLOCATED, *sorted(ANSWERS))}
            wrong.append(f"{item['metadata']['name']}: {answers}")
    return wrong


class CardWatch:
    """Adds up what the pods of a sandbox hold of its cards, after each event of a watch: pods without init containers.

    *wrong*: the cards that held more than they have. *seen*: the number of events.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.wrong: list[str] = []
        self.seen = 0
        self._kube, self._namespace = sandbox.kube, sandbox.namespace
        self._cards = audit.inventory(sandbox.kube.list("Node"), ()).cards
        self._held: dict[str, Counter[tuple[str, str, str]]] = {}
        self._sums: Counter[tuple[str, str, str]] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> CardWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                page = self._kube.page("Pod", self._namespace)
                self._held.clear()
                self._sums.clear()
                for item in page["items"] or []:
                    self._see("ADDED", item)
                version = page["metadata"]["resourceVersion"]
                while not self._ended.is_set():
                    for change, item in self._kube.watch(path_of("Pod", self._namespace), version, 2):
                        version = item["metadata"]["resourceVersion"]
                        if change != "BOOKMARK":
                            self._see(change, item)
            except (ApiError, urllib3.exceptions.HTTPError):
                self._ended.wait(0.1)

    def _see(self, change: str, item: Object) -> None:
        """Takes the event of one pod into account. The events of a watch are in the order of the writes."""
        self.seen += 1
        held = Counter() if change == "DELETED" or not audit.lives(item) else amounts(item)
        name = item["metadata"]["name"]
        self._sums.subtract(self._held.pop(name, Counter()))
        self._sums.update(held)
        self._held[name] = held
        for node, uuid, what in held:
            there = getattr(self._cards[node, uuid], what)
            if self._sums[node, uuid, what] > there:
                self.wrong.append(f"at {item['metadata']['resourceVersion']}: {uuid} has {there} {what}, "
                                  f"{self._sums[node, uuid, what]} are given out")


def amounts(item: Object) -> Counter[tuple[str, str, str]]:
    """Returns what a pod holds, by node, card and amount."""
    held: Counter[tuple[str, str, str]] = Counter()
    notes, node = item["metadata"].get("annotations") or {}, item["spec"].get("nodeName")
    for entry in (entry for entries in audit.parse(notes.get(RESIZED, notes.get(ALLOCATED, ""))) for entry in entries):
        held.update({(node, entry.uuid, "memory"): entry.memory, (node, entry.uuid, "cores"): entry.cores,
                     (node, entry.uuid, "slots"): 1})
    return held if node else Counter()
