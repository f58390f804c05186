"""An isolated part of the cluster for one test: a namespace, and nodes that only its pods may use.

Tests use short names of nodes and devices; the sandbox prefixes them in the cluster.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import urllib3

from hami.codec.keys import ASSIGNED_NODE
from testing import audit
from testing.eventually import PATIENCE_S, WaitTimeout, eventually
from testing.kube import ApiError, Kube
from testing.nodes import REGISTER, Gpu, fake_node, gpu, register_text, registered
from testing.vendor_nodes import Outfit, vendor_node
from testing.vendors import MLU_ASSIGNED, MLU_LOCK, MUTEX, PHASE, VENDORS

__all__ = ["Sandbox", "Share"]

Object = dict[str, Any]
LABEL = "hami-e2e/sandbox"
ALLOCATED = "hami.io/vgpu-devices-allocated"


class Share(NamedTuple):
    """A part of a device that a container holds."""

    card: str
    memory_mib: int
    cores: int


class Sandbox:
    """A namespace and its nodes. Use ``Sandbox.opened(kube)``."""

    def __init__(self, kube: Kube, name: str) -> None:
        self.kube = kube
        self.namespace = name
        self._prefix = f"{name}-"
        self._nodes: dict[str, tuple[Gpu, ...]] = {}

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls,
        kube: Kube,
        *,
        labels: Mapping[str, str] | None = None,
        name: str = "t",
        keeps_namespace: bool = False,
    ) -> Iterator[Sandbox]:
        """Yields a new sandbox. *keeps_namespace*: a namespace in which only pods were created is left behind, empty.

        To delete one, the controller manager lists and deletes each of forty types, which takes as much CPU time as a
        short test. A cluster that ends with the tests can do without.
        """
        sandbox = cls(kube, f"{name}-{secrets.token_hex(3)}")
        sandbox._open(labels or {})
        try:
            yield sandbox
        finally:
            is_left = keeps_namespace and not sandbox.has_lasting_objects()
            sandbox.empty()
            if not is_left:
                kube.delete("Namespace", sandbox.namespace)

    @classmethod
    def created(cls, kube: Kube, *, name: str) -> Sandbox:
        """Returns a new sandbox that ends with its cluster."""
        sandbox = cls(kube, f"{name}-{secrets.token_hex(3)}")
        sandbox._open({})
        return sandbox

    def _open(self, labels: Mapping[str, str]) -> None:
        self.kube.create(named("Namespace", self.namespace, labels=dict(labels)))
        with contextlib.suppress(ApiError):  # the controller manager has created it
            self.kube.create(named("ServiceAccount", "default"), self.namespace)

    def has_lasting_objects(self) -> bool:
        """Reports whether later tests could notice its namespace: by a quota, or by pods that a controller makes."""
        owned = any(
            pod["metadata"].get("ownerReferences") for pod in self.kube.list("Pod", self.namespace)
        )
        return owned or any(
            self.kube.list(kind, self.namespace) for kind in ("Job", "DaemonSet", "ResourceQuota")
        )

    def empty(self) -> None:
        """Deletes the pods at once, then the nodes."""
        self.kube.delete_all("Job", self.namespace)
        eventually(self._has_deleted_pods, "the sandbox's pods are deleted")
        self.kube.wait(
            "Pod",
            lambda pods: not pods,
            self.namespace,
            what="the sandbox's pods are gone",
        )
        for node in self.kube.list("Node", labelSelector=f"{LABEL}={self.namespace}"):
            self.kube.delete("Node", node["metadata"]["name"])

    def _has_deleted_pods(self) -> bool:
        """Deletes the pods; reports whether that was all of them. After a minute, the API server ends a request, as for
        500 pods on a busy machine: the next one goes on."""
        try:
            self.kube.delete_all("Pod", self.namespace, grace_seconds=0)
        except urllib3.exceptions.ProtocolError:
            return False
        except ApiError as error:
            if error.status != 504:
                raise
            return False
        return True

    # -- nodes

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes with GPUs."""
        return list(self._nodes)

    def add_gpu_node(self, name: str, *cards: Gpu, ready: bool = True, **extra: Any) -> None:
        """Adds a schedulable node with *cards* (default: one). *extra*: ``labels``, ``annotations``."""
        self.add_gpu_nodes({name: cards or (gpu(),)}, ready=ready, **extra)

    def add_gpu_nodes(
        self,
        nodes: Mapping[str, Iterable[Gpu]],
        *,
        ready: bool = True,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Adds several nodes at once."""
        for name, cards in nodes.items():
            self._nodes[name] = tuple(
                replace(card, uuid=f"{self._prefix}{card.uuid}" if card.uuid else "")
                for card in cards
            )
        with ThreadPoolExecutor(8) as pool:
            list(
                pool.map(
                    lambda name: self.kube.create(
                        fake_node(
                            self._prefix + name,
                            self._nodes[name],
                            labels={LABEL: self.namespace, **(labels or {})},
                            annotations=annotations,
                        )
                    ),
                    nodes,
                )
            )
        if ready:
            self.wait_schedulable(nodes)

    def add_node(
        self,
        name: str,
        *outfits: Outfit,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Adds a schedulable node with the annotations and capacities of *outfits*."""
        self.kube.create(
            vendor_node(
                self._prefix + name,
                outfits,
                annotations=annotations,
                labels={LABEL: self.namespace, **(labels or {})},
            )
        )
        self.wait_schedulable([name])

    def wait_schedulable(self, names: Iterable[str], timeout: float = PATIENCE_S) -> None:
        wanted = {self._prefix + name for name in names}
        self.kube.wait(
            "Node",
            lambda nodes: all(name in nodes and schedulable(nodes[name]) for name in wanted),
            timeout=timeout,
            what=f"nodes {sorted(wanted)} are Ready and without taints",
            labelSelector=f"{LABEL}={self.namespace}",
        )

    def remove_node(self, name: str) -> None:
        self.kube.delete("Node", self._prefix + name)

    def restore_node(self, name: str) -> None:
        """Adds a removed node again, unchanged."""
        self.add_gpu_nodes({name: self._nodes[name]})

    def node(self, name: str) -> Object:
        return self.kube.get("Node", self._prefix + name)

    def annotate_node(self, name: str, values: Mapping[str, str | None]) -> None:
        self.kube.merge_patch(
            "Node", self._prefix + name, {"metadata": {"annotations": dict(values)}}
        )

    def register(self, name: str, *cards: Gpu) -> None:
        """Replaces the registered devices of the node."""
        self._nodes[name] = cards
        self.annotate_node(name, {REGISTER: register_text(registered(self._prefix + name, cards))})

    def label_node(self, name: str, values: Mapping[str, str | None]) -> None:
        self.kube.merge_patch("Node", self._prefix + name, {"metadata": {"labels": dict(values)}})

    def node_event(self, name: str, reason: str, *, timeout: float = PATIENCE_S) -> str:
        """Waits for an event of the node and returns its message."""
        return self._event_message(self._prefix + name, reason, "", "default", timeout)

    def wait_node(
        self, name: str, done: Any, *, timeout: float = PATIENCE_S, what: str = ""
    ) -> Any:
        """Waits until *done*, given the annotations of the node, returns something true."""
        full = self._prefix + name

        def judged(nodes: dict[str, Object]) -> Any:
            return full in nodes and done(nodes[full]["metadata"].get("annotations") or {})

        return self.kube.wait(
            "Node", judged, timeout=timeout, what=what, fieldSelector=f"metadata.name={full}"
        )

    def uuid(self, name: str, index: int = 0) -> str:
        """Returns the UUID of the device in the cluster, for annotations."""
        return registered(self._prefix + name, self._nodes[name])[index].uuid

    # -- pods

    def create(self, *pods: Object) -> None:
        """Creates *pods* (or a controller's object) one after the other, on the nodes of this sandbox.

        Raises: ApiError.
        """
        for item in pods:
            self.kube.create(self._placed(item), self.namespace)

    def create_all(self, pods: Iterable[Object], *, clients: int = 4) -> None:
        """Creates *pods* from several clients at once."""
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(self.create, pods))

    def _placed(self, item: Object) -> Object:
        """Returns *item* with a selector for the nodes of this sandbox."""
        template = item["spec"].get("template")
        spec = template["spec"] if template else item["spec"]
        placed = {**spec, "nodeSelector": {**spec.get("nodeSelector", {}), LABEL: self.namespace}}
        if placed.get("nodeName"):
            placed["nodeName"] = self._prefix + placed["nodeName"]
        if template:
            return {**item, "spec": {**item["spec"], "template": {**template, "spec": placed}}}
        return {**item, "spec": placed}

    def pod(self, name: str) -> Object:
        return self.kube.get("Pod", name, self.namespace)

    def delete(self, name: str) -> None:
        """Deletes the pod and waits until it is gone."""
        self.kube.delete("Pod", name, self.namespace, grace_seconds=0)
        self.kube.wait(
            "Pod",
            lambda pods: name not in pods,
            self.namespace,
            what=f"pod {name} is gone",
            fieldSelector=f"metadata.name={name}",
        )

    def bound(self, wait_for: int | None = None, *, timeout: float = PATIENCE_S) -> dict[str, str]:
        """Waits until *wait_for* pods (default: all) are bound; returns their nodes by name."""
        return self._wait_pods(
            lambda pod: bool(pod["spec"].get("nodeName")), "bound", wait_for, timeout
        )

    def started(
        self, wait_for: int | None = None, *, timeout: float = PATIENCE_S
    ) -> dict[str, str]:
        """Like ``bound``, but the device plugins that confirm allocations must have done so."""
        return self._wait_pods(served, "bound, and served by the device plugins", wait_for, timeout)

    def wait_phase(self, phase: str, *names: str) -> None:
        """Waits until the pods have this phase; kwok writes it some time after the binding."""
        self.kube.wait(
            "Pod",
            lambda pods: {pods[name]["status"]["phase"] for name in names} == {phase},
            self.namespace,
            what=f"{', '.join(names)} are {phase}",
        )

    def wait_labeled(self, name: str) -> None:
        """Waits until the pod has the label with its node, which the leader adds later before Kubernetes 1.35."""
        self.kube.wait(
            "Pod",
            lambda pods: ASSIGNED_NODE in pods[name]["metadata"].get("labels", ()),
            self.namespace,
            what=f"pod {name} has the label {ASSIGNED_NODE}",
        )

    def _wait_pods(
        self,
        holds: Callable[[Object], bool],
        what: str,
        wait_for: int | None,
        timeout: float,
    ) -> dict[str, str]:
        def enough(pods: dict[str, Object]) -> dict[str, str] | None:
            nodes = {
                name: self.short(pod["spec"]["nodeName"])
                for name, pod in pods.items()
                if holds(pod)
            }
            return nodes if len(nodes) >= (len(pods) if wait_for is None else wait_for) else None

        what = f"{'all' if wait_for is None else wait_for} pods are {what}"
        return self.kube.wait("Pod", enough, self.namespace, timeout=timeout, what=what)

    def running(self, *names: str, timeout: float = PATIENCE_S) -> list[str]:
        """Waits until the containers of the pods *names* run; returns their IDs in that order. Real nodes only."""

        def ids(pods: dict[str, Object]) -> list[str] | None:
            found = [
                status
                for name in names
                for status in pods.get(name, {}).get("status", {}).get("containerStatuses") or [{}]
            ]
            return (
                [status["containerID"] for status in found]
                if all("running" in status.get("state", {}) for status in found)
                else None
            )

        return self.kube.wait(
            "Pod", ids, self.namespace, timeout=timeout, what=f"containers of {names} run"
        )

    def shares(self, name: str) -> list[list[Share]]:
        """Returns the shares of each container, init containers first; devices as ``node/index``."""
        by_uuid = {
            card.uuid: f"{node}/{card.index}"
            for node, cards in self._nodes.items()
            for card in registered(self._prefix + node, cards)
        }
        text = self.pod(name)["metadata"].get("annotations", {}).get(ALLOCATED, "")
        return [
            [
                Share(by_uuid.get(entry.uuid, entry.uuid), entry.memory, entry.cores)
                for entry in entries
            ]
            for entries in audit.parse(text)
        ]

    def annotations(self, name: str) -> dict[str, str]:
        """Returns the annotations of the pod with short names of nodes."""
        found = self.pod(name)["metadata"].get("annotations") or {}
        return {key: text.replace(self._prefix, "") for key, text in found.items()}

    def cards(self, name: str) -> set[str]:
        """Returns the devices of the pod as ``node/index``."""
        return {share.card for share in itertools.chain(*self.shares(name))}

    def events(self, pod: str, reason: str | None = None) -> list[str]:
        """Returns the messages of the pod's events, oldest first."""
        found = self.kube.list("Event", self.namespace, fieldSelector=f"involvedObject.name={pod}")
        found.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [event["message"] for event in found if reason in (None, event["reason"])]

    def event(
        self, pod: str, reason: str, containing: str = "", *, timeout: float = PATIENCE_S
    ) -> str:
        """Waits for an event of *pod* and returns its message."""
        return self._event_message(pod, reason, containing, self.namespace, timeout)

    def _event_message(
        self, name: str, reason: str, containing: str, namespace: str, timeout: float
    ) -> str:
        def told(events: dict[str, Object]) -> str | None:
            return next(
                (
                    event["message"]
                    for event in events.values()
                    if event["reason"] == reason and containing in event["message"]
                ),
                None,
            )

        try:
            return self.kube.wait(
                "Event",
                told,
                namespace,
                timeout=timeout,
                fieldSelector=f"involvedObject.name={name}",
            )
        except WaitTimeout:
            found = self.kube.list("Event", namespace, fieldSelector=f"involvedObject.name={name}")
            raise WaitTimeout(
                f"no event {reason} of {name} with {containing!r} within {timeout:g} s; "
                f"there are {[event['message'] for event in found]}"
            ) from None

    def refusal(self, pod: str, containing: str = "", *, timeout: float = PATIENCE_S) -> str:
        """Waits for a refusal of *pod* and returns its message; the pod must be unbound."""
        message = self.event(pod, "FilteringFailed", containing, timeout=timeout)
        assert not self.pod(pod)["spec"].get("nodeName"), (
            f"{pod} was refused and is bound nevertheless"
        )
        return message

    def short(self, node: str) -> str:
        """Returns the short name of a node."""
        return node.removeprefix(self._prefix)


def named(kind: str, name: str, **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **metadata}}


def phase(pod: Object) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(PHASE)


def served(pod: Object) -> bool:
    """Reports whether the pod is bound and all agents that confirm allocations have done so."""
    notes = pod["metadata"].get("annotations") or {}
    locks = {vendor.lock for vendor in VENDORS if vendor.allocated in notes}
    if not locks or not pod["spec"].get("nodeName"):
        return False
    return (MUTEX not in locks or phase(pod) == "success") and (
        MLU_LOCK not in locks or notes.get(MLU_ASSIGNED) == "true"
    )


def schedulable(node: Object) -> bool:
    conditions = {
        item["type"]: item["status"] for item in node.get("status", {}).get("conditions") or []
    }
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")
