"""Vastai cards, whole or by die: dies of one physical card (AIC) are kept together.

In die mode each device is a die. The device plugin sets ``DeviceStrategy`` to ``die`` in ``custominfo``, and ``AIC`` to
the name of the physical card.
Source: HAMi v2.10, pkg/device/vastai/device.go.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami.model import Allocation, DeviceUsage, NodePolicy, Reason, Request
from hami.vendors.select import concentration, grouped
from hami.vendors.spec import Candidate, FitContext


def card_in_use(candidate: Candidate) -> Reason | None:
    """Rejects a die under ``mutex`` if another die of the same physical card is in use."""
    context, card = candidate.context, _card(candidate.usage)
    if card is None or not context.policy.mutex or not _in_die_mode(context.usages):
        return None
    for usage in context.usages:
        if usage.slots_used > 0 and _card(usage) == card:
            return Reason.NOT_ALONE
    return None


def select_devices(
    eligible: Sequence[DeviceUsage], request: Request, context: FitContext
) -> Sequence[DeviceUsage]:
    """Selects the first devices; in die mode, dies of few physical cards."""
    if _in_die_mode(context.usages):
        return grouped(eligible, request.count, _card)
    return eligible[: request.count]


def node_score(usages: Sequence[DeviceUsage], placement: Allocation, policy: NodePolicy) -> float:
    """Returns how well dies are kept together, at most 1 for each container; 0 for whole cards."""
    return concentration(usages, placement, _card_of_die)


def _in_die_mode(usages: Sequence[DeviceUsage]) -> bool:
    return bool(usages) and _is_die(usages[0])


def _is_die(usage: DeviceUsage) -> bool:
    return bool(usage.device.info.get("DeviceStrategy") == "die")


def _card_of_die(usage: DeviceUsage) -> str | None:
    if not _is_die(usage):
        return None
    return _card(usage)


def _card(usage: DeviceUsage) -> str | None:
    card = usage.device.info.get("AIC")
    if not isinstance(card, str):
        return None
    return card or None
