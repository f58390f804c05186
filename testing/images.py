"""Builds container images for nodes without a registry: the program ``box`` in a docker-archive.

The archive has the format of ``docker save``: the layer as a tar, the configuration of the image, and a manifest that
names both. Standard library only.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["pack_box"]

FOLDERS = ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr/bin", "usr/local", "var/run")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
EPOCH = "1970-01-01T00:00:00Z"


def pack_box(target: Path, name: str, box: Path, *, command: Sequence[str] = ("sh",)) -> None:
    """Writes an image called *name* (``registry/repository:tag``) to the docker-archive *target*.

    *box*: the program, whose source is in ``testing/runtime/box``. *command*: the default one of its containers.
    """
    layer = root_filesystem(box)
    configuration = json.dumps(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": EPOCH,
            "config": {"Cmd": list(command), "Env": ["PATH=/bin"], "WorkingDir": "/"},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"],
            },
            "history": [{"created": EPOCH, "created_by": "testing.images"}],
        }
    ).encode()
    digest = hashlib.sha256(configuration).hexdigest()
    manifest = json.dumps(
        [{"Config": f"{digest}.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    ).encode()
    with tarfile.open(target, "w") as archive:
        for path, content in (
            (f"{digest}.json", configuration),
            ("layer.tar", layer),
            ("manifest.json", manifest),
        ):
            add(archive, path, content)


def root_filesystem(box: Path) -> bytes:
    """Returns the layer: directories, the program with a link for each of its names, and two accounts."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as layer:
        for folder in FOLDERS:
            add(layer, folder, type=tarfile.DIRTYPE, mode=0o1777 if folder == "tmp" else 0o755)
        add(layer, "bin/box", box.read_bytes(), mode=0o755)
        names = subprocess.run([box], capture_output=True, text=True, check=True).stdout.split()
        for name in names:
            add(layer, f"bin/{name}", type=tarfile.SYMTYPE, linkname="box", mode=0o777)
        add(
            layer,
            "etc/passwd",
            b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        )
        add(layer, "etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    return written.getvalue()


def add(archive: tarfile.TarFile, path: str, content: bytes = b"", **fields: Any) -> None:
    """Adds an entry that belongs to root, with the epoch as its time, so that equal input gives an equal image."""
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    entry.mode = 0o644
    for key, value in fields.items():
        setattr(entry, key, value)
    archive.addfile(entry, io.BytesIO(content))
