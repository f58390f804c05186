"""Manifests: what makes pods, and errors that name file, document and field."""

import json

import pytest

from hami.errors import HamiError
from hami.inspect.manifests import read_manifests
from testing.cases import cases

SPEC = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
TEMPLATE = {
    "metadata": {"annotations": {"a": "b"}, "labels": {"l": "m"}, "name": "ignored"},
    "spec": SPEC,
}


def manifest(kind, spec, name="x", **meta):
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **meta}, "spec": spec}


def read(*documents):
    return read_manifests("\n---\n".join(map(json.dumps, documents)), "f.yaml")


@cases(
    "kind, spec, count",
    ("Pod", SPEC, 1),
    ("Deployment", {"template": TEMPLATE}, 1),
    ("Deployment", {"replicas": 3, "template": TEMPLATE}, 3),
    ("Deployment", {"replicas": 0, "template": TEMPLATE}, 0),
    ("StatefulSet", {"replicas": 2, "template": TEMPLATE}, 2),
    ("ReplicaSet", {"replicas": 4, "template": TEMPLATE}, 4),
    ("Job", {"template": TEMPLATE}, 1),
    ("Job", {"parallelism": 5, "template": TEMPLATE}, 5),
    ("Job", {"parallelism": 5, "completions": 2, "template": TEMPLATE}, 2),
    (
        "CronJob",
        {"schedule": "x", "jobTemplate": {"spec": {"parallelism": 2, "template": TEMPLATE}}},
        2,
    ),
)
def test_what_makes_pods(kind, spec, count):
    (source,), others = read(manifest(kind, spec, namespace="team"))
    assert (source.title, source.namespace, source.count, others) == (
        f"{kind.lower()}/x",
        "team",
        count,
        [],
    )
    assert source.pod["spec"] == SPEC
    if kind != "Pod":
        assert source.pod["metadata"] == {"annotations": {"a": "b"}, "labels": {"l": "m"}}


GROUP = {"template": TEMPLATE}
RAY = {
    "headGroupSpec": GROUP,
    "workerGroupSpecs": [
        {**GROUP, "groupName": "gpus", "replicas": 2, "numOfHosts": 4},
        {**GROUP, "groupName": "none", "replicas": 0},
    ],
}
RAY_PODS = {"head": 1, "gpus": 8}


@cases(
    "kind, spec, counts",
    (
        "JobSet",
        {
            "replicatedJobs": [
                {"name": "driver", "template": {"spec": GROUP}},
                {
                    "name": "workers",
                    "replicas": 2,
                    "template": {"spec": {**GROUP, "parallelism": 4, "completions": 3}},
                },
            ]
        },
        {"driver": 1, "workers": 6},
    ),
    (
        "LeaderWorkerSet",
        {"replicas": 3, "leaderWorkerTemplate": {"size": 4, "workerTemplate": TEMPLATE}},
        {"leader": 3, "worker": 9},
    ),
    (
        "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"workerTemplate": TEMPLATE, "leaderTemplate": TEMPLATE}},
        {"leader": 1},
    ),
    ("RayCluster", RAY, RAY_PODS),
    ("RayJob", {"entrypoint": "x", "rayClusterSpec": RAY}, RAY_PODS),
    ("RayService", {"rayClusterConfig": RAY}, RAY_PODS),
    (
        "PyTorchJob",
        {
            "nprocPerNode": "1",
            "pytorchReplicaSpecs": {"Master": GROUP, "Worker": {**GROUP, "replicas": 3}},
        },
        {"master": 1, "worker": 3},
    ),
    (
        "MPIJob",
        {"mpiReplicaSpecs": {"Launcher": GROUP, "Worker": {**GROUP, "replicas": 2}}},
        {"launcher": 1, "worker": 2},
    ),
    (
        "Workload",
        {
            "queueName": "q",
            "podSets": [{**GROUP, "name": "main", "count": 5}, {**GROUP, "name": "b"}],
        },
        {"main": 5, "b": 1},
    ),
)
def test_groups_of_pods(kind, spec, counts):
    sources, others = read(manifest(kind, spec, namespace="team"))
    assert {source.name.removeprefix("x/"): source.count for source in sources} == counts
    assert others == []
    assert all(source.pod["spec"] == SPEC and source.namespace == "team" for source in sources)
    assert {source.title for source in sources} == {f"{kind.lower()}/x/{name}" for name in counts}


def test_a_ray_job_in_a_cluster_that_exists_makes_no_pods():
    sources, _ = read(manifest("RayJob", {"clusterSelector": {"a": "b"}}), manifest("Pod", SPEC))
    assert [source.kind for source in sources] == ["Pod"]


def test_several_documents_and_lists():
    pod = manifest("Pod", SPEC, "a")
    sources, others = read(
        pod,
        {"kind": "List", "items": [manifest("Pod", SPEC, "b"), pod]},
        None,
        manifest("Service", {}, "s"),
    )
    assert [source.name for source in sources] == ["a", "b", "a"]
    assert others == ["service/s"]


def test_a_pod_without_a_name():
    (source,), _ = read({"kind": "Pod", "metadata": {"generateName": "x-"}, "spec": SPEC})
    assert source.name == "x-"


@cases(
    "text, said",
    ("kind: Pod\n---\nkind: [", "f.yaml: not YAML in line "),
    ("kind: Pod\nmetadata: {name: a}", "f.yaml: document 1: spec: missing, expected a mapping"),
    (
        "kind: Deployment\nspec: {replicas: two, template: {spec: {}}}",
        "f.yaml: document 1: spec.replicas: expected a whole",
    ),
    (
        "kind: Deployment\nspec: {replicas: -1, template: {spec: {}}}",
        "f.yaml: document 1: spec.replicas: expected a whole",
    ),
    (
        "kind: Deployment\nspec: {replicas: 1000000, template: {spec: {}}}",
        "expected at most 100000 pods",
    ),
    ("kind: Job\nspec: {}", "f.yaml: document 1: spec.template: missing"),
    ("a: b", "f.yaml: document 1: kind: missing"),
    ("- a", "f.yaml: document 1: "),
    (
        "kind: Pod\nspec: {containers: [{name: 3}]}",
        r"f.yaml: document 1: pod: .*containers\[0\].name",
    ),
    (
        "kind: Pod\nspec: {containers: []}\n---\nkind: Pod\nspec: {containers: x}",
        "f.yaml: document 2: pod: ",
    ),
    ("kind: List\nitems: [{kind: Pod}]", r"f.yaml: document 1: items\[0\]: spec: missing"),
    ("kind: JobSet\nspec: {}", "f.yaml: document 1: spec.replicatedJobs: missing"),
    (
        "kind: RayCluster\nspec: {headGroupSpec: {}}",
        "document 1: spec.headGroupSpec.template: missing",
    ),
    (
        "kind: PyTorchJob\nspec: {pytorchReplicaSpecs: {Worker: {template: 3}}}",
        "document 1: spec.pytorchReplicaSpecs.*: expected",
    ),
    ("kind: Service", "f.yaml: nothing in it makes pods; expected Pod, Deployment"),
    ("", "nothing in it makes pods"),
)
def test_errors_name_file_document_and_field(text, said):
    with pytest.raises(HamiError, match=said):
        read_manifests(text, "f.yaml")
