"""ResourceClaims (resource.k8s.io/v1): what was allocated of our driver's devices.

Tenants write claims, and whoever may write their status writes allocations, so all texts are checked and bounded here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from hami.codec.claim_amounts import MAX_RESULTS, WHOLE
from hami.codec.documents import convert, decode, places_in
from hami.codec.register import Amount
from hami.codec.slices import DRIVER, SHARE, is_instance
from hami.errors import MalformedInput
from hami.model import PodRef
from hami.quantity import INT32_MAX, MIB, parse_quantity

T = TypeVar("T")

MAX_SETTINGS = 32 * 33  # configurations: 32 of the claim, and of a class for each request
DEFAULT_PRIORITY = 1

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_Label = Annotated[
    str,
    Meta(
        pattern=rf"^{_LABEL}\Z",
        description="a name of lower case letters, digits and -, at most 63 characters",
    ),
]
_Subdomain = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z",
        max_length=253,
        description="the name "
        "of an object: lower case letters, digits, - and ., at most 253 characters",
    ),
]
_RequestName = Annotated[
    str,
    Meta(
        pattern=rf"^{_LABEL}(/{_LABEL})?\Z",
        description="the name of a request, perhaps with / and the name of a subrequest",
    ),
]
_Uid = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9-]+\Z",
        max_length=64,
        description="letters, digits and -, at most 64 characters",
    ),
]
_Quantity = Annotated[str, Meta(max_length=64, description="a quantity of at most 64 characters")]


class CorePolicy(enum.StrEnum):
    """The way in which the limiter enforces cores."""

    DISABLE = "disable"
    DEFAULT = "default"
    FORCE = "force"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDevice:
    """Part of a device that a request of a claim got, or a MIG instance, whose name says its size: it has no amounts.
    *share_milli*: of the whole card's 100, in thousandths. *share_id*: names this part, empty if the device has one
    user."""

    pool: str
    device: str
    memory_mib: int = 0
    cores: int = 0
    share_milli: int = 0
    share_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRequest:
    """A request of a claim and its devices, in the order of allocation. *name*: without that of a subrequest.

    *priority*: of its tasks, 0 is the highest. *core_policy*: None for that of the node. *admin*: access beside the
    claims of others, which consumes nothing; its devices have no amounts.
    """

    name: str
    devices: tuple[ClaimedDevice, ...]
    priority: int | None = None
    core_policy: CorePolicy | None = None
    admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedClaim:
    """A ResourceClaim, as far as it is about devices of our driver.

    *pods*: those for which it is reserved. *requests*: those that got devices of our driver; none before it is
    allocated.
    """

    namespace: str
    name: str
    uid: str
    pods: tuple[PodRef, ...] = ()
    requests: tuple[ClaimedRequest, ...] = ()


def parse_claim(data: bytes | msgspec.Raw) -> AllocatedClaim:
    """The claim in *data* (JSON). Results and configurations of other drivers are not read.

    Raises: MalformedInput, which names the part and its value: for shapes, names that are none, amounts that no slice
    of ours leads to, one device twice in a request, and configurations that only a DeviceClass may have.
    """
    wire = convert(decode("resourceclaim", _ANY, data), _Claim, places_in("resourceclaim"))
    namespace = wire.metadata.namespace
    status = wire.status or _Status()
    allocation = status.allocation or _Allocation()
    results = _ours(allocation.devices.results, _Result, "results", _driver)
    settings = _ours(allocation.devices.config, _Setting, "config", _driver_of_opaque)
    by_request: dict[str, list[_Placed[_Result]]] = {}
    for result in results:
        by_request.setdefault(_name(result.value.request), []).append(result)
    consumers = [
        consumer
        for consumer in status.reserved_for or ()
        if (consumer.api_group, consumer.resource) == ("", "pods")
    ]
    return AllocatedClaim(
        namespace=namespace,
        name=wire.metadata.name,
        uid=wire.metadata.uid,
        pods=tuple(PodRef(namespace, consumer.name, consumer.uid) for consumer in consumers),
        requests=tuple(_allocated(parts, settings) for parts in by_request.values()),
    )


class _Metadata(msgspec.Struct):
    namespace: _Subdomain
    name: _Subdomain
    uid: _Uid


class _Consumer(msgspec.Struct, rename="camel"):
    resource: str
    name: _Subdomain
    uid: _Uid
    api_group: str = ""


class _Devices(msgspec.Struct):
    results: Annotated[list[dict[str, Any]], Meta(max_length=MAX_RESULTS)] | None = None
    config: Annotated[list[dict[str, Any]], Meta(max_length=MAX_SETTINGS)] | None = None


class _Allocation(msgspec.Struct):
    devices: _Devices = msgspec.field(default_factory=_Devices)


class _Status(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: Annotated[list[_Consumer], Meta(max_length=256)] | None = None


class _Claim(msgspec.Struct):
    metadata: _Metadata
    status: _Status | None = None


class _Result(msgspec.Struct, rename="camel"):
    """A device of our driver in an allocation."""

    request: _RequestName
    pool: Annotated[str, Meta(max_length=253, description="the name of a pool")]
    device: _Label
    share_id: _Uid | None = msgspec.field(name="shareID", default=None)
    admin_access: bool | None = None
    consumed_capacity: Annotated[dict[str, _Quantity], Meta(max_length=32)] | None = None


class _ShareConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The parameters of a class or claim for our driver."""

    api_version: Literal["hami.io/v1"]
    kind: Literal["ShareConfig"]
    priority: Amount | None = None
    core_policy: CorePolicy | None = None


class _Opaque(msgspec.Struct):
    parameters: _ShareConfig


class _Setting(msgspec.Struct):
    """A configuration for our driver."""

    source: Literal["FromClass", "FromClaim"]
    opaque: _Opaque
    requests: Annotated[list[_RequestName], Meta(max_length=MAX_RESULTS)] | None = None

    def applies_to(self, request: str) -> bool:
        """Reports whether it is about *request*, which may name a subrequest."""
        return not self.requests or request in self.requests or _name(request) in self.requests


@dataclass(frozen=True, slots=True)
class _Placed(Generic[T]):
    """A part of a claim and where it stands."""

    place: str
    value: T


_ANY = msgspec.json.Decoder(dict[str, Any])


def _ours(
    values: list[dict[str, Any]] | None,
    type: type[T],
    field: str,
    driver: Callable[[dict[str, Any]], object],
) -> list[_Placed[T]]:
    """Returns those of *values* that are about our driver."""
    placed = []
    for index, value in enumerate(values or ()):
        if driver(value) == DRIVER:
            place = f"resourceclaim: status.allocation.devices.{field}[{index}]"
            placed.append(_Placed(place, convert(value, type, _below(place))))
    return placed


def _below(place: str) -> Callable[[str], str]:
    return lambda path: f"{place}.{path}" if path else place


def _driver(result: dict[str, Any]) -> object:
    return result.get("driver")


def _driver_of_opaque(setting: dict[str, Any]) -> object:
    opaque = setting.get("opaque")
    return opaque.get("driver") if isinstance(opaque, dict) else None


def _name(request: str) -> str:
    """Returns the name of a request without that of a subrequest."""
    return request.partition("/")[0]


def _allocated(
    results: Sequence[_Placed[_Result]], settings: Sequence[_Placed[_Setting]]
) -> ClaimedRequest:
    """Returns a request from its *results*."""
    request = results[0].value.request
    admin = any(result.value.admin_access for result in results)
    devices: dict[tuple[str, str], ClaimedDevice] = {}
    for result in results:
        if result.value.request != request:
            raise MalformedInput(
                f"{result.place}.request", result.value.request, f"expected {request}, as before"
            )
        device = _device(result.place, result.value, admin)
        if (device.pool, device.device) in devices:
            raise MalformedInput(
                f"{result.place}.device", device.device, f"twice in the request {request}"
            )
        devices[device.pool, device.device] = device
    priority, core_policy = _parameters(
        [setting for setting in settings if setting.value.applies_to(request)]
    )
    return ClaimedRequest(
        name=_name(request),
        devices=tuple(devices.values()),
        admin=admin,
        priority=priority,
        core_policy=core_policy,
    )


def _parameters(settings: Sequence[_Placed[_Setting]]) -> tuple[int | None, CorePolicy | None]:
    """Returns the priority and the core policy that *settings* give: of classes and of claims the last counts, and a
    claim can only lower what its class gives."""
    priorities: dict[str, int] = {}  # by source
    policies: dict[str, CorePolicy] = {}
    for setting in settings:
        source, parameters = setting.value.source, setting.value.opaque.parameters
        if source == "FromClaim":
            _check_privileges(setting)
        if parameters.priority is not None:
            priorities[source] = parameters.priority
        if parameters.core_policy is not None:
            policies[source] = parameters.core_policy
    policy = policies.get("FromClaim", policies.get("FromClass"))
    return max(priorities.values(), default=None), policy


def _check_privileges(setting: _Placed[_Setting]) -> None:
    """Raises MalformedInput if the parameters of a claim lift a limit."""
    parameters = setting.value.opaque.parameters
    if parameters.priority is not None and parameters.priority < DEFAULT_PRIORITY:
        raise MalformedInput(
            f"{setting.place}.opaque.parameters.priority",
            parameters.priority,
            f"expected {DEFAULT_PRIORITY} or more in a claim; a DeviceClass may give less",
        )
    if parameters.core_policy not in (None, CorePolicy.FORCE):
        raise MalformedInput(
            f"{setting.place}.opaque.parameters.corePolicy",
            parameters.core_policy,
            f"expected {CorePolicy.FORCE} in a claim; a DeviceClass may give others",
        )


def _device(place: str, result: _Result, admin: bool) -> ClaimedDevice:
    device = ClaimedDevice(pool=result.pool, device=result.device, share_id=result.share_id or "")
    if admin or is_instance(result.device):
        return device

    def amount(name: str, unit: Fraction, most: int) -> int:
        """The amount of a capacity in *unit*, which our slices make whole."""
        text = (result.consumed_capacity or {}).get(name)
        field = f"{place}.consumedCapacity.{name}"
        if text is None:
            raise MalformedInput(field, "", "missing, expected a quantity")
        try:
            value = parse_quantity(text) / unit
        except MalformedInput as error:
            raise MalformedInput(field, text, error.problem) from None
        if value.denominator != 1 or not 0 <= value <= most:
            raise MalformedInput(
                field, text, "expected what the request policy of the device allows"
            )
        return value.numerator

    return replace(
        device,
        memory_mib=amount("memory", Fraction(MIB), INT32_MAX),
        cores=amount("cores", Fraction(1), WHOLE),
        share_milli=amount("share", Fraction(1, 1000), SHARE * 1000),
    )
