"""The vendors that HAMi schedules, made from the device configuration."""

from __future__ import annotations

from hami.codec.device_config import DeviceConfig, NvidiaConfig
from hami.vendors import inventory, nvidia
from hami.vendors.spec import Rule, SelectorKeys, Vendor

__all__ = ["vendors"]


def vendors(config: DeviceConfig) -> tuple[Vendor, ...]:
    """One record a vendor, sorted by key; a vendor whose count has no resource name is left out."""
    made = [_nvidia(config.nvidia)] if config.nvidia else []
    return tuple(sorted((vendor for vendor in made if vendor.count), key=lambda vendor: vendor.key))


def _nvidia(config: NvidiaConfig) -> Vendor:
    return Vendor(
        key="NVIDIA",
        count=config.resource_count_name,
        memory=config.resource_memory_name,
        memory_percent=config.resource_memory_percentage_name,
        cores=config.resource_core_name,
        priority=config.resource_priority_name,
        memory_factor=config.memory_factor,
        default_memory=config.default_memory,
        default_cores=config.default_cores,
        register="hami.io/node-nvidia-register",
        handshake="hami.io/node-handshake",
        to_allocate="hami.io/vgpu-devices-to-allocate",
        allocated="hami.io/vgpu-devices-allocated",
        selectors=SelectorKeys(
            use_types="nvidia.com/use-gputype", nouse_types="nvidia.com/nouse-gputype",
            use_uuids="nvidia.com/use-gpuuuid", nouse_uuids="nvidia.com/nouse-gpuuuid", mode="nvidia.com/vgpu-mode"),
        rules=(Rule.HEALTH, Rule.CORDON, Rule.TYPE, Rule.NUMA, Rule.UUID, Rule.SLOTS, Rule.MUTEX, Rule.QUOTA,
               Rule.MEMORY, Rule.CORES, Rule.EXCLUSIVE, Rule.FULL, Rule.MIG),
        inventory=inventory.registered,
        admit=nvidia.admission(
            default_count=config.default_gpu_num, overwrite_env=config.overwrite_env,
            core_policy=config.gpu_core_policy, runtime_class=config.runtime_class_name),
        admission_wants_all_pods=config.overwrite_env,
    )
