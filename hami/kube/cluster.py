"""What HAMi asks of the API server, call by call: the seam that the rest of the system uses and that tests fake.

Records in, records out. It keeps no state and knows no rule. A call is repeated, for a moment, only where that cannot
do harm: a read after a broken connection, a write that the server certainly has not taken up.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from hami.kube.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Api, is_disconnect, is_unsent
from hami.codec.trust import (
    SecretRecord, WebhookConfiguration, parse_secret, parse_webhook_configuration, render_bundle, render_secret,
)
from hami.codec.objects import parse_environment, parse_node, parse_pod
from hami.errors import ClusterError, Conflict, MalformedInput, NotFound
from hami.model import Node, Pod, PodRef

__all__ = ["Cluster", "LeaseRecord"]

Edits = Mapping[str, str | None]
"""Annotations or labels to set; ``None`` removes one."""

_NO_EDITS: Edits = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """A coordination.k8s.io/v1 Lease. Times as the API server writes them; *duration_s* 0 and empty text: not given.

    *source* is the object as it was read: what we do not know of survives an update.
    """

    namespace: str
    name: str
    holder: str = ""
    duration_s: int = 0
    acquire_time: str = ""
    renew_time: str = ""
    transitions: int = 0
    annotations: Mapping[str, str] = field(default_factory=dict)
    resource_version: str = ""
    source: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


class _LeaseMeta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    resource_version: str
    annotations: dict[str, str] | None = None


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct):
    metadata: _LeaseMeta
    spec: _LeaseSpec | None = None


class _Items(msgspec.Struct):
    items: list[msgspec.Raw]


class Cluster:
    """Calls to the API server; threads may share it.

    Every call takes *timeout*, the seconds that one attempt may wait for the server (the Api's own if ``None``), and
    raises a ClusterError for what the server refused; one without a status means that nobody knows whether it happened.
    """

    def __init__(self, api: Api, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """*sleep* waits between attempts, at most half a second each."""
        self._api = api
        briefly = functools.partial(Retrying, wait=wait_random_exponential(multiplier=0.1, max=0.5), sleep=sleep,
                                    stop=stop_after_attempt(3), reraise=True)
        self._read = briefly(retry=retry_if_exception(_read_again)).wraps(api.request)
        self._write = briefly(retry=retry_if_exception(is_unsent)).wraps(api.request)

    def pod(self, namespace: str, name: str, *, timeout: float | None = None) -> Pod | None:
        """The pod as it is now; ``None`` if there is none. Raises also: MalformedInput."""
        data = self._get(_pod_path(namespace, name), timeout)
        return None if data is None else parse_pod(data)

    def node(self, name: str, *, timeout: float | None = None) -> Node | None:
        """The node as it is now; ``None`` if there is none. Raises also: MalformedInput."""
        data = self._get(_node_path(name), timeout)
        return None if data is None else parse_node(data)

    def environment(self, ref: PodRef, container: str, *, timeout: float | None = None) -> Mapping[str, str]:
        """The variables that a container of exactly this pod sets to a literal value.

        Raises: NotFound when there is no such pod (any more); MalformedInput.
        """
        uid, environments = parse_environment(self._read("GET", _pod_path(ref.namespace, ref.name), timeout=timeout))
        if uid != ref.uid:
            raise NotFound(f"pod {ref} is another one now", 404)
        return environments.get(container, {})

    def pods_on(self, node: str, *, timeout: float | None = None) -> list[Pod]:
        """All pods bound to *node*, as they are now. Raises also: MalformedInput."""
        return self._pods("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}, timeout)

    def pods_labelled(self, namespace: str, selector: str, *, timeout: float | None = None) -> list[Pod]:
        """The pods of *namespace* whose labels match *selector*, as they are now. Raises also: MalformedInput."""
        return self._pods(f"/api/v1/namespaces/{_segment(namespace)}/pods", {"labelSelector": selector}, timeout)

    def annotate_pod(self, ref: PodRef, annotations: Edits, labels: Edits = _NO_EDITS, *, resource_version: str = "",
                     timeout: float | None = None) -> Pod:
        """Change annotations and labels of exactly this pod; the pod after it. With *resource_version* it is a
        compare-and-swap.

        Raises: NotFound; Conflict when a later pod bears that name, or this one has changed since *resource_version*.
        """
        meta = {"uid": ref.uid, "annotations": annotations} | ({"labels": labels} if labels else {})
        if resource_version:
            meta["resourceVersion"] = resource_version
        try:
            return parse_pod(self._patch(_pod_path(ref.namespace, ref.name), {"metadata": meta}, timeout))
        except ClusterError as error:
            if error.status == 422 and "metadata.uid" in str(error):
                raise Conflict(f"pod {ref} is another one now: {error}", error.status) from error
            raise

    def annotate_node(self, name: str, annotations: Edits, resource_version: str = "", *,
                      timeout: float | None = None) -> Node:
        """Change annotations of a node; the node after it. With *resource_version* it is a compare-and-swap.

        Raises: NotFound; Conflict when the node has changed since *resource_version*.
        """
        meta: dict[str, object] = {"annotations": annotations}
        if resource_version:
            meta["resourceVersion"] = resource_version
        return parse_node(self._patch(_node_path(name), {"metadata": meta}, timeout))

    def bind(self, ref: PodRef, node: str, annotations: Mapping[str, str], labels: Mapping[str, str], *,
             timeout: float | None = None) -> None:
        """Bind the pod; its node, *annotations* and (from Kubernetes 1.35) *labels* appear in one write, or none does.

        Raises: NotFound; Conflict when the pod is bound already or a later one bears that name.
        """
        meta = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid,
                "annotations": annotations, "labels": labels}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta,
                   "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        self._write("POST", f"{_pod_path(ref.namespace, ref.name)}/binding", body=_json(binding), timeout=timeout)

    def create_event(self, namespace: str, event: Mapping[str, Any], *, timeout: float | None = None) -> None:
        """Write a core/v1 Event. Raises: Conflict when its name is taken, NotFound without the namespace."""
        self._write("POST", _event_path(namespace), body=_json(event), timeout=timeout)

    def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any], *,
                    timeout: float | None = None) -> None:
        """Merge *patch* into an Event. Raises: NotFound when it has expired."""
        self._patch(_event_path(namespace, name), patch, timeout)

    def lease(self, namespace: str, name: str, *, timeout: float | None = None) -> LeaseRecord | None:
        """The lease as it is now; ``None`` if there is none. One attempt only. Raises also: MalformedInput."""
        try:
            return _parse_lease(self._api.request("GET", _lease_path(namespace, name), timeout=timeout))
        except NotFound:
            return None

    def create_lease(self, lease: LeaseRecord, *, timeout: float | None = None) -> LeaseRecord:
        """Create the lease, in one attempt; the lease as stored. Raises: Conflict when there is one already."""
        return _parse_lease(self._api.request("POST", _lease_path(lease.namespace), body=_render_lease(lease),
                                              timeout=timeout))

    def update_lease(self, lease: LeaseRecord, *, timeout: float | None = None) -> LeaseRecord:
        """Compare-and-swap by ``lease.resource_version``, in one attempt; the lease as stored.

        Raises: Conflict when it has changed since, NotFound when it is gone.
        """
        return _parse_lease(self._api.request("PUT", _lease_path(lease.namespace, lease.name),
                                              body=_render_lease(lease), timeout=timeout))

    def secret(self, namespace: str, name: str, *, timeout: float | None = None) -> SecretRecord | None:
        """The Secret as it is now; ``None`` if there is none. Raises also: MalformedInput."""
        data = self._get(_secret_path(namespace, name), timeout)
        return None if data is None else parse_secret(data)

    def create_secret(self, secret: SecretRecord, *, timeout: float | None = None) -> SecretRecord:
        """Create the Secret, of type kubernetes.io/tls; the Secret as stored. Raises: Conflict when there is one."""
        return parse_secret(self._write("POST", _secret_path(secret.namespace), body=_json(render_secret(secret)),
                                        timeout=timeout))

    def update_secret(self, secret: SecretRecord, *, timeout: float | None = None) -> SecretRecord:
        """Compare-and-swap by ``secret.resource_version``; the Secret as stored.

        Raises: Conflict when it has changed since, NotFound when it is gone.
        """
        return parse_secret(self._write("PUT", _secret_path(secret.namespace, secret.name),
                                        body=_json(render_secret(secret)), timeout=timeout))

    def webhook_configuration(self, name: str, *, timeout: float | None = None) -> WebhookConfiguration | None:
        """The MutatingWebhookConfiguration as it is now; ``None`` if there is none. Raises also: MalformedInput."""
        data = self._get(_webhook_path(name), timeout)
        return None if data is None else parse_webhook_configuration(data)

    def publish_bundle(self, configuration: WebhookConfiguration, bundle: bytes, *,
                       timeout: float | None = None) -> WebhookConfiguration:
        """Let the API server trust the CAs in *bundle* (PEM), and no others, for every webhook of *configuration*.

        Raises: Conflict when the configuration has changed since, NotFound when it is gone.
        """
        return parse_webhook_configuration(self._write(
            "PATCH", _webhook_path(configuration.name), body=_json(render_bundle(configuration, bundle)),
            content_type=STRATEGIC_MERGE_PATCH, timeout=timeout))

    def _pods(self, path: str, query: Mapping[str, str], timeout: float | None) -> list[Pod]:
        data = self._read("GET", path, query=query, timeout=timeout)
        try:
            items = msgspec.json.decode(data, type=_Items).items
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedInput("pod list", data[:200].decode(errors="replace"), str(error)) from error
        return [parse_pod(item) for item in items]

    def _get(self, path: str, timeout: float | None) -> bytes | None:
        try:
            return self._read("GET", path, timeout=timeout)
        except NotFound:
            return None

    def _patch(self, path: str, patch: Mapping[str, Any], timeout: float | None) -> bytes:
        return self._write("PATCH", path, body=_json(patch), content_type=MERGE_PATCH, timeout=timeout)


def _read_again(error: BaseException) -> bool:
    """A read may be repeated when the connection broke or the server stumbled, not when it was too slow."""
    stumbled = isinstance(error, ClusterError) and error.status in (500, 502, 503, 504)
    return stumbled or is_unsent(error) or is_disconnect(error)


def _json(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(value)


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{_segment(namespace)}/pods/{_segment(name)}"


def _node_path(name: str) -> str:
    return f"/api/v1/nodes/{_segment(name)}"


def _event_path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{_segment(namespace)}/events" + (f"/{_segment(name)}" if name else "")


def _lease_path(namespace: str, name: str = "") -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{_segment(namespace)}/leases"
    return f"{path}/{_segment(name)}" if name else path


def _secret_path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{_segment(namespace)}/secrets" + (f"/{_segment(name)}" if name else "")


def _webhook_path(name: str) -> str:
    return f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{_segment(name)}"


def _segment(name: str) -> str:
    """One segment of a path, whatever a caller was told to be a name: it never names something else."""
    if name in ("", ".", ".."):
        raise MalformedInput("name", name, "a name of a Kubernetes object is expected")
    return quote(name, safe="")


def _parse_lease(data: bytes) -> LeaseRecord:
    try:
        wire = msgspec.json.decode(data, type=_Lease)
        source = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedInput("lease", data[:200].decode(errors="replace"), str(error)) from error
    meta, spec = wire.metadata, wire.spec or _LeaseSpec()
    return LeaseRecord(namespace=meta.namespace, name=meta.name, holder=spec.holder_identity or "",
                       duration_s=spec.lease_duration_seconds or 0, acquire_time=spec.acquire_time or "",
                       renew_time=spec.renew_time or "", transitions=spec.lease_transitions or 0,
                       annotations=meta.annotations or {}, resource_version=meta.resource_version, source=source)


def _render_lease(lease: LeaseRecord) -> bytes:
    meta = dict(lease.source.get("metadata") or {})
    meta.pop("managedFields", None)  # the server keeps them itself
    meta |= {"namespace": lease.namespace, "name": lease.name, "annotations": dict(lease.annotations)}
    if lease.resource_version:
        meta["resourceVersion"] = lease.resource_version
    spec = dict(lease.source.get("spec") or {})
    spec |= {"holderIdentity": lease.holder, "leaseDurationSeconds": lease.duration_s or None,
             "acquireTime": lease.acquire_time or None, "renewTime": lease.renew_time or None,
             "leaseTransitions": lease.transitions}
    return _json({**lease.source, "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                  "metadata": meta, "spec": spec})
