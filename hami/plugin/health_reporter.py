"""Tells everybody which cards of the node are unhealthy, and why: the node, and the pods that hold the cards."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from hami.codec.health import (
    ALL_HEALTHY,
    NOT_WATCHED,
    UNHEALTHY,
    DeviceHealth,
    parse_device_health,
    render_condition,
    render_device_health,
)
from hami.codec.keys import DEVICE_HEALTH
from hami.devices.cards import XidEvent
from hami.devices.inventory import DeviceInventory
from hami.devices.verdict import GONE
from hami.devices.xids import XidKind
from hami.errors import HamiError
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import PodRef
from hami.plugin.gone_cards import GoneCards
from hami.plugin.holders import CardHolders
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task
from hami.runtime.token_bucket import TokenBucket

log = logging.getLogger(__name__)

HEARTBEAT_S = 300.0
"""Seconds after which the node's condition is written again, although it is the same."""
INTERVAL_S = 30.0
"""Seconds between two looks while nothing changes."""
UNHEALTHY_S = 5.0
"""The same while a card is unhealthy: another pod may turn out to hold it."""
RETRY_S = 1.0
"""Seconds until the next attempt after a failure."""
WRITES, WRITES_S = 10, 1 / 30
"""Changes of the node that are written at once, and those a second after that."""
_MAX_XIDS = 256


class HealthReporter(Task):
    """Writes the annotation and the condition of the node, and events of the pods that hold a card."""

    def __init__(
        self,
        cluster: Cluster,
        events: EventRecorder,
        node: str,
        inventory: DeviceInventory,
        holders: CardHolders,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
        not_watched: str = "",
    ) -> None:
        """*inventory*: all cards of the node, however they are offered. *clock*: monotonic seconds. *not_watched*: why
        their health is not watched; empty if it is."""
        super().__init__("device-health")
        self._cluster = cluster
        self._events = events
        self.node = node
        """The name of the node."""
        self.inventory = inventory
        """All cards of the node, however they are offered."""
        self._holders = holders
        self._now = now
        self._clock = clock
        self._not_watched = not_watched
        self._lock = threading.Lock()  # guards the next four; never held across I/O
        self._reported: dict[str, DeviceHealth] = {}  # by card
        self._since: dict[str, int] = {}  # Unix seconds, by unhealthy card
        self._actions: dict[str, int] = {}  # what the driver asks for, by card
        self._xids: Counter[tuple[str, int]] = Counter()  # by card and XID
        self._waiting: deque[XidEvent] = deque(maxlen=_MAX_XIDS)
        self._gone = GoneCards(inventory, holders)
        self._told: dict[str, _Told] = {}  # by card
        self._status = ""  # of the condition; empty: not known
        self._written: tuple[str | None, str] | None = None  # annotation and message
        self._written_at = 0.0
        self._tokens = TokenBucket(WRITES_S, WRITES, clock())
        self._failures = OncePerKey()

    # ---- what the watch of the cards says; any thread

    def restore(self) -> Mapping[str, DeviceHealth]:
        """Returns what the node says of its cards, as an earlier process has left it; nothing if it cannot be read."""
        try:
            node = self._cluster.node(self.node)
        except HamiError as error:
            log.warning("earlier health of the cards unknown", extra={"error": error})
            return {}
        restored = {}
        if node is not None:
            restored = dict(parse_device_health(node.annotations.get(DEVICE_HEALTH)))
        with self._lock:
            for card, health in restored.items():
                self._since[card] = health.since
                self._told[card] = _Told(health.cause, None)
        self._gone.restore([card for card in restored if restored[card].cause == GONE.cause])
        if restored:
            self._status = "False"
        return restored

    def report(self, gpu: str, health: DeviceHealth | None, action: int | None) -> None:
        """Takes what the watch says of a card: see `HealthListener`. What it says of all cards, the inventory tells."""
        if not gpu:
            return
        with self._lock:
            if health is None:
                self._reported.pop(gpu, None)
            else:
                self._reported[gpu] = health
                self._since.setdefault(gpu, self._seconds())
            if action is None:
                self._actions.pop(gpu, None)
            else:
                self._actions[gpu] = action

    def report_xid(self, event: XidEvent) -> None:
        """Takes an error that the driver reports."""
        with self._lock:
            self._xids[event.gpu, event.xid] += 1
        if event.kind in (XidKind.APPLICATION, XidKind.UNKNOWN):
            self._waiting.append(event)
            self.inventory.notify()

    def report_refused(self, pod: PodRef, reason: str, card: str = "") -> None:
        """Takes that a pod is refused its devices again and again, as where one of them is gone. *card*: that one, if a
        claim has it."""
        self._events.record(pod, "Warning", "DeviceGone", reason)
        self._gone.note_refused(pod.uid, card)
        self.inventory.notify()

    def actions(self) -> Mapping[str, int]:
        """Returns what the driver asks for, by card; those of which it does not say are missing."""
        with self._lock:
            return dict(self._actions)

    def xids(self) -> Mapping[tuple[str, int], int]:
        """Returns how many XIDs there were, by card and XID. The card is empty if it is unknown."""
        with self._lock:
            return dict(self._xids)

    # ---- the task

    def step(self) -> float:
        """Tells what has changed, then waits until something does."""
        snapshot = self.inventory.snapshot()
        try:
            causes = {**snapshot.unhealthy, **dict.fromkeys(self._gone.find(), GONE.cause)}
            unhealthy = self._describe(causes)
            is_complete = self._tell_pods(unhealthy)
            is_complete = self._tell_errors() and is_complete
            is_complete = self._write(unhealthy, has_cards=bool(snapshot.cards)) and is_complete
        except HamiError as error:
            if self._failures.is_new("", str(error)):
                log.warning("health of the cards not told", extra={"error": error})
            return RETRY_S
        self._failures.clear("")
        if not is_complete:
            return RETRY_S
        self.inventory.wait_until(
            lambda latest: (
                latest is not snapshot
                or bool(self._waiting)
                or self._gone.has_news()
                or self.is_stopping()
            ),
            UNHEALTHY_S if unhealthy else INTERVAL_S,
        )
        return 0.0

    def stop(self) -> None:
        """Makes the task end after the current step."""
        super().stop()
        self.inventory.notify()

    def leave(self) -> None:
        """Says that nobody watches the cards any more, in one attempt. The annotation stays for the next process."""
        message = "the device plugin does not run"
        condition = render_condition("Unknown", NOT_WATCHED, message, self._now(), is_change=True)
        try:
            self._cluster.publish_health(self.node, {}, condition)
        except HamiError as error:
            log.warning("condition of the node not written", extra={"error": error})

    def _describe(self, causes: Mapping[str, str]) -> dict[str, DeviceHealth]:
        """Returns why cards are unhealthy, with the time since which they are. *causes*: by unhealthy card."""
        now = self._seconds()
        unhealthy = {}
        with self._lock:
            for card, cause in causes.items():
                health = self._reported.get(card)
                if cause == GONE.cause:
                    health = GONE
                elif health is None or health.cause != cause:
                    health = DeviceHealth(cause=cause)
                since = self._since.setdefault(card, now)
                unhealthy[card] = msgspec.structs.replace(health, since=since)
            for card in self._since.keys() - unhealthy.keys():
                del self._since[card]
        return unhealthy

    def _tell_pods(self, unhealthy: Mapping[str, DeviceHealth]) -> bool:
        """Records an event of each pod that holds a card which has become unhealthy, or healthy. Reports whether all
        pods are known. Raises: HamiError."""
        for card, health in unhealthy.items():
            pods = self._holders.find(card)
            if pods is None:
                return False
            told = self._told.get(card)
            message = f"{card} on node {self.node} is unhealthy: {health.cause}"
            if health.remedy:
                message += f"; remedy: {health.remedy}"
            for pod in pods:
                if told is None or not told.has_heard(health.cause, pod):
                    self._events.record(pod, "Warning", "GpuUnhealthy", message)
            self._told[card] = _Told(health.cause, frozenset(pods))
        for card in self._told.keys() - unhealthy.keys():
            pods = self._holders.find(card)
            if pods is None:
                return False
            message = f"{card} on node {self.node} is healthy again"
            for pod in pods:
                self._events.record(pod, "Normal", "GpuHealthy", message)
            del self._told[card]
        return True

    def _tell_errors(self) -> bool:
        """Records events of errors, of the pods that they concern. Reports whether all pods are known. Raises:
        HamiError."""
        while self._waiting:
            event = self._waiting[0]
            card = event.gpu or "an unknown card"
            if event.kind is XidKind.UNKNOWN:
                message = f"XID {event.xid} on {card}, which NVIDIA's catalog does not explain"
                self._events.record(self.node, "Warning", "UnknownXid", message)
            elif event.gpu:
                pods = self._holders.find(event.gpu, event.instance)
                if pods is None:
                    return False
                message = f"XID {event.xid} on {card}: an error of a program that uses the card"
                for pod in pods:
                    self._events.record(pod, "Warning", "GpuApplicationError", message)
            self._waiting.popleft()
        return True

    def _write(self, unhealthy: Mapping[str, DeviceHealth], *, has_cards: bool) -> bool:
        """Writes annotation and condition, unless they were written. Reports whether the node says what is true now.

        Raises: ClusterError.
        """
        text = render_device_health(unhealthy)
        not_watched = self._not_watched
        if not has_cards and not not_watched:
            not_watched = "the node has no card"
        status, reason, message = _summary(unhealthy, not_watched)
        now = self._clock()
        is_written = (text, message) == self._written
        if is_written and now - self._written_at < HEARTBEAT_S:
            return True
        if not is_written and self._tokens.delay(now) > 0:
            return False
        is_change = status != self._status
        condition = render_condition(status, reason, message, self._now(), is_change=is_change)
        self._cluster.publish_health(self.node, {DEVICE_HEALTH: text}, condition)
        if not is_written:
            self._tokens.take()
            log.info("health of the cards written", extra={"node": self.node, "status": status})
        self._status = status
        self._written = text, message
        self._written_at = now
        return True

    def _seconds(self) -> int:
        return int(self._now().timestamp())


def _summary(unhealthy: Mapping[str, DeviceHealth], not_watched: str) -> tuple[str, str, str]:
    """Returns status, reason and message of the condition. *not_watched*: why nobody knows of other cards."""
    if unhealthy:
        causes = [f"{card}: {health.cause}" for card, health in sorted(unhealthy.items())]
        return "False", UNHEALTHY, "; ".join(causes)
    if not_watched:
        return "Unknown", NOT_WATCHED, not_watched
    return "True", ALL_HEALTHY, "all cards are healthy"


class _Told:
    """The news that pods have heard of a card: *cause*, and *pods*; ``None``: all of them, by an earlier process."""

    __slots__ = ("cause", "pods")

    def __init__(self, cause: str, pods: frozenset[PodRef] | None) -> None:
        self.cause = cause
        self.pods = pods

    def has_heard(self, cause: str, pod: PodRef) -> bool:
        return cause == self.cause and (self.pods is None or pod in self.pods)
