"""Device plugins and schedulers of two revisions on one real node: each serves what the other one has begun."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from testing import audit
from testing.cases import cases
from testing.cluster import LocalCluster
from testing.device_plugin import HOOK, SLOTS, DevicePlugin, cards
from testing.restarts import held, holding, kill_container, release, restarted, views
from testing.revision import THIS, Revision, missing, unpack
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler, install, redirect_webhook
from testing.shown import limits, shower

pytestmark = pytest.mark.kind


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    """A cluster of its own, also for the shared fixture `real_node`: other revisions install their policies."""
    with LocalCluster.started(durable=False) as started:
        yield started
        started.kube.close()


@pytest.fixture(scope="module")
def earlier(local: LocalCluster) -> Revision:
    """In the cluster's folder, which the node sees, too."""
    if reason := missing():
        pytest.skip(reason)
    return unpack(local.folder / "earlier")


@cases("is_rollback", ("upgrade", False), ("rollback", True))
def test_each_serves_what_the_other_has_begun(local, real_node, earlier, is_rollback):
    """The device plugin is replaced under running pods, then the scheduler is."""
    before, after = (THIS, earlier) if is_rollback else (earlier, THIS)
    certificates = Certificates(local.folder / "tls")
    with contextlib.ExitStack() as stack:

        def start(revision: Revision) -> Scheduler:
            scheduler = Scheduler(
                local,
                certificates,
                install(local, certificates, revision=revision),
                revision=revision,
            )
            stack.enter_context(contextlib.closing(scheduler)).start()
            redirect_webhook(local.kube, certificates, scheduler.port)
            return scheduler

        def insert(revision: Revision, name: str) -> DevicePlugin:
            plugin = stack.enter_context(
                contextlib.closing(DevicePlugin(real_node, name=name, revision=revision))
            )
            plugin.insert(*cards(2))
            return plugin.start()

        scheduler, plugin = start(before), insert(before, "plugin-before")
        plugin.install_limiter(b"the limiter\n")
        plugin.wait_offered(2 * SLOTS)
        sandbox = stack.enter_context(Sandbox.opened(local.kube))
        stack.enter_context(real_node.lent(sandbox))
        sandbox.create(shower(HOOK, "runs", gpu=1, gpumem=1000), held("waits", gpumem=2000))
        (container,) = sandbox.running("runs")
        holding(sandbox, "waits")

        successor = insert(after, "plugin-after")
        successor.wait_registered()
        plugin.stop()
        release(sandbox, real_node, "waits")
        sandbox.create(shower(HOOK, "mixed", gpu=1, gpumem=3000, gpucores=30))
        assert sandbox.running("runs", "waits", "mixed")[0] == container
        restarted(sandbox, "runs", kill_container(sandbox, real_node, "runs"))
        assert views(sandbox, real_node, "runs", 2) == ["1000m"] * 2
        assert limits(sandbox, real_node, "waits", "mixed") == [("2000m", "0"), ("3000m", "30")]

        scheduler.stop()
        start(after)
        sandbox.create(shower(HOOK, "next", gpu=2, gpumem=4000))
        sandbox.running("next")
        sandbox.create(shower(HOOK, "too-large", gpu=2, gpumem=81_000))
        sandbox.refusal("too-large")
        assert audit.audit(local.kube) == []
