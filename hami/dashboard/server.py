"""The dashboard's server: its parts, wired together."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial

from hami.cache.cache import Cache
from hami.dashboard.access import Access
from hami.dashboard.app import Dashboard, compile_templates, create_dashboard
from hami.dashboard.collector import Collector
from hami.dashboard.explainer import Explainer
from hami.dashboard.live import LiveCluster
from hami.dashboard.monitors import Monitors
from hami.dashboard.renderings import Renderings
from hami.dashboard.scheduling_condition import read_condition
from hami.dashboard.views import Views
from hami.kube.api import Api
from hami.kube.reviews import Reviews
from hami.runtime.tasks import PeriodicTask, Task
from hami.web.apps import AppServer, TlsContexts

REFRESH_S = 2.0
AGES_S = 60  # after which ages are rendered again


class DashboardServer:
    """The server with its two threads: one computes what takes long, the other polls what is not in the cache."""

    def __init__(self, server: AppServer, live: LiveCluster, explainer: Explainer, collector: Collector,
                 unready_reason: Callable[[], str], prepare: Callable[[], None] = lambda: None) -> None:
        """*prepare* is called once, before anything is computed."""
        self._server = server
        self._live = live
        self._explainer = explainer
        self._unready_reason = unready_reason
        self._prepare = prepare
        self._is_prepared = False
        self._task = PeriodicTask("dashboard", self.compute, 0.0)
        self.tasks: tuple[Task, ...] = (self._task, collector)
        """What computes and what polls."""

    def start(self) -> None:
        """Serves."""
        self._server.start()

    def compute(self) -> None:
        """Computes answers, and the rows of nodes that have changed, so that no viewer waits for many."""
        if not self._is_prepared:
            self._prepare()
            self._is_prepared = True
        if self._explainer.wait(REFRESH_S) and not self._unready_reason():
            self._live.node_rows()
            self._explainer.answer_all(self._task.beat)


def dashboard_server(listener: socket.socket, cache: Cache, api: Api, tls: TlsContexts | None, *,
                     monitors: Monitors | None, now: Callable[[], datetime],
                     unready_reason: Callable[[], str]) -> DashboardServer:
    """Returns the dashboard of *cache* on *listener*. Without *tls*, nobody is asked who they are: for loopback only.

    *monitors*: ``None``: no monitor is polled. *unready_reason*: why the cache cannot be shown
    yet; empty if it can.
    """
    clock = time.monotonic
    live = LiveCluster(cache, now=now)
    explainer = Explainer(live, clock=clock)
    collector = Collector(monitors.page if monitors is not None else None, partial(read_condition, api), clock=clock,
                          now=now)
    access = Access(Reviews(api) if tls is not None else None, clock=clock)

    def version() -> tuple[int, ...]:
        return *cache.version(), explainer.answered, collector.changes(), int(now().timestamp()) // AGES_S

    app = create_dashboard(Dashboard(Views(live, explainer, collector), access, Renderings(clock=clock), version,
                                     unready_reason, is_local=tls is None))
    server = AppServer("dashboard", listener, app, tls=tls)
    return DashboardServer(server, live, explainer, collector, unready_reason, partial(compile_templates, app))
