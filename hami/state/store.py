"""The scheduler's store: nodes, pods, quotas and reservations, under one lock.

The lock is held for computation only, never across I/O. A filter chooses devices and reserves them in one step under
the lock, so the same part of a device is never given to two pods.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

import msgspec

from hami.codec.pods import preempting_on
from hami.codec.resize import ResizeState, Size, held_text, shares_in
from hami.errors import MalformedInput
from hami.model import Budget, NodePolicy, Pod, PodRef, PodScope, QuotaLimits
from hami.scheduling.node_order import NodeOrder, node_order_of
from hami.scheduling.placement import NodeUsage
from hami.scheduling.pod_request import PodRequest, make_pod_request
from hami.scheduling.preemption import PreemptionPlan
from hami.scheduling.quota import QuotaCheck, budgets_of, check_quota, quota_allows
from hami.scheduling.refusal import Choice, NodeRefusal, Refusal
from hami.scheduling.resize import ResizePlan, ResizeRefusal
from hami.scheduling.turns import in_turn
from hami.state.bookings import PodBookings
from hami.state.evictions import MarkedUnit, PlanUnderWay, marked_units
from hami.state.holds import Hold, HoldEnd, Holds, alone, hold_uid, is_free
from hami.state.nodes import NodeCache
from hami.state.pending import PendingPod, PendingPods
from hami.state.pods import MAX_GRACE_S, PodCache, PodRecord
from hami.state.quotas import QuotaCache
from hami.state.reservations import BindingStage, Rejected, Reservation, Reservations
from hami.state.resizes import as_resized, is_current, resized_annotations
from hami.state.table import Booking, Table
from hami.state.verdicts import Verdicts
from hami.state.view import Facts, Policies, View, booking_of
from hami.vendors.request import requests_devices
from hami.vendors.spec import Catalog

MAX_GROUPS = 4  # waiting groups whose reservations a pod may get at once
HOLD_S = 120.0  # after the last victim should have ended; kube-scheduler may try the pod again a minute later
MAX_UNSHOWN_PENDING = (
    32_768  # bytes of a pending pod that the watch has not shown: there may be no such pod
)
PENDING_REQUESTS = 5  # different requests of pending pods that are tried at once


class Store:
    """Nodes, pods, quotas and reservations. *clock* is monotonic, *now* is the time of day in UTC.

    *foreign_reservations*: what another scheduler has written on an unbound pod counts for some time.
    """

    def __init__(
        self,
        vendors: Catalog,
        policies: Policies,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        foreign_reservations: bool = False,
    ) -> None:
        self.vendors = vendors
        self.policies = policies
        self._clock = clock
        self._now = now
        self._lock = (
            threading.RLock()
        )  # guards everything below, also in nodes, pods, quotas and reservations
        self._table = Table()
        self._verdicts = Verdicts(self._table)
        self._pending = PendingPods()
        self._holds = Holds(self._table)
        self._ended_holds: list[tuple[Hold, HoldEnd]] = []
        bookings = self._bookings = PodBookings(vendors, self._table)
        self.nodes = NodeCache(vendors, self._lock, self._table, bookings, clock=clock, now=now)
        self.reservations = Reservations(self._table, self._lock, self.nodes, clock=clock, now=now)
        self.pods = PodCache(
            vendors,
            self._lock,
            bookings,
            self.reservations,
            self.nodes,
            foreign_reservations=foreign_reservations,
            clock=clock,
            now=now,
        )
        self.quotas = QuotaCache(self._lock)

    # Filter

    def assume(self, pod: Pod, names: Sequence[str]) -> Choice | Refusal | None:
        """Chooses one of the nodes *names* and devices for *pod*, and reserves them. ``None`` if it requests no device.

        An earlier reservation of the pod is replaced, and a bind of it that still waits fails.
        Raises: Rejected when the pod is gone, bound, or being bound; MalformedInput for an unreadable annotation.
        """
        if not pod.claim and not requests_devices(self.vendors, pod.containers):
            return None
        self._verdicts.weigh(
            pod.preferences
        )  # before others wait for the lock: it may take some 30 ms
        with self._lock:
            self._check_unbound(pod.ref)
            if (
                earlier := self.reservations.find(pod.ref.uid)
            ) is not None and earlier.outcome_unknown:
                return _assume_again(earlier, names)
            unshown_since = self._unshown_since(pod, earlier)
            self.reservations.forget(pod.ref.uid)
            self.pods.take_over(pod.ref.uid)
            request = make_pod_request(pod, self.vendors, self.policies.device)
            if request is None:
                return None
            with self._holds_lifted(pod):
                return self._decide(pod, request, names, unshown_since)

    def _unshown_since(self, pod: Pod, earlier: Reservation | None) -> float | None:
        """Returns since when *pod*, which the watch has not shown, has a reservation: *earlier* or the next one.

        ``None`` if it has been shown. Raises: Rejected if too many such pods have reservations.
        """
        if self.pods.get(pod.ref.uid) is not None:
            return None
        self.reservations.check_room_for_unshown(pod)
        if earlier is None or earlier.unshown_since is None:
            return self._clock()
        return earlier.unshown_since

    def _decide(
        self, pod: Pod, request: PodRequest, names: Sequence[str], unshown_since: float | None
    ) -> Choice | Refusal:
        """Chooses and reserves as `assume` does, while what is held for *pod* is free."""
        rows = self._verdicts.rows(names)
        order = node_order_of(pod, self.policies.node)

        def choose() -> Choice | None:
            quota = self._check_quota(pod, request)
            return self._verdicts.choose(request, rows, order, quota) or self._held_choice(
                pod.ref.uid, request, names, quota
            )

        choice = choose()
        if choice is None and (self._take_from_group(pod, names) or self._lift_lower_holds(pod)):
            choice = choose()
        if choice is not None:
            self._reserve(pod, request, choice, unshown_since)
            self._pending.remove(pod)
            if (
                hold := self._holds.get(pod.ref.uid)
            ) is not None:  # it holds the same once the reservation ends
                self._holds.move(hold, choice, _held(pod, request, choice))
                if not hold.evicted:
                    self._holds.spare(hold)
            self._end_taken_holds(pod, choice.node)
            return choice
        self._settle_holds(pod.ref.uid)
        everywhere = len({*rows.tolist(), -1}) > len(self._table.rows)
        if unshown_since is None or pod.size <= MAX_UNSHOWN_PENDING:
            self._pending.add(pod, None if everywhere else names, self._state(), self._clock())
        refusal = self._verdicts.refuse(request, names, rows, self._check_quota(pod, request))
        return replace(refusal, resolvable=self._verdicts.with_lower_priority(refusal, pod))

    def node_scores(self, pod: Pod, names: Sequence[str]) -> list[float]:
        """Returns how the node policy for *pod* ranks each of the nodes *names*, higher is better."""
        with self._lock:
            return self._verdicts.scores(
                self._verdicts.rows(names), node_order_of(pod, self.policies.node)
            )

    def closest(self, refusal: Refusal, count: int) -> list[NodeRefusal]:
        """Returns the *count* refused nodes that are closest to serving, nearest first, as they are now."""
        with self._lock:
            return self._verdicts.closest(refusal, count)

    def node_for_pending_pod(self) -> str | None:
        """Returns a node that a pod which was refused earlier fits by now; ``None`` if there is none.

        kube-scheduler retries a pod when it sees a change. It may see one before our watch does, or not at all (an init
        container that has finished, a quota): the pod then waits beside free devices until it is reminded.
        """
        with self._lock:
            self._settle_holds()
            state, tried = self._state(), set[tuple[object, ...]]()
            for pending in self._pending.due(state, self._clock()):
                ref = pending.pod.ref
                if self._waits_no_longer(ref.uid):
                    self._pending.remove(pending.pod)
                    continue
                request = make_pod_request(pending.pod, self.vendors, self.policies.device)
                hold = self._holds.get(ref.uid) and ref.uid
                quotas = (
                    (ref.namespace, pending.pod.scope) if ref.namespace in self.quotas else None
                )
                group = pending.pod.group and (ref.namespace, pending.pod.group)
                question = request, pending.nodes, quotas, group, hold
                if request is not None and question not in tried:
                    if len(tried) == PENDING_REQUESTS:
                        return None
                    tried.add(question)
                    with self._holds_lifted(pending.pod):
                        node = self._node_for(request, pending)
                    if node is not None:
                        self._pending.remind(pending, self._clock())
                        return node
                self._pending.mark_tried(pending, state)
            return None

    def quotas_of(self, namespace: str) -> Collection[QuotaLimits]:
        """Returns the quotas of *namespace*."""
        with self._lock:
            return tuple(self.quotas.of(namespace).values())

    def quota_allows(self, namespace: str, pod: Pod) -> bool:
        """Reports whether the quotas of *namespace* have room for *pod*, as far as is known before devices are chosen.

        A pod that requests nothing is allowed even where the quota is exceeded.
        """
        with self._lock:
            budgets = self._budgets(namespace, pod.scope)
        return quota_allows(self.vendors, budgets, pod)

    # Bind

    def assume_on(self, ref: PodRef, node: str) -> None:
        """Reserves devices on *node*, to which kube-scheduler binds the pod although they are not reserved there: it
        tried several nodes, or another process has answered its filter.

        Raises: Rejected if the pod does not fit there; then nothing stays reserved, and kube-scheduler retries the pod.
        """
        with self._lock:
            reservation = self.reservations.find(ref.uid)
            if reservation is not None and (
                reservation.outcome_unknown or reservation.stage is not BindingStage.ASSUMED
            ):
                return  # `start_binding` says why it cannot be bound now
            pod = reservation.pod if reservation is not None else self.pods.waiting_pod(ref.uid)
            if pod is None or pod.ref != ref:
                raise Rejected(f"pod {ref} has no reservation: it must be filtered again")
            answer = self.assume(pod, [node])
            if not isinstance(answer, Choice):
                reasons = "; ".join(map(str, answer.unfit.values())) if answer is not None else ""
                raise Rejected(
                    f"pod {ref} does not fit node {node} any more: {reasons or 'no devices'}"
                )

    def assume_nominated(self) -> list[PodRef]:
        """Reserves devices for the pods that kube-scheduler is binding, as the nodes that it nominates show: another
        process has answered their filters. Returns these pods. Those that wait for victims to end do not fit yet.
        """
        assumed = []
        for pod in sorted(
            self.pods.waiting(), key=lambda pod: (-pod.priority, pod.created, pod.ref.uid)
        ):
            uid = pod.ref.uid
            with (
                self._lock,
                contextlib.suppress(Rejected, MalformedInput),
            ):  # its next filter says why
                if pod.nominated_node and uid not in self.reservations:
                    self.assume(pod, [pod.nominated_node])
                    self._pending.remove(pod)  # kube-scheduler tries it by itself
                    if self.reservations.mark_nominated(uid):
                        assumed.append(pod.ref)
        return assumed

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

    # Resize

    def begin_resize(
        self, pod: Pod, sizes: Mapping[str, Size]
    ) -> ResizePlan | ResizeRefusal | None:
        """Returns what follows from the *sizes* that the containers of *pod* are to have. What it grows by is booked.
        ``None`` if this is not the pod as it is known, or the outcome of an earlier resize is not.

        Raises: MalformedInput if the pod has no allocation that can be resized.
        """
        with self._lock:
            self._settle_holds()
            record = self.pods.get(pod.ref.uid)
            if record is None or not is_current(pod, record) or self._bookings.growing(pod.ref.uid):
                return None
            plan = self._view_for(pod).plan_resize(pod, sizes, self.nodes.get(pod.node_name))
            if isinstance(plan, ResizePlan) and plan.booked != shares_in(
                held_text(pod.annotations)
            ):
                if self._is_being_freed(pod.node_name):
                    return ResizeRefusal(
                        ResizeState.DEFERRED,
                        (
                            f"pods of node {pod.node_name} are evicted for one that waits, which gets its devices first"
                        ),
                    )
                self._bookings.grow(as_resized(pod, resized_annotations(plan)), record.most_shares)
            return plan

    def refuse_resize(self, pod: Pod) -> None:
        """Records that *pod*, which was about to grow, certainly has not been changed."""
        with self._lock:
            self._bookings.shrink_back(pod, is_refused=True)

    def is_growing(self, uid: str) -> bool:
        """Reports whether more is booked for the pod than it is known to carry."""
        with self._lock:
            return self._bookings.growing(uid)

    def is_writing(self) -> bool:
        """Reports whether a Binding or a larger allocation may still be written."""
        with self._lock:
            return self.reservations.are_binding() or self._bookings.growing()

    # Claims

    def refused(self) -> list[str]:
        """Returns the uids of the pods that were refused last, at most `hami.state.pending.LIMIT`."""
        with self._lock:
            return [pending.pod.ref.uid for pending in self._pending.all()]

    def claimable_sizes(self) -> frozenset[int]:
        """Returns the different amounts of memory (MiB) of the devices that pods get by claims and share."""
        with self._lock:
            return self._table.shared_sizes(by_claims=True)

    # Preemption

    def preemptors(self) -> list[PendingPod]:
        """Returns the refused pods for which others may be evicted and which have no hold, highest priority first."""
        with self._lock:
            self._settle_holds()
            lowest = self._table.lowest_priority()
            return sorted(
                (
                    pending
                    for pending in self._pending.all()
                    if pending.pod.preempts
                    and pending.pod.priority > lowest
                    and self._holds.get(pending.pod.ref.uid) is None
                    and pending.pod.ref.uid not in self.reservations
                    and not self._waits_no_longer(pending.pod.ref.uid)
                ),
                key=lambda pending: (-pending.pod.priority, pending.since, pending.pod.ref.uid),
            )

    def hold(self, plans: Sequence[tuple[Pod, PreemptionPlan]]) -> list[Hold]:
        """Holds what the *plans* free for their pods: all of them, or none if one cannot be carried out any more.

        The plans of several pods are those of a gang, which may have reservations that wait for the rest of it.
        """
        made: list[Hold] = []
        with self._lock:
            self._settle_holds()
            dropped = [
                (reservation, self._table.bookings[pod.ref.uid])
                for pod, _ in plans
                if pod.group
                and (reservation := self.reservations.find(pod.ref.uid)) is not None
                and not reservation.is_wanted
            ]
            for reservation, _ in dropped:
                self.reservations.forget(reservation.ref.uid)
            leaving = tuple(unit for _, plan in plans for unit in _units_of(plan))
            for pod, plan in plans:
                hold = self._make_hold(pod, plan, _units_of(plan)) or self._make_hold(
                    pod, plan, leaving
                )
                if hold is None:
                    for earlier in made:
                        self._holds.remove(earlier)
                    for reservation, booking in dropped:
                        self.reservations.assume(reservation, booking)
                    return []
                self._holds.add(hold)
                made.append(hold)
            self._settle_holds()
            for hold in made:
                self._end_taken_holds(hold.pod, hold.node)
            self._settle_holds()
        return made

    def holds(self) -> list[Hold]:
        """Returns the holds that stand. Those whose pod can no longer get what is held have ended."""
        with self._lock:
            self._settle_holds()
            checked = []
            for hold in sorted(self._holds, key=lambda hold: -hold.pod.priority):
                if (
                    self._holds.get(hold.ref.uid) is not hold
                    or hold.ref.uid in self.reservations
                    or self._holds.is_checked(hold)
                ):
                    continue
                if self._renew(hold):
                    checked.append(hold)
                else:
                    self._end_hold(hold, HoldEnd.UNFIT)
            self._settle_holds()
            for hold in checked:
                self._holds.mark_checked(hold)
            return list(self._holds)

    def planned_victims(self, priority: int | None = None) -> frozenset[str]:
        """Returns the uids of the victims of the holds for pods of *priority* or higher, by default of all: a pod may
        take what is freed for others of lower priority."""
        with self._lock:
            return self._holds.victims(priority)

    def units_of(self, hold: Hold) -> list[tuple[PodRecord, ...]]:
        """Returns the victims of *hold* that have not ended, by those that are evicted together; none if its pod fits
        without their end, and then they are spared."""
        with self._lock:
            if self._holds.get(hold.ref.uid) is not hold:
                return []
            units = [
                tuple(
                    record
                    for uid in sorted(unit)
                    if (record := self.pods.get(uid)) is not None and not record.terminated
                )
                for unit in sorted(hold.units, key=sorted)
            ]
            records = [record for unit in units for record in unit]
            if not any(record.preempted or record.is_ending for record in records) and self._renew(
                hold, ended=()
            ):
                self._holds.spare(hold)
                self._settle_holds()
                return []
            return [unit for unit in units if unit]

    def still_evicts(self, hold: Hold) -> bool:
        """Reports whether *hold* stands and its pod waits, so that the rest of its victims may be evicted."""
        with self._lock:
            self._settle_holds()
            return self._holds.get(hold.ref.uid) is hold and hold.ref.uid not in self.reservations

    def are_being_evicted(self, uids: Collection[str]) -> bool:
        """Reports whether one of the pods is a victim of a hold whose victims have not all been deleted."""
        with self._lock:
            self._settle_holds()
            return any(
                not hold.evicted and not hold.victims.isdisjoint(uids) for hold in self._holds
            )

    def marked_units(self) -> list[MarkedUnit]:
        """Returns the pods that carry the condition of an eviction, by those that are evicted together."""
        with self._lock:
            return marked_units(self.pods.preempted(), self.pods.get)

    def mark_evicted(self, hold: Hold) -> None:
        """Records that the victims of *hold* have been deleted."""
        with self._lock:
            self._holds.mark_evicted(hold)

    def hold_of(self, uid: str) -> Hold | None:
        """Returns the hold of the pod."""
        with self._lock:
            return self._holds.get(uid)

    def release_holds(self) -> None:
        """Ends all holds, which are of an earlier term of this leader."""
        with self._lock:
            for hold in self._holds:
                self._holds.remove(hold)
            self._ended_holds.clear()

    def release_hold(self, hold: Hold) -> None:
        """Ends *hold* if it stands, since its pod fits without it or others are evicted for it."""
        with self._lock:
            if self._holds.get(hold.ref.uid) is hold:
                self._end_hold(hold, HoldEnd.RELEASED)

    def ended_holds(self) -> list[tuple[Hold, HoldEnd]]:
        """Returns the holds that have ended since the last call, and how."""
        with self._lock:
            ended, self._ended_holds = self._ended_holds, []
            return ended

    def plans_under_way(self) -> list[PlanUnderWay]:
        """Returns the plans for pods without hold or reservation for which others are evicted, by an earlier leader or
        by kube-scheduler, with those victims that have not ended, highest priority first. Pods that are evicted
        together count once all of them are marked."""
        with self._lock:
            taken = self._holds.victims()
            units = [
                unit
                for unit in self.marked_units()
                if unit.is_complete and taken.isdisjoint(record.ref.uid for record in unit.records)
            ]
            found: list[PlanUnderWay] = []
            for pod in sorted(
                filter(preempting_on, self.pods.waiting()),
                key=lambda pod: (-pod.priority, pod.created, pod.ref.uid),
            ):
                uid, node = pod.ref.uid, preempting_on(pod)
                if uid in self.reservations or self._holds.get(uid) is not None:
                    continue
                found.append(
                    PlanUnderWay(
                        pod, node, tuple(unit.records for unit in units if _is_for(unit, pod, node))
                    )
                )
            return found

    # Reading

    def view(self) -> View:
        """Returns the content of the store. The lock is held only while references are copied."""
        with self._lock:
            self._settle_holds()
            return View(
                self._table.copy(),
                Facts(
                    vendors=self.vendors,
                    policies=self.policies,
                    pods=self.pods.by_uid(),
                    reserved={ref.uid: ref for ref in self.reservations.refs()}
                    | {hold.booking.uid: hold.ref for hold in self._holds},
                    quotas=self.quotas.by_namespace(),
                    problems=self.nodes.problems(),
                    locks=self.nodes.locks(),
                ),
            )

    def version(self) -> tuple[int, ...]:
        """Returns numbers of which one increases with every change of what can be read here."""
        with self._lock:
            self._table.refresh()
            return self._table.changes, self.quotas.changes, self.nodes.changes, self.pods.changes

    def booking(self, uid: str) -> Booking | None:
        """Returns what the pod holds."""
        with self._lock:
            return self._table.bookings.get(uid)

    def _check_unbound(self, ref: PodRef) -> None:
        """Raises: Rejected if the pod cannot be filtered (again)."""
        if self.pods.is_deleted(ref.uid):
            raise Rejected(f'pod "{ref.name}" not found')
        record = self.pods.get(ref.uid)
        if record is not None and record.terminated:
            raise Rejected(f"pod {ref} has terminated")
        if node := self._bound_node(ref.uid):
            raise Rejected(f"pod {ref} is already bound to node {node}")
        if (
            reservation := self.reservations.find(ref.uid)
        ) is not None and reservation.stage is BindingStage.WRITING:
            raise Rejected(f"pod {ref} is being bound to node {reservation.node}")

    def _bound_node(self, uid: str) -> str | None:
        """Returns the node that the pod is bound to, perhaps by a Binding of ours that the watch has not shown yet."""
        if (record := self.pods.get(uid)) is not None and record.node:
            return record.node
        reservation = self.reservations.find(uid)
        return (
            reservation.node if reservation and reservation.stage is BindingStage.FINISHED else None
        )

    def _budgets(self, namespace: str, scope: PodScope) -> dict[str, Budget]:
        return budgets_of(
            self.vendors,
            self.quotas.of(namespace),
            scope,
            partial(self._table.namespace_usage, namespace),
        )

    def _check_quota(self, pod: Pod, request: PodRequest) -> QuotaCheck:
        budgets = self._budgets(pod.ref.namespace, pod.scope)
        return check_quota(request, budgets, self._table.sizes()) if budgets else QuotaCheck()

    def _waits_no_longer(self, uid: str) -> bool:
        record = self.pods.get(uid)
        return self.pods.is_deleted(uid) or (
            record is not None and (bool(record.node) or record.terminated)
        )

    def _node_for(self, request: PodRequest, pending: PendingPod) -> str | None:
        names = pending.nodes if pending.nodes is not None else tuple(self._table.rows)
        quota = self._check_quota(pending.pod, request)
        choice = self._verdicts.choose(
            request, self._verdicts.rows(names), NodeOrder(NodePolicy.BINPACK), quota
        ) or self._held_choice(pending.pod.ref.uid, request, names, quota)
        if choice is None and self._take_from_group(pending.pod, names):
            return self._node_for(request, pending)
        return choice.node if choice is not None else None

    def _take_from_group(self, pod: Pod, names: Sequence[str]) -> bool:
        """Forgets the reservations of a group that only waits, if *pod* fits one of the nodes *names* without them.
        Reports whether there was one. Else a group that lacks a member would keep others from devices that it does not
        use, for as long as it is tried again."""
        groups = self.reservations.waiting_groups()
        groups.pop((pod.ref.namespace, pod.group), None)
        if not groups:
            return False
        now = self._view_for(pod)
        offered = set(names)
        helpful = [
            group
            for group, reservations in groups.items()
            if any(reservation.node in offered for reservation in reservations)
        ]
        for group in itertools.islice(in_turn(helpful, _namespace_of), MAX_GROUPS):
            reservations = groups[group]
            nodes = {reservation.node for reservation in reservations} & offered
            uids = [reservation.ref.uid for reservation in reservations]
            if now.what_if(without=uids).choose(pod, sorted(nodes)) is not None:
                for uid in uids:
                    self.reservations.forget(uid)
                return True
        return False

    @contextlib.contextmanager
    def _holds_lifted(self, pod: Pod) -> Iterator[None]:
        """Makes what is held for *pod* free meanwhile."""
        if not self._holds:
            yield
            return
        self._settle_holds()
        if (hold := self._holds.get(pod.ref.uid)) is not None:
            self._holds.lift([hold])
        try:
            yield
        finally:
            self._settle_holds()

    def _lift_lower_holds(self, pod: Pod) -> bool:
        """Makes what is held for pods of lower priority than *pod* free, until they are settled. Reports whether
        anything is."""
        lower = self._holds.below(pod.priority)
        self._holds.lift(lower)
        return bool(lower)

    def _settle_holds(self, lifted: str = "") -> None:
        """Books all holds that stand as their victims are now, but not that of the pod *lifted*, and ends others."""
        if not self._holds:
            return
        for hold in self._holds:
            uid = hold.ref.uid
            if self._bound_node(uid):
                self._end_hold(hold, HoldEnd.BOUND)
            elif self._waits_no_longer(uid):
                self._end_hold(hold, HoldEnd.DELETED)
            elif self._clock() >= hold.until and uid not in self.reservations:
                self._end_hold(hold, HoldEnd.EXPIRED)
        self._holds.settle(lambda uid: uid in self.reservations or uid == lifted)

    def _end_taken_holds(self, pod: Pod, node: str) -> None:
        """Ends the holds on *node* for pods of lower priority than *pod* that do not fit beside it any more."""
        for hold in sorted(self._holds.below(pod.priority), key=lambda hold: -hold.pod.priority):
            if (
                hold.node == node
                and self._holds.get(hold.ref.uid) is hold
                and hold.ref.uid not in self.reservations
                and not self._renew(hold)
            ):
                self._end_hold(hold, HoldEnd.TAKEN)

    def _end_hold(self, hold: Hold, end: HoldEnd) -> None:
        self._holds.remove(hold)
        self._ended_holds.append((hold, end))

    def _make_hold(
        self, pod: Pod, plan: PreemptionPlan, units: tuple[frozenset[str], ...]
    ) -> Hold | None:
        """Returns the hold that *plan* makes for *pod* once the pods of *units* have ended; ``None`` if it cannot be
        carried out any more."""
        leaving = frozenset().union(*units)
        uid, records = pod.ref.uid, [self.pods.get(victim) for victim in plan.uids]
        if (
            uid in self.reservations
            or self._waits_no_longer(uid)
            or not self._holds.has_room_for(pod.ref)
        ):
            return None
        if not all(
            record is not None and record.node and not record.terminated for record in records
        ):
            return None
        view = self._view_without(pod, plan.node, leaving)
        choice, request = (
            view.choose(pod, [plan.node]),
            make_pod_request(pod, self.vendors, self.policies.device),
        )
        if choice is None or request is None:
            return None
        grace_s = max(
            (
                record.traits.grace_s
                for victim in leaving
                if (record := self.pods.get(victim)) is not None
            ),
            default=0,
        )
        return Hold(
            pod=pod,
            choice=choice,
            booking=_held(pod, request, choice, view.usages(plan.node)),
            units=units,
            until=self._clock() + min(grace_s, MAX_GRACE_S) + HOLD_S,
        )

    def _renew(self, hold: Hold, ended: Collection[str] | None = None) -> bool:
        """Reports whether the pod of *hold* gets what is held once the pods *ended*, by default its victims, have
        ended. If it gets other devices of the node instead, these are held from now on."""
        view = self._view_without(hold.pod, hold.node, hold.victims if ended is None else ended)
        if is_free(hold.booking, view.usages(hold.node)):
            return True
        choice = view.choose(hold.pod, [hold.node])
        request = make_pod_request(hold.pod, self.vendors, self.policies.device)
        if choice is None or request is None:
            return False
        self._holds.move(hold, choice, _held(hold.pod, request, choice, view.usages(hold.node)))
        self._end_taken_holds(hold.pod, hold.node)
        return True

    def _view_without(self, pod: Pod, node: str, ended: Collection[str]) -> View:
        """Returns the view in which the pods *ended* have ended and *pod* has nothing on *node*, where nothing is held
        for lower priorities."""
        uid, on_node = pod.ref.uid, [hold for hold in self._holds if hold.node == node]
        others = self._holds.bookings(
            [
                hold
                for hold in on_node
                if hold.pod.priority >= pod.priority
                and hold.ref.uid != uid
                and hold.ref.uid not in self.reservations
            ],
            ended,
        )
        return self._view_for(pod).what_if(
            without={uid, hold_uid(uid), *ended, *(hold.booking.uid for hold in on_node)},
            with_=others.values(),
        )

    def _is_being_freed(self, node: str) -> bool:
        """Reports whether kube-scheduler evicts pods on *node* for one that is to get what they leave, or has done so:
        the preemptor, which holds it then, may not have seen it yet."""
        for plan in self.plans_under_way():
            with contextlib.suppress(MalformedInput):  # its next filter says why
                if plan.node == node and (
                    plan.units or self._view_for(plan.pod).choose(plan.pod, [node]) is not None
                ):
                    return True
        return False

    def _view_for(self, pod: Pod) -> View:
        """Returns what there is as far as decisions on *pod* depend on it. Valid while the lock is held."""
        namespace = pod.ref.namespace
        return View(
            self._table,
            Facts(
                vendors=self.vendors,
                policies=self.policies,
                quotas={namespace: self.quotas.of(namespace)},
            ),
            verdicts=self._verdicts,
        )

    def _held_choice(
        self, uid: str, request: PodRequest, names: Sequence[str], quota: QuotaCheck
    ) -> Choice | None:
        """Returns the choice of the pod's hold if what it needs is free.

        The decision might find another placement, or none: it depends on the pods that have come since.
        """
        if (
            (hold := self._holds.get(uid)) is None
            or hold.node not in names
            or quota.decided
            or (quota.open and not quota.covers(request, hold.choice.placement))
        ):
            return None
        return hold.choice if is_free(hold.booking, self._table.usages(hold.node)) else None

    def _state(self) -> tuple[int, ...]:
        """Returns a value that differs after every change that could make room for a pod."""
        self._table.refresh()
        return self._table.changes, self.quotas.changes, len(self.reservations.waiting_groups())

    def _reserve(
        self, pod: Pod, request: PodRequest, choice: Choice, unshown_since: float | None
    ) -> None:
        self.reservations.assume(
            Reservation(
                pod=pod,
                node=choice.node,
                placement=choice.placement,
                vendors=tuple(vendor_request.vendor for vendor_request in request.vendor_requests),
                usages=self._table.usages(choice.node),
                assumed=self._now(),
                lock_free=self.nodes.lock_free(choice.node),
                since=self._clock(),
                unshown_since=unshown_since,
            ),
            booking_of(pod, request, choice),
        )


def _units_of(plan: PreemptionPlan) -> tuple[frozenset[str], ...]:
    """Returns the uids of the pods that *plan* waits for, by those that end together."""
    return (
        *(frozenset(victim.uids) for victim in plan.victims),
        *(frozenset({uid}) for uid in plan.awaited),
    )


def _is_for(unit: MarkedUnit, pod: Pod, node: str) -> bool:
    """Reports whether *unit* is evicted for *pod*, which waits for room on *node*."""
    if not all(record.priority < pod.priority for record in unit.records):
        return False
    if unit.preemptor:
        return unit.preemptor == pod.ref.uid
    return all(record.node == node for record in unit.records)


def _namespace_of(group: tuple[str, str]) -> str:
    return group[0]


def _assume_again(reservation: Reservation, names: Sequence[str]) -> Choice:
    """Returns the choice of *reservation*: its Binding may still be written, so there can be no other."""
    if reservation.node not in names:
        raise Rejected(
            f"pod {reservation.ref}: it is not known whether it was bound to {reservation.node}"
        )
    return Choice(reservation.node, reservation.placement, (), 0, len(names))


def _held(
    pod: Pod, request: PodRequest, choice: Choice, usages: NodeUsage | None = None
) -> Booking:
    """Returns the booking of the hold for *pod*. *usages*: of the node, if nobody else may get the same devices before
    the pod."""
    booking = msgspec.structs.replace(booking_of(pod, request, choice), uid=hold_uid(pod.ref.uid))
    return alone(booking, usages) if usages is not None and request.needs_devices_alone else booking
