"""Pods of lower priority end for a pod with devices that no node fits: the fewest, never in vain.

What they leave is held for it."""

import contextlib
import time

import pytest

from hami.codec.pods import GROUP_LABEL
from hami.scheduler.planner import BUDGETS_S
from hami.state.read_pod import MAX_GRACE_S
from testing import vendor_nodes
from testing.cases import cases
from testing.eventually import eventually
from testing.kube import ApiError
from testing.nodes import LOCK_FREE, gpu, mig_gpu
from testing.pods import pod
from testing.priorities import of_priority
from testing.sandbox import LABEL, Sandbox
from testing.scheduler import kill_leader, redirect_webhook, second_replica

KEPT = "hami-e2e/kept"
ENDS_LATE = "hami-e2e/ends-late"  # in kwok.yaml
CARD = 80_000
pytestmark = pytest.mark.usefixtures("priorities")


def of(priority, name, memory=CARD, *, grace=0, **fields):
    """Returns a pod of a priority that needs so much memory of a card, or several cards (*gpu*)."""
    made = of_priority(priority, pod(name, **{"gpu": 1, "gpumem": memory} | fields))
    made["spec"]["terminationGracePeriodSeconds"] = grace
    return made


def on(sandbox, item, node, card=0):
    """Returns *item* for one card of *node*."""
    item["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] = sandbox.uuid(node, card)
    return item


def kept(item):
    """Returns *item* as a pod that is not gone before the finalizer is removed: its containers take long to end."""
    item["metadata"]["finalizers"] = [KEPT]
    return item


def late(item, grace):
    """Returns *item* as a pod that takes its whole grace period to end."""
    item["metadata"]["annotations"][ENDS_LATE] = "true"
    item["spec"]["terminationGracePeriodSeconds"] = grace
    return item


def grace_of(sandbox, name):
    return sandbox.pod(name)["metadata"].get("deletionGracePeriodSeconds")


def release(sandbox, name):
    sandbox.kube.merge_patch("Pod", name, {"metadata": {"finalizers": None}}, sandbox.namespace)


HOLDERS = {"v0", "v1", "v2", "v3"}


def fill(sandbox):
    """Fills the four cards with pods of low priority that take long to end."""
    for number, node in enumerate(("n0", "n0", "n1", "n1")):
        sandbox.create(kept(on(sandbox, of("low", f"v{number}"), node, number % 2)))
    sandbox.bound(4)


def ending(sandbox):
    """Returns the pods that are being deleted."""
    return {
        item["metadata"]["name"]
        for item in sandbox.kube.list("Pod", sandbox.namespace)
        if item["metadata"].get("deletionTimestamp")
    }


def begin_preemption(sandbox):
    """Creates a pod of high priority where pods of low priority hold all cards. Returns the pod that is evicted."""
    fill(sandbox)
    sandbox.create(of("high", "p"))
    (victim,) = eventually(lambda: ending(sandbox), "a victim is deleted")
    return victim


def budget(name, namespace):
    """Returns a PodDisruptionBudget that allows no eviction of the pods labeled app=NAME."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}},
    }


def keep(sandbox):
    """Allows no eviction of the pods labeled app=kept, once no plan uses budgets that were read before."""
    sandbox.kube.apply(budget("kept", sandbox.namespace), sandbox.namespace)
    time.sleep(BUDGETS_S)


def elsewhere(item, sandbox):
    """Returns *item* for the nodes of *sandbox*."""
    return {**item, "spec": {**item["spec"], "nodeSelector": {LABEL: sandbox.namespace}}}


@pytest.fixture
def two_nodes(sandbox):
    """Two nodes of two cards."""
    sandbox.add_gpu_nodes(
        {
            name: [gpu(memory_mib=CARD, uuid=f"{name}-{card}") for card in range(2)]
            for name in ("n0", "n1")
        },
        annotations=LOCK_FREE,
    )
    yield sandbox
    for item in sandbox.kube.list("Pod", sandbox.namespace):
        if item["metadata"].get("finalizers"):
            with contextlib.suppress(Exception):
                release(sandbox, item["metadata"]["name"])


@pytest.fixture
def full(two_nodes):
    """The worked example: n0 has two pods on a card and one of middle priority on the other, n1 one on each card."""
    for item in (
        on(two_nodes, of("low", "a", CARD // 2), "n0"),
        on(two_nodes, of("low", "b", CARD // 2), "n0"),
        on(two_nodes, of("mid", "c"), "n0", 1),
        on(two_nodes, of("low", "d"), "n1"),
        on(two_nodes, of("low", "e"), "n1", 1),
    ):
        two_nodes.create(item)
        two_nodes.bound()
        eventually(
            lambda name=item["metadata"]["name"]: two_nodes.pod(name)["status"].get("startTime"),
            "it runs",
        )
    time.sleep(1.1)  # start times are in seconds: the last one is the youngest
    return two_nodes


def names(sandbox):
    return {item["metadata"]["name"] for item in sandbox.kube.list("Pod", sandbox.namespace)}


def node_of(sandbox, name):
    return sandbox.short(
        sandbox.kube.wait(
            "Pod",
            lambda pods: name in pods and pods[name]["spec"].get("nodeName"),
            sandbox.namespace,
            what=f"{name} is bound",
        )
    )


def test_the_fewest_pods_of_the_lowest_priority_end(full):
    full.create(of("high", "p"))
    assert node_of(full, "p") == "n1"
    assert len(names(full) - {"p"}) == 4
    assert {"a", "b", "c"} < names(full)
    assert "1 pod of lower priority evicted" in full.event("p", "Preempting")


def test_a_pod_that_needs_two_cards_spares_the_higher_priority(full):
    full.create(of("high", "p", gpu=2))
    assert node_of(full, "p") == "n1"
    assert names(full) == {"a", "b", "c", "p"}


def test_a_disruption_budget_is_kept_where_others_can_end(full):
    for name in ("d", "e"):
        full.kube.merge_patch(
            "Pod", name, {"metadata": {"labels": {"app": "kept"}}}, full.namespace
        )
    keep(full)
    full.create(of("high", "p"))
    assert node_of(full, "p") == "n0"
    assert names(full) == {"c", "d", "e", "p"}
    full.kube.delete("PodDisruptionBudget", "kept", full.namespace)


def test_what_victims_leave_is_held_for_the_preemptor(two_nodes):
    """Victims that end late free their card in the end; nobody of the same or a lower priority gets it meanwhile."""
    sandbox = two_nodes
    victim = begin_preemption(sandbox)
    node = sandbox.short(sandbox.pod(victim)["spec"]["nodeName"])
    assert (
        sandbox.short(
            eventually(lambda: sandbox.pod("p")["status"].get("nominatedNodeName"), "nominated")
        )
        == node
    )
    sandbox.create_all(of("low", f"waits-{number}", 1000) for number in range(8))
    sandbox.create(of("patient", "equal", 1000))
    for name in ("waits-0", "waits-7", "equal"):
        sandbox.refusal(name)
    release(sandbox, victim)
    assert node_of(sandbox, "p") == node
    assert set(sandbox.bound(4)) == {"p"} | HOLDERS - {victim}


def test_two_pods_get_what_two_others_leave(two_nodes):
    """The one of higher priority may take what is held for the other, which then gets a new plan: it depends on which
    of them kube-scheduler tries first."""
    sandbox = two_nodes
    first = begin_preemption(sandbox)
    sandbox.create(of("urgent", "q"))
    sandbox.refusal("q")
    release(sandbox, first)
    (second,) = eventually(lambda: ending(sandbox) - {first}, "a second victim is deleted")
    release(sandbox, second)
    assert set(sandbox.bound(4)) == {"p", "q"} | HOLDERS - {first, second}
    assert names(sandbox) == {"p", "q"} | HOLDERS - {first, second}


@cases(
    "item",
    ("preemptionPolicy Never", of("patient", "p")),
    ("equal priority", of("low", "p")),
    ("more than a card has", of("high", "p", 2 * CARD)),
)
def test_nobody_is_evicted_where_that_does_not_help(full, item):
    before = names(full)
    full.create(item)
    full.refusal("p")
    time.sleep(3)
    assert names(full) == before | {"p"}


def test_a_preemptor_that_is_deleted_leaves_its_hold(two_nodes):
    sandbox = two_nodes
    victim = begin_preemption(sandbox)
    sandbox.create(of("low", "next"))
    sandbox.refusal("next")
    sandbox.delete("p")
    release(sandbox, victim)
    node_of(sandbox, "next")


def test_a_gang_of_the_coscheduling_plugin_ends_as_a_whole(two_nodes):
    """Also on the other node. The pod that it ends for is bound as soon as the first of its pods has ended."""
    sandbox = two_nodes
    for number, node in enumerate(("n0", "n0", "n1", "n1")):
        sandbox.create(
            on(sandbox, of("low", f"v{number}", labels={GROUP_LABEL: "ring"}), node, number % 2)
        )
    sandbox.bound(4)
    sandbox.create(of("high", "p"))
    node_of(sandbox, "p")
    eventually(lambda: names(sandbox) == {"p"}, "all pods of the gang have ended")


YEARS = 10 * 365 * 24 * 3600


@cases("grace", ("an hour", 3600), ("years", YEARS))
def test_a_pod_that_takes_long_to_end_keeps_nobody_from_evicting_others(two_nodes, grace):
    """Its owner has deleted it, and a pod of high priority would fit in its place."""
    sandbox = two_nodes
    sandbox.create(on(sandbox, late(of("mid", "slow"), grace), "n0"))
    for number, node in enumerate(("n0", "n1", "n1"), start=1):
        sandbox.create(on(sandbox, of("low", f"v{number}"), node, number % 2))
    sandbox.bound(4)
    sandbox.kube.delete("Pod", "slow", sandbox.namespace)
    sandbox.create(of("high", "p"))
    node_of(sandbox, "p")
    assert names(sandbox) > {"slow", "p"}
    assert len(names(sandbox)) == 4
    assert grace_of(sandbox, "slow") == grace


def test_where_all_pods_take_years_to_end_they_are_evicted_within_an_hour(two_nodes):
    sandbox = two_nodes
    for number, node in enumerate(("n0", "n0", "n1", "n1")):
        sandbox.create(on(sandbox, late(of("low", f"v{number}"), YEARS), node, number % 2))
    sandbox.bound(4)
    for number in range(4):
        sandbox.kube.delete("Pod", f"v{number}", sandbox.namespace)
    sandbox.create(of("high", "p"))
    (victim,) = eventually(
        lambda: [name for name in HOLDERS if grace_of(sandbox, name) == MAX_GRACE_S],
        "one of them has an hour",
    )
    assert [grace_of(sandbox, name) for name in sorted(HOLDERS - {victim})] == [YEARS] * 3
    sandbox.delete(victim)
    node_of(sandbox, "p")


def test_the_next_leader_finishes_an_eviction(two_nodes, scheduler):
    sandbox = two_nodes
    fill(sandbox)
    with second_replica(scheduler) as standby:
        sandbox.create(of("high", "p"))
        (victim,) = eventually(lambda: ending(sandbox), "a victim is deleted")
        node = sandbox.short(sandbox.pod(victim)["spec"]["nodeName"])
        kill_leader(scheduler, standby)
        sandbox.create_all(of("low", f"waits-{number}", 1000) for number in range(4))
        sandbox.refusal("waits-0")
        release(sandbox, victim)
        assert node_of(sandbox, "p") == node
        assert ending(sandbox) == set()
        assert set(sandbox.bound(4)) == {"p"} | HOLDERS - {victim}


def test_cpu_and_cards_that_are_short_at_once(two_nodes):
    """kube-scheduler finds the victims that free CPU, and the extender adds those that free a card."""
    sandbox = two_nodes
    for node in ("n0", "n1"):
        for card in range(2):
            sandbox.create(on(sandbox, of("low", f"holds-{node}-{card}", CARD), node, card))
    sandbox.bound(4)
    for number in range(2):
        sandbox.create(
            of_priority("low", pod(f"cpu-{number}", cpu=900, scheduler="hami-scheduler"))
        )
    sandbox.bound(6)
    sandbox.create(of("high", "p", cpu=500))
    node = node_of(sandbox, "p")
    ended = {f"holds-{name}-{card}" for name in ("n0", "n1") for card in range(2)} | {
        "cpu-0",
        "cpu-1",
    }
    ended -= names(sandbox)
    assert len(ended) == 2
    assert any(name.startswith("cpu") for name in ended)
    assert {name for name in ended if name.startswith("holds")} <= {
        f"holds-{node}-0",
        f"holds-{node}-1",
    }


def test_a_leader_that_was_suspended_evicts_nobody_else(two_nodes, scheduler):
    sandbox = two_nodes
    fill(sandbox)
    with second_replica(scheduler) as standby:
        sandbox.create(of("high", "p"))
        (victim,) = eventually(lambda: ending(sandbox), "a victim is deleted")
        with scheduler.program.suspended():
            scheduler.cluster.components["kube-scheduler"].kill()
            redirect_webhook(scheduler.cluster.kube, scheduler.certificates, standby.port)
            sandbox.create(of("low", "waits", 1000))
            sandbox.refusal("waits")
        release(sandbox, victim)
        node_of(sandbox, "p")
        assert ending(sandbox) == set()
        assert set(sandbox.bound(4)) == {"p"} | HOLDERS - {victim}


def test_none_of_five_hundred_pods_gets_what_is_freed(two_nodes):
    sandbox = two_nodes
    fill(sandbox)
    sandbox.create_all(of("low", f"waits-{number}", 1000) for number in range(500))
    sandbox.create(of("high", "p"))
    (victim,) = eventually(lambda: ending(sandbox), "a victim is deleted")
    release(sandbox, victim)
    node_of(sandbox, "p")
    assert set(sandbox.bound(4)) == {"p"} | HOLDERS - {victim}


def test_only_pods_of_its_namespace_make_room_in_a_quota(two_nodes):
    sandbox, gated = two_nodes, of("high", "p")
    gated["spec"]["schedulingGates"] = [{"name": "hami-e2e/gate"}]

    def knows_quota():
        try:
            sandbox.kube.dry_run(of("low", "probe"), sandbox.namespace)
        except ApiError as error:
            return "exceeding resource quota" in error.message  # Kubernetes says «exceeded quota»
        return False

    with Sandbox.opened(sandbox.kube) as other:
        other.kube.create(elsewhere(of("low", "neighbor"), sandbox), other.namespace)
        other.bound()
        sandbox.create(of("mid", "own"))
        sandbox.bound()
        sandbox.create(gated)  # the webhook refuses pods for which the quota has no room
        sandbox.kube.create(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "gpus"},
                "spec": {"hard": {"limits.nvidia.com/gpumem": str(CARD)}},
            },
            sandbox.namespace,
        )
        eventually(knows_quota, "the scheduler knows the quota")
        sandbox.kube.merge_patch("Pod", "p", {"spec": {"schedulingGates": None}}, sandbox.namespace)
        node_of(sandbox, "p")
        assert names(sandbox) == {"p"}
        assert names(other) == {"neighbor"}


def test_a_card_that_dies_after_the_eviction_leads_to_another_plan(two_nodes):
    sandbox = two_nodes
    victim = begin_preemption(sandbox)
    node = sandbox.short(sandbox.pod(victim)["spec"]["nodeName"])
    sandbox.register(
        node,
        *(gpu(memory_mib=CARD, uuid=sandbox.uuid(node, card), healthy=False) for card in range(2)),
    )
    (second,) = eventually(lambda: ending(sandbox) - {victim}, "another victim is deleted")
    release(sandbox, second)
    release(sandbox, victim)
    assert node_of(sandbox, "p") != node


def test_strict_preemption_violates_no_disruption_budget(full, scheduler):
    for name in ("a", "d", "e"):
        full.kube.merge_patch(
            "Pod", name, {"metadata": {"labels": {"app": "kept"}}}, full.namespace
        )
    keep(full)
    scheduler.run_with(preemption="strict")
    try:
        full.create(of("high", "p"))
        assert node_of(full, "p") == "n0"
        assert names(full) == {"a", "b", "d", "e", "p"}
    finally:
        scheduler.run_with()


def test_an_ascend_device_is_freed(sandbox):
    sandbox.add_node(
        "n", vendor_nodes.ascend("Ascend910B3", vendor_nodes.card("dev-0", 65_536, cores=20))
    )
    asked = {"gpu": 0, "huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 65_536}
    for name, priority in (("low", "low"), ("p", "high")):
        sandbox.create(
            of_priority(
                priority, pod(name, **{key: value for key, value in asked.items() if value})
            )
        )
        node_of(sandbox, name)
    assert names(sandbox) == {"p"}


def test_a_mig_instance_is_freed(sandbox):
    sandbox.add_gpu_node("n", mig_gpu(), annotations=LOCK_FREE)
    sandbox.create(of("low", "a", 19_000), of("low", "b", 19_000))
    sandbox.bound(2)
    sandbox.create(of("high", "p", 19_000))
    node_of(sandbox, "p")
    assert "p" in names(sandbox)
    assert len(names(sandbox)) == 2
