"""A cluster at one moment, as every command for people sees it: a record, and the view that the scheduler has of it.

The record holds only what HAMi's decision reads, and what names an object to people: no environment variables, no
secrets. It is seen by the scheduler's own store, so that every answer comes from the code that decides.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache

from hami.codec.claims import AllocatedClaim
from hami.codec.device_config import chart_config, parse_device_config
from hami.codec.health import parse_device_health
from hami.codec.keys import DEVICE_HEALTH, GPU_POLICY, NODE_POLICY, NUMA_BIND, WEIGHTS
from hami.codec.objects import parse_resource_version
from hami.codec.slices import PublishedSlice
from hami.errors import HamiError
from hami.inspect.installation import Installation
from hami.model import DeviceUsage, Node, Pod, PodRef, QuotaLimits
from hami.scheduling.node_resources import NodeResources
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


def condition_event(pod: Pod) -> SchedulingEvent | None:
    """Returns what the condition of *pod* says in place of an event of kube-scheduler; ``None`` if it says nothing."""
    last, _, failure = pod.scheduling_failure.partition(" ")
    reason, _, message = failure.partition(" ")
    if not reason:
        return None
    return SchedulingEvent("kube-scheduler", reason, message, 1, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """Nodes, pods that hold or request devices, and quotas.

    *taken*: when the record was begun. *device_config*: the YAML text of the device configuration, empty for the
    chart's. *others*: what pods without devices request of each node. *policies*: of the scheduler, for pods that name
    none. *events*: by uid of the pod, in snapshots only. *installation*: in snapshots, and for an audit. *slices*,
    *claims*: devices that kube-scheduler allocates by Dynamic Resource Allocation.
    """

    taken: datetime
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    quotas: tuple[QuotaLimits, ...] = ()
    device_config: str = ""
    policies: Policies = Policies()
    slices: tuple[PublishedSlice, ...] = ()
    claims: tuple[AllocatedClaim, ...] = ()
    others: Mapping[str, NodeResources] = field(default_factory=dict)
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


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds devices, as far as everybody knows it who shows them. *node_name*: to which it is bound; empty
    before."""

    ref: PodRef
    node_name: str
    phase: str = ""


_Holders = dict[tuple[str, str], list[tuple[Holder | None, Charge]]]
"""The pods on each device of a node, by vendor and UUID, with what they hold of it."""


def _by_device(bookings: Iterable[Booking], pods: Iterable[Sequence[Holder | None]]) -> _Holders:
    """*pods*: those of each booking."""
    holders: _Holders = {}
    for booking, of_booking in zip(bookings, pods, strict=True):
        for vendor, charges in booking.charges:
            for charge in charges:
                of_device = holders.setdefault((vendor, charge.uuid), [])
                of_device += [(pod, charge) for pod in of_booking]
    return holders


class InspectedCluster:
    """The cluster of *record*, as the scheduler would see it then. *view*, *claimed*: if they are known already.

    *view* is what the scheduler decides from, *claimed* what is allocated by claims: usage is that of both.
    *namespaces*: those of which pods have names that are not in the record.
    """

    def __init__(
        self,
        record: ClusterRecord,
        view: View | None = None,
        claimed: Claimed | None = None,
        namespaces: Container[str] = (),
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
        self._views = (view, claimed.view)
        self._namespaces = namespaces
        self._holders: dict[str, _Holders] = {}

    # Devices and what is held of them, whoever allocates them

    def usages_on(self, node: str) -> list[DeviceUsage]:
        """Returns the devices of *node* and their usage, by vendor."""
        usages: list[DeviceUsage] = []
        for view in self._views:
            for _, of_vendor in sorted(view.usages(node).items()):
                usages += of_vendor
        return usages

    def bookings(self, node: str = "") -> list[Booking]:
        """Returns what pods and claims hold on *node*; on all nodes if that is empty."""
        bookings: list[Booking] = []
        for view in self._views:
            bookings += view.bookings_on(node) if node else view.bookings.values()
        return bookings

    def usages(self) -> Iterator[tuple[str, DeviceUsage]]:
        """Yields the usage of each device, with its node."""
        for name in dict.fromkeys((*self.view.nodes, *self.claimed.view.nodes)):
            for usage in self.usages_on(name):
                yield name, usage

    def bookings_of(self, ref: PodRef) -> list[Booking]:
        """Returns what the pod and its claims hold."""
        bookings = [self.view.booking(ref.uid)]
        for claim in self.claims_by_pod.get(ref.uid, ()):
            bookings.append(self.claimed.view.booking(claim.uid))
        return [booking for booking in bookings if booking is not None]

    @cached_property
    def claims_by_pod(self) -> Mapping[str, Sequence[AllocatedClaim]]:
        """The claims by the uid of each pod that they are reserved for."""
        claims: dict[str, list[AllocatedClaim]] = {}
        for claim in self.claimed.claims.values():
            for ref in claim.pods:
                claims.setdefault(ref.uid, []).append(claim)
        return claims

    # Who holds them

    def ref(self, uid: str) -> PodRef | None:
        """Returns the pod with that *uid*; ``None`` if it is unknown, or has no name here."""
        pod = self.pods.get(uid)
        if pod is not None:
            return pod.ref
        ref = self.view.ref(uid)
        return ref if ref is not None and ref.namespace in self._namespaces else None

    def holders(self, node: str, vendor: str, uuid: str) -> Sequence[tuple[Holder | None, Charge]]:
        """Returns the pods on a device with what they hold of it; ``None`` for a pod without a name here."""
        if node not in self._holders:
            bookings = self.bookings(node)
            self._holders[node] = _by_device(bookings, map(self._pods_with, bookings))
        return self._holders[node].get((vendor, uuid), ())

    def pods_with(self, bookings: Iterable[Booking]) -> list[Holder]:
        """Returns the pods that hold *bookings*, each once, as far as they have names here."""
        pods: dict[PodRef, Holder] = {}
        for booking in bookings:
            for pod in self._pods_with(booking):
                if pod is not None:
                    pods.setdefault(pod.ref, pod)
        return list(pods.values())

    def _pods_with(self, booking: Booking) -> list[Holder | None]:
        claim = self.claimed.claims.get(booking.uid)
        if claim is not None:
            return [self._holder(ref, booking.node) for ref in claim.pods] or [None]
        ref = self.view.ref(booking.uid)
        return [None if ref is None else self._holder(ref, "")]

    def _holder(self, ref: PodRef, node: str) -> Holder | None:
        """*node*: to which the pod is bound if the store does not know it: one with nothing but claims."""
        pod = self.pods.get(ref.uid)
        if pod is not None:
            return Holder(pod.ref, pod.node_name, pod.phase)
        if ref.namespace not in self._namespaces:
            return None
        record = self.view.facts.pods.get(ref.uid)
        if record is None:
            return Holder(ref, node)
        return Holder(ref, record.node, record.phase)

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
        if any(view.nodes for view in self._views):
            return
        for name, reason in withdrawn_nodes(self).items():
            raise HamiError(f"no node offers devices now; node {name}: {reason}")
        raise HamiError(
            "no node has registered devices: is HAMi's device plugin running, and is this the right "
            "context?"
        )


def withdrawn_nodes(cluster: InspectedCluster) -> dict[str, str]:
    """Returns why nodes that have registered devices offer none now, by name."""
    keys = {vendor.annotations.register for vendor in cluster.vendors}
    reasons = {}
    for name, node in sorted(cluster.nodes.items()):
        if keys.isdisjoint(node.annotations) or cluster.usages_on(name):
            continue
        reason = "device plugin away"
        for health in parse_device_health(node.annotations.get(DEVICE_HEALTH)).values():
            reason = health.cause
        reasons[name] = reason
    return reasons


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
    for name, resources in record.others.items():
        store.pods.loads.put_sum(name, resources)
    for quota in record.quotas:
        store.quotas.upsert(quota)
    for pod in record.pods:
        store.pods.upsert(pod)
    store.learn()
    return store


def holders_of(claims: Iterable[AllocatedClaim]) -> set[str]:
    """Returns the uids of the pods for which *claims* are reserved."""
    uids: set[str] = set()
    for claim in claims:
        uids.update(ref.uid for ref in claim.pods)
    return uids


def claims_of(record: ClusterRecord) -> ClaimCache:
    """Returns a cache that has seen the slices and claims of *record*."""
    cache = ClaimCache()
    for number, part in enumerate(record.slices):
        cache.set_slice(str(number), part)
    for claim in record.claims:
        cache.set_claim(claim.uid, claim)
    return cache


def unknown_pod(cluster: InspectedCluster, namespace: str, name: str) -> HamiError:
    """Returns the error for a pod that is not in *namespace*, with the namespaces that have one of that name."""
    others = {pod.ref.namespace for pod in cluster.pods.values() if pod.ref.name == name}
    if others:
        listed = " or ".join(f"-n {other}" for other in sorted(others)[:NEAREST_NAMES])
        return HamiError(
            f'pods "{name}" not found in namespace {namespace}; there is one with {listed}'
        )
    names = {pod.ref.name for pod in cluster.pods.values() if pod.ref.namespace == namespace}
    text = f'pods "{name}" not found in namespace {namespace}'
    return HamiError(text + _nearest(name, names))


def unknown_name(kind: str, name: str, names: Iterable[str]) -> HamiError:
    """Returns the error for a name that matches nothing, with the nearest names."""
    return HamiError(f"there is no {kind} {name}" + _nearest(name, names))


def _nearest(name: str, names: Iterable[str]) -> str:
    """Returns the question whether one of *names* was meant; empty if none is near."""
    nearest = difflib.get_close_matches(name, list(names), NEAREST_NAMES, cutoff=0.5)
    if not nearest:
        return ""
    return f"; did you mean {' or '.join(nearest)}?"
