"""Leader election with a coordination.k8s.io/v1 Lease.

Only the local monotonic clock is used. A leader counts from *before* it sends the write that renews its lease, and for
less than the lease's duration; a candidate counts from *after* it sees the lease change. So there are never two
leaders, whatever their wall clocks say, provided that both clocks run at nearly the same speed.

A candidate that needs the leadership requests it from the leader through an annotation of the Lease.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from hami.codec.times import render_micro_time
from hami.errors import Conflict, NotFound
from hami.kube.leases import LeaseRecord, Leases
from hami.runtime.clock import utc_now
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)

HANDOVER_KEY = "hami.io/handover-to"
"""Annotation of the Lease: identity of the candidate that requests the leadership."""

IDLE_S = 3.0
"""A leader that has not been needed for so many seconds hands the leadership over when it is requested."""
SETTLE_S = 0.5
"""Seconds in which a write of the last leader may still arrive after its lease has expired: it was sent in time, and
the API server hung before it carried it out."""

_MIN_TIMEOUT_S = 0.1
_READS = 2  # by a candidate in a retry period, so that it sees a renewal soon
_READS_REQUESTING = 4  # the same for a candidate that has requested the leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """*duration*: seconds after which others may take a lease that is not renewed. *renew*: seconds for which a renewal
    makes this replica the leader, from when it was sent. *retry*: seconds between renewals, and more than a request
    may take; a candidate reads the lease twice as often. The order is retry < renew < duration. In seconds."""

    duration: float = 10.0
    renew: float = 7.0
    retry: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A participant in the election on a Lease. *identity*: of this process only, also after a restart. *has_ended*:
    reports whether the process of an identity has certainly ended, so that its lease is free at once. *is_writing*:
    reports whether a write that only the leader may make could still arrive: the lease is not given away then."""

    namespace: str
    lease: str
    identity: str
    has_ended: Callable[[str], bool] = lambda identity: False
    is_writing: Callable[[], bool] = lambda: False


class _Candidacy:
    """The lease as a candidate sees it, and since when it requests the leadership."""

    def __init__(
        self,
        cluster: Leases,
        candidate: Participant,
        times: LeaseTimes,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._candidate = candidate
        self._times = times
        self._clock = clock
        # the last state of the lease, and when it was first seen
        self._seen: tuple[str, str, int] | None = None
        self._seen_since = 0.0
        self._requested_at = -math.inf  # when the leadership was needed here

    def read(self, timeout_s: float) -> LeaseRecord | None:
        """Returns the lease as it is now; ``None`` if there is none."""
        candidate = self._candidate
        return self._cluster.lease(candidate.namespace, candidate.lease, timeout=timeout_s)

    def observe(self, seen: LeaseRecord | None) -> None:
        """Notes since when the lease is in this state. A new holder ends our request: it may serve the same need."""
        state = ("", "", -1) if seen is None else (seen.holder, seen.renew_time, seen.transitions)
        if state == self._seen:
            return
        if self._seen is not None and state[0] not in ("", self._seen[0]):
            self.end_request()
        self._seen, self._seen_since = state, self._clock()

    def free_at(self, seen: LeaseRecord) -> float:
        """Returns when this replica may take the lease if it does not change. A candidate that has requested it may do
        so earlier than the others."""
        seconds = 0.0
        if seen.holder and not self._candidate.has_ended(seen.holder):
            seconds = seen.duration_s or math.ceil(self._times.duration)
        if seen.annotations.get(HANDOVER_KEY) not in (None, self._candidate.identity):
            seconds += 2 * self._times.retry
        return self._seen_since + seconds

    def request(self, now: float) -> bool:
        """Requests the leadership. Reports whether that is new, or long ago."""
        if now - self._requested_at < self._times.retry:
            return False
        self._requested_at = now
        return True

    def is_requesting(self, now: float) -> bool:
        """Reports whether the leadership has been requested recently and not been received."""
        return now - self._requested_at < 3 * self._times.retry

    def end_request(self) -> None:
        """Requests the leadership no more."""
        self._requested_at = -math.inf

    def delay(self, began: float, now: float, free_at: float) -> float:
        """Returns the seconds from *now* to the next step after one that *began* then: at regular intervals, and when
        the lease of another replica ends."""
        reads = _READS_REQUESTING if self.is_requesting(now) else _READS
        pause = max(_MIN_TIMEOUT_S, began + self._times.retry / reads - now)
        if free_at > now:
            pause = min(pause, free_at - now)
        return pause


class Election(Task):
    """Takes part in an election until `stop`, then releases the lease if it is held.

    The caller of `stop` finishes its writes first: otherwise the lease is not released.
    """

    def __init__(
        self,
        cluster: Leases,
        candidate: Participant,
        *,
        times: LeaseTimes = LeaseTimes(),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """*now* is only written to the lease."""
        super().__init__("election")
        self.changed = threading.Condition()
        """Notified when a term has begun, been renewed or ended. Not held across I/O."""
        self.term = 0
        """How often this replica's leadership has begun or ended."""
        self._cluster = cluster
        self._candidate = candidate
        self._identity = candidate.identity
        self._is_writing = candidate.is_writing
        self._times = times
        self._duration_s = math.ceil(times.duration)
        self._clock = clock
        self._now = now
        self._until = 0.0  # this replica leads before this time
        self._settles_at = 0.0  # when the writes of the last leader have arrived
        self._leading = False  # as last told by `term`
        self._held: LeaseRecord | None = None  # the lease as last written, while this replica leads
        self._candidacy = _Candidacy(cluster, candidate, times, clock)
        self._free_at = math.inf  # when the observed lease expires
        self._unsure = False  # a write that would make this replica the leader had no answer
        self._needed_at = -math.inf  # when it was needed last
        self._reported = OncePerKey()

    def is_leader(self) -> bool:
        """Reports whether this replica leads now."""
        return self._clock() < self._until

    def leads_until(self) -> float:
        """Returns the time, by the clock, until which this replica certainly leads; 0 or a past time if it does not."""
        return self._until

    def settles_at(self) -> float:
        """Returns the time, by the clock, from which on no write of the last leader arrives any more."""
        return self._settles_at

    def need(self) -> None:
        """Records that the leadership is needed, by a verb. To be repeated while it is.

        A leader keeps it for some time then; a candidate requests it from the leader, which may refuse.
        """
        self._needed_at = now = self._clock()
        if now >= self._until and self._candidacy.request(now):
            self.wake()

    def step(self) -> float:
        """Reads or renews the lease once. Returns the seconds until the next step. Never raises."""
        began, self._free_at = self._clock(), math.inf
        try:
            if self._held is not None:
                self._renew_held(self._held)
            else:
                self._run_for(self._candidacy.read(self._timeout()))
            self._reported.clear("error")
        except Exception as error:  # the term may end at any error
            _report(error, self._candidate.lease, self._reported)
        self._notify()
        now = self._clock()
        if not self._leading:
            return self._candidacy.delay(began, now, self._free_at)
        pause = max(_MIN_TIMEOUT_S, began + self._times.retry - now)
        return max(0.0, min(pause, self._until - now))

    def finish(self) -> None:
        """Releases the lease if this replica holds it or may hold it, so that a successor need not wait."""
        holds = self._held is not None or self._unsure
        self._until = 0.0
        self._notify()
        if not holds:
            return
        try:
            self._free(self._candidacy.read(self._timeout()))
        except Exception as error:  # the thread ends, and the lease will expire
            _report(error, self._candidate.lease, self._reported)

    def _timeout(self) -> float:
        """Returns the seconds for one request: less than a retry period, and not beyond our term."""
        limit = 0.75 * self._times.retry
        if not self._leading:
            return limit
        return max(_MIN_TIMEOUT_S, min(limit, self._until - self._clock()))

    def _notify(self) -> None:
        """Tells others whether the leadership has begun or ended."""
        leads = self.is_leader()
        if not leads:
            self._held = None
        with self.changed:
            if leads != self._leading:
                self._leading = leads
                self.term += 1
                log.info(
                    "started leading" if leads else "stopped leading",
                    extra={"lease": self._candidate.lease, "identity": self._identity},
                )
            self.changed.notify_all()

    def _renew_held(self, held: LeaseRecord) -> None:
        """Renews the lease, or hands it over. Reads it after a conflict, which a lost answer can cause."""
        if self._hands_over(held):
            return
        try:
            self._write(held)
        except NotFound:
            self._lose("the lease has been deleted")
        except Conflict:
            seen = self._candidacy.read(self._timeout())
            if seen is None or seen.holder != self._identity:
                self._lose("another replica holds the lease")
                self._candidacy.observe(seen)
            elif not self._hands_over(seen):
                self._held = seen
                self._write(seen)

    def _hands_over(self, held: LeaseRecord) -> bool:
        """Hands the lease over if it is requested and no longer needed here. Reports whether it did."""
        successor = held.annotations.get(HANDOVER_KEY, "")
        is_needed = self._clock() - self._needed_at <= IDLE_S
        if successor in ("", self._identity) or self._is_writing() or is_needed:
            return False
        self._lose(f"handed over to {successor}")
        self._notify()  # before the write, after which the successor may lead
        try:
            self._free(held)
        except Conflict:  # another candidate has requested it, or an answer was lost
            self._free(self._candidacy.read(self._timeout()))
        return True

    def _run_for(self, seen: LeaseRecord | None) -> None:
        """Takes the lease if it is free, or requests it if that is wanted. Raises: Conflict if another candidate was
        faster."""
        candidacy = self._candidacy
        candidacy.observe(seen)
        if seen is None:
            self._write(
                LeaseRecord(namespace=self._candidate.namespace, name=self._candidate.lease)
            )
            return
        if seen.holder == self._identity:
            # our own write, whose answer was lost or late: the identity is unique
            self._write(seen)
            return
        free_at = candidacy.free_at(seen)
        if self._clock() >= free_at:
            self._write(
                replace(
                    seen,
                    acquire_time="",
                    transitions=seen.transitions + 1,
                    annotations={HANDOVER_KEY: None},
                )
            )
            self._settles_at = self._clock() + (SETTLE_S if seen.holder else 0.0)
            return
        is_requested = seen.annotations.get(HANDOVER_KEY) == self._identity
        if is_requested or not candidacy.is_requesting(self._clock()):
            self._free_at = free_at
        else:
            request = replace(seen, annotations={HANDOVER_KEY: self._identity})
            self._cluster.write_lease(request, timeout=self._timeout())
            log.info(
                "requested the leadership",
                extra={"lease": self._candidate.lease, "holder": seen.holder},
            )

    def _write(self, lease: LeaseRecord) -> None:
        """Writes the lease with this replica as its holder. The term counts from before the write."""
        stamp = render_micro_time(self._now())
        lease = replace(
            lease,
            holder=self._identity,
            duration_s=self._duration_s,
            renew_time=stamp,
            acquire_time=lease.acquire_time or stamp,
        )
        sent = self._clock()
        try:
            self._held = self._cluster.write_lease(lease, timeout=self._timeout())
        except Exception as error:
            self._unsure = not isinstance(error, (Conflict, NotFound))
            raise
        self._unsure = False
        self._until = sent + self._times.renew
        self._candidacy.end_request()

    def _lose(self, reason: str) -> None:
        log.info(
            "lease lost",
            extra={"lease": self._candidate.lease, "identity": self._identity, "reason": reason},
        )
        self._until = 0.0
        self._held = None

    def _free(self, held: LeaseRecord | None) -> None:
        """Clears the holder of *held*, the lease as last known. Another holder's lease is not changed.

        Must be called when the term has ended: a write that begins later does not find a leader, and one that has begun
        before keeps the lease from being freed. Then it expires, or is taken again.
        """
        if self._is_writing():
            log.warning(
                "lease not released, a write of the leader may still arrive",
                extra={"lease": self._candidate.lease, "identity": self._identity},
            )
        elif held is not None and held.holder == self._identity:
            freed = replace(
                held, holder="", duration_s=1, renew_time=render_micro_time(self._now())
            )
            self._candidacy.observe(self._cluster.write_lease(freed, timeout=self._timeout()))
            log.info(
                "lease released", extra={"lease": self._candidate.lease, "identity": self._identity}
            )


def _report(error: Exception, lease: str, reported: OncePerKey) -> None:
    """Logs each kind of error once. Their texts differ, because they contain the timeout."""
    kind = type(error).__name__, getattr(error, "status", None), type(error.__cause__).__name__
    if reported.is_new("error", kind):
        level = logging.INFO if isinstance(error, Conflict) else logging.WARNING
        log.log(
            level,
            "leader election failed, will retry",
            extra={"lease": lease, "error": str(error)},
        )


class AlwaysLeader:
    """The elector of a single replica (``--leader-elect=false``), which always leads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.term = 1

    def is_leader(self) -> bool:
        """Returns true."""
        return True

    def leads_until(self) -> float:
        """Returns infinity."""
        return math.inf

    def settles_at(self) -> float:
        """Returns 0: there is no other leader."""
        return 0.0

    def need(self) -> None:
        """Does nothing."""


Elector = Election | AlwaysLeader
