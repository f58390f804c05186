"""``hami audit``: each inconsistency is found, and a consistent cluster has none."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms

from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest
from hami.codec.slices import PublishedSlice
from hami.inspect.audit import audit, render_audit
from hami.inspect.cluster import InspectedCluster, UnreadableObject
from hami.model import Node
from tests.builders import container, gpu, gpus, node, pod
from tests.inspect.records import NOON, held, record, some_record

T4 = {"model": "NVIDIA T4", "memory_mib": 16_000}
GPU = gpu("a", **T4)
LOCK = "hami.io/mutex.lock"
LATE = str(int(NOON.timestamp()) - 400)


def locked(text):
    return [node("n", GPU, annotations={LOCK: text})]


def with_keys(pod, **annotations):
    return replace(pod, annotations=pod.annotations | {f"hami.io/{key.replace('_', '-')}": text
                                                       for key, text in annotations.items()})


def rules(nodes=(node("n", GPU),), pods=(), unreadable=()):
    cluster = InspectedCluster(replace(record(nodes, pods), unreadable=unreadable))
    return [(finding.rule, finding.subject) for finding in audit(cluster)]


@pytest.mark.parametrize("nodes, pods, rule", [
    (None, [held("p", "n", ("a", 9000, 0)), held("q", "n", ("a", 9000, 0))], ("OverCommitted", "card 0 (a) of node n")),
    (None, [with_keys(held("p", "n", ("a", 1, 1)), vgpu_devices_allocated="a,NVIDIA,x")],
     ("UnreadableAllocation", "pod default/p")),
    ([node("n", GPU), replace(node("m", GPU), annotations={"hami.io/node-nvidia-register": "{"})], [],
     ("UnreadableInventory", "node m")),
    (None, [held("p", "n", ("b", 1, 1))], ("CardGone", "pod default/p")),
    (None, [held("p", "m", ("b", 1, 1))], ("NodeGone", "pod default/p")),
    (locked("x,y"), [], ("UnreadableLock", "node n")),
    (locked("2026-08-21T11:50:00Z,default,p"), [held("p", "n", ("a", 1, 1))], ("StaleLock", "node n")),
    (locked("2026-08-21T11:59:00Z,default,gone"), [], ("StaleLock", "node n")),
    (None, [with_keys(replace(held("p", "", ("a", 1, 1)), node_name=""), vgpu_node="n", vgpu_time=LATE)],
     ("GhostReservation", "pod default/p")),
    (None, [pod(gpus(), name="p", node_name="n", phase="Running")], ("NoAllocation", "pod default/p")),
    (None, [replace(held("p", "n", ("a", 1, 1)), containers=(container(),))], ("ForeignAllocation", "pod default/p")),
    (None, [with_keys(held("p", "n", ("a", 1, 1)), bind_phase="allocating", bind_time=LATE,
                      vgpu_devices_to_allocate="a,NVIDIA,1,1:;")], ("StuckAllocation", "pod default/p")),
], ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_each_inconsistency_is_found(nodes, pods, rule):
    assert rules(nodes or [node("n", GPU)], pods) == [rule]


def claim(device="gpu-a", node="n"):
    part = ClaimedDevice(pool=f"hami/{node}", device=device, memory_mib=1, share_milli=10_000)
    return AllocatedClaim(namespace="default", name="c", uid="c", requests=(ClaimedRequest(name="r", devices=(part,)),))


@pytest.mark.parametrize("nodes, claims, rule", [
    ([node("n")], [claim()], None), ([node("n", GPU)], [], ("TwoDoors", "card 0 (a) of node n")),
    ([node("n")], [claim("gpu-b")], ("CardGone", "claim default/c")),
    ([node("n")], [claim(node="m")], ("CardGone", "claim default/c")),
])
def test_claims_and_slices_are_compared(nodes, claims, rule):
    cluster = InspectedCluster(replace(record(nodes), slices=(PublishedSlice("n", 1, (GPU,)),), claims=tuple(claims)))
    assert [(finding.rule, finding.subject) for finding in audit(cluster)] == ([rule] if rule else [])


def test_a_device_plugin_that_is_away_is_one_finding_which_leaves_the_pods_alone():
    """The registration stays on the node of a plugin that restarts, but the kubelet offers no devices."""
    away = node("n", GPU, annotations={"hami.io/node-handshake": "Requesting_2026-08-21 11:50:00"},
                allocatable={"nvidia.com/gpu": "0"})
    findings = audit(InspectedCluster(record([away], [held(f"p{number}", "n", ("a", 100, 0)) for number in range(10)])))
    assert [(finding.rule, finding.subject) for finding in findings] == [("DevicePluginGone", "node n")]
    assert "10" in findings[0].problem and "recreate" not in findings[0].remedy


def test_a_node_with_more_devices_than_a_node_can_have():
    evil = node("evil", *(gpu(str(number)) for number in range(257)))
    assert rules([node("n", GPU), evil], [held("p", "evil", ("0", 1, 1))]) == [("UnreadableInventory", "node evil")]


def test_an_object_that_cannot_be_read_is_found():
    assert rules(unreadable=(UnreadableObject("pod", "a/b", "broken"),)) == [("UnreadableObject", "pod a/b")]


@pytest.mark.parametrize("nodes, pods", [
    (locked("2026-08-21T11:59:00Z,default,p"), [held("p", "n", ("a", 1, 1))]), (locked("2026-08-21T11:59:00Z"), []),
    ([node("n", GPU), Node(name="plain")], [pod(gpus(), name="p")]),
    ([node("n", GPU)], [pod(gpus(), name="p", node_name="n", phase="Succeeded")]),
], ids=["lock of a pod", "lock without a pod", "pending", "finished"])
def test_what_is_consistent(nodes, pods):
    assert rules(nodes, pods) == []


@settings(max_examples=30)
@given(rng=randoms(use_true_random=True))
def test_a_random_cluster_without_mistakes_is_consistent(rng):
    cluster = InspectedCluster(some_record(rng))
    assert audit(cluster) == [] and render_audit(cluster, []).endswith(": consistent")


def test_the_text_says_what_to_do():
    cluster = InspectedCluster(record([node("n", GPU)], [held("p", "n", ("b\x1b", 1, 1))]))
    lines = render_audit(cluster, audit(cluster)).splitlines()
    assert lines == ["1 node with devices and 1 pod: 1 inconsistency", "",
                     "CardGone: pod default/p: it holds b?, which node n does not offer",
                     "  → check the device and the device plugin of the node, then recreate the pod"]
