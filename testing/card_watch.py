"""Adds up what pods hold of the cards, each time that one of them changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from testing import audit
from testing.agent import RESIZED
from testing.kube import Follower, Kube
from testing.sandbox import ALLOCATED

__all__ = ["CardWatch"]

Object = dict[str, Any]


class CardWatch(Follower):
    """Adds up what pods hold of the cards, after each event of a watch.

    Use it as a context manager. It knows the nodes that exist before. It is for pods without
    devices in init containers.
    """

    def __init__(self, kube: Kube, namespace: str | None = None) -> None:
        """*namespace*: that of the pods; ``None``: all."""
        super().__init__(kube, "Pod", namespace)
        self.wrong: list[str] = []
        """The cards that held more than they have."""
        self.seen = 0
        """The number of events."""
        self._cards = audit.inventory(kube.list("Node"), ()).cards
        self._held: dict[str, Counter[tuple[str, str, str]]] = {}
        self._sums: Counter[tuple[str, str, str]] = Counter()

    def take(self, change: str, item: Object) -> None:
        if change == "LISTED":
            self._begin(item["items"] or [])
        else:
            self._see(change, item)

    def _begin(self, pods: list[Object]) -> None:
        self._held.clear()
        self._sums.clear()
        for pod in pods:
            self._see("ADDED", pod)

    def _see(self, change: str, pod: Object) -> None:
        """Takes the event of one pod into account."""
        self.seen += 1
        held: Counter[tuple[str, str, str]] = Counter()
        if change != "DELETED" and audit.lives(pod):
            held = amounts(pod)
        uid = pod["metadata"]["uid"]
        self._sums.subtract(self._held.pop(uid, Counter()))
        self._sums.update(held)
        self._held[uid] = held
        for node, card, what in held:
            if objection := self._objection(node, card, what):
                self.wrong.append(f"at {pod['metadata']['resourceVersion']}: {objection}")

    def _objection(self, node: str, card: str, what: str) -> str:
        """Returns why a card cannot have given out so much *what*; empty if it can."""
        if (node, card) not in self._cards:
            return f"{node} has no {card}"
        capacity = getattr(self._cards[node, card], what)
        given_out = self._sums[node, card, what]
        if given_out > capacity:
            return f"{card} has {capacity} {what}, {given_out} are given out"
        return ""


def amounts(pod: Object) -> Counter[tuple[str, str, str]]:
    """Returns what a pod holds, by node, card and amount."""
    held: Counter[tuple[str, str, str]] = Counter()
    node = pod["spec"].get("nodeName")
    if not node:
        return held
    notes = pod["metadata"].get("annotations") or {}
    for entries in audit.parse(notes.get(RESIZED, notes.get(ALLOCATED, ""))):
        for entry in entries:
            held[node, entry.uuid, "memory"] += entry.memory
            held[node, entry.uuid, "cores"] += entry.cores
            held[node, entry.uuid, "slots"] += 1
    return held
