"""CDI specifications: what a container runtime does to a container that was given one of our devices by name.

Pure: what lies on the host goes in, the file's content comes out. Who looks is ``driver``, who writes
``specifications``.
Source: CDI 1.1.0, SPEC.md; NVIDIA container toolkit 1.18, pkg/nvcdi.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

__all__ = [
    "ALL", "CLASSES", "EXTRAS", "GPU", "IMEX", "VENDOR", "Document", "DriverFiles", "Extra", "Found", "Roots",
    "extra_document", "gpu_document",
]

VENDOR = "k8s.device-plugin.nvidia.com"
GPU, IMEX = "gpu", "imex-channel"
EXTRAS = ("gdrcopy", "gds", "mofed")
"""Classes of which all containers get all there is."""
CLASSES = (*EXTRAS, IMEX)
"""All, besides the cards'."""
VERSION = "0.5.0"  # the first in which a device node has a host path, and a name may begin with a digit
ALL = "all"

_FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_STAGE = "createContainer"
_ALIASES = {  # links that programs look for, though drivers do not bring them: library → target, name of the link
    "libcuda.so": ("libcuda.so.1", "libcuda.so"),
    "libnvidia-opticalflow.so": ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
    "libGLX_nvidia.so": ("", "libGLX_indirect.so.0"),  # to the library itself
}

Document = dict[str, Any]
"""What a file says, as JSON has it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the driver: where a container looks for it, and where it really lies; both below the driver's root."""

    path: str
    real: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """What there is of one of `EXTRAS`: device nodes, and files besides."""

    nodes: tuple[str, ...] = ()
    files: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """What the driver has put on the host. *links*: target and path of symbolic links beside the *libraries*.
    *programs*: with the firmware. *sockets*: of daemons that run. *nodes*: control nodes that exist. *channels*: IMEX
    channels that exist."""

    version: str
    libraries: tuple[Found, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    programs: tuple[Found, ...] = ()
    sockets: tuple[Found, ...] = ()
    nodes: tuple[str, ...] = ()
    extras: Mapping[str, Extra] = field(default_factory=dict, hash=False)
    channels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Where the host has its driver and its devices, and the program that changes containers (*hook*)."""

    driver: str = "/"
    dev: str = "/"
    hook: str = "/usr/bin/nvidia-ctk"


def gpu_document(roots: Roots, driver: DriverFiles, devices: Mapping[str, Sequence[str]]) -> Document | None:
    """The specification of the cards and MIG instances. *devices*: the nodes of each, by name. ``None`` when there are
    no devices, as CDI knows no specification without one.

    Hooks: only those that every toolkit with CDI has; an unknown one would keep all containers from starting. Graphics
    (DRM nodes, Vulkan's and EGL's settings) is not in it.
    """
    if not devices:
        return None
    everything = tuple(dict.fromkeys(node for nodes in devices.values() for node in nodes))
    return _document(GPU, roots, {**devices, ALL: everything}, {
        "deviceNodes": [_node(roots, path) for path in driver.nodes],
        "mounts": [*(_mount(roots, one, _FILE) for one in (*driver.libraries, *driver.programs)),
                   *(_mount(roots, one, _SOCKET) for one in driver.sockets)],
        "hooks": _hooks(roots.hook, driver),
    })


def extra_document(roots: Roots, driver: DriverFiles, name: str) -> Document | None:
    """The specification of one of `EXTRAS`, or of the IMEX channels; ``None`` when there is nothing of it."""
    if name == IMEX:
        devices = {str(channel): (f"/dev/nvidia-caps-imex-channels/channel{channel}",) for channel in driver.channels}
        return _document(IMEX, roots, devices, {}) if devices else None
    extra = driver.extras.get(name, Extra())
    if not extra.nodes:
        return None
    return _document(name, roots, {ALL: extra.nodes}, {"mounts": [_mount(roots, one, _FILE) for one in extra.files]})


def _document(kind: str, roots: Roots, devices: Mapping[str, Sequence[str]], common: Document) -> Document:
    """*common*: what each container gets, whichever of *devices* it has; parts that are empty are left out."""
    return {
        "cdiVersion": VERSION, "kind": f"{VENDOR}/{kind}",
        "devices": [{"name": name, "containerEdits": {"deviceNodes": [_node(roots, path) for path in paths]}}
                    for name, paths in devices.items()],
        # NVIDIA's runtime would else do all of it once more, its own way
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]} | {
            key: value for key, value in common.items() if value},
    }


def _node(roots: Roots, path: str) -> Document:
    host = roots.dev.rstrip("/") + path
    return {"path": path, **({"hostPath": host} if host != path else {}), "permissions": "rw"}


def _mount(roots: Roots, found: Found, options: Sequence[str]) -> Document:
    return {"hostPath": roots.driver.rstrip("/") + found.real, "containerPath": found.path, "options": list(options)}


def _hooks(program: str, driver: DriverFiles) -> list[Document]:
    """Links beside the libraries, then the linker's cache."""
    links = [f"{target}::{path}" for target, path in dict.fromkeys((*driver.links, *_aliases(driver.libraries)))]
    folders = list(dict.fromkeys(str(PurePosixPath(one.path).parent) for one in driver.libraries))
    return [_hook(program, name, option, values) for name, option, values in (
        ("create-symlinks", "--link", links), ("update-ldcache", "--folder", folders)) if values]


def _hook(program: str, name: str, option: str, values: Iterable[str]) -> Document:
    own = PurePosixPath(program).name
    words = [own, "hook", name] if own == "nvidia-ctk" else [own, name]
    return {"hookName": _STAGE, "path": program,
            "args": [*words, *(word for value in values for word in (option, value))]}


def _aliases(libraries: Iterable[Found]) -> Iterable[tuple[str, str]]:
    for path in (PurePosixPath(one.path) for one in libraries):
        if alias := _ALIASES.get(f"{path.name.partition('.so.')[0]}.so"):
            yield alias[0] or path.name, str(path.parent / alias[1])
