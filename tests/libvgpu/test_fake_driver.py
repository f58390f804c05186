"""The fake driver does what drivers do, and what the limiter must cope with: without the limiter."""

import time

import pytest

from testing.limiter.rig import MIB

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
REFUSED, LOST = 900, 901  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, …_INVALIDATED


@pytest.fixture
def bare(rig):
    return lambda **more: rig.client(preload=False, **more).start()


def asleep(client, command):
    """Seconds for which the program waits for the driver."""
    return client.timed(command)[1].asleep


@pytest.mark.parametrize("mode, refused", [(GLOBAL, True), (THREAD_LOCAL, True), (RELAXED, False)])
def test_own_capture_is_lost_by_what_could_disturb_it(bare, mode, refused):
    client = bare()
    client.do("stream")
    assert client.do(f"capture {mode}") == 0
    assert client.do("alloc plain 0 4096") == (REFUSED if refused else 0)
    assert client.do("endcapture") == (LOST if refused else 0)


@pytest.mark.parametrize("mode, refused", [(GLOBAL, True), (THREAD_LOCAL, False), (RELAXED, False)])
def test_capture_of_another_thread_is_lost_only_if_it_is_global(bare, mode, refused):
    client = bare()
    assert client.do(f"captureother {mode}") == 0
    assert client.do("alloc plain 0 4096") == (REFUSED if refused else 0)
    assert client.do("endother") == (LOST if refused else 0)


def test_first_launch_loads_code(bare, rig):
    client = bare(FAKE_CUDA_LAZY_US="500000", FAKE_CUDA_LAZY_KIB="1024")
    client.do("module")
    assert asleep(client, "launch plain idle 1") > 0.45
    assert asleep(client, "launch plain idle 1") < 0.25
    assert rig.machine.used() == MIB


def test_full_queue_makes_the_launch_wait(bare):
    """The last of 26 launches waits until ten kernels of 50 ms are done."""
    client = bare(FAKE_CUDA_QUEUE="16")
    begun = time.monotonic()
    assert asleep(client, "launch plain busy_50000 16") < 0.05
    client.do("launch plain busy_50000 10")
    assert time.monotonic() - begun > 0.5


def test_large_memory_takes_whole_pages(bare, rig):
    client = bare(FAKE_CUDA_PAGE_MIB="2")
    assert (client.do(f"alloc plain 0 {MIB}"), client.do(f"alloc plain 1 {MIB + 512}")) == (0, 0)
    assert rig.machine.used() == 3 * MIB
    assert (client.do("free plain 0"), client.do("free plain 1"), rig.machine.used()) == (0, 0, 0)


def test_heap_and_fifo_of_a_context_take_memory(bare, rig):
    client = bare()
    assert (client.do(f"setlimit 2 {40 * MIB}"), client.do(f"setlimit 1 {3 * MIB}")) == (0, 0)
    assert rig.machine.used() == 34 * MIB
    assert (client.do("release 0"), rig.machine.used()) == (0, 0)


def beside_a_neighbor(bare, kernel, rounds):
    """Microseconds that events tell of *kernel*, the least and the most, while another process keeps the card busy.

    All its work is queued before: one that has to wake up for more, on a busy machine, leaves the card to the client.
    """
    neighbor, client = bare(FAKE_CUDA_QUEUE="1000"), bare()
    client.do("launch plain idle 1")
    neighbor.do("launch plain busy_20000 1000")
    return client.do(f"autotune {kernel} {rounds}")


def test_event_also_measures_the_time_slices_of_others(bare, rig):
    """20 ms of work in slices of 2 ms, of which every other one is the neighbor's.

    A program that is held up between the first event and the launch measures more, so the most says nothing.
    """
    least, _ = beside_a_neighbor(bare, "busy_20000", 10)
    assert 37_000 <= least <= 41_000
    assert rig.machine.slices() >= 200


def test_kernel_within_a_time_slice_is_measured_as_it_is(bare):
    """The event before it is reached when the time slice begins, not when it is recorded.

    A program that is held up between the two, on a busy machine, measures that, too: then it is done again.
    """
    measured = [beside_a_neighbor(bare, "busy_1000", 10) for _ in range(3)]
    assert any(1000 <= least and most <= 1100 for least, most in measured), measured


def test_one_process_alone_has_the_card_all_the_time(bare):
    least, _ = bare().do("autotune busy_20000 5")
    assert 20_000 <= least < 25_000  # in slices, with pauses, it would be twice as long
