"""Asks the monitor of a node for its metrics page. The answer has a limit on its size and on its time as a whole."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable
from datetime import datetime
from http.client import HTTPException, HTTPResponse
from typing import cast

from hami.codec.pods import parse_observed_pod
from hami.codec.times import render_time
from hami.dashboard.caches import Answers, Poller, PollLimits
from hami.dashboard.use import Uses, parse_use
from hami.errors import HamiError
from hami.kube.api import Api
from hami.kube.pages import parse_page
from hami.runtime.options import Address
from hami.web.connections import Connection

PAGE_LIMIT = 4 << 20  # bytes of an answer
TIMEOUT_S = 3.0  # for an answer, from the connection to its last byte
USE_LIMITS = PollLimits(interval=15.0, shown=60.0, viewed=90.0, values=512)
ADDRESS_S = 60.0  # for which the address of a monitor is believed

_REQUEST = (
    "GET /metrics HTTP/1.1\r\nHost: {host}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
)


class NoMonitor(HamiError):
    """The node has no monitor, or its answer cannot be used."""


class Monitors:
    """The monitors of the nodes: pods with the labels *selector* in *namespace*, which serve *port*. Without a selector
    there are none."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        selector: str,
        port: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[str, int], str] | None = None,
    ) -> None:
        """*read*: returns the metrics page of a host; raises NoMonitor."""
        self._api = api
        self._namespace = namespace
        self._selector = selector
        self._port = port
        self._read = read or read_page
        self._addresses = Answers[str](clock, accepted_s=ADDRESS_S)

    def page(self, node: str) -> str:
        """Returns the metrics page of the monitor of *node*. Raises: NoMonitor, ClusterError, MalformedInput."""
        address = self._addresses.get(node, lambda: self._find(node))
        try:
            return self._read(address, self._port)
        except NoMonitor:
            self._addresses.forget(node)
            raise

    def _find(self, node: str) -> str:
        if not self._selector:
            raise NoMonitor("no monitor is polled")
        query = {
            "labelSelector": self._selector,
            "fieldSelector": f"spec.nodeName={node}",
            "resourceVersion": "0",
        }
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        items = parse_page("pods of the monitor", self._api.request("GET", path, query=query)).items
        pods = map(parse_observed_pod, items or ())
        ready = [
            pod.ip
            for pod in pods
            if (state := pod.condition("Ready")) is not None and state.status == "True"
        ]
        address = next(filter(is_host, ready), "")
        if not address:
            raise NoMonitor(f"node {node} has no monitor that is ready")
        return address


def is_host(address: str) -> bool:
    """Reports whether *address* can be that of a pod. What a kubelet says must not lead to this pod or its node."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.scope_id is not None:  # any text
            return False
        parsed = parsed.ipv4_mapped or parsed
    return not (
        parsed.is_loopback or parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified
    )


def read_page(host: str, port: int, *, timeout: float = TIMEOUT_S, limit: int = PAGE_LIMIT) -> str:
    """Returns the page ``/metrics`` of *host*. Raises: NoMonitor if there is no answer within the bounds."""
    until = time.monotonic() + timeout
    try:
        client = socket.create_connection((host, port), timeout=timeout)
        with Connection(
            client, {}, read_until=lambda: until, write_until=lambda: until
        ) as connection:
            connection.sendall(_REQUEST.format(host=Address(host, port)).encode())
            with HTTPResponse(cast(socket.socket, connection), method="GET") as answer:
                answer.begin()
                page = answer.read(limit + 1)
    except (OSError, HTTPException, ValueError) as error:
        raise NoMonitor(f"the monitor at {host} does not answer: {type(error).__name__}") from error
    if (
        answer.status != 200 or len(page) > limit or answer.length
    ):  # the last: bytes that are missing
        raise NoMonitor(
            f"the monitor at {host} answers with status {answer.status}, or not with a page of at most "
            f"{limit} bytes"
        )
    return page.decode(errors="replace")


def use_poller(
    page: Callable[[str], str],
    *,
    clock: Callable[[], float],
    now: Callable[[], datetime],
    give_way: Callable[[float], None] = lambda seconds: None,
) -> Poller[str, Uses]:
    """Returns the use of the cards of each node that is viewed. *page*: returns the metrics page of a node's monitor,
    as `Monitors.page`. *give_way*: as of the poller."""
    return Poller(
        "use of cards",
        page,
        USE_LIMITS,
        clock=clock,
        parse=lambda text: parse_use(text, render_time(now())),
        give_way=give_way,
    )
