"""CDI specifications: the edits that a container runtime makes to a container that has one of our devices.

Pure: files and devices of the host go in, the specification comes out. ``driver`` looks them up; ``cdi_specs`` writes.
Source: CDI 1.1.0, SPEC.md; NVIDIA container toolkit 1.18, pkg/nvcdi.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

VENDOR = "k8s.device-plugin.nvidia.com"
GPU, IMEX = "gpu", "imex-channel"
EXTRAS = ("gdrcopy", "gds", "mofed")
"""Classes of which each container gets all devices."""
CLASSES = (*EXTRAS, IMEX)
"""All classes besides the cards."""
VERSION = "0.5.0"  # the first with a host path for device nodes, and names that begin with a digit
ALL = "all"

_FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_STAGE = "createContainer"
COMPAT_HOOK = "enable-cuda-compat"
"""Makes programs use a CUDA compatibility library of their image that is newer than the driver's."""
_ALIASES = {  # links that programs expect but drivers do not install: library → target, name of the link
    "libcuda.so": ("libcuda.so.1", "libcuda.so"),
    "libnvidia-opticalflow.so": ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
    "libGLX_nvidia.so": ("", "libGLX_indirect.so.0"),  # to the library itself
    "libnvidia-vulkan-producer.so": ("", "libnvidia-vulkan-producer.so"),
    "libnvidia-allocator.so": ("../libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so"),
}

Document = dict[str, Any]
"""A specification in its JSON form."""


@dataclass(frozen=True, slots=True)
class DriverFile:
    """A file of the driver: its path in containers, and its path with links resolved; both below the driver's root."""

    path: str
    real: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Device nodes and files of one of `EXTRAS`."""

    nodes: tuple[str, ...] = ()
    files: tuple[DriverFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """The files of the driver on the host.

    *links*: target and path of symbolic links beside the *libraries*. *programs*: includes firmware and settings.
    *sockets*: of running daemons. *nodes*: control nodes. *channels*: IMEX channels. *has_compat_hook*: the program
    that runs as CDI hook has `COMPAT_HOOK`.
    """

    version: str
    libraries: tuple[DriverFile, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    programs: tuple[DriverFile, ...] = ()
    sockets: tuple[DriverFile, ...] = ()
    nodes: tuple[str, ...] = ()
    extras: Mapping[str, Extra] = field(default_factory=dict, hash=False)
    channels: tuple[int, ...] = ()
    has_compat_hook: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The host's roots of the driver and of device nodes, and the program that runs as CDI *hook*."""

    driver: str = "/"
    dev: str = "/"
    hook: str = "/usr/bin/nvidia-ctk"


def gpu_document(
    roots: Roots, driver: DriverFiles, devices: Mapping[str, Sequence[str]]
) -> Document | None:
    """Returns the specification of the cards and MIG instances; ``None`` without devices, as CDI requires one.

    *devices*: the device nodes of each device, by name. Uses only hooks that the program has: an unknown hook would
    prevent all containers from starting. Files of the X server are not included.
    """
    if not devices:
        return None
    everything: dict[str, None] = {}
    for nodes in devices.values():
        everything |= dict.fromkeys(nodes)
    mounts = [_mount(roots, file, _FILE) for file in (*driver.libraries, *driver.programs)]
    mounts += [_mount(roots, socket, _SOCKET) for socket in driver.sockets]
    common: Document = {
        "deviceNodes": [_node(roots, path) for path in driver.nodes],
        "mounts": mounts,
        "hooks": _hooks(roots.hook, driver),
    }
    return _document(GPU, roots, {**devices, ALL: tuple(everything)}, common)


def extra_document(roots: Roots, driver: DriverFiles, name: str) -> Document | None:
    """Returns the specification of one of `EXTRAS` or of the IMEX channels; ``None`` without devices."""
    if name == IMEX:
        devices: dict[str, Sequence[str]] = {}
        for channel in driver.channels:
            devices[str(channel)] = (f"/dev/nvidia-caps-imex-channels/channel{channel}",)
        mounts: list[Document] = []
    else:
        extra = driver.extras.get(name, Extra())
        devices = {ALL: extra.nodes} if extra.nodes else {}
        mounts = [_mount(roots, file, _FILE) for file in extra.files]
    if not devices:
        return None
    return _document(name, roots, devices, {"mounts": mounts})


def _document(
    kind: str, roots: Roots, devices: Mapping[str, Sequence[str]], common: Document
) -> Document:
    """Returns a specification. *common*: edits for containers with any of *devices*; empty parts are left out."""
    entries = []
    for name, paths in devices.items():
        nodes = [_node(roots, path) for path in paths]
        entries.append({"name": name, "containerEdits": {"deviceNodes": nodes}})
    # otherwise NVIDIA's runtime would inject the devices a second time
    edits: Document = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    for part, values in common.items():
        if values:
            edits[part] = values
    return {
        "cdiVersion": VERSION,
        "kind": f"{VENDOR}/{kind}",
        "devices": entries,
        "containerEdits": edits,
    }


def _node(roots: Roots, path: str) -> Document:
    host = roots.dev.rstrip("/") + path
    if host == path:
        return {"path": path, "permissions": "rw"}
    return {"path": path, "hostPath": host, "permissions": "rw"}


def _mount(roots: Roots, file: DriverFile, options: Sequence[str]) -> Document:
    return {
        "hostPath": roots.driver.rstrip("/") + file.real,
        "containerPath": file.path,
        "options": list(options),
    }


def _hooks(program: str, driver: DriverFiles) -> list[Document]:
    """Returns the hooks that create the links beside the libraries, enable compatibility libraries, then update the
    linker's cache."""
    links = dict.fromkeys((*driver.links, *_aliases(driver.libraries)))
    folders = dict.fromkeys(str(PurePosixPath(library.path).parent) for library in driver.libraries)
    versions = []
    if driver.has_compat_hook:
        versions.append(driver.version)
    hooks = [
        _hook(program, "create-symlinks", "--link", [f"{to}::{path}" for to, path in links]),
        _hook(program, COMPAT_HOOK, "--host-driver-version", versions),
        _hook(program, "update-ldcache", "--folder", folders),
    ]
    return [hook for hook in hooks if hook is not None]


def _hook(program: str, name: str, option: str, values: Iterable[str]) -> Document | None:
    words = []
    for value in values:
        words += [option, value]
    if not words:
        return None
    command = [PurePosixPath(program).name]
    if command == ["nvidia-ctk"]:
        command.append("hook")
    return {"hookName": _STAGE, "path": program, "args": [*command, name, *words]}


def _aliases(libraries: Iterable[DriverFile]) -> Iterable[tuple[str, str]]:
    for library in libraries:
        path = PurePosixPath(library.path)
        if alias := _ALIASES.get(f"{path.name.partition('.so.')[0]}.so"):
            yield alias[0] or path.name, str(path.parent / alias[1])
