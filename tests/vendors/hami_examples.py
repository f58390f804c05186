"""What the 62 example files of HAMi ask for, by the revision of 21 August 2026, and what they get.

A row is one pod of a file: annotations, and the resources of its containers. Nothing else of the files is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testing import vendor_nodes as nodes
from testing.nodes import gpu, mig_gpu

REVISION = "4707fb02"
FILES = 62

UUIDS = ("GPU-03f69c50-207a-2038-9b45-23cac89cb67d", "GPU-03f69c50-207a-2038-9b45-23cac89cb67e")
CHIPS = ("Ascend310P", "Ascend910A", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910C")
CARDS = ("BI-V100", "BI-V150", "MR-V100")


@dataclass(frozen=True, kw_only=True)
class Example:
    """*containers*: the limits of each; *requested*: requests are the same. *shares*: of all containers that get some,
    MiB and cores of each device. *differs*: from what HAMi makes of it; empty if it does not."""

    file: str
    containers: tuple[Mapping[str, str], ...]
    shares: tuple[tuple[tuple[int, int], ...], ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    requested: bool = False
    node: str = "n"
    differs: str = ""


def outfits():
    """One node with two or more devices of every vendor: what the examples ask for is there."""
    made = [
        nodes.nvidia(
            gpu(uuid=UUIDS[0], model="NVIDIA A100-SXM4-40GB", memory_mib=40_960),
            gpu(uuid=UUIDS[1], model="NVIDIA A100-SXM4-40GB", memory_mib=40_960),
            gpu(uuid="GPU-2", model="NVIDIA V100", memory_mib=32_768),
        ),
        nodes.hygon(
            nodes.card("DCU-TPXS320016070601", 32_752, model="DCU-K100_AI"),
            nodes.card("DCU-2", 32_752, model="DCU-Z100"),
        ),
        nodes.biren(nodes.card("B-0", 32_768)),
        nodes.vastai(nodes.card("V-0", 32_768)),
        nodes.vxpu(nodes.card("X-0", 98_304), nodes.card("X-1", 98_304)),
        nodes.cambricon(2, units=92),
        nodes.moore_threads(2),
        nodes.metax(2),
        nodes.sgpu("GPU-36beae85-c835-6b14-6ab2-02671837a59c", "GPU-m1", "GPU-m2", "GPU-m3"),
        nodes.gcu(2),
        nodes.drs(2),
        nodes.neuron("trn1.32xlarge", 16),
    ]
    for chip in CHIPS:
        made.append(
            nodes.ascend(chip, nodes.card(f"{chip}-0", 65_536), nodes.card(f"{chip}-1", 65_536))
        )
    for name in CARDS:
        made.append(
            nodes.iluvatar(name, nodes.card(f"{name}-0", 32_768), nodes.card(f"{name}-1", 32_768))
        )
    return made


def mig_outfits():
    """Two GPUs in MIG mode."""
    return [nodes.nvidia(mig_gpu(uuid="GPU-mig-0"), mig_gpu(uuid="GPU-mig-1"))]


EXAMPLES = (
    Example(
        file="ascend/job-310P",
        containers=({"huawei.com/Ascend310P": "1", "huawei.com/Ascend310P-memory": "2000"},),
        shares=(((3072, 0),),),
    ),
    Example(
        file="ascend/job-910A",
        containers=({"huawei.com/Ascend910A": "1", "huawei.com/Ascend910A-memory": "2000"},),
        shares=(((2184, 0),),),
    ),
    Example(
        file="ascend/job-910B2",
        containers=({"huawei.com/Ascend910B2": "1", "huawei.com/Ascend910B2-memory": "2000"},),
        shares=(((8192, 0),),),
    ),
    Example(
        file="ascend/job-910B3",
        containers=({"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "2000"},),
        shares=(((16384, 0),),),
    ),
    Example(
        file="ascend/job-910B4",
        containers=({"huawei.com/Ascend910B4": "1", "huawei.com/Ascend910B4-memory": "2000"},),
        shares=(((8192, 0),),),
    ),
    Example(
        file="ascend/job-910C",
        containers=({"huawei.com/Ascend910C": "1", "huawei.com/Ascend910C-memory": "16384"},),
        shares=(((16384, 0), (16384, 0)),),
        differs="admitted again by a webhook that is called twice, which HAMi refuses",
    ),
    Example(
        file="awsneuron/allocate_core",
        containers=({"aws.amazon.com/neuroncore": "1"},),
        shares=(((0, 1),),),
    ),
    Example(
        file="awsneuron/allocate_dev",
        containers=({"aws.amazon.com/neuron": "1"},),
        shares=(((0, 3),),),
    ),
    Example(
        file="awsneuron/multi_containers",
        containers=(
            {"aws.amazon.com/neuroncore": "1"},
            {"aws.amazon.com/neuroncore": "1"},
        ),
        shares=(((0, 1),), ((0, 2),)),
    ),
    Example(
        file="biren/default_use",
        containers=({"birentech.com/gpu": "1"},),
        shares=(((0, 0),),),
    ),
    Example(
        file="enflame/gcu_use#1",
        containers=({"enflame.com/gcu": "1"},),
        shares=(((100, 100),),),
    ),
    Example(
        file="enflame/gcu_use#2",
        containers=({"enflame.com/gcu": "2"},),
        shares=(((100, 100), (100, 100)),),
    ),
    Example(
        file="enflame/vgcu_use#1",
        containers=({"enflame.com/drs-gcu": "1"},),
        shares=(((6144, 17),),),
        requested=True,
    ),
    Example(
        file="enflame/vgcu_use#2",
        containers=({"enflame.com/drs-gcu": "3"},),
        shares=(((20480, 50),),),
        requested=True,
    ),
    Example(
        file="enflame/vgcu_use#3",
        containers=({"enflame.com/gcu-memory": "20480", "enflame.com/gcu-core": "40"},),
        shares=(((20480, 50),),),
        requested=True,
    ),
    Example(
        file="hygon/default_use",
        containers=(
            {"hygon.com/dcunum": "1", "hygon.com/dcucores": "60", "hygon.com/dcumem": "2000"},
        ),
        shares=(((2000, 60),),),
    ),
    Example(
        file="hygon/specify_card_type_not_use",
        containers=(
            {"hygon.com/dcunum": "1", "hygon.com/dcucores": "60", "hygon.com/dcumem": "2000"},
        ),
        shares=(((2000, 60),),),
        annotations={"hygon.com/nouse-dcutype": "DCU-K100_AI"},
    ),
    Example(
        file="hygon/specify_card_type_to_use",
        containers=(
            {"hygon.com/dcunum": "1", "hygon.com/dcucores": "60", "hygon.com/dcumem": "2000"},
        ),
        shares=(((2000, 60),),),
        annotations={"hygon.com/use-dcutype": "DCU-K100_AI"},
    ),
    Example(
        file="hygon/specify_uuid_not_use",
        containers=(
            {"hygon.com/dcunum": "1", "hygon.com/dcucores": "60", "hygon.com/dcumem": "2000"},
        ),
        shares=(((2000, 60),),),
        annotations={"hygon.com/nouse-gpuuuid": "DCU-TPXS320016070601,DCU-TPXS320010040501"},
    ),
    Example(
        file="hygon/specify_uuid_to_use",
        containers=(
            {"hygon.com/dcunum": "1", "hygon.com/dcucores": "60", "hygon.com/dcumem": "2000"},
        ),
        shares=(((2000, 60),),),
        annotations={"hygon.com/use-gpuuuid": "DCU-TPXS320016070601"},
    ),
    Example(
        file="hygon/use_exclusive_card",
        containers=({"hygon.com/dcunum": "2"},),
        shares=(((32752, 100), (32752, 100)),),
    ),
    Example(
        file="iluvatar/default_use_BI-V100",
        containers=(
            {
                "iluvatar.ai/BI-V100-vgpu": "1",
                "iluvatar.ai/BI-V100.vCore": "50",
                "iluvatar.ai/BI-V100.vMem": "64",
            },
        ),
        shares=(((16384, 50),),),
        requested=True,
    ),
    Example(
        file="iluvatar/default_use_BI-V150",
        containers=(
            {
                "iluvatar.ai/BI-V150-vgpu": "1",
                "iluvatar.ai/BI-V150.vCore": "50",
                "iluvatar.ai/BI-V150.vMem": "64",
            },
        ),
        shares=(((16384, 50),),),
        requested=True,
    ),
    Example(
        file="iluvatar/default_use_MR-V100",
        containers=(
            {
                "iluvatar.ai/MR-V100-vgpu": "1",
                "iluvatar.ai/MR-V100.vCore": "50",
                "iluvatar.ai/MR-V100.vMem": "64",
            },
        ),
        shares=(((16384, 50),),),
        requested=True,
    ),
    Example(
        file="iluvatar/multi-containers_BI-V100",
        containers=(
            {
                "iluvatar.ai/BI-V100-vgpu": "1",
                "iluvatar.ai/BI-V100.vCore": "50",
                "iluvatar.ai/BI-V100.vMem": "64",
            },
            {
                "iluvatar.ai/BI-V100-vgpu": "1",
                "iluvatar.ai/BI-V100.vCore": "50",
                "iluvatar.ai/BI-V100.vMem": "64",
            },
        ),
        shares=(((16384, 50),), ((16384, 50),)),
        requested=True,
    ),
    Example(
        file="iluvatar/multi-containers_BI-V150",
        containers=(
            {
                "iluvatar.ai/BI-V150-vgpu": "1",
                "iluvatar.ai/BI-V150.vCore": "50",
                "iluvatar.ai/BI-V150.vMem": "64",
            },
            {
                "iluvatar.ai/BI-V150-vgpu": "1",
                "iluvatar.ai/BI-V150.vCore": "50",
                "iluvatar.ai/BI-V150.vMem": "64",
            },
        ),
        shares=(((16384, 50),), ((16384, 50),)),
        requested=True,
    ),
    Example(
        file="iluvatar/multi-containers_MR-V100",
        containers=(
            {
                "iluvatar.ai/MR-V100-vgpu": "1",
                "iluvatar.ai/MR-V100.vCore": "50",
                "iluvatar.ai/MR-V100.vMem": "64",
            },
            {
                "iluvatar.ai/MR-V100-vgpu": "1",
                "iluvatar.ai/MR-V100.vCore": "50",
                "iluvatar.ai/MR-V100.vMem": "64",
            },
        ),
        shares=(((16384, 50),), ((16384, 50),)),
        requested=True,
    ),
    Example(
        file="iluvatar/multi-devices_BI-V100",
        containers=({"iluvatar.ai/BI-V100-vgpu": "2"},),
        shares=(((32768, 100), (32768, 100)),),
        requested=True,
    ),
    Example(
        file="iluvatar/multi-devices_BI-V150",
        containers=({"iluvatar.ai/BI-V150-vgpu": "2"},),
        shares=(((32768, 100), (32768, 100)),),
        requested=True,
    ),
    Example(
        file="iluvatar/multi-devices_MR-V100",
        containers=({"iluvatar.ai/MR-V100-vgpu": "2"},),
        shares=(((32768, 100), (32768, 100)),),
        requested=True,
    ),
    Example(
        file="kunlun/allocate_exclusive",
        containers=({"kunlunxin.com/vxpu": "1"},),
        shares=(((98304, 100),),),
    ),
    Example(
        file="kunlun/default_use",
        containers=({"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "24576"},),
        shares=(((24576, 25),),),
    ),
    Example(
        file="metax/gpu/binpack",
        containers=({"metax-tech.com/gpu": "1"},),
        shares=(((65536, 100),),),
        annotations={"hami.io/node-scheduler-policy": "binpack"},
    ),
    Example(
        file="metax/gpu/default_use",
        containers=({"metax-tech.com/gpu": "1"},),
        shares=(((65536, 100),),),
    ),
    Example(
        file="metax/gpu/spread",
        containers=({"metax-tech.com/gpu": "1"},),
        shares=(((65536, 100),),),
        annotations={"hami.io/node-scheduler-policy": "spread"},
    ),
    Example(
        file="metax/sgpu/allocate_exclusive",
        containers=({"metax-tech.com/sgpu": "1"},),
        shares=(((65536, 100),),),
    ),
    Example(
        file="metax/sgpu/allocate_specific_gpu",
        containers=(
            {
                "metax-tech.com/sgpu": "1",
                "metax-tech.com/vcore": "60",
                "metax-tech.com/vmemory": "4",
            },
        ),
        shares=(((4096, 60),),),
        annotations={"metax-tech.com/use-gpuuuid": "GPU-36beae85-c835-6b14-6ab2-02671837a59c"},
    ),
    Example(
        file="metax/sgpu/allocate_specific_qos",
        containers=(
            {
                "metax-tech.com/sgpu": "1",
                "metax-tech.com/vcore": "60",
                "metax-tech.com/vmemory": "4",
            },
        ),
        shares=(((4096, 60),),),
        annotations={"metax-tech.com/sgpu-qos-policy": "best-effort"},
    ),
    Example(
        file="metax/sgpu/allocate_vmemory_MiB",
        containers=(
            {
                "metax-tech.com/sgpu": "1",
                "metax-tech.com/vcore": "60",
                "metax-tech.com/vmemory": "2048Mi",
            },
        ),
        shares=(((2048, 60),),),
    ),
    Example(
        file="metax/sgpu/default_use",
        containers=(
            {
                "metax-tech.com/sgpu": "1",
                "metax-tech.com/vcore": "60",
                "metax-tech.com/vmemory": "4",
            },
        ),
        shares=(((4096, 60),),),
    ),
    Example(
        file="metax/sgpu/enable_topology_aware",
        containers=({"metax-tech.com/sgpu": "4"},),
        shares=(((65536, 100), (65536, 100), (65536, 100), (65536, 100)),),
        annotations={"metax-tech.com/sgpu-topology-aware": "true"},
    ),
    Example(
        file="metax/sgpu/multi-containers",
        containers=(
            {
                "metax-tech.com/sgpu": "1",
                "metax-tech.com/vcore": "60",
                "metax-tech.com/vmemory": "4",
            },
            {
                "metax-tech.com/sgpu": "1",
                "metax-tech.com/vcore": "30",
                "metax-tech.com/vmemory": "8",
            },
        ),
        shares=(((4096, 60),), ((8192, 30),)),
    ),
    Example(
        file="metax/sgpu/offline",
        containers=(
            {
                "metax-tech.com/sgpu": "1",
                "metax-tech.com/vcore": "60",
                "metax-tech.com/vmemory": "4",
            },
        ),
        shares=(((4096, 60),),),
        annotations={"metax-tech.com/sgpu-app-class": "offline"},
    ),
    Example(
        file="metax/sgpu/online",
        containers=({"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "4"},),
        shares=(((4096, 0),),),
        annotations={"metax-tech.com/sgpu-app-class": "online"},
    ),
    Example(
        file="mlu/allocate_whole",
        containers=({"cambricon.com/vmlu": "1"},),
        shares=(((23552, 100),),),
    ),
    Example(
        file="mlu/default_use",
        containers=(
            {
                "cambricon.com/vmlu": "1",
                "cambricon.com/mlu370.smlu.vmemory": "20",
                "cambricon.com/mlu370.smlu.vcore": "10",
            },
        ),
        shares=(((23552, 100),),),
        differs="its author is warned that nobody manages the names with mlu370; the card is whole, as in HAMi",
    ),
    Example(
        file="mthreads/default_use",
        containers=(
            {
                "mthreads.com/vgpu": "1",
                "mthreads.com/sgpu-memory": "32",
                "mthreads.com/sgpu-core": "8",
            },
        ),
        shares=(((16384, 8),),),
    ),
    Example(
        file="mthreads/multi_cards",
        containers=({"mthreads.com/vgpu": "2"},),
        shares=(((49152, 16), (49152, 16)),),
    ),
    Example(
        file="mthreads/use_exclusive",
        containers=({"mthreads.com/vgpu": "1"},),
        shares=(((49152, 16),),),
    ),
    Example(
        file="nvidia/default_use",
        containers=(
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
        ),
        shares=(((3000, 30),),),
    ),
    Example(
        file="nvidia/default_use_legacy",
        containers=({"nvidia.com/gpu": "2"},),
        shares=(((32768, 100), (40960, 100)),),
    ),
    Example(
        file="nvidia/dynamic_mig_example",
        containers=({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000"},),
        shares=(((9984, 29), (9984, 29)),),
        annotations={"nvidia.com/vgpu-mode": "mig", "hami.io/gpu-scheduler-policy": "binpack"},
        node="m",
    ),
    Example(
        file="nvidia/example",
        containers=({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},),
        shares=(((3000, 0),),),
    ),
    Example(
        file="nvidia/specify_card_type_not_use",
        containers=({"nvidia.com/gpu": "2"},),
        shares=(((32768, 100), (40960, 100)),),
        annotations={"nvidia.com/nouse-gputype": "1080,2080"},
    ),
    Example(
        file="nvidia/specify_card_type_to_use",
        containers=({"nvidia.com/gpu": "2"},),
        shares=(((32768, 100), (40960, 100)),),
        annotations={"nvidia.com/use-gputype": "A100,V100"},
    ),
    Example(
        file="nvidia/specify_scheduling_policy",
        containers=({"nvidia.com/gpu": "1"},),
        shares=(((32768, 100),),),
        annotations={
            "hami.io/node-scheduler-policy": "spread",
            "hami.io/gpu-scheduler-policy": "binpack",
        },
    ),
    Example(
        file="nvidia/specify_uuid_not_use",
        containers=({"nvidia.com/gpu": "2"},),
        shares=(((32768, 100), (40960, 100)),),
        annotations={"nvidia.com/nouse-gpuuuid": "GPU-03f69c50-207a-2038-9b45-23cac89cb67d"},
    ),
    Example(
        file="nvidia/specify_uuid_to_use",
        containers=({"nvidia.com/gpu": "1"},),
        shares=(((40960, 100),),),
        annotations={
            "nvidia.com/use-gpuuuid": ",".join(UUIDS),
        },
    ),
    Example(
        file="nvidia/use_as_normal#1",
        containers=({"nvidia.com/gpu": "1"},),
        shares=(((32768, 100),),),
    ),
    Example(
        file="nvidia/use_as_normal#2",
        containers=({"nvidia.com/gpu": "1"},),
        shares=(((32768, 100),),),
    ),
    Example(
        file="nvidia/use_exclusive_card",
        containers=(
            {
                "nvidia.com/gpu": "2",
                "nvidia.com/gpumem-percentage": "100",
                "nvidia.com/gpucores": "100",
            },
        ),
        shares=(((32768, 100), (40960, 100)),),
    ),
    Example(
        file="nvidia/use_memory_fraction",
        containers=(
            {
                "nvidia.com/gpu": "2",
                "nvidia.com/gpumem-percentage": "50",
                "nvidia.com/gpucores": "30",
            },
        ),
        shares=(((16384, 30), (20480, 30)),),
    ),
    Example(
        file="nvidia/use_sharing_card#1",
        containers=(
            {
                "nvidia.com/gpu": "1",
                "nvidia.com/gpumem-percentage": "40",
                "nvidia.com/gpucores": "60",
            },
        ),
        shares=(((13107, 60),),),
    ),
    Example(
        file="nvidia/use_sharing_card#2",
        containers=(
            {
                "nvidia.com/gpu": "1",
                "nvidia.com/gpumem-percentage": "60",
                "nvidia.com/gpucores": "40",
            },
        ),
        shares=(((19660, 40),),),
    ),
    Example(
        file="nvidia/vllm_cross_vgpu",
        containers=(
            {
                "nvidia.com/gpu": "2",
                "nvidia.com/gpumem-percentage": "30",
                "nvidia.com/gpucores": "30",
            },
        ),
        shares=(((9830, 30), (12288, 30)),),
        requested=True,
    ),
    Example(
        file="vastai/default_use",
        containers=({"vastaitech.com/va": "1"},),
        shares=(((0, 0),),),
    ),
)
WITHOUT_HAMI = ("nvidia/mig_example",)
"""Files whose pods request devices of NVIDIA's own device plugin, and none of HAMi."""
