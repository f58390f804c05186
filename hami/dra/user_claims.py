"""The text of a pod whose claims users have written, in the words of the device plugin: the same pod, with amounts in
place of claims.

So the scheduler decides about it as about any other, and gives it a claim of its own for the same devices. Where these
words mean less than a template says, there is no such text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hami.codec.claim_amounts import VENDOR, WHOLE
from hami.codec.claim_spec import part_of
from hami.codec.device_requests import (
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DeviceSubRequest,
    claim_sources,
    named_claims,
    parse_device_claim,
)
from hami.codec.device_selectors import parse_selectors, parse_size
from hami.codec.keys import NUMA_BIND
from hami.codec.pods import convert_pod
from hami.codec.slices import DRIVER, MIG_CLASS, NUMA_NODE, SHARE
from hami.dra.pod_claims import NO_OTHERS, claims_of, with_containers
from hami.errors import PodRefused
from hami.model import Container, ContainerKind, Selector
from hami.vendors.resources import Resources
from hami.vendors.spec import Catalog, SelectorKeys

ReadTemplate = Callable[[str], "Mapping[str, Any] | None"]
"""Returns a ResourceClaimTemplate of the pod's namespace by its name; ``None`` if there is none."""
MAX_SELECTORS = 24_576  # characters: four lists of 64 types or UUIDs, each as long as it may be
MAX_TEMPLATES = 4  # of a pod: each is read, and may have 1.5 MB
_MIG, _SHARED = "mig", "hami-core,mps"  # texts that contain the modes of the devices
_SHOWN = 100  # characters of a value in a reason
_UUID = {"uuid", f"{DRIVER}/uuid"}

_Key = tuple[str, str]
"""A request of a template: the name of the claim in the pod, and that of the request."""


@dataclass(frozen=True, slots=True)
class PlainPod:
    """A pod without claims. *users*: the request of a claim that each container is to use; ``None`` if that follows
    from the pod."""

    wire: Mapping[str, Any]
    users: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class _Written:
    """A request of a template. *place*: for errors. *percent*: of the memory, where it is an alternative for each size
    of cards."""

    place: str
    sub: DeviceSubRequest
    percent: int | None = None


def plain_pod(
    wire: Mapping[str, Any],
    read: ReadTemplate,
    vendors: Catalog,
    card_sizes: Callable[[], Collection[int]],
) -> PlainPod | None:
    """Returns the new pod *wire* with the amounts that templates of claims say in place of these claims; ``None`` if
    it names no template that is about our devices.

    *card_sizes* returns the different amounts of memory (MiB) of the devices that pods get by claims.
    Raises: PodRefused with what cannot be said so; MalformedInput; and what *read* raises.
    """
    templates = {source.name: source.template for source in claim_sources(wire) if source.template}
    if len(templates) > MAX_TEMPLATES:
        raise PodRefused(
            f"spec.resourceClaims: {len(templates)} templates of claims, expected at most {MAX_TEMPLATES}"
        )
    claims = {name: _claim(template, read) for name, template in templates.items()}
    if not any(claim.is_ours for claim in claims.values()):
        return None
    for entry in claims_of(wire):
        if str(entry.get("name")) not in claims:
            raise PodRefused(f"spec.resourceClaims {entry.get('name')}: {NO_OTHERS}")
    requests: dict[_Key, _Written] = {}
    for name, claim in claims.items():
        if claim.has_parameters:
            raise PodRefused(
                f"spec.resourceClaims {name}: config: claims of the scheduler have no parameters"
            )
    for name, claim in claims.items():
        for request in claim.requests:
            place = f"spec.resourceClaims {name}: request {request.name}"
            requests[name, request.name] = _written(place, request, card_sizes)
    resources, keys = vendors[VENDOR].resources, vendors[VENDOR].annotations.selectors
    annotations = dict(_annotations(requests, claims, keys))
    meta = wire.get("metadata") or {}
    own = meta.get("annotations") or {}
    for key, text in annotations.items():
        if own.get(key, text) != text:
            raise PodRefused(
                f"annotation {key}={own[key][:_SHOWN]}: the pod's claim says {text[:_SHOWN]}"
            )
    users, chosen = _users(wire, requests, frozenset(resources.names))

    def plain(container: Mapping[str, Any]) -> Mapping[str, Any]:
        request = chosen.get(str(container.get("name")))
        if request is None:
            return container
        given = {key: value for key, value in container["resources"].items() if key != "claims"}
        limits = {**(given.get("limits") or {}), **_amounts(requests[request], resources)}
        return {**container, "resources": {**given, "limits": limits}}

    changed = with_containers(wire, plain)
    del changed["spec"]["resourceClaims"]
    annotations = {**own, **annotations}
    return PlainPod({**changed, "metadata": {**meta, "annotations": annotations}}, users)


def _claim(template: str, read: ReadTemplate) -> DeviceClaim:
    document, title = read(template), f"ResourceClaimTemplate {template}"
    if document is None:
        raise PodRefused(f"{title} does not exist")
    return parse_device_claim(document, title)


def _written(
    place: str, request: DeviceRequest, card_sizes: Callable[[], Collection[int]]
) -> _Written:
    """Returns *request*. Raises: PodRefused for what amounts and annotations do not say."""
    sub, percent = request.subrequests[0], None
    if len(request.subrequests) > 1:
        sub, percent = _percentage(place, request.subrequests, card_sizes)
    if (objection := next(_objections(sub), None)) is not None:
        raise PodRefused(f"{place}: {objection}")
    return _Written(place, sub, percent)


def _percentage(
    place: str, alternatives: Sequence[DeviceSubRequest], card_sizes: Callable[[], Collection[int]]
) -> tuple[DeviceSubRequest, int]:
    """Returns what *alternatives* say beside memory, which is the same percentage of each size of cards, and that
    percentage. Raises: PodRefused if they say something else."""
    memory: dict[int, int] = {}  # by the size of cards
    beside: list[DeviceSubRequest] = []
    for sub in alternatives:
        sizes: dict[str, int] = {}
        for text in sub.selectors:
            size = parse_size(text)
            if size is not None:
                sizes[text] = size
        if len(sizes) == 1 and sub.memory_mib is not None:
            memory |= dict.fromkeys(sizes.values(), sub.memory_mib)
        others = tuple(text for text in sub.selectors if text not in sizes)
        beside.append(replace(sub, name="", memory_mib=None, selectors=others))
    percent = _percent_of(memory)
    is_complete = len(memory) == len(alternatives)
    if percent is None or not is_complete or any(sub != beside[0] for sub in beside):
        raise PodRefused(
            f"{place}: firstAvailable: expected the same percentage of each memoryMiB, and nothing else "
            "in which the alternatives differ"
        )
    missing = set(card_sizes()) - memory.keys()
    if missing:
        raise PodRefused(
            f"{place}: firstAvailable: there are GPUs of {min(missing)} MiB, for which it has no "
            "alternative"
        )
    return beside[0], percent


def _percent_of(memory: Mapping[int, int]) -> int | None:
    """Returns the percentage that *memory* is of each size of cards; ``None`` if there is none."""
    for percent in range(1, WHOLE):
        if all(part_of(size, percent) == amount for size, amount in memory.items()):
            return percent
    return None


def _objections(sub: DeviceSubRequest) -> Iterator[str]:
    if sub.device_class not in (DRIVER, MIG_CLASS):
        yield f"deviceClassName={sub.device_class}: {NO_OTHERS}"
    if sub.count is None:
        yield "allocationMode=All: expected a count"
    if sub.is_admin:
        yield "adminAccess: it is not supported"
    if sub.has_tolerations:
        yield "tolerations: the scheduler gives nobody a GPU that is cordoned or unhealthy"
    if sub.unknown_capacities:
        yield f"capacity {sub.unknown_capacities[0]}: no device of HAMi has it"
    if sub.cores > WHOLE:
        yield f"capacity cores={sub.cores}: expected at most {WHOLE}"
    if not _is_share_of_known_size(sub):
        share = (sub.share_milli or 0) / 1000
        yield (
            f"capacity share={share:g}, cores={sub.cores}: expected a share of {SHARE} for a GPU alone, "
            f"with {WHOLE} cores or none"
        )
    if sub.device_class == MIG_CLASS and not _is_instance_by_memory(sub):
        yield "a MIG instance follows from its memory: expected that capacity, no other, and no selectors"


def _is_share_of_known_size(sub: DeviceSubRequest) -> bool:
    if sub.share_milli is None:
        return True
    return sub.share_milli == SHARE * 1000 and sub.cores in (0, WHOLE)


def _is_instance_by_memory(sub: DeviceSubRequest) -> bool:
    if sub.memory_mib is None:
        return False
    return not (sub.selectors or sub.cores or sub.share_milli)


def _annotations(
    requests: Mapping[_Key, _Written],
    claims: Mapping[str, DeviceClaim],
    keys: SelectorKeys,
) -> Iterator[tuple[str, str]]:
    """Yields the annotations that select the devices of all *requests*. Raises: PodRefused."""
    selector = _selector(list(requests.values()))
    for key, items in (
        (keys.use_types, selector.use_types),
        (keys.nouse_types, selector.nouse_types),
        (keys.use_uuids[0], selector.use_uuids),
        (keys.nouse_uuids[0], selector.nouse_uuids),
    ):
        if items is not None:
            yield key, ",".join(items)
    yield keys.mode, str(selector.mode)
    bound: set[_Key] = set()
    for name, claim in claims.items():
        for constraint in claim.constraints:
            names = _bound(f"spec.resourceClaims {name}", claim, constraint)
            bound.update((name, request) for request in names)
    several = {key for key, request in requests.items() if (request.sub.count or 1) > 1}
    if not bound:
        return
    if bound != several:
        raise PodRefused(
            f"{requests[min(several - bound)].place}: expected matchAttribute {NUMA_NODE} for each "
            "request of several devices, or for none"
        )
    yield NUMA_BIND, "true"


def _selector(requests: Sequence[_Written]) -> Selector:
    """Returns what all *requests* select. Raises: PodRefused."""
    first = requests[0]
    for other in requests:
        if (other.sub.device_class, other.sub.selectors) != (
            first.sub.device_class,
            first.sub.selectors,
        ):
            raise PodRefused(f"{other.place}: it selects other devices than {first.place}")
    if (length := sum(map(len, first.sub.selectors))) > MAX_SELECTORS:
        raise PodRefused(
            f"{first.place}: selectors: {length} characters, expected at most {MAX_SELECTORS}"
        )
    selector = parse_selectors(first.sub.selectors)
    if selector is None:
        raise PodRefused(
            f"{first.place}: selectors: expected lists of UUIDs and of parts of productName.lowerAscii()"
        )
    return replace(selector, mode=_MIG if first.sub.device_class == MIG_CLASS else _SHARED)


def _bound(place: str, claim: DeviceClaim, constraint: DeviceConstraint) -> list[str]:
    """Returns the requests whose several devices *constraint* binds to one NUMA node: one, or none if it always holds.

    Raises: PodRefused for other constraints, such as one for an alternative of a request.
    """
    about = [request for request in claim.requests if constraint.applies_to(request.name)]
    kind, attributes = "matchAttribute", {NUMA_NODE}
    if constraint.is_distinct:
        kind, attributes = "distinctAttribute", _UUID
    is_for_alternative = any("/" in name for name in constraint.requests)
    if len(about) > 1 or constraint.attribute not in attributes or is_for_alternative:
        raise PodRefused(
            f"{place}: {kind} {constraint.attribute}: expected {NUMA_NODE} for one request"
        )
    if constraint.is_distinct:
        return []
    return [request.name for request in about if (request.subrequests[0].count or 1) > 1]


def _users(
    wire: Mapping[str, Any], requests: Mapping[_Key, _Written], resources: frozenset[str]
) -> tuple[dict[str, str] | None, dict[str, _Key]]:
    """Returns the container whose request each one is to use, if some use those of others, and the request of its
    claims that each container uses. Raises: PodRefused."""
    named = named_claims(wire)
    owners: dict[_Key, Container] = {}
    users: dict[str, str] = {}
    chosen: dict[str, _Key] = {}
    containers = convert_pod(wire).containers
    for container in sorted(containers, key=lambda container: container.kind is ContainerKind.INIT):
        request = _request_of(container, named.get(container.name, {}), requests, resources)
        if request is None:
            continue
        _check_owner(container, owners.get(request), requests[request].place)
        owner = owners.setdefault(request, container)
        chosen[container.name], users[container.name] = request, owner.name
    for key, written in requests.items():
        if key not in owners:
            raise PodRefused(f"{written.place}: no container uses it")
    if len(users) == len(owners):
        return None, chosen
    return users, chosen


def _request_of(
    container: Container,
    uses: Mapping[str, frozenset[str]],
    requests: Mapping[_Key, _Written],
    resources: frozenset[str],
) -> _Key | None:
    """Returns the request of claims that *container* uses; ``None`` if it uses none. *uses*: see `named_claims`.

    Raises: PodRefused.
    """
    about = f"container {container.name}"
    amounts = resources & {*container.limits, *container.requests}
    if amounts:
        raise PodRefused(
            f"{about}: {min(amounts)} beside a claim for GPUs, expected one of the two"
        )
    named = {(name, request) for name in uses for request in uses[name]}
    unknown = named - requests.keys()
    if unknown:
        name, request = min(unknown)
        raise PodRefused(f"{about} uses request {request}, which claim {name} does not have")
    used = [key for key in requests if key in named or uses.get(key[0]) == frozenset()]
    if len(used) > 1:
        raise PodRefused(f"{about} uses {len(used)} requests of claims, expected one")
    return used[0] if used else None


def _check_owner(container: Container, owner: Container | None, place: str) -> None:
    """Raises PodRefused if *container* cannot use the request at *place*, which *owner* uses, too."""
    if owner is None:
        if container.kind is ContainerKind.INIT:
            raise PodRefused(
                f"container {container.name} uses {place}, and no container after it does"
            )
    elif ContainerKind.SIDECAR in (owner.kind, container.kind):
        raise PodRefused(
            f"containers {owner.name} and {container.name} share {place}, and one of them is a sidecar"
        )


def _amounts(request: _Written, resources: Resources) -> dict[str, str]:
    """Returns what *request* asks for, as limits of a container."""
    sub = request.sub
    amounts = {resources.count: str(sub.count)}
    if sub.memory_mib is None:
        amounts[resources.memory_percent] = str(request.percent or WHOLE)
    else:
        amounts[resources.memory] = str(-(-max(sub.memory_mib, 1) // resources.memory_factor))
    if sub.device_class != MIG_CLASS:
        amounts[resources.cores] = str(WHOLE if sub.share_milli else sub.cores)
    return amounts
