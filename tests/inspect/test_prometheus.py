"""The client of Prometheus: requests, statuses, bounds."""

import pytest

from hami.inspect.prometheus import NoMetrics, make_fetch
from testing.cases import cases
from testing.prometheus_server import prometheus


def test_prometheus_is_asked_for_a_range():
    with prometheus(200, b"{}") as (server, url):
        assert make_fetch(url)("up", 1.0, 2.0, 60) == b"{}"
    (path,) = server.asked
    assert path.startswith("/prefix/api/v1/query_range?query=up&start=1.0&end=2.0&step=60")


@cases("status, body", (500, b"{}"), (302, b"{}"), (200, b"x" * 2000))
def test_an_answer_has_a_status_and_a_size(status, body):
    with prometheus(status, body) as (server, url):
        with pytest.raises(NoMetrics):
            make_fetch(url, limit=1000)("up", 1.0, 2.0, 60)
        assert len(server.asked) == 1


def test_no_answer_is_an_error():
    with pytest.raises(NoMetrics, match="does not answer"):
        make_fetch("http://127.0.0.1:1")("up", 1.0, 2.0, 60)
