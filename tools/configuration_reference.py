"""The configuration reference: every flag, variable and key, as Markdown, generated from the code that reads them.

``python -m tools.configuration_reference >docs/configuration.md`` writes it; a test fails while the file is outdated.
The explanations of the device configuration's keys are here, since only people need them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, get_args, get_origin

import click
import msgspec
from msgspec.structs import FieldInfo

from hami.cli import main
from hami.cli.device_plugin import PLUGIN_FLAGS
from hami.cli.flags import Groups
from hami.cli.scheduler import SCHEDULER_FLAGS
from hami.codec.device_chart import CHART
from hami.codec.device_config import NVIDIA_LEFT_OUT, DeviceConfigFile
from hami.codec.documents import describe
from hami.devices.health import DISABLE, ENABLE
from hami.plugin.settings import NODE_CONFIG_FILE
from hami.quantity import INT32_MAX

__all__ = ["MEANINGS", "VARIABLES", "documented_keys", "render"]

_HEAD = """\
<!-- made by `python -m tools.configuration_reference`: change the code, not this file -->
# Configuration

What each program can be told, and how. `-` and `_` in a flag's name are the same; a *bool* may stand alone, which is
`true`; a *duration* is written as `28s` or `5m0s`. A value that cannot be used ends the start with one line that names
it. What devices are called in pods and nodes is [in a table](vendors.md); `hami vendors` prints it for your own.
"""
_HELP = re.compile(r"(?P<text>.*?)(?:  \[(?P<environment>[A-Za-z_, ]+)\])?(?:  \[default: (?P<default>.*)\])?",
                   re.DOTALL)

VARIABLES: Mapping[str, str] = MappingProxyType({
    "KUBECONFIG": "The cluster; without it, the one that the pod runs in. Both programs.",
    "POD_NAME": "The pod that a scheduler runs in: its identity in the lease, and the pod that bears its role's label.",
    "POD_NAMESPACE": "Its namespace; without it `kube-system`.",
    "HAMI_NODELOCK_EXPIRE": "`--node-lock-timeout` of the scheduler, where that flag is not given.",
    DISABLE: "XIDs, with commas, for which the device plugin does not take a card out; `all` for none at all.",
    ENABLE: "XIDs, with commas, that count though they are disabled.",
})
"""Variables of the environment that are no flag's."""

MEANINGS: Mapping[str, str] = MappingProxyType({
    "resourceCountName": "devices",
    "resourceMemoryName": "memory of each",
    "resourceMemoryPercentageName": "memory of each, in percent of it",
    "resourceCoreName": "cores of each",
    "resourcePriorityName": "priority of the container on its cards",
    "memoryFactor": "MiB that one unit of the memory resource stands for",
    "defaultMemory": "MiB of each card for a container that does not say; 0 for all of it",
    "defaultCores": "percent of each card's cores for a container that does not say",
    "defaultGPUNum": "cards for a container that asks for memory or cores alone; 0: it gets none",
    "overwriteEnv": "containers that ask for no device are kept from seeing any",
    "gpuCorePolicy": "how the limiter holds a container to its cores",
    "runtimeClassName": "runtime class of pods that get devices and name none; empty: it is left alone",
    "deviceSplitCount": "containers that may share a card",
    "deviceMemoryScaling": "how much more memory may be given out than there is",
    "deviceCoreScaling": "how much more of a card's cores may be given out",
    "preConfiguredDeviceMemory": "MiB of a card that does not say how much it has",
    "enableNumaTopology": "the kubelet is told on which NUMA node a card is",
    "libCudaLogLevel": "how much the limiter says in a container",
    "disableCoreLimit": "containers' use of cores is not limited",
    "migProfileAllowlist": "MIG instances that may be cut, by model of card",
    "models": "cards whose model contains one of these words",
    "profiles": "profiles that may be cut there, such as `1g.10gb`",
    "resourceVCountName": "shared devices",
    "resourceVMemoryName": "memory of each shared device",
    "resourceVCoreName": "cores of each shared device",
    "sgpuTopologyAware": "whole sGPU cards are chosen by their links, unless the pod says otherwise",
    "resourceNameGCU": "whole devices",
    "resourceNameDRSGCU": "slices (DRS)",
    "resourceNameVGCU": "slices, by an older name; counts where `resourceNameDRSGCU` is missing",
    "resourceNameVGCUPercentage": "of older releases; has no effect",
    "resourceNameGCUMemory": "memory of a slice",
    "resourceNameGCUCore": "cores of a slice",
    "hamiVnpuCore": "nodes divide chips in software, unless they say otherwise",
    "configs": "the kinds of chips",
    "commonWord": "the chip's name in annotations and flags; no two alike",
    "chipName": "what its driver calls it",
    "resourceName": "chips, or parts of chips",
    "memoryAllocatable": "what a whole chip offers",
    "memoryCapacity": "the most that may be asked for",
    "aiCore": "read by the device plugin alone",
    "aiCPU": "read by the device plugin alone",
    "superPod": "chips come in pairs",
    "templates": "sizes into which a chip can be divided; `[]`: it never is",
    "name": "the size's name for the device plugin",
    "memory": "its memory; memory that is asked for is rounded up to it",
})
"""What each key of the device configuration is for, wherever it stands."""


def render() -> str:
    """The whole document."""
    return "\n".join([
        _HEAD,
        "## `hami scheduler`\n", *_flags("scheduler", SCHEDULER_FLAGS),
        "## `hami device-plugin`\n",
        "A flag goes before its variable of the environment, that before the device configuration, and what the node's "
        "entry\nsays goes before all of them. SIGHUP reads everything again.\n",
        *_flags("device-plugin", PLUGIN_FLAGS),
        "## Environment\n",
        "Beside the variables that stand for flags:\n",
        *_table(("variable", "what it says"), ((_code(name), text) for name, text in VARIABLES.items())),
        "## Device configuration\n",
        "A YAML file, the same for scheduler and device plugins (`--device-config-file`, `--config-file`). Without a "
        "file, the\nchart's holds, which `manifests/base/device-config.yaml` is, too. In a file, a name that is left "
        "out is a resource that\ndoes not exist; a key that nobody knows is skipped, and the log says so. No two "
        "resources may have one name.\n",
        *_sections(),
        "## Node configuration\n",
        f"A JSON file with what holds for single nodes (`--node-config-file`; without the flag `{NODE_CONFIG_FILE}`, "
        "if it is\nthere): `{\"nodeconfig\": [{\"name\": …, …}]}`, keys read without regard to case.\n",
        *_table(("key", "what it says"), ((_code(key), text) for key, text in NODE_KEYS.items())),
    ]).rstrip() + "\n"


NODE_KEYS: Mapping[str, str] = MappingProxyType({
    "name": "the node",
    "operatingmode": "as `--operating-mode`",
    "devicesplitcount": "as `--device-split-count`",
    "devicememoryscaling": "as `--device-memory-scaling`",
    "devicecorescaling": "as `--device-cores-scaling`",
    "preconfigureddevicememory": "as `preConfiguredDeviceMemory`",
    "libcudaloglevel": "as `libCudaLogLevel`",
    "enablenumatopology": "as `enableNumaTopology`",
    "enablegetpreferredallocation": "the kubelet is told which devices go well together",
    "filterdevices": "`{\"uuid\": […], \"index\": […]}`: cards that are not offered",
})
"""The keys of an entry of the node configuration."""


def _flags(command: str, groups: Groups) -> Iterator[str]:
    options = {option.name: option for option in main.commands[command].params}
    for title, flags in groups:
        yield f"### {title}\n"
        yield from _table(("flag", "value", "default", "environment", "what it says"), (
            _flag(options[flag.parameter.lower()]) for flag in flags))


def _flag(option: click.Parameter) -> tuple[str, ...]:
    assert isinstance(option, click.Option)
    found = _HELP.fullmatch(option.help or "")
    assert found is not None
    return (", ".join(map(_code, option.opts)), str(option.type.name), _code(found["default"] or ""),
            ", ".join(map(_code, (found["environment"] or "").split(", "))), found["text"] or "No effect.")


def documented_keys() -> Mapping[str, tuple[FieldInfo, ...]]:
    """The keys of the device configuration by the path of their mapping (``vnpus.configs[]`` for each of a list)."""
    return {path: msgspec.structs.fields(struct) for section in msgspec.structs.fields(DeviceConfigFile)
            for path, struct in _structs(section)}


def _structs(field: FieldInfo, parent: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """The mapping in *field*, or the mappings if it is a list, and those below."""
    struct = _struct(field.type)
    if struct is not None:
        path = f"{parent}{field.encode_name}" + ("[]" if get_origin(field.type) is tuple else "")
        yield path, struct
        for inner in msgspec.structs.fields(struct):
            yield from _structs(inner, f"{path}.")


def _struct(type: Any) -> type[msgspec.Struct] | None:
    if isinstance(type, msgspec.StructMeta):
        return type
    return next((found for inner in get_args(type) if (found := _struct(inner)) is not None), None)


def _sections() -> Iterator[str]:
    for path, keys in documented_keys().items():
        yield f"### `{path}`\n"
        yield from _table(("key", "holds", "left out", "chart", "what it is"), (_key(path, field) for field in keys))


def _key(path: str, field: FieldInfo) -> tuple[str, ...]:
    key, right = field.encode_name, describe(field.type)
    right = right.replace(f" from 0 to {INT32_MAX}", "").replace(f" to {INT32_MAX}", "")
    default = NVIDIA_LEFT_OUT.get(key, field.default) if path == "nvidia" else field.default
    left_out = "**an error**" if field.required else _code(_plain(default))
    return _code(key), right, left_out, _code(_plain(_of_chart(path, key))), MEANINGS[key]


def _of_chart(path: str, key: str) -> object:
    """What the chart says, where it is one thing."""
    found: Any = CHART
    for word in path.split("."):
        found = found.get(word) if isinstance(found, Mapping) else None
    return found.get(key) if isinstance(found, Mapping) else None


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or isinstance(value, list | tuple) else f"{value:g}" if isinstance(value, float) else (
        str(value))


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield _row(titles)
    yield _row(("---",) * len(titles))
    yield from map(_row, rows)
    yield ""


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    click.echo(render(), nl=False)
