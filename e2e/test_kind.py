"""A complete installation is rolled out, upgraded, removed and installed again, while pods run on real kubelets and
others are created.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from testing import audit
from testing.cluster import SCHEDULER
from testing.kind import NAMESPACE, KindCluster, Worker
from testing.kube import ApiError, Kube, path_of
from testing.nodes import REGISTER, gpu, gpus
from testing.pods import pod
from testing.sandbox import Sandbox
from testing.scheduler import EXTENDER, lease_holder
from testing.shown import limits, seen, shower

pytestmark = [pytest.mark.kind, pytest.mark.installation]
Object = dict[str, Any]
RESOURCE = "nvidia.com/gpu"
HOOK = "/usr/local"
CARDS, SLOTS = 2, 10
ALLOCATED = "hami.io/vgpu-devices-allocated"
REAL, FAKE = {"type": "kind"}, {"type": "kwok"}
LEASE_LOST = "Leaderelection lost"
"""With this, a kube-scheduler ends that could not renew its Lease for some seconds, as when the machine is busy."""


def show(name: str, **asked: int | str) -> Object:
    """Returns a pod for a node with a kubelet, whose container prints its view."""
    return on(REAL, shower(HOOK, name, **asked))


def on(nodes: Mapping[str, str], item: Object) -> Object:
    return {**item, "spec": {**item["spec"], "nodeSelector": dict(nodes)}}


@pytest.fixture
def worker(on_kind: KindCluster, sandbox: Sandbox) -> Iterator[Worker]:
    """A node of kind that is reserved for this test and offers all its slices."""
    node = on_kind.workers[0]
    node.wait_ready()
    node.wait_allocatable(RESOURCE, CARDS * SLOTS, timeout=120)
    with node.lent(sandbox):
        yield node
        found = audit.audit(sandbox.kube)
    assert not found, "the auditor found:\n" + "\n".join(found)


def allocated(sandbox: Sandbox, *names: str) -> dict[str, str]:
    return {name: sandbox.pod(name)["metadata"]["annotations"][ALLOCATED] for name in names}


def restarts(sandbox: Sandbox, *names: str) -> list[int]:
    return [
        status["restartCount"]
        for name in names
        for status in sandbox.pod(name)["status"]["containerStatuses"]
    ]


def holders(kube: Any) -> set[str]:
    """Returns the holders of the Leases of kube-scheduler and extender."""
    return {lease_holder(kube, name).partition("_")[0] for name in (SCHEDULER, EXTENDER)}


class Arrivals:
    """Creates numbered pods on fake nodes until the end of the context."""

    def __init__(self, cluster: KindCluster, sandbox: Sandbox) -> None:
        self._cluster = cluster
        self._sandbox = sandbox
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._create, name="arrivals", daemon=True)
        self.names: list[str] = []
        self.refused: list[str] = []

    def __enter__(self) -> Arrivals:
        self._sandbox.add_gpu_nodes({f"n{number}": gpus(8, slots=100) for number in range(4)})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _create(self) -> None:
        while not self._ended.wait(0.3):
            name = f"arrival-{len(self.names)}"
            try:
                self._sandbox.create(on(FAKE, pod(name, gpu=1, gpumem=100)))
                self.names.append(name)
            except Exception as error:  # reported by the test
                self.refused.append(f"{name}: {error}")

    def all_placed(self) -> None:
        """Checks that our webhook has admitted every pod, and that each has its devices."""
        assert self.refused == []
        assert len(self.names) > 10
        pods = {
            item["metadata"]["name"]: item
            for item in self._sandbox.kube.list("Pod", self._sandbox.namespace)
        }
        missed = {
            name: pods[name]["metadata"]["creationTimestamp"]
            for name in self.names
            if pods[name]["spec"]["schedulerName"] != SCHEDULER
        }
        assert not missed, f"{missed}\n{self._cluster.webhook_failures()}"
        started = self._sandbox.kube.wait(
            "Pod",
            lambda found: all(found[name]["spec"].get("nodeName") for name in self.names),
            self._sandbox.namespace,
            what="all pods that arrived are bound",
        )
        assert started


@contextlib.contextmanager
def arriving(cluster: KindCluster, sandbox: Sandbox) -> Iterator[None]:
    """Creates pods in the background; all of them must be placed in the end."""
    with Arrivals(cluster, sandbox) as arrivals:
        yield
    arrivals.all_placed()


def test_a_pod_runs_right_after_the_installation(on_kind):
    scheduler = on_kind.kube.get("Deployment", SCHEDULER, NAMESPACE)
    assert scheduler["status"]["readyReplicas"] == 2
    names = {item["metadata"]["name"] for item in on_kind.pods_of(SCHEDULER)}
    assert holders(on_kind.kube) <= names
    for worker in on_kind.workers:
        worker.wait_allocatable(RESOURCE, CARDS * SLOTS)
    webhook = on_kind.kube.get("MutatingWebhookConfiguration", "hami-webhook")
    assert all(entry["clientConfig"].get("caBundle") for entry in webhook["webhooks"])
    ended = [
        (item["metadata"]["name"], status["name"])
        for item in on_kind.pods_of(SCHEDULER) + on_kind.pods_of("hami-device-plugin")
        for status in item["status"]["containerStatuses"]
        if status["restartCount"]
    ]
    last_words = {
        name: on_kind.kubectl("logs", "--namespace", NAMESPACE, *name, "--previous")
        for name in ended
    }
    assert [words for words in last_words.values() if LEASE_LOST not in words] == []


def test_a_container_gets_its_slice(sandbox, worker):
    sandbox.create(show("plain"), show("asking", gpu=1, gpumem=3000, gpucores=30))
    sandbox.running("plain", "asking", timeout=120)
    plain, asking = seen(sandbox, worker, "plain"), seen(sandbox, worker, "asking")
    granted = {key: value for key, value in asking.env.items() if key not in plain.env}
    assert granted.pop("CUDA_DEVICE_MEMORY_SHARED_CACHE").startswith(f"{HOOK}/vgpu/")
    card = granted.pop("NVIDIA_VISIBLE_DEVICES")
    assert card.startswith("GPU-")
    assert f"{card},NVIDIA,3000,30:" in allocated(sandbox, "asking")["asking"]
    assert granted == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "LIBCUDA_LOG_LEVEL": "1",
    }
    assert asking.library.startswith("ELF")


def test_pods_share_the_cards_of_a_worker_and_one_too_many_waits(sandbox, worker):
    names = [f"p{number}" for number in range(4)]
    sandbox.create_all(
        show(name, gpu=1, gpumem=40_000 + number) for number, name in enumerate(names)
    )
    sandbox.running(*names, timeout=120)
    assert limits(sandbox, worker, *names) == [(f"{40_000 + number}m", "0") for number in range(4)]
    sandbox.create(show("late", gpu=1, gpumem=40_000))
    assert sandbox.refusal("late", "too little free memory")
    sandbox.delete("p0")
    sandbox.running("late", timeout=120)


def test_the_kubelet_is_killed_under_running_pods(sandbox, worker):
    sandbox.create(show("a", gpu=1, gpumem=1000))
    before = sandbox.running("a", timeout=120)
    worker.restart_kubelet()  # before the plugin has registered, the kubelet rejects pods with devices
    sandbox.create(show("b", gpu=1, gpumem=2000))
    assert sandbox.running("a", "b", timeout=120)[:1] == before
    assert limits(sandbox, worker, "a", "b") == [("1000m", "0"), ("2000m", "0")]


@pytest.mark.parametrize("workload", ["deployment/hami-scheduler", "daemonset/hami-device-plugin"])
def test_rollout_under_load(on_kind, sandbox, worker, workload):
    sandbox.create(show("a", gpu=1, gpumem=1000), show("b", gpu=2, gpumem=2000))
    before, held = sandbox.running("a", "b", timeout=120), allocated(sandbox, "a", "b")
    with arriving(on_kind, sandbox):
        on_kind.restart(workload)
        worker.wait_allocatable(RESOURCE, CARDS * SLOTS, timeout=120)
        sandbox.create(show("c", gpu=1, gpumem=3000))
        assert sandbox.running("a", "b", "c", timeout=120)[:2] == before
    assert allocated(sandbox, "a", "b") == held
    assert restarts(sandbox, "a", "b", "c") == [0, 0, 0]


def test_upgrade_in_place(on_kind, sandbox, worker):
    sandbox.create(show("a", gpu=1, gpumem=1000), show("b", gpu=2, gpumem=2000))
    before, held = sandbox.running("a", "b", timeout=120), allocated(sandbox, "a", "b")
    on_kind.tag_images("next")
    try:
        with arriving(on_kind, sandbox):
            on_kind.install("next")
            worker.wait_allocatable(RESOURCE, CARDS * SLOTS, timeout=120)
            sandbox.create(show("c", gpu=1, gpumem=79_920))
            assert sandbox.running("a", "b", "c", timeout=120)[:2] == before
        images = {
            status["image"].rpartition(":")[2]
            for item in on_kind.pods_of(SCHEDULER)
            for status in item["spec"]["containers"]
            if status["name"] == "extender"
        }
        assert images == {"next"}
        assert allocated(sandbox, "a", "b") == held
        assert restarts(sandbox, "a", "b", "c") == [0, 0, 0]
        # c is alone on a device only if the allocations of the first two are known: 2 + 1 GB and 2 GB
        sandbox.create(show("d", gpu=1, gpumem=79_920))
        assert sandbox.refusal("d", "too little free memory")
    finally:
        on_kind.install()


def set_failure_policy(kube: Kube, policy: str) -> None:
    path = path_of("MutatingWebhookConfiguration", name="hami-webhook")
    kube.call(
        "PATCH",
        path,
        {"webhooks": [{"name": "vgpu.hami.io", "failurePolicy": policy}]},
        content_type="application/strategic-merge-patch+json",
    )


def test_the_webhook_is_unavailable_and_returns(on_kind, sandbox, worker):
    """Other pods are placed. A pod that requests devices waits, has an event, and uses nothing; or it is rejected, with
    failurePolicy Fail.
    """
    sandbox.create(show("a", gpu=1, gpumem=1000))
    before = sandbox.running("a", timeout=120)
    on_kind.scale(0)
    try:
        sandbox.create(on(REAL, pod("plain")), on(REAL, pod("missed", gpu=1, gpumem=1000)))
        sandbox.running("plain", timeout=120)
        assert not sandbox.pod("missed")["spec"].get("nodeName")
        set_failure_policy(on_kind.kube, "Fail")
        sandbox.create(on(REAL, pod("as-plain")))
        with pytest.raises(ApiError, match="failed calling webhook"):
            sandbox.create(on(REAL, pod("refused", gpu=1, gpumem=1000)))
    finally:
        set_failure_policy(on_kind.kube, "Ignore")
        on_kind.scale(2)
    assert "webhook" in sandbox.event("missed", "NotAdmitted")
    sandbox.create(show("b", gpu=1, gpumem=2000))
    assert sandbox.running("a", "b", timeout=120)[:1] == before
    assert limits(sandbox, worker, "b") == [("2000m", "0")]


def test_uninstall_and_install_again(on_kind, sandbox, worker):
    sandbox.create(show("a", gpu=2, gpumem=60_000))
    before, held = sandbox.running("a", timeout=120), allocated(sandbox, "a")
    on_kind.uninstall()
    try:
        assert on_kind.kube.find("MutatingWebhookConfiguration", "hami-webhook") is None
        worker.wait_allocatable(RESOURCE, 0, timeout=120)
    finally:
        on_kind.install()
    worker.wait_allocatable(RESOURCE, CARDS * SLOTS, timeout=120)
    sandbox.create(show("b", gpu=1, gpumem=30_000))
    assert sandbox.refusal("b", "too little free memory")
    sandbox.create(show("c", gpu=1, gpumem=20_000))
    assert sandbox.running("a", "c", timeout=120)[:1] == before
    assert allocated(sandbox, "a") == held
    assert restarts(sandbox, "a", "c") == [0, 0]


class Hami:
    """A holder of the Lease of HAMi's scheduler that renews it and places nothing."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="hami", daemon=True)
        self.renewals = 0

    def __enter__(self) -> Hami:
        self._kube.delete("Lease", SCHEDULER, NAMESPACE)
        self._kube.create(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": SCHEDULER},
                "spec": {"holderIdentity": "hami", "leaseDurationSeconds": 15, **now()},
            },
            NAMESPACE,
        )
        self._renewing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Stops and releases the Lease, as HAMi does at exit."""
        if not self._ended.is_set():
            self._ended.set()
            self._renewing.join()
            freed = {"holderIdentity": "", "leaseDurationSeconds": 1}
            self._kube.merge_patch("Lease", SCHEDULER, {"spec": freed}, NAMESPACE)

    def _renew(self) -> None:
        while not self._ended.wait(1):
            self._kube.merge_patch("Lease", SCHEDULER, {"spec": now()}, NAMESPACE)
            self.renewals += 1


def now() -> Object:
    return {"renewTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"}


def of_hami(sandbox: Sandbox, name: str, node: str, memory_mib: int) -> Object:
    """Returns a pod that HAMi has placed on the first device of *node*."""
    share = f"{sandbox.uuid(node)},NVIDIA,{memory_mib},0:;"
    placed = str(int(datetime.now(UTC).timestamp()))
    made = pod(
        name,
        gpu=1,
        gpumem=memory_mib,
        scheduler=SCHEDULER,
        node_name=node,
        annotations={
            "hami.io/vgpu-node": sandbox.node(node)["metadata"]["name"],
            "hami.io/vgpu-time": placed,
            "hami.io/bind-time": placed,
            "hami.io/bind-phase": "success",
            ALLOCATED: share,
            "hami.io/vgpu-devices-to-allocate": ";",
        },
    )
    return on(FAKE, made)


def test_takeover_from_hami_and_return(on_kind, sandbox, agent):
    """Ours waits while HAMi leads, continues with its allocations, and leaves allocations that HAMi can read."""
    on_kind.uninstall()
    try:
        agent.answers_handshake = True
        sandbox.add_gpu_nodes({"json": [gpu(memory_mib=80_000)], "text": [gpu(memory_mib=80_000)]})
        sandbox.annotate_node(
            "text", {REGISTER: f"{sandbox.uuid('text')},10,80000,100,NVIDIA-A100,0,true:"}
        )
        with Hami(on_kind.kube) as hami:
            sandbox.create(
                of_hami(sandbox, "a", "json", 60_000), of_hami(sandbox, "b", "text", 70_000)
            )
            held = allocated(sandbox, "a", "b")
            with on_kind.beside_hami():
                sandbox.create(
                    on(FAKE, pod("c", gpu=1, gpumem=15_000)),
                    on(FAKE, pod("d", gpu=1, gpumem=25_000)),
                )
                assert sandbox.pod("c")["spec"]["schedulerName"] == SCHEDULER
                renewed = hami.renewals
                sandbox.kube.wait(
                    "Lease", lambda leases: hami.renewals > renewed + 5, NAMESPACE, what="renewed"
                )
                assert not sandbox.pod("c")["spec"].get("nodeName"), "placed although HAMi leads"
                hami.leave()
                assert sandbox.started(wait_for=3)["c"] == "json"
                assert sandbox.refusal("d", "too little free memory")
        assert allocated(sandbox, "a", "b") == held
        assert audit.parse(allocated(sandbox, "c")["c"])[0][0].memory == 15_000
    finally:
        on_kind.install()
