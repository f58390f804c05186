"""Calls every hooked function of the driver; ends with an error if what is charged is not what it should be.

Prints the names of the functions. Usage: hooked.py COMPUTE_FILE COPY:PARAMETERS..., as test_hooks.py does it.
"""

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

MIB = 1 << 20
LIMIT, CONTEXT, GREEN, MODULE = 2048 * MIB, 64 * MIB, 4 * MIB, 8 * MIB
IMAGE = b" " * MODULE
CHARGED = 256 + 16  # nanoseconds of the first device, in the compute file
FIRST_COST = 20_000  # nanoseconds: of a launch that cannot be measured

cu = ctypes.CDLL("libcuda.so.1")
called = set()


def call(name, *arguments):
    """Numbers are passed as 64 bits, of which a function takes what it needs."""
    called.add(name)
    result = getattr(cu, name)(
        *(ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments)
    )
    assert result == 0, (name, result)


def charged():
    """Bytes, by what is left."""
    free = ctypes.c_uint64()
    call("cuMemGetInfo_v2", ctypes.byref(free), 0)
    return LIMIT - free.value


def spent():
    """Nanoseconds of GPU time that launches have been charged."""
    return struct.unpack_from("<Q", Path(sys.argv[1]).read_bytes(), CHARGED)[0]


def change(expected, name, *arguments):
    before = charged()
    call(name, *arguments)
    assert charged() - before == expected, (name, charged() - before, expected)


def make(expected, name, *arguments):
    """The handle or address that the function has written to its first argument."""
    place = ctypes.c_uint64()
    change(expected, name, ctypes.byref(place), *arguments)
    return place.value


def numbers(kinds, *values):
    """A structure of the driver; larger than any is."""
    return ctypes.create_string_buffer(struct.pack(kinds, *values).ljust(256, b"\0"))


def entry():
    call("cuInit", 0)
    for name, more in (("cuGetProcAddress", ()), ("cuGetProcAddress_v2", (0,))):
        address = ctypes.c_uint64()
        call(name, b"cuMemAlloc", ctypes.byref(address), 3020, 0, *more)
        assert address.value == ctypes.cast(cu.cuMemAlloc_v2, ctypes.c_void_p).value


def primary_context():
    """Of each kind of release and reset; one is left for all that follows."""
    context = ctypes.c_uint64()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context.value)
    assert charged() == CONTEXT
    for name in (
        "cuDevicePrimaryCtxRelease",
        "cuDevicePrimaryCtxRelease_v2",
        "cuDevicePrimaryCtxReset",
        "cuDevicePrimaryCtxReset_v2",
    ):
        call(name, 0)  # nothing is told of memory until it is taken again
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        assert charged() == CONTEXT, name


def contexts():
    for name, arguments, end in (
        ("cuCtxCreate", (0, 0), "cuCtxDestroy"),
        ("cuCtxCreate_v2", (0, 0), "cuCtxDestroy_v2"),
        ("cuCtxCreate_v3", (0, 0, 0, 0), "cuCtxDetach"),
        ("cuCtxCreate_v4", (0, 0, 0), "cuCtxDestroy_v2"),
    ):
        context = make(CONTEXT, name, *arguments)
        change(-CONTEXT, end, context)
    context = make(CONTEXT, "cuCtxCreate_v2", 0, 0)
    assert make(0, "cuCtxAttach", 0) == context
    change(0, "cuCtxDetach", context)
    change(-CONTEXT, "cuCtxDetach", context)
    green = make(GREEN, "cuGreenCtxCreate", 0, 0, 1)  # the primary context is there
    change(-GREEN, "cuGreenCtxDestroy", green)


def limits_of_a_context():
    """Each is charged beyond what it usually is: 8 MiB."""
    change(2 * MIB, "cuCtxSetLimit", 2, 10 * MIB)
    change(-2 * MIB, "cuCtxSetLimit", 2, 8 * MIB)


def events():
    """Of the program: without times, which the driver does not have here. They cost nothing."""
    event, before = ctypes.c_uint64(), spent()
    for suffix in ("", "_v2"):
        call("cuEventCreate", ctypes.byref(event), 2)
        for name, more in (
            ("cuEventRecord", ()),
            ("cuEventRecord_ptsz", ()),
            ("cuEventRecordWithFlags", (0,)),
            ("cuEventRecordWithFlags_ptsz", (0,)),
        ):
            call(name, event.value, 0, *more)
        call(f"cuEventDestroy{suffix}", event.value)
    assert spent() == before


def memory():
    for suffix in ("", "_v2"):
        change(-MIB, f"cuMemFree{suffix}", make(MIB, f"cuMemAlloc{suffix}", MIB))
        pitch = ctypes.c_uint64()
        address = make(102400, f"cuMemAllocPitch{suffix}", ctypes.byref(pitch), 1000, 100, 4)
        assert pitch.value == 1024
        change(-102400, f"cuMemFree{suffix}", address)
    change(-MIB, "cuMemFree_v2", make(MIB, "cuMemAllocManaged", MIB, 1))


def pools():
    before = charged()
    default = ctypes.c_uint64()
    call("cuDeviceGetDefaultMemPool", ctypes.byref(default), 0)
    own = make(0, "cuMemPoolCreate", numbers("<iiii", 1, 0, 1, 0))
    for suffix in ("", "_ptsz"):
        call(f"cuMemFreeAsync{suffix}", make(2 * MIB, f"cuMemAllocAsync{suffix}", 2 * MIB, 0), 0)
        call("cuMemPoolTrimTo", default.value, 0)
        call(
            f"cuMemFreeAsync{suffix}",
            make(2 * MIB, f"cuMemAllocFromPoolAsync{suffix}", 2 * MIB, own, 0),
            0,
        )
        call("cuMemPoolTrimTo", own, 0)
        assert charged() == before
    call("cuDeviceSetMemPool", 0, own)
    call("cuMemSetMemPool", numbers("<ii", 1, 0), 1, default.value)
    change(0, "cuMemPoolDestroy", own)


def physical_memory():
    where = numbers("<iiii", 1, 0, 1, 0)
    handle = make(2 * MIB, "cuMemCreate", 2 * MIB, where, 0)
    address = make(0, "cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    change(0, "cuMemMap", address, 2 * MIB, 0, handle, 0)
    again = make(0, "cuMemRetainAllocationHandle", address)
    change(0, "cuMemRelease", handle)
    change(0, "cuMemUnmap", address, 2 * MIB)
    change(-2 * MIB, "cuMemRelease", again)
    on_host = make(0, "cuMemCreate", 2 * MIB, numbers("<iiii", 1, 0, 2, 0), 0)
    change(0, "cuMemRelease", on_host)


def multicast():
    """What is bound to an object is held until it is unbound."""
    where = numbers("<iiii", 1, 0, 1, 0)
    address = make(0, "cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    one = make(0, "cuMulticastCreate", numbers("<IxxxxQQQ", 1, 2 * MIB, 0, 0))
    for suffix, device in (("", ()), ("_v2", (0,))):
        for kind in ("Mem", "Addr"):
            memory = make(2 * MIB, "cuMemCreate", 2 * MIB, where, 0)
            change(0, "cuMemMap", address, 2 * MIB, 0, memory, 0)
            given = (memory, 0) if kind == "Mem" else (address,)
            change(0, f"cuMulticastBind{kind}{suffix}", one, *device, 0, *given, 2 * MIB, 0)
            change(0, "cuMemUnmap", address, 2 * MIB)
            change(0, "cuMemRelease", memory)
            change(-2 * MIB, "cuMulticastUnbind", one, 0, 0, 2 * MIB)
    change(0, "cuMemRelease", one)


def logical_endpoints():
    where, number = numbers("<iiii", 1, 0, 1, 0), 3
    address = make(0, "cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    for kind, end in (
        ("Mem", ("cuLogicalEndpointUnbind", number, 0, 0, 2 * MIB)),
        ("Addr", ("cuLogicalEndpointDestroy", number)),
    ):
        memory = make(2 * MIB, "cuMemCreate", 2 * MIB, where, 0)
        change(0, "cuMemMap", address, 2 * MIB, 0, memory, 0)
        given = (memory, 0) if kind == "Mem" else (address,)
        change(0, f"cuLogicalEndpointBind{kind}", number, 0, 0, *given, 2 * MIB, 0)
        change(0, "cuMemUnmap", address, 2 * MIB)
        change(0, "cuMemRelease", memory)
        change(-2 * MIB, *end)


def sparse_arrays():
    """Of 64 x 64 elements: a tile is mapped and unmapped."""
    array = make(0, "cuArray3DCreate_v2", numbers("<QQQIII", 64, 64, 0, 0x20, 1, 0x40))
    for suffix in ("", "_ptsz"):
        memory = make(2 * MIB, "cuMemCreate", 2 * MIB, numbers("<iiii", 1, 0, 1, 0), 0)
        tile = (0, array, 0, 0, 0, 0, 0, 0, 64, 64, 1)
        mapping, unmapping = (
            numbers("<IxxxxQIxxxx8IIIQQI", *tile, operation, 0, given, 0, 1)
            for operation, given in ((1, memory), (2, 0))
        )
        change(0, f"cuMemMapArrayAsync{suffix}", mapping, 1, 0)
        change(0, "cuMemRelease", memory)
        change(-2 * MIB, f"cuMemMapArrayAsync{suffix}", unmapping, 1, 0)
    change(0, "cuArrayDestroy", array)


class Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = [("content", ctypes.c_char * 64)]


def foreign_memory():
    """Of another process, which here is this one, and of another interface."""
    handle, address = Handle(), make(MIB, "cuMemAlloc_v2", MIB)
    change(0, "cuIpcGetMemHandle", ctypes.byref(handle), address)
    for name in ("cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"):
        change(0, "cuIpcCloseMemHandle", make(0, name, handle, 1))
    opened = make(0, name, handle, 1)
    change(0, "cuMemFree_v2", address)  # still held
    change(-MIB, "cuIpcCloseMemHandle", opened)
    memory = make(2 * MIB, "cuMemCreate", 2 * MIB, numbers("<iiii", 1, 0, 1, 0), 0)
    file = ctypes.c_int()
    change(0, "cuMemExportToShareableHandle", ctypes.byref(file), memory, 1, 0)
    imported = make(0, "cuMemImportFromShareableHandle", ctypes.c_void_p(file.value), 1)
    place = make(0, "cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    change(0, "cuMemMap", place, 2 * MIB, 0, imported, 0)
    change(0, "cuMemRelease", memory)
    change(0, "cuMemRelease", imported)
    change(-2 * MIB, "cuMemUnmap", place, 2 * MIB)
    pointer, default, exported = (
        ctypes.c_uint64(),
        ctypes.c_uint64(),
        ctypes.create_string_buffer(64),
    )
    call("cuDeviceGetDefaultMemPool", ctypes.byref(default), 0)
    call("cuMemAllocAsync", ctypes.byref(pointer), 2 * MIB, 0)
    call("cuMemPoolExportPointer", exported, pointer.value)
    change(0, "cuMemPoolExportToShareableHandle", ctypes.byref(file), default, 1, 0)
    pool = make(0, "cuMemPoolImportFromShareableHandle", ctypes.c_void_p(file.value), 1, 0)
    imported = make(0, "cuMemPoolImportPointer", pool, exported)
    call("cuMemFreeAsync", pointer.value, 0)
    call("cuMemPoolTrimTo", default.value, 0)
    change(-2 * MIB, "cuMemFreeAsync", imported, 0)
    kept = os.memfd_create("external")
    external, again = (
        make(bytes, "cuImportExternalMemory", numbers("<IxxxxQQQI", 1, os.dup(kept), 0, MIB, 0))
        for bytes in (MIB, 0)
    )  # the same memory
    change(0, "cuDestroyExternalMemory", external)
    buffer = make(0, "cuExternalMemoryGetMappedBuffer", again, numbers("<QQI", 0, MIB, 0))
    array = make(0, "cuExternalMemoryGetMappedMipmappedArray", again, numbers("<Q", 0))
    change(0, "cuDestroyExternalMemory", again)
    change(0, "cuMemFree_v2", buffer)
    change(-MIB, "cuMipmappedArrayDestroy", array)


def arrays():
    """Rows of 4,096 bytes, whole 64 KiB."""
    size, real = (1000, 100), 7 * 65536
    for name, given, bytes_ in (
        ("cuArrayCreate", numbers("<IIII", *size, 0x20, 1), real),
        ("cuArrayCreate_v2", numbers("<QQII", *size, 0x20, 1), real),
        ("cuArray3DCreate", numbers("<IIIIII", *size, 0, 0x20, 1, 0), real),
        ("cuArray3DCreate_v2", numbers("<QQQIII", *size, 0, 0x20, 1, 0), real),
    ):
        change(-bytes_, "cuArrayDestroy", make(bytes_, name, given))
    mipmapped = make(
        13 * 65536, "cuMipmappedArrayCreate", numbers("<QQQIII", *size, 0, 0x20, 1, 0), 2
    )
    change(-13 * 65536, "cuMipmappedArrayDestroy", mipmapped)


def information():
    for suffix, kind in (("", ctypes.c_uint32), ("_v2", ctypes.c_uint64)):
        free, total, card = kind(), kind(), kind()
        call(f"cuMemGetInfo{suffix}", ctypes.byref(free), ctypes.byref(total))
        call(f"cuDeviceTotalMem{suffix}", ctypes.byref(card), 0)
        assert (free.value, total.value, card.value) == (LIMIT - charged(), LIMIT, LIMIT), suffix


def modules():
    """Of an image that is as large as what is loaded; of a fat binary, which says so itself."""
    fat_binary = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, MODULE)
    file = f"/proc/self/fd/{os.memfd_create('module')}"
    Path(file).write_bytes(IMAGE)
    for name, arguments in (
        ("cuModuleLoad", (file.encode(),)),
        ("cuModuleLoadData", (IMAGE,)),
        ("cuModuleLoadDataEx", (IMAGE, 0, 0, 0)),
        ("cuModuleLoadFatBinary", (fat_binary,)),
    ):
        change(-MODULE, "cuModuleUnload", make(MODULE, name, *arguments))
    for name, given in (("cuLibraryLoadData", IMAGE), ("cuLibraryLoadFromFile", file.encode())):
        change(-MODULE, "cuLibraryUnload", make(MODULE, name, given, 0, 0, 0, 0, 0, 0))


TARGET = """
import ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
place = ctypes.c_uint64()
cu.cuInit(0)
cu.cuDevicePrimaryCtxRetain(ctypes.byref(place), 0)
cu.cuCtxSetCurrent(place)
cu.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_uint64(32 << 20))
print(flush=True)
sys.stdin.read()
cu.cuDevicePrimaryCtxReset_v2(0)
"""


def suspended_processes():
    """Another process, with 32 MiB beside its context, is suspended and woken in both ways."""
    storage = ctypes.POINTER(ctypes.c_uint64)()
    own = numbers("<Q", ctypes.addressof(storage))
    remapped = numbers("<QQQ", 0, 0, ctypes.addressof(storage))
    held, pipe = CONTEXT + 32 * MIB, subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", TARGET], stdin=pipe, stdout=pipe) as target:
        target.stdout.readline()
        change(0, "cuCheckpointProcessLock", target.pid, 0)
        change(-held, "cuCheckpointProcessCheckpoint", target.pid, 0)
        change(held, "cuCheckpointProcessRestore", target.pid, 0)
        change(0, "cuCheckpointProcessCheckpoint", target.pid, own)
        change(-held, "cuCheckpointOperationComplete", storage[0])
        change(held, "cuCheckpointProcessRestore", target.pid, remapped)
        change(0, "cuCheckpointOperationComplete", storage[0])
        change(0, "cuCheckpointProcessUnlock", target.pid, 0)


def launch(name, *arguments):
    """The driver has no events: with them, a launch may give back what the measurement of another has shown."""
    before = spent()
    call(name, *arguments)
    assert spent() - before == FIRST_COST, (name, spent() - before)


def kernel():
    """A module, and a function of it."""
    module, function = ctypes.c_uint64(), ctypes.c_uint64()
    call("cuModuleLoadData", ctypes.byref(module), IMAGE)
    call("cuModuleGetFunction", ctypes.byref(function), module.value, b"busy_10")
    return module.value, function


def launches():
    module, function = kernel()
    shape = (1, 1, 1, 32, 1, 1)
    launch("cuLaunch", function.value)
    launch("cuLaunchGrid", function.value, 1, 1)
    launch("cuLaunchGridAsync", function.value, 1, 1, 0)
    for suffix in ("", "_ptsz"):
        launch(f"cuLaunchKernel{suffix}", function.value, *shape, 0, 0, 0, 0)
        launch(
            f"cuLaunchKernelEx{suffix}", numbers("<6IIxxxxQ", *shape, 0, 0), function.value, 0, 0
        )
        launch(f"cuLaunchCooperativeKernel{suffix}", function.value, *shape, 0, 0, 0)
    launch(
        "cuLaunchCooperativeKernelMultiDevice",
        numbers("<Q7IxxxxQQ", function.value, *shape, 0, 0, 0),
        1,
        0,
    )
    change(-MODULE, "cuModuleUnload", module)


def copies():
    """Functions and their parameters, as the arguments of this program have them. They copy nothing."""
    for word in sys.argv[2:]:
        name, count = word.split(":")
        launch(name, *[0] * int(count))


def captures():
    """A launch in each takes no time; after each, one does. Those with a number are of the older kinds."""
    module, function = kernel()
    stream, graph, empty = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    call("cuStreamCreate", ctypes.byref(stream), 0)
    call("cuGraphCreate", ctypes.byref(empty), 0)
    to_graph, again = (empty.value, 0, 0, 0, 0), (0, empty.value, 0, 0)
    for suffix in ("", "_ptsz"):
        for name, given, end, result in (
            (f"cuStreamBeginCapture{suffix}", (), "cuStreamEndCapture", (ctypes.byref(graph),)),
            (
                f"cuStreamBeginCapture_v2{suffix}",
                (0,),
                "cuStreamEndCapture",
                (ctypes.byref(graph),),
            ),
            (
                f"cuStreamBeginCaptureToGraph{suffix}",
                to_graph,
                "cuStreamEndCapture",
                (ctypes.byref(graph),),
            ),
            (
                f"cuStreamBeginRecaptureToGraph{suffix}",
                again,
                "cuStreamEndCapture",
                (ctypes.byref(graph),),
            ),
            (f"cuStreamBeginCaptureToCig{suffix}", (0,), "cuStreamEndCaptureToCig", ()),
        ):
            before = spent()
            call(name, stream.value, *given)
            call("cuLaunchKernel", function.value, 1, 1, 1, 32, 1, 1, 0, stream.value, 0, 0)
            assert spent() == before, name
            call(f"{end}{suffix}", stream.value, *result)
            launch("cuLaunchKernel", function.value, 1, 1, 1, 32, 1, 1, 0, stream.value, 0, 0)
    change(-MODULE, "cuModuleUnload", module)


def graphs():
    """Of a kernel and an allocation, which take neither time nor memory while they are captured."""
    module, function = kernel()
    before, time_before = charged(), spent()
    graph, stream, address = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    call("cuStreamCreate", ctypes.byref(stream), 0)
    call("cuStreamBeginCapture_v2", stream.value, 0)
    call("cuLaunchKernel", function.value, 1, 1, 1, 32, 1, 1, 0, stream.value, 0, 0)
    call("cuMemAllocAsync", ctypes.byref(address), 2 * MIB, stream.value)
    call("cuStreamEndCapture", stream.value, ctypes.byref(graph))
    assert (charged(), spent()) == (before, time_before)
    parameters = numbers("<Q", 0)
    for name, arguments in (
        ("cuGraphInstantiate", (0, 0, 0)),
        ("cuGraphInstantiate_v2", (0, 0, 0)),
        ("cuGraphInstantiateWithFlags", (0,)),
        ("cuGraphInstantiateWithParams", (parameters,)),
        ("cuGraphInstantiateWithParams_ptsz", (parameters,)),
    ):
        instance = make(2 * MIB, name, graph.value, *arguments)
        for variant in ("cuGraphLaunch", "cuGraphLaunch_ptsz"):
            launch(variant, instance, 0)
        change(0, "cuGraphExecDestroy", instance)  # the driver keeps the memory for the next graph
        change(-2 * MIB, "cuDeviceGraphMemTrim", 0)
    assert charged() == before
    change(-MODULE, "cuModuleUnload", module)


for part in (
    entry,
    primary_context,
    contexts,
    limits_of_a_context,
    events,
    memory,
    pools,
    physical_memory,
    multicast,
    logical_endpoints,
    sparse_arrays,
    foreign_memory,
    arrays,
    information,
    modules,
    suspended_processes,
    launches,
    copies,
    captures,
    graphs,
):
    part()
assert charged() == CONTEXT
print(*sorted(called))
