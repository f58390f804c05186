"""ResourceClaims (resource.k8s.io/v1) that the scheduler makes and allocates, from what it has booked for a pod.

A claim is created with its owner and what it asks for; the API server drops a status then. The status, which says what
was allocated, is written next, or once a pod that waits has its node. An allocation never changes: it is removed before
another one is written.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import msgspec

from hami.codec.claim_amounts import WHOLE
from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest, parse_claim
from hami.codec.documents import decode
from hami.codec.keys import MANAGED_TAINT
from hami.codec.objects import Metadata
from hami.codec.slices import (
    API_VERSION,
    DRIVER,
    MIG_CLASS,
    SHARE,
    device_name,
    instance_name,
    is_instance,
    least_share,
    pool_name,
)
from hami.codec.times import render_time
from hami.errors import MalformedInput
from hami.model import Allocation, Device, Pod, PodRef, Share
from hami.quantity import MIB, render_mib, render_milli, rounded_up

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Keeps a claim until kube-controller-manager has removed its allocation, once no pod is left that uses it."""
_CONSUMED = "memory", "cores", "share"
_TOLERATION = {"key": MANAGED_TAINT, "operator": "Exists", "effect": "NoSchedule"}
"""Kubernetes copies those of a request to what is allocated for it."""


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """A claim on the API server. *owners*: the uids of the objects with which it is deleted. *claim*: None if its
    allocation is none of ours. *is_allocated*: it has an allocation, perhaps of another driver. *alternatives*: of
    requests that have some, their names as results of an allocation have them, by request and MiB."""

    uid: str
    version: str
    owners: frozenset[str]
    claim: AllocatedClaim | None
    is_allocated: bool
    alternatives: Mapping[tuple[str, int], str] = field(default_factory=dict)


def booked_claim(
    pod: Pod, node: str, booked: Allocation, devices: Mapping[str, Device], token: uuid.UUID
) -> AllocatedClaim:
    """Returns the claim of *pod* on *node* with what is *booked* for its containers, not yet created.

    *devices*: those of the node, by UUID. *token*: from which the names of the shares follow, so that another booking
    of the same devices makes another claim.
    """
    return AllocatedClaim(
        namespace=pod.ref.namespace,
        name=pod.claim,
        uid="",
        pods=(pod.ref,),
        requests=tuple(
            replace(
                request,
                devices=tuple(
                    device
                    if is_instance(device.device)
                    else replace(
                        device, share_id=str(uuid.uuid5(token, f"{request.name}/{device.device}"))
                    )
                    for device in request.devices
                ),
            )
            for request in booked_requests(pod, node, booked, devices)
        ),
    )


def booked_requests(
    pod: Pod, node: str, booked: Allocation, devices: Mapping[str, Device]
) -> tuple[ClaimedRequest, ...]:
    """Returns what is *booked* for the containers of *pod*, whose names their requests have; without names of shares.

    Raises: MalformedInput if a device is not among *devices*, those of the node by UUID.
    """
    return tuple(
        ClaimedRequest(
            name=container.name, devices=tuple(_claimed(node, share, devices) for share in shares)
        )
        for container, shares in zip(pod.containers, booked)
        if shares
    )


def differing_containers(claim: AllocatedClaim, pod: Pod, booked: Allocation) -> list[str]:
    """Returns the names of requests in which *claim* differs from what is *booked* for the containers of its *pod*.

    Shares of 100 do not count: they change with the number of slots.
    """
    claimed = Counter(
        (
            request.name,
            tuple(
                (device.pool, device.device, device.memory_mib, device.cores)
                for device in request.devices
            ),
        )
        for request in claim.requests
    )
    wanted = Counter(
        (
            container.name,
            tuple((pool_name(pod.node_name), *_name_and_amounts(share)) for share in shares),
        )
        for container, shares in zip(pod.containers, booked)
        if shares
    )
    return sorted({name for name, _ in (claimed - wanted) + (wanted - claimed)})


def render_claim(claim: AllocatedClaim) -> dict[str, Any]:
    """Returns *claim*, of its only pod, as it is created: without its allocation.

    A request of several devices asks of each for what the one with the least has: they may differ in size.
    """
    (pod,) = claim.pods
    return _owned(
        pod,
        claim.name,
        {
            "requests": [
                {"name": request.name, "exactly": _exactly(request.devices)}
                for request in claim.requests
            ]
        },
    )


def render_waiting_claim(pod: Pod, devices: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the claim of *pod*, which has no node yet, as it is created. *devices*: what it asks for."""

    def tolerating(part: Mapping[str, Any]) -> dict[str, Any]:
        return {**part, "tolerations": [_TOLERATION]}

    return _owned(
        pod.ref,
        pod.claim,
        {
            **devices,
            "requests": [
                {**request, "exactly": tolerating(request["exactly"])}
                if "exactly" in request
                else {
                    **request,
                    "firstAvailable": [tolerating(part) for part in request["firstAvailable"]],
                }
                for request in devices["requests"]
            ],
        },
    )


def render_allocation(
    claim: AllocatedClaim, stored: StoredClaim, node: str, now: datetime
) -> dict[str, Any]:
    """Returns the update of the status by which *claim*, as it is *stored*, gets its devices on *node*.

    The time is that of the allocation: kube-scheduler adds one where there is none, and is refused.
    """
    results = [
        {
            "request": stored.alternatives.get((request.name, device.memory_mib), request.name),
            "driver": DRIVER,
            "pool": device.pool,
            "device": device.device,
            "tolerations": [_TOLERATION],
            **_consumed(device),
        }
        for request in claim.requests
        for device in request.devices
    ]
    selector = {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        ]
    }
    return _update(
        claim,
        stored,
        {
            "allocation": {
                "devices": {"results": results},
                "nodeSelector": selector,
                "allocationTimestamp": render_time(now),
            },
            "reservedFor": [
                {"resource": "pods", "name": pod.name, "uid": pod.uid} for pod in claim.pods
            ],
        },
    )


def render_deallocation(claim: AllocatedClaim, stored: StoredClaim) -> dict[str, Any]:
    """Returns the update of the status by which *claim*, as it is *stored*, has no devices any more."""
    return _update(claim, stored, {})


def parse_stored_claim(data: bytes | msgspec.Raw) -> StoredClaim:
    """The claim in *data* (JSON). Raises: MalformedInput if it is no object of the API server."""
    wire = decode("resourceclaim", _STORED, data)
    try:
        claim = parse_claim(data)
    except MalformedInput:  # whoever may write its status may write anything
        claim = None
    return StoredClaim(
        wire.metadata.uid or "",
        wire.metadata.resource_version or "",
        frozenset(owner.uid or "" for owner in wire.metadata.owner_references or ()),
        claim,
        wire.status is not None and wire.status.allocation is not None,
        dict(_alternatives(wire.spec.devices.requests or ())),
    )


class _Status(msgspec.Struct):
    allocation: dict[str, Any] | None = None


class _Capacity(msgspec.Struct):
    requests: dict[str, str] | None = None


class _Alternative(msgspec.Struct):
    name: str
    capacity: _Capacity | None = None


class _Request(msgspec.Struct, rename="camel"):
    name: str
    first_available: list[_Alternative] | None = None


class _Devices(msgspec.Struct):
    requests: list[_Request] | None = None


class _Spec(msgspec.Struct):
    devices: _Devices = msgspec.field(default_factory=_Devices)


class _Stored(msgspec.Struct):
    metadata: Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status | None = None


_STORED = msgspec.json.Decoder(_Stored)


def _alternatives(requests: Iterable[_Request]) -> Iterator[tuple[tuple[str, int], str]]:
    for request in requests:
        for part in request.first_available or ():
            memory = ((part.capacity and part.capacity.requests) or {}).get("memory", "0")
            yield (request.name, rounded_up(memory) // MIB), f"{request.name}/{part.name}"


def _claimed(node: str, share: Share, devices: Mapping[str, Device]) -> ClaimedDevice:
    """Returns the part of a card that *share* is. A card without cores left is given to nobody else, so the one with
    all cores has all of it, as in claims that ask for all cores."""
    if (device := devices.get(share.uuid)) is None:
        raise MalformedInput("device", share.uuid, f"expected one of node {node}")
    name, memory_mib, cores = _name_and_amounts(share)
    if share.partitions:
        return ClaimedDevice(pool=pool_name(node), device=name)
    is_alone = device.cores == WHOLE and share.cores >= WHOLE
    return ClaimedDevice(
        pool=pool_name(node),
        device=name,
        memory_mib=memory_mib,
        cores=cores,
        share_milli=SHARE * 1000 if is_alone else least_share(device.slots),
    )


def _name_and_amounts(share: Share) -> tuple[str, int, int]:
    """Returns the name of what a claim gets for *share*, memory in MiB and cores; none of a MIG instance."""
    if share.partitions:
        return instance_name(share.uuid, share.partitions[0]), 0, 0
    return device_name(share.uuid), share.memory_mib, share.cores


def _owned(pod: PodRef, name: str, devices: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the claim *name* of *pod*, which is deleted with it."""
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod.name,
        "uid": pod.uid,
        "controller": True,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {
            "namespace": pod.namespace,
            "name": name,
            "finalizers": [FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": {"devices": devices},
    }


def _exactly(devices: Sequence[ClaimedDevice]) -> dict[str, Any]:
    if is_instance(devices[0].device):
        return {"deviceClassName": MIG_CLASS, "count": len(devices), "tolerations": [_TOLERATION]}
    least = ClaimedDevice(
        pool="",
        device="",
        **{
            amount: min(getattr(device, amount) for device in devices)
            for amount in ("memory_mib", "cores", "share_milli")
        },
    )
    return {
        "deviceClassName": DRIVER,
        "count": len(devices),
        "capacity": {"requests": dict(zip(_CONSUMED, _amounts(least)))},
        "tolerations": [_TOLERATION],
    }


def _consumed(device: ClaimedDevice) -> dict[str, Any]:
    """Returns what is taken of a card that claims share."""
    return (
        {"shareID": device.share_id, "consumedCapacity": dict(zip(_CONSUMED, _amounts(device)))}
        if (device.share_id)
        else {}
    )


def _amounts(device: ClaimedDevice) -> Iterable[str]:
    return render_mib(device.memory_mib), str(device.cores), render_milli(device.share_milli)


def _update(
    claim: AllocatedClaim, stored: StoredClaim, status: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": stored.uid,
            "resourceVersion": stored.version,
        },
        "status": status,
    }
