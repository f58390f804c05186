"""Filter and simulation: the chosen node, refusals in upstream's words, and the events on the pod."""

from dataclasses import replace

import pytest

from hami.codec.keys import ASSIGNED_NODE
from hami.codec.node_template import NODE_TEMPLATE
from hami.errors import MalformedInput, NodeLocked, Rejected
from hami.model import NodePreference, NodeRequirement
from hami.scheduling.node_order import TO_CHOOSE_FROM
from hami.state.view import Policies
from testing.builders import NVIDIA, content, gpu, gpus, node, pod, quota
from testing.cases import cases
from testing.replicas import SETTINGS, cards, holding, replica


def two_nodes(**policies):
    return replica(
        node("n1", gpu("GPU-a0"), gpu("GPU-a1", index=1)),
        node("n2", gpu("GPU-b0"), gpu("GPU-b1", index=1)),
        pods=[holding("x", "n2", "GPU-b0,NVIDIA,3000,30:;")],
        policies=Policies(**policies),
    )


@cases(
    "policies, chosen, device, scores",
    ({}, "n2", "GPU-b1", "n1:0.00,n2:2.33"),
    ({"device": "binpack"}, "n2", "GPU-b0", "n1:0.00,n2:2.33"),
    ({"node": "spread"}, "n1", "GPU-a1", "n2:2.33,n1:0.00"),
)
def test_filter_places_a_pod_by_the_policies(policies, chosen, device, scores):
    scheduler = two_nodes(**policies)
    asked = pod(gpus(1, memory=3000, cores=30))
    found = scheduler.node_filter.filter(asked, ["n1", "n2"])
    assert (found.names, dict(found.failed), found.chosen) == ([chosen], {}, chosen)
    reservation = scheduler.cache.bindings.get("uid-pod1")
    assert reservation.annotations[NVIDIA.annotations.allocated] == f"{device},NVIDIA,3000,30:;"
    assert scheduler.events == [
        ("FilteringSucceed", f"find fit node({chosen}), 0 nodes not fit, 2 nodes fit({scores})")
    ]
    assert scheduler.fake.calls == [], "a filter writes nothing"


def test_the_event_of_a_pod_that_fits_many_nodes_names_the_best():
    scheduler = replica(*(cards(f"n{number}", {}) for number in range(5)))
    scheduler.node_filter.filter(pod(gpus(1)), [f"n{number}" for number in range(5)])
    ((_, text),) = scheduler.events
    head, _, named = text.partition(", 5 nodes fit(…,")
    assert head.startswith("find fit node(")
    assert named.count(":") == 3


def test_a_pod_has_one_event_of_each_decision():
    """Each is made again and again, with other numbers."""
    scheduler = full_node()
    scheduler.node_filter.filter(pod(gpus(1, memory=3000, cores=30)), ["n1"])
    scheduler.node_filter.filter(pod(gpus(1, memory=10), name="small"), ["n1"])
    assert scheduler.events.replaced == {"FilteringFailed", "FilteringSucceed"}


def full_node():
    return replica(
        cards("n1", {"slots": 1}, {}, {}, {"healthy": False}),
        pods=[
            holding("a", "n1", "GPU-n1-0,NVIDIA,0,0:;"),
            holding("b", "n1", "GPU-n1-1,NVIDIA,46000,0:;"),
            holding("c", "n1", "GPU-n1-2,NVIDIA,0,90:;"),
        ],
    )


def test_filter_says_why_no_node_fits():
    scheduler = full_node()
    found = scheduler.node_filter.filter(pod(gpus(1, memory=3000, cores=30)), ["n1"])
    assert found.names is None
    assert found.chosen is None
    assert found.unresolvable == {
        "n1": "1/4 CardInsufficientCore, 1/4 CardInsufficientMemory, 1/4 CardNotHealth, "
        "1/4 CardTimeSlicingExhausted"
    }
    assert scheduler.events == [
        (
            "FilteringFailed",
            "1 × NVIDIA with 3,000 MiB and 30 cores fits none of 1 node: 1 of 4 devices has too few free cores, "
            "1 has too little free memory, 1 is unhealthy, 1 has no free slot; "
            "the nearest, device 2 of n1, lacks 20 cores",
        )
    ]
    assert len(scheduler.metrics.reasons) == 4


@cases(
    "count, taken, text",
    (
        2,
        "GPU-n1-0,NVIDIA,46068,0:;",
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
    ),
    (3, "", "NodeInsufficientDevice"),
)
def test_too_few_devices_are_a_reason_of_the_node(count, taken, text):
    scheduler = replica(cards("n1", {}, {}), pods=[holding("a", "n1", taken)])
    assert scheduler.node_filter.filter(
        pod(gpus(count, memory=3000, cores=0)), ["n1"]
    ).unresolvable == {"n1": text}


def test_a_pod_with_a_claim_fits_no_device_that_the_kubelet_gives():
    scheduler = two_nodes()
    found = scheduler.node_filter.filter(pod(gpus(1, memory=3000), claim="hami-0"), ["n1", "n2"])
    assert found.names is None
    assert found.unresolvable == dict.fromkeys(("n1", "n2"), "2/2 CardOtherAllocationMode")
    assert scheduler.events == [
        (
            "FilteringFailed",
            "1 × NVIDIA with 3,000 MiB fits none of 2 nodes: 4 of 4 devices are in the other allocation mode",
        )
    ]


def test_a_pod_whose_claim_cannot_be_read_is_refused_and_no_other_one():
    scheduler = two_nodes()
    with pytest.raises(MalformedInput, match="calcScore failed claim hami-0: broken for pod pod1"):
        scheduler.node_filter.filter(pod(claim="hami-0", claim_problem="broken"), ["n1", "n2"])
    assert scheduler.events == [
        ("FilteringFailed", "calcScore failed claim hami-0: broken for pod pod1")
    ]
    assert scheduler.node_filter.filter(pod(gpus(), name="other"), ["n1", "n2"]).chosen


def test_unknown_nodes_are_named():
    scheduler = replica()
    assert scheduler.node_filter.filter(pod(gpus()), ["n9"]).unresolvable == {
        "n9": "node unregistered"
    }
    assert scheduler.events == [
        (
            "FilteringFailed",
            "1 × NVIDIA with 100 % memory fits no node: none has registered such devices",
        )
    ]


@pytest.mark.parametrize("names", [None, [], ["n1", "x"]])
def test_a_pod_that_requests_no_device_fits_every_node(names):
    scheduler = replica(cards("n1", {}))
    found = scheduler.node_filter.filter(pod(gpus(0)), names)
    assert (found.names, found.failed, found.unresolvable) == (names, {}, {})
    assert scheduler.events == []


@pytest.mark.parametrize("names", [None, []])
def test_a_filter_without_nodes_fails_no_node(names):
    found = replica(cards("n1", {})).node_filter.filter(pod(gpus()), names)
    assert (found.names, found.failed, found.unresolvable) == (None, {}, {})


@cases(
    "priority, nominated, failed",
    (0, "", []),
    (100, "", []),
    (101, "", ["low"]),
    (1001, "", ["high", "low"]),
    (0, "high", ["high"]),
    (101, "idle", ["low", "idle"]),
    (1001, "gone", ["high", "low"]),
)
def test_kube_scheduler_looks_for_victims_only_where_pods_of_lower_priority_hold_devices(
    priority, nominated, failed
):
    """On the node that it has nominated it must not give up: the victims there may not have ended yet."""
    scheduler = replica(
        cards("high", {}),
        cards("low", {}, {}),
        cards("idle", {"healthy": False}),
        pods=[
            holding("a", "high", "GPU-high-0,NVIDIA,46068,100:;", priority=1000),
            holding("b", "low", "GPU-low-0,NVIDIA,46068,100:;", priority=100),
            holding("c", "low", "GPU-low-1,NVIDIA,46068,100:;", priority=1000),
        ],
    )
    asked = pod(gpus(1, memory=3000), name="asked", priority=priority, nominated_node=nominated)
    found = scheduler.node_filter.filter(asked, ["high", "low", "idle", "stranger"])
    assert sorted(found.failed) == sorted(failed)
    assert sorted(found.unresolvable) == sorted({"high", "low", "idle", "stranger"} - set(failed))


def test_weights_that_cannot_be_read_are_an_error_and_an_event():
    scheduler = replica(cards("n1", {}))
    asked = pod(gpus(), annotations={"hami.io/device-scoring-weights": "slot=1"})
    with pytest.raises(
        MalformedInput, match="^calcScore failed invalid hami.io/device-scoring-weights annotation"
    ):
        scheduler.node_filter.filter(asked, ["n1"])
    assert scheduler.events.reasons() == ["FilteringFailed"]


def test_a_replica_that_does_not_lead_filters_nothing():
    scheduler = replica(cards("n1", {}), leads=False)
    with pytest.raises(NodeLocked, match="does not lead yet"):
        scheduler.filter(pod(gpus()))
    assert scheduler.cache.open_bindings.unbound() == 0


def test_a_pod_without_uid_is_refused():
    with pytest.raises(MalformedInput, match="without uid"):
        replica(cards("n1", {})).filter(replace(pod(gpus()), ref=replace(pod().ref, uid="")))


@pytest.mark.parametrize("field", ["namespace", "name"])
@pytest.mark.parametrize("text", ["", "..", "a/b", "a b", "A", "-a", "a\n", "é"])
def test_a_pod_whose_name_no_object_can_have_is_refused(field, text):
    scheduler = replica(cards("n1", {}))
    with pytest.raises(MalformedInput, match=f"Pod.metadata.{field}: expected a name"):
        scheduler.filter(replace(pod(gpus()), ref=replace(pod().ref, **{field: text})))


SSD = (NodePreference(1, (NodeRequirement("disk", "In", frozenset({"ssd"})),)),)


@pytest.mark.parametrize(("preferences", "chosen"), [((), "n2"), (SSD, "n1")])
def test_a_preferred_node_goes_before_the_policy(preferences, chosen):
    scheduler = two_nodes()
    scheduler.fake.put_node(replace(scheduler.fake.nodes["n1"], labels={"disk": "ssd"}))
    scheduler.watch()
    asked = pod(gpus(1, memory=3000), preferences=preferences)
    assert scheduler.filter(asked) == chosen
    scheduler.fake.put_node(replace(scheduler.fake.nodes["n1"], labels={}))
    scheduler.watch()
    assert scheduler.filter(asked) == "n2"


@pytest.mark.parametrize(
    "wish", [{"soft_constraints": True}, {"annotations": {"hami.io/node-scheduler-policy": "kube"}}]
)
def test_kube_scheduler_chooses_for_pods_whose_wishes_only_it_knows(wish):
    asked = pod(gpus(1, memory=3000), phase="Pending", **wish)
    scheduler = replica(*(cards(f"n{number:02}", {}) for number in range(40)), pods=[asked])
    found = scheduler.node_filter.filter(asked, list(scheduler.fake.nodes))
    assert found.names == [f"n{number:02}" for number in range(TO_CHOOSE_FROM)]
    assert found.chosen == "n00"
    scheduler.binder.bind(asked.ref, "n07")
    bound = scheduler.fake.pods["default", "pod1"]
    assert bound.node_name == bound.annotations[ASSIGNED_NODE] == "n07"
    assert scheduler.cache.view().bookings_on("n00") == []


def test_the_node_chosen_by_kube_scheduler_may_be_full_by_then():
    asked = pod(gpus(1, memory=3000), phase="Pending", soft_constraints=True)
    scheduler = replica(cards("n1", {}), cards("n2", {}), pods=[asked])
    assert scheduler.node_filter.filter(asked, ["n1", "n2"]).names == ["n1", "n2"]
    scheduler.fake.put_pod(holding("other", "n2", "GPU-n2-0,NVIDIA,46068,100:;", phase="Running"))
    scheduler.watch()
    with pytest.raises(Rejected, match="does not fit node n2 any more: 1/1 CardInsufficientMemory"):
        scheduler.binder.bind(asked.ref, "n2")
    assert scheduler.cache.open_bindings.unbound() == 0


@cases(
    "policy, scores",
    ("binpack", {"n1": 0, "n2": 10, "x": 0}),
    ("spread", {"n1": 10, "n2": 0, "x": 10}),
    ("kube", {"n1": 0, "n2": 0, "x": 0}),
)
def test_nodes_are_scored_by_the_policy(policy, scores):
    scheduler = two_nodes()
    asked = pod(gpus(1, memory=3000), annotations={"hami.io/node-scheduler-policy": policy})
    assert scheduler.node_filter.prioritize(asked, ["n1", "n2", "x"]) == scores
    assert scheduler.node_filter.prioritize(asked, []) == {}
    assert scheduler.cache.open_bindings.unbound() == 0


SIMULATED = node("sim", gpu("GPU-0", memory_mib=8192, model="NVIDIA-A100"))


@cases(
    "memory, nodes, chosen, failed",
    (1024, [SIMULATED], "sim", {}),
    (16384, [SIMULATED], None, {"sim": "1/1 CardInsufficientMemory"}),
    (1024, [node("bare")], None, {"bare": "node unregistered"}),
    (
        1024,
        [node("broken", annotations={NVIDIA.annotations.register: "[null]"})],
        None,
        {"broken": "node unregistered"},
    ),
)
def test_a_simulation_leaves_no_trace(memory, nodes, chosen, failed):
    scheduler = replica(leads=False)
    found = scheduler.node_filter.simulate(pod(gpus(1, memory=memory, cores=20)), nodes)
    assert (found.names, found.failed) == ([chosen] if chosen else [], failed)
    assert scheduler.events == []
    assert scheduler.fake.calls == []
    assert scheduler.cache.open_bindings.unbound() == 0


TEMPLATE = replace(node("new"), labels={NODE_TEMPLATE: "2x46068.10.100.NVIDIA_A40"})


def test_a_simulation_knows_the_usage_of_real_nodes_and_makes_up_the_others():
    """Of a node that is known, the scheduler believes its watch: its device plugin may be dead, or its pods bound."""
    scheduler = replica(
        cards("full", {}),
        cards("free", {}),
        node("bare"),
        pods=[holding("a", "full", "GPU-full-0,NVIDIA,46068,100:;")],
    )
    sent = [
        cards("full", {}),
        cards("free", {"memory_mib": 1}),
        cards("idle", {}),
        TEMPLATE,
        node("bare"),
    ]
    found = scheduler.node_filter.simulate(pod(gpus(1, memory=40_000, cores=0)), sent)
    assert found.names == ["free", "idle", "new"]
    assert found.failed == {"full": "1/1 CardInsufficientMemory", "bare": "node unregistered"}


@cases(
    "sent, fits",
    ("nothing", node("bare"), False),
    ("registered by an annotation that the watch does not have", cards("bare", {}), False),
    ("label", replace(TEMPLATE, name="bare"), True),
    (
        "label and annotation",
        replace(cards("bare", {"healthy": False}), labels=TEMPLATE.labels),
        False,
    ),
)
def test_a_real_node_that_has_not_registered_counts_by_its_label_only(sent, fits):
    """So an autoscaler does not add another one while its device plugin starts."""
    scheduler = replica(node("bare"))
    assert (scheduler.node_filter.simulate(pod(gpus()), [sent]).names == ["bare"]) is fits


def test_a_real_node_that_has_registered_counts_as_it_is_though_an_older_state_of_it_was_sent():
    scheduler = replica(cards("n1", {}), pods=[holding("a", "n1", "GPU-n1-0,NVIDIA,46068,100:;")])
    sent = replace(TEMPLATE, name="n1")
    assert scheduler.node_filter.simulate(pod(gpus(1, memory=1)), [sent]).failed == {
        "n1": "1/1 CardInsufficientMemory"
    }


@pytest.mark.parametrize("label", ["", "8", "257x1.1.1.T4", "1x1.1.1"])
def test_a_label_that_cannot_be_read_tells_no_devices(label):
    found = replica().node_filter.simulate(
        pod(gpus()), [replace(TEMPLATE, labels={NODE_TEMPLATE: label})]
    )
    assert found.failed == {"new": "node unregistered"}


def test_a_simulation_leaves_out_nodes_that_the_selector_excludes():
    """Real ones, which the watch does not show, and new ones of such a group alike: no pod is ever placed there."""
    scheduler = replica(
        replace(cards("real", {}), labels={"gpu": "on"}),
        settings=replace(SETTINGS, node_selector="gpu=on,zone!=b"),
    )
    sent = [
        cards("real", {}),
        cards("excluded", {}),
        replace(cards("made", {}), labels={"gpu": "on"}),
        replace(cards("other", {}), labels={"gpu": "on", "zone": "b"}),
        TEMPLATE,
    ]
    found = scheduler.node_filter.simulate(pod(gpus(1, memory=40_000, cores=0)), sent)
    assert found.names == ["real", "made"]
    assert found.failed == dict.fromkeys(("excluded", "other", TEMPLATE.name), "node unregistered")


def test_a_simulation_counts_quotas_and_frees_what_the_pod_itself_has_reserved():
    scheduler = replica(cards("n1", {}))
    asked = pod(gpus(1, memory=40_000, cores=0))
    scheduler.filter(asked)
    assert scheduler.node_filter.simulate(asked, [cards("n1", {})]).names == ["n1"]
    other = pod(gpus(1, memory=40_000, cores=0), name="other")
    assert scheduler.node_filter.simulate(other, [cards("n1", {})]).names == []
    scheduler.cache.quotas.upsert(quota(gpumem=50_000))
    assert scheduler.node_filter.simulate(other, [TEMPLATE]).failed == {
        "new": "2/2 ResourceQuotaNotFit"
    }
    assert scheduler.node_filter.simulate(asked, [TEMPLATE]).names == ["new"]


def test_a_pod_without_devices_fits_all_nodes_of_a_simulation():
    assert replica().node_filter.simulate(pod(gpus(0)), [TEMPLATE, node("x")]).names == ["new", "x"]


def test_a_simulation_has_a_limit_of_devices():
    largest = replace(TEMPLATE, labels={NODE_TEMPLATE: "256x46068.10.100.NVIDIA_A40"})
    taken = []

    def nodes():
        for number in range(5000):
            taken.append(number)
            yield replace(largest, name=f"new-{number}")

    with pytest.raises(MalformedInput, match="expected at most 100000 devices"):
        replica().node_filter.simulate(pod(gpus()), nodes())
    assert len(taken) == 391


def test_fifty_templates_change_nothing():
    scheduler = replica(
        cards("n1", {}, {}), cards("n2", {}), pods=[holding("a", "n1", "GPU-n1-0,NVIDIA,40000,0:;")]
    )
    scheduler.filter(pod(gpus(1, memory=1000)))
    asked = pod(gpus(1, memory=30_000), name="asked")
    sent = [replace(TEMPLATE, name=f"new-{number}") for number in range(50)] + [cards("n1", {})]
    before = content(scheduler.cache), scheduler.cache.version(), scheduler.cache.nodes.names()
    found = scheduler.node_filter.simulate(asked, sent)
    assert len(found.names) == 51
    assert (
        content(scheduler.cache),
        scheduler.cache.version(),
        scheduler.cache.nodes.names(),
    ) == before
