"""Enflame's slices: the profiles of a node's devices, and those assigned to a pod's containers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hami.codec.documents import decode
from hami.errors import MalformedInput
from hami.quantity import INT32_MAX, parse_integer

_PROFILE = re.compile(r"([0-9]{1,4})g\.([0-9]{1,6})gb", re.IGNORECASE)
_MOST_SLICES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DrsProfile:
    """A partition size of a device: slices and memory. *number*: its identifier for the node agent."""

    name: str
    number: str
    slices: int
    memory_gb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrsDevice:
    """One device. *slices*: its total."""

    index: int
    minor: str
    slices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrsCapacity:
    """The devices of a node, and the profiles that all of them support, smallest first."""

    devices: tuple[DrsDevice, ...]
    profiles: tuple[DrsProfile, ...]


class _Device(msgspec.Struct):
    index: str | int = ""
    minor: str | int = ""
    capacity: str | int = 0


class _Document(msgspec.Struct):
    devices: list[_Device] = []
    profiles: dict[str, str | int] = {}


_DOCUMENT = msgspec.json.Decoder(_Document)


def parse_drs_capacity(field: str, text: str) -> DrsCapacity:
    """The capacity in the node annotation *text*.

    Shape: ``{"devices": [{"index": "0", "minor": "0", "capacity": 6}], "profiles": {"1g.6gb": "0"}}``. Numbers may be
    strings. A device's index defaults to its position in the list, its minor to its index. A profile is
    ``<slices>g.<GB>gb``; others are skipped.
    Raises: MalformedInput without devices or profiles, for a repeated index and for a device without capacity.
    Source: HAMi v2.10, pkg/device/enflame/device.go.
    """
    document = decode(field, _DOCUMENT, text, "devices and profiles")
    devices = tuple(_device(f"{field}: devices[{place}]", place, entry) for place, entry in enumerate(document.devices))
    if not devices:
        raise MalformedInput(field, text, "expected at least one device")
    if len({device.index for device in devices}) < len(devices):
        raise MalformedInput(field, text, "expected a unique index for each device")
    profiles = [profile for name, number in document.profiles.items()
                if (profile := _profile(name, str(number))) is not None]
    if not profiles:
        raise MalformedInput(field, text, "expected at least one profile such as 1g.6gb")
    profiles.sort(key=lambda profile: (profile.slices, profile.memory_gb, profile.number, profile.name))
    return DrsCapacity(devices=devices, profiles=tuple(profiles))


def render_drs_assignments(profiles: Mapping[str, DrsProfile]) -> str:
    """The annotation with the profile of each container, by name, none of them allocated yet."""
    return msgspec.json.encode({
        name: {"allocated": False, "request": profile.slices, "profileID": profile.number, "profileName": profile.name}
        for name, profile in sorted(profiles.items())}).decode()


def _device(where: str, place: int, entry: _Device) -> DrsDevice:
    index = _number(entry.index)
    slices = _number(entry.capacity)
    if slices is None or slices < 1:
        raise MalformedInput(where, entry.capacity, "expected a capacity of at least one slice")
    index = index if index is not None and 0 <= index <= INT32_MAX else place
    return DrsDevice(index=index, minor=str(entry.minor) or str(index), slices=min(slices, INT32_MAX))


def _profile(name: str, number: str) -> DrsProfile | None:
    found = _PROFILE.fullmatch(name.strip())
    if found is None or not 1 <= int(found[1]) <= _MOST_SLICES:
        return None
    return DrsProfile(name=name.strip(), number=number, slices=int(found[1]), memory_gb=int(found[2]))


def _number(value: str | int) -> int | None:
    return value if isinstance(value, int) else parse_integer(value.strip(), 64)
