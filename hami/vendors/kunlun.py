"""Kunlun cards, whole or in slices (vXPU): eight in a server, in two wings. Pods get linked cards.

Source: HAMi v2.10, pkg/device/kunlun (device.go, vdevice.go, topo.go).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from hami.model import (
    Allocation,
    Container,
    Device,
    DeviceUsage,
    Node,
    NodePolicy,
    Reason,
    Request,
    Share,
    Unfit,
)
from hami.vendors import inventory
from hami.vendors.draft import ContainerDraft
from hami.vendors.request import WHOLE, common_request
from hami.vendors.resources import Resources
from hami.vendors.select import WING, on_wings, positions_of
from hami.vendors.spec import Candidate, FitContext, Vendor

CARD_MIB = 98304
_SLICES_MIB = (CARD_MIB // 4, CARD_MIB // 2, CARD_MIB)


def registered(vendor: Vendor, node: Node) -> tuple[Device, ...] | None:
    """Returns the registered cards, with at least as many slots as the smallest slices that fit on each."""
    devices = inventory.registered(vendor, node)
    if devices is None:
        return None
    cards = []
    for device in devices:
        slices = device.memory_mib // _SLICES_MIB[0]
        cards.append(replace(device, slots=max(device.slots, slices)))
    return tuple(cards)


def whole_card(candidate: Candidate) -> Share:
    """Returns a share with all memory and cores of the card."""
    return Share(
        candidate.device.uuid,
        candidate.request.vendor,
        candidate.device.memory_mib,
        candidate.device.cores,
    )


def choose_cards(
    eligible: Sequence[DeviceUsage], request: Request, context: FitContext
) -> Sequence[DeviceUsage] | Unfit:
    """Selects linked, unused cards.

    There is no rule for unused cards: as upstream, users see the NUMA reason beside the reasons of other cards.
    """
    return choose_slices([usage for usage in eligible if usage.slots_used == 0], request, context)


def choose_slices(
    eligible: Sequence[DeviceUsage], request: Request, context: FitContext
) -> Sequence[DeviceUsage] | Unfit:
    """Selects linked cards, for a slice of each."""
    return on_wings(eligible, request.count, context.usages) or Unfit.of(
        {Reason.NUMA: 1}, 0, len(context.usages)
    )


def other_slices(candidate: Candidate) -> Reason | None:
    """Rejects a card with slices of another size: all slices of a card are equal."""
    usage = candidate.usage
    if usage.memory_used_mib != usage.slots_used * candidate.request.memory_mib:
        return Reason.CUSTOM_RULE
    return None


def round_memory(draft: ContainerDraft) -> None:
    """Sets limit and request of memory to the size of the slice, if the container has a memory limit."""
    name = draft.resources.memory
    if name in draft.limits:
        memory = _slice_mib(draft.rounded(name) or 0)
        draft.set_limit(name, memory)
        draft.set_request(name, memory)


def slice_request(vendor: str, resources: Resources, container: Container) -> Request | None:
    """Returns the common request, with memory rounded up to a slice (at most a card) and the cores of that slice."""
    request = common_request(vendor, resources, container)
    if request is None:
        return None
    if resources.memory in resources.amounts(container.limits, container.requests):
        memory = _slice_mib(request.memory_mib)
        request = replace(request, memory_percent=None)
    else:
        memory = CARD_MIB
        request = replace(request, memory_percent=WHOLE)
    return replace(request, memory_mib=memory, cores=memory * 100 // CARD_MIB)


def node_score(usages: Sequence[DeviceUsage], placement: Allocation, policy: NodePolicy) -> float:
    """Returns 0 to 3000: how little the pod's cards and those in use fragment the wings."""
    positions = positions_of(usages)
    used = set()
    for usage in usages:
        if usage.slots_used > 0:
            used.add(positions[usage.device.uuid])
    taken = used.copy()
    for shares in placement:
        taken.update(positions[share.uuid] for share in shares)
    return 1000.0 * max(0, min(3, 2 + _fragmentation(used) - _fragmentation(taken)))


def _fragmentation(positions: Collection[int]) -> int:
    """Returns how much cards at *positions* fragment the wings: a single card in a wing is worst, a full wing best."""
    if not positions:
        return 1
    left = sum(position < WING for position in positions)
    return sum({WING: 0, 1: 2}.get(cards, 1) for cards in (left, len(positions) - left))


def _slice_mib(memory_mib: int) -> int:
    for size in _SLICES_MIB:
        if memory_mib <= size:
            return size
    return CARD_MIB
