"""Keeps the plugin registered with the kubelet: serves its socket, registers, and repeats both when necessary.

A kubelet that starts removes all sockets in its directory and creates its own. Both are detected by
polling, which is simpler than inotify: the directory itself may be replaced or may not exist yet. After a reboot, the
kubelet rejects the pods of the node if the plugin registers too late.
A kubelet that closes its connection to the plugin without a restart is registered with again at once. It does so when
an earlier plugin process ends: it closes the connection to the plugin that is registered by then, and starts no pod
with its devices until that plugin is back (Kubernetes v1.36, pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go,
runClient).
From 1.37 on it keeps both plugins instead, by the paths of their sockets, and a path may be registered only once: where
a second registration of it meets the first, which is still being made or ended, the kubelet forgets its client and not
the plugin (handler.go, deregisterClient; manager.go, PluginConnected). It then offers the devices of a plugin that has
ended, until it is restarted itself. So no socket is registered twice.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from pathlib import Path

from hami.devices.config import PluginConfig
from hami.errors import HamiError
from hami.node.sockets import Unanswered
from hami.plugin.server import PluginServer, register, socket_path
from hami.runtime.files import FileVersion, file_version
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import HUNG_S, Task

log = logging.getLogger(__name__)

INTERVAL_S = 0.2
CONNECT_TIMEOUT_S = 10.0
"""Seconds without a connection after which a kubelet that took the registration is assumed to have lost it."""
PROBE_S = 10.0
"""Seconds between two calls of the plugin's own server."""


class Step(enum.Enum):
    """The next step of the registration."""

    WAIT = "wait for the kubelet"
    SERVE = "serve"
    STAND_BY = "another plugin process serves"
    REGISTER = "register"
    DONE = "registered"


def next_step(
    *,
    kubelet: FileVersion | None,
    registered: FileVersion | None,
    served: FileVersion | None,
    found: FileVersion | None,
    offered: bool,
    disconnected: bool,
) -> Step:
    """Returns the next step.

    *kubelet*: the kubelet's socket. *registered*: the kubelet's socket at the last registration. *served*: the plugin's
    socket as this process created it. *found*: the plugin's socket that exists now. *offered*: a kubelet may know
    *served* already. *disconnected*: the kubelet closed its connection, or has not connected for `CONNECT_TIMEOUT_S`.
    A plugin whose socket was replaced does nothing, so that its successor can take over.
    """
    if kubelet is None:
        return Step.WAIT
    if served is None or found is None:
        return Step.SERVE
    if found != served:
        return Step.STAND_BY
    if kubelet == registered and not disconnected:
        return Step.DONE
    return Step.SERVE if offered else Step.REGISTER


class KubeletRegistration(Task):
    """Keeps one resource registered with the kubelet until `stop`, then removes its socket."""

    def __init__(
        self,
        config: PluginConfig,
        make_server: Callable[[Path, Callable[[], None]], PluginServer],
        *,
        clock: Callable[[], float],
        name: str = "kubelet",
        is_ready: Callable[[float], bool] = lambda seconds: True,
        on_registered: Callable[[], None] = lambda: None,
    ) -> None:
        """*make_server*: makes a server, not yet started, from its path and a listener for lost connections.
        *is_ready*: reports whether to begin, after at most so many seconds. *on_registered*: called after each
        registration.

        Raises: HamiError if the path is too long.
        """
        super().__init__(name)
        self._config = config
        self._path = socket_path(config)
        self._kubelet = Path(config.kubelet_socket)
        self._make_server = make_server
        self._clock = clock
        self._server: PluginServer | None = None
        self._registered: FileVersion | None = None
        self._offered = False
        self._connected_at = 0.0
        self._disconnected = False
        self._probed_at = self._answered_at = 0.0
        self._completed_calls = 0
        self._is_ready = is_ready
        self._on_registered = on_registered
        self._has_begun = False
        self._reported = OncePerKey()
        self.unready_reason = "not registered with the kubelet yet"
        """Why the kubelet cannot call this plugin; empty if it can. A replaced plugin reports ready."""

    def step(self) -> float:
        """Takes the next step, once it may begin."""
        if not self._has_begun and not self._is_ready(INTERVAL_S):
            return 0.0
        self._has_begun = True
        return 0.0 if self.try_tick() is Step.SERVE else INTERVAL_S

    def finish(self) -> None:
        """Stops serving."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def is_replaced(self) -> bool:
        """Reports whether another process serves the plugin's socket."""
        found = file_version(self._path)
        return self._server is not None and found is not None and found != self._server.identity

    def is_registered(self) -> bool:
        """Reports whether the kubelet calls this process."""
        return self._registered is not None and not self.is_replaced()

    def hung_reason(self) -> str:
        """Returns why the process must be restarted; empty if the plugin's own server answers, or if there is none."""
        silent = self._clock() - self._answered_at
        if self._server is None or silent <= HUNG_S:
            return ""
        return f"the plugin's own server has not answered at {self._path} for {silent:.0f} s"

    def tick(self) -> Step:
        """Takes the next step and returns it. Raises: HamiError, OSError."""
        kubelet, found = file_version(self._kubelet), file_version(self._path)
        self._probe(found)
        step = next_step(
            kubelet=kubelet,
            registered=self._registered,
            found=found,
            served=self._server.identity if self._server is not None else None,
            offered=self._offered,
            disconnected=self._is_disconnected(),
        )
        match step:
            case Step.WAIT:
                self._registered = None
                self.unready_reason = "the kubelet's socket is missing"
                self._warn("waiting for the kubelet: its socket is missing", socket=self._kubelet)
            case Step.SERVE:
                self._serve()
            case Step.STAND_BY:
                self._warn(
                    "another process has replaced the plugin's socket, standing by",
                    socket=self._path,
                )
            case Step.REGISTER:
                # the connection may be lost again before the kubelet answers
                self._disconnected = False
                server = self._server
                assert server is not None, "next_step registers only a plugin that serves"
                self._offered = True
                try:
                    register(
                        str(self._kubelet),
                        server.endpoint,
                        self._config.resource,
                        pre_start=server.requires_pre_start,
                    )
                except HamiError as error:
                    self._offered = isinstance(
                        error, Unanswered
                    )  # otherwise the kubelet does not know this socket
                    raise
                self._registered, self._connected_at = kubelet, self._clock()
                self.unready_reason = ""
                self._reported.clear(self._path)
                log.info(
                    "registered with the kubelet",
                    extra={"resource": self._config.resource, "endpoint": server.endpoint},
                )
                self._on_registered()
        return step

    def try_tick(self) -> Step | None:
        """Takes the next step and returns it; ``None`` if it failed, which is logged once."""
        try:
            return self.tick()
        except (HamiError, OSError) as error:
            self.unready_reason = f"the kubelet cannot be reached: {error}"
            self._warn("the kubelet cannot be reached", error=error)
        except Exception:
            self.unready_reason = "registration with the kubelet failed: see the log"
            log.exception("registration with the kubelet failed")
        return None

    def _serve(self) -> None:
        """Serves a new socket, and then no earlier one: a process that stands by would take over a path without any."""
        server: PluginServer = self._make_server(self._path, lambda: self._on_disconnect(server))
        try:
            server.start()
        except BaseException:
            server.stop(0)
            raise
        earlier, self._server = self._server, server
        self._registered, self._offered, self._disconnected = None, False, False
        self._probed_at = self._answered_at = self._clock()
        log.info("serving", extra={"socket": self._path})
        if earlier is not None:
            earlier.stop()

    def _probe(self, found: FileVersion | None) -> None:
        """Calls the plugin's own server at intervals, unless its socket is gone, or that of another process.

        Calls of the kubelet that have ended count as answers: while the API server is away, they may occupy all
        threads, and a restart would not help.
        """
        server = self._server
        if server is None or self._clock() - self._probed_at < PROBE_S:
            return
        self._probed_at = self._clock()
        if (
            found != server.identity
            or server.completed_calls != self._completed_calls
            or server.answers()
        ):
            self._answered_at = self._clock()
        self._completed_calls = server.completed_calls

    def _on_disconnect(self, server: PluginServer) -> None:
        if server is self._server:
            self._disconnected = True
            self.wake()

    def _is_disconnected(self) -> bool:
        if self._server is not None and self._server.streams:
            self._connected_at, self._disconnected = self._clock(), False
        timed_out = self._clock() - self._connected_at > CONNECT_TIMEOUT_S
        return self._registered is not None and (self._disconnected or timed_out)

    def _warn(self, message: str, **fields: object) -> None:
        """Logs a warning, once until there is another one or the plugin is registered."""
        if self._reported.is_new(self._path, f"{message} {fields}"):
            log.warning(message, extra=fields)
