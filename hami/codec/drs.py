"""Enflame's slices: the profiles of a node's devices, and those assigned to a pod's containers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hami.codec.documents import decode
from hami.codec.register import check_number
from hami.errors import MalformedInput
from hami.model import Device
from hami.quantity import INT32_MAX, parse_integer

_PROFILE = re.compile(r"([0-9]{1,4})g\.([0-9]{1,6})gb", re.IGNORECASE)
_MAX_SLICES = 1024
GIB = 1024  # MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class DrsProfile:
    """A partition size of a device: slices and memory. *number*: its identifier for the node agent."""

    name: str
    number: str
    slices: int
    memory_gb: int


class _Device(msgspec.Struct):
    index: str | int = ""
    minor: str | int = ""
    capacity: str | int = 0


class _Document(msgspec.Struct):
    devices: list[_Device] = []
    profiles: dict[str, str | int] = {}


_DOCUMENT = msgspec.json.Decoder(_Document)


def parse_drs_devices(field: str, text: str, vendor: str, node: str) -> tuple[Device, ...]:
    """The devices of *node*, each as large as the largest profile, with a slot for each slice.

    Shape: ``{"devices": [{"index": "0", "minor": "0", "capacity": 6}], "profiles": {"1g.6gb": "0"}}``. Numbers may be
    strings. A device's index defaults to its position in the list, its minor to its index. A profile is
    ``<slices>g.<GB>gb``; others are skipped. ``Device.info``: ``minor`` (of the device file) and ``profiles``, smallest
    first, which all devices support.
    Raises: MalformedInput without devices or profiles, for a repeated index, for a device without capacity and for too
    many devices.
    Source: HAMi v2.10, pkg/device/enflame/device.go.
    """
    document = decode(field, _DOCUMENT, text, "devices and profiles")
    if not document.devices:
        raise MalformedInput(field, text, "expected at least one device")
    check_number(field, text, len(document.devices))
    profiles = _profiles(document)
    if not profiles:
        raise MalformedInput(field, text, "expected at least one profile such as 1g.6gb")
    memory_gb = max(profile.memory_gb for profile in profiles) or profiles[-1].slices
    devices: dict[int, Device] = {}
    for place, entry in enumerate(document.devices):
        slices = _number(entry.capacity) or 0
        if slices < 1:
            raise MalformedInput(
                f"{field}: devices[{place}]",
                entry.capacity,
                "expected a capacity of at least one slice",
            )
        index = _index(entry, place)
        devices[index] = Device(
            uuid=f"{node}-enflame-drs-{index}",
            vendor=vendor,
            model=vendor,
            slots=min(slices, INT32_MAX),
            memory_mib=memory_gb * GIB,
            index=index,
            mode="drs",
            info={"minor": str(entry.minor) or str(index), "profiles": profiles},
        )
    if len(devices) < len(document.devices):
        raise MalformedInput(field, text, "expected a unique index for each device")
    return tuple(devices.values())


def _profiles(document: _Document) -> tuple[DrsProfile, ...]:
    """Returns the profiles that can be read, smallest first."""
    profiles = []
    for name, number in document.profiles.items():
        profile = _profile(name.strip(), str(number))
        if profile is not None:
            profiles.append(profile)
    profiles.sort(
        key=lambda profile: (profile.slices, profile.memory_gb, profile.number, profile.name)
    )
    return tuple(profiles)


def render_drs_assignments(profiles: Mapping[str, DrsProfile]) -> str:
    """The annotation with the profile of each container, by name, none of them allocated yet."""
    assignments = {}
    for name, profile in sorted(profiles.items()):
        assignments[name] = {
            "allocated": False,
            "request": profile.slices,
            "profileID": profile.number,
            "profileName": profile.name,
        }
    return msgspec.json.encode(assignments).decode()


def _profile(name: str, number: str) -> DrsProfile | None:
    match = _PROFILE.fullmatch(name)
    if match is None:
        return None
    slices, memory_gb = map(int, match.groups())
    if slices not in range(1, _MAX_SLICES + 1):
        return None
    return DrsProfile(name=name, number=number, slices=slices, memory_gb=memory_gb)


def _index(entry: _Device, place: int) -> int:
    index = _number(entry.index)
    if index is None or not 0 <= index <= INT32_MAX:
        return place
    return index


def _number(value: str | int) -> int | None:
    if isinstance(value, int):
        return value
    return parse_integer(value.strip(), 64)
