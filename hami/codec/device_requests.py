"""The devices that claims ask for, as users write them: the ``spec`` of a ResourceClaimTemplate, the claims that a pod
names, and the resources for which DeviceClasses stand (resource.k8s.io/v1)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hami.codec.claim_amounts import MAX_EXPRESSION, MAX_RESULTS
from hami.codec.documents import convert, decode, places_in
from hami.codec.objects import Metadata
from hami.codec.slices import DRIVER, MIG_CLASS
from hami.errors import MalformedInput
from hami.quantity import rounded_up, strict_integer

MAX_CLAIMS = 64  # of a pod
ALL = "All"
IMPLICIT_RESOURCE = "deviceclass.resource.kubernetes.io/"
"""What the resource begins with that each DeviceClass stands for, before its name."""
_UNITS = {"memory": "Mi", "cores": "", "share": "m"}

_Quantity = Annotated[str, Meta(max_length=64, description="a quantity of at most 64 characters")]
_Name = Annotated[str, Meta(max_length=253, description="a name")]


UsedClaims = Mapping[str, Mapping[str, frozenset[str]]]
"""By container, the names of the claims that it uses, and the requests of each that it uses, empty for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSubRequest:
    """One way to serve a request. *name*: empty if there is only one. *count*: ``None`` for all devices that match.

    *selectors*: expressions. *memory_mib*: ``None`` for all of the device.
    *share_milli*: of the 100 of a device, in thousandths; ``None`` for that of a slot. *unknown_capacities*: names that
    no device of ours has.
    """

    name: str = ""
    device_class: str
    count: int | None = 1
    selectors: tuple[str, ...] = ()
    memory_mib: int | None = None
    cores: int = 0
    share_milli: int | None = None
    unknown_capacities: tuple[str, ...] = ()
    has_tolerations: bool = False
    is_admin: bool = False

    @property
    def is_ours(self) -> bool:
        """Reports whether it is about devices of our driver: its class or a selector says so."""
        return self.device_class in (DRIVER, MIG_CLASS) or any(
            DRIVER in text for text in self.selectors
        )


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request of a claim: the first of *subrequests* that can be served counts."""

    name: str
    subrequests: tuple[DeviceSubRequest, ...]

    @property
    def is_ours(self) -> bool:
        """Reports whether it may be served with devices of our driver."""
        return any(sub.is_ours for sub in self.subrequests)


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """The devices of *requests* (all if empty) have the same *attribute*, or all have different ones."""

    requests: frozenset[str]
    attribute: str
    is_distinct: bool = False

    def applies_to(self, request: str) -> bool:
        """Reports whether it is about the request."""
        return not self.requests or request in self.requests


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """The devices that a claim asks for. *has_parameters*: it has some for drivers."""

    requests: tuple[DeviceRequest, ...]
    constraints: tuple[DeviceConstraint, ...] = ()
    has_parameters: bool = False

    @property
    def is_ours(self) -> bool:
        """Reports whether a request may be served with devices of our driver."""
        return any(request.is_ours for request in self.requests)


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """A claim that a pod names. *claim*: the object's name; empty if it is not made yet.
    *template*: empty without one."""

    name: str
    claim: str = ""
    template: str = ""


def claim_sources(pod: Mapping[str, Any]) -> tuple[ClaimSource, ...]:
    """Returns the claims that *pod* (as JSON) names. Raises: MalformedInput."""
    wire = convert(pod, _PodWithClaims, places_in("pod"))
    status = wire.status or _PodStatus()
    made = {
        entry.name: entry.resource_claim_name or ""
        for entry in status.resource_claim_statuses or ()
    }
    return tuple(
        ClaimSource(
            entry.name,
            entry.resource_claim_name or made.get(entry.name, ""),
            entry.resource_claim_template_name or "",
        )
        for entry in wire.spec.resource_claims or ()
    )


def used_claims(pod: Mapping[str, Any]) -> UsedClaims:
    """Returns the claims that the containers of *pod* (as JSON) use, of those that are made. Raises: MalformedInput."""
    names = {source.name: source.claim for source in claim_sources(pod) if source.claim}
    used: dict[str, dict[str, frozenset[str]]] = {}
    for container, claims in named_claims(pod).items():
        made = {names[name]: requests for name, requests in claims.items() if name in names}
        if made:
            used[container] = made
    return used


def named_claims(pod: Mapping[str, Any]) -> UsedClaims:
    """Returns the claims that the containers of *pod* (as JSON) use, by their names in the pod.
    Raises: MalformedInput."""
    spec = convert(pod, _PodWithClaims, places_in("pod")).spec
    used: dict[str, dict[str, frozenset[str]]] = {}
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        requests: dict[str, set[str]] = {}
        for use in (container.resources or _Resources()).claims or ():
            requests.setdefault(use.name, set()).add(use.request)
        for name, names in requests.items():
            is_whole = "" in names
            of_container = used.setdefault(container.name, {})
            of_container[name] = frozenset() if is_whole else frozenset(names)
    return used


def extended_resources(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the resources with a domain that containers of *pod* (as JSON) are limited to, each once, with an amount
    of more than 0. Raises: MalformedInput."""
    spec = convert(pod, _PodWithClaims, places_in("pod")).spec
    resources: dict[str, None] = {}
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        limits = (container.resources or _Resources()).limits or {}
        for resource, text in limits.items():
            if "/" in resource and (strict_integer(str(text)) or 0) > 0:
                resources[resource] = None
    return tuple(resources)


def claim_titles(
    pod: Mapping[str, Any],
    classes: Callable[[], Mapping[str, str]],
    managed: Container[str] = (),
) -> tuple[str, ...]:
    """Returns the claims that *pod* (as JSON) names, and the resources of its limits that stand for claims, in words.

    *classes* returns the names of DeviceClasses by the resource that each stands for. It is not called if there are
    only *managed* resources. Raises: MalformedInput.
    """
    claims: list[str] = []
    for source in claim_sources(pod):
        if source.claim:
            claims.append(f"ResourceClaim {source.claim}")
        else:
            claims.append(f"ResourceClaimTemplate {source.template}")
    resources = [resource for resource in extended_resources(pod) if resource not in managed]
    if not resources:
        return tuple(claims)
    by_resource = classes()
    for resource in resources:
        if resource in by_resource:
            claims.append(f"resource {resource} of DeviceClass {by_resource[resource]}")
    return tuple(claims)


def classes_by_resource(classes: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Returns the names of *classes*, each as :func:`parse_class_resource` tells it, by the resources that stand for
    them. Of several for one resource, kube-scheduler takes the latest."""
    parsed = sorted(classes)
    return {
        **{f"{IMPLICIT_RESOURCE}{name}": name for _, name, _ in parsed},
        **{resource: name for _, name, resource in parsed if resource},
    }


def parse_class_resource(raw: msgspec.Raw) -> tuple[str, str, str]:
    """The time of creation, the name, and the resource of a DeviceClass as JSON; empty if it stands for none.

    Raises: MalformedInput.
    """
    wire = decode("deviceclass", _CLASS, raw)
    return (
        wire.metadata.creation_timestamp or "",
        wire.metadata.name or "",
        wire.spec.extended_resource_name or "",
    )


def parse_device_claim(document: Mapping[str, Any], place: str) -> DeviceClaim:
    """The claim in the ResourceClaimTemplate *document*; *place*: for errors. Raises: MalformedInput."""
    spec = document.get("spec")
    spec = spec.get("spec") if isinstance(spec, dict) else None
    devices = convert(spec or {}, _ClaimSpec, places_in(place, "spec.spec")).devices
    return DeviceClaim(
        tuple(
            _request(request, f"{place}: request {request.name}")
            for request in devices.requests or ()
        ),
        tuple(_constraint(constraint, place) for constraint in devices.constraints or ()),
        has_parameters=bool(devices.config),
    )


class _Cel(msgspec.Struct):
    expression: Annotated[str, Meta(max_length=MAX_EXPRESSION)] = ""


class _SelectorEntry(msgspec.Struct):
    cel: _Cel = msgspec.field(default_factory=_Cel)


class _CapacityRequests(msgspec.Struct):
    requests: Annotated[dict[_Name, _Quantity], Meta(max_length=32)] | None = None


class _SubRequestEntry(msgspec.Struct, rename="camel"):
    device_class_name: _Name
    name: _Name = ""
    selectors: Annotated[list[_SelectorEntry], Meta(max_length=32)] | None = None
    allocation_mode: str = "ExactCount"
    count: Annotated[int, Meta(ge=0)] | None = None
    admin_access: bool | None = None
    capacity: _CapacityRequests | None = None
    tolerations: Annotated[list[Any], Meta(max_length=16)] | None = None


class _RequestEntry(msgspec.Struct, rename="camel"):
    name: _Name
    exactly: _SubRequestEntry | None = None
    first_available: Annotated[list[_SubRequestEntry], Meta(max_length=8)] | None = None


class _ConstraintEntry(msgspec.Struct, rename="camel"):
    requests: Annotated[list[_Name], Meta(max_length=32)] | None = None
    match_attribute: _Name = ""
    distinct_attribute: _Name = ""


class _DevicesOfClaim(msgspec.Struct):
    requests: Annotated[list[_RequestEntry], Meta(max_length=MAX_RESULTS)] | None = None
    constraints: Annotated[list[_ConstraintEntry], Meta(max_length=32)] | None = None
    config: Annotated[list[Any], Meta(max_length=32)] | None = None


class _ClaimSpec(msgspec.Struct):
    devices: _DevicesOfClaim = msgspec.field(default_factory=_DevicesOfClaim)


class _ClassSpec(msgspec.Struct, rename="camel"):
    extended_resource_name: _Name | None = None


class _Class(msgspec.Struct):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: _ClassSpec = msgspec.field(default_factory=_ClassSpec)


_CLASS = msgspec.json.Decoder(_Class)


class _ClaimEntry(msgspec.Struct, rename="camel"):
    name: _Name
    resource_claim_name: _Name | None = None
    resource_claim_template_name: _Name | None = None


class _ClaimUse(msgspec.Struct, frozen=True):
    name: _Name
    request: _Name = ""


class _Resources(msgspec.Struct, frozen=True):
    limits: dict[str, str | int] | None = None
    claims: list[_ClaimUse] | None = None


class _ContainerEntry(msgspec.Struct):
    name: _Name = ""
    resources: _Resources | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_ContainerEntry] | None = None
    init_containers: list[_ContainerEntry] | None = None
    resource_claims: Annotated[list[_ClaimEntry], Meta(max_length=MAX_CLAIMS)] | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    resource_claim_statuses: Annotated[list[_ClaimEntry], Meta(max_length=MAX_CLAIMS)] | None = None


class _PodWithClaims(msgspec.Struct):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus | None = None


def _request(wire: _RequestEntry, place: str) -> DeviceRequest:
    if wire.exactly is not None:
        return DeviceRequest(wire.name, (_subrequest(wire.exactly, place),))
    if not wire.first_available:
        raise MalformedInput(place, "", "expected exactly or firstAvailable")
    return DeviceRequest(wire.name, tuple(_subrequest(sub, place) for sub in wire.first_available))


def _subrequest(wire: _SubRequestEntry, place: str) -> DeviceSubRequest:
    amounts = (wire.capacity.requests if wire.capacity is not None else None) or {}
    units = {
        name: _units(f"{place}: capacity {name}", text, unit)
        for name, unit in _UNITS.items()
        if (text := amounts.get(name, amounts.get(f"{DRIVER}/{name}"))) is not None
    }
    known = {*_UNITS, *(f"{DRIVER}/{name}" for name in _UNITS)}
    share = units.get("share")
    return DeviceSubRequest(
        name=wire.name,
        device_class=wire.device_class_name,
        count=None if wire.allocation_mode == ALL else wire.count or 1,
        selectors=_expressions(wire.selectors),
        memory_mib=units.get("memory"),
        cores=units.get("cores", 0),
        share_milli=share,
        unknown_capacities=tuple(sorted(amounts.keys() - known)),
        has_tolerations=bool(wire.tolerations),
        is_admin=bool(wire.admin_access),
    )


def _units(field: str, text: str, unit: str) -> int:
    """Returns a quantity in *unit*, rounded up, as kube-scheduler rounds to the steps of our slices."""
    try:
        return rounded_up(text, unit)
    except MalformedInput as error:
        raise MalformedInput(field, text, error.problem) from None


def _expressions(selectors: list[_SelectorEntry] | None) -> tuple[str, ...]:
    return tuple(selector.cel.expression for selector in selectors or ())


def _constraint(wire: _ConstraintEntry, place: str) -> DeviceConstraint:
    attribute = wire.match_attribute or wire.distinct_attribute
    if not attribute:
        raise MalformedInput(
            f"{place}: constraint", "", "expected matchAttribute or distinctAttribute"
        )
    return DeviceConstraint(
        frozenset(wire.requests or ()), attribute, is_distinct=not wire.match_attribute
    )
