"""The dashboard as a part of the scheduler program: its parts, wired together."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from hami.cache.cache import Cache
from hami.dashboard.access import Access
from hami.dashboard.app import Dashboard, create_dashboard
from hami.dashboard.explainer import Explainer
from hami.dashboard.live import LiveCluster
from hami.dashboard.renderings import Renderings
from hami.dashboard.views import Views
from hami.kube.api import Api
from hami.kube.reviews import Reviews
from hami.web.apps import AppServer, TlsContexts

AGES_S = 60  # after which ages are rendered again


class DashboardServer:
    """The server with its thread, which computes what takes long."""

    def __init__(self, server: AppServer, explainer: Explainer) -> None:
        self._server = server
        self._explainer = explainer

    def start(self) -> None:
        """Listens and serves. Raises: HamiError if the address cannot be listened on."""
        self._server.start()

    def run(self) -> None:
        """Computes until `stop`."""
        self._explainer.run()

    def stop(self) -> None:
        """Stops listening and computing."""
        self._server.stop()
        self._explainer.stop()

    @property
    def address(self) -> tuple[str, int]:
        """The address that it listens on."""
        return self._server.address


def dashboard_server(bind: tuple[str, int], cache: Cache, api: Api, tls: TlsContexts | None, *,
                     now: Callable[[], datetime], unready_reason: Callable[[], str]) -> DashboardServer:
    """Returns the dashboard of *cache* on *bind*. Without *tls*, nobody is asked who they are: for loopback only.

    *unready_reason*: why the cache cannot be shown yet; empty if it can. Nothing listens yet.
    """
    clock = time.monotonic
    live = LiveCluster(cache, now=now)
    explainer = Explainer(live, clock=clock)
    access = Access(Reviews(api) if tls is not None else None, clock=clock)

    def version() -> tuple[int, ...]:
        return *cache.version(), explainer.answered, int(now().timestamp()) // AGES_S

    app = create_dashboard(Dashboard(Views(live, explainer), access, Renderings(clock=clock), version, unready_reason,
                                     is_local=tls is None))
    return DashboardServer(AppServer("dashboard", bind, app, flag="--dashboard-bind-address", tls=tls), explainer)
