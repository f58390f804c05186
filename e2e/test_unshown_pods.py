"""Filters of pods that the pod watch has not shown: those that do not exist hold devices for some seconds only."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from testing.cluster import LocalCluster
from testing.eventually import eventually
from testing.late_watch import LateWatch
from testing.nodes import gpus
from testing.pods import pod
from testing.processes import free_port
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler, account_kubeconfig

Object = dict[str, Any]
PHANTOMS = 60


@pytest.fixture
def proxy(local: LocalCluster) -> Iterator[LateWatch]:
    with LateWatch.before(local.kube) as made:
        yield made


@pytest.fixture
def late(
    sandbox: Sandbox, local: LocalCluster, certificates: Certificates, proxy: LateWatch
) -> Iterator[Scheduler]:
    """A scheduler of its own, whose watch of pods may be late. No kube-scheduler calls it but the test."""
    kubeconfig = proxy.kubeconfig(account_kubeconfig(local), local.folder / "late-watch.kubeconfig")
    scheduler = Scheduler(
        local,
        certificates,
        kubeconfig,
        name="hami-scheduler-late",
        port=free_port(),
        leader_elect="false",
        scheduler_name="late",
    )
    scheduler.start()
    yield scheduler
    scheduler.close()


def phantoms(real: Object) -> list[Object]:
    """Returns pods that do not exist. The first one has the name of one that does."""
    made = []
    for number in range(PHANTOMS):
        phantom = copy.deepcopy(real)
        phantom["metadata"]["uid"] = f"phantom-{real['metadata']['namespace']}-{number}"
        if number:
            phantom["metadata"]["name"] = f"phantom-{number}"
        made.append(phantom)
    return made


def test_pods_that_do_not_exist_hold_devices_for_some_seconds_only(sandbox, late, proxy):
    """A pod that exists keeps its devices, though the watch has not shown it."""
    sandbox.add_gpu_nodes({"a": gpus(8)})
    name = sandbox.node("a")["metadata"]["name"]

    eventually(lambda: name in late.metrics(), "it knows the node")

    def reserved(item: Object) -> bool:
        return late.reservation(item["metadata"]["uid"]) is not None

    with proxy.delayed():
        sandbox.create(pod("real", gpu=1, gpumem=1000, scheduler="nobody"))
        real = sandbox.pod("real")
        made = phantoms(real)
        with proxy.unread():
            for item in (real, *made):
                answer = late.call_extender(
                    "/filter", {"Pod": item, "Nodes": None, "NodeNames": [name]}
                ).json()
                assert answer["NodeNames"] == [name]
            assert all(map(reserved, (real, *made)))
        eventually(
            lambda: not any(map(reserved, made)), "the devices of pods that do not exist are free"
        )
        assert reserved(real)
    assert reserved(real)
    bound = {
        "PodName": "real",
        "PodNamespace": sandbox.namespace,
        "PodUID": real["metadata"]["uid"],
        "Node": name,
    }
    assert late.call_extender("/bind", bound).json() == {"Error": ""}
    sandbox.started(1)
    sandbox.delete("real")
