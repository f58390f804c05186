"""Bookings of pods: read from their annotations, compared with what they held before, and kept in the table.

What cannot be read counts as taken, so no device is given out twice. What the pod's specification does not request
does not count, whatever the annotations say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from hami.codec.keys import is_scheduler_owned
from hami.codec.objects import parse_resource_version
from hami.errors import MalformedInput
from hami.model import ContainerKind, DeviceUsage, Pod, PodRef
from hami.scheduling.placement import NodeUsage
from hami.scheduling.usage import Charge, peak_charges
from hami.state.binding_annotations import assigned_node
from hami.state.table import Booking, Table
from hami.vendors.mig import in_mig_mode
from hami.vendors.request import most_shares
from hami.vendors.shares import read_allocation
from hami.vendors.spec import Catalog


class PodBookings:
    """The bookings of pods that their annotations show, in *table*. Not thread-safe: its owner holds a lock.

    A pod with init containers has two: one until they have finished, and one after.
    """

    def __init__(self, vendors: Catalog, table: Table) -> None:
        self._vendors = vendors
        self._table = table
        self._after_init: dict[
            str, tuple[Booking, Booking]
        ] = {}  # of the pods whose two bookings differ
        self._unreadable: dict[str, Pod] = {}  # pods whose annotations cannot be read completely
        # pods for which more is booked than their annotations say yet: the version that says less, and what it says
        self._growing: dict[str, tuple[int, tuple[Booking, Booking]]] = {}

    def believe(self, pod: Pod, limits: Mapping[str, int]) -> tuple[str, ...]:
        """Books what the annotations of *pod* say. *limits*: as for `read_booking`. Returns why parts of them cannot be
        read."""
        bookings, problems = self._read(pod, limits)
        self._hold(bookings, pod.init_done)
        if problems:
            self._unreadable[pod.ref.uid] = pod
        else:
            self._unreadable.pop(pod.ref.uid, None)
        return problems

    def follow(self, pod: Pod) -> None:
        """Books what *pod* holds by now: after its init containers, and for the quotas that select it."""
        uid = pod.ref.uid
        booked = self._table.bookings.get(uid)
        bookings = self._after_init.get(uid) or ((booked, booked) if booked is not None else None)
        if bookings is not None:
            first, then = [
                msgspec.structs.replace(booking, scope=pod.scope) for booking in bookings
            ]
            self._hold((first, then), pod.init_done)

    def refine(self, pod: Pod, limits: Mapping[str, int]) -> bool:
        """Books what the edited annotations of *pod* say if that is what they said before, in more detail. Reports
        whether it is."""
        uid = pod.ref.uid
        booked = self._table.bookings.get(uid) or Booking(
            uid, pod.ref.namespace, pod.node_name, (), pod.priority, pod.scope
        )
        later, _ = self._read(pod, limits)
        is_finer = all(
            refines(*pair, self._table.usages)
            for pair in zip(later, self._after_init.get(uid, (booked, booked)))
        )
        if is_finer:
            self._hold(later, pod.init_done)
        return is_finer

    def resize(self, pod: Pod, limits: Mapping[str, int]) -> bool:
        """Books what a resize has left *pod*: other amounts of the same devices. Reports whether that is what its
        annotations say."""
        uid = pod.ref.uid
        booked = self._table.bookings.get(uid)
        later, problems = self._read(pod, limits)
        is_resize = (
            booked is not None
            and not problems
            and all(
                _has_same_devices(*pair)
                for pair in zip(later, self._after_init.get(uid, (booked, booked)))
            )
        )
        if is_resize:
            self._hold(later, pod.init_done)
        return is_resize

    def grow(self, pod: Pod, limits: Mapping[str, int]) -> None:
        """Books what the annotations of *pod* will say, to which its version is about to be changed."""
        uid = pod.ref.uid
        booked = self._table.bookings[uid]
        self._growing[uid] = (
            parse_resource_version(pod.resource_version),
            self._after_init.get(uid, (booked, booked)),
        )
        self._hold(self._read(pod, limits)[0], pod.init_done)

    def shrink_back(self, pod: Pod, *, is_refused: bool = False) -> None:
        """Books for a pod that grows what it had before, if *pod* is a later version of it, since that has been changed
        by somebody, or the change *is_refused*."""
        version, bookings = self._growing.get(pod.ref.uid, (0, None))
        if bookings is not None and (
            is_refused or parse_resource_version(pod.resource_version) > version
        ):
            del self._growing[pod.ref.uid]
            self._hold(bookings, pod.init_done)

    def growing(self, uid: str | None = None) -> bool:
        """Reports whether it is not known yet if the pod has grown, or any pod."""
        return bool(self._growing) if uid is None else uid in self._growing

    def reread(self, node: str) -> None:
        """Reads unreadable annotations again, since the devices of *node* have changed and they may name new ones."""
        for pod in [pod for pod in self._unreadable.values() if assigned_node(pod) == node]:
            self.believe(pod, most_shares(self._vendors, pod.containers))

    def forget(self, uid: str) -> bool:
        """Forgets what the annotations of the pod said; its booking stays. Reports whether they were unreadable."""
        self._after_init.pop(uid, None)
        self._growing.pop(uid, None)
        return self._unreadable.pop(uid, None) is not None

    def unbook(self, uid: str) -> None:
        """Removes the booking of the pod."""
        self._table.unbook(uid)

    def on_node(self, node: str) -> tuple[Booking, ...]:
        """Returns the bookings on *node*, also those of reservations."""
        return self._table.bookings_on(node)

    def unreadable(self) -> list[PodRef]:
        """Returns the pods whose annotations cannot be read completely."""
        return [pod.ref for pod in self._unreadable.values()]

    def _read(
        self, pod: Pod, limits: Mapping[str, int]
    ) -> tuple[tuple[Booking, Booking], tuple[str, ...]]:
        """Returns the bookings of *pod* until and after its init containers, and why parts of them cannot be read."""
        node, usages = assigned_node(pod), self._table.usages
        if not any([container.kind is ContainerKind.INIT for container in pod.containers]):
            booking, problems = read_booking(pod, node, self._vendors, limits, usages)
            return (booking, booking), problems
        first, problems = read_booking(
            replace(pod, init_done=False), node, self._vendors, limits, usages
        )
        then, _ = read_booking(replace(pod, init_done=True), node, self._vendors, limits, usages)
        return (first, then), problems

    def _hold(self, bookings: tuple[Booking, Booking], init_done: bool) -> None:
        """Books one of the *bookings* of a pod until and after its init containers, and remembers both."""
        booking = bookings[init_done]
        if booking.charges:
            self._table.book(booking)
        else:
            self._table.unbook(booking.uid)
        if bookings[0] != bookings[1]:
            self._after_init[booking.uid] = bookings
        else:
            self._after_init.pop(booking.uid, None)


def read_booking(
    pod: Pod,
    node: str,
    vendors: Catalog,
    limits: Mapping[str, int],
    usages: Callable[[str], NodeUsage],
) -> tuple[Booking, tuple[str, ...]]:
    """Returns the booking of *pod* on *node*, and the problems with annotations that cannot be read.

    If an annotation cannot be read or contradicts another, every device of the node (from *usages*) that the
    scheduler-owned annotations mention counts as fully used: an idle device is better than one allocated twice.
    Vendors that the pod does not request are left out, and shares beyond *limits*, the most that its request allows.
    """
    kinds = [container.kind for container in pod.containers]
    charges: list[tuple[str, tuple[Charge, ...]]] = []
    problems: list[str] = []
    for vendor in vendors.allocated_in(pod.annotations):
        if vendor.key not in limits:
            continue
        try:
            shares = read_allocation(pod, vendor, limits[vendor.key])
            taken = peak_charges(kinds, shares, init_done=pod.init_done)
        except MalformedInput as error:
            problems.append(str(error))
            taken = _mentioned_devices(pod, usages(node).get(vendor.key, ()))
        if taken:
            charges.append((vendor.key, taken))
    return Booking(
        pod.ref.uid, pod.ref.namespace, node, tuple(charges), pod.priority, pod.scope
    ), tuple(problems)


def refines(later: Booking, booked: Booking, usages: Callable[[str], NodeUsage]) -> bool:
    """Reports whether *later*, read after an edit of the annotations, says the same as *booked* or adds details to it.

    A device plugin adds the identities of the MIG instances that it has created. One of HAMi v2.5 to v2.9 writes the
    instance of a share without a placement in a form that takes the whole device. Such a share lets no other pod on the
    device anyway.
    """
    before, after = _by_device(booked), _by_device(later)
    if before.keys() != after.keys():
        return False
    changed = [
        key for key in before if _without_identities(before[key]) != _without_identities(after[key])
    ]
    if not changed:
        return True
    in_mig = {
        (vendor, usage.device.uuid)
        for vendor, devices in usages(booked.node).items()
        for usage in devices
        if in_mig_mode(usage)
    }
    return all(
        key in in_mig and not before[key].partitions and _covers(after[key], before[key])
        for key in changed
    )


def _by_device(booking: Booking) -> dict[tuple[str, str], Charge]:
    return {
        (vendor, charge.uuid): charge for vendor, charges in booking.charges for charge in charges
    }


def _without_identities(charge: Charge) -> Charge:
    partitions = tuple(replace(partition, instance=()) for partition in charge.partitions)
    return msgspec.structs.replace(charge, partitions=partitions)


def _has_same_devices(later: Booking, booked: Booking) -> bool:
    """Reports whether two bookings name the same devices, each with as many shares."""
    slots = [
        {key: (charge.slots, charge.partitions) for key, charge in _by_device(booking).items()}
        for booking in (later, booked)
    ]
    return slots[0] == slots[1]


def _covers(later: Charge, charge: Charge) -> bool:
    return (
        later.slots >= charge.slots
        and later.memory_mib >= charge.memory_mib
        and later.cores >= charge.cores
    )


def _mentioned_devices(pod: Pod, usages: Sequence[DeviceUsage]) -> tuple[Charge, ...]:
    texts = [text for key, text in pod.annotations.items() if is_scheduler_owned(key)]
    devices = sorted(
        (usage.device for usage in usages if any(usage.device.uuid in text for text in texts)),
        key=lambda device: device.uuid,
    )
    return tuple(
        Charge(device.uuid, device.slots, device.memory_mib, device.cores) for device in devices
    )
