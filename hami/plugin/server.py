"""The kubelet's device plugin API, v1beta1, on a unix socket: translates between messages and records.

The allocator decides who gets what; the inventory knows the cards. Assumptions about the kubelet (1.36): it makes one
Allocate call at a time, for one container; an error of GetPreferredAllocation fails the pod, an empty answer does not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import grpc

from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.devices.inventory import DeviceInventory, InventorySnapshot
from hami.devices.registration import kubelet_ids
from hami.errors import HamiError
from hami.node.grant import Grant
from hami.node.sockets import PROBE_TIMEOUT_S, SocketServer, answers, call, own_path, stream
from hami.plugin import api_pb2 as api
from hami.plugin.used_cards import unhealthy_ids
from hami.runtime.files import FileVersion, file_version

log = logging.getLogger(__name__)

VERSION = "v1beta1"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

_SERVICE = f"{VERSION}.DevicePlugin"
_REGISTER = f"/{VERSION}.Registration/Register"
_OPTIONS = f"/{_SERVICE}/GetDevicePluginOptions"
_STARTS = 128  # PreStartContainer calls at a time; a kubelet runs 110 pods by default
# those that are left serve streams, other calls and the probe of this plugin
_THREADS = _STARTS + 32
_REGISTER_TIMEOUT_S = 5.0
USED_S = 5.0
"""Seconds between two looks at who uses which card, while one is unhealthy."""


class DeviceAllocator(Protocol):
    """Hands out the devices of one resource."""

    def allocate(self, device_ids: Sequence[str]) -> Grant: ...
    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]: ...


def socket_path(config: PluginConfig) -> Path:
    """Returns the path of the plugin's socket, beside the kubelet's. Raises: HamiError if it is too long."""
    name = config.socket_name or f"nvidia-{config.resource.rpartition('/')[2]}.sock"
    path = Path(config.kubelet_socket).parent / name
    own_path(path)
    return path


def register(
    kubelet_socket: str,
    endpoint: str,
    resource: str,
    *,
    pre_start: bool = False,
    timeout: float = _REGISTER_TIMEOUT_S,
) -> None:
    """Registers *resource* with the kubelet, which connects to *endpoint* before it answers.

    *pre_start*: PreStartContainer is called for each container that starts. Raises: Unanswered if the kubelet may have
    connected nevertheless; HamiError if it has not.
    """
    request = api.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource, options=_options(pre_start)
    )
    # a kubelet that does not listen yet is not waited for: when it starts, it removes the plugin's socket
    try:
        call(kubelet_socket, _REGISTER, request, timeout)
    except HamiError as error:
        raise type(error)(f"the kubelet rejected the registration of {resource}: {error}") from None


class PluginServer:
    """Serves the plugin's socket: `start` once, `stop` once. gRPC's threads call the rest."""

    def __init__(
        self,
        path: Path,
        config: PluginConfig,
        inventory: DeviceInventory,
        allocator: DeviceAllocator,
        *,
        ids: Callable[[Card, PluginConfig], Sequence[str]] = kubelet_ids,
        cards_in_use: Callable[[Collection[str]], Mapping[str, str]] = lambda cards: {},
        pre_start: Callable[[Sequence[str]], None] | None = None,
        on_disconnect: Callable[[], None] = lambda: None,
    ) -> None:
        """*ids*: returns the device ids of a card. *cards_in_use*: returns the card that the container of each id uses,
        from the UUIDs of all cards. *pre_start*: prepares a container with these device ids, in several threads at
        once; may raise HamiError. *on_disconnect*: called, by any thread, when the last kubelet connection has
        ended."""
        self._path = path
        self._socket = SocketServer(path, _THREADS, name="device-plugin")
        self._config = config
        self._inventory = inventory
        self._allocator = allocator
        self._ids = ids
        self._cards_in_use = cards_in_use
        self._pre_start = pre_start
        self._on_disconnect = on_disconnect
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards changes of streams; never held across I/O
        self.streams = 0
        """The number of connected kubelets, which should be one."""
        self._starts = threading.BoundedSemaphore(_STARTS)

    @property
    def identity(self) -> FileVersion | None:
        """The identity of this server's socket; ``None`` before `start`."""
        return self._socket.identity

    @property
    def completed_calls(self) -> int:
        """The number of calls that have ended, with or without success, except streams."""
        return self._socket.completed_calls

    @property
    def endpoint(self) -> str:
        """The name of the socket that the kubelet calls. It is of this server alone: from Kubernetes 1.37 on, a kubelet
        keeps plugins apart by it."""
        return self._socket.path.name

    @property
    def requires_pre_start(self) -> bool:
        """Whether the kubelet must call PreStartContainer."""
        return self._pre_start is not None

    def start(self) -> None:
        """Listens at a path of its own, then takes over the plugin's path, where at no time is no socket.

        Raises: HamiError, OSError.
        """
        self._socket.start({_SERVICE: self._handlers()})
        link = self._socket.path.with_suffix(".new")
        os.link(self._socket.path, link)
        link.replace(self._path)

    def stop(self, grace: float = 1.0) -> None:
        """Ends the streams, lets calls in progress finish for *grace* seconds, and removes the socket.

        The socket of a plugin that has replaced this one stays.
        """
        if self.identity is not None and file_version(self._path) == self.identity:
            self._path.unlink(missing_ok=True)
        self._socket.path.unlink(missing_ok=True)
        self._stopping.set()
        self._inventory.notify()
        self._socket.stop(grace)

    def answers(self, timeout: float = PROBE_TIMEOUT_S) -> bool:
        """Reports whether a new client of the socket gets an answer within *timeout* seconds."""
        return answers(self._path, _OPTIONS, api.Empty(), timeout, whose="plugin")

    def _handlers(self) -> dict[str, Any]:
        unary = self._socket.unary
        return {
            "GetDevicePluginOptions": unary(
                lambda request, context: _options(self.requires_pre_start), api.Empty
            ),
            "ListAndWatch": stream(self._list_and_watch, api.Empty),
            "GetPreferredAllocation": unary(
                self._get_preferred_allocation, api.PreferredAllocationRequest
            ),
            "Allocate": unary(self._allocate, api.AllocateRequest),
            "PreStartContainer": unary(self._pre_start_container, api.PreStartContainerRequest),
        }

    def _list_and_watch(
        self, request: api.Empty, context: Any
    ) -> Iterator[api.ListAndWatchResponse]:
        """Sends all devices, again whenever they change, until either side ends the stream."""
        sent: api.ListAndWatchResponse | None = None
        snapshot = InventorySnapshot()
        version = -1

        def is_over() -> bool:
            return self._stopping.is_set() or not context.is_active()

        def has_news(latest: InventorySnapshot) -> bool:
            return is_over() or latest.version != version

        context.add_callback(self._inventory.notify)
        self._count_stream(1)
        try:
            while True:
                # while a card is unhealthy, the health of an id depends on the pods, too
                seconds = USED_S if snapshot.unhealthy else None
                latest = self._inventory.wait_until(has_news, seconds)
                if latest is None or is_over():
                    return
                snapshot = latest
                version = snapshot.version
                answer = self._render_devices(snapshot)
                if answer != sent:
                    sent = answer
                    yield answer
        finally:
            if self._count_stream(-1) == 0:
                self._on_disconnect()

    def _count_stream(self, change: int) -> int:
        with self._lock:
            self.streams += change
            return self.streams

    def _get_preferred_allocation(
        self, request: api.PreferredAllocationRequest, context: Any
    ) -> api.PreferredAllocationResponse:
        """Answers with the preferred ids; with none instead of an error, which would fail the pod."""
        answer = api.PreferredAllocationResponse()
        for container in request.container_requests:
            ids: Sequence[str] = ()
            try:
                ids = self._allocator.preferred(
                    tuple(container.available_deviceIDs),
                    tuple(container.must_include_deviceIDs),
                    container.allocation_size,
                )
            except Exception:
                log.exception("preferred allocation failed")
            answer.container_responses.add(deviceIDs=ids)
        return answer

    def _allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        with _errors_to(context):
            return api.AllocateResponse(
                container_responses=[
                    _render_grant(self._allocator.allocate(tuple(container.devices_ids)))
                    for container in request.container_requests
                ]
            )

    def _pre_start_container(
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        if not self._starts.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{_STARTS} containers are being prepared: the kubelet tries again",
            )
        try:
            with _errors_to(context):
                if self._pre_start is not None:
                    self._pre_start(tuple(request.devices_ids))
                return api.PreStartContainerResponse()
        finally:
            self._starts.release()

    def _render_devices(self, snapshot: InventorySnapshot) -> api.ListAndWatchResponse:
        ids = {card.uuid: self._ids(card, self._config) for card in snapshot.cards}
        unhealthy: frozenset[str] = frozenset()
        if snapshot.unhealthy:
            used = self._cards_in_use(ids.keys())
            unhealthy = unhealthy_ids(ids, snapshot.unhealthy, used)
        answer = api.ListAndWatchResponse()
        for card in snapshot.cards:
            topology = None
            if self._config.nvidia.enable_numa_topology and card.numa is not None:
                topology = api.TopologyInfo(nodes=[api.NUMANode(ID=card.numa)])
            for device_id in ids[card.uuid]:
                health = UNHEALTHY if device_id in unhealthy else HEALTHY
                answer.devices.append(api.Device(ID=device_id, health=health, topology=topology))
        return answer


@contextlib.contextmanager
def _errors_to(context: Any) -> Iterator[None]:
    """Ends the call with a status and a text for users if there is an error."""
    try:
        yield
        return
    except HamiError as error:  # it has been logged
        status, message = grpc.StatusCode.FAILED_PRECONDITION, str(error)
    except Exception:
        log.exception("allocation failed")
        status, message = (
            grpc.StatusCode.INTERNAL,
            "internal error of the device plugin: see its log",
        )
    context.abort(status, message)


def _options(pre_start: bool) -> api.DevicePluginOptions:
    """Returns the plugin's options. Preferred ids make the kubelet's own records name the cards that are used."""
    return api.DevicePluginOptions(
        pre_start_required=pre_start, get_preferred_allocation_available=True
    )


def _render_grant(grant: Grant) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=dict(grant.env),
        annotations=dict(grant.annotations),
        mounts=[
            api.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only=mount.read_only,
            )
            for mount in grant.mounts
        ],
        devices=[api.DeviceSpec(**asdict(device)) for device in grant.devices],
        cdi_devices=[api.CDIDevice(name=name) for name in grant.cdi_devices],
    )
