"""Settings that several programs have, and how they are read: flags over environment variables, the device
configuration.

A setting is a field whose annotation has its flag. The flag has the help, which is also the field's documentation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated

from hami.codec.device_config import (
    DeviceConfig,
    FlagValue,
    Key,
    chart_config,
    parse_device_config,
)
from hami.codec.policies import DEVICE_POLICIES, NODE_POLICIES
from hami.errors import HamiError, MalformedInput
from hami.runtime.options import (
    File,
    Flag,
    Value,
    choice,
    parameter,
    parse_named,
    read_text,
)

DRA = OFF, SHOW, ALLOCATE = ("off", "show", "allocate")  # what is done about claims for devices
REQUEST_TIMEOUT_S = 10.0  # of calls to the API server

KUBE_TIMEOUT = Flag(
    "--kube-timeout",
    "Seconds until a request to the API server times out; 0 for the built-in timeout.",
)


def parse_device_policy_flag(text: str) -> str:
    """*text* when it is a device policy, or several separated by commas. Raises: MalformedInput."""
    for word in text.split(","):
        if word.strip() not in DEVICE_POLICIES:
            raise MalformedInput(
                "policy",
                text,
                f"expected {', '.join(DEVICE_POLICIES)}, or several separated by commas",
            )
    return text


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """The log of a program."""

    verbosity: Annotated[
        int,
        Flag(
            "--v",
            "Verbosity: 0 logs outcomes and warnings, 4 or more also debug messages.",
            also="-v",
        ),
    ] = 0
    log_format: Annotated[
        str,
        choice("format", "text", "json"),
        Flag(
            "--log-format",
            "text (key=value) or json, one line for each message, on standard error.",
        ),
    ] = "text"


@dataclass(frozen=True, kw_only=True)
class ClusterSettings(LogSettings):
    """The settings with which scheduler and dashboard see the same cluster."""

    node_scheduler_policy: Annotated[
        str,
        choice("policy", *NODE_POLICIES),
        Flag(
            "--node-scheduler-policy",
            "Default policy that selects nodes: binpack (the fullest that fits), spread (the "
            "emptiest), or least-waste (where the usual pods lose least room).",
        ),
    ] = "binpack"
    gpu_scheduler_policy: Annotated[
        str,
        Value("policy", parse_device_policy_flag),
        Flag(
            "--gpu-scheduler-policy",
            f"Default policy that selects devices: {', '.join(DEVICE_POLICIES)}, or several "
            "separated by commas.",
        ),
    ] = "spread"
    usual_pods: Annotated[
        File,
        Flag(
            "--usual-pods",
            "YAML file that lists the kinds of pods for which the node policy least-waste keeps "
            "room, each with how often it comes; without it, they are learnt from the pods that "
            "are placed.",
        ),
    ] = ""
    foreign_reservations: Annotated[
        bool,
        Flag(
            "--foreign-reservations",
            "Count for 60s what another scheduler has written on a pod that is not bound yet. "
            "For an upgrade from HAMi, whose scheduler does so. While it is set, everyone who "
            "may write these annotations can claim devices.",
        ),
    ] = False
    node_selector: Annotated[
        str,
        Value("selector", str),
        Flag(
            "--node-label-selector",
            "Label selector of the nodes to use, such as gpu=on,zone!=b; empty for all. The API "
            "server validates it after the start.",
        ),
    ] = ""
    kube_timeout: Annotated[int, KUBE_TIMEOUT] = 0
    dra: Annotated[
        str,
        choice("mode", *DRA),
        Flag(
            "--dra",
            "What to do about GPUs that pods get by claims (Dynamic Resource Allocation, from "
            "Kubernetes 1.36 on): show them; allocate: give pods that a label of theirs or of "
            "their namespace selects claims that this scheduler allocates; or off.",
        ),
    ] = OFF

    device_config_file: Annotated[
        File,
        Flag(
            "--device-config-file",
            "YAML file with resource names and defaults by vendor; without it, the chart's apply.",
        ),
    ] = ""
    enable_ascend: Annotated[
        bool, Flag("--enable-ascend", "Schedule Ascend devices, those in the file's vnpus.")
    ] = False
    enable_iluvatar: Annotated[
        bool, Flag("--enable-iluvatar", "Schedule Iluvatar devices, those in the file's iluvatars.")
    ] = False
    devices: DeviceConfig = field(default_factory=chart_config)
    pod_namespace: str = "kube-system"

    @property
    def request_timeout(self) -> float:
        """The seconds until a call to the API server times out."""
        return self.kube_timeout or REQUEST_TIMEOUT_S


def cluster_values(
    flag_values: Mapping[str, object],
    environ: Mapping[str, str],
    config_flags: Sequence[tuple[Flag, object]],
    known: Collection[str],
) -> dict[str, object]:
    """Returns *flag_values*, which are by field, with the namespace of the environment and the device configuration.

    *config_flags*: flags for the device configuration with their values; those for disabled sections are skipped.
    *known*: its sections that vendors of third parties read. Raises: HamiError.
    """
    flags: dict[Key, FlagValue] = {}
    notes = []
    for flag, value in config_flags:
        if flag.requires and not flag_values.get(parameter(flag.requires)):
            notes.append(f"{flag.name}: requires {flag.requires}, skipped")
        elif flag.key is not None:
            flags.setdefault(flag.key, FlagValue(value, flag.name))
    file = str(flag_values.get("device_config_file", ""))
    config = load_device_config("--device-config-file", file, flags=flags, known=known)
    values: dict[str, object] = {
        **flag_values,
        "devices": replace(config, notes=(*config.notes, *notes)),
    }
    if namespace := environ.get("POD_NAMESPACE"):
        values["pod_namespace"] = namespace
    return values


def check_key_pair(cert_file: str, key_file: str) -> None:
    """Raises HamiError if one of both files is missing."""
    if bool(cert_file) != bool(key_file):
        flag, missing = "--cert_file", "--key_file"
        if key_file:
            flag, missing = missing, flag
        raise HamiError(f"{flag} without {missing}: give both for HTTPS, or none for plain HTTP")


def environment_values(flags: Iterable[Flag], environ: Mapping[str, str]) -> dict[str, object]:
    """The values of the flags' environment variables by field. Empty variables count as missing.

    Raises: MalformedInput, which names the variable.
    """
    values: dict[str, object] = {}
    for flag in flags:
        for name in flag.environment.split():
            if text := environ.get(name):
                place = f"environment variable {name}"
                values[flag.field] = parse_named(text, flag.type.parse, place)
                break
    return values


def load_device_config(
    flag: str,
    path: str,
    *,
    flags: Mapping[Key, FlagValue] = MappingProxyType({}),
    known: Collection[str] = ("flags", "imex"),
) -> DeviceConfig:
    """The device configuration at *path*, which *flag* names; without a path, the chart's.

    *flags*: values for keys that it lacks. *known*: sections that others read; the default ones are those that NVIDIA's
    device plugin defines. Raises: HamiError.
    """
    if not path:
        return chart_config(flags)
    return parse_device_config(read_text(flag, path), path, flags=flags, known=known)


def require_node_name(name: object) -> None:
    """Raises HamiError without the *name* of the node."""
    if not name:
        raise HamiError(
            "the node's name is missing: give --node-name, or NODE_NAME in the environment"
        )
