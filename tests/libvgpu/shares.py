"""GPU time of containers on one fake card, by the card's own clock, and the samples that a node monitor writes."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from hami.monitor.feedback import FeedbackCandidate, decide
from tests.libvgpu.layout import Machine, Region

__all__ = ["SETTLE_S", "Tenant", "deciding", "measured_shares", "sampled", "wrong_shares"]

SAMPLE_S = 1 / 6
"""Seconds between two samples of utilization: the shortest that NVML documents."""
SETTLE_S = 3.0
"""Seconds until the compute limit has settled."""
ROUND_S = 0.9
"""Seconds between two rounds of a monitor that decides whose limit counts."""
NAP_S = 0.002
"""Seconds for which a thread sleeps that watches its CPU."""
LATE_S = 0.01
"""Seconds after which a CPU counts as withheld. A container loses what is due to it if a launch comes 25 ms late."""
CALM = 0.03
"""Part of a measurement for which CPUs may be withheld: a point of a limit of 30 percent."""
ATTEMPTS = 5
"""Measurements, at most, until one is calm."""


class Tenant:
    """A container on a card: its shared region, and the machine with the card."""

    def __init__(self, region: Region, machine: Machine, device: int = 0) -> None:
        self.region = region
        self._machine = machine
        self._device = device

    def busy(self) -> dict[int, int]:
        """Nanoseconds of the card by process number."""
        spent = self._machine.busy(self._device)
        return {slot.pid: spent.get((slot.space, slot.pid), 0) for slot in self.region.slots()}


@contextlib.contextmanager
def _beside(rounds: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs *rounds* in a thread until the block ends: then the event is set."""
    done = threading.Event()
    thread = threading.Thread(target=rounds, args=(done,))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def sampled(tenants: Sequence[Tenant]) -> contextlib.AbstractContextManager[None]:
    """Writes utilization into the regions as a node monitor does: percent of the time since the last sample."""
    def write(done: threading.Event) -> None:
        before, then = [tenant.busy() for tenant in tenants], time.monotonic()
        while not done.wait(SAMPLE_S):
            spent, now = [tenant.busy() for tenant in tenants], time.monotonic()
            for tenant, old, new in zip(tenants, before, spent, strict=True):
                percent = {pid: round((new[pid] - old.get(pid, 0)) / (now - then) / 1e7) for pid in new}
                tenant.region.sample(0, percent, time.monotonic_ns())
            before, then = spent, now

    return _beside(write)


def deciding(tenants: Sequence[Tenant]) -> contextlib.AbstractContextManager[None]:
    """Decides as a node monitor does, round by round, who is alone on the card and whose limit counts."""
    def run(done: threading.Event) -> None:
        shared_at = dict.fromkeys(range(len(tenants)), -math.inf)
        before = [sum(tenant.busy().values()) for tenant in tenants]
        while not done.wait(ROUND_S):
            spent = [sum(tenant.busy().values()) for tenant in tenants]
            verdicts = decide([FeedbackCandidate(key=number, priority=1, cards=frozenset({"card"}), shared_at=at,
                                                 is_active=spent[number] > before[number])
                               for number, at in shared_at.items()], time.monotonic())
            before = spent
            for number, verdict in verdicts.items():
                shared_at[number] = verdict.shared_at
                tenants[number].region.write(2_008_900, int(verdict.is_limited))

    return _beside(run)


class Withheld:
    """Counts the seconds for which a CPU did not run a thread that was due, as when the host ran another machine."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(cpu,)) for cpu in os.sched_getaffinity(0)]

    def __enter__(self) -> Withheld:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})  # of this thread
        while not self._done.is_set():
            due = time.monotonic() + NAP_S
            time.sleep(NAP_S)
            late = time.monotonic() - due
            if late > LATE_S:
                with self._lock:
                    self.seconds += late


def measured_shares(tenants: Sequence[Tenant], seconds: float) -> list[float]:
    """Percent of the card that each of *tenants* uses in the next *seconds*."""
    before, begun = [sum(tenant.busy().values()) for tenant in tenants], time.monotonic()
    time.sleep(seconds)
    after, took = [sum(tenant.busy().values()) for tenant in tenants], time.monotonic() - begun
    return [(new - old) / took / 1e7 for old, new in zip(before, after, strict=True)]


def wrong_shares(tenants: Sequence[Tenant], due: Sequence[float], slack: float, seconds: float) -> str:
    """What is wrong with the percent of the card that each of *tenants* uses; empty if nothing is. *due*: of each, up
    to *slack* points more or less.

    Measured at a time when the CPUs were not withheld. If five measurements find none, the calmest counts: a container
    may get less by the part of the time for which it could not launch, which no limiter can give it.
    """
    calmest, shares = float("inf"), [0.0]
    for _ in range(ATTEMPTS):
        with Withheld() as withheld:
            found = measured_shares(tenants, seconds)
        part = withheld.seconds / seconds
        if part < calmest:
            calmest, shares = part, found
        if calmest <= CALM:
            break
    lost = calmest if calmest > CALM else 0.0
    holds = all(percent * (1 - lost) - slack <= share <= percent + slack
                for share, percent in zip(shares, due, strict=True))
    return "" if holds else f"{shares} instead of {due}, CPUs withheld for {calmest:.0%} of the time"
