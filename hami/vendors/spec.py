"""The record that describes a vendor to the rest of the system, and what its functions are given and return.

A function stands in the record only where data cannot say it. All of them are pure: they read what they are given and
return a value; the engine in ``scheduling`` calls them at the one place that each has in the pipeline
admit → request → (node) gate → rules for each device → choose → share → annotate.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hami.codec.keys import NODE_LOCK
from hami.codec.policies import parse_list
from hami.errors import MalformedInput
from hami.model import (
    Budget, Container, ContainerKind, Device, DevicePolicy, Node, NodePolicy, Pod, Reason, Request, Selector, Share,
    DeviceUsage, Weights,
)

__all__ = [
    "Admission", "Admit", "Annotate", "AnnotationContext", "Catalog", "CheckDevice", "CheckNode", "CoreUnit",
    "DisplayText", "FitContext", "Inventory", "MakeShare", "NoCombination", "NodeScore", "ParseRequest", "ReadShares",
    "Rule", "SelectDevices", "SelectorKeys", "Vendor",
]


class Rule(enum.Enum):
    """A test that a device must pass; vendors list theirs in the order in which users see the reasons."""

    HEALTH = "health"
    CORDON = "cordon"
    TYPE = "type"
    NUMA = "numa"
    UUID = "uuid"
    SLOTS = "slots"
    MUTEX = "mutex"
    QUOTA = "quota"
    MEMORY = "memory"
    CORES = "cores"
    EXCLUSIVE = "exclusive"
    FULL = "full"
    UNUSED = "unused"
    SAME_DEVICE = "same device"


class CoreUnit(enum.Enum):
    """What cores are counted in: where pods ask for them, and where that differs, on devices and in allocations."""

    PERCENT = "percent of a device"
    SIXTEENTHS = "sixteenths of a device"
    COMPUTE_UNITS = "percent of a device where asked for, else compute units, of which devices have different numbers"
    MASK = "a number where asked for, else a bit mask, one bit for each core"

    @property
    def is_request_unit(self) -> bool:
        """Allocations are written in the unit of requests, so that a ResourceQuota can count them."""
        return self in (CoreUnit.PERCENT, CoreUnit.SIXTEENTHS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayText:
    """What people are told of amounts, where the other fields of a vendor's record do not say it; empty where they do.

    *memory*, *cores*: the units in which pods ask. *default*: what a container gets that does not say.
    """

    memory: str = ""
    cores: str = ""
    default: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorKeys:
    """Pod annotations that narrow the choice of devices; empty where a vendor has none.

    A vendor may have several keys for one list: a device has to pass the lists of all of them.
    """

    use_types: str = ""
    nouse_types: str = ""
    use_uuids: tuple[str, ...] = ()
    nouse_uuids: tuple[str, ...] = ()
    mode: str = ""

    def select(self, annotations: Mapping[str, str]) -> Selector:
        """What *annotations* ask for."""
        return Selector(
            use_types=parse_list(annotations.get(self.use_types)),
            nouse_types=parse_list(annotations.get(self.nouse_types)),
            use_uuids=_all_of([parse_list(annotations.get(key)) for key in self.use_uuids]),
            nouse_uuids=_any_of([parse_list(annotations.get(key)) for key in self.nouse_uuids]),
            mode=annotations.get(self.mode),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """All the keys that there are."""
        keys = (self.use_types, self.nouse_types, *self.use_uuids, *self.nouse_uuids, self.mode)
        return tuple(key for key in keys if key)


def _all_of(lists: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """What stands in each of *lists*; those that are ``None`` set no limit."""
    given = [items for items in lists if items is not None]
    return tuple(item for item in given[0] if all(item in items for items in given)) if given else None


def _any_of(lists: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    given = [items for items in lists if items is not None]
    return tuple(item for items in given for item in items) if given else None


@dataclass(frozen=True, slots=True)
class Admission:
    """What admission makes of one container: the container as it shall be (the same object when nothing changes),
    whether it asks for this vendor's devices, and what to set in the pod's spec and annotations."""

    container: Mapping[str, Any]
    found: bool = False
    pod_spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitContext:
    """What a vendor's functions may look at besides the device and the request.

    *vendor*: whose devices are asked for. *annotations*: those of the pod's annotations that its record names in
    *pod_keys*.
    *usages*: all its devices on the node, as registered. *kind*: that of the container now being placed; *placed*: the
    shares of the pod's containers placed so far, of all vendors (``Share.type`` says whose).
    """

    vendor: Vendor
    policy: DevicePolicy
    weights: Weights
    selector: Selector
    budget: Budget
    annotations: tuple[tuple[str, str], ...] = ()
    usages: Sequence[DeviceUsage] = ()
    kind: ContainerKind = ContainerKind.APP
    placed: tuple[tuple[ContainerKind, tuple[Share, ...]], ...] = ()

    def annotation(self, key: str) -> str | None:
        """The pod's annotation *key*, one of its vendor's *pod_keys*."""
        return next((text for name, text in self.annotations if name == key), None)

    @property
    def placed_of_vendor(self) -> tuple[tuple[ContainerKind, tuple[Share, ...]], ...]:
        """*placed*, without other vendors' shares."""
        return tuple((kind, tuple(share for share in shares if share.type == self.vendor.key))
                     for kind, shares in self.placed)


@dataclass(frozen=True, slots=True)
class NoCombination:
    """Devices pass, but no choice of them will do: *reason* holds for *count* of *devices* (all of the node's)."""

    reason: Reason
    count: int = 1
    devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationContext:
    """What is known when a pod's annotations are written.

    *shares*: those of the vendor for each container, init containers first. *devices*: the node's, by uuid.
    """

    pod: Pod
    node: str
    shares: tuple[tuple[Share, ...], ...]
    devices: Mapping[str, Device]
    now: datetime

    @property
    def seconds(self) -> str:
        """The Unix time."""
        return str(int(self.now.timestamp()))

    @property
    def nanoseconds(self) -> str:
        """The Unix time in nanoseconds; the clock's microseconds are the last that count."""
        return str(int(self.now.timestamp()) * 10**9 + self.now.microsecond * 1000)


Inventory = Callable[["Vendor", Node], "tuple[Device, ...] | None"]
Admit = Callable[["Vendor", Mapping[str, Any], Mapping[str, Any]], Admission]
ParseRequest = Callable[["Vendor", Container], "Request | None"]
CheckDevice = Callable[[DeviceUsage, Request, FitContext, Sequence[Share]], "Reason | None"]
CheckNode = Callable[[Request, FitContext], "Reason | None"]
SelectDevices = Callable[[Sequence[DeviceUsage], Request, FitContext], "Sequence[DeviceUsage] | NoCombination"]
MakeShare = Callable[[DeviceUsage, Request, FitContext, Sequence[Share]], Share]
Annotate = Callable[["Vendor", AnnotationContext], Mapping[str, str]]
ReadShares = Callable[["Vendor", Pod, "tuple[tuple[Share, ...], ...]"], "tuple[tuple[Share, ...], ...]"]
NodeScore = Callable[[Sequence[DeviceUsage], "tuple[tuple[Share, ...], ...]", NodePolicy], float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vendor:
    """One vendor's devices: names on the wire, units, defaults, rules. Equal only to itself.

    *key* names the vendor in annotations. *count*, *memory*, *memory_percent*, *cores*, *priority* are resource names,
    empty where there is none. *limits_only*: requests do not count, only limits. *memory_factor*: MiB for one unit of
    *memory*. *memory_units*: memory may be written with a binary unit (``512Mi``) and is then no multiple of that.
    *core_unit*: what cores are counted in. *default_memory* in MiB (0: the whole device).
    *amounts_are_totals*: memory and cores are written for all of a container's devices together.
    *defaults_to_all_cores*: admission gives all cores to who asks for devices, but neither for memory nor for cores.
    *no_cores_annotation*: an annotation and its value; pods that bear it take no cores, whatever they ask.
    *display*: what is shown of all this, and read by nobody but people.

    *register*, *handshake*, *to_allocate*, *allocated*: annotation keys, empty where there is none. *node_keys*: other
    annotations and labels of nodes that *inventory* reads. *pod_keys*: annotations of pods that its functions read.
    *extra_keys*: those that *annotate* may write.
    *lock*: the node annotation under which allocations on a node happen one after the other, empty for none.
    *device_cores*: cores that every device counts as having, whatever its node writes; 0 for what that writes.
    *needs_capacity*: devices are offered only while the node's capacity names some of *count*.
    *writes_model*: the second field of an allocation is the device's model, not *key*.

    *inventory*: a node's devices, ``None`` when it has none; may raise MalformedInput.
    *admit*: what admission makes of a container, given the pod as a dict; raises MalformedInput in words for the
    pod's author; ``None`` for the common admission (:mod:`hami.vendors.admission`). *admits_all*: it is asked about
    containers too that name no resource of the vendor.
    *parse_request*: what a container asks; ``None`` for the common reading (:mod:`hami.vendors.request`).
    *check_node*: why no device of the node will do. *rules*: what each device must pass, in order; named ones and
    functions.
    *allows_repeats*: a device that fits may be taken several times by one container.
    *select_devices*: which of the devices that pass (at least as many as are asked for, in the order of trying) are
    taken; by
    default the first. *make_share*: what is taken of a device, given what the container has taken already.
    *annotate*: annotations beside the allocation. *read_shares*: what only other annotations say of an allocation.
    *node_score*: how well a placement (the shares of all containers) suits the node, given its devices before; higher
    is better, it is added to the node's score.
    """

    key: str
    count: str
    memory: str = ""
    memory_percent: str = ""
    cores: str = ""
    priority: str = ""
    limits_only: bool = False
    memory_factor: int = 1
    memory_units: bool = False
    core_unit: CoreUnit = CoreUnit.PERCENT
    default_memory: int = 0
    default_cores: int = 0
    amounts_are_totals: bool = False
    defaults_to_all_cores: bool = False
    no_cores_annotation: tuple[str, str] | None = None
    display: DisplayText = DisplayText()

    register: str = ""
    handshake: str = ""
    to_allocate: str = ""
    allocated: str = ""
    node_keys: tuple[str, ...] = ()
    pod_keys: tuple[str, ...] = ()
    extra_keys: tuple[str, ...] = ()
    selectors: SelectorKeys = SelectorKeys()
    lock: str = NODE_LOCK
    device_cores: int = 0
    needs_capacity: bool = False
    writes_model: bool = False

    inventory: Inventory
    admit: Admit | None = None
    admits_all: bool = False
    parse_request: ParseRequest | None = None
    check_node: CheckNode | None = None
    rules: tuple[Rule | CheckDevice, ...] = ()
    allows_repeats: Callable[[DeviceUsage], bool] | None = None
    select_devices: SelectDevices | None = None
    make_share: MakeShare | None = None
    annotate: Annotate | None = None
    read_shares: ReadShares | None = None
    node_score: NodeScore | None = None

    @property
    def resources(self) -> tuple[str, ...]:
        """All resource names of this vendor that are in use."""
        names = (self.count, self.memory, self.memory_percent, self.cores, self.priority)
        return tuple(name for name in names if name)

    @property
    def has_memory(self) -> bool:
        """Reports whether pods can request memory."""
        return bool(self.memory or self.memory_percent)

    def takes_cores(self, says: Callable[[str], str | None]) -> bool:
        """A pod takes the cores that it asks for; *says*: its annotations by key."""
        return self.no_cores_annotation is None or says(self.no_cores_annotation[0]) != self.no_cores_annotation[1]

    def __repr__(self) -> str:
        return f"Vendor({self.key!r})"


class Catalog:
    """The vendors that are scheduled, sorted by key; each resource name belongs to one of them.

    Raises: MalformedInput when two have the same key, or claim the same resource or annotation.
    """

    def __init__(self, vendors: Iterable[Vendor]) -> None:
        self._vendors = tuple(sorted(vendors, key=lambda vendor: vendor.key))
        self._by_key: dict[str, Vendor] = {}
        self._by_resource: dict[str, Vendor] = {}
        self._by_allocated: dict[str, Vendor] = {}
        owners: dict[str, Vendor] = {}
        for vendor in self._vendors:
            if vendor.key in self._by_key:
                raise MalformedInput("vendor", vendor.key, "expected a key that no other vendor has")
            self._by_key[vendor.key] = vendor
            for name in (*vendor.resources, vendor.to_allocate, vendor.allocated, vendor.register, vendor.handshake):
                if name and owners.setdefault(name, vendor) is not vendor:
                    raise MalformedInput(f"vendor {vendor.key}", name,
                                         f"expected a name of its own, this one is {owners[name].key}'s")
            self._by_resource.update((name, vendor) for name in vendor.resources)
            if vendor.allocated:
                self._by_allocated[vendor.allocated] = vendor
        self.admitting_all = tuple(vendor for vendor in self._vendors if vendor.admits_all)

    def __iter__(self) -> Iterator[Vendor]:
        return iter(self._vendors)

    def __len__(self) -> int:
        return len(self._vendors)

    def __getitem__(self, key: str) -> Vendor:
        """The vendor of that key. Raises: KeyError."""
        return self._by_key[key]

    named = __getitem__

    def requested_by(self, *resources: Iterable[str]) -> tuple[Vendor, ...]:
        """The vendors to which any of these resource names belong, sorted by key."""
        return _sorted({vendor.key: vendor for names in resources for name in names
                        if (vendor := self._by_resource.get(name)) is not None})

    def allocated_in(self, annotations: Iterable[str]) -> tuple[Vendor, ...]:
        """The vendors whose allocations any of these annotations (keys) tell, sorted by key."""
        return _sorted({vendor.key: vendor for key in annotations
                        if (vendor := self._by_allocated.get(key)) is not None})


def _sorted(found: Mapping[str, Vendor]) -> tuple[Vendor, ...]:
    return tuple(found.values()) if len(found) < 2 else tuple(found[key] for key in sorted(found))
