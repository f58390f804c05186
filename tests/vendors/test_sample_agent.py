"""The sample agent for vendors and the sample vendor agree: what one writes, the other reads."""

import importlib.util
import json
from pathlib import Path

import pytest
from kubernetes import client

from hami.codec.allocation import render_shares
from hami.model import Node, Share
from testing.cases import cases

pytestmark = pytest.mark.files
ROOT = Path(__file__).parents[2]


def loaded(path):
    """Returns the module in the file *path*."""
    spec = importlib.util.spec_from_file_location(path.stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def agent():
    pytest.importorskip("grpc")
    return loaded(Path("examples/vendor-agent/agent.py"))


@pytest.fixture(scope="module")
def acme():
    return loaded(Path("tests/example_vendor/acme_hami.py")).cards({})


def test_the_names_of_the_agent_are_those_of_the_vendor(agent, acme):
    assert agent.RESOURCE == acme.resources.count
    assert agent.REGISTER == acme.annotations.register
    assert agent.HANDSHAKE == acme.annotations.handshake
    assert agent.TO_ALLOCATE == acme.annotations.to_allocate
    assert agent.LOCK == acme.annotations.lock


def test_the_scheduler_reads_the_cards_that_the_agent_registers(agent, acme):
    node = Node(name="n1", annotations={agent.REGISTER: json.dumps(agent.DEVICES)})
    devices = acme.decision.inventory(acme, node)
    assert [(one.uuid, one.slots, one.memory_mib, one.healthy) for one in devices] == [
        ("ACME-0", 4, 16384, True),
        ("ACME-1", 4, 16384, True),
    ]


@cases(
    "containers, first, remaining",
    ("one", [[("ACME-0", 1000)]], [("ACME-0", 1000)], []),
    (
        "second of three",
        [[], [("ACME-0", 1000), ("ACME-1", 2000)], [("ACME-1", 5)]],
        [("ACME-0", 1000), ("ACME-1", 2000)],
        [("ACME-1", 5)],
    ),
)
def test_the_agent_reads_what_the_scheduler_allocates(agent, containers, first, remaining):
    text = render_shares(
        tuple(tuple(Share(card, "Acme", mib, 0) for card, mib in shares) for shares in containers)
    )
    shares, left = agent.next_container(text)
    assert shares == first
    assert left.count(";") == text.count(";")
    if remaining:
        assert agent.next_container(left)[0] == remaining
    else:
        assert left.strip(";") == ""


def test_a_pod_whose_containers_have_their_cards_is_an_error(agent):
    with pytest.raises(LookupError):
        agent.next_container(";;")


class Kubernetes:
    """An API server whose pod somebody else changes *conflicts* times while the agent takes its cards."""

    def __init__(self, agent, conflicts):
        self.conflicts, self.patches = conflicts, []
        self.node = client.V1Node(
            metadata=client.V1ObjectMeta(annotations={agent.LOCK: "now,default,pod1"})
        )
        text = render_shares(((Share("ACME-0", "Acme", 1000, 0),),))
        self.pod = client.V1Pod(
            metadata=client.V1ObjectMeta(
                name="pod1", namespace="default", annotations={agent.TO_ALLOCATE: text}
            )
        )

    def read_node(self, name):
        return self.node

    def read_namespaced_pod(self, name, namespace):
        return self.pod

    def patch_namespaced_pod(self, name, namespace, body):
        if self.conflicts:
            self.conflicts -= 1
            raise client.ApiException(409)
        self.patches.append(body["metadata"]["annotations"])

    def patch_node(self, name, body):
        self.patches.append(body["metadata"]["annotations"])


@pytest.mark.parametrize("conflicts", [0, 2])
def test_the_agent_takes_the_cards_though_others_change_the_pod(agent, monkeypatch, conflicts):
    """The kubelet fails a pod for good after an Allocate that fails."""
    api = Kubernetes(agent, conflicts)
    monkeypatch.setattr(agent.client, "CoreV1Api", lambda: api)
    assert agent.Cluster("n1").take(1) == [("ACME-0", 1000)]
    assert api.patches == [
        {agent.TO_ALLOCATE: api.patches[0][agent.TO_ALLOCATE], agent.PHASE: "success"},
        {agent.LOCK: None},
    ]


def test_a_container_sees_its_cards_and_limits(agent):
    assert agent.environment([("ACME-1", 1000), ("ACME-0", 2000)]) == {
        "ACME_VISIBLE_CARDS": "ACME-1,ACME-0",
        "ACME_MEMORY_LIMIT_0": "1000m",
        "ACME_MEMORY_LIMIT_1": "2000m",
    }
