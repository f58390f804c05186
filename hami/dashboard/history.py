"""Allocated and used memory over the last hours, as Prometheus has it. Nothing in its answer is trusted.

An answer has a limit on its points, and only shares between 0 and 1 are taken from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from hami.dashboard.caches import Poller, PollLimits
from hami.inspect.prometheus import Fetch, parse_number, parse_series
from hami.inspect.tables import OutputRecord

HOURS = 6
STEP_S = 300
MAX_POINTS = HOURS * 3600 // STEP_S + 1
LIMITS = PollLimits(interval=120.0, shown=900.0, viewed=180.0, values=256, at_once=2)

_ALLOCATED, _USED = "hami_gpu_memory_allocated_bytes", "hami_host_gpu_memory_used_bytes"
_TOTAL = "hami_gpu_memory_limit_bytes"


class UsageHistory(OutputRecord, frozen=True):
    """Shares of the memory of a node's cards in percent, oldest first, one each *step_s* seconds until now.

    ``None``: Prometheus has no number.
    """

    hours: int
    step_s: int
    allocated: tuple[int | None, ...]
    used: tuple[int | None, ...]


def expression(metric: str, node: str) -> str:
    """Returns the share of the memory of the cards of *node* that *metric* has; of all nodes if it is empty."""
    selector = "{node=%s}" % json.dumps(node) if node else ""
    each = f"max by (node, device_uuid) (%s{selector})"
    return f"sum({each % metric}) / sum({each % _TOTAL})"


def read_history(fetch: Fetch, node: str, now: float) -> UsageHistory:
    """Returns the history of *node* until *now* (Unix seconds); of all nodes if it is empty.

    Raises: NoMetrics, MalformedInput.
    """
    end = now // STEP_S * STEP_S
    start = end - HOURS * 3600
    allocated = _shares(fetch(expression(_ALLOCATED, node), start, end, STEP_S), start)
    used = _shares(fetch(expression(_USED, node), start, end, STEP_S), start)
    return UsageHistory(HOURS, STEP_S, allocated, used)


def _shares(body: bytes, start: float) -> tuple[int | None, ...]:
    shares: list[int | None] = [None] * MAX_POINTS
    for series in parse_series(body)[:1]:
        for at, text in series.values[: 2 * MAX_POINTS]:
            place = (at - start) / STEP_S
            value = parse_number(text)
            if 0 <= place < MAX_POINTS and 0 <= value <= 2:
                shares[int(place)] = round(100 * value)
    return tuple(shares)


def history_poller(
    fetch: Fetch, *, clock: Callable[[], float], now: Callable[[], float] = time.time
) -> Poller[str, UsageHistory]:
    """Returns the histories that are viewed, by node; that of all nodes by the empty text."""
    return Poller("history", lambda node: read_history(fetch, node, now()), LIMITS, clock=clock)


def no_history(node: str) -> UsageHistory | None:
    """Returns nothing: there is no Prometheus."""
    return None


def polyline(shares: Sequence[int | None]) -> list[str]:
    """Returns the lines of a chart of 0 to 100 in both directions, as points of SVG; a gap begins a new line."""
    lines: list[str] = []
    points: list[str] = []
    for place, share in enumerate(shares):
        if share is None:
            lines.append(" ".join(points))
            points = []
        else:
            points.append(f"{100 * place / max(1, len(shares) - 1):.1f},{100 - min(share, 100)}")
    lines.append(" ".join(points))
    return [line for line in lines if line]


def latest(shares: Sequence[int | None]) -> int | None:
    """Returns the last share that is known."""
    for share in reversed(shares):
        if share is not None:
            return share
    return None
