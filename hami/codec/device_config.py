"""The device configuration: which resource names HAMi manages, their units, and the defaults of requests.

Upstream's YAML is read as upstream reads it: keys that are not known are skipped (and listed in ``notes``), a name
that a given file leaves out is empty, which makes that resource inert. A value of the wrong type or out of range, and
one name for two things, are errors.
This module opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import yaml

from hami.codec.device_chart import CHART
from hami.codec.device_section import Expected, Flagged, Reading, Section
from hami.errors import MalformedInput

__all__ = [
    "SECTIONS", "AscendChip", "DeviceConfig", "Fallback", "IluvatarChip", "MigAllowance", "Names", "NvidiaConfig",
    "Template", "chart_config", "expected_keys", "parse_device_config",
]

Fallback = Mapping[str, Mapping[str, Flagged]]
"""What flags name: path of a mapping (``hygon``; ``iluvatars[]`` for the entry that is meant, whichever it is;
``vnpus.configs[Ascend310P]`` for that of one common word) → key → value."""

SECTIONS: Mapping[str, tuple[type, ...]] = MappingProxyType({
    "nvidia": (dict,), "metax": (dict,), "hygon": (dict,), "cambricon": (dict,), "mthreads": (dict,),
    "iluvatars": (list,), "enflame": (dict,), "kunlun": (dict,), "awsneuron": (dict,), "amd": (dict,),
    "vastai": (dict,), "biren": (dict,), "vnpus": (dict, list),  # a list: the configs alone, as older HAMi has it
})
_YAML_NAMES: Mapping[type, str] = {dict: "mapping", list: "list"}
_NO_FLAGS: Fallback = MappingProxyType({})
_CORE_POLICIES = ("default", "force", "disable")
_MIG_PROFILE = re.compile(r"\S+?g\.\S+")
_WORD_LENGTH = 63 - len("-devices-to-allocate")  # the longest that an annotation's key adds to a common word
_CHIPS_WITH_FLAGS = ("Ascend310P",)  # --ascend310p-…: the flags of Ascend chips at large do not mean this one


@dataclass(frozen=True, slots=True)
class MigAllowance:
    """MIG profiles that may be cut on cards of these models."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaConfig:
    """Section ``nvidia``. An empty name is a resource that does not exist. The defaults here are the chart's.

    *memory_factor*: MiB that one unit of the memory resource stands for. *default_memory* is in MiB, 0 for the whole
    card; *default_cores* in percent of one card. *default_gpu_num*: cards for a container that asks for memory or cores
    alone, 0 for none. *overwrite_env*: containers without a request are kept from seeing any card.
    *gpu_core_policy*: ``default``, ``force`` or ``disable``. The second group is read by the device plugin only:
    *preconfigured_device_memory* in MB, 0 for what the card has.
    Source: HAMi v2.10, pkg/device/nvidia/device.go, NvidiaConfig.
    """

    resource_count_name: str = "nvidia.com/gpu"
    resource_memory_name: str = "nvidia.com/gpumem"
    resource_memory_percentage_name: str = "nvidia.com/gpumem-percentage"
    resource_core_name: str = "nvidia.com/gpucores"
    resource_priority_name: str = "nvidia.com/priority"
    memory_factor: int = 1
    default_memory: int = 0
    default_cores: int = 0
    default_gpu_num: int = 1
    overwrite_env: bool = False
    gpu_core_policy: str = "default"
    runtime_class_name: str = ""

    device_split_count: int = 10
    device_memory_scaling: float = 1.0
    device_core_scaling: float = 1.0
    preconfigured_device_memory: int = 0
    enable_numa_topology: bool = False
    lib_cuda_log_level: int = 1
    disable_core_limit: bool = False
    mig_profile_allowlist: tuple[MigAllowance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Resource names of one backend; an empty name is a resource that does not exist.

    *memory_factor*: MiB that one unit of the memory resource stands for, where the file may say so (else 1: a unit that
    is fixed is not configuration).
    """

    count: str = ""
    memory: str = ""
    cores: str = ""
    memory_factor: int = 1


@dataclass(frozen=True, slots=True)
class Template:
    """A size into which an Ascend chip can be divided, and its name for the device plugin."""

    name: str
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendChip:
    """One entry of ``vnpus.configs``. *common_word* is the backend's key; memory in MiB.

    *memory_allocatable*: what a pod that takes a whole chip gets; *memory_capacity*: the most that may be asked for.
    *templates*: smallest first, empty for a chip that is never divided. *overwrite_env*: containers without a request
    are kept from seeing any chip. *super_pod*: chips come in pairs.
    """

    chip_name: str
    common_word: str
    names: Names
    memory_allocatable: int
    memory_capacity: int
    runtime_class: str = ""
    overwrite_env: bool = False
    super_pod: bool = False
    templates: tuple[Template, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IluvatarChip:
    """One entry of ``iluvatars``. *common_word* is the backend's key."""

    chip_name: str
    common_word: str
    names: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """What the device configuration says; ``DeviceConfig()`` is NVIDIA alone. See :func:`chart_config`, too.

    *nvidia* is ``None`` when a file was given and neither it nor a flag says anything of NVIDIA. *names*: by backend
    key (``MLU``, ``DCU``, …), for backends whose count has a name. *hami_vnpu_core*: Ascend nodes divide chips in
    software unless they say otherwise. *sgpu_topology_aware*: whole MetaX sGPU cards are chosen by their links unless
    the pod says otherwise. *thirds*: sections that no vendor of ours has, as they stand. *notes*: what was skipped,
    one sentence each.
    """

    nvidia: NvidiaConfig | None = NvidiaConfig()
    names: Mapping[str, Names] = field(default_factory=dict, hash=False)
    iluvatars: tuple[IluvatarChip, ...] = ()
    ascends: tuple[AscendChip, ...] = ()
    hami_vnpu_core: bool = False
    sgpu_topology_aware: bool = False
    thirds: Mapping[str, Mapping[str, object]] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Backend:
    """Where the names of one backend stand; an empty key is a resource that the backend does not have."""

    key: str
    section: str
    count: str = "resourceCountName"
    memory: str = "resourceMemoryName"
    cores: str = "resourceCoreName"
    has_factor: bool = False


_BACKENDS = (
    _Backend("MLU", "cambricon"),
    _Backend("DCU", "hygon", has_factor=True),
    _Backend("Metax-GPU", "metax", memory="", cores=""),
    _Backend("Metax-SGPU", "metax", "resourceVCountName", "resourceVMemoryName", "resourceVCoreName"),
    _Backend("GCU", "enflame", "resourceNameGCU", "", ""),
    _Backend("Mthreads", "mthreads"),
    _Backend("kunlun", "kunlun", memory="", cores=""),
    _Backend("XPU", "kunlun", "resourceVCountName", "resourceVMemoryName", ""),
    _Backend("AWSNeuron", "awsneuron", memory=""),
    _Backend("AMD", "amd"),
    _Backend("Vastai", "vastai", memory="", cores=""),
    _Backend("Biren", "biren", memory="", cores=""),
)
_DRS = "Enflame"
_KEYS = ("NVIDIA", _DRS, *(backend.key for backend in _BACKENDS))


def parse_device_config(text: str, source: str, *, fallback: Fallback = _NO_FLAGS,
                        known: Collection[str] = ()) -> DeviceConfig:
    """The configuration in *text*; *source* is the file's name, for errors.

    *fallback*: what flags name, which counts where the file has no such key (or ``null``; ``""`` says that there is no
    such resource). A flag for a kind of chip is the entry's that lacks the name; if several do, it is an error.
    *known*: sections that vendors of third parties read.
    Raises: MalformedInput, naming file and key, or flag.
    Source: HAMi v2.10, pkg/device-config, LoadConfig and ValidateConfig.
    """
    return _read(_load(text, source), Reading(source, fallback), known)


def chart_config(fallback: Fallback = _NO_FLAGS) -> DeviceConfig:
    """What holds without a file: the chart's names, all of them, save for what flags name.

    Raises: MalformedInput when a flag's name is that of another resource, or it could mean several chips.
    """
    return _read(CHART, Reading("the chart's configuration", fallback, flags_first=True), ())


def expected_keys() -> Mapping[str, Mapping[str, Expected]]:
    """What may stand in the file: path of a mapping (``vnpus.configs[]`` for each of a list) → key → what it may hold.

    Made by reading a configuration that has one of everything, so it is what is read.
    """
    nvidia: Any = CHART["nvidia"]
    document = {**CHART, "nvidia": {**nvidia, "migProfileAllowlist": [{"models": ["A100"], "profiles": ["1g.5gb"]}]}}
    reading = Reading("the chart's configuration", {})
    _read(document, reading, ())
    found: dict[str, dict[str, Expected]] = {}
    for path, keys in reading.asked.items():
        found.setdefault(re.sub(r"\[\d+\]", "[]", path), {}).update(keys)
    return found


def _read(document: Mapping[Any, object], reading: Reading, known: Collection[str]) -> DeviceConfig:
    sections: dict[str, Any] = {name: value for name in SECTIONS if (value := document.get(name))}
    for name, value in sections.items():
        if not isinstance(value, SECTIONS[name]):
            raise MalformedInput(f"{reading.source}: {name}", value, f"expected a {_YAML_NAMES[SECTIONS[name][0]]}")
    thirds = _thirds(document, reading, known)
    if not sections and not thirds.keys() & set(known):
        raise MalformedInput(reading.source, ", ".join(map(str, document)), "all configurations are empty, expected "
                             f"at least one of {', '.join((*SECTIONS, *known))}")
    nvidia = None
    if sections.get("nvidia") or reading.flags("nvidia"):
        nvidia = _nvidia(section := reading.section("nvidia", sections.get("nvidia", {})))
        section.note_unknown()
    names, aware = _names(sections, reading)
    words = {key.casefold(): key for key in _KEYS}
    iluvatars = _iluvatars(sections.get("iluvatars", []), reading, words)
    ascends, vnpu_core = _ascends(sections.get("vnpus", {}), reading, words)
    return DeviceConfig(nvidia=nvidia, names=names, iluvatars=iluvatars, ascends=ascends, hami_vnpu_core=vnpu_core,
                        sgpu_topology_aware=aware, thirds=thirds, notes=tuple(reading.notes))


def _thirds(document: Mapping[Any, object], reading: Reading,
            known: Collection[str]) -> dict[str, Mapping[str, object]]:
    """Sections that are not ours; what nobody is *known* to read is noted."""
    thirds: dict[str, Mapping[str, object]] = {}
    for name, value in document.items():
        if name in SECTIONS:
            continue
        if name not in known:
            reading.notes.append(f"{reading.source}: {name}: unknown section, skipped")
        elif value is not None and not isinstance(value, dict):
            raise MalformedInput(f"{reading.source}: {name}", value, "expected a mapping")
        if isinstance(name, str) and isinstance(value, dict) and value:
            thirds[name] = value
    return thirds


def _names(sections: Mapping[str, Any], reading: Reading) -> tuple[dict[str, Names], bool]:
    """The names of the backends that consist of nothing else, and whether MetaX sGPUs are chosen by their links."""
    names: dict[str, Names] = {}
    aware = False
    for name in dict.fromkeys(backend.section for backend in _BACKENDS):
        section = reading.section(name, sections.get(name, {}))
        for backend in _BACKENDS:
            if backend.section == name:
                names[backend.key] = _backend(section, backend)
        if name == "metax":
            aware = section.flag("sgpuTopologyAware")
        if name == "enflame":
            names[_DRS] = _drs(section)
        section.note_unknown()
    return {key: found for key, found in names.items() if found.count}, aware


def _backend(section: Section, backend: _Backend) -> Names:
    names = Names(
        count=section.resource(backend.count),
        memory=section.resource(backend.memory) if backend.memory else "",
        cores=section.resource(backend.cores) if backend.cores else "",
        memory_factor=section.integer("memoryFactor", 1, least=1) if backend.has_factor else 1,
    )
    if not names.count and (names.memory or names.cores):
        section.note(backend.count, f"no name, so the other names of {backend.key} have no effect")
    return names


def _drs(section: Section) -> Names:
    """Enflame's slices, which have names even without a section.

    Source: HAMi v2.10, pkg/device/enflame/device.go.
    """
    legacy = section.resource("resourceNameVGCU", claimed=False)
    if section.resource("resourceNameVGCUPercentage", claimed=False):
        section.note("resourceNameVGCUPercentage", "slices are asked for by memory and cores now, skipped")
    count = section.resource("resourceNameDRSGCU")
    if not count:
        count = section.resource("resourceNameVGCU") if legacy else section.resource("resourceNameDRSGCU",
                                                                                     "enflame.com/drs-gcu")
    return Names(count=count, memory=section.resource("resourceNameGCUMemory", "enflame.com/gcu-memory"),
                 cores=section.resource("resourceNameGCUCore", "enflame.com/gcu-core"))


def _iluvatars(entries: list[object], reading: Reading, words: dict[str, str]) -> tuple[IluvatarChip, ...]:
    chips = _chips("iluvatars", entries, reading, words)
    found = tuple(IluvatarChip(
        chip_name=chip.text("chipName"),
        common_word=word,
        names=Names(count=chip.resource("resourceCountName"), memory=chip.resource("resourceMemoryName"),
                    cores=chip.resource("resourceCoreName")),
    ) for word, chip in chips.items())
    for chip in chips.values():
        chip.note_unknown()
    return found


def _ascends(value: object, reading: Reading, words: dict[str, str]) -> tuple[tuple[AscendChip, ...], bool]:
    """The chips of ``vnpus``, and whether nodes divide them in software by default."""
    section = reading.section("vnpus", {} if isinstance(value, list) else value)
    vnpu_core = section.flag("hamiVnpuCore")
    entries = section.items("configs") or (value if isinstance(value, list) else [])
    section.note_unknown()
    chips = _chips("vnpus.configs", entries, reading, words, "vnpus" if isinstance(value, list) else "")
    found = tuple(_ascend(word, chip) for word, chip in chips.items())
    for chip in chips.values():
        chip.note_unknown()
    return found, vnpu_core


def _ascend(word: str, chip: Section) -> AscendChip:
    """One chip. One that the chart does not know, too, for new ones come; but then nothing may be left out."""
    if word not in (ours := _known_chips()):
        if not chip.has("templates"):
            raise MalformedInput(chip.place("templates"), "", f"missing, expected a list ([] for a chip that is never "
                                 f"divided), since {word} is none of {', '.join(ours)}")
        chip.note("commonWord", f"{word} is none of {', '.join(ours)}; taken as described")
    allocatable = chip.needed_integer("memoryAllocatable", "MiB that a whole chip offers")
    capacity = chip.needed_integer("memoryCapacity", "MiB of the chip, memoryAllocatable or more", least=allocatable)
    chip.integer("aiCore", 0)  # this and the next are read by the device plugin
    chip.integer("aiCPU", 0)
    return AscendChip(
        chip_name=chip.text("chipName"),
        common_word=word,
        names=Names(count=chip.resource("resourceName"), memory=chip.resource("resourceMemoryName"),
                    cores=chip.resource("resourceCoreName"), memory_factor=chip.integer("memoryFactor", 1, least=1)),
        memory_allocatable=allocatable,
        memory_capacity=capacity,
        runtime_class=chip.object_name("runtimeClassName"),
        overwrite_env=chip.flag("overwriteEnv"),
        super_pod=chip.flag("superPod"),
        templates=_templates(chip, capacity),
    )


def _templates(chip: Section, capacity: int) -> tuple[Template, ...]:
    """Smallest first, in whichever order they stand."""
    sizes: dict[int, str] = {}
    for entry in chip.entries("templates"):
        name = entry.key_part("name", "the name of a template", 63)
        memory = entry.needed_integer("memory", "MiB of the template, memoryCapacity at most", most=capacity)
        entry.check_distinct("name", name, sizes.values(), "another name than that of an earlier template")
        entry.check_distinct("memory", memory, sizes, f"another size than that of {sizes.get(memory)}")
        sizes[memory] = name
        entry.integer("aiCore", 0)
        entry.integer("aiCPU", 0)
        entry.note_unknown()
    return tuple(Template(name, memory) for memory, name in sorted(sizes.items()))


def _known_chips() -> tuple[str, ...]:
    vnpus: Any = CHART["vnpus"]
    return tuple(entry["commonWord"] for entry in vnpus["configs"])


def _chips(path: str, entries: list[object], reading: Reading, words: dict[str, str],
           stands_at: str = "") -> dict[str, Section]:
    """The entries of a list of chips by common word, with the flags that mean them; *words* are taken, and it grows.

    Common words are told apart without regard to case, as the devices of a node are. *stands_at*: the path of the list
    in this document, if not *path*.
    """
    chips: dict[str, Section] = {}
    for place, value in enumerate(entries):
        chip = reading.section(f"{stands_at or path}[{place}]", value)
        word = chip.key_part("commonWord", "the word by which the chip is known in annotations", _WORD_LENGTH)
        holder = words.setdefault(word.casefold(), chip.path)
        if holder != chip.path:
            raise MalformedInput(chip.place("commonWord"), word, f"expected another word than that of {holder}")
        chips[word] = chip
    for word in _CHIPS_WITH_FLAGS:
        for key, flagged in reading.flags(f"{path}[{word}]").items():
            _offer(path, {word: chips[word]} if word in chips else {}, key, flagged, reading)
    for key, flagged in reading.flags(f"{path}[]").items():
        others = {word: chip for word, chip in chips.items() if word not in _CHIPS_WITH_FLAGS}
        _offer(path, others, key, flagged, reading)
    return chips


def _offer(path: str, chips: Mapping[str, Section], key: str, flagged: Flagged, reading: Reading) -> None:
    """Hand what a flag says to the one of *chips* that lacks it."""
    lacking = [word for word, chip in chips.items() if not chip.goes_before_flags(key)]
    if len(lacking) > 1:
        raise MalformedInput(flagged.flag, flagged.value, f"it could mean {', '.join(lacking)}: expected {key} in the "
                             f"entries of {path} in --device-config-file instead")
    if lacking:
        chips[lacking[0]].offer(key, flagged)
    else:
        reading.notes.append(f"{flagged.flag} {flagged.value}: {reading.source}: {path} "
                             + (f"has {key} for every chip" if chips else "has no such chip") + ", skipped")


def _load(text: str, source: str) -> dict[object, object]:
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, KeyError, OverflowError, RecursionError) as error:
        # the last four: what looks like a date or a number, bears a tag, or is nested as only an attacker's text is
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        quoted = text.splitlines()[mark.line] if mark is not None and mark.line < len(text.splitlines()) else ""
        raise MalformedInput(source, quoted, f"not YAML{place}: {problem}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise MalformedInput(source, document, "expected a mapping of vendors to their settings")
    return document


def _nvidia(section: Section) -> NvidiaConfig:
    return NvidiaConfig(
        resource_count_name=section.resource("resourceCountName"),
        resource_memory_name=section.resource("resourceMemoryName"),
        resource_memory_percentage_name=section.resource("resourceMemoryPercentageName"),
        resource_core_name=section.resource("resourceCoreName"),
        resource_priority_name=section.resource("resourcePriorityName"),
        memory_factor=section.integer("memoryFactor", 1, least=1),
        default_memory=section.integer("defaultMemory", 0),
        default_cores=section.integer("defaultCores", 0, most=100),
        # an absent key is 0 upstream, not the chart's 1: memory alone then asks for no card
        default_gpu_num=section.integer("defaultGPUNum", 0),
        overwrite_env=section.flag("overwriteEnv"),
        gpu_core_policy=section.word("gpuCorePolicy", _CORE_POLICIES),
        runtime_class_name=section.object_name("runtimeClassName"),
        device_split_count=section.integer("deviceSplitCount", 10, least=1),
        device_memory_scaling=section.factor("deviceMemoryScaling"),
        device_core_scaling=section.factor("deviceCoreScaling"),
        preconfigured_device_memory=section.integer("preConfiguredDeviceMemory", 0),
        enable_numa_topology=section.flag("enableNumaTopology"),
        lib_cuda_log_level=section.integer("libCudaLogLevel", 1, most=4),
        disable_core_limit=section.flag("disableCoreLimit"),
        mig_profile_allowlist=tuple(_allowance(entry) for entry in section.entries("migProfileAllowlist")),
    )


def _allowance(entry: Section) -> MigAllowance:
    models, profiles = entry.words("models"), entry.words("profiles")
    for profile in profiles:
        if _MIG_PROFILE.fullmatch(profile) is None:
            raise MalformedInput(entry.place("profiles"), profile, "expected a MIG profile such as 1g.10gb")
    return MigAllowance(models, profiles)
