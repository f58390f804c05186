"""Claims on a real kubelet and runtime: kube-scheduler allocates them, and the device plugin prepares them with the
rights that it has in a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3
import yaml

from hami.codec.documents import parse_own_yaml
from hami.codec.keys import ALLOCATION_MODE
from hami.codec.slices import DRIVER, device_name, pool_name
from hami.model import Selector
from testing import claims
from testing.claims import emptied, in_mig_mode, instances, running, share, specifications
from testing.cluster import MANIFESTS, LocalCluster
from testing.device_plugin import HOOK, RESOURCE, SLOTS, DevicePlugin, cards
from testing.eventually import eventually
from testing.fake_gpu import CARDS, FakeGpus, client, client_pod
from testing.kube import Kube
from testing.limiter.builds import Unavailable
from testing.limiter.rig import MIB
from testing.monitor import Monitor
from testing.nodes import REGISTER
from testing.people import DEVICE_CONFIG, hami
from testing.placing import Part, place
from testing.pods import pod
from testing.realnode import RealNode
from testing.restarts import kill_container, restarted, views
from testing.sandbox import Sandbox
from testing.shown import seen, shower, showing
from testing.yaml_text import read_documents

pytestmark = [pytest.mark.kind, pytest.mark.since(1, 36)]
Object = dict[str, Any]
FIRST, SECOND = cards(2)


@pytest.fixture(scope="module")
def component(local: LocalCluster) -> Iterator[None]:
    """What is installed for claims: the class, rights of the device plugin, and policies."""
    for item in claims.component():
        local.kube.apply(item)
    yield
    for item in claims.component():
        local.kube.delete(item["kind"], item["metadata"]["name"])


@pytest.fixture
def driver(component: None, sandbox: Sandbox, real: RealNode) -> Iterator[DevicePlugin]:
    """The device plugin with two cards and the allocation mode ``dra``; the kubelet calls it, and kube-scheduler
    knows its cards."""
    made = DevicePlugin(real, allocation_mode="dra")
    made.insert(FIRST, SECOND)
    made.install_limiter(b"the limiter\n")
    try:
        yield started(made)
        emptied(sandbox, real)
    finally:
        made.close()


def started(plugin: DevicePlugin, **flags: str) -> DevicePlugin:
    """Starts it, and waits until it is ready."""
    plugin.start(**flags).wait_registered()
    eventually(lambda: state(plugin)[0] == 200, lambda: f"ready: {state(plugin)}")
    return plugin


def state(plugin: DevicePlugin) -> tuple[int, str]:
    """Returns status and body of its readiness probe; 0 while nobody answers."""
    try:
        return plugin.readiness()
    except urllib3.exceptions.HTTPError as error:
        return 0, str(error)


def tainted(kube: Kube) -> list[str]:
    """Returns the names of the devices with taints."""
    return [
        device["name"]
        for item in slices(kube)
        for device in item["spec"]["devices"]
        if device.get("taints")
    ]


def slices(kube: Kube) -> list[Object]:
    return [item for item in kube.list("ResourceSlice") if item["spec"]["driver"] == DRIVER]


def claim_of(sandbox: Sandbox, name: str) -> Object:
    """Returns the only claim of a pod."""
    (status,) = sandbox.pod(name)["status"]["resourceClaimStatuses"]
    return sandbox.kube.get("ResourceClaim", status["resourceClaimName"], sandbox.namespace)


def claiming(sandbox: Sandbox, item: Object, spec: Object) -> Object:
    """Creates the template of the claim *spec*, which has a request for each container; returns the pod with it."""
    name = item["metadata"]["name"]
    sandbox.kube.create(claims.template(name, spec), sandbox.namespace)
    made = claims.claiming(item, name)
    return {**made, "spec": {**made["spec"], "schedulerName": "hami-scheduler"}}


def create(sandbox: Sandbox, name: str, memory: int, cores: int = 0) -> None:
    """Creates a pod whose container shows what it got."""
    sandbox.create(claiming(sandbox, shower(HOOK, name), claims.spec_of(main=share(memory, cores))))


# ---- what pods get


def test_containers_get_what_was_allocated_to_their_request(sandbox, real, driver):
    item = pod("several", containers=[showing(HOOK, "left"), showing(HOOK, "right")])
    sandbox.create(
        claiming(sandbox, item, claims.spec_of(left=share(1000, 10), right=share(2000, 20)))
    )
    create(sandbox, "single", 3000)
    running(sandbox, "several", "single")
    found = {
        name: seen(sandbox, real, pod_name, name)
        for pod_name, name in (("several", "left"), ("several", "right"), ("single", "main"))
    }
    assert {name: view.limit for name, view in found.items()} == {
        "left": (FIRST.uuid, "1000m", "10"),
        "right": (FIRST.uuid, "2000m", "20"),
        "main": (FIRST.uuid, "3000m", "0"),
    }
    for name, view in found.items():
        uid = sandbox.pod("single" if name == "main" else "several")["metadata"]["uid"]
        assert view.mounts[f"{HOOK}/vgpu/limits"] == (
            f"{HOOK}/vgpu/containers/{uid}_{name}/limits",
            False,
        )
        assert (view.library, view.mounts[f"{HOOK}/vgpu/libvgpu.so"][1]) == ("the limiter\n", False)
    assert len({view.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] for view in found.values()}) == 3
    assert len(specifications(real)) == 3
    emptied(sandbox, real)


def test_containers_share_a_request_and_a_container_has_several(sandbox, real, driver):
    """The example, with containers that show what they got, and one that uses both requests of another claim."""
    template, example = read_documents(
        (MANIFESTS.parent.parent / "examples" / "claim.yaml").read_text()
    )
    sandbox.kube.create(template, sandbox.namespace)
    shown = [
        {**showing(HOOK, one["name"]), "resources": one["resources"]}
        for one in example["spec"]["containers"]
    ]
    sandbox.create(
        {
            **example,
            "spec": {**example["spec"], "schedulerName": "hami-scheduler", "containers": shown},
        }
    )
    item = claiming(
        sandbox, shower(HOOK, "both"), claims.spec_of(first=share(2000, 20), second=share(3000, 30))
    )
    item["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    sandbox.create(item)
    running(sandbox, "claims", "both")
    found = {name: seen(sandbox, real, "claims", name) for name in ("left", "right", "beside")}
    assert {name: view.limit for name, view in found.items()} == {
        "left": (FIRST.uuid, "6000m", "30"),
        "right": (FIRST.uuid, "6000m", "30"),
        "beside": (FIRST.uuid, "2000m", "0"),
    }
    directories = {name: view.mounts[f"{HOOK}/vgpu/limits"][0] for name, view in found.items()}
    assert directories["left"] == directories["right"] != directories["beside"]
    assert seen(sandbox, real, "both").limit == (FIRST.uuid, "5000m", "50")
    emptied(sandbox, real)


def test_the_node_has_no_devices_for_the_other_allocation_mode(sandbox, real, driver):
    node = real.node()
    assert REGISTER not in (node["metadata"].get("annotations") or {})
    assert node["status"]["allocatable"].get(RESOURCE, "0") == "0"
    (item,) = slices(sandbox.kube)
    assert [device["name"] for device in item["spec"]["devices"]] == [
        device_name(card.uuid) for card in driver.cards
    ]
    assert item["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


def test_twenty_pods_at_once_get_their_own_limits(sandbox, real, driver):
    driver.insert(*cards(2 * claims.SLOTS_PER_POD))
    claims.wait_published(driver)
    memory = {f"p{number:02}": 1000 + number for number in range(2 * SLOTS)}
    for name, mib in memory.items():
        create(sandbox, name, mib)
    running(sandbox, *memory)
    assert {name: seen(sandbox, real, name).limit[1] for name in memory} == {
        name: f"{mib}m" for name, mib in memory.items()
    }


def test_two_claims_on_one_card_are_stopped_at_their_own_limits(sandbox, real, driver, builds):
    try:
        gpu = FakeGpus(real, builds)
    except Unavailable as error:
        pytest.skip(str(error))
    driver.stop()
    gpu.insert(driver, CARDS[0])
    started(driver)
    wanted = {"a": 1500, "b": 2502}
    for name, mib in wanted.items():
        sandbox.create(
            claiming(
                sandbox,
                client_pod(name, client("info", f"alloc plain 0 {mib * MIB}", "alloc plain 1 1")),
                claims.spec_of(main=share(mib)),
            )
        )
    running(sandbox, *wanted)
    for name, mib in wanted.items():
        assert gpu.answers(sandbox.pod(name), 5) == [[0], [0], [0, mib * MIB, mib * MIB], [0], [2]]
    sizes = {name: float(mib * MIB) for name, mib in wanted.items()}
    monitor = Monitor(real)
    try:
        monitor.start()
        for metric in ("hami_vgpu_memory_limit_bytes", "hami_vgpu_memory_used_bytes"):
            eventually(
                lambda metric=metric: monitor.values(metric, sandbox.namespace) == sizes,  # type: ignore[misc]
                lambda: f"the monitor shows {sizes}:\n{monitor.page()}",
            )
    finally:
        monitor.close()


# ---- restarts


def test_a_driver_takes_over_what_another_one_has_prepared(sandbox, real, driver):
    create(sandbox, "before", 1000)
    running(sandbox, "before")
    successor = DevicePlugin(real, name="successor", allocation_mode="dra")
    successor.cards = driver.cards
    try:
        started(successor)
        driver.stop()
        create(sandbox, "after", 2000)
        running(sandbox, "after")
        assert len(slices(sandbox.kube)) == 1
        assert '"claim prepared"' in successor.log()
        emptied(sandbox, real)
    finally:
        successor.close()


def test_pods_go_on_and_wait_while_the_driver_is_down(sandbox, real, driver):
    create(sandbox, "a", 1000)
    running(sandbox, "a")
    driver.kill()
    restarted(sandbox, "a", kill_container(sandbox, real, "a"))
    assert views(sandbox, real, "a", 2) == ["1000m"] * 2
    create(sandbox, "b", 2000)
    sandbox.event("b", "FailedPrepareDynamicResources")
    started(driver)
    running(sandbox, "b")
    assert seen(sandbox, real, "b").limit[1] == "2000m"


def test_slices_come_back(sandbox, real, driver):
    (item,) = slices(sandbox.kube)

    def is_back(items: dict[str, Object]) -> bool:
        found = [one for one in items.values() if one["spec"]["driver"] == DRIVER]
        return [one["spec"]["devices"] for one in found] == [item["spec"]["devices"]] and (
            found[0]["metadata"]["uid"] != item["metadata"]["uid"]
        )

    sandbox.kube.delete("ResourceSlice", item["metadata"]["name"])
    sandbox.kube.wait("ResourceSlice", is_back, what="the slice that somebody deleted is back")
    (item,) = slices(sandbox.kube)
    real.kill_kubelet()
    real.start_kubelet()
    sandbox.kube.wait("ResourceSlice", is_back, what="the slice that the kubelet deleted is back")
    create(sandbox, "a", 1000)
    running(sandbox, "a")


def wait_restarted(sandbox: Sandbox, *names: str) -> None:
    """Waits until the containers of pods run again after a reboot."""

    def wait(seconds: float) -> None:
        for name in names:
            restarted(sandbox, name, 0, timeout=seconds)

    claims.nudged(sandbox, names, wait)


def test_the_node_reboots(sandbox, real, driver):
    """All processes end, and /run is empty afterwards: the kubelet has all claims prepared again."""
    memory = {"a": 1000, "b": 2000}
    for name, amount in memory.items():
        create(sandbox, name, amount)
    running(sandbox, *memory)
    assert [views(sandbox, real, name, 1) for name in memory] == [["1000m"], ["2000m"]]
    before = specifications(real)
    driver.kill()
    real.reboot()
    driver.start()
    wait_restarted(sandbox, *memory)
    assert [views(sandbox, real, name, 2) for name in memory] == [["1000m"] * 2, ["2000m"] * 2]
    assert specifications(real) == before
    emptied(sandbox, real)


def test_a_pod_is_deleted_by_force(sandbox, real, driver):
    """Its claim is gone before its containers have ended, and kube-scheduler gives its cards to the next pod."""
    create(sandbox, "a", FIRST.memory)
    create(sandbox, "b", SECOND.memory)
    running(sandbox, "a", "b")
    held = seen(sandbox, real, "a").limit
    (prepared,) = {
        name for name in specifications(real) if claim_of(sandbox, "a")["metadata"]["uid"] in name
    }
    name = claim_of(sandbox, "a")["metadata"]["name"]
    real.kubelet.pause()
    sandbox.delete("a")
    sandbox.kube.wait(
        "ResourceClaim",
        lambda found: name not in found,
        sandbox.namespace,
        what="the claim is gone",
    )
    create(sandbox, "next", FIRST.memory)
    claims.nudged(sandbox, ["next"], lambda seconds: sandbox.bound(timeout=seconds))
    real.kubelet.resume()
    running(sandbox, "next")
    assert seen(sandbox, real, "next").limit == held
    eventually(
        lambda: prepared not in specifications(real),
        lambda: f"{prepared} is gone: {specifications(real)}",
    )


# ---- MIG


def divided(driver: DevicePlugin) -> None:
    """Starts the plugin again with a card in MIG mode."""
    driver.stop()
    driver.insert(in_mig_mode(FIRST))
    started(driver, operating_mode="mig")


def take(sandbox: Sandbox, name: str, profile: str) -> None:
    """Creates a pod whose container shows what it got: an instance of the profile."""
    selector = f"device.attributes['{DRIVER}'].profile == '{profile}'"
    request = {
        "name": "main",
        "exactly": {
            "deviceClassName": "mig.hami.io",
            "selectors": [{"cel": {"expression": selector}}],
        },
    }
    sandbox.create(claiming(sandbox, shower(HOOK, name), {"devices": {"requests": [request]}}))


def test_instances_are_made_for_claims_and_go_with_them(sandbox, real, driver):
    divided(driver)
    take(sandbox, "a", "3g.40gb")
    take(sandbox, "b", "1g.10gb")
    running(sandbox, "a", "b")
    env = {name: seen(sandbox, real, name).env for name in "ab"}
    assert not [key for key in env["a"] if key.startswith("CUDA_")]
    assert {name: instances(real)[env[name]["NVIDIA_VISIBLE_DEVICES"]] for name in env} == {
        "a": ("3g.40gb", 4),
        "b": ("1g.10gb", 3),
    }
    monitor = Monitor(real)
    try:
        monitor.start()
        sizes = {"a": 40_192.0 * MIB, "b": 9_728.0 * MIB}
        eventually(
            lambda: monitor.values("hami_vgpu_memory_limit_bytes", sandbox.namespace) == sizes,
            lambda: f"the monitor shows {sizes}:\n{monitor.page()}",
        )
        uuids = [f'mig_uuid="{env[name]["NVIDIA_VISIBLE_DEVICES"]}"' for name in env]
        eventually(
            lambda: all(uuid in page for page in [monitor.page()] for uuid in uuids),
            lambda: f"the monitor shows {uuids}:\n{monitor.page()}",
        )
    finally:
        monitor.close()
    successor = DevicePlugin(real, name="successor", allocation_mode="dra")
    successor.cards = driver.cards
    try:
        started(successor, operating_mode="mig")
        driver.kill()
        restarted(sandbox, "a", kill_container(sandbox, real, "a"))
        assert real.output(sandbox.pod("a")).count(env["a"]["NVIDIA_VISIBLE_DEVICES"]) >= 2
        large = claims.spec_of(Selector(mode="mig"), main=share(20_000))
        sandbox.create(claiming(sandbox, shower(HOOK, "c"), large))
        sandbox.delete("b")
        running(sandbox, "c")
        (found,) = [
            place
            for uuid, place in instances(real).items()
            if uuid == seen(sandbox, real, "c").env["NVIDIA_VISIBLE_DEVICES"]
        ]
        assert found == ("3g.40gb", 0)
        emptied(sandbox, real)
        eventually(lambda: not instances(real), lambda: f"no instance is left: {instances(real)}")
    finally:
        successor.close()


def test_a_node_with_instances_reboots(sandbox, real, driver):
    """What was prepared is lost, and claims get new instances at their places."""
    divided(driver)
    for name in ("a", "b"):
        take(sandbox, name, "3g.40gb")
    running(sandbox, "a", "b")
    before = instances(real)
    driver.kill()
    (real.folder / "cards.yaml.state").write_text("{}")  # instances do not survive, MIG mode does
    real.reboot()
    driver.start(operating_mode="mig")
    wait_restarted(sandbox, "a", "b")
    after = instances(real)
    assert sorted(after.values()) == sorted(before.values()) == [("3g.40gb", 0), ("3g.40gb", 4)]
    for uuid in after:
        eventually(
            lambda uuid=uuid: any(uuid in real.output(sandbox.pod(name)) for name in "ab"),
            f"a container shows {uuid}",
        )
    emptied(sandbox, real)


# ---- refusals


def test_a_claim_that_cannot_be_prepared_is_tried_again(sandbox, real, driver):
    library = real.path(HOOK) / "vgpu" / "libvgpu.so"
    library.unlink()
    create(sandbox, "a", 1000)
    claims.refused(sandbox, "a", "the limiter is not installed")
    driver.install_limiter(b"the limiter\n")
    running(sandbox, "a")


def test_containers_share_all_of_their_requests_or_none(sandbox, real, driver):
    item = pod("a", containers=[showing(HOOK, "left"), showing(HOOK, "right")])
    item = claiming(sandbox, item, claims.spec_of(left=share(1000), right=share(2000)))
    item["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    sandbox.create(item)
    claims.refused(sandbox, "a", "containers left and right of pod a both use request right")
    # after some refusals; by itself, the kubelet asks again every 80 s
    why = claims.nudged(sandbox, ["a"], lambda s: sandbox.event("a", "DeviceGone", timeout=s))
    assert "both use request right" in why
    assert "delete the pod" in why


def test_strict_mode_holds_for_claims_of_users(sandbox, real, driver):
    """And what the webhook hides of containers that request no resource is visible by a claim."""
    config = parse_own_yaml((MANIFESTS / "device-config.yaml").read_text())
    config["nvidia"]["strict"] = True
    (real.path(HOOK) / "strict.yaml").write_text(yaml.safe_dump(config))
    driver.stop()
    started(driver, config_file=f"{HOOK}/strict.yaml")
    for name, variable, value in (
        ("lifts", "LD_PRELOAD", "/x.so"),
        ("hidden", "NVIDIA_VISIBLE_DEVICES", "none"),
    ):
        item = claiming(sandbox, shower(HOOK, name), claims.spec_of(main=share(1000)))
        item["spec"]["containers"][0].setdefault("env", []).append(
            {"name": variable, "value": value}
        )
        sandbox.create(item)
    forbidden = "container main: env LD_PRELOAD=/x.so is not permitted in strict mode"
    claims.refused(sandbox, "lifts", forbidden)
    running(sandbox, "hidden")
    assert seen(sandbox, real, "hidden").limit == (FIRST.uuid, "1000m", "0")


def test_nobody_gets_more_than_a_card_has(sandbox, real, driver):
    """Whoever may write the status of a claim can allocate what others have; the node refuses it."""
    create(sandbox, "a", FIRST.memory - 1000)
    running(sandbox, "a")
    sandbox.kube.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "forged"},
            "spec": claims.spec_of(main=share(2000)),
        },
        sandbox.namespace,
    )
    item = shower(HOOK, "b")
    item["spec"]["containers"][0]["resources"] = {"claims": [{"name": "hami", "request": "main"}]}
    item["spec"] |= {
        "resourceClaims": [{"name": "hami", "resourceClaimName": "forged"}],
        "schedulerName": "nobody",
    }
    made = sandbox.kube.create(item, sandbox.namespace)
    result = {
        "request": "main",
        "driver": DRIVER,
        "pool": pool_name(real.name),
        "device": device_name(FIRST.uuid),
        "shareID": "00000000-0000-4000-8000-000000000001",
        "consumedCapacity": {"memory": "2000Mi", "cores": "0", "share": "10"},
    }
    sandbox.kube.merge_patch(
        "ResourceClaim",
        "forged",
        {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}},
        sandbox.namespace,
    )
    claim = sandbox.kube.get("ResourceClaim", "forged", sandbox.namespace)
    claim["status"] = {
        "allocation": {
            "devices": {"results": [result]},
            "allocationTimestamp": "2026-01-01T00:00:00Z",
        },
        "reservedFor": [{"resource": "pods", "name": "b", "uid": made["metadata"]["uid"]}],
    }
    sandbox.kube.call(
        "PUT",
        f"/apis/resource.k8s.io/v1/namespaces/{sandbox.namespace}/resourceclaims/forged/status",
        claim,
    )
    sandbox.kube.call(
        "POST",
        f"/api/v1/namespaces/{sandbox.namespace}/pods/b/binding",
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "b"},
            "target": {"kind": "Node", "name": real.name},
        },
    )
    message = claims.refused(sandbox, "b", "MiB of memory")
    held = claim_of(sandbox, "a")["metadata"]["name"]
    assert f"{sandbox.namespace}/forged needs 2000 MiB" in message
    assert f"{sandbox.namespace}/{held} has" in message


def test_a_device_that_becomes_unhealthy(sandbox, real, driver):
    create(sandbox, "a", 1000)
    running(sandbox, "a")
    driver.set_health(FIRST.uuid, "it is lost")

    def is_unhealthy(pods: dict[str, Object]) -> bool:
        text = json.dumps(
            pods["a"]["status"]["containerStatuses"][0].get("allocatedResourcesStatus")
        )
        return "Unhealthy" in text and "it is lost" in text

    sandbox.kube.wait("Pod", is_unhealthy, sandbox.namespace, what="the pod says so")
    sandbox.event("a", "GpuUnhealthy", "it is lost")
    health = "hami.io/device-health"
    real.wait_node(
        lambda node: FIRST.uuid in node["metadata"]["annotations"].get(health, ""),
        what="the node says so",
    )
    eventually(lambda: tainted(real.kube) == [device_name(FIRST.uuid)], "the slice says so")
    create(sandbox, "b", 1000)
    running(sandbox, "b")
    assert seen(sandbox, real, "b").limit[0] == SECOND.uuid


# ---- the allocation mode of a node


def test_the_allocation_mode_cannot_change_while_pods_have_devices(sandbox, real, driver):
    def closed(other: str, holder: str) -> None:
        """The plugin does not start, and says why."""

        def refusal() -> tuple[int, str] | None:
            told = state(driver)
            return told if "the allocation mode of the node cannot be" in told[1] else None

        status, reason = eventually(refusal, lambda: str(state(driver)))
        assert status == 503
        assert f"devices in the allocation mode {other}, such as {holder}" in reason

    create(sandbox, "a", 1000)
    running(sandbox, "a")
    driver.stop()
    driver.start(allocation_mode="device-plugin")
    closed("dra", f"{sandbox.namespace}/a")
    sandbox.kube.wait(
        "Event",
        lambda events: "AllocationModeConflict" in {item["reason"] for item in events.values()},
        "default",
        what="an event of the node",
        fieldSelector=f"involvedObject.name={real.name}",
    )
    driver.stop()
    started(driver)
    emptied(sandbox, real)
    real.kube.merge_patch(
        "Node", real.name, {"metadata": {"labels": {ALLOCATION_MODE: "device-plugin"}}}
    )
    driver.stop()
    driver.start(allocation_mode="auto").wait_offered(2 * SLOTS)
    place(sandbox, real, shower(HOOK, "b", gpu=1, gpumem=1000), [Part(FIRST.uuid, 1000)])
    running(sandbox, "b")
    real.kube.merge_patch("Node", real.name, {"metadata": {"labels": {ALLOCATION_MODE: "dra"}}})
    driver.stop()
    driver.start(allocation_mode="auto")
    closed("device-plugin", f"{sandbox.namespace}/b")
    sandbox.delete("b")
    eventually(lambda: state(driver)[0] == 200, lambda: f"ready: {state(driver)}")
    real.kube.merge_patch("Node", real.name, {"metadata": {"labels": {ALLOCATION_MODE: None}}})


def test_the_cards_of_a_node_have_different_allocation_modes(sandbox, real, driver):
    """Each pod gets its limits in its allocation mode, and no card changes it while a pod uses it."""

    def divided(*uuids: str) -> DevicePlugin:
        """Starts the plugin so that these cards are for claims."""
        driver.stop()
        entry = {"name": real.name, "claimdevices": {"uuid": uuids}}
        file = real.folder / "node-config.json"
        file.write_text(json.dumps({"nodeconfig": [entry]}))
        return driver.start(allocation_mode="device-plugin", node_config_file=str(file))

    divided(SECOND.uuid).wait_offered(SLOTS)
    eventually(lambda: state(driver)[0] == 200, lambda: f"ready: {state(driver)}")
    assert [
        [device["name"] for device in item["spec"]["devices"]] for item in slices(real.kube)
    ] == [[device_name(SECOND.uuid)]]
    register = real.node()["metadata"]["annotations"][REGISTER]
    assert FIRST.uuid in register
    assert SECOND.uuid not in register
    place(sandbox, real, shower(HOOK, "by-plugin", gpu=1, gpumem=1000), [Part(FIRST.uuid, 1000)])
    create(sandbox, "by-claim", 2000)
    running(sandbox, "by-plugin", "by-claim")
    assert {name: seen(sandbox, real, name).limit for name in ("by-plugin", "by-claim")} == {
        "by-plugin": (FIRST.uuid, "1000m", "0"),
        "by-claim": (SECOND.uuid, "2000m", "0"),
    }
    shown = hami(
        real.cluster.kubeconfig, "top", "cards", "-o", "json", "--device-config-file", DEVICE_CONFIG
    ).document
    assert {
        row["uuid"]: (row["memoryUsedMib"], row["pods"])
        for row in shown["items"]
        if row["node"] == real.name
    } == {
        FIRST.uuid: (1000, [f"{sandbox.namespace}/by-plugin"]),
        SECOND.uuid: (2000, [f"{sandbox.namespace}/by-claim"]),
    }
    divided(FIRST.uuid, SECOND.uuid)
    eventually(
        lambda: (
            f"{FIRST.uuid} cannot change its allocation mode yet: pod {sandbox.namespace}/by-plugin"
            in state(driver)[1]
        ),
        lambda: str(state(driver)),
    )
    sandbox.delete("by-plugin")
    divided(FIRST.uuid)
    eventually(
        lambda: (
            f"{SECOND.uuid} cannot change its allocation mode yet: claim {sandbox.namespace}/by-claim"
            in state(driver)[1]
        ),
        lambda: str(state(driver)),
    )
    driver.stop()
    started(driver)
