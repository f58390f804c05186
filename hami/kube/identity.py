"""Names for the processes that stand for election, by which the one that follows in the same pod knows the former.

A process that was killed leaves its lease behind. Its successor in the same pod need not wait for that to run out: it
can see for itself that the former one is gone. Of other pods it knows nothing.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from uuid import uuid4

__all__ = ["has_ended", "make_identity"]


def make_identity(pod: str) -> str:
    """A name that no other process has had: pod (or host), process id and start, and something random."""
    pid = os.getpid()
    return f"{pod or socket.gethostname()}_{pid}_{_started(pid)}_{uuid4().hex[:8]}"


def has_ended(identity: str, pod: str) -> bool:
    """*identity* was a process of this very *pod* that runs no more; false where that cannot be said."""
    name, *rest = identity.rsplit("_", 3)
    if not pod or name != pod or len(rest) != 3 or not rest[0].isdecimal():
        return False
    return _started(int(rest[0])) != rest[1]


def _started(pid: int) -> str:
    """When the process was started, in clock ticks since the machine was; empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
