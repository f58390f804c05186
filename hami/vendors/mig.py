"""NVIDIA cards in MIG mode: a container gets an instance of a profile, at a placement of its own on the card.

Source: HAMi v2.10, pkg/device/nvidia (CustomFilterRule, AddResourceUsage), docs/develop/mig-dynamic-deallocate.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from hami.codec.keys import GPU_ALLOCATED, MIG_ALLOCATIONS
from hami.codec.mig import (
    MigAllocation,
    cards_without_places,
    parse_mig_allocations,
    possible_instances,
    render_mig_allocations,
)
from hami.errors import MalformedInput
from hami.model import Allocation, DeviceUsage, MigProfile, Partition, Pod, Reason, Share
from hami.vendors.shares import common_share
from hami.vendors.spec import AnnotationContext, Candidate, Vendor

MODE = "mig"


def in_mig_mode(usage: DeviceUsage) -> bool:
    """Reports whether the card is in MIG mode; one container may then have several instances of it."""
    return usage.device.mode == MODE


def unaccounted(candidate: Candidate) -> Reason | None:
    """Rejects a card with unknown usage: shares without a placement in MIG mode, or placements in another mode."""
    usage = candidate.usage
    is_unknown = bool(usage.partitions)
    if in_mig_mode(usage):
        is_unknown = len(usage.partitions) < usage.slots_used
    return Reason.UNHEALTHY if is_unknown else None


def no_placement(candidate: Candidate) -> Reason | None:
    """Rejects a card in MIG mode without a large enough profile that has a free placement."""
    if in_mig_mode(candidate.usage) and _instance(candidate) is None:
        return Reason.MIG_TOPOLOGY
    return None


def make_share(candidate: Candidate) -> Share:
    """Returns a share with an instance and its placement in MIG mode, else with the requested amounts."""
    instance = _instance(candidate) if in_mig_mode(candidate.usage) else None
    if instance is None:
        return common_share(candidate)
    profile, partition = instance
    return Share(
        candidate.device.uuid,
        candidate.request.vendor,
        profile.memory_mib,
        profile.cores,
        (partition,),
    )


def annotate(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
    """Returns the annotation with the placements of the pod's instances, if it has any."""
    allocations = []
    for container, shares in enumerate(context.shares):
        for device, share in enumerate(shares):
            if share.partitions:
                allocations.append(
                    MigAllocation(
                        container=container,
                        device=device,
                        gpu=share.uuid,
                        partition=share.partitions[0],
                    )
                )
    return {MIG_ALLOCATIONS: render_mig_allocations(allocations)} if allocations else {}


def read_shares(vendor: Vendor, pod: Pod, containers: Allocation) -> Allocation:
    """Adds the placements on the cards to the shares.

    Raises: MalformedInput if placements and shares do not match, or a share is in the format of HAMi v2.5 to v2.9: it
    has no placement, so the free placements are unknown.
    """
    return with_places(pod.annotations, containers, vendor.annotations.allocated)


def with_places(
    annotations: Mapping[str, str], containers: Allocation, key: str = GPU_ALLOCATED
) -> Allocation:
    """Returns the shares of *containers*, which the annotation *key* has, with their placements on the cards.

    Raises: MalformedInput as `read_shares`.
    """
    allocated, text = annotations.get(key, ""), annotations.get(MIG_ALLOCATIONS)
    if cards_without_places(allocated):
        raise MalformedInput(
            key,
            allocated,
            "MIG instances are in the format of HAMi v2.5 to v2.9, without their placements",
        )
    if text is None:
        return containers
    allocations = {}
    for allocation in parse_mig_allocations(MIG_ALLOCATIONS, text):
        allocations[allocation.container, allocation.device] = allocation
    cards = {allocation.gpu for allocation in allocations.values()}
    completed: list[list[Share]] = []
    for container, shares in enumerate(containers):
        completed.append([])
        for device, share in enumerate(shares):
            placed = _placed(share, allocations.pop((container, device), None), cards)
            if placed is None:
                raise MalformedInput(
                    MIG_ALLOCATIONS,
                    text,
                    f"expected a placement for share {device} of container "
                    f"{container} on card {share.uuid}",
                )
            completed[container].append(placed)
    if allocations:
        raise MalformedInput(
            MIG_ALLOCATIONS, text, f"expected no more placements than {key} has shares"
        )
    return tuple(map(tuple, completed))


def _placed(share: Share, allocation: MigAllocation | None, cards: Collection[str]) -> Share | None:
    """Returns *share* with its placement, if it has one; ``None`` if they do not match."""
    if allocation is None:
        return None if share.uuid in cards else share
    if allocation.gpu != share.uuid:
        return None
    return replace(share, partitions=(allocation.partition,))


def _instance(candidate: Candidate) -> tuple[MigProfile, Partition] | None:
    """Returns the smallest profile for the request that has a free placement on the card, and that placement.

    The largest profile is the whole card, even if it has less memory than the card outside MIG mode.
    """
    device, memory_mib = candidate.device, candidate.memory_mib
    taken = candidate.usage.partitions
    for share in candidate.picks:
        if share.uuid == device.uuid:
            taken += share.partitions
    largest = max((profile.memory_mib for profile in device.mig_profiles), default=0)
    if largest and not candidate.request.memory_mib:
        memory_mib = min(memory_mib, largest)
    for profile, partition in possible_instances(device.mig_profiles):
        if profile.memory_mib >= memory_mib and not any(map(partition.overlaps, taken)):
            return profile, partition
    return None
