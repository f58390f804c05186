"""Attempts, paths and bodies: the parts that all calls to the API server have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from hami.errors import ClusterError, MalformedInput, NotFound
from hami.kube.api import JSON, MERGE_PATCH, Api, is_disconnect, is_unsent
from hami.kube.retry import brief_retry

T = TypeVar("T")

Edits = Mapping[str, str | None]
"""Annotations or labels to set; ``None`` removes one."""

NO_EDITS: Edits = {}
WEBHOOKS = "mutatingwebhookconfigurations"
_GROUPS = {  # of resources that are not in the core group
    "leases": "/apis/coordination.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "priorityclasses": "/apis/scheduling.k8s.io/v1",
    WEBHOOKS: "/apis/admissionregistration.k8s.io/v1",
}


class Calls:
    """Calls to the API server; threads may share it.

    Every call raises a ClusterError if the server refuses. An error without a status means that the call may have taken
    effect. *timeout*: seconds that one attempt may wait for the server; by default the Api's own.
    """

    def __init__(self, api: Api, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """*sleep* waits between attempts."""
        self._api = api
        self._read = brief_retry(is_read_retriable, sleep).wraps(api.request)
        self._write = brief_retry(is_unsent, sleep).wraps(api.request)

    def _get(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse(self._read("GET", path))
        except NotFound:
            return None

    def _patch(self, path: str, patch: Mapping[str, Any], timeout: float | None = None) -> bytes:
        if timeout is not None:
            return self._api.request(
                "PATCH", path, body=as_json(patch), content_type=MERGE_PATCH, timeout=timeout
            )
        return self._write("PATCH", path, body=as_json(patch), content_type=MERGE_PATCH)


class Versioned(Protocol):
    """An object in a namespace. *resource_version*: empty for one that does not exist yet."""

    @property
    def namespace(self) -> str:
        """The namespace."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def resource_version(self) -> str:
        """The version that was read."""


def is_read_retriable(error: BaseException) -> bool:
    """Reports whether the connection broke or the server failed. A read that timed out is not repeated."""
    failed = isinstance(error, ClusterError) and error.status in (500, 502, 503, 504)
    return failed or is_unsent(error) or is_disconnect(error)


def deletion_of(uid: str) -> dict[str, Any]:
    """Returns the options for deleting an object only if it has *uid*."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}


def as_json(value: Mapping[str, Any]) -> bytes:
    """Returns the body of a request."""
    return msgspec.json.encode(value)


def path_of(resource: str, namespace: str | None, name: str | None = None) -> str:
    """Returns the path of a collection, or of an object in it. *namespace*: ``None`` for cluster-wide resources."""
    path = _GROUPS.get(resource, "/api/v1")
    if namespace is not None:
        path += f"/namespaces/{_segment(namespace)}"
    path += f"/{resource}"
    if name is not None:
        path += f"/{_segment(name)}"
    return path


def target_of(resource: str, record: Versioned) -> tuple[str, str, str]:
    """Returns method, path and content type of the write that changes the object that was read, or creates one."""
    if record.resource_version:
        return "PATCH", path_of(resource, record.namespace, record.name), MERGE_PATCH
    return "POST", path_of(resource, record.namespace), JSON


def _segment(name: str) -> str:
    """Returns *name* as one segment of a path. Raises: MalformedInput if it would address another object."""
    if name in ("", ".", ".."):
        raise MalformedInput("name", name, "a name of a Kubernetes object is expected")
    return quote(name, safe="")
