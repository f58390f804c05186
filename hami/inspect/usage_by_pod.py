"""The rows of pods: of those that exist from the cluster, of those that have ended from Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

import msgspec

from hami.codec.resize import Size, held_text
from hami.codec.usage_sums import HOUR_S, HeldAmounts
from hami.inspect.cluster import ClusterRecord, InspectedCluster
from hami.inspect.measured_use import PeakUse
from hami.inspect.resize import try_resize
from hami.inspect.resize_report import UNKNOWN, shares_by_container
from hami.inspect.usage import (
    MeasuredUse,
    UsageQuery,
    UsageReport,
    UsageRow,
    gib_hours,
    make_row,
    report_of,
)
from hami.model import Pod, Share
from hami.quantity import MIB
from hami.state.bookings import Booking
from hami.state.held import UNKNOWN_MODEL, amounts_of, begin_of
from hami.vendors.spec import CoreUnit

SPARE = 1.1
"""How much more than its peak a container is to have."""
WORTHWHILE = 0.9
"""A resize to more than this part of what a container has is not suggested."""
MEMORY_STEP_MIB, CORES_STEP = 256, 5
"""Sizes are rounded up to multiples of these."""

Use = Mapping[tuple[str, ...], MeasuredUse]
"""By namespace and pod."""
Peaks = Mapping[tuple[str, str, str], PeakUse]
"""By namespace, pod and container."""


def make_pod_report(
    record: ClusterRecord, query: UsageQuery, use: Use | None = None, peaks: Peaks | None = None
) -> UsageReport:
    """Returns the rows of the pods of *record* that hold devices, with what they hold now.

    *use*: what was measured, also of pods that have ended; their rows have no more than that. *peaks*: for the commands
    that resize.
    """
    measured = dict(use or {})
    rows = []
    cluster = InspectedCluster(record)
    for pod, models in _held(cluster, query):
        key = pod.ref.namespace, pod.ref.name
        row = make_row("/".join(key), models, query, measured.pop(key, None))
        if peaks is not None:
            row = msgspec.structs.replace(row, resize=tuple(_resizes(cluster, pod, peaks)))
        rows.append(row)
    rows += [_ended_row("/".join(key), of_pod) for key, of_pod in measured.items() if all(key)]
    return report_of(rows, query, query.until - query.start)


def _held(
    cluster: InspectedCluster, query: UsageQuery
) -> Iterator[tuple[Pod, Mapping[str, HeldAmounts]]]:
    """Yields each pod with its sums by model."""
    now = _seconds(cluster.record.taken)
    for pod in cluster.record.pods:
        if query.namespace not in ("", pod.ref.namespace):
            continue
        known = cluster.view.facts.pods.get(pod.ref.uid)
        booking = cluster.view.booking(pod.ref.uid)
        if known is None or booking is None or not known.node:
            continue
        seconds = max(0, query.until - max(begin_of(pod, known, now), query.start))
        models: dict[str, HeldAmounts] = {}
        for model, amounts in _amounts(cluster, booking):
            sums = HeldAmounts(*[amount * seconds for amount in amounts])
            models[model] = models.get(model, HeldAmounts()).plus(sums)
        if models:
            yield pod, models


def _amounts(cluster: InspectedCluster, booking: Booking) -> Iterator[tuple[str, HeldAmounts]]:
    """Yields what a booking takes of each device, with its model."""
    usages = cluster.view.usages(booking.node)
    for key, charges in booking.charges:
        in_units = cluster.vendors[key].resources.core_unit is CoreUnit.COMPUTE_UNITS
        devices = {usage.device.uuid: usage.device for usage in usages.get(key, ())}
        for charge in charges:
            device = devices.get(charge.uuid)
            model = device.model if device is not None else UNKNOWN_MODEL
            yield model, amounts_of(charge, device, in_units=in_units)


def _seconds(time: datetime) -> int:
    return int(time.timestamp())


def _ended_row(name: str, use: MeasuredUse) -> UsageRow:
    return UsageRow(
        name=name,
        gpu_hours=None,
        gib_hours=gib_hours(use.given_byte_s),
        core_hours=None,
        device_hours=None,
        used_gpu_hours=round(use.compute_s / HOUR_S, 3),
        used_gib_hours=gib_hours(use.memory_byte_s),
    )


def _resizes(cluster: InspectedCluster, pod: Pod, peaks: Peaks) -> Iterator[str]:
    """Yields the commands after which the containers of *pod* have what they have needed, and a little more, as far as
    the scheduler would grant them."""
    for container, shares in shares_by_container(pod, held_text(pod.annotations)).items():
        peak = peaks.get((pod.ref.namespace, pod.ref.name, container))
        if peak is None or container == UNKNOWN or not shares:
            continue
        size = _fitting_size(shares[0], peak)
        if size == Size() or not try_resize(cluster, pod, {container: size})[0]:
            continue
        yield " ".join(
            ("kubectl hami resize -n", pod.ref.namespace, pod.ref.name, container, *_options(size))
        )


def _fitting_size(share: Share, peak: PeakUse) -> Size:
    memory = _with_spare(peak.memory / MIB, MEMORY_STEP_MIB)
    size = Size()
    if memory < WORTHWHILE * share.memory_mib:
        size = replace(size, memory_mib=memory)
    if peak.cores is not None:
        cores = _with_spare(peak.cores, CORES_STEP)
        if cores < WORTHWHILE * share.cores:
            size = replace(size, cores=cores)
    return size


def _with_spare(peak: float, step: int) -> int:
    return max(1, math.ceil(SPARE * peak / step)) * step


def _options(size: Size) -> Iterator[str]:
    if size.memory_mib is not None:
        yield f"--memory {size.memory_mib}"
    if size.cores is not None:
        yield f"--cores {size.cores}"
