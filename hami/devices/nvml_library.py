"""Finds, loads and opens NVML, the management library of NVIDIA's driver."""

from __future__ import annotations

import ctypes
import importlib
import logging
import re
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from hami.errors import DriverError, HamiError
from hami.runtime.files import FileVersion, file_version
from hami.runtime.once import OncePerKey

T = TypeVar("T")

log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/wsl/lib",
)
RESTART_S = 60.0
"""Seconds after which a process that needs a new one ends: a driver that is being replaced fails in other ways, too."""
_VERSIONED = re.compile(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)")
_MAPS = Path("/proc/self/maps")


def library_path(root: str) -> str:
    """Returns the path of NVML in the driver at *root*; its plain name, for the linker to find, if it is not there."""
    if root not in ("", "/"):
        for folder in LIBRARY_FOLDERS:
            if (path := Path(root, folder, LIBRARY)).exists():
                return str(path.resolve())
    return LIBRARY


def load_nvml(root: str) -> Any:
    """Returns the module pynvml, with the library of the driver at *root*. Raises: HamiError, which names what is
    missing."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise HamiError(
            "nvidia-ml-py is not installed: run pip install '.[node]' in a checkout of HAMi"
        ) from error
    if (path := library_path(root)) != LIBRARY:
        try:
            # pynvml loads the plain name, and the linker returns the library already loaded under that name
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise DriverError(f"{path}: {error}") from error
    return nvml


def open_nvml(root: str = "/", *, load: Callable[[str], Any] = load_nvml) -> Any:
    """Returns the initialized module pynvml. Raises: HamiError, which names what is missing."""
    nvml = load(root)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise driver_error(nvml, "no NVIDIA driver available", error) from error
    return nvml


def driver_error(nvml: Any, problem: str, error: Any) -> DriverError:
    """Returns the error that *problem* is, because of *error*, which NVML has returned."""
    return DriverError(f"{problem}: {error}", needs_new_process=needs_new_process(nvml, error))


def needs_new_process(nvml: Any, error: Any) -> bool:
    """Reports whether *error* says that this process has lost the driver for good.

    nvml.h (CUDA 13.5) says of these codes::

        NVML_ERROR_UNINITIALIZED = 1,              //!< NVML was not first initialized with nvmlInit()
        NVML_ERROR_DRIVER_NOT_LOADED = 9,          //!< NVIDIA driver is not loaded
        NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,   //!< RM detects a driver/library version mismatch

    The loaded library belongs to one version of the kernel module, and stays loaded until the process ends: the linker
    returns it again, and so does pynvml. Where the module was replaced, the library refuses all calls (18). Where it is
    not loaded (9), the next one may be another. A library that was initialized, and denies it (1), has lost its state.
    The other codes are about a card (GPU_IS_LOST, RESET_REQUIRED) or may pass (UNKNOWN, TIMEOUT, OPERATING_SYSTEM).
    """
    return error.value in (
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    )


def check_library_version(nvml: Any, root: str) -> None:
    """Raises: DriverError if the library at *root* is not that of the driver that is loaded: containers are given this
    library, and it refuses all their calls. A library without a version in its name is not checked."""
    match = _VERSIONED.fullmatch(Path(library_path(root)).name)
    if match is None:
        return
    try:
        loaded = decode(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        log.debug("version of the driver unknown", extra={"error": str(error)})
        return
    if loaded != match[1]:
        raise DriverError(
            f"driver {loaded} is loaded, but its libraries on the node are those of {match[1]}: no "
            "container can use a card until the driver is loaded again, or the node is rebooted"
        )


class DriverLibrary:
    """The driver's library as this process has loaded it, once: opens it, and tells when only a new process can use the
    driver. Threads may share it."""

    def __init__(
        self, *, load: Callable[[str], Any] = load_nvml, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """*load*: returns pynvml with the library of the driver at a root. *clock*: monotonic seconds."""
        self._load = load
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows; never held across a call of the driver
        self._root = ""
        self._loaded: FileVersion | None = None  # the file, as it was when it was loaded
        self._mapped = ""  # its path, if the linker has found it
        self._has_answered = False
        self._failed_at: float | None = None  # the first of the failures that need a new process
        self._failing_s = 0.0  # from the first of them to the latest
        self._failure = ""

    def open(self, root: str) -> Any:
        """Returns pynvml, initialized, with the driver at *root*. Raises: HamiError, which names what is missing."""
        try:
            return open_nvml(root, load=self._load_noted)
        except DriverError as error:
            self._note_failure(error)
            raise

    def noted(self, read: Callable[[], T]) -> T:
        """Returns what *read* returns, which asks the driver for its cards, and remembers whether it could. Raises:
        HamiError, as *read* does."""
        try:
            result = read()
        except DriverError as error:
            self._note_failure(error)
            raise
        with self._lock:
            self._has_answered = True
            self._failed_at = None
        return result

    def restart_reason(self) -> str:
        """Returns why this process has to end, so that a new one can use the driver; empty if it has not.

        A process that has never had the driver waits for one, unless another library than it has loaded is there by
        now: a new process would do no more.
        """
        with self._lock:
            if self._failed_at is None or self._failing_s < RESTART_S:
                return ""
            if not self._has_answered and not self._is_replaced():
                return ""
            return f"for {self._failing_s:.0f} s, only a new process could use the driver: {self._failure}"

    def _note_failure(self, error: DriverError) -> None:
        now = self._clock()
        with self._lock:
            if not error.needs_new_process:
                self._failed_at = None
                return
            if self._failed_at is None:
                self._failed_at = now
            self._failing_s = now - self._failed_at
            self._failure = str(error)

    def _load_noted(self, root: str) -> Any:
        nvml = self._load(root)
        with self._lock:
            self._root = root
            if self._loaded is None:
                self._mapped = mapped_library()
                self._loaded = self._file()
        return nvml

    def _is_replaced(self) -> bool:
        """Reports whether a new process would load another file."""
        return self._loaded is not None and self._file() != self._loaded

    def _file(self) -> FileVersion | None:
        path = library_path(self._root)
        if path == LIBRARY:
            path = self._mapped
        return file_version(path) if path else None


def mapped_library() -> str:
    """Returns the path of NVML where the linker has found it; empty if it is not loaded."""
    for line in _MAPS.read_text(errors="replace").splitlines():
        path = line.partition("/")[2]
        if Path(path).name.startswith("libnvidia-ml.so"):
            return f"/{path}"
    return ""


def card_handles(nvml: Any, skipped: OncePerKey) -> tuple[list[tuple[int, str, Any]], int]:
    """Returns index, UUID and handle of each readable card, and the number of all cards.

    *skipped* remembers the unreadable cards that have been logged. Raises: NVMLError if the cards cannot be counted, or
    if none can be read any more by this process.
    """
    handles = []
    lost = []
    count: int = nvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            handles.append((index, decode(nvml.nvmlDeviceGetUUID(handle)), handle))
        except nvml.NVMLError as error:
            if needs_new_process(nvml, error):
                lost.append(error)
            if skipped.is_new(index, str(error)):
                log.warning("card skipped", extra={"index": index, "reason": str(error)})
    if lost and len(lost) == count:
        raise lost[0]
    return handles, count


def decode(value: Any) -> str:
    """Returns a string of NVML, which pynvml returns as bytes or str depending on its version."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def is_unsupported(nvml: Any, error: Any) -> bool:
    """Reports whether *error* says that the card or the driver lacks the function."""
    return bool(error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND))


class PartReader:
    """Reads the parts of one card, each of which may fail.

    *problems*: why some could not be read. *lost*: the error after which this process cannot read them any more.
    """

    def __init__(self, nvml: Any) -> None:
        self.problems: list[str] = []
        self.lost: Any = None
        self._nvml = nvml

    def read(self, part: str, call: Callable[[], T], *, required: bool = False) -> T | None:
        """Returns the result of *call*, or ``None``, with a problem as `note`."""
        try:
            return call()
        except self._nvml.NVMLError as error:
            self.note(part, error, required=required)
            return None

    def note(self, part: str, error: Any, *, required: bool = False) -> None:
        """Adds a problem for *error*, unless the card lacks a part that is not *required*."""
        if needs_new_process(self._nvml, error):
            self.lost = error
        if required or not is_unsupported(self._nvml, error):
            self.problems.append(f"{part}: {error}")


def check_readers(nvml: Any, readers: Collection[PartReader]) -> None:
    """Raises: DriverError if this process cannot read any of the cards any more. *readers*: one for each card."""
    lost = [reader.lost for reader in readers if reader.lost is not None]
    if lost and len(lost) == len(readers):
        raise driver_error(nvml, "NVML cannot read the cards", lost[0])
