"""The usage of cards and MIG instances, by process: the records, and how NVML tells it.

A call that fails makes one value unknown, for one card. Cards and instances differ in what they support, and so do
drivers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

from hami.devices.nvml_library import PartReader, card_handles, check_readers, decode, driver_error
from hami.runtime.once import OncePerKey

SAMPLES_S = 1.0
"""Age up to which samples of utilization count."""
MAX_PROCESSES = 4096
"""Processes of a card that are looked at. The driver supports fewer at a time."""
_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """The usage of a process on one card. *memory*: bytes. *sm*: percent. ``None`` if the driver does not say."""

    memory: int | None
    sm: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUsage:
    """The usage of a card, or of a MIG instance. Memory in bytes, utilization in percent; ``None``: the driver does not
    say.

    *memory*: what there is; 0 if unknown. *memory_utilization*: that of the memory controller. *processes*: by PID as
    the host sees it. *instances*: of a card in MIG mode, whose own *processes* are then unknown. *problems*: why a part
    could not be read.
    """

    uuid: str
    index: int
    model: str = ""
    memory: int = 0
    memory_used: int | None = None
    utilization: int | None = None
    memory_utilization: int | None = None
    processes: Mapping[int, ProcessUsage] | None = None
    instances: tuple[CardUsage, ...] = ()
    problems: tuple[str, ...] = ()


class NvmlUsage:
    """Reads the usage of all cards. One thread calls it."""

    def __init__(self, nvml: Any) -> None:
        """*nvml*: the module pynvml, initialized."""
        self._nvml = nvml
        self._skipped = OncePerKey()

    def read(self, now: float) -> tuple[CardUsage, ...]:
        """Returns all readable cards, by index. *now*: Unix seconds. Raises: DriverError when NVML cannot count
        them."""
        try:
            handles, _ = card_handles(self._nvml, self._skipped)
        except self._nvml.NVMLError as error:
            raise driver_error(self._nvml, "NVML cannot count the cards", error) from error
        since = int((now - SAMPLES_S) * _MICROSECONDS)
        cards = []
        readers = []
        for index, uuid, handle in handles:
            reader = _Reader(self._nvml, handle)
            cards.append(reader.card(index, uuid, since))
            readers.append(reader.parts)
        check_readers(self._nvml, readers)
        return tuple(cards)


class _Reader:
    """Reads one card, and collects why parts of it cannot be read."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.parts = PartReader(nvml)

    def card(self, index: int, uuid: str, since: int) -> CardUsage:
        nvml, handle = self._nvml, self._handle
        memory = self.parts.read("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        rates = self.parts.read("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        mig = self.parts.read("MIG mode", lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        in_mig_mode = mig is not None and mig == nvml.NVML_DEVICE_MIG_ENABLE
        model = self.parts.read("name", lambda: decode(nvml.nvmlDeviceGetName(handle)))
        processes = None if in_mig_mode else self._processes(handle, self._samples(since))
        instances = tuple(self._instances(index)) if in_mig_mode else ()
        return CardUsage(
            uuid=uuid,
            index=index,
            model=model or "",
            memory=int(memory.total) if memory else 0,
            memory_used=int(memory.used) if memory else None,
            utilization=_percent(rates.gpu) if rates else None,
            memory_utilization=_percent(rates.memory) if rates else None,
            processes=processes,
            instances=instances,
            problems=tuple(self.parts.problems),
        )

    def _instances(self, index: int) -> Iterator[CardUsage]:
        nvml = self._nvml
        count = self.parts.read(
            "number of MIG devices", lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(self._handle)
        )
        for number in range(count or 0):
            with suppress(nvml.NVMLError):  # the numbers have gaps
                mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, number)
                uuid = decode(nvml.nvmlDeviceGetUUID(mig))
                memory = self.parts.read(
                    f"memory of {uuid}", partial(nvml.nvmlDeviceGetMemoryInfo, mig)
                )
                yield CardUsage(
                    uuid=uuid,
                    index=index,
                    memory=int(memory.total) if memory else 0,
                    memory_used=int(memory.used) if memory else None,
                    processes=self._processes(mig, None),
                )

    def _processes(
        self, handle: Any, samples: Mapping[int, int] | None
    ) -> Mapping[int, ProcessUsage] | None:
        """Returns all processes of a card or instance; ``None`` if the driver does not list them.

        *samples*: percent by process; ``None`` if unknown.
        """
        lists = [self._listed(name, handle) for name in _PROCESS_LISTS]
        known = [listed for listed in lists if listed is not None]
        if not known:
            return None
        memory: dict[int, int | None] = {}
        for process in islice(chain.from_iterable(known), MAX_PROCESSES):
            used = memory.setdefault(process.pid)
            if process.usedGpuMemory is not None:
                memory[process.pid] = max(int(process.usedGpuMemory), used or 0)
        processes = {}
        for pid, used in memory.items():
            percent = samples.get(pid, 0) if samples is not None else None
            processes[pid] = ProcessUsage(used, percent)
        return processes

    def _listed(self, name: str, handle: Any) -> list[Any] | None:
        def read() -> list[Any]:
            try:
                return list(getattr(self._nvml, name)(handle))
            except self._nvml.NVMLLibraryMismatchError:  # an older driver
                return list(getattr(self._nvml, f"{name}_v2")(handle))

        return self.parts.read("processes", read)

    def _samples(self, since: int) -> Mapping[int, int] | None:
        """Returns the latest utilization of each process that has worked recently."""
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, since)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):  # no process has
                return {}
            self.parts.note("utilization of processes", error)
            return None
        latest: dict[int, tuple[int, int]] = {}
        for sample in islice(samples, MAX_PROCESSES):
            if (
                sample.pid and sample.timeStamp >= since
            ):  # some drivers return places that they have not written
                latest[sample.pid] = max(
                    latest.get(sample.pid, (0, 0)), (sample.timeStamp, _percent(sample.smUtil))
                )
        return {pid: percent for pid, (_, percent) in latest.items()}


def _percent(value: Any) -> int:
    return max(0, min(int(value), 100))
