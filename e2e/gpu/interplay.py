"""Slot c: with other things that run on GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import Any

from e2e.gpu.card import LIMIT, Card, Skipped, Way
from testing.limiter.rig import MIB

__all__ = ["captures", "churn", "deep_binding", "no_nvml", "own_pids", "starts", "tools"]

Result = dict[str, Any]


def captures(card: Card) -> Result:
    """A capture goes on in another thread while this one allocates, launches and asks: results as without a limiter."""
    rows = []
    for mode in (0, 1, 2):
        for way in (Way.BARE, Way.LIMITED):
            with card.container(way, cores=50) as container:
                client = container.client().start()
                client.do("module")
                client.do(f"captureother {mode}")
                launched = client.do("launch plain busy_50 200")
                rows.append(
                    [
                        mode,
                        str(way),
                        launched,
                        client.do(f"alloc async 0 {MIB}"),
                        client.do("endother"),
                    ]
                )
    return {
        "rows": rows,
        "columns": ["mode", "way", "launch", "alloc", "capture"],
        "good": all(
            bare[2:] == limited[2:] for bare, limited in zip(rows[::2], rows[1::2], strict=True)
        ),
    }


def deep_binding(card: Card) -> Result:
    """A program that loads the driver with RTLD_DEEPBIND and asks it with dlsym: the error beyond the limit. That
    is not what a library does that is linked with the driver."""
    path = str(card.builds.driver / "libcuda.so.1") if card.is_fake else "libcuda.so.1"
    code = (
        "import ctypes, os, sys\n"
        "cu = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_DEEPBIND)\n"
        "c, at = ctypes.c_void_p(), ctypes.c_uint64()\n"
        "cu.cuInit(0); cu.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0); cu.cuCtxSetCurrent(c)\n"
        "print(cu.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_uint64(int(sys.argv[2]))))"
    )
    with card.container(memory=1024 * MIB) as container:
        return {"result_beyond_the_limit": int(container.run_python(code, path, str(1536 * MIB)))}


def no_nvml(card: Card) -> Result:
    """A card of which NVML tells no memory: contexts are not counted, and the limiter says so."""
    if not card.is_fake:
        raise Skipped("run once in a container with NVIDIA_DRIVER_CAPABILITIES=compute")
    with card.container() as container:
        client = container.client(FAKE_NVML_NO_MEMORY="1", FAKE_CUDA_CTX_MIB="300").start()
        free = client.do("info")[1]
        return {"free": free, "told": client.close()}


def own_pids(card: Card) -> Result:
    """NVML's numbers of processes in a PID namespace of its own."""
    if shutil.which("unshare") is None or os.geteuid():
        raise Skipped("needs unshare, and root")
    with card.container() as container:
        client = container.client(within=("unshare", "--pid", "--fork", "--mount-proc")).start()
        client.do(f"alloc plain 0 {100 * MIB}")
        return {"counted": container.region.total(), "good": container.region.total() >= 100 * MIB}


def tools(card: Card) -> Result:
    """NVIDIA's tools run with the library."""
    found = {}
    for name in ("compute-sanitizer", "ncu", "nsys", "cuda-gdb"):
        if card.is_fake or shutil.which(name) is None:
            continue
        with card.container() as container:
            done = subprocess.run(
                [name, "--version"],
                env=container.environment(),
                capture_output=True,
                timeout=30,
                check=False,
            )
            found[name] = done.returncode
    if not found:
        raise Skipped(
            "none of compute-sanitizer, ncu, nsys and cuda-gdb is installed"
            if not card.is_fake
            else "needs a card: NVIDIA's tools look for one"
        )
    return {"tools": found, "good": not any(found.values())}


def starts(card: Card) -> Result:
    """Seconds until 100 processes have a context and memory, one after the other."""
    begun = time.monotonic()
    with card.container(memory=LIMIT) as container:
        for _ in range(100 if not card.is_fake else 20):
            client = container.client().start()
            client.do(f"alloc plain 0 {MIB}")
            client.kill()
    return {"seconds": time.monotonic() - begun}


def churn(card: Card) -> Result:
    """Processes that allocate at random: none gets more than the limit, and all is free afterwards."""
    with card.container(memory=LIMIT) as container:
        clients = [container.client().start() for _ in range(4)]
        free = clients[0].do("info")[1]
        for number, client in enumerate(clients):
            client.send(f"churn {4000 if not card.is_fake else 1000} {LIMIT // 4} {number + 1}")
        granted = [client.answer()[0] for client in clients]
        for client in clients:  # pools give back what they hold, and the limiter sees it
            client.do("sync")
            client.do("info")
        return {
            "granted": granted,
            "left": free - clients[0].do("info")[1],
            "good": clients[0].do("info")[1] == free and all(granted),
        }
