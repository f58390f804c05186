"""Regions that HAMi's own library has made, one of each layout.

Recorded with HAMi-core at commits 8f3a89c (1.2), e200da2 (1.1 shifted), 24a0f49 (1.1) and 7a9c88b (v0), compiled with
gcc and preloaded into libvgpu/tests/clients/client.c on the fake driver: CUDA_DEVICE_MEMORY_LIMIT_0=2000m,
CUDA_DEVICE_SM_LIMIT=30, CUDA_TASK_PRIORITY=1, then ``init``, ``ctx 0``, ``alloc plain 0 104857600`` and ``launch plain
1000 1``. The fake NVML needed nvmlDeviceGetHandleByIndex beside its second version, and glibc a ``_dl_sym`` for v0.
"""

import gzip
from pathlib import Path

from hami.monitor.region_files import RegionFiles, RegionState
from hami.node.host import directory_name
from testing.cases import cases

UID, NAME, MIB = "8f1c2a44-0000-4000-8000-000000000001", "main", 1 << 20
RECORDED = Path(__file__).parent / "recorded"
LAST_KERNEL = 1_795_412_700  # when they were recorded, to the minute


@cases("recorded, version", ("1.2", "1.2"), ("1.1", "1.1"), ("1.1-shifted", "1.1"), ("v0", "v0"))
def test_a_region_of_hamis_library_is_read(tmp_path, recorded, version):
    directory = tmp_path / "vgpu" / "containers" / directory_name(UID, NAME)
    directory.mkdir(parents=True)
    (directory / "a.cache").write_bytes(
        gzip.decompress((RECORDED / f"{recorded}.region.gz").read_bytes())
    )
    reading = RegionFiles(tmp_path).read(UID, NAME)
    assert reading.state is RegionState.OK
    assert reading.problem == ""
    region = reading.region
    (device,), (process,) = region.devices, region.processes
    assert region.version == version
    assert (device.index, device.uuid) == (0, "GPU-11111111-1111-1111-1111-111111111111")
    assert (device.memory_limit, device.core_limit) == (2000 * MIB, 30)
    assert (device.context, device.module, device.buffer, device.total) == (
        0,
        0,
        100 * MIB,
        100 * MIB,
    )
    assert process.slot == 0
    assert process.pid > 0
    assert process.host_pid == 0
    assert (region.switch, region.recent_kernel, region.priority) == (1, 2, 1)
    launched = 0 if version == "v0" else LAST_KERNEL
    assert abs(region.last_kernel_time - launched) < 60
