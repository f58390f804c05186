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


def example(file, containers, shares, **fields):
    """*containers*, *shares*: of one container, or a list of those of several."""
    if not isinstance(containers, list):
        containers, shares = [containers], [shares]
    return Example(
        file=file,
        containers=tuple(containers),
        shares=tuple(tuple(pairs) for pairs in shares),
        **fields,
    )


def nv(count, **amounts):
    """Limits in NVIDIA's resources: ``nv(1, gpumem=3000)``."""
    limits = {"gpu": count} | amounts
    return {f"nvidia.com/{name.replace('_', '-')}": str(value) for name, value in limits.items()}


def npu(chip, memory):
    return {f"huawei.com/{chip}": "1", f"huawei.com/{chip}-memory": str(memory)}


def iluvatar(card, count, cores, memory):
    amounts = {"-vgpu": count, ".vCore": cores, ".vMem": memory}
    return {f"iluvatar.ai/{card}{name}": str(value) for name, value in amounts.items()}


DCU = {"hygon.com/dcunum": "1", "hygon.com/dcucores": "60", "hygon.com/dcumem": "2000"}
EXAMPLES = (
    example("ascend/job-310P", npu("Ascend310P", 2000), [(3072, 0)]),
    example("ascend/job-910A", npu("Ascend910A", 2000), [(2184, 0)]),
    example("ascend/job-910B2", npu("Ascend910B2", 2000), [(8192, 0)]),
    example("ascend/job-910B3", npu("Ascend910B3", 2000), [(16384, 0)]),
    example("ascend/job-910B4", npu("Ascend910B4", 2000), [(8192, 0)]),
    example(
        "ascend/job-910C",
        npu("Ascend910C", 16384),
        [(16384, 0), (16384, 0)],
        differs="admitted again by a webhook that is called twice, which HAMi refuses",
    ),
    example("awsneuron/allocate_core", {"aws.amazon.com/neuroncore": "1"}, [(0, 1)]),
    example("awsneuron/allocate_dev", {"aws.amazon.com/neuron": "1"}, [(0, 3)]),
    example(
        "awsneuron/multi_containers",
        [{"aws.amazon.com/neuroncore": "1"}, {"aws.amazon.com/neuroncore": "1"}],
        [[(0, 1)], [(0, 2)]],
    ),
    example("biren/default_use", {"birentech.com/gpu": "1"}, [(0, 0)]),
    example("enflame/gcu_use#1", {"enflame.com/gcu": "1"}, [(100, 100)]),
    example("enflame/gcu_use#2", {"enflame.com/gcu": "2"}, [(100, 100), (100, 100)]),
    example("enflame/vgcu_use#1", {"enflame.com/drs-gcu": "1"}, [(6144, 17)], requested=True),
    example("enflame/vgcu_use#2", {"enflame.com/drs-gcu": "3"}, [(20480, 50)], requested=True),
    example(
        "enflame/vgcu_use#3",
        {"enflame.com/gcu-memory": "20480", "enflame.com/gcu-core": "40"},
        [(20480, 50)],
        requested=True,
    ),
    example("hygon/default_use", DCU, [(2000, 60)]),
    example(
        "hygon/specify_card_type_not_use",
        DCU,
        [(2000, 60)],
        annotations={"hygon.com/nouse-dcutype": "DCU-K100_AI"},
    ),
    example(
        "hygon/specify_card_type_to_use",
        DCU,
        [(2000, 60)],
        annotations={"hygon.com/use-dcutype": "DCU-K100_AI"},
    ),
    example(
        "hygon/specify_uuid_not_use",
        DCU,
        [(2000, 60)],
        annotations={"hygon.com/nouse-gpuuuid": "DCU-TPXS320016070601,DCU-TPXS320010040501"},
    ),
    example(
        "hygon/specify_uuid_to_use",
        DCU,
        [(2000, 60)],
        annotations={"hygon.com/use-gpuuuid": "DCU-TPXS320016070601"},
    ),
    example("hygon/use_exclusive_card", {"hygon.com/dcunum": "2"}, [(32752, 100), (32752, 100)]),
    example(
        "iluvatar/default_use_BI-V100",
        iluvatar("BI-V100", 1, 50, 64),
        [(16384, 50)],
        requested=True,
    ),
    example(
        "iluvatar/default_use_BI-V150",
        iluvatar("BI-V150", 1, 50, 64),
        [(16384, 50)],
        requested=True,
    ),
    example(
        "iluvatar/default_use_MR-V100",
        iluvatar("MR-V100", 1, 50, 64),
        [(16384, 50)],
        requested=True,
    ),
    example(
        "iluvatar/multi-containers_BI-V100",
        [iluvatar("BI-V100", 1, 50, 64), iluvatar("BI-V100", 1, 50, 64)],
        [[(16384, 50)], [(16384, 50)]],
        requested=True,
    ),
    example(
        "iluvatar/multi-containers_BI-V150",
        [iluvatar("BI-V150", 1, 50, 64), iluvatar("BI-V150", 1, 50, 64)],
        [[(16384, 50)], [(16384, 50)]],
        requested=True,
    ),
    example(
        "iluvatar/multi-containers_MR-V100",
        [iluvatar("MR-V100", 1, 50, 64), iluvatar("MR-V100", 1, 50, 64)],
        [[(16384, 50)], [(16384, 50)]],
        requested=True,
    ),
    example(
        "iluvatar/multi-devices_BI-V100",
        {"iluvatar.ai/BI-V100-vgpu": "2"},
        [(32768, 100), (32768, 100)],
        requested=True,
    ),
    example(
        "iluvatar/multi-devices_BI-V150",
        {"iluvatar.ai/BI-V150-vgpu": "2"},
        [(32768, 100), (32768, 100)],
        requested=True,
    ),
    example(
        "iluvatar/multi-devices_MR-V100",
        {"iluvatar.ai/MR-V100-vgpu": "2"},
        [(32768, 100), (32768, 100)],
        requested=True,
    ),
    example("kunlun/allocate_exclusive", {"kunlunxin.com/vxpu": "1"}, [(98304, 100)]),
    example(
        "kunlun/default_use",
        {"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "24576"},
        [(24576, 25)],
    ),
    example(
        "metax/gpu/binpack",
        {"metax-tech.com/gpu": "1"},
        [(65536, 100)],
        annotations={"hami.io/node-scheduler-policy": "binpack"},
    ),
    example("metax/gpu/default_use", {"metax-tech.com/gpu": "1"}, [(65536, 100)]),
    example(
        "metax/gpu/spread",
        {"metax-tech.com/gpu": "1"},
        [(65536, 100)],
        annotations={"hami.io/node-scheduler-policy": "spread"},
    ),
    example("metax/sgpu/allocate_exclusive", {"metax-tech.com/sgpu": "1"}, [(65536, 100)]),
    example(
        "metax/sgpu/allocate_specific_gpu",
        {"metax-tech.com/sgpu": "1", "metax-tech.com/vcore": "60", "metax-tech.com/vmemory": "4"},
        [(4096, 60)],
        annotations={"metax-tech.com/use-gpuuuid": "GPU-36beae85-c835-6b14-6ab2-02671837a59c"},
    ),
    example(
        "metax/sgpu/allocate_specific_qos",
        {"metax-tech.com/sgpu": "1", "metax-tech.com/vcore": "60", "metax-tech.com/vmemory": "4"},
        [(4096, 60)],
        annotations={"metax-tech.com/sgpu-qos-policy": "best-effort"},
    ),
    example(
        "metax/sgpu/allocate_vmemory_MiB",
        {
            "metax-tech.com/sgpu": "1",
            "metax-tech.com/vcore": "60",
            "metax-tech.com/vmemory": "2048Mi",
        },
        [(2048, 60)],
    ),
    example(
        "metax/sgpu/default_use",
        {"metax-tech.com/sgpu": "1", "metax-tech.com/vcore": "60", "metax-tech.com/vmemory": "4"},
        [(4096, 60)],
    ),
    example(
        "metax/sgpu/enable_topology_aware",
        {"metax-tech.com/sgpu": "4"},
        [(65536, 100), (65536, 100), (65536, 100), (65536, 100)],
        annotations={"metax-tech.com/sgpu-topology-aware": "true"},
    ),
    example(
        "metax/sgpu/multi-containers",
        [
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
        ],
        [[(4096, 60)], [(8192, 30)]],
    ),
    example(
        "metax/sgpu/offline",
        {"metax-tech.com/sgpu": "1", "metax-tech.com/vcore": "60", "metax-tech.com/vmemory": "4"},
        [(4096, 60)],
        annotations={"metax-tech.com/sgpu-app-class": "offline"},
    ),
    example(
        "metax/sgpu/online",
        {"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "4"},
        [(4096, 0)],
        annotations={"metax-tech.com/sgpu-app-class": "online"},
    ),
    example("mlu/allocate_whole", {"cambricon.com/vmlu": "1"}, [(23552, 100)]),
    example(
        "mlu/default_use",
        {
            "cambricon.com/vmlu": "1",
            "cambricon.com/mlu370.smlu.vmemory": "20",
            "cambricon.com/mlu370.smlu.vcore": "10",
        },
        [(23552, 100)],
        differs="its author is warned that nobody manages the names with mlu370; the card is whole, as in HAMi",
    ),
    example(
        "mthreads/default_use",
        {"mthreads.com/vgpu": "1", "mthreads.com/sgpu-memory": "32", "mthreads.com/sgpu-core": "8"},
        [(16384, 8)],
    ),
    example("mthreads/multi_cards", {"mthreads.com/vgpu": "2"}, [(49152, 16), (49152, 16)]),
    example("mthreads/use_exclusive", {"mthreads.com/vgpu": "1"}, [(49152, 16)]),
    example("nvidia/default_use", nv(1, gpumem=3000, gpucores=30), [(3000, 30)]),
    example("nvidia/default_use_legacy", nv(2), [(32768, 100), (40960, 100)]),
    example(
        "nvidia/dynamic_mig_example",
        nv(2, gpumem=8000),
        [(9984, 29), (9984, 29)],
        annotations={"nvidia.com/vgpu-mode": "mig", "hami.io/gpu-scheduler-policy": "binpack"},
        node="m",
    ),
    example("nvidia/example", nv(1, gpumem=3000), [(3000, 0)]),
    example(
        "nvidia/specify_card_type_not_use",
        nv(2),
        [(32768, 100), (40960, 100)],
        annotations={"nvidia.com/nouse-gputype": "1080,2080"},
    ),
    example(
        "nvidia/specify_card_type_to_use",
        nv(2),
        [(32768, 100), (40960, 100)],
        annotations={"nvidia.com/use-gputype": "A100,V100"},
    ),
    example(
        "nvidia/specify_scheduling_policy",
        nv(1),
        [(32768, 100)],
        annotations={
            "hami.io/node-scheduler-policy": "spread",
            "hami.io/gpu-scheduler-policy": "binpack",
        },
    ),
    example(
        "nvidia/specify_uuid_not_use",
        nv(2),
        [(32768, 100), (40960, 100)],
        annotations={"nvidia.com/nouse-gpuuuid": "GPU-03f69c50-207a-2038-9b45-23cac89cb67d"},
    ),
    example(
        "nvidia/specify_uuid_to_use",
        nv(1),
        [(40960, 100)],
        annotations={"nvidia.com/use-gpuuuid": ",".join(UUIDS)},
    ),
    example("nvidia/use_as_normal#1", nv(1), [(32768, 100)]),
    example("nvidia/use_as_normal#2", nv(1), [(32768, 100)]),
    example(
        "nvidia/use_exclusive_card",
        nv(2, gpumem_percentage=100, gpucores=100),
        [(32768, 100), (40960, 100)],
    ),
    example(
        "nvidia/use_memory_fraction",
        nv(2, gpumem_percentage=50, gpucores=30),
        [(16384, 30), (20480, 30)],
    ),
    example("nvidia/use_sharing_card#1", nv(1, gpumem_percentage=40, gpucores=60), [(13107, 60)]),
    example("nvidia/use_sharing_card#2", nv(1, gpumem_percentage=60, gpucores=40), [(19660, 40)]),
    example(
        "nvidia/vllm_cross_vgpu",
        nv(2, gpumem_percentage=30, gpucores=30),
        [(9830, 30), (12288, 30)],
        requested=True,
    ),
    example("vastai/default_use", {"vastaitech.com/va": "1"}, [(0, 0)]),
)
WITHOUT_HAMI = ("nvidia/mig_example",)
"""Files whose pods request devices of NVIDIA's own device plugin, and none of HAMi."""
