"""The device configuration file."""

import copy
import dataclasses
import datetime
import functools
import operator
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
import yaml

from hami.codec.device_config import (
    CHART,
    AscendChip,
    Chip,
    DeviceConfig,
    FlagValue,
    Key,
    MigAllowance,
    Names,
    NvidiaConfig,
    Template,
    chart_config,
    parse_device_config,
    parse_resource_name,
)
from hami.errors import MalformedInput
from testing.cases import cases

MANIFEST = Path(__file__).parents[2] / "manifests" / "base" / "device-config.yaml"
DRS = Names(
    count="enflame.com/drs-gcu", memory="enflame.com/gcu-memory", cores="enflame.com/gcu-core"
)


def parse(text, **options):
    """The configuration in *text*."""
    return parse_device_config(text, "device.yaml", **options)


def nvidia(text):
    """The nvidia section made of *text*, one key."""
    return parse_device_config(
        f"nvidia:\n  resourceCountName: nvidia.com/gpu\n  {text}\n", "device.yaml"
    ).nvidia


def ascend(text="", word="Ascend910B4", **options):
    """The chip of an entry of vnpus.configs: *text* replaces keys of a chip of 32 GiB with two templates."""
    entry = {
        "commonWord": word,
        "resourceName": "huawei.com/npu",
        "memoryAllocatable": 32768,
        "memoryCapacity": 32768,
        "templates": [{"name": "vir05", "memory": 8192}, {"name": "vir10", "memory": 16384}],
    }
    changed = entry | (yaml.safe_load(text) or {})
    return parse(yaml.safe_dump({"vnpus": {"configs": [changed]}}), **options).ascends[0]


def flags(**values):
    """Values of flags by section: ``flags(hygon={"resourceCountName": "a.b/c"})``, ``iluvatars[]`` for the chip that
    lacks the key, ``vnpus.configs[WORD]`` for one chip. A flag is named after its key."""
    given = {}
    for path, keys in values.items():
        section, bracket, word = path.partition("[")
        for name, value in keys.items():
            key = Key(section, name, word.removesuffix("]") if bracket else None)
            given[key] = FlagValue(value, f"--{name}")
    return given


def test_the_manifest_is_what_holds_without_a_file():
    assert MANIFEST.read_bytes() == (files("hami.codec") / MANIFEST.name).read_bytes()
    assert yaml.safe_load(MANIFEST.read_text()) == CHART
    assert parse_device_config(MANIFEST.read_text(), "device.yaml") == chart_config()


@cases(
    "model, first",
    ("NVIDIA A30", "1g.6gb"),
    ("NVIDIA A100-SXM4-80GB", "1g.10gb"),
    ("NVIDIA A100 80GB PCIe", "1g.10gb"),
    ("NVIDIA A100-PCIE-40GB", "1g.5gb"),
    ("NVIDIA H100 80GB HBM3", "1g.10gb"),
    ("NVIDIA H100 NVL", "1g.12gb"),
    ("NVIDIA H200", "1g.18gb"),
    ("NVIDIA H20", "1g.12gb"),
    ("NVIDIA GH200 480GB", "1g.12gb"),
    ("NVIDIA L4", None),
)
def test_what_may_be_cut_by_the_name_that_a_card_gives_itself(model, first):
    found = [
        entry.profiles[0]
        for entry in chart_config().nvidia.mig_profile_allowlist
        if any(part in model for part in entry.models)
    ]
    assert (found or [None])[0] == first


def test_the_chart_has_every_backend():
    config = chart_config()
    assert msgspec.structs.replace(config.nvidia, mig_profile_allowlist=()) == NvidiaConfig()
    assert sorted(config.names) == [
        "AMD",
        "AWSNeuron",
        "Biren",
        "DCU",
        "Enflame",
        "GCU",
        "HCU",
        "MLU",
        "Metax-GPU",
        "Metax-SGPU",
        "Mthreads",
        "Vastai",
        "XPU",
        "kunlun",
    ]
    assert [chip.common_word for chip in config.iluvatars] == [
        "MR-V100",
        "MR-V50",
        "BI-V150",
        "BI-V100",
    ]
    assert (config.hami_vnpu_core, config.sgpu_topology_aware) == (False, False)
    assert (config.extra_sections, config.notes) == ({}, ())


@cases(
    "backend, count, memory, cores",
    ("MLU", "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"),
    ("DCU", "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"),
    ("HCU", "hygon.com/hcunum", "hygon.com/hcumem", "hygon.com/hcucores"),
    ("AMD", "amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"),
    ("AWSNeuron", "aws.amazon.com/neuron", "", "aws.amazon.com/neuroncore"),
    ("Biren", "birentech.com/gpu", "", ""),
    ("GCU", "enflame.com/gcu", "", ""),
    ("Enflame", "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"),
    ("kunlun", "kunlunxin.com/xpu", "", ""),
    ("XPU", "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory", ""),
    ("Metax-GPU", "metax-tech.com/gpu", "", ""),
    ("Metax-SGPU", "metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"),
    ("Mthreads", "mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"),
    ("Vastai", "vastaitech.com/va", "", ""),
)
def test_the_names_of_the_chart(backend, count, memory, cores):
    assert chart_config().names[backend] == Names(count=count, memory=memory, cores=cores)


@cases(
    "word, chip, allocatable, capacity, super_pod, templates",
    ("Ascend910A", "910A", 32768, 32768, False, "vir02:2184 vir04:4369 vir08:8738 vir16:17476"),
    (
        "Ascend910B2",
        "910B2",
        65536,
        65536,
        False,
        "vir03_1c_8g:8192 vir06_1c_16g:16384 vir12_3c_32g:32768",
    ),
    ("Ascend910B3", "910B3", 65536, 65536, False, "vir05_1c_16g:16384 vir10_3c_32g:32768"),
    ("Ascend910B4-1", "910B4-1", 65536, 65536, False, "vir05_1c_16g:16384 vir10_3c_32g:32768"),
    ("Ascend910B4", "910B4", 32768, 32768, False, "vir05_1c_8g:8192 vir10_3c_16g:16384"),
    ("Ascend310P", "310P3", 21527, 24576, False, "vir01:3072 vir02:6144 vir04:12288"),
    ("Ascend910C", "Ascend910", 65536, 65536, True, "vir05_1c_16g:16384 vir10_3c_32g:32768"),
)
def test_the_ascend_chips_of_the_chart(word, chip, allocatable, capacity, super_pod, templates):
    found = {chip.common_word: chip for chip in chart_config().ascends}[word]
    assert (found.chip_name, found.memory_allocatable, found.memory_capacity, found.super_pod) == (
        chip,
        allocatable,
        capacity,
        super_pod,
    )
    assert (found.overwrite_env, found.runtime_class) == (False, "")
    assert found.names == Names(
        count=f"huawei.com/{word}",
        memory=f"huawei.com/{word}-memory",
        cores=f"huawei.com/{word}-core",
    )
    assert (
        " ".join(f"{template.name}:{template.memory_mib}" for template in found.templates)
        == templates
    )


def test_a_configuration_made_by_hand_has_nvidia_alone():
    assert DeviceConfig() == DeviceConfig(nvidia=NvidiaConfig())
    assert (DeviceConfig().names, DeviceConfig().iluvatars, DeviceConfig().ascends) == ({}, (), ())


def test_names_that_a_file_leaves_out_are_inert():
    config = nvidia("")
    names = [name for name in NvidiaConfig.__struct_fields__ if name.startswith("resource_")]
    assert {name: getattr(config, name) for name in names} == {
        name: "nvidia.com/gpu" if name == "resource_count_name" else "" for name in names
    }
    assert (config.memory_factor, config.default_gpu_num) == (1, 0)


def test_a_file_has_what_it_names_and_enflame_s_slices():
    config = parse("hygon: {resourceCountName: hygon.com/dcunum, memoryFactor: 512}")
    names = {"DCU": Names(count="hygon.com/dcunum", memory_factor=512), "Enflame": DRS}
    assert config == DeviceConfig(nvidia=None, names=names)


@cases(
    "text, names",
    ("resourceNameGCU: a.b/c", DRS),
    ("resourceNameDRSGCU: ''", DRS),
    ("resourceNameDRSGCU: a.b/drs", dataclasses.replace(DRS, count="a.b/drs")),
    ("resourceNameVGCU: a.b/vgcu", dataclasses.replace(DRS, count="a.b/vgcu")),
    (
        "{resourceNameDRSGCU: a.b/drs, resourceNameVGCU: a.b/vgcu}",
        dataclasses.replace(DRS, count="a.b/drs"),
    ),
    (
        "{resourceNameDRSGCU: a.b/drs, resourceNameVGCU: a.b/drs}",
        dataclasses.replace(DRS, count="a.b/drs"),
    ),
    (
        "{resourceNameGCUMemory: a.b/mem, resourceNameGCUCore: a.b/core}",
        dataclasses.replace(DRS, memory="a.b/mem", cores="a.b/core"),
    ),
)
def test_enflame_s_slices_have_names_that_nobody_gave(text, names):
    config = parse(yaml.safe_dump({"enflame": yaml.safe_load(text)}))
    assert (config.names["Enflame"], config.notes) == (names, ())


@cases(
    "text, note",
    (
        "nvidia: {resourceCountName: a.b/c, memoryfactor: 2}",
        "nvidia.memoryfactor: unknown key, skipped",
    ),
    ("hygon: {resourceCountname: a.b/c}", "hygon.resourceCountname: unknown key, skipped"),
    (
        "hygon: {resourceMemoryName: a.b/c}",
        "hygon.resourceCountName: no name, so the other names of DCU have no effect",
    ),
    (
        "kunlun: {resourceVMemoryName: a.b/c}",
        "kunlun.resourceVCountName: no name, so the other names of XPU have no effect",
    ),
    (
        "enflame: {resourceNameVGCUPercentage: a.b/c}",
        "enflame.resourceNameVGCUPercentage: slices are requested by memory and cores now, skipped",
    ),
    ("iluvatars: [{commonWord: A, aiCore: 1}]", "iluvatars[0].aiCore: unknown key, skipped"),
    ("vnpus: {hamiVNpuCore: true}", "vnpus.hamiVNpuCore: unknown key, skipped"),
    ("npus: {a: 1}\nbiren: {resourceCountName: a.b/c}", "npus: unknown section, skipped"),
    ("1: {a: 1}\nbiren: {resourceCountName: a.b/c}", "1: unknown section, skipped"),
)
def test_what_is_skipped_is_noted(text, note):
    assert parse(text).notes == (f"device.yaml: {note}",)


def test_a_chip_that_the_chart_does_not_know_is_taken_as_described():
    text = "vnpus: {configs: [{commonWord: Ascend910D, memoryAllocatable: 1, memoryCapacity: 1, templates: %s}]}"
    config = parse(text % "[]")
    assert config.ascends[0].common_word == "Ascend910D"
    assert config.notes == (
        "device.yaml: vnpus.configs[0].commonWord: Ascend910D is none of Ascend910A, Ascend910B2, Ascend910B3, "
        "Ascend910B4-1, Ascend910B4, Ascend310P, Ascend910C; taken as described",
    )
    with pytest.raises(MalformedInput) as caught:
        parse(text % "null")
    assert caught.value.field == "device.yaml: vnpus.configs[0].templates"
    assert caught.value.problem.startswith(
        "missing, expected a list ([] for a chip that is never divided), since"
    )


@cases(
    "text, field, value",
    ("chipName: 910B4", "chip_name", "910B4"),
    ("chipName: 910", "chip_name", 910),
    ("memoryFactor: 1024", "names", Names(count="huawei.com/npu", memory_factor=1024)),
    ("resourceName: null", "names", Names()),
    (
        "{resourceMemoryName: huawei.com/mem, resourceCoreName: huawei.com/core}",
        "names",
        Names(count="huawei.com/npu", memory="huawei.com/mem", cores="huawei.com/core"),
    ),
    ("memoryCapacity: 40000", "memory_capacity", 40000),
    ("runtimeClassName: ascend", "runtime_class", "ascend"),
    ("overwriteEnv: true", "overwrite_env", True),
    ("superPod: true", "super_pod", True),
    ("aiCore: 20", "templates", (Template("vir05", 8192), Template("vir10", 16384))),
    (
        "templates: [{name: b, memory: 2, aiCore: 1, aiCPU: 1}, {name: a, memory: 1}]",
        "templates",
        (Template("a", 1), Template("b", 2, ai_core=1, ai_cpu=1)),
    ),
    ("templates: null", "templates", ()),
    ("templates: [{name: all, memory: 32768}]", "templates", (Template("all", 32768),)),
)
def test_each_key_of_an_ascend_chip_has_its_field(text, field, value):
    assert getattr(ascend(text), field) == value


def test_chips_may_stand_right_under_vnpus():
    config = parse("vnpus: [{commonWord: Ascend310P, memoryAllocatable: 1, memoryCapacity: 2}]")
    assert config.ascends == (
        AscendChip(common_word="Ascend310P", memory_allocatable=1, memory_capacity=2),
    )


def test_switches_of_whole_sections():
    config = parse("vnpus: {hamiVnpuCore: true}\nmetax: {sgpuTopologyAware: true}")
    assert (config.hami_vnpu_core, config.sgpu_topology_aware) == (True, True)


def test_iluvatar_chips():
    config = parse(
        "iluvatars: [{chipName: x, commonWord: BI-V200, resourceCountName: iluvatar.ai/BI-V200-vgpu}]"
    )
    assert config.iluvatars == (
        Chip(chip_name="x", common_word="BI-V200", resource_count_name="iluvatar.ai/BI-V200-vgpu"),
    )
    assert config.iluvatars[0].names == Names(count="iluvatar.ai/BI-V200-vgpu")


@cases(
    "text, known, extra_sections, notes",
    ("acme: {count: a.b/c}", ["acme"], {"acme": {"count": "a.b/c"}}, ()),
    (
        "acme: {count: a.b/c}\nbiren: {resourceCountName: d.e/f}",
        [],
        {"acme": {"count": "a.b/c"}},
        ("device.yaml: acme: unknown section, skipped",),
    ),
    (
        "acme: 5\nbiren: {resourceCountName: d.e/f}",
        [],
        {},
        ("device.yaml: acme: unknown section, skipped",),
    ),
    ("acme:\nbiren: {resourceCountName: d.e/f}", ["acme"], {}, ()),
)
def test_sections_of_third_parties_are_handed_on_as_they_stand(text, known, extra_sections, notes):
    config = parse(text, known=known)
    assert (config.extra_sections, config.notes) == (extra_sections, notes)


@cases(
    "text, field, value",
    ("memoryFactor: 512", "memory_factor", 512),
    ("memoryFactor: 2.0", "memory_factor", 2),
    ("memoryFactor:", "memory_factor", 1),
    ("defaultMemory: 5000", "default_memory", 5000),
    ("defaultCores: 30", "default_cores", 30),
    ("overwriteEnv: true", "overwrite_env", True),
    ("overwriteEnv: yes", "overwrite_env", True),
    ("strict: true", "strict", True),
    ("gpuCorePolicy: force", "gpu_core_policy", "force"),
    ("gpuCorePolicy: ''", "gpu_core_policy", "default"),
    ("gpucoresLimits: {team-a: 60, b: 100}", "gpucores_limits", {"team-a": 60, "b": 100}),
    ("gpucoresLimits:", "gpucores_limits", {}),
    ("runtimeClassName: nvidia", "runtime_class_name", "nvidia"),
    ("disableCoreLimit: true", "disable_core_limit", True),
    ("deviceSplitCount: 4", "device_split_count", 4),
    ("deviceMemoryScaling: 1.8", "device_memory_scaling", 1.8),
    ("deviceCoreScaling: 2", "device_core_scaling", 2.0),
    ("preConfiguredDeviceMemory: 8000", "preconfigured_device_memory", 8000),
    ("enableNumaTopology: true", "enable_numa_topology", True),
    ("libCudaLogLevel: 3", "lib_cuda_log_level", 3),
    ("computeBy: nvml", "compute_by", "nvml"),
    ("computeBy: 'off'", "compute_by", "off"),
    ("computeOf: all", "compute_of", "all"),
    (
        "migProfileAllowlist: [{models: [A100], profiles: [1g.5gb, 1c.3g.20gb]}]",
        "mig_profile_allowlist",
        (MigAllowance(("A100",), ("1g.5gb", "1c.3g.20gb")),),
    ),
)
def test_each_key_has_its_field(text, field, value):
    assert getattr(nvidia(text), field) == value


@cases(
    "text, key, right",
    ("memoryFactor: '2'", "memoryFactor", "without quotes"),
    ("memoryFactor: 0", "memoryFactor", "from 1"),
    ("memoryFactor: -1", "memoryFactor", "from 1"),
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
    ("gpucoresLimits: {team-a: 0}", "gpucoresLimits", "numbers from 1 to 100 by namespace"),
    ("gpucoresLimits: {team-a: 101}", "gpucoresLimits", "such as {team-a: 60}"),
    ("gpucoresLimits: {team-a: '60'}", "gpucoresLimits", "such as {team-a: 60}"),
    ("gpucoresLimits: 60", "gpucoresLimits", "such as {team-a: 60}"),
    ("runtimeClassName: Not A Name", "runtimeClassName", "name of an object"),
    ("resourceMemoryName: 'gpu mem'", "resourceMemoryName", "resource name"),
    ("resourceMemoryName: nvidia.com/", "resourceMemoryName", "resource name"),
    ("resourceMemoryName: /gpumem", "resourceMemoryName", "resource name"),
    ("resourceMemoryName: a.b/c/d", "resourceMemoryName", "resource name"),
    ("resourceMemoryName: 5", "resourceMemoryName", "resource name"),
    (
        "resourceMemoryName: nvidia.com/gpu",
        "resourceMemoryName",
        "another name than that of nvidia.resourceCountName",
    ),
    ("migProfileAllowlist: {}", "migProfileAllowlist", "a list"),
    ("migProfileAllowlist: [A100]", "migProfileAllowlist[0]", "a mapping"),
    ("migProfileAllowlist: [{models: [A100]}]", "migProfileAllowlist[0].profiles", "at least one"),
    (
        "migProfileAllowlist: [{models: [], profiles: [1g.5gb]}]",
        "migProfileAllowlist[0].models",
        "at least one",
    ),
    (
        "migProfileAllowlist: [{models: [A100], profiles: [g.5gb]}]",
        "migProfileAllowlist[0].profiles",
        "1g.10gb",
    ),
    (
        "migProfileAllowlist: [{models: [1], profiles: [1g.5gb]}]",
        "migProfileAllowlist[0].models",
        "list of words",
    ),
)
def test_a_bad_value_is_named_with_what_would_be_right(text, key, right):
    with pytest.raises(MalformedInput) as caught:
        nvidia(text)
    assert caught.value.field == f"device.yaml: nvidia.{key}"
    assert right in caught.value.problem


@cases(
    "text, key, right",
    ("memoryFactor: 0", "memoryFactor", "from 1"),
    ("memoryFactor: -1", "memoryFactor", "from 1"),
    ("memoryFactor: '2'", "memoryFactor", "without quotes"),
    ("resourceName: a b", "resourceName", "a resource name"),
    ("chipName: [910]", "chipName", "a text"),
    ("chipName: true", "chipName", "a text"),
    (
        "memoryAllocatable: null",
        "memoryAllocatable",
        "missing, expected MiB that a whole chip offers",
    ),
    ("memoryAllocatable: 0", "memoryAllocatable", "from 1"),
    ("memoryCapacity: null", "memoryCapacity", "missing, expected MiB of the chip"),
    (
        "memoryCapacity: 32767",
        "memoryCapacity",
        "memoryAllocatable or more, a whole number from 32768",
    ),
    ("memoryCapacity: 32Gi", "memoryCapacity", "whole number"),
    ("aiCore: few", "aiCore", "whole number"),
    ("aiCPU: -1", "aiCPU", "from 0"),
    ("runtimeClassName: Not A Name", "runtimeClassName", "name of an object"),
    ("overwriteEnv: 'true'", "overwriteEnv", "true or false without quotes"),
    ("superPod: 1", "superPod", "true or false"),
    ("templates: {}", "templates", "a list"),
    ("templates: [vir01]", "templates[0]", "a mapping"),
    ("templates: [{memory: 1}]", "templates[0].name", "missing, expected the name of a template"),
    ("templates: [{name: 'a,b', memory: 1}]", "templates[0].name", "letters, digits"),
    ("templates: [{name: a}]", "templates[0].memory", "missing, expected MiB of the template"),
    ("templates: [{name: a, memory: 0}]", "templates[0].memory", "from 1 to 32768"),
    ("templates: [{name: a, memory: -5}]", "templates[0].memory", "from 1 to 32768"),
    ("templates: [{name: a, memory: 32769}]", "templates[0].memory", "memoryCapacity at most"),
    (
        "templates: [{name: a, memory: 1}, {name: a, memory: 2}]",
        "templates[1].name",
        "another name",
    ),
    (
        "templates: [{name: a, memory: 1}, {name: b, memory: 1}]",
        "templates[1].memory",
        "another size than that of a",
    ),
    ("templates: [{name: a, memory: 1, aiCore: x}]", "templates[0].aiCore", "whole number"),
)
def test_a_bad_ascend_chip_is_named_with_what_would_be_right(text, key, right):
    with pytest.raises(MalformedInput) as caught:
        ascend(text)
    assert caught.value.field == f"device.yaml: vnpus.configs[0].{key}"
    assert right in caught.value.problem


@cases(
    "text, field, problem",
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
)
def test_a_document_that_cannot_be_used_is_refused(text, field, problem):
    with pytest.raises(MalformedInput) as caught:
        parse_device_config(text, "device.yaml")
    assert caught.value.field == field
    assert caught.value.problem.startswith(problem)


SMALL = yaml.safe_load("""
nvidia: {resourceCountName: nvidia.com/gpu, deviceMemoryScaling: 1.5,
         migProfileAllowlist: [{models: [A], profiles: [1g.5gb]}]}
hygon: {resourceCountName: a/dcu, memoryFactor: 2}
metax: {resourceVCountName: a/sgpu, sgpuTopologyAware: true}
enflame: {resourceNameVGCU: a/vgcu}
iluvatars: [{commonWord: A, resourceCountName: a/gpu}]
vnpus: {configs: [{chipName: x, commonWord: Ascend310P, resourceName: a/npu, memoryAllocatable: 8, memoryCapacity: 9,
                   runtimeClassName: npu, templates: [{name: a, memory: 1}]}]}
""")
JUNK = [
    None,
    "",
    0,
    -1,
    1.5,
    float("inf"),
    float("nan"),
    True,
    [],
    {},
    [1],
    {"a": 1},
    "x y",
    "nvidia.com/gpu",
    10**30,
    [[1]],
    {1: 2},
    datetime.date(2026, 1, 1),
    b"x",
]


def places(value, path=()):
    """The paths of all that stands in a document."""
    yield path
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_whatever_stands_anywhere_is_read_or_refused_by_name(junk):
    refused = 0
    for *path, last in filter(None, places(SMALL)):
        document = copy.deepcopy(SMALL)
        functools.reduce(operator.getitem, path, document)[last] = junk
        try:
            parse(yaml.safe_dump(document))
        except MalformedInput as error:
            refused += 1
            assert error.field.startswith("device.yaml: ")
            assert str(last) in error.field or junk == "nvidia.com/gpu"
    assert refused > 0


CHIP = "{commonWord: %s, memoryAllocatable: 1, memoryCapacity: 1, templates: []}"


@cases(
    "text, field, problem",
    ("mthreads: {memoryPerCard: []}", "mthreads.memoryPerCard", "expected a list of the memory"),
    ("mthreads: {memoryPerCard: 96}", "mthreads.memoryPerCard", "expected a list of the memory"),
    ("mthreads: {memoryPerCard: [0]}", "mthreads.memoryPerCard", "expected a list of the memory"),
    (
        "hygon: {resourceCountName: hygon.com/hcunum, memoryFactor: 0}",
        "hygon.memoryFactor",
        "expected a whole number from 1",
    ),
    ("hygon: {memoryFactor: 0}", "hygon.memoryFactor", "expected a whole number from 1"),
    ("hygon: {resourceCountName: 5}", "hygon.resourceCountName", "expected a resource name"),
    (
        "metax: {sgpuTopologyAware: 'yes'}",
        "metax.sgpuTopologyAware",
        "expected true or false without quotes",
    ),
    ("enflame: {resourceNameVGCU: a b}", "enflame.resourceNameVGCU", "expected a resource name"),
    ("vnpus: {hamiVnpuCore: 1}", "vnpus.hamiVnpuCore", "expected true or false"),
    ("vnpus: {configs: {a: 1}}", "vnpus.configs", "expected a list"),
    ("vnpus: [5]", "vnpus[0]", "expected a mapping"),
    ("vnpus: 5", "vnpus", "expected a mapping"),
    ("iluvatars: [5]", "iluvatars[0]", "expected a mapping"),
    (
        "iluvatars: [{chipName: A}]",
        "iluvatars[0].commonWord",
        "missing, expected the word by which the chip is known",
    ),
    (
        "iluvatars: [{commonWord: 'MR V100'}]",
        "iluvatars[0].commonWord",
        "expected the word by which",
    ),
    ("iluvatars: [{commonWord: a/b}]", "iluvatars[0].commonWord", "expected the word by which"),
    ("iluvatars: [{commonWord: -a}]", "iluvatars[0].commonWord", "expected the word by which"),
    ("iluvatars: [{commonWord: 910}]", "iluvatars[0].commonWord", "expected the word by which"),
    (
        f"iluvatars: [{{commonWord: {'a' * 44}}}]",
        "iluvatars[0].commonWord",
        "expected the word by which",
    ),
    (
        "iluvatars: [{commonWord: A}, {commonWord: a}]",
        "iluvatars[1].commonWord",
        "expected another word than that of iluvatars[0]",
    ),
    (
        "iluvatars: [{commonWord: nvidia}]",
        "iluvatars[0].commonWord",
        "expected another word than that of NVIDIA",
    ),
    (
        f"iluvatars: [{{commonWord: A}}]\nvnpus: [{CHIP % 'A'}]",
        "vnpus[0].commonWord",
        "expected another word than that of iluvatars[0]",
    ),
    (
        f"vnpus: {{configs: [{CHIP % 'XPU'}]}}",
        "vnpus.configs[0].commonWord",
        "expected another word than that of XPU",
    ),
    (
        "nvidia: {resourceCountName: a.b/c}\nbiren: {resourceCountName: a.b/c}",
        "biren.resourceCountName",
        "expected another name than that of nvidia.resourceCountName",
    ),
    (
        "kunlun: {resourceCountName: a.b/c, resourceVCountName: a.b/c}",
        "kunlun.resourceVCountName",
        "expected another name than that of kunlun.resourceCountName",
    ),
    (
        "amd: {resourceMemoryName: enflame.com/gcu-core}",
        "amd.resourceMemoryName",
        "expected another name than that of enflame.resourceNameGCUCore",
    ),
    (
        "iluvatars: [{commonWord: A, resourceCountName: a.b/c}, {commonWord: B, resourceCoreName: a.b/c}]",
        "iluvatars[1].resourceCoreName",
        "expected another name than that of iluvatars[0].resourceCountName",
    ),
)
def test_a_bad_section_is_named_with_what_would_be_right(text, field, problem):
    with pytest.raises(MalformedInput) as caught:
        parse(text)
    assert caught.value.field == f"device.yaml: {field}"
    assert caught.value.problem.startswith(problem)


def test_a_common_word_that_is_just_short_enough_is_taken():
    assert parse(f"iluvatars: [{{commonWord: {'a' * 43}}}]").iluvatars[0].common_word == "a" * 43


def test_the_section_that_a_third_party_reads_must_be_a_mapping():
    with pytest.raises(MalformedInput, match="device.yaml: acme: expected a mapping: '5'"):
        parse("acme: 5\nbiren: {resourceCountName: a.b/c}", known=["acme"])


BIREN = "biren: {resourceCountName: d.e/f}"  # a file that says nothing of what is asked


@cases(
    "text, says",
    ("no section", BIREN, "flag.com/dcu"),
    ("no key", "hygon: {resourceMemoryName: a.b/c}", "flag.com/dcu"),
    ("null", "hygon: {resourceCountName: null}", "flag.com/dcu"),
    ("named", "hygon: {resourceCountName: a.b/c}", "a.b/c"),
    ("no file", None, "flag.com/dcu"),
)
def test_a_flag_names_what_the_file_does_not(text, says):
    given = flags(hygon={"resourceCountName": "flag.com/dcu"})
    config = chart_config(given) if text is None else parse(text, flags=given)
    assert config.names["DCU"].count == says


def test_an_empty_name_in_the_file_is_a_name():
    config = parse(
        "hygon: {resourceCountName: ''}", flags=flags(hygon={"resourceCountName": "flag.com/dcu"})
    )
    assert "DCU" not in config.names
    assert config.notes == (
        "device.yaml: hygon.resourceCountName: overrides --resourceCountName flag.com/dcu",
    )


def test_a_flag_that_the_file_agrees_with_is_not_worth_a_note():
    given = flags(hygon={"resourceCountName": "a.b/c"})
    assert parse("hygon: {resourceCountName: a.b/c}", flags=given).notes == ()


def test_an_empty_flag_takes_a_resource_of_the_chart_away():
    assert "DCU" not in chart_config(flags(hygon={"resourceCountName": ""})).names
    assert chart_config(flags(hygon={"resourceMemoryName": ""})).names["DCU"].memory == ""


def test_flags_alone_make_nvidia_s_section():
    config = parse(BIREN, flags=flags(nvidia={"resourceCountName": "a.b/gpu", "defaultGPUNum": 1}))
    assert (config.nvidia.resource_count_name, config.nvidia.default_gpu_num) == ("a.b/gpu", 1)
    assert config.nvidia.resource_memory_name == ""


@cases(
    "given, problem",
    (flags(hygon={"memoryFactor": 0}), "--memoryFactor: expected a whole number from 1"),
    (
        flags(hygon={"resourceCountName": "amd.com/gpu"}),
        "amd.resourceCountName: expected another name than that of --resourceCountName",
    ),
    (
        flags(vastai={"resourceCountName": "amd.com/gpu"}),
        "--resourceCountName: expected another name than that of amd.resourceCountName",
    ),
)
def test_an_error_names_the_flag(given, problem):
    with pytest.raises(MalformedInput, match=problem):
        chart_config(given)


NAME = {"resourceName": "huawei.com/old"}
ANY, P310 = {"vnpus.configs[]": NAME}, {"vnpus.configs[Ascend310P]": NAME}


def chips(*pairs):
    """A file of Ascend chips: their common words, and names if they have any."""
    return yaml.safe_dump(
        {
            "vnpus": {
                "configs": [
                    {
                        "commonWord": word,
                        "memoryAllocatable": 1,
                        "memoryCapacity": 1,
                        "resourceName": name,
                    }
                    for word, name in pairs
                ]
            }
        }
    )


@cases(
    "file, given, names",
    ("the only one", [("Ascend910A", None)], ANY, ["huawei.com/old"]),
    (
        "the one without",
        [("Ascend910A", None), ("Ascend910B3", "a.b/c")],
        ANY,
        ["huawei.com/old", "a.b/c"],
    ),
    ("not the 310P", [("Ascend910A", None), ("Ascend310P", None)], ANY, ["huawei.com/old", ""]),
    ("the 310P", [("Ascend910A", None), ("Ascend310P", None)], P310, ["", "huawei.com/old"]),
    ("named 310P", [("Ascend310P", "a.b/c")], P310, ["a.b/c"]),
    ("named", [("Ascend910A", "a.b/c")], ANY, ["a.b/c"]),
)
def test_a_flag_for_a_kind_of_chip_is_the_entry_s_that_lacks_it(file, given, names):
    assert [chip.names.count for chip in parse(chips(*file), flags=flags(**given)).ascends] == names


@cases(
    "file, given, why",
    ([("Ascend910A", "a.b/c")], ANY, "has resourceName for every chip"),
    ([("Ascend310P", None)], ANY, "has no such chip"),
    ([("Ascend910A", "a.b/c")], P310, "has no such chip"),
    ([], ANY, "has no such chip"),
)
def test_a_flag_that_no_chip_needs_is_noted(file, given, why):
    text = chips(*file) if file else BIREN
    assert parse(text, flags=flags(**given)).notes == (
        f"--resourceName huawei.com/old: device.yaml: vnpus.configs {why}, skipped",
    )


def test_a_flag_that_could_mean_several_chips_is_an_error():
    with pytest.raises(MalformedInput) as caught:
        parse(chips(("Ascend910A", None), ("Ascend910B3", None)), flags=flags(**ANY))
    assert str(caught.value) == (
        "--resourceName: it could mean Ascend910A, Ascend910B3: expected resourceName in the entries of vnpus.configs "
        "in --device-config-file instead: 'huawei.com/old'"
    )
    with pytest.raises(MalformedInput, match="it could mean MR-V100, MR-V50, BI-V150, BI-V100"):
        chart_config(flags(**{"iluvatars[]": {"resourceCoreName": "iluvatar.ai/vcuda-core"}}))


def test_without_a_file_the_flag_of_one_chip_goes_before_the_chart():
    config = chart_config(flags(**P310))
    assert [chip.names.count for chip in config.ascends if chip.common_word == "Ascend310P"] == [
        "huawei.com/old"
    ]


@pytest.mark.parametrize("text", ["", "nvidia.com/gpu", "gpu", "a.b/C_d.e"])
def test_resource_names(text):
    assert parse_resource_name(text) == text


@pytest.mark.parametrize("text", ["a b", "/gpu", "A.b/gpu", "a/b/c", "a/" + "b" * 64])
def test_what_is_no_resource_name_is_refused(text):
    with pytest.raises(MalformedInput, match="expected a resource name such as"):
        parse_resource_name(text)


@cases(
    "text, names",
    ("hygon: {resourceCountName: hygon.com/dcunum}", {"DCU": "hygon.com/dcunum"}),
    ("hygon: {resourceCountName: hygon.com/hcunum}", {"HCU": "hygon.com/hcunum"}),
    ("hygon: {resourceCountName: a.b/hcus}", {"HCU": "a.b/hcus"}),
    (
        "hygon: {resourceCountName: a.b/hcus}\nhcu: {resourceCountName: hygon.com/hcunum}",
        {"DCU": "a.b/hcus", "HCU": "hygon.com/hcunum"},
    ),
    ("hcu: {resourceCountName: a.b/c}", {"HCU": "a.b/c"}),
)
def test_hygon_is_what_the_name_of_its_resource_says(text, names):
    config = parse(text)
    assert {key: config.names[key].count for key in config.names if key in ("DCU", "HCU")} == names
    assert config.notes == ()


def test_the_memory_of_moore_threads_cards():
    assert chart_config().sgpu_card_sizes == (96,)
    assert parse("mthreads: {resourceCountName: a.b/c}").sgpu_card_sizes == (96,)
    config = parse("mthreads: {resourceCountName: a.b/c, memoryPerCard: [96, 160]}")
    assert config.sgpu_card_sizes == (96, 160)
