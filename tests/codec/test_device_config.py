"""The device configuration file."""

import dataclasses

import pytest

from hami.codec.device_config import DeviceConfig, MigAllowance, NvidiaConfig, parse_device_config
from hami.errors import MalformedInput

CHART = """
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  memoryFactor: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
  preConfiguredDeviceMemory: 0
  libCudaLogLevel: 1
  gpuCorePolicy: default
  runtimeClassName: ""
"""


def nvidia(text):
    """The nvidia section made of *text*, one key."""
    return parse_device_config(f"nvidia:\n  resourceCountName: nvidia.com/gpu\n  {text}\n", "device.yaml").nvidia


def test_the_chart_s_file_says_what_holds_without_one():
    assert parse_device_config(CHART, "device.yaml") == DeviceConfig() == DeviceConfig(nvidia=NvidiaConfig())


def test_names_that_a_file_leaves_out_are_inert():
    config = nvidia("")
    names = [field.name for field in dataclasses.fields(NvidiaConfig) if field.name.startswith("resource_")]
    assert {name: getattr(config, name) for name in names} == {
        name: "nvidia.com/gpu" if name == "resource_count_name" else "" for name in names}
    assert (config.memory_factor, config.default_gpu_num) == (1, 0)


def test_a_file_without_nvidia_has_none():
    config = parse_device_config("hygon: {resourceCountName: hygon.com/dcunum}", "device.yaml")
    assert config == DeviceConfig(nvidia=None, others={"hygon": {"resourceCountName": "hygon.com/dcunum"}})
    assert config.others == {"hygon": {"resourceCountName": "hygon.com/dcunum"}}


@pytest.mark.parametrize("text, field, value", [
    ("memoryFactor: 512", "memory_factor", 512),
    ("memoryFactor: 2.0", "memory_factor", 2),
    ("memoryFactor: 0", "memory_factor", 1),
    ("memoryFactor:", "memory_factor", 1),
    ("defaultMemory: 5000", "default_memory", 5000),
    ("defaultCores: 30", "default_cores", 30),
    ("overwriteEnv: true", "overwrite_env", True),
    ("overwriteEnv: yes", "overwrite_env", True),
    ("gpuCorePolicy: force", "gpu_core_policy", "force"),
    ("gpuCorePolicy: ''", "gpu_core_policy", "default"),
    ("runtimeClassName: nvidia", "runtime_class_name", "nvidia"),
    ("disableCoreLimit: true", "disable_core_limit", True),
    ("deviceSplitCount: 4", "device_split_count", 4),
    ("deviceMemoryScaling: 1.8", "device_memory_scaling", 1.8),
    ("deviceCoreScaling: 2", "device_core_scaling", 2.0),
    ("preConfiguredDeviceMemory: 8000", "preconfigured_device_memory", 8000),
    ("enableNumaTopology: true", "enable_numa_topology", True),
    ("libCudaLogLevel: 3", "lib_cuda_log_level", 3),
    ("migProfileAllowlist: [{models: [A100], profiles: [1g.5gb, 1c.3g.20gb]}]", "mig_profile_allowlist",
     (MigAllowance(("A100",), ("1g.5gb", "1c.3g.20gb")),)),
])
def test_each_key_has_its_field(text, field, value):
    assert getattr(nvidia(text), field) == value


@pytest.mark.parametrize("text, key, right", [
    ("memoryFactor: '2'", "memoryFactor", "without quotes"),
    ("memoryFactor: -1", "memoryFactor", "from 0"),
    ("memoryFactor: 1.5", "memoryFactor", "whole number"),
    ("memoryFactor: .inf", "memoryFactor", "whole number"),
    ("memoryFactor: true", "memoryFactor", "whole number"),
    ("memoryFactor: 2147483648", "memoryFactor", "2147483647"),
    ("defaultCores: 101", "defaultCores", "from 0 to 100"),
    ("defaultGPUNum: [1]", "defaultGPUNum", "whole number"),
    ("deviceSplitCount: 0", "deviceSplitCount", "from 1"),
    ("deviceMemoryScaling: 0", "deviceMemoryScaling", "above 0"),
    ("deviceMemoryScaling: -1.5", "deviceMemoryScaling", "above 0"),
    ("deviceMemoryScaling: '1.5'", "deviceMemoryScaling", "without quotes"),
    ("deviceCoreScaling: .nan", "deviceCoreScaling", "above 0"),
    ("overwriteEnv: 'false'", "overwriteEnv", "true or false without quotes"),
    ("overwriteEnv: 1", "overwriteEnv", "true or false"),
    ("gpuCorePolicy: always", "gpuCorePolicy", "default or force or disable"),
    ("gpuCorePolicy: [force]", "gpuCorePolicy", "default or force or disable"),
    ("runtimeClassName: Not A Name", "runtimeClassName", "name of an object"),
    ("resourceMemoryName: 'gpu mem'", "resourceMemoryName", "resource name"),
    ("resourceMemoryName: nvidia.com/", "resourceMemoryName", "resource name"),
    ("resourceMemoryName: /gpumem", "resourceMemoryName", "resource name"),
    ("resourceMemoryName: a.b/c/d", "resourceMemoryName", "resource name"),
    ("resourceMemoryName: 5", "resourceMemoryName", "resource name"),
    ("resourceMemoryName: nvidia.com/gpu", "resourceMemoryName", "another name than that of resourceCountName"),
    ("migProfileAllowlist: {}", "migProfileAllowlist", "a list"),
    ("migProfileAllowlist: [A100]", "migProfileAllowlist[0]", "a mapping"),
    ("migProfileAllowlist: [{models: [A100]}]", "migProfileAllowlist[0].profiles", "at least one"),
    ("migProfileAllowlist: [{models: [], profiles: [1g.5gb]}]", "migProfileAllowlist[0].models", "at least one"),
    ("migProfileAllowlist: [{models: [A100], profiles: [g.5gb]}]", "migProfileAllowlist[0].profiles", "1g.10gb"),
    ("migProfileAllowlist: [{models: [1], profiles: [1g.5gb]}]", "migProfileAllowlist[0].models", "list of words"),
])
def test_a_bad_value_is_named_with_what_would_be_right(text, key, right):
    with pytest.raises(MalformedInput) as caught:
        nvidia(text)
    assert caught.value.field == f"device.yaml: nvidia.{key}"
    assert right in caught.value.problem


@pytest.mark.parametrize("text, field, problem", [
    ("", "device.yaml", "all configurations are empty"),
    ("{}", "device.yaml", "all configurations are empty"),
    ("nvidia: {}", "device.yaml", "all configurations are empty"),
    ("nvidia:\nhygon:", "device.yaml", "all configurations are empty"),
    ("gpus: {a: 1}", "device.yaml", "all configurations are empty"),
    ("- nvidia", "device.yaml", "expected a mapping"),
    ("nvidia", "device.yaml", "expected a mapping"),
    ("nvidia: [1]", "device.yaml: nvidia", "expected a mapping"),
    ("iluvatars: {a: 1}", "device.yaml: iluvatars", "expected a list"),
    ("nvidia: {", "device.yaml", "not YAML"),
    ("nvidia:\n\tresourceCountName: a", "device.yaml", "not YAML in line 2"),
    ("a: \x00", "device.yaml", "not YAML"),
])
def test_a_document_that_cannot_be_used_is_refused(text, field, problem):
    with pytest.raises(MalformedInput) as caught:
        parse_device_config(text, "device.yaml")
    assert caught.value.field == field
    assert caught.value.problem.startswith(problem)


def test_unknown_keys_are_skipped_and_noted():
    config = parse_device_config("nvidia: {resourceCountName: a.b/c, memoryfactor: 2}\nnpus: {}", "device.yaml")
    assert config.nvidia is not None and config.nvidia.memory_factor == 1
    assert config.notes == ("device.yaml: npus: unknown section, skipped",
                            "device.yaml: nvidia.memoryfactor: unknown key, skipped")
