"""Writes one Binding: the last check of what is reserved, the claim of a pod that gets its devices by one, the Binding,
and what has become of it if there was no answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from hami.errors import ClusterError, Conflict, HamiError, NodeLocked, NotFound, Rejected
from hami.kube.api import is_unsent
from hami.kube.cluster import Cluster
from hami.scheduler.leadership import Leadership
from hami.scheduler.locks import KeepsLocks
from hami.state.binding_annotations import carries_allocation, render_labels
from hami.state.promises import Promise
from hami.state.store import Store

if TYPE_CHECKING:
    from hami.scheduler.claim_bind import ClaimBinder

log = logging.getLogger(__name__)


class _OutcomeUnknown(KeepsLocks, ClusterError):
    """A Binding was sent, and it is not known whether it was written."""


class _BoundByAnother(KeepsLocks, Conflict):
    """Another process has bound the pod to the same node with other devices."""


class BindingWriter:
    """Writes Bindings. Threads may share it."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        claims: ClaimBinder | None,
        leadership: Leadership,
        *,
        is_watching: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """*claims*: None if pods get no claims of the scheduler. *is_watching*: reports whether the changes of pods are
        known at once. *clock* is the leadership's."""
        self._cluster = cluster
        self._store = store
        self._claims = claims
        self._leadership = leadership
        self._is_watching = is_watching
        self._clock = clock

    def write(self, promise: Promise, until: float) -> None:
        """Writes the Binding in one attempt, after a last check of the store, and not later than *until*."""
        self._read_foreign_pods(promise.node)
        if self._store.bindings.is_bound(promise.ref.uid, promise.node):
            return  # by an earlier attempt that had no answer
        if promise.pod.claim:
            self._write_claim(promise, until)
        annotations = self._store.bindings.prepare(promise)
        try:
            self._cluster.bind(
                promise.ref,
                promise.node,
                annotations,
                render_labels(promise.node),
                timeout=self._seconds_left(until),
            )
        except ClusterError as error:
            refused = error.status is not None and error.status < 500
            if is_unsent(error) or (refused and not isinstance(error, Conflict)):
                raise
            self._resolve(promise, error, refused)

    def _write_claim(self, promise: Promise, until: float) -> None:
        """Makes the claim of the pod say what is reserved. No later filter replaces the promise meanwhile: two
        attempts would write the claim in turn."""
        if self._claims is None:
            raise Rejected(
                f"pod {promise.ref} gets its devices by claim {promise.pod.claim}, which this "
                "scheduler does not make without --dra=allocate"
            )
        self._store.bindings.prepare(promise)
        try:
            self._claims.write(promise, lambda: self._seconds_left(until))
        except (NotFound, Conflict) as error:
            if promise.outcome_unknown:  # an earlier Binding of it may still be written
                raise _OutcomeUnknown(
                    f"pod {promise.ref}: no answer whether it was bound: {error}"
                ) from error
            raise

    def _seconds_left(self, until: float) -> float:
        """Returns how long an attempt may take: the Binding must not arrive when another replica leads. It is asked
        after the Binding is known to be under way: a leadership that is given up meanwhile is not handed over.

        Raises: NodeLocked if there is no time left.
        """
        leads_for = self._leadership.leads_until() - self._clock()
        if leads_for <= 0:
            raise NodeLocked("this replica of the scheduler no longer leads")
        if (seconds := min(leads_for, until - self._clock())) <= 0:
            raise NodeLocked("the API server cannot be reached in time")
        return seconds

    def _read_foreign_pods(self, node: str) -> None:
        """Reads the pods that another process may have bound to *node*, and all while they are not watched."""
        foreign_nodes = self._store.foreign_nodes
        mark = foreign_nodes.mark_of(node)
        if mark is None and self._is_watching():
            return
        started = self._clock()
        for pod in self._cluster.pods_on(node):
            self._store.pods.upsert(pod, started)
        foreign_nodes.clear(node, mark)

    def _resolve(self, promise: Promise, error: ClusterError, refused: bool) -> None:
        """Looks up a Binding that conflicts with another one (*refused*) or had no answer. Returns if it was written.

        Raises: _OutcomeUnknown while it may still be written; Conflict or NotFound when it never will be.
        """
        ref = promise.ref
        was_unknown = self._store.bindings.mark_unknown(promise)
        outcome_unknown = _OutcomeUnknown(f"pod {ref}: no answer whether it was bound: {error}")
        try:
            pod = self._cluster.pod(ref.namespace, ref.name)
        except HamiError as unread:
            log.warning(
                "binding outcome unknown",
                extra={"pod": ref, "node": promise.node, "error": unread},
            )
            raise outcome_unknown from error
        if pod is None or pod.ref.uid != ref.uid:
            raise NotFound(f'pod "{ref.name}" not found', 404) from error
        self._store.pods.upsert(pod)
        if not pod.node_name:
            if refused and not was_unknown:
                raise error
            raise outcome_unknown from error
        if pod.node_name != promise.node:
            raise Conflict(f"pod {ref} is already bound to node {pod.node_name}", 409) from error
        if not carries_allocation(pod, promise.annotations, self._store.vendors):
            raise _BoundByAnother(
                f"pod {ref} is already bound to node {pod.node_name} with other devices", 409
            ) from error
