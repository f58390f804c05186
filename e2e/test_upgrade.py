"""Schedulers of two revisions follow each other under the same pods, in both directions.

What a rollout does is done by hand: the next extender starts beside the one that it replaces, and so does its
kube-scheduler. `test_realnode_upgrade` does the same with device plugins.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing import audit
from testing.agent import NodeAgent
from testing.cases import cases
from testing.cluster import LocalCluster
from testing.eventually import eventually
from testing.kube import Kube
from testing.nodes import LOCK_FREE, gpus, mig_gpu
from testing.pods import container, init, pod
from testing.processes import free_port
from testing.revision import THIS, Revision, missing, unpack
from testing.sandbox import Sandbox
from testing.scheduler import (
    Certificates,
    Scheduler,
    install,
    kube_scheduler_kubeconfig,
    redirect_webhook,
)

PIECE = 9000
GIVEN_OUT = re.compile(r"^hami_v?gpu_\w+\{.*\} \S+$", re.MULTILINE)
"""Metrics of devices, and of what pods hold of them."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Revision:
    if reason := missing():
        pytest.skip(reason)
    return unpack(tmp_path_factory.mktemp("earlier"))


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.started(durable=False) as started:
        yield started
        started.kube.close()


def test_the_programs_of_the_earlier_revision_are_its_own(earlier):
    """The ones that are installed, or lie in the folder of the tests, are those of this revision."""
    shown = subprocess.run(
        [sys.executable, "-c", "import hami; print(hami.__file__)"],
        env=dict(earlier.environment),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert Path(shown.strip()).is_relative_to(earlier.root)
    assert earlier.root != THIS.root


@cases("is_rollback", ("upgrade", False), ("rollback", True))
def test_the_next_scheduler_knows_what_is_given_out(cluster, earlier, is_rollback):
    before, after = (THIS, earlier) if is_rollback else (earlier, THIS)
    kube, certificates = cluster.kube, Certificates(cluster.folder / "tls")
    with contextlib.ExitStack() as stack:
        rights = install(cluster, certificates, revision=before)
        first = stack.enter_context(
            contextlib.closing(Scheduler(cluster, certificates, rights, revision=before))
        ).start()
        agent, sandbox = (
            stack.enter_context(NodeAgent(kube)),
            stack.enter_context(Sandbox.opened(kube)),
        )
        sandbox.add_gpu_node("locked", *gpus(2, memory_mib=40_000))
        sandbox.add_gpu_node("free", *gpus(2, memory_mib=40_000), annotations=LOCK_FREE)
        sandbox.add_gpu_node("mig", mig_gpu())
        sandbox.create(
            pod("both", gpu=2, gpumem=10_000, gpucores=20),
            pod(
                "several",
                inits=[init(gpu=1, gpumem=12_000)],
                containers=[
                    container("left", gpu=1, gpumem=9000),
                    container("right", gpu=1, percent=25),
                ],
            ),
            pod("cut", gpu=1, gpumem=9000, annotations={"nvidia.com/vgpu-mode": "mig"}),
            *(pod(f"small-{number}", gpu=1, gpumem=2000, gpucores=5) for number in range(6)),
        )
        sandbox.started(9)

        rights = install(cluster, certificates, port=first.port, revision=after)
        second = stack.enter_context(
            contextlib.closing(
                Scheduler(
                    cluster,
                    certificates,
                    rights,
                    revision=after,
                    name="hami-scheduler-1",
                    port=free_port(),
                )
            )
        ).start()
        eventually(
            lambda: given_out(second) == given_out(first),
            lambda: (
                "both know the same:\n" + "\n".join(sorted(given_out(first) ^ given_out(second)))
            ),
        )
        assert (
            sum(line.startswith("hami_gpu_memory_allocated_bytes") for line in given_out(first))
            == 5
        )

        sandbox.create_all(
            pod(f"burst-{number}", gpu=1, gpumem=2000, gpucores=5) for number in range(12)
        )
        first.stop()
        cluster.components.pop("kube-scheduler").kill()
        stack.callback(
            cluster.start_kube_scheduler(
                "kube-scheduler-1", second.extender_port, kube_scheduler_kubeconfig(cluster)
            ).kill
        )
        stack.callback(cluster.components.pop, "kube-scheduler-1")  # or it would be started again
        redirect_webhook(kube, certificates, second.port)
        sandbox.started(21)

        sandbox.create(*(pod(f"rest-{number}", gpu=1, gpumem=PIECE) for number in range(20)))
        eventually(lambda: is_full(kube), "the next one gives out what is left")
        sandbox.delete("both")
        eventually(lambda: is_full(kube), "it gives out what becomes free")
        assert audit.audit(kube) + agent.surprises == []


def is_full(kube: Kube) -> bool:
    """Reports whether no card has room for another of the pods that wait, by what is written on pods and nodes."""
    found = audit.inventory(kube.list("Node"), kube.list("Pod"))
    for key, card in found.cards.items():
        used = found.used(key)
        if card.cut or used.slots >= card.slots:
            continue
        if card.memory - used.memory >= PIECE:
            return False
    return True


def given_out(scheduler: Scheduler) -> set[str]:
    """Returns what *scheduler* says of all devices and pods."""
    return set(GIVEN_OUT.findall(scheduler.metrics()))
