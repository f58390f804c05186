"""What tenants and stolen tokens attempt, and the policies of the API server refuse (docs/threat-model.md), and the
writes that must remain possible. A tenant has the ClusterRole ``edit`` in its namespace and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from hami.codec.documents import parse_own_yaml
from testing.accounts import (
    account,
    binding,
    permit_priority,
    permit_refusal,
    permitted,
    policies_in,
    refused,
    wait_permitted,
)
from testing.cases import cases
from testing.cluster import MANIFESTS
from testing.eventually import eventually
from testing.kube import ApiError, Kube, path_of
from testing.nodes import REGISTER, gpus
from testing.pods import container, init, pod, replica_set
from testing.sandbox import ALLOCATED, Sandbox, served
from testing.scheduler import Certificates, Scheduler, account_token, redirect_webhook
from testing.vendors import MUTEX, PHASE, VENDORS
from testing.yaml_text import read_documents

Object = dict[str, Any]
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
NODE, TIME = "hami.io/vgpu-node", "hami.io/vgpu-time"
IGNORE = {"hami.io/webhook": "ignore"}
STAYS = {"hami.io/preemptible": "false"}
PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
HIDDEN = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}
SYSTEM = "kube-system"
PLUGIN = "hami-device-plugin"
HEALTH = "hami.io/device-health"
RESIZE, RESIZE_APPLIED = "hami.io/resize", "hami.io/resize-applied"
RESIZES = "hami.io/vgpu-devices-resized", "hami.io/vgpu-devices-target", "hami.io/resize-status"
KEYS = sorted(
    {key for vendor in VENDORS for key in (vendor.allocated, vendor.to_allocate) if key}
    | {
        PHASE,
        NODE,
        TIME,
        *RESIZES,
        RESIZE_APPLIED,
        "hami.io/bind-time",
        "hami.io/vgpu-mig-allocations",
        "CAMBRICON_DSMLU_PROFILE",
        "huawei.com/Ascend910A",
        "predicate-time",
        "mthreads.com/gpu-index",
        "BAIDU_COM_DEVICE_IDX",
        "NEURON_ALLOCATED",
        "enflame.com/gcu-assigned",
        "metax-tech.com/gpu-devices-allocated",
    }
)


def annotated(values: Object) -> Object:
    return {"metadata": {"annotations": values}}


def of(sandbox: Sandbox, name: str) -> str:
    """Returns the name of a node in the cluster."""
    return str(sandbox.node(name)["metadata"]["name"])


@pytest.fixture
def tenant(sandbox: Sandbox) -> Iterator[Kube]:
    """A user with the ClusterRole ``edit`` in the namespace of the sandbox."""
    client = account(sandbox, "tenant", "edit")
    wait_permitted(sandbox, client, "create", "pods")
    yield client
    client.close()


@contextlib.contextmanager
def placed(
    kube: Kube, name: str, node: str, namespace: str = SYSTEM, account: str = "default"
) -> Iterator[Object]:
    """Creates a pod without devices on *node*."""
    item = pod(name, node_name=node)
    item["spec"]["serviceAccountName"] = account
    yield kube.create(item, namespace)
    kube.delete("Pod", name, namespace, grace_seconds=0)


@pytest.fixture
def two_nodes(sandbox: Sandbox) -> None:
    sandbox.add_gpu_nodes({"n0": gpus(2), "n1": gpus(2)})


@pytest.fixture
def stolen(sandbox: Sandbox, two_nodes: None) -> Iterator[Kube]:
    """The token of the device plugin on node n0."""
    with placed(
        sandbox.kube, f"{PLUGIN}-{sandbox.namespace}", of(sandbox, "n0"), account=PLUGIN
    ) as made:
        client = sandbox.kube.with_token(sandbox.kube.token(PLUGIN, SYSTEM, bound_to=made))
        yield client
        client.close()


@pytest.fixture
def running(sandbox: Sandbox, two_nodes: None) -> str:
    """A running pod with devices on node n0."""
    on = pod("running", gpu=1, gpumem=1000)
    on["spec"]["nodeSelector"] = {"kubernetes.io/hostname": of(sandbox, "n0")}
    sandbox.create(on)
    assert sandbox.started() == {"running": "n0"}
    sandbox.wait_labeled("running")
    sandbox.wait_phase("Running", "running")
    return "running"


# -- tenants


@cases(
    "values",
    ("removed", {ALLOCATED: None}),
    ("emptied", {ALLOCATED: ";"}),
    ("rewritten", {ALLOCATED: "x" * 200_000}),
    ("among-others", {ALLOCATED: None, "example.com/mine": "1"}),
    ("without-node", {NODE: None}),
    ("failed", {PHASE: "failed"}),
    ("of-another-vendor", {"hami.io/dcu-devices-to-allocate": "x,DCU,1,1:;"}),
)
def test_a_tenant_cannot_change_the_allocation_of_a_running_pod(sandbox, tenant, running, values):
    held = sandbox.annotations(running)
    assert refused(tenant.merge_patch, "Pod", running, annotated(values), sandbox.namespace) == (
        "hami-allocations"
    )
    assert sandbox.annotations(running) == held


def test_a_tenant_cannot_replace_a_running_pod_by_one_without_allocation(sandbox, tenant, running):
    item = sandbox.pod(running)
    del item["metadata"]["annotations"]
    path = path_of("Pod", sandbox.namespace, running)
    assert refused(tenant.call, "PUT", path, item) == "hami-allocations"
    for value in (None, "elsewhere"):
        patch = {"metadata": {"labels": {NODE: value}}}
        assert refused(tenant.merge_patch, "Pod", running, patch, sandbox.namespace) == (
            "hami-allocations"
        )
    with pytest.raises(ApiError):  # more than annotations may contain
        tenant.merge_patch("Pod", running, annotated({ALLOCATED: "x" * 2**20}), sandbox.namespace)


@pytest.mark.parametrize("subresource", ["status", "resize", "ephemeralcontainers"])
def test_subresources_do_not_lead_around_the_policy(sandbox, running, subresource):
    """Even with permissions that tenants lack. The API server itself ignores or rejects changes of metadata in some."""
    held = sandbox.annotations(running)
    with permitted(sandbox, "writer", f"pods/{subresource}", "patch get") as writer:
        with pytest.raises(ApiError) if subresource == "status" else contextlib.suppress(ApiError):
            writer.merge_patch(
                "Pod",
                running,
                annotated({ALLOCATED: None}),
                sandbox.namespace,
                subresource=subresource,
            )
    assert sandbox.annotations(running) == held


@pytest.mark.parametrize("path", ["pods/waiting/binding", "bindings"])
def test_a_binding_cannot_bring_an_allocation(sandbox, two_nodes, path):
    """Not even one by a scheduler of the tenant."""
    sandbox.create(pod("waiting", scheduler="foo"))
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": "waiting",
            "annotations": {ALLOCATED: f"{sandbox.uuid('n0')},NVIDIA,1000,0:;"},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": of(sandbox, "n0")},
    }
    url = f"/api/v1/namespaces/{sandbox.namespace}/{path}"
    with permitted(sandbox, "scheduler", "pods/binding bindings", "create") as scheduler:
        assert refused(scheduler.call, "POST", url, body) == "hami-allocations"
        del body["metadata"]["annotations"]
        scheduler.call("POST", url, body)
    assert sandbox.bound() == {"waiting": "n0"}


def test_no_key_of_any_vendor_can_be_set(sandbox, tenant):
    """Neither on a new pod, which need not request devices, nor on an existing one."""
    tenant.create(pod("plain", scheduler="foo"), sandbox.namespace)
    for key in KEYS:
        with pytest.raises(ApiError) as error:
            tenant.create(pod("new", annotations={key: "x"}), sandbox.namespace)
        assert error.value.status == 403, key  # by the webhook, or else by the policy
        patch = annotated({key: "x"})
        assert refused(tenant.merge_patch, "Pod", "plain", patch, sandbox.namespace) == (
            "hami-allocations"
        )


@pytest.mark.installation
def test_a_pod_cannot_skip_the_webhook(sandbox, tenant, two_nodes):
    """Not with the label, a node and a forged allocation, nor with any of them."""
    node = of(sandbox, "n0")
    forged = {
        NODE: node,
        TIME: "1",
        PHASE: "allocating",
        ALLOCATED: f"{sandbox.uuid('n0')},NVIDIA,80000,100:;",
        TO_ALLOCATE: f"{sandbox.uuid('n0')},NVIDIA,80000,100:;",
    }
    for item in (
        pod("p", gpu=1, labels=IGNORE, node_name=node, annotations=forged),
        pod("p", labels=IGNORE, annotations=forged),
    ):
        assert refused(tenant.create, item, sandbox.namespace) in (
            "hami-allocations",
            "hami-placement",
        )
    for item in (
        pod("p", gpu=1, labels=IGNORE),
        pod("p", gpu=1, labels=IGNORE, node_name=node),
        pod("p", inits=[container("i", gpumem=1)], labels=IGNORE, scheduler="hami-scheduler"),
    ):
        assert refused(tenant.create, item, sandbox.namespace) == "hami-placement"
    tenant.create(pod("p", labels=IGNORE), sandbox.namespace)  # without devices it means nothing


@pytest.mark.parametrize(
    "asked", [{"gpu": 1}, {"gpumem": 1000}, {"hygon.com/dcunum": 1}, {"cambricon.com/vmlu": 1}]
)
def test_a_pod_with_devices_cannot_name_its_node(sandbox, tenant, two_nodes, asked):
    """Not even for another scheduler, to which the webhook leaves it."""
    item = pod("p", scheduler="foo", node_name=of(sandbox, "n0"), **asked)
    assert refused(tenant.create, item, sandbox.namespace) == "hami-placement"


@pytest.mark.parametrize(
    "fields",
    [
        {"resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/priority": "0"}}},
        {"resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/priority": "0k"}}},
        *(
            {"env": [{"name": "CUDA_TASK_PRIORITY", "value": value}]}
            for value in ("0", "-3", "+0", "01", "", "9" * 10)
        ),
        {
            "env": [
                {"name": "CUDA_TASK_PRIORITY", "value": "1"},
                {"name": "CUDA_TASK_PRIORITY", "value": "0"},
            ]
        },
        {
            "env": [
                {
                    "name": "CUDA_TASK_PRIORITY",
                    "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
                }
            ]
        },
        {"env": [{"name": f"A{number}", "value": ""} for number in range(501)]},
    ],
    ids=[
        "zero",
        "0k",
        "variable",
        "negative",
        "signed",
        "octal",
        "empty",
        "long",
        "second",
        "reference",
        "many",
    ],
)
@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_priority_zero_needs_a_right(sandbox, tenant, fields, part):
    item = pod("p", gpu=1, inits=[container("i", gpu=1)])
    item["spec"][part][0] |= fields
    assert refused(tenant.create, item, sandbox.namespace) == "hami-placement"
    with pytest.raises(
        ApiError, match="priority 0 .'nvidia.com/priority'.*rolebinding hami-priority-user"
    ):
        sandbox.kube.create(item, sandbox.namespace)  # nor does an administrator's right count


@pytest.mark.installation
def test_the_account_of_a_pod_has_the_right_to_priority_zero_not_who_creates_the_pod(
    sandbox, tenant, two_nodes
):
    """Controllers create most pods. A tenant that administers its namespace cannot give itself the right."""

    def urgent(name: str, account: str) -> Object:
        item = pod(name, gpu=1, gpumem=1000, priority=0)
        item["spec"]["serviceAccountName"] = account
        return item

    account(sandbox, "urgent")
    owner = account(sandbox, "owner", "admin")
    wait_permitted(sandbox, owner, "create", "rolebindings", "rbac.authorization.k8s.io")
    bound = binding(sandbox, "urgent", "hami-priority-user")
    with pytest.raises(ApiError, match="attempting to grant RBAC permissions not currently held"):
        owner.create(bound, sandbox.namespace)
    owner.close()
    tenant.create(replica_set("r", urgent("r", "urgent"), count=1), sandbox.namespace)
    assert "hami-priority-user" in sandbox.event("r", "FailedCreate")
    permit_priority(sandbox, "urgent")
    assert len(sandbox.started()) == 1  # the controller tries again
    tenant.create(urgent("direct", "urgent"), sandbox.namespace)
    assert refused(tenant.create, urgent("other", "default"), sandbox.namespace) == "hami-placement"
    tenant.delete("ReplicaSet", "r", sandbox.namespace)


def test_all_accounts_of_a_namespace_can_have_the_right_to_priority_zero(sandbox, tenant):
    tenant.create(pod("low", gpu=1, priority=1), sandbox.namespace)
    permit_priority(sandbox)
    tenant.create(pod("high", gpu=1, priority=0), sandbox.namespace)
    assert {"name": "CUDA_TASK_PRIORITY", "value": "0"} in sandbox.pod("high")["spec"][
        "containers"
    ][0]["env"]


def test_a_plain_pod_cannot_claim_cards(sandbox, tenant, two_nodes):
    """Neither a running one, nor one that another scheduler never binds."""
    everything = (
        "".join(f"{sandbox.uuid('n0', index)},NVIDIA,81920,100:" for index in range(2)) + ";"
    )
    claim = {NODE: of(sandbox, "n0"), TIME: "4102444800", ALLOCATED: everything}
    tenant.create(pod("plain", node_name=of(sandbox, "n0")), sandbox.namespace)
    tenant.create(pod("unbound", scheduler="foo"), sandbox.namespace)
    for name in ("plain", "unbound"):
        assert refused(tenant.merge_patch, "Pod", name, annotated(claim), sandbox.namespace) == (
            "hami-allocations"
        )
    sandbox.create(pod("whole", gpu=2))
    assert sandbox.bound(wait_for=2)["whole"] in ("n0", "n1")


def test_a_waiting_pod_gets_no_key_of_another_vendor(sandbox, tenant, two_nodes):
    tenant.create(pod("large", gpu=64), sandbox.namespace)
    for key in (
        TO_ALLOCATE,
        "hami.io/dcu-devices-to-allocate",
        "hami.io/Biren-devices-to-allocate",
    ):
        patch = annotated({key: "GPU-x,NVIDIA,1,1:;"})
        assert refused(tenant.merge_patch, "Pod", "large", patch, sandbox.namespace) == (
            "hami-allocations"
        )


def test_policies_hold_while_the_scheduler_is_down(sandbox, tenant, running, scheduler):
    node = of(sandbox, "n0")
    scheduler.kill()
    try:
        patch = annotated({ALLOCATED: None})
        assert (
            refused(tenant.merge_patch, "Pod", running, patch, sandbox.namespace)
            == "hami-allocations"
        )
        for item in (pod("p", gpu=1, annotations={ALLOCATED: "x"}), pod("p", labels={NODE: node})):
            assert refused(tenant.create, item, sandbox.namespace) == "hami-allocations"
        mirror = {"kubernetes.io/config.mirror": "x"}
        for item in (
            pod("p", gpu=1, node_name=node),
            pod("p", gpu=1, labels=IGNORE),
            pod("p", gpu=1, node_name=node, annotations=mirror),
        ):
            assert refused(tenant.create, item, sandbox.namespace) == "hami-placement"
        kubelet = sandbox.kube.impersonating(f"system:node:{node}", "system:nodes")
        kubelet.create(pod("mirror", gpu=1, node_name=node, annotations=mirror), sandbox.namespace)
        kubelet.close()
        sandbox.delete("mirror")
    finally:
        scheduler.run_with()


def test_many_annotations_are_no_way_around(sandbox, tenant):
    """Nor do they occupy the API server: it checks a limited number of keys."""
    many = {f"example.com/{number}": "" for number in range(5000)}
    some = dict(list(many.items())[:400])
    for values in ({**many, ALLOCATED: "x"}, many):
        item = pod("new", scheduler="foo", annotations=values)
        assert refused(tenant.create, item, sandbox.namespace) == "hami-allocations"
    tenant.create(pod("some", scheduler="foo", annotations=some), sandbox.namespace)
    for values in ({ALLOCATED: "x"}, many):
        patch = annotated(values)
        assert refused(tenant.merge_patch, "Pod", "some", patch, sandbox.namespace) == (
            "hami-allocations"
        )


POLICIES = sorted(MANIFESTS.parent.rglob("policies.yaml"))


@pytest.mark.parametrize("kind", ["Pod", "Node", "ResourceClaim"])
def test_no_subresource_is_a_way_around_a_policy(sandbox, kind):
    """A policy that judges changes of an object judges them by each path that the API server serves, also of a newer
    Kubernetes."""
    prefix, _, resource = path_of(kind).rpartition("/")
    paths = {
        served["name"]
        for served in sandbox.kube.call("GET", prefix)["resources"]
        if served["kind"] == kind
        and {"update", "patch"} & set(served["verbs"])
        and served["name"].partition("/")[0] == resource
    }
    assert {resource, f"{resource}/status"} <= paths
    judged = {}
    for policy in (item for file in POLICIES for item in read_documents(file.read_text())):
        rules = policy["spec"].get("matchConstraints", {}).get("resourceRules", ())
        changes = {
            name for rule in rules if "UPDATE" in rule["operations"] for name in rule["resources"]
        }
        if resource in changes:
            judged[policy["metadata"]["name"]] = paths - changes
    assert judged, judged
    assert not any(judged.values()), judged


# -- the token of a device plugin


@pytest.mark.installation
def test_a_stolen_token_cannot_change_pods_beyond_annotations(sandbox, stolen, running):
    image = {"spec": {"containers": [{"name": "main", "image": "evil:1"}]}}
    strategic = "application/strategic-merge-patch+json"
    with placed(sandbox.kube, f"system-{sandbox.namespace}", of(sandbox, "n1")) as other:
        for namespace, name in ((SYSTEM, other["metadata"]["name"]), (sandbox.namespace, running)):
            path = path_of("Pod", namespace, name)
            assert refused(stolen.call, "PATCH", path, image, content_type=strategic) == (
                "hami-allocations"
            )
        patch = annotated({PHASE: "failed"})
        assert refused(stolen.merge_patch, "Pod", other["metadata"]["name"], patch, SYSTEM) == (
            "hami-allocations"
        )
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "0"}
    for patch in (
        {"metadata": {"labels": {"app": "x"}}},
        annotated({"example.com/x": "1"}),
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"metadata": {"ownerReferences": [owner]}},
        {"spec": {"activeDeadlineSeconds": 1}},
        {"metadata": {"labels": {NODE: None}}},
        *(annotated({key: ";", PHASE: "success"}) for key in (RESIZE, *RESIZES)),
    ):
        assert refused(stolen.merge_patch, "Pod", running, patch, sandbox.namespace) == (
            "hami-allocations"
        )


@pytest.mark.installation
def test_a_stolen_token_cannot_change_nodes_beyond_its_annotations(sandbox, stolen):
    own, other = of(sandbox, "n0"), of(sandbox, "n1")
    for patch in (
        annotated({REGISTER: "[]"}),
        annotated({MUTEX: "x"}),
        annotated({"hami.io/lock-free": "NVIDIA"}),
        {"metadata": {"labels": {"gpu": "off"}}},
        {"spec": {"unschedulable": True}},
    ):
        assert refused(stolen.merge_patch, "Node", other, patch) == "hami-registrations"
    taints = [{"key": "k", "effect": "NoExecute"}]
    for patch in (
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": taints}},
        {"metadata": {"labels": {"gpu": "off"}}},
        annotated({"kwok.x-k8s.io/node": None}),
        annotated({"example.com/x": "1"}),
        {"metadata": {"finalizers": ["example.com/stay"]}},
    ):
        assert refused(stolen.merge_patch, "Node", own, patch) == "hami-registrations"


def sums(**amounts: str | None) -> Object:
    """Returns the change of these amounts of ``nvidia.com`` in the status of a node."""
    named = {f"nvidia.com/{name.replace('_', '-')}": amount for name, amount in amounts.items()}
    return {"status": {"capacity": named, "allocatable": named}}


@pytest.mark.installation
def test_a_device_plugin_publishes_the_sums_of_its_devices_and_nothing_else(sandbox, stolen):
    own, other = of(sandbox, "n0"), of(sandbox, "n1")
    before = sandbox.node("n0")["status"]["capacity"]
    amounts = {
        "total_gpumem": "163840",
        "total_gpucores": "1000",
        "gpumem": "163840",
        "gpumem_percentage": "200",
        "gpucores": "200",
    }
    noted = annotated({"hami.io/node-capacity": "nvidia.com/gpumem"})
    stolen.merge_patch("Node", own, sums(**amounts) | noted, subresource="status")
    status = sandbox.node("n0")["status"]
    for shown in (status["capacity"], status["allocatable"]):
        assert shown["nvidia.com/total-gpumem"] == "163840"
        assert shown["nvidia.com/total-gpucores"] == "1k"
        assert shown["nvidia.com/gpumem"] == "163840"
        assert shown["nvidia.com/gpucores"] == "200"
        assert shown["nvidia.com/gpumem-percentage"] == "200"
    ready, address = (
        {"type": "Ready", "status": "False"},
        {"type": "InternalIP", "address": "192.0.2.1"},
    )
    for patch in (
        sums(gpu="0"),
        sums(gpu=None),
        sums(total="1"),
        sums(priority="1"),
        sums(total_gpumem="1", gpu="99"),
        {"status": {"capacity": {"cpu": "7"}}},
        {"status": {"allocatable": {"memory": "1"}}},
        {"status": {"capacity": None}},
        {"status": {"conditions": [ready]}},
        {"status": {"addresses": [address]}},
        {"status": {"images": [{"names": ["evil:1"]}]}},
        sums(total_gpumem="1") | annotated({"a.b/c": "d"}),
        {"metadata": {"labels": {"gpu": "off"}}},
    ):
        assert refused(stolen.merge_patch, "Node", own, patch, subresource="status") == (
            "hami-registrations"
        )
    assert refused(stolen.merge_patch, "Node", other, sums(**amounts), subresource="status") == (
        "hami-registrations"
    )
    none = sums(**dict.fromkeys(amounts)) | annotated({"hami.io/node-capacity": None})
    stolen.merge_patch("Node", own, none, subresource="status")
    assert sandbox.node("n0")["status"]["capacity"] == before


@pytest.mark.installation
def test_a_device_plugin_labels_its_own_node_with_its_gpus_only(sandbox, stolen):
    def labeled(**labels: str | None) -> Object:
        return {"metadata": {"labels": {f"nvidia.com/gpu.{key}": labels[key] for key in labels}}}

    own, other = of(sandbox, "n0"), of(sandbox, "n1")
    for count in ("8", "7", None):
        stolen.merge_patch("Node", own, labeled(count=count, replicas="10"))
        assert sandbox.node("n0")["metadata"]["labels"].get("nvidia.com/gpu.count") == count
    for name, patch in (
        (other, labeled(count="8")),
        (own, labeled(count="8", product="H100")),
        (own, {"metadata": {"labels": {"hami.io/allocation-mode": "dra"}}}),
        (own, annotated({"nvidia.com/gpu.count": "8"})),
    ):
        assert refused(stolen.merge_patch, "Node", name, patch) == "hami-registrations"
    stolen.merge_patch("Node", own, labeled(replicas=None))


@pytest.mark.installation
def test_a_device_plugin_publishes_the_health_of_its_devices_and_no_other_condition(
    sandbox, stolen
):
    def publish(client: Kube, name: str, *conditions: Object, text: str | None = "{}") -> Object:
        return client.call(
            "PATCH",
            path_of("Node", None, name, "status"),
            annotated({HEALTH: text}) | {"status": {"conditions": list(conditions)}},
            content_type="application/strategic-merge-patch+json",
        )

    own, other = of(sandbox, "n0"), of(sandbox, "n1")
    healthy, ready = (
        {"type": "HamiGpuHealthy", "status": "False"},
        {"type": "Ready", "status": "False"},
    )
    publish(stolen, own, healthy)
    node = sandbox.node("n0")
    assert node["metadata"]["annotations"][HEALTH] == "{}"
    assert "HamiGpuHealthy" in [each["type"] for each in node["status"]["conditions"]]
    for name, *conditions in ((own, ready), (own, healthy, ready), (other, healthy)):
        assert refused(publish, stolen, name, *conditions) == "hami-registrations"
    publish(stolen, own, healthy | {"status": "True"}, text=None)
    assert HEALTH not in sandbox.node("n0")["metadata"]["annotations"]


@pytest.mark.installation
def test_a_token_without_a_node_can_change_nothing(sandbox, running):
    client = sandbox.kube.with_token(sandbox.kube.token(PLUGIN, SYSTEM))
    patch = annotated({PHASE: "failed"})
    assert (
        refused(client.merge_patch, "Pod", running, patch, sandbox.namespace) == "hami-allocations"
    )
    assert refused(client.merge_patch, "Node", of(sandbox, "n0"), patch) == "hami-registrations"
    assert (
        refused(
            client.merge_patch,
            "Node",
            of(sandbox, "n0"),
            sums(total_gpumem="1"),
            subresource="status",
        )
        == "hami-registrations"
    )
    client.close()


@pytest.mark.installation
def test_a_device_plugin_can_do_its_work(sandbox, stolen, running):
    own = of(sandbox, "n0")
    text = sandbox.node("n0")["metadata"]["annotations"][REGISTER]
    for values in (
        {REGISTER: None},
        {REGISTER: text},
        {"hami.io/node-nvidia-score": "[]"},
        {MUTEX: "x"},
        {MUTEX: None},
        {"hami.io/node-handshake": "Reported"},
        {"hami.io/lock-free": "NVIDIA"},
        {"hami.io/lock-free": None},
    ):
        stolen.merge_patch("Node", own, annotated(values))
    for values in (
        {TO_ALLOCATE: ";", PHASE: "success"},
        {"hami.io/vgpu-mig-allocations": "[]"},
        {RESIZE_APPLIED: "{}"},
        {RESIZE_APPLIED: None},
    ):
        stolen.merge_patch("Pod", running, annotated(values), sandbox.namespace)


# -- the tokens of extender and kube-scheduler


@pytest.fixture
def extender_token(sandbox: Sandbox) -> Iterator[Kube]:
    """The token of the extender, from its Secret: what is stolen from the process that other pods reach."""
    client = sandbox.kube.with_token(account_token(sandbox.kube))
    yield client
    client.close()


@pytest.fixture
def kube_scheduler_token(sandbox: Sandbox) -> Iterator[Kube]:
    """A token of the account of kube-scheduler."""
    client = sandbox.kube.with_token(sandbox.kube.token("hami-scheduler", SYSTEM))
    yield client
    client.close()


@contextlib.contextmanager
def volume(kube: Kube, name: str) -> Iterator[Object]:
    """Creates a PersistentVolume."""
    yield kube.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/tmp"},
            },
        }
    )
    kube.delete("PersistentVolume", name)


def forbidden(call: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Checks that the account has no right to *call*: RBAC refuses it, before any policy."""
    with pytest.raises(ApiError) as error:
        call(*arguments, **options)
    assert error.value.status == 403
    assert "cannot" in error.value.message
    assert not policies_in(error.value)


@pytest.mark.installation
def test_a_stolen_token_of_the_extender_evicts_and_creates_no_pod_and_changes_no_volume(
    sandbox, extender_token, running
):
    """Which kube-scheduler may do; nor can it get a token of that account or of others."""
    token, namespace = extender_token, sandbox.namespace
    condition = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": running}}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    pods = path_of("Pod", namespace)
    forbidden(token.call, "DELETE", pods)
    forbidden(token.call, "POST", f"{pods}/{running}/eviction", eviction)
    forbidden(token.create, pod("more"), namespace)
    forbidden(token.delete, "Node", of(sandbox, "n0"))
    forbidden(token.merge_patch, "Node", of(sandbox, "n0"), condition, subresource="status")
    with volume(sandbox.kube, f"v-{namespace}") as made:
        forbidden(token.get, "PersistentVolume", made["metadata"]["name"])
        forbidden(token.delete, "PersistentVolume", made["metadata"]["name"])
        forbidden(
            token.merge_patch, "PersistentVolume", made["metadata"]["name"], annotated({"a": "b"})
        )
    forbidden(token.list, "PersistentVolumeClaim", namespace)
    for account_name in ("hami-scheduler", "hami-scheduler-extender"):
        forbidden(
            lambda name=account_name: token.call(
                "POST", path_of("ServiceAccount", SYSTEM, name, "token"), request
            )
        )
    forbidden(token.get, "Secret", "hami-scheduler-extender-token", SYSTEM)
    forbidden(token.list, "Secret", SYSTEM)
    assert sandbox.pod(running)["status"]["phase"] == "Running"


@pytest.mark.installation
def test_a_stolen_token_of_kube_scheduler_writes_no_key_of_hami(
    sandbox, kube_scheduler_token, running
):
    """And no specification, label or taint: it may delete all pods, and change their status and volumes."""
    token, namespace = kube_scheduler_token, sandbox.namespace
    for patch in (
        annotated({ALLOCATED: ";"}),
        {"metadata": {"labels": {NODE: "n1"}}},
        annotated({PHASE: None}),
    ):
        forbidden(token.merge_patch, "Pod", running, patch, namespace)
        # the status is the only subresource through which it reaches metadata
        assert (
            refused(token.merge_patch, "Pod", running, patch, namespace, subresource="status")
            == "hami-allocations"
        )
    sandbox.create(pod("waits", scheduler="nobody"))
    assert refused(bind, token, sandbox, {ALLOCATED: ";"}) == "hami-allocations"
    for patch in (
        annotated({MUTEX: "x"}),
        {"spec": {"unschedulable": True}},
        {"metadata": {"labels": {"gpu": "off"}}},
    ):
        forbidden(token.merge_patch, "Node", of(sandbox, "n0"), patch)
    forbidden(token.get, "Secret", "hami-scheduler-extender-token", SYSTEM)
    forbidden(token.get, "Secret", "hami-scheduler-self-signed", SYSTEM)
    forbidden(token.create, pod("more"), namespace)


@pytest.mark.installation
def test_the_account_of_kube_scheduler_can_do_its_work(sandbox, kube_scheduler_token, running):
    token, namespace = kube_scheduler_token, sandbox.namespace
    condition = {"type": "PodScheduled", "status": "True", "reason": "Test"}
    token.call(
        "PATCH",
        path_of("Pod", namespace, running, "status"),
        {"status": {"conditions": [condition]}},
        content_type="application/strategic-merge-patch+json",
    )
    sandbox.create(pod("waits", scheduler="nobody"))
    bind(token, sandbox, {})
    with volume(sandbox.kube, f"v-{namespace}") as made:
        changed = {
            **made,
            "metadata": {"name": made["metadata"]["name"], "annotations": {"example.com/a": "b"}},
        }
        token.call("PUT", path_of("PersistentVolume", None, made["metadata"]["name"]), changed)
    token.delete("Pod", running, namespace)


def bind(client: Kube, sandbox: Sandbox, annotations: Object) -> None:
    """Binds the pod waits to node n0."""
    client.call(
        "POST",
        path_of("Pod", sandbox.namespace, "waits", "binding"),
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "waits", "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": of(sandbox, "n0")},
        },
    )


@pytest.mark.installation
def test_a_stolen_token_of_the_extender_changes_no_specification(sandbox, extender_token, running):
    """With it, images of system pods could be replaced, and nodes be tainted or made control planes."""
    token, image = extender_token, {"spec": {"containers": [{"name": "main", "image": "evil:1"}]}}
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "0"}
    foreign = (
        {"metadata": {"labels": {"app": "x"}}},
        annotated({"example.com/x": "1"}),
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"metadata": {"ownerReferences": [owner]}},
    )
    with placed(sandbox.kube, f"system-{sandbox.namespace}", of(sandbox, "n1")) as other:
        for namespace, name in ((SYSTEM, other["metadata"]["name"]), (sandbox.namespace, running)):
            path = path_of("Pod", namespace, name)
            assert (
                refused(
                    token.call,
                    "PATCH",
                    path,
                    image,
                    content_type="application/strategic-merge-patch+json",
                )
                == "hami-allocations"
            )
            for patch in (*foreign, {"spec": {"activeDeadlineSeconds": 1}}):
                assert (
                    refused(
                        token.call,
                        "PATCH",
                        path,
                        patch,
                        content_type="application/merge-patch+json",
                    )
                    == "hami-allocations"
                )
    taints = [{"key": "k", "effect": "NoExecute"}]
    for patch in (
        *foreign,
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": taints}},
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    ):
        assert refused(token.merge_patch, "Node", of(sandbox, "n0"), patch) == "hami-registrations"


@pytest.mark.installation
def test_the_account_of_the_extender_can_do_its_work(sandbox, extender_token, running):
    for values in ({PHASE: "failed", TO_ALLOCATE: ""}, {"huawei.com/Ascend910A": "x"}, {TIME: "1"}):
        extender_token.merge_patch("Pod", running, annotated(values), sandbox.namespace)
    for labels in ({NODE: "n0"}, {"hami.io/scheduler-role": "leader"}):
        extender_token.merge_patch(
            "Pod", running, {"metadata": {"labels": labels}}, sandbox.namespace
        )
    for values in (
        {MUTEX: "x"},
        {MUTEX: None},
        {"hami.io/node-handshake": "Requesting_2026.11.24 12:00:00"},
        {"hami.io/room-for-waiting-pods": "2026-11-24T12:00:00.000000Z"},
    ):
        extender_token.merge_patch("Node", of(sandbox, "n0"), annotated(values))


def write_status(
    client: Kube, sandbox: Sandbox, name: str, status: Object, *, strategic: bool = False
) -> Object:
    """Merges *status* into that of a pod. *strategic*: conditions are merged, too, by their types."""
    return client.call(
        "PATCH",
        path_of("Pod", sandbox.namespace, name, "status"),
        {"status": status},
        content_type=f"application/{'strategic-' if strategic else ''}merge-patch+json",
    )


def mark(client: Kube, sandbox: Sandbox, name: str, **fields: str) -> None:
    """Writes the condition of a pod that is evicted for one of higher priority, with other *fields*."""
    write_status(client, sandbox, name, {"conditions": [PREEMPTED | fields]}, strategic=True)


@pytest.mark.installation
def test_the_extender_deletes_only_pods_that_it_has_marked(sandbox, extender_token, running):
    def delete(name: str) -> None:
        extender_token.delete("Pod", name, sandbox.namespace)

    assert refused(delete, running) == "hami-preemption"
    for other in ({"status": "False"}, {"reason": "EvictionByEvictionAPI"}, {"type": "Ready"}):
        mark(sandbox.kube, sandbox, running, **other)
        assert refused(delete, running) == "hami-preemption", other
    mark(extender_token, sandbox, running)
    delete(running)
    sandbox.kube.wait(
        "Pod", lambda pods: running not in pods, sandbox.namespace, what="the pod is evicted"
    )


@pytest.mark.installation
def test_the_extender_deletes_no_pod_without_devices_and_none_that_waits(
    sandbox, extender_token, two_nodes
):
    """Not even if somebody else has marked them; it cannot mark the first."""
    sandbox.create(pod("plain", node_name="n0"), pod("waits", gpu=64))
    assert refused(mark, extender_token, sandbox, "plain") == "hami-allocations"
    for name in ("plain", "waits"):
        mark(sandbox.kube, sandbox, name)
        assert refused(extender_token.delete, "Pod", name, sandbox.namespace) == "hami-preemption"


@pytest.mark.installation
def test_the_extender_deletes_only_rejected_pods_of_a_controller(
    sandbox: Sandbox, extender_token: Kube, two_nodes: None
) -> None:
    made = sandbox.kube.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}, sandbox.namespace
    )
    owner = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": made["metadata"]["uid"],
    }
    for name, controller in (("owned", True), ("referred", False), ("plain", True)):
        item = pod(name, **({} if name == "plain" else {"gpu": 64}))
        item["metadata"]["ownerReferences"] = [owner | {"controller": controller}]
        sandbox.create(item)

    def delete(name: str) -> None:
        extender_token.delete("Pod", name, sandbox.namespace)

    for name in ("owned", "referred", "plain"):
        write_status(sandbox.kube, sandbox, name, {"phase": "Failed", "reason": "Evicted"})
        assert refused(delete, name) == "hami-preemption"
        write_status(sandbox.kube, sandbox, name, {"reason": "UnexpectedAdmissionError"})
    assert refused(delete, "referred") == "hami-preemption"
    assert refused(delete, "plain") == "hami-preemption"
    delete("owned")


@pytest.mark.installation
def test_the_extender_writes_nothing_into_a_status_but_what_an_eviction_needs(
    sandbox, extender_token, running
):
    """Alone, and beside what it may write. Every field that the pod has is removed once."""
    status = sandbox.pod(running)["status"]
    conditions = [*status["conditions"], PREEMPTED]
    ready = next(condition for condition in conditions if condition["type"] == "Ready")
    others = [condition for condition in conditions if condition is not ready]
    attempts: dict[str, Object] = {
        **{f"without {field}": {field: None} for field in status},
        "phase": {"phase": "Failed"},
        "message": {"message": "x"},
        "reason": {"reason": "Evicted"},
        "address": {"podIP": "10.9.9.9", "podIPs": [{"ip": "10.9.9.9"}]},
        "containers": {"containerStatuses": []},
        "resize": {"resize": "Infeasible"},
        "another condition": {
            "conditions": [*conditions, {"type": "example.com/Gate", "status": "True"}]
        },
        "a condition that changes": {"conditions": [*others, ready | {"status": "False"}]},
        "a condition less": {"conditions": others},
        "another reason": {
            "conditions": [*conditions[:-1], PREEMPTED | {"reason": "EvictionByEvictionAPI"}]
        },
        "no reason": {
            "conditions": [*conditions[:-1], {"type": "DisruptionTarget", "status": "True"}]
        },
    }
    ignored = set()
    for what, attempt in attempts.items():
        for beside in ({}, {"conditions": conditions}):
            try:
                done = write_status(extender_token, sandbox, running, beside | attempt)
            except ApiError as error:
                assert policies_in(error) == ["hami-allocations"], what
            else:
                ignored.add(what)
                assert done["status"] | {"conditions": 0} == status | {"conditions": 0}, what
    assert ignored <= {"without qosClass"}, "what the API server itself keeps as it is"
    assert (
        sandbox.pod(running)["status"]["conditions"][: len(status["conditions"])]
        == status["conditions"]
    )


@pytest.mark.installation
def test_a_status_does_not_lead_the_extender_to_other_fields(sandbox, extender_token, running):
    """The API server itself takes no specification and no owners there."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "0"}
    held = sandbox.pod(running)
    for patch in (
        {"metadata": {"labels": {"app": "x"}}},
        annotated({"example.com/x": "1"}),
        annotated({PHASE: "x"}),
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"metadata": {"labels": STAYS}},
    ):
        assert refused(
            extender_token.merge_patch,
            "Pod",
            running,
            patch,
            sandbox.namespace,
            subresource="status",
        ) in ("hami-allocations", "hami-preemptible")
    for patch in (
        {"metadata": {"ownerReferences": [owner]}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ):
        extender_token.merge_patch("Pod", running, patch, sandbox.namespace, subresource="status")
    left = sandbox.pod(running)
    assert left["spec"] == held["spec"]
    assert "ownerReferences" not in left["metadata"]


@pytest.mark.installation
def test_the_extender_nominates_and_marks(sandbox, extender_token, running):
    """Again and again, and it takes both back."""
    sandbox.create(pod("waits", gpu=64))
    for node in ("n0", "n1", None):
        write_status(extender_token, sandbox, "waits", {"nominatedNodeName": node})
    mark(sandbox.kube, sandbox, running, reason="EvictionByEvictionAPI")
    for fields in ({}, {"message": "for another pod"}, {"status": "False"}):
        mark(extender_token, sandbox, running, **fields)
    conditions = sandbox.pod(running)["status"]["conditions"]
    left = [condition for condition in conditions if condition["type"] != "DisruptionTarget"]
    assert len(left) == len(conditions) - 1
    write_status(extender_token, sandbox, running, {"conditions": left})


# -- the label of pods that are not evicted


@pytest.mark.installation
def test_a_tenant_cannot_keep_its_pods_from_being_evicted(sandbox, tenant, running):
    """Nor change what an administrator has decided, nor can a Binding or the extender bring the label."""

    def labeled(value: str | None) -> Object:
        return {"metadata": {"labels": {"hami.io/preemptible": value}}}

    for value in ("false", "true", ""):
        made = pod("p", gpu=1, labels={"hami.io/preemptible": value})
        assert refused(tenant.create, made, sandbox.namespace) == "hami-preemptible"
        patch = labeled(value)
        assert refused(tenant.merge_patch, "Pod", running, patch, sandbox.namespace) == (
            "hami-preemptible"
        )
    sandbox.kube.merge_patch("Pod", running, labeled("false"), sandbox.namespace)
    for value in ("true", None):
        patch = labeled(value)
        assert refused(tenant.merge_patch, "Pod", running, patch, sandbox.namespace) == (
            "hami-preemptible"
        )
    tenant.merge_patch("Pod", running, {"metadata": {"labels": {"team": "a"}}}, sandbox.namespace)
    kubelet = sandbox.kube.impersonating(f"system:node:{of(sandbox, 'n0')}", "system:nodes")
    kubelet.merge_patch(
        "Pod", running, {"status": {"message": "fine"}}, sandbox.namespace, subresource="status"
    )
    kubelet.close()
    sandbox.kube.merge_patch("Pod", running, labeled(None), sandbox.namespace)


def test_nobody_else_brings_the_label(sandbox, extender_token, running):
    """Neither the extender, which may write other labels of HAMi, nor a subresource or a Binding."""
    patch = {"metadata": {"labels": STAYS}}
    assert (
        refused(extender_token.merge_patch, "Pod", running, patch, sandbox.namespace)
        == "hami-preemptible"
    )
    sandbox.create(pod("waits", scheduler="nobody"))
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "waits", "labels": STAYS},
        "target": {"apiVersion": "v1", "kind": "Node", "name": of(sandbox, "n0")},
    }
    path = path_of("Pod", sandbox.namespace, "waits", "binding")
    with permitted(sandbox, "writer", "pods/status pods/binding", "patch create") as writer:
        assert refused(writer.call, "POST", path, body) == "hami-preemptible"
        assert refused(
            writer.merge_patch, "Pod", running, patch, sandbox.namespace, subresource="status"
        ) == ("hami-preemptible")


@pytest.mark.installation
def test_the_account_of_a_new_pod_has_the_right_to_refuse_preemption_not_its_creator(
    sandbox, tenant
):
    """Controllers create most pods, some of them with all rights."""
    account(sandbox, "serving")
    item = pod("p", gpu=1, labels={"app": "r", **STAYS})
    item["spec"]["serviceAccountName"] = "serving"
    for client in (tenant, sandbox.kube):
        assert refused(client.create, item, sandbox.namespace) == "hami-preemptible"
    tenant.create(replica_set("r", item, count=1), sandbox.namespace)
    assert "hami-preemption-refuser" in sandbox.event("r", "FailedCreate")
    permit_refusal(sandbox, "serving")
    sandbox.kube.wait("Pod", len, sandbox.namespace, what="the controller tries again")
    tenant.delete("ReplicaSet", "r", sandbox.namespace)
    item["metadata"]["labels"] = {
        **STAYS
    }  # the controller, if it is still there, would take it for one too many
    tenant.create(item, sandbox.namespace)
    patch = {"metadata": {"labels": {"hami.io/preemptible": None}}}
    assert refused(tenant.merge_patch, "Pod", "p", patch, sandbox.namespace) == "hami-preemptible"


def test_a_role_lets_people_refuse_preemption_of_pods_that_exist(sandbox, tenant):
    tenant.create(pod("p", gpu=1), sandbox.namespace)
    person = account(sandbox, "person", "hami-preemption-refuser")
    sandbox.kube.create(
        binding(sandbox, "person", "edit", metadata={"name": "person-edit"}), sandbox.namespace
    )
    wait_permitted(sandbox, person, "refuse", "preemptions", "hami.io")
    wait_permitted(sandbox, person, "patch", "pods")
    for value in ("false", "true", None):
        person.merge_patch(
            "Pod", "p", {"metadata": {"labels": {"hami.io/preemptible": value}}}, sandbox.namespace
        )
    person.close()


@contextlib.contextmanager
def configured(kube: Kube, name: str) -> Iterator[Object]:
    """Creates a configuration with the shipped webhooks, which no request reaches."""
    made = parse_own_yaml((MANIFESTS / "webhook.yaml").read_text())
    made["metadata"]["name"] = name
    for webhook in made["webhooks"]:
        webhook["namespaceSelector"] = {"matchLabels": {"hami-e2e/webhook": "none"}}
    yield kube.create(made)
    if kube.find(made["kind"], name):
        kube.delete(made["kind"], name)


def patched(client: Kube, name: str, *steps: Object) -> Object:
    """Applies a JSON patch to a webhook configuration."""
    return client.call(
        "PATCH",
        path_of("MutatingWebhookConfiguration", None, name),
        json.dumps(steps).encode(),
        content_type="application/json-patch+json",
    )


@pytest.mark.installation
def test_the_scheduler_changes_only_the_ca_bundle_of_its_webhooks(sandbox):
    """With more permissions than its role has."""
    name, other = f"hami-webhook-{sandbox.namespace}", f"another-{sandbox.namespace}"
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "0"}
    secrets = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["secrets"],
    }
    values = {
        "metadata/labels/a": "b",
        "metadata/annotations": {"cert-manager.io/inject-ca-from": "a/b"},
        "metadata/finalizers": ["example.com/stay"],
        "metadata/ownerReferences": [owner],
        "webhooks/1/clientConfig": {"url": "https://example.com/"},
        "webhooks/1/clientConfig/service/name": "other",
        "webhooks/1/clientConfig/service/namespace": "default",
        "webhooks/1/clientConfig/service/path": "/other",
        "webhooks/1/clientConfig/service/port": 8443,
        "webhooks/1/name": "other.hami.io",
        "webhooks/1/rules/-": secrets,
        "webhooks/1/rules/0/resources": ["*/*"],
        "webhooks/1/rules/0/operations/-": "UPDATE",
        "webhooks/0/rules": [],
        "webhooks/1/namespaceSelector": {},
        "webhooks/1/objectSelector": {},
        "webhooks/1/matchConditions": [],
        "webhooks/1/failurePolicy": "Fail",
        "webhooks/1/matchPolicy": "Exact",
        "webhooks/1/timeoutSeconds": 30,
        "webhooks/1/sideEffects": "NoneOnDryRun",
        "webhooks/1/reinvocationPolicy": "IfNeeded",
        "webhooks/0/admissionReviewVersions": ["v1"],
        "webhooks/0/matchConditions": [{"name": "n", "expression": "true"}],
    }
    attempts = {
        path: {"op": "add", "path": f"/{path}", "value": value} for path, value in values.items()
    }
    attempts["a webhook is removed"] = {"op": "remove", "path": "/webhooks/0"}
    attempts["their order"] = {"op": "move", "from": "/webhooks/0", "path": "/webhooks/1"}
    with (
        configured(sandbox.kube, name) as made,
        configured(sandbox.kube, other) as foreign,
        permitted(
            sandbox,
            "hami-scheduler",
            "mutatingwebhookconfigurations",
            "patch create delete get",
            "admissionregistration.k8s.io",
        ) as scheduler,
    ):
        assert attempts.keys() >= {f"webhooks/1/{field}" for field in made["webhooks"][1]} - {
            "webhooks/1/rules",
            "webhooks/1/admissionReviewVersions",
        }
        for path, step in attempts.items():
            for others in ([], [bundle(1, "Mg==")]):  # alone, and with a change that is allowed
                assert refused(patched, scheduler, name, *others, step) == ("hami-ca-bundle"), path
                assert sandbox.kube.get("MutatingWebhookConfiguration", name) == made, path
        assert refused(patched, scheduler, other, bundle(1, "MQ==")) == "hami-ca-bundle"
        assert refused(scheduler.delete, "MutatingWebhookConfiguration", name) == "hami-ca-bundle"
        foreign["metadata"] = {"name": f"{name}-2"}
        assert refused(scheduler.create, foreign) == "hami-ca-bundle"
        for text in ("MQ==", "Mg=="):  # the first time, and again
            done = patched(scheduler, name, bundle(0, text), bundle(1, text))
            assert [webhook["clientConfig"]["caBundle"] for webhook in done["webhooks"]] == [
                text,
                text,
            ]


def bundle(webhook: int, text: str) -> Object:
    """Returns the step that sets ``caBundle`` of a webhook."""
    return {"op": "add", "path": f"/webhooks/{webhook}/clientConfig/caBundle", "value": text}


# -- what remains possible


def test_tenants_keep_their_own_metadata(sandbox, tenant, running):
    for patch in (
        annotated({"example.com/mine": "1", "hami.io/gpu-scheduler-policy": "spread"}),
        annotated({RESIZE: '{"main": {"cores": 5}}'}),
        {"metadata": {"labels": {"team": "a"}}},
        {"spec": {"activeDeadlineSeconds": 3600}},
    ):
        tenant.merge_patch("Pod", running, patch, sandbox.namespace)
    tenant.call(
        "POST",
        path_of("Pod", sandbox.namespace, running, "eviction"),
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": running}},
    )
    sandbox.kube.wait("Pod", lambda pods: not pods, sandbox.namespace, what="the pod is evicted")
    tenant.create(
        pod("next", gpu=1, annotations={"nvidia.com/use-gputype": "A100"}), sandbox.namespace
    )
    sandbox.started()  # deleted before, its lock would stay for ten seconds
    tenant.delete("Pod", "next", sandbox.namespace, grace_seconds=0)


@pytest.mark.installation
def test_a_tenants_daemonset_is_placed(sandbox, tenant, two_nodes):
    template = pod("_", gpu=1, gpumem=1000, labels={"app": "d"})
    template["spec"]["nodeSelector"] = {"hami-e2e/sandbox": sandbox.namespace}
    tenant.create(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "d"},
            "spec": {
                "selector": {"matchLabels": {"app": "d"}},
                "template": {"metadata": {"labels": {"app": "d"}}, "spec": template["spec"]},
            },
        },
        sandbox.namespace,
    )
    assert sorted(sandbox.started(wait_for=2).values()) == ["n0", "n1"]
    tenant.delete("DaemonSet", "d", sandbox.namespace)


@pytest.mark.installation
def test_kubelets_write_status_and_mirror_pods(sandbox, running):
    node = of(sandbox, "n0")
    kubelet = sandbox.kube.impersonating(f"system:node:{node}", "system:nodes")
    kubelet.merge_patch(
        "Pod", running, {"status": {"message": "fine"}}, sandbox.namespace, subresource="status"
    )
    kubelet.merge_patch(
        "Node", node, {"status": {"nodeInfo": {"kernelVersion": "x"}}}, subresource="status"
    )
    mirror = pod("mirror", node_name=node, annotations={"kubernetes.io/config.mirror": "x"})
    mirror["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "name": node,
            "controller": True,
            "uid": sandbox.kube.get("Node", node)["metadata"]["uid"],
        }
    ]
    kubelet.create(mirror, sandbox.namespace)
    assert refused(
        kubelet.merge_patch, "Node", node, annotated({REGISTER: "[]"}), subresource="status"
    ) == ("hami-registrations")
    kubelet.close()


def test_administrators_repair(sandbox, running):
    sandbox.kube.merge_patch(
        "Pod", running, annotated({PHASE: "failed", TO_ALLOCATE: None}), sandbox.namespace
    )
    sandbox.annotate_node("n0", {MUTEX: None})


@pytest.mark.installation
def test_a_role_permits_the_label_on_pods(sandbox):
    client = account(sandbox, "skipper", "edit", "hami-webhook-skipper")
    wait_permitted(sandbox, client, "create", "pods")
    wait_permitted(sandbox, client, "skip", "webhook", "hami.io")
    item = pod("p", gpu=1, labels=IGNORE)
    item["spec"]["nodeSelector"] = {
        "kubernetes.io/hostname": "nowhere"
    }  # the default scheduler would place it
    client.create(item, sandbox.namespace)
    assert sandbox.pod("p")["spec"]["schedulerName"] == "default-scheduler"
    client.close()


@pytest.mark.installation
def test_a_role_permits_the_work_of_a_plugin_of_another_vendor(sandbox, running):
    """On its own node, and only with the role."""
    pods, nodes = (
        annotated({PHASE: "failed"}),
        annotated({"hami.io/node-handshake-dcu": "Reported"}),
    )
    own, other, role = of(sandbox, "n0"), of(sandbox, "n1"), "hami-vendor-device-plugin"
    with (
        permitted(sandbox, "vendor", "pods nodes", "patch get") as client,
        placed(sandbox.kube, "vendor", own, sandbox.namespace, "vendor") as made,
    ):
        plugin = client.with_token(sandbox.kube.token("vendor", sandbox.namespace, bound_to=made))
        assert (
            refused(plugin.merge_patch, "Pod", running, pods, sandbox.namespace)
            == "hami-allocations"
        )
        assert refused(plugin.merge_patch, "Node", own, nodes) == "hami-registrations"
        bound = binding(
            sandbox,
            "vendor",
            role,
            kind="ClusterRoleBinding",
            metadata={"name": f"{role}-{sandbox.namespace}"},
        )
        sandbox.kube.create(bound)
        try:
            wait_permitted(sandbox, plugin, "write-on-own-node", "registrations", "hami.io")
            plugin.merge_patch("Pod", running, pods, sandbox.namespace)
            plugin.merge_patch("Node", own, nodes)
            assert refused(plugin.merge_patch, "Node", other, nodes) == "hami-registrations"
            nodes = annotated({"hami.io/node-handshake-dcu": None})
            assert refused(client.merge_patch, "Node", own, nodes) == "hami-registrations"
        finally:
            sandbox.kube.delete("ClusterRoleBinding", bound["metadata"]["name"])
        plugin.close()


# -- strict mode


def strict_config(scheduler: Scheduler) -> str:
    """Writes the device configuration with ``strict``; returns its path."""
    config = parse_own_yaml((MANIFESTS / "device-config.yaml").read_text())
    config["nvidia"]["strict"] = True
    path = scheduler.cluster.folder / "strict-device-config.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


strict = pytest.mark.flags(device_config_file=strict_config)


@strict
@cases(
    "fields, field",
    ("envFrom", {"envFrom": [{"configMapRef": {"name": "limits", "optional": True}}]}, "envFrom"),
    (
        "variable",
        {"env": [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]},
        "env CUDA_DISABLE_CONTROL=true",
    ),
    (
        "volume",
        {"volumeMounts": [{"name": "v", "mountPath": "/etc/ld.so.preload"}]},
        "volumeMounts[0].mountPath=/etc/ld.so.preload",
    ),
)
def test_strict_mode_refuses_what_could_lift_limits(sandbox, tenant, fields, field):
    def own(name: str, **asked: int) -> Object:
        item = pod(name, containers=[container(**asked) | fields])
        item["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
        return item

    tenant.create(own("plain"), sandbox.namespace)
    with pytest.raises(
        ApiError, match=re.escape(f"container main: {field} is not permitted in strict mode")
    ):
        tenant.create(own("asking", gpu=1), sandbox.namespace)


@strict
def test_a_running_pod_gets_no_ephemeral_container_in_strict_mode(sandbox, running):
    """The label that hides a new pod from the webhook does not help."""
    sandbox.create(pod("plain"))
    debug = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "box:1"}]}}
    for item in (running, "plain"):
        sandbox.kube.merge_patch("Pod", item, {"metadata": {"labels": IGNORE}}, sandbox.namespace)
    with pytest.raises(ApiError, match="ephemeralContainers are not permitted in strict mode"):
        sandbox.kube.merge_patch(
            "Pod", running, debug, sandbox.namespace, subresource="ephemeralcontainers"
        )
    sandbox.kube.merge_patch(
        "Pod", "plain", debug, sandbox.namespace, subresource="ephemeralcontainers"
    )
    more = {
        "name": "more",
        "image": "box:1",
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
    }
    containers = [*sandbox.pod("plain")["spec"]["ephemeralContainers"], more]
    debug = {"spec": {"ephemeralContainers": containers}}
    with pytest.raises(
        ApiError, match="container more: env NVIDIA_VISIBLE_DEVICES=all is not permitted in strict"
    ):
        sandbox.kube.merge_patch(
            "Pod", "plain", debug, sandbox.namespace, subresource="ephemeralcontainers"
        )
    del more["env"]
    sandbox.kube.merge_patch(
        "Pod", "plain", debug, sandbox.namespace, subresource="ephemeralcontainers"
    )
    assert [made["env"] for made in sandbox.pod("plain")["spec"]["ephemeralContainers"]] == [
        [HIDDEN],
        [HIDDEN],
    ]


@strict
def test_strict_mode_holds_for_pods_of_another_scheduler(sandbox, tenant):
    env = {"env": [{"name": "LD_PRELOAD", "value": "x"}]}
    with pytest.raises(ApiError, match="env LD_PRELOAD=x is not permitted in strict mode"):
        tenant.create(
            pod("p", containers=[container(gpu=1) | env], scheduler="foo"), sandbox.namespace
        )
    beside = container("beside", cpu=1)
    made = tenant.create(
        pod("p", containers=[container(gpu=1), beside], scheduler="foo"), sandbox.namespace
    )
    assert "env" not in made["spec"]["containers"][0]
    assert made["spec"]["schedulerName"] == "foo"
    assert made["spec"]["containers"][1]["env"] == [HIDDEN]


@pytest.fixture
def all_pods(sandbox: Sandbox, scheduler: Scheduler, certificates: Certificates) -> Iterator[None]:
    """The webhook receives all pods, as with the component ``strict``."""
    component = parse_own_yaml(
        (MANIFESTS.parent / "components" / "strict" / "kustomization.yaml").read_text()
    )
    (patch,) = component["patches"]
    patched(sandbox.kube, "hami-webhook", *parse_own_yaml(patch["patch"]))

    def hides() -> bool:
        made = sandbox.kube.dry_run(pod("probe"), sandbox.namespace)
        return HIDDEN in made["spec"]["containers"][0].get("env", ())

    eventually(hides, "the API server calls the webhook for all pods")
    yield
    redirect_webhook(sandbox.kube, certificates, scheduler.port)


@strict
@pytest.mark.parametrize("scheduler_name", ["default-scheduler", "foo"])
def test_no_pod_sees_devices_without_a_request_where_the_webhook_receives_all(
    sandbox, tenant, all_pods, scheduler_name
):
    """Whatever labels it has, and whatever its image or a ConfigMap says."""
    variable = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    source = {"envFrom": [{"configMapRef": {"name": "visible", "optional": True}}]}
    with pytest.raises(
        ApiError, match="env NVIDIA_VISIBLE_DEVICES=all is not permitted in strict mode"
    ):
        tenant.create(
            pod("p", containers=[container() | variable], labels=IGNORE, scheduler=scheduler_name),
            sandbox.namespace,
        )
    made = tenant.create(
        pod("p", containers=[container() | source], labels=IGNORE, scheduler=scheduler_name),
        sandbox.namespace,
    )
    assert made["spec"]["containers"][0]["env"] == [
        HIDDEN
    ]  # which counts more than envFrom and the image


# -- what the scheduler believes


def some_edits(rng: random.Random, notes: Object, uuids: list[str]) -> Object:
    """Returns random changes of HAMi's keys among the annotations *notes*; ``None`` removes one."""
    edits: Object = {}
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(sorted(notes) if notes and rng.random() < 0.7 else KEYS)
        text = notes.get(key, "")
        start = rng.randint(0, len(text))
        edits[key] = rng.choice(
            (
                None,
                "",
                ";",
                "failed",
                "x" * rng.choice((10, 100, 10_000)),
                " ".join(uuids),
                "".join(f"{uuid},NVIDIA,1,0:" for uuid in uuids) + ";",
                re.sub(r"(?<=,)\d+", lambda found: str(rng.choice((0, 1, 2**31, -5))), text),
                text.replace(rng.choice(uuids), rng.choice(uuids)),
                text[:start] + rng.choice("x;:,[") + text[start + 2 :],
            )
        )
    return edits


def test_thousands_of_random_edits_of_a_running_cluster(sandbox, scheduler):
    """By an account that may write the keys, so that the scheduler sees them: no booking changes, other pods are placed
    at once, and the scheduler needs no more memory."""
    sandbox.add_gpu_nodes({"n0": gpus(3)})
    inits = [init(gpu=1, gpumem=40_000)]
    sandbox.create(
        pod("one", gpu=1, gpumem=50_000),
        pod("two", gpu=2, gpumem=10_000, gpucores=20),
        pod("inits", inits=inits, gpu=1, gpumem=20_000),
        pod("waits", gpu=64),
    )
    sandbox.started(wait_for=3)
    writer = account(sandbox, "writer", "edit", "hami-allocation-writer")
    wait_permitted(sandbox, writer, "patch", "pods")
    wait_permitted(sandbox, writer, "write", "allocations", "hami.io")
    rng, names = random.Random(1), ("one", "two", "inits", "waits")
    uuids = [sandbox.uuid("n0", index) for index in range(3)]
    notes = {name: sandbox.pod(name)["metadata"].get("annotations") or {} for name in names}

    def held() -> list[str]:
        """Returns what the pods hold, as the scheduler counts it."""
        lines = re.findall(
            rf'^hami_vgpu_.*namespace="{sandbox.namespace}".*$', scheduler.metrics(), re.MULTILINE
        )
        return [line for line in lines if any(f'pod="{name}"' in line for name in names)]

    def figure(name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", scheduler.metrics(), re.MULTILINE)
        assert found, name
        return float(found[1])

    def is_settled() -> bool:
        """Reports whether the scheduler has seen that the init container has ended."""
        kind = "hami_vgpu_memory_allocated_bytes"
        (line,) = (
            line for line in held() if line.startswith(f"{kind}{{") and 'pod="inits"' in line
        )
        return float(line.split()[-1]) == 20_000 * 2**20

    eventually(is_settled, lambda: f"its init container has ended: {held()}")
    before, memory = held(), 0.0
    assert len(before) >= 2 * 4
    for number in range(20):
        for _ in range(100):
            name = rng.choice(names)
            patch = {
                "metadata": {
                    "annotations": some_edits(rng, notes[name], uuids),
                    "labels": {NODE: rng.choice((None, "x", of(sandbox, "n0")))},
                }
            }
            writer.merge_patch("Pod", name, patch, sandbox.namespace)
        sandbox.create(pod("other", gpu=1, gpumem=1000))
        sandbox.kube.wait(
            "Pod",
            lambda pods: served(pods["other"]),
            sandbox.namespace,
            what="another pod is placed",
            fieldSelector="metadata.name=other",
        )
        assert held() == before
        sandbox.delete("other")
        if (
            number == 14
        ):  # the annotations of the pods grow no more, and the caches of texts are full
            memory = figure("process_resident_memory_bytes")
    assert figure("process_resident_memory_bytes") - memory < 6 * 2**20
    assert figure("hami_scheduler_allocation_edits_refused_total") > 100
    sandbox.event("one", "AllocationEditRefused")
    for name in names:
        sandbox.delete(name)
    eventually(lambda: not held(), "the devices are free again")
    writer.close()
