"""The record that describes a vendor, and the parameters and results of its functions.

A vendor has a function only where data is not enough. All functions are pure: they read their parameters and return a
value. ``scheduling`` calls each of them at one stage of the pipeline
admit → parse_request → check_node → rules (for each device) → select_devices → make_share → annotate.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hami.codec.keys import NODE_LOCK
from hami.codec.policies import parse_list
from hami.errors import MalformedInput
from hami.model import (
    Allocation, Budget, Container, ContainerKind, Device, DevicePolicy, DeviceUsage, Node, NodePolicy, Pod, Reason,
    Request, Selector, Share, Weights,
)

if TYPE_CHECKING:
    from hami.vendors.admission import Draft

MAX_SELECTED = 1024  # items of a list of types or UUIDs; each device is compared with all of them


class Rule(enum.Enum):
    """A check that a device must pass. Vendors list theirs in the order in which users see the reasons."""

    HEALTH = "health"
    CORDON = "cordon"
    TYPE = "type"
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
    """The unit of cores in requests and, if different, on devices and in allocations."""

    PERCENT = "percent of a device"
    SIXTEENTHS = "sixteenths of a device"
    COMPUTE_UNITS = "percent of a device in requests, else compute units, whose number depends on the device"
    MASK = "a number in requests, else a bit mask with one bit for each core"

    @property
    def is_request_unit(self) -> bool:
        """Reports whether allocations have the unit of requests, so that a ResourceQuota can limit them."""
        return self in (CoreUnit.PERCENT, CoreUnit.SIXTEENTHS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorKeys:
    """The keys of pod annotations that select devices; empty where a vendor has none.

    If a list has several keys, a device has to pass the lists of all of them.
    """

    use_types: str = ""
    nouse_types: str = ""
    use_uuids: tuple[str, ...] = ()
    nouse_uuids: tuple[str, ...] = ()
    mode: str = ""

    def select(self, annotations: Mapping[str, str]) -> Selector:
        """Returns the selection in *annotations*. Raises: MalformedInput for a list of more than MAX_SELECTED."""
        use = [found for key in self.use_uuids if (found := _selected(annotations, key)) is not None]
        nouse = [found for key in self.nouse_uuids if (found := _selected(annotations, key)) is not None]
        return Selector(
            use_types=_selected(annotations, self.use_types),
            nouse_types=_selected(annotations, self.nouse_types),
            use_uuids=tuple(uuid for uuid in use[0] if all(uuid in uuids for uuids in use)) if use else None,
            nouse_uuids=tuple(itertools.chain(*nouse)) if nouse else None,
            mode=annotations.get(self.mode),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """All keys that are not empty."""
        keys = (self.use_types, self.nouse_types, *self.use_uuids, *self.nouse_uuids, self.mode)
        return tuple(key for key in keys if key)


def _selected(annotations: Mapping[str, str], key: str) -> tuple[str, ...] | None:
    """Returns the list in the annotation *key*; ``None`` for none."""
    text = annotations.get(key)
    if text is not None and text.count(",") >= MAX_SELECTED:
        raise MalformedInput(key, text, f"expected at most {MAX_SELECTED} items")
    return parse_list(text)


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of admission for one container.

    *container*: the container with its changes (the same object if there are none). *found*: it requests devices of
    this vendor. *pod_spec*, *annotations*: fields to set in the pod's spec and annotations.
    """

    container: Mapping[str, Any]
    found: bool = False
    pod_spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitContext:
    """The parameters of a vendor's functions besides the device and the request.

    *annotations*: those pod annotations that the vendor's *pod_keys* name. *usages*: all devices of the vendor on the
    node, in the order of registration. *kind*: the kind of the container that is being placed. *placed*: the shares of
    the pod's containers placed so far, for all vendors (``Share.type`` is the vendor's key).
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
        """Returns the pod annotation *key*, which must be one of the vendor's *pod_keys*."""
        return next((text for name, text in self.annotations if name == key), None)

    @property
    def placed_of_vendor(self) -> tuple[tuple[ContainerKind, tuple[Share, ...]], ...]:
        """*placed* without the shares of other vendors."""
        return tuple((kind, tuple(share for share in shares if share.type == self.vendor.key))
                     for kind, shares in self.placed)


@dataclass(frozen=True, slots=True)
class NoCombination:
    """Enough devices pass, but no combination of them is possible.

    *reason* is reported for *count* of *devices* (default: all devices of the node).
    """

    reason: Reason
    count: int = 1
    devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationContext:
    """The parameters for rendering a pod's annotations.

    *shares*: the vendor's shares for each container, init containers first. *devices*: the node's devices by uuid.
    """

    pod: Pod
    node: str
    shares: Allocation
    devices: Mapping[str, Device]
    now: datetime

    @property
    def seconds(self) -> str:
        """The Unix time in seconds."""
        return str(int(self.now.timestamp()))

    @property
    def nanoseconds(self) -> str:
        """The Unix time in nanoseconds, with the clock's resolution of a microsecond."""
        return str(int(self.now.timestamp()) * 10**9 + self.now.microsecond * 1000)


@dataclass(frozen=True, slots=True)
class PartitionRule:
    """A check that only devices in parts can fail: those that are partitioned, or of which pods hold partitions."""

    check: CheckDevice


Inventory = Callable[["Vendor", Node], "tuple[Device, ...] | None"]
ParseRequest = Callable[["Vendor", Container], "Request | None"]
CheckDevice = Callable[[DeviceUsage, Request, FitContext, Sequence[Share]], "Reason | None"]
CheckNode = Callable[[Request, FitContext], "Reason | None"]
SelectDevices = Callable[[Sequence[DeviceUsage], Request, FitContext], "Sequence[DeviceUsage] | NoCombination"]
MakeShare = Callable[[DeviceUsage, Request, FitContext, Sequence[Share]], Share]
Annotate = Callable[["Vendor", AnnotationContext], Mapping[str, str]]
ReadShares = Callable[["Vendor", Pod, Allocation], Allocation]
NodeScore = Callable[[Sequence[DeviceUsage], Allocation, NodePolicy], float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vendor:
    """One vendor: its names on the wire, units, defaults and rules. Equal only to itself.

    Resources. *key* names the vendor in annotations. *count*, *memory*, *memory_percent*, *cores*, *priority* are
    resource names, empty if there is none. *limits_only*: requests do not count, only limits. *memory_factor*: MiB for
    one unit of *memory*. *memory_units*: memory may have a binary suffix (``512Mi``), which takes the place of
    *memory_factor*. *core_unit*: the unit of cores. *default_memory*: in MiB (0: the whole device).
    *amounts_are_totals*: memory and cores are for all devices of a container together. *defaults_to_all_cores*:
    admission requests all cores when only a device count is given. *no_cores_annotation*: key and value of an
    annotation; pods that have it take no cores (empty: all take cores). *memory_description*, *cores_description*,
    *default_description*: for users, the units of requests and the amounts of a container that requests devices only;
    empty where they follow from other fields.

    Annotations. *register*, *handshake*, *to_allocate*, *allocated*: keys, empty if there is none. *node_keys*: other
    annotations and labels of nodes that *inventory* reads. *pod_keys*: pod annotations that the functions read.
    *extra_keys*: pod annotations that *annotate* may write. *lock*: the node annotation under which allocations on a
    node are serialized, empty for none. *device_cores*: the number of cores of every device, whatever its node
    registers; 0 for the registered number. *needs_capacity*: devices are schedulable only while the node has capacity
    of *count*. *writes_model*: the second field of an allocation is the device's model, not *key*.

    Functions, in the order of the pipeline.
    *inventory*: returns the node's devices, ``None`` if it has none. Raises: MalformedInput.
    *admit*: changes the draft of a container; returns whether the container requests devices. Raises: MalformedInput
    with a message for the pod's author. Default: :mod:`hami.vendors.admission`. *admits_all*: it is also called for
    containers without the vendor's resources. *confine*: changes the draft of every container of a pod that another
    scheduler places, and raises as *admit*; ``None``: such a pod is left alone. *refuses_ephemeral*: a pod that
    requests the vendor's devices may not get ephemeral containers.
    *parse_request*: returns a container's request. Default: :mod:`hami.vendors.request`.
    *check_node*: returns the reason why no device of the node fits. *rules*: the checks for each device, in order:
    named rules and functions. *binds_numa*: pods may bind a container's devices to one NUMA node. *allows_repeats*: one container may take a device several times.
    *select_devices*: selects among the devices that pass (at least the requested number, in the order of trying).
    Default: the first. *make_share*: returns the share of a device, given the container's earlier shares.
    *annotate*: returns the annotations beside the allocation. *read_shares*: adds to shares the details that only other
    annotations contain. *node_score*: returns the score of a placement on a node, given its devices before; it is added
    to the node's score, and higher is better.
    """

    key: str
    count: str = ""
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
    no_cores_annotation: tuple[str, str] = ("", "")
    memory_description: str = ""
    cores_description: str = ""
    default_description: str = ""

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
    admit: Callable[[Draft], bool] | None = None
    admits_all: bool = False
    confine: Callable[[Draft], None] | None = None
    refuses_ephemeral: bool = False
    parse_request: ParseRequest | None = None
    check_node: CheckNode | None = None
    rules: tuple[Rule | PartitionRule | CheckDevice, ...] = ()
    binds_numa: bool = False
    allows_repeats: Callable[[DeviceUsage], bool] | None = None
    select_devices: SelectDevices | None = None
    make_share: MakeShare | None = None
    annotate: Annotate | None = None
    read_shares: ReadShares | None = None
    node_score: NodeScore | None = None

    @property
    def resources(self) -> tuple[str, ...]:
        """All resource names of this vendor that are not empty."""
        names = (self.count, self.memory, self.memory_percent, self.cores, self.priority)
        return tuple(name for name in names if name)

    @property
    def has_memory(self) -> bool:
        """Reports whether pods can request memory."""
        return bool(self.memory or self.memory_percent)

    def takes_cores(self, annotation: Callable[[str], str | None]) -> bool:
        """Reports whether a pod takes the cores that it requests. *annotation* looks up its annotations by key."""
        key, value = self.no_cores_annotation
        return not key or annotation(key) != value

    def __repr__(self) -> str:
        return f"Vendor({self.key!r})"


class Catalog:
    """The vendors that are scheduled, sorted by key.

    Raises: MalformedInput if two vendors have the same key, resource name or annotation key.
    """

    def __init__(self, vendors: Iterable[Vendor]) -> None:
        self._vendors = tuple(sorted(vendors, key=lambda vendor: vendor.key))
        self._by_key: dict[str, Vendor] = {}
        self._by_resource = {name: vendor for vendor in self._vendors for name in vendor.resources}
        self._by_allocated = {vendor.allocated: vendor for vendor in self._vendors if vendor.allocated}
        owners: dict[str, Vendor] = {}
        for vendor in self._vendors:
            if vendor.key in self._by_key:
                raise MalformedInput("vendor", vendor.key, "expected a key that no other vendor has")
            self._by_key[vendor.key] = vendor
            for name in (*vendor.resources, vendor.to_allocate, vendor.allocated, vendor.register, vendor.handshake):
                if name and owners.setdefault(name, vendor) is not vendor:
                    raise MalformedInput(f"vendor {vendor.key}", name,
                                         f"expected a name of its own, this one is {owners[name].key}'s")
        self.resources = self._by_resource.keys()
        self.admitting_all = tuple(vendor for vendor in self._vendors if vendor.admits_all)
        self.confining = tuple(vendor for vendor in self._vendors if vendor.confine is not None)

    def __iter__(self) -> Iterator[Vendor]:
        return iter(self._vendors)

    def __len__(self) -> int:
        return len(self._vendors)

    def __getitem__(self, key: str) -> Vendor:
        """Returns the vendor with *key*. Raises: KeyError."""
        return self._by_key[key]

    def requested_by(self, *resources: Iterable[str]) -> tuple[Vendor, ...]:
        """Returns the vendors that have any of these resource names, sorted by key."""
        return _found(self._by_resource, itertools.chain(*resources))

    def allocated_in(self, annotations: Iterable[str]) -> tuple[Vendor, ...]:
        """Returns the vendors whose allocation is among *annotations* (keys), sorted by key."""
        return _found(self._by_allocated, annotations)


def _found(vendors: Mapping[str, Vendor], names: Iterable[str]) -> tuple[Vendor, ...]:
    """Returns those of *vendors* that any of *names* belongs to, sorted by key."""
    found = {vendor.key: vendor for name in names if (vendor := vendors.get(name)) is not None}
    return tuple([found[key] for key in sorted(found)])
