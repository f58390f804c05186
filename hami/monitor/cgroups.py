"""Reads which container a process is in from its control group. Pure.

All forms of kubelet and runtimes are known: versions 1 and 2, the drivers systemd and cgroupfs, containerd, CRI-O and
Docker, also in control groups of another container, and relative to that of the reader (``/../..``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_POD = re.compile(r"(?:kubepods(?:-besteffort|-burstable)?-)?pod(?P<uid>[0-9a-f_-]{32,36})(?:\.slice)?")
_CONTAINER = re.compile(r"(?:(?:cri-containerd|crio|docker)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")
_UNSPLIT = re.compile(  # containerd with the driver of systemd, under a kubelet with the other
    r"(?P<pod>[^:]+\.slice):cri-containerd:(?P<container>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ContainerId:
    """A container as its control group has it. *pod*: the uid, without its dashes."""

    pod: str
    container: str


def plain_uid(uid: str) -> str:
    """Returns a pod's uid without dashes: systemd replaces them, and static pods have none."""
    return uid.replace("-", "").replace("_", "")


def parse_cgroups(text: str) -> ContainerId | None:
    """Returns the container of a process. *text*: ``/proc/<pid>/cgroup``.

    ``None`` if it is in none, or if its control groups do not agree.
    """
    paths = (line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2)
    containers = {container for path in paths if (container := _container(path)) is not None}
    return containers.pop() if len(containers) == 1 else None


def _container(path: str) -> ContainerId | None:
    """Returns the first container of a pod on *path*: what is below may be of its own making."""
    parts = path.split("/")
    for part, inner in zip(parts, [*parts[1:], ""]):
        if (unsplit := _UNSPLIT.fullmatch(part)) is not None:
            part, inner = unsplit["pod"], unsplit["container"]
        if (pod := _POD.fullmatch(part)) is not None:
            container = _CONTAINER.fullmatch(inner)
            return None if container is None else ContainerId(plain_uid(pod["uid"]), container["id"])
    return None
