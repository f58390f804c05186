"""Claims for MIG instances that are prepared on a node."""

import itertools
import random
import threading
from dataclasses import replace

import pytest

from hami.codec.mig import MigAllocation, render_mig_allocations
from hami.codec.slices import device_name, mig_devices
from hami.errors import ClusterError, HamiError, HostError, MalformedInput, Rejected
from hami.model import MigProfile, Partition
from hami.node.container_specs import CLAIM, ContainerSpecs
from hami.node.instances import read_instances
from hami.node.tenant_files import opened_directory
from testing.cards import cards
from testing.cases import cases
from testing.claim_stage import A, B, ClaimStage, result
from tests.node.test_dynamic_mig import Driver
from tests.node.test_dynamic_mig import instance as existing

PROFILES = (
    MigProfile(
        name="1g.10gb",
        memory_mib=9728,
        cores=15,
        slices=1,
        placements=tuple(Partition(start) for start in range(7)),
    ),
    MigProfile(
        name="3g.40gb",
        memory_mib=40192,
        cores=43,
        slices=3,
        placements=(Partition(0, 4), Partition(4, 4)),
    ),
)


class Node(ClaimStage):
    """A node in operating mode ``mig`` with two cards."""

    def __init__(self, folder):
        self.driver = Driver()
        super().__init__(folder, instances=self.driver, operating_mode="mig")
        self.inventory.update([replace(card, mig=True, profiles=PROFILES) for card in cards(A, B)])

    def made(self):
        """The placements of instances, by card."""
        return sorted((each.gpu, each.profile, each.start) for each in self.driver.instances)

    def given(self, container, pod="p"):
        """The instances of a container in the file for the monitor."""
        with opened_directory(
            self.folder / "vgpu" / "containers" / f"uid-{pod}_{container}"
        ) as directory:
            return read_instances(directory)

    def visible(self, uid, request="main"):
        """The devices that the container of a request sees."""
        return self.env(uid, request)["NVIDIA_VISIBLE_DEVICES"].split(",")


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def placed(profile="1g.10gb", start=0, uuid=A, request="main", **fields):
    """An instance in an allocation, as kube-scheduler writes it."""
    name = f"{device_name(uuid)}-mig-{profile.replace('.', '-')}-{start}"
    return {
        "request": request,
        "driver": "gpu.hami.io",
        "pool": "hami/n1",
        "device": name,
        **fields,
    }


def test_a_container_gets_the_instances_that_its_request_was_allocated(node):
    claim = node.put(
        "p",
        placed("3g.40gb", 4, request="left"),
        placed(start=1, request="right"),
        placed(start=0, uuid=B, request="right"),
        containers=("left", "right"),
    )
    assert [
        (device.request, device.device, device.cdi_device) for device in node.claims.prepare(*claim)
    ] == [
        ("left", "gpu-aaaa-mig-3g-40gb-4", "hami.io/claim=claim-p_left"),
        ("right", "gpu-aaaa-mig-1g-10gb-1", "hami.io/claim=claim-p_right"),
        ("right", "gpu-bbbb-mig-1g-10gb-0", ""),
    ]
    assert node.made() == [(A, "1g.10gb", 1), (A, "3g.40gb", 4), (B, "1g.10gb", 0)]
    assert node.visible("claim-p", "left") + node.visible("claim-p", "right") == node.driver.uuids
    assert not any(
        "CUDA" in name for name in node.env("claim-p", "left")
    )  # the hardware enforces its limits
    assert {
        name: [
            (one.card, one.uuid, one.profile, one.start, one.memory_mib, one.cores)
            for one in node.given(name)
        ]
        for name in ("left", "right")
    } == {
        "left": [(A, node.driver.uuids[0], "3g.40gb", 4, 40192, 43)],
        "right": [
            (A, node.driver.uuids[1], "1g.10gb", 1, 9728, 15),
            (B, node.driver.uuids[2], "1g.10gb", 0, 9728, 15),
        ],
    }


def test_the_annotations_of_a_pod_decide_which_instances_its_own_claim_gives(node, caplog):
    places = [
        MigAllocation(container=0, device=index, gpu=uuid, partition=Partition(start, 4, "3g.40gb"))
        for index, (uuid, start) in enumerate(((B, 0), (A, 4)))
    ]
    claim = node.put(
        "p",
        placed(start=3),
        claim="p-hami",
        annotations={
            "hami.io/vgpu-devices-allocated": f"{B},NVIDIA,40192,43:{A},NVIDIA,40192,43:;",
            "hami.io/vgpu-mig-allocations": render_mig_allocations(places),
        },
    )
    answer = node.claims.prepare(*claim)
    assert [device.device for device in answer] == [
        "gpu-bbbb-mig-3g-40gb-0",
        "gpu-aaaa-mig-3g-40gb-4",
    ]
    assert node.made() == [(A, "3g.40gb", 4), (B, "3g.40gb", 0)]
    assert "claim differs from the annotations of its pod" in caplog.text
    node.mig.reconcile()
    assert node.claims.prepare(*claim) == answer
    assert node.driver.made == 2
    node.claims.unprepare("claim-p")  # its pod is there still
    assert node.made() == []


def test_a_container_that_uses_several_requests_sees_the_instances_of_all(node):
    claim = node.put(
        "p",
        placed(start=1, request="x"),
        placed(start=0, request="y"),
        placed(uuid=B, request="y"),
        uses={"main": ["x", "y"]},
    )
    answer = node.claims.prepare(*claim)
    assert [device.cdi_device for device in answer] == [
        "hami.io/claim=claim-p_x",
        "hami.io/claim=claim-p_y",
        "",
    ]
    assert node.visible("claim-p", "x") == node.visible("claim-p", "y") == node.driver.uuids
    places = [
        (one.gpu, one.partition.start)
        for request in node.claims.prepared()
        for one in request.instances
    ]
    assert places == [(A, 1), (A, 0), (B, 0)]
    before = [node.env("claim-p", name) for name in "xy"]
    assert node.claims.prepare(*claim) == answer
    assert [node.env("claim-p", name) for name in "xy"] == before
    assert node.driver.made == 3


@cases("restarted", ("by the same process", False), ("by another one", True))
def test_what_is_prepared_stays_as_it_is_also_while_it_is_used(node, restarted):
    claim = node.put("p", placed())
    answer, before = node.claims.prepare(*claim), node.env("claim-p")
    node.driver.instances = [replace(each, busy=True) for each in node.driver.instances]
    if restarted:
        node.restart()
    assert node.claims.prepare(*claim) == answer
    assert node.env("claim-p") == before
    assert node.driver.made == 1


def test_an_instance_that_was_lost_is_made_again(node):
    claim = node.put("p", placed())
    node.claims.prepare(*claim)
    node.driver.instances.clear()  # the card was reset
    node.claims.prepare(*claim)
    assert node.visible("claim-p") == ["MIG-new-2"] == node.driver.uuids


def test_an_instance_of_an_administrator_is_used_unless_processes_use_it(node):
    node.driver.instances = [existing(A, 0, "1g.10gb"), existing(A, 1, "1g.10gb", busy=True)]
    node.claims.prepare(*node.put("p", placed()))
    assert node.visible("claim-p") == [node.driver.uuids[0]]
    with pytest.raises(Rejected, match="in use by processes"):
        node.claims.prepare(*node.put("q", placed(start=1)))


# ---- the end of a claim


def test_an_instance_goes_with_its_claim_and_no_other_does(node):
    for number, name in enumerate("pq"):
        node.claims.prepare(*node.put(name, placed(start=number)))
    for _ in range(2):
        node.claims.unprepare("claim-p")
        assert node.made() == [(A, "1g.10gb", 1)]


@pytest.mark.parametrize("problem", ["busy", "API server"])
def test_an_instance_that_cannot_be_destroyed_yet_goes_later(node, problem):
    node.claims.prepare(*node.put("p", placed()))
    if problem == "busy":
        node.driver.instances = [replace(each, busy=True) for each in node.driver.instances]
    else:
        node.cluster.fail("pods_on", ClusterError("connection refused"))
    node.claims.unprepare("claim-p")
    assert not node.specs.names()
    assert len(node.made()) == 1
    node.driver.instances = [replace(each, busy=False) for each in node.driver.instances]
    node.mig.reconcile()
    assert node.made() == []


@cases("restarted", ("the same process", False), ("another one", True))
def test_the_sweep_of_instances_counts_prepared_claims(node, restarted):
    node.claims.prepare(*node.put("p", placed()))
    node.delete("p")  # by force: its containers may still run
    if restarted:
        node.restart()
        node.mig.start()
    assert node.mig.reconcile() == []
    assert node.made() == [(A, "1g.10gb", 0)]


def test_nothing_is_destroyed_while_a_specification_cannot_be_read(node):
    node.claims.prepare(*node.put("p", placed()))
    (path,) = (node.folder / "cdi").glob("hami.io-claim-*.json")
    path.write_text("{")
    node.restart()
    with pytest.raises(HostError, match="specification claim-p_main of a claim cannot be read"):
        node.mig.reconcile()
    assert node.made() == [(A, "1g.10gb", 0)]
    node.claims.unprepare("claim-p")
    assert node.made() == []


# ---- faults


class Crash(Exception):
    """The end of the process."""


@pytest.mark.parametrize("comes_again", [True, False])
def test_a_crash_between_an_instance_and_its_record_leaves_nothing_for_ever(
    node, monkeypatch, comes_again
):
    claim = node.put("p", placed())
    with monkeypatch.context() as patched:

        def crash(self, *args, **options):
            raise Crash

        patched.setattr(ContainerSpecs, "write_grant", crash)
        with pytest.raises(Crash):
            node.claims.prepare(*claim)
    assert node.made() == [(A, "1g.10gb", 0)]
    assert not node.specs.names()
    node.restart()
    if comes_again:
        node.claims.prepare(*claim)
        assert node.visible("claim-p") == ["MIG-new-1"]
    node.mig.start()
    assert node.driver.uuids == (["MIG-new-1"] if comes_again else [])


def test_an_instance_that_is_not_recorded_yet_is_not_swept(node, monkeypatch):
    """By another thread, or another process during an update of the device plugin."""
    write = ContainerSpecs.write_grant

    def swept(self, *args, **options):
        sweeper.start()
        sweeper.join(0.3)
        write(self, *args, **options)

    other = Node.__new__(Node)
    other.__dict__.update(node.__dict__)
    other.specs = ContainerSpecs(node.folder / "cdi", kind=CLAIM)
    other.restart()
    sweeper = threading.Thread(target=other.mig.reconcile)
    monkeypatch.setattr(ContainerSpecs, "write_grant", swept)
    node.claims.prepare(*node.put("p", placed()))
    sweeper.join()
    assert node.visible("claim-p") == node.driver.uuids == ["MIG-new-1"]


def test_of_a_request_all_instances_are_made_or_none(node):
    node.driver.refuses = [(A, 1)]
    claim = node.put("p", placed(start=0), placed(start=1))
    with pytest.raises(HamiError, match="insufficient resources"):
        node.claims.prepare(*claim)
    assert node.made() == []
    assert not node.specs.names()
    node.driver.refuses = []
    node.claims.prepare(*claim)
    assert len(node.made()) == 2


def test_a_claim_of_which_a_part_could_not_be_made_is_completed(node):
    node.driver.refuses = [(A, 1)]
    claim = node.put(
        "p", placed(request="left"), placed(start=1, request="right"), containers=("left", "right")
    )
    with pytest.raises(HamiError, match="insufficient resources"):
        node.claims.prepare(*claim)
    node.driver.refuses = []
    assert len(node.claims.prepare(*claim)) == 2
    assert node.visible("claim-p", "left") + node.visible("claim-p", "right") == [
        "MIG-new-1",
        "MIG-new-2",
    ]


def test_what_nobody_holds_makes_room(node):
    node.driver.instances = [existing(A, 2, "1g.10gb"), existing(A, 3, "1g.10gb", uuid="")]
    node.claims.prepare(*node.put("p", placed("3g.40gb")))
    assert node.made() == [(A, "3g.40gb", 0)]


def test_an_instance_of_a_claim_that_has_become_unusable_is_replaced(node):
    claim = node.put("p", placed())
    node.claims.prepare(*claim)
    node.driver.instances = [
        replace(each, uuid="") for each in node.driver.instances
    ]  # without compute instance
    node.claims.prepare(*claim)
    assert node.visible("claim-p") == node.driver.uuids == ["MIG-new-2"]


# ---- what is refused


def test_instances_that_overlap_are_refused_with_both_claims(node):
    node.claims.prepare(*node.put("p", placed(start=2)))
    with pytest.raises(
        Rejected,
        match=(
            f"claim default/q-hami needs 3g.40gb at memory slice 0 of {A}, which overlaps 1g.10gb at memory slice 2 of "
            "claim default/p-hami"
        ),
    ):
        node.claims.prepare(*node.put("q", placed("3g.40gb")))
    assert node.made() == [(A, "1g.10gb", 2)]
    node.claims.prepare(*node.put("r", placed("3g.40gb", 4)))
    node.claims.prepare(*node.put("s", placed("3g.40gb", uuid=B)))


def test_two_claims_with_one_instance_are_refused(node):
    node.claims.prepare(*node.put("p", placed()))
    with pytest.raises(Rejected, match="overlaps"):
        node.claims.prepare(*node.put("q", placed()))


@cases(
    "results, why",
    (
        "within a claim",
        [placed("3g.40gb", request="main"), placed(start=3, request="side")],
        "overlaps",
    ),
    ("no such placement", [placed("3g.40gb", 2)], "gpu-aaaa-mig-3g-40gb-2 is not on this node"),
    ("no such profile", [placed("7g.80gb")], "is not on this node"),
    ("no such card", [placed(uuid="GPU-cccc")], "is not on this node"),
    ("a share", [result()], "gpu-aaaa is not on this node"),
    ("administrator", [placed(adminAccess=True)], "adminAccess is not supported"),
)
def test_claims_that_cannot_be_prepared(node, results, why):
    with pytest.raises(Rejected, match=why):
        node.claims.prepare(*node.put("p", *results, containers=("main", "side")))
    assert node.made() == []
    assert not node.specs.names()


def test_a_share_of_an_earlier_mode_keeps_the_card(node, tmp_path):
    shared = ClaimStage(tmp_path / "other")
    shared.claims.prepare(*shared.put("p"))
    (record,) = shared.claims.prepared()
    (name,) = shared.specs.names()
    node.specs.write(name, shared.specs.read(name))
    assert node.claims.prepared() == [record]
    with pytest.raises(
        Rejected, match="default/q-hami and default/p-hami need GPU-AAAA, one of them a MIG"
    ):
        node.claims.prepare(*node.put("q", placed()))
    node.claims.prepare(*node.put("r", placed(uuid=B)))


def test_how_a_share_is_enforced_cannot_be_said_of_an_instance(node):
    setting = {
        "source": "FromClass",
        "requests": [],
        "opaque": {
            "driver": "gpu.hami.io",
            "parameters": {
                "apiVersion": "hami.io/v1",
                "kind": "ShareConfig",
                "corePolicy": "force",
            },
        },
    }
    with pytest.raises(
        Rejected, match="priority and corePolicy are for shares of GPUs, not for MIG"
    ):
        node.claims.prepare(*node.put("p", placed(), setting=setting))


def test_a_node_that_shares_its_cards_has_no_instances(tmp_path):
    stage = ClaimStage(tmp_path)
    with pytest.raises(Rejected, match="gpu-aaaa-mig-1g-10gb-0 is not on this node"):
        stage.claims.prepare(*stage.put("p", placed()))
    with pytest.raises(MalformedInput, match="consumedCapacity.memory"):
        stage.claims.prepare(*stage.put("q", {**result(), "consumedCapacity": {}}))


# ---- all together


@pytest.mark.parametrize("seed", range(25))
def test_what_is_prepared_exists_and_never_overlaps(tmp_path, seed):
    """Whatever kube-scheduler allocates, and whatever fails. Sweeping leaves exactly what is prepared."""
    rng, node = random.Random(seed), Node(tmp_path)
    names = {
        name: (uuid, place)
        for uuid in (A, B)
        for name, (_, place) in mig_devices(uuid, PROFILES).items()
    }
    uids = itertools.count()
    live = []
    for _ in range(30):
        step = rng.choice(
            ("prepare", "prepare", "again", "unprepare", "sweep", "restart", "fault", "lost")
        )
        if step in ("prepare", "again"):
            claim = (
                rng.choice(live)
                if step == "again" and live
                else node.put(
                    f"p{next(uids)}",
                    *(
                        placed() | {"device": name}
                        for name in rng.sample(sorted(names), rng.choice((1, 1, 2)))
                    ),
                )
            )
            live.append(claim)
            try:
                node.claims.prepare(*claim)
            except HamiError:
                pass  # it overlaps, or the driver refuses it
            else:
                (record,) = (each for each in node.claims.prepared() if each.uid == claim[2])
                uuids = {each.uuid: (each.gpu, each.start) for each in node.driver.instances}
                assert [uuids[name] for name in node.visible(claim[2])] == [
                    (share.uuid, share.placement.start) for share in record.shares
                ]
        elif step == "unprepare" and live:
            node.claims.unprepare(live.pop(rng.randrange(len(live)))[2])
        elif step == "sweep":
            node.mig.reconcile()
        elif step == "restart":
            node.restart()
        elif step == "fault":
            node.driver.refuses = rng.sample(
                [(uuid, start) for uuid in (A, B) for start in range(7)], 3
            )
        elif step == "lost" and node.driver.instances:
            node.driver.instances.remove(rng.choice(node.driver.instances))
        held = [
            (share.uuid, share.placement.partition)
            for request in node.claims.prepared()
            for share in request.shares
        ]
        assert not any(
            first[0] == second[0] and first[1].overlaps(second[1])
            for first, second in itertools.combinations(held, 2)
        )
    node.mig.reconcile()
    left = {(each.gpu, each.start, each.size) for each in node.driver.instances}
    assert left <= {(uuid, place.start, place.size) for uuid, place in held}
