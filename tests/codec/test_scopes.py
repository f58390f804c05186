"""The properties of pods that select their quotas, as Kubernetes derives them."""

import json

import pytest

from hami.codec.pods import parse_pod
from hami.model import PodScope
from testing.cases import cases

BUSY = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}


def scope(spec, status=None):
    """The properties of a pod with this specification."""
    return parse_pod(json.dumps({"spec": spec, "status": status or {}}).encode()).scope


@cases(
    "spec, expected",
    ("none", {}, PodScope()),
    ("priority class", {"priorityClassName": "high"}, PodScope("high")),
    (
        "null",
        {"priorityClassName": None, "activeDeadlineSeconds": None, "affinity": None},
        PodScope(),
    ),
    ("deadline", {"activeDeadlineSeconds": 60}, PodScope(has_deadline=True)),
    ("deadline of nothing", {"activeDeadlineSeconds": 0}, PodScope(has_deadline=True)),
    ("negative deadline", {"activeDeadlineSeconds": -1}, PodScope()),
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


@cases(
    "spec, best_effort",
    ("no resources", {"containers": [{}]}, True),
    ("devices and storage", {"containers": [DEVICES]}, True),
    ("zeros", {"containers": [ZERO]}, True),
    ("a limit of CPU", {"containers": [LIMITS]}, False),
    ("a request of memory", {"containers": [REQUESTS]}, False),
    ("little", {"containers": [resources(limits={"cpu": "1m"})]}, False),
    ("one of two containers", {"containers": [DEVICES, LIMITS]}, False),
    ("an init container", {"containers": [DEVICES], "initContainers": [REQUESTS]}, False),
    ("the pod as a whole", {"containers": [DEVICES]} | REQUESTS, False),
    ("nothing for the pod as a whole", {"containers": [LIMITS]} | ZERO, True),
    (
        "huge pages of the pod",
        {"containers": [LIMITS]} | resources(requests={"hugepages-2Mi": "2Mi"}),
        True,
    ),
    ("empty resources of the pod", {"containers": [LIMITS]} | resources(), False),
    ("other resources of the pod", {"containers": [LIMITS]} | DEVICES, False),
)
def test_best_effort(spec, best_effort):
    assert scope(spec).is_best_effort is best_effort


@cases(
    "spec, qos, best_effort",
    (BUSY, "BestEffort", True),
    ({"containers": [{}]}, "Burstable", False),
    (BUSY, "", False),
    (BUSY, None, False),
)
def test_the_status_goes_first(spec, qos, best_effort):
    assert scope(spec, {"qosClass": qos}).is_best_effort is best_effort


OWN, NAMED, SELECTED = {"topologyKey": "zone"}, {"namespaces": ["other"]}, {"namespaceSelector": {}}


@cases(
    "terms, crosses",
    ("none", [], False),
    ("own", [OWN], False),
    ("no names", [{"namespaces": []}], False),
    ("null", [{"namespaceSelector": None}], False),
    ("names", [NAMED], True),
    ("all", [SELECTED], True),
    ("labels", [OWN, {"namespaceSelector": {"matchLabels": {"a": "b"}}}], True),
)
@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@cases("is_required", ("required", True), ("preferred", False))
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
