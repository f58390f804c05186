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
    profiles = [
        profile
        for name, number in document.profiles.items()
        if (profile := _profile(name, str(number))) is not None
    ]
    if not profiles:
        raise MalformedInput(field, text, "expected at least one profile such as 1g.6gb")
    profiles.sort(
        key=lambda profile: (profile.slices, profile.memory_gb, profile.number, profile.name)
    )
    memory_gb = max(profile.memory_gb for profile in profiles) or profiles[-1].slices
    devices = []
    for place, entry in enumerate(document.devices):
        slices, index = _number(entry.capacity), _number(entry.index)
        if slices is None or slices < 1:
            raise MalformedInput(
                f"{field}: devices[{place}]",
                entry.capacity,
                "expected a capacity of at least one slice",
            )
        index = index if index is not None and 0 <= index <= INT32_MAX else place
        devices.append(
            Device(
                uuid=f"{node}-enflame-drs-{index}",
                vendor=vendor,
                model=vendor,
                slots=min(slices, INT32_MAX),
                memory_mib=memory_gb * GIB,
                index=index,
                mode="drs",
                info={"minor": str(entry.minor) or str(index), "profiles": tuple(profiles)},
            )
        )
    if len({device.index for device in devices}) < len(devices):
        raise MalformedInput(field, text, "expected a unique index for each device")
    return tuple(devices)


def render_drs_assignments(profiles: Mapping[str, DrsProfile]) -> str:
    """The annotation with the profile of each container, by name, none of them allocated yet."""
    return msgspec.json.encode(
        {
            name: {
                "allocated": False,
                "request": profile.slices,
                "profileID": profile.number,
                "profileName": profile.name,
            }
            for name, profile in sorted(profiles.items())
        }
    ).decode()


def _profile(name: str, number: str) -> DrsProfile | None:
    match = _PROFILE.fullmatch(name.strip())
    if match is None or not 1 <= int(match[1]) <= _MAX_SLICES:
        return None
    return DrsProfile(
        name=name.strip(), number=number, slices=int(match[1]), memory_gb=int(match[2])
    )


def _number(value: str | int) -> int | None:
    return value if isinstance(value, int) else parse_integer(value.strip(), 64)
