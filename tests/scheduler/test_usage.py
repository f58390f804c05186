"""Who held how much is recorded: from the Binding of a pod to its end, by whoever leads."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hami.codec.config_maps import ConfigMapRecord
from hami.codec.keys import BIND_TIME, RESIZED
from hami.codec.usage_objects import (
    CURRENT,
    UNREADABLE,
    name_of_day,
    name_of_owners,
    parse_day_data,
    parse_owners_data,
    render_current,
)
from hami.codec.usage_sums import DAY_S, HOUR_S, HeldAmounts, OwnerKey, UsageKey, day_start
from hami.errors import ClusterError, Conflict
from hami.scheduler.usage import LAG_S
from hami.scheduler.usage_metrics import UsageMetrics
from testing.usage_stage import NAMESPACE, UsageReplica, UsageStage, bound, time_of


@pytest.fixture
def stage() -> UsageStage:
    return UsageStage()


def begun(stage: UsageStage, **settings: object) -> UsageReplica:
    """A replica that has begun to record 300 seconds ago."""
    replica = UsageReplica(stage, **settings)
    replica.step()
    replica.record()
    return replica


def ended(pod, at):
    return replace(pod, phase="Succeeded", finished=time_of(at))


def test_a_pod_counts_with_its_amounts_and_its_keys(stage):
    replica = begun(stage)
    replica.put(bound("a", stage.now, memory=10_000, cores=50))
    replica.record()
    day = stage.sums().day
    seconds = 300 - LAG_S
    key = UsageKey("default", "NVIDIA", "NVIDIA A40", "", "device-plugin")
    expected = HeldAmounts(seconds, seconds * 10_000, seconds * 50, seconds * 500, seconds * 250)
    assert day.sums() == {key: expected}
    assert day.owners == {
        OwnerKey("default", "Deployment", "web", "NVIDIA", "NVIDIA A40"): expected
    }


@pytest.mark.parametrize(
    ("memory", "cores", "share"),
    [(10_000, 10, 250), (10_000, 50, 500), (40_000, 100, 1000), (20_000, 0, 500), (0, 0, 100)],
    ids=["memory", "cores", "all", "no cores", "one slot of ten"],
)
def test_the_share_is_the_larger_one(stage, memory, cores, share):
    replica = begun(stage)
    replica.put(bound("a", stage.now, memory=memory, cores=cores))
    replica.record()
    (amounts,) = stage.sums().day.sums().values()
    assert amounts.share == (300 - LAG_S) * share


@pytest.mark.parametrize(
    ("finished", "counted"),
    [(100, 100), (-1000, 200), (+1000, 200), (None, 200)],
    ids=["known", "before the Binding", "in the future", "not known"],
)
def test_a_pod_ends_when_its_kubelet_says_if_that_can_be(stage, finished, counted):
    replica = begun(stage)
    pod = bound("a", stage.now)
    replica.put(pod)
    at = time_of(stage.now + finished) if finished is not None else ""
    stage.wait(200)
    replica.put(replace(pod, phase="Succeeded", finished=at))
    replica.record()
    assert stage.seconds() == counted


def test_a_pod_that_is_deleted_ends(stage):
    replica = begun(stage)
    pod = bound("a", stage.now)
    replica.put(pod)
    stage.wait(50)
    replica.delete(pod)
    replica.record()
    assert stage.seconds() == 50


def test_a_pod_that_went_unseen_ends_with_the_next_list(stage):
    replica = begun(stage)
    pod = bound("a", stage.now)
    replica.put(pod)
    stage.pods.clear()
    stage.wait(60)
    replica.relist()
    replica.record()
    assert stage.seconds() == 60


def test_pods_without_the_time_of_their_binding_count_from_their_start(stage):
    replica = begun(stage)
    without = bound("a", stage.now - 1000)
    without = replace(without, annotations={**without.annotations, BIND_TIME: ""})
    replica.put(replace(without, started=time_of(stage.now - 10)))
    forged = bound("b", stage.now)
    forged = replace(forged, annotations={**forged.annotations, BIND_TIME: "99999999999"})
    replica.put(replace(forged, started=""))
    replica.record()
    assert stage.seconds() == 2 * (300 - LAG_S) + 10


def test_a_resize_counts_from_when_it_is_booked(stage):
    replica = begun(stage)
    pod = bound("a", stage.now, memory=10_000, cores=0)
    replica.put(pod)
    stage.wait(100)
    shown = {**pod.annotations, RESIZED: "GPU-0,NVIDIA,20000,0:;"}
    replica.put(replace(pod, annotations=shown))
    replica.record()
    (amounts,) = stage.sums().day.sums().values()
    assert amounts.memory_mib == 100 * 10_000 + (300 - LAG_S) * 20_000


def test_a_device_that_its_node_does_not_name_counts_whole(stage):
    replica = UsageReplica(stage, nodes=())
    replica.step()
    replica.put(bound("a", stage.now, cores=0))
    replica.record()
    ((key, amounts),) = stage.sums().day.sums().items()
    assert key.model == "unknown"
    assert amounts.share == amounts.devices * 1000


def test_the_next_leader_goes_on(stage):
    first = begun(stage)
    second = UsageReplica(stage)
    second.leads = False
    pods = [bound(name, stage.now) for name in ("a", "b", "c")]
    for replica in (first, second):
        for pod in pods:
            replica.put(pod)
    first.record()
    stage.wait(40)
    second.put(ended(pods[0], stage.now - 20))
    second.delete(pods[1])  # it ended and went after the last record
    first.leads, second.leads = False, True
    second.step()
    second.record()
    assert stage.seconds() == 320 + 340 + (340 + 300 - LAG_S)


def test_a_leader_that_has_just_started_counts_pods_that_have_ended_since(stage):
    first = begun(stage)
    pod = bound("a", stage.now)
    first.put(pod)
    first.record()
    stage.wait(40)
    stage.pods[pod.ref.uid] = ended(pod, stage.now - 10)
    second = UsageReplica(stage)
    second.step()
    second.record()
    assert stage.seconds() == 330
    second.relist()
    second.record()
    assert stage.seconds() == 330


def test_of_two_leaders_one_is_refused_and_reads_what_the_other_wrote(stage):
    first = begun(stage)
    second = UsageReplica(stage)
    second.step()
    for replica in (first, second):
        replica.put(bound("a", stage.now))
    stage.wait(300)
    second.step()
    first.step()
    assert first.recorder.settled() is None
    first.step()
    first.record()
    second.record()
    assert stage.seconds() == 600 - LAG_S


def test_what_is_not_recorded_is_in_no_metric(stage):
    replica = begun(stage)
    registry = CollectorRegistry()
    registry.register(UsageMetrics(replica.recorder.counters, replica.recorder.settled))
    replica.put(bound("a", stage.now, memory=10_000, cores=50))
    replica.record()
    page = generate_latest(registry).decode()
    labels = '{model="NVIDIA A40",namespace="default",vendor="NVIDIA"}'
    assert f"hami_usage_gpu_seconds_total{labels} 135.0" in page
    assert f"hami_usage_core_seconds_total{labels} 135.0" in page
    assert f"hami_usage_memory_byte_seconds_total{labels} 2.8311552e+012" in page.replace(
        "e+12", "e+012"
    )
    stage.fake.fail("write_config_map", ClusterError("away"))
    replica.record()
    assert generate_latest(registry).decode() == page
    replica.leads = False
    replica.step()
    assert "135.0" not in generate_latest(registry).decode()


def test_a_write_that_failed_is_tried_again_with_all_that_has_come(stage):
    replica = begun(stage)
    replica.put(bound("a", stage.now))
    stage.fake.fail("write_config_map", ClusterError("away"), times=3)
    for _ in range(3):
        replica.record()
    replica.record()
    assert stage.seconds() == 4 * 300 - LAG_S


def test_while_the_watch_is_silent_nothing_is_settled(stage):
    replica = begun(stage)
    pod = bound("a", stage.now)
    replica.put(pod)
    replica.silence = 7200.0
    replica.record(7200)
    stage.pods[pod.ref.uid] = ended(pod, stage.now - 7000)
    replica.relist()
    replica.silence = 0.0
    replica.record()
    assert stage.seconds() == 200


def test_a_clock_that_is_set_back_an_hour_counts_nothing_twice(stage):
    replica = begun(stage)
    replica.put(bound("a", stage.now))
    replica.record()
    before = stage.seconds()
    stage.now -= HOUR_S
    replica.record()
    assert stage.seconds() == before
    stage.now += HOUR_S
    replica.record()
    assert stage.seconds() == 900 - LAG_S


def test_an_object_that_was_deleted_is_made_again(stage):
    replica = begun(stage)
    replica.put(bound("a", stage.now))
    replica.record()
    del stage.fake.config_maps[NAMESPACE, CURRENT]
    for _ in range(3):
        replica.record()
    assert stage.seconds() == 1200 - LAG_S


@pytest.mark.parametrize(
    "data",
    [{}, {"usage": "1:0:"}, {"usage": "edited", "owners": "x" * 100}],
    ids=["empty", "no checksum", "no version"],
)
def test_an_object_that_was_edited_is_kept_aside(stage, data):
    replica = begun(stage)
    replica.put(bound("a", stage.now))
    stage.fake.put_config_map(ConfigMapRecord(namespace=NAMESPACE, name=CURRENT, data=data))
    for _ in range(3):
        replica.record()
    assert stage.fake.config_maps[NAMESPACE, UNREADABLE].data == data
    assert 0 < stage.seconds() <= 900


def test_sums_of_a_time_far_in_the_future_are_kept_aside(stage):
    first = begun(stage)
    first.leads = False
    sums = replace(stage.sums(), settled=stage.now + 40 * DAY_S)
    sums = replace(sums, day=replace(sums.day, start=day_start(sums.settled)))
    stage.fake.put_config_map(render_current(NAMESPACE, "", sums))
    second = UsageReplica(stage)
    second.step()
    assert stage.sums().settled < stage.now
    assert (NAMESPACE, UNREADABLE) in stage.fake.config_maps


def test_an_object_of_a_later_version_is_left_alone(stage):
    data = {"usage": "2:0:", "owners": ""}
    stage.fake.put_config_map(ConfigMapRecord(namespace=NAMESPACE, name=CURRENT, data=data))
    replica = begun(stage)
    replica.record()
    assert stage.fake.config_maps[NAMESPACE, CURRENT].data == data
    assert list(stage.fake.config_maps) == [(NAMESPACE, CURRENT)]


def test_a_day_that_has_ended_moves_to_objects_of_its_own(stage):
    replica = begun(stage)
    replica.put(bound("a", stage.now))
    replica.record(DAY_S)
    start = day_start(stage.now) - DAY_S
    day = stage.fake.config_maps[NAMESPACE, name_of_day("2026-11-28")]
    owners = stage.fake.config_maps[NAMESPACE, name_of_owners("2026-11-28")]
    (sums,) = parse_day_data(day.data, start).sums().values()
    (of_owner,) = parse_owners_data(owners.data, start).values()
    assert sums == of_owner
    assert sums.devices == 12 * HOUR_S - 300
    assert stage.sums().day.start == start + DAY_S
    assert stage.seconds() == DAY_S - LAG_S


def test_a_leader_that_is_none_writes_no_day(stage):
    first = begun(stage)
    second = UsageReplica(stage)
    second.step()
    second.record()
    first.put(bound("a", stage.now))
    first.record(DAY_S)
    assert (NAMESPACE, name_of_day("2026-11-28")) not in stage.fake.config_maps


def test_a_day_whose_write_failed_is_written_with_the_next_record(stage):
    replica = begun(stage)
    replica.put(bound("a", stage.now))
    stage.fake.fail("write_config_map", ClusterError("away"))
    replica.record(DAY_S)
    assert stage.seconds() == 0
    replica.record()
    assert (NAMESPACE, name_of_day("2026-11-28")) in stage.fake.config_maps
    assert stage.seconds() == DAY_S + 300 - LAG_S


def test_old_days_are_deleted(stage):
    replica = begun(stage, usage_keep_days=3)
    for _ in range(6):
        replica.record(DAY_S)
    kept = sorted(name for _, name in stage.fake.config_maps)
    days = ["2026-12-01", "2026-12-02", "2026-12-03"]
    owners = [name_of_owners(day) for day in days]
    assert kept == [CURRENT, *map(name_of_day, days), *owners]


def test_at_a_stop_is_recorded_at_once(stage):
    replica = begun(stage)
    replica.put(bound("a", stage.now))
    stage.wait(100)
    replica.recorder.finish()
    assert stage.seconds() == 100 - LAG_S


def test_a_conflict_at_the_last_record_is_no_error(stage):
    replica = begun(stage)
    stage.fake.fail("write_config_map", Conflict("changed", 409))
    stage.wait(100)
    replica.recorder.finish()
