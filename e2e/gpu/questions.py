"""Slot e: ten questions that no card has answered, those first that tell most in a second."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from e2e.gpu import programs
from e2e.gpu.card import Card, Container, Skipped, Way
from testing.limiter.rig import MIB

__all__ = [
    "PROGRAMS",
    "checkpoints",
    "contexts",
    "copies",
    "escapes",
    "frameworks",
    "minute",
    "queries",
    "server",
    "serving",
    "training",
]

Result = dict[str, Any]
GIB = 1024 * MIB
CONTEXT = 518 * MIB
"""What a context takes on an H200; the device plugin measures it."""
WAIT_S = 60.0
_IDS = re.compile(r"GPU-[0-9a-f-]{36}|MIG-[0-9a-f-]{36}")

_DRIVER = """
import ctypes, json, os, struct, sys
u64, pointer, ref = ctypes.c_uint64, ctypes.c_void_p, ctypes.byref
cu = ctypes.CDLL("libcuda.so.1")
def start():
    context = pointer()
    assert cu.cuInit(0) == 0
    assert cu.cuDevicePrimaryCtxRetain(ref(context), 0) == 0
    assert cu.cuCtxSetCurrent(context) == 0
def told():
    free, total = u64(), u64()
    cu.cuMemGetInfo_v2(ref(free), ref(total))
    return [free.value, total.value]
def allocate(size):
    address = u64()
    return cu.cuMemAlloc_v2(ref(address), u64(size)), address
def stage(name, **more):
    print(json.dumps({"stage": name, "told": told(), **more}), flush=True)
    sys.stdin.readline()
"""
"""A program says after each stage what it has been told, and goes on when it is answered."""
_CONTEXTS = (
    _DRIVER
    + """
start()
stage("primary context")
resource, split, rest = ((ctypes.c_ubyte * 144)() for _ in range(3))
cu.cuDeviceGetDevResource(0, resource, 1)
for number in range(4):
    count, description, green = ctypes.c_uint(1), pointer(), pointer()
    results = [cu.cuDevSmResourceSplitByCount(split, ref(count), resource, rest, 0, 8)]
    results.append(cu.cuDevResourceGenerateDesc(ref(description), split, 1))
    results.append(cu.cuGreenCtxCreate(ref(green), description, 0, 1))
    stage(f"green context {number + 1}", results=results)
for number in range(3):
    context = pointer()
    result = cu.cuCtxCreate_v4(ref(context), None, 0, 0)
    stage(f"further context {number + 1}", results=[result])
"""
)
_HOLD = (
    _DRIVER
    + """
start()
result, address = allocate(int(sys.argv[1]))
stage("allocated", results=[result])
for line in sys.stdin:
    result = cu.cuMemsetD8_v2(address, 1, u64(int(sys.argv[1])))
    stage("used", results=[cu.cuCtxSynchronize(), result])
"""
)
_SPARSE = (
    _DRIVER
    + """
start()
array, held = pointer(), 0
# float4, 4 GiB, sparse
shape = struct.pack("<QQQIIIxxxx", 16384, 16384, 0, 0x20, 4, 0x40)
created = cu.cuArray3DCreate_v2(ref(array), shape)
kind = bytearray(64)
struct.pack_into("<IIii", kind, 0, 1, 0, 1, 0)
struct.pack_into("<BBH", kind, 24, 0, 0, 1)
for number in range(8):
    handle = u64()
    if cu.cuMemCreate(ref(handle), u64(512 << 20), (ctypes.c_ubyte * 64).from_buffer(kind), u64(0)):
        break
    tile = bytearray(96)
    struct.pack_into("<IxxxxQIxxxx", tile, 0, 0, array.value or 0, 0)
    struct.pack_into("<IIIIIIII", tile, 24, 0, 0, 0, 2048 * number, 0, 16384, 2048, 1)
    struct.pack_into("<II", tile, 56, 1, 0)
    struct.pack_into("<Q", tile, 64, handle.value)
    struct.pack_into("<I", tile, 80, 1)
    held += cu.cuMemMapArrayAsync((ctypes.c_ubyte * 96).from_buffer(tile), 1, None) == 0
    cu.cuMemRelease(handle)
cu.cuCtxSynchronize()
stage("sparse array", results=[created], held=held * (512 << 20))
"""
)
_DEEP = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
print(library.deep_alloc(ctypes.c_size_t(int(sys.argv[2]))))
"""
_SUSPEND = """
import ctypes, json, sys
cu = ctypes.CDLL("libcuda.so.1")
cu.cuInit(0)
print(json.dumps([getattr(cu, f"cuCheckpointProcess{name}")(int(sys.argv[1]), None) for name in sys.argv[2:]]))
"""
_MODEL = """
import collections, json, os, sys, time
import torch
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True, norm_first=True, dtype=torch.bfloat16)
model = torch.nn.TransformerEncoder(layer, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(4, 512, 2048, device="cuda", dtype=torch.bfloat16)
def step():
    optimizer.zero_grad(set_to_none=True)
    model(x).float().pow(2).mean().backward()
    optimizer.step()
def warm_up(run):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
def rate(run, seconds):
    warm_up(run)
    begun, times = time.monotonic(), []
    while time.monotonic() - begun < seconds:
        run()
        torch.cuda.synchronize()
        times.append(time.monotonic() - begun)
    return len(times) / times[-1], times
"""
_TRAIN = (
    _MODEL
    + """
per_second, times = rate(step, float(sys.argv[1]))
counts = collections.Counter(int(when) for when in times)
print(json.dumps({"rate": per_second, "by_second": [counts[n] for n in range(int(float(sys.argv[1])))]}))
"""
)
_GRAPH = (
    _MODEL
    + """
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream), torch.no_grad():
    warm_up(lambda: model(x))
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    model(x)
print(json.dumps({"rate": rate(graph.replay, float(sys.argv[1]))[0]}))
"""
)
_SERVER = (
    _MODEL
    + """
free, total = torch.cuda.mem_get_info()
if free < 0.9 * total:
    print(json.dumps({"refused": [free, total]}))
    sys.exit()
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    size = int(0.9 * total - (total - free))
    cache = torch.empty(size, dtype=torch.uint8, device="cuda")
    graphs, pool = [], None
    for number in range(35):
        y = torch.randn(1, 8 * (number + 1), 2048, device="cuda", dtype=torch.bfloat16)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            model(y)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, pool=pool):
            out = model(y)
        pool = pool or graph.pool()
        graphs.append((graph, y, out))
    for _ in range(50):
        for graph, *_ in graphs:
            graph.replay()
    torch.cuda.synchronize()
print(json.dumps({"total": total, "cache": size, "free": torch.cuda.mem_get_info()[0]}), flush=True)
sys.stdin.readline()
"""
)
_ATTACK = """
import torch
cudart = torch.cuda.cudart()
a = torch.zeros(1 << 18, 4096, dtype=torch.uint8, device="cuda")
b = a.clone()
print("ready", flush=True)
while True:
    for _ in range(50):
        {line}
    torch.cuda.synchronize()
"""
ATTACKS = {
    "copy": "b.copy_(a)",
    "fill": "a.zero_()",
    "memset": "cudart.cudaMemsetAsync(a.data_ptr(), 0, a.numel(), 0)",
    "copy of rows": "b[:, :4095].copy_(a[:, :4095])",
    "copy from the host": "a.copy_(torch.zeros(1 << 18, 4096, dtype=torch.uint8))",
}
_SERVE = """
import json, sys, time
import torch
weights = [torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(64)]
x = torch.randn(1, 1024, device="cuda", dtype=torch.bfloat16)
times, end = [], time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    begun, y = time.monotonic(), x
    for weight in weights:
        y = torch.nn.functional.silu(y @ weight)
    torch.cuda.synchronize()
    times.append(time.monotonic() - begun)
times.sort()
half, last = times[len(times) // 2], times[len(times) * 99 // 100]
print(json.dumps({"tokens": len(times), "p50_ms": half * 1e3, "p99_ms": last * 1e3}))
"""
_BEYOND = """
import json
try:
    {beyond}
    error = "none: more than the limit was given"
except Exception as raised:
    error = type(raised).__name__
import ctypes
free, total = ctypes.c_uint64(), ctypes.c_uint64()
ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(json.dumps({{"error": error, "told": [free.value, total.value]}}), flush=True)
input()
"""
_FRAMEWORKS = {
    "torch": (
        "import torch\nx = torch.ones(4096, 4096, device='cuda'); y = x @ x\n",
        "torch.empty(8 << 30, dtype=torch.uint8, device='cuda')",
    ),
    "jax": (
        "import jax.numpy as jnp\nx = jnp.ones((4096, 4096)); (x @ x).block_until_ready()\n",
        "jnp.ones((1 << 31,), 'float32').block_until_ready()",
    ),
    "cupy": (
        "import cupy\nx = cupy.ones((4096, 4096)); y = x @ x\n",
        "cupy.ones(1 << 31, 'float32')",
    ),
    "triton": (
        "import torch, triton, triton.language as tl\n@triton.jit\ndef fill(p, n: tl.constexpr):\n"
        "    i = tl.program_id(0) * n + tl.arange(0, n)\n    tl.store(p + i, i)\n"
        "x = torch.empty(1 << 20, device='cuda', dtype=torch.int32)\nfill[(1024,)](x, 1024)\n",
        "torch.empty(8 << 30, dtype=torch.uint8, device='cuda')",
    ),
    "NCCL": (
        "import os, torch\n"
        "os.environ |= {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '29511', 'RANK': '0', 'WORLD_SIZE': '1'}\n"
        "torch.distributed.init_process_group('nccl')\n"
        "x = torch.ones(1 << 20, device='cuda'); torch.distributed.all_reduce(x)\n",
        "torch.empty(8 << 30, dtype=torch.uint8, device='cuda')",
    ),
}
PROGRAMS = {
    "contexts": _CONTEXTS,
    "hold": _HOLD,
    "sparse": _SPARSE,
    "deep": _DEEP,
    "suspend": _SUSPEND,
    "train": _TRAIN,
    "graph": _GRAPH,
    "server": _SERVER,
    "serve": _SERVE,
    **{name: _ATTACK.format(line=line) for name, line in ATTACKS.items()},
    **{name: text + _BEYOND.format(beyond=beyond) for name, (text, beyond) in _FRAMEWORKS.items()},
}
"""The texts of all programs, by name."""


# -- programs that run in a container


@contextlib.contextmanager
def limited(
    card: Card, memory: int, cores: int = 100, policy: str = "default"
) -> Iterator[Container]:
    """A container whose limits are those that the device plugin would write."""
    with card.container(memory=memory, cores=cores) as container:
        context = 0 if card.is_fake else CONTEXT
        device = {"uuid": card.uuid, "memory": memory, "cores": cores}
        if context:
            device["context"] = context
        container.limit(device, policy=policy)
        yield container


class Staged:
    """A running program that says one line of JSON after each stage."""

    def __init__(self, container: Container, name: str, *words: str, **env: str) -> None:
        self._container = container
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAMS[name], *words],
            env=container.environment() | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self) -> str:
        """Returns the next line. Raises: RuntimeError with the program's last error if there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return line
        _, errors = self._process.communicate()
        raise RuntimeError((errors.strip().splitlines() or ["it ended"])[-1])

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def seen(self) -> Result:
        """Returns what the program says, what is counted for its container, and what NVML tells of it."""
        found: Result = json.loads(self.read())
        found["counted"] = self._container.region.total()
        found["nvml"] = programs.Nvml(self._container.card).used(self.pid)
        return found

    def stages(self) -> list[Result]:
        """Returns what is seen after each stage, until the program ends; an error is the last."""
        rows: list[Result] = []
        while True:
            try:
                rows.append(self.seen())
                self.go_on()
            except (RuntimeError, BrokenPipeError) as error:
                if self._process.wait(WAIT_S):
                    rows.append({"error": str(error)})
                return rows

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def staged(container: Container, name: str, *words: str, **env: str) -> Iterator[Staged]:
    program = Staged(container, name, *words, **env)
    try:
        yield program
    finally:
        program.kill()


def told(container: Container, name: str, *words: str, timeout: float = 90) -> Result:
    """Returns what a program prints in the end; its error in place of that."""
    try:
        found: Result = json.loads(container.run_python(PROGRAMS[name], *words, timeout=timeout))
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    return found


def shell(words: Sequence[str], env: dict[str, str]) -> str:
    """Returns what a program prints, without the names of cards."""
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=20, check=False)
    return _IDS.sub("GPU", done.stdout + done.stderr)[-4000:]


# -- the questions


def queries(card: Card) -> Result:
    """What nvidia-smi shows in a container of 8 GiB, beside another one."""
    if card.is_fake or shutil.which("nvidia-smi") is None:
        raise Skipped("needs a card, and nvidia-smi")
    fields = "--query-gpu=memory.total,memory.used,memory.free"
    calls = (
        ("nvidia-smi",),
        ("nvidia-smi", fields, "--format=csv,noheader,nounits"),
        ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"),
        ("nvidia-smi", "pmon", "-c", "1"),
        ("nvidia-smi", "-q", "-d", "MEMORY,PIDS,ACCOUNTING"),
    )
    with limited(card, 8 * GIB) as one, limited(card, 8 * GIB) as other:
        with staged(one, "hold", str(GIB)) as own, staged(other, "hold", str(3 * GIB)) as neighbor:
            own.read()
            neighbor.read()
            output = {" ".join(words): shell(words, one.environment()) for words in calls}
            total = output[" ".join(calls[1])].partition(",")[0].strip()
            pids = re.findall(r"^(\d+),", output[" ".join(calls[2])], re.MULTILINE)
            return {
                "own": own.pid,
                "neighbor": neighbor.pid,
                "output": output,
                "good": total == "8192" and str(neighbor.pid) not in pids,
            }


def contexts(card: Card) -> Result:
    """What contexts of other kinds take, and what is counted for them; and those of three processes under MPS."""
    with limited(card, 32 * GIB) as container, staged(container, "contexts") as program:
        rows = program.stages()
    card.keep({"stages": rows})
    return {"stages": rows, "mps": _mps(card)}


def _mps(card: Card) -> Result:
    """Returns the memory of three processes under a daemon of their own."""
    if card.is_fake or shutil.which("nvidia-cuda-mps-control") is None:
        return {"skipped": "needs a card, and nvidia-cuda-mps-control"}
    with limited(card, 8 * GIB) as container:
        folder = container.folder / "mps"
        folder.mkdir()
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
        all_env = container.environment() | env
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=all_env, timeout=20, check=False)
        try:
            with contextlib.ExitStack() as stack:
                clients = [
                    stack.enter_context(staged(container, "hold", str(GIB), **env))
                    for _ in range(3)
                ]
                rows = [client.seen() for client in clients]
                query = ("nvidia-smi", "--query-compute-apps=pid,used_memory,name", "--format=csv")
                return {"clients": rows, "nvidia-smi": shell(query, dict(os.environ))}
        except RuntimeError as error:
            return {"error": str(error)}
        finally:
            subprocess.run(
                ["nvidia-cuda-mps-control"],
                input="quit\n",
                text=True,
                env=all_env,
                timeout=20,
                check=False,
            )


def escapes(card: Card) -> Result:
    """Whether memory escapes the limit that is held by sparse arrays, or by a library of RTLD_DEEPBIND."""
    with limited(card, 2 * GIB) as container, staged(container, "sparse") as program:
        rows = program.stages()
    with limited(card, 2 * GIB) as container:
        result = int(container.run_python(PROGRAMS["deep"], str(card.builds.deep), str(3 * GIB)))
    held = rows[0].get("held", 0)
    return {"sparse": rows, "deep_result_beyond_the_limit": result, "good": held <= 2 * GIB}


def checkpoints(card: Card) -> Result:
    """Whether a process can be suspended and woken in a container, what is counted meanwhile, and who may take it."""
    unit = 8 * MIB if card.is_fake else GIB  # the fake card's memory is that of this machine
    size = 5 * unit
    with limited(card, 8 * unit) as container, staged(container, "hold", str(size)) as program:
        found: Result = {"before": program.seen()}
        program.go_on()
        found["suspended"] = told(container, "suspend", str(program.pid), "Lock", "Checkpoint")
        found["counted while suspended"] = container.region.total()
        with staged(container, "hold", str(size)) as second:
            found["second program"] = second.seen()
        found["woken"] = told(container, "suspend", str(program.pid), "Restore", "Unlock")
        program.go_on()
        found["after"] = program.seen()
    return found


def training(card: Card) -> Result:
    """What the limiter costs training: steps in a second without it, and with limits of memory and of cores."""
    card.needs_module("torch")
    rows = []
    for turn in (1, 2):
        for kind, program in (("eager", "train"), ("graph", "graph")):
            row: list[Any] = [kind, turn]
            with card.container(Way.BARE) as container:
                row.append(told(container, program, "4").get("rate"))
            for cores in (100, 90):
                with limited(card, 32 * GIB, cores) as container:
                    row.append(told(container, program, "4").get("rate"))
            rows.append(row)
            card.keep({"rows": rows})
    return {"rows": rows, "columns": ["step", "turn", "bare", "memory", "cores 90"]}


def minute(card: Card) -> Result:
    """Steps of training in each of 60 seconds at 30 %, and without a limit."""
    card.needs_module("torch")
    with card.container(Way.BARE) as container:
        bare = told(container, "train", "8")
    with limited(card, 32 * GIB, 30, "force") as container:
        limited_rate = told(container, "train", "60", timeout=80)
    percent = 100 * limited_rate.get("rate", 0) / bare["rate"] if bare.get("rate") else None
    return {
        "bare": bare,
        "limited": limited_rate,
        "percent": percent,
        "good": percent is not None and abs(percent - 30) <= 3,
    }


def server(card: Card) -> Result:
    """Whether a server starts that sizes its cache by what it is told, as vLLM does, with three allocators."""
    card.needs_module("torch")
    rows = []
    for gib in (12, 24):
        for allocator in ("", "expandable_segments:True", "backend:cudaMallocAsync"):
            env = {"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {}
            with (
                limited(card, gib * GIB) as container,
                staged(container, "server", **env) as program,
            ):
                try:
                    found = program.seen()
                except RuntimeError as error:
                    found = {"error": str(error)}
            rows.append({"gib": gib, "allocator": allocator or "native", **found})
            card.keep({"starts": rows})
    good = all("cache" in row and (row["nvml"] or 0) <= row["gib"] * GIB for row in rows)
    return {"starts": rows, "good": good}


def copies(card: Card) -> Result:
    """What a container with 10 % that only copies and sets memory leaves for one with 90 % that trains."""
    card.needs_module("torch")
    with limited(card, 32 * GIB, 90, "force") as container:
        rows = [["nothing", told(container, "train", "6").get("rate")]]
    for name in ATTACKS:
        with (
            limited(card, 8 * GIB, 10, "force") as other,
            limited(card, 32 * GIB, 90, "force") as container,
            staged(other, name) as program,
        ):
            program.read()
            rows.append([name, told(container, "train", "6").get("rate")])
        card.keep({"rows": rows})
    return {"rows": rows, "columns": ["beside", "steps in a second"]}


def frameworks(card: Card) -> Result:
    """What is counted for PyTorch, JAX, CuPy, Triton and NCCL in 6 GiB, and their error beyond it."""
    if card.is_fake:
        raise Skipped("needs a card: frameworks compute")
    found: Result = {}
    for name in _FRAMEWORKS:
        try:
            card.needs_module("torch" if name == "NCCL" else name)
            with limited(card, 6 * GIB, 30) as container, staged(container, name) as program:
                found[name] = program.seen()
        except (Skipped, RuntimeError) as error:
            found[name] = {"error": str(error), "told": None}
        card.keep({"programs": found})
    missed = [name for name, row in found.items() if "more than the limit" in row["error"]]
    return {"programs": found, "good": not missed}


def serving(card: Card) -> Result:
    """Tokens in a second and their p99, alone, and with 70 % beside training with 30 %."""
    card.needs_module("torch")
    with card.container(Way.BARE) as container:
        alone = told(container, "serve", "15")
    with (
        limited(card, 32 * GIB, 30, "force") as other,
        limited(card, 16 * GIB, 70, "force") as container,
        staged(other, "train", "45") as program,
    ):
        time.sleep(12)  # until it trains
        beside = told(container, "serve", "20")
        trained = json.loads(program.read())
    return {"alone": alone, "70 beside 30": beside, "training": trained}
