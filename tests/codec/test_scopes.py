"""The properties of pods that select their quotas, as Kubernetes derives them."""

import json

import pytest
from pytest import param

from hami.codec.pods import parse_pod
from hami.model import PodScope

BUSY = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}


def scope(spec, status=None):
    """The properties of a pod with this specification."""
    return parse_pod(json.dumps({"spec": spec, "status": status or {}}).encode()).scope


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        param({}, PodScope(), id="none"),
        param({"priorityClassName": "high"}, PodScope("high"), id="priority class"),
        param(
            {"priorityClassName": None, "activeDeadlineSeconds": None, "affinity": None},
            PodScope(),
            id="null",
        ),
        param({"activeDeadlineSeconds": 60}, PodScope(has_deadline=True), id="deadline"),
        param({"activeDeadlineSeconds": 0}, PodScope(has_deadline=True), id="deadline of nothing"),
        param({"activeDeadlineSeconds": -1}, PodScope(), id="negative deadline"),
    ],
)
def test_priority_class_and_deadline(spec, expected):
    assert scope(BUSY | spec) == expected


def resources(**amounts):
    return {"resources": amounts}


LIMITS, REQUESTS = resources(limits={"cpu": "1"}), resources(requests={"memory": "1Gi"})
DEVICES = resources(
    limits={"nvidia.com/gpu": "1"}, requests={"nvidia.com/gpu": "1", "ephemeral-storage": "1Gi"}
)
ZERO = resources(limits={"cpu": "0", "memory": "0Gi"}, requests={"cpu": 0, "memory": "0.0"})


@pytest.mark.parametrize(
    ("spec", "best_effort"),
    [
        param({"containers": [{}]}, True, id="no resources"),
        param({"containers": [DEVICES]}, True, id="devices and storage"),
        param({"containers": [ZERO]}, True, id="zeros"),
        param({"containers": [LIMITS]}, False, id="a limit of CPU"),
        param({"containers": [REQUESTS]}, False, id="a request of memory"),
        param({"containers": [resources(limits={"cpu": "1m"})]}, False, id="little"),
        param({"containers": [DEVICES, LIMITS]}, False, id="one of two containers"),
        param(
            {"containers": [DEVICES], "initContainers": [REQUESTS]}, False, id="an init container"
        ),
        param({"containers": [DEVICES]} | REQUESTS, False, id="the pod as a whole"),
        param({"containers": [LIMITS]} | ZERO, True, id="nothing for the pod as a whole"),
        param(
            {"containers": [LIMITS]} | resources(requests={"hugepages-2Mi": "2Mi"}),
            True,
            id="huge pages of the pod",
        ),
        param({"containers": [LIMITS]} | resources(), False, id="empty resources of the pod"),
        param({"containers": [LIMITS]} | DEVICES, False, id="other resources of the pod"),
    ],
)
def test_best_effort(spec, best_effort):
    assert scope(spec).is_best_effort is best_effort


@pytest.mark.parametrize(
    ("spec", "qos", "best_effort"),
    [
        (BUSY, "BestEffort", True),
        ({"containers": [{}]}, "Burstable", False),
        (BUSY, "", False),
        (BUSY, None, False),
    ],
)
def test_the_status_goes_first(spec, qos, best_effort):
    assert scope(spec, {"qosClass": qos}).is_best_effort is best_effort


OWN, NAMED, SELECTED = {"topologyKey": "zone"}, {"namespaces": ["other"]}, {"namespaceSelector": {}}


@pytest.mark.parametrize(
    ("terms", "crosses"),
    [
        ([], False),
        ([OWN], False),
        ([{"namespaces": []}], False),
        ([{"namespaceSelector": None}], False),
        ([NAMED], True),
        ([SELECTED], True),
        ([OWN, {"namespaceSelector": {"matchLabels": {"a": "b"}}}], True),
    ],
    ids=["none", "own", "no names", "null", "names", "all", "labels"],
)
@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize("is_required", [True, False], ids=["required", "preferred"])
def test_terms_that_cross_namespaces(terms, crosses, kind, is_required):
    rules = (
        {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        if is_required
        else {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": term} for term in terms
            ]
        }
    )
    assert scope(BUSY | {"affinity": {"nodeAffinity": {"x": 1}, kind: rules}}) == PodScope(
        crosses_namespaces=crosses
    )


def test_equal_properties_are_one_object():
    assert scope(BUSY | {"priorityClassName": "high"}) is scope(
        BUSY | {"priorityClassName": "high"}
    )
