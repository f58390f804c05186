"""Device inventories in node annotations: JSON, and the older text with commas and colons."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hami.codec.documents import convert, decode
from hami.errors import MalformedInput
from hami.model import NOTHING, Device, MigProfile, Partition
from hami.quantity import INT32_MAX, parse_integer

Amount = Annotated[int, Meta(ge=0, le=INT32_MAX, description=f"an integer from 0 to {INT32_MAX}")]
Integer = Annotated[int, Meta(ge=-INT32_MAX - 1, le=INT32_MAX, description="an integer of 32 bits")]
String = Annotated[str, Meta(description="a string")]

MANY = Meta(max_length=64)  # profiles of a device; placements of a profile

DEFAULT_MODE = "hami-core"
MAX_DEVICES = 256  # of a node, over all vendors
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def parse_bool(text: str) -> bool | None:
    """Go's words for true and false; ``None`` for any other. Source: strconv.ParseBool."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    return None


def parse_devices(field: str, text: str, vendor: str) -> tuple[Device, ...]:
    """Devices in either encoding, which the first character identifies. Raises: MalformedInput."""
    start = text.strip()
    if start == "null" or start.startswith(("[", "{")):
        return parse_devices_json(field, text, vendor)
    return parse_devices_text(field, text, vendor)


def parse_devices_json(field: str, text: str, vendor: str) -> tuple[Device, ...]:
    """Devices in the JSON form.

    Shape: an array of objects with ``id index count devmem devcore type numa mode migProfiles health custominfo``; a
    key may be missing or null (zero, false or empty) and is matched case-insensitively; others are ignored.
    Raises: MalformedInput, naming the device and the key, and for more than MAX_DEVICES devices.
    Source: HAMi v2.10, pkg/device/devices.go, UnMarshalNodeDevices.
    """
    check_number(field, text, count_items(text))
    try:
        entries: tuple[_RegisteredDevice, ...] = _EXACT.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        entries = _tolerant(field, text)
    devices = []
    for entry in entries:
        devices.append(
            Device(
                uuid=sys.intern(entry.id),
                vendor=vendor,
                model=sys.intern(entry.type),
                slots=entry.count,
                memory_mib=entry.devmem,
                cores=entry.devcore,
                index=entry.index,
                numa=entry.numa,
                mode=sys.intern(entry.mode or DEFAULT_MODE),
                healthy=entry.health,
                mig_profiles=tuple(map(_mig_profile, entry.mig_profiles)),
                info=entry.custominfo or NOTHING,
            )
        )
    return tuple(devices)


def render_devices_json(devices: Iterable[Device]) -> str:
    """The JSON form, keys in upstream's order, zero values left out."""
    entries = []
    for device in devices:
        entries.append(
            _RegisteredDevice(
                id=device.uuid,
                index=device.index,
                count=device.slots,
                devmem=device.memory_mib,
                devcore=device.cores,
                type=device.model,
                numa=device.numa,
                mode=device.mode,
                health=device.healthy,
                mig_profiles=tuple(map(_registered, device.mig_profiles)),
            )
        )
    return msgspec.json.encode(entries).decode()


def parse_devices_text(field: str, text: str, vendor: str) -> tuple[Device, ...]:
    """Devices in the text form.

    Shape: ``uuid,slots,memory,cores,model,numa,healthy[,index,mode]`` for each device, terminated by ``:``.
    Raises: MalformedInput, with the problem in upstream's words, and for more than MAX_DEVICES devices.
    Source: HAMi v2.10, pkg/device/devices.go, DecodeNodeDevices.
    """
    if ":" not in text:
        raise MalformedInput(field, text, "node annotation missing device separator")
    segments = list(filter(None, text.split(":")))
    check_number(field, text, len(segments))
    return tuple([_text_device(field, segment, vendor) for segment in segments])


def render_devices_brief(devices: Iterable[Device]) -> str:
    """The text form with seven fields per device, without index and mode, which HAMi v2.4 to v2.7 can read."""
    text = ""
    for device in devices:
        text += f"{device.uuid},{device.slots},{device.memory_mib},{device.cores},{device.model},{device.numa},"
        text += f"{str(device.healthy).lower()}:"
    return text


def count_items(text: str) -> int:
    """The length of a JSON array whose items are not decoded; 0 if *text* is no JSON array."""
    try:
        return len(_ITEMS.decode(text))
    except (msgspec.MsgspecError, RecursionError):
        return 0


def check_number(field: str, value: object, devices: int) -> None:
    """Raises: MalformedInput if *value*, that of *field*, says more than MAX_DEVICES devices."""
    if devices > MAX_DEVICES:
        raise MalformedInput(
            field, value, f"{devices} devices, expected at most {MAX_DEVICES} devices on a node"
        )


def parse_pair_scores(field: str, text: str) -> Mapping[str, Mapping[str, int]]:
    """Link scores of device pairs. Shape: ``[{"uuid": id, "score": {other id: score}}]``. Raises: MalformedInput."""
    entries = decode(field, _SCORES, text, "a list of uuid and score")
    return {entry.uuid: entry.score for entry in entries}


_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


class _PairScores(msgspec.Struct):
    uuid: str = ""
    score: dict[str, Integer] = {}


_SCORES = msgspec.json.Decoder(list[_PairScores])


class _RegisteredPlacement(msgspec.Struct):
    start: Amount = 0
    size: Amount = 0


class _RegisteredProfile(
    msgspec.Struct, rename={"memory_mb": "memoryMB", "slice_count": "sliceCount"}
):
    name: String = ""
    memory_mb: Amount = 0
    core: Amount = 0
    slice_count: Amount = 0
    placements: Annotated[tuple[_RegisteredPlacement, ...], MANY] = ()


class _RegisteredDevice(msgspec.Struct, omit_defaults=True, rename={"mig_profiles": "migProfiles"}):
    id: String = ""
    index: Amount = 0
    count: Amount = 0
    devmem: Amount = 0
    devcore: Amount = 0
    type: String = ""
    numa: Integer = 0
    mode: String = ""
    mig_profiles: Annotated[tuple[_RegisteredProfile, ...], MANY] = ()
    health: bool = False
    custominfo: dict[str, Any] = {}


class _ExactPlacement(_RegisteredPlacement, forbid_unknown_fields=True):
    pass


class _ExactProfile(_RegisteredProfile, forbid_unknown_fields=True):
    placements: Annotated[tuple[_ExactPlacement, ...], MANY] = ()


class _ExactDevice(_RegisteredDevice, forbid_unknown_fields=True):
    """A device as device plugins write it. Most are, and are decoded in a third of the time."""

    mig_profiles: Annotated[tuple[_ExactProfile, ...], MANY] = ()


_EXACT = msgspec.json.Decoder(tuple[_ExactDevice, ...])
_FIELDS = (
    *_RegisteredDevice.__struct_encode_fields__,
    *_RegisteredProfile.__struct_encode_fields__,
    *_RegisteredPlacement.__struct_encode_fields__,
)
_KEYS = {key.lower(): key for key in _FIELDS}


def _tolerant(field: str, text: str) -> tuple[_RegisteredDevice, ...]:
    """Returns the devices in *text* with any spelling of keys. Raises: MalformedInput."""
    try:
        document = _canonical(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedInput(field, text, f"not valid JSON ({error})") from error
    if document is None:
        return ()
    if not isinstance(document, list):
        raise MalformedInput(field, text, "expected a JSON array of devices")
    return convert(document, tuple[_RegisteredDevice, ...], lambda path: field + path)


def _canonical(value: Any) -> Any:
    """Returns *value* without nulls, its keys spelled as in the structs; ``custominfo`` is unchanged."""
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if not isinstance(value, dict):
        return value
    members = {}
    for key, member in value.items():
        name = _KEYS.get(key.lower(), key)
        if member is not None:
            members[name] = member if name == "custominfo" else _canonical(member)
    return members


def _mig_profile(entry: _RegisteredProfile) -> MigProfile:
    return MigProfile(
        name=entry.name,
        memory_mib=entry.memory_mb,
        cores=entry.core,
        slices=entry.slice_count,
        placements=tuple(Partition(place.start, place.size) for place in entry.placements),
    )


def _registered(profile: MigProfile) -> _RegisteredProfile:
    return _RegisteredProfile(
        profile.name,
        profile.memory_mib,
        profile.cores,
        profile.slices,
        tuple(_RegisteredPlacement(place.start, place.size) for place in profile.placements),
    )


def _text_device(field: str, segment: str, vendor: str) -> Device:
    if "," not in segment:
        raise MalformedInput(field, segment, "malformed node annotation segment")
    parts = segment.split(",")
    if len(parts) == 7:
        parts += ["0", DEFAULT_MODE]
    if len(parts) != 9:
        raise MalformedInput(
            field, segment, f"unexpected field count {len(parts)} in node annotation"
        )
    slots = _text_amount(field, "count", parts[1])
    memory = _text_amount(field, "memory", parts[2])
    cores = _text_amount(field, "core", parts[3])
    healthy = parse_bool(parts[6])
    if healthy is None:
        raise MalformedInput(field, parts[6], "invalid health field")
    return Device(
        uuid=parts[0],
        vendor=vendor,
        model=parts[4],
        slots=slots,
        memory_mib=memory,
        cores=cores,
        numa=_text_int(field, "numa", parts[5]),
        healthy=healthy,
        index=_text_amount(field, "index", parts[7]),
        mode=parts[8],
    )


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
