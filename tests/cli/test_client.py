"""The user's access: each request is shown where the user asks for it."""

import re

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.cli.client import shown_requests
from hami.errors import ClusterError, NotFound
from testing.cases import cases
from testing.fake_api import FakeApi, node
from testing.nodes import gpu

SERVER = "https://10.0.0.1:6443"


def answer(method, path, **options):
    if path == "/missing":
        raise NotFound("GET /missing: 404", 404)
    if path == "/silent":
        raise ClusterError("GET /silent: timed out")
    return b"{}"


@cases(
    "path, options, shown",
    ("/api/v1/nodes", {}, "GET https://10.0.0.1:6443/api/v1/nodes 200 in "),
    ("/x", {"query": {"limit": "5"}}, "GET https://10.0.0.1:6443/x?limit=5 200 in "),
    ("/missing", {}, "GET https://10.0.0.1:6443/missing 404 in "),
    ("/silent", {}, "GET https://10.0.0.1:6443/silent no answer in "),
    ("/\x1b[2J", {}, "GET https://10.0.0.1:6443/"),
)
def test_a_request_is_shown_with_its_status_and_time(path, options, shown, capsys):
    try:
        shown_requests(answer, SERVER)("GET", path, **options)
    except ClusterError:
        pass
    line = capsys.readouterr().err
    assert line.startswith(shown)
    assert re.search(r"in \d+ ms\n\Z", line)
    assert "\x1b" not in line


@pytest.mark.parametrize("option", ["-v=6", "-v6", "--v=6"])
@pytest.mark.parametrize("command", [["top"], ["explain", "a", "-n", "default"]])
def test_the_verbosity_is_given_as_to_kubectl(option, command):
    seen = []

    def connect(client):
        seen.append(client.verbosity)
        return FakeApi([node("n1", gpu())]).request

    CliRunner().invoke(main, [*command, option], obj=connect)
    assert set(seen) == {6}


def test_a_verbose_explanation_is_not_the_verbosity():
    seen = []

    def connect(client):
        seen.append(client.verbosity)
        return FakeApi([node("n1", gpu())]).request

    CliRunner().invoke(main, ["explain", "a", "-v"], obj=connect)
    assert set(seen) == {0}
