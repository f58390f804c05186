"""Metrics pages on which every series exists, of each program: for tests and for the reference."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec import structs
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from hami.codec.gpu_hours import BudgetWindow, GpuHours
from hami.codec.health import DeviceHealth
from hami.codec.keys import MIG_ALLOCATIONS
from hami.codec.mig import MigAllocation, render_mig_allocations
from hami.codec.usage_sums import HeldAmounts, TotalKey
from hami.devices.cards import XidEvent
from hami.devices.inventory import DeviceInventory
from hami.devices.xids import XidKind
from hami.kube.events import EventRecorder
from hami.model import Partition
from hami.monitor.metrics import MonitorMetrics
from hami.monitor.metrics import families as monitor_families
from hami.plugin.health_reporter import HealthReporter
from hami.plugin.holders import CardHolders
from hami.plugin.metrics import PluginMetrics
from hami.plugin.wall_keeper import DriverUse
from hami.scheduler.budget_metrics import BudgetMetrics
from hami.scheduler.cluster_metrics import families
from hami.scheduler.metrics import Metrics, MetricSources
from hami.scheduler.opencost import allocation_family
from hami.scheduler.usage_metrics import UsageMetrics
from hami.scheduling.gpu_hours import BudgetUse
from hami.scheduling.usual_pods import UsualPod
from hami.state.rooms import Usual
from hami.state.store import Store
from hami.state.view import Policies, View
from hami.web.exposition import build_info, render
from testing.builders import NVIDIA, ONLY_NVIDIA, booking, charge, gpu, gpus, node, pod, quota
from testing.cards import cards
from testing.fake_cluster import FakeCluster
from testing.monitor_stage import CARD, OTHER, Stage, node_pod
from testing.region_bytes import Process

__all__ = ["monitor_page", "plugin_page", "scheduler_page", "small_cache"]


def small_cache() -> Store:
    """One node with two devices. One pod holds half of the first, another has a reservation on the second."""
    cache = Store(
        ONLY_NVIDIA, Policies(), clock=lambda: 0.0, now=lambda: datetime(2026, 8, 21, tzinfo=UTC)
    )
    cache.quotas.upsert(quota(namespace="team-a", gpumem=40000))
    cache.nodes.upsert(
        node(
            "gpu-0",
            gpu("GPU-a", memory_mib=16384, index=0),
            gpu("GPU-b", memory_mib=16384, index=1),
        )
    )
    cache.pods.upsert(
        pod(
            gpus(memory=8192, cores=30),
            name="running",
            namespace="team-a",
            node_name="gpu-0",
            annotations={
                "hami.io/vgpu-node": "gpu-0",
                NVIDIA.annotations.allocated: "GPU-a,NVIDIA,8192,30:;",
            },
        )
    )
    cache.filtering.assume(pod(gpus(memory=4096), name="promised", namespace="team-b"), ["gpu-0"])
    return cache


def plugin_page() -> str:
    """Returns the page of a device plugin: one card is unhealthy."""
    inventory = DeviceInventory()
    inventory.update(cards("GPU-a", "GPU-b"))
    inventory.report("GPU-b", "XID 79")
    cluster = FakeCluster()
    reporter = HealthReporter(
        cluster,
        EventRecorder(cluster, "hami-device-plugin"),
        "gpu-0",
        inventory,
        CardHolders(NVIDIA, list, list, list),
        now=lambda: datetime(2026, 8, 21, tzinfo=UTC),
    )
    reporter.report("GPU-b", DeviceHealth(cause="XID 79"), 1)
    reporter.report_xid(XidEvent(gpu="GPU-b", xid=79, kind=XidKind.RESET))
    registry = CollectorRegistry()
    PluginMetrics(registry).follow(reporter, _memory_wall())
    return generate_latest(registry).decode()


def _memory_wall() -> Any:
    """What looks after the driver's limits, as far as metrics ask for it."""
    use = DriverUse(pod().ref, "main", "GPU-a", 4096)
    probe = SimpleNamespace(state=lambda: "misc", reason_off=str, backend=lambda: "misc")
    return SimpleNamespace(probe=probe, uses=lambda: (use,), repairs=lambda: 1, failed=lambda: 0)


def scheduler_page() -> str:
    """Returns the page of a scheduler."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    Metrics(registry)
    key = TotalKey("team-a", "NVIDIA", "NVIDIA A40")
    registry.register(UsageMetrics(lambda: {key: HeldAmounts(1, 2, 3, 4)}, lambda: 1))
    hours, window = GpuHours(500_000, "week"), BudgetWindow(0, 1)
    use = BudgetUse(namespace="team-a", hours=hours, window=window, share_s=1)
    registry.register(BudgetMetrics(lambda: [use], lambda: 1))
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
            waiting_pods=lambda: [pod(name="waits")],
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
    usual = Usual({UsualPod("NVIDIA", 1, 30, 8192): 1.0})
    view = View(view.merged.table, replace(view.facts, usual=usual))
    charged = allocation_family(view, ONLY_NVIDIA, dict.fromkeys(view.bookings, "main"))
    pages = [build_info(), charged, *families(view, ONLY_NVIDIA, registered=["gpu-0"])]
    ours = "".join(render(pages))
    return ours + generate_latest(registry).decode()


def monitor_page() -> str:
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
