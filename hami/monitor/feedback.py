"""Decides which containers wait for others on the same card, and whose compute limit counts. Pure.

A container waits only while one of higher priority works on one of its cards, and gets a turn after a minute, so that
nobody can stop it for good. What a container writes about its work counts only while the driver does not deny it.
Among those that do not wait, the compute limit of a container counts while another one of its level works on one of
its cards, too; a container that is alone on its cards may use them whole. A limit that counts stays for some seconds,
so that it does not flicker.

HAMi's monitor has the same rules. They no longer work with current versions of HAMi-core, in which a container whose
limit does not count does not show that it works.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hami.monitor.containers import Key

LIMIT_S = 3.0
"""Seconds for which a limit counts after the container last shared a card."""
RECENT_S = 1.5
"""Seconds after a kernel in which a container works. Libraries note the time in whole seconds, once a second."""
HOLD_S = 0.85
"""Seconds for which a container that has worked counts as working: rounds can follow each other closely, and a launch
that one of them has seen is not seen by the next."""
MAX_WAIT_S = 60.0
"""Seconds for which a container waits before it gets a turn."""
TURN_S = 3.0
"""Seconds of a turn."""
DENIED_S = 30.0
"""Seconds without use, by the driver's account, after which what the region says of work does not count. The driver
takes five samples a second, each of one process: of 150, one with 5 percent of a card is in none once in two thousand
times.
"""
ACTIVE, IDLE, BLOCKED = 2, 0, -1
"""Values of ``recent_kernel``: a launch writes the first, the monitor counts it down, or writes the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackCandidate:
    """A container as the rules see it. *priority*: 0 is the highest. *cards*: those, or the MIG instances, that it has.

    *recent_kernel*: as in its region. *shared_at*, *waiting_since*: as an earlier `Verdict` says.
    """

    key: Key
    priority: int
    cards: frozenset[str]
    is_active: bool
    recent_kernel: int = IDLE
    shared_at: float = -math.inf
    waiting_since: float = math.inf


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about one container.

    *recent_kernel*: to be written to its region. *is_limited*: its compute limit counts. *shared_at*: when it last
    shared a card. *waiting_since*: since when others of higher priority work, or its last turn; inf if none does.
    """

    recent_kernel: int
    is_limited: bool
    shared_at: float
    waiting_since: float

    @property
    def is_blocked(self) -> bool:
        """Whether the container waits."""
        return self.recent_kernel < 0


def is_active(
    *,
    recent_kernel: int,
    last_kernel_time: int,
    host_sm: int | None,
    idle_s: float,
    has_limiter: bool,
    now: float,
) -> bool:
    """Reports whether a container works.

    *host_sm*: percent that its processes use by NVML, ``None`` if unknown. *idle_s*: for how long the driver has denied
    that it uses a card; a region that tells of work all the same would make others wait for nothing. *has_limiter*: it
    has our limiter, which notes each launch in *recent_kernel*. HAMi's does so only while its limit counts, but always
    notes *last_kernel_time*. *now*: Unix seconds.
    """
    if host_sm:
        return True
    if idle_s >= DENIED_S:
        return False
    if recent_kernel >= ACTIVE:
        return True
    return not has_limiter and recent_kernel >= 0 and abs(now - last_kernel_time) < RECENT_S


def decide(candidates: Iterable[FeedbackCandidate], now: float) -> Mapping[Key, Verdict]:
    """Returns a verdict for each container. *now*: seconds of the clock of *shared_at*."""
    levels: dict[int, list[FeedbackCandidate]] = defaultdict(list)
    for candidate in candidates:
        levels[candidate.priority].append(candidate)
    verdicts: dict[Key, Verdict] = {}
    taken: set[str] = set()  # cards on which containers of higher levels work
    for _, level in sorted(levels.items()):
        users: dict[str, int] = defaultdict(int)
        since: dict[Key, float] = {}
        waiting: set[Key] = set()
        for candidate in level:
            if not taken.isdisjoint(candidate.cards):
                since[candidate.key] = _waiting_since(candidate, now)
                if now - since[candidate.key] < MAX_WAIT_S:
                    waiting.add(candidate.key)
                    continue
            if candidate.is_active:
                for card in candidate.cards:
                    users[card] += 1
        for candidate in level:
            verdicts[candidate.key] = _verdict(
                candidate,
                users,
                is_blocked=candidate.key in waiting,
                waiting_since=since.get(candidate.key, math.inf),
                now=now,
            )
        taken.update(users)
    return verdicts


def _waiting_since(candidate: FeedbackCandidate, now: float) -> float:
    """Returns since when a container waits that has to: from now on if it has just had a turn."""
    since = min(candidate.waiting_since, now)
    return since if now - since < MAX_WAIT_S + TURN_S else now


def _verdict(
    candidate: FeedbackCandidate,
    users: Mapping[str, int],
    *,
    is_blocked: bool,
    waiting_since: float,
    now: float,
) -> Verdict:
    shares = is_blocked or any(users.get(card, 0) > 1 for card in candidate.cards)
    shared_at = now if shares else candidate.shared_at
    if is_blocked:
        recent_kernel = BLOCKED
    else:
        recent_kernel = max(min(candidate.recent_kernel, ACTIVE) - 1, IDLE)
    return Verdict(recent_kernel, now - shared_at < LIMIT_S, shared_at, waiting_since)
