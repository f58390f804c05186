"""Records of the hook that sets the driver's limits: a file for each container, with its id as name.

The hook writes them on the node, as root; no container can. ``libvgpu/wall`` has the program.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

from hami.errors import MalformedInput
from hami.node.host import MIN_AGE_S, host_errors

RECORDS = "walls"
MOST_RECORDS = 4096  # a node has a few hundred containers
_MOST_BYTES = 8192
_ID = re.compile(r"[0-9a-f]{1,64}")
_GROUP = re.compile(r"(?:/[^/\x00-\x1f\x7f]{1,255}){1,40}")
_LIMIT = re.compile(r"([A-Za-z0-9-]{1,95})=([1-9][0-9]{0,18})")
MOST_LIMITS = 16


@dataclass(frozen=True, slots=True)
class WallRecord:
    """The limits that were set when a container started.

    *group*: its control group below the mount; empty if it was not found. *limits*: bytes by UUID of the card.
    *problem*: why they could not be set; empty if they were."""

    group: str
    limits: dict[str, int]
    problem: str = ""


def parse_record(text: str) -> WallRecord:
    """Returns the record that *text* is. Raises: MalformedInput."""
    group, problem = "", ""
    limits: dict[str, int] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        match word:
            case "group":
                group = rest
            case "limit":
                found = _LIMIT.fullmatch(rest)
                if found is None or len(limits) == MOST_LIMITS:
                    raise MalformedInput("record of the memory wall", line, "expected UUID=BYTES")
                limits[found[1]] = int(found[2])
            case "problem":
                problem = rest[:256]
    if group and (_GROUP.fullmatch(group) is None or ".." in group.split("/")):
        raise MalformedInput("record of the memory wall", group, "expected a control group")
    return WallRecord(group, limits, problem)


class WallRecords:
    """The records of one node. *hook_path*: as the device plugin has it."""

    def __init__(self, hook_path: str, *, now: Callable[[], float] = time.time) -> None:
        """*now*: Unix seconds by the clock of the file system."""
        self.folder = Path(hook_path) / "vgpu" / RECORDS
        self._now = now

    def prepare(self) -> None:
        """Makes the folder, which only root may enter. Raises: HostError."""
        with host_errors("cannot make the folder for records of the memory wall"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def ids(self) -> list[str]:
        """Returns the ids of containers with a record, MOST_RECORDS at most. Raises: HostError."""
        with host_errors("cannot list records of the memory wall"):
            if not self.folder.exists():
                return []
            names = sorted(filter(_ID.fullmatch, os.listdir(self.folder)))
        return names[:MOST_RECORDS]

    def read(self, id: str) -> WallRecord | None:
        """Returns the record of a container; ``None`` if there is none. Raises: HostError, MalformedInput."""
        with host_errors("cannot read a record of the memory wall"):
            try:
                with open(self.folder / id, "rb") as file:
                    return parse_record(file.read(_MOST_BYTES).decode(errors="replace"))
            except FileNotFoundError:
                return None

    def remove(self, id: str) -> None:
        """Removes the record of a container. Raises: HostError."""
        with host_errors("cannot remove a record of the memory wall"):
            (self.folder / id).unlink(missing_ok=True)

    def sweep(self, present: Container[str]) -> None:
        """Removes what is not the record of a container with an id among *present*, the leftovers of a hook that was
        killed, too. Keeps recent ones: the kubelet reports a container later. Raises: HostError."""
        with host_errors("cannot remove a record of the memory wall"):
            if not self.folder.exists():
                return
            for path in self.folder.iterdir():
                is_old = self._now() - path.lstat().st_ctime > MIN_AGE_S
                if is_old and path.name not in present:
                    path.unlink(missing_ok=True)
