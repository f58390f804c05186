"""Serves ``GET /metrics`` on an address of its own. The metrics themselves come from elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from hami.web.exposition import Family, render
from hami.web.pages import Make, Page, PageServer

PAUSE_S = 0.0002  # between slices, so that other threads can run


class Exporter(PageServer):
    """Serves the gauges of *families*, then those of *registry*."""

    def __init__(
        self,
        registry: CollectorRegistry,
        bind: tuple[str, int],
        families: Callable[[], Iterable[Family]] = tuple,
        *,
        pages: Mapping[str, Make] = MappingProxyType({}),
        flag: str = "--metrics-bind-address",
        timeout: float = 30.0,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """*bind*, *timeout*: as for PageServer. *families* is called for each page, *pause* between its slices.
        *pages*: others at the same address, by path. *flag*: names the address in errors."""
        super().__init__(
            "metrics",
            bind,
            {"/metrics": self._page, **pages},
            flag=flag,
            timeout=timeout,
        )
        self._registry = registry
        self._families = families
        self._pause = pause

    def _page(self, accept: str) -> Page:
        """Returns the page in the format that *accept*, a header of the request, asks for."""
        encode, content_type = _encoder(accept)
        cluster, registry = render(self._families()), encode(self._registry)
        first = next(cluster, "")  # an error here is reported before the response begins
        return Page(self._slices(chain((first,), cluster), registry), content_type)

    def _slices(self, cluster: Iterable[str], registry: bytes) -> Iterator[bytes]:
        for text in cluster:
            yield text.encode()
            self._pause(PAUSE_S)
        yield registry  # last: in OpenMetrics it ends with the page's end marker


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # the version in the header is not a number
        return choose_encoder("")
