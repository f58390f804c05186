"""CDI specifications of single containers: what a container gets when it starts, under a name that only it has.

A file is replaced by renaming within its folder, and only if its content changes: containerd reads all specifications
again after each change, and does not notice files that come from another folder.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

from hami.node.cdi import VERSION, Document
from hami.node.grant import Grant
from hami.node.host import MIN_AGE_S, host_errors
from hami.runtime.files import write_atomically

KIND = "hami.io/container"  # containerd 2.3.7 crashes if the part before or after / has only one character
_DEVICE = re.compile(rf"{KIND}=([0-9a-f]{{16}})")
_FILE = re.compile(r"hami\.io-container-(?P<name>[0-9a-f]{16})\.json")
_DATA = ("noexec", "nosuid", "nodev")
_PARTS = ("deviceNodes", "mounts", "hooks")


def device_name(name: str) -> str:
    """Returns the qualified name of the device that a container with the specification *name* asks for."""
    return f"{KIND}={name}"


def spec_names(devices: Iterable[str]) -> list[str]:
    """Returns the names of specifications among qualified names of CDI devices."""
    return [match[1] for device in devices if (match := _DEVICE.fullmatch(device))]


def render_grant(name: str, grant: Grant, edits: Iterable[Document] = ()) -> Document:
    """Returns the specification *name* of a container that gets *grant*.

    *edits*: container edits of other specifications, which cannot be named in this one; their variables win.
    """
    parts: dict[str, list[Any]] = {
        "deviceNodes": [{"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions}
                        for node in grant.devices],
        "mounts": [{"hostPath": mount.host_path, "containerPath": mount.container_path,
                    "options": ["ro" if mount.read_only else "rw", "rbind", "rprivate",
                                *(_DATA if mount.is_data else ())]} for mount in grant.mounts],
        "hooks": [],
    }
    env = dict(grant.env)
    for other in edits:
        env |= (variable.partition("=")[::2] for variable in other.get("env", ()))
        for part in _PARTS:
            parts[part] += (edit for edit in other.get(part, ()) if edit not in parts[part])
    edited = {"env": [f"{key}={value}" for key, value in env.items()], **parts}
    return {"cdiVersion": VERSION, "kind": KIND, "devices": [
        {"name": name, "containerEdits": {part: values for part, values in edited.items() if values}}]}


class ContainerSpecs:
    """The files of one node. Threads may share it."""

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        """*folder*: where runtimes look for specifications. *now*: Unix seconds by the clock of the file system."""
        self._folder = folder
        self._now = now

    def write(self, name: str, document: Document) -> None:
        """Writes the specification *name* unless it is there already. Raises: HostError."""
        with host_errors("cannot write a CDI specification"):
            # not forced to disk: it is written again before the container starts again
            write_atomically(self._path(name), msgspec.json.encode(document) + b"\n", durable=False)

    def names(self) -> frozenset[str]:
        """Returns the names of all specifications in the folder. Raises: HostError."""
        with host_errors("cannot list CDI specifications"):
            paths = list(self._folder.iterdir()) if self._folder.exists() else []
        return frozenset(match["name"] for path in paths if (match := _FILE.fullmatch(path.name)))

    def sweep(self, names: Collection[str], used: Collection[str]) -> list[str]:
        """Removes those of *names* that are not *used*; returns the removed ones. Keeps recent ones. Raises: HostError.

        *names* must be listed before it is looked up which are used.
        """
        removed = []
        for name in sorted(set(names) - set(used)):
            path = self._path(name)
            with host_errors("cannot remove a CDI specification"), contextlib.suppress(FileNotFoundError):
                if self._now() - path.stat().st_mtime > MIN_AGE_S:
                    path.unlink()
                    removed.append(name)
        return removed

    def _path(self, name: str) -> Path:
        return self._folder / f"hami.io-container-{name}.json"
