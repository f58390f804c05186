"""Memory that something else than its handle keeps alive counts until that is gone."""

import json
from pathlib import Path

import pytest

from testing.cases import cases
from testing.limiter import holders
from testing.limiter.rig import MIB

LIMIT = 2048 * MIB
PROGRAM = Path(holders.__file__).read_text()


def run(rig, code, **more):
    """What a program with the functions of holders.py prints, as JSON."""
    return json.loads(rig.python(f"{PROGRAM}\n{code}", **more))


TAKE_ALL = """
start()
hold, let_go = HOLDERS[{case!r}](), []
while len(let_go) < 20 and (memory := create(BLOCK)):
    let_go.append(hold(memory))
    call("cuMemRelease", memory)
held = used()
for end in let_go:
    end()
print(json.dumps([len(let_go), held, used()]))
"""


@pytest.mark.sanitized
@pytest.mark.parametrize("case", holders.HOLDERS)
def test_blocks_count_though_their_handles_are_released(rig, case):
    rig.limit()
    assert run(rig, TAKE_ALL.format(case=case)) == [4, LIMIT, 0]
    assert (rig.machine.peak(), rig.machine.used()) == (LIMIT, 0)


CUT = """
import random
start()
seed, array, blocks = random.Random({seed}), new_array({flags}, width=512, height=512, depth=4), []
told = []
def span(most, unit):
    begin = seed.randrange(most)
    return begin * unit, seed.randint(1, most - begin) * unit
for _ in range(60):
    (x, width), (y, height), (z, depth) = span(8, 64), span(8, 64), span(4, 1)
    place = dict(offset=(x, y, z), extent=(width, height, depth), level=seed.randrange(2))
    if seed.random() < 0.2:
        offset, size = span(4, 65536)
        place = dict(tail=(offset, size), layer=seed.randrange(2))
    memory = create(2 * MIB) if seed.random() < 0.6 else 0
    map_array(entry(array, MAP if memory else UNMAP, memory, **place))
    if memory:
        call("cuMemRelease", memory)
    told.append(used())
call("cuArrayDestroy", array)
print(json.dumps([told, used()]))
"""


@cases("flags", ("sparse", holders.SPARSE), ("deferred", holders.DEFERRED))
@pytest.mark.parametrize("seed", range(8))
def test_any_part_of_an_array_may_be_mapped_anew_or_unmapped(rig, seed, flags):
    """The driver keeps an account of each tile, and says what is left of the card."""
    rig.limit({"memory": 16384 * MIB})
    code = CUT.format(seed=seed, flags=flags)
    told, rest = run(rig, code)
    assert max(told) > 0
    assert told == run(rig, code, LD_PRELOAD="")[0]
    assert rest == 0


BOUND_IN_POOL = """
start()
default = make("cuDeviceGetDefaultMemPool", 0)
{prepare}
address = make("cuMemAllocAsync", 64 * MIB, 0)
{bind}
told = [used()]
call("cuMemFreeAsync", address, 0)
call("cuMemPoolTrimTo", default, 0)
told.append(used())
{let_go}
told.append(used())
print(json.dumps(told))
"""


@cases(
    "prepare, bind, let_go",
    (
        "multicast object",
        'one = make("cuMulticastCreate", numbers("<IxxxxQQQ", 1, BLOCK, 0, 0))',
        'call("cuMulticastBindAddr", one, 0, address, 64 * MIB, 0)',
        'call("cuMulticastUnbind", one, 0, 0, 64 * MIB)',
    ),
    (
        "logical endpoint",
        "",
        'call("cuLogicalEndpointBindAddr", 3, 0, 0, address, 64 * MIB, 0)',
        'call("cuLogicalEndpointDestroy", 3)',
    ),
)
def test_memory_of_a_pool_that_is_bound_counts_though_the_pool_has_freed_it(
    rig, prepare, bind, let_go
):
    rig.limit()
    assert run(rig, BOUND_IN_POOL.format(prepare=prepare, bind=bind, let_go=let_go)) == [
        64 * MIB,
        64 * MIB,
        0,
    ]
    assert rig.machine.used() == 0


EXTERNAL = """
start()
memory = make("cuImportExternalMemory", numbers("<IxxxxQQQI", 1, os.memfd_create("external"), 0, BLOCK, 0))
buffer = make("cuExternalMemoryGetMappedBuffer", memory, numbers("<QQI", 0, BLOCK, 0))
array = make("cuExternalMemoryGetMappedMipmappedArray", memory, numbers("<Q", 0))
told = [used()]
call("cuDestroyExternalMemory", memory)
told.append(used())
{first}
told.append(used())
{second}
told.append(used())
print(json.dumps(told))
"""
ENDS = ('call("cuMemFree_v2", buffer)', 'call("cuMipmappedArrayDestroy", array)')


@cases("order", ("buffer first", 1), ("array first", -1))
def test_what_is_mapped_from_external_memory_holds_it(rig, order):
    rig.limit()
    first, second = ENDS[::order]
    assert run(rig, EXTERNAL.format(first=first, second=second)) == [
        512 * MIB,
        512 * MIB,
        512 * MIB,
        0,
    ]
    assert rig.machine.used() == 0


ATTACHED = """
start()
context = make("cuCtxCreate_v2", 0, 0)
assert make("cuCtxAttach", 0) == context
address = make("cuMemAlloc_v2", BLOCK)
told = []
for _ in range(2):
    call("cuCtxDetach", context)
    told.append([used(), ask("cuCtxGetDevice_v2", ctypes.byref(ctypes.c_int()), context)] if not told else [])
start()
print(json.dumps([told[0][0], used()]))
"""


def test_context_that_was_attached_to_is_there_until_it_is_detached_from_as_often(rig):
    rig.limit()
    assert run(rig, ATTACHED, FAKE_CUDA_CTX_MIB="100") == [712 * MIB, 100 * MIB]
    assert rig.machine.peak() == 712 * MIB


# -- where memory is


LOCATED = """
start()
count = 0
while count < 20 and (memory := create(BLOCK, {location})):
    count += 1
print(json.dumps([count, used()]))
"""


@cases(
    "location, expected",
    ("device", holders.DEVICE, [4, LIMIT]),
    ("part of a device", holders.LOCALITY_DOMAIN, [4, LIMIT]),
    ("host", holders.HOST, [20, 0]),
)
def test_physical_memory_counts_on_the_device_of_its_location(rig, location, expected):
    rig.limit()
    assert run(rig, LOCATED.format(location=location)) == expected


POOLED = """
start()
location, kind = {location}, {kind}
where = numbers("<ii", location, 0)
pool = make("cuMemPoolCreate", numbers("<iiii", kind, 0, location, 0)) if {own} else \\
    make("cuMemGetDefaultMemPool", where, kind)
count, place = 0, ctypes.c_uint64()
while count < 20 and ask("cuMemAllocFromPoolAsync", ctypes.byref(place), BLOCK, pool, 0) == 0:
    count += 1
print(json.dumps([count, used()]))
"""


@cases("own", ("own pool", True), ("default pool", False))
@cases(
    "location, kind, expected",
    ("device", holders.DEVICE, holders.PINNED, [4, LIMIT]),
    ("part of a device", holders.LOCALITY_DOMAIN, holders.PINNED, [4, LIMIT]),
    ("managed", holders.DEVICE, holders.MANAGED, [4, LIMIT]),
    ("managed, anywhere", 0, holders.MANAGED, [4, LIMIT]),
    ("host", holders.HOST, holders.PINNED, [20, 0]),
)
def test_pool_counts_on_the_device_of_its_location(rig, location, kind, expected, own):
    rig.limit()
    assert run(rig, POOLED.format(location=location, kind=kind, own=own)) == expected


IMPORTED_POOL = """
start()
pool, file = make("cuMemPoolCreate", numbers("<iiii", PINNED, TO_FILE, DEVICE, 0)), ctypes.c_int()
call("cuMemPoolExportToShareableHandle", ctypes.byref(file), pool, TO_FILE, 0)
imported = make("cuMemPoolImportFromShareableHandle", ctypes.c_void_p(file.value), TO_FILE, 0)
count, place = 0, ctypes.c_uint64()
while count < 20 and ask("cuMemAllocFromPoolAsync", ctypes.byref(place), BLOCK, imported, 0) == 0:
    count += 1
print(json.dumps([count, used()]))
"""


def test_memory_of_an_imported_pool_counts_where_a_driver_gives_any(rig):
    rig.limit()
    assert run(rig, IMPORTED_POOL) == [4, LIMIT]


NESTED = """
start()
graph = make("cuGraphCreate", 0)
given = numbers("<IIIi72xQQQQ", PINNED, 0, {location}, 0, 0, 0, BLOCK, 0)
make("cuGraphAddMemAllocNode", graph, 0, 0, given)
for _ in range({depth}):
    parent = make("cuGraphCreate", 0)
    make("cuGraphAddChildGraphNode", parent, 0, 0, graph)
    graph = parent
place = ctypes.c_uint64()
result = ask("cuGraphInstantiateWithFlags", ctypes.byref(place), graph, 0)
print(json.dumps([result, used()]))
"""


@cases("location", ("device", holders.DEVICE), ("part of a device", holders.LOCALITY_DOMAIN))
@cases("depth, expected", (0, [0, 512 * MIB]), (40, [0, 512 * MIB]), (100, [2, 0]))
def test_memory_of_a_graph_counts_however_deep_it_is(rig, depth, location, expected):
    """Where it is too deep to be looked at, it is not made."""
    rig.limit()
    assert run(rig, NESTED.format(depth=depth, location=location)) == expected
