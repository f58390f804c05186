"""The process of ``hami record``: the watches of nodes and pods, and the files that they fill."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from hami.errors import HamiError
from hami.inspect.line_writer import LineWriter
from hami.inspect.recorder import Recorder
from hami.inspect.segments import SegmentWriter
from hami.kube.api import Api
from hami.kube.watches import Watches
from hami.runtime.files import write_atomically
from hami.runtime.parts import Part
from hami.runtime.tasks import PeriodicTask
from hami.state.view import Policies

SYNC_S = 2.0  # between two moments after which what was recorded is safe
JOIN_S = 1.0  # for each thread at the end
SALT = "salt"
SALT_BYTES = 32


class RecordingProgram:
    """Records the cluster of *api* into *folder*."""

    def __init__(
        self,
        api: Api,
        folder: Path,
        device_config: str,
        policies: Policies,
        *,
        most_bytes: int,
        segment_bytes: int,
    ) -> None:
        """Raises: HamiError; OSError if the folder cannot be written."""
        folder.mkdir(parents=True, exist_ok=True)
        writer = SegmentWriter(folder, segment_bytes=segment_bytes, most_bytes=most_bytes)
        lines = LineWriter(writer, device_config, policies, salt_in(folder), time.time)
        self.recorder = Recorder(lines, now=time.time, clock=time.monotonic)
        self._watches = Watches(
            api,
            nodes=self.recorder.nodes,
            pods=self.recorder.pods,
            quotas=None,
            node_selector="",
        )
        sync = PeriodicTask("recording", self.recorder.sync, SYNC_S)
        self._part = Part(sync, *self._watches.tasks)

    def start(self) -> None:
        """Begins the recording. Raises: OSError."""
        self.recorder.begin()
        self._part.start()

    def stop(self) -> None:
        """Ends the recording. Raises: OSError."""
        self._part.stop()
        self._part.join(JOIN_S)
        self.recorder.close()

    def hung_reason(self) -> str:
        """Returns why only a new process can go on; empty if this one can."""
        return self._part.hung_reason()


def salt_in(folder: Path) -> bytes:
    """Returns the salt of the recording in *folder*, which is made for the first time. Raises: HamiError; OSError."""
    path = folder / SALT
    try:
        salt = path.read_bytes()
    except FileNotFoundError:
        salt = secrets.token_bytes(SALT_BYTES)
        write_atomically(path, salt, mode=0o600)
    if len(salt) != SALT_BYTES:
        raise HamiError(f"{path}: {len(salt)} bytes, expected {SALT_BYTES}: use another folder")
    return salt
