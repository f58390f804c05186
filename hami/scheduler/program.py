"""The scheduler process: its parts, wired together, started and stopped in order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import flask
import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector

from hami.scheduler.leadership import Leadership
from hami.kube.api import Api
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.kube.identity import has_ended, make_identity
from hami.kube.lease import LeaderTerm, AlwaysLeader, Election, Elector
from hami.cache.cache import Cache, Policies
from hami.scheduler.node_lock import LockTimes, NodeLocks
from hami.kube.reflector import Reflector
from hami.codec.objects import parse_node, parse_pod, parse_quota
from hami.certificates.revision import Lifetimes
from hami.certificates.manager import CertificateManager, CertificateSettings
from hami.scheduler.controller import Controller
from hami.scheduler.reconcile import Rules
from hami.errors import ClusterError
from hami.runtime.interpreter import freeze_gc
from hami.web.exporter import Exporter
from hami.scheduler.metrics import Metrics, MetricSources
from hami.scheduler.cluster_metrics import families
from hami.web.exposition import Family, build_info
from hami.model import Node, Pod, PodRef, QuotaLimits
from hami.scheduler.settings import Settings
from hami.vendors.entry_points import catalog
from hami.scheduler.verbs import Verbs
from hami.scheduler.app import Health, create_app

__all__ = ["SchedulerProgram", "certifier"]

log = logging.getLogger(__name__)

FRESH = 120.0  # seconds of silence from the API server after which what is known counts as stale
CATCH_UP = 30.0  # seconds that a consistent list may take
EVENTS_A_SECOND = 50.0  # at most, or --kube-qps if that is less: they never compete with placing pods
NORMAL_EVENTS_A_SECOND = 10.0  # of them; two a pod cost the control plane as much as its Binding
DRAIN = 5.0  # seconds that bindings in progress may take to finish at the end
JOIN = 1.0  # seconds to wait for each thread at the end


def _now() -> datetime:
    return datetime.now(UTC)


class _Nobody:
    """Leads never."""

    def leads_until(self) -> float:
        return 0.0


def certifier(settings: Settings, cluster: Cluster | None = None, role: LeaderTerm = _Nobody()) -> CertificateManager:
    """Who keeps the self-signed certificate of *settings*; by default with a connection of its own, and no leader."""
    certificates = CertificateSettings(
        namespace=settings.pod_namespace, secret=settings.self_signed_cert_secret, webhook=settings.self_signed_webhook,
        file=Path(settings.cert_file), default_names=frozenset({f"hami-scheduler.{settings.pod_namespace}.svc"}),
        lifetimes=Lifetimes(serving=timedelta(seconds=settings.self_signed_cert_lifetime),
                            authority=timedelta(seconds=settings.self_signed_ca_lifetime)))
    calls = cluster or Cluster(Api.connect(timeout=settings.kube_timeout or 10.0))
    return CertificateManager(calls, role, certificates, clock=time.monotonic, now=_now)


class SchedulerProgram:
    """All parts of `hami scheduler` in one process. Made in the worker, after the fork."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        clock = time.monotonic
        api = Api.connect(timeout=settings.kube_timeout or 10.0)
        cluster = Cluster(api)
        known = catalog(settings.devices, ascend=settings.enable_ascend, iluvatar=settings.enable_iluvatar)
        self._cache = Cache(known, Policies(settings.node_scheduler_policy, settings.gpu_scheduler_policy),
                            clock=clock, now=_now, matches=settings.node_selector.matches)
        rate = min(settings.kube_qps or EVENTS_A_SECOND, EVENTS_A_SECOND)
        self._events = EventRecorder(cluster, settings.scheduler_name or "hami-scheduler", rate=rate,
                                     normal_rate=min(rate, NORMAL_EVENTS_A_SECOND))
        self._locks = NodeLocks(
            cluster, self._cache.nodes, self._cache.pods, known, LockTimes(expire=settings.node_lock_timeout),
            clock=clock, now=_now, revoked=self._tell_revoked)
        self._cache.nodes.on_lock = self._locks.wake
        self._cache.on_dropped = self._locks.wake_pod
        self._nodes: Reflector[Node] = Reflector(
            api, "/api/v1/nodes", parse_node, lambda node: node.name, self._cache.nodes, name="nodes")
        self._pods: Reflector[Pod] = Reflector(
            api, "/api/v1/pods", parse_pod, lambda pod: pod.ref.uid, self._cache.pods, name="pods")
        self._quotas: Reflector[QuotaLimits] = Reflector(
            api, "/api/v1/resourcequotas", parse_quota, lambda quota: quota.uid, self._cache.quotas, name="quotas")
        self._acting = Leadership(self._catch_up, clock, _now)
        self._locks.acting_since = self._acting.since
        self._election = self._elect(cluster)
        self._acting.follow(self._election)
        self._controller = Controller(
            cluster, self._cache, self._locks, self._events, self._acting,
            Rules(vendors=known, scheduler=settings.scheduler_name,
                  overwrites=settings.force_overwrite_default_scheduler, expire=settings.node_lock_timeout),
            pod=(settings.pod_namespace, settings.pod_name) if settings.pod_name else None, clock=clock, now=_now)
        self._certifier = certifier(settings, cluster, self._acting) if settings.self_signed_cert_dir else None
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._metrics = Metrics(registry)
        self._metrics.register(self._metric_sources())
        address = settings.metrics_bind_address
        self._exporter = Exporter(registry, address, self._families) if address is not None else None
        self._verbs = Verbs(
            self._cache, self._locks, cluster, self._events, self._acting, self._metrics,
            scheduler_name=settings.scheduler_name, force_overwrite=settings.force_overwrite_default_scheduler,
            clock=clock)
        self._threads: list[threading.Thread] = []

    def app(self) -> flask.Flask:
        """The WSGI application over these parts."""
        health = Health(started=self._is_synced, unready=self._unready, await_start=self._await_sync)
        return create_app(self._verbs, self._reservation, health, self._metrics.observe, threads=self._settings.threads)

    def start(self) -> None:
        """Start what runs beside the requests. Nodes are read before pods, whose shares are of their devices."""
        if self._exporter is not None:
            self._exporter.start()
        if self._certifier is not None:
            self._start_thread("certificates", self._certifier.run)
        for name, run in (("nodes", self._nodes.run), ("quotas", self._quotas.run), ("pods", self._read_pods),
                          ("events", self._events.run), ("election", self._election.run), ("acting", self._acting.run),
                          ("controller", self._controller_run)):
            self._start_thread(name, run)

    def _start_thread(self, name: str, run: Callable[[], object]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Stop: binds that wait give up, those that are being written finish; only then is the leadership released."""
        self._locks.close()
        if not self._verbs.drain(DRAIN):
            log.warning("a binding is still being written")
        self._controller.stop()
        if self._certifier is not None:
            self._certifier.stop()
        self._acting.stop()
        for reflector in (self._nodes, self._pods, self._quotas):
            reflector.stop()
        self._election.stop()
        self._events.drain(JOIN)
        self._events.stop()
        if self._exporter is not None:
            self._exporter.stop()
        for thread in self._threads:
            thread.join(JOIN)

    def _metric_sources(self) -> MetricSources:
        cache = self._cache
        return MetricSources(
            reserved=cache.reserved, waiting=self._locks.waiting,
            ages={"nodes": self._nodes.age, "pods": self._pods.age, "resourcequotas": self._quotas.age},
            leads=self._election.is_leader, unreadable_inventories=cache.nodes.problems,
            unreadable_pods=cache.pods.unreadable,
            events={"dropped": lambda: self._events.dropped, "written": lambda: self._events.written},
            handshakes=lambda: self._controller.requests_written,
            certificate_expiry=self._certifier.expiry if self._certifier is not None else lambda: None)

    def _families(self) -> list[Family]:
        """The metrics of the cluster; none before it is known, lest it look empty."""
        made = [build_info()]
        if self._is_synced():
            made += families(self._cache.snapshot(), self._cache.vendors, legacy=self._settings.legacy_metrics)
        return made

    def _elect(self, cluster: Cluster) -> Elector:
        settings = self._settings
        if not settings.leader_elect:
            return AlwaysLeader(on_started=self._acting.started)
        return Election(
            cluster, namespace=settings.leader_elect_resource_namespace or settings.pod_namespace,
            name=f"{settings.leader_elect_resource_name or 'hami-scheduler'}-extender",
            identity=make_identity(settings.pod_name),
            has_ended=lambda identity: has_ended(identity, settings.pod_name),
            on_started=self._acting.started, on_stopped=self._acting.stopped, may_hand_over=self._acting.is_idle)

    def _read_pods(self) -> None:
        self._nodes.synced.wait()
        self._pods.run()

    def _controller_run(self) -> None:
        self._await_sync(None)
        freeze_gc()
        self._controller.run()

    def _catch_up(self) -> None:
        """Read nodes and pods once more, with consistent lists."""
        if not self._await_sync(CATCH_UP):
            raise ClusterError("the caches have not been filled yet")
        if self._settings.leader_elect:
            self._nodes.relist(CATCH_UP)
            self._pods.relist(CATCH_UP)

    def _is_synced(self) -> bool:
        return all(reflector.synced.is_set() for reflector in (self._nodes, self._pods, self._quotas))

    def _await_sync(self, timeout: float | None) -> bool:
        return all(reflector.synced.wait(timeout) for reflector in (self._nodes, self._pods, self._quotas))

    def _unready(self) -> str | None:
        for reflector, name in ((self._nodes, "nodes"), (self._pods, "pods"), (self._quotas, "resourcequotas")):
            if not reflector.synced.is_set():
                return f"{name} have not been read yet"
            if reflector.age() > FRESH:
                return f"the API server has said nothing about {name} for {reflector.age():.0f} s"
        if self._certifier is not None and not self._certifier.is_trusted():
            return f"the API server does not trust the certificate of {self._settings.self_signed_webhook} yet"
        return None

    def _reservation(self, uid: str) -> bytes | None:
        reservation = self._cache.reservation(uid)
        if reservation is None:
            return None
        return msgspec.json.encode({"node": reservation.node, "annotations": reservation.annotations,
                                    "labels": reservation.labels})

    def _tell_revoked(self, ref: PodRef, node: str) -> None:
        self._events.record(ref, "Warning", "AllocationRevoked",
                            f"the device plugin of node {node} did not hand out the devices in time")
