"""Usage is recorded by whoever leads: of pods that run, every second since their Bindings, also after a kill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from hami.codec.keys import BIND_TIME
from hami.codec.usage_sums import HeldAmounts, UsageSums
from testing.nodes import gpus
from testing.people import hami
from testing.pods import pod
from testing.recorded_usage import FLAGS, recorded, rights_to_record
from testing.sandbox import Sandbox
from testing.scheduler import Scheduler, kill_leader, second_replica

pytestmark = [
    pytest.mark.flags(**FLAGS),
    pytest.mark.usefixtures("rights"),
]


@pytest.fixture(scope="module")
def rights(local: Any) -> Iterator[None]:
    with rights_to_record(local.kube):
        yield


@pytest.fixture
def standby(sandbox: Sandbox, scheduler: Scheduler) -> Iterator[Scheduler]:
    """A second replica with its own kube-scheduler, and the same flags."""
    with second_replica(scheduler) as second:
        yield second.run_with(**FLAGS)


def held(sandbox: Sandbox, sums: UsageSums) -> HeldAmounts:
    """Returns what the pods of the sandbox have held."""
    total = HeldAmounts()
    for key, amounts in sums.counters().items():
        if key.namespace == sandbox.namespace:
            total = total.plus(amounts)
    return total


def bindings(sandbox: Sandbox, *names: str) -> list[int]:
    """Returns when these pods were bound."""
    return [int(sandbox.annotations(name)[BIND_TIME]) for name in names]


def test_every_second_since_the_bindings_is_recorded_also_after_a_kill(
    local: Any, sandbox: Sandbox, scheduler: Scheduler, standby: Scheduler
) -> None:
    sandbox.add_gpu_nodes({"n0": gpus(2)})
    recorded(sandbox, 0)
    sandbox.create(pod("a", gpu=1, gpumem=8000), pod("b", gpu=1, gpumem=8000))
    sandbox.started(wait_for=2)
    bound = bindings(sandbox, "a", "b")
    sums = recorded(sandbox, max(bound))
    assert held(sandbox, sums).devices == sum(sums.settled - at for at in bound)

    kill_leader(scheduler, standby)
    sandbox.create(pod("c", gpu=1, gpumem=8000))
    sandbox.started(wait_for=3)
    bound += bindings(sandbox, "c")
    sums = recorded(sandbox, max(bound))
    assert held(sandbox, sums).devices == sum(sums.settled - at for at in bound)
    assert held(sandbox, sums).memory_mib == 8000 * held(sandbox, sums).devices

    answer = hami(local.kubeconfig, "usage", "--since", "1h", "-n", sandbox.namespace, "-o", "json")
    assert answer.status == 0, answer.errors
    (row,) = answer.document["items"]
    assert row["name"] == sandbox.namespace
    assert row["deviceHours"] >= held(sandbox, sums).devices / 3600 - 0.001


def test_a_pod_that_is_deleted_holds_nothing_any_more(sandbox: Sandbox) -> None:
    sandbox.add_gpu_nodes({"n0": gpus(1)})
    sandbox.create(pod("a", gpu=1, gpumem=8000))
    sandbox.started(wait_for=1)
    (bound,) = bindings(sandbox, "a")
    recorded(sandbox, bound)
    sandbox.delete("a")
    sums = recorded(sandbox, int(time.time()))
    first = held(sandbox, sums)
    assert first.devices > 0
    assert held(sandbox, recorded(sandbox, sums.settled)) == first
