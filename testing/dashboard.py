"""``hami dashboard`` as a process beside the local control plane."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from testing.cluster import MANIFESTS
from testing.processes import Program
from testing.scheduler import NAMESPACE, shipped_flags

COMPONENT = MANIFESTS.parent / "components" / "dashboard"


@contextlib.contextmanager
def dashboard(kubeconfig: Path, folder: Path, port: int, **flags: str) -> Iterator[Program]:
    """Runs ``hami dashboard`` on *port* of loopback with the flags of the component, changed by *flags*; does not wait
    for it."""
    given = (
        shipped_flags(f"{COMPONENT}/deployment.yaml", "dashboard")
        | {
            "bind_address": f"127.0.0.1:{port}",
            "device_config_file": str(MANIFESTS / "device-config.yaml"),
        }
        | flags
    )
    program = Program(
        "hami-dashboard",
        [
            sys.executable,
            "-m",
            "hami.cli",
            "dashboard",
            *(f"--{name}={value}" for name, value in given.items()),
        ],
        folder / f"hami-dashboard-{port}.log",
        env=os.environ | {"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": NAMESPACE},
    )
    program.start()
    try:
        yield program
    finally:
        program.stop()
