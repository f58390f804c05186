"""Handshake, node lock and lock-free vendors: the annotations that coordinate the scheduler with device plugins."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from hami.codec.policies import parse_list
from hami.codec.times import render_time
from hami.errors import MalformedInput
from hami.model import PodRef

LOCK_FREE_LIMIT = 4096  # characters
HANDSHAKE_LIMIT = 128  # characters that are read; a report has some 70
_REQUESTING, _REPORTED = "Requesting", "Reported"
_LAYOUTS = ("%Y-%m-%d %H:%M:%S", "%Y.%m.%d %H:%M:%S")


class HandshakeState(enum.Enum):
    """State of a handshake annotation: requested and not answered, answered, or neither."""

    REQUESTED = "requested"
    REPORTED = "reported"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Handshake:
    """A handshake annotation. *at*: when the pending request was written, by the writer's clock and zone."""

    state: HandshakeState
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodeLock:
    """The lock of a node. *holder*: namespace and name of the pod, ``None`` in the oldest form."""

    at: datetime
    holder: tuple[str, str] | None


def parse_handshake(text: str | None) -> Handshake:
    """The state of a handshake; OTHER if absent, ``Deleted_…`` or unreadable.

    Both date forms, that of v2.4 (``2024.11.19 03:10:32``) and the later one with dashes, are read as UTC.
    """
    if text is None:
        return Handshake(HandshakeState.OTHER)
    return _handshake(text[:HANDSHAKE_LIMIT])


@functools.lru_cache(maxsize=4096)  # nodes are observed far more often than their handshakes change
def _handshake(text: str) -> Handshake:
    if text.startswith(_REPORTED) and _REQUESTING not in text:
        return Handshake(HandshakeState.REPORTED)
    if _REQUESTING not in text:
        return Handshake(HandshakeState.OTHER)
    _, _, date = text.partition("_")
    for layout in _LAYOUTS:
        try:
            return Handshake(
                HandshakeState.REQUESTED, datetime.strptime(date, layout).replace(tzinfo=UTC)
            )
        except ValueError:
            continue
    return Handshake(HandshakeState.OTHER)


def render_request(at: datetime) -> str:
    """The request for a device plugin to report."""
    return f"{_REQUESTING}_{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def parse_lock(text: str) -> NodeLock:
    """The node lock ``<RFC 3339>,<namespace>,<pod>``, or the bare time of the oldest form.

    Raises: MalformedInput.
    Source: HAMi v2.10, pkg/util/nodelock/nodelock.go, ParseNodeLock.
    """
    parts = text.split(",")
    if len(parts) not in (1, 3):
        raise MalformedInput(
            "hami.io/mutex.lock",
            text,
            f"malformed lock annotation: expected 3 parts, got {len(parts)}",
        )
    try:
        at = datetime.fromisoformat(parts[0])
    except ValueError as error:
        raise MalformedInput(
            "hami.io/mutex.lock", text, "expected an RFC 3339 time first"
        ) from error
    if at.tzinfo is None:
        raise MalformedInput(
            "hami.io/mutex.lock", text, "expected an RFC 3339 time with a zone first"
        )
    return NodeLock(at, (parts[1], parts[2]) if len(parts) == 3 else None)


def render_lock(at: datetime, *holder: str) -> str:
    """The lock of the pod *holder* (namespace and name), in UTC with second precision; only the time without it."""
    return ",".join((render_time(at), *holder))


def names_pod(lock: str, pod: PodRef) -> bool:
    """Reports whether the node lock *lock* is that of *pod*."""
    return lock.endswith(f",{pod.namespace},{pod.name}")


def parse_lock_free(text: str | None) -> frozenset[str]:
    """The vendors in ``hami.io/lock-free``, as ``hami vendors`` prints them: ``NVIDIA,DCU``; none if absent.

    Names are not checked: one that is no vendor's has no effect. A text of more than 4096 characters names none.
    """
    if text is None or len(text) > LOCK_FREE_LIMIT:
        return frozenset()
    return _lock_free(text)


@functools.lru_cache(maxsize=256)
def _lock_free(text: str) -> frozenset[str]:
    return frozenset(parse_list(text) or ())


def render_lock_free(vendors: Iterable[str]) -> str:
    """The annotation ``hami.io/lock-free`` for the vendors with these keys, sorted."""
    return ",".join(sorted(vendors))
