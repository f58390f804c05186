"""What has to be done about a pod, judged by what is known of it. Decides only; ``loop`` carries out."""

from __future__ import annotations

from dataclasses import dataclass

from hami.cache.pods import FOREIGN_FRESH, PodRecord
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, SCHEDULER_OWNED
from hami.model import BindPhase, PodRef
from hami.vendors.spec import Catalog

__all__ = ["Annotate", "Label", "Rules", "Warn", "pod_moves"]


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write *annotations* and *labels* on the pod (``None`` removes one) if it is still at *version*, and tell its
    owner why."""

    ref: PodRef
    version: str
    annotations: tuple[tuple[str, str | None], ...]
    reason: str
    message: str
    labels: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Label:
    """Give the pod the label that the API server did not copy from its Binding; ``None``: take an earlier one away."""

    ref: PodRef
    node: str | None


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the pod's owner, once."""

    ref: PodRef
    reason: str
    message: str


Move = Annotate | Label | Warn


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """*scheduler*: our scheduler's name. *overwrites*: pods of the default scheduler should have become ours.
    *expire*: seconds that an allocation may take."""

    vendors: Catalog
    scheduler: str
    overwrites: bool
    expire: float


def pod_moves(record: PodRecord, rules: Rules, now: float) -> list[Move]:
    """What to do about the pod at *now* (Unix seconds)."""
    if record.terminated:
        return []
    moves = [_warn_unreadable(record)] if record.problems else []
    if not record.node:
        return moves + _unbound_moves(record, rules, now)
    pending = record.allocating and record.phase == "Pending"
    if pending and now - record.wall_bound > rules.expire:
        moves.append(_fail(record, rules))
    if record.is_mislabelled:
        moves.append(Label(record.ref, record.proper_label))
    return moves


def _unbound_moves(record: PodRecord, rules: Rules, now: float) -> list[Move]:
    ours = record.scheduler == rules.scheduler
    if ours and record.assigned and now - record.wall_assigned > 2 * FOREIGN_FRESH:
        return [_clear(record, rules)]
    if record.asks and rules.overwrites and not ours and record.scheduler in ("", "default-scheduler"):
        return [Warn(record.ref, "NotAdmitted", (
            f"the pod asks for devices, but HAMi's webhook has not seen it, so its schedulerName is "
            f"{record.scheduler or 'empty'} and not {rules.scheduler}: it will not get any. Create it again; if that "
            "does not help, look at the webhook's configuration and at the label hami.io/webhook"))]
    return []


def _fail(record: PodRecord, rules: Rules) -> Annotate:
    cleared: tuple[tuple[str, str | None], ...] = tuple(
        (vendor.to_allocate, "") for vendor in rules.vendors if vendor.to_allocate)
    annotations = (*cleared, (BIND_PHASE, BindPhase.FAILED.value))
    return Annotate(record.ref, str(record.version), annotations, "AllocationExpired",
                    f"the device plugin of node {record.node} has not handed out the devices in {rules.expire:.0f} s")


def _clear(record: PodRecord, rules: Rules) -> Annotate:
    keys = {*SCHEDULER_OWNED,
            *(key for vendor in rules.vendors for key in (vendor.to_allocate, vendor.allocated) if key),
            *(key for vendor in rules.vendors if vendor.key in record.promised for key in vendor.extra_keys)}
    return Annotate(record.ref, str(record.version), tuple((key, None) for key in sorted(keys)), "AssignmentCleared",
                    f"an earlier assignment to node {record.assigned} was never bound and has been removed",
                    ((ASSIGNED_NODE, None),))


def _warn_unreadable(record: PodRecord) -> Move:
    return Warn(record.ref, "AllocationUnreadable",
                "the pod's device allocation cannot be read, so every device that it names counts as taken whole: "
                + "; ".join(record.problems))
