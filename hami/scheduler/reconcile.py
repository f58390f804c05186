"""Moves that repair a pod, decided from its record alone. The controller carries them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hami.codec.keys import ASSIGNED_NODE, DEFAULT_SCHEDULER, MOVES, PREEMPTING, SCHEDULER_OWNED
from hami.model import PodRef
from hami.scheduler.settings import Settings
from hami.state.binding_annotations import expected_label, failed_allocation
from hami.state.pods import FOREIGN_TTL_S
from hami.state.read_pod import PodRecord
from hami.vendors.spec import Catalog


@dataclass(frozen=True, slots=True)
class Move:
    """An action for a pod: write *annotations* and *labels* (``None`` removes one), and record an event.

    *version*: that the pod must still have for the write; empty for any. *reason*: of the event; empty for none.
    Without anything to write, the event is recorded once.
    """

    ref: PodRef
    reason: str = ""
    message: str = ""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    version: str = ""


def pod_moves(
    record: PodRecord, vendors: Catalog, settings: Settings, clock: float
) -> Iterator[Move]:
    """Yields the moves for the pod at *clock* (monotonic)."""
    if record.terminated:
        return
    if record.problems:
        yield Move(
            record.ref,
            "AllocationUnreadable",
            (
                "the pod's device allocation cannot be read, so every device that it names counts as fully used: "
                + "; ".join(record.problems)
            ),
        )
    if not record.node:
        yield from _unbound_moves(record, vendors, settings, clock)
        return
    pending = record.allocating and record.phase == "Pending"
    if pending and record.bound.proven_age(record.bound_at, clock) > settings.node_lock_timeout:
        yield Move(
            record.ref,
            "AllocationExpired",
            (
                f"the device plugin of node {record.node} has not allocated the devices within "
                f"{settings.node_lock_timeout:.0f} s"
            ),
            failed_allocation(vendors),
            version=str(record.version),
        )
    if record.is_mislabeled:
        yield Move(record.ref, labels={ASSIGNED_NODE: expected_label(record.node)})


def _unbound_moves(
    record: PodRecord, vendors: Catalog, settings: Settings, clock: float
) -> Iterator[Move]:
    scheduler = record.scheduler_name
    if settings.is_own_scheduler(scheduler):
        age = record.assigned.proven_age(record.assigned_at, clock)
        if record.assigned_node and age > 2 * FOREIGN_TTL_S:
            yield Move(
                record.ref,
                "AssignmentCleared",
                f"an earlier assignment to node {record.assigned_node} was never bound and has been removed",
                dict.fromkeys(_assignment_keys(record, vendors)),
                {ASSIGNED_NODE: None},
                str(record.version),
            )
        return
    if not record.requests_devices or not settings.force_overwrite_default_scheduler:
        return
    if scheduler not in ("", DEFAULT_SCHEDULER):
        return
    yield Move(
        record.ref,
        "NotAdmitted",
        (
            f"the pod requests devices, but it has not passed HAMi's webhook: its schedulerName is "
            f"{scheduler or 'empty'} instead of {settings.scheduler_name}, so it will "
            f"get no devices. Create it again; "
            "if that does not help, check the webhook's configuration and the label hami.io/webhook"
        ),
    )


def _assignment_keys(record: PodRecord, vendors: Catalog) -> list[str]:
    """Returns the annotations that an assignment may have left, sorted."""
    keys = set(SCHEDULER_OWNED - {PREEMPTING, MOVES})
    for vendor in vendors:
        keys |= {vendor.annotations.to_allocate, vendor.annotations.allocated}
        if vendor.key in record.vendors:
            keys.update(vendor.annotations.extra_keys)
    keys.discard("")
    return sorted(keys)
