"""Events for people, written in the background: merged, bounded and slow enough not to compete with placing pods.

Recording never blocks and never fails; what cannot be written is dropped and counted. Nothing here is ever read back.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from hami.errors import ClusterError, Conflict, NotFound
from hami.model import PodRef

__all__ = ["EventCalls", "EventRecorder", "EventType", "Recorder"]

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]

MESSAGE_LIMIT = 1024
MERGE_S = 600.0
"""Seconds for which an event that is repeated raises the count of the one written before."""
ATTEMPTS = 5
"""Times that an event is offered to a server which answers, but not well; one that does not answer is waited for."""
BACKOFF_S = 1.0
BACKOFF_LIMIT_S = 30.0
_NAME_LIMIT = 253
_ROUNDING = 1e-6  # of a token: what floats lose must not make us wait for a moment too short to measure
_NODE_NAMESPACE = "default"  # where the API server wants events of objects that have no namespace


class EventCalls(Protocol):
    """The calls of `hami.kube.cluster.Cluster` that a recorder makes."""

    def create_event(self, namespace: str, event: Mapping[str, Any], *, timeout: float | None = None) -> None: ...

    def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any], *,
                    timeout: float | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class _Key:
    """Events that agree in this are one event."""

    subject: PodRef | str
    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class _QueuedEvent:
    """An event still to be written; *count*: how often it has happened since it was written last."""

    first: str
    last: str
    count: int
    name: str
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class _Written:
    """An event as the API server has it; *at*: when, by the clock."""

    name: str
    first: str
    count: int
    at: float


class _Bucket:
    """Tokens that come at *rate* a second, *burst* of them at most."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = self._tokens = float(burst)
        self._counted_at = now

    def delay(self, now: float) -> float:
        """Seconds until there is one."""
        self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._rate)
        self._counted_at = now
        return (1 - self._tokens) / self._rate if self._tokens < 1 - _ROUNDING else 0.0

    def take(self) -> None:
        """One less."""
        self._tokens -= 1


class Recorder(Protocol):
    """Where events go. It never blocks and never raises."""

    def record(self, subject: PodRef | str, type: EventType, reason: str, message: str) -> None: ...


class EventRecorder:
    """Takes events from any thread and writes them in the one that calls `run`."""

    def __init__(self, cluster: EventCalls, component: str, *, clock: Callable[[], float] = time.monotonic,
                 now: Callable[[], datetime] = lambda: datetime.now(UTC), rate: float = 50.0, burst: int = 100,
                 normal_rate: float = 10.0, normal_burst: int = 20, capacity: int = 2000) -> None:
        """*component*: who says so, in every event. *rate*: events a second, *burst* of them at once after a rest.

        *normal_rate*, *normal_burst*: those of Normal events among them, which tell people what they see anyway.
        *capacity*: events that wait at most; then the oldest Normal one is dropped, a Warning only for another.
        """
        self._cluster = cluster
        self._component = component
        self._clock = clock
        self._now = now
        self._capacity = capacity
        self._turn = threading.Condition()  # guards the next four
        self._waiting: dict[EventType, OrderedDict[_Key, _QueuedEvent]] = {
            "Warning": OrderedDict(), "Normal": OrderedDict()}
        self._under_way = 0
        self._dropped = 0
        self._written_count = 0
        self._stopping = False
        self._any = _Bucket(rate, burst, clock())  # from here on the writing thread's alone
        self._normal = _Bucket(normal_rate, normal_burst, clock())
        self._written: OrderedDict[_Key, _Written] = OrderedDict()
        self._failures = 0
        self._resume_at = -math.inf
        self._complained: set[int | None] = set()

    @property
    def dropped(self) -> int:
        """Events that were not written and never will be; one that was merged counts as often as it happened."""
        return self._dropped

    @property
    def written(self) -> int:
        """Events that the API server has taken, counted as ``dropped`` counts."""
        return self._written_count

    def record(self, subject: PodRef | str, type: EventType, reason: str, message: str) -> None:
        """Say about a pod, or about the node of that name, what has happened. Never blocks, never raises.

        *reason*: one CamelCase word. *message* is cut at 1024 characters.
        """
        key = _Key(subject, type, reason, _cut(message))
        stamp = _stamp(self._now())
        with self._turn:
            queue = self._waiting[type]
            if (same := queue.get(key)) is not None:
                queue[key] = replace(same, last=stamp, count=same.count + 1)
                return
            if self._has_room_for(type):
                idle = not self._is_anything_waiting()
                queue[key] = _QueuedEvent(stamp, stamp, 1, _event_name(subject))
                if idle:  # else the writer knows already; waking it for each one would cost more than the event
                    self._turn.notify_all()

    def run(self) -> None:
        """Write what is recorded, until `stop`; never raises."""
        delay = 0.0
        while not self._rest(delay):
            delay = self.write_next()

    def stop(self) -> None:
        """End `run`; what still waits is lost (see `drain`)."""
        with self._turn:
            self._stopping = True
            self._turn.notify_all()

    def drain(self, timeout: float) -> bool:
        """Wait, at most *timeout* seconds, until everything recorded is written or dropped; whether it is."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._is_anything_waiting() and not self._under_way, timeout)

    def write_next(self) -> float:
        """Write one event if one waits and it is time; the seconds until the next may be, inf when none waits."""
        if (delay := self._delay()) > 0:
            return delay
        if (taken := self._take()) is None:
            return math.inf
        key, event = taken
        self._any.take()
        if key.type == "Normal":
            self._normal.take()
        try:
            self._write(key, event)
            self._failures = 0
        except ClusterError as error:
            self._fail(key, event, error)
        except Exception:  # the outermost loop: one event less
            log.exception("event cannot be written", extra={"subject": str(key.subject), "reason": key.reason})
            self._drop(event.count)
        finally:
            with self._turn:
                self._under_way -= 1
                self._turn.notify_all()
        return self._delay() if self._is_anything_waiting() else math.inf

    def _rest(self, seconds: float) -> bool:
        """Wait so long, or for something to write if for ever; whether it is time to end."""
        with self._turn:
            if math.isinf(seconds):
                self._turn.wait_for(lambda: self._stopping or self._is_anything_waiting())
            else:
                self._turn.wait_for(lambda: self._stopping, seconds)
            return self._stopping

    def _delay(self) -> float:
        """Seconds until the next event may be written: token buckets, and a pause after failures."""
        now = self._clock()
        delay = max(self._any.delay(now), self._resume_at - now)
        return delay if self._waiting["Warning"] else max(delay, self._normal.delay(now))

    def _take(self) -> tuple[_Key, _QueuedEvent] | None:
        """The oldest event, Warnings first; it counts as under way."""
        with self._turn:
            for queue in self._waiting.values():
                if queue:
                    self._under_way += 1
                    return queue.popitem(last=False)
        return None

    def _write(self, key: _Key, event: _QueuedEvent) -> None:
        self._send(key, event)
        self._written_count += event.count

    def _send(self, key: _Key, event: _QueuedEvent) -> None:
        before = self._written.get(key)
        if before is not None and self._clock() - before.at < MERGE_S:
            try:
                self._raise_count(key, event, before)
                return
            except NotFound:
                pass  # expired, or the namespace is gone: what follows tells
        namespace, body = self._render(key, event)
        try:
            self._cluster.create_event(namespace, body)
        except Conflict:
            if event.attempts == 0:
                raise
            # a former attempt did arrive, only its answer did not
        self._remember(key, _Written(event.name, event.first, event.count, self._clock()))

    def _raise_count(self, key: _Key, event: _QueuedEvent, before: _Written) -> None:
        count = before.count + event.count
        self._cluster.patch_event(_namespace(key.subject), before.name, {"count": count, "lastTimestamp": event.last})
        self._remember(key, replace(before, count=count, at=self._clock()))

    def _remember(self, key: _Key, written: _Written) -> None:
        self._written[key] = written
        self._written.move_to_end(key)
        if len(self._written) > self._capacity:
            self._written.popitem(last=False)

    def _fail(self, key: _Key, event: _QueuedEvent, error: ClusterError) -> None:
        """Try again later what may succeed later; drop what the server does not want."""
        passing = error.status is None or error.status == 429 or error.status >= 500
        if passing:
            self._resume_at = self._clock() + min(BACKOFF_LIMIT_S, BACKOFF_S * 2 ** min(self._failures, 10))
            self._failures += 1
        if error.status not in self._complained:
            self._complained.add(error.status)
            log.warning("events are not written", extra={
                "subject": str(key.subject), "reason": key.reason, "error": str(error), "retried": passing})
        if passing and (error.status is None or event.attempts + 1 < ATTEMPTS):
            self._put_back(key, event)
        else:
            self._drop(event.count)

    def _put_back(self, key: _Key, event: _QueuedEvent) -> None:
        """To the head of its queue, together with what has been recorded meanwhile."""
        with self._turn:
            queue = self._waiting[key.type]
            newer = queue.pop(key, None)
            queue[key] = replace(event, attempts=event.attempts + 1, last=newer.last if newer else event.last,
                                 count=event.count + (newer.count if newer else 0))
            queue.move_to_end(key, last=False)

    def _has_room_for(self, type: EventType) -> bool:
        """One more may wait; a lesser or older event makes room. The caller holds the lock."""
        if sum(map(len, self._waiting.values())) < self._capacity:
            return True
        for candidates in ("Normal", type):
            if queue := self._waiting[candidates]:
                self._dropped += queue.popitem(last=False)[1].count
                return True
        self._dropped += 1
        return False

    def _drop(self, count: int) -> None:
        with self._turn:
            self._dropped += count

    def _is_anything_waiting(self) -> bool:
        return any(self._waiting.values())

    def _render(self, key: _Key, event: _QueuedEvent) -> tuple[str, dict[str, Any]]:
        """Namespace and core/v1 Event."""
        namespace = _namespace(key.subject)
        return namespace, {
            "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": namespace, "name": event.name},
            "involvedObject": _involved(key.subject), "type": key.type, "reason": key.reason, "message": key.message,
            "source": {"component": self._component}, "reportingComponent": self._component,
            "firstTimestamp": event.first, "lastTimestamp": event.last, "count": event.count,
        }


def _involved(subject: PodRef | str) -> dict[str, str]:
    """What the event is about. A node's uid is its name there, as the kubelet has it and kubectl looks for it."""
    if isinstance(subject, str):
        return {"apiVersion": "v1", "kind": "Node", "name": subject, "uid": subject}
    return {"apiVersion": "v1", "kind": "Pod", "namespace": subject.namespace, "name": subject.name, "uid": subject.uid}


def _namespace(subject: PodRef | str) -> str:
    return _NODE_NAMESPACE if isinstance(subject, str) else subject.namespace


def _event_name(subject: PodRef | str) -> str:
    """A name that no other event has: the subject's, cut where it must be, and 16 hexadecimal digits."""
    suffix = f".{uuid.uuid4().hex[:16]}"
    name = subject if isinstance(subject, str) else subject.name
    return name[:_NAME_LIMIT - len(suffix)].rstrip("-.") + suffix


def _cut(message: str) -> str:
    return message if len(message) <= MESSAGE_LIMIT else message[:MESSAGE_LIMIT - 1] + "…"


def _stamp(moment: datetime) -> str:
    """A Time of the Kubernetes API: RFC 3339 in whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
