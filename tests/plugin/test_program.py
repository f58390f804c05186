"""The device plugin process and its signals."""

import base64
import contextlib
import json
import os
import queue
import re
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial

import grpc
import pynvml
import pytest

from hami.codec.health import parse_device_health
from hami.codec.keys import ALLOCATION_MODE, DEVICE_HEALTH, LOCK_FREE
from hami.devices.nvml_library import DriverLibrary
from hami.dra.registration_pb2 import RegistrationStatus
from hami.errors import ClusterError, HamiError
from hami.model import Node
from hami.node.checkpoint import CHECKPOINT
from hami.plugin import api_pb2 as api
from hami.plugin.known_cards import NO_ANSWER
from hami.plugin.program import DevicePluginProgram, serve
from hami.plugin.settings import read_plugin_settings
from hami.plugin.static_mig import InstanceResource
from hami.runtime.parts import Part
from hami.runtime.signals import CHECK_S
from hami.runtime.tasks import PeriodicTask, Task
from hami.web.pages import Health
from testing.builders import write_checksums
from testing.cases import cases
from testing.claim_stage import FakeResources
from testing.eventually import eventually
from testing.fake_cluster import FakeCluster
from testing.fake_kubelet import Kubelet, calling
from testing.fake_nvml import FakeNvml, Gpu
from testing.plugin_stage import LOCK, PHASE, TO_ALLOCATE, A, asking, lock_of, placed, share

CARDS = "cards: [{uuid: GPU-a, memory: 81920}, {uuid: GPU-b, memory: 81920}]"
REGISTER = "hami.io/node-nvidia-register"
ONE = placed(asking(), shares=[[share(A, 1000)]])


class Cluster(FakeCluster):
    """A cluster that signals when the node was written."""

    def __init__(self):
        super().__init__(nodes=[Node(name="n1")])
        self.written = threading.Semaphore(0)

    def annotate_node(self, *args, **kwargs):
        answer = super().annotate_node(*args, **kwargs)
        self.written.release()
        return answer


@pytest.fixture
def cluster():
    """A node without annotations."""
    return Cluster()


@pytest.fixture
def settings(directory):
    """Makes settings of a node with two mock cards."""

    def make(cards=CARDS, **given):
        (directory / "cards.yaml").write_text(cards)
        return read_plugin_settings(
            {
                "node": "n1",
                "mock_devices": str(directory / "cards.yaml"),
                "device_split_count": 2,
                "kubelet_socket": str(directory / "kubelet.sock"),
                "hook_path": str(directory / "hook"),
            }
            | given,
            {},
        )

    return make


@pytest.fixture
def run(settings, cluster):
    """Starts programs that end with the test."""
    started = []

    def run(**given):
        program = DevicePluginProgram(settings(**given), cluster=cluster)
        program.start()
        started.append(program)
        return program

    yield run
    for program in started:
        program.stop(last=False)


def test_cards_reach_the_kubelet_and_the_node(run, kubelet, cluster, directory):
    program = run()
    assert cluster.written.acquire(timeout=20)
    assert kubelet.registered.get(timeout=20).resource_name == "nvidia.com/gpu"
    kubelet.listen()
    assert set(kubelet.next_list()) == {"GPU-a-0", "GPU-a-1", "GPU-b-0", "GPU-b-1"}
    program.stop(last=True)
    assert kubelet.next_list() is None
    assert not (directory / "nvidia-gpu.sock").exists()
    assert '"id":"GPU-a"' in cluster.nodes["n1"].annotations[REGISTER]


@pytest.fixture
def claiming(settings, cluster, directory, monkeypatch):
    """Makes programs with the allocation mode for claims, and ends them; returns the claims and slices
    of the cluster, too."""
    monkeypatch.setattr("hami.plugin.program.DRAIN_S", 30)
    monkeypatch.setattr("hami.plugin.program.JOIN_S", 30)
    for folder in ("device-plugins", "plugins_registry", "hook/vgpu"):
        (directory / folder).mkdir(parents=True)
    resources, started = FakeResources(), []

    def claiming(**given):
        program = DevicePluginProgram(
            settings(
                **given,
                allocation_mode="dra",
                cdi_root=str(directory / "cdi"),
                kubelet_socket=str(directory / "device-plugins" / "kubelet.sock"),
            ),
            cluster=cluster,
            resources=resources,
        )
        started.append(program)
        program.start()
        return program

    yield claiming, resources
    for program in started:
        program.stop(last=True)
    assert list((directory / "plugins_registry").iterdir()) == []


def register_driver(directory):
    """The kubelet says that it will call the driver."""
    (socket,) = (directory / "plugins_registry").iterdir()
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        channel.unary_unary("/pluginregistration.Registration/NotifyRegistrationStatus")(
            RegistrationStatus(plugin_registered=True).SerializeToString(),
            timeout=20,
            wait_for_ready=True,  # the socket is there before its server listens
        )


def test_with_claims_the_cards_reach_kube_scheduler_once_the_kubelet_calls(
    claiming, cluster, directory
):
    cluster.put_node(
        replace(cluster.nodes["n1"], annotations={REGISTER: "[]", LOCK_FREE: "NVIDIA"})
    )
    make, resources = claiming
    program = make()
    eventually(lambda: any((directory / "plugins_registry").iterdir()), "it serves")
    assert "not registered with the kubelet" in program.unready_reason()
    assert not resources.documents
    register_driver(directory)
    eventually(lambda: program.unready_reason() == "", "it is ready")
    (item,) = resources.documents.values()
    assert [device["name"] for device in item["spec"]["devices"]] == ["gpu-a", "gpu-b"]
    assert cluster.nodes["n1"].annotations == {}
    assert not list((directory / "device-plugins").iterdir())
    assert program.hung_reason() == ""


def test_with_claims_pods_of_the_other_allocation_mode_are_waited_for(claiming, cluster):
    cluster.put_pod(replace(ONE, phase="Running"))
    make, _ = claiming
    with pytest.raises(
        HamiError,
        match="cannot be dra yet: 1 pods have devices in the allocation mode device-plugin",
    ):
        make()
    assert [event["reason"] for event in cluster.events.values()] == ["AllocationModeConflict"]
    cluster.delete_pod("default", "p")
    make()


@pytest.fixture
def divided(claiming, settings, cluster, directory):
    """Makes programs of a node whose card GPU-b is for claims."""
    _, resources = claiming
    socket, started = directory / "device-plugins" / "kubelet.sock", []

    def divided(claimed=("GPU-b",), **given):
        program = DevicePluginProgram(
            replace(
                settings(cdi_root=str(directory / "cdi"), kubelet_socket=str(socket), **given),
                claimed_uuids=claimed,
            ),
            cluster=cluster,
            resources=resources,
        )
        started.append(program)
        program.start()
        return program

    yield divided
    for program in started:
        program.stop(last=True)


def test_each_card_of_a_node_has_one_allocation_mode(divided, claiming, cluster, directory):
    found = Kubelet(directory / "device-plugins")
    program = divided()
    assert found.registered.get(timeout=20).resource_name == "nvidia.com/gpu"
    found.listen()
    assert set(found.next_list()) == {"GPU-a-0", "GPU-a-1"}
    register_driver(directory)
    eventually(lambda: program.unready_reason() == "", "both allocation modes are open")
    (item,) = claiming[1].documents.values()
    assert [device["name"] for device in item["spec"]["devices"]] == ["gpu-b"]
    register = cluster.nodes["n1"].annotations[REGISTER]
    assert '"id":"GPU-a"' in register
    assert "GPU-b" not in register
    program.stop(last=True)
    found.stop()


def test_cards_that_pods_use_do_not_change_their_allocation_mode(divided, cluster):
    cluster.put_pod(placed(asking(), shares=[[share("GPU-a")]], phase="Running"))
    with pytest.raises(
        HamiError, match="device GPU-a cannot change its allocation mode yet: pod default/p has it"
    ):
        divided(("GPU-a",))
    assert [event["reason"] for event in cluster.events.values()] == ["AllocationModeConflict"]
    assert "GPU-a" not in cluster.nodes["n1"].annotations[REGISTER]
    divided(("GPU-b",))


def test_cards_for_claims_that_the_node_does_not_have_are_logged(divided, caplog):
    divided(("GPU-z",))
    assert "claimdevices names no device of the node" in str(
        [vars(record) for record in caplog.records]
    )


@pytest.mark.parametrize("memory_by", ["both", "driver"])
def test_the_driver_may_limit_memory_beside_cards_for_claims(divided, caplog, memory_by):
    divided(allocate="start", memory_by=memory_by)
    assert [record for record in caplog.records if "limit memory" in record.message] == []


def test_claims_that_hami_allocates_are_for_nodes_that_it_knows(claiming, cluster, directory):
    cluster.put_node(
        replace(cluster.nodes["n1"], annotations={REGISTER: "[]", LOCK_FREE: "NVIDIA"})
    )
    cluster.put_pod(ONE)
    make, resources = claiming
    with pytest.raises(
        HamiError,
        match="cannot be dra yet: 1 pods have devices in the allocation mode device-plugin",
    ):
        make(claim_allocator="hami")
    assert cluster.nodes["n1"].annotations == {}
    cluster.put_pod(replace(ONE, claim="hami-1"))  # it waits for the driver, with a lock
    cluster.put_node(replace(cluster.nodes["n1"], annotations={LOCK: lock_of(ONE)}))
    program = make(claim_allocator="hami")
    eventually(lambda: ALLOCATION_MODE in cluster.nodes["n1"].annotations, "it registers")
    assert LOCK_FREE not in cluster.nodes["n1"].annotations
    eventually(lambda: any((directory / "plugins_registry").iterdir()), "it serves")
    register_driver(directory)
    eventually(lambda: LOCK_FREE in cluster.nodes["n1"].annotations, "it needs no lock")
    eventually(lambda: program.unready_reason() == "", "it is ready")
    (item,) = resources.documents.values()
    assert all(
        device["taints"][0]["key"] == "hami.io/managed" for device in item["spec"]["devices"]
    )
    assert '"id":"GPU-a"' in cluster.nodes["n1"].annotations[REGISTER]


@cases("ending", ("while it runs", False), ("when it ends at once", True))
def test_the_lock_is_released_after_the_kubelet_has_its_answer(
    run, kubelet, cluster, directory, ending
):
    cluster.put_pod(ONE)
    cluster.put_node(replace(cluster.nodes["n1"], annotations={LOCK: lock_of(ONE)}))
    program = run(cards=f"cards: [{{uuid: {A}, memory: 81920}}]", library_source=limiter(directory))
    kubelet.registered.get(timeout=20)
    with calling(directory / "nvidia-gpu.sock") as plugin:
        plugin.allocate([f"{A}-0"])
    if ending:
        program.stop(last=True)
    eventually(lambda: LOCK not in cluster.nodes["n1"].annotations, "the lock is released")


def test_loops_with_nothing_to_do_show_that_they_work(run, kubelet, monkeypatch):
    beats = Counter()
    monkeypatch.setattr("hami.plugin.program.CLEANUP_S", 0.01)
    monkeypatch.setattr("hami.plugin.program.REGIONS_S", 0.01)
    monkeypatch.setattr(Task, "beat", lambda task, wait_s=0.0: beats.update([task.name]))
    run()
    kubelet.registered.get(timeout=20)
    for name in ("sweep", "regions", "cleanup", "health", "kubelet"):
        eventually(lambda: beats[name] > 2, f"{name} beats again and again")


def test_a_sweep_that_does_not_end_delays_no_other_work(run, kubelet, cluster, directory):
    """A tenant decides how many files there are to remove."""
    cluster.put_pod(ONE)
    cluster.put_node(replace(cluster.nodes["n1"], annotations={LOCK: lock_of(ONE)}))
    (directory / "hook/vgpu/containers/u-9_c").mkdir(parents=True)
    blocked, unblocked, released = threading.Event(), threading.Event(), threading.Event()

    def on_call(call):
        if call.method == "pods_on" and not blocked.is_set():  # for the first sweep
            blocked.set()
            unblocked.wait(60)
        elif call.method == "annotate_node" and LOCK in call.annotations:
            released.set()

    cluster.on_call = on_call
    run(cards=f"cards: [{{uuid: {A}, memory: 81920}}]", library_source=limiter(directory))
    try:
        assert blocked.wait(20)
        kubelet.registered.get(timeout=20)
        with calling(directory / "nvidia-gpu.sock") as plugin:
            plugin.allocate([f"{A}-0"])
        assert released.wait(20)
    finally:
        unblocked.set()


def test_cdi_specifications_are_written_before_the_plugin_registers(run, kubelet, directory):
    libraries = directory / "driver/usr/lib64"
    libraries.mkdir(parents=True)
    (libraries / "libcuda.so.570.1").touch()
    run(
        list_strategies=("cdi-cri",),
        cdi_root=str(directory / "cdi"),
        driver_root_in_container=str(directory / "driver"),
    )
    kubelet.registered.get(timeout=20)
    found = json.loads((directory / "cdi/k8s.device-plugin.nvidia.com-gpu.json").read_text())
    assert [device["name"] for device in found["devices"]] == ["GPU-a", "0", "GPU-b", "1", "all"]
    assert found["containerEdits"]["mounts"][0]["hostPath"] == "/usr/lib64/libcuda.so.570.1"


@pytest.mark.parametrize(
    "given", [{"cdi_root": "", "list_strategies": ("cdi-cri",)}, {"list_strategies": ("envvar",)}]
)
def test_cdi_specifications_are_not_written_if_they_are_not_used(run, kubelet, directory, given):
    run(**{"cdi_root": str(directory / "cdi")} | given)
    kubelet.registered.get(timeout=20)
    assert not (directory / "cdi").exists()


CUT = """cards:
- uuid: GPU-a
  memory: 81920
  mig: {enabled: true, instances: [{uuid: MIG-1, profile: 1g.10gb, memory: 9728},
                                   {uuid: MIG-2, profile: 1g.10gb, memory: 9728},
                                   {uuid: MIG-3, profile: 3g.40gb+me, memory: 40192}]}
- {uuid: GPU-b, memory: 81920}
"""


def test_static_mig_instances_are_offered_beside_the_cards(run, kubelet, directory):
    run(cards=CUT, mig_strategy="mixed")
    assert {kubelet.registered.get(timeout=20).resource_name for _ in range(3)} == {
        "nvidia.com/gpu",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-3g.40gb.me",
    }
    kubelet.listen("nvidia-mig-1g.10gb.sock")
    assert kubelet.next_list() == {"MIG-1": "Healthy", "MIG-2": "Healthy"}
    with calling(directory / "nvidia-mig-1g.10gb.sock") as plugin:
        (answer,) = plugin.allocate(["MIG-2"]).container_responses
        assert (dict(answer.envs), list(answer.mounts)) == ({"NVIDIA_VISIBLE_DEVICES": "MIG-2"}, [])
        with pytest.raises(grpc.RpcError, match="not on this node: MIG-3"):
            plugin.allocate(["MIG-3"])
    (directory / "cards.yaml").write_text(CUT.replace("81920\n", "81920\n  health: XID 79\n"))
    assert kubelet.next_list() == {"MIG-1": "Unhealthy", "MIG-2": "Unhealthy"}


def test_equal_instances_on_all_cards_are_offered_as_one_resource(run, kubelet, cluster):
    run(
        cards=CUT.partition("- {uuid: GPU-b")[0].replace("3g.40gb+me", "1g.10gb"),
        mig_strategy="single",
    )
    assert kubelet.registered.get(timeout=20).resource_name == "nvidia.com/gpu"
    kubelet.listen()
    assert set(kubelet.next_list()) == {"MIG-1", "MIG-2", "MIG-3"}
    assert REGISTER not in cluster.nodes["n1"].annotations, "HAMi's scheduler has no part in them"


def test_instances_replace_cards_that_are_partitioned_while_they_are_served(
    run, kubelet, directory
):
    cut = CUT.partition("- {uuid: GPU-b")[0].replace("3g.40gb+me", "1g.10gb")
    run(cards=cut.replace("enabled: true", "enabled: false"), mig_strategy="single")
    assert kubelet.registered.get(timeout=20).resource_name == "nvidia.com/gpu"
    (former,) = [thread for thread in threading.enumerate() if thread.name == "kubelet"]
    (directory / "cards.yaml").write_text(cut)
    former.join(20)
    assert not former.is_alive()
    assert kubelet.registered.get(timeout=20).resource_name == "nvidia.com/gpu"
    kubelet.listen()
    assert set(kubelet.next_list()) == {"MIG-1", "MIG-2", "MIG-3"}


def test_instances_that_are_found_after_the_stop_are_not_served(run, kubelet):
    program = run(cards=CUT, mig_strategy="mixed")
    kubelet.registered.get(timeout=20)
    program.stop(last=False)
    serving = list(program._servers.tasks)
    program._servers.serve_instances(InstanceResource("nvidia.com/mig-7g.80gb", None, None, {}))
    assert program._servers.tasks == serving


def test_health_in_the_file_reaches_the_kubelet(run, kubelet, directory):
    run()
    kubelet.registered.get(timeout=20)
    kubelet.listen()
    assert set(kubelet.next_list().values()) == {"Healthy"}
    (directory / "cards.yaml").write_text(CARDS.replace("81920}]", "81920, health: XID 79}]"))
    assert kubelet.next_list()["GPU-b-0"] == "Unhealthy"


def test_added_cards_are_offered_within_seconds(run, kubelet, cluster, directory):
    run()
    kubelet.registered.get(timeout=20)
    kubelet.listen()
    assert len(kubelet.next_list()) == 4
    (directory / "cards.yaml").write_text(CARDS.replace("]", ", {uuid: GPU-c, memory: 81920}]"))
    assert set(kubelet.next_list()) > {"GPU-c-0", "GPU-c-1"}
    while '"id":"GPU-c"' not in cluster.nodes["n1"].annotations[REGISTER]:
        assert cluster.written.acquire(timeout=20)


@cases("last, wished, stays", (True, True, False), (False, True, True), (True, False, True))
def test_the_node_is_unregistered_at_the_last_stop_if_configured(run, cluster, last, wished, stays):
    program = run(unregister_on_stop=wished)
    assert cluster.written.acquire(timeout=20)
    program.stop(last=last)
    assert (REGISTER in cluster.nodes["n1"].annotations) is stays


def test_a_replaced_plugin_does_not_unregister_the_node(run, kubelet, cluster):
    old = run(unregister_on_stop=True)
    kubelet.registered.get(timeout=20)
    run()
    kubelet.registered.get(timeout=20)
    assert cluster.written.acquire(timeout=20)
    old.stop(last=True)
    assert REGISTER in cluster.nodes["n1"].annotations


def test_the_program_is_ready_once_it_is_registered(settings, cluster, kubelet, monkeypatch):
    monkeypatch.setattr("hami.plugin.program.JOIN_S", 30)
    program = DevicePluginProgram(settings(), cluster=cluster)
    program.start()
    kubelet.registered.get(timeout=20)
    program.stop(last=False)
    assert program.unready_reason() == ""


@cases("cards, says", (CARDS, "the kubelet's socket is missing"), ("cards: []", ""))
def test_a_program_with_cards_is_not_ready_without_a_kubelet(run, directory, cards, says):
    program = run(cards=cards)
    while program.unready_reason() == "not registered with the kubelet yet":
        pass  # until the first look
    assert program.unready_reason() == says


def test_a_node_without_cards_is_not_registered_with_the_kubelet(run, kubelet):
    program = run(cards="cards: []")
    program.stop(last=True)
    assert kubelet.registered.empty()


def test_without_a_kubelet_socket_only_the_node_is_registered(run, cluster, directory):
    program = run(kubelet_socket="")
    program.stop(last=True)
    assert not (directory / "nvidia-gpu.sock").exists()


@cases(
    "given, says",
    (
        {"imex_required": True, "imex_channels": (0,), "dev_root": "/nowhere"},
        "--imex-required: .*channel0 is missing",
    ),
    ({"library_source": "/nowhere"}, "cannot install the limiter"),
    (
        {"allocate": "admission", "memory_by": "driver"},
        "--memory-by driver: containers do not get their devices when they start",
    ),
    (
        {"list_strategies": ("cdi-cri",), "driver_root_in_container": "/nowhere"},
        "/nowhere: no libcuda.so",
    ),
    ({"cards": "cards: 1"}, "cards.yaml: cards: expected a list"),
    ({"cards": CUT, "mig_strategy": "single"}, "card GPU-b is not in MIG mode, while others are"),
)
def test_an_impossible_start_fails_with_the_reason(settings, cluster, given, says):
    with pytest.raises(HamiError, match=says):
        DevicePluginProgram(settings(**given), cluster=cluster).start()


def test_both_without_start_time_mode_leaves_memory_to_the_limiter_and_says_so(
    settings, cluster, caplog
):
    DevicePluginProgram(settings(allocate="admission", memory_by="both"), cluster=cluster)
    assert "the driver does not limit memory" in [record.message for record in caplog.records]


def test_without_a_driver_the_start_fails_or_the_node_has_no_cards(settings, cluster, monkeypatch):
    import pynvml

    def absent():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    bare = replace(settings(), mock_devices="")
    with pytest.raises(HamiError, match="no NVIDIA driver available"):
        DevicePluginProgram(bare, cluster=cluster)
    mixed = replace(
        bare, fail_on_init_error=False, mig_strategy="mixed", list_strategies=("cdi-cri",)
    )
    program = DevicePluginProgram(mixed, cluster=cluster)
    program.start()
    program.stop(last=True)
    assert cluster.nodes["n1"].annotations == {}


# ---- a node that cannot write


@pytest.mark.parametrize("folder", ["cdi", "hook/vgpu"])
def test_no_card_is_offered_while_the_node_cannot_write_what_containers_are_given(
    run, kubelet, cdi_cluster, directory, folder
):
    (directory / "hook/vgpu").mkdir(parents=True)
    program = run(cdi_root=str(directory / "cdi"))
    kubelet.registered.get(timeout=20)
    kubelet.listen()
    assert set(kubelet.next_list().values()) == {"Healthy"}
    eventually(lambda: program.unready_reason() == "", program.unready_reason)
    path, aside = directory / folder, directory / "aside"
    path.rename(aside)
    path.touch()  # as a file, it is as good as read-only
    program._cards.reader.wake()
    assert set(kubelet.next_list().values()) == {"Unhealthy"}
    assert (
        f"containers cannot be given devices: Not a directory: {path}" in program.unready_reason()
    )
    eventually(lambda: registered_health(cdi_cluster) == [False, False], "the node says so")
    path.unlink()
    aside.rename(path)
    program._cards.reader.wake()
    assert set(kubelet.next_list().values()) == {"Healthy"}


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "f"])
def test_of_two_folders_that_cannot_be_written_the_limiter_s_is_named(
    settings, cluster, directory, name
):
    (directory / "hook").mkdir()
    for folder in ("hook/vgpu", name):
        (directory / folder).touch()  # as a file, it is as good as read-only
    program = DevicePluginProgram(
        settings(allocate="start", cdi_root=str(directory / name)), cluster=cluster
    )
    with pytest.raises(HamiError, match="Not a directory: .*/hook/vgpu$"):
        program.start()


@pytest.mark.parametrize("file", ["libvgpu.so", "ld.so.preload"])
def test_a_limiter_that_somebody_has_removed_is_installed_again(run, directory, file):
    program = run(library_source=limiter(directory))
    (directory / "hook/vgpu" / file).unlink()
    assert program._cards.reader.try_read()
    assert (directory / "hook/vgpu" / file).exists()


# ---- a driver that is lost, hangs, or comes later


@pytest.fixture
def nvml():
    """A driver with two cards."""
    return FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", minor=1))


@pytest.fixture
def driven(settings, cluster, nvml, monkeypatch):
    """Makes programs with that driver, and ends them."""
    monkeypatch.setattr("hami.devices.health.EVENT_TIMEOUT_MS", 10)
    monkeypatch.setattr("hami.plugin.card_reader.RETRY_S", 0.05)
    nvml.nvmlEventSetWait = lambda events, timeout_ms: nvml.wait_for_nothing(timeout_ms)
    library, started = DriverLibrary(load=lambda root: nvml), []

    def make(**given):
        program = DevicePluginProgram(
            replace(settings(**given), mock_devices=""), cluster=cluster, library=library
        )
        started.append(program)
        program.start()
        return program

    yield make
    for program in started:
        program.stop(last=False)


def registered_health(cluster):
    """The health of the node's devices, as schedulers read it."""
    devices = json.loads(cluster.nodes["n1"].annotations.get(REGISTER, "[]"))
    return [device.get("health", False) for device in devices]


MISMATCH, LOST = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_GPU_IS_LOST


@cases("status", ("mismatch", MISMATCH), ("lost", LOST))
@pytest.mark.parametrize("function", ["nvmlDeviceGetCount", "nvmlDeviceGetUUID"])
def test_no_card_is_offered_while_the_driver_does_not_answer(
    driven, nvml, kubelet, cluster, status, function
):
    program = driven()
    kubelet.registered.get(timeout=20)
    kubelet.listen()
    assert set(kubelet.next_list().values()) == {"Healthy"}
    eventually(lambda: registered_health(cluster) == [True, True], "the node is registered")
    nvml.fail(function, status)
    program._cards.reader.wake()
    assert set(kubelet.next_list().values()) == {"Unhealthy"}
    eventually(lambda: registered_health(cluster) == [False, False], "the node says so")
    nvml.heal()
    program._cards.reader.wake()
    assert set(kubelet.next_list().values()) == {"Healthy"}
    eventually(lambda: registered_health(cluster) == [True, True], "the node is well again")
    eventually(lambda: program.unready_reason() == "", program.unready_reason)


def test_a_plugin_whose_driver_does_not_answer_is_not_ready(driven, nvml, kubelet, cluster):
    program = driven()
    kubelet.registered.get(timeout=20)
    eventually(lambda: program.unready_reason() == "", program.unready_reason)
    nvml.fail("nvmlDeviceGetCount", MISMATCH)
    program._cards.reader.wake()
    eventually(
        lambda: (
            "the state of the devices is unknown: NVML cannot count" in program.unready_reason()
        ),
        program.unready_reason,
    )
    eventually(
        lambda: (
            [(event["reason"], event["message"]) for event in cluster.events.values()]
            == [("DevicesUnknown", program._node.inventory.snapshot().unknown)]
        ),
        "an event says so, once",
    )


def test_a_driver_that_hangs_is_known_to_schedulers_before_the_plugin_is_restarted(
    driven, nvml, kubelet, cluster, monkeypatch
):
    program = driven()
    kubelet.registered.get(timeout=20)
    eventually(lambda: registered_health(cluster) == [True, True], "the node is registered")
    monkeypatch.setattr("hami.plugin.card_watch.SILENT_S", 0.1)
    goes_on, count = threading.Event(), nvml.nvmlDeviceGetCount

    def hang():
        goes_on.wait(60)
        return count()

    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", hang)
    program._cards.reader.wake()
    try:
        eventually(lambda: program._cards.reader.silence_s(time.monotonic()) > 0.1, "a read hangs")
        program._cards.check_silence()
        assert "the driver has not answered" in program.unready_reason()
        assert program.hung_reason() == ""
        eventually(lambda: registered_health(cluster) == [False, False], "the node says so")
    finally:
        goes_on.set()
    eventually(
        lambda: program._cards.reader.silence_s(time.monotonic()) == 0.0, "the driver answers"
    )
    program._cards.check_silence()
    eventually(lambda: registered_health(cluster) == [True, True], "the node is well again")


@cases(
    "function, says",
    ("nvmlInit", "no NVIDIA driver available"),
    ("nvmlDeviceGetCount", "NVML cannot count the cards"),
)
def test_a_plugin_that_cannot_read_the_cards_at_its_start_takes_back_what_an_earlier_one_has_registered(
    driven, nvml, cluster, function, says
):
    program = driven()
    eventually(lambda: registered_health(cluster) == [True, True], "the node is registered")
    program.stop(last=True)
    nvml.fail(function, MISMATCH)
    with pytest.raises(HamiError, match=says):
        driven()
    assert registered_health(cluster) == [False, False]
    writes = len(cluster.calls_of("annotate_node"))
    with pytest.raises(HamiError, match=says):
        driven()
    assert len(cluster.calls_of("annotate_node")) == writes


def test_a_plugin_that_starts_while_a_card_is_unhealthy_never_offers_it(
    driven, nvml, cluster, kubelet, monkeypatch
):
    goes_on = threading.Event()
    fields = nvml.nvmlDeviceGetFieldValues

    def late(handle, numbers):
        if threading.current_thread().name == "health":
            goes_on.wait(60)
        return fields(handle, numbers)

    monkeypatch.setattr(nvml, "nvmlDeviceGetFieldValues", late)
    nvml.gpus[0].action = 1
    program = driven()
    kubelet.registered.get(timeout=20)
    kubelet.listen()
    assert Counter(kubelet.next_list().values()) == {"Unhealthy": 2, "Healthy": 2}
    assert registered_health(cluster) == [False, True]

    def told():
        return cluster.conditions.get(("n1", "HamiGpuHealthy"), {}).get("status")

    eventually(lambda: told() == "False", "the node's condition says so")
    (health,) = parse_device_health(cluster.nodes["n1"].annotations[DEVICE_HEALTH]).values()
    assert (health.remedy, health.harms_pods) == ("reset the GPU", True)
    goes_on.set()
    program.stop(last=True)
    assert told() == "Unknown"
    nvml.gpus[0].action = 0
    driven()
    eventually(lambda: told() == "True", "the card is healthy again")
    assert DEVICE_HEALTH not in cluster.nodes["n1"].annotations


def test_an_xid_counts_for_the_next_process_too(driven, nvml, cluster, monkeypatch):
    """The driver does not say what a card needs."""
    monkeypatch.setattr(nvml, "nvmlEventSetWait", lambda events, timeout_ms: nvml.xid(0, 79))
    program = driven()
    eventually(lambda: registered_health(cluster) == [False, True], "the card is unhealthy")
    eventually(
        lambda: DEVICE_HEALTH in cluster.nodes["n1"].annotations, "the node's annotation says so"
    )
    program.stop(last=True)
    monkeypatch.setattr(
        nvml, "nvmlEventSetWait", lambda events, timeout_ms: nvml.wait_for_nothing(timeout_ms)
    )
    driven()
    assert registered_health(cluster) == [False, True]
    assert "XID 79" in cluster.nodes["n1"].annotations[DEVICE_HEALTH]


def test_a_start_that_hangs_in_the_driver_takes_it_back_too(driven, nvml, cluster, monkeypatch):
    program = driven()
    eventually(lambda: registered_health(cluster) == [True, True], "the node is registered")
    program.stop(last=True)
    monkeypatch.setattr("hami.plugin.program.SILENT_S", 0.01)
    monkeypatch.setattr(
        nvml,
        "nvmlInit",
        lambda: eventually(
            lambda: registered_health(cluster) == [False, False],
            "the node says so while the driver hangs",
        ),
    )
    driven()
    eventually(lambda: registered_health(cluster) == [True, True], "the driver has answered")


@cases("text", ("none", ""), ("malformed", "not a list"), ("empty", "[]"))
def test_a_registration_that_says_nothing_stays(driven, nvml, cluster, text):
    cluster.annotate_node("n1", {REGISTER: text or None})
    before = cluster.nodes["n1"].annotations
    nvml.fail("nvmlInit", MISMATCH)
    with pytest.raises(HamiError, match="no NVIDIA driver available"):
        driven()
    assert cluster.nodes["n1"].annotations == before


@pytest.fixture
def serving(settings, cluster, nvml, monkeypatch):
    """Runs the process with that driver, without waiting, until it ends or the test does; returns what tells its exit
    status."""
    monkeypatch.setattr("hami.plugin.program.CHECK_S", 0.01)
    monkeypatch.setattr("hami.plugin.program.RESTART_S", 0.05)
    monkeypatch.setattr("hami.plugin.card_watch.MISSING_S", 0.05)
    monkeypatch.setattr("hami.plugin.card_reader.RETRY_S", 0.05)
    monkeypatch.setattr("hami.devices.health.EVENT_TIMEOUT_MS", 10)
    nvml.nvmlEventSetWait = lambda events, timeout_ms: nvml.wait_for_nothing(timeout_ms)
    signals, ended, threads = queue.SimpleQueue(), queue.SimpleQueue(), []

    def serving(**given):
        chosen, library = (
            replace(settings(**given), mock_devices=""),
            DriverLibrary(load=lambda root: nvml),
        )
        make = partial(DevicePluginProgram, cluster=cluster, library=library)
        thread = threading.Thread(
            target=lambda: ended.put(
                serve(
                    chosen,
                    lambda: chosen,
                    make=make,
                    library=library,
                    signals=signals,
                    on_started=lambda: None,
                )
            )
        )
        threads.append(thread)
        thread.start()
        return lambda: ended.get(timeout=60)

    yield serving
    signals.put(signal.SIGTERM)
    for thread in threads:
        thread.join(60)


def test_a_plugin_that_is_restarted_while_the_driver_hangs_knows_its_cards_and_offers_none(
    driven, serving, nvml, kubelet, cluster, monkeypatch
):
    """The kubelet asks it for containers that start again, and lists nothing as healthy until the driver answers."""
    program = driven()
    kubelet.registered.get(timeout=20)
    program.stop(last=False)
    monkeypatch.setattr("hami.plugin.node.OPEN_S", 0.1)
    goes_on, init = threading.Event(), nvml.nvmlInit
    monkeypatch.setattr(nvml, "nvmlInit", lambda: goes_on.wait(60) and init())
    serving()
    try:
        kubelet.registered.get(timeout=20)
        kubelet.listen()
        offered = kubelet.next_list()
        eventually(lambda: registered_health(cluster) == [False, False], "the node says so")
        monkeypatch.setattr("hami.plugin.node.OPEN_S", 30)
    finally:
        goes_on.set()
    assert len(offered) == 4
    assert set(offered.values()) == {"Unhealthy"}
    eventually(lambda: registered_health(cluster) == [True, True], "the driver answers")
    (event,) = [each for each in cluster.events.values() if each["reason"] == "DevicesUnknown"]
    assert event["message"] == NO_ANSWER


def test_a_process_that_has_lost_the_driver_for_good_ends(
    serving, nvml, kubelet, cluster, monkeypatch
):
    status = serving()
    kubelet.registered.get(timeout=20)
    nvml.fail("nvmlDeviceGetCount", MISMATCH)
    nvml.fail("nvmlEventSetCreate", MISMATCH)
    nvml.interrupt()
    eventually(lambda: registered_health(cluster) == [False, False], "the node says so")
    monkeypatch.setattr("hami.devices.nvml_library.RESTART_S", 0.3)
    assert status() == 1
    assert registered_health(cluster) == [False, False]


def test_a_process_that_waits_for_a_driver_goes_on_waiting(
    serving, nvml, cluster, kubelet, monkeypatch
):
    monkeypatch.setattr("hami.devices.nvml_library.RESTART_S", 0.1)
    nvml.fail("nvmlInit", MISMATCH)
    serving()
    eventually(lambda: nvml.calls.count("nvmlInit") > 10, "it tries again and again")
    nvml.heal()
    kubelet.registered.get(timeout=20)


def test_a_node_without_a_driver_gets_its_cards_when_there_is_one(serving, nvml, kubelet, cluster):
    nvml.fail("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    serving(fail_on_init_error=False)
    eventually(lambda: nvml.calls.count("nvmlInit") > 3, "it looks for a driver")
    assert kubelet.registered.empty()
    nvml.heal()
    assert kubelet.registered.get(timeout=20).resource_name == "nvidia.com/gpu"
    eventually(lambda: registered_health(cluster) == [True, True], "the node is registered")


# ---- signals


class Program:
    """A program that records its calls in *story*."""

    def __init__(self, story, settings, fails=False):
        self._story, self._settings, self._fails = story, settings, fails

    def start(self):
        self._story.append(f"start {self._settings}")
        if self._fails:
            raise ClusterError("away")

    def unready_reason(self):
        return f"a kubelet for {self._settings}"

    def hung_reason(self):
        return ""

    def has_found_driver(self):
        return False

    def stop(self, *, last):
        self._story.append(f"stop {self._settings}{' for good' if last else ''}")


class Signals(queue.SimpleQueue):
    """A queue of prepared signals; ``None`` is a timeout."""

    def __init__(self, *numbers):
        self._numbers = list(numbers)
        self.timeouts = []

    def get(self, timeout=None):
        self.timeouts.append(timeout)
        if (number := self._numbers.pop(0)) is None:
            raise queue.Empty
        return number


def run_signals(*numbers, fresh=(), failing=()):
    """Returns the calls made, starting with the settings ``first``, and the timeouts of the waits for signals."""
    story, signals, fresh = [], Signals(*numbers), list(fresh)

    def read():
        if isinstance(answer := fresh.pop(0), Exception):
            raise answer
        return answer

    status = serve(
        "first",
        read,
        make=lambda settings: Program(story, settings, settings in failing),
        signals=signals,
        on_started=lambda: story.append("started"),
    )
    assert status == 0
    return story, signals.timeouts


TERM, HUP = signal.SIGTERM, signal.SIGHUP


class Asking(Signals):
    """The same; records the readiness before each signal."""

    def __init__(self, *numbers):
        super().__init__(*numbers)
        self.health = Health()
        self.found = [self._page()]

    def get(self, timeout=None):
        self.found.append(self._page())
        return super().get(timeout)

    def _page(self):
        page = self.health.readyz("")
        return page.status, b"".join(page.slices).decode()


def test_readiness_follows_the_running_program():
    signals = Asking(None, HUP, TERM)
    fails = ["first"]

    def make(settings):
        return Program([], settings, fails and fails.pop() == settings)

    status = serve(
        "first",
        lambda: "second",
        make=make,
        signals=signals,
        health=signals.health,
        on_started=lambda: None,
    )
    assert status == 0
    assert signals.found == [
        (503, "starting\n"),
        (503, "start failed: away\n"),
        (503, "a kubelet for first\n"),
        (503, "a kubelet for second\n"),
    ]


def test_no_unready_reason_means_ready():
    health = Health()
    health.follow(lambda: "")
    assert (health.readyz("").status, list(health.readyz("").slices)) == (200, [b"ok\n"])


def test_a_program_that_starts_or_cannot_start_is_not_restarted():
    health = Health()
    assert health.healthz("").status == 200
    health.follow(lambda: "start failed: no driver")
    assert health.healthz("").status == 200
    assert health.readyz("").status == 503


def test_a_start_that_hangs_fails_the_liveness_probe(settings, monkeypatch):
    """As in a call of the driver, which has no deadline."""
    monkeypatch.setattr("hami.plugin.program.START_S", 0.05)
    health, goes_on, signals = Health(), threading.Event(), queue.SimpleQueue()

    def make(settings):
        goes_on.wait(20)
        raise HamiError("no driver")

    thread = threading.Thread(
        target=serve,
        args=(settings(), settings),
        kwargs={"make": make, "signals": signals, "health": health},
    )
    thread.start()
    eventually(lambda: health.healthz("").status == 500, "the start hangs", interval=0.001)
    assert (health.readyz("").status, list(health.healthz("").slices)) == (
        503,
        [b"the start hangs\n"],
    )
    goes_on.set()
    signals.put(signal.SIGTERM)
    thread.join(20)
    assert health.healthz("").status == 200, "a failed start is tried again"


def test_a_driver_that_hangs_fails_the_liveness_probe_and_delays_no_container(
    run, kubelet, cluster, directory
):
    program = run(cards=f"cards: [{{uuid: {A}, memory: 81920}}]", library_source=limiter(directory))
    kubelet.registered.get(timeout=20)
    cluster.put_pod(ONE)
    cluster.put_node(replace(cluster.nodes["n1"], annotations={LOCK: lock_of(ONE)}))
    for part in program._parts:
        for task in part.tasks:
            task._limit_s = 0.1
    (directory / "cards.yaml").unlink()
    os.mkfifo(directory / "cards.yaml")  # nobody writes: to open it does not return
    eventually(lambda: "thread health hangs" in program.hung_reason(), program.hung_reason)
    with calling(directory / "nvidia-gpu.sock") as plugin:
        assert plugin.allocate([f"{A}-0"]).container_responses
    with open(
        directory / "cards.yaml", "w"
    ) as fifo:  # the reader goes on, and the next one finds a file
        (directory / "cards.yaml").unlink()
        (directory / "cards.yaml").write_text(CARDS)
        fifo.write(CARDS)


def test_threads_that_hang_are_named():
    health = Health()
    health.follow(lambda: "", lambda: "thread node hangs")
    page = health.healthz("")
    assert (page.status, list(page.slices)) == (500, [b"thread node hangs\n"])


def test_a_thread_of_the_plugin_that_dies_is_reported(run, cluster):
    program = run()
    assert cluster.written.acquire(timeout=20)
    assert program.hung_reason() == ""
    program._parts.append(broken := Part(PeriodicTask("broken", sys.exit, 1.0)))
    broken.start()
    eventually(program.hung_reason, "the thread has died", interval=0.001)
    assert program.hung_reason() == "thread broken died: SystemExit: "


def test_a_silent_server_is_a_reason_for_a_restart(run, kubelet, monkeypatch):
    program = run()
    kubelet.registered.get(timeout=20)
    assert program.hung_reason() == ""
    monkeypatch.setattr("hami.plugin.kubelet_registration.HUNG_S", -1)
    assert re.fullmatch(
        r"the plugin's own server has not answered at \S+/nvidia-gpu.sock for \d+ s",
        program.hung_reason(),
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_stop_signals_end_the_process(number):
    assert run_signals(number) == (["start first", "started", "stop first for good"], [CHECK_S])


def test_a_hangup_restarts_the_program_with_fresh_settings():
    story, _ = run_signals(HUP, TERM, fresh=["second"])
    assert story == [
        "start first",
        "started",
        "stop first",
        "start second",
        "started",
        "stop second for good",
    ]


def test_settings_that_cannot_be_read_are_ignored():
    story, _ = run_signals(HUP, TERM, fresh=[HamiError("a typing error")])
    assert story == ["start first", "started", "stop first for good"]


def test_a_failed_start_is_retried():
    story, timeouts = run_signals(None, TERM, failing=["first"])
    assert story == ["start first", "start first"]
    assert timeouts == [30.0, 30.0]


def test_a_hangup_retries_a_failed_start():
    story, timeouts = run_signals(HUP, TERM, fresh=["second"], failing=["first"])
    assert story == ["start first", "start second", "started", "stop second for good"]
    assert timeouts == [30.0, CHECK_S]


# ---- start-time mode


@pytest.fixture
def cdi_cluster(cluster):
    """A node whose runtime has CDI."""
    cluster.put_node(
        Node(name="n1", runtime_version="containerd://2.3.7", kubelet_version="v1.36.3")
    )
    return cluster


def limiter(directory):
    (source := directory / "limiter").mkdir()
    (source / "libvgpu.so").write_text("")
    write_checksums(source)
    return str(source)


def write_checkpoint(directory, pod, container, ids, answer):
    entry = {
        "PodUID": pod.ref.uid,
        "ContainerName": container,
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"-1": ids},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    }
    (directory / CHECKPOINT).write_text(
        json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1})
    )


@pytest.mark.parametrize("allocate", ["auto", "start"])
def test_a_container_gets_its_devices_when_it_starts(
    run, kubelet, cdi_cluster, directory, allocate
):
    cdi_cluster.put_pod(
        pod := replace(ONE, annotations=ONE.annotations | {PHASE: "success", TO_ALLOCATE: ""})
    )
    run(
        cards=f"cards: [{{uuid: {A}, memory: 81920}}]",
        library_source=limiter(directory),
        allocate=allocate,
        cdi_root=str(directory / "cdi"),
    )
    assert kubelet.registered.get(timeout=20).options.pre_start_required
    with calling(directory / "nvidia-gpu.sock") as plugin:
        (answer,) = plugin.allocate([f"{A}-0"]).container_responses
        assert [len(answer.envs), len(answer.mounts), len(answer.cdi_devices)] == [1, 0, 1], (
            "the level of its log"
        )
        with pytest.raises(grpc.RpcError, match="no checkpoint"):
            plugin.pre_start([f"{A}-0"])
        write_checkpoint(directory, pod, "c", [f"{A}-0"], answer)
        plugin.pre_start([f"{A}-0"])
    (file,) = (directory / "cdi").iterdir()
    found = json.loads(file.read_text())
    assert answer.cdi_devices[0].name == f"{found['kind']}={found['devices'][0]['name']}"
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=1000m" in found["devices"][0]["containerEdits"]["env"]


def test_the_node_is_lock_free_once_the_kubelet_knows_the_plugin(
    run, kubelet, cdi_cluster, directory
):
    run(cdi_root=str(directory / "cdi"))
    while cdi_cluster.nodes["n1"].annotations.get(LOCK_FREE) != "NVIDIA":
        assert cdi_cluster.written.acquire(timeout=20)
    assert not kubelet.registered.empty()


@pytest.mark.parametrize(
    "given", [{"allocate": "admission"}, {"cdi_root": ""}, {"kubelet_socket": ""}]
)
def test_the_node_needs_a_lock_otherwise(run, cdi_cluster, given):
    cdi_cluster.annotate_node("n1", {LOCK_FREE: "NVIDIA"})
    run(**given)
    while LOCK_FREE in cdi_cluster.nodes["n1"].annotations:
        assert cdi_cluster.written.acquire(timeout=20)


def test_a_node_left_lock_free_needs_a_lock_before_the_kubelet_asks_for_devices(
    run, kubelet, cdi_cluster, monkeypatch
):
    """Otherwise two pods that were bound meanwhile, without a lock, cannot be told apart."""
    cdi_cluster.annotate_node("n1", {LOCK_FREE: "NVIDIA"})
    annotate, early = cdi_cluster.annotate_node, []

    def annotate_later(*arguments):
        with contextlib.suppress(queue.Empty):
            early.append(kubelet.registered.get(timeout=0.5))
        annotate(*arguments)

    monkeypatch.setattr(cdi_cluster, "annotate_node", annotate_later)
    run(allocate="admission")
    kubelet.registered.get(timeout=20)
    assert not early
    assert LOCK_FREE not in cdi_cluster.nodes["n1"].annotations


def test_containers_of_start_time_mode_start_again_in_admission_mode(
    run, kubelet, cluster, directory
):
    cluster.put_pod(
        pod := replace(ONE, annotations=ONE.annotations | {PHASE: "success", TO_ALLOCATE: ""})
    )
    name = "hami.io/container=" + "a" * 16
    write_checkpoint(
        directory,
        pod,
        "c",
        [f"{A}-0"],
        api.ContainerAllocateResponse(cdi_devices=[api.CDIDevice(name=name)]),
    )
    run(
        cards=f"cards: [{{uuid: {A}, memory: 81920}}]",
        library_source=limiter(directory),
        allocate="admission",
        cdi_root=str(directory / "cdi"),
    )
    assert kubelet.registered.get(timeout=20).options.pre_start_required
    with calling(directory / "nvidia-gpu.sock") as plugin:
        plugin.pre_start([f"{A}-0"])
    assert [path.name for path in (directory / "cdi").iterdir()] == [
        f"hami.io-container-{'a' * 16}.json"
    ]


@pytest.mark.parametrize("is_there", [False, True])
def test_files_that_are_gone_after_a_restart_of_the_node_are_written_before_containers_start(
    run, kubelet, cluster, directory, is_there
):
    cluster.put_pod(
        pod := replace(ONE, annotations=ONE.annotations | {PHASE: "success", TO_ALLOCATE: ""})
    )
    own = directory / "hook" / "vgpu" / "containers" / f"{pod.ref.uid}_c"
    write_checkpoint(
        directory,
        pod,
        "c",
        [f"{A}-0"],
        api.ContainerAllocateResponse(mounts=[api.Mount(host_path=f"{own}/token.cache")]),
    )
    if is_there:
        own.mkdir(parents=True)
        (own / "limits").write_text("hami-limits 1\n")
    run(
        cards=f"cards: [{{uuid: {A}, memory: 81920}}]",
        library_source=limiter(directory),
        allocate="admission",
    )
    assert kubelet.registered.get(timeout=20).options.pre_start_required == (not is_there)
    with calling(directory / "nvidia-gpu.sock") as plugin:
        plugin.pre_start([f"{A}-0"])
    assert f"device {A} memory={1000 << 20}" in (own / "limits").read_text() or is_there
    assert (own / "token.cache").exists() == (not is_there)


def test_a_mode_that_cannot_be_decided_fails_the_start(settings):
    with pytest.raises(HamiError, match="there is no node n1"):
        DevicePluginProgram(settings(), cluster=FakeCluster())
