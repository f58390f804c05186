"""The simulated device plugins of ``e2e.agent``."""

import threading

from e2e.agent import NodeAgent
from e2e.vendors import PHASE, VENDORS

POD = {"metadata": {"name": "p", "namespace": "n", "uid": "1",
                    "annotations": {PHASE: "allocating", VENDORS[0].allocated: ""}},
       "spec": {"nodeName": "node"}, "status": {}}


class Kube:
    """Knows one fake node, and no lock on it."""

    def find(self, kind, name, namespace=None):
        return {"metadata": {"annotations": {"kwok.x-k8s.io/node": "fake"}}}


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
