"""GPU time of containers on one fake card, by the card's own clock, and the samples that a node monitor writes."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hami.monitor.feedback import FeedbackCandidate, decide
from testing.limiter.layout import Machine, Region

__all__ = ["SETTLE_S", "Tenant", "deciding", "measured_shares", "sampled", "wrong_shares"]

SAMPLE_S = 1 / 6
"""Seconds between two samples of utilization: the shortest that NVML documents."""
SETTLE_S = 3.0
"""Seconds until the compute limit has settled."""
ROUND_S = 0.9
"""Seconds between two rounds of a monitor that decides whose limit counts."""
ATTEMPTS = 5
"""Measurements, at most, until one is right."""


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
                percent = {
                    pid: round((new[pid] - old.get(pid, 0)) / (now - then) / 1e7) for pid in new
                }
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
            verdicts = decide(
                [
                    FeedbackCandidate(
                        key=number,
                        priority=1,
                        cards=frozenset({"card"}),
                        shared_at=at,
                        is_active=spent[number] > before[number],
                    )
                    for number, at in shared_at.items()
                ],
                time.monotonic(),
            )
            before = spent
            for number, verdict in verdicts.items():
                shared_at[number] = verdict.shared_at
                tenants[number].region.write(2_008_900, int(verdict.is_limited))

    return _beside(run)


def measured_shares(tenants: Sequence[Tenant], seconds: float) -> list[float]:
    """Percent of the card that each of *tenants* uses in the next *seconds*."""
    begun = time.monotonic()
    before = [sum(tenant.busy().values()) for tenant in tenants]
    time.sleep(seconds)
    after, took = [sum(tenant.busy().values()) for tenant in tenants], time.monotonic() - begun
    return [(new - old) / took / 1e7 for old, new in zip(before, after, strict=True)]


def _ready_seconds(tenant: Tenant) -> dict[int, float]:
    """Seconds for which the threads of each process were ready to run and no CPU took them."""
    ready: dict[int, float] = {}
    for pid in tenant.busy():
        nanoseconds = 0
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # one that has ended
                nanoseconds += int(thread.read_text().split()[1])
        ready[pid] = nanoseconds / 1e9
    return ready


def _held_up(before: dict[int, float], after: dict[int, float], seconds: float) -> float:
    """Part of the time, at most, for which no process of a container could launch: each of them waited for a CPU."""
    parts = [min((after.get(pid, 0.0) - since) / seconds, 1.0) for pid, since in before.items()]
    return min(parts, default=0.0)


def wrong_shares(
    tenants: Sequence[Tenant], due: Sequence[float], slack: float, seconds: float
) -> str:
    """What is wrong with the percent of the card that each of *tenants* uses; empty if nothing is. *due*: of each, up
    to *slack* points more or less.

    A container may get less by the part of the time for which the machine gave it no CPU to launch with: no limiter can
    give it that. It is measured anew a few times, since a kernel can be measured wrong whose program was held up.
    """
    told = ""
    for _ in range(ATTEMPTS):
        before = [_ready_seconds(tenant) for tenant in tenants]
        shares = measured_shares(tenants, seconds)
        after = [_ready_seconds(tenant) for tenant in tenants]
        lost = [_held_up(old, new, seconds) for old, new in zip(before, after, strict=True)]
        if all(
            percent * (1 - part) - slack <= share <= percent + slack
            for share, percent, part in zip(shares, due, lost, strict=True)
        ):
            return ""
        told = f"{shares} instead of {due}, without a CPU for {lost} of the time"
    return told
