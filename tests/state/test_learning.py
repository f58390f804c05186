"""A process that decides nothing learns the usual pods from those that have devices."""

from hami.scheduling.usual_pods import UsualPod
from hami.state.workload import FIRST
from testing.builders import gpu, gpus, node, pod
from testing.stores import SmallStore, bound_to

DEVICES = [gpu(f"GPU-{place}", index=place) for place in range(4 * FIRST)]
SMALL = UsualPod("NVIDIA", 1, 30, memory_mib=3000)
LARGE = UsualPod("NVIDIA", 1, 60, memory_mib=3000)


class LearningStore(SmallStore):
    """The store of a node on which FIRST small pods have devices."""

    def __init__(self):
        super().__init__(node("n1", *DEVICES))
        self.held = 0
        self.hold(FIRST, 30)

    def hold(self, count, cores):
        for _ in range(count):
            name, device = f"p{self.held}", f"GPU-{self.held}"
            self.pods.upsert(bound_to(name, f"{device},NVIDIA,3000,{cores}:;"))
            self.held += 1

    def end(self, count):
        for number in range(count):
            self.pods.remove(bound_to(f"p{number}", ""))

    def usual(self):
        return set(self.view().facts.usual.kinds)


def test_pods_that_have_devices_are_usual():
    store = LearningStore()
    assert store.usual() == set()
    store.learn()
    assert store.usual() == {SMALL}


def test_pods_that_come_later_are_learnt_once_they_are_an_eighth_more():
    store = LearningStore()
    store.learn()
    version = store.version()
    store.hold(1, 60)
    store.learn()
    assert store.usual() == {SMALL}
    assert store.version()[-1] == version[-1]
    store.hold(1, 60)
    store.learn()
    assert store.usual() == {SMALL, LARGE}
    assert store.version()[-1] > version[-1]


def test_pods_that_take_the_place_of_others_are_learnt():
    store = LearningStore()
    store.learn()
    store.hold(FIRST, 60)
    store.end(FIRST)
    store.learn()
    assert store.usual() == {LARGE}


def test_a_process_that_decides_counts_what_it_places():
    store = LearningStore()
    asked = pod(gpus(1, memory=3000, cores=60), name="placed")
    assert store.place(asked) == "n1"
    assert store.usual() == {SMALL}
    version = store.version()
    store.hold(FIRST, 60)
    store.learn()
    assert store.version()[-1] == version[-1]
