"""Which of the driver's complaints make a card unusable. Decides only; who listens to the driver is ``nvml``.

XIDs that say something of the program and nothing of the card are ignored; operators add to that list, and take away
from it, by environment.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/rm/health.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hami.errors import MalformedInput

__all__ = ["DISABLE", "ENABLE", "XidRules", "parse_xid_rules"]

DISABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE = "DP_ENABLE_HEALTHCHECKS"

_OF_PROGRAMS = frozenset({
    13,   # an exception of the graphics engine
    31,   # a page fault in the card's memory
    43,   # the processing has stopped
    45,   # a clean-up that was forced, by an error before
    68,   # an exception of the video processor
    109,  # a context switch took too long
})
_ALL = frozenset({"all", "xids"})


@dataclass(frozen=True, slots=True)
class XidRules:
    """Which XIDs count. What is *enabled* goes before what is ignored; *ignored* ``None`` is all, *enabled* too."""

    ignored: frozenset[int] | None = _OF_PROGRAMS
    enabled: frozenset[int] | None = frozenset()

    def counts(self, xid: int) -> bool:
        """A card that reports *xid* is not used any more."""
        if self.enabled is None or xid in self.enabled:
            return True
        return self.ignored is not None and xid not in self.ignored

    @property
    def is_off(self) -> bool:
        """No XID counts, so nobody need listen."""
        return self.ignored is None and self.enabled is not None and not self.enabled


def parse_xid_rules(environ: Mapping[str, str]) -> XidRules:
    """The rules under ``DP_DISABLE_HEALTHCHECKS`` and ``DP_ENABLE_HEALTHCHECKS``.

    Shape: XIDs with commas; or ``all`` (the first also ``xids``) anywhere among them. Upstream does not listen at all
    after «disable all», whatever is enabled; here what is enabled counts.
    Raises: MalformedInput, naming the variable.
    """
    disabled, enabled = _words(environ.get(DISABLE, "")), _words(environ.get(ENABLE, ""))
    return XidRules(
        ignored=None if _ALL & disabled else _OF_PROGRAMS | _xids(DISABLE, disabled),
        enabled=None if "all" in enabled else _xids(ENABLE, enabled))


def _words(text: str) -> frozenset[str]:
    return frozenset(word for part in text.split(",") if (word := part.strip().lower()))


def _xids(variable: str, words: Iterable[str]) -> frozenset[int]:
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise MalformedInput(f"environment variable {variable}", word, "expected XIDs with commas, or all")
    return frozenset(map(int, words))
