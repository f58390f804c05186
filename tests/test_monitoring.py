"""The rules and the dashboard use metrics and labels that the scheduler and the monitor serve."""

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from msgspec import structs
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hami.codec.keys import MIG_ALLOCATIONS
from hami.codec.mig import MigAllocation, render_mig_allocations
from hami.model import Partition
from hami.monitor.metrics import MonitorMetrics
from hami.monitor.metrics import families as monitor_families
from hami.scheduler.cluster_metrics import families
from hami.scheduler.metrics import Metrics, MetricSources
from hami.web.exposition import build_info, render
from testing.builders import ONLY_NVIDIA, booking, charge, gpu, node
from testing.monitor_stage import CARD, OTHER, Stage, node_pod
from testing.region_bytes import Process
from tests.scheduler.test_cluster_metrics import small_cache

ROOT = Path(__file__).parent.parent
GROUPS = yaml.safe_load((ROOT / "monitoring" / "alerts.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
RECORDINGS = [rule for group in GROUPS for rule in group["rules"] if "record" in rule]
DASHBOARD = json.loads((ROOT / "dashboards" / "hami.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
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
METRIC = re.compile(r"\b(?:hami|process)_\w+")
SELECTOR = re.compile(r"\b((?:hami|process)_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


def scraped():
    """Returns each sample name on a metrics page with its labels."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    Metrics(registry)
    registry.register(
        MetricSources(
            reserved=lambda: 1,
            waiting=lambda: {"gpu-0": 1},
            ages={"pods": lambda: 1.0},
            leads=lambda: True,
            unreadable_inventories=lambda: {("gpu-0", "NVIDIA"): "why"},
            unreadable_pods=list,
            events={"written": lambda: 1, "dropped": lambda: 0},
            handshakes=lambda: 1,
            edits_refused=lambda: 1,
            certificate_expiry=lambda: 1.0,
        )
    )
    part = structs.replace(
        charge("GPU-m"), partitions=(Partition(0, 2, "2g.10gb", ("MIG-7", "3", "0")),)
    )
    view = (
        small_cache()
        .view()
        .what_if(
            nodes=[node("gpu-1", gpu("GPU-m", mode="mig"))],
            with_=[booking("uid-part", "gpu-1", part)],
        )
    )
    ours = "".join(render([build_info(), *families(view, ONLY_NVIDIA)]))
    pages = ours + generate_latest(registry).decode() + monitored()
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(pages)
        for sample in family.samples
    }


def monitored():
    """Returns the page of a monitor on a node where every series exists."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        place = Partition(0, 1, "1g.10gb", ("MIG-1", "1", "0"))
        instance = MigAllocation(container=0, device=0, gpu=OTHER, partition=place)
        cut = node_pod("cut", OTHER)
        annotations = {**cut.pod.annotations, MIG_ALLOCATIONS: render_mig_allocations([instance])}
        stage.pods = [
            node_pod("a", CARD),
            replace(cut, pod=replace(cut.pod, annotations=annotations)),
        ]
        stage.region("a", processes=[Process(used={0: 4096})], last_kernel=int(stage.now))
        stage.work("a", 4007, 8192, 5)
        report = stage.run()
        registry = CollectorRegistry()
        MonitorMetrics(registry, lambda: report, stage.rounds.errors)
        return "".join(render(monitor_families(report))) + generate_latest(registry).decode()


SCRAPED = scraped()


def labels_of(matchers):
    """Returns the label names of a selector."""
    return set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers or ""))


def listed(text):
    return {word for word in re.split(r"[\s,]+", text) if word}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_is_served(expression):
    names = set(METRIC.findall(expression))
    assert names
    assert names <= SCRAPED.keys()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_belongs_to_its_metric(expression):
    found = SELECTOR.findall(expression)
    assert [
        (name, labels_of(matchers) - SCRAPED[name] - OF_PROMETHEUS)
        for name, matchers in found
        if labels_of(matchers) - SCRAPED[name] - OF_PROMETHEUS
    ] == []
    known = OF_PROMETHEUS.union(*(SCRAPED[name] for name, _ in found))
    assert set().union(*map(listed, GROUPED.findall(expression))) <= known


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_gauges_of_all_replicas_are_not_added_up(expression):
    """Each replica reports the gauges of devices, pods and quotas, so a sum needs one value of each first."""
    for name in METRIC.findall(expression):
        if name.startswith(
            ("hami_gpu_", "hami_node_", "hami_vgpu_", "hami_resource_")
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


def test_the_dashboard_has_no_fixed_data_source():
    assert {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]} == {
        "${datasource}"
    }
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_quotas_are_compared_in_one_unit():
    """Usage is in MiB; a limit is in the unit of the ResourceQuota, which can differ."""
    quotas = [
        name for value in EXPRESSIONS for name in METRIC.findall(value.values[0]) if "quota" in name
    ]
    assert quotas == ["hami_resource_quota_used_ratio"] * 2
