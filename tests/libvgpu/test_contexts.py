"""Contexts are charged what they take: green ones as the primary one that they retain, and what a limit sets aside."""

import json
from pathlib import Path

import pytest

from testing.cases import cases
from testing.limiter import holders
from testing.limiter.rig import MIB

PROGRAM = Path(holders.__file__).read_text()
CONTEXT, SLICE = 400 * MIB, 4096 * MIB
KNOWN = {"told by the limits": {"context": CONTEXT}, "measured": {}}


def run(rig, code, **more):
    """What a program with the functions of holders.py prints, as JSON."""
    return json.loads(rig.python(f"{PROGRAM}\n{code}", FAKE_CUDA_CTX_MIB="400", **more))


@pytest.fixture(params=KNOWN.values(), ids=KNOWN)
def limited(rig, request):
    rig.limit({"memory": SLICE, **request.param})
    return rig


EIGHT = """
call("cuInit", 0)
{retain}
greens = [make("cuGreenCtxCreate", 0, 0, 1) for _ in range(8)]
{release}
start()
told = [used()]
call("cuDevicePrimaryCtxRelease_v2", 0)
for green in greens[1:]:
    call("cuGreenCtxDestroy", green)
start()
told.append(used())
call("cuDevicePrimaryCtxRelease_v2", 0)
call("cuGreenCtxDestroy", greens[0])
print(json.dumps(told))
"""
RETAIN, RELEASE = 'make("cuDevicePrimaryCtxRetain", 0)', 'call("cuDevicePrimaryCtxRelease_v2", 0)'


@pytest.mark.sanitized
@cases("retain, release", ("alone", "", ""), ("primary context there", RETAIN, RELEASE))
def test_eight_green_contexts_count_as_the_primary_context_that_they_retain(
    limited, retain, release
):
    """Until the last of them goes, whether the program retains it too or not."""
    assert run(limited, EIGHT.format(retain=retain, release=release)) == [CONTEXT, CONTEXT]
    assert limited.machine.peak() == CONTEXT
    assert (limited.region.total(), limited.machine.used()) == (0, 0)


def test_green_context_counts_what_it_takes_by_itself(limited):
    told = run(limited, EIGHT.format(retain="", release=""), FAKE_CUDA_GREEN_MIB="5")
    assert told == [CONTEXT + 40 * MIB, CONTEXT + 5 * MIB]
    assert (limited.region.total(), limited.machine.used()) == (0, 0)


def test_green_context_that_nvml_tells_nothing_of_counts_as_its_primary_context(rig):
    rig.limit({"memory": SLICE, "context": CONTEXT})
    answer = run(
        rig,
        EIGHT.format(retain="", release=""),
        FAKE_CUDA_GREEN_MIB="5",
        FAKE_NVML_HOST_PIDS="100000",
    )
    assert answer == [CONTEXT, CONTEXT]


REFUSED = """
call("cuInit", 0)
place = ctypes.c_uint64()
print(json.dumps([ask("cuGreenCtxCreate", ctypes.byref(place), 0, device, 1) for device in (0, 7)]))
"""


def test_green_context_whose_primary_context_does_not_fit_is_not_made(rig):
    rig.limit({"memory": CONTEXT - 1, "context": CONTEXT})
    assert run(rig, REFUSED) == [2, 101]
    assert (rig.state.exists(), rig.region.total()) == (False, 0)  # the driver was not asked


WITHIN = """
call("cuInit", 0)
green = make("cuGreenCtxCreate", 0, 0, 1)
context = make("cuCtxFromGreenCtx", green)
call("cuCtxSetCurrent", context)
call("cuCtxSetLimit", 2, 40 * MIB)
address = make("cuMemAlloc_v2", BLOCK)
call("cuCtxSetCurrent", make("cuDevicePrimaryCtxRetain", 0))
call("cuGreenCtxDestroy", green)
told = [used()]
call("cuDevicePrimaryCtxRelease_v2", 0)
start()
told.append(used())
print(json.dumps(told))
"""


@pytest.mark.sanitized
def test_memory_that_was_allocated_in_a_green_context_goes_with_the_primary_one(limited):
    """It is not freed with the green context, whose handle the driver then gives to another one."""
    assert run(limited, WITHIN) == [CONTEXT + 544 * MIB, CONTEXT]
    assert limited.machine.peak() == CONTEXT + 544 * MIB


STREAM = """
call("cuInit", 0)
greens = [make("cuGreenCtxCreate", 0, device, 1) for device in (0, 1)]
contexts = [make("cuCtxFromGreenCtx", green) for green in greens]
call("cuCtxSetCurrent", contexts[1])
stream = make("cuStreamCreate", 0)
call("cuCtxSetCurrent", contexts[0])
make("cuMemAllocAsync", BLOCK, stream)
told = [used()]
call("cuCtxSetCurrent", contexts[1])
print(json.dumps(told + [used()]))
"""


def test_memory_of_a_stream_is_on_the_device_of_its_green_context(rig):
    rig.limit({"memory": SLICE}, {"memory": SLICE})
    assert run(rig, STREAM, FAKE_CUDA_DEVICES="2") == [CONTEXT, CONTEXT + 512 * MIB]


# -- limits of a context


LIMITED = """
start()
told = []
for value in {values}:
    told.append([ask("cuCtxSetLimit", {limit}, value), used() - {context}])
call("cuDevicePrimaryCtxReset_v2", 0)
start()
print(json.dumps(told + [used() - {context}]))
"""
THREADS = 132 * 2048  # that the fake device runs at once


@cases(
    "limit, values, expected",
    (
        "stack",
        0,
        [4096, 1 << 20, 2048],
        [[0, 3072 * THREADS], [2, 3072 * THREADS], [0, 1024 * THREADS]],
    ),
    ("buffer of printf, which the driver rounds", 1, [3 * MIB + 5], [[0, 2 * MIB + 4096]]),
    ("heap", 2, [520 * MIB, 8 * MIB], [[0, 512 * MIB], [0, 0]]),
    ("depth of synchronization", 3, [6, 24, 2], [[0, 600 * MIB], [0, 3300 * MIB], [0, 0]]),
    ("pending launches", 4, [4096, 1 << 21], [[0, 8 * MIB], [2, 8 * MIB]]),
    ("L2 cache", 6, [1 << 30], [[0, 0]]),
)
def test_limit_of_a_context_is_charged_what_the_driver_sets_aside(limited, limit, values, expected):
    code = LIMITED.format(limit=limit, values=values, context=CONTEXT)
    assert run(limited, code) == [*expected, 0]
