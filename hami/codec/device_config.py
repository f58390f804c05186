"""The device configuration: which resource names HAMi manages, their units, and the defaults of requests.

The file is read as upstream reads it: unknown keys are skipped and listed in ``notes``, and a resource name that the
file leaves out is empty, which disables that resource. A value of the wrong type or out of range, and one name for two
resources, are errors. ``null`` and an empty text count as left out.
The chart's configuration, which applies without a file, is ``device-config.yaml`` beside this module: that of HAMi
v2.10 (charts/hami, templates/scheduler/device-configmap.yaml with the chart's values) with MIG models under NVML's
names, too. The module opens no other file.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from hami.codec.documents import (
    convert,
    known_part,
    parse_own_yaml,
    parse_yaml,
    struct_fields,
    unknown_keys,
)
from hami.errors import MalformedInput
from hami.quantity import INT32_MAX

_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
RESOURCE_NAME = rf"^(|((?=[^/]{{1,253}}/){_DOMAIN}/)?(?=[^/]{{1,63}}\Z){_WORD})\Z"
_WORD_CHARACTERS = "letters, digits, -, _ and ., beginning and ending with a letter or digit"
_WORD_LENGTH = 63 - len(
    "-devices-to-allocate"
)  # the longest suffix that a common word gets in an annotation's key
_CHIP_MEMORY = "MiB of the chip, memoryAllocatable or more, a whole number"
_TEMPLATE_MEMORY = "MiB of the template, memoryCapacity at most"

ResourceName = Annotated[
    str, Meta(pattern=RESOURCE_NAME, description="a resource name such as nvidia.com/gpu")
]
OlderName = Annotated[ResourceName, Meta(title="may be another resource's name")]
ObjectName = Annotated[
    str,
    Meta(
        pattern=rf"^{_DOMAIN}\Z",
        max_length=253,
        description="the name of an object: lower case letters, digits, - and .",
    ),
]
Count = Annotated[
    int, Meta(ge=0, le=INT32_MAX, description=f"a whole number from 0 to {INT32_MAX}")
]
PositiveCount = Annotated[
    int, Meta(ge=1, le=INT32_MAX, description=f"a whole number from 1 to {INT32_MAX}")
]
SGPU_CARD_SIZE = 96  # units of 512 MiB of Moore Threads' first card, the S4000
CardSizes = Annotated[
    tuple[Annotated[int, Meta(ge=1, le=INT32_MAX // 512)], ...],
    Meta(
        min_length=1,
        max_length=16,
        description="a list of the memory of each model of card, in units of 512 MiB, such as [96, 160]",
    ),
]
Percent = Annotated[int, Meta(ge=0, le=100, description="a whole number from 0 to 100")]
CoreLimits = Annotated[
    dict[
        Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")],
        Annotated[int, Meta(ge=1, le=100)],
    ],
    Meta(description="whole numbers from 1 to 100 by namespace, such as {team-a: 60}"),
]
LogLevel = Annotated[int, Meta(ge=0, le=4, description="a whole number from 0 to 4")]
Factor = Annotated[
    float, Meta(gt=0, le=sys.float_info.max, description="a number above 0, such as 1.5")
]
Text = Annotated[str | int, Meta(description="a text")]
CommonWord = Annotated[
    str,
    Meta(
        pattern=rf"^{_WORD}\Z",
        max_length=_WORD_LENGTH,
        description="the word by which the chip is known in annotations: "
        f"{_WORD_CHARACTERS}, {_WORD_LENGTH} at most",
    ),
]
TemplateName = Annotated[
    str,
    Meta(
        pattern=rf"^{_WORD}\Z",
        max_length=63,
        description=f"the name of a template: {_WORD_CHARACTERS}, 63 at most",
    ),
]


class Key(NamedTuple):
    """A key of the device configuration that a flag can set."""

    section: str
    """The path of a mapping such as ``hygon``, or of a list of chips such as ``vnpus.configs``."""

    name: str
    chip: str | None = None
    """In a list, the ``commonWord`` of the chip; empty for the one chip that lacks the key."""

    def __str__(self) -> str:
        if self.chip is None:
            return f"{self.section}.{self.name}"
        if self.chip:
            return f"{self.name} of {self.chip} in {self.section}"
        return f"{self.name} of the one entry of {self.section} that lacks it"


class FlagValue(NamedTuple):
    """A value from the command line."""

    value: object
    flag: str
    """The name of the flag, for errors."""


_NO_FLAGS: Mapping[Key, FlagValue] = MappingProxyType({})
# has flags of its own, so the flags of Ascend chips in general exclude it
_CHIPS_WITH_FLAGS = ("Ascend310P",)


class MigAllowance(msgspec.Struct, frozen=True):
    """MIG profiles that may be created on devices of these models."""

    models: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(min_length=1, description="a list of words, at least one"),
    ]
    profiles: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^\S+?g\.\S+\Z")], ...],
        Meta(min_length=1, description="a list of MIG profiles such as 1g.10gb, at least one"),
    ]


class NvidiaConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Section ``nvidia``. An empty name disables the resource. The defaults here are the chart's.

    *memory_factor*: MiB for each unit of the memory resource. *default_memory* is in MiB, 0 for the whole device;
    *default_cores* in percent of one device. *default_gpu_num*: devices for a container that requests only memory or
    cores, 0 for none. *overwrite_env*: hides all devices from containers without a request. *strict*: does the same,
    and refuses what could lift limits. *gpu_core_policy*: how the limiter enforces cores. *gpucores_limits*: by
    namespace, the percentage of a device that a container may use while no other does, for pods that do not say. Only
    the device plugin reads the second group: *preconfigured_device_memory* in MB, 0 for the device's own memory.
    Source: HAMi v2.10, pkg/device/nvidia/device.go, NvidiaConfig.
    """

    resource_count_name: ResourceName = "nvidia.com/gpu"
    resource_memory_name: ResourceName = "nvidia.com/gpumem"
    resource_memory_percentage_name: ResourceName = "nvidia.com/gpumem-percentage"
    resource_core_name: ResourceName = "nvidia.com/gpucores"
    resource_priority_name: ResourceName = "nvidia.com/priority"
    memory_factor: PositiveCount = 1
    default_memory: Count = 0
    default_cores: Percent = 0
    default_gpu_num: Count = msgspec.field(default=1, name="defaultGPUNum")
    overwrite_env: bool = False
    strict: bool = False
    gpu_core_policy: Literal["default", "force", "disable"] = "default"
    gpucores_limits: CoreLimits = {}
    runtime_class_name: ObjectName = ""

    device_split_count: PositiveCount = 10
    device_memory_scaling: Factor = 1.0
    device_core_scaling: Factor = 1.0
    preconfigured_device_memory: Count = msgspec.field(default=0, name="preConfiguredDeviceMemory")
    enable_numa_topology: bool = False
    lib_cuda_log_level: LogLevel = 1
    disable_core_limit: bool = False
    compute_by: Literal["events", "nvml", "off"] = "events"
    compute_of: Literal["launches", "all"] = "launches"
    mig_profile_allowlist: tuple[MigAllowance, ...] = ()


NVIDIA_LEFT_OUT: Mapping[str, object] = MappingProxyType(
    {
        "resourceCountName": "",
        "resourceMemoryName": "",
        "resourceMemoryPercentageName": "",
        "resourceCoreName": "",
        "resourcePriorityName": "",
        "defaultGPUNum": 0,
    }
)
"""Values of the keys that a file's section ``nvidia`` leaves out, where they are not the chart's. As in upstream, a
container that requests only memory then gets no device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Resource names of one backend; an empty name disables the resource.

    *memory_factor*: MiB for each unit of the memory resource, where it is configurable (else 1).
    """

    count: str = ""
    memory: str = ""
    cores: str = ""
    memory_factor: int = 1


class Template(
    msgspec.Struct,
    frozen=True,
    rename={"memory_mib": "memory", "ai_core": "aiCore", "ai_cpu": "aiCPU"},
):
    """A size into which an Ascend chip can be divided. Ascend's device plugin reads all but the memory."""

    name: TemplateName
    memory_mib: Annotated[int, Meta(description=_TEMPLATE_MEMORY)]
    ai_core: Count = 0
    ai_cpu: Count = 0


class Chip(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of ``iluvatars``; other kinds of chips have more keys. *common_word* is the backend's key."""

    common_word: CommonWord
    chip_name: Text = ""
    resource_count_name: ResourceName = ""
    resource_memory_name: ResourceName = ""
    resource_core_name: ResourceName = ""

    @property
    def names(self) -> Names:
        """The names of its resources."""
        return Names(
            count=self.resource_count_name,
            memory=self.resource_memory_name,
            cores=self.resource_core_name,
            memory_factor=getattr(self, "memory_factor", 1),
        )


class AscendChip(Chip, frozen=True, kw_only=True):
    """One entry of ``vnpus.configs``. Memory in MiB.

    *memory_allocatable*: the memory of a whole chip; *memory_capacity*: the largest amount that can be requested.
    *templates*: smallest first, empty for a chip that is never divided. *overwrite_env*: hides all chips from
    containers without a request. *super_pod*: chips come in pairs. Only Ascend's device plugin reads *chip_name*,
    *ai_core* and *ai_cpu*.
    """

    resource_count_name: ResourceName = msgspec.field(default="", name="resourceName")
    memory_allocatable: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description=f"MiB that a whole chip offers, a whole number from 1 to {INT32_MAX}",
        ),
    ]
    memory_capacity: Annotated[int, Meta(le=INT32_MAX, description=_CHIP_MEMORY)]
    ai_core: Count = 0
    ai_cpu: Count = msgspec.field(default=0, name="aiCPU")
    memory_factor: PositiveCount = 1
    runtime_class: ObjectName = msgspec.field(default="", name="runtimeClassName")
    overwrite_env: bool = False
    super_pod: bool = False
    templates: tuple[Template, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """The device configuration; ``DeviceConfig()`` is NVIDIA alone. See :func:`chart_config`, too.

    *nvidia*: ``None`` when neither the file nor a flag configures NVIDIA. *names*: by backend key (``MLU``, ``DCU``,
    …), only backends whose count has a name. *hami_vnpu_core*: Ascend nodes divide chips in software by default.
    *sgpu_topology_aware*: whole MetaX sGPU devices are chosen by their links by default. *extra_sections*: sections
    of third parties, unchanged. *notes*: what was skipped, one sentence each.
    """

    nvidia: NvidiaConfig | None = NvidiaConfig()
    names: Mapping[str, Names] = field(default_factory=dict, hash=False)
    iluvatars: tuple[Chip, ...] = ()
    ascends: tuple[AscendChip, ...] = ()
    hami_vnpu_core: bool = False
    sgpu_topology_aware: bool = False
    sgpu_card_sizes: tuple[int, ...] = (SGPU_CARD_SIZE,)
    extra_sections: Mapping[str, Mapping[str, object]] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()


class _Backend(NamedTuple):
    """The keys of one backend's names; an empty key is a resource that the backend does not have."""

    key: str
    section: str
    count_key: str = "resourceCountName"
    memory_key: str = "resourceMemoryName"
    cores_key: str = "resourceCoreName"


_BACKENDS = (
    _Backend("MLU", "cambricon"),
    _Backend("DCU", "hygon"),
    _Backend("HCU", "hcu"),
    _Backend("Metax-GPU", "metax", memory_key="", cores_key=""),
    _Backend(
        "Metax-SGPU", "metax", "resourceVCountName", "resourceVMemoryName", "resourceVCoreName"
    ),
    _Backend("GCU", "enflame", "resourceNameGCU", "", ""),
    _Backend(
        "Enflame", "enflame", "resourceNameDRSGCU", "resourceNameGCUMemory", "resourceNameGCUCore"
    ),
    _Backend("Mthreads", "mthreads"),
    _Backend("kunlun", "kunlun", memory_key="", cores_key=""),
    _Backend("XPU", "kunlun", "resourceVCountName", "resourceVMemoryName", ""),
    _Backend("AWSNeuron", "awsneuron", memory_key=""),
    _Backend("AMD", "amd"),
    _Backend("Vastai", "vastai", memory_key="", cores_key=""),
    _Backend("Biren", "biren", memory_key="", cores_key=""),
)
_KEYS = ("NVIDIA", *(backend.key for backend in _BACKENDS))
_OTHER_KEYS: Mapping[str, list[tuple[str, Any, Any]]] = MappingProxyType(
    {
        "enflame": [
            ("resourceNameVGCU", OlderName, ""),
            ("resourceNameVGCUPercentage", OlderName, ""),
        ],
        "hygon": [("memoryFactor", PositiveCount, 1)],
        "hcu": [("memoryFactor", PositiveCount, 1)],
        "mthreads": [("memoryPerCard", CardSizes, (SGPU_CARD_SIZE,))],
        "metax": [("sgpuTopologyAware", bool, False)],
    }
)
_DEFAULT_NAMES: Mapping[str, str] = MappingProxyType(
    {  # Enflame's slices have names even without a section
        "resourceNameDRSGCU": "enflame.com/drs-gcu",
        "resourceNameGCUMemory": "enflame.com/gcu-memory",
        "resourceNameGCUCore": "enflame.com/gcu-core",
    }
)


def _section(name: str) -> tuple[str, Any, Any]:
    """A section as a field of the file: the names of its backends, and its other keys, as they are written."""
    fields: dict[str, tuple[str, Any, Any]] = {}
    for backend in _BACKENDS:
        if backend.section == name:
            for key in filter(None, backend[2:]):
                fields[key] = (key, ResourceName, _DEFAULT_NAMES.get(key, ""))
    section = msgspec.defstruct(name, [*fields.values(), *_OTHER_KEYS.get(name, ())], frozen=True)
    return name, section, section()


class _Vnpus(msgspec.Struct, frozen=True):
    hamiVnpuCore: bool = False
    configs: tuple[AscendChip, ...] = ()


DeviceConfigFile: Any = msgspec.defstruct(
    "DeviceConfigFile",
    [
        ("nvidia", NvidiaConfig | None, None),
        *map(_section, dict.fromkeys(backend.section for backend in _BACKENDS)),
        ("iluvatars", tuple[Chip, ...], ()),
        ("vnpus", _Vnpus, _Vnpus()),
    ],
    frozen=True,
)
"""The sections of the file, with the names of their keys."""

CHART: Mapping[str, Any] = parse_own_yaml(
    resources.files("hami.codec").joinpath("device-config.yaml").read_text(encoding="utf-8")
)
"""The chart's configuration, in the shape of the file."""

_CHART_CHIPS = tuple(chip["commonWord"] for chip in CHART["vnpus"]["configs"])


def parse_device_config(
    text: str,
    source: str,
    *,
    flags: Mapping[Key, FlagValue] = _NO_FLAGS,
    known: Collection[str] = (),
) -> DeviceConfig:
    """The configuration in *text*; *source* is the file's name, for errors.

    *flags*: values that count where the file has no such key (or ``null``; ``""`` disables the
    resource). A flag for a kind of chip goes to the entry that lacks the name; if several do, it is an error.
    *known*: sections that vendors of third parties read.
    Raises: MalformedInput, naming file and key, or flag.
    Source: HAMi v2.10, pkg/device-config, LoadConfig and ValidateConfig.
    """
    document = parse_yaml(text, source)
    if document is not None and not isinstance(document, dict):
        raise MalformedInput(source, document, "expected a mapping of vendors to their settings")
    try:
        return _DocumentReader(source).read(document or {}, flags, known)
    except RecursionError as error:
        raise MalformedInput(
            source, "", "not YAML that can be used: a value contains itself"
        ) from error


def chart_config(flags: Mapping[Key, FlagValue] = _NO_FLAGS) -> DeviceConfig:
    """The configuration without a file: the chart's, changed by flags.

    Raises: MalformedInput when a flag's name is that of another resource, or it could mean several chips.
    """
    return _DocumentReader("the chart's configuration", flags_first=True).read(CHART, flags, ())


def known_sections(document: Mapping[Any, Any], known: Collection[str]) -> dict[str, Any]:
    """Returns *document* without the sections that are neither HAMi's nor *known*, and without keys that HAMi's do not
    have."""
    ours = dict(document)
    if isinstance(ours.get("vnpus"), list):
        ours["vnpus"] = {"configs": ours["vnpus"]}
    sections: dict[str, Any] = known_part(ours, DeviceConfigFile)
    for name in known:
        if name in document:
            sections[name] = document[name]
    return sections


def parse_resource_name(text: str) -> str:
    """*text* when it is empty (no such resource) or a resource name. Raises: MalformedInput."""
    return convert(text, ResourceName, lambda path: "resource name")


class _DocumentReader:
    """Reads one document. *flags_first*: flags override the document, else they complete it."""

    def __init__(self, source: str, *, flags_first: bool = False) -> None:
        self._source = source
        self._flags_first = flags_first
        # the list of chips is the section itself, as in older releases
        self._chips_in_vnpus = False
        # by the path of a value that comes from elsewhere: where it comes from
        self._origins: dict[str, str] = {}
        self._notes: list[str] = []

    def read(
        self,
        document: Mapping[Any, object],
        flags: Mapping[Key, FlagValue],
        known: Collection[str],
    ) -> DeviceConfig:
        """The configuration in *document*, completed by flags. Raises: MalformedInput."""
        ours = DeviceConfigFile.__struct_fields__
        sections: dict[str, Any] = {}
        for name in ours:
            if document.get(name):
                sections[name] = copy.deepcopy(document[name])
        others = {name: value for name, value in document.items() if name not in ours}
        extra = self._extra_sections(others, known)
        if not sections and extra.keys().isdisjoint(known):
            raise MalformedInput(
                self._source,
                ", ".join(map(str, document)),
                "all configurations are empty, expected "
                f"at least one of {', '.join((*ours, *known))}",
            )
        if isinstance(sections.get("vnpus"), list):
            self._chips_in_vnpus = True
            sections["vnpus"] = {"configs": sections["vnpus"]}
        self._move_hcu(sections)
        self._merge_flags(sections, flags)
        sections = _normalized(sections)
        self._complete(sections)
        for path in unknown_keys(sections, DeviceConfigFile):
            self._notes.append(f"{self._place(path)}: unknown key, skipped")
        file = convert(sections, DeviceConfigFile, self._place)
        self._check_names(file)
        return DeviceConfig(
            nvidia=file.nvidia,
            names=self._names(file),
            iluvatars=file.iluvatars,
            ascends=self._ascends(_list_at(sections, "vnpus.configs"), file.vnpus.configs),
            hami_vnpu_core=file.vnpus.hamiVnpuCore,
            sgpu_topology_aware=file.metax.sgpuTopologyAware,
            sgpu_card_sizes=file.mthreads.memoryPerCard,
            extra_sections=extra,
            notes=tuple(self._notes),
        )

    def _check_names(self, file: Any) -> None:
        """Refuses one name for two resources, and one word for two kinds of devices."""
        names = []
        for path, name in _resource_names(file):
            names.append((path, name, self._origins.get(path, path)))
        self._check_unique("name", names)
        words = [(key, key, key) for key in _KEYS]
        for path, chips in (("iluvatars", file.iluvatars), ("vnpus.configs", file.vnpus.configs)):
            for index, chip in enumerate(chips):
                place = f"{path}[{index}]"
                words.append((f"{place}.commonWord", chip.common_word, place))
        self._check_unique("word", words, same=str.casefold)

    def _ascends(
        self, entries: Iterable[Collection[str]], chips: Iterable[AscendChip]
    ) -> tuple[AscendChip, ...]:
        checked = []
        for index, (entry, chip) in enumerate(zip(entries, chips)):
            checked.append(self._checked(f"vnpus.configs[{index}]", entry, chip))
        return tuple(checked)

    def _place(self, path: str) -> str:
        """The name of the value at *path* in errors and notes: file and key, or the flag that it comes from."""
        if path in self._origins:
            return self._origins[path]
        shown = path.replace("vnpus.configs", "vnpus", 1) if self._chips_in_vnpus else path
        return f"{self._source}: {shown}"

    def _wrong(self, path: str, value: object, problem: str) -> MalformedInput:
        return MalformedInput(self._place(path), value, problem)

    def _extra_sections(
        self, sections: Mapping[Any, object], known: Collection[str]
    ) -> dict[str, Mapping[str, object]]:
        """The sections of third parties; unknown ones are noted."""
        extra: dict[str, Mapping[str, object]] = {}
        for name, value in sections.items():
            if name not in known:
                self._notes.append(f"{self._place(name)}: unknown section, skipped")
            elif value is not None and not isinstance(value, dict):
                raise self._wrong(name, value, "expected a mapping")
            if isinstance(name, str) and isinstance(value, dict) and value:
                extra[name] = value
        return extra

    def _move_hcu(self, sections: dict[str, Any]) -> None:
        """Moves the names of HCUs out of the section `hygon`, where HAMi has them since its release v2.10."""
        hygon = sections.get("hygon")
        if "hcu" in sections or not isinstance(hygon, dict):
            return
        name = hygon.get("resourceCountName")
        if not isinstance(name, str) or not name.rpartition("/")[2].startswith("hcu"):
            return
        sections["hcu"] = sections.pop("hygon")
        for key in hygon:
            self._origins[f"hcu.{key}"] = self._place(f"hygon.{key}")

    def _merge_flags(self, sections: dict[str, Any], flags: Mapping[Key, FlagValue]) -> None:
        for key, flag in flags.items():
            if key.chip is not None:
                self._set_in_chip(_list_at(sections, key.section), key, flag)
                continue
            section = sections.setdefault(key.section, {})
            if isinstance(section, dict):
                self._set(key.section, section, key.name, flag)

    def _set(self, path: str, section: dict[str, object], key: str, flag: FlagValue) -> None:
        """Sets *key* to a flag's value, unless the document has one and goes first."""
        if self._flags_first or section.get(key) is None:
            section[key] = flag.value
            self._origins[f"{path}.{key}"] = flag.flag
        elif section[key] != flag.value:
            text = str(flag.value).lower() if isinstance(flag.value, bool) else flag.value
            self._notes.append(f"{self._place(f'{path}.{key}')}: overrides {flag.flag} {text}")

    def _set_in_chip(self, entries: list[Any], key: Key, flag: FlagValue) -> None:
        """Sets *key* in the one chip that lacks it: the one that it names, else any that has no flags of its own."""
        chips, lacking = 0, {}
        for index, entry in enumerate(entries):
            if isinstance(entry, dict) and _is_meant(entry.get("commonWord"), key.chip):
                chips += 1
                if self._flags_first or entry.get(key.name) is None:
                    lacking[f"{key.section}[{index}]"] = entry
        if len(lacking) > 1:
            words = ", ".join(str(entry.get("commonWord")) for entry in lacking.values())
            raise MalformedInput(
                flag.flag,
                flag.value,
                f"it could mean {words}: expected {key.name} in the entries "
                f"of {key.section} in --device-config-file instead",
            )
        for path, entry in lacking.items():
            self._set(path, entry, key.name, flag)
            return
        why = f"has {key.name} for every chip" if chips else "has no such chip"
        self._notes.append(
            f"{flag.flag} {flag.value}: {self._source}: {key.section} {why}, skipped"
        )

    def _complete(self, sections: dict[str, Any]) -> None:
        """Fills in values that a left-out key takes from elsewhere."""
        nvidia, enflame = sections.get("nvidia"), sections.get("enflame")
        if isinstance(nvidia, dict):
            sections["nvidia"] = {**NVIDIA_LEFT_OUT, **nvidia}
        if not isinstance(enflame, dict):
            return
        if "resourceNameVGCUPercentage" in enflame:
            self._notes.append(
                f"{self._place('enflame.resourceNameVGCUPercentage')}: slices are requested by memory "
                "and cores now, skipped"
            )
        if "resourceNameVGCU" in enflame and "resourceNameDRSGCU" not in enflame:
            enflame["resourceNameDRSGCU"] = enflame["resourceNameVGCU"]
            self._origins["enflame.resourceNameDRSGCU"] = self._place("enflame.resourceNameVGCU")

    def _check_unique(
        self,
        what: str,
        values: Iterable[tuple[str, Any, str]],
        same: Callable[[Any], object] = lambda value: value,
    ) -> None:
        """Refuses a value that an earlier one equals, such as one name for two resources.

        *values*: path, value, and the words for its place if a later value equals it. *same*: returns what is compared.
        """
        places: dict[object, str] = {}
        for path, value, place in values:
            if same(value) in places:
                raise self._wrong(
                    path, value, f"expected another {what} than that of {places[same(value)]}"
                )
            places[same(value)] = place

    def _names(self, file: Any) -> dict[str, Names]:
        """The names of the backends that are configured by names only."""
        names: dict[str, Names] = {}
        for backend in _BACKENDS:
            section = getattr(file, backend.section)
            count, memory, cores = (getattr(section, key) if key else "" for key in backend[2:])
            if count:
                names[backend.key] = Names(
                    count=count,
                    memory=memory,
                    cores=cores,
                    memory_factor=getattr(section, "memoryFactor", 1),
                )
            elif memory or cores:
                place = self._place(f"{backend.section}.{backend.count_key}")
                self._notes.append(
                    f"{place}: no name, so the other names of {backend.key} have no effect"
                )
        return names

    def _checked(self, path: str, given: Collection[str], chip: AscendChip) -> AscendChip:
        """*chip*, its templates sorted by size. *given*: the keys of its entry.

        Raises: MalformedInput for values that contradict each other.
        """
        if (
            chip.common_word not in _CHART_CHIPS
        ):  # new chips appear, but their templates cannot be left out
            unknown = f"{chip.common_word} is none of {', '.join(_CHART_CHIPS)}"
            if "templates" not in given:
                raise self._wrong(
                    f"{path}.templates",
                    "",
                    "missing, expected a list ([] for a chip that is never "
                    f"divided), since {unknown}",
                )
            self._notes.append(
                f"{self._place(f'{path}.commonWord')}: {unknown}; taken as described"
            )
        if chip.memory_capacity < chip.memory_allocatable:
            raise self._wrong(
                f"{path}.memoryCapacity",
                chip.memory_capacity,
                f"expected {_CHIP_MEMORY} from {chip.memory_allocatable} to {INT32_MAX}",
            )
        templates = [
            (f"{path}.templates[{index}]", template)
            for index, template in enumerate(chip.templates)
        ]
        for place, template in templates:
            if not 1 <= template.memory_mib <= chip.memory_capacity:
                raise self._wrong(
                    f"{place}.memory",
                    template.memory_mib,
                    f"expected {_TEMPLATE_MEMORY}, a whole number from 1 to {chip.memory_capacity}",
                )
        self._check_unique(
            "name",
            ((f"{place}.name", size.name, "an earlier template") for place, size in templates),
        )
        self._check_unique(
            "size", ((f"{place}.memory", size.memory_mib, size.name) for place, size in templates)
        )
        return msgspec.structs.replace(
            chip, templates=tuple(sorted(chip.templates, key=lambda size: size.memory_mib))
        )


def _is_meant(word: object, chip: str | None) -> bool:
    """Reports whether a flag for *chip*, or for any without flags of its own, is for the one called *word*."""
    if chip:
        return word == chip
    return word not in _CHIPS_WITH_FLAGS


def _list_at(sections: Mapping[str, Any], path: str) -> list[Any]:
    """The list at *path*; an empty one where there is none."""
    value: Any = sections
    for name in path.split("."):
        if not isinstance(value, dict):
            return []
        value = value.get(name)
    return value if isinstance(value, list) else []


def _normalized(value: Any) -> Any:
    """*value* without keys that are null or empty texts, and with integers for whole floats such as 2.0."""
    if isinstance(value, list):
        return [_normalized(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, dict):
        return value
    members = {}
    for key, member in value.items():
        if member is not None and member != "":
            members[str(key)] = _normalized(member)
    return members


def _resource_names(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Paths and values of all resource names that are not empty."""
    if isinstance(value, tuple):
        for index, entry in enumerate(value):
            yield from _resource_names(entry, f"{path}[{index}]")
    elif isinstance(value, msgspec.Struct):
        for entry in struct_fields(type(value)):
            inner, place = (
                getattr(value, entry.name),
                f"{path}.{entry.encode_name}".removeprefix("."),
            )
            if entry.type == ResourceName and inner:
                yield place, inner
            else:
                yield from _resource_names(inner, place)
