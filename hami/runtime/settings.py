"""Settings that several programs have, and how they are read: flags over environment variables, the device
configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hami.codec.device_config import (
    DeviceConfig,
    Fallback,
    Flagged,
    chart_config,
    parse_device_config,
)
from hami.errors import HamiError
from hami.runtime.options import Groups, parse_named, read_text

DRA = OFF, SHOW, ALLOCATE = ("off", "show", "allocate")  # what is done about claims for devices
REQUEST_TIMEOUT_S = 10.0  # of calls to the API server
_SWITCHES = {
    "vnpus": "enable_ascend",
    "iluvatars": "enable_iluvatar",
}  # flags that enable a section


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The settings with which scheduler and dashboard see the same cluster.

    *node_selector*: a label selector; empty for all nodes. *kube_timeout*: seconds, 0 for the built-in one. *dra*:
    one of `DRA`. *devices*: without a file, the chart's.
    """

    node_scheduler_policy: str = "binpack"
    gpu_scheduler_policy: str = "spread"
    foreign_reservations: bool = False
    node_selector: str = ""
    kube_timeout: int = 0
    dra: str = OFF

    device_config_file: str = ""
    devices: DeviceConfig = field(default_factory=chart_config)
    enable_ascend: bool = False
    enable_iluvatar: bool = False

    log_format: str = "text"
    verbosity: int = 0
    pod_namespace: str = "kube-system"

    @property
    def request_timeout(self) -> float:
        """The seconds until a call to the API server times out."""
        return self.kube_timeout or REQUEST_TIMEOUT_S


def cluster_values(
    given: Mapping[str, object],
    environ: Mapping[str, str],
    fallback: Fallback,
    known: Collection[str],
) -> dict[str, object]:
    """Returns *given* (values of flags by field) with the namespace of the environment and the device configuration.

    *fallback*: values of flags for the device configuration; those for disabled sections are skipped. *known*: its
    sections that vendors of third parties read. Raises: HamiError.
    """
    enabled: dict[str, Mapping[str, Flagged]] = {}
    notes = []
    for place, flags in fallback.items():
        switch = _SWITCHES.get(re.split(r"[.\[]", place)[0], "")
        if switch and not given.get(switch):
            notes += [
                f"{flag}: requires --{switch.replace('_', '-')}, skipped"
                for _, flag in flags.values()
            ]
        else:
            enabled[place] = flags
    config = load_device_config(
        "--device-config-file",
        str(given.get("device_config_file", "")),
        fallback=enabled,
        known=known,
    )
    namespace = {"pod_namespace": text} if (text := environ.get("POD_NAMESPACE")) else {}
    return {**namespace, **given, "devices": replace(config, notes=(*config.notes, *notes))}


def check_key_pair(cert_file: str, key_file: str) -> None:
    """Raises HamiError if one of both files is missing."""
    if bool(cert_file) != bool(key_file):
        given, missing = (
            ("--cert_file", "--key_file") if cert_file else ("--key_file", "--cert_file")
        )
        raise HamiError(f"{given} without {missing}: give both for HTTPS, or none for plain HTTP")


def gather(
    groups: Groups,
    given: Mapping[str, object],
    environ: Mapping[str, str],
    parsers: Mapping[str, Callable[[str], object]] = MappingProxyType({}),
) -> dict[str, object]:
    """The values of flags (*given*) and, below them, of environment variables, by field. Empty variables count as
    missing.

    *parsers*: for fields whose variable is read in another way than the flag. Raises: MalformedInput, which names the
    variable.
    """
    values: dict[str, object] = {}
    for flag in (flag for _, flags in groups for flag in flags):
        if name := next((name for name in flag.environment if environ.get(name)), ""):
            parse = parsers.get(flag.parameter, flag.type.parse)
            values[flag.parameter] = parse_named(
                environ[name], parse, f"environment variable {name}"
            )
    return {**values, **given}


def load_device_config(
    flag: str,
    path: str,
    *,
    fallback: Fallback = MappingProxyType({}),
    known: Collection[str] = ("flags", "imex"),
) -> DeviceConfig:
    """The device configuration at *path*, which *flag* names; without a path, the chart's.

    *fallback*: values of flags, for keys that it lacks. *known*: sections that others read; the default ones are those
    that NVIDIA's device plugin defines. Raises: HamiError.
    """
    return (
        parse_device_config(read_text(flag, path), path, fallback=fallback, known=known)
        if path
        else chart_config(fallback)
    )


def require_node_name(name: object) -> None:
    """Raises HamiError without the *name* of the node."""
    if not name:
        raise HamiError(
            "the node's name is missing: give --node-name, or NODE_NAME in the environment"
        )
