"""Keeps the plugin known to the kubelet: serves, registers, and does both again when the kubelet has forgotten.

A kubelet that starts removes all sockets in its directory and makes its own anew. Both are seen by looking, once a
second: cheaper to get right than inotify, which says nothing of a directory that is itself replaced, or comes later.
A kubelet that lets go of the plugin while both live is registered with again at once. It does so when a predecessor
ends: what it then closes is the connection to whoever is registered by then, and until that one is back it starts no
pod with our devices (Kubernetes v1.36, pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, runClient).
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from hami.errors import HamiError
from hami.devices.config import PluginConfig
from hami.plugin.server import PluginServer, Stamp, register, socket_path, stamp_of

__all__ = ["DEAF_S", "KubeletLink", "Step", "next_step"]

log = logging.getLogger(__name__)

TICK_S = 1.0
NOT_YET = "not registered with the kubelet yet"
DEAF_S = 10.0
"""Seconds without a listener after which a kubelet that took the registration is taken to have lost it."""


class Step(enum.Enum):
    """What is to be done next."""

    WAIT = "wait for the kubelet"
    SERVE = "serve"
    STAND_BY = "another one serves"
    REGISTER = "register"
    REST = "rest"


def next_step(*, kubelet: Stamp | None, registered: Stamp | None, placed: Stamp | None, found: Stamp | None,
              deaf: bool) -> Step:
    """What is to be done when the kubelet's socket is *kubelet*, and the plugin is *registered* with that one.

    *placed*: the plugin's socket as it was made; *found*: what stands there now. *deaf*: the kubelet has ceased to
    listen, or has not begun to for `DEAF_S`. A plugin whose place was taken leaves it alone: that is how its successor
    comes in.
    """
    if kubelet is None:
        return Step.WAIT
    if placed is None or found is None:
        return Step.SERVE
    if found != placed:
        return Step.STAND_BY
    return Step.REGISTER if kubelet != registered or deaf else Step.REST


class KubeletLink:
    """The plugin's side of its acquaintance with the kubelet; `run` in a thread of its own."""

    def __init__(self, config: PluginConfig, make_server: Callable[[Path], PluginServer], *,
                 clock: Callable[[], float]) -> None:
        """*make_server* makes a server for a path, not yet started. Raises: HamiError for a path that is too long."""
        self._config = config
        self._path = socket_path(config)
        self._kubelet = Path(config.kubelet_socket)
        self._make_server = make_server
        self._clock = clock
        self._server: PluginServer | None = None
        self._registered: Stamp | None = None
        self._heard = 0.0
        self._silent = False
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._said = ""
        self.lacks = NOT_YET
        """What keeps the kubelet from asking this plugin; empty when nothing does."""

    def run(self) -> None:
        """Do what is to be done, until `stop`; then the socket is removed."""
        try:
            while not self._stopped.is_set():
                self._woken.clear()
                if self._stopped.is_set() or self.attempt() is Step.SERVE:
                    continue
                self._woken.wait(TICK_S)
        finally:
            self._close()

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()
        self._woken.set()

    def is_replaced(self) -> bool:
        """Another process serves in this one's place."""
        found = stamp_of(self._path)
        return self._server is not None and found is not None and found != self._server.stamp

    def tick(self) -> Step:
        """Do the one thing that is to be done now; which it was. Raises: HamiError, OSError."""
        kubelet = stamp_of(self._kubelet)
        step = next_step(kubelet=kubelet, registered=self._registered, found=stamp_of(self._path),
                         placed=self._server.stamp if self._server is not None else None, deaf=self._is_deaf())
        match step:
            case Step.WAIT:
                self._registered = None
                self.lacks = "the kubelet's socket is missing"
                self._say("waiting for the kubelet: its socket is missing", socket=self._kubelet)
            case Step.SERVE:
                self._serve()
            case Step.STAND_BY:
                self._say("another process has taken the plugin's socket; standing by", socket=self._path)
            case Step.REGISTER:
                self._register()
                self._registered, self._heard = kubelet, self._clock()
                self._said = self.lacks = ""
                log.info("registered with the kubelet",
                         extra={"resource": self._config.resource, "endpoint": self._path.name})
        return step

    def attempt(self) -> Step | None:
        """The same; what goes wrong is said, once, and ``None`` is returned."""
        try:
            return self.tick()
        except (HamiError, OSError) as error:
            self.lacks = f"the kubelet cannot be reached: {error}"
            self._say("the kubelet cannot be reached", error=error)
        except Exception:
            self.lacks = "the link to the kubelet failed: the log says why"
            log.exception("the link to the kubelet failed")
        return None

    def _serve(self) -> None:
        self._close()
        server = self._make_server(self._path)
        server.on_silence = self._lost
        try:
            server.start()
        except BaseException:
            server.stop(0)
            raise
        self._server, self._registered, self._silent = server, None, False
        log.info("serving", extra={"socket": self._path})

    def _register(self) -> None:
        self._silent = False  # from now on it can be lost again, before the answer is here
        try:
            register(str(self._kubelet), self._path.name, self._config.resource)
        except BaseException:
            self._silent = True
            raise

    def _close(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _lost(self) -> None:
        """The kubelet does not listen any more."""
        self._silent = True
        self._woken.set()

    def _is_deaf(self) -> bool:
        if self._server is not None and self._server.streams:
            self._heard, self._silent = self._clock(), False
        return self._registered is not None and (self._silent or self._clock() - self._heard > DEAF_S)

    def _say(self, message: str, **fields: object) -> None:
        """A warning, once until something else is said or a registration succeeds."""
        if (said := f"{message} {fields}") != self._said:
            self._said = said
            log.warning(message, extra=fields)
