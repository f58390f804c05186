"""Selection of devices among those that pass, for vendors that do not simply take the first.

Plain functions over device usages in the order of trying, without requests and reasons: a result with too few devices
means that there is no selection. Among equals, the lowest name or index decides, so that the result is deterministic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hami.model import DeviceUsage, Share

Name = TypeVar("Name", float, str)

WING = 4  # devices that sit on one side of a Kunlun server
_ACROSS: dict[int, tuple[tuple[int, ...], ...]] = {  # linked positions in both wings, by count
    2: ((0, 4), (1, 5), (2, 6), (3, 7)),
    4: ((0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7), (0, 3, 4, 7), (1, 2, 5, 6)),
}
_WING_SIZES = {
    1: (1, 3, 2, 4),
    2: (2, 3, 4),
    4: (4,),
}  # free devices in a wing, best first, by count


def grouped(
    eligible: Sequence[DeviceUsage], count: int, group: Callable[[DeviceUsage], Name | None]
) -> Sequence[DeviceUsage]:
    """Returns *count* of *eligible* from few groups: the largest group first; all, if there are not more.

    Devices without a group come last. A single device is the first one.
    Source: HAMi v2.10, pkg/device/ascend/device.go, computeBestCombination, and pkg/device/vastai/device.go.
    """
    if count == 1 or len(eligible) <= count:
        return eligible[:count]
    groups: dict[Name, list[DeviceUsage]] = {}
    alone: list[DeviceUsage] = []
    for usage in eligible:
        name = group(usage)
        if name is None:
            alone.append(usage)
        else:
            groups.setdefault(name, []).append(usage)
    ordered: list[DeviceUsage] = []
    for name in sorted(groups, key=lambda name: (-len(groups[name]), name)):
        ordered += groups[name]
    return [*ordered, *alone][:count]


def concentration(
    usages: Sequence[DeviceUsage],
    placement: Sequence[Sequence[Share]],
    group: Callable[[DeviceUsage], Name | None],
) -> float:
    """Returns how well the containers' devices are kept together: the sum, over containers, of the fraction of devices
    in the largest group; 0 if any device has no group."""
    groups = {usage.device.uuid: group(usage) for usage in usages}
    total = 0.0
    for shares in placement:
        names = [groups.get(share.uuid) for share in shares]
        if None in names:
            return 0.0
        if names:
            total += max(Counter(names).values()) / len(names)
    return total


def whole_pairs(eligible: Sequence[DeviceUsage], count: int) -> Sequence[DeviceUsage]:
    """Returns at most *count* of *eligible* in whole pairs: devices 0 and 1, 2 and 3, and so on, lowest pair first.

    Source: HAMi v2.10, pkg/device/ascend/device.go, computeBestCombination910C.
    """
    pairs: dict[int, list[DeviceUsage]] = {}
    for usage in eligible:
        pairs.setdefault(usage.device.index // 2, []).append(usage)
    whole: list[DeviceUsage] = []
    for number in sorted(pairs):
        indexes = sorted(usage.device.index for usage in pairs[number])
        if indexes == [2 * number, 2 * number + 1]:
            whole += pairs[number]
    return whole[: count // 2 * 2]


def on_wings(
    eligible: Sequence[DeviceUsage], count: int, registered: Sequence[DeviceUsage]
) -> Sequence[DeviceUsage]:
    """Returns *count* (1, 2, 4 or 8) of *eligible* that are linked with each other; none if there is no such selection.

    Of the eight positions of a server, 0 to 3 and 4 to 7 are wings, whose devices are all linked. Across the wings, 0
    and 4, 1 and 5, 2 and 6, 3 and 7 are linked. *registered*: all devices of the node, in the order of registration.
    Source: HAMi v2.10, pkg/device/kunlun/topo.go, graghSelect.
    """
    positions = positions_of(registered)
    by_position = {positions[usage.device.uuid]: usage for usage in eligible}
    free = sorted(position for position in by_position if position < 2 * WING)
    return [by_position[position] for position in _linked_positions(free, count)]


def aligned_run(
    eligible: Sequence[DeviceUsage], count: int, *, step: int = 1
) -> Sequence[DeviceUsage]:
    """Returns *count* of *eligible* with consecutive indexes from a multiple of *step*; none if there is no such run.

    The lowest such run, in the order of indexes.
    Source: HAMi v2.10, pkg/device/awsneuron/device.go, graphSelect.
    """
    by_index = {usage.device.index: usage for usage in eligible}
    if count > len(by_index):  # a count may be any number
        return ()
    for start in sorted(by_index):
        indexes = range(start, start + count)
        if start % step == 0 and by_index.keys() >= set(indexes):
            return [by_index[index] for index in indexes]
    return ()


def positions_of(registered: Sequence[DeviceUsage]) -> Mapping[str, int]:
    """Returns the position of each device by uuid: its index or, if indexes are not unique, the list index."""
    indexes = [usage.device.index for usage in registered]
    if len(set(indexes)) < len(indexes):
        indexes = list(range(len(registered)))
    return {usage.device.uuid: index for usage, index in zip(registered, indexes)}


def _linked_positions(free: Sequence[int], count: int) -> Sequence[int]:
    if count == 2 * WING:
        return free if len(free) == count else ()
    left = [position for position in free if position < WING]
    right = free[len(left) :]
    for size in _WING_SIZES.get(count, ()):
        for wing in (left, right):
            if len(wing) == size:
                return wing[:count]
    # upstream compares the remaining devices too, but its result is always the first of these
    for linked in _ACROSS.get(count, ()):
        if set(linked) <= set(free):
            return linked
    return ()
