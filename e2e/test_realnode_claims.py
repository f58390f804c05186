"""Claims of HAMi's scheduler on a real kubelet and runtime: from the text of a pod to the limits of its containers, by
the rights, policies and webhooks of the components."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hami.codec.documents import parse_own_yaml
from hami.codec.keys import ALLOCATION_MODE, LOCK_FREE, MANAGED_TAINT
from hami.codec.slices import DRIVER, device_name, pool_name
from testing.claims import (
    ALLOCATE,
    FIRST,
    emptied,
    in_mig_mode,
    installed,
    instances,
    running,
    serving,
    specifications,
)
from testing.cluster import MANIFESTS, LocalCluster
from testing.device_plugin import HOOK, RESOURCE, DevicePlugin, cards
from testing.eventually import eventually
from testing.nodes import REGISTER
from testing.pods import pod
from testing.realnode import RealNode, missing
from testing.sandbox import Sandbox
from testing.scheduler import Certificates, Scheduler
from testing.shown import seen, shower, showing
from testing.yaml_text import read_documents

pytestmark = pytest.mark.since(*FIRST)
Object = dict[str, Any]
FIRST_CARD, SECOND_CARD = cards(2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A control plane with the configuration of kube-scheduler that the component installs."""

    def with_profile(config: Object) -> None:
        shipped = parse_own_yaml((ALLOCATE / "scheduler-config.yaml").read_text())
        config["profiles"] = shipped["profiles"]
        config["extenders"][0]["managedResources"] = shipped["extenders"][0]["managedResources"]

    if reason := missing():
        pytest.skip(reason)
    with LocalCluster.started(adjust=with_profile, durable=False) as started:
        yield started
        started.kube.close()


@pytest.fixture(scope="module")
def replica(cluster: LocalCluster) -> Iterator[Scheduler]:
    """The scheduler, which allocates claims."""
    certificates = Certificates(cluster.folder / "tls")
    with serving(
        cluster, certificates, installed(cluster, certificates, ALLOCATE), "allocate"
    ) as scheduler:
        yield scheduler


@pytest.fixture(scope="module")
def real_node(cluster: LocalCluster) -> Iterator[RealNode]:
    with RealNode.joined(cluster) as node:
        yield node


@pytest.fixture
def sandbox(cluster: LocalCluster, replica: Scheduler) -> Iterator[Sandbox]:
    """A namespace whose pods need claims."""
    with Sandbox.opened(
        cluster.kube, labels={ALLOCATION_MODE: "dra"}, keeps_namespace=True
    ) as opened:
        yield opened


@pytest.fixture(autouse=True)
def audited() -> None:
    """The node does it: see the fixture `real`."""


@pytest.fixture
def driver(sandbox: Sandbox, real: RealNode) -> Iterator[DevicePlugin]:
    """The device plugin of a managed node with two cards, which HAMi's scheduler gives out."""
    made = DevicePlugin(real, allocation_mode="dra", claim_allocator="hami")
    made.insert(FIRST_CARD, SECOND_CARD)
    made.install_limiter(b"the limiter\n")
    try:
        yield managed(made)
        emptied(sandbox, real)
    finally:
        made.close()


def managed(plugin: DevicePlugin) -> DevicePlugin:
    """Starts it, and waits until the scheduler may give out its devices."""
    plugin.start().wait_registered()

    def is_announced(node: Object) -> bool:
        """Reports whether the kubelet calls the driver, and the cards are those of this start."""
        notes = node["metadata"]["annotations"]
        cards = notes.get(REGISTER, "")
        is_new = '"mode":"mig"' not in cards and all(card.uuid in cards for card in plugin.cards)
        return is_new and notes.get(LOCK_FREE) == "NVIDIA"

    plugin.node.wait_node(is_announced, what="the kubelet calls the driver")
    return plugin


def claim_of(sandbox: Sandbox, name: str) -> Object:
    (entry,) = sandbox.pod(name)["spec"]["resourceClaims"]
    return sandbox.kube.get("ResourceClaim", entry["resourceClaimName"], sandbox.namespace)


def test_containers_get_what_the_scheduler_has_allocated(sandbox, real, driver):
    sandbox.create(
        pod(
            "several",
            containers=[
                showing(HOOK, "left", gpu=1, gpumem=1000, gpucores=10),
                showing(HOOK, "right", gpu=1, gpumem=2000),
            ],
        )
    )
    sandbox.create(shower(HOOK, "whole", gpu=2, gpumem=3000, gpucores=30))
    running(sandbox, "several", "whole")
    views = {name: seen(sandbox, real, "several", name) for name in ("left", "right")}
    both = seen(sandbox, real, "whole")
    assert [views[name].limit[1:] for name in ("left", "right")] == [
        ("1000m", "10"),
        ("2000m", "0"),
    ]
    assert set(both.env["NVIDIA_VISIBLE_DEVICES"].split(",")) == {FIRST_CARD.uuid, SECOND_CARD.uuid}
    assert [both.env[f"CUDA_DEVICE_MEMORY_LIMIT_{index}"] for index in range(2)] == ["3000m"] * 2
    given = {
        device["request"]: device["device"] for device in results(claim_of(sandbox, "several"))
    }
    assert given == {name: device_name(views[name].limit[0]) for name in ("left", "right")}
    booked = sandbox.pod("several")["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
    assert all(views[name].limit[0] in booked for name in ("left", "right"))
    assert {device["pool"] for device in results(claim_of(sandbox, "whole"))} == {
        pool_name(real.name)
    }


def results(claim: Object) -> list[Object]:
    found: list[Object] = claim["status"]["allocation"]["devices"]["results"]
    return found


def test_containers_share_what_a_template_of_a_user_says(sandbox, real, driver):
    """The example, with containers that show what they got."""
    template, example = read_documents(
        (MANIFESTS.parent.parent / "examples" / "claim.yaml").read_text()
    )
    sandbox.kube.create(template, sandbox.namespace)
    shown = [
        {**showing(HOOK, one["name"]), "resources": one["resources"]}
        for one in example["spec"]["containers"]
    ]
    sandbox.create({**example, "spec": {**example["spec"], "containers": shown}})
    running(sandbox, "claims")
    found = {name: seen(sandbox, real, "claims", name) for name in ("left", "right", "beside")}
    assert {name: view.limit[1:] for name, view in found.items()} == {
        "left": ("6000m", "30"),
        "right": ("6000m", "30"),
        "beside": ("2000m", "0"),
    }
    directories = {name: view.mounts[f"{HOOK}/vgpu/limits"][0] for name, view in found.items()}
    assert directories["left"] == directories["right"] != directories["beside"]


def test_claims_go_with_their_pods(sandbox, real, driver):
    sandbox.create(shower(HOOK, "p", gpu=1, gpumem=1000))
    running(sandbox, "p")
    name = claim_of(sandbox, "p")["metadata"]["name"]
    assert specifications(real)
    sandbox.kube.delete("Pod", "p", sandbox.namespace)
    eventually(
        lambda: sandbox.kube.find("ResourceClaim", name, sandbox.namespace) is None,
        "the claim is gone",
    )


def test_a_managed_node_is_registered_and_its_slices_are_for_nobody_else(sandbox, real, driver):
    node = sandbox.kube.get("Node", real.name)
    assert FIRST_CARD.uuid in node["metadata"]["annotations"][REGISTER]
    assert (
        node["metadata"]["annotations"][ALLOCATION_MODE],
        node["status"]["allocatable"].get(RESOURCE, "0"),
    ) == ("dra", "0")
    own = eventually(
        lambda: [
            item for item in sandbox.kube.list("ResourceSlice") if item["spec"]["driver"] == DRIVER
        ],
        "the slice is there",
    )
    assert {
        taint["key"]
        for item in own
        for device in item["spec"]["devices"]
        for taint in device["taints"]
    } == {MANAGED_TAINT}


def test_containers_get_the_mig_instances_that_the_scheduler_has_placed(sandbox, real, driver):
    driver.stop()
    driver.insert(in_mig_mode(FIRST_CARD))
    driver.start(operating_mode="mig").wait_registered()
    real.wait_node(
        lambda node: (
            '"mode":"mig"' in node["metadata"]["annotations"].get(REGISTER, "")
            and LOCK_FREE in node["metadata"]["annotations"]
        ),
        what="the card in MIG mode is registered",
    )
    for name, memory in (("a", 30_000), ("b", 5_000)):
        sandbox.create(shower(HOOK, name, gpu=1, gpumem=memory))
    running(sandbox, "a", "b")
    given = {name: seen(sandbox, real, name).env["NVIDIA_VISIBLE_DEVICES"] for name in "ab"}
    (whole,), (part,) = (results(claim_of(sandbox, name)) for name in "ab")
    places = instances(real)
    assert [places[given[name]][0] for name in "ab"] == ["3g.40gb", "1g.10gb"]
    for result, name in ((whole, "a"), (part, "b")):
        profile, start = places[given[name]]
        assert (
            result["device"]
            == f"{device_name(FIRST_CARD.uuid)}-mig-{profile.replace('.', '-')}-{start}"
        )
    emptied(sandbox, real)
    eventually(lambda: not instances(real), lambda: f"no instance is left: {instances(real)}")


def test_the_allocator_cannot_change_while_pods_have_claims(sandbox, real, driver):
    sandbox.create(shower(HOOK, "p", gpu=1, gpumem=1000))
    running(sandbox, "p")
    driver.stop()
    real.wait_node(
        lambda node: LOCK_FREE not in node["metadata"]["annotations"], what="offers nothing more"
    )
    driver.start(claim_allocator="kube-scheduler")
    real.wait_node(
        lambda node: (
            REGISTER not in node["metadata"]["annotations"]
            and ALLOCATION_MODE not in node["metadata"]["annotations"]
        ),
        what="is not registered",
    )
    eventually(
        lambda: "kube-scheduler cannot allocate the claims of the node yet" in driver.log(),
        lambda: f"it is refused: {driver.log()[-2000:]}",
    )
    driver.stop()
    managed(driver)
    assert seen(sandbox, real, "p").limit[1] == "1000m"
    sandbox.create(shower(HOOK, "q", gpu=1, gpumem=2000))
    running(sandbox, "q")
    assert seen(sandbox, real, "q").limit[1] == "2000m"
