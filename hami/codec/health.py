"""The unhealthy devices of a node, as its device plugin tells them to everybody else.

Wire: the annotation ``hami.io/device-health`` of the node, JSON by device id (the UUID of the card, also of one
with MIG instances), which lists unhealthy devices only and is absent without any::

    {"GPU-…": {"cause": "the driver asks: reset the GPU (after XID 95)", "remedy": "reset the GPU",
               "since": 1795869679, "harmsPods": true, "driver": "0f6c44ba91d25e07"}}

*since*: Unix seconds of the fault. *harmsPods*: what runs on the device has failed, or will not go on; absent where
running pods are unharmed, so nobody gains by their end. *driver*: the loaded driver, for a fault that lasts until
another one is loaded, since that one cannot tell; absent otherwise.

The condition ``HamiGpuHealthy`` of the node says the same: ``True`` (AllHealthy), ``False`` (Unhealthy, with devices
and causes in its message), or ``Unknown`` (NotWatched) while no device plugin watches.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from hami.codec.documents import decode
from hami.codec.keys import DEVICE_HEALTH
from hami.codec.times import LATEST, render_time
from hami.errors import MalformedInput

__all__ = [
    "ALL_HEALTHY",
    "CONDITION",
    "MAX_DEVICES",
    "MAX_MESSAGE",
    "MAX_TEXT",
    "NOT_WATCHED",
    "UNHEALTHY",
    "DeviceHealth",
    "parse_device_health",
    "render_condition",
    "render_device_health",
]

CONDITION = "HamiGpuHealthy"
ALL_HEALTHY, UNHEALTHY, NOT_WATCHED = "AllHealthy", "Unhealthy", "NotWatched"
"""Reasons of the condition."""
MAX_MESSAGE = 1024
"""Characters of the condition's message."""
MAX_TEXT = 4096
"""Bytes of the annotation."""
MAX_DEVICES = 16
"""Devices in it; those with the lowest ids. More are named by the condition and by the registered devices only."""
_MAX_ID = 64
_MAX_CAUSE, _MAX_REMEDY, _MAX_DRIVER = 512, 64, 16
"""Characters."""


class DeviceHealth(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """Why a device is unhealthy. The fields are those of the wire."""

    cause: Annotated[str, Meta(max_length=_MAX_CAUSE)]
    remedy: Annotated[str, Meta(max_length=_MAX_REMEDY)] = ""
    """What an operator has to do; empty if nobody knows, or nothing."""
    since: Annotated[int, Meta(ge=0, le=LATEST)] = 0
    harms_pods: bool = False
    driver: Annotated[str, Meta(max_length=_MAX_DRIVER)] = ""


_DEVICES = msgspec.json.Decoder(
    Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=_MAX_ID)], DeviceHealth],
        Meta(max_length=MAX_DEVICES),
    ]
)


def parse_device_health(text: str | None) -> Mapping[str, DeviceHealth]:
    """The unhealthy devices in *text*, by id; none if there is no text, or it cannot be read: nobody may act on it."""
    if not text or len(text.encode(errors="replace")) > MAX_TEXT:
        return {}
    try:
        return decode(DEVICE_HEALTH, _DEVICES, text.encode(errors="surrogatepass"))
    except MalformedInput:
        return {}


def render_device_health(devices: Mapping[str, DeviceHealth]) -> str | None:
    """The text that :func:`parse_device_health` reads; ``None`` without devices. Causes are cut so that it fits."""
    if not devices:
        return None
    ids = sorted(devices)[:MAX_DEVICES]
    room = MAX_TEXT // len(ids) - 2
    members = [_member(device, devices[device], room) for device in ids]
    return f"{{{','.join(members)}}}"


def render_condition(
    status: str, reason: str, message: str, at: datetime, *, is_change: bool
) -> dict[str, str]:
    """The condition in the status of the node. *is_change*: its status was another one until now."""
    now = render_time(at)
    condition = {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "lastHeartbeatTime": now,
    }
    if is_change:
        condition["lastTransitionTime"] = now
    return condition


def _member(device: str, health: DeviceHealth, room: int) -> str:
    """The member of the JSON object for one device, in *room* bytes."""
    health = msgspec.structs.replace(health, cause=health.cause[:_MAX_CAUSE])
    member = _encode(device, health)
    while len(member) > room and health.cause:
        excess = len(member) - room
        # a character takes six bytes at most
        health = msgspec.structs.replace(health, cause=health.cause[: -(excess // 6 + 1)])
        member = _encode(device, health)
    return member.decode()


def _encode(device: str, health: DeviceHealth) -> bytes:
    return msgspec.json.encode({device: health})[1:-1]
