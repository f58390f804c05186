"""Admission through the API server, with the shipped webhook configuration."""

import pytest

from testing.accounts import may
from testing.cases import cases
from testing.cluster import MANIFESTS, SCHEDULER
from testing.eventually import eventually
from testing.kube import ApiError
from testing.nodes import LOCK_FREE, gpu
from testing.pods import container, pod
from testing.sandbox import Sandbox
from testing.scheduler import EXTENDER, NAMESPACE

RESERVED = [
    "hami.io/vgpu-node",
    "hami.io/vgpu-time",
    "hami.io/bind-phase",
    "hami.io/bind-time",
    "hami.io/vgpu-mig-allocations",
    "hami.io/vgpu-devices-to-allocate",
    "hami.io/vgpu-devices-allocated",
    "hami.io/dcu-devices-allocated",
]


def refusal(sandbox, item):
    with pytest.raises(ApiError) as error:
        sandbox.create(item)
    return error.value.message


@pytest.mark.installation
def test_a_gpu_pod_gets_our_scheduler_and_its_defaults(sandbox):
    sandbox.create(pod("a", gpu=1))
    spec = sandbox.pod("a")["spec"]
    assert spec["schedulerName"] == "hami-scheduler"
    assert spec["containers"][0]["resources"]["limits"] == {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpucores": "100",
    }


def test_memory_alone_asks_for_one_gpu(sandbox):
    sandbox.create(pod("a", gpumem=1000))
    assert sandbox.pod("a")["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_nothing_else_changes(sandbox):
    plain = container("main", gpu=1, gpumem=1000, gpucores=10)
    sandbox.create(pod("gpu", containers=[plain]), pod("none"))
    gpu, none = sandbox.pod("gpu")["spec"], sandbox.pod("none")["spec"]
    assert none["schedulerName"] == "default-scheduler"
    for spec in (gpu, none):
        del spec["schedulerName"], spec["containers"][0]["resources"]
    assert gpu == none


@cases(
    "item, message",
    (
        "privileged",
        pod("p", containers=[container("c", privileged=True, gpu=1)]),
        "container c is privileged",
    ),
    (
        "privileged-beside-gpu",
        pod("p", containers=[container("c", privileged=True), container("d", gpu=1)]),
        "container c is privileged",
    ),
    ("nodename", pod("p", node_name="n0", gpu=1), "pod has node assigned"),
    ("percent", pod("p", gpu=1, percent=120), "must be an integer between 0 and 100"),
)
def test_invalid_pods_are_rejected(sandbox, item, message):
    sandbox.add_gpu_node("n0")
    assert message in refusal(sandbox, item)


@pytest.mark.parametrize("key", RESERVED)
def test_a_forged_annotation_is_refused(sandbox, key):
    assert key in refusal(sandbox, pod("p", annotations={key: "GPU-x,NVIDIA,1,1:;"}))


@pytest.mark.installation
def test_a_forged_label_is_refused(sandbox):
    assert "hami.io/vgpu-node" in refusal(sandbox, pod("p", labels={"hami.io/vgpu-node": "n0"}))


def test_users_own_annotations_are_fine(sandbox):
    sandbox.add_gpu_node("n0")
    wishes = {"hami.io/gpu-scheduler-policy": "binpack", "nvidia.com/use-gputype": "A100"}
    sandbox.create(pod("p", gpu=1, annotations=wishes))
    assert sandbox.started() == {"p": "n0"}


LOOKS_LIKE_A_WISH = [
    (
        "annotation-named-like-a-resource",
        pod("p", annotations={"nvidia.com/gpumem": "4Gi"}),
        "annotation nvidia.com/gpumem is no request of devices",
    ),
    (
        "label-named-like-a-resource",
        pod("p", labels={"nvidia.com/gpu": "1"}),
        "label nvidia.com/gpu is no request of devices",
    ),
    (
        "unknown-annotation",
        pod("p", annotations={"hami.io/gpu-schedular-policy": "binpack"}),
        "did you mean hami.io/gpu-scheduler-policy?",
    ),
    (
        "unknown-resource",
        pod("p", **{"nvidia.com/gpumemory": 1}),
        "nobody manages nvidia.com/gpumemory",
    ),
]


@cases("item, warning", *LOOKS_LIKE_A_WISH)
def test_who_requests_no_device_is_warned_and_gets_the_pod_as_it_is(sandbox, item, warning):
    assert [warning in text for text in sandbox.kube.warnings(item, sandbox.namespace)] == [True]
    spec = sandbox.kube.dry_run(item, sandbox.namespace)["spec"]
    assert spec["schedulerName"] == "default-scheduler"
    assert "env" not in spec["containers"][0]


def test_a_pod_without_such_words_has_no_warning(sandbox):
    plain = pod("p", annotations={"example.com/gpumem": "1"}, labels={"app": "gpu"})
    assert sandbox.kube.warnings(plain, sandbox.namespace) == []


def test_a_pod_that_is_placed_is_told_of_a_wish_that_was_ignored(sandbox):
    sandbox.add_gpu_node("n0")
    sandbox.create(pod("p", gpu=1, annotations={"hami.io/gpu-schedular-policy": "binpack"}))
    assert sandbox.started() == {"p": "n0"}
    sandbox.event("p", "WishIgnored", "did you mean hami.io/gpu-scheduler-policy?")


def test_a_pod_of_another_scheduler_is_told_that_it_gets_no_devices(sandbox):
    sandbox.create(pod("p", gpu=1, scheduler="volcano"))
    sandbox.event("p", "WishIgnored", "schedulerName volcano is not HAMi's")


def test_a_policy_on_a_node_is_reported(sandbox):
    sandbox.add_gpu_node("n0", annotations={"hami.io/gpu-scheduler-policy": "spread"})
    message = sandbox.node_event("n0", "WishIgnored")
    assert message == (
        "annotation hami.io/gpu-scheduler-policy of a node has no effect: write it on pods"
    )


def test_an_entry_of_a_quota_that_nobody_counts_is_reported(sandbox):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"limits.nvidia.com/gpumemory": "4000"}},
    }
    sandbox.kube.create(quota, sandbox.namespace)
    sandbox.event("q", "QuotaEntryNotCounted", "write limits.nvidia.com/gpumem")


def test_an_amount_of_0_is_no_request(sandbox):
    sandbox.create(pod("p", gpu=0, node_name="n0"))
    assert sandbox.pod("p")["spec"]["schedulerName"] == "default-scheduler"


def test_a_privileged_pod_without_gpu_is_admitted_unchanged(sandbox):
    sandbox.create(pod("p", containers=[container("c", privileged=True)]))
    assert sandbox.pod("p")["spec"]["schedulerName"] == "default-scheduler"


def test_a_pod_of_another_scheduler_stays_there(sandbox):
    sandbox.create(pod("p", scheduler="volcano", gpu=1))
    spec = sandbox.pod("p")["spec"]
    assert spec["schedulerName"] == "volcano"
    assert "nvidia.com/gpucores" not in spec["containers"][0]["resources"]["limits"]


@pytest.mark.installation
def test_an_ignored_namespace_is_not_touched(cluster, sandbox):
    with Sandbox.opened(cluster.kube, labels={"hami.io/webhook": "ignore"}) as ignored:
        ignored.create(pod("p", gpu=1))
        assert ignored.pod("p")["spec"]["schedulerName"] == "default-scheduler"


def test_an_ignored_pod_is_not_touched(sandbox):
    sandbox.create(pod("p", gpu=1, labels={"hami.io/webhook": "ignore"}))
    assert sandbox.pod("p")["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.installation
def test_a_namespace_quota_holds(sandbox):
    sandbox.add_gpu_node("n0")
    sandbox.kube.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q"},
            "spec": {
                "hard": {"limits.nvidia.com/gpumem": "40000", "limits.nvidia.com/gpucores": "50"}
            },
        },
        sandbox.namespace,
    )
    large = pod("large", gpu=1, gpumem=40_001)

    def is_known() -> bool:
        try:
            sandbox.kube.dry_run(large, sandbox.namespace)
        except ApiError as error:
            return "exceeding resource quota" in error.message
        return False

    eventually(is_known, "the API server knows the quota")
    sandbox.create(pod("a", gpu=1, gpumem=30_000, gpucores=20))
    sandbox.started()
    assert "exceeding resource quota" in refusal(sandbox, pod("b", gpu=1, gpumem=10_001))
    assert "exceeding resource quota" in refusal(sandbox, pod("c", gpu=1, gpumem=1000, gpucores=31))
    sandbox.create(pod("d", gpu=1, gpumem=10_000, gpucores=30))
    assert sandbox.started() == {"a": "n0", "d": "n0"}


def test_unrelated_pods_are_admitted_while_the_webhook_is_down(sandbox, scheduler):
    scheduler.kill()
    sandbox.create(pod("p"))
    assert sandbox.pod("p")["spec"]["schedulerName"] == "default-scheduler"
    scheduler.run_with()


def test_an_unmutated_pod_gets_an_event(sandbox, scheduler):
    scheduler.kill()
    sandbox.create(pod("p", gpu=1))
    assert sandbox.pod("p")["spec"]["schedulerName"] == "default-scheduler"
    scheduler.run_with()
    told = sandbox.kube.wait(
        "Event",
        lambda events: [
            event["message"] for event in events.values() if event["involvedObject"]["name"] == "p"
        ],
        sandbox.namespace,
        what="an event on the pod that was not mutated",
    )
    assert "webhook" in " ".join(told)


def test_a_renewed_certificate_is_served_without_a_restart(sandbox, scheduler, certificates):
    certificates.renew()
    sandbox.create(pod("p", gpu=1))
    assert sandbox.pod("p")["spec"]["schedulerName"] == "hami-scheduler"


def test_the_shipped_manifests_are_accepted_as_a_whole(local, tmp_path):
    rendered = tmp_path / "all.yaml"
    rendered.write_text(local.kubectl("kustomize", str(MANIFESTS)))
    applied = local.kubectl(
        "apply",
        "--server-side",
        "--field-manager=e2e",
        "--force-conflicts",
        "--dry-run=server",
        "-f",
        str(rendered),
    )
    for name in (
        "deployment.apps/hami-scheduler",
        "service/hami-scheduler",
        "configmap/hami-kube-scheduler",
        "mutatingwebhookconfiguration.admissionregistration.k8s.io/hami-webhook",
    ):
        assert name in applied


@pytest.mark.parametrize("account", [SCHEDULER, EXTENDER])
@pytest.mark.parametrize(
    "words",
    [
        "update nodes",
        "patch nodes/status",
        "delete nodes",
        "create pods",
        "create pods/exec",
        "create pods/eviction",
        "patch pods/ephemeralcontainers",
        "patch pods/resize",
        "get secrets",
        "list secrets",
        "get secrets name=hami-scheduler-extender-token",
        "create serviceaccounts/token",
        "impersonate serviceaccounts",
        "update leases group=coordination.k8s.io name=kube-controller-manager",
    ],
)
def test_the_shipped_accounts_have_no_other_rights(local, replica, account, words):
    assert not has(local, account, words)


@pytest.mark.parametrize(
    "words",
    [
        "update persistentvolumes",
        "patch persistentvolumeclaims",
        "list persistentvolumes",
        pytest.param(
            "update resourceclaims/status group=resource.k8s.io", marks=pytest.mark.since(1, 34)
        ),
        "list csinodes group=storage.k8s.io",
        "list services",
        "list namespaces",
        "watch poddisruptionbudgets group=policy",
        "update leases group=coordination.k8s.io name=hami-scheduler",
    ],
)
def test_only_kube_scheduler_may_do_what_only_it_does(local, replica, words):
    assert has(local, SCHEDULER, words)
    assert not has(local, EXTENDER, words)


@pytest.mark.parametrize(
    "words", ["delete pods", "patch pods/status", "list poddisruptionbudgets group=policy"]
)
def test_both_may_evict(local, replica, words):
    """The policies restrict the extender to pods with devices that carry the condition."""
    assert has(local, SCHEDULER, words)
    assert has(local, EXTENDER, words)


@pytest.mark.parametrize(
    "words",
    [
        "patch pods",
        "patch nodes",
        "list resourcequotas",
        "write allocations group=hami.io",
        "write registrations group=hami.io",
        "patch leases group=coordination.k8s.io name=hami-scheduler-extender",
    ],
)
def test_only_the_extender_may_do_what_only_it_does(local, replica, words):
    assert has(local, EXTENDER, words)
    assert not has(local, SCHEDULER, words)


def has(local, account, words):
    """Reports whether *account* has a right: verb, resource with subresource, then its group and the
    name of an object."""
    verb, resource, *more = words.split()
    resource, _, subresource = resource.partition("/")
    return may(
        local.kube,
        f"system:serviceaccount:{NAMESPACE}:{account}",
        verb=verb,
        resource=resource,
        subresource=subresource,
        namespace=NAMESPACE,
        **dict(word.split("=") for word in more),
    )


def test_a_pod_whose_gate_a_queue_lifts_goes_to_the_nodes_that_the_queue_chose(sandbox):
    """As Kueue admits pods: they are created with a gate, and get a node selector when it is lifted."""
    sandbox.add_gpu_nodes({name: [gpu()] for name in "ab"}, annotations=LOCK_FREE)
    sandbox.label_node("b", {"example.com/flavor": "spot"})
    gated = pod("gated", gpu=1, gpumem=1000)
    sandbox.create(
        {
            **gated,
            "spec": {**gated["spec"], "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        }
    )
    assert sandbox.pod("gated")["spec"]["schedulerName"] == "hami-scheduler"
    selector = sandbox.pod("gated")["spec"]["nodeSelector"] | {"example.com/flavor": "spot"}
    sandbox.kube.merge_patch(
        "Pod",
        "gated",
        {"spec": {"schedulingGates": [], "nodeSelector": selector}},
        sandbox.namespace,
    )
    assert sandbox.started(1) == {"gated": "b"}
