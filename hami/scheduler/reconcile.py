"""Moves that repair a pod, decided from its record alone. The controller carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hami.cache.binding import expected_label, failed_allocation
from hami.cache.pods import FOREIGN_TTL_S, PodRecord
from hami.codec.keys import ASSIGNED_NODE, SCHEDULER_OWNED
from hami.model import PodRef
from hami.scheduler.settings import Settings
from hami.vendors.spec import Catalog


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write *annotations* and *labels* (``None`` removes one) if the pod is still at *version*; record an event."""

    ref: PodRef
    version: str
    annotations: Mapping[str, str | None]
    reason: str
    message: str
    labels: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Label:
    """Set the label that the API server did not copy from the Binding; ``None`` removes an earlier one."""

    ref: PodRef
    node: str | None


@dataclass(frozen=True, slots=True)
class Warn:
    """Record an event, once."""

    ref: PodRef
    reason: str
    message: str


Move = Annotate | Label | Warn


def pod_moves(record: PodRecord, vendors: Catalog, settings: Settings, now: float) -> list[Move]:
    """Returns the moves for the pod at *now* (Unix seconds)."""
    if record.terminated:
        return []
    moves: list[Move] = []
    if record.problems:
        moves.append(Warn(record.ref, "AllocationUnreadable", (
            "the pod's device allocation cannot be read, so every device that it names counts as fully used: "
            + "; ".join(record.problems))))
    if not record.node:
        return moves + _unbound_moves(record, vendors, settings, now)
    pending = record.allocating and record.phase == "Pending"
    if pending and now - record.bound_at > settings.node_lock_timeout:
        moves.append(Annotate(record.ref, str(record.version), failed_allocation(vendors), "AllocationExpired", (
            f"the device plugin of node {record.node} has not allocated the devices within "
            f"{settings.node_lock_timeout:.0f} s")))
    if record.is_mislabeled:
        moves.append(Label(record.ref, expected_label(record.node)))
    return moves


def _unbound_moves(record: PodRecord, vendors: Catalog, settings: Settings, now: float) -> list[Move]:
    ours, scheduler = record.scheduler_name == settings.scheduler_name, record.scheduler_name
    if ours and record.assigned_node and now - record.assigned_at > 2 * FOREIGN_TTL_S:
        return [_clear(record, vendors)]
    overwritten = settings.force_overwrite_default_scheduler and scheduler in ("", "default-scheduler")
    if record.requests_devices and overwritten and not ours:
        return [Warn(record.ref, "NotAdmitted", (
            f"the pod requests devices, but it has not passed HAMi's webhook: its schedulerName is "
            f"{scheduler or 'empty'} instead of {settings.scheduler_name}, so it will get no devices. Create it again; "
            "if that does not help, check the webhook's configuration and the label hami.io/webhook"))]
    return []


def _clear(record: PodRecord, vendors: Catalog) -> Annotate:
    keys = {*SCHEDULER_OWNED,
            *(key for vendor in vendors for key in (vendor.to_allocate, vendor.allocated) if key),
            *(key for vendor in vendors if vendor.key in record.vendors for key in vendor.extra_keys)}
    return Annotate(record.ref, str(record.version), dict.fromkeys(sorted(keys)), "AssignmentCleared",
                    f"an earlier assignment to node {record.assigned_node} was never bound and has been removed",
                    {ASSIGNED_NODE: None})
