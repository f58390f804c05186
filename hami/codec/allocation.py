"""A pod's allocation: the device shares of each container, as in the pod's annotations."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence

from hami.errors import MalformedInput
from hami.model import Allocation, Container, Share
from hami.quantity import parse_integer

# An allocation is written to two of a pod's annotations, for which the API server allows 256 KiB together. That is
# sufficient for 2,048 shares, such as 16 devices in each of 128 containers. Parsing that takes some 10 ms.
LONGEST = 131_072  # characters
MOST = 2048  # shares, and also containers
# Parsed, a text takes up to 20 times as much memory; 512 characters are 8 shares.
LONGEST_CACHED = 512
# Longer texts are parsed before a lock is taken and used under it: those of one pod are remembered until then.
RECENT = 4


def parse_shares(field: str, text: str) -> tuple[tuple[Share, ...], ...]:
    """Shares for each container, init containers first.

    Shape: for each container ``uuid,type,memory,cores:`` for each share, then ``;``. Placeholders without a uuid
    (HAMi up to v2.6) are dropped; fields after the fourth are ignored.
    Raises: MalformedInput: one unreadable share makes the whole text unreadable, and so does a negative amount,
    which would make room where there is none. A text that is too long is not read at all.
    Source: HAMi v2.10, pkg/device/devices.go, DecodePodDevices.
    """
    if len(text) <= LONGEST_CACHED:
        return _cached_shares(field, text)
    if len(text) > LONGEST or text.count(":") > MOST or text.count(";") > MOST:
        raise MalformedInput(
            field,
            text,
            f"expected at most {LONGEST} characters, {MOST} shares and {MOST} containers",
        )
    shares = _recent_shares(field, text)
    if isinstance(shares, MalformedInput):
        raise shares.with_traceback(None)  # each raise adds to the one that is remembered
    return shares


def _shares(field: str, text: str) -> tuple[tuple[Share, ...], ...]:
    entries = text.split(";")
    if entries[-1] == "":
        entries.pop()
    return tuple([_container_shares(field, entry) for entry in entries])


def _container_shares(field: str, entry: str) -> tuple[Share, ...]:
    shares = []
    for part in entry.split(":"):
        if "," in part:
            share = _share(field, part)
            if share.uuid:
                shares.append(share)
    return tuple(shares)


@functools.lru_cache(maxsize=RECENT)
def _recent_shares(field: str, text: str) -> tuple[tuple[Share, ...], ...] | MalformedInput:
    """Returns the shares, or the error: it takes as long to find."""
    try:
        return _shares(field, text)
    except MalformedInput as error:
        return error


_cached_shares = functools.lru_cache(maxsize=4096)(_shares)


def render_shares(containers: Allocation) -> str:
    """The text that :func:`parse_shares` reads; a container without shares is the bare ``;``."""
    text = ""
    for shares in containers:
        for share in shares:
            text += f"{share.uuid},{share.type},{share.memory_mib},{share.cores}:"
        text += ";"
    return text


def container_positions(
    containers: Sequence[Container], allocation: Allocation, requesting: Sequence[str]
) -> Mapping[str, int]:
    """The position in *allocation* of the shares of each of *containers* that has some, by name.

    They belong, in order, to the containers *requesting* devices, by name: HAMi v2.10 leaves out containers without
    devices, and versions up to v2.8 init containers. If there are not as many, each container has the entry in its
    place; if there is not one for each, none can be told.
    """
    filled = [position for position, shares in enumerate(allocation) if shares]
    if len(filled) == len(requesting):
        return dict(zip(requesting, filled))
    if len(allocation) == len(containers):
        return {containers[position].name: position for position in filled}
    return {}


def _share(field: str, part: str) -> Share:
    fields = part.split(",")
    if len(fields) < 4:
        raise MalformedInput(
            field,
            part,
            "pod annotation format error, missing fields, do not use nodeName in task spec",
        )
    memory, cores = _amount(field, "memory", fields[2]), _amount(field, "core", fields[3])
    return Share(sys.intern(fields[0]), sys.intern(fields[1]), memory, cores)


def _amount(field: str, name: str, text: str) -> int:
    value = parse_integer(text)
    if value is None or value < 0:
        raise MalformedInput(field, text, f"invalid {name} field")
    return value
