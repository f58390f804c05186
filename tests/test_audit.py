"""The auditor of the end-to-end tests finds violations, and finds none in a consistent cluster."""

import json

from testing import vendor_nodes as nodes
from testing.audit import violations
from testing.cases import cases
from testing.nodes import gpu, mig_gpu
from testing.pods import container, pod
from testing.vendor_nodes import card, vendor_node
from testing.vendors import MLU_LOCK, MUTEX, vendor_of

CORES, NEURON = "aws.amazon.com/neuroncore", "aws.amazon.com/neuron"
QUALITY, APP_CLASS = "metax-tech.com/sgpu-qos-policy", "metax-tech.com/sgpu-app-class"
AT = "2026-08-21T12:00:00Z"


def held(vendor, text, *limits, name="a", node="n", phase="success", **notes):
    """Returns a bound pod whose containers request *limits* and which has the allocation *text*."""
    made = pod(name, containers=[container(f"c{place}", **one) for place, one in enumerate(limits)])
    made["metadata"]["namespace"] = "test"
    made["metadata"]["annotations"] = {
        "hami.io/vgpu-node": node,
        "hami.io/bind-phase": phase,
        vendor_of(vendor).allocated: text,
        **notes,
    }
    made["spec"]["nodeName"] = node
    return made


def mig(text, *places, name="a", limits=None):
    """Returns a pod with MIG instances: profile, start and size of each share of its only container."""
    found = [
        {
            "containerIndex": 0,
            "deviceIndex": number,
            "gpuUUID": "GPU-m",
            "profile": profile,
            "placement": {"start": start, "size": size},
        }
        for number, (profile, start, size) in enumerate(places)
    ]
    return held(
        "NVIDIA",
        text,
        limits or {"gpu": len(places), "gpumem": 8000},
        name=name,
        **{"hami.io/vgpu-mig-allocations": json.dumps(found)},
    )


def sgpu(name, cores=20, **notes):
    limits = {"metax-tech.com/sgpu": 1, "metax-tech.com/vcore": cores, "metax-tech.com/vmemory": 4}
    cores = 0 if notes.get(APP_CLASS) == "online" else cores
    return held("Metax-SGPU", f"x,Metax-SGPU,4096,{cores}:;", limits, name=name, **notes)


def neuron(name, mask, cores=1):
    return held("AWSNeuron", f"n-AWSNeuron-0,AWSNeuron,0,{mask}:;", {CORES: cores}, name=name)


def dcu(name, memory, cores, **notes):
    limits = {"hygon.com/dcunum": 1, "hygon.com/dcumem": memory, "hygon.com/dcucores": cores}
    return held("DCU", f"d,DCU,{memory},{cores}:;", limits, name=name, **notes)


def vxpu(name, memory, *indexes):
    limits = {"kunlunxin.com/vxpu": len(indexes), "kunlunxin.com/vxpu-memory": memory}
    return held(
        "XPU",
        "".join(f"x{index},XPU,{memory},{memory * 100 // 98304}:" for index in indexes) + ";",
        limits,
        name=name,
    )


def resized(allocated, text):
    """Returns a pod that has requested 3000 MiB, and holds *text* since it was resized."""
    return held(
        "NVIDIA", allocated, {"gpu": 1, "gpumem": 3000}, **{"hami.io/vgpu-devices-resized": text}
    )


DCU, MIG_CARD = nodes.hygon(card("d", 32_752, slots=2)), nodes.nvidia(mig_gpu(uuid="GPU-m"))
SGPU, INF = nodes.sgpu("x"), nodes.neuron("inf2.xlarge", 1)
XPUS = nodes.vxpu(*(card(f"x{index}", 98_304) for index in range(8)))
A910C = nodes.ascend("Ascend910C", *(card(f"c{index}", 65_536) for index in range(4)))
PAIR = {"huawei.com/Ascend910C": 2}
TWO = "GPU-m,NVIDIA,9984,29:GPU-m,NVIDIA,9984,29:;"
MLU = {
    "cambricon.com/vmlu": 1,
    "cambricon.com/mlu.smlu.vmemory": 20,
    "cambricon.com/mlu.smlu.vcore": 10,
}


def drs(name, slices, gib, percent):
    return held(
        "Enflame",
        f"n-enflame-drs-0,Enflame,{gib * 1024},{percent}:;",
        {"enflame.com/drs-gcu": slices},
        name=name,
    )


def neurons(*indexes):
    return held(
        "AWSNeuron",
        "".join(f"n-AWSNeuron-{index},AWSNeuron,0,3:" for index in indexes) + ";",
        {NEURON: len(indexes)},
    )


def mlu(name, **notes):
    return held(
        "MLU", "n-cambricon-mlu-0,MLU,5120,10:;", MLU, name=name, phase="allocating", **notes
    )


@cases(
    "outfits, pods",
    ("dcu", [DCU], [dcu("a", 30_000, 50), dcu("b", 2000, 50)]),
    (
        "mig",
        [MIG_CARD],
        [
            mig(TWO, ("2g.10gb", 0, 2), ("2g.10gb", 2, 2)),
            mig("GPU-m,NVIDIA,9984,29:;", ("2g.10gb", 4, 2), name="b"),
        ],
    ),
    (
        "sgpu",
        [SGPU],
        [sgpu("a", **{QUALITY: "best-effort"}), sgpu("b", **{QUALITY: "best-effort"})],
    ),
    ("online", [SGPU], [sgpu("a", **{APP_CLASS: "online"}), sgpu("b", **{APP_CLASS: "offline"})]),
    ("neuron", [INF], [neuron("a", 1), neuron("b", 2)]),
    ("vxpu", [XPUS], [vxpu("a", 24_576, 0, 4), vxpu("b", 24_576, 4)]),
    ("910C", [A910C], [held("Ascend910C", "c3,Ascend910C,65536,0:c2,Ascend910C,65536,0:;", PAIR)]),
    ("six-sixths-are-102-percent", [nodes.drs(1)], [drs(name, 1, 6, 17) for name in "abcdef"]),
    (
        "amd",
        [nodes.amd(card("c", 1000, cores=304))],
        [held("AMD", "c,AMD Instinct MI300X VF,1000,304:;", {"amd.com/gpu": 1})],
    ),
    (
        "two-vendors",
        [nodes.nvidia(gpu(uuid="g")), DCU],
        [
            held(
                "NVIDIA",
                "g,NVIDIA,3000,0:;;",
                {"gpu": 1, "gpumem": 3000},
                {"hygon.com/dcunum": 1},
                **{"hami.io/dcu-devices-allocated": ";d,DCU,32752,100:;"},
            )
        ],
    ),
    (
        "resized",
        [nodes.nvidia(gpu(uuid="g"))],
        [resized("g,NVIDIA,4000,20:;", "g,NVIDIA,4000,20:;")],
    ),
    ("mlu", [nodes.cambricon(1)], [mlu("a", CAMBRICON_DSMLU_ASSIGNED="true")]),
)
def test_a_consistent_cluster_has_no_violations(outfits, pods):
    assert violations([vendor_node("n", outfits)], pods) == ([], [])


@cases(
    "outfit, pods, found",
    (
        "resized-in-one-of-two",
        nodes.nvidia(gpu(uuid="g")),
        [resized("g,NVIDIA,3000,0:;", "g,NVIDIA,4000,0:;")],
        "holds 'g,NVIDIA,4000,0:;', its allocation says 'g,NVIDIA,3000,0:;'",
    ),
    (
        "resized-beyond-the-card",
        nodes.nvidia(gpu(uuid="g", memory_mib=4000)),
        [resized(*["g,NVIDIA,4001,0:;"] * 2)],
        "g on n has 4000 MiB, 4001 are given out",
    ),
    (
        "resized-to-another-device",
        nodes.nvidia(gpu(uuid="g"), gpu(uuid="h")),
        [resized(*["g,NVIDIA,9,0:h,NVIDIA,9,0:;"] * 2)],
        "requests 1 devices of nvidia.com/gpu, holds 2",
    ),
    (
        "memory",
        DCU,
        [dcu("a", 30_000, 50), dcu("b", 3000, 50)],
        "d on n has 32752 MiB, 33000 are given out",
    ),
    ("cores", DCU, [dcu("a", 9, 60), dcu("b", 9, 50)], "d on n has 100 cores, 110 are given out"),
    ("slots", DCU, [dcu(name, 9, 9) for name in "abc"], "d on n has 2 slots, 3 are given out"),
    ("twice", nodes.hygon(card("d", 32_752), card("d", 32_752)), [], "node n registers d twice"),
    (
        "unknown-card",
        nodes.hygon(card("other", 32_752)),
        [dcu("a", 9, 9)],
        "holds ['d'], which the node does not have",
    ),
    (
        "too-little",
        DCU,
        [held("DCU", "d,DCU,8,9:;", {"hygon.com/dcunum": 1, "hygon.com/dcumem": 9})],
        "holds 8 MiB and 9 cores of d instead of one of [(9, 100)]",
    ),
    (
        "type",
        DCU,
        [held("DCU", "d,NVIDIA,32752,100:;", {"hygon.com/dcunum": 1})],
        "holds d as 'NVIDIA'",
    ),
    (
        "no-allocation",
        DCU,
        [held("NVIDIA", ";", {"hygon.com/dcunum": 1})],
        "requests hygon.com/dcunum and is bound to n without an allocation",
    ),
    ("not-asked-for", DCU, [held("DCU", "d,DCU,9,9:;", {})], "requests no hygon.com/dcunum"),
    (
        "unreadable",
        DCU,
        [held("DCU", "d,DCU,much,9:;", {"hygon.com/dcunum": 1})],
        "invalid literal",
    ),
    (
        "mig-overlap",
        MIG_CARD,
        [
            mig("GPU-m,NVIDIA,9984,29:;", ("2g.10gb", 2, 2)),
            mig(
                "GPU-m,NVIDIA,19968,43:;",
                ("3g.20gb", 0, 4),
                name="b",
                limits={"gpu": 1, "gpumem": 15_000},
            ),
        ],
        "the parts [2, 3] of GPU-m on n are given out more than once",
    ),
    (
        "mig-overlap-in-one-pod",
        MIG_CARD,
        [mig(TWO, ("2g.10gb", 0, 2), ("2g.10gb", 0, 2))],
        "the parts [0, 1] of GPU-m",
    ),
    (
        "mig-wrong-place",
        MIG_CARD,
        [mig(TWO, ("2g.10gb", 0, 2), ("2g.10gb", 1, 2))],
        "which is none of its places",
    ),
    (
        "mig-no-place",
        MIG_CARD,
        [held("NVIDIA", "GPU-m,NVIDIA,9984,29:;", {"gpu": 1, "gpumem": 8000})],
        "container 0 has no place on the MIG card GPU-m",
    ),
    (
        "mig-no-share",
        MIG_CARD,
        [
            mig(
                "GPU-m,NVIDIA,9984,29:;",
                ("2g.10gb", 0, 2),
                ("2g.10gb", 2, 2),
                limits={"gpu": 1, "gpumem": 8000},
            )
        ],
        "has no share",
    ),
    (
        "mig-too-small",
        MIG_CARD,
        [mig("GPU-m,NVIDIA,4864,15:;", ("1g.5gb", 0, 1))],
        "holds 4864 MiB",
    ),
    (
        "sgpu-quality",
        SGPU,
        [sgpu("a", **{QUALITY: "best-effort"}), sgpu("b", **{QUALITY: "burst-share"})],
        "x on n has several qualities of service",
    ),
    (
        "sgpu-class",
        SGPU,
        [sgpu("a", **{APP_CLASS: "online"}), sgpu("b")],
        "has pods of an app class and others",
    ),
    ("exclusive", SGPU, [sgpu("a", 100), sgpu("b", 0)], "shared although someone has it whole"),
    ("neuron-core-twice", INF, [neuron("a", 1), neuron("b", 1)], "the parts [0] of n-AWSNeuron-0"),
    ("neuron-overlap", INF, [neuron("a", 3), neuron("b", 2)], "the parts [1] of n-AWSNeuron-0"),
    ("neuron-too-many", INF, [neuron("a", 3)], "requests 1 cores, holds 2"),
    ("neuron-no-run", nodes.neuron("inf2", 3), [neurons(0, 2)], "not neighbors: [0, 2]"),
    ("neuron-no-label", nodes.neuron(None, 1), [neuron("a", 1)], "which the node does not have"),
    (
        "vxpu-sizes",
        XPUS,
        [vxpu("a", 24_576, 0), vxpu("b", 49_152, 0)],
        "x0 on n is cut in slices of several sizes",
    ),
    ("vxpu-unlinked", XPUS, [vxpu("a", 24_576, 0, 5)], "holds cards that are not linked: [0, 5]"),
    (
        "910C-halves",
        A910C,
        [held("Ascend910C", "c1,Ascend910C,65536,0:c2,Ascend910C,65536,0:;", PAIR)],
        "holds half of modules: ['c1', 'c2']",
    ),
    (
        "910C-one",
        A910C,
        [held("Ascend910C", "c1,Ascend910C,65536,0:;", PAIR)],
        "requests 2 devices of huawei.com/Ascend910C, holds 1",
    ),
    (
        "910C-same",
        A910C,
        [held("Ascend910C", "c1,Ascend910C,65536,0:c1,Ascend910C,65536,0:;", PAIR)],
        "holds one device twice",
    ),
    (
        "drs-slices",
        nodes.drs(1),
        [drs("a", 3, 20, 50), drs("b", 6, 40, 100)],
        "n-enflame-drs-0 on n has 6 slots, 9 are given out",
    ),
    (
        "amd-model",
        nodes.amd(card("c", 1000, cores=304)),
        [held("AMD", "c,AMD,1000,304:;", {"amd.com/gpu": 1})],
        "holds c as 'AMD'",
    ),
)
def test_violations_are_found(outfit, pods, found):
    wrong, _ = violations([vendor_node("n", [outfit])], pods)
    assert any(found in text for text in wrong), wrong


def test_an_allocation_for_another_node_is_a_violation():
    astray = dcu("a", 9, 9)
    astray["metadata"]["annotations"]["hami.io/vgpu-node"] = "m"
    wrong, _ = violations([vendor_node("n", [DCU])], [astray])
    assert wrong == ["pod test/a is bound to n, its allocation names m"]


def test_an_allocation_of_an_unbound_pod_is_a_violation():
    nowhere = dcu("a", 9, 9)
    del nowhere["spec"]["nodeName"]
    assert violations([], [nowhere]) == (["pod test/a carries an allocation and is not bound"], [])


def test_init_containers_that_have_ended_hold_nothing():
    first = mig(TWO, ("2g.10gb", 0, 2), ("2g.10gb", 2, 2), name="a")
    first["spec"]["initContainers"] = first["spec"].pop("containers")
    first["spec"]["containers"] = [container("main")]
    second = mig(TWO, ("2g.10gb", 0, 2), ("2g.10gb", 2, 2), name="b")
    node = vendor_node("n", [MIG_CARD])
    wrong, _ = violations([node], [first, second])
    assert "the parts [0, 1, 2, 3] of GPU-m" in wrong[0]
    first["status"] = {
        "initContainerStatuses": [{"name": "c0", "state": {"terminated": {"exitCode": 0}}}]
    }
    assert violations([node], [first, second]) == ([], [])


@cases(
    "locks, pods, found",
    ("mutex-in-use", {MUTEX: f"{AT},test,a"}, [dcu("a", 9, 9, phase="allocating")], None),
    (
        "mutex-after-the-end",
        {MUTEX: f"{AT},test,a"},
        [dcu("a", 9, 9)],
        "held after the end (success)",
    ),
    (
        "mutex-of-nobody",
        {MUTEX: f"{AT},test,b"},
        [dcu("a", 9, 9)],
        "names a pod that does not exist",
    ),
    ("mlu-in-use", {MLU_LOCK: AT}, [mlu("a", CAMBRICON_DSMLU_ASSIGNED="false")], None),
    (
        "mlu-after-the-end",
        {MLU_LOCK: AT},
        [mlu("a", CAMBRICON_DSMLU_ASSIGNED="true")],
        "no pod waits",
    ),
    ("mlu-of-nobody", {MLU_LOCK: AT}, [], "no pod waits for MLUs"),
)
def test_stale_locks_are_violations(locks, pods, found):
    node = vendor_node("n", [DCU, nodes.cambricon(1)], annotations=locks)
    wrong, dead = violations([node], pods)
    assert wrong == []
    assert [found in text for text in dead] == ([True] if found else [])
