"""Real clients, unmodified: NVIDIA's bindings of both releases, its Pythonic layer. They see the slice, are refused
beyond it, and their kernels launch."""

import pytest

BINDINGS = """
from cuda.bindings import driver as cu
def check(answer):
    assert answer[0] == cu.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
check(cu.cuInit(0))
device = check(cu.cuDeviceGet(0))
context = check(cu.cuDevicePrimaryCtxRetain(device))
check(cu.cuCtxSetCurrent(context))
print(*check(cu.cuMemGetInfo()), check(cu.cuDeviceTotalMem(device)))
stream = check(cu.cuStreamCreate(0))
pool = check(cu.cuDeviceGetDefaultMemPool(device))
limit = 2048 << 20
prop = cu.CUmemAllocationProp()
prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.location.id = 0
paths = {
    "plain": lambda size: cu.cuMemAlloc(size),
    "managed": lambda size: cu.cuMemAllocManaged(size, 1),
    "async": lambda size: cu.cuMemAllocAsync(size, stream),
    "pool": lambda size: cu.cuMemAllocFromPoolAsync(size, pool, stream),
    "pitch": lambda size: cu.cuMemAllocPitch(512, size // 512, 4)[:2],
    "create": lambda size: cu.cuMemCreate((size + (2 << 20) - 1) // (2 << 20) * (2 << 20), prop, 0),
}
for name, allocate in paths.items():
    address = check(allocate(limit))
    print(name, *(other(limit + 1 if other is not paths["pitch"] else limit + 512)[0].name for other in paths.values()))
    check(cu.cuMemRelease(address) if name == "create" else cu.cuMemFree(address))
    check(cu.cuStreamSynchronize(stream))
    check(cu.cuMemPoolTrimTo(pool, 0))
print(*check(cu.cuMemGetInfo()))
module = check(cu.cuModuleLoadData(b"module"))
kernel = check(cu.cuModuleGetFunction(module, b"idle"))
check(cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
check(cu.cuStreamSynchronize(stream))
"""

CORE = """
from cuda.core import Device
device = Device(0)
device.set_current()
stream = device.create_stream()
small = device.allocate(64 << 20, stream=stream)
stream.sync()
try:
    device.allocate(4096 << 20, stream=stream)
    print("granted")
except Exception as error:
    print("refused", "OUT_OF_MEMORY" in str(error))
small.close(stream)
stream.sync()
again = device.allocate(2048 << 20, stream=stream)
print(again.size)
"""


@pytest.mark.parametrize("bindings", ["bindings-12", "bindings-13"])
def test_cuda_bindings(rig, wheel, bindings):
    folder = wheel(bindings)
    rig.limit()
    lines = rig.python(BINDINGS, folder).splitlines()
    limit = 2048 << 20
    assert lines[0] == f"{limit} {limit} {limit}"
    assert len(lines) == 8
    for line in lines[1:7]:
        assert set(line.split()[1:]) == {"CUDA_ERROR_OUT_OF_MEMORY"}
    assert lines[7] == f"{limit} {limit}"
    assert rig.machine.peak() == limit
    assert rig.machine.launches() == 1


def test_cuda_core(rig, wheel):
    folder = wheel("core")
    rig.limit()
    assert rig.python(CORE, folder).splitlines() == ["refused True", str(2048 << 20)]
    assert rig.machine.peak() == 2048 << 20
