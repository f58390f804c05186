"""The device plugin process: its parts, wired together, started and stopped in order; what signals do to it."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from hami.kube.api import Api
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder, Recorder
from hami.errors import HamiError
from hami.runtime.interpreter import freeze_gc, set_switch_interval
from hami.web.pages import Page
from hami.plugin.allocator import Allocator
from hami.plugin.cleanup import NodeCleanup
from hami.plugin.deferred_writes import DeferredWrites
from hami.plugin.grant_builder import GrantBuilder
from hami.plugin.registrar import NodeRegistrar
from hami.devices.cards import Card, CardSource
from hami.node.cdi import CLASSES, IMEX, Roots
from hami.node.driver import shared_node
from hami.node.grant import CDI, wanted_extras
from hami.node.host import Host, install_library
from hami.plugin.link import KubeletLink
from hami.devices.mig import Mig
from hami.devices.mock import MockCards
from hami.devices.nvml import NvmlCards, open_nvml
from hami.devices.registration import MIG, RegistrationKeys, offered_card
from hami.node.pods import NodePods
from hami.devices.inventory import DeviceInventory
from hami.plugin.server import PluginServer
from hami.plugin.settings import PluginSettings
from hami.node.cdi_specs import Placed, CdiSpecs
from hami.plugin.static_mig import InstanceResource, StaticMig
from hami.vendors.catalog import vendors

__all__ = ["Program", "Readiness", "DevicePluginProgram", "serve"]

log = logging.getLogger(__name__)

COMPONENT = "hami-device-plugin"
VENDOR = "NVIDIA"
START_AGAIN_S = 30.0
"""Seconds until a start that failed is tried again."""
RETRY_WRITES_S = 2.0
"""Seconds between attempts to make deferred writes."""
CLEANUP_S = 60.0
CLEANUP_MIG_S = 10.0
"""Seconds between cleanups; shorter with MIG, where unused instances take room from other pods."""
WATCH_AGAIN_S = 5.0
JOIN_S = 3.0
DRAIN_S = 1.0

_ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})


class Program(Protocol):
    """What `serve` starts and stops."""

    def start(self) -> None: ...
    def lacks(self) -> str: ...
    def stop(self, *, last: bool) -> None: ...


class DevicePluginProgram:
    """All parts of `hami device-plugin`, under one configuration. `start` and `stop` once."""

    def __init__(self, settings: PluginSettings, *, cluster: Cluster | None = None) -> None:
        """*cluster*: the one of the environment if ``None``. Raises: HamiError, for a driver that is not there, too."""
        self._settings = settings
        config = settings.config
        catalog = vendors(settings.devices)
        vendor = catalog.named(VENDOR)
        self._node_pods = None
        if cluster is None:
            api = Api.connect(timeout=settings.kube_timeout or 10.0, pool=8)
            cluster, self._node_pods = Cluster(api), NodePods(api, config.node)
        self._events = EventRecorder(cluster, COMPONENT)
        self._source = _source(settings, self._events, self._cards_changed)
        self._inventory = DeviceInventory(
            lambda card: offered_card(card, config, leaves_mig=settings.mig_strategy != "none"))
        has_cards = not isinstance(self._source, _NoCards)
        self._cdi = _cdi(settings) if has_cards else _OthersCdi()
        host = Host(config, classes=self._cdi.classes)
        self._mig = None
        if config.operating_mode == MIG and has_cards:
            self._mig = Mig(config.node, cluster, self._source.instances, self._inventory.cards,
                            tell=self._cdi.instances_are)
        self._deferred = DeferredWrites(cluster, config.node, vendor.to_allocate, self._events)
        grants = GrantBuilder(config, cluster, self._inventory, host, self._mig, node_pods=self._node_pods)
        self._allocator = Allocator(config, cluster, catalog, host, grants, self._deferred, node_pods=self._node_pods)
        self._cleanup = NodeCleanup(config.node, cluster, host, self._mig, self._allocator, self._deferred)
        self._registrar = NodeRegistrar(cluster, self._source, self._inventory, config,
                                        RegistrationKeys(vendor.register, vendor.handshake), now=_now,
                                        before=self._cards_are)
        self._static = None
        if settings.mig_strategy != "none" and config.operating_mode != MIG and has_cards:
            self._static = StaticMig(config, settings.mig_strategy, self._source.instances, host,
                                     serve=self._serve_instances, tell=self._cdi.instances_are)
        self._link = None
        if config.kubelet_socket:
            self._link = KubeletLink(config, lambda path: PluginServer(path, config, self._inventory, self._allocator),
                                     clock=time.monotonic)
        self._links: list[KubeletLink] = []
        self._linking = threading.Lock()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Read the cards, put the node in order, then serve. Raises: HamiError when that cannot begin."""
        settings = self._settings
        for note in settings.notes:
            log.warning("device configuration", extra={"note": note})
        _check_channels(settings)
        if settings.library_source:
            written = install_library(settings.library_source, settings.config.hook_path)
            log.info("limiter installed", extra={"files": written})
        self._registrar.read()
        if self._mig is not None:
            self._mig.start()
            self._registrar.read()
        log.info("cards found", extra={
            "node": settings.config.node, "mode": settings.config.operating_mode,
            "cards": [card.uuid for card in self._inventory.cards()]})
        watching = [("pods", self._node_pods.run)] if self._node_pods is not None else []
        for name, run in (*watching, ("events", self._events.run), ("health", self._watch_health),
                          ("node", self._registrar.run), ("kubelet", self._serve_kubelet), ("cleanup", self._clean_up)):
            self._begin(name, run)

    def lacks(self) -> str:
        """What keeps the kubelet from asking for what there is; empty when nothing does. A plugin that another one has
        replaced lacks nothing: it is ended when that one is well, and takes its place again when it is not."""
        with self._linking:
            links = list(self._links)
            if self._link is not None and self._link not in links and self._inventory.cards():
                links.append(self._link)
        return "; ".join(link.lacks for link in links if link.lacks)

    def stop(self, *, last: bool) -> None:
        """Stop serving, then all else; the *last* time, take the cards off the node if that is wished, and nobody has
        taken this plugin's place."""
        self._stopped.set()
        self._deferred.wake()
        if self._node_pods is not None:
            self._node_pods.stop()
        with self._linking:
            replaced = any(link.is_replaced() for link in self._links)
            for link in self._links:
                link.stop()
        self._registrar.stop()
        self._inventory.close()
        if self._static is not None:
            self._static.close()
        for thread in self._threads:
            if thread.name != "events":
                thread.join(JOIN_S)
        self._deferred.flush()
        if last and self._settings.config.unregister_on_stop and not replaced:
            self._registrar.withdraw()
        self._events.drain(DRAIN_S)
        self._events.stop()
        for thread in self._threads:
            thread.join(JOIN_S)

    def _cards_changed(self) -> None:
        try:
            self._registrar.read()
        except HamiError as error:
            log.warning("cards have changed and cannot be read", extra={"error": error})

    def _cards_are(self, cards: Sequence[Card]) -> None:
        self._cdi.cards_are(cards)
        if self._static is not None:
            self._static.cards_are(cards)

    def _serve_kubelet(self) -> None:
        """Serve as soon as there is a card: a kubelet that is told of none would list the resource as 0."""
        link = self._link
        if not self._settings.config.kubelet_socket:
            log.info("no kubelet socket: the cards are registered with the node only")
        elif link is not None and self._inventory.wait_until(lambda roll: bool(roll.cards)) is not None:
            self._keep(link)

    def _serve_instances(self, offer: InstanceResource) -> None:
        """Serve a resource of MIG instances, by a thread of its own. Raises: HamiError for a name that is too long."""
        config = replace(self._settings.config, resource=offer.resource)
        if offer.resource != self._settings.config.resource:
            config = replace(config, socket_name="")
        if config.kubelet_socket:
            link = KubeletLink(config, lambda path: PluginServer(
                path, config, offer.inventory, offer.allocator, ids=lambda card, config: (card.uuid,)),
                clock=time.monotonic)
            with self._linking:
                if offer.resource == self._settings.config.resource and self._link is not None:
                    self._link.stop()  # no card is whole any more, and there is one place for both
                    self._link = None
                self._links.append(link)
            self._begin(offer.resource, lambda: self._keep(link))

    def _keep(self, link: KubeletLink) -> None:
        """Keep the plugin known to the kubelet, until the end of *link*."""
        with self._linking:
            if self._stopped.is_set():
                return
            if link not in self._links:
                self._links.append(link)
        link.run()
        with self._linking:
            self._links.remove(link)

    def _begin(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _report(self, card: str, reason: str) -> None:
        self._inventory.report(card, reason)
        if self._static is not None:
            self._static.report(card, reason)

    def _watch_health(self) -> None:
        while not self._stopped.is_set():
            try:
                self._source.watch_health(self._report, self._stopped.is_set)
                return
            except Exception:
                log.exception("health is not watched for a moment")
            self._stopped.wait(WATCH_AGAIN_S)

    def _clean_up(self) -> None:
        """Flushes deferred writes as they are queued, and cleans up the node at intervals."""
        interval = CLEANUP_MIG_S if self._mig is not None else CLEANUP_S
        due = time.monotonic()
        while not self._stopped.is_set():
            try:
                if time.monotonic() >= due:
                    due = time.monotonic() + interval
                    self._cleanup.run_once()
                else:
                    self._deferred.flush()
            except Exception:
                log.exception("cleanup failed")
            self._deferred.wait(RETRY_WRITES_S)


class Readiness:
    """Whether what is served can be had, for those who ask: the kubelet, before it counts the pod as ready."""

    def __init__(self) -> None:
        self._lacks: Callable[[], str] = lambda: "starting"

    def follow(self, lacks: Callable[[], str]) -> None:
        """From now on *lacks* says what is missing; empty when nothing is."""
        self._lacks = lacks

    def page(self, accept: str) -> Page:
        """200 when nothing is missing, 503 and what it is else."""
        lacks = self._lacks()
        return Page((f"{lacks or 'ok'}\n".encode(),), status=503 if lacks else 200)


def serve(settings: PluginSettings, read: Callable[[], PluginSettings], *,
          make: Callable[[PluginSettings], Program] = DevicePluginProgram,
          signals: queue.SimpleQueue[int] | None = None,
          readiness: Readiness | None = None, settled: Callable[[], None] = freeze_gc) -> int:
    """Run until told to end; the exit status. *read*: settings anew, for SIGHUP. *signals*: where signals arrive.
    *readiness*: who is told how it goes. *settled* is called when all parts have been started.

    A start that fails is tried again. Settings that cannot be read are not taken: what runs goes on.
    """
    arriving = _listen() if signals is None else signals
    set_switch_interval()
    readiness = readiness or Readiness()
    while True:
        if (life := _started(settings, make, readiness)) is not None:
            settled()
        fresh: PluginSettings | None = None
        while fresh is None:
            number = _next(arriving, None if life is not None else START_AGAIN_S)
            if number in _ENDING:
                if life is not None:
                    life.stop(last=True)
                return 0
            fresh = _reread(read) if number == signal.SIGHUP else settings
        if life is not None:
            life.stop(last=False)
        settings = fresh


def _started(settings: PluginSettings, make: Callable[[PluginSettings], Program],
             readiness: Readiness) -> Program | None:
    try:
        life = make(settings)
        life.start()
    except HamiError as error:
        log.error("start failed", extra={"error": error, "again_in_s": START_AGAIN_S})
        failure = f"start failed: {error}"
        readiness.follow(lambda: failure)
        return None
    readiness.follow(life.lacks)
    return life


def _next(arriving: queue.SimpleQueue[int], timeout: float | None) -> int | None:
    """The next signal, ``None`` when it is time to try again."""
    try:
        return arriving.get(timeout=timeout)
    except queue.Empty:
        return None


def _reread(read: Callable[[], PluginSettings]) -> PluginSettings | None:
    try:
        fresh = read()
    except HamiError as error:
        log.error("the new settings are not taken", extra={"error": error})
        return None
    log.info("settings read again")
    return fresh


def _listen() -> queue.SimpleQueue[int]:
    """Where signals to this process arrive from now on."""
    arriving: queue.SimpleQueue[int] = queue.SimpleQueue()

    def put(number: int, frame: Any) -> None:
        arriving.put(number)
    for number in (*_ENDING, signal.SIGHUP):
        signal.signal(number, put)
    return arriving


class _NoCards:
    """A node without a driver, where that is no reason to fail."""

    def cards(self) -> Sequence[Card]:
        return ()

    def watch_health(self, report: Callable[[str, str], None], stopped: Callable[[], bool]) -> None:
        """Nothing to watch."""

    @property
    def instances(self) -> Any:
        raise HamiError("there is no driver, so there are no MIG instances")


def _source(settings: PluginSettings, events: Recorder, changed: Callable[[], None]) -> CardSource:
    config = settings.config
    if settings.mock_devices:
        return MockCards(Path(settings.mock_devices), config.mig_allowlist, on_change=changed)

    def warn(reason: str, message: str) -> None:
        events.record(config.node, "Warning", reason, message)
    try:
        nvml = open_nvml(settings.driver_root_in_container)
    except HamiError as error:
        if settings.fail_on_init_error:
            raise
        log.warning("no cards on this node", extra={"reason": error})
        return _NoCards()
    node = shared_node(Path(settings.driver_root_in_container)) if settings.discovery == "auto" else ""
    return NvmlCards(nvml, config.mig_allowlist, xids=settings.xids, links=config.topology_score, shared_node=node,
                     warn=warn)


class _OthersCdi:
    """CdiSpecs that nobody needs, or somebody else writes."""

    def cards_are(self, cards: Sequence[Card]) -> None:
        """Nobody to tell."""

    def instances_are(self, instances: Sequence[Placed]) -> None:
        """Nobody to tell."""

    def classes(self) -> frozenset[str]:
        """All: whoever writes them knows."""
        return frozenset(CLASSES)


def _cdi(settings: PluginSettings) -> CdiSpecs | _OthersCdi:
    config = settings.config
    if not settings.cdi_root or not CDI.intersection(config.list_strategies):
        return _OthersCdi()
    roots = Roots(driver=config.driver_root, dev=config.dev_root, hook=settings.cdi_hook)
    wanted = (*wanted_extras(config), *([IMEX] if config.imex_channels else ()))
    return CdiSpecs(Path(settings.cdi_root), Path(settings.driver_root_in_container), roots, wanted)


def _check_channels(settings: PluginSettings) -> None:
    for channel in settings.config.imex_channels if settings.imex_required else ():
        path = Path(settings.config.dev_root, f"dev/nvidia-caps-imex-channels/channel{channel}")
        if not path.exists():
            raise HamiError(f"--imex-required: {path} is missing")


def _now() -> datetime:
    return datetime.now(UTC)
