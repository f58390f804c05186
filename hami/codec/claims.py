"""ResourceClaims (resource.k8s.io/v1): what was allocated of our driver's devices, and what containers ask for.

Tenants write claims, and whoever may write their status writes allocations, so all texts are checked and bounded here.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from hami.codec.claim_amounts import MAX_RESULTS, TOO_MANY, VENDOR
from hami.codec.documents import convert, decode, places_in
from hami.codec.register import Amount
from hami.codec.selectors import ATTRIBUTES, render_selectors, render_size
from hami.codec.slices import DRIVER, MIG_CLASS, NUMA_NODE, SHARE, is_instance
from hami.errors import MalformedInput
from hami.model import DevicePolicy, PodRef, Request, Selector
from hami.quantity import INT32_MAX, MIB, parse_quantity, render_mib

T = TypeVar("T")

MAX_SETTINGS = 32 * 33  # configurations: 32 of the claim, and of a class for each request
MAX_SIZES = 8  # alternatives of a request
MAX_SELECTED = 64  # items of a list of types or UUIDs: an expression of more would cost too much
LONGEST_ITEM = 64  # characters: no attribute is longer
WHOLE = 100  # percent: all memory or cores of a card
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


@dataclass(frozen=True, slots=True)
class Inexpressible:
    """The answer for containers whose requests no claim can say. *reason*: a sentence for the author of their pod."""

    reason: str


def parse_claim(data: bytes | msgspec.Raw) -> AllocatedClaim:
    """The claim in *data* (JSON). Results and configurations of other drivers are not read.

    Raises: MalformedInput, which names the part and its value: for shapes, names that are none, amounts that no slice
    of ours leads to, one device twice in a request, and configurations that only a DeviceClass may have.
    """
    wire = convert(decode("resourceclaim", _ANY, data), _Claim, places_in("resourceclaim"))
    status = wire.status or _Status()
    allocated = status.allocation.devices if status.allocation is not None else _Devices()
    results = _ours(allocated.results, _Result, "results", lambda value: value.get("driver"))
    settings = _ours(allocated.config, _Setting, "config", _driver_of_opaque)
    by_request: dict[str, list[_Placed[_Result]]] = {}
    for result in results:
        by_request.setdefault(_name(result.value.request), []).append(result)
    return AllocatedClaim(
        namespace=wire.metadata.namespace,
        name=wire.metadata.name,
        uid=wire.metadata.uid,
        pods=tuple(
            PodRef(wire.metadata.namespace, consumer.name, consumer.uid)
            for consumer in status.reserved_for or ()
            if (consumer.api_group, consumer.resource) == ("", "pods")
        ),
        requests=tuple(_allocated(parts, settings) for parts in by_request.values()),
    )


def render_claim_spec(
    requests: Mapping[str, Request],
    selector: Selector,
    policy: DevicePolicy,
    card_sizes: Collection[int],
) -> dict[str, Any] | Inexpressible:
    """The ``spec`` of a claim with a request for each container, or why there is none.

    *requests*: by container, whose name the request gets. *selector*, *policy*: of the pod. *card_sizes*: the different
    amounts of memory, in MiB, that cards of the cluster have, for requests in percent.
    What a claim says is a little less: kube-scheduler chooses among the cards that fit by its own order, and a request
    without cores may use a card whose cores are all taken. The size of MIG instances follows from memory alone, as it
    does without claims.
    """
    if (reason := next(_objections(requests, selector, policy, card_sizes), None)) is not None:
        return Inexpressible(reason)
    selectors = tuple(render_selectors(selector))

    def rendered(request: Request) -> dict[str, Any]:
        if selector.is_for_instances:
            return {"exactly": _instances(request, selectors)}
        return _alternatives(request, selectors, card_sizes)

    devices: dict[str, Any] = {
        "requests": [{"name": name, **rendered(request)} for name, request in requests.items()]
    }
    if policy.numa_bind and (
        several := [name for name, request in requests.items() if request.count > 1]
    ):
        devices["constraints"] = [
            {"requests": [name], "matchAttribute": NUMA_NODE} for name in several
        ]
    return {"devices": devices}


def needs_card_sizes(requests: Iterable[Request], selector: Selector) -> bool:
    """Reports whether the claim of a pod with *requests* has an alternative for each amount of memory that cards have.
    It has for shares in percent; MIG instances tell the memory of their card."""
    return not selector.is_for_instances and any(
        _percent(request) is not None for request in requests
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
    places = [
        (f"resourceclaim: status.allocation.devices.{field}[{index}]", value)
        for index, value in enumerate(values or ())
        if driver(value) == DRIVER
    ]
    return [_Placed(place, convert(value, type, _below(place))) for place, value in places]


def _below(place: str) -> Callable[[str], str]:
    return lambda path: f"{place}.{path}" if path else place


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
    request, admin = results[0].value.request, any(result.value.admin_access for result in results)
    devices: dict[tuple[str, str], ClaimedDevice] = {}
    for result in results:
        if result.value.request != request:
            raise MalformedInput(
                f"{result.place}.request", result.value.request, f"expected {request}, as before"
            )
        device = _device(result.place, result.value, admin)
        if devices.setdefault((device.pool, device.device), device) is not device:
            raise MalformedInput(
                f"{result.place}.device", device.device, f"twice in the request {request}"
            )
    for_request = [setting for setting in settings if setting.value.applies_to(request)]
    given = [
        setting.value.opaque.parameters
        for setting in for_request
        if setting.value.source == "FromClass"
    ]
    wished = [
        _unprivileged(setting) for setting in for_request if setting.value.source == "FromClaim"
    ]
    # of classes and of claims the last counts; a claim can only lower what its class gives
    priorities = [
        values[-1] for values in (_given(given, "priority"), _given(wished, "priority")) if values
    ]
    policies = _given(wished, "core_policy") or _given(given, "core_policy")
    return ClaimedRequest(
        name=_name(request),
        devices=tuple(devices.values()),
        admin=admin,
        priority=max(priorities, default=None),
        core_policy=policies[-1] if policies else None,
    )


def _given(settings: Iterable[_ShareConfig], field: str) -> list[Any]:
    return [value for setting in settings if (value := getattr(setting, field)) is not None]


def _unprivileged(setting: _Placed[_Setting]) -> _ShareConfig:
    """Returns the parameters of a claim. Raises: MalformedInput for what lifts a limit."""
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
    return parameters


def _device(place: str, result: _Result, admin: bool) -> ClaimedDevice:
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

    amounts = (
        {}
        if admin or is_instance(result.device)
        else {
            "memory_mib": amount("memory", Fraction(MIB), INT32_MAX),
            "cores": amount("cores", Fraction(1), WHOLE),
            "share_milli": amount("share", Fraction(1, 1000), SHARE * 1000),
        }
    )
    return ClaimedDevice(
        pool=result.pool, device=result.device, share_id=result.share_id or "", **amounts
    )


def _objections(
    requests: Mapping[str, Request],
    selector: Selector,
    policy: DevicePolicy,
    card_sizes: Collection[int],
) -> Iterator[str]:
    """Yields the reasons why a claim cannot say what containers ask for."""
    if foreign := sorted({request.vendor for request in requests.values()} - {VENDOR}):
        yield f"claims are for {VENDOR} GPUs only, not for {', '.join(foreign)}"
    if sum(request.count for request in requests.values()) > MAX_RESULTS:
        yield TOO_MANY
    if policy.topology_aware:
        yield "kube-scheduler cannot compare the links between GPUs (policy topology-aware)"
    if policy.mutex and (
        selector.is_for_instances or any(request.cores < WHOLE for request in requests.values())
    ):
        yield "a claim cannot ask for an unused GPU that others may share later (policy mutex)"
    lists = (selector.use_types, selector.nouse_types, selector.use_uuids, selector.nouse_uuids)
    for items in filter(None, lists):
        if len(items) > MAX_SELECTED:
            yield f"a claim selects GPUs by at most {MAX_SELECTED} types or UUIDs"
    if any(
        len(item) > LONGEST_ITEM
        for item in (*itertools.chain(*filter(None, lists)), selector.mode or "")
    ):
        yield f"types, UUIDs and modes in a claim have at most {LONGEST_ITEM} characters"
    if () in (selector.use_types, selector.use_uuids):
        yield "no GPU is selected by an empty list of types or UUIDs"
    if needs_card_sizes(requests.values(), selector) and not 0 < len(card_sizes) <= MAX_SIZES:
        yield (
            f"a percentage of memory needs GPUs of at most {MAX_SIZES} different sizes, there are {len(card_sizes)}"
            if card_sizes
            else "a percentage of memory needs to know the sizes of GPUs, and there is no GPU yet"
        )


def _percent(request: Request) -> int | None:
    """Returns the part of the memory that *request* needs; None if it is not given in percent, or the whole."""
    percent = request.memory_percent
    return percent if request.memory_mib == 0 and percent is not None and percent < WHOLE else None


def _alternatives(
    request: Request, selectors: tuple[str, ...], card_sizes: Collection[int]
) -> dict[str, Any]:
    """Returns the request for any card, or one for each size of cards, the largest first."""
    if (percent := _percent(request)) is None:
        return {"exactly": _exactly(request, selectors, request.memory_mib)}
    return {
        "firstAvailable": [
            {
                "name": f"m{size}",
                **_exactly(request, (render_size(size), *selectors), part_of(size, percent)),
            }
            for size in sorted(card_sizes, reverse=True)
        ]
    }


def part_of(memory_mib: int, percent: int) -> int:
    """Returns *percent* of the memory of a card, in MiB."""
    return max(memory_mib * percent // WHOLE, 1)


def _exactly(request: Request, selectors: tuple[str, ...], memory_mib: int) -> dict[str, Any]:
    """Returns a request for cards. No memory: that of the whole card."""
    amounts = {"memory": render_mib(memory_mib)} if memory_mib else {}
    if request.cores > 0:
        amounts["cores"] = str(request.device_cores)
    if request.cores >= WHOLE:
        amounts["share"] = str(SHARE)
    return _of_class(DRIVER, request, selectors, amounts)


def _instances(request: Request, selectors: tuple[str, ...]) -> dict[str, Any]:
    """Returns a request for MIG instances. All memory is that of an instance of the whole card, though it has less."""
    if request.memory_mib:
        return _of_class(MIG_CLASS, request, selectors, {"memory": render_mib(request.memory_mib)})
    own, whole = f"{ATTRIBUTES}.memoryMiB", f"{ATTRIBUTES}.parentMemoryMiB"
    percent = _percent(request)
    condition = (
        f"{own} * 2 > {whole}" if percent is None else f"{own} >= {whole} * {percent} / {WHOLE}"
    )
    return _of_class(MIG_CLASS, request, (condition, *selectors), {})


def _of_class(
    name: str, request: Request, selectors: tuple[str, ...], amounts: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "deviceClassName": name,
        "count": request.count,
        **(
            {"selectors": [{"cel": {"expression": expression}} for expression in selectors]}
            if selectors
            else {}
        ),
        **({"capacity": {"requests": amounts}} if amounts else {}),
    }
