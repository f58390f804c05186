"""Registration with the kubelet, and again when the kubelet has lost it."""

import threading
from functools import partial

import pytest

from hami.devices.inventory import DeviceInventory
from hami.errors import HamiError
from hami.node.sockets import Unanswered
from hami.plugin.kubelet_registration import (
    CONNECT_TIMEOUT_S,
    PROBE_S,
    KubeletRegistration,
    Step,
    next_step,
)
from hami.plugin.server import PluginServer, register
from hami.runtime.files import file_version
from hami.runtime.tasks import HUNG_S
from testing.cards import cards, config
from testing.cases import cases
from testing.fake_kubelet import TIMEOUT_S, Kubelet, calling

ONE, OTHER, OURS = (1, 1, 1), (1, 1, 2), (1, 2, 1)
REACHED_S = 1.0  # in which a call reaches the kubelet


@cases(
    "state, step",
    ("no kubelet", {"kubelet": None}, Step.WAIT),
    (
        "kubelet gone",
        {"kubelet": None, "served": OURS, "found": OURS, "registered": ONE},
        Step.WAIT,
    ),
    ("not served yet", {}, Step.SERVE),
    ("a predecessor's socket", {"found": OTHER}, Step.SERVE),
    ("our socket was removed", {"served": OURS, "registered": ONE}, Step.SERVE),
    ("not registered yet", {"served": OURS, "found": OURS}, Step.REGISTER),
    (
        "a new kubelet",
        {"served": OURS, "found": OURS, "registered": OTHER, "offered": True},
        Step.SERVE,
    ),
    ("all is well", {"served": OURS, "found": OURS, "registered": ONE, "offered": True}, Step.DONE),
    (
        "the kubelet has disconnected",
        {"served": OURS, "found": OURS, "registered": ONE, "offered": True, "disconnected": True},
        Step.SERVE,
    ),
    ("an answer came too late", {"served": OURS, "found": OURS, "offered": True}, Step.SERVE),
    ("a successor's socket", {"served": OURS, "found": OTHER, "registered": ONE}, Step.STAND_BY),
)
def test_next_step(state, step):
    usual = {
        "kubelet": ONE,
        "registered": None,
        "served": None,
        "found": None,
        "offered": False,
        "disconnected": False,
    }
    assert next_step(**usual | state) is step


class Time:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    """A stopped clock."""
    return Time()


@pytest.fixture
def registrations(directory, clock):
    """Makes registrations that are not running."""
    inventory = DeviceInventory()
    inventory.update(cards("GPU-a"))
    made = []

    def make(**fields):
        settings = config(
            device_split_count=1, kubelet_socket=str(directory / "kubelet.sock"), **fields
        )
        registration = KubeletRegistration(
            settings,
            lambda path, on_disconnect: PluginServer(
                path, settings, inventory, None, on_disconnect=on_disconnect
            ),
            clock=clock,
        )
        made.append(registration)
        return registration

    yield make
    for registration in made:
        registration.stop()
        registration.run()  # which only closes


def steps(registration, count):
    return [registration.tick() for _ in range(count)]


def test_a_missing_kubelet_is_waited_for_and_logged_once(registrations, directory, caplog):
    registration = registrations()
    assert steps(registration, 3) == [Step.WAIT] * 3
    assert [record.message for record in caplog.records] == [
        "waiting for the kubelet: its socket is missing"
    ]
    assert list(directory.iterdir()) == []


def test_a_missing_directory_is_waited_for(registrations, directory):
    missing = config(kubelet_socket=str(directory / "away" / "kubelet.sock"))
    registration = KubeletRegistration(missing, None, clock=Time())
    assert registration.tick() is Step.WAIT


def test_the_unready_reason_is_told_until_the_plugin_is_registered(registrations, directory):
    registration = registrations()
    reasons = [registration.unready_reason]
    registration.try_tick()
    reasons.append(registration.unready_reason)
    unfriendly = Kubelet(directory, refuses="no")
    registration.try_tick()
    assert registration.try_tick() is None
    reasons.append(registration.unready_reason.split(": ")[0])
    unfriendly.stop()
    (directory / "kubelet.sock").unlink(missing_ok=True)
    friendly = Kubelet(directory)
    assert registration.try_tick() is Step.REGISTER
    assert [*reasons, registration.unready_reason] == [
        "not registered with the kubelet yet",
        "the kubelet's socket is missing",
        "the kubelet cannot be reached",
        "",
    ]
    friendly.stop()


def test_the_plugin_serves_then_registers_once(registrations, kubelet):
    assert steps(registrations(), 4) == [Step.SERVE, Step.REGISTER, Step.DONE, Step.DONE]
    assert kubelet.registered.qsize() == 1


def test_a_new_kubelet_that_emptied_the_directory_is_registered_with(
    registrations, kubelet, directory
):
    registration = registrations()
    steps(registration, 3)
    kubelet.stop()
    for path in directory.iterdir():
        path.unlink()
    assert registration.tick() is Step.WAIT
    again = Kubelet(directory)
    assert steps(registration, 3) == [Step.SERVE, Step.REGISTER, Step.DONE]
    assert again.registered.qsize() == 1
    again.stop()


def test_a_kubelet_that_restarted_between_two_checks_is_registered_with(
    registrations, kubelet, directory
):
    registration = registrations()
    steps(registration, 3)
    kubelet.stop()
    (directory / "kubelet.sock").unlink(missing_ok=True)
    again = Kubelet(directory)
    assert steps(registration, 3) == [Step.SERVE, Step.REGISTER, Step.DONE]
    again.stop()


def test_a_removed_socket_is_created_again(registrations, kubelet, directory):
    registration = registrations()
    steps(registration, 3)
    (directory / "nvidia-gpu.sock").unlink()
    assert steps(registration, 3) == [Step.SERVE, Step.REGISTER, Step.DONE]
    assert kubelet.registered.qsize() == 2


def test_a_new_process_takes_over_and_the_old_one_stands_by(
    registrations, kubelet, directory, caplog
):
    old, new = registrations(), registrations()
    steps(old, 3)
    steps(new, 3)
    taken = file_version(directory / "nvidia-gpu.sock")
    assert steps(old, 2) == [Step.STAND_BY] * 2
    assert sum("another process" in record.message for record in caplog.records) == 1
    assert (old.is_replaced(), new.is_replaced()) == (True, False)
    assert (old.unready_reason, new.unready_reason) == ("", ""), (
        "a rollout ends the old one once the new one is ready"
    )
    old.stop()
    old.run()
    assert file_version(directory / "nvidia-gpu.sock") == taken


def test_a_kubelet_that_stays_disconnected_is_registered_with_again(registrations, kubelet, clock):
    registration = registrations()
    steps(registration, 2)
    kubelet.listen()
    assert kubelet.next_list()
    clock.now += CONNECT_TIMEOUT_S + 1
    assert registration.tick() is Step.DONE  # somebody listens
    kubelet.disconnect()
    assert kubelet.next_list() is None
    for _ in range(1000):  # until the server has noticed, too
        if (step := registration.tick()) is not Step.DONE:
            break
        clock.now += CONNECT_TIMEOUT_S + 1
    assert step is Step.SERVE
    assert steps(registration, 2) == [Step.REGISTER, Step.DONE]


def test_a_kubelet_that_answers_too_late_is_given_another_socket(
    registrations, kubelet, monkeypatch
):
    """It may have connected, and may yet: a socket that it gets a second time is never forgotten."""
    registration = registrations()
    kubelet.may_answer.clear()
    assert registration.tick() is Step.SERVE
    with monkeypatch.context() as patch:
        patch.setattr(
            "hami.plugin.kubelet_registration.register", partial(register, timeout=REACHED_S)
        )
        with pytest.raises(Unanswered, match="DEADLINE_EXCEEDED"):
            registration.tick()
    kubelet.options.get(timeout=TIMEOUT_S)  # it has connected to the first socket
    kubelet.may_answer.set()
    assert steps(registration, 3) == [Step.SERVE, Step.REGISTER, Step.DONE]
    first, second = (kubelet.registered.get(timeout=TIMEOUT_S).endpoint for _ in range(2))
    assert first != second


def test_a_socket_takes_the_place_of_an_earlier_one_at_once(
    registrations, kubelet, directory, clock, monkeypatch
):
    """A predecessor that stands by would take over if there were none."""
    registration = registrations()
    steps(registration, 2)
    seen = []
    for method in ("start", "stop"):

        def watched(self, *args, original=getattr(PluginServer, method)):
            seen.append(file_version(directory / "nvidia-gpu.sock") is not None)
            original(self, *args)
            seen.append(file_version(directory / "nvidia-gpu.sock") is not None)

        monkeypatch.setattr(PluginServer, method, watched)
    clock.now += CONNECT_TIMEOUT_S + 1  # nobody has connected
    assert steps(registration, 3) == [Step.SERVE, Step.REGISTER, Step.DONE]
    assert seen == [True] * 4
    assert not [path for path in directory.glob("*.new")]
    assert len(list(directory.glob("nvidia-gpu-*.sock"))) == 1


def test_a_kubelet_that_disconnects_is_registered_with_again_at_once(registrations, kubelet):
    registration = registrations()  # by its clock, no time passes
    running = threading.Thread(target=registration.run)
    running.start()
    kubelet.registered.get(timeout=TIMEOUT_S)
    kubelet.listen()
    assert kubelet.next_list()
    kubelet.disconnect()
    kubelet.registered.get(timeout=TIMEOUT_S)
    registration.stop()
    running.join(TIMEOUT_S)
    assert not running.is_alive()


def test_a_rejected_registration_is_logged_once_and_retried(registrations, directory, caplog):
    kubelet = Kubelet(directory, refuses="no")
    registration = registrations()
    registration.tick()
    with pytest.raises(HamiError, match="INVALID_ARGUMENT: no"):
        registration.tick()
    assert [registration.try_tick(), registration.try_tick()] == [None, None]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "the kubelet cannot be reached"
    ]
    kubelet.stop()
    (directory / "kubelet.sock").unlink(missing_ok=True)
    friendly = Kubelet(directory)
    assert registration.tick() is Step.REGISTER
    friendly.stop()


def test_the_socket_is_removed_on_stop(registrations, kubelet, directory):
    registration = registrations()
    running = threading.Thread(target=registration.run)
    running.start()
    kubelet.registered.get(timeout=TIMEOUT_S)
    registration.stop()
    running.join(TIMEOUT_S)
    assert not running.is_alive()
    assert not (directory / "nvidia-gpu.sock").exists()


class CountingServer(PluginServer):
    """A server that counts how often it is probed, and may be silent."""

    silent = False
    probes = 0

    def answers(self, timeout=TIMEOUT_S):
        self.probes += 1
        return not self.silent and super().answers(timeout)


def watch(registration, clock, seconds):
    """Takes steps for so many seconds; returns why the process must be restarted."""
    for _ in range(int(seconds)):
        clock.now += 1
        registration.try_tick()
    return registration.hung_reason()


@pytest.fixture
def watched(directory, clock, kubelet):
    """A registration that serves a kubelet, and its server."""
    inventory, servers = DeviceInventory(), []
    inventory.update(cards("GPU-a"))
    settings = config(kubelet_socket=str(directory / "kubelet.sock"))

    def make_server(path, on_disconnect):
        servers.append(CountingServer(path, settings, inventory, None, on_disconnect=on_disconnect))
        return servers[-1]

    registration = KubeletRegistration(settings, make_server, clock=clock)
    steps(registration, 2)
    kubelet.listen()
    kubelet.next_list()
    watch(registration, clock, PROBE_S)  # the kubelet has called it
    yield registration, servers[0]
    registration.stop()
    registration.run()  # which only closes


def test_a_server_that_answers_is_asked_at_intervals(watched, clock):
    registration, server = watched
    assert watch(registration, clock, 3 * HUNG_S) == ""
    assert server.probes == pytest.approx(3 * HUNG_S / PROBE_S, abs=1)


def test_a_server_that_no_longer_answers_ends_in_a_restart(watched, clock, directory):
    registration, server = watched
    server.silent = True
    assert watch(registration, clock, HUNG_S) == ""
    assert watch(registration, clock, PROBE_S) == (
        f"the plugin's own server has not answered at {directory}/nvidia-gpu.sock for {HUNG_S + PROBE_S:.0f} s"
    )
    server.silent = False
    assert watch(registration, clock, PROBE_S) == ""


def test_calls_that_end_count_as_answers(watched, clock, directory):
    """All threads may be busy with them."""
    registration, server = watched
    server.silent = True
    with calling(directory / "nvidia-gpu.sock") as caller:
        for _ in range(int(2 * HUNG_S / PROBE_S)):
            caller.options()
            assert watch(registration, clock, PROBE_S) == ""
    assert server.probes == 0


@pytest.mark.parametrize("when", ["before it serves", "replaced", "stopped"])
def test_a_server_that_need_not_answer_is_no_reason_for_a_restart(
    watched, registrations, clock, when
):
    registration, server = watched
    server.silent = True
    if when == "before it serves":
        registration = registrations()
        clock.now += 2 * HUNG_S
    elif when == "replaced":
        steps(registrations(), 2)
        watch(registration, clock, 2 * HUNG_S)
    else:
        registration.stop()
        registration.run()
        clock.now += 2 * HUNG_S
    assert registration.hung_reason() == ""
    assert server.probes == 0
