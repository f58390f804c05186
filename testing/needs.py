"""Debian packages that tests need, beside what Python and Go bring. Standard library only.

``python3 -m testing.needs`` prints the packages that are missing on this machine, for ``apt-get install``.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NEEDS", "Need", "lacking", "missing_packages", "report"]


@dataclass(frozen=True, slots=True)
class Need:
    """A package, what it is for, and how to see that it is there.

    *program*: found on PATH. *file*: exists; used where the package has no program.
    """

    package: str
    purpose: str
    program: str = ""
    file: str = ""

    def is_met(self) -> bool:
        """Reports whether the package, or another one that brings the same, is installed."""
        if self.program:
            return shutil.which(self.program) is not None
        return Path(self.file).exists()


REAL_NODE = "real nodes: to build runc"
OLD_RUNTIME = "a real node with Debian's own containerd, which has no CDI"
LIMITER = "the limiter and its fake driver"
LIMITER_ARM64 = "the limiter on arm64"
DASHBOARD = "the dashboard in a browser"
KIND = "kind, where no Docker runs"
NEEDS = (
    Need("gcc", LIMITER, program="gcc"),
    Need("libc6-dev", LIMITER, file="/usr/include/stdio.h"),
    Need("make", LIMITER, program="make"),
    Need("pkg-config", REAL_NODE, program="pkg-config"),
    Need("libseccomp-dev", REAL_NODE, file="/usr/include/seccomp.h"),
    Need("containerd", OLD_RUNTIME, program="containerd"),
    Need("runc", OLD_RUNTIME, program="runc"),
    Need("chromium", DASHBOARD, program="chromium"),
    Need("qemu-user", LIMITER_ARM64, program="qemu-aarch64"),
    Need("libc6-arm64-cross", LIMITER_ARM64, file="/usr/aarch64-linux-gnu/lib"),
    Need("docker.io", KIND, program="dockerd"),
    Need("iproute2", KIND, program="ip"),
    Need("iptables", KIND, program="iptables"),
    Need("debootstrap", KIND, program="debootstrap"),
)
"""In the order in which a reader would miss them."""


def lacking(*packages: str) -> list[str]:
    """Returns those of *packages*, which are in the table, that are not installed."""
    unknown = set(packages) - {need.package for need in NEEDS}
    if unknown:
        raise ValueError(f"no such packages in the table: {sorted(unknown)}")
    return [need.package for need in NEEDS if need.package in packages and not need.is_met()]


def missing_packages(needs: Sequence[Need] = NEEDS) -> dict[str, list[str]]:
    """Maps what cannot be tested here to the packages that it lacks."""
    missing: dict[str, list[str]] = {}
    for need in needs:
        if not need.is_met():
            missing.setdefault(need.purpose, []).append(need.package)
    return missing


def report(missing: dict[str, list[str]]) -> list[str]:
    """Returns lines for people: what is left out on this machine, and the command that installs all of it."""
    if not missing:
        return []
    lines = [f"{purpose} ({', '.join(packages)})" for purpose, packages in missing.items()]
    packages = [package for names in missing.values() for package in names]
    return [*lines, f"To test these as well, as root: apt-get install {' '.join(packages)}"]


def main() -> int:
    """Prints the missing packages in one line."""
    print(" ".join(package for names in missing_packages().values() for package in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
