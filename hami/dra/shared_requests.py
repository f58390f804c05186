"""The requests of a pod's claim: one for each container that asks for NVIDIA GPUs, named after it.

Init containers end before the others begin, so they take the cards of the largest of these: its request is raised to
what they need.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hami.codec.claim_amounts import WHOLE
from hami.codec.claim_spec import Inexpressible
from hami.model import ContainerKind, Pod, Request
from hami.scheduling.pod_request import PodRequest


@dataclass(frozen=True, slots=True)
class SharedRequests:
    """The requests of a claim, and the name of that which each container uses."""

    requests: Mapping[str, Request]
    users: Mapping[str, str]


def share_requests(pod: Pod, request: PodRequest) -> SharedRequests:
    """Returns the requests of the claim of *pod*, in the order of the containers that run at the same time.

    Raises: Inexpressible.
    """
    by_kind: dict[ContainerKind, dict[str, Request]] = {kind: {} for kind in ContainerKind}
    requests: dict[str, Request] = {}
    for container, part in zip(pod.containers, request.containers, strict=True):
        if part.requests:
            by_kind[container.kind][container.name] = part.requests[0]
            if container.kind is not ContainerKind.INIT:
                requests[container.name] = part.requests[0]
    users = {name: name for name in requests}
    inits = by_kind[ContainerKind.INIT]
    if not inits:
        return SharedRequests(requests, users)
    candidates = by_kind[ContainerKind.APP] or inits
    largest = max(candidates, key=lambda name: _size(candidates[name]))
    requests[largest] = _joint(largest, {largest: candidates[largest], **inits})
    return SharedRequests(requests, users | dict.fromkeys(inits, largest))


def _joint(container: str, parts: Mapping[str, Request]) -> Request:
    """Returns a request of *container* that has room for each of *parts*, by container; its own is the first.

    Raises: Inexpressible.
    """
    units = set()
    for part in parts.values():
        if not _is_whole(part):
            units.add(_is_percent(part))
    if len(units) > 1:
        raise Inexpressible(
            f"container {container} and init containers, which use its GPUs before it, ask for memory in MiB and in "
            "percent: use one of them"
        )
    return functools.reduce(_larger, parts.values())


def memory_size(request: Request) -> tuple[bool, int, int]:
    """Returns the memory that *request* needs, in an order of those that have one unit: whole cards need most."""
    return _is_whole(request), request.memory_mib, request.memory_percent or 0


def _size(request: Request) -> tuple[int, bool, int, int, int]:
    return request.count, *memory_size(request), request.cores


def _is_percent(request: Request) -> bool:
    if request.memory_mib:
        return False
    return not _is_whole(request)


def _is_whole(request: Request) -> bool:
    """Reports whether *request* is for all memory of each card."""
    if request.memory_mib:
        return False
    return (request.memory_percent or WHOLE) >= WHOLE


def _larger(first: Request, second: Request) -> Request:
    """Returns a request that has room for either of the two, whose memory has one unit."""
    larger = replace(
        first, count=max(first.count, second.count), cores=max(first.cores, second.cores)
    )
    for part in (first, second):
        if _is_whole(part):
            return replace(larger, memory_mib=0, memory_percent=WHOLE)
    if _is_percent(first):
        percent = max(first.memory_percent or 0, second.memory_percent or 0)
        return replace(larger, memory_percent=percent)
    return replace(larger, memory_mib=max(first.memory_mib, second.memory_mib))
