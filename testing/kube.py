"""A small client of the API server: JSON in, JSON out, and waiting by watch.

Objects are the dicts that the API server sends. The client has no cache and retries nothing; errors are raised for the
test to judge.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import quote, urlencode

import urllib3
import yaml
from kubernetes import config as kubernetes_config

from hami.codec.documents import parse_own_yaml
from testing.eventually import PATIENCE_S, WaitTimeout
from testing.yaml_text import read_documents

__all__ = ["ApiError", "Follower", "Kube", "path_of", "write_impersonation", "write_kubeconfig"]

Object = dict[str, Any]
FOLLOW_S = 2.0
"""Seconds after which a watch begins anew, and sees that it is to end."""

KINDS = {
    # kind: (prefix, plural, namespaced)
    "Namespace": ("/api/v1", "namespaces", False),
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "Service": ("/api/v1", "services", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "Secret": ("/api/v1", "secrets", True),
    "PersistentVolume": ("/api/v1", "persistentvolumes", False),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims", True),
    "ResourceQuota": ("/api/v1", "resourcequotas", True),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", True),
    "Event": ("/api/v1", "events", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "ReplicaSet": ("/apis/apps/v1", "replicasets", True),
    "DaemonSet": ("/apis/apps/v1", "daemonsets", True),
    "Job": ("/apis/batch/v1", "jobs", True),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", True),
    "StorageClass": ("/apis/storage.k8s.io/v1", "storageclasses", False),
    "RuntimeClass": ("/apis/node.k8s.io/v1", "runtimeclasses", False),
    "PriorityClass": ("/apis/scheduling.k8s.io/v1", "priorityclasses", False),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies", True),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "MutatingWebhookConfiguration": (
        "/apis/admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        False,
    ),
    "MutatingAdmissionPolicy": (
        "/apis/admissionregistration.k8s.io/v1",
        "mutatingadmissionpolicies",
        False,
    ),
    "MutatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1",
        "mutatingadmissionpolicybindings",
        False,
    ),
    "ValidatingAdmissionPolicy": (
        "/apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicies",
        False,
    ),
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
        False,
    ),
    "DeviceClass": ("/apis/resource.k8s.io/v1", "deviceclasses", False),
    "ResourceSlice": ("/apis/resource.k8s.io/v1", "resourceslices", False),
    "ResourceClaim": ("/apis/resource.k8s.io/v1", "resourceclaims", True),
    "ResourceClaimTemplate": ("/apis/resource.k8s.io/v1", "resourceclaimtemplates", True),
    "Stage": ("/apis/kwok.x-k8s.io/v1alpha1", "stages", False),
}


class ApiError(Exception):
    """The API server rejected a request. *status*: HTTP status; *message*: its message."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(f"{status}: {message}")


def path_of(
    kind: str, namespace: str | None = None, name: str | None = None, subresource: str | None = None
) -> str:
    """Returns the URL path of a collection (of all namespaces, if none is given), an object, or a subresource."""
    prefix, plural, namespaced = KINDS[kind]
    parts = [prefix]
    if namespaced and namespace is not None:
        parts += ["namespaces", quote(namespace)]
    parts += [part for part in (plural, name and quote(name), subresource) if part]
    return "/".join(parts)


class Kube:
    """Requests to one API server. Safe for use by several threads."""

    def __init__(
        self,
        kubeconfig: Path,
        *,
        context: str | None = None,
        token: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """*token*: takes the place of the credentials in *kubeconfig*. *headers*: of each request."""
        client = kubernetes_config.new_client_from_config(str(kubeconfig), context=context)
        configuration = client.configuration
        self.server: str = configuration.host
        self.kubeconfig = kubeconfig
        self._context = context
        self._headers = {"Accept": "application/json", **headers}
        for key in (
            "BearerToken",
            "authorization",
        ):  # the name differs between versions of the client
            if found := configuration.get_api_key_with_prefix(key):
                self._headers["Authorization"] = found
        self._token = token
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = urllib3.PoolManager(
            num_pools=2,
            maxsize=32,
            retries=False,
            cert_reqs="CERT_REQUIRED" if configuration.verify_ssl else "CERT_NONE",
            ca_certs=configuration.ssl_ca_cert,
            cert_file=None if token else configuration.cert_file,
            key_file=None if token else configuration.key_file,
        )

    def with_token(self, token: str) -> Kube:
        """Returns a client of the account that has *token*."""
        return Kube(self.kubeconfig, context=self._context, token=token)

    def impersonating(self, user: str, group: str) -> Kube:
        """Returns a client that acts as *user* of *group*."""
        return Kube(
            self.kubeconfig,
            context=self._context,
            headers={"Impersonate-User": user, "Impersonate-Group": group},
        )

    def write_kubeconfig(self, target: Path) -> Path:
        """Writes a configuration with the token of this client."""
        return write_kubeconfig(self.kubeconfig, self._token, target)

    def close(self) -> None:
        self._pool.clear()

    def ready(self) -> bool:
        """Reports whether the API server is ready."""
        return (
            self._pool.request(
                "GET", f"{self.server}/readyz", headers=self._headers, timeout=2
            ).status
            == 200
        )

    # -- single calls

    def call(
        self,
        method: str,
        path: str,
        body: Object | bytes | None = None,
        *,
        query: Mapping[str, object] | None = None,
        content_type: str = "application/json",
        timeout: float = PATIENCE_S,
    ) -> Object:
        """Sends one request. Raises: ApiError; urllib3's HTTPError without a response."""
        answer = self._send(method, path, body, query, content_type, timeout)
        return decoded(answer.status, answer.data)

    def _send(
        self,
        method: str,
        path: str,
        body: Object | bytes | None,
        query: Mapping[str, object] | None,
        content_type: str,
        timeout: float,
    ) -> urllib3.BaseHTTPResponse:
        url = self.server + path + (f"?{urlencode(query)}" if query else "")
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        return self._pool.request(
            method,
            url,
            body=data,
            timeout=timeout,
            headers={**self._headers, "Content-Type": content_type},
        )

    def pass_on(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> urllib3.BaseHTTPResponse:
        """Sends a request of somebody else, with the *headers* of that and nothing else. The answer is not read yet."""
        return self._pool.request(
            method,
            self.server + path,
            body=body,
            headers=dict(headers),
            preload_content=False,
            timeout=urllib3.Timeout(connect=5, read=600),
            decode_content=False,
        )

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        return self.call("GET", path_of(kind, namespace, name))

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """Returns the object, or ``None`` if it does not exist."""
        try:
            return self.get(kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, **query: object) -> list[Object]:
        """Returns the items of a collection. *query*: ``labelSelector``, ``fieldSelector``, …"""
        return self.page(kind, namespace, **query)["items"] or []

    def page(self, kind: str, namespace: str | None = None, **query: object) -> Object:
        """Returns the collection object with its resourceVersion."""
        return self.call("GET", path_of(kind, namespace), query=query)

    def create(self, item: Object, namespace: str | None = None) -> Object:
        namespace = item["metadata"].get("namespace", namespace)
        return self.call("POST", path_of(item["kind"], namespace), item)

    def dry_run(self, item: Object, namespace: str | None = None) -> Object:
        """Returns *item* as it would be created."""
        namespace = item["metadata"].get("namespace", namespace)
        return self.call("POST", path_of(item["kind"], namespace), item, query={"dryRun": "All"})

    def warnings(self, item: Object, namespace: str | None = None) -> list[str]:
        """Returns the warnings that kubectl would show if *item* was created. Raises: ApiError."""
        namespace = item["metadata"].get("namespace", namespace)
        path = path_of(item["kind"], namespace)
        answer = self._send("POST", path, item, {"dryRun": "All"}, "application/json", PATIENCE_S)
        decoded(answer.status, answer.data)
        return [parse_warning(header) for header in answer.headers.getlist("Warning")]

    def apply(self, item: Object, namespace: str | None = None) -> Object:
        """Applies *item* server-side, taking over fields of other managers."""
        namespace = item["metadata"].get("namespace", namespace)
        return self.call(
            "PATCH",
            path_of(item["kind"], namespace, item["metadata"]["name"]),
            json.dumps(item).encode(),
            query={"fieldManager": "e2e", "force": "true"},
            content_type="application/apply-patch+yaml",
        )

    def apply_yaml(self, text: str, namespace: str | None = None) -> None:
        """Applies every document of *text*."""
        for item in read_documents(text):
            if item:
                self.apply(item, namespace)

    def merge_patch(
        self,
        kind: str,
        name: str,
        patch: Object,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> Object:
        return self.call(
            "PATCH",
            path_of(kind, namespace, name, subresource),
            patch,
            content_type="application/merge-patch+json",
        )

    def token(self, account: str, namespace: str, bound_to: Object | None = None) -> str:
        """Returns a token of a ServiceAccount for a day, or until the object *bound_to* is deleted.

        Tokens that are bound to a Node, or to a pod on it, contain its name.
        """
        spec: Object = {"expirationSeconds": 86_400}
        if bound_to is not None:
            spec["boundObjectRef"] = {
                "apiVersion": bound_to["apiVersion"],
                "kind": bound_to["kind"],
                "name": bound_to["metadata"]["name"],
                "uid": bound_to["metadata"]["uid"],
            }
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = self.call("POST", path_of("ServiceAccount", namespace, account, "token"), request)
        return str(made["status"]["token"])

    def delete(
        self,
        kind: str,
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
    ) -> None:
        """Deletes the object if it exists."""
        query = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self.call(
                "DELETE",
                path_of(kind, namespace, name),
                query=query | {"propagationPolicy": "Background"},
            )
        except ApiError as error:
            if error.status != 404:
                raise

    def delete_all(
        self,
        kind: str,
        namespace: str,
        *,
        grace_seconds: int | None = None,
        timeout: float = PATIENCE_S,
    ) -> None:
        """Deletes the collection in *namespace*."""
        query = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self.call(
            "DELETE",
            path_of(kind, namespace),
            query=query | {"propagationPolicy": "Background"},
            timeout=timeout,
        )

    # -- watching

    def watch(
        self,
        path: str,
        resource_version: str,
        timeout: float,
        query: Mapping[str, object] | None = None,
    ) -> Iterator[tuple[str, Object]]:
        """Yields changes after *resource_version*, until *timeout* seconds have passed or the server ends the watch.

        Raises: ApiError(410) if the version is too old; urllib3's HTTPError if the connection breaks.
        """
        deadline = time.monotonic() + timeout
        parameters = {
            **(query or {}),
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": max(1, int(timeout) + 1),
        }
        answer = self._pool.request(
            "GET",
            f"{self.server}{path}?{urlencode(parameters)}",
            headers=self._headers,
            preload_content=False,
            timeout=urllib3.Timeout(connect=5, read=max(0.05, timeout)),
        )
        try:
            if answer.status != 200:
                decoded(answer.status, answer.data)
            for line in lines(answer.stream(65536, decode_content=True)):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(
                        event["object"].get("code", 500), event["object"].get("message", "")
                    )
                yield event["type"], event["object"]
                if time.monotonic() >= deadline:
                    return
        except urllib3.exceptions.ReadTimeoutError:
            return
        finally:
            answer.close()

    def follow(
        self, kind: str, ended: threading.Event, namespace: str | None = None, **query: object
    ) -> Iterator[tuple[str, Object]]:
        """Yields ``LISTED`` with the collection, and then each change, until *ended* is set.

        After a broken watch, it begins again. Changes come in the order of the writes.
        """
        while not ended.is_set():
            try:
                page = self.page(kind, namespace, **query)
                yield "LISTED", page
                version = page["metadata"]["resourceVersion"]
                while not ended.is_set():
                    for change, item in self.watch(
                        path_of(kind, namespace), version, FOLLOW_S, query
                    ):
                        version = item["metadata"]["resourceVersion"]
                        if change != "BOOKMARK":
                            yield change, item
            except (ApiError, urllib3.exceptions.HTTPError, ValueError):
                ended.wait(0.1)

    def wait(
        self,
        kind: str,
        done: Callable[[dict[str, Object]], Any],
        namespace: str | None = None,
        *,
        timeout: float = PATIENCE_S,
        what: str = "",
        **query: object,
    ) -> Any:
        """Waits until *done*, given all objects by name, returns something true, and returns that.

        Raises: WaitTimeout with *what* and the state of the objects.
        """
        path = path_of(kind, namespace)
        deadline = time.monotonic() + timeout
        items: dict[str, Object] = {}
        is_last = False
        while not is_last:
            left = deadline - time.monotonic()
            is_last = left <= 0  # looks once more, since this process may have stood still
            try:
                page = self.call("GET", path, query=query, timeout=max(1, left))
                items = {item["metadata"]["name"]: item for item in page["items"] or []}
                if answer := done(items):
                    return answer
                left = max(0.05, deadline - time.monotonic())
                for change, item in self.watch(
                    path, page["metadata"]["resourceVersion"], left, query
                ):
                    if change == "BOOKMARK":
                        continue
                    if change == "DELETED":
                        items.pop(item["metadata"]["name"], None)
                    else:
                        items[item["metadata"]["name"]] = item
                    if answer := done(items):
                        return answer
            except urllib3.exceptions.HTTPError:
                time.sleep(0.1)  # the API server restarts in some tests
            except ApiError as error:
                if error.status not in (410, 429, 500, 503, 504):
                    raise
                time.sleep(0.1)
        raise WaitTimeout(
            f"not within {timeout:g} s: {what or getattr(done, '__name__', 'condition')}; "
            f"{kind}s in {namespace or 'the cluster'}: {summary(items.values()) or 'none'}"
        )


class Follower:
    """Follows a collection in a thread, as a context manager. Subclasses say what to do with each change."""

    def __init__(
        self, kube: Kube, kind: str, namespace: str | None = None, **query: object
    ) -> None:
        """*namespace*: ``None`` for all."""
        self._ended = threading.Event()
        self._changes = kube.follow(kind, self._ended, namespace, **query)
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        for change, item in self._changes:
            self.take(change, item)

    def take(self, change: str, item: Object) -> None:
        """Takes a change as `Kube.follow` yields it."""
        raise NotImplementedError


def write_kubeconfig(source: Path, token: str, target: Path) -> Path:
    """Writes the configuration *source* with *token* as credentials to *target*, which only the owner may read."""
    config: Object = parse_own_yaml(source.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    target.touch(mode=0o600)
    target.write_text(yaml.safe_dump(config))
    return target


def write_impersonation(source: Path, user: str, target: Path) -> Path:
    """Writes the configuration *source* to *target*, such that its administrator acts as *user*."""
    config: Object = parse_own_yaml(source.read_text())
    for item in config["users"]:
        item["user"]["as"] = user
    target.touch(mode=0o600)
    target.write_text(yaml.safe_dump(config))
    return target


def parse_warning(header: str) -> str:
    """Returns the text of a header such as ``299 - "text"``."""
    _, _, quoted = header.split(" ", 2)
    return quoted[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def decoded(status: int, data: bytes) -> Object:
    if status < 300:
        return json.loads(data)
    try:
        message = json.loads(data).get("message", "")
    except ValueError:
        message = data.decode(errors="replace")[:500]
    raise ApiError(status, message)


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from filter(None, whole)


def summary(items: Iterable[Object]) -> str:
    """Returns the state of up to forty objects: of nodes, what they offer; of others, phase and node, and why pods are
    not placed."""
    return ", ".join(f"{item['metadata']['name']}[{_state(item)}]" for item in list(items)[:40])


def _state(item: Object) -> str:
    status = item.get("status", {})
    if offered := status.get("allocatable"):
        return " ".join(
            f"{name}={amount}" for name, amount in sorted(offered.items()) if "/" in name
        )
    return f"{status.get('phase', '?')}@{item.get('spec', {}).get('nodeName', '-')}{_reason(item)}"


def _reason(item: Object) -> str:
    """Returns why a pod is not placed; empty for any other object."""
    if item.get("spec", {}).get("nodeName"):
        return ""
    conditions = item.get("status", {}).get("conditions") or []
    return next(
        (
            f": {condition.get('message', '')}"
            for condition in conditions
            if condition.get("type") == "PodScheduled"
        ),
        "",
    )
