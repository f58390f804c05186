"""The resize of a bound pod: what its owner asks for, and what the scheduler and the device plugin answer.

The owner writes RESIZE. The scheduler books the larger of what the pod holds and what it is to have, and writes that as
RESIZED and as its allocation; RESIZE_TARGET is there while the pod is to have less. The device plugin enforces what the
pod is to have, and writes RESIZE_APPLIED once that holds and no process uses more. Then the scheduler gives back what
is left over. Each of the texts stands for itself: whoever reads them later goes on where another one has stopped.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from hami.codec.allocation import LONGEST, parse_shares
from hami.codec.documents import decode
from hami.codec.keys import (
    GPU_ALLOCATED,
    RESIZE,
    RESIZE_APPLIED,
    RESIZE_STATUS,
    RESIZE_TARGET,
    RESIZED,
)
from hami.errors import MalformedInput
from hami.model import Allocation
from hami.quantity import INT32_MAX, rounded_up

T = TypeVar("T")

MAX_TEXT = 4096
"""Characters of RESIZE."""
MAX_CONTAINERS = 32
MAX_MESSAGE = 1024
"""Characters of a message; longer ones are cut."""
_PERCENT = re.compile(r"([1-9][0-9]?|100)%")


@dataclass(frozen=True, slots=True)
class Size:
    """The size that a container is to have on each of its devices; ``None``: as it is. *memory_mib*: MiB.
    *memory_percent*: 1 to 100 percent of each device, instead of MiB. *cores*: 1 to 100 percent of each device."""

    memory_mib: int | None = None
    memory_percent: int | None = None
    cores: int | None = None


class ResizeState(enum.StrEnum):
    """The outcome of a resize: its sizes are booked and the node has not confirmed them yet; they are enforced;
    they do not fit now and are tried again; they never can."""

    BOOKED = "Booked"
    APPLIED = "Applied"
    DEFERRED = "Deferred"
    INFEASIBLE = "Infeasible"


class ResizeStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of the scheduler to a resize. *request*: the text of RESIZE that it is about.
    *message*: for people."""

    state: ResizeState
    request: str = ""
    message: str = ""


class AppliedSizes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of a device plugin. *sizes*: the shares that are enforced, as in an allocation. *problem*: why they
    are not those that the pod is to have; empty if they are."""

    sizes: str
    problem: str = ""


class _Size(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    memory: Annotated[str, Meta(max_length=64)] | None = None
    cores: Annotated[int, Meta(ge=1, le=100)] | None = None


_Container = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")]
_SIZES = msgspec.json.Decoder(
    Annotated[dict[_Container, _Size], Meta(min_length=1, max_length=MAX_CONTAINERS)]
)
_STATUS = msgspec.json.Decoder(ResizeStatus)
_APPLIED = msgspec.json.Decoder(AppliedSizes)


def parse_resize(text: str) -> Mapping[str, Size]:
    """The sizes by container in *text*, which anybody who may edit the pod can write.

    Shape: ``{"main": {"memory": "8Gi", "cores": 40}}``; memory is a quantity with a suffix, in bytes and rounded up to
    MiB, or a percentage. Raises: MalformedInput.
    """
    if len(text) > MAX_TEXT:
        raise MalformedInput(RESIZE, text, f"{len(text)} characters, expected at most {MAX_TEXT}")
    sizes = decode(
        RESIZE,
        _SIZES,
        text.encode(errors="surrogatepass"),
        'sizes by container, such as {"main": {"memory": "8Gi", "cores": 40}}',
    )
    return {
        container: make_size(size.memory, size.cores, container)
        for container, size in sizes.items()
    }


def make_size(memory: str | None, cores: int | None, container: str) -> Size:
    """The size of *container* as a user writes it; a number without a unit is MiB, as in requests for devices.

    Raises: MalformedInput.
    """
    if memory is None and cores is None:
        raise MalformedInput(RESIZE, container, "expected memory, cores or both for the container")
    if memory is None:
        return Size(cores=cores)
    if _PERCENT.fullmatch(memory):
        return Size(memory_percent=int(memory[:-1]), cores=cores)
    with contextlib.suppress(MalformedInput):
        mib = rounded_up(f"{memory}Mi" if memory.isdecimal() else memory, "Mi")
        if 0 < mib <= INT32_MAX:
            return Size(memory_mib=mib, cores=cores)
    raise MalformedInput(
        RESIZE, memory, "expected a positive quantity such as 8Gi, or a percentage such as 40%"
    )


def render_resize(sizes: Mapping[str, Size]) -> str:
    """The text that :func:`parse_resize` reads."""
    wire = {}
    for container, size in sizes.items():
        memory = None
        if size.memory_percent is not None:
            memory = f"{size.memory_percent}%"
        elif size.memory_mib is not None:
            memory = f"{size.memory_mib}Mi"
        wire[container] = _Size(memory, size.cores)
    return msgspec.json.encode(wire).decode()


def held_text(annotations: Mapping[str, str]) -> str | None:
    """Returns the text of what a pod holds of GPUs, as in an allocation; ``None`` if it has none. An empty text is one
    of an earlier assignment, which a Binding cannot remove."""
    return annotations.get(RESIZED) or annotations.get(GPU_ALLOCATED)


def wanted_text(annotations: Mapping[str, str]) -> str | None:
    """Returns the text of what a pod is to have of GPUs, which is never more than what it holds."""
    return annotations.get(RESIZE_TARGET) or held_text(annotations)


def shares_in(text: str | None) -> Allocation:
    """Returns the shares in *text*, one of those above; none if there is no text, or it cannot be read."""
    try:
        return parse_shares(GPU_ALLOCATED, text or "")
    except MalformedInput:
        return ()


def excess(annotations: Mapping[str, str]) -> tuple[int, int]:
    """Returns what is still booked for a pod beyond what it is to have: MiB and cores of all its devices. Both are 0 if
    its annotations cannot be read."""
    memory_mib = cores = 0
    text = annotations.get(RESIZE_TARGET)
    if not text:  # as nearly always
        return memory_mib, cores
    for booked, target in zip(shares_in(held_text(annotations)), shares_in(text)):
        for share, smaller in zip(booked, target):
            memory_mib += max(0, share.memory_mib - smaller.memory_mib)
            cores += max(0, share.cores - smaller.cores)
    return memory_mib, cores


def render_status(status: ResizeStatus) -> str:
    """The text that :func:`parse_status` reads."""
    return msgspec.json.encode(
        msgspec.structs.replace(status, message=status.message[:MAX_MESSAGE])
    ).decode()


def parse_status(text: str | None) -> ResizeStatus | None:
    """The status in *text*; ``None`` if there is none, or it cannot be read."""
    return _lenient(RESIZE_STATUS, _STATUS, text)


def render_applied(applied: AppliedSizes) -> str:
    """The text that :func:`parse_applied` reads."""
    return msgspec.json.encode(
        msgspec.structs.replace(applied, problem=applied.problem[:MAX_MESSAGE])
    ).decode()


def parse_applied(text: str | None) -> AppliedSizes | None:
    """The sizes in *text*; ``None`` if there are none, or they cannot be read."""
    return _lenient(RESIZE_APPLIED, _APPLIED, text)


def _lenient(field: str, decoder: msgspec.json.Decoder[T], text: str | None) -> T | None:
    if text is None or len(text) > LONGEST + 6 * MAX_TEXT:
        return None
    try:
        return decode(field, decoder, text.encode(errors="surrogatepass"))
    except MalformedInput:
        return None
