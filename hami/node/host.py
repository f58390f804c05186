"""The files of the node: directories of containers, the limiter's library, the kubelet's checkpoint of devices.

Paths are those of the host; the plugin sees them under the same names. Errors name the path.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import stat
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import hami
from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.errors import HostError
from hami.node.cdi import CLASSES
from hami.node.checkpoint import CHECKPOINT, CheckpointEntry, read_checkpoint
from hami.node.driver import MIG_MINORS, instance_nodes, read_mig_minors
from hami.node.grant import CONTROL_NODES, LOCKS, HostFacts
from hami.node.instances import INSTANCES, GivenInstance, render_instances
from hami.node.limits import (
    FIRST_LINE,
    LIMITS,
    ContainerLimits,
    DeviceLimit,
    region_parts,
    render_limits,
)
from hami.node.live_limits import present_limits, read_use, resize
from hami.node.region_layout import COMPUTE_SIZE, COMPUTE_SUFFIX, REGION_SIZE, REGION_SUFFIX
from hami.node.tenant_files import (
    HELD_SUFFIX,
    fill,
    list_names,
    opened_directory,
    remove_held,
    shrink,
)
from hami.runtime.files import FileVersion, version_of, write_atomically
from hami.runtime.once import OncePerKey

log = logging.getLogger(__name__)

MIN_AGE_S = 300.0
"""Seconds for which a directory or specification is kept even if no container has it."""
TREE_S, ROUND_S = 20.0, 60.0
"""Seconds for which one sweep removes files of a container, and of all containers. A later one continues."""
LIBRARY, PRELOAD, CONTAINERS = "libvgpu.so", "ld.so.preload", "containers"
_SIZES = {REGION_SUFFIX: REGION_SIZE, COMPUTE_SUFFIX: COMPUTE_SIZE}
_DIRECTORY = re.compile(r"(?P<uid>[0-9A-Za-z.-]+)_(?P<container>[a-z0-9]([-a-z0-9]*[a-z0-9])?)")
_ANY_USER = 0o777
_OWNER, _READABLE = 0o700, 0o755


class _Limiter:
    """The limiter's library of the node, which is this project's in this *version*, or HAMi's."""

    def __init__(self, root: Path, version: str) -> None:
        self._versioned = root / f"{LIBRARY}.{version}"
        self._plain = root / LIBRARY
        self._reads_by_version: dict[FileVersion, bool] = {}

    @property
    def path(self) -> Path:
        """The newest library, which may be missing."""
        return self._versioned if self._versioned.exists() else self._plain

    def follows_limits(self) -> bool:
        """Reports whether the library reads limits again while a container runs. Raises: HostError."""
        library = self.path
        return not library.exists() or self.reads_limits(library)

    def reads_limits(self, library: Path) -> bool:
        """Reports whether a library is a limiter of this project, which needs no directory for locks.

        Each version is read once: a container in which it is mounted can hold a lease on it. Raises: HostError.
        """
        with host_errors("cannot read the limiter"):
            version = version_of(library.stat())
            if version not in self._reads_by_version:
                with open(
                    os.open(library, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
                ) as file:
                    self._reads_by_version = {version: FIRST_LINE.encode() in file.read()}
        return self._reads_by_version[version]


class Host:
    """The files of the node under one configuration."""

    def __init__(
        self,
        config: PluginConfig,
        *,
        version: str = hami.__version__,
        classes: Callable[[], frozenset[str]] = lambda: frozenset(CLASSES),
        minors: Path = MIG_MINORS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """*classes*: returns the CDI classes with a specification. *minors*: the kernel's table of MIG instances.
        *now*: returns Unix seconds by the clock of the file system."""
        self._root = Path(config.hook_path) / "vgpu"
        self._containers = self._root / CONTAINERS
        self._limiter = _Limiter(self._root, version)
        self._checkpoint = Path(config.kubelet_socket).parent / CHECKPOINT
        self._dev_root = config.dev_root.rstrip("/")
        self._pass_nodes = config.pass_device_specs
        self._classes = classes
        self._minors = minors
        self._now = now
        self._reported = OncePerKey()
        self._unshrinkable = OncePerKey()

    def facts(
        self,
        *,
        limited: bool,
        cards: Sequence[Card] = (),
        instances: Sequence[tuple[int, int, int]] = (),
    ) -> HostFacts:
        """Returns the facts that a grant depends on.

        *limited*: the limiter is mounted. *cards*: those of the container. *instances*: card minor, GPU instance and
        compute instance of each MIG instance that is allocated. Raises: HostError if a file of the limiter is missing
        (the container would not start or, worse, start without limits), or the device nodes of an instance.
        """
        library = self._limiter.path
        missing = self.missing_limiter() if limited else None
        if missing is not None:
            raise HostError(f"{missing} is missing: the limiter is not installed on this node yet")
        own = frozenset([card.node for card in cards])
        return HostFacts(
            library=str(library),
            license=(self._root / "license").exists(),
            classes=self._classes(),
            locks=limited and not self._limiter.reads_limits(library),
            nodes=_existing(self._dev_root, CONTROL_NODES),
            absent=own.difference(_existing(self._dev_root, own)),
            instance_nodes=_instance_nodes(self._minors, instances, self._pass_nodes),
        )

    def missing_limiter(self) -> Path | None:
        """Returns the first file of the limiter that is missing; ``None`` if it is installed."""
        for path in (self._limiter.path, self._root / PRELOAD):
            if not path.is_file():
                return path
        return None

    def has_limits(self, uid: str, container: str) -> bool:
        """Reports whether a container has the file that `write_limits` writes last. It is empty where a crash of the
        node has lost it. Raises: HostError."""
        path = self._containers / directory_name(uid, container) / LIMITS
        return path.is_file() and path.stat().st_size > 0

    def prepare(self, uid: str, container: str, *, keep: bool = False) -> Path:
        """Creates the directory of a container, and one in it that is open to all users; returns its path.

        An earlier directory is renamed, whatever it holds, as if it belonged to a deleted pod; `sweep` removes it
        later. *keep*: an earlier directory stays with its content: processes may use it. It does not stay if a runtime
        has made directories in place of the files. Raises: HostError.
        """
        path = self._containers / directory_name(uid, container)
        with host_errors("cannot create the directory of a container"):
            self._containers.mkdir(parents=True, exist_ok=True)
            if stat.S_IMODE(self._containers.stat().st_mode) != _OWNER:
                self._containers.chmod(_OWNER)
            if os.path.lexists(path) and not (
                keep and path.is_dir() and not path.is_symlink() and not (path / LIMITS).is_dir()
            ):
                path.rename(self._containers / f"{uid}.{uuid.uuid4().hex}_{container}")
            _make_directory(path, _READABLE)
            _make_directory(path / LOCKS, _ANY_USER)
        return path

    def write_limits(
        self,
        uid: str,
        container: str,
        token: str,
        limits: ContainerLimits,
        *,
        keep: bool = False,
        durable: bool = True,
    ) -> None:
        """Writes the limits of a container, its shared region and its compute file into the directory that `prepare`
        has made. *token*: the name of the latter two.

        *keep*: the container may have run before, and none of its processes is left. Its region is cleared, but stays
        the same file: monitors have mapped it. *durable*: waits until the disk has the limits, unless it is kept: then
        they are written again before each start. Raises: HostError.
        """
        directory = self._containers / directory_name(uid, container)
        text = render_limits(limits, f"{self._root}/{token}{REGION_SUFFIX}")
        with host_errors("cannot write the limits of a container"):
            with opened_directory(directory) as opened:
                fill(opened, f"{token}{REGION_SUFFIX}", REGION_SIZE, region_parts(limits))
                fill(opened, f"{token}{COMPUTE_SUFFIX}", COMPUTE_SIZE, {})
            write_atomically(directory / LIMITS, text.encode(), 0o444, durable=durable and not keep)

    def write_instances(self, uid: str, container: str, instances: Iterable[GivenInstance]) -> None:
        """Writes the MIG instances that a container has by a claim, for the monitor. Creates the container's directory.
        Raises: HostError."""
        directory = self.prepare(uid, container, keep=True)
        with host_errors("cannot write the MIG instances of a container"):
            write_atomically(
                directory / INSTANCES, render_instances(instances), 0o444, durable=False
            )

    def limits(self, uid: str, container: str) -> tuple[DeviceLimit, ...] | None:
        """Returns the limits that a container has; ``None`` if it was not prepared yet. Raises: HostError."""
        with (
            host_errors("cannot read the limits of a container"),
            _of_container(self._containers / directory_name(uid, container)) as directory,
        ):
            if directory is None:
                return None
            return present_limits(directory)

    def resize_limits(
        self, uid: str, container: str, sizes: Sequence[DeviceLimit]
    ) -> tuple[DeviceLimit, ...] | None:
        """Gives the devices of a container, which may be running, new limits of memory and cores; returns those that it
        has then, ``None`` if it was not prepared yet. With HAMi's library, cores stay as they are.

        *sizes*: of all its devices. Writes only what differs, and nothing to a file that a tenant has put in the place
        of one. Raises: HostError.
        """
        with (
            host_errors("cannot change the limits of a container"),
            _of_container(self._containers / directory_name(uid, container)) as directory,
        ):
            if directory is None:
                return None
            return resize(directory, sizes, cores=self._limiter.follows_limits())

    def use(self, uid: str, container: str) -> Mapping[str, int] | None:
        """Returns the bytes that a container uses, by device; ``None`` if the monitor has not said so since all its
        processes follow its limits. Raises: HostError."""
        with (
            host_errors("cannot read the use of a container"),
            _of_container(self._containers / directory_name(uid, container)) as directory,
        ):
            if directory is None:
                return None
            return read_use(directory)

    def directories(self) -> frozenset[str]:
        """Returns the names of all container directories. Raises: HostError."""
        with host_errors("cannot list the directories of containers"):
            if not self._containers.exists():
                return frozenset()
            return frozenset(os.listdir(self._containers))

    def sweep(
        self,
        directories: Collection[str],
        live: Collection[str],
        *,
        tree_s: float = TREE_S,
        round_s: float = ROUND_S,
    ) -> list[str]:
        """Removes those of *directories* whose pod (by uid) is not *live*; returns the removed names.

        *directories* must be listed before the pods: otherwise the directory of a new pod looks orphaned. Keeps recent
        and unrecognized directories. Spends *tree_s* seconds on one of them and *round_s* on all, in random order, so
        that none keeps the others from being removed. Logs once what cannot be removed.
        """
        deadline = time.monotonic() + round_s
        removed = []
        self._reported.keep_only(directories)
        orphans = []
        for name in directories:
            match = _DIRECTORY.fullmatch(name)
            if match is not None and match["uid"] not in live:
                orphans.append(name)
        for name in random.sample(orphans, len(orphans)):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            path = self._containers / name
            try:
                # containers can set all other times
                if self._now() - path.lstat().st_ctime > MIN_AGE_S:
                    _remove(path, min(tree_s, left))
                    removed.append(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                if self._reported.is_new(name):
                    log.warning(
                        "container directory cannot be removed",
                        extra={"path": str(path), "error": error},
                    )
        return sorted(removed)

    def shrink_regions(self) -> dict[str, bool]:
        """Truncates regions and compute files that containers have enlarged, or replaces them if that fails.
        Returns the names of their directories, and whether nothing had to be replaced.

        Containers may write to these files, and could fill the file system with them. Processes that have mapped one go
        on: its first bytes stay. Logs once what fails. Raises: HostError.
        """
        shrunk = {}
        names = sorted(name for name in self.directories() if _DIRECTORY.fullmatch(name))
        self._unshrinkable.keep_only(names)
        for name in names:
            try:
                result = _shrink_files(self._containers / name)
                if result is not False:
                    shrunk[name] = result is not None
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, HostError) as error:
                if self._unshrinkable.is_new(name):
                    log.warning(
                        "files of a container cannot be truncated",
                        extra={"directory": name, "error": error},
                    )
        return shrunk

    def served(self, resource: str) -> frozenset[tuple[str, str]] | None:
        """Returns pod uid and name of containers that have *resource*, by the kubelet's checkpoint; ``None`` if it
        cannot be read.

        The kubelet writes it before it asks for the next container.
        """
        try:
            entries = self.allocations()
        except HostError as error:
            log.warning(
                "kubelet checkpoint cannot be read, assuming the order of containers",
                extra={"error": error},
            )
            return None
        if entries is None:
            return None
        of_resource = [entry for entry in entries if entry.resource == resource]
        return frozenset((entry.pod_uid, entry.container) for entry in of_resource)

    def allocations(self) -> list[CheckpointEntry] | None:
        """Returns all entries of the kubelet's checkpoint; ``None`` without one. Raises: HostError."""
        return read_checkpoint(self._checkpoint)


@contextlib.contextmanager
def _of_container(path: Path) -> Iterator[int | None]:
    """Opens the directory of a container, if there is one. Raises: OSError; HostError."""
    with contextlib.ExitStack() as stack:
        directory = None
        with contextlib.suppress(FileNotFoundError):
            directory = stack.enter_context(opened_directory(path))
        yield directory


def directory_name(uid: str, container: str) -> str:
    """Returns the name of a container's directory, which is no path. Raises: HostError."""
    name = f"{uid}_{container}"
    if _DIRECTORY.fullmatch(name) is None:
        raise HostError(f"{name}: not a valid directory name for a container")
    return name


def _make_directory(path: Path, mode: int) -> None:
    """Creates a directory, or gives it this mode. A link or file in its place, which containers of earlier versions
    could leave there, is removed."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
        path.unlink()
    path.mkdir(exist_ok=True)
    path.chmod(mode)


def _shrink_files(path: Path) -> bool | None:
    """Truncates what is larger than the limiter's files in a directory; returns whether anything was, ``None`` if a
    file was replaced. A directory without limits is HAMi's: its containers may use a larger layout.
    """
    with opened_directory(path) as directory:
        names = list_names(directory)
        results = []
        for name in names:
            size = _SIZES.get(Path(name).suffix)
            if size is not None and LIMITS in names:
                results.append(shrink(directory, name, size))
        for name in names:
            if name.endswith(HELD_SUFFIX):
                remove_held(directory, name)
    return None if None in results else any(results)


def _remove(path: Path, timeout: float) -> None:
    """Removes a tree, without following links: containers choose its content, size and depth.

    Removes as much as possible within *timeout* seconds. Raises: OSError, the first reason why something is left.
    """
    command = ["timeout", "--signal=KILL", f"{timeout:.3f}", "rm", "-rf", "--", str(path)]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=os.environ | {"LC_ALL": "C"},
    ) as process:
        assert process.stderr is not None
        reason = process.stderr.readline().strip()
        for _ in process.stderr:  # a line for each file that is left: not kept in memory
            pass
    if process.returncode != 0:
        raise OSError(reason or "the removal takes long and is continued later")


@contextlib.contextmanager
def host_errors(action: str) -> Iterator[None]:
    """Turns an OSError into a HostError that begins with *action* and names the file."""
    try:
        yield
    except OSError as error:
        raise HostError(
            f"{action}: {error.strerror or error}: {error.filename or 'no file'}"
        ) from error


def _existing(root: str, nodes: Iterable[str]) -> tuple[str, ...]:
    """Returns those of the device *nodes* that exist below *root*."""
    return tuple([node for node in nodes if os.path.exists(root + node)])


def _instance_nodes(
    table: Path, instances: Sequence[tuple[int, int, int]], is_required: bool
) -> tuple[str, ...]:
    """Returns the device nodes of MIG *instances*; none if the kernel has no *table* of them, unless *is_required*.

    Raises: HostError.
    """
    if not instances or not (is_required or table.exists()):
        return ()
    nodes: list[str] = []
    minors = read_mig_minors(table)
    for ids in instances:
        nodes += instance_nodes(minors, *ids)
    return tuple(nodes)
