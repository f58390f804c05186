"""The events that wait to be written: merged, bounded, and those of all namespaces in turn."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from hami.model import PodRef

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class EventKey:
    """Events with equal keys are merged. *message*: empty if the latest message replaces the one before."""

    subject: PodRef | str
    type: EventType
    reason: str
    message: str

    @property
    def namespace(self) -> str:
        """The namespace of the pod; empty for a node."""
        if isinstance(self.subject, str):
            return ""
        return self.subject.namespace


@dataclass(slots=True)
class MergedEvent:
    """Equal events, merged. *message*: the latest. *count*: those that are not written yet, or, in a written one, all
    that it tells of. *repeated*: those since then. *written_at*: by the clock."""

    key: EventKey
    message: str
    first: datetime
    last: datetime
    name: str = ""
    count: int = 1
    repeated: int = 0
    attempts: int = 0
    written_at: float = 0.0

    def merge(self, newer: MergedEvent) -> None:
        """Adds an equal event that occurred later."""
        self.message = newer.message
        self.last = newer.last
        self.count += newer.count

    def repeat(self) -> None:
        """Records an equal event, which is not written."""
        self.repeated += 1

    def add_repeated(self, written: MergedEvent) -> None:
        """Takes over what has repeated *written* since it was written."""
        self.count += written.repeated
        written.repeated = 0

    def give_name(self, name: str) -> None:
        """Records the name of its object."""
        self.name = name

    def fail(self) -> None:
        """Records an attempt to write it that has failed."""
        self.attempts += 1


class _NamespaceQueue:
    """The events of one namespace, Warnings before Normal ones."""

    def __init__(self) -> None:
        self._by_type: dict[EventType, OrderedDict[EventKey, MergedEvent]] = {
            "Warning": OrderedDict(),
            "Normal": OrderedDict(),
        }

    def __len__(self) -> int:
        return sum(map(len, self._by_type.values()))

    def of(self, type: EventType) -> OrderedDict[EventKey, MergedEvent]:
        """Returns the events of that type, oldest first."""
        return self._by_type[type]

    def take(self, *, is_normal_due: bool) -> MergedEvent | None:
        """Removes and returns the event to write next; ``None`` if none may be written now."""
        for type, events in self._by_type.items():
            if events and (type == "Warning" or is_normal_due):
                return events.popitem(last=False)[1]
        return None

    def drop(self) -> MergedEvent:
        """Removes and returns the oldest Normal event, or else the oldest Warning."""
        events = self._by_type["Normal"] or self._by_type["Warning"]
        return events.popitem(last=False)[1]


class EventQueue:
    """Events by namespace, at most *capacity*. Not thread-safe.

    The namespaces take turns, and if there are too many events, the namespace that has most of them loses one: so the
    events of one tenant neither delay nor push out those of others.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # those next in turn first
        self._namespaces: OrderedDict[str, _NamespaceQueue] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_warnings(self) -> bool:
        """Whether a Warning waits."""
        return any(queue.of("Warning") for queue in self._namespaces.values())

    def get(self, key: EventKey) -> MergedEvent | None:
        """Returns the event with that key, if it waits."""
        queue = self._namespaces.get(key.namespace)
        if queue is None:
            return None
        return queue.of(key.type).get(key)

    def add(self, event: MergedEvent) -> MergedEvent | None:
        """Adds *event* behind the others of its namespace. Returns the event that is dropped for it, which it may be
        itself, if one is."""
        self._queue(event.key)[event.key] = event
        self._count += 1
        if self._count <= self._capacity:
            return None
        largest = max(self._namespaces, key=lambda namespace: len(self._namespaces[namespace]))
        dropped = self._namespaces[largest].drop()
        self._removed_from(largest)
        return dropped

    def put_back(self, event: MergedEvent) -> None:
        """Returns *event* to the head of its namespace, merged with an equal one that has come meanwhile."""
        events = self._queue(event.key)
        newer = events.get(event.key)
        if newer is None:
            self._count += 1
        else:
            event.merge(newer)
        events[event.key] = event
        events.move_to_end(event.key, last=False)

    def take(self, *, is_normal_due: bool) -> MergedEvent | None:
        """Removes and returns the next event of the namespace whose turn it is; ``None`` if none may be written now.
        *is_normal_due*: also one of type Normal."""
        for namespace, queue in self._namespaces.items():
            event = queue.take(is_normal_due=is_normal_due)
            if event is not None:
                self._namespaces.move_to_end(namespace)
                self._removed_from(namespace)
                return event
        return None

    def _queue(self, key: EventKey) -> OrderedDict[EventKey, MergedEvent]:
        return self._namespaces.setdefault(key.namespace, _NamespaceQueue()).of(key.type)

    def _removed_from(self, namespace: str) -> None:
        self._count -= 1
        if not self._namespaces[namespace]:
            del self._namespaces[namespace]
