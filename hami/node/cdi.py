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
_ALIASES = {  # links that programs expect but drivers do not install: library → target, name of the link
    "libcuda.so": ("libcuda.so.1", "libcuda.so"),
    "libnvidia-opticalflow.so": ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
    "libGLX_nvidia.so": ("", "libGLX_indirect.so.0"),  # to the library itself
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

    *links*: target and path of symbolic links beside the *libraries*. *programs*: includes firmware. *sockets*: of
    running daemons. *nodes*: control nodes. *channels*: IMEX channels.
    """

    version: str
    libraries: tuple[DriverFile, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    programs: tuple[DriverFile, ...] = ()
    sockets: tuple[DriverFile, ...] = ()
    nodes: tuple[str, ...] = ()
    extras: Mapping[str, Extra] = field(default_factory=dict, hash=False)
    channels: tuple[int, ...] = ()


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

    *devices*: the device nodes of each device, by name. Uses only hooks that every toolkit with CDI has: an unknown
    hook would prevent all containers from starting. Graphics (DRM nodes, settings of Vulkan and EGL) is not included.
    """
    if not devices:
        return None
    everything = tuple(dict.fromkeys(node for nodes in devices.values() for node in nodes))
    return _document(
        GPU,
        roots,
        {**devices, ALL: everything},
        {
            "deviceNodes": [_node(roots, path) for path in driver.nodes],
            "mounts": [
                *(_mount(roots, file, _FILE) for file in (*driver.libraries, *driver.programs)),
                *(_mount(roots, socket, _SOCKET) for socket in driver.sockets),
            ],
            "hooks": _hooks(roots.hook, driver),
        },
    )


def extra_document(roots: Roots, driver: DriverFiles, name: str) -> Document | None:
    """Returns the specification of one of `EXTRAS` or of the IMEX channels; ``None`` without devices."""
    if name == IMEX:
        devices = {
            str(channel): (f"/dev/nvidia-caps-imex-channels/channel{channel}",)
            for channel in driver.channels
        }
        return _document(IMEX, roots, devices, {}) if devices else None
    extra = driver.extras.get(name, Extra())
    if not extra.nodes:
        return None
    return _document(
        name,
        roots,
        {ALL: extra.nodes},
        {"mounts": [_mount(roots, file, _FILE) for file in extra.files]},
    )


def _document(
    kind: str, roots: Roots, devices: Mapping[str, Sequence[str]], common: Document
) -> Document:
    """Returns a specification. *common*: edits for containers with any of *devices*; empty parts are left out."""
    return {
        "cdiVersion": VERSION,
        "kind": f"{VENDOR}/{kind}",
        "devices": [
            {
                "name": name,
                "containerEdits": {"deviceNodes": [_node(roots, path) for path in paths]},
            }
            for name, paths in devices.items()
        ],
        # otherwise NVIDIA's runtime would inject the devices a second time
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
        | {key: value for key, value in common.items() if value},
    }


def _node(roots: Roots, path: str) -> Document:
    host = roots.dev.rstrip("/") + path
    return {"path": path, **({"hostPath": host} if host != path else {}), "permissions": "rw"}


def _mount(roots: Roots, file: DriverFile, options: Sequence[str]) -> Document:
    return {
        "hostPath": roots.driver.rstrip("/") + file.real,
        "containerPath": file.path,
        "options": list(options),
    }


def _hooks(program: str, driver: DriverFiles) -> list[Document]:
    """Returns the hooks that create the links beside the libraries, then update the linker's cache."""
    links = [
        f"{target}::{path}"
        for target, path in dict.fromkeys((*driver.links, *_aliases(driver.libraries)))
    ]
    folders = list(
        dict.fromkeys(str(PurePosixPath(library.path).parent) for library in driver.libraries)
    )
    own = PurePosixPath(program).name
    command = [own, "hook"] if own == "nvidia-ctk" else [own]
    return [
        {
            "hookName": _STAGE,
            "path": program,
            "args": [*command, name, *(word for value in values for word in (option, value))],
        }
        for name, option, values in (
            ("create-symlinks", "--link", links),
            ("update-ldcache", "--folder", folders),
        )
        if values
    ]


def _aliases(libraries: Iterable[DriverFile]) -> Iterable[tuple[str, str]]:
    for path in (PurePosixPath(library.path) for library in libraries):
        if alias := _ALIASES.get(f"{path.name.partition('.so.')[0]}.so"):
            yield alias[0] or path.name, str(path.parent / alias[1])
