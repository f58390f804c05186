"""Mermaid, which draws the diagrams of the site in the browser: fetched with npm, checked, and kept.

The site serves it itself, so that a reader's browser asks no other host.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from testing.binaries import cache_root

__all__ = ["DiagramsMissing", "mermaid", "unpacked"]

VERSION = "11.17.2"
SHA512 = "V6K3C8EBdEsPFZXSKMJe6ppQOENxuHARr9GvHX4hh47lAbhMRD9qf4oEK7LoaRQxULMa80/qt5gHO73aCleBBg=="
"""Of the package, as the registry of npm publishes it."""
SCRIPT = "package/dist/mermaid.min.js"
TIMEOUT_SECONDS = 120


class DiagramsMissing(Exception):
    """Mermaid cannot be had; the text says why."""


def mermaid() -> Path:
    """Returns the script, which is fetched once for each version. Raises: DiagramsMissing."""
    kept = cache_root() / f"mermaid-{VERSION}.min.js"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            script = unpacked(packed(Path(folder)))
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(f".{os.getpid()}")
        new.write_bytes(script)
        new.replace(kept)
    return kept


def packed(folder: Path) -> Path:
    """Returns the package, fetched into *folder*. Raises: DiagramsMissing."""
    npm = shutil.which("npm")
    if npm is None:
        raise DiagramsMissing("npm is not installed")
    try:
        done = subprocess.run(
            [npm, "pack", f"mermaid@{VERSION}"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise DiagramsMissing(f"npm pack took more than {TIMEOUT_SECONDS} seconds") from None
    if done.returncode != 0:
        raise DiagramsMissing(
            f"npm pack ended with {done.returncode}: {done.stderr.strip()[-500:]}"
        )
    return folder / f"mermaid-{VERSION}.tgz"


def unpacked(package: Path) -> bytes:
    """Returns the script in *package*. Raises: DiagramsMissing if it is another package than the pinned one."""
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if digest != SHA512:
        raise DiagramsMissing(f"mermaid {VERSION}: its SHA-512 is {digest} instead of {SHA512}")
    with tarfile.open(package) as files:
        script = files.extractfile(SCRIPT)
        assert script is not None, SCRIPT
        return script.read()
