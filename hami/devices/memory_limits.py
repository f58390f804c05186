"""The limits of device memory that NVIDIA's driver keeps by control group, since release 615.

Source: nvml.h of CUDA 13.5; docs.nvidia.com/deploy/mps, memory partitioning. Only hard limits are set: a soft one would
be a guarantee at the cost of the neighbors, and stays in the groups above when the group goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hami.devices.nvml_library import driver_error
from hami.errors import DriverError, HamiError

NO_LIMIT = 0xFFFF_FFFF_FFFF_FFFF
"""NVML's value that takes a limit away."""


class GroupGone(HamiError):
    """The control group does not exist any more."""


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Memory of a card in a control group, in bytes. *hard*: ``None`` if the group has no limit."""

    hard: int | None
    soft: int = 0
    used: int = 0


class GroupLimits:
    """Reads and sets limits through *nvml*, the initialized module pynvml. Threads may share it."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def read(self, uuid: str, group: str) -> GroupMemory:
        """Returns what the control group with the path *group* has of the card. Raises: GroupGone, DriverError."""
        nvml = self._nvml
        found = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=group.encode())
        try:
            nvml.nvmlDeviceGetMemoryLimits_v1(nvml.nvmlDeviceGetHandleByUUID(uuid), found)
        except nvml.NVMLError as error:
            # a driver of release 615 answered so for a group without limit; others say that memory is not accounted
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_NOT_SUPPORTED):
                return GroupMemory(None)
            raise self._error(uuid, group, error) from error
        hard = None if found.hardLimit == NO_LIMIT else found.hardLimit
        return GroupMemory(hard, found.softLimit, found.currentUsed)

    def set(self, uuid: str, group: str, size: int) -> None:
        """Limits the memory of the card in the group to *size* bytes. Raises: GroupGone, DriverError."""
        nvml = self._nvml
        wanted = nvml.c_nvmlSetMemoryLimits_v1_t(
            nameSpace=group.encode(), softLimit=0, hardLimit=size
        )
        try:
            nvml.nvmlDeviceSetMemoryLimits_v1(nvml.nvmlDeviceGetHandleByUUID(uuid), wanted)
        except nvml.NVMLError as error:
            raise self._error(uuid, group, error) from error

    def reason_not_supported(self, uuid: str, topmost: str) -> str:
        """Returns why the driver cannot limit memory of the card; empty if it can. There is no query for that: the
        limits of the group *topmost*, which never has any, are taken away."""
        nvml = self._nvml
        none = nvml.c_nvmlSetMemoryLimits_v1_t(
            nameSpace=topmost.encode(), softLimit=0, hardLimit=NO_LIMIT
        )
        try:
            nvml.nvmlDeviceSetMemoryLimits_v1(nvml.nvmlDeviceGetHandleByUUID(uuid), none)
        except nvml.NVMLError as error:
            # the topmost group has no file of the controller dmem, but the driver has looked for it
            if error.value != nvml.NVML_ERROR_NOT_FOUND:
                return self._words(error)
        return ""

    def _error(self, uuid: str, group: str, error: Any) -> HamiError:
        if error.value == self._nvml.NVML_ERROR_OPERATING_SYSTEM:
            return GroupGone(f"{group}: the control group is gone")
        if error.value in (
            self._nvml.NVML_ERROR_NO_PERMISSION,
            self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            self._nvml.NVML_ERROR_NOT_FOUND,
        ):
            return DriverError(f"{uuid}: {self._words(error)}")
        return driver_error(self._nvml, f"{uuid}: memory of the control group {group}", error)

    def _words(self, error: Any) -> str:
        """Returns what NVML's *error* means, in the words of hami-memory-wall."""
        nvml = self._nvml
        known = {
            nvml.NVML_ERROR_NOT_SUPPORTED: (
                "memory accounting is off (RmMemacctMode=0), or the device is in MIG mode"
            ),
            nvml.NVML_ERROR_NO_PERMISSION: "only root may set limits",
            nvml.NVML_ERROR_NOT_FOUND: "the control group has no controller dmem",
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the driver is older than release 615",
        }
        return known.get(error.value, f"NVML says {error}")
