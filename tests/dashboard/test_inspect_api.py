"""The API group behind the API server: whom it believes, who gets an answer, and what is in it."""

import http.client
import json
import ssl
import tempfile
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hami.codec.pods import parse_pod
from hami.dashboard.access import Access
from hami.dashboard.front_proxy import FrontProxy, parse_trust
from hami.dashboard.inspect_api import Explanations, create_inspect_api
from hami.dashboard.usage_records import UsageRecords
from hami.errors import ClusterError, MalformedInput, NotFound
from hami.kube.reviews import Identity
from hami.web.pages import AppServer
from testing.cases import cases
from testing.fake_api import bound, node, pending
from testing.nodes import gpu
from testing.replicas import Clock
from tests.dashboard.stage import Rights, Stage
from tests.inspect.test_usage import objects
from tests.web.test_tls import Authority

CARD = gpu(memory_mib=10_000, model="A100")
NODES = [node("n1", CARD, CARD)]
PODS = {
    ("default", "a"): bound("a", "n1", (0, 6000, 50), gpu=1),
    ("other", "secret"): bound("secret", "n1", (0, 1500, 5), namespace="other", gpu=1),
    ("default", "waits"): pending("waits", gpu=2, gpumem=9500),
    ("default", "plain"): {"metadata": {"name": "plain", "namespace": "default", "uid": "u"}},
}
RIGHTS = {"dev": {"default"}, "admin": {""}, "ci-dev": {"ci"}}
USAGE_PATH = "/apis/inspect.hami.io/v1alpha1/namespaces/{}/usagerecords/{}"
PATH = "/apis/inspect.hami.io/v1alpha1/namespaces/{}/pods/{}/explanation"
AUTHORITY = Authority("front proxy")
SERVING = Authority("serving")
CONFIG = {
    "requestheader-client-ca-file": AUTHORITY.pem().decode(),
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-uid-headers": '["X-Remote-Uid"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}


class Api:
    """The API server: its front proxy, and pods."""

    def __init__(self, config=CONFIG):
        self.config, self.error = config, None

    def request(self, method, path):
        assert method == "GET"
        if self.error:
            raise self.error
        return json.dumps({"data": self.config}).encode()


class Site:
    """The server at an address, and what it was asked. *rights*: of users by namespace."""

    def __init__(self, unready=""):
        self.rights = Rights(may=RIGHTS)
        stage = Stage(NODES, [pod for pod in PODS.values() if "spec" in pod])
        self.reading = threading.Event()
        self.reading.set()
        self.is_reading = threading.Event()
        self.front = FrontProxy(Api(), lambda: b"".join(SERVING.issue("hami-dashboard")))
        self.front.refresh()
        app = create_inspect_api(
            self.front,
            Access(self.rights, clock=Clock()),
            Explanations(stage.live, self._pod),
            UsageRecords(recorded, "hami-usage"),
            lambda: unready,
        )
        self.server = AppServer(
            "inspect API", ("127.0.0.1", 0), app, flag="--x", tls=self.front.context
        )

    def _pod(self, ref):
        self.is_reading.set()
        assert self.reading.wait(20)
        pod = PODS.get((ref.namespace, ref.name))
        return None if pod is None else parse_pod(json.dumps(pod).encode())

    def ask(self, path, *headers, name="front-proxy-client", authority=AUTHORITY, method="GET"):
        """Returns status, headers and document. *headers*: pairs. *name*, *authority*: of the client's certificate."""
        context = ssl.create_default_context(cadata=SERVING.pem().decode())
        if name:
            with files(authority.issue(name)) as paths:
                context.load_cert_chain(*paths)
        client = http.client.HTTPSConnection(*self.server.address, timeout=20, context=context)
        with closing(client):
            client.putrequest(method, path)
            for key, value in headers:
                client.putheader(key, value)
            client.endheaders()
            answer = client.getresponse()
            return answer.status, answer.headers, json.loads(answer.read())

    def explain(self, namespace, name, user="dev"):
        return self.ask(PATH.format(namespace, name), ("X-Remote-User", user))


def recorded(method, path):
    """Answers for the ConfigMaps with the records of usage."""
    if path not in objects():
        raise NotFound("there is none", 404)
    return objects()[path]


@contextmanager
def files(pair):
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("tls.crt", "tls.key")]
        for path, data in zip(paths, pair, strict=True):
            path.write_bytes(data)
        yield [str(path) for path in paths]


@pytest.fixture
def site():
    with served() as site:
        yield site


@contextmanager
def served(**options):
    site = Site(**options)
    site.server.start()
    yield site
    site.server.stop()


def test_a_user_of_one_namespace_learns_why_a_pod_waits(site):
    status, _, document = site.explain("default", "waits")
    assert status == 200
    assert (document["apiVersion"], document["kind"]) == (
        "inspect.hami.io/v1alpha1",
        "PodExplanation",
    )
    assert (document["state"], document["name"]) == ("Waiting", "waits")
    assert "fits none of 1 node" in document["message"].replace("fit none", "fits none")


@pytest.mark.parametrize("name", ["a", "waits"])
def test_pods_of_other_namespaces_have_no_names(site, name):
    text = json.dumps(site.explain("default", name)[2])
    assert "secret" not in text
    assert "other/" not in text
    assert "n1" in text


def test_a_card_is_not_called_free_of_others_that_have_no_names(site):
    (device,) = site.explain("default", "a")[2]["cards"]
    assert device["pods"] == ["pods that you may not see"]


@cases(
    "namespace, name, user, status",
    ("default", "a", "dev", 200),
    ("default", "a", "admin", 200),
    ("default", "a", "nobody", 403),
    ("other", "secret", "dev", 403),
    ("other", "nothing", "dev", 403),
    ("default", "nothing", "dev", 404),
    ("default", "plain", "dev", 422),
    ("default", "A_b", "dev", 400),
    ("De_fault", "a", "dev", 400),
)
def test_who_may_get_the_pod_gets_the_answer(site, namespace, name, user, status):
    answer = site.explain(namespace, name, user)
    assert answer[0] == status
    if status != 200:
        assert (answer[2]["kind"], answer[2]["code"]) == ("Status", status)


def test_the_right_is_asked_for_the_user_with_all_that_the_front_proxy_says(site):
    site.ask(
        PATH.format("default", "a"),
        ("X-Remote-User", "dev"),
        ("X-Remote-Uid", "7"),
        ("X-Remote-Group", "a,system:masters"),
        ("x-remote-group", "b"),
        ("X-Remote-Extra-Example.org%2fScope", "x"),
        ("X_Remote_Group", "forged"),
    )
    (viewer, namespace, name) = site.rights.reviewed[0]
    assert (namespace, name) == ("default", "a")
    assert viewer == Identity(
        username="dev",
        uid="7",
        groups=("a,system:masters", "b"),
        extra={"example.org/scope": ("x",)},
    )


@cases(
    "headers, name, status",
    ((), "front-proxy-client", 401),
    ((("X-Remote-User", ""),), "front-proxy-client", 401),
    ((("X-Remote-User", "dev"),), "somebody", 401),
    ((("X_Remote_User", "dev"),), "front-proxy-client", 401),
    ((("X-Remote-User", b"\xff"),), "front-proxy-client", 401),
    ((("Authorization", "Bearer t-admin"),), "front-proxy-client", 401),
)
def test_only_the_front_proxy_names_users(site, headers, name, status):
    assert site.ask(PATH.format("default", "a"), *headers, name=name)[0] == status
    assert site.rights.reviewed == []


@cases("name, authority", ("", AUTHORITY), ("front-proxy-client", SERVING))
def test_without_its_certificate_there_is_no_connection(site, name, authority):
    with pytest.raises((OSError, http.client.HTTPException)):
        site.ask(
            PATH.format("default", "a"), ("X-Remote-User", "dev"), name=name, authority=authority
        )


def test_the_api_server_discovers_the_group(site):
    assert site.ask("/apis")[2]["groups"][0]["name"] == "inspect.hami.io"
    assert site.ask("/apis/inspect.hami.io")[2]["kind"] == "APIGroup"
    resources = site.ask("/apis/inspect.hami.io/v1alpha1")[2]["resources"]
    assert [resource["name"] for resource in resources] == ["pods/explanation", "usagerecords"]
    assert {*resources[0]["verbs"], *resources[1]["verbs"]} == {"get"}
    assert site.ask("/openapi/v2")[0] == 404
    assert site.ask("/pods")[0] == 404


@cases(
    "namespace, name, user, status",
    ("ci", "hami-usage", "ci-dev", 200),
    ("ci", "hami-usage-2026-11-27", "ci-dev", 200),
    ("ci", "hami-usage-owners-2026-11-27", "ci-dev", 200),
    ("ci", "hami-usage-2026-11-26", "ci-dev", 404),
    ("ci", "hami-usage-unreadable", "ci-dev", 400),
    ("ci", "hami-usage-2026-13-01", "ci-dev", 400),
    ("ci", "hami-usage", "dev", 403),
    ("C_i", "hami-usage", "ci-dev", 400),
)
def test_who_may_list_the_pods_gets_the_records_of_usage(site, namespace, name, user, status):
    answer = site.ask(USAGE_PATH.format(namespace, name), ("X-Remote-User", user))
    assert answer[0] == status
    if status == 200:
        assert answer[2]["kind"] == "UsageRecord"


def test_records_of_usage_are_for_the_front_proxy_only(site):
    assert site.ask(USAGE_PATH.format("ci", "hami-usage"))[0] == 401


def test_nothing_is_written(site):
    path = PATH.format("default", "a")
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert site.ask(path, ("X-Remote-User", "dev"), method=method)[0] == 405


def test_before_the_cluster_is_read_the_caller_is_told_to_come_again():
    with served(unready="the cluster is still being read") as site:
        status, headers, _ = site.explain("default", "waits")
        assert (status, headers["Retry-After"]) == (503, "2")


def test_a_namespace_has_one_answer_at_a_time(site):
    site.reading.clear()
    first = threading.Thread(target=site.explain, args=("default", "waits"))
    first.start()
    try:
        assert site.is_reading.wait(20)
        status, headers, _ = site.explain("default", "a")
        assert (status, headers["Retry-After"]) == (429, "2")
        site.is_reading.clear()
        others = threading.Thread(target=site.explain, args=("other", "secret", "admin"))
        others.start()
        assert site.is_reading.wait(20)
    finally:
        site.reading.set()
    first.join()
    others.join()
    assert site.explain("default", "a")[0] == 200


def test_what_was_trusted_stays_while_it_cannot_be_read_again(caplog):
    api = Api()
    front = FrontProxy(api, lambda: b"".join(SERVING.issue("hami-dashboard")))
    with pytest.raises(ConnectionResetError):
        front.context()
    assert front.user({}) is None
    front.refresh()
    context = front.context()
    for _ in range(2):
        api.error = ClusterError("GET: no answer")
        front.refresh()
    assert front.context() is context
    assert [record.message for record in caplog.records] == [
        "the front proxy of the API server cannot be trusted yet"
    ]


@cases(
    "config, text",
    ({}, "has no front proxy"),
    (CONFIG | {"requestheader-client-ca-file": ""}, "has no front proxy"),
    (CONFIG | {"requestheader-username-headers": "[]"}, "has no front proxy"),
    (CONFIG | {"requestheader-allowed-names": "x"}, "requestheader-allowed-names"),
    (CONFIG | {"requestheader-allowed-names": "{}"}, "expected a JSON list"),
)
def test_an_api_server_without_a_front_proxy_is_not_trusted(config, text):
    with pytest.raises(MalformedInput, match=text):
        parse_trust(json.dumps({"data": config}).encode())
