"""GPU time of containers on one fake card, by the card's own clock, and the samples that a node monitor writes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

from tests.libvgpu.layout import Machine, Region

__all__ = ["SETTLE_S", "Tenant", "measured_shares", "sampled"]

SAMPLE_S = 1 / 6
"""Seconds between two samples of utilisation: the shortest that NVML documents."""
SETTLE_S = 3.0
"""Seconds until the compute limit has settled."""


class Tenant:
    """A container on a card: its shared region, and the machine with the card."""

    def __init__(self, region: Region, machine: Machine) -> None:
        self.region = region
        self._machine = machine

    def busy(self) -> dict[int, int]:
        """Nanoseconds of the card by process number."""
        spent = self._machine.busy()
        return {slot.pid: spent.get((slot.space, slot.pid), 0) for slot in self.region.slots()}


@contextlib.contextmanager
def sampled(tenants: Sequence[Tenant]) -> Iterator[None]:
    """Writes utilisation into the regions as a node monitor does: percent of the time since the last sample."""
    done = threading.Event()

    def write() -> None:
        before, then = [tenant.busy() for tenant in tenants], time.monotonic()
        while not done.wait(SAMPLE_S):
            spent, now = [tenant.busy() for tenant in tenants], time.monotonic()
            for tenant, old, new in zip(tenants, before, spent, strict=True):
                percent = {pid: round((new[pid] - old.get(pid, 0)) / (now - then) / 1e7) for pid in new}
                tenant.region.sample(0, percent, time.monotonic_ns())
            before, then = spent, now

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def measured_shares(tenants: Sequence[Tenant], seconds: float) -> list[float]:
    """Percent of the card that each of *tenants* uses in the next *seconds*."""
    before, begun = [sum(tenant.busy().values()) for tenant in tenants], time.monotonic()
    time.sleep(seconds)
    after, took = [sum(tenant.busy().values()) for tenant in tenants], time.monotonic() - begun
    return [(new - old) / took / 1e7 for old, new in zip(before, after, strict=True)]
