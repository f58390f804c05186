"""Sums of what containers have used of their devices since the monitor started, over its rounds.

A counter must never go back, and nobody's may grow without bound: of each round it takes what was clamped, times a
bounded time. So the figures of a tenant's region cannot make more of them than its device can do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from hami.monitor.containers import Key
from hami.monitor.usage import ContainerReport, DeviceUsageReport, Source

LONGEST_ROUND_S = 10.0
"""Seconds for which the use that one round sees counts at most: the driver may have hung in between."""

DeviceKey = tuple[Key, int]
"""A container and the index of its device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseTotals:
    """The use of a device by a container. *compute_s*: seconds of all its compute. *memory_byte_s*: of memory in
    use. *given_byte_s*: of the memory that it was given, while its use was known. ``None``: never known.
    """

    compute_s: float | None = None
    memory_byte_s: float | None = None
    given_byte_s: float | None = None


class UseCounters:
    """The sums by container and device."""

    def __init__(self) -> None:
        self._totals: dict[DeviceKey, UseTotals] = {}
        self._round_at = math.inf

    def read(self) -> Mapping[DeviceKey, UseTotals]:
        """Returns the sums."""
        return dict(self._totals)

    def add(self, reports: Iterable[ContainerReport], clock: float) -> None:
        """Adds the use of each device since the last round, at its latest value. *clock*: monotonic seconds."""
        passed = max(0.0, min(clock - self._round_at, LONGEST_ROUND_S))
        self._round_at = clock
        for report in reports:
            for usage in report.devices:
                key = report.container.key, usage.device.index
                self._totals[key] = _sum(self._totals.get(key, UseTotals()), usage, passed)

    def forget_others(self, containers: Collection[Key]) -> None:
        """Forgets all but *containers*."""
        for device in [device for device in self._totals if device[0] not in containers]:
            del self._totals[device]


def _sum(totals: UseTotals, usage: DeviceUsageReport, passed: float) -> UseTotals:
    if usage.utilization_source is not Source.NONE:
        compute_s = passed * usage.utilization / 100
        totals = replace(totals, compute_s=_plus(totals.compute_s, compute_s))
    if usage.memory_source is not Source.NONE:
        totals = replace(
            totals,
            memory_byte_s=_plus(totals.memory_byte_s, passed * usage.used),
            given_byte_s=_plus(totals.given_byte_s, passed * usage.device.memory),
        )
    return totals


def _plus(total: float | None, more: float) -> float:
    if total is None:
        return more
    return total + more
