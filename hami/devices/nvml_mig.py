"""MIG profiles and instances through NVML.

Every GPU instance created here has one compute instance, of its full size. Profiles have the device configuration's
names where it knows them, else the driver's.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/plugin (mig).
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from hami.codec.device_config import MigAllowance
from hami.devices.cards import Instance, MigDevice
from hami.devices.mig_profiles import allowed_names
from hami.devices.nvml_library import card_handles, decode
from hami.errors import HamiError
from hami.model import MigProfile, Partition
from hami.quantity import MIB
from hami.runtime.once import OncePerKey

_PLAIN = re.compile(
    r"\d+g\.\d+gb"
)  # without a suffix (+me, +gfx, …) for additional or missing engines
_GIB = 1 << 30


def offered_profiles(nvml: Any, handle: Any) -> dict[int, MigProfile]:
    """Returns the profiles of a card that have no suffix, by the driver's number. Unreadable profiles are skipped.

    Cores: percent of the multiprocessors that the largest profile has, rounded up.
    """
    offers: list[tuple[Any, str, tuple[Partition, ...]]] = []
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        with suppress(nvml.NVMLError):
            info = _profile_info(nvml, handle, number)
            name = _profile_name(nvml, handle, info)
            if _PLAIN.fullmatch(name) and info.multiprocessorCount:
                offers.append((info, name, _placements(nvml, handle, info.id)))
    largest = max((info.multiprocessorCount for info, *_ in offers), default=1)
    return {
        info.id: MigProfile(
            name=name,
            memory_mib=info.memorySizeMB,
            slices=info.sliceCount,
            placements=placements,
            cores=math.ceil(100 * info.multiprocessorCount / largest),
        )
        for info, name, placements in offers
    }


class NvmlInstances:
    """Lists, creates and destroys MIG instances. Threads may share it. Errors name the card and NVML's error."""

    def __init__(self, nvml: Any, allowlist: Sequence[MigAllowance] = ()) -> None:
        self._nvml = nvml
        self._allowlist = tuple(allowlist)
        self._skipped = OncePerKey()
        self._lock = threading.Lock()  # makes list and create atomic; held during calls of NVML

    def existing(self, gpu: str) -> Sequence[Instance]:
        """Returns the instances of a card, sorted by placement; none if it is not in MIG mode. Raises: HamiError when
        they cannot be read, because unknown placements must not count as free."""
        with self._errors(gpu), self._lock:
            card = self._card(gpu)
            instances = list(self._instances(gpu, card)) if card.is_enabled() else []
        return sorted(instances, key=lambda instance: instance.start)

    def devices(self, gpu: str) -> Sequence[MigDevice]:
        """Returns the MIG devices of a card in MIG mode, sorted by instance. Raises: HamiError."""
        with self._errors(gpu), self._lock:
            card = self._card(gpu)
            names = card.profile_names(card.profile_infos())
            devices = [card.device(gpu, mig, names) for mig in card.mig_handles()]
        return sorted(devices, key=lambda device: (device.gpu_instance, device.compute_instance))

    def create(self, gpu: str, profile: str, start: int, size: int) -> Instance:
        """Creates an instance at that placement. Leaves nothing behind when a step fails. Raises: HamiError."""
        nvml = self._nvml
        with self._errors(gpu):
            card = self._card(gpu)
            offered = offered_profiles(nvml, card.handle)
            numbers = {offer.name: number for number, offer in reversed(offered.items())}
            allowed = card.allowed(reversed(numbers), self._allowlist)
            names = {name: driver_name for driver_name, name in allowed.items()}
        if profile not in names:
            raise HamiError(f"{gpu}: no profile {profile}, only {', '.join(names) or 'none'}")
        number = numbers[names[profile]]
        full_size = getattr(nvml, f"NVML_COMPUTE_INSTANCE_PROFILE_{offered[number].slices}_SLICE")
        placement = nvml.c_nvmlGpuInstancePlacement_t(start=start, size=size)
        context = f"{gpu}: {profile} at {start}"
        with self._errors(context), self._lock, ExitStack() as undo:
            created = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                card.handle, number, ctypes.byref(placement)
            )
            undo.callback(self._destroy_quietly, nvml.nvmlGpuInstanceDestroy, created)
            gpu_instance = nvml.nvmlGpuInstanceGetInfo(created).id
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                created, full_size, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
            compute = nvml.nvmlGpuInstanceCreateComputeInstance(created, info.id)
            undo.callback(self._destroy_quietly, nvml.nvmlComputeInstanceDestroy, compute)
            compute_instance = nvml.nvmlComputeInstanceGetInfo(compute).id
            uuid = card.uuid_of(gpu_instance, compute_instance)
            if uuid is None:
                raise HamiError(f"{context}: created, but it has no UUID")
            undo.pop_all()
        return Instance(
            gpu=gpu,
            profile=profile,
            start=start,
            size=size,
            uuid=uuid,
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
        )

    def destroy(self, instance: Instance) -> None:
        """Destroys *instance*. Raises: HamiError, also when it is in use."""
        nvml, gpu = self._nvml, instance.gpu
        context = f"{gpu}: {instance.uuid or f'GPU instance {instance.gpu_instance}'}"
        with self._errors(context), self._lock:
            card = self._card(gpu)
            outer = nvml.nvmlDeviceGetGpuInstanceById(card.handle, instance.gpu_instance)
            for inner in card.compute_instances(outer):
                nvml.nvmlComputeInstanceDestroy(inner)
            nvml.nvmlGpuInstanceDestroy(outer)

    def enable_mig(self, gpu: str) -> None:
        """Enables MIG mode. Raises: HamiError, also when the card must be reset first."""
        nvml = self._nvml
        with self._errors(gpu):
            card = self._card(gpu)
            if card.is_enabled():
                return
            nvml.nvmlDeviceSetMigMode(card.handle, nvml.NVML_DEVICE_MIG_ENABLE)
            current, pending = nvml.nvmlDeviceGetMigMode(card.handle)
        if current != nvml.NVML_DEVICE_MIG_ENABLE:
            raise HamiError(
                f"{gpu}: MIG mode is {'pending: the card must be reset' if pending else 'off'}"
            )

    @contextmanager
    def _errors(self, context: str) -> Iterator[None]:
        """Turns errors of NVML into HamiError."""
        try:
            yield
        except self._nvml.NVMLError as error:
            raise HamiError(f"{context}: {error}") from error

    def _card(self, gpu: str) -> _MigCard:
        """Returns a card. Searching a UUID, NVML queries other cards too and may fail at a lost one."""
        nvml = self._nvml
        try:
            return _MigCard(nvml, nvml.nvmlDeviceGetHandleByUUID(gpu))
        except nvml.NVMLError:
            for _, uuid, handle in card_handles(nvml, self._skipped)[0]:
                if uuid == gpu:
                    return _MigCard(nvml, handle)
            raise

    def _instances(self, gpu: str, card: _MigCard) -> Iterator[Instance]:
        nvml = self._nvml
        infos = list(card.profile_infos())
        names = card.profile_names(infos)
        allowed = card.allowed(filter(_PLAIN.fullmatch, names.values()), self._allowlist)
        migs = [(card.instance_ids(mig), mig) for mig in card.mig_handles()]
        for info in infos:
            for outer in _read_array(
                nvml.c_nvmlGpuInstance_t,
                info.instanceCount,
                partial(nvml.nvmlDeviceGetGpuInstances, card.handle, info.id),
            ):
                placed = nvml.nvmlGpuInstanceGetInfo(outer)
                parts = [(ids[1], mig) for ids, mig in migs if ids[0] == placed.id]
                number, uuid = 0, ""
                if parts:
                    number, uuid = parts[0][0], card.uuid(parts[0][1])
                    busy = any(card.is_busy(mig) for _, mig in parts)
                else:
                    busy = bool(card.compute_instances(outer))
                yield Instance(
                    gpu=gpu,
                    profile=allowed.get(names[info.id], names[info.id]),
                    start=placed.placement.start,
                    size=placed.placement.size,
                    gpu_instance=placed.id,
                    compute_instance=number,
                    uuid=uuid,
                    busy=busy,
                )

    def _destroy_quietly(self, destroy: Callable[[Any], Any], created: Any) -> None:
        """Undoes a creation. The error that made it necessary is the one to raise."""
        with suppress(self._nvml.NVMLError):
            destroy(created)


class _MigCard:
    """The instances of one card, as NVML tells them. Raises errors of NVML."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self.handle = handle

    def is_enabled(self) -> bool:
        """Reports whether the card is in MIG mode."""
        try:
            current: int = self._nvml.nvmlDeviceGetMigMode(self.handle)[0]
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return False
            raise
        return current == int(self._nvml.NVML_DEVICE_MIG_ENABLE)

    def device(self, gpu: str, mig: Any, names: Mapping[int, str]) -> MigDevice:
        """Returns a MIG device. *names*: of profiles, by their numbers."""
        nvml = self._nvml
        gpu_instance, compute_instance = self.instance_ids(mig)
        profile_id = nvml.nvmlGpuInstanceGetInfo(
            nvml.nvmlDeviceGetGpuInstanceById(self.handle, gpu_instance)
        ).profileId
        attributes = nvml.nvmlDeviceGetAttributes(mig)
        name = names.get(profile_id) or f"profile {profile_id}"
        if attributes.computeInstanceSliceCount != attributes.gpuInstanceSliceCount:
            name = f"{attributes.computeInstanceSliceCount}c.{name}"
        return MigDevice(
            gpu=gpu,
            uuid=self.uuid(mig),
            profile=name,
            memory_mib=attributes.memorySizeMB,
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
        )

    def profile_infos(self) -> Iterator[Any]:
        """Yields NVML's information about each profile of the card."""
        nvml = self._nvml
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                yield _profile_info(nvml, self.handle, number)
            except nvml.NVMLError as error:
                if error.value not in (
                    nvml.NVML_ERROR_NOT_SUPPORTED,
                    nvml.NVML_ERROR_INVALID_ARGUMENT,
                ):
                    raise

    def profile_names(self, infos: Iterable[Any]) -> dict[int, str]:
        """Returns the names of profiles, by their numbers."""
        return {info.id: _profile_name(self._nvml, self.handle, info) for info in infos}

    def allowed(self, names: Iterable[str], allowlist: Sequence[MigAllowance]) -> Mapping[str, str]:
        """Returns the device configuration's names of the allowed profiles among *names*, by the driver's name."""
        return allowed_names(
            decode(self._nvml.nvmlDeviceGetName(self.handle)), list(names), allowlist
        )

    def mig_handles(self) -> Iterator[Any]:
        """Yields the handles of a card's MIG devices. Their indexes may have gaps."""
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(self.handle)):
            try:
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index)
            except nvml.NVMLError as error:
                if error.value not in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    raise

    def instance_ids(self, mig: Any) -> tuple[int, int]:
        """Returns the ids of the GPU instance and the compute instance of a MIG device."""
        nvml = self._nvml
        gpu_instance: int = nvml.nvmlDeviceGetGpuInstanceId(mig)
        return gpu_instance, nvml.nvmlDeviceGetComputeInstanceId(mig)

    def uuid(self, mig: Any) -> str:
        """Returns the UUID of a MIG device."""
        return decode(self._nvml.nvmlDeviceGetUUID(mig))

    def uuid_of(self, gpu_instance: int, compute_instance: int) -> str | None:
        """Returns the UUID of the MIG device with these ids; ``None`` if there is none."""
        for mig in self.mig_handles():
            if self.instance_ids(mig) == (gpu_instance, compute_instance):
                return self.uuid(mig)
        return None

    def compute_instances(self, outer: Any) -> list[Any]:
        """Returns the compute instances in a GPU instance, of all profiles."""
        nvml = self._nvml
        instances: list[Any] = []
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    outer, number, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                )
            except nvml.NVMLError:
                continue  # this GPU instance does not support the profile
            instances += _read_array(
                nvml.c_nvmlComputeInstance_t,
                info.instanceCount,
                partial(nvml.nvmlGpuInstanceGetComputeInstances, outer, info.id),
            )
        return instances

    def is_busy(self, mig: Any) -> bool:
        """Reports whether processes run in the instance. It counts as busy if that cannot be read."""
        nvml = self._nvml
        try:
            return bool(
                nvml.nvmlDeviceGetComputeRunningProcesses(mig)
                or nvml.nvmlDeviceGetGraphicsRunningProcesses(mig)
            )
        except nvml.NVMLError:
            return True


def _read_array(type: Any, capacity: int, read: Callable[[Any, Any], Any]) -> list[Any]:
    """Returns the items that *read* writes to an array of *type*; it also writes their number."""
    array, count = (type * max(capacity, 1))(), ctypes.c_uint(capacity)
    read(array, ctypes.byref(count))
    return list(array[: count.value])


def _profile_info(nvml: Any, handle: Any, number: int) -> Any:
    """Returns NVML's information about a profile, with its name if the driver reports it (from 510 on)."""
    try:
        return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=2)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=1)


def _profile_name(nvml: Any, handle: Any, info: Any) -> str:
    """Returns the profile's name, such as ``1g.10gb+me``.

    Without one, it is computed like in go-nvlib: memory in eighths of the card's, rounded up.
    """
    if name := decode(getattr(info, "name", b"")):
        return name.removeprefix("MIG ")
    total = nvml.nvmlDeviceGetMemoryInfo(handle).total
    eighths = math.ceil(info.memorySizeMB * MIB / total * 8) / 8
    return f"{info.sliceCount}g.{round(eighths * math.ceil(total / _GIB))}gb"


def _placements(nvml: Any, handle: Any, profile_id: int) -> tuple[Partition, ...]:
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    places = _read_array(
        nvml.c_nvmlGpuInstancePlacement_t,
        count.value,
        partial(nvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile_id),
    )
    return tuple(Partition(place.start, place.size) for place in places)
