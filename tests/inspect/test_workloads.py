"""Manifests: what makes pods, and errors that name file, document and field."""

import json

import pytest

from hami.errors import HamiError
from hami.inspect.manifests import read_manifests

SPEC = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
TEMPLATE = {"metadata": {"annotations": {"a": "b"}, "labels": {"l": "m"}, "name": "ignored"}, "spec": SPEC}


def manifest(kind, spec, name="x", **meta):
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **meta}, "spec": spec}


def read(*documents):
    return read_manifests("\n---\n".join(map(json.dumps, documents)), "f.yaml")


@pytest.mark.parametrize("kind, spec, count", [
    ("Pod", SPEC, 1), ("Deployment", {"template": TEMPLATE}, 1),
    ("Deployment", {"replicas": 3, "template": TEMPLATE}, 3),
    ("Deployment", {"replicas": 0, "template": TEMPLATE}, 0), ("StatefulSet", {"replicas": 2, "template": TEMPLATE}, 2),
    ("ReplicaSet", {"replicas": 4, "template": TEMPLATE}, 4), ("Job", {"template": TEMPLATE}, 1),
    ("Job", {"parallelism": 5, "template": TEMPLATE}, 5),
    ("Job", {"parallelism": 5, "completions": 2, "template": TEMPLATE}, 2),
    ("CronJob", {"schedule": "x", "jobTemplate": {"spec": {"parallelism": 2, "template": TEMPLATE}}}, 2),
])
def test_what_makes_pods(kind, spec, count):
    (source,), others = read(manifest(kind, spec, namespace="team"))
    assert (source.title, source.namespace, source.count, others) == (f"{kind.lower()}/x", "team", count, [])
    assert source.pod["spec"] == SPEC
    if kind != "Pod":
        assert source.pod["metadata"] == {"annotations": {"a": "b"}, "labels": {"l": "m"}}


def test_several_documents_and_lists():
    pod = manifest("Pod", SPEC, "a")
    sources, others = read(pod, {"kind": "List", "items": [manifest("Pod", SPEC, "b"), pod]}, None,
                           manifest("Service", {}, "s"))
    assert [source.name for source in sources] == ["a", "b", "a"] and others == ["service/s"]


def test_a_pod_without_a_name():
    (source,), _ = read({"kind": "Pod", "metadata": {"generateName": "x-"}, "spec": SPEC})
    assert source.name == "x-"


@pytest.mark.parametrize("text, said", [
    ("kind: Pod\n---\nkind: [", "f.yaml: not YAML in line "),
    ("kind: Pod\nmetadata: {name: a}", "f.yaml: document 1: spec: missing, expected a mapping"),
    ("kind: Deployment\nspec: {replicas: two, template: {spec: {}}}",
     "f.yaml: document 1: spec.replicas: expected a whole"),
    ("kind: Deployment\nspec: {replicas: -1, template: {spec: {}}}",
     "f.yaml: document 1: spec.replicas: expected a whole"),
    ("kind: Deployment\nspec: {replicas: 1000000, template: {spec: {}}}", "expected at most 100000 pods"),
    ("kind: Job\nspec: {}", "f.yaml: document 1: spec.template: missing"),
    ("a: b", "f.yaml: document 1: kind: missing"), ("- a", "f.yaml: document 1: "),
    ("kind: Pod\nspec: {containers: [{name: 3}]}", r"f.yaml: document 1: pod: .*containers\[0\].name"),
    ("kind: Pod\nspec: {containers: []}\n---\nkind: Pod\nspec: {containers: x}", "f.yaml: document 2: pod: "),
    ("kind: List\nitems: [{kind: Pod}]", r"f.yaml: document 1: items\[0\]: spec: missing"),
    ("kind: Service", "f.yaml: nothing in it makes pods; expected Pod, Deployment"), ("", "nothing in it makes pods"),
])
def test_errors_name_file_document_and_field(text, said):
    with pytest.raises(HamiError, match=said):
        read_manifests(text, "f.yaml")
