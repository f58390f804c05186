"""The chart has the defaults, and the table names every value of HAMi's chart."""

import json
import re
from pathlib import Path

import pytest

from hami import __version__
from testing.cases import cases
from testing.hami_values import number, upstream_rows, upstream_values
from tools.chart import CHART, DOCUMENTS, EFFECTS, OPEN, ROOT, leaves, own_values

pytestmark = pytest.mark.files

ROWS = upstream_rows()


@pytest.mark.parametrize("name", ROWS)
def test_a_value_of_hami_has_an_effect_and_a_reason(name):
    row = ROWS[name]
    assert row.keys() <= {"effect", "as", "text", "until", "defaults", "commented"}
    assert row["effect"] in EFFECTS
    assert row["effect"] == "same" or row["text"].endswith(".")
    assert all(number(version) <= number(row["until"]) for version in row["defaults"])


def test_a_value_that_does_the_same_as_another_names_one_that_has_an_effect():
    own = {name for name, _ in leaves(own_values())}
    for name, row in ROWS.items():
        if "as" in row:
            assert row["effect"] == "same", name
            assert row["as"] in own or ROWS[row["as"]]["effect"] == "same", name


@pytest.mark.parametrize("name", [name for name, _ in leaves(own_values())])
def test_a_value_of_ours_holds_no_value_of_hami(name):
    assert not [other for other in ROWS if other.startswith(f"{name}.") and not OPEN.search(name)]


def test_values_that_have_an_effect_have_a_default_or_an_earlier_name():
    """`_hami-values.tpl` moves earlier names; `_devices.tpl` reads the defaults of v2.4.0."""
    own = {name for name, _ in leaves(own_values())}
    templates = "".join(path.read_text() for path in (CHART / "templates").glob("*.tpl"))
    for name, row in ROWS.items():
        if row["effect"] in ("same", "different") and name not in own and "." in name:
            assert name.rpartition(".")[2] in templates, name


@cases("version, count", ("v2.4.0", 90), ("v2.6.1", 120), ("v2.10.0", 190), ("v2.11.0", 250))
def test_a_version_of_hami_has_its_values(version, count):
    values = upstream_values(version)
    newest = values.get("devices", {}).get("nvidia", {}).get("resourceCountName")
    assert values.get("resourceName", newest) == "nvidia.com/gpu"
    assert len(list(leaves(values))) > count / 1.3


def test_the_chart_has_the_version_of_the_package():
    text = (CHART / "Chart.yaml").read_text()
    assert re.findall(r"^(?:version|appVersion): (.*)$", text, re.MULTILINE) == [
        __version__,
        __version__,
    ]


def test_the_chart_has_no_copies_of_files_that_others_need():
    files, dashboards = CHART / "files", ROOT / "dashboards"
    assert (files / "values.yaml").resolve() == CHART / "values.yaml"
    assert (files / "alerts.yaml").resolve() == ROOT / "monitoring" / "alerts.yaml"
    assert (
        files / "device-config.yaml"
    ).resolve() == ROOT / "hami" / "codec" / "device-config.yaml"
    assert (files / "dashboard.json").resolve() == dashboards / "hami.json"
    assert (files / "dashboard-namespace.json").resolve() == dashboards / "hami-namespace.json"


def test_own_images_have_no_registry():
    values = own_values()
    images = [
        holder["image"]
        for holder in (
            values["scheduler"]["extender"],
            values["devicePlugin"],
            values["devicePlugin"]["monitor"],
        )
    ]
    assert values["image"]["registry"] == ""
    assert all(image["registry"] == "" for image in images)
    assert "projecthami" not in Path(CHART / "values.yaml").read_text()


def test_mock_cards_replace_real_ones_only_by_a_value_that_hamis_chart_does_not_have():
    """HAMi recommends its `mockDevicePlugin.enabled` on real clusters."""
    assert own_values()["devicePlugin"]["mockCards"] is False
    assert "devicePlugin.mockCards" not in ROWS
    assert ROWS["mockDevicePlugin.enabled"]["effect"] == "different"
    template = (CHART / "templates" / "device-plugin" / "daemonset.yaml").read_text()
    (before,) = re.findall(r"(.*)\n +- --mock-devices", template)
    assert before.strip() == "{{- if $plugin.mockCards }}"


TEMPLATES = sorted((CHART / "templates").rglob("*.yaml"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(CHART)))
def test_a_template_is_yaml_of_one_kind_of_object(path):
    """After its condition and its comment, the first line names the API. Only rights of one account, and a policy with
    its binding, are several objects."""
    lines = path.read_text().splitlines()
    assert lines[0] == '{{- include "hami.prepare" . -}}'
    body = [line for line in lines if not re.match(r"\{\{-? |#|  ?\(|-\}\}", line)]
    assert body[0].startswith("apiVersion: ")
    kinds = re.findall(r"(?m)^kind: (\w+)", path.read_text())
    if not any(re.search("Role|Policy|ServiceAccount", kind) for kind in kinds):
        assert len(kinds) == 1


def test_only_the_take_over_depends_on_the_cluster():
    """Checks may look into it, too: they change nothing that is rendered."""
    found = {
        path.name
        for path in (CHART / "templates").rglob("*")
        if path.is_file() and re.search(r"\blookup \"", path.read_text())
    }
    assert found == {"_takeover.tpl", "_checks.tpl"}


def test_the_helpers_are_short():
    assert len((CHART / "templates" / "_helpers.tpl").read_text().splitlines()) < 150


KNOBS = re.compile(
    r"\.(affinity|topologySpreadConstraints|podLabels|podAnnotations|serviceAccount\..*|extraEnvs?|extraArgs|extraNewArgs"
    r"|volumes|volumeMounts|podSecurityContext|securityContext|\w+Probe|strategy|updateStrategy|priorityClassName"
    r"|resources|hostNetwork|dnsPolicy|nodeSelector|tolerations|replicas)$"
)
"""Values that each workload has."""


def test_there_are_few_values_beside_those_of_hami_and_of_each_workload():
    own = [name for name, _ in leaves(own_values()) if name not in ROWS]
    assert len([name for name in own if not KNOBS.search(name)]) <= 120


WORKLOADS = {
    "scheduler": ("scheduler", ["scheduler.kubeScheduler", "scheduler.extender"]),
    "devicePlugin": ("devicePlugin", ["devicePlugin"]),
    "monitor": ("devicePlugin.monitor", ["devicePlugin.monitor"]),
    "dashboard": ("dashboard", ["dashboard"]),
}
OF_PODS = [
    "affinity",
    "topologySpreadConstraints",
    "podLabels",
    "podAnnotations",
    "podSecurityContext",
    "volumes",
    "hostNetwork",
    "dnsPolicy",
    "tolerations",
    "serviceAccount.create",
    "serviceAccount.name",
    "serviceAccount.annotations",
]
OF_CONTAINERS = ["volumeMounts", "securityContext", "livenessProbe", "resources"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_workload_has_the_usual_values(workload):
    names = {name for name, _ in leaves(own_values())}
    pod, containers = WORKLOADS[workload]
    assert {f"{pod}.{knob}" for knob in OF_PODS} <= names
    for container in containers:
        assert {f"{container}.{knob}" for knob in OF_CONTAINERS} <= names
        assert names & {f"{container}.extraEnv", f"{container}.extraEnvs"}
        assert names & {f"{container}.extraArgs", f"{container}.extraNewArgs"}
    assert names & {f"{pod}.strategy", f"{pod}.updateStrategy"}


def test_the_schema_is_json_that_names_every_group():
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"].keys() >= {name.partition(".")[0] for name in ROWS}


def strings(schema, prefix=""):
    """Names and schemas of the values that may be strings."""
    for name, value in schema.get("properties", {}).items():
        if "string" in value["type"]:
            yield f"{prefix}{name}", value
        yield from strings(value, f"{prefix}{name}.")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=name)
        for name, value in strings(json.loads((CHART / "values.schema.json").read_text()))
        if name not in DOCUMENTS
    ],
)
def test_no_text_can_mean_something_to_yaml_templates_expressions_or_programs(name, value):
    for hostile in (
        "x\nkind: Secret",
        "x: y",
        "x # y",
        "'x",
        'x"',
        "'x' || true || 'x",
        "{{ fail }}",
        "{x}",
        "$(id)",
        "${x}",
        "`id`",
        "x --flag",
        "x\\",
        "*x",
        "&x",
        "!x",
        "%x",
        "|",
        ">",
        "x\u2028",
        "x\u202e",
        "x\x07",
    ):
        assert "enum" in value or not re.search(value["pattern"], hostile), hostile
    defaults = [
        default
        for item in ROWS.items()
        if item[0] == name
        for default in item[1]["defaults"].values()
    ]
    defaults += [default for own, default in leaves(own_values()) if own == name]
    for text in (default for default in defaults if isinstance(default, str)):
        assert text in value["enum"] if "enum" in value else re.search(value["pattern"], text)
