"""Memory that the driver sees and the limiter of a container does not count, which its limit is to include. Pure.

Code that is loaded lazily, executable graphs, local memory and the like take memory later, and no library can tell
how much. The driver's number and that of the limiter are not read at the same instant, so the least difference of some
rounds counts; and nothing counts while a process is known to only one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from hami.monitor.containers import MonitoredContainer
from hami.monitor.regions import Region
from hami.monitor.usage import HostView

__all__ = ["ROUNDS", "Excess", "excess_of", "least_excess"]

ROUNDS = 3
"""Rounds of which the least difference counts."""
Excess = tuple[int, ...]
"""Bytes on each device of a region."""


def excess_of(container: MonitoredContainer, region: Region, pids: Mapping[int, int], host: HostView) -> Excess:
    """Returns what the driver sees beyond what *region* counts; 0 where it does not say, or a process is not known to
    both. *pids*: host PIDs by slot."""
    uuids = {device.card: device.uuid for device in container.devices}
    known = set(pids.values()) if all(one.slot in pids for one in region.processes) else set()
    amounts = []
    for device in region.devices:
        processes = host.processes.get(container.key, {}).get(uuids.get(device.uuid, ""), ())
        used = [one.usage.memory for one in processes]
        complete = all(one.process.pid in known for one in processes)
        seen = sum(amount or 0 for amount in used) if complete and None not in used else 0
        amounts.append(max(seen - device.total, 0))
    return tuple(amounts)


def least_excess(rounds: tuple[Excess, ...]) -> Excess:
    """Returns the least of the last rounds, by device; 0 until there are enough of them."""
    return tuple(min(of_device) if len(rounds) == ROUNDS else 0 for of_device in zip(*rounds, strict=True))
