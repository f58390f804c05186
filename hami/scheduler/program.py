"""The scheduler process: its parts, wired together, started and stopped in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry, ProcessCollector

from hami.codec.label_selector import Matches, parse_selector
from hami.errors import MalformedInput
from hami.kube.api import Api
from hami.kube.cluster import Cluster
from hami.kube.election import AlwaysLeader, Election, Participant
from hami.kube.events import EventLimits, EventRecorder
from hami.kube.identity import has_ended, make_identity
from hami.kube.reflector import Sink
from hami.kube.watches import Watches
from hami.model import Pod
from hami.runtime.clock import utc_now
from hami.runtime.in_flight import InFlight
from hami.runtime.interpreter import FILLING_OBJECTS, FreezeGc, collect_rarely, set_switch_interval
from hami.runtime.parts import Part, hung_reasons, unready_reasons
from hami.runtime.settings import OFF
from hami.scheduler.admit import Admitter
from hami.scheduler.app import Verbs, create_app
from hami.scheduler.bind import Binder
from hami.scheduler.binding_writer import BindingWriter
from hami.scheduler.budget_part import BudgetPart
from hami.scheduler.budgets import RequestBudgets
from hami.scheduler.cluster_metrics import families
from hami.scheduler.cluster_store import cluster_store
from hami.scheduler.controller import Controller
from hami.scheduler.filter import NodeFilter
from hami.scheduler.held_pods import HeldPods
from hami.scheduler.leadership import Leadership
from hami.scheduler.lock_states import LockStates, WatchedNodes
from hami.scheduler.locks import NodeLocks
from hami.scheduler.metrics import Metrics, MetricSources
from hami.scheduler.move_planner import MovePlanner
from hami.scheduler.mover import Mover
from hami.scheduler.opencost import DeviceContainers, allocation_family
from hami.scheduler.over_budget import OverBudget
from hami.scheduler.planner import PreemptionPlanner
from hami.scheduler.preempt import PreemptionFilter
from hami.scheduler.preemption import Preemptor
from hami.scheduler.remediation import Remediation
from hami.scheduler.resize import Resizer
from hami.scheduler.settings import Settings
from hami.scheduler.usage import UsageRecorder
from hami.scheduler.usage_metrics import UsageMetrics
from hami.state.nodes import nodes_with_devices
from hami.state.store import Store
from hami.web.bodies import BodyBudgets
from hami.web.exporter import Exporter
from hami.web.exposition import Family, build_info

if TYPE_CHECKING:
    from hami.scheduler.claims import Claims
    from hami.scheduler.self_signed import SelfSigned

log = logging.getLogger(__name__)

# at most, or --kube-qps if that is less: events never compete with placing pods
EVENTS_PER_SECOND = 50.0
# of them; two per pod cost the control plane as much as its Binding
NORMAL_EVENTS_PER_SECOND = 10.0
DRAIN_TIMEOUT_S = 5.0  # for Bindings in progress at the end
JOIN_TIMEOUT_S = 1.0  # for each thread at the end


class SchedulerProgram:
    """All parts of ``hami scheduler`` in one process. Constructed in the worker, after the fork."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        clock = time.monotonic
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._metrics = Metrics(registry)

        # Events
        api = Api.connect(timeout=settings.request_timeout)
        self._cluster = Cluster(api)
        rate = min(settings.kube_qps or EVENTS_PER_SECOND, EVENTS_PER_SECOND)
        limits = EventLimits(rate=rate, normal_rate=min(rate, NORMAL_EVENTS_PER_SECOND))
        self._events = EventRecorder(
            self._cluster, settings.scheduler_name or "hami-scheduler", limits
        )

        # Store, leadership and watches
        self._lock_states = LockStates(self._metrics.lock_wait)
        self._store = cluster_store(settings)
        election = None
        if settings.leader_elect:
            election = Election(self._cluster, _candidate(settings, self._store.is_writing))
        self._elector = election or AlwaysLeader()
        self._leadership = Leadership(self._elector, self._catch_up, clock=clock)
        self._resizer = Resizer(
            self._cluster, self._store, self._events, self._leadership, self._metrics, clock=clock
        )
        claims = self._claims = _claims(settings, api, self._store, self._leadership)
        sink: Sink[Pod] = self._resizer.watched(self._store.pods)
        self._containers: DeviceContainers | None = None
        if settings.opencost:
            sink = self._containers = DeviceContainers(sink, self._store)
        pods = _followed(settings, sink, self._store)
        self._watches = Watches(
            api,
            nodes=WatchedNodes(self._store.nodes, self._lock_states),
            pods=pods,
            quotas=self._store.quotas,
            node_selector=settings.node_selector,
        )

        # Verbs and controller
        locks = NodeLocks(
            self._cluster,
            self._store,
            self._lock_states,
            self._events,
            settings.node_lock_timeout,
            leading_since=self._leadership.since,
            clock=clock,
            now=utc_now,
        )
        writer = BindingWriter(
            self._cluster,
            self._store,
            claims.binder if claims else None,
            self._leadership,
            is_watching=self._watches.is_watching_pods,
            clock=clock,
        )
        self._binder = Binder(
            self._cluster, self._store, locks, self._events, self._leadership, writer, clock=clock
        )
        in_flight = InFlight()
        planner = PreemptionPlanner(self._cluster, settings, in_flight, clock=clock, now=utc_now)
        self._preemptor = Preemptor(
            self._cluster,
            self._store,
            self._events,
            self._leadership,
            planner,
            self._metrics,
            clock=clock,
            now=utc_now,
        )
        budgets, over_budget = self._budgets(api, registry)
        admitter = Admitter(self._store.admissions, settings, over_budget)
        self._verbs = Verbs(
            admitter,
            NodeFilter(
                self._store,
                self._events,
                self._leadership,
                self._metrics,
                is_selected=selection(settings.node_selector),
                on_preemptor=self._preemptor.wake,
            ),
            PreemptionFilter(self._store, self._leadership, planner, clock=clock),
            self._binder,
            self._store.bindings.get,
            in_flight,
            claims.admitter(admitter) if claims else None,
        )
        self._controller = Controller(
            self._cluster,
            self._store,
            locks,
            self._events,
            self._leadership,
            settings,
            clock=clock,
            now=utc_now,
        )
        claimed = None
        if claims is not None:
            claimed = claims.cache
        remediation = Remediation(
            self._cluster,
            self._store,
            self._events,
            settings,
            self._metrics,
            leads=self._leadership.leads,
            clock=clock,
            claimed=claimed,
        )

        def paced() -> float:
            planner.leave_to_requests()
            return clock()

        self._mover = Mover(
            self._cluster,
            self._store,
            self._events,
            settings,
            MovePlanner(
                self._cluster,
                self._store,
                min_runtime_s=settings.preemption_min_runtime,
                clock=paced,
                now=utc_now,
            ),
            self._metrics,
            leads=self._leadership.leads,
            clock=clock,
        )

        usage = self._usage(pods, registry)

        # Certificate and exporter
        certificate = _certificate(settings, self._cluster, self._leadership)
        registry.register(self._metric_sources(certificate))
        self._exporter = Exporter(registry, settings.metrics_bind_address, self._families)
        parts = [
            Part(FreezeGc(self._watches.is_synced)),
            Part(self._controller, self._preemptor, self._resizer, remediation, self._mover),
            usage,
            budgets,
            certificate,
            claims,
            Part(self._leadership),
            Part(*self._watches.tasks),
            Part(election) if election else None,  # releases its lease once nothing is written
            _Events(self._events),
        ]
        self._parts = list(filter(None, parts))

    def app(self) -> WSGIApplication:
        """Returns the WSGI application."""
        app = create_app(
            self._verbs,
            self._watches.is_synced,
            self._unready_reason,
            self._metrics.observe,
            threads=self._settings.threads,
            hung_reason=lambda: hung_reasons(self._parts),
        )
        return BodyBudgets(app, RequestBudgets())

    def start(self) -> None:
        """Starts everything that runs beside the requests, once there is a certificate. Raises: HamiError."""
        set_switch_interval()
        collect_rarely(FILLING_OBJECTS)
        for part in self._parts:
            part.prepare()
        self._exporter.start()
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        """Stops. Waiting binds fail and Bindings that are being written finish before the leadership is released."""
        self._lock_states.close()
        if not self._binder.drain(DRAIN_TIMEOUT_S):
            log.warning("stopping while a Binding is being written")
        for part in self._parts:
            part.stop()
        self._exporter.stop()
        for part in self._parts:
            part.join(JOIN_TIMEOUT_S)

    def _catch_up(self) -> None:
        """Reads the cluster when this replica begins to lead. Raises: ClusterError."""
        self._watches.catch_up(relist=self._settings.leader_elect)
        for ref in self._store.filtering.assume_nominated():
            log.info("devices reserved again for a pod that is being bound", extra={"pod": ref})
        self._preemptor.take_over()
        self._mover.take_over()

    def _usage(self, pods: Sink[Pod], registry: CollectorRegistry) -> Part | None:
        """Returns what records usage; ``None`` if nobody follows *pods* for it."""
        if not isinstance(pods, HeldPods):
            return None
        recorder = UsageRecorder(
            self._cluster,
            pods,
            self._settings,
            leads=self._leadership.leads,
            silence=self._watches.ages()["pods"],
            clock=time.monotonic,
            now=utc_now,
        )
        registry.register(UsageMetrics(recorder.counters, recorder.settled))
        return Part(recorder)

    def _budgets(self, api: Api, registry: CollectorRegistry) -> tuple[Part | None, OverBudget]:
        """Returns what follows the budgets of namespaces, which need the records of usage, and what admission does."""
        if not self._settings.usage_namespace:
            return None, OverBudget()
        part = BudgetPart(api, self._cluster, self._events, self._leadership, self._settings)
        part.register(registry)
        return part, part.over_budget()

    def _metric_sources(self, certificate: SelfSigned | None) -> MetricSources:
        store = self._store
        return MetricSources(
            reserved=store.open_bindings.unbound,
            waiting=self._lock_states.waiting,
            ages=self._watches.ages(),
            leads=self._elector.is_leader,
            unreadable_inventories=store.nodes.problems,
            unreadable_pods=store.pods.unreadable,
            events={
                "dropped": lambda: self._events.dropped,
                "written": lambda: self._events.written,
            },
            handshakes=lambda: self._controller.handshakes_requested,
            edits_refused=lambda: store.pods.edits_refused,
            foreign_reservations=self._settings.foreign_reservations,
            resizing=self._resizer.pending,
            waiting_pods=store.pods.waiting,
            certificate_expiry=certificate.expiry if certificate else lambda: None,
        )

    def _families(self) -> list[Family]:
        """Returns the metrics of the cluster; none while the store cannot be relied on: the cluster looks empty before
        it is filled, and Prometheus takes every value for one of now."""
        if self._watches.unready_reason() is not None:
            return [build_info()]
        view = self._store.view()
        claimed = self._claims.cache.at_once(view.facts).view if self._claims else None
        legacy = self._settings.legacy_metrics
        charged = []
        if self._containers is not None:
            names = self._containers.names()
            charged.append(allocation_family(view, self._store.vendors, names))
        return [
            build_info(),
            *charged,
            *families(
                view,
                self._store.vendors,
                legacy=legacy,
                claimed=claimed,
                registered=nodes_with_devices(self._store.nodes),
            ),
        ]

    def _unready_reason(self) -> str | None:
        return self._watches.unready_reason() or unready_reasons(self._parts) or None


class _Events(Part):
    """The events. Those of the parts before are written, or nearly all of them."""

    def __init__(self, events: EventRecorder) -> None:
        super().__init__(events)
        self._events = events

    def stop(self) -> None:
        """Waits a moment for what is to be written."""
        self._events.drain(JOIN_TIMEOUT_S)
        super().stop()


def selection(selector: str) -> Matches:
    """Returns a function that reports whether a watch with the label selector *selector* shows nodes with such labels.
    A selector that cannot be parsed here counts as one that selects all nodes."""
    try:
        return parse_selector(selector)
    except MalformedInput as error:
        log.warning("simulations ignore the selector of nodes", extra={"error": error})
        return lambda labels: True


def _followed(settings: Settings, sink: Sink[Pod], store: Store) -> Sink[Pod]:
    """Returns the sink for the watch of pods: one that follows what they hold, if that is recorded."""
    if not settings.usage_namespace:
        return sink
    return HeldPods(sink, store, utc_now)


def _candidate(settings: Settings, is_writing: Callable[[], bool]) -> Participant:
    return Participant(
        namespace=settings.leader_elect_resource_namespace or settings.pod_namespace,
        lease=f"{settings.leader_elect_resource_name or 'hami-scheduler'}-extender",
        identity=make_identity(settings.pod_name),
        has_ended=partial(has_ended, pod=settings.pod_name),
        is_writing=is_writing,
    )


def _claims(settings: Settings, api: Api, store: Store, leadership: Leadership) -> Claims | None:
    if settings.dra == OFF:
        return None
    from hami.scheduler.claims import Claims  # with what it needs, 50 ms and 2 MB

    return Claims(api, store, leadership.leads, settings, clock=time.monotonic)


def _certificate(settings: Settings, cluster: Cluster, leadership: Leadership) -> SelfSigned | None:
    if not settings.self_signed_cert_dir:
        return None
    from hami.scheduler.self_signed import SelfSigned  # its libraries take 80 ms and 10 MB

    return SelfSigned(settings, cluster, leadership.leads, now=utc_now)
