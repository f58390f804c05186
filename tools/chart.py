"""Parts of the chart that follow from its values and from those of HAMi's chart.

``python -m tools.chart`` writes ``values.schema.json``, ``files/names.json`` and ``README.md`` in ``charts/hami``, and
``docs/helm-values.md``, from ``charts/hami/values.yaml`` and ``testing/hami_values.yaml``. ``python -m tools.generate``
writes all generated files. ``tools.manifests`` renders ``manifests/`` from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hami.cli import main as programs
from hami.codec.device_config import chart_config
from hami.codec.documents import parse_own_yaml
from hami.codec.policies import NODE_POLICIES
from hami.vendors.entry_points import full_catalog
from testing.hami_values import number, upstream_rows

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "hami"
TABLE = ROOT / "docs" / "helm-values.md"
OPEN = re.compile(
    r"(^|\.)(labels|commonLabels|annotations|podLabels|podAnnotations|resources|nodeSelector|nvidiaNodeSelector"
    r"|nvidianodeSelector|matchLabels|nodeLabelSelector|managedNodeSelector|updateStrategy|strategy|extraEnvs?|affinity"
    r"|(pod)?[sS]ecurityContext|hami-dra)$"
    r"|(extender|kubeScheduler|devicePlugin|monitor|dashboard)\.(liveness|readiness|startup)Probe$"
)
"""Maps with keys that users choose, or that belong to Kubernetes."""
EITHER = {
    "devicePlugin.disablecorelimit",
    "metaxsGPUTopologyAware",
    "scheduler.overwriteEnv",
    "scheduler.preemption.mode",
}
"""Booleans that HAMi's chart also writes as strings, and words that are booleans in YAML without quotes."""
DEVICE_POLICY = (
    r"^(spread|binpack|numa|mutex|topology-aware)(,(spread|binpack|numa|mutex|topology-aware))*$"
)
PLAIN = r"^[A-Za-z0-9._/:@+=,\[\]-]*$"
"""Texts that mean nothing to YAML, to CEL, to templates, to a shell or to a program's flags."""
PATH = r"^(/[A-Za-z0-9._/:@+=,\[\]-]*)?$"
"""An absolute path of such characters."""
DOCUMENTS = {
    "device-config.content",
    "devicePlugin.nodeConfiguration.config",
    "scheduler.usualPods",
}
"""Texts that the templates parse."""
PATHS = (
    "global.gpuHookPath",
    "devicePlugin.gpuOperatorToolkitReady.hostPath",
    "devicePlugin.libPath",
    "devicePlugin.monitor.ctrPath",
    "devicePlugin.nvidiaHookPath",
    "devicePlugin.pluginPath",
)
PROMETHEUS_DURATION = r"^(([0-9]+(ms|s|m|h))+)?$"
PORT: dict[str, object] = {"minimum": 1, "maximum": 65535}
RULES: dict[str, dict[str, object]] = {
    **{name: {"pattern": PATH} for name in PATHS},
    "devicePlugin.nvidiaDriverRoot": {"pattern": PATH.replace("(", "(auto|", 1)},
    "scheduler.service.httpPort": PORT,
    "scheduler.service.httpTargetPort": PORT,
    "scheduler.service.schedulerPort": PORT,
    "scheduler.service.monitorPort": PORT,
    "devicePlugin.service.httpPort": PORT,
    "scheduler.replicas": {"minimum": 1},
    "dashboard.replicas": {"minimum": 1},
    "scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy": {"enum": [*NODE_POLICIES]},
    "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy": {"pattern": DEVICE_POLICY},
    "scheduler.admissionWebhook.failurePolicy": {"enum": ["Ignore", "Fail"]},
    "scheduler.admissionWebhook.reinvocationPolicy": {"enum": ["Never", "IfNeeded"]},
    "scheduler.preemption.mode": {"enum": ["on", "off", "strict", True, False]},
    "scheduler.remediation.mode": {"enum": ["none", "evict"]},
    "scheduler.defragment": {"enum": ["none", "advise", "apply"]},
    "scheduler.remediation.after": {
        "pattern": r"^([0-9.]+(ns|us|ms|s|m|h))+$",
        "type": ["string", "null"],
    },
    "scheduler.remediation.share": {"minimum": 0, "type": ["number", "null"]},
    "scheduler.remediation.rate": {"minimum": 0, "type": ["number", "null"]},
    "scheduler.overBudget.action": {"enum": ["warn", "demote", "refuse"]},
    "scheduler.overBudget.priorityClassName": {
        "pattern": r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$"
    },
    "scheduler.usage.namespace": {"pattern": r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$"},
    "scheduler.usage.interval": {"pattern": r"^([0-9.]+(ns|us|ms|s|m|h))*$"},
    "scheduler.usage.keepDays": {"minimum": 1, "type": ["integer", "null"]},
    "scheduler.cleanRejected": {"enum": ["owned", "none"]},
    "scheduler.preemption.minRuntime": {"pattern": r"^([0-9.]+(ns|us|ms|s|m|h))*$"},
    "scheduler.service.type": {"enum": ["", "ClusterIP", "NodePort", "LoadBalancer"]},
    "devicePlugin.service.type": {"enum": ["", "ClusterIP", "NodePort", "LoadBalancer"]},
    "devicePlugin.migStrategy": {"enum": ["none", "single", "mixed"]},
    "devicePlugin.deviceSplitCount": {"minimum": 1},
    "devicePlugin.deviceMemoryScaling": {"exclusiveMinimum": 0},
    "devicePlugin.deviceCoreScaling": {"exclusiveMinimum": 0},
    "admission.mode": {"enum": ["webhook", "policy"]},
    "policies.mode": {"enum": ["auto", "deny", "warn"]},
    "devices.nvidia.gpuCorePolicy": {"enum": ["default", "force", "disable"]},
    "dra.extendedResource": {"pattern": r"^([a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*)?$"},
    "prometheus.runbookUrl": {"pattern": r"^(https?://[^\s\"'<>{}\\`]+)?$"},
    "prometheus.interval": {"pattern": PROMETHEUS_DURATION},
    "prometheus.rulesInterval": {"pattern": PROMETHEUS_DURATION},
    "devices.nvidia.computeBy": {"enum": ["events", "nvml", "off"]},
    "devices.nvidia.computeOf": {"enum": ["launches", "all"]},
}
"""What the schema says of a value beside its type."""
EFFECTS = {"same": "same", "different": "different", "none": "no effect", "refused": "refused"}
Values = dict[str, Any]


def own_values() -> Values:
    """Returns the chart's defaults."""
    values: Values = parse_own_yaml((CHART / "values.yaml").read_text())
    return values


def leaves(values: Values, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields the name and the value of everything in *values* that is no map with fixed keys."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and not OPEN.search(name):
            yield from leaves(value, f"{name}.")
        else:
            yield name, value


def groups(names: list[str]) -> list[str]:
    """Returns the maps above *names*."""
    return sorted(
        {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
    )


def render_names() -> str:
    """Returns ``files/names.json``, for the templates: the names of values, of HAMi's, of flags and of resources."""
    own = [name for name, _ in leaves(own_values())]
    rows = upstream_rows()
    upstream = {}
    for name, row in rows.items():
        upstream[name] = {
            "effect": row["effect"],
            "text": row.get("text", ""),
            "checked": name in CHECKED,
            "defaults": list(row["defaults"].values()),
            "as": row.get("as", ""),
        }
    found = {
        "own": own,
        "flags": {holder: flag_names(command) for holder, command in PROGRAMS.items()},
        "groups": groups([*own, *rows]),
        "resources": [
            name for vendor in full_catalog(chart_config()) for name in vendor.resources.names
        ],
        "upstream": upstream,
    }
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


PROGRAMS = {
    "scheduler.extender": "scheduler",
    "devicePlugin": "device-plugin",
    "devicePlugin.monitor": "monitor",
    "dashboard": "dashboard",
}
"""What has ``extraArgs``, and the command of `hami` that gets them."""


def flag_names(command: str) -> list[str]:
    """Returns the names of the flags of a command, without dashes at the front."""
    return sorted(
        {
            name.lstrip("-").replace("_", "-")
            for option in programs.all()[command].params
            for name in option.opts
        }
    )


CHECKED = {"devicePlugin.libPath", "devicePlugin.monitor.ctrPath", "devicePlugin.monitorctrPath"}
"""Refused by a comparison in the templates, not by being unlike HAMi's default."""


def render_schema() -> str:
    """Returns ``values.schema.json``: types, and what texts may contain. The templates know the names, because they can
    say which one was meant."""
    seen: dict[str, list[object]] = {}
    for name, value in leaves(own_values()):
        seen.setdefault(name, []).append(value)
    for name, row in upstream_rows().items():
        if not any(OPEN.search(known) for known in seen if name.startswith(f"{known}.")):
            seen.setdefault(name, []).extend(row["defaults"].values())
    schema: Values = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {},
    }
    for name, values in sorted(seen.items()):
        node = schema
        *path, last = name.split(".")
        for step in path:
            node = node["properties"].setdefault(step, {"type": ["object", "null"]})
            node.setdefault("properties", {})
            if "object" not in node["type"]:  # a string in versions before v2.7, such as an image
                node["type"] = sorted([*node["type"], "object"])
        place = node["properties"].setdefault(last, {})
        types = {kind for value in values for kind in kinds(name, value)}
        place["type"] = sorted({*place.get("type", ()), *types, "null"})
        place.update(RULES.get(name, {}))
        if (
            "string" in place["type"]
            and name not in DOCUMENTS
            and not {"enum", "pattern"} & place.keys()
        ):
            place["pattern"] = PLAIN
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def kinds(name: str, value: object) -> Iterator[str]:
    """Yields the types that a value may have, if *value* is a default."""
    last = name.rpartition(".")[2]
    if OPEN.search(name):
        yield "object"
        if last in ("extraEnv", "extraEnvs", "resources"):
            yield "array"
    elif isinstance(value, bool):
        yield "boolean"
        if name in EITHER:
            yield "string"
    elif isinstance(value, int | float):
        yield "number" if "Scaling" in name else "integer"
    elif isinstance(value, list):
        yield "array"
    elif isinstance(value, str):
        yield "string"
        if name in EITHER:
            yield "boolean"
    elif value is None:
        yield from NULLS.get(last, ())


NULLS = {
    "enabled": ["boolean"],
    "hami": ["boolean"],
    "schedulerPort": ["integer"],
    "httpTargetPort": ["integer"],
    "whitelistNamespaces": ["array"],
    "passDeviceSpecsEnabled": ["boolean"],
    "nvidiaHookPath": ["string"],
    "nvidiaDriverRoot": ["string"],
    "gdrcopyEnabled": ["boolean"],
    "gdsEnabled": ["boolean"],
    "mofedEnabled": ["boolean"],
    "matchLabels": ["object"],
    "kubeQPS": ["number", "string"],
    "kubeBurst": ["integer", "string"],
    "kubeTimeout": ["integer", "string"],
    "maxUnavailable": ["integer", "string"],
    "libImage": ["string"],
}
"""Types of values that are empty by default, by the last part of the name."""


def render_readme() -> str:
    """Returns ``README.md`` of the chart: its own values, from the comments that begin with ``# --``."""
    lines, rows, path = (CHART / "values.yaml").read_text().splitlines(), [], []
    comment: list[str] = []
    for line in lines:
        found = re.match(r"( *)# (-- )?(.*)", line)
        if found and (found[2] or comment):
            comment.append(found[3])
        elif entry := re.match(r"( *)([A-Za-z-]+):(.*)", line):
            depth = len(entry[1]) // 2
            path = [*path[:depth], entry[2]]
            if comment:
                rows.append((".".join(path), entry[3].strip(), " ".join(comment)))
            comment = []
        else:
            comment = []
    table = "\n".join(f"| `{name}` | `{default}` | {text} |" for name, default, text in rows)
    return README.read_text().replace(
        "VALUES", f"| value | default | meaning |\n| --- | --- | --- |\n{table}"
    )


README = Path(__file__).with_name("chart.README.md")


def render_table() -> str:
    """Returns ``docs/helm-values.md``."""
    rows = upstream_rows()
    lines = []
    for name, row in rows.items():
        since = min(row["defaults"], key=number)
        span = since if since == row["until"] else f"{since} to {row['until']}"
        remark = row.get("text", "")
        if "as" in row:
            remark = f"As `{row['as']}`."
        lines.append(f"| `{name}` | {span} | {EFFECTS[row['effect']]} | {remark} |")
    counts = {effect: sum(row["effect"] == effect for row in rows.values()) for effect in EFFECTS}
    return TABLE_HEAD.format(total=len(rows), **counts) + "\n".join(lines) + "\n"


TABLE_HEAD = """\
# Values of HAMi's chart

<!-- Written by `python -m tools.chart` from testing/hami_values.yaml. -->

What the [chart](../charts/hami/README.md) of this project does with each of the {total} values that HAMi's chart had
from v2.4 to v2.10, and of those of its development branch on 11 October 2026, here v2.11.0. {same} have the same
effect, {different} a different one. {none} have no effect; the notes after an
installation name those that you have changed. {refused} are refused unless they have HAMi's default, with a sentence
that says what to do. Any other value is refused, with the names that are nearest to it.

| value | in HAMi's chart | effect | remarks |
| --- | --- | --- | --- |
"""


def generated_files() -> dict[Path, str]:
    """Returns the content of each generated file."""
    return {
        CHART / "values.schema.json": render_schema(),
        CHART / "files" / "names.json": render_names(),
        CHART / "README.md": render_readme(),
        TABLE: render_table(),
    }


@click.command(help="Write the generated parts of the chart and of its documentation.")
def main() -> None:
    for path, content in generated_files().items():
        path.write_text(content)
        click.echo(path)


if __name__ == "__main__":
    main()
