"""Rounds: what containers use, who waits, and what tenants do to their regions."""

import shutil
import signal
import subprocess
from dataclasses import replace

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms

from hami.codec.keys import MIG_ALLOCATIONS
from hami.codec.mig import MigAllocation, render_mig_allocations
from hami.model import Partition
from hami.monitor.feedback import BLOCKED, DENIED_S
from hami.monitor.totals import LONGEST_ROUND_S, UseTotals
from hami.monitor.usage import Source
from hami.node.instances import GivenInstance, render_instances
from hami.node.limits import ContainerLimits, DeviceLimit, render_limits
from hami.node.region_layout import CURRENT
from testing.builders import container
from testing.cases import cases
from testing.fake_nvml import A100, GIB, MIB, Gpu, Process
from testing.monitor_stage import CARD, OTHER, Stage, id_of, node_pod, uid_of
from testing.region_bytes import Process as Slot


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


# -- usage


def test_a_container_has_series_from_its_binding_on(stage):
    """It has not started: there is no region and no process."""
    stage.pods = [node_pod("a", CARD)]
    usage = stage.usage()["a"]
    assert (usage.used, usage.utilization, usage.device.memory, usage.device.cores) == (
        0,
        0,
        GIB,
        30,
    )
    assert (usage.counted, usage.host_memory) == (None, 0)


@cases(
    "pod",
    ("finished", node_pod("a", CARD, phase="Succeeded")),
    ("no devices", node_pod("a")),
    ("not asked for", node_pod("a", CARD, asked=0)),
)
def test_a_pod_without_devices_has_none(stage, pod):
    stage.pods = [pod]
    assert stage.usage() == {}


@cases(
    "has_claims, phase, shown",
    (True, "Running", True),
    (True, "Succeeded", False),
    (False, "Running", False),
)
def test_a_pod_with_claims_has_what_its_limits_say(stage, has_claims, phase, shown):
    pod = node_pod("a", CARD, phase=phase)
    stage.pods = [replace(pod, has_claims=has_claims, pod=replace(pod.pod, annotations={}))]
    limits = ContainerLimits(
        devices=(DeviceLimit(CARD, GIB, 30), DeviceLimit(OTHER, 2 * GIB, 100)), priority=0
    )
    stage.region("a")
    (stage.directory("a") / "limits").write_text(render_limits(limits, "/x"))
    containers = [report.container for report in stage.run().containers]
    assert [
        [(device.index, device.card, device.memory, device.cores) for device in container.devices]
        for container in containers
    ] == ([[(0, CARD, GIB, 30), (1, OTHER, 2 * GIB, 100)]] if shown else [])
    assert [container.priority for container in containers] == [0] * shown


@cases("other, used", ({"gpu": {"x"}}, 3 * GIB), ({"nic": {"x"}}, GIB), ({}, GIB))
def test_containers_that_share_requests_are_one(stage, other, used):
    """What both use counts, and it has ended when both have."""
    alone = node_pod("a", CARD, ended=True)
    beside = container(name="beside")
    stage.pods = [
        replace(
            alone,
            has_claims=True,
            claims={"main": {"gpu": {"x"}}, "beside": other},
            pod=replace(alone.pod, annotations={}, containers=(*alone.pod.containers, beside)),
            runs=replace(alone.runs, ids={**alone.runs.ids, id_of("a", 1): "beside"}),
        )
    ]
    (stage.directory("a") / "limits").write_text(
        render_limits(ContainerLimits(devices=(DeviceLimit(CARD, 4 * GIB, 30),)), "/x")
    )
    stage.work("a", 4007, GIB)
    stage.work("a", 4008, 2 * GIB, run=1)
    (report,) = stage.run().containers
    assert (report.devices[0].used, report.container.has_ended) == (used, other != {"gpu": {"x"}})


def test_a_pod_whose_claim_hami_made_has_what_its_limits_say(stage):
    pod = node_pod("a", CARD)
    stage.pods = [replace(pod, has_claims=True, pod=replace(pod.pod, claim="hami-1"))]
    stage.region("a")
    (stage.directory("a") / "limits").write_text(
        render_limits(
            ContainerLimits(devices=(DeviceLimit(OTHER, 2 * GIB, 100),), priority=0), "/x"
        )
    )
    (report,) = stage.run().containers
    assert [device.card for device in report.container.devices] == [OTHER]


def test_limits_without_a_device_are_those_of_a_container(stage):
    pod = node_pod("a")
    stage.pods = [replace(pod, has_claims=True, pod=replace(pod.pod, annotations={}))]
    (stage.directory("a") / "limits").write_text(
        render_limits(ContainerLimits(devices=(), priority=0), "/x")
    )
    (report,) = stage.run().containers
    assert (report.container.devices, report.container.priority) == ((), 0)


@pytest.mark.parametrize("content", [None, b"no limits", bytes([0xFF])])
def test_a_pod_with_claims_of_other_drivers_has_none(stage, content):
    pod = node_pod("a")
    stage.pods = [replace(pod, has_claims=True, pod=replace(pod.pod, annotations={}))]
    if content is not None:
        (stage.directory("a") / "limits").write_bytes(content)
    assert stage.usage() == {}


def test_the_series_end_with_the_pod(stage):
    stage.pods = [node_pod("a", CARD)]
    assert stage.usage().keys() == {"a"}
    stage.pods = []
    assert stage.usage() == {}


def test_pods_that_are_not_known_yet(stage):
    stage.pods = None
    assert stage.run().containers is None


def test_the_driver_is_believed(stage):
    """A whole card, without limiter; a process of another pod and one outside of pods count for nobody."""
    stage.pods = [node_pod("a", CARD, memory_mib=8192), node_pod("b", OTHER)]
    stage.work("a", 4007, 3 * GIB, 40)
    stage.work("a", 4008, GIB, 25)
    stage.work("stranger", 4009, 2 * GIB, 10)
    found = stage.usage()
    assert (found["a"].used, found["a"].memory_source, found["a"].utilization) == (
        4 * GIB,
        Source.HOST,
        65,
    )
    assert (found["b"].used, found["b"].utilization) == (0, 0)


def test_the_use_of_containers_adds_up(stage):
    stage.pods = [node_pod("a", CARD), node_pod("b", OTHER)]
    stage.work("a", 4007, GIB, 40)
    stage.run()
    stage.work("a", 4008, GIB, 25)
    stage.run()
    stage.clock += 60  # the driver has hung: nobody knows what happened meanwhile
    totals = {key[0]: each for (key, _), each in stage.run().totals.items()}
    seconds = 1 + LONGEST_ROUND_S
    assert totals == {
        uid_of("a"): UseTotals(
            compute_s=pytest.approx(0.65 * seconds),
            memory_byte_s=2 * GIB * seconds,
            given_byte_s=GIB * seconds,
        ),
        uid_of("b"): UseTotals(compute_s=0, memory_byte_s=0, given_byte_s=GIB * seconds),
    }
    stage.pods.pop()
    assert len(stage.run().totals) == 1


def test_no_use_is_added_up_where_nobody_knows_it(stage):
    stage.pods = [node_pod("a", "GPU-9")]
    stage.run()
    assert list(stage.run().totals.values()) == [UseTotals()]


def test_a_container_that_started_again_and_an_init_container_are_found(stage):
    stage.pods = [node_pod("a", CARD, run=1)]
    stage.work("a", 4007, GIB, run=1)
    stage.work("a", 4008, GIB, run=0)  # the status does not have it any more
    assert stage.usage()["a"].used == GIB


def test_the_region_says_how_memory_is_used_and_what_it_does_not_count(stage):
    stage.pods = [node_pod("a", CARD)]
    stage.region("a", processes=[Slot(used={0: 400 * MIB}, sm={0: 30})])
    stage.work("a", 4007, 500 * MIB, 33)
    usage = stage.usage()["a"]
    assert (usage.used, usage.counted, usage.uncounted, usage.utilization) == (
        500 * MIB,
        400 * MIB,
        100 * MIB,
        33,
    )
    assert (usage.context, usage.module, usage.buffer) == (100 * MIB, 50 * MIB, 250 * MIB)
    assert (usage.is_over_limit, usage.throttled) == (False, 0.0)


def test_a_container_above_its_limit(stage):
    stage.pods = [node_pod("a", CARD)]
    stage.work("a", 4007, GIB + 1)
    assert stage.usage()["a"].is_over_limit


def lost(stage):
    stage.has_driver = False


def silent(stage):
    stage.work("a", 4007, None)
    stage.nvml.fail("nvmlDeviceGetProcessUtilization", pynvml.NVML_ERROR_NOT_SUPPORTED)


def foreign(stage):
    """The driver shows PIDs that are not those of the host."""
    stage.nvml.gpus[0].processes.append(Process(1, 400 * MIB, 30))


@pytest.mark.parametrize("driver", [lost, silent, foreign])
def test_where_the_driver_does_not_say_the_region_counts(stage, driver):
    stage.pods = [node_pod("a", CARD)]
    stage.region("a", processes=[Slot(used={0: 400 * MIB}, sm={0: 30})])
    driver(stage)
    usage = stage.usage()["a"]
    assert (usage.used, usage.memory_source) == (400 * MIB, Source.REGION)
    assert (usage.utilization, usage.utilization_source) == (30, Source.REGION)


@pytest.mark.parametrize("ended", [False, True])
def test_what_killed_processes_have_left_in_the_region_does_not_count(stage, ended):
    """The region has their host PIDs, which the monitor wrote when the driver saw them."""
    stage.pods = [node_pod("a", CARD, ended=ended)]
    stage.region(
        "a", processes=[Slot(host_pid=0 if ended else 4007, used={0: 400 * MIB}, sm={0: 30})]
    )
    usage = stage.usage()["a"]
    assert (usage.used, usage.memory_source, usage.counted) == (0, Source.HOST, 400 * MIB)


def test_numbers_of_a_region_are_clamped(stage):
    stage.pods = [node_pod("a", CARD)]
    stage.region(
        "a",
        processes=[Slot(used={0: 2**63}, sm={0: 2**63}), Slot(pid=2, used={0: 2**63})],
        last_kernel=2**64 - 1,
    )
    (report,) = stage.run().containers
    (usage,) = report.devices
    assert (usage.used, usage.utilization, report.last_kernel_s) == (8 * GIB, 100, 0.0)


def test_a_region_that_names_other_devices_says_nothing(stage):
    stage.pods = [node_pod("a", CARD)]
    stage.region("a", uuids=(OTHER,), processes=[Slot(used={0: GIB})])
    assert stage.usage()["a"].counted is None


@pytest.fixture
def divided(tmp_path):
    """A node with the MIG instance MIG-1, on which a process of the pod a works."""
    gpu = Gpu(CARD, mig=True, profiles=A100)
    stage = Stage(tmp_path, gpu)
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start=0, size=1)
    made = stage.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 19, pynvml.byref(placement))
    stage.nvml.nvmlGpuInstanceCreateComputeInstance(made, 50)
    stage.work("a", 4007)
    gpu.processes.clear()
    gpu.made[1].processes = [Process(4007, 2 * GIB)]
    return stage


def test_a_mig_instance(divided):
    one = node_pod("a", CARD, memory_mib=9728, cores=15)
    text = render_mig_allocations(
        [
            MigAllocation(
                container=0,
                device=0,
                gpu=CARD,
                partition=Partition(0, 1, "1g.10gb", ("MIG-1", "1", "0")),
            )
        ]
    )
    divided.pods = [
        replace(
            one, pod=replace(one.pod, annotations={**one.pod.annotations, MIG_ALLOCATIONS: text})
        )
    ]
    usage = divided.usage()["a"]
    assert (usage.device.uuid, usage.device.card, usage.used, usage.memory_source) == (
        "MIG-1",
        CARD,
        2 * GIB,
        Source.HOST,
    )


@cases(
    "has_claims, content, shown",
    (True, None, True),
    (False, None, False),
    (True, b"[{}]", False),
    (True, b"\xff", False),
)
def test_a_mig_instance_of_a_claim(divided, has_claims, content, shown):
    pod = node_pod("a")
    divided.pods = [replace(pod, has_claims=has_claims, pod=replace(pod.pod, annotations={}))]
    given = GivenInstance(
        card=CARD,
        uuid="MIG-1",
        profile="1g.10gb",
        start=0,
        size=1,
        gpu_instance=1,
        compute_instance=0,
        memory_mib=9728,
        cores=15,
    )
    (divided.directory("a") / "instances").write_bytes(content or render_instances([given]))
    found = divided.usage()
    assert bool(found) is shown
    for usage in found.values():
        device = usage.device
        assert (device.uuid, device.card, device.memory, device.cores, device.identity) == (
            "MIG-1",
            CARD,
            9728 * MIB,
            15,
            ("MIG-1", "1", "0"),
        )
        assert (usage.used, usage.memory_source) == (2 * GIB, Source.HOST)


def test_an_allocation_that_cannot_be_read_does_not_hide_the_others(stage, caplog):
    broken = node_pod("b", CARD)
    stage.pods = [
        node_pod("a", CARD),
        replace(
            broken,
            pod=replace(
                broken.pod, annotations={key: "GPU-0,x:" for key in broken.pod.annotations}
            ),
        ),
    ]
    assert stage.usage().keys() == {"a"}
    assert stage.usage().keys() == {"a"}
    assert stage.rounds.errors()["allocation"] == 2
    assert len([one for one in caplog.records if "round step failed" in one.message]) == 1


# -- who waits


def share_a_card(stage, *, ours=True):
    stage.pods = [node_pod("high", CARD, priority=0), node_pod("low", CARD, priority=1)]
    stage.region("high", priority=0, processes=[Slot()], ours=ours)
    stage.region("low", priority=1, processes=[Slot()], ours=ours)
    stage.nvml.gpus[0].processes.append(
        Process(9999, 0, 0)
    )  # of no container, so the driver's account does not decide


def test_nobody_waits_for_work_that_the_driver_does_not_see(stage):
    """A container could write of work without end."""
    stage.pods = [node_pod("high", CARD, priority=0), node_pod("low", CARD, priority=1)]
    for name, priority in (("high", 0), ("low", 1)):
        stage.region(name, priority=priority, processes=[Slot()])
    seen = []
    for _ in range(int(DENIED_S) + 5):
        stage.launch("high")
        stage.run()
        seen.append(stage.recent("low"))
    assert seen == [BLOCKED] * int(DENIED_S) + [0] * 5
    stage.work("high", 4007, GIB, 60)
    stage.run()
    assert stage.recent("low") == BLOCKED


def test_the_lower_waits_while_the_higher_works(stage):
    share_a_card(stage)
    seen = []
    for second in range(12):
        stage.launch("low")
        if 3 <= second < 8:
            stage.launch("high")
        stage.run()
        seen.append(stage.recent("low"))
    assert seen == [1] * 3 + [-1] * 5 + [0] + [1] * 3


def test_rounds_that_follow_closely_do_not_release_anybody(stage):
    """Changes of pods cause rounds; a launch of the last second is seen by the first of them only."""
    share_a_card(stage)
    stage.launch("high")
    stage.run()
    for _ in range(4):
        stage.clock -= 0.8
        stage.run()
        assert stage.recent("low") == -1
    stage.run()
    assert stage.recent("low") == 0


def test_a_higher_one_that_ends_frees_the_lower_at_once(stage):
    share_a_card(stage)
    stage.launch("high")
    stage.run()
    assert stage.recent("low") == -1
    stage.launch("high")  # its last one, before it was killed
    stage.pods[0] = node_pod("high", CARD, priority=0, ended=True)
    stage.run()
    assert stage.recent("low") == 0


def test_a_container_without_limiter_counts_by_what_the_driver_sees(stage):
    stage.pods = [node_pod("high", CARD, priority=0), node_pod("low", CARD, priority=1)]
    stage.region("low", processes=[Slot()])
    stage.work("high", 4007, GIB, 60)
    report = {one.container.pod.name: one for one in stage.run().containers}
    assert stage.recent("low") == -1
    assert (report["low"].is_blocked, report["high"].is_blocked) == (True, False)


def test_hami_s_library_shows_by_the_time_of_its_last_kernel_that_it_works(stage):
    """It does not write the other word while its limit does not count."""
    share_a_card(stage, ours=False)
    for _ in range(10):
        stage.put("high", 2008912, int(stage.now), "<Q")
        stage.run()
        assert (stage.recent("low"), stage.switch("low")) == (-1, 1)


def test_the_limit_counts_while_two_share(stage):
    stage.pods = [node_pod("a", CARD), node_pod("b", CARD)]
    for name in "ab":
        stage.region(name, processes=[Slot()])
    switches = []
    for second in range(12):
        stage.launch("a")
        if second < 3:
            stage.launch("b")
        stage.run()
        switches.append((stage.switch("a"), stage.switch("b")))
    assert switches == [(1, 1)] * 5 + [(0, 0)] * 7  # two seconds and a half after the last sharing


def test_the_monitor_tells_limiters_that_it_lives(stage):
    stage.pods = [node_pod("a", CARD)]
    stage.region("a")
    stage.run()
    heartbeat = int.from_bytes((stage.directory("a") / "t.sm").read_bytes()[16:24], "little")
    assert heartbeat == 1_000_000_000_000


def test_the_last_thing_is_to_free_those_that_wait(stage):
    share_a_card(stage)
    stage.launch("high")
    stage.run()
    stage.rounds.release()
    assert [(stage.recent(name), stage.switch(name)) for name in ("high", "low")] == [
        (0, 1),
        (0, 1),
    ]


def test_without_feedback_nothing_is_written(tmp_path):
    stage = Stage(tmp_path, writes=False)
    share_a_card(stage)
    stage.launch("high")
    before = {path: path.read_bytes() for path in tmp_path.rglob("t.*")}
    stage.run()
    stage.rounds.release()
    assert {path: path.read_bytes() for path in tmp_path.rglob("t.*")} == before


# -- what processes are told


def test_processes_are_told_their_host_pids_and_their_utilization(stage):
    stage.pods = [node_pod("a", CARD)]
    stage.region("a", processes=[Slot(pid=7), Slot(pid=8, host_pid=1)])
    stage.work("a", 4007, GIB, 40, inner=7)
    stage.work("a", 4008, GIB, 20, inner=8)
    stage.run()
    assert [stage.number("a", 1856 + 1960 * slot + 4) for slot in (0, 1)] == [4007, 4008]
    assert [stage.number("a", 1856 + 1960 * slot + 1160 + 16, "<Q") for slot in (0, 1)] == [40, 20]
    assert stage.number("a", 1856 + 1952, "<Q") == 1_000_000_000_000


def test_a_process_of_another_container_is_told_to_nobody(stage):
    """It has the same PID in its container as one of ours in its own."""
    stage.pods = [node_pod("a", CARD), node_pod("b", CARD)]
    stage.region("a", processes=[Slot(pid=7)])
    stage.work("b", 4007, GIB, 40, inner=7)
    stage.run()
    assert stage.number("a", 1856 + 4) == 0
    assert stage.number("a", 1856 + 1160 + 16, "<Q") == 0


def test_two_processes_with_one_pid_are_not_told_apart(stage):
    stage.pods = [node_pod("a", CARD)]
    stage.region("a", processes=[Slot(pid=7)])
    for pid in (4007, 4008):
        stage.work("a", pid, GIB, 40, inner=7)
    stage.run()
    assert stage.number("a", 1856 + 4) == 0


# -- what tenants do


def tampered(report):
    return {what: count for (key, what), count in report.tampered.items()}


def test_a_container_that_frees_itself_is_blocked_again_and_counted(stage):
    share_a_card(stage)
    for _ in range(3):
        stage.launch("high")
        report = stage.run()
        assert stage.recent("low") == -1
        stage.put("low", 2008904, 2)
    assert tampered(report) == {"block": 2}


@cases("offset, kind, what", (1600, "<Q", "limit"), (2008908, "<i", "priority"))
def test_a_change_of_what_the_device_plugin_wrote_is_counted_once(stage, offset, kind, what):
    stage.pods = [node_pod("a", CARD)]
    stage.region("a", processes=[Slot()])
    assert tampered(stage.run()) == {}
    stage.put("a", offset, 77, kind)
    assert [tampered(stage.run()) for _ in range(3)] == [{what: 1}] * 3
    stage.region("a", processes=[Slot()])
    stage.run()
    stage.put("a", offset, 78, kind)
    assert tampered(stage.run()) == {what: 2}


def test_a_priority_in_the_region_changes_nothing(stage):
    share_a_card(stage)
    stage.put("low", 2008908, 0)
    stage.launch("high")
    stage.run()
    assert stage.recent("low") == -1


@pytest.fixture
def sleeping(tmp_path):
    """Starts a process that executes a copy of sleep; nobody can write to the copy meanwhile."""
    processes = []

    def start(path):
        shutil.copyfile(shutil.which("sleep"), path)
        path.chmod(0o777)
        processes.append(subprocess.Popen([path, "60"]))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_container_that_fills_the_disk_with_a_file_that_cannot_be_truncated_is_ended(
    stage, sleeping, tmp_path
):
    """The device plugin has set the file aside. All containers of the pod end: one can hand the file to another."""
    stage.pods = [node_pod("a", CARD), node_pod("b", CARD)]
    stage.pods[0].runs.ids["5" * 64] = "sidecar"
    holder = sleeping(stage.directory("a") / "t.cache.held")
    sidecar, neighbor = sleeping(tmp_path / "sidecar"), sleeping(tmp_path / "neighbor")
    stage.work("a", holder.pid)
    stage.work("b", neighbor.pid)
    stage.work("a", sidecar.pid)
    (stage.proc / str(sidecar.pid) / "cgroup").write_text(
        f"0::/kubepods/pod{uid_of('a')}/{'5' * 64}\n"
    )
    assert tampered(stage.run()) == {"disk": 1}
    assert [process.wait(20) for process in (holder, sidecar)] == [-signal.SIGKILL] * 2
    assert tampered(stage.run()) == {"disk": 1}, (
        "nobody holds the file any more: a container that starts again stays"
    )
    assert neighbor.poll() is None


def test_without_feedback_no_container_is_ended(tmp_path, sleeping):
    stage = Stage(tmp_path, writes=False)
    stage.pods = [node_pod("a", CARD)]
    holder = sleeping(stage.directory("a") / "t.cache.held")
    stage.work("a", holder.pid)
    assert tampered(stage.run()) == {}
    assert holder.poll() is None


def test_a_new_region_after_a_restart_is_no_tampering(stage):
    share_a_card(stage)
    stage.launch("high")
    stage.run()
    stage.region("low")  # as the device plugin clears it: the same file
    stage.launch("high")
    assert tampered(stage.run()) == {}


def test_a_hostile_file_is_logged_once_and_hurts_nobody_else(stage, caplog):
    stage.pods = [node_pod("a", CARD), node_pod("b", CARD)]
    stage.region("b", processes=[Slot(used={0: MIB})])
    for size in range(1, 4):  # it differs in each round
        (stage.directory("a") / "t.cache").write_bytes(b"x" * size)
        assert stage.usage()["b"].counted == MIB
    assert stage.rounds.errors()["region"] == 3
    assert len([one for one in caplog.records if "round step failed" in one.message]) == 1


@settings(max_examples=20)
@given(rng=randoms(use_true_random=True))
def test_rounds_survive_any_region(tmp_path_factory, rng):
    stage = Stage(tmp_path_factory.mktemp("stage"))
    share_a_card(stage)
    stage.work("low", 4007, GIB, 10)
    for _ in range(20):
        for _ in range(rng.randrange(20)):
            place = rng.choice((rng.randrange(12, 4000), rng.randrange(2008896, 2008920)))
            stage.put(
                rng.choice(("low", "high")), place, rng.choice((0, 255, rng.randrange(256))), "<B"
            )
        for one in stage.run().containers:
            for usage in one.devices:
                assert 0 <= usage.used <= 8 * GIB
                assert 0 <= usage.utilization <= 100
    assert stage.rounds.errors()["write"] == 0


def test_builders_name_pods_apart():
    assert uid_of("a") != uid_of("high") != uid_of("low")
    assert id_of("a") != id_of("b")


# -- what only the driver sees

FIRST_UNCOUNTED = 1856 + 8 + 40  # of the first slot and device
DEVICE_COUNT = CURRENT.device_count


def three_rounds(stage):
    for _ in range(3):
        stage.run()
    return stage.number("a", FIRST_UNCOUNTED, "<Q")


@pytest.fixture
def counting(tmp_path):
    """A process that counts 400 MiB, of which the driver sees 500."""
    stage = Stage(tmp_path, limits_uncounted=True)
    stage.pods = [node_pod("a", CARD)]
    stage.region("a", processes=[Slot(used={0: 400 * MIB})])
    stage.work("a", 4007, 500 * MIB)
    return stage


def test_the_least_of_three_rounds_is_added_to_what_a_container_counts(counting):
    assert [(counting.run(), counting.number("a", FIRST_UNCOUNTED, "<Q"))[1] for _ in range(3)] == [
        0,
        0,
        100 * MIB,
    ]
    counting.nvml.gpus[0].processes[0] = Process(4007, 450 * MIB)
    assert three_rounds(counting) == 50 * MIB
    counting.nvml.gpus[0].processes[0] = Process(4007, 600 * MIB)
    counting.run()
    assert counting.number("a", FIRST_UNCOUNTED, "<Q") == 50 * MIB


def test_nothing_is_added_while_a_process_is_not_known_to_both(counting):
    counting.work("a", 4008, 300 * MIB, inner=9)  # without the limiter, or not yet in the region
    assert three_rounds(counting) == 0


def test_a_container_that_changes_its_number_of_devices_ends_no_round(counting):
    three_rounds(counting)
    counting.put("a", DEVICE_COUNT, 2, "<Q")
    counting.run()
    assert counting.number("a", FIRST_UNCOUNTED, "<Q") == 0
    counting.put("a", DEVICE_COUNT, 1, "<Q")
    counting.run()
    assert three_rounds(counting) == 100 * MIB


def test_nothing_is_added_without_the_flag(stage):
    stage.pods = [node_pod("a", CARD)]
    stage.region("a", processes=[Slot(used={0: 400 * MIB})])
    stage.work("a", 4007, 500 * MIB)
    assert three_rounds(stage) == 0
