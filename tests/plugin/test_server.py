"""The device plugin API on a real socket."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from hami.devices.inventory import DeviceInventory
from hami.errors import ClusterError, HamiError
from hami.node.grant import DeviceNode, Grant, Mount
from hami.plugin.server import _STARTS, PluginServer, register, socket_path
from hami.runtime.files import file_version
from testing.cards import cards, config
from testing.cases import cases
from testing.eventually import eventually
from testing.fake_kubelet import TIMEOUT_S, Kubelet, calling

GRANT = Grant(
    env={"NVIDIA_VISIBLE_DEVICES": "GPU-a"},
    annotations={"cdi.k8s.io/x": "y"},
    cdi_devices=("v/c=d",),
    mounts=(Mount(container_path="/c", host_path="/h", read_only=True),),
    devices=(DeviceNode(container_path="/dev/nvidia0", host_path="/host/dev/nvidia0"),),
)
HEALTHY = {"GPU-a-0": "Healthy", "GPU-a-1": "Healthy", "GPU-b-0": "Healthy", "GPU-b-1": "Healthy"}


class PreparedAllocator:
    """An allocator with prepared answers that records its calls."""

    def __init__(self, *answers):
        self.asked = []
        self._answers = list(answers)

    def _answer(self):
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def allocate(self, device_ids):
        self.asked.append(device_ids)
        return self._answer()

    def preferred(self, available, must_include, size):
        self.asked.append((available, must_include, size))
        return self._answer()


@pytest.fixture
def inventory():
    """Two cards."""
    found = DeviceInventory()
    found.update(cards("GPU-a", "GPU-b", numa=1))
    return found


@pytest.fixture
def start(directory, inventory):
    """Starts a server; its socket is in the kubelet's directory."""
    servers = []

    def start(allocator=None, pre_start=None, cards_in_use=lambda cards: {}, **fields):
        settings = config(
            device_split_count=2, kubelet_socket=str(directory / "kubelet.sock"), **fields
        )
        server = PluginServer(
            socket_path(settings),
            settings,
            inventory,
            allocator or PreparedAllocator(),
            cards_in_use=cards_in_use,
            pre_start=pre_start,
        )
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop(0)


def test_options_offer_preferred_allocation(start, directory):
    start()
    with calling(directory / "nvidia-gpu.sock") as caller:
        options = caller.options()
    assert (options.pre_start_required, options.get_preferred_allocation_available) == (False, True)


def test_all_slots_of_all_cards_are_listed(start, kubelet):
    start()
    kubelet.listen()
    assert kubelet.next_list() == HEALTHY


def test_the_full_list_is_sent_again_when_health_changes(start, kubelet, inventory):
    start()
    kubelet.listen()
    assert kubelet.next_list() == HEALTHY
    inventory.report("GPU-b", "XID 79")
    assert kubelet.next_list() == HEALTHY | {"GPU-b-0": "Unhealthy", "GPU-b-1": "Unhealthy"}
    inventory.report("GPU-b", "")
    assert kubelet.next_list() == HEALTHY


def test_an_id_has_the_health_of_the_card_that_its_container_uses(
    start, kubelet, inventory, monkeypatch
):
    monkeypatch.setattr("hami.plugin.server.USED_S", 0.05)
    used = {"GPU-a-0": "GPU-b"}
    start(cards_in_use=lambda cards: dict(used))
    kubelet.listen()
    assert kubelet.next_list() == HEALTHY
    inventory.report("GPU-b", "XID 79")
    assert kubelet.next_list() == HEALTHY | {"GPU-a-0": "Unhealthy", "GPU-b-1": "Unhealthy"}
    used["GPU-a-1"] = "GPU-b"  # of a container that was starting meanwhile
    assert kubelet.next_list() == HEALTHY | {"GPU-a-0": "Unhealthy", "GPU-a-1": "Unhealthy"}
    inventory.report("GPU-b", "")
    assert kubelet.next_list() == HEALTHY


def test_several_streams_are_served(start, kubelet, inventory):
    server = start()
    kubelet.listen()
    kubelet.listen()
    assert [kubelet.next_list(), kubelet.next_list()] == [HEALTHY, HEALTHY]
    assert server.streams == 2
    inventory.report("GPU-a", "XID 79")
    assert kubelet.next_list() == kubelet.next_list() != HEALTHY


def test_a_list_ends_with_the_server(start, kubelet):
    server = start()
    kubelet.listen()
    kubelet.next_list()
    server.stop()
    assert kubelet.next_list() is None
    assert server.streams == 0


def test_a_stream_ends_when_its_client_disconnects(start, kubelet, inventory):
    server = start()
    kubelet.listen()
    kubelet.next_list()
    kubelet.disconnect()
    assert kubelet.next_list() is None
    version, looks = inventory.snapshot().version, 0
    while server.streams and (looks := looks + 1) < 1000:
        inventory.wait_until(lambda snapshot: snapshot.version != version, 0.01)
    assert server.streams == 0


@pytest.mark.parametrize("wanted, nodes", [(True, [1]), (False, [])])
def test_numa_nodes_are_listed_if_that_is_switched_on(start, directory, wanted, nodes):
    start(enable_numa_topology=wanted)
    with calling(directory / "nvidia-gpu.sock") as caller:
        first = next(caller.list_and_watch())
    assert [node.ID for node in first.devices[0].topology.nodes] == nodes


def test_the_grant_reaches_the_kubelet(start, directory):
    start(allocator := PreparedAllocator(GRANT))
    with calling(directory / "nvidia-gpu.sock") as caller:
        (answer,) = caller.allocate(["GPU-a-1"]).container_responses
    assert allocator.asked == [("GPU-a-1",)]
    assert dict(answer.envs) == GRANT.env
    assert dict(answer.annotations) == GRANT.annotations
    assert [(one.container_path, one.host_path, one.read_only) for one in answer.mounts] == [
        ("/c", "/h", True)
    ]
    assert [(one.container_path, one.host_path, one.permissions) for one in answer.devices] == [
        ("/dev/nvidia0", "/host/dev/nvidia0", "rw")
    ]
    assert [one.name for one in answer.cdi_devices] == ["v/c=d"]


def test_several_containers_are_served_in_order(start, directory):
    start(allocator := PreparedAllocator(Grant(env={"A": "1"}), Grant(env={"B": "2"})))
    with calling(directory / "nvidia-gpu.sock") as caller:
        answer = caller.allocate(["GPU-a-0"], ["GPU-b-0", "GPU-b-1"])
    assert [dict(one.envs) for one in answer.container_responses] == [{"A": "1"}, {"B": "2"}]
    assert allocator.asked == [("GPU-a-0",), ("GPU-b-0", "GPU-b-1")]


@cases(
    "error, status, says",
    ("refused", HamiError("no pod waits"), grpc.StatusCode.FAILED_PRECONDITION, "no pod waits"),
    ("API server away", ClusterError("away"), grpc.StatusCode.FAILED_PRECONDITION, "away"),
    (
        "a bug",
        ValueError("a secret"),
        grpc.StatusCode.INTERNAL,
        "internal error of the device plugin: see its log",
    ),
)
def test_an_error_is_returned_to_the_kubelet(start, directory, error, status, says):
    start(PreparedAllocator(error))
    with calling(directory / "nvidia-gpu.sock") as caller, pytest.raises(grpc.RpcError) as caught:
        caller.allocate(["GPU-a-0"])
    assert (caught.value.code(), caught.value.details()) == (status, says)


@cases(
    "answer, preferred",
    ("preferred ids", ("GPU-b-0",), ["GPU-b-0"]),
    ("none", (), []),
    ("an error would fail the pod", ValueError("a bug"), []),
)
def test_preferences(start, directory, answer, preferred):
    start(allocator := PreparedAllocator(answer))
    with calling(directory / "nvidia-gpu.sock") as caller:
        assert caller.prefer(["GPU-a-0", "GPU-b-0"], ["GPU-a-0"], 1) == [preferred]
    assert allocator.asked == [(("GPU-a-0", "GPU-b-0"), ("GPU-a-0",), 1)]


def test_pre_start_does_nothing_where_it_is_not_required(start, directory):
    start()
    with calling(directory / "nvidia-gpu.sock") as caller:
        assert not caller.pre_start(["GPU-a-0"]).ListFields()


def test_pre_start_prepares_the_container(start, directory):
    prepared = []
    start(pre_start=prepared.append)
    with calling(directory / "nvidia-gpu.sock") as caller:
        assert caller.options().pre_start_required
        assert not caller.pre_start(["GPU-a-0", "GPU-b-1"]).ListFields()
    assert prepared == [("GPU-a-0", "GPU-b-1")]


def test_containers_are_prepared_at_the_same_time(start, directory):
    together = threading.Barrier(8)
    start(pre_start=lambda ids: together.wait(20))
    with calling(directory / "nvidia-gpu.sock") as caller, ThreadPoolExecutor(8) as pool:
        assert (
            len(list(pool.map(lambda number: caller.pre_start([f"GPU-a-{number}"]), range(8)))) == 8
        )


@cases(
    "error, status, says",
    ("refused", HamiError("it was deleted"), grpc.StatusCode.FAILED_PRECONDITION, "it was deleted"),
    (
        "a bug",
        ValueError("a secret"),
        grpc.StatusCode.INTERNAL,
        "internal error of the device plugin: see its log",
    ),
)
def test_an_error_of_pre_start_is_returned_to_the_kubelet(start, directory, error, status, says):
    def fail(ids):
        raise error

    start(pre_start=fail)
    with calling(directory / "nvidia-gpu.sock") as caller, pytest.raises(grpc.RpcError) as caught:
        caller.pre_start(["GPU-a-0"])
    assert (caught.value.code(), caught.value.details()) == (status, says)


# ---- the socket


def test_an_old_socket_is_replaced(start, directory):
    path = directory / "nvidia-gpu.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    server = start()
    assert file_version(path) == server.identity
    with calling(path) as caller:
        caller.options()


def test_only_the_socket_is_in_the_directory_until_stop(start, directory):
    server = start()
    assert {path.name for path in directory.iterdir()} == {"nvidia-gpu.sock", server.endpoint}
    assert file_version(directory / server.endpoint) == server.identity
    server.stop()
    assert list(directory.iterdir()) == []


def test_sockets_of_killed_processes_are_removed(start, directory):
    killed, other = directory / "nvidia-gpu-0123abcd.sock", directory / "nvidia-gpu-mig.sock"
    for path in (killed, other):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    alive = start()
    server = start()
    assert {path.name for path in directory.iterdir()} == {
        "nvidia-gpu.sock",
        other.name,
        alive.endpoint,
        server.endpoint,
    }


def test_the_socket_of_a_new_process_is_kept(start, directory):
    first = start()
    second = start()
    first.stop()
    assert file_version(directory / "nvidia-gpu.sock") == second.identity
    with calling(directory / "nvidia-gpu.sock") as caller:
        caller.options()


@cases(
    "fields, name",
    ({}, "nvidia-gpu.sock"),
    ({"resource": "nvidia.com/vgpu"}, "nvidia-vgpu.sock"),
    ({"socket_name": "h.sock"}, "h.sock"),
)
def test_the_socket_s_name(fields, name):
    assert socket_path(config(kubelet_socket="/k/kubelet.sock", **fields)) == Path("/k", name)


def test_a_path_too_long_for_a_socket_is_an_error():
    with pytest.raises(HamiError, match="too long for a unix socket"):
        socket_path(config(kubelet_socket=f"/{'k' * 90}/kubelet.sock"))


def test_a_missing_directory_is_named(directory, inventory):
    server = PluginServer(directory / "away" / "x.sock", config(), inventory, PreparedAllocator())
    with pytest.raises((HamiError, OSError), match="away"):
        server.start()


# ---- registration


@pytest.mark.parametrize("pre_start", [False, True])
def test_the_resource_is_registered_with_the_kubelet(start, kubelet, directory, pre_start):
    start()
    register(
        str(directory / "kubelet.sock"), "nvidia-gpu.sock", "nvidia.com/gpu", pre_start=pre_start
    )
    request = kubelet.registered.get(timeout=20)
    assert (request.version, request.endpoint, request.resource_name) == (
        "v1beta1",
        "nvidia-gpu.sock",
        "nvidia.com/gpu",
    )
    assert request.options.get_preferred_allocation_available
    assert request.options.pre_start_required is pre_start
    assert kubelet.options.get(timeout=20).get_preferred_allocation_available


def test_a_rejection_by_the_kubelet_is_quoted(directory):
    kubelet = Kubelet(directory, refuses="invalid resource name")
    with pytest.raises(HamiError, match="nvidia.com/gpu: INVALID_ARGUMENT: invalid resource name"):
        register(str(directory / "kubelet.sock"), "nvidia-gpu.sock", "nvidia.com/gpu")
    kubelet.stop()


def test_a_kubelet_that_does_not_answer_times_out(directory):
    with (
        socket.socket(socket.AF_UNIX) as silent,
        pytest.raises(HamiError, match="DEADLINE_EXCEEDED"),
    ):
        silent.bind(str(directory / "kubelet.sock"))
        silent.listen()
        register(str(directory / "kubelet.sock"), "nvidia-gpu.sock", "nvidia.com/gpu", timeout=0.05)


def test_a_dead_kubelet_is_not_waited_for(directory):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "kubelet.sock"))
    with pytest.raises(HamiError, match="UNAVAILABLE"):
        register(str(directory / "kubelet.sock"), "nvidia-gpu.sock", "nvidia.com/gpu")


def test_containers_that_cannot_be_prepared_leave_threads_for_all_else(start, directory, kubelet):
    """The next one is refused, as the kubelet tries again; others, the stream and the probe are served."""
    unblocked, started = threading.Event(), []

    def hang(ids):
        started.append(ids)
        unblocked.wait(60)

    server = start(PreparedAllocator(GRANT), pre_start=hang)
    with calling(directory / "nvidia-gpu.sock") as caller, ThreadPoolExecutor(_STARTS) as callers:
        done = [callers.submit(caller.pre_start, ["GPU-a-0"]) for _ in range(_STARTS)]
        eventually(lambda: len(started) == _STARTS, "all places are taken")
        with pytest.raises(grpc.RpcError) as caught:
            caller.pre_start(["GPU-b-0"])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.answers(TIMEOUT_S)
        assert list(caller.allocate(["GPU-a-0"]).container_responses)
        kubelet.listen()
        assert kubelet.next_list() == HEALTHY
        unblocked.set()
        for one in done:
            one.result(TIMEOUT_S)
        assert not caller.pre_start(["GPU-a-0"]).ListFields()


def test_a_server_without_a_socket_does_not_answer(start, directory):
    server = start()
    (directory / "nvidia-gpu.sock").unlink()
    assert not server.answers(0.3)


def test_calls_that_fail_have_ended_too(start, directory):
    server = start(PreparedAllocator(HamiError("no"), RuntimeError("bug")))
    with calling(directory / "nvidia-gpu.sock") as caller:
        for count in (1, 2):
            with pytest.raises(grpc.RpcError):
                caller.allocate(["GPU-a-0"])
            assert server.completed_calls == count
