"""Vastai cards, whole or by their dies: dies of one physical card (AIC) are kept together.

In die mode a device is a die, which its plugin says in ``custominfo``: ``DeviceStrategy`` is ``die``, ``AIC`` names the
physical card.
Source: HAMi v2.10, pkg/device/vastai/device.go.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami.model import NodePolicy, Reason, Request, Share, DeviceUsage
from hami.vendors.select import concentration, grouped
from hami.vendors.spec import FitContext

__all__ = ["card_in_use", "choose", "node_score"]


def card_in_use(view: DeviceUsage, request: Request, case: FitContext, picks: Sequence[Share]) -> Reason | None:
    """Under ``mutex``, somebody uses another die of the same physical card."""
    if not case.policy.mutex or not _in_die_mode(case.views) or (card := _card(view)) is None:
        return None
    return Reason.NOT_ALONE if any(one.slots_used > 0 and _card(one) == card for one in case.views) else None


def choose(eligible: Sequence[DeviceUsage], request: Request, case: FitContext) -> Sequence[DeviceUsage]:
    """The first devices; in die mode, those of few physical cards."""
    return grouped(eligible, request.count, _card) if _in_die_mode(case.views) else eligible[:request.count]


def node_score(views: Sequence[DeviceUsage], placement: tuple[tuple[Share, ...], ...], policy: NodePolicy) -> float:
    """How much dies are kept together, a point at most for each container; 0 for whole cards."""
    return concentration(views, placement, _card_of_die)


def _in_die_mode(views: Sequence[DeviceUsage]) -> bool:
    return bool(views) and _is_die(views[0])


def _is_die(view: DeviceUsage) -> bool:
    return bool(view.device.info.get("DeviceStrategy") == "die")


def _card_of_die(view: DeviceUsage) -> str | None:
    return _card(view) if _is_die(view) else None


def _card(view: DeviceUsage) -> str | None:
    card = view.device.info.get("AIC")
    return card if isinstance(card, str) and card else None
