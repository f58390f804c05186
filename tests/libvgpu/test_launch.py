"""Launches on a busy clock: limits that hold in real time, on every way to launch; what never waits.

The machine may have something else to do: what launches wait is read where the limiter counts it.
"""

import os
import select
import time

import pytest

from testing.cases import cases
from testing.limiter import rig as rigs
from testing.limiter.rig import MIB
from testing.limiter.shares import (
    SETTLE_S,
    Tenant,
    deciding,
    measured_shares,
    sampled,
    wrong_shares,
)

LIMIT = {"memory": 2048 * MIB}
CLOCK_REALTIME_COARSE = 5  # of Linux; Python has no name for it


def gets_thirty_percent(rig, load, clients, slack):
    """The container, of the card, while *clients* go on with a load."""
    for client in clients:
        client.do(f"load {load} 500")
    for client in clients:
        client.send(f"load {load} 60000")
    assert not wrong_shares([Tenant(rig.region, rig.machine)], [30], slack, 3)


@pytest.mark.parametrize("load, slack", [("flood", 4), ("medium", 6), ("mixed", 5)])
def test_limit_holds_in_real_time(rig, load, slack):
    rig.limit(LIMIT | {"cores": 30})
    gets_thirty_percent(rig, load, [rig.client().start()], slack)


def test_graph_counts_as_the_kernels_in_it(rig):
    rig.limit(LIMIT | {"cores": 30})
    client = rig.client().start()
    client.do("module")  # may not be loaded during a capture
    client.do("stream")
    client.do("capture")
    assert client.do("launch plain busy_2000 10") == 0  # not slowed down: nothing runs yet
    assert client.do("endcapture") == 0
    assert client.do("instantiate 0") == 0
    gets_thirty_percent(rig, "graph", [client], 6)


@pytest.mark.parametrize("cores", [90, 30])
def test_loading_of_code_is_not_charged(rig, cores):
    """200 kernels of 10 µs are loaded at their first launch, 5 ms each: the GPU does nothing meanwhile.

    20 rounds of all are 40 ms of the card; with their loading, it were a second. A program that is held up between two
    events of a measurement, on a busy machine, is charged that: then it is done again.
    """
    rig.limit(LIMIT | {"cores": cores})
    charged = []
    for _ in range(3):
        before = rig.bucket().charged if charged else 0.0
        rig.client(FAKE_CUDA_LAZY_US="5000").start().do("many busy_10 200 20")
        charged.append(rig.bucket().charged - before)
        if charged[-1] < 0.2:
            return
    raise AssertionError(charged)


@pytest.mark.parametrize("period", [2, 4, 16, 33])
def test_pattern_of_launches_of_one_kernel(rig, period):
    rig.limit(LIMIT | {"cores": 30})
    gets_thirty_percent(rig, f"period_{period}_2000_100", [rig.client().start()], 4)


def test_short_kernels_that_begin_late_count_as_they_are(rig):
    """An idle GPU begins a kernel some microseconds after its launch."""
    rig.limit(LIMIT | {"cores": 30})
    gets_thirty_percent(rig, "decode", [rig.client(FAKE_CUDA_LATENCY_US="4").start()], 4)


def test_what_the_card_needs_for_events_is_not_charged(rig):
    """Two events tell 1.3 us with nothing between them, on an H200."""
    rig.limit(LIMIT | {"cores": 30})
    gets_thirty_percent(rig, "busy_5", [rig.client(FAKE_CUDA_EVENT_NS="1300").start()], 4)


def test_second_gpu_is_limited_after_many_measurements_on_the_first(rig):
    rig.limit(LIMIT | {"cores": 30}, LIMIT | {"cores": 30})
    client = rig.client(FAKE_CUDA_DEVICES="2").start()
    client.do("many busy_1000 200 2")
    assert client.do("ctx 1") == 0
    client.do("load busy_2000 500")
    client.send("load busy_2000 60000")
    assert not wrong_shares([Tenant(rig.region, rig.machine, 1)], [30], 4, 3)


@pytest.mark.sanitized
def test_threads_launch_at_once_and_contexts_go(rig):
    rig.limit(LIMIT | {"cores": 90})
    client = rig.client().start()
    for _ in range(3):
        assert client.do("launchers 8 200") == 0
        assert (client.do("reset 0"), client.do("ctx 0")) == (0, 0)


@pytest.mark.parametrize("how", ["plain", "ptsz", "ex", "cooperative"])
@pytest.mark.parametrize("way", ["symbol", "dlsym", "procaddr"])
def test_every_launch_is_limited(rig, how, way):
    rig.limit(LIMIT | {"cores": 10})
    client = rig.client(way).start()
    client.do("stream")  # one that both kinds of launches use
    for _ in range(6):
        client.do(f"launch {how} busy_10000 1")
        client.do("sync")
    assert rig.bucket().waited > 0.1  # 60 ms of work


def test_processes_of_a_container_share_a_bucket(rig):
    rig.limit(LIMIT | {"cores": 30})
    gets_thirty_percent(rig, "flood", [rig.client().start() for _ in range(4)], 6)


@pytest.mark.parametrize("load", ["medium", "mixed"])
def test_two_containers_on_one_card_get_thirty_and_seventy(builds, load):
    """While both are busy."""
    variant = os.environ.get("HAMI_LIMITER_BUILD", "plain")
    with rigs.rig(builds, variant) as one, rigs.rig(builds, variant) as other:
        other.state = one.state
        one.limit(LIMIT | {"cores": 30})
        other.limit(LIMIT | {"cores": 70})
        for container in (one, other):
            client = container.client().start()
            assert client.do("launch plain idle 1") == 0
            client.send(f"load {load} 60000")
        tenants = [Tenant(container.region, container.machine) for container in (one, other)]
        time.sleep(1)
        alone = measured_shares(tenants, 2)
        with sampled(tenants):
            time.sleep(SETTLE_S)
            assert not wrong_shares(tenants, [30, 70], 6, 4)
    assert [share <= due + 6 for share, due in zip(alone, (30, 70), strict=True)] == [True, True], (
        alone
    )


@pytest.mark.sanitized
def test_capture_holds_the_programs_kernels_and_nothing_of_ours(rig):
    """And they wait for nothing: their graph will."""
    rig.limit(LIMIT | {"cores": 10})
    client = rig.client().start()
    client.do("module")  # may not be loaded during a capture
    client.do("stream")
    client.do("capture")
    assert client.do("launch plain busy_10000 60") == 0
    assert client.do("endcapture") == 0
    assert client.do("nodes") == 60
    assert (rig.bucket().charged, rig.bucket().waited) == (0, 0)


def test_capture_is_not_broken_by_measuring_on_another_stream(rig):
    """A query of an event in the wrong mode invalidates every capture of the thread."""
    rig.limit(LIMIT | {"cores": 90})
    client = rig.client().start()
    assert client.do("launch other busy_20000 3") == 0  # measurements are open from here on
    client.do("module")  # may not be loaded during a capture
    client.do("stream")
    client.do("capture")
    assert client.do("launch other busy_100 20") == 0
    time.sleep(0.1)
    assert client.do("launch other busy_100 20") == 0
    assert client.do("endcapture") == 0


@pytest.mark.sanitized
def test_launch_that_fails_costs_nothing(rig):
    """Autotuners try what does not work."""
    rig.limit(LIMIT | {"cores": 10})
    client = rig.client().start()
    assert client.do("fail 2000") == 2000
    assert rig.bucket().charged <= 0


@pytest.mark.sanitized
def test_driver_without_events_leaves_a_fixed_cost(rig):
    """A kernel then counts as 20 µs: 1,000 of them are 20 ms."""
    rig.limit(LIMIT | {"cores": 10})
    client = rig.client(FAKE_CUDA_NO_EVENTS="1").start()
    assert client.do("launch plain idle 1000") == 0
    assert rig.bucket().charged == pytest.approx(0.02)
    assert rig.bucket().waited > 0


def wait_of_launches(rig, client, count=100):
    """Seconds for which so many launches, of 2 ms each, wait for the limit."""
    before = rig.bucket().waited
    assert client.do(f"launch plain busy_2000 {count}") == 0
    client.do("sync")
    return rig.bucket().waited - before


def is_limited(rig, client):
    """At 20 percent, 0.2 s of work need a second."""
    waited = wait_of_launches(rig, client)
    assert waited == 0 or waited > 0.1
    return waited > 0


@cases("policy, limited", ("default", True), ("force", True), ("disable", False))
def test_policy(rig, policy, limited):
    rig.limit(LIMIT | {"cores": 20}, policy=policy)
    assert is_limited(rig, rig.client().start()) == limited


@pytest.mark.parametrize("cores, rounds", [(50, 30), (20, 15)])
def test_program_that_measures_its_kernels_sees_no_wait(rig, cores, rounds):
    """Autotuners choose by that. The limit holds all the same. While a program waits for a CPU, it measures that."""
    rig.limit(LIMIT | {"cores": cores})
    client = rig.client().start()
    client.do("launch plain busy_10000 3")
    client.do("sync")
    before = rig.bucket().waited
    (least, most), times = client.timed(f"autotune busy_10000 {rounds}")
    assert least >= 10000
    assert most < 13000 + times.ready * 1e6
    assert rig.bucket().waited - before > 0.1


def test_by_samples_of_nvml(rig):
    """What the monitor sees is charged afterwards, and nothing else."""
    rig.limit(LIMIT | {"cores": 30}, compute_by="nvml")
    client = rig.client(FAKE_CUDA_NO_EVENTS="1").start()
    tenants = [Tenant(rig.region, rig.machine)]
    client.do("launch plain idle 1")
    client.send("load busy_2000 60000")
    with sampled(tenants):
        time.sleep(SETTLE_S)
        assert not wrong_shares(tenants, [30], 6, 4)


def test_switched_off_by_the_operator(rig):
    rig.limit(LIMIT | {"cores": 10}, compute_by="off")
    assert not is_limited(rig, rig.client().start())


# -- floor and ceiling


@cases(
    "alone, beat, due",
    ("shared", False, 0, 30),
    ("alone", True, 0, 70),
    ("monitor has stopped", True, 1, 30),
)
def test_ceiling_counts_while_the_container_is_alone(rig, alone, beat, due):
    rig.limit(LIMIT | {"cores": 30, "cores-most": 70})
    client = rig.client().start()
    client.do("launch plain idle 1")
    rig.region.write(2_008_900, 0 if alone else 1)
    with (rig.folder / "0f0e.sm").open("r+b") as file:
        file.seek(16)
        file.write(beat.to_bytes(8, "little"))
    client.do("load busy_2000 300")
    client.send("load busy_2000 60000")
    time.sleep(0.8)
    assert not wrong_shares([Tenant(rig.region, rig.machine)], [due], 5, 2)


def test_limits_that_change_count_from_the_next_launch_on(rig):
    rig.limit(LIMIT)
    client = rig.client().start()
    assert not is_limited(rig, client)
    rig.limit(LIMIT | {"cores": 20})
    time.sleep(1.1)  # the file is looked at once in a second
    assert is_limited(rig, client)
    rig.limit(LIMIT | {"cores": 20}, compute_by="off")
    time.sleep(1.1)
    assert not is_limited(rig, client)


def test_container_alone_has_the_card_and_gives_it_back(builds):
    """Within about two seconds, on a machine that has nothing else to do: the benchmark measures that."""

    with rigs.rig(builds) as one, rigs.rig(builds) as other:
        other.state = one.state
        for container in (one, other):
            container.limit(LIMIT | {"cores": 30, "cores-most": 100})
        clients = [container.client().start() for container in (one, other)]
        for client in clients:
            client.do("launch plain idle 1")
        tenants = [Tenant(container.region, container.machine) for container in (one, other)]
        with deciding(tenants), sampled(tenants):
            clients[0].send("load busy_2000 60000")
            time.sleep(2)
            assert not wrong_shares(tenants, [100, 0], 10, 2)
            clients[1].send("load busy_2000 60000")
            time.sleep(2)
            assert not wrong_shares(tenants, [30, 30], 4, 3)


@pytest.mark.parametrize("policy, limited", [("default", False), ("force", True)])
def test_switch_of_the_monitor(rig, policy, limited):
    """It frees the container, unless the policy says that the limit always counts."""
    rig.limit(LIMIT | {"cores": 20}, policy=policy)
    client = rig.client().start()
    rig.region.write(2_008_900, 0)
    assert is_limited(rig, client) == limited


@pytest.mark.sanitized
@pytest.mark.parametrize("cores", [100, 30])
def test_monitor_blocks_and_releases(rig, cores):
    rig.limit(LIMIT | {"cores": cores})
    client = rig.client().start()
    client.do("launch plain idle 1")
    rig.region.write(2_008_904, -1)
    client.send("launch plain idle 1")
    assert not select.select([client.process.stdout], [], [], 0.3)[0]
    rig.region.write(2_008_904, 0)
    assert client.answer() == [0]
    assert rig.region.number(2_008_904) == 2


def test_monitor_that_has_stopped_blocks_nobody(rig):
    rig.limit(LIMIT)
    client = rig.client().start()
    client.do("launch plain idle 1")
    with (rig.folder / "0f0e.sm").open("r+b") as file:  # its last sign of life
        file.seek(16)
        file.write((1).to_bytes(8, "little"))
    rig.region.write(2_008_904, -1)
    assert client.do("launch plain idle 1") == 0


@pytest.mark.parametrize("cores", [100, 30])
def test_activity_is_told(rig, cores):
    """The monitor counts the word down; the next launch sets it again, and the time."""
    rig.limit(LIMIT | {"cores": cores})
    client = rig.client().start()
    assert (
        rig.region.number(2_008_912, "<Q") == 0
    )  # a process that has launched nothing is not active
    begun = int(time.clock_gettime(CLOCK_REALTIME_COARSE))  # that of C's time()
    client.do("launch plain idle 1")
    rig.region.write(2_008_904, 1)
    client.do("launch plain idle 1")
    assert rig.region.number(2_008_904) == 2
    assert begun <= rig.region.number(2_008_912, "<Q") <= time.time()


def test_process_that_uses_gpus_has_no_thread_of_ours(rig):
    rig.limit(LIMIT | {"cores": 30})
    client = rig.client().start()
    client.do("launch plain busy_100 50")
    with open(f"/proc/{client.process.pid}/status") as file:
        assert "Threads:\t1\n" in file.readlines()


def test_limit_of_a_killed_process_is_not_held_up(rig):
    rig.limit(LIMIT | {"cores": 30})
    one, two = rig.client().start(), rig.client().start()
    one.send("load flood 10000")
    time.sleep(0.2)
    one.kill()
    answer, times = two.timed("launch plain busy_100 10")
    assert answer == 0
    assert times.asleep < 0.5
