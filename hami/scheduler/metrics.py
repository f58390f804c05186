"""How the scheduler itself fares: what verbs take, why pods wait, how fresh its knowledge is.

What happens is counted by a call, which must cost next to nothing; what stands is asked for when somebody scrapes.
All names begin with ``hami_scheduler_``. This module decides nothing and starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami.model import Reason

__all__ = ["Metrics", "Readings"]

PREFIX = "hami_scheduler_"
VERBS = ("webhook", "filter", "bind")
OUTCOMES = ("ok", "refused", "error")
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Where to ask what stands; each is called once a scrape, in the thread that serves it.

    *reserved*: reservations that are not bound. *waiting*: pods in line by node. *ages*: seconds since the API server
    was last heard of, by resource. *unreadable_inventories*: by node and vendor. *unreadable_pods*: those whose
    allocation cannot be read. *events*: how many, by what became of them. *handshakes*: requests written to nodes.
    *certificate_ends*: until when the self-signed certificate is valid (Unix seconds), ``None`` without one.
    """

    reserved: Callable[[], int]
    waiting: Callable[[], Mapping[str, int]]
    ages: Mapping[str, Callable[[], float]]
    leads: Callable[[], bool]
    unreadable_inventories: Callable[[], Mapping[tuple[str, str], object]]
    unreadable_pods: Callable[[], Sized]
    events: Mapping[str, Callable[[], int]]
    handshakes: Callable[[], int]
    certificate_ends: Callable[[], float | None] = lambda: None


class Metrics:
    """The metrics of one process, in *registry*. All methods may be called by any thread, and never wait."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._durations = Histogram(
            PREFIX + "request_duration_seconds", "Time that a verb took, by outcome", ("verb", "outcome"),
            registry=registry, buckets=SECONDS)
        self._waits = Histogram(PREFIX + "node_lock_wait_seconds", "Time that a bind stood in line for its node's lock",
                                registry=registry, buckets=SECONDS)
        self._refusals = Counter(
            PREFIX + "refusals", "Pods for which no node fitted, counted for each reason that ruled devices out",
            ("reason",), registry=registry)
        # made beforehand: a series that is there from the start has no first jump, and the hot path looks nothing up
        self._timers = {(verb, outcome): self._durations.labels(verb, outcome)
                        for verb in VERBS for outcome in OUTCOMES}
        self._counts = {reason.value: self._refusals.labels(reason.value) for reason in Reason}

    def observe(self, verb: str, outcome: str, seconds: float) -> None:
        """*verb* (``webhook``, ``filter``, ``bind``) ended with *outcome* (``ok``, ``refused``, ``error``)."""
        timer = self._timers.get((verb, outcome)) or self._durations.labels(verb, outcome)
        timer.observe(seconds)

    def lock_wait(self, seconds: float) -> None:
        """A bind stood in line so long before it had its node's lock."""
        self._waits.observe(seconds)

    def refused(self, reason: str) -> None:
        """A pod fits no node; *reason* is one of those that ruled devices out."""
        count = self._counts.get(reason) or self._refusals.labels(reason)
        count.inc()

    def watch(self, readings: Readings) -> None:
        """Show what *readings* say, at each scrape. To be called once."""
        self._registry.register(_Standing(readings))


class _Standing(Collector):
    """What stands at the moment of a scrape."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """The gauges and counters, read now."""
        readings = self._readings
        lines = list(readings.waiting().values())
        yield _gauge("reservations", "Pods whose devices are promised and that are not bound yet", readings.reserved())
        yield _gauge("node_lock_waiting_pods", "Pods that stand in line for a node's lock", sum(lines))
        yield _gauge("node_lock_longest_line_pods", "Pods in the longest of these lines", max(lines, default=0))
        yield _labelled(GaugeMetricFamily, "cache_age_seconds", "Time since the API server last said anything about it",
                        ("resource",), {(name,): age() for name, age in readings.ages.items()})
        yield _gauge("leader", "1 in the replica that leads", int(readings.leads()))
        yield _labelled(GaugeMetricFamily, "unreadable_inventory", "1 for a node whose devices cannot be read",
                        ("node", "vendor"), {key: 1 for key in readings.unreadable_inventories()})
        yield _gauge("unreadable_allocations", "Pods whose devices cannot be read", len(readings.unreadable_pods()))
        yield _labelled(CounterMetricFamily, "events", "Events about pods and nodes, by what became of them",
                        ("outcome",), {(outcome,): count() for outcome, count in readings.events.items()})
        yield CounterMetricFamily(PREFIX + "handshake_requests", "Requests to report that were written to nodes",
                                  value=readings.handshakes())
        if (ends := readings.certificate_ends()) is not None:
            yield _gauge("certificate_expiry_timestamp_seconds", "When the self-signed certificate ends", ends)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help, value=value)


def _labelled(kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, help: str, labels: tuple[str, ...],
              values: Mapping[tuple[str, ...], float]) -> Metric:
    family = kind(PREFIX + name, help, labels=labels)
    for texts, value in sorted(values.items()):
        family.add_metric(texts, value)
    return family
