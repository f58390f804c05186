"""Pods keep their text: the webhook gives them claims, the leader makes templates, the stock kube-scheduler allocates.

Slices are written by the tests, as a device plugin publishes them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.claims import (
    FIRST,
    SLOTS_PER_POD,
    TIMEOUT_S,
    TRANSLATE,
    call_webhooks,
    installed,
    missing,
    serving,
    wait_called,
)
from e2e.cluster import LocalCluster
from e2e.eventually import eventually
from e2e.kube import ApiError
from e2e.nodes import LOCK_FREE, gpu
from e2e.pods import container, init, pod, sidecar
from e2e.processes import free_port
from e2e.sandbox import Sandbox
from e2e.scheduler import EXTENDER, NAMESPACE, Certificates, Scheduler
from hami.codec.claims import AllocatedClaim, parse_claim
from hami.codec.keys import CLAIM_REQUEST, CLAIM_TEMPLATE
from hami.codec.slices import render_slices
from hami.model import Device
from tests.devices.cards import A100_PROFILES

Object = dict[str, Any]
pytestmark = pytest.mark.since(*FIRST)
ALLOCATION_MODE = "hami.io/allocation-mode"
TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane whose kube-scheduler also serves pods of its own profile."""

    def with_default(config: Object) -> None:
        config["profiles"].append({"schedulerName": "default-scheduler"})

    if reason := missing():
        pytest.skip(reason)
    with LocalCluster.started(adjust=with_default, durable=False) as started:
        yield started
        started.kube.close()


@pytest.fixture(scope="module")
def certificates(cluster: LocalCluster) -> Certificates:
    return Certificates(cluster.folder / "tls")


@pytest.fixture(scope="module")
def kubeconfig(cluster: LocalCluster, certificates: Certificates) -> Path:
    """That of the extender's account, with the objects of the component."""
    return installed(cluster, certificates, TRANSLATE)


@pytest.fixture(scope="module")
def replica(
    cluster: LocalCluster, certificates: Certificates, kubeconfig: Path
) -> Iterator[Scheduler]:
    with serving(cluster, certificates, kubeconfig, "optional") as scheduler:
        yield scheduler


@pytest.fixture
def scheduler(
    replica: Scheduler, cluster: LocalCluster, certificates: Certificates
) -> Iterator[Scheduler]:
    """The running ``hami scheduler``; a test may stop it, or run it with other flags."""
    yield replica.run_with()
    replica.run_with()
    call_webhooks(cluster.kube, certificates, replica.port)
    wait_called(cluster.kube)


@contextlib.contextmanager
def opened(cluster: LocalCluster, **labels: str) -> Iterator[Sandbox]:
    with Sandbox.opened(cluster.kube, labels=labels, keeps_namespace=True) as sandbox:
        try:
            yield sandbox
        finally:
            for kind in ("Deployment", "ReplicaSet"):
                sandbox.kube.delete_all(kind, sandbox.namespace)


@pytest.fixture
def required(cluster: LocalCluster, scheduler: Scheduler) -> Iterator[Sandbox]:
    """A namespace whose pods need claims."""
    with opened(cluster, **{ALLOCATION_MODE: "dra"}) as sandbox:
        yield sandbox


@pytest.fixture
def preferred(cluster: LocalCluster, scheduler: Scheduler) -> Iterator[Sandbox]:
    """A namespace whose pods get claims where these can say what they request."""
    with opened(cluster, **{ALLOCATION_MODE: "dra-preferred"}) as sandbox:
        yield sandbox


@pytest.fixture
def plain(cluster: LocalCluster, scheduler: Scheduler) -> Iterator[Sandbox]:
    """A namespace without the label."""
    with opened(cluster) as sandbox:
        yield sandbox


def publish(sandbox: Sandbox, count: int = 1, **fields: Any) -> None:
    """Adds the node ``claims`` with so many cards of ten slots, by default A100s."""
    sandbox.add_gpu_nodes({"claims": ()})
    found = sandbox.node("claims")["metadata"]
    cards = [
        Device(
            **{
                "uuid": f"GPU-{index}",
                "vendor": "NVIDIA",
                "model": "NVIDIA A100-SXM4-80GB",
                "slots": 10,
                "memory_mib": 81_920,
                "index": index,
            }
            | fields
        )
        for index in range(count)
    ]
    for item in render_slices(found["name"], cards, node_uid=found["uid"]):
        sandbox.kube.create(item)


def claim_of(sandbox: Sandbox, name: str) -> AllocatedClaim:
    """The claim of a pod that is bound."""
    found = [
        parse_claim(json.dumps(item).encode())
        for item in sandbox.kube.list("ResourceClaim", sandbox.namespace)
    ]
    (claim,) = [claim for claim in found if name in [consumer.name for consumer in claim.pods]]
    return claim


def amounts(sandbox: Sandbox, name: str) -> dict[str, list[tuple[int, int, int]]]:
    """What each request of the pod's claim got: memory, cores and share of each card."""
    return {
        request.name: [
            (device.memory_mib, device.cores, device.share_milli // 1000)
            for device in request.devices
        ]
        for request in claim_of(sandbox, name).requests
    }


def templates(sandbox: Sandbox) -> list[str]:
    return sorted(
        item["metadata"]["name"]
        for item in sandbox.kube.list("ResourceClaimTemplate", sandbox.namespace)
    )


def wait_templates(sandbox: Sandbox, done: Callable[[dict[str, Object]], Any], what: str) -> None:
    sandbox.kube.wait(
        "ResourceClaimTemplate", done, sandbox.namespace, what=what, timeout=TIMEOUT_S
    )


def refusal(sandbox: Sandbox, item: Object) -> str:
    """Returns why the API server does not create *item*."""
    with pytest.raises(ApiError) as raised:
        sandbox.create(item)
    return str(raised.value.message)


def test_two_lines_of_a_pod_become_a_claim(required: Sandbox) -> None:
    publish(required)
    required.create(pod("p", gpu=1, gpumem=3000))
    assert required.bound(1, timeout=TIMEOUT_S) == {"p": "claims"}
    found = required.pod("p")
    assert found["spec"]["schedulerName"] == "default-scheduler"
    assert found["spec"]["containers"][0]["resources"] == {
        "claims": [{"name": "hami", "request": "main"}]
    }
    assert amounts(required, "p") == {"main": [(3000, 0, 10)]}
    (name,) = templates(required)
    assert found["spec"]["resourceClaims"] == [{"name": "hami", "resourceClaimTemplateName": name}]
    (template,) = required.kube.list("ResourceClaimTemplate", required.namespace)
    assert template["metadata"]["labels"] == {CLAIM_TEMPLATE: "true"}


def test_what_pods_get_by_claims(required: Sandbox) -> None:
    """Percent, whole cards, several containers, those of the beginning, several cards."""
    publish(required, count=4)
    required.create(
        pod("percent", percent=50, gpucores=30),
        pod("whole", gpu=1),
        pod("two", gpu=2, gpumem=1000),
        pod(
            "several",
            containers=[container("a", gpu=1, gpumem=100), container("b", gpu=1, gpumem=200)],
            inits=[sidecar(gpu=1, gpumem=300), init(gpu=1, gpumem=5000)],
        ),
    )
    required.bound(4, timeout=TIMEOUT_S)
    assert amounts(required, "percent") == {"main": [(40_960, 30, 10)]}
    assert amounts(required, "whole") == {"main": [(81_920, 100, 100)]}
    assert amounts(required, "two") == {"main": [(1000, 0, 10)] * 2}
    assert amounts(required, "several") == {
        "sidecar": [(300, 0, 10)],
        "a": [(100, 0, 10)],
        "b": [(5000, 0, 10)],
    }


def test_pods_for_mig_get_instances_by_claims(required: Sandbox) -> None:
    """MiB, percent, the whole card, and a card that is selected."""

    def wanting(name: str, **fields: Any) -> Object:
        return pod(
            name,
            annotations={"nvidia.com/vgpu-mode": "mig", **fields.pop("annotations", {})},
            **fields,
        )

    def instances(name: str) -> list[str]:
        (request,) = claim_of(required, name).requests
        return [device.device.partition("-mig-")[2] for device in request.devices]

    publish(required, count=2, mode="mig", mig_profiles=A100_PROFILES)
    required.create(wanting("whole", gpu=1, annotations={"nvidia.com/use-gpuuuid": "GPU-1"}))
    required.bound(1, timeout=TIMEOUT_S)
    required.create(wanting("two", gpu=2, gpumem=8000))
    required.bound(2, timeout=TIMEOUT_S)
    required.create(wanting("percent", percent=40), wanting("refused", gpu=1))
    required.bound(3, timeout=TIMEOUT_S)
    assert [instances(name) for name in ("whole", "two", "percent")] == [
        ["7g-80gb-0"],
        ["1g-10gb-6", "1g-10gb-5"],
        ["3g-40gb-0"],
    ]
    required.event("refused", "FailedScheduling", "cannot allocate all claims", timeout=TIMEOUT_S)


def test_a_label_of_the_pod_is_enough_and_takes_precedence(
    plain: Sandbox, preferred: Sandbox
) -> None:
    publish(plain)
    plain.create(pod("p", gpu=1, gpumem=3000, labels={ALLOCATION_MODE: "dra"}))
    assert plain.bound(1, timeout=TIMEOUT_S) == {"p": "claims"}
    assert "expected dra, dra-preferred, plugin" in refusal(
        plain, pod("q", gpu=1, labels={ALLOCATION_MODE: "DRA"})
    )
    made = preferred.kube.dry_run(
        pod("r", gpu=1, labels={ALLOCATION_MODE: "device-plugin"}), preferred.namespace
    )
    assert made["spec"]["schedulerName"] == "hami-scheduler"
    assert "resourceClaims" not in made["spec"]
    assert "requires a claim" in refusal(
        preferred, pod("s", gpu=1, annotations=TOPOLOGY, labels={ALLOCATION_MODE: "dra"})
    )


def test_without_the_label_nothing_changes(plain: Sandbox) -> None:
    publish(plain)
    plain.add_gpu_node("plugin", gpu(), annotations=LOCK_FREE)
    plain.create(pod("p", gpu=1, gpumem=3000))
    assert plain.bound(1, timeout=TIMEOUT_S) == {"p": "plugin"}
    found = plain.pod("p")
    assert found["spec"]["schedulerName"] == "hami-scheduler"
    assert "resourceClaims" not in found["spec"]
    assert CLAIM_REQUEST not in found["metadata"]["annotations"]
    assert found["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] == "3k"
    assert templates(plain) == []


def test_what_no_claim_says_is_denied_where_one_is_required(required: Sandbox) -> None:
    message = refusal(required, pod("p", gpu=2, annotations=TOPOLOGY))
    assert (
        "annotation hami.io/gpu-scheduler-policy=topology-aware: kube-scheduler cannot compare the links"
        in message
    )
    assert required.kube.list("Pod", required.namespace) == []


def test_what_no_claim_says_stays_with_the_extender_where_one_is_preferred(
    preferred: Sandbox,
) -> None:
    publish(preferred)
    preferred.add_gpu_node("plugin", gpu(), annotations=LOCK_FREE)
    preferred.create(
        pod("p", gpu=1, gpumem=1000, annotations=TOPOLOGY), pod("q", gpu=1, gpumem=1000)
    )
    assert preferred.bound(2, timeout=TIMEOUT_S) == {"p": "plugin", "q": "claims"}


@pytest.mark.parametrize(
    "hard", [{"limits.nvidia.com/gpumem": "10000"}, {"requests.nvidia.com/gpu": "4"}], ids=str
)
def test_no_quota_is_evaded(required: Sandbox, hard: Object) -> None:
    required.kube.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "budget"},
            "spec": {"hard": hard},
        },
        required.namespace,
    )

    def is_known() -> bool:
        with contextlib.suppress(ApiError):
            required.kube.dry_run(pod("probe", gpu=1, gpumem=1000), required.namespace)
            return False
        return True

    eventually(is_known, "the scheduler knows the quota", timeout=TIMEOUT_S)
    assert "ResourceQuota budget limits nvidia.com/gpu" in refusal(
        required, pod("p", gpu=1, gpumem=1000)
    )


NASTY = '"] || true || device.attributes["gpu.hami.io"].uuid in ["'


def test_the_api_server_accepts_every_expression_and_values_stay_values(required: Sandbox) -> None:
    """As many types and UUIDs as there may be, as long as they may be; quotes, escapes and other scripts."""
    publish(required)
    types = ",".join(f"{number:064}" for number in range(63)) + ",a100"
    uuids = ",".join(f"GPU-{number:060}" for number in range(63)) + ",GPU-0"
    required.create(
        pod(
            "many",
            gpu=1,
            gpumem=1,
            annotations={"nvidia.com/use-gputype": types, "nvidia.com/use-gpuuuid": uuids},
        ),
        pod(
            "none",
            gpu=1,
            gpumem=1,
            annotations={"nvidia.com/nouse-gputype": types, "nvidia.com/nouse-gpuuuid": uuids},
        ),
        pod(
            "nasty",
            gpu=1,
            gpumem=1,
            annotations={"nvidia.com/use-gpuuuid": NASTY, "nvidia.com/use-gputype": NASTY},
        ),
        pod(
            "odd",
            gpu=1,
            gpumem=1,
            annotations={"nvidia.com/use-gputype": "A100,\\x,`,',\\\",\n\t\u2028\x7fé中😀\\"},
        ),
    )
    required.event("none", "FailedScheduling", "cannot allocate all claims", timeout=TIMEOUT_S)
    required.event("nasty", "FailedScheduling", "cannot allocate all claims", timeout=TIMEOUT_S)
    assert required.bound(2, timeout=TIMEOUT_S) == {"many": "claims", "odd": "claims"}
    assert len(templates(required)) == 4


def test_a_deleted_template_comes_back(required: Sandbox) -> None:
    required.create(pod("p", gpu=1, gpumem=1000))
    wait_templates(required, bool, "there is a template")
    (first,) = required.kube.list("ResourceClaimTemplate", required.namespace)
    uid = first["metadata"]["uid"]
    required.kube.delete("ResourceClaimTemplate", first["metadata"]["name"], required.namespace)
    wait_templates(
        required,
        lambda found: found and uid not in [item["metadata"]["uid"] for item in found.values()],
        "there is another template",
    )
    publish(required)
    assert required.bound(1, timeout=TIMEOUT_S) == {"p": "claims"}


def test_a_template_that_is_late_is_waited_for(required: Sandbox, scheduler: Scheduler) -> None:
    publish(required)
    translated = required.kube.dry_run(pod("p", gpu=1, gpumem=1000), required.namespace)
    metadata = {key: translated["metadata"][key] for key in ("name", "annotations")}
    scheduler.stop()
    required.create(
        {**translated, "metadata": metadata}
    )  # as who copies a pod does: no webhook is called
    required.event("p", "FailedResourceClaimCreation", timeout=TIMEOUT_S)
    scheduler.start()
    assert required.bound(1, timeout=TIMEOUT_S) == {"p": "claims"}


def test_many_pods_of_a_deployment_share_a_template(required: Sandbox) -> None:
    publish(required, count=2 * SLOTS_PER_POD)
    template = pod("p", gpu=1, gpumem=1000, labels={"app": "a"})
    required.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {
                "replicas": 20,
                "selector": {"matchLabels": {"app": "a"}},
                "template": {
                    "metadata": {"labels": template["metadata"]["labels"]},
                    "spec": template["spec"],
                },
            },
        }
    )
    assert set(required.bound(20, timeout=TIMEOUT_S).values()) == {"claims"}
    assert len(templates(required)) == 1


def test_unused_templates_are_removed_and_used_ones_stay(
    required: Sandbox, scheduler: Scheduler
) -> None:
    publish(required)
    required.create(pod("p", gpu=1, gpumem=1000), pod("q", gpu=1, gpumem=2000))
    required.bound(2, timeout=TIMEOUT_S)
    assert len(templates(required)) == 2
    required.delete("p")
    used = required.pod("q")["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    scheduler.run_with(dra_template_ttl="1s")
    wait_templates(required, lambda found: set(found) == {used}, "the unused template is removed")
    required.create(pod("r", gpu=1, gpumem=1000))
    required.bound(2, timeout=TIMEOUT_S)
    assert used in templates(required)


def test_the_next_leader_goes_on(
    required: Sandbox,
    cluster: LocalCluster,
    scheduler: Scheduler,
    kubeconfig: Path,
    certificates: Certificates,
) -> None:
    publish(required)
    required.create(pod("p", gpu=1, gpumem=1000))
    required.bound(1, timeout=TIMEOUT_S)
    second = Scheduler(
        cluster, certificates, kubeconfig, name="hami-scheduler-1", port=free_port(), dra="optional"
    )
    second.start()
    try:
        scheduler.kill()
        call_webhooks(cluster.kube, certificates, second.port)
        wait_called(cluster.kube)
        required.create(pod("q", gpu=1, gpumem=2000))
        assert required.bound(2, timeout=TIMEOUT_S) == {"p": "claims", "q": "claims"}
    finally:
        second.close()


def test_while_no_webhook_answers_pods_that_require_a_claim_are_not_created(
    required: Sandbox, preferred: Sandbox, scheduler: Scheduler
) -> None:
    scheduler.stop()
    assert "failed calling webhook" in refusal(required, pod("p", gpu=1, gpumem=1000))
    required.create(pod("q"))
    assert (
        "resourceClaims" not in preferred.kube.dry_run(pod("r", gpu=1), preferred.namespace)["spec"]
    )


def test_nobody_gets_more_from_an_annotation_than_from_the_webhook(plain: Sandbox) -> None:
    forged = pod(
        "p",
        annotations={
            CLAIM_REQUEST: json.dumps(
                {
                    "requests": [{"name": "main", "count": 1}],
                    "tolerations": [{"operator": "Exists"}],
                }
            )
        },
    )
    plain.create(forged)
    assert "tolerations" in plain.event("p", "ClaimTemplateRefused", timeout=TIMEOUT_S)
    assert templates(plain) == []


def test_the_account_of_the_scheduler_writes_only_templates_of_its_own(
    cluster: LocalCluster, scheduler: Scheduler
) -> None:
    ours = {CLAIM_TEMPLATE: "true"}

    def template(labels: Object, **fields: Any) -> Object:
        exactly = {"deviceClassName": "gpu.hami.io", **fields}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "t", "labels": labels},
            "spec": {"spec": {"devices": {"requests": [{"name": "main", "exactly": exactly}]}}},
        }

    with opened(cluster, **{"resource.kubernetes.io/admin-access": "true"}) as sandbox:
        extender = sandbox.kube.with_token(sandbox.kube.token(EXTENDER, NAMESPACE))

        def refused(item: Object) -> str:
            try:
                extender.dry_run(item, sandbox.namespace)
            except ApiError as error:
                return str(error.message)
            return ""

        try:
            eventually(
                lambda: "with the label hami.io/claim-template" in refused(template({})),
                "the policy applies",
                timeout=TIMEOUT_S,
            )
            assert refused(template(ours)) == ""
            for fields in (
                {"tolerations": [{"key": "a", "operator": "Exists"}]},
                {"adminAccess": True},
                {"deviceClassName": "other"},
            ):
                assert "without parameters, tolerations and admin access" in refused(
                    template(ours, **fields)
                )
            sandbox.kube.create(template({}), sandbox.namespace)
            with pytest.raises(ApiError, match="hami-claim-templates"):
                extender.delete("ResourceClaimTemplate", "t", sandbox.namespace)
        finally:
            extender.close()
