"""The calls to the API server about Leases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from hami.codec.documents import decode
from hami.errors import NotFound
from hami.kube.calls import Calls, Edits, as_json, path_of, target_of


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


class Leases(Calls):
    """Calls about Leases."""

    def lease(
        self, namespace: str, name: str, *, timeout: float | None = None
    ) -> LeaseRecord | None:
        """Returns the current Lease; ``None`` if there is none. One attempt. Raises also: MalformedInput."""
        try:
            return _parse_lease(
                self._api.request("GET", path_of("leases", namespace, name), timeout=timeout)
            )
        except NotFound:
            return None

    def write_lease(self, lease: LeaseRecord, *, timeout: float | None = None) -> LeaseRecord:
        """Writes the Lease, in one attempt, and returns it as stored. It is changed if its version is still
        ``lease.resource_version``, or created if *lease* has no version.

        Raises: Conflict if it has changed or been created since, NotFound if it is gone.
        """
        method, path, content_type = target_of("leases", lease)
        return _parse_lease(
            self._api.request(
                method,
                path,
                body=as_json(_render_lease(lease)),
                content_type=content_type,
                timeout=timeout,
            )
        )


class _Meta(msgspec.Struct, rename="camel"):
    namespace: str
    name: str
    resource_version: str
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int = 0


class _Lease(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = _Spec()


_LEASE = msgspec.json.Decoder(_Lease)


def _parse_lease(data: bytes) -> LeaseRecord:
    wire = decode("lease", _LEASE, data)
    return LeaseRecord(
        namespace=wire.metadata.namespace,
        name=wire.metadata.name,
        holder=wire.spec.holder_identity,
        duration_s=wire.spec.lease_duration_seconds,
        acquire_time=wire.spec.acquire_time,
        renew_time=wire.spec.renew_time,
        transitions=wire.spec.lease_transitions,
        annotations=wire.metadata.annotations,
        resource_version=wire.metadata.resource_version,
    )


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
