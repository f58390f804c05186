"""The content of the store at one moment, and what would be decided in it, or in a cluster that differs a little.

Metrics, inspection, dashboard and preemption read views only. Nothing that is asked of a view changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from types import MappingProxyType

from hami.codec.resize import Size
from hami.model import Allocation, Budget, Device, Node, Pod, PodRef, PodScope, QuotaLimits
from hami.scheduling.fit import Unfit
from hami.scheduling.node_order import NodeOrder, node_order_of, weights
from hami.scheduling.placement import NodeUsage, place_pod
from hami.scheduling.pod_request import PodRequest, make_pod_request
from hami.scheduling.quota import (
    QuotaCheck,
    ScopedUsage,
    budgets_of,
    check_quota,
    quota_allows,
)
from hami.scheduling.refusal import Choice, NodeRefusal, Refusal
from hami.scheduling.resize import ResizePlan, ResizeRefusal, plan_resize
from hami.scheduling.score import node_score
from hami.scheduling.usage import TotalCharge, charged_by, peak_charges, shares_of, total_charge
from hami.state.bookings import Booking, Bookings
from hami.state.inventories import devices_of
from hami.state.read_pod import PodRecord
from hami.state.resize_facts import resizable_devices
from hami.state.table import Table
from hami.state.verdicts import Verdicts, vendor_score
from hami.vendors.spec import Catalog

MAX_OVERLAY, MAX_REBOOKED = (
    32,
    256,
)  # nodes and pods that differ from the table; beyond them a new table is made

NamespaceQuotas = Mapping[str, Mapping[str, QuotaLimits]]
"""ResourceQuotas by namespace and uid."""


@dataclass(frozen=True, slots=True)
class Policies:
    """The node and device policies for pods that name none."""

    node: str = "binpack"
    device: str = "spread"


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
    )


def booked_on(usages: NodeUsage, booking: Booking) -> NodeUsage:
    """Returns *usages* of a node with what *booking* holds on it."""
    made = dict(usages)
    for vendor, charges in booking.charges:
        by_uuid = {charge.uuid: charge for charge in charges}
        made[vendor] = tuple(
            charged_by(usage, by_uuid[usage.device.uuid]) if usage.device.uuid in by_uuid else usage
            for usage in made.get(vendor, ())
        )
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The content of a store beside devices and bookings.

    *pods*: records by uid. *reserved*: the pods that have reservations, by uid. *quotas*: those that limit devices.
    *problems*: why inventories cannot be read, by node and vendor. *locks*: node, annotation, text of each node lock.
    """

    vendors: Catalog
    policies: Policies
    pods: Mapping[str, PodRecord] = field(default_factory=dict)
    reserved: Mapping[str, PodRef] = field(default_factory=dict)
    quotas: NamespaceQuotas = field(default_factory=dict)
    problems: Mapping[tuple[str, str], str] = field(default_factory=dict)
    locks: Sequence[tuple[str, str, str]] = ()


class View:
    """The store at one moment.

    *table* belongs to the view, and is never changed; views that `what_if` makes share it. *overlay*: nodes that differ
    from the table. *labels*: of nodes that may differ from it. *rebooked*: what pods (uids) hold instead, ``None`` for
    nothing.
    """

    def __init__(
        self,
        table: Table,
        facts: Facts,
        *,
        verdicts: Verdicts | None = None,
        overlay: Mapping[str, NodeUsage] | None = None,
        labels: Mapping[str, Mapping[str, str]] | None = None,
        rebooked: Mapping[str, Booking | None] | None = None,
    ) -> None:
        self.facts = facts
        self.vendors = facts.vendors
        self._table = table
        self._verdicts = verdicts or Verdicts(table)
        self._overlay: Mapping[str, NodeUsage] = overlay or {}
        self._labels: Mapping[str, Mapping[str, str]] = labels or {}
        self._rebooked: Mapping[str, Booking | None] = rebooked or {}

    # What there is

    @cached_property
    def nodes(self) -> Mapping[str, NodeUsage]:
        """The devices of all nodes and their usage."""
        names = dict.fromkeys((*self._table.nodes, *self._overlay))
        return {name: usages for name in names if (usages := self.usages(name))}

    @cached_property
    def bookings(self) -> Mapping[str, Booking]:
        """The bookings of pods, by uid."""
        bookings = dict(self._table.bookings.by_uid)
        for uid, booking in self._rebooked.items():
            bookings.pop(uid, None)
            if booking is not None:
                bookings[uid] = booking
        return bookings

    def booking(self, uid: str) -> Booking | None:
        """Returns what the pod holds."""
        return (
            self._rebooked[uid] if uid in self._rebooked else self._table.bookings.by_uid.get(uid)
        )

    def bookings_on(self, node: str) -> list[Booking]:
        """Returns what pods hold on *node*."""
        found = []
        for booking in self._table.bookings.on(node):
            if booking.uid not in self._rebooked:
                found.append(booking)
        for changed in self._rebooked.values():
            if changed is not None and changed.node == node:
                found.append(changed)
        return found

    @cached_property
    def used(self) -> Mapping[tuple[str, str], TotalCharge]:
        """The amounts that pods take, by namespace and vendor, without zeros."""
        used: dict[tuple[str, str], TotalCharge] = {}
        for key, scoped in self._merged._table.bookings.by_namespace().items():
            used[key] = TotalCharge()
            for total in scoped.values():
                used[key] = used[key].plus(total)
        return used

    def usages(self, node: str) -> NodeUsage:
        """Returns the devices of *node* and their usage, by vendor; empty if it has none."""
        usages = self._overlay.get(node)
        return self._table.usages(node) if usages is None else usages

    def ref(self, uid: str) -> PodRef | None:
        """Returns the pod that holds a booking."""
        record = self.facts.pods.get(uid)
        return record.ref if record is not None else self.facts.reserved.get(uid)

    # What would be decided

    def choose(self, pod: Pod, names: Sequence[str]) -> Choice | None:
        """Returns the choice among the nodes *names*; ``None`` if none fits, or *pod* requests no device.

        Raises: MalformedInput for an unreadable annotation.
        """
        if (request := make_pod_request(pod, self.vendors, self.facts.policies.device)) is None:
            return None
        order = node_order_of(pod, self.facts.policies.node)
        quota = self._check_quota(pod, request)
        changed = [name for name in names if name in self._overlay]
        if changed:
            names = [name for name in names if name not in self._overlay]
        choice = (
            self._verdicts.choose(request, self._verdicts.rows(names), order, quota)
            if names
            else None
        )
        return self._better(choice, changed, request, order, quota) if changed else choice

    def refuse(self, pod: Pod, names: Sequence[str]) -> Refusal | None:
        """Returns why those of the nodes *names* that *pod* does not fit do not; ``None`` if it requests no device.

        Raises: MalformedInput for an unreadable annotation.
        """
        if (request := make_pod_request(pod, self.vendors, self.facts.policies.device)) is None:
            return None
        merged = self._merged
        verdicts = merged._verdicts
        return verdicts.refuse(
            request, names, verdicts.rows(names), merged._check_quota(pod, request)
        )

    def closest(self, refusal: Refusal, count: int | None = None) -> list[NodeRefusal]:
        """Returns the refused nodes that are closest to serving, at most *count*, nearest first."""
        return self._merged._verdicts.closest(refusal, count)

    def plan_resize(
        self, pod: Pod, sizes: Mapping[str, Size], node: Node | None
    ) -> ResizePlan | ResizeRefusal:
        """Returns what would follow from the *sizes* that the containers of *pod*, which is on *node*, are to have.

        Raises: MalformedInput if the pod has no allocation that can be resized.
        """
        booked = self.booking(pod.ref.uid)
        return plan_resize(
            sizes,
            resizable_devices(
                pod,
                make_pod_request(pod, self.vendors, self.facts.policies.device),
                self.vendors,
                node,
                self.usages(pod.node_name),
                dict(booked.charges) if booked is not None else {},
                self._budgets(pod.ref.namespace, pod.scope),
                self.quotas_of(pod.ref.namespace),
            ),
        )

    def may_preempt_on(self, pod: Pod, names: Sequence[str]) -> list[str]:
        """Returns those of the nodes *names*, lowest priority first, where pods of lower priority than *pod* hold
        devices and it may fit if nobody does.

        Raises: MalformedInput for an unreadable annotation.
        """
        if (request := make_pod_request(pod, self.vendors, self.facts.policies.device)) is None:
            return []
        merged = self._merged
        rows = merged._verdicts.may_preempt_on(request, merged._verdicts.rows(names), pod.priority)
        return [merged._table.names[row] for row in rows.tolist()]

    def fits_without(
        self, pod: Pod, node: str, uids: Collection[str]
    ) -> Callable[[Collection[str]], bool]:
        """Returns a function that reports whether *pod* fits *node* without some of the pods *uids*.

        It is for many questions about one node. Raises: MalformedInput for an unreadable annotation.
        """
        request = make_pod_request(pod, self.vendors, self.facts.policies.device)
        if request is None or self.facts.quotas.get(
            pod.ref.namespace
        ):  # what ends elsewhere counts for quotas, too
            return lambda ended: self.what_if(without=ended).choose(pod, [node]) is not None
        held = {booking.uid: booking for booking in self.bookings_on(node) if booking.uid in uids}
        idle = self.what_if(without=held).usages(node)

        def fits(ended: Collection[str]) -> bool:
            usages = idle
            for uid, booking in held.items():
                if uid not in ended:
                    usages = booked_on(usages, booking)
            return not isinstance(place_pod(usages, request), Unfit)

        return fits

    def assume(self, pod: Pod, names: Sequence[str]) -> tuple[Choice | Refusal | None, View]:
        """Returns the decision on *pod*, ``None`` if it requests no device, and the view in which it is carried out.

        Raises: MalformedInput for an unreadable annotation.
        """
        if (choice := self.choose(pod, names)) is None:
            return self.refuse(pod, names), self
        return choice, self.placed(pod, choice)

    def placed(self, pod: Pod, choice: Choice) -> View:
        """Returns the view in which *pod* holds what *choice* gives it."""
        request = make_pod_request(pod, self.vendors, self.facts.policies.device)
        assert request is not None, "a chosen pod requests devices"
        return self.what_if(with_=[booking_of(pod, request, choice)])

    def quotas_of(self, namespace: str) -> Collection[QuotaLimits]:
        """Returns the quotas of *namespace*."""
        return self.facts.quotas.get(namespace, {}).values()

    def quota_allows(self, namespace: str, pod: Pod) -> bool:
        """Reports whether the quotas of *namespace* have room for the least that *pod* can take."""
        return quota_allows(self.vendors, self._budgets(namespace, pod.scope), pod)

    # A cluster that differs

    def what_if(
        self,
        *,
        without: Collection[str] = (),
        with_: Iterable[Booking] = (),
        nodes: Iterable[Node] = (),
        devices: Mapping[str, Mapping[str, Sequence[Device]]] = MappingProxyType({}),
        quotas: NamespaceQuotas | None = None,
    ) -> View:
        """Returns the view in which the pods *without* (uids) have ended, pods hold *with_*, nodes are as *nodes*, or
        have *devices* (by name and vendor), with the bookings that they have, and the namespaces in *quotas* have
        these.

        Device plugins of *nodes* count as alive, and inventories that cannot be read as empty.
        """
        rebooked: dict[str, Booking | None] = dict.fromkeys(without)
        rebooked.update({booking.uid: booking for booking in with_})
        affected: dict[str, Mapping[str, Sequence[Device]]] = {}
        for uid, booking in rebooked.items():
            for held in (self.booking(uid), booking):
                if held is not None and held.node not in affected:
                    affected[held.node] = _devices_of(self.usages(held.node))
        labels = dict(self._labels)
        for node in nodes:
            labels[node.name] = node.labels
            affected[node.name] = devices_of(self.vendors, node)
        affected.update(devices)
        facts = self.facts
        if quotas is not None:
            facts = replace(facts, quotas={**facts.quotas, **quotas})
        rebooked = {**self._rebooked, **rebooked}
        changed = View(self._table, self.facts, rebooked=rebooked)
        overlay = {**self._overlay, **_usages_in(changed, affected)}
        view = View(
            self._table,
            facts,
            verdicts=self._verdicts,
            overlay=overlay,
            labels=labels,
            rebooked=rebooked,
        )
        if len(overlay) > MAX_OVERLAY or len(rebooked) > MAX_REBOOKED:
            return view._merged
        return view

    @cached_property
    def _merged(self) -> View:
        """The same view with a table of its own, without an overlay."""
        if not self._overlay and not self._rebooked:
            return self
        table = self._table.copy()
        for uid, booking in self._rebooked.items():
            if booking is not None:
                table.bookings.put(booking)
            else:
                table.bookings.pop(uid)
        for name, usages in self._overlay.items():
            devices = table.nodes[name].devices if name in table.nodes else {}
            for vendor in dict.fromkeys((*devices, *usages)):
                table.set_devices(
                    name, vendor, tuple(usage.device for usage in usages.get(vendor, ()))
                )
        for name, labels in self._labels.items():
            table.set_labels(name, labels)
        return View(table, self.facts)

    def _check_quota(self, pod: Pod, request: PodRequest) -> QuotaCheck:
        budgets = self._budgets(pod.ref.namespace, pod.scope)
        return check_quota(request, budgets, self._table.sizes()) if budgets else QuotaCheck()

    def _budgets(self, namespace: str, scope: PodScope) -> dict[str, Budget]:
        return budgets_of(
            self.vendors,
            self.facts.quotas.get(namespace, {}),
            scope,
            partial(self._used, namespace),
        )

    def _used(self, namespace: str, vendor: str) -> ScopedUsage:
        used = dict(self._table.bookings.in_namespace(namespace, vendor))
        for uid, booking in self._rebooked.items():
            for sign, held in ((-1, self._table.bookings.by_uid.get(uid)), (1, booking)):
                if held is not None and held.namespace == namespace:
                    more = total_charge(dict(held.charges).get(vendor, ()))
                    used[held.scope] = used.get(held.scope, TotalCharge()).plus(more, sign)
        return used

    def _better(
        self,
        choice: Choice | None,
        changed: Sequence[str],
        request: PodRequest,
        order: NodeOrder,
        quota: QuotaCheck,
    ) -> Choice | None:
        """Returns *choice*, or a better one among the *changed* nodes."""
        budgets = dict((*quota.decided, *quota.open))
        candidates = len(changed)
        fitting: dict[str, float] = {}
        placements: dict[str, Allocation] = {}
        if choice is not None:
            candidates += choice.candidates
            fitting.update(choice.fitting)
            placements[choice.node] = choice.placement
        for name in changed:
            usages = self._overlay[name]
            placement = place_pod(usages, request, budgets)
            if isinstance(placement, Unfit):
                continue
            placements[name] = placement
            score = node_score(list(chain.from_iterable(usages.values())))
            by_vendors = vendor_score(request, usages, placement, order.policy)
            fitting[name] = score + order.sign * by_vendors
        if not placements:
            return None
        labels = {
            name: self._labels.get(name, self._table.labels.get(name, {})) for name in fitting
        }
        preferred = dict(zip(fitting, weights(order.preferences, list(fitting), labels).tolist()))
        ordered = sorted(
            fitting.items(), key=lambda item: (-preferred[item[0]], -order.sign * item[1], item[0])
        )
        node = next(name for name, _ in ordered if name in placements)
        unfit = candidates - len(ordered)
        return Choice(node, placements[node], tuple(reversed(ordered)), unfit, candidates)


def _devices_of(usages: NodeUsage) -> dict[str, list[Device]]:
    return {vendor: [usage.device for usage in each] for vendor, each in usages.items()}


def _usages_in(
    view: View, devices: Mapping[str, Mapping[str, Sequence[Device]]]
) -> dict[str, NodeUsage]:
    """Returns the usage of nodes that have these *devices*, with the bookings of *view*."""
    usages = {}
    for name, of_node in devices.items():
        bookings = Bookings()
        for booking in view.bookings_on(name):
            bookings.put(booking)
        usages[name] = bookings.usages_of(name, of_node)
    return usages
