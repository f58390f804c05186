"""Settings of the device plugin as one frozen record: flags, environment, device configuration, the node's entry.

The command line overrides the environment, which overrides the device configuration, which overrides the defaults. The
node's entry in the node configuration overrides all of them, since they are the same for all nodes.
Source: HAMi v2.10, cmd/device-plugin/nvidia; k8s-device-plugin 0.17, api/config/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from hami.codec.device_config import DeviceConfig, NvidiaConfig, chart_config
from hami.codec.documents import convert, parse_json, places_in
from hami.devices.config import AUTO, OPERATING_MODES, PluginConfig
from hami.devices.xids import XidRules, parse_xid_rules
from hami.errors import HamiError, MalformedInput
from hami.node.flags import MOCK_DEVICES, driver_root
from hami.quantity import INT32_MAX
from hami.runtime.options import (
    ADDRESS,
    FACTOR,
    Address,
    File,
    Flag,
    Value,
    choice,
    flags_of,
    parse_named,
    read_text,
    whole_number,
)
from hami.runtime.settings import (
    KUBE_TIMEOUT,
    LogSettings,
    environment_values,
    load_device_config,
    require_node_name,
)

CDI_ROOT = "/var/run/cdi"
NODE_CONFIG_FILE = "/config/config.json"
START, ADMISSION = "start", "admission"


def _parse_discovery(text: str) -> str:
    """The strategy that discovers devices; all use NVML. Raises: MalformedInput."""
    if text not in ("auto", "nvml"):
        raise MalformedInput(
            "discovery strategy",
            text,
            "expected auto or nvml: Tegra has no device memory to share; "
            "use NVIDIA's device plugin for it",
        )
    return text


@dataclass(frozen=True, kw_only=True)
class PluginSettings(PluginConfig, LogSettings):
    """All settings: those that decide about devices and allocations, and those of the process."""

    device_config_file: Annotated[
        File,
        Flag(
            "--config-file",
            "The device configuration (YAML), the same as the scheduler's; without it, the "
            "chart's applies. Its section flags, which NVIDIA's plugin defines, is read, too.",
            also="--device-config-file",
            environment="CONFIG_FILE",
        ),
    ] = ""
    node_config_file: Annotated[
        File,
        Flag(
            "--node-config-file",
            "Settings of single nodes (JSON): the entries with this node's name override "
            f"everything else. Without the flag, {NODE_CONFIG_FILE} if it exists.",
            environment="NODE_CONFIG_FILE",
        ),
    ] = ""
    mock_devices: Annotated[File, MOCK_DEVICES] = ""
    driver_root_in_container: Annotated[File, driver_root("plugin")] = "/driver-root"
    discovery: Annotated[
        str,
        Value("strategy", _parse_discovery),
        Flag(
            "--device-discovery-strategy",
            "auto or nvml; nvml does not detect WSL, which has one device node for all devices.",
            environment="DEVICE_DISCOVERY_STRATEGY",
            keys="deviceDiscoveryStrategy",
        ),
    ] = "auto"
    fail_on_init_error: Annotated[
        bool,
        Flag(
            "--fail-on-init-error",
            "Without a driver, fail at startup and retry; otherwise the node has no devices "
            "until there is one.",
            environment="FAIL_ON_INIT_ERROR",
            keys="failOnInitError",
        ),
    ] = True
    mig_strategy: Annotated[
        str,
        choice("strategy", "none", "single", "mixed"),
        Flag(
            "--mig-strategy",
            "none, single or mixed: offer existing MIG instances to all pods, under the "
            "resource's name or as nvidia.com/mig-<profile>.",
            environment="MIG_STRATEGY",
            keys="migStrategy",
        ),
    ] = "none"
    allocate: Annotated[
        str,
        choice("mode", AUTO, START, ADMISSION),
        Flag(
            "--allocate",
            "When a container gets its devices: start (by a CDI specification that is written "
            "when it starts, without a node lock), admission (when the kubelet admits the pod), "
            "or auto: start if runtime and kubelet have CDI switched on and --cdi-root is "
            "writable.",
            environment="ALLOCATE_MODE",
        ),
    ] = AUTO
    cdi_root: Annotated[
        File,
        Flag(
            "--cdi-root",
            "The host's directory for CDI specifications of containers and, with a cdi strategy, "
            "of devices; empty if another program writes the latter: then containers get their "
            "devices at admission.",
            environment="CDI_ROOT",
        ),
    ] = CDI_ROOT
    cdi_hook: Annotated[
        File,
        Flag(
            "--nvidia-cdi-hook-path",
            "The host's nvidia-ctk or nvidia-cdi-hook, which the specifications name as hook.",
            also="--nvidia-ctk-path",
            environment="NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH",
            keys="nvidiaCTKPath nvidiaCDIHookPath",
        ),
    ] = "/usr/bin/nvidia-ctk"
    imex_required: Annotated[
        bool,
        Flag(
            "--imex-required",
            "Fail at startup if the host lacks those channels.",
            environment="IMEX_REQUIRED",
            keys="required",
        ),
    ] = False
    library_source: Annotated[
        File,
        Flag(
            "--library-source",
            "Directory with the limiter's files, which are copied to the host at startup, once "
            "they have the checksums in its file SHA256SUMS; running containers keep theirs. "
            "Without it, they must be there already.",
            environment="LIBRARY_SOURCE",
        ),
    ] = ""
    health_bind_address: Annotated[
        Address | None,
        ADDRESS,
        Flag(
            "--health-bind-address",
            "Address of /readyz and /healthz, plain HTTP. /readyz: 200 when the devices are "
            "registered with the kubelet and can be given to containers, or there are none, else "
            "503 and the reason. /healthz: 200, or 500 when a thread has died or hangs, the "
            "plugin's own server no longer answers, or only a new process can use the driver. "
            "Not served without the flag.",
        ),
    ] = None
    kube_timeout: Annotated[int, KUBE_TIMEOUT] = 0
    devices: DeviceConfig = field(default_factory=chart_config)
    xids: XidRules = XidRules()
    notes: tuple[str, ...] = ()


_CHART = NvidiaConfig()


@dataclass(frozen=True, kw_only=True)
class NvidiaFlags:
    """Flags that set keys of the section ``nvidia``."""

    device_split_count: Annotated[
        int,
        whole_number(1),
        Flag(
            "--device-split-count",
            "Containers that may share a device.",
            environment="DEVICE_SPLIT_COUNT",
        ),
    ] = _CHART.device_split_count
    device_memory_scaling: Annotated[
        float,
        FACTOR,
        Flag(
            "--device-memory-scaling",
            "Ratio of the memory that can be allocated to a device's memory; above 1, pods may "
            "together be given more than it has: nothing moves to host memory, and a program "
            "gets the driver's out-of-memory error when the device is full.",
            environment="DEVICE_MEMORY_SCALING",
        ),
    ] = _CHART.device_memory_scaling
    device_core_scaling: Annotated[
        float,
        FACTOR,
        Flag(
            "--device-cores-scaling",
            "Ratio of the cores that can be allocated to a device's cores.",
            environment="DEVICE_CORES_SCALING",
        ),
    ] = _CHART.device_core_scaling
    disable_core_limit: Annotated[
        bool,
        Flag(
            "--disable-core-limit",
            "Do not limit the cores that containers use.",
            environment="DISABLE_CORE_LIMIT",
        ),
    ] = _CHART.disable_core_limit


FLAGS = flags_of(PluginSettings(node="")) | flags_of(NvidiaFlags())
_TOPOLOGY_SCORE = "ENABLE_TOPOLOGY_SCORE"


def read_plugin_settings(
    flag_values: Mapping[str, object], environ: Mapping[str, str]
) -> PluginSettings:
    """The settings of flags, environment and the files that they name. *flag_values*: by field of PluginSettings or
    NvidiaFlags.

    Raises: HamiError when a file cannot be read or a value cannot be used; names it.
    """
    if text := environ.get(_TOPOLOGY_SCORE):
        environ = {**environ, _TOPOLOGY_SCORE: str(text == "true").lower()}  # as in upstream
    overrides = {**environment_values(FLAGS.values(), environ), **flag_values}
    path = str(overrides.get("device_config_file", ""))
    devices = load_device_config("--config-file", path)
    section = devices.nvidia or NvidiaConfig(resource_count_name="")
    values = {
        "resource": section.resource_count_name,
        "log_level": str(section.lib_cuda_log_level),
        **_from_flags(path, devices),
        **overrides,
    }
    require_node_name(values.get("node"))
    of_node = _from_node_config(str(values.get("node_config_file", "")), str(values["node"]))
    values |= of_node
    values.setdefault("dev_root", values.get("driver_root", "/"))
    settings = _assembled(values, devices, environ)
    _check(settings, "operating_mode" in of_node)
    return settings


def _assembled(
    values: Mapping[str, object], devices: DeviceConfig, environ: Mapping[str, str]
) -> PluginSettings:
    rest: dict[str, Any] = dict(values)
    section = {name: rest.pop(name) for name in NvidiaConfig.__struct_fields__ if name in rest}
    nvidia = msgspec.structs.replace(
        devices.nvidia or NvidiaConfig(), resource_count_name=rest["resource"], **section
    )
    settings = PluginSettings(
        nvidia=nvidia,
        devices=replace(devices, nvidia=nvidia),
        xids=parse_xid_rules(environ),
        notes=devices.notes,
        **rest,
    )
    if settings.mig_strategy != "none" and settings.operating_mode == "mig":
        note = (
            f"--mig-strategy {settings.mig_strategy}: skipped, since operatingmode mig creates instances as pods "
            "need them and deletes those without a pod"
        )
        settings = replace(settings, notes=(*settings.notes, note))
    return settings


def _check(settings: PluginSettings, mode_by_node: bool) -> None:
    if not settings.resource:
        raise HamiError(
            "the device configuration has no resourceCountName for nvidia, and --resource-name is missing"
        )
    if settings.operating_mode == "mig":
        _check_mig(settings, "the node configuration" if mode_by_node else "--operating-mode")
    if settings.allocate == START and not settings.cdi_root:
        raise HamiError(
            "--allocate start: --cdi-root is empty, so there is no directory for CDI specifications"
        )
    for flag, path in (
        ("--hook-path", settings.hook_path),
        ("--nvidia-driver-root", settings.driver_root),
        ("--dev-root", settings.dev_root),
        ("--nvidia-cdi-hook-path", settings.cdi_hook),
    ):
        if not path.startswith("/"):
            raise MalformedInput(flag, path, "expected an absolute path")


def _check_mig(settings: PluginSettings, source: str) -> None:
    if not settings.nvidia.mig_profile_allowlist:
        raise HamiError(
            f"{source} says mig, but the device "
            "configuration has no nvidia.migProfileAllowlist: no instance may be created"
        )
    if settings.register_format == "csv":
        raise HamiError(
            "--register-format csv: it has no field for the places of MIG instances, expected json"
        )


def _from_flags(path: str, devices: DeviceConfig) -> dict[str, object]:
    """The values of the sections ``flags``, ``flags.plugin`` and ``imex``."""
    flags = devices.extra_sections.get("flags", {})
    plugin = flags.get("plugin") or {}
    if not isinstance(plugin, dict):
        raise MalformedInput(f"{path}: flags.plugin", plugin, "expected a mapping")
    imex = devices.extra_sections.get("imex", {})
    values: dict[str, object] = {}
    for place, section in (("flags", flags), ("flags", plugin), ("imex", imex)):
        for flag in FLAGS.values():
            for key in flag.keys.split():
                if section.get(key) is not None:
                    text = _as_argument(section[key])
                    place_of_key = f"{path}: {place}.{key}"
                    values[flag.field] = parse_named(text, flag.type.parse, place_of_key)
    return values


def _as_argument(value: object) -> str:
    """The value as on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)


Scaling = Annotated[float, Meta(ge=0, description="a number above 0")]


class _Filter(
    msgspec.Struct, frozen=True, rename={"filtered_uuids": "uuid", "filtered_indexes": "index"}
):
    filtered_uuids: tuple[str, ...] | None = None
    filtered_indexes: tuple[int, ...] | None = None


class _Claimed(
    msgspec.Struct, frozen=True, rename={"claimed_uuids": "uuid", "claimed_indexes": "index"}
):
    claimed_uuids: tuple[str, ...] | None = None
    claimed_indexes: tuple[int, ...] | None = None


_KEYS_OF_NODES = {
    "log_level": "libcudaloglevel",
    "aligned": "enablegetpreferredallocation",
    "filtered": "filterdevices",
    "claimed": "claimdevices",
}


class _NodeEntry(
    msgspec.Struct, rename=lambda name: _KEYS_OF_NODES.get(name, name.replace("_", ""))
):
    """One entry of the node configuration, whose keys are case-insensitive. 0 and empty texts are not given."""

    name: str = ""
    operating_mode: Annotated[
        Literal["", "hami-core", "mig"], Meta(description=" or ".join(OPERATING_MODES))
    ] = ""
    device_split_count: Annotated[
        int, Meta(ge=0, le=INT32_MAX, description="a whole number, 1 or more")
    ] = 0
    device_memory_scaling: Scaling = 0.0
    device_core_scaling: Scaling = 0.0
    preconfigured_device_memory: Annotated[
        int, Meta(ge=0, le=INT32_MAX, description="MiB, 0 or more")
    ] = 0
    log_level: str | int = ""
    enable_numa_topology: bool | None = None
    aligned: bool | None = None
    filtered: _Filter = _Filter()
    claimed: _Claimed = _Claimed()

    def values(self) -> dict[str, object]:
        """The values that are given, by field of PluginSettings or NvidiaConfig."""
        entry = asdict(self) | asdict(self.filtered) | asdict(self.claimed)
        entry["log_level"] = str(self.log_level)
        for name in ("name", "filtered", "claimed"):
            del entry[name]
        absent = (None, 0, "")
        return {
            name: value for name, value in entry.items() if value is False or value not in absent
        }


class _NodeConfig(msgspec.Struct):
    nodeconfig: tuple[_NodeEntry, ...] = ()


def _from_node_config(path: str, node: str) -> dict[str, object]:
    """The values of *node*'s entries in the node configuration; later entries override earlier ones.

    Shape: ``{"nodeconfig": [{"name": …, "operatingmode": …, …}]}``. ``false`` counts as given, unlike in upstream,
    which cannot disable a setting of all nodes.
    Raises: HamiError for a missing file that was named, MalformedInput naming file and key.
    """
    file = Path(path or NODE_CONFIG_FILE)
    if not path and not file.exists():
        return {}
    try:
        document = _normalized(parse_json(read_text("--node-config-file", file), str(file)))
    except RecursionError as error:
        raise MalformedInput(str(file), "", "expected less nesting") from error
    config = convert(document, _NodeConfig, places_in(str(file)))
    values: dict[str, object] = {}
    for entry in config.nodeconfig:
        if entry.name == node:
            values |= entry.values()
    return values


def _normalized(value: object) -> object:
    """*value* with keys in lower case and without nulls."""
    if isinstance(value, list):
        return [_normalized(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {key.lower(): _normalized(inner) for key, inner in value.items() if inner is not None}
