"""Kunlun cards, whole or in slices (vXPU): eight in a server, in two wings, of which pods get what is linked.

Source: HAMi v2.10, pkg/device/kunlun (device.go, vdevice.go, topo.go).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from hami.model import Container, Device, Node, NodePolicy, Reason, Request, Share, DeviceUsage
from hami.vendors import inventory
from hami.vendors.admission import Draft
from hami.vendors.request import WHOLE, amounts, common_request
from hami.vendors.select import WING, on_wings, places_of
from hami.vendors.spec import FitContext, NoCombination, Vendor

__all__ = [
    "CARD_MIB", "choose_cards", "choose_slices", "node_score", "other_slices", "registered", "round_memory",
    "slice_request", "whole_card",
]

CARD_MIB = 98304
_SLICES_MIB = (CARD_MIB // 4, CARD_MIB // 2, CARD_MIB)


def registered(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """The cards as registered, each with as many slots as it has room for the smallest slices: what is registered as
    their number does not count."""
    devices = inventory.registered(vendor, node)
    return devices and tuple(replace(device, slots=max(device.slots, device.memory_mib // _SLICES_MIB[0]))
                             for device in devices)


def whole_card(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    """The card with all its memory and cores."""
    return Share(usage.device.uuid, request.vendor, usage.device.memory_mib, usage.device.cores)


def choose_cards(eligible: Sequence[DeviceUsage], request: Request,
                 context: FitContext) -> Sequence[DeviceUsage] | NoCombination:
    """Linked cards that nobody uses.

    That they are unused is no rule of its own: users see what upstream tells them then, that the NUMA node does not
    fit, and beside it what rules say of other cards.
    """
    return choose_slices([usage for usage in eligible if usage.slots_used == 0], request, context)


def choose_slices(eligible: Sequence[DeviceUsage], request: Request,
                  context: FitContext) -> Sequence[DeviceUsage] | NoCombination:
    """Slices of linked cards."""
    return on_wings(eligible, request.count, context.usages) or NoCombination(Reason.NUMA)


def other_slices(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """The card is cut in slices of another size; those of one card are all equal."""
    return None if usage.memory_used_mib == usage.slots_used * request.memory_mib else Reason.CUSTOM_RULE


def round_memory(draft: Draft) -> None:
    """Admission: a limit of memory becomes that of the slice, and so does the request."""
    vendor = draft.vendor
    if vendor.memory in draft.limits:
        memory = _slice_mib(draft.rounded(vendor.memory) or 0)
        draft.set_limit(vendor.memory, memory)
        draft.set_request(vendor.memory, memory)


def slice_request(vendor: Vendor, container: Container) -> Request | None:
    """The common reading, with memory rounded up to a slice (a card is the largest) and the cores that go with it."""
    found = common_request(vendor, container)
    if found is None:
        return None
    asked = vendor.memory in amounts(vendor, container.limits, container.requests)
    memory = _slice_mib(found.memory_mib) if asked else CARD_MIB
    return replace(found, memory_mib=memory, memory_percent=None if asked else WHOLE, cores=memory * 100 // CARD_MIB)


def node_score(usages: Sequence[DeviceUsage], placement: tuple[tuple[Share, ...], ...], policy: NodePolicy) -> float:
    """0 to 3000: how little the pod's cards cut up the wings, those in use counted with them."""
    places = places_of(usages)
    used = {places[usage.device.uuid] for usage in usages if usage.slots_used > 0}
    taken = {places[share.uuid] for shares in placement for share in shares}
    return 1000.0 * max(0, min(3, 2 + _cuts(used) - _cuts(used | taken)))


def _cuts(places: Collection[int]) -> int:
    """How badly cards at *places* cut up the wings: a single card in a wing is worst, a full wing best."""
    if not places:
        return 1
    left = sum(place < WING for place in places)
    return sum({WING: 0, 1: 2}.get(cards, 1) for cards in (left, len(places) - left))


def _slice_mib(memory_mib: int) -> int:
    return next((size for size in _SLICES_MIB if memory_mib <= size), CARD_MIB)
