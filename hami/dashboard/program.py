"""The process of the dashboard: wires its parts, runs its threads, serves the pages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from hami.certificates.revision import CERTIFICATE, KEY, Lifetimes, revise
from hami.dashboard.access import Access
from hami.dashboard.app import Dashboard, compile_templates, create_dashboard
from hami.dashboard.caches import Poller, Renderings
from hami.dashboard.explainer import explainer
from hami.dashboard.front_proxy import REFRESH_S as FRONT_PROXY_S
from hami.dashboard.front_proxy import FrontProxy
from hami.dashboard.history import UsageHistory, history_poller, no_history
from hami.dashboard.inspect_api import Explanations, create_inspect_api
from hami.dashboard.live import LiveCluster
from hami.dashboard.monitors import Monitors, use_poller
from hami.dashboard.replays import NO_REPLAYS, ReplaysView, reports_poller
from hami.dashboard.settings import DashboardSettings
from hami.dashboard.usage_page import NO_USAGE, UsageView, usage_poller
from hami.dashboard.usage_records import UsageRecords
from hami.dashboard.viewed_pods import (
    CONDITION_LIMITS,
    SIZE_LIMITS,
    PodSize,
    SchedulingCondition,
    read_condition,
    read_size,
)
from hami.dashboard.views import Views
from hami.dashboard.waiting import WaitingPods
from hami.dra.watches import watch_devices
from hami.inspect.prometheus import make_fetch
from hami.inspect.read import Reader
from hami.kube.api import Api
from hami.kube.reviews import Reviews
from hami.kube.watches import Watches
from hami.model import PodRef
from hami.runtime.clock import utc_now
from hami.runtime.interpreter import collect_rarely, set_switch_interval
from hami.runtime.parts import Part
from hami.runtime.settings import OFF
from hami.runtime.signals import listen, run_until_signal
from hami.runtime.tasks import PeriodicTask, Task
from hami.state.claims import ClaimCache
from hami.state.store import Store
from hami.web.connections import TlsContexts
from hami.web.pages import AppServer
from hami.web.tls import TlsContext, context_of

log = logging.getLogger(__name__)

REFRESH_S = 2.0  # between two looks at what has timed out, and at nodes that have changed
START_S = 0.1  # between two looks whether the cluster has been read
ANSWERS_S = 0.3  # that a page waits for explanations of pods that nobody has viewed yet
AGES_S = 60  # after which ages are rendered again
JOIN_S = 1.0  # for each thread at the end
LIFETIMES = Lifetimes(serving=timedelta(days=3650))  # of a certificate that ends with the process


class DashboardProgram:
    """The parts of ``hami dashboard`` under one configuration. Call `start` and `stop` once."""

    def __init__(
        self,
        settings: DashboardSettings,
        store: Store,
        *,
        api: Api | None = None,
        flag: str = "--bind-address",
    ) -> None:
        """*store*: still empty. *api*: ``None`` for the cluster of the environment. *flag*: with which the user
        chooses the address. Raises: HamiError if there is no cluster."""
        api = api or Api.connect(timeout=settings.request_timeout)
        clock = time.monotonic
        self._watches = Watches(
            api,
            nodes=store.nodes,
            pods=store.pods,
            quotas=store.quotas,
            node_selector=settings.node_selector,
        )
        claims = ClaimCache()
        self._live = LiveCluster(store, claims, now=utc_now)
        monitors = Monitors(
            api, settings.pod_namespace, settings.monitor_selector, settings.monitor_port
        )
        answers = explainer(self._live, clock=clock)
        renderings = Renderings(clock=clock)
        uses = use_poller(
            monitors.page, clock=clock, now=utc_now, give_way=renderings.wait_until_made
        )
        conditions: Poller[PodRef, SchedulingCondition] = Poller(
            "scheduling conditions", partial(read_condition, api), CONDITION_LIMITS, clock=clock
        )
        sizes: Poller[PodRef, PodSize] = Poller(
            "sizes of pods", partial(read_size, api), SIZE_LIMITS, clock=clock
        )
        self._pollers: list[Poller[Any, Any]] = [answers, uses, conditions, sizes]
        own = _own_certificate(settings)
        history: Callable[[str], UsageHistory | None] = no_history
        if settings.prometheus_url:
            histories = history_poller(make_fetch(settings.prometheus_url), clock=clock)
            self._pollers.append(histories)
            history = histories.view
        usage = NO_USAGE
        if settings.usage_namespace:
            days = usage_poller(api.request, clock=clock)
            self._pollers.append(days)
            usage = UsageView(settings.usage_namespace, days.view)
        replays = NO_REPLAYS
        if settings.replay_reports:
            reports = reports_poller(clock=clock)
            self._pollers.append(reports)
            replays = ReplaysView(settings.replay_reports, reports)
        tls = _tls(settings, own)
        access = Access(Reviews(api) if tls is not None else None, clock=clock)
        self._app = create_dashboard(
            Dashboard(
                Views(
                    self._live,
                    waiting=WaitingPods(
                        self._live,
                        explain=answers.view,
                        condition=conditions.view,
                        expect=partial(answers.wait, seconds=ANSWERS_S),
                    ),
                    uses=uses.view,
                    size=sizes.view,
                    history=history,
                ),
                access,
                renderings,
                self._version,
                self.unready_reason,
                self.hung_reason,
                is_local=tls is None,
                has_history=bool(settings.prometheus_url),
                usage=usage,
                replays=replays,
            )
        )
        self._server = AppServer("dashboard", settings.bind_address, self._app, flag=flag, tls=tls)
        self._rows = _Rows(self._watches, store, self._live)
        self._work = Part(self._rows, *self._pollers, *self._watches.tasks)
        self._servers = [self._server]
        if settings.inspect_bind_address is not None:
            front = FrontProxy(api, partial(_serving, settings, own))
            self._work.tasks.append(PeriodicTask("front proxy", front.refresh, FRONT_PROXY_S))
            explanations = Explanations(self._live, Reader(api.request).pod)
            records = UsageRecords(api.request, settings.usage_namespace)
            self._servers.append(
                AppServer(
                    "inspect API",
                    settings.inspect_bind_address,
                    create_inspect_api(front, access, explanations, records, self.unready_reason),
                    flag="--inspect-bind-address",
                    tls=front.context,
                )
            )
        if settings.dra != OFF:
            self._work.tasks.extend(watch_devices(api, claims))

    def start(self) -> None:
        """Serves, and reads the cluster. Raises: HamiError if the address cannot be listened on."""
        set_switch_interval()
        collect_rarely()
        for server in self._servers:
            server.start()
        self._work.start()
        compile_templates(self._app)
        log.info("serving", extra={"bind": "%s:%s" % self.address})

    def stop(self) -> None:
        """Stops all parts."""
        for server in self._servers:
            server.stop()
        self._work.stop()
        self._work.join(JOIN_S)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the pages."""
        return self._server.address

    def unready_reason(self) -> str:
        """Returns why the cluster cannot be shown as it is now; empty if it can."""
        if not self._rows.are_made:
            return "the cluster is still being read"
        return self._watches.unready_reason() or ""

    def hung_reason(self) -> str:
        """Returns which threads have died or hang; empty if none."""
        return self._work.hung_reason()

    def _version(self) -> tuple[int, ...]:
        return (
            *self._live.version(),
            *(poller.changes for poller in self._pollers),
            int(utc_now().timestamp()) // AGES_S,
        )


class _Rows(Task):
    """Makes the rows of nodes that have changed, so that no viewer waits for many."""

    def __init__(self, watches: Watches, store: Store, live: LiveCluster) -> None:
        super().__init__("rows")
        self._watches = watches
        self._store = store
        self._live = live
        self.are_made = False
        """Whether there is a row of each node that the first lists have shown."""

    def step(self) -> float:
        """Makes them, once the cluster has been read."""
        if not self._watches.is_synced():
            return START_S
        self._store.expire()
        self._store.learn()
        self._live.node_rows()
        self.are_made = True
        return REFRESH_S


def _own_certificate(settings: DashboardSettings) -> bytes:
    """Returns a certificate with its key (PEM) that ends with the process."""
    made = revise(
        {},
        names=[f"hami-dashboard.{settings.pod_namespace}.svc"],
        default=(),
        published=None,
        now=utc_now(),
        lifetimes=LIFETIMES,
    )
    assert made is not None  # there was no certificate
    return made.data[CERTIFICATE] + made.data[KEY]


def _serving(settings: DashboardSettings, own: bytes) -> bytes:
    """Returns the certificate with its key (PEM) of the files; *own* until they exist."""
    try:
        return Path(settings.cert_file).read_bytes() + Path(settings.key_file).read_bytes()
    except OSError:
        return own


def _tls(settings: DashboardSettings, own: bytes) -> TlsContexts | None:
    """Returns the certificate; ``None`` for an address that only this machine reaches."""
    if settings.bind_address.is_loopback:
        return None
    context = context_of(own)
    if settings.cert_file:
        return TlsContext(settings.cert_file, settings.key_file, until_made=context)
    return lambda: context


def serve(settings: DashboardSettings, store: Store) -> int:
    """Runs until a stop signal; returns the exit status: 1 if a thread has died or hangs. Raises: HamiError if the
    start fails."""
    return run_until_signal(DashboardProgram(settings, store), listen())
