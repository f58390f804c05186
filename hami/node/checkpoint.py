"""The kubelet's record of which container has which devices. It is read only.

Source: Kubernetes v1.36, pkg/kubelet/cm/devicemanager/checkpoint. The kubelet replaces the file atomically, before it
asks for the devices of the next container, and before a container starts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from hami.errors import HostError

CHECKPOINT = "kubelet_internal_checkpoint"
MAX_BYTES = 64 * 2**20
"""The size above which the file is not read. A container with a GPU needs about 300 bytes."""


class CheckpointEntry(msgspec.Struct, frozen=True):
    """The devices of one container, of one resource. *answer*: the ContainerAllocateResponse, in its wire form."""

    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    by_numa: dict[str, list[str] | None] | list[str] | None = msgspec.field(
        name="DeviceIDs", default=None
    )
    answer: bytes | None = msgspec.field(name="AllocResp", default=None)

    @property
    def ids(self) -> frozenset[str]:
        """The device ids. Kubelets before 1.20 do not group them by NUMA node."""
        groups = self.by_numa or ()
        if not isinstance(groups, dict):
            return frozenset(groups)
        ids: set[str] = set()
        for of_node in groups.values():
            ids.update(of_node or ())
        return frozenset(ids)


class _Data(msgspec.Struct):
    entries: list[CheckpointEntry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _Checkpoint(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")


_DECODER = msgspec.json.Decoder(_Checkpoint)


def read_checkpoint(path: Path) -> list[CheckpointEntry] | None:
    """Returns all entries; ``None`` if the file does not exist. Raises: HostError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HostError(
            f"the kubelet's checkpoint cannot be read: {path}: {error.strerror}"
        ) from error
    if len(data) > MAX_BYTES:
        raise HostError(
            f"the kubelet's checkpoint cannot be read: {path}: larger than {MAX_BYTES} bytes"
        )
    try:
        return _DECODER.decode(data).data.entries or []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HostError(f"the kubelet's checkpoint cannot be read: {path}: {error}") from error
