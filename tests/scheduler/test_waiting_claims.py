"""The claims of pods that wait, made before they have a node."""

import contextlib
from dataclasses import replace

import pytest

from hami.codec.keys import ALLOCATION_MODE, GPU_POLICY, LOCK_FREE
from hami.dra.hami_claims import waiting_claim
from hami.errors import ClusterError, Conflict
from hami.runtime.settings import ALLOCATE
from hami.scheduler.settings import Settings
from hami.scheduler.waiting_claims import BATCH, WAIT_S, WaitingClaims
from hami.state.pending import NAMESPACE_LIMIT
from testing.builders import ONLY_NVIDIA, gpu, gpus, node, pod
from testing.cases import cases
from testing.fake_cluster import no_answer
from testing.replicas import replica

SMALL, LARGE = (
    gpu(f"GPU-{size}", index=index, memory_mib=size, by_claims=True)
    for index, size in enumerate((16_384, 65_536))
)


class Waiting:
    """A replica on a node with *cards*, and the task that makes claims."""

    def __init__(self, *pods, cards=(SMALL, LARGE), annotations=None):
        on = node(
            "n1",
            *cards,
            annotations={LOCK_FREE: "NVIDIA", ALLOCATION_MODE: "dra"} | (annotations or {}),
        )
        self.replica = replica(on, pods=pods, settings=Settings(dra=ALLOCATE))
        self.fake, self.clock = self.replica.fake, self.replica.clock
        self.leads = True
        self.task = WaitingClaims(
            self.replica.cache, self.fake, lambda: self.leads, "spread", clock=self.clock
        )

    def refuse(self, *pods):
        for one in pods:
            assert self.replica.filter(one) is None
        self.task.step()
        return self

    def step(self, seconds=0.0):
        """Lets time pass, then makes claims; returns the names of all there are."""
        self.clock.seconds += seconds
        self.task.step()
        return [name for _, name in self.fake.claims]

    def attempts(self):
        return len(self.fake.calls_of("create_claim"))


def waits(number=0, claim=True, namespace="default", **asked):
    """A pod that does not fit."""
    return pod(
        gpus(1, **{"memory": 70_000} | asked),
        name=f"p{number}",
        namespace=namespace,
        phase="Pending",
        claim=f"hami-{number:032x}" if claim else "",
    )


def requests(waiting):
    (claim,) = waiting.fake.claims.values()
    return claim["spec"]["devices"]["requests"]


def test_a_pod_that_waits_for_long_gets_its_claim():
    asked = waits(cores=30)
    waiting = Waiting(asked).refuse(asked)
    assert waiting.step(WAIT_S - 1) == []
    assert waiting.step(1) == [asked.claim]
    (claim,) = waiting.fake.claims.values()
    assert [owner["uid"] for owner in claim["metadata"]["ownerReferences"]] == [asked.ref.uid]
    assert claim["status"] == {}
    (request,) = requests(waiting)
    assert request["name"] == "c"
    assert request["exactly"]["capacity"]["requests"] == {"memory": "70000Mi", "cores": "30"}
    assert [toleration["key"] for toleration in request["exactly"]["tolerations"]] == [
        "hami.io/managed"
    ]
    for _ in range(3):
        waiting.step(60)
    assert waiting.attempts() == 1


def test_a_percentage_has_an_alternative_for_each_size():
    asked = waits(memory=None, percent=50)
    waiting = Waiting(
        asked, annotations={"hami.io/device-cordon": f"{SMALL.uuid},{LARGE.uuid}"}
    ).refuse(asked)
    waiting.step(WAIT_S)
    (request,) = requests(waiting)
    assert {
        part["name"]: part["capacity"]["requests"]["memory"] for part in request["firstAvailable"]
    } == {"m65536": "32Gi", "m16384": "8Gi"}
    assert all(part["tolerations"] for part in request["firstAvailable"])


def test_what_a_claim_cannot_say_of_a_policy_is_left_out():
    asked = replace(waits(), annotations={GPU_POLICY: "mutex,topology-aware"})
    waiting = Waiting(asked).refuse(asked)
    assert waiting.step(WAIT_S) == [asked.claim]


def test_a_pod_gets_the_claim_that_it_has_waited_with():
    asked = waits(memory=30_000)
    first = waits(1, memory=60_000)
    waiting = Waiting(asked, first)
    assert waiting.replica.filter(first) == "n1"
    waiting.refuse(asked).step(WAIT_S)
    before = dict(waiting.fake.claims)
    waiting.replica.cache.bindings.drop(waiting.replica.cache.bindings.get(first.ref.uid))
    assert waiting.replica.filter(asked) == "n1"
    waiting.replica.binder.bind(asked.ref, "n1")
    ((key, claim),) = waiting.fake.claims.items()
    assert claim["metadata"]["uid"] == before[key]["metadata"]["uid"]
    assert [result["device"] for result in claim["status"]["allocation"]["devices"]["results"]] == [
        "gpu-65536"
    ]


@pytest.mark.parametrize("change", ["bound", "deleted", "without a claim", "not leading"])
def test_no_claim_is_made_for_a_pod(change):
    asked = waits(claim=change != "without a claim")
    waiting = Waiting(asked).refuse(asked)
    if change == "bound":
        waiting.replica.cache.pods.upsert(replace(asked, node_name="n1", resource_version="9999"))
    elif change == "deleted":
        waiting.replica.cache.pods.remove(asked)
    waiting.leads = change != "not leading"
    assert waiting.step(WAIT_S) == []
    assert waiting.attempts() == 0


@cases(
    "error, attempts",
    ("no answer", no_answer(), 2),
    ("too many requests", ClusterError("busy", 429), 2),
    ("denied", ClusterError("denied", 403), 1),
    ("exists", Conflict("exists", 409), 1),
)
def test_what_may_have_a_temporary_cause_is_tried_again(error, attempts):
    asked = waits()
    waiting = Waiting(asked).refuse(asked)
    waiting.fake.fail("create_claim", error)
    waiting.step(WAIT_S)
    waiting.step(WAIT_S)
    assert waiting.attempts() == attempts


def test_a_pod_whose_claim_always_fails_keeps_no_other_from_its_own():
    failing, other = waits(0), waits(1)
    waiting = Waiting(failing, other).refuse(failing, other)
    waiting.fake.fail("create_claim", no_answer())
    assert waiting.step(WAIT_S) == []
    waiting.fake.fail("create_claim", no_answer(), after=True)
    assert waiting.step(1) == [other.claim]


def test_many_pods_get_their_claims_one_after_the_other():
    """More than the scheduler remembers as refused."""
    pods = [waits(number) for number in range(NAMESPACE_LIMIT + 1)]
    waiting = Waiting(*pods)
    for some in (pods[:300], pods[300:]):
        waiting.refuse(*some)
    made = {name for _ in range(NAMESPACE_LIMIT // BATCH + 1) for name in waiting.step(WAIT_S)}
    assert made == {one.claim for one in pods}
    assert waiting.attempts() == len(pods)


def test_so_many_claims_are_made_in_a_period():
    pods = [waits(number) for number in range(2 * BATCH + 1)]
    waiting = Waiting(*pods).refuse(*pods)
    made = [len(waiting.step(WAIT_S)) for _ in range(4)]
    assert made == [BATCH, 2 * BATCH, 2 * BATCH + 1, 2 * BATCH + 1]


def test_a_namespace_with_very_many_pods_delays_no_claim_of_another():
    pods = [waits(number) for number in range(2 * BATCH)]
    other = waits(2 * BATCH, namespace="other")
    waiting = Waiting(*pods, other).refuse(*pods, other)
    assert other.claim in waiting.step(WAIT_S)


@pytest.mark.parametrize("method", ["create_claim", "write_claim_status", "bind"])
def test_a_claim_that_is_made_during_the_binding_is_that_of_the_pod(method):
    """By the leader before, or since the list of waiting pods is older."""
    asked = waits(memory=30_000)
    waiting = Waiting(asked)
    assert waiting.replica.filter(asked) == "n1"

    def create(call):
        if call.method == method:
            waiting.fake.on_call = lambda call: None
            with contextlib.suppress(Conflict):
                waiting.fake.create_claim(
                    waiting_claim(
                        asked,
                        ONLY_NVIDIA,
                        "spread",
                        waiting.replica.cache.admissions.claimable_sizes,
                    ),
                    timeout=1,
                )

    waiting.fake.on_call = create
    waiting.replica.binder.bind(asked.ref, "n1")
    (claim,) = waiting.fake.claims.values()
    assert claim["status"]["allocation"]
    assert waiting.fake.pods["default", "p0"].node_name == "n1"
