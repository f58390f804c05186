"""What a container asks of a vendor, read from its limits, else from its requests."""

from __future__ import annotations

from collections.abc import Mapping

from hami.errors import MalformedInput
from hami.model import Container, Request
from hami.quantity import INT32_MAX, strict_integer
from hami.vendors.spec import Vendor

__all__ = ["amounts", "objection", "request_of"]

WHOLE = 100


def request_of(vendor: Vendor, container: Container) -> Request | None:
    """The request for *vendor*'s devices; ``None`` when there is none.

    An amount that is no integer, negative, or above 2³¹-1 after scaling makes the whole request void, as it does
    upstream; admission refuses such a pod before it comes to that.
    Source: HAMi v2.10, pkg/device/nvidia/device.go, GenerateResourceRequests.
    """
    given = amounts(vendor, container.limits, container.requests)
    if vendor.count not in given or any(_unusable(vendor, name, text) for name, text in given.items()):
        return None
    values = {name: strict_integer(text) or 0 for name, text in given.items()}
    if values[vendor.count] < 1:
        return None
    memory = values.get(vendor.memory, 0) * max(vendor.memory_factor, 1)
    percent = min(values.get(vendor.memory_percent, 0), WHOLE)
    if memory == 0 and percent <= 0:
        memory, percent = (vendor.default_memory, 0) if vendor.default_memory else (0, WHOLE)
    return Request(vendor=vendor.key, count=values[vendor.count], memory_mib=memory,
                   memory_percent=percent if percent > 0 else None,
                   cores=values.get(vendor.cores, vendor.default_cores))


def amounts(vendor: Vendor, limits: Mapping[str, str], requests: Mapping[str, str]) -> dict[str, str]:
    """What is written for each of *vendor*'s resources (its priority aside): the limit, else the request."""
    names = (vendor.count, vendor.memory, vendor.memory_percent, vendor.cores)
    return {name: text for name in names if name and (text := limits.get(name, requests.get(name))) is not None}


def objection(vendor: Vendor, container: str, given: Mapping[str, str]) -> str | None:
    """Why the amounts *given* for *container* cannot be used, in words for its author; ``None`` if they can."""
    for name, text in given.items():
        if problem := _unusable(vendor, name, text):
            return f"invalid {name} value {text} in container {container}: {problem}"
    return None


def _unusable(vendor: Vendor, name: str, text: str) -> str | None:
    """What is wrong with one amount. A percentage is clamped later and so may be any integer."""
    try:
        value = strict_integer(text)
    except MalformedInput:
        value = None
    highest = INT32_MAX // max(vendor.memory_factor, 1) if name == vendor.memory else INT32_MAX
    if value is None or value > highest or (value < 0 and name != vendor.memory_percent):
        return f"must be an integer between 0 and {highest}"
    return None
