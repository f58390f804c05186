"""Processes that are suspended and woken by CUDA's checkpoints, beside others of the same container."""

import os

import pytest

from testing.cases import cases
from testing.eventually import eventually
from testing.limiter.rig import MIB

LIMIT = 2048 * MIB
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
ILLEGAL_STATE, INVALID_VALUE, OUT_OF_MEMORY, NOT_READY, UNKNOWN = 401, 1, 2, 600, 999
PLAIN = ("lock", "checkpoint"), ("restore", "unlock")
OWN_STORAGE = ("lock", "copy", "complete"), ("fetch", "complete", "unlock")


def steps(client, target, *names):
    """What each step answers that *client* takes with *target*."""
    return [client.do(f"suspend {name} {target.process.pid} 0") for name in names]


def state(client, target):
    result, number = client.do(f"state {target.process.pid}")
    assert result == 0
    return number


def free(client):
    return client.do("info")[1]


@pytest.fixture
def pair(rig):
    """Two processes of a container: the first has 1,536 of 2,048 MiB."""
    rig.limit()
    one, other = rig.client().start(), rig.client().start()
    assert one.do(f"alloc plain 0 {1536 * MIB}") == 0
    return one, other


@cases(
    "suspend, wake",
    ("by the driver", *PLAIN),
    ("with storage of the caller's own", *OWN_STORAGE),
)
@pytest.mark.sanitized
def test_memory_of_a_suspended_process_is_free_for_others(rig, pair, suspend, wake):
    one, other = pair
    assert other.do(f"alloc plain 0 {1024 * MIB}") == OUT_OF_MEMORY
    assert set(steps(other, one, *suspend)) == {0}
    assert free(other) == LIMIT
    assert other.do(f"alloc plain 0 {1024 * MIB}") == 0
    assert other.do("free plain 0") == 0
    assert set(steps(other, one, *wake)) == {0}
    assert (free(one), free(other)) == (512 * MIB, 512 * MIB)
    assert rig.machine.peak() <= LIMIT


def test_memory_that_the_caller_copies_counts_until_it_has(pair):
    one, other = pair
    assert steps(other, one, "lock", "copy") == [0, 0]
    assert free(other) == 512 * MIB
    assert steps(other, one, "complete") == [0]
    assert free(other) == LIMIT


def test_process_that_does_not_fit_stays_suspended_until_there_is_room(rig, pair):
    one, other = pair
    steps(other, one, "lock", "checkpoint")
    assert other.do(f"alloc plain 0 {1024 * MIB}") == 0
    assert steps(other, one, "restore") == [OUT_OF_MEMORY]
    assert state(other, one) == CHECKPOINTED
    assert free(other) == 1024 * MIB
    assert other.do("free plain 0") == 0
    assert steps(other, one, "restore", "unlock") == [0, 0]
    assert one.do(f"alloc plain 1 {512 * MIB}") == 0
    assert one.do("alloc plain 2 4096") == OUT_OF_MEMORY


def test_process_that_the_card_has_no_room_for_does_not_count(rig):
    """The limit would have let it."""
    rig.limit({"memory": 16384 * MIB})
    one, other = rig.client().start(), rig.client().start()
    stranger = rig.client(preload=False).start()
    assert one.do(f"alloc plain 0 {8192 * MIB}") == 0
    steps(other, one, "lock", "checkpoint")
    assert stranger.do(f"alloc plain 0 {12288 * MIB}") == 0
    assert steps(other, one, "restore") == [OUT_OF_MEMORY]
    assert other.do("total 0") == [0, 16384 * MIB]
    assert [slot.status for slot in rig.region.slots()] == [2, 1]
    stranger.close()
    assert steps(other, one, "restore", "unlock") == [0, 0]
    assert [slot.status for slot in rig.region.slots()] == [1, 1]


def test_restore_that_fails_for_good_counts(rig, pair):
    """Nobody knows what is on the card then."""
    one, _ = pair
    other = rig.client(FAKE_CUDA_RESTORE="fails").start()
    assert steps(other, one, "lock", "checkpoint", "restore") == [0, 0, UNKNOWN]
    assert state(other, one) == FAILED
    assert free(other) == 512 * MIB


@cases(
    "before, step, error",
    ("checkpoint of a running process", (), "checkpoint", ILLEGAL_STATE),
    ("restore of a running process", (), "restore", ILLEGAL_STATE),
    ("restore of a locked process", ("lock",), "restore", ILLEGAL_STATE),
    ("a second lock", ("lock",), "lock", ILLEGAL_STATE),
    ("unlock of a suspended process", ("lock", "checkpoint"), "unlock", ILLEGAL_STATE),
    ("a second checkpoint", ("lock", "checkpoint"), "checkpoint", ILLEGAL_STATE),
)
def test_step_out_of_order_changes_nothing(rig, pair, before, step, error):
    one, other = pair
    steps(other, one, *before)
    counted = free(other)
    assert steps(other, one, step) == [error]
    assert free(other) == counted


def test_process_that_uses_no_gpu_is_the_drivers_matter(pair):
    _, other = pair
    assert other.do(f"suspend restore {os.getpid()} 0") == INVALID_VALUE
    assert other.do(f"suspend checkpoint {os.getpid()} 0") == INVALID_VALUE


def test_process_that_suspends_itself(rig):
    rig.limit()
    one, other = rig.client().start(), rig.client().start()
    assert one.do(f"alloc plain 0 {1536 * MIB}") == 0
    assert steps(one, one, "lock", "checkpoint") == [0, 0]
    assert other.do(f"alloc plain 0 {1024 * MIB}") == 0
    assert steps(one, one, "restore") == [OUT_OF_MEMORY]
    assert other.do("free plain 0") == 0
    assert steps(one, one, "restore", "unlock") == [0, 0]
    assert free(one) == 512 * MIB


def test_suspended_process_that_is_killed_leaves_nothing(rig, pair):
    one, other = pair
    steps(other, one, "lock", "checkpoint")
    one.kill()
    assert other.do(f"alloc plain 0 {LIMIT}") == 0
    assert other.do("alloc plain 1 4096") == OUT_OF_MEMORY
    assert rig.region.total() == LIMIT


def test_process_that_was_woken_without_the_limiter_counts_from_its_next_request_on(rig, pair):
    """From the host, where the limiter is not."""
    one, other = pair
    steps(other, one, "lock", "checkpoint")
    assert free(other) == LIMIT
    host = rig.client(preload=False)
    assert steps(host, one, "restore", "unlock") == [0, 0]
    assert one.do("alloc plain 1 4096") == 0
    assert free(other) == 512 * MIB - 4096


def test_caller_that_has_not_initialized_cuda(rig):
    rig.limit()
    one, caller = rig.client().start(), rig.client()
    assert one.do(f"alloc plain 0 {1536 * MIB}") == 0
    assert steps(caller, one, "lock", "checkpoint") == [0, 0]
    assert rig.client().start().do(f"alloc plain 0 {LIMIT}") == 0
    assert steps(caller, one, "restore") == [OUT_OF_MEMORY]


def test_memory_that_two_processes_share_counts_for_the_one_that_is_awake(rig):
    """Its exporter counts it, until it is suspended; then its importer does."""
    rig.limit()
    one, other, third = (rig.client().start() for _ in range(3))
    assert one.do(f"alloc plain 0 {1024 * MIB}") == 0
    assert one.do("ipc 0") == 0
    assert other.do(f"ipctold {one.do('ipctell')}") == 0
    assert other.do("ipcopen 1") == 0
    assert free(third) == 1024 * MIB
    steps(third, one, "lock", "checkpoint")
    assert free(third) == 1024 * MIB
    steps(third, other, "lock", "checkpoint")
    assert free(third) == LIMIT


def test_monitors_see_the_region_as_before(rig, pair):
    """HAMi's number for a suspended process; its counters stay what they were."""
    one, other = pair
    steps(other, one, "lock", "checkpoint")
    slot, _ = rig.region.slots()
    assert (slot.pid, slot.status, slot.totals[0]) == (one.process.pid, 2, 1536 * MIB)


# -- suspended in the middle of something

HELD_UP_S = 1.5
"""Seconds for which a process waits at most for locks that others hold, in several requests together."""


@cases(
    "point, request_",
    ("before it publishes what it asks for", 40, f"alloc plain 0 {512 * MIB}"),
    ("before it asks the driver", 41, f"alloc plain 0 {512 * MIB}"),
    ("before it publishes what it has freed", 43, "free plain 0"),
    ("after it has", 44, "free plain 0"),
)
@pytest.mark.parametrize("goes_on", ["asleep", "awake"])
@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_process_that_is_suspended_in_the_middle_of_a_request(rig, point, request_, goes_on):
    """Its thread goes on while it is suspended, as far as the driver lets it, or when it is awake again."""
    rig.limit()
    waits, other = rig.folder / "waits", rig.client().start()
    one = rig.client(VGPU_TEST_WAIT_POINT=str(point), VGPU_TEST_WAIT_FILE=str(waits)).start()
    if request_.startswith("free"):
        assert one.do(f"alloc plain 0 {512 * MIB}") == 0
    one.send(request_)
    eventually(waits.exists, "the process is at the point")
    assert steps(other, one, "lock", "checkpoint") == [0, 0]
    if goes_on == "asleep":
        waits.unlink()
    answer, times = other.timed(f"alloc plain 0 {LIMIT}")
    assert answer == 0
    assert times.asleep < HELD_UP_S
    assert other.do("free plain 0") == 0
    assert steps(other, one, "restore", "unlock") == [0, 0]
    if goes_on == "awake":
        waits.unlink()
    assert one.answer() == [0]
    assert rig.region.total() == rig.machine.used()
    assert free(other) == LIMIT - rig.machine.used()


@pytest.mark.parametrize("point", [30, 22, 31])
@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_process_that_is_stopped_while_it_holds_the_lock_of_the_region(rig, point):
    """As by a checkpoint that stops its threads. What a dead process had is free as soon as it goes on."""
    rig.limit()
    waits, other, dead = rig.folder / "waits", rig.client().start(), rig.client().start()
    assert dead.do(f"alloc plain 0 {1536 * MIB}") == 0
    one = rig.client(VGPU_TEST_WAIT_POINT=str(point), VGPU_TEST_WAIT_FILE=str(waits)).start()
    dead.kill()
    one.send(f"alloc plain 0 {LIMIT}")
    eventually(waits.exists, "the process is at the point")
    answers, times = zip(
        *(other.timed(f"alloc plain {number} {256 * MIB}") for number in range(4)), strict=True
    )
    assert answers[:2] == (0, 0)
    assert sum(one.asleep for one in times) < HELD_UP_S
    waits.unlink()
    assert one.answer() == [OUT_OF_MEMORY]
    for number in range(4):
        other.do(f"free plain {number}")
    assert one.do(f"alloc plain 0 {LIMIT}") == 0


@cases(
    "point",
    ("counted again, not yet restored", 90),
    ("restored, not yet asked for", 93),
)
@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_caller_that_is_killed_while_it_wakes_a_process(rig, point):
    """What is unclear counts; whoever comes next finishes it."""
    rig.limit()
    one, other = rig.client().start(), rig.client().start()
    assert one.do(f"alloc plain 0 {1536 * MIB}") == 0
    assert steps(other, one, "lock", "checkpoint") == [0, 0]
    victim = rig.client(VGPU_TEST_POINT=str(point)).start()
    with pytest.raises(EOFError):
        victim.do(f"suspend restore {one.process.pid} 0")
    assert free(other) == 512 * MIB
    if state(other, one) == CHECKPOINTED:
        assert steps(other, one, "restore") == [0]
    assert steps(other, one, "unlock") == [0]
    assert free(one) == 512 * MIB


@pytest.mark.parametrize("rig", ["points"], indirect=True)
def test_caller_that_is_killed_while_it_suspends_a_process(rig):
    """It is off the card, and still counts: others may have less than they could, never more."""
    rig.limit()
    one, other = rig.client().start(), rig.client().start()
    assert one.do(f"alloc plain 0 {1536 * MIB}") == 0
    victim = rig.client(VGPU_TEST_POINT="92").start()
    victim.do(f"suspend lock {one.process.pid} 0")
    with pytest.raises(EOFError):
        victim.do(f"suspend checkpoint {one.process.pid} 0")
    assert free(other) == 512 * MIB
    assert steps(other, one, "restore", "unlock") == [0, 0]


def test_processes_that_are_suspended_again_and_again_beside_one_that_allocates(rig):
    """Never more than the limit is on the card, and nothing is counted in the end."""
    rig.limit()
    judge = rig.client().start()
    busy = [rig.client(FAKE_CUDA_FAST="1").start() for _ in range(3)]
    for number, client in enumerate(busy):
        for order in (f"churn 4000 {512 * MIB} {number + 1}", "sync", "defaultpool 0 0", "trim 0"):
            client.send(order)
    for round_ in range(60):
        target = busy[round_ % 2]
        assert judge.do(f"suspend lock {target.process.pid} 0") == 0
        assert judge.do(f"suspend checkpoint {target.process.pid} 0") == 0
        while judge.do(f"suspend restore {target.process.pid} 0"):
            pass
        assert judge.do(f"suspend unlock {target.process.pid} 0") == 0
    for client in busy:
        assert client.answer()[0] > 0
        assert [client.answer() for _ in range(3)] == [[0]] * 3
    assert rig.machine.peak() <= LIMIT
    assert free(judge) == LIMIT
