"""MIG through NVML: the sizes in which a card can be cut, and the instances that are.

A GPU instance here always has one compute instance, of its whole size. Names of profiles are the device
configuration's where it knows them, else the driver's.
Source: HAMi v2.10, pkg/device-plugin/nvidiadevice/nvinternal/plugin (mig).
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from hami.codec.device_config import MigAllowance
from hami.errors import HamiError
from hami.model import MigProfile, Partition
from hami.devices.cards import Instance, MigDevice
from hami.devices.mig_profiles import allowed_profiles, allowed_names

__all__ = ["NvmlInstances", "ProfileOffer", "offered_profiles"]

_PLAIN = re.compile(r"\d+g\.\d+gb")  # without +me, +gfx, …: engines besides, or none
_MIB, _GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class ProfileOffer:
    """A profile, and the numbers by which the driver knows it: *profile_id* on this card, *compute* for all of it."""

    profile: MigProfile
    profile_id: int
    compute: int
    instances: int


def offered_profiles(nvml: Any, handle: Any) -> tuple[ProfileOffer, ...]:
    """The sizes in which a card can be cut, plain ones first; a profile that cannot be read is left out.

    Cores: percent of the multiprocessors that the largest profile has, rounded up.
    """
    found: list[tuple[Any, str, tuple[Partition, ...], int]] = []
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        with suppress(nvml.NVMLError):
            info = _profile_info(nvml, handle, number)
            name = _name(nvml, handle, info)
            if name and info.multiprocessorCount:
                found.append((info, name, _places(nvml, handle, info.id), number))
    most = max((info.multiprocessorCount for info, *_ in found), default=1)
    return tuple(ProfileOffer(
        MigProfile(name=name, memory_mib=info.memorySizeMB, cores=math.ceil(100 * info.multiprocessorCount / most),
                   slices=info.sliceCount, placements=places),
        info.id, _compute_profile(nvml, info.sliceCount, number), info.instanceCount)
        for info, name, places, number in found)


class NvmlInstances:
    """Makes and destroys MIG instances; threads may share it. Errors name the card and what NVML said."""

    def __init__(self, nvml: Any, allowlist: Sequence[MigAllowance] = ()) -> None:
        self._nvml = nvml
        self._allowlist = tuple(allowlist)
        self._lock = threading.Lock()  # what is made is looked for among what is there

    def existing(self, gpu: str) -> Sequence[Instance]:
        """The instances on a card, by place; none on one that is not in MIG mode. Raises: HamiError when the card does
        not say what is on it: nobody may then take its places for free."""
        with self._lock:
            handle = self._card(gpu)
            found = list(self._on(gpu, handle)) if self._is_on(gpu, handle) else []
        return sorted(found, key=lambda one: one.start)

    def devices(self, gpu: str) -> Sequence[MigDevice]:
        """What programs can use on a card in MIG mode, by instance. Raises: HamiError."""
        handle = self._card(gpu)
        names = self._full_names(gpu, handle, self._infos(gpu, handle))
        with self._lock:
            found = [self._device(gpu, handle, mig, names) for mig in self._migs(gpu, handle)]
        return sorted(found, key=lambda one: (one.gpu_instance, one.compute_instance))

    def create(self, gpu: str, profile: str, start: int, size: int) -> Instance:
        """A new instance at that place. What was done is undone when a part of it fails. Raises: HamiError."""
        nvml = self._nvml
        handle = self._card(gpu)
        offers = self._names(gpu, handle)
        if profile not in offers:
            raise HamiError(f"{gpu}: no profile {profile}, only {', '.join(offers) or 'none'}")
        offer = offers[profile]
        place = nvml.c_nvmlGpuInstancePlacement_t(start=start, size=size)
        with self._lock, ExitStack() as undo:
            where = f"{gpu}: {profile} at {start}"
            made = self._ask(where, nvml.nvmlDeviceCreateGpuInstanceWithPlacement, handle, offer.profile_id,
                             ctypes.byref(place))
            undo.callback(self._quietly, nvml.nvmlGpuInstanceDestroy, made)
            number = self._ask(where, nvml.nvmlGpuInstanceGetInfo, made).id
            info = self._ask(where, nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, made, offer.compute,
                             nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
            compute = self._ask(where, nvml.nvmlGpuInstanceCreateComputeInstance, made, info.id)
            undo.callback(self._quietly, nvml.nvmlComputeInstanceDestroy, compute)
            inner = self._ask(where, nvml.nvmlComputeInstanceGetInfo, compute).id
            uuid = next((_text(self._ask(where, nvml.nvmlDeviceGetUUID, mig)) for mig in self._migs(gpu, handle)
                         if self._numbers(gpu, mig) == (number, inner)), None)
            if uuid is None:
                raise HamiError(f"{where}: it was made, but has no UUID")
            undo.pop_all()
        return Instance(gpu=gpu, profile=profile, start=start, size=size, uuid=uuid, gpu_instance=number,
                        compute_instance=inner)

    def destroy(self, instance: Instance) -> None:
        """The instance is no more. Raises: HamiError, for one in which something runs, too."""
        nvml, where = self._nvml, f"{instance.gpu}: {instance.uuid or f'GPU instance {instance.gpu_instance}'}"
        handle = self._card(instance.gpu)
        with self._lock:
            outer = self._ask(where, nvml.nvmlDeviceGetGpuInstanceById, handle, instance.gpu_instance)
            for inner in self._compute_instances(where, handle, outer):
                self._ask(where, nvml.nvmlComputeInstanceDestroy, inner)
            self._ask(where, nvml.nvmlGpuInstanceDestroy, outer)

    def enable_mig(self, gpu: str) -> None:
        """Switch MIG mode on. Raises: HamiError, when the card has to be reset first, too."""
        nvml = self._nvml
        handle = self._card(gpu)
        if self._is_on(gpu, handle):
            return
        self._ask(gpu, nvml.nvmlDeviceSetMigMode, handle, nvml.NVML_DEVICE_MIG_ENABLE)
        current, pending = self._ask(gpu, nvml.nvmlDeviceGetMigMode, handle)
        if current != nvml.NVML_DEVICE_MIG_ENABLE:
            raise HamiError(f"{gpu}: MIG mode is {'pending: the card has to be reset' if pending else 'off'}")

    def _card(self, gpu: str) -> Any:
        """The handle of a card. NVML looks at others on its way to a UUID, and may stop at one that is lost."""
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetHandleByUUID(gpu)
        except nvml.NVMLError as error:
            for index in range(self._ask(gpu, nvml.nvmlDeviceGetCount)):
                with suppress(nvml.NVMLError):
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    if _text(nvml.nvmlDeviceGetUUID(handle)) == gpu:
                        return handle
            raise HamiError(f"{gpu}: {error}") from error

    def _is_on(self, gpu: str, handle: Any) -> bool:
        try:
            current: int = self._nvml.nvmlDeviceGetMigMode(handle)[0]
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return False
            raise HamiError(f"{gpu}: {error}") from error
        return current == int(self._nvml.NVML_DEVICE_MIG_ENABLE)

    def _on(self, gpu: str, handle: Any) -> Iterator[Instance]:
        """The instances on one card."""
        nvml = self._nvml
        infos = list(self._infos(gpu, handle))
        names = self._full_names(gpu, handle, infos)
        words = allowed_names(_text(self._ask(gpu, nvml.nvmlDeviceGetName, handle)),
                              [name for name in names.values() if _PLAIN.fullmatch(name)], self._allowlist)
        migs = [(*self._numbers(gpu, mig), mig) for mig in self._migs(gpu, handle)]
        for info in infos:
            for outer in self._gpu_instances(gpu, handle, info):
                facts = self._ask(gpu, nvml.nvmlGpuInstanceGetInfo, outer)
                within = [(number, mig) for outer_number, number, mig in migs if outer_number == facts.id]
                number, mig = within[0] if within else (0, None)
                yield Instance(
                    gpu=gpu, profile=words.get(names[info.id], names[info.id]), start=facts.placement.start,
                    size=facts.placement.size, gpu_instance=facts.id, compute_instance=number,
                    uuid=_text(self._ask(gpu, nvml.nvmlDeviceGetUUID, mig)) if within else "",
                    busy=any(self._is_busy(one) for _, one in within) if within else bool(
                        self._compute_instances(gpu, handle, outer)))

    def _device(self, gpu: str, handle: Any, mig: Any, names: Mapping[int, str]) -> MigDevice:
        nvml = self._nvml
        outer, inner = self._numbers(gpu, mig)
        profile = self._ask(gpu, nvml.nvmlGpuInstanceGetInfo, self._ask(
            gpu, nvml.nvmlDeviceGetGpuInstanceById, handle, outer)).profileId
        has = self._ask(gpu, nvml.nvmlDeviceGetAttributes, mig)
        name = names.get(profile) or f"profile {profile}"
        if has.computeInstanceSliceCount != has.gpuInstanceSliceCount:
            name = f"{has.computeInstanceSliceCount}c.{name}"
        return MigDevice(gpu=gpu, uuid=_text(self._ask(gpu, nvml.nvmlDeviceGetUUID, mig)), profile=name,
                         memory_mib=has.memorySizeMB, gpu_instance=outer, compute_instance=inner)

    def _infos(self, gpu: str, handle: Any) -> Iterator[Any]:
        """The profiles that a card has."""
        nvml = self._nvml
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                yield _profile_info(nvml, handle, number)
            except nvml.NVMLError as error:
                if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    raise HamiError(f"{gpu}: profile {number}: {error}") from error

    def _full_names(self, gpu: str, handle: Any, infos: Iterable[Any]) -> dict[int, str]:
        return {info.id: self._ask(gpu, _full_name, self._nvml, handle, info) for info in infos}

    def _names(self, gpu: str, handle: Any) -> dict[str, ProfileOffer]:
        """The profiles that may be cut, by the names of the device configuration."""
        model = _text(self._ask(gpu, self._nvml.nvmlDeviceGetName, handle))
        offers = {offer.profile.name: offer for offer in reversed(offered_profiles(self._nvml, handle))}
        allowed = allowed_profiles(model, [offer.profile for offer in reversed(offers.values())], self._allowlist)
        return {profile.name: replace(offers[name], profile=profile) for name, profile in allowed.items()}

    def _migs(self, gpu: str, handle: Any) -> Iterator[Any]:
        """Handles of the MIG devices of a card; their numbers have gaps."""
        nvml = self._nvml
        for index in range(self._ask(gpu, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
            try:
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except nvml.NVMLError as error:
                if error.value not in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    raise HamiError(f"{gpu}: MIG device {index}: {error}") from error

    def _numbers(self, gpu: str, mig: Any) -> tuple[int, int]:
        return (self._ask(gpu, self._nvml.nvmlDeviceGetGpuInstanceId, mig),
                self._ask(gpu, self._nvml.nvmlDeviceGetComputeInstanceId, mig))

    def _gpu_instances(self, gpu: str, handle: Any, info: Any) -> list[Any]:
        nvml = self._nvml
        return self._listed(gpu, nvml.c_nvmlGpuInstance_t, info.instanceCount,
                            lambda array, count: nvml.nvmlDeviceGetGpuInstances(handle, info.id, array, count))

    def _compute_instances(self, where: str, handle: Any, outer: Any) -> list[Any]:
        """The compute instances in a GPU instance, of whatever profile."""
        nvml = self._nvml
        found: list[Any] = []
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    outer, number, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
            except nvml.NVMLError:
                continue  # a profile that this instance does not have

            def ask(array: Any, count: Any, profile: int = info.id) -> None:
                nvml.nvmlGpuInstanceGetComputeInstances(outer, profile, array, count)
            found += self._listed(where, nvml.c_nvmlComputeInstance_t, info.instanceCount, ask)
        return found

    def _listed(self, where: str, kind: Any, room: int, call: Callable[[Any, Any], Any]) -> list[Any]:
        """What *call* writes into an array of *kind* and its length."""
        array, count = (kind * max(room, 1))(), ctypes.c_uint(0)
        self._ask(where, call, array, ctypes.byref(count))
        return list(array[:count.value])

    def _is_busy(self, mig: Any) -> bool:
        """Something runs in the instance; what cannot be asked counts as that."""
        nvml = self._nvml
        try:
            return bool(nvml.nvmlDeviceGetComputeRunningProcesses(mig) or
                        nvml.nvmlDeviceGetGraphicsRunningProcesses(mig))
        except nvml.NVMLError:
            return True

    def _ask(self, where: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            raise HamiError(f"{where}: {error}") from error

    def _quietly(self, call: Callable[[Any], Any], made: Any) -> None:
        """Undo; the error that led here is the one to be told."""
        with suppress(self._nvml.NVMLError):
            call(made)


def _profile_info(nvml: Any, handle: Any, number: int) -> Any:
    """What a card says of a profile, with its name where the driver knows how (from 510 on)."""
    try:
        return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=2)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=1)


def _name(nvml: Any, handle: Any, info: Any) -> str:
    """The profile's name, such as ``1g.10gb``; empty for one with engines besides, or without."""
    name = _full_name(nvml, handle, info)
    return name if _PLAIN.fullmatch(name) else ""


def _full_name(nvml: Any, handle: Any, info: Any) -> str:
    """The profile's name, such as ``1g.10gb+me``.

    Where the driver does not say it is made as go-nvlib makes it: memory in eighths of the card's, rounded up.
    """
    if said := _text(getattr(info, "name", b"")):
        return said.removeprefix("MIG ")
    total = nvml.nvmlDeviceGetMemoryInfo(handle).total
    eighths = math.ceil(info.memorySizeMB * _MIB / total * 8) / 8
    return f"{info.sliceCount}g.{round(eighths * math.ceil(total / _GIB))}gb"


def _places(nvml: Any, handle: Any, profile_id: int) -> tuple[Partition, ...]:
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    array = (nvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, array, ctypes.byref(count))
    return tuple(Partition(place.start, place.size) for place in array[:count.value])


def _compute_profile(nvml: Any, slices: int, number: int) -> int:
    """The compute profile that fills a GPU instance of so many slices."""
    named = {1: nvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, 2: nvml.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE,
             3: nvml.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE, 4: nvml.NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE,
             6: nvml.NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE, 7: nvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE,
             8: nvml.NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE}
    return int(named.get(slices, number))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
