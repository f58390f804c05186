"""The device plugin on a real kubelet: the view of containers, and their fate when processes end.

Pods take the complete path: webhook, kube-scheduler, extender, lock, Binding, kubelet, Allocate, containerd. Only the
GPUs are from a mock file.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from testing.device_plugin import HOOK, RESOURCE, SLOTS, DevicePlugin, cards
from testing.eventually import eventually
from testing.nodes import REGISTER
from testing.placing import bind
from testing.pods import init, pod
from testing.realnode import RealNode
from testing.sandbox import Sandbox
from testing.shown import limits, script, seen, shower, showing

pytestmark = pytest.mark.kind
Object = dict[str, Any]
ALLOCATED = "hami.io/vgpu-devices-allocated"
LOCK = "hami.io/mutex.lock"
LOCK_FREE = "hami.io/lock-free"
PHASE = "hami.io/bind-phase"
FIRST, SECOND = cards(2)
SIZE = "1g.10gb"
CUT = f"nvidia.com/mig-{SIZE}"


def chosen(sandbox: Sandbox, name: str) -> list[list[str]]:
    """Returns the devices that the scheduler chose for each container."""
    return [
        re.findall(r"GPU-[0-9a-f-]+", part)
        for part in annotations(sandbox.pod(name))[ALLOCATED].split(";")
    ]


def annotations(item: Object) -> dict[str, str]:
    return item["metadata"].get("annotations") or {}


def lock_nodes(real: RealNode, plugin: DevicePlugin) -> None:
    """Starts the plugin again in the mode that needs the node lock."""
    plugin.stop()
    real.wait_allocatable(RESOURCE, 0)
    plugin.start(allocate="admission").wait_offered(2 * SLOTS)
    real.wait_node(lambda node: LOCK_FREE not in annotations(node), what="locked for each pod")


def test_the_node_shows_the_resource_and_registers_its_cards(real, plugin):
    node = real.node()
    assert node["status"]["capacity"][RESOURCE] == "20"
    assert f'"id":"{FIRST.uuid}","count":10,"devmem":81920' in annotations(node)[REGISTER].replace(
        '"index":0,', ""
    )


def test_a_container_gets_exactly_its_environment_and_mounts(sandbox, real, plugin):
    sandbox.create(shower(HOOK, "plain"), shower(HOOK, "asking", gpu=1, gpumem=3000, gpucores=30))
    sandbox.running("plain", "asking")
    plain, asking = seen(sandbox, real, "plain"), seen(sandbox, real, "asking")
    granted = {key: value for key, value in asking.env.items() if key not in plain.env}
    cache = granted.pop("CUDA_DEVICE_MEMORY_SHARED_CACHE")
    assert re.fullmatch(rf"{HOOK}/vgpu/[0-9a-f-]{{36}}\.cache", cache)
    assert granted == {
        "NVIDIA_VISIBLE_DEVICES": chosen(sandbox, "asking")[0][0],
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "LIBCUDA_LOG_LEVEL": "1",
    }
    own = f"{HOOK}/vgpu/containers/{sandbox.pod('asking')['metadata']['uid']}_main"
    assert {path: asking.mounts[path] for path in asking.mounts.keys() - plain.mounts.keys()} == {
        f"{HOOK}/vgpu/libvgpu.so": (f"{HOOK}/vgpu/libvgpu.so", False),
        f"{HOOK}/vgpu/limits": (f"{own}/limits", False),
        cache: (f"{own}/{Path(cache).name}", True),
        cache.replace(".cache", ".sm"): (f"{own}/{Path(cache).stem}.sm", True),
        "/tmp/vgpulock": (f"{own}/lock", True),
        "/etc/ld.so.preload": (f"{HOOK}/vgpu/ld.so.preload", False),
    }
    assert asking.library == "the limiter\n"
    assert annotations(sandbox.pod("asking"))[PHASE] == "success"
    assert LOCK not in annotations(real.node())


@pytest.mark.parametrize(
    ("more", "phase"), [({}, "Succeeded"), ({"REQUESTED": "2000m"}, "Failed")], ids=str
)
def test_the_hook_of_the_chart_checks_the_limits_of_a_container(sandbox, helm, plugin, more, phase):
    """With ``helm test``; on real nodes its image is that of the scheduler."""
    image = {"registry": "docker.io", "repository": "library/box", "tag": "1"}
    items = helm.template({"scheduler": {"extender": {"image": image}}})
    (hook,) = (
        item
        for item in items
        if item["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"
    )
    for variable in hook["spec"]["containers"][0]["env"]:
        variable["value"] = more.get(variable["name"], variable["value"])
    metadata = {"name": "hook", "labels": hook["metadata"]["labels"]}
    sandbox.create({**hook, "metadata": metadata})
    sandbox.kube.wait(
        "Pod",
        lambda pods: pods["hook"]["status"].get("phase") == phase,
        sandbox.namespace,
        what=f"the hook is {phase}",
    )


def test_each_container_of_a_pod_gets_its_own(sandbox, real, plugin):
    sandbox.create(
        pod(
            "several",
            scheduler="hami-scheduler",
            inits=[init("load", gpu=1, gpumem=1000) | {"command": ["sh", "-c", script(HOOK)]}],
            containers=[
                showing(HOOK, "left", gpu=1, gpumem=2000, gpucores=20),
                showing(HOOK, "plain"),
                showing(HOOK, "right", gpu=2, gpumem=3000, gpucores=30),
            ],
        )
    )
    sandbox.running("several")
    found = {
        name: seen(sandbox, real, "several", name) for name in ("load", "left", "plain", "right")
    }
    assert [found[name].limit[1:] for name in ("load", "left")] == [("1000m", "0"), ("2000m", "20")]
    assert "NVIDIA_VISIBLE_DEVICES" not in found["plain"].env
    right = found["right"].env
    assert set(right["NVIDIA_VISIBLE_DEVICES"].split(",")) == {FIRST.uuid, SECOND.uuid}
    assert [right[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"] for place in (0, 1)] == ["3000m", "3000m"]
    assert [right[f"CUDA_DEVICE_SM_LIMIT_{place}"] for place in (0, 1)] == ["30", "30"]


@pytest.mark.parametrize("plugin", [1], indirect=True, ids=["one card"])
def test_pods_on_one_card_never_get_each_others_limits(sandbox, real, plugin):
    names = [f"p{number}" for number in range(SLOTS)]
    sandbox.create_all(
        shower(HOOK, name, gpu=1, gpumem=1000 + number, gpucores=1 + number)
        for number, name in enumerate(names)
    )
    sandbox.running(*names)
    assert [seen(sandbox, real, name).limit for name in names] == [
        (FIRST.uuid, f"{1000 + number}m", f"{1 + number}") for number in range(SLOTS)
    ]


@pytest.mark.parametrize("plugin", [4], indirect=True, ids=["four cards"])
def test_forty_pods_at_once(sandbox, real, plugin):
    names = [f"p{number:02}" for number in range(40)]
    sandbox.create_all(
        shower(HOOK, name, gpu=1, gpumem=1000 + number) for number, name in enumerate(names)
    )
    sandbox.running(*names, timeout=300)
    assert limits(sandbox, real, *names) == [(f"{1000 + number}m", "0") for number in range(40)]
    pods = sandbox.kube.list("Pod", sandbox.namespace)
    assert [annotations(item)[PHASE] for item in pods] == ["success"] * 40
    assert [
        status["restartCount"] for item in pods for status in item["status"]["containerStatuses"]
    ] == [0] * 40


def test_the_plugin_is_killed_under_running_pods(sandbox, real, plugin):
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000), shower(HOOK, "b", gpu=2, gpumem=2000))
    before = sandbox.running("a", "b")
    held = annotations(sandbox.pod("a")), annotations(sandbox.pod("b"))
    plugin.kill()
    real.wait_allocatable(RESOURCE, 0)
    plugin.start()
    plugin.wait_offered(2 * SLOTS)
    sandbox.create(shower(HOOK, "c", gpu=1, gpumem=3000))
    assert sandbox.running("a", "b", "c")[:2] == before
    assert (annotations(sandbox.pod("a")), annotations(sandbox.pod("b"))) == held
    assert limits(sandbox, real, "c") == [("3000m", "0")]


def test_the_plugin_is_killed_while_a_pod_waits_for_its_devices(sandbox, real, plugin):
    """The kubelet fails that pod; it does not delay the next one."""
    lock_nodes(real, plugin)
    plugin.program.pause()
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000))
    sandbox.bound(wait_for=1)
    real.wait_node(lambda node: LOCK in annotations(node), what="locked for a")
    plugin.kill()
    sandbox.kube.wait(
        "Pod",
        lambda pods: pods["a"]["status"].get("phase") == "Failed",
        sandbox.namespace,
        what="a has failed",
    )
    plugin.start()
    plugin.wait_offered(2 * SLOTS)
    sandbox.create(shower(HOOK, "b", gpu=1, gpumem=2000))
    sandbox.running("b")
    assert limits(sandbox, real, "b") == [("2000m", "0")]


def test_the_kubelet_is_restarted(sandbox, real, plugin):
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000))
    before = sandbox.running("a")
    assert plugin.readiness() == (200, "ok")
    plugin.restart_kubelet(2 * SLOTS)
    sandbox.create(shower(HOOK, "b", gpu=1, gpumem=2000))
    assert sandbox.running("a", "b")[:1] == before
    assert limits(sandbox, real, "a", "b") == [("1000m", "0"), ("2000m", "0")]


def test_a_pod_starts_though_the_scheduler_died_after_its_bind(sandbox, real, plugin, scheduler):
    lock_nodes(real, plugin)
    plugin.program.pause()
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000))
    sandbox.bound(wait_for=1)
    scheduler.kill()
    plugin.program.resume()
    sandbox.running("a")
    assert limits(sandbox, real, "a") == [("1000m", "0")]
    real.wait_node(lambda node: LOCK not in annotations(node), what="unlocked")


def test_a_lock_left_by_a_dead_scheduler_is_released(sandbox, real, plugin, scheduler):
    lock_nodes(real, plugin)
    scheduler.kill()
    held = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},{sandbox.namespace},never-bound"
    sandbox.kube.merge_patch("Node", real.name, {"metadata": {"annotations": {LOCK: held}}})
    scheduler.run_with()
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000))
    sandbox.running("a")
    assert limits(sandbox, real, "a") == [("1000m", "0")]


def test_a_pod_is_deleted_in_the_middle_of_its_start(sandbox, real, plugin):
    """No pod gets its devices; the next pod gets its own."""
    plugin.program.pause()
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000))
    sandbox.bound(wait_for=1)
    sandbox.delete("a")
    sandbox.create(shower(HOOK, "b", gpu=1, gpumem=2000))
    plugin.program.resume()
    sandbox.running("b")
    assert limits(sandbox, real, "b") == [("2000m", "0")]


def test_a_card_becomes_unhealthy_and_recovers(sandbox, real, plugin):
    sandbox.create(shower(HOOK, "before", gpu=1, gpumem=1000))
    running = sandbox.running("before")
    ill = seen(sandbox, real, "before").limit[0]
    plugin.set_health(ill, "XID 79")
    plugin.wait_offered(SLOTS)
    real.wait_node(
        lambda node: annotations(node)[REGISTER].count('"health":true') == 1,
        what="one card is well",
    )
    sandbox.create(shower(HOOK, "during", gpu=1, gpumem=1000))
    sandbox.running("during")
    assert {ill, seen(sandbox, real, "during").limit[0]} == {FIRST.uuid, SECOND.uuid}
    sandbox.create(shower(HOOK, "both", gpu=2, gpumem=1000))
    sandbox.refusal("both")
    plugin.set_health(ill, True)
    plugin.wait_offered(2 * SLOTS)
    assert sandbox.running("before", "both", timeout=120)[:1] == running


def test_sums_in_the_capacity_never_make_the_kubelet_fail_a_pod(sandbox, real, plugin):
    """Not even those with the names of requests, which it enforces, when a card is ill or the kubelet restarts."""

    def shows(**amounts: int) -> None:
        wanted = {
            f"nvidia.com/{name.replace('_', '-')}": str(amount) for name, amount in amounts.items()
        }
        real.wait_node(
            lambda node: all(
                wanted.items() <= node["status"][field].items()
                for field in ("capacity", "allocatable")
            ),
            what=f"shows {wanted}",
        )

    shows(total_gpumem=2 * 81_920, total_gpucores=200)
    plugin.stop()
    plugin.start(publish_capacity="requests", gpu_labels="true").wait_offered(2 * SLOTS)
    shows(total_gpumem=2 * 81_920, total_gpucores=200, gpumem=2 * 81_920, gpucores=200)
    labels = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": str(SLOTS)}
    real.wait_node(
        lambda node: labels.items() <= node["metadata"]["labels"].items(), what="has its labels"
    )
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=80_000))
    sandbox.running("a")
    plugin.set_health(chosen(sandbox, "a")[0][0], "XID 79")
    shows(total_gpumem=81_920, total_gpucores=100, gpumem=161_920, gpucores=100)
    sandbox.create(shower(HOOK, "b", gpu=1, gpumem=80_000))
    before = sandbox.running("a", "b")
    plugin.restart_kubelet(SLOTS)
    shows(gpumem=161_920, gpucores=100)
    sandbox.create(shower(HOOK, "c", gpu=1, gpumem=1000))
    assert sandbox.running("a", "b", "c")[:2] == before


def test_static_mig_instances_serve_pods_of_other_schedulers(sandbox, real, plugin):
    """The other GPU is shared as usual."""
    instances = [{"uuid": f"MIG-{number}", "profile": SIZE, "memory": 9728} for number in range(2)]
    plugin.stop()
    plugin.insert(FIRST, replace(SECOND, mig={"enabled": True, "instances": instances}))
    plugin.start(mig_strategy="mixed").wait_offered(SLOTS)
    real.wait_allocatable(CUT, 2)
    sandbox.create(shower(HOOK, "shared", gpu=1, gpumem=1000))
    for name in ("a", "b"):
        item = pod(
            name, containers=[showing(HOOK, **{CUT: 1})], node_name=real.name
        )  # without a scheduler
        sandbox.kube.create(item, sandbox.namespace)
    sandbox.running("shared", "a", "b")
    given = [seen(sandbox, real, name).env for name in ("a", "b")]
    assert {env["NVIDIA_VISIBLE_DEVICES"] for env in given} == {"MIG-0", "MIG-1"}
    assert not [key for env in given for key in env if key.startswith("CUDA_")]
    assert seen(sandbox, real, "shared").limit == (FIRST.uuid, "1000m", "0")
    assert LOCK not in annotations(real.node())


def test_the_runtime_injects_the_devices_and_driver_files_of_our_cdi_specification(
    sandbox, real, plugin
):
    driver, hook, specifications = (
        real.folder / "driver",
        real.folder / "nvidia-cdi-hook",
        real.path("/run/cdi"),
    )
    (driver / "usr/lib64").mkdir(parents=True)
    (driver / "usr/lib64/libcuda.so.570.1").write_text("the driver\n")
    (driver / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        os.mknod(driver / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    hook.write_text(f'#!/bin/sh\necho "$@" >>{hook}.log\n')
    hook.chmod(0o755)
    plugin.stop()
    plugin.start(
        device_list_strategy="cdi-cri",
        cdi_root="/var/run/cdi",
        nvidia_driver_root=str(driver),
        driver_root_ctr_path=str(driver),
        dev_root=str(driver),
        nvidia_cdi_hook_path=str(hook),
    )
    plugin.wait_offered(2 * SLOTS)
    container = showing(
        HOOK, then="ls /dev/nvidia*; cat /usr/lib64/libcuda.so.570.1; sleep inf", gpu=1, gpumem=1000
    )
    sandbox.create(pod("a", containers=[container], scheduler="hami-scheduler"))
    sandbox.running("a")
    printed = real.output(sandbox.pod("a"), until="the driver\n").splitlines()
    card = [FIRST.uuid, SECOND.uuid].index(chosen(sandbox, "a")[0][0])
    assert printed[-3:] == [f"/dev/nvidia{card}", "/dev/nvidiactl", "the driver"]
    env = seen(sandbox, real, "a").env
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]) == ("void", "1000m")
    assert "update-ldcache --folder /usr/lib64" in Path(f"{hook}.log").read_text()
    file = specifications / "k8s.device-plugin.nvidia.com-gpu.json"
    devices = {device["name"] for device in json.loads(file.read_text())["devices"]}
    assert devices == {FIRST.uuid, SECOND.uuid, "0", "1", "all"}


def test_the_plugin_is_upgraded_in_place(sandbox, real, plugin):
    """The new plugin takes over from the old one; a running container keeps its library."""
    sandbox.create(shower(HOOK, "old", gpu=1, gpumem=1000))
    before = sandbox.running("old")
    plugin.install_limiter(b"the next limiter\n")
    successor = DevicePlugin(real, name="device-plugin-next")
    successor.cards = plugin.cards
    successor.start()
    try:
        successor.wait_registered()
        eventually(lambda: successor.readiness() == (200, "ok"), successor.log)
        assert plugin.readiness() == (200, "ok")
        plugin.stop()
        assert plugin.program.exit_code == 0
        sandbox.create(shower(HOOK, "new", gpu=1, gpumem=2000))
        assert sandbox.running("old", "new")[:1] == before
        assert seen(sandbox, real, "new").library == "the next limiter\n"
        assert real.allocatable(RESOURCE) == 2 * SLOTS
        assert real.run_in(before[0], "cat", f"{HOOK}/vgpu/libvgpu.so") == "the limiter\n"
    finally:
        successor.close()


@pytest.mark.parametrize("mode", ["start", "admission"])
def test_a_pod_of_another_scheduler_gets_no_devices_and_leaves_its_ids(sandbox, real, plugin, mode):
    """In start-time mode the kubelet keeps its ids until it is deleted: Allocate does not know the pod."""
    if mode == "admission":
        lock_nodes(real, plugin)
    sandbox.create(pod("foreign", gpu=2 * SLOTS, scheduler="foo"))
    bind(sandbox, real, "foreign", {})
    assert "was not assigned to node real-0 by HAMi's scheduler" in sandbox.event(
        "foreign", "Failed" if mode == "start" else "AllocationFailed"
    )
    if mode == "start":
        sandbox.create(shower(HOOK, "early", gpu=1, gpumem=1000))
        sandbox.event(
            "early", "UnexpectedAdmissionError", "requested number of devices unavailable"
        )
        sandbox.delete("foreign")
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000))
    sandbox.running("a")
    assert limits(sandbox, real, "a") == [("1000m", "0")]
