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
from hami.devices.config import PluginConfig
from hami.devices.health import XidRules, parse_xid_rules
from hami.errors import HamiError, MalformedInput
from hami.plugin.flags import AUTO, FLAGS, NODE_CONFIG_FILE, OPERATING_MODES, START
from hami.quantity import INT32_MAX
from hami.runtime.options import Address, parse_named, read_text
from hami.runtime.settings import gather, load_device_config, require_node_name

CDI_ROOT = "/var/run/cdi"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings(PluginConfig):
    """All settings: those that decide about devices and allocations, and those of the process.

    *allocate*: ``start``, ``admission`` or ``auto``.
    *mock_devices*: a file that replaces the driver, empty for the driver. *driver_root_in_container*: path of the
    host's driver root in this container. *fail_on_init_error*: fail without a driver; otherwise the node has no
    devices. *discovery*: ``auto`` detects WSL, ``nvml`` does not. *mig_strategy*: other than ``none`` to offer existing
    MIG instances. *library_source*: files to copy to the host, empty for none. *cdi_root*: directory of the CDI
    specifications for a ``cdi`` strategy, empty when another program writes them. *cdi_hook*: the host's program that
    they name as hook. *health_bind_address*: ``None`` to disable the page. *devices*: with the effective section
    *nvidia*. *notes*: what was skipped, one sentence each.
    """

    devices: DeviceConfig = field(default_factory=chart_config)
    allocate: str = AUTO
    mock_devices: str = ""
    driver_root_in_container: str = "/driver-root"
    fail_on_init_error: bool = True
    mig_strategy: str = "none"
    discovery: str = "auto"
    imex_required: bool = False
    library_source: str = ""
    cdi_root: str = CDI_ROOT
    cdi_hook: str = "/usr/bin/nvidia-ctk"
    xids: XidRules = XidRules()
    kube_timeout: int = 0
    health_bind_address: Address | None = None
    log_format: str = "text"
    verbosity: int = 0
    notes: tuple[str, ...] = ()


def read_plugin_settings(given: Mapping[str, object], environ: Mapping[str, str]) -> PluginSettings:
    """The settings of flags, environment and the files that they name. *given*: values of flags by field.

    Fields are those of PluginSettings and NvidiaConfig, and ``device_config_file`` and ``node_config_file``.
    Raises: HamiError when a file cannot be read or a value cannot be used; names it.
    """
    # as in upstream, only "true" enables ENABLE_TOPOLOGY_SCORE
    overrides = gather(FLAGS, given, environ, {"topology_score": lambda text: text == "true"})
    path = str(overrides.pop("device_config_file", ""))
    devices = load_device_config("--config-file", path)
    node_path = str(overrides.pop("node_config_file", ""))
    section = devices.nvidia or NvidiaConfig(resource_count_name="")
    values = {
        "resource": section.resource_count_name,
        "log_level": str(section.lib_cuda_log_level),
        **_from_flags(path, devices),
        **overrides,
    }
    require_node_name(values.get("node"))
    of_node = _from_node_config(node_path, str(values["node"]))
    values |= of_node
    values.setdefault("dev_root", values.get("driver_root", "/"))
    settings = _assembled(values, devices, environ)
    _check(settings, "operating_mode" in of_node)
    return settings


def _assembled(
    values: Mapping[str, object], devices: DeviceConfig, environ: Mapping[str, str]
) -> PluginSettings:
    in_section = NvidiaConfig.__struct_fields__
    rest: Any = {name: value for name, value in values.items() if name not in in_section}
    nvidia = msgspec.structs.replace(
        devices.nvidia or NvidiaConfig(),
        resource_count_name=rest["resource"],
        **{name: value for name, value in values.items() if name in in_section},
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
    if settings.operating_mode == "mig" and not settings.nvidia.mig_profile_allowlist:
        raise HamiError(
            f"{'the node configuration' if mode_by_node else '--operating-mode'} says mig, but the device "
            "configuration has no nvidia.migProfileAllowlist: no instance may be created"
        )
    if settings.allocate == START and not settings.cdi_root:
        raise HamiError(
            "--allocate start: --cdi-root is empty, so there is no directory for CDI specifications"
        )
    if settings.operating_mode == "mig" and settings.register_format == "csv":
        raise HamiError(
            "--register-format csv: it has no field for the places of MIG instances, expected json"
        )
    for flag, path in (
        ("--hook-path", settings.hook_path),
        ("--nvidia-driver-root", settings.driver_root),
        ("--dev-root", settings.dev_root),
        ("--nvidia-cdi-hook-path", settings.cdi_hook),
    ):
        if not path.startswith("/"):
            raise MalformedInput(flag, path, "expected an absolute path")


def _from_flags(path: str, devices: DeviceConfig) -> dict[str, object]:
    """The values of the sections ``flags``, ``flags.plugin`` and ``imex``."""
    flags = devices.extra_sections.get("flags", {})
    plugin = flags.get("plugin") or {}
    if not isinstance(plugin, dict):
        raise MalformedInput(f"{path}: flags.plugin", plugin, "expected a mapping")
    values: dict[str, object] = {}
    for place, section in (
        ("flags", flags),
        ("flags", plugin),
        ("imex", devices.extra_sections.get("imex", {})),
    ):
        for flag in (flag for _, group in FLAGS for flag in group):
            for key in flag.keys:
                if (value := section.get(key)) is not None:
                    values[flag.parameter] = parse_named(
                        _as_argument(value), flag.type.parse, f"{path}: {place}.{key}"
                    )
    return values


def _as_argument(value: object) -> str:
    """The value as on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


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
        values = (
            asdict(self)
            | asdict(self.filtered)
            | asdict(self.claimed)
            | {"log_level": str(self.log_level)}
        )
        return {
            name: value
            for name, value in values.items()
            if name not in ("name", "filtered", "claimed")
            and (value is False or value not in (None, 0, ""))
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
    if isinstance(value, dict):
        return {
            key.lower(): _normalized(inner) for key, inner in value.items() if inner is not None
        }
    return [_normalized(inner) for inner in value] if isinstance(value, list) else value
