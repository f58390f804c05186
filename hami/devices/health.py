"""Asks the driver for the health of the cards, at intervals and after each of its events.

nvml.h (CUDA 13.5) says of the parts that are asked for::

    #define NVML_FI_DEV_GET_GPU_RECOVERY_ACTION      230 //!< GPU Recovery action. See nvmlDeviceGpuRecoveryAction_t
    #define nvmlEventTypeXidCriticalError            0x0000000000000008LL //!< XID critical error event.
    #define nvmlEventTypeDramRetirementFailure       0x0000000000000800LL //!< DRAM retirement failure event.
    #define nvmlEventTypeFatalPoisonError            0x0000000000002000LL //!< Fatal poison error event.
    #define nvmlEventTypeGpuUnavailableError         0x0000000000004000LL //!< GPU unavailable error event.
    #define nvmlEventTypeGpuRecoveryAction           0x0000000000008000LL //!< GPU recovery action event.
    NVML_ERROR_GPU_IS_LOST = 15,       //!< The GPU has fallen off the bus or has otherwise become inaccessible
    NVML_ERROR_RESET_REQUIRED = 16,    //!< The GPU requires a reset before it can be used again

An event does not say what the driver asks for. The numbers are written out: older nvidia-ml-py lack some of the names.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hami.codec.health import DeviceHealth
from hami.devices.cards import HealthListener, XidEvent
from hami.devices.nvml_library import card_handles, decode, is_unsupported, needs_new_process
from hami.devices.verdict import CardVerdict, Look
from hami.devices.xids import DISABLE, ENABLE, XidRules, xid_kind
from hami.runtime.once import OncePerKey

log = logging.getLogger(__name__)

POLL_S = 5.0
"""Seconds between two looks at the cards."""
RETRY_S = 1.0
"""The same after an error."""
PAUSE_S = 0.5
"""Seconds between two looks while there are events: a program may cause thousands."""
EVENT_TIMEOUT_MS = 1000
"""Milliseconds of one wait for an event. A stop takes at most as long."""
RECOVERY_ACTION = 230
XID = 0x8
_EVENTS = XID | 0x800 | 0x2000 | 0x4000 | 0x8000
_NO_INSTANCE = 0xFFFFFFFF


def loaded_driver(root: Path = Path("/")) -> str:
    """Returns what identifies the driver that the kernel has loaded: another after a reboot, or when it is loaded
    again, as the kernel does not use the inodes of ``/sys`` again. It has 16 characters."""
    boot = b""
    with suppress(OSError):
        boot = (root / "proc/sys/kernel/random/boot_id").read_bytes()
    inode = 0
    with suppress(OSError):
        inode = (root / "sys/module/nvidia").stat().st_ino
    return hashlib.sha256(b"%s/%d" % (boot, inode)).hexdigest()[:16]


class HealthWatch:
    """Reports the health of the cards. For one thread at a time."""

    def __init__(
        self,
        nvml: Any,
        rules: XidRules,
        *,
        clock: Callable[[], float] = time.monotonic,
        driver: Callable[[], str] = loaded_driver,
    ) -> None:
        """*nvml*: the module pynvml. *clock*: monotonic seconds. *driver*: identifies the loaded driver."""
        self._nvml = nvml
        self._rules = rules
        self._clock = clock
        self._driver = driver
        self._events = CardEvents(nvml)
        self._verdicts: dict[str, CardVerdict] = {}
        self._reported = OncePerKey()
        self._skipped = OncePerKey()
        self._is_failing = False  # all calls of the driver
        self._looked_at = self._due = clock()  # of the last look, and of the next one

    def look(
        self, listener: HealthListener, restored: Mapping[str, DeviceHealth] | None = None
    ) -> None:
        """Looks at all cards once, and reports those whose health has changed. *restored*: the health of cards when an
        earlier process looked."""
        if self._rules.is_off:
            return
        driver = self._driver()
        for uuid, health in (restored or {}).items():
            self._verdicts[uuid] = CardVerdict(driver, health)
        self._looked_at = self._clock()
        self._due = self._looked_at + POLL_S
        try:
            found, _ = card_handles(self._nvml, self._skipped)
            handles = {uuid: handle for _, uuid, handle in found}
            looks = {uuid: self._ask(uuid, handle) for uuid, handle in handles.items()}
        except self._nvml.NVMLError as error:
            self._fail(error, listener)
            return
        if self._is_failing:
            self._is_failing = False
            self._reported.clear("")
            for verdict in self._verdicts.values():
                verdict.note_driver(driver)
        self._judge(looks, driver, listener)

    def run(
        self,
        listener: HealthListener,
        stopped: threading.Event,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Watches until *stopped*, or returns at once if nothing need be watched."""
        if self._rules.is_off:
            log.warning("health is not watched", extra={"reason": f"{DISABLE} disables all XIDs"})
            return
        self._due = self._clock()
        try:
            while not stopped.is_set():
                beat()
                if self._clock() >= self._due:
                    self.look(listener)
                self._wait(listener, stopped)
        finally:
            self._events.close()

    def _judge(self, looks: Mapping[str, Look], driver: str, listener: HealthListener) -> None:
        """Reports what *looks* at the cards say."""
        now = self._clock()
        for uuid in looks:
            if uuid not in self._verdicts:
                self._verdicts[uuid] = CardVerdict(driver)
        for uuid, verdict in self._verdicts.items():
            look = looks.get(uuid, Look(is_listed=False))
            health = verdict.look(look, now)
            if look.error:
                self._due = now + RETRY_S
            if self._reported.is_new(uuid, (health, look.action)):
                listener.report(uuid, health, look.action)
            self._note_rules(look)

    def _note_rules(self, look: Look) -> None:
        """Logs that the variables for XIDs have no effect, once."""
        if look.action is None or self._rules == XidRules():
            return
        if self._reported.is_new(DISABLE):
            reason = "the driver says what a card needs"
            log.warning(f"{DISABLE} and {ENABLE} have no effect", extra={"reason": reason})

    def _fail(self, error: Any, listener: HealthListener) -> None:
        """Reports that nobody knows the health of any card."""
        self._is_failing = True
        self._due = self._clock() + RETRY_S
        self._events.close()
        health = DeviceHealth(cause=f"the driver does not tell the state of the cards: {error}")
        if self._reported.is_new("", health):
            self._reported.keep_only([""])
            listener.report("", health, None)

    def _ask(self, uuid: str, handle: Any) -> Look:
        """Returns what the driver says of a card, and registers for its events. Raises: NVMLError if only a new process
        can use the driver."""
        try:
            look = self._read(handle)
        except self._nvml.NVMLError as error:
            return self._look_of(error)
        try:
            self._events.register(uuid, handle)
        except self._nvml.NVMLError as error:
            refused = self._look_of(error)
            if look.action is None or refused.is_down:
                return refused
        return look

    def _look_of(self, error: Any) -> Look:
        """Returns what *error* says of the card for which a call has failed. Raises: it, if only a new process can use
        the driver."""
        nvml = self._nvml
        if needs_new_process(nvml, error):
            raise error
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            return Look(is_lost=True)
        if error.value == nvml.NVML_ERROR_RESET_REQUIRED:
            return Look(requires_reset=True)
        return Look(error=str(error))

    def _read(self, handle: Any) -> Look:
        """Asks for all that a look has. Raises: NVMLError."""
        nvml = self._nvml
        action = self._recovery_action(handle)
        current, pending = self._supported(lambda: nvml.nvmlDeviceGetMigMode(handle), (0, 0))
        has_failed = 0
        if action is None:
            rows = self._supported(lambda: nvml.nvmlDeviceGetRemappedRows(handle), (0,) * 4)
            has_failed = rows[3]
        return Look(
            action=action,
            is_mig_pending=current != pending,
            has_remap_failed=bool(has_failed),
        )

    def _recovery_action(self, handle: Any) -> int | None:
        """Returns what the driver asks for; ``None`` if it does not know the field. Raises: NVMLError.

        nvml.h: NVML_SUCCESS "if any values in values were populated. Note that you must check the nvmlReturn field of
        each value for each individual status".
        """
        nvml = self._nvml
        values = self._supported(
            lambda: nvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION]), None
        )
        if values is None:
            return None
        status = values[0].nvmlReturn
        if status == nvml.NVML_SUCCESS:
            return int(values[0].value.uiVal)
        if status in (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_INVALID_ARGUMENT,  # a number that it has never heard of
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        ):
            return None
        raise nvml.NVMLError(status)

    def _supported(self, call: Callable[[], Any], otherwise: Any) -> Any:
        """Returns the result of *call*; *otherwise* if the card or the driver lacks the function. Raises: NVMLError."""
        try:
            return call()
        except self._nvml.NVMLError as error:
            if not is_unsupported(self._nvml, error):
                raise
            return otherwise

    def _wait(self, listener: HealthListener, stopped: threading.Event) -> None:
        """Waits for one event, or until the next look is due."""
        seconds = min(EVENT_TIMEOUT_MS / 1000, max(0.0, self._due - self._clock()))
        try:
            event = self._events.wait(seconds, stopped)
        except self._nvml.NVMLError as error:
            log.warning("health events interrupted", extra={"reason": str(error)})
            self._events.close()
            self._due = self._clock()
            stopped.wait(RETRY_S)
            return
        if event is None:
            return
        if event.eventType == XID:
            self._note_xid(event, listener)
        self._due = min(self._due, max(self._clock(), self._looked_at + PAUSE_S))

    def _note_xid(self, event: Any, listener: HealthListener) -> None:
        xid = int(event.eventData)
        instance = None
        text = f"XID {xid}"
        if (event.gpuInstanceId, event.computeInstanceId) != (_NO_INSTANCE, _NO_INSTANCE):
            instance = event.gpuInstanceId, event.computeInstanceId
            text += f" in MIG instance {event.gpuInstanceId}/{event.computeInstanceId}"
        uuid = ""
        try:
            uuid = decode(self._nvml.nvmlDeviceGetUUID(event.device))
        except self._nvml.NVMLError as error:
            text += f" on an unknown card: {error}"
        log.warning("XID", extra={"card": uuid, "xid": xid, "instance": instance})
        is_critical = self._rules.is_critical(xid)
        for card, verdict in self._verdicts.items():
            if uuid in ("", card):
                verdict.note_xid(text, is_critical=is_critical, now=self._clock())
        listener.report_xid(XidEvent(gpu=uuid, xid=xid, kind=xid_kind(xid), instance=instance))


class CardEvents:
    """The events of the cards: registers for each card once. For one thread."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._registered: set[str] = set()
        self._is_supported = True

    def register(self, uuid: str, handle: Any) -> None:
        """Registers for the events of a card, unless that was done, or there are none. Raises: NVMLError."""
        if uuid in self._registered or not self._is_supported:
            return
        nvml = self._nvml
        try:
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            if not is_unsupported(nvml, error):
                raise
            log.info("the driver has no events", extra={"reason": str(error)})
            self._is_supported = False
            return
        try:
            types = nvml.nvmlDeviceGetSupportedEventTypes(handle) & _EVENTS
            if types:
                nvml.nvmlDeviceRegisterEvents(handle, types, self._events)
        except nvml.NVMLError as error:
            if not is_unsupported(nvml, error):
                raise
            log.info("card has no health events", extra={"card": uuid, "reason": str(error)})
        self._registered.add(uuid)

    def wait(self, seconds: float, stopped: threading.Event) -> Any:
        """Returns the next event; ``None`` if there is none within so many *seconds*. Raises: NVMLError."""
        if self._events is None:
            stopped.wait(seconds)
            return None
        try:
            return self._nvml.nvmlEventSetWait(self._events, max(1, int(seconds * 1000)))
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_TIMEOUT:
                return None
            raise

    def close(self) -> None:
        """Forgets all registrations; waiting events are lost."""
        if self._events is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
        self._events = None
        self._registered.clear()
