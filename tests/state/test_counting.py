"""What counts of a pod, row by row, and when two events of a pod or a node meet."""

from dataclasses import replace

import msgspec

from hami.scheduling.refusal import Choice
from hami.state.counting import what_counts
from hami.state.promises import Promise, Stage
from hami.state.read_pod import PodRecord
from hami.state.sighting import Sighting
from testing.builders import booking, charge, gpu, gpus, node, pod
from testing.cases import cases
from testing.stores import SmallStore, bound_to

SEEN = Sighting(1000.0)
WAITING = PodRecord(
    ref=pod().ref,
    version=1,
    node="",
    scheduler_name="",
    assigned_node="",
    label=None,
    phase="Pending",
    bind_phase="",
    allocating=False,
    assigned_at=0,
    assigned=SEEN,
    bound_at=0,
    bound=SEEN,
    most_shares={"NVIDIA": 1},
    terminated=False,
    seen_at=1000.0,
)


def of(memory_mib):
    return booking("uid-pod1", "n1", charge("GPU-0", 1, memory_mib, 0))


BOUND = msgspec.structs.replace(WAITING, node="n1", allocated=(of(2), of(1)))
GROWING = msgspec.structs.replace(BOUND, growth=(of(4), of(3)))
ASSIGNED = msgspec.structs.replace(WAITING, allocated=(of(2), of(1)))
PROMISED = Promise(pod=pod(), choice=Choice("n1", (), (), 0, 1), booking=of(9), stage=Stage.ASSUMED)


@cases(
    "record, fields, promise, memory",
    ("nothing", WAITING, {}, None, None),
    ("promised", WAITING, {}, PROMISED, 9),
    ("bound", BOUND, {}, None, 2),
    ("bound, after init containers", BOUND, {"init_done": True}, None, 1),
    ("bound, with a promise that ends", BOUND, {}, PROMISED, 2),
    ("growing", GROWING, {}, None, 4),
    ("growing, after init containers", GROWING, {"init_done": True}, None, 3),
    ("assigned by another scheduler", ASSIGNED, {}, None, 2),
    ("assigned, but promised", ASSIGNED, {}, PROMISED, 9),
    ("terminated", BOUND, {"terminated": True}, PROMISED, None),
    ("terminated while growing", GROWING, {"terminated": True}, None, None),
)
def test_what_counts(record, fields, promise, memory):
    counts = what_counts(msgspec.structs.replace(record, **fields), promise)
    assert counts == (None if memory is None else of(memory))


def interrupt(monkeypatch, cache, event):
    """Delivers *event* once, after something has been read and before the lock is taken."""
    read, events = cache._reader.read, [event]

    def interrupted(*arguments):
        entry = read(*arguments)
        if events:
            events.pop()()
        return entry

    monkeypatch.setattr(cache._reader, "read", interrupted)


def test_a_pod_is_read_again_if_another_version_has_come_meanwhile(monkeypatch):
    store = SmallStore()
    bound = bound_to("a", "GPU-0,NVIDIA,3000,30:;")
    edited = bound_to("a", "GPU-1,NVIDIA,1,1:;", version="51")
    interrupt(monkeypatch, store.pods, lambda: store.pods.upsert(bound))
    store.pods.upsert(edited)
    assert store.used() == (1, 3000, 30)
    assert store.pods.edits_refused == 1


def test_a_pod_is_read_again_if_its_binding_has_been_written_meanwhile(monkeypatch):
    store = SmallStore()
    asked = pod(gpus(1, memory=3000, cores=30), resource_version="1")
    store.place(asked)
    promise = store.bindings.start(asked.ref, "n1")
    store.bindings.prepare(promise)
    interrupt(monkeypatch, store.pods, lambda: store.bindings.finish(promise))
    store.pods.upsert(bound_to("pod1", "GPU-0,NVIDIA,1,1:;"))
    assert store.used("GPU-1") == (1, 3000, 30)
    assert store.pods.edits_refused == 1


def test_a_node_is_read_again_if_another_version_has_come_meanwhile(monkeypatch):
    store = SmallStore(node("n1", resource_version="1"))
    first = node("n1", gpu("GPU-0"), resource_version="2", unschedulable=True)
    interrupt(monkeypatch, store.nodes, lambda: store.nodes.upsert(first))
    changes = store.nodes.changes
    store.nodes.upsert(replace(first, resource_version="3"))
    assert store.nodes.changes == changes + 2
    assert store.free()
