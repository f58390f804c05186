"""Official releases of the programs that `testing.binaries` compiles otherwise, each with the checksum that is
published beside it.

Kubernetes: https://dl.k8s.io/release/VERSION/bin/linux/ARCH/PROGRAM, with PROGRAM.sha256 (kubernetes.io, «Install and
set up kubectl on Linux»). etcd: an archive on GitHub, with SHA256SUMS. Releases of kwok have no checksums.
"""

from __future__ import annotations

import hashlib
import http.client
import platform
import re
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["Release", "fetch", "release_of"]

KUBERNETES = "https://dl.k8s.io/release"
ETCD = "https://github.com/etcd-io/etcd/releases/download"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
OF_KUBERNETES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
ANSWER_S = 10.0  # for each answer and each part of it
PROGRAM_S = 600.0
MOST_BYTES, MOST_SUMS = 400 << 20, 1 << 16
PIECE = 1 << 20
_SUM = re.compile(r"[0-9a-f]{64}")
_FAILURES = (OSError, http.client.HTTPException, urllib.error.URLError, tarfile.TarError, EOFError)

unreachable: set[str] = set()
"""Hosts that have not answered: they are not asked again."""


@dataclass(frozen=True, slots=True)
class Release:
    """A file of a release at *url*, and the text with its SHA-256 at *sums*. *member*: the program in an archive."""

    url: str
    sums: str
    member: str = ""

    @property
    def host(self) -> str:
        """The host that has both."""
        return urlsplit(self.url).netloc


def release_of(program: str, version: str) -> Release | None:
    """Returns the release of *program*, ``None`` if there is none for this machine."""
    arch = ARCHITECTURES.get(platform.machine())
    if arch is None or platform.system() != "Linux":
        return None
    if program in OF_KUBERNETES:
        url = f"{KUBERNETES}/{version}/bin/linux/{arch}/{program}"
        return Release(url, f"{url}.sha256")
    if program == "etcd":
        name = f"etcd-{version}-linux-{arch}"
        return Release(
            f"{ETCD}/{version}/{name}.tar.gz", f"{ETCD}/{version}/SHA256SUMS", f"{name}/etcd"
        )
    return None


def fetch(release: Release, scratch: Path, say: Callable[[str], None]) -> Path | None:
    """Returns the program of *release* as a file in the folder *scratch*; ``None`` if it cannot be had, for a reason
    that *say* hears."""
    try:
        expected = _published(release)
        file, found = _download(release.url, scratch / "release")
        if found != expected:
            say(
                f"  {release.url}: SHA-256 is {found}, published is {expected}; it is compiled instead"
            )
            return None
        program = _extracted(file, release.member, scratch) if release.member else file
    except urllib.error.HTTPError as error:
        say(f"  {error.url}: {error.code}; it is compiled instead")
        return None
    except _FAILURES as error:
        unreachable.add(release.host)
        say(f"  {release.host}: {_reason(error)}; what it has is compiled instead")
        return None
    program.chmod(0o755)
    return program


def _published(release: Release) -> str:
    """Returns the SHA-256 of the file of *release*. Raises: OSError."""
    with urllib.request.urlopen(release.sums, timeout=ANSWER_S) as answer:
        text = answer.read(MOST_SUMS).decode("ascii", "replace")
    name = release.url.rpartition("/")[2]
    for line in text.splitlines():
        words = line.split()
        # a line of sha256sum, or the sum alone
        if words and words[1:] in ([], [name], [f"*{name}"]) and _SUM.fullmatch(words[0]):
            return words[0]
    raise OSError(f"{release.sums} has no SHA-256 of {name}")


def _download(url: str, file: Path) -> tuple[Path, str]:
    """Writes what *url* has to *file*. Returns that and its SHA-256. Raises: OSError."""
    digest, size, until = hashlib.sha256(), 0, time.monotonic() + PROGRAM_S
    with urllib.request.urlopen(url, timeout=ANSWER_S) as answer, file.open("wb") as target:
        while piece := answer.read(PIECE):
            size += len(piece)
            if size > MOST_BYTES or time.monotonic() > until:
                raise OSError(
                    f"{url} is larger than {MOST_BYTES >> 20} MiB, or takes longer than {PROGRAM_S:g} s"
                )
            digest.update(piece)
            target.write(piece)
    return file, digest.hexdigest()


def _extracted(archive: Path, member: str, scratch: Path) -> Path:
    """Returns the file *member* of *archive*. Raises: OSError, TarError."""
    program = scratch / "program"
    with tarfile.open(archive) as packed:
        info = next((info for info in packed if info.name == member and info.isfile()), None)
        source = packed.extractfile(info) if info is not None else None
        if info is None or source is None or info.size > MOST_BYTES:
            raise OSError(f"{archive.name} has no file {member} of at most {MOST_BYTES >> 20} MiB")
        with source, program.open("wb") as target:
            while piece := source.read(PIECE):
                target.write(piece)
    return program


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason)
