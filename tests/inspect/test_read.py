"""The record of a cluster, read in pages with the rights of a user."""

import pytest

from hami.codec.keys import (
    CORES_LIMIT,
    GPU_POLICY,
    NODE_RESIZES,
    RESIZE,
    RESIZE_APPLIED,
    RESIZE_STATUS,
    RESIZE_TARGET,
    RESIZED,
)
from hami.codec.slices import render_slices
from hami.errors import ClusterError, HamiError
from hami.inspect.read import Reader
from hami.model import PodRef
from hami.scheduling.node_resources import NodeResources
from testing.builders import gpu
from testing.cases import cases
from testing.fake_api import FakeApi, bound, claimed, node, pending, quota, refused

NODES, PODS, QUOTAS = "/api/v1/nodes", "/api/v1/pods", "/api/v1/resourcequotas"
CONFIG = "/api/v1/namespaces/kube-system/configmaps/hami-scheduler-device"


def read(api, **source):
    """Returns the record of *api*, the notes, and the progress."""
    notes, progress = [], []
    reader = Reader(api.request, progress=lambda *step: progress.append(step), note=notes.append)
    return reader.record(**source), notes, progress


def test_everything_is_read_in_pages():
    api = FakeApi(
        [node(f"n{number}") for number in range(1001)],
        [pending("a", gpu=1)],
        [quota("default", gpumem=1)],
    )
    record, notes, progress = read(api)
    assert (len(record.nodes), len(record.pods), len(record.quotas), notes) == (1001, 1, 1, [])
    assert progress[:3] == [("nodes", 500, 1001), ("nodes", 1000, 1001), ("nodes", 1001, 1001)]


def test_only_pods_with_devices_are_kept_and_only_what_is_read_of_them():
    holder = bound("a", "n", (0, 100, 10))
    resize = {
        key: "x"
        for key in (RESIZE, RESIZED, RESIZE_TARGET, RESIZE_APPLIED, RESIZE_STATUS, CORES_LIMIT)
    }
    holder["metadata"]["annotations"] |= {"secret.example.com/token": "x"} | resize
    words = {NODE_RESIZES: "true", GPU_POLICY: "spread", "example.com/x": "x"}
    record, _, _ = read(FakeApi([node("n", annotations=words)], [holder, pending("web")]))
    (kept,) = record.pods
    assert resize.items() <= kept.annotations.items()
    assert record.nodes[0].annotations[NODE_RESIZES] == "true"
    assert record.nodes[0].annotations[GPU_POLICY] == "spread"
    assert "example.com/x" not in record.nodes[0].annotations
    assert kept.ref.name == "a"
    assert "secret.example.com/token" not in kept.annotations
    assert kept.annotations["hami.io/vgpu-devices-allocated"] == "GPU-n-0,NVIDIA,100,10:;"


def test_a_pod_whose_claim_cannot_be_read_is_kept():
    """Its report says why."""
    claimed = pending("web")
    claimed["spec"]["resourceClaims"] = [{"name": "hami", "resourceClaimName": "hami-" + "0" * 32}]
    record, _, _ = read(FakeApi([node("n")], [claimed]))
    (kept,) = record.pods
    assert kept.claim
    assert kept.claim_problem.startswith("hami.io/claim-amounts: missing")


SLICES, CLAIMS = (
    "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/resource.k8s.io/v1/resourceclaims",
)


def test_claims_and_the_pods_that_hold_them_are_read():
    foreign = {"metadata": {"namespace": "default", "name": "other", "uid": "other"}, "status": {}}
    api = FakeApi(
        [node("n")],
        [pending("a"), pending("web")],
        others={
            "resourceslices": list(render_slices("d", [gpu("GPU-d-0")])),
            "resourceclaims": [claimed("a", "d"), foreign],
        },
    )
    record, notes, _ = read(api)
    assert [part.node for part in record.slices] == ["d"]
    assert [claim.name for claim in record.claims] == ["a-hami"]
    assert [pod.ref.name for pod in record.pods] == ["a"]
    assert notes == []
    assert dict(api.requests)[SLICES]["fieldSelector"] == "spec.driver=gpu.hami.io"


def test_without_slices_no_claim_is_read():
    api = FakeApi([node("n")], others={"resourceclaims": [claimed("a", "d")]})
    assert read(api)[0].claims == ()
    assert CLAIMS not in dict(api.requests)


def test_a_claim_that_cannot_be_read_is_reported():
    api = FakeApi(
        [node("n")],
        others={
            "resourceslices": list(render_slices("d", [gpu("GPU-d-0")])),
            "resourceclaims": [claimed("a", "d", memory="much")],
        },
    )
    assert [(item.kind, item.name) for item in read(api)[0].unreadable] == [
        ("resourceclaim", "default/a-hami")
    ]


@cases(
    "labels, notes",
    ({}, []),
    (
        {"hami.io/allocation-mode": "dra"},
        [
            "you may not list resourceslices in the whole cluster: ask for the verb "
            "list on resourceslices there; devices "
            "that claims hold are left out of account"
        ],
    ),
)
def test_the_right_to_read_slices_is_missed_only_where_a_node_publishes_some(labels, notes):
    record, said, _ = read(FakeApi([node("n", labels=labels)], errors={SLICES: refused()}))
    assert (record.slices, said) == ((), notes)


def test_finished_pods_are_not_asked_for():
    api = FakeApi([node("n")])
    read(api)
    assert (
        dict(api.requests)[PODS]["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"
    )


def test_a_list_whose_pages_expire_starts_again():
    api = FakeApi([node(f"n{number}") for number in range(600)], expired={"500"})
    assert len(read(api)[0].nodes) == 600


def test_objects_that_cannot_be_read_are_counted():
    broken = pending("broken", gpu=1)
    broken["spec"]["containers"] = "none"
    record, _, _ = read(FakeApi([node("n")], [broken, pending("a", gpu=1)]))
    assert [pod.ref.name for pod in record.pods] == ["a"]
    assert [(unreadable.kind, unreadable.name) for unreadable in record.unreadable] == [
        ("pod", "default/broken")
    ]


@cases(
    "path, error, said",
    (
        "nodes",
        NODES,
        refused(),
        "you may not list nodes in the whole cluster: ask for the verb list on nodes there",
    ),
    ("pods", PODS, refused(), "you may not list pods in the whole cluster"),
    (
        "no answer",
        PODS,
        ClusterError("GET: NewConnectionError: refused"),
        "the API server does not answer: GET",
    ),
    (
        "not logged in",
        NODES,
        ClusterError("GET: 401: Unauthorized", 401),
        "does not accept your credentials: log in again",
    ),
    ("another error", NODES, ClusterError("GET: 500: broken", 500), "GET: 500: broken"),
)
def test_what_is_needed_and_missing_is_said(path, error, said):
    with pytest.raises(HamiError, match=said):
        read(FakeApi([node("n")], errors={path: error}))


@cases(
    "api, said",
    (
        "quotas",
        FakeApi(errors={QUOTAS: refused()}),
        "you may not list resourcequotas in the whole cluster",
    ),
    (
        "configuration",
        FakeApi(errors={CONFIG: refused()}),
        "you may not get configmaps in namespace kube-system",
    ),
    (
        "no configuration",
        FakeApi(config=None),
        "there is no ConfigMap kube-system/hami-scheduler-device",
    ),
)
def test_what_is_not_needed_is_left_out_with_a_note(api, said):
    _, (note,), _ = read(api)
    assert note.startswith(said)


def test_the_device_configuration_names_the_resources():
    config = "nvidia: {resourceCountName: example.com/card, resourceMemoryName: example.com/memory}"
    api = FakeApi(
        [node("n")], [pending("a", **{"example.com/card": 1}), pending("b", gpu=1)], config=config
    )
    assert [pod.ref.name for pod in read(api)[0].pods] == ["a"]
    assert [pod.ref.name for pod in read(api, device_config="")[0].pods] == ["b"]


def scheduler_that_mounts(config_map, name, namespace="kube-system"):
    volumes = [
        {"name": "tls", "secret": {"secretName": "tls"}},
        {"name": "device-config", "configMap": {"name": config_map}},
    ]
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"template": {"spec": {"volumes": volumes}}},
    }


@cases(
    "mounted, notes",
    ("kustomize", ["hami-scheduler-device-kf6g4m7c8d"], 0),
    ("one is gone", ["hami-scheduler-device-a", "hami-scheduler-device-kf6g4m7c8d"], 1),
    ("another name", ["x", "hami-scheduler-device-kf6g4m7c8d"], 0),
    ("two with the same", ["hami-scheduler-device-kf6g4m7c8d"] * 2, 0),
)
def test_the_device_configuration_is_that_which_the_scheduler_mounts(mounted, notes):
    """kustomize adds a hash to its name."""
    api = FakeApi(
        pods=[pending("a", **{"example.com/card": 1}), pending("b", gpu=1)],
        config="nvidia: {resourceCountName: example.com/card}",
        config_map="hami-scheduler-device-kf6g4m7c8d",
        others={
            "deployments": [
                scheduler_that_mounts(name, f"s{number}") for number, name in enumerate(mounted)
            ]
        },
    )
    record, said, _ = read(api)
    assert [pod.ref.name for pod in record.pods] == ["a"]
    assert len(said) == notes
    named, (note,), _ = read(api, config_map=("kube-system", "no-such"))
    assert [pod.ref.name for pod in named.pods] == ["b"]
    assert note.startswith("there is no ConfigMap kube-system/no-such")


def test_a_deployment_of_a_tenant_names_no_device_configuration():
    """Whoever may write Deployments elsewhere could change what an administrator is told."""
    mounting = scheduler_that_mounts("hami-scheduler-device-x", "s", namespace="team")
    api = FakeApi(
        config="nvidia: [", config_map="hami-scheduler-device-x", others={"deployments": [mounting]}
    )
    _, (note,), _ = read(api)
    assert note.startswith("there is no ConfigMap kube-system/hami-scheduler-device;")


def test_a_device_configuration_that_cannot_be_read_is_an_error():
    with pytest.raises(HamiError, match="device configuration"):
        read(FakeApi(config="nvidia: ["))


def test_one_pod_is_read_by_name():
    reader = Reader(FakeApi(pods=[pending("a")]).request)
    assert reader.pod(PodRef("default", "a", "")).ref.name == "a"
    assert reader.pod(PodRef("default", "b", "")) is None


def test_equal_events_count_as_one():
    """As kube-scheduler writes two, and the text that was said last is the last."""

    def event(message, time, **fields):
        return {
            "reason": "FailedScheduling",
            "message": message,
            "reportingComponent": "s",
            "eventTime": time,
        } | fields

    series = {"count": 4, "lastObservedTime": "1"}
    api = FakeApi(events=[event("a", "3"), event("b", "2"), event("a", "1", series=series)])
    events = Reader(api.request).events(PodRef("default", "p", "u"))
    assert [(said.message, said.count, said.last) for said in events] == [
        ("b", 1, "2"),
        ("a", 5, "3"),
    ]


def test_the_latest_events_are_the_last_whatever_the_form_of_their_times():
    def event(message, time):
        return {
            "reason": "Failed",
            "message": message,
            "reportingComponent": "s",
            "eventTime": time,
        }

    second = "2026-08-21T12:00:05"
    api = FakeApi(
        events=[
            event("last", f"{second}.100000Z"),
            event("b", f"{second}Z"),
            event("a", f"{second}Z"),
            event("dropped", "2026-08-21T12:00:04.900000Z"),
        ]
    )
    events = Reader(api.request).events(PodRef("default", "p", "u"))
    assert [said.message for said in events] == ["a", "b", "last"]


BUDGET = {
    "metadata": {"namespace": "team", "name": "b"},
    "spec": {"selector": {}},
    "status": {"disruptionsAllowed": 1},
}
URGENT = {"metadata": {"name": "urgent"}, "value": 500, "preemptionPolicy": "Never"}
DEFAULT = {"metadata": {"name": "default"}, "value": 10, "globalDefault": True}


def test_budgets_and_priority_classes():
    reader = Reader(
        FakeApi(
            others={"poddisruptionbudgets": [BUDGET], "priorityclasses": [URGENT, DEFAULT]}
        ).request
    )
    (budget,) = reader.budgets()
    assert (budget.key, budget.allowed, budget.selector) == ("team/b", 1, ())
    classes = reader.priority_classes()
    assert (classes["urgent"].value, classes["urgent"].preemption_policy) == (500, "Never")
    assert classes["default"].global_default
    assert not classes["urgent"].global_default


def test_without_the_right_to_budgets_and_priority_classes_there_is_a_note():
    notes = []
    reader = Reader(
        FakeApi(
            errors={
                "/apis/policy/v1/poddisruptionbudgets": refused(),
                "/apis/scheduling.k8s.io/v1/priorityclasses": refused(),
            }
        ).request,
        note=notes.append,
    )
    assert (reader.budgets(), reader.priority_classes()) == ((), {})
    assert [note.rpartition("; ")[2] for note in notes] == [
        "PodDisruptionBudgets are left out of account",
        "pods whose manifest has no priority count with priority 0",
    ]


def test_what_pods_without_devices_request_is_added_up_by_node():
    pods = [bound("gpu", "n1", (0, 100, 10)), pending("waits")]
    for name, on in (("a", "n1"), ("b", "n1"), ("c", "n2")):
        made = pending(name)
        made["spec"] |= {"nodeName": on}
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m", "memory": "1Gi"}}
        pods.append(made)
    record, _, _ = read(FakeApi([node("n1"), node("n2")], pods))
    assert record.others == {"n1": NodeResources(1000, 2048), "n2": NodeResources(500, 1024)}
