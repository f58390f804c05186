"""The simulated device plugins of ``testing.agent``."""

import json
import threading

import pytest

from testing.agent import APPLIED, RESIZED, TARGET, NodeAgent
from testing.eventually import eventually
from testing.vendors import PHASE, VENDORS

POD = {
    "metadata": {
        "name": "p",
        "namespace": "n",
        "uid": "1",
        "annotations": {PHASE: "allocating", VENDORS[0].allocated: ""},
    },
    "spec": {"nodeName": "node"},
    "status": {},
}


class Kube:
    """Knows one fake node, and no lock on it."""

    def find(self, kind, name, namespace=None):
        return {"metadata": {"annotations": {"kwok.x-k8s.io/node": "fake"}}}


class Recorder(Kube):
    """Keeps what is written to pods."""

    def __init__(self):
        self.written = []

    def merge_patch(self, kind, name, patch, namespace):
        self.written.append((name, patch["metadata"]))


class Eager(threading.Condition):
    """Lets a worker in whenever the lock is released, as soon as it can be."""

    def __init__(self):
        super().__init__()
        self.worker = lambda: None

    def __exit__(self, *raised):
        super().__exit__(*raised)
        worker, self.worker = self.worker, lambda: None
        worker()


def test_a_pod_that_is_due_while_the_pods_are_listed_again_is_served():
    agent = NodeAgent(Kube(), delay=0)
    agent._see_pod("ADDED", POD)
    agent._changed = Eager()
    served = []
    agent._serve = served.append

    def work():
        uids = iter([agent._next(), None])
        agent._next = lambda: next(uids)
        agent._allocate()

    agent._changed.worker = work
    agent._see_pods([POD])
    assert served == [POD]


def resized(name="p", version="7", **notes):
    return {
        "metadata": {
            "name": name,
            "namespace": "n",
            "uid": name,
            "resourceVersion": version,
            "annotations": notes,
        },
        "spec": {"nodeName": "node"},
        "status": {},
    }


@pytest.fixture
def answers():
    """What an agent of one node writes; it is stopped at the end."""
    kube = Recorder()
    agent = NodeAgent(kube)
    agent._nodes = {"node": {}}
    thread = threading.Thread(target=agent._confirm)
    thread.start()
    yield agent, kube.written
    agent._ended.set()
    thread.join()


def answer(pod, sizes):
    meta = pod["metadata"]
    return meta["name"], {
        "resourceVersion": meta["resourceVersion"],
        "annotations": {APPLIED: json.dumps({"sizes": sizes})},
    }


def test_a_resized_pod_is_confirmed_once_with_what_it_is_to_have(answers):
    agent, written = answers
    grown, shrinking = (
        resized("a", **{RESIZED: "more"}),
        resized("b", **{RESIZED: "more", TARGET: "less"}),
    )
    for item in (
        grown,
        shrinking,
        grown,
        resized("c"),
        resized("d", **{RESIZED: "more", APPLIED: json.dumps({"sizes": "more"})}),
    ):
        agent._see_pod("MODIFIED", item)
    eventually(lambda: len(written) > 1, "both are answered")
    assert sorted(written, key=str)[:2] == [answer(grown, "more"), answer(shrinking, "less")]
    eventually(lambda: agent._resized == {}, "nothing is left to do")


def test_a_resize_that_does_not_hold_is_confirmed_later(answers):
    agent, written = answers
    held = {"a"}
    agent.confirms = lambda namespace, name: name not in held
    pods = [resized(name, **{RESIZED: "more", TARGET: "less"}) for name in "ab"]
    agent._see_pods(pods)
    eventually(lambda: written, "the other one is answered")
    assert written == [answer(pods[1], "less")]
    held.clear()
    eventually(lambda: len(written) > 1, "it is answered")
    assert written[1:] == [answer(pods[0], "less")]
