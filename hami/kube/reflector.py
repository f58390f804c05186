"""List and watch of one resource, handed over object by object: what the rest knows of the cluster comes this way.

It reads raw bytes and decodes each object by itself, so one that cannot be read never hides the others. It keeps no
copy of anything: whoever takes the objects (the sink) does. It makes no promise on time: a watch that is late, drops an
event or replays one makes the sink late, and the next list puts it right.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from hami.errors import ClusterError, Gone, MalformedInput

__all__ = ["Lines", "ObjectMeta", "Reflector", "Sink", "Source"]

log = logging.getLogger(__name__)

T = TypeVar("T")
In = TypeVar("In", contravariant=True)

WATCH_S = 300.0
"""Seconds after which the server ends a watch by itself, up to a fifth more by chance."""
SILENCE_S = 90.0
"""Seconds of silence after which the server counts as hung; it sends a bookmark about every 60."""
SHORT_S = 1.0
"""A watch that ends this soon without a word is a failure, lest a server that hangs up at once is asked for ever."""
BACKOFF_S = 0.2
BACKOFF_LIMIT_S = 10.0


class ObjectMeta(msgspec.Struct, rename="camel", frozen=True):
    """What every object's metadata says, so that one which cannot be read otherwise still has a name."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""

    @property
    def path(self) -> str:
        """``namespace/name``, or the bare name of an object without namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def key(self) -> str:
        """The uid, or the name of an object without namespace: as HAMi keeps pods and quotas, and nodes."""
        return self.uid if self.namespace else self.name


class Sink(Protocol[In]):
    """Takes the objects, in the one thread that runs the reflector. It must bear repetition.

    If it has a method ``unreadable(key: str, error: MalformedInput) -> None``, that is called for each version of an
    object that cannot be read, with the key that ``raw_key`` gives it.
    """

    def upsert(self, item: In) -> None:
        """*item* exists, in this state."""

    def remove(self, item: In) -> None:
        """*item*, here in its last state, has been deleted."""

    def prune(self, seen: set[str], started: float) -> None:
        """A list is complete: what is not in *seen* did not exist any more at *started* (by the clock) or later."""


class Lines(Protocol):
    """A watch, see `hami.kube.api.Stream`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None:
        """End it promptly, from any thread."""


class Source(Protocol):
    """The two calls of `hami.kube.api.Api` that a reflector makes."""

    def request(self, method: str, path: str, *, query: Mapping[str, str] | None = None) -> bytes: ...

    def stream(self, path: str, query: Mapping[str, str], *, read_timeout: float) -> Lines: ...


class _Object(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _WatchStatus(msgspec.Struct):
    code: int | None = None
    message: str | None = None


_META = msgspec.json.Decoder(_Object)
_PAGE = msgspec.json.Decoder(_Page)
_EVENT = msgspec.json.Decoder(_Event)
_STATUS = msgspec.json.Decoder(_WatchStatus)


class Reflector(Generic[T]):
    """Keeps a sink up to date with one resource of the API server, in the thread that calls `run`."""

    def __init__(self, api: Source, path: str, parse: Callable[[bytes], T], key: Callable[[T], str], sink: Sink[T], *,
                 name: str, clock: Callable[[], float] = time.monotonic,
                 wait: Callable[[float], object] | None = None, query: Mapping[str, str] | None = None,
                 page: int = 500, raw_key: Callable[[ObjectMeta], str] = lambda meta: meta.key) -> None:
        """*path*: of the collection, such as ``/api/v1/pods``; *query*: selectors for list and watch.

        *key* names an item in ``prune``; *raw_key* must give the same key from metadata alone, for objects that *parse*
        refuses with MalformedInput: else a list would prune what exists. *name* stands in log lines.
        *wait*: sleeps that many seconds before the next attempt; the default is woken by `stop` and `relist`.
        *page*: objects a list answer holds at most.
        """
        self.synced = threading.Event()
        """Set once the first complete list has been handed over."""
        self._api = api
        self._path = path
        self._parse = parse
        self._key = key
        self._raw_key = raw_key
        self._sink = sink
        self._unreadable: Callable[[str, MalformedInput], object] = getattr(sink, "unreadable", lambda key, error: None)
        self._name = name
        self._clock = clock
        self._wait = wait
        self._query = dict(query or {})
        self._page = page
        self._version = ""  # to watch from; empty: a list is due
        self._latest: msgspec.Raw | None = None  # the object of the event that was taken last: it has a later version
        self._heard = -math.inf
        self._failures = 0
        self._complained: set[str] = set()  # keys of unreadable objects that the log has named
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._turn = threading.Condition()  # guards the four below
        self._stream: Lines | None = None
        self._asked = 0  # lists that callers of relist have asked for
        self._listed = 0  # the latest of them that has been handed over
        self._last_error = "the reflector does not run"

    def run(self) -> None:
        """List, then watch, until `stop`; never raises."""
        while not self._stopping.is_set():
            try:
                self._cycle()
            except Gone as error:
                self._version = ""
                self._retreat(error, logging.INFO)
            except ClusterError as error:
                self._retreat(error, logging.WARNING)
            except Exception as error:  # the sink's, or ours: either way what the sink knows is in doubt
                log.exception("reflector failed, lists again", extra={"resource": self._name})
                self._version = ""
                self._retreat(error, logging.DEBUG)

    def stop(self) -> None:
        """End `run` promptly, from any thread."""
        self._stopping.set()
        self._interrupt()
        with self._turn:
            self._turn.notify_all()

    def age(self) -> float:
        """Seconds since the server last said anything: a page, an event, a bookmark, a clean end; inf before that."""
        return self._clock() - self._heard

    def relist(self, timeout: float) -> None:
        """Have a consistent list asked for now, and return once all of it has been handed to the sink.

        Never call it from the sink. Raises: ClusterError after *timeout* seconds, or when the reflector stops.
        """
        with self._turn:
            self._asked += 1
            ticket = self._asked
        self._interrupt()
        with self._turn:
            done = self._turn.wait_for(lambda: self._listed >= ticket or self._stopping.is_set(), timeout)
            if self._listed < ticket:
                reason = f"no answer within {timeout:g} s: {self._last_error}" if not done else "stopped"
                raise ClusterError(f"no list of {self._name}: {reason}")

    def _interrupt(self) -> None:
        """Bring the running thread back to its loop."""
        self._wake.set()
        with self._turn:
            stream = self._stream
        if stream is not None:
            stream.close()

    def _cycle(self) -> None:
        """One list if one is due, then one watch."""
        self._wake.clear()
        if not self._version or self._listed < self._asked:
            self._list()
        if not self._stopping.is_set() and self._version and self._listed >= self._asked:
            self._watch()

    def _retreat(self, error: Exception, level: int) -> None:
        """Wait before the next attempt: longer each time, by chance, so that replicas do not come back together."""
        with self._turn:
            self._last_error = str(error) or type(error).__name__
        delay = min(BACKOFF_LIMIT_S, BACKOFF_S * 2 ** min(self._failures, 10)) * random.uniform(0.5, 1.0)
        self._failures += 1
        log.log(level, "watch interrupted", extra={"resource": self._name, "error": str(error), "retry_s": delay})
        if self._stopping.is_set() or self._wake.is_set():
            return
        if self._wait is not None:
            self._wait(delay)
        else:
            self._wake.wait(delay)

    def _list(self) -> None:
        """Hand over all objects, page by page, from one consistent read; then prune what is not among them.

        Source: Kubernetes API concepts: without resourceVersion the most recent data; pages of one token agree.
        """
        with self._turn:
            ticket = self._asked
        self._version = ""
        started, seen, token = self._clock(), set[str](), ""
        while not self._stopping.is_set():
            page = self._ask_page(token)
            for raw in page.items or ():
                if self._stopping.is_set():
                    return
                self._take_listed(raw, seen)
            if not (token := page.metadata.continue_token):
                self._complete(seen, started, page.metadata.resource_version, ticket)
                return
            time.sleep(0)  # other threads first: a list is long, a filter short

    def _ask_page(self, token: str) -> _Page:
        query = self._query | {"limit": str(self._page)} | ({"continue": token} if token else {})
        data = self._api.request("GET", self._path, query=query)
        self._heard = self._clock()
        try:
            return _PAGE.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ClusterError(f"list of {self._name} cannot be read: {error}") from error

    def _take_listed(self, raw: msgspec.Raw, seen: set[str]) -> None:
        try:
            item = self._parse(bytes(raw))
        except MalformedInput as error:
            seen.add(self._report(_meta(raw), error))
            return
        seen.add(self._key(item))
        self._sink.upsert(item)

    def _complete(self, seen: set[str], started: float, version: str, ticket: int) -> None:
        self._sink.prune(seen, started)
        self._complained &= seen
        self._version = version
        with self._turn:
            self._listed = max(self._listed, ticket)
            self._turn.notify_all()
        if not self.synced.is_set():
            log.info("listed", extra={"resource": self._name, "objects": len(seen)})
        self.synced.set()

    def _watch(self) -> None:
        """Hand over what changes after ``_version``, until the watch ends. A clean end is no reason to list again."""
        seconds = int(WATCH_S * random.uniform(1.0, 1.2))
        query = self._query | {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": self._version,
                               "timeoutSeconds": str(seconds)}
        silent, opened = True, self._clock()
        stream = self._api.stream(self._path, query, read_timeout=SILENCE_S)
        with self._turn:
            self._stream = stream
        try:
            if self._is_called_back():
                return
            with stream:
                self._heard = self._clock()
                for line in stream:
                    self._heard = self._clock()
                    self._take_event(line)
                    silent, self._failures = False, 0
                    if self._is_called_back():
                        return
        except ClusterError as error:
            if error.status == 400:  # what we ask is fixed but for the version: the server does not like that one
                raise Gone(str(error), error.status) from error
            raise
        finally:
            if self._latest is not None:
                self._version = _meta(self._latest).resource_version or self._version
                self._latest = None
            with self._turn:
                self._stream = None
        if not self._is_called_back():
            self._heard = self._clock()
            if silent and self._heard - opened < SHORT_S:
                raise ClusterError("the watch ended at once, without a word")

    def _is_called_back(self) -> bool:
        """Somebody wants the thread for something else than this watch."""
        return self._stopping.is_set() or self._listed < self._asked

    def _take_event(self, line: bytes) -> None:
        """Carry out one line of the watch. Raises: Gone when only a list can help."""
        try:
            event = _EVENT.decode(line)
            if event.type == "ERROR":  # its object is a Status
                status = _STATUS.decode(event.object)
                raise Gone(f"watch of {self._name}: {status.message}", status.code)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Gone(f"event of {self._name} cannot be read: {error}: {line[:200]!r}") from error
        if event.type != "BOOKMARK":  # its object has nothing but a version
            self._take_change(event.type, event.object)
        self._latest = event.object

    def _take_change(self, kind: str, raw: msgspec.Raw) -> None:
        try:
            item = self._parse(bytes(raw))
        except MalformedInput as error:
            meta = _meta(raw)
            if not meta.name:
                raise Gone(f"event of {self._name} cannot be read: {error}") from error
            self._report(meta, error)
            if kind == "DELETED":  # the sink can be told only by a list without it
                raise Gone(f"{self._name} {meta.path} was deleted in a state that cannot be read") from error
            return
        if kind == "DELETED":
            self._complained.discard(self._key(item))
            self._sink.remove(item)
        elif kind in ("ADDED", "MODIFIED"):
            self._sink.upsert(item)

    def _report(self, meta: ObjectMeta, error: MalformedInput) -> str:
        """Say that an object cannot be read: to the sink each time, to the log once. Its key."""
        key = self._raw_key(meta)
        if key not in self._complained:
            self._complained.add(key)
            log.error("object cannot be read", extra={"resource": self._name, "object": meta.path, "error": str(error)})
        self._unreadable(key, error)
        return key


def _meta(raw: msgspec.Raw) -> ObjectMeta:
    try:
        return _META.decode(raw).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ObjectMeta()
