"""Watches the driver's events for XID errors, and decides which of them make a card unhealthy.

XIDs that applications cause are ignored. Operators extend or shorten that list by environment variables.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/rm/health.go.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hami.codec.policies import parse_list
from hami.devices.cards import HealthReport
from hami.devices.nvml_library import card_handles, decode, is_unsupported
from hami.errors import MalformedInput
from hami.runtime.once import OncePerKey

log = logging.getLogger(__name__)

EVENT_TIMEOUT_MS = 1000  # of one wait; a stop takes at most as long
PAUSE_S = 1.0
RETRY_S = 5.0
_NO_INSTANCE = 0xFFFFFFFF
DISABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE = "DP_ENABLE_HEALTHCHECKS"

_APPLICATION_XIDS = frozenset(
    {
        13,  # graphics engine exception
        31,  # GPU memory page fault
        43,  # GPU stopped processing
        45,  # preemptive cleanup, due to previous errors
        68,  # video processor exception
        109,  # context switch timeout
    }
)
_ALL = frozenset({"all", "xids"})


@dataclass(frozen=True, slots=True)
class XidRules:
    """The XIDs that make a card unhealthy. *enabled* overrides *ignored*. None means all XIDs, for both."""

    ignored: frozenset[int] | None = _APPLICATION_XIDS
    enabled: frozenset[int] | None = frozenset()

    def is_critical(self, xid: int) -> bool:
        """Reports whether a card with this *xid* is unhealthy."""
        if self.enabled is None or xid in self.enabled:
            return True
        return self.ignored is not None and xid not in self.ignored

    @property
    def is_off(self) -> bool:
        """Whether every XID is ignored, so that health need not be watched."""
        return self.ignored is None and self.enabled is not None and not self.enabled


def parse_xid_rules(environ: Mapping[str, str]) -> XidRules:
    """Returns the rules of ``DP_DISABLE_HEALTHCHECKS`` and ``DP_ENABLE_HEALTHCHECKS``.

    Shape: XIDs separated by commas; or ``all`` (the first also ``xids``) anywhere among them. Unlike upstream, enabled
    XIDs count even if all are disabled.
    Raises: MalformedInput, naming the variable.
    """
    disabled, enabled = _words(environ.get(DISABLE, "")), _words(environ.get(ENABLE, ""))
    return XidRules(
        ignored=None if _ALL & disabled else _APPLICATION_XIDS | _xids(DISABLE, disabled),
        enabled=None if "all" in enabled else _xids(ENABLE, enabled),
    )


class XidWatch:
    """Reports cards with a critical XID, permanently: the driver never says that an error is over. Also reports cards
    that cannot be watched, until they can. For one thread."""

    def __init__(self, nvml: Any, rules: XidRules) -> None:
        self._nvml = nvml
        self._rules = rules
        self._failed: dict[
            str, str
        ] = {}  # permanent reasons by UUID; an empty UUID means all cards
        self._reported = OncePerKey()
        self._skipped = OncePerKey()

    def run(
        self,
        report: HealthReport,
        stopped: threading.Event,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Watches until *stopped*, or returns at once if nothing can or need be watched."""
        if self._rules.is_off:
            log.info("health not watched: all XIDs are ignored")
            return
        while not stopped.is_set():
            beat()
            events = None
            try:
                events = self._nvml.nvmlEventSetCreate()
                is_complete = self._register(events, report)
            except self._nvml.NVMLError as error:
                if is_unsupported(self._nvml, error):
                    log.info(
                        "health not watched: the driver has no events", extra={"reason": str(error)}
                    )
                    return
                report("", f"health cannot be watched: {error}")
                self._reported.keep_only(())
                stopped.wait(RETRY_S)
            else:
                self._receive(events, is_complete, report, stopped, beat)
            finally:
                if events is not None:
                    with suppress(self._nvml.NVMLError):
                        self._nvml.nvmlEventSetFree(events)

    def _register(self, events: Any, report: HealthReport) -> bool:
        """Registers all cards that can be watched. Reports whether those are all cards."""
        handles, count = card_handles(self._nvml, self._skipped)
        registered = [
            self._register_card(uuid, handle, events, report) for _, uuid, handle in handles
        ]
        return sum(registered) == count

    def _register_card(self, uuid: str, handle: Any, events: Any, report: HealthReport) -> bool:
        nvml = self._nvml
        try:
            if (
                wanted := nvml.nvmlDeviceGetSupportedEventTypes(handle)
                & nvml.nvmlEventTypeXidCriticalError
            ):
                nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
        except nvml.NVMLError as error:
            if not is_unsupported(nvml, error):
                self._report(uuid, f"health cannot be watched: {error}", report)
                return False
            log.info("card has no health events", extra={"card": uuid, "reason": str(error)})
        self._report(uuid, "", report)
        return True

    def _report(self, uuid: str, reason: str, report: HealthReport) -> None:
        """Reports a change of a card's health. A permanent reason overrides *reason*."""
        current = self._failed.get(uuid) or self._failed.get("") or reason
        if self._reported.is_new(uuid, current):
            report(uuid, current)

    def _receive(
        self,
        events: Any,
        is_complete: bool,
        report: HealthReport,
        stopped: threading.Event,
        beat: Callable[[], None],
    ) -> None:
        """Handles events until *stopped*, or until a new registration is due: after an error, or to add cards."""
        nvml = self._nvml
        remaining_ms = RETRY_S * 1000
        while not stopped.is_set() and (is_complete or remaining_ms > 0):
            beat()
            try:
                event = nvml.nvmlEventSetWait(events, EVENT_TIMEOUT_MS)
            except nvml.NVMLError as error:
                remaining_ms -= EVENT_TIMEOUT_MS
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    continue
                log.warning("health events interrupted", extra={"reason": str(error)})
                stopped.wait(PAUSE_S)
                return
            self._handle(event, report)

    def _handle(self, event: Any, report: HealthReport) -> None:
        nvml = self._nvml
        if event.eventType != nvml.nvmlEventTypeXidCriticalError or not self._rules.is_critical(
            event.eventData
        ):
            return
        reason = f"XID {event.eventData}"
        if event.gpuInstanceId != _NO_INSTANCE or event.computeInstanceId != _NO_INSTANCE:
            reason += f" in MIG instance {event.gpuInstanceId}/{event.computeInstanceId}"
        try:
            uuid = decode(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError as error:
            self._failed[""] = f"{reason} on an unknown card: {error}"
            report("", self._failed[""])
            return
        self._failed[uuid] = reason
        self._report(uuid, reason, report)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in parse_list(text) or ())


def _xids(variable: str, words: Iterable[str]) -> frozenset[int]:
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise MalformedInput(
                f"environment variable {variable}",
                word,
                "expected XIDs separated by commas, or all",
            )
    return frozenset(map(int, words))
