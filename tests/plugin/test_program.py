"""The process: its parts together, and what signals do to it."""

import json
import queue
import signal
import threading
from dataclasses import replace

import grpc
import pytest
from pytest import param

from hami.errors import ClusterError, HamiError
from hami.model import Node
from hami.plugin.program import Readiness, DevicePluginProgram, serve
from hami.plugin.settings import read_plugin_settings
from tests.fake_cluster import FakeCluster
from tests.plugin.kubelet import calling
from tests.plugin.stage import LOCK, A, asking, lock_of, placed, share

CARDS = "cards: [{uuid: GPU-a, memory: 81920}, {uuid: GPU-b, memory: 81920}]"
REGISTER = "hami.io/node-nvidia-register"
ONE = placed(asking(), shares=[[share(A, 1000)]])


class Cluster(FakeCluster):
    """One that says when the node was written."""

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
    """Those of a node with two cards that stand in a file."""
    def make(cards=CARDS, **given):
        (directory / "cards.yaml").write_text(cards)
        return read_plugin_settings({
            "node": "n1", "mock_devices": str(directory / "cards.yaml"), "split_count": 2,
            "kubelet_socket": str(directory / "kubelet.sock"), "hook_path": str(directory / "hook")} | given, {})
    return make


@pytest.fixture
def run(settings, cluster):
    """Starts services, which end with the test."""
    started = []

    def run(**given):
        service = DevicePluginProgram(settings(**given), cluster=cluster)
        service.start()
        started.append(service)
        return service
    yield run
    for service in started:
        service.stop(last=False)


def test_cards_reach_the_kubelet_and_the_node(run, kubelet, cluster, directory):
    service = run()
    assert cluster.written.acquire(timeout=20)
    assert kubelet.registered.get(timeout=20).resource_name == "nvidia.com/gpu"
    kubelet.listen()
    assert set(kubelet.heard()) == {"GPU-a-0", "GPU-a-1", "GPU-b-0", "GPU-b-1"}
    service.stop(last=True)
    assert kubelet.heard() is None
    assert not (directory / "nvidia-gpu.sock").exists()
    assert '"id":"GPU-a"' in cluster.nodes["n1"].annotations[REGISTER]


@pytest.mark.parametrize("ending", [param(False, id="while it runs"), param(True, id="when it ends at once")])
def test_the_lock_is_released_after_the_kubelet_has_its_answer(run, kubelet, cluster, directory, ending):
    cluster.put_pod(ONE)
    cluster.put_node(replace(cluster.nodes["n1"], annotations={LOCK: lock_of(ONE)}))
    released = threading.Event()
    cluster.on_call = lambda call: call.method == "annotate_node" and LOCK in call.annotations and released.set()
    source = directory / "limiter"
    source.mkdir()
    (source / "libvgpu.so").write_text("")
    service = run(cards=f"cards: [{{uuid: {A}, memory: 81920}}]", library_source=str(source))
    kubelet.registered.get(timeout=20)
    with calling(directory / "nvidia-gpu.sock") as plugin:
        plugin.allocate([f"{A}-0"])
    if ending:
        service.stop(last=True)
    assert released.wait(20)
    assert LOCK not in cluster.nodes["n1"].annotations


def test_what_the_names_stand_for_is_written_before_the_kubelet_is_told(run, kubelet, directory):
    libraries = directory / "driver/usr/lib64"
    libraries.mkdir(parents=True)
    (libraries / "libcuda.so.570.1").touch()
    run(list_strategies=("cdi-cri",), cdi_root=str(directory / "cdi"),
        driver_root_in_container=str(directory / "driver"))
    kubelet.registered.get(timeout=20)
    found = json.loads((directory / "cdi/k8s.device-plugin.nvidia.com-gpu.json").read_text())
    assert [device["name"] for device in found["devices"]] == ["GPU-a", "0", "GPU-b", "1", "all"]
    assert found["containerEdits"]["mounts"][0]["hostPath"] == "/usr/lib64/libcuda.so.570.1"


@pytest.mark.parametrize("given", [{"cdi_root": "", "list_strategies": ("cdi-cri",)}, {"list_strategies": ("envvar",)}])
def test_specifications_that_are_somebody_else_s_are_left_alone(run, kubelet, directory, given):
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


def test_instances_that_somebody_has_cut_are_offered_beside_the_cards(run, kubelet, directory):
    run(cards=CUT, mig_strategy="mixed")
    assert {kubelet.registered.get(timeout=20).resource_name for _ in range(3)} == {
        "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb.me"}
    kubelet.listen("nvidia-mig-1g.10gb.sock")
    assert kubelet.heard() == {"MIG-1": "Healthy", "MIG-2": "Healthy"}
    with calling(directory / "nvidia-mig-1g.10gb.sock") as plugin:
        (answer,) = plugin.allocate(["MIG-2"]).container_responses
        assert (dict(answer.envs), list(answer.mounts)) == ({"NVIDIA_VISIBLE_DEVICES": "MIG-2"}, [])
        with pytest.raises(grpc.RpcError, match="not on this node: MIG-3"):
            plugin.allocate(["MIG-3"])
    (directory / "cards.yaml").write_text(CUT.replace("81920\n", "81920\n  health: XID 79\n"))
    assert kubelet.heard() == {"MIG-1": "Unhealthy", "MIG-2": "Unhealthy"}


def test_cards_that_are_all_cut_alike_are_offered_as_one_resource(run, kubelet, cluster):
    run(cards=CUT.partition("- {uuid: GPU-b")[0].replace("3g.40gb+me", "1g.10gb"), mig_strategy="single")
    assert kubelet.registered.get(timeout=20).resource_name == "nvidia.com/gpu"
    kubelet.listen()
    assert set(kubelet.heard()) == {"MIG-1", "MIG-2", "MIG-3"}
    assert REGISTER not in cluster.nodes["n1"].annotations, "HAMi's scheduler has no part in them"


def test_cards_that_are_all_cut_while_they_are_served_leave_their_place_for_good(run, kubelet, directory):
    cut = CUT.partition("- {uuid: GPU-b")[0].replace("3g.40gb+me", "1g.10gb")
    run(cards=cut.replace("enabled: true", "enabled: false"), mig_strategy="single")
    assert kubelet.registered.get(timeout=20).resource_name == "nvidia.com/gpu"
    (former,) = [thread for thread in threading.enumerate() if thread.name == "kubelet"]
    (directory / "cards.yaml").write_text(cut)
    former.join(20)
    assert not former.is_alive()
    assert kubelet.registered.get(timeout=20).resource_name == "nvidia.com/gpu"
    kubelet.listen()
    assert set(kubelet.heard()) == {"MIG-1", "MIG-2", "MIG-3"}


def test_health_in_the_file_reaches_the_kubelet(run, kubelet, directory):
    run()
    kubelet.registered.get(timeout=20)
    kubelet.listen()
    assert set(kubelet.heard().values()) == {"Healthy"}
    (directory / "cards.yaml").write_text(CARDS.replace("81920}]", "81920, health: XID 79}]"))
    assert kubelet.heard()["GPU-b-0"] == "Unhealthy"


def test_cards_that_are_put_in_are_offered_within_seconds_not_rounds(run, kubelet, cluster, directory):
    run()
    kubelet.registered.get(timeout=20)
    kubelet.listen()
    assert len(kubelet.heard()) == 4
    (directory / "cards.yaml").write_text(CARDS.replace("]", ", {uuid: GPU-c, memory: 81920}]"))
    assert set(kubelet.heard()) > {"GPU-c-0", "GPU-c-1"}
    while '"id":"GPU-c"' not in cluster.nodes["n1"].annotations[REGISTER]:
        assert cluster.written.acquire(timeout=20)


@pytest.mark.parametrize("last, wished, stays", [(True, True, False), (False, True, True), (True, False, True)])
def test_the_node_is_left_clean_if_that_is_wished_and_it_is_the_end(run, cluster, last, wished, stays):
    service = run(unregister_on_stop=wished)
    assert cluster.written.acquire(timeout=20)
    service.stop(last=last)
    assert (REGISTER in cluster.nodes["n1"].annotations) is stays


def test_what_another_plugin_has_registered_in_its_place_stays(run, kubelet, cluster):
    old = run(unregister_on_stop=True)
    kubelet.registered.get(timeout=20)
    run()
    kubelet.registered.get(timeout=20)
    assert cluster.written.acquire(timeout=20)
    old.stop(last=True)
    assert REGISTER in cluster.nodes["n1"].annotations


def test_it_lacks_nothing_once_the_kubelet_knows_of_the_cards(settings, cluster, kubelet):
    service = DevicePluginProgram(settings(), cluster=cluster)
    service.start()
    kubelet.registered.get(timeout=20)
    service.stop(last=False)
    assert service.unready_reason() == ""


@pytest.mark.parametrize("cards, says", [(CARDS, "the kubelet's socket is missing"), ("cards: []", "")])
def test_a_kubelet_that_is_away_is_lacked_where_there_are_cards(run, directory, cards, says):
    service = run(cards=cards)
    while service.unready_reason() == "not registered with the kubelet yet":
        pass  # until the first look
    assert service.unready_reason() == says


def test_a_node_without_cards_is_not_offered_to_the_kubelet(run, kubelet):
    service = run(cards="cards: []")
    service.stop(last=True)
    assert kubelet.registered.empty()


def test_without_a_kubelet_socket_the_cards_are_the_node_s_only(run, cluster, directory):
    service = run(kubelet_socket="")
    service.stop(last=True)
    assert not (directory / "nvidia-gpu.sock").exists()


@pytest.mark.parametrize("given, says", [
    ({"imex_required": True, "imex_channels": (0,), "dev_root": "/nowhere"}, "--imex-required: .*channel0 is missing"),
    ({"library_source": "/nowhere"}, "cannot install the limiter"),
    ({"list_strategies": ("cdi-cri",), "driver_root_in_container": "/nowhere"}, "/nowhere: no libcuda.so"),
    ({"cards": "cards: 1"}, "cards.yaml: cards: expected a list"),
    ({"cards": CUT, "mig_strategy": "single"}, "card GPU-b is not in MIG mode, while others are"),
])
def test_a_start_that_cannot_be_is_refused_with_the_reason(settings, cluster, given, says):
    with pytest.raises(HamiError, match=says):
        DevicePluginProgram(settings(**given), cluster=cluster).start()


def test_without_a_driver_the_start_fails_or_the_node_has_no_cards(settings, cluster, monkeypatch):
    import pynvml

    def absent():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    bare = replace(settings(), mock_devices="")
    with pytest.raises(HamiError, match="no NVIDIA driver available"):
        DevicePluginProgram(bare, cluster=cluster)
    mixed = replace(bare, fail_on_init_error=False, mig_strategy="mixed",
                    config=replace(bare.config, list_strategies=("cdi-cri",)))
    service = DevicePluginProgram(mixed, cluster=cluster)
    service.start()
    service.stop(last=True)
    assert cluster.nodes["n1"].annotations == {}


# ---- signals


class Program:
    """What would be served; *story* is what happened."""

    def __init__(self, story, settings, fails=False):
        self._story, self._settings, self._fails = story, settings, fails

    def start(self):
        self._story.append(f"start {self._settings}")
        if self._fails:
            raise ClusterError("away")

    def unready_reason(self):
        return f"a kubelet for {self._settings}"

    def stop(self, *, last):
        self._story.append(f"stop {self._settings}{' for good' if last else ''}")


class Signals(queue.SimpleQueue):
    """Signals in their order; ``None`` is a wait that ended without one."""

    def __init__(self, *numbers):
        self._numbers = list(numbers)
        self.patience = []

    def get(self, timeout=None):
        self.patience.append(timeout)
        if (number := self._numbers.pop(0)) is None:
            raise queue.Empty
        return number


def lived(*numbers, fresh=(), failing=()):
    """What happened, from the settings ``first`` on, and how long each signal was waited for."""
    story, signals, fresh = [], Signals(*numbers), list(fresh)

    def read():
        if isinstance(answer := fresh.pop(0), Exception):
            raise answer
        return answer
    status = serve("first", read, make=lambda settings: Program(story, settings, settings in failing), signals=signals,
                   on_started=lambda: story.append("settled"))
    assert status == 0
    return story, signals.patience


TERM, HUP = signal.SIGTERM, signal.SIGHUP


class Asking(Signals):
    """The same; how ready it is by then is noted each time."""

    def __init__(self, *numbers):
        super().__init__(*numbers)
        self.readiness = Readiness()
        self.found = [self._page()]

    def get(self, timeout=None):
        self.found.append(self._page())
        return super().get(timeout)

    def _page(self):
        page = self.readiness.page("")
        return page.status, b"".join(page.slices).decode()


def test_how_ready_it_is_follows_what_is_served():
    signals = Asking(None, HUP, TERM)
    fails = ["first"]

    def make(settings):
        return Program([], settings, fails and fails.pop() == settings)
    status = serve("first", lambda: "second", make=make, signals=signals, readiness=signals.readiness,
                   on_started=lambda: None)
    assert status == 0
    assert signals.found == [(503, "starting\n"), (503, "start failed: away\n"), (503, "a kubelet for first\n"),
                             (503, "a kubelet for second\n")]


def test_what_lacks_nothing_is_ready():
    readiness = Readiness()
    readiness.follow(lambda: "")
    assert (readiness.page("").status, list(readiness.page("").slices)) == (200, [b"ok\n"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_it_ends_when_told(number):
    assert lived(number) == (["start first", "settled", "stop first for good"], [None])


def test_a_hangup_starts_it_anew_with_what_the_files_say_now():
    story, _ = lived(HUP, TERM, fresh=["second"])
    assert story == ["start first", "settled", "stop first", "start second", "settled", "stop second for good"]


def test_settings_that_cannot_be_read_are_not_taken():
    story, _ = lived(HUP, TERM, fresh=[HamiError("a typing error")])
    assert story == ["start first", "settled", "stop first for good"]


def test_a_start_that_failed_is_tried_again():
    story, patience = lived(None, TERM, failing=["first"])
    assert story == ["start first", "start first"]
    assert patience == [30.0, 30.0]


def test_a_hangup_makes_good_a_start_that_failed():
    story, patience = lived(HUP, TERM, fresh=["second"], failing=["first"])
    assert story == ["start first", "start second", "settled", "stop second for good"]
    assert patience == [30.0, None]
