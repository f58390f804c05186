"""Admission of containers that request devices: the common part, and the composition of steps."""

from __future__ import annotations

from collections.abc import Callable

from hami.quantity import INT32_MAX
from hami.vendors.draft import ContainerDraft, PodDraft
from hami.vendors.spec import Catalog

Step = Callable[[ContainerDraft], None]
Admit = Callable[[ContainerDraft], bool]


def admit_pod(vendors: Catalog, pod: PodDraft) -> None:
    """Admits each container of *pod* with its vendors' own functions, or else the common one.

    Its vendors are those whose resources it names, and those that admit all containers.
    Raises: MalformedInput, PodRefused.
    """
    for container in pod.containers:
        requested = vendors.requested_by(container.limits, container.requests)
        for vendor in (*requested, *(other for other in vendors.admitting_all if other not in requested)):
            admit = vendor.admission.admit or _COMMON
            if admit(container.seen_with(vendor.resources)):
                pod.set_requests_devices()


def confine_pod(vendors: Catalog, pod: PodDraft) -> None:
    """Admits each container of *pod*, which another scheduler places, with the functions that vendors have for that.

    Raises: MalformedInput, PodRefused.
    """
    for container in pod.containers:
        for vendor in vendors:
            if vendor.admission.confine is not None:
                vendor.admission.confine(container.seen_with(vendor.resources))


def admit_with(*steps: Step, default_count: int = 0) -> Admit:
    """Returns an admission function that runs *steps* for containers that request the vendor's count.

    ``check_amounts`` runs first, unless it is among *steps*. *default_count*: the count for a container that requests
    only other resources of the vendor; 0 for none.
    """
    every = steps if check_amounts in steps else (check_amounts, *steps)

    def admit(draft: ContainerDraft) -> bool:
        name = draft.resources.count
        if default_count and draft.given and name not in draft.given:
            draft.set_limit(name, default_count)
        if name not in draft.given:
            return False
        for step in every:
            step(draft)
        return True

    return admit


def check_amounts(draft: ContainerDraft) -> None:
    """Rejects amounts that are not integers, negative or too large. Raises: PodRefused."""
    resources = draft.resources
    for name, text in draft.given.items():
        if resources.parse_amount(name, text) is None:
            is_memory = name == resources.memory
            highest = INT32_MAX // max(resources.memory_factor, 1) if is_memory else INT32_MAX
            unit = ", or at least 1Mi with a unit such as Mi or Gi" if is_memory and resources.memory_units else ""
            raise draft.invalid(name, text, f"must be an integer between 0 and {highest}{unit}")


_COMMON = admit_with()
