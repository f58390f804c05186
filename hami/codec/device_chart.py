"""The chart's device configuration, which applies without a file.

It has the shape of the file, so that one parser reads both. ``manifests/base/device-config.yaml`` has the same content
with comments. Memory in MiB, cores in percent of one device.
Source: HAMi v2.10, charts/hami, templates/scheduler/device-configmap.yaml with the chart's values; MIG models are also
listed under NVML's names, and H20 follows H200, of which it is a prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CHART"]


def _mig(profiles: str, *models: str) -> dict[str, object]:
    """The profiles for devices whose NVML name contains one of *models*; the first matching entry applies."""
    return {"models": list(models), "profiles": profiles.split()}


def _iluvatar(word: str) -> dict[str, object]:
    return {"chipName": word, "commonWord": word, "resourceCountName": f"iluvatar.ai/{word}-vgpu",
            "resourceMemoryName": f"iluvatar.ai/{word}.vMem", "resourceCoreName": f"iluvatar.ai/{word}.vCore"}


def _ascend(chip: str, word: str, memory: int, ai_core: int, ai_cpu: int | None, *templates: dict[str, object],
            capacity: int | None = None, **more: object) -> dict[str, object]:
    """One chip. *capacity*: where it exceeds the allocatable *memory*."""
    name = f"huawei.com/{word}"
    return {"chipName": chip, "commonWord": word, "resourceName": name, "resourceMemoryName": f"{name}-memory",
            "resourceCoreName": f"{name}-core", "memoryAllocatable": memory, "memoryCapacity": capacity or memory,
            "memoryFactor": 1, **_ai(ai_core, ai_cpu), "runtimeClassName": "", "overwriteEnv": False, **more,
            "templates": list(templates)}


def _template(name: str, memory: int, ai_core: int, ai_cpu: int | None = None) -> dict[str, object]:
    return {"name": name, "memory": memory, **_ai(ai_core, ai_cpu)}


def _ai(core: int, cpu: int | None) -> dict[str, object]:
    return {"aiCore": core} if cpu is None else {"aiCore": core, "aiCPU": cpu}


_QUARTER, _HALF = _template("vir05_1c_16g", 16384, 5, 1), _template("vir10_3c_32g", 32768, 10, 3)

CHART: Mapping[str, Any] = {
    "nvidia": {
        "resourceCountName": "nvidia.com/gpu", "resourceMemoryName": "nvidia.com/gpumem",
        "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage", "resourceCoreName": "nvidia.com/gpucores",
        "resourcePriorityName": "nvidia.com/priority", "overwriteEnv": False, "defaultMemory": 0, "defaultCores": 0,
        "defaultGPUNum": 1, "memoryFactor": 1, "gpuCorePolicy": "default", "runtimeClassName": "",
        "deviceSplitCount": 10, "deviceMemoryScaling": 1, "deviceCoreScaling": 1, "preConfiguredDeviceMemory": 0,
        "libCudaLogLevel": 1, "enableNumaTopology": False, "migProfileAllowlist": [
            _mig("1g.6gb 2g.12gb 4g.24gb", "A30"),
            _mig("1g.5gb 2g.10gb 3g.20gb 7g.40gb", "A100-SXM4-40GB", "A100-40GB-PCIe", "A100-PCIE-40GB"),
            _mig("1g.10gb 2g.20gb 3g.40gb 7g.79gb", "A100-SXM4-80GB", "A100-80GB-PCIe", "A100-PCIE-80GB",
                 "A100 80GB PCIe"),
            _mig("1g.12gb 2g.24gb 3g.47gb 7g.94gb", "H100-PCIE-94GB", "H100-SXM5-94GB", "H100 NVL"),
            _mig("1g.18gb 2g.35gb 3g.71gb 7g.141gb", "H200 NVL", "H200-SXM5", "NVIDIA H200"),
            _mig("1g.12gb 2g.24gb 3g.48gb 7g.96gb", "NVIDIA H20", "H100 on GH200", "GH200 480GB"),
            _mig("1g.10gb 2g.20gb 3g.40gb 7g.80gb", "H100-PCIE-80GB", "H100-SXM5-80GB", "H100 80GB HBM3", "H100 PCIe"),
            _mig("1g.23gb 2g.45gb 3g.90gb 7g.180gb", "B200"),
            _mig("1g.24gb 2g.48gb 4g.96gb", "RTX PRO 6000 Blackwell Server Edition"),
        ],
    },
    "cambricon": {
        "resourceCountName": "cambricon.com/vmlu", "resourceMemoryName": "cambricon.com/mlu.smlu.vmemory",
        "resourceCoreName": "cambricon.com/mlu.smlu.vcore",
    },
    "hygon": {
        "resourceCountName": "hygon.com/dcunum", "resourceMemoryName": "hygon.com/dcumem",
        "resourceCoreName": "hygon.com/dcucores", "memoryFactor": 1,
    },
    "metax": {
        "resourceCountName": "metax-tech.com/gpu", "resourceVCountName": "metax-tech.com/sgpu",
        "resourceVMemoryName": "metax-tech.com/vmemory", "resourceVCoreName": "metax-tech.com/vcore",
        "sgpuTopologyAware": False,
    },
    "enflame": {
        "resourceNameGCU": "enflame.com/gcu", "resourceNameDRSGCU": "enflame.com/drs-gcu",
        "resourceNameGCUMemory": "enflame.com/gcu-memory", "resourceNameGCUCore": "enflame.com/gcu-core",
    },
    "mthreads": {
        "resourceCountName": "mthreads.com/vgpu", "resourceMemoryName": "mthreads.com/sgpu-memory",
        "resourceCoreName": "mthreads.com/sgpu-core",
    },
    "iluvatars": [_iluvatar(word) for word in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")],
    "kunlun": {
        "resourceCountName": "kunlunxin.com/xpu", "resourceVCountName": "kunlunxin.com/vxpu",
        "resourceVMemoryName": "kunlunxin.com/vxpu-memory",
    },
    "awsneuron": {
        "resourceCountName": "aws.amazon.com/neuron", "resourceCoreName": "aws.amazon.com/neuroncore",
    },
    "amd": {
        "resourceCountName": "amd.com/gpu", "resourceMemoryName": "amd.com/gpumem",
        "resourceCoreName": "amd.com/gpucores",
    },
    "vastai": {"resourceCountName": "vastaitech.com/va"},
    "biren": {"resourceCountName": "birentech.com/gpu"},
    "vnpus": {
        "hamiVnpuCore": False,
        "configs": [
            _ascend("910A", "Ascend910A", 32768, 30, None, _template("vir02", 2184, 2), _template("vir04", 4369, 4),
                    _template("vir08", 8738, 8), _template("vir16", 17476, 16)),
            _ascend("910B2", "Ascend910B2", 65536, 24, 6, _template("vir03_1c_8g", 8192, 3, 1),
                    _template("vir06_1c_16g", 16384, 6, 1), _template("vir12_3c_32g", 32768, 12, 3)),
            _ascend("910B3", "Ascend910B3", 65536, 20, 7, _QUARTER, _HALF),
            _ascend("910B4-1", "Ascend910B4-1", 65536, 20, 7, _QUARTER, _HALF),
            _ascend("910B4", "Ascend910B4", 32768, 20, 7, _template("vir05_1c_8g", 8192, 5, 1),
                    _template("vir10_3c_16g", 16384, 10, 3)),
            _ascend("310P3", "Ascend310P", 21527, 8, 7, _template("vir01", 3072, 1, 1), _template("vir02", 6144, 2, 2),
                    _template("vir04", 12288, 4, 4), capacity=24576),
            _ascend("Ascend910", "Ascend910C", 65536, 20, 7, _QUARTER, _HALF, superPod=True),
        ],
    },
}
