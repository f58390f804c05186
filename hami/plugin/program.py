"""The device plugin process: wires its parts, starts and stops them in order, and handles signals."""

from __future__ import annotations

import logging
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from hami.codec.keys import RESIZED
from hami.devices.cards import Card, CardSource
from hami.devices.config import DRA
from hami.devices.context_size import ContextSizes
from hami.devices.inventory import DeviceInventory
from hami.devices.mock import MockCards
from hami.devices.nvml import NvmlCards
from hami.devices.nvml_library import DriverLibrary
from hami.devices.registration import MIG, VENDOR, resizes
from hami.dra.driver import DraDriver
from hami.dra.prepare import ClaimPreparer, PreparedRequests
from hami.errors import HamiError
from hami.kube.api import Api
from hami.kube.cluster import Cluster
from hami.kube.dynamic_resources import DynamicResources
from hami.kube.events import EventRecorder
from hami.model import Pod
from hami.node.cdi import IMEX, Roots
from hami.node.cdi_specs import CdiSpecs
from hami.node.container_specs import CLAIM, ContainerSpecs
from hami.node.driver import shared_node
from hami.node.dynamic_mig import DynamicMig
from hami.node.grant import CDI, wanted_extras
from hami.node.grant_builder import GrantBuilder
from hami.node.host import Host, host_errors
from hami.node.library import install_library
from hami.node.pods import NodePods
from hami.plugin.allocation_mode import (
    CLAIM_DEVICES,
    CardAllocationModes,
    claimed_part,
    why_closed,
    why_undivided,
    with_allocation_mode,
)
from hami.plugin.allocation_time import is_start_time, start_time_config
from hami.plugin.allocator import Allocator, other_allocation_keys
from hami.plugin.card_reader import CardReader
from hami.plugin.deferred_writes import CALLS_S, DeferredWrites
from hami.plugin.kubelet_registration import KubeletRegistration
from hami.plugin.region_guard import RegionGuard
from hami.plugin.registrar import NodeRegistrar, withdrawn_unless_read
from hami.plugin.resizer import SizeEnforcer
from hami.plugin.server import PluginServer
from hami.plugin.settings import CDI_ROOT, PluginSettings
from hami.plugin.start_time import StartTimeAllocator, needs_completion
from hami.plugin.static_mig import InstanceResource, StaticMig
from hami.runtime.files import check_writable
from hami.runtime.interpreter import freeze_gc, set_switch_interval
from hami.runtime.once import OncePerKey
from hami.runtime.signals import CHECK_S, STOP_SIGNALS, listen
from hami.runtime.tasks import PeriodicTask, Task, problems
from hami.vendors.catalog import vendors
from hami.vendors.spec import Vendor
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
SILENT_S = 30.0
"""Seconds without an answer of the driver after which nobody knows the state of the cards."""
SILENT = "silent"
"""The cause of an unknown state: a call of the driver does not end."""
SILENCE_CHECK_S = 5.0
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
        """*cluster*: ``None`` for the cluster of the environment.
        *resources*: of the same cluster, for the allocation mode
        ``dra``. *library*: that of this process, which an earlier program may have opened. Raises: HamiError, also if
        the driver is missing."""
        catalog = vendors(settings.devices)
        vendor = catalog[VENDOR]
        self._node_pods = None
        if cluster is None:
            api = Api.connect(timeout=settings.kube_timeout or 10.0, pool=8)
            cluster, self._node_pods = Cluster(api), NodePods(api, settings.node, self._on_pod)
            resources = DynamicResources(api, settings.node)
        settings = self._settings = with_allocation_mode(settings, cluster)
        self._events = EventRecorder(cluster, COMPONENT)
        self._library = library or DriverLibrary()
        self._withdrawn_unless_read = partial(
            withdrawn_unless_read, cluster, settings, vendor, SILENT_S
        )
        with self._withdrawn_unless_read():
            self._source = _card_source(
                settings, self._library, self._events, self._on_cards_changed
            )
        self._has_found_driver = threading.Event()
        self._reported = OncePerKey()  # why the state of the cards is unknown, by cause
        offered = CardAllocationModes(settings).offered
        self._inventory = self._claimed = DeviceInventory(
            partial(offered, config=settings, ignore_mig_cards=settings.mig_strategy != "none")
        )
        claiming = claimed_part(settings)
        if claiming is not None and claiming is not settings:
            self._claimed = DeviceInventory(partial(offered, config=claiming))
        self._inventories = {
            self._inventory,
            self._claimed,
        }  # one, unless each allocation mode has cards of its own
        source = self._source
        self._cdi = _cdi_specs(settings) if source is not None else None
        on_instances = (
            self._cdi.update_instances if self._cdi is not None else lambda instances: None
        )
        self._written_folders = [Path(settings.hook_path) / "vgpu"]
        host = self._host = (
            Host(settings, classes=self._cdi.classes) if self._cdi is not None else Host(settings)
        )
        specs = partial(
            ContainerSpecs,
            Path(settings.cdi_root or CDI_ROOT),
            edits=self._cdi.edits if self._cdi is not None else lambda names: [],
        )
        claim_specs = specs(kind=CLAIM)
        self._mig = None
        if settings.operating_mode == MIG and source is not None:
            self._mig = DynamicMig(
                lambda: cluster.pods_on(settings.node),
                source.instances,
                self._inventory.cards,
                publish=on_instances,
                claimed=PreparedRequests(claim_specs).instances,
                exclusive=claim_specs.exclusive if settings.allocation_mode == DRA else nullcontext,
            )
        self._contexts = ContextSizes(
            Path(settings.hook_path) / "vgpu", settings.driver_root_in_container
        )
        self._deferred = DeferredWrites(
            cluster, settings.node, vendor.annotations.to_allocate, self._events
        )
        at_start = start_time_config(settings)
        grants_at_start = GrantBuilder(
            at_start,
            cluster,
            self._inventory,
            host,
            self._mig,
            node_pods=self._node_pods,
            context_bytes=self._contexts.bytes_of,
        )
        self._start_time = StartTimeAllocator(
            at_start, cluster, vendor, host, grants_at_start, specs(), node_pods=self._node_pods
        )
        self._dra = None
        if claiming is not None:
            assert resources is not None, "the cluster was given without them"
            config, own_grants = at_start, grants_at_start
            if claiming is not settings:
                config = start_time_config(claiming)
                own_grants = GrantBuilder(
                    config,
                    cluster,
                    self._claimed,
                    host,
                    node_pods=self._node_pods,
                    context_bytes=self._contexts.bytes_of,
                )
            self._dra = DraDriver(
                config, cluster, resources, own_grants, host, claim_specs, node_pods=self._node_pods
            )
        self._why_closed = partial(self._read_why_closed, cluster, claim_specs, vendor)
        self._is_start_time = (
            source is not None
            and settings.allocation_mode != DRA
            and is_start_time(settings, cluster, self._start_time.is_recorded(), os.environ)
        )
        if self._is_start_time or self._dra is not None or self._cdi is not None:
            self._written_folders.append(Path(settings.cdi_root or CDI_ROOT))
        self._needs_no_lock = (
            self._is_start_time or settings.is_managed
        )  # the kubelet names the pod
        self._needs_completion = partial(needs_completion, node=settings.node, vendor=vendor)
        self._other_keys = other_allocation_keys(catalog)
        grants = GrantBuilder(
            settings,
            cluster,
            self._inventory,
            host,
            self._mig,
            node_pods=self._node_pods,
            context_bytes=self._contexts.bytes_of,
        )
        self._allocator = Allocator(
            settings, cluster, catalog, host, grants, self._deferred, node_pods=self._node_pods
        )
        self._clean_up_node = partial(clean_up_node, settings.node, self._mig, self._allocator)
        self._sweep_node = partial(
            sweep_node,
            settings.node,
            cluster,
            host,
            self._start_time.sweep,
            self._dra.claims if self._dra is not None else None,
        )
        self._resizer = None
        if self._node_pods is not None and resizes(settings):
            self._resizer = SizeEnforcer(
                settings,
                cluster,
                catalog,
                host,
                self._inventory,
                self._events,
                self._node_pods.pods,
            )
        self._guard = RegionGuard(settings.node, cluster, host, self._events)
        self._reader = CardReader(self._read_cards, self._inventory, self._report_unknown)
        self._registrar = NodeRegistrar(
            cluster,
            self._inventory,
            settings,
            vendor,
            now=partial(datetime.now, UTC),
            is_lock_free=self._is_lock_free if self._needs_no_lock else None,
            watched_pods=self._node_pods.pods if self._node_pods is not None else lambda: None,
        )
        self._static_mig = None
        if (
            settings.mig_strategy != "none"
            and settings.operating_mode != MIG
            and source is not None
        ):
            self._static_mig = StaticMig(
                settings, settings.mig_strategy, source.instances, host, on_instances=on_instances
            )
        self._registrations: list[KubeletRegistration] = []
        self._card_registration = None
        if settings.kubelet_socket and settings.allocation_mode != DRA:
            self._card_registration = KubeletRegistration(
                settings,
                self._card_server,
                clock=time.monotonic,
                is_ready=self._may_serve_cards,
                on_registered=self._registrar.recheck,
            )
            self._registrations.append(self._card_registration)
        self._lock = threading.Lock()  # guards _registrations; never held while a registration runs
        self._stopped = threading.Event()
        self._health = PeriodicTask("health", self._watch_health, math.inf)
        self._tasks: list[Task] = []

    def start(self) -> None:
        """Reads the cards, prepares the node, then serves. Raises: HamiError if one of the first two fails."""
        settings = self._settings
        for note in settings.notes:
            log.warning("device configuration", extra={"note": note})
        _check_imex_channels(settings)
        self._install_limiter()
        with self._withdrawn_unless_read():
            self._reader.read()
            if self._mig is not None:
                self._mig.start()
                self._reader.read()
        log.info(
            "cards found",
            extra={
                "node": settings.node,
                "mode": settings.operating_mode,
                "allocation_mode": settings.allocation_mode,
                "cards": [card.uuid for card in self._inventory.cards()],
                "claimed": [card.uuid for card in self._claimed.cards()]
                if self._dra is not None
                else [],
            },
        )
        if settings.is_divided and not self._claimed.cards():
            log.warning(
                "device configuration",
                extra={"note": f"{CLAIM_DEVICES} names no device of the node"},
            )
        self._check_allocation_mode()
        if not settings.mock_devices and settings.operating_mode != MIG:
            self._start_task(
                PeriodicTask("contexts", self._measure_contexts, CLEANUP_S, limit_s=CALLS_S)
            )
        if self._node_pods is not None:
            self._start_task(self._node_pods.task)
        if self._resizer is not None:
            self._start_task(self._resizer)
        cleanup_s = CLEANUP_MIG_S if self._mig is not None else CLEANUP_S
        if self._source is None:
            self._start_task(PeriodicTask("driver", self._look_for_driver, RESTART_S))
        for task in (
            self._events,
            self._health,
            self._reader,
            self._registrar,
            self._deferred,
            PeriodicTask("silence", self._check_silence, SILENCE_CHECK_S),
            PeriodicTask("cleanup", self._clean_up_node, cleanup_s, limit_s=CALLS_S),
            PeriodicTask("sweep", self._sweep_node, CLEANUP_S, limit_s=CALLS_S),
            PeriodicTask("regions", self._guard.shrink, REGIONS_S, limit_s=CALLS_S),
        ):
            self._start_task(task)
        for part in self._dra.tasks if self._dra is not None else ():
            self._start_task(part)
        if self._card_registration is not None:
            self._start_task(self._card_registration)
        elif self._dra is None:
            log.info("no kubelet socket: the cards are only registered with the node")

    def unready_reason(self) -> str:
        """Returns why the kubelet cannot call the plugin, or why no card can be offered; empty if neither.

        A plugin that another process has replaced reports ready: the rollout then ends it.
        """
        unknown = self._inventory.snapshot().unknown
        if unknown:
            return f"the state of the devices is unknown: {unknown}"
        with self._lock:
            registrations = [
                registration
                for registration in self._registrations
                if registration is not self._card_registration or self._inventory.cards()
            ]
        dra = self._dra.unready_reason() if self._dra is not None and self._claimed.cards() else ""
        return "; ".join(
            filter(None, (dra, *(registration.unready_reason for registration in registrations)))
        )

    def hung_reason(self) -> str:
        """Returns which threads have died or hang, which of the plugin's own servers are silent, and why only a new
        process can use the driver; empty if nothing is wrong."""
        with self._lock:
            registrations = list(self._registrations)
        reasons = [
            self._library.restart_reason(),
            problems(tuple(self._tasks)),
            self._dra.hung_reason() if self._dra is not None else "",
            *(registration.hung_reason() for registration in registrations),
        ]
        return "; ".join(filter(None, reasons))

    def has_found_driver(self) -> bool:
        """Reports whether a driver that was missing at the start is there, so that a new start finds its cards."""
        return self._has_found_driver.is_set()

    def stop(self, *, last: bool) -> None:
        """Stops serving, then everything else. The *last* time the node is no longer lock-free, and unregistered if the
        settings say so, unless another process has replaced this one."""
        self._stopped.set()
        with self._lock:
            is_replaced = any(registration.is_replaced() for registration in self._registrations)
            tasks = [task for task in self._tasks if task is not self._events]
        for task in tasks:
            task.stop()
        for inventory in self._inventories:
            inventory.close()
        if self._static_mig is not None:
            self._static_mig.close()
        for task in tasks:
            task.join(JOIN_S)
        deadline = time.monotonic() + LAST_WRITES_S
        self._deferred.flush(lambda: deadline - time.monotonic())
        if last and not is_replaced:
            self._registrar.leave(unregister=self._settings.unregister_on_stop)
        self._events.drain(DRAIN_S)
        self._events.stop()
        self._events.join(JOIN_S)

    def _check_allocation_mode(self) -> None:
        """Raises: HamiError if pods still use the cards in another allocation mode, or claims of another allocator."""
        if self._dra is not None:
            self._registrar.remove_other_allocation_modes()  # nobody may place pods here through them any more
        if reason := self._why_closed():
            self._events.start()
            self._events.record(self._settings.node, "Warning", "AllocationModeConflict", reason)
            self._events.drain(DRAIN_S)
            self._events.stop()
            raise HamiError(reason)

    def _read_why_closed(self, cluster: Cluster, specs: ContainerSpecs, vendor: Vendor) -> str:
        prepared = PreparedRequests(specs).all()
        if self._dra is None and not prepared:
            return ""
        pods = cluster.pods_on(self._settings.node)
        if self._settings.is_divided:
            return why_undivided(
                pods, prepared, {card.uuid for card in self._claimed.cards()}, vendor
            )
        return why_closed(self._settings, pods, {request.pod for request in prepared}, vendor)

    def _card_server(self, path: Path, on_disconnect: Callable[[], None]) -> PluginServer:
        is_needed = (
            self._is_start_time
            or bool(self._start_time.is_recorded())  # containers of an earlier mode
            or self._start_time.has_lost_files()
        )
        return PluginServer(
            path,
            self._settings,
            self._inventory,
            self._start_time if self._is_start_time else self._allocator,
            pre_start=self._pre_start if is_needed else None,
            on_disconnect=on_disconnect,
        )

    def _pre_start(self, device_ids: Sequence[str]) -> None:
        try:
            self._start_time.pre_start(device_ids)
        finally:
            if self._resizer is not None:  # the pod may have been resized since it was read
                self._resizer.wake()

    def _is_lock_free(self) -> bool:
        if self._card_registration is not None:
            return self._card_registration.is_registered()
        return self._dra is not None and self._dra.is_registered()

    def _on_pod(self, pod: Pod) -> None:
        """Completes a pod that was bound with a node lock, if nobody here needs it; has a resized pod looked at."""
        if self._resizer is not None and pod.annotations.get(RESIZED):
            self._resizer.wake()
        if self._needs_no_lock and self._needs_completion(pod):
            self._deferred.complete_pod(pod.ref, self._other_keys)

    def _on_cards_changed(self) -> None:
        self._reader.try_read()

    def _read_cards(self) -> Sequence[Card]:
        """Returns the cards. Writes their specifications, and serves their MIG instances, before they are offered.

        No container can start on a node that cannot write what it is given.
        """
        for folder in self._written_folders:
            with host_errors("containers cannot be given devices"):
                check_writable(folder)
        if self._host.missing_limiter() is not None:  # somebody has removed it
            self._install_limiter()
        cards = self._library.noted(self._source.cards) if self._source is not None else ()
        if self._cdi is not None:
            self._cdi.update_cards(cards)
        if self._claimed is not self._inventory:
            self._claimed.update(cards)
        if self._static_mig is not None:
            for resource in self._static_mig.update_cards(cards):
                self._serve_instances(resource)
        return cards

    def _install_limiter(self) -> None:
        """Installs the limiter if this is its duty. Raises: HostError."""
        settings = self._settings
        if settings.library_source:
            written = install_library(settings.library_source, settings.hook_path)
            log.info("limiter installed", extra={"files": written})

    def _look_for_driver(self) -> None:
        try:
            self._library.open(self._settings.driver_root_in_container)
        except HamiError as error:
            log.debug("still no driver", extra={"reason": str(error)})
        else:
            self._has_found_driver.set()

    def _check_silence(self) -> None:
        """Reports a call of the driver that does not end: its thread cannot."""
        now = time.monotonic()
        is_silent = any(task.silence_s(now) > SILENT_S for task in (self._reader, self._health))
        self._report_unknown(
            SILENT, f"the driver has not answered for {SILENT_S:g} s" if is_silent else ""
        )

    def _may_serve_cards(self, seconds: float) -> bool:
        """Reports whether there is a card, after at most so many seconds: otherwise the kubelet would list the resource
        with capacity 0. Without start-time allocation, the node must be registered, too: a predecessor that was killed
        may have left it lock-free."""
        snapshot = self._inventory.wait_until(lambda snapshot: bool(snapshot.cards), seconds)
        has_cards = snapshot is not None and bool(snapshot.cards)
        return has_cards and (self._is_start_time or self._registrar.wait_registered(seconds))

    def _serve_instances(self, resource: InstanceResource) -> None:
        """Serves a resource of MIG instances in a thread of its own. Raises: HamiError for a name that is too long."""
        config = self._settings
        if not config.kubelet_socket:
            return
        replaces_cards = resource.resource == config.resource
        if not replaces_cards:
            config = replace(config, resource=resource.resource, socket_name="")
        registration = KubeletRegistration(
            config,
            lambda path, on_disconnect: PluginServer(
                path,
                config,
                resource.inventory,
                resource,
                ids=lambda card, config: (card.uuid,),
                on_disconnect=on_disconnect,
            ),
            clock=time.monotonic,
            name=resource.resource,
        )
        with self._lock:
            if self._stopped.is_set():
                return
            if replaces_cards and self._card_registration is not None:
                self._card_registration.stop()  # the instances take over the resource and the socket of the cards
                self._registrations.remove(self._card_registration)
            self._registrations.append(registration)
            self._start_task(registration)

    def _start_task(self, task: Task) -> None:
        self._tasks.append(task)
        task.start()

    def _report(self, card: str, reason: str) -> None:
        for inventory in self._inventories:
            inventory.report(card, reason)
        if self._static_mig is not None:
            self._static_mig.report(card, reason)
        self._reader.wake()  # it may have been the driver

    def _report_unknown(self, cause: str, reason: str) -> None:
        if not reason:
            self._reported.clear(cause)
        elif self._reported.is_new(cause, reason):
            self._events.record(self._settings.node, "Warning", "DevicesUnknown", reason)
        for inventory in self._inventories:
            inventory.report_unknown(cause, reason)
        if self._static_mig is not None:
            self._static_mig.report_unknown(cause, reason)

    def _watch_health(self) -> None:
        if self._source is not None:
            self._source.watch_health(self._report, self._stopped, self._health.beat)

    def _measure_contexts(self) -> None:
        self._contexts.measure_missing(
            [card for inventory in self._inventories for card in inventory.cards()]
        )


def clean_up_node(node: str, mig: DynamicMig | None, allocator: Allocator) -> None:
    """Cleans up: stale node locks, MIG instances.

    Logs what fails; never raises a HamiError.
    """
    _run_each(node, allocator.release_stale_lock, *([mig.reconcile] if mig is not None else []))


def sweep_node(
    node: str,
    cluster: Cluster,
    host: Host,
    sweep_specs: Callable[[], None],
    claims: ClaimPreparer | None = None,
) -> None:
    """Removes directories and specifications of containers and claims that are gone.

    Logs what fails; never raises a HamiError.
    """

    def remove_directories() -> None:
        if directories := host.directories():  # before the pods: see Host.sweep
            live = {pod.ref.uid for pod in cluster.pods_on(node)}
            # containers of a pod that was deleted by force use theirs until the kubelet unprepares its claim
            live |= {request.pod for request in claims.prepared()} if claims is not None else set()
            if removed := host.sweep(directories, live):
                log.info("container directories removed", extra={"directories": removed})

    _run_each(
        node, remove_directories, sweep_specs, *([claims.sweep] if claims is not None else [])
    )


def _run_each(node: str, *steps: Callable[[], object]) -> None:
    for step in steps:
        try:
            step()
        except HamiError as error:
            log.warning("cleanup failed", extra={"node": node, "error": error})


def serve(
    settings: PluginSettings,
    read: Callable[[], PluginSettings],
    *,
    make: Callable[[PluginSettings], DevicePluginProgram] | None = None,
    library: DriverLibrary | None = None,
    signals: queue.SimpleQueue[int] | None = None,
    health: Health | None = None,
    on_started: Callable[[], None] = freeze_gc,
) -> int:
    """Runs until a stop signal, or until only a new process can use the driver; returns the exit status.

    *read*: reads the settings again, on SIGHUP; settings that cannot be read are ignored. *library*: the driver's, of
    this process. *signals*: the queue of incoming signals. *on_started*: called whenever all parts have started. A
    failed start is retried.
    """
    incoming = listen(signal.SIGHUP) if signals is None else signals
    library = library or DriverLibrary()
    make = make or partial(DevicePluginProgram, library=library)
    set_switch_interval()
    health = health or Health()
    while True:
        if (program := _start(settings, make, health)) is not None:
            on_started()
        fresh: PluginSettings | None = None
        while fresh is None:
            number = _next_signal(incoming, CHECK_S if program is not None else RESTART_S)
            status = _exit_status(number, library)
            if status is not None:
                if program is not None:
                    program.stop(last=True)
                return status
            if number == signal.SIGHUP:
                fresh = _reload(read)
            elif program is None or program.has_found_driver():
                fresh = settings
        if program is not None:
            program.stop(last=False)
        settings = fresh


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


def _card_source(
    settings: PluginSettings,
    library: DriverLibrary,
    events: EventRecorder,
    on_change: Callable[[], None],
) -> CardSource | None:
    """Returns the source of the node's cards; ``None`` without a driver, where that is no reason to fail."""
    if settings.mock_devices:
        return MockCards(
            Path(settings.mock_devices), settings.nvidia.mig_profile_allowlist, on_change=on_change
        )

    def warn(reason: str, message: str) -> None:
        events.record(settings.node, "Warning", reason, message)

    try:
        nvml = library.open(settings.driver_root_in_container)
    except HamiError as error:
        if settings.fail_on_init_error:
            raise
        log.warning("no cards on this node", extra={"reason": error})
        return None
    node = (
        shared_node(Path(settings.driver_root_in_container)) if settings.discovery == "auto" else ""
    )
    return NvmlCards(
        nvml,
        settings.nvidia.mig_profile_allowlist,
        xids=settings.xids,
        links=settings.topology_score,
        shared_node=node,
        driver_root=settings.driver_root_in_container,
        warn=warn,
    )


def _cdi_specs(settings: PluginSettings) -> CdiSpecs | None:
    """Returns the writer of CDI specifications; ``None`` if they are not used, or somebody else writes them."""
    if not settings.cdi_root or not CDI.intersection(settings.list_strategies):
        return None
    roots = Roots(driver=settings.driver_root, dev=settings.dev_root, hook=settings.cdi_hook)
    wanted = (*wanted_extras(settings), *([IMEX] if settings.imex_channels else ()))
    return CdiSpecs(Path(settings.cdi_root), Path(settings.driver_root_in_container), roots, wanted)


def _check_imex_channels(settings: PluginSettings) -> None:
    for channel in settings.imex_channels if settings.imex_required else ():
        path = Path(settings.dev_root, f"dev/nvidia-caps-imex-channels/channel{channel}")
        if not path.exists():
            raise HamiError(f"--imex-required: {path} is missing")
