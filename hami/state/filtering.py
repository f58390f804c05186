"""The part of the store for /filter and /prioritize."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

from hami.errors import MalformedInput, Rejected
from hami.model import NodePolicy, Pod, PodRef
from hami.quantity import MIB
from hami.scheduling.node_order import NodeOrder, node_order_of
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.refusal import Choice, NodeRefusal, Refusal
from hami.scheduling.turns import in_turn
from hami.state import dry_run
from hami.state.bookings import booking_of
from hami.state.decisions import Decisions, State
from hami.state.pending import PendingPod
from hami.state.promises import Promise, Promises, Stage, Terms
from hami.vendors.request import requests_devices

MAX_GROUPS = 4  # waiting groups whose promises a pod may get at once
MAX_UNSHOWN = 500  # promises for pods that the watch has not shown; clients may name any uid
MAX_UNSHOWN_BYTES = 8 * MIB  # of their JSON; in memory it may take many times as much
# bytes of a pending pod that the watch has not shown: there may be no such pod
MAX_UNSHOWN_PENDING = 32_768
PENDING_REQUESTS = 5  # different requests of pending pods that are tried at once
YIELD_S = 2.0  # after which the promises of a group that only waits may go to a pod that fits without them

Group = tuple[str, str]
"""Namespace and name of pods that are placed together."""


class Filtering:
    """Chooses nodes and devices for pods, and promises them in the same step."""

    def __init__(self, state: State, decisions: Decisions) -> None:
        self._state = state
        self._decisions = decisions

    def assume(self, pod: Pod, names: Sequence[str]) -> Choice | Refusal | None:
        """Chooses one of the nodes *names* and devices for *pod*, and promises them. ``None`` if it requests no device.

        What has been assumed for the pod is replaced, and a bind of it that still waits fails.
        Raises: Rejected when the pod is gone, bound, or being bound; MalformedInput for an unreadable annotation.
        """
        state = self._state
        if not pod.claim and not requests_devices(state.vendors, pod.containers):
            return None
        # before others wait for the lock: it may take some 30 ms
        state.verdicts.weigh(pod.preferences)
        with state.lock:
            _check_unbound(state, pod.ref)
            current = state.promises.assumed(pod.ref.uid)
            if current is not None and current.outcome_unknown:
                return _assume_again(current, names)
            unshown_since = self._unshown_since(pod, current)
            state.promises.forget(pod.ref.uid)
            state.pods.take_over(pod.ref.uid)
            request = self._decisions.request_of(pod)
            if request is None:
                return None
            with self._decisions.without_plan(pod):
                return self._decide(pod, request, names, unshown_since)

    def assume_on(self, ref: PodRef, node: str) -> None:
        """Promises devices on *node*, to which kube-scheduler binds the pod although they are not promised there: it
        tried several nodes, or another process has answered its filter.

        Raises: Rejected if the pod does not fit there; then nothing is promised, and kube-scheduler retries the pod.
        """
        with self._state.lock:
            promise = self._state.promises.assumed(ref.uid)
            if promise is None:
                pod = self._state.pods.waiting_pod(ref.uid)
            elif promise.outcome_unknown or promise.stage is not Stage.ASSUMED:
                return  # when the bind starts, it says why it cannot be bound now
            else:
                pod = promise.pod
            if pod is None or pod.ref != ref:
                raise Rejected(f"pod {ref} has no reservation: it must be filtered again")
            answer = self.assume(pod, [node])
            if not isinstance(answer, Choice):
                reasons = "no devices"
                if answer is not None and answer.unfit:
                    reasons = "; ".join(map(str, answer.unfit.values()))
                raise Rejected(f"pod {ref} does not fit node {node} any more: {reasons}")

    def assume_nominated(self) -> list[PodRef]:
        """Promises devices to the pods that kube-scheduler is binding, as the nodes that it nominates show: another
        process has answered their filters. Returns these pods. Those that wait for victims to end do not fit yet.
        """
        assumed: list[PodRef] = []
        for pod in sorted(self._state.pods.waiting(), key=by_priority):
            # its next filter says why it does not fit
            with self._state.lock, contextlib.suppress(Rejected, MalformedInput):
                promises = self._state.promises
                if not pod.nominated_node or promises.assumed(pod.ref.uid) is not None:
                    continue
                self.assume(pod, [pod.nominated_node])
                self._state.pending.remove(pod)  # kube-scheduler tries it by itself
                promise = promises.assumed(pod.ref.uid)
                if promise is not None:
                    promise.nominate(self._state.clock())
                    assumed.append(pod.ref)
        return assumed

    def node_scores(self, pod: Pod, names: Sequence[str]) -> list[float]:
        """Returns how the node policy for *pod* ranks each of the nodes *names*, higher is better."""
        with self._state.lock:
            verdicts = self._state.verdicts
            order = node_order_of(pod, self._state.policies.node)
            request = self._decisions.request_of(pod)
            return verdicts.scores(request, verdicts.rows(names), order)

    def closest(self, refusal: Refusal, count: int) -> list[NodeRefusal]:
        """Returns the *count* refused nodes that are closest to serving, nearest first, as they are now."""
        with self._state.lock:
            return self._state.verdicts.closest(refusal, count)

    def node_for_pending_pod(self) -> str | None:
        """Returns a node that a pod which was refused earlier fits by now; ``None`` if there is none.

        kube-scheduler retries a pod when it sees a change. It may see one before our watch does, or not at all (an init
        container that has finished, a quota): the pod then waits beside free devices until it is reminded.
        """
        with self._state.lock:
            self._decisions.settle()
            pending_pods = self._state.pending
            version = self._version()
            tried = set[tuple[object, ...]]()
            for pending in pending_pods.due(version, self._state.clock()):
                pod = pending.pod
                if self._state.waits_no_longer(pod.ref.uid):
                    pending_pods.remove(pod)
                    continue
                request = self._decisions.request_of(pod)
                question = self._question(pending, request)
                if request is not None and question not in tried:
                    if len(tried) == PENDING_REQUESTS:
                        return None
                    tried.add(question)
                    with self._decisions.without_plan(pod):
                        node = self._node_for(request, pending)
                    if node is not None:
                        pending_pods.remind(pending, self._state.clock())
                        return node
                pending_pods.mark_tried(pending, version)
            return None

    def refused(self) -> list[str]:
        """Returns the uids of the pods that were refused last, at most `hami.state.pending.LIMIT`."""
        with self._state.lock:
            return [pending.pod.ref.uid for pending in self._state.pending.all()]

    def _unshown_since(self, pod: Pod, current: Promise | None) -> float | None:
        """Returns since when *pod*, which the watch has not shown, has a promise: *current* or the next one.

        ``None`` if it has been shown. Raises: Rejected if too many such pods have promises.
        """
        if self._state.pods.get(pod.ref.uid) is not None:
            return None
        _check_room_for_unshown(self._state.promises, pod)
        if current is None or current.unshown_since is None:
            return self._state.clock()
        return current.unshown_since

    def _decide(
        self, pod: Pod, request: PodRequest, names: Sequence[str], unshown_since: float | None
    ) -> Choice | Refusal:
        """Chooses and promises as `assume` does, while what is planned for *pod* is free."""
        verdicts, decisions = self._state.verdicts, self._decisions
        self._state.learning.begin()
        rows = verdicts.rows(names)
        order = node_order_of(pod, self._state.policies.node)

        def choose() -> Choice | None:
            quota = decisions.check_quota(pod, request)
            choice = verdicts.choose(request, rows, order, quota)
            return choice or decisions.planned_choice(pod.ref.uid, request, names, quota)

        choice = choose()
        if choice is None and (
            self._take_from_group(pod, names) or decisions.lift_lower_plans(pod)
        ):
            choice = choose()
        if choice is not None:
            self._promise(pod, request, choice, unshown_since)
            return choice
        decisions.settle(lifted=pod.ref.uid)
        if unshown_since is None or pod.size <= MAX_UNSHOWN_PENDING:
            is_everywhere = len({*rows.tolist(), -1}) > len(self._state.table.rows)
            offered = None if is_everywhere else names
            self._state.pending.add(pod, offered, self._version(), self._state.clock())
        refusal = verdicts.refuse(request, names, rows, decisions.check_quota(pod, request))
        return replace(refusal, resolvable=verdicts.with_lower_priority(refusal, pod))

    def _promise(
        self, pod: Pod, request: PodRequest, choice: Choice, unshown_since: float | None
    ) -> None:
        state = self._state
        terms = Terms(
            vendors=tuple(vendor_request.vendor for vendor_request in request.vendor_requests),
            usages=state.table.usages(choice.node),
            assumed=state.now(),
            lock_free=state.nodes.lock_free(choice.node),
        )
        state.promises.assume(
            Promise(
                pod=pod,
                choice=choice,
                booking=booking_of(pod, request, choice),
                stage=Stage.ASSUMED,
                terms=terms,
                since=state.clock(),
                unshown_since=unshown_since,
            )
        )
        state.learning.placed(pod, request)
        state.pending.remove(pod)
        self._decisions.end_lower_plans(pod, choice.node)

    def _question(self, pending: PendingPod, request: PodRequest | None) -> tuple[object, ...]:
        """Returns what the answer for *pending* depends on: pods with the same are tried once."""
        pod = pending.pod
        namespace, uid = pod.ref.namespace, pod.ref.uid
        question: list[object] = [request, pending.nodes]
        if namespace in self._state.quotas:
            question += ["quotas", namespace, pod.scope]
        if pod.group:
            question += ["group", namespace, pod.group]
        if self._state.promises.plan_for(uid) is not None:
            question += ["plan", uid]
        return tuple(question)

    def _node_for(self, request: PodRequest, pending: PendingPod) -> str | None:
        names = pending.nodes
        if names is None:
            names = tuple(self._state.table.rows)
        verdicts = self._state.verdicts
        quota = self._decisions.check_quota(pending.pod, request)
        choice = verdicts.choose(
            request, verdicts.rows(names), NodeOrder(NodePolicy.BINPACK), quota
        ) or self._decisions.planned_choice(pending.pod.ref.uid, request, names, quota)
        if choice is not None:
            return choice.node
        if self._take_from_group(pending.pod, names):
            return self._node_for(request, pending)
        return None

    def _take_from_group(self, pod: Pod, names: Sequence[str]) -> bool:
        """Ends the promises for a group that only waits, if *pod* fits one of the nodes *names* without them. Reports
        whether there was one. Else a group that lacks a member would keep others from devices that it does not use, for
        as long as it is tried again."""
        groups = _waiting_groups(self._state)
        groups.pop((pod.ref.namespace, pod.group), None)
        if not groups:
            return False
        now = self._decisions.view_for(pod)
        offered = set(names)
        helpful = [
            group
            for group, promises in groups.items()
            if not offered.isdisjoint(promise.node for promise in promises)
        ]
        for group in itertools.islice(in_turn(helpful, _namespace_of), MAX_GROUPS):
            nodes = {promise.node for promise in groups[group]} & offered
            uids = [promise.ref.uid for promise in groups[group]]
            if dry_run.choose(now.what_if(without=uids), pod, sorted(nodes)) is not None:
                for uid in uids:
                    self._state.promises.forget(uid)
                return True
        return False

    def _version(self) -> tuple[int, ...]:
        """Returns a value that differs after every change that could make room for a pod."""
        self._state.table.refresh()
        groups = _waiting_groups(self._state)
        return self._state.table.changes, self._state.quotas.changes, len(groups)


def by_priority(pod: Pod) -> tuple[object, ...]:
    """Returns the key by which pods are tried: the highest priority first, then the oldest."""
    return (-pod.priority, pod.created, pod.ref.uid)


def _check_unbound(state: State, ref: PodRef) -> None:
    """Raises: Rejected if the pod cannot be filtered (again)."""
    if state.pods.is_deleted(ref.uid):
        raise Rejected(f'pod "{ref.name}" not found')
    record = state.pods.get(ref.uid)
    if record is not None and record.terminated:
        raise Rejected(f"pod {ref} has terminated")
    node = state.bound_node(ref.uid)
    if node:
        raise Rejected(f"pod {ref} is already bound to node {node}")
    promise = state.promises.get(ref.uid)
    if promise is not None and promise.stage is Stage.WRITING:
        raise Rejected(f"pod {ref} is being bound to node {promise.node}")


def _waiting_groups(state: State) -> dict[Group, list[Promise]]:
    """Returns promises by group, of groups of which kube-scheduler has bound and nominated no pod for some time: they
    may lack a member. The longest waiting come first."""
    groups: dict[Group, list[Promise]] = {}
    for promise in state.promises.all_assumed():
        if promise.pod.group:
            groups.setdefault((promise.ref.namespace, promise.pod.group), []).append(promise)
    latest = state.clock() - YIELD_S
    waiting: list[tuple[float, Group]] = []
    for group, promises in groups.items():
        since = min(promise.since for promise in promises)
        if since <= latest and not any(promise.is_wanted for promise in promises):
            waiting.append((since, group))
    return {group: groups[group] for _, group in sorted(waiting)}


def _namespace_of(group: Group) -> str:
    return group[0]


def _assume_again(promise: Promise, names: Sequence[str]) -> Choice:
    """Returns the choice of *promise*: its Binding may still be written, so there can be no other."""
    if promise.node not in names:
        raise Rejected(f"pod {promise.ref}: it is not known whether it was bound to {promise.node}")
    return Choice(promise.node, promise.choice.placement, (), 0, len(names))


def _check_room_for_unshown(promises: Promises, pod: Pod) -> None:
    """Raises: Rejected if too many pods that the watch has not shown have promises. *pod* is one more."""
    count, size = promises.unshown.beside(pod.ref.uid)
    if count >= MAX_UNSHOWN or size + pod.size > MAX_UNSHOWN_BYTES:
        raise Rejected(
            f"pod {pod.ref}: too many pods that the watch has not shown yet have reservations"
        )
