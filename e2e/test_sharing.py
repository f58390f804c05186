"""Pods share devices, and waiting pods have reasons."""

import contextlib

import pytest

from hami.scheduling.refusal_text import MAX_LENGTH
from testing.cases import cases
from testing.eventually import WaitTimeout
from testing.nodes import gpu, gpus
from testing.pods import container, init, pod, sidecar
from testing.sandbox import Share


@pytest.mark.installation
def test_two_pods_share_a_gpu_and_the_third_waits(sandbox):
    sandbox.add_gpu_node("gpu-0", gpu(slots=10, memory_mib=81_920))
    for name in ("a", "b", "c"):
        sandbox.create(pod(name, gpu=1, gpumem=32_000))
        if name != "c":
            sandbox.bound()
    assert sandbox.refusal("c", "too little free memory")
    assert sandbox.bound(wait_for=2) == {"a": "gpu-0", "b": "gpu-0"}
    assert sandbox.shares("a") == sandbox.shares("b") == [[Share("gpu-0/0", 32_000, 0)]]


@pytest.mark.installation
def test_a_waiting_pod_gets_the_card_when_another_ends(sandbox):
    """Repeated, because kube-scheduler may learn of the end before our cache, retry at once, and then
    not for minutes."""
    sandbox.add_gpu_node("gpu-0", gpu(memory_mib=81_920))
    sandbox.create(pod("p0", gpu=1, gpumem=50_000))
    sandbox.started()
    for number in range(10):
        sandbox.create(pod(f"p{number + 1}", gpu=1, gpumem=50_000))
        sandbox.refusal(f"p{number + 1}")
        sandbox.delete(f"p{number}")
        assert sandbox.started() == {f"p{number + 1}": "gpu-0"}


@cases(
    "limits, holds",
    ("cores", {"gpu": 1, "gpumem": 3000, "gpucores": 30}, Share("gpu-0/0", 3000, 30)),
    ("a-bare-gpu-is-the-whole-card", {"gpu": 1}, Share("gpu-0/0", 46_068, 100)),
    ("cores-alone-mean-one-gpu", {"gpucores": 40, "percent": 50}, Share("gpu-0/0", 23_034, 40)),
)
def test_a_pod_holds_what_it_asked_for(sandbox, limits, holds):
    sandbox.add_gpu_node("gpu-0", gpu(memory_mib=46_068, model="NVIDIA A40"))
    sandbox.create(pod("a", **limits))
    sandbox.started()
    assert sandbox.shares("a") == [[holds]]


@cases(
    "first, second, reason",
    ("percent", {"percent": 60}, {"percent": 41}, "too little free memory"),
    (
        "wants-it-alone",
        {"gpumem": 9},
        {"gpumem": 9, "gpucores": 100},
        "cannot be used exclusively",
    ),
)
def test_a_pod_that_does_not_fit_waits_and_its_events_say_why(sandbox, first, second, reason):
    sandbox.add_gpu_node("gpu-0", gpu(memory_mib=81_920))
    sandbox.create(pod("first", gpu=1, **first))
    sandbox.started()
    sandbox.create(pod("second", gpu=1, **second))
    assert sandbox.refusal("second", reason)


def test_no_more_containers_than_slots(sandbox):
    sandbox.add_gpu_node("gpu-0", gpu(slots=2))
    for name in ("a", "b"):
        sandbox.create(pod(name, gpu=1, gpumem=1000))
    sandbox.started()
    sandbox.create(pod("c", gpu=1, gpumem=1000))
    assert sandbox.refusal("c", "no free slot")


def test_the_gpus_of_a_container_are_different_cards(sandbox):
    sandbox.add_gpu_node("gpu-0", *gpus(4))
    sandbox.create(pod("a", gpu=3, gpumem=1000))
    sandbox.started()
    assert len(sandbox.cards("a")) == 3


def test_more_gpus_than_the_node_has(sandbox):
    sandbox.add_gpu_node("gpu-0", *gpus(2))
    sandbox.create(pod("a", gpu=3, gpumem=1000))
    assert "NodeInsufficientDevice" in sandbox.event(
        "a", "FailedScheduling", "NodeInsufficientDevice"
    )
    assert sandbox.refusal("a", "1 node has fewer devices than requested")


def test_unhealthy_and_cordoned_cards_are_not_used(sandbox):
    sandbox.add_gpu_node("gpu-0", gpu(healthy=False), gpu(), gpu())
    sandbox.annotate_node("gpu-0", {"hami.io/device-cordon": sandbox.uuid("gpu-0", 1)})
    sandbox.create(pod("a", gpu=1, gpumem=1000))
    sandbox.started()
    assert sandbox.cards("a") == {"gpu-0/2"}
    sandbox.create(pod("b", gpu=2, gpumem=1000))
    assert sandbox.refusal("b", "unhealthy")
    assert sandbox.refusal("b", "cordoned")


def test_each_container_has_its_own_entry(sandbox):
    sandbox.add_gpu_node("gpu-0", *gpus(2))
    sandbox.create(
        pod(
            "a",
            containers=[
                container("log"),
                container("train", gpu=1, gpumem=3000, gpucores=30),
                container("serve", gpu=1, gpumem=5000),
            ],
        )
    )
    sandbox.started()
    log, train, serve = sandbox.shares("a")
    assert log == []
    assert [(share.memory_mib, share.cores) for share in train + serve] == [(3000, 30), (5000, 0)]


def test_init_containers_come_first_and_only_their_peak_counts(sandbox):
    sandbox.add_gpu_node("gpu-0", gpu(memory_mib=81_920))
    sandbox.create(
        pod(
            "a",
            inits=[init("load", gpu=1, gpumem=80_000), init("warm", gpu=1, gpumem=60_000)],
            containers=[container("main", gpu=1, gpumem=40_000)],
        )
    )
    sandbox.started()
    assert [share.memory_mib for (share,) in sandbox.shares("a")] == [80_000, 60_000, 40_000]
    sandbox.create(
        pod("b", gpu=1, gpumem=41_920)
    )  # the init containers have ended: only the app counts
    assert sandbox.started() == {"a": "gpu-0", "b": "gpu-0"}


def test_a_sidecar_counts_beside_the_app(sandbox):
    sandbox.add_gpu_node("gpu-0", gpu(memory_mib=81_920))
    sandbox.create(
        pod(
            "too-much",
            inits=[sidecar("proxy", gpu=1, gpumem=50_000)],
            containers=[container("main", gpu=1, gpumem=40_000)],
        )
    )
    assert sandbox.refusal("too-much", "too little free memory")
    sandbox.delete("too-much")
    sandbox.create(
        pod(
            "fits",
            inits=[sidecar("proxy", gpu=1, gpumem=50_000)],
            containers=[container("main", gpu=1, gpumem=30_000)],
        )
    )
    assert sandbox.started() == {"fits": "gpu-0"}
    sandbox.create(pod("next", gpu=1, gpumem=2000))
    assert sandbox.refusal("next", "too little free memory")


@pytest.mark.installation
def test_the_refusal_counts_devices_by_reason(sandbox):
    small = [gpu(memory_mib=8000)]
    sandbox.add_gpu_nodes({"small-0": small, "small-1": small, "sick": [gpu(healthy=False)]})
    sandbox.create(pod("a", gpu=1, gpumem=10_000))
    said = sandbox.refusal("a")
    assert said.startswith(
        "1 × NVIDIA with 10,000 MiB fits none of 3 nodes: "
        "2 of 3 devices have too little free memory, 1 is unhealthy; the nearest, device 0 of "
    )
    assert said.endswith("small-0, lacks 2,000 MiB")
    failed = sandbox.event("a", "FailedScheduling", "CardInsufficientMemory")
    assert failed.startswith("0/")
    for counted in ("1 1/1 CardNotHealth", "2 1/1 CardInsufficientMemory"):
        assert counted in failed  # among the reasons of other nodes


def refused_again(sandbox, words):
    """Has kube-scheduler try the pod ``large`` until its refusal has *words*.

    It may learn of the end of a pod before our cache, retry at once, and then not for minutes: no place becomes free
    for this pod, of which we would tell it.
    """
    for number in range(12):
        tried = {"metadata": {"labels": {"tried": str(number)}}}
        sandbox.kube.merge_patch("Pod", "large", tried, sandbox.namespace)
        with contextlib.suppress(WaitTimeout):
            return sandbox.refusal("large", words, timeout=5)
    return sandbox.refusal("large", words)


def test_a_pod_that_waits_has_one_event_that_is_updated(sandbox):
    """However often kube-scheduler tries it, and whatever has changed between."""
    sandbox.add_gpu_node("gpu-0", gpu(memory_mib=80_000))
    for name, memory in (("a", 10_000), ("b", 20_000), ("c", 30_000)):
        sandbox.create(pod(name, gpu=1, gpumem=memory))
    sandbox.started()
    sandbox.create(pod("large", gpu=1, gpumem=90_000, annotations={"nvidia.com/gpumen": "x"}))
    for name, lacks in (("a", "70,000"), ("b", "60,000"), ("c", "40,000"), ("", "10,000")):
        said = refused_again(sandbox, f"lacks {lacks} MiB")
        assert sandbox.uuid("gpu-0") not in said
        assert len(said) <= MAX_LENGTH
        if name:
            sandbox.delete(name)
    events = sandbox.kube.list(
        "Event", sandbox.namespace, fieldSelector="involvedObject.name=large"
    )
    ours = {event["reason"]: event for event in events if event["reason"] != "FailedScheduling"}
    assert len(ours) == len([event for event in events if event["reason"] in ours])
    assert len(ours) <= 4
    assert ours["FilteringFailed"]["count"] >= 4


def test_a_pod_without_gpu_needs_no_extender(sandbox):
    sandbox.add_gpu_node("gpu-0")
    sandbox.create(pod("a", scheduler="hami-scheduler"))
    assert sandbox.bound() == {"a": "gpu-0"}
    assert sandbox.shares("a") == []
