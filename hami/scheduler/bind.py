"""The extender verb *bind*: writes the Binding that assigns a pod to its node with the reserved devices.

The order is: wait until this replica leads, take the node's locks if its device plugins need them, read the pods that
another process may have bound there, check the reservation and the leadership, write the claim of a pod that gets its
devices by one, write the Binding. An attempt that did not reach the API server is followed by another one, which looks
at all of that again, but for the first. A Binding without an answer is looked up; until its outcome is known, its
reservation and its locks stay.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hami.errors import Conflict, HamiError, NotFound
from hami.kube.api import is_unsent
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.kube.retry import attempts_within, brief_retry
from hami.model import PodRef
from hami.scheduler.binding_writer import BindingWriter
from hami.scheduler.leadership import Leadership
from hami.scheduler.locks import NodeLocks
from hami.state.store import Store
from hami.vendors.request import requests_devices

log = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 25.0  # for the node locks: below the 30 s that kube-scheduler waits
BINDING_TIMEOUT_S = 10.0  # for all attempts of a Binding, or less if the leadership ends before
DRAIN_POLL_S = 0.02


class Binder:
    """Binds pods. Each bind runs in its caller's thread and holds no lock of this process while it waits."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        locks: NodeLocks,
        events: EventRecorder,
        leadership: Leadership,
        writer: BindingWriter,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """*clock* is the leadership's. *sleep* waits between attempts."""
        self._cluster = cluster
        self._store = store
        self._locks = locks
        self._events = events
        self._leadership = leadership
        self._writer = writer
        self._clock = clock
        self.lock_timeout_s = LOCK_TIMEOUT_S
        """For how long a bind waits for the node locks."""
        self._retry_unsent = brief_retry(is_unsent, sleep, attempts_within(BINDING_TIMEOUT_S))

    def bind(self, ref: PodRef, node: str) -> None:
        """Binds the pod to *node* with the devices reserved for it.

        Raises: HamiError; nothing is left behind then, and kube-scheduler retries the pod.
        """
        try:
            self._bind(ref, node)
        except HamiError as error:
            log.warning("bind failed", extra={"pod": ref, "node": node, "error": error})
            self._events.record(ref, "Warning", "BindingFailed", str(error), replaces=True)
            raise
        log.info("pod bound", extra={"pod": ref, "node": node})
        self._events.record(
            ref, "Normal", "BindingSucceed", f"Successfully binding node [{node}] to {ref}"
        )

    def drain(self, timeout: float) -> bool:
        """Waits at most *timeout* seconds until no pod with devices is being bound. Reports whether none is."""
        deadline = time.monotonic() + timeout
        while self._store.open_bindings.are_binding():
            if time.monotonic() >= deadline:
                return False
            time.sleep(DRAIN_POLL_S)
        return True

    def _bind(self, ref: PodRef, node: str) -> None:
        deadline = self._clock() + self.lock_timeout_s
        bindings = self._store.bindings
        if self._was_bound(ref, node):
            return
        if bindings.get(ref.uid) is None and not self._requests_devices(ref):
            self._retry_unsent(self._cluster.bind, ref, node, {}, {})
            return
        self._leadership.require()
        if self._was_bound(ref, node):  # by the leader before, as is known only now
            return
        promise = bindings.get(ref.uid)
        if promise is None or promise.node != node:
            self._store.filtering.assume_on(ref, node)
        promise = bindings.start(ref, node)
        try:
            with self._locks.held(
                node,
                promise.lock_keys,
                ref,
                deadline,
                lambda: bindings.is_current(promise),
            ):
                self._retry_unsent(self._writer.write, promise, self._clock() + BINDING_TIMEOUT_S)
        except (NotFound, Conflict):
            bindings.drop(promise)
            raise
        except BaseException:
            bindings.cancel(promise)
            raise
        bindings.finish(promise)

    def _was_bound(self, ref: PodRef, node: str) -> bool:
        """Reports whether an earlier bind, whose answer was lost, has bound the pod."""
        bindings = self._store.bindings
        return bindings.get(ref.uid) is None and bindings.is_bound(ref.uid, node)

    def _requests_devices(self, ref: PodRef) -> bool:
        if (record := self._store.pods.get(ref.uid)) is not None:
            return record.requests_devices
        pod = self._cluster.pod(ref.namespace, ref.name)
        if pod is None or (ref.uid and pod.ref.uid != ref.uid):
            raise NotFound(f'pod "{ref.name}" not found', 404)
        return bool(pod.claim) or requests_devices(self._store.vendors, pod.containers)
