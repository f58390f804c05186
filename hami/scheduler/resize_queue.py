"""The bound pods that wait for an answer to a resize: which of them are looked at next."""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from hami.codec.keys import RESIZE, RESIZE_APPLIED, RESIZE_STATUS, RESIZE_TARGET, RESIZED
from hami.codec.objects import parse_resource_version
from hami.codec.resize import MAX_TEXT, ResizeState, ResizeStatus, parse_status, render_status
from hami.kube.calls import Edits
from hami.kube.reflector import Sink
from hami.model import Pod
from hami.scheduling.turns import in_turn

RETRY_S = 10.0  # until it is tried again what did not fit, if nothing has changed


@dataclass(frozen=True, slots=True)
class ResizeAnswer:
    """The write that a pod needs. *edits*: of its annotations, beside *status*."""

    status: ResizeStatus
    edits: Edits

    @property
    def annotations(self) -> Edits:
        """All edits of annotations."""
        return {**self.edits, RESIZE_STATUS: render_status(self.status)}


class ResizeStage(enum.Enum):
    """The stages of a resize that waits for its answer."""

    ASKED = "asked"  # it may need an answer, and is looked at when it is due
    DEFERRED = "deferred"  # it did not fit, and is tried again when the store has changed
    UNKNOWN = "unknown"  # more is booked, and nobody has said whether that was written


class ResizeEvent(enum.Enum):
    """The events of a resize that waits."""

    CHANGED = "changed"  # the pod, in what its answer depends on
    FITS = "fits"
    UNFIT = "unfit"  # for now
    UNANSWERED = "unanswered"  # the write by which the pod grows
    SETTLED = "settled"  # the pod has grown, or certainly has not


_STAGES: Mapping[tuple[ResizeStage, ResizeEvent], ResizeStage] = {
    (ResizeStage.ASKED, ResizeEvent.UNFIT): ResizeStage.DEFERRED,
    (ResizeStage.DEFERRED, ResizeEvent.CHANGED): ResizeStage.ASKED,
    (ResizeStage.DEFERRED, ResizeEvent.FITS): ResizeStage.ASKED,
    (ResizeStage.ASKED, ResizeEvent.UNANSWERED): ResizeStage.UNKNOWN,
    (ResizeStage.UNKNOWN, ResizeEvent.SETTLED): ResizeStage.ASKED,
}
"""The stage after an event; events that are not listed for a stage leave it."""


@dataclass(slots=True, eq=False)
class PendingResize:
    """A resize that waits for its answer."""

    pod: Pod
    due: float  # when it is looked at next, at the earliest
    stage: ResizeStage = ResizeStage.ASKED
    since: float = -math.inf  # of the stage; one that is deferred begins again every RETRY_S
    tried_at: tuple[int, ...] = ()  # the version of the store into which it did not fit
    unanswered: ResizeAnswer | None = None  # what was written last without an answer

    def on(self, event: ResizeEvent, clock: float) -> None:
        """Enters the stage that follows from *event*."""
        stage = _STAGES.get((self.stage, event), self.stage)
        if stage is not self.stage:
            self.stage, self.since = stage, clock

    def defer(self, clock: float, version: tuple[int, ...]) -> bool:
        """Records that it does not fit into this *version* of the store. Reports whether it did not a moment ago."""
        is_recent = self.stage is ResizeStage.DEFERRED and clock < self.since + RETRY_S
        self.on(ResizeEvent.UNFIT, clock)
        if not is_recent:
            self.since = clock
        self.tried_at = version
        return is_recent

    def await_outcome(self, answer: ResizeAnswer, clock: float) -> None:
        """Records that nobody has said whether *answer* was written, by which the pod grows."""
        self.on(ResizeEvent.UNANSWERED, clock)
        self.unanswered = answer

    def may_fit(self, clock: float, version: tuple[int, ...]) -> bool:
        """Reports whether it is to be tried again, after it did not fit."""
        if self.due > clock:
            return False
        return self.tried_at != version or clock >= self.since + RETRY_S

    def postpone(self, until: float) -> None:
        """Makes it due at *until* at the earliest."""
        self.due = max(self.due, until)

    def update(self, pod: Pod) -> None:
        """Takes in a newer version of the pod."""
        self.pod = pod


class ResizeQueue:
    """The resizes that wait, by pod. The watch may call `observe` while another thread does the rest, which *wake*
    wakes."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()  # guards the pods that were seen
        self._seen: dict[str, Pod] = {}
        self._resizes: dict[str, PendingResize] = {}
        # until when pods that have had an answer get no other
        self._answered: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._resizes)

    def observe(self, pod: Pod) -> None:
        """Takes note of *pod* as the watch shows it, if it may need an answer."""
        annotations, uid = pod.annotations, pod.ref.uid
        if uid not in self._resizes:
            if RESIZE not in annotations and RESIZED not in annotations:
                return
            if not needs_answer(annotations):
                return
        with self._lock:
            self._seen[uid] = pod
        self._wake()

    def take_seen(self, clock: float) -> None:
        """Takes in what the watch has shown."""
        with self._lock:
            seen, self._seen = self._seen, {}
        for uid, until in list(self._answered.items()):
            if until <= clock:
                del self._answered[uid]
        for uid, pod in seen.items():
            resize = self._resizes.get(uid)
            if resize is None:
                self._resizes[uid] = PendingResize(pod, self._answered.get(uid, clock))
            elif _version(pod) > _version(resize.pod):
                self._update(resize, pod, clock)

    def _update(self, resize: PendingResize, pod: Pod, clock: float) -> None:
        if _question(pod) != _question(resize.pod):
            resize.on(ResizeEvent.CHANGED, clock)
        resize.update(pod)
        if resize.stage is not ResizeStage.UNKNOWN and not needs_answer(pod.annotations):
            self.forget(resize)

    def due(self, clock: float) -> list[PendingResize]:
        """Returns what is due and was not deferred."""
        return _in_turn(resize for resize in self._not_deferred() if resize.due <= clock)

    def next_due(self) -> float:
        """Returns when the first that was not deferred is due; infinity if there is none."""
        return min((resize.due for resize in self._not_deferred()), default=math.inf)

    def deferred(self, clock: float, version: Callable[[], tuple[int, ...]]) -> list[PendingResize]:
        """Returns what did not fit and may by now, since the *version* of the store is another one, or was not tried
        for long."""
        waiting = [item for item in self._resizes.values() if item.stage is ResizeStage.DEFERRED]
        if not waiting:
            return []
        current = version()
        return _in_turn(resize for resize in waiting if resize.may_fit(clock, current))

    def postpone(self, resize: PendingResize, until: float) -> None:
        """Makes *resize* due at *until* at the earliest, also if it is forgotten and seen again meanwhile."""
        self._answered[resize.pod.ref.uid] = until

    def forget(self, resize: PendingResize) -> None:
        """Drops *resize*, which needs no answer."""
        self._resizes.pop(resize.pod.ref.uid, None)

    def _not_deferred(self) -> Iterator[PendingResize]:
        for resize in self._resizes.values():
            if resize.stage is not ResizeStage.DEFERRED:
                yield resize


class ResizablePods:
    """A sink for the watch of pods that passes them on to *sink*, and then to *queue*."""

    def __init__(self, sink: Sink[Pod], queue: ResizeQueue) -> None:
        self._sink = sink
        self._queue = queue
        self.remove = sink.remove
        self.prune = sink.prune

    def upsert(self, pod: Pod, as_of: float = -math.inf) -> None:
        """Passes on *pod*."""
        self._sink.upsert(pod, as_of)
        self._queue.observe(pod)


def is_open(status: ResizeStatus | None, text: str) -> bool:
    """Reports whether what an owner asks for in *text* has no answer yet, or only that it does not fit now."""
    if status is None or status.request != text[:MAX_TEXT]:
        return True
    return status.state is ResizeState.DEFERRED


def needs_answer(annotations: Mapping[str, str]) -> bool:
    """Reports whether a pod with *annotations* may need an answer of the scheduler."""
    text = annotations.get(RESIZE)
    status = parse_status(annotations.get(RESIZE_STATUS))
    if text is not None and is_open(status, text):
        return True
    if RESIZE_APPLIED not in annotations:
        return False
    if annotations.get(RESIZE_TARGET):
        return True
    return status is not None and status.state is ResizeState.BOOKED


def _version(pod: Pod) -> int:
    return parse_resource_version(pod.resource_version)


def _question(pod: Pod) -> tuple[str | None, ...]:
    """Returns the facts about *pod* on which its answer depends."""
    return pod.phase, *map(pod.annotations.get, (RESIZE, RESIZED, RESIZE_TARGET, RESIZE_APPLIED))


def _in_turn(due: Iterable[PendingResize]) -> list[PendingResize]:
    """Returns pods of all namespaces in turn, of each those first that have waited for longest."""
    return list(in_turn(sorted(due, key=attrgetter("due")), attrgetter("pod.ref.namespace")))
