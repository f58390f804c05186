"""Evictions of pods on devices that harm them, in rounds of the controller."""

from dataclasses import replace

import pytest

from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest
from hami.codec.health import DeviceHealth, render_device_health
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, DEVICE_HEALTH, PREEMPTIBLE
from hami.codec.slices import PublishedSlice, device_name, pool_name
from hami.errors import ClusterError
from hami.model import OwnerRef, PodRef
from hami.scheduler.metrics import REMEDIATION_RESULTS
from hami.scheduler.remediation import RETRY_S
from hami.scheduler.settings import EVICT, Settings
from hami.state.claims import ClaimCache
from testing.builders import NVIDIA, gpu, gpus, node, pod
from testing.replicas import Clock, Replica, WatchedCluster

EVICTING = Settings(remediation=EVICT)
RS = OwnerRef("default", "web-1", "rs", "ReplicaSet", "apps/v1")
RESET = DeviceHealth(
    cause="the driver asks: reset the GPU", remedy="reset the GPU", harms_pods=True
)
PENDING = DeviceHealth(cause="MIG mode changes at the next reset")
PROTECTED = f"its node runs it, or it has the label {PREEMPTIBLE}=false"
BUDGET = ClusterError(
    "Cannot evict pod as it would violate the pod's disruption budget.", 429, retry_after_s=10
)


def on(name, uuid="GPU-0", node_name="n1", controller="rs", **fields):
    text = f"{uuid},NVIDIA,10,0:;"
    annotations = {
        ASSIGNED_NODE: node_name,
        "hami.io/vgpu-time": "1",
        BIND_PHASE: "success",
        NVIDIA.annotations.allocated: text,
    }
    return pod(
        gpus(memory=10),
        name=name,
        node_name=node_name,
        phase="Running",
        controller=controller,
        annotations=annotations,
        **fields,
    )


def sick(name, *uuids, healthy=(), health=RESET):
    """A node whose devices *uuids* are unhealthy."""
    devices = [gpu(uuid, healthy=False) for uuid in uuids] + [gpu(uuid) for uuid in healthy]
    text = render_device_health(dict.fromkeys(uuids, health))
    return node(name, *devices, annotations={DEVICE_HEALTH: text} if text else {})


def well(count, first=1):
    return [node(f"well-{n}", gpu(f"GPU-well-{n}")) for n in range(first, first + count)]


def world(*pods, nodes=None, settings=EVICTING, owners=(RS,), **options):
    nodes = nodes or [sick("n1", "GPU-0", healthy=["GPU-1"])]
    fake = WatchedCluster(pods=pods, nodes=nodes)
    fake.owners = {owner.uid: owner for owner in owners}
    made = Replica(fake, Clock(), settings=settings, **options)
    made.remediation.step()  # sees the fault first
    return made


def rounds(made, seconds=60, step=1):
    for _ in range(0, seconds, step):
        made.clock.seconds += step
        made.remediation.step()
        made.watch()


def left(made):
    return sorted(name for _, name in made.fake.pods)


def told(made):
    return [
        message.rpartition(": ")[2] for reason, message in made.events if reason == "NotEvicted"
    ]


def test_only_the_pods_of_the_device_are_evicted():
    made = world(on("a"), on("b", uuid="GPU-1"), on("c", node_name="n2"), on("d"))
    rounds(made)
    assert left(made) == ["b", "c"]
    assert made.events.reasons() == ["Evicted", "Evicted"]
    assert (
        "device GPU-0 of node n1 is unhealthy: the driver asks: reset the GPU" in made.events[0][1]
    )


def test_nobody_is_evicted_unless_the_operator_wants_it():
    made = world(on("a"), settings=Settings())
    rounds(made)
    assert left(made) == ["a"]
    assert made.events == []


def test_only_the_leader_evicts():
    made = world(on("a"), leads=False)
    rounds(made)
    assert left(made) == ["a"]


def test_a_device_must_have_been_unhealthy_for_some_time():
    made = world(on("a"))
    rounds(made, 29)
    assert left(made) == ["a"]
    made.fake.put_node(node("n1", gpu("GPU-0"), gpu("GPU-1")))  # well for a moment
    made.watch()
    rounds(made, 1)
    made.fake.put_node(sick("n1", "GPU-0", healthy=["GPU-1"]))
    made.watch()
    rounds(made, 30)
    assert left(made) == ["a"]
    rounds(made, 2)
    assert left(made) == []


@pytest.mark.parametrize(
    ("item", "owner", "why"),
    [
        (on("a", controller=""), RS, "no controller replaces it"),
        (on("a", is_node_agent=True), RS, f"or it has the label {PREEMPTIBLE}=false"),
        (on("a", labels={PREEMPTIBLE: "false"}), RS, f"or it has the label {PREEMPTIBLE}=false"),
        (on("a"), replace(RS, kind="RayCluster"), "RayCluster web-1 may not replace it"),
    ],
    ids=["bare", "of its node", "label", "unknown controller"],
)
def test_a_pod_that_nobody_replaces_is_left_alone_and_told_why(item, owner, why):
    made = world(item, owners=[owner])
    rounds(made, 120)
    assert left(made) == ["a"]
    assert len(told(made)) == 1
    assert told(made)[0].endswith(why)


def test_a_fault_that_harms_no_running_pod_evicts_nobody():
    made = world(on("a"), nodes=[sick("n1", "GPU-0", health=PENDING), *well(40)])
    rounds(made)
    assert left(made) == ["a"]
    assert made.events == []


def test_a_budget_is_respected_and_keeps_nobody_else_waiting():
    made = world(on("a"), on("b"))
    made.fake.fail("request_eviction", BUDGET)
    rounds(made, 45)
    assert left(made) == ["a"]
    assert told(made) == ["a PodDisruptionBudget does not permit it now"]
    rounds(made, int(RETRY_S) + 10)
    assert left(made) == []


@pytest.mark.parametrize(("per_minute", "expected"), [(6.0, 3), (60.0, 20), (0.0, 0)])
def test_a_minute_has_so_many_evictions(per_minute, expected):
    """The first comes half a minute after the fault."""
    pods = [on(f"p{number}") for number in range(20)]
    made = world(*pods, settings=replace(EVICTING, remediation_rate=per_minute))
    rounds(made, 55)
    assert 20 - len(left(made)) == expected


@pytest.mark.parametrize(
    ("unhealthy", "total", "is_evicted"),
    [(1, 1, True), (1, 10, True), (2, 10, False), (2, 40, True), (3, 60, True), (6, 100, False)],
)
def test_nobody_is_evicted_while_many_devices_are_unhealthy(unhealthy, total, is_evicted):
    nodes = [sick(f"n{number}", f"GPU-{number}") for number in range(1, unhealthy + 1)]
    made = world(on("a", uuid="GPU-1"), nodes=[*nodes, *well(total - unhealthy)], settings=EVICTING)
    rounds(made)
    assert left(made) == ([] if is_evicted else ["a"])
    if not is_evicted:
        assert told(made) == [
            "more than 5 % of all devices are unhealthy, so this is no fault of single ones"
        ]


def test_a_driver_that_is_rolled_out_evicts_nobody():
    """Over 200 nodes, ten at a time: all devices of a node are unhealthy meanwhile, and its kubelet offers none."""
    names = [f"n{number}" for number in range(200)]
    pods = [on(f"p-{name}", uuid=f"GPU-{name}", node_name=name) for name in names]
    nodes = [node(name, gpu(f"GPU-{name}")) for name in names]
    made = world(*pods, nodes=nodes)
    mismatch = DeviceHealth(cause="the driver was replaced", harms_pods=False)
    for start in range(0, 200, 40):
        for name in names[start : start + 40]:
            rolled = sick(name, f"GPU-{name}", health=mismatch)
            made.fake.put_node(replace(rolled, allocatable={NVIDIA.resources.count: "0"}))
        made.watch()
        rounds(made, 60, step=20)
        for name in names[start : start + 40]:
            made.fake.put_node(node(name, gpu(f"GPU-{name}")))
    assert len(left(made)) == 200
    assert made.events == []


def test_devices_that_their_kubelet_does_not_offer_count_as_unhealthy():
    """All devices of a node are: it offers none of them then."""
    gone = [
        replace(sick(f"n{n}", f"GPU-{n}"), allocatable={NVIDIA.resources.count: "0"})
        for n in (1, 2)
    ]
    made = world(on("a", uuid="GPU-1"), nodes=[*gone, *well(8)])
    rounds(made)
    assert left(made) == ["a"]


def test_a_device_that_is_well_again_before_the_watch_shows_it_evicts_nobody():
    made = world(on("a"))
    made.fake.put_node(node("n1", gpu("GPU-0"), gpu("GPU-1")))  # the watch is late
    for _ in range(60):
        made.clock.seconds += 1
        made.remediation.step()
    assert left(made) == ["a"]
    assert made.events == []


def test_the_next_leader_goes_on_after_an_eviction_whose_answer_was_lost():
    made = world(on("a"), on("b"))
    made.fake.fail("request_eviction", ClusterError("read timed out"), after=True)
    rounds(made, 31)
    assert left(made) == ["b"]
    after = Replica(made.fake, made.clock, settings=EVICTING)
    rounds(after, 40)
    assert left(after) == []
    assert after.events.reasons() == ["Evicted"]


def test_a_refusal_is_not_repeated_every_round():
    made = world(on("a"), on("b"))
    made.fake.fail("request_eviction", ClusterError("forbidden", 403), times=5)
    rounds(made, 59)
    assert len(made.fake.calls_of("request_eviction")) == 1


def test_a_pod_that_ends_already_is_not_evicted_again():
    made = world(on("a", deletion="2026-08-21T12:00:30Z", deletion_grace_s=30, deleting=True))
    rounds(made)
    assert made.fake.calls_of("request_eviction") == []


# ---- pods with claims that others allocate


def claiming(name, **fields):
    """A pod on which the scheduler writes nothing: it has its device by a claim."""
    fields = {"controller": "rs", "phase": "Running"} | fields
    return pod(gpus(count=0), name=name, node_name="n1", **fields)


def claims_of(*names, uuid="GPU-0", published=(gpu("GPU-0", healthy=False), gpu("GPU-1"))):
    """Claims of these pods on the device *uuid*."""
    cache = ClaimCache()
    cache.set_slice("s", PublishedSlice("n1", 1, published))
    device = ClaimedDevice(pool=pool_name("n1"), device=device_name(uuid), memory_mib=1)
    for name in names:
        requests = (ClaimedRequest(name="main", devices=(device,)),)
        ref = PodRef("default", name, f"uid-{name}")
        claim = AllocatedClaim(
            namespace="default", name=name, uid=name, pods=(ref,), requests=requests
        )
        cache.set_claim(name, claim)
    return cache


@pytest.mark.parametrize(
    ("fields", "is_evicted", "why"),
    [
        ({}, True, []),
        ({"phase": "Succeeded"}, False, []),
        ({"labels": {PREEMPTIBLE: "false"}}, False, [PROTECTED]),
        ({"is_node_agent": True}, False, [PROTECTED]),
        ({"controller": ""}, False, ["no controller replaces it"]),
    ],
)
def test_a_pod_with_a_claim_on_the_device_is_evicted_as_others_are(fields, is_evicted, why):
    made = world(claiming("c", **fields), claiming("other"), claimed=claims_of("c"))
    rounds(made)
    assert left(made) == (["other"] if is_evicted else ["c", "other"])
    assert told(made) == why


def test_devices_of_claims_count_among_all():
    many = [gpu(f"GPU-{number}", healthy=number > 1) for number in range(20)]
    made = world(claiming("c"), claimed=claims_of("c", published=many))
    rounds(made)
    assert left(made) == ["c"]
    assert made.metrics.remediations == ["many_unhealthy"]


# ---- metrics


def test_each_pod_counts_once_for_each_result():
    made = world(on("a"), on("bare", controller=""), on("p", labels={PREEMPTIBLE: "false"}))
    made.fake.fail("request_eviction", BUDGET)
    made.fake.fail("request_eviction", ClusterError("forbidden", 403))
    rounds(made, 200)
    assert sorted(made.metrics.remediations) == [
        "budget",
        "evicted",
        "failed",
        "not_replaced",
        "protected",
    ]
    assert set(made.metrics.remediations) < set(REMEDIATION_RESULTS)
