"""Usage of cards and processes through NVML. Any call may fail for a single card."""

import pynvml
import pytest

from hami.devices.usage import NvmlUsage, ProcessUsage
from hami.errors import HamiError
from testing.cases import cases
from testing.fake_nvml import A100, GIB, MIB, FakeNvml, Gpu, Process

LOST, UNKNOWN, NOT_SUPPORTED = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
)
NOW = 1_700_000_000.0


def two(*processes, **fields):
    """A driver with two cards; the first has the processes."""
    return FakeNvml(
        Gpu("GPU-0", processes=list(processes), used=3 * GIB, rates=(40, 20), **fields),
        Gpu("GPU-1"),
    )


def test_a_card_and_its_processes():
    nvml = two(Process(7, GIB, 30), Process(8, 2 * GIB))
    first, second = NvmlUsage(nvml).read(NOW)
    assert (first.uuid, first.index, first.model, first.memory, first.memory_used) == (
        "GPU-0",
        0,
        "NVIDIA A100-SXM4-80GB",
        80 * GIB,
        3 * GIB,
    )
    assert (first.utilization, first.memory_utilization, first.problems) == (40, 20, ())
    assert first.processes == {7: ProcessUsage(GIB, 30), 8: ProcessUsage(2 * GIB, 0)}
    assert (second.processes, second.utilization) == ({}, 0)


def test_a_process_that_computes_and_draws_counts_once():
    nvml = two(
        Process(7, GIB), Process(7, 2 * GIB, kind="Graphics"), Process(9, None, kind="MPSCompute")
    )
    card, _ = NvmlUsage(nvml).read(NOW)
    assert card.processes == {7: ProcessUsage(2 * GIB, 0), 9: ProcessUsage(None, 0)}


@cases(
    "sample, percent",
    (Process(7, GIB, 30, at=int(NOW * 1e6)), 30),
    (Process(7, GIB, 30, at=int((NOW - 5) * 1e6)), 0),
    (Process(7, GIB, 4_000_000_000), 100),
    (Process(0, GIB, 30), 0),
)
def test_samples_that_are_old_or_impossible(sample, percent):
    nvml = two(Process(7, GIB), sample)
    card, _ = NvmlUsage(nvml).read(NOW)
    assert card.processes[7].sm == percent


def test_the_latest_sample_of_a_process_counts():
    nvml = two(Process(7, GIB, 90, at=2 << 59), Process(7, GIB, 10, at=3 << 59))
    assert NvmlUsage(nvml).read(NOW)[0].processes[7].sm == 10


@cases(
    "function, status, problem",
    ("nvmlDeviceGetMemoryInfo", LOST, "memory: GPU is lost"),
    ("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED, ""),
    ("nvmlDeviceGetUtilizationRates", UNKNOWN, "utilization: Unknown Error"),
    ("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED, ""),
    ("nvmlDeviceGetProcessUtilization", NOT_SUPPORTED, ""),
    ("nvmlDeviceGetProcessUtilization", 999, "utilization of processes: Unknown Error"),
    ("nvmlDeviceGetComputeRunningProcesses", UNKNOWN, "processes: Unknown Error"),
    ("nvmlDeviceGetGraphicsRunningProcesses", NOT_SUPPORTED, ""),
    ("nvmlDeviceGetName", LOST, "name: GPU is lost"),
    ("nvmlDeviceGetMigMode", UNKNOWN, "MIG mode: Unknown Error"),
)
def test_a_call_that_fails_makes_one_value_unknown(function, status, problem):
    nvml = two(Process(7, GIB, 30))
    _, whole = NvmlUsage(nvml).read(NOW)
    nvml.fail(function, status, 0)
    card, other = NvmlUsage(nvml).read(NOW)
    assert other == whole
    assert card.problems == ((problem,) if problem else ())
    assert (card.memory_used is None) is (function == "nvmlDeviceGetMemoryInfo")
    assert (card.utilization is None) is (function == "nvmlDeviceGetUtilizationRates")
    if function == "nvmlDeviceGetProcessUtilization":
        assert card.processes == {7: ProcessUsage(GIB, None)}


def test_a_driver_that_lists_no_processes_at_all():
    nvml = two(Process(7, GIB))
    for kind in ("Compute", "Graphics", "MPSCompute"):
        nvml.fail(f"nvmlDeviceGet{kind}RunningProcesses", NOT_SUPPORTED)
    assert [card.processes for card in NvmlUsage(nvml).read(NOW)] == [None, None]


def test_an_older_driver_has_older_functions(monkeypatch):
    nvml = two(Process(7, GIB))

    def mismatch(handle):
        raise pynvml.NVMLLibraryMismatchError("too old")

    nvml.nvmlDeviceGetComputeRunningProcesses_v2 = nvml.nvmlDeviceGetComputeRunningProcesses
    nvml.nvmlDeviceGetComputeRunningProcesses = mismatch
    assert NvmlUsage(nvml).read(NOW)[0].processes == {7: ProcessUsage(GIB, 0)}


def test_a_lost_card_is_left_out():
    nvml = two()
    nvml.fail("nvmlDeviceGetUUID", LOST, 0)
    assert [card.uuid for card in NvmlUsage(nvml).read(NOW)] == ["GPU-1"]


def test_a_driver_that_cannot_count_is_an_error():
    nvml = two()
    nvml.fail("nvmlDeviceGetCount", pynvml.NVML_ERROR_UNINITIALIZED)
    with pytest.raises(HamiError, match="cannot count"):
        NvmlUsage(nvml).read(NOW)


def test_mig_instances():
    """The driver knows their memory and processes, but no utilization."""
    nvml = two(mig=True, profiles=A100)
    gpu = nvml.gpus[0]
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start=0, size=1)
    made = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 19, pynvml.byref(placement))
    nvml.nvmlGpuInstanceCreateComputeInstance(made, 50)
    gpu.made[1].processes = [Process(7, GIB)]
    card, _ = NvmlUsage(nvml).read(NOW)
    (instance,) = card.instances
    assert (card.processes, card.problems) == (None, ())
    assert (instance.uuid, instance.memory, instance.memory_used) == ("MIG-1", 9728 * MIB, GIB)
    assert instance.processes == {7: ProcessUsage(GIB, None)}
