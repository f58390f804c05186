"""Steps of admission that records name: what an amount has to be, and what follows from it.

Amounts that a step changes are changed in limits, and in requests where they stand there too.
"""

from __future__ import annotations

from hami.errors import MalformedInput
from hami.quantity import strict_integer
from hami.vendors.admission import Draft, Step
from hami.vendors.request import WHOLE

__all__ = [
    "all_cores_of_several", "at_least_one", "count_in_annotation", "name_in_env", "percentage_of_cores", "single_size",
    "whole_devices",
]


def at_least_one(draft: Draft) -> None:
    """Refuse a count below one. Raises: MalformedInput."""
    name = draft.vendor.count
    if (count := draft.rounded(name)) is not None and count < 1:
        raise MalformedInput(name, count, "expected at least 1", message=f"{name} must be greater than 0")


def percentage_of_cores(draft: Draft) -> None:
    """Refuse cores that are no percentage from 1 to 100. Raises: MalformedInput."""
    name = draft.vendor.cores
    if (text := draft.given.get(name)) is None:
        return
    problem = "must be an integer percentage between 1 and 100"
    try:
        cores = strict_integer(text)
    except MalformedInput:
        cores = None
    if cores is None or not 1 <= cores <= WHOLE:
        raise MalformedInput(name, text, problem, message=f"{name} {problem}")


def all_cores_of_several(draft: Draft) -> None:
    """Who asks for several devices has all their cores, whatever was written."""
    if (count := draft.rounded(draft.vendor.count) or 0) > 1 and draft.vendor.cores:
        draft.set_amount(draft.vendor.cores, count * WHOLE)


def whole_devices(*, memory: int, cores: int) -> Step:
    """A step: who asks for several devices, or does not say how much memory, has all that the devices have.

    *memory*, *cores*: those of one device, in the units of the vendor's resources.
    """

    def step(draft: Draft) -> None:
        vendor, count = draft.vendor, draft.rounded(draft.vendor.count) or 0
        if count > 1 or vendor.memory not in draft.given:
            for name, amount in ((vendor.cores, cores), (vendor.memory, memory)):
                if name:
                    draft.set_amount(name, count * amount)
    return step


def single_size(sizes: tuple[int, ...], message: str) -> Step:
    """A step: memory of one device is one of *sizes*; others are refused with the words *says*."""

    def step(draft: Draft) -> None:
        name = draft.vendor.memory
        if draft.rounded(draft.vendor.count) == 1 and (size := draft.rounded(name)) is not None and size not in sizes:
            raise MalformedInput(name, size, message, message=message)
    return step


def count_in_annotation(key: str) -> Step:
    """A step: the pod's annotation *key* says how many devices are asked for, where there are several."""

    def step(draft: Draft) -> None:
        if (count := draft.rounded(draft.vendor.count) or 0) > 1:
            draft.set_annotation(key, str(count))
    return step


def name_in_env(variable: str) -> Step:
    """A step: the container finds its name in *variable*, unless it sets that itself."""

    def step(draft: Draft) -> None:
        if draft.name and not draft.has_env(variable):
            draft.set_env(variable, draft.name)
    return step
