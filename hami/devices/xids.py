"""XIDs, the errors that NVIDIA's driver reports of a card, and what NVIDIA advises to do about each.

They decide only where the driver does not say itself what a card needs: before release 570.
Source: NVIDIA, XID catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, sheet of 2025-10-29), column
"immediate action".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hami.codec.policies import parse_list
from hami.errors import MalformedInput

DISABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE = "DP_ENABLE_HEALTHCHECKS"
_ALL = frozenset({"all", "xids"})


class XidKind(enum.Enum):
    """The demand of an XID, in the words of the catalog."""

    RESET = "reset"
    """RESET_GPU, RESTART_BM, RESTART_VM, WORKFLOW_XID_48, WORKFLOW_NVLINK_ERR, WORKFLOW_NVLINK5_ERR"""
    APPLICATION = "application"
    """RESTART_APP, CHECK_UVM"""
    LOG = "log"
    """IGNORE, WORKFLOW_XID_45, XID_154, UPDATE_SWFW, CHECK_MECHANICALS"""
    UNKNOWN = "unknown"
    """CONTACT_SUPPORT, or not in the catalog"""


_RESETS = {46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, *range(143, 152)}
_RESETS |= {155, 156, 158}
_APPLICATIONS = {8, 11, 13, 25, 31, 32, *range(39, 42), 60, *range(68, 73), *range(75, 78), 80}
_APPLICATIONS |= {*range(82, 87), 88, 89, 94, *range(96, 106), *range(126, 136), 139, 159}
_LOGGED = {14, 37, 38, 43, 44, 45, 54, 63, 66, 67, 78, 92, 93, 106, 107, 108, 121, 137, 141}
_LOGGED |= {152, 153, 154, 157, 160, 161}


def xid_kind(xid: int) -> XidKind:
    """Returns what *xid* asks for."""
    if xid in _RESETS:
        return XidKind.RESET
    if xid in _APPLICATIONS:
        return XidKind.APPLICATION
    if xid in _LOGGED:
        return XidKind.LOG
    return XidKind.UNKNOWN


@dataclass(frozen=True, slots=True)
class XidRules:
    """The XIDs that make a card unhealthy, if its driver does not say what the card needs: those that ask for a reset,
    without *disabled* ones, and *enabled* ones in any case. ``None`` means all XIDs, for both."""

    disabled: frozenset[int] | None = frozenset()
    enabled: frozenset[int] | None = frozenset()

    def is_critical(self, xid: int) -> bool:
        """Reports whether a card with this *xid* is unhealthy."""
        if self.enabled is None or xid in self.enabled:
            return True
        if self.disabled is None or xid in self.disabled:
            return False
        return xid_kind(xid) is XidKind.RESET

    @property
    def is_off(self) -> bool:
        """Whether every XID is disabled, so that health is not watched at all."""
        if self.disabled is not None:
            return False
        return self.enabled == frozenset()


def parse_xid_rules(environ: Mapping[str, str]) -> XidRules:
    """Returns the rules of ``DP_DISABLE_HEALTHCHECKS`` and ``DP_ENABLE_HEALTHCHECKS``.

    Shape: XIDs separated by commas; or ``all`` (the first also ``xids``) anywhere among them. Unlike upstream, enabled
    XIDs count even if all are disabled.
    Raises: MalformedInput, naming the variable.
    """
    disabled: frozenset[int] | None = None
    words = _words(environ.get(DISABLE, ""))
    if not words & _ALL:
        disabled = _xids(DISABLE, words)
    enabled: frozenset[int] | None = None
    words = _words(environ.get(ENABLE, ""))
    if "all" not in words:
        enabled = _xids(ENABLE, words)
    return XidRules(disabled, enabled)


def _words(text: str) -> frozenset[str]:
    return frozenset((parse_list(text.lower()) or ()))


def _xids(variable: str, words: Iterable[str]) -> frozenset[int]:
    xids = set()
    for word in words:
        if not word.isascii() or not word.isdigit():
            raise MalformedInput(
                f"environment variable {variable}",
                word,
                "expected XIDs separated by commas, or all",
            )
        xids.add(int(word))
    return frozenset(xids)
