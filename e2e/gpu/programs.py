"""Programs of ML users that some steps run, and what the card says about them."""

from __future__ import annotations

import ctypes
import subprocess
import sys

from e2e.gpu.card import Card, Container

__all__ = ["LAZY", "TORCH", "counted_and_seen", "nvml_of"]

_BEGIN = "import torch\nx = torch.ones(1024, 1024, device='cuda')\n"
TORCH = {
    "torch": _BEGIN,
    "matmul": _BEGIN + "y = x @ x\n",
    "convolution": _BEGIN + "y = torch.nn.Conv2d(8, 8, 3).cuda()(torch.ones(8, 8, 64, 64, device='cuda'))\n",
    "attention": _BEGIN + "q = torch.ones(4, 8, 128, 64, device='cuda', dtype=torch.float16)\n"
                          "y = torch.nn.functional.scaled_dot_product_attention(q, q, q)\n",
    "compile": _BEGIN + "y = torch.compile(lambda x: (x * 2).sin().sum())(x)\n",
    "30 graphs": _BEGIN + "kept = []\nfor _ in range(30):\n    g = torch.cuda.CUDAGraph()\n"
                          "    with torch.cuda.graph(g):\n        y = x * 2\n    kept.append(g)\n    g.replay()\n",
    "expandable segments": "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n" + _BEGIN,
    "cudaMallocAsync": "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'\n" + _BEGIN,
    "FFT": _BEGIN + "y = torch.fft.fft2(x)\n",
    "out of memory": _BEGIN + "try:\n    y = torch.empty(1 << 40, dtype=torch.uint8, device='cuda')\n"
                              "except torch.OutOfMemoryError:\n    pass\n",
}
_WAIT = "torch.cuda.synchronize()\nprint('ready', flush=True)\nimport sys; sys.stdin.read()\n"

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
    """Bytes that the limiter counts, and those that NVML tells, once a program has done its work. Raises: RuntimeError.
    """
    with subprocess.Popen([sys.executable, "-c", code + _WAIT], env=container.environment(), text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            if not process.stdout.readline():
                raise RuntimeError((process.stderr.read().strip().splitlines() or ["it ended"])[-1])
            return container.region.total(), nvml_of(container.card, process.pid)
        finally:
            process.kill()


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu", ctypes.c_uint),
                ("compute", ctypes.c_uint)]


def nvml_of(card: Card, pid: int) -> int | None:
    """Bytes of a process on the card, by NVML; ``None`` if it does not tell. With another number of processes than one,
    as in a container, the only process counts."""
    try:
        nvml = ctypes.CDLL(str(card.builds.driver / "libnvidia-ml.so.1") if card.is_fake else "libnvidia-ml.so.1")
    except OSError:
        return None
    device, count, found = ctypes.c_void_p(), ctypes.c_uint(64), (_Process * 64)()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(card.uuid.encode(), ctypes.byref(device)) \
            or nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found):
        return None
    used = {one.pid: int(one.used) for one in found[:count.value]}
    return used.get(pid, next(iter(used.values())) if len(used) == 1 else None)
