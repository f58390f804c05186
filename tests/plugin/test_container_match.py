"""Matches Allocate calls to containers by node lock, annotations and checkpoint."""

import pytest

from hami.codec.keys import RESIZE_TARGET, RESIZED
from hami.devices.config import PluginConfig
from hami.devices.inventory import InventorySnapshot
from hami.errors import MalformedInput, Rejected
from hami.plugin.container_match import (
    ContainerMatch,
    NoMatch,
    PodRejection,
    card_uuid,
    cards_of,
    container_shares,
    find_container,
    is_done_with_lock,
    preferred_ids,
)
from testing.builders import NVIDIA
from testing.builders import pod as make_pod
from testing.cases import cases
from testing.plugin_stage import (
    ALLOCATED,
    CARDS,
    FPGA,
    GPU,
    INIT,
    NODE,
    PHASE,
    TO_ALLOCATE,
    A,
    B,
    C,
    D,
    asking,
    call,
    ids,
    placed,
    share,
    uuid,
)

OTHERS = FPGA.annotations.to_allocate
HOLDER = ("default", "p")
HOLDS = "pod default/p holds the node lock, but"
REFUSED = "p refused: pod default/p cannot be served:"


def summary(found):
    """An outcome in one line: the container with the memory of its shares, or the reason for the refusal."""
    match found:
        case ContainerMatch(container=container, pod=pod):
            return f"{pod.ref.name}/{container.name}: " + " ".join(
                str(share.memory_mib) for share in container.shares
            )
        case PodRejection(pod=pod, reason=reason):
            return f"{pod.ref.name} refused: {reason}"
        case NoMatch(reason=reason):
            return reason


ONE = placed(asking(), shares=[[share(A, 1)]])
TWO = placed(asking("x"), asking("y", 2), shares=[[share(A, 1)], [share(B, 2), share(C, 3)]])


def two(**fields):
    """A pod of two containers, with a card each."""
    return placed(asking("x"), asking("y"), shares=[[share(A, 1)], [share(B, 2)]], **fields)


HALF = two(left=f";{B},NVIDIA,2,0:;")
TAKEN = f"{A},NVIDIA,1,0:;"


def held(**fields):
    """A pod of one container, which card A was given to."""
    return placed(asking(), text=TAKEN, **fields)


@cases(
    "pod, request_, outcome",
    ("one container", ONE, call(), "p/c: 1"),
    ("the first of two", TWO, call(1), "p/x: 1"),
    ("the first requests less", TWO, call(2), f"{HOLDS} its next container, x, gets 1"),
    (
        "the second of two",
        placed(
            asking("x"),
            asking("y", 2),
            shares=[[share(A, 1)], [share(B, 2), share(C, 3)]],
            left=f";{B},NVIDIA,2,0:{C},NVIDIA,3,0:;",
        ),
        call(2),
        "p/y: 2 3",
    ),
    (
        "one requests none",
        placed(asking("x", 0), asking("y"), shares=[[], [share(A, 1)]]),
        call(),
        "p/y: 1",
    ),
    (
        "init containers first",
        placed(asking("i", kind=INIT), asking("x"), shares=[[share(A, 1)], [share(B, 2)]]),
        call(),
        "p/i: 1",
    ),
    (
        "an init container that requests none",
        placed(asking("i", 0, kind=INIT), asking("x"), shares=[[], [share(B, 2)]]),
        call(),
        "p/x: 2",
    ),
    ("without a checkpoint the next in order", HALF, call(), "p/y: 2"),
    ("the kubelet has the first", HALF, call(served=[("uid-p", "x")]), "p/y: 2"),
    ("repeated call: the kubelet has lost the first", HALF, call(served=[]), "p/x: 1"),
    (
        "repeated call: all consumed",
        placed(asking("x"), shares=[[share(A, 1)]], left=";"),
        call(),
        "p/x: 1",
    ),
    (
        "repeated call: the lock was left behind",
        placed(asking("x"), shares=[[share(A, 1)]], left=";", bind_phase="success"),
        call(),
        "p/x: 1",
    ),
    (
        "repeated call: for one of two",
        two(left=";;"),
        call(),
        f"{HOLDS} all its containers have their devices",
    ),
    (
        "repeated call: for one of two, the checkpoint tells",
        two(left=";;"),
        call(served=[("uid-p", "x")]),
        "p/y: 2",
    ),
    (
        "the kubelet has all of the pod",
        ONE,
        call(served=[("uid-p", "c")]),
        f"{HOLDS} all its containers have their devices",
    ),
    ("revoked", held(left="", bind_phase="failed"), call(), f"{REFUSED} its bind-phase is failed"),
    ("emptied", held(left=""), call(), f"{HOLDS} its allocation was revoked"),
    ("bound without a lock", held(left="", bind_phase="success"), call(served=[]), "p/c: 1"),
    (
        "bound without a lock: the checkpoint tells which container",
        two(left="", bind_phase="success"),
        call(served=[("uid-p", "x")]),
        "p/y: 2",
    ),
    (
        "without an allocation",
        placed(asking(), text="", left="", bind_phase="success"),
        call(served=[]),
        f"{REFUSED} it has no allocation",
    ),
    ("failed", held(bind_phase="failed"), call(), f"{REFUSED} its bind-phase is failed"),
    (
        "placed elsewhere",
        held(annotations={"hami.io/vgpu-node": "n2"}),
        call(),
        f"{REFUSED} it was not assigned to node n1 by HAMi's scheduler",
    ),
    ("running already", held(phase="Running"), call(), f"{HOLDS} it is Running on n1"),
    ("bound elsewhere", held(node="n2"), call(), f"{HOLDS} it is Pending on n2"),
    (
        "text without shares",
        placed(asking(), text="GPU-x"),
        call(),
        (
            "p refused: hami.io/vgpu-devices-allocated: expected as many shares "
            "as the containers request: 1 for c: 'GPU-x'"
        ),
    ),
    (
        "text cut short",
        placed(asking(), text="GPU-x,NVIDIA:;"),
        call(),
        (
            "p refused: hami.io/vgpu-devices-allocated: pod annotation "
            "format error, missing fields, do not use nodeName in task spec: 'GPU-x,NVIDIA'"
        ),
    ),
    (
        "more shares than requested",
        placed(asking(), shares=[[share(A), share(B)]]),
        call(),
        (
            "p refused: hami.io/vgpu-devices-allocated: "
            "expected as many shares as the containers request: 1 for c: "
            f"'{A},NVIDIA,1000,0:{B},NVIDIA,1000,0:;'"
        ),
    ),
    (
        "texts that differ",
        held(left=f"{A},NVIDIA,2,0:;"),
        call(),
        (
            f"p refused: {TO_ALLOCATE}: "
            f"expected a part of hami.io/vgpu-devices-allocated: '{A},NVIDIA,2,0:;'"
        ),
    ),
)
def test_the_holder_of_the_lock(pod, request_, outcome):
    assert summary(find_container([pod], HOLDER, request_)) == outcome


def other(name, memory=9, count=1, **fields):
    """Another pod on the node, whose one container holds so many shares."""
    shares = fields.pop("shares", [[share(D, memory)] * count])
    return placed(asking(count=count), shares=shares, name=name, **fields)


REVOKED = other("old", left="", bind_phase="failed")
FOREIGN = make_pod(asking(), name="foreign", node_name=NODE, phase="Pending")
RUNNING = other("runs", left=";", bind_phase="success", phase="Running")
PULLING = other("pulls", left=";", bind_phase="success")
LOST, END = "; the kubelet's checkpoint has lost", ": delete these pods, or drain the node"
MISMATCH = f"{HOLDS} its next container, x, gets 1"


@cases(
    "pods, holder, request_, outcome",
    ("others have their devices", [ONE, RUNNING, PULLING], HOLDER, call(), "p/c: 1"),
    (
        "others have their devices, by the checkpoint",
        [ONE, RUNNING, PULLING],
        HOLDER,
        call(served=[("uid-runs", "c"), ("uid-pulls", "c")]),
        "p/c: 1",
    ),
    (
        "a revoked pod may be asking, too",
        [ONE, REVOKED],
        HOLDER,
        call(),
        "2 containers match, of default/old, default/p",
    ),
    (
        "a revoked pod may be asking, too, by the checkpoint",
        [ONE, REVOKED],
        HOLDER,
        call(served=[]),
        "2 containers match, of default/old, default/p",
    ),
    (
        "a pod of another scheduler may be asking, too",
        [ONE, FOREIGN],
        HOLDER,
        call(),
        "2 containers match, of default/foreign, default/p",
    ),
    (
        "the kubelet has lost the record of a pod that runs",
        [ONE, RUNNING],
        HOLDER,
        call(served=[]),
        f"2 containers match, of default/p, default/runs{LOST} default/runs{END}",
    ),
    (
        "the kubelet has lost the record of two that run",
        [
            ONE,
            RUNNING,
            other("also", left=";", bind_phase="success", phase="Running"),
            PULLING,
            REVOKED,
        ],
        HOLDER,
        call(served=[]),
        (
            "5 containers match, of default/also, default/old, default/p, default/pulls, "
            f"default/runs{LOST} default/also, default/runs{END}"
        ),
    ),
    (
        "of those that run, none was handed its devices",
        [
            ONE,
            other("half", phase="Running"),
            other("bad", left=";", bind_phase="failed", phase="Running"),
        ],
        HOLDER,
        call(served=[]),
        "3 containers match, of default/bad, default/half, default/p",
    ),
    ("nobody requests two", [TWO, REVOKED], HOLDER, call(2), MISMATCH),
    (
        "a revoked pod alone requests two",
        [TWO, other("old", count=2, left="", bind_phase="failed")],
        HOLDER,
        call(2),
        "old refused: pod default/old cannot be served: its bind-phase is failed",
    ),
    (
        "terminated",
        [TWO, other("old", count=2, left="", bind_phase="failed", phase="Failed")],
        HOLDER,
        call(2),
        MISMATCH,
    ),
    (
        "another than the holder, which has no lock",
        [TWO, other("q", count=2, shares=[[share(C, 7), share(D, 8)]])],
        HOLDER,
        call(2),
        "q/c: 7 8",
    ),
    ("no lock", [ONE], None, call(), "p/c: 1"),
    (
        "no lock, and two",
        [ONE, other("q")],
        None,
        call(),
        "2 containers match, of default/p, default/q",
    ),
    (
        "no lock, placed by another scheduler",
        [FOREIGN],
        None,
        call(),
        "foreign refused: pod default/foreign cannot be served: it was not assigned to node n1 by HAMi's scheduler",
    ),
    (
        "no lock, no checkpoint, all served",
        [RUNNING],
        None,
        call(),
        "no pod on the node is waiting for that many",
    ),
    ("the kubelet has lost its checkpoint", [RUNNING], None, call(served=[]), "runs/c: 9"),
    (
        "the kubelet has lost one",
        [RUNNING, PULLING],
        None,
        call(served=[("uid-runs", "c")]),
        "pulls/c: 9",
    ),
    (
        "the kubelet has lost its checkpoint, and either container may have restarted",
        [two(left=";;", bind_phase="success", phase="Running")],
        None,
        call(served=[]),
        f"2 containers match, of default/p{LOST} default/p{END}",
    ),
    (
        "on another node",
        [other("q", node="n2")],
        None,
        call(),
        "no pod on the node is waiting for that many",
    ),
    ("nobody", [], None, call(), "no pod on the node is waiting for that many"),
)
def test_a_call_is_answered_only_if_exactly_one_container_matches(pods, holder, request_, outcome):
    assert summary(find_container(pods, holder, request_)) == outcome


@cases(
    "pod, request_, writes, finished",
    ("the only one", ONE, call(), {TO_ALLOCATE: ";", PHASE: "success"}, True),
    ("the first of two", TWO, call(), {TO_ALLOCATE: f";{B},NVIDIA,2,0:{C},NVIDIA,3,0:;"}, False),
    ("the second of two", HALF, call(), {TO_ALLOCATE: ";;", PHASE: "success"}, True),
    ("consumed, success not written", held(left=";"), call(), {PHASE: "success"}, True),
    ("consumed", held(left=";", bind_phase="success"), call(), {}, True),
    (
        "another vendor's devices are outstanding",
        held(annotations={OTHERS: "f,FPGA,1,0:;"}),
        call(other_keys=(OTHERS,)),
        {TO_ALLOCATE: ";"},
        False,
    ),
    (
        "another vendor's devices are handed out",
        held(annotations={OTHERS: ";"}),
        call(other_keys=(OTHERS,)),
        {TO_ALLOCATE: ";", PHASE: "success"},
        True,
    ),
    (
        "another vendor's text cannot be read",
        held(annotations={OTHERS: "f,"}),
        call(other_keys=(OTHERS,)),
        {TO_ALLOCATE: ";"},
        False,
    ),
    (
        "the kubelet has the first, which was never recorded",
        TWO,
        call(2, served=[("uid-p", "x")]),
        {TO_ALLOCATE: ";;", PHASE: "success"},
        True,
    ),
)
def test_recorded_annotations(pod, request_, writes, finished):
    found = find_container([pod], HOLDER, request_)
    assert (found.annotations, found.finished) == (writes, finished)


# What schedulers have written, version by version, for a pod of these containers: (name, devices, init).
APPS = (asking("x", 0), asking("y"))
RECORDED = [
    (
        "v2.4 one",
        (asking("c"),),
        "GPU-03f69c50-207a-2038-9b45-23cac89cb67d,NVIDIA,3000,30:;",
        {"c": [3000]},
    ),
    (
        "v2.4 two",
        (asking("x"), asking("y")),
        f"{A},NVIDIA,1,0:;{B},NVIDIA,2,0:;",
        {"x": [1], "y": [2]},
    ),
    ("v2.4 to v2.6 placeholder", APPS, f",,0,0:;{A},NVIDIA,2,0:;", {"y": [2]}),
    (
        "v2.4 to v2.6 placeholders for several devices",
        APPS,
        f",,0,0:,,0,0:;{A},NVIDIA,2,0:;",
        {"y": [2]},
    ),
    (
        "v2.4 to v2.8 init containers are left out",
        (asking("i", 0, kind=INIT), asking("c")),
        f"{A},NVIDIA,2,0:;",
        {"c": [2]},
    ),
    ("v2.5 two devices", (asking("c", 2),), f"{A},NVIDIA,1,10:{B},NVIDIA,1,10:;", {"c": [1, 1]}),
    ("v2.9 positions", APPS, f";{A},NVIDIA,2,0:;", {"y": [2]}),
    ("v2.10 containers without devices are left out", APPS, f"{A},NVIDIA,2,0:;", {"y": [2]}),
    (
        "v2.10 left out, padded at the end",
        (asking("i", 0, kind=INIT), asking("x", 0), asking("y")),
        f"{A},NVIDIA,2,0:;;",
        {"y": [2]},
    ),
    (
        "after v2.10 positions",
        (asking("i", kind=INIT), asking("x", 0), asking("y", 2)),
        f"{A},NVIDIA,1,0:;;{A},NVIDIA,2,0:{B},NVIDIA,3,0:;",
        {"i": [1], "y": [2, 3]},
    ),
    ("more fields", (asking("c"),), f"{A},NVIDIA,1,0,0,hami-core:;", {"c": [1]}),
]


@cases("containers, text, expected", *RECORDED)
def test_annotations_of_all_versions_are_read(containers, text, expected):
    found = container_shares(placed(*containers, text=text), GPU, NVIDIA)
    assert {claim.name: [share.memory_mib for share in claim.shares] for claim in found} == expected
    assert all(claim.outstanding for claim in found)


@cases(
    "containers, text",
    (
        "v2.4 to v2.8 gives init containers nothing",
        (asking("i", kind=INIT), asking("c")),
        f"{A},NVIDIA,2,0:;",
    ),
    (
        "numbers swapped",
        (asking("x", 2), asking("y")),
        f"{A},NVIDIA,1,0:;{A},NVIDIA,1,0:{B},NVIDIA,1,0:;",
    ),
    ("nothing", (asking("x"),), ""),
    ("nobody asks", (asking("x", 0),), f"{A},NVIDIA,2,0:;"),
)
def test_an_annotation_that_does_not_match_the_containers_is_an_error(containers, text):
    with pytest.raises(MalformedInput, match="expected as many shares"):
        container_shares(placed(*containers, text=text), GPU, NVIDIA)


@pytest.mark.parametrize("left, outstanding", [(None, True), ("", False), (";", False)])
@cases(
    "annotations, memory",
    ("not resized", {}, 1),
    ("larger", {RESIZED: f"{A},NVIDIA,3,0:;"}, 3),
    ("less", {RESIZED: f"{A},NVIDIA,3,0:;", RESIZE_TARGET: f"{A},NVIDIA,2,0:;"}, 2),
)
def test_a_resized_pod_gets_what_it_is_to_have(annotations, memory, left, outstanding):
    """Whatever is still to be recorded as handed out has the first sizes."""
    pod = placed(asking(), shares=[[share(A, 1)]], left=left, annotations=annotations)
    (found,) = container_shares(pod, GPU, NVIDIA)
    assert ([share.memory_mib for share in found.shares], found.outstanding) == (
        [memory],
        outstanding,
    )


def test_what_is_still_to_be_handed_out_to_a_resized_pod_must_be_its_devices():
    pod = placed(
        asking(),
        shares=[[share(A, 1)]],
        left=f"{B},NVIDIA,1,0:;",
        annotations={RESIZED: f"{A},NVIDIA,3,0:;"},
    )
    with pytest.raises(MalformedInput, match="expected a part of"):
        container_shares(pod, GPU, NVIDIA)


@cases(
    "device_id, card",
    ("a part", f"{A}-0", A),
    ("two digits", f"{A}-17", A),
    ("time slicing", f"{A}::3", A),
    ("time slicing of HAMi", f"{A}::3-1", A),
    ("a card", A, A),
    ("of another", "MIG-0000-1", "MIG-0000-1"),
    ("no number", f"{A}-x", f"{A}-x"),
    ("a mock card's name", "GPU-0-node-1-0", "GPU-0-node-1"),
    ("such a name itself", "GPU-0-node-1", "GPU-0-node-1"),
)
def test_card_uuid(device_id, card):
    assert card_uuid(device_id, {A, B, "GPU-0-node-1", "GPU-0-node"}) == card


def served(*shares, count=None, inherits=False):
    """A match with these shares."""
    inits = [asking("i", kind=INIT)] if inherits else []
    texts = [[share(C)]] if inherits else []
    pod = placed(*inits, asking("c", len(shares)), shares=[*texts, shares])
    known = {("uid-p", "i")} if inherits else None
    return find_container([pod], HOLDER, call(len(shares), served=known))


def handed(found, request_, **modes):
    try:
        return [
            (card.uuid, share.memory_mib)
            for card, share in cards_of(
                found, request_, InventorySnapshot(cards=CARDS), PluginConfig(node=NODE, **modes)
            )
        ]
    except Rejected as error:
        return str(error)


@cases(
    "found, asked, modes, outcome",
    ("the kubelet's choice does not count", served(share(B, 5)), (A,), {}, [(B, 5)]),
    (
        "aligned, another card",
        served(share(B, 5)),
        (A,),
        {"aligned": True},
        f"container c was allocated 1 of {B}, but the kubelet chose 1 of {A}",
    ),
    (
        "aligned by cards, not by position",
        served(share(B, 5), share(A, 7)),
        (A, B),
        {"aligned": True},
        [(B, 5), (A, 7)],
    ),
    (
        "aligned, too many",
        served(share(B, 5), share(A, 7)),
        (A, A),
        {"aligned": True},
        f"container c was allocated 1 of {A}, 1 of {B}, but the kubelet chose 2 of {A}",
    ),
    (
        "aligned, but devices of an init container are handed on",
        served(share(B, 5), inherits=True),
        (C,),
        {"aligned": True},
        [(B, 5)],
    ),
    (
        "no memory",
        served(share(A, 0)),
        (A,),
        {},
        f"container c was allocated 0 MiB of card {A}, which means no limit",
    ),
    ("instances have no limits", served(share(A, 0)), (A,), {"operating_mode": "mig"}, [(A, 0)]),
    (
        "twice",
        served(share(A, 1), share(A, 2)),
        (A, A),
        {},
        f"container c was allocated one card twice: {A}",
    ),
    (
        "unknown card",
        served(share(uuid(9))),
        (A,),
        {},
        f"container c was allocated card {uuid(9)}, which is not on this node",
    ),
    (
        "no memory, then an unknown card",
        served(share(A, 0), share(uuid(9))),
        (A, B),
        {},
        f"container c was allocated 0 MiB of card {A}, which means no limit",
    ),
)
def test_cards(found, asked, modes, outcome):
    assert handed(found, call(ids=ids(*asked)), **modes) == outcome


@cases(
    "shares, available, must_include, chosen",
    ("by card", [A], [f"{B}-0", f"{A}-0"], [], [f"{A}-0"]),
    ("two cards", [A, B], [f"{B}-0", f"{A}-0"], [], [f"{A}-0", f"{B}-0"]),
    ("twice on one card", [A, A], [f"{A}-0", f"{A}-1"], [], [f"{A}-0", f"{A}-1"]),
    ("what must be", [A], [f"{A}-0", f"{A}-1"], [f"{A}-1"], [f"{A}-1"]),
    ("what must be is of no use", [A], [f"{A}-0", f"{B}-1"], [f"{B}-1"], []),
    ("too few", [A, B], [f"{A}-0"], [], []),
)
def test_preferred(shares, available, must_include, chosen):
    assert preferred_ids([share(one) for one in shares], available, must_include) == tuple(chosen)


@cases(
    "pod, over",
    ("allocating", ONE, False),
    ("half done", HALF, False),
    ("success too early", held(bind_phase="success"), False),
    ("success", held(left=";", bind_phase="success"), True),
    ("failed", held(left="", bind_phase="failed"), True),
    ("terminated", held(phase="Failed"), True),
    ("about to be bound", held(node=""), False),
    ("bound elsewhere", held(node="n2"), True),
    (
        "another vendor's devices are outstanding",
        placed(
            asking(),
            text=TAKEN,
            left=";",
            bind_phase="success",
            annotations={OTHERS: "f,FPGA,1,0:;"},
        ),
        False,
    ),
)
def test_is_done_with_lock(pod, over):
    assert is_done_with_lock(pod, NODE, (TO_ALLOCATE, OTHERS)) is over


def test_the_allocated_annotation_is_not_changed():
    assert ALLOCATED not in find_container([ONE], HOLDER, call()).annotations
