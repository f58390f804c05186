"""Device inventories as nodes register them: JSON, and the older text with commas and colons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from hami.errors import MalformedInput
from hami.model import Device, MigProfile, Partition
from hami.quantity import INT32_MAX, parse_integer

__all__ = [
    "parse_bool", "parse_devices", "parse_devices_json", "parse_devices_text", "parse_pair_scores",
    "render_devices_brief", "render_devices_json", "render_devices_text",
]

DEFAULT_MODE = "hami-core"
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def parse_bool(text: str) -> bool | None:
    """Go's words for true and false; ``None`` for any other. Source: strconv.ParseBool."""
    return True if text in _TRUE else False if text in _FALSE else None


def parse_devices(field: str, text: str, vendor: str) -> tuple[Device, ...]:
    """Devices in either encoding, told apart by the first character. Raises: MalformedInput."""
    if (start := text.strip())[:1] in ("[", "{") or start == "null":
        return parse_devices_json(field, text, vendor)
    return parse_devices_text(field, text, vendor)


def parse_devices_json(field: str, text: str, vendor: str) -> tuple[Device, ...]:
    """Devices in the JSON form.

    Shape: an array of objects with ``id index count devmem devcore type numa mode migProfiles health custominfo``; a
    key may be missing (zero, false or empty) and is matched without regard to case; others are ignored.
    Raises: MalformedInput, naming the device and the key.
    Source: HAMi v2.10, pkg/device/devices.go, UnMarshalNodeDevices.
    """
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedInput(field, text, f"not valid JSON ({error})") from error
    if document is None:
        return ()
    if not isinstance(document, list):
        raise MalformedInput(field, text, "expected a JSON array of devices")
    return tuple(_device(f"{field}[{position}]", entry, vendor) for position, entry in enumerate(document))


def render_devices_json(devices: tuple[Device, ...]) -> str:
    """The JSON form, keys in upstream's order, zero values left out."""
    return msgspec.json.encode([_filled({
        "id": d.uuid, "index": d.index, "count": d.slots, "devmem": d.memory_mib, "devcore": d.cores, "type": d.model,
        "numa": d.numa, "mode": d.mode, "migProfiles": [_mig_wire(p) for p in d.mig_profiles], "health": d.healthy,
    }) for d in devices]).decode()


def parse_devices_text(field: str, text: str, vendor: str) -> tuple[Device, ...]:
    """Devices in the text form.

    Shape: ``uuid,slots,memory,cores,model,numa,healthy[,index,mode]`` for each device, each closed by ``:``.
    Raises: MalformedInput, with the problem in upstream's words.
    Source: HAMi v2.10, pkg/device/devices.go, DecodeNodeDevices.
    """
    if ":" not in text:
        raise MalformedInput(field, text, "node annotation missing device separator")
    return tuple(_text_device(field, segment, vendor) for segment in text.split(":") if segment)


def render_devices_text(devices: tuple[Device, ...]) -> str:
    """The text form with nine fields a device."""
    return "".join(f"{d.uuid},{d.slots},{d.memory_mib},{d.cores},{d.model},{d.numa},"
                   f"{str(d.healthy).lower()},{d.index},{d.mode}:" for d in devices)


def render_devices_brief(devices: tuple[Device, ...]) -> str:
    """The text form with seven fields a device, without index and mode: the one that HAMi v2.4 can read, and later ones
    up to v2.7, which read no JSON."""
    return "".join(f"{d.uuid},{d.slots},{d.memory_mib},{d.cores},{d.model},{d.numa},{str(d.healthy).lower()}:"
                   for d in devices)


def parse_pair_scores(field: str, text: str) -> Mapping[str, Mapping[str, int]]:
    """How well pairs of devices are linked: ``[{"uuid": id, "score": {other id: score}}]``. Raises: MalformedInput."""
    try:
        entries = msgspec.json.decode(text, type=list[_PairScores])
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedInput(field, text, f"expected a list of uuid and score ({error})") from error
    return {entry.uuid: entry.score for entry in entries}


class _PairScores(msgspec.Struct):
    uuid: str = ""
    score: dict[str, Annotated[int, msgspec.Meta(ge=-INT32_MAX - 1, le=INT32_MAX)]] = {}


def _device(where: str, entry: object, vendor: str) -> Device:
    if not isinstance(entry, dict):
        raise MalformedInput(where, entry, "expected an object with id, count, devmem …")
    fields = {str(key).lower(): value for key, value in entry.items()}
    return Device(
        uuid=_text(where, fields, "id"), vendor=vendor, model=_text(where, fields, "type"),
        slots=_int(where, fields, "count", minimum=0), memory_mib=_int(where, fields, "devmem", minimum=0),
        cores=_int(where, fields, "devcore", minimum=0), index=_int(where, fields, "index", minimum=0),
        numa=_int(where, fields, "numa"), mode=_text(where, fields, "mode") or DEFAULT_MODE,
        healthy=_bool(where, fields, "health"), mig_profiles=_mig_profiles(where, fields.get("migprofiles")),
        info=_object(where, fields, "custominfo"),
    )


def _mig_profiles(where: str, entries: object) -> tuple[MigProfile, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise MalformedInput(f"{where}.migProfiles", entries, "expected a list of objects")
    return tuple(_mig_profile(f"{where}.migProfiles[{i}]", entry) for i, entry in enumerate(entries))


def _mig_profile(where: str, entry: Mapping[str, Any]) -> MigProfile:
    fields = {str(key).lower(): value for key, value in entry.items()}
    places = fields.get("placements") or []
    if not isinstance(places, list) or not all(isinstance(place, dict) for place in places):
        raise MalformedInput(f"{where}.placements", places, "expected a list of start and size")
    return MigProfile(
        name=_text(where, fields, "name"), memory_mib=_int(where, fields, "memorymb", minimum=0),
        cores=_int(where, fields, "core", minimum=0), slices=_int(where, fields, "slicecount", minimum=0),
        placements=tuple(_placement(f"{where}.placements[{i}]", place) for i, place in enumerate(places)),
    )


def _placement(where: str, entry: Mapping[str, Any]) -> Partition:
    fields = {str(key).lower(): value for key, value in entry.items()}
    return Partition(_int(where, fields, "start", minimum=0), _int(where, fields, "size", minimum=0))


def _mig_wire(profile: MigProfile) -> dict[str, Any]:
    return {"name": profile.name, "memoryMB": profile.memory_mib, "core": profile.cores,
            "sliceCount": profile.slices,
            "placements": [{"start": place.start, "size": place.size} for place in profile.placements]}


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value}


def _text(where: str, fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise MalformedInput(f"{where}.{key}", value, "expected a string")
    return value or ""


def _int(where: str, fields: Mapping[str, Any], key: str, minimum: int = -INT32_MAX - 1) -> int:
    value = fields.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= INT32_MAX:
        raise MalformedInput(f"{where}.{key}", value, f"expected an integer from {minimum} to {INT32_MAX}")
    return value


def _bool(where: str, fields: Mapping[str, Any], key: str) -> bool:
    value = fields.get(key)
    if value is not None and not isinstance(value, bool):
        raise MalformedInput(f"{where}.{key}", value, "expected true or false")
    return bool(value)


def _object(where: str, fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = fields.get(key)
    if value is not None and not isinstance(value, dict):
        raise MalformedInput(f"{where}.{key}", value, "expected an object")
    return value or {}


def _text_device(field: str, segment: str, vendor: str) -> Device:
    if "," not in segment:
        raise MalformedInput(field, segment, "malformed node annotation segment")
    parts = segment.split(",")
    if len(parts) not in (7, 9):
        raise MalformedInput(field, segment, f"unexpected field count {len(parts)} in node annotation")
    slots, memory, cores = (_text_amount(field, name, text)
                            for name, text in zip(("count", "memory", "core"), parts[1:4]))
    healthy = parse_bool(parts[6])
    if healthy is None:
        raise MalformedInput(field, parts[6], "invalid health field")
    numa = _text_int(field, "numa", parts[5])
    index = _text_amount(field, "index", parts[7]) if len(parts) == 9 else 0
    return Device(uuid=parts[0], vendor=vendor, model=parts[4], slots=slots, memory_mib=memory, cores=cores,
                  numa=numa, healthy=healthy, index=index, mode=parts[8] if len(parts) == 9 else DEFAULT_MODE)


def _text_int(field: str, name: str, text: str) -> int:
    value = parse_integer(text)
    if value is None:
        raise MalformedInput(field, text, f"invalid {name} field")
    return value


def _text_amount(field: str, name: str, text: str) -> int:
    value = _text_int(field, name, text)
    if value < 0:
        raise MalformedInput(field, text, f"{name} field must not be negative")
    return value
