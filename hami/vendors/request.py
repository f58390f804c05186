"""A container's requests for devices, read from its limits, else from its requests."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hami.model import Container, Request
from hami.vendors.resources import CoreUnit, Resources
from hami.vendors.spec import Catalog, Vendor

WHOLE = 100  # percent: all cores or memory of one device
CACHE_SIZE = 8192  # different quantities of containers
MAX_CONTAINERS = 128  # of a pod that requests devices

Quantities = frozenset[tuple[str, str]]
_NO_QUANTITIES: Quantities = frozenset()
_NO_SHARES: Mapping[str, int] = MappingProxyType({})


def requests_devices(vendors: Catalog, containers: Sequence[Container]) -> bool:
    """Reports whether any of *containers* requests devices."""
    return bool(most_shares(vendors, containers))


def most_shares(vendors: Catalog, containers: Sequence[Container]) -> Mapping[str, int]:
    """Returns the most shares of devices that a pod with *containers* can hold, by vendor; requests for others hold 0.

    A container holds as many shares as it requests devices. Where it requests single cores, each may be on a device
    of its own. Only these numbers follow from the specification alone: memory and cores of a share depend on the device
    and on the configuration at the time of the decision, and a share never takes more than its one device.
    """
    requests = [request for container in containers for request in device_requests(vendors, container)]
    return _most_shares(vendors, tuple(requests)) if requests else _NO_SHARES


def device_requests(vendors: Catalog, container: Container) -> tuple[Request, ...]:
    """Returns the requests of *container*, sorted by vendor.

    They depend on its quantities of managed resources alone and most pods of a cluster have the same few, so results
    are cached.
    """
    beside = container.requests.keys() - container.limits.keys()  # a limit comes before a request
    limits = _managed(vendors, container.limits)
    requests = _managed(vendors, {name: container.requests[name] for name in beside}) if beside else _NO_QUANTITIES
    return _requests(vendors, limits, requests) if limits or requests else ()


def _managed(vendors: Catalog, amounts: Mapping[str, str]) -> Quantities:
    if vendors.resources.isdisjoint(amounts):
        return _NO_QUANTITIES
    return frozenset([item for item in amounts.items() if item[0] in vendors.resources])


@functools.lru_cache(maxsize=CACHE_SIZE)
def _most_shares(vendors: Catalog, requests: tuple[Request, ...]) -> Mapping[str, int]:
    limits: dict[str, int] = {}
    for request in requests:
        shares = request.count
        if request.cores > shares and vendors[request.vendor].resources.core_unit is CoreUnit.MASK:
            shares = request.cores
        limits[request.vendor] = limits.get(request.vendor, 0) + shares
    return MappingProxyType(limits)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _requests(vendors: Catalog, limits: Quantities, requests: Quantities) -> tuple[Request, ...]:
    container = Container(name="", limits=dict(limits), requests=dict(requests))
    requested = vendors.requested_by(container.limits, container.requests)
    return tuple(request for vendor in requested if (request := device_request(vendor, container)) is not None)


def device_request(vendor: Vendor, container: Container) -> Request | None:
    """Returns the request for *vendor*'s devices; ``None`` if there is none."""
    return (vendor.resources.parse_request or common_request)(vendor.key, vendor.resources, container)


def common_request(vendor: str, resources: Resources, container: Container) -> Request | None:
    """Returns the request as most vendors parse it; ``None`` if there is none.

    If an amount is not an integer, negative, or above 2³¹-1 after scaling, there is no request, as upstream. Admission
    rejects such a pod before that.
    Source: HAMi v2.10, GenerateResourceRequests in pkg/device/nvidia/device.go and its likes.
    """
    values = parse_amounts(resources, container)
    count = values.get(resources.count, 0)
    if count < 1:
        return None
    memory = values.get(resources.memory, 0)
    cores = values.get(resources.cores, resources.default_cores)
    if resources.amounts_are_totals:
        memory, cores = memory // count, cores // count
    percent = min(values.get(resources.memory_percent, 0), WHOLE)
    if memory == 0 and percent <= 0:
        memory, percent = (resources.default_memory, 0) if resources.default_memory else (0, WHOLE)
    return Request(vendor=vendor, count=count, memory_mib=memory,
                   memory_percent=percent if percent > 0 else None, cores=cores)


def parse_amounts(resources: Resources, container: Container) -> dict[str, int]:
    """Returns the container's amounts as numbers, memory in MiB; empty if any of them is invalid."""
    given = resources.amounts(container.limits, container.requests)
    values = {name: value for name, text in given.items() if (value := resources.parse_amount(name, text)) is not None}
    return values if len(values) == len(given) else {}
