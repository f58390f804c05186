"""The resizer: answers what owners of bound pods ask for, and follows what device plugins have enforced.

What a pod grows by is booked before it is written; what it is to lose is given back after its node has confirmed it.
Each answer follows from the pod and from what is booked, so a new leader goes on where another has stopped.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
    ResizeState,
    ResizeStatus,
    held_text,
    parse_applied,
    parse_resize,
    parse_status,
    render_status,
    shares_in,
    wanted_text,
)
from hami.errors import ClusterError, Conflict, HamiError, MalformedInput, NotFound
from hami.kube.api import is_unsent
from hami.kube.calls import Edits
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.kube.reflector import Sink
from hami.model import Allocation, Pod
from hami.runtime.tasks import Task
from hami.scheduler.leadership import Leadership
from hami.scheduler.metrics import Metrics
from hami.scheduling.resize import ResizeRefusal, has_same_devices, larger
from hami.scheduling.turns import in_turn
from hami.state.promises import ANSWER_S
from hami.state.resize_facts import resized_annotations
from hami.state.store import Store

log = logging.getLogger(__name__)

IDLE_S = 1.0  # between looks at pods that wait, unless the watch shows a change
PAUSE_S = 1.0  # between two answers to one pod
RETRY_S = 10.0  # until it is tried again what did not fit, if nothing has changed
WRITE_S = 5.0  # for one write
BATCH = 20  # pods of a step: then those that have come meanwhile get their turn
RETRIES = 50  # pods that did not fit and are tried again in a second

_EVENTS: Mapping[ResizeState, tuple[Literal["Normal", "Warning"], str]] = {
    ResizeState.BOOKED: ("Normal", "Resizing"),
    ResizeState.APPLIED: ("Normal", "Resized"),
    ResizeState.DEFERRED: ("Warning", "ResizePending"),
    ResizeState.INFEASIBLE: ("Warning", "ResizeRefused"),
}


@dataclass(frozen=True, slots=True)
class ResizeAnswer:
    """The write that a pod needs. *edits*: of its annotations, beside *status*."""

    status: ResizeStatus
    edits: Edits

    @property
    def annotations(self) -> Edits:
        """All edits of annotations."""
        return {**self.edits, RESIZE_STATUS: render_status(self.status)}


@dataclass(slots=True, eq=False)
class _Waiting:
    """A pod that may need an answer. *due*: when it is looked at next, at the earliest. *deferred*: the state of the
    store in which it did not fit. *written*: the last write, and when its outcome was first unknown."""

    pod: Pod
    due: float
    since: float
    deferred: tuple[int, ...] | None = None
    written: ResizeAnswer | None = None
    unknown_since: float = math.inf


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
        self._lock = threading.Lock()  # guards the pods that were seen
        self._seen: dict[str, Pod] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._answered: dict[
            str, float
        ] = {}  # until when pods that have had an answer get no other
        self._retry_from = -math.inf

    def observe(self, pod: Pod) -> None:
        """Takes note of *pod* as the watch shows it, if it may need an answer."""
        annotations, uid = pod.annotations, pod.ref.uid
        if RESIZE not in annotations and RESIZED not in annotations and uid not in self._waiting:
            return
        if needs_answer(annotations) or uid in self._waiting:
            with self._lock:
                self._seen[uid] = pod
            self.wake()

    def pending(self) -> int:
        """Returns how many pods wait for an answer, or for room."""
        return len(self._waiting)

    def step(self) -> float:
        """Answers the pods that are due. Returns the seconds until the next step."""
        self._take_seen()
        if not self._leadership.leads():
            return IDLE_S
        clock = self._clock()
        self._answered = {uid: until for uid, until in self._answered.items() if until > clock}
        due = [
            waiting
            for waiting in self._waiting.values()
            if waiting.deferred is None and waiting.due <= clock
        ]
        for waiting in self.each([*itertools.islice(_in_turn(due), BATCH), *self._to_retry(clock)]):
            if not self._leadership.leads():
                break
            try:
                self._look_at(waiting)
            except Conflict:
                pass  # it has changed meanwhile
            except HamiError as error:
                self._metrics.resize("failed")
                log.warning("resize failed", extra={"pod": waiting.pod.ref, "error": error})
            waiting.due = max(waiting.due, self._clock() + PAUSE_S)
        if len(due) > BATCH:
            return 0.0
        return max(
            0.0,
            min(
                (
                    waiting.due - self._clock()
                    for waiting in self._waiting.values()
                    if waiting.deferred is None
                ),
                default=IDLE_S,
            ),
        )

    def _take_seen(self) -> None:
        with self._lock:
            seen, self._seen = self._seen, {}
        for uid, pod in seen.items():
            clock, waiting = self._clock(), self._waiting.get(uid)
            if waiting is None:
                self._waiting[uid] = _Waiting(pod, self._answered.get(uid, clock), clock)
            elif parse_resource_version(pod.resource_version) > parse_resource_version(
                waiting.pod.resource_version
            ):
                if _question(pod) != _question(waiting.pod):
                    waiting.deferred = None
                waiting.pod = pod
                if waiting.written is None and not needs_answer(pod.annotations):
                    self._forget(waiting)

    def _to_retry(self, clock: float) -> list[_Waiting]:
        """Returns pods that did not fit and may by now, or were not tried for long."""
        if clock < self._retry_from:
            return []
        self._retry_from, state = clock + IDLE_S, self._store.version()
        return list(
            itertools.islice(
                _in_turn(
                    waiting
                    for waiting in self._waiting.values()
                    if waiting.deferred is not None
                    and waiting.due <= clock
                    and (waiting.deferred != state or clock >= waiting.since + RETRY_S)
                ),
                RETRIES,
            )
        )

    def _look_at(self, waiting: _Waiting) -> None:
        """Answers a pod. It waits on if that needs more than one write. Raises: HamiError; then it is tried again."""
        uid = waiting.pod.ref.uid
        record = self._store.pods.get(uid)
        if (
            record is None
            or record.terminated
            or record.ends_by
            or record.preempted
            or not record.node
        ):
            self._forget(waiting)
            return
        if not self._store.nodes.is_known(
            record.node
        ):  # of another scheduler, which answers; or it becomes ours
            waiting.due = self._clock() + RETRY_S
            return
        if waiting.written is not None and self._store.resizes.is_growing(uid):
            self._resolve(waiting)
            return
        waiting.written, waiting.unknown_since = None, math.inf
        if record.version != parse_resource_version(waiting.pod.resource_version):
            self._read(waiting)
        if (answer := self._answer_to(waiting)) is not None:
            self._write(waiting, answer)
        elif waiting.deferred is None:
            self._forget(waiting)

    def _answer_to(self, waiting: _Waiting) -> ResizeAnswer | None:
        """Returns the answer that a pod needs now; ``None`` for none. Raises: Conflict if it has changed."""
        pod = waiting.pod
        if (answer := confirmation(pod)) is not None:
            return answer
        status, text = parse_status(pod.annotations.get(RESIZE_STATUS)), pod.annotations.get(RESIZE)
        if text is None or not is_open(status, text):
            return None
        asked = text[:MAX_TEXT]
        try:
            plan = self._store.resizes.begin(pod, parse_resize(text))
        except MalformedInput as error:
            return ResizeAnswer(ResizeStatus(ResizeState.INFEASIBLE, asked, str(error)), {})
        if plan is None:
            raise Conflict(f"pod {pod.ref} has changed")
        if isinstance(plan, ResizeRefusal):
            return self._refusal(waiting, status, ResizeStatus(plan.state, asked, plan.message))
        waiting.deferred = None
        held, wanted = (
            shares_in(text) for text in (held_text(pod.annotations), wanted_text(pod.annotations))
        )
        if (held, wanted) != (plan.booked, plan.target):
            return ResizeAnswer(
                ResizeStatus(ResizeState.BOOKED, asked),
                {**resized_annotations(plan), RESIZE_APPLIED: None},
            )
        applied = parse_applied(pod.annotations.get(RESIZE_APPLIED))
        holds = not pod.annotations.get(RESIZED) or (
            applied is not None and _amounts(shares_in(applied.sizes)) == _amounts(wanted)
        )
        return ResizeAnswer(
            ResizeStatus(ResizeState.APPLIED if holds else ResizeState.BOOKED, asked), {}
        )

    def _refusal(
        self, waiting: _Waiting, before: ResizeStatus | None, status: ResizeStatus
    ) -> ResizeAnswer | None:
        """Returns the answer that a pod does not get its sizes; ``None`` if it has had one a moment ago."""
        if status.state is not ResizeState.DEFERRED:
            return ResizeAnswer(status, {})
        is_known = before is not None and (before.state, before.request) == (
            status.state,
            status.request,
        )
        is_recent = waiting.deferred is not None and self._clock() < waiting.since + RETRY_S
        if waiting.deferred is None or not is_recent:
            waiting.since = self._clock()
        waiting.deferred = self._store.version()
        return None if is_known and (is_recent or before == status) else ResizeAnswer(status, {})

    def _write(self, waiting: _Waiting, answer: ResizeAnswer) -> None:
        """Writes *answer* while this replica leads. Raises: HamiError."""
        pod, state = waiting.pod, answer.status.state
        was_unknown, waiting.written = waiting.unknown_since < math.inf, answer
        try:
            if (left_s := self._leadership.leads_until() - self._clock()) <= 0:
                raise Conflict("this replica of the scheduler no longer leads")
            changed = self._cluster.annotate_pod(
                pod.ref,
                answer.annotations,
                resource_version=pod.resource_version,
                timeout=min(left_s, WRITE_S),
            )
        except ClusterError as error:
            is_refused = (
                is_unsent(error) or (error.status is not None and error.status < 500) or left_s <= 0
            )
            if is_refused and not was_unknown:
                self._store.resizes.refuse(pod)
                waiting.written = None
            elif not was_unknown:
                waiting.unknown_since = self._clock()
            raise
        self._store.pods.upsert(changed)
        waiting.written, waiting.unknown_since = None, math.inf
        self._answered[pod.ref.uid] = self._clock() + PAUSE_S
        self._metrics.resize(state.value.lower())
        waiting.pod = changed
        log.info(
            "resize answered",
            extra={"pod": pod.ref, "state": state.value, "detail": answer.status.message},
        )
        before = parse_status(pod.annotations.get(RESIZE_STATUS))
        if before is None or (before.state, before.request) != (state, answer.status.request):
            type, reason = _EVENTS[state]
            self._events.record(pod.ref, type, reason, answer.status.message or _text_of(changed))
        if state is not ResizeState.DEFERRED and not needs_answer(changed.annotations):
            self._forget(waiting)

    def _resolve(self, waiting: _Waiting) -> None:
        """Finds out whether a pod has grown. Raises: HamiError; then it is asked again."""
        self._read(waiting)
        if waiting.written is not None and self._store.resizes.is_growing(waiting.pod.ref.uid):
            if self._clock() - waiting.unknown_since >= ANSWER_S:
                self._store.resizes.refuse(waiting.pod)
            else:
                self._write(waiting, waiting.written)

    def _read(self, waiting: _Waiting) -> None:
        """Reads a pod. Raises: HamiError."""
        ref = waiting.pod.ref
        pod = self._cluster.pod(ref.namespace, ref.name)
        if pod is None or pod.ref.uid != ref.uid:
            self._forget(waiting)
            raise NotFound(f"pod {ref} not found", 404)
        self._store.pods.upsert(pod)
        waiting.pod = pod

    def _forget(self, waiting: _Waiting) -> None:
        self._waiting.pop(waiting.pod.ref.uid, None)


class ResizablePods:
    """A sink for the watch of pods that passes them on to *sink*, and then to *observe*."""

    def __init__(self, sink: Sink[Pod], observe: Callable[[Pod], None]) -> None:
        self._sink = sink
        self._observe = observe
        self.remove = sink.remove
        self.prune = sink.prune

    def upsert(self, pod: Pod, as_of: float = -math.inf) -> None:
        """Passes on *pod*."""
        self._sink.upsert(pod, as_of)
        self._observe(pod)


def is_open(status: ResizeStatus | None, text: str) -> bool:
    """Reports whether what an owner asks for in *text* has no answer yet, or only that it does not fit now."""
    return (
        status is None or status.request != text[:MAX_TEXT] or status.state is ResizeState.DEFERRED
    )


def needs_answer(annotations: Mapping[str, str]) -> bool:
    """Reports whether a pod with *annotations* may need an answer of the scheduler."""
    status, text = parse_status(annotations.get(RESIZE_STATUS)), annotations.get(RESIZE)
    if text is not None and is_open(status, text):
        return True
    return RESIZE_APPLIED in annotations and (
        bool(annotations.get(RESIZE_TARGET))
        or (status is not None and status.state is ResizeState.BOOKED)
    )


def confirmation(pod: Pod) -> ResizeAnswer | None:
    """Returns what follows from the answer of the device plugin; ``None`` if nothing does.

    What it confirms is booked. If it has a problem, the pod is to have the sizes that are enforced, which it confirms
    once more: an answer that comes late is about other sizes.
    """
    annotations = pod.annotations
    status = parse_status(annotations.get(RESIZE_STATUS)) or ResizeStatus(ResizeState.BOOKED)
    applied, target = parse_applied(annotations.get(RESIZE_APPLIED)), annotations.get(RESIZE_TARGET)
    held, wanted = shares_in(held_text(annotations)), shares_in(wanted_text(annotations))
    if applied is None or not held or not wanted or not annotations.get(RESIZED):
        return None
    sizes = shares_in(applied.sizes)
    if not sizes or not has_same_devices(sizes, held) or larger(held, sizes) != held:
        return None
    is_booked = status.state is ResizeState.BOOKED
    if _amounts(sizes) == _amounts(wanted) and (target or is_booked):
        if is_booked:
            state = ResizeState.INFEASIBLE if applied.problem else ResizeState.APPLIED
            status = ResizeStatus(state, status.request, applied.problem)
        text = wanted_text(annotations)
        return ResizeAnswer(
            status, {RESIZED: text, GPU_ALLOCATED: text, RESIZE_TARGET: None} if target else {}
        )
    if applied.problem and is_booked:
        return ResizeAnswer(
            ResizeStatus(ResizeState.INFEASIBLE, status.request, applied.problem),
            {RESIZE_TARGET: render_shares(sizes), RESIZE_APPLIED: None},
        )
    return None


def _amounts(allocation: Allocation) -> list[list[tuple[str, int, int]]]:
    return [
        [(share.uuid, share.memory_mib, share.cores) for share in shares] for shares in allocation
    ]


def _question(pod: Pod) -> tuple[str | None, ...]:
    """Returns the facts about *pod* on which its answer depends."""
    return pod.phase, *map(pod.annotations.get, (RESIZE, RESIZED, RESIZE_TARGET, RESIZE_APPLIED))


def _text_of(pod: Pod) -> str:
    """Returns the sizes that *pod* is to have: ``GPU-0: 8192 MiB, 40 percent``."""
    return "; ".join(
        f"{share.uuid}: {share.memory_mib} MiB, {share.cores} percent"
        for shares in shares_in(wanted_text(pod.annotations))
        for share in shares
    )


def _in_turn(due: Iterable[_Waiting]) -> Iterable[_Waiting]:
    """Returns pods of all namespaces in turn, of each those first that have waited for longest."""
    return in_turn(
        sorted(due, key=lambda waiting: waiting.due), lambda waiting: waiting.pod.ref.namespace
    )
