"""The resources of a vendor: the names under which containers request devices, the units and the defaults."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hami.model import Container, Request
from hami.quantity import INT32_MAX, MIB, strict_integer

GIB = 1024  # MiB


class CoreUnit(enum.Enum):
    """The unit of cores in requests and, if different, on devices and in allocations."""

    PERCENT = "percent of a device"
    SIXTEENTHS = "sixteenths of a device"
    COMPUTE_UNITS = (
        "percent of a device in requests, else compute units, whose number depends on the device"
    )
    MASK = "a number in requests, else a bit mask with one bit for each core"

    @property
    def is_request_unit(self) -> bool:
        """Reports whether allocations have the unit of requests, so that a ResourceQuota can limit them."""
        return self in (CoreUnit.PERCENT, CoreUnit.SIXTEENTHS)


_CORES: Mapping[CoreUnit, str] = MappingProxyType(
    {
        CoreUnit.PERCENT: "% of a device",
        CoreUnit.SIXTEENTHS: "1/16 of a device",
        CoreUnit.COMPUTE_UNITS: "% of a device, as compute units",
        CoreUnit.MASK: "cores",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that containers request. A resource name is empty if the vendor has none."""

    count: str = ""  # resource name: the number of devices
    memory: str = ""  # resource name: memory of each device, in units of *memory_factor* MiB
    memory_percent: str = ""  # resource name: memory of each device, in percent of the device
    cores: str = ""  # resource name: cores of each device, in *core_unit*
    priority: str = ""  # resource name: the priority of the container's tasks on the devices
    limits_only: bool = False  # only limits count, requests do not
    memory_factor: int = 1  # MiB for one unit of *memory*
    memory_units: bool = False  # memory may have a binary suffix (``512Mi``), which takes the place of *memory_factor*
    # an amount of memory up to this is in GiB, also in a ResourceQuota; 0: none is
    most_gib: int = 0
    core_unit: CoreUnit = CoreUnit.PERCENT
    # MiB of each device for a container that requests no memory; 0: the whole device
    default_memory: int = 0
    default_cores: int = 0  # cores of each device for a container that requests no cores
    amounts_are_totals: bool = False  # memory and cores are for all devices of a container together
    # admission requests all cores when only a device count is given
    defaults_to_all_cores: bool = False
    # key and value: pods that have it take no cores; empty: all do
    no_cores_annotation: tuple[str, str] = ("", "")

    # Descriptions for users, in ``hami vendors``; empty where they follow from the other fields.
    memory_description: str = ""  # the unit of memory
    cores_description: str = ""  # the unit of cores
    default_description: str = ""  # the amounts of a container that requests only a device count

    # Returns the request of a container, given the vendor's key. Default: :func:`hami.vendors.request.common_request`.
    parse_request: Callable[[str, Resources, Container], Request | None] | None = None

    # the names that `amounts` looks for
    _asking: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        asking = (self.count, self.memory, self.memory_percent, self.cores)
        object.__setattr__(self, "_asking", tuple(filter(None, asking)))

    @property
    def names(self) -> tuple[str, ...]:
        """All resource names that are not empty."""
        names = (self.count, self.memory, self.memory_percent, self.cores, self.priority)
        return tuple(filter(None, names))

    def role_of(self, name: str) -> str:
        """Returns the field that has the resource *name*: ``count``, ``memory``, …"""
        for role in ("count", "memory", "memory_percent", "cores", "priority"):
            if getattr(self, role) == name:
                return role
        raise KeyError(name)

    def unit_of(self, name: str) -> str:
        """Returns the unit of the resource *name*, for users."""
        if name == self.memory:
            return self.memory_unit
        if name == self.memory_percent:
            return "% of a device"
        if name == self.cores:
            return self.cores_unit
        return "a whole number"

    @property
    def memory_unit(self) -> str:
        """The unit of memory in requests; empty without a memory resource."""
        if not self.memory or self.memory_description:
            return self.memory_description if self.memory else ""
        unit = "MiB" if self.memory_factor <= 1 else f"{self.memory_factor} MiB"
        return f"{unit}, or as written (512Mi)" if self.memory_units else unit

    @property
    def cores_unit(self) -> str:
        """The unit of cores in requests; empty without a core resource."""
        if not self.cores:
            return ""
        return self.cores_description or _CORES[self.core_unit]

    @property
    def has_memory(self) -> bool:
        """Reports whether pods can request memory."""
        return bool(self.memory or self.memory_percent)

    def takes_cores(self, annotation: Callable[[str], str | None]) -> bool:
        """Reports whether a pod takes the cores that it requests. *annotation* looks up its annotations by key."""
        key, value = self.no_cores_annotation
        if not key:
            return True
        return annotation(key) != value

    def amounts(self, limits: Mapping[str, str], requests: Mapping[str, str]) -> dict[str, str]:
        """Returns the amount of each resource except the priority: the limit, else the request. Nothing if all of them
        are 0: that is no request."""
        amounts: dict[str, str] = {}
        is_request = False
        for name in self._asking:
            if name in limits:
                text = limits[name]
            elif name in requests and not self.limits_only:
                text = requests[name]
            else:
                continue
            amounts[name] = text
            # nearly every amount begins with a digit that says enough
            if text[:1] > "0" or strict_integer(text) != 0:
                is_request = True
        return amounts if is_request else {}

    def parse_amount(self, name: str, text: str) -> int | None:
        """Returns an amount of the resource *name*, memory in MiB; ``None`` if it is invalid.

        A percentage is clamped later, so it may be any integer.
        """
        value = strict_integer(text)
        if value is None:
            return None
        if value < 0 and name != self.memory_percent:
            return None
        if name == self.memory and value:
            value = self.to_mib(value, is_binary=text.endswith("i"))
            if value == 0:
                return None  # rounded down to 0, which would mean the whole device
        return value if value <= INT32_MAX else None

    def quota_mib(self, memory: int, *, is_binary: bool) -> int:
        """Returns the MiB of *memory* in a ResourceQuota. *is_binary*: it has a binary suffix."""
        if memory <= self.most_gib:
            return memory * GIB
        return self.to_mib(memory, is_binary=is_binary)

    def to_mib(self, memory: int, *, is_binary: bool) -> int:
        """Returns *memory* in MiB. *is_binary*: it has a binary suffix."""
        if is_binary and self.memory_units:
            return memory // MIB
        return memory * max(self.memory_factor, 1)
