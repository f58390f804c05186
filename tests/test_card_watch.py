"""The watch of cards finds a card that gives out more than it has, at the event at which it does."""

from testing.card_watch import CardWatch
from testing.nodes import fake_node, gpu
from testing.sandbox import ALLOCATED

NODE, CARD = "n", "GPU-n-0"


class Changes:
    """Stands in for the client: yields *changes* of pods on a node with one card of 1000 MiB and two slots."""

    def __init__(self, *changes):
        self._changes = changes

    def list(self, kind):
        assert kind == "Node"
        return [fake_node(NODE, [gpu(memory_mib=1000, slots=2)])]

    def follow(self, kind, ended, namespace):
        assert (kind, namespace) == ("Pod", None)
        yield from self._changes


def holding(name, memory, *, version, card=CARD, node=NODE, phase="Running"):
    return {
        "metadata": {
            "uid": f"uid-{name}",
            "name": name,
            "namespace": "test",
            "resourceVersion": version,
            "annotations": {ALLOCATED: f"{card},NVIDIA,{memory},10:;"},
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase},
    }


def wrong(*changes):
    with CardWatch(Changes(*changes)) as watch:
        pass
    return watch.wrong


def test_pods_that_end_leave_what_they_hold_to_others():
    assert (
        wrong(
            ("LISTED", {"items": [holding("a", 600, version="1")]}),
            ("ADDED", holding("waits", 600, version="2", node="")),
            ("DELETED", holding("a", 600, version="3")),
            ("MODIFIED", holding("waits", 600, version="4")),
            ("MODIFIED", holding("waits", 600, version="5", phase="Succeeded")),
            ("ADDED", holding("c", 1000, version="6")),
        )
        == []
    )


def test_a_card_that_gives_out_more_than_it_has_is_found():
    assert wrong(
        ("LISTED", {"items": None}),
        ("ADDED", holding("a", 600, version="1")),
        ("ADDED", holding("b", 600, version="2")),
        ("DELETED", holding("a", 600, version="3")),
        ("ADDED", holding("c", 100, version="4")),
        ("ADDED", holding("d", 100, version="5")),
    ) == [
        "at 2: GPU-n-0 has 1000 memory, 1200 are given out",
        "at 5: GPU-n-0 has 2 slots, 3 are given out",
    ]


def test_a_new_list_replaces_what_was_known():
    assert (
        wrong(
            ("LISTED", {"items": [holding("a", 600, version="1")]}),
            ("LISTED", {"items": [holding("b", 600, version="2")]}),
        )
        == []
    )


def test_a_card_that_does_not_exist_is_found():
    assert set(wrong(("ADDED", holding("a", 1, version="1", card="GPU-other")))) == {
        "at 1: n has no GPU-other"
    }
