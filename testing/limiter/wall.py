"""A node whose driver limits device memory by control group: directories in place of the groups, the fake NVML."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testing.limiter.builds import Builds
from testing.limiter.rig import uuid_of

__all__ = ["NO_LIMIT", "Answer", "Limits", "Node"]

NO_LIMIT = (1 << 64) - 1
POD = "kubepods.slice/pod1.slice"
MOUNT = "31 23 0:27 / {path} rw,nosuid - cgroup2 cgroup2 rw\n"


class _Set(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t."""

    _fields_ = [
        ("group", ctypes.c_char_p),
        ("soft", ctypes.c_uint64),
        ("hard", ctypes.c_uint64),
    ]


class _Get(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = [*_Set._fields_, ("used", ctypes.c_uint64)]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes."""

    soft: int
    hard: int
    used: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the program has done: *text* is what it wrote to standard output and error."""

    status: int
    text: str


class Node:
    """One node. *backend*: dmem, misc or off."""

    def __init__(self, folder: Path, builds: Builds, backend: str) -> None:
        self._builds = builds
        self._folder = folder
        self._program = builds.wall()
        self._nvml: ctypes.CDLL | None = None
        self.backend = backend
        self.root = folder / "cgroup"
        self.pod = self.root / POD
        self.proc = folder / "proc"
        self.library = builds.driver / "libnvidia-ml.so.1"
        self.pod.mkdir(parents=True)
        (self.proc / "self").mkdir(parents=True)
        self.mount(MOUNT.format(path=self.root))
        for path in (self.pod.parent, self.pod):
            self._add_files(path)

    def mount(self, text: str) -> None:
        """Replaces the table of mounts."""
        (self.proc / "self" / "mountinfo").write_text(text)

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "FAKE_CUDA_STATE": str(self._folder / "machine"),
            "FAKE_CUDA_CTX_MIB": "0",
            "FAKE_NVML_WALL": self.backend,
            **more,
        }

    def add_container(self, pid: int, name: str = "a", *, files: bool = True) -> Path:
        """Makes the control group of a container whose first process is *pid*; returns its directory."""
        group = self.pod / f"cri-containerd-{name}.scope"
        group.mkdir()
        if files:
            self._add_files(group)
        (self.proc / str(pid)).mkdir(exist_ok=True)
        self.join(pid, str(group.relative_to(self.root)))
        return group

    def join(self, pid: int, group: str) -> None:
        """Puts a process into the control group of that name."""
        (self.proc / str(pid) / "cgroup").write_text(f"0::/{group}\n")

    def remove(self, group: Path) -> None:
        shutil.rmtree(group)

    def hook(self, pid: int, size: int, *words: str, state: object = None, **env: str) -> Answer:
        """Runs the program as the runtime runs a hook, with a limit of *size* bytes."""
        if state is None:
            state = {"ociVersion": "1.2.0", "id": "abc", "status": "creating", "pid": pid}
        text = state if isinstance(state, str) else json.dumps(state)
        return self.run("--limit", f"{uuid_of(0)}={size}", *words, text=text, env=env)

    def probe(self, *words: str, **env: str) -> Answer:
        return self.run("--probe", "--device", uuid_of(0), *words, env=env)

    def run(self, *words: str, text: str = "", env: Mapping[str, str] | None = None) -> Answer:
        """Runs the program."""
        given = [self._program, "--library", self.library, "--proc", self.proc, *words]
        done = subprocess.run(
            given,
            input=text,
            env=self.environment(**(env or {})),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Answer(done.returncode, done.stdout + done.stderr)

    def limits(self, group: Path, card: int = 0) -> Limits | None:
        """Returns the limits of a group on a card; ``None`` if it has none, or is gone."""
        found = _Get(group=str(group).encode())
        if self._call("nvmlDeviceGetMemoryLimits_v1", found, card):
            return None
        return Limits(found.soft, found.hard, found.used)

    def set_limits(self, group: Path, *, soft: int, hard: int) -> int:
        """Sets limits as another program may; returns NVML's result."""
        given = _Set(group=str(group).encode(), soft=soft, hard=hard)
        return self._call("nvmlDeviceSetMemoryLimits_v1", given)

    @contextlib.contextmanager
    def static_program(self, group: Path, pieces: int, piece: int = 256) -> Iterator[list[int]]:
        """Runs a static program in a group, which the limiter cannot reach. It takes up to *pieces* of *piece* MiB, and
        keeps them until the block ends. Yields how many it got, and CUDA's error."""
        with subprocess.Popen(
            [self._builds.static, str(piece), str(pieces)],
            env=self.environment(FAKE_CGROUP=str(group), LD_PRELOAD=str(self._builds.library())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            yield [int(word) for word in process.stdout.readline().split()]
            process.stdin.close()

    def _add_files(self, group: Path) -> None:
        if self.backend == "dmem":
            (group / "dmem.max").write_text("")

    def _call(self, name: str, limits: ctypes.Structure, card: int = 0) -> int:
        """Calls NVML in this process, with a copy for this node: a library keeps the machine that it has opened."""
        if self._nvml is None:
            copy = shutil.copy(self.library, self._folder / "libnvidia-ml.so.1")
            self._nvml = ctypes.CDLL(str(copy))
        device = ctypes.c_void_p()
        self._nvml.nvmlDeviceGetHandleByUUID(uuid_of(card).encode(), ctypes.byref(device))
        return int(getattr(self._nvml, name)(device, ctypes.byref(limits)))
