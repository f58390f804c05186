"""The driver's socket, called as a kubelet does."""

import os
import queue
import socket
import tempfile
import threading
from pathlib import Path

import grpc
import pytest

from hami.devices.inventory import DeviceInventory
from hami.dra import dra_pb2 as dra
from hami.dra import health_pb2 as health
from hami.dra import registration_pb2 as registration
from hami.dra.prepare import PreparedDevice
from hami.dra.server import FORGOTTEN_S, PROBE_S, DraRegistration, DraServer
from hami.errors import Rejected
from hami.runtime.tasks import HUNG_S
from testing.cards import HALF, cards
from testing.cases import cases
from testing.eventually import eventually

PLUGIN = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
TIMEOUT_S = 20  # no test waits that long unless it fails
DEVICES = [
    PreparedDevice(
        request="main", pool="hami/n1", device=device, share_id=share_id, cdi_device=cdi_device
    )
    for device, share_id, cdi_device in (("gpu-a", "s", "hami.io/claim=u_main"), ("gpu-b", "", ""))
]


class Claims:
    """Answers *devices*, or raises what it is."""

    def __init__(self):
        self.answer = DEVICES
        self.calls = []

    def prepare(self, *claim):
        self.calls.append(claim)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def unprepare(self, uid):
        self.prepare(uid)


class Caller:
    """A kubelet that has found a socket."""

    def __init__(self, path):
        self._channel = grpc.insecure_channel(
            f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)]
        )

    def call(self, method, request, answer):
        return self._channel.unary_unary(
            method, type(request).SerializeToString, answer.FromString
        )(request, timeout=TIMEOUT_S)

    def info(self):
        return self.call(
            "/pluginregistration.Registration/GetInfo",
            registration.InfoRequest(),
            registration.PluginInfo,
        )

    def notify(self, error=""):
        self.call(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            registration.RegistrationStatus(plugin_registered=not error, error=error),
            registration.RegistrationStatusResponse,
        )

    def prepare(self, *uids):
        claims = [dra.Claim(namespace="ns", name=f"claim-{uid}", uid=uid) for uid in uids]
        return self.call(
            f"/{PLUGIN}/NodePrepareResources",
            dra.NodePrepareResourcesRequest(claims=claims),
            dra.NodePrepareResourcesResponse,
        ).claims

    def unprepare(self, *uids):
        claims = [dra.Claim(uid=uid) for uid in uids]
        return self.call(
            f"/{PLUGIN}/NodeUnprepareResources",
            dra.NodeUnprepareResourcesRequest(claims=claims),
            dra.NodeUnprepareResourcesResponse,
        ).claims

    def watch(self, version):
        return self._channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            health.NodeWatchResourcesRequest.SerializeToString,
            health.NodeWatchResourcesResponse.FromString,
        )(health.NodeWatchResourcesRequest())

    def close(self):
        self._channel.close()


@pytest.fixture
def folder():
    """The folder in which the kubelet looks for sockets, with a path short enough for them."""
    with tempfile.TemporaryDirectory(prefix="hami") as found:
        yield Path(found)


@pytest.fixture
def claims():
    return Claims()


@pytest.fixture
def inventory():
    found = DeviceInventory()
    found.update(cards("GPU-a", "GPU-b"))
    return found


@pytest.fixture
def statuses():
    return queue.SimpleQueue()


@pytest.fixture
def make(folder, inventory, claims):
    return lambda on_status: DraServer(folder, "n1", inventory, claims, on_status)


@pytest.fixture
def caller(make, statuses):
    """A kubelet that calls a driver."""
    server = make(statuses.put)
    server.start()
    calling = Caller(server.path)
    yield calling
    calling.close()
    server.stop(0)


def test_the_kubelet_learns_who_serves_the_socket(caller, statuses):
    info = caller.info()
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpu.hami.io", "")
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1alpha1.DRAResourceHealth",
        "v1.DRAResourceHealth",
    ]
    caller.notify()
    caller.notify("no such version")
    assert [statuses.get(timeout=TIMEOUT_S) for _ in range(2)] == ["", "no such version"]


def test_prepared_devices(caller, claims):
    answer = caller.prepare("u")["u"]
    assert claims.calls == [("ns", "claim-u", "u")]
    first, second = answer.devices
    assert (
        list(first.request_names),
        first.pool_name,
        first.device_name,
        list(first.cdi_device_ids),
        first.share_id,
    ) == (["main"], "hami/n1", "gpu-a", ["hami.io/claim=u_main"], "s")
    assert (list(second.cdi_device_ids), second.HasField("share_id"), answer.error) == (
        [],
        False,
        "",
    )


@cases(
    "error, message",
    ("refused", Rejected("the reason"), "the reason"),
    ("fault", ZeroDivisionError("secret"), "internal error of the driver: see its log"),
)
def test_an_error_is_one_of_its_claim(caller, claims, error, message):
    claims.answer = error
    assert [answer.error for answer in caller.prepare("u", "v").values()] == [message] * 2
    assert [answer.error for answer in caller.unprepare("u", "v").values()] == [message] * 2


def test_claims_are_unprepared(caller, claims):
    assert {uid: answer.error for uid, answer in caller.unprepare("u", "v").items()} == {
        "u": "",
        "v": "",
    }
    assert claims.calls == [("u",), ("v",)]


@pytest.mark.parametrize("version", ["v1alpha1", "v1"])
def test_health_is_sent_at_once_when_it_changes(caller, inventory, version):
    answers = caller.watch(version)
    assert [
        (one.device.pool_name, one.device.device_name, one.health) for one in next(answers).devices
    ] == [("hami/n1", "gpu-a", health.HEALTHY), ("hami/n1", "gpu-b", health.HEALTHY)]
    inventory.report("GPU-b", "it is lost")
    first, second = next(answers).devices
    assert (first.health, second.health, second.message) == (
        health.HEALTHY,
        health.UNHEALTHY,
        "it is lost",
    )
    assert first.last_updated_time > 0
    assert first.health_check_timeout_seconds == 30


def test_mig_instances_are_as_healthy_as_their_card(caller, inventory):
    inventory.update(
        [*cards("GPU-a", mig=True, profiles=(HALF,)), *cards("GPU-b", profiles=(HALF,))]
    )
    inventory.report("GPU-a", "it is lost")
    found = {one.device.device_name: one.health for one in next(caller.watch("v1")).devices}
    assert found == {
        "gpu-a": health.UNHEALTHY,
        "gpu-a-mig-3g-40gb-0": health.UNHEALTHY,
        "gpu-a-mig-3g-40gb-4": health.UNHEALTHY,
        "gpu-b": health.HEALTHY,
    }


def test_a_stream_ends_with_the_driver(make):
    server = make(lambda status: None)
    server.start()
    caller = Caller(server.path)
    answers = caller.watch("v1")
    next(answers)
    server.stop(TIMEOUT_S)
    assert list(answers) == []  # else it would be cancelled, which is an error
    caller.close()


# ---- registration


class Stage:
    """A driver whose registration steps by hand."""

    def __init__(self, make, kubelet_socket):
        self.now, self.servers, self.registered = 100.0, [], threading.Semaphore(0)

        def made(on_status):
            self.servers.append(make(on_status))
            return self.servers[-1]

        self.kubelet_socket = kubelet_socket
        self.registration = DraRegistration(
            made,
            clock=lambda: self.now,
            kubelet=kubelet_socket,
            on_registered=self.registered.release,
        )

    def kubelet(self):
        """Finds the socket and registers the driver."""
        caller = Caller(self.servers[-1].path)
        caller.info()
        caller.notify()
        caller.close()


@pytest.fixture
def stage(make, tmp_path):
    found = Stage(make, tmp_path / "kubelet.sock")
    yield found
    found.registration.finish()


def sockets(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_the_driver_is_ready_when_the_kubelet_has_registered_it(stage, folder):
    stage.registration.step()
    assert "not registered" in stage.registration.unready_reason
    assert len(sockets(folder)) == 1
    stage.kubelet()
    assert stage.registered.acquire(timeout=TIMEOUT_S)
    eventually(lambda: stage.registration.unready_reason == "", "it is ready")
    stage.registration.finish()
    assert sockets(folder) == []


def test_a_kubelet_that_starts_again_has_forgotten_the_driver_until_it_registers_it(stage):
    stage.kubelet_socket.write_text("of the first kubelet")
    stage.registration.step()
    stage.kubelet()
    stage.registration.step()
    assert stage.registration.unready_reason == ""
    stage.kubelet_socket.unlink()
    stage.registration.step()
    assert stage.registration.unready_reason == "", "it is away, and asks again"
    stage.kubelet_socket.write_text("of the second one")
    stage.registration.step()
    assert "has not registered the driver yet" in stage.registration.unready_reason
    stage.kubelet()
    stage.registration.step()
    assert stage.registration.unready_reason == ""
    assert len(stage.servers) == 1


def test_a_kubelet_that_does_not_find_the_socket_is_shown_another_one(stage, folder):
    stage.kubelet_socket.write_text("of the first kubelet")
    stage.registration.step()
    stage.kubelet()
    found = sockets(folder)
    stage.kubelet_socket.write_text("of the second one")
    for _ in range(3):
        stage.registration.step()
        stage.now += FORGOTTEN_S / 2 + 1
    assert len(stage.servers) == 2
    assert sockets(folder) != found
    stage.kubelet()
    stage.registration.step()
    assert stage.registration.unready_reason == ""
    assert len(stage.servers) == 2


def test_a_rejection_is_shown(stage):
    stage.registration.step()
    caller = Caller(stage.servers[-1].path)
    caller.notify("no such version")
    caller.close()
    assert "no such version" in stage.registration.unready_reason
    assert not stage.registered.acquire(blocking=False)


def test_a_socket_that_is_gone_is_replaced(stage, folder):
    stage.registration.step()
    stage.kubelet()
    (path,) = folder.iterdir()
    path.unlink()
    stage.registration.step()
    assert "not registered" in stage.registration.unready_reason
    assert sockets(folder) != [path.name]
    assert len(sockets(folder)) == 1
    stage.kubelet()


def test_sockets_of_killed_drivers_are_removed_and_others_stay(stage, make, folder):
    other = make(lambda status: None)
    other.start()
    kept = sockets(folder)
    dead = folder / "gpu.hami.io-01234567.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    (folder / "other.example.com-reg.sock").touch()
    stage.registration.step()
    assert dead.name not in sockets(folder)
    assert {*kept, "other.example.com-reg.sock"} < {*sockets(folder)}
    other.stop(0)


def test_a_folder_that_is_missing_is_waited_for(stage, folder):
    folder.rmdir()
    stage.registration.step()
    assert "cannot be served" in stage.registration.unready_reason
    os.mkdir(folder)
    stage.registration.step()
    assert "not registered" in stage.registration.unready_reason


def test_a_server_that_is_silent_is_restarted(stage, monkeypatch):
    stage.registration.step()
    assert stage.registration.hung_reason() == ""
    stage.now += PROBE_S
    stage.registration.step()
    monkeypatch.setattr(stage.servers[0], "answers", lambda: False)
    for _ in range(int(HUNG_S / PROBE_S) + 1):
        stage.now += PROBE_S + 1
        stage.registration.step()
    assert "has not answered" in stage.registration.hung_reason()
