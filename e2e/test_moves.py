"""Pods are moved, one after the other, so that a pod fits for which somebody asks; their controllers make others."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hami.codec.keys import MAKE_ROOM, MOVES
from hami.model import Pod
from hami.state.moves import MovePlan, MoveSearch
from testing.accounts import account, binding, permitted, refused, wait_permitted
from testing.cluster import MANIFESTS
from testing.eventually import eventually
from testing.fragmented import CARD, blocked_pod, fragmented
from testing.kube import path_of
from testing.nodes import LOCK_FREE, gpu
from testing.pods import pod, replica_set
from testing.sandbox import Sandbox
from testing.scheduler import Scheduler
from testing.yaml_text import read_documents

Object = dict[str, Any]
Layout = Mapping[str, Mapping[str, Object]]
"""By node and name: the requests of a pod."""
COMPONENT = MANIFESTS.parent / "components" / "defragment"
PLANS = int(os.environ.get("HAMI_E2E_PLANS", "3"))
"""How many plans on random nodes are carried out."""
TRIAL: Layout = {
    "n0": {"a": {"gpu": 1, "gpumem": 50_000}, "f": {"gpu": 1, "gpumem": 20_000}},
    "n1": {"d": {"gpu": 1, "gpumem": 30_000}},
    "n2": {"e": {"gpu": 1, "gpumem": 60_000}},
}
WHOLE = {"gpu": 1, "gpumem": CARD}
pytestmark = [pytest.mark.flags(defragment="apply"), pytest.mark.usefixtures("rights")]


@pytest.fixture(scope="module")
def rights(local: Any) -> Iterator[None]:
    """The roles and policies of the component."""
    items: list[Object] = []
    for name in ("rbac.yaml", "policies.yaml"):
        items += read_documents((COMPONENT / name).read_text())
    for item in items:
        local.kube.apply(item)
    yield
    for item in items:
        local.kube.delete(item["kind"], item["metadata"]["name"])


class Scene:
    """Nodes with one card each, whose pods ReplicaSets have made."""

    def __init__(self, sandbox: Sandbox, layout: Layout, fixed: frozenset[str] = frozenset()):
        self.sandbox, self.kube, self.namespace = sandbox, sandbox.kube, sandbox.namespace
        self.owners: list[str] = []
        sandbox.add_gpu_nodes(
            {name: (gpu(memory_mib=CARD),) for name in layout}, annotations=LOCK_FREE
        )
        for node, pods in layout.items():
            self.cordon(set(layout) - {node})
            for name, requests in pods.items():
                if name in fixed:
                    sandbox.create(pod(name, **requests))
                else:
                    self.owners.append(name)
                    sandbox.create(owned(name, requests))
            for name in pods:
                what = f"{name} on {node}"
                eventually(lambda name=name, node=node: self.where(name) == node, what)
        self.cordon(set())

    def cordon(self, names: set[str]) -> None:
        for name in self.sandbox.nodes:
            spec = {"spec": {"unschedulable": name in names}}
            full = self.sandbox.node(name)["metadata"]["name"]
            self.kube.merge_patch("Node", full, spec)
        self.sandbox.wait_schedulable(set(self.sandbox.nodes) - names)

    def wait_refused(self) -> None:
        """Waits until p fits none of the nodes. A plan only uses those that its last refusal is about, and
        kube-scheduler may learn late that they are not cordoned."""
        self.sandbox.refusal("p", f"none of {len(self.sandbox.nodes)} nodes")

    def pod_of(self, owner: str) -> Object | None:
        for item in self.kube.list("Pod", self.namespace):
            meta = item["metadata"]
            if owner in (meta["name"], meta.get("labels", {}).get("app")):
                if "deletionTimestamp" not in meta:
                    return dict(item)
        return None

    def where(self, owner: str) -> str:
        item = self.pod_of(owner) or {"spec": {}}
        return self.sandbox.short(item["spec"].get("nodeName", ""))

    def uids(self) -> dict[str, str]:
        """Returns the uid of the pod of each controller."""
        found: dict[str, str] = {}
        for name in self.owners:
            item = self.pod_of(name)
            if item is not None:
                found[name] = item["metadata"]["uid"]
        return found

    def ask(self, moves: int = 8) -> None:
        patch = {"metadata": {"labels": {MAKE_ROOM: str(moves)}}}
        self.kube.merge_patch("Pod", "p", patch, self.namespace)

    def wait_placed(self) -> None:
        """Waits until p and a pod of each ReplicaSet are bound."""

        def placed(pods: dict[str, Object]) -> bool:
            found = {
                item["metadata"].get("labels", {}).get("app", name)
                for name, item in pods.items()
                if item["spec"].get("nodeName") and "deletionTimestamp" not in item["metadata"]
            }
            return {"p", *self.owners} <= found

        self.kube.wait("Pod", placed, self.namespace, what="all pods are bound")


def delete_replica_sets(sandbox: Sandbox) -> None:
    """Else they make pods again while the sandbox is emptied."""
    for item in sandbox.kube.list("ReplicaSet", sandbox.namespace):
        sandbox.kube.delete("ReplicaSet", item["metadata"]["name"], sandbox.namespace)


def owned(name: str, requests: Object) -> Object:
    """Returns a ReplicaSet with one pod, which needs no webhook: the scheduler may be down when it is made again."""
    return replica_set(name, pod(name, scheduler="hami-scheduler", **requests), count=1)


@pytest.fixture
def scene(request: pytest.FixtureRequest, sandbox: Sandbox) -> Scene:
    """The nodes of the trial, and a pod that waits for a whole card: a leaves n0 for n1, and then f for n2."""
    request.addfinalizer(lambda: delete_replica_sets(sandbox))
    made = Scene(sandbox, TRIAL)
    sandbox.create(pod("p", **WHOLE))
    made.wait_refused()
    return made


def requests_of(item: Pod) -> Object:
    """Returns the requests of *item* as in `pod`."""
    limits = item.containers[0].limits
    return {name.partition("/")[2]: int(amount) for name, amount in limits.items()}


def plans() -> Iterator[tuple[Layout, frozenset[str], Object, MovePlan]]:
    """Yields random nodes, their pods that cannot be moved, what a pod requests that fits none, and its plan."""
    for seed in itertools.count():
        cluster = fragmented(
            seed,
            random.Random(seed).choice((3, 4)),
            1,
            ended=random.Random(seed).choice((0.3, 0.5)),
        )
        waiting = blocked_pod(cluster, seed)
        if waiting is None:
            continue
        plan = MoveSearch(cluster.names, cluster.movable, lambda: 0.0).plan(cluster.view, waiting)
        if not isinstance(plan, MovePlan) or len(plan.moves) > 4:
            continue
        layout: dict[str, dict[str, Object]] = {name: {} for name in cluster.names}
        fixed: set[str] = set()
        for uid, booking in cluster.view.bookings.items():
            ((_, (charge,)),) = booking.charges
            name = uid.removeprefix("uid-")
            layout[booking.node][name] = {
                "gpu": 1,
                "gpumem": charge.memory_mib,
                "gpucores": charge.cores,
            }
            if uid not in cluster.movable:
                fixed.add(name)
        yield layout, frozenset(fixed), requests_of(waiting), plan


@pytest.mark.parametrize("number", range(PLANS))
def test_plans_are_carried_out(
    request: pytest.FixtureRequest, sandbox: Sandbox, scheduler: Scheduler, number: int
) -> None:
    """The pod runs, and no more pods were evicted than the plan needs."""
    layout, fixed, requests, plan = next(itertools.islice(plans(), number, None))
    request.addfinalizer(lambda: delete_replica_sets(sandbox))
    made = Scene(sandbox, layout, fixed)
    before = made.uids()
    sandbox.create(pod("p", **requests))
    made.wait_refused()
    made.ask(len(plan.moves))
    made.wait_placed()
    after = made.uids()
    moved = [name for name in before if before[name] != after.get(name)]
    assert len(moved) == len(plan.moves)
    assert sandbox.events("p", "MoveStopped") == []


def test_the_moves_are_made_as_foreseen_and_the_request_is_gone(
    scene: Scene, scheduler: Scheduler
) -> None:
    scene.ask()
    scene.wait_placed()
    assert {name: scene.where(name) for name in ("p", "a", "f")} == {
        "p": "n0",
        "a": "n1",
        "f": "n2",
    }
    assert "after 2 moves" in scene.sandbox.event("p", "MovePlanned")
    scene.sandbox.event("p", "Moved", "2 of 2 moves made")

    def is_left() -> bool:
        meta = scene.sandbox.pod("p")["metadata"]
        return MAKE_ROOM not in meta.get("labels", {}) and MOVES not in meta["annotations"]

    eventually(is_left, "label and annotation are removed")
    assert 'hami_moves_total{result="moved"}' in scheduler.metrics()


def test_a_budget_is_never_violated(scene: Scene, scheduler: Scheduler) -> None:
    """It appears after the plan has been made."""
    before = scene.uids()
    for name in ("a", "d", "e", "f"):
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}},
        }
        scene.kube.create(budget, scene.namespace)
    scene.ask()
    assert "it does not fit after 8 moves" in scene.sandbox.event("p", "MoveStopped")
    assert scene.uids() == before


@pytest.mark.parametrize("evicted", ["a", "f"])
def test_the_next_leader_goes_on(scene: Scene, scheduler: Scheduler, evicted: str) -> None:
    """The leader dies when it has evicted a pod; nobody gets the place meanwhile."""
    before = scene.uids()
    scene.ask()
    eventually(lambda: scene.uids().get(evicted) != before[evicted], f"{evicted} is evicted")
    scheduler.kill()
    on_n0 = {"nvidia.com/use-gpuuuid": scene.sandbox.uuid("n0")}
    late = pod("late", annotations=on_n0, scheduler="hami-scheduler", gpu=1, gpumem=10_000)
    scene.sandbox.create(late)
    scheduler.start(defragment="apply")
    scene.wait_placed()
    after = scene.uids()
    assert scene.where("p") == "n0"
    assert [name for name in before if before[name] != after[name]] == ["a", "f"]


@pytest.mark.installation
def test_who_asks_needs_a_right(sandbox: Sandbox) -> None:
    """Whoever may change the pod may withdraw the request; a new pod and a Binding cannot bring it."""
    tenant = account(sandbox, "tenant", "edit")
    wait_permitted(sandbox, tenant, "patch", "pods")
    patch = {"metadata": {"labels": {MAKE_ROOM: "3"}}}
    withdrawn = {"metadata": {"labels": {MAKE_ROOM: None}}}
    asking = pod("q", gpu=1, labels={MAKE_ROOM: "3"})
    sandbox.create(pod("p", scheduler="nobody"))
    forged = {"metadata": {"annotations": {MOVES: "{}"}}}
    for change, policy in ((patch, "hami-make-room"), (forged, "hami-allocations")):
        write = tenant.merge_patch, "Pod", "p", change, sandbox.namespace
        assert refused(*write) == policy
    assert refused(tenant.create, asking, sandbox.namespace) == "hami-make-room"
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "labels": {MAKE_ROOM: "3"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n0"},
    }
    path = path_of("Pod", sandbox.namespace, "p", "binding")
    with permitted(sandbox, "binder", "pods/binding", "create") as binder:
        assert refused(binder.call, "POST", path, body) == "hami-make-room"
    sandbox.kube.merge_patch("Pod", "p", patch, sandbox.namespace)
    tenant.merge_patch("Pod", "p", withdrawn, sandbox.namespace)
    person = account(sandbox, "person", "hami-move-requester")
    sandbox.kube.create(
        binding(sandbox, "person", "edit", metadata={"name": "person-edit"}), sandbox.namespace
    )
    wait_permitted(sandbox, person, "request", "moves", "hami.io")
    wait_permitted(sandbox, person, "patch", "pods")
    person.merge_patch("Pod", "p", patch, sandbox.namespace)
    for client in (tenant, person):
        client.close()
