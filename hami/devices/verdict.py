"""The verdict on a card: what the driver asks for decides, and where it does not say, the XIDs that it has reported.

No I/O and no clock: a card is described by a `Look`.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass

import msgspec

from hami.codec.health import DeviceHealth

KEEP_S = 29.0
"""Seconds for which a verdict stays while the driver does not answer; with those until the next look, 30 at most."""
XID_S = 60.0
"""Seconds after an XID in which a fault is ascribed to it."""
FLAPS, FLAP_S, REST_S = 3, 600.0, 1800.0
"""A card that becomes unhealthy so often within so many seconds stays unhealthy for so many more after the last time:
else each pod that is placed there fails, and everybody hears of it for ever."""
LOST = DeviceHealth(
    cause="the driver has lost the card",
    remedy="reset the GPU, or reboot the node",
    harms_pods=True,
)
GONE = DeviceHealth(
    cause="no longer listed by the driver",
    remedy="reset the GPU, or reboot the node",
    harms_pods=True,
)
_RESET_REQUIRED = DeviceHealth(
    cause="the driver refuses calls until a reset", remedy="reset the GPU", harms_pods=True
)
_REMAP_FAILED = DeviceHealth(cause="remapping of memory rows has failed", remedy="replace the card")
_UNSTABLE = "three times within ten minutes, so it counts for half an hour"
_MIG_PENDING = DeviceHealth(
    cause="MIG mode changes at the next reset of the card", remedy="reset the GPU"
)


class RecoveryAction(enum.IntEnum):
    """The action that the driver asks for: nvmlDeviceGpuRecoveryAction_t of nvml.h (CUDA 13.5), field 230.

    The field and its event came with release 570, RECOVER_IMEX_DOMAIN with 595, the last two with 615.
    """

    NONE = 0  # "No action needed"
    GPU_RESET = 1  # "Reset Gpu"
    NODE_REBOOT = 2  # "Reboot Node"
    DRAIN_P2P = 3  # "Drain P2P"
    DRAIN_AND_RESET = 4  # "Drain P2P and Reset Gpu"
    RECOVER_IMEX_DOMAIN = 5  # "Recover IMEX Domain."
    BUS_RESET = 6  # "Reset the GPU's PCIe bus"
    SYSTEM_REBOOT = 7  # "Reboot the system"


_REMEDIES = {
    RecoveryAction.GPU_RESET: "reset the GPU",
    RecoveryAction.NODE_REBOOT: "reboot the node",
    RecoveryAction.DRAIN_P2P: "drain peer-to-peer traffic",
    RecoveryAction.DRAIN_AND_RESET: "drain peer-to-peer traffic, then reset the GPU",
    RecoveryAction.BUS_RESET: "reset the PCIe bus of the GPU",
    RecoveryAction.SYSTEM_REBOOT: "reboot the system",
}
_OF_THE_CARD = frozenset(RecoveryAction) - {RecoveryAction.NONE, RecoveryAction.RECOVER_IMEX_DOMAIN}
"""Not the IMEX domain: it is shared by nodes, and a card outside of it computes."""
_HARMFUL = frozenset(
    {
        RecoveryAction.GPU_RESET,
        RecoveryAction.NODE_REBOOT,
        RecoveryAction.BUS_RESET,
        RecoveryAction.SYSTEM_REBOOT,
    }
)
"""With the others, work in progress goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The answers of the driver about a card."""

    action: int | None = None
    """The recovery action; ``None``: the driver has none."""
    is_listed: bool = True
    is_lost: bool = False
    requires_reset: bool = False
    has_remap_failed: bool = False
    is_mig_pending: bool = False
    """MIG mode and the mode after the next reset differ."""
    error: str = ""
    """Why the driver does not say; then the rest is unknown."""

    @property
    def is_down(self) -> bool:
        """Whether the card cannot be used before something has reset it."""
        return self.is_lost or self.requires_reset or not self.is_listed


class CardVerdict:
    """The verdict on one card, after each look and each XID. For one thread."""

    def __init__(self, driver: str, restored: DeviceHealth | None = None) -> None:
        """*driver*: identifies the loaded driver. *restored*: the last verdict of an earlier process, which an XID of
        another driver does not concern."""
        self._driver = driver
        if restored is not None and restored.driver not in ("", driver):
            restored = None
        self._of_xid: DeviceHealth | None = None  # until a reset is seen
        if restored is not None and restored.driver:
            self._of_xid = restored
        self._fault: DeviceHealth | None = None  # as the last look that succeeded tells it
        self._shown = restored  # the same, with the XID before it
        self._has_word: bool | None = (
            None  # whether the driver has a recovery action; None: not known
        )
        self._was_down = False
        self._failing_since: float | None = None
        self._xid: tuple[str, float] | None = None
        self._onsets: deque[float] = deque(maxlen=FLAPS)  # when the card became unhealthy
        self._latest: DeviceHealth | None = None  # the verdict of the last look
        self._last_fault = GONE
        self._rests_until = -math.inf

    def look(self, look: Look, now: float) -> DeviceHealth | None:
        """Returns why the card is unhealthy; ``None`` if it is healthy. *now*: monotonic seconds."""
        health = self._judge(look, now)
        if health is not None:
            self._last_fault = health
            if self._latest is None:
                self._onsets.append(now)
                if len(self._onsets) == FLAPS and now - self._onsets[0] <= FLAP_S:
                    self._rests_until = now + REST_S
        self._latest = health
        if now >= self._rests_until:
            return health
        cause = f"{self._last_fault.cause}; {_UNSTABLE}"
        return msgspec.structs.replace(self._last_fault, cause=cause)

    def _judge(self, look: Look, now: float) -> DeviceHealth | None:
        """Returns what the look, and those before it, say against the card."""
        if look.error:
            return self._kept(look.error, now)
        self._failing_since = None
        if not look.is_down:
            self._has_word = look.action is not None
            if self._has_word or self._was_down:
                self._of_xid = None
        self._was_down = look.is_down
        fault = _fault(look) or self._of_xid
        if fault is None and self._fault is not None:
            self._xid = None  # what comes later has another cause
        if fault != self._fault:
            self._fault = fault
            self._shown = self._after_xid(fault, now)
        elif fault is None:
            self._shown = None
        return self._shown

    def note_xid(self, text: str, *, is_critical: bool, now: float) -> None:
        """Takes note of an XID, *text*, which counts at the next look. *is_critical*: it makes the card unhealthy, if
        the driver does not say what the card needs."""
        self._xid = text, now
        if is_critical and not self._has_word and self._of_xid is None:
            self._of_xid = DeviceHealth(
                cause=text, remedy="reset the GPU", harms_pods=True, driver=self._driver
            )

    def note_driver(self, driver: str) -> None:
        """Takes note of the driver that is loaded: another one has reset the card."""
        if driver != self._driver:
            self._driver = driver
            self._of_xid = None

    def _kept(self, error: str, now: float) -> DeviceHealth | None:
        """Returns the last verdict, for a while."""
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since < KEEP_S:
            return self._shown or self._of_xid
        return DeviceHealth(cause=f"the driver does not tell the state of the card: {error}")

    def _after_xid(self, fault: DeviceHealth | None, now: float) -> DeviceHealth | None:
        if fault is None or fault is self._of_xid or self._xid is None:
            return fault
        text, at = self._xid
        if now - at > XID_S:
            return fault
        return msgspec.structs.replace(fault, cause=f"{fault.cause} (after {text})")


def _fault(look: Look) -> DeviceHealth | None:
    """Returns what a look says against a card: the first line that applies."""
    if not look.is_listed:
        return GONE
    if look.is_lost:
        return LOST
    if look.requires_reset:
        return _RESET_REQUIRED
    if look.action is not None and is_unhealthy(look.action):
        return _asked(look.action)
    if look.action is None and look.has_remap_failed:
        return _REMAP_FAILED
    if look.is_mig_pending:
        return _MIG_PENDING
    return None


def is_unhealthy(action: int) -> bool:
    """Reports whether a card whose driver asks for *action* is unhealthy. An action that is not known is one."""
    return action in _OF_THE_CARD or action not in frozenset(RecoveryAction)


def _asked(action: int) -> DeviceHealth:
    remedy = f"recovery action {action}: see the manual of the driver"
    if action in _OF_THE_CARD:
        remedy = _REMEDIES[RecoveryAction(action)]
    return DeviceHealth(
        cause=f"the driver asks: {remedy}", remedy=remedy, harms_pods=action in _HARMFUL
    )
