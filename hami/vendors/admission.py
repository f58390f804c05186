"""Admission of containers that request devices: the common part, and the steps that vendor records name.

Steps check amounts, or set amounts that follow from others: in limits, and in requests if they are given there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from hami.errors import MalformedInput, PodRefused
from hami.quantity import INT32_MAX, parse_quantity, rounded_up, strict_integer
from hami.vendors.draft import ContainerDraft, PodDraft
from hami.vendors.request import WHOLE, requested_keys
from hami.vendors.resources import Resources
from hami.vendors.spec import Catalog
from hami.vendors.vocabulary import Misspelt, Vocabulary

SGPU_CORES = 16  # of a whole one

Step = Callable[[ContainerDraft], None]
Admit = Callable[[ContainerDraft], bool]


def admit_pod(vocabulary: Vocabulary, pod: PodDraft) -> None:
    """Admits each container of *pod* with its vendors' own functions, or else the common one.

    Its vendors are those whose resources it names, and those that admit all containers. Their functions find the
    annotations of a pod that requests devices as the vendors' programs expect them. A pod that names no resource of a
    vendor, and may come by for a warning only, is not changed, unless it or the configuration hides devices from it.
    Raises: MalformedInput, PodRefused.
    """
    read_annotations(vocabulary, pod)
    vendors = vocabulary.catalog
    of_all = dict.fromkeys(vendors.admitting_all)
    if pod.says_who_sees_devices:
        of_all.update(dict.fromkeys(vendors.hiding))
    if vendors.admitting_beside and _names_devices(vendors, pod):
        of_all.update(dict.fromkeys(vendors.admitting_beside))
    for container in pod.containers:
        admitting = dict.fromkeys(vendors.requested_by(container.limits, container.requests))
        admitting.update(of_all)
        for vendor in admitting:
            draft = container.seen_with(vendor.resources)
            _limit_requests(draft)
            admit = vendor.admission.admit or _COMMON
            if admit(draft):
                pod.set_requests_devices()


def _names_devices(vendors: Catalog, pod: PodDraft) -> bool:
    """Reports whether a container of *pod* names a resource of a vendor."""
    for container in pod.decoded.containers:
        if vendors.requested_by(container.limits, container.requests):
            return True
    return False


def _limit_requests(draft: ContainerDraft) -> None:
    """Makes requests limits, where there are none: Kubernetes refuses a request of such a resource without a limit."""
    if draft.requests.keys() <= draft.limits.keys():
        return
    for name, text in draft.given.items():
        if name not in draft.limits:
            draft.limits[name] = text


def read_annotations(vocabulary: Vocabulary, pod: PodDraft) -> None:
    """Writes the words in the annotations of a pod that requests devices as *vocabulary* has them.

    Raises: PodRefused for a text that has not the form of its annotation.
    """
    annotations = pod.decoded.annotations
    if vocabulary.forms.isdisjoint(annotations):
        return
    requested = requested_keys(vocabulary.catalog, pod.decoded.containers)
    if not requested:
        return
    for key, result in vocabulary.read(annotations, requested):
        if isinstance(result, Misspelt):
            raise PodRefused(str(result))
        pod.set_annotation(key, result)


def confine_pod(vendors: Catalog, pod: PodDraft) -> None:
    """Admits each container of *pod*, which another scheduler places, with the functions that vendors have for that.

    Raises: MalformedInput, PodRefused.
    """
    for container in pod.containers:
        for vendor in vendors.confining:
            if vendor.admission.confine is not None:
                vendor.admission.confine(container.seen_with(vendor.resources))


def admit_ephemeral(vendors: Catalog, pod: PodDraft, before: Collection[str]) -> Mapping[str, Any]:
    """Returns *pod* with each ephemeral container admitted by the functions that vendors have for that, but those of
    *before* (names).

    Raises: MalformedInput, PodRefused.
    """
    rendered = {}
    is_changed = False
    requested = requested_keys(vendors, pod.decoded.containers)
    for draft in pod.ephemeral_containers(before):
        for vendor in vendors.admitting_ephemeral:
            if vendor.admission.admit_ephemeral is not None:
                seen = draft.seen_with(vendor.resources)
                vendor.admission.admit_ephemeral(seen, vendor.key in requested)
        rendered[draft.name] = draft.render()
        if rendered[draft.name] is not draft.wire:
            is_changed = True
    if not is_changed:
        return pod.wire
    spec = pod.wire["spec"]
    containers = [rendered.get(str(wire.get("name")), wire) for wire in spec["ephemeralContainers"]]
    return {**pod.wire, "spec": {**spec, "ephemeralContainers": containers}}


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
        if resources.parse_amount(name, text) is not None:
            continue
        highest = INT32_MAX
        if name == resources.memory:
            highest //= max(resources.memory_factor, 1)
        problem = f"must be an integer between 0 and {highest}{_in_unit(resources, name, text)}"
        raise draft.invalid(name, text, problem)


def _in_unit(resources: Resources, name: str, text: str) -> str:
    """Returns what to write in place of *text*, an invalid amount of *name*, for the end of a message."""
    if name == resources.count:
        return _part_of_one(resources, text)
    if name != resources.memory:
        return ""
    if resources.memory_units:
        return ", or at least 1Mi with a unit such as Mi or Gi"
    unit, _, _ = resources.memory_unit.partition(",")
    if resources.memory_factor > 1 and not resources.memory_description:
        unit = f"units of {unit}"
    mib = _mib_written(text)
    if not mib:
        return f", in {unit}, without a unit"
    return f", in {unit}, without a unit: {-(-mib // max(resources.memory_factor, 1))}"


def _part_of_one(resources: Resources, text: str) -> str:
    try:
        is_part = 0 < parse_quantity(text) < 1
    except MalformedInput:
        is_part = False
    amount = resources.memory or resources.cores
    if not is_part or not amount:
        return ""
    return f"; for a part of a device, request 1 and an amount of {amount}"


def _mib_written(text: str) -> int:
    """Returns the MiB of *text*, an amount with a unit of bytes, rounded up; 0 if it has none."""
    if not text.endswith(("i", "M", "G", "T", "P", "E")):
        return 0
    try:
        return rounded_up(text, "Mi")
    except MalformedInput:
        return 0


def at_least_one(draft: ContainerDraft) -> None:
    """Rejects a count below one. Raises: PodRefused."""
    name = draft.resources.count
    count = draft.rounded(name)
    if count is not None and count < 1:
        raise PodRefused(f"{name} must be greater than 0")


def percentage_of_cores(draft: ContainerDraft) -> None:
    """Rejects cores that are not a percentage from 1 to 100. Raises: PodRefused."""
    name = draft.resources.cores
    text = draft.given.get(name)
    if text is None:
        return
    cores = strict_integer(text)
    if cores is None or not 1 <= cores <= WHOLE:
        raise PodRefused(f"{name} must be an integer percentage between 1 and 100")


def all_cores_of_several(draft: ContainerDraft) -> None:
    """A container with several devices gets all their cores, whatever it requests."""
    count = draft.rounded(draft.resources.count) or 0
    if count > 1 and draft.resources.cores:
        draft.set_amount(draft.resources.cores, count * WHOLE)


def sgpu_sizes(card_sizes: Iterable[int]) -> list[int]:
    """Returns the amounts of memory of a part of a Moore Threads device, and of a whole one, for each model of card."""
    sizes = set(card_sizes)
    for card in card_sizes:
        size = 2
        while size < card:
            sizes.add(size)
            size *= 2
    return sorted(sizes)


def whole_sgpus(draft: ContainerDraft, *, card_sizes: Collection[int]) -> None:
    """A container with several Moore Threads devices, or without a memory request, gets whole devices.

    With cards of several sizes, it gets no amount of memory: its node decides. The device plugin gets the number of
    devices in an annotation of the pod. *card_sizes*: the memory of the cluster's models of cards, in units of the
    resource.
    Raises: PodRefused for a memory of a single device that no card can share.
    """
    names, count = draft.resources, draft.rounded(draft.resources.count) or 0
    if count > 1 or names.memory not in draft.given:
        _request_whole_sgpus(draft, count, card_sizes)
    if count > 1:
        draft.pod.set_annotation("mthreads.com/request-gpu-num", str(count))
        return
    size, sizes = draft.rounded(names.memory), sgpu_sizes(card_sizes)
    if size is not None and size not in sizes:
        raise PodRefused(f"sGPU memory request value is invalid, valid values are {sizes}")


def _request_whole_sgpus(draft: ContainerDraft, count: int, card_sizes: Collection[int]) -> None:
    names = draft.resources
    if names.cores:
        draft.set_amount(names.cores, count * SGPU_CORES)
    if names.memory and len(set(card_sizes)) == 1:
        draft.set_amount(names.memory, count * max(card_sizes))


def name_in_env(draft: ContainerDraft, *, variable: str) -> None:
    """Sets *variable* to the container's name, unless the container sets it itself."""
    if draft.name and variable not in dict(draft.variables):
        draft.set_env(variable, draft.name)


_COMMON = admit_with()
