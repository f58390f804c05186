"""The commands for people, run as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from testing.cluster import MANIFESTS, LocalCluster
from testing.sandbox import Sandbox

__all__ = ["DEVICE_CONFIG", "Answer", "ask", "hami"]

DEVICE_CONFIG = MANIFESTS / "device-config.yaml"
SECONDS = 180


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has printed, and its exit status."""

    status: int
    output: bytes
    errors: str

    @property
    def text(self) -> str:
        """The standard output."""
        return self.output.decode()

    @property
    def document(self) -> Any:
        """The standard output of ``-o json``."""
        return json.loads(self.output)


def hami(kubeconfig: Path, *words: str | Path, typed: str = "") -> Answer:
    """Runs ``hami`` with *words* as the user of *kubeconfig*. *typed*: the standard input."""
    command = [sys.executable, "-m", "hami.cli", *map(str, words)]
    done = subprocess.run(
        command,
        input=typed.encode(),
        capture_output=True,
        check=False,
        timeout=SECONDS,
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
    )
    return Answer(done.returncode, done.stdout, done.stderr.decode())


def ask(
    console: Console,
    cluster: LocalCluster,
    sandbox: Sandbox,
    *words: str,
    statuses: tuple[int, ...] = (0,),
) -> None:
    """Runs a command of ``hami`` for people. Raises: CalledProcessError if it ends with none of *statuses*."""
    console.print(f"[bold]$ hami {' '.join(words)}")
    sys.stdout.flush()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "hami.cli",
            *words,
            f"--kubeconfig={cluster.kubeconfig}",
            f"--namespace={sandbox.namespace}",
            f"--device-config-file={DEVICE_CONFIG}",
        ],
        check=False,
    )
    if done.returncode not in statuses:
        done.check_returncode()
    console.print()
