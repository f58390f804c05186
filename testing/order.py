"""The order of test files. Standard library only.

Several processes take one file after the other. A long file that begins last would keep one of them busy while the
others have nothing left.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

__all__ = ["LONGEST", "longest_first"]

LONGEST = (
    "test_realnode_start.py",
    "test_faults.py",
    "test_trace.py",
    "test_realnode_dra.py",
    "test_helm_takeover.py",
    "test_realnode_plugin.py",
    "test_device_preemption.py",
    "test_slow_binding.py",
    "test_certificates.py",
    "test_trust.py",
    "test_realnode_resize.py",
    "test_dra.py",
    "test_dashboard.py",
    "test_resize.py",
    "test_realnode_claims.py",
    "test_realnode_limiter.py",
    "test_simulate.py",
    "test_preemption.py",
    "test_gangs.py",
    "test_upgrade.py",
    "test_lifecycle.py",
)
"""Files that take more than a minute on two cores, the longest first."""


class InFile(Protocol):
    """A test, as pytest collects it."""

    path: Path


Item = TypeVar("Item", bound=InFile)


def longest_first(items: Sequence[Item]) -> list[Item]:
    """Returns *items* with those of the longest files first; the others stay in their order."""
    rank = {name: number for number, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: rank.get(item.path.name, len(rank)))
