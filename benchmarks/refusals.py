"""Stands between kube-scheduler and the extender, as a process of its own. With ``--resolvable``, it says of each node
that a filter refuses that the end of other pods could help there, as extenders do that do not know better.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JSON = {"Content-Type": "application/json"}


class Handler(BaseHTTPRequestHandler):
    """Passes requests on, to the extender at *port*."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def __init__(self, *args: Any, port: int, resolvable: bool) -> None:
        self.port, self.resolvable = port, resolvable
        super().__init__(*args)

    def do_POST(self) -> None:
        extender = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        extender.request(
            "POST", self.path, self.rfile.read(int(self.headers["Content-Length"])), JSON
        )
        answer = extender.getresponse()
        body = answer.read()
        extender.close()
        if self.resolvable and self.path == "/filter":
            body = without_unresolvable(body)
        self.send_response(answer.status)
        for key, text in (JSON | {"Content-Length": str(len(body))}).items():
            self.send_header(key, text)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


def without_unresolvable(body: bytes) -> bytes:
    result = json.loads(body)
    if unresolvable := result["FailedAndUnresolvableNodes"]:
        result |= {
            "FailedNodes": (result["FailedNodes"] or {}) | unresolvable,
            "FailedAndUnresolvableNodes": None,
        }
    return json.dumps(result).encode()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refusals")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--extender-port", type=int, required=True)
    parser.add_argument("--resolvable", action="store_true")
    arguments = parser.parse_args()
    handler = functools.partial(
        Handler, port=arguments.extender_port, resolvable=arguments.resolvable
    )
    with Server(("127.0.0.1", arguments.port), handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
