"""Templates of claims: made for pods that wait, removed when no pod uses them."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.claim_templates import (
    MAX_TEXT,
    ClaimRequest,
    ClaimTemplate,
    render_claim_request,
    template_name,
)
from hami.codec.keys import CLAIM_REQUEST
from hami.dra.templates import (
    BURST,
    BUSY_S,
    MAX_TEMPLATES,
    PERIOD_S,
    RETRY_S,
    SEEN_S,
    ClaimTemplates,
)
from hami.dra.watches import PodsWithClaims
from hami.errors import ClusterError
from tests.builders import pod, request
from tests.fake_cluster import FakeCluster, no_answer
from tests.world import Clock, Journal

HOUR = 3600.0


def text(memory=1000):
    return render_claim_request(ClaimRequest(requests={"main": request(1, memory)}))


def claiming(name="p", memory=1000, namespace="team", **fields):
    """A pod to which admission has given a claim."""
    return pod(name=name, namespace=namespace, annotations={CLAIM_REQUEST: text(memory)}, **fields)


def key(memory=1000, namespace="team"):
    return namespace, template_name(text(memory))


class World:
    """A cluster, and replicas that follow it. Changes are seen at once unless *lags*."""

    def __init__(self):
        self.clock, self.events = Clock(), Journal()
        self.fake, self.leads = FakeCluster(), True
        self.lags = False
        self.leader = self.replica()

    def replica(self):
        templates = ClaimTemplates(
            self.fake,
            self.events,
            lambda: self.leads and templates is self.leader,
            unused_s=HOUR,
            clock=self.clock,
        )
        for item in self.fake.pods.values():
            templates.pod_seen(item)
        for template in self.fake.claim_templates.values():
            templates.upsert(template, self.clock())
        templates.prune(
            {template.uid for template in self.fake.claim_templates.values()}, self.clock()
        )
        return templates

    def put(self, *pods):
        for item in pods:
            self.fake.put_pod(item)
            self.leader.pod_seen(self.fake.pods[item.ref.namespace, item.ref.name])

    def end(self, *pods):
        for item in pods:
            self.fake.delete_pod(item.ref.namespace, item.ref.name)
            self.leader.pod_gone(item.ref.uid)

    def step(self, seconds=0.0):
        """Lets *seconds* pass and the leader work; returns when it wants to work again."""
        self.clock.seconds += seconds
        before = dict(self.fake.claim_templates)
        delay = self.leader.step()
        if not self.lags:
            self.show(before)
        return delay

    def show(self, before):
        now = self.fake.claim_templates
        for gone in before.keys() - now.keys():
            self.leader.remove(before[gone])
        for new in now.keys() - before.keys():
            self.leader.upsert(now[new])

    def delete(self, where):
        self.leader.remove(self.fake.claim_templates.pop(where))

    @property
    def made(self):
        return sorted(self.fake.claim_templates)

    def writes(self, method="create_claim_template"):
        return len(self.fake.calls_of(method))


@pytest.fixture
def world():
    return World()


def test_a_waiting_pod_gets_the_template_that_it_names(world):
    world.put(claiming(memory=3000))
    world.step()
    (call,) = world.fake.calls_of("create_claim_template")
    assert call.namespace == "team"
    assert call.template["metadata"] == {
        "name": template_name(text(3000)),
        "labels": {"hami.io/claim-template": "true"},
    }
    (wanted,) = call.template["spec"]["spec"]["devices"]["requests"]
    assert wanted["exactly"]["capacity"] == {"requests": {"memory": "3000Mi"}}


def test_many_pods_make_one_template(world):
    world.put(*(claiming(f"p{number}") for number in range(20)))
    world.step()
    world.put(*(claiming(f"q{number}") for number in range(20)))
    world.step(1)
    assert world.writes() == 1


def test_namespaces_have_their_own_templates(world):
    world.put(claiming("a"), claiming("b", namespace="other"))
    world.step()
    assert world.made == [key(namespace="other"), key()]


@pytest.mark.parametrize(
    "item",
    [
        pod(name="p"),
        claiming(node_name="n1"),
        claiming(deleting=True),
        claiming(phase="Succeeded"),
        claiming(phase="Failed"),
        pod(name="p", annotations={CLAIM_REQUEST: "x" * (MAX_TEXT + 1)}),
    ],
)
def test_no_template_for_pods_that_need_none(world, item):
    world.put(item)
    world.step()
    assert world.fake.calls == []


def test_a_template_is_not_made_twice_before_the_watch_shows_it(world):
    world.lags = True
    world.put(claiming())
    for _ in range(5):
        world.step(SEEN_S / 6)
    assert world.writes() == 1


def test_a_deleted_template_comes_back_while_pods_wait(world):
    world.put(claiming("a"), claiming("b"))
    world.step()
    world.delete(key())
    world.step()
    assert world.made == [key()]
    assert world.writes() == 2
    world.put(claiming("a", node_name="n1"), claiming("b", node_name="n1"))
    world.delete(key())
    world.step(RETRY_S)
    assert world.made == []


def test_a_list_shows_which_templates_are_gone(world):
    world.put(claiming("a"), claiming("b", memory=2000))
    world.step()
    kept = world.fake.claim_templates[key(2000)]
    del world.fake.claim_templates[key()]
    world.leader.prune({kept.uid}, world.clock())
    world.step()
    assert world.writes() == 3
    assert world.made == sorted([key(), key(2000)])


def test_an_unused_template_is_removed_after_its_time(world):
    item = claiming()
    world.put(item)
    world.step()
    world.put(replace(item, node_name="n1"))
    world.step(2 * HOUR)
    assert world.made == [key()]
    world.end(item)
    world.step(HOUR - 1)
    assert world.made == [key()]
    world.step(1)
    assert world.made == []


def test_a_pod_that_has_terminated_uses_no_template(world):
    world.put(item := claiming())
    world.step()
    world.put(replace(item, node_name="n1", phase="Succeeded"))
    world.step(HOUR)
    assert world.made == []


def test_a_new_pod_makes_a_template_used_again(world):
    world.put(item := claiming("a"))
    world.step()
    world.end(item)
    world.step(HOUR - 1)
    world.put(claiming("b"))
    world.step(HOUR)
    assert world.made == [key()]
    assert world.writes() == 1


def test_a_pod_that_comes_while_its_template_is_removed_gets_another(world):
    world.put(item := claiming("a"))
    world.step()
    world.end(item)

    def comes(call):
        if call.method == "delete_claim_template":
            world.put(claiming("b"))

    world.fake.on_call = comes
    world.step(HOUR)
    world.step()
    assert world.made == [key()]
    assert world.writes() == 2


def test_only_the_leader_writes_and_the_next_one_goes_on(world):
    world.put(item := claiming("a"))
    world.leads = False
    assert world.step() == PERIOD_S
    assert world.fake.calls == []
    world.leads = True
    world.leader = world.replica()
    world.step()
    assert world.made == [key()]
    world.leader = world.replica()
    world.end(item)
    world.step(HOUR - 1)
    world.step(1)
    assert world.made == []
    assert world.writes() == 1


def test_nothing_is_written_before_all_templates_are_known(world):
    world.put(claiming())
    started = ClaimTemplates(
        world.fake, world.events, lambda: True, unused_s=HOUR, clock=world.clock
    )
    for waiting in world.fake.pods.values():
        started.pod_seen(waiting)
    started.step()
    assert not world.fake.claim_templates
    started.prune(set(), world.clock())
    started.step()
    assert len(world.fake.claim_templates) == 1


def test_a_template_of_somebody_else_is_left_alone(world):
    world.fake.claim_templates[key()] = ClaimTemplate(*key(), uid="theirs")
    world.lags = True
    world.put(claiming())
    for _ in range(10):
        world.step(RETRY_S / 10.5)
    assert world.writes() == 1
    assert world.fake.claim_templates[key()].uid == "theirs"


def test_a_template_that_is_only_labelled_like_ours_is_left_alone(world):
    theirs = ClaimTemplate("team", "hami-mine", uid="theirs")
    world.fake.claim_templates["team", "hami-mine"] = theirs
    world.leader.upsert(theirs)
    world.step(2 * HOUR)
    assert world.made == [("team", "hami-mine")]
    assert world.fake.calls == []


def test_another_template_of_the_name_is_not_removed(world):
    world.put(item := claiming())
    world.step()
    world.end(item)
    world.fake.claim_templates[key()] = ClaimTemplate(*key(), uid="theirs")
    world.step(HOUR)
    assert world.fake.claim_templates[key()].uid == "theirs"


def test_a_namespace_gets_a_bounded_number_of_writes(world):
    world.put(
        *(claiming(f"p{number}", memory=number + 1) for number in range(1000)),
        claiming("q", namespace="other"),
    )
    assert world.step() <= 1
    assert len(world.made) == BURST + 1
    assert key(namespace="other") in world.made
    for _ in range(10):
        world.step(1)
    assert len(world.made) == BURST + 11


def test_a_namespace_has_a_bounded_number_of_templates(world):
    pods = [claiming(f"p{number}", memory=number + 1) for number in range(MAX_TEMPLATES + 1)]
    world.put(*pods[:-1])
    while len(world.made) < MAX_TEMPLATES:
        world.step(BURST)
    world.put(pods[-1])
    world.step(BURST)
    assert len(world.made) == MAX_TEMPLATES
    assert world.events.reasons() == ["ClaimTemplateRefused"]
    world.end(pods[7])
    world.step(RETRY_S)
    assert len(world.made) == MAX_TEMPLATES
    assert key(8) not in world.made
    assert key(MAX_TEMPLATES + 1) in world.made


def test_an_annotation_that_cannot_be_read_is_told_once_a_minute(world):
    world.put(pod(name="p", namespace="team", annotations={CLAIM_REQUEST: '{"requests": []}'}))
    for _ in range(10):
        world.step(RETRY_S / 10.5)
    assert world.made == []
    assert len(world.events) == 1
    reason, message = world.events[0]
    assert reason == "ClaimTemplateRefused"
    assert CLAIM_REQUEST in message


def test_a_pod_that_was_replaced_meanwhile_makes_no_template(world):
    world.put(claiming())
    world.fake.put_pod(replace(claiming(memory=2000), ref=replace(claiming().ref, uid="another")))
    world.step()
    assert world.made == []
    assert world.events == []


def test_others_do_not_wait_long_because_a_pod_is_gone(world):
    world.put(claiming("a"), claiming("b"))
    world.fake.delete_pod("team", "a")
    world.step()
    world.leader.pod_gone(claiming("a").ref.uid)
    world.step(BUSY_S)
    assert world.made == [key()]
    assert world.events == []


@pytest.mark.parametrize(
    "error", [no_answer(), ClusterError("busy", 429, 1.0), ClusterError("broken", 500)]
)
def test_a_busy_api_server_is_asked_again_soon(world, error):
    world.put(claiming("a"))
    world.fake.fail("create_claim_template", error)
    assert world.step() == BUSY_S
    assert world.made == []
    world.step(BUSY_S)
    assert world.made == [key()]


def test_a_template_that_the_api_server_never_takes_keeps_no_other_waiting(world):
    world.put(claiming("a"), claiming("b", memory=2000))
    made = world.fake.create_claim_template

    def create(namespace, template):
        if template["metadata"]["name"] == template_name(text()):
            raise ClusterError("etcdserver: request is too large", 500)
        return made(namespace, template)

    world.fake.create_claim_template = create
    for _ in range(3):
        assert world.step(BUSY_S) == BUSY_S
    assert world.made == [key(2000)]


def test_a_refusal_of_the_api_server_is_shown_on_the_pod_and_others_go_on(world):
    world.put(claiming("a"), claiming("b", memory=2000))
    world.fake.fail("create_claim_template", ClusterError("exceeded quota", 403))
    world.step()
    assert world.made == [key(2000)]
    assert world.events == [("ClaimTemplateRefused", "exceeded quota")]
    world.step(RETRY_S)
    assert len(world.made) == 2


@given(seed=st.integers(0, 10**9))
def test_in_the_end_waiting_pods_have_their_templates_and_others_are_gone(seed):
    """Whatever comes, goes, fails and who leads."""
    rng, world = random.Random(seed), World()
    for _ in range(40):
        name, memory = f"p{rng.randrange(5)}", rng.randint(1, 3)
        match rng.choice(["put", "bind", "end", "delete", "fail", "lead", "step", "step"]):
            case "put" if ("team", name) not in world.fake.pods:
                world.put(claiming(name, memory, uid=f"{name}-{rng.random()}"))
            case "bind" if item := world.fake.pods.get(("team", name)):
                world.put(replace(item, node_name="n1"))
            case "end" if item := world.fake.pods.get(("team", name)):
                world.end(item)
            case "delete" if world.made:
                world.delete(rng.choice(world.made))
            case "fail":
                world.fake.fail(
                    rng.choice(["create_claim_template", "delete_claim_template"]),
                    no_answer(),
                    after=rng.random() < 0.5,
                )
            case "lead":
                world.leader = world.replica()
            case "step":
                world.step(rng.choice([0, 1, HOUR / 2]))
    world.fake.heal()
    world.leader = world.replica()
    for _ in range(3):
        world.step(RETRY_S)
    users = {
        ("team", template_name(item.annotations[CLAIM_REQUEST]))
        for item in world.fake.pods.values()
    }
    waiting = {
        ("team", template_name(item.annotations[CLAIM_REQUEST]))
        for item in world.fake.pods.values()
        if not item.node_name
    }
    assert waiting <= set(world.made)
    world.step(HOUR)
    assert set(world.made) <= users


class Sink:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))


def test_the_watch_of_pods_shows_them_to_both(world):
    pods, one, two = Sink(), claiming("a"), claiming("b", memory=2000)
    watched = PodsWithClaims(pods, world.leader)
    for item in (one, two):
        world.fake.put_pod(item)
        watched.upsert(item, 1.0)
    world.step()
    watched.remove(one)
    world.step(HOUR)
    assert world.made == [key(2000)]
    watched.prune(set(), 2.0)
    world.step(HOUR)
    assert world.made == []
    assert pods.calls == [
        ("upsert", one, 1.0),
        ("upsert", two, 1.0),
        ("remove", one),
        ("prune", set(), 2.0),
    ]
