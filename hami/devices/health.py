"""Decides which XID errors of the driver make a card unhealthy. `nvml` receives the errors.

XIDs that applications cause are ignored. Operators extend or shorten that list by environment variables.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/rm/health.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hami.errors import MalformedInput

DISABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE = "DP_ENABLE_HEALTHCHECKS"

_APPLICATION_XIDS = frozenset({
    13,   # graphics engine exception
    31,   # GPU memory page fault
    43,   # GPU stopped processing
    45,   # preemptive cleanup, due to previous errors
    68,   # video processor exception
    109,  # context switch timeout
})
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
        enabled=None if "all" in enabled else _xids(ENABLE, enabled))


def _words(text: str) -> frozenset[str]:
    return frozenset(word for part in text.split(",") if (word := part.strip().lower()))


def _xids(variable: str, words: Iterable[str]) -> frozenset[int]:
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise MalformedInput(f"environment variable {variable}", word, "expected XIDs separated by commas, or all")
    return frozenset(map(int, words))
