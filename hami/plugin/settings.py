"""What the device plugin was told, as one frozen record: flags, environment, device configuration, the node's entry.

The command line goes before the environment, that before the device configuration file, that before the defaults; what
the node's entry in the node configuration says goes before all of them, since they are the same for all nodes.
Source: HAMi v2.10, cmd/device-plugin/nvidia; k8s-device-plugin 0.17, api/config/v1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from hami.codec.device_config import DeviceConfig, NvidiaConfig, chart_config, parse_device_config
from hami.errors import HamiError, MalformedInput
from hami.devices.config import PluginConfig
from hami.devices.health import XidRules, parse_xid_rules
from hami.quantity import INT32_MAX
from hami.runtime.options import Address, parse_boolean, parse_choice, read_text

__all__ = [
    "ENVIRONMENT", "ID_STRATEGIES", "LIST_STRATEGIES", "MIG_STRATEGIES", "NODE_CONFIG_FILE", "OPERATING_MODES",
    "REGISTER_FORMATS", "PluginSettings", "Variable", "parse_channels", "parse_discovery", "parse_factor",
    "parse_list_strategies", "parse_split_count", "read_plugin_settings",
]

OPERATING_MODES = ("hami-core", "mig")
LIST_STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
ID_STRATEGIES = ("uuid", "index")
MIG_STRATEGIES = ("none", "single", "mixed")
REGISTER_FORMATS = ("json", "csv")
NODE_CONFIG_FILE = "/config/config.json"

_SECTION = "nvidia"
_FLAGS = "flags"  # the part of NVIDIA's own plugin configuration that has something to say here
_IMEX = "imex"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """All that can be set from outside. *config* is what decides about cards and grants; the rest is the process's own.

    *mock_devices*: a file that stands in for the driver, empty for the driver. *driver_root_in_container*: where the
    host's driver is seen from here. *fail_on_init_error*: without a driver the start is tried again, else the node
    simply has no cards. *discovery*: ``auto`` tells WSL from others, ``nvml`` does not. *mig_strategy*: other than
    ``none``, what is on cards in MIG mode is handed out as it is. *library_source*: files to be laid on the host, empty
    for none. *cdi_root*: directory of the specifications that are written with a ``cdi`` strategy, empty when somebody
    else writes them. *cdi_hook*: the host's program that they have run. *health_bind_address*: ``None`` for no page.
    *devices*: with the resource name that counts. *notes*: what was skipped, one sentence each.
    """

    config: PluginConfig = field(default_factory=lambda: PluginConfig(node=""))
    devices: DeviceConfig = field(default_factory=chart_config)
    mock_devices: str = ""
    driver_root_in_container: str = "/driver-root"
    fail_on_init_error: bool = True
    mig_strategy: str = "none"
    discovery: str = "auto"
    imex_required: bool = False
    library_source: str = ""
    cdi_root: str = "/var/run/cdi"
    cdi_hook: str = "/usr/bin/nvidia-ctk"
    xids: XidRules = XidRules()
    kube_timeout: int = 0
    health_bind_address: Address | None = None
    log_format: str = "text"
    verbosity: int = 0
    notes: tuple[str, ...] = ()


def parse_split_count(text: str) -> int:
    """How many containers may share a card, from 1. Raises: MalformedInput."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= INT32_MAX:
        raise MalformedInput("split count", text, "expected a whole number, 1 or more")
    return int(text)


def parse_factor(text: str) -> float:
    """A number above 0. Raises: MalformedInput."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise MalformedInput("factor", text, "expected a number above 0, such as 1.5")
    return value


def parse_list_strategies(text: str) -> tuple[str, ...]:
    """One or several ways of handing over devices, with commas. Raises: MalformedInput."""
    words = tuple(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))
    if not words or not set(words) <= set(LIST_STRATEGIES):
        raise MalformedInput("list strategy", text, f"expected some of {', '.join(LIST_STRATEGIES)}, with commas")
    return words


def parse_channels(text: str) -> tuple[int, ...]:
    """IMEX channels: none, or channel 0, which is the only one that NVIDIA allows. Raises: MalformedInput."""
    if (inner := text.strip().removeprefix("[").removesuffix("]").strip()) not in ("", "0"):
        raise MalformedInput("IMEX channels", text, "expected nothing or 0")
    return (0,) if inner else ()


def parse_discovery(text: str) -> str:
    """How cards are found; here always through NVML. Raises: MalformedInput."""
    if text not in ("auto", "nvml"):
        raise MalformedInput("discovery strategy", text, "expected auto or nvml: a Tegra has no memory of its own to "
                             "share out, NVIDIA's device plugin offers it as a whole")
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > INT32_MAX:
        raise MalformedInput("number", text, "expected a whole number, 0 or more")
    return int(text)


@dataclass(frozen=True, slots=True)
class Variable:
    """One thing that can be set: its field, the environment that sets it, how its text is read."""

    field: str
    names: tuple[str, ...]
    parse: Callable[[str], object] = str


ENVIRONMENT = (
    Variable("node", ("NodeName", "NODE_NAME")),
    Variable("device_config_file", ("CONFIG_FILE",)),
    Variable("node_config_file", ("NODE_CONFIG_FILE",)),
    Variable("mock_devices", ("MOCK_DEVICES",)),
    Variable("split_count", ("DEVICE_SPLIT_COUNT",), parse_split_count),
    Variable("memory_scaling", ("DEVICE_MEMORY_SCALING",), parse_factor),
    Variable("core_scaling", ("DEVICE_CORES_SCALING",), parse_factor),
    Variable("disable_core_limit", ("DISABLE_CORE_LIMIT",), parse_boolean),
    Variable("hook_path", ("HOOK_PATH",)),
    Variable("library_source", ("LIBRARY_SOURCE",)),
    Variable("mig_strategy", ("MIG_STRATEGY",), parse_choice(*MIG_STRATEGIES)),
    Variable("fail_on_init_error", ("FAIL_ON_INIT_ERROR",), parse_boolean),
    Variable("driver_root", ("NVIDIA_DRIVER_ROOT",)),
    Variable("dev_root", ("NVIDIA_DEV_ROOT",)),
    Variable("driver_root_in_container", ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT")),
    Variable("discovery", ("DEVICE_DISCOVERY_STRATEGY",), parse_discovery),
    Variable("pass_device_specs", ("PASS_DEVICE_SPECS",), parse_boolean),
    Variable("list_strategies", ("DEVICE_LIST_STRATEGY",), parse_list_strategies),
    Variable("id_strategy", ("DEVICE_ID_STRATEGY",), parse_choice(*ID_STRATEGIES)),
    Variable("gdrcopy", ("GDRCOPY_ENABLED",), parse_boolean),
    Variable("gds", ("GDS_ENABLED",), parse_boolean),
    Variable("mofed", ("MOFED_ENABLED",), parse_boolean),
    Variable("kubelet_socket", ("KUBELET_SOCKET",)),
    Variable("cdi_prefix", ("CDI_ANNOTATION_PREFIX",)),
    Variable("cdi_root", ("CDI_ROOT",)),
    Variable("cdi_hook", ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH")),
    Variable("imex_channels", ("IMEX_CHANNEL_IDS",), parse_channels),
    Variable("imex_required", ("IMEX_REQUIRED",), parse_boolean),
    # upstream takes nothing but «true» for true here
    Variable("topology_score", ("ENABLE_TOPOLOGY_SCORE",), lambda text: text == "true"),
)

_FLAGS_IN_FILE: Mapping[str, tuple[str, Callable[[str], object]]] = {  # key in the file → field, how it is read
    "migStrategy": ("mig_strategy", parse_choice(*MIG_STRATEGIES)),
    "failOnInitError": ("fail_on_init_error", parse_boolean),
    "nvidiaDriverRoot": ("driver_root", str),
    "nvidiaDevRoot": ("dev_root", str),
    "gdrcopyEnabled": ("gdrcopy", parse_boolean),
    "gdsEnabled": ("gds", parse_boolean),
    "mofedEnabled": ("mofed", parse_boolean),
    "deviceDiscoveryStrategy": ("discovery", parse_discovery),
    "passDeviceSpecs": ("pass_device_specs", parse_boolean),
    "deviceListStrategy": ("list_strategies", parse_list_strategies),
    "deviceIDStrategy": ("id_strategy", parse_choice(*ID_STRATEGIES)),
    "cdiAnnotationPrefix": ("cdi_prefix", str),
    "nvidiaCTKPath": ("cdi_hook", str),
    "nvidiaCDIHookPath": ("cdi_hook", str),
    "containerDriverRoot": ("driver_root_in_container", str),
}


def read_plugin_settings(given: Mapping[str, object], environ: Mapping[str, str]) -> PluginSettings:
    """Settings of the flags that were *given*, by field name, and the environment; the files that they name are read.

    Field names are those of PluginSettings and PluginConfig, and ``device_config_file`` and ``node_config_file``.
    Raises: HamiError when a file cannot be read or something cannot be used, which is named.
    """
    told = {**_from_environment(environ), **given}
    file = str(told.pop("device_config_file", ""))
    devices = _device_config(file)
    nvidia = devices.nvidia or NvidiaConfig(resource_count_name="")
    node_file = str(told.pop("node_config_file", ""))
    values = {**_of_config(nvidia), **_of_flags(file, devices), **told}
    if not values.get("node"):
        raise HamiError("which node is this? --node-name, or NODE_NAME in the environment")
    own = _of_node(node_file, str(values["node"]))
    values |= own
    values.setdefault("dev_root", values.get("driver_root", "/"))
    settings = _assembled(values, devices, environ)
    _check(settings, "operating_mode" in own)
    return settings


def _assembled(values: Mapping[str, object], devices: DeviceConfig, environ: Mapping[str, str]) -> PluginSettings:
    inner = {entry.name for entry in fields(PluginConfig)}
    outer = {entry.name for entry in fields(PluginSettings)}
    if unknown := values.keys() - inner - outer:
        raise TypeError(f"no such settings: {', '.join(sorted(unknown))}")
    config: Any = {name: value for name, value in values.items() if name in inner}
    rest: Any = {name: value for name, value in values.items() if name not in inner}
    nvidia = msgspec.structs.replace(devices.nvidia or NvidiaConfig(), resource_count_name=config["resource"])
    settings = PluginSettings(config=PluginConfig(**config), devices=replace(devices, nvidia=nvidia),
                              xids=parse_xid_rules(environ), notes=devices.notes, **rest)
    if settings.mig_strategy != "none" and settings.config.operating_mode == "mig":
        note = (f"--mig-strategy {settings.mig_strategy}: skipped, as operatingmode mig cuts instances as pods need "
                "them, and destroys those of which no pod is known")
        settings = replace(settings, notes=(*settings.notes, note))
    return settings


def _check(settings: PluginSettings, mode_by_node: bool) -> None:
    config = settings.config
    if not config.resource:
        raise HamiError("the device configuration has no resourceCountName for nvidia, nor is there --resource-name")
    if config.operating_mode == "mig" and not config.mig_allowlist:
        raise HamiError(f"{'the node configuration' if mode_by_node else '--operating-mode'} says mig, but the device "
                        "configuration has no nvidia.migProfileAllowlist: nothing may be cut")
    if config.operating_mode == "mig" and config.register_format == "csv":
        raise HamiError("--register-format csv: that text cannot say where MIG instances may lie, expected json")
    for flag, path in (("--hook-path", config.hook_path), ("--nvidia-driver-root", config.driver_root),
                       ("--dev-root", config.dev_root), ("--nvidia-cdi-hook-path", settings.cdi_hook)):
        if not path.startswith("/"):
            raise MalformedInput(flag, path, "expected an absolute path")


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for variable in ENVIRONMENT:
        for name in variable.names:
            if (text := environ.get(name)) and variable.field not in found:
                try:
                    found[variable.field] = variable.parse(text)
                except MalformedInput as error:
                    raise MalformedInput(f"environment variable {name}", text, error.problem) from error
    return found


def _device_config(path: str) -> DeviceConfig:
    if not path:
        return chart_config()
    return parse_device_config(read_text("--config-file", path), path, known=(_FLAGS, _IMEX))


def _of_config(nvidia: NvidiaConfig) -> dict[str, object]:
    """What the section ``nvidia`` of the device configuration says."""
    return {
        "resource": nvidia.resource_count_name, "split_count": nvidia.device_split_count,
        "memory_scaling": nvidia.device_memory_scaling, "core_scaling": nvidia.device_core_scaling,
        "preconfigured_memory": nvidia.preconfigured_device_memory, "log_level": str(nvidia.lib_cuda_log_level),
        "disable_core_limit": nvidia.disable_core_limit, "numa_topology": nvidia.enable_numa_topology,
        "mig_allowlist": nvidia.mig_profile_allowlist,
    }


def _of_flags(path: str, devices: DeviceConfig) -> dict[str, object]:
    """What the sections ``flags``, its ``plugin``, and ``imex`` say, which are those of NVIDIA's own plugin."""
    found: dict[str, object] = {}
    flags: dict[str, object] = dict(devices.extra_sections.get(_FLAGS, {}))
    inner = flags.pop("plugin", None) or {}
    if not isinstance(inner, dict):
        raise MalformedInput(f"{path}: {_FLAGS}.plugin", inner, "expected a mapping")
    for key, value in [*flags.items(), *inner.items()]:
        name, parse = _FLAGS_IN_FILE.get(str(key), ("", str))
        if name and value is not None:
            try:
                found[name] = parse(_plain(value))
            except MalformedInput as error:
                raise MalformedInput(f"{path}: {_FLAGS}.{key}", value, error.problem) from error
    imex = devices.extra_sections.get(_IMEX, {})
    if (channels := imex.get("channelIDs")) is not None:
        found["imex_channels"] = parse_channels(_plain(channels))
    if (required := imex.get("required")) is not None:
        found["imex_required"] = parse_boolean(_plain(required))
    return found


def _plain(value: object) -> str:
    """The value as it would stand on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


class _Filter(msgspec.Struct):
    uuid: list[str] | None = None
    index: list[int] | None = None


class _NodeEntry(msgspec.Struct):
    """One entry of the node configuration; names in lower case, as they are read without regard to it."""

    name: str | None = None
    operatingmode: str | None = None
    devicesplitcount: int | None = None
    devicememoryscaling: float | None = None
    devicecorescaling: float | None = None
    preconfigureddevicememory: int | None = None
    libcudaloglevel: str | int | None = None
    enablenumatopology: bool | None = None
    enablegetpreferredallocation: bool | None = None
    filterdevices: _Filter | None = None


class _NodeConfig(msgspec.Struct):
    nodeconfig: list[_NodeEntry] | None = None


def _of_node(path: str, node: str) -> dict[str, object]:
    """What the node configuration says of *node*: its entries in their order.

    Shape: ``{"nodeconfig": [{"name": …, "operatingmode": …, …}]}``. A number that is 0 or a text that is empty is not
    given, as upstream has it; ``false`` is (upstream cannot switch off what is on for all nodes).
    Raises: HamiError for a file that was named and is missing, MalformedInput naming file and entry.
    """
    file = Path(path or NODE_CONFIG_FILE)
    if not path and not file.exists():
        return {}
    text = read_text("--node-config-file", file)
    try:
        document = msgspec.json.decode(text)
        entries = msgspec.convert(_lowered(document), _NodeConfig).nodeconfig or []
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise MalformedInput(str(file), text, f"not a node configuration ({error})") from error
    found: dict[str, object] = {}
    for place, entry in enumerate(entries):
        if entry.name == node:
            found |= _of_entry(f"{file}: nodeconfig[{place}]", entry)
    return found


def _lowered(value: object) -> object:
    if isinstance(value, dict):
        return {str(key).lower(): _lowered(inner) for key, inner in value.items()}
    return [_lowered(inner) for inner in value] if isinstance(value, list) else value


def _of_entry(where: str, entry: _NodeEntry) -> dict[str, object]:
    filtered = entry.filterdevices or _Filter()
    given: Iterable[tuple[str, object]] = (
        ("operating_mode", entry.operatingmode or None),
        ("split_count", entry.devicesplitcount or None),
        ("memory_scaling", entry.devicememoryscaling or None),
        ("core_scaling", entry.devicecorescaling or None),
        ("preconfigured_memory", entry.preconfigureddevicememory or None),
        ("log_level", None if entry.libcudaloglevel in (None, "") else str(entry.libcudaloglevel)),
        ("numa_topology", entry.enablenumatopology),
        ("aligned", entry.enablegetpreferredallocation),
        ("filtered_uuids", None if filtered.uuid is None else tuple(filtered.uuid)),
        ("filtered_indexes", None if filtered.index is None else tuple(filtered.index)),
    )
    for key, value, right, broken in (
        ("operatingmode", entry.operatingmode, " or ".join(OPERATING_MODES),
         entry.operatingmode and entry.operatingmode not in OPERATING_MODES),
        ("devicesplitcount", entry.devicesplitcount, "a whole number, 1 or more", (entry.devicesplitcount or 1) < 1),
        ("devicememoryscaling", entry.devicememoryscaling, "a number above 0", (entry.devicememoryscaling or 1) < 0),
        ("devicecorescaling", entry.devicecorescaling, "a number above 0", (entry.devicecorescaling or 1) < 0),
        ("preconfigureddevicememory", entry.preconfigureddevicememory, "MiB, 0 or more",
         (entry.preconfigureddevicememory or 0) < 0),
    ):
        if broken:
            raise MalformedInput(f"{where}.{key}", value, f"expected {right}")
    return {name: value for name, value in given if value is not None}
