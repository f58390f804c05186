"""Pods that their kubelet has rejected for good because of devices: a kubelet that starts admits the pods of its node
again, and rejects those whose device plugin has not registered yet.

Controllers replace such pods and leave them behind. Nothing replaces a pod without one.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from hami.errors import ClusterError, Conflict, MalformedInput, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import PodRef
from hami.runtime.once import OncePerKey
from hami.state.pods import PodCache
from hami.state.read_pod import PodRecord

log = logging.getLogger(__name__)

SETTLE_S = 10.0  # in which a controller replaces a pod that it has seen fail
RETRY_S = 30.0  # after the API server has refused or not answered
PER_ROUND = 50  # pods that are looked at, so that other duties are not delayed
REPORTED_LIMIT = 10_000  # pods that are remembered as reported
RECREATING = ("DaemonSet", "Job", "ReplicaSet", "ReplicationController", "StatefulSet")
"""The controllers of Kubernetes, which replace pods that have failed."""
_REPLACING = ("Running", "Succeeded")
_REJECTED = (
    "the kubelet has rejected the pod for good, since it had no healthy devices when it started, as after a "
    "reboot until the device plugin runs, and "
)
NOT_OWNED = (
    _REJECTED
    + "no controller replaces the pod: create it again, by a Deployment or Job, or with a claim, "
    "whose pods survive a reboot"
)
UNKNOWN_OWNER = (
    _REJECTED + "{kind} {name} may not replace it: if no other pod takes its place, create it again"
)


class RejectedPods:
    """For one thread, while this replica leads. *is_cleaned*: pods whose replacements run are deleted. *clock* is
    monotonic."""

    def __init__(
        self,
        cluster: Cluster,
        pods: PodCache,
        events: EventRecorder,
        *,
        is_cleaned: bool,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._events = events
        self._is_cleaned = is_cleaned
        self._clock = clock
        self._seen: dict[str, float] = {}  # since when, by uid
        self._kept: set[str] = set()  # pods of other controllers
        self._reported = OncePerKey(REPORTED_LIMIT)
        self._resume_at = -math.inf

    def settle(self) -> None:
        """Deletes rejected pods whose replacements run, and reports those without one. Raises: ClusterError."""
        now = self._clock()
        rejected = list(self._pods.rejected.values())
        self._seen = {record.ref.uid: self._seen.get(record.ref.uid, now) for record in rejected}
        self._kept &= self._seen.keys()
        due = [record for record in rejected if now - self._seen[record.ref.uid] >= SETTLE_S]
        for record in due:
            if not record.traits.controller:
                self._report(record.ref, NOT_OWNED)
        if not due or not self._is_cleaned or now < self._resume_at:
            return
        try:
            self._clean(due)
        except ClusterError:
            self._resume_at = now + RETRY_S
            raise

    def _clean(self, rejected: Iterable[PodRecord]) -> None:
        owned = [
            record
            for record in rejected
            if record.traits.controller and record.ref.uid not in self._kept
        ]
        if not owned:
            return
        for record in replaced(owned, self._pods.by_uid().values())[:PER_ROUND]:
            try:
                self._remove(record)
            except MalformedInput as error:
                self._kept.add(record.ref.uid)
                log.warning("rejected pod is kept", extra={"pod": record.ref, "error": error})

    def _remove(self, record: PodRecord) -> None:
        """Deletes a pod, if its controller is one that replaces pods. Raises: ClusterError, MalformedInput."""
        with contextlib.suppress(NotFound, Conflict):  # it is gone
            owner = self._cluster.controller(record.ref)
            if owner is None or owner.kind not in RECREATING:
                self._kept.add(record.ref.uid)
                if owner is not None:
                    text = UNKNOWN_OWNER.format(kind=owner.kind, name=owner.name)
                    self._report(record.ref, text)
                return
            self._cluster.evict(record.ref, grace_s=0)
            log.info("rejected pod deleted", extra={"pod": record.ref, "node": record.node})
            self._events.record(
                owner,
                "Normal",
                "RejectedPodDeleted",
                f"deleted pod {record.ref.name}, which the kubelet of node {record.node} had rejected for want of "
                "its devices: a pod that replaces it runs",
            )

    def _report(self, ref: PodRef, message: str) -> None:
        if self._reported.is_new(ref.uid):
            log.warning("pod rejected by its kubelet", extra={"pod": ref, "detail": message})
            self._events.record(ref, "Warning", "DevicesNotReady", message)


def replaced(rejected: Iterable[PodRecord], pods: Iterable[PodRecord]) -> list[PodRecord]:
    """Returns those of the *rejected* pods whose replacements run, among all *pods*.

    A controller does not say which pod replaces which. So as many of its rejected pods stay as pods of it wait or
    start, and all of them until one that is younger runs.
    """
    of_controllers: dict[str, list[PodRecord]] = defaultdict(list)
    for record in rejected:
        of_controllers[record.traits.controller].append(record)
    starting: Counter[str] = Counter()
    latest: dict[str, int] = {}
    for record in pods:
        controller = record.traits.controller
        if controller not in of_controllers:
            continue
        if record.phase in _REPLACING:
            latest[controller] = max(record.started, latest.get(controller, 0))
        elif not record.terminated:
            starting[controller] += 1
    done = []
    for controller, records in of_controllers.items():
        started = latest.get(controller, -1)
        older = [record for record in records if record.started <= started]
        older.sort(key=lambda record: (record.started, record.ref.uid))
        done += older[: max(0, len(records) - starting[controller])]
    return done
