"""Which of the devices that can serve are linked best."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy
from numpy.typing import NDArray

__all__ = ["best_linked"]

Array = NDArray[Any]

MOST_CHOICES = 15_000  # sets of devices that are all tried; eight of sixteen are 12,870


def best_linked(links: Array, count: int) -> tuple[int, ...]:
    """The places of *count* devices; ``links[a, b]`` says how well the devices at two places are linked.

    One device alone is the one that the others miss least. Several are those with the greatest sum of links, of equals
    the first in lexicographic order. Where there are too many sets to try them all, a good one.
    Source: HAMi v2.10, pkg/device/nvidia/device.go, Fit.
    """
    places = len(links)
    if count == 1:
        return (int(links.sum(axis=1).argmin()),)
    if math.comb(places, count) <= MOST_CHOICES:
        choices = numpy.array(list(itertools.combinations(range(places), count)))
    else:
        choices = numpy.array([_grown(links + links.T, start, count) for start in range(places)])
    pairs = links[choices[:, :, None], choices[:, None, :]]
    sums = numpy.triu(pairs, 1).sum(axis=(1, 2))
    return tuple(int(place) for place in choices[sums.argmax()])


def _grown(links: Array, start: int, count: int) -> list[int]:
    """A set around *start*: each time the device joins that is linked best to those already in it."""
    chosen, gain = [start], links[start].copy()
    while len(chosen) < count:
        gain[chosen] = numpy.iinfo(gain.dtype).min
        best = int(gain.argmax())
        chosen.append(best)
        gain += links[best]
    return sorted(chosen)
