"""MIG instances that an administrator has created."""

import pytest

from hami.devices.cards import Card, MigDevice
from hami.devices.config import PluginConfig
from hami.errors import HamiError, Rejected
from hami.node.grant import DeviceNode, Grant
from hami.plugin.static_mig import StaticMig, instances_by_resource
from testing.cases import cases
from testing.plugin_stage import FakeHost

GPU, SMALL, ENGINES, LARGE = "nvidia.com/gpu", "1g.10gb", "1g.10gb+me", "3g.40gb"


def card(uuid="GPU-a", mig=True, index=0, **fields):
    return Card(
        uuid=uuid, index=index, minor=index + 4, model="A100", memory_mib=81920, mig=mig, **fields
    )


def device(uuid="MIG-1", gpu="GPU-a", profile=SMALL, outer=1, inner=0):
    return MigDevice(
        gpu=gpu,
        uuid=uuid,
        profile=profile,
        memory_mib=9728,
        gpu_instance=outer,
        compute_instance=inner,
    )


class Driver:
    """The MIG devices of each card; an error is raised."""

    def __init__(self, **on):
        self.on = on

    def devices(self, gpu):
        if isinstance(found := self.on[gpu.replace("-", "_")], Exception):
            raise found
        return found


@pytest.fixture
def static():
    """Makes the instances of cards; returns them, their resources by name, which grow, and the notified instances."""

    def make(driver, *cards, strategy="mixed", **config):
        notified, resources = [], {}

        def serve(resource):
            assert resource.resource not in resources, "served once"
            resources[resource.resource] = resource

        made = StaticMig(
            PluginConfig(node="n1", **config),
            strategy,
            driver,
            FakeHost(),
            on_instances=notified.append,
            on_resource=serve,
        )
        made.update_cards(cards)
        return made, resources, notified

    return make


@cases(
    "strategy, cards, devices, found",
    ("mixed", [card()], [device()], {"nvidia.com/mig-1g.10gb": ["MIG-1"]}),
    (
        "mixed",
        [card()],
        [device(), device("MIG-2", profile=ENGINES), device("MIG-3", profile=LARGE)],
        {
            "nvidia.com/mig-1g.10gb": ["MIG-1"],
            "nvidia.com/mig-1g.10gb.me": ["MIG-2"],
            "nvidia.com/mig-3g.40gb": ["MIG-3"],
        },
    ),
    ("mixed", [card()], [device(profile="1c.3g.40gb")], {}),
    (
        "mixed",
        [card(), card("GPU-b", mig=False)],
        [device()],
        {"nvidia.com/mig-1g.10gb": ["MIG-1"]},
    ),
    ("mixed", [card()], [], {}),
    ("single", [card()], [device(), device("MIG-2")], {GPU: ["MIG-1", "MIG-2"]}),
    ("single", [card()], [device(profile="1c.3g.40gb")], {GPU: ["MIG-1"]}),
    ("single", [card(mig=False)], [], {}),
    ("single", [card(), card("GPU-b", mig=False, problem="lost")], [device()], {GPU: ["MIG-1"]}),
)
def test_instances_by_resource(strategy, cards, devices, found):
    grouped = instances_by_resource(strategy, GPU, cards, devices)
    assert {name: [one.uuid for one in ones] for name, ones in grouped.items()} == found


@cases(
    "cards, devices, says",
    (
        [card(), card("GPU-b", mig=False)],
        [device()],
        "card GPU-b is not in MIG mode, while others are",
    ),
    ([card(), card("GPU-b")], [device()], "card GPU-b has no MIG instances"),
    (
        [card()],
        [device(), device("MIG-2", profile=LARGE)],
        "profiles, 1g.10gb, 3g.40gb: use --mig-strategy mixed",
    ),
)
def test_single_strategy_requires_equal_instances_on_all_cards(cards, devices, says):
    with pytest.raises(HamiError, match=says):
        instances_by_resource("single", GPU, cards, devices)


def test_exactly_the_requested_instances_are_allocated(static):
    driver = Driver(
        GPU_a=[device(), device("MIG-2", outer=2)], GPU_b=[device("MIG-3", gpu="GPU-b")]
    )
    _, found, told = static(driver, card(), card("GPU-b", index=1), pass_device_specs=True)
    grant = found["nvidia.com/mig-1g.10gb"].allocate(["MIG-3", "MIG-2"])
    nodes = [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
        "/dev/nvidia4",
        "/dev/nvidia5",
        "/dev/cap-4-2-0",
        "/dev/cap-5-1-0",
    ]
    assert grant == Grant(
        env={"NVIDIA_VISIBLE_DEVICES": "MIG-2,MIG-3"},
        devices=tuple(DeviceNode(container_path=path, host_path=path) for path in nodes),
    )
    assert [[one.uuid for one in all] for all in told] == [["MIG-1", "MIG-2", "MIG-3"]]


@cases(
    "ids, says",
    ([], "requested no devices"),
    (["MIG-1", "MIG-1"], "twice: MIG-1, MIG-1"),
    (["GPU-a-0"], "not on this node: GPU-a-0"),
    (["MIG-1-0"], "not on this node: MIG-1-0"),
)
def test_invalid_ids_are_refused(static, ids, says):
    _, found, _ = static(Driver(GPU_a=[device()]), card())
    with pytest.raises(Rejected, match=says):
        found["nvidia.com/mig-1g.10gb"].allocate(ids)


def test_instances_of_an_unhealthy_card_are_unhealthy(static):
    driver = Driver(GPU_a=[device()], GPU_b=[device("MIG-2", gpu="GPU-b")])
    made, found, _ = static(driver, card(), card("GPU-b", index=1))
    resource = found["nvidia.com/mig-1g.10gb"]
    made.report("GPU-b", "XID 79")
    assert resource.inventory.snapshot().unhealthy == {"MIG-2": "XID 79"}
    with pytest.raises(Rejected, match="MIG-2 is unhealthy: XID 79"):
        resource.allocate(["MIG-2"])
    driver.on["GPU_b"].append(device("MIG-3", gpu="GPU-b"))
    made.update_cards([card(), card("GPU-b", index=1)])
    assert resource.inventory.snapshot().unhealthy == {"MIG-2": "XID 79", "MIG-3": "XID 79"}
    made.report("GPU-b", "")
    assert resource.inventory.snapshot().unhealthy == {}
    before = resource.inventory.snapshot().version
    made.report("", "health cannot be watched")
    assert resource.inventory.snapshot().version == before + 1, (
        "nobody sees some of them unhealthy, and others not yet"
    )
    assert set(resource.inventory.snapshot().unhealthy) == {"MIG-1", "MIG-2", "MIG-3"}


def test_a_problem_of_all_cards_lasts_until_each_is_healthy_again(static):
    driver = Driver(GPU_a=[], GPU_b=[device("MIG-2", gpu="GPU-b")])
    cards = [card(), card("GPU-b", index=1)]
    made, found, _ = static(driver, *cards)
    made.report("", "XID 79, of a card that cannot be named")
    driver.on["GPU_a"].append(device())
    made.update_cards(cards)
    assert set(found["nvidia.com/mig-1g.10gb"].inventory.snapshot().unhealthy) == {"MIG-1", "MIG-2"}
    made.report("GPU-a", "")
    made.update_cards(cards)
    assert set(found["nvidia.com/mig-1g.10gb"].inventory.snapshot().unhealthy) == {"MIG-2"}


def test_a_card_that_cannot_be_read_keeps_its_instances(static):
    driver = Driver(GPU_a=[device()])
    made, found, _ = static(driver, card())
    driver.on["GPU_a"] = HamiError("GPU-a: lost")
    made.update_cards([card()])
    assert found["nvidia.com/mig-1g.10gb"].inventory.snapshot().unhealthy == {
        "MIG-1": "GPU-a: lost"
    }


def test_deleted_instances_stay_as_unhealthy_and_new_profiles_are_offered(static):
    driver = Driver(GPU_a=[device()])
    made, found, _ = static(driver, card())
    driver.on["GPU_a"] = [device("MIG-9", profile=LARGE)]
    made.update_cards([card()])
    made.update_cards([card()])
    assert list(found) == ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"]
    assert list(found["nvidia.com/mig-1g.10gb"].inventory.snapshot().unhealthy) == ["MIG-1"]


def test_instances_of_filtered_cards_are_not_offered(static):
    _, found, told = static(Driver(GPU_a=[device()]), card(), filtered_uuids=("GPU-a",))
    assert (found, told) == ({}, [[]])
