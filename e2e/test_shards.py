"""Two schedulers share a cluster, as the chart installs them: each has the nodes and the namespaces of its shard."""

import shlex
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import yaml

from e2e import audit, binaries
from e2e.agent import NodeAgent
from e2e.cluster import LocalCluster
from e2e.eventually import eventually
from e2e.helm_chart import Helm
from e2e.nodes import gpu, gpus
from e2e.people import DEVICE_CONFIG, hami
from e2e.pods import pod
from e2e.processes import free_port
from e2e.sandbox import Sandbox
from e2e.scheduler import (
    Certificates,
    Scheduler,
    account_kubeconfig,
    kube_scheduler_kubeconfig,
    wait_for_policies,
    webhook_configuration,
)

A, B = "hami-scheduler", "hami-scheduler-b"
APPLIED = (
    "ServiceAccount",
    "Secret",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
KEPT = ("scheduler_name", "leader_elect_resource_name", "node_label_selector", "other_shards")
"""Flags of the chart. The others are those of the manifests, or name files and addresses."""

pytestmark = pytest.mark.usefixtures("helm")  # which is built before the tests


@pytest.fixture(scope="module")
def chart(tmp_path_factory):
    """The objects of the chart with a shard named b."""
    items = Helm(tmp_path_factory.mktemp("helm")).template(
        {"scheduler": {"shards": [{"name": "b"}]}}
    )
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in items}


def configure(chart, name):
    """Returns a function that makes a configuration of kube-scheduler that of the chart, with its addresses."""

    def adjust(config):
        shipped = yaml.safe_load(chart[f"ConfigMap/{name}-kube-scheduler"]["data"]["config.yaml"])
        shipped["extenders"][0]["urlPrefix"] = config["extenders"][0]["urlPrefix"]
        shipped["clientConnection"] |= config["clientConnection"]
        config.update(shipped)

    return adjust


def flags(chart, name):
    """Returns the flags of the extender that the chart sets."""
    command = chart[f"Deployment/{name}-scheduler"]["spec"]["template"]["spec"]["containers"][1][
        "command"
    ]
    words = (
        shlex.split(word)[0].removeprefix("--").partition("=")
        for word in command
        if word.startswith("--")
    )
    found = {word[0].replace("-", "_"): word[2] for word in words}
    return {flag: found[flag] for flag in KEPT}


@pytest.fixture(scope="module")
def cluster(chart):
    """A control plane with the schedulers of both shards, which have the rights of their accounts."""
    binaries.find()
    with (
        LocalCluster.started(adjust=configure(chart, "hami"), durable=False) as started,
        ExitStack() as stack,
    ):
        for item in chart.values():
            if item["kind"] in APPLIED:
                started.kube.apply(item)
        wait_for_policies(started.kube)
        certificates = Certificates(started.folder / "tls")
        for name, port in (("hami", started.webhook_port), ("b-hami", free_port())):
            webhook = chart[f"MutatingWebhookConfiguration/{name}-webhook"]
            started.kube.apply(webhook_configuration(certificates, port, configuration=webhook))
            scheduler = Scheduler(
                started,
                certificates,
                account_kubeconfig(started, f"{name}-scheduler-extender"),
                name=f"{name}-scheduler-0",
                port=None if name == "hami" else port,
                **flags(chart, name),
            )
            stack.callback(scheduler.close)
            scheduler.start()
            if name != "hami":
                started.start_kube_scheduler(
                    "kube-scheduler-b",
                    scheduler.extender_port,
                    kube_scheduler_kubeconfig(started, f"{name}-scheduler"),
                    configure(chart, name),
                )
        stack.enter_context(NodeAgent(started.kube))
        yield started
        started.kube.close()


@pytest.fixture
def first(cluster):
    """A namespace and nodes without the label."""
    with Sandbox.opened(cluster.kube, keeps_namespace=True) as opened:
        wait_admitted(opened, A)
        yield opened


@pytest.fixture
def second(cluster):
    """A namespace of the shard b; a test labels its nodes."""
    with Sandbox.opened(
        cluster.kube, labels={"hami.io/shard": "b"}, keeps_namespace=True
    ) as opened:
        wait_admitted(opened, B)
        yield opened


@pytest.fixture(autouse=True)
def audited(cluster, first, second):
    """Finds no card that was given out twice, and no event of a scheduler about the pods of the other."""
    yield
    found = audit.audit(cluster.kube)
    assert not found, "\n".join(found)
    for sandbox, other in ((first, B), (second, A)):
        told = [
            event
            for event in cluster.kube.list("Event", sandbox.namespace)
            if other in (event.get("source", {}).get("component"), event.get("reportingComponent"))
        ]
        assert told == []


def wait_admitted(sandbox, scheduler):
    """Waits until the webhook gives pods of the namespace to *scheduler*: the API server knows its labels a bit later,
    as it does the webhook."""

    def name():
        return sandbox.kube.dry_run(pod("probe", gpu=1), sandbox.namespace)["spec"]["schedulerName"]

    eventually(
        lambda: name() == scheduler, f"{sandbox.namespace} belongs to {scheduler}", timeout=60
    )


def create(sandbox, *pods):
    """Creates *pods*, which may go to any node of the cluster."""
    for item in pods:
        sandbox.kube.create(item, sandbox.namespace)


def in_b(sandbox, nodes):
    sandbox.add_gpu_nodes(nodes, labels={"hami.io/shard": "b"})


def test_pods_that_come_at_once_go_to_the_nodes_of_their_shards(first, second):
    first.add_gpu_nodes({"a0": gpus(2), "a1": gpus(2)})
    in_b(second, {"b0": gpus(2), "b1": gpus(2)})
    pods = [
        (sandbox, pod(f"p{number}", gpu=1, gpumem=40_000))
        for number in range(8)
        for sandbox in (first, second)
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: create(*item), pods))
    assert set(first.started(8, timeout=60).values()) == {"a0", "a1"}
    assert set(second.started(8, timeout=60).values()) == {"b0", "b1"}


def test_a_pod_that_only_a_node_of_the_other_shard_fits_waits_and_is_told_why(
    cluster, first, second
):
    def ask(*words):
        return hami(
            cluster.kubeconfig,
            *words,
            f"-n={first.namespace}",
            f"--device-config-file={DEVICE_CONFIG}",
        )

    first.add_gpu_node("small", gpu(memory_mib=20_000))
    in_b(second, {"large": [gpu()]})
    create(first, pod("wants", gpu=1, gpumem=60_000))
    said = first.event("wants", "FailedScheduling", "CardInsufficientMemory", timeout=60)
    assert "1 node(s) didn't match scheduler-enforced node affinity" in said
    text = ask("explain", "pod", "wants").text
    assert "It fits none of 1 node with devices:" in text
    assert f"{first.namespace}-small" in text
    assert "1 node  of other schedulers, not asked (label hami.io/shard)" in text
    assert f"{second.namespace}-large" not in text
    nodes = ask("top", "nodes", "-o", "json").document["items"]
    assert {node["name"] for node in nodes} == {
        f"{first.namespace}-small",
        f"{second.namespace}-large",
    }
    create(second, pod("gets", gpu=1, gpumem=60_000))
    assert second.started() == {"gets": "large"}
    audited = ask("audit")
    assert audited.status == 0, audited.text


def test_a_pod_that_names_the_scheduler_of_another_shard_belongs_to_that_of_its_namespace(
    first, second
):
    first.add_gpu_node("a0")
    in_b(second, {"b0": [gpu()]})
    create(first, pod("p", gpu=1, scheduler=B))
    create(second, pod("p", gpu=1, scheduler=A))
    assert (first.started(), second.started()) == ({"p": "a0"}, {"p": "b0"})
    assert [sandbox.pod("p")["spec"]["schedulerName"] for sandbox in (first, second)] == [A, B]


def test_a_node_rests_before_the_next_scheduler_uses_it(cluster, first, second):
    first.add_gpu_node("moves")
    create(first, pod("before", gpu=1, gpumem=1000))
    assert first.started() == {"before": "moves"}
    assert first.wait_node(
        "moves", lambda notes: notes.get("hami.io/scheduler") == A, what="A claims it"
    )
    first.label_node("moves", {"hami.io/shard": "b"})
    assert first.wait_node(
        "moves",
        lambda notes: notes.get("hami.io/scheduler", "").startswith(f"{B} 20"),
        what="B claims it, with the time",
    )
    create(first, pod("first", gpu=1, gpumem=1000))
    create(second, pod("second", gpu=1, gpumem=1000))
    assert "didn't match scheduler-enforced node affinity" in first.event(
        "first", "FailedScheduling", timeout=60
    )
    assert "node rests until" in second.event("second", "FailedScheduling", timeout=60)
