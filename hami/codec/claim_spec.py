"""The ``spec`` of a ResourceClaim: what the containers of a pod ask for, in words of Kubernetes' allocator.

What a claim says is a little less than the pod does: an allocator chooses among the cards that fit by its own order,
and a request without cores may use a card whose cores are all taken. The size of MIG instances follows from memory
alone, as it does without claims. Policies are left out.

Tenants write the lists of types and UUIDs, so all of it is bounded: the API server and etcd refuse what is larger.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from hami.codec.claim_amounts import MAX_EXPRESSION, MAX_RESULTS, TOO_MANY, VENDOR, WHOLE
from hami.codec.device_selectors import ATTRIBUTES, render_selectors, render_size
from hami.codec.slices import DRIVER, MIG_CLASS, NUMA_NODE, SHARE
from hami.errors import PodRefused
from hami.model import Request, Selector
from hami.quantity import render_mib

MAX_SIZES = 8  # alternatives of a request
MAX_SELECTED = 64  # items of a list of types or UUIDs: an expression of more would cost too much
LONGEST_ITEM = 64  # characters: no attribute is longer
MAX_SPEC = 1_000_000
"""Bytes of a claim as JSON: etcd takes objects of 1.5 MiB, and what is allocated is added."""


class Inexpressible(PodRefused):
    """No claim can say what the containers of a pod request."""


def render_claim_spec(
    requests: Mapping[str, Request],
    selector: Selector = Selector(),
    card_sizes: Collection[int] = (),
    *,
    numa_bind: bool = False,
) -> dict[str, Any]:
    """The ``spec`` of a claim with a request for each container.

    *requests*: by container, whose name the request gets. *selector*: of the pod. *card_sizes*: the different amounts
    of memory, in MiB, that cards of the cluster have, for requests in percent. *numa_bind*: all cards of a request are
    on one NUMA node.
    Raises: Inexpressible, also if the API server would not accept it.
    """
    reason = next(_objections(requests, selector, card_sizes), None)
    if reason is not None:
        raise Inexpressible(reason)
    selectors = list(render_selectors(selector))
    devices: dict[str, Any] = {"requests": []}
    parts: list[dict[str, Any]] = []
    for name, request in requests.items():
        alternatives = _alternatives(request, selector, selectors, card_sizes)
        parts += alternatives
        rendered: dict[str, Any] = {"firstAvailable": alternatives}
        if "name" not in alternatives[0]:
            rendered = {"exactly": alternatives[0]}
        devices["requests"].append({"name": name, **rendered})
    several = [name for name, request in requests.items() if request.count > 1]
    if numa_bind and several:
        devices["constraints"] = [
            {"requests": [name], "matchAttribute": NUMA_NODE} for name in several
        ]
    spec = {"devices": devices}
    _check_size(spec, parts)
    return spec


def needs_card_sizes(requests: Iterable[Request], selector: Selector) -> bool:
    """Reports whether the claim of a pod with *requests* has an alternative for each amount of memory that cards have.
    It has for shares in percent; MIG instances tell the memory of their card."""
    if selector.is_for_instances:
        return False
    return any(_percent(request) is not None for request in requests)


def part_of(memory_mib: int, percent: int) -> int:
    """Returns *percent* of the memory of a card, in MiB."""
    return max(memory_mib * percent // WHOLE, 1)


def _objections(
    requests: Mapping[str, Request], selector: Selector, card_sizes: Collection[int]
) -> Iterator[str]:
    """Yields the reasons why a claim cannot say what containers ask for."""
    foreign = {request.vendor for request in requests.values()} - {VENDOR}
    if foreign:
        yield f"claims are for {VENDOR} GPUs only, not for {', '.join(sorted(foreign))}"
    if sum(request.count for request in requests.values()) > MAX_RESULTS:
        yield TOO_MANY
    yield from _objections_to_lists(selector)
    if not needs_card_sizes(requests.values(), selector):
        return
    if not card_sizes:
        yield "a percentage of memory needs to know the sizes of GPUs, and there is no GPU yet"
    if len(card_sizes) > MAX_SIZES:
        yield (
            f"a percentage of memory needs GPUs of at most {MAX_SIZES} different sizes, "
            f"there are {len(card_sizes)}"
        )


def _objections_to_lists(selector: Selector) -> Iterator[str]:
    lists = [
        items
        for items in (
            selector.use_types,
            selector.nouse_types,
            selector.use_uuids,
            selector.nouse_uuids,
        )
        if items
    ]
    if any(len(items) > MAX_SELECTED for items in lists):
        yield f"a claim selects GPUs by at most {MAX_SELECTED} types or UUIDs"
    texts = [*itertools.chain(*lists), selector.mode or ""]
    if any(len(text) > LONGEST_ITEM for text in texts):
        yield f"types, UUIDs and modes in a claim have at most {LONGEST_ITEM} characters"
    if () in (selector.use_types, selector.use_uuids):
        yield "no GPU is selected by an empty list of types or UUIDs"


def _check_size(spec: Mapping[str, Any], parts: Collection[Mapping[str, Any]]) -> None:
    """Raises Inexpressible if the API server would refuse *spec*, whose requests have the alternatives *parts*."""
    for part in parts:
        for selector in part.get("selectors", ()):
            length = len(selector["cel"]["expression"].encode())
            if length > MAX_EXPRESSION:
                raise Inexpressible(
                    f"the types or UUIDs need an expression of {length} bytes, and a claim has at most "
                    f"{MAX_EXPRESSION}"
                )
    size = len(msgspec.json.encode(spec))
    if size > MAX_SPEC:
        raise Inexpressible(
            f"the lists of types and UUIDs, which each of {len(parts)} alternatives of requests repeats, make a claim "
            f"of {size} bytes, and one has at most {MAX_SPEC}"
        )


def _alternatives(
    request: Request, selector: Selector, selectors: list[str], card_sizes: Collection[int]
) -> list[dict[str, Any]]:
    """Returns what fulfils *request*: any card, or one of each size, the largest first; these have names."""
    if selector.is_for_instances:
        return [_instances(request, selectors)]
    percent = _percent(request)
    if percent is None:
        return [_exactly(request, selectors, request.memory_mib)]
    alternatives = []
    for size in sorted(card_sizes, reverse=True):
        part = _exactly(request, [render_size(size), *selectors], part_of(size, percent))
        alternatives.append({"name": f"m{size}", **part})
    return alternatives


def _percent(request: Request) -> int | None:
    """Returns the part of the memory that *request* needs; None if it is not given in percent, or the whole."""
    percent = request.memory_percent
    if percent is None or percent >= WHOLE or request.memory_mib:
        return None
    return percent


def _exactly(request: Request, selectors: list[str], memory_mib: int) -> dict[str, Any]:
    """Returns a request for cards. No memory: that of the whole card."""
    amounts = {}
    if memory_mib:
        amounts["memory"] = render_mib(memory_mib)
    if request.cores > 0:
        amounts["cores"] = str(request.device_cores)
    if request.cores >= WHOLE:
        amounts["share"] = str(SHARE)
    return _of_class(DRIVER, request, selectors, amounts)


def _instances(request: Request, selectors: list[str]) -> dict[str, Any]:
    """Returns a request for MIG instances. All memory is that of an instance of the whole card, though it has less.

    The nominal size of a profile, such as 5 GiB of ``1g.5gb``, is a request for its instances, though they have less.
    """
    memory, whole = f"{ATTRIBUTES}.memoryMiB", f"{ATTRIBUTES}.parentMemoryMiB"
    if request.memory_mib and request.memory_mib % 1024:
        return _of_class(MIG_CLASS, request, selectors, {"memory": render_mib(request.memory_mib)})
    if request.memory_mib:
        nominal = f'{ATTRIBUTES}.profile.contains(".{request.memory_mib // 1024}gb")'
        condition = f"{memory} >= {request.memory_mib} || {nominal}"
        return _of_class(MIG_CLASS, request, [condition, *selectors], {})
    percent = _percent(request)
    if percent is None:
        condition = f"{memory} * 2 > {whole}"
    else:
        condition = f"{memory} >= {whole} * {percent} / {WHOLE}"
    return _of_class(MIG_CLASS, request, [condition, *selectors], {})


def _of_class(
    name: str, request: Request, selectors: list[str], amounts: Mapping[str, str]
) -> dict[str, Any]:
    part: dict[str, Any] = {"deviceClassName": name, "count": request.count}
    if selectors:
        part["selectors"] = [{"cel": {"expression": expression}} for expression in selectors]
    if amounts:
        part["capacity"] = {"requests": amounts}
    return part
