"""Remediation: pods on a device that harms them are evicted, so that their controllers make others, on other devices.

The Eviction API respects PodDisruptionBudgets. Only pods are evicted that somebody replaces, a few a minute, and none
while more devices are unhealthy than single faults explain, as while a driver is rolled out. What is decided follows
from the cluster alone, so a new leader goes on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from hami.codec.health import DeviceHealth, parse_device_health
from hami.codec.keys import DEVICE_HEALTH, PREEMPTIBLE
from hami.errors import ClusterError, Conflict, NotFound
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import PodRef
from hami.runtime.once import OncePerKey
from hami.runtime.token_bucket import TokenBucket
from hami.scheduler.rejected_pods import RECREATING
from hami.scheduler.settings import EVICT, Settings
from hami.state.bookings import Booking
from hami.state.read_pod import PodRecord
from hami.state.store import Store

log = logging.getLogger(__name__)

RETRY_S = 30.0  # until an eviction is tried again that was refused
REPORTED_LIMIT = 10_000  # pods that are remembered as told
_NO_CONTROLLER = "no controller replaces it"
_PROTECTED = f"its node runs it, or it has the label {PREEMPTIBLE}=false"
_MANY = "more than {:g} % of all devices are unhealthy, so this is no fault of single ones"
_BUDGET = "a PodDisruptionBudget does not permit it now"


@dataclass(frozen=True, slots=True)
class Fault:
    """A device that harms the pods on it."""

    node: str
    uuid: str
    cause: str


class Remediation:
    """For one thread, while this replica *leads*. *clock* is monotonic."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        events: EventRecorder,
        settings: Settings,
        *,
        leads: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._events = events
        self._leads = leads
        self._clock = clock
        self._is_enabled = settings.remediation == EVICT and settings.remediation_rate > 0
        self._after_s = settings.remediation_after
        self._share = settings.remediation_share
        self._tokens = TokenBucket(settings.remediation_rate / 60 or 1.0, 1, clock())
        self._seen: dict[tuple[str, str], float] = {}  # faults, since when
        self._refused: dict[str, float] = {}  # pods, until when
        self._resume_at = -math.inf
        self._told = OncePerKey(REPORTED_LIMIT)

    def evict_harmed(self) -> None:
        """Evicts at most one pod, and tells those that are left alone why. Raises: ClusterError."""
        if not self._is_enabled or self._clock() < self._resume_at:
            return
        faults, why_none = self._faults()
        for fault, record in self._harmed(faults):
            why = why_none or _why_kept(record)
            if why:
                self._tell(record.ref, fault, why)
            elif self._is_due(record) and self._evict(record, fault):
                return

    def _faults(self) -> tuple[list[Fault], str]:
        """Returns the devices that have harmed pods for long enough, and why nobody is evicted; empty if there is no
        such reason."""
        now = self._clock()
        harmful: dict[tuple[str, str], str] = {}
        unhealthy: set[tuple[str, str]] = set()
        total = 0
        for node, notes, devices in self._store.nodes.registered():
            total += len(devices)
            for device in devices:
                if not device.healthy:
                    unhealthy.add((node, device.uuid))
            for uuid, health in _harmful(notes).items():
                harmful[node, uuid] = health.cause
        self._seen = {key: self._seen.get(key, now) for key in harmful}
        faults = []
        for key in sorted(harmful):
            if now - self._seen[key] >= self._after_s:
                faults.append(Fault(*key, harmful[key]))
        count = len(unhealthy | harmful.keys())
        why_none = ""
        if count > 1 and count * 100 > self._share * total:
            why_none = _MANY.format(self._share)
        return faults, why_none

    def _harmed(self, faults: Sequence[Fault]) -> list[tuple[Fault, PodRecord]]:
        """Returns the pods that run on these devices, by node and name, each once."""
        if not faults:
            self._refused.clear()
            return []
        view = self._store.view()
        harmed: dict[str, tuple[Fault, PodRecord]] = {}
        for fault in faults:
            for booking in view.bookings_on(fault.node):
                record = self._store.pods.get(booking.uid)
                if _is_harmed(record, booking, fault):
                    harmed.setdefault(booking.uid, (fault, record))
        self._refused = {uid: self._refused.get(uid, -math.inf) for uid in harmed}
        return sorted(harmed.values(), key=lambda pair: (pair[0].node, str(pair[1].ref)))

    def _is_due(self, record: PodRecord) -> bool:
        now = self._clock()
        return self._tokens.delay(now) == 0 and self._refused[record.ref.uid] <= now

    def _evict(self, record: PodRecord, fault: Fault) -> bool:
        """Evicts the pod, and reports whether that was tried. Raises: ClusterError."""
        self._refused[record.ref.uid] = self._clock() + RETRY_S
        try:
            if not self._is_replaced(record.ref, fault) or not self._is_current(fault):
                return False
            self._tokens.take()
            self._cluster.request_eviction(record.ref)
        except (NotFound, Conflict):
            return False  # it is gone
        except ClusterError as error:
            if error.status == 429 and "disruption budget" in str(error):
                self._tell(record.ref, fault, _BUDGET)
                return True
            self._resume_at = self._clock() + RETRY_S
            raise
        fields = {"pod": record.ref, "node": fault.node, "device": fault.uuid}
        log.warning("pod evicted", extra=fields)
        self._events.record(
            record.ref,
            "Warning",
            "Evicted",
            f"evicted, since its device {fault.uuid} of node {fault.node} is unhealthy: {fault.cause}",
        )
        return True

    def _is_replaced(self, ref: PodRef, fault: Fault) -> bool:
        """Reports whether the controller of the pod is one that replaces pods. Raises: ClusterError."""
        owner = self._cluster.controller(ref)
        if owner is None:
            self._tell(ref, fault, _NO_CONTROLLER)
            return False
        if owner.kind not in RECREATING:
            self._tell(ref, fault, f"{owner.kind} {owner.name} may not replace it")
            return False
        return True

    def _is_current(self, fault: Fault) -> bool:
        """Reports whether the device still harms pods, and this replica leads: the watch may be late, and the device
        well again. Raises: ClusterError."""
        node = self._cluster.node(fault.node)
        if node is None or fault.uuid not in _harmful(node.annotations):
            return False
        return self._leads()

    def _tell(self, ref: PodRef, fault: Fault, why: str) -> None:
        if not self._told.is_new((ref.uid, why)):
            return
        log.warning("pod is not evicted", extra={"pod": ref, "device": fault.uuid, "reason": why})
        self._events.record(
            ref,
            "Warning",
            "NotEvicted",
            f"its device {fault.uuid} is unhealthy ({fault.cause}), and it is not evicted: {why}",
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


def _why_kept(record: PodRecord) -> str:
    """Returns why nobody would replace the pod, or may evict it; empty if neither is known."""
    if not record.traits.controller:
        return _NO_CONTROLLER
    if record.traits.is_protected:
        return _PROTECTED
    return ""


def _is_harmed(record: PodRecord | None, booking: Booking, fault: Fault) -> TypeGuard[PodRecord]:
    """Reports whether the pod of *booking* runs on the device, and is not ending."""
    if record is None or not record.is_running or record.ends_by:
        return False
    for _, charges in booking.charges:
        if fault.uuid in [charge.uuid for charge in charges]:
            return True
    return False
