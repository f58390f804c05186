"""The limits of a container, in the files that the limiter reads and shares: docs/limiter.md describes them.

Pure; ``host`` writes the files.
Source of the region's layout: HAMi-core 1.2, multiprocess_memory_limit.h. HAMi's monitor and library read it, too.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.errors import Rejected
from hami.model import Share
from hami.node import region_layout
from hami.node.region_layout import CURRENT, MAGIC, MAJOR, MAX_DEVICES, MINOR, UUID_SIZE
from hami.quantity import MIB, parse_integer

LIMITS = "limits"
"""Name of the file in which the limiter looks for limits, in its own directory."""
FIRST_LINE = "hami-limits 1"
"""With this line the file begins. A limiter that reads it contains it."""
_SEMAPHORE = 24  # offset of one in the region, and of the other behind slots_used
_UNLOCKED = struct.pack("<QI20x", 1, 128)  # as sem_init leaves a semaphore of several processes
_POLICIES = ("default", "force", "disable")
_DEVICE_LINE = re.compile(r"^device (?P<uuid>[^ \n]+)(?P<words>[^\n]*)", re.MULTILINE)
_BYTES = re.compile(r"(?P<number>[0-9]{1,19})(?P<unit>[kmg]?)", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}


@dataclass(frozen=True, slots=True)
class DeviceLimit:
    """The limits on one device. *memory*: bytes. *cores*: percent; 100 for no limit. *context*: bytes that a context
    takes; 0 if unknown. *cores_most*: percent that may be used while no other container does; 0 or 100 for all."""

    uuid: str
    memory: int
    cores: int
    context: int = 0
    cores_most: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """The limits of a container. *devices*: in the driver's order. *priority*: 0 is the highest. *policy*: when cores
    are limited, ``default``, ``force`` or ``disable``. *log_level*: ``None`` for the limiter's own.
    *compute_by*: by which launches are charged: ``events``, ``nvml`` or ``off``. *compute_of*: what is charged:
    ``launches``, or ``all``, copies included."""

    devices: tuple[DeviceLimit, ...]
    priority: int = 1
    policy: str = "default"
    log_level: int | None = None
    compute_by: str = "events"
    compute_of: str = "launches"


def container_limits(
    config: PluginConfig,
    parts: Sequence[tuple[Card, Share]],
    env: Mapping[str, str],
    context_bytes: Callable[[Card], int] = lambda card: 0,
    cores_most: int | None = None,
) -> ContainerLimits:
    """Returns the limits of a container. *parts*: its shares with their cards. *env*: variables in its specification,
    which may choose what is not enforced on them, and what the webhook sets. *context_bytes*: what a context takes on a
    card; 0 if unknown. *cores_most*: as in :func:`core_limits`.

    Raises: Rejected if it has more devices than the region.
    """
    if len(parts) > MAX_DEVICES:
        raise Rejected(
            f"the limiter supports {MAX_DEVICES} devices in a container, not {len(parts)}"
        )
    in_order = sorted(parts, key=lambda part: part[0].index)
    policy = env.get("GPU_CORE_UTILIZATION_POLICY") or (
        "disable" if config.nvidia.disable_core_limit else "default"
    )
    level = parse_integer(env.get("LIBCUDA_LOG_LEVEL") or config.log_level)
    return ContainerLimits(
        devices=tuple(
            replace(share_limit(share, cores_most), context=context_bytes(card))
            for card, share in in_order
        ),
        priority=task_priority(env),
        policy=policy.lower() if policy.lower() in _POLICIES else "default",
        log_level=None if level is None else min(max(level, 0), 9),
        compute_by=config.nvidia.compute_by,
        compute_of=config.nvidia.compute_of,
    )


def share_limit(share: Share, most: int | None = None) -> DeviceLimit:
    """Returns the limits of a share, without the size of a context. *most*: as in :func:`core_limits`."""
    cores, cores_most = core_limits(share.cores, most)
    return DeviceLimit(share.uuid, share.memory_mib * MIB, cores, cores_most=cores_most)


def core_limits(cores: int, most: int | None) -> tuple[int, int]:
    """Returns ``cores`` and ``cores-most`` of a device in a limits file; 0 for none of the latter.

    *cores*: those of the share; without any, all may be used. *most*: the limit of the pod; ``None`` if it has none.
    The limiter refuses a file whose limit is below the cores, so the larger one counts; with no cores of its own, a
    container has the limit.
    """
    if most is None or most >= 100 or cores >= 100:
        return (cores if 0 < cores < 100 else 100), 0
    return (cores, max(cores, most)) if cores > 0 else (most, most)


def task_priority(env: Mapping[str, str]) -> int:
    """Returns the priority of a container with these variables; 0 is the highest, 1 the default."""
    priority = parse_integer(env.get("CUDA_TASK_PRIORITY", ""))
    return 1 if priority is None else max(priority, 0)


def render_limits(limits: ContainerLimits, region: str) -> str:
    """Returns the text of the limits file. *region*: path of the shared region in the container."""
    lines = [
        FIRST_LINE,
        f"region {region}",
        f"priority {limits.priority}",
        f"policy {limits.policy}",
    ]
    if limits.compute_by != "events":
        lines.append(f"compute-by {limits.compute_by}")
    if limits.compute_of != "launches":
        lines.append(f"compute-of {limits.compute_of}")
    if limits.log_level is not None:
        lines.append(f"log-level {limits.log_level}")
    for device in limits.devices:
        line = f"device {device.uuid} memory={device.memory} cores={device.cores}"
        if 0 < device.cores_most < 100:
            line += f" cores-most={device.cores_most}"
        if device.context:
            line += f" context={device.context}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def parse_limits(text: str) -> ContainerLimits | None:
    """Returns the devices and the priority in the text of a limits file; ``None`` if it is none."""
    first, *lines = text.splitlines() or [""]
    devices, priority = [], 1
    try:
        for word, *values in (line.split() for line in lines if line):
            if word == "priority":
                priority = int(values[0])
            elif word == "device":
                amounts = dict(value.split("=") for value in values[1:])
                devices.append(
                    DeviceLimit(
                        values[0],
                        _parse_bytes(amounts["memory"]),
                        int(amounts["cores"]),
                        cores_most=int(amounts.get("cores-most", 0)),
                    )
                )
    except (ValueError, LookupError):
        return None
    if first != FIRST_LINE:
        return None
    return ContainerLimits(devices=tuple(devices), priority=priority)


def resized_text(text: str, sizes: Iterable[DeviceLimit]) -> str:
    """Returns the text of a limits file with the memory and cores of *sizes* on their devices; all else stays as it is.

    The file keeps its length if the limits fit in it: a shorter text gets empty lines, which all readers skip. So one
    write is all that it takes. What a container may use while it is alone is never less than its cores: the limiter
    refuses such a file.
    """
    by_uuid = {size.uuid: size for size in sizes}

    def resized(line: re.Match[str]) -> str:
        size = by_uuid.get(line["uuid"])
        if size is None:
            return line[0]
        return " ".join(["device", size.uuid, *_resized_words(line["words"].split(), size)])

    changed = _DEVICE_LINE.sub(resized, text)
    if changed == text:
        return text
    return changed.rstrip("\n").ljust(len(text) - 1, "\n") + "\n"


def _resized_words(words: Sequence[str], size: DeviceLimit) -> list[str]:
    missing = {"memory": size.memory, "cores": size.cores}
    amounts = dict(missing)
    resized = []
    for word in words:
        key, _, text = word.partition("=")
        if key in amounts:
            missing.pop(key, None)
            word = f"{key}={amounts[key]}"
        elif key == "cores-most" and (parse_integer(text) or 100) < size.cores:
            word = f"{key}={size.cores}"
        resized.append(word)
    return resized + [f"{key}={amount}" for key, amount in missing.items()]


def _parse_bytes(text: str) -> int:
    """Returns the bytes in *text*. Raises: ValueError."""
    if (parts := _BYTES.fullmatch(text)) is None:
        raise ValueError(text)
    return int(parts["number"]) << _UNITS[parts["unit"].lower()]


def region_parts(limits: ContainerLimits) -> dict[int, bytes]:
    """Returns what a shared region without processes holds, by offset: the rest of its two megabytes is zero. Limits in
    it are preferred to those in the environment, by HAMi's library as well."""
    head = bytearray(CURRENT.slots)
    struct.pack_into("<III", head, 0, MAGIC, MAJOR, MINOR)
    struct.pack_into("<Q", head, CURRENT.device_count, len(limits.devices))
    for place, device in enumerate(limits.devices):
        struct.pack_into(
            f"<{UUID_SIZE}s", head, CURRENT.uuids + UUID_SIZE * place, device.uuid.encode()
        )
        struct.pack_into("<Q", head, CURRENT.memory_limits + 8 * place, device.memory)
        struct.pack_into("<Q", head, CURRENT.core_limits + 8 * place, device.cores)
    tail = bytearray(CURRENT.size - CURRENT.slots_used)
    struct.pack_into("<i", tail, region_layout.SWITCH, 1)
    struct.pack_into("<i", tail, region_layout.PRIORITY, limits.priority)
    for part in (head, tail):
        part[_SEMAPHORE : _SEMAPHORE + len(_UNLOCKED)] = _UNLOCKED
    return {0: bytes(head), CURRENT.slots_used: bytes(tail)}
