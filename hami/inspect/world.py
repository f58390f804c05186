"""A record in the scheduler's own cache, so that every answer comes from the code that decides."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache

import msgspec

from hami.cache.cache import Cache, Snapshot
from hami.codec.device_config import chart_config, parse_device_config
from hami.errors import HamiError
from hami.inspect.record import SELECTION_KEYS, ClusterRecord
from hami.model import Node, Pod
from hami.scheduling.usage import Charge
from hami.vendors.entry_points import full_catalog, sections
from hami.vendors.spec import Catalog

NEAREST_NAMES = 3  # that an error suggests


@lru_cache(maxsize=2)
def catalog_of(device_config: str) -> Catalog:
    """Returns the vendors of a device configuration, empty for the chart's; also those that need a flag.

    Raises: HamiError if the text cannot be read.
    """
    if not device_config:
        return full_catalog(chart_config())
    return full_catalog(parse_device_config(device_config, "device configuration", known=sections()))


class Holding(msgspec.Struct, frozen=True, gc=False):
    """The part of one device that one pod holds. *pod*: ``None`` if the record does not have it."""

    pod: Pod | None
    charge: Charge


class World:
    """The cluster of *record*, as the scheduler would see it then. *cache* can be asked and changed.

    A *snapshot* that is given is what is known of devices and bookings, and *cache* the one that it was made of.
    """

    def __init__(self, record: ClusterRecord, cache: Cache | None = None, snapshot: Snapshot | None = None) -> None:
        self.record = record
        self.cache = cache if cache is not None else _filled(record)
        self.vendors = self.cache.vendors
        self._given = snapshot
        self.nodes: Mapping[str, Node] = {node.name: node for node in record.nodes}
        self.pods: Mapping[str, Pod] = {pod.ref.uid: pod for pod in record.pods}

    @cached_property
    def snapshot(self) -> Snapshot:
        """The devices and what is booked on them, as recorded."""
        return self._given if self._given is not None else self.cache.snapshot()

    @cached_property
    def holdings(self) -> Mapping[tuple[str, str, str], list[Holding]]:
        """The pods on each device, by node, vendor and uuid."""
        found: dict[tuple[str, str, str], list[Holding]] = defaultdict(list)
        for booking in self.snapshot.bookings:
            pod = self.pods.get(booking.uid)
            for vendor, charges in booking.charges:
                for charge in charges:
                    found[booking.node, vendor, charge.uuid].append(Holding(pod, charge))
        return found

    @cached_property
    def holders(self) -> Mapping[str, list[str]]:
        """The uids of the pods that hold devices, by node."""
        found: dict[str, list[str]] = defaultdict(list)
        for booking in self.snapshot.bookings:
            found[booking.node].append(booking.uid)
        return found

    @cached_property
    def selection_keys(self) -> frozenset[str]:
        """The annotations with which the author of a pod selects nodes and devices."""
        return SELECTION_KEYS | {
            key for vendor in self.vendors
            for key in (*vendor.annotations.selectors.names, *vendor.annotations.pod_keys,
                        vendor.resources.no_cores_annotation[0]) if key}

    def offered(self) -> list[str]:
        """Returns the names of the nodes that kube-scheduler may offer: those that are not cordoned, sorted."""
        return sorted(name for name, node in self.nodes.items() if not node.unschedulable)

    def pod_named(self, namespace: str, name: str) -> Pod | None:
        """Returns the pod of that name; ``None`` if the record has none."""
        record = self.cache.pods.named(namespace, name)
        return self.pods.get(record.ref.uid) if record is not None else None

    def check_has_devices(self) -> None:
        """Raises: HamiError if no node offers devices."""
        if not self.snapshot.nodes:
            raise HamiError("no node has registered devices: is HAMi's device plugin running, and is this the right "
                            "context?")


def _filled(record: ClusterRecord) -> Cache:
    """Returns a cache that has seen everything of *record*."""
    cache = Cache(catalog_of(record.device_config), record.policies, clock=lambda: 0.0, now=lambda: record.taken,
                  yield_lock=lambda: None, foreign_reservations=True)
    for node in record.nodes:
        cache.nodes.upsert(node)
    for quota in record.quotas:
        cache.quotas.upsert(quota)
    for pod in record.pods:
        cache.pods.upsert(pod)
    return cache


def unknown_name(kind: str, name: str, known: Iterable[str]) -> HamiError:
    """Returns the error for a name that matches nothing, with the nearest names."""
    nearest = difflib.get_close_matches(name, list(known), NEAREST_NAMES, cutoff=0.5)
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    return HamiError(f"there is no {kind} {name}{hint}")
