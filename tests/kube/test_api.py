"""Calls and watches over real sockets, against a small HTTP server in a thread."""

import base64
import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kubernetes.client import Configuration
from urllib3.connection import HTTPConnection

from hami.errors import ClusterError, Conflict, Gone, NotFound
from hami.kube.access import UserAccess
from hami.kube.api import MERGE_PATCH, Api, is_disconnect, is_unsent, uses_pod_account
from hami.kube.reflector import Reflector, WatchedResource
from testing.cases import cases
from testing.scripted_source import bookmark, event, obj, page

RESET = object()
"""In a body: close the connection here, within the chunked answer."""


class Server(ThreadingHTTPServer):
    """Answers each request with the next of ``answers``: (status, body) or (status, chunks of a watch), and headers."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.requests, self.over = [], [], threading.Event()
        self.all_headers = []  # those that are repeated, too

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):  # clients discard connections
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.server.requests.append(
            (self.command, self.path, dict(self.headers), self.rfile.read(length))
        )
        self.server.all_headers.append(self.headers.items())
        status, body, *headers = self.server.answers.pop(0)
        self.send_response(status)
        for header in headers:
            self.send_header(*header)
        if isinstance(body, bytes):
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.watch(body)

    def watch(self, chunks):
        for chunk in chunks:
            if chunk is RESET:
                self.close_connection = True
                return
            if callable(chunk):
                chunk()
            else:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_PATCH = answer

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join(10)
    server.server_close()


def api(server, **options):
    return Api(Configuration(host=f"http://127.0.0.1:{server.server_port}"), **options)


@pytest.mark.parametrize("prefix", ["", "/", "/k8s/clusters/c-1", "/k8s/clusters/c-1/"])
def test_an_api_server_may_live_below_a_path(server, prefix):
    server.answers = [(200, b"1"), (200, [b"{}\n"])]
    made = Api(Configuration(host=f"http://127.0.0.1:{server.server_port}{prefix}"))
    made.request("GET", "/api", query={"a": "b c"})
    with made.stream("/api", {}, read_timeout=5) as lines:
        assert list(lines) == [b"{}"]
    assert [path for _, path, *_ in server.requests] == [
        prefix.rstrip("/") + "/api?a=b+c",
        prefix.rstrip("/") + "/api",
    ]


def test_a_proxy_gets_the_whole_address(server):
    server.answers = [(200, b"1")]
    configuration = Configuration(host="http://api.invalid/below")
    configuration.proxy = f"http://127.0.0.1:{server.server_port}"
    assert Api(configuration).request("GET", "/api") == b"1"
    assert server.requests[0][1] == "http://api.invalid/below/api"


def test_a_redirect_is_not_followed(server):
    server.answers = [(302, b"elsewhere")]
    assert api(server).request("GET", "/api") == b"elsewhere"


def watch(server, *chunks, read_timeout=10.0):
    server.answers.append((200, chunks))
    return api(server).stream("/w", {"watch": "true"}, read_timeout=read_timeout)


def test_bytes_in_bytes_out(server):
    server.answers.append((201, b'{"made": true}'))
    answer = api(server).request(
        "PATCH", "/p", query={"a": "b c"}, body=b"{}", content_type=MERGE_PATCH
    )
    assert answer == b'{"made": true}'
    [(method, path, headers, body)] = server.requests
    assert (method, path, headers["Content-Type"], body) == (
        "PATCH",
        "/p?a=b+c",
        MERGE_PATCH,
        b"{}",
    )


@cases(
    "status, kind",
    (400, ClusterError),
    (403, ClusterError),
    (404, NotFound),
    (409, Conflict),
    (410, Gone),
    (422, ClusterError),
    (503, ClusterError),
)
def test_a_refusal_says_what_the_status_says(server, status, kind):
    server.answers.append((status, json.dumps({"kind": "Status", "message": "because"}).encode()))
    with pytest.raises(ClusterError, match=f"GET /x: {status}: because") as caught:
        api(server).request("GET", "/x")
    assert type(caught.value) is kind
    assert caught.value.status == status


@cases(
    "status, header, seconds",
    (429, "7", 7.0),
    (429, None, 1.0),
    (429, "", 1.0),
    (429, "-7", 1.0),
    (429, "Wed, 21 Oct 2026 07:28:00 GMT", 1.0),
    (429, "86400", 30.0),
    (503, "2", 2.0),
    (503, None, 0.0),
    (409, None, 0.0),
)
def test_a_server_says_how_long_to_wait(server, status, header, seconds):
    server.answers.append(
        (status, b"{}", *([("Retry-After", header)] if header is not None else []))
    )
    with pytest.raises(ClusterError) as caught:
        api(server).request("GET", "/x")
    assert caught.value.retry_after_s == seconds


def silent_server(timeout):
    """Returns the error of a write to a server that does not answer, and what the server has received."""
    received = b""
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ClusterError) as caught:
        client = Api(Configuration(host=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        try:
            client.request("POST", "/x", body=b"{}", timeout=timeout)
        finally:
            connection, _ = listener.accept()
            with connection, pytest.raises(ConnectionResetError):
                while part := connection.recv(65536):
                    received += part
    return caught.value, received


def test_a_write_that_gets_its_connection_too_late_is_not_sent(monkeypatch):
    """Name lookup, several addresses and the TLS handshake can take longer than the timeout."""
    connect = HTTPConnection.connect
    monkeypatch.setattr(HTTPConnection, "connect", lambda self: (time.sleep(0.06), connect(self)))
    error, received = silent_server(timeout=0.05)
    assert is_unsent(error)
    assert b"{}" not in received


def test_a_write_that_timed_out_is_discarded_by_the_kernel_too():
    """Otherwise it would be sent again until the network is back, and arrive then: hence the reset."""
    error, received = silent_server(timeout=0.5)
    assert not is_unsent(error)
    assert received.endswith(b"{}")


@pytest.mark.parametrize("body", [b"<html>bad gateway", b"[]", b'{"message": null}'])
def test_a_refusal_that_is_no_status_is_quoted(server, body):
    server.answers.append((502, body))
    with pytest.raises(ClusterError) as caught:
        api(server).request("GET", "/x")
    assert body.decode() in str(caught.value)


def test_a_hung_server_is_noticed(server):
    server.answers.append((200, [server.over.wait]))
    with pytest.raises(ClusterError, match="timed out") as caught:
        api(server, timeout=30).request("POST", "/x", body=b"{}", timeout=0.5)
    assert caught.value.status is None
    assert caught.value.__cause__ is not None
    assert not is_unsent(caught.value)
    assert not is_disconnect(caught.value)


def test_a_refused_connection_is_known_to_have_done_nothing(server):
    dead = Api(Configuration(host="http://127.0.0.1:1"))
    with pytest.raises(ClusterError) as caught:
        dead.request("POST", "/x", body=b"{}")
    assert caught.value.status is None
    assert is_unsent(caught.value)


def test_a_broken_answer_is_a_disconnect_and_nothing_is_sent_twice(server):
    server.answers.append((200, [b"half", RESET]))
    with pytest.raises(ClusterError) as caught:
        api(server).request("POST", "/x", body=b"{}")
    assert is_disconnect(caught.value)
    assert not is_unsent(caught.value)
    assert len(server.requests) == 1


@cases("seconds, expected", (0.0, ["bearer one", "bearer two"]), (1000.0, ["bearer one"] * 2))
def test_credentials_are_asked_for_again_after_some_time(server, monkeypatch, seconds, expected):
    """Tokens of service accounts rotate; the client's hook knows."""
    monkeypatch.setattr("hami.kube.api.CREDENTIALS_S", seconds)
    tokens = iter(["bearer one", "bearer two"])
    configuration = Configuration(host=f"http://127.0.0.1:{server.server_port}")
    configuration.api_key["authorization"] = "bearer old"
    configuration.refresh_api_key_hook = lambda config: config.api_key.update(
        authorization=next(tokens)
    )
    server.answers += [(200, b"{}")] * 2
    client = Api(configuration)
    client.request("GET", "/x"), client.request("GET", "/x")
    assert [headers["authorization"] for _, _, headers, _ in server.requests] == expected


def test_credentials_that_cannot_be_renewed_are_an_error_of_ours():
    def fail(configuration):
        raise OSError("token file is gone")

    configuration = Configuration(host="http://127.0.0.1:1")
    configuration.api_key["authorization"] = "bearer old"
    configuration.refresh_api_key_hook = fail
    with pytest.raises(ClusterError, match="token file is gone"):
        Api(configuration).request("GET", "/x")


def test_the_token_of_the_pod_is_read_again_whatever_the_time_of_day(tmp_path, monkeypatch):
    """The client's own hook waits for a time of day, which a clock that is set back by an hour reaches an hour late."""
    token = tmp_path / "token"
    token.write_text("one")
    for name in ("SERVICE_TOKEN_FILENAME", "SERVICE_CERT_FILENAME"):
        monkeypatch.setattr(f"kubernetes.config.incluster_config.{name}", str(token))
    monkeypatch.setattr("hami.kube.api.SERVICE_TOKEN_FILENAME", str(token))
    for name, value in (("SERVICE_HOST", "10.0.0.1"), ("SERVICE_PORT", "443")):
        monkeypatch.setenv(f"KUBERNETES_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    configuration = Api.connect()._configuration
    token.write_text("two")
    assert [setting["value"] for setting in configuration.auth_settings().values()] == [
        "bearer two"
    ]


@cases("user", ("bearer", {"token": "secret"}), ("basic", {"username": "u", "password": "p"}))
def test_connect_uses_the_kubeconfig_named_by_the_environment(server, user, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", _kubeconfig(tmp_path, server, user))
    server.answers.append((200, b"{}"))
    Api.connect().request("GET", "/x")
    [(_, _, headers, _)] = server.requests
    basic = "Basic " + base64.b64encode(b"u:p").decode()
    assert headers["authorization"] == ("Bearer secret" if "token" in user else basic)


def test_connect_falls_back_to_the_kubeconfig_at_home(server, tmp_path, monkeypatch):
    (tmp_path / ".kube").mkdir()
    os.rename(_kubeconfig(tmp_path, server, {"token": "t"}), tmp_path / ".kube" / "config")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    server.answers.append((200, b"{}"))
    assert Api.connect().request("GET", "/x") == b"{}"


def test_options_take_the_place_of_what_the_context_says(server, tmp_path):
    path = _kubeconfig(tmp_path, server, {"token": "t"})
    other = {"name": "other", "user": {"token": "of another"}}
    away = {"name": "away", "cluster": {"server": "http://127.0.0.1:1"}}
    file = json.loads(Path(path).read_text())
    file["users"].append(other)
    file["clusters"].append(away)
    Path(path).write_text(json.dumps(file))
    here = f"http://127.0.0.1:{server.server_port}"
    server.answers += [(200, b"{}")] * 3
    for access in (
        UserAccess(kubeconfig=path, user="other"),
        UserAccess(kubeconfig=path, cluster="away", server=here),
        UserAccess(kubeconfig=path, context="c", cluster="k", user="other"),
    ):
        Api.connect(access).request("GET", "/x")
    assert [headers["authorization"] for _, _, headers, _ in server.requests] == [
        "Bearer of another",
        "Bearer t",
        "Bearer of another",
    ]
    with pytest.raises(ClusterError, match="nosuch"):
        Api.connect(UserAccess(kubeconfig=path, user="nosuch"))


def test_a_user_is_impersonated(server, tmp_path):
    server.answers.append((200, b"{}"))
    access = UserAccess(
        kubeconfig=_kubeconfig(tmp_path, server, {"token": "t"}),
        impersonated="alice",
        groups=("team-a", "team-b"),
        uid="7",
    )
    Api.connect(access).request("POST", "/x", body=b"{}")
    said = [item for item in server.all_headers[0] if item[0].startswith("Impersonate")]
    assert said == [
        ("Impersonate-User", "alice"),
        ("Impersonate-Group", "team-a"),
        ("Impersonate-Group", "team-b"),
        ("Impersonate-Uid", "7"),
    ]


@cases("kubeconfig, said", ("", "KUBECONFIG is not set"), ("/no/such/file", "/no/such/file"))
def test_connect_says_what_is_missing(kubeconfig, said, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match=said):
        Api.connect()


def test_connect_says_that_a_pod_has_no_token(tmp_path, monkeypatch):
    """As when its Secret is mounted before the control plane has filled it: the program ends, and is restarted."""
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ClusterError, match="in-cluster: Service token file does not exist"):
        Api.connect()


@cases(
    "access, host, is_pod",
    ("in a pod", UserAccess(), "10.0.0.1", True),
    ("outside", UserAccess(), "", False),
    ("a file", UserAccess(kubeconfig="mine"), "10.0.0.1", False),
)
def test_the_account_of_the_pod_is_used_where_nothing_else_is_given(
    access, host, is_pod, tmp_path, monkeypatch
):
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if host:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    assert uses_pod_account(access) is is_pod
    monkeypatch.setenv("KUBECONFIG", "mine")
    assert not uses_pod_account(access)


def test_a_watch_yields_whole_lines_however_they_arrive(server):
    with watch(server, b"on", b"e\ntw", b"o\n\nthree\nfo", b"ur\n") as lines:
        assert list(lines) == [b"one", b"two", b"three", b"four"]


def test_a_watch_need_not_come_in_chunks(server):
    server.answers.append((200, b"one\ntwo\n"))
    with api(server).stream("/w", {}, read_timeout=5) as lines:
        assert list(lines) == [b"one", b"two"]


def test_a_line_is_yielded_before_the_next_one_arrives(server):
    go = threading.Event()
    with watch(server, b"one\n", go.wait, b"two\n") as stream:
        lines = iter(stream)
        assert next(lines) == b"one"
        go.set()
        assert next(lines) == b"two"


@cases(
    "chunks",
    ("cut within a line", [b"one\ntw", RESET]),
    ("cut between lines", [b"one\n", RESET]),
    ("ended within a line", [b"one\ntw"]),
)
def test_a_broken_watch_is_an_error_after_its_whole_lines(server, chunks):
    seen = []
    with pytest.raises(ClusterError) as caught, watch(server, *chunks) as lines:
        for line in lines:
            seen.append(line)
    assert seen == [b"one"]
    assert caught.value.status is None


def test_a_silent_watch_is_an_error(server):
    with (
        pytest.raises(ClusterError, match="timed out"),
        watch(server, server.over.wait, read_timeout=0.05) as lines,
    ):
        list(lines)


def test_a_refused_watch_is_the_error_it_says(server):
    server.answers.append((410, b'{"message": "too old"}'))
    with pytest.raises(Gone, match="too old"), api(server).stream("/w", {}, read_timeout=1):
        pass


def test_another_thread_can_close_a_watch_that_waits(server):
    with watch(server, b"one\n", server.over.wait) as stream:
        lines = iter(stream)
        next(lines)
        threading.Timer(0, stream.close).start()
        assert list(lines) == []


def test_a_watch_that_was_closed_before_it_opened_ends_at_once(server):
    stream = watch(server, server.over.wait)
    stream.close()
    with stream:
        assert list(stream) == []


def test_a_reflector_over_real_sockets(server):
    """A list of two pages, a watch cut within a line, one that expires, a new list, and a prompt stop."""
    done = threading.Event()
    state = {}

    class Sink:
        def upsert(self, item, as_of=None):
            state[item["name"]] = item["resourceVersion"]
            if item["resourceVersion"] == "201":
                done.set()

        def remove(self, item):
            del state[item["name"]]

        def prune(self, seen, started):
            for name in set(state) - seen:
                del state[name]

    def lines(*events):
        return b"".join(line + b"\n" for line in events)

    check = 200, json.dumps(page(version=150)).encode()
    server.answers += [
        (200, json.dumps(page(obj("a", 1), token="t")).encode()),
        (200, json.dumps(page(obj("b", 2))).encode()),
        (
            200,
            [
                lines(event("ADDED", obj("c", 101))),
                lines(event("DELETED", obj("a", 102)))[:30],
                RESET,
            ],
        ),
        check,
        (200, [lines(event("DELETED", obj("a", 102)), bookmark(110))]),
        check,
        (410, b'{"message": "expired"}'),
        (200, json.dumps(page(obj("d", 5), version=200)).encode()),
        (200, [lines(event("ADDED", obj("e", 201))), server.over.wait]),
    ]
    things = WatchedResource(
        name="things",
        path="/things",
        parse=lambda raw: json.loads(raw)["metadata"],
        key=lambda item: item["name"],
    )
    reflector = Reflector(api(server), things, Sink(), resumes=True)
    thread = threading.Thread(target=reflector.run)
    thread.start()
    assert done.wait(10)
    reflector.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert state == {"d": "5", "e": "201"}
    versions = [
        path.partition("resourceVersion=")[2].partition("&")[0] for _, path, _, _ in server.requests
    ]
    assert versions == ["", "", "100", "", "101", "", "110", "", "200"]


def _kubeconfig(folder, server, user):
    """A kubeconfig for *server*; the client also reads JSON, being YAML."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "preferences": {},
                "clusters": [
                    {"name": "k", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
                ],
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return str(path)
