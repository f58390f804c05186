"""Needs of the usual pods: what they request of a single device. Many kinds of pods have the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from hami.scheduling import columns
from hami.scheduling.columns import DeviceColumns
from hami.scheduling.usual_pods import UsualPod
from hami.vendors.request import WHOLE

Array = NDArray[Any]

f32 = numpy.float32
UNLIMITED = f32(1e6)  # pods, for an amount of which they request nothing
_SETTINGS = 6  # numbers of `offers` for each vendor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceNeeds:
    """The different needs of pods, an item for each in every array, or a column.

    *per_core*, *per_mib*: for how many pods one percent of cores and one MiB are enough. *memory_percent*: of a device.
    *most*: pods on one device. *accepts* has a row for each model: 1 for those that use devices of it, else 0.
    *serves*: the same by vendor, allocation mode and use, a row for each number of `offers`.
    """

    per_core: Array
    per_mib: Array
    memory_percent: Array
    most: Array
    accepts: Array
    serves: Array

    def __len__(self) -> int:
        return len(self.most)

    @classmethod
    def of(cls, pods: Iterable[UsualPod], devices: DeviceColumns) -> tuple[DeviceNeeds, Array]:
        """Returns the needs of *pods*, and which of them each has. *devices*: columns with the numbers of vendors and
        models."""
        numbers: dict[UsualPod, int] = {}
        which: list[int] = []
        for pod in pods:
            need = msgspec.structs.replace(pod, count=1, milli_cpu=0)
            which.append(numbers.setdefault(need, len(numbers)))
        amounts = numpy.zeros((3, len(numbers)), dtype=f32)
        most = numpy.full(len(numbers), UNLIMITED)
        for need, place in numbers.items():
            amounts[:, place] = need.cores, need.memory_mib, need.memory_percent
            if need.alone:
                most[place] = 1
        made = cls(
            per_core=inverse(amounts[0]),
            per_mib=inverse(amounts[1]),
            memory_percent=amounts[2],
            most=most,
            accepts=_accepts(numbers, devices),
            serves=_serves(numbers, devices),
        )
        return made, numpy.array(which, dtype=numpy.intp)


def inverse(amounts: Array) -> Array:
    """Returns for how many pods one unit is enough, which request *amounts*."""
    return numpy.where(amounts > 0, 1 / numpy.maximum(amounts, 1), UNLIMITED).astype(f32)


def _accepts(needs: Mapping[UsualPod, int], devices: DeviceColumns) -> Array:
    accepts = numpy.zeros((max(devices.models.values(), default=0) + 1, len(needs)), dtype=f32)
    for need, place in needs.items():
        for model, number in devices.models.items():
            accepts[number, place] = need.accepts(model)
    return accepts


def _serves(needs: Mapping[UsualPod, int], devices: DeviceColumns) -> Array:
    vendors = max(devices.vendors.values(), default=0) + 1
    serves = numpy.zeros((vendors, 2, 3, len(needs)), dtype=f32)
    for need, place in needs.items():
        number = devices.vendors.get(need.vendor)
        if number is None:
            continue
        beside_others = not need.alone
        beside_whole = beside_others and need.cores < WHOLE
        serves[number, int(need.by_claims), :, place] = 1, beside_others, beside_whole
    return serves.reshape(_SETTINGS * vendors, len(needs))


def offers(facts: Array, use: Array | int) -> Array:
    """Returns a number for the vendor and the allocation mode of devices, and the *use* of each, as `uses` says."""
    return numpy.asarray(_SETTINGS * facts[columns.VENDOR] + 3 * facts[columns.BY_CLAIMS] + use)


def uses(facts: Array) -> Array:
    """Returns for each device whether pods use it: 0, 1, or 2 if those that request WHOLE cores need it alone, too."""
    in_use = facts[columns.SLOTS_USED] > 0
    return numpy.asarray(numpy.where(facts[columns.CORES] == WHOLE, 2, 1) * in_use)
