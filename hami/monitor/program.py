"""The monitor process: wires its parts, runs the rounds, serves the pages, and handles signals."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector

from hami.devices.mock import MockCards
from hami.devices.nvml_library import DriverLibrary
from hami.devices.registration import VENDOR
from hami.errors import HamiError
from hami.kube.api import Api
from hami.model import Pod
from hami.monitor.loop import MonitorLoop, NodeReport
from hami.monitor.metrics import MonitorMetrics, families
from hami.monitor.processes import HostProcesses
from hami.monitor.region_files import RegionFiles
from hami.monitor.settings import JSON, MonitorSettings, above_vgpu
from hami.monitor.source import DriverSource, FixedSource, UsageSource
from hami.monitor.table import render_json, render_table
from hami.node.pods import NodePods
from hami.runtime.parts import Part, join_reasons
from hami.runtime.signals import listen, run_until_signal
from hami.runtime.tasks import PeriodicTask
from hami.vendors.catalog import vendors
from hami.web.exporter import Exporter
from hami.web.exposition import Family, build_info
from hami.web.pages import Health

log = logging.getLogger(__name__)

STALE_S = 10.0
"""Seconds and rounds after which the monitor is not ready: old numbers must not pass for new ones."""
SETTLE_S = 0.2
"""Seconds between a change of a pod and the round that it causes: changes come in groups."""
SYNC_S = 30.0
"""Seconds for which ``--once`` waits for the pods."""
JOIN_S = 3.0


class MonitorProgram:
    """The parts of `hami monitor` under one configuration. Call `start` and `stop` once."""

    def __init__(
        self,
        settings: MonitorSettings,
        *,
        api: Api | None = None,
        processes: HostProcesses | None = None,
        source: UsageSource | None = None,
    ) -> None:
        """*api*: ``None`` for the cluster of the environment. *processes*: ``None`` for those of the host. *source*:
        ``None`` for the driver, or the mock file of the settings.

        Raises: HamiError if there is no cluster, or a mock file cannot be read. A missing driver is no error.
        """
        self._settings = settings
        api = api or Api.connect(timeout=settings.kube_timeout or 10.0, pool=2)
        catalog = vendors(settings.devices)
        self._pods = NodePods(api, settings.node, self._on_pod)
        self._source = source or _usage_source(settings)
        self._rounds = MonitorLoop(
            settings.node,
            catalog,
            catalog[VENDOR],
            self._source,
            RegionFiles(above_vgpu(settings.hook_path)),
            processes or HostProcesses(),
            writes=settings.feedback and not settings.once,
            limits_uncounted=settings.limit_uncounted,
        )
        self._report = NodeReport(node=settings.node, at=-STALE_S)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._metrics = MonitorMetrics(
            registry, lambda: self._report, self._rounds.errors, self._is_stale
        )
        health = Health()
        health.follow(self.unready_reason, self.hung_reason)
        self._exporter = Exporter(
            registry,
            settings.metrics_bind_address,
            self._families,
            pages={"/readyz": health.readyz, "/healthz": health.healthz},
        )
        self._changed = threading.Event()
        """Set between a change of a pod and the round that it causes."""
        self._round_task = PeriodicTask("rounds", self._run, settings.interval)
        self._work = Part(self._pods.task, self._round_task)

    def start(self) -> None:
        """Serves, and runs rounds. Raises: HamiError if the address cannot be listened on."""
        self._exporter.start()
        self._work.start()
        log.info(
            "serving",
            extra={
                "node": self._settings.node,
                "bind": "%s:%s" % self.address,
                "feedback": self._settings.feedback,
            },
        )

    def stop(self) -> None:
        """Stops all parts. Containers that wait go on."""
        self._work.stop()
        self._exporter.stop()
        self._work.join(JOIN_S)
        self._rounds.release()

    def run_once(self) -> NodeReport:
        """Waits for the pods of the node and returns one round. Raises: HamiError if they do not come."""
        self._pods.task.start()
        try:
            if not self._pods.wait_synced(SYNC_S):
                raise HamiError(
                    f"the API server has not listed the pods of {self._settings.node} in {SYNC_S:g} s"
                )
            return self._round()
        finally:
            self._pods.task.stop()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the pages."""
        return self._exporter.address

    def unready_reason(self) -> str:
        """Returns why the pages cannot be believed; empty if they can."""
        if self._is_stale():
            return "no round has succeeded recently"
        if self._report.containers is None:
            return "the pods of the node are not known yet"
        return ""

    def hung_reason(self) -> str:
        """Returns which threads have died or hang, and why only a new process can use the driver; empty if nothing is
        wrong."""
        return join_reasons([self._source.restart_reason(), self._work.hung_reason()])

    def _is_stale(self) -> bool:
        return time.monotonic() - self._report.at > STALE_S + self._settings.interval

    def _families(self) -> list[Family]:
        if self._is_stale():
            return [build_info()]  # Prometheus takes every value for one of now
        return [build_info(), *families(self._report, legacy=self._settings.legacy_metrics)]

    def _on_pod(self, pod: Pod) -> None:
        self._changed.set()
        self._round_task.wake()

    def _run(self) -> None:
        """Runs a round: one at each interval, and one soon after a pod has changed: a pod that ends frees others."""
        if self._changed.is_set():
            self._round_task.pause(min(SETTLE_S, self._settings.interval))
            self._changed.clear()
        self._report = self._round()

    def _round(self) -> NodeReport:
        begun = time.monotonic()
        report = self._rounds.run_once(self._pods.node_pods(), time.time(), begun)
        self._metrics.observe_round(time.monotonic() - begun)
        return report


def serve(
    settings: MonitorSettings,
    *,
    make: Callable[[MonitorSettings], MonitorProgram] = MonitorProgram,
    signals: queue.SimpleQueue[int] | None = None,
) -> int:
    """Runs until a stop signal; returns the exit status: 1 if a thread has died. Raises: HamiError if the start
    fails."""
    if signals is None:
        signals = listen()
    return run_until_signal(make(settings), signals)


def print_once(
    settings: MonitorSettings,
    show: Callable[[str], None],
    *,
    make: Callable[[MonitorSettings], MonitorProgram] = MonitorProgram,
) -> int:
    """Runs one round, hands its result to *show*, and returns the exit status. Raises: HamiError."""
    report = make(settings).run_once()
    render = render_json if settings.output == JSON else render_table
    show(render(report))
    return 0


def _usage_source(settings: MonitorSettings) -> UsageSource:
    if settings.mock_devices:
        return FixedSource(MockCards(Path(settings.mock_devices)).cards)
    return DriverSource(DriverLibrary(), settings.driver_root_in_container)
