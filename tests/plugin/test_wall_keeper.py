"""The driver's limits of containers that run: measured, repaired, resized, and switched off where the driver cannot."""

import time
from dataclasses import replace

import pynvml
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hami.codec.pods import ContainerRuns, NodePod
from hami.devices.config import BOTH, LIMITER, MEMORY_BY_BEST
from hami.devices.inventory import DeviceInventory
from hami.devices.memory_limits import NO_LIMIT, GroupLimits
from hami.errors import DriverError, HostError
from hami.node.host import MIN_AGE_S, Host
from hami.node.limits import ContainerLimits, DeviceLimit
from hami.node.wall_records import WallRecords
from hami.plugin.health_reporter import HealthReporter
from hami.plugin.metrics import PluginMetrics
from hami.plugin.wall_keeper import GROWING_S, DriverUse, WalledFiles, WallKeeper
from hami.plugin.wall_probe import PROBE_S, WallProbe
from testing.builders import pod
from testing.cards import cards, config
from testing.cases import cases
from testing.fake_cluster import FakeCluster
from testing.fake_nvml import FakeNvml, Gpu
from testing.plugin_stage import A, B

GIB = 1 << 30
ID = "ab" * 32
POD = pod(name="train", namespace="team")
UID = POD.ref.uid


class Stage:
    """A node with two cards, on which the container ``main`` runs with 4 GiB of the first."""

    def __init__(self, folder, **fields):
        self.root = folder / "cgroup"
        self.group = self.root / "kubepods" / "pod1" / ID
        self.group.mkdir(parents=True)
        (self.root / "cgroup.controllers").write_text("cpu memory\n")
        self.nvml = FakeNvml(Gpu(A), Gpu(B))
        self.config = config(
            hook_path=str(folder), **{"memory_by": BOTH, "cgroup_root": f"{self.root}/"} | fields
        )
        self.age_s = 0.0  # of all files
        self.records = WallRecords(str(folder), now=lambda: time.time() + self.age_s)
        self.records.prepare()
        self.host = Host(self.config)
        self.time = 0.0
        self.opened = 0
        self.knows_pods = True
        self.cards = cards(A, B)
        self.probe = WallProbe(self.config, self.open, lambda: self.cards, clock=lambda: self.time)
        self.keeper = WallKeeper(
            "n1", self.probe, self.records, self.host, self.pods, clock=lambda: self.time
        )
        self.files = WalledFiles(self.host, self.keeper)
        self.record(f"group /kubepods/pod1/{ID}\nlimit {A}={4 * GIB}\n")
        self.host.prepare(UID, "main")
        self.write_limits(4)
        self.nvml.gpus[0].limits[str(self.group)] = (0, 4 * GIB)

    def open(self):
        self.opened += 1
        return GroupLimits(self.nvml)

    def pods(self):
        runs = ContainerRuns({ID: "main"})
        return [NodePod(POD, runs=runs)] if self.knows_pods else None

    def record(self, text, id=ID):
        (self.records.folder / id).write_text(text)

    def write_limits(self, gib):
        limits = ContainerLimits(devices=(DeviceLimit(A, gib * GIB, 100),))
        self.host.write_limits(UID, "main", "t", limits)

    def uses(self, gib):
        self.nvml.gpus[0].used_by[str(self.group)] = gib * GIB

    def resize(self, gib):
        return self.files.resize_limits(UID, "main", (DeviceLimit(A, gib * GIB, 100),))

    @property
    def limit(self):
        """Soft and hard limit in GiB; ``None`` without one."""
        found = self.nvml.gpus[0].limits.get(str(self.group))
        return found and tuple(size // GIB for size in found)

    @property
    def set_calls(self):
        return [call for call in self.nvml.calls if "SetMemoryLimits" in str(call)]


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


def test_what_the_driver_counts_is_measured(stage):
    stage.uses(3)
    stage.keeper.step()
    assert stage.keeper.uses() == (DriverUse(POD.ref, "main", A, 3 * GIB),)
    assert stage.keeper.repairs() == 0


@cases(
    "present, used, repaired",
    ("lost", None, 1, True),
    ("smaller", (0, 2), 1, False),
    ("larger", (0, 9), 1, False),
    ("a soft limit of somebody else", (1, 4), 1, True),
)
def test_a_limit_that_is_another_is_set_again(stage, present, used, repaired):
    del stage.nvml.gpus[0].limits[str(stage.group)]
    if present:
        stage.nvml.gpus[0].limits[str(stage.group)] = tuple(size * GIB for size in present)
    stage.uses(used)
    stage.keeper.step()
    assert stage.limit == (0, 4)
    assert stage.keeper.repairs() == int(repaired)


def test_a_limit_that_is_right_is_left_alone(stage):
    stage.keeper.step()
    before = len(stage.set_calls)
    stage.keeper.step()
    assert len(stage.set_calls) == before


def test_a_container_that_is_not_reported_yet_keeps_the_limits_of_its_start(stage):
    stage.knows_pods = False
    stage.write_limits(6)
    stage.keeper.step()
    assert stage.limit == (0, 4)
    stage.knows_pods = True
    stage.keeper.step()
    assert stage.limit == (0, 6)


def test_growing_raises_the_driver_before_the_limiter(stage):
    order = []
    stage.host.resize_limits = lambda uid, name, sizes: order.append(stage.limit)
    stage.resize(8)
    assert order == [(0, 8)]
    stage.keeper.step()  # the limiter has not followed yet
    assert stage.limit == (0, 8)
    stage.time += GROWING_S
    stage.keeper.step()  # it never did
    assert stage.limit == (0, 4)


def test_shrinking_lowers_the_driver_once_the_container_uses_no_more(stage):
    stage.uses(3)
    stage.resize(2)
    for used, limit in ((3, 4), (2, 2)):
        stage.uses(used)
        stage.keeper.step()
        assert stage.limit == (0, limit)


def test_a_container_does_not_grow_where_the_driver_does_not_let_it(stage):
    stage.nvml.fail("nvmlDeviceSetMemoryLimits_v1", pynvml.NVML_ERROR_NO_PERMISSION)
    stage.probe.reason_off()  # as if the right had been lost after that
    stage.nvml.heal()
    stage.time += PROBE_S
    assert stage.probe.reason_off() == ""
    stage.nvml.fail("nvmlDeviceSetMemoryLimits_v1", pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(HostError, match="cannot be raised: .*only root may set limits"):
        stage.resize(8)
    assert [limit.memory for limit in stage.host.limits(UID, "main")] == [4 * GIB]


def test_a_group_that_is_gone_is_forgotten(stage):
    stage.group.rmdir()
    stage.keeper.step()
    assert stage.records.ids() == []
    assert stage.keeper.uses() == ()


@pytest.mark.parametrize("knows_pods", [True, False])
def test_records_are_swept_where_the_driver_cannot_either(stage, knows_pods):
    """Before all pods are known, no record is taken for one of a container that is gone."""
    stage.probe.switch_off("why")
    stage.record("group \n", id="cd")
    stage.age_s = 2 * MIN_AGE_S
    stage.knows_pods = knows_pods
    stage.keeper.step()
    assert stage.records.ids() == ([ID] if knows_pods else [ID, "cd"])


def test_one_record_that_cannot_be_read_does_not_stop_the_others(stage, caplog):
    stage.record("group /../../etc\n", id="00")
    del stage.nvml.gpus[0].limits[str(stage.group)]
    stage.keeper.step()
    stage.keeper.step()
    assert stage.limit == (0, 4)
    warnings = [record for record in caplog.records if "cannot be looked after" in record.message]
    assert len(warnings) == 1


def test_a_container_whose_limit_could_not_be_set_is_counted(stage, caplog):
    """The limiter still limits it: it may grow."""
    stage.record("group \nproblem cannot open libnvidia-ml.so.1\n")
    stage.keeper.step()
    assert stage.keeper.failed() == 1
    assert str(caplog.records[-1].error).endswith(f"{ID}: cannot open libnvidia-ml.so.1")
    assert stage.resize(8) is not None
    stage.record(f"group /kubepods/pod1/{ID}\nlimit {A}={4 * GIB}\n")
    stage.keeper.step()
    assert stage.keeper.failed() == 0


def test_a_container_that_has_ended_is_not_counted(stage):
    stage.record("group \n")
    stage.keeper.step()
    stage.knows_pods = False
    stage.keeper.step()
    assert stage.keeper.failed() == 0


@cases(
    "modes, reason",
    ((True, False), ""),
    ((True, True), "all cards are in MIG mode"),
)
def test_a_card_in_mig_mode_does_not_answer_for_the_others(stage, modes, reason):
    """The driver limits no memory of MIG devices."""
    stage.cards = [replace(card, mig=mig) for card, mig in zip(cards(A, B), modes, strict=True)]
    stage.nvml.fail("nvmlDeviceSetMemoryLimits_v1", pynvml.NVML_ERROR_NOT_SUPPORTED, 0)
    assert stage.probe.reason_off() == reason


@cases(
    "fields, reason",
    ({"memory_by": LIMITER}, "--memory-by=limiter"),
    ({"cgroup_root": "", "memory_by": MEMORY_BY_BEST}, "does not see the control groups"),
    ({"cgroup_root": "/nowhere"}, "/nowhere has no control groups of version 2"),
)
def test_a_node_that_is_not_to_or_cannot_is_off(tmp_path, fields, reason):
    stage = Stage(tmp_path, **fields)
    assert reason in stage.probe.reason_off()
    assert stage.opened == 0
    del stage.nvml.gpus[0].limits[str(stage.group)]
    stage.keeper.step()
    assert stage.resize(8) is not None
    assert stage.limit is None


@cases(
    "status, reason",
    (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "older than release 615"),
    (pynvml.NVML_ERROR_NOT_SUPPORTED, "memory accounting is off"),
    (pynvml.NVML_ERROR_NO_PERMISSION, "only root may set limits"),
    (pynvml.NVML_ERROR_UNKNOWN, "NVML says"),
    (pynvml.NVML_ERROR_NOT_FOUND, ""),
)
def test_the_driver_is_asked_now_and_then(stage, status, reason):
    stage.nvml.fail("nvmlDeviceSetMemoryLimits_v1", status)
    assert reason in stage.probe.reason_off()
    assert bool(stage.probe.reason_off()) == bool(reason)
    assert stage.probe.state() == (f"off: {stage.probe.reason_off()}" if reason else "misc")
    stage.nvml.heal()
    assert bool(stage.probe.reason_off()) == bool(reason)
    stage.time += PROBE_S
    assert stage.probe.reason_off() == ""


def test_the_controller_of_the_kernel_is_told(stage):
    (stage.root / "kubepods" / "dmem.max").write_text("")
    assert stage.probe.state() == "dmem"


def test_without_a_driver_it_is_off(stage):
    def fail():
        raise DriverError("no NVIDIA driver available")

    probe = WallProbe(stage.config, fail, lambda: cards(A))
    assert probe.state() == "off: no NVIDIA driver available"
    with pytest.raises(DriverError, match="no NVIDIA driver available"):
        probe.driver()


def test_it_can_be_switched_off(stage):
    stage.probe.switch_off("")
    assert stage.probe.reason_off() == ""
    stage.probe.switch_off("containers do not get their devices when they start")
    assert stage.probe.state().startswith("off: containers")


def test_the_metrics_of_the_plugin_have_it(stage):
    inventory = DeviceInventory()
    inventory.update(cards(A))
    reporter = HealthReporter(
        FakeCluster(), None, "n1", inventory, None, now=lambda: None, not_watched=""
    )
    registry = CollectorRegistry()
    PluginMetrics(registry).follow(reporter, stage.keeper)
    stage.uses(3)
    stage.keeper.step()
    labels = {"namespace": "team", "pod": "train", "container": "main", "device_uuid": A}
    assert registry.get_sample_value("hami_container_driver_bytes", labels) == 3 * GIB
    page = generate_latest(registry).decode()
    assert 'hami_memory_wall_info{backend="misc",node="n1"} 1.0' in page
    assert 'hami_memory_wall_repairs_total{node="n1"} 0.0' in page
    assert 'hami_memory_wall_failed_containers{node="n1"} 0.0' in page


def test_a_limit_of_none_is_none(stage):
    driver = GroupLimits(stage.nvml)
    stage.nvml.gpus[0].limits[str(stage.group)] = (0, NO_LIMIT)
    assert driver.read(A, str(stage.group)).hard is None
