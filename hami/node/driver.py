"""Finds the files of NVIDIA's driver on the host, below a root that need not be that of this process.

Links are resolved relative to that root, which the kernel would not do. Returned paths are relative to it and begin
with ``/``.
Source: NVIDIA container toolkit 1.18, internal/lookup, internal/discover, internal/info, pkg/nvcdi.
"""

from __future__ import annotations

import functools
import mmap
import os
import platform
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from hami.devices.nvml_library import LIBRARY_FOLDERS
from hami.errors import HostError
from hami.node.cdi import COMPAT_HOOK, DriverFile, DriverFiles, Extra
from hami.node.grant import CONTROL_NODES
from hami.runtime.files import FileVersion, file_version

WSL_NODE = "/dev/dxg"
"""The device node of all cards under WSL."""
MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
"""The kernel's table of the device nodes of MIG instances; it does not depend on the root."""

_SUBFOLDERS = ("", "nvidia/current")  # Debian installs several drivers side by side
_LIBRARY_SUBFOLDERS = ("", "vdpau")
_VERSIONED = ("libcuda.so.", "libnvidia-ml.so.")
_UNVERSIONED = "libnvidia-nvvm70.so.*"  # in drivers before 590, with its own version
_PROGRAM_FOLDERS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_PLATFORMS = (  # of EGL; with versions of their own
    "libnvidia-egl-gbm.so.*.*",
    "libnvidia-egl-wayland.so.*.*",
    "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*",
    "libnvidia-egl-xlib.so.*.*",
)
_SETTINGS_FOLDERS = ("etc", "usr/local/share", "usr/share")
_SETTINGS = {  # where containers expect them → names below the folders of the host
    "usr/share": (
        "glvnd/egl_vendor.d/10_nvidia.json",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "egl/egl_external_platform.d/20_nvidia_xcb.json",
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "nvidia/nvoptix.bin",
    ),
    "etc": (
        "OpenCL/vendors/nvidia.icd",
        "vulkan/icd.d/nvidia_icd.json",
        f"vulkan/icd.d/nvidia_icd.{platform.machine()}.json",
        "vulkan/icd.d/nvidia_layers.json",
        "vulkan/implicit_layer.d/nvidia_layers.json",
    ),
}
_GPU_UUID = re.compile(r"^GPU UUID:\s*(GPU-\S+)", re.MULTILINE)
_FIRMWARE_FOLDERS = ("lib/firmware/updates", "lib/firmware")
_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket", "tmp/nvidia-mps")
_EXTRA_NODES = {
    "gdrcopy": ("gdrdrv",),
    "gds": ("nvidia-fs*",),
    "mofed": ("infiniband/uverbs*", "infiniband/rdma_cm"),
}
_EXTRA_FILES = {"gds": ("run/udev", "etc/cufile.json")}
_CHANNEL = re.compile(r"channel(\d+)")
_MINOR = re.compile(r"(gpu\d+/gi\d+(?:/ci\d+)?)/access (\d+)")
_MAX_LINKS = 40  # the limit of the kernel


def driver_files(root: Path, hook: str = "") -> DriverFiles:
    """Returns the files of the driver below *root*. *hook*: the program that runs as CDI hook.

    Raises: HostError if there is no driver.
    """
    folders = _library_folders(root)
    version = _version(root, folders)
    libraries: list[str] = []
    for folder in folders:
        if any(_glob(root, folder, f"lib*.so.{version}")):
            for subfolder in _LIBRARY_SUBFOLDERS:
                path = str(PurePosixPath(folder, subfolder))
                libraries += _glob(root, path, f"*.so.{version}", _UNVERSIONED)
            libraries += _glob(root, folder, *_PLATFORMS)
    devices = Path(dev_root(root), "dev")
    programs = [*_first(root, _PROGRAM_FOLDERS, _PROGRAMS)]
    programs += _first(root, _FIRMWARE_FOLDERS, _firmware(root, version))
    return DriverFiles(
        version=version,
        libraries=tuple(DriverFile(path, path) for path in dict.fromkeys(libraries)),
        links=tuple(_links(root, libraries)),
        programs=(*programs, *_settings(root)),
        has_compat_hook=_has_hook(root, hook, COMPAT_HOOK),
        sockets=_existing(root, _SOCKETS),
        nodes=tuple(node for node in CONTROL_NODES if Path(f"{devices.parent}{node}").exists()),
        extras={name: _extra(root, devices, name) for name in _EXTRA_NODES},
        channels=_channels(devices),
    )


def _library_folders(root: Path) -> list[str]:
    folders: dict[str, None] = {}
    for name in LIBRARY_FOLDERS:
        for subfolder in _SUBFOLDERS:
            folder = follow(root, f"/{name}/{subfolder}".rstrip("/"))
            if folder is not None:
                folders[folder] = None
    return list(folders)


def _settings(root: Path) -> Iterator[DriverFile]:
    """Yields the settings of EGL, OptiX, OpenCL and Vulkan. GKE has those of Vulkan in the root itself."""
    for target, names in _SETTINGS.items():
        for name in names:
            folders = list(_SETTINGS_FOLDERS)
            if name.startswith("vulkan/"):
                folders.append(".")
            for file in _first(root, folders, [name]):
                yield DriverFile(f"/{target}/{name}", file.real)


def _has_hook(root: Path, program: str, hook: str) -> bool:
    """Reports whether *program* has the CDI hook. Versions that lack it end with an error, so that no container would
    start; a program that is not below *root* counts as one of these."""
    real = follow(root, program) if program else None
    if real is None:
        return False
    path = Path(f"{root}{real}")
    return _contains(path, file_version(path), hook)


@functools.lru_cache(maxsize=1)
def _contains(path: Path, version: FileVersion | None, text: str) -> bool:
    """Reports whether a program contains *text*. *version*: of its file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(text.encode()) >= 0
    except (OSError, ValueError):  # ValueError: it is empty
        return False


def drm_nodes(devices: Path, kernel: Path = Path("/")) -> Mapping[str, tuple[str, ...]]:
    """Returns the nodes of the Direct Rendering Manager of each card, by UUID. *devices*: the root of device nodes.
    *kernel*: the root of ``/proc`` and ``/sys``."""
    nodes: dict[str, tuple[str, ...]] = {}
    for path in sorted((kernel / "proc/driver/nvidia/gpus").glob("*/information")):
        match = None
        with suppress(OSError):
            match = _GPU_UUID.search(path.read_text(errors="replace"))
        if match is None:
            continue
        found = (kernel / "sys/bus/pci/devices" / path.parent.name / "drm").glob("*")
        names = [f"/dev/dri/{each.name}" for each in sorted(found)]
        nodes[match[1]] = tuple([name for name in names if Path(f"{devices}{name}").exists()])
    return nodes


def _extra(root: Path, devices: Path, name: str) -> Extra:
    nodes: list[str] = []
    for pattern in _EXTRA_NODES[name]:
        nodes += [f"/dev/{path.relative_to(devices)}" for path in sorted(devices.glob(pattern))]
    return Extra(nodes=tuple(nodes), files=_existing(root, _EXTRA_FILES.get(name, ())))


def _channels(devices: Path) -> tuple[int, ...]:
    channels = []
    for path in devices.glob("nvidia-caps-imex-channels/*"):
        match = _CHANNEL.fullmatch(path.name)
        if match is not None:
            channels.append(int(match[1]))
    return tuple(sorted(channels))


def dev_root(root: Path) -> Path:
    """Returns the root of the device nodes: *root* if it has any, otherwise that of this process."""
    return root if (root / "dev").is_dir() else Path("/")


def shared_node(root: Path) -> str:
    """Returns the device node that all cards share (WSL); empty if each card has its own."""
    return WSL_NODE if Path(f"{dev_root(root)}{WSL_NODE}").exists() else ""


def follow(root: Path, path: str) -> str | None:
    """Returns *path* with all links resolved as if *root* were the root; ``None`` if it does not exist."""
    left, done, links = list(reversed(PurePosixPath(path).parts[1:])), PurePosixPath("/"), 0
    while left:
        part = left.pop()
        here = done.parent if part == ".." else done / part
        try:
            if not stat.S_ISLNK(os.lstat(f"{root}{here}").st_mode):
                done = here
                continue
            target = PurePosixPath(os.readlink(f"{root}{here}"))
        except OSError:
            return None
        if (links := links + 1) > _MAX_LINKS:
            return None
        if target.is_absolute():
            done = PurePosixPath("/")
        left += [step for step in reversed(target.parts) if step != "/"]
    return str(done)


def read_mig_minors(path: Path = MIG_MINORS) -> Mapping[str, int]:
    """Returns the minor number of the device node of each MIG instance, by name.

    Shape: lines of ``gpu0/gi1/access 12`` or ``gpu0/gi1/ci0/access 13``; other lines (``config 1``) are ignored.
    Raises: HostError.
    """
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError as error:
        raise HostError(
            f"cannot find the device nodes of MIG instances: {path}: {error.strerror}"
        ) from error
    minors = {}
    for line in lines:
        match = _MINOR.fullmatch(line.strip())
        if match is not None:
            minors[match[1]] = int(match[2])
    return minors


def instance_nodes(
    minors: Mapping[str, int], gpu: int, gpu_instance: int, compute_instance: int
) -> tuple[str, ...]:
    """Returns the device nodes that a MIG instance needs besides its card's.

    *gpu*: the card's minor number. Raises: HostError if the kernel does not know the instance.
    """
    names = f"gpu{gpu}/gi{gpu_instance}", f"gpu{gpu}/gi{gpu_instance}/ci{compute_instance}"
    for name in names:
        if name not in minors:
            raise HostError(f"{MIG_MINORS}: no {name}")
    return tuple(f"/dev/nvidia-caps/nvidia-cap{minors[name]}" for name in names)


def _version(root: Path, folders: Iterable[str]) -> str:
    for name in _VERSIONED:
        for folder in folders:
            for path in _glob(root, folder, f"{name}*.*"):
                return path.rpartition(name)[2]
    raise HostError(
        f"{root}: no libcuda.so or libnvidia-ml.so with a version: check that the driver is mounted, "
        "and --driver-root-ctr-path"
    )


def _glob(root: Path, folder: str, *patterns: str) -> Iterator[str]:
    """Yields the regular files in *folder* that match, sorted by name."""
    for pattern in patterns:
        for path in sorted(Path(f"{root}{folder}").glob(pattern)):
            if path.is_file() and not path.is_symlink():
                yield str(PurePosixPath(folder, path.name))


def _links(root: Path, libraries: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the links in the folders of *libraries* that lead to one of them: target and path."""
    targets = set(libraries)
    for folder in sorted({str(PurePosixPath(path).parent) for path in targets}):
        for path in sorted(Path(f"{root}{folder}").iterdir()):
            if path.is_symlink():
                real = follow(root, f"{folder}/{path.name}")
                if real is not None and real in targets:
                    yield real.removeprefix(f"{folder}/"), f"{folder}/{path.name}"


def _existing(root: Path, names: Iterable[str]) -> tuple[DriverFile, ...]:
    files = []
    for name in names:
        real = follow(root, f"/{name}")
        if real is not None:
            files.append(DriverFile(f"/{name}", real))
    return tuple(files)


def _first(root: Path, folders: Iterable[str], names: Iterable[str]) -> Iterator[DriverFile]:
    """Yields each of *names* from the first folder that has it."""
    for name in names:
        yield from _existing(root, [f"{folder}/{name}" for folder in folders])[:1]


def _firmware(root: Path, version: str) -> list[str]:
    names: set[str] = set()
    for folder in _FIRMWARE_FOLDERS:
        for path in (root / folder / "nvidia" / version).glob("gsp*.bin"):
            names.add(f"nvidia/{version}/{path.name}")
    return sorted(names)
