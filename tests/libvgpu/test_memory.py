"""Memory: the limit is exact on every path, what is freed is free again, and nobody sees more than the slice."""

import collections
import contextlib
import time

import pytest

from testing.cases import cases
from testing.limiter.layout import make_region
from testing.limiter.rig import MIB, uuid_of

LIMIT = 2048 * MIB
WAYS = ("symbol", "dlsym", "procaddr")
OUT_OF_MEMORY, NOT_PERMITTED = 2, 800
FREED_BY = {
    "create": "create",
    "external": "external",
    "array": "array",
    "array3d": "array",
    "mipmap": "mipmap",
}
PATHS = ("plain", "managed", "async", "async_ptsz", "pool", "pool_ptsz", "create", "external")


def free(client, kind, number):
    return client.do(f"free {FREED_BY.get(kind, 'plain')} {number}")


def pools(client):
    """Pool 0 is the device's own, pool 1 one that the client has made."""
    assert client.do("defaultpool 0 0") == 0
    assert client.do("newpool 1 0") == 0


@pytest.mark.sanitized
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", PATHS)
def test_limit_is_exact(rig, kind, how):
    rig.limit()
    client = rig.client(how).start()
    pools(client)
    second = 0 if kind == "create" else 1
    step = 2 * MIB if kind == "create" else 1
    assert client.do(f"alloc {kind} 0 {LIMIT} {second}") == 0
    assert client.do(f"alloc {kind} 1 {step} {second}") == OUT_OF_MEMORY
    assert client.do("info") == [0, 0, LIMIT]
    assert free(client, kind, 0) == 0
    assert (client.do("sync"), client.do("trim 0"), client.do("trim 1")) == (0, 0, 0)
    assert client.do(f"alloc {kind} 0 {LIMIT + step} {second}") == OUT_OF_MEMORY
    assert client.do(f"alloc {kind} 0 {LIMIT} {second}") == 0
    assert rig.machine.peak() == LIMIT


@pytest.mark.sanitized
@pytest.mark.parametrize("kind", ["array", "array3d", "mipmap", "pitch"])
def test_what_the_driver_lays_out_is_charged_as_it_lies(rig, kind):
    """A fake pitch has 512 bytes more than one would expect; arrays take whole 64 KiB."""
    rig.limit()
    client = rig.client(FAKE_CUDA_PITCH_EXTRA="512").start()
    assert client.do(f"alloc {kind} 0 1000 100") == 0
    used = rig.machine.used()
    assert used > 1000 * 100
    assert client.do("info")[1] == LIMIT - used
    assert free(client, kind, 0) == 0
    assert client.do("info")[1] == LIMIT
    granted = 0
    while client.do(f"alloc {kind} {granted} 65536 200") == 0:
        granted += 1
    assert granted > 2
    assert rig.machine.peak() <= LIMIT
    assert client.do("info")[1] == LIMIT - rig.machine.used()


@pytest.mark.sanitized
@pytest.mark.parametrize("size", [MIB, MIB + 1, 11 * MIB // 10, 2 * MIB, 2 * MIB + 1, 3 * MIB])
@pytest.mark.parametrize("kind", ["plain", "managed"])
def test_memory_of_more_than_one_mib_counts_in_pages_as_the_card_gives_it(rig, kind, size):
    rig.limit({"memory": 64 * MIB})
    client = rig.client().start()
    granted = 0
    while client.do(f"alloc {kind} {granted} {size}") == 0:
        granted += 1
        assert client.do("info")[1] == 64 * MIB - rig.machine.used()
    pages = 2 * MIB * -(-size // (2 * MIB)) if size > MIB else MIB
    assert granted == 64 * MIB // pages
    assert rig.machine.peak() <= 64 * MIB
    assert [client.do(f"free plain {number}") for number in range(granted)] == [0] * granted
    assert client.do("info")[1] == 64 * MIB


@pytest.mark.sanitized
@cases("told", ("context told", True), ("context measured", False))
@pytest.mark.parametrize(
    "function", ["cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", ""]
)
def test_threads_make_contexts_at_once(rig, function, told):
    """And may wait in the driver for one another. Of one device they make the same context, which counts once."""
    rig.limit(*[{"memory": LIMIT} | ({"context": 100 * MIB} if told else {})] * 2)
    client = rig.client(FAKE_CUDA_MEET=function, FAKE_CUDA_DEVICES="2", FAKE_CUDA_CTX_MIB="100")
    assert client.do("init") == 0
    assert (client.do("ctxboth 0 1"), client.do("releaseboth 0 1")) == (0, 0)
    for _ in range(2 if function else 20):
        assert client.do("ctxboth 0 0") == 0
        counted = rig.region.slots()[0].contexts
        assert counted[:2] == (100 * MIB, 0) or not told and counted[0] >= 100 * MIB
        assert client.do("releaseboth 0 0") == 0
        assert rig.region.slots()[0].contexts[:2] == (0, 0)


def test_pitched_memory_counts_in_pages(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do("alloc pitch 0 4096 300") == 0  # 1.2 MiB
    assert (client.do("info")[1], rig.machine.used()) == (LIMIT - 2 * MIB, 2 * MIB)
    assert (client.do("free plain 0"), client.do("info")[1]) == (0, LIMIT)


@pytest.mark.sanitized
@pytest.mark.parametrize("freed_by", ["plain", "async", "async_ptsz"])
@pytest.mark.parametrize("kind", ["plain", "managed", "async", "pool"])
def test_any_free_goes_with_any_allocation(rig, kind, freed_by):
    rig.limit()
    client = rig.client().start()
    pools(client)
    assert client.do(f"alloc {kind} 0 {MIB} 0") == 0
    assert client.do(f"free {freed_by} 0") == 0
    client.do("sync")
    client.do("trim 0")
    assert client.do("info")[1] == LIMIT
    assert rig.machine.used() == 0


@pytest.mark.sanitized
def test_unknown_pointer_is_the_drivers(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do("alloc plain 0 4096") == 0
    assert client.do("free plain 0") == 0
    assert client.do("free plain 0") == 1  # CUDA_ERROR_INVALID_VALUE
    assert client.do("free plain 5") == 0  # a null pointer
    assert client.do("info")[1] == LIMIT


def test_error_of_the_driver_passes_through_and_is_not_charged(rig):
    rig.limit()
    client = rig.client(FAKE_CUDA_TOTAL_MIB="1024").start()
    assert client.do(f"alloc plain 0 {1500 * MIB}") == OUT_OF_MEMORY
    assert client.do("alloc plain 0 0") == 1
    assert client.do("info") == [0, 1024 * MIB, 1024 * MIB]


@pytest.mark.sanitized
def test_context_is_charged_as_measured_once_and_returned(rig):
    rig.limit()
    client = rig.client(FAKE_CUDA_CTX_MIB="300").start()
    assert client.do("info")[1] == LIMIT - 300 * MIB
    assert client.do("ctx 0") == 0
    assert rig.region.slots()[0].contexts[0] == 300 * MIB
    assert client.do("release 0") == 0
    assert rig.region.total() == 300 * MIB
    assert client.do("release 0") == 0
    assert rig.region.total() == 0


@pytest.mark.sanitized
def test_context_counts_that_was_current_before_it_was_taken(rig):
    """So does the CUDA runtime, as seen on an H200 (driver 580)."""
    rig.limit()
    client = rig.client(FAKE_CUDA_CTX_MIB="300").start()
    assert client.do("release 0") == 0
    assert client.do("ctx 0") == 0
    assert client.do("info")[1] == LIMIT - 300 * MIB


@pytest.mark.parametrize("version", [2, 4])
def test_further_contexts_count_and_take_their_memory_with_them(rig, version):
    rig.limit()
    client = rig.client(FAKE_CUDA_CTX_MIB="100").start()
    assert client.do(f"create {version} 0") == 0
    assert client.do("info")[1] == LIMIT - 200 * MIB
    assert client.do(f"alloc plain 0 {512 * MIB}") == 0
    assert client.do("destroy 0") == 0
    assert client.do("ctx 0") == 0
    assert client.do("info")[1] == LIMIT - 100 * MIB
    assert rig.machine.used() == 100 * MIB


def test_context_that_does_not_fit_is_refused_and_given_back(rig):
    rig.limit({"memory": 256 * MIB})
    client = rig.client(FAKE_CUDA_CTX_MIB="300")
    assert client.do("init") == 0
    assert client.do("ctx 0") == OUT_OF_MEMORY
    assert rig.machine.used() == 0
    assert rig.region.total() == 0


@pytest.mark.sanitized
def test_reset_returns_everything(rig):
    rig.limit()
    client = rig.client(FAKE_CUDA_CTX_MIB="100").start()
    assert client.do(f"alloc plain 0 {512 * MIB}") == 0
    assert client.do("reset 0") == 0
    assert rig.region.total() == 0


@pytest.mark.sanitized
def test_module_is_charged_as_measured(rig):
    rig.limit()
    client = rig.client(FAKE_CUDA_MODULE_MIB="64").start()
    assert client.do("module 64") == 0
    assert rig.region.slots()[0].modules[0] == 64 * MIB
    assert client.do("unload") == 0
    assert client.do("info")[1] == LIMIT
    assert client.do(f"alloc plain 0 {LIMIT - 62 * MIB}") == 0
    assert client.do("module 64") == OUT_OF_MEMORY
    assert rig.machine.used() == LIMIT - 62 * MIB


@contextlib.contextmanager
def busy_neighbor(rig):
    """Without a limiter: takes 6.4 GB a second, 64 MiB at a time, up to 8 GiB, and gives them back."""
    neighbor = rig.client(preload=False).start()
    neighbor.send(f"neighbor {64 * MIB} {8192 * MIB} 10000 60000")
    yield
    neighbor.kill()


@cases(
    "known, numbers",
    ("by the limits", {"context": 400 * MIB}, 0),
    ("by NVML, of the process", {}, 0),
    ("by NVML, of the process that is new", {}, 100000),
)
def test_context_of_a_known_size_is_charged_that_whatever_a_neighbor_does(rig, known, numbers):
    rig.limit({"memory": LIMIT, **known})
    with busy_neighbor(rig):
        for _ in range(3):
            client = rig.client(
                FAKE_CUDA_CTX_MIB="400",
                FAKE_CUDA_CTX_US="200000",
                FAKE_NVML_HOST_PIDS=str(numbers),
            ).start()
            assert client.do("info")[1] == LIMIT - 400 * MIB
            assert (client.do("release 0"), rig.region.total()) == (0, 0)


def test_context_is_measured_where_nvml_lists_processes_of_the_host(rig):
    rig.limit()
    client = rig.client(FAKE_CUDA_CTX_MIB="400", FAKE_NVML_HOST_PIDS="100000").start()
    assert client.do("info")[1] == LIMIT - 400 * MIB


def test_context_is_told_from_that_of_another_tenant_that_starts_meanwhile(rig):
    rig.limit()
    host = {"FAKE_CUDA_CTX_MIB": "400", "FAKE_NVML_HOST_PIDS": "100000"}
    client = rig.client(FAKE_CUDA_CTX_US="1000000", **host)
    assert client.do("init") == 0
    client.send("ctx 0")
    time.sleep(0.3)
    other = rig.client(preload=False, **host).start()
    assert other.do(f"alloc plain 0 {1500 * MIB}") == 0
    assert client.answer() == [0]
    assert client.do("info")[1] == LIMIT - 400 * MIB


def test_context_of_a_known_size_that_does_not_fit_is_not_made(rig):
    rig.limit({"memory": 256 * MIB, "context": 300 * MIB})
    client = rig.client(FAKE_CUDA_CTX_MIB="300")
    assert client.do("init") == 0
    assert client.do("ctx 0") == OUT_OF_MEMORY
    assert (rig.state.exists(), rig.region.total()) == (False, 0)  # the driver was not asked


def test_modules_that_are_loaded_lazily_take_nothing(rig):
    rig.limit()
    with busy_neighbor(rig):
        client = rig.client(FAKE_CUDA_LAZY="1").start()
        before = rig.region.total()
        assert client.do("modules 1000") == 0
        assert rig.region.total() == before


def test_module_takes_at_most_twice_its_image(rig):
    """More is what somebody else has taken meanwhile."""
    rig.limit()
    client = rig.client(FAKE_CUDA_MODULE_MIB="64").start()
    assert client.do("module 8") == 0
    assert 16 * MIB <= rig.region.total() < 17 * MIB


def test_context_whose_size_nobody_tells_is_reported_once(rig):
    rig.limit()
    client = rig.client(FAKE_CUDA_CTX_MIB="300", FAKE_NVML_NO_MEMORY="1").start()
    assert client.do("info")[1] == LIMIT
    assert client.close().count("\n") == 1


@cases(
    "texture",
    ("float", 0x20),
    ("byte", 0x01),
    ("NV12", 0xB0),
    ("UNORM8", 0xC0),
    ("UNORM16x4", 0xC5),
)
def test_array_is_charged_as_its_format_lies(rig, texture):
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc texture 0 4096 {texture}") == 0
    assert client.do("info")[1] == LIMIT - rig.machine.used()


@pytest.mark.sanitized
def test_pool_is_charged_what_it_holds_in_reserve(rig):
    rig.limit()
    client = rig.client(FAKE_CUDA_POOL_CHUNK_MIB="32").start()
    pools(client)
    assert client.do("keep 0") == 0
    assert client.do(f"alloc async 0 {MIB}") == 0
    assert client.do("info")[1] == LIMIT - 32 * MIB
    assert client.do("free async 0") == 0
    assert client.do("info")[1] == LIMIT - 32 * MIB  # the pool keeps it
    assert client.do("trim 0") == 0
    assert client.do("info")[1] == LIMIT


def test_pool_serves_from_its_reserve_though_the_limit_is_reached(rig):
    rig.limit()
    client = rig.client().start()
    pools(client)
    client.do("keep 0")
    assert client.do(f"alloc async 0 {LIMIT}") == 0
    assert client.do("free async 0") == 0
    assert client.do(f"alloc async 0 {LIMIT // 2}") == 0
    assert rig.machine.peak() == LIMIT


@pytest.mark.parametrize("kind", ["plain", "create", "array"])
def test_reserve_of_a_pool_makes_room_for_others(rig, kind):
    rig.limit()
    client = rig.client().start()
    pools(client)
    client.do("keep 0")
    assert client.do(f"alloc async 0 {LIMIT}") == 0
    assert client.do("free async 0") == 0
    size = "65536 200" if kind == "array" else f"{LIMIT} 0"
    assert client.do(f"alloc {kind} 0 {size}") == 0


def calls_for_pairs(rig, **more):
    """Driver calls for 20 allocations from a pool with room, and as many releases; by name."""
    log = rig.folder / f"log{len(list(rig.folder.iterdir()))}"
    client = rig.client(FAKE_CUDA_LOG=str(log), **more).start()
    pools(client)
    assert (client.do("keep 0"), client.do(f"pairs async 3 {MIB} 0")) == (0, 0)
    before = len(log.read_text().splitlines())
    assert client.do(f"pairs async 20 {MIB} 0") == 0
    return collections.Counter(
        line for line in log.read_text().splitlines()[before:] if line.startswith("call ")
    )


def test_allocation_from_a_pool_with_room_asks_the_driver_nothing_more(rig):
    rig.limit()
    more = calls_for_pairs(rig) - calls_for_pairs(rig, preload=False)
    assert more.total() <= 1  # now and then the pool is looked at


def test_what_a_pool_gives_back_to_the_driver_is_free_again(rig):
    """It does so when it is synchronized, without notice."""
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc async 0 {512 * MIB}") == 0
    assert (client.do("free async 0"), client.do("sync")) == (0, 0)
    assert client.do("info")[1] == LIMIT


@pytest.mark.sanitized
def test_more_pools_than_the_limiter_remembers(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do("manypools 300 1") == 0
    assert client.do(f"pairs pool 100 {64 * MIB} 1") == 0
    assert client.do(f"alloc pool 0 {LIMIT} 1") == 0
    assert client.do(f"alloc pool 1 {MIB} 1") == OUT_OF_MEMORY
    assert (client.do("free async 0"), client.do("info")[1]) == (0, LIMIT)


def test_memory_of_a_stream_is_on_the_device_of_the_stream(rig):
    rig.limit({"memory": 1024 * MIB}, {"memory": 2048 * MIB})
    client = rig.client(FAKE_CUDA_DEVICES="2")
    assert (client.do("init"), client.do("ctx 1"), client.do("stream"), client.do("ctx 0")) == (
        0,
        0,
        0,
        0,
    )
    assert client.do(f"alloc async 0 {2048 * MIB}") == 0
    assert (rig.region.total(0), rig.region.total(1)) == (0, 2048 * MIB)
    assert client.do(f"alloc async 1 {2 * MIB}") == OUT_OF_MEMORY


def test_pool_of_managed_memory_counts(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do("managedpool 1") == 0
    assert client.do(f"alloc pool 0 {LIMIT} 1") == 0
    assert client.do(f"alloc pool 1 {2 * MIB} 1") == OUT_OF_MEMORY


@pytest.mark.sanitized
def test_pool_that_is_destroyed_is_charged_until_its_last_allocation(rig):
    rig.limit()
    client = rig.client().start()
    pools(client)
    assert client.do(f"alloc pool 0 {64 * MIB} 1") == 0
    assert client.do("nopool 1") == 0
    assert client.do("info")[1] == LIMIT - 64 * MIB
    assert client.do("free async 0") == 0
    assert client.do("info")[1] == LIMIT


@pytest.mark.sanitized
def test_physical_memory_is_charged_until_handles_and_mappings_are_gone(rig):
    rig.limit()
    client = rig.client().start()
    size = 64 * MIB
    assert client.do(f"alloc create 0 {size} 0") == 0
    assert client.do("map 0 1") == 0
    assert client.do("free create 0") == 0
    assert client.do("info")[1] == LIMIT - size == LIMIT - rig.machine.used()
    assert client.do("retain 1 2") == 0
    assert client.do("unmap 1") == 0
    assert client.do("info")[1] == LIMIT - size == LIMIT - rig.machine.used()
    assert client.do("free create 2") == 0
    assert client.do("info")[1] == LIMIT
    assert rig.machine.used() == 0


@pytest.mark.sanitized
def test_memory_of_graphs_is_charged_when_they_are_instantiated(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do(f"newgraph {512 * MIB}") == 0
    assert client.do("instantiate 0") == 0
    assert client.do("graphlaunch 0") == 0
    assert client.do("info")[1] == LIMIT - 512 * MIB == LIMIT - rig.machine.used()
    assert client.do(f"newgraph {LIMIT}") == 0
    assert client.do("instantiate 1") == OUT_OF_MEMORY
    assert client.do("graphdestroy 0") == 0
    assert client.do("info")[1] == LIMIT - 512 * MIB  # the driver keeps it for the next graph
    assert client.do("graphtrim") == 0
    assert client.do("info")[1] == LIMIT
    assert rig.machine.peak() == 512 * MIB


def test_memory_in_graphs_of_a_graph_is_charged(rig):
    rig.limit()
    client = rig.client().start()
    assert (
        client.do(f"newgraph {512 * MIB}"),
        client.do("childgraph"),
        client.do("childgraph"),
    ) == (0, 0, 0)
    assert client.do("instantiate 0") == 0
    assert client.do("info")[1] == LIMIT - 512 * MIB


HEAP, FIFO = 2, 1  # CU_LIMIT_…


@pytest.mark.sanitized
def test_heap_and_fifo_of_a_context_are_charged_beyond_the_usual(rig):
    rig.limit()
    client = rig.client().start()
    assert (client.do(f"setlimit {HEAP} {520 * MIB}"), client.do(f"setlimit {FIFO} {3 * MIB}")) == (
        0,
        0,
    )
    assert client.do("info")[1] == LIMIT - 514 * MIB == LIMIT - rig.machine.used()
    assert client.do(f"setlimit {HEAP} {4096 * MIB}") == OUT_OF_MEMORY
    assert client.do(f"setlimit {HEAP} {264 * MIB}") == 0
    assert client.do("info")[1] == LIMIT - 258 * MIB == LIMIT - rig.machine.used()
    assert (client.do("reset 0"), rig.region.total()) == (0, 0)


@pytest.mark.sanitized
def test_captured_allocation_takes_no_memory_until_its_graph_does(rig):
    rig.limit()
    client = rig.client().start()
    client.do("stream")
    assert client.do("capture") == 0
    assert client.do(f"alloc async 0 {512 * MIB}") == 0
    assert client.do("endcapture") == 0
    assert client.do("info")[1] == LIMIT
    assert client.do("instantiate 0") == 0
    assert client.do("info")[1] == LIMIT - 512 * MIB


@pytest.mark.parametrize("how", WAYS)
def test_all_questions_show_the_slice(rig, how):
    rig.limit()
    client = rig.client(how).start()
    assert client.do("total 0") == [0, LIMIT]
    assert client.do("info") == [0, LIMIT, LIMIT]
    assert client.do("infonull") == [0, LIMIT, 0]


def test_limit_above_the_card_shows_the_card(rig):
    rig.limit({"memory": 1 << 40})
    client = rig.client().start()
    assert client.do("total 0") == [0, 16384 * MIB]
    assert client.do("info") == [0, 16384 * MIB, 16384 * MIB]


def test_without_a_limit_all_is_the_drivers(rig):
    client = rig.client().start()
    assert client.do("total 0") == [0, 16384 * MIB]
    assert client.do(f"alloc plain 0 {12000 * MIB}") == 0
    assert client.do("info") == [0, 4384 * MIB, 16384 * MIB]
    assert not rig.path.exists()


NVML = """
import pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
for version in (None, pynvml.nvmlMemory_v2):
    memory = pynvml.nvmlDeviceGetMemoryInfo(device, version)
    print(memory.total, memory.used, memory.free)
memory = pynvml.nvmlDeviceGetConfComputeProtectedMemoryUsage(device)
print(memory.total, memory.used, memory.free)
"""


def test_nvml_shows_the_slice_and_what_all_processes_use(rig, wheel):
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc plain 0 {100 * MIB}") == 0
    expected = f"{LIMIT} {100 * MIB} {LIMIT - 100 * MIB}\n"
    assert rig.python(NVML, wheel("nvml-py")) == 3 * expected
    assert [slot.pid for slot in rig.region.slots()] == [
        client.process.pid
    ]  # who only asks has no slot


# -- devices


@cases(
    "visible, numbers",
    ("0,1", (0, 1)),
    ("1,0", (1, 0)),
    ("1", (1,)),
    (f"{uuid_of(1)}", (1,)),
    (f"{uuid_of(1)},{uuid_of(0)}", (1, 0)),
)
def test_limits_go_by_uuid_whatever_the_order(rig, visible, numbers):
    rig.limit({"memory": 1024 * MIB}, {"memory": 2048 * MIB})
    client = rig.client(FAKE_CUDA_DEVICES="2", CUDA_VISIBLE_DEVICES=visible)
    client.do("init")
    for ordinal, card in enumerate(numbers):
        limit = (card + 1) * 1024 * MIB
        assert client.do(f"ctx {ordinal}") == 0
        assert client.do(f"total {ordinal}") == [0, limit]
        assert client.do(f"alloc plain 0 {limit + 1}") == OUT_OF_MEMORY
        assert client.do(f"alloc plain 0 {limit}") == 0
        assert rig.region.total(card) == limit


def test_physical_memory_goes_by_its_location_not_by_the_context(rig):
    rig.limit({"memory": 1024 * MIB}, {"memory": 2048 * MIB})
    client = rig.client(FAKE_CUDA_DEVICES="2").start()
    assert client.do(f"alloc create 0 {2048 * MIB} 1") == 0
    assert rig.region.total(1) == 2048 * MIB


def test_card_that_was_not_given_may_not_be_used(rig):
    rig.limit({"memory": LIMIT, "uuid": uuid_of(1)})
    client = rig.client(FAKE_CUDA_DEVICES="2").start(0)
    assert client.do("alloc plain 0 4096") == OUT_OF_MEMORY
    assert client.do("ctx 1") == 0
    assert client.do(f"alloc plain 0 {LIMIT}") == 0


# -- where limits come from


def wait_a_second():
    """The file is looked at once in a second."""
    time.sleep(1.1)


@pytest.mark.sanitized
def test_limits_that_change_count_from_the_next_allocation_on(rig):
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc plain 0 {LIMIT}") == 0
    rig.limit({"memory": 2 * LIMIT})
    wait_a_second()
    assert client.do(f"alloc plain 1 {LIMIT}") == 0
    assert client.do("info") == [0, 0, 2 * LIMIT]


def test_lower_limit_refuses_growth_and_takes_nothing_back(rig):
    rig.limit()
    client = rig.client().start()
    assert (client.do(f"alloc plain 0 {LIMIT // 2}"), client.do(f"alloc plain 1 {LIMIT // 4}")) == (
        0,
        0,
    )
    rig.limit({"memory": LIMIT // 2})
    wait_a_second()
    assert client.do("alloc plain 2 4096") == OUT_OF_MEMORY
    assert client.do("info") == [0, 0, LIMIT // 2]
    assert (client.do("copy 0"), client.do("free plain 0")) == ([0, 0], 0)
    assert client.do(f"alloc plain 0 {LIMIT // 4}") == 0
    assert client.do("alloc plain 2 4096") == OUT_OF_MEMORY


@cases(
    "text",
    ("being written", "hami-limits 1\ndevice"),
    ("empty", ""),
    ("another device", f"hami-limits 1\ndevice {uuid_of(1)} memory=8g\n"),
)
def test_file_that_cannot_be_used_leaves_the_earlier_limits(rig, text):
    rig.limit()
    client = rig.client().start()
    (rig.folder / "limits").write_text(text)
    wait_a_second()
    assert client.do("info") == [0, LIMIT, LIMIT]
    rig.limit({"memory": LIMIT // 2})
    wait_a_second()
    assert client.do("info") == [0, LIMIT // 2, LIMIT // 2]


@pytest.mark.sanitized
def test_environment_counts_where_there_is_no_file(rig):
    client = rig.client(
        CUDA_DEVICE_MEMORY_LIMIT_0="1g", CUDA_DEVICE_MEMORY_SHARED_CACHE=str(rig.path)
    ).start()
    assert client.do("info") == [0, 1024 * MIB, 1024 * MIB]
    assert rig.region.uuid(0) == uuid_of(0)


def test_file_counts_whatever_the_environment_says(rig):
    rig.limit()
    client = rig.client(
        CUDA_DEVICE_MEMORY_LIMIT="8g",
        CUDA_DEVICE_MEMORY_LIMIT_0="8g",
        CUDA_DEVICE_MEMORY_SHARED_CACHE="/nonexistent/x",
    ).start()
    assert client.do("info") == [0, LIMIT, LIMIT]


def test_region_of_the_plugin_counts_whatever_the_environment_says(rig):
    make_region(rig.path, [LIMIT], uuids=[uuid_of(0)])
    client = rig.client(
        CUDA_DEVICE_MEMORY_LIMIT="8g", CUDA_DEVICE_MEMORY_SHARED_CACHE=str(rig.path)
    ).start()
    assert client.do("info") == [0, LIMIT, LIMIT]
    assert client.close().count("\n") == 1  # it says so once


@pytest.mark.sanitized
@pytest.mark.parametrize(
    "text",
    [
        "",
        "hami-limits 2\n",
        "hami-limits 1\n",
        "hami-limits 1\ndevice GPU-0 memory=0\n",
        "hami-limits 1\ndevice GPU-0 memory=12x\n",
        "hami-limits 1\ndevice GPU-0 cores=101\n",
        "hami-limits 1\ndevice GPU-0 memory=1000",
        "hami-limits 1\nregion relative\n",
    ],
)
def test_limits_that_cannot_be_read_permit_nothing(rig, text):
    (rig.folder / "limits").write_text(text)
    client = rig.client()
    assert client.do("init") == NOT_PERMITTED
    assert client.do("ctx 0") == NOT_PERMITTED
    assert client.do("alloc plain 0 4096") == NOT_PERMITTED
    assert client.do("alloc create 0 2097152 0") == NOT_PERMITTED
    assert client.close().count("\n") == 1


def test_keys_of_later_versions_are_skipped(rig):
    text = f"hami-limits 1\n# a comment\n\ncolor blue\ndevice {uuid_of(0)} memory=2g future=1 cores=0\n"
    (rig.folder / "limits").write_text(text)
    assert rig.client().start().do("info") == [0, LIMIT, LIMIT]


def test_variable_that_cannot_be_read_permits_nothing(rig):
    assert rig.client(CUDA_DEVICE_MEMORY_LIMIT="3000mb").do("init") == NOT_PERMITTED


@pytest.mark.sanitized
def test_region_that_cannot_be_used_leaves_each_process_its_limit(rig):
    rig.path.write_bytes(b"too small")
    rig.limit()
    client = rig.client().start()
    assert client.do(f"alloc plain 0 {LIMIT}") == 0
    assert client.do("alloc plain 1 1") == OUT_OF_MEMORY
    assert client.close().count("\n") == 1
