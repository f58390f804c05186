"""The pods of a replay that others may evict, and the CPU and memory of their nodes that this makes free."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hami.model import Pod
from hami.scheduling.node_resources import requested
from hami.state.bookings import Booking, Bookings
from hami.state.offered import OfferedNodes
from hami.state.read_pod import PodRecord


class EvictablePods:
    """The *pods*, by uid, with their *bookings*, on the *offered* nodes."""

    def __init__(
        self, bookings: Bookings, pods: Mapping[str, PodRecord], offered: OfferedNodes
    ) -> None:
        self._bookings = bookings
        self._pods = pods
        self._offered = offered

    def may_make_room(self, pod: Pod) -> list[str]:
        """Returns the nodes that *pod* selects and where CPU and memory suffice once pods of lower priority end."""
        needed = requested(pod)
        names: list[str] = []
        for name in self._offered.selected_by(pod):
            free = self._offered.free_on(name)
            if not free.covers(needed):
                free = sum((booking.resources for booking in self._evictable(pod, name)), free)
            if free.covers(needed):
                names.append(name)
        return names

    def with_room(self, pod: Pod, node: str, victims: Collection[str]) -> list[str]:
        """Returns *victims* (uids) and the pods that have to end besides them until CPU and memory of *node* suffice
        for *pod*: the lowest priority first, then the last that started."""
        needed, free = requested(pod), self._offered.free_on(node)
        uids = list(victims)
        for uid in victims:
            free += self._bookings.by_uid[uid].resources
        for booking in self._evictable(pod, node):
            if free.covers(needed):
                break
            if booking.uid not in victims:
                free += booking.resources
                uids.append(booking.uid)
        return uids

    def _evictable(self, pod: Pod, node: str) -> list[Booking]:
        """Returns the bookings on *node* of pods that *pod* may evict, those first that are evicted first."""
        lower: list[Booking] = []
        for booking in self._bookings.on(node):
            is_protected = self._pods[booking.uid].traits.is_protected
            if booking.priority < pod.priority and not is_protected:
                lower.append(booking)
        return sorted(
            lower, key=lambda booking: (booking.priority, -self._pods[booking.uid].started)
        )
