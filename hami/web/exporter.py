"""Serves ``GET /metrics`` on an address of its own. The metrics themselves come from elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from hami.web.exposition import Family, render
from hami.web.pages import Page, PageServer, RequestTimeouts

__all__ = ["Exporter"]

PAUSE_SECONDS = 0.0002  # between slices, so that other threads can run


class Exporter:
    """Serves the gauges of *families*, then those of *registry*, in daemon threads from `start` to `stop`."""

    def __init__(self, registry: CollectorRegistry, bind: tuple[str, int],
                 families: Callable[[], Iterable[Family]] = tuple, *, timeouts: RequestTimeouts = RequestTimeouts(),
                 pause: Callable[[float], object] = time.sleep) -> None:
        """*bind*: host and port; an empty host means all addresses. *families* is called for each page, *pause* between
        its slices."""
        self._registry = registry
        self._families = families
        self._pause = pause
        self._server = PageServer("metrics", bind, {"/metrics": self._page}, flag="--metrics-bind-address",
                                  timeouts=timeouts)

    def start(self) -> None:
        """Start to serve. Raises: HamiError when the address cannot be bound."""
        self._server.start()

    def stop(self) -> None:
        """Stop listening. Pages being served complete in the background."""
        self._server.stop()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that the server listens on; never port 0."""
        return self._server.address

    def _page(self, accept: str) -> Page:
        """Returns the page in the format that *accept*, a header of the request, asks for."""
        encode, content_type = _encoder(accept)
        cluster, registry = render(self._families()), encode(self._registry)
        first = next(cluster, "")  # an error here is reported before the response begins
        return Page(self._slices(chain((first,), cluster), registry), content_type)

    def _slices(self, cluster: Iterable[str], registry: bytes) -> Iterator[bytes]:
        for text in cluster:
            yield text.encode()
            self._pause(PAUSE_SECONDS)
        yield registry  # last: in OpenMetrics it ends with the page's end marker


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # the version in the header is not a number
        return choose_encoder("")
