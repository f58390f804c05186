"""Whether a node's registered devices are offered: is the device plugin that wrote them still there?

A plugin is given up when the kubelet offers none of its devices and a request to report has gone unanswered for a
minute, or at once when the kubelet has just taken them back. It is believed again as soon as the kubelet offers
devices, or the plugin reports or registers anew; nothing needs to be deleted for that, so nothing flaps, and what
others delete or mark as deleted is no sign of life.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from hami.codec.states import HandshakeState, parse_handshake

__all__ = ["HANDSHAKE_TIMEOUT", "Signs", "Vitals", "examine", "is_offered", "wants_request"]

HANDSHAKE_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Signs:
    """What a node shows of one vendor's plugin: its handshake and register texts, and how many devices the kubelet
    offers (0 if it names none)."""

    handshake: str | None
    register: str
    allocatable: int


@dataclass(frozen=True, slots=True)
class Vitals:
    """The latest signs, since when (seconds on a steady clock) the handshake has read so, and whether the kubelet
    took the devices back since the plugin last gave a sign of life."""

    signs: Signs
    since: float
    withdrawn: bool = False


def examine(known: Vitals | None, signs: Signs, clock: float) -> Vitals:
    """The vitals after *signs* were seen at *clock*."""
    if known is None:
        return Vitals(signs, clock)
    before = known.signs
    since = known.since if signs.handshake == before.handshake else clock
    answered = parse_handshake(signs.handshake).state is HandshakeState.REPORTED
    reported = answered and signs.handshake != before.handshake
    if signs.allocatable > 0 or reported or signs.register != before.register:
        return Vitals(signs, since)
    return replace(known, signs=signs, since=since, withdrawn=known.withdrawn or before.allocatable > 0)


def is_offered(vitals: Vitals, clock: float, now: datetime) -> bool:
    """Pods may be placed on the devices. *clock* is steady, *now* is the time of day."""
    signs = vitals.signs
    if signs.allocatable > 0:
        return True
    if vitals.withdrawn:
        return False
    handshake = parse_handshake(signs.handshake)
    if handshake.at is None:
        return True
    unanswered = max(clock - vitals.since, (now - handshake.at).total_seconds())
    return unanswered < HANDSHAKE_TIMEOUT


def wants_request(vitals: Vitals) -> bool:
    """The plugin should be asked to report: nobody is asking now, or what stands there cannot be read."""
    asked = parse_handshake(vitals.signs.handshake).state is HandshakeState.REQUESTED
    return not vitals.withdrawn and not asked
