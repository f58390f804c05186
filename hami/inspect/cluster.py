"""A record in the scheduler's own store, so that every answer comes from the code that decides."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache

from hami.codec.device_config import chart_config, parse_device_config
from hami.codec.objects import parse_resource_version
from hami.errors import HamiError
from hami.inspect.record import SELECTION_KEYS, ClusterRecord
from hami.model import Node, Pod
from hami.scheduling.usage import Charge
from hami.state.store import Store
from hami.state.view import View
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


class InspectedCluster:
    """The cluster of *record*, as the scheduler would see it then. *view*: if it is known already."""

    def __init__(self, record: ClusterRecord, view: View | None = None) -> None:
        self.record = record
        self.view = view if view is not None else store_of(record).view()
        self.vendors = self.view.vendors
        self.nodes: Mapping[str, Node] = {node.name: node for node in record.nodes}
        self.pods: Mapping[str, Pod] = {pod.ref.uid: pod for pod in record.pods}

    def holders(self, node: str, vendor: str, uuid: str) -> list[tuple[Pod | None, Charge]]:
        """Returns the pods on a device with what they hold of it; ``None`` for a pod that the record does not have."""
        return [(self.pods.get(booking.uid), charge) for booking in self.view.bookings_on(node)
                for key, charges in booking.charges if key == vendor for charge in charges if charge.uuid == uuid]

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
        """Returns the latest pod of that name; ``None`` if the record has none."""
        named = [pod for pod in self.record.pods if (pod.ref.namespace, pod.ref.name) == (namespace, name)]
        return max(named, key=lambda pod: parse_resource_version(pod.resource_version), default=None)

    def check_has_devices(self) -> None:
        """Raises: HamiError if no node offers devices."""
        if not self.view.nodes:
            raise HamiError("no node has registered devices: is HAMi's device plugin running, and is this the right "
                            "context?")


def store_of(record: ClusterRecord) -> Store:
    """Returns a store that has seen everything of *record*."""
    store = Store(catalog_of(record.device_config), record.policies, clock=lambda: 0.0, now=lambda: record.taken,
                  foreign_reservations=True)
    for node in record.nodes:
        store.nodes.upsert(node)
    for quota in record.quotas:
        store.quotas.upsert(quota)
    for pod in record.pods:
        store.pods.upsert(pod)
    return store


def unknown_name(kind: str, name: str, known: Iterable[str]) -> HamiError:
    """Returns the error for a name that matches nothing, with the nearest names."""
    nearest = difflib.get_close_matches(name, list(known), NEAREST_NAMES, cutoff=0.5)
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    return HamiError(f"there is no {kind} {name}{hint}")
