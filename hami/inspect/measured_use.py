"""The real use of devices by pods, as Prometheus has it from the monitors.

Only what a monitor has measured counts: where nobody did, nothing is known, which is not the same as nothing used.
Prometheus has the names of pods alone, so those of a workload are told by their names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import chain

from hami.codec.usage_sums import DAY_S, OwnerKey, UsageDay
from hami.errors import HamiError
from hami.inspect.prometheus import Fetch, parse_number, parse_series
from hami.inspect.usage import MeasuredUse, UsageQuery, UseOf

ANSWER_LIMIT = 64 << 20
"""Bytes of one answer."""
TIMEOUT_S = 60.0
MAX_SPAN_S = 62 * DAY_S
"""The longest time over which use is added up."""
PEAK_SPAN_S = 7 * DAY_S
"""The longest time over which the peak of a container counts."""
PEAK_CORES = 0.99  # quantile: a single second is coarse
_LARGEST = 2.0**80  # bytes times seconds: more than a cluster has in a year


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakUse:
    """The most that a container has used of one of its devices. *memory*: bytes. *cores*: percent of the device, but
    for the busiest hundredth of the time; ``None`` if unknown."""

    memory: float
    cores: float | None = None


_COUNTERS = {
    "compute_s": "hami_container_compute_seconds_total",
    "memory_byte_s": "hami_container_memory_byte_seconds_total",
    "given_byte_s": "hami_container_memory_given_byte_seconds_total",
}


def read_use(
    fetch: Fetch, start: int, end: int, labels: tuple[str, ...], namespace: str = ""
) -> dict[tuple[str, ...], MeasuredUse]:
    """Returns what was used from *start* to *end* (Unix seconds), by the values of these labels.

    *namespace*: empty for all. Raises: HamiError.
    """
    if end - start > MAX_SPAN_S:
        raise HamiError(f"--prometheus: expected --since within {MAX_SPAN_S // DAY_S} days")
    spans = max(1, math.ceil((end - start) / DAY_S))
    step_s = max(1, (end - start) // spans)
    use: dict[tuple[str, ...], MeasuredUse] = {}
    for field in fields(MeasuredUse):
        metric = _COUNTERS[field.name] + _selector(namespace)
        query = f"sum by ({', '.join(labels)}) (increase({metric}[{step_s}s]))"
        body = fetch(query, end - (spans - 1) * step_s, end, step_s)
        for series in parse_series(body):
            key = tuple([series.metric.get(label, "") for label in labels])
            total = _total([text for _, text in series.values])
            use[key] = use.get(key, MeasuredUse()).plus(MeasuredUse(**{field.name: total}))
    return use


def _selector(namespace: str) -> str:
    return "{namespace=%s}" % json.dumps(namespace) if namespace else ""


def _total(texts: Iterable[str]) -> float:
    total = 0.0
    for text in texts:
        value = parse_number(text)
        if 0 <= value < _LARGEST:
            total += value
    return total


def read_use_of(
    fetch: Fetch, days: Iterable[UsageDay], query: UsageQuery, note: Callable[[str], None]
) -> UseOf:
    """Returns the use of the groups of a report, by their names. *note*: takes why there is none. Raises: HamiError."""
    if query.by == "namespace":
        by_namespace = read_use(fetch, query.start, query.until, ("namespace",), query.namespace)
        return lambda name: by_namespace.get((name,))
    if query.by == "owner":
        pods = read_use(fetch, query.start, query.until, ("namespace", "pod"), query.namespace)
        by_owner = use_by_owner(pods, chain.from_iterable([day.owners for day in days]))
        return lambda name: by_owner.get(tuple(name.split("/")))
    note("what was used is known by namespace, owner and pod only")
    return lambda name: None


def use_by_owner(
    use: Mapping[tuple[str, ...], MeasuredUse], owners: Iterable[OwnerKey]
) -> dict[tuple[str, ...], MeasuredUse]:
    """Returns what the pods of each of *owners* have used, by namespace, kind and name. *use*: by namespace and pod.

    The pods of a workload have its name and a dash before theirs; of several such workloads the longest name counts.
    """
    kinds: dict[tuple[str, str], list[str]] = {}
    for owner in set(owners):
        of_name = kinds.setdefault((owner.namespace, owner.name), [])
        if owner.kind not in of_name:
            of_name.append(owner.kind)
    sums: dict[tuple[str, ...], MeasuredUse] = {}
    for (namespace, pod), measured in use.items():
        name = _owner_name(namespace, pod, kinds)
        of_name = kinds.get((namespace, name), [])
        if len(of_name) != 1:
            continue  # there is none, or nobody can tell which of them
        key = namespace, of_name[0], name
        sums[key] = sums.get(key, MeasuredUse()).plus(measured)
    return sums


def _owner_name(namespace: str, pod: str, kinds: Mapping[tuple[str, str], list[str]]) -> str:
    name = pod
    while name and (namespace, name) not in kinds:
        name = name.rpartition("-")[0]
    return name


def read_peaks(
    fetch: Fetch, start: int, end: int, namespace: str = ""
) -> dict[tuple[str, str, str], PeakUse]:
    """Returns the most that containers have used, by namespace, pod and container. Raises: HamiError."""
    span = f"[{max(60, min(end - start, PEAK_SPAN_S))}s]"
    where = _selector(namespace)
    memory = _values(fetch, end, f"max_over_time(hami_vgpu_memory_used_bytes{where}{span})")
    ratio = f"hami_container_device_utilization_ratio{where}{span}"
    cores = _values(fetch, end, f"quantile_over_time({PEAK_CORES}, {ratio})")
    return {key: PeakUse(memory=peak, cores=cores.get(key)) for key, peak in memory.items()}


def _values(fetch: Fetch, at: int, expression: str) -> dict[tuple[str, str, str], float]:
    values = {}
    body = fetch(f"max by (namespace, pod, container) ({expression})", at, at, 1)
    for series in parse_series(body):
        metric = series.metric
        key = (metric.get("namespace", ""), metric.get("pod", ""), metric.get("container", ""))
        for _, text in series.values[-1:]:
            value = parse_number(text)
            if 0 <= value < _LARGEST:
                values[key] = value
    return values
