"""A node with a kubelet, whoever brought it up, and what a test does with it by the API server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from e2e.eventually import WaitTimeout
from e2e.kube import Kube
from e2e.sandbox import LABEL, Sandbox, schedulable

__all__ = ["JoinedNode", "NodeUnavailable"]

Object = dict[str, Any]


class NodeUnavailable(RuntimeError):
    """There can be no such node here, or it did not come up; the text says why."""


class JoinedNode:
    """One node with a kubelet."""

    def __init__(self, kube: Kube, name: str) -> None:
        self.kube = kube
        self.name = name

    def node(self) -> Object:
        """The node's object."""
        return self.kube.get("Node", self.name)

    def wait_node(self, holds: Callable[[Object], Any], *, timeout: float = 60, what: str = "") -> Any:
        """Wait until *holds*, given the node's object, returns something true, and return that."""
        return self.kube.wait("Node", lambda nodes: self.name in nodes and holds(nodes[self.name]), timeout=timeout,
                              what=f"node {self.name}: {what}", fieldSelector=f"metadata.name={self.name}")

    def wait_ready(self, timeout: float = 90) -> None:
        """Wait until the API server has the node as Ready, and without taints."""
        try:
            self.wait_node(schedulable, timeout=timeout, what="Ready")
        except WaitTimeout as error:
            raise NodeUnavailable(f"{error}\n{self.logs()}") from None

    def allocatable(self, resource: str) -> int:
        """How much of *resource* the kubelet offers; 0 when it does not know it."""
        return int(self.node()["status"].get("allocatable", {}).get(resource, 0))

    def wait_allocatable(self, resource: str, amount: int, *, timeout: float = 60) -> None:
        """Wait until the kubelet offers exactly *amount* of *resource*."""
        self.wait_node(lambda node: node["status"].get("allocatable", {}).get(resource) == str(amount),
                       timeout=timeout, what=f"offers {amount} {resource}")

    @contextlib.contextmanager
    def lent(self, sandbox: Sandbox) -> Iterator[None]:
        """The node is *sandbox*'s alone; at the end none of its containers is left."""
        self.kube.merge_patch("Node", self.name, {"metadata": {"labels": {LABEL: sandbox.namespace}}})
        try:
            yield
        finally:
            self.revive()
            self.kube.delete_all("Pod", sandbox.namespace, grace_seconds=0)
            self.settle()
            self.kube.merge_patch("Node", self.name, {"metadata": {"labels": {LABEL: None}}})

    def revive(self) -> None:
        """See that the kubelet runs."""

    def settle(self) -> None:
        """Wait until the containers of pods that are gone have ended."""

    def logs(self, size: int = 3000) -> str:
        """The end of the logs of the node's programs, where they can be read."""
        return ""
