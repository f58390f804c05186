"""The memory of a card that the driver takes for a CUDA context: measured once for each model and driver, on a card
that nobody uses. The limiter charges that; it cannot measure it itself beside others, whose memory changes meanwhile.

``python -m hami.devices.context_size UUID ROOT`` makes a context with the driver at ROOT, and prints the bytes or the
reason why it does not.
It is a process of its own, since a process that has used CUDA keeps memory of the card, and since the driver may hang.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from hami.devices.cards import Card
from hami.devices.nvml_library import library_path, open_nvml
from hami.errors import HamiError
from hami.runtime.files import write_atomically
from hami.runtime.once import OncePerKey

__all__ = ["ContextSizes", "measure_context"]

log = logging.getLogger(__name__)

TIMEOUT_S = 30.0
"""Seconds for which the driver may make a context; the first one after a start takes longest."""
FILE = "context-sizes.json"
_MAX_BYTES = 4 << 30
"""Bytes: a result above it was made by somebody else's memory."""


class ContextSizes:
    """The sizes that are known, in a file that outlives the process. Threads may share it."""

    def __init__(
        self,
        folder: Path,
        driver_root: str,
        *,
        version: Path = Path("/sys/module/nvidia/version"),
        measure: Callable[[str, str], int] | None = None,
    ) -> None:
        """*folder*: where the file is. *version*: a file with that of the driver. *measure*: returns the bytes on the
        card with a UUID, and raises HamiError; it gets *driver_root*, too."""
        self._path = folder / FILE
        self._driver_root = driver_root
        self._version = version
        self._measure = measure or measure_context
        self._lock = threading.Lock()  # guards _known
        self._known = self._read()
        self._reported = OncePerKey()

    def bytes_of(self, card: Card) -> int:
        """Returns the bytes that a context takes on *card*; 0 if they are not known yet."""
        with self._lock:
            return self._known.get(self._key(card), 0)

    def measure_missing(self, cards: Iterable[Card]) -> None:
        """Measures on one card of each model that is not known yet. A card in use is tried again by the next call."""
        for card in cards:
            if card.mig or card.problem or self.bytes_of(card):
                continue
            try:
                size = self._measure(card.uuid, self._driver_root)
            except HamiError as error:
                if self._reported.is_new(card.model, str(error)):
                    log.info(
                        "context not measured", extra={"card": card.uuid, "reason": str(error)}
                    )
                continue
            log.info("context measured", extra={"model": card.model, "bytes": size})
            with self._lock:
                self._known = {**self._known, self._key(card): size}
                write_atomically(
                    self._path, json.dumps(self._known, indent=1, sort_keys=True).encode()
                )

    def _key(self, card: Card) -> str:
        try:
            driver = self._version.read_text().strip()
        except OSError:
            driver = "unknown"
        return f"{card.model}, driver {driver}"

    def _read(self) -> dict[str, int]:
        try:
            sizes = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        if not isinstance(sizes, dict):
            return {}
        return {
            key: size
            for key, size in sizes.items()
            if isinstance(size, int) and 0 < size <= _MAX_BYTES
        }


def measure_context(uuid: str, driver_root: str) -> int:
    """Returns the bytes that a context takes on the card with *uuid*. Raises: HamiError if the card is in use, or the
    driver cannot be used from here."""
    words = [sys.executable, "-m", "hami.devices.context_size", uuid, driver_root]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
    env.pop("LD_PRELOAD", None)
    try:
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HamiError(str(error)) from error
    if done.returncode or not done.stdout.strip().isdigit():
        raise HamiError(done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}")
    return int(done.stdout)


def main(uuid: str, driver_root: str) -> int:
    """Prints the bytes of a context on the card with *uuid*, which CUDA knows as its first one."""
    try:
        nvml, cuda = (
            open_nvml(driver_root),
            ctypes.CDLL(library_path(driver_root).replace("libnvidia-ml", "libcuda")),
        )
    except (HamiError, OSError) as error:
        raise SystemExit(str(error)) from error
    try:
        card = nvml.nvmlDeviceGetHandleByUUID(uuid)
        _check("cuInit", cuda.cuInit(0))
        if nvml.nvmlDeviceGetComputeRunningProcesses(card):
            raise SystemExit("the card is in use")
        before = nvml.nvmlDeviceGetMemoryInfo(card).used
        context = ctypes.c_void_p()
        _check("context", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        size = nvml.nvmlDeviceGetMemoryInfo(card).used - before
        processes = len(nvml.nvmlDeviceGetComputeRunningProcesses(card))
    except nvml.NVMLError as error:
        raise SystemExit(f"NVML: {error}") from error
    if processes > 1 or not 0 < size <= _MAX_BYTES:
        raise SystemExit("the card was used meanwhile")
    print(size)
    return 0


def _check(call: str, result: int) -> None:
    if result:
        raise SystemExit(f"{call}: error {result}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
