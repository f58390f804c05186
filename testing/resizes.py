"""Resizes of running pods, as their owners ask for them, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from testing.agent import APPLIED, RESIZED, TARGET
from testing.eventually import PATIENCE_S
from testing.kube import Kube
from testing.nodes import LOCK_FREE
from testing.sandbox import ALLOCATED, Sandbox

__all__ = [
    "ANSWERS",
    "APPLIED",
    "RESIZABLE",
    "RESIZE",
    "RESIZED",
    "STATUS",
    "TARGET",
    "answered",
    "applied",
    "booked",
    "disagreements",
    "resize",
]

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


def answered(
    sandbox: Sandbox,
    name: str,
    text: str,
    *states: str,
    containing: str = "",
    timeout: float = PATIENCE_S,
) -> str:
    """Waits until the status of the pod is about *text*, in one of *states*; returns its message."""

    def found(pods: dict[str, Object]) -> Object | None:
        status: Object = json.loads((pods[name]["metadata"]["annotations"]).get(STATUS, "{}"))
        told = (
            status.get("request") == text
            and status["state"] in states
            and containing in status.get("message", "")
        )
        return status if told else None

    status = sandbox.kube.wait(
        "Pod",
        found,
        sandbox.namespace,
        timeout=timeout,
        what=f"{text} is {' or '.join(states)} {containing}",
        fieldSelector=f"metadata.name={name}",
    )
    return str(status.get("message", ""))


def booked(
    sandbox: Sandbox, name: str, key: str, memory: int, *, timeout: float = PATIENCE_S
) -> None:
    """Waits until a share in the annotation *key* of the pod has so much memory in MiB."""
    sandbox.kube.wait(
        "Pod",
        lambda pods: f",{memory}," in pods[name]["metadata"]["annotations"].get(key, ""),
        sandbox.namespace,
        timeout=timeout,
        what=f"{key} of {name} says {memory}",
        fieldSelector=f"metadata.name={name}",
    )


def applied(sandbox: Sandbox, name: str, sizes: Sizes, *, timeout: float = PATIENCE_S) -> None:
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
        if RESIZE in notes and (
            status.get("request") != notes[RESIZE]
            or status["state"] not in DECIDED
            or TARGET in notes
            or sizes != held
            or held not in (None, notes[ALLOCATED])
        ):
            answers = {key: notes.get(key) for key in (RESIZE, ALLOCATED, *sorted(ANSWERS))}
            wrong.append(f"{item['metadata']['name']}: {answers}")
    return wrong
