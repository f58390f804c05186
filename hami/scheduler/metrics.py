"""Metrics of the scheduler itself: durations of verbs, refusals, age of the cache, leadership.

Events are counted by calls, which must be cheap. State is read when Prometheus scrapes. All names begin with
``hami_scheduler_``, but for those of waiting pods, ``hami_moves_total``, and ``hami_remediations_total``, which belongs
to the metrics of the devices' health.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sized
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami.model import Pod, Reason
from hami.scheduler.waiting_pods import waiting_gauges

PREFIX = "hami_scheduler_"
VERBS = ("webhook", "filter", "prioritize", "preempt", "bind")
PREEMPTION_RESULTS = ("planned", "none")
REMEDIATION_RESULTS = (
    "evicted",
    "budget",
    "many_unhealthy",
    "not_replaced",
    "protected",
    "failed",
)
MOVE_RESULTS = ("moved", "stopped", "none")
RESIZE_OUTCOMES = ("booked", "applied", "deferred", "infeasible", "failed")
OUTCOMES = ("ok", "refused", "error")
SECONDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricSources(Collector):
    """Functions that are called at each scrape, in the thread that serves it.

    *reserved*: number of unbound reservations. *waiting*: pods that wait for a node lock, by node. *ages*: seconds
    since the API server's last answer, by resource. *unreadable_inventories*: keyed by node and vendor.
    *unreadable_pods*: pods whose allocation cannot be read. *events*: number of events by outcome. *handshakes*: number
    of requests written to nodes. *edits_refused*: number of edits that would have changed what bound pods hold.
    *foreign_reservations*: whether those of other schedulers count, as during an upgrade from HAMi.
    *certificate_expiry*: when the self-signed certificate expires (Unix seconds), None without one. *resizing*: number
    of bound pods that wait for other sizes. *waiting_pods*: those that request devices and are not bound.
    """

    reserved: Callable[[], int]
    waiting: Callable[[], Mapping[str, int]]
    ages: Mapping[str, Callable[[], float]]
    leads: Callable[[], bool]
    unreadable_inventories: Callable[[], Mapping[tuple[str, str], object]]
    unreadable_pods: Callable[[], Sized]
    events: Mapping[str, Callable[[], int]]
    handshakes: Callable[[], int]
    edits_refused: Callable[[], int]
    foreign_reservations: bool = False
    certificate_expiry: Callable[[], float | None] = lambda: None
    resizing: Callable[[], int] = lambda: 0
    waiting_pods: Callable[[], Collection[Pod]] = tuple

    def collect(self) -> Iterator[Metric]:
        """Yields the current gauges and counters."""
        waiting = list(self.waiting().values())
        yield _gauge(
            "reservations", "Pods with reserved devices that are not bound yet", self.reserved()
        )
        yield _gauge("node_lock_waiting_pods", "Pods waiting for a node lock", sum(waiting))
        yield _gauge(
            "node_lock_longest_queue_pods",
            "Pods in the longest queue for a node lock",
            max(waiting, default=0),
        )
        yield _labeled(
            GaugeMetricFamily,
            "cache_age_seconds",
            "Time since the API server's last answer by resource",
            ("resource",),
            {(name,): age() for name, age in self.ages.items()},
        )
        yield _gauge("leader", "1 in the replica that leads", int(self.leads()))
        yield _labeled(
            GaugeMetricFamily,
            "unreadable_inventory",
            "1 for a node whose devices cannot be read",
            ("node", "vendor"),
            {key: 1 for key in self.unreadable_inventories()},
        )
        yield _gauge(
            "foreign_reservations_enabled",
            "1 if what other schedulers write on unbound pods counts",
            int(self.foreign_reservations),
        )
        yield _gauge(
            "unreadable_allocations",
            "Pods whose devices cannot be read",
            len(self.unreadable_pods()),
        )
        yield _labeled(
            CounterMetricFamily,
            "events",
            "Events about pods and nodes by outcome",
            ("outcome",),
            {(outcome,): count() for outcome, count in self.events.items()},
        )
        yield CounterMetricFamily(
            PREFIX + "handshake_requests",
            "Handshake requests written to nodes",
            value=self.handshakes(),
        )
        yield CounterMetricFamily(
            PREFIX + "allocation_edits_refused",
            "Edits of annotations that would have changed what bound pods hold",
            value=self.edits_refused(),
        )
        yield _gauge(
            "resizes_pending",
            "Bound pods whose new sizes have not been decided or do not fit yet",
            self.resizing(),
        )
        yield from waiting_gauges(self.waiting_pods(), time.time())
        if (expiry := self.certificate_expiry()) is not None:
            yield _gauge(
                "certificate_expiry_timestamp_seconds",
                "When the self-signed certificate expires",
                expiry,
            )


class Metrics:
    """The metrics of one process, in *registry*. Threads may share it; no method blocks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._durations = Histogram(
            PREFIX + "request_duration_seconds",
            "Duration of a verb by outcome",
            ("verb", "outcome"),
            registry=registry,
            buckets=SECONDS,
        )
        self._lock_waits = Histogram(
            PREFIX + "node_lock_wait_seconds",
            "Time a bind waited for the node lock",
            registry=registry,
            buckets=SECONDS,
        )
        self._refusals = Counter(
            PREFIX + "refusals",
            "Pods that fitted no node, counted once for each reason that ruled out devices",
            ("reason",),
            registry=registry,
        )
        self._preemptions = Counter(
            PREFIX + "preemption_attempts",
            "Plans to evict pods for a refused pod by result",
            ("result",),
            registry=registry,
        )
        self._victims = Counter(
            PREFIX + "preemption_victims",
            "Pods evicted for pods of higher priority",
            registry=registry,
        )
        self._in_vain = Counter(
            PREFIX + "preemptions_in_vain",
            "Evictions whose pod did not get what they freed",
            registry=registry,
        )
        self._preemption_seconds = Histogram(
            PREFIX + "preemption_seconds",
            "Time from a plan until its pod is bound",
            registry=registry,
            buckets=SECONDS,
        )
        self._resizes = Counter(
            PREFIX + "resizes",
            "Answers to pods that are resized by outcome",
            ("outcome",),
            registry=registry,
        )
        self._remediations = Counter(
            "hami_remediations",
            "Pods on a device that harms them by what became of them",
            ("result",),
            registry=registry,
        )
        self._moves = Counter(
            "hami_moves",
            "Moves of pods that make room for others by what became of them",
            ("result",),
            registry=registry,
        )
        # a series that exists from the start shows its first increase
        for labels in itertools.product(VERBS, OUTCOMES):
            self._durations.labels(*labels)
        for reason in Reason:
            self._refusals.labels(reason)
        for result in PREEMPTION_RESULTS:
            self._preemptions.labels(result)
        for outcome in RESIZE_OUTCOMES:
            self._resizes.labels(outcome)
        for result in REMEDIATION_RESULTS:
            self._remediations.labels(result)
        for result in MOVE_RESULTS:
            self._moves.labels(result)

    def observe(self, verb: str, outcome: str, seconds: float) -> None:
        """Records that *verb* (one of VERBS) ended with *outcome* (one of OUTCOMES)."""
        self._durations.labels(verb, outcome).observe(seconds)

    def lock_wait(self, seconds: float) -> None:
        """Records how long a bind waited for the node lock."""
        self._lock_waits.observe(seconds)

    def refused(self, reason: str) -> None:
        """Counts a pod that fits no node; *reason* is one of those that ruled out devices."""
        self._refusals.labels(reason).inc()

    def preemption(self, result: str) -> None:
        """Counts an attempt to plan evictions; *result* is one of PREEMPTION_RESULTS."""
        self._preemptions.labels(result).inc()

    def evicted(self, pods: int) -> None:
        """Counts pods that were evicted."""
        self._victims.inc(pods)

    def preemptor_bound(self, seconds: float) -> None:
        """Records how long after the plan a pod was bound."""
        self._preemption_seconds.observe(seconds)

    def resize(self, outcome: str) -> None:
        """Counts an answer to a pod that is resized; *outcome* is one of RESIZE_OUTCOMES."""
        self._resizes.labels(outcome).inc()

    def remediation(self, result: str) -> None:
        """Counts a pod on a device that harms it; *result* is one of REMEDIATION_RESULTS."""
        self._remediations.labels(result).inc()

    def move(self, result: str) -> None:
        """Counts a move, or a pod for which there is none; *result* is one of MOVE_RESULTS."""
        self._moves.labels(result).inc()

    def preempted_in_vain(self) -> None:
        """Counts evictions after which their pod did not get the devices."""
        self._in_vain.inc()


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help, value=value)


def _labeled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    help: str,
    labels: tuple[str, ...],
    values: Mapping[tuple[str, ...], float],
) -> Metric:
    family = kind(PREFIX + name, help, labels=labels)
    for texts, value in sorted(values.items()):
        family.add_metric(texts, value)
    return family
