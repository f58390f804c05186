"""The plugin's acquaintance with the kubelet: registered, and again when the kubelet has forgotten."""

import threading

import pytest

from hami.errors import HamiError
from hami.plugin.link import DEAF_S, KubeletLink, Step, next_step
from hami.devices.inventory import DeviceInventory
from hami.plugin.server import PluginServer, stamp_of
from tests.devices.cards import cards, config
from tests.plugin.kubelet import PATIENCE, Kubelet

ONE, OTHER, OURS = (1, 1, 1), (1, 1, 2), (1, 2, 1)


@pytest.mark.parametrize("state, step", [
    pytest.param({"kubelet": None}, Step.WAIT, id="no kubelet"),
    pytest.param({"kubelet": None, "placed": OURS, "found": OURS, "registered": ONE}, Step.WAIT, id="kubelet gone"),
    pytest.param({}, Step.SERVE, id="not served yet"),
    pytest.param({"found": OTHER}, Step.SERVE, id="a predecessor's socket"),
    pytest.param({"placed": OURS, "registered": ONE}, Step.SERVE, id="our socket was removed"),
    pytest.param({"placed": OURS, "found": OURS}, Step.REGISTER, id="not registered yet"),
    pytest.param({"placed": OURS, "found": OURS, "registered": OTHER}, Step.REGISTER, id="a new kubelet"),
    pytest.param({"placed": OURS, "found": OURS, "registered": ONE}, Step.REST, id="all is well"),
    pytest.param({"placed": OURS, "found": OURS, "registered": ONE, "deaf": True}, Step.REGISTER, id="nobody listens"),
    pytest.param({"placed": OURS, "found": OTHER, "registered": ONE}, Step.STAND_BY, id="a successor's socket"),
])
def test_next_step(state, step):
    usual = {"kubelet": ONE, "registered": None, "placed": None, "found": None, "deaf": False}
    assert next_step(**usual | state) is step


class Time:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    """A clock that stands."""
    return Time()


@pytest.fixture
def links(directory, clock):
    """Makes links, that are not run."""
    inventory = DeviceInventory()
    inventory.update(cards("GPU-a"))
    made = []

    def make(**fields):
        settings = config(split_count=1, kubelet_socket=str(directory / "kubelet.sock"), **fields)
        link = KubeletLink(settings, lambda path: PluginServer(path, settings, inventory, None), clock=clock)
        made.append(link)
        return link
    yield make
    for link in made:
        link.stop()
        link.run()  # which only closes


def steps(link, count):
    return [link.tick() for _ in range(count)]


def test_a_kubelet_that_is_not_there_is_waited_for_and_said_once(links, directory, caplog):
    link = links()
    assert steps(link, 3) == [Step.WAIT] * 3
    assert [record.message for record in caplog.records] == ["waiting for the kubelet: its socket is missing"]
    assert list(directory.iterdir()) == []


def test_a_directory_that_is_not_there_yet_is_waited_for(links, directory):
    link = KubeletLink(config(kubelet_socket=str(directory / "away" / "kubelet.sock")), None, clock=Time())
    assert link.tick() is Step.WAIT


def test_what_it_lacks_is_said_until_it_is_registered(links, directory):
    link = links()
    said = [link.lacks]
    link.attempt()
    said.append(link.lacks)
    unfriendly = Kubelet(directory, refuses="no")
    link.attempt()
    assert link.attempt() is None
    said.append(link.lacks.split(": ")[0])
    unfriendly.stop()
    (directory / "kubelet.sock").unlink(missing_ok=True)
    friendly = Kubelet(directory)
    assert link.attempt() is Step.REGISTER
    assert [*said, link.lacks] == ["not registered with the kubelet yet", "the kubelet's socket is missing",
                                   "the kubelet cannot be reached", ""]
    friendly.stop()


def test_the_plugin_serves_then_registers_once(links, kubelet):
    assert steps(links(), 4) == [Step.SERVE, Step.REGISTER, Step.REST, Step.REST]
    assert kubelet.registered.qsize() == 1


def test_a_new_kubelet_that_has_wiped_the_directory_is_served_and_registered_with(links, kubelet, directory):
    link = links()
    steps(link, 3)
    kubelet.stop()
    for path in directory.iterdir():
        path.unlink()
    assert link.tick() is Step.WAIT
    again = Kubelet(directory)
    assert steps(link, 3) == [Step.SERVE, Step.REGISTER, Step.REST]
    assert again.registered.qsize() == 1
    again.stop()


def test_a_kubelet_that_came_and_went_between_two_looks_is_noticed(links, kubelet, directory):
    link = links()
    steps(link, 3)
    kubelet.stop()
    (directory / "kubelet.sock").unlink(missing_ok=True)
    again = Kubelet(directory)
    assert steps(link, 2) == [Step.REGISTER, Step.REST]
    again.stop()


def test_a_socket_that_somebody_has_removed_is_made_again(links, kubelet, directory):
    link = links()
    steps(link, 3)
    (directory / "nvidia-gpu.sock").unlink()
    assert steps(link, 3) == [Step.SERVE, Step.REGISTER, Step.REST]
    assert kubelet.registered.qsize() == 2


def test_a_successor_takes_over_and_the_predecessor_stands_by(links, kubelet, directory, caplog):
    old, new = links(), links()
    steps(old, 3)
    steps(new, 3)
    taken = stamp_of(directory / "nvidia-gpu.sock")
    assert steps(old, 2) == [Step.STAND_BY] * 2
    assert sum("another process" in record.message for record in caplog.records) == 1
    assert (old.is_replaced(), new.is_replaced()) == (True, False)
    assert (old.lacks, new.lacks) == ("", ""), "the old one is ended when the new one is well, not before"
    old.stop()
    old.run()
    assert stamp_of(directory / "nvidia-gpu.sock") == taken


def test_a_kubelet_that_does_not_listen_any_more_is_registered_with_again(links, kubelet, clock):
    link = links()
    steps(link, 2)
    kubelet.listen()
    assert kubelet.heard()
    clock.now += DEAF_S + 1
    assert link.tick() is Step.REST  # somebody listens
    kubelet.deafen()
    assert kubelet.heard() is None
    for _ in range(1000):  # until the server has noticed, too
        if (step := link.tick()) is not Step.REST:
            break
        clock.now += DEAF_S + 1
    assert step is Step.REGISTER


def test_a_kubelet_that_lets_go_of_the_plugin_is_registered_with_again_at_once(links, kubelet):
    link = links()  # by its clock, no time passes
    running = threading.Thread(target=link.run)
    running.start()
    kubelet.registered.get(timeout=PATIENCE)
    kubelet.listen()
    assert kubelet.heard()
    kubelet.deafen()
    kubelet.registered.get(timeout=PATIENCE)
    link.stop()
    running.join(PATIENCE)
    assert not running.is_alive()


def test_a_refusal_is_said_once_and_registration_is_tried_again(links, directory, caplog):
    kubelet = Kubelet(directory, refuses="no")
    link = links()
    link.tick()
    with pytest.raises(HamiError, match="INVALID_ARGUMENT: no"):
        link.tick()
    assert [link.attempt(), link.attempt()] == [None, None]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "the kubelet cannot be reached"]
    kubelet.stop()
    (directory / "kubelet.sock").unlink(missing_ok=True)
    friendly = Kubelet(directory)
    assert link.tick() is Step.REGISTER
    friendly.stop()


def test_in_the_end_the_socket_is_removed(links, kubelet, directory):
    link = links()
    running = threading.Thread(target=link.run)
    running.start()
    kubelet.registered.get(timeout=20)
    link.stop()
    running.join(20)
    assert not running.is_alive()
    assert not (directory / "nvidia-gpu.sock").exists()
