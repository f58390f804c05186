"""Identities of the processes that take part in a leader election.

A killed process leaves its lease behind. Its successor in the same pod need not wait until the lease expires, because
it can tell from the identity that the process has ended. It cannot tell that of processes in other pods.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from uuid import uuid4


def make_identity(pod: str) -> str:
    """Returns a unique identity: pod or host name, process id, start time, and a random part."""
    pid = os.getpid()
    return f"{pod or socket.gethostname()}_{pid}_{_started(pid)}_{uuid4().hex[:8]}"


def has_ended(identity: str, pod: str) -> bool:
    """Reports whether *identity* is a process of *pod* that has ended; false if that is not known."""
    name, *rest = identity.rsplit("_", 3)
    if not pod or name != pod or len(rest) != 3 or not rest[0].isdecimal():
        return False
    return _started(int(rest[0])) != rest[1]


def _started(pid: int) -> str:
    """Returns when the process was started, in clock ticks since boot; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
