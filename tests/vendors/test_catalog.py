"""The names that vendors have on the wire."""

import pytest

from hami.codec.device_config import DeviceConfig, chart_config
from hami.vendors import mig
from hami.vendors.catalog import vendors
from hami.vendors.spec import PartitionRule, Rule, SelectorKeys
from testing.builders import NVIDIA, nvidia
from testing.cases import cases

CHART = vendors(chart_config(), ascend=True, iluvatar=True)
WIRE = [  # vendor, register, handshake, to-allocate, allocated
    (
        NVIDIA,
        "hami.io/node-nvidia-register",
        "hami.io/node-handshake",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
    ),
    # register stands before the name here, and behind it everywhere else
    (
        CHART["Ascend910B4-1"],
        "hami.io/node-register-Ascend910B4-1",
        "hami.io/node-handshake-Ascend910B4-1",
        "hami.io/Ascend910B4-1-devices-to-allocate",
        "hami.io/Ascend910B4-1-devices-allocated",
    ),
    (
        CHART["XPU"],
        "hami.io/node-register-xpu",
        "hami.io/node-handshake-xpu",
        "hami.io/xpu-devices-to-allocate",
        "hami.io/xpu-devices-allocated",
    ),
    (CHART["kunlun"], "", "", "", "hami.io/kunlun-allocated"),  # without -devices-
    (
        CHART["Vastai"],
        "hami.io/node-va-register",
        "hami.io/node-handshake-va",
        "hami.io/Vastai-devices-to-allocate",
        "hami.io/Vastai-devices-allocated",
    ),
    (
        CHART["MLU"],
        "",
        "",
        "hami.io/cambricon-mlu-devices-to-allocate",
        "hami.io/cambricon-mlu-devices-allocated",
    ),
    (
        CHART["DCU"],
        "hami.io/node-dcu-register",
        "hami.io/node-handshake-dcu",
        "hami.io/dcu-devices-to-allocate",
        "hami.io/dcu-devices-allocated",
    ),
    (
        CHART["HCU"],
        "hami.io/node-hcu-register",
        "hami.io/node-handshake-hcu",
        "hami.io/hcu-devices-to-allocate",
        "hami.io/hcu-devices-allocated",
    ),
    (
        CHART["MR-V50"],
        "hami.io/node-MR-V50-register",
        "hami.io/node-handshake-MR-V50",
        "hami.io/MR-V50-devices-to-allocate",
        "hami.io/MR-V50-devices-allocated",
    ),
    (
        CHART["AMD"],
        "hami.io/node-amd-register",
        "",
        "hami.io/amd-devices-to-allocate",
        "hami.io/amd-devices-allocated",
    ),
    (
        CHART["Biren"],
        "hami.io/node-biren-register",
        "hami.io/node-handshake-biren",
        "hami.io/Biren-devices-to-allocate",
        "hami.io/Biren-devices-allocated",
    ),  # with a capital letter, as Vastai's
    (
        CHART["GCU"],
        "",
        "",
        "hami.io/enflame-gcu-devices-to-allocate",
        "hami.io/enflame-gcu-devices-allocated",
    ),
    (
        CHART["Enflame"],
        "enflame.com/gcu-drs-capacity",
        "",
        "",
        "hami.io/enflame-vgpu-devices-allocated",
    ),
    (CHART["AWSNeuron"], "", "", "", "hami.io/aws-neuron-devices-allocated"),
    (
        CHART["Metax-GPU"],
        "",
        "",
        "hami.io/metax-gpu-devices-to-allocate",
        "hami.io/metax-gpu-devices-allocated",
    ),
    (
        CHART["Metax-SGPU"],
        "metax-tech.com/node-gpu-devices",
        "",
        "hami.io/metax-sgpu-devices-to-allocate",
        "hami.io/metax-sgpu-devices-allocated",
    ),
    (
        CHART["Mthreads"],
        "",
        "",
        "",
        "hami.io/mthreads-vgpu-devices-allocated",
    ),  # to-allocate is never written
]


@pytest.mark.parametrize(
    "vendor, register, handshake, to_allocate, allocated", WIRE, ids=[row[0].key for row in WIRE]
)
def test_keys(vendor, register, handshake, to_allocate, allocated):
    assert (vendor.annotations.register, vendor.annotations.handshake) == (register, handshake)
    assert (vendor.annotations.to_allocate, vendor.annotations.allocated) == (
        to_allocate,
        allocated,
    )


UUIDS = [  # vendor, keys of uuids that are wanted, keys of those that are not
    ("Ascend310P", ("hami.io/use-Ascend310P-uuid",), ("hami.io/no-use-Ascend310P-uuid",)),
    (
        "XPU",
        ("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid"),
        ("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid"),
    ),
    (
        "kunlun",
        ("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid"),
        ("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid"),
    ),
    ("Vastai", ("vastaitech.com/use-gpuuuid",), ("vastaitech.com/nouse-gpuuuid",)),
    ("MLU", ("cambricon.com/use-gpuuuid",), ("cambricon.com/nouse-gpuuuid",)),
    ("DCU", ("hygon.com/use-gpuuuid",), ("hygon.com/nouse-gpuuuid",)),
    ("HCU", ("hygon.com/use-gpuuuid",), ("hygon.com/nouse-gpuuuid",)),
    ("BI-V150", ("hami.io/use-BI-V150-uuid",), ("hami.io/no-use-BI-V150-uuid",)),
    ("AMD", ("amd.com/use-gpu-uuid",), ("amd.com/nouse-gpu-uuid",)),
    ("Biren", ("birentech.com/use-gpuuuid",), ("birentech.com/nouse-gpuuuid",)),
    ("GCU", (), ()),
    ("Metax-GPU", (), ()),
    ("Metax-SGPU", ("metax-tech.com/use-gpuuuid",), ("metax-tech.com/nouse-gpuuuid",)),
    ("Mthreads", ("mthreads.ai/use-gpuuuid",), ("mthreads.ai/nouse-gpuuuid",)),
]


@pytest.mark.parametrize("key, use, nouse", UUIDS, ids=[row[0] for row in UUIDS])
def test_keys_of_uuids(key, use, nouse):
    assert (
        CHART[key].annotations.selectors.use_uuids,
        CHART[key].annotations.selectors.nouse_uuids,
    ) == (use, nouse)


LOCKS = {
    "Ascend910C": "hami.io/mutex.lock",
    "XPU": "hami.io/mutex.lock",
    "Vastai": "hami.io/mutex.lock",
    "kunlun": "",
    "MLU": "cambricon.com/dsmlu.lock",
    "DCU": "hami.io/mutex.lock",
    "HCU": "hami.io/mutex.lock",
    "BI-V150": "hami.io/mutex.lock",
    "AMD": "hami.io/mutex.lock",
    "Biren": "hami.io/mutex.lock",
    "GCU": "",
    "Metax-GPU": "",
    "Metax-SGPU": "hami.io/mutex.lock",
    "Mthreads": "",
}


TYPES = {  # keys of models that are wanted, and of those that are not
    "DCU": ("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
    "AMD": ("amd.com/use-gputype", "amd.com/nouse-gputype"),
    "HCU": ("hygon.com/use-hcutype", "hygon.com/nouse-hcutype"),
    "MLU": ("cambricon.com/use-mlutype", "cambricon.com/nouse-mlutype"),
    "Biren": ("", ""),
    "Metax-SGPU": ("", ""),
}


@pytest.mark.parametrize("key, types", TYPES.items())
def test_keys_of_types(key, types):
    assert (
        CHART[key].annotations.selectors.use_types,
        CHART[key].annotations.selectors.nouse_types,
    ) == types


@pytest.mark.parametrize("key, lock", LOCKS.items())
def test_locks(key, lock):
    assert CHART[key].annotations.lock == lock


def test_nvidia_resources():
    assert NVIDIA.resources.names == (
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/priority",
    )
    assert nvidia(resource_priority_name="").resources.names == NVIDIA.resources.names[:-1]


def test_nvidia_rules_in_the_order_of_the_reference():
    assert NVIDIA.decision.rules == (
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
        Rule.CORES,
        Rule.EXCLUSIVE,
        Rule.FULL,
        PartitionRule(mig.no_placement),
    )


def test_iluvatar_is_a_record_a_chip_where_it_is_switched_on():
    on = {vendor.key for vendor in vendors(chart_config(), iluvatar=True)}
    assert on - {vendor.key for vendor in vendors(chart_config())} == {
        "MR-V100",
        "MR-V50",
        "BI-V150",
        "BI-V100",
    }


@cases(
    "config, keys",
    ("default", DeviceConfig(), ["NVIDIA"]),
    ("no section", DeviceConfig(nvidia=None), []),
)
def test_vendors(config, keys):
    assert [vendor.key for vendor in vendors(config)] == keys


def test_a_vendor_without_a_name_for_its_count_is_left_out():
    with pytest.raises(ValueError, match="not enough values to unpack"):
        nvidia(resource_count_name="")


def test_selectors():
    keys = SelectorKeys(use_types="a", nouse_uuids=("b",), mode="c")
    selector = keys.select({"a": "A40, ,L4", "b": ",", "c": "mig"})
    assert (selector.use_types, selector.nouse_types) == (("A40", "L4"), None)
    assert (selector.use_uuids, selector.nouse_uuids, selector.mode) == (None, (), "mig")
