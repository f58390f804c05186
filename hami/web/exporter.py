"""The metrics page, GET /metrics on an address of its own. This module does not know which metrics there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from hami.web.exposition import Family, render
from hami.web.pages import Page, PageServer, RequestTimeouts

__all__ = ["Exporter"]

REST = 0.0002  # seconds between slices in which others may compute


class Exporter:
    """Serves *registry*, and before it the gauges of *families*, in daemon threads from `start` to `stop`."""

    def __init__(self, registry: CollectorRegistry, bind: tuple[str, int],
                 families: Callable[[], Iterable[Family]] = tuple, *, timeouts: RequestTimeouts = RequestTimeouts(),
                 pause: Callable[[float], object] = time.sleep) -> None:
        """*bind*: host and port; an empty host listens on all addresses. *families* is called for each page.

        *pause* is called between slices. Nothing listens yet.
        """
        self._registry = registry
        self._families = families
        self._pause = pause
        self._server = PageServer("metrics", bind, {"/metrics": self._page}, flag="--metrics-bind-address",
                                  timeouts=timeouts)

    def start(self) -> None:
        """Listen and serve. Raises: HamiError when the address cannot be listened on."""
        self._server.start()

    def stop(self) -> None:
        """Listen no more; pages under way end by themselves, or with the process."""
        self._server.stop()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are listened on; the port is a real one also where 0 was asked for."""
        return self._server.address

    def _page(self, accept: str) -> Page:
        """The page for a client that accepts *accept*."""
        encode, content_type = _encoder(accept)
        ours, theirs = render(self._families()), encode(self._registry)
        first = next(ours, "")  # what fails at all fails before the answer has begun
        return Page(self._slices(chain((first,), ours), theirs), content_type)

    def _slices(self, ours: Iterable[str], theirs: bytes) -> Iterator[bytes]:
        for text in ours:
            yield text.encode()
            self._pause(REST)
        yield theirs  # last: in OpenMetrics it ends with the mark that ends the page


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        return choose_encoder("")
