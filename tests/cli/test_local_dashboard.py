"""``kubectl hami dashboard``: whose dashboard is shown, and what a user is told who may see none."""

import json
import socket
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hami.cli import local_dashboard, main
from hami.cli.client import Client, connect_api
from hami.cli.kubectl import kubectl_main
from hami.cli.local_dashboard import may_see_all
from hami.dashboard.forwarder import SERVICE, Forwarder
from hami.errors import HamiError
from hami.kube.access import UserAccess
from hami.kube.reviews import Reviews
from hami.runtime.options import Address
from testing.cases import cases

CLIENT = Client(
    access=UserAccess(),
    request_timeout=1.0,
    namespace="team",
    all_namespaces=False,
    device_config_file="",
    device_config_map="hami/config",
    node_policy="binpack",
    device_policy="binpack",
    snapshot="",
    verbosity=0,
    connect=connect_api,
)
ADDRESS = Address("127.0.0.1", 0)
FORWARD = ("get", "services/proxy", "hami", SERVICE)


class Api:
    """An API server that allows *rights*: tuples of verb, resource, namespace and name."""

    def __init__(self, *rights, token=""):
        self.rights, self.token = rights, token

    def request(self, method, path, *, body):
        assert (method, path.rpartition("/")[2]) == ("POST", "selfsubjectaccessreviews")
        of = json.loads(body)["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (of["resource"], of["subresource"])))
        allowed = (of["verb"], resource, of["namespace"], of["name"]) in self.rights
        return json.dumps({"status": {"allowed": allowed}}).encode()

    def bearer_token(self):
        return self.token


ALL = [
    (verb, resource, "", "")
    for verb in ("list", "watch")
    for resource in ("nodes", "pods", "resourcequotas")
]


def test_everything_is_seen_with_all_rights_only():
    assert may_see_all(Reviews(Api(*ALL)))
    for missing in ALL:
        assert not may_see_all(Reviews(Api(*(right for right in ALL if right != missing))))


def forwarded(api, client=CLIENT):
    return local_dashboard._forwarded(client, api, Reviews(api), ADDRESS)


@cases(
    "api, client, text",
    (Api(), CLIENT, "get services/proxy of https:hami-dashboard:8445 in namespace hami"),
    (Api(FORWARD), CLIENT, "kubectl create token"),
    (
        Api(FORWARD, token="t"),
        replace(CLIENT, access=UserAccess(impersonated="alice")),
        "which --as has not",
    ),
)
def test_a_user_who_sees_none_is_told_what_to_do(api, client, text):
    with pytest.raises(HamiError, match="you may not list and watch nodes") as refused:
        forwarded(api, client)
    assert text in str(refused.value)


def test_the_dashboard_of_the_cluster_is_shown_with_a_token(capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(local_dashboard.webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    program = forwarded(Api(FORWARD, token="t"))
    assert isinstance(program, Forwarder)
    announced = local_dashboard._Announced(program, "/?namespace=team", opens_browser=True)
    announced.start()
    try:
        port = program.address[1]
        assert opened == [f"http://localhost:{port}/?namespace=team"]
        assert f"is at http://localhost:{port}/" in capsys.readouterr().out
        with socket.create_connection(("127.0.0.1", port)):
            pass
    finally:
        announced.stop()


@cases("environment, expected", ({}, False), ({"DISPLAY": ":0"}, True))
def test_no_browser_is_started_in_a_terminal(monkeypatch, environment, expected):
    monkeypatch.setattr(local_dashboard.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert local_dashboard.has_screen() is expected


def test_a_snapshot_has_no_dashboard():
    result = CliRunner().invoke(kubectl_main, ["dashboard", "--snapshot=x"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "not a snapshot" in result.stderr


@cases(
    "flags, text",
    (["--bind-address=:0"], ""),
    (["--bind-address=127.0.0.1:0"], "requires a --bind-address that is not a loopback address"),
)
def test_the_program_serves_the_api_group_where_viewers_have_tokens(flags, text):
    seen = []

    def serve(settings, store):
        seen.append(settings.inspect_bind_address)
        return 0

    result = CliRunner().invoke(
        main, ["dashboard", "--inspect-bind-address=:8446", *flags], obj=serve
    )
    assert text in result.output
    assert seen == ([] if text else [Address("", 8446)])
