"""Selection of devices by the links between them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy
from numpy.typing import NDArray

Array = NDArray[Any]

# beyond it not all combinations are compared; eight of sixteen devices have 12,870
MAX_COMBINATIONS = 15_000


def best_linked(links: Array, count: int) -> tuple[int, ...]:
    """Returns the indexes of the *count* devices with the best links; ``links[a, b]`` is the score of one link.

    For one device, it is the one with the weakest links to the others. For several, it is the combination with the
    greatest sum of links, and the first in lexicographic order among equals; if there are too many combinations, it is
    a good one.
    Source: HAMi v2.10, pkg/device/nvidia/device.go, Fit.
    """
    size = len(links)
    if count == 1:
        return (int(links.sum(axis=1).argmin()),)
    if math.comb(size, count) <= MAX_COMBINATIONS:
        combinations = numpy.array(list(itertools.combinations(range(size), count)))
    else:
        both_ways = links + links.T
        combinations = numpy.array([_grow(both_ways, start, count) for start in range(size)])
    pairs = links[combinations[:, :, None], combinations[:, None, :]]
    sums = numpy.triu(pairs, 1).sum(axis=(1, 2))
    return tuple(int(index) for index in combinations[sums.argmax()])


def _grow(links: Array, start: int, count: int) -> list[int]:
    """Returns a combination that starts at *start* and adds the best linked device each time."""
    chosen, gain = [start], links[start].copy()
    while len(chosen) < count:
        gain[chosen] = numpy.iinfo(gain.dtype).min
        best = int(gain.argmax())
        chosen.append(best)
        gain += links[best]
    return sorted(chosen)
