"""Admission steps that vendor records name. They check amounts, or set amounts that follow from others.

A step changes an amount in limits, and in requests if it is given there too.
"""

from __future__ import annotations

from hami.errors import PodRefused
from hami.quantity import strict_integer
from hami.vendors.draft import ContainerDraft
from hami.vendors.request import WHOLE

SGPU_SIZES = (2, 4, 8, 16, 32, 64, 96)  # amounts of memory that a Moore Threads device can share; the last: a whole one
SGPU_CORES = 16  # of a whole one


def at_least_one(draft: ContainerDraft) -> None:
    """Rejects a count below one. Raises: PodRefused."""
    name = draft.resources.count
    if (count := draft.rounded(name)) is not None and count < 1:
        raise PodRefused(f"{name} must be greater than 0")


def percentage_of_cores(draft: ContainerDraft) -> None:
    """Rejects cores that are not a percentage from 1 to 100. Raises: PodRefused."""
    name = draft.resources.cores
    if (text := draft.given.get(name)) is None:
        return
    cores = strict_integer(text)
    if cores is None or not 1 <= cores <= WHOLE:
        raise PodRefused(f"{name} must be an integer percentage between 1 and 100")


def all_cores_of_several(draft: ContainerDraft) -> None:
    """A container with several devices gets all their cores, whatever it requests."""
    if (count := draft.rounded(draft.resources.count) or 0) > 1 and draft.resources.cores:
        draft.set_amount(draft.resources.cores, count * WHOLE)


def whole_sgpus(draft: ContainerDraft) -> None:
    """A container with several Moore Threads devices, or without a memory request, gets whole devices.

    The device plugin gets their number in an annotation of the pod.
    Raises: PodRefused for a memory of a single device that is not one of SGPU_SIZES.
    """
    names, count = draft.resources, draft.rounded(draft.resources.count) or 0
    if count > 1 or names.memory not in draft.given:
        for name, amount in ((names.cores, SGPU_CORES), (names.memory, SGPU_SIZES[-1])):
            if name:
                draft.set_amount(name, count * amount)
    if count == 1 and (size := draft.rounded(names.memory)) is not None and size not in SGPU_SIZES:
        raise PodRefused(f"sGPU memory request value is invalid, valid values are {list(SGPU_SIZES)}")
    if count > 1:
        draft.pod.set_annotation("mthreads.com/request-gpu-num", str(count))


def name_in_env(draft: ContainerDraft, *, variable: str) -> None:
    """Sets *variable* to the container's name, unless the container sets it itself."""
    if draft.name and variable not in dict(draft.variables):
        draft.set_env(variable, draft.name)
