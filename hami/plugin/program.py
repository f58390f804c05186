"""The device plugin process: wires its parts, starts and stops them in order, and handles signals."""

from __future__ import annotations

import logging
import os
import queue
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from hami.codec.keys import RESIZED
from hami.codec.pods import NodePod
from hami.devices.config import BOTH, DRA, MEMORY_BY_DRIVER, PluginConfig
from hami.devices.memory_limits import GroupLimits
from hami.devices.nvml_library import DriverLibrary
from hami.devices.registration import MIG, VENDOR, resizes
from hami.devices.xids import DISABLE
from hami.dra.driver import DraDriver
from hami.dra.prepare import PreparedRequests
from hami.errors import HamiError
from hami.kube.api import Api
from hami.kube.claims import DynamicResources
from hami.kube.cluster import Cluster
from hami.kube.events import EventRecorder
from hami.model import Pod
from hami.node.container_specs import CLAIM, ContainerSpecs
from hami.node.dynamic_mig import DynamicMig
from hami.node.memory_wall import MemoryWall
from hami.node.pods import NodePods
from hami.node.refusals import RefusalListener
from hami.node.wall_records import WallRecords
from hami.plugin.allocation_mode import (
    CLAIM_DEVICES,
    claimed_part,
    why_closed,
    why_undivided,
    with_allocation_mode,
)
from hami.plugin.allocation_time import is_start_time, start_time_config
from hami.plugin.allocator import Allocator, other_allocation_keys
from hami.plugin.card_watch import SILENT_S, CardWatch
from hami.plugin.cleanup import Cleanup, remove_directories
from hami.plugin.deferred_writes import CALLS_S, DeferredWrites
from hami.plugin.health_reporter import HealthReporter
from hami.plugin.holders import CardHolders
from hami.plugin.kubelet_servers import KubeletServers
from hami.plugin.lost_checkpoint import LostCheckpoint
from hami.plugin.metrics import PluginMetrics
from hami.plugin.node import PluginNode, card_source
from hami.plugin.region_guard import RegionGuard
from hami.plugin.registrar import NodeRegistrar, withdrawn_unless_read
from hami.plugin.resize import SizeEnforcer
from hami.plugin.server import PluginServer
from hami.plugin.settings import PluginSettings
from hami.plugin.start_time import StartTimeAllocator, needs_completion
from hami.plugin.wall_keeper import WalledFiles, WallKeeper
from hami.plugin.wall_probe import WallProbe
from hami.runtime.clock import utc_now
from hami.runtime.interpreter import freeze_gc, set_switch_interval
from hami.runtime.parts import Part, hung_reasons, join_reasons, unready_reasons
from hami.runtime.signals import CHECK_S, STOP_SIGNALS, listen
from hami.runtime.tasks import PeriodicTask, problems
from hami.vendors.catalog import vendors
from hami.web.pages import Health

log = logging.getLogger(__name__)

COMPONENT = "hami-device-plugin"
RESTART_S = 30.0
"""Seconds until a failed start is retried."""
START_S = 300.0
"""Seconds after which a start hangs: calls of the driver have no deadline."""
CLEANUP_S = 60.0
CLEANUP_MIG_S = 10.0
"""Seconds between cleanups; shorter with MIG, where unused instances take room from other pods."""
REGIONS_S = 1.0
"""Seconds between two looks at the size of files to which containers may write."""
JOIN_S = 3.0
DRAIN_S = 1.0
LAST_WRITES_S = 5.0
"""Seconds in which a program that stops begins writes that are left."""


class DevicePluginProgram:
    """The parts of `hami device-plugin` under one configuration. Call `start` and `stop` once."""

    def __init__(
        self,
        settings: PluginSettings,
        *,
        cluster: Cluster | None = None,
        resources: DynamicResources | None = None,
        library: DriverLibrary | None = None,
    ) -> None:
        """*cluster*: ``None`` for the cluster of the environment. *resources*: of the same cluster, for the allocation
        mode ``dra``. *library*: that of this process, which an earlier program may have opened. Raises: HamiError, also
        if the driver is missing."""
        self._pod_listeners: list[Callable[[Pod], None]] = []
        self._start_listeners: list[Callable[[], None]] = []  # hear of containers that start
        node_pods = None
        if cluster is None:
            api = Api.connect(timeout=settings.kube_timeout or 10.0, pool=8)
            cluster, node_pods = Cluster(api), NodePods(api, settings.node, self._on_pod)
            resources = DynamicResources(api, settings.node)
        self._settings = settings = with_allocation_mode(settings, cluster)
        self._library = library or DriverLibrary()
        self._events = EventRecorder(cluster, COMPONENT)
        self._withdrawn_unless_read = partial(
            withdrawn_unless_read, cluster, settings, vendors(settings.devices)[VENDOR], SILENT_S
        )
        with self._withdrawn_unless_read():
            source = card_source(settings, self._library, self._events, self._on_cards_changed)
        self._node = node = PluginNode(settings, cluster, self._events, source, node_pods)
        self._claim_settings = claimed_part(settings)
        self._deferred = DeferredWrites(
            cluster, settings.node, node.vendor.annotations.to_allocate, self._events
        )
        claim_specs = node.specs(CLAIM)
        self._prepared = PreparedRequests(claim_specs)
        mig = _dynamic_mig(node, claim_specs)
        self._servers = KubeletServers(settings)
        holders = CardHolders(
            node.vendor, node.known_pods, self._prepared.all, node.host.allocations
        )
        self.health = _health_reporter(node, holders)
        """What tells the cluster about the health of the cards."""
        self._cards = CardWatch(node, self._library, self._servers, mig, self.health, holders)
        self._allocator = Allocator(
            settings,
            cluster,
            node.vendors,
            node.host,
            node.grants(settings, node.inventory, mig),
            self._deferred,
            node_pods=node_pods,
        )
        self.memory_wall = _wall_keeper(node, self._library)
        """What looks after the driver's limits of memory."""
        self._start_time = _start_time_allocator(node, mig, self.memory_wall)
        self._start_time.refusals.listeners.append(self.health.report_refused)
        claims = _claim_driver(
            node, claim_specs, mig, resources, self.health.report_refused, self.memory_wall
        )
        self._is_start_time = _is_start_time(node, self._start_time)
        self.memory_wall.probe.switch_off(_why_no_wall(node, has_start_time=self._is_start_time))
        is_lock_free = None  # the node needs a lock, unless the kubelet names the pod of a call
        if self._is_start_time:
            node.spec_folders.add(node.cdi_folder)
            is_lock_free = self._servers.are_cards_registered
        elif claims is not None and settings.is_managed:
            is_lock_free = claims.is_registered
        if is_lock_free is not None:
            self._pod_listeners.append(self._complete_pod)
        self._registrar = NodeRegistrar(
            cluster,
            node.inventory,
            settings,
            node.vendor,
            now=partial(datetime.now, UTC),
            is_lock_free=is_lock_free,
            watched_pods=node.watched_pods,
            memory_wall=self.memory_wall.probe.state,
        )
        parts = [
            _background(node),
            _wall_part(node, self.memory_wall),
            self._resizes(),
            self._cards,
            Part(self._registrar, self._deferred, self.health),
            _cleanup(node, self._allocator, mig, self._start_time, claims),
            claims,
            self._servers,
        ]
        self._parts = list(filter(None, parts))
        if settings.kubelet_socket and settings.allocation_mode != DRA:
            self._servers.serve_cards(
                node.inventory,
                self._card_server,
                is_ready=self._may_serve_cards,
                on_registered=self._registrar.recheck,
            )

    def start(self) -> None:
        """Reads the cards, prepares the node, then serves. Raises: HamiError if one of the first two fails."""
        settings, node = self._settings, self._node
        for note in settings.notes:
            log.warning("device configuration", extra={"note": note})
        _check_imex_channels(settings)
        node.install_limiter()
        _prepare_records(settings)
        with self._withdrawn_unless_read():
            for part in self._parts:
                part.prepare()
        claimed = [] if self._claim_settings is None else node.claimed.cards()
        log.info(
            "cards found",
            extra={
                "node": settings.node,
                "mode": settings.operating_mode,
                "allocation_mode": settings.allocation_mode,
                "cards": [card.uuid for card in node.inventory.cards()],
                "claimed": [card.uuid for card in claimed],
            },
        )
        if settings.is_divided and not claimed:
            note = f"{CLAIM_DEVICES} names no device of the node"
            log.warning("device configuration", extra={"note": note})
        self._check_allocation_mode()
        self._events.start()
        for part in self._parts:
            part.start()
        if not settings.kubelet_socket:
            log.info("no kubelet socket: the cards are only registered with the node")

    def unready_reason(self) -> str:
        """Returns why the kubelet cannot call the plugin, or why no card can be offered; empty if neither.

        A plugin that another process has replaced reports ready: the rollout then ends it.
        """
        return self._cards.unready_reason() or unready_reasons(self._parts)

    def hung_reason(self) -> str:
        """Returns which threads have died or hang, which of the plugin's own servers are silent, and why only a new
        process can use the driver; empty if nothing is wrong."""
        return join_reasons([hung_reasons(self._parts), problems([self._events])])

    def has_found_driver(self) -> bool:
        """Reports whether a driver that was missing at the start is there, so that a new start finds its cards."""
        return self._cards.has_found_driver()

    def stop(self, *, last: bool) -> None:
        """Stops serving, then everything else. The *last* time the node is no longer lock-free, and unregistered if the
        settings say so, unless another process has replaced this one."""
        is_replaced = self._servers.is_replaced()
        for part in self._parts:
            part.stop()
        self._cards.close()  # who waits for a card would go on, unless it has been told to stop
        for part in self._parts:
            part.join(JOIN_S)
        deadline = time.monotonic() + LAST_WRITES_S
        self._deferred.flush(lambda: deadline - time.monotonic())
        if last and not is_replaced:
            self._registrar.leave(unregister=self._settings.unregister_on_stop)
            self.health.leave()
        self._events.drain(DRAIN_S)
        self._events.stop()
        self._events.join(JOIN_S)

    def _check_allocation_mode(self) -> None:
        """Raises: HamiError if pods still use the cards in another allocation mode, or claims of another allocator."""
        if self._claim_settings is not None:
            self._registrar.remove_other_allocation_modes()  # nobody may place pods here in them any more
        if reason := self._why_closed():
            self._events.start()
            self._node.warn("AllocationModeConflict", reason)
            self._events.drain(DRAIN_S)
            self._events.stop()
            raise HamiError(reason)

    def _why_closed(self) -> str:
        node = self._node
        prepared = self._prepared.all()
        if self._claim_settings is None and not prepared:
            return ""
        pods = node.cluster.pods_on(self._settings.node)
        if self._settings.is_divided:
            claimed = {card.uuid for card in node.claimed.cards()}
            return why_undivided(pods, prepared, claimed, node.vendor)
        return why_closed(self._settings, pods, {request.pod for request in prepared}, node.vendor)

    def _resizes(self) -> Part | None:
        """Returns what changes the limits of running containers; ``None`` if the node does not."""
        node = self._node
        if node.node_pods is None or not resizes(self._settings):
            return None
        resizer = SizeEnforcer(
            self._settings,
            node.cluster,
            node.vendors,
            WalledFiles(node.host, self.memory_wall),
            node.inventory,
            self._events,
            node.node_pods.pods,
        )

        def wake_for(pod: Pod) -> None:
            if pod.annotations.get(RESIZED):
                resizer.wake()

        self._pod_listeners.append(wake_for)
        self._start_listeners.append(resizer.wake)
        return Part(resizer)

    def _card_server(self, path: Path, on_disconnect: Callable[[], None]) -> PluginServer:
        is_needed = (
            self._is_start_time
            or bool(self._start_time.is_recorded())  # containers of an earlier mode
            or self._start_time.has_lost_files()
        )
        return PluginServer(
            path,
            self._settings,
            self._node.inventory,
            self._start_time if self._is_start_time else self._allocator,
            cards_in_use=self._node.cards_in_use,
            pre_start=self._pre_start if is_needed else None,
            on_disconnect=on_disconnect,
        )

    def _pre_start(self, device_ids: Sequence[str]) -> None:
        try:
            self._start_time.pre_start(device_ids)
        finally:
            # the pod may have been resized since it was read
            for listener in self._start_listeners:
                listener()

    def _may_serve_cards(self, seconds: float) -> bool:
        """Reports whether there is a card, after at most so many seconds: otherwise the kubelet would list the resource
        with capacity 0. Without start-time allocation, the node must be registered, too: a predecessor that was killed
        may have left it lock-free."""
        snapshot = self._node.inventory.wait_until(lambda snapshot: bool(snapshot.cards), seconds)
        if snapshot is None or not snapshot.cards:
            return False
        return self._is_start_time or self._registrar.wait_registered(seconds)

    def _on_pod(self, pod: Pod) -> None:
        for listener in self._pod_listeners:
            listener(pod)

    def _complete_pod(self, pod: Pod) -> None:
        """Completes a pod that was bound with a node lock, which nobody here needs."""
        if needs_completion(pod, self._settings.node, self._node.vendor):
            self._deferred.complete_pod(pod.ref, other_allocation_keys(self._node.vendors))

    def _on_cards_changed(self) -> None:
        self._cards.reader.try_read()


def _dynamic_mig(node: PluginNode, claim_specs: ContainerSpecs) -> DynamicMig | None:
    """Returns what makes MIG instances for containers; ``None`` unless the node does so."""
    settings = node.settings
    if settings.operating_mode != MIG or node.source is None:
        return None
    return DynamicMig(
        lambda: node.cluster.pods_on(settings.node),
        node.source.instances,
        node.inventory.cards,
        publish=node.cdi.update_instances,
        claimed=PreparedRequests(claim_specs).instances,
        exclusive=claim_specs.exclusive if settings.allocation_mode == DRA else nullcontext,
    )


def _start_time_allocator(
    node: PluginNode, mig: DynamicMig | None, keeper: WallKeeper
) -> StartTimeAllocator:
    config = start_time_config(node.settings)
    return StartTimeAllocator(
        config,
        node.cluster,
        node.vendor,
        node.host,
        node.grants(config, node.inventory, mig),
        node.specs(),
        _memory_wall(node, config, keeper),
        node_pods=node.node_pods,
    )


def _memory_wall(node: PluginNode, config: PluginConfig, keeper: WallKeeper) -> MemoryWall:
    root = Path(node.settings.driver_root_in_container)
    return MemoryWall(config, root, keeper.probe.reason_off)


def _wall_keeper(node: PluginNode, library: DriverLibrary) -> WallKeeper:
    settings = node.settings

    def open_driver() -> GroupLimits:
        return GroupLimits(library.open(settings.driver_root_in_container))

    def pods() -> Iterable[NodePod] | None:
        return node.node_pods.node_pods() if node.node_pods is not None else None

    probe = WallProbe(settings, open_driver, node.all_cards.cards)
    return WallKeeper(settings.node, probe, WallRecords(settings.hook_path), node.host, pods)


def _prepare_records(settings: PluginSettings) -> None:
    """Makes the folder for what the hook has done, where that is read. Raises: HostError."""
    if settings.cgroup_root:
        WallRecords(settings.hook_path).prepare()


def _wall_part(node: PluginNode, keeper: WallKeeper) -> Part | None:
    """Returns what looks after the driver's limits; ``None`` if the node's control groups are not seen."""
    if not node.settings.cgroup_root:
        return None
    return Part(keeper)


def _is_start_time(node: PluginNode, start_time: StartTimeAllocator) -> bool:
    """Reports whether containers get their devices when they start. Raises: HamiError."""
    if node.source is None or node.settings.allocation_mode == DRA:
        return False
    return is_start_time(node.settings, node.cluster, start_time.is_recorded(), os.environ)


def _health_reporter(node: PluginNode, holders: CardHolders) -> HealthReporter:
    settings = node.settings
    return HealthReporter(
        node.cluster,
        node.events,
        settings.node,
        node.all_cards,
        holders,
        now=utc_now,
        not_watched=f"{DISABLE} disables all XIDs" if settings.xids.is_off else "",
    )


def _why_no_wall(node: PluginNode, *, has_start_time: bool) -> str:
    """Returns why the driver limits memory of no container of the node; empty if it may. Raises: HamiError if it has
    to."""
    settings = node.settings
    if node.source is None or not settings.kubelet_socket:
        return ""
    if has_start_time or settings.allocation_mode == DRA:
        return ""
    reason = "containers do not get their devices when they start"
    if settings.memory_by == MEMORY_BY_DRIVER:
        raise HamiError(f"--memory-by {settings.memory_by}: {reason}")
    if settings.memory_by == BOTH:
        log.warning(
            "the driver does not limit memory",
            extra={"reason": f"--memory-by {settings.memory_by}: {reason}"},
        )
    return reason


def _claim_driver(
    node: PluginNode,
    claim_specs: ContainerSpecs,
    mig: DynamicMig | None,
    resources: DynamicResources | None,
    on_refused: RefusalListener,
    keeper: WallKeeper,
) -> DraDriver | None:
    """Returns the driver of the cards for claims; ``None`` if the node has none. *on_refused*: see `Refusals`."""
    settings = claimed_part(node.settings)
    if settings is None:
        return None
    assert resources is not None, "the cluster was given without them"
    node.spec_folders.add(node.cdi_folder)
    config = start_time_config(settings)
    driver = DraDriver(
        config,
        node.cluster,
        resources,
        node.grants(config, node.claimed, mig),
        claim_specs,
        _memory_wall(node, config, keeper),
        node_pods=node.node_pods,
    )
    driver.claims.refusals.listeners.append(on_refused)
    return driver


def _background(node: PluginNode) -> Part:
    """Returns what watches the pods of the node, and what measures its cards."""
    part = Part()
    if not node.settings.mock_devices and node.settings.operating_mode != MIG:
        measure = PeriodicTask("contexts", node.measure_contexts, CLEANUP_S, limit_s=CALLS_S)
        part.tasks.append(measure)
    if node.node_pods is not None:
        part.tasks.append(node.node_pods.task)
    return part


def _cleanup(
    node: PluginNode,
    allocator: Allocator,
    mig: DynamicMig | None,
    start_time: StartTimeAllocator,
    claims: DraDriver | None,
) -> Part:
    """Returns what removes the traces of pods that are gone, and limits those of pods that run."""
    name = node.settings.node
    cleanups: list[Callable[[], object]] = [allocator.release_stale_lock]
    cleanup_s = CLEANUP_S
    if mig is not None:
        cleanups.append(mig.reconcile)
        cleanup_s = CLEANUP_MIG_S
    remove = partial(remove_directories, name, node.cluster, node.host)
    sweeps: list[Callable[[], object]] = [remove, start_time.sweep]
    if claims is not None:
        sweeps = [partial(remove, claims.claims.prepared), start_time.sweep, claims.claims.sweep]
    if node.node_pods is not None and node.settings.allocation_mode != DRA:
        lost = LostCheckpoint(
            node.node_pods.pods,
            node.host.allocations,
            node.settings.resource,
            node.vendor,
            node.events,
        )
        sweeps.append(lost.check)
    guard = RegionGuard(name, node.cluster, node.host, node.events)
    return Part(
        Cleanup("cleanup", name, cleanup_s, cleanups),
        Cleanup("sweep", name, CLEANUP_S, sweeps),
        PeriodicTask("regions", guard.shrink, REGIONS_S, limit_s=CALLS_S),
    )


def serve(
    settings: PluginSettings,
    read: Callable[[], PluginSettings],
    *,
    make: Callable[[PluginSettings], DevicePluginProgram] | None = None,
    library: DriverLibrary | None = None,
    signals: queue.SimpleQueue[int] | None = None,
    health: Health | None = None,
    metrics: PluginMetrics | None = None,
    on_started: Callable[[], None] = freeze_gc,
) -> int:
    """Runs until a stop signal, or until only a new process can use the driver; returns the exit status.

    *read*: reads the settings again, on SIGHUP; settings that cannot be read are ignored. *library*: the driver's, of
    this process. *signals*: the queue of incoming signals. *metrics*: follow the program. *on_started*: called whenever
    all parts have started. A failed start is retried.
    """
    incoming = listen(signal.SIGHUP) if signals is None else signals
    library = library or DriverLibrary()
    make = make or partial(DevicePluginProgram, library=library)
    set_switch_interval()
    health = health or Health()
    while True:
        program = _start(settings, make, health)
        if program is not None:
            on_started()
            if metrics is not None:
                metrics.follow(program.health, program.memory_wall)
        outcome = _wait(incoming, library, program, settings, read)
        if program is not None:
            program.stop(last=isinstance(outcome, int))
        if isinstance(outcome, int):
            return outcome
        settings = outcome


def _wait(
    incoming: queue.SimpleQueue[int],
    library: DriverLibrary,
    program: DevicePluginProgram | None,
    settings: PluginSettings,
    read: Callable[[], PluginSettings],
) -> PluginSettings | int:
    """Waits until *program* has to be stopped; ``None`` if it has not started. Returns the settings for the next start,
    or the exit status."""
    seconds = CHECK_S if program is not None else RESTART_S
    while True:
        number = _next_signal(incoming, seconds)
        status = _exit_status(number, library)
        if status is not None:
            return status
        if number == signal.SIGHUP:
            fresh = _reload(read)
            if fresh is not None:
                return fresh
        elif program is None or program.has_found_driver():
            return settings


def _next_signal(incoming: queue.SimpleQueue[int], seconds: float) -> int | None:
    """Returns the next signal; ``None`` if there is none within so many *seconds*."""
    try:
        return incoming.get(timeout=seconds)
    except queue.Empty:
        return None


def _exit_status(number: int | None, library: DriverLibrary) -> int | None:
    """Returns the exit status if the process has to end, after the signal *number* or without one; else ``None``."""
    if number in STOP_SIGNALS:
        return 0
    if reason := library.restart_reason():
        log.error("exiting", extra={"reason": reason})
        return 1
    return None


def _start(
    settings: PluginSettings, make: Callable[[PluginSettings], DevicePluginProgram], health: Health
) -> DevicePluginProgram | None:
    latest = time.monotonic() + START_S
    health.follow(
        lambda: "starting", lambda: "the start hangs" if time.monotonic() > latest else ""
    )
    try:
        program = make(settings)
        program.start()
    except HamiError as error:
        log.error("start failed", extra={"error": error, "retry_in_s": RESTART_S})
        failure = f"start failed: {error}"
        health.follow(lambda: failure)
        return None
    health.follow(program.unready_reason, program.hung_reason)
    return program


def _reload(read: Callable[[], PluginSettings]) -> PluginSettings | None:
    try:
        fresh = read()
    except HamiError as error:
        log.error("settings cannot be read again and stay as they are", extra={"error": error})
        return None
    log.info("settings read again")
    return fresh


def _check_imex_channels(settings: PluginSettings) -> None:
    if not settings.imex_required:
        return
    for channel in settings.imex_channels:
        path = Path(settings.dev_root, f"dev/nvidia-caps-imex-channels/channel{channel}")
        if not path.exists():
            raise HamiError(f"--imex-required: {path} is missing")
