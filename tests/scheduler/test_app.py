"""The HTTP endpoints: requests, answers, limits, untrusted clients, malformed bodies."""

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import Client, create_environ, run_wsgi_app

from hami import __version__
from hami.codec.keys import ASSIGNED_NODE
from hami.codec.register import render_devices_json
from hami.errors import NodeLocked
from hami.scheduler import app as module
from hami.scheduler.app import create_app
from hami.web.bodies import BodyBudgets, ByteBudget
from hami.web.rights import RIGHT, ClientRight
from testing.builders import NVIDIA, gpu, gpus, node, pod
from testing.cases import cases
from testing.replicas import Clock, Replica, WatchedCluster

STRANGER = {
    "REMOTE_ADDR": "127.0.0.6",
    RIGHT: ClientRight.NONE,
}  # the address of a proxy in the same pod


class Web:
    """The application over a replica with one node, and a client that is trusted."""

    def __init__(self, *, started=True, unready=None, threads=4, hung=""):
        self.fake = WatchedCluster(
            nodes=[node("n1", gpu("GPU-0", memory_mib=8000))],
            pods=[pod(gpus(1, memory=1000, cores=10))],
        )
        self.replica = Replica(self.fake, Clock())
        self.observed = []
        self.started = started
        self.client = create_app(
            self.replica.verbs,
            lambda _: self.started,
            lambda: unready,
            lambda verb, outcome, seconds: self.observed.append((verb, outcome)),
            threads=threads,
            hung_reason=lambda: hung,
        ).test_client()
        self.client.environ_base[RIGHT] = ClientRight.EXTENDER

    def post(self, path, body, content_type="application/json", **options):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.client.post(path, data=data, content_type=content_type, **options)
        assert answer.status_code == 200
        assert answer.content_type == "application/json"
        return json.loads(answer.data)


@pytest.fixture
def web():
    return Web()


def wire_node(name, memory):
    registered = render_devices_json((gpu(memory_mib=memory),))
    return {
        "metadata": {"name": name, "annotations": {NVIDIA.annotations.register: registered}},
        "status": {"allocatable": {"nvidia.com/gpu": "10"}},
        "spec": {"unknown": True},
    }


LIMITS = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000", "nvidia.com/gpucores": "10"}
POD = {
    "metadata": {"name": "pod1", "namespace": "default", "uid": "uid-pod1"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": LIMITS}}]},
}
BIND = {"PodName": "pod1", "PodNamespace": "default", "PodUID": "uid-pod1", "Node": "n1"}
EMPTY = {
    "Nodes": None,
    "NodeNames": None,
    "FailedNodes": None,
    "FailedAndUnresolvableNodes": None,
    "Error": "",
}
NEW = {
    "metadata": {"name": "p"},
    "spec": {
        "schedulerName": "default-scheduler",
        "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
    },
}
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "u", "namespace": "default", "object": NEW},
}
VICTIMS = {
    "n1": {"Pods": [{"UID": "u1"}], "NumPDBViolations": 1},
    "n2": {"Pods": [{"UID": "u2"}], "NumPDBViolations": 0},
}
BODIES = {
    "/webhook": REVIEW,
    "/filter": {"Pod": POD, "Nodes": None, "NodeNames": ["n1"]},
    "/bind": BIND,
    "/prioritize": {"Pod": POD, "Nodes": None, "NodeNames": ["n1"]},
    "/simulate": {"Pod": POD, "Nodes": {"items": [wire_node("new", 4000)]}, "NodeNames": None},
    "/preempt": {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": VICTIMS},
}
VETO = {"NodeNameToMetaVictims": {}}


# filter and bind


@cases(
    "path, handler, method",
    ("/filter", "node_filter", "filter"),
    ("/prioritize", "node_filter", "prioritize"),
    ("/preempt", "preemption_filter", "filter"),
)
def test_what_kube_scheduler_waits_for_is_in_flight(web, monkeypatch, path, handler, method):
    idle, act = [], getattr(getattr(web.replica, handler), method)

    def observed(*args):
        idle.append(web.replica.verbs.in_flight.wait_idle(0))
        return act(*args)

    monkeypatch.setattr(getattr(web.replica, handler), method, observed)
    web.post(path, BODIES[path])
    assert idle == [False]
    assert web.replica.verbs.in_flight.wait_idle(0)


def test_filter_and_bind(web):
    assert web.post("/filter", BODIES["/filter"]) == EMPTY | {"NodeNames": ["n1"]}
    reserved = json.loads(web.client.get("/reservations/uid-pod1").data)
    assert (
        reserved["node"]
        == reserved["labels"][ASSIGNED_NODE]
        == reserved["annotations"][ASSIGNED_NODE]
        == "n1"
    )
    assert web.post("/bind", BIND) == {"Error": ""}
    assert web.fake.pods["default", "pod1"].node_name == "n1"
    assert web.client.get("/reservations/uid-pod1").status_code == 404
    assert web.observed == [("filter", "ok"), ("bind", "ok")]


@pytest.mark.parametrize(("threads", "binds"), [(1, 1), (4, 2), (100, 50), (200, 136)])
def test_binds_that_wait_leave_threads_to_others(threads, binds):
    web, entered, goes_on = Web(threads=threads), threading.Semaphore(0), threading.Event()

    def wait(ref, node):
        entered.release()
        goes_on.wait(50)

    web.replica.binder.bind = wait
    with ThreadPoolExecutor(binds) as pool:
        waiting = [
            pool.submit(web.post, "/bind", BIND | {"PodNamespace": f"team-{number}"})
            for number in range(binds)
        ]
        assert all(entered.acquire(timeout=50) for _ in range(binds))
        assert "too many pods are being bound" in web.post("/bind", BIND)["Error"]
        assert web.post("/filter", BODIES["/filter"])["NodeNames"] == ["n1"]
        goes_on.set()
        assert [answer.result() for answer in waiting] == [{"Error": ""}] * binds
    assert web.post("/bind", BIND) == {"Error": ""}


def test_the_binds_of_one_namespace_leave_some_to_others():
    web, entered, goes_on = Web(threads=200), threading.Semaphore(0), threading.Event()

    def wait(ref, node):
        entered.release()
        goes_on.wait(50)

    web.replica.binder.bind = wait
    with ThreadPoolExecutor(136) as pool:
        waiting = [pool.submit(web.post, "/bind", BIND) for _ in range(68)]
        assert all(entered.acquire(timeout=50) for _ in range(68))
        assert "too many pods are being bound" in web.post("/bind", BIND)["Error"]
        waiting.append(pool.submit(web.post, "/bind", BIND | {"PodNamespace": "team"}))
        assert entered.acquire(timeout=50)
        goes_on.set()
        assert [answer.result() for answer in waiting] == [{"Error": ""}] * 69


def test_lower_case_keys_and_trailing_data_are_accepted(web):
    body = json.dumps({"pod": POD, "nodeNames": ["n1"]}).encode() + b' {"Pod": 1} trailing'
    assert web.post("/filter", body)["NodeNames"] == ["n1"]


def test_a_filter_without_a_fitting_node_returns_the_reasons(web):
    big = json.loads(json.dumps(POD).replace('"1000"', '"9000"'))
    assert web.post("/filter", {"Pod": big, "NodeNames": ["n1", "n2"]}) == EMPTY | {
        "FailedAndUnresolvableNodes": {
            "n1": "1/1 CardInsufficientMemory",
            "n2": "node unregistered",
        }
    }
    assert web.observed == [("filter", "refused")]


def test_a_simulation_returns_the_whole_node(web):
    small, large = wire_node("small", 500), wire_node("large", 4000)
    answer = web.post(
        "/filter", {"Pod": POD, "Nodes": {"items": [small, large]}, "NodeNames": None}
    )
    assert answer == EMPTY | {
        "Nodes": {"metadata": {}, "items": [large]},
        "FailedNodes": {"small": "1/1 CardInsufficientMemory"},
    }
    assert web.replica.cache.open_bindings.unbound() == 0


def test_nodes_are_scored(web):
    body = {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]}
    assert web.post("/prioritize", body) == [{"Host": "n1", "Score": 0}, {"Host": "n2", "Score": 0}]
    nodes = {"items": [wire_node("n1", 500)]}
    assert web.post("/prioritize", body | {"Nodes": nodes, "NodeNames": None}) == [
        {"Host": "n1", "Score": 0}
    ]
    assert web.observed == [("prioritize", "ok")] * 2


def test_scores_that_cannot_be_given_leave_the_choice_to_kube_scheduler(web, caplog):
    assert web.post("/prioritize", b"[]") == []
    assert web.observed == [("prioritize", "error")]
    assert [record.message for record in caplog.records] == ["nodes not scored"]


@pytest.mark.parametrize("path", ["/simulate", "/filter"])
def test_a_simulation_returns_all_nodes_that_fit(web, path):
    nodes = [wire_node("small", 500), *(wire_node(f"large-{number}", 4000) for number in range(40))]
    answer = web.post(path, {"Pod": POD, "Nodes": {"items": nodes}, "NodeNames": None})
    assert answer == EMPTY | {
        "Nodes": {"metadata": {}, "items": nodes[1:]},
        "FailedNodes": {"small": "1/1 CardInsufficientMemory"},
    }
    assert web.replica.cache.open_bindings.unbound() == 0
    assert web.observed == [(path[1:], "ok")]


@cases(
    "body, problem",
    ("empty", b"", "EOF"),
    ("names", {"Pod": POD, "NodeNames": ["n1"]}, "the extender needs nodeCacheCapable: false"),
    (
        "many",
        {"Pod": POD, "Nodes": {"items": [wire_node("n", 1)] * 5001}},
        "expected at most 5000 nodes",
    ),
    ("no pod", {"Nodes": {"items": []}}, "missing pod"),
)
def test_a_simulation_that_cannot_be_made_is_an_error(web, body, problem):
    answer = web.post("/simulate", body)
    assert problem in answer["Error"]
    assert answer["Nodes"] is None
    assert web.observed == [("simulate", "error")]


def test_nothing_is_simulated_before_the_caches_are_filled():
    web = Web(started=False)
    answer = web.post("/simulate", BODIES["/simulate"])
    assert answer == EMPTY | {"Error": "the scheduler's caches are not filled yet"}


def test_preempt_keeps_nodes_with_their_victims_as_they_came(web):
    assert web.post("/preempt", BODIES["/preempt"]) == {
        "NodeNameToMetaVictims": {"n1": VICTIMS["n1"]}
    }
    assert web.observed == [("preempt", "ok")]


def test_preempt_vetoes_where_nothing_would_be_gained(web):
    big = json.loads(json.dumps(BODIES["/preempt"]).replace('"1000"', '"9000"'))
    assert web.post("/preempt", big) == VETO
    assert web.observed == [("preempt", "refused")]


def test_preempt_answers_the_question_for_a_pod_without_devices(web):
    plain = BODIES["/preempt"] | {"Pod": POD | {"spec": {"containers": [{"name": "c"}]}}}
    assert web.post("/preempt", plain) == {"NodeNameToMetaVictims": VICTIMS}
    assert web.observed == [("preempt", "ok")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        {},
        {"Pod": None, "NodeNameToMetaVictims": VICTIMS},
        {"Pod": POD, "NodeNameToMetaVictims": None},
        {"Pod": 1, "NodeNameToMetaVictims": VICTIMS},
        {"Pod": POD, "NodeNameToMetaVictims": {"n1": {"Pods": [1]}}},
    ],
)
def test_a_preemption_that_cannot_be_read_is_vetoed(web, body, caplog):
    assert web.post("/preempt", body) == VETO
    assert web.observed == [("preempt", "error")]
    assert [record.message for record in caplog.records] == ["preemption vetoed"]


def test_a_replica_that_does_not_lead_vetoes(web, caplog):
    web.replica.leadership.leading = False
    assert web.post("/preempt", BODIES["/preempt"]) == VETO
    assert web.observed == [("preempt", "error")]
    assert caplog.records[0].reason == "this replica of the scheduler does not lead yet"


@cases(
    "path, body, text",
    ("/filter", b"", "EOF"),
    ("/filter", b"  ", "EOF"),
    ("/bind", b"", "EOF"),
    ("/filter", {}, "extender args missing pod"),
    ("/filter", {"Pod": None}, "extender args missing pod"),
    ("/filter", b'{"Pod": {', "body"),
    ("/filter", b"[]", "body"),
    ("/filter", {"Pod": 1}, "pod"),
    ("/filter", {"Pod": POD, "NodeNames": "n1"}, "NodeNames"),
    ("/filter", {"Pod": POD, "Nodes": [1]}, "Nodes"),
    ("/filter", {"Pod": POD, "Nodes": {"items": [1]}}, "node"),
    ("/filter", {"Pod": {"spec": POD["spec"]}, "NodeNames": ["n1"]}, "without uid"),
    ("/bind", {}, 'pod "" not found'),
    ("/bind", BIND | {"PodName": 1}, "PodName"),
    ("/bind", b"\xff\xfe", "body"),
    ("/bind", BIND | {"PodName": "../../x"}, "has no reservation"),
    ("/bind", BIND | {"PodUID": "other"}, 'pod "pod1" not found'),
)
def test_errors_are_in_the_body(web, path, body, text):
    answer = web.post(path, body)
    assert text in answer["Error"]
    assert web.observed == [(path[1:], "error")]


def test_unexpected_errors_are_in_the_body(web, caplog):
    verbs = web.replica.verbs
    verbs.node_filter.filter = verbs.binder.bind = verbs.admitter.admit = lambda *_: 1 / 0
    verbs.preemption_filter.filter = verbs.binder.bind
    for path in ("/filter", "/bind"):
        assert web.post(path, BODIES[path])["Error"] == "internal error, see the scheduler's log"
    assert web.post("/webhook", REVIEW)["response"]["status"]["code"] == 500
    assert web.post("/preempt", BODIES["/preempt"]) == VETO
    assert caplog.text.count("ZeroDivisionError") == 4


def test_a_refusal_is_in_the_body(web):
    def refuse(*_):
        raise NodeLocked("node n1 has been locked")

    web.replica.binder.bind = refuse
    assert web.post("/bind", BIND) == {"Error": "node n1 has been locked"}


def test_a_filter_waits_for_the_caches_and_then_fails():
    answer = Web(started=False).post("/filter", BODIES["/filter"])
    assert answer["Error"] == "the scheduler's caches are not filled yet"


# webhook


def patch_of(answer):
    return json.loads(base64.b64decode(answer["response"]["patch"]))


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_the_webhook_answers_in_the_version_of_the_review(web, version):
    answer = web.post("/webhook", REVIEW | {"apiVersion": version})
    assert (answer["apiVersion"], answer["kind"]) == (version, "AdmissionReview")
    assert answer["response"]["uid"] == "u"
    assert answer["response"]["allowed"] is True


def test_the_patch_contains_only_the_changes(web):
    answer = web.post("/webhook", REVIEW)
    assert answer["response"]["patchType"] == "JSONPatch"
    assert sorted(patch_of(answer), key=lambda operation: operation["path"]) == [
        {
            "op": "add",
            "path": "/spec/containers/0/resources/limits/nvidia.com~1gpucores",
            "value": "100",
        },
        {"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"},
    ]


def test_an_unchanged_pod_gets_no_patch(web):
    review = json.loads(json.dumps(REVIEW).replace("default-scheduler", "volcano"))
    response = web.post("/webhook", review)["response"]
    assert response == {
        "uid": "u",
        "allowed": True,
        "status": {"code": 200, "message": "pod already has different scheduler assigned"},
        "warnings": [
            "schedulerName volcano is not HAMi's: the pod gets no devices from HAMi; leave it out, or write "
            "hami-scheduler"
        ],
    }


def test_a_forged_annotation_is_refused(web):
    review = json.loads(json.dumps(REVIEW))
    review["request"]["object"]["metadata"]["annotations"] = {ASSIGNED_NODE: "n1"}
    response = web.post("/webhook", review)["response"]
    assert response["allowed"] is False
    assert response["status"]["code"] == 403
    assert web.observed == [("webhook", "refused")]


@cases(
    "body, content_type, code, text",
    (b"", "application/json", 400, "request body is empty"),
    (b"{}", "text/plain", 400, "contentType=text/plain, expected application/json"),
    (b"{}", "application/json; charset=utf-8", 400, "expected application/json"),
    (b"{", "application/json", 400, "body"),
    (b"[]", "application/json", 400, "AdmissionReview"),
    (b'{"request": {"uid": 1}}', "application/json", 400, "uid"),
    (b'{"request": {"uid": "u", "object": []}}', "application/json", 400, "expected a Pod"),
    (b'{"request": {"uid": "u"}}', "application/json", 400, "there is no content to decode"),
)
def test_malformed_reviews_are_denied(web, body, content_type, code, text):
    answer = web.post("/webhook", body, content_type)
    assert answer["kind"] == "AdmissionReview"
    assert answer["response"]["allowed"] is False
    assert answer["response"]["status"]["code"] == code
    assert text in answer["response"]["status"]["message"]


# limits


@cases(
    "path, limit",
    ("/webhook", module.WEBHOOK_LIMIT),
    ("/filter", module.FILTER_LIMIT),
    ("/bind", module.BIND_LIMIT),
)
def test_a_body_over_the_limit_is_refused(web, path, limit):
    answer = web.post(path, b" " * (limit + 1))
    text = answer["response"]["status"]["message"] if path == "/webhook" else answer["Error"]
    assert text == f"request body is larger than {limit} bytes"
    assert path != "/webhook" or answer["response"]["status"]["code"] == 413
    assert web.observed == [(path[1:], "error")]


def test_a_preemption_over_the_limit_is_vetoed(web, caplog):
    assert web.post("/preempt", b" " * (module.PREEMPT_LIMIT + 1)) == VETO
    assert caplog.records[0].reason == f"request body is larger than {module.PREEMPT_LIMIT} bytes"


def test_a_body_without_a_length_is_limited_too(web):
    environ = create_environ("/bind", method="POST", environ_base={RIGHT: ClientRight.EXTENDER})
    environ |= {
        "HTTP_TRANSFER_ENCODING": "chunked",
        "wsgi.input": Endless(),
        "wsgi.input_terminated": True,
    }
    body, status, _ = run_wsgi_app(web.client.application, environ)
    assert status == "200 OK"
    assert b"larger than" in b"".join(body)


@cases("path, limit", ("/webhook", module.WEBHOOK_LIMIT), ("/bind", module.BIND_LIMIT))
def test_a_body_of_the_limit_is_read(web, path, limit):
    answer = web.post(path, b" " * limit)
    assert "larger" not in json.dumps(answer)


def test_a_review_beyond_the_budget_of_all_requests_gets_503(web):
    budget = ByteBudget(1000)
    client = Client(BodyBudgets(web.client.application, lambda environ: budget))
    body = json.dumps(REVIEW).encode()
    answer = client.post(
        "/webhook",
        data=body + b" " * 100_000,
        content_type="application/json",
        environ_overrides=STRANGER,
    )
    assert answer.status_code == 503
    assert answer.content_type == "application/json"
    assert json.loads(answer.data)["response"]["status"] == {
        "status": "Failure",
        "message": "too many large requests at once, try again later",
        "reason": "ServiceUnavailable",
        "code": 503,
    }
    assert web.observed == [("webhook", "error")]
    assert (
        client.post(
            "/webhook", data=body, content_type="application/json", environ_overrides=STRANGER
        ).json["response"]["allowed"]
        is True
    )


def test_the_log_quotes_only_the_beginning_of_a_pod(web, caplog):
    caplog.set_level("INFO")
    review = json.loads(json.dumps(REVIEW).replace(": 1}", ': "' + "9" * 100_000 + 'x"}'))
    assert web.post("/webhook", review)["response"]["allowed"] is False
    (record,) = (record for record in caplog.records if record.message == "pod denied")
    assert len(record.reason) == module.LOGGED


class Endless:
    """A client that never stops sending."""

    def read(self, size=-1):
        return b" " * min(size if size > 0 else 65536, 65536)

    def readline(self, size=-1):
        return self.read(size)

    def readinto(self, buffer):
        buffer[:] = b" " * len(buffer)
        return len(buffer)

    def close(self):
        pass


def test_a_filter_of_a_large_cluster_is_accepted(web):
    names = [f"node-{n:05}" + "x" * 200 for n in range(5000)]
    assert web.post("/filter", {"Pod": POD, "NodeNames": [*names, "n1"]})["NodeNames"] == ["n1"]


# untrusted clients


@pytest.mark.parametrize("path", ["/filter", "/simulate", "/preempt", "/bind", "/reservations/u"])
def test_untrusted_clients_may_not_use_the_extender(web, path):
    method = web.client.get if path.startswith("/res") else web.client.post
    answer = method(path, data=json.dumps(BODIES.get(path, {})), environ_overrides=STRANGER)
    assert answer.status_code == 403
    assert "--extender-bind-address" in json.loads(answer.data)["Error"]
    assert web.replica.cache.open_bindings.unbound() == 0


VERBS = ("/filter", "/prioritize", "/simulate", "/preempt", "/bind", "/reservations/u")


@cases(
    "right, paths",
    (ClientRight.NONE, ()),
    (ClientRight.SIMULATE, ("/simulate",)),
    (ClientRight.EXTENDER, VERBS),
)
def test_a_right_opens_what_it_is_for_and_nothing_else(web, right, paths):
    answered = []
    for path in VERBS:
        method = web.client.get if path.startswith("/res") else web.client.post
        answer = method(
            path, data=json.dumps(BODIES.get(path, {})), environ_overrides={RIGHT: right}
        )
        if answer.status_code != 403:
            answered.append(path)
    assert tuple(answered) == paths
    reserved = web.replica.cache.view().facts.reserved
    assert (reserved == {}) is (right is not ClientRight.EXTENDER)


def test_a_simulation_reserves_nothing(web):
    answer = web.post(
        "/simulate", BODIES["/simulate"], environ_overrides={RIGHT: ClientRight.SIMULATE}
    )
    assert [node["metadata"]["name"] for node in answer["Nodes"]["items"]] == ["new"]
    assert web.replica.cache.open_bindings.unbound() == 0


def test_a_header_does_not_make_a_client_trusted(web):
    answer = web.client.post(
        "/bind",
        data=b"{}",
        environ_overrides=STRANGER,
        headers={"X-Forwarded-For": "127.0.0.1", "Hami.Right": "extender"},
    )
    assert answer.status_code == 403


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version"])
def test_untrusted_clients_may_read_the_health(web, path):
    assert web.client.get(path, environ_overrides=STRANGER).status_code == 200


def test_untrusted_clients_may_use_the_webhook(web):
    assert web.post("/webhook", REVIEW, environ_overrides=STRANGER)["response"]["allowed"]


# health


@cases(
    "started, unready, healthz, readyz",
    (
        False,
        "nodes have not been read yet",
        (503, b"starting: caches are not filled yet\n"),
        (503, b"nodes have not been read yet\n"),
    ),
    (
        True,
        "the API server has said nothing",
        (200, b"ok\n"),
        (503, b"the API server has said nothing\n"),
    ),
    (True, None, (200, b"ok\n"), (200, b"ok\n")),
)
def test_health(started, unready, healthz, readyz):
    web = Web(started=started, unready=unready)
    for path, expected in (("/healthz", healthz), ("/readyz", readyz)):
        answer = web.client.get(path)
        assert (answer.status_code, answer.data) == expected
        assert answer.content_type.startswith("text/plain")


def test_a_scheduler_whose_thread_hangs_is_restarted():
    """Also while its caches are not filled: that may be why."""
    for started in (True, False):
        answer = Web(started=started, hung="thread pods hangs").client.get("/healthz")
        assert (answer.status_code, answer.data) == (500, b"thread pods hangs\n")


def test_version(web):
    assert json.loads(web.client.get("/version").data) == {"version": __version__}


@cases(
    "method, path, status",
    ("get", "/filter", 405),
    ("get", "/preempt", 405),
    ("get", "/bind", 405),
    ("get", "/webhook", 405),
    ("put", "/bind", 405),
    ("post", "/healthz", 405),
    ("delete", "/reservations/u", 405),
    ("get", "/", 404),
    ("get", "/filter/x", 404),
    ("post", "/nothing", 404),
    ("get", "/reservations/unknown", 404),
    ("get", "/static/x", 404),
    ("get", "/reservations/a/b", 404),
)
def test_other_paths_and_methods(web, method, path, status):
    assert getattr(web.client, method)(path).status_code == status


# garbage


@pytest.mark.parametrize("path", BODIES)
def test_truncated_bodies_are_answered(web, path):
    whole = json.dumps(BODIES[path]).encode()
    for length in range(0, len(whole), 3):
        web.post(path, whole[:length])


@pytest.mark.parametrize("path", BODIES)
def test_damaged_bodies_are_answered(path):
    web, whole = Web(), json.dumps(BODIES[path]).encode()

    @given(
        st.dictionaries(st.integers(0, len(whole) - 1), st.integers(0, 255), min_size=1, max_size=8)
    )
    def answered(changes):
        web.post(path, bytes(changes.get(place, byte) for place, byte in enumerate(whole)))

    answered()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value, path=()):
    yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from places(inner, (*path, key))


def with_another(value, path, new):
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = with_another(value[path[0]], path[1:], new)
    return changed


@pytest.mark.parametrize("path", BODIES)
def test_values_of_wrong_types_are_answered(path):
    web, body = Web(), BODIES[path]

    @given(st.sampled_from(list(places(body))), JSON)
    def answered(place, new):
        web.post(path, json.dumps(with_another(body, place, new)).encode())

    answered()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"Pod":' + b"[" * 200_000,
        b'{"request":{"object":' + b'{"a":' * 100_000,
        b'"\\ud800"',
        b'{"Pod": "\\ud800"}',
        b'{"PodName": "\\ud800", "PodUID": "x"}',
        b"\x00" * 1000,
        b"1e999999",
        b"9" * 100_000,
        b'{"Pod": {"metadata": {"uid": "' + b"u" * 500_000 + b'"}}}',
    ],
    ids=range(11),
)
def test_extreme_bodies_are_answered(web, path, body):
    web.post(path, body)
