"""Finds the control plane's programs, or builds them once into the user's cache.

Order: the folder that ``HAMI_E2E_BIN`` names → PATH → ``${XDG_CACHE_HOME:-~/.cache}/hami/controlplane/<hash>/bin``,
built from the pinned Go modules of ``e2e/controlplane`` when it is not there. Progress goes to standard error. This
module starts nothing but ``go``. ``python -m e2e.binaries`` builds and prints the folder; ``--kubelet`` builds the
kubelet too.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PROGRAMS", "BinariesMissing", "Binaries", "find"]

MODULE = Path(__file__).parent / "controlplane"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok", "kwokctl")
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
NAMES = {"go.etcd.io/etcd/server/v3": "etcd"}
"""Go packages whose program is not called as their last path element."""


class BinariesMissing(RuntimeError):
    """The control plane's programs are neither there nor can they be built; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where each program lies."""

    paths: Mapping[str, Path]
    kube_version: str

    def __getitem__(self, program: str) -> Path:
        return self.paths[program]


def find(*, kubelet: bool = False, say: Callable[[str], None] | None = None) -> Binaries:
    """The control plane's programs, built first where that is needed.

    *kubelet*: that one is wanted as well. *say* receives progress lines (default: standard error).
    Raises: BinariesMissing.
    """
    wanted = (*PROGRAMS, "kubelet") if kubelet else PROGRAMS
    if folder := os.environ.get("HAMI_E2E_BIN"):
        paths = {name: Path(folder) / name for name in wanted}
        if missing := [name for name, path in paths.items() if not os.access(path, os.X_OK)]:
            raise BinariesMissing(f"HAMI_E2E_BIN={folder} lacks {', '.join(missing)}")
        return Binaries(paths, spoken_version(paths))
    found = {name: shutil.which(name) for name in wanted}
    if all(found.values()):
        paths = {name: Path(path) for name, path in found.items() if path}
        return Binaries(paths, spoken_version(paths))
    version = pinned_version("k8s.io/kubernetes")
    return Binaries(build(wanted, version, say or to_stderr), version)


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def spoken_version(paths: Mapping[str, Path]) -> str:
    """Version that a kube-apiserver which we did not build says of itself."""
    done = subprocess.run([paths["kube-apiserver"], "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def pinned_version(module: str) -> str:
    """Version of *module* that go.mod requires."""
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BinariesMissing(f"{MODULE / 'go.mod'} does not require {module}")
    return found[1]


def packages() -> dict[str, str]:
    """Program name to Go package: the ``tool`` block of go.mod."""
    block = re.search(r"^tool \((.*?)^\)", (MODULE / "go.mod").read_text(), re.MULTILINE | re.DOTALL)
    listed = block[1].split() if block else []
    return {NAMES.get(package, package.rpartition("/")[2]): package for package in listed}


def cache_folder() -> Path:
    """Folder for exactly the modules that go.mod and go.sum pin."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        digest.update((MODULE / name).read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hami" / "controlplane" / digest.hexdigest()[:16] / "bin"


def build(wanted: tuple[str, ...], version: str, say: Callable[[str], None]) -> dict[str, Path]:
    """Build what the cache lacks. Each program appears under its name only when it is whole."""
    folder = cache_folder()
    paths = {name: folder / name for name in wanted}
    if all(path.exists() for path in paths.values()):
        return paths
    if (go := shutil.which("go")) is None:
        raise BinariesMissing(
            "the local control plane (etcd, kube-apiserver, kube-scheduler, kwok) is built from Go modules, and there "
            f"is no 'go' on PATH. Install Go {go_version()} or newer, or set HAMI_E2E_BIN to a folder with "
            f"{', '.join(wanted)}.")
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.parent / "lock", lambda: say("another process builds the control plane; waiting for it")):
        missing = [name for name in wanted if not paths[name].exists()]
        if missing:
            say(f"building the control plane once into {folder} (some minutes on two cores)")
        for position, name in enumerate(missing, 1):
            started = time.monotonic()
            build_one(go, packages()[name], paths[name], version)
            say(f"  {position}/{len(missing)} {name}: {time.monotonic() - started:.0f} s")
    return paths


def go_version() -> str:
    found = re.search(r"^go (\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    return found[1] if found else "(see go.mod)"


def build_one(go: str, package: str, target: Path, version: str) -> None:
    """Compile *package* statically, its version stamped, and move it into place."""
    stamp = " ".join(f"-X {name}.gitVersion={version}" for name in VERSION_PACKAGES)
    with tempfile.TemporaryDirectory(dir=target.parent.parent, prefix="build-") as scratch:
        fresh = Path(scratch) / target.name
        command = ["nice", go, "build", "-trimpath", "-mod=readonly", f"-ldflags=-s -w {stamp}", "-o", str(fresh),
                   package]
        done = subprocess.run(command, cwd=MODULE, env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise BinariesMissing(f"cannot build {package}:\n{done.stdout[-4000:]}")
        fresh.rename(target)


@contextlib.contextmanager
def exclusive(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file at *path*; it is the kernel's, so a killed holder frees it."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.binaries", description=__doc__.partition("\n")[0])
    parser.add_argument("--kubelet", action="store_true", help="build the kubelet as well")
    try:
        binaries = find(kubelet=parser.parse_args().kubelet)
    except BinariesMissing as error:
        print(error, file=sys.stderr)
        return 1
    print(binaries["kwokctl"].parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
