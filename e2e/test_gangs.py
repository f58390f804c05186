"""Gangs of Kubernetes itself: all of a group's pods are placed or none, and those that wait do no harm to others."""

import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hami.codec.pods import render_preempted
from hami.codec.times import render_time
from hami.model import EvictedTogether
from testing import audit, binaries
from testing.cluster import LocalCluster
from testing.eventually import eventually
from testing.nodes import LOCK_FREE, fake_node, gpus
from testing.people import DEVICE_CONFIG, hami
from testing.pods import pod
from testing.priorities import add_priorities, class_name, of_priority
from testing.scheduler import (
    Certificates,
    Scheduler,
    install,
    kill_leader,
    redirect_webhook,
    second_replica,
    wait_for_webhook,
)
from testing.yaml_text import read_documents

GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
COMPOSITES = "/apis/scheduling.k8s.io/v1alpha3/namespaces/default/compositepodgroups"
GATES = {
    "kubeFeatureGates": "GenericWorkload=true,TopologyAwareWorkloadScheduling=true,CompositePodGroup=true",
    "kubeRuntimeConfig": "scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true",
}
FIRST = (1, 37)  # the version of Kubernetes with this API
ROUNDS = 4
pytestmark = pytest.mark.since(*FIRST)
EXAMPLE = Path(__file__).parent.parent / "examples" / "gang.yaml"


@pytest.fixture(scope="module")
def replica(tmp_path_factory):
    """The scheduler beside a control plane that knows gangs, with a node of seven cards."""
    if (programs := binaries.find()).minor < FIRST:
        pytest.skip(f"gangs need Kubernetes 1.37, this is {programs.kube_version}")
    with LocalCluster.started(durable=False, options=GATES) as cluster:
        certificates = Certificates(tmp_path_factory.mktemp("tls"))
        scheduler = Scheduler(cluster, certificates, install(cluster, certificates)).start()
        wait_for_webhook(cluster.kube)
        cluster.kube.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}},
            "default",
        )
        cluster.kube.create(fake_node("seven", gpus(7), annotations=LOCK_FREE))
        yield scheduler
        scheduler.close()
        cluster.kube.close()


@pytest.fixture(scope="module")
def cluster(replica):
    return replica.cluster


@pytest.fixture(scope="module")
def kube(cluster):
    return cluster.kube


@pytest.fixture
def two_more(kube):
    """Adds a node of two cards, and removes it at the end. Its name is new: kwok may renew the Lease of a node that had
    the name before, which the garbage collector then deletes, and the node is not ready for as long as a Lease lasts.
    """
    name = f"two-{secrets.token_hex(3)}"

    def add():
        kube.create(fake_node(name, gpus(2), annotations=LOCK_FREE))
        eventually(lambda: not kube.get("Node", name)["spec"].get("taints"), "the node is ready")

    yield add
    kube.delete("Node", name)


@pytest.fixture(autouse=True)
def audited(kube, two_more):
    """Finds no card that was given out twice, and removes all pods and groups."""
    yield
    found = audit.audit(kube)
    remove(kube)
    for groups in (GROUPS, COMPOSITES):
        for group in kube.call("GET", groups)["items"]:
            kube.call("DELETE", f"{groups}/{group['metadata']['name']}")
        # a group is kept by its finalizer until its pods are gone, and the next test may want its name
        eventually(
            lambda groups=groups: not kube.call("GET", groups)["items"], "the groups are gone"
        )
    assert not found, "the auditor found:\n" + "\n".join(found)


def remove(kube, *names):
    for item in kube.list("Pod", "default"):
        if not names or item["metadata"]["name"] in names:
            kube.delete("Pod", item["metadata"]["name"], "default", grace_seconds=0)


def whole_card(name, group=""):
    item = pod(name, gpu=1, gpucores=100)
    return {
        **item,
        "spec": {**item["spec"], **({"schedulingGroup": {"podGroupName": group}} if group else {})},
    }


def waiting(kube):
    return [item for item in kube.list("Pod", "default") if not item["spec"].get("nodeName")]


def create_gang(kube, group, size, priority="", least=None, mode="", parent=""):
    """Returns the names of the pods; no other gang has had them. *least*: as many are placed together, by default all.
    *mode*: how they are disrupted, by default one by one. *parent*: the CompositePodGroup above them."""
    group = f"{group}-{secrets.token_hex(3)}"
    of_group = {"priorityClassName": class_name(priority)} if priority else {}
    spec = {"schedulingPolicy": {"gang": {"minCount": least or size}}, **of_group}
    if mode:
        spec["disruptionMode"] = {mode: {}}
    if parent:
        spec |= {
            "parentCompositePodGroupName": parent,
            "workloadRef": {"workloadName": "w", "templateName": "t"},
        }
    kube.call(
        "POST",
        GROUPS,
        {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": group},
            "spec": spec,
        },
    )
    names = {f"{group}-{number}" for number in range(size)}
    for name in sorted(names):
        item = whole_card(name, group)
        item["spec"] |= of_group
        kube.create(item, "default")
    return names


def bound(kube):
    return {
        item["metadata"]["name"]
        for item in kube.list("Pod", "default")
        if item["spec"].get("nodeName")
    }


def wait_bound(kube, names):
    eventually(lambda: names <= bound(kube), f"{sorted(names)} are bound")


def test_a_gang_that_fits_is_placed(kube):
    wait_bound(kube, create_gang(kube, "fits", 7))


def test_the_gang_of_the_examples_is_placed(kube):
    group, job = read_documents(EXAMPLE.read_text())
    kube.call("POST", GROUPS, group)
    kube.create(job, "default")
    eventually(
        lambda: len(bound(kube)) == job["spec"]["parallelism"], "the pods of the Job are bound"
    )
    assert {
        item["spec"]["schedulingGroup"]["podGroupName"] for item in kube.list("Pod", "default")
    } == {group["metadata"]["name"]}
    kube.delete("Job", job["metadata"]["name"], "default")


@pytest.mark.parametrize("pause", [1, 2.5])
def test_a_gang_that_lacks_a_card_takes_none_from_others(kube, two_more, pause):
    """kube-scheduler says once why it failed: when it is tried again, its pods show nothing new."""
    gang = create_gang(kube, "big", 8)
    time.sleep(pause)
    assert bound(kube) == set()
    kube.create(whole_card("single"), "default")
    wait_bound(kube, {"single"})
    assert bound(kube) == {"single"}
    two_more()
    wait_bound(kube, gang | {"single"})


def is_refused(item):
    return any(
        condition["type"] == "PodScheduled" and condition["status"] == "False"
        for condition in item["status"].get("conditions") or []
    )


def test_a_gang_that_lacks_a_card_is_placed_by_the_next_leader(kube, replica, two_more):
    with second_replica(replica) as standby:
        gang = create_gang(kube, "big", 8)
        eventually(
            lambda: all(map(is_refused, kube.list("Pod", "default"))), "all members are refused"
        )
        kill_leader(replica, standby)
        kube.create(whole_card("single"), "default")
        wait_bound(kube, {"single"})
        assert bound(kube) == {"single"}
        two_more()
        wait_bound(kube, gang | {"single"})


def test_two_gangs_that_do_not_fit_together_take_turns(kube):
    for _ in range(ROUNDS):
        gangs = [create_gang(kube, name, 5) for name in "ab"]
        first = eventually(
            lambda: next((gang for gang in gangs if gang <= bound(kube)), None), "a gang is placed"
        )
        assert bound(kube) == first
        remove(kube, *first)
        wait_bound(kube, next(gang for gang in gangs if gang != first))
        remove(kube)


def test_explain_says_what_a_gang_lacks(cluster, kube):
    gang = create_gang(kube, "large", 8)
    answer = hami(
        cluster.kubeconfig,
        "explain",
        "pod",
        min(gang),
        "-n",
        "default",
        "-o",
        "json",
        f"--device-config-file={DEVICE_CONFIG}",
    )
    told = answer.document["gang"]
    assert [told[key] for key in ("required", "tried", "fitting", "lacking")] == [8, 8, 7, 1]
    assert bound(kube) == set()


@pytest.fixture
def full(kube):
    """Seven pods hold the cards: four of low priority, and three of high priority, whose names are returned."""
    add_priorities(kube)
    for number in range(7):
        kube.create(
            of_priority("low" if number < 4 else "high", whole_card(f"single-{number}")), "default"
        )
    wait_bound(kube, {f"single-{number}" for number in range(7)})
    return {"single-4", "single-5", "single-6"}


def test_a_gang_of_higher_priority_gets_what_others_leave_or_nobody_ends(kube, full):
    """The pods of a gang that cannot get all its cards end for nobody."""
    large = create_gang(kube, "large", 5, priority="mid")
    eventually(lambda: all(map(is_refused, waiting(kube))), "all members are refused")
    time.sleep(3)
    assert bound(kube) == {f"single-{number}" for number in range(7)}
    remove(kube, *large)
    wait_bound(kube, create_gang(kube, "small", 3, priority="mid"))
    assert len(bound(kube)) == 7
    assert full < bound(kube)


def test_a_gang_gets_as_many_cards_as_it_needs_and_then_those_that_are_left(kube, full):
    """It needs three, and of its other pods only one finds a pod of lower priority."""
    names = create_gang(kube, "small", 6, priority="mid", least=3)
    eventually(lambda: len(names & bound(kube)) == 4, "four pods of the gang are bound")
    assert bound(kube) - names == full


def create_composite(kube, mode):
    """Returns the name of a CompositePodGroup of low priority that is disrupted by *mode*."""
    name = f"job-{secrets.token_hex(3)}"
    kube.call(
        "POST",
        COMPOSITES,
        {
            "apiVersion": "scheduling.k8s.io/v1alpha3",
            "kind": "CompositePodGroup",
            "metadata": {"name": name},
            "spec": {
                "schedulingPolicy": {"basic": {}},
                "disruptionMode": {mode: {}},
                "priorityClassName": class_name("low"),
                "workloadRef": {"workloadName": "w", "templateName": "j"},
            },
        },
    )
    return name


def preempt(kube, is_left, name="p"):
    """Creates a pod of high priority for one card, and returns the names of the others once it is bound and *is_left*,
    given these names, is true."""
    kube.create(of_priority("high", whole_card(name)), "default")
    wait_bound(kube, {name})
    eventually(lambda: is_left(bound(kube) - {name}), lambda: f"some end: {bound(kube)}")
    time.sleep(2)  # nobody else ends
    return bound(kube) - {name}


def marked(kube):
    """Returns the pods that say that they are about to end."""
    return {
        item["metadata"]["name"]
        for item in kube.list("Pod", "default")
        if any(
            condition["type"] == "DisruptionTarget"
            for condition in item["status"].get("conditions") or []
        )
    }


@pytest.fixture
def four_cards(kube):
    """Three pods of high priority leave four cards."""
    add_priorities(kube)
    names = {f"high-{number}" for number in range(3)}
    for name in sorted(names):
        kube.create(of_priority("high", whole_card(name)), "default")
    wait_bound(kube, names)
    return names


def test_a_gang_that_is_disrupted_as_a_whole_ends_as_a_whole(kube, four_cards):
    """The pod that it ends for is bound as soon as the first of its pods has ended."""
    for round_ in range(ROUNDS):
        gang = create_gang(kube, "whole", 4, priority="low", mode="all")
        wait_bound(kube, gang)
        assert preempt(kube, four_cards.__eq__, f"p-{round_}") == four_cards
        assert marked(kube) == set()
        remove(kube, f"p-{round_}")


@pytest.mark.parametrize("mode", ["", "single"])
def test_of_gangs_that_are_disrupted_one_by_one_a_pod_that_is_not_needed_ends(kube, mode):
    add_priorities(kube)
    needed = create_gang(kube, "needed", 3, priority="low", mode=mode)
    wait_bound(kube, needed)
    spare = create_gang(kube, "spare", 4, priority="low", least=3, mode=mode)
    wait_bound(kube, spare)
    left = preempt(kube, lambda left: len(left & spare) == 3)
    assert needed < left
    assert len(left & spare) == 3
    assert marked(kube) == set()


def test_a_gang_of_which_no_pod_can_be_spared_loses_one(kube, four_cards):
    gang = create_gang(kube, "broken", 4, priority="low")
    wait_bound(kube, gang)
    left = preempt(kube, lambda left: len(left & gang) == 3)
    assert len(left & gang) == 3


@pytest.mark.parametrize(("mode", "count"), [("all", 0), ("single", 3)])
def test_gangs_below_a_composite_group_end_as_it_says(kube, four_cards, mode, count):
    parent = create_composite(kube, mode)
    gangs = [
        create_gang(kube, name, 2, priority="low", parent=parent) for name in ("left", "right")
    ]
    for gang in gangs:
        wait_bound(kube, gang)
    both = set.union(*gangs)
    assert len(preempt(kube, lambda left: len(left & both) == count) & both) == count


def mark(kube, names, uid):
    """Writes what a leader writes before it evicts a gang for the pod *uid*. Returns *names* as it deletes them."""
    pods = {kube.get("Pod", name, "default")["metadata"]["uid"]: name for name in names}
    together = EvictedTogether(len(pods), max(pods))
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": render_preempted(uid, "seven", together),
        "lastTransitionTime": render_time(datetime.now(UTC)),
    }
    for name in names:
        conditions = kube.get("Pod", name, "default")["status"].get("conditions") or []
        kube.merge_patch(
            "Pod",
            name,
            {"status": {"conditions": [*conditions, condition]}},
            "default",
            subresource="status",
        )
    return [pods[uid] for uid in sorted(pods)]


@pytest.mark.parametrize("deleted", [0, 1, 3])
def test_the_next_leader_ends_the_rest_of_a_gang_or_spares_it(kube, replica, four_cards, deleted):
    """The pod for which the gang was to end waits no longer."""
    gang = create_gang(kube, "handed-over", 4, priority="low", mode="all")
    wait_bound(kube, gang)
    with second_replica(replica) as standby:
        with standby.program.suspended():  # it takes over when all that the last leader did is done
            replica.kill()
            replica.cluster.components["kube-scheduler"].kill()
            in_order = mark(kube, gang, "uid-of-a-pod-that-is-gone")
            for name in in_order[:deleted]:
                kube.delete("Pod", name, "default", grace_seconds=0)
        redirect_webhook(kube, replica.certificates, standby.port)
        eventually(lambda: not marked(kube), "nobody is about to end")
        assert bound(kube) == four_cards | (set() if deleted else gang)
