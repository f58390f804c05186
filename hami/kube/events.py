"""Kubernetes events, written in the background: merged, bounded and rate-limited, so that they do not delay pods.

Recording never blocks and never fails; an event that cannot be written is dropped and counted.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from hami.codec.times import render_time
from hami.errors import ClusterError, Conflict, NotFound
from hami.kube.cluster import Cluster
from hami.kube.event_queue import EventKey, EventQueue, EventType, MergedEvent
from hami.kube.retry import EVENT_WAIT, Backoff
from hami.model import NamespaceRef, OwnerRef, PodRef, QuotaRef
from hami.runtime.clock import utc_now
from hami.runtime.once import OncePerKey
from hami.runtime.shares import Shares
from hami.runtime.tasks import Task
from hami.runtime.token_bucket import TokenBucket

log = logging.getLogger(__name__)

MESSAGE_LIMIT = 1024
MERGE_S = 600.0
"""Seconds for which a repeated event increases the count of the event written before."""
REPEAT_S = 60.0
"""Seconds after which a repeated event is written again, or earlier when its count has doubled: a pod that no node fits
is tried every few seconds."""
ATTEMPTS = 5
"""Attempts to write an event to a server that answers with errors; without an answer, attempts do not end."""
_KINDS = {QuotaRef: "ResourceQuota", NamespaceRef: "Namespace"}
_NAME_LIMIT = 253
_NODE_NAMESPACE = "default"  # of events about objects that have no namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLimits:
    """*rate*: events a second; *burst*: at once after a pause. *normal_rate*, *normal_burst*: those for events of type
    Normal among them. *capacity*: events that wait; then the namespace that has most of them loses its oldest Normal
    event, or else its oldest Warning."""

    rate: float = 50.0
    burst: int = 100
    normal_rate: float = 10.0
    normal_burst: int = 20
    capacity: int = 2000


class EventRecorder(Task):
    """Accepts events from any thread and writes them in the task's own, until `stop`: then waiting events are lost (see
    `drain`)."""

    def __init__(
        self,
        cluster: Cluster,
        component: str,
        limits: EventLimits = EventLimits(),
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """*component*: the source of the events."""
        super().__init__("events")
        self._cluster = cluster
        self._component = component
        self._clock = clock
        self._now = now
        self.dropped = 0
        """The number of events that were dropped. A merged event counts as often as it occurred."""
        self.written = 0
        """The number of events that were written, counted like `dropped`."""
        # guards `dropped` and the next three; not held across I/O
        self._changed = threading.Condition()
        self._waiting = EventQueue(limits.capacity)
        self._is_writing = False
        self._recent = Shares[EventKey, MergedEvent](limits.capacity)  # as last written
        self._all_tokens = TokenBucket(
            limits.rate, limits.burst, clock()
        )  # from here on: the writing thread's
        self._normal_tokens = TokenBucket(limits.normal_rate, limits.normal_burst, clock())
        self._backoff = Backoff(EVENT_WAIT)
        self._resume_at = -math.inf
        self._reported = OncePerKey()

    def record(
        self,
        subject: PodRef | str,
        type: EventType,
        reason: str,
        message: str,
        *,
        replaces: bool = False,
    ) -> None:
        """Records an event about a pod, its controller, a quota, a namespace, or a node by its name.

        Never blocks, never raises.

        *reason*: one CamelCase word. *message* is cut at 1024 characters. *replaces*: there is one event about the
        subject with this reason, and the latest message replaces the one before: what is decided again and again
        differs in every number, and would else fill the list of a pod's events.
        """
        if len(message) > MESSAGE_LIMIT:
            message = message[: MESSAGE_LIMIT - 1] + "…"
        key = EventKey(subject, type, reason, "" if replaces else message)
        now = self._now()
        with self._changed:
            same, written = self._waiting.get(key), self._recent.get(key.namespace, key)
            if same is not None:
                same.merge(MergedEvent(key, message, first=now, last=now))
            elif written is not None and self._need_not_be_written(written, message):
                written.repeat()
            else:
                self._add(MergedEvent(key, message, first=now, last=now), written)

    def drain(self, timeout: float) -> bool:
        """Waits at most *timeout* seconds until all events are written or dropped. Reports whether they are."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._is_writing, timeout
            )

    def step(self) -> float:
        """Writes one event if one is due. Returns the seconds until the next is due; inf if none waits."""
        if (delay := self._delay()) > 0:
            return delay
        is_normal_due = self._normal_tokens.delay(self._clock()) == 0
        with self._changed:
            event = self._waiting.take(is_normal_due=is_normal_due)
            if event is None:
                return self._normal_tokens.delay(self._clock()) if self._waiting else math.inf
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
            log.exception(
                "event cannot be written",
                extra={"subject": str(event.key.subject), "reason": event.key.reason},
            )
            self._drop(event)
        finally:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
        return self._delay() if self._waiting else math.inf

    def _need_not_be_written(self, written: MergedEvent, message: str) -> bool:
        """Reports whether *written* says enough of its repetition with *message*."""
        if message != written.message:
            return False
        is_recent = self._clock() - written.written_at < REPEAT_S
        return is_recent and written.repeated + 1 < written.count

    def _delay(self) -> float:
        """Returns the seconds until the next event may be written, because of rates and failures."""
        now = self._clock()
        delay = max(self._all_tokens.delay(now), self._resume_at - now)
        with self._changed:
            has_warnings = self._waiting.has_warnings
        return delay if has_warnings else max(delay, self._normal_tokens.delay(now))

    def _write(self, event: MergedEvent) -> None:
        if not event.name:
            event.give_name(_event_name(event.key.subject))
        body = self._render(event)
        namespace = body["metadata"]["namespace"]
        before = self._recent.get(event.key.namespace, event.key)
        if before is not None and self._clock() - before.written_at < MERGE_S:
            count = before.count + event.count
            patch = {"count": count, "lastTimestamp": render_time(event.last)}
            if event.message != before.message:
                patch["message"] = event.message
            try:
                self._cluster.patch_event(namespace, before.name, patch)
                self._remember(replace(before, count=count, message=event.message), event.count)
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

    def _remember(self, event: MergedEvent, count: int) -> None:
        self.written += count
        key = event.key
        with self._changed:
            earlier = self._recent.get(
                key.namespace, key
            )  # may have been repeated while this one was written
            repeated = earlier.repeated if earlier is not None else 0
            forgotten = self._recent.put(
                key.namespace, key, replace(event, written_at=self._clock(), repeated=repeated)
            )
            if forgotten is not None:
                self.dropped += forgotten.repeated

    def _fail(self, event: MergedEvent, error: ClusterError) -> None:
        """Retries the event later after a temporary error; drops it after others."""
        if error.is_temporary:
            self._resume_at = self._clock() + self._backoff.next(error)
        if self._reported.is_new(error.status):
            log.warning(
                "events are not written",
                extra={
                    "subject": str(event.key.subject),
                    "reason": event.key.reason,
                    "error": str(error),
                    "retried": error.is_temporary,
                },
            )
        event.fail()
        if error.is_temporary and (error.status is None or event.attempts < ATTEMPTS):
            with self._changed:
                self._waiting.put_back(event)
        else:
            self._drop(event)

    def _add(self, event: MergedEvent, written: MergedEvent | None) -> None:
        """Adds an event that does not wait yet. *written*: an equal one that was written. The caller holds the lock."""
        if written is not None:
            event.add_repeated(written)
        is_idle = not self._waiting
        dropped = self._waiting.add(event)
        if dropped is not None:
            self.dropped += dropped.count
        if (
            is_idle
        ):  # otherwise the writer is awake; waking it for each event would cost more than the event
            self.wake()

    def _drop(self, event: MergedEvent) -> None:
        with self._changed:
            self.dropped += event.count

    def _render(self, event: MergedEvent) -> dict[str, Any]:
        """Returns the core/v1 Event. A node's uid is its name, as in the kubelet's events; kubectl expects it."""
        subject = event.key.subject
        if isinstance(subject, str):
            namespace, involved = _NODE_NAMESPACE, {"kind": "Node", "name": subject, "uid": subject}
        else:
            namespace = subject.namespace
            involved = {
                "kind": _KINDS.get(type(subject), "Pod"),
                "namespace": namespace,
                "name": subject.name,
                "uid": subject.uid,
            }
        if isinstance(subject, OwnerRef):
            involved |= {"kind": subject.kind, "apiVersion": subject.api_version}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": event.name},
            "involvedObject": {"apiVersion": "v1", **involved},
            "type": event.key.type,
            "reason": event.key.reason,
            "message": event.message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": render_time(event.first),
            "lastTimestamp": render_time(event.last),
            "count": event.count,
        }


def _event_name(subject: PodRef | str) -> str:
    """Returns a unique name: the subject's, shortened if necessary, and 16 hexadecimal digits."""
    suffix = f".{uuid.uuid4().hex[:16]}"
    name = subject if isinstance(subject, str) else subject.name
    return name[: _NAME_LIMIT - len(suffix)].rstrip("-.") + suffix
