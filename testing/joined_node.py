"""A node with a kubelet, as a test uses it through the API server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from testing.eventually import PATIENCE_S, WaitTimeout
from testing.kube import Kube
from testing.sandbox import LABEL, Sandbox, schedulable

__all__ = ["JoinedNode", "NodeUnavailable"]

Object = dict[str, Any]


class NodeUnavailable(RuntimeError):
    """The node cannot exist here or did not start; the message contains the reason."""


class JoinedNode:
    """One node with a kubelet."""

    def __init__(self, kube: Kube, name: str) -> None:
        self.kube = kube
        self.name = name

    def node(self) -> Object:
        """Returns the object of the node."""
        return self.kube.get("Node", self.name)

    def wait_node(
        self, holds: Callable[[Object], Any], *, timeout: float = PATIENCE_S, what: str = ""
    ) -> Any:
        """Waits until *holds*, given the object of the node, returns something true, and returns that."""
        return self.kube.wait(
            "Node",
            lambda nodes: self.name in nodes and holds(nodes[self.name]),
            timeout=timeout,
            what=f"node {self.name}: {what}",
            fieldSelector=f"metadata.name={self.name}",
        )

    def wait_ready(self, timeout: float = PATIENCE_S) -> None:
        """Waits until the node is Ready and has no taints."""
        try:
            self.wait_node(schedulable, timeout=timeout, what="Ready")
        except WaitTimeout as error:
            raise NodeUnavailable(f"{error}\n{self.logs()}") from None

    def allocatable(self, resource: str) -> int:
        """Returns the amount of *resource* that the kubelet offers; 0 if it does not know it."""
        return int(self.node()["status"].get("allocatable", {}).get(resource, 0))

    def wait_allocatable(self, resource: str, amount: int, *, timeout: float = PATIENCE_S) -> None:
        """Waits until the kubelet offers exactly *amount* of *resource*."""
        self.wait_node(
            lambda node: node["status"].get("allocatable", {}).get(resource) == str(amount),
            timeout=timeout,
            what=f"offers {amount} {resource}",
        )

    def lend(self, sandbox: Sandbox) -> None:
        """Reserves the node for *sandbox*."""
        self.kube.merge_patch(
            "Node", self.name, {"metadata": {"labels": {LABEL: sandbox.namespace}}}
        )

    @contextlib.contextmanager
    def lent(self, sandbox: Sandbox) -> Iterator[None]:
        """Reserves the node for *sandbox*, and waits at the end until its containers have ended."""
        self.lend(sandbox)
        try:
            yield
        finally:
            self.revive()
            self.kube.delete_all("Pod", sandbox.namespace, grace_seconds=0)
            self.settle()
            self.kube.merge_patch("Node", self.name, {"metadata": {"labels": {LABEL: None}}})

    def revive(self) -> None:
        """Starts the kubelet if it does not run."""

    def settle(self) -> None:
        """Waits until the containers of deleted pods have ended."""

    def logs(self, size: int = 3000) -> str:
        """Returns the end of the logs of the node's programs, if they can be read."""
        return ""
