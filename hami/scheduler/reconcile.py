"""Moves that repair a pod, decided from its record alone. The controller carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from hami.cache.binding import expected_label
from hami.cache.pods import FOREIGN_TTL_S, PodRecord
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, SCHEDULER_OWNED
from hami.model import BindPhase, PodRef
from hami.vendors.spec import Catalog

__all__ = ["Annotate", "Label", "PodRules", "Warn", "pod_moves"]


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write *annotations* and *labels* (``None`` removes one) if the pod is still at *version*; record an event."""

    ref: PodRef
    version: str
    annotations: tuple[tuple[str, str | None], ...]
    reason: str
    message: str
    labels: tuple[tuple[str, str | None], ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRules:
    """*force_overwrite*: the webhook changes the scheduler of pods of ``default-scheduler``. *allocation_timeout*:
    seconds that a device plugin may take to allocate a pod's devices."""

    vendors: Catalog
    scheduler_name: str
    force_overwrite: bool
    allocation_timeout: float


def pod_moves(record: PodRecord, rules: PodRules, now: float) -> list[Move]:
    """Returns the moves for the pod at *now* (Unix seconds)."""
    if record.terminated:
        return []
    moves = [_warn_unreadable(record)] if record.problems else []
    if not record.node:
        return moves + _unbound_moves(record, rules, now)
    pending = record.allocating and record.phase == "Pending"
    if pending and now - record.bound_at > rules.allocation_timeout:
        moves.append(_fail(record, rules))
    if record.is_mislabeled:
        moves.append(Label(record.ref, expected_label(record.node)))
    return moves


def _unbound_moves(record: PodRecord, rules: PodRules, now: float) -> list[Move]:
    ours, scheduler = record.scheduler_name == rules.scheduler_name, record.scheduler_name
    if ours and record.assigned_node and now - record.assigned_at > 2 * FOREIGN_TTL_S:
        return [_clear(record, rules)]
    if record.requests_devices and rules.force_overwrite and not ours and scheduler in ("", "default-scheduler"):
        return [Warn(record.ref, "NotAdmitted", (
            f"the pod requests devices, but it has not passed HAMi's webhook: its schedulerName is "
            f"{scheduler or 'empty'} instead of {rules.scheduler_name}, so it will get no devices. Create it again; if "
            "that does not help, check the webhook's configuration and the label hami.io/webhook"))]
    return []


def _fail(record: PodRecord, rules: PodRules) -> Annotate:
    cleared: tuple[tuple[str, str | None], ...] = tuple(
        (vendor.to_allocate, "") for vendor in rules.vendors if vendor.to_allocate)
    annotations = (*cleared, (BIND_PHASE, BindPhase.FAILED.value))
    return Annotate(record.ref, str(record.version), annotations, "AllocationExpired", (
        f"the device plugin of node {record.node} has not allocated the devices within "
        f"{rules.allocation_timeout:.0f} s"))


def _clear(record: PodRecord, rules: PodRules) -> Annotate:
    keys = {*SCHEDULER_OWNED,
            *(key for vendor in rules.vendors for key in (vendor.to_allocate, vendor.allocated) if key),
            *(key for vendor in rules.vendors if vendor.key in record.vendors for key in vendor.extra_keys)}
    return Annotate(record.ref, str(record.version), tuple((key, None) for key in sorted(keys)), "AssignmentCleared",
                    f"an earlier assignment to node {record.assigned_node} was never bound and has been removed",
                    ((ASSIGNED_NODE, None),))


def _warn_unreadable(record: PodRecord) -> Move:
    return Warn(record.ref, "AllocationUnreadable",
                "the pod's device allocation cannot be read, so every device that it names counts as fully used: "
                + "; ".join(record.problems))
