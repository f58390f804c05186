"""Devices of all vendors: inventories of nodes, allocations of pods, and annotations for the vendors' agents."""

import json
import re

import pytest

from testing import vendor_nodes as nodes
from testing.cases import cases
from testing.eventually import eventually
from testing.nodes import gpu, mig_gpu
from testing.pods import container, pod
from testing.vendor_nodes import card
from testing.vendors import MLU_LOCK, MUTEX, vendor_of

MIG = {"nvidia.com/vgpu-mode": "mig"}
PLACES = "hami.io/vgpu-mig-allocations"
CORDON = "hami.io/device-cordon"
SOFT = {"huawei.com/vnpu-mode": "hami-core"}
OF_ALL_VENDORS = {
    "hami.io/vgpu-node",
    "hami.io/vgpu-time",
    "hami.io/bind-phase",
    "hami.io/bind-time",
}


def start(sandbox, *pods):
    """Creates *pods*, each when the one before has its devices."""
    for item in pods:
        sandbox.create(item)
        sandbox.started()


def waits(sandbox, name, why):
    """Checks that the pod has an event with *why* and is not bound."""
    assert sandbox.event(name, "FailedScheduling", why)
    assert not sandbox.pod(name)["spec"].get("nodeName")


def given(sandbox, name, vendor):
    """Returns the allocation of the pod."""
    return sandbox.annotations(name)[vendor_of(vendor).allocated]


def admitted(sandbox, name):
    """Returns the limits of the first container after admission; its requests must be equal."""
    found = sandbox.pod(name)["spec"]["containers"][0]["resources"]
    assert found["limits"] == found["requests"]
    return found["limits"]


def agent_annotations(sandbox, name):
    """Returns the annotations for the vendors' agents, with placeholders for times."""
    return {
        key: re.sub(r"\b\d{10}\b", "<s>", re.sub(r"\b\d{19}\b", "<ns>", text))
        for key, text in sandbox.annotations(name).items()
        if key not in OF_ALL_VENDORS
    }


def full_name(sandbox, node):
    """Returns the name of the node in the cluster, which names of its devices may contain."""
    return sandbox.node(node)["metadata"]["name"]


# -- NVIDIA's cards in MIG mode


def places(sandbox, name):
    """Returns profile, start and size of the pod's MIG instances."""
    return [
        (one["profile"], one["placement"]["start"], one["placement"]["size"])
        for one in json.loads(sandbox.annotations(name)[PLACES])
    ]


def test_one_card_gives_a_container_several_mig_instances(sandbox):
    """Two instances of one GPU count as two devices."""
    sandbox.add_node("n", nodes.nvidia(mig_gpu(uuid="GPU-m")))
    start(sandbox, pod("a", gpu=2, gpumem=8000, annotations=MIG))
    assert given(sandbox, "a", "NVIDIA") == "GPU-m,NVIDIA,9984,29:GPU-m,NVIDIA,9984,29:;"
    assert json.loads(sandbox.annotations("a")[PLACES]) == [
        {
            "containerIndex": 0,
            "deviceIndex": number,
            "gpuUUID": "GPU-m",
            "profile": "2g.10gb",
            "placement": {"start": start, "size": 2},
        }
        for number, start in enumerate((0, 2))
    ]


def test_mig_placements_survive_the_scheduler_and_pods_wait_for_a_full_card(sandbox, scheduler):
    sandbox.add_node("n", nodes.nvidia(mig_gpu(uuid="GPU-m")))
    start(
        sandbox,
        pod("a", gpu=2, gpumem=8000),
        pod("b", containers=[container("log"), container("train", gpu=1, gpumem=8000)]),
    )
    assert (places(sandbox, "a"), places(sandbox, "b")) == (
        [("2g.10gb", 0, 2), ("2g.10gb", 2, 2)],
        [("2g.10gb", 4, 2)],
    )
    scheduler.kill()
    scheduler.run_with()
    sandbox.create(pod("c", gpu=1, gpumem=8000))
    waits(sandbox, "c", "1/1 CardMigTopologyInfeasible")
    sandbox.create(pod("d", gpu=1, gpumem=4000))
    assert sandbox.started(wait_for=3) == {"a": "n", "b": "n", "d": "n"}
    assert places(sandbox, "d") == [("1g.5gb", 6, 1)]
    sandbox.delete("b")
    assert sandbox.started() == {"a": "n", "c": "n", "d": "n"}
    assert places(sandbox, "c") == [("2g.10gb", 4, 2)]


# -- Ascend


def test_hard_split_rounds_memory_up_to_a_template(sandbox):
    sandbox.add_node("n", nodes.ascend("Ascend310P", card("dev-0", 21_527)))
    start(sandbox, pod("a", **{"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 2000}))
    assert admitted(sandbox, "a") == {
        "huawei.com/Ascend310P": "1",
        "huawei.com/Ascend310P-memory": "3072",
    }
    assert agent_annotations(sandbox, "a") == {
        "hami.io/Ascend310P-devices-allocated": "dev-0,Ascend310P,3072,0:;",
        "hami.io/Ascend310P-devices-to-allocate": ";",
        "predicate-time": "<s>",
        "huawei.com/Ascend310P": '[{"UUID":"dev-0","temp":"vir01","memory":3072}]',
    }


def test_templates_fill_a_chip_and_no_more(sandbox):
    sandbox.add_node("n", nodes.ascend("Ascend310P", card("dev-0", 21_527)))
    start(
        sandbox,
        *(
            pod(name, **{"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": memory})
            for name, memory in (("a", 12_000), ("b", 6000), ("c", 1))
        ),
    )
    sandbox.create(pod("d", **{"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 1}))
    waits(sandbox, "d", "CardInsufficientMemory")
    assert given(sandbox, "a", "Ascend310P") == "dev-0,Ascend310P,12288,0:;"


def test_soft_split_goes_to_nodes_that_have_it(sandbox):
    sandbox.add_node("n", nodes.ascend("Ascend910B3", card("d", 65_536, cores=20)))
    limits = {
        "huawei.com/Ascend910B3": 1,
        "huawei.com/Ascend910B3-memory": 15_360,
        "huawei.com/Ascend910B3-core": 20,
    }
    sandbox.create(pod("a", annotations=SOFT, **limits))
    waits(sandbox, "a", "ModeNotFit")
    sandbox.annotate_node("n", {"hami-vnpu-core": "true"})
    assert sandbox.started() == {"a": "n"}
    assert given(sandbox, "a", "Ascend910B3") == "d,Ascend910B3,15360,20:;"
    assert (
        sandbox.annotations("a")["huawei.com/Ascend910B3"]
        == '[{"UUID":"d","memory":15360,"core":20}]'
    )


def test_one_910c_request_gets_a_whole_module(sandbox):
    npus = [
        card(f"npu-{index}", 65_536, slots=1, healthy=index not in (1, 4)) for index in range(6)
    ]
    sandbox.add_node("n", nodes.ascend("Ascend910C", *npus))
    start(sandbox, pod("a", **{"huawei.com/Ascend910C": 1}))
    assert admitted(sandbox, "a") == {
        "huawei.com/Ascend910C": "2",
        "huawei.com/Ascend910C-memory": "65536",
    }
    assert (
        given(sandbox, "a", "Ascend910C") == "npu-3,Ascend910C,65536,0:npu-2,Ascend910C,65536,0:;"
    )
    sandbox.create(
        pod("b", **{"huawei.com/Ascend910C": 1})
    )  # two NPUs of different modules are left
    waits(sandbox, "b", "0/2 AllocatedCardsInsufficientRequest")


# -- Cambricon

MLU = {
    "cambricon.com/vmlu": 1,
    "cambricon.com/mlu.smlu.vmemory": 20,
    "cambricon.com/mlu.smlu.vcore": 10,
}


def test_an_mlu_pod_carries_the_profile_of_its_slice(sandbox):
    sandbox.add_node("n", nodes.cambricon(4))
    start(sandbox, pod("a", **MLU))
    assert agent_annotations(sandbox, "a") == {
        "hami.io/cambricon-mlu-devices-allocated": "n-cambricon-mlu-3,MLU,5120,10:;",
        "hami.io/cambricon-mlu-devices-to-allocate": "n-cambricon-mlu-3,MLU,5120,10:;",
        "CAMBRICON_DSMLU_PROFILE": "3_10_20",
        "CAMBRICON_DSMLU_ASSIGNED": "true",
    }  # true: set by the agent


def test_mlu_pods_of_one_node_wait_for_cambricons_own_lock(sandbox, scheduler, agent):
    sandbox.add_node("n", nodes.cambricon(4))
    agent.pause()
    sandbox.create(pod("a", **MLU), pod("b", **MLU))
    sandbox.bound(wait_for=1)
    eventually(
        lambda: "hami_scheduler_node_lock_waiting_pods 1.0" in scheduler.metrics(),
        scheduler.metrics,
    )
    notes = sandbox.node("n")["metadata"]["annotations"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[^,]*", notes[MLU_LOCK])  # only a time
    assert MUTEX not in notes
    assert len(sandbox.bound(wait_for=1)) == 1
    agent.resume()
    assert sandbox.started() == {"a": "n", "b": "n"}
    sandbox.wait_node("n", lambda notes: MLU_LOCK not in notes, what="the lock is released")


# -- Hygon


def test_dcus_are_read_from_the_text_form(sandbox):
    sandbox.add_node(
        "n", nodes.hygon(card("DCU-a", 32_752, slots=30), card("DCU-b", 32_752, slots=30))
    )
    start(sandbox, pod("h2", **{"hygon.com/dcunum": 2}))
    assert given(sandbox, "h2", "DCU") == "DCU-b,DCU,32752,100:DCU-a,DCU,32752,100:;"
    share = {"hygon.com/dcunum": 1, "hygon.com/dcucores": 60, "hygon.com/dcumem": 2000}
    sandbox.create(pod("h1", **share))
    waits(sandbox, "h1", "2/2 CardInsufficientMemory")
    sandbox.delete("h2")
    assert sandbox.started() == {"h1": "n"}
    assert given(sandbox, "h1", "DCU") == "DCU-b,DCU,2000,60:;"
    sandbox.create(pod("h3", annotations={"hygon.com/nouse-dcutype": "K100"}, **share))
    waits(sandbox, "h3", "2/2 CardTypeMismatch")


def test_a_cordoned_dcu_gets_no_new_pods(sandbox):
    dcus = nodes.hygon(card("DCU-a", 32_752, slots=30), card("DCU-b", 32_752, slots=30))
    sandbox.add_node("n", dcus, annotations={CORDON: "DCU-b"})
    share = {"hygon.com/dcunum": 1, "hygon.com/dcucores": 10, "hygon.com/dcumem": 2000}
    start(sandbox, pod("one", **share), pod("two", **share))
    for name in ("one", "two"):
        assert given(sandbox, name, "DCU").startswith("DCU-a,")
    sandbox.create(pod("both", **share | {"hygon.com/dcunum": 2}))
    waits(sandbox, "both", "1/2 CardCordoned")
    sandbox.annotate_node("n", {CORDON: None})
    sandbox.delete("one")
    assert sandbox.started()["both"] == "n"


# -- MetaX

SGPU = {"metax-tech.com/sgpu": 1, "metax-tech.com/vcore": 60, "metax-tech.com/vmemory": 4}
QUALITY = "metax-tech.com/sgpu-qos-policy"


def test_an_sgpu_has_one_quality_of_service(sandbox):
    sandbox.add_node("n", nodes.sgpu("GPU-x"))
    start(sandbox, pod("a", **SGPU))
    assert agent_annotations(sandbox, "a") == {
        QUALITY: "best-effort",  # by the webhook
        "hami.io/metax-sgpu-devices-allocated": "GPU-x,Metax-SGPU,4096,60:;",
        "hami.io/metax-sgpu-devices-to-allocate": ";",
        "metax-tech.com/gpu-devices-allocated": '[[{"uuid":"GPU-x","compute":60,"vRam":4096}]]',
        "metax-tech.com/predicate-time": "<ns>",
    }
    little = SGPU | {"metax-tech.com/vcore": 20}
    sandbox.create(pod("b", annotations={QUALITY: "burst-share"}, **little))
    waits(sandbox, "b", "1/1 CardQosPolicyMismatch")
    sandbox.create(pod("c", **little))
    sandbox.started(wait_for=2)
    sandbox.delete("a")
    sandbox.delete("c")
    assert sandbox.started() == {"b": "n"}


def test_online_and_other_pods_share_no_sgpu(sandbox):
    sandbox.add_node("n", nodes.sgpu("GPU-x"))
    online = {"metax-tech.com/sgpu-app-class": "online"}
    start(
        sandbox,
        pod("a", annotations=online, **{"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 4}),
    )
    assert given(sandbox, "a", "Metax-SGPU") == "GPU-x,Metax-SGPU,4096,0:;"
    sandbox.create(pod("b", **SGPU))
    waits(sandbox, "b", "1/1 CardAppClassMismatch")


# -- Kunlun


def slices(count, memory):
    return {"kunlunxin.com/vxpu": count, "kunlunxin.com/vxpu-memory": memory}


def test_slices_of_one_xpu_are_rounded_and_of_one_size(sandbox):
    sandbox.add_node("n", nodes.vxpu(card("xpu-0", 98_304)))
    start(sandbox, pod("a", **slices(1, 20_000)))
    assert admitted(sandbox, "a") == {
        "kunlunxin.com/vxpu": "1",
        "kunlunxin.com/vxpu-memory": "24576",
    }
    assert given(sandbox, "a", "XPU") == "xpu-0,XPU,24576,25:;"
    sandbox.create(pod("b", **slices(1, 30_000)))
    waits(sandbox, "b", "1/1 CardNotFoundCustomFilterRule")
    sandbox.delete("a")
    assert sandbox.started() == {"b": "n"}
    assert given(sandbox, "b", "XPU") == "xpu-0,XPU,49152,50:;"


def test_slices_are_of_xpus_that_are_linked(sandbox):
    """Across the wings, only 0-4, 1-5, 2-6 and 3-7 are linked."""
    sandbox.add_node("n", nodes.vxpu(*(card(f"xpu-{index}", 98_304) for index in range(8))))
    sandbox.create(
        pod("a", annotations={"hami.io/use-xpu-uuid": "xpu-3,xpu-4"}, **slices(2, 24_576))
    )
    waits(sandbox, "a", "1/8 NumaNotFit")
    sandbox.delete("a")
    start(
        sandbox, pod("b", annotations={"hami.io/use-xpu-uuid": "xpu-3,xpu-7"}, **slices(2, 24_576))
    )
    assert given(sandbox, "b", "XPU") == "xpu-3,XPU,24576,25:xpu-7,XPU,24576,25:;"


def test_whole_xpus_leave_others_what_is_linked(sandbox):
    sandbox.add_node("n", nodes.kunlun(8))
    start(
        sandbox,
        pod(
            "used",
            annotations={"hami.io/use-xpu-uuid": f"{full_name(sandbox, 'n')}-kunlun-5"},
            **{"kunlunxin.com/xpu": 1},
        ),
        pod("k1", **{"kunlunxin.com/xpu": 1}),
    )
    assert agent_annotations(sandbox, "k1") == {
        "hami.io/kunlun-allocated": "n-kunlun-4,kunlun,98304,100:;",
        "BAIDU_COM_DEVICE_IDX": "4",
    }
    sandbox.delete("k1")
    start(sandbox, pod("k2", **{"kunlunxin.com/xpu": 2}))
    assert sandbox.annotations("k2")["BAIDU_COM_DEVICE_IDX"] == "4,6"


# -- AWS Neuron

CORES = "aws.amazon.com/neuroncore"


def test_neuron_cores_are_handed_out_one_by_one(sandbox):
    sandbox.add_node("n", nodes.neuron("inf2.xlarge", 1))
    start(sandbox, pod("a", **{CORES: 1}), pod("b", **{CORES: 1}))
    agent = {
        "NEURON_ALLOCATED": "false",
        "NEURON_ALLOC_TIME": "<ns>",
        "NEURON_RESOURCE_TYPE": CORES,
        "aws.amazon.com/predicate-node": "n",
    }
    for name, mask, number in (("a", 1, "0"), ("b", 2, "1")):
        assert agent_annotations(sandbox, name) == agent | {
            "hami.io/aws-neuron-devices-allocated": f"n-AWSNeuron-0,AWSNeuron,0,{mask}:;",
            "AWS_NEURON_IDS": number,
        }
    sandbox.delete("a")
    sandbox.create(pod("c", **{CORES: 2}))
    waits(sandbox, "c", "1/1 CardInsufficientCore")
    sandbox.create(pod("d", **{CORES: 1}))
    sandbox.started(wait_for=2)
    assert given(sandbox, "d", "AWSNeuron") == "n-AWSNeuron-0,AWSNeuron,0,1:;"


def test_trainium_devices_are_an_aligned_run(sandbox):
    sandbox.add_node("n", nodes.neuron("trn1.32xlarge", 16))
    first = {"aws.amazon.com/use-neuron-uuid": f"{full_name(sandbox, 'n')}-AWSNeuron-0"}
    start(
        sandbox,
        pod("used", annotations=first, **{"aws.amazon.com/neuron": 1}),
        pod("w3", **{"aws.amazon.com/neuron": 4}),
    )
    assert sandbox.annotations("w3")["AWS_NEURON_IDS"] == "4,5,6,7"
    assert (
        given(sandbox, "w3", "AWSNeuron")
        == "".join(f"n-AWSNeuron-{index},AWSNeuron,0,3:" for index in (4, 5, 6, 7)) + ";"
    )


def test_a_neuron_node_without_label_is_ignored_until_it_has_one(sandbox):
    sandbox.add_node("n", nodes.neuron(None, 2))
    assert "label node.kubernetes.io/instance-type" in sandbox.node_event(
        "n", "InventoryUnreadable"
    )
    sandbox.create(pod("a", **{CORES: 2}))
    waits(sandbox, "a", "node unregistered")
    sandbox.label_node("n", {"node.kubernetes.io/instance-type": "inf2.xlarge"})
    assert sandbox.started() == {"a": "n"}


# -- several vendors


@pytest.mark.installation
@cases(
    "outfit, limits, key, share",
    (
        "one-lock",
        nodes.hygon(card("DCU-a", 32_752)),
        {"hygon.com/dcunum": 1, "hygon.com/dcumem": 2000, "hygon.com/dcucores": 10},
        "DCU",
        "DCU-a,DCU,2000,10:",
    ),
    ("a-lock-each", nodes.cambricon(1), MLU, "MLU", "n-cambricon-mlu-0,MLU,5120,10:"),
    (
        "only-one-locks",
        nodes.neuron("inf2.xlarge", 1),
        {CORES: 1},
        "AWSNeuron",
        "n-AWSNeuron-0,AWSNeuron,0,1:",
    ),
)
def test_a_pod_has_devices_of_two_vendors(sandbox, outfit, limits, key, share):
    """Each vendor has its own annotation, in which every container has a position."""
    sandbox.add_node("n", nodes.nvidia(gpu(uuid="GPU-a")), outfit)
    both = [container("log"), container("one", gpu=1, gpumem=3000), container("other", **limits)]
    sandbox.create(pod("a", containers=both), pod("b", containers=both))
    assert sandbox.started() == {"a": "n", "b": "n"}
    assert given(sandbox, "a", "NVIDIA") == ";GPU-a,NVIDIA,3000,0:;;"
    assert given(sandbox, "a", key) == f";;{share};"


def test_devices_of_another_vendor_do_not_count(sandbox):
    sandbox.add_node("n", nodes.nvidia(gpu()), nodes.hygon(card("DCU-a", 32_752)))
    sandbox.create(pod("a", **{"birentech.com/gpu": 1}))
    waits(sandbox, "a", "NodeInsufficientDevice")


# -- every other vendor, its golden example

MOORE_THREADS = {
    "mthreads.com/predicate-node": "n",
    "mthreads.com/predicate-time": "<ns>",
    "mthreads.com/gpu-index": "7,6",
    "mthreads.com/request-gpu-num": "2",
}
DRS_HALF = {
    "enflame.com/gcu-assigned": "false",
    "enflame.com/gcu-assigned-time": "<ns>",
    "enflame.com/gcu-assigned-index": "0",
    "enflame.com/gcu-assigned-id": "0",
    "enflame.com/gcu-assigned-minor": "7",
    "enflame.com/gcu-request-size": "3",
    "assigned-containers": '{"main":{"allocated":false,"request":3,"profileID":"1","profileName":"3g.20gb"}}',
}
DIES = [
    card(f"d{index}", custominfo={"DeviceStrategy": "die", "AIC": aic})
    for index, aic in enumerate("1123")
]


@cases(
    "outfit, limits, key, allocation, more",
    (
        "iluvatar",
        nodes.iluvatar("BI-V150", card("GPU-x", 32_768)),
        {
            "iluvatar.ai/BI-V150-vgpu": 1,
            "iluvatar.ai/BI-V150.vCore": 50,
            "iluvatar.ai/BI-V150.vMem": 64,
        },
        "BI-V150",
        "GPU-x,BI-V150,16384,50:;",
        {},
    ),
    (
        "amd",
        nodes.amd(card("card", 196_608, cores=304)),
        {"amd.com/gpu": 1, "amd.com/gpumem": 16_384, "amd.com/gpucores": 25},
        "AMD",
        "card,AMD Instinct MI300X VF,16384,76:;",
        {},
    ),
    (
        "biren",
        nodes.biren(card("c0", slots=1), card("c1", slots=1)),
        {"birentech.com/gpu": 2},
        "Biren",
        "c1,Biren,0,0:c0,Biren,0,0:;",
        {},
    ),
    (
        "gcu",
        nodes.gcu(2),
        {"enflame.com/gcu": 2},
        "GCU",
        "n-GCU-1,GCU,100,100:n-GCU-0,GCU,100,100:;",
        {},
    ),
    (
        "drs",
        nodes.drs(1),
        {"enflame.com/gcu-memory": 20_480, "enflame.com/gcu-core": 40},
        "Enflame",
        "n-enflame-drs-0,Enflame,20480,50:;",
        DRS_HALF,
    ),
    (
        "kunlun",
        nodes.kunlun(8),
        {"kunlunxin.com/xpu": 4},
        "kunlun",
        "".join(f"n-kunlun-{index},kunlun,98304,100:" for index in range(4)) + ";",
        {"BAIDU_COM_DEVICE_IDX": "0,1,2,3"},
    ),
    (
        "metax",
        nodes.metax(8),
        {"metax-tech.com/gpu": 2},
        "Metax-GPU",
        "n-metax-7,Metax-GPU,65536,100:n-metax-6,Metax-GPU,65536,100:;",
        {},
    ),
    (
        "mthreads",
        nodes.moore_threads(8),
        {"mthreads.com/vgpu": 2},
        "Mthreads",
        "n-mthreads-7,Mthreads,49152,16:n-mthreads-6,Mthreads,49152,16:;",
        MOORE_THREADS,
    ),
    (
        "vastai",
        nodes.vastai(*DIES),
        {"vastaitech.com/va": 2},
        "Vastai",
        "d1,Vastai,0,0:d0,Vastai,0,0:;",
        {},
    ),
)
def test_each_vendor_has_its_annotations(sandbox, outfit, limits, key, allocation, more):
    """One pod for each: the table of vendors has the others."""
    vendor = vendor_of(key)
    sandbox.add_node("n", outfit)
    start(sandbox, pod("a", **limits))
    # the agent has emptied it
    waiting = re.sub("[^;]", "", allocation) if vendor.lock == MUTEX else allocation
    keys = {vendor.allocated: allocation} | (
        {vendor.to_allocate: waiting} if vendor.to_allocate else {}
    )
    assert agent_annotations(sandbox, "a") == keys | more


@pytest.mark.installation
def test_iluvatar_containers_get_their_name(sandbox):
    """The misspelling of the variable is upstream's."""
    sandbox.create(pod("a", containers=[container("train", **{"iluvatar.ai/BI-V150-vgpu": 1})]))
    env = {"name": "SOL_CONTINER_NAME", "value": "train"}
    assert sandbox.pod("a")["spec"]["containers"][0]["env"] == [env]


@cases(
    "outfit, limits, reason",
    (
        "iluvatar",
        nodes.iluvatar("BI-V150", card("x", 32_768)),
        {"iluvatar.ai/BI-V150-vgpu": 1},
        "CardInsufficientMemory",
    ),
    (
        "biren",
        nodes.biren(card("c0", slots=1)),
        {"birentech.com/gpu": 1},
        "CardTimeSlicingExhausted",
    ),
    ("gcu", nodes.gcu(1), {"enflame.com/gcu": 1}, "ExclusiveDeviceAllocateConflict"),
    ("kunlun", nodes.kunlun(1), {"kunlunxin.com/xpu": 1}, "NumaNotFit"),
)
def test_a_second_pod_waits_until_the_first_is_gone(sandbox, outfit, limits, reason):
    sandbox.add_node("n", outfit)
    start(sandbox, pod("first", **limits))
    sandbox.create(pod("second", **limits))
    waits(sandbox, "second", reason)
    sandbox.delete("first")
    assert sandbox.started() == {"second": "n"}


# -- all at once

CROWD = {  # for each vendor: its node, the request of a pod, and the number of pods that fill the node
    "mig": (
        nodes.nvidia(mig_gpu(uuid="GPU-m")),
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000},
        7,
    ),
    "mlu": (nodes.cambricon(2), {**MLU, "cambricon.com/mlu.smlu.vcore": 25}, 8),
    "dcu": (
        nodes.hygon(card("DCU-a", 32_752)),
        {"hygon.com/dcunum": 1, "hygon.com/dcumem": 3000, "hygon.com/dcucores": 10},
        10,
    ),
    "sgpu": (nodes.sgpu("GPU-x"), {**SGPU, "metax-tech.com/vcore": 25}, 4),
    "neuron": (nodes.neuron("inf2.xlarge", 2), {CORES: 1}, 4),
    "drs": (nodes.drs(1), {"enflame.com/drs-gcu": 1}, 6),
    "vxpu": (nodes.vxpu(card("xpu-0", 98_304), card("xpu-1", 98_304)), slices(1, 20_000), 8),
    "310p": (
        nodes.ascend("Ascend310P", card("dev-0", 21_527)),
        {"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 3000},
        7,
    ),
    "910c": (
        nodes.ascend("Ascend910C", *(card(f"npu-{index}", 65_536, slots=1) for index in range(4))),
        {"huawei.com/Ascend910C": 1},
        2,
    ),
}


def test_nodes_of_nine_vendors_fill_up_although_the_scheduler_is_killed(sandbox, scheduler):
    for name, (outfit, _, _) in CROWD.items():
        sandbox.add_node(name, outfit)
    crowd = {
        f"{name}-{number}": (name, limits)
        for number in range(10)
        for name, (_, limits, count) in CROWD.items()
        if number < count
    }
    sandbox.create_all([pod(name, **limits) for name, (_, limits) in crowd.items()])
    sandbox.bound(wait_for=len(crowd) // 3)
    scheduler.kill()
    scheduler.run_with()
    assert sandbox.started() == {name: node for name, (node, _) in crowd.items()}
