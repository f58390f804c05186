"""Finds the control plane's programs, or builds them once into the user's cache.

Order: the folder that ``HAMI_E2E_BIN`` names → PATH → ``${XDG_CACHE_HOME:-~/.cache}/hami/controlplane/<hash>/bin``,
built from the pinned Go modules of ``e2e/controlplane`` when it is not there. Progress goes to standard error. This
module starts nothing but ``go``. ``python -m e2e.binaries`` builds and prints the folders; ``--kubelet`` builds the
kubelet too.

``HAMI_E2E_KUBERNETES=1.34`` asks for a minor version of Kubernetes: programs of another one are passed by on PATH and
refused in ``HAMI_E2E_BIN``. Kubernetes' programs are then built from ``e2e/controlplane/v1.34``, which pins its newest
patch; etcd and kwok are those of ``e2e/controlplane`` itself, with which the default minor is built.
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

__all__ = ["MINOR_VARIABLE", "PROGRAMS", "Binaries", "BinariesMissing", "Pins", "find", "find_one", "minors"]

CONTROL_PLANE = Path(__file__).parent / "controlplane"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok", "kwokctl")
MINOR_VARIABLE = "HAMI_E2E_KUBERNETES"
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


@dataclass(frozen=True, slots=True)
class Pins:
    """A Go module that pins programs: *folder* has its go.mod and go.sum."""

    folder: Path

    @property
    def kube_version(self) -> str:
        """Version of Kubernetes that go.mod requires: ``v1.36.3``. Raises: BinariesMissing."""
        return self._found(r"^\s*(?:require )?k8s\.io/kubernetes (v\S+)", "does not require k8s.io/kubernetes")

    @property
    def go_version(self) -> str:
        return self._found(r"^go (\S+)", "does not say which Go it needs")

    def packages(self) -> dict[str, str]:
        """Program name to Go package: the ``tool`` block of go.mod."""
        listed = self._found(r"^tool \((.*?)^\)", "has no tool block").split()
        return {NAMES.get(package, package.rpartition("/")[2]): package for package in listed}

    def cache_folder(self) -> Path:
        """Folder for exactly the modules that go.mod and go.sum pin."""
        digest = hashlib.sha256()
        for name in ("go.mod", "go.sum"):
            digest.update((self.folder / name).read_bytes())
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "hami" / "controlplane" / digest.hexdigest()[:16] / "bin"

    def _found(self, pattern: str, otherwise: str) -> str:
        file = self.folder / "go.mod"
        if (found := re.search(pattern, file.read_text(), re.MULTILINE | re.DOTALL)) is None:
            raise BinariesMissing(f"{file} {otherwise}")
        return found[1]


DEFAULT = Pins(CONTROL_PLANE)
"""The newest minor's programs, and those that are not Kubernetes' own."""


def minor_of(version: str) -> str:
    """``1.36`` of ``v1.36.3``."""
    return ".".join(version.removeprefix("v").split(".")[:2])


def minors() -> dict[str, Pins]:
    """The minor versions that can be built here, newest first, and what pins each."""
    found = {minor_of(pins.kube_version): pins
             for pins in (DEFAULT, *(Pins(file.parent) for file in CONTROL_PLANE.glob("v*/go.mod")))}
    return dict(sorted(found.items(), key=lambda item: [int(part) for part in item[0].split(".")], reverse=True))


def find(*, kubelet: bool = False, say: Callable[[str], None] | None = None, minor: str | None = None) -> Binaries:
    """The control plane's programs, built first where that is needed.

    *kubelet*: that one is wanted as well. *say* receives progress lines (default: standard error). *minor*: of
    Kubernetes, ``1.34`` (default: what the environment asks for; empty: any).
    Raises: BinariesMissing.
    """
    wanted = (*PROGRAMS, "kubelet") if kubelet else PROGRAMS
    minor = os.environ.get(MINOR_VARIABLE, "") if minor is None else minor
    if folder := os.environ.get("HAMI_E2E_BIN"):
        paths = {name: Path(folder) / name for name in wanted}
        if missing := [name for name, path in paths.items() if not os.access(path, os.X_OK)]:
            raise BinariesMissing(f"HAMI_E2E_BIN={folder} lacks {', '.join(missing)}")
        version = spoken_version(paths)
        if minor and minor_of(version) != minor:
            raise BinariesMissing(
                f"HAMI_E2E_BIN={folder} has Kubernetes {version}, and {MINOR_VARIABLE} asks for {minor}")
        return Binaries(paths, version)
    found = {name: shutil.which(name) for name in wanted}
    if all(found.values()):
        paths = {name: Path(path) for name, path in found.items() if path}
        version = spoken_version(paths)
        if not minor or minor_of(version) == minor:
            return Binaries(paths, version)
    pins = pinned(minor)
    return Binaries(build(wanted, pins, say or to_stderr), pins.kube_version)


def find_one(program: str, *, say: Callable[[str], None] | None = None) -> Path:
    """A program that is not Kubernetes' own, and so of no minor: ``kwok``, say. Raises: BinariesMissing."""
    named = Path(os.environ.get("HAMI_E2E_BIN", os.devnull)) / program
    if os.access(named, os.X_OK):
        return named
    if found := shutil.which(program):
        return Path(found)
    return build((program,), DEFAULT, say or to_stderr)[program]


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def spoken_version(paths: Mapping[str, Path]) -> str:
    """Version that a kube-apiserver which we did not build says of itself."""
    done = subprocess.run([paths["kube-apiserver"], "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def pinned(minor: str) -> Pins:
    """What pins Kubernetes' programs of *minor*; of the default one if that is empty. Raises: BinariesMissing."""
    if not minor:
        return DEFAULT
    if (pins := minors().get(minor)) is None:
        raise BinariesMissing(f"{MINOR_VARIABLE}={minor}: there is no such minor version in {CONTROL_PLANE.name}/, "
                              f"only {', '.join(minors())}")
    return pins


def build(wanted: tuple[str, ...], pins: Pins, say: Callable[[str], None]) -> dict[str, Path]:
    """Build what the cache lacks: Kubernetes' programs by *pins*, what these do not have by the default ones."""
    sources = {name: pins if name in pins.packages() else DEFAULT for name in wanted}
    paths = {name: source.cache_folder() / name for name, source in sources.items()}
    if all(path.exists() for path in paths.values()):
        return paths
    if (go := shutil.which("go")) is None:
        raise BinariesMissing(
            "the local control plane (etcd, kube-apiserver, kube-scheduler, kwok) is built from Go modules, and there "
            f"is no 'go' on PATH. Install Go {DEFAULT.go_version} or newer, or set HAMI_E2E_BIN to a folder with "
            f"{', '.join(wanted)}.")
    for source in dict.fromkeys((DEFAULT, pins)):
        if targets := [path for name, path in paths.items() if sources[name] == source and not path.exists()]:
            build_missing(go, source, targets, say)
    return paths


def build_missing(go: str, pins: Pins, targets: list[Path], say: Callable[[str], None]) -> None:
    """Build those of *targets* that are not there. Each program appears under its name only when it is whole."""
    folder = pins.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.parent / "lock", lambda: say("another process builds the control plane; waiting for it")):
        if missing := [path for path in targets if not path.exists()]:  # that other process may have built them
            say(f"building programs of Kubernetes {pins.kube_version} once into {folder} (some minutes on two cores)")
        for position, target in enumerate(missing, 1):
            started = time.monotonic()
            build_one(go, pins, target)
            say(f"  {position}/{len(missing)} {target.name}: {time.monotonic() - started:.0f} s")


def build_one(go: str, pins: Pins, target: Path) -> None:
    """Compile the program statically, its version stamped, and move it into place."""
    package = pins.packages()[target.name]
    stamp = " ".join(f"-X {stamped}.gitVersion={pins.kube_version}" for stamped in VERSION_PACKAGES)
    with tempfile.TemporaryDirectory(dir=target.parent.parent, prefix="build-") as scratch:
        fresh = Path(scratch) / target.name
        command = ["nice", go, "build", "-trimpath", "-mod=readonly", f"-ldflags=-s -w {stamp}", "-o", str(fresh),
                   package]
        done = subprocess.run(command, cwd=pins.folder, env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
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
    print("\n".join(sorted({str(path.parent) for path in binaries.paths.values()})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
