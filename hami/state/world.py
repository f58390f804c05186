"""A cluster as a replay has it: its nodes, what pods hold of them, and the scheduler's own decision.

Tables, verdicts, the room for the usual pods and how these are learnt are the scheduler's. Nothing else decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hami.model import Device, Pod, Taint
from hami.scheduling.node_order import node_order_of, weights
from hami.scheduling.node_resources import NOTHING, NodeResources, requested
from hami.scheduling.placement import may_place
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.refusal import Choice
from hami.scheduling.usage import Charge
from hami.state import dry_run
from hami.state.bookings import Booking, booking_of
from hami.state.evictable import EvictablePods
from hami.state.learning import Learning
from hami.state.offered import OfferedNodes
from hami.state.read_pod import PodRecord, PodTraits
from hami.state.rooms import Rooms, Usual
from hami.state.sighting import Sighting
from hami.state.stranded import stranded_in
from hami.state.table import Table
from hami.state.verdicts import Verdicts
from hami.state.view import Facts, Policies, View
from hami.vendors.spec import Catalog

_NEVER = Sighting(0.0)


class _KnownRequests(View):
    """A view that makes the request of pods of one shape once. *known*: by the identity of their containers."""

    def __init__(
        self, table: Table, facts: Facts, verdicts: Verdicts, known: dict[int, PodRequest | None]
    ) -> None:
        super().__init__(table, facts, verdicts=verdicts)
        self._known = known

    def request_of(self, pod: Pod) -> PodRequest | None:
        """Returns what *pod* requests."""
        key = id(pod.containers)
        if key not in self._known:
            self._known[key] = super().request_of(pod)
        return self._known[key]


class _Ends:
    """The number of pods that have *ended*."""

    def __init__(self) -> None:
        self.ended = 0

    def count(self) -> None:
        """Counts one more."""
        self.ended += 1


class World:
    """The nodes and pods at one moment of a replay. *policies*: for pods that name none."""

    def __init__(self, vendors: Catalog, policies: Policies) -> None:
        self._vendors = vendors
        self._policies = policies
        self._table = Table()
        rooms = Rooms(self._table)
        self._verdicts = Verdicts(self._table, rooms, evaluate_all=0)
        self._ends = _Ends()
        self._learning = Learning(vendors, self._table, self._ends, rooms)
        self._known: dict[int, PodRequest | None] = {}
        self._pods: dict[str, PodRecord] = {}
        # for decisions, which ask for nothing that a view computes once
        self._deciding = self._view(Usual())
        self._memory: dict[str, int] = {}  # MiB of devices
        self._devices: dict[str, tuple[str, ...]] = {}
        self.offered = OfferedNodes(self._table)
        """The nodes that kube-scheduler may offer."""
        self.evictable = EvictablePods(self._table.bookings, self._pods, self.offered)
        """The pods that others may evict."""
        self.devices = 0
        """The number of devices."""
        self.taken = 0.0
        """The parts of devices that pods hold, added up."""

    # Nodes

    def set_node(
        self,
        name: str,
        devices: Sequence[Device],
        labels: Mapping[str, str],
        left: NodeResources,
        *,
        taints: tuple[Taint, ...] = (),
        is_offered: bool,
    ) -> None:
        """Sets a node as it is now. *left*: what pods without devices leave of it. *is_offered*: it is not cordoned."""
        by_vendor: dict[str, list[Device]] = {}
        entry = self._table.nodes.get(name)
        if entry is not None:
            by_vendor = {vendor: [] for vendor in entry.devices}
        for device in devices:
            by_vendor.setdefault(device.vendor, []).append(device)
            self._memory[device.uuid] = device.memory_mib
        self._devices[name] = tuple(device.uuid for device in devices)
        for vendor, of_vendor in by_vendor.items():
            self._table.set_devices(name, vendor, tuple(of_vendor))
        self._table.set_labels(name, labels)
        self.set_left(name, left)
        self.offered.set(name, taints, is_offered=is_offered)
        self.devices = sum(map(len, self._devices.values()))

    def set_left(self, name: str, left: NodeResources) -> None:
        """Sets what pods without devices leave of a node."""
        if name in self._devices:
            earlier = self._table.left.get(name, NOTHING)
            self._table.set_left(name, left)
            self.offered.free(name, left - earlier)

    def remove_node(self, name: str) -> list[str]:
        """Removes a node, and returns the pods (uids) that were on it."""
        if self._devices.pop(name, None) is None:
            return []
        self._table.remove_node(name)
        self._table.set_labels(name, None)
        self.offered.free(name, NOTHING - self._table.left.get(name, NOTHING))
        self._table.set_left(name, None)
        self.offered.set(name, is_offered=False)
        self.devices = sum(map(len, self._devices.values()))
        return [booking.uid for booking in self._table.bookings.on(name)]

    def has_node(self, name: str) -> bool:
        """Reports whether there is such a node."""
        return name in self._devices

    # Decisions

    def view(self) -> View:
        """Returns what there is now; it is not to be used after the next change."""
        return self._view(self._learning.usual())

    def _view(self, usual: Usual) -> View:
        facts = Facts(vendors=self._vendors, policies=self._policies, pods=self._pods, usual=usual)
        return _KnownRequests(self._table, facts, self._verdicts, self._known)

    def choose(self, pod: Pod, names: Sequence[str] | None = None) -> Choice | None:
        """Returns the decision on *pod* among *names*, else all nodes, of those that it selects and where CPU and
        memory suffice; ``None`` if it fits none."""
        self._learning.begin()
        rows = self.offered.fitting(pod, requested(pod), names)
        return dry_run.choose_from(self._deciding, pod, rows)

    def may_serve(self, pod: Pod, node: str) -> bool:
        """Reports whether *pod* may fit *node*. False is certain, and costs little."""
        request = self._deciding.request_of(pod)
        return request is not None and may_place(self._table.usages(node), request)

    # Pods

    def place(self, pod: Pod, choice: Choice, at: float) -> None:
        """Gives *pod* what *choice* says."""
        request = self._deciding.request_of(pod)
        assert request is not None, "a chosen pod requests devices"
        self._put(pod, booking_of(pod, request, choice), at)
        self._learning.placed(pod, request)

    def book(
        self,
        pod: Pod,
        node: str,
        charges: tuple[tuple[str, tuple[Charge, ...]], ...],
        at: float,
        *,
        is_initial: bool,
    ) -> None:
        """Gives *pod* what it had. *is_initial*: it was there at first, so nothing has been decided yet."""
        if not is_initial:
            self._learning.begin()
        request = self._deciding.request_of(pod)
        uid = pod.ref.uid
        is_new = uid not in self._table.bookings.by_uid
        booking = Booking(
            uid, pod.ref.namespace, node, charges, pod.priority, pod.scope, requested(pod)
        )
        self._put(pod, booking, at)
        if is_new and request is not None:
            self._learning.placed(pod, request)

    def _put(self, pod: Pod, booking: Booking, at: float) -> None:
        self._take(self._table.bookings.by_uid.get(booking.uid), -1)
        self._table.bookings.put(booking)
        self._take(booking, 1)
        self._pods[booking.uid] = _record(pod, booking.node, at)

    def end(self, uid: str) -> Booking | None:
        """Ends the pod *uid*, and returns what it held."""
        self._pods.pop(uid, None)
        booking = self._table.bookings.pop(uid)
        if booking is not None:
            self._take(booking, -1)
            self._ends.count()
        return booking

    def _take(self, booking: Booking | None, sign: int) -> None:
        if booking is None:
            return
        taken = booking.resources if sign < 0 else NOTHING - booking.resources
        self.offered.free(booking.node, taken)
        for _, charges in booking.charges:
            for charge in charges:
                memory = charge.memory_mib / max(1, self._memory.get(charge.uuid, 0))
                self.taken += sign * min(1.0, max(charge.cores / 100, memory))


def ranks(world: World, pod: Pod, names: Sequence[str]) -> list[tuple[object, ...]]:
    """Returns what decides about the order of the nodes *names* for *pod*, but for their names."""
    view = world.view()
    order = node_order_of(pod, view.facts.policies.node)
    rows = view.verdicts.rows(names)
    labels = {name: view.labels_of(name) for name in names}
    preferred = weights(pod.preferences, names, labels).tolist()
    scores = view.verdicts.scores(view.request_of(pod), rows, order)
    return list(zip(preferred, scores, view.table.scores[rows].tolist(), strict=True))


def stranded(world: World) -> float | None:
    """Returns the free parts of devices that are of no use to the usual pods, added up; ``None`` if these are not
    known."""
    found = stranded_in(world.view())
    if found is None:
        return None
    return sum(free.stranded for free in found.devices.values())


def held_devices(charges: Iterable[tuple[str, Collection[Charge]]]) -> frozenset[str]:
    """Returns the devices of *charges*."""
    uuids: set[str] = set()
    for _, of_vendor in charges:
        uuids.update(charge.uuid for charge in of_vendor)
    return frozenset(uuids)


def chosen_devices(choice: Choice) -> frozenset[str]:
    """Returns the devices of *choice*."""
    uuids: set[str] = set()
    for shares in choice.placement:
        uuids.update(share.uuid for share in shares)
    return frozenset(uuids)


def _record(pod: Pod, node: str, at: float) -> PodRecord:
    """Returns the record of a pod that runs on *node* since *at*, as far as preemption reads it."""
    none: Mapping[str, int] = {}
    return PodRecord(
        ref=pod.ref,
        version=0,
        node=node,
        scheduler_name="",
        assigned_node=node,
        label=None,
        phase="Running",
        bind_phase="",
        allocating=False,
        assigned_at=0,
        assigned=_NEVER,
        bound_at=0,
        bound=_NEVER,
        most_shares=none,
        terminated=False,
        seen_at=0.0,
        group=pod.group,
        priority=pod.priority,
        traits=PodTraits(controller=pod.controller, is_protected=bool(pod.labels)),
        started=int(at),
    )
