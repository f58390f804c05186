"""The content of the store at one moment, or of a cluster that differs a little.

Metrics, inspection, dashboard and preemption read views only, and nothing changes a view. `dry_run` says what would be
decided in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType

from hami.model import Budget, Device, Node, Pod, PodRef, PodScope, QuotaLimits
from hami.scheduling.node_resources import NOTHING, NodeResources, amounts
from hami.scheduling.placement import NodeUsage
from hami.scheduling.pod_request import PodRequest, make_pod_request
from hami.scheduling.quota import ScopedUsage, budgets_of
from hami.scheduling.usage import Amounts, total_charge
from hami.state.bookings import Booking, Bookings
from hami.state.inventories import devices_of
from hami.state.read_pod import PodRecord
from hami.state.rooms import Rooms, Usual
from hami.state.table import Table
from hami.state.verdicts import Verdicts
from hami.vendors.spec import Catalog

# nodes and pods that differ from the table; beyond them a new table is made
MAX_OVERLAY = 32
MAX_REBOOKED = 256

NamespaceQuotas = Mapping[str, Mapping[str, QuotaLimits]]
"""ResourceQuotas by namespace and uid."""
_ByVendor = Mapping[str, Sequence[Device]]
DevicesByNode = Mapping[str, _ByVendor]
"""Devices by node and vendor."""


@dataclass(frozen=True, slots=True)
class Policies:
    """The node and device policies for pods that name none."""

    node: str = "binpack"
    device: str = "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The content of a store beside devices and bookings.

    *pods*: records by uid. *reserved*: the pods that have reservations, by uid. *quotas*: those that limit devices.
    *problems*: why inventories cannot be read, by node and vendor. *locks*: node, annotation, text of each node lock.
    *usual*: the pods that usually come.
    """

    vendors: Catalog
    policies: Policies
    pods: Mapping[str, PodRecord] = field(default_factory=dict)
    reserved: Mapping[str, PodRef] = field(default_factory=dict)
    quotas: NamespaceQuotas = field(default_factory=dict)
    problems: Mapping[tuple[str, str], str] = field(default_factory=dict)
    locks: Sequence[tuple[str, str, str]] = ()
    usual: Usual = Usual()


class View:
    """The store at one moment.

    *table* belongs to the view with its *verdicts*, and is never changed; views that `what_if` makes share both.
    *overlay*: nodes that differ from the table. *replaced*: nodes as they are instead. *rebooked*: what pods
    (uids) hold instead, ``None`` for nothing.
    """

    def __init__(
        self,
        table: Table,
        facts: Facts,
        *,
        verdicts: Verdicts | None = None,
        overlay: Mapping[str, NodeUsage] | None = None,
        replaced: Mapping[str, Node] | None = None,
        rebooked: Mapping[str, Booking | None] | None = None,
    ) -> None:
        self.facts = facts
        self.vendors = facts.vendors
        self.table = table
        self.verdicts = verdicts or Verdicts(table, Rooms(table, facts.usual))
        self.overlay: Mapping[str, NodeUsage] = overlay or {}
        self.replaced: Mapping[str, Node] = replaced or {}
        self._rebooked: Mapping[str, Booking | None] = rebooked or {}

    @cached_property
    def nodes(self) -> Mapping[str, NodeUsage]:
        """The devices of all nodes and their usage."""
        nodes: dict[str, NodeUsage] = {}
        for name in dict.fromkeys((*self.table.nodes, *self.overlay)):
            usages = self.usages(name)
            if usages:
                nodes[name] = usages
        return nodes

    @cached_property
    def bookings(self) -> Mapping[str, Booking]:
        """The bookings of pods, by uid."""
        bookings = dict(self.table.bookings.by_uid)
        for uid, booking in self._rebooked.items():
            bookings.pop(uid, None)
            if booking is not None:
                bookings[uid] = booking
        return bookings

    def booking(self, uid: str) -> Booking | None:
        """Returns what the pod holds."""
        if uid in self._rebooked:
            return self._rebooked[uid]
        return self.table.bookings.by_uid.get(uid)

    def bookings_on(self, node: str) -> list[Booking]:
        """Returns what pods hold on *node*."""
        found = []
        for booking in self.table.bookings.on(node):
            if booking.uid not in self._rebooked:
                found.append(booking)
        for changed in self._rebooked.values():
            if changed is not None and changed.node == node:
                found.append(changed)
        return found

    @cached_property
    def used(self) -> Mapping[tuple[str, str], Amounts]:
        """The amounts that pods take, by namespace and vendor, without zeros."""
        used: dict[tuple[str, str], Amounts] = {}
        for key, scoped in self.merged.table.bookings.by_namespace().items():
            used[key] = Amounts()
            for total in scoped.values():
                used[key] = used[key].plus(total)
        return used

    def usages(self, node: str) -> NodeUsage:
        """Returns the devices of *node* and their usage, by vendor; empty if it has none."""
        usages = self.overlay.get(node)
        return self.table.usages(node) if usages is None else usages

    def labels_of(self, node: str) -> Mapping[str, str]:
        """Returns the labels of *node*."""
        if node in self.replaced:
            return self.replaced[node].labels
        return self.table.labels.get(node, {})

    def ref(self, uid: str) -> PodRef | None:
        """Returns the pod that holds a booking."""
        record = self.facts.pods.get(uid)
        return record.ref if record is not None else self.facts.reserved.get(uid)

    def request_of(self, pod: Pod) -> PodRequest | None:
        """Returns what *pod* requests; ``None`` for no device. Raises: MalformedInput for an unreadable annotation."""
        return make_pod_request(pod, self.vendors, self.facts.policies.device)

    def quotas_of(self, namespace: str) -> Collection[QuotaLimits]:
        """Returns the quotas of *namespace*."""
        return self.facts.quotas.get(namespace, {}).values()

    def budgets(self, namespace: str, scope: PodScope) -> dict[str, Budget]:
        """Returns what the quotas of *namespace* leave to pods of *scope*, by vendor."""
        return budgets_of(
            self.vendors,
            self.facts.quotas.get(namespace, {}),
            scope,
            partial(self._used, namespace),
        )

    def what_if(
        self,
        *,
        without: Collection[str] = (),
        with_: Iterable[Booking] = (),
        nodes: Iterable[Node] = (),
        devices: DevicesByNode = MappingProxyType({}),
        quotas: NamespaceQuotas | None = None,
    ) -> View:
        """Returns the view in which the pods *without* (uids) have ended, pods hold *with_*, nodes are as *nodes*, or
        have *devices* (by name and vendor), with the bookings that they have, and the namespaces in *quotas* have
        these.

        Device plugins of *nodes* count as alive, and inventories that cannot be read as empty.
        """
        changes: dict[str, Booking | None] = dict.fromkeys(without)
        for booking in with_:
            changes[booking.uid] = booking
        affected = _devices_beside(self, changes)
        replaced = dict(self.replaced)
        for node in nodes:
            replaced[node.name] = node
            affected[node.name] = devices_of(self.vendors, node)
        affected.update(devices)
        facts = self.facts
        if quotas is not None:
            facts = replace(facts, quotas={**facts.quotas, **quotas})
        rebooked = {**self._rebooked, **changes}
        changed = View(self.table, self.facts, rebooked=rebooked)
        overlay = {**self.overlay, **_usages_in(changed, affected)}
        view = View(
            self.table,
            facts,
            verdicts=self.verdicts,
            overlay=overlay,
            replaced=replaced,
            rebooked=rebooked,
        )
        if len(overlay) > MAX_OVERLAY or len(rebooked) > MAX_REBOOKED:
            return view.merged
        return view

    @cached_property
    def merged(self) -> View:
        """The same view with a table of its own, without an overlay."""
        if not self.overlay and not self._rebooked:
            return self
        table = self.table.copy()
        for uid, booking in self._rebooked.items():
            if booking is not None:
                table.bookings.put(booking)
            else:
                table.bookings.pop(uid)
        for name, usages in self.overlay.items():
            entry = table.nodes.get(name)
            devices: dict[str, Sequence[Device]] = {}
            if entry is not None:
                devices = dict.fromkeys(entry.devices, ())
            devices.update(_devices_of(usages))
            for vendor, of_vendor in devices.items():
                table.set_devices(name, vendor, tuple(of_vendor))
        for name, node in self.replaced.items():
            table.set_labels(name, node.labels)
            table.set_left(name, left_of(self, name))
            table.allocatable[name] = amounts(node.allocatable)
        return View(table, self.facts)

    def _used(self, namespace: str, vendor: str) -> ScopedUsage:
        used = dict(self.table.bookings.in_namespace(namespace, vendor))
        for uid, booking in self._rebooked.items():
            for sign, holding in ((-1, self.table.bookings.by_uid.get(uid)), (1, booking)):
                if holding is not None and holding.namespace == namespace:
                    more = total_charge(dict(holding.charges).get(vendor, ()))
                    used[holding.scope] = used.get(holding.scope, Amounts()).plus(more, sign)
        return used


def left_of(view: View, node: str) -> NodeResources | None:
    """Returns the CPU and memory that *node* has for pods with devices in *view*; ``None`` if not known."""
    left = view.table.left.get(node)
    if node not in view.replaced:
        return left
    earlier = view.table.allocatable.get(node, NOTHING)
    return (left or NOTHING) - earlier + amounts(view.replaced[node].allocatable)


def _devices_of(usages: NodeUsage) -> dict[str, list[Device]]:
    return {vendor: [usage.device for usage in each] for vendor, each in usages.items()}


def _devices_beside(view: View, changes: Mapping[str, Booking | None]) -> dict[str, _ByVendor]:
    """Returns the devices of the nodes of *view* where pods hold something, or something else by *changes*."""
    devices: dict[str, _ByVendor] = {}
    for uid, booking in changes.items():
        for holding in (view.booking(uid), booking):
            if holding is not None and holding.node not in devices:
                devices[holding.node] = _devices_of(view.usages(holding.node))
    return devices


def _usages_in(view: View, devices: DevicesByNode) -> dict[str, NodeUsage]:
    """Returns the usage of nodes that have these *devices*, with the bookings of *view*."""
    usages = {}
    for name, of_node in devices.items():
        bookings = Bookings()
        for booking in view.bookings_on(name):
            bookings.put(booking)
        usages[name] = bookings.usages_of(name, of_node)
    return usages
