"""The API client of HAMi: one method for each call to the API server. Tests replace it with a fake.

Arguments and results are records. A call is repeated only where that is safe: a read after a broken connection, a write
that the server has certainly not received.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from hami.codec.documents import convert, decode, places_in
from hami.codec.objects import parse_disruption_budget, parse_node
from hami.codec.pods import DISRUPTION_TARGET, PREEMPTED, parse_node_pod, parse_pod
from hami.codec.times import render_time
from hami.codec.trust import (
    SecretRecord,
    WebhookConfiguration,
    parse_secret,
    parse_webhook_configuration,
    render_bundle,
    render_secret,
)
from hami.errors import ClusterError, Conflict, MalformedInput, NotFound
from hami.kube.api import JSON, MERGE_PATCH, STRATEGIC_MERGE_PATCH, Api, is_disconnect, is_unsent
from hami.kube.gangs import read_pod_group
from hami.kube.pages import parse_page
from hami.kube.retry import brief_retry
from hami.model import DisruptionBudget, Node, Pod, PodGroup, PodGroupRef, PodRef

T = TypeVar("T")

Edits = Mapping[str, str | None]
"""Annotations or labels to set; ``None`` removes one."""

_NO_EDITS: Edits = {}
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_WEBHOOKS = "mutatingwebhookconfigurations"
_GROUPS = {  # of resources that are not in the core group
    "leases": "/apis/coordination.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    _WEBHOOKS: "/apis/admissionregistration.k8s.io/v1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """A coordination.k8s.io/v1 Lease. Times are in the API server's format; 0 and empty strings mean not given.

    In a write, other annotations stay, and the value ``None`` removes one.
    """

    namespace: str
    name: str
    holder: str = ""
    duration_s: int = 0
    acquire_time: str = ""
    renew_time: str = ""
    transitions: int = 0
    annotations: Edits = field(default_factory=dict)
    resource_version: str = ""


class Cluster:
    """Calls to the API server; threads may share it.

    Every call raises a ClusterError if the server refuses. An error without a status means that the call may have taken
    effect. *timeout*: seconds that one attempt may wait for the server; by default the Api's own.
    """

    def __init__(self, api: Api, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """*sleep* waits between attempts."""
        self._api = api
        self._read = brief_retry(is_read_retriable, sleep).wraps(api.request)
        self._write = brief_retry(is_unsent, sleep).wraps(api.request)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Returns the current pod; ``None`` if there is none. Raises also: MalformedInput."""
        return self._get(_path("pods", namespace, name), parse_pod)

    def node(self, name: str) -> Node | None:
        """Returns the current node; ``None`` if there is none. Raises also: MalformedInput."""
        return self._get(_path("nodes", None, name), parse_node)

    def environment(self, ref: PodRef, container: str) -> Mapping[str, str]:
        """Returns the environment variables that a container of this pod sets to a literal value.

        Raises: NotFound if the pod is gone, also if there is another one of its name; MalformedInput.
        """
        data = self._read("GET", _path("pods", ref.namespace, ref.name))
        node_pod = parse_node_pod(data)
        if node_pod.pod.ref.uid != ref.uid:
            raise NotFound(f"pod {ref} is another one now", 404)
        return node_pod.environments.get(container, {})

    def specification(self, ref: PodRef) -> Mapping[str, Any]:
        """Returns exactly this pod as JSON, with all its fields. Raises: NotFound if it is gone, also if there is
        another one of its name; MalformedInput."""
        document: dict[str, Any] = decode(
            "pod", _OBJECT, self._read("GET", _path("pods", ref.namespace, ref.name))
        )
        if (document.get("metadata") or {}).get("uid") != ref.uid:
            raise NotFound(f"pod {ref} is another one now", 404)
        return document

    def pods_on(self, node: str) -> list[Pod]:
        """Returns all pods that are bound to *node*. Raises also: MalformedInput."""
        return self._pods("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"})

    def pods_labeled(self, namespace: str, selector: str) -> list[Pod]:
        """Returns the pods of *namespace* whose labels match *selector*. Raises also: MalformedInput."""
        return self._pods(_path("pods", namespace), {"labelSelector": selector})

    def annotate_pod(
        self,
        ref: PodRef,
        annotations: Edits,
        labels: Edits = _NO_EDITS,
        *,
        resource_version: str = "",
        timeout: float | None = None,
    ) -> Pod:
        """Changes annotations and labels of exactly this pod and returns the new state. With *resource_version* it is a
        compare-and-swap, with *timeout* one attempt.

        Raises: NotFound; Conflict if another pod has that name now, or this one has changed since *resource_version*.
        """
        meta = {"uid": ref.uid, "annotations": annotations}
        if labels:
            meta["labels"] = labels
        if resource_version:
            meta["resourceVersion"] = resource_version
        with _same_pod(ref):
            return parse_pod(
                self._patch(_path("pods", ref.namespace, ref.name), {"metadata": meta}, timeout)
            )

    def annotate_node(self, name: str, annotations: Edits, resource_version: str = "") -> Node:
        """Changes annotations of a node and returns its new state. With *resource_version* it is a compare-and-swap.

        Raises: NotFound; Conflict if the node has changed since *resource_version*.
        """
        meta: dict[str, object] = {"annotations": annotations}
        if resource_version:
            meta["resourceVersion"] = resource_version
        return parse_node(self._patch(_path("nodes", None, name), {"metadata": meta}))

    def publish_capacity(self, name: str, capacity: Edits, annotations: Edits) -> None:
        """Changes amounts of a node's capacity and allocatable, and its annotations. Raises: NotFound."""
        self._patch(
            f"{_path('nodes', None, name)}/status",
            {
                "metadata": {"annotations": annotations},
                "status": {"capacity": capacity, "allocatable": capacity},
            },
        )

    def bind(
        self,
        ref: PodRef,
        node: str,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
        *,
        timeout: float | None = None,
    ) -> None:
        """Binds the pod, in one attempt. One write sets its node, *annotations* and, from Kubernetes 1.35, *labels*.

        Raises: NotFound; Conflict if the pod is already bound or another pod has that name now.
        """
        meta = {
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
            "annotations": annotations,
            "labels": labels,
        }
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": meta,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = _path("pods", ref.namespace, ref.name)
        self._api.request("POST", f"{path}/binding", body=_json(binding), timeout=timeout)

    def nominate(self, ref: PodRef, node: str) -> None:
        """Shows that room is made for the pod on *node*.

        Raises: NotFound; Conflict if another pod has that name now.
        """
        self._patch_status(ref, {"nominatedNodeName": node}, MERGE_PATCH)

    def mark_preempted(self, ref: PodRef, message: str, now: datetime) -> Pod:
        """Sets the condition by which others see that the pod is evicted for one of higher priority, as kube-scheduler
        does before it deletes a pod. Returns the new state.

        Raises: NotFound; Conflict if another pod has that name now.
        """
        return parse_pod(
            self._patch_status(
                ref,
                {
                    "conditions": [
                        {
                            "type": DISRUPTION_TARGET,
                            "status": "True",
                            "reason": PREEMPTED,
                            "message": message,
                            "lastTransitionTime": render_time(now),
                        }
                    ]
                },
                STRATEGIC_MERGE_PATCH,
            )
        )

    def clear_preempted(self, ref: PodRef, resource_version: str) -> None:
        """Removes that condition from the pod, which is not evicted.

        Raises: NotFound; Conflict if the pod has changed since *resource_version*, or another one has that name now.
        """
        self._patch_status(
            ref,
            {"conditions": [{"type": DISRUPTION_TARGET, "$patch": "delete"}]},
            STRATEGIC_MERGE_PATCH,
            resource_version,
        )

    def evict(self, ref: PodRef, grace_s: int) -> None:
        """Deletes exactly this pod, which has at most *grace_s* seconds to end, also if it is being deleted already.

        Raises: NotFound; Conflict if another pod has that name now.
        """
        self._write(
            "DELETE",
            _path("pods", ref.namespace, ref.name),
            body=_json(_deletion(ref.uid) | {"gracePeriodSeconds": grace_s}),
        )

    def disruption_budgets(self) -> list[DisruptionBudget]:
        """Returns the PodDisruptionBudgets of all namespaces. Raises also: MalformedInput."""
        data = self._read(
            "GET", _path("poddisruptionbudgets", None), query={"resourceVersion": "0"}
        )
        return [
            parse_disruption_budget(item)
            for item in parse_page("poddisruptionbudgets", data).items or ()
        ]

    def pod_group(self, ref: PodGroupRef) -> PodGroup | None:
        """Returns what a PodGroup says of its pods; ``None`` if *ref* names none. Raises also: MalformedInput."""
        return read_pod_group(lambda resource, path: self._read("GET", path), ref)

    def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        """Creates a core/v1 Event. Raises: Conflict if its name exists, NotFound if the namespace does not."""
        self._write("POST", _path("events", namespace), body=_json(event))

    def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        """Merges *patch* into an Event. Raises: NotFound if it has expired."""
        self._patch(_path("events", namespace, name), patch)

    def lease(
        self, namespace: str, name: str, *, timeout: float | None = None
    ) -> LeaseRecord | None:
        """Returns the current Lease; ``None`` if there is none. One attempt. Raises also: MalformedInput."""
        try:
            return _parse_lease(
                self._api.request("GET", _path("leases", namespace, name), timeout=timeout)
            )
        except NotFound:
            return None

    def write_lease(self, lease: LeaseRecord, *, timeout: float | None = None) -> LeaseRecord:
        """Writes the Lease, in one attempt, and returns it as stored. It is changed if its version is still
        ``lease.resource_version``, or created if *lease* has no version.

        Raises: Conflict if it has changed or been created since, NotFound if it is gone.
        """
        method, path, content_type = _target("leases", lease)
        return _parse_lease(
            self._api.request(
                method,
                path,
                body=_json(_render_lease(lease)),
                content_type=content_type,
                timeout=timeout,
            )
        )

    def secret(self, namespace: str, name: str) -> SecretRecord | None:
        """Returns the current Secret; ``None`` if there is none. Raises also: MalformedInput."""
        return self._get(_path("secrets", namespace, name), parse_secret)

    def write_secret(self, secret: SecretRecord) -> SecretRecord:
        """Writes the Secret and returns it as stored. It is changed if its version is still
        ``secret.resource_version``, or created, with the type kubernetes.io/tls, if *secret* has no version.

        Raises: Conflict if it has changed or been created since, NotFound if it is gone.
        """
        method, path, content_type = _target("secrets", secret)
        return parse_secret(
            self._write(method, path, body=_json(render_secret(secret)), content_type=content_type)
        )

    def webhook_configuration(self, name: str) -> WebhookConfiguration | None:
        """Returns the current MutatingWebhookConfiguration; ``None`` if there is none. Raises also: MalformedInput."""
        return self._get(_path(_WEBHOOKS, None, name), parse_webhook_configuration)

    def publish_bundle(
        self, configuration: WebhookConfiguration, bundle: bytes
    ) -> WebhookConfiguration:
        """Makes the API server trust only the CAs in *bundle* (PEM) for all webhooks of *configuration*.

        Raises: Conflict if the configuration has changed since, NotFound if it is gone.
        """
        return parse_webhook_configuration(
            self._write(
                "PATCH",
                _path(_WEBHOOKS, None, configuration.name),
                body=_json(render_bundle(configuration, bundle)),
                content_type=STRATEGIC_MERGE_PATCH,
            )
        )

    def _pods(self, path: str, query: Mapping[str, str]) -> list[Pod]:
        return [
            parse_pod(item)
            for item in parse_page("pods", self._read("GET", path, query=query)).items or ()
        ]

    def _get(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse(self._read("GET", path))
        except NotFound:
            return None

    def _patch_status(
        self, ref: PodRef, status: Mapping[str, Any], content_type: str, resource_version: str = ""
    ) -> bytes:
        meta = {"uid": ref.uid} | (
            {"resourceVersion": resource_version} if resource_version else {}
        )
        with _same_pod(ref):
            return self._write(
                "PATCH",
                f"{_path('pods', ref.namespace, ref.name)}/status",
                body=_json({"metadata": meta, "status": status}),
                content_type=content_type,
            )

    def _patch(self, path: str, patch: Mapping[str, Any], timeout: float | None = None) -> bytes:
        if timeout is not None:
            return self._api.request(
                "PATCH", path, body=_json(patch), content_type=MERGE_PATCH, timeout=timeout
            )
        return self._write("PATCH", path, body=_json(patch), content_type=MERGE_PATCH)


@contextlib.contextmanager
def _same_pod(ref: PodRef) -> Iterator[None]:
    """Raises: Conflict if a patch of the pod was refused because another pod has its name now."""
    try:
        yield
    except ClusterError as error:
        if error.status == 422 and "metadata.uid" in str(error):
            raise Conflict(f"pod {ref} is another one now: {error}", error.status) from error
        raise


def is_read_retriable(error: BaseException) -> bool:
    """Reports whether the connection broke or the server failed. A read that timed out is not repeated."""
    failed = isinstance(error, ClusterError) and error.status in (500, 502, 503, 504)
    return failed or is_unsent(error) or is_disconnect(error)


def _deletion(uid: str) -> dict[str, Any]:
    """Returns the options for deleting an object only if it has *uid*."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}


def _json(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(value)


def _path(resource: str, namespace: str | None, name: str | None = None) -> str:
    """Returns the path of a collection, or of an object in it. *namespace*: ``None`` for cluster-wide resources."""
    group = _GROUPS.get(resource, "/api/v1")
    path = group
    if namespace is not None:
        path += f"/namespaces/{_segment(namespace)}"
    path += f"/{resource}"
    if name is not None:
        path += f"/{_segment(name)}"
    return path


def _target(resource: str, record: LeaseRecord | SecretRecord) -> tuple[str, str, str]:
    """Returns method, path and content type of the write that changes the object that was read, or creates one."""
    if record.resource_version:
        return "PATCH", _path(resource, record.namespace, record.name), MERGE_PATCH
    return "POST", _path(resource, record.namespace), JSON


def _segment(name: str) -> str:
    """Returns *name* as one segment of a path. Raises: MalformedInput if it would address another object."""
    if name in ("", ".", ".."):
        raise MalformedInput("name", name, "a name of a Kubernetes object is expected")
    return quote(name, safe="")


def _parse_lease(data: bytes) -> LeaseRecord:
    try:
        source = msgspec.json.decode(data, type=dict[str, Any])
        meta, spec = source["metadata"], source.get("spec") or {}
        return convert(
            {
                "namespace": meta["namespace"],
                "name": meta["name"],
                "holder": spec.get("holderIdentity") or "",
                "duration_s": spec.get("leaseDurationSeconds") or 0,
                "acquire_time": spec.get("acquireTime") or "",
                "renew_time": spec.get("renewTime") or "",
                "transitions": spec.get("leaseTransitions") or 0,
                "annotations": meta.get("annotations") or {},
                "resource_version": meta["resourceVersion"],
            },
            LeaseRecord,
            places_in("lease"),
        )
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, KeyError, TypeError) as error:
        raise MalformedInput("lease", data[:200].decode(errors="replace"), str(error)) from error


def _render_lease(lease: LeaseRecord) -> dict[str, Any]:
    """Returns a merge patch, or a new Lease."""
    meta: dict[str, Any] = {"name": lease.name, "annotations": lease.annotations}
    if lease.resource_version:
        meta["resourceVersion"] = lease.resource_version
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta,
        "spec": {
            "holderIdentity": lease.holder,
            "leaseDurationSeconds": lease.duration_s or None,
            "acquireTime": lease.acquire_time or None,
            "renewTime": lease.renew_time or None,
            "leaseTransitions": lease.transitions,
        },
    }
