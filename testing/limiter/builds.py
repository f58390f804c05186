"""What is compiled to test the limiter, once for each state of its sources, in the user's cache.

``python -m testing.limiter.builds`` fetches the wheels and compiles everything; ``--driver`` only what the end-to-end
tests need: the library, the fake driver and the client. tox does that before it starts pytest. While tests run nothing
is compiled or fetched (``HAMI_E2E_BUILD=never``). Without a C compiler nothing is made, and the tests are skipped.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testing import reaper
from testing.binaries import (
    SCRATCH,
    BinariesMissing,
    cache_root,
    exclusive,
    require_permission,
    to_stderr,
)
from testing.limiter.wheels import PINS, WheelMissing, fetch

__all__ = [
    "PROGRAMS",
    "ROOT",
    "SANITIZERS",
    "SOURCE",
    "TARGETS",
    "Builds",
    "Unavailable",
    "arm64",
    "make_release",
]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "libvgpu"
TARGETS = ("x86_64", "aarch64")
"""Architectures of the release."""
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
VARIANTS = ("plain", "points", *SANITIZERS)
"""Builds of the library. ``points`` can be killed at numbered points."""
REGION_SOURCES = (
    "account.c",
    "lock.c",
    "region.c",
    "liveness.c",
    "log.c",
    "control.c",
    "compute.c",
    "shares.c",
    "slots.c",
    "table.c",
)
"""Sources of the library that a program needs to open a region."""
PROGRAMS: Mapping[str, Sequence[str]] = {
    "ask": (),
    "broken_bucket": ("control.c",),
    "fuzz": REGION_SOURCES,
    "simulate": ("control.c",),
}
"""Programs of libvgpu/tests/clients, and the sources of the limiter that each is compiled with."""
SANITIZED = ("broken_bucket", "fuzz", "simulate")
"""Those that also run with the sanitizer of addresses."""
CUDA_HEADERS = ("runtime-13.5", "crt-13.5")
NVML_HEADERS = "nvml-13.5"
"""Wheels of the newest headers."""
READER_SOURCES = ("config.c", "log.c")
KEPT_S = 14 * 86_400
"""Builds of other sources are removed when nobody has used them for so long."""


class Unavailable(Exception):
    """Something that a build needs is not there; says what."""


class Builds:
    """What is compiled, once each. Whatever exists is complete: it appears under its name in the end."""

    def __init__(self, folder: Path | None = None, compiler: Sequence[str] = ("gcc",)) -> None:
        """*folder*: by default, one in the user's cache for exactly these sources. *compiler*: of the driver and the
        programs; the library is compiled with gcc."""
        self._compiler = tuple(compiler)
        self.folder = folder or cached_folder(self._compiler)

    @property
    def headers(self) -> Path:
        """Headers of the newest CUDA release. Raises: Unavailable."""
        return self._made("include", self._copy_headers, *CUDA_HEADERS)

    @property
    def driver(self) -> Path:
        """A folder with the fake libcuda.so.1 and libnvidia-ml.so.1. Raises: Unavailable."""
        return self._made("driver", self._compile_driver, *CUDA_HEADERS, NVML_HEADERS)

    def library(self, variant: str = "plain") -> Path:
        """libvgpu.so, of one of `VARIANTS`. Raises: Unavailable."""
        return self._made(variant, lambda folder: make_library(folder, variant)) / "libvgpu.so"

    def wall(self, variant: str = "plain") -> Path:
        """hami-memory-wall, of one of `VARIANTS`. Raises: Unavailable."""
        return self.library(variant).with_name("hami-memory-wall")

    @property
    def client(self) -> Path:
        """The C program that does what it is told. Raises: Unavailable."""
        return self._made("client", self._compile_client, *CUDA_HEADERS) / "client"

    def program(self, name: str, variant: str = "plain") -> Path:
        """One of `PROGRAMS`. *variant*: ``plain``, ``asan`` or ``tsan``; with sanitizers, it must run without a
        preloaded library. Raises: Unavailable."""

        def compile_it(target: Path) -> None:
            flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-I", SOURCE / "src"]
            if variant in SANITIZERS:
                flags += ["-fno-sanitize=alignment", "-fno-sanitize-recover=all"]
                flags.append(f"-fsanitize={SANITIZERS[variant]}")
            sources = [SOURCE / "src" / source for source in PROGRAMS[name]]
            main = SOURCE / "tests" / "clients" / f"{name}.c"
            self._compile(*flags, "-o", target, main, *sources, "-lm", "-ldl", "-lpthread")

        return self._made(f"{name}-{variant}", compile_it)

    @property
    def reader(self) -> Path:
        """The limiter's reader of limits as a library of its own. Raises: Unavailable."""

        def compile_it(target: Path) -> None:
            flags = [
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-D_GNU_SOURCE",
                "-O2",
                "-fPIC",
                "-shared",
            ]
            sources = [SOURCE / "src" / source for source in READER_SOURCES]
            main = SOURCE / "tests" / "clients" / "reader.c"
            self._compile(
                *flags, "-Wl,-z,defs", "-I", SOURCE / "src", "-o", target, main, *sources, "-ldl"
            )

        return self._made("reader.so", compile_it)

    @property
    def static(self) -> Path:
        """A static program with the fake driver in it. Raises: Unavailable."""

        def compile_it(target: Path) -> None:
            flags = [
                "-std=gnu11",
                "-static",
                "-O2",
                "-w",
                "-D_GNU_SOURCE",
                "-I",
                SOURCE / "tests" / "fake",
            ]
            main = SOURCE / "tests" / "clients" / "static.c"
            sources = self._driver_sources(self.driver)
            self._compile(*flags, "-I", self.headers, "-o", target, main, *sources, "-lpthread")

        return self._made("static", compile_it, *CUDA_HEADERS)

    @property
    def deep(self) -> Path:
        """A library that is linked with the driver. Raises: Unavailable."""

        def compile_it(target: Path) -> None:
            main = SOURCE / "tests" / "clients" / "deep.c"
            flags = ["-shared", "-fPIC", "-O2", "-Wall", "-I", self.headers, "-L", self.driver]
            self._compile(*flags, "-o", target, main, "-lcuda")

        return self._made("deep.so", compile_it, *CUDA_HEADERS)

    @property
    def old_nvml(self) -> Path:
        """An NVML from before release 615. Raises: Unavailable."""

        def compile_it(target: Path) -> None:
            main = SOURCE / "tests" / "clients" / "old_nvml.c"
            self._compile("-shared", "-fPIC", "-Wall", "-o", target, main)

        return self._made("old-nvml.so", compile_it)

    def release(self) -> dict[str, Path]:
        """Libraries of the release by architecture, stripped; hami-memory-wall is beside each. Raises: Unavailable."""
        made = self._made("release", make_release, "zig")
        return {target: made / target / "libvgpu.so" for target in TARGETS}

    def sanitizer(self, variant: str) -> list[str]:
        """Libraries that have to be preloaded before a library of that variant. Raises: Unavailable."""
        name = {"asan": "libasan.so", "tsan": "libtsan.so"}.get(variant)
        if name is None:
            return []
        words = ["gcc", f"-print-file-name={name}"]
        found = subprocess.run(words, capture_output=True, text=True, check=True)
        path = Path(found.stdout.strip())
        if not path.is_absolute():
            raise Unavailable(f"no {name}")
        return [str(path.resolve())]

    # -- how they are made

    def _made(self, name: str, make: Callable[[Path], object], *wheels: str) -> Path:
        """Returns what *make* makes of *wheels* at the path that it is given; whoever comes later gets the same."""
        target = self.folder / name
        if target.exists():
            return target
        if not has("gcc") or not has("make"):
            raise Unavailable("no C compiler")
        try:
            for wheel in wheels:
                fetch(wheel)
        except WheelMissing as error:
            raise Unavailable(str(error)) from error
        require_permission([target])
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder / f"{name}.lock", lambda: None):
            if not target.exists():  # another process may have been faster
                with reaper.claimed(self.folder, SCRATCH) as scratch:
                    fresh = scratch / name
                    make(fresh)
                    fresh.rename(target)
        return target

    def _compile(self, *words: str | Path) -> None:
        run_compiler(*self._compiler, *words)

    def _copy_headers(self, include: Path) -> None:
        for wheel in CUDA_HEADERS:
            shutil.copytree(
                fetch(wheel) / "nvidia" / "cu13" / "include", include, dirs_exist_ok=True
            )

    def _compile_driver(self, folder: Path) -> None:
        fake = SOURCE / "tests" / "fake"
        nvml = fetch(NVML_HEADERS) / "nvidia" / "cu13" / "include"
        for kind, include in (("cuda", self.headers), ("nvml", nvml)):
            words = [
                sys.executable,
                fake / "generate.py",
                kind,
                include,
                fake / f"fake{kind}.c",
                folder / kind,
            ]
            subprocess.run(words, check=True)
        common = [
            "-std=gnu11",
            "-shared",
            "-fPIC",
            "-O2",
            "-g",
            "-Wall",
            "-D_GNU_SOURCE",
            "-I",
            fake,
        ]
        machine = [fake / "machine.c", fake / "card.c", fake / "groups.c"]
        common += ["-Wl,-Bsymbolic", "-lpthread", "-ldl"]
        cuda = self._driver_sources(folder)
        soname = "-Wl,-soname,libcuda.so.1"
        self._compile(*common, "-I", self.headers, soname, "-o", folder / "libcuda.so.1", *cuda)
        nvml_sources = [*machine, fake / "fakenvml.c", folder / "nvml" / "stubs.c"]
        soname = "-Wl,-soname,libnvidia-ml.so.1"
        self._compile(
            *common, "-I", nvml, soname, "-o", folder / "libnvidia-ml.so.1", *nvml_sources
        )
        (folder / "libcuda.so").symlink_to("libcuda.so.1")

    def _driver_sources(self, folder: Path) -> list[Path]:
        """Returns the sources of the fake libcuda.so.1. *folder*: with those that are generated."""
        fake = SOURCE / "tests" / "fake"
        names = ("machine.c", "card.c", "groups.c", "fakecuda.c", "oldcuda.c", "suspend.c")
        generated = ("stubs.c", "table.c")
        return [*(fake / name for name in names), *(folder / "cuda" / name for name in generated)]

    def _compile_client(self, folder: Path) -> None:
        folder.mkdir()
        lines = []
        for line in (SOURCE / "abi" / "cuda.tsv").read_text().splitlines()[1:]:
            row = line.split("\t")
            lines.append(f'{{"{row[0]}", "{row[1]}", {row[2]}, {row[3]}}},\n')
        (folder / "names.inc").write_text("".join(lines))
        flags = [
            "-std=gnu11",
            "-O2",
            "-g",
            "-Wall",
            "-I",
            self.headers,
            "-I",
            folder,
            "-o",
            folder / "client",
        ]
        libraries = ["-Wl,--no-as-needed", "-L", self.driver, "-lcuda", "-lpthread", "-ldl"]
        self._compile(*flags, SOURCE / "tests" / "clients" / "client.c", *libraries)


def arm64() -> Builds:
    """The fake driver and the client for arm64. Raises: Unavailable."""
    try:
        compiler = str(fetch("zig") / "ziglang" / "zig")
    except WheelMissing as error:
        raise Unavailable(str(error)) from error
    return Builds(compiler=(compiler, "cc", "-target", "aarch64-linux-gnu.2.36"))


def run_compiler(*words: str | Path) -> None:
    """Raises: RuntimeError with what the compiler says."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)


def make_library(folder: Path, variant: str) -> None:
    """Compiles libvgpu.so of that variant into *folder*."""
    words = ["make", "--silent", "-C", str(SOURCE), f"BUILD={folder}", f"PYTHON={sys.executable}"]
    if variant in SANITIZERS:
        words.append(f"SANITIZE={SANITIZERS[variant]}")
    if variant == "points":
        words.append("POINTS=1")
    run_compiler(*words)


def make_release(
    folder: Path, targets: Sequence[str] = TARGETS, *, source: Path = SOURCE, **env: str
) -> None:
    """Compiles the libraries of the release into folders that are named after *targets*. Raises: WheelMissing."""
    zig = fetch("zig") / "ziglang" / "zig"
    words = [
        "make",
        "--silent",
        "-C",
        source,
        "release",
        f"BUILD={folder}",
        f"TARGETS={' '.join(targets)}",
    ]
    subprocess.run(
        [*words, f"ZIG={zig}", f"PYTHON={sys.executable}"], env=os.environ | env, check=True
    )


# -- where they lie


def cached_folder(compiler: Sequence[str]) -> Path:
    """Returns the folder for what *compiler* makes of the sources as they are now."""
    folder = cache_root() / "limiter" / digest_of(tuple(compiler))
    if folder.is_dir():
        os.utime(folder)
    return folder


@functools.cache
def digest_of(compiler: tuple[str, ...]) -> str:
    """Returns what changes with each source, each wheel, and the compiler."""
    total = hashlib.sha256(repr((compiler, sorted(PINS.items()))).encode())
    version = (
        subprocess.run([compiler[0], "--version"], capture_output=True, check=False)
        if has(compiler[0])
        else None
    )
    total.update(version.stdout if version else b"")
    for path in (Path(__file__), *sorted(SOURCE.rglob("*"))):
        if path.is_file() and path.suffix != ".pyc" and SOURCE / "build" not in path.parents:
            total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def has(program: str) -> bool:
    return shutil.which(program) is not None


def remove_old(now: float) -> None:
    """Removes builds of other sources that nobody has used for long."""
    for folder in (cache_root() / "limiter").glob("*"):
        if now - folder.stat().st_mtime > KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)


# -- the command


def everything(only_driver: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields what is made, with its name for people."""
    builds = Builds()
    yield "client and fake driver", lambda: builds.client
    yield "library", builds.library
    if only_driver:
        return
    for variant in VARIANTS[1:]:
        yield f"library, {variant}", functools.partial(builds.library, variant)
    for name in PROGRAMS:
        yield name, functools.partial(builds.program, name)
    for name in SANITIZED:
        yield f"{name}, asan", functools.partial(builds.program, name, "asan")
    yield "reader", lambda: builds.reader
    yield "static program", lambda: builds.static
    yield "old NVML", lambda: builds.old_nvml
    yield "linked library", lambda: builds.deep
    yield "release", builds.release
    yield "client and fake driver for arm64", lambda: arm64().client
    for name in PINS:
        yield f"wheel {name}", functools.partial(fetch, name)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m testing.limiter.builds", description=__doc__.partition("\n")[0]
    )
    help_text = "make the library, the fake driver and the client only"
    parser.add_argument("--driver", action="store_true", help=help_text)
    flags = parser.parse_args()
    remove_old(time.time())

    def make(item: tuple[str, Callable[[], object]]) -> str:
        name, build = item
        started = time.monotonic()
        try:
            build()
        except (Unavailable, WheelMissing, BinariesMissing) as error:
            return f"  {name}: not made, its tests are skipped: {error}"
        return f"  {name}: {time.monotonic() - started:.0f} s"

    to_stderr("limiter: its builds for tests, once for each change of its sources")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for line in pool.map(make, everything(flags.driver)):
            to_stderr(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
