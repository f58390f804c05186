"""Installs the limiter's library on the node, after its checksums have been verified."""

from __future__ import annotations

import hashlib
import re
import stat
from pathlib import Path

from hami.errors import HostError
from hami.node.host import LIBRARY, PRELOAD, host_errors
from hami.runtime.files import write_atomically

CHECKSUMS = "SHA256SUMS"
"""Name of the file with the sums of all others, in the format of ``sha256sum``."""
_MAX_CHECKSUMS = 64 * 1024  # characters
_LINE = re.compile(r"(?P<sum>[0-9a-f]{64}) [ *](?:\./)?(?P<name>[^\0\n]+)")
_ACTION = "cannot install the limiter"


def install_library(source: str | Path, hook_path: str | Path) -> list[str]:
    """Copies the files under *source* to the host's ``<hook_path>/vgpu``; returns the relative paths that changed.

    Changes nothing unless they are exactly the files that ``SHA256SUMS`` in *source* lists, with these sums. Files that
    are installed already are not written again. Replaces files by renaming, so that containers keep the old library
    mapped. Writes the preload list last, when the library exists. Raises: HostError.
    """
    target = Path(hook_path) / "vgpu"
    with host_errors(_ACTION):
        contents = _read_verified(Path(source))
        written = [
            name
            for name, (data, mode) in contents.items()
            if name != PRELOAD and write_atomically(target / name, data, mode | 0o444)
        ]
        if write_atomically(target / PRELOAD, f"{target / LIBRARY}\n".encode()):
            written.append(PRELOAD)
    return written


def _read_verified(source: Path) -> dict[str, tuple[bytes, int]]:
    """Returns content and mode of the files under *source*, by relative path. Each file is read once: what has been
    verified is what is installed. Raises: OSError, HostError."""
    files = {
        str(path.relative_to(source)): path for path in sorted(source.rglob("*")) if path.is_file()
    }
    listing = files.pop(CHECKSUMS, None)
    if not files:
        raise HostError(f"{_ACTION}: no files under {source}")
    if listing is None:
        raise HostError(
            f"{_ACTION}: {source / CHECKSUMS} is missing, so its files cannot be verified"
        )
    expected = _parse_checksums(listing)
    if missing := sorted(expected.keys() - files.keys()):
        raise HostError(f"{_ACTION}: {source / missing[0]} is missing, but {listing} lists it")
    if unknown := sorted(files.keys() - expected.keys()):
        raise HostError(
            f"{_ACTION}: {source / unknown[0]} cannot be verified: {listing} does not list it"
        )
    contents = {}
    for name, path in files.items():
        data = path.read_bytes()
        if (checksum := hashlib.sha256(data).hexdigest()) != expected[name]:
            raise HostError(
                f"{_ACTION}: {path} has the SHA-256 checksum {checksum}; "
                f"expected {expected[name]}, as in {listing}"
            )
        contents[name] = data, stat.S_IMODE(path.stat().st_mode)
    return contents


def _parse_checksums(listing: Path) -> dict[str, str]:
    """Returns the sums by relative path. Raises: OSError, HostError for a line of another form."""
    with listing.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_MAX_CHECKSUMS)
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        if (match := _LINE.fullmatch(line)) is None:
            raise HostError(
                f"{_ACTION}: {listing}, line {number}: expected a SHA-256 checksum and a file name"
            )
        sums[match["name"]] = match["sum"]
    return sums
