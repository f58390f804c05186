"""The resizer: answers what owners of bound pods ask for, and follows what device plugins have enforced.

What a pod grows by is booked before it is written; what it is to lose is given back after its node has confirmed it.
Each answer follows from the pod and from what is booked, so a new leader goes on where another has stopped.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Literal

from hami.codec.allocation import render_shares
from hami.codec.keys import (
    GPU_ALLOCATED,
    RESIZE,
    RESIZE_APPLIED,
    RESIZE_STATUS,
    RESIZE_TARGET,
    RESIZED,
)
from hami.codec.objects import parse_resource_version
from hami.codec.resize import (
    MAX_TEXT,
    AppliedSizes,
    ResizeState,
    ResizeStatus,
    held_text,
    parse_applied,
    parse_resize,
    parse_status,
    shares_in,
    wanted_text,
)
from hami.errors import ClusterError, Conflict, HamiError, MalformedInput, NotFound
from hami.kube.api import is_unsent
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.kube.reflector import Sink
from hami.model import Allocation, Pod
from hami.runtime.tasks import Task
from hami.scheduler.leadership import Leadership
from hami.scheduler.metrics import Metrics
from hami.scheduler.resize_queue import (
    RETRY_S,
    PendingResize,
    ResizablePods,
    ResizeAnswer,
    ResizeEvent,
    ResizeQueue,
    ResizeStage,
    is_open,
    needs_answer,
)
from hami.scheduling.resize import ResizePlan, ResizeRefusal, has_same_devices, larger
from hami.state.promises import ANSWER_S
from hami.state.resize_facts import keeps_devices, resized_annotations
from hami.state.store import Store

log = logging.getLogger(__name__)

IDLE_S = 1.0  # between looks at pods that wait, unless the watch shows a change
PAUSE_S = 1.0  # between two answers to one pod
WRITE_S = 5.0  # for one write
BATCH = 20  # pods of a step: then those that have come meanwhile get their turn
RETRIES = 50  # pods that did not fit and are tried again in a second

_EVENTS: Mapping[ResizeState, tuple[Literal["Normal", "Warning"], str]] = {
    ResizeState.BOOKED: ("Normal", "Resizing"),
    ResizeState.APPLIED: ("Normal", "Resized"),
    ResizeState.DEFERRED: ("Warning", "ResizePending"),
    ResizeState.INFEASIBLE: ("Warning", "ResizeRefused"),
}


class Resizer(Task):
    """One task for all resizes. *clock* is the leadership's."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        events: EventRecorder,
        leadership: Leadership,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
    ) -> None:
        super().__init__("resizer")
        self._cluster = cluster
        self._store = store
        self._events = events
        self._leadership = leadership
        self._metrics = metrics
        self._clock = clock
        self._queue = ResizeQueue(self.wake)
        self._retry_from = -math.inf

    def watched(self, sink: Sink[Pod]) -> ResizablePods:
        """Returns a sink for the watch of pods that passes them on to *sink*."""
        return ResizablePods(sink, self._queue)

    def pending(self) -> int:
        """Returns how many pods wait for an answer, or for room."""
        return len(self._queue)

    def step(self) -> float:
        """Answers the pods that are due. Returns the seconds until the next step."""
        queue, clock = self._queue, self._clock()
        queue.take_seen(clock)
        if not self._leadership.leads():
            return IDLE_S
        due = queue.due(clock)
        batch = due[:BATCH]
        if clock >= self._retry_from:
            self._retry_from = clock + IDLE_S
            batch += queue.deferred(clock, self._store.version)[:RETRIES]
        for resize in self.each(batch):
            if not self._leadership.leads():
                break
            self._try(resize)
        if len(due) > BATCH:
            return 0.0
        return max(0.0, min(IDLE_S, queue.next_due() - self._clock()))

    def _try(self, resize: PendingResize) -> None:
        try:
            self._look_at(resize)
        except Conflict:
            pass  # it has changed meanwhile
        except HamiError as error:
            self._metrics.resize("failed")
            log.warning("resize failed", extra={"pod": resize.pod.ref, "error": error})
        resize.postpone(self._clock() + PAUSE_S)

    def _look_at(self, resize: PendingResize) -> None:
        """Answers a pod. It waits on if that needs more than one write. Raises: HamiError; then it is tried again."""
        uid = resize.pod.ref.uid
        record = self._store.pods.get(uid)
        if record is None or not keeps_devices(record):
            self._queue.forget(resize)
            return
        if not self._store.nodes.is_known(record.node):
            # the node is another scheduler's, which answers; or it becomes ours
            resize.postpone(self._clock() + RETRY_S)
            return
        if resize.stage is ResizeStage.UNKNOWN and self._store.resizes.is_growing(uid):
            self._resolve(resize)
            return
        resize.on(ResizeEvent.SETTLED, self._clock())
        if record.version != parse_resource_version(resize.pod.resource_version):
            self._read(resize)
        answer = self._answer_to(resize)
        if answer is not None:
            self._write(resize, answer)
        elif resize.stage is ResizeStage.ASKED:
            self._queue.forget(resize)

    def _answer_to(self, resize: PendingResize) -> ResizeAnswer | None:
        """Returns the answer that a pod needs now; ``None`` for none. Raises: Conflict if it has changed."""
        pod = resize.pod
        answer = confirmation(pod)
        if answer is not None:
            return answer
        text = pod.annotations.get(RESIZE)
        status = parse_status(pod.annotations.get(RESIZE_STATUS))
        if text is None or not is_open(status, text):
            return None
        request = text[:MAX_TEXT]
        try:
            plan = self._store.resizes.begin(pod, parse_resize(text))
        except MalformedInput as error:
            return ResizeAnswer(ResizeStatus(ResizeState.INFEASIBLE, request, str(error)), {})
        if plan is None:
            raise Conflict(f"pod {pod.ref} has changed")
        if isinstance(plan, ResizeRefusal):
            return self._refusal(resize, status, ResizeStatus(plan.state, request, plan.message))
        resize.on(ResizeEvent.FITS, self._clock())
        return _booked(pod, plan, request)

    def _refusal(
        self, resize: PendingResize, previous: ResizeStatus | None, status: ResizeStatus
    ) -> ResizeAnswer | None:
        """Returns the answer that a pod does not get its sizes; ``None`` if it has had one a moment ago."""
        if status.state is not ResizeState.DEFERRED:
            return ResizeAnswer(status, {})
        is_recent = resize.defer(self._clock(), self._store.version())
        if previous == status or (is_recent and _is_same(previous, status)):
            return None
        return ResizeAnswer(status, {})

    def _write(self, resize: PendingResize, answer: ResizeAnswer) -> None:
        """Writes *answer* while this replica leads. Raises: HamiError."""
        pod, status = resize.pod, answer.status
        try:
            changed = self._annotate(pod, answer)
        except ClusterError as error:
            self._observe_failure(resize, answer, error)
            raise
        self._store.pods.upsert(changed)
        resize.on(ResizeEvent.SETTLED, self._clock())
        resize.update(changed)
        self._queue.postpone(resize, self._clock() + PAUSE_S)
        self._metrics.resize(status.state.value.lower())
        log.info(
            "resize answered",
            extra={"pod": pod.ref, "state": status.state.value, "detail": status.message},
        )
        if not _is_same(parse_status(pod.annotations.get(RESIZE_STATUS)), status):
            type, reason = _EVENTS[status.state]
            self._events.record(pod.ref, type, reason, status.message or _text_of(changed))
        if status.state is not ResizeState.DEFERRED and not needs_answer(changed.annotations):
            self._queue.forget(resize)

    def _annotate(self, pod: Pod, answer: ResizeAnswer) -> Pod:
        left_s = self._leadership.leads_until() - self._clock()
        if left_s <= 0:
            raise Conflict("this replica of the scheduler no longer leads")
        return self._cluster.annotate_pod(
            pod.ref,
            answer.annotations,
            resource_version=pod.resource_version,
            timeout=min(left_s, WRITE_S),
        )

    def _observe_failure(
        self, resize: PendingResize, answer: ResizeAnswer, error: ClusterError
    ) -> None:
        """Gives back what the pod was to grow by if it certainly has not; an earlier write may still arrive."""
        if resize.stage is ResizeStage.UNKNOWN:
            return
        if _is_refused(error):
            self._store.resizes.refuse(resize.pod)
        elif self._store.resizes.is_growing(resize.pod.ref.uid):
            resize.await_outcome(answer, self._clock())

    def _resolve(self, resize: PendingResize) -> None:
        """Finds out whether a pod has grown. Raises: HamiError; then it is asked again."""
        self._read(resize)
        if not self._store.resizes.is_growing(resize.pod.ref.uid):
            return
        if self._clock() - resize.since >= ANSWER_S:
            self._store.resizes.refuse(resize.pod)
        elif resize.unanswered is not None:
            self._write(resize, resize.unanswered)

    def _read(self, resize: PendingResize) -> None:
        """Reads a pod. Raises: HamiError."""
        ref = resize.pod.ref
        pod = self._cluster.pod(ref.namespace, ref.name)
        if pod is None or pod.ref.uid != ref.uid:
            self._queue.forget(resize)
            raise NotFound(f"pod {ref} not found", 404)
        self._store.pods.upsert(pod)
        resize.update(pod)


def confirmation(pod: Pod) -> ResizeAnswer | None:
    """Returns what follows from the answer of the device plugin; ``None`` if nothing does.

    What it confirms is booked. If it has a problem, the pod is to have the sizes that are enforced, which it confirms
    once more: an answer that comes late is about other sizes.
    """
    annotations = pod.annotations
    applied = parse_applied(annotations.get(RESIZE_APPLIED))
    current, target = _current_and_target(annotations)
    if applied is None or not all((annotations.get(RESIZED), current, target)):
        return None
    sizes = shares_in(applied.sizes)
    if not has_same_devices(sizes, current) or larger(current, sizes) != current:
        return None
    status = parse_status(annotations.get(RESIZE_STATUS)) or ResizeStatus(ResizeState.BOOKED)
    if _amounts(sizes) == _amounts(target):
        return _confirmed(annotations, applied, status)
    if applied.problem and status.state is ResizeState.BOOKED:
        return ResizeAnswer(
            ResizeStatus(ResizeState.INFEASIBLE, status.request, applied.problem),
            {RESIZE_TARGET: render_shares(sizes), RESIZE_APPLIED: None},
        )
    return None


def _confirmed(
    annotations: Mapping[str, str], applied: AppliedSizes, status: ResizeStatus
) -> ResizeAnswer | None:
    """Returns the answer if the sizes that the pod is to have are enforced; ``None`` if it has had it."""
    target = annotations.get(RESIZE_TARGET)
    if status.state is ResizeState.BOOKED:
        state = ResizeState.INFEASIBLE if applied.problem else ResizeState.APPLIED
        status = ResizeStatus(state, status.request, applied.problem)
    elif not target:
        return None
    if not target:
        return ResizeAnswer(status, {})
    return ResizeAnswer(status, {RESIZED: target, GPU_ALLOCATED: target, RESIZE_TARGET: None})


def _booked(pod: Pod, plan: ResizePlan, request: str) -> ResizeAnswer:
    """Returns the answer that what the pod asks for is booked, or enforced already."""
    current, target = _current_and_target(pod.annotations)
    if (current, target) != (plan.booked, plan.target):
        edits = {**resized_annotations(plan), RESIZE_APPLIED: None}
        return ResizeAnswer(ResizeStatus(ResizeState.BOOKED, request), edits)
    state = ResizeState.BOOKED
    if _is_enforced(pod.annotations, target):
        state = ResizeState.APPLIED
    return ResizeAnswer(ResizeStatus(state, request), {})


def _is_enforced(annotations: Mapping[str, str], target: Allocation) -> bool:
    if not annotations.get(RESIZED):
        return True  # the pod has never had other sizes
    applied = parse_applied(annotations.get(RESIZE_APPLIED))
    return applied is not None and _amounts(shares_in(applied.sizes)) == _amounts(target)


def _current_and_target(annotations: Mapping[str, str]) -> tuple[Allocation, Allocation]:
    """Returns what a pod holds and what it is to have."""
    return shares_in(held_text(annotations)), shares_in(wanted_text(annotations))


def _is_refused(error: ClusterError) -> bool:
    """Reports whether a write has certainly not been made."""
    if is_unsent(error) or isinstance(error, Conflict):
        return True
    return error.status is not None and error.status < 500


def _is_same(status: ResizeStatus | None, other: ResizeStatus) -> bool:
    """Reports whether both are of the same state for the same request, whatever their messages."""
    return status is not None and (status.state, status.request) == (other.state, other.request)


def _amounts(allocation: Allocation) -> list[list[tuple[str, int, int]]]:
    containers = []
    for shares in allocation:
        containers.append([(share.uuid, share.memory_mib, share.cores) for share in shares])
    return containers


def _text_of(pod: Pod) -> str:
    """Returns the sizes that *pod* is to have: ``GPU-0: 8192 MiB, 40 percent``."""
    target = itertools.chain.from_iterable(shares_in(wanted_text(pod.annotations)))
    return "; ".join(
        f"{share.uuid}: {share.memory_mib} MiB, {share.cores} percent" for share in target
    )
