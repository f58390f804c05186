"""The record that describes a vendor, and the parameters and results of its functions.

A vendor has a function only where data is not enough. All functions are pure: they read their parameters and return a
value. ``scheduling`` calls each of them at one stage of the pipeline
admit → parse_request → check_node → rules (for each device) → select_devices → make_share → annotate.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeVar

from hami.codec.forms import MAX_NAMES, written
from hami.codec.keys import NODE_LOCK
from hami.codec.policies import parse_list
from hami.errors import MalformedInput
from hami.model import (
    Allocation,
    Budget,
    ContainerKind,
    Device,
    DevicePolicy,
    DeviceUsage,
    Node,
    NodePolicy,
    Pod,
    Reason,
    Request,
    Selector,
    Share,
    Unfit,
    Weights,
)
from hami.vendors.draft import ContainerDraft
from hami.vendors.resources import CoreUnit, Resources
from hami.vendors.terms import Term

__all__ = [
    "AdmissionRules",
    "AnnotationContext",
    "Annotations",
    "Catalog",
    "CheckDevice",
    "ContainerDraft",
    "CoreUnit",
    "Decision",
    "FitContext",
    "Inventory",
    "Resources",
    "Rule",
    "SelectDevices",
    "SelectorKeys",
    "Term",
    "Vendor",
]

T = TypeVar("T")


class Rule(enum.StrEnum):  # its hash is that of a string, which is remembered
    """A check that a device must pass. Vendors list theirs in the order in which users see the reasons."""

    ALLOCATION_MODE = "allocation_mode"
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


ALWAYS = (Rule.CORDON, Rule.QUOTA)
"""What operators say holds for the devices of every vendor."""


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
    modes: tuple[str, ...] = ()  # the words of *mode*

    def select(self, annotations: Mapping[str, str]) -> Selector:
        """Returns the selection in *annotations*. Raises: MalformedInput for a list of more than MAX_NAMES."""
        use_uuids: tuple[str, ...] | None = None
        for uuids in _lists(annotations, self.use_uuids):
            if use_uuids is None:
                use_uuids = uuids
            else:
                use_uuids = tuple([uuid for uuid in use_uuids if uuid in uuids])
        nouse_uuids: tuple[str, ...] | None = None
        for uuids in _lists(annotations, self.nouse_uuids):
            nouse_uuids = (nouse_uuids or ()) + uuids
        return Selector(
            use_types=_selected(annotations, self.use_types),
            nouse_types=_selected(annotations, self.nouse_types),
            use_uuids=use_uuids,
            nouse_uuids=nouse_uuids,
            mode=_mode(annotations.get(self.mode)),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """All keys that are not empty."""
        keys = (self.use_types, self.nouse_types, *self.use_uuids, *self.nouse_uuids, self.mode)
        return tuple(filter(None, keys))


def _lists(annotations: Mapping[str, str], keys: Iterable[str]) -> Iterator[tuple[str, ...]]:
    for key in keys:
        uuids = _selected(annotations, key)
        if uuids is not None:
            yield uuids


def _mode(text: str | None) -> str | None:
    """Returns *text* in small letters; ``None`` if it is absent, as nearly always, or blank."""
    if text is None:
        return None
    mode = written(text)
    return None if mode is None else mode.lower()


def _selected(annotations: Mapping[str, str], key: str) -> tuple[str, ...] | None:
    """Returns the list in the annotation *key*; ``None`` for none."""
    text = annotations.get(key)
    if text is not None and text.count(",") >= MAX_NAMES:
        raise MalformedInput(key, text, f"expected at most {MAX_NAMES} items")
    return parse_list(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitContext:
    """The parameters of a vendor's functions besides the device and the request.

    *annotations*: those pod annotations that the vendor's *pod_keys* name. *usages*: all devices of the vendor on the
    node, in the order of registration. *kind*: the kind of the container that is being placed. *placed*: the shares of
    the pod's containers placed so far, for all vendors (``Share.type`` is the vendor's key). *by_claims*: the pod gets
    its devices by a claim.
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
    by_claims: bool = False

    def annotation(self, key: str) -> str | None:
        """Returns the pod annotation *key*, which must be one of the vendor's *pod_keys*."""
        return dict(self.annotations).get(key)

    @property
    def placed_of_vendor(self) -> tuple[tuple[ContainerKind, tuple[Share, ...]], ...]:
        """*placed* without the shares of other vendors."""
        placed = []
        for kind, shares in self.placed:
            placed.append(
                (kind, tuple([share for share in shares if share.type == self.vendor.key]))
            )
        return tuple(placed)


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
    def last_indexes(self) -> str:
        """The indexes of the devices of the last container that has any: ``7,6``."""
        shares = list(filter(None, self.shares))[-1]
        return ",".join(str(self.devices[share.uuid].index) for share in shares)

    def first_profile(self, memory_factor: int) -> str:
        """Returns the first device of the first container that has any: ``<index>_<cores>_<memory>``.

        *memory_factor*: MiB for one unit of the memory.
        """
        share = next(itertools.chain.from_iterable(self.shares))
        return f"{self.devices[share.uuid].index}_{share.cores}_{share.memory_mib // memory_factor}"

    @property
    def seconds(self) -> str:
        """The Unix time in seconds."""
        return str(int(self.now.timestamp()))

    @property
    def nanoseconds(self) -> str:
        """The Unix time in nanoseconds, with the clock's resolution of a microsecond."""
        return str(int(self.now.timestamp()) * 10**9 + self.now.microsecond * 1000)


class Candidate(NamedTuple):
    """A device that may serve a request. *picks*: the container's shares of the devices picked before."""

    usage: DeviceUsage
    request: Request
    context: FitContext
    picks: Sequence[Share] = ()

    @property
    def device(self) -> Device:
        """The device, without its usage."""
        return self.usage.device

    @property
    def memory_mib(self) -> int:
        """The memory in MiB that the request needs of the device."""
        return self.request.memory_on(self.usage.device)


@dataclass(frozen=True, slots=True)
class PartitionRule:
    """A check that only devices in parts can fail: those that are partitioned, or of which pods hold partitions."""

    check: CheckDevice

    def __call__(self, candidate: Candidate) -> Reason | None:
        """Returns the reason why the check rejects a device in parts; ``None`` for all others."""
        if candidate.usage.device.is_partitioned or candidate.usage.partitions:
            return self.check(candidate)
        return None


Inventory = Callable[["Vendor", Node], "tuple[Device, ...] | None"]
CheckDevice = Callable[[Candidate], "Reason | None"]
SelectDevices = Callable[
    [Sequence[DeviceUsage], Request, FitContext], "Sequence[DeviceUsage] | Unfit"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """The annotations of nodes and pods. A key is empty if the vendor has none."""

    register: str = ""  # of nodes: the devices, written by the device plugin
    handshake: str = ""  # of nodes: liveness of the device plugin; without it, registered devices are schedulable
    # of pods: the shares that the device plugin has not given to containers yet
    to_allocate: str = ""
    allocated: str = ""  # of pods: the shares
    node_keys: tuple[
        str, ...
    ] = ()  # other annotations and labels of nodes that the inventory reads
    allocation_mode: str = ""  # of nodes: how pods get the registered devices, `dra` for claims
    pod_keys: tuple[str, ...] = ()  # annotations of pods that the functions read
    # the form of those of them that users write; admission refuses other texts
    pod_terms: tuple[Term, ...] = ()
    extra_keys: tuple[str, ...] = ()  # annotations of pods that *annotate* may write
    selectors: SelectorKeys = SelectorKeys()  # annotations of pods that select devices
    lock: str = NODE_LOCK  # of nodes: the lock under which allocations on a node are serialized; empty for none
    # the second field of a share is the device's model, not the vendor's key
    writes_model: bool = False

    # Returns the annotations beside the allocation.
    annotate: Callable[[Vendor, AnnotationContext], Mapping[str, str]] | None = None
    # Adds to the shares of a pod the details that only other annotations contain. Raises: MalformedInput.
    read_shares: Callable[[Vendor, Pod, Allocation], Allocation] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """The admission of pods: changes of the webhook, and pods that it denies."""

    # Changes the draft of a container; returns whether the container requests devices. Raises: PodRefused. Default:
    # :mod:`hami.vendors.admission`.
    admit: Callable[[ContainerDraft], bool] | None = None
    admits_all: bool = False  # *admit* is also called for containers without the vendor's resources
    # the same in pods that name a resource of any vendor
    admits_beside: bool = False
    # it is also called for those of pods that say whether such containers see devices
    hides_devices: bool = False
    # Changes the draft of every container of a pod that another scheduler places, and raises as *admit*. Default: such
    # a pod is left alone.
    confine: Callable[[ContainerDraft], None] | None = None
    # Changes the draft of an ephemeral container, and raises as *admit*; given whether the pod requests the vendor's
    # devices. Default: such a container is left alone.
    admit_ephemeral: Callable[[ContainerDraft, bool], None] | None = None
    # a pod that requests the vendor's devices may not get ephemeral containers
    refuses_ephemeral: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The selection of devices for a container. Functions stand in the order of the pipeline."""

    # Returns the node's devices, ``None`` if it has none. Raises: MalformedInput.
    inventory: Inventory
    # cores of every device, whatever its node registers; 0 for the registered number
    device_cores: int = 0
    # devices are schedulable only while the node has capacity of the resource *count*
    needs_capacity: bool = False
    # Returns the reason why no device of the node fits.
    check_node: Callable[[Request, FitContext], Reason | None] | None = None
    # The checks for each device, in the order in which users see reasons. Those of ALWAYS are added where they lack.
    rules: tuple[Rule | PartitionRule | CheckDevice, ...] = ()
    binds_numa: bool = False  # pods may bind the devices of a container to one NUMA node
    # one container may take this device several times
    allows_repeats: Callable[[DeviceUsage], bool] | None = None
    # Selects among the devices that pass (at least the requested number, in the order of trying). Default: the first.
    select_devices: SelectDevices | None = None
    # Returns the share of a device, given the container's earlier shares. Default: the requested amounts.
    make_share: Callable[[Candidate], Share] | None = None
    # Returns the score of a placement on a node, given its devices before. It is added to the node's score; higher is
    # better.
    node_score: Callable[[Sequence[DeviceUsage], Allocation, NodePolicy], float] | None = None

    def __post_init__(self) -> None:
        lacking = []
        for rule in ALWAYS:
            if rule not in self.rules:
                lacking.append(rule)
        if not lacking:
            return
        place = 0
        if Rule.HEALTH in self.rules:
            place = self.rules.index(Rule.HEALTH) + 1
        rules = (*self.rules[:place], *lacking, *self.rules[place:])
        object.__setattr__(self, "rules", rules)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vendor:
    """One vendor: its names on the wire, units, defaults and rules. Equal only to itself."""

    key: str  # names the vendor in annotations
    resources: Resources = Resources()
    annotations: Annotations = Annotations()
    admission: AdmissionRules = AdmissionRules()
    decision: Decision

    def __repr__(self) -> str:
        return f"Vendor({self.key!r})"


def read_with(read: Callable[..., T], vendor: Vendor, source: Node | Pod, *rest: object) -> T:
    """Returns the result of *read*, a function of *vendor* for a node or a pod.

    Raises: MalformedInput, whatever *read* raises, so that a fault of a third party affects this node or pod only.
    """
    try:
        return read(vendor, source, *rest)
    except MalformedInput:
        raise
    except Exception as error:  # third-party code may raise anything
        if isinstance(source, Node):
            where = f"node {source.name}"
        else:
            where = f"pod {source.ref}"
        raise MalformedInput(
            where, f"{type(error).__name__}: {error}", f"vendor {vendor.key} cannot read it"
        ) from error


class Catalog:
    """The vendors that are scheduled, sorted by key.

    Raises: MalformedInput if two vendors have the same key, resource name or annotation key.
    """

    def __init__(self, vendors: Iterable[Vendor]) -> None:
        self._vendors = tuple(sorted(vendors, key=lambda vendor: vendor.key))
        self._by_key: dict[str, Vendor] = {}
        self._by_resource: dict[str, Vendor] = {}
        self._by_allocated: dict[str, Vendor] = {}
        owners: dict[str, Vendor] = {}
        for vendor in self._vendors:
            if vendor.key in self._by_key:
                raise MalformedInput(
                    "vendor", vendor.key, "expected a key that no other vendor has"
                )
            _own_names(vendor, owners)
            self._by_key[vendor.key] = vendor
            self._by_resource.update(dict.fromkeys(vendor.resources.names, vendor))
            if vendor.annotations.allocated:
                self._by_allocated[vendor.annotations.allocated] = vendor
        self.resources = self._by_resource.keys()
        self.admitting_all = _with_rule(self._vendors, "admits_all")
        self.admitting_beside = _with_rule(self._vendors, "admits_beside")
        self.hiding = _with_rule(self._vendors, "hides_devices")
        self.confining = _with_rule(self._vendors, "confine")
        self.admitting_ephemeral = _with_rule(self._vendors, "admit_ephemeral")

    def __iter__(self) -> Iterator[Vendor]:
        return iter(self._vendors)

    def __len__(self) -> int:
        return len(self._vendors)

    def __getitem__(self, key: str) -> Vendor:
        """Returns the vendor with *key*. Raises: KeyError."""
        return self._by_key[key]

    def requested_by(self, *resources: Iterable[str]) -> tuple[Vendor, ...]:
        """Returns the vendors that have any of these resource names, sorted by key."""
        return _owners(self._by_resource, itertools.chain(*resources))

    def allocated_in(self, annotations: Iterable[str]) -> tuple[Vendor, ...]:
        """Returns the vendors whose allocation is among *annotations* (keys), sorted by key."""
        return _owners(self._by_allocated, annotations)


def _with_rule(vendors: Iterable[Vendor], name: str) -> tuple[Vendor, ...]:
    """Returns those of *vendors* whose rule *name* of admission is set."""
    found = []
    for vendor in vendors:
        if getattr(vendor.admission, name):
            found.append(vendor)
    return tuple(found)


def _own_names(vendor: Vendor, owners: dict[str, Vendor]) -> None:
    """Adds the names of *vendor* to *owners*. Raises: MalformedInput if one is another vendor's."""
    keys = vendor.annotations
    names = (keys.to_allocate, keys.allocated, keys.register, keys.handshake)
    for name in (*vendor.resources.names, *filter(None, names)):
        if owners.setdefault(name, vendor) is not vendor:
            raise MalformedInput(
                f"vendor {vendor.key}",
                name,
                f"expected a name of its own, this one is {owners[name].key}'s",
            )


def _owners(vendors: Mapping[str, Vendor], names: Iterable[str]) -> tuple[Vendor, ...]:
    """Returns those of *vendors* that any of *names* belongs to, sorted by key."""
    owned = vendors.keys() & names
    if len(owned) == 1:  # as nearly always
        return (vendors[owned.pop()],)
    by_key = {vendors[name].key: vendors[name] for name in owned}
    return tuple([by_key[key] for key in sorted(by_key)])
