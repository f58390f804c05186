"""Revisions of this repository, for tests of upgrades: this one, and an earlier one whose programs run beside it.

The earlier one is the commit that CHANGELOG.md names. It is taken from the history of the checkout, and its programs
run with the dependencies of this revision.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["THIS", "Revision", "earlier_commit", "missing", "unpack"]

ROOT = Path(__file__).parents[1]
PARTS = ("hami", "manifests")


@dataclass(frozen=True, slots=True)
class Revision:
    """The package and the manifests in *root*."""

    root: Path

    @property
    def manifests(self) -> Path:
        return self.root / "manifests" / "base"

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which ``python -m hami.cli`` runs it, in whatever folder it is started."""
        return {} if self.root == ROOT else {"PYTHONPATH": str(self.root), "PYTHONSAFEPATH": "1"}


THIS = Revision(ROOT)


def earlier_commit() -> str:
    """Returns the commit from which upgrades are tested."""
    (commit,) = re.findall(
        r"^Upgrades are tested from commit `([0-9a-f]{40})`",
        (ROOT / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )
    return commit


def missing() -> str:
    """Returns why there is no earlier revision here; empty if there is one."""
    if shutil.which("git") is None:
        return "an earlier revision needs git"
    if git("cat-file", "-e", f"{earlier_commit()}^{{commit}}").returncode:
        return f"this checkout has no commit {earlier_commit()}: git fetch --unshallow"
    return ""


def unpack(folder: Path) -> Revision:
    """Returns the earlier revision, which it writes to *folder*."""
    done = git("archive", "--format=tar", earlier_commit(), *PARTS)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return Revision(folder)


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    # root may run this in the checkout of another user
    return subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *words],
        capture_output=True,
        check=False,
    )
