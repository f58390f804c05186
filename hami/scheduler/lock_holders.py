"""The holders of node locks, as the store and the API server know them."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from dataclasses import replace

from hami.codec.keys import BIND_PHASE, NODE_LOCK
from hami.codec.states import NodeLock, names_pod, parse_lock
from hami.errors import ClusterError, MalformedInput
from hami.kube.cluster import Cluster
from hami.model import PodRef
from hami.scheduler.lock_judgement import (
    GoneHolder,
    Judgement,
    Keep,
    LockFacts,
    NoHolder,
    PodHolder,
    judge,
)
from hami.scheduler.lock_states import LockId, LockState
from hami.state.binding_annotations import failed_allocation
from hami.state.nodes import NodeCache
from hami.state.pods import PodCache
from hami.vendors.spec import Catalog

log = logging.getLogger(__name__)

NODE_LEASES = "kube-node-lease"  # the namespace of the Leases that kubelets renew
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")  # names that a namespace or a pod can have

VENDOR_ALLOCATION_S = 120.0
"""Seconds after which a vendor's own lock may be taken over. Source: HAMi v2.10, cambricon/device.go."""


class LockHolders:
    """Judges locks by their holders. The arguments are those of `NodeLocks`."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: NodeCache,
        pods: PodCache,
        vendors: Catalog,
        allocation_timeout: float,
        leading_since: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._pods = pods
        self._vendors = vendors
        self._to_allocate = failed_allocation(vendors)
        self._allocation_timeout = allocation_timeout
        self._leading_since = leading_since
        self._clock = clock

    def is_held_by(self, pod: PodRef, text: str | None, state: LockState) -> bool:
        """Reports whether *pod* holds the lock *text*, and not a deleted one of its name."""
        if text is None or not names_pod(text, pod):
            return False
        return not self._is_orphaned(text, state)

    def judge(self, lock: LockId, text: str, state: LockState) -> Judgement:
        """Judges the lock *text*: by the store, and if it need not be kept, by what the API server says, since the
        watch may be late. Raises: ClusterError."""
        parsed = _parse(lock, text)
        facts = self._facts(lock, text, state, parsed)
        if parsed is None or facts.is_leftover:
            return judge(facts, NoHolder(is_awaited=False))
        if self._is_orphaned(text, state):
            return self._judge_gone(facts, text, state, self._pods.was_allocating(state.written[1]))
        if parsed.holder is None:
            return self._judge_unheld(facts, lock)
        record = self._pods.named(*parsed.holder)
        if record is not None:
            judgement = judge(
                facts,
                PodHolder(
                    ref=record.ref,
                    version=str(record.version),
                    node=record.node,
                    bind_phase=record.bind_phase,
                    is_terminated=record.terminated,
                ),
            )
            if isinstance(judgement, Keep):
                return judgement
        pod = self._cluster.pod(*parsed.holder)
        if pod is None:
            return self._judge_gone(facts, text, state)
        self._pods.upsert(pod)
        return judge(
            facts,
            PodHolder(
                ref=pod.ref,
                version=pod.resource_version,
                node=pod.node_name,
                bind_phase=pod.annotations.get(BIND_PHASE, ""),
                is_terminated=pod.is_terminated,
                has_devices=not pod.annotations.keys().isdisjoint(self._to_allocate),
            ),
        )

    def _facts(
        self, lock: LockId, text: str, state: LockState, parsed: NodeLock | None
    ) -> LockFacts:
        """Returns the facts about the lock, and notes that it has been seen."""
        clock, leading_since = self._clock(), self._leading_since()
        sighting = self._nodes.lock_sighting(*lock, text)
        seen_for_s = clock - state.note_first("seen", text, clock)
        age_s = inherited_for_s = 0.0
        if parsed is not None:
            age_s = sighting.proven_age(parsed.at.timestamp(), clock)
        # otherwise a Binding of this process, also one from an earlier term, may still be on its way
        if sighting.at <= leading_since and text != state.written[0]:
            inherited_for_s = min(seen_for_s, clock - leading_since)
        return LockFacts(
            node=lock.node,
            age_s=age_s,
            seen_for_s=seen_for_s,
            inherited_for_s=inherited_for_s,
            allocation_timeout_s=self._allocation_timeout
            if lock.key == NODE_LOCK
            else VENDOR_ALLOCATION_S,
            is_leftover=text == state.leftover,
            is_readable=parsed is not None,
        )

    def _judge_unheld(self, facts: LockFacts, lock: LockId) -> Judgement:
        """Judges a lock that names no pod. Raises: ClusterError."""
        judgement = judge(facts, NoHolder(is_awaited=lock.key == NODE_LOCK))
        if isinstance(judgement, Keep):
            return judgement
        return judge(facts, NoHolder(self._is_awaited(lock)))

    def _judge_gone(
        self, facts: LockFacts, text: str, state: LockState, was_allocating: bool | None = None
    ) -> Judgement:
        """Judges the lock *text* of a deleted holder, and notes when the deletion was found, and when the kubelet was
        seen to have renewed its Lease since. Raises: ClusterError."""
        clock = self._clock()
        gone_for_s = clock - state.note_first("holder gone", text, clock)
        holder = GoneHolder(gone_for_s, was_allocating, renewed_for_s=0.0)
        judgement = judge(facts, holder)
        if not isinstance(judgement, Keep):
            return judgement
        renewal = self._renewal(facts.node)
        if renewal is None:
            return judge(facts, replace(holder, renewed_for_s=math.inf))
        if renewal == state.note_first("renewal", text, renewal):
            return judgement
        renewed_for_s = clock - state.note_first("renewed", text, clock)
        return judge(facts, replace(holder, renewed_for_s=renewed_for_s))

    def _renewal(self, node: str) -> str | None:
        """Returns when the kubelet of *node* last renewed its Lease; ``None`` without one, or if it may not be read.
        Raises: ClusterError."""
        try:
            lease = self._cluster.lease(NODE_LEASES, node)
        except ClusterError as error:
            if error.status == 403:  # the role of an earlier version, or of HAMi's chart
                return None
            raise
        return lease.renew_time if lease is not None else None

    def _is_orphaned(self, text: str, state: LockState) -> bool:
        """Reports whether this process wrote *text* for a pod that is deleted. A later pod of its name does not hold
        the lock."""
        written, uid = state.written
        return written == text and self._pods.is_deleted(uid)

    def _is_awaited(self, lock: LockId) -> bool:
        """Reports whether a pod on the node waits for the agent of the lock's vendor. Raises: ClusterError."""
        annotations = [vendor.annotations for vendor in self._vendors]
        allocated = {names.allocated for names in annotations if names.lock == lock.key}
        for pod in self._cluster.pods_on(lock.node):
            if pod.phase == "Pending" and not allocated.isdisjoint(pod.annotations):
                return True
        return False


def _parse(lock: LockId, text: str) -> NodeLock | None:
    """Returns the lock *text*; ``None`` if it cannot be read."""
    try:
        parsed = parse_lock(text)
        if parsed.holder is not None and not all(map(_NAME.fullmatch, parsed.holder)):
            raise MalformedInput(lock.key, text, "names no pod")
    except MalformedInput as error:
        log.warning(
            "node lock unreadable, taking it over", extra={"node": lock.node, "error": error}
        )
        return None
    return parsed
