"""Start-time mode on a real kubelet and a runtime with CDI: what containers get, and how errors look.

Pods are bound as our scheduler binds them on a lock-free node, or as HAMi's does. Most tests hold a pod in an init
container after its devices were allocated, so that something can happen before the container with the devices starts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from hami.codec.keys import ASSIGNED_NODE
from testing.device_plugin import CHECKPOINT, HOOK, RESOURCE, SLOTS, cards
from testing.eventually import eventually
from testing.placing import (
    ALLOCATED,
    LOCK,
    LOCK_FREE,
    PHASE,
    REMAINING,
    Part,
    place,
    place_as_upstream,
)
from testing.pods import container, init, pod, replica_set, sidecar
from testing.realnode import RealNode
from testing.restarts import held, holding, kill_container, release, restarted, views
from testing.sandbox import Sandbox
from testing.shown import limits, script, seen, shower, showing

pytestmark = pytest.mark.kind
Object = dict[str, Any]
FIRST, SECOND = cards(2)
CDI = "/run/cdi"
OURS = "hami.io-container-*.json"
LATE_S = 15.0
WAITS = "none has registered such devices"
PLACES = "hami.io/vgpu-mig-allocations"


def annotations(item: Object) -> dict[str, str]:
    return item["metadata"].get("annotations") or {}


def refusal(sandbox: Sandbox, name: str, containing: str) -> str:
    """Waits until the kubelet says why the container does not start; the pod must not fail."""
    message = sandbox.event(name, "Failed", containing)
    assert "PreStartContainer" in message

    def waits(pods: dict[str, Object]) -> bool:
        return [
            status["state"].get("waiting", {}).get("reason")
            for status in pods[name]["status"]["containerStatuses"]
        ] == ["CreateContainerConfigError"]

    sandbox.kube.wait("Pod", waits, sandbox.namespace, what=f"{name} waits")
    assert sandbox.pod(name)["status"]["phase"] == "Pending"
    return message


def specifications(real: RealNode) -> list[str]:
    return sorted(path.name for path in real.path(CDI).glob(OURS))


def names_in_checkpoint(real: RealNode) -> int:
    data = json.loads(real.path(CHECKPOINT).read_text())
    return len(data["Data"]["PodDeviceEntries"] or [])


def one(
    sandbox: Sandbox, real: RealNode, name: str, memory: int, make: Callable[..., Object] = shower
) -> None:
    """Places a pod with a part of the first GPU."""
    item = held(name, gpumem=memory) if make is held else make(HOOK, name, gpu=1, gpumem=memory)
    parts = [Part(FIRST.uuid, memory)]
    place(sandbox, real, item, *([[], parts] if make is held else [parts]))


# ---- the node


def test_the_node_says_that_it_needs_no_lock(real, plugin):
    real.wait_node(lambda node: annotations(node).get(LOCK_FREE) == "NVIDIA", what="lock-free")
    assert '"mode of allocation"' in plugin.log()
    assert "allocate=start" in plugin.log()
    real.kube.merge_patch(
        "Node", real.name, {"metadata": {"annotations": {LOCK_FREE: "DCU,NVIDIA"}}}
    )
    plugin.stop()
    plugin.start(allocate="admission").wait_offered(2 * SLOTS)
    real.wait_node(
        lambda node: annotations(node).get(LOCK_FREE) == "DCU", what="not lock-free for NVIDIA"
    )
    plugin.stop()
    plugin.start().wait_offered(2 * SLOTS)
    real.wait_node(
        lambda node: annotations(node).get(LOCK_FREE) == "DCU,NVIDIA", what="lock-free again"
    )
    real.kube.merge_patch("Node", real.name, {"metadata": {"annotations": {LOCK_FREE: None}}})


# ---- every container its own


@pytest.mark.parametrize("plugin", [4], indirect=True, ids=["four cards"])
@pytest.mark.parametrize("burst", range(5))
def test_forty_pods_at_once_get_their_own_name_card_and_limits(sandbox, real, plugin, burst):
    names = [f"p{number:02}" for number in range(40)]
    wanted = [
        Part(card.uuid, 1000 + number + 100 * burst, 1 + number // 5)
        for number, card in zip(range(40), cycle(plugin.cards))
    ]
    for name, part in zip(names, wanted, strict=True):
        place(
            sandbox,
            real,
            shower(HOOK, name, gpu=1, gpumem=part.memory_mib, gpucores=part.cores),
            [part],
        )
    sandbox.running(*names, timeout=300)
    views = [seen(sandbox, real, name) for name in names]
    assert [view.limit for view in views] == [
        (part.card, f"{part.memory_mib}m", str(part.cores)) for part in wanted
    ]
    assert len({view.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] for view in views}) == 40
    for name, view in zip(names, views, strict=True):
        uid = sandbox.pod(name)["metadata"]["uid"]
        assert view.mounts[f"{HOOK}/vgpu/limits"] == (
            f"{HOOK}/vgpu/containers/{uid}_main/limits",
            False,
        )
    pods = sandbox.kube.list("Pod", sandbox.namespace)
    assert [
        status["restartCount"] for item in pods for status in item["status"]["containerStatuses"]
    ] == [0] * 40


def test_containers_that_inherit_device_ids_get_their_own_limits(sandbox, real, plugin):
    script_of = {"command": ["sh", "-c", script(HOOK)]}
    item = pod(
        "several",
        inits=[
            init("first", gpu=1, gpumem=1001) | script_of,
            sidecar("side", gpu=1, gpumem=1002)
            | {"command": ["sh", "-c", script(HOOK) + "sleep inf"]},
            init("second", gpu=2, gpumem=1003) | script_of,
        ],
        containers=[
            showing(HOOK, "a", gpu=1, gpumem=1004),
            showing(HOOK, "plain"),
            showing(HOOK, "b", gpu=2, gpumem=1005),
        ],
    )
    both = [[Part(card.uuid, memory) for card in (FIRST, SECOND)] for memory in (1003, 1005)]
    place(
        sandbox,
        real,
        item,
        [Part(FIRST.uuid, 1001)],
        [Part(SECOND.uuid, 1002)],
        both[0],
        [Part(FIRST.uuid, 1004)],
        [],
        both[1],
    )
    sandbox.running("several")
    found = {
        name: seen(sandbox, real, "several", name).env
        for name in ("first", "side", "second", "a", "plain", "b")
    }
    assert "NVIDIA_VISIBLE_DEVICES" not in found.pop("plain")
    assert {
        name: (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"])
        for name, env in found.items()
    } == {
        "first": (FIRST.uuid, "1001m"),
        "side": (SECOND.uuid, "1002m"),
        "a": (FIRST.uuid, "1004m"),
        "second": (f"{FIRST.uuid},{SECOND.uuid}", "1003m"),
        "b": (f"{FIRST.uuid},{SECOND.uuid}", "1005m"),
    }


def test_variables_of_the_pod_are_preferred_as_before(sandbox, real, plugin):
    item = shower(HOOK, "a", gpu=1, gpumem=1000)
    (container,) = item["spec"]["containers"]
    container["env"] = [
        {"name": name, "value": value}
        for name, value in (("LIBCUDA_LOG_LEVEL", "4"), ("CUDA_DEVICE_MEMORY_LIMIT_0", "9m"))
    ]
    place(sandbox, real, item, [Part(FIRST.uuid, 1000)])
    sandbox.running("a")
    env = seen(sandbox, real, "a").env
    assert (env["LIBCUDA_LOG_LEVEL"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]) == ("4", "1000m")


def test_a_mig_instance_is_created_when_its_container_starts(sandbox, real, plugin):
    profile = {
        "name": "1g.10gb",
        "memory": 9728,
        "cores": 15,
        "slices": 1,
        "placements": [{"start": start, "size": 1} for start in range(7)],
    }
    plugin.stop()
    plugin.insert(replace(FIRST, mig={"enabled": True, "profiles": [profile]}))
    plugin.start(operating_mode="mig").wait_offered(SLOTS)
    item = held("a", gpumem=9728)
    item["metadata"]["annotations"][PLACES] = json.dumps(
        [
            {
                "containerIndex": 1,
                "deviceIndex": 0,
                "gpuUUID": FIRST.uuid,
                "profile": "1g.10gb",
                "placement": {"start": 3, "size": 1},
            }
        ]
    )
    place(sandbox, real, item, [], [Part(FIRST.uuid, 9728, 15)])
    holding(sandbox, "a")
    assert "migUUID" not in annotations(sandbox.pod("a"))[PLACES]
    release(sandbox, real, "a")
    sandbox.running("a")
    (place_of,) = json.loads(annotations(sandbox.pod("a"))[PLACES])
    env = seen(sandbox, real, "a").env
    assert env["NVIDIA_VISIBLE_DEVICES"] == place_of["migUUID"].removesuffix("\n") != ""
    assert not [key for key in env if key.startswith("CUDA_")]
    before = kill_container(sandbox, real, "a")
    restarted(sandbox, "a", before)
    assert (
        real.output(sandbox.pod("a")).count(f"NVIDIA_VISIBLE_DEVICES={place_of['migUUID']}\n") >= 1
    )


# ---- restarts


def test_a_container_starts_again_with_the_same_limits(sandbox, real, plugin):
    one(sandbox, real, "a", 1000)
    sandbox.running("a")
    files = specifications(real)
    restarted(sandbox, "a", kill_container(sandbox, real, "a"))
    assert views(sandbox, real, "a", 2) == ["1000m"] * 2
    assert specifications(real) == files


def test_a_container_waits_for_a_plugin_that_is_down(sandbox, real, plugin):
    one(sandbox, real, "a", 1000)
    sandbox.running("a")
    plugin.kill()
    before = kill_container(sandbox, real, "a")
    assert "PreStartContainer" in sandbox.event("a", "Failed", "stopped")
    plugin.start()
    restarted(sandbox, "a", before)
    assert views(sandbox, real, "a", 2) == ["1000m"] * 2


def test_the_kubelet_is_restarted_while_a_pod_waits(sandbox, real, plugin):
    one(sandbox, real, "a", 1000)
    one(sandbox, real, "b", 2000, held)
    sandbox.running("a")
    holding(sandbox, "b")
    real.kill_kubelet()
    before = kill_container(sandbox, real, "a")
    plugin.restart_kubelet(2 * SLOTS)
    restarted(sandbox, "a", before)
    release(sandbox, real, "b")
    sandbox.running("b")
    assert views(sandbox, real, "a", 2) == ["1000m"] * 2
    assert limits(sandbox, real, "b") == [("2000m", "0")]


def test_the_kubelet_is_restarted_without_the_plugin(sandbox, real, plugin):
    """It does not call the plugin then: the container finds the specification of its first start."""
    one(sandbox, real, "a", 1000)
    sandbox.running("a")
    plugin.kill()
    real.kill_kubelet()
    real.start_kubelet()
    real.wait_ready()
    restarted(sandbox, "a", kill_container(sandbox, real, "a"))
    assert views(sandbox, real, "a", 2) == ["1000m"] * 2
    plugin.start().wait_offered(2 * SLOTS)


def test_containerd_is_restarted(sandbox, real, plugin):
    """Containers go on; those that start later get their own limits."""
    one(sandbox, real, "a", 1000)
    one(sandbox, real, "b", 2000, held)
    before = sandbox.running("a")
    holding(sandbox, "b")
    views(sandbox, real, "a", 1)
    real.restart_containerd()
    assert sandbox.running("a") == before
    release(sandbox, real, "b")
    sandbox.running("b")
    restarted(sandbox, "a", kill_container(sandbox, real, "a"))
    assert views(sandbox, real, "a", 2) == ["1000m"] * 2
    assert limits(sandbox, real, "b") == [("2000m", "0")]


def ended(name, after):
    """Returns a pod whose init container had a GPU and has ended, and whose container *after* runs."""
    first = showing(HOOK, "init", "true", gpu=1, gpumem=1000)
    return pod(name, inits=[first], containers=[after])


@pytest.fixture
def replicas(sandbox, plugin):
    """The names of two pods of a ReplicaSet."""
    sandbox.create(replica_set("r", shower(HOOK, "r", gpu=1, gpumem=2000), count=2))
    yield set(sandbox.started(wait_for=2))
    sandbox.kube.delete("ReplicaSet", "r", sandbox.namespace)


def pods_of(sandbox):
    found = sandbox.kube.list("Pod", sandbox.namespace)
    return {item["metadata"]["name"]: item for item in found}


def rejected(pods):
    """Returns the names of the pods that the kubelet has rejected for good."""
    found = set()
    for name, item in pods.items():
        if item["status"].get("reason") == "UnexpectedAdmissionError":
            assert item["status"]["phase"] == "Failed"
            found.add(name)
    return found


@pytest.mark.parametrize("is_late", [False, True], ids=["soon", "much later"])
def test_the_node_reboots(sandbox, real, plugin, replicas, is_late):
    """The kubelet rejects all pods of which a container has had devices, also an init container that has ended. What
    a controller makes in their place waits until the plugin is there; pods without one are told what to do."""
    bare = {
        "app": shower(HOOK, "app", gpu=1, gpumem=1000),
        "sidecar": pod("sidecar", inits=[sidecar(gpu=1, gpumem=1000)], containers=[container()]),
        "ended": ended("ended", showing(HOOK, gpu=1, gpumem=1000)),
        "ended-alone": ended("ended-alone", container()),
    }
    sandbox.create(*bare.values())
    sandbox.running(*bare)
    plugin.kill()
    real.wait_allocatable(RESOURCE, 0)  # nothing new is bound to the node
    real.reboot()
    sandbox.kube.wait(
        "Pod",
        lambda pods: rejected(pods) == {*bare, *replicas} and len(pods) == len(bare) + 4,
        sandbox.namespace,
        what="all pods are rejected, and two replacements wait",
    )
    one, other = set(pods_of(sandbox)) - {*bare, *replicas}
    real.wait_ready()
    sandbox.refusal(one, WAITS)
    if is_late:
        sandbox.create(shower(HOOK, "new", gpu=1, gpumem=1000))
        sandbox.refusal("new", WAITS)
        sandbox.refusal(other, WAITS)
        time.sleep(LATE_S)
    assert rejected(pods_of(sandbox)) == {*bare, *replicas}
    plugin.start().wait_offered(2 * SLOTS)
    sandbox.running(one, other, *(["new"] if is_late else []))
    sandbox.kube.wait(
        "Pod",
        lambda pods: rejected(pods) == set(bare) and not replicas & set(pods),
        sandbox.namespace,
        what="the rejected pods of the ReplicaSet are gone, and no other",
    )
    for name in bare:
        assert "or with a claim" in sandbox.event(name, "DevicesNotReady")
    assert limits(sandbox, real, one, other) == [("2000m", "0")] * 2


@pytest.mark.parametrize("is_away", [False, True], ids=["plugin there", "plugin away"])
def test_the_kubelet_is_restarted_after_an_init_container_with_a_device(
    sandbox, real, plugin, is_away
):
    """Kubernetes ends such a pod while the plugin is away, though its other containers hold no device."""
    sandbox.create(ended("a", container()))
    before = sandbox.running("a")
    if is_away:
        plugin.kill()
        real.kill_kubelet()
        real.start_kubelet()
        real.wait_ready()
        sandbox.kube.wait(
            "Pod",
            lambda pods: rejected(pods) == {"a"},
            sandbox.namespace,
            what="the kubelet has ended the pod",
        )
        assert "or with a claim" in sandbox.event("a", "DevicesNotReady")
        plugin.start()
    else:
        plugin.restart_kubelet(2 * SLOTS)
        assert sandbox.running("a") == before
    plugin.wait_offered(2 * SLOTS)


# ---- what happens between Binding and start


def test_a_pod_is_deleted_before_its_container_starts(sandbox, real, plugin):
    one(sandbox, real, "a", 1000, held)
    identity = holding(sandbox, "a")
    plugin.program.pause()
    real.run_in(identity, "touch", "/go")
    sandbox.delete("a")  # from the API server at once, as by force
    plugin.program.resume()
    one(sandbox, real, "b", 2000)
    sandbox.running("b")
    assert limits(sandbox, real, "b") == [("2000m", "0")]


def test_a_pod_that_the_api_server_does_not_know_any_more(sandbox, real, plugin):
    """The kubelet has not heard of its deletion yet, and the plugin has."""
    one(sandbox, real, "a", 1000, held)
    identity = holding(sandbox, "a")
    real.kubelet.pause()
    sandbox.delete("a")
    real.run_in(identity, "touch", "/go")
    real.kubelet.resume()
    one(sandbox, real, "b", 2000)
    sandbox.running("b")
    assert limits(sandbox, real, "b") == [("2000m", "0")]


def test_an_allocation_is_revoked_before_the_start(sandbox, real, plugin):
    one(sandbox, real, "a", 1000, held)
    holding(sandbox, "a")
    plugin.stop()
    sandbox.kube.merge_patch(
        "Pod", "a", {"metadata": {"annotations": {PHASE: "failed"}}}, sandbox.namespace
    )
    real.wait_allocatable(RESOURCE, 0)
    plugin.start().wait_offered(2 * SLOTS)  # it has read the pod anew
    release(sandbox, real, "a")
    refusal(sandbox, "a", "cannot be served: its bind-phase is failed")
    sandbox.delete("a")


def test_a_pod_that_no_scheduler_of_ours_has_placed(sandbox, real, plugin):
    item = pod(
        "stray",
        containers=[showing(HOOK, gpu=1)],
        labels={"hami.io/webhook": "ignore"},
        node_name=real.name,
    )
    sandbox.kube.create(item, sandbox.namespace)
    refusal(sandbox, "stray", f"it was not assigned to node {real.name} by HAMi's scheduler")
    sandbox.delete("stray")


def test_a_card_is_unhealthy_before_the_start(sandbox, real, plugin):
    one(sandbox, real, "a", 1000, held)
    holding(sandbox, "a")
    plugin.set_health(FIRST.uuid, "XID 79")
    plugin.wait_offered(SLOTS)
    release(sandbox, real, "a")
    refusal(sandbox, "a", f"{FIRST.uuid}, which is unhealthy: XID 79")
    plugin.set_health(FIRST.uuid, True)
    sandbox.running("a")
    assert limits(sandbox, real, "a") == [("1000m", "0")]


def test_a_slow_plugin_delays_only_the_start(sandbox, real, plugin):
    names = [f"p{number}" for number in range(5)]
    for number, name in enumerate(names):
        one(sandbox, real, name, 1000 + number, held)
    identities = [holding(sandbox, name) for name in names]
    plugin.program.pause()
    for identity in identities:
        real.run_in(identity, "touch", "/go")
    with pytest.raises(AssertionError):
        sandbox.running(*names, timeout=3)
    plugin.program.resume()
    sandbox.running(*names)
    assert limits(sandbox, real, *names) == [(f"{1000 + number}m", "0") for number in range(5)]


# ---- the folder of specifications


@contextmanager
def read_only(real: RealNode, folder: str) -> Iterator[None]:
    """Makes a folder of the node read-only for everybody."""

    def run(name: str, command: str) -> None:
        program = real.program(name, ["sh", "-ec", command]).start()
        program.wait_end()
        assert program.exit_code == 0, program.tail()

    run("read-only", f"mount --bind {folder} {folder}; mount -o remount,bind,ro {folder}")
    try:
        yield
    finally:
        run("writable", f"umount {folder}")


def test_the_folder_is_read_only(sandbox, real, plugin):
    one(sandbox, real, "a", 1000, held)
    holding(sandbox, "a")
    with read_only(real, CDI):
        release(sandbox, real, "a")
        refusal(sandbox, "a", "Read-only file system")
    sandbox.running("a")
    assert limits(sandbox, real, "a") == [("1000m", "0")]


def test_other_specifications_are_in_the_folder(sandbox, real, plugin):
    """A thousand valid ones, and some that cannot be read."""
    folder, foreign = real.path(CDI), []
    folder.mkdir(exist_ok=True)
    for number in range(1000):
        foreign.append(path := folder / f"foreign-{number}.json")
        path.write_text(
            json.dumps(
                {
                    "cdiVersion": "0.6.0",
                    "kind": "example.com/foreign",
                    "devices": [
                        {"name": f"d{number}", "containerEdits": {"env": [f"FOREIGN={number}"]}}
                    ],
                }
            )
        )
    for name, text in (
        ("broken.json", "{"),
        ("nobody.json", '{"cdiVersion": "0.6.0", "kind": "no-vendor"}'),
    ):
        foreign.append(path := folder / name)
        path.write_text(text)
    try:
        names = [f"p{number}" for number in range(10)]
        for number, name in enumerate(names):
            one(sandbox, real, name, 1000 + number)
        sandbox.running(*names)
        assert limits(sandbox, real, *names) == [(f"{1000 + number}m", "0") for number in range(10)]
        assert all(path.exists() for path in foreign)
    finally:
        for path in foreign:
            path.unlink()


# ---- changes of mode, and other schedulers


def test_the_mode_changes_under_running_pods(sandbox, real, plugin):
    one(sandbox, real, "start", 1000)
    one(sandbox, real, "waiting", 4000, held)
    before = sandbox.running("start")
    holding(sandbox, "waiting")
    plugin.stop()
    plugin.start(allocate="admission").wait_offered(2 * SLOTS)
    one(sandbox, real, "free", 2000)  # bound without a lock, before the change was seen
    eventually(
        lambda: ASSIGNED_NODE in sandbox.pod("free")["metadata"]["labels"],
        "our scheduler has seen it",
    )
    sandbox.create(shower(HOOK, "locked", gpu=1, gpumem=3000))
    sandbox.running("free", "locked")
    release(sandbox, real, "waiting")
    assert sandbox.running("start", "waiting")[:1] == before
    restarted(sandbox, "start", kill_container(sandbox, real, "start"))
    plugin.stop()
    real.wait_allocatable(RESOURCE, 0)
    plugin.start().wait_offered(2 * SLOTS)
    restarted(sandbox, "locked", kill_container(sandbox, real, "locked"))
    one(sandbox, real, "last", 5000)
    sandbox.running("last")
    assert [
        views(sandbox, real, name, runs)
        for name, runs in (("start", 2), ("waiting", 1), ("free", 1), ("locked", 2), ("last", 1))
    ] == [["1000m"] * 2, ["4000m"], ["2000m"], ["3000m"] * 2, ["5000m"]]


def test_a_scheduler_that_locks_the_node_is_served_at_once(sandbox, real, plugin):
    """The lock is released before the container starts: HAMi's scheduler waits for it."""
    for number in range(5):
        place_as_upstream(
            sandbox,
            real,
            held(f"p{number}", gpumem=1000 + number),
            [],
            [Part(FIRST.uuid, 1000 + number)],
        )
    real.wait_node(lambda node: LOCK not in annotations(node), what="unlocked")
    names = [f"p{number}" for number in range(5)]
    for name in names:
        holding(sandbox, name)
        notes = annotations(sandbox.pod(name))
        assert (notes[PHASE], notes[REMAINING].strip(";")) == ("success", "")
        assert FIRST.uuid in notes[ALLOCATED]
        release(sandbox, real, name)
    sandbox.running(*names)
    assert limits(sandbox, real, *names) == [(f"{1000 + number}m", "0") for number in range(5)]


def test_specifications_stay_as_long_as_the_kubelet_names_them(sandbox, real, plugin):
    one(sandbox, real, "a", 1000)
    sandbox.running("a")
    unused = real.path(CDI) / "hami.io-container-0123456789abcdef.json"
    unused.write_text("{}")
    for path in real.path(CDI).glob(OURS):
        os.utime(path, (0, 0))
    plugin.stop()
    plugin.start()  # cleans up at once
    eventually(
        lambda: len(specifications(real)) <= names_in_checkpoint(real),
        "all unused specifications are removed",
    )
    assert specifications(real)
    assert not unused.exists()
