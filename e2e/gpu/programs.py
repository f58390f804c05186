"""Programs of ML users that some steps run, and what the card says about them."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from e2e.gpu.card import LIMIT, Card, Container, Skipped
from testing.limiter.layout import Region

__all__ = ["LAZY", "OTHERS", "TORCH", "Nvml", "counted_and_seen", "sampled"]

ROUND_S = 0.9
"""Seconds between two rounds of a node monitor."""

_BEGIN = "import torch\nx = torch.ones(1024, 1024, device='cuda')\n"
TORCH = {
    "torch": _BEGIN,
    "matmul": _BEGIN + "y = x @ x\n",
    "convolution": _BEGIN
    + "y = torch.nn.Conv2d(8, 8, 3).cuda()(torch.ones(8, 8, 64, 64, device='cuda'))\n",
    "attention": _BEGIN + "q = torch.ones(4, 8, 128, 64, device='cuda', dtype=torch.float16)\n"
    "y = torch.nn.functional.scaled_dot_product_attention(q, q, q)\n",
    "compile": _BEGIN + "y = torch.compile(lambda x: (x * 2).sin().sum())(x)\n",
    "30 graphs": _BEGIN + "kept = []\nfor _ in range(30):\n    g = torch.cuda.CUDAGraph()\n"
    "    with torch.cuda.graph(g):\n        y = x * 2\n    kept.append(g)\n    g.replay()\n",
    "expandable segments": "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n"
    + _BEGIN,
    "cudaMallocAsync": "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'\n"
    + _BEGIN,
    "FFT": _BEGIN + "y = torch.fft.fft2(x)\n",
    "out of memory": _BEGIN
    + f"try:\n    y = torch.empty({LIMIT + (1 << 30)}, dtype=torch.uint8, device='cuda')\n"
    "except torch.OutOfMemoryError:\n    pass\n"
    "else:\n    raise SystemExit('more than the limit was given')\n",
}
_WAIT = "\nprint('ready', flush=True)\nimport sys; sys.stdin.read()\n"

_DATA_LOADER = """
import torch
x = torch.ones(1024, 1024, device="cuda")
data = torch.utils.data.TensorDataset(torch.ones(64, 8))
for batch, in torch.utils.data.DataLoader(data, batch_size=8, num_workers=4, multiprocessing_context="fork"):
    x[:8, :8] += batch.cuda()
"""
_NCCL = """
import os, torch
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
torch.distributed.init_process_group("nccl")
x = torch.ones(1 << 20, device="cuda")
torch.distributed.all_reduce(x)
"""
_IPC = """
import base64, pickle, subprocess, sys, torch
x = torch.ones(1 << 24, device="cuda")
handle = base64.b64encode(pickle.dumps(x.untyped_storage()._share_cuda_())).decode()
code = '''
import base64, pickle, sys, torch
torch.cuda.init()
print(torch.UntypedStorage._new_shared_cuda(*pickle.loads(base64.b64decode(sys.argv[1]))).nbytes())
'''
done = subprocess.run([sys.executable, "-c", code, handle], capture_output=True, text=True)
assert done.stdout.strip() == str(4 << 24), done.stderr
"""
_NUMBA = """
import numpy
from numba import cuda
@cuda.jit
def add(x):
    x[cuda.grid(1)] += 1
x = cuda.to_device(numpy.ones(1 << 20))
add[4096, 256](x)
cuda.synchronize()
"""
OTHERS = {
    "4 forks that load data": ("torch", _DATA_LOADER),
    "NCCL": ("torch", _NCCL),
    "CUDA IPC": ("torch", _IPC),
    "JAX": (
        "jax",
        "import jax.numpy as jnp\nx = jnp.ones((1024, 1024))\ny = (x @ x).block_until_ready()\n",
    ),
    "CuPy": (
        "cupy",
        "import cupy\nx = cupy.ones((1024, 1024))\ny = x @ x\ncupy.cuda.Device().synchronize()\n",
    ),
    "numba": ("numba", _NUMBA),
}
"""The module that each needs, and its text."""

LAZY = """
import time; begun = time.monotonic()
import torch
model = torch.nn.Transformer(d_model=256, nhead=8, num_encoder_layers=4, num_decoder_layers=4, batch_first=True).cuda()
x = torch.ones(8, 64, 256, device="cuda")
for step in range(2):
    model(x, x).sum().backward()
torch.cuda.synchronize()
print(time.monotonic() - begun)
"""
"""Seconds from the import to the end of the second step."""


def counted_and_seen(container: Container, code: str) -> tuple[int, int | None]:
    """Bytes that the limiter counts, and those that NVML tells, once a program has done its work.
    Raises: RuntimeError."""
    with subprocess.Popen(
        [sys.executable, "-c", code + _WAIT],
        env=container.environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            if not process.stdout.readline():
                raise RuntimeError((process.stderr.read().strip().splitlines() or ["it ended"])[-1])
            return container.region.total(), Nvml(container.card).used(process.pid)
        finally:
            process.kill()


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    ]


class _Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("when", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    ]


class Nvml:
    """What NVML tells of one card."""

    def __init__(self, card: Card) -> None:
        """Raises: Skipped if there is no NVML."""
        try:
            self._nvml = ctypes.CDLL(
                str(card.builds.driver / "libnvidia-ml.so.1")
                if card.is_fake
                else "libnvidia-ml.so.1"
            )
        except OSError as error:
            raise Skipped(str(error)) from error
        self._device = ctypes.c_void_p()
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByUUID(
            card.uuid.encode(), ctypes.byref(self._device)
        ):
            raise Skipped("NVML does not know the card")

    def used(self, pid: int) -> int | None:
        """Bytes of a process; ``None`` if they are not told. With another number of processes than one, as in a
        container, the only process counts."""
        count, found = ctypes.c_uint(64), (_Process * 64)()
        if self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(
            self._device, ctypes.byref(count), found
        ):
            return None
        used = {one.pid: int(one.used) for one in found[: count.value]}
        return used.get(pid, next(iter(used.values())) if len(used) == 1 else None)

    def percent(self, since: int) -> tuple[dict[int, int], int]:
        """The latest utilization of each process that has worked since then; the time of the last, in microseconds."""
        count, found = (
            ctypes.c_uint(512),
            (_Sample * 512)(),
        )  # a driver wants places for more processes than there are
        if self._nvml.nvmlDeviceGetProcessUtilization(
            self._device, found, ctypes.byref(count), ctypes.c_ulonglong(since)
        ):
            return {}, since
        latest = sorted(
            (one.when, one.pid, one.sm)
            for one in found[: count.value]
            if one.pid and one.when >= since
        )
        return {pid: percent for _, pid, percent in latest}, latest[-1][0] if latest else since


@contextlib.contextmanager
def sampled(card: Card, regions: Sequence[Region]) -> Iterator[list[dict[int, int]]]:
    """Writes utilization into the regions as the node monitor does, until the block ends.
    Yields what it has written."""
    nvml, done, written = Nvml(card), threading.Event(), []

    def run() -> None:
        since = 0
        while not done.wait(ROUND_S):
            percent, since = nvml.percent(since)
            written.append(percent)
            for region in regions:
                region.sample(0, percent, time.monotonic_ns())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield written
    finally:
        done.set()
        thread.join()
