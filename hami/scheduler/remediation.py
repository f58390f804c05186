"""Remediation: pods on a device that harms them are evicted, so that their controllers make others, on other devices.

The Eviction API respects PodDisruptionBudgets. Only pods are evicted that somebody replaces, a few a minute, and none
while more devices are unhealthy than single faults explain, as while a driver is rolled out. What is decided follows
from the cluster alone, so a new leader goes on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from hami.codec.health import DeviceHealth, parse_device_health
from hami.codec.keys import DEVICE_HEALTH, PREEMPTIBLE
from hami.errors import ClusterError, Conflict, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.kube.pods import is_budget_refusal
from hami.model import Device, PodRef
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task
from hami.runtime.token_bucket import TokenBucket
from hami.scheduler.rejected_pods import RECREATING
from hami.scheduler.settings import EVICT, Settings
from hami.state.bookings import Booking
from hami.state.read_pod import PodRecord, PodTraits
from hami.state.store import Store

log = logging.getLogger(__name__)

RETRY_S = 30.0  # until an eviction is tried again that was refused
REPORTED_LIMIT = 10_000  # pods that are remembered as told
PERIOD_S = 1.0  # between rounds
_MANY = "more than {:g} % of all devices are unhealthy, so this is no fault of single ones"


@dataclass(frozen=True, slots=True)
class Fault:
    """A device that harms the pods on it."""

    node: str
    uuid: str
    cause: str


class ClaimedDevices(Protocol):
    """Claims that others allocate, and their devices: see :class:`hami.state.claims.ClaimCache`."""

    def published(self) -> Iterable[tuple[str, Device]]: ...
    def pods_on(self, node: str, uuid: str) -> Iterable[PodRef]: ...


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a pod is not evicted. *result*: one of `REMEDIATION_RESULTS`."""

    result: str
    text: str


_NO_CONTROLLER = Obstacle("not_replaced", "no controller replaces it")
_PROTECTED = Obstacle("protected", f"its node runs it, or it has the label {PREEMPTIBLE}=false")
_BUDGET = Obstacle("budget", "a PodDisruptionBudget does not permit it now")


@dataclass(frozen=True, slots=True)
class Harmed:
    """A pod on a device that harms it."""

    fault: Fault
    ref: PodRef
    traits: PodTraits | None
    """``None`` for a pod with a claim that others allocate: the store does not know it."""


class RemediationMetrics(Protocol):
    """Counts what became of harmed pods, such as :class:`hami.scheduler.metrics.Metrics`."""

    def remediation(self, result: str) -> None: ...


class Remediation(Task):
    """Evicts while this replica *leads*. *clock* is monotonic."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        events: EventRecorder,
        settings: Settings,
        metrics: RemediationMetrics,
        *,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        claimed: ClaimedDevices | None = None,
    ) -> None:
        """*claimed*: ``None`` if nobody watches claims."""
        super().__init__("remediation")
        self._cluster = cluster
        self._store = store
        self._events = events
        self._metrics = metrics
        self._leads = leads
        self._clock = clock
        self._claimed = claimed
        self._is_enabled = settings.remediation == EVICT and settings.remediation_rate > 0
        self._after_s = settings.remediation_after
        self._share = settings.remediation_share
        self._tokens = TokenBucket(settings.remediation_rate / 60 or 1.0, 1, clock())
        self._seen: dict[tuple[str, str], float] = {}  # faults, since when
        self._refused: dict[str, float] = {}  # pods, until when
        self._resume_at = -math.inf
        self._told = OncePerKey(REPORTED_LIMIT)

    def step(self) -> float | None:
        """Evicts at most one pod, and tells those that are left alone why."""
        if not self._is_enabled:
            return None
        if not self._leads() or self._clock() < self._resume_at:
            return PERIOD_S
        try:
            self._evict_harmed()
        except ClusterError as error:
            log.warning("remediation failed", extra={"error": error})
        return PERIOD_S

    def _evict_harmed(self) -> None:
        """Evicts at most one pod, and tells those that are left alone why. Raises: ClusterError."""
        faults, why_none = self._faults()
        for harmed in self._harmed(faults):
            why = why_none or _why_kept(harmed.traits)
            if why:
                self._tell(harmed, why)
            elif self._is_due(harmed) and self._evict(harmed):
                return

    def _faults(self) -> tuple[list[Fault], Obstacle | None]:
        """Returns the devices that have harmed pods for long enough, and why nobody is evicted; ``None`` if there is no
        such reason."""
        now = self._clock()
        harmful: dict[tuple[str, str], str] = {}
        for node, notes, _ in self._store.nodes.registered():
            for uuid, health in _harmful(notes).items():
                harmful[node, uuid] = health.cause
        self._seen = {key: self._seen.get(key, now) for key in harmful}
        faults = []
        for key in sorted(harmful):
            if now - self._seen[key] >= self._after_s:
                faults.append(Fault(*key, harmful[key]))
        if not faults:
            return [], None
        are_healthy = {**self._are_healthy(), **dict.fromkeys(harmful, False)}
        count = list(are_healthy.values()).count(False)
        why_none = None
        if count > 1 and count * 100 > self._share * len(are_healthy):
            why_none = Obstacle("many_unhealthy", _MANY.format(self._share))
        return faults, why_none

    def _are_healthy(self) -> dict[tuple[str, str], bool]:
        """Reports of all devices, by node and UUID, whether they are healthy."""
        are_healthy = {}
        for node, _, devices in self._store.nodes.registered():
            for device in devices:
                are_healthy[node, device.uuid] = device.healthy
        if self._claimed is not None:
            for node, device in self._claimed.published():
                are_healthy[node, device.uuid] = device.healthy
        return are_healthy

    def _harmed(self, faults: Sequence[Fault]) -> list[Harmed]:
        """Returns the pods that run on these devices, by node and name, each once."""
        if not faults:
            self._refused.clear()
            return []
        view = self._store.view()
        harmed: dict[str, Harmed] = {}
        for fault in faults:
            for booking in view.bookings_on(fault.node):
                record = self._store.pods.get(booking.uid)
                if _is_harmed(record, booking, fault):
                    harmed.setdefault(booking.uid, Harmed(fault, record.ref, record.traits))
            for ref in self._claiming(fault):
                harmed.setdefault(ref.uid, Harmed(fault, ref, None))
        self._refused = {uid: self._refused.get(uid, -math.inf) for uid in harmed}
        return sorted(harmed.values(), key=lambda each: (each.fault.node, str(each.ref)))

    def _claiming(self, fault: Fault) -> Iterable[PodRef]:
        """Returns the pods that have the device by claims which others allocate."""
        if self._claimed is None:
            return ()
        return self._claimed.pods_on(fault.node, fault.uuid)

    def _is_due(self, harmed: Harmed) -> bool:
        now = self._clock()
        return self._tokens.delay(now) == 0 and self._refused[harmed.ref.uid] <= now

    def _evict(self, harmed: Harmed) -> bool:
        """Evicts the pod, and reports whether that was tried. Raises: ClusterError."""
        fault, ref = harmed.fault, harmed.ref
        self._refused[ref.uid] = self._clock() + RETRY_S
        try:
            if not self._is_evictable(harmed) or not self._is_current(fault):
                return False
            self._tokens.take()
            self._cluster.request_eviction(ref)
        except (NotFound, Conflict):
            return False  # it is gone
        except ClusterError as error:
            if is_budget_refusal(error):
                self._tell(harmed, _BUDGET)
                return True
            self._resume_at = self._clock() + RETRY_S
            self._metrics.remediation("failed")
            raise
        fields = {"pod": ref, "node": fault.node, "device": fault.uuid}
        log.warning("pod evicted", extra=fields)
        self._metrics.remediation("evicted")
        self._events.record(
            ref,
            "Warning",
            "Evicted",
            f"evicted, since its device {fault.uuid} of node {fault.node} is unhealthy: {fault.cause}",
        )
        return True

    def _is_evictable(self, harmed: Harmed) -> bool:
        """Reports whether the controller of the pod is one that replaces pods, and what the store does not know.

        Raises: ClusterError.
        """
        owner = self._cluster.controller(harmed.ref)
        if owner is None:
            self._tell(harmed, _NO_CONTROLLER)
            return False
        if owner.kind not in RECREATING:
            text = f"{owner.kind} {owner.name} may not replace it"
            self._tell(harmed, Obstacle("not_replaced", text))
            return False
        return harmed.traits is not None or self._may_be_evicted(harmed)

    def _may_be_evicted(self, harmed: Harmed) -> bool:
        """Reports whether a pod that the store does not know runs, and may be evicted. Raises: ClusterError."""
        pod = self._cluster.pod(harmed.ref.namespace, harmed.ref.name)
        if pod is None or pod.is_terminated or pod.deletion:
            return False
        if pod.is_node_agent or pod.labels.get(PREEMPTIBLE) == "false":
            self._tell(harmed, _PROTECTED)
            return False
        return True

    def _is_current(self, fault: Fault) -> bool:
        """Reports whether the device still harms pods, and this replica leads: the watch may be late, and the device
        well again. Raises: ClusterError."""
        node = self._cluster.node(fault.node)
        if node is None or fault.uuid not in _harmful(node.annotations):
            return False
        return self._leads()

    def _tell(self, harmed: Harmed, why: Obstacle) -> None:
        fault, ref = harmed.fault, harmed.ref
        if not self._told.is_new((ref.uid, why)):
            return
        fields = {"pod": ref, "device": fault.uuid, "reason": why.text}
        log.warning("pod is not evicted", extra=fields)
        self._metrics.remediation(why.result)
        self._events.record(
            ref,
            "Warning",
            "NotEvicted",
            f"its device {fault.uuid} is unhealthy ({fault.cause}), and it is not evicted: {why.text}",
        )


def _harmful(annotations: Mapping[str, str]) -> dict[str, DeviceHealth]:
    """Returns the devices of a node that harm the pods on them, by UUID."""
    text = annotations.get(DEVICE_HEALTH)
    if text is None:
        return {}
    found = {}
    for uuid, health in parse_device_health(text).items():
        if health.harms_pods:
            found[uuid] = health
    return found


def _why_kept(traits: PodTraits | None) -> Obstacle | None:
    """Returns why nobody would replace the pod, or may evict it; ``None`` if neither is known."""
    if traits is None:
        return None
    if not traits.controller:
        return _NO_CONTROLLER
    if traits.is_protected:
        return _PROTECTED
    return None


def _is_harmed(record: PodRecord | None, booking: Booking, fault: Fault) -> TypeGuard[PodRecord]:
    """Reports whether the pod of *booking* runs on the device, and is not ending."""
    if record is None or not record.is_running or record.ends_by:
        return False
    for _, charges in booking.charges:
        if fault.uuid in [charge.uuid for charge in charges]:
            return True
    return False
