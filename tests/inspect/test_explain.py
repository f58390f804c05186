"""``hami explain``: reports on pods that wait and on pods that are bound."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms

from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest
from hami.codec.keys import CORES_LIMIT, PREEMPTING, RESIZE, RESIZE_STATUS, RESIZED
from hami.codec.resize import ResizeState, ResizeStatus, render_status
from hami.codec.slices import PublishedSlice
from hami.errors import HamiError
from hami.inspect.cluster import InspectedCluster, SchedulingEvent, store_of
from hami.inspect.explain import BoundReport, explain_pod, render_report
from hami.inspect.gangs import GangReport
from hami.inspect.preemption import PreemptionReport, preemption_sentences
from hami.model import DisruptionBudget, Node, PodGroup, PodRef
from hami.scheduling.refusal_text import refusal_sentence
from testing.builders import INIT, gpu, gpus, node, pod
from testing.cases import cases
from testing.records import PENDING, held, record, some_record

T4 = {"model": "NVIDIA T4", "memory_mib": 16_000}
A100 = {"model": "NVIDIA A100", "memory_mib": 80_000}
NODES = [
    node("n1", gpu("a", index=0, **T4), gpu("b", index=1, **T4)),
    node("n2", gpu("c", **A100, healthy=False)),
    Node(name="plain"),
]
PODS = [
    held("x", "n1", ("a", 6000, 30), created="2026-08-21T10:00:00Z"),
    held("y", "n1", ("a", 1000, 0), ("b", 9000, 0)),
]
EVENT = SchedulingEvent(
    "hami-scheduler",
    "FailedScheduling",
    "0/3 nodes are available:\x1b[2J 3 Insufficient.",
    7,
    "now",
)


def waiting(*containers, **notes):
    return pod(
        *containers,
        name=PENDING,
        annotations=notes,
        scheduler_name="hami-scheduler",
        created="2026-08-21T11:59:00Z",
    )


def report(name=PENDING, pods=(), nodes=NODES, events=()):
    cluster = InspectedCluster(record(nodes, [*PODS, *pods]))
    return explain_pod(cluster, cluster.pod_named("default", name), events)


def lines(report, *, detailed=False, wide=False):
    return render_report(report, detailed=detailed, wide=wide).splitlines()


WAITS = waiting(gpus(1, 12_000, 10), **{"nvidia.com/use-gputype": "T4"})
ANSWER = [
    "pod default/waits has been waiting for 60s (scheduler hami-scheduler): 1 × NVIDIA with 12,000 MiB and 10 cores "
    "fits none of 2 nodes: 2 of 3 devices have too little free memory, 1 is unhealthy; "
    "1 more node has no such devices.",
    "It would fit if it asks for at most 9,000 MiB of each NVIDIA device (on n1), or if pod default/x ends (on n1).",
]
SAID = "hami-scheduler (FailedScheduling, 7 times, last at now): 0/3 nodes are available:?[2J 3 Insufficient."


def test_a_pod_that_waits():
    waits = report(pods=[WAITS], events=[EVENT])
    assert lines(waits) == [
        *ANSWER,
        "Nearest:",
        "  n1: card 0 lacks 3,000 MiB, card 1 lacks 5,000 MiB",
        "  n2: card 0 is unhealthy",
        SAID,
        "More: -v.",
    ]


def test_a_pod_that_waits_in_detail():
    waits = report(pods=[WAITS], events=[EVENT])
    assert lines(waits, detailed=True) == [
        ANSWER[0],
        "It would fit if",
        "  it asks for at most 9,000 MiB of each NVIDIA device (on n1)",
        "  or pod default/x ends (on n1)",
        "",
        "  c asks for 1 × NVIDIA with 12,000 MiB and 10 cores",
        "  nvidia.com/use-gputype: T4",
        "",
        "It fits none of 2 nodes with devices:",
        "  1 node  CardInsufficientMemory",
        "  1 node  CardNotHealth",
        "",
        "Nearest first:",
        "  n1  2/2 CardInsufficientMemory (container c)",
        "    card 0  8.8 of 15.6 GiB, 70/100 cores, 8/10 slots free; lacks 3,000 MiB (CardInsufficientMemory)",
        "    card 1  6.8 of 15.6 GiB, 100/100 cores, 9/10 slots free; lacks 5,000 MiB (CardInsufficientMemory)",
        "  n2  1/1 CardNotHealth (container c)",
        "    card 0  78.1 of 78.1 GiB, 100/100 cores, 10/10 slots free; is unhealthy (CardNotHealth)",
        "",
        SAID,
    ]


def test_a_document_is_data():
    waits = report(pods=[WAITS], events=[EVENT])
    document = msgspec.json.decode(msgspec.json.encode(waits))
    assert (document["state"], document["ageSeconds"]) == ("Waiting", 60)
    assert document["requests"] == [
        {
            "container": "c",
            "devices": [
                {
                    "vendor": "NVIDIA",
                    "count": 1,
                    "text": "1 × NVIDIA with 12,000 MiB and 10 cores",
                    "memoryMib": 12_000,
                    "cores": 10,
                }
            ],
        }
    ]
    assert document["devices"] == {"CardInsufficientMemory": 2, "CardNotHealth": 1}
    near = document["nodes"][0]
    assert near["reasons"] == {"CardInsufficientMemory": 2}
    assert near["cards"][0] == {
        "index": 0,
        "uuid": "a",
        "model": "NVIDIA T4",
        "memoryMib": 16_000,
        "memoryFreeMib": 9_000,
        "cores": 100,
        "coresFree": 70,
        "slots": 10,
        "slotsFree": 8,
        "shortMib": 3_000,
        "shortCores": 0,
        "shortSlots": 0,
        "reason": "CardInsufficientMemory",
        "tooSmall": False,
    }


@cases(
    "nodes, said",
    (
        "of the only model",
        [NODES[0]],
        "no NVIDIA T4 is large enough, even if idle: it has 15.6 GiB",
    ),
    (
        "of several",
        NODES,
        "no device is large enough, even if idle: the largest, NVIDIA A100, has 78.1 GiB",
    ),
)
def test_no_device_is_large_enough(nodes, said):
    waits = report(pods=[waiting(gpus(1, 100_000))], nodes=nodes)
    nodes = "1 node" if nodes is not NODES else "2 nodes"
    assert waits.message == f"1 × NVIDIA with 100,000 MiB fits none of {nodes}: {said}"


def test_devices_of_types_that_the_pod_excludes_are_not_too_small():
    typed = waiting(gpus(1, 20_000), **{"nvidia.com/use-gputype": "T4"})
    nodes = [NODES[0], node("n2", gpu("c", **A100))]
    assert report(pods=[typed], nodes=nodes).message.endswith(
        ": no NVIDIA T4 is large enough, even if idle: it has 15.6 GiB"
    )


def test_the_short_text_has_at_most_twelve_lines():
    """Whatever there is to say: a gang that would preempt, several events, many nodes."""
    nodes = [
        node(f"n{number}", *(gpu(f"{number}-{index}", index=index, **T4) for index in range(6)))
        for number in range(8)
    ]
    events = [EVENT, replace(EVENT, count=2), replace(EVENT, message="0/9")]
    waits = msgspec.structs.replace(
        report(pods=[waiting(gpus(1, 20_000))], nodes=nodes, events=events),
        gang=GangReport(
            name="ring", required=3, bound=0, chosen=0, waiting=3, tried=3, fitting=2, lacking=1
        ),
        preemption=PreemptionReport(node="n1", evicted=("default/a",), violations=1),
    )
    said = lines(waits)
    assert len(said) <= 12
    assert [line for line in said if "FailedScheduling" in line] == [
        "hami-scheduler (FailedScheduling, 7 times, last at now): 0/9"
    ]


def test_a_pod_that_waits_for_a_claim():
    claimed = replace(
        waiting(gpus(1, 100, 10)), claim="hami-0", scheduler_name="hami-scheduler-claims"
    )
    assert "3 of 3 devices are in the other allocation mode" in report(pods=[claimed]).message
    assert (
        "    card 0  8.8 of 15.6 GiB, 70/100 cores, 8/10 slots free; is in the other allocation mode "
        "(CardOtherAllocationMode)"
    ) in lines(report(pods=[claimed]), detailed=True)


def test_a_pod_whose_claim_cannot_be_read():
    with pytest.raises(HamiError, match="claim hami-0: broken"):
        report(pods=[replace(waiting(), claim="hami-0", claim_problem="broken")])


def test_a_pod_that_fits_waits_for_others():
    waits = report(pods=[waiting(gpus(1, 100))])
    assert waits.fits == "n1"
    assert waits.nodes == ()
    assert waits.suggestions == ()
    assert lines(waits)[0].endswith(": it fits, HAMi would place it on n1 now.")


def test_a_pod_that_nothing_helps():
    waits = report(pods=[waiting(gpus(1, 100))], nodes=[NODES[1]])
    assert lines(waits)[1] == "No change of the known kinds is enough."
    assert lines(waits, detailed=True)[1].startswith(
        "No change of the known kinds is enough: less memory, fewer cores, "
    )


def test_the_container_that_does_not_fit_beside_the_others_is_named():
    waits = report(pods=[waiting(gpus(1, 20_000, kind=INIT), gpus(1, 100))])
    assert waits.nodes[0].container == "c"
    assert waits.nodes[0].cards[0].short_mib == 11_000


def test_not_all_of_many_nodes_are_shown():
    nodes = [
        node(f"n{number:02}", *(gpu(f"{number}-{index}", index=index, **T4) for index in range(6)))
        for number in range(8)
    ]
    waits = report(pods=[waiting(gpus(1, 20_000))], nodes=nodes)
    short, long = lines(waits, detailed=True), lines(waits, wide=True)
    assert "Nearest, with 5 more:" in lines(waits)
    assert "Nearest first, 5 of 8 (-o wide shows all):" in short
    assert "    and 2 more" in short
    assert len(waits.nodes) == 8
    assert sum("    card " in line for line in long) == 48


def test_the_nearest_node_is_first():
    nodes = [
        node("far", gpu("f", **T4)),
        node("near", gpu("g", **A100)),
        node("none", gpu("h", healthy=False, **A100)),
    ]
    assert [node.node for node in report(pods=[waiting(gpus(1, 90_000))], nodes=nodes).nodes] == [
        "near",
        "far",
        "none",
    ]


def test_the_node_that_lacks_less_is_first_beyond_the_size_of_all_cards():
    nodes = [node("a", gpu("a", memory_mib=20_000)), node("b", gpu("b", memory_mib=35_360))]
    waits = report(pods=[waiting(gpus(1, 120_000))], nodes=nodes)
    assert [(node.node, node.cards[0].short_mib) for node in waits.nodes] == [
        ("b", 84_640),
        ("a", 100_000),
    ]


def test_a_pod_that_is_bound():
    holds = report("y")
    assert lines(holds) == [
        "pod default/y is bound to n1 (Running)",
        "  c asks for 2 × NVIDIA with 1 MiB",
        "",
        "It holds",
        "  c: 1,000 MiB and 0 cores of card 0 (a), shared with default/x",
        "  c: 9,000 MiB and 0 cores of card 1 (b), alone on it",
    ]


def test_a_pod_on_an_unhealthy_device_has_its_cause():
    health = '{"a":{"cause":"the driver has lost the card"},"other":{"cause":"x"}}'
    ill = node("n1", gpu("a"), annotations={"hami.io/device-health": health})
    (part,) = report("p", nodes=[ill], pods=[held("p", "n1", ("a", 1000, 0))]).unhealthy
    assert part == "a is unhealthy: the driver has lost the card; remedy: not known"


def test_a_pod_on_a_node_that_says_how_its_driver_limits_memory():
    walled = node("n1", gpu("a"), annotations={"hami.io/memory-wall": "dmem"})
    found = report("p", nodes=[walled], pods=[held("p", "n1", ("a", 1000, 0))])
    assert "The driver's own limit of memory on the node: dmem." in render_report(found)


def test_a_pod_whose_claim_holds_devices():
    def claim(name, *devices):
        holder = pod(name=name).ref
        parts = tuple(
            ClaimedDevice(
                pool="hami/d", device=device, memory_mib=3000, cores=10, share_milli=10_000
            )
            for device in devices
        )
        return AllocatedClaim(
            namespace="default",
            name=f"{name}-hami",
            uid=f"{name}-claim",
            pods=(holder,),
            requests=(ClaimedRequest(name="main", devices=parts),),
        )

    pods = [pod(name=name, node_name="d", phase="Running") for name in ("p", "q")]
    slices = (PublishedSlice("d", 1, (gpu("GPU-a"),)),)
    cluster = InspectedCluster(
        replace(
            record([Node(name="d")], pods),
            slices=slices,
            claims=(claim("p", "gpu-a", "gpu-gone"), claim("q", "gpu-a")),
        )
    )
    assert lines(explain_pod(cluster, pods[0], ())) == [
        "pod default/p is bound to d (Running)",
        "",
        "It holds",
        "  main: 3,000 MiB and 10 cores of card 0 (GPU-a), shared with default/q",
        "  main: 3,000 MiB and 10 cores of a card that is gone (gpu-gone), alone on it",
    ]


def test_what_a_claim_of_hami_s_scheduler_holds_is_told_once():
    made = node("d", gpu("GPU-a"), annotations={"hami.io/allocation-mode": "dra"})
    holder = replace(held("p", "d", ("GPU-a", 3000, 10)), claim="hami-1")
    part = ClaimedDevice(
        pool="hami/d", device="gpu-a", memory_mib=3000, cores=10, share_milli=10_000
    )
    claim = AllocatedClaim(
        namespace="default",
        name="hami-1",
        uid="c",
        pods=(holder.ref,),
        requests=(ClaimedRequest(name="c", devices=(part,)),),
    )
    cluster = InspectedCluster(
        replace(
            record([made], [holder]),
            claims=(claim,),
            slices=(PublishedSlice("d", 1, (gpu("GPU-a", by_claims=True),)),),
        )
    )
    *_, last = lines(explain_pod(cluster, holder, ()))
    assert last == "  c: 3,000 MiB and 10 cores of card 0 (GPU-a), alone on it"
    assert len(explain_pod(cluster, holder, ()).cards) == 1


def test_a_pod_that_is_resized():
    request = '{"c":{"memory":"8Gi"}}'
    keys = {
        RESIZE: request,
        RESIZED: "a,NVIDIA,1000,0:b,NVIDIA,9000,0:;",
        CORES_LIMIT: "60",
        RESIZE_STATUS: render_status(ResizeStatus(ResizeState.DEFERRED, request, "no\x1b[2J")),
    }
    holder = held("z", "n1", ("a", 1000, 0), ("b", 9000, 0))
    holds = report("z", pods=[replace(holder, annotations=holder.annotations | keys)])
    assert lines(holds)[-4:] == [
        "While no other container works on a GPU, each of its own may use 60 percent of it.",
        "",
        "Resize: deferred, it is tried again when something changes; no?[2J",
        '  hami.io/resize: {"c":{"memory":"8Gi"}}',
    ]
    document = msgspec.json.decode(msgspec.json.encode(holds))
    assert (document["coresLimit"], document["resize"]["state"]) == (60, "Deferred")


def test_since_when_a_pod_is_bound():
    bound = held("z", "n1", ("b", 1, 1))
    bound.annotations["hami.io/bind-time"] = "1787313600"
    holds = report("z", pods=[bound])
    assert isinstance(holds, BoundReport)
    assert holds.bound_s == 0


def test_an_allocation_that_cannot_be_read():
    broken = held("z", "n1", ("b", 1, 1))
    broken.annotations["hami.io/vgpu-devices-allocated"] = "b,NVIDIA,x"
    holds = report("z", pods=[broken])
    assert holds.cards == ()
    assert "all devices that it names count as taken" in lines(holds)[-1]


def test_a_card_that_is_gone():
    holds = report("z", pods=[held("z", "n1", ("gone", 1, 1))])
    assert "a card that is gone (gone)" in lines(holds)[-1]


@cases(
    "waits, said",
    (
        pod(name=PENDING, annotations={"hami.io/vgpu-node": "n1"}),
        "requests no devices that HAMi manages",
    ),
    (pod(gpus(), name=PENDING, phase="Succeeded"), r"has finished \(Succeeded\)"),
    (
        pod(gpus(), name=PENDING, phase="Failed", failure="UnexpectedAdmissionError: no device"),
        r"has finished \(Failed: UnexpectedAdmissionError: no device\)",
    ),
)
def test_pods_without_a_report(waits, said):
    with pytest.raises(HamiError, match=said):
        report(pods=[waits])


@settings(max_examples=30)
@given(rng=randoms(use_true_random=True))
def test_every_report_can_be_written(rng):
    """What is short is what is asked minus what is free; JSON has all of it."""
    cluster = InspectedCluster(some_record(rng))
    waits = explain_pod(cluster, cluster.pod_named("default", PENDING), ())
    assert msgspec.json.decode(msgspec.json.encode(waits))["name"] == PENDING
    assert not (waits.fits and waits.nodes)
    assert not (waits.fits and waits.suggestions)
    for short in waits.nodes:
        assert all(
            bool(device.reason) or not (device.short_mib or device.short_slots)
            for device in short.cards
        )
    assert lines(waits, wide=True)


def test_the_event_names_the_same_node_as_the_explanation():
    """Also where the one with the most room is not the first by name."""
    nodes = [node(f"n{number:03}", gpu(f"g{number}", **T4)) for number in range(200)]
    pods = [
        held(f"p{number}", f"n{number:03}", (f"g{number}", 15_990 if number < 100 else 11_100, 0))
        for number in range(200)
    ]
    pending = waiting(gpus(1, 5000))
    store = store_of(record(nodes, pods))
    refusal = store.filtering.assume(pending, sorted(store.nodes.names()))
    event = refusal_sentence(refusal, store.filtering.closest(refusal, 1))
    assert report(pods=[*pods, pending], nodes=nodes).nodes[0].node == "n100"
    assert event.endswith("the nearest, device 0 of n100, lacks 100 MiB")


# preemption


def explained(waits, *pods, nodes=NODES[:1], **options):
    """The sentences about preemption in the report on a pod that waits."""
    cluster = InspectedCluster(record(nodes, [*pods, waits]))
    report = explain_pod(cluster, waits, (), **options)
    text = render_report(report, wide=False)
    sentences = (
        list(preemption_sentences(report.preemption)) if report.preemption is not None else []
    )
    assert all(sentence in text for sentence in sentences)
    return sentences


def urgent(**fields):
    return replace(waiting(gpus(1, 16_000, 0)), **{"priority": 100} | fields)


LOW = [
    held("x", "n1", ("a", 9000, 0), namespace="team", labels={"app": "x"}),
    held("y", "n1", ("a", 5000, 0)),
    held("z", "n1", ("b", 9000, 0), priority=100),
]
BUDGET = DisruptionBudget(namespace="team", name="b", selector=())


@cases(
    "waits, pods, budgets, said",
    ("two pods", urgent(), LOW, (), ["It would preempt 2 pods on n1: default/y, team/x."]),
    (
        "against a budget",
        urgent(),
        LOW,
        (BUDGET,),
        [
            "It would preempt 2 pods on n1: default/y, team/x.",
            "1 eviction would violate a PodDisruptionBudget.",
        ],
    ),
    (
        "never",
        urgent(preempts=False),
        LOW,
        (),
        [
            "Pods of lower priority hold devices. None is evicted for it: its preemptionPolicy is Never."
        ],
    ),
    (
        "not enough",
        urgent(),
        [*LOW[1:], replace(LOW[0], labels={"hami.io/preemptible": "false"})],
        (),
        [
            "Pods of lower priority hold devices, but to evict those that may be evicted would not be enough."
        ],
    ),
    ("no pod of lower priority", urgent(priority=0), LOW, (), []),
    (
        "one is being evicted",
        urgent(nominated_node="n1"),
        [replace(LOW[0], preempted=True), *LOW[1:]],
        (),
        ["It waits for team/x on n1, which is being evicted for it."],
    ),
    (
        "two are being evicted",
        urgent(nominated_node="n1"),
        [replace(LOW[0], preempted=True), replace(LOW[1], deletion="2026-08-21T12:00:30Z"), LOW[2]],
        (),
        ["It waits for default/y, team/x on n1, which are being evicted for it."],
    ),
    (
        "its nomination was cleared",
        urgent(annotations={PREEMPTING: "n1"}),
        [replace(LOW[0], preempted=True, preemptor=urgent().ref.uid), *LOW[1:]],
        (),
        ["It waits for team/x on n1, which is being evicted for it."],
    ),
    (
        "two are evicted for another",
        urgent(nominated_node="n1"),
        (
            [
                replace(pod, preempted=True, preemptor="other", deletion="2026-08-21T12:00:30Z")
                for pod in LOW[:2]
            ]
            + LOW[2:]
        ),
        (),
        ["It waits for default/y, team/x on n1, which are being deleted."],
    ),
    (
        "they end anyway",
        urgent(),
        [replace(pod, deletion="2026-08-21T12:00:30Z") for pod in LOW[:2]] + LOW[2:],
        (),
        ["It waits for default/y, team/x on n1, which are being deleted."],
    ),
)
def test_whom_a_pod_would_preempt(waits, pods, budgets, said):
    assert explained(waits, *pods, budgets=budgets) == said


def of_gang(name, number):
    """A pod of a gang that needs a whole card; *number*: in the order of creation."""
    return urgent(
        ref=PodRef("team", name, name),
        group="g",
        containers=(gpus(1, 16_000, 0),),
        created=f"2026-08-21T12:00:0{number}Z",
    )


CARDS = [node("n1", gpu("a", **T4)), node("n2", gpu("b", **T4)), node("n3", gpu("c", **T4))]
HOLD = [held("x", "n1", ("a", 9000, 0)), held("y", "n2", ("b", 9000, 0))]


@cases(
    "others, pods, required, said",
    (
        "the pod fits, and the gang needs more",
        2,
        HOLD,
        3,
        ["It and 2 pods of its gang would preempt 2 pods on n1, n2: default/x, default/y."],
    ),
    (
        "the cheaper of two",
        1,
        HOLD,
        2,
        ["It and 1 pod of its gang would preempt 1 pod on n1: default/x."],
    ),
    ("a pod of the gang has not been created", 2, HOLD, 4, []),
    ("the gang needs no more than fit", 3, HOLD, 1, []),
    (
        "not enough for all",
        2,
        [HOLD[0], replace(HOLD[1], priority=100)],
        3,
        [
            "Pods of lower priority hold devices, but to evict those that may be "
            "evicted would not be enough for the 3 "
            "pods of its gang that are placed together."
        ],
    ),
    (
        "their number is not known",
        2,
        HOLD,
        None,
        ["It and 2 pods of its gang would preempt 2 pods on n1, n2: default/x, default/y."],
    ),
)
def test_whom_a_gang_would_preempt(others, pods, required, said):
    members = [of_gang(f"member-{number}", number) for number in range(others)]
    groups = {"g": PodGroup(min_count=required)}
    assert (
        explained(
            of_gang("p", 9),
            *members,
            *pods,
            nodes=CARDS,
            pod_groups=lambda ref: groups.get(ref.name),
        )
        == said
    )


@cases(
    "disrupted_with, said",
    ("one by one", "", ["It would preempt 1 pod on n1: default/x."]),
    ("together", "podgroup/h", ["It would preempt 2 pods on n1: default/x, default/y."]),
)
def test_the_pods_of_a_gang_are_preempted_as_their_group_says(disrupted_with, said):
    pods = [replace(pod, group="h") for pod in HOLD]
    groups = {"h": PodGroup(disrupted_with=disrupted_with)}
    waits = urgent(containers=(gpus(1, 16_000, 0),))
    assert (
        explained(waits, *pods, nodes=CARDS[:2], pod_groups=lambda ref: groups.get(ref.name))
        == said
    )


def test_many_victims_are_not_all_named():
    waits = replace(waiting(gpus(1, 80_000, 0)), priority=1)
    pods = [held(f"p{number:02}", "n1", ("a", 8000, 0)) for number in range(10)]
    nodes = [node("n1", gpu("a", **A100))]
    assert explained(waits, *pods, nodes=nodes) == [
        "It would preempt 10 pods on n1: "
        + ", ".join(f"default/p{number:02}" for number in range(8))
        + ", 2 more."
    ]


def test_victims_of_namespaces_that_are_not_seen_are_counted():
    waits = urgent()
    cluster = InspectedCluster(record(NODES[:1], [*LOW, waits]))
    limited = InspectedCluster(replace(cluster.record, pods=(LOW[1], waits)), cluster.view)
    (sentence,) = preemption_sentences(explain_pod(limited, waits, ()).preemption)
    assert sentence == "It would preempt 2 pods on n1: default/y, 1 pod of other namespaces."


def test_a_pod_that_fits_preempts_nobody():
    assert explained(replace(urgent(), containers=(gpus(1, 100, 0),)), *LOW) == []
