"""Kubernetes events, written in the background: merged, bounded and rate-limited, so that they do not delay pods.

Recording never blocks and never fails; an event that cannot be written is dropped and counted.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from hami.codec.times import render_time
from hami.errors import ClusterError, Conflict, NotFound
from hami.kube.cluster import Cluster
from hami.kube.retry import EVENT_WAIT, Backoff
from hami.model import PodRef
from hami.runtime.clock import utc_now
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task
from hami.runtime.token_bucket import TokenBucket

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]

MESSAGE_LIMIT = 1024
MERGE_S = 600.0
"""Seconds for which a repeated event increases the count of the event written before."""
REPEAT_S = 60.0
"""Seconds after which a repeated event is written again, or earlier when its count has doubled: a pod that no node fits
is tried every few seconds."""
ATTEMPTS = 5
"""Attempts to write an event to a server that answers with errors; without an answer, attempts do not end."""
_NAME_LIMIT = 253
_NODE_NAMESPACE = "default"  # of events about objects that have no namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLimits:
    """*rate*: events a second; *burst*: at once after a pause. *normal_rate*, *normal_burst*: those for events of type
    Normal among them. *capacity*: events that wait; then the oldest Normal event is dropped, or else the oldest Warning
    for a new one."""

    rate: float = 50.0
    burst: int = 100
    normal_rate: float = 10.0
    normal_burst: int = 20
    capacity: int = 2000


@dataclass(frozen=True, slots=True)
class _EventKey:
    """Events with equal keys are merged."""

    subject: PodRef | str
    type: EventType
    reason: str
    message: str


@dataclass(slots=True)
class _MergedEvent:
    """Equal events, merged. *count*: those that are not written yet, or, in a written one, all that it tells of.
    *repeated*: those since then. *written_at*: by the clock."""

    key: _EventKey
    first: datetime
    last: datetime
    name: str = ""
    count: int = 1
    repeated: int = 0
    attempts: int = 0
    written_at: float = 0.0


class EventRecorder(Task):
    """Accepts events from any thread and writes them in the task's own, until `stop`: then waiting events are lost (see
    `drain`)."""

    def __init__(self, cluster: Cluster, component: str, limits: EventLimits = EventLimits(), *,
                 clock: Callable[[], float] = time.monotonic, now: Callable[[], datetime] = utc_now) -> None:
        """*component*: the source of the events."""
        super().__init__("events")
        self._cluster = cluster
        self._component = component
        self._capacity = limits.capacity
        self._clock = clock
        self._now = now
        self.dropped = 0
        """The number of events that were dropped. A merged event counts as often as it occurred."""
        self.written = 0
        """The number of events that were written, counted like `dropped`."""
        self._changed = threading.Condition()  # guards `dropped` and the next four; not held across I/O
        self._waiting: dict[EventType, OrderedDict[_EventKey, _MergedEvent]] = {
            "Warning": OrderedDict(), "Normal": OrderedDict()}
        self._is_writing = False
        self._recent: OrderedDict[_EventKey, _MergedEvent] = OrderedDict()  # as last written
        self._all_tokens = TokenBucket(limits.rate, limits.burst, clock())  # from here on: the writing thread's
        self._normal_tokens = TokenBucket(limits.normal_rate, limits.normal_burst, clock())
        self._backoff = Backoff(EVENT_WAIT)
        self._resume_at = -math.inf
        self._reported = OncePerKey()

    def record(self, subject: PodRef | str, type: EventType, reason: str, message: str) -> None:
        """Records an event about a pod, or about a node by its name. Never blocks, never raises.

        *reason*: one CamelCase word. *message* is cut at 1024 characters.
        """
        if len(message) > MESSAGE_LIMIT:
            message = message[:MESSAGE_LIMIT - 1] + "…"
        key = _EventKey(subject, type, reason, message)
        now = self._now()
        with self._changed:
            queue, written = self._waiting[type], self._recent.get(key)
            if (same := queue.get(key)) is not None:
                same.last = now
                same.count += 1
            elif (written is not None and self._clock() - written.written_at < REPEAT_S
                  and written.repeated + 1 < written.count):
                written.repeated += 1
            elif self._has_room_for(type):
                idle = not self._is_anything_waiting()
                queue[key] = event = _MergedEvent(key, first=now, last=now)
                if written is not None:
                    event.count += written.repeated
                    written.repeated = 0
                if idle:  # otherwise the writer is awake; waking it for each event would cost more than the event
                    self.wake()

    def drain(self, timeout: float) -> bool:
        """Waits at most *timeout* seconds until all events are written or dropped. Reports whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_anything_waiting() and not self._is_writing, timeout)

    def step(self) -> float:
        """Writes one event if one is due. Returns the seconds until the next is due; inf if none waits."""
        if (delay := self._delay()) > 0:
            return delay
        with self._changed:
            queue = next(filter(None, self._waiting.values()), None)  # Warnings first
            if queue is None:
                return math.inf
            _, event = queue.popitem(last=False)
            self._is_writing = True
        self._all_tokens.take()
        if event.key.type == "Normal":
            self._normal_tokens.take()
        try:
            self._write(event)
            self._backoff.reset()
        except ClusterError as error:
            self._fail(event, error)
        except Exception:  # the outermost loop goes on without this event
            log.exception("event cannot be written",
                          extra={"subject": str(event.key.subject), "reason": event.key.reason})
            self._drop(event)
        finally:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
        return self._delay() if self._is_anything_waiting() else math.inf

    def _delay(self) -> float:
        """Returns the seconds until the next event may be written, because of rates and failures."""
        now = self._clock()
        delay = max(self._all_tokens.delay(now), self._resume_at - now)
        return delay if self._waiting["Warning"] else max(delay, self._normal_tokens.delay(now))

    def _write(self, event: _MergedEvent) -> None:
        event.name = event.name or _event_name(event.key.subject)
        body = self._render(event)
        namespace = body["metadata"]["namespace"]
        before = self._recent.get(event.key)
        if before is not None and self._clock() - before.written_at < MERGE_S:
            count = before.count + event.count
            try:
                self._cluster.patch_event(
                    namespace, before.name, {"count": count, "lastTimestamp": render_time(event.last)})
                self._remember(replace(before, count=count), event.count)
                return
            except NotFound:
                pass  # expired, or the namespace is gone, in which case the creation below fails, too
        try:
            self._cluster.create_event(namespace, body)
        except Conflict:
            if event.attempts == 0:
                raise
            # an earlier attempt succeeded, and only its answer was lost
        self._remember(event, event.count)

    def _remember(self, event: _MergedEvent, count: int) -> None:
        self.written += count
        with self._changed:
            earlier = self._recent.get(event.key)  # may have been repeated while this one was written
            self._recent[event.key] = replace(event, written_at=self._clock(),
                                              repeated=earlier.repeated if earlier is not None else 0)
            self._recent.move_to_end(event.key)
            if len(self._recent) > self._capacity:
                self.dropped += self._recent.popitem(last=False)[1].repeated

    def _fail(self, event: _MergedEvent, error: ClusterError) -> None:
        """Retries the event later after a temporary error; drops it after others."""
        if error.is_temporary:
            self._resume_at = self._clock() + self._backoff.next(error)
        if self._reported.is_new(error.status):
            log.warning("events are not written", extra={
                "subject": str(event.key.subject), "reason": event.key.reason, "error": str(error),
                "retried": error.is_temporary})
        event.attempts += 1
        if error.is_temporary and (error.status is None or event.attempts < ATTEMPTS):
            self._put_back(event)
        else:
            self._drop(event)

    def _put_back(self, event: _MergedEvent) -> None:
        """Returns the event to the head of its queue, merged with equal events recorded meanwhile."""
        with self._changed:
            queue = self._waiting[event.key.type]
            if (newer := queue.get(event.key)) is not None:
                event.last = newer.last
                event.count += newer.count
            queue[event.key] = event
            queue.move_to_end(event.key, last=False)

    def _has_room_for(self, type: EventType) -> bool:
        """Reports whether one more event may wait. Drops a less important or older one for it. The caller holds the
        lock."""
        if sum(map(len, self._waiting.values())) >= self._capacity:
            queue = self._waiting["Normal"] or self._waiting[type]
            if not queue:
                self.dropped += 1
                return False
            self.dropped += queue.popitem(last=False)[1].count
        return True

    def _drop(self, event: _MergedEvent) -> None:
        with self._changed:
            self.dropped += event.count

    def _is_anything_waiting(self) -> bool:
        return any(self._waiting.values())

    def _render(self, event: _MergedEvent) -> dict[str, Any]:
        """Returns the core/v1 Event. A node's uid is its name, as in the kubelet's events; kubectl expects it."""
        subject = event.key.subject
        if isinstance(subject, str):
            namespace, involved = _NODE_NAMESPACE, {"kind": "Node", "name": subject, "uid": subject}
        else:
            namespace = subject.namespace
            involved = {"kind": "Pod", "namespace": namespace, "name": subject.name, "uid": subject.uid}
        return {
            "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": namespace, "name": event.name},
            "involvedObject": {"apiVersion": "v1", **involved}, "type": event.key.type, "reason": event.key.reason,
            "message": event.key.message, "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": render_time(event.first), "lastTimestamp": render_time(event.last),
            "count": event.count,
        }


def _event_name(subject: PodRef | str) -> str:
    """Returns a unique name: the subject's, shortened if necessary, and 16 hexadecimal digits."""
    suffix = f".{uuid.uuid4().hex[:16]}"
    name = subject if isinstance(subject, str) else subject.name
    return name[:_NAME_LIMIT - len(suffix)].rstrip("-.") + suffix
