"""Which of the devices that can serve a container gets, where not simply the first: ways that vendors share.

Plain functions over device views, given in the order of trying. They know no request and no reason; what does not work
out shows in how many devices come back. Where two choices are equally good, the lowest name or index decides, so that
the same question always gets the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hami.model import Share, DeviceUsage

__all__ = ["WING", "aligned_run", "concentration", "grouped", "on_wings", "places_of", "whole_pairs"]

Name = TypeVar("Name", float, str)

WING = 4  # devices that sit on one side of a Kunlun server
_ACROSS: dict[int, tuple[tuple[int, ...], ...]] = {  # linked places of both wings, by how many they are
    2: ((0, 4), (1, 5), (2, 6), (3, 7)),
    4: ((0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7), (0, 3, 4, 7), (1, 2, 5, 6)),
}
_WING_SIZES = {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}  # how many free devices a wing has, best first, by how many go


def grouped(eligible: Sequence[DeviceUsage], count: int,
            group: Callable[[DeviceUsage], Name | None]) -> Sequence[DeviceUsage]:
    """*count* of *eligible* from few groups: the largest group first, then the next; all, when there are no more.

    Devices without a group are taken last. One device is simply the first.
    Source: HAMi v2.10, pkg/device/ascend/device.go, computeBestCombination, and pkg/device/vastai/device.go.
    """
    if count == 1 or len(eligible) <= count:
        return eligible[:count]
    groups: dict[Name, list[DeviceUsage]] = {}
    alone: list[DeviceUsage] = []
    for usage in eligible:
        name = group(usage)
        (alone if name is None else groups.setdefault(name, [])).append(usage)
    largest_first: list[Name] = sorted(groups, key=lambda name: (-len(groups[name]), name))
    return [*(usage for name in largest_first for usage in groups[name]), *alone][:count]


def concentration(usages: Sequence[DeviceUsage], placement: Sequence[Sequence[Share]],
                  group: Callable[[DeviceUsage], Name | None]) -> float:
    """How much the containers' devices keep together: for each container the part of its devices that its largest
    group has, added up; 0 if any device has no group."""
    groups = {usage.device.uuid: group(usage) for usage in usages}
    found = 0.0
    for shares in placement:
        names = [groups.get(share.uuid) for share in shares]
        if None in names:
            return 0.0
        found += max(Counter(names).values()) / len(names) if names else 0.0
    return found


def whole_pairs(eligible: Sequence[DeviceUsage], count: int) -> Sequence[DeviceUsage]:
    """As many of *eligible* as go into *count* in whole pairs: devices 0 and 1, 2 and 3, and so on, lowest pair first.

    Source: HAMi v2.10, pkg/device/ascend/device.go, computeBestCombination910C.
    """
    pairs: dict[int, list[DeviceUsage]] = {}
    for usage in eligible:
        pairs.setdefault(usage.device.index // 2, []).append(usage)
    whole = [pairs[place] for place in sorted(pairs)
             if sorted(usage.device.index for usage in pairs[place]) == [2 * place, 2 * place + 1]]
    return [usage for pair in whole[:count // 2] for usage in pair]


def on_wings(eligible: Sequence[DeviceUsage], count: int, listed: Sequence[DeviceUsage]) -> Sequence[DeviceUsage]:
    """*count* (1, 2, 4 or 8) of *eligible* that are linked with each other; none when there is no such choice.

    Of the eight places of a server, 0 to 3 and 4 to 7 are wings, in which all are linked; across, 0 and 4, 1 and 5, 2
    and 6, 3 and 7 are. *listed*: all devices of the node, as registered. Wings are those of the devices' indexes, in
    whichever order they are tried.
    Source: HAMi v2.10, pkg/device/kunlun/topo.go, graghSelect.
    """
    places = places_of(listed)
    seated = {places[usage.device.uuid]: usage for usage in eligible}
    return [seated[place] for place in _linked_places(sorted(place for place in seated if place < 2 * WING), count)]


def aligned_run(eligible: Sequence[DeviceUsage], count: int, *, step: int = 1) -> Sequence[DeviceUsage]:
    """*count* of *eligible* whose indexes follow each other, beginning at a multiple of *step*; none if there are none.

    The lowest such run, in the order of indexes.
    Source: HAMi v2.10, pkg/device/awsneuron/device.go, graphSelect.
    """
    seated = {usage.device.index: usage for usage in eligible}
    for start in sorted(seated) if count <= len(seated) else ():  # a count may be any number
        run = [seated[index] for index in range(start, start + count) if index in seated]
        if start % step == 0 and len(run) == count:
            return run
    return ()


def places_of(listed: Sequence[DeviceUsage]) -> Mapping[str, int]:
    """Where each device sits, by uuid: its index, or where indexes do not tell devices apart, its place in the list."""
    indexes = [usage.device.index for usage in listed]
    if len(set(indexes)) < len(indexes):
        indexes = list(range(len(listed)))
    return {usage.device.uuid: index for usage, index in zip(listed, indexes)}


def _linked_places(free: Sequence[int], count: int) -> Sequence[int]:
    if count == 2 * WING:
        return free if len(free) == count else ()
    left, right = [place for place in free if place < WING], [place for place in free if place >= WING]
    for size in _WING_SIZES.get(count, ()):
        for wing in (left, right):
            if len(wing) == size:
                return wing[:count]
    # of six devices upstream looks at the two that would remain, too, and comes to the first choice every time
    return next((places for places in _ACROSS.get(count, ()) if set(places) <= set(free)), ())
