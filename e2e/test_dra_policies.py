"""What the API server enforces about claims that HAMi's scheduler makes. No program of HAMi runs here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from hami.codec.keys import CLAIM_AMOUNTS, CLAIM_RESOURCE, MANAGED_TAINT
from hami.codec.slices import DRIVER
from testing.accounts import account, is_refused, permitted, wait_permitted
from testing.cases import cases
from testing.claims import FIRST, component, missing
from testing.cluster import MANIFESTS, LocalCluster
from testing.eventually import eventually
from testing.kube import Kube, path_of
from testing.pods import pod
from testing.sandbox import Sandbox

Object = dict[str, Any]
pytestmark = pytest.mark.since(*FIRST)
FILES = [
    *(MANIFESTS / f"{name}.yaml" for name in ("rbac", "policy-roles", "policies")),
    *(
        MANIFESTS.parent / "components" / "dra-allocate" / f"{name}.yaml"
        for name in ("rbac", "policies")
    ),
]
NAME = f"hami-{'0a' * 16}"
AMOUNTS = '{"main":{"nvidia.com/gpu":"1"}}'
TOLERATION = {"key": MANAGED_TAINT, "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane without HAMi, with the objects of the components."""
    if reason := missing():
        pytest.skip(reason)
    with LocalCluster.started(extender=False, durable=False) as started:
        for file in FILES:
            started.kube.apply_yaml(file.read_text())
        for item in component():
            started.kube.apply(item)
        yield started
        started.kube.close()


@pytest.fixture
def sandbox(cluster: LocalCluster) -> Iterator[Sandbox]:
    with Sandbox.opened(cluster.kube, keeps_namespace=True) as opened:
        yield opened


@pytest.fixture(autouse=True)
def audited() -> None:
    """No device is given out here."""


@pytest.fixture
def owner(sandbox: Sandbox) -> Object:
    """A pod with a claim that the scheduler is to make, once the API server applies the policies."""
    made = pod("owner")
    made["metadata"]["annotations"] = {CLAIM_AMOUNTS: AMOUNTS}
    made["spec"] |= {
        "schedulerName": "nobody",
        "resourceClaims": [{"name": "hami", "resourceClaimName": NAME}],
    }
    sandbox.create(made)
    owner: Object = sandbox.kube.get("Pod", "owner", sandbox.namespace)
    direct = pod_with_mark("direct", nodeName="n")
    changed = {**owner, "metadata": {**owner["metadata"], "annotations": {CLAIM_AMOUNTS: "{}"}}}
    others = claim(owner, deviceClassName="gpu.nvidia.com")
    for method, kind, name, item in (
        ("POST", "ResourceClaim", None, others),
        ("POST", "Pod", None, direct),
        ("PUT", "Pod", "owner", changed),
    ):
        path = path_of(kind, sandbox.namespace, name)
        eventually(
            partial(is_refused, sandbox.kube.call, method, path, item, query={"dryRun": "All"}),
            f"the policy of {kind} applies",
        )
    return owner


@pytest.fixture
def tenant(sandbox: Sandbox, owner: Object) -> Iterator[Kube]:
    client = account(sandbox, "tenant", "edit")
    wait_permitted(sandbox, client, "create", "resourceclaims", "resource.k8s.io")
    eventually(
        partial(is_refused, client.dry_run, claim(owner, "other"), sandbox.namespace),
        "the policy of tolerations applies",
    )
    yield client
    client.close()


@pytest.fixture
def extender(sandbox: Sandbox) -> Iterator[Kube]:
    """A client with the token of the scheduler's extender."""
    client = sandbox.kube.with_token(sandbox.kube.token("hami-scheduler-extender", "kube-system"))
    wait_permitted(sandbox, client, "update", "resourceclaims/binding", "resource.k8s.io")
    wait_permitted(sandbox, client, "tolerate", "devicetaints", "hami.io")
    yield client
    client.close()


@pytest.fixture
def kube_scheduler(sandbox: Sandbox, owner: Object) -> Iterator[Kube]:
    client = sandbox.kube.impersonating("system:kube-scheduler", "system:authenticated")
    yield client
    client.close()


@pytest.fixture
def namesake(sandbox: Sandbox, owner: Object) -> Iterator[Kube]:
    """A client of an account of a tenant with the name of the extender's, which may write claims and their status."""
    with permitted(
        sandbox,
        "hami-scheduler-extender",
        "resourceclaims resourceclaims/status resourceclaims/binding",
        "create update",
        "resource.k8s.io",
    ) as client:
        yield client


def claim(
    owner: Object, name: str = NAME, *, toleration: Object | None = None, **fields: Any
) -> Object:
    """The claim of the pod *owner*. *fields*: of the request."""
    request = {
        "deviceClassName": DRIVER,
        "capacity": {"requests": {"memory": "1000Mi"}},
        "tolerations": [TOLERATION if toleration is None else toleration],
    } | fields
    reference = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "ownerReferences": [reference]},
        "spec": {"devices": {"requests": [{"name": "main", "exactly": request}]}},
    }


def allocated(made: Object, **fields: Any) -> Object:
    """The claim *made* with a device for its pod. *fields*: of the result."""
    result = {"request": "main", "driver": DRIVER, "pool": "hami/n", "device": "gpu-0"} | fields
    (reference,) = made["metadata"]["ownerReferences"]
    return {
        **made,
        "status": {
            "allocation": {
                "devices": {"results": [result]},
                "allocationTimestamp": "2026-01-01T00:00:00Z",
            },
            "reservedFor": [
                {"resource": "pods", "name": reference["name"], "uid": reference["uid"]}
            ],
        },
    }


def annotate(
    client: Kube, item: Object, key: str, text: str | None, subresource: str | None = None
) -> Object:
    meta = item["metadata"]
    return client.merge_patch(
        "Pod",
        meta["name"],
        {"metadata": {"annotations": {key: text}}},
        meta["namespace"],
        subresource=subresource,
    )


def pod_with_mark(name: str, **spec: Any) -> Object:
    """A pod with the resource by which kube-scheduler calls the extender for pods with claims."""
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = {"limits": {CLAIM_RESOURCE: "1"}}
    return {**made, "spec": {**made["spec"], **spec}}


def put_status(client: Kube, item: Object) -> Object:
    meta = item["metadata"]
    return client.call(
        "PUT", path_of("ResourceClaim", meta["namespace"], meta["name"]) + "/status", item
    )


def test_the_scheduler_writes_the_claim_of_a_pod(sandbox, owner, extender):
    made = extender.create(claim(owner), sandbox.namespace)
    done = put_status(extender, allocated(made))
    assert done["status"]["reservedFor"][0]["uid"] == owner["metadata"]["uid"]
    assert put_status(extender, {**done, "status": {}}).get("status", {}) == {}


def test_the_scheduler_writes_the_claim_of_a_pod_for_mig_instances(sandbox, owner, extender):
    made = extender.create(claim(owner, deviceClassName="mig.hami.io"), sandbox.namespace)
    assert put_status(extender, allocated(made))["status"]["allocation"]


def alternatives(owner: Object, **fields: Any) -> Object:
    """The claim of the pod *owner* with an alternative. *fields*: of that one."""
    made = claim(owner)
    (request,) = made["spec"]["devices"]["requests"]
    return {
        **made,
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "main",
                        "firstAvailable": [{"name": "m80", **request["exactly"], **fields}],
                    }
                ]
            }
        },
    }


def test_the_scheduler_writes_the_claim_of_a_pod_with_alternatives(sandbox, owner, extender):
    made = extender.create(alternatives(owner), sandbox.namespace)
    assert put_status(extender, allocated(made, request="main/m80"))["status"]["allocation"]


@cases(
    "change",
    ("all taints", {"tolerations": [{"operator": "Exists"}]}),
    ("another class", {"deviceClassName": "gpu.nvidia.com"}),
)
def test_the_scheduler_writes_no_other_alternatives(sandbox, owner, extender, change):
    assert is_refused(extender.create, alternatives(owner, **change), sandbox.namespace)


def test_nobody_else_allocates_such_a_claim(sandbox, owner, extender, kube_scheduler, namesake):
    """It waits for its pod; kube-scheduler would allocate it for any pod that names it."""
    made = extender.create(claim(owner), sandbox.namespace)
    for client in (kube_scheduler, namesake):
        assert is_refused(put_status, client, allocated(made))
    done = put_status(extender, allocated(made))
    data = [{"driver": DRIVER, "pool": "hami/n", "device": "gpu-0"}]
    done = put_status(
        sandbox.kube, {**done, "status": {**done["status"], "devices": data}}
    )  # as a driver writes
    assert (
        put_status(sandbox.kube, {**done, "status": {}}).get("status", {}) == {}
    )  # as kube-controller-manager does


@cases(
    "change",
    ("another name", {"name": "mine"}),
    ("all taints", {"toleration": {"operator": "Exists"}}),
    ("a cordoned card", {"toleration": {"key": "hami.io/cordoned", "operator": "Exists"}}),
    ("another class", {"deviceClassName": "gpu.nvidia.com"}),
)
def test_the_scheduler_writes_no_other_claims(sandbox, owner, extender, change):
    assert is_refused(extender.create, claim(owner, **change), sandbox.namespace)


def test_the_scheduler_gives_claims_of_others_nothing(sandbox, owner, extender):
    others = sandbox.kube.create(claim(owner, "other"), sandbox.namespace)
    assert is_refused(put_status, extender, allocated(others))
    own = extender.create(claim(owner), sandbox.namespace)
    for result in ({"driver": "gpu.nvidia.com"}, {"pool": "n"}):
        assert is_refused(put_status, extender, allocated(own, **result))
    stolen = allocated(own)
    stolen["status"]["reservedFor"][0]["uid"] = "another"
    assert is_refused(put_status, extender, stolen)


def test_nobody_else_creates_a_claim_of_such_a_name(
    sandbox, owner, tenant, namesake, kube_scheduler
):
    """Not even one that a pod of the tenant owns, and that asks for nothing which needs a right."""
    plain = claim(owner)
    del plain["spec"]["devices"]["requests"][0]["exactly"]["tolerations"]
    for client in (tenant, namesake, kube_scheduler):
        assert is_refused(client.create, plain, sandbox.namespace)
    tenant.create({**plain, "metadata": {"name": "hami-mine"}}, sandbox.namespace)
    assert is_refused(
        tenant.create, claim(owner, "other"), sandbox.namespace
    )  # tolerates the taint


def test_an_administrator_repairs_a_claim_of_the_scheduler_but_gives_it_nothing_else(
    sandbox, owner
):
    made = sandbox.kube.create(claim(owner), sandbox.namespace)
    assert is_refused(put_status, sandbox.kube, allocated(made, driver="gpu.nvidia.com"))
    assert put_status(sandbox.kube, allocated(made))["status"]["allocation"]


@pytest.mark.parametrize("subresource", [None, "status"])
def test_what_a_pod_requests_by_its_claim_never_changes(sandbox, owner, tenant, subresource):
    for client in (sandbox.kube,) if subresource else (tenant, sandbox.kube):
        for text in ('{"main":{"nvidia.com/gpu":"2"}}', None):
            assert is_refused(annotate, client, owner, CLAIM_AMOUNTS, text, subresource)
    annotate(tenant, owner, "example.com/note", "x")
    sandbox.create(pod("plain"))
    plain = sandbox.kube.get("Pod", "plain", sandbox.namespace)
    assert is_refused(annotate, tenant, plain, CLAIM_AMOUNTS, AMOUNTS)


def test_a_binding_changes_nothing_of_it(sandbox, owner):
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n"},
        "metadata": {"name": "owner", "annotations": {CLAIM_AMOUNTS: "{}"}},
    }
    path = path_of("Pod", sandbox.namespace, "owner") + "/binding"
    assert is_refused(sandbox.kube.call, "POST", path, binding)


def test_a_pod_with_the_mark_of_such_claims_names_no_node(sandbox, owner, tenant):
    """It is placed by a scheduler, as any pod that requests devices."""
    assert is_refused(tenant.create, pod_with_mark("direct", nodeName="n"), sandbox.namespace)
    tenant.create(pod_with_mark("placed", schedulerName="nobody"), sandbox.namespace)
