"""Grants, in full."""

from dataclasses import replace

import pytest

from hami.devices.config import PluginConfig
from hami.node.grant import DeviceNode, Grant, HostFacts, Mount, shares_grant, visible_devices_grant
from testing.cards import config
from testing.cases import cases
from testing.plugin_stage import CARDS, NODE, A, B, share

CONFIG = PluginConfig(node=NODE)
HOST = HostFacts(
    library="/usr/local/vgpu/libvgpu.so.2", nodes=("/dev/nvidiactl", "/dev/nvidia-uvm")
)
VGPU = "/usr/local/vgpu"


def recipient(**env):
    return {"own": f"{VGPU}/containers/uid_c", "token": "t-1", "variables": env}


def one(config=CONFIG, host=HOST, to=recipient(), memory=3000, cores=30):
    return shares_grant(config, [(CARDS[0], share(A, memory, cores))], host, **to)


LIMITS = {
    "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
    "CUDA_DEVICE_SM_LIMIT": "30",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{VGPU}/t-1.cache",
}
MOUNTS = (
    Mount(container_path=f"{VGPU}/libvgpu.so", host_path=f"{VGPU}/libvgpu.so.2", read_only=True),
    Mount(
        container_path=f"{VGPU}/limits", host_path=f"{VGPU}/containers/uid_c/limits", read_only=True
    ),
    Mount(
        container_path=f"{VGPU}/t-1.cache",
        host_path=f"{VGPU}/containers/uid_c/t-1.cache",
        is_data=True,
    ),
    Mount(
        container_path=f"{VGPU}/t-1.sm", host_path=f"{VGPU}/containers/uid_c/t-1.sm", is_data=True
    ),
    Mount(container_path="/tmp/vgpulock", host_path=f"{VGPU}/containers/uid_c/lock", is_data=True),
)
PRELOAD = Mount(
    container_path="/etc/ld.so.preload", host_path=f"{VGPU}/ld.so.preload", read_only=True
)


def test_a_share_of_one_card():
    assert one() == Grant(env={"NVIDIA_VISIBLE_DEVICES": A} | LIMITS, mounts=(*MOUNTS, PRELOAD))


def test_a_limiter_without_locks_gets_no_directory_to_write_to():
    assert one(host=replace(HOST, locks=False)).mounts == (*MOUNTS[:4], PRELOAD)


def test_several_cards_are_in_the_driver_s_order_each_with_its_limits():
    grant = shares_grant(
        CONFIG, [(CARDS[1], share(B, 2, 20)), (CARDS[0], share(A, 1, 10))], HOST, **recipient()
    )
    assert grant.env == {
        "NVIDIA_VISIBLE_DEVICES": f"{A},{B}",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "1m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "2m",
        "CUDA_DEVICE_SM_LIMIT": "10",
        "CUDA_DEVICE_SM_LIMIT_0": "10",
        "CUDA_DEVICE_SM_LIMIT_1": "20",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{VGPU}/t-1.cache",
    }


@cases(
    "changes, env",
    ("more memory than there is", {"device_memory_scaling": 1.5}, {"CUDA_OVERSUBSCRIBE": "true"}),
    ("log level", {"log_level": "3"}, {"LIBCUDA_LOG_LEVEL": "3"}),
    ("no core limit", {"disable_core_limit": True}, {"GPU_CORE_UTILIZATION_POLICY": "disable"}),
    (
        "extras",
        {"gdrcopy": True, "gds": True, "mofed": True},
        {"NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"},
    ),
    ("IMEX", {"imex_channels": (0,)}, {"NVIDIA_IMEX_CHANNELS": "0"}),
    ("by index", {"id_strategy": "index"}, {"NVIDIA_VISIBLE_DEVICES": "0"}),
)
def test_variables(changes, env):
    assert one(config(node=NODE, **changes)).env == {"NVIDIA_VISIBLE_DEVICES": A} | LIMITS | env


@pytest.mark.parametrize("value", ["1", "t", "T", "TRUE", "true", "True"])
def test_a_container_can_disable_the_limiter(value):
    assert one(to=recipient(CUDA_DISABLE_CONTROL=value)).mounts == MOUNTS


@pytest.mark.parametrize("value", ["0", "false", "yes", "tRUE", ""])
def test_other_values_do_not_disable_the_limiter(value):
    assert one(to=recipient(CUDA_DISABLE_CONTROL=value)).mounts == (*MOUNTS, PRELOAD)


def test_a_license_is_mounted_with_its_validator():
    assert one(host=replace(HOST, license=True)).mounts[6:] == (
        Mount(container_path="/tmp/license", host_path=f"{VGPU}/license", read_only=True),
        Mount(
            container_path="/usr/bin/vgpuvalidator",
            host_path=f"{VGPU}/vgpuvalidator",
            read_only=True,
        ),
    )


def test_another_hook_path():
    to = recipient() | {"own": "/opt/h/vgpu/containers/uid_c"}
    assert one(replace(CONFIG, hook_path="/opt/h"), to=to).mounts[1] == Mount(
        container_path="/opt/h/vgpu/limits",
        host_path="/opt/h/vgpu/containers/uid_c/limits",
        read_only=True,
    )


def test_volume_mounts():
    grant = one(replace(CONFIG, list_strategies=("volume-mounts",), imex_channels=(0,)))
    listed = "/var/run/nvidia-container-devices"
    assert grant.env == {"NVIDIA_VISIBLE_DEVICES": listed} | LIMITS
    assert grant.mounts[:2] == (
        Mount(container_path=f"{listed}/{A}", host_path="/dev/null"),
        Mount(container_path=f"{listed}/imex/0", host_path="/dev/null"),
    )


def test_device_nodes():
    grant = one(replace(CONFIG, pass_device_specs=True, dev_root="/run/driver"))
    assert grant.devices == tuple(
        DeviceNode(container_path=path, host_path=f"/run/driver{path}", permissions="rw")
        for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia4")
    )


def test_a_device_node_that_does_not_exist_is_left_out():
    settings = replace(CONFIG, pass_device_specs=True)
    host = replace(HOST, nodes=(), absent=frozenset({"/dev/nvidia4"}))
    assert visible_devices_grant(settings, [A], [CARDS[0]], host, "t-1").devices == ()


def test_a_device_node_shared_by_cards_is_added_once():
    cards = [replace(card, shared_node="/dev/dxg") for card in CARDS[:2]]
    grant = shares_grant(
        replace(CONFIG, pass_device_specs=True),
        list(zip(cards, (share(A, 1), share(B, 2)))),
        replace(HOST, nodes=()),
        **recipient(),
    )
    assert [one.host_path for one in grant.devices] == ["/dev/dxg"]


CDI = f"k8s.device-plugin.nvidia.com/gpu={A}"


@cases(
    "strategies, env, annotations, names",
    ("by name", ("cdi-cri",), {}, {}, (CDI,)),
    ("by annotation", ("cdi-annotations",), {}, {"cdi.k8s.io/nvidia-device-plugin_t-1": CDI}, ()),
    (
        "both",
        ("cdi-annotations", "cdi-cri"),
        {},
        {"cdi.k8s.io/nvidia-device-plugin_t-1": CDI},
        (CDI,),
    ),
    ("by name and variable", ("envvar", "cdi-cri"), {"NVIDIA_VISIBLE_DEVICES": A}, {}, (CDI,)),
)
def test_cdi(strategies, env, annotations, names):
    grant = one(replace(CONFIG, list_strategies=strategies))
    assert (grant.env, grant.annotations, grant.cdi_devices) == (env | LIMITS, annotations, names)
    assert grant.mounts == (*MOUNTS, PRELOAD)


def test_cdi_names_the_extras():
    grant = one(
        replace(
            CONFIG,
            list_strategies=("cdi-cri",),
            imex_channels=(0,),
            gds=True,
            gdrcopy=True,
            mofed=True,
        )
    )
    kind = "k8s.device-plugin.nvidia.com"
    assert grant.cdi_devices == (
        CDI,
        f"{kind}/imex-channel=0",
        f"{kind}/gdrcopy=all",
        f"{kind}/gds=all",
        f"{kind}/mofed=all",
    )


def test_cdi_names_no_extras_that_the_host_does_not_have():
    settings = replace(
        CONFIG, list_strategies=("cdi-cri",), imex_channels=(0,), gds=True, gdrcopy=True
    )
    grant = one(settings, host=replace(HOST, classes=frozenset({"gds"})))
    assert grant.cdi_devices == (CDI, "k8s.device-plugin.nvidia.com/gds=all")


def test_device_nodes_of_instances():
    settings = replace(CONFIG, pass_device_specs=True, dev_root="/run/driver")
    host = replace(HOST, nodes=(), instance_nodes=("/dev/nvidia-caps/nvidia-cap12",))
    grant = visible_devices_grant(settings, ["MIG-1"], [CARDS[0]], host, "t-1")
    assert [one.host_path for one in grant.devices] == [
        "/run/driver/dev/nvidia4",
        "/run/driver/dev/nvidia-caps/nvidia-cap12",
    ]


def test_instances_are_only_made_visible():
    assert visible_devices_grant(CONFIG, ["MIG-1", "MIG-2"], [CARDS[0]], HOST, "t-1") == Grant(
        env={"NVIDIA_VISIBLE_DEVICES": "MIG-1,MIG-2"}
    )


@pytest.mark.parametrize(
    "other",
    [
        recipient() | {"own": f"{VGPU}/containers/{name}", "token": "t-2"}
        for name in ("uid_d", "uid-2_c")
    ],
    ids=["container", "pod"],
)
def test_two_containers_share_no_path_that_they_may_write_to(other):
    def writable(to):
        return {mount.host_path for mount in one(to=to).mounts if not mount.read_only}

    own = f"{VGPU}/containers/uid_c"
    assert writable(recipient()) == {f"{own}/t-1.cache", f"{own}/t-1.sm", f"{own}/lock"}
    assert not writable(recipient()) & writable(other)
