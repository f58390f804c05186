"""Admission steps that vendor records name. They check amounts, or set amounts that follow from others.

A step changes an amount in limits, and in requests if it is given there too.
"""

from __future__ import annotations

from hami.errors import MalformedInput
from hami.quantity import strict_integer
from hami.vendors.admission import invalid_amount
from hami.vendors.draft import ContainerDraft
from hami.vendors.request import WHOLE


def at_least_one(draft: ContainerDraft) -> None:
    """Rejects a count below one. Raises: MalformedInput."""
    name = draft.resources.count
    if (count := draft.rounded(name)) is not None and count < 1:
        raise invalid_amount(name, count, "must be greater than 0")


def percentage_of_cores(draft: ContainerDraft) -> None:
    """Rejects cores that are not a percentage from 1 to 100. Raises: MalformedInput."""
    name = draft.resources.cores
    if (text := draft.given.get(name)) is None:
        return
    cores = strict_integer(text)
    if cores is None or not 1 <= cores <= WHOLE:
        raise invalid_amount(name, text, "must be an integer percentage between 1 and 100")


def all_cores_of_several(draft: ContainerDraft) -> None:
    """A container with several devices gets all their cores, whatever it requests."""
    if (count := draft.rounded(draft.resources.count) or 0) > 1 and draft.resources.cores:
        draft.set_amount(draft.resources.cores, count * WHOLE)


def whole_devices(draft: ContainerDraft, *, memory: int, cores: int) -> None:
    """A container with several devices, or without a memory request, gets whole devices.

    *memory*, *cores*: the amounts of one device, in the units of the vendor's resources.
    """
    resources, count = draft.resources, draft.rounded(draft.resources.count) or 0
    if count > 1 or resources.memory not in draft.given:
        for name, amount in ((resources.cores, cores), (resources.memory, memory)):
            if name:
                draft.set_amount(name, count * amount)


def single_size(draft: ContainerDraft, *, sizes: tuple[int, ...], message: str) -> None:
    """Rejects memory of a single device that is not one of *sizes*, with *message*. Raises: MalformedInput."""
    name = draft.resources.memory
    if draft.rounded(draft.resources.count) == 1 and (size := draft.rounded(name)) is not None and size not in sizes:
        raise MalformedInput(name, size, message, message=message)


def count_in_annotation(draft: ContainerDraft, *, key: str) -> None:
    """Sets the pod annotation *key* to the device count, if there are several."""
    if (count := draft.rounded(draft.resources.count) or 0) > 1:
        draft.pod.set_annotation(key, str(count))


def name_in_env(draft: ContainerDraft, *, variable: str) -> None:
    """Sets *variable* to the container's name, unless the container sets it itself."""
    if draft.name and variable not in dict(draft.variables):
        draft.set_env(variable, draft.name)
