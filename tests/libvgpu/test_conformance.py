"""Programs must not notice the limiter. Each of these fails with HAMi-core 8f3a89c, on the same fake driver."""

import pytest

from testing.limiter.rig import MIB

LIMIT = 2048 * MIB


@pytest.fixture
def client(rig):
    rig.limit()
    return rig.client().start()


def test_free_of_stream_ordered_memory(client, rig):
    assert client.do(f"alloc async 0 {MIB}") == 0
    assert client.do("free plain 0") == 0
    client.do("sync")
    assert rig.machine.used() == 0


def test_stream_ordered_free_of_plain_memory(client, rig):
    assert client.do(f"alloc plain 0 {MIB}") == 0
    assert client.do("free async 0") == 0
    assert rig.machine.used() == 0


def test_allocation_from_a_pool_is_limited(client):
    client.do("defaultpool 0 0")
    assert [client.do(f"alloc pool {n} {256 * MIB} 0") for n in range(40)] == [0] * 8 + [2] * 32


@pytest.mark.parametrize("how", ["dlsym", "procaddr"])
def test_per_thread_variant_is_limited(rig, how):
    rig.limit()
    client = rig.client(how).start()
    assert [client.do(f"alloc async_ptsz {n} {256 * MIB}") for n in range(10)] == [0] * 8 + [2] * 2


def test_per_thread_launch_reaches_the_per_thread_stream(rig):
    rig.limit()
    log = rig.folder / "log"
    client = rig.client("procaddr", FAKE_CUDA_LOG=str(log)).start()
    assert client.do("launch ptsz idle 1") == 0
    assert client.do(f"alloc async_ptsz 0 {MIB}") == 0
    lines = log.read_text().splitlines()
    assert "cuLaunchKernel_ptsz per-thread" in lines
    assert "cuMemAllocFromPoolAsync per-thread" in lines


def test_managed_allocations_of_several_processes_hold_the_limit(rig):
    rig.limit()
    clients = [rig.client(FAKE_CUDA_ALLOC_US="300").start() for _ in range(6)]
    for _ in range(5):
        for client in clients:
            client.send(f"alloc managed 0 {600 * MIB}")
        granted = [client for client in clients if client.answer() == [0]]
        assert 1 <= len(granted) <= 3
        for client in granted:
            assert client.do("free plain 0") == 0
    assert rig.machine.peak() <= LIMIT


def test_process_that_was_killed_inside_an_update_holds_up_nobody(client, rig):
    """The sequence number of its slot is odd for ever."""
    slot = rig.region.slots()[0]
    rig.region.write(1856 + 1960 * slot.number + 1936, 7, "<Q")
    answers, times = zip(
        *map(rig.client().timed, ("init", "ctx 0", f"alloc plain 0 {MIB}")), strict=True
    )
    assert answers == (0, 0, 0)
    assert sum(one.asleep for one in times) < 1


def test_memory_info_takes_null(client):
    assert client.do("infonull") == [0, LIMIT, 0]


def test_umask_stays(rig):
    rig.limit()
    client = rig.client(within=("sh", "-c", 'umask 027; exec "$@"', "sh")).start()
    assert client.do(f"alloc plain 0 {MIB}") == 0
    assert client.do("umask") == 0o027


def test_signal_handlers_stay(client):
    client.do("launch plain idle 10")
    assert client.do("handlers") == 0


def test_next_symbol_is_found_each_time(client):
    assert client.do("next") == 3


def test_total_memory_without_a_limit_is_the_cards(rig):
    assert rig.client().start().do("total 0") == [0, 16384 * MIB]


def test_names_that_only_begin_like_the_drivers_start_nothing(rig):
    rig.limit()
    client = rig.client()
    client.do("cuserid")
    assert not rig.path.exists()
    assert client.do("missing") == 0


def test_nothing_is_written_to_standard_output_nor_twice_to_standard_error(rig):
    rig.limit(log_level=3)
    client = rig.client(FAKE_CUDA_CTX_MIB="300").start()
    for number in range(20):
        client.do(f"alloc plain {number} {LIMIT}")
    lines = client.close().splitlines()
    assert len(lines) == len(set(lines))


def test_errors_leave_the_process_alive(rig):
    (rig.folder / "limits").write_text("nonsense\n")
    client = rig.client()
    client.do("init")
    client.do("alloc plain 0 1")
    assert client.do("umask") >= 0
