"""What NVIDIA's GPU Operator leaves on a node, imitated by its paths.

A driver, a runtime that gives it to containers, and the file which says that both are ready.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from testing.realnode import RealNode

__all__ = ["DRIVER", "READY", "RUNTIME_CLASS", "install_driver", "install_toolkit"]

DRIVER = "/run/nvidia/driver"
READY = "/run/nvidia/validations/toolkit-ready"
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
RUNTIME = """#!{python}
# Adds the driver and the visible devices to a container, and starts it with runc.
import json, os, sys

words = sys.argv[1:]
if "--bundle" in words:
    path = os.path.join(words[words.index("--bundle") + 1], "config.json")
    config = json.load(open(path))
    env = dict(entry.split("=", 1) for entry in config["process"]["env"])
    visible = env.get("NVIDIA_VISIBLE_DEVICES", "void")
    if visible not in ("", "void"):
        names = [f"nvidia{{int(uuid.rpartition('-')[2])}}" for uuid in visible.split(",")] + ["nvidiactl"]
        pairs = [("usr/bin/nvidia-smi", "/bin/nvidia-smi"), *(("dev/" + name, "/dev/" + name) for name in names)]
        config["mounts"] += [{{"source": "{driver}/" + source, "destination": target, "type": "bind",
                               "options": ["bind", "rw"]}} for source, target in pairs]
        json.dump(config, open(path, "w"))
os.execvp("runc", ["runc", *words])
"""
SMI = """#!/bin/sh
for card in /dev/nvidia[0-9]*; do echo GPU $card; done
echo "of ${CUDA_DEVICE_MEMORY_LIMIT_0:-all its memory}, ${CUDA_DEVICE_SM_LIMIT:-all} percent"
"""


def install_driver(node: RealNode, gpus: int) -> None:
    """Puts the files of the driver on the node, with as many devices."""
    driver = node.path(DRIVER)
    (driver / "dev").mkdir(parents=True)
    for name in (*(f"nvidia{number}" for number in range(gpus)), "nvidiactl"):
        os.mknod(driver / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    executable(driver / "usr/bin/nvidia-smi", SMI)


def install_toolkit(node: RealNode) -> None:
    """Puts the runtime on the node, which containerd has as ``nvidia``, and creates the RuntimeClass."""
    executable(
        node.folder / "nvidia-container-runtime",
        RUNTIME.format(python=sys.executable, driver=DRIVER),
    )
    node.kube.create(RUNTIME_CLASS)
    ready = node.path(READY)
    ready.parent.mkdir(parents=True, exist_ok=True)
    ready.touch()


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
