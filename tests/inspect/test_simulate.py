"""``hami simulate`` and ``hami capacity``: pods that are not there yet."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms

from hami.cli.people import make_admit
from hami.codec.keys import CLAIM_AMOUNTS
from hami.codec.objects import PriorityClass
from hami.codec.pods import convert_pod
from hami.errors import HamiError
from hami.inspect import simulate as module
from hami.inspect.cluster import InspectedCluster, store_of
from hami.inspect.manifests import PodSource
from hami.inspect.simulate import (
    Scenario,
    SimulatedPreemption,
    change_record,
    count_capacity,
    render_capacity,
    render_simulation,
    simulate,
)
from hami.inspect.tables import Style
from hami.model import DisruptionBudget, LabelRequirement
from testing.builders import gpu, node, pod, quota
from testing.cases import cases
from testing.records import held, record, some_record

T4 = {"model": "NVIDIA T4", "memory_mib": 16_000}
NODES = [node("n1", gpu("a", index=0, **T4), gpu("b", index=1, **T4)), node("n2", gpu("c", **T4))]
HELD = held("x", "n2", ("c", 6000, 0))


def source(
    count=1, name="web", kind="Deployment", namespace="", annotations=None, scheduler=None, **limits
):
    """Returns what makes pods that request a GPU with *limits* (``gpumem=4000``)."""
    amounts = {f"nvidia.com/{key}": str(value) for key, value in ({"gpu": 1} | limits).items()}
    spec = {"containers": [{"name": "c", "resources": {"limits": amounts}}]}
    if scheduler:
        spec["schedulerName"] = scheduler
    return PodSource(
        kind, name, namespace, count, {"metadata": {"annotations": annotations or {}}, "spec": spec}
    )


def run(*sources, nodes=NODES, pods=(HELD,), quotas=(), **scenario):
    """Returns the report on *sources*."""
    chosen = Scenario(**scenario)
    changed, moved = change_record(record(nodes, pods, quotas), chosen)
    cluster = InspectedCluster(changed)
    return simulate(cluster, sources, moved, chosen, make_admit("hami-scheduler"))


def placed(report):
    return {placed_pod.pod: (placed_pod.node, *placed_pod.cards) for placed_pod in report.pods}


def test_a_pod_with_a_claim_goes_where_claims_are_given():
    """The manifest is that of a pod as the API server has it, after admission."""
    text = json.dumps({"c": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000"}})
    claim = {"name": "hami", "resourceClaimName": "hami-" + "0" * 32}
    mark = {"hami.io/claim": "1"}
    (outcome,) = run(
        PodSource(
            "Pod",
            "web",
            "",
            1,
            {
                "metadata": {"annotations": {CLAIM_AMOUNTS: text}},
                "spec": {
                    "schedulerName": "hami-scheduler-claims",
                    "resourceClaims": [claim],
                    "containers": [
                        {
                            "name": "c",
                            "resources": {
                                "limits": mark,
                                "requests": mark,
                                "claims": [{"name": "hami", "request": "c"}],
                            },
                        }
                    ],
                },
            },
        )
    ).outcomes
    assert outcome.requests[0].texts == ["1 × NVIDIA with 9,000 MiB"]
    assert (outcome.placed, outcome.devices) == (0, {"CardOtherAllocationMode": 3})


def test_where_each_pod_would_go():
    report = run(source(3, gpumem=9000))
    assert report.all_fit
    assert placed(report) == {"web-0": ("n2", "0"), "web-1": ("n1", "1"), "web-2": ("n1", "0")}


def test_what_stops_the_next():
    (outcome,) = (report := run(source(9, gpumem=9000))).outcomes
    assert (outcome.placed, outcome.wanted, outcome.stopped) == (
        3,
        9,
        "1 × NVIDIA with 9,000 MiB fits none of 2 nodes: 3 of 3 devices have too little free memory",
    )
    assert outcome.requests[0].texts == ["1 × NVIDIA with 9,000 MiB"]
    assert not report.all_fit
    assert [(node.node, node.cards[0].short_mib) for node in outcome.nodes] == [
        ("n1", 2000),
        ("n2", 8000),
    ]


def test_a_refusal_names_a_few_devices_of_a_few_nodes():
    """However many there are, and each in a line of its own."""
    nodes = [
        node(f"n{number}", *(gpu(f"{number}-{index}", index=index, **T4) for index in range(16)))
        for number in range(9)
    ]
    report = run(source(1, gpumem=17_000), nodes=nodes, pods=())
    lines = render_simulation(report, Style()).splitlines()[2:]
    assert lines[0] == "  c asks for 1 × NVIDIA with 17,000 MiB"
    assert lines[1:6] == [
        "  n0  16/16 CardInsufficientMemory (container c)",
        *(
            f"    card {index}  15.6 of 15.6 GiB, 100/100 cores, 10/10 slots free; "
            "lacks 1,000 MiB (CardInsufficientMemory)"
            for index in range(3)
        ),
        "    and 13 more",
    ]
    assert [line for line in lines if line.startswith("  n")] == [lines[1], lines[6], lines[11]]
    assert lines[16] == "  and 6 more"


def test_workloads_are_placed_in_their_order():
    report = run(source(3, name="first", gpumem=9000), source(1, name="second", gpumem=9000))
    assert [(outcome.placed, outcome.wanted) for outcome in report.outcomes] == [(3, 3), (0, 1)]


@cases(
    "scenario, fits",
    ({}, 3),
    ({"replicas": 2}, 2),
    ({"added": ("like=n1:2",)}, 7),
    ({"drained": ("n1",)}, 1),
    ({"cordoned": ("a",)}, 2),
    ({"ended": ("x",)}, 3),
    ({"ended": ("default/x",), "cordoned": ("a", "b")}, 1),
    ({"drained": ("n1",), "added": ("like=n1:1",)}, 3),
)
def test_a_cluster_that_would_be_different(scenario, fits):
    (outcome,) = run(source(9, gpumem=9000), **scenario).outcomes
    assert outcome.placed == fits


def test_the_pods_of_a_drained_node_are_placed_again():
    report = run(source(3, gpumem=9000), drained=("n2",))
    assert [(outcome.workload, outcome.placed, outcome.wanted) for outcome in report.outcomes] == [
        ("pod/x", 1, 1),
        ("deployment/web", 2, 3),
    ]


@pytest.mark.parametrize("policy, nodes", [("binpack", ["n2", "n2"]), ("spread", ["n1", "n1"])])
def test_the_node_policy(policy, nodes):
    assert [
        placed_pod.node for placed_pod in run(source(2, gpumem=1000), policy=policy).pods
    ] == nodes


@cases(
    "fields, quotas, said",
    ({"gpumem": 1000}, [quota(gpumem=500)], "admission denies it: exceeding resource quota"),
    ({"gpumem": "x"}, [], "admission denies it: "),
    (
        {"annotations": {"hami.io/vgpu-node": "n1"}},
        [],
        "admission denies it: hami.io/vgpu-node is written by",
    ),
    (
        {"scheduler": "other"},
        [],
        "it is not for HAMi: pod already has different scheduler assigned",
    ),
)
def test_pods_pass_the_admission(fields, quotas, said):
    (outcome,) = run(source(**fields), quotas=quotas).outcomes
    assert outcome.placed == 0
    assert outcome.stopped.startswith(said)


def test_a_quota_stops_the_next():
    (outcome,) = run(source(9, gpumem=4000), quotas=[quota(gpumem=14_500)]).outcomes
    assert (outcome.placed, outcome.stopped) == (2, "admission denies it: exceeding resource quota")


def test_a_pod_without_devices_goes_anywhere():
    plain = PodSource(
        "Pod", "plain", "", 1, {"metadata": {}, "spec": {"containers": [{"name": "c"}]}}
    )
    assert placed(run(plain)) == {"plain": ("",)}


@cases(
    "scenario, said",
    ({"added": ("n1:2",)}, "expected like=NODE:COUNT"),
    ({"added": ("like=n1:0",)}, "expected like=NODE:COUNT"),
    ({"added": ("like=n11:2",)}, "there is no node n11; did you mean n1"),
    ({"drained": ("n3",)}, "there is no node n3"),
    ({"cordoned": ("zz",)}, "there is no card zz"),
    ({"ended": ("y",)}, "there is no pod with devices default/y"),
)
def test_names_that_match_nothing(scenario, said):
    with pytest.raises(HamiError, match=said):
        run(source(), **scenario)


def capacity(workload, **content):
    cluster = InspectedCluster(
        record(content.get("nodes", NODES), content.get("pods", (HELD,)), content.get("quotas", ()))
    )
    return count_capacity(cluster, workload, Scenario(), make_admit("hami-scheduler"))


def test_capacity():
    capacities = capacity(source(gpumem=5000))
    assert [(node.node, node.pods) for node in capacities] == [("n1", 6), ("n2", 2)]
    assert render_capacity(source().title, capacities, None, Style()).splitlines()[:5] == [
        "8 more pods like those of deployment/web fit",
        "",
        "NODE  PODS",
        "n1    6",
        "n2    2",
    ]


def test_no_text_of_a_manifest_reaches_the_terminal_as_a_control_code():
    workload = source(9, name="\x1b[2J\u202e", gpumem=9000)
    for text in (
        render_capacity(workload.title, capacity(workload), None, Style()),
        render_simulation(run(workload), Style()),
    ):
        assert text.replace("\n", "").isprintable()


def test_the_capacity_of_a_node_does_not_depend_on_those_before_it(monkeypatch):
    """A node may register any number of slots, so there is a limit, which is that of each node."""
    monkeypatch.setattr(module, "MAX_COUNTED", 3)
    assert [(node.node, node.pods) for node in capacity(source(gpumem=2000))] == [
        ("n1", 3),
        ("n2", 3),
    ]


def test_capacity_within_a_quota():
    assert (
        sum(node.pods for node in capacity(source(gpumem=5000), quotas=[quota(gpumem=18_000)])) == 2
    )


@cases(
    "workload, said",
    (source(gpumem="x"), "deployment/web: admission denies it"),
    (
        PodSource("Pod", "p", "", 1, {"metadata": {}, "spec": {"containers": [{"name": "c"}]}}),
        "pod/p requests no devices",
    ),
)
def test_no_capacity_for_such_pods(workload, said):
    with pytest.raises(HamiError, match=said):
        capacity(workload)


def test_the_text_says_what_was_not_looked_at():
    lines = render_simulation(run(source(4, gpumem=9000)), Style()).splitlines()
    assert lines[0] == "deployment/web: 3 of 4 fit"
    assert lines[1].startswith(
        "  the next does not: 1 × NVIDIA with 9,000 MiB fits none of 2 nodes: "
    )
    assert "POD    NODE  CARDS" in lines
    assert lines[-1].startswith("Not looked at, since kube-scheduler decides it")


def test_preferred_node_affinity_counts_and_the_text_says_so():
    workload = source(gpumem=1000)
    term = {
        "weight": 1,
        "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
    }
    workload.pod["spec"]["affinity"] = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}
    }
    for name in ("n1", "n2"):
        nodes = [
            replace(item, labels={"zone": "a" if item.name == name else "b"}) for item in NODES
        ]
        report = run(workload, nodes=nodes)
        assert placed(report)["web"][0] == name
    assert "Preferred node affinity counts." in render_simulation(report, Style())


@settings(max_examples=25)
@given(chance=randoms(use_true_random=True))
def test_a_simulation_agrees_with_the_scheduler(chance):
    """As many pods are placed, on the same nodes, as by a scheduler that is asked for one after the other."""
    cluster = some_record(chance)
    workload = source(
        chance.randrange(1, 30), gpumem=chance.randrange(1, 20_000), gpucores=chance.randrange(50)
    )
    inspected = InspectedCluster(cluster)
    report = simulate(inspected, [workload], [], Scenario(), make_admit("hami-scheduler"))
    template = convert_pod({"metadata": {"namespace": "default"}, "spec": workload.pod["spec"]})
    store = store_of(cluster)
    for number, placed_pod in enumerate(report.pods):
        again = replace(template, ref=pod(name=placed_pod.pod, uid=f"u{number}").ref)
        assert store.filtering.assume(again, inspected.offered).node == placed_pod.node
    assert len(report.pods) == report.outcomes[0].placed


@settings(max_examples=25)
@given(chance=randoms(use_true_random=True))
def test_the_capacity_is_what_a_simulation_without_end_places(chance):
    cluster = replace(some_record(chance), quotas=())
    workload = source(100_000, gpumem=chance.randrange(1, 20_000), gpucores=chance.randrange(50))
    inspected, other = InspectedCluster(cluster), InspectedCluster(cluster)
    total = count_capacity(inspected, workload, Scenario(), make_admit("hami-scheduler"))
    (outcome,) = simulate(other, [workload], [], Scenario(), make_admit("hami-scheduler")).outcomes
    assert sum(node.pods for node in total) == outcome.placed


# preemption

LOW = [
    held("low", "n1", ("a", 9000, 0)),
    held("lower", "n1", ("b", 9000, 0), priority=-10),
    held("high", "n2", ("c", 9000, 0), priority=1000),
]
CLASSES = {
    "urgent": PriorityClass(value=500),
    "polite": PriorityClass(value=500, preemption_policy="Never"),
}


def classed(priority_class, count=1, **limits):
    made = source(count, **limits)
    spec = {**made.pod["spec"], "priorityClassName": priority_class}
    return replace(made, pod={**made.pod, "spec": spec})


def preempting(*sources, budgets=(), classes=CLASSES):
    cluster = InspectedCluster(record(NODES, LOW))
    return simulate(
        cluster,
        sources,
        (),
        Scenario(),
        make_admit("hami-scheduler"),
        SimulatedPreemption(budgets=budgets, classes=classes),
    )


def test_pods_of_lower_priority_end_for_pods_that_fit_nowhere():
    report = preempting(classed("urgent", 3, gpumem=16_000))
    assert [(placed.node, placed.preempts) for placed in report.pods] == [
        ("n1", ("default/lower",)),
        ("n1", ("default/low",)),
    ]
    (outcome,) = report.outcomes
    assert (outcome.placed, outcome.wanted, outcome.stopped) == (
        2,
        3,
        "1 × NVIDIA with 16,000 MiB fits none of 2 nodes: 3 of 3 devices have too little free memory",
    )
    text = render_simulation(report, Style())
    assert "web-0 would preempt default/lower on n1\n" in text
    assert "preemption" not in text
    assert "controllers of preempted pods" in text


def test_a_pod_that_fits_preempts_nobody():
    (placed,) = preempting(classed("urgent", gpumem=4000)).pods
    assert placed.preempts == ()


@cases(
    "priority_class, default, fit",
    ("polite", None, 0),
    ("", None, 1),
    ("unknown", None, 1),
    ("", PriorityClass(value=500, global_default=True), 2),
)
def test_the_priority_of_a_pod_is_that_of_its_class(priority_class, default, fit):
    classes = CLASSES | ({"default": default} if default else {})
    report = preempting(classed(priority_class, 2, gpumem=16_000), classes=classes)
    assert report.outcomes[0].placed == fit, (
        "of a pod without a class it is 0, unless there is a default"
    )


def test_budgets_are_kept_if_possible():
    budget = DisruptionBudget(
        namespace="default", name="b", selector=(LabelRequirement("app", "In", ("lower",)),)
    )
    lower = replace(LOW[1], labels={"app": "lower"})
    cluster = InspectedCluster(record(NODES, [LOW[0], lower, LOW[2]]))
    report = simulate(
        cluster,
        [classed("urgent", gpumem=16_000)],
        (),
        Scenario(),
        make_admit("hami-scheduler"),
        SimulatedPreemption(budgets=[budget], classes=CLASSES),
    )
    assert report.pods[0].preempts == ("default/low",)


def test_nobody_is_preempted_unless_it_is_asked_for():
    cluster = InspectedCluster(record(NODES, LOW))
    report = simulate(
        cluster, [classed("urgent", gpumem=16_000)], (), Scenario(), make_admit("hami-scheduler")
    )
    assert report.pods == ()
    assert "volumes and preemption" in render_simulation(report, Style())
