"""Slot a: does it hold at all."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from e2e.gpu import programs
from e2e.gpu.card import LIMIT, Card, Skipped, Way
from testing.limiter.builds import ROOT, SOURCE
from testing.limiter.rig import MIB

__all__ = [
    "capture_matrix",
    "granularity",
    "kills",
    "neighbor",
    "others",
    "record",
    "resolution",
    "suite",
    "truth",
]

Result = dict[str, Any]


def _told(*words: str) -> str:
    try:
        return subprocess.run(
            words, capture_output=True, text=True, timeout=8, check=False
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not known: {error}"


def record(card: Card) -> Result:
    """What the figures belong to."""
    version = Path("/proc/driver/nvidia/version")
    told = "fake" if card.is_fake else _told("nvidia-smi", "-q")
    return {
        "card": "\n".join(
            line for line in told.splitlines() if not re.search("Serial|UUID|PDI|GUID", line)
        ),
        "driver": version.read_text() if version.exists() else "not known",
        "uname": " ".join(platform.uname()),
        "libc": " ".join(platform.libc_ver()),
        "kernel_log_sandbox": "gvisor" in _told("dmesg").lower(),
        "processes": _told(
            "nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"
        ),
        "mps": "nvidia-cuda-mps" in _told("ps", "ax"),
        "cpus": os.cpu_count(),
        "library_sha256": hashlib.sha256(card.builds.library().read_bytes()).hexdigest(),
    }


# -- functions

RESOLVE = """
import ctypes, json, sys
path, rows = sys.argv[1], [line.split("\\t") for line in open(sys.argv[2]).read().splitlines()[1:]]
cu, libdl = ctypes.CDLL(path), ctypes.CDLL(None)
libdl.dlsym.restype, libdl.dlsym.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("at", ctypes.c_void_p)]
def where(address):
    info = Info()
    libdl.dladdr(ctypes.c_void_p(address), ctypes.byref(info))
    return (info.file or b"").decode().rsplit("/", 1)[-1]
cu.cuInit(0)
found = {}
for symbol, base, version, per_thread, _ in rows:
    own = libdl.dlsym(cu._handle, symbol.encode())
    answers = []
    for flags in (0, 1, 2):
        address = ctypes.c_void_p()
        if version == "-" or cu.cuGetProcAddress_v2(base.encode(), ctypes.byref(address), int(version),
                                                    ctypes.c_uint64(flags), None):
            address.value = None
        answers.append(address.value)
    wanted = answers[2] if per_thread == "1" else answers[1]
    found[symbol] = [own is not None, wanted is not None, own == wanted, where(own) if own else "",
                     where(wanted) if wanted else ""]
print(json.dumps(found))
"""


def resolution(card: Card) -> Result:
    """The address that ``cuGetProcAddress`` answers is that which ``dlsym`` answers. The limiter relies on it; if they
    differ, it finds functions by their names. Also which library answers under the limiter."""
    table = str(SOURCE / "abi" / "cuda.tsv")
    path = str(card.builds.driver / "libcuda.so.1") if card.is_fake else "libcuda.so.1"
    found = {}
    for way in (Way.BARE, Way.LIMITED):
        with card.container(way) as container:
            found[way] = json.loads(container.run_python(RESOLVE, path, table))
    both = {symbol: one for symbol, one in found[Way.BARE].items() if one[0] and one[1]}
    differ = sorted(symbol for symbol, one in both.items() if not one[2])
    hooked = {
        line.split()[0]
        for line in (SOURCE / "hooks.txt").read_text().splitlines()
        if line.startswith("cu") and line.split()[1] != "call"
    }
    escaped = sorted(
        symbol
        for symbol, one in found[Way.LIMITED].items()
        if symbol in hooked and both.get(symbol) and one[4] != "libvgpu.so"
    )
    return {
        "functions": len(both),
        "differ": differ,
        "escaped": escaped,
        "good": not differ and not escaped,
    }


# -- captures

_CALLS = {
    "cuMemGetInfo_v2": lambda cu, it: cu.cuMemGetInfo_v2(it.number, it.number),
    "cuCtxGetDevice": lambda cu, it: cu.cuCtxGetDevice(it.number),
    "cuCtxGetCurrent": lambda cu, it: cu.cuCtxGetCurrent(it.number),
    "cuStreamIsCapturing": lambda cu, it: cu.cuStreamIsCapturing(it.other, it.number),
    "cuStreamGetCtx": lambda cu, it: cu.cuStreamGetCtx(it.other, it.number),
    "cuEventCreate": lambda cu, it: cu.cuEventCreate(it.number, 0),
    "cuEventRecord": lambda cu, it: cu.cuEventRecord(it.event, it.other),
    "cuEventQuery": lambda cu, it: cu.cuEventQuery(it.event),
    "cuEventElapsedTime": lambda cu, it: cu.cuEventElapsedTime(it.number, it.event, it.event),
    "cuMemPoolGetAttribute": lambda cu, it: cu.cuMemPoolGetAttribute(it.pool, 5, it.number),
    "cuMemPoolTrimTo": lambda cu, it: cu.cuMemPoolTrimTo(it.pool, ctypes.c_uint64(0)),
    "cuDeviceGetMemPool": lambda cu, it: cu.cuDeviceGetMemPool(it.number, 0),
    "cuDeviceGetGraphMemAttribute": lambda cu, it: cu.cuDeviceGetGraphMemAttribute(0, 2, it.number),
    "cuModuleGetLoadingMode": lambda cu, it: cu.cuModuleGetLoadingMode(it.number),
}
_MODES = {"global": 0, "thread-local": 1, "relaxed": 2}


class _Objects:
    """A context with two streams, an event and a pool."""

    def __init__(self, cu: ctypes.CDLL) -> None:
        self.context, self.captured, self.other, self.event, self.pool = (
            ctypes.c_void_p() for _ in range(5)
        )
        self.number = (ctypes.c_uint64 * 8)()
        assert cu.cuInit(0) == cu.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0) == 0
        assert cu.cuCtxSetCurrent(self.context) == 0
        for stream in (self.captured, self.other):
            assert cu.cuStreamCreate(ctypes.byref(stream), 1) == 0
        assert (
            cu.cuEventCreate(ctypes.byref(self.event), 0)
            == cu.cuEventRecord(self.event, self.other)
            == 0
        )
        assert cu.cuDeviceGetDefaultMemPool(ctypes.byref(self.pool), 0) == 0


def _call(cu: ctypes.CDLL, it: _Objects, name: str, relaxed: bool) -> int:
    mode = ctypes.c_int(2)
    if relaxed:
        cu.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    result = int(_CALLS[name](cu, it))
    if relaxed:
        cu.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    return result


def capture_matrix(card: Card) -> Result:
    """Each call of the limiter's during a capture, by its own or another thread: the result, and whether the capture
    is still valid. The limiter makes them in relaxed mode."""
    cu = card.driver()
    it, rows, broken = _Objects(cu), [], []
    for name in _CALLS:
        for mode, number in _MODES.items():
            for where in ("own", "other"):
                for relaxed in (True, False):
                    assert cu.cuStreamBeginCapture_v2(it.captured, number) == 0
                    told: list[int] = []

                    def call(
                        name: str = name, relaxed: bool = relaxed, told: list[int] = told
                    ) -> None:
                        cu.cuCtxSetCurrent(it.context)
                        told.append(_call(cu, it, name, relaxed))

                    if where == "own":
                        call()
                    else:
                        thread = threading.Thread(target=call)
                        thread.start()
                        thread.join()
                    graph = ctypes.c_void_p()
                    ended = cu.cuStreamEndCapture(it.captured, ctypes.byref(graph))
                    rows.append([name, mode, where, relaxed, told[0], ended])
                    if relaxed and ended:
                        broken.append(f"{name}, {mode}, {where} thread: {ended}")
    return {"rows": rows, "broken": broken, "good": not broken}


# -- memory


def suite(card: Card) -> Result:
    """tests/libvgpu/test_gpu.py, as it is."""
    if card.is_fake:
        raise Skipped("needs a card: the tests skip themselves")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/libvgpu/test_gpu.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return {"output": done.stdout[-4000:], "good": done.returncode == 0}


def granularity(card: Card) -> Result:
    """Bytes that the card loses for each allocation, and bytes that are charged."""
    rows = []
    for kind, second in (("plain", 0), ("managed", 0), ("pool", 0)):
        for size in (512, 65536, MIB, MIB + 512, 3 * MIB, 64 * MIB):
            count, row = 20, [kind, size]
            for way in (Way.BARE, Way.LIMITED):
                with card.container(way) as container:
                    client = container.client().start()
                    client.do("defaultpool 0 0")
                    client.do(f"alloc {kind} 999 512 {second}")
                    before = client.do("info")[1]
                    results = [
                        client.do(f"alloc {kind} {number} {size} {second}")
                        for number in range(count)
                    ]
                    row.append((before - client.do("info")[1]) / max(results.count(0), 1))
            rows.append(row)
    worst = max(
        abs(taken - charged) / max(taken, 1)
        for kind, _, taken, charged in rows
        if kind == "plain" and taken
    )
    return {"rows": rows, "columns": ["kind", "bytes", "taken", "charged"], "worst": worst}


def _compared(rows: list[list[Any]]) -> Result:
    off = [abs(row[1] - row[2]) / row[2] for row in rows if len(row) > 2 and row[2]]
    return {
        "rows": rows,
        "columns": ["after", "counted", "NVML"],
        "worst": max(off, default=0.0),
        "good": max(off, default=0.0) <= 0.05 and all(len(row) > 2 for row in rows),
    }


def _of_programs(card: Card, rows: list[list[Any]], codes: dict[str, tuple[str, str]]) -> Result:
    """*codes*: by name, the module that a program needs, and its text."""
    for name, (module, code) in codes.items():
        try:
            card.needs_module(module)
            with card.container() as container:
                rows.append([name, *programs.counted_and_seen(container, code)])
        except Skipped as error:
            rows.append([name, None, None, str(error)])
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            rows.append([name, str(error)])
        card.keep(_compared(rows))
    return _compared(rows)


def truth(card: Card) -> Result:
    """What is counted, and what NVML says of the process, after each of many things."""
    rows: list[list[Any]] = []
    with card.container() as container:
        client = container.client(FAKE_CUDA_CTX_MIB="300").start()
        for what, command in (
            ("context", "info"),
            ("module", "module 1"),
            ("1 GiB", f"alloc plain 0 {1 << 30}"),
        ):
            client.do(command)
            rows.append(
                [what, container.region.total(), programs.Nvml(card).used(client.process.pid)]
            )
    return _of_programs(
        card, rows, {name: ("torch", code) for name, code in programs.TORCH.items()}
    )


def others(card: Card) -> Result:
    """The same of JAX, CuPy and numba, of NCCL, of processes that share memory, and of forks."""
    return _of_programs(card, [], programs.OTHERS)


def kills(card: Card) -> Result:
    """Milliseconds until all is free again after a process was killed in a kernel; a reset with 50,000 allocations."""
    took = []
    with card.container() as container:
        other = container.client().start()
        free = other.do("info")[1]
        for _ in range(20):
            victim = container.client().start()
            victim.do(f"alloc plain 0 {LIMIT // 2}")
            victim.send("load busy_2000 5000")
            time.sleep(0.02)
            victim.kill()
            begun = time.monotonic()
            while other.do("info")[1] < free and time.monotonic() - begun < 10:
                time.sleep(0.002)
            took.append((time.monotonic() - begun) * 1000)
        client = container.client(FAKE_CUDA_FAST="1").start()
        client.do("allocs 50000 512")
        begun = time.monotonic()
        reset = client.do("reset 0")
    return {
        "free_again_ms": took,
        "reset_ms": (time.monotonic() - begun) * 1000,
        "reset": reset,
        "good": max(took) < 2000 and reset == 0,
    }


def neighbor(card: Card) -> Result:
    """A context is made twenty times beside a neighbor that loads 8 GiB, piece by piece: what is counted for it."""
    counted = []
    with card.container(Way.BARE) as bare, card.container() as container:
        beside = bare.client().start()
        beside.send(f"neighbor {64 * MIB} {8192 * MIB} 5000 {card.seconds(30) * 1000:.0f}")
        for _ in range(20 if not card.is_fake else 5):
            client = container.client(FAKE_CUDA_CTX_MIB="400", FAKE_CUDA_CTX_US="100000").start()
            counted.append(container.region.total())
            client.kill()
        with contextlib.suppress(EOFError):
            beside.kill()
    return {"counted": counted, "spread": max(counted) - min(counted)}
