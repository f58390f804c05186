"""Snapshots: files that answer as the cluster did, also with other names; decisions once more."""

import dataclasses
import gzip
import json
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import from_regex, randoms, sampled_from

from hami.codec.documents import parse_own_yaml
from hami.codec.keys import (
    CLAIM_AMOUNTS,
    CORES_LIMIT,
    RESIZE,
    RESIZE_APPLIED,
    RESIZE_STATUS,
    RESIZE_TARGET,
    RESIZED,
)
from hami.codec.resize import (
    AppliedSizes,
    ResizeState,
    ResizeStatus,
    Size,
    parse_applied,
    parse_resize,
    parse_status,
    render_applied,
    render_resize,
    render_status,
)
from hami.errors import HamiError
from hami.inspect.cluster import InspectedCluster, SchedulingEvent, UnreadableObject, store_of
from hami.inspect.explain import explain_pod
from hami.inspect.resize_report import resize_report
from hami.inspect.simulate import DIFFERENCES, render_replay, replay
from hami.inspect.snapshot import (
    NODE_FIELDS,
    POD_FIELDS,
    QUOTA_FIELDS,
    anonymize,
    parse_snapshot,
    render_snapshot,
)
from hami.inspect.tables import Style
from hami.model import NodePreference, NodeRequirement, Pod, PodRef, PodScope, ScopeRequirement
from hami.scheduling.refusal import Choice
from testing.builders import gpu, gpus, node, pod, quota
from testing.cases import cases
from testing.records import PENDING, held, record, some_record

T4 = {"model": "NVIDIA T4", "memory_mib": 16_000}
EVENT = SchedulingEvent("s", "FailedScheduling", "0/1 nodes", 1, "now")


@settings(max_examples=20)
@given(rng=randoms(use_true_random=True))
def test_a_file_has_all_of_the_record(rng):
    cluster = replace(
        some_record(rng),
        events={"uid-waits": (EVENT,)},
        unreadable=(UnreadableObject("pod", "a/b", "broken"),),
    )
    again = parse_snapshot(render_snapshot(cluster), "f")
    assert again == cluster
    assert render_snapshot(again) == render_snapshot(cluster)


def packed(**document):
    return gzip.compress(json.dumps(document).encode())


@cases(
    "data, said",
    ("empty", b"", "f: not a snapshot of hami"),
    ("plain", b"{}", "f: not a snapshot of hami: not compressed by gzip"),
    ("no JSON", gzip.compress(b"x"), "f: not a snapshot"),
    (
        "another kind",
        packed(kind="Pod"),
        "f: not a snapshot of hami: its kind is 'Pod', expected HamiSnapshot",
    ),
    (
        "later",
        packed(kind="HamiSnapshot", version=2),
        r"f: a snapshot of a later version \(format 2, this hami reads up to 1\)",
    ),
    (
        "no record",
        packed(kind="HamiSnapshot", version=1),
        "f: a damaged snapshot: Object missing required field `record`",
    ),
    (
        "wrong type",
        packed(kind="HamiSnapshot", version=1, record={"taken": 3}),
        "f: a damaged snapshot: ",
    ),
    (
        "priority",
        render_snapshot(record([], [replace(pod(), priority=10**30)])),
        r"f: a damaged snapshot: the priority of pod \S+ is 10{30}",
    ),
    (
        "cut off",
        render_snapshot(record([]))[:-9],
        "f: not a snapshot of hami: Compressed file ended",
    ),
)
def test_files_that_cannot_be_read(data, said):
    with pytest.raises(HamiError, match=said):
        parse_snapshot(data, "f")


@settings(max_examples=60)
@given(rng=randoms(use_true_random=True))
def test_an_anonymous_snapshot_answers_the_same(rng):
    """The same node, by its place in the order of names, the same reasons and amounts."""
    cluster = some_record(rng)
    hidden = anonymize(cluster)
    names = {
        name: f"node-{number}"
        for number, name in enumerate(sorted(node.name for node in cluster.nodes), start=1)
    }
    assert {node.name for node in hidden.nodes} == set(names.values())
    inspected, other = InspectedCluster(cluster), InspectedCluster(hidden)
    (waiting,) = (pod for pod in cluster.pods if pod.ref.name == PENDING)
    again = hidden.pods[cluster.pods.index(waiting)]
    report, same = explain_pod(inspected, waiting, ()), explain_pod(other, again, ())
    assert same.fits == names.get(report.fits, "")
    assert [(names[node.node], node.reasons) for node in report.nodes] == [
        (node.node, node.reasons) for node in same.nodes
    ]
    assert [len(node.cards) for node in report.nodes] == [len(node.cards) for node in same.nodes]
    assert inspected.view.used.get(("default", "NVIDIA")) == next(
        iter(other.view.used[key] for key in other.view.used if key[0] == again.ref.namespace), None
    )


def test_a_snapshot_whose_pods_have_no_uids_may_be_anonymous():
    """A file may have been edited."""
    plain = pod(gpus())
    unnamed = replace(plain, ref=replace(plain.ref, uid=""), preemptor="gone")
    (hidden,) = anonymize(record([], [unnamed])).pods
    assert (hidden.ref.uid, hidden.preemptor) == ("", "uid-gone")


def test_an_anonymous_snapshot_contains_no_name():
    """Neither of objects nor of devices, wherever they stand: in annotations, locks, labels or lists."""
    secrets = [
        "secretnode",
        "secretteam",
        "secretpod",
        "secretcontainer",
        "secretlabel",
        "secretuuid",
        "secretgone",
        "secretevent",
        "secretquota",
        "secretproblem",
        "secretclass",
        "secretother",
        "secretgroup",
        "secretzone",
        "secretowner",
        "secretpreemptor",
        "secretclaim",
        "secretamount",
    ]
    secret_node = node(
        "secretnode",
        gpu("GPU-secretuuid", **T4),
        labels={"secretlabel": "secretlabel"},
        annotations={
            "hami.io/device-cordon": "GPU-secretuuid",
            "hami.io/mutex.lock": "2026-01-01T00:00:00Z,secretteam,secretpod",
        },
    )
    holder = held(
        "secretpod",
        "secretnode",
        ("GPU-secretuuid", 1, 1),
        ("GPU-secretgone", 1, 1),
        namespace="secretteam",
        controller="secretowner",
        preemptor="secretpreemptor",
        labels={
            "hami.io/vgpu-node": "secretnode",
            "app": "secretlabel",
            "hami.io/preemptible": "false",
        },
    )
    waiting = pod(
        replace(gpus(), name="secretcontainer"),
        name=PENDING,
        uid="secretpod-uid",
        annotations={
            "nvidia.com/use-gpuuuid": "GPU-secretuuid,GPU-secretgone",
            "hami.io/preempting-on": "secretnode",
            CLAIM_AMOUNTS: '{"secretcontainer": {"nvidia.com/gpu": "secretamount"}}',
        },
        claim="secretclaim",
        claim_problem="secretamount",
        scope=PodScope("secretclass"),
        group="secretgroup",
        nominated_node="secretnode",
        scheduling_failure="0/1 nodes are available: secretnode",
        preferences=(
            NodePreference(1, (NodeRequirement("secretzone", "In", frozenset({"secretzone"})),)),
        ),
    )
    limits = quota(
        "secretquota",
        "secretteam",
        scopes=[ScopeRequirement("PriorityClass", "In", ("secretclass", "secretother"))],
        gpumem=1,
    )
    events = {"secretpod-uid": (replace(EVENT, message="secretevent"),)}
    cluster = replace(
        record([secret_node], [holder, waiting], [limits]),
        events=events,
        unreadable=(UnreadableObject("pod", "secretpod", "secretproblem"),),
    )
    hidden = anonymize(cluster)
    text = gzip.decompress(render_snapshot(hidden)).decode()
    assert [secret for secret in secrets if secret in text] == []
    assert "node-1" in text
    assert '"2026-01-01T00:00:00Z,namespace-2,pod-1"' in text
    assert hidden.pods[0].labels["hami.io/preemptible"] == "false", "else it could be preempted"
    assert hidden.pods[1].annotations["hami.io/preempting-on"] == hidden.nodes[0].name
    assert hidden.pods[1].claim, "else it would get other devices"
    assert hidden.pods[1].claim_problem, "else it would get other devices"
    assert hidden.pods[1].nominated_node == hidden.nodes[0].name
    assert hidden.pods[1].group == "group-1"
    assert [quota.matches(pod.scope) for quota in hidden.quotas for pod in hidden.pods] == [
        False,
        True,
    ]


@dataclass(frozen=True, kw_only=True)
class LaterPod(Pod):
    """A pod of a later version, with a field of which the anonymizer knows nothing."""

    owner: str = ""


def test_a_field_without_a_kind_is_left_out():
    plain = pod(gpus())
    fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    (hidden,) = anonymize(record([], [LaterPod(**fields, owner="secretowner")])).pods
    assert isinstance(hidden, LaterPod)
    assert hidden.owner == ""


@pytest.mark.parametrize("key", ["example.com/owner", "hami.io/new", "hami.io/vgpu-devices-new"])
def test_an_annotation_without_a_kind_is_left_out(key):
    holder = held("p", "n", ("a", 1, 1))
    holder = replace(holder, annotations={**holder.annotations, key: "true"})
    on = node("n", gpu("a", **T4), annotations={key: "true"})
    hidden = anonymize(record([on], [holder]))
    assert hidden.pods[0].annotations.keys() == holder.annotations.keys() - {key}
    assert hidden.nodes[0].annotations.keys() == on.annotations.keys() - {key}


def test_a_label_without_a_kind_is_left_out():
    labels = {"example.com/owner": "true", "hami.io/preemptible": "false"}
    hidden = anonymize(record([node("n", labels=labels)], [pod(gpus(), labels=labels)]))
    assert hidden.pods[0].labels == {"hami.io/preemptible": "false"}
    assert hidden.nodes[0].labels == {}


def test_a_key_of_the_device_configuration_that_nobody_reads_is_left_out():
    config = """
nvidia: {resourceCountName: a.b/gpu, owner: secret, gpucoresLimits: {secretteam: 60, secretgone: 50}}
vnpus:
- {commonWord: Ascend, resourceName: a.b/npu, memoryAllocatable: 1, memoryCapacity: 1, templates: [], owner: secret}
flags: {owner: secret}
owner: secret
"""
    chip = {"commonWord": "Ascend", "resourceName": "a.b/npu", "templates": []}
    chip |= {"memoryAllocatable": 1, "memoryCapacity": 1}
    cluster = replace(record([], [pod(gpus(), namespace="secretteam")]), device_config=config)
    assert parse_own_yaml(anonymize(cluster).device_config) == {
        "nvidia": {"resourceCountName": "a.b/gpu", "gpucoresLimits": {"namespace-1": 60}},
        "vnpus": {"configs": [chip]},
    }


LEFT_OUT_OF_PODS = {
    "failure",
    "finished",
    "node_terms",
    "preferences",
    "scheduling_failure",
    "tolerations",
    "workload",
}


def test_every_field_of_a_record_has_a_kind_or_is_known_to_be_left_out():
    """A new field is a decision: whether it may name anything."""
    for value, kinds, left_out in (
        (pod(), POD_FIELDS, LEFT_OUT_OF_PODS),
        (node("n"), NODE_FIELDS, {"uid", "taints"}),
        (quota(), QUOTA_FIELDS, set()),
    ):
        apart = {"annotations", "labels", "containers"}
        fields = {field.name for field in dataclasses.fields(value)}
        assert fields - kinds.keys() - apart == left_out


def test_a_pod_without_uid_can_be_anonymous():
    preempted = replace(pod(), ref=PodRef("ns", "p", ""), preemptor="secret")
    (hidden,) = anonymize(record([], [preempted])).pods
    assert hidden.preemptor == "uid-gone"


def test_a_snapshot_without_scopes_can_be_read():
    document = json.loads(gzip.decompress(render_snapshot(record([], [pod()], [quota(gpumem=1)]))))
    for document_object in (*document["record"]["pods"], *document["record"]["quotas"]):
        del document_object["scope" if "scope" in document_object else "scopes"]
    again = parse_snapshot(packed(**document), "f")
    assert (again.pods[0].scope, again.quotas[0].scopes) == (PodScope(), ())


def test_what_an_anonymous_snapshot_says_of_a_resize():
    sizes = {"main": Size(memory_mib=8192, cores=40), "gone": Size(memory_percent=30)}
    request = render_resize(sizes)
    applied = AppliedSizes("GPU-x,NVIDIA,3072,20:;", "GPU-x of secretteam is full")
    one = held("p", "n", ("GPU-x", 8192, 40))
    one = replace(
        one,
        containers=(replace(one.containers[0], name="main"),),
        annotations=one.annotations
        | {
            RESIZE: request,
            RESIZED: "GPU-x,NVIDIA,8192,40:;",
            RESIZE_TARGET: "GPU-x,NVIDIA,3072,20:;",
            CORES_LIMIT: "60",
            RESIZE_APPLIED: render_applied(applied),
            RESIZE_STATUS: render_status(
                ResizeStatus(ResizeState.BOOKED, request, "main uses 5,000 MiB of GPU-x")
            ),
        },
    )
    (hidden,) = anonymize(record([node("n", gpu("GPU-x", **T4))], [one])).pods
    notes, own = (
        hidden.annotations,
        {"container-1": Size(memory_mib=8192, cores=40), "container-2": Size(memory_percent=30)},
    )
    assert parse_resize(notes[RESIZE]) == own
    assert hidden.containers[0].name == "container-1"
    assert (notes[RESIZED], notes[RESIZE_TARGET]) == (
        "device-1,NVIDIA,8192,40:;",
        "device-1,NVIDIA,3072,20:;",
    )
    assert notes[CORES_LIMIT] == "60"
    assert parse_applied(notes[RESIZE_APPLIED]) == AppliedSizes(
        "device-1,NVIDIA,3072,20:;", "device-1 redacted redacted redacted redacted"
    )
    status = parse_status(notes[RESIZE_STATUS])
    assert (status.state, status.request) == (ResizeState.BOOKED, notes[RESIZE])
    assert "main" not in status.message
    assert resize_report(notes).excess_mib == 5120


@given(
    secret=from_regex(r"\A[a-z]{3}secret[a-z0-9]{3}\Z"),
    key=sampled_from(
        (
            "hami.io/vgpu-devices-allocated",
            "hami.io/vgpu-devices-to-allocate",
            "hami.io/vgpu-mig-allocations",
            "nvidia.com/use-gpuuuid",
            "nvidia.com/nouse-gputype",
            "hami.io/gpu-scheduler-policy",
            "hami.io/bind-phase",
            "huawei.com/Ascend910B",
            "hami.io/vgpu-time",
            RESIZE,
            RESIZED,
            RESIZE_TARGET,
            RESIZE_APPLIED,
            RESIZE_STATUS,
            CORES_LIMIT,
        )
    ),
    form=sampled_from(
        (
            "{}",
            "GPU-{}",
            "{},NVIDIA,1,1:;",
            "GPU-a,{},1,1:;",
            "GPU-a_{},x",
            '{{"{}": "{}"}}',
            "GPU-a {}",
            "n-{}-1",
            '{{"{}": {{"cores": 5}}}}',
            '{{"sizes": "{},NVIDIA,1,1:;", "problem": "{}"}}',
            '{{"state": "Booked", "request": "{}", "message": "GPU-a {}"}}',
            '{{"main": {{"memory": "{}"}}}}',
        )
    ),
)
def test_no_text_of_the_input_is_in_an_anonymous_snapshot(secret, key, form):
    """Whatever it is and wherever it stands, readable or not."""
    text = form.format(*[secret] * form.count("{}"))
    registered = json.dumps(
        [
            {
                "id": "GPU-a",
                "count": 1,
                "devmem": 9,
                "devcore": 100,
                "type": "NVIDIA T4",
                "health": True,
                "custominfo": {secret: text, "DeviceStrategy": text},
            }
        ]
    )
    nodes = [
        replace(
            node("n", labels={"node.kubernetes.io/instance-type": text}),
            runtime_version=f"containerd://1.7-{text}",
            kubelet_version=f"v1.36-{text}",
            annotations={
                "hami.io/node-nvidia-register": registered,
                "hami.io/node-handshake": f"Requesting_{text}",
                "hami.io/mutex.lock": text,
                "hami.io/device-cordon": text,
            },
        ),
        node(f"{secret}n", gpu(f"{secret}n-{secret}", **T4)),
    ]
    pods = [pod(gpus(), name="p", annotations={key: text}, scheduler_name=text)]
    cluster = replace(
        record(nodes, pods),
        device_config=f"# {text}\nnvidia:\n  resourceCountName: nvidia.com/gpu\n",
    )
    anonymous = gzip.decompress(render_snapshot(anonymize(cluster))).decode()
    assert secret not in anonymous
    assert "NVIDIA T4" in anonymous


def test_a_snapshot_that_unpacks_to_more_than_256_mib():
    with pytest.raises(HamiError, match="f: larger than 256 MiB when it is unpacked"):
        parse_snapshot(gzip.compress(bytes((256 << 20) + 1), 1), "f")


def test_a_device_that_is_named_after_its_node_keeps_that():
    gpu_node = node("gpu-node", gpu("gpu-node-AWSNeuron-0", **T4))
    hidden = anonymize(record([gpu_node], [held("a", "gpu-node", ("gpu-node-AWSNeuron-0", 1, 1))]))
    assert (
        "node-1-AWSNeuron-0,NVIDIA" in hidden.pods[0].annotations["hami.io/vgpu-devices-allocated"]
    )


def test_who_gives_out_devices_is_no_secret():
    managed = node(
        "n",
        gpu("a", **T4),
        annotations={"hami.io/allocation-mode": "dra", "hami.io/lock-free": "NVIDIA"},
        allocatable={},
    )
    hidden = anonymize(
        record([managed], [replace(held("p", "n", ("a", 1, 1)), claim="hami-secret")])
    )
    ((_, usage),) = InspectedCluster(hidden).usages()
    assert usage.device.by_claims
    assert usage.memory_used_mib == 1
    assert [pod.claim for pod in hidden.pods] == ["claim-1"]


def placed_record(count=6):
    """Returns a record of pods that the scheduler itself has placed one after the other, and their uuids."""
    nodes = [
        node(f"n{number}", gpu(f"{number}-a", index=0, **T4), gpu(f"{number}-b", index=1, **T4))
        for number in range(3)
    ]
    store, pods = store_of(record(nodes)), []
    for number in range(count):
        waiting = pod(gpus(1, 5000), name=f"p{number}")
        choice = store.filtering.assume(waiting, sorted(store.nodes.names()))
        assert isinstance(choice, Choice)
        bound = held(waiting.ref.name, choice.node, (choice.placement[0][0].uuid, 5000, 0))
        annotations = bound.annotations | {"hami.io/vgpu-time": str(1000 + number)}
        pods.append(
            replace(bound, ref=waiting.ref, containers=waiting.containers, annotations=annotations)
        )
    return record(nodes, reversed(pods))


def test_decisions_that_were_made_so_are_the_same():
    decisions = replay(placed_record())
    assert [decision.pod for decision in decisions] == [f"default/p{number}" for number in range(6)]
    assert all(decision.is_same for decision in decisions)
    assert render_replay(decisions, Style()) == "6 decisions, 0 of them different"


def test_one_difference_causes_no_others():
    cluster = placed_record()
    moved = held("p5", "n2", ("2-b", 5000, 0))
    pods = [
        replace(pod, node_name="n2", annotations=moved.annotations | {"hami.io/vgpu-time": "1005"})
        if pod.ref.name == "p5"
        else pod
        for pod in cluster.pods
    ]
    decisions = replay(replace(cluster, pods=tuple(pods)))
    assert [decision.pod for decision in decisions if not decision.is_same] == ["default/p5"]
    lines = render_replay(decisions, Style()).splitlines()
    assert lines[0] == "6 decisions, 1 of them different"
    assert lines[3].split()[:3] == ["default/p5", "n2", "n0"]
    assert lines[5:] == [DIFFERENCES]


def test_a_pod_that_fits_nowhere_any_more():
    unhealthy = node("n", gpu("a", healthy=False, **T4))
    (decision,) = replay(record([unhealthy], [held("p", "n", ("a", 1, 1))]))
    assert (decision.now, decision.is_same) == ("", False)
