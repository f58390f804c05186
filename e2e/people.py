"""The commands for people, run as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import MANIFESTS

__all__ = ["DEVICE_CONFIG", "Answer", "hami"]

DEVICE_CONFIG = MANIFESTS / "device-config.yaml"
SECONDS = 60


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
    done = subprocess.run(command, input=typed.encode(), capture_output=True, check=False, timeout=SECONDS,
                          env=os.environ | {"KUBECONFIG": str(kubeconfig)})
    return Answer(done.returncode, done.stdout, done.stderr.decode())
