"""The containers that get what was allocated to a claim. Pure.

The kubelet gives a container the CDI devices of all requests that it uses. Where two of them mount something at one
path, the last wins, so those of one container must say the same. Containers that use the same requests therefore share
one directory, whose limits are the sum of what these requests got, and no other container uses any of them.
Source of the names of requests for extended resources: Kubernetes v1.37, extendeddynamicresources.go.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from hami.codec.claims import AllocatedClaim
from hami.errors import Rejected
from hami.model import ContainerKind, Pod

_OF_EXTENDED_RESOURCE = re.compile(r"container-([0-9]{1,4})-request-[0-9]{1,4}")


def recipients(
    claim: AllocatedClaim, pod: Pod, uses: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """Returns the container in whose directory each request of *claim* is; empty for a request that none uses.

    *uses*: the requests of the claim that each container of *pod* uses, as in
    :data:`hami.codec.device_requests.UsedClaims`. It is empty for a claim that the pod does not name: its requests have
    the name, or the number, of their container.
    Raises: Rejected if there is no such container, or if containers share only some of their requests.
    """
    requests = [request.name for request in claim.requests]
    users = _users(requests, claim, pod, uses)
    # the container that each set of requests is named after: the last one counts
    owners: dict[frozenset[str], str] = {}
    for container in reversed(_in_order(pod, users)):
        owners[users[container]] = container
    found: dict[str, str] = {}
    for used, name in owners.items():
        for request in sorted(used):
            other = found.setdefault(request, name)
            if other != name:
                raise Rejected(
                    f"containers {min(name, other)} and {max(name, other)} of pod {pod.ref.name} both use request "
                    f"{request} of claim {claim.namespace}/{claim.name}, so they must use the same requests of it"
                )
    return {request: found.get(request, "") for request in requests}


def _users(
    requests: Collection[str],
    claim: AllocatedClaim,
    pod: Pod,
    uses: Mapping[str, Collection[str]],
) -> dict[str, frozenset[str]]:
    """Returns the *requests* that each container uses, by container."""
    users = {
        container: frozenset(requests).intersection(used or requests)
        for container, used in uses.items()
    }
    if uses:
        return users
    for request in requests:
        container = _container_of(request, claim, pod)
        users[container] = users.get(container, frozenset()) | {request}
    return users


def _in_order(pod: Pod, users: Mapping[str, frozenset[str]]) -> list[str]:
    """Returns the containers of *users*: first those that are named after a request of theirs, then those that do not
    end before others start."""
    containers = [container for container in pod.containers if container.name in users]
    containers.sort(
        key=lambda container: (
            container.name not in users[container.name],
            container.kind is ContainerKind.INIT,
        )
    )
    return [container.name for container in containers]


def _container_of(request: str, claim: AllocatedClaim, pod: Pod) -> str:
    """Returns the container of the pod that is meant by the name of a request: the scheduler gives it that of the
    container, and kube-scheduler, for an extended resource, the number of the container."""
    names = [
        container.name for container in pod.containers
    ]  # also kube-scheduler counts init containers first
    if request in names:
        return request
    match = _OF_EXTENDED_RESOURCE.fullmatch(request)
    if match is None or int(match[1]) >= len(names):
        raise Rejected(
            f"request {request} of claim {claim.namespace}/{claim.name}: no container of pod "
            f"{pod.ref.name} uses it"
        )
    return names[int(match[1])]
