"""The device configuration: which resource names HAMi manages, and the defaults of requests.

Upstream's YAML is read as upstream reads it: keys that are not known are skipped (and listed in ``notes``), a name
that a given file leaves out is empty, which makes that resource inert. A value of the wrong type or out of range is an
error.
This module opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import yaml

from hami.errors import MalformedInput
from hami.quantity import INT32_MAX

__all__ = ["DeviceConfig", "MigAllowance", "NvidiaConfig", "parse_device_config"]

T = TypeVar("T")

SECTIONS: Mapping[str, type] = MappingProxyType({
    "nvidia": dict, "metax": dict, "hygon": dict, "cambricon": dict, "mthreads": dict, "iluvatars": list,
    "enflame": dict, "kunlun": dict, "awsneuron": dict, "amd": dict, "vastai": dict, "biren": dict, "vnpus": dict,
})
_YAML_NAMES: Mapping[type, str] = {dict: "mapping", list: "list"}
_CORE_POLICIES = ("default", "force", "disable")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MIG_PROFILE = re.compile(r"\S+?g\.\S+")


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
class DeviceConfig:
    """What the device configuration says; ``DeviceConfig()`` is what holds without a file.

    *nvidia* is ``None`` when a file was given and has no such section. *others*: sections of the other vendors, as they
    stand in the file. *notes*: what was skipped, one sentence each.
    """

    nvidia: NvidiaConfig | None = NvidiaConfig()
    others: Mapping[str, object] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()


def parse_device_config(text: str, source: str) -> DeviceConfig:
    """The configuration in *text*; *source* is the file's name, for errors.

    Raises: MalformedInput, naming file and key.
    Source: HAMi v2.10, pkg/device-config, LoadConfig and ValidateConfig.
    """
    document = _load(text, source)
    sections = {name: value for name in SECTIONS if (value := document.get(name))}
    for name, value in sections.items():
        if not isinstance(value, SECTIONS[name]):
            raise MalformedInput(f"{source}: {name}", value, f"expected a {_YAML_NAMES[SECTIONS[name]]}")
    if not sections:
        raise MalformedInput(source, ", ".join(map(str, document)),
                             f"all configurations are empty, expected at least one of {', '.join(SECTIONS)}")
    notes = [f"{source}: {key}: unknown section, skipped" for key in document if key not in SECTIONS]
    nvidia = None
    if isinstance(found := sections.pop("nvidia", None), dict):
        section = _Section(found, f"{source}: nvidia")
        nvidia = _nvidia(section)
        notes += section.unknown()
    return DeviceConfig(nvidia=nvidia, others=sections, notes=tuple(notes))


def _load(text: str, source: str) -> dict[object, object]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
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


def _nvidia(section: _Section) -> NvidiaConfig:
    config = NvidiaConfig(
        resource_count_name=section.resource("resourceCountName"),
        resource_memory_name=section.resource("resourceMemoryName"),
        resource_memory_percentage_name=section.resource("resourceMemoryPercentageName"),
        resource_core_name=section.resource("resourceCoreName"),
        resource_priority_name=section.resource("resourcePriorityName"),
        # upstream treats 0, what an absent key becomes there, as 1
        memory_factor=max(section.integer("memoryFactor", 1), 1),
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
    section.check_distinct("resourceCountName", "resourceMemoryName", "resourceMemoryPercentageName",
                           "resourceCoreName", "resourcePriorityName")
    return config


def _allowance(entry: _Section) -> MigAllowance:
    models, profiles = entry.words("models"), entry.words("profiles")
    for profile in profiles:
        if _MIG_PROFILE.fullmatch(profile) is None:
            raise MalformedInput(f"{entry.place}.profiles", profile, "expected a MIG profile such as 1g.10gb")
    return MigAllowance(models, profiles)


class _Section:
    """Typed reading of one mapping; remembers which keys were asked for."""

    def __init__(self, values: Mapping[object, object], place: str) -> None:
        self.place = place
        self._values = values
        self._known: set[object] = set()

    def unknown(self) -> list[str]:
        """A note for each key that nobody asked for."""
        return [f"{self.place}.{key}: unknown key, skipped" for key in self._values if key not in self._known]

    def integer(self, key: str, default: int, *, least: int = 0, most: int = INT32_MAX) -> int:
        right = f"a whole number from {least} to {most}"
        return self._get(key, default, lambda value: _whole(value, least, most), right)

    def factor(self, key: str) -> float:
        return self._get(key, 1.0, _positive, "a number above 0, such as 1.5")

    def flag(self, key: str) -> bool:
        return self._get(key, False, lambda value: value if isinstance(value, bool) else None, "true or false")

    def resource(self, key: str) -> str:
        return self._get(key, "", _qualified_name, "a resource name such as nvidia.com/gpu")

    def object_name(self, key: str) -> str:
        right = "the name of an object: lower case letters, digits, - and ."
        return self._get(key, "", lambda value: value if isinstance(value, str) and _is_domain(value) else None, right)

    def word(self, key: str, choices: tuple[str, ...]) -> str:
        return self._get(key, choices[0], lambda value: next((word for word in choices if word == value), None),
                         " or ".join(choices))

    def words(self, key: str) -> tuple[str, ...]:
        nothing: tuple[str, ...] = ()
        found = self._get(key, nothing, _words, "a list of words")
        if not found:
            raise MalformedInput(f"{self.place}.{key}", self._values.get(key), "expected at least one word")
        return found

    def entries(self, key: str) -> list[_Section]:
        nothing: list[object] = []
        found = self._get(key, nothing, lambda value: value if isinstance(value, list) else None, "a list")
        return [_entry(value, f"{self.place}.{key}[{place}]") for place, value in enumerate(found)]

    def check_distinct(self, *keys: str) -> None:
        """Refuse one name for two resources: nobody could say what a container asks for."""
        names: dict[object, str] = {}
        for key in keys:
            if name := self._values.get(key):
                if (other := names.setdefault(name, key)) != key:
                    raise MalformedInput(f"{self.place}.{key}", name, f"expected another name than that of {other}")

    def _get(self, key: str, default: T, convert: Callable[[object], T | None], right: str) -> T:
        self._known.add(key)
        value = self._values.get(key)
        if value is None or value == "" and isinstance(default, str):
            return default
        if (converted := convert(value)) is None:
            quoted = " without quotes" if isinstance(value, str) and not isinstance(default, str) else ""
            raise MalformedInput(f"{self.place}.{key}", value, f"expected {right}{quoted}")
        return converted


def _entry(value: object, place: str) -> _Section:
    if not isinstance(value, dict):
        raise MalformedInput(place, value, "expected a mapping")
    return _Section(value, place)


def _whole(value: object, least: int, most: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value) if least <= value <= most else None


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < float("inf") else None


def _words(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        return None
    return tuple(value)


def _qualified_name(value: object) -> str | None:
    """*value* when it is a name as Kubernetes' IsQualifiedName wants it."""
    if not isinstance(value, str):
        return None
    domain, slash, name = value.rpartition("/")
    legal = len(name) <= 63 and _NAME.fullmatch(name) is not None and (not slash or _is_domain(domain))
    return value if legal else None


def _is_domain(text: str) -> bool:
    return len(text) <= 253 and _DOMAIN.fullmatch(text) is not None
