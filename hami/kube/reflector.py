"""Lists and watches one resource and passes each object to a sink. The caches are sinks.

Each object is decoded by itself, so one that cannot be read does not hide the others. The reflector keeps no copy of
the objects. A watch that is late, drops an event or repeats one makes the sink late; the next list corrects it.

When etcd is restored from a backup, resource versions go back. A watch that continues from a later version shows
nothing, and once versions have grown again, they do not show the restore. But API servers are stopped during a restore.
So a lost connection is followed by a list, and the sink gets the time at which the list began. What the list shows
replaces what was seen before that time, whatever the versions.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from hami.codec.documents import decode
from hami.codec.objects import parse_resource_version
from hami.errors import ClusterError, Gone, MalformedInput
from hami.kube.api import API_STATUS, Api, Stream
from hami.kube.pages import ObjectMeta, parse_meta, parse_page, read_pages
from hami.kube.retry import WATCH_WAIT, Backoff
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)

T = TypeVar("T")
In = TypeVar("In", contravariant=True)

WATCH_S = 300.0
"""Seconds after which the server ends a watch, plus up to a fifth at random."""
SILENCE_S = 90.0
"""Seconds without data after which the server is considered hung. It sends a bookmark about every 60 s."""
SHORT_S = 1.0
"""A watch that ends sooner and without an event is a failure, so that it is not repeated without a pause."""
STOP_S = 0.5
"""Seconds between two looks whether to stop, while another list is awaited."""


class Sink(Protocol[In]):
    """Receives the objects, in the reflector's thread. Calls may be repeated; what they return is ignored."""

    def upsert(self, item: In, as_of: float = -math.inf) -> object:
        """Takes *item*, which exists in this state, unless a later one has been seen. *as_of*: when the list began that
        shows it (by the clock): it replaces what was seen before that time, whatever the versions."""

    def remove(self, item: In) -> object:
        """Takes *item*, which has been deleted, in its last state."""

    def prune(self, seen: set[str], started: float) -> object:
        """Ends a list. An object whose key is not in *seen* did not exist at *started* (by the clock) or has gone
        since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedResource(Generic[T]):
    """A collection of the API server. *name*: in log messages. *path*: such as ``/api/v1/pods``. *query*: selectors.

    *parse* may raise MalformedInput. *key* must equal ``ObjectMeta.key``, which is used for an object that cannot be
    parsed: otherwise a list would prune it.
    """

    name: str
    path: str
    parse: Callable[[bytes], T]
    key: Callable[[T], str]
    query: Mapping[str, str] = field(default_factory=dict)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_EVENT = msgspec.json.Decoder(_Event)


class _Delivery(Generic[T]):
    """Decodes objects and passes them to a sink. Logs once that an object cannot be read."""

    def __init__(self, resource: WatchedResource[T], sink: Sink[T]) -> None:
        self._resource = resource
        self._sink = sink
        self._unreadable = OncePerKey()

    def listed(self, raw: msgspec.Raw, started: float) -> str:
        """Passes on an object of a list that began at *started*. Returns its key."""
        try:
            item = self._resource.parse(bytes(raw))
        except MalformedInput as error:
            return self._report(parse_meta(raw), error)
        self._sink.upsert(item, started)
        return self._resource.key(item)

    def end_list(self, seen: set[str], started: float) -> None:
        """Passes on the end of a list, of which *seen* are the keys."""
        self._sink.prune(seen, started)
        self._unreadable.keep_only(seen)

    def event(self, line: bytes) -> msgspec.Raw:
        """Passes on one event of a watch and returns its object. Raises: Gone or MalformedInput if a list is needed."""
        name = self._resource.name
        event = decode(f"event of {name}", _EVENT, line)
        if event.type == "ERROR":  # its object is a Status
            status = decode(f"error in the watch of {name}", API_STATUS, event.object)
            raise Gone(f"watch of {name}: {status.message}", status.code)
        if event.type != "BOOKMARK":  # its object has only a version
            self._change(event.type, event.object)
        return event.object

    def _change(self, kind: str, raw: msgspec.Raw) -> None:
        try:
            item = self._resource.parse(bytes(raw))
        except MalformedInput as error:
            meta = parse_meta(raw)
            if not meta.name:
                raise
            self._report(meta, error)
            if kind == "DELETED":  # the sink needs an item for `remove`, but not for `prune`
                raise Gone(
                    f"{self._resource.name} {meta.path} was deleted in a state that cannot be read"
                ) from error
            return
        if kind == "DELETED":
            self._unreadable.clear(self._resource.key(item))
            self._sink.remove(item)
        elif kind in ("ADDED", "MODIFIED"):
            self._sink.upsert(item)

    def _report(self, meta: ObjectMeta, error: MalformedInput) -> str:
        if self._unreadable.is_new(meta.key):
            log.error(
                "object cannot be read",
                extra={"resource": self._resource.name, "object": meta.path, "error": str(error)},
            )
        return meta.key


class Reflector(Task, Generic[T]):
    """Keeps a sink up to date with one resource of the API server."""

    def __init__(
        self,
        api: Api,
        resource: WatchedResource[T],
        sink: Sink[T],
        *,
        clock: Callable[[], float] = time.monotonic,
        after: Reflector[Any] | None = None,
        resumes: bool = False,
    ) -> None:
        """*after*: a reflector whose first list must be complete before this one begins. *resumes*: a lost connection
        is not followed by a list, for a sink that a restore of etcd does no harm."""
        super().__init__(resource.name)
        self.synced = threading.Event()
        """Set once the first complete list has been passed on."""
        self._api = api
        self._resource = resource
        self._sink = sink
        self._delivery = _Delivery(resource, sink)
        self._clock = clock
        self._after = after
        self._resumes = resumes
        self._version = ""  # to watch from; empty: a list is due
        self._last_contact = -math.inf
        self._backoff = Backoff(WATCH_WAIT)
        self._changed = threading.Condition()  # guards the four below; not held across I/O
        self._stream: Stream | None = None
        self._is_connected = False
        self._lists_requested = 0  # by callers of relist
        self._lists_completed = 0  # of those requested
        self._last_error = "the reflector does not run"

    def step(self) -> float:
        """Lists if a list is due, then watches until the watch ends. Returns the seconds to wait after a failure."""
        if self._after is not None and not self._after.synced.wait(STOP_S):
            return 0.0
        try:
            if not self._version or self._is_list_requested():
                self._list()
            else:
                self._check_version()
            if not self._is_interrupted():
                self._watch()
            return 0.0
        except Gone as error:
            self._version = ""
            return self._back_off(error, logging.INFO)
        except (ClusterError, MalformedInput) as error:
            if self._needs_list_after(error):
                self._version = ""
            return self._back_off(error, logging.WARNING)
        except Exception as error:  # the sink may have missed an object
            log.exception("reflector failed, lists again", extra={"resource": self.name})
            self._version = ""
            return self._back_off(error, logging.DEBUG)

    def _needs_list_after(self, error: ClusterError | MalformedInput) -> bool:
        """Reports whether an object cannot be read, or the connection was lost: etcd may have been restored then."""
        if isinstance(error, MalformedInput):
            return True
        return error.status is None and not self._resumes

    def wake(self) -> None:
        """Ends a wait or the watch, and makes the callers of `relist` check again."""
        super().wake()
        with self._changed:
            self._changed.notify_all()
            if self._stream is not None:
                self._stream.close()

    @property
    def is_connected(self) -> bool:
        """Whether a watch is open, so that what changes is known at once."""
        return self._is_connected

    def age(self) -> float:
        """Returns the seconds since the last page, event, bookmark or regular end of a watch; inf before the first."""
        return self._clock() - self._last_contact

    def relist(self, timeout: float) -> None:
        """Requests a consistent list and returns once all of it has been passed to the sink.

        Must not be called by the sink. Raises: ClusterError after *timeout* seconds, or when the reflector stops.
        """
        with self._changed:
            self._lists_requested += 1
            number = self._lists_requested
            self.wake()
            done = self._changed.wait_for(
                lambda: self._lists_completed >= number or self.is_stopping(), timeout
            )
            if self._lists_completed < number:
                reason = (
                    f"no answer within {timeout:g} s: {self._last_error}" if not done else "stopped"
                )
                raise ClusterError(f"no list of {self.name}: {reason}")

    def _is_list_requested(self) -> bool:
        return self._lists_completed < self._lists_requested

    def _is_interrupted(self) -> bool:
        """Reports whether the watch must end: the reflector stops, or a list is requested."""
        return self.is_stopping() or self._is_list_requested()

    def _back_off(self, error: Exception, level: int) -> float:
        """Logs *error*. Returns the seconds until the next attempt."""
        with self._changed:
            self._last_error = str(error) or type(error).__name__
        delay = self._backoff.next(error)
        log.log(
            level,
            "watch interrupted",
            extra={"resource": self.name, "error": str(error), "retry_s": delay},
        )
        return delay

    def _list(self) -> None:
        """Passes on all objects, page by page, from one consistent read; then prunes the others.

        Source: Kubernetes API concepts: without resourceVersion the most recent data; pages of one token agree.
        """
        with self._changed:
            number = self._lists_requested
        self._version = ""
        started, seen, version = self._clock(), set[str](), ""
        resource = self._resource
        for page in self.each(
            read_pages(self._api.request, resource.name, resource.path, resource.query)
        ):
            self._last_contact = self._clock()
            version = page.metadata.resource_version
            for raw in page.items:
                if self.is_stopping():
                    return
                seen.add(self._delivery.listed(raw, started))
            time.sleep(0)  # lets other threads run: a list takes long compared with a filter
        self._delivery.end_list(seen, started)
        self._version = version
        with self._changed:
            self._lists_completed = max(self._lists_completed, number)
            self._changed.notify_all()
        if not self.synced.is_set():
            log.info("listed", extra={"resource": self.name, "objects": len(seen)})
        self.synced.set()

    def _check_version(self) -> None:
        """Raises: Gone if the API server is at an earlier version than the watch; ClusterError; MalformedInput."""
        # without selectors, which could make etcd read many objects to find one
        data = self._api.request("GET", self._resource.path, query={"limit": "1"})
        version = parse_page(self.name, data).metadata.resource_version
        if parse_resource_version(version) < parse_resource_version(self._version):
            raise Gone(
                f"{self.name} are at version {version}, before {self._version}: etcd has been restored"
            )

    def _watch(self) -> None:
        """Passes on the changes after ``_version`` until the watch ends. A regular end does not cause a list."""
        query = {
            **self._resource.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(WATCH_S * random.uniform(1.0, 1.2))),
        }
        opened, has_events = self._clock(), False
        stream = self._api.stream(self._resource.path, query, read_timeout=SILENCE_S)
        with self._changed:
            self._stream = stream
        try:
            if not self._is_interrupted():
                has_events = self._read_events(stream)
        except ClusterError as error:
            if error.status == 400:  # only the version varies, so the server rejects the version
                raise Gone(str(error), error.status) from error
            raise
        finally:
            self._is_connected = False
            with self._changed:
                self._stream = None
        if self._is_interrupted():
            return
        self._last_contact = self._clock()
        if not has_events and self._last_contact - opened < SHORT_S:
            raise ClusterError("the watch ended at once, without an event")

    def _read_events(self, stream: Stream) -> bool:
        """Passes on the events of *stream*. Reports whether there was one."""
        latest: msgspec.Raw | None = None  # the object of the last event, which has a later version
        try:
            with stream:
                self._is_connected = True
                self._last_contact = self._clock()
                self.beat(SILENCE_S)
                for line in stream:
                    self.beat(SILENCE_S)
                    self._last_contact = self._clock()
                    event = self._delivery.event(line)
                    if latest is None:
                        self._backoff.reset()
                    latest = event
                    if self._is_interrupted():
                        break
            return latest is not None
        finally:
            if latest is not None:
                self._version = parse_meta(latest).resource_version or self._version
