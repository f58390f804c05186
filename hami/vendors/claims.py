"""Requests of pods that no claim can serve: for anything but NVIDIA GPUs and their MIG instances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hami.codec.claim_amounts import MAX_RESULTS, TOO_MANY, VENDOR
from hami.model import Pod, Request
from hami.vendors.spec import Catalog

_MIG_RESOURCE = "nvidia.com/mig-"


def unclaimable(pod: Pod, vendors: Catalog) -> Iterator[str]:
    """Yields why no claim can give *pod* what it requests. Each reason names a field and its value."""
    foreign: set[str] = set()
    for vendor in vendors:
        if vendor.key != VENDOR:
            foreign.update(vendor.resources.names)
    for container in pod.containers:
        amounts = {**container.requests, **container.limits}
        for name in sorted(amounts):
            if name in foreign or name.startswith(_MIG_RESOURCE):
                yield f"container {container.name}: {name}={amounts[name]}: claims are for {VENDOR} GPUs only"


def too_many_devices(requests: Iterable[Request], vendors: Catalog) -> str:
    """Returns why no claim has *requests*, which are satisfied at the same time; empty if one can have them."""
    count = sum(request.count for request in requests)
    if count <= MAX_RESULTS:
        return ""
    resource = vendors[VENDOR].resources.count
    return f"{resource}={count} in all containers of the pod: {TOO_MANY}"
