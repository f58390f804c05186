"""A CUDA program of the tests: functions of the driver by ctypes, and what holds memory.

The tests put this text before their own, and run both in a process that has the fake driver.
"""

import ctypes
import functools
import json  # noqa: F401 (programs print their answers so)
import os
import struct

MIB = 1 << 20
BLOCK = 512 * MIB
OUT_OF_MEMORY = 2
DEVICE, HOST, LOCALITY_DOMAIN = 1, 2, 6  # CU_MEM_LOCATION_TYPE_…
PINNED, MANAGED = 1, 2  # CU_MEM_ALLOCATION_TYPE_…
TO_FILE, FABRIC = 1, 8  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, …_FABRIC
SPARSE, DEFERRED = 0x40, 0x80  # CUDA_ARRAY3D_…
MAP, UNMAP = 1, 2  # CU_MEM_OPERATION_TYPE_…


@functools.cache
def driver():
    return ctypes.CDLL("libcuda.so.1")


def ask(name, *arguments):
    """The error, 0 for none. Numbers are passed as 64 bits, of which a function takes what it needs."""
    return getattr(driver(), name)(
        *(ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments)
    )


def call(name, *arguments):
    assert (result := ask(name, *arguments)) == 0, (name, result)


def make(name, *arguments):
    """What the function writes to its first argument."""
    place = ctypes.c_uint64()
    call(name, ctypes.byref(place), *arguments)
    return place.value


def numbers(kinds, *values):
    """A structure of the driver; larger than any is."""
    return ctypes.create_string_buffer(struct.pack(kinds, *values).ljust(256, b"\0"))


def used():
    """Bytes, by what is left."""
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value


def start(device=0):
    """A primary context, which is current from now on."""
    call("cuInit", 0)
    context = make("cuDevicePrimaryCtxRetain", device)
    call("cuCtxSetCurrent", context)
    return context


def create(size, location=DEVICE):
    """Physical memory: its handle, 0 if there is none left."""
    place = ctypes.c_uint64()
    result = ask(
        "cuMemCreate", ctypes.byref(place), size, numbers("<iiii", PINNED, TO_FILE, location, 0), 0
    )
    assert result in (0, OUT_OF_MEMORY), result
    return place.value


def new_array(flags=SPARSE, width=4096, height=4096, depth=0):
    return make("cuArray3DCreate_v2", numbers("<QQQIII", width, height, depth, 0x20, 1, flags))


def entry(
    array, operation, memory, *, offset=(0, 0, 0), extent=(64, 64, 1), level=0, layer=0, tail=None
):
    """A CUarrayMapInfo. *tail*: offset and size of bytes in the levels that are smaller than a tile."""
    part = (
        struct.pack("<I4xQQ8x", layer, *tail)
        if tail
        else struct.pack("<II3I3I", level, layer, *offset, *extent)
    )
    head = struct.pack("<I4xQI4x", 0, array, 1 if tail else 0)
    return head + part + struct.pack("<IIQQII8x", operation, 0, memory, 0, 1, 0)


def map_array(*entries, variant=""):
    call(
        f"cuMemMapArrayAsync{variant}",
        ctypes.create_string_buffer(b"".join(entries)),
        len(entries),
        0,
    )


def by_address(memory):
    where = make("cuMemAddressReserve", BLOCK, 0, 0, 0)
    call("cuMemMap", where, BLOCK, 0, memory, 0)
    return lambda: call("cuMemUnmap", where, BLOCK)


def by_array(variant, flags):
    def hold(memory):
        array = new_array(flags)
        map_array(entry(array, MAP, memory), variant=variant)
        return lambda: map_array(entry(array, UNMAP, 0), variant=variant)

    return hold


def by_array_that_goes(memory):
    array = make("cuMipmappedArrayCreate", numbers("<QQQIII", 4096, 4096, 0, 0x20, 1, SPARSE), 8)
    map_array(entry(array, MAP, memory, tail=(0, 65536)))
    return lambda: call("cuMipmappedArrayDestroy", array)


def by_context_that_goes(memory):
    context = make("cuCtxCreate_v2", 0, 0)
    map_array(entry(new_array(), MAP, memory))
    call("cuCtxPopCurrent_v2", 0)
    return lambda: call("cuCtxDestroy_v2", context)


def by_object(kind, by, variant=""):
    """A multicast object, or a logical endpoint by its number; each block has a place of its own in it.

    *by*: ``Mem``, the handle of the memory, or ``Addr``, where it is mapped.
    """
    objects = {
        "Multicast": lambda: make("cuMulticastCreate", numbers("<IxxxxQQQ", 1, 32 * BLOCK, 0, 0)),
        "LogicalEndpoint": lambda: 5,
    }
    one, count = objects[kind](), iter(range(32))
    device = (0,) if variant or kind == "LogicalEndpoint" else ()

    def hold(memory):
        offset, where = next(count) * BLOCK, make("cuMemAddressReserve", BLOCK, 0, 0, 0)
        call("cuMemMap", where, BLOCK, 0, memory, 0)
        given = (memory, 0) if by == "Mem" else (where,)
        call(f"cu{kind}Bind{by}{variant}", one, *device, offset, *given, BLOCK, 0)
        call("cuMemUnmap", where, BLOCK)
        return lambda: call(f"cu{kind}Unbind", one, 0, offset, BLOCK)

    return hold


def by_endpoint_that_goes(memory):
    number = memory % 61
    call("cuLogicalEndpointBindMem", number, 0, 0, memory, 0, BLOCK, 0)
    return lambda: call("cuLogicalEndpointDestroy", number)


def by_imported_handle(memory):
    """It need not be mapped."""
    file = ctypes.c_int()
    call("cuMemExportToShareableHandle", ctypes.byref(file), memory, TO_FILE, 0)
    handle = make("cuMemImportFromShareableHandle", ctypes.c_void_p(file.value), TO_FILE)
    os.close(file.value)
    return lambda: call("cuMemRelease", handle)


def by_imported_fabric_handle(memory):
    exported = ctypes.create_string_buffer(64)
    call("cuMemExportToShareableHandle", exported, memory, FABRIC, 0)
    handle = make("cuMemImportFromShareableHandle", exported, FABRIC)
    return lambda: call("cuMemRelease", handle)


# What holds physical memory though its handle is released: how a block is held, which returns how it is let go.
HOLDERS = {
    "mapping": lambda: by_address,
    "sparse array": lambda: by_array("", SPARSE),
    "sparse array, per-thread stream": lambda: by_array("_ptsz", SPARSE),
    "array whose memory comes later": lambda: by_array("", DEFERRED),
    "array that is destroyed": lambda: by_array_that_goes,
    "array in a context that is destroyed": lambda: by_context_that_goes,
    "multicast object, by handle": lambda: by_object("Multicast", "Mem"),
    "multicast object, by handle, v2": lambda: by_object("Multicast", "Mem", "_v2"),
    "multicast object, by address": lambda: by_object("Multicast", "Addr"),
    "multicast object, by address, v2": lambda: by_object("Multicast", "Addr", "_v2"),
    "logical endpoint, by handle": lambda: by_object("LogicalEndpoint", "Mem"),
    "logical endpoint, by address": lambda: by_object("LogicalEndpoint", "Addr"),
    "logical endpoint that is destroyed": lambda: by_endpoint_that_goes,
    "imported handle": lambda: by_imported_handle,
    "imported fabric handle": lambda: by_imported_fabric_handle,
}
