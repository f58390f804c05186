"""NVIDIA cards in MIG mode: a container gets an instance of a profile, at a place on the card that is its own.

Source: HAMi v2.10, pkg/device/nvidia (CustomFilterRule, AddResourceUsage), docs/develop/mig-dynamic-deallocate.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hami.codec.keys import MIG_ALLOCATIONS
from hami.codec.mig import MigAllocation, cards_without_places, parse_mig_allocations, render_mig_allocations
from hami.errors import MalformedInput
from hami.model import MigProfile, Pod, Reason, Request, Share, Partition, DeviceUsage
from hami.vendors.shares import common_share
from hami.vendors.spec import FitContext, AnnotationContext, Vendor

__all__ = ["MODE", "annotate", "in_mig_mode", "instance_share", "no_place", "read", "unaccounted"]

MODE = "mig"
_FROM_THE_TOP = ("1g.", "3g.")  # profiles whose instances are placed from the highest start down


def in_mig_mode(usage: DeviceUsage) -> bool:
    """The card is cut in instances, of which one container may have several."""
    return usage.device.mode == MODE


def unaccounted(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """Somebody uses the card in a way that cannot be seen: a MIG card without a place, or another with one."""
    if in_mig_mode(usage):
        return Reason.UNHEALTHY if len(usage.partitions) < usage.slots_used else None
    return Reason.UNHEALTHY if usage.partitions else None


def no_place(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Reason | None:
    """A card in MIG mode has no profile that is large enough and has room."""
    return Reason.MIG_TOPOLOGY if in_mig_mode(usage) and _instance(usage, request, picks) is None else None


def instance_share(usage: DeviceUsage, request: Request, context: FitContext, picks: Sequence[Share]) -> Share:
    """In MIG mode the memory and the cores of an instance, and its place; else what was asked for."""
    found = _instance(usage, request, picks) if in_mig_mode(usage) else None
    if found is None:
        return common_share(usage, request, context, picks)
    profile, partition = found
    return Share(usage.device.uuid, request.vendor, profile.memory_mib, profile.cores, (partition,))


def annotate(vendor: Vendor, context: AnnotationContext) -> Mapping[str, str]:
    """The places of the pod's instances; nothing when it has none."""
    found = [MigAllocation(container=container, device=device, gpu=share.uuid, partition=share.partitions[0])
             for container, shares in enumerate(context.shares)
             for device, share in enumerate(shares) if share.partitions]
    return {MIG_ALLOCATIONS: render_mig_allocations(found)} if found else {}


def read(vendor: Vendor, pod: Pod, containers: tuple[tuple[Share, ...], ...]) -> tuple[tuple[Share, ...], ...]:
    """The shares with their places on the cards.

    Raises: MalformedInput when places and shares do not belong together, or a share has the form of HAMi v2.5 to v2.9,
    which does not say its place, as then nobody knows what is free.
    """
    if cards_without_places(allocated := pod.annotations.get(vendor.allocated, "")):
        raise MalformedInput(vendor.allocated, allocated, "instances of MIG cards stand there as HAMi v2.5 to v2.9 "
                                                          "wrote them, without their places")
    if (text := pod.annotations.get(MIG_ALLOCATIONS)) is None:
        return containers
    found = {(one.container, one.device): one for one in parse_mig_allocations(MIG_ALLOCATIONS, text)}
    cards, partitions = {one.gpu for one in found.values()}, dict[tuple[int, int], Partition]()
    for container, shares in enumerate(containers):
        for device, share in enumerate(shares):
            one = found.pop((container, device), None)
            if one is not None and one.gpu == share.uuid:
                partitions[container, device] = one.partition
            elif one is not None or share.uuid in cards:
                raise MalformedInput(MIG_ALLOCATIONS, text, f"expected a place for share {device} of container "
                                                            f"{container} on card {share.uuid}")
    if found:
        raise MalformedInput(MIG_ALLOCATIONS, text, f"expected no more places than {vendor.allocated} has shares")
    return tuple(tuple(replace(share, partitions=(partitions[key],)) if (key := (container, device)) in partitions
                       else share for device, share in enumerate(shares))
                 for container, shares in enumerate(containers))


def _instance(usage: DeviceUsage, request: Request, picks: Sequence[Share]) -> tuple[MigProfile, Partition] | None:
    """The smallest profile that holds what *request* needs and has room on the card, and where.

    The largest profile is the whole card, even if it has less memory than the card has without being cut.
    """
    held = (*usage.partitions, *(partition for share in picks if share.uuid ==
            usage.device.uuid for partition in share.partitions))
    profiles = sorted(usage.device.mig_profiles, key=lambda profile: (profile.memory_mib, profile.slices))
    need = request.memory_on(usage.device)
    if profiles and not request.memory_mib:
        need = min(need, profiles[-1].memory_mib)
    for profile in profiles:
        if profile.memory_mib >= need:
            for partition in _places(profile):
                if not any(partition.overlaps(other) for other in held):
                    return profile, partition
    return None


def _places(profile: MigProfile) -> Iterator[Partition]:
    """The places of *profile* in the order of trying."""
    for place in sorted(profile.placements, key=lambda place: place.start,
                        reverse=profile.name.startswith(_FROM_THE_TOP)):
        yield Partition(place.start, place.size, profile.name)
