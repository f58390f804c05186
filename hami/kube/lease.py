"""Leader election on a coordination.k8s.io/v1 Lease: who may act, and until when.

Time is counted by our own monotonic clock alone. A leader counts from *before* it sent the write that renewed its
lease, and for less than the lease lasts; a candidate counts from *after* it saw the lease change. So two never lead at
the same time, whatever their wall clocks say, as long as both clocks run at much the same speed.

Who needs the leadership elsewhere asks the leader for it through an annotation of the Lease. This module does not
know what a leader does; it only calls back.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from hami.kube.cluster import LeaseRecord
from hami.errors import Conflict, NotFound

__all__ = ["HANDOVER_KEY", "AlwaysLeader", "Election", "Elector", "LeaderTerm", "LeaseCalls"]

log = logging.getLogger(__name__)

HANDOVER_KEY = "hami.io/handover-to"
"""Annotation of the Lease: identity of the candidate that asks for the leadership."""

_LEAST_TIMEOUT_S = 0.1
_LOOKS = 2  # times a candidate looks at the lease in a retry period, so that it counts from soon after a renewal
_LOOKS_ASKING = 4  # the same for one that has asked for the leadership


class LeaderTerm(Protocol):
    """Whether this replica leads, and until when."""

    def leads_until(self) -> float: ...


class Elector(Protocol):
    """What the rest asks of an election."""

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def is_leader(self) -> bool: ...

    def leads_until(self) -> float: ...

    def request_handover(self) -> None: ...


class LeaseCalls(Protocol):
    """The calls of `hami.kube.cluster.Cluster` that an election makes."""

    def lease(self, namespace: str, name: str, *, timeout: float | None = None) -> LeaseRecord | None: ...

    def create_lease(self, lease: LeaseRecord, *, timeout: float | None = None) -> LeaseRecord: ...

    def update_lease(self, lease: LeaseRecord, *, timeout: float | None = None) -> LeaseRecord: ...


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A state of the lease that was not ours to lead, and when we saw it first (by our clock)."""

    state: tuple[str, str, int]
    at: float


class Election:
    """Candidate, and at times leader, in the thread that calls `run`. All other methods may be called by any thread."""

    def __init__(self, cluster: LeaseCalls, *, namespace: str, name: str, identity: str,
                 on_started: Callable[[], object], on_stopped: Callable[[], object],
                 may_hand_over: Callable[[], bool] = lambda: False,
                 has_ended: Callable[[str], bool] = lambda identity: False,
                 duration: float = 10.0, renew: float = 7.0, retry: float = 2.0,
                 clock: Callable[[], float] = time.monotonic,
                 now: Callable[[], datetime] = lambda: datetime.now(UTC),
                 wait: Callable[[float], object] | None = None) -> None:
        """*identity* must be this process's alone, also after a restart.

        *duration*: seconds after which others may take a lease that is not renewed. *renew*: seconds we lead after
        a renewal was sent. *retry*: seconds between renewals; a candidate looks twice as often; no request takes as
        long. The callbacks run in the election's thread and must return soon: no renewal happens meanwhile.
        *has_ended* may say of a holder's identity that it certainly runs no more: its lease is then free at once.
        *on_stopped* is called when the leadership has ended, never before *on_started*. *now* is only written down.
        *wait*: sleeps that many seconds; the default is woken by `stop` and `request_handover`.
        Raises: ValueError unless retry < renew < duration.
        """
        if not 0 < retry < renew < duration:
            raise ValueError(f"leader election needs 0 < retry < renew < duration, not {retry}, {renew}, {duration}")
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._may_hand_over = may_hand_over
        self._has_ended = has_ended
        self._duration_s = math.ceil(duration)
        self._renew = renew
        self._retry = retry
        self._clock = clock
        self._now = now
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._wait = wait or self._wake.wait
        self._until = 0.0  # we lead before this moment
        self._leading = False  # on_started has been called, and on_stopped not yet
        self._held: LeaseRecord | None = None  # the lease as we last wrote it, while we lead
        self._sighting: _Sighting | None = None
        self._free_at = math.inf  # when the lease that a candidate saw is free, if nothing happens
        self._unsure = False  # a write that would make us leader has had no answer
        self._asked_at = -math.inf  # when request_handover was called
        self._complaint = ""

    def is_leader(self) -> bool:
        """We lead at this moment."""
        return self._clock() < self._until

    def leads_until(self) -> float:
        """The moment, by the clock, until which we certainly lead; 0 or past when we do not."""
        return self._until

    def request_handover(self) -> None:
        """Ask the leader to make room for us. It may refuse; ask again as long as it is needed."""
        now = self._clock()
        if now < self._until or now - self._asked_at < self._retry:
            return
        self._asked_at = now
        self._wake.set()

    def run(self) -> None:
        """Stand for election until `stop`, then release the lease if it is ours. Never raises."""
        while not self._stopping.is_set():
            self._wake.clear()
            delay = self.step()
            if not self._stopping.is_set():
                self._wait(delay)
        self._release()

    def stop(self) -> None:
        """End `run`. The caller has its writes finished first: a successor may lead at once."""
        self._stopping.set()
        self._wake.set()

    def step(self) -> float:
        """One look at the lease and what follows from it; the seconds until the next one. Never raises."""
        began, self._free_at = self._clock(), math.inf
        try:
            if self._held is not None:
                self._renew_held(self._held)
            else:
                self._stand(self._cluster.lease(self._namespace, self._name, timeout=self._timeout()))
            self._complaint = ""
        except Exception as error:  # the outermost loop: whatever it is, we stay a candidate
            self._complain(error)
        self._settle()
        return self._pause(began)

    def _pause(self, began: float) -> float:
        """Steps begin at even distances, and at the moment when our term ends or another's lease runs out."""
        now = self._clock()
        if self._leading:
            return max(0.0, min(max(_LEAST_TIMEOUT_S, began + self._retry - now), self._until - now))
        looks = _LOOKS_ASKING if self._is_asking(now) else _LOOKS
        pause = max(_LEAST_TIMEOUT_S, began + self._retry / looks - now)
        return min(pause, self._free_at - now) if self._free_at > now else pause

    def _timeout(self) -> float:
        """Seconds for one request: shorter than a retry period, and over when our term is."""
        limit = 0.75 * self._retry
        return max(_LEAST_TIMEOUT_S, min(limit, self._until - self._clock())) if self._leading else limit

    def _settle(self) -> None:
        """Call back what has changed."""
        leads = self._clock() < self._until
        if not leads and (self._held is not None or self._leading):
            self._held = None
        if leads != self._leading:
            self._leading = leads
            log.info("started leading" if leads else "stopped leading",
                     extra={"lease": self._name, "identity": self._identity})
            try:
                (self._on_started if leads else self._on_stopped)()
            except Exception:  # the election goes on: others wait for its outcome
                log.exception("callback of the election failed", extra={"lease": self._name})

    def _renew_held(self, held: LeaseRecord) -> None:
        """Renew what we hold, or hand it over. After a conflict look again: it may be an answer that was lost."""
        if self._hands_over(held):
            return
        try:
            self._write(replace(held, renew_time=self._stamp(), duration_s=self._duration_s))
        except NotFound:
            self._lose("the lease has been deleted")
        except Conflict:
            seen = self._cluster.lease(self._namespace, self._name, timeout=self._timeout())
            if seen is None or seen.holder != self._identity:
                self._lose("another one holds the lease")
                self._sight(seen)
            elif not self._hands_over(seen):
                self._held = seen
                self._write(replace(seen, renew_time=self._stamp(), duration_s=self._duration_s))

    def _hands_over(self, held: LeaseRecord) -> bool:
        """Another one asks for the lease, we may part with it, and have."""
        successor = held.annotations.get(HANDOVER_KEY, "")
        if successor in ("", self._identity) or not self._may_hand_over():
            return False
        self._lose(f"handed over to {successor}")
        self._settle()  # before the write: from then on the other one leads
        self._free(held)
        return True

    def _stand(self, seen: LeaseRecord | None) -> None:
        """What a candidate makes of the lease it sees."""
        since = self._sight(seen).at
        if seen is None:
            self._take(LeaseRecord(namespace=self._namespace, name=self._name))
        elif seen.holder == self._identity:
            self._take(seen)  # our own write, whose answer was lost or came too late; nobody else bears our name
        elif self._clock() >= (free_at := since + self._lasts(seen)):
            self._take(seen)
        elif self._is_asking(self._clock()) and seen.annotations.get(HANDOVER_KEY) != self._identity:
            annotations = {**seen.annotations, HANDOVER_KEY: self._identity}
            self._cluster.update_lease(replace(seen, annotations=annotations), timeout=self._timeout())
            log.info("asked for the leadership", extra={"lease": self._name, "holder": seen.holder})
        else:
            self._free_at = free_at

    def _lasts(self, seen: LeaseRecord) -> float:
        """Seconds without a change after which we may take the lease; the candidate that asked for it comes first."""
        free = not seen.holder or self._has_ended(seen.holder)
        lasts = 0 if free else seen.duration_s or self._duration_s
        reserved = seen.annotations.get(HANDOVER_KEY, self._identity) != self._identity
        return lasts + (2 * self._retry if reserved else 0)

    def _is_asking(self, now: float) -> bool:
        """We have asked for the leadership not long ago and have not got it."""
        return not self._leading and now - self._asked_at < 3 * self._retry

    def _sight(self, seen: LeaseRecord | None) -> _Sighting:
        """Since when the lease has been as it is. A new holder ends our asking: it may be where it is needed."""
        state = ("", "", -1) if seen is None else (seen.holder, seen.renew_time, seen.transitions)
        if self._sighting is None or self._sighting.state != state:
            before, self._sighting = self._sighting, _Sighting(state, self._clock())
            if before is not None and state[0] not in ("", before.state[0]):
                self._asked_at = -math.inf
        return self._sighting

    def _take(self, seen: LeaseRecord) -> None:
        """Make the lease ours. Raises: Conflict when somebody was faster."""
        stamp, ours = self._stamp(), seen.holder == self._identity
        self._write(replace(
            seen, holder=self._identity, duration_s=self._duration_s, renew_time=stamp,
            acquire_time=seen.acquire_time if ours and seen.acquire_time else stamp,
            transitions=seen.transitions + (0 if ours or not seen.resource_version else 1),
            annotations=seen.annotations if ours else _without_request(seen.annotations)))

    def _write(self, lease: LeaseRecord) -> None:
        """Write a lease of ours; from before that moment our term counts."""
        sent = self._clock()
        self._unsure = True
        try:
            self._held = (self._cluster.update_lease if lease.resource_version else self._cluster.create_lease)(
                lease, timeout=self._timeout())
        except (Conflict, NotFound):
            self._unsure = False
            raise
        self._unsure = False
        self._until = sent + self._renew
        self._asked_at = -math.inf

    def _lose(self, why: str) -> None:
        log.info("gives up the lease", extra={"lease": self._name, "identity": self._identity, "why": why})
        self._until = 0.0
        self._held = None

    def _release(self) -> None:
        """Leave the lease free, if it is ours or may be, so that a successor need not wait until it runs out."""
        holds = self._held is not None or self._unsure
        self._until = 0.0
        self._settle()
        if not holds:
            return
        try:
            self._free(None)
        except Exception as error:  # the end of the thread: the lease then runs out by itself
            self._complain(error)

    def _free(self, held: LeaseRecord | None) -> None:
        """Write that nobody holds the lease; *held* as we last wrote it, if we know. A lease of others stays."""
        try:
            if held is not None:
                self._write_free(held)
                return
        except Conflict:
            pass  # somebody has asked for it meanwhile, or an answer of ours was lost
        seen = self._cluster.lease(self._namespace, self._name, timeout=self._timeout())
        if seen is not None and seen.holder == self._identity:
            self._write_free(seen)

    def _write_free(self, held: LeaseRecord) -> None:
        freed = replace(held, holder="", duration_s=1, renew_time=self._stamp())
        self._sight(self._cluster.update_lease(freed, timeout=self._timeout()))
        log.info("released", extra={"lease": self._name, "identity": self._identity})

    def _stamp(self) -> str:
        """The time as a MicroTime of the Kubernetes API: RFC 3339 with microseconds."""
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _complain(self, error: Exception) -> None:
        """One line for each kind of trouble, not one for each attempt."""
        kind = type(error).__name__, getattr(error, "status", None), type(error.__cause__).__name__
        if (complaint := str(kind)) != self._complaint:  # the text tells of each attempt's own timeout
            self._complaint = complaint
            level = logging.INFO if isinstance(error, Conflict) else logging.WARNING
            log.log(level, "election cannot go on yet", extra={"lease": self._name, "error": str(error)})


class AlwaysLeader:
    """The one replica of ``--leader-elect=false``: it always leads."""

    def __init__(self, *, on_started: Callable[[], object] = lambda: None,
                 on_stopped: Callable[[], object] = lambda: None) -> None:
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._stopping = threading.Event()

    def run(self) -> None:
        """Call *on_started*, wait for `stop`, call *on_stopped*."""
        self._on_started()
        self._stopping.wait()
        self._on_stopped()

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()

    def is_leader(self) -> bool:
        """True."""
        return True

    def leads_until(self) -> float:
        """Infinity."""
        return math.inf

    def request_handover(self) -> None:
        """Nothing to ask for."""


def _without_request(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key != HANDOVER_KEY}
