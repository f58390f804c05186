"""The rules for Prometheus, judged by its own promtool: when each alert fires, and when it does not yet."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from hami.codec.documents import parse_own_yaml
from hami.dashboard.history import expression
from hami.scheduler.opencost import DeviceContainers, allocation_family
from testing import binaries
from testing.builders import ONLY_NVIDIA
from testing.cases import cases
from testing.metric_pages import monitor_page, plugin_page, scheduler_page
from testing.usage_stage import UsageReplica, UsageStage, bound

ROOT = Path(__file__).parent.parent
RULES = ROOT / "monitoring" / "alerts.yaml"
GROUPS = parse_own_yaml(RULES.read_text())["groups"]
NAMES = {rule["alert"] for group in GROUPS for rule in group["rules"] if "alert" in rule}
DASHBOARDS = sorted((ROOT / "dashboards").glob("*.json"))
NAMESPACE = "team"  # of all series that have a namespace
VARIABLES = {"$__rate_interval": "5m", "$node": ".*", "$namespace": NAMESPACE}
DAY_S = 86_400
LEADER = "hami_scheduler_leader"
REQUESTS = "hami_scheduler_request_duration_seconds"
ALLOCATED, SIZE = "hami_gpu_memory_allocated_bytes", "hami_gpu_memory_limit_bytes"
CARD = '{node="n",device_uuid="a"}'
CONTAINER = 'namespace="team",pod="p",container="main"'


class Case(NamedTuple):
    """Series in promtool's notation, a value each minute from 0. *labels*: of the alert, beside name and severity."""

    alert: str
    at: str
    series: dict[str, str]
    labels: str = ""


FIRES = [
    Case("HamiSchedulerAbsent", "6m", {"up": "1x20"}),
    # one of two schedulers is gone
    Case(
        "HamiSchedulerAbsent",
        "130m",
        {f'{LEADER}{{job="a"}}': "1x240", f'{LEADER}{{job="b"}}': "1x120 stale"},
        'job="b"',
    ),
    Case(
        "HamiNoLeader",
        "5m",
        {
            f'{LEADER}{{job="a",instance="1"}}': "0x20",
            f'{LEADER}{{job="a",instance="2"}}': "0x20",
            f'{LEADER}{{job="b",instance="3"}}': "1x20",
        },
        'job="a"',
    ),
    Case(
        "HamiTwoLeaders",
        "5m",
        {f'{LEADER}{{job="a",instance="1"}}': "1x20", f'{LEADER}{{job="a",instance="2"}}': "1x20"},
        'job="a"',
    ),
    Case(
        "HamiCacheStale",
        "5m",
        {'hami_scheduler_cache_age_seconds{resource="pods",instance="1"}': "121+60x20"},
        'resource="pods",instance="1"',
    ),
    Case(
        "HamiVerbErrors",
        "30m",
        {
            f'{REQUESTS}_count{{verb="bind",outcome="error"}}': "0+6x60",
            f'{REQUESTS}_count{{verb="bind",outcome="success"}}': "0+94x60",
        },
        'verb="bind"',
    ),
    Case(
        "HamiFilterSlow",
        "30m",
        {
            f'{REQUESTS}_bucket{{verb="filter",le="1"}}': "0+98x60",
            f'{REQUESTS}_bucket{{verb="filter",le="2"}}': "0+100x60",
            f'{REQUESTS}_bucket{{verb="filter",le="+Inf"}}': "0+100x60",
        },
    ),
    Case(
        "HamiPreemptedInVain",
        "30m",
        {'hami_scheduler_preemptions_in_vain_total{instance="1"}': "0x10 1x60"},
        'instance="1"',
    ),
    Case(
        "HamiNodeLockWaitsLong",
        "30m",
        {
            'hami_scheduler_node_lock_wait_seconds_bucket{le="20"}': "0+90x60",
            'hami_scheduler_node_lock_wait_seconds_bucket{le="30"}': "0+100x60",
            'hami_scheduler_node_lock_wait_seconds_bucket{le="+Inf"}': "0+100x60",
        },
    ),
    Case("HamiEventsDropped", "30m", {'hami_scheduler_events_total{outcome="dropped"}': "0+1x60"}),
    Case(
        "HamiGpuNeedsReset",
        "10m",
        {'hami_device_recovery_action{node="n",uuid="a"}': "1x20"},
        'node="n",uuid="a"',
    ),
    Case(
        "HamiDeviceUnhealthy",
        "10m",
        {'hami_device_healthy{node="n",uuid="a"}': "0x20"},
        'node="n",uuid="a"',
    ),
    Case(
        "HamiNodeWithoutDevices",
        "20m",
        {f'hami_node_devices{{node="n",instance="{replica}"}}': "0x40" for replica in "12"},
        'node="n"',
    ),
    # it has registered nothing
    Case(
        "HamiNodeWithoutDevices",
        "21m",
        {
            'hami_device_plugin_cards{node="n"}': "0x40",
            'up{job="hami-device-plugin",node="n",instance="1"}': "1x40",
        },
        'node="n"',
    ),
    Case(
        "HamiDevicePluginDown",
        "10m",
        {
            'up{job="hami-device-plugin",node="n",instance="1"}': "0x20",
            'up{job="hami-device-plugin",node="m",instance="2"}': "1x20",
        },
        'node="n",instance="1"',
    ),
    Case(
        "HamiPodsWaiting",
        "20m",
        {
            'hami_waiting_pods_oldest_seconds{reason="CardInsufficientMemory",priority_class=""}': "1801x40"
        },
        'reason="CardInsufficientMemory",priority_class=""',
    ),
    Case(
        "HamiInventoryUnreadable",
        "10m",
        {'hami_scheduler_unreadable_inventory{node="n",vendor="NVIDIA"}': "1x20"},
        'node="n",vendor="NVIDIA"',
    ),
    Case("HamiAllocationUnreadable", "10m", {"hami_scheduler_unreadable_allocations": "2x20"}),
    Case("HamiDevicesFull", "40m", {f"{ALLOCATED}{CARD}": "96x60", f"{SIZE}{CARD}": "100x60"}),
    Case(
        "HamiDeviceOverbooked",
        "10m",
        {f"{ALLOCATED}{CARD}": "101x20", f"{SIZE}{CARD}": "100x20"},
        'node="n",device_uuid="a"',
    ),
    Case(
        "HamiQuotaNearlyUsed",
        "40m",
        {'hami_resource_quota_used_ratio{namespace="team",quota_name="q"}': "0.91x60"},
        'namespace="team",quota_name="q"',
    ),
    Case(
        "HamiCertificateEnds",
        "70m",
        {"hami_scheduler_certificate_expiry_timestamp_seconds": f"{20 * DAY_S}x90"},
    ),
    Case("HamiUpgradeUnfinished", "25h", {"hami_scheduler_foreign_reservations_enabled": "1x1600"}),
    Case(
        "HamiMonitorWithoutDriver",
        "20m",
        {'hami_monitor_nvml_up{instance="1"}': "0x30"},
        'instance="1"',
    ),
    Case(
        "HamiContainerOverLimit",
        "10m",
        {f'hami_container_over_limit{{{CONTAINER},device_uuid="a"}}': "1x20"},
        f'{CONTAINER},device_uuid="a"',
    ),
    Case(
        "HamiRegionTampered",
        "10m",
        {f'hami_vgpu_tampered_total{{{CONTAINER},what="limits"}}': "0+1x20"},
        f'{CONTAINER},what="limits"',
    ),
    Case(
        "HamiRegionUnreadable",
        "20m",
        {f'hami_vgpu_region_info{{{CONTAINER},state="unreadable"}}': "1x30"},
        f'{CONTAINER},state="unreadable"',
    ),
]
QUIET = [
    Case("HamiSchedulerAbsent", "6m", {LEADER: "0x20"}),
    # a scheduler that was removed two hours ago
    Case(
        "HamiSchedulerAbsent",
        "240m",
        {f'{LEADER}{{job="a"}}': "1x300", f'{LEADER}{{job="b"}}': "1x120 stale"},
    ),
    Case(
        "HamiNoLeader",
        "5m",
        {f'{LEADER}{{job="a",instance="1"}}': "0x20", f'{LEADER}{{job="a",instance="2"}}': "1x20"},
    ),
    # a handover, of which each scrape has seen a part
    Case(
        "HamiTwoLeaders",
        "5m",
        {
            f'{LEADER}{{job="a",instance="1"}}': "1x4 0x20",
            f'{LEADER}{{job="a",instance="2"}}': "0x3 1x20",
        },
    ),
    Case("HamiTwoLeaders", "5m", {f'{LEADER}{{job="a"}}': "1x20", f'{LEADER}{{job="b"}}': "1x20"}),
    Case(
        "HamiCacheStale",
        "5m",
        {'hami_scheduler_cache_age_seconds{resource="pods",instance="1"}': "119x20"},
    ),
    Case(
        "HamiVerbErrors",
        "30m",
        {
            f'{REQUESTS}_count{{verb="bind",outcome="error"}}': "0+5x60",
            f'{REQUESTS}_count{{verb="bind",outcome="success"}}': "0+95x60",
        },
    ),
    Case(
        "HamiFilterSlow",
        "30m",
        {
            f'{REQUESTS}_bucket{{verb="filter",le="1"}}': "0+199x60",
            f'{REQUESTS}_bucket{{verb="filter",le="2"}}': "0+200x60",
            f'{REQUESTS}_bucket{{verb="filter",le="+Inf"}}': "0+200x60",
            f'{REQUESTS}_bucket{{verb="bind",le="+Inf"}}': "0+100x60",
        },
    ),
    Case(
        "HamiPreemptedInVain",
        "30m",
        {'hami_scheduler_preemptions_in_vain_total{instance="1"}': "3x60"},
    ),
    Case(
        "HamiNodeLockWaitsLong",
        "30m",
        {
            'hami_scheduler_node_lock_wait_seconds_bucket{le="20"}': "0+95x60",
            'hami_scheduler_node_lock_wait_seconds_bucket{le="30"}': "0+100x60",
            'hami_scheduler_node_lock_wait_seconds_bucket{le="+Inf"}': "0+100x60",
        },
    ),
    Case(
        "HamiEventsDropped",
        "30m",
        {
            'hami_scheduler_events_total{outcome="written"}': "0+9x60",
            'hami_scheduler_events_total{outcome="dropped"}': "0x60",
        },
    ),
    Case(
        "HamiGpuNeedsReset",
        "10m",
        {
            'hami_device_recovery_action{node="n",uuid="a"}': "0x20",
            'hami_device_recovery_action{node="n",uuid="b"}': "5x20",
            'hami_device_recovery_action{node="n",uuid="c"}': "3x20",
        },
    ),
    # the driver asks for a reset, of which HamiGpuNeedsReset tells
    Case(
        "HamiDeviceUnhealthy",
        "10m",
        {
            'hami_device_healthy{node="n",uuid="a"}': "0x20",
            'hami_device_recovery_action{node="n",uuid="a"}': "1x20",
        },
    ),
    # the other replica has read the node, or another alert says why
    Case(
        "HamiNodeWithoutDevices",
        "20m",
        {
            'hami_node_devices{node="n",instance="1"}': "0x40",
            'hami_node_devices{node="n",instance="2"}': "8x40",
            'hami_device_plugin_cards{node="n"}': "8x40",
            'hami_node_devices{node="down"}': "0x40",
            'up{job="hami-device-plugin",node="down",instance="1"}': "0x40",
            'hami_node_devices{node="unreadable"}': "0x40",
            'hami_scheduler_unreadable_inventory{node="unreadable",vendor="NVIDIA"}': "1x40",
        },
    ),
    # a device plugin that was down for three minutes, and others that were not
    Case(
        "HamiDevicePluginDown",
        "10m",
        {
            'up{job="hami-device-plugin",node="n",instance="1"}': "1x5 0x3 1x10",
            'up{job="hami-monitor",node="n",instance="2"}': "0x20",
        },
    ),
    Case(
        "HamiPodsWaiting",
        "20m",
        {
            'hami_waiting_pods_oldest_seconds{reason="CardInsufficientMemory"}': "1800x40",
            'hami_waiting_pods_oldest_seconds{reason="SchedulingGated"}': "9000x40",
            'hami_waiting_pods_oldest_seconds{reason="Other"}': "9000x40",
        },
    ),
    Case(
        "HamiInventoryUnreadable",
        "10m",
        {'hami_scheduler_unreadable_inventory{node="n",vendor="NVIDIA"}': "1x6 0x20"},
    ),
    Case("HamiAllocationUnreadable", "10m", {"hami_scheduler_unreadable_allocations": "0x20"}),
    # each of two replicas reports all devices
    Case(
        "HamiDevicesFull",
        "40m",
        {
            f'{metric}{{node="n",device_uuid="a",instance="{instance}"}}': f"{value}x60"
            for instance in "12"
            for metric, value in ((ALLOCATED, 95), (SIZE, 100))
        },
    ),
    Case(
        "HamiDeviceOverbooked", "10m", {f"{ALLOCATED}{CARD}": "100x20", f"{SIZE}{CARD}": "100x20"}
    ),
    Case(
        "HamiQuotaNearlyUsed",
        "40m",
        {'hami_resource_quota_used_ratio{namespace="team",quota_name="q"}': "0.9x60"},
    ),
    Case(
        "HamiCertificateEnds",
        "70m",
        {"hami_scheduler_certificate_expiry_timestamp_seconds": f"{21 * DAY_S}x90"},
    ),
    Case("HamiUpgradeUnfinished", "23h", {"hami_scheduler_foreign_reservations_enabled": "1x1600"}),
    Case("HamiMonitorWithoutDriver", "20m", {'hami_monitor_nvml_up{instance="1"}': "1x30"}),
    Case(
        "HamiContainerOverLimit",
        "4m",
        {f'hami_container_over_limit{{{CONTAINER},device_uuid="a"}}': "1x20"},
    ),
    Case(
        "HamiRegionTampered",
        "30m",
        {f'hami_vgpu_tampered_total{{{CONTAINER},what="limits"}}': "7x60"},
    ),
    Case(
        "HamiRegionUnreadable",
        "20m",
        {f'hami_vgpu_region_info{{{CONTAINER},state="used"}}': "1x30"},
    ),
]


class Promtool:
    """Runs promtool in *folder*."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder

    def check(self, *words: str, **file: Any) -> str:
        """Has the command *words* judge *file*. Returns its complaint, empty if it has none."""
        path = self._folder / "judged.yaml"
        path.write_text(yaml.safe_dump(file))
        done = subprocess.run(
            [self._program, *words, path], capture_output=True, text=True, timeout=60, check=False
        )
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def test(
        self, series: dict[str, str], at: str, expression: str, *samples: tuple[str, float]
    ) -> str:
        """Evaluates the rules every minute over *series*, then *expression*. Returns the complaint if its value is not
        *samples*: labels, value."""
        samples_of_promtool = [{"labels": labels, "value": value} for labels, value in samples]
        test = {"expr": expression, "eval_time": at, "exp_samples": samples_of_promtool}
        return self.evaluate(series, [test])

    def evaluate(self, series: dict[str, str], tests: list[dict[str, Any]]) -> str:
        """Evaluates the rules every minute over *series*, then *tests* in promtool's form. Returns the complaint."""
        return self.check(
            "test",
            "rules",
            rule_files=[str(RULES)],
            evaluation_interval="1m",
            tests=[
                {
                    "interval": "1m",
                    "input_series": [
                        {"series": name, "values": text} for name, text in series.items()
                    ],
                    "promql_expr_test": tests,
                }
            ],
        )


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Promtool]:
    yield Promtool(binaries.find_promtool(), tmp_path_factory.mktemp("promtool"))


def ident(case: Case) -> str:
    return f"{case.alert}-{case.at}"


def severity_of(alert: str) -> str:
    return next(
        str(rule["labels"]["severity"])
        for group in GROUPS
        for rule in group["rules"]
        if rule.get("alert") == alert
    )


@pytest.mark.parametrize("case", FIRES, ids=ident)
def test_an_alert_fires(promtool, case):
    name = f'alertname="{case.alert}",alertstate="firing"'
    labels = ",".join(filter(None, (name, f'severity="{severity_of(case.alert)}"', case.labels)))
    assert (
        promtool.test(case.series, case.at, f"ALERTS{{{name}}}", (f"ALERTS{{{labels}}}", 1)) == ""
    )


@pytest.mark.parametrize("case", QUIET, ids=ident)
def test_an_alert_does_not_fire(promtool, case):
    assert (
        promtool.test(
            case.series, case.at, f'ALERTS{{alertname="{case.alert}",alertstate="firing"}}'
        )
        == ""
    )


def test_each_alert_is_tried_both_ways():
    assert {case.alert for case in FIRES} == {case.alert for case in QUIET} == NAMES


@cases(
    "record, metric, factor",
    ("hami:container_device_dcgm_utilization:percent", "DCGM_FI_DEV_GPU_UTIL", 1),
    ("hami:container_device_dcgm_memory_used:bytes", "DCGM_FI_DEV_FB_USED", 1 << 20),
)
def test_what_dcgm_says_of_a_card_is_recorded_for_its_containers(promtool, record, metric, factor):
    series = {
        f'hami_vgpu_memory_limit_bytes{{{CONTAINER},device_uuid="a"}}': "1000x5",
        f'{metric}{{UUID="a"}}': "40x5",
        f'{metric}{{UUID="b"}}': "90x5",
    }
    assert (
        promtool.test(
            series, "3m", record, (f'{record}{{{CONTAINER},device_uuid="a"}}', 40 * factor)
        )
        == ""
    )


def queries(dashboard: Path) -> dict[str, str]:
    """Returns the queries of the panels of *dashboard*, as Grafana sends them, by title and letter."""
    found = {}
    for panel in json.loads(dashboard.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            found[f"{panel['title']}, {target['refId']}"] = query
    return found


def recorded() -> dict[str, str]:
    """Returns the series of all metrics in promtool's notation: what our programs serve, some of kube-scheduler, and
    those that Prometheus makes. Counters increase."""
    series = {
        'up{job="hami-device-plugin",instance="device-plugin",node="gpu-0"}': "1x20",
        'scheduler_pending_pods{job="hami-kube-scheduler",queue="unschedulable"}': "1x20",
    }
    pages = {
        "scheduler": scheduler_page(),
        "monitor": monitor_page(),
        "device-plugin": plugin_page(),
    }
    for program, page in pages.items():
        for family in text_string_to_metric_families(page):
            step = 1 if family.type in ("counter", "histogram") else 0
            for sample in family.samples:
                labels = {**sample.labels, "instance": program}
                if "namespace" in labels:
                    labels["namespace"] = NAMESPACE
                text = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
                series[f"{sample.name}{{{text}}}"] = f"{sample.value:.17g}+{step}x20"
    return series


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_returns_data(promtool, dashboard):
    """The number of its samples is compared, since a test of promtool has to name what it expects."""
    tests = [
        {
            "expr": f"count({query}) >= bool 1",
            "eval_time": "15m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for query in queries(dashboard).values()
    ]
    assert len(tests) > 10
    assert promtool.evaluate(recorded(), tests) == ""


@cases(
    "metric, percent",
    ("allocated", ALLOCATED, 75),
    ("used", "hami_host_gpu_memory_used_bytes", 25),
)
@pytest.mark.parametrize("node", ["", "n"])
def test_the_last_hours_of_the_dashboard_are_a_share_of_all_cards(promtool, metric, percent, node):
    """Two replicas of the scheduler tell of the same card; another node has an idle one."""
    series = {
        f'{SIZE}{{node="n",device_uuid="a",instance="1"}}': "100x5",
        f'{SIZE}{{node="n",device_uuid="a",instance="2"}}': "100x5",
        f'{SIZE}{{node="m",device_uuid="b",instance="1"}}': "100x5",
        f'{metric}{{node="n",device_uuid="a",instance="1"}}': f"{percent}x5",
        f'{metric}{{node="n",device_uuid="a",instance="2"}}': f"{percent}x5",
        f'{metric}{{node="m",device_uuid="b",instance="1"}}': "0x5",
    }
    share = percent / 100 if node else percent / 200
    assert promtool.test(series, "3m", expression(metric, node), ("{}", share)) == ""


def test_a_query_without_data_is_noticed(promtool):
    test = {
        "expr": "count(hami_nothing) >= bool 1",
        "eval_time": "15m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    assert "hami_nothing" in promtool.evaluate(recorded(), [test])


# -- what OpenCost reads

OPENCOST = (
    "sum(avg(avg_over_time(container_gpu_allocation"
    '{container!="", container!="POD", node!=""}[1h])) by (container, pod, namespace, node)) by (namespace)'
)
"""Its own expression for an hour, summed up by namespace."""


def test_opencost_charges_what_usage_records(promtool: Promtool) -> None:
    """Four pods with a quarter of a GPU each cost one: as in the records of usage of the same hour."""
    stage = UsageStage()
    replica = UsageReplica(stage)
    replica.step()
    replica.record()
    names = DeviceContainers(replica.held, replica.store)
    for number in range(4):
        names.upsert(bound(f"quarter-{number}", stage.now, memory=10_000, cores=10))
    replica.record()
    start = gpu_hours(stage)
    for _ in range(12):
        replica.record(after=300)
    recorded = gpu_hours(stage) - start
    assert recorded == pytest.approx(1)

    family = allocation_family(replica.store.view(), ONLY_NVIDIA, names.names())
    series = {}
    for line in family.samples:
        name, _, value = line.rpartition(" ")
        series[name] = f"{value}x60"
    samples = ('{namespace="default"}', recorded)
    assert promtool.test(series, "60m", OPENCOST, samples) == ""


def gpu_hours(stage: UsageStage) -> float:
    """Returns what is recorded."""
    return sum([held.share for held in stage.sums().counters().values()]) / 1000 / 3600
