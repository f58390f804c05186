"""Under faults and kills, the claim of each bound pod says what its annotations say, and none stays without its pod.

The storm is that of `test_faults`, on nodes whose cards are given by claims: a bind has two writes more, each of which
may fail, arrive late, be answered by nobody, or be the last of its process.
"""

import logging
from dataclasses import replace

import msgspec
import pytest

from hami.codec.allocation import parse_shares
from hami.codec.claims import parse_claim
from hami.codec.hami_claims import booked_requests
from hami.codec.keys import ALLOCATION_MODE
from hami.runtime.settings import ALLOCATE
from hami.scheduler.settings import Settings
from testing.builders import NVIDIA, gpu, gpus
from testing.replicas import without_names
from tests.scheduler.test_faults import STEPS, Client, Storm

PLACEMENTS, STORMS = 700, 15  # of a storm; 10,500 Bindings


class ClaimClient(Client):
    """The connection of a process that also writes claims."""

    hangs = 0.05

    def create_claim(self, claim, *, timeout):
        return self._write("create_claim", (claim,), {"timeout": timeout}, timeout)

    def write_claim_status(self, claim, *, timeout):
        return self._write("write_claim_status", (claim,), {"timeout": timeout}, timeout)

    def stored_claim(self, namespace, name, *, timeout):
        return self._call("stored_claim", namespace, name, timeout=timeout)


class ClaimStorm(Storm):
    """A storm in which all pods get their cards by claims."""

    client = ClaimClient
    settings = Settings(dra=ALLOCATE)
    of_nodes = {ALLOCATION_MODE: "dra"}

    def __init__(self, seed):
        self.judged = {}
        super().__init__(seed, "all")

    @property
    def steps(self):
        return STEPS | {ClaimStorm.collect: 4, ClaimStorm.touch_claim: 4}

    def asks(self):
        """Each fits an empty node."""
        rng = self.rng
        asks = [
            gpus(
                rng.choice((1, 1, 1, 2)),
                memory=rng.choice((500, 500, 1000, 2000, 3000, 8000)),
                cores=rng.choice((0, 0, 10, 20, 30, 100)),
            )
        ]
        if rng.random() < 0.3:
            asks.append(gpus(1, memory=rng.choice((500, 3000)), cores=rng.choice((0, 30))))
        return [replace(container, name=f"c{number}") for number, container in enumerate(asks)]

    def of_pod(self):
        return {"claim": f"hami-{self.made:032x}"}

    # what can happen

    def collect(self):
        """kube-controller-manager removes claims whose pods are gone."""
        self.fake.collect_claims()

    def touch_claim(self):
        """Somebody else changes a claim, so that compare-and-swaps fail."""
        if self.fake.claims:
            key = self.rng.choice(list(self.fake.claims)[-4:])
            claim = self.fake.claims[key]
            self.fake.claims[key] = {
                **claim,
                "metadata": {**claim["metadata"], "resourceVersion": self.fake._next_version()},
            }

    # what must hold

    def check(self):
        super().check()
        for key, claim in self.fake.claims.items():
            if self.judged.get(key) is not claim:
                self.judged[key] = claim
                owner = claim["metadata"]["ownerReferences"][0]
                held = self.fake.pods.get((key[0], owner["name"]))
                if held is not None and held.ref.uid == owner["uid"] and held.node_name:
                    self.check_claim(held)

    def check_pod(self, bound):
        super().check_pod(bound)
        held = self.fake.pods.get((bound.ref.namespace, bound.ref.name))
        if held is not None and held.ref.uid == bound.ref.uid:
            self.check_claim(bound)

    def check_claim(self, bound):
        """The claim of a bound pod says what its annotations say."""
        claim = parse_claim(msgspec.json.encode(self.fake.claims[bound.ref.namespace, bound.claim]))
        key = NVIDIA.annotations.allocated
        cards = {f"GPU-{bound.node_name[1]}{g}": gpu(memory_mib=8000, slots=5) for g in range(3)}
        wanted = booked_requests(
            bound, bound.node_name, parse_shares(key, bound.annotations[key]), cards
        )
        assert claim.pods == (bound.ref,)
        assert without_names(claim.requests) == wanted

    def end(self):
        """Lets the pods end until each that waits has been bound."""
        self.stormy = False
        for _ in range(20):
            self.settle()
            for ended in [p for p in self.fake.pods.values() if p.node_name]:
                self.fake.delete_pod(ended.ref.namespace, ended.ref.name)
            if not self.fake.pods:
                return
        raise AssertionError(f"never bound: {self.fake.pods.values()}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(STORMS))
def test_faults_leave_no_claim_that_differs_from_its_pod(seed):
    logging.getLogger().setLevel(logging.CRITICAL)  # there is much to complain about
    storm = ClaimStorm(seed)
    while storm.fake.bindings < PLACEMENTS:
        storm.step()
    storm.settle()
    storm.fake.collect_claims()
    pods = {p.ref.uid: p for p in storm.fake.pods.values()}
    for claim in storm.fake.claims.values():
        assert pods[claim["metadata"]["ownerReferences"][0]["uid"]].node_name or not claim["status"]
    storm.end()
    storm.fake.collect_claims()
    assert not storm.fake.claims
    assert storm.kills > 5
    assert storm.moves > 10
    assert storm.unconnected > 5
    calls = storm.fake.calls_of("write_claim_status")
    assert sum(not call.claim["status"] for call in calls) > 5, (
        "no claim of a dead attempt was written again"
    )
