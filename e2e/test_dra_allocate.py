"""Pods with claims of their own: HAMi's scheduler decides, makes the claim and allocates it, then binds the pod.

Nodes and slices are written by the tests, as a device plugin with ``--claim-allocator=hami`` publishes them. After each
test, Kubernetes' own allocator has judged each claim."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from hami import model
from hami.codec.claims import AllocatedClaim, parse_claim
from hami.codec.documents import parse_own_yaml
from hami.codec.slices import DRIVER, is_instance, pool_name, render_slices
from hami.model import Device, Selector
from testing import audit, binaries
from testing.cases import cases
from testing.claims import (
    ALLOCATE,
    FIRST,
    claiming,
    installed,
    missing,
    serving,
    share,
    spec_of,
    template,
)
from testing.cluster import LocalCluster
from testing.eventually import eventually
from testing.kube import ApiError, path_of, write_impersonation
from testing.nodes import LOCK_FREE, Gpu, MigProfile, gpu, gpus, mig_gpu, registered
from testing.oracle import Oracle, oracle
from testing.people import DEVICE_CONFIG, hami
from testing.pods import container, init, pod, sidecar
from testing.priorities import add_priorities, of_priority
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler

Object = dict[str, Any]
pytestmark = pytest.mark.since(*FIRST)
ALLOCATION_MODE = "hami.io/allocation-mode"
MANAGED = {**LOCK_FREE, ALLOCATION_MODE: "dra"}
VGPU_MODE = "nvidia.com/vgpu-mode"
GPU_POLICY, NODE_POLICY = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"
OWN = re.compile(r"hami-[0-9a-f]{32}")
CLAIMS_PROFILE = "hami-scheduler-claims"
GANGS = (1, 37)  # the version of Kubernetes with this API
GATES = {
    "kubeFeatureGates": "GenericWorkload=true",
    "kubeRuntimeConfig": "scheduling.k8s.io/v1beta1=true",
}
HELD = "held-bindings"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane with HAMi's kube-scheduler, which has the profile for these pods, and with its own."""
    if reason := missing():
        pytest.skip(reason)
    options = GATES if binaries.find().minor >= GANGS else None
    with LocalCluster.started(adjust=with_profiles, durable=False, options=options) as started:
        account = write_impersonation(
            started.kubeconfig,
            "system:kube-scheduler",
            started.folder / "default-scheduler.kubeconfig",
        )
        started.start_kube_scheduler(
            "default-scheduler", started.extender_port, account, without_hami
        )
        yield started
        started.kube.close()


def with_profiles(config: Object) -> None:
    """Makes *config* that of the component."""
    shipped = parse_own_yaml((ALLOCATE / "scheduler-config.yaml").read_text())
    shipped["extenders"][0]["urlPrefix"] = config["extenders"][0]["urlPrefix"]
    config.update(shipped)


def without_hami(config: Object) -> None:
    """Makes *config* that of Kubernetes' own scheduler.
    It acts with Kubernetes' own account, which HAMi gives no rights."""
    del config["extenders"]
    config["profiles"] = [{"schedulerName": "default-scheduler"}]
    config["leaderElection"]["resourceName"] = "kube-scheduler"


@pytest.fixture(scope="module")
def certificates(cluster: LocalCluster) -> Certificates:
    return Certificates(cluster.folder / "tls")


@pytest.fixture(scope="module")
def kubeconfig(cluster: LocalCluster, certificates: Certificates) -> Path:
    """That of the extender's account, with the objects of the components."""
    kubeconfig = installed(cluster, certificates, ALLOCATE)
    add_priorities(cluster.kube)
    return kubeconfig


@pytest.fixture(scope="module")
def replica(
    cluster: LocalCluster, certificates: Certificates, kubeconfig: Path
) -> Iterator[Scheduler]:
    with serving(cluster, certificates, kubeconfig, "allocate") as scheduler:
        yield scheduler


@pytest.fixture(scope="module")
def judge() -> Iterator[Oracle]:
    with oracle() as started:
        yield started


@pytest.fixture
def sandbox(cluster: LocalCluster, replica: Scheduler) -> Iterator[Sandbox]:
    """A namespace whose pods need claims."""
    replica.run_with()
    with Sandbox.opened(
        cluster.kube, labels={ALLOCATION_MODE: "dra"}, keeps_namespace=True
    ) as opened:
        yield opened


@pytest.fixture(autouse=True)
def audited(sandbox: Sandbox, judge: Oracle) -> Iterator[None]:
    """Checks after each test: no card is overcommitted, and claims say what pods hold; no claim outlives its pod."""
    yield
    found = audit.audit(sandbox.kube)
    assert not found, "the auditor found:\n" + "\n".join(found)
    check_claims(sandbox, judge)
    sandbox.empty()
    wait_claims(sandbox, lambda claims: not claims, "no claim is left")


def check_claims(sandbox: Sandbox, judge: Oracle) -> None:
    """Compares the claims with the annotations of their pods, and lets Kubernetes' allocator judge them."""
    pods: dict[str, Object] = {}

    def have_pods(claims: dict[str, Object]) -> bool:
        pods.clear()
        for item in sandbox.kube.list("Pod", sandbox.namespace):
            pods[item["metadata"]["uid"]] = item
        return all(
            item["metadata"]["ownerReferences"][0]["uid"] in pods
            for name, item in claims.items()
            if OWN.fullmatch(name)
        )

    wait_claims(sandbox, have_pods, "no claim outlives its pod")
    slices = sandbox.kube.list("ResourceSlice")
    own_ones = [
        item
        for item in sandbox.kube.list("ResourceClaim", sandbox.namespace)
        if OWN.fullmatch(name_of(item))
    ]
    claims = [item for item in own_ones if "allocation" in item.get("status", {})]
    assert not [
        name_of(item)
        for item in own_ones
        if item not in claims
        and pods[item["metadata"]["ownerReferences"][0]["uid"]]["spec"].get("nodeName")
    ]
    for item in claims:
        (consumer,) = item["status"]["reservedFor"]
        owner = pods[consumer["uid"]]
        node = owner["spec"]["nodeName"]
        own = [one for one in slices if one["spec"]["nodeName"] == node]
        others = [
            other for other in claims if other is not item and pool_name(node) in pools(other)
        ]
        assert judge.objection(node, own, others, item) == ""
        held = {
            one["name"]: [(share.memory_mib, share.cores) for share in shares]
            for one, shares in zip(
                [*owner["spec"].get("initContainers", ()), *owner["spec"]["containers"]],
                sandbox.shares(name_of(owner)),
            )
            if shares
        }
        claimed = {request.name: request.devices for request in parsed(item).requests}
        assert {name: len(devices) for name, devices in claimed.items()} == {
            name: len(shares) for name, shares in held.items()
        }
        assert not [
            (amounts, device)
            for name, devices in claimed.items()
            for amounts, device in zip(held[name], devices)
            if not is_instance(device.device) and amounts != (device.memory_mib, device.cores)
        ]
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in claims} == {
        uid for uid, item in pods.items() if item["spec"].get("nodeName") and claim_name(item)
    }


def name_of(item: Object) -> str:
    return str(item["metadata"]["name"])


def parsed(claim: Object) -> AllocatedClaim:
    return parse_claim(json.dumps(claim).encode())


def amounts(claim: Object) -> dict[str, list[tuple[int, int, int]]]:
    """What each request got: memory, cores and share of each card."""
    return {
        request.name: [
            (device.memory_mib, device.cores, device.share_milli // 1000)
            for device in request.devices
        ]
        for request in parsed(claim).requests
    }


def pools(claim: Object) -> set[str]:
    return {device.pool for request in parsed(claim).requests for device in request.devices}


def claim_name(item: Object) -> str:
    """The name of the claim of its own that the pod has; empty if it has none."""
    names = [entry.get("resourceClaimName", "") for entry in item["spec"].get("resourceClaims", ())]
    return next((name for name in names if OWN.fullmatch(name)), "")


def claim_of(sandbox: Sandbox, name: str) -> Object:
    return sandbox.kube.get("ResourceClaim", claim_name(sandbox.pod(name)), sandbox.namespace)


def wait_claims(sandbox: Sandbox, done: Callable[[dict[str, Object]], Any], what: str) -> Any:
    return sandbox.kube.wait("ResourceClaim", done, sandbox.namespace, what=what)


def manage(sandbox: Sandbox, annotations: Object | None = None, **nodes: tuple[Gpu, ...]) -> None:
    """Adds nodes whose claims HAMi's scheduler allocates."""
    sandbox.add_gpu_nodes(nodes, annotations={**MANAGED, **(annotations or {})})
    for name, own in nodes.items():
        found = sandbox.node(name)["metadata"]
        cards = [
            Device(
                uuid=card.uuid,
                vendor="NVIDIA",
                model=card.model,
                slots=card.slots,
                index=card.index,
                memory_mib=card.memory_mib,
                cores=card.cores,
                numa=card.numa,
                mode=card.mode,
                mig_profiles=tuple(map(profile, card.profiles)),
                by_claims=True,
            )
            for card in registered(found["name"], own)
        ]
        for item in render_slices(found["name"], cards, node_uid=found["uid"]):
            assert all(card["taints"] for card in item["spec"].get("devices", ()))
            sandbox.kube.create(item)


def profile(one: MigProfile) -> model.MigProfile:
    return model.MigProfile(
        name=one.name,
        memory_mib=one.memory_mb,
        cores=one.cores,
        slices=one.slices,
        placements=tuple(model.Partition(start, one.size) for start in one.starts),
    )


def place(sandbox: Sandbox, name: str, annotations: Object | None = None, **asked: int) -> set[str]:
    """Creates a pod, by default for 1000 MiB, waits until it is bound, and returns its cards as ``node/index``."""
    sandbox.create(pod(name, annotations=annotations, **{"gpu": 1, "gpumem": 1000} | asked))
    wait_bound(sandbox, name)
    return sandbox.cards(name)


def wait_bound(sandbox: Sandbox, *names: str) -> None:
    sandbox.kube.wait(
        "Pod",
        lambda pods: all(name in pods and pods[name]["spec"].get("nodeName") for name in names),
        sandbox.namespace,
        what=f"{names} are bound",
    )


def refusal(sandbox: Sandbox, name: str, containing: str) -> None:
    sandbox.refusal(name, containing)


def explained(cluster: LocalCluster, sandbox: Sandbox, name: str) -> str:
    """What ``hami explain pod`` says."""
    return hami(
        cluster.kubeconfig,
        "explain",
        "pod",
        name,
        "-v",
        "-n",
        sandbox.namespace,
        "--device-config-file",
        DEVICE_CONFIG,
    ).text


# -- one pod


def test_a_pod_gets_a_claim_of_its_own(sandbox):
    manage(sandbox, n0=gpus(2))
    assert len(place(sandbox, "p", gpumem=3000, gpucores=30)) == 1
    found = sandbox.pod("p")
    assert found["spec"]["schedulerName"] == CLAIMS_PROFILE
    (main,) = found["spec"]["containers"]
    assert main["resources"]["claims"] == [{"name": "hami", "request": "main"}]
    assert main["resources"]["limits"] == {"hami.io/claim": "1"}
    claim = claim_of(sandbox, "p")
    assert [owner["uid"] for owner in claim["metadata"]["ownerReferences"]] == [
        found["metadata"]["uid"]
    ]
    (request,) = parsed(claim).requests
    (device,) = request.devices
    assert (request.name, device.memory_mib, device.cores, device.share_milli) == (
        "main",
        3000,
        30,
        10_000,
    )
    assert device.pool == pool_name(found["spec"]["nodeName"])
    assert sandbox.kube.list("ResourceClaimTemplate", sandbox.namespace) == []


def test_a_pod_with_the_label_comes_to_one_webhook(cluster, sandbox):
    """Also one that says it has its claim already: the check is the same."""

    def called(namespace: str, item: Object) -> tuple[Object, Counter[str]]:
        before = webhook_calls(cluster)
        made = cluster.kube.dry_run(item, namespace)
        return made, webhook_calls(cluster) - before

    made, calls = called(sandbox.namespace, pod("p", gpu=1, gpumem=3000))
    assert made["spec"]["schedulerName"] == CLAIMS_PROFILE
    assert calls == {"namespaces.dra.hami.io": 1}
    labels = {"metadata": {"name": "p", "labels": {ALLOCATION_MODE: "dra"}}}
    made, calls = called("default", pod("p", gpu=1, gpumem=3000) | labels)
    assert made["spec"]["schedulerName"] == CLAIMS_PROFILE
    assert calls == {"pods.dra.hami.io": 1}
    claimed = {**made, "metadata": {"name": "p", "annotations": made["metadata"]["annotations"]}}
    assert called("default", claimed)[1] == {"vgpu.hami.io": 1}
    claimed["metadata"] |= labels["metadata"]
    assert called("default", claimed)[1] == {"pods.dra.hami.io": 1}
    claimed["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(ApiError, match="pods.dra.hami.io.*privileged"):
        called("default", claimed)


def webhook_calls(cluster: LocalCluster) -> Counter[str]:
    """Returns how often the API server has called each webhook for a new pod, with whatever result."""
    calls: Counter[str] = Counter()
    for name, count in re.findall(
        r'^apiserver_admission_webhook_request_total\{.*name="(.*?)",operation="CREATE".*\} (\S+)$',
        cluster.kubectl("get", "--raw", "/metrics"),
        re.MULTILINE,
    ):
        calls[name] += int(float(count))
    return calls


def test_while_no_webhook_answers_pods_that_require_a_claim_are_not_created(
    cluster, sandbox, replica
):
    with Sandbox.opened(cluster.kube, labels={ALLOCATION_MODE: "dra-preferred"}) as preferred:
        replica.stop()
        with pytest.raises(ApiError, match="failed calling webhook"):
            sandbox.create(pod("p", gpu=1, gpumem=1000))
        sandbox.create(pod("q"))
        made = cluster.kube.dry_run(pod("r", gpu=1), preferred.namespace)
        assert "resourceClaims" not in made["spec"]


def test_what_pods_get_by_claims(sandbox):
    """Percent, whole cards, several containers, those of the beginning, several cards."""
    manage(sandbox, n0=gpus(4))
    sandbox.create(
        pod("percent", percent=50, gpucores=30),
        pod("whole", gpu=1),
        pod("two", gpu=2, gpumem=1000),
        pod(
            "several",
            containers=[container("a", gpu=1, gpumem=100), container("b", gpu=1, gpumem=200)],
            inits=[sidecar(gpu=1, gpumem=300), init(gpu=1, gpumem=5000)],
        ),
    )
    sandbox.bound(4)
    assert {
        name: amounts(claim_of(sandbox, name)) for name in ("percent", "whole", "two", "several")
    } == {
        "percent": {"main": [(40_960, 30, 10)]},
        "whole": {"main": [(81_920, 100, 100)]},
        "two": {"main": [(1000, 0, 10)] * 2},
        "several": {"sidecar": [(300, 0, 10)], "a": [(100, 0, 10)], "b": [(5000, 0, 10)]},
    }


def test_the_template_of_a_user_is_said_as_amounts(sandbox):
    """The pod has a claim of the scheduler's for what the template asks, and its policies and quotas hold."""
    manage(sandbox, n0=(gpu(), gpu(model="NVIDIA T4")), n1=gpus(1))
    only = Selector(use_types=("a100",), nouse_uuids=(sandbox.uuid("n1", 0),))
    sandbox.kube.create(
        template("parts", spec_of(only, a=share(3000, 30), b=share(2000))), sandbox.namespace
    )
    user = claiming(
        pod(
            "user",
            scheduler="default-scheduler",
            containers=[container("a"), container("b"), container("c")],
            inits=[init()],
            annotations={GPU_POLICY: "binpack"},
        ),
        "parts",
    )
    for sharing in (user["spec"]["initContainers"][0], user["spec"]["containers"][2]):
        sharing["resources"] = user["spec"]["containers"][0]["resources"]
    sandbox.create(user)
    wait_bound(sandbox, "user")
    assert sandbox.cards("user") == {"n0/0"}
    assert amounts(claim_of(sandbox, "user")) == {"a": [(3000, 30, 10)], "b": [(2000, 0, 10)]}
    assert sandbox.pod("user")["spec"]["schedulerName"] == CLAIMS_PROFILE
    assert len(sandbox.kube.list("ResourceClaim", sandbox.namespace)) == 1

    requests = spec_of(main=share(1000))["devices"]["requests"]
    requests[0]["exactly"]["selectors"] = [{"cel": {"expression": "true"}}]
    sandbox.kube.create(template("any", {"devices": {"requests": requests}}), sandbox.namespace)
    with pytest.raises(
        ApiError, match="requires a claim for the pod's devices.*request main: selectors: expected"
    ):
        sandbox.create(claiming(pod("other"), "any"))
    with pytest.raises(ApiError, match="ResourceClaimTemplate none does not exist"):
        sandbox.create(claiming(pod("other"), "none"))


def test_the_author_of_a_pod_is_warned_that_no_claim_is_made(cluster, sandbox):
    spec = spec_of(main=share(1000))
    spec["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": {"kind": "x"}}}]
    sandbox.kube.create(template("configured", spec), sandbox.namespace)
    user = claiming(pod("user", labels={ALLOCATION_MODE: "dra-preferred"}), "configured")
    ended = subprocess.run(
        [
            str(cluster.binaries["kubectl"]),
            "--kubeconfig",
            str(cluster.kubeconfig),
            "-n",
            sandbox.namespace,
            "create",
            "--dry-run=server",
            "-f",
            "-",
        ],
        input=json.dumps(user),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        f"Warning: {ALLOCATION_MODE}=dra-preferred: no claim is made for the pod's devices: "
        in ended.stderr
    )
    assert "spec.resourceClaims gpu: config" in ended.stderr


def test_pods_with_claims_of_other_drivers_stay_as_they_are(sandbox):
    spec = {
        "devices": {
            "requests": [{"name": "main", "exactly": {"deviceClassName": "nic.example.com"}}]
        }
    }
    sandbox.kube.create(template("nic", spec), sandbox.namespace)
    user = claiming(pod("user", scheduler="default-scheduler"), "nic")
    sandbox.create(user)
    found = sandbox.pod("user")["spec"]
    assert (found["schedulerName"], found["resourceClaims"]) == (
        "default-scheduler",
        user["spec"]["resourceClaims"],
    )
    sandbox.delete("user")


def test_a_claim_goes_with_its_pod(sandbox):
    manage(sandbox, n0=gpus(1))
    for name in ("first", "second"):  # the second one needs what the first one has left
        assert place(sandbox, name, gpucores=100) == {"n0/0"}
        sandbox.delete(name)
    wait_claims(sandbox, lambda claims: not claims, "the claims are gone")


# -- pods that wait


def test_the_claim_of_a_pod_that_waits_exists_before_it_is_placed(sandbox):
    """It says what the pod needs, also in percent, and its pod gets it."""
    manage(sandbox, n0=(gpu(memory_mib=40_960),), n1=(gpu(memory_mib=81_920),))
    large = {"nvidia.com/use-gpuuuid": sandbox.uuid("n1", 0)}
    assert place(sandbox, "first", large, gpumem=60_000) == {"n1/0"}
    sandbox.create(pod("waits", gpu=1, gpumem=30_000, gpucores=30, annotations=large))
    sandbox.create(pod("part", gpu=1, percent=50, annotations=large))
    names = {name: claim_name(sandbox.pod(name)) for name in ("waits", "part")}
    made = wait_claims(
        sandbox,
        lambda claims: claims if set(names.values()) <= claims.keys() else None,
        "the claims of the pods that wait",
    )
    (waits,), (part,) = (
        made[names[name]]["spec"]["devices"]["requests"] for name in ("waits", "part")
    )
    assert waits["exactly"]["capacity"]["requests"] == {"memory": "30000Mi", "cores": "30"}
    assert [one["capacity"]["requests"]["memory"] for one in part["firstAvailable"]] == [
        "40Gi",
        "20Gi",
    ]
    assert not [
        item for item in made.values() if name_of(item) in names.values() and item.get("status")
    ]

    sandbox.delete("first")
    wait_bound(sandbox, "waits", "part")
    claims = {name: claim_of(sandbox, name) for name in names}
    assert {name: claim["metadata"]["uid"] for name, claim in claims.items()} == {
        name: made[names[name]]["metadata"]["uid"] for name in names
    }
    assert {name: amounts(claim) for name, claim in claims.items()} == {
        "waits": {"main": [(30_000, 30, 10)]},
        "part": {"main": [(40_960, 0, 10)]},
    }
    assert (
        claims["part"]["status"]["allocation"]["devices"]["results"][0]["request"] == "main/m81920"
    )


def test_no_other_scheduler_allocates_the_claim_of_a_pod_that_waits(sandbox):
    """The pod waits for a GPU that nobody uses; for its claim alone, kube-scheduler would find one."""
    manage(sandbox, n0=gpus(1))
    place(sandbox, "user")
    sandbox.create(pod("waits", gpu=1, gpumem=1000, annotations={GPU_POLICY: "mutex"}))
    name = claim_name(sandbox.pod("waits"))
    wait_claims(sandbox, lambda claims: name in claims, "the claim of the pod that waits")
    thief = pod("thief", labels={ALLOCATION_MODE: "device-plugin"}, scheduler="default-scheduler")
    thief["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    thief["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    sandbox.create(thief)
    sandbox.event("thief", "FailedScheduling", "only the scheduler creates and allocates claims")
    sandbox.delete("user")
    wait_bound(sandbox, "waits")
    assert not sandbox.pod("thief")["spec"].get("nodeName")


# -- policies


@cases(
    "policies, cards, nodes",
    ("binpack", {GPU_POLICY: "binpack", NODE_POLICY: "binpack"}, 1, 1),
    ("spread-cards", {GPU_POLICY: "spread", NODE_POLICY: "binpack"}, 2, 1),
    ("spread-nodes", {GPU_POLICY: "binpack", NODE_POLICY: "spread"}, 2, 2),
)
def test_cards_and_nodes_are_chosen_by_policy(sandbox, policies, cards, nodes):
    manage(sandbox, n0=gpus(2), n1=gpus(2))
    used = set().union(*(place(sandbox, f"p{number}", policies) for number in range(2)))
    assert (len(used), len({card.partition("/")[0] for card in used})) == (cards, nodes)


def test_selectors_mutex_and_numa_hold(sandbox):
    manage(sandbox, n0=gpus(4))  # two on NUMA node 0, two on 1
    wish = {"nvidia.com/use-gpuuuid": sandbox.uuid("n0", 3)}
    assert place(sandbox, "busy", wish, gpumem=70_000) == {"n0/3"}
    assert place(sandbox, "numa", {"nvidia.com/numa-bind": "true"}, gpu=2, gpumem=20_000) == {
        "n0/0",
        "n0/1",
    }
    assert place(sandbox, "mutex", {GPU_POLICY: "mutex"}) == {"n0/2"}
    sandbox.create(pod("waits", gpu=1, gpumem=1000, annotations={GPU_POLICY: "mutex"}))
    refusal(sandbox, "waits", "cannot be used exclusively")
    sandbox.create(
        pod("unknown", gpu=1, gpumem=1000, annotations={"nvidia.com/use-gpuuuid": "GPU-elsewhere"})
    )
    refusal(sandbox, "unknown", "excluded by UUID")


def test_the_best_links_are_chosen(sandbox):
    sandbox.add_gpu_nodes({"probe": ()})  # for its prefix
    prefix = name_of(sandbox.node("probe")).removesuffix("probe")
    uuids = [f"GPU-{prefix}n0-{index}" for index in range(4)]
    scores = [
        {
            "uuid": one,
            "score": {
                other: 90 if {first, second} == {1, 3} else 10
                for second, other in enumerate(uuids)
                if other != one
            },
        }
        for first, one in enumerate(uuids)
    ]
    manage(sandbox, {"hami.io/node-nvidia-score": json.dumps(scores)}, n0=gpus(4))
    assert place(sandbox, "p", {GPU_POLICY: "topology-aware"}, gpu=2) == {"n0/1", "n0/3"}


def test_a_quota_refuses_with_its_reason(sandbox):
    manage(sandbox, n0=gpus(1))
    sandbox.kube.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "budget"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": "50000"}},
        },
        sandbox.namespace,
    )
    half = (
        pod("half", gpu=1, percent=50),
        pod("more", gpu=1, percent=50),
    )  # only the filter knows of how much
    sandbox.create(half[0])
    wait_bound(sandbox, "half")
    sandbox.create(half[1])
    refusal(sandbox, "more", "the quota of the namespace")


# -- allocation modes


def test_no_pod_passes_in_the_other_allocation_mode(cluster, sandbox):
    manage(sandbox, claims=gpus(1))
    sandbox.add_gpu_node("plugin", gpu(), annotations=LOCK_FREE)
    assert place(sandbox, "claim") == {"claims/0"}
    plain = {ALLOCATION_MODE: "device-plugin"}
    sandbox.create(pod("device", gpu=1, gpumem=1000, labels=plain))
    wait_bound(sandbox, "device")
    assert sandbox.cards("device") == {"plugin/0"}
    assert not claim_name(sandbox.pod("device"))
    sandbox.create(
        pod("claim-waits", gpu=1, gpumem=81_000),
        pod("device-waits", gpu=1, gpumem=81_000, labels=plain),
    )
    for name, other in (("claim-waits", "plugin"), ("device-waits", "claims")):
        refusal(sandbox, name, "in the other allocation mode")
        text = explained(cluster, sandbox, name)
        assert re.search(rf"{sandbox.namespace}-{other}\b.*CardOtherAllocationMode", text), text
        assert "CardInsufficientMemory" in text


def test_claims_for_mig_instances(sandbox):
    """As many as fit, at places that do not overlap, which the judge checks."""
    manage(sandbox, n0=(mig_gpu(), mig_gpu()))
    instances = {VGPU_MODE: "mig"}
    sandbox.create(
        *(pod(f"p{number}", gpu=1, gpumem=19_000, annotations=instances) for number in range(3)),
        pod("two", gpu=2, gpumem=4_000, annotations=instances),
    )
    sandbox.bound(4)
    profiles = {
        name: [
            device.device.partition("-mig-")[2][:2]
            for request in parsed(claim_of(sandbox, name)).requests
            for device in request.devices
        ]
        for name in ("p0", "p1", "p2", "two")
    }
    assert profiles == {"p0": ["3g"], "p1": ["3g"], "p2": ["3g"], "two": ["1g", "1g"]}
    sandbox.create(pod("none", gpu=1, gpumem=40_000, annotations=instances))
    refusal(sandbox, "none", "too little free memory")


def test_claims_of_users_never_get_such_cards(sandbox):
    manage(sandbox, n0=gpus(1))
    sandbox.kube.create(template("c", spec_of(main=share(1000))), sandbox.namespace)
    plain = pod(
        "user",
        scheduler="default-scheduler",
        containers=[container()],
        labels={ALLOCATION_MODE: "device-plugin"},
    )
    sandbox.create(claiming(plain, "c"))
    sandbox.event("user", "FailedScheduling", "cannot allocate all claims")
    assert place(sandbox, "p") == {"n0/0"}
    assert not sandbox.pod("user")["spec"].get("nodeName")


# -- preemption and groups


def test_pods_of_lower_priority_let_one_with_a_claim_go_first(sandbox):
    manage(sandbox, n0=gpus(1))
    for name in ("low", "high"):
        sandbox.create(of_priority(name, pod(name, gpu=1, gpucores=100)))
        wait_bound(sandbox, name)
    sandbox.kube.wait(
        "Pod", lambda pods: pods.keys() == {"high"}, sandbox.namespace, what="the other is gone"
    )
    assert sandbox.cards("high") == {"n0/0"}
    name = claim_name(sandbox.pod("high"))
    wait_claims(sandbox, lambda claims: claims.keys() == {name}, "only its claim is left")


@pytest.mark.since(*GANGS)
def test_a_gang_is_placed_together(sandbox):
    groups = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{sandbox.namespace}/podgroups"
    manage(sandbox, n0=gpus(2))
    sandbox.kube.call(
        "POST",
        groups,
        {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
        },
    )
    for number in range(3):
        item = pod(f"g-{number}", gpu=1, gpucores=100)
        item["spec"]["schedulingGroup"] = {"podGroupName": "g"}
        sandbox.create(item)
    sandbox.kube.wait(
        "Event",
        lambda events: any(event["reason"] == "FilteringFailed" for event in events.values()),
        sandbox.namespace,
        what="the third one fits no card",
    )
    assert not any(
        item["spec"].get("nodeName") for item in sandbox.kube.list("Pod", sandbox.namespace)
    )
    manage(sandbox, n1=gpus(1))
    assert sorted(sandbox.bound(3).values()) == ["n0", "n0", "n1"]
    sandbox.empty()
    sandbox.kube.call("DELETE", f"{groups}/g")


# -- faults


@contextlib.contextmanager
def held_bindings(sandbox: Sandbox) -> Iterator[None]:
    """Lets no Binding of the namespace be written: the API server calls a webhook for them that does not answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        sandbox.kube.create(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": HELD},
                "webhooks": [
                    {
                        "name": "bindings.example.com",
                        "admissionReviewVersions": ["v1"],
                        "sideEffects": "None",
                        "failurePolicy": "Fail",
                        "timeoutSeconds": 30,
                        "clientConfig": {"url": f"https://127.0.0.1:{silent.getsockname()[1]}/"},
                        "namespaceSelector": {
                            "matchLabels": {"kubernetes.io/metadata.name": sandbox.namespace}
                        },
                        "rules": [
                            {
                                "apiGroups": [""],
                                "apiVersions": ["v1"],
                                "operations": ["CREATE"],
                                "resources": ["pods/binding"],
                            }
                        ],
                    }
                ],
            }
        )
        try:
            silent.setblocking(False)
            eventually(lambda: is_called(silent, sandbox), "the API server calls the webhook")
            yield
        finally:
            sandbox.kube.delete("MutatingWebhookConfiguration", HELD)


def is_called(silent: socket.socket, sandbox: Sandbox) -> bool:
    """Reports whether the API server calls the webhook *silent* for a Binding, here one of no pod."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "none"},
        "target": {"name": "none"},
    }
    with contextlib.suppress(ApiError, urllib3.exceptions.TimeoutError):
        sandbox.kube.call(
            "POST",
            path_of("Pod", sandbox.namespace, "none", "binding"),
            binding,
            query={"dryRun": "All"},
            timeout=1,
        )
    with contextlib.suppress(BlockingIOError):
        silent.accept()[0].close()
        return True
    return False


@cases("elsewhere", ("same-node", False), ("other-node", True))
def test_the_scheduler_is_killed_between_claim_and_binding(sandbox, replica, elsewhere):
    manage(sandbox, n0=gpus(1))
    with held_bindings(sandbox):
        sandbox.create(pod("p", gpu=1, gpumem=3000))
        wait_claims(
            sandbox,
            lambda claims: any(
                item.get("status", {}).get("allocation") for item in claims.values()
            ),
            "the claim is allocated",
        )
        replica.kill()
    assert not sandbox.pod("p")["spec"].get("nodeName")
    if elsewhere:
        manage(sandbox, n1=gpus(1))
        sandbox.kube.merge_patch(
            "Node", name_of(sandbox.node("n0")), {"spec": {"unschedulable": True}}
        )
    replica.start()
    # kube-scheduler tries again a minute after a filter that nobody answered
    assert sandbox.bound(1, timeout=240) == {"p": "n1" if elsewhere else "n0"}
    assert len(sandbox.kube.list("ResourceClaim", sandbox.namespace)) == 1


def test_the_scheduler_is_killed_while_pods_are_placed(sandbox, replica):
    manage(sandbox, **{f"n{number}": gpus(4) for number in range(4)})
    sandbox.create_all(pod(f"p{number}", gpu=1, gpumem=8000, gpucores=10) for number in range(60))
    sandbox.bound(10)
    replica.kill()
    replica.start()
    sandbox.bound(60, timeout=240)
