"""NVML in memory, with the functions of pynvml: numbers, handles and arrays as in C, and calls that fail.

Constants, structures and the error class are pynvml's own. Functions that are missing here cannot be called.
"""

import ctypes
import itertools
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pynvml

GIB = 1 << 30
MIB = 1 << 20


@dataclass(eq=False)
class Gpu:
    """One card. *profiles*: number → (id, name, slices, multiprocessors, MiB, placements). *links*: the other end of
    each NVLink, the index of a card or ``"switch"``. *near*: topology level by the index of another card. *action*:
    what the driver asks for, None before release 570. *remap_failed*: of memory rows."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-80GB"
    memory: int = 80 * GIB
    minor: int = 0
    bus: str = "00000000:3B:00.0"
    mig: bool | None = None
    needs_reset: bool = False
    action: int | None = None
    remap_failed: bool = False
    profiles: dict = field(default_factory=dict)
    links: tuple = ()
    near: dict = field(default_factory=dict)
    made: dict = field(default_factory=dict)  # number of the instance → _Created
    used: int = 0
    rates: tuple = (0, 0)  # percent of the card, and of its memory controller
    processes: list = field(default_factory=list)
    limits: dict = field(default_factory=dict)  # soft and hard bytes by control group
    used_by: dict = field(default_factory=dict)  # bytes by control group


@dataclass(frozen=True)
class Process:
    """A process on a card or instance. *sm*: percent, None for a process that has not worked. *at*: microseconds."""

    pid: int
    memory: int | None = 0
    sm: int | None = None
    kind: str = "Compute"
    at: int = 1 << 60


@dataclass(eq=False)
class _Created:
    """A GPU instance: profile id, placement, and the UUIDs of its compute instances by number."""

    gpu: Gpu
    number: int
    profile: int
    start: int
    size: int
    inner: dict = field(default_factory=dict)
    busy: bool = False
    part: int = 0  # slices of a compute instance that is smaller than the GPU instance
    processes: list = field(default_factory=list)


A100 = {  # the driver's numbers; others are not supported
    0: (19, "MIG 1g.10gb", 1, 14, 9728, [(at, 1) for at in range(7)]),
    1: (14, "MIG 2g.20gb", 2, 28, 19968, [(0, 2), (2, 2), (4, 2)]),
    2: (9, "MIG 3g.40gb", 3, 42, 40192, [(0, 4), (4, 4)]),
    4: (0, "MIG 7g.80gb", 7, 98, 81038, [(0, 8)]),
    7: (20, "MIG 1g.10gb+me", 1, 14, 9728, [(at, 1) for at in range(7)]),
    9: (15, "MIG 1g.20gb", 1, 14, 19968, [(0, 2), (2, 2), (4, 2), (6, 2)]),
}


class FakeNvml:
    """*gpus* by index. ``fail(function, status, index)`` makes a function fail, for one card or for all."""

    def __init__(self, *gpus):
        self.gpus = list(gpus)
        self.version = "570.1"  # of the driver that is loaded
        self.events = []  # the results of nvmlEventSetWait: events or error codes
        self.registered = []
        self.open_sets = 0
        self.calls = []
        self._faults = []
        self._interrupted = threading.Event()
        self._pointers = {}
        self._addresses = itertools.count(1000)
        self._mig_serial = itertools.count(1)

    def __getattr__(self, name):
        found = getattr(pynvml, name)
        assert not (name.startswith("nvml") and callable(found)), f"{name} is not faked"
        return found

    # ---- faults

    def fail(self, function, status, index=None):
        self._faults.append((function, status, index))

    def heal(self):
        self._faults.clear()

    # ---- cards

    def nvmlInit(self):
        self._enter("nvmlInit")

    def nvmlSystemGetDriverVersion(self):
        self._enter("nvmlSystemGetDriverVersion")
        return self.version

    def nvmlDeviceGetCount(self):
        self._enter("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        self._enter("nvmlDeviceGetHandleByIndex", self.gpus[index])
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        found = next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        self._enter("nvmlDeviceGetHandleByUUID", found)
        return found

    def nvmlDeviceGetUUID(self, handle):
        if isinstance(
            handle, tuple
        ):  # a MIG device: an instance, and the number of its compute instance
            made, inner = handle
            self._enter("nvmlDeviceGetUUID of MIG", made.gpu)
            return made.inner[inner]
        self._enter("nvmlDeviceGetUUID", handle)
        return handle.uuid

    def nvmlDeviceGetName(self, handle):
        self._enter("nvmlDeviceGetName", handle)
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle):
        if isinstance(handle, tuple):
            made, _ = handle
            self._enter("nvmlDeviceGetMemoryInfo", made.gpu)
            mib = next(row[4] for row in made.gpu.profiles.values() if row[0] == made.profile)
            return SimpleNamespace(
                total=mib * MIB, used=sum(one.memory or 0 for one in made.processes)
            )
        self._enter("nvmlDeviceGetMemoryInfo", handle)
        return SimpleNamespace(total=handle.memory, used=handle.used)

    def nvmlDeviceGetUtilizationRates(self, handle):
        self._enter("nvmlDeviceGetUtilizationRates", handle)
        gpu, memory = handle.rates
        return SimpleNamespace(gpu=gpu, memory=memory)

    def nvmlDeviceGetProcessUtilization(self, handle, since):
        self._enter("nvmlDeviceGetProcessUtilization", handle)
        samples = [
            pynvml.c_nvmlProcessUtilizationSample_t(pid=one.pid, timeStamp=one.at, smUtil=one.sm)
            for one in handle.processes
            if one.sm is not None
        ]
        if not samples:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return samples

    def nvmlDeviceGetMinorNumber(self, handle):
        self._enter("nvmlDeviceGetMinorNumber", handle)
        return handle.minor

    def nvmlDeviceGetPciInfo(self, handle):
        self._enter("nvmlDeviceGetPciInfo", handle)
        return SimpleNamespace(busId=handle.bus)

    # ---- links

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        self._enter("nvmlDeviceGetTopologyCommonAncestor", one)
        return one.near[self.gpus.index(other)]

    def nvmlDeviceGetNvLinkState(self, handle, link):
        self._enter("nvmlDeviceGetNvLinkState", handle)
        if link >= len(handle.links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(handle.links[link] is not None)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        self._enter("nvmlDeviceGetNvLinkRemotePciInfo", handle)
        to = handle.links[link]
        return SimpleNamespace(busId="00000000:C0:00.0" if to == "switch" else self.gpus[to].bus)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):
        self._enter("nvmlDeviceGetNvLinkRemoteDeviceType", handle)
        return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if handle.links[link] == "switch" else 0

    # ---- health

    def nvmlEventSetCreate(self):
        self._enter("nvmlEventSetCreate")
        self.open_sets += 1
        return object()

    def nvmlEventSetFree(self, events):
        self.open_sets -= 1

    def nvmlDeviceGetSupportedEventTypes(self, handle):
        self._enter("nvmlDeviceGetSupportedEventTypes", handle)
        return pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError

    def nvmlDeviceRegisterEvents(self, handle, types, events):
        self._enter("nvmlDeviceRegisterEvents", handle)
        self.registered.append((handle.uuid, types))

    def nvmlDeviceGetFieldValues(self, handle, fields):
        self._enter("nvmlDeviceGetFieldValues", handle)
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        value = pynvml.c_nvmlFieldValue_t(fieldId=fields[0])
        if handle.action is None:
            value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        else:
            value.value.uiVal = handle.action
        for name, status, index in self._faults:
            if name == "recovery action" and index in (None, self.gpus.index(handle)):
                value.nvmlReturn = status
        return [value]

    def nvmlDeviceGetRemappedRows(self, handle):
        self._enter("nvmlDeviceGetRemappedRows", handle)
        return (0, 0, 0, int(handle.remap_failed))

    def nvmlEventSetWait(self, events, timeout_ms):
        answer = self.events.pop(0)
        if isinstance(answer, int):
            raise pynvml.NVMLError(answer)
        return answer

    def wait_for_nothing(self, timeout_ms):
        """A nvmlEventSetWait that takes its time, and ends with an error after `interrupt`."""
        self._enter("nvmlEventSetWait")
        is_interrupted = self._interrupted.wait(timeout_ms / 1000)
        raise pynvml.NVMLError(
            pynvml.NVML_ERROR_UNKNOWN if is_interrupted else pynvml.NVML_ERROR_TIMEOUT
        )

    def interrupt(self):
        self._interrupted.set()

    def xid(self, index, xid, kind=pynvml.nvmlEventTypeXidCriticalError, instance=0xFFFFFFFF):
        """An event of a card."""
        return SimpleNamespace(
            device=self.gpus[index],
            eventType=kind,
            eventData=xid,
            gpuInstanceId=instance,
            computeInstanceId=instance,
        )

    # ---- limits of memory by control group (nvml.h of CUDA 13.5: nvmlDeviceSetMemoryLimits_v1 and its errors)

    def nvmlDeviceSetMemoryLimits_v1(self, handle, limits):
        self._enter("nvmlDeviceSetMemoryLimits_v1", handle)
        group = limits.nameSpace  # pynvml returns text
        if not Path(group).is_dir():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_OPERATING_SYSTEM)
        if limits.hardLimit == 0xFFFF_FFFF_FFFF_FFFF:
            handle.limits.pop(group, None)
            return
        if limits.softLimit > limits.hardLimit or limits.hardLimit > handle.memory:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        handle.limits[group] = limits.softLimit, limits.hardLimit

    def nvmlDeviceGetMemoryLimits_v1(self, handle, limits):
        self._enter("nvmlDeviceGetMemoryLimits_v1", handle)
        group = limits.nameSpace  # pynvml returns text
        if not Path(group).is_dir():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_OPERATING_SYSTEM)
        if group not in handle.limits:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        limits.softLimit, limits.hardLimit = handle.limits[group]
        limits.currentUsed = handle.used_by.get(group, 0)

    # ---- MIG

    def nvmlDeviceGetMigMode(self, handle):
        self._enter("nvmlDeviceGetMigMode", handle)
        if handle.mig is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(handle.mig), int(handle.mig or handle.needs_reset)]

    def nvmlDeviceSetMigMode(self, handle, mode):
        self._enter("nvmlDeviceSetMigMode", handle)
        if not handle.needs_reset:
            handle.mig = bool(mode)
        return 0

    def nvmlDeviceGetGpuInstanceProfileInfo(self, handle, number, version=2):
        self._enter(f"nvmlDeviceGetGpuInstanceProfileInfo v{version}", handle)
        if number not in handle.profiles:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        profile, name, slices, processors, memory, places = handle.profiles[number]
        info = SimpleNamespace(
            id=profile,
            sliceCount=slices,
            multiprocessorCount=processors,
            memorySizeMB=memory,
            instanceCount=len(places),
        )
        if version == 2:
            info.name = name.encode()
        return info

    def nvmlDeviceGetGpuInstancePossiblePlacements(self, handle, profile_id, array, count):
        self._enter("nvmlDeviceGetGpuInstancePossiblePlacements", handle)
        places = next(row[5] for row in handle.profiles.values() if row[0] == profile_id)
        count._obj.value = len(places)
        for entry, (start, size) in zip(array or (), places):
            entry.start, entry.size = start, size

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, handle, profile_id, placement):
        self._enter("nvmlDeviceCreateGpuInstanceWithPlacement", handle)
        start, size = placement._obj.start, placement._obj.size
        if any(
            one.start < start + size and start < one.start + one.size
            for one in handle.made.values()
        ):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        number = next(number for number in itertools.count(1) if number not in handle.made)
        handle.made[number] = _Created(handle, number, profile_id, start, size)
        return self._pointer(pynvml.c_nvmlGpuInstance_t, handle.made[number])

    def nvmlGpuInstanceGetInfo(self, pointer):
        made = self._behind(pointer)
        self._enter("nvmlGpuInstanceGetInfo", made.gpu)
        return SimpleNamespace(
            id=made.number,
            profileId=made.profile,
            placement=SimpleNamespace(start=made.start, size=made.size),
        )

    def nvmlDeviceGetGpuInstances(self, handle, profile_id, array, count):
        self._enter("nvmlDeviceGetGpuInstances", handle)
        found = [made for made in handle.made.values() if made.profile == profile_id]
        count._obj.value = len(found)
        for place, made in enumerate(found):
            array[place] = self._pointer(pynvml.c_nvmlGpuInstance_t, made)

    def nvmlDeviceGetGpuInstanceById(self, handle, number):
        self._enter("nvmlDeviceGetGpuInstanceById", handle)
        if number not in handle.made:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self._pointer(pynvml.c_nvmlGpuInstance_t, handle.made[number])

    def nvmlGpuInstanceDestroy(self, pointer):
        made = self._behind(pointer)
        self._enter("nvmlGpuInstanceDestroy", made.gpu)
        if made.inner:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
        del made.gpu.made[made.number]

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self, pointer, number, engine, version=2):
        made = self._behind(pointer)
        self._enter("nvmlGpuInstanceGetComputeInstanceProfileInfo", made.gpu)
        slices = next(row[2] for row in made.gpu.profiles.values() if row[0] == made.profile)
        if number != {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}[slices]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(id=number + 50, instanceCount=1)

    def nvmlGpuInstanceCreateComputeInstance(self, pointer, profile_id):
        made = self._behind(pointer)
        self._enter("nvmlGpuInstanceCreateComputeInstance", made.gpu)
        made.inner[0] = f"MIG-{next(self._mig_serial)}"
        return self._pointer(pynvml.c_nvmlComputeInstance_t, (made, 0))

    def nvmlComputeInstanceGetInfo(self, pointer):
        made, inner = self._behind(pointer)
        self._enter("nvmlComputeInstanceGetInfo", made.gpu)
        return SimpleNamespace(id=inner)

    def nvmlGpuInstanceGetComputeInstances(self, pointer, profile_id, array, count):
        made = self._behind(pointer)
        self._enter("nvmlGpuInstanceGetComputeInstances", made.gpu)
        count._obj.value = len(made.inner)
        for place, inner in enumerate(made.inner):
            array[place] = self._pointer(pynvml.c_nvmlComputeInstance_t, (made, inner))

    def nvmlComputeInstanceDestroy(self, pointer):
        made, inner = self._behind(pointer)
        self._enter("nvmlComputeInstanceDestroy", made.gpu)
        if made.busy:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
        del made.inner[inner]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        self._enter("nvmlDeviceGetMaxMigDeviceCount", handle)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        self._enter("nvmlDeviceGetMigDeviceHandleByIndex", handle)
        if (made := handle.made.get(index + 1)) is None or not made.inner:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return made, 0

    def nvmlDeviceGetGpuInstanceId(self, mig):
        return mig[0].number

    def nvmlDeviceGetComputeInstanceId(self, mig):
        return mig[1]

    def nvmlDeviceGetAttributes(self, mig):
        made, _ = mig
        self._enter("nvmlDeviceGetAttributes", made.gpu)
        slices, memory = next(
            (row[2], row[4]) for row in made.gpu.profiles.values() if row[0] == made.profile
        )
        return SimpleNamespace(
            gpuInstanceSliceCount=slices,
            computeInstanceSliceCount=made.part or slices,
            memorySizeMB=memory,
        )

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return self._running("Compute", handle)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        return self._running("Graphics", handle)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle):
        return self._running("MPSCompute", handle)

    def _running(self, kind, handle):
        owner, gpu = (handle[0], handle[0].gpu) if isinstance(handle, tuple) else (handle, handle)
        self._enter(f"nvmlDeviceGet{kind}RunningProcesses", gpu)
        busy = [Process(1)] if getattr(owner, "busy", False) else []
        return [
            SimpleNamespace(pid=one.pid, usedGpuMemory=one.memory)
            for one in (*owner.processes, *busy)
            if one.kind == kind
        ]

    # ---- internals

    def _enter(self, function, gpu=None):
        self.calls.append(function)
        for name, status, index in self._faults:
            if name == function and (index is None or gpu is self.gpus[index]):
                raise pynvml.NVMLError(status)

    def _pointer(self, kind, thing):
        address = next(self._addresses)
        self._pointers[address] = thing
        return ctypes.cast(ctypes.c_void_p(address), kind)

    def _behind(self, pointer):
        return self._pointers[ctypes.cast(pointer, ctypes.c_void_p).value]
