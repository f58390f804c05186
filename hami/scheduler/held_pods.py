"""The pods that hold devices, from their Bindings to the ends of their containers, as the watch shows them.

Every replica follows them, so that the next leader knows the pods that have ended since the last checkpoint. What a
pod holds is what the store has booked for it; a resize ends an interval and begins one.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import chain

import msgspec

from hami.codec.times import parse_time
from hami.codec.usage_sums import (
    MAX_NAME,
    NOTHING_HELD,
    HeldAmounts,
    UsageDay,
    UsageKey,
    UsageSums,
)
from hami.kube.reflector import Sink
from hami.model import Device, Pod
from hami.scheduling.usage import Charge
from hami.state.counting import what_counts
from hami.state.ledger import HeldDevices, HeldInterval, Ledger, resumed
from hami.state.read_pod import PodRecord, read_bookings
from hami.state.store import Store
from hami.vendors.spec import CoreUnit

MAX_ENDED = 50_000  # that are remembered of those which have ended
KINDS = 16_384  # of pods that hold the same; these share a record of it
DEVICE_PLUGIN, DRA = "device-plugin", "dra"
"""Allocation modes."""
UNKNOWN = "unknown"
"""The model of a device that its node does not name."""
_WHOLE = 1000  # thousandths of a device

Charges = tuple[tuple[str, tuple[Charge, ...]], ...]


class _OpenPod(msgspec.Struct, frozen=True, gc=False):
    charges: Charges
    begin: int
    held: HeldDevices


class HeldReader:
    """Reads what pods hold, from what is booked for them and the devices of their nodes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        in_units = []
        for vendor in store.vendors:
            if vendor.resources.core_unit is CoreUnit.COMPUTE_UNITS:
                in_units.append(vendor.key)
        self._in_units = frozenset(in_units)
        # equal ones are one object
        self._held = functools.lru_cache(KINDS)(HeldDevices)

    def read(self, pod: Pod, node: str, charges: Charges) -> HeldDevices:
        """Returns what *charges* of *pod* take of the devices of *node*."""
        mode = DRA if pod.claim else DEVICE_PLUGIN
        devices = self._devices_of(node)
        parts: dict[UsageKey, HeldAmounts] = {}
        for vendor, of_vendor in charges:
            for charge in of_vendor:
                device = devices.get((vendor, charge.uuid))
                model = device.model if device is not None else UNKNOWN
                key = UsageKey(
                    pod.ref.namespace,
                    vendor[:MAX_NAME],
                    model[:MAX_NAME],
                    pod.scope.priority_class[:MAX_NAME],
                    mode,
                )
                amounts = _amounts(charge, device, in_units=vendor in self._in_units)
                parts[key] = parts.get(key, NOTHING_HELD).plus(amounts)
        kind, name = pod.workload
        if not kind:
            kind, name = "Pod", pod.ref.name
        return self._held((kind[:MAX_NAME], name[:MAX_NAME]), tuple(sorted(parts.items())))

    def _devices_of(self, node: str) -> Mapping[tuple[str, str], Device]:
        devices = chain.from_iterable(
            [of_node for _, _, of_node in self._store.nodes.registered([node])]
        )
        return {(device.vendor, device.uuid): device for device in devices}


class HeldPods:
    """Follows the pods for *sink*, the store's pods, to which all is passed on. Threads may share it.

    *now* is the time of day in UTC.
    """

    def __init__(self, sink: Sink[Pod], store: Store, now: Callable[[], datetime]) -> None:
        self._sink = sink
        self._store = store
        self._now = now
        self._reader = HeldReader(store)
        self._lock = threading.Lock()  # guards the rest; not held while the sink works
        self._open: dict[str, _OpenPod] = {}
        self._ended: deque[HeldInterval] = deque(maxlen=MAX_ENDED)
        self._ended_uids: dict[str, None] = {}
        self._ledger: Ledger | None = None

    def upsert(self, pod: Pod, as_of: float = -math.inf) -> None:
        """Takes *pod* as a sink does."""
        self._sink.upsert(pod, as_of)
        record = self._store.pods.get(pod.ref.uid)
        if record is None or not record.node:
            return
        with self._lock:
            if record.terminated:
                self._end_terminated(pod, record)
            else:
                self._follow(pod, record)

    def remove(self, pod: Pod) -> None:
        """Takes *pod*, which has been deleted."""
        self._sink.remove(pod)
        with self._lock:
            self._end(pod.ref.uid, parse_time(pod.finished))

    def prune(self, seen: set[str], started: float) -> None:
        """Ends a list: pods that are gone ended unseen."""
        self._sink.prune(seen, started)
        with self._lock:
            for uid in list(self._open):
                if self._store.pods.get(uid) is None:
                    self._end(uid, 0)

    def lead(self, sums: UsageSums) -> None:
        """Makes the ledger that goes on from *sums*; it is kept until `drop`."""
        with self._lock:
            pods = [HeldInterval(uid, pod.held, pod.begin) for uid, pod in self._open.items()]
            self._ledger = resumed(sums, self._seconds(), [*self._ended, *pods])

    def drop(self) -> None:
        """Forgets the ledger."""
        with self._lock:
            self._ledger = None

    def checkpoint(self, until: int) -> tuple[UsageSums, list[UsageDay]]:
        """Settles all until a moment. Returns the sums, and the days that have ended and are not kept elsewhere yet.
        `lead` has been called before."""
        with self._lock:
            assert self._ledger is not None
            return self._ledger.checkpoint(until), self._ledger.ended_days()

    def settle(self, sums: UsageSums, days: Iterable[UsageDay]) -> None:
        """Records that *sums* and *days* are kept elsewhere."""
        with self._lock:
            if self._ledger is not None:
                self._ledger.drop_days(days)
            while self._ended and (self._ended[0].end or 0) <= sums.settled:
                self._ended_uids.pop(self._ended.popleft().uid, None)

    def _seconds(self) -> int:
        return int(self._now().timestamp())

    def _follow(self, pod: Pod, record: PodRecord) -> None:
        """Begins an interval of a pod that is bound, or another one if it holds something else now."""
        uid = pod.ref.uid
        booking = what_counts(record, None)
        charges = booking.charges if booking is not None else ()
        current = self._open.get(uid)
        if current is not None and current.charges == charges:
            return
        now = self._seconds()
        if current is not None:
            self._end(uid, now)
        if not charges:
            return
        held = self._reader.read(pod, record.node, charges)
        begin = now if current is not None else _begin_of(pod, record, now)
        self._open[uid] = _OpenPod(charges, begin, held)
        if self._ledger is not None:
            self._ledger.begin(uid, held, begin)

    def _end(self, uid: str, finished: int) -> None:
        """Ends the interval of a pod. *finished*: by its kubelet, in Unix seconds, if that is known; clocks of nodes
        may be wrong."""
        pod = self._open.pop(uid, None)
        if pod is None:
            return
        end = now = self._seconds()
        if pod.begin <= finished <= now:
            end = finished
        self._remember(HeldInterval(uid, pod.held, pod.begin, max(end, pod.begin)))
        if self._ledger is not None:
            self._ledger.end(uid, end)

    def _end_terminated(self, pod: Pod, record: PodRecord) -> None:
        """Ends the interval of a pod whose containers have ended. One that was not seen before is remembered: what it
        held after the last checkpoint is not in there."""
        uid, finished = pod.ref.uid, parse_time(pod.finished)
        if uid in self._open:
            self._end(uid, finished)
            return
        if uid in self._ended_uids or not finished:
            return
        reading = read_bookings(pod, self._store.vendors, record.most_shares)
        charges = reading.bookings[record.init_done].charges
        if charges and not reading.problems:
            begin = _begin_of(pod, record, finished)
            held = self._reader.read(pod, record.node, charges)
            self._remember(HeldInterval(uid, held, begin, min(finished, self._seconds())))

    def _remember(self, pod: HeldInterval) -> None:
        if len(self._ended) == MAX_ENDED:
            self._ended_uids.pop(self._ended[0].uid, None)
        self._ended.append(pod)
        self._ended_uids[pod.uid] = None


def _begin_of(pod: Pod, record: PodRecord, now: int) -> int:
    """Returns when the pod was bound: by its Binding, else by its kubelet, else now. Times that cannot be are skipped:
    others may have written them."""
    created = parse_time(pod.created)
    for time in (record.bound_at, record.assigned_at, record.started):
        if 0 < time <= now:
            return max(time, created)
    return now


def _amounts(charge: Charge, device: Device | None, *, in_units: bool) -> HeldAmounts:
    """Returns what *charge* takes of its device. *in_units*: its cores are compute units, not percent."""
    cores = max(0, charge.cores)
    if in_units and device is not None and device.cores > 0:
        cores = -(-cores * 100 // device.cores)
    of_memory = 0
    if device is not None and device.memory_mib > 0:
        of_memory = _thousandths(charge.memory_mib, device.memory_mib)
    share = max(min(cores * 10, _WHOLE), of_memory)
    if not share:  # neither is limited
        slots = device.slots if device is not None else 1
        share = _thousandths(charge.slots, slots)
    return HeldAmounts(1, max(0, charge.memory_mib), cores, share, of_memory)


def _thousandths(part: int, whole: int) -> int:
    return max(0, min(round(_WHOLE * part / max(1, whole)), _WHOLE))
