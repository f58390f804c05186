"""Fixtures: one control plane and one scheduler for the session; a sandbox and an audit for each test.

``HAMI_E2E_KIND=1`` (``tox run -e kind``) selects kind, with the options of pytest-kind (``--cluster-name`` of a running
cluster, ``--kind-image`` or ``KIND_IMAGE``, ``--kind-bin``, ``--kind-kubectl-bin``, ``--keep-cluster``).
``HAMI_E2E_KUBECONFIG=1`` selects the cluster in KUBECONFIG, which must run kwok, and HAMi from manifests/.
Tests that stop or reconfigure processes of HAMi are skipped in both cases.
With ``HAMI_E2E_STRICT=1`` a skipped test has failed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from testing import audit, binaries, interrupts, kind, needs, reaper, since, strict
from testing.agent import NodeAgent
from testing.cluster import ExternalCluster, LocalCluster
from testing.device_plugin import RESOURCE, SLOTS, DevicePlugin, cards
from testing.fake_gpu import FakeGpus
from testing.helm_chart import Helm
from testing.limiter.builds import Builds
from testing.monitor import Monitor
from testing.order import longest_first
from testing.priorities import add_priorities, remove_priorities
from testing.realnode import RealNode, missing
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler, install

TIMEOUT_SECONDS = 600  # of a test that hangs, not of one that is slow
REPLICA = pytest.StashKey[Scheduler]()
KIND = pytest.StashKey[kind.KindCluster]()
Cluster = LocalCluster | ExternalCluster


def pytest_configure(config: pytest.Config) -> None:
    interrupts.interrupt_pytest()
    config.pluginmanager.register(since)
    if os.environ.get("HAMI_E2E_STRICT"):
        config.pluginmanager.register(strict)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))
    items[:] = longest_first(items)
    # HAMi is installed for the session by the first test that needs it: what needs the cluster without it comes before
    items.sort(key=lambda item: "bare_kind" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what the selected tests need here, where no test's time limit applies: tox has built it before, but
    pytest may also be called alone."""
    if not session.items or session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        if os.environ.get("HAMI_E2E_KIND"):
            if not kind.missing():
                binaries.find_one("kwok")
                binaries.find_box()
                kind.build_images()
        if any("helm" in getattr(item, "fixturenames", ()) for item in session.items):
            binaries.find_helm()
        if any("judge" in getattr(item, "fixturenames", ()) for item in session.items):
            binaries.find_oracle()
        if any("promtool" in getattr(item, "fixturenames", ()) for item in session.items):
            binaries.find_promtool()
        if not os.environ.get("HAMI_E2E_KIND") and not os.environ.get("HAMI_E2E_KUBECONFIG"):
            has_real_node = any(
                "real_node" in getattr(item, "fixturenames", ()) for item in session.items
            )
            has_real_node = has_real_node and not missing()
            binaries.find(kubelet=has_real_node)
            if has_real_node:
                binaries.find_runtime()
                binaries.find_cni_plugins()
                binaries.find_box()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """Forbids builds while tests run: a test that needs a program that nobody has built has failed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(binaries.BUILD_VARIABLE, "never")
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says once what was not tested for want of packages, and how to install them."""
    lines = needs.report(needs.missing_packages())
    if lines:
        terminalreporter.section("not tested on this machine, for want of Debian's packages")
    for line in lines:
        terminalreporter.write_line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("kind").addoption(
        "--kind-config",
        type=Path,
        default=kind.NODES,
        metavar="FILE",
        help="configuration of the kind cluster (default: %(default)s)",
    )


@pytest.fixture(scope="session", autouse=True)
def whole_run() -> Iterator[None]:
    """Ends all processes that the tests have started when this one ends, or is killed."""
    with reaper.claimed() as folder, reaper.marked(folder):
        yield


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A control plane: that of kind or of the user if selected, otherwise processes on this machine."""
    if os.environ.get("HAMI_E2E_KIND"):
        yield request.getfixturevalue("on_kind")
    elif os.environ.get("HAMI_E2E_KUBECONFIG"):
        with ExternalCluster.started() as external:
            yield external
            external.kube.close()
    else:
        with LocalCluster.started(audited=True, durable=False) as started:
            yield started
            started.kube.close()


@pytest.fixture(scope="session")
def kind_cluster(pytestconfig: pytest.Config) -> Iterator[kind.Tool]:
    """The cluster of pytest-kind, with the nodes of ``kind.yaml``, and with kind and kubectl from PATH if present."""
    if reason := kind.missing():
        pytest.skip(reason)
    paths = {
        name: pytestconfig.getoption(option) or shutil.which(name)
        for name, option in (("kind", "kind_bin"), ("kubectl", "kind_kubectl_bin"))
    }
    config = pytestconfig.getoption("kubeconfig")
    tool = kind.Tool(
        pytestconfig.getoption("cluster_name"),
        Path(config) if config else None,
        image=pytestconfig.getoption("kind_image") or os.environ.get("KIND_IMAGE"),
        **{f"{name}_path": Path(path) for name, path in paths.items() if path},
    )
    with kind.created(
        tool, pytestconfig.getoption("kind_config"), keep=pytestconfig.getoption("keep_cluster")
    ):
        yield tool


@pytest.fixture(scope="session")
def equipped_kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[kind.KindCluster]:
    """A kind cluster with our images."""
    if not os.environ.get("HAMI_E2E_KIND"):
        pytest.skip("needs kind: tox run -e kind")
    tool = request.getfixturevalue("kind_cluster")
    with kind.KindCluster.equipped(tool, tmp_path_factory.mktemp("kind")) as equipped:
        request.config.stash[KIND] = equipped
        yield equipped


@pytest.fixture(scope="session")
def on_kind(equipped_kind: kind.KindCluster) -> Iterator[kind.KindCluster]:
    """A kind cluster with HAMi installed from manifests/."""
    with equipped_kind.installed():
        yield equipped_kind


@pytest.fixture
def bare_kind(equipped_kind: kind.KindCluster) -> Iterator[kind.KindCluster]:
    """A kind cluster with our images, in which HAMi is not installed."""
    with equipped_kind.without_hami():
        yield equipped_kind


@pytest.fixture(scope="session")
def local(cluster: Cluster) -> LocalCluster:
    """The control plane as processes, which a test may stop and start."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("needs the local control plane")
    return cluster


@pytest.fixture(scope="session")
def priorities(cluster: Cluster) -> Iterator[None]:
    """PriorityClasses for ``of_priority``."""
    add_priorities(cluster.kube)
    yield
    remove_priorities(cluster.kube)


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Helm without a cluster: it renders the chart."""
    return Helm(tmp_path)


@pytest.fixture(scope="session")
def certificates(local: LocalCluster) -> Certificates:
    return Certificates(local.folder / "tls")


@pytest.fixture(scope="session")
def replica(
    local: LocalCluster, certificates: Certificates, pytestconfig: pytest.Config
) -> Iterator[Scheduler]:
    """The ``hami scheduler`` process of the session.

    Its node policy is binpack: by the default one, what it has learnt from the pods of other tests would decide.
    """
    rights = install(local, certificates)
    scheduler = Scheduler(local, certificates, rights, node_scheduler_policy="binpack")
    pytestconfig.stash[REPLICA] = scheduler
    yield scheduler
    scheduler.close()


@pytest.fixture
def scheduler(replica: Scheduler, sandbox: Sandbox) -> Scheduler:
    """The running ``hami scheduler``; a test may stop it, kill it, or restart it with other flags."""
    return replica


@pytest.fixture(scope="module")
def real_node(local: LocalCluster) -> Iterator[RealNode]:
    """A node with a kubelet and a container runtime, shared by the tests of a module."""
    if reason := missing():
        pytest.skip(reason)
    with RealNode.joined(local) as node:
        yield node


@pytest.fixture(scope="session")
def plugins(cluster: Cluster) -> Iterator[NodeAgent]:
    with NodeAgent(cluster.kube) as agent:
        yield agent


@pytest.fixture
def agent(plugins: NodeAgent, sandbox: Sandbox) -> NodeAgent:
    """The device plugins of all fake nodes; a test may slow, pause or break them."""
    return plugins


@pytest.fixture
def sandbox(
    request: pytest.FixtureRequest, cluster: Cluster, plugins: NodeAgent
) -> Iterator[Sandbox]:
    """A fresh namespace with its own nodes; all components run with the shipped flags, and with those of a marker."""
    marker = request.node.get_closest_marker("flags")
    if marker is not None or isinstance(cluster, LocalCluster):
        request.getfixturevalue("local").revive()
        replica: Scheduler = request.getfixturevalue("replica")
        flags = marker.kwargs if marker is not None else {}
        replica.run_with(
            **{name: flag(replica) if callable(flag) else flag for name, flag in flags.items()}
        )
    plugins.reset()
    with Sandbox.opened(cluster.kube, keeps_namespace=isinstance(cluster, LocalCluster)) as opened:
        yield opened


@pytest.fixture
def real(sandbox: Sandbox, real_node: RealNode) -> Iterator[RealNode]:
    """The real node, Ready and reserved for the pods of this test."""
    real_node.wait_ready()
    with real_node.lent(sandbox):
        yield real_node
        found = audit.audit(sandbox.kube)
    assert not found, "the auditor found:\n" + "\n".join(found)


@pytest.fixture(scope="session")
def builds() -> Builds:
    """The limiter, and what it is tried with."""
    return Builds()


@pytest.fixture
def monitor(real: RealNode, gpu: FakeGpus) -> Iterator[Monitor]:
    """The monitor of the real node, for modules with a card that has a driver."""
    made = Monitor(real)
    made.start()
    yield made
    made.close()


@pytest.fixture
def plugin(real: RealNode, request: pytest.FixtureRequest) -> Iterator[DevicePlugin]:
    """The device plugin with two GPUs of ten slices, or as many GPUs as its parameter says; the kubelet offers them."""
    count = getattr(request, "param", 2)
    try:
        with DevicePlugin.offered(real, count * SLOTS, *cards(count)) as made:
            yield made
    finally:
        real.kubelet.start()
        real.wait_node(
            lambda node: node["status"]["allocatable"].get(RESOURCE, "0") == "0",
            what="offers nothing of a plugin that is gone",
        )


@pytest.fixture(autouse=True)
def audited(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks after each test: no device is overcommitted, no lock is left, plugins served the expected pods."""
    if "sandbox" not in request.fixturenames:
        yield
        return
    sandbox: Sandbox = request.getfixturevalue("sandbox")
    plugins: NodeAgent = request.getfixturevalue("plugins")
    yield
    found = audit.audit(sandbox.kube) + plugins.surprises
    assert not found, "the auditor found:\n" + "\n".join(found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds logs and events to the report of a failed test."""
    report = yield
    given = list(getattr(item, "funcargs", {}).values()) if report.failed else []
    own = [value for value in given if isinstance(value, Scheduler)] + [
        item.config.stash.get(REPLICA, None)
    ]
    if report.failed and own[0]:  # that of the session, unless the test has one
        report.sections.append(("hami scheduler", own[0].program.tail()))
        report.sections.append(("control plane", said(own[0].cluster.logs)))
    if report.failed and (cluster := item.config.stash.get(KIND, None)):
        report.sections.append(("kind", said(cluster.logs)))
    if report.failed and (sandbox := getattr(item, "funcargs", {}).get("sandbox")):
        report.sections.append(("events", said(lambda: events_of(sandbox))))
    if report.failed and (node := getattr(item, "funcargs", {}).get("real")):
        report.sections.append(("real node", node.logs()))
    if report.failed and (plugin := getattr(item, "funcargs", {}).get("plugin")):
        report.sections.append(("hami device-plugin", said(lambda: str(plugin.program.tail()))))
    return report


def said(show: Callable[[], str]) -> str:
    """Returns what *show* returns; the report must not fail, even if the API server is down."""
    try:
        return show()
    except Exception as error:
        return repr(error)


def events_of(sandbox: Sandbox) -> str:
    events = sandbox.kube.list("Event", sandbox.namespace)
    return "\n".join(
        f"{item['involvedObject']['name']}: {item['reason']}: {item['message']}"
        for item in events[-40:]
    )
