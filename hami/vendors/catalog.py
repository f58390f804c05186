"""The vendors that HAMi schedules, made from the device configuration."""

from __future__ import annotations

from collections.abc import Callable

from hami.codec.device_config import DeviceConfig, Names, NvidiaConfig
from hami.codec.keys import CORDON
from hami.vendors import aws, inventory, mig, nvidia
from hami.vendors.spec import Catalog, Rule, SelectorKeys, Vendor

__all__ = ["vendors"]


def vendors(config: DeviceConfig, *, ascend: bool = False, iluvatar: bool = False) -> Catalog:
    """One record a backend; one whose count has no resource name is left out.

    *ascend*, *iluvatar*: schedule those too, which upstream switches on by flags.
    Raises: MalformedInput when two claim one name.
    """
    made = [_nvidia(config.nvidia)] if config.nvidia else []
    made += [record(config.names[key], config) for key, record in _RECORDS.items() if key in config.names]
    return Catalog(vendor for vendor in made if vendor.count)


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
            use_uuids=("nvidia.com/use-gpuuuid",), nouse_uuids=("nvidia.com/nouse-gpuuuid",),
            mode="nvidia.com/vgpu-mode"),
        node_keys=(CORDON, inventory.PAIR_SCORES),
        rules=(Rule.HEALTH, mig.unaccounted, Rule.CORDON, Rule.TYPE, Rule.NUMA, Rule.UUID, Rule.SLOTS, Rule.MUTEX,
               Rule.QUOTA, Rule.MEMORY, Rule.CORES, Rule.EXCLUSIVE, Rule.FULL, mig.no_place),
        repeats=mig.in_mig_mode,
        share=mig.instance_share,
        annotate=mig.annotate,
        read=mig.read,
        inventory=inventory.registered,
        admit=nvidia.admission(
            default_count=config.default_gpu_num, overwrite_env=config.overwrite_env,
            core_policy=config.gpu_core_policy, runtime_class=config.runtime_class_name),
        admits_all=config.overwrite_env or config.gpu_core_policy not in ("", "default"),
    )


def _aws_neuron(names: Names, config: DeviceConfig) -> Vendor:
    return Vendor(
        key="AWSNeuron",
        count=names.count,
        cores=names.cores,
        counts_cores=False,
        allocated="hami.io/aws-neuron-devices-allocated",
        selectors=SelectorKeys(use_uuids=("aws.amazon.com/use-neuron-uuid",),
                               nouse_uuids=("aws.amazon.com/nouse-neuron-uuid",)),
        lock="",
        node_keys=(aws.INSTANCE_TYPE,),
        rules=(Rule.HEALTH, Rule.UUID, Rule.SLOTS, Rule.MUTEX, aws.too_few_cores),
        inventory=aws.inventory,
        admit=aws.admit,
        request=aws.request,
        choose=aws.choose,
        share=aws.share,
        annotate=aws.annotate,
        read=aws.read,
    )


# By the backend's key in DeviceConfig.names. A record: its names and the whole configuration in, a Vendor out.
_RECORDS: dict[str, Callable[[Names, DeviceConfig], Vendor]] = {
    "AWSNeuron": _aws_neuron,
}
