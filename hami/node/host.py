"""The files of the node: directories of containers, the limiter's library, and the kubelet's record of its devices.

Paths are the host's; the plugin sees them under the same names. What cannot be done is an error that names the path.
"""

from __future__ import annotations

import contextlib
import filecmp
import logging
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec

import hami
from hami.errors import HostError
from hami.node.cdi import CLASSES
from hami.devices.config import PluginConfig
from hami.node.driver import MIG_MINORS, instance_nodes, read_mig_minors
from hami.node.grant import CONTROL_NODES, LOCK_DIRECTORY, HostFacts

__all__ = ["CHECKPOINT", "Host", "install_library", "write_whole"]

log = logging.getLogger(__name__)

CHECKPOINT = "kubelet_internal_checkpoint"
GRACE = 300.0  # seconds for which a directory is kept whatever pods there are
LIBRARY, PRELOAD = "libvgpu.so", "ld.so.preload"
_DIRECTORY = re.compile(r"(?P<uid>[0-9A-Za-z.-]+)_(?P<container>[a-z0-9]([-a-z0-9]*[a-z0-9])?)")
_OPEN = 0o777  # containers run as any user
_NO_LINK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class _CheckpointEntry(msgspec.Struct):
    uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")


class _Data(msgspec.Struct):
    entries: list[_CheckpointEntry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _Checkpoint(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")


class Host:
    """The node's files, as one configuration has them."""

    def __init__(self, config: PluginConfig, *, version: str = hami.__version__, lock_directory: str = LOCK_DIRECTORY,
                 classes: Callable[[], frozenset[str]] = lambda: frozenset(CLASSES),
                 minors: Path = MIG_MINORS, now: Callable[[], float] = time.time) -> None:
        """*classes*: those of CDI that are specified, besides the cards'. *minors*: the kernel's table of MIG
        instances. *now*: Unix seconds, by the clock of the file system."""
        self._root = Path(config.hook_path) / "vgpu"
        self._containers = self._root / "containers"
        self._library = self._root / f"{LIBRARY}.{version}"
        self._checkpoint = Path(config.kubelet_socket).parent / CHECKPOINT
        self._dev_root = config.dev_root.rstrip("/")
        self._hands_over_nodes = config.pass_device_specs
        self._classes = classes
        self._minors = minors
        self._lock_directory = Path(lock_directory)
        self._now = now
        self._stuck: set[str] = set()  # directories of which it was said that they cannot be removed

    def facts(self, *, limited: bool, instances: Sequence[tuple[int, int, int]] = ()) -> HostFacts:
        """What there is to be mounted. *limited*: the limiter has to be. *instances*: minor number of the card, GPU
        instance and compute instance of each MIG instance that is handed out.

        Raises: HostError when its files are not there: a container that mounts a missing file does not start, or worse,
        starts without limits; or when an instance has no device nodes, where those are handed over.
        """
        library = self._library if self._library.exists() else self._root / LIBRARY
        for path in (library, self._root / PRELOAD) if limited else ():
            if not path.is_file():
                raise HostError(f"{path} is not there: the limiter has not been installed on this node yet")
        handed = instances if self._hands_over_nodes else ()
        minors = read_mig_minors(self._minors) if handed else {}
        return HostFacts(library=str(library), license=(self._root / "license").exists(), classes=self._classes(),
                         nodes=tuple(node for node in CONTROL_NODES if os.path.exists(self._dev_root + node)),
                         instance_nodes=tuple(node for one in handed for node in instance_nodes(minors, *one)))

    def prepare(self, uid: str, container: str) -> None:
        """A directory for what a container's processes share, empty and open to all users.

        An earlier one that cannot be removed goes under another name, which a sweep takes for that of a pod that is
        gone. Raises: HostError.
        """
        name = f"{uid}_{container}"
        if _DIRECTORY.fullmatch(name) is None:
            raise HostError(f"{self._containers / name}: no such directory can be made of a pod and a container")
        with _named("cannot make the directory of a container"):
            path = self._containers / name
            if os.path.lexists(path):
                try:
                    _remove(path)
                except OSError:
                    path.rename(self._containers / f"{uid}.{uuid.uuid4().hex}_{container}")
            path.mkdir(parents=True)
            path.chmod(_OPEN)
            self._lock_directory.mkdir(parents=True, exist_ok=True)
            if stat.S_IMODE(self._lock_directory.stat().st_mode) != _OPEN:
                self._lock_directory.chmod(_OPEN)

    def directories(self) -> frozenset[str]:
        """Names of the directories that containers have here. Raises: HostError."""
        with _named("cannot list the directories of containers"):
            try:
                return frozenset(os.listdir(self._containers))
            except FileNotFoundError:
                return frozenset()

    def sweep(self, directories: Collection[str], live: Collection[str]) -> list[str]:
        """Remove those of *directories* whose pod (by uid) is not *live*; the names of what was removed.

        They have to be listed before the pods are, else a new pod's would be taken for that of a pod that is gone.
        What is young stays, and so does what is nobody's by its name. What cannot be removed is logged once.
        """
        removed = []
        self._stuck.intersection_update(directories)
        for name in sorted(directories):
            found = _DIRECTORY.fullmatch(name)
            if found is None or found["uid"] in live:
                continue
            path = self._containers / name
            try:
                if self._now() - path.lstat().st_mtime > GRACE:
                    _remove(path)
                    removed.append(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                if name not in self._stuck:
                    log.warning("directory of a container cannot be removed", extra={"path": str(path), "error": error})
                self._stuck.add(name)
        return removed

    def served(self, resource: str) -> frozenset[tuple[str, str]] | None:
        """Uid and name of the containers to which the kubelet has given *resource* by its own record; ``None`` when
        there is none that can be read.

        It is written before the next container is asked for.
        Source: Kubernetes v1.36, pkg/kubelet/cm/devicemanager/checkpoint.
        """
        try:
            entries = msgspec.json.decode(self._checkpoint.read_bytes(), type=_Checkpoint).data.entries or []
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("the kubelet's record cannot be read, going by the order of containers",
                        extra={"path": str(self._checkpoint), "error": error})
            return None
        return frozenset((entry.uid, entry.container) for entry in entries if entry.resource == resource)


def install_library(source: str | Path, hook_path: str | Path) -> list[str]:
    """Bring the files under *source* to the host's ``<hook_path>/vgpu``; the paths, relative to it, that were written.

    A file that is as it should be is not touched. Others are written beside and renamed: containers have the old one
    mapped, and keep it. The list of what is preloaded is written last, when the library is there.
    Raises: HostError.
    """
    source, target = Path(source), Path(hook_path) / "vgpu"
    with _named("cannot install the limiter"):
        files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
        if not files:
            raise HostError(f"cannot install the limiter: there is no file under {source}")
        written = [str(name) for name in files if str(name) != PRELOAD and _place(source / name, target / name)]
        if write_whole(target / PRELOAD, f"{target / LIBRARY}\n".encode()):
            written.append(PRELOAD)
    return written


def write_whole(path: Path, data: bytes) -> bool:
    """Make the file at *path* hold *data*, for all to read: at no time a part of it. Whether it held something else.

    Raises: HostError.
    """
    with _named("cannot write a file"), _temporary(path) as temporary:
        temporary.write_bytes(data)
        temporary.chmod(0o644)
        return _replace(temporary, path)


def _place(source: Path, target: Path) -> bool:
    with _temporary(target) as temporary:
        shutil.copyfile(source, temporary)
        temporary.chmod(stat.S_IMODE(source.stat().st_mode) | 0o444)
        return _replace(temporary, target)


def _replace(temporary: Path, target: Path) -> bool:
    """Put *temporary* in the place of *target* unless they are equal; whether it did."""
    if target.is_file() and not target.is_symlink() and filecmp.cmp(temporary, target, shallow=False):
        return False
    if target.is_dir() and not target.is_symlink():
        target.rmdir()  # made by a container runtime, which found nothing to mount; never one with something in it
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, target)
    return True


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A file in the directory of *target*, gone in the end whatever happens."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove a tree, or a link without following it: containers can write what is in there, as deep as they like.

    What cannot be removed does not keep the rest. Raises: OSError, the first reason why something is left.
    """
    try:
        path.unlink()
    except IsADirectoryError:
        problems: list[OSError] = []
        with _opened(path) as top:
            _empty(top, problems)
        try:
            path.rmdir()
        except OSError as error:
            raise (*problems, error)[0] from None


def _empty(top: int, problems: list[OSError]) -> None:
    """Remove what there is in the directory *top*; what stands in the way is added to *problems*.

    Directories further down are moved up into it first, so that two open files do for any depth.
    """
    names = os.listdir(top)
    while names:
        name = names.pop()
        reasons: list[OSError] = []
        with _noted(reasons):
            if _unlink(name, top):
                continue
            with _opened(name, top) as inner:
                for entry in os.listdir(inner):
                    with _noted(reasons):
                        if not _unlink(entry, inner):
                            os.rename(entry, moved := uuid.uuid4().hex, src_dir_fd=inner, dst_dir_fd=top)
                            names.append(moved)
        try:
            os.rmdir(name, dir_fd=top)  # also when it cannot be read: it may be empty
        except OSError as error:
            problems.append((*reasons, error)[0])


def _unlink(name: str, directory: int) -> bool:
    """Whether *name* was no directory; it is gone then."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    return True


@contextlib.contextmanager
def _opened(path: str | Path, directory: int | None = None) -> Iterator[int]:
    handle = os.open(path, _NO_LINK, dir_fd=directory)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _noted(problems: list[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problems.append(error)


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostError(f"{what}: {error.strerror or error}: {error.filename or 'no file'}") from error
