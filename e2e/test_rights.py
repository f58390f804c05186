"""The account of the scheduler has exactly the permissions that it uses, according to the audit log."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from e2e.cluster import LocalCluster
from e2e.pods import pod
from e2e.rights import calls, granted, refused, shipped, unused
from e2e.sandbox import Sandbox
from e2e.scheduler import Certificates, Scheduler, account_kubeconfig, redirect_webhook, second_replica

LOCK = "hami.io/mutex.lock"
STAMP = "%Y-%m-%dT%H:%M:%SZ"


@contextlib.contextmanager
def changing(sandbox: Sandbox, node: str) -> Iterator[None]:
    """Another client writes to the node continuously."""
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            sandbox.annotate_node(node, {"example.com/number": str(number)})
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def alone(sandbox: Sandbox, scheduler: Scheduler, local: LocalCluster, certificates: Certificates,
          ) -> Iterator[Scheduler]:
    """A single replica, whose kube-scheduler has the permissions of the shipped account."""
    with second_replica(scheduler, account_kubeconfig(local)) as second:
        local.components["kube-scheduler"].stop()
        scheduler.stop()
        second.wait_healthy()
        redirect_webhook(sandbox.kube, certificates, second.port)
        yield second


@pytest.fixture
def itself(local: LocalCluster, alone: Scheduler) -> Iterator[str]:
    """The pod of the replica."""
    labels = {"app.kubernetes.io/component": "hami-scheduler", "hami.io/webhook": "ignore"}
    local.kube.create(pod(alone.name, labels=labels, scheduler="nobody"), "kube-system")
    yield alone.name
    local.kube.delete("Pod", alone.name, "kube-system", grace_seconds=0)


def test_the_scheduler_uses_every_right_that_it_has_and_misses_none(sandbox: Sandbox, local: LocalCluster,
                                                                    alone: Scheduler, itself: str) -> None:
    sandbox.add_gpu_node("n0")
    # earlier tests may have restarted the API server, which rejects requests until it has loaded its roles
    begun = local.audit_log.stat().st_size
    # reads its pod
    sandbox.annotate_node("n0", {LOCK: f"{datetime.now(UTC):{STAMP}},{sandbox.namespace},gone"})
    sandbox.create(pod("fits", gpu=1, gpumem=1000), *(pod(f"large-{number}", gpu=20) for number in range(2)))
    sandbox.event("large-0", "FilteringFailed")
    assert sandbox.started(wait_for=1, timeout=60) == {"fits": "n0"}
    with changing(sandbox, "n0"):  # writes then conflict and are retried with a new version
        sandbox.create_all(pod(f"small-{number}", gpu=1, gpumem=1000, gpucores=1) for number in range(8))
        assert len(sandbox.started(wait_for=9, timeout=60)) == 9
    sandbox.kube.wait("Pod", lambda pods: pods[itself]["metadata"]["labels"].get("hami.io/scheduler-role") == "leader",
                      "kube-system", what="labels the pod that leads")
    assert not refused(calls(local.audit_log, "hami-scheduler", begun))
    assert not unused(granted(shipped("rbac.yaml"), "hami-scheduler"), calls(local.audit_log, "hami-scheduler"))
