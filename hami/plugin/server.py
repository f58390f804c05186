"""The device plugin API, v1beta1, on a unix socket: what the kubelet asks, and what it is answered.

It translates between messages and records. Who gets what is the allocator's business, which cards there are the
inventory's. Facts of the kubelet that it leans on (1.36): one Allocate at a time, one container in it; an error of
GetPreferredAllocation fails the pod, an empty answer does not.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc

from hami.errors import HamiError
from hami.plugin import api_pb2 as api
from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.node.grant import Grant
from hami.devices.registration import kubelet_ids
from hami.devices.inventory import InventorySnapshot, DeviceInventory

__all__ = ["HEALTHY", "UNHEALTHY", "VERSION", "DeviceAllocator", "PluginServer", "Stamp", "register", "socket_path",
           "stamp_of"]

log = logging.getLogger(__name__)

VERSION = "v1beta1"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

_SERVICE = f"{VERSION}.DevicePlugin"
_REGISTER = f"/{VERSION}.Registration/Register"
_THREADS = 32  # each stream holds one; a kubelet has one stream
_REGISTER_S = 5.0
_PATH_LIMIT = 107  # bytes of a unix socket's path; the kernel has no room for more

Stamp = tuple[int, int, int]
"""Tells a socket from a later one of the same path."""


class DeviceAllocator(Protocol):
    """Who knows what a container gets."""

    def allocate(self, device_ids: Sequence[str]) -> Grant: ...
    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]: ...


def socket_path(config: PluginConfig) -> Path:
    """Where the plugin listens: beside the kubelet's socket. Raises: HamiError when the path is too long for one."""
    name = config.socket_name or f"nvidia-{config.resource.rpartition('/')[2]}.sock"
    path = Path(config.kubelet_socket).parent / name
    if len(os.fsencode(_temporary(path))) > _PATH_LIMIT:
        raise HamiError(f"{path}: too long for a unix socket")
    return path


def stamp_of(path: Path) -> Stamp | None:
    """Which socket stands at *path*; ``None`` if there is nothing. An inode alone may be used again at once."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def register(kubelet_socket: str, endpoint: str, resource: str, timeout: float = _REGISTER_S) -> None:
    """Offer *resource* to the kubelet, which calls *endpoint* back before it answers. Raises: HamiError."""
    request = api.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=_options())
    with grpc.insecure_channel(f"unix:{kubelet_socket}") as channel:
        call = channel.unary_unary(_REGISTER, request_serializer=api.RegisterRequest.SerializeToString,
                                   response_deserializer=api.Empty.FromString)
        try:
            # fails at once where no kubelet listens: a later one would call back a socket that it has wiped away
            call(request, timeout=timeout)
        except grpc.RpcError as error:
            raise HamiError(f"the kubelet did not take {resource}: {_says(error)}") from error


class PluginServer:
    """One life of the plugin's socket: `start` once, `stop` once. Threads of gRPC call the rest."""

    def __init__(self, path: Path, config: PluginConfig, inventory: DeviceInventory, allocator: DeviceAllocator, *,
                 ids: Callable[[Card, PluginConfig], Sequence[str]] = kubelet_ids) -> None:
        """*ids*: under which the kubelet knows a card."""
        self.on_silence: Callable[[], None] = lambda: None
        """Called, by any thread, when the last kubelet that listened has gone."""
        self._path = path
        self._config = config
        self._inventory = inventory
        self._allocator = allocator
        self._ids = ids
        self._ending = threading.Event()
        self._count = threading.Lock()
        self._streams = 0
        self._stamp: Stamp | None = None
        self._threads = ThreadPoolExecutor(_THREADS, "device-plugin")
        self._server: Any = grpc.server(self._threads, handlers=[self._handlers()])

    @property
    def streams(self) -> int:
        """How many kubelets listen, which should be one."""
        with self._count:
            return self._streams

    @property
    def stamp(self) -> Stamp | None:
        """The socket that is ours; ``None`` before `start`."""
        return self._stamp

    def start(self) -> None:
        """Listen under another name, then take the place of whatever socket stands there: at no time is there none.

        Raises: HamiError, OSError.
        """
        temporary = _temporary(self._path)
        temporary.unlink(missing_ok=True)
        try:
            bound = self._server.add_insecure_port(f"unix:{temporary}")
        except RuntimeError as error:
            raise HamiError(f"{temporary}: cannot listen: {error}") from error
        if not bound:
            raise HamiError(f"{temporary}: cannot listen")
        self._server.start()
        self._stamp = stamp_of(temporary)
        temporary.replace(self._path)

    def stop(self, grace: float = 1.0) -> None:
        """End the streams, let calls in progress finish for *grace* seconds, and remove the socket if it is still ours.

        A plugin that has already taken its place keeps its own.
        """
        if self._stamp is not None and stamp_of(self._path) == self._stamp:
            self._path.unlink(missing_ok=True)
        self._ending.set()
        self._inventory.notify()
        self._server.stop(grace).wait()
        self._threads.shutdown(wait=False)

    def _handlers(self) -> Any:
        def unary(call: Callable[..., Any], request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(call, request.FromString, _bytes)
        return grpc.method_handlers_generic_handler(_SERVICE, {
            "GetDevicePluginOptions": unary(lambda request, context: _options(), api.Empty),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch, api.Empty.FromString, _bytes),
            "GetPreferredAllocation": unary(self._prefer, api.PreferredAllocationRequest),
            "Allocate": unary(self._allocate, api.AllocateRequest),
            "PreStartContainer": unary(lambda request, context: api.PreStartContainerResponse(),
                                       api.PreStartContainerRequest),
        })

    def _list_and_watch(self, request: api.Empty, context: Any) -> Iterator[api.ListAndWatchResponse]:
        """All devices, again whenever something about them changes, until either side ends it."""
        sent: api.ListAndWatchResponse | None = None
        version = -1

        def is_over() -> bool:
            return self._ending.is_set() or not context.is_active()
        context.add_callback(self._inventory.notify)
        with self._counted():
            while (roll := self._inventory.wait_until(lambda roll: is_over() or roll.version != version)) is not None:
                if is_over():
                    return
                version = roll.version
                if (answer := self._listed(roll)) != sent:
                    sent = answer
                    yield answer

    def _prefer(self, request: api.PreferredAllocationRequest, context: Any) -> api.PreferredAllocationResponse:
        return api.PreferredAllocationResponse(container_responses=[
            api.ContainerPreferredAllocationResponse(deviceIDs=self._preferred(
                tuple(one.available_deviceIDs), tuple(one.must_include_deviceIDs), one.allocation_size))
            for one in request.container_requests])

    def _preferred(self, available: tuple[str, ...], must_include: tuple[str, ...], size: int) -> tuple[str, ...]:
        """The allocator's wish; none rather than an error, which would fail the pod."""
        try:
            return self._allocator.preferred(available, must_include, size)
        except Exception:
            log.exception("no preference")
        return ()

    def _allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        try:
            return api.AllocateResponse(container_responses=[
                _granted(self._allocator.allocate(tuple(one.devices_ids))) for one in request.container_requests])
        except HamiError as error:  # the allocator has logged it
            status, says = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        except Exception:
            log.exception("allocation failed")
            status, says = grpc.StatusCode.INTERNAL, "an error in the device plugin; its log says more"
        context.abort(status, says)
        raise AssertionError("abort raises")

    def _listed(self, roll: InventorySnapshot) -> api.ListAndWatchResponse:
        answer = api.ListAndWatchResponse()
        for card in roll.cards:
            health = UNHEALTHY if card.uuid in roll.unhealthy else HEALTHY
            topology = None
            if self._config.numa_topology and card.numa is not None:
                topology = api.TopologyInfo(nodes=[api.NUMANode(ID=card.numa)])
            answer.devices.extend(api.Device(ID=one, health=health, topology=topology)
                                  for one in self._ids(card, self._config))
        return answer

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._count:
            self._streams += 1
        try:
            yield
        finally:
            with self._count:
                self._streams -= 1
                silent = not self._streams
            if silent:
                self.on_silence()


def _options() -> api.DevicePluginOptions:
    """The kubelet is always told what the scheduler has chosen: its own records then name the cards that are used."""
    return api.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)


def _granted(grant: Grant) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=dict(grant.env), annotations=dict(grant.annotations),
        mounts=[api.Mount(container_path=one.container_path, host_path=one.host_path, read_only=one.read_only)
                for one in grant.mounts],
        devices=[api.DeviceSpec(container_path=one.container_path, host_path=one.host_path,
                                permissions=one.permissions) for one in grant.devices],
        cdi_devices=[api.CDIDevice(name=name) for name in grant.cdi_devices])


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}")


def _says(error: Any) -> str:
    return f"{error.code().name}: {error.details()}" if hasattr(error, "code") else str(error)
