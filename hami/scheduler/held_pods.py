"""The pods that hold devices, from their Bindings to the ends of their containers, as the watch shows them.

Every replica follows them, so that the next leader knows the pods that have ended since the last checkpoint. What a
pod holds is what the store has booked for it; a resize ends an interval and begins one.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from hami.codec.times import parse_time
from hami.codec.usage_sums import UsageDay, UsageSums
from hami.kube.reflector import Sink
from hami.model import Pod
from hami.state.counting import what_counts
from hami.state.held import Charges, HeldReader, begin_of
from hami.state.ledger import HeldDevices, HeldInterval, Ledger, resumed
from hami.state.read_pod import PodRecord, read_bookings
from hami.state.store import Store

MAX_ENDED = 50_000  # that are remembered of those which have ended


class _OpenPod(msgspec.Struct, frozen=True, gc=False):
    charges: Charges
    begin: int
    held: HeldDevices


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
        begin = now if current is not None else begin_of(pod, record, now)
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
            begin = begin_of(pod, record, finished)
            held = self._reader.read(pod, record.node, charges)
            self._remember(HeldInterval(uid, held, begin, min(finished, self._seconds())))

    def _remember(self, pod: HeldInterval) -> None:
        if len(self._ended) == MAX_ENDED:
            self._ended_uids.pop(self._ended[0].uid, None)
        self._ended.append(pod)
        self._ended_uids[pod.uid] = None
