"""Pods, nodes and quotas as the API server sends them."""

import json
import re

import pytest
from hypothesis import given

from hami.codec.objects import parse_disruption_budget, parse_node, parse_quota
from hami.codec.pods import (
    ContainerRuns,
    PodCondition,
    convert_pod,
    parse_node_pod,
    parse_observed_pod,
    parse_pod,
    parse_preempted,
    render_preempted,
)
from hami.errors import MalformedInput
from hami.model import (
    Container,
    ContainerKind,
    DisruptionBudget,
    EvictedTogether,
    LabelRequirement,
    Node,
    Pod,
    PodRef,
    PodScope,
    QuotaLimits,
    ScopeRequirement,
)
from testing.cases import cases
from testing.fuzz import bodies

WIRE_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {"a": "1"},
        "labels": {"b": "2"},
        "creationTimestamp": "2026-08-21T10:00:00Z",
        "managedFields": [{"x": 1}],
    },
    "spec": {
        "nodeName": "n1",
        "schedulerName": "hami-scheduler",
        "novel": {"field": [1]},
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "c",
                "image": "x",
                "resources": {
                    "limits": {"nvidia.com/gpu": "1", "cpu": 2},
                    "requests": {"memory": None},
                },
            }
        ],
    },
    "status": {"phase": "Running"},
}


def status(**codes):
    """Statuses of init containers by name: an exit code, or ``None`` for running."""
    return {
        "phase": "Running",
        "initContainerStatuses": [
            {
                "name": name,
                "state": {"running": {}} if code is None else {"terminated": {"exitCode": code}},
            }
            for name, code in codes.items()
        ],
    }


def parsed(**changes):
    return parse_pod(json.dumps(WIRE_POD | changes).encode())


@cases(
    "pod, expected",
    ("none", WIRE_POD, ("u", {"i": {}, "s": {}, "c": {}})),
    ("nothing at all", {}, ("", {})),
    (
        "the last counts, literal values only",
        {
            "spec": {
                "initContainers": [
                    {"name": "i", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}
                ],
                "containers": [
                    {
                        "name": "c",
                        "env": [
                            {"name": "B", "valueFrom": {"fieldRef": {}}},
                            {"name": "C"},
                            {"value": "x"},
                        ],
                    }
                ],
            }
        },
        ("", {"i": {"A": "2"}, "c": {"": "x"}}),
    ),
    ("null", {"spec": {"containers": [{"name": "c", "env": None}, {}]}}, ("", {"c": {}, "": {}})),
)
def test_environment(pod, expected):
    found = parse_node_pod(json.dumps(pod).encode())
    assert (found.pod.ref.uid, found.environments) == expected


@cases("claims, has_claims", (None, False), ([], False), ([{"name": "gpu"}], True))
def test_a_pod_that_names_claims(claims, has_claims):
    assert (
        parse_node_pod(json.dumps({"spec": {"resourceClaims": claims}}).encode()).has_claims
        is has_claims
    )


def test_the_claims_of_a_pod():
    named = {
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
            "containers": [
                {"name": "main", "resources": {"claims": [{"name": "gpu", "request": "a"}]}},
                {"name": "log"},
            ],
        }
    }
    assert parse_node_pod(json.dumps(named).encode()).claims == {"main": {"c": {"a"}}}
    many = {
        "spec": {
            "resourceClaims": [
                {"name": f"c{number}", "resourceClaimName": "c"} for number in range(65)
            ],
            "containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}],
        }
    }
    hidden = parse_node_pod(json.dumps(many).encode())  # by nothing that a tenant writes
    assert (hidden.claims, hidden.has_claims, hidden.environments) == (
        None,
        True,
        {"main": {"A": "1"}},
    )
    extended = {
        "status": {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": []}}
    }
    found = parse_node_pod(json.dumps(extended).encode())
    assert (found.has_claims, found.claims) == (True, {})


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"spec": {"containers": [{"env": {"A": "1"}}]}}']
)
def test_environment_that_cannot_be_read(body):
    with pytest.raises(MalformedInput):
        parse_node_pod(body)


@cases(
    "pod",
    ("all fields", WIRE_POD),
    ("empty", {}),
    ("null", {"metadata": None, "spec": None}),
    ("init container done", WIRE_POD | {"status": status(i=0)}),
)
def test_a_decoded_pod_converts_as_its_text_parses(pod):
    assert convert_pod(pod) == parse_pod(json.dumps(pod).encode())


@cases(
    "pod, path",
    ("containers a string", {"spec": {"containers": "x"}}, "$.spec.containers"),
    ("annotation a number", {"metadata": {"annotations": {"a": 1}}}, "$.metadata.annotations"),
    (
        "limit a bool",
        {"spec": {"containers": [{"resources": {"limits": {"cpu": True}}}]}},
        "resources.limits",
    ),
)
def test_a_decoded_pod_of_wrong_types_is_malformed(pod, path):
    with pytest.raises(MalformedInput, match=re.escape(path)):
        convert_pod(pod)


def test_pod():
    assert parsed() == Pod(
        ref=PodRef("ns", "p", "u"),
        resource_version="7",
        annotations={"a": "1"},
        labels={"b": "2"},
        node_name="n1",
        scheduler_name="hami-scheduler",
        phase="Running",
        created="2026-08-21T10:00:00Z",
        containers=(
            Container(name="i", kind=ContainerKind.INIT),
            Container(name="s", kind=ContainerKind.SIDECAR),
            Container(name="c", limits={"nvidia.com/gpu": "1", "cpu": "2"}),
        ),
    )


@cases(
    "text",
    ("nothing", "{}"),
    ("null", '{"metadata":null,"spec":null,"status":null}'),
    ("empty", '{"metadata":{},"spec":{},"status":{}}'),
    ("fields null", '{"metadata":{"name":null,"annotations":null},"spec":{"containers":null}}'),
    (
        "deep in a field that is not read",
        '{"metadata":{"name":null},"x":%s}' % ("[" * 900 + "]" * 900),
    ),
)
def test_missing_parts_are_empty(text):
    assert parse_pod(text.encode()) == Pod(
        ref=PodRef("", "", ""), scope=PodScope(is_best_effort=True)
    )


@pytest.mark.parametrize(
    "codes, done",
    [
        ({}, False),
        ({"i": None}, False),
        ({"i": 1}, False),
        ({"i": 0}, True),
        ({"i": 0, "s": None}, True),
        ({"s": 0}, False),
        ({"i": None, "s": 0}, False),
    ],
    ids=str,
)
def test_init_is_done_when_all_but_sidecars_have_succeeded(codes, done):
    assert parsed(status=status(**codes)).init_done is done


def test_a_pod_without_init_containers_is_never_done_with_them():
    assert not parsed(
        spec={"initContainers": [{"name": "s", "restartPolicy": "Always"}]}, status=status(s=0)
    ).init_done


@cases(
    "phase, terminated",
    ("Pending", False),
    ("Running", False),
    ("Succeeded", True),
    ("Failed", True),
    ("", False),
)
def test_terminated(phase, terminated):
    assert parsed(status={"phase": phase}).is_terminated is terminated


def test_deleting():
    assert parsed(metadata={"deletionTimestamp": "2026-08-21T10:00:00Z"}).deleting


def test_node():
    text = (
        b'{"metadata":{"name":"n1","resourceVersion":"3","annotations":{"a":"1"},"labels":{"b":"2"}},'
        b'"spec":{"taints":[]},"status":{"capacity":{"nvidia.com/gpu":"20"},"allocatable":{"nvidia.com/gpu":10}}}'
    )
    assert parse_node(text) == Node(
        name="n1",
        resource_version="3",
        annotations={"a": "1"},
        labels={"b": "2"},
        capacity={"nvidia.com/gpu": "20"},
        allocatable={"nvidia.com/gpu": "10"},
    )


def test_quota_keeps_integer_limits_and_which_devices_kubernetes_counts():
    hard = {
        "limits.nvidia.com/gpumem": "4k",
        "limits.nvidia.com/gpucores": 0,
        "requests.nvidia.com/gpu": "4",
        "requests.memory": "1Gi",
        "limits.memory": "1.5",
        "pods": "3",
        "limits.cpu": None,
    }
    assert parse_quota(
        json.dumps(
            {"metadata": {"name": "q", "namespace": "ns", "uid": "u"}, "spec": {"hard": hard}}
        ).encode()
    ) == (
        QuotaLimits(
            namespace="ns",
            name="q",
            uid="u",
            limits={"nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 0},
            requests=frozenset({"nvidia.com/gpu"}),
            entries=(
                ("limits.nvidia.com/gpumem", "4k"),
                ("limits.nvidia.com/gpucores", "0"),
                ("requests.nvidia.com/gpu", "4"),
            ),
        )
    )


@pytest.mark.parametrize(("length", "is_one_object"), [(253, True), (254, False)])
def test_equal_scopes_are_one_object_unless_no_class_has_such_a_name(length, is_one_object):
    """Anybody may send the webhook such a name; it would stay in memory."""
    text = json.dumps({"spec": {"priorityClassName": "x" * length}}).encode()
    assert parse_pod(text).scope.priority_class == "x" * length
    assert (parse_pod(text).scope is parse_pod(text).scope) is is_one_object


def test_quota_has_scopes_of_both_kinds():
    spec = {
        "scopes": ["Terminating"],
        "scopeSelector": {
            "matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]},
                {"scopeName": "BestEffort", "operator": "Exists"},
            ]
        },
    }
    assert parse_quota(json.dumps({"spec": spec}).encode()).scopes == (
        ScopeRequirement("Terminating"),
        ScopeRequirement("PriorityClass", "In", ("high",)),
        ScopeRequirement("BestEffort"),
    )


@pytest.mark.parametrize(
    "spec", [{}, {"scopes": None}, {"scopeSelector": None}, {"scopeSelector": {}}], ids=str
)
def test_a_quota_may_have_no_scopes(spec):
    assert parse_quota(json.dumps({"spec": spec}).encode()).scopes == ()


def test_quota_tells_limits_with_a_binary_unit():
    hard = {
        "limits.a/bare": "4",
        "limits.a/thousand": "4k",
        "limits.a/gib": "4Gi",
        "limits.a/part": "1500m",
    }
    quota = parse_quota(json.dumps({"spec": {"hard": hard}}).encode())
    assert (quota.limits, quota.binary) == (
        {"a/bare": 4, "a/thousand": 4000, "a/gib": 4 << 30},
        {"a/gib"},
    )


def test_a_limit_that_is_no_quantity_hides_no_other():
    hard = {"limits.a": "many", "limits.nvidia.com/gpumem": "4"}
    assert parse_quota(json.dumps({"spec": {"hard": hard}}).encode()).limits == {
        "nvidia.com/gpumem": 4
    }


@cases(
    "kind, text, problem",
    ("empty", "pod", "", ""),
    ("truncated", "pod", '{"metadata":', ""),
    ("null", "pod", "null", "Expected `object`, got `null`"),
    ("array", "pod", "[]", "Expected `object`, got `array`"),
    (
        "annotation a number",
        "pod",
        '{"metadata":{"annotations":{"a":1}}}',
        "$.metadata.annotations",
    ),
    ("annotation null", "pod", '{"metadata":{"annotations":{"a":null}}}', "$.metadata.annotations"),
    (
        "annotation null beside a field that is null",
        "pod",
        '{"metadata":{"name":null,"annotations":{"a":null}}}',
        "$.metadata.annotations",
    ),
    ("annotations a list", "pod", '{"metadata":{"annotations":[]}}', "$.metadata.annotations"),
    ("uid a number", "pod", '{"metadata":{"uid":7}}', "$.metadata.uid"),
    ("container null", "pod", '{"spec":{"containers":[null]}}', "$.spec.containers[0]"),
    ("containers an object", "pod", '{"spec":{"containers":{}}}', "$.spec.containers"),
    (
        "quantity a bool",
        "pod",
        '{"spec":{"containers":[{"resources":{"limits":{"a":true}}}]}}',
        "$.spec.containers[0].resources.limits",
    ),
    (
        "quantity a list",
        "pod",
        '{"spec":{"containers":[{"resources":{"limits":{"a":[]}}}]}}',
        "$.spec.containers[0].resources.limits",
    ),
    ("allocatable a list", "node", '{"status":{"allocatable":[]}}', "$.status.allocatable"),
    ("NaN", "node", '{"metadata":{"name":NaN}}', ""),
    ("hard a text", "resourcequota", '{"spec":{"hard":"x"}}', "$.spec.hard"),
    ("deep", "pod", "[" * 100_000, "Expected `object`"),
    ("deep in a field that is not read", "pod", '{"x":' * 100_000, ""),
)
def test_malformed(kind, text, problem):
    parse = {"pod": parse_pod, "node": parse_node, "resourcequota": parse_quota}[kind]
    with pytest.raises(MalformedInput) as caught:
        parse(text.encode())
    assert caught.value.field == kind
    assert problem in caught.value.problem
    assert caught.value.text == text[:200]


NODE = {
    "metadata": {"name": "n", "labels": {"a": "b"}},
    "status": {"allocatable": {"nvidia.com/gpu": "10"}},
}
QUOTA = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "4k"}}}
BUDGET = {
    "metadata": {"name": "b"},
    "spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
    "status": {"disruptionsAllowed": 1},
}


@pytest.mark.parametrize(
    "parse",
    [
        parse_pod,
        parse_node_pod,
        parse_observed_pod,
        parse_node,
        parse_quota,
        parse_disruption_budget,
    ],
)
@given(
    data=bodies(WIRE_POD | {"status": status(i=0)}) | bodies(NODE) | bodies(QUOTA) | bodies(BUDGET)
)
def test_anything_is_read_or_malformed(parse, data):
    try:
        parse(data)
    except MalformedInput as error:
        assert error.field.startswith(("pod", "node", "resourcequota", "environment", "container"))


def test_the_runs_of_containers():
    """Ids of this run and the one before; who has ended and was not started again."""
    ended = {"terminated": {"exitCode": 0, "containerID": "containerd://old"}}
    found = parse_node_pod(
        json.dumps(
            {
                "status": {
                    "initContainerStatuses": [
                        {"name": "init", "containerID": "cri-o://first", "state": ended}
                    ],
                    "containerStatuses": [
                        {
                            "name": "main",
                            "containerID": "containerd://new",
                            "state": {"running": {}},
                            "lastState": ended,
                        },
                        {"name": "waiting", "state": {"waiting": {}}},
                        {},
                    ],
                }
            }
        ).encode()
    ).runs
    assert found.ids == {"first": "init", "old": "main", "new": "main"}
    assert found.ended == {"init"}


@pytest.mark.parametrize(
    "body", [b"{}", b'{"status": {}}', b'{"status": {"containerStatuses": null}}']
)
def test_a_pod_that_has_not_run(body):
    assert parse_node_pod(body).runs == ContainerRuns()


def test_what_the_cluster_says_about_a_pod():
    observed = parse_observed_pod(
        json.dumps(
            {
                "status": {
                    "podIP": "10.0.0.1",
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "True",
                            "lastTransitionTime": "2026-08-21T10:00:00Z",
                        }
                    ],
                }
            }
        ).encode()
    )
    assert observed.ip == "10.0.0.1"
    assert observed.condition("Ready") == PodCondition(
        "Ready", "True", last_transition_time="2026-08-21T10:00:00Z"
    )
    assert observed.condition("PodScheduled") is None
    assert parse_observed_pod(b"{}").conditions == ()


@cases(
    "wire, fields",
    ({"spec": {"priority": 7}}, {"priority": 7}),
    ({"status": {"nominatedNodeName": "n1"}}, {"nominated_node": "n1"}),
    ({"spec": {"schedulingGroup": {"podGroupName": "g"}}}, {"group": "g"}),
    ({"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}}, {"group": "g"}),
    (
        {
            "status": {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes",
                        "lastTransitionTime": "t",
                    }
                ]
            }
        },
        {"scheduling_failure": "t Unschedulable 0/1 nodes"},
    ),
    (
        {
            "status": {
                "conditions": [
                    {"type": "PodScheduled", "status": "True"},
                    {"type": "Ready", "status": "False"},
                ]
            }
        },
        {},
    ),
    (
        {
            "spec": {"nodeName": "n"},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False"}]},
        },
        {},
    ),
    ({"spec": {"priority": None, "schedulingGroup": None}, "status": {"conditions": None}}, {}),
)
def test_what_kube_scheduler_shows_of_a_pod(wire, fields):
    pod = parse_pod(json.dumps(wire).encode())
    assert {
        name: getattr(pod, name)
        for name in ("priority", "nominated_node", "group", "scheduling_failure")
    } == {"priority": 0, "nominated_node": "", "group": "", "scheduling_failure": ""} | fields


FORGOTTEN = {
    "reason": "CreateContainerConfigError",
    "message": "no devices found allocated in local cache for pod u, container c",
}
TARGET = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
PREEMPTION = {
    "preempts": True,
    "devices_forgotten": False,
    "preempted": False,
    "controller": "",
    "is_node_agent": False,
    "grace_s": 30,
    "started": "",
    "deletion": "",
    "deletion_grace_s": 0,
}


@cases(
    "uid, node, together",
    ("8c2d", "n1", None),
    ("8c2d", "gpu.example.com", EvictedTogether(4, "9f3e")),
)
def test_the_condition_of_a_victim_says_for_whom_and_with_whom_it_ends(uid, node, together):
    assert parse_preempted(render_preempted(uid, node, together)) == (uid, together)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "hami-scheduler: preempting to accommodate a higher priority pod",
        "Preempted by pod",
        "Preempted by pod x",
        "Preempted by pod x on node n: 99999999999 pods are evicted together, the last of them is pod y",
        "Preempted by pod x on node n: 2 pods are evicted together, the last of them is pod y, and more",
    ],
)
def test_the_condition_of_another_program_says_nothing(message):
    assert parse_preempted(message) == ("", None)


@cases(
    "wire, fields",
    ("nothing", {}, {}),
    ("never preempts", {"spec": {"preemptionPolicy": "Never"}}, {"preempts": False}),
    ("preempts", {"spec": {"preemptionPolicy": "PreemptLowerPriority"}}, {}),
    ("no grace period", {"spec": {"terminationGracePeriodSeconds": 0}}, {"grace_s": 0}),
    (
        "null",
        {
            "spec": {"terminationGracePeriodSeconds": None, "preemptionPolicy": None},
            "metadata": {"ownerReferences": None},
            "status": {"startTime": None},
        },
        {},
    ),
    (
        "being deleted",
        {
            "metadata": {
                "deletionTimestamp": "2026-08-21T10:00:30Z",
                "deletionGracePeriodSeconds": 30,
            }
        },
        {"deletion": "2026-08-21T10:00:30Z", "deletion_grace_s": 30},
    ),
    (
        "started",
        {"status": {"startTime": "2026-08-21T10:00:00Z"}},
        {"started": "2026-08-21T10:00:00Z"},
    ),
    (
        "its kubelet has lost its checkpoint",
        {"status": {"containerStatuses": [{"name": "c", "state": {"waiting": FORGOTTEN}}]}},
        {"devices_forgotten": True},
    ),
    ("preempted", {"status": {"conditions": [TARGET]}}, {"preempted": True}),
    ("not preempted any more", {"status": {"conditions": [TARGET | {"status": "False"}]}}, {}),
    (
        "evicted by another",
        {"status": {"conditions": [TARGET | {"reason": "EvictionByEvictionAPI"}]}},
        {},
    ),
    (
        "another condition",
        {
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "message": "DisruptionTarget"}]
            }
        },
        {},
    ),
    (
        "controlled by one of its owners",
        {
            "metadata": {
                "ownerReferences": [
                    {"kind": "X", "uid": "x"},
                    {"kind": "ReplicaSet", "uid": "r", "controller": True},
                ]
            }
        },
        {"controller": "r"},
    ),
    (
        "owned, not controlled",
        {
            "metadata": {
                "ownerReferences": [{"kind": "ReplicaSet", "uid": "r", "controller": False}]
            }
        },
        {},
    ),
    (
        "of a DaemonSet",
        {"metadata": {"ownerReferences": [{"kind": "DaemonSet", "uid": "d", "controller": True}]}},
        {"controller": "d", "is_node_agent": True},
    ),
    (
        "mirror pod",
        {"metadata": {"ownerReferences": [{"kind": "Node", "uid": "n", "controller": True}]}},
        {"controller": "n", "is_node_agent": True},
    ),
)
def test_what_preemption_reads_of_a_pod(wire, fields):
    pod = parse_pod(json.dumps(wire).encode())
    assert {name: getattr(pod, name) for name in PREEMPTION} == PREEMPTION | fields


def read_volumes(*volumes):
    return parse_pod(json.dumps({"spec": {"volumes": list(volumes)}}).encode()).local_volumes


@cases(
    "volume, is_local",
    ("on disk", {"name": "v", "emptyDir": {}}, True),
    ("on disk, with a limit", {"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}, True),
    ("in memory", {"name": "v", "emptyDir": {"medium": "Memory"}}, False),
    ("a path of the node", {"name": "v", "hostPath": {"path": "/data"}}, True),
    ("null", {"name": "v", "hostPath": None, "secret": {"secretName": "emptyDir"}}, False),
    ("a claim", {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, False),
)
def test_volumes_whose_content_is_lost_with_the_pod(volume, is_local):
    assert read_volumes(volume, {"name": "emptyDir", "configMap": {"name": "c"}}) == (
        ("v",) if is_local else ()
    )


def test_the_kind_of_a_controller_is_read():
    owner = {"kind": "ReplicaSet", "uid": "r", "controller": True}
    pod = parse_pod(json.dumps({"metadata": {"ownerReferences": [owner]}}).encode())
    assert pod.controller_kind == "ReplicaSet"


@cases(
    "wire, fields",
    ("without a selector: of no pod", {}, {"selector": None}),
    ("of all pods", {"selector": {}}, {"selector": ()}),
    ("null", {"selector": {"matchLabels": None, "matchExpressions": None}}, {"selector": ()}),
    (
        "of some",
        {
            "selector": {
                "matchLabels": {"a": "1"},
                "matchExpressions": [
                    {"key": "b", "operator": "NotIn", "values": ["2", "3"]},
                    {"key": "c", "operator": "Exists"},
                ],
            }
        },
        {
            "selector": (
                LabelRequirement("a", "In", ("1",)),
                LabelRequirement("b", "NotIn", ("2", "3")),
                LabelRequirement("c", "Exists"),
            )
        },
    ),
)
def test_disruption_budget(wire, fields):
    data = json.dumps(
        {
            "metadata": {"namespace": "ns", "name": "b"},
            "spec": wire,
            "status": {"disruptionsAllowed": 2},
        }
    ).encode()
    found = parse_disruption_budget(data)
    assert found == DisruptionBudget(namespace="ns", name="b", allowed=2, **fields)
    assert found.key == "ns/b"


def test_a_budget_without_a_status_allows_nothing():
    assert parse_disruption_budget(b'{"metadata": {"name": "b"}, "spec": {}}').allowed == 0


@cases(
    "labels, selected",
    ({"a": "1", "c": ""}, True),
    ({"a": "1", "b": "9", "c": "x"}, True),
    ({"a": "1", "b": "2", "c": ""}, False),
    ({"a": "1"}, False),
    ({"a": "2", "c": ""}, False),
    ({}, False),
)
def test_the_pods_of_a_budget(labels, selected):
    budget = DisruptionBudget(
        namespace="ns",
        name="b",
        selector=(
            LabelRequirement("a", "In", ("1",)),
            LabelRequirement("b", "NotIn", ("2", "3")),
            LabelRequirement("c", "Exists"),
        ),
    )
    assert budget.selects("ns", labels) is selected
    assert not budget.selects("other", labels)
    assert not DisruptionBudget(namespace="ns", name="b").selects("ns", labels)


@pytest.mark.parametrize(
    ("kind", "name", "labels", "workload"),
    [
        ("ReplicaSet", "web-7d4b9c", {"pod-template-hash": "7d4b9c"}, ("Deployment", "web")),
        ("ReplicaSet", "web-7d4b9c", {}, ("ReplicaSet", "web-7d4b9c")),
        ("ReplicaSet", "web", {"pod-template-hash": "7d4b9c"}, ("ReplicaSet", "web")),
        ("Job", "nightly-29384760", {}, ("CronJob", "nightly")),
        ("Job", "train-2", {}, ("Job", "train-2")),
        ("StatefulSet", "db", {}, ("StatefulSet", "db")),
        ("", "", {}, ("", "")),
    ],
)
def test_the_workload_of_a_pod(kind, name, labels, workload):
    owners = [{"kind": kind, "name": name, "uid": "o", "controller": True}] if kind else []
    meta = {"name": "p", "labels": labels, "ownerReferences": owners}
    assert parse_pod(json.dumps({"metadata": meta}).encode()).workload == workload


def ended_at(time):
    return {"state": {"terminated": {"exitCode": 0, "finishedAt": time}}}


EARLY, LATE = "2026-11-28T12:00:00Z", "2026-11-28T12:00:09Z"


@pytest.mark.parametrize(
    ("phase", "deletion", "statuses", "finished"),
    [
        ("Succeeded", "", [ended_at(LATE), ended_at(EARLY)], LATE),
        ("Failed", "", [ended_at(EARLY), {"state": {"waiting": {}}}], EARLY),
        ("Failed", "", [ended_at(None)], ""),
        ("Failed", "", None, ""),
        ("Running", "", [ended_at(EARLY)], ""),
        ("Running", LATE, [ended_at(EARLY)], EARLY),
        ("Running", LATE, [ended_at(EARLY), {"state": {"running": {}}}], ""),
        ("Failed", "", [{"state": 1}], ""),
    ],
)
def test_when_the_last_container_of_a_pod_ended(phase, deletion, statuses, finished):
    status = {"phase": phase, "containerStatuses": statuses}
    pod = {"metadata": {"name": "p", "deletionTimestamp": deletion}, "status": status}
    assert parse_pod(json.dumps(pod).encode()).finished == finished
