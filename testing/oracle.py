"""Kubernetes' own allocator of claims as a judge of allocations, in a process that answers questions."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from testing import binaries
from testing.cluster import MANIFESTS
from testing.yaml_text import read_documents

__all__ = ["Oracle", "oracle"]

Object = dict[str, Any]
CLASS = MANIFESTS.parent / "components" / "dra" / "device-class.yaml"


@dataclass(frozen=True, slots=True)
class Oracle:
    """The process, which has a line for each question and answer. *classes*: the DeviceClasses that it knows."""

    questions: IO[str]
    answers: IO[str]
    classes: Sequence[Object]

    def objection(
        self, node: str, slices: Sequence[Object], others: Sequence[Object], claim: Object
    ) -> str:
        """Returns why the allocator would not have allocated *claim* in this way; empty if it would.

        *slices*: those of *node*. *others*: the other claims that are allocated there.
        """
        question = {
            "node": node,
            "slices": slices,
            "classes": self.classes,
            "claims": others,
            "claim": claim,
        }
        self.questions.write(json.dumps(question) + "\n")
        self.questions.flush()
        answer: str = json.loads(self.answers.readline())["objection"]
        return answer


@contextlib.contextmanager
def oracle(program: Path | None = None) -> Iterator[Oracle]:
    """Starts the *program*, built first if needed. Raises: BinariesMissing."""
    with subprocess.Popen(
        [program or binaries.find_oracle()],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Oracle(process.stdin, process.stdout, read_documents(CLASS.read_text()))
