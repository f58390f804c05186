"""MIG instances are created and destroyed with the pods that hold them."""

import json
from dataclasses import replace

import pytest

from hami.codec.mig import MigAllocation, render_mig_allocations
from hami.devices.cards import Instance
from hami.errors import Conflict, HamiError, HostError, Rejected
from hami.model import MigProfile, Partition
from hami.node.dynamic_mig import DynamicMig
from testing.cases import cases
from testing.fake_cluster import FakeCluster
from testing.plugin_stage import (
    AWAY,
    CARDS,
    NODE,
    PHASE,
    TO_ALLOCATE,
    A,
    B,
    C,
    Stage,
    asking,
    ids,
    lock_of,
    placed,
    share,
)

KEY = "hami.io/vgpu-mig-allocations"
PROFILE = MigProfile(
    name="1g.5gb", memory_mib=4864, cores=15, slices=1, placements=(Partition(0), Partition(1))
)
CUT = tuple(replace(card, mig=True, profiles=(PROFILE,)) for card in CARDS)


class Driver:
    """Instances in memory. *refuses*: placements (card, start) that cannot be created. ``lost``: unreadable cards.
    ``reads``: cards whose instances were read."""

    def __init__(self, *instances, refuses=()):
        self.instances = list(instances)
        self.refuses = refuses
        self.enabled = []
        self.lost = set()
        self.reads = []
        self.made = 0

    def existing(self, gpu):
        self.reads.append(gpu)
        if gpu in self.lost:
            raise HamiError(f"{gpu}: GPU is lost")
        return [one for one in self.instances if one.gpu == gpu]

    def create(self, gpu, profile, start, size):
        if (gpu, start) in self.refuses:
            raise HamiError(f"card {gpu}: insufficient resources")
        wanted = Partition(start, size)
        assert not any(
            one.gpu == gpu and Partition(one.start, one.size).overlaps(wanted)
            for one in self.instances
        )
        self.made += 1
        one = instance(gpu, start, profile, size, uuid=f"MIG-new-{self.made}")
        self.instances.append(one)
        return one

    def destroy(self, one):
        self.instances.remove(one)

    def enable_mig(self, gpu):
        if gpu == B and self.refuses:
            raise HamiError(f"card {gpu}: reset required")
        self.enabled.append(gpu)

    @property
    def uuids(self):
        return [one.uuid for one in self.instances]


def instance(gpu=A, start=0, profile="1g.5gb", size=1, **fields):
    return Instance(
        **{
            "gpu": gpu,
            "profile": profile,
            "start": start,
            "size": size,
            "uuid": f"MIG-{gpu[4:12]}-{start}",
            "gpu_instance": start + 7,
            "compute_instance": 0,
        }
        | fields
    )


def partition(start=0, gpu=A, container=0, device=0, profile="1g.5gb", size=1):
    return MigAllocation(
        container=container, device=device, gpu=gpu, partition=Partition(start, size, profile)
    )


def cut(*allocations, containers=None, name="p", **fields):
    """A pod with these placements, each in its container."""
    sizes = {}
    for one in allocations:
        sizes.setdefault(one.container, []).append(share(one.gpu, 4864, 15))
    return placed(
        *(containers or [asking(f"c{at}", len(shares)) for at, shares in sizes.items()]),
        name=name,
        shares=list(sizes.values()),
        annotations={KEY: render_mig_allocations(allocations)},
        **fields,
    )


def numbered(gpu, phase="Running"):
    """A pod with an instance on the card from HAMi v2.5 to v2.9, whose annotation has no placement."""
    return placed(asking(), shares=[[share(f"{gpu}[1-0]", 4864, 15)]], phase=phase)


def garbled(text_of_mig="[", **fields):
    """A pod with a malformed annotation of its instances."""
    return placed(
        asking(), **{"name": "bad", "phase": "Running", "annotations": {KEY: text_of_mig}} | fields
    )


def mig_of(driver, *pods, cluster=None, cards=CUT, **options):
    """Dynamic MIG on a node with these pods."""
    cluster = cluster or FakeCluster(pods=pods)
    return DynamicMig(lambda: cluster.pods_on(NODE), driver, lambda: cards, **options)


def stage_of(driver, pod, *others, cards=CUT):
    stage = Stage(pod, *others, lock=lock_of(pod), operating_mode="mig", cards=cards)
    stage.mig = mig_of(driver, cluster=stage.cluster, cards=cards)
    stage.start()
    return stage


def test_an_instance_is_created_recorded_and_made_visible():
    driver = Driver()
    stage = stage_of(driver, cut(partition(1)))
    grant = stage.allocator.allocate(ids(B))
    assert (grant.env, grant.mounts) == ({"NVIDIA_VISIBLE_DEVICES": "MIG-new-1"}, ())
    assert json.loads(stage.annotation(KEY)) == [
        {
            "containerIndex": 0,
            "deviceIndex": 0,
            "gpuUUID": A,
            "profile": "1g.5gb",
            "placement": {"start": 1, "size": 1},
            "migUUID": "MIG-new-1",
            "gpuInstanceID": 8,
            "computeInstanceID": 0,
        }
    ]
    assert (stage.annotation(TO_ALLOCATE), stage.annotation(PHASE), stage.node_lock) == (
        ";",
        "success",
        None,
    )
    assert stage.host.prepared == []


def test_all_instances_are_published_before_a_new_one_is_handed_out():
    driver, published, pod = Driver(instance(B, 1)), [], cut(partition(1))
    mig = mig_of(driver, pod, publish=lambda all: published.append([one.uuid for one in all]))
    mig.prepare(pod, 0, [share(A)])
    assert published == [driver.uuids[::-1]] == [["MIG-new-1", "MIG-00000001-1"]]
    mig.reconcile()
    assert published[1:] == [["MIG-new-1"]]


def test_an_instance_that_cannot_be_published_is_not_handed_out():
    def refuse(instances):
        if instances:
            raise HostError("/var/run/cdi: No space left on device")

    driver = Driver()
    mig = mig_of(driver, publish=refuse)
    with pytest.raises(HostError, match="No space left"):
        mig.prepare(cut(partition(1)), 0, [share(A)])
    assert driver.uuids == []


def test_each_container_has_instances_of_its_own():
    driver = Driver()
    stage = stage_of(
        driver,
        cut(partition(0), partition(1, container=1), partition(0, gpu=B, container=1, device=1)),
    )
    assert stage.allocator.allocate(ids(A)).env == {"NVIDIA_VISIBLE_DEVICES": "MIG-new-1"}
    stage.remember("c0")
    assert stage.allocator.allocate(ids(A, B)).env == {
        "NVIDIA_VISIBLE_DEVICES": "MIG-new-2,MIG-new-3"
    }
    assert [one["migUUID"] for one in json.loads(stage.annotation(KEY))] == [
        "MIG-new-1",
        "MIG-new-2",
        "MIG-new-3",
    ]


def test_no_instance_is_made_when_another_container_matches_that_a_late_watch_has_not_reported():
    driver, mine = Driver(), cut(partition(1))
    stage = stage_of(driver, mine)
    stage.cluster.put_pod(cut(partition(0), name="other"))
    stage.watch.lag = lambda: 1
    with pytest.raises(Rejected, match="2 containers match"):
        stage.allocator.allocate(ids(A))
    assert (stage.pod().annotations, driver.uuids) == (mine.annotations, [])
    stage.cluster.delete_pod("default", "other")
    assert stage.allocator.allocate(ids(A)).env == {"NVIDIA_VISIBLE_DEVICES": "MIG-new-1"}


def test_defect_12_a_pod_that_changes_meanwhile_is_read_again_and_the_instance_kept():
    driver = Driver()
    stage = stage_of(driver, cut(partition()))
    stage.cluster.fail("annotate_pod", Conflict("modified", 409), times=2)
    assert stage.allocator.allocate(ids(A)).env == {"NVIDIA_VISIBLE_DEVICES": "MIG-new-1"}
    assert driver.uuids == ["MIG-new-1"]


def test_an_existing_instance_is_used():
    driver = Driver(instance(start=1))
    stage = stage_of(driver, cut(partition(1)))
    assert stage.allocator.allocate(ids(A)).env == {
        "NVIDIA_VISIBLE_DEVICES": instance(start=1).uuid
    }


def test_created_instances_are_destroyed_when_another_cannot_be_created():
    driver = Driver(refuses=[(A, 1)])
    stage = stage_of(driver, cut(partition(0), partition(1, device=1)))
    with pytest.raises(HamiError, match="insufficient resources"):
        stage.allocator.allocate(ids(A, A))
    assert driver.uuids == []
    assert (stage.annotation(PHASE), stage.node_lock) == ("failed", None)


def test_an_unused_instance_in_the_way_is_destroyed_first():
    driver = Driver(instance(start=0, profile="2g.10gb", size=2))
    stage = stage_of(driver, cut(partition(1)))
    assert stage.allocator.allocate(ids(A)).env == {"NVIDIA_VISIBLE_DEVICES": "MIG-new-1"}
    assert driver.uuids == ["MIG-new-1"]


@cases(
    "other, busy",
    (
        "of another pod",
        [cut(partition(0, profile="2g.10gb", size=2), name="other", phase="Running")],
        False,
    ),
    ("in use", [], True),
)
def test_a_used_instance_in_the_way_is_kept(other, busy):
    driver = Driver(instance(start=0, profile="2g.10gb", size=2, busy=busy))
    stage = stage_of(driver, cut(partition(1)), *other)
    stage.remember("c0", "other")
    with pytest.raises(Rejected, match=r"\(2g.10gb\) is in the way of 1g.5gb at 1 on card"):
        stage.allocator.allocate(ids(A))
    assert driver.uuids == [instance().uuid]


HALF = instance(uuid="")  # without a compute instance, and so without a UUID


@cases("there", ("incomplete", HALF), ("of another profile", instance(profile="1g.5gb+me")))
@cases("recorded", ("not recorded", ()), ("recorded", ("MIG-gone", "7", "0")))
def test_an_unsuitable_instance_at_the_placement_is_replaced(there, recorded):
    driver, place = Driver(there), partition()
    stage = stage_of(
        driver, cut(replace(place, partition=replace(place.partition, instance=recorded)))
    )
    assert stage.allocator.allocate(ids(A)).env == {"NVIDIA_VISIBLE_DEVICES": "MIG-new-1"}
    assert json.loads(stage.annotation(KEY))[0]["migUUID"] == "MIG-new-1"
    assert driver.uuids == ["MIG-new-1"]


@cases(
    "there, others, says",
    (
        "incomplete",
        replace(HALF, busy=True),
        [],
        "MIG instance 7 .incomplete. .1g.5gb. is in the way",
    ),
    ("of another profile, in use", instance(profile="1g.5gb+me", busy=True), [], "in the way"),
    (
        "of another pod",
        instance(profile="1g.5gb+me"),
        [cut(partition(profile="1g.5gb+me"), name="other", phase="Running")],
        "in the way",
    ),
)
def test_an_unsuitable_instance_that_may_be_in_use_is_kept(there, others, says):
    driver = Driver(there)
    stage = stage_of(driver, cut(partition()), *others)
    stage.remember("c0", "other")
    with pytest.raises(Rejected, match=says):
        stage.allocator.allocate(ids(A))
    assert driver.instances == [there]


def test_a_pod_s_own_instance_is_used_under_any_profile_name():
    there, place = instance(profile="1g.6gb", busy=True), partition()
    named = replace(place.partition, instance=(there.uuid, "7", "0"))
    stage = stage_of(Driver(there), cut(replace(place, partition=named)))
    assert stage.allocator.allocate(ids(A)).env == {"NVIDIA_VISIBLE_DEVICES": there.uuid}


@cases("recorded", ("unknown", False), ("its own", True))
def test_an_instance_in_use_at_the_placement(recorded):
    there = instance(busy=True)
    place = partition()
    if recorded:
        place = replace(place, partition=replace(place.partition, instance=(there.uuid, "7", "0")))
    stage = stage_of(Driver(there), cut(place))
    if recorded:
        assert stage.allocator.allocate(ids(A)).env == {"NVIDIA_VISIBLE_DEVICES": there.uuid}
    else:
        with pytest.raises(Rejected, match="in use by processes of no known pod"):
            stage.allocator.allocate(ids(A))


@cases(
    "pod, why",
    ("no places", placed(asking(), shares=[[share(A)]]), "has 0 instances for container 0"),
    (
        "on another card",
        placed(
            asking(),
            shares=[[share(A)]],
            annotations={KEY: render_mig_allocations([partition(gpu=B)])},
        ),
        "has 1 instances for container 0, which do not match its 1 shares",
    ),
    (
        "unreadable",
        placed(asking(), shares=[[share(A)]], annotations={KEY: "[{}]"}),
        "expected a list of MIG allocations",
    ),
)
def test_placements_that_do_not_match_the_shares_are_refused(pod, why):
    stage = stage_of(Driver(), pod)
    with pytest.raises(HamiError, match=why):
        stage.allocator.allocate(ids(A))
    assert (stage.annotation(PHASE), stage.node_lock) == ("failed", None)


def test_mig_mode_is_enabled_before_an_instance_is_created():
    driver = Driver()
    stage = stage_of(
        driver,
        cut(partition(0), partition(1, device=1)),
        cards=(replace(CUT[0], mig=False), *CUT[1:]),
    )
    stage.allocator.allocate(ids(A, A))
    assert driver.enabled == [A]


@cases(
    "pods, busy, left",
    ("no pod", [], False, False),
    ("no pod, but in use", [], True, True),
    ("running", [cut(partition(), phase="Running")], False, True),
    ("about to start", [cut(partition())], False, True),
    (
        "defect 12: terminating, containers may run",
        [cut(partition(), phase="Running", deleting=True)],
        False,
        True,
    ),
    ("succeeded", [cut(partition(), phase="Succeeded")], False, False),
    ("failed", [cut(partition(), phase="Failed")], False, False),
    (
        "running, under another name",
        [cut(partition(profile="1g.6gb"), phase="Running")],
        False,
        True,
    ),
    ("another place", [cut(partition(1), phase="Running")], False, False),
    ("another card", [cut(partition(gpu=B), phase="Running")], False, False),
    ("another node", [cut(partition(), node="n2", phase="Running")], False, False),
    ("somewhere on the card, of v2.5 to v2.9", [numbered(A)], False, True),
    ("somewhere on another card", [numbered(B)], False, False),
    ("somewhere on the card, succeeded", [numbered(A, phase="Succeeded")], False, False),
)
def test_instances_are_destroyed_when_no_live_pod_holds_them(pods, busy, left):
    driver = Driver(instance(busy=busy))
    mig_of(driver, *pods).reconcile()
    assert bool(driver.instances) is left


def test_when_pods_cannot_be_listed_nothing_is_destroyed():
    driver = Driver(instance())
    cluster = FakeCluster(pods=[cut(partition(1), phase="Running")])
    cluster.fail("pods_on", AWAY)
    mig = mig_of(driver, cluster=cluster)
    with pytest.raises(HamiError):
        mig.reconcile()
    assert len(driver.instances) == 1


@cases(
    "pod, kept",
    ("on its cards", garbled(shares=[[share(A)]]), [A]),
    (
        "on several",
        garbled(shares=[[share(A)], [share(C)]], text_of_mig='[{"containerIndex": 0}]'),
        [A, C],
    ),
    ("terminating", garbled(shares=[[share(A)]], deleting=True), [A]),
    ("all handed out", garbled(shares=[[share(A)]], left=";"), [A]),
    ("on all, as its cards are unreadable too", garbled(text="GPU,", left=";"), [A, B, C]),
    ("not scheduled", garbled(text="", left=""), []),
    ("succeeded", garbled(shares=[[share(A)]], phase="Succeeded"), []),
)
def test_nothing_is_destroyed_on_the_cards_of_an_unreadable_pod(pod, kept, caplog):
    driver = Driver(instance(), instance(gpu=B), instance(gpu=C))
    mig = mig_of(driver, pod)
    mig.reconcile()
    mig.reconcile()
    assert [one.gpu for one in driver.instances] == kept
    assert [record.pod for record in caplog.records if record.levelname == "WARNING"] == [
        "default/bad"
    ] * bool(kept)


def test_an_unreadable_pod_does_not_block_other_pods():
    driver = Driver(instance(start=0, profile="2g.10gb", size=2), instance(gpu=B))
    stage = stage_of(driver, cut(partition(1)), garbled(shares=[[share(B)]]))
    stage.remember("c", "bad")
    assert stage.allocator.allocate(ids(A)).env == {"NVIDIA_VISIBLE_DEVICES": "MIG-new-1"}
    assert driver.uuids == [instance(gpu=B).uuid, "MIG-new-1"]


def test_a_lost_card_does_not_block_reconciling_the_others(caplog):
    driver, published = Driver(instance(), instance(gpu=B)), []
    cluster = FakeCluster(pods=[cut(partition(gpu=B), phase="Running")])
    mig = mig_of(
        driver, cluster=cluster, publish=lambda all: published.append([one.uuid for one in all])
    )
    mig.reconcile()
    driver.lost = {B}
    driver.instances.append(instance(start=1))
    cluster.delete_pod("default", "p")
    mig.reconcile()
    mig.reconcile()
    assert driver.uuids == [instance(gpu=B).uuid]
    assert published == [driver.uuids] * 3
    assert [record.card for record in caplog.records if record.levelname == "WARNING"] == [B]


def test_a_lost_card_does_not_block_instances_on_other_cards():
    driver = Driver()
    driver.lost = {B}
    stage = stage_of(driver, cut(partition()))
    stage.mig.start()
    driver.reads.clear()
    assert stage.allocator.allocate(ids(A)).env == {"NVIDIA_VISIBLE_DEVICES": "MIG-new-1"}
    assert driver.reads == [A]


def test_nothing_is_created_on_a_lost_card():
    driver = Driver()
    driver.lost = {A}
    stage = stage_of(driver, cut(partition()))
    with pytest.raises(HamiError, match="GPU is lost"):
        stage.allocator.allocate(ids(A))
    assert (driver.made, stage.annotation(PHASE)) == (0, "failed")


def test_an_instance_that_cannot_be_destroyed_does_not_block_the_others():
    driver = Driver(instance(), instance(start=1))

    def destroy(one):
        if one.start == 0:
            raise HamiError("in use")
        driver.instances.remove(one)

    driver.destroy = destroy
    assert mig_of(driver).reconcile() == [instance(start=1)]


def test_instances_on_cards_that_are_not_offered_are_kept():
    driver = Driver(instance(), instance(gpu=B))
    mig_of(driver, cards=CUT[:1]).reconcile()
    assert [one.gpu for one in driver.instances] == [B]


def test_a_restarted_plugin_keeps_held_instances_and_enables_mig_mode():
    driver = Driver(instance(), instance(start=1), instance(gpu=B), refuses=[()])
    cards = tuple(replace(card, mig=card.uuid == A) for card in CUT)
    mig_of(driver, cut(partition(), phase="Running"), cards=cards).start()
    assert driver.uuids == [instance().uuid]
    assert driver.enabled == [card.uuid for card in CARDS[2:]]  # the second must be reset first


def test_a_start_without_an_api_server_destroys_nothing():
    driver = Driver(instance())
    cluster = FakeCluster()
    cluster.fail("pods_on", AWAY)
    mig = mig_of(driver, cluster=cluster)
    mig.start()
    assert driver.uuids == [instance().uuid]


def test_sweeping_reconciles():
    driver = Driver(instance())
    stage = stage_of(driver, cut(partition(1)))
    stage.clean_up()
    assert driver.uuids == []
