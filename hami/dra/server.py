"""The kubelet's DRA API and its plugin registration, on one unix socket that the kubelet finds in its folder.

The kubelet watches the folder: it asks who serves a new socket, and calls it from then on; when it starts again, it
asks again. A plugin does not need to look for the kubelet. Of two sockets of one driver, it calls the one that was
registered last, so that a new plugin can take over from an old one, and each must serve the claims of the other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hami.codec.slices import DRIVER, device_name, mig_devices, pool_name
from hami.devices.cards import Card
from hami.devices.inventory import DeviceInventory, InventorySnapshot
from hami.dra import dra_pb2 as dra
from hami.dra import health_pb2 as health
from hami.dra import registration_pb2 as registration
from hami.dra.prepare import ClaimPreparer
from hami.errors import HamiError
from hami.node.sockets import PROBE_TIMEOUT_S, SocketServer, answers, stream
from hami.runtime.files import FileVersion, file_version
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import HUNG_S, Task

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Seconds between two looks whether the socket is still there."""
PROBE_S = 10.0
"""Seconds between two calls of the driver's own server."""
FORGOTTEN_S = 30.0
"""Seconds after the start of a kubelet in which it registers the driver, unless it has not found the socket."""
HEALTH_S = 10.0
"""Seconds between two messages about the health of devices, without a change."""
HEALTH_TIMEOUT_S = 30
"""Seconds after which the kubelet takes the health of a device for unknown."""
FOLDER = "plugins_registry"
"""Where the kubelet looks for sockets, below its own folder."""

_THREADS = 160  # a kubelet runs 110 pods by default, and prepares them at the same time; streams, registration, probe
_SERVICES = (
    "v1.DRAPlugin",
    "v1alpha1.DRAResourceHealth",
    "v1.DRAResourceHealth",
)  # as the kubelet abbreviates them
_REGISTRATION = "pluginregistration.Registration"
_INFO = f"/{_REGISTRATION}/GetInfo"


class DraServer:
    """Serves one socket: `start` once, `stop` once. gRPC's threads call the rest."""

    def __init__(
        self,
        folder: Path,
        node: str,
        inventory: DeviceInventory,
        claims: ClaimPreparer,
        on_status: Callable[[str], None],
    ) -> None:
        """*folder*: where the kubelet looks for sockets. *on_status*: called, by any thread, when the kubelet has
        registered the driver, or why it has not. Raises: HamiError if the path is too long."""
        self._pool = pool_name(node)
        self._inventory = inventory
        self._claims = claims
        self._on_status = on_status
        self._stopping = threading.Event()
        self._socket = SocketServer(folder / f"{DRIVER}.sock", _THREADS, name="dra")

    @property
    def path(self) -> Path:
        """The path of the socket."""
        return self._socket.path

    @property
    def completed_calls(self) -> int:
        """The number of calls that have ended, except streams."""
        return self._socket.completed_calls

    def start(self) -> None:
        """Listens. Raises: HamiError, OSError."""
        unary = self._socket.unary
        watch = {"NodeWatchResources": stream(self._watch_health, health.NodeWatchResourcesRequest)}
        self._socket.start(
            {
                _REGISTRATION: {
                    "GetInfo": unary(self._info, registration.InfoRequest),
                    "NotifyRegistrationStatus": unary(
                        self._take_status, registration.RegistrationStatus
                    ),
                },
                "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": {
                    "NodePrepareResources": unary(self._prepare, dra.NodePrepareResourcesRequest),
                    "NodeUnprepareResources": unary(
                        self._unprepare, dra.NodeUnprepareResourcesRequest
                    ),
                },
                "v1alpha1.DRAResourceHealth": watch,
                "v1.DRAResourceHealth": watch,
            }
        )

    def stop(self, grace: float = 1.0) -> None:
        """Removes the socket, by which the kubelet notices, and lets calls in progress finish for *grace* seconds."""
        self._socket.path.unlink(missing_ok=True)
        self._stopping.set()
        self._inventory.notify()
        self._socket.stop(grace)

    def is_listed(self) -> bool:
        """Reports whether the kubelet can find the socket."""
        return file_version(self.path) == self._socket.identity

    def answers(self, timeout: float = PROBE_TIMEOUT_S) -> bool:
        """Reports whether a new client of the socket gets an answer within *timeout* seconds."""
        return answers(self.path, _INFO, registration.InfoRequest(), timeout, whose="driver")

    def _info(self, request: Any, context: Any) -> registration.PluginInfo:
        # without an endpoint, the kubelet calls the socket that it has found
        return registration.PluginInfo(type="DRAPlugin", name=DRIVER, supported_versions=_SERVICES)

    def _take_status(
        self, request: registration.RegistrationStatus, context: Any
    ) -> registration.RegistrationStatusResponse:
        self._on_status("" if request.plugin_registered else request.error or "without a reason")
        return registration.RegistrationStatusResponse()

    def _prepare(
        self, request: dra.NodePrepareResourcesRequest, context: Any
    ) -> dra.NodePrepareResourcesResponse:
        return dra.NodePrepareResourcesResponse(
            claims={claim.uid: self._prepare_one(claim) for claim in request.claims}
        )

    def _prepare_one(self, claim: dra.Claim) -> dra.NodePrepareResourceResponse:
        started = time.monotonic()
        devices: list[dra.Device] = []

        def prepare() -> None:
            devices.extend(
                dra.Device(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=[device.cdi_device] if device.cdi_device else [],
                    share_id=device.share_id or None,
                )
                for device in self._claims.prepare(claim.namespace, claim.name, claim.uid)
            )
            log.info(
                "claim prepared",
                extra={
                    "claim": f"{claim.namespace}/{claim.name}",
                    "devices": len(devices),
                    "seconds": round(time.monotonic() - started, 4),
                },
            )

        error = _outcome("claim cannot be prepared", claim, prepare)
        return dra.NodePrepareResourceResponse(devices=devices, error=error)

    def _unprepare(
        self, request: dra.NodeUnprepareResourcesRequest, context: Any
    ) -> dra.NodeUnprepareResourcesResponse:
        return dra.NodeUnprepareResourcesResponse(
            claims={
                claim.uid: dra.NodeUnprepareResourceResponse(
                    error=_outcome(
                        "claim cannot be unprepared",
                        claim,
                        lambda: self._claims.unprepare(claim.uid),
                    )
                )
                for claim in request.claims
            }
        )

    def _watch_health(
        self, request: Any, context: Any
    ) -> Iterator[health.NodeWatchResourcesResponse]:
        """Sends the health of all devices: at intervals, and whenever it changes, until either side ends the stream."""
        sent: InventorySnapshot | None = None

        def is_over() -> bool:
            return self._stopping.is_set() or not context.is_active()

        context.add_callback(self._inventory.notify)
        while (
            snapshot := self._inventory.wait_until(
                lambda latest: is_over() or latest is not sent, HEALTH_S
            )
        ) is not None and not is_over():
            sent = snapshot
            yield self._render_health(snapshot)

    def _render_health(self, snapshot: InventorySnapshot) -> health.NodeWatchResourcesResponse:
        return health.NodeWatchResourcesResponse(
            devices=[
                health.DeviceHealth(
                    device=health.DeviceIdentifier(pool_name=self._pool, device_name=name),
                    health=health.UNHEALTHY if card.uuid in snapshot.unhealthy else health.HEALTHY,
                    message=snapshot.unhealthy.get(card.uuid, ""),
                    last_updated_time=int(time.time()),
                    health_check_timeout_seconds=HEALTH_TIMEOUT_S,
                )
                for card in snapshot.cards
                for name in (device_name(card.uuid), *_instances(card))
            ]
        )


class DraRegistration(Task):
    """Keeps the kubelet able to call the driver until `stop`, then removes its socket.

    A kubelet that starts again has forgotten the driver until it registers it. If it does not, the driver serves
    another socket, which the kubelet is told of.
    """

    def __init__(
        self,
        make_server: Callable[[Callable[[str], None]], DraServer],
        *,
        clock: Callable[[], float],
        kubelet: Path | None = None,
        on_registered: Callable[[], None] = lambda: None,
    ) -> None:
        """*make_server*: makes a server, not yet started, from a listener for the outcome of its registration.
        *kubelet*: a socket that each kubelet makes when it starts; ``None`` if it is unknown. *on_registered*: called,
        by any thread, each time the kubelet has registered it."""
        super().__init__("dra")
        self._make_server = make_server
        self._clock = clock
        self._kubelet = kubelet
        self._on_registered = on_registered
        self._server: DraServer | None = None
        # guards what follows, and unready_reason while the kubelet starts
        self._lock = threading.Lock()
        # the socket of the kubelet at the last registration
        self._registered_by: FileVersion | None = None
        # when another kubelet was seen that has not registered the driver
        self._forgotten_at: float | None = None
        self._probed_at = self._answered_at = 0.0
        self._completed_calls = 0
        self._reported = OncePerKey()
        self.unready_reason = "not registered with the kubelet yet"
        """Why the kubelet cannot call the driver; empty if it can."""

    def step(self) -> float:
        """Serves if nobody can find the socket any more, and calls the own server at intervals."""
        try:
            self._look_for_kubelet()
            if self._server is None or not self._server.is_listed() or self._is_forgotten():
                self._serve()
            else:
                self._probe(self._server)
        except (HamiError, OSError) as error:
            self.unready_reason = f"the kubelet cannot be served: {error}"
            if self._reported.is_new("serve", str(error)):
                log.warning("the kubelet cannot be served", extra={"error": error})
        return INTERVAL_S

    def finish(self) -> None:
        """Stops serving."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def hung_reason(self) -> str:
        """Returns why the process must be restarted; empty if the driver's own server answers, or if there is none."""
        silent = self._clock() - self._answered_at
        if self._server is None or silent <= HUNG_S:
            return ""
        return f"the driver's own server has not answered at {self._server.path} for {silent:.0f} s"

    def _look_for_kubelet(self) -> None:
        """Remembers that the kubelet which has registered the driver is gone, and another one runs."""
        found = file_version(self._kubelet) if self._kubelet is not None else None
        with self._lock:
            if self.unready_reason or found in (None, self._registered_by):
                return
            self._forgotten_at = self._clock()
            self.unready_reason = (
                "the kubelet has started again, and has not registered the driver yet"
            )

    def _is_forgotten(self) -> bool:
        with self._lock:
            return (
                self._forgotten_at is not None and self._clock() - self._forgotten_at > FORGOTTEN_S
            )

    def _serve(self) -> None:
        self.finish()
        server = self._make_server(self._take_status)
        with self._lock:
            self._forgotten_at = None
            self.unready_reason = "not registered with the kubelet yet"
        try:
            server.start()
        except BaseException:
            server.stop(0)
            raise
        self._server, self._completed_calls = server, 0
        self._probed_at = self._answered_at = self._clock()
        self._reported.clear("serve")
        log.info("serving", extra={"socket": server.path})

    def _probe(self, server: DraServer) -> None:
        """Calls the server. Calls that have ended count as answers: while the API server is away, they may occupy all
        threads, and a restart would not help."""
        if self._clock() - self._probed_at < PROBE_S:
            return
        self._probed_at = self._clock()
        if server.completed_calls != self._completed_calls or server.answers():
            self._answered_at = self._clock()
        self._completed_calls = server.completed_calls

    def _take_status(self, problem: str) -> None:
        if problem:
            self.unready_reason = f"the kubelet rejected the registration of {DRIVER}: {problem}"
            log.warning(
                "the kubelet rejected the registration", extra={"driver": DRIVER, "error": problem}
            )
            return
        with self._lock:
            self._registered_by = file_version(self._kubelet) if self._kubelet is not None else None
            self._forgotten_at = None
            self.unready_reason = ""
        log.info("registered with the kubelet", extra={"driver": DRIVER})
        self._on_registered()


def _instances(card: Card) -> Iterable[str]:
    """Returns the names of the MIG instances that a card in MIG mode may have."""
    return mig_devices(card.uuid, card.profiles) if card.mig else ()


def _outcome(failure: str, claim: dra.Claim, work: Callable[[], None]) -> str:
    """Does *work* for a claim; returns the error for users, empty if there is none, and logs it with *failure*."""
    fields = {"claim": f"{claim.namespace}/{claim.name}"}
    try:
        work()
    except HamiError as error:
        log.warning(failure, extra=fields | {"error": error})
        return str(error)
    except Exception:
        log.exception(failure, extra=fields)
        return "internal error of the driver: see its log"
    return ""
