"""Asks a Prometheus for metrics over a range of time. Nothing in its answer is trusted.

An answer has a limit on its size and its time; who reads it takes only the numbers that can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from hami.codec.documents import decode
from hami.errors import HamiError

ANSWER_LIMIT = 1 << 20  # bytes
TIMEOUT_S = 5.0


class NoMetrics(HamiError):
    """Prometheus does not answer, or its answer cannot be used."""


class RangeSeries(msgspec.Struct):
    """A series. *metric*: its labels. *values*: of moments, in Unix seconds, as texts."""

    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


class _RangeData(msgspec.Struct):
    result: list[RangeSeries] = []


class _RangeAnswer(msgspec.Struct):
    data: _RangeData


_ANSWER = msgspec.json.Decoder(_RangeAnswer)

Fetch = Callable[[str, float, float, int], bytes]
"""Returns the answer to a query over a range of Unix seconds, with a value each so many seconds. Raises: NoMetrics."""


def check_url(flag: str, url: str) -> None:
    """Raises: HamiError if *url*, the value of *flag*, cannot be that of a Prometheus."""
    if not url.startswith(("http://", "https://")):
        raise HamiError(f"{flag}={url}: expected a URL such as http://prometheus:9090")


def make_fetch(url: str, *, timeout_s: float = TIMEOUT_S, limit: int = ANSWER_LIMIT) -> Fetch:
    """Returns what asks the Prometheus at *url*. *timeout_s*, *limit*: seconds and bytes of an answer."""
    pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(total=timeout_s))

    def fetch(query: str, start: float, end: float, step_s: int) -> bytes:
        fields = {"query": query, "start": str(start), "end": str(end), "step": str(step_s)}
        address = f"{url.rstrip('/')}/api/v1/query_range"
        try:
            answer = pool.request(
                "GET", address, fields=fields, preload_content=False, redirect=False
            )
            try:
                body = answer.read(limit + 1)
            finally:
                answer.close()
        except (HTTPError, OSError) as error:
            raise NoMetrics(f"Prometheus does not answer: {type(error).__name__}") from error
        if answer.status != 200 or len(body) > limit:
            raise NoMetrics(f"Prometheus answers with status {answer.status}, {len(body)} bytes")
        return body

    return fetch


def parse_series(body: bytes) -> list[RangeSeries]:
    """Returns the series of an answer. Raises: MalformedInput."""
    return decode("answer of Prometheus", _ANSWER, body).data.result


def parse_number(text: str) -> float:
    """Returns the number that *text* is; not a number if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
