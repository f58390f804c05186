"""Learns the usual pods from those to which devices are allocated."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from hami.model import Pod
from hami.scheduling.node_resources import requested
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.usual_pods import UsualPod, has_room, usual_pod
from hami.state.bookings import Booking
from hami.state.rooms import Rooms, Usual
from hami.state.table import Table
from hami.state.workload import EIGHTH, Workload
from hami.vendors.spec import Catalog


class Ends(Protocol):
    """The pods that have ended."""

    @property
    def ended(self) -> int:
        """The number of pods that have been bound and run no longer."""


class Learning:
    """Tells *rooms* the usual pods. Before this process decides, they are those that have devices."""

    def __init__(self, vendors: Catalog, table: Table, pods: Ends, rooms: Rooms) -> None:
        self._vendors = vendors
        self._table = table
        self._pods = pods
        self._rooms = rooms
        self._workload: Workload | None = None  # of this process
        self._ended = 0
        self._learn_at = 0
        self.changes = 0
        """How often the usual pods have been learnt from those that have devices."""

    def learn(self) -> None:
        """Counts the pods that have devices, if an EIGHTH of them has come since the last time, unless this process
        decides: then it counts those that it places."""
        if self._workload is not None:
            return
        running = len(self._table.bookings.by_uid)
        come = running + self._pods.ended
        if come < self._learn_at:
            return
        self._learn_at = come + max(1, running // EIGHTH)
        self._rooms.follow(self._running())
        self.changes += 1

    def begin(self) -> None:
        """Counts the pods that have devices, and from now on those that this process places."""
        if self._workload is None:
            self._workload = self._running()
            self._ended = self._pods.ended
            self._rooms.follow(self._workload)

    def usual(self) -> Usual:
        """Returns the usual pods as they are known now."""
        return self._rooms.usual()

    def placed(self, pod: Pod, request: PodRequest) -> None:
        """Counts *pod*, to which devices are allocated now."""
        kind = usual_pod(request, requested(pod))
        workload = self._workload
        if kind is None or workload is None:
            return
        workload.end(self._pods.ended - self._ended)
        self._ended = self._pods.ended
        workload.add(pod.ref.uid, pod.ref.namespace, kind)
        self._rooms.follow(workload)

    def _running(self) -> Workload:
        """Returns the pods that have devices."""
        alike: dict[tuple[str, _Held], int] = defaultdict(int)
        for booking in self._table.bookings.by_uid.values():
            held = _held(booking)
            if held is not None:
                alike[booking.namespace, held] += 1
        pods: dict[tuple[str, UsualPod], int] = {}
        for (namespace, held), count in alike.items():
            vendor, devices, cores, memory_mib, milli_cpu = held
            if has_room(self._vendors[vendor]):
                kind = UsualPod(vendor, devices, cores, memory_mib, milli_cpu=milli_cpu)
                pods[namespace, kind] = count
        workload = Workload()
        workload.add_running(pods)
        return workload


_Held = tuple[str, int, int, int, int]
"""Vendor, devices, cores and memory (MiB) of each, and milli-CPU: what tells pods that have devices apart."""


def _held(booking: Booking) -> _Held | None:
    """Returns what a pod holds; ``None`` if these are devices of several vendors, or none."""
    if len(booking.charges) != 1:
        return None
    ((vendor, charges),) = booking.charges
    milli_cpu = booking.resources.milli_cpu
    if len(charges) == 1:  # as most pods
        charge = charges[0]
        return vendor, charge.slots, charge.cores, charge.memory_mib, milli_cpu
    if not charges:
        return None
    count = sum([charge.slots for charge in charges])
    cores = max([charge.cores for charge in charges])
    return vendor, count, cores, max([charge.memory_mib for charge in charges]), milli_cpu
