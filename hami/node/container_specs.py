"""CDI specifications of single containers: what a container gets when it starts, under a name that only it has, or that
the request of a claim has.

A file is replaced by renaming within its folder, and only if its content changes: containerd reads all specifications
again after each change, and does not notice files that come from another folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from hami.errors import HostError
from hami.node.cdi import VERSION, Document
from hami.node.grant import Grant, Hook, Mount
from hami.node.host import MIN_AGE_S, host_errors
from hami.runtime.files import FileVersion, file_version, write_atomically

# containerd 2.3.7 crashes if the part before or after / has only one character
KIND = "hami.io/container"
CLAIM = "hami.io/claim"
"""The kind of specifications for claims, whose names are the uid of the claim, ``_`` and the name of the request."""
_NAMES = {
    KIND: re.compile(r"[0-9a-f]{16}"),
    CLAIM: re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}_[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"),
}
_DATA = ("noexec", "nosuid", "nodev")


def device_name(name: str, kind: str = KIND) -> str:
    """Returns the qualified name of the device that a container with the specification *name* asks for."""
    return f"{kind}={name}"


def spec_names(devices: Iterable[str]) -> list[str]:
    """Returns the names of specifications among qualified names of CDI devices."""
    parts = [device.partition("=") for device in devices]
    return [name for kind, _, name in parts if kind == KIND and _NAMES[KIND].fullmatch(name)]


def render_grant(
    name: str, grant: Grant, edits: Iterable[Document] = (), kind: str = KIND
) -> Document:
    """Returns the specification *name* of a container that gets *grant*.

    *edits*: container edits of other specifications, which cannot be named in this one; their variables win.
    """
    nodes = [
        {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions}
        for node in grant.devices
    ]
    mounts = [_render_mount(mount) for mount in grant.mounts]
    parts: dict[str, list[Any]] = {"deviceNodes": nodes, "mounts": mounts, "hooks": []}
    for hook in grant.hooks:
        parts["hooks"].append(_render_hook(hook))
    env = dict(grant.env)
    for other in edits:
        env |= (variable.partition("=")[::2] for variable in other.get("env", ()))
        _merge(parts, other)
    edited = {"env": [f"{key}={value}" for key, value in env.items()], **parts}
    return {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": [
            {
                "name": name,
                "containerEdits": {part: values for part, values in edited.items() if values},
            }
        ],
    }


def _merge(parts: Mapping[str, list[Any]], edits: Document) -> None:
    for part, present in parts.items():
        present += (edit for edit in edits.get(part, ()) if edit not in present)


def _render_mount(mount: Mount) -> dict[str, Any]:
    options = ["ro" if mount.read_only else "rw", "rbind", "rprivate"]
    if mount.is_data:
        options += _DATA
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": options,
    }


def _render_hook(hook: Hook) -> dict[str, Any]:
    return {
        "hookName": "createRuntime",  # the control group exists, the program does not run yet
        "path": hook.path,
        "args": list(hook.args),
        "timeout": hook.timeout_s,
    }


class ContainerSpecs:
    """The files of one node and one kind. Threads may share it."""

    def __init__(
        self,
        folder: Path,
        *,
        kind: str = KIND,
        now: Callable[[], float] = time.time,
        edits: Callable[[Iterable[str]], list[Document]] = lambda names: [],
    ) -> None:
        """*folder*: where runtimes look for specifications. *now*: Unix seconds by the clock of the file system.
        *edits*: returns the edits of the CDI devices with these names, which cannot be named in a specification."""
        self._folder = folder
        self._kind = kind
        self._now = now
        self._edits = edits

    def write_grant(self, name: str, grant: Grant, *, without: Collection[str] = ()) -> None:
        """Writes the specification *name* of a container that gets *grant*, except for these variables.

        Raises: HostError.
        """
        env = {key: value for key, value in grant.env.items() if key not in without}
        self.write(
            name,
            render_grant(name, replace(grant, env=env), self._edits(grant.cdi_devices), self._kind),
        )

    def read(self, name: str) -> Document | None:
        """Returns the specification *name*; ``None`` if there is none that can be read."""
        try:
            document: Document = msgspec.json.decode(
                self._path(name).read_bytes(), type=dict[str, Any]
            )
        except (OSError, msgspec.MsgspecError):
            return None
        return document

    def version(self, name: str) -> FileVersion | None:
        """Returns the version of the file of the specification *name*; ``None`` if there is none. Raises: HostError."""
        with host_errors("cannot look at a CDI specification"):
            return file_version(self._path(name))

    def remove(self, name: str) -> None:
        """Removes the specification *name*, if there is one. Raises: HostError."""
        with host_errors("cannot remove a CDI specification"):
            self._path(name).unlink(missing_ok=True)

    def write(self, name: str, document: Document) -> None:
        """Writes the specification *name* unless it is there already. Raises: HostError."""
        with host_errors("cannot write a CDI specification"):
            # not forced to disk: it is written again before the container starts again
            write_atomically(self._path(name), msgspec.json.encode(document) + b"\n", durable=False)

    def names(self) -> frozenset[str]:
        """Returns the names of all specifications in the folder. Raises: HostError."""
        with host_errors("cannot list CDI specifications"):
            paths = list(self._folder.iterdir()) if self._folder.exists() else []
        stem = self._kind.replace("/", "-")
        names = [
            path.name.removeprefix(f"{stem}-").removesuffix(".json")
            for path in paths
            if path.name.startswith(f"{stem}-") and path.suffix == ".json"
        ]
        return frozenset(name for name in names if _NAMES[self._kind].fullmatch(name))

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps out all others who ask for this, in other threads and processes. Raises: HostError."""
        with host_errors("cannot lock CDI specifications"):
            self._folder.mkdir(parents=True, exist_ok=True)
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # ends when it is closed
            yield
        finally:
            os.close(folder)

    def sweep(self, names: Collection[str], used: Collection[str]) -> list[str]:
        """Removes those of *names* that are not *used*; returns the removed ones. Keeps recent ones. Raises: HostError.

        *names* must be listed before it is looked up which are used.
        """
        removed = []
        for name in sorted(set(names) - set(used)):
            path = self._path(name)
            with (
                host_errors("cannot remove a CDI specification"),
                contextlib.suppress(FileNotFoundError),
            ):
                if self._now() - path.stat().st_mtime > MIN_AGE_S:
                    path.unlink()
                    removed.append(name)
        return removed

    def remove_leftovers(self) -> None:
        """Removes what a process has left that was killed while it wrote a specification. Raises: HostError."""
        with host_errors("cannot remove a leftover of a CDI specification"):
            for path in self._folder.glob(f".{self._kind.replace('/', '-')}-*.json.*"):
                with contextlib.suppress(FileNotFoundError):
                    if self._now() - path.stat().st_mtime > MIN_AGE_S:
                        path.unlink()

    def _path(self, name: str) -> Path:
        """Returns the path of a specification. Raises: HostError if it could be another one's."""
        if _NAMES[self._kind].fullmatch(name) is None:
            raise HostError(
                f"{name}: not a valid name for a specification of the kind {self._kind}"
            )
        return self._folder / f"{self._kind.replace('/', '-')}-{name}.json"
