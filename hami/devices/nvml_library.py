"""Finds and opens NVML, the management library of NVIDIA's driver."""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hami.errors import HamiError
from hami.runtime.once import OncePerKey

T = TypeVar("T")

log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_FOLDERS = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64",
                   "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib/wsl/lib")


def library_path(root: str) -> str:
    """Returns the path of NVML in the driver at *root*; its plain name, for the linker to find, if it is not there."""
    if root not in ("", "/"):
        for folder in LIBRARY_FOLDERS:
            if (path := Path(root, folder, LIBRARY)).exists():
                return str(path.resolve())
    return LIBRARY


def open_nvml(root: str = "/") -> Any:
    """Returns the initialized module pynvml. Raises: HamiError, which names what is missing."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise HamiError("nvidia-ml-py is not installed: run pip install '.[node]' in a checkout of HAMi") from error
    if (path := library_path(root)) != LIBRARY:
        try:
            # pynvml loads the plain name, and the linker returns the library already loaded under that name
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise HamiError(f"{path}: {error}") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise HamiError(f"no NVIDIA driver available: {error}") from error
    return nvml


def card_handles(nvml: Any, skipped: OncePerKey) -> tuple[list[tuple[int, str, Any]], int]:
    """Returns index, UUID and handle of each readable card, and the number of all cards.

    *skipped* remembers the unreadable cards that have been logged. Raises: NVMLError if the cards cannot be counted.
    """
    handles = []
    count: int = nvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            handles.append((index, decode(nvml.nvmlDeviceGetUUID(handle)), handle))
        except nvml.NVMLError as error:
            if skipped.is_new(index, str(error)):
                log.warning("card skipped", extra={"index": index, "reason": str(error)})
    return handles, count


def decode(value: Any) -> str:
    """Returns a string of NVML, which pynvml returns as bytes or str depending on its version."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def is_unsupported(nvml: Any, error: Any) -> bool:
    """Reports whether *error* says that the card or the driver lacks the function."""
    return bool(error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND))


class PartReader:
    """Reads the parts of one card, each of which may fail. *problems*: why some could not be read."""

    def __init__(self, nvml: Any) -> None:
        self.problems: list[str] = []
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
        if required or not is_unsupported(self._nvml, error):
            self.problems.append(f"{part}: {error}")
