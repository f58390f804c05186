"""What Cluster sends, what it makes of the answers, and which calls it repeats."""

import inspect
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from urllib3.exceptions import NewConnectionError, ProtocolError, ReadTimeoutError

from hami.errors import ClusterError, Conflict, MalformedInput, NotFound
from hami.kube.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from hami.kube.cluster import Cluster
from hami.kube.leases import LeaseRecord
from hami.model import PodGroup, PodGroupRef, PodRef
from testing.cases import cases
from testing.fake_cluster import FakeCluster

REF = PodRef("team", "train", "uid-1")
POD_PATH = "/api/v1/namespaces/team/pods/train"
POD = {"metadata": {"namespace": "team", "name": "train", "uid": "uid-1", "resourceVersion": "7"}}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/hami/leases"
LEASE = {
    "kind": "Lease",
    "metadata": {
        "namespace": "hami",
        "name": "s",
        "resourceVersion": "5",
        "labels": {"l": "v"},
        "ownerReferences": [{"uid": "o"}],
        "managedFields": [{}],
    },
    "spec": {
        "holderIdentity": "a",
        "leaseDurationSeconds": 10,
        "leaseTransitions": 3,
        "strategy": "x",
        "acquireTime": "2026-01-01T00:00:00.000001Z",
        "renewTime": "2026-01-01T00:00:09.000001Z",
    },
}


class ScriptedApi:
    """Answers or raises what it is given, in order, and remembers what was asked."""

    def __init__(self, *answers):
        self.answers, self.calls, self.queries = list(answers), [], []

    def request(
        self, method, path, *, query=None, body=None, content_type="application/json", timeout=None
    ):
        self.calls.append(
            (method, path, content_type, None if body is None else json.loads(body), timeout)
        )
        self.queries.append(query)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def talk(*answers):
    api = ScriptedApi(*answers)
    return api, Cluster(api, sleep=lambda seconds: None)


def failure(cause):
    error = ClusterError("no answer")
    error.__cause__ = cause
    return error


REFUSED = failure(NewConnectionError(None, "refused"))
BROKEN = failure(ProtocolError("reset"))
LATE = failure(ReadTimeoutError(None, "", "too late"))


def test_reads():
    api, cluster = talk(POD, {"metadata": {"name": "gpu-0"}})
    assert cluster.pod("team", "train").ref == REF
    assert cluster.node("gpu-0").name == "gpu-0"
    assert api.calls == [
        ("GET", POD_PATH, "application/json", None, None),
        ("GET", "/api/v1/nodes/gpu-0", "application/json", None, None),
    ]


def test_the_environment_is_that_of_exactly_this_pod():
    spec = {
        "containers": [
            {"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}]}
        ]
    }
    _, cluster = talk(POD | {"spec": spec}, POD | {"spec": spec}, POD, NotFound("no", 404))
    assert cluster.environment(REF, "c") == {"A": "1"}
    assert cluster.environment(REF, "d") == {}
    with pytest.raises(NotFound, match="pod team/train is another one now"):
        cluster.environment(replace(REF, uid="uid-2"), "c")
    with pytest.raises(NotFound):
        cluster.environment(REF, "c")


@pytest.mark.parametrize(
    "read", [lambda c: c.pod("n", "p"), lambda c: c.node("n"), lambda c: c.lease("n", "l")]
)
def test_what_does_not_exist_is_none(read):
    assert read(talk(NotFound("no", 404))[1]) is None


def test_annotate_pod_names_the_pod_by_uid():
    api, cluster = talk(POD)
    assert cluster.annotate_pod(REF, {"a": "1", "b": None}, {"l": "v"}).resource_version == "7"
    assert api.calls == [
        (
            "PATCH",
            POD_PATH,
            "application/merge-patch+json",
            {
                "metadata": {
                    "uid": "uid-1",
                    "annotations": {"a": "1", "b": None},
                    "labels": {"l": "v"},
                }
            },
            None,
        )
    ]


def test_annotate_pod_compares_and_swaps_when_asked():
    api, cluster = talk(POD)
    cluster.annotate_pod(REF, {"a": "1"}, resource_version="6")
    assert api.calls[0][3] == {
        "metadata": {"uid": "uid-1", "annotations": {"a": "1"}, "resourceVersion": "6"}
    }


def test_annotate_pod_makes_one_attempt_within_a_time():
    api, cluster = talk(POD, REFUSED, POD)
    cluster.annotate_pod(REF, {"a": "1"}, timeout=2)
    assert [call[-1] for call in api.calls] == [2]
    with pytest.raises(ClusterError):
        cluster.annotate_pod(REF, {"a": "1"}, timeout=2)
    assert len(api.calls) == 2


@cases(
    "message, kind",
    ('Pod "train" is invalid: metadata.uid: Invalid value: "x": field is immutable', Conflict),
    ('Pod "train" is invalid: metadata.labels: Invalid value', ClusterError),
)
def test_a_later_pod_of_that_name_is_a_conflict(message, kind):
    with pytest.raises(ClusterError) as caught:
        talk(ClusterError(message, 422))[1].annotate_pod(REF, {})
    assert type(caught.value) is kind
    assert caught.value.status == 422


@pytest.mark.parametrize(("version", "extra"), [("", {}), ("9", {"resourceVersion": "9"})])
def test_annotate_node_compares_and_swaps_when_asked(version, extra):
    api, cluster = talk({"metadata": {"name": "gpu-0"}})
    cluster.annotate_node("gpu-0", {"a": None}, version)
    assert api.calls[0][3] == {"metadata": {"annotations": {"a": None}} | extra}


def test_labels_of_a_node_are_merged():
    api, cluster = talk({"metadata": {"name": "gpu-0"}})
    cluster.label_node("gpu-0", {"a": "1", "b": None})
    assert api.calls[0][:2] == ("PATCH", "/api/v1/nodes/gpu-0")
    assert api.calls[0][3] == {"metadata": {"labels": {"a": "1", "b": None}}}


def test_capacity_is_published_in_the_status():
    api, cluster = talk({"metadata": {"name": "gpu-0"}})
    cluster.publish_capacity("gpu-0", {"r": "1", "s": None}, {"a": "r"})
    assert api.calls == [
        (
            "PATCH",
            "/api/v1/nodes/gpu-0/status",
            "application/merge-patch+json",
            {
                "metadata": {"annotations": {"a": "r"}},
                "status": {"capacity": {"r": "1", "s": None}, "allocatable": {"r": "1", "s": None}},
            },
            None,
        )
    ]


def test_health_is_published_as_one_condition_among_others():
    api, cluster = talk({"metadata": {"name": "gpu-0"}})
    condition = {"type": "HamiGpuHealthy", "status": "True"}
    cluster.publish_health("gpu-0", {"a": None}, condition)
    assert api.calls == [
        (
            "PATCH",
            "/api/v1/nodes/gpu-0/status",
            "application/strategic-merge-patch+json",
            {"metadata": {"annotations": {"a": None}}, "status": {"conditions": [condition]}},
            None,
        )
    ]


def test_bind_carries_everything_in_one_write():
    api, cluster = talk({"kind": "Status"})
    cluster.bind(REF, "gpu-0", {"a": "1"}, {"l": "v"}, timeout=2)
    assert api.calls == [
        (
            "POST",
            POD_PATH + "/binding",
            "application/json",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {
                    "namespace": "team",
                    "name": "train",
                    "uid": "uid-1",
                    "annotations": {"a": "1"},
                    "labels": {"l": "v"},
                },
                "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-0"},
            },
            2,
        )
    ]


def test_events():
    api, cluster = talk(b"{}", b"{}")
    cluster.create_event("team", {"x": 1})
    cluster.patch_event("team", "e.1", {"count": 2})
    assert [call[:2] for call in api.calls] == [
        ("POST", "/api/v1/namespaces/team/events"),
        ("PATCH", "/api/v1/namespaces/team/events/e.1"),
    ]


def test_a_lease_is_read_and_only_what_we_know_of_it_is_changed():
    api, cluster = talk(LEASE, LEASE)
    lease = cluster.lease("hami", "s")
    assert lease == LeaseRecord(
        namespace="hami",
        name="s",
        holder="a",
        duration_s=10,
        transitions=3,
        acquire_time="2026-01-01T00:00:00.000001Z",
        renew_time="2026-01-01T00:00:09.000001Z",
        resource_version="5",
    )
    cluster.write_lease(replace(lease, holder="", duration_s=1, annotations={"k": "v"}))
    method, path, content_type, body, _ = api.calls[1]
    assert (method, path, content_type) == ("PATCH", f"{LEASES}/s", MERGE_PATCH)
    assert body["metadata"] == {"name": "s", "resourceVersion": "5", "annotations": {"k": "v"}}
    known = {key: value for key, value in LEASE["spec"].items() if key != "strategy"}
    assert body["spec"] == known | {"holderIdentity": "", "leaseDurationSeconds": 1}


def test_a_lease_is_created_without_what_is_not_given():
    api, cluster = talk(LEASE)
    cluster.write_lease(LeaseRecord(namespace="hami", name="s", holder="a", duration_s=10))
    method, path, _, body, _ = api.calls[0]
    assert (method, path) == ("POST", LEASES)
    assert "resourceVersion" not in body["metadata"]
    assert body["spec"] == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 10,
        "leaseTransitions": 0,
        "acquireTime": None,
        "renewTime": None,
    }


@pytest.mark.parametrize("spec", [{}, {"spec": None}, {"spec": {"holderIdentity": None}}])
def test_an_empty_lease_is_held_by_nobody(spec):
    lease = talk({"metadata": LEASE["metadata"]} | spec)[1].lease("hami", "s")
    assert (lease.holder, lease.duration_s, lease.renew_time, lease.transitions) == ("", 0, "", 0)


@pytest.mark.parametrize("data", [b"<html>", b"{}", b'{"metadata": {"name": 1}}'])
def test_a_malformed_lease_is_named(data):
    with pytest.raises(MalformedInput, match="lease"):
        talk(data)[1].lease("hami", "s")


@pytest.mark.parametrize(
    "error", [REFUSED, BROKEN, ClusterError("429", 429), ClusterError("503", 503)], ids=str
)
def test_a_read_is_repeated_for_a_moment(error):
    api, cluster = talk(error, error, POD)
    assert cluster.pod("team", "train").ref == REF
    assert len(api.calls) == 3


@pytest.mark.parametrize("error", [LATE, ClusterError("403", 403)], ids=str)
def test_a_read_that_was_too_slow_or_refused_is_not_repeated(error):
    api, cluster = talk(error)
    with pytest.raises(ClusterError):
        cluster.pod("team", "train")
    assert len(api.calls) == 1


WRITES = [
    ("annotate_pod", lambda c: c.annotate_pod(REF, {})),
    ("annotate_node", lambda c: c.annotate_node("n", {})),
    ("label_node", lambda c: c.label_node("n", {})),
    ("publish_capacity", lambda c: c.publish_capacity("n", {}, {})),
    ("publish_health", lambda c: c.publish_health("n", {}, {})),
    ("create_event", lambda c: c.create_event("n", {})),
]


@cases("write", *WRITES)
@pytest.mark.parametrize("error", [REFUSED, ClusterError("429", 429)], ids=str)
def test_a_write_is_repeated_when_the_server_has_not_taken_it_up(write, error):
    api, cluster = talk(error, error, POD)
    write(cluster)
    assert len(api.calls) == 3


@cases("write", *WRITES)
@pytest.mark.parametrize(
    "error", [BROKEN, LATE, ClusterError("500", 500), Conflict("409", 409)], ids=str
)
def test_a_write_that_may_have_happened_is_not_repeated(write, error):
    api, cluster = talk(error)
    with pytest.raises(ClusterError) as caught:
        write(cluster)
    assert caught.value is error
    assert len(api.calls) == 1


def test_repeating_ends():
    api, cluster = talk(*[REFUSED] * 3)
    with pytest.raises(ClusterError):
        cluster.annotate_node("n", {})
    assert len(api.calls) == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.lease("n", "l"),
        lambda c: c.write_lease(LeaseRecord(namespace="n", name="l")),
        lambda c: c.write_lease(LeaseRecord(namespace="n", name="l", resource_version="5")),
        lambda c: c.bind(REF, "n", {}, {}),
    ],
)
def test_elections_and_binds_repeat_by_themselves(call):
    api, cluster = talk(REFUSED)
    with pytest.raises(ClusterError):
        call(cluster)
    assert len(api.calls) == 1


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_lead_elsewhere_is_refused(name):
    with pytest.raises(MalformedInput):
        talk()[1].pod("team", name)


def test_a_name_stays_one_segment():
    api, cluster = talk(POD)
    cluster.pod("team", "a/../b?x=y")
    assert api.calls[0][1] == "/api/v1/namespaces/team/pods/a%2F..%2Fb%3Fx%3Dy"


@cases(
    "read, path, query",
    (lambda c: c.pods_on("gpu-0"), "/api/v1/pods", {"fieldSelector": "spec.nodeName=gpu-0"}),
    (
        lambda c: c.pods_labeled("team", "a=b"),
        "/api/v1/namespaces/team/pods",
        {"labelSelector": "a=b"},
    ),
)
def test_pods_are_selected_by_the_server(read, path, query):
    api, cluster = talk({"metadata": {}, "items": [POD]})
    assert [pod.ref for pod in read(cluster)] == [REF]
    assert api.calls[0][1] == path
    assert api.queries == [query]


def test_a_malformed_list_is_named():
    with pytest.raises(MalformedInput, match="list of pods"):
        talk(b"<html>")[1].pods_on("gpu-0")


def calls(of):
    return {
        name: [(p.name, p.kind) for p in inspect.signature(f).parameters.values()]
        for name, f in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("name", sorted(calls(Cluster)))
def test_the_fake_takes_the_same_calls(name):
    assert calls(FakeCluster)[name] == calls(Cluster)[name]


def test_an_eviction_is_a_condition_and_a_deletion_of_exactly_this_pod():
    api, cluster = talk(b"{}", b"{}", b"{}")
    cluster.nominate(REF, "n1")
    cluster.mark_preempted(REF, "why", datetime(2026, 1, 1, tzinfo=UTC))
    cluster.evict(REF, 30)
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "why",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    assert [call[:4] for call in api.calls] == [
        (
            "PATCH",
            f"{POD_PATH}/status",
            MERGE_PATCH,
            {"metadata": {"uid": "uid-1"}, "status": {"nominatedNodeName": "n1"}},
        ),
        (
            "PATCH",
            f"{POD_PATH}/status",
            STRATEGIC_MERGE_PATCH,
            {"metadata": {"uid": "uid-1"}, "status": {"conditions": [condition]}},
        ),
        (
            "DELETE",
            POD_PATH,
            "application/json",
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": {"uid": "uid-1"},
                "gracePeriodSeconds": 30,
            },
        ),
    ]


@cases(
    "act",
    ("nominate", lambda cluster: cluster.nominate(REF, "n1")),
    (
        "mark_preempted",
        lambda cluster: cluster.mark_preempted(REF, "why", datetime(2026, 1, 1, tzinfo=UTC)),
    ),
)
def test_a_status_of_another_pod_is_a_conflict(act):
    _, cluster = talk(ClusterError("metadata.uid: Invalid value", 422))
    with pytest.raises(Conflict):
        act(cluster)


def test_a_pod_group_is_read_where_it_is():
    ref = PodGroupRef("default", "ring")
    api, cluster = talk(NotFound("gone", 404), {"spec": {"minMember": 3}})
    assert cluster.pod_group(ref) == PodGroup(min_count=3, disrupted_with="podgroup/ring")
    assert [call[1] for call in api.calls] == [
        "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups/ring",
        "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups/ring",
    ]
    api, cluster = talk(NotFound("gone", 404), NotFound("gone", 404))
    assert cluster.pod_group(ref) == PodGroup(disrupted_with="podgroup/ring")


def test_the_condition_of_an_eviction_is_removed_from_the_pod_as_it_is_known():
    api, cluster = talk(b"{}")
    cluster.clear_preempted(REF, "7")
    assert [call[:4] for call in api.calls] == [
        (
            "PATCH",
            f"{POD_PATH}/status",
            STRATEGIC_MERGE_PATCH,
            {
                "metadata": {"uid": "uid-1", "resourceVersion": "7"},
                "status": {"conditions": [{"type": "DisruptionTarget", "$patch": "delete"}]},
            },
        )
    ]


def test_disruption_budgets_are_read_from_the_cache_of_the_api_server():
    api, cluster = talk(
        {
            "metadata": {},
            "items": [
                {
                    "metadata": {"namespace": "team", "name": "b"},
                    "status": {"disruptionsAllowed": 2},
                    "spec": {
                        "selector": {
                            "matchLabels": {"app": "x"},
                            "matchExpressions": [{"key": "tier", "operator": "Exists"}],
                        }
                    },
                },
                {"metadata": {"namespace": "team", "name": "none"}},
            ],
        }
    )
    (selecting, none) = cluster.disruption_budgets()
    assert (selecting.key, selecting.allowed) == ("team/b", 2)
    assert selecting.selects("team", {"app": "x", "tier": ""})
    assert not selecting.selects("team", {"app": "x"})
    assert not selecting.selects("other", {"app": "x", "tier": ""})
    assert not none.selects("team", {})
    assert api.calls[0][:2] == ("GET", "/apis/policy/v1/poddisruptionbudgets")
    assert api.queries == [{"resourceVersion": "0"}]
