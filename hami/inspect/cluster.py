"""A cluster at one moment, as every command for people sees it: a record, and the view that the scheduler has of it.

The record holds only what HAMi's decision reads, and what names an object to people: no environment variables, no
secrets. It is seen by the scheduler's own store, so that every answer comes from the code that decides.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache

from hami.codec.claims import AllocatedClaim
from hami.codec.device_config import chart_config, parse_device_config
from hami.codec.keys import GPU_POLICY, NODE_POLICY, NUMA_BIND, WEIGHTS
from hami.codec.objects import parse_resource_version
from hami.codec.slices import PublishedSlice
from hami.errors import HamiError
from hami.inspect.installation import Installation
from hami.model import DeviceUsage, Node, Pod, PodRef, QuotaLimits
from hami.scheduling.usage import Charge
from hami.state.bookings import Booking
from hami.state.claims import ClaimCache, Claimed
from hami.state.store import Store
from hami.state.view import Policies, View
from hami.vendors.entry_points import full_catalog, sections
from hami.vendors.spec import Catalog

NEAREST_NAMES = 3  # that an error suggests


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object of the API server that cannot be read. *kind*: such as ``pod``. *problem*: the reason."""

    kind: str
    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class SchedulingEvent:
    """An event about a pod. *component*: who says so. *last*: in the API server's format."""

    component: str
    reason: str
    message: str
    count: int
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """Nodes, pods that hold or request devices, and quotas.

    *taken*: when the record was begun. *device_config*: the YAML text of the device configuration, empty for the
    chart's. *policies*: of the scheduler, for pods that name none. *events*: by uid of the pod, in
    snapshots only. *installation*: in snapshots, and for an audit. *slices*, *claims*: devices that kube-scheduler
    allocates by Dynamic Resource Allocation.
    """

    taken: datetime
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    quotas: tuple[QuotaLimits, ...] = ()
    device_config: str = ""
    policies: Policies = Policies()
    slices: tuple[PublishedSlice, ...] = ()
    claims: tuple[AllocatedClaim, ...] = ()
    unreadable: tuple[UnreadableObject, ...] = ()
    events: Mapping[str, tuple[SchedulingEvent, ...]] = field(default_factory=dict)
    installation: Installation = Installation()


@lru_cache(maxsize=2)
def catalog_of(device_config: str) -> Catalog:
    """Returns the vendors of a device configuration, empty for the chart's; also those that need a flag.

    Raises: HamiError if the text cannot be read.
    """
    if not device_config:
        return full_catalog(chart_config())
    return full_catalog(
        parse_device_config(device_config, "device configuration", known=sections())
    )


class InspectedCluster:
    """The cluster of *record*, as the scheduler would see it then. *view*, *claimed*: if they are known already.

    *view* is what the scheduler decides from, *claimed* what is allocated by claims: usage is that of both.
    """

    def __init__(
        self, record: ClusterRecord, view: View | None = None, claimed: Claimed | None = None
    ) -> None:
        self.record = record
        if view is None:
            view = store_of(record).view()
        if claimed is None:
            claimed = claims_of(record).at_once(view.facts)
        self.view = view
        self.claimed = claimed
        self.vendors = self.view.vendors
        self.nodes: Mapping[str, Node] = {node.name: node for node in record.nodes}
        self.pods: Mapping[str, Pod] = {pod.ref.uid: pod for pod in record.pods}

    def usages_on(self, node: str) -> list[DeviceUsage]:
        """Returns the devices of *node* and their usage, by vendor."""
        usages: list[DeviceUsage] = []
        for view in (self.view, self.claimed.view):
            for _, of_vendor in sorted(view.usages(node).items()):
                usages += of_vendor
        return usages

    def usages(self) -> Iterator[tuple[str, DeviceUsage]]:
        """Yields the usage of each device, with its node."""
        for name in dict.fromkeys((*self.view.nodes, *self.claimed.view.nodes)):
            for usage in self.usages_on(name):
                yield name, usage

    def bookings_on(self, node: str) -> list[Booking]:
        """Returns what pods and claims hold on *node*."""
        return [*self.view.bookings_on(node), *self.claimed.view.bookings_on(node)]

    def bookings_of(self, pod: Pod) -> list[Booking]:
        """Returns what *pod* and its claims hold."""
        bookings = [self.view.bookings.get(pod.ref.uid)]
        bookings += [self.claimed.view.bookings.get(claim.uid) for claim in self.claims_of(pod)]
        return [booking for booking in bookings if booking is not None]

    def charges_of(self, pod: Pod) -> list[tuple[str, Charge]]:
        """Returns what *pod* and its claims hold of each device, with the vendor."""
        charges: list[tuple[str, Charge]] = []
        for booking in self.bookings_of(pod):
            for vendor, of_vendor in booking.charges:
                charges += [(vendor, charge) for charge in of_vendor]
        return charges

    def claims_of(self, pod: Pod) -> Sequence[AllocatedClaim]:
        """Returns the claims that are reserved for *pod*."""
        return self._claims_of_pods.get(pod.ref.uid, ())

    @cached_property
    def _claims_of_pods(self) -> Mapping[str, list[AllocatedClaim]]:
        """The claims by the uid of each of their pods."""
        claims: dict[str, list[AllocatedClaim]] = {}
        for claim in self.claimed.claims.values():
            for ref in claim.pods:
                claims.setdefault(ref.uid, []).append(claim)
        return claims

    def pods_with(self, booking: Booking) -> list[Pod | None]:
        """Returns the pods that hold *booking*; ``None`` for one that the record does not have."""
        claim = self.claimed.claims.get(booking.uid)
        uids = [ref.uid for ref in claim.pods] if claim is not None else [booking.uid]
        return [self.pods.get(uid) for uid in uids or [""]]

    def holders(self, node: str, vendor: str, uuid: str) -> list[tuple[Pod | None, Charge]]:
        """Returns the pods on a device with what they hold of it; ``None`` for a pod that the record does not have."""
        holders: list[tuple[Pod | None, Charge]] = []
        for booking in self.bookings_on(node):
            for key, charges in booking.charges:
                if key != vendor:
                    continue
                for charge in charges:
                    if charge.uuid == uuid:
                        holders += [(pod, charge) for pod in self.pods_with(booking)]
        return holders

    def pods_on(self, node: str) -> list[Pod]:
        """Returns the pods that hold devices of *node*, each once, as far as the record has them."""
        pods: dict[PodRef, Pod] = {}
        for booking in self.bookings_on(node):
            for pod in self.pods_with(booking):
                if pod is not None:
                    pods[pod.ref] = pod
        return list(pods.values())

    @cached_property
    def cordoned(self) -> frozenset[str]:
        """The names of the nodes that kube-scheduler does not offer."""
        return frozenset(name for name, node in self.nodes.items() if node.unschedulable)

    @cached_property
    def offered(self) -> list[str]:
        """The names of the nodes that kube-scheduler may offer, sorted."""
        return sorted(self.nodes.keys() - self.cordoned)

    def pod_named(self, namespace: str, name: str) -> Pod | None:
        """Returns the latest pod of that name; ``None`` if the record has none."""
        named = [
            pod
            for pod in self.record.pods
            if (pod.ref.namespace, pod.ref.name) == (namespace, name)
        ]
        return max(
            named, key=lambda pod: parse_resource_version(pod.resource_version), default=None
        )

    def check_has_devices(self) -> None:
        """Raises: HamiError if no node offers devices."""
        if not self.view.nodes and not self.claimed.view.nodes:
            raise HamiError(
                "no node has registered devices: is HAMi's device plugin running, and is this the right "
                "context?"
            )


def selection_keys(vendors: Catalog) -> frozenset[str]:
    """Returns the annotations with which the author of a pod selects nodes and devices."""
    keys = {NODE_POLICY, GPU_POLICY, WEIGHTS, NUMA_BIND}
    for vendor in vendors:
        keys.update(vendor.annotations.selectors.names)
        keys.update(vendor.annotations.pod_keys)
        keys.add(vendor.resources.no_cores_annotation[0])
    keys.discard("")
    return frozenset(keys)


def store_of(record: ClusterRecord) -> Store:
    """Returns a store that has seen everything of *record*."""
    store = Store(
        catalog_of(record.device_config),
        record.policies,
        clock=lambda: 0.0,
        now=lambda: record.taken,
        foreign_reservations=True,
    )
    for node in record.nodes:
        store.nodes.upsert(node)
    for quota in record.quotas:
        store.quotas.upsert(quota)
    for pod in record.pods:
        store.pods.upsert(pod)
    return store


def claims_of(record: ClusterRecord) -> ClaimCache:
    """Returns a cache that has seen the slices and claims of *record*."""
    cache = ClaimCache()
    for number, part in enumerate(record.slices):
        cache.set_slice(str(number), part)
    for claim in record.claims:
        cache.set_claim(claim.uid, claim)
    return cache


def unknown_name(kind: str, name: str, names: Iterable[str]) -> HamiError:
    """Returns the error for a name that matches nothing, with the nearest names."""
    text = f"there is no {kind} {name}"
    nearest = difflib.get_close_matches(name, list(names), NEAREST_NAMES, cutoff=0.5)
    if nearest:
        text += f"; did you mean {' or '.join(nearest)}?"
    return HamiError(text)
