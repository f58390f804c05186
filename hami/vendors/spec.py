"""The record that describes a vendor to the rest of the system."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hami.codec.policies import parse_list
from hami.model import Device, Node, Selector

__all__ = ["Admission", "Rule", "SelectorKeys", "Vendor", "untouched"]


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
    MIG = "mig"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorKeys:
    """Pod annotations that narrow the choice of devices; empty where a vendor has none."""

    use_types: str = ""
    nouse_types: str = ""
    use_uuids: str = ""
    nouse_uuids: str = ""
    mode: str = ""

    def select(self, annotations: Mapping[str, str]) -> Selector:
        """What *annotations* ask for."""
        return Selector(
            use_types=parse_list(annotations.get(self.use_types)),
            nouse_types=parse_list(annotations.get(self.nouse_types)),
            use_uuids=parse_list(annotations.get(self.use_uuids)),
            nouse_uuids=parse_list(annotations.get(self.nouse_uuids)),
            mode=annotations.get(self.mode),
        )


@dataclass(frozen=True, slots=True)
class Admission:
    """What admission makes of one container: the container as it shall be (the same object when nothing changes),
    whether it asks for this vendor's devices, and fields to set in the pod's spec."""

    container: Mapping[str, Any]
    found: bool = False
    pod_spec: Mapping[str, Any] = field(default_factory=dict)


def untouched(vendor: Vendor, pod_spec: Mapping[str, Any], container: Mapping[str, Any]) -> Admission:
    """Admission that changes nothing: the container asks for devices if its limits name their count."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return Admission(container, found=bool(vendor.count) and vendor.count in limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """One vendor's devices: names on the wire, units, defaults, rules.

    *key* names the vendor in annotations. *count*, *memory*, *memory_percent*, *cores*, *priority* are resource names,
    empty where there is none. *memory_factor*: MiB for one unit of *memory*. *default_memory* in MiB (0: the whole
    device). *to_allocate*, *allocated*, *register*, *handshake*: annotation keys, empty where there is none.
    *locks_node*: allocations on a node happen one after the other under ``hami.io/mutex.lock``.
    *inventory* reads a node's devices, ``None`` when the node has registered none; it may raise MalformedInput.
    """

    key: str
    count: str
    memory: str = ""
    memory_percent: str = ""
    cores: str = ""
    priority: str = ""
    memory_factor: int = 1
    default_memory: int = 0
    default_cores: int = 0
    register: str = ""
    handshake: str = ""
    to_allocate: str = ""
    allocated: str = ""
    selectors: SelectorKeys = SelectorKeys()
    rules: tuple[Rule, ...] = ()
    locks_node: bool = True
    inventory: Callable[[Vendor, Node], tuple[Device, ...] | None]
    admit: Callable[[Vendor, Mapping[str, Any], Mapping[str, Any]], Admission] = untouched
    admission_wants_all_pods: bool = False

    @property
    def resources(self) -> tuple[str, ...]:
        """All resource names of this vendor that are in use."""
        names = (self.count, self.memory, self.memory_percent, self.cores, self.priority)
        return tuple(name for name in names if name)
