"""The rules and the dashboard use metrics and labels that the programs serve."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hami.codec.documents import parse_own_yaml
from testing.metric_pages import monitor_page, plugin_page, scheduler_page

ROOT = Path(__file__).parent.parent
GROUPS = parse_own_yaml((ROOT / "monitoring" / "alerts.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
RECORDINGS = [rule for group in GROUPS for rule in group["rules"] if "record" in rule]
DASHBOARDS = {
    path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "dashboards").glob("*.json"))
}
PANELS = [
    panel
    for dashboard in DASHBOARDS.values()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES),
    *(pytest.param(rule["expr"], id=rule["record"]) for rule in RECORDINGS),
    *(
        pytest.param(target["expr"], id=f"{panel['title']}, {target['refId']}")
        for panel in PANELS
        for target in panel["targets"]
    ),
]
OF_DCGM = {"UUID"}
OF_PROMETHEUS = {"instance", "job"}  # added by Prometheus to each sample
METRIC = re.compile(r"\b(?:(?:hami|process|scheduler)_\w+|up\b(?=\{))")
SELECTOR = re.compile(r"\b((?:hami|process|scheduler)_\w+|up\b(?=\{))(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


def scraped():
    """Returns each sample name on a metrics page with its labels."""
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(
            scheduler_page() + monitor_page() + plugin_page()
        )
        for sample in family.samples
    }


SCRAPED = scraped()
OF_OTHERS = {"up": {"node"}, "scheduler_pending_pods": {"queue"}}
"""What Prometheus makes itself, with the label of the PodMonitors, and what kube-scheduler serves."""
KNOWN = SCRAPED | OF_OTHERS


def labels_of(matchers):
    """Returns the label names of a selector."""
    return set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers or ""))


def listed(text):
    return {word for word in re.split(r"[\s,]+", text) if word}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_is_served(expression):
    names = set(METRIC.findall(expression))
    assert names
    assert names <= KNOWN.keys()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_belongs_to_its_metric(expression):
    found = SELECTOR.findall(expression)
    assert [
        (name, labels_of(matchers) - KNOWN[name] - OF_PROMETHEUS)
        for name, matchers in found
        if labels_of(matchers) - KNOWN[name] - OF_PROMETHEUS
    ] == []
    known = OF_PROMETHEUS.union(*(KNOWN[name] for name, _ in found))
    assert set().union(*map(listed, GROUPED.findall(expression))) <= known


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_gauges_of_all_replicas_are_not_added_up(expression):
    """Each replica reports the gauges of devices, pods and quotas, so a sum needs one value of each first."""
    for name in METRIC.findall(expression):
        if name.startswith(
            ("hami_gpu_", "hami_node_", "hami_vgpu_", "hami_resource_", "hami_usual_")
        ) and not name.endswith("_total"):
            assert re.search(rf"max by \([^)]+\) \({name}\b", expression), name


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in RULES])
def test_an_alert_has_a_severity_and_an_explanation(rule):
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    for label in re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())):
        left = set().union(*map(listed, GROUPED.findall(rule["expr"])))
        assert label in left, "the expression does not leave that label"


def test_names_of_alerts_are_unique():
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_no_fixed_data_source(name):
    panels = DASHBOARDS[name]["panels"]
    targets = [target for panel in panels for target in panel.get("targets", ())]
    assert {target["datasource"]["uid"] for target in targets} == {"${datasource}"}
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_variable_of_a_dashboard_has_values_of_a_metric(name):
    variables = DASHBOARDS[name]["templating"]["list"]
    queries = [each["query"]["query"] for each in variables if each["type"] == "query"]
    assert queries
    for query in queries:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()
        assert label in SCRAPED[metric]


def test_a_dashboard_of_a_namespace_shows_nothing_of_others():
    for panel in DASHBOARDS["hami-namespace"]["panels"]:
        for target in panel["targets"]:
            for metric, matchers in SELECTOR.findall(target["expr"]):
                assert 'namespace="$namespace"' in matchers, metric


def test_panels_do_not_overlap():
    for dashboard in DASHBOARDS.values():
        taken = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    assert x < 24
                    assert (x, y) not in taken
                    taken.add((x, y))


def test_quotas_are_compared_in_one_unit():
    """Usage is in MiB; a limit is in the unit of the ResourceQuota, which can differ."""
    quotas = [
        name for value in EXPRESSIONS for name in METRIC.findall(value.values[0]) if "quota" in name
    ]
    assert set(quotas) == {"hami_resource_quota_used_ratio"}
