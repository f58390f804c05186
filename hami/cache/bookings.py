"""Books what the allocation annotations of pods say that they hold."""

from __future__ import annotations

from hami.cache.binding import assigned_node
from hami.model import Pod, PodRef
from hami.scheduling.index import Index
from hami.scheduling.read_booking import read_booking
from hami.vendors.spec import Catalog


class PodBookings:
    """Bookings in *index* that are read from pods, and the pods whose annotations cannot be read completely.

    The cache's lock guards all of it; callers hold that lock.
    """

    def __init__(self, vendors: Catalog, index: Index) -> None:
        self._vendors = vendors
        self._index = index
        self._unreadable: dict[str, Pod] = {}

    def book(self, pod: Pod) -> tuple[str, ...]:
        """Books what *pod* holds on its node. Returns why parts of its annotations cannot be read."""
        booking, problems = read_booking(pod, assigned_node(pod), self._vendors, self._index.usages)
        if booking.charges:
            self._index.book(booking)
        else:
            self._index.unbook(pod.ref.uid)
        if problems:
            self._unreadable[pod.ref.uid] = pod
        else:
            self._unreadable.pop(pod.ref.uid, None)
        return problems

    def unbook(self, uid: str) -> bool:
        """Removes the pod's booking. Reports whether its annotations could not be read."""
        self._index.unbook(uid)
        return self._unreadable.pop(uid, None) is not None

    def rebook(self, node: str) -> None:
        """Reads unreadable annotations again, since the devices of *node* have changed and they may name new ones."""
        for pod in [pod for pod in self._unreadable.values() if assigned_node(pod) == node]:
            self.book(pod)

    def unreadable(self) -> list[PodRef]:
        """Returns the pods whose annotations cannot be read completely."""
        return [pod.ref for pod in self._unreadable.values()]
