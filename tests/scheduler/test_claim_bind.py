"""The claim of a pod that gets its devices by one: written before the Binding, and again where an attempt died."""

import json

import pytest

from hami.codec.allocation import parse_shares
from hami.codec.claims import parse_claim
from hami.codec.hami_claims import booked_requests
from hami.codec.keys import ALLOCATION_MODE, LOCK_FREE
from hami.errors import ClusterError, Conflict, HamiError, NotFound, Rejected
from hami.runtime.settings import ALLOCATE
from hami.scheduler.settings import Settings
from testing.builders import NVIDIA, gpu, gpus, node, pod
from testing.cards import A100_PROFILES
from testing.fake_cluster import never_sent, no_answer
from testing.replicas import replica, without_names

NAME = "hami-" + "a" * 32
ASKED = pod(gpus(1, memory=3000, cores=30), phase="Pending", claim=NAME)
SETTINGS = Settings(dra=ALLOCATE)
CARDS = {f"GPU-{name}": gpu(f"GPU-{name}", by_claims=True) for name in "ab"}
WRITES = ["create_claim", "write_claim_status", "bind"]


def ready(settings=SETTINGS, asked=ASKED, allocation_mode="dra", cards=CARDS):
    """A replica that has filtered a pod, by default one with a claim."""
    scheduler = replica(
        node(
            "n1",
            *cards.values(),
            annotations={LOCK_FREE: "NVIDIA", ALLOCATION_MODE: allocation_mode},
        ),
        pods=[asked],
        settings=settings,
    )
    assert scheduler.filter(asked) == "n1"
    scheduler.fake.calls.clear()
    scheduler.events.clear()
    return scheduler


def bind(scheduler, asked=ASKED):
    scheduler.binder.bind(asked.ref, "n1")


def stored(scheduler):
    return scheduler.fake.claims["default", NAME]


def agrees(scheduler):
    """Reports whether the pod is bound, and its claim says what its annotations say."""
    bound = scheduler.fake.pods["default", "pod1"]
    claim = parse_claim(json.dumps(stored(scheduler)).encode())
    text = bound.annotations.get(NVIDIA.annotations.allocated, "")
    wanted = booked_requests(bound, bound.node_name, parse_shares("", text), CARDS)
    return wanted and claim.pods == (bound.ref,) and without_names(claim.requests) == wanted


def methods(scheduler):
    return [call.method for call in scheduler.fake.calls]


def test_a_claim_costs_two_writes_before_the_binding():
    scheduler = ready()
    bind(scheduler)
    assert methods(scheduler)[-3:] == WRITES
    assert "stored_claim" not in methods(scheduler)
    assert agrees(scheduler)
    assert stored(scheduler)["metadata"]["ownerReferences"][0]["uid"] == "uid-pod1"


def test_a_pod_without_a_claim_costs_nothing_more():
    asked = pod(gpus(1, memory=3000), phase="Pending")
    scheduler = ready(asked=asked, allocation_mode="")
    bind(scheduler, asked)
    assert not set(methods(scheduler)) & {"create_claim", "stored_claim", "write_claim_status"}
    assert scheduler.fake.claims == {}


def test_a_scheduler_that_makes_no_claims_refuses_a_pod_that_needs_one():
    scheduler = ready(settings=Settings())
    with pytest.raises(
        Rejected, match=f"claim {NAME}, which this scheduler does not make without --dra=allocate"
    ):
        bind(scheduler)
    assert not scheduler.fake.pods["default", "pod1"].node_name


def test_a_claim_of_somebody_else_is_named_and_stays_as_it_is():
    scheduler = ready()
    foreign = {
        "metadata": {
            "namespace": "default",
            "name": NAME,
            "uid": "u",
            "resourceVersion": "1",
            "ownerReferences": [{"uid": "uid-of-another"}],
        },
        "spec": {"devices": {"requests": [{"name": "c"}]}},
        "status": {},
    }
    scheduler.fake.claims["default", NAME] = foreign
    with pytest.raises(
        Conflict, match=f"claim default/{NAME} exists and does not belong to pod default/pod1"
    ):
        bind(scheduler)
    assert stored(scheduler) is foreign
    assert methods(scheduler)[-2:] == [
        "create_claim",
        "stored_claim",
    ]
    assert scheduler.events.reasons() == ["BindingFailed"]
    assert scheduler.cache.open_bindings.unbound() == 0


@pytest.mark.parametrize(
    ("method", "after"), [(method, after) for method in WRITES for after in (False, True)], ids=str
)
def test_an_attempt_that_died_is_completed(method, after):
    """A fault at any call, before or after it takes effect; the next leader gives the pod another card."""
    scheduler = ready()
    scheduler.fake.fail(method, ClusterError("etcd is full", 500), after=after)
    if method == "bind" and after:
        bind(scheduler)
    else:
        with pytest.raises(HamiError):
            bind(scheduler)
        first = scheduler.cache.bindings.get("uid-pod1")
        scheduler.cache.bindings.drop(scheduler.cache.bindings.get("uid-pod1"))
        blocker = pod(
            gpus(1, cores=100),
            name="blocker",
            phase="Pending",
            claim="hami-b",
            annotations={
                NVIDIA.annotations.selectors.use_uuids[0]: first.choice.placement[0][0].uuid
            },
        )
        scheduler.fake.put_pod(blocker)
        scheduler.schedule(blocker)
        assert scheduler.filter(ASKED) == "n1"
        bind(scheduler)
        assert (
            scheduler.fake.pods["default", "pod1"].annotations[NVIDIA.annotations.allocated]
            != (first.annotations[NVIDIA.annotations.allocated])
        )
    assert agrees(scheduler)


def test_another_attempt_of_the_same_reservation_finds_its_claim():
    scheduler = ready()
    scheduler.fake.fail("bind", never_sent())
    bind(scheduler)
    assert methods(scheduler)[-6:] == [
        "create_claim",
        "write_claim_status",
        "bind",
        "create_claim",
        "stored_claim",
        "bind",
    ]
    assert agrees(scheduler)


def test_another_reservation_of_the_same_devices_writes_the_claim_again():
    """The deallocation by an attempt that had no answer may arrive late: it finds another version then."""
    scheduler = ready()
    scheduler.fake.fail("bind", ClusterError("unavailable", 429), times=3)
    with pytest.raises(ClusterError):
        bind(scheduler)
    assert scheduler.filter(ASKED) == "n1"
    scheduler.fake.fail("write_claim_status", no_answer())
    with pytest.raises(ClusterError, match="timed out"):
        bind(scheduler)
    late = scheduler.fake.calls[-1]
    assert late.method == "write_claim_status"
    assert late.claim["status"] == {}
    assert scheduler.filter(ASKED) == "n1"
    bind(scheduler)
    assert methods(scheduler)[-5:] == [
        "create_claim",
        "stored_claim",
        "write_claim_status",
        "write_claim_status",
        "bind",
    ]
    with pytest.raises(Conflict):
        scheduler.fake.write_claim_status(late.claim, timeout=1.0)
    assert agrees(scheduler)


def test_a_claim_for_a_mig_instance_is_always_written():
    """Nothing in it tells for which reservation it was written: a deallocation by an earlier one may arrive late."""
    asked = pod(gpus(1, memory=3000), phase="Pending", claim=NAME)
    scheduler = ready(
        asked=asked, cards={"GPU-m": gpu("GPU-m", mode="mig", mig_profiles=A100_PROFILES)}
    )
    scheduler.fake.fail("bind", never_sent())
    bind(scheduler, asked)
    assert methods(scheduler)[-6:] == [
        "bind",
        "create_claim",
        "stored_claim",
        "write_claim_status",
        "write_claim_status",
        "bind",
    ]
    (result,) = stored(scheduler)["status"]["allocation"]["devices"]["results"]
    assert result["device"].startswith("gpu-m-mig-1g-10gb-")
    assert "shareID" not in result


def test_a_write_that_arrives_late_changes_nothing():
    """Each of the first attempt's writes, carried out again after the pod was bound by the second one."""
    scheduler = ready()
    scheduler.fake.fail("bind", ClusterError("unavailable", 429), times=3)
    with pytest.raises(ClusterError):
        bind(scheduler)
    late = [
        call
        for call in scheduler.fake.calls
        if call.method in ("create_claim", "write_claim_status")
    ]
    assert scheduler.filter(ASKED) == "n1"
    bind(scheduler)
    late += [call for call in scheduler.fake.calls if call.method == "write_claim_status"]
    before = stored(scheduler)
    for call in late:
        with pytest.raises(Conflict):
            getattr(scheduler.fake, call.method)(call.claim, timeout=1.0)
    assert stored(scheduler) is before
    assert agrees(scheduler)


def test_a_claim_that_changes_meanwhile_is_read_again():
    scheduler = ready()
    scheduler.fake.fail("write_claim_status", Conflict("modified", 409), times=2)
    bind(scheduler)
    assert methods(scheduler).count("stored_claim") == 2
    assert agrees(scheduler)


def test_a_claim_that_is_deleted_meanwhile_is_created_again():
    scheduler = ready()
    scheduler.fake.fail("create_claim", Conflict("exists", 409))
    bind(scheduler)
    assert agrees(scheduler)


def test_no_write_of_a_claim_begins_when_the_leadership_has_ended():
    scheduler = ready()

    def end(call):
        scheduler.leadership.leading &= call.method != "create_claim"

    scheduler.fake.on_call = end
    with pytest.raises(HamiError, match="no longer leads"):
        bind(scheduler)
    assert methods(scheduler)[-1] == "create_claim"
    assert {call.timeout for call in scheduler.fake.calls_of("create_claim")} == {10.0}


def test_the_pod_is_not_given_to_another_node_while_its_claim_is_written():
    scheduler = ready()
    refused = []

    def filter_again(call):
        if call.method == "write_claim_status":
            refused.append(scheduler.node_filter.filter(ASKED, ["n1"]).chosen)

    scheduler.fake.on_call = filter_again
    with pytest.raises(Rejected, match="is being bound"):
        bind(scheduler)


@pytest.mark.parametrize("error", [NotFound("namespace", 404), Conflict("modified", 409)])
def test_a_binding_without_an_answer_keeps_its_devices_when_the_claim_cannot_be_written(error):
    scheduler = ready()
    scheduler.fake.fail("bind", no_answer())
    with pytest.raises(ClusterError, match="no answer"):
        bind(scheduler)
    scheduler.fake.fail("create_claim", error, times=4)
    scheduler.fake.fail("stored_claim", error, times=4)
    with pytest.raises(ClusterError, match="no answer whether it was bound") as raised:
        bind(scheduler)
    assert not isinstance(raised.value, (NotFound, Conflict))
    assert scheduler.cache.bindings.get("uid-pod1").outcome_unknown
