"""``hami audit``: each inconsistency is found, and a consistent cluster has none."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms

from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest
from hami.codec.mig import MigAllocation, render_mig_allocations
from hami.codec.slices import PublishedSlice
from hami.inspect.audit import SETTLE_S, audit, render_audit, settle
from hami.inspect.cluster import InspectedCluster, UnreadableObject
from hami.inspect.installation import Installation, SchedulerDeployment
from hami.model import Node, Partition
from testing.builders import container, gpu, gpus, node, pod, quota
from testing.cards import A100_PROFILES
from testing.cases import cases
from testing.records import NOON, held, record, some_record

T4 = {"model": "NVIDIA T4", "memory_mib": 16_000}
GPU = gpu("a", **T4)
LOCK = "hami.io/mutex.lock"
LATE = str(int(NOON.timestamp()) - 400)


def locked(text):
    return [node("n", GPU, annotations={LOCK: text})]


def with_keys(pod, **annotations):
    return replace(
        pod,
        annotations=pod.annotations
        | {f"hami.io/{key.replace('_', '-')}": text for key, text in annotations.items()},
    )


@cases(
    "health, problem, remedy",
    (
        "told",
        '{"a":{"cause":"the driver has lost the card","remedy":"reset the GPU"}}',
        "the driver has lost the card; pods hold it: default/p",
        "reset the GPU",
    ),
    (
        "without a remedy",
        '{"a":{"cause":"no answer"}}',
        "no answer; pods hold it: default/p",
        "see the log of the device plugin; the pods keep the card",
    ),
)
def test_an_unhealthy_card_that_pods_hold_is_a_finding_with_its_cause(health, problem, remedy):
    ill = node(
        "n",
        gpu("a", healthy=False, **T4),
        gpu("b", healthy=False, index=1, **T4),
        annotations={"hami.io/device-health": health},
    )
    (finding,) = audit(InspectedCluster(record([ill], [held("p", "n", ("a", 1, 1))])))
    assert (finding.rule, finding.subject) == ("CardUnhealthy", "card 0 (a) of node n")
    assert (finding.problem, finding.remedy) == (problem, remedy)


def test_a_machine_that_has_joined_under_another_name_is_a_finding():
    found = audit(InspectedCluster(record([node("old", GPU), node("new", GPU)], [])))
    assert [(one.rule, one.problem) for one in found] == [
        ("CardRegisteredTwice", "it is registered by the nodes new, old")
    ]


def test_a_pod_whose_devices_the_kubelet_has_forgotten_is_a_finding():
    pod = replace(held("p", "n", ("a", 1, 1)), devices_forgotten=True)
    (finding,) = audit(InspectedCluster(record([node("n", GPU)], [pod])))
    assert (finding.rule, finding.subject) == ("DevicesForgotten", "pod default/p")
    assert finding.remedy == "delete the pod"


APPLIED = '{{"sizes": "{}"}}'


def resized(applied="", target=""):
    """A pod that holds more since a resize, what its node says of it, and what it is to have."""
    texts = {"vgpu_devices_resized": "a,NVIDIA,9,1:;", "vgpu_devices_allocated": "a,NVIDIA,9,1:;"}
    texts |= {"resize_applied": APPLIED.format(applied)} if applied else {}
    return with_keys(
        held("p", "n", ("a", 1, 1)), **texts, **({"vgpu_devices_target": target} if target else {})
    )


@cases(
    "one",
    ("as booked", resized(applied="a,NVIDIA,9,1:;")),
    ("in another form", resized(applied="a,NVIDIA,9,1,:;")),
    ("less", resized(applied="a,NVIDIA,2,1:;", target="a,NVIDIA,2,1:;")),
    ("finished", replace(resized(), phase="Succeeded")),
    ("ends", replace(resized(), deleting=True)),
)
def test_resizes_that_are_carried_out(one):
    assert rules(pods=[one]) == []


def test_remedies_of_resizes():
    def remedy(one):
        (finding,) = audit(InspectedCluster(record([node("n", GPU)], [one])))
        return finding.problem, finding.remedy

    problem, help_ = remedy(
        with_keys(resized(), resize_applied='{"sizes": "a,NVIDIA,1,1:;", "problem": "no room"}')
    )
    assert (
        problem
        == "it is to have a,NVIDIA,9,1:;; its node enforces a,NVIDIA,1,1:; and says: no room"
    )
    assert help_.startswith("check the device plugin of node n")
    assert remedy(resized(target="a,NVIDIA,2,1:;"))[1].startswith("nothing, if it still uses more")


def test_a_resize_under_way_is_looked_at_again_after_some_seconds():
    slow, done, gone = (
        replace(one, ref=replace(one.ref, name=name, uid=name))
        for one, name in ((resized(), "slow"), (resized(), "done"), (resized(), "gone"))
    )
    calm = held("calm", "n", ("a", 1, 1))
    applied = with_keys(done, resize_applied=APPLIED.format("a,NVIDIA,9,1:;"))
    later = {"slow": slow, "done": applied}
    slept, before = [], record([node("n", GPU)], [slow, done, calm, gone])
    after = settle(before, lambda ref: later.get(ref.name), slept.append)
    assert slept == [SETTLE_S]
    assert after.pods == (slow, applied, calm)
    assert [finding.subject for finding in audit(InspectedCluster(after))] == ["pod default/slow"]


def test_where_nothing_is_under_way_nobody_waits():
    before = record([node("n", GPU)], [held("p", "n", ("a", 1, 1))])
    assert settle(before, lambda ref: None, lambda seconds: pytest.fail("it waits")) is before


def rules(nodes=(node("n", GPU),), pods=(), unreadable=()):
    cluster = InspectedCluster(replace(record(nodes, pods), unreadable=unreadable))
    return [(finding.rule, finding.subject) for finding in audit(cluster)]


@pytest.mark.parametrize(
    "nodes, pods, rule",
    [
        (
            None,
            [held("p", "n", ("a", 9000, 0)), held("q", "n", ("a", 9000, 0))],
            ("OverCommitted", "card 0 (a) of node n"),
        ),
        (
            None,
            [with_keys(held("p", "n", ("a", 1, 1)), vgpu_devices_allocated="a,NVIDIA,x")],
            ("UnreadableAllocation", "pod default/p"),
        ),
        (
            [
                node("n", GPU),
                replace(node("m", GPU), annotations={"hami.io/node-nvidia-register": "{"}),
            ],
            [],
            ("UnreadableInventory", "node m"),
        ),
        (None, [held("p", "n", ("b", 1, 1))], ("CardGone", "pod default/p")),
        (None, [held("p", "m", ("b", 1, 1))], ("NodeGone", "pod default/p")),
        (locked("x,y"), [], ("UnreadableLock", "node n")),
        (
            locked("2026-08-21T11:50:00Z,default,p"),
            [held("p", "n", ("a", 1, 1))],
            ("StaleLock", "node n"),
        ),
        (locked("2026-08-21T11:59:00Z,default,gone"), [], ("StaleLock", "node n")),
        (
            None,
            [
                with_keys(
                    replace(held("p", "", ("a", 1, 1)), node_name=""), vgpu_node="n", vgpu_time=LATE
                )
            ],
            ("GhostReservation", "pod default/p"),
        ),
        (
            None,
            [pod(gpus(), name="p", node_name="n", phase="Running")],
            ("NoAllocation", "pod default/p"),
        ),
        (
            None,
            [replace(held("p", "n", ("a", 1, 1)), containers=(container(),))],
            ("ForeignAllocation", "pod default/p"),
        ),
        (
            None,
            [
                with_keys(
                    held("p", "n", ("a", 1, 1)),
                    bind_phase="allocating",
                    bind_time=LATE,
                    vgpu_devices_to_allocate="a,NVIDIA,1,1:;",
                )
            ],
            ("StuckAllocation", "pod default/p"),
        ),
        (
            None,
            [with_keys(held("p", "n", ("a", 1, 1)), resize="{}")],
            ("ResizeUnanswered", "pod default/p"),
        ),
        (None, [resized()], ("ResizeHangs", "pod default/p")),
        (None, [resized(applied="a,NVIDIA,1,1:;")], ("ResizeHangs", "pod default/p")),
        (
            None,
            [resized(applied="a,NVIDIA,9,1:;", target="a,NVIDIA,2,1:;")],
            ("ResizeHangs", "pod default/p"),
        ),
        (
            None,
            [
                with_keys(
                    held("p", "n", ("a", 1, 1)), resize_applied=APPLIED.format("b,NVIDIA,1,1:;")
                )
            ],
            ("ResizeHangs", "pod default/p"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_each_inconsistency_is_found(nodes, pods, rule):
    assert rules(nodes or [node("n", GPU)], pods) == [rule]


def claim(device="gpu-a", node="n"):
    part = ClaimedDevice(pool=f"hami/{node}", device=device, memory_mib=1, share_milli=10_000)
    return AllocatedClaim(
        namespace="default",
        name="c",
        uid="c",
        requests=(ClaimedRequest(name="r", devices=(part,)),),
    )


@cases(
    "nodes, claims, rule",
    ([node("n")], [claim()], None),
    ([node("n", GPU)], [], ("TwoAllocationModes", "card 0 (a) of node n")),
    ([node("n")], [claim("gpu-b")], ("CardGone", "claim default/c")),
    ([node("n")], [claim(node="m")], ("CardGone", "claim default/c")),
)
def test_claims_and_slices_are_compared(nodes, claims, rule):
    cluster = InspectedCluster(
        replace(record(nodes), slices=(PublishedSlice("n", 1, (GPU,)),), claims=tuple(claims))
    )
    assert [(finding.rule, finding.subject) for finding in audit(cluster)] == (
        [rule] if rule else []
    )


MANAGED = node("n", GPU, annotations={"hami.io/allocation-mode": "dra"})
SINCE = {"bind_time": LATE}


def own(node_name="n", **fields):
    """A pod whose claim HAMi's scheduler makes."""
    holder = with_keys(held("p", "n", ("a", 1, 0)), **SINCE)
    return replace(holder, claim="c", node_name=node_name, created="2026-08-21T11:50:00Z", **fields)


def of_own(memory_mib=1, pods=None):
    """Its claim."""
    part = ClaimedDevice(pool="hami/n", device="gpu-a", memory_mib=memory_mib, share_milli=10_000)
    return replace(
        claim(),
        pods=(own().ref,) if pods is None else pods,
        requests=(ClaimedRequest(name="c", devices=(part,)),),
    )


@cases(
    "pods, claims, rule",
    ("consistent", [own()], [of_own()], None),
    ("other amounts", [own()], [of_own(2)], ("ClaimDiffers", "pod default/p")),
    ("of another pod", [own()], [of_own(pods=())], ("ClaimDiffers", "pod default/p")),
    ("no claim", [own()], [], ("ClaimDiffers", "pod default/p")),
    ("ended", [replace(own(), phase="Succeeded")], [], None),
    (
        "bound since claims were listed",
        [with_keys(own(), bind_time=str(int(NOON.timestamp())))],
        [],
        None,
    ),
    (
        "not bound",
        [replace(own(""), annotations={})],
        [of_own()],
        ("ClaimWithoutBinding", "claim default/c"),
    ),
    (
        "just created",
        [replace(own(""), annotations={}, created="2026-08-21T11:59:59Z")],
        [of_own()],
        None,
    ),
    (
        "a time after the last year",
        [replace(own(""), annotations={}, created="9999-12-31T23:59:59-23:59")],
        [of_own()],
        None,
    ),
    (
        "no time",
        [replace(own(""), annotations={}, created="0001-01-01T00:00:00Z")],
        [of_own()],
        None,
    ),
    ("pod gone", [], [of_own()], None),
)
def test_claims_of_hami_s_scheduler_are_compared_with_their_pods(pods, claims, rule):
    slices = (PublishedSlice("n", 1, (replace(GPU, by_claims=True),)),)
    cluster = InspectedCluster(
        replace(record([MANAGED], pods), slices=slices, claims=tuple(claims))
    )
    assert [(finding.rule, finding.subject) for finding in audit(cluster)] == (
        [rule] if rule else []
    )


DIVIDED = node(
    "n",
    gpu("a", mode="mig", mig_profiles=A100_PROFILES),
    annotations={"hami.io/allocation-mode": "dra"},
)
PLACES = render_mig_allocations(
    [MigAllocation(container=0, device=0, gpu="a", partition=Partition(4, 4, "3g.40gb"))]
)


@cases(
    "start, rule",
    (4, None),
    (0, ("ClaimDiffers", "pod default/p")),
    (5, ("CardGone", "claim default/c")),
)
def test_mig_instances_of_claims_of_hami_s_scheduler_are_compared(start, rule):
    holder = with_keys(
        own(), vgpu_devices_allocated="a,NVIDIA,40192,43:;", vgpu_mig_allocations=PLACES
    )
    instance = ClaimedDevice(pool="hami/n", device=f"gpu-a-mig-3g-40gb-{start}")
    claimed = replace(of_own(), requests=(ClaimedRequest(name="c", devices=(instance,)),))
    slices = (PublishedSlice("n", 1, (replace(GPU, by_claims=True),)),)
    cluster = InspectedCluster(
        replace(record([DIVIDED], [holder]), slices=slices, claims=(claimed,))
    )
    assert rule is None or rule in [(finding.rule, finding.subject) for finding in audit(cluster)]
    assert rule is not None or audit(cluster) == []


@pytest.mark.parametrize("allocates, found", [(True, []), (False, ["NobodyAllocates"])])
def test_a_managed_node_needs_a_scheduler_that_allocates(allocates, found):
    installation = Installation(
        schedulers=(SchedulerDeployment(name="a/ours", allocates=allocates),)
    )
    cluster = InspectedCluster(replace(record([MANAGED]), installation=installation))
    assert [finding.rule for finding in audit(cluster)] == found


def test_a_device_plugin_that_is_away_is_one_finding_which_leaves_the_pods_alone():
    """The registration stays on the node of a plugin that restarts, but the kubelet offers no devices."""
    away = node(
        "n",
        GPU,
        annotations={"hami.io/node-handshake": "Requesting_2026-08-21 11:50:00"},
        allocatable={"nvidia.com/gpu": "0"},
    )
    findings = audit(
        InspectedCluster(
            record([away], [held(f"p{number}", "n", ("a", 100, 0)) for number in range(10)])
        )
    )
    assert [(finding.rule, finding.subject) for finding in findings] == [
        ("DevicePluginGone", "node n")
    ]
    assert "10" in findings[0].problem
    assert "recreate" not in findings[0].remedy


def test_a_node_with_more_devices_than_a_node_can_have():
    evil = node("evil", *(gpu(str(number)) for number in range(257)))
    assert rules([node("n", GPU), evil], [held("p", "evil", ("0", 1, 1))]) == [
        ("UnreadableInventory", "node evil")
    ]


def test_an_object_that_cannot_be_read_is_found():
    assert rules(unreadable=(UnreadableObject("pod", "a/b", "broken"),)) == [
        ("UnreadableObject", "pod a/b")
    ]


@cases(
    "nodes, pods",
    ("lock of a pod", locked("2026-08-21T11:59:00Z,default,p"), [held("p", "n", ("a", 1, 1))]),
    ("lock without a pod", locked("2026-08-21T11:59:00Z"), []),
    ("pending", [node("n", GPU), Node(name="plain")], [pod(gpus(), name="p")]),
    ("finished", [node("n", GPU)], [pod(gpus(), name="p", node_name="n", phase="Succeeded")]),
)
def test_what_is_consistent(nodes, pods):
    assert rules(nodes, pods) == []


@settings(max_examples=30)
@given(rng=randoms(use_true_random=True))
def test_a_random_cluster_without_mistakes_is_consistent(rng):
    cluster = InspectedCluster(some_record(rng))
    assert audit(cluster) == []
    assert render_audit(cluster, []).endswith(": consistent")


def test_the_text_says_what_to_do():
    cluster = InspectedCluster(record([node("n", GPU)], [held("p", "n", ("b\x1b", 1, 1))]))
    lines = render_audit(cluster, audit(cluster)).splitlines()
    assert lines == [
        "1 node with devices and 1 pod: 1 inconsistency",
        "",
        "CardGone: pod default/p: it holds b?, which node n does not offer",
        "  → check the device and the device plugin of the node, then recreate the pod",
    ]


def test_an_entry_of_a_quota_that_nobody_counts():
    entries = (("limits.nvidia.com/gpumem", "40Gi"), ("limits.nvidia.com/gpu", "4"))
    found = audit(InspectedCluster(record([], quotas=[replace(quota(), entries=entries)])))
    assert [(one.rule, one.subject, one.problem, one.remedy) for one in found] == [
        (
            "QuotaEntryNotCounted",
            "quota default/quota",
            "limits.nvidia.com/gpumem: 40Gi is more than all devices have",
            "write a number in MiB",
        )
    ]


def test_a_cordon_that_matches_no_device():
    on = node("n", gpu("GPU-1234"), annotations={"hami.io/device-cordon": "GPU-1234,GPU-1243,zz"})
    found = audit(InspectedCluster(record([on])))
    assert [(one.rule, one.subject, one.problem, one.remedy) for one in found] == [
        (
            "CordonMatchesNothing",
            "node n",
            "hami.io/device-cordon names GPU-1243, which is none of its devices",
            "write GPU-1234",
        ),
        (
            "CordonMatchesNothing",
            "node n",
            "hami.io/device-cordon names zz, which is none of its devices",
            "see hami top cards for the UUIDs of its devices",
        ),
    ]


def test_a_policy_that_is_written_on_a_node():
    on = node("n", GPU, annotations={"hami.io/gpu-scheduler-policy": "spread"})
    found = audit(InspectedCluster(record([on])))
    assert [(one.rule, one.subject, one.problem, one.remedy) for one in found] == [
        (
            "WishIgnored",
            "node n",
            "annotation hami.io/gpu-scheduler-policy of a node has no effect",
            "write it on pods",
        )
    ]


@cases(
    "scheduler, remedy",
    ("hami-scheduler", "without nodeName"),
    ("default-scheduler", "it has not passed HAMi's webhook"),
    ("", "it has not passed HAMi's webhook"),
    ("volcano", "without schedulerName: volcano places it"),
)
def test_advice_for_a_pod_without_its_devices_fits_the_cause(scheduler, remedy):
    bare = pod(gpus(), node_name="n", phase="Running", scheduler_name=scheduler)
    (found,) = audit(InspectedCluster(record([node("n", GPU)], [bare])))
    assert found.rule == "NoAllocation"
    assert remedy in found.remedy
