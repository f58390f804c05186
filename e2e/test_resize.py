"""Pods are resized while they run: a growth is booked before it is enforced, a shrink given back after it.

The nodes are fake: `testing.agent` answers for their device plugins.
"""

import json
import random
import threading

import pytest
import urllib3

from testing.accounts import account, wait_permitted
from testing.card_watch import CardWatch
from testing.cases import cases
from testing.eventually import eventually
from testing.nodes import LOCK_FREE, gpu, gpus
from testing.pods import container, init, pod
from testing.resizes import (
    APPLIED,
    RESIZABLE,
    RESIZE,
    RESIZED,
    STATUS,
    TARGET,
    answered,
    applied,
    booked,
    disagreements,
    resize,
)
from testing.sandbox import ALLOCATED, Sandbox, Share
from testing.scheduler import redirect_webhook, second_replica

CARD = 80_000


@pytest.fixture
def card(sandbox):
    """One node with one card, on which pods can be resized."""
    sandbox.add_gpu_nodes({"n": [gpu(memory_mib=CARD, slots=12)]}, annotations=RESIZABLE)
    return sandbox


def holding(name, memory, cores=10, **fields):
    return pod(name, gpu=1, gpumem=memory, gpucores=cores, **fields)


def started(sandbox, **memory):
    """Starts pods with so much memory of the card, and 10 percent of its cores. They run: none is resized before."""
    sandbox.create(*(holding(name, mib) for name, mib in memory.items()))
    sandbox.kube.wait(
        "Pod",
        lambda pods: all(pods[name]["status"].get("phase") == "Running" for name in memory),
        sandbox.namespace,
        what=f"{', '.join(memory)} run",
    )


def of(memory=None, cores=None):
    """Returns sizes of the container main."""
    return {
        "main": {
            key: value
            for key, value in (("memory", memory and f"{memory}Mi"), ("cores", cores))
            if value
        }
    }


def holds(sandbox, name, memory, cores=10):
    return sandbox.shares(name)[-1] == [Share("n/0", memory, cores)]


def waits(sandbox, name, memory):
    """Creates a pod for which there is no room."""
    sandbox.create(holding(name, memory))
    sandbox.refusal(name)


def bound(sandbox, name):
    sandbox.kube.wait(
        "Pod",
        lambda pods: pods[name]["spec"].get("nodeName"),
        sandbox.namespace,
        what=f"{name} is bound",
    )


# -- one pod


def test_a_growth_is_booked_and_applied(card):
    started(card, a=10_000)
    applied(card, "a", of(20_000, 40))
    notes = card.pod("a")["metadata"]["annotations"]
    assert holds(card, "a", 20_000, 40)
    assert notes[RESIZED] == notes[ALLOCATED] == json.loads(notes[APPLIED])["sizes"]
    assert TARGET not in notes
    card.event("a", "Resizing")
    card.event("a", "Resized")
    waits(card, "too-large", 60_001)
    card.create(holding("fits", 60_000))
    bound(card, "fits")


def test_what_does_not_fit_changes_nothing_until_there_is_room(card):
    started(card, a=30_000, b=40_000)
    before = card.pod("a")["metadata"]["annotations"]
    text = resize(card, "a", of(50_000))
    message = answered(card, "a", text, "Deferred")
    assert "at most 40000 MiB" in message
    notes = card.pod("a")["metadata"]["annotations"]
    assert {key: notes[key] for key in notes if key not in (RESIZE, STATUS)} == before
    card.event("a", "ResizePending")
    card.delete("b")
    answered(card, "a", text, "Applied")
    assert holds(card, "a", 50_000)


def test_a_quota_counts_what_pods_are_resized_to(card):
    card.kube.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "gpus"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": "30000"}},
        },
        card.namespace,
    )
    started(card, a=10_000, b=10_000)
    text = resize(card, "a", of(20_001))
    assert "quota" in answered(card, "a", text, "Deferred")
    assert holds(card, "a", 10_000)
    assert RESIZED not in card.annotations("a")
    applied(card, "a", of(20_000))
    text = resize(card, "b", of(10_001))
    answered(card, "b", text, "Deferred", containing="quota")
    applied(card, "a", of(19_999))
    answered(card, "b", text, "Applied")


def test_a_shrink_gives_back_after_the_answer_of_the_node(card, agent):
    agent.confirms = lambda namespace, name: False
    started(card, a=60_000)
    text = resize(card, "a", of(20_000, 5))
    booked(card, "a", TARGET, 20_000)
    answered(card, "a", text, "Booked")
    assert holds(card, "a", 60_000)
    waits(card, "next", 60_000)
    agent.confirms = lambda namespace, name: True
    answered(card, "a", text, "Applied")
    bound(card, "next")
    assert holds(card, "a", 20_000, 5)
    assert TARGET not in card.annotations("a")


def test_an_answer_to_an_earlier_resize_gives_nothing_back(card, agent):
    """The node had confirmed the same sizes before the pod grew. Another pod shows when the scheduler has looked again:
    it answers each pod once a second, those first that have waited for longest."""
    started(card, a=20_000, b=1000)
    applied(card, "a", of(10_000))
    agent.confirms = lambda namespace, name: name != "a"
    resize(card, "a", of(60_000))
    booked(card, "a", RESIZED, 60_000)
    text = resize(card, "a", of(10_000))
    booked(card, "a", TARGET, 10_000)
    for memory in (2000, 3000):
        applied(card, "b", of(memory))
    assert holds(card, "a", 60_000)
    waits(card, "next", 60_000)
    agent.confirms = lambda namespace, name: True
    answered(card, "a", text, "Applied")
    bound(card, "next")


def test_percent_and_the_containers_of_a_pod(sandbox):
    sandbox.add_gpu_nodes({"n": gpus(2, memory_mib=CARD)}, annotations=RESIZABLE)
    sandbox.create(
        pod(
            "a",
            containers=[
                container("plain"),
                container("left", gpu=2, percent=10, gpucores=10),
                container("right", gpu=1, gpumem=1000, gpucores=20),
            ],
        )
    )
    sandbox.started(1)
    right = sandbox.shares("a")[2][0]
    applied(sandbox, "a", {"left": {"memory": "50%"}})
    plain, left, (other,) = sandbox.shares("a")
    assert plain == []
    assert other == right
    assert sorted(left) == [Share("n/0", CARD // 2, 10), Share("n/1", CARD // 2, 10)]


GARBAGE = {
    "no-json": "8Gi",
    "nothing": "{}",
    "no-size": '{"main": {}}',
    "foreign": '{"other": {"memory": "1Gi"}}',
    "init": '{"before": {"memory": "1Gi"}}',
    "no-such-unit": '{"main": {"memory": "5000X"}}',
    "huge": '{"main": {"memory": "1000000000000000000Gi"}}',
    "too-many-bytes": '{"main": {"memory": "1000000000000000000"}}',
    "beyond-the-card": '{"main": {"memory": "80001Mi"}}',
    "negative": '{"main": {"memory": "-1Gi", "cores": -1}}',
    "whole": '{"main": {"cores": 100}}',
}
LONG = 50_000 * "9"


def test_what_tenants_may_write_and_nobody_can_have(card):
    tenant = account(card, "tenant", "edit")
    wait_permitted(card, tenant, "patch", "pods")
    card.create(
        *(
            holding(name, 100, 1, inits=[init("before")] if name == "init" else ())
            for name in GARBAGE
        )
    )
    card.started(len(GARBAGE))
    for name, text in GARBAGE.items():
        resize(card, name, text, kube=tenant)
    for name, text in GARBAGE.items():
        assert answered(card, name, text, "Infeasible")
        card.event(name, "ResizeRefused")
    resize(card, "huge", LONG, kube=tenant)
    card.event("huge", "ResizeRefused", "50000 characters")
    assert all(
        holds(card, name, 100, 1) and RESIZED not in card.annotations(name) for name in GARBAGE
    )
    applied(card, "huge", of(200))
    tenant.close()


def test_pods_of_a_node_whose_plugin_changes_no_limits_wait(sandbox):
    sandbox.add_gpu_nodes({"n": [gpu(memory_mib=CARD)]}, annotations=LOCK_FREE)
    started(sandbox, a=1000)
    answered(sandbox, "a", resize(sandbox, "a", of(2000)), "Deferred")
    assert holds(sandbox, "a", 1000)


# -- many


def test_a_thousand_edits_delay_nobody_else(card):
    """Another tenant's pod is resized meanwhile, up and down."""
    started(card, noisy=1000)
    ended = threading.Event()

    def edit():
        for number in range(1000):
            resize(card, "noisy", of(1000 + number % 700, 5))
        ended.set()

    with Sandbox.opened(card.kube) as other:
        quiet = holding("quiet", 1000)
        quiet["spec"]["nodeSelector"] = {"kubernetes.io/hostname": f"{card.namespace}-n"}
        other.kube.create(quiet, other.namespace)
        other.bound(1)
        editing = threading.Thread(target=edit)
        editing.start()
        for memory in (3000, 2000, 4000):
            applied(other, "quiet", of(memory))
        editing.join()
    assert ended.is_set()
    answered(card, "noisy", card.pod("noisy")["metadata"]["annotations"][RESIZE], "Applied")
    assert disagreements(card) == []


RESIZED_PODS, CREATED, EDITS = 50, 500, 150


def test_fifty_pods_are_resized_while_five_hundred_are_created(sandbox):
    """New pods go where the resized ones are, and no card ever gives away more than it has."""
    sandbox.add_gpu_nodes({f"n{number}": gpus(8) for number in range(10)}, annotations=RESIZABLE)
    packed = {"hami.io/node-scheduler-policy": "binpack", "hami.io/gpu-scheduler-policy": "binpack"}
    names = [f"resized-{number}" for number in range(RESIZED_PODS)]
    sandbox.create_all(holding(name, 8000, 5, annotations=packed) for name in names)
    sandbox.started(RESIZED_PODS)
    rng = random.Random(1)
    with CardWatch(sandbox.kube, sandbox.namespace) as watch:
        creation = threading.Thread(
            target=sandbox.create_all,
            args=(
                [holding(f"p{number:03}", 8000, annotations=packed) for number in range(CREATED)],
            ),
        )
        creation.start()
        for _ in range(EDITS):
            resize(
                sandbox,
                rng.choice(names),
                of(rng.randrange(1000, 30_000), rng.choice([None, 1, 5, 20])),
            )
        creation.join()
        sandbox.started(CREATED + RESIZED_PODS, timeout=300)
        eventually(
            lambda: disagreements(sandbox) == [],
            lambda: str(disagreements(sandbox)),
            interval=0.5,
        )
        seen = watch.seen
        sandbox.kube.merge_patch(
            "Pod", names[0], {"metadata": {"labels": {"example.com/last": "1"}}}, sandbox.namespace
        )
        eventually(lambda: watch.seen > seen, "the watch has seen everything")
    assert watch.wrong == []
    done = [json.loads(sandbox.annotations(name).get(STATUS, "{}")).get("state") for name in names]
    assert "Applied" in done


# -- leaders that end


def test_the_leader_is_killed_after_it_has_booked(card, scheduler, agent):
    """The next process gives the grown size to nobody, and finishes the shrink."""
    agent.confirms = lambda namespace, name: False
    started(card, grows=10_000, shrinks=30_000)
    texts = {
        "grows": resize(card, "grows", of(50_000)),
        "shrinks": resize(card, "shrinks", of(10_000)),
    }
    booked(card, "grows", RESIZED, 50_000)
    booked(card, "shrinks", TARGET, 10_000)
    scheduler.kill()
    scheduler.run_with()
    waits(card, "next", 20_000)
    agent.confirms = lambda namespace, name: True
    for name, text in texts.items():
        answered(card, name, text, "Applied")
    bound(card, "next")


@cases("is_killed", ("killed", True), ("waits", False))
def test_the_api_server_answers_nothing_while_the_leader_books(card, scheduler, local, is_killed):
    """Whether its write has arrived or not, it or the next process goes on from what the pod says."""
    started(card, a=10_000)
    with CardWatch(card.kube, card.namespace) as watch:
        text = resize(card, "a", of(70_000))
        local.pause_api_server()
        try:
            if is_killed:
                scheduler.kill()
            else:
                with pytest.raises(
                    urllib3.exceptions.TimeoutError
                ):  # longer than the leader waits for an answer
                    card.kube.call("GET", "/version", timeout=6)
        finally:
            local.resume_api_server()
        card.create(
            holding("b", 70_000, scheduler="hami-scheduler")
        )  # nobody may serve the webhook
        scheduler.run_with()
        answered(card, "a", text, "Applied", "Deferred")
        applied(card, "a", of(9000))
        bound(card, "b")
    assert watch.wrong == []
    assert disagreements(card) == []


def test_a_leader_that_was_suspended_undoes_nothing(card, scheduler, agent):
    agent.confirms = lambda namespace, name: False
    started(card, a=10_000)
    with CardWatch(card.kube, card.namespace) as watch, second_replica(scheduler) as standby:
        resize(card, "a", of(60_000))
        with scheduler.program.suspended():
            agent.confirms = lambda namespace, name: True
            scheduler.cluster.components["kube-scheduler"].kill()
            redirect_webhook(card.kube, scheduler.certificates, standby.port)
            text = resize(card, "a", of(5000))
            answered(card, "a", text, "Applied")
            card.create(holding("next", 75_000))
            bound(card, "next")
        answered(card, "a", resize(card, "a", of(5001)), "Deferred")
        applied(card, "a", of(4000))
    assert watch.wrong == []
    assert disagreements(card) == []
