"""The metric by which OpenCost and Kubecost charge GPUs: of each pod the share of the devices that it holds.

They read ``container_gpu_allocation`` in GPUs, by namespace, pod, container and node, and multiply its mean by the
hours of the container. Their own exporter says 1 for a pod with a quarter of a GPU, since that is what it requests.
Source: OpenCost 5f65330, pkg/costmodel (queryGPUAllocation).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from hami.kube.reflector import Sink
from hami.model import ContainerKind, Device, Pod
from hami.state.bookings import Booking
from hami.state.held import amounts_of
from hami.state.store import Store
from hami.state.view import View
from hami.vendors.request import requesting
from hami.vendors.spec import Catalog, CoreUnit
from hami.web.exposition import Family, escape_label

NAME = "container_gpu_allocation"
HELP = (
    "Devices that a pod holds, by the larger share of memory and cores: for OpenCost and Kubecost"
)


class DeviceContainers:
    """Knows the container that stands for the devices of each bound pod, and passes all on to *sink*, the store's pods.

    Bookings are those of pods, and OpenCost charges containers: the first one that requests devices stands for all.
    """

    def __init__(self, sink: Sink[Pod], store: Store) -> None:
        self._sink = sink
        self._vendors = store.vendors
        self._lock = threading.Lock()  # guards _names
        self._names: dict[str, str] = {}

    def names(self) -> Mapping[str, str]:
        """Returns the containers by the uid of the pod."""
        with self._lock:
            return dict(self._names)

    def upsert(self, pod: Pod, as_of: float = -math.inf) -> None:
        """Takes *pod* as a sink does."""
        self._sink.upsert(pod, as_of)
        name = ""
        if pod.node_name and not pod.is_terminated:
            name = self._container(pod)
        with self._lock:
            if name:
                self._names[pod.ref.uid] = name
            else:
                self._names.pop(pod.ref.uid, None)

    def remove(self, pod: Pod) -> None:
        """Takes *pod*, which has been deleted."""
        self._sink.remove(pod)
        with self._lock:
            self._names.pop(pod.ref.uid, None)

    def prune(self, seen: set[str], started: float) -> None:
        """Ends a list: pods that are gone hold nothing."""
        self._sink.prune(seen, started)
        with self._lock:
            for uid in self._names.keys() - seen:
                del self._names[uid]

    def _container(self, pod: Pod) -> str:
        """Returns the first container that requests devices, init containers last; empty if none does."""
        names: set[str] = set()
        for vendor in self._vendors:
            names.update(requesting(vendor, pod.containers))
        ordered = sorted(pod.containers, key=lambda item: item.kind is ContainerKind.INIT)
        for container in ordered:
            if container.name in names:
                return container.name
        return ""


class _ShareRow(NamedTuple):
    namespace: str
    pod: str
    container: str
    node: str
    uid: str
    share: float


def allocation_family(view: View, vendors: Catalog, names: Mapping[str, str]) -> Family:
    """Returns the metric of the pods of *view* that have one of the containers *names*, by uid."""
    in_units = set()
    for vendor in vendors:
        if vendor.resources.core_unit is CoreUnit.COMPUTE_UNITS:
            in_units.add(vendor.key)
    return Family(NAME, HELP, map(_sample, _rows(view, names, in_units)))


def _rows(view: View, names: Mapping[str, str], in_units: Collection[str]) -> Iterator[_ShareRow]:
    by_node = attrgetter("node")
    for node, bookings in groupby(sorted(view.bookings.values(), key=by_node), key=by_node):
        devices: dict[tuple[str, str], Device] = {}
        for vendor, usages in view.nodes.get(node, {}).items():
            for usage in usages:
                devices[vendor, usage.device.uuid] = usage.device
        for booking in sorted(bookings, key=attrgetter("uid")):
            ref, container = view.ref(booking.uid), names.get(booking.uid)
            if ref is None or container is None:
                continue
            share = _share(booking, devices, in_units)
            yield _ShareRow(ref.namespace, ref.name, container, node, booking.uid, share)


def _share(
    booking: Booking, devices: Mapping[tuple[str, str], Device], in_units: Collection[str]
) -> float:
    """Returns the devices of a pod; two halves are one."""
    thousandths = 0
    for vendor, charges in booking.charges:
        for charge in charges:
            device = devices.get((vendor, charge.uuid))
            thousandths += amounts_of(charge, device, in_units=vendor in in_units).share
    return thousandths / 1000


def _sample(row: _ShareRow) -> str:
    pairs = []
    for label in ("container", "namespace", "node", "pod", "uid"):
        pairs.append(f'{label}="{escape_label(getattr(row, label))}"')
    return f"{NAME}{{{','.join(pairs)}}} {row.share}"
