"""The scheduler's cache: nodes, pods, quotas and reservations, under one lock.

The lock is held for computation only, never across I/O. A filter chooses devices and reserves them in one step under
the lock, so the same part of a device is never given to two pods.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hami.cache.binding import render_annotations, render_labels
from hami.cache.nodes import NodeCache
from hami.cache.pending import PendingPods
from hami.cache.pods import PodCache
from hami.cache.quotas import QuotaCache
from hami.cache.reservations import BindingStage, Rejected, Reservation, Reservations
from hami.model import Budget, ContainerKind, DeviceUsage, Node, NodePolicy, Pod, PodRef, QuotaLimits, Share
from hami.scheduling.decide import Choice, Refusal, VerdictCache, choose_node, refusals
from hami.scheduling.fit import Unfit
from hami.scheduling.index import Booking, Index
from hami.scheduling.placement import place_pod
from hami.scheduling.pod_request import PodRequest, make_pod_request, node_policy_of
from hami.scheduling.quota import remaining_budget
from hami.scheduling.usage import peak_charges, total_charge
from hami.vendors.request import WHOLE, device_request, requests_devices
from hami.vendors.spec import Catalog, Vendor

EXPLAINED_AT_ONCE = 256  # nodes whose refusal is explained while the lock is held
JUDGED_AT_ONCE = 16  # nodes that are judged without some of their pods before other threads get the lock
YIELD_S = 1e-4  # a lock that is released and taken again at once is not seen free by other threads
PENDING_REQUESTS = 5  # different requests of pending pods that are tried at once


@dataclass(frozen=True, slots=True)
class Policies:
    """The node and device policies for pods that name none."""

    node: str = "binpack"
    device: str = "spread"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of the cache at one moment. It does not change.

    *nodes*: devices and their usage, by node and vendor. *pods*: the pods that hold bookings, by uid. *used*: MiB and
    percent taken, by namespace and vendor.
    """

    nodes: Mapping[str, Mapping[str, Sequence[DeviceUsage]]]
    bookings: Sequence[Booking]
    pods: Mapping[str, PodRef]
    used: Mapping[tuple[str, str], tuple[int, int]]
    quotas: Sequence[QuotaLimits]


class Cache:
    """Nodes, pods, quotas and reservations. *clock* is monotonic, *now* is the time of day in UTC.

    *on_lock_change* is called with the name of each node whose locks have changed. *foreign_reservations*: what another
    scheduler has written on an unbound pod counts for some time.
    """

    def __init__(self, vendors: Catalog, policies: Policies, *, clock: Callable[[], float], now: Callable[[], datetime],
                 on_lock_change: Callable[[str], None] = lambda node: None,
                 yield_lock: Callable[[], None] = lambda: time.sleep(YIELD_S),
                 foreign_reservations: bool = False) -> None:
        self.vendors = vendors
        self.policies = policies
        self._clock = clock
        self._now = now
        self._yield_lock = yield_lock
        self._lock = threading.RLock()  # guards everything below, also in nodes, pods, quotas and reservations
        self._index = Index()
        self._verdicts = VerdictCache(self._index)
        self._pending = PendingPods()
        self.nodes = NodeCache(vendors, self._lock, self._index, clock=clock, now=now, on_lock_change=on_lock_change,
                               on_device_change=lambda node: self.pods.rebook(node))
        self.reservations = Reservations(self._index, self._lock, self.nodes.lock_free, clock=clock, now=now)
        self.pods = PodCache(vendors, self._lock, self._index, self.reservations, self.nodes,
                             foreign_reservations=foreign_reservations, clock=clock, now=now)
        self.quotas = QuotaCache(self._lock)

    # Filter

    def assume(self, pod: Pod, names: Sequence[str]) -> Choice | Refusal | None:
        """Chooses one of the nodes *names* and devices for *pod*, and reserves them. ``None`` if it requests no device.

        An earlier reservation of the pod is replaced, and a bind of it that still waits fails.
        Raises: Rejected when the pod is gone, bound, or being bound; MalformedInput for an unreadable annotation.
        """
        with self._lock:
            if not requests_devices(self.vendors, pod.containers):
                return None
            self._check_unbound(pod.ref)
            if (earlier := self.reservations.find(pod.ref.uid)) is not None and earlier.outcome_unknown:
                return _assume_again(earlier, names)
            self.reservations.forget(pod.ref.uid)
            self.pods.take_over(pod.ref.uid)
            request = self._request(pod, self._budgets(pod.ref.namespace))
            if request is None:
                return None
            choice = choose_node(self._verdicts, request, names, node_policy_of(pod, self.policies.node))
            if choice is not None:
                self._reserve(pod, request, choice)
                self._pending.remove(pod.ref.uid)
                return choice
            everywhere = len(names) >= len(self._index.rows) and self._index.rows.keys() <= set(names)
            self._pending.add(pod, None if everywhere else names, self._state(), self._clock())
        return self._explain(request, names)

    def node_for_pending_pod(self) -> str | None:
        """Returns a node that a pod which was refused earlier fits by now; ``None`` if there is none.

        kube-scheduler retries a pod when it sees a change. It may see one before our watch does, or not at all (an init
        container that has finished, a quota): the pod then waits beside free devices until it is reminded.
        """
        with self._lock:
            self._index.refresh()
            state, tried = self._state(), set[tuple[PodRequest | None, tuple[str, ...] | None]]()
            for pending in self._pending.due(state, self._clock()):
                if self._waits_no_longer(pending.pod.ref.uid):
                    self._pending.remove(pending.pod.ref.uid)
                    continue
                request = self._request(pending.pod, self._budgets(pending.pod.ref.namespace)), pending.nodes
                if request not in tried:
                    if len(tried) == PENDING_REQUESTS:
                        return None
                    tried.add(request)
                    if (node := self._node_for(*request)) is not None:
                        self._pending.remind(pending, self._clock())
                        return node
                self._pending.mark_tried(pending, state)
            return None

    def simulate(self, pod: Pod, nodes: Sequence[Node]) -> tuple[Choice | None, Refusal] | None:
        """Returns the choice among *nodes* as if they were idle, and why the others do not fit. Nothing is reserved.

        Returns ``None`` if *pod* requests no device. Inventories that cannot be read count as empty.
        """
        idle = Cache(self.vendors, self.policies, clock=self._clock, now=self._now)
        for node in nodes:
            idle.nodes.upsert(node)
        with self._lock:
            request = self._request(pod, self._budgets(pod.ref.namespace))
        if request is None:
            return None
        names = [node.name for node in nodes]
        choice = choose_node(idle._verdicts, request, names, node_policy_of(pod, self.policies.node))
        return choice, refusals(idle._verdicts, request, names)

    def choose(self, pod: Pod, names: Sequence[str], ended: Collection[str] = ()) -> Choice | None:
        """Returns the choice among the nodes *names* as if the pods *ended* (uids) had ended. Nothing is reserved.

        Returns ``None`` if none fits, or *pod* requests no device. Raises: MalformedInput for an unreadable annotation.
        """
        with self._lock:
            bookings = [booking for uid in ended if (booking := self._index.unbook(uid)) is not None]
            try:
                request = self._request(pod, self._budgets(pod.ref.namespace))
                if request is None:
                    return None
                return choose_node(self._verdicts, request, names, node_policy_of(pod, self.policies.node))
            finally:
                for booking in bookings:
                    self._index.book(booking)

    def fits_without(self, pod: Pod, ended: Mapping[str, Collection[str]]) -> list[str] | None:
        """Returns those of the nodes *ended* that *pod* fits once the pods (uids) named for each node have ended.

        Returns ``None`` if *pod* requests no device. What is reserved for *pod* itself counts as free. Unlike
        :meth:`choose`, it leaves the index as it is, so nothing that follows from it is computed again. The lock is
        released now and then. Raises: MalformedInput for an unreadable annotation.
        """
        if self._request(pod, {}) is None:
            return None
        fitting = []
        for number, (node, uids) in enumerate(ended.items()):
            if number and number % JUDGED_AT_ONCE == 0:
                self._yield_lock()
            with self._lock:
                if self._fits_without(pod, node, {pod.ref.uid, *uids}):
                    fitting.append(node)
        return fitting

    def refuse(self, pod: Pod, names: Sequence[str]) -> Refusal | None:
        """Returns why those of the nodes *names* that *pod* does not fit do not; ``None`` if it requests no device.

        Raises: MalformedInput for an unreadable annotation.
        """
        with self._lock:
            request = self._request(pod, self._budgets(pod.ref.namespace))
        return self._explain(request, names) if request is not None else None

    def quota_allows(self, namespace: str, pod: Pod) -> bool:
        """Reports whether the quotas of *namespace* have room for *pod*, as far as is known before devices are chosen.

        A pod that requests nothing is allowed even where the quota is exceeded.
        """
        with self._lock:
            budgets = self._budgets(namespace)
        kinds = [container.kind for container in pod.containers]
        demands = {vendor.key: _least_demand(vendor, pod, kinds) for vendor in self.vendors if vendor.key in budgets}
        return all(budgets[key].covers(*demand) for key, demand in demands.items() if any(demand))

    # Bind

    def is_bound(self, uid: str, node: str) -> bool:
        """Reports whether the pod is known to be bound to *node*."""
        with self._lock:
            return self._bound_node(uid) == node

    def expire(self) -> list[Reservation]:
        """Ends what has timed out: reservations, which are returned, and silent device plugins."""
        with self._lock:
            expired = self.reservations.expire()
            self.pods.expire()
            self.nodes.expire()
            return expired

    def follow(self, reserved: Iterable[tuple[PodRef, Booking]], ended: Iterable[str]) -> None:
        """Takes over the reservations of another process that reads the same cluster.

        *reserved*: new ones, or such that have changed. *ended*: pods (uids) that have none any more.
        """
        with self._lock:
            for uid in ended:
                self.reservations.forget(uid)
            for ref, booking in reserved:
                if not self._bound_node(ref.uid) and not self.pods.is_deleted(ref.uid):
                    self.reservations.assume(Reservation(
                        ref, booking.node, (), {}, {}, frozenset(), (), self._clock(), BindingStage.WAITING), booking)

    # Reading

    def node_usage(self, node: str) -> Mapping[str, Sequence[DeviceUsage]]:
        """Returns the devices of *node* and their usage, by vendor."""
        with self._lock:
            return self._index.usages(node)

    def snapshot(self) -> Snapshot:
        """Returns the content of the cache. The lock is held only while references are copied."""
        with self._lock:
            self._index.refresh()
            nodes = {name: entry.usages for name, entry in self._index.nodes.items()}
            used = dict(self._index.usage_by_namespace())
            bookings, quotas = list(self._index.bookings.values()), self.quotas.all()
            records, reserved = self.pods.all(), self.reservations.refs()
        pods = {record.ref.uid: record.ref for record in records} | {ref.uid: ref for ref in reserved}
        return Snapshot(nodes, bookings, pods, used, quotas)

    def version(self) -> tuple[int, ...]:
        """Returns numbers of which one increases with every change of what can be read here."""
        with self._lock:
            self._index.refresh()
            return self._index.changes, self.quotas.changes, self.nodes.changes, self.pods.changes

    def changed_nodes(self, change: int) -> tuple[int, list[str], set[str]]:
        """Returns the number of the last change; the nodes whose devices have changed since that of number *change*;
        and all nodes with devices."""
        with self._lock:
            changed = self._index.changed_since(change)
            return self._index.changes, changed, set(self._index.nodes)

    def excerpt(self, names: Iterable[str]) -> Snapshot:
        """Returns the part of a snapshot that concerns the nodes *names*, with all quotas."""
        with self._lock:
            nodes = {name: usages for name in names if (usages := self._index.usages(name))}
            bookings = [booking for name in nodes for booking in self._index.bookings_on(name)]
            used = dict(self._index.usage_by_namespace())
            refs = {booking.uid: self._ref(booking.uid) for booking in bookings}
            pods = {uid: ref for uid, ref in refs.items() if ref is not None}
            return Snapshot(nodes, bookings, pods, used, self.quotas.all())

    def booking(self, uid: str) -> Booking | None:
        """Returns what the pod holds."""
        with self._lock:
            return self._index.bookings.get(uid)

    def load(self, snapshot: Snapshot) -> None:
        """Makes devices, bookings and quotas those of *snapshot*. What has not changed since the last one costs little.

        Annotations, node locks and waiting pods are not part of it. This cache must belong to one thread.
        """
        bookings = {booking.uid: booking for booking in snapshot.bookings}
        self._load_devices(snapshot.nodes)
        for uid in [uid for uid in self._index.bookings if uid not in bookings]:
            self._index.unbook(uid)
        for booking in bookings.values():
            self._index.book(booking)
        self.quotas.prune({quota.uid for quota in snapshot.quotas}, 0.0)
        for quota in snapshot.quotas:
            self.quotas.upsert(quota)

    def _load_devices(self, nodes: Mapping[str, Mapping[str, Sequence[DeviceUsage]]]) -> None:
        for name in [name for name in self._index.nodes if name not in nodes]:
            self._index.remove_node(name)
        for name, usages in nodes.items():
            entry = self._index.nodes.get(name)
            gone = [vendor for vendor in entry.devices if vendor not in usages] if entry is not None else []
            for vendor, found in usages.items():
                self._index.set_devices(name, vendor, tuple(usage.device for usage in found))
            for vendor in gone:
                self._index.set_devices(name, vendor, ())

    def _ref(self, uid: str) -> PodRef | None:
        """Returns the pod that holds a booking."""
        if (record := self.pods.get(uid)) is not None:
            return record.ref
        reservation = self.reservations.find(uid)
        return reservation.ref if reservation is not None else None

    def _check_unbound(self, ref: PodRef) -> None:
        """Raises: Rejected if the pod cannot be filtered (again)."""
        if self.pods.is_deleted(ref.uid):
            raise Rejected(f'pod "{ref.name}" not found')
        record = self.pods.get(ref.uid)
        if record is not None and record.terminated:
            raise Rejected(f"pod {ref} has terminated")
        if node := self._bound_node(ref.uid):
            raise Rejected(f"pod {ref} is already bound to node {node}")
        if (reservation := self.reservations.find(ref.uid)) is not None and reservation.stage is BindingStage.WRITING:
            raise Rejected(f"pod {ref} is being bound to node {reservation.node}")

    def _bound_node(self, uid: str) -> str | None:
        """Returns the node that the pod is bound to, perhaps by a Binding of ours that the watch has not shown yet."""
        if (record := self.pods.get(uid)) is not None and record.node:
            return record.node
        reservation = self.reservations.find(uid)
        return reservation.node if reservation and reservation.stage is BindingStage.FINISHED else None

    def _explain(self, request: PodRequest, names: Sequence[str]) -> Refusal:
        """Returns why *request* fits none of the nodes *names*. Nodes that have changed and fit by now are left out.

        The lock is released now and then: explaining thousands of nodes takes longer than other filters should wait.
        """
        refusal = Refusal(request, {}, ())
        for start in range(0, len(names), EXPLAINED_AT_ONCE):
            if start:
                self._yield_lock()
            with self._lock:
                part = refusals(self._verdicts, request, names[start:start + EXPLAINED_AT_ONCE])
            refusal = Refusal(request, refusal.unfit | part.unfit, refusal.unknown + part.unknown)
        return refusal

    def _fits_without(self, pod: Pod, node: str, uids: Collection[str]) -> bool:
        if node not in self._index.nodes:
            return False
        ended = [booking for uid in uids if (booking := self._index.bookings.get(uid)) is not None]
        own = [booking for booking in ended if booking.namespace == pod.ref.namespace]
        request = self._request(pod, self._budgets(pod.ref.namespace, own))
        if request is None:
            return False
        if all(booking.node != node for booking in ended):
            return self._node_for(request, (node,)) is not None  # from the cached verdicts
        return not isinstance(place_pod(self._index.usages_without(node, uids), request), Unfit)

    def _budgets(self, namespace: str, ended: Collection[Booking] = ()) -> dict[str, Budget]:
        """Returns what the quotas leave, by vendor, without the bookings *ended* of pods of *namespace*."""
        quotas = self.quotas.of(namespace)
        budgets = {}
        for vendor in self.vendors if quotas else ():
            memory, cores = self._index.namespace_usage(namespace, vendor.key)
            for charges in (charges for booking in ended for key, charges in booking.charges if key == vendor.key):
                freed_memory, freed_cores = total_charge(charges)
                memory, cores = memory - freed_memory, cores - freed_cores
            budgets[vendor.key] = remaining_budget(vendor, quotas, (memory, cores))
        return budgets

    def _request(self, pod: Pod, budgets: Mapping[str, Budget]) -> PodRequest | None:
        return make_pod_request(pod, self.vendors, self.policies.device, budgets)

    def _waits_no_longer(self, uid: str) -> bool:
        record = self.pods.get(uid)
        return self.pods.is_deleted(uid) or (record is not None and (bool(record.node) or record.terminated))

    def _node_for(self, request: PodRequest | None, names: tuple[str, ...] | None) -> str | None:
        if request is None:
            return None
        names = names if names is not None else tuple(self._index.rows)
        choice = choose_node(self._verdicts, request, names, NodePolicy.BINPACK)
        return choice.node if choice is not None else None

    def _state(self) -> tuple[int, int]:
        """Returns a value that differs after every change that could make room for a pod."""
        return self._index.changes, self.quotas.changes

    def _reserve(self, pod: Pod, request: PodRequest, choice: Choice) -> None:
        vendors = [vendor_request.vendor for vendor_request in request.vendor_requests]
        allocated = [(vendor, tuple(tuple(share for share in shares if share.type == vendor.key)
                                    for shares in choice.placement)) for vendor in vendors]
        lock_free = self.nodes.lock_free(choice.node)
        annotations = render_annotations(
            pod, choice.node, allocated, lock_free, self._index.usages(choice.node), self._now())
        lock_keys = tuple(sorted({
            key for vendor in vendors if (key := vendor.annotations.lock) and vendor.key not in lock_free}))
        self.reservations.assume(
            Reservation(pod.ref, choice.node, choice.placement, annotations, render_labels(choice.node), lock_free,
                        lock_keys, self._clock()),
            Booking(pod.ref.uid, pod.ref.namespace, choice.node, tuple(
                (vendor.key, peak_charges(request.kinds, shares)) for vendor, shares in allocated)))


def _assume_again(reservation: Reservation, names: Sequence[str]) -> Choice:
    """Returns the choice of *reservation*: its Binding may still be written, so there can be no other."""
    if reservation.node not in names:
        raise Rejected(f"pod {reservation.ref}: it is not known whether it was bound to {reservation.node}")
    return Choice(reservation.node, reservation.placement, (), 0, len(names))


def _least_demand(vendor: Vendor, pod: Pod, kinds: Sequence[ContainerKind]) -> tuple[int, int]:
    """Returns the least memory and cores that *pod* can take: all shares of one device, percentages as nothing."""
    most = WHOLE if vendor.resources.takes_cores(pod.annotations.get) else 0
    requests = [device_request(vendor, container) for container in pod.containers]
    return total_charge(peak_charges(kinds, [
        (Share("", vendor.key, request.memory_mib * request.count, min(request.cores, most) * request.count),)
        if request is not None else () for request in requests]))
