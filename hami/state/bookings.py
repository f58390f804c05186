"""The bookings of pods on nodes, and the sums that follow: by device, by node and by namespace.

It knows no devices: a booking counts on its node whether or not the node has them, and waits for a node that is gone.
It only records, and is not thread-safe: its owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from hami.model import Device, DeviceUsage, Pod, PodScope
from hami.scheduling.node_resources import NodeResources, requested
from hami.scheduling.placement import NodeUsage
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.quota import ScopedUsage
from hami.scheduling.refusal import Choice
from hami.scheduling.usage import Amounts, Charge, peak_charges, shares_of, total_charge

Key = TypeVar("Key")
Value = TypeVar("Value")

DeviceSums = Mapping[tuple[str, str], tuple[int, int, int]]
"""Slots, memory and cores in use, by vendor and UUID."""

NOTHING = (0, 0, 0)
NO_AMOUNTS = Amounts()


# Of bookings, charges and records of pods there is one for each pod: structs are made in a fraction of the time that
# data classes take, and the garbage collector need not look at them, since they are in no cycle.
class Booking(msgspec.Struct, frozen=True, gc=False):
    """The charges of one pod on one node, by vendor. *priority*: the pod's. *scope*: selects its quotas. *resources*:
    what it requests of the node itself."""

    uid: str
    namespace: str
    node: str
    charges: tuple[tuple[str, tuple[Charge, ...]], ...]
    priority: int = 0
    scope: PodScope = PodScope()
    resources: NodeResources = NodeResources()


def booking_of(pod: Pod, request: PodRequest, choice: Choice) -> Booking:
    """Returns what *pod* holds on the node of *choice*."""
    vendors = [vendor_request.vendor.key for vendor_request in request.vendor_requests]
    return Booking(
        pod.ref.uid,
        pod.ref.namespace,
        choice.node,
        tuple(
            (vendor, peak_charges(request.kinds, shares_of(vendor, choice.placement)))
            for vendor in vendors
        ),
        pod.priority,
        pod.scope,
        requested(pod),
    )


class Bookings:
    """Bookings by pod uid, and their sums.

    Items of mappings are replaced and never changed, since copies share them.
    """

    def __init__(self) -> None:
        self.by_uid: dict[str, Booking] = {}
        self.changed_nodes: dict[str, None] = {}
        """Nodes whose bookings have changed; who follows them removes them. Not a set: popping from one that has
        shrunk is slow."""
        self._sums: dict[str, DeviceSums] = {}  # by node
        self._on_node: dict[str, dict[str, Booking]] = {}  # by node, then by pod uid
        # charges with partitions or co-tenants, by node, then by pod uid
        self._detailed: dict[str, dict[str, list[tuple[str, Charge]]]] = {}
        self._namespaces: dict[tuple[str, str], ScopedUsage] = {}

    def put(self, booking: Booking) -> None:
        """Adds *booking*, in place of an earlier one of the same pod."""
        earlier = self.by_uid.get(booking.uid)
        if earlier == booking:
            return
        if earlier is not None:
            self._count(earlier, -1)
        self.by_uid[booking.uid] = booking
        self._count(booking, 1)

    def pop(self, uid: str) -> Booking | None:
        """Removes the booking of the pod *uid* and returns it."""
        booking = self.by_uid.pop(uid, None)
        if booking is not None:
            self._count(booking, -1)
        return booking

    def on(self, node: str) -> tuple[Booking, ...]:
        """Returns the bookings on *node*."""
        return tuple(self._on_node.get(node, {}).values())

    def sums_on(self, node: str) -> DeviceSums:
        """Returns what is in use of the devices of *node*, without zeros."""
        return self._sums.get(node, {})

    def partitioned_on(self, node: str) -> set[tuple[str, str]]:
        """Returns vendor and UUID of the devices of *node* of which pods hold partitions."""
        partitioned = set()
        for charges in self._detailed.get(node, {}).values():
            for vendor, charge in charges:
                if charge.partitions:
                    partitioned.add((vendor, charge.uuid))
        return partitioned

    def usages_of(self, node: str, devices: Mapping[str, Sequence[Device]]) -> NodeUsage:
        """Returns the usage that *devices* of *node* would have with what is booked on it."""
        sums = self._sums.get(node, {})
        usages = {}
        for vendor, of_vendor in devices.items():
            usages[vendor] = tuple(
                [
                    DeviceUsage(device, *sums.get((vendor, device.uuid), NOTHING))
                    for device in of_vendor
                ]
            )
        for charges in self._detailed.get(node, {}).values():
            for vendor, charge in charges:
                if vendor in usages:
                    usages[vendor] = _with_details(usages[vendor], charge)
        return usages

    def in_namespace(self, namespace: str, vendor: str) -> ScopedUsage:
        """Returns what the pods of *namespace* take of *vendor*'s devices, without zeros."""
        return self._namespaces.get((namespace, vendor), {})

    def by_namespace(self) -> Mapping[tuple[str, str], ScopedUsage]:
        """Returns what pods take, by namespace and vendor, without zeros."""
        return self._namespaces

    def _count(self, booking: Booking, sign: int) -> None:
        """Adds *booking* to the sums (*sign* 1) or subtracts it (-1)."""
        node = booking.node
        sums = dict(self._sums.get(node, {}))
        for vendor, charges in booking.charges:
            for charge in charges:
                slots, memory, cores = sums.get((vendor, charge.uuid), NOTHING)
                total = (
                    slots + sign * charge.slots,
                    memory + sign * charge.memory_mib,
                    cores + sign * charge.cores,
                )
                _put(sums, (vendor, charge.uuid), total, NOTHING)
            scoped = dict(self.in_namespace(booking.namespace, vendor))
            before = scoped.get(booking.scope, NO_AMOUNTS)
            after = before.plus(total_charge(charges), sign)
            _put(scoped, booking.scope, after, NO_AMOUNTS)
            _put(self._namespaces, (booking.namespace, vendor), scoped, {})
        _put(self._sums, node, sums, {})
        on_node = dict(self._on_node.get(node, {}))
        if sign > 0:
            on_node[booking.uid] = booking
        else:
            del on_node[booking.uid]
        _put(self._on_node, node, on_node, {})
        self._keep_details(booking, sign)
        self.changed_nodes[node] = None

    def _keep_details(self, booking: Booking, sign: int) -> None:
        """Keeps the partitions and co-tenants of *booking* (*sign* 1) or drops them (-1)."""
        details = []
        for vendor, charges in booking.charges:
            for charge in charges:
                if charge.partitions or charge.co_tenants:
                    details.append((vendor, charge))
        if not details:
            return
        on_node = dict(self._detailed.get(booking.node, {}))
        on_node.pop(booking.uid, None)
        if sign > 0:
            on_node[booking.uid] = details
        _put(self._detailed, booking.node, on_node, {})


def _with_details(usages: Sequence[DeviceUsage], charge: Charge) -> tuple[DeviceUsage, ...]:
    """Returns *usages* with the partitions and co-tenants of *charge* at its device."""
    made = []
    for usage in usages:
        if usage.device.uuid == charge.uuid:
            usage = replace(
                usage,
                partitions=usage.partitions + charge.partitions,
                co_tenants=usage.co_tenants + charge.co_tenants,
            )
        made.append(usage)
    return tuple(made)


def _put(mapping: dict[Key, Value], key: Key, value: Value, nothing: Value) -> None:
    """Sets an item, or removes it if the value is *nothing*."""
    if value != nothing:
        mapping[key] = value
    else:
        mapping.pop(key, None)
