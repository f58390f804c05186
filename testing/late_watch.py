"""A proxy before the API server that can hold back what the watch of pods delivers, as if that were late, and reads of
single pods. All else passes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import urllib3
import yaml

from hami.codec.documents import parse_own_yaml
from testing.kube import Kube

__all__ = ["LateWatch"]

HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class LateWatch:
    """Use ``LateWatch.before(kube)``."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.is_on_time = threading.Event()
        self.is_on_time.set()
        self.is_read = threading.Event()
        self.is_read.set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True

    @classmethod
    @contextlib.contextmanager
    def before(cls, kube: Kube) -> Iterator[LateWatch]:
        """Yields a running proxy before the API server of *kube*."""
        proxy = cls(kube)
        thread = threading.Thread(target=proxy.server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.is_on_time.set()
            proxy.is_read.set()
            proxy.server.shutdown()
            thread.join()
            proxy.server.server_close()

    def kubeconfig(self, source: Path, target: Path) -> Path:
        """Writes the configuration *source* with the address of the proxy to *target*."""
        config = parse_own_yaml(source.read_text())
        for entry in config["clusters"]:
            entry["cluster"] = {"server": f"http://127.0.0.1:{self.server.server_port}"}
        target.touch(mode=0o600)
        target.write_text(yaml.safe_dump(config))
        return target

    def delayed(self) -> contextlib.AbstractContextManager[None]:
        """Holds back the watch of pods meanwhile."""
        return _cleared(self.is_on_time)

    def unread(self) -> contextlib.AbstractContextManager[None]:
        """Holds back reads of single pods meanwhile."""
        return _cleared(self.is_read)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {
                    name: text
                    for name, text in self.headers.items()
                    if name.lower() not in HOP_BY_HOP
                }
                is_watch = self.path.startswith("/api/v1/pods?") and "watch=true" in self.path
                if self.command == "GET" and "/pods/" in self.path:
                    proxy.is_read.wait()
                with contextlib.suppress(OSError, urllib3.exceptions.HTTPError):
                    answer = proxy.kube.pass_on(self.command, self.path, body, headers)
                    with contextlib.closing(answer):
                        self.send_response(answer.status)
                        self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
                        self.send_header("Transfer-Encoding", "chunked")
                        self.end_headers()
                        for chunk in answer.stream(65536, decode_content=True):
                            if is_watch:
                                proxy.is_on_time.wait()
                            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                        self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

            def log_message(self, format: str, *args: object) -> None:
                """The log of the scheduler says what matters."""

        return Handler


@contextlib.contextmanager
def _cleared(event: threading.Event) -> Iterator[None]:
    event.clear()
    try:
        yield
    finally:
        event.set()
