"""Real clients of 1 GB, with real compilers: in the tox environment ``libvgpu-big``; skipped where they are not
installed."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

NUMBA = """
import numpy
from numba import cuda
limit = 2048 << 20
context = cuda.current_context()
assert tuple(context.get_memory_info()) == (limit, limit), context.get_memory_info()
@cuda.jit
def add(values):
    place = cuda.grid(1)
    if place < values.size:
        values[place] += 1
values = cuda.to_device(numpy.zeros(1024, numpy.float32))
add[8, 128](values)
cuda.synchronize()
try:
    cuda.device_array(limit // 4 + 1, numpy.float32)
    print("granted")
except Exception as error:
    print("refused", "OUT_OF_MEMORY" in str(error))
"""

TINYGRAD = """
from tinygrad import Device, Tensor
print(float((Tensor.ones(16, device="CUDA").contiguous() + 1).sum().realize().numel()))
try:
    Tensor.empty(1 << 30, device="CUDA").contiguous().realize()
    Device["CUDA"].allocator.alloc(4096 << 20)
    print("granted")
except Exception as error:
    print("refused", "memory" in str(error).lower())
"""


def needs(module):
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None,
        reason=f"{module} is installed in the environment libvgpu-big only",
    )


@needs("numba_cuda")
def test_numba(rig):
    rig.limit()
    assert rig.python(NUMBA).splitlines()[-1] == "refused True"
    assert rig.machine.launches() >= 1
    assert rig.machine.peak() <= 2048 << 20


@needs("numba_cuda")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_kernels_of_the_tests_on_a_gpu_are_valid(rig, architecture):
    """By NVIDIA's assembler: the fake driver takes any."""
    file = rig.folder / "kernels.ptx"
    assert rig.client().do(f"kernels {file}") == 0
    (compiler,) = importlib.util.find_spec("nvidia.cuda_nvcc").submodule_search_locations
    subprocess.run(
        [Path(compiler, "bin", "ptxas"), f"-arch={architecture}", file, "-o", rig.folder / "cubin"],
        check=True,
    )


def linkable(folder):
    """tinygrad looks for its compiler as a linker does."""
    for name, package in (("nvrtc", "nvidia.cuda_nvrtc"), ("nvJitLink", "nvidia.nvjitlink")):
        places = importlib.util.find_spec(package).submodule_search_locations
        (library,) = Path(places[0], "lib").glob(f"lib{name}.so.*")
        for one in library.parent.glob("*.so*"):
            (folder / one.name).symlink_to(one)
        (folder / f"lib{name}.so").symlink_to(library)
    return folder


@needs("tinygrad")
def test_tinygrad(rig):
    rig.limit()
    path = f"{rig.builds.driver}:{linkable(rig.folder)}"
    assert rig.python(TINYGRAD, CUDA="1", LD_LIBRARY_PATH=path).splitlines()[-1] == "refused True"
    assert rig.machine.launches() >= 1
    assert rig.machine.peak() <= 2048 << 20
