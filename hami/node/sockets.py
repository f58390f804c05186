"""gRPC on unix sockets in the kubelet's directories: servers of ours, and calls of them.

Each server has a socket of its own, so that a successor can serve before its predecessor ends.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from hami.errors import HamiError
from hami.runtime.files import FileVersion, file_version

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 2.0
_PATH_LIMIT = 107  # bytes in the path of a unix socket, by the kernel's limit

Handlers = dict[str, dict[str, Any]]
"""By service, the handler of each method, as `unary` or gRPC makes them."""


class Unanswered(HamiError):
    """There was no answer in time: the other side may have done what was asked, or may do it yet."""


class SocketServer:
    """Serves a socket of its own beside *path*: `start` once, `stop` once. gRPC's threads call the handlers."""

    def __init__(self, path: Path, threads: int, *, name: str) -> None:
        """*threads*: the number of calls at a time, streams included. *name*: of the threads."""
        self.path = own_path(path)
        """The path of the socket."""
        self.identity: FileVersion | None = None
        """The identity of the socket; ``None`` before `start`."""
        self.completed_calls = 0
        """The number of calls that have ended, with or without success, except streams."""
        self._beside = path
        self._lock = threading.Lock()  # guards changes of completed_calls; never held across I/O
        self._threads = ThreadPoolExecutor(threads, name)
        self._server: Any = grpc.server(self._threads)

    def start(self, handlers: Handlers) -> None:
        """Listens, and removes sockets that servers of killed processes have left. Raises: HamiError, OSError."""
        remove_dead_sockets(self._beside)
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(service, methods)
                for service, methods in handlers.items()
            ]
        )
        try:
            self._server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise HamiError(f"{self.path}: cannot listen: {error}") from error
        self._server.start()
        self.identity = file_version(self.path)

    def stop(self, grace: float) -> None:
        """Removes the socket, then lets calls in progress finish for *grace* seconds."""
        self.path.unlink(missing_ok=True)
        self._server.stop(grace).wait()
        self._threads.shutdown(wait=False)

    def unary(self, answer: Callable[..., Any], request: Any) -> Any:
        """Returns the handler of a method whose requests are of the type *request*. Its calls are counted."""

        def counted(message: Any, context: Any) -> Any:
            try:
                return answer(message, context)
            finally:
                with self._lock:
                    self.completed_calls += 1

        return grpc.unary_unary_rpc_method_handler(counted, request.FromString, serialize)


def stream(answers: Callable[..., Any], request: Any) -> Any:
    """Returns the handler of a method that answers with a stream."""
    return grpc.unary_stream_rpc_method_handler(answers, request.FromString, serialize)


def call(path: str | Path, method: str, request: Any, timeout: float) -> None:
    """Makes one call, over a connection of its own. Raises: Unanswered, HamiError."""
    with grpc.insecure_channel(
        f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        try:
            channel.unary_unary(method)(serialize(request), timeout=timeout)
        except grpc.RpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise (Unanswered if late else HamiError)(
                f"{error.code().name}: {error.details()}"
            ) from None


def answers(path: str | Path, method: str, request: Any, timeout: float, *, whose: str) -> bool:
    """Reports whether a new client of the socket *path*, that of *whose* own server, gets an answer within *timeout*
    seconds."""
    try:
        call(path, method, request, timeout)
    except HamiError as error:
        log.warning(
            f"the {whose}'s own server does not answer", extra={"socket": path, "error": error}
        )
        return False
    return True


def serialize(message: Any) -> bytes:
    """Returns the bytes of a message."""
    data: bytes = message.SerializeToString()
    return data


def own_path(path: Path) -> Path:
    """Returns a path beside *path* that no other server uses. Raises: HamiError if it is too long for a socket."""
    own = path.with_stem(f"{path.stem}-{secrets.token_hex(4)}")
    if len(os.fsencode(own)) > _PATH_LIMIT:
        raise HamiError(f"{path}: too long for a unix socket")
    return own


def remove_dead_sockets(path: Path) -> None:
    """Removes sockets beside *path* that servers of killed processes have left."""
    own = re.compile(rf"{re.escape(path.stem)}-[0-9a-f]{{8}}(\.new|{re.escape(path.suffix)})")
    for entry in path.parent.iterdir():
        if own.fullmatch(entry.name):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(PROBE_TIMEOUT_S)
                try:
                    client.connect(str(entry))
                except ConnectionRefusedError:
                    entry.unlink(missing_ok=True)
                except OSError as error:
                    log.debug("socket kept", extra={"socket": entry, "error": error})
