"""Liveness of the device plugin that registered a node's devices.

Devices are not schedulable while the kubelet knows their resource and offers none of it, as after a reboot of the node
until the plugin has registered with it: it would reject every pod that requests them. Where it does not know the
resource, they stop being schedulable when a handshake request has been unanswered for a minute, or at once when the
kubelet has withdrawn them. They become schedulable again as soon as the kubelet offers devices, or, where it does not
know them, the plugin answers or registers again. Nothing has to be deleted for that. A handshake that somebody else
deletes, or marks as deleted, is not an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hami.codec.states import HandshakeState, parse_handshake
from hami.state.sighting import Sighting

HANDSHAKE_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class PluginObservation:
    """The state of one vendor's device plugin as its node shows it.

    *handshake*, *register*: annotation texts. *allocatable*: the number of devices that the kubelet offers; ``None`` if
    it does not know their resource.
    """

    handshake: str | None
    register: str
    allocatable: int | None

    @property
    def is_offered(self) -> bool:
        """Reports whether the kubelet offers devices."""
        return bool(self.allocatable)


@dataclass(frozen=True, slots=True)
class PluginLiveness:
    """The latest observation of a device plugin.

    *changed*: when the handshake last changed. *withdrawn*: the kubelet offers none of the devices, or has withdrawn
    them after the last sign of life.
    """

    observation: PluginObservation
    changed: Sighting
    withdrawn: bool = False


def observe(
    earlier: PluginLiveness | None, observation: PluginObservation, clock: float, now: datetime
) -> PluginLiveness:
    """Returns the liveness after *observation* at *clock* (monotonic). *now* is the time of day."""
    offers_none = observation.allocatable == 0
    if earlier is None:
        seen = Sighting(clock, now.timestamp())
        return PluginLiveness(observation, seen, withdrawn=offers_none)
    before = earlier.observation
    changed = earlier.changed
    is_alive = observation.is_offered or observation.register != before.register
    if observation.handshake != before.handshake:
        changed = Sighting(clock)
        if parse_handshake(observation.handshake).state is HandshakeState.REPORTED:
            is_alive = True
    if offers_none:
        return PluginLiveness(observation, changed, withdrawn=True)
    if is_alive:
        return PluginLiveness(observation, changed)
    withdrawn = earlier.withdrawn or before.is_offered
    return PluginLiveness(observation, changed, withdrawn=withdrawn)


def is_schedulable(liveness: PluginLiveness, clock: float) -> bool:
    """Reports whether pods may be placed on the devices. *clock* is monotonic."""
    observation = liveness.observation
    if observation.is_offered:
        return True
    if liveness.withdrawn:
        return False
    handshake = parse_handshake(observation.handshake)
    if handshake.at is None:
        return True
    changed = liveness.changed
    unanswered = max(clock - changed.at, changed.claimed_age(handshake.at.timestamp(), clock))
    return unanswered < HANDSHAKE_TIMEOUT


def needs_handshake_request(liveness: PluginLiveness) -> bool:
    """Reports whether to write a handshake request: none is pending, or the handshake cannot be read."""
    pending = parse_handshake(liveness.observation.handshake).state is HandshakeState.REQUESTED
    return not liveness.withdrawn and not pending
