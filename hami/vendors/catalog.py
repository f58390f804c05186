"""The vendors that HAMi schedules, made from the device configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

from hami.codec.device_config import AscendChip, DeviceConfig, Names, NvidiaConfig
from hami.codec.keys import ALLOCATION_MODE, GPU_ALLOCATED, MIG_ALLOCATIONS
from hami.codec.metax import parse_cards
from hami.vendors import (
    admission,
    ascend,
    aws,
    enflame,
    inventory,
    kunlun,
    metax,
    mig,
    nvidia,
    shares,
    vastai,
)
from hami.vendors.spec import (
    AdmissionRules,
    AnnotationContext,
    Annotations,
    Catalog,
    CoreUnit,
    Decision,
    PartitionRule,
    Resources,
    Rule,
    SelectorKeys,
    Vendor,
)


def vendors(config: DeviceConfig, *, ascend: bool = False, iluvatar: bool = False) -> Catalog:
    """Returns one vendor for each backend; a backend without a resource name for its count is left out.

    *ascend*, *iluvatar*: include these chips, which upstream enables with flags.
    Raises: MalformedInput if two vendors claim one name.
    """
    catalog = []
    if config.nvidia:
        catalog.append(_nvidia(config.nvidia))
    configured = _metax_sgpu(config.sgpu_topology_aware), _moore_threads(config.sgpu_card_sizes)
    for vendor in (*_WITHOUT_NAMES, *configured):
        if vendor.key in config.names:
            catalog.append(_with_names(vendor, config.names[vendor.key]))
    if ascend:
        for chip in config.ascends:
            catalog.append(_with_names(_ascend(chip, config), chip.names))
    if iluvatar:
        for other in config.iluvatars:
            catalog.append(_with_names(_iluvatar(other.common_word), other.names))
    return Catalog(vendor for vendor in catalog if vendor.resources.count)


def _with_names(vendor: Vendor, names: Names) -> Vendor:
    """Returns *vendor* with its resource names. At most one of the two memory factors is not 1."""
    resources = vendor.resources
    return replace(
        vendor,
        resources=replace(
            resources,
            count=names.count,
            memory=names.memory,
            cores=names.cores,
            memory_factor=resources.memory_factor * names.memory_factor,
        ),
    )


_CORES = (Rule.CORES, Rule.EXCLUSIVE, Rule.FULL)
_SHARED = (Rule.UUID, Rule.SLOTS, Rule.MUTEX, Rule.QUOTA, Rule.MEMORY, *_CORES)
_KUNLUN_SELECTORS = SelectorKeys(
    use_uuids=("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid"),
    nouse_uuids=("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid"),
)
_Texts = Mapping[str, Callable[[Vendor, AnnotationContext], str]]
_KUNLUN_TEXTS: _Texts = {"BAIDU_COM_DEVICE_IDX": lambda vendor, context: context.last_indexes}
_CAMBRICON_TEXTS: _Texts = {
    "CAMBRICON_DSMLU_ASSIGNED": lambda vendor, context: "false",
    "CAMBRICON_DSMLU_PROFILE": lambda vendor, context: context.first_profile(
        vendor.resources.memory_factor
    ),
}
_CAMBRICON_MODEL = "Model"  # the label of nodes that Cambricon's device plugin writes
_MOORE_THREADS_TEXTS: _Texts = {
    "mthreads.com/gpu-index": lambda vendor, context: context.last_indexes,
    "mthreads.com/predicate-node": lambda vendor, context: context.node,
    "mthreads.com/predicate-time": lambda vendor, context: context.nanoseconds,
}


def _annotate(vendor: Vendor, context: AnnotationContext, *, texts: _Texts) -> Mapping[str, str]:
    return {key: text(vendor, context) for key, text in texts.items()}


def _uuids(use: str, nouse: str) -> SelectorKeys:
    return SelectorKeys(use_uuids=(use,), nouse_uuids=(nouse,))


def _nvidia(config: NvidiaConfig) -> Vendor:
    return Vendor(
        key="NVIDIA",
        resources=Resources(
            count=config.resource_count_name,
            memory=config.resource_memory_name,
            memory_percent=config.resource_memory_percentage_name,
            cores=config.resource_core_name,
            priority=config.resource_priority_name,
            memory_factor=config.memory_factor,
            default_memory=config.default_memory,
            default_cores=config.default_cores,
            defaults_to_all_cores=True,
        ),
        annotations=Annotations(
            register="hami.io/node-nvidia-register",
            handshake="hami.io/node-handshake",
            to_allocate="hami.io/vgpu-devices-to-allocate",
            allocated=GPU_ALLOCATED,
            node_keys=(inventory.PAIR_SCORES,),
            allocation_mode=ALLOCATION_MODE,
            extra_keys=(MIG_ALLOCATIONS,),
            selectors=SelectorKeys(
                use_types="nvidia.com/use-gputype",
                nouse_types="nvidia.com/nouse-gputype",
                use_uuids=("nvidia.com/use-gpuuuid",),
                nouse_uuids=("nvidia.com/nouse-gpuuuid",),
                mode="nvidia.com/vgpu-mode",
                modes=("hami-core", "mig", "mps"),
            ),
            pod_terms=(nvidia.CORES_LIMIT_TERM,),
            annotate=mig.annotate,
            read_shares=mig.read_shares,
        ),
        admission=AdmissionRules(
            admit=functools.partial(nvidia.admit, config=config),
            admits_all=config.overwrite_env or config.strict,
            admits_beside=config.gpu_core_policy not in ("", "default"),
            hides_devices=True,
            confine=nvidia.confine if config.strict else None,
            admit_ephemeral=functools.partial(nvidia.admit_ephemeral, config=config),
            refuses_ephemeral=config.strict,
        ),
        decision=Decision(
            inventory=inventory.registered,
            rules=(
                Rule.ALLOCATION_MODE,
                Rule.HEALTH,
                PartitionRule(mig.unaccounted),
                Rule.CORDON,
                Rule.TYPE,
                Rule.UUID,
                Rule.SLOTS,
                Rule.MUTEX,
                Rule.QUOTA,
                Rule.MEMORY,
                *_CORES,
                PartitionRule(mig.no_placement),
            ),
            binds_numa=True,
            allows_repeats=mig.in_mig_mode,
            make_share=mig.make_share,
        ),
    )


def _ascend(chip: AscendChip, config: DeviceConfig) -> Vendor:
    word = chip.common_word
    family = []
    hiding: AscendChip | None = None  # one does it for all
    by_default = False
    for other in config.ascends:
        if other.names.count:
            family.append(other.names.count)
            if hiding is None:
                hiding = other
            if other.overwrite_env:
                by_default = True
    hides = chip == hiding
    functions = ascend.ChipFunctions(chip, family, hides, by_default)
    return Vendor(
        key=word,
        annotations=Annotations(
            register=f"hami.io/node-register-{word}",
            handshake=f"hami.io/node-handshake-{word}",
            to_allocate=f"hami.io/{word}-devices-to-allocate",
            allocated=f"hami.io/{word}-devices-allocated",
            node_keys=(ascend.NODE_MODE,),
            pod_keys=(ascend.MODE, ascend.ONE_OF_MODULE),
            pod_terms=(ascend.MODE_TERM,),
            extra_keys=ascend.written_keys(word),
            selectors=_uuids(f"hami.io/use-{word}-uuid", f"hami.io/no-use-{word}-uuid"),
            annotate=functions.annotate,
        ),
        admission=AdmissionRules(
            admit=functions.admit,
            admits_all=hides and by_default,
            hides_devices=hides,
            admit_ephemeral=functions.admit_ephemeral if hides else None,
        ),
        decision=Decision(
            inventory=functools.partial(ascend.registered, soft=config.hami_vnpu_core),
            device_cores=100,
            check_node=ascend.check_node,
            rules=(
                Rule.HEALTH,
                Rule.UUID,
                Rule.SLOTS,
                Rule.MUTEX,
                Rule.QUOTA,
                Rule.MEMORY,
                functions.no_room,
                *_CORES,
            ),
            select_devices=functions.select_devices,
            make_share=functions.make_share,
            node_score=ascend.node_score if ascend.is_networked(chip) else None,
        ),
    )


def _iluvatar(word: str) -> Vendor:
    return Vendor(
        key=word,
        resources=Resources(memory_factor=256),
        annotations=Annotations(
            register=f"hami.io/node-{word}-register",
            handshake=f"hami.io/node-handshake-{word}",
            to_allocate=f"hami.io/{word}-devices-to-allocate",
            allocated=f"hami.io/{word}-devices-allocated",
            selectors=_uuids(f"hami.io/use-{word}-uuid", f"hami.io/no-use-{word}-uuid"),
        ),
        # spelled as its node agent does
        admission=AdmissionRules(
            admit=admission.admit_with(
                admission.all_cores_of_several,
                functools.partial(admission.name_in_env, variable="SOL_CONTINER_NAME"),
            )
        ),
        decision=Decision(inventory=inventory.registered, rules=(Rule.HEALTH, *_SHARED)),
    )


def _metax_sgpu(topology_aware: bool) -> Vendor:
    return Vendor(
        key="Metax-SGPU",
        resources=Resources(
            limits_only=True,
            memory_factor=1024,
            memory_units=True,
            default_cores=100,
            no_cores_annotation=(metax.APP_CLASS, metax.ONLINE),
        ),
        annotations=Annotations(
            register=metax.CARDS,
            to_allocate="hami.io/metax-sgpu-devices-to-allocate",
            allocated="hami.io/metax-sgpu-devices-allocated",
            pod_keys=(metax.APP_CLASS, metax.QOS, metax.TOPOLOGY_AWARE),
            pod_terms=metax.TERMS,
            extra_keys=(metax.ALLOCATED, metax.PREDICATE_TIME),
            selectors=_uuids("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid"),
            annotate=metax.annotate,
            read_shares=functools.partial(metax.read_shares, topology_aware=topology_aware),
        ),
        admission=AdmissionRules(admit=admission.admit_with(metax.class_and_quality)),
        decision=Decision(
            inventory=functools.partial(inventory.registered, parse=parse_cards, noun="sdevice"),
            rules=(
                metax.unhealthy,
                metax.other_class,
                metax.other_quality,
                Rule.UUID,
                Rule.SLOTS,
                Rule.MUTEX,
                Rule.QUOTA,
                Rule.MEMORY,
                metax.too_few_cores,
            ),
            select_devices=metax.select_devices,
            make_share=functools.partial(metax.make_share, topology_aware=topology_aware),
            node_score=metax.score,
        ),
    )


def _hygon(key: str) -> Vendor:
    word = key.lower()
    return Vendor(
        key=key,
        resources=Resources(default_cores=100),
        annotations=Annotations(
            register=f"hami.io/node-{word}-register",
            handshake=f"hami.io/node-handshake-{word}",
            to_allocate=f"hami.io/{word}-devices-to-allocate",
            allocated=f"hami.io/{word}-devices-allocated",
            selectors=SelectorKeys(
                use_types=f"hygon.com/use-{word}type",
                nouse_types=f"hygon.com/nouse-{word}type",
                use_uuids=("hygon.com/use-gpuuuid",),
                nouse_uuids=("hygon.com/nouse-gpuuuid",),
            ),
        ),
        decision=Decision(inventory=inventory.registered, rules=(Rule.HEALTH, Rule.TYPE, *_SHARED)),
    )


def _moore_threads(card_sizes: tuple[int, ...]) -> Vendor:
    return Vendor(
        key="Mthreads",
        resources=Resources(
            memory_factor=512,
            core_unit=CoreUnit.SIXTEENTHS,
            amounts_are_totals=True,
            defaults_to_all_cores=True,
        ),
        annotations=Annotations(
            allocated="hami.io/mthreads-vgpu-devices-allocated",
            extra_keys=tuple(_MOORE_THREADS_TEXTS),
            lock="",
            selectors=_uuids(
                "mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid"
            ),  # .ai, unlike all other keys
            annotate=functools.partial(_annotate, texts=_MOORE_THREADS_TEXTS),
        ),
        admission=AdmissionRules(
            admit=admission.admit_with(
                admission.at_least_one,
                admission.check_amounts,
                functools.partial(admission.whole_sgpus, card_sizes=card_sizes),
            )
        ),
        decision=Decision(
            inventory=inventory.divided("mthreads", slots=100, cores=16),
            rules=(
                Rule.HEALTH,
                Rule.UUID,
                Rule.SLOTS,
                Rule.MUTEX,
                Rule.QUOTA,
                Rule.MEMORY,
                Rule.CORES,
                Rule.FULL,
                Rule.SAME_DEVICE,
            ),
        ),
    )


# The vendors of which only the resource names are configured. They have none here.
_WITHOUT_NAMES = (
    Vendor(
        key="AMD",
        resources=Resources(limits_only=True, core_unit=CoreUnit.COMPUTE_UNITS, default_cores=100),
        annotations=Annotations(
            register="hami.io/node-amd-register",
            to_allocate="hami.io/amd-devices-to-allocate",
            allocated="hami.io/amd-devices-allocated",
            selectors=SelectorKeys(
                use_types="amd.com/use-gputype",
                nouse_types="amd.com/nouse-gputype",
                use_uuids=("amd.com/use-gpu-uuid",),
                nouse_uuids=("amd.com/nouse-gpu-uuid",),
            ),
            writes_model=True,
        ),
        admission=AdmissionRules(
            admit=admission.admit_with(
                admission.percentage_of_cores, admission.check_amounts, default_count=1
            )
        ),
        decision=Decision(
            inventory=inventory.registered,
            needs_capacity=True,
            rules=(
                Rule.HEALTH,
                Rule.TYPE,
                Rule.UUID,
                Rule.SLOTS,
                Rule.MUTEX,
                Rule.QUOTA,
                Rule.MEMORY,
                shares.too_few_units,
            ),
            make_share=shares.compute_units,
        ),
    ),
    Vendor(
        key="AWSNeuron",
        resources=Resources(
            core_unit=CoreUnit.MASK,
            cores_description="NeuronCores",
            parse_request=aws.parse_request,
        ),
        annotations=Annotations(
            allocated="hami.io/aws-neuron-devices-allocated",
            node_keys=(aws.INSTANCE_TYPE,),
            extra_keys=aws.WRITTEN,
            lock="",
            selectors=_uuids("aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid"),
            annotate=aws.annotate,
            read_shares=aws.read_shares,
        ),
        admission=AdmissionRules(admit=aws.admit),
        decision=Decision(
            inventory=aws.inventory,
            rules=(Rule.HEALTH, Rule.UUID, Rule.SLOTS, Rule.MUTEX, Rule.QUOTA, aws.too_few_cores),
            select_devices=aws.select_devices,
            make_share=aws.make_share,
        ),
    ),
    Vendor(
        key="Biren",
        annotations=Annotations(
            register="hami.io/node-biren-register",
            handshake="hami.io/node-handshake-biren",
            to_allocate="hami.io/Biren-devices-to-allocate",
            allocated="hami.io/Biren-devices-allocated",
            selectors=_uuids("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid"),
        ),
        decision=Decision(
            inventory=inventory.registered,
            device_cores=100,
            rules=(Rule.HEALTH, Rule.UUID, Rule.SLOTS, Rule.MUTEX, Rule.QUOTA),
            make_share=shares.nothing_but_the_device,
        ),
    ),
    _hygon("DCU"),
    _hygon("HCU"),  # what Hygon calls the cards since HAMi v2.10, with another device plugin
    Vendor(  # Enflame in slices (DRS)
        key="Enflame",
        resources=Resources(
            memory_description="GB or MiB",
            most_gib=enflame.MOST_GB,
            default_description="no minimum",
            parse_request=enflame.parse_request,
        ),
        annotations=Annotations(
            register="enflame.com/gcu-drs-capacity",
            allocated="hami.io/enflame-vgpu-devices-allocated",
            extra_keys=enflame.WRITTEN,
            lock="",
            selectors=_uuids("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid"),
            annotate=enflame.annotate,
        ),
        admission=AdmissionRules(admit=enflame.admit),
        decision=Decision(
            inventory=enflame.inventory,
            check_node=enflame.check_node,
            rules=(
                Rule.HEALTH,
                Rule.UUID,
                enflame.no_profile,
                enflame.no_slice,
                Rule.MUTEX,
                Rule.QUOTA,
                enflame.no_memory,
                enflame.too_few_slices,
            ),
            make_share=enflame.make_share,
        ),
    ),
    Vendor(  # Enflame, whole
        key="GCU",
        resources=Resources(default_cores=100),
        annotations=Annotations(
            to_allocate="hami.io/enflame-gcu-devices-to-allocate",
            allocated="hami.io/enflame-gcu-devices-allocated",
            lock="",
        ),
        decision=Decision(
            inventory=inventory.counted("GCU", slots=1, memory_mib=100, cores=100),
            rules=(Rule.HEALTH, Rule.UNUSED, Rule.QUOTA),
        ),
    ),
    Vendor(  # Cambricon
        key="MLU",
        resources=Resources(memory_factor=256, default_cores=100),
        annotations=Annotations(
            to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
            allocated="hami.io/cambricon-mlu-devices-allocated",
            extra_keys=tuple(_CAMBRICON_TEXTS),
            node_keys=(_CAMBRICON_MODEL,),
            lock="cambricon.com/dsmlu.lock",
            selectors=SelectorKeys(
                use_types="cambricon.com/use-mlutype",
                nouse_types="cambricon.com/nouse-mlutype",
                use_uuids=("cambricon.com/use-gpuuuid",),
                nouse_uuids=("cambricon.com/nouse-gpuuuid",),
            ),
            annotate=functools.partial(_annotate, texts=_CAMBRICON_TEXTS),
        ),
        decision=Decision(
            inventory=inventory.divided(
                "cambricon-mlu", slots=100, cores=100, model_label=_CAMBRICON_MODEL
            ),
            rules=(
                Rule.HEALTH,
                Rule.TYPE,
                Rule.UUID,
                Rule.SLOTS,
                Rule.MUTEX,
                Rule.QUOTA,
                Rule.MEMORY,
                *_CORES,
            ),
        ),
    ),
    Vendor(
        key="Metax-GPU",
        resources=Resources(default_cores=100),
        annotations=Annotations(
            to_allocate="hami.io/metax-gpu-devices-to-allocate",
            allocated="hami.io/metax-gpu-devices-allocated",
            node_keys=(metax.LOSSES, metax.SCORES),
            lock="",
        ),
        decision=Decision(
            inventory=metax.cards,
            # one slot for each card and one card for all containers: only one container of a pod gets one
            rules=(
                Rule.HEALTH,
                Rule.SLOTS,
                Rule.MUTEX,
                Rule.QUOTA,
                Rule.MEMORY,
                *_CORES,
                Rule.SAME_DEVICE,
            ),
            node_score=metax.card_score,
        ),
    ),
    Vendor(
        key="Vastai",
        annotations=Annotations(
            register="hami.io/node-va-register",
            handshake="hami.io/node-handshake-va",
            to_allocate="hami.io/Vastai-devices-to-allocate",
            allocated="hami.io/Vastai-devices-allocated",
            selectors=_uuids("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid"),
        ),
        decision=Decision(
            inventory=inventory.registered,
            device_cores=100,
            rules=(Rule.HEALTH, Rule.UUID, Rule.SLOTS, Rule.MUTEX, Rule.QUOTA, vastai.card_in_use),
            select_devices=vastai.select_devices,
            make_share=shares.nothing_but_the_device,
            node_score=vastai.node_score,
        ),
    ),
    Vendor(  # Kunlun in slices
        key="XPU",
        resources=Resources(
            memory_description="MiB, rounded up to ¼, ½ or 1 card",
            parse_request=kunlun.slice_request,
        ),
        annotations=Annotations(
            register="hami.io/node-register-xpu",
            handshake="hami.io/node-handshake-xpu",
            to_allocate="hami.io/xpu-devices-to-allocate",
            allocated="hami.io/xpu-devices-allocated",
            selectors=_KUNLUN_SELECTORS,
        ),
        admission=AdmissionRules(admit=admission.admit_with(kunlun.round_memory)),
        decision=Decision(
            inventory=kunlun.registered,
            device_cores=100,
            rules=(
                Rule.HEALTH,
                Rule.UUID,
                Rule.MEMORY,
                kunlun.other_slices,
                Rule.CORES,
                Rule.MUTEX,
                Rule.QUOTA,
            ),
            select_devices=kunlun.choose_slices,
        ),
    ),
    Vendor(  # Kunlun, whole
        key="kunlun",
        annotations=Annotations(
            allocated="hami.io/kunlun-allocated",
            extra_keys=tuple(_KUNLUN_TEXTS),
            lock="",
            selectors=_KUNLUN_SELECTORS,
            annotate=functools.partial(_annotate, texts=_KUNLUN_TEXTS),
        ),
        decision=Decision(
            inventory=inventory.counted(
                "kunlun",
                slots=100,
                memory_mib=kunlun.CARD_MIB,
                cores=100,
                numa=lambda index, count: int(index >= count // 2),
            ),
            rules=(Rule.HEALTH, Rule.UUID, Rule.QUOTA),
            select_devices=kunlun.choose_cards,
            make_share=kunlun.whole_card,
            node_score=kunlun.node_score,
        ),
    ),
)
