"""Matches Allocate calls to containers by node lock, annotations and checkpoint."""

import pytest
from pytest import param

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
HALF = placed(
    asking("x"), asking("y"), shares=[[share(A, 1)], [share(B, 2)]], left=f";{B},NVIDIA,2,0:;"
)
TAKEN = f"{A},NVIDIA,1,0:;"


@pytest.mark.parametrize(
    "pod, request_, outcome",
    [
        param(ONE, call(), "p/c: 1", id="one container"),
        param(TWO, call(1), "p/x: 1", id="the first of two"),
        param(TWO, call(2), f"{HOLDS} its next container, x, gets 1", id="the first requests less"),
        param(
            placed(
                asking("x"),
                asking("y", 2),
                shares=[[share(A, 1)], [share(B, 2), share(C, 3)]],
                left=f";{B},NVIDIA,2,0:{C},NVIDIA,3,0:;",
            ),
            call(2),
            "p/y: 2 3",
            id="the second of two",
        ),
        param(
            placed(asking("x", 0), asking("y"), shares=[[], [share(A, 1)]]),
            call(),
            "p/y: 1",
            id="one requests none",
        ),
        param(
            placed(asking("i", kind=INIT), asking("x"), shares=[[share(A, 1)], [share(B, 2)]]),
            call(),
            "p/i: 1",
            id="init containers first",
        ),
        param(
            placed(asking("i", 0, kind=INIT), asking("x"), shares=[[], [share(B, 2)]]),
            call(),
            "p/x: 2",
            id="an init container that requests none",
        ),
        param(HALF, call(), "p/y: 2", id="without a checkpoint the next in order"),
        param(HALF, call(served=[("uid-p", "x")]), "p/y: 2", id="the kubelet has the first"),
        param(HALF, call(served=[]), "p/x: 1", id="repeated call: the kubelet has lost the first"),
        param(
            placed(asking("x"), shares=[[share(A, 1)]], left=";"),
            call(),
            "p/x: 1",
            id="repeated call: all consumed",
        ),
        param(
            placed(asking("x"), shares=[[share(A, 1)]], left=";", bind_phase="success"),
            call(),
            "p/x: 1",
            id="repeated call: the lock was left behind",
        ),
        param(
            placed(asking("x"), asking("y"), shares=[[share(A, 1)], [share(B, 2)]], left=";;"),
            call(),
            f"{HOLDS} all its containers have their devices",
            id="repeated call: for one of two",
        ),
        param(
            placed(asking("x"), asking("y"), shares=[[share(A, 1)], [share(B, 2)]], left=";;"),
            call(served=[("uid-p", "x")]),
            "p/y: 2",
            id="repeated call: for one of two, the checkpoint tells",
        ),
        param(
            ONE,
            call(served=[("uid-p", "c")]),
            f"{HOLDS} all its containers have their devices",
            id="the kubelet has all of the pod",
        ),
        param(
            placed(asking(), text=TAKEN, left="", bind_phase="failed"),
            call(),
            f"{REFUSED} its bind-phase is failed",
            id="revoked",
        ),
        param(
            placed(asking(), text=TAKEN, left=""),
            call(),
            f"{HOLDS} its allocation was revoked",
            id="emptied",
        ),
        param(
            placed(asking(), text=TAKEN, left="", bind_phase="success"),
            call(served=[]),
            "p/c: 1",
            id="bound without a lock",
        ),
        param(
            placed(
                asking("x"),
                asking("y"),
                shares=[[share(A, 1)], [share(B, 2)]],
                left="",
                bind_phase="success",
            ),
            call(served=[("uid-p", "x")]),
            "p/y: 2",
            id="bound without a lock: the checkpoint tells which container",
        ),
        param(
            placed(asking(), text="", left="", bind_phase="success"),
            call(served=[]),
            f"{REFUSED} it has no allocation",
            id="without an allocation",
        ),
        param(
            placed(asking(), text=TAKEN, bind_phase="failed"),
            call(),
            f"{REFUSED} its bind-phase is failed",
            id="failed",
        ),
        param(
            placed(asking(), text=TAKEN, annotations={"hami.io/vgpu-node": "n2"}),
            call(),
            f"{REFUSED} it was not assigned to node n1 by HAMi's scheduler",
            id="placed elsewhere",
        ),
        param(
            placed(asking(), text=TAKEN, phase="Running"),
            call(),
            f"{HOLDS} it is Running on n1",
            id="running already",
        ),
        param(
            placed(asking(), text=TAKEN, node="n2"),
            call(),
            f"{HOLDS} it is Pending on n2",
            id="bound elsewhere",
        ),
        param(
            placed(asking(), text="GPU-x"),
            call(),
            "p refused: hami.io/vgpu-devices-allocated: expected as many shares "
            "as the containers request: 1 for c: 'GPU-x'",
            id="text without shares",
        ),
        param(
            placed(asking(), text="GPU-x,NVIDIA:;"),
            call(),
            "p refused: hami.io/vgpu-devices-allocated: pod annotation "
            "format error, missing fields, do not use nodeName in task spec: 'GPU-x,NVIDIA'",
            id="text cut short",
        ),
        param(
            placed(asking(), shares=[[share(A), share(B)]]),
            call(),
            "p refused: hami.io/vgpu-devices-allocated: "
            "expected as many shares as the containers request: 1 for c: "
            f"'{A},NVIDIA,1000,0:{B},NVIDIA,1000,0:;'",
            id="more shares than requested",
        ),
        param(
            placed(asking(), text=TAKEN, left=f"{A},NVIDIA,2,0:;"),
            call(),
            f"p refused: {TO_ALLOCATE}: "
            f"expected a part of hami.io/vgpu-devices-allocated: '{A},NVIDIA,2,0:;'",
            id="texts that differ",
        ),
    ],
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


@pytest.mark.parametrize(
    "pods, holder, request_, outcome",
    [
        param([ONE, RUNNING, PULLING], HOLDER, call(), "p/c: 1", id="others have their devices"),
        param(
            [ONE, RUNNING, PULLING],
            HOLDER,
            call(served=[("uid-runs", "c"), ("uid-pulls", "c")]),
            "p/c: 1",
            id="others have their devices, by the checkpoint",
        ),
        param(
            [ONE, REVOKED],
            HOLDER,
            call(),
            "2 containers match, of default/old, default/p",
            id="a revoked pod may be asking, too",
        ),
        param(
            [ONE, REVOKED],
            HOLDER,
            call(served=[]),
            "2 containers match, of default/old, default/p",
            id="a revoked pod may be asking, too, by the checkpoint",
        ),
        param(
            [ONE, FOREIGN],
            HOLDER,
            call(),
            "2 containers match, of default/foreign, default/p",
            id="a pod of another scheduler may be asking, too",
        ),
        param(
            [ONE, RUNNING],
            HOLDER,
            call(served=[]),
            f"2 containers match, of default/p, default/runs{LOST} default/runs{END}",
            id="the kubelet has lost the record of a pod that runs",
        ),
        param(
            [
                ONE,
                RUNNING,
                other("also", left=";", bind_phase="success", phase="Running"),
                PULLING,
                REVOKED,
            ],
            HOLDER,
            call(served=[]),
            "5 containers match, of default/also, default/old, default/p, default/pulls, "
            f"default/runs{LOST} default/also, default/runs{END}",
            id="the kubelet has lost the record of two that run",
        ),
        param(
            [
                ONE,
                other("half", phase="Running"),
                other("bad", left=";", bind_phase="failed", phase="Running"),
            ],
            HOLDER,
            call(served=[]),
            "3 containers match, of default/bad, default/half, default/p",
            id="of those that run, none was handed its devices",
        ),
        param([TWO, REVOKED], HOLDER, call(2), MISMATCH, id="nobody requests two"),
        param(
            [TWO, other("old", count=2, left="", bind_phase="failed")],
            HOLDER,
            call(2),
            "old refused: pod default/old cannot be served: its bind-phase is failed",
            id="a revoked pod alone requests two",
        ),
        param(
            [TWO, other("old", count=2, left="", bind_phase="failed", phase="Failed")],
            HOLDER,
            call(2),
            MISMATCH,
            id="terminated",
        ),
        param(
            [TWO, other("q", count=2, shares=[[share(C, 7), share(D, 8)]])],
            HOLDER,
            call(2),
            "q/c: 7 8",
            id="another than the holder, which has no lock",
        ),
        param([ONE], None, call(), "p/c: 1", id="no lock"),
        param(
            [ONE, other("q")],
            None,
            call(),
            "2 containers match, of default/p, default/q",
            id="no lock, and two",
        ),
        param(
            [FOREIGN],
            None,
            call(),
            "foreign refused: pod default/foreign cannot be served: it was not assigned to node n1 by HAMi's scheduler",
            id="no lock, placed by another scheduler",
        ),
        param(
            [RUNNING],
            None,
            call(),
            "no pod on the node is waiting for that many",
            id="no lock, no checkpoint, all served",
        ),
        param(
            [RUNNING], None, call(served=[]), "runs/c: 9", id="the kubelet has lost its checkpoint"
        ),
        param(
            [RUNNING, PULLING],
            None,
            call(served=[("uid-runs", "c")]),
            "pulls/c: 9",
            id="the kubelet has lost one",
        ),
        param(
            [
                placed(
                    asking("x"),
                    asking("y"),
                    shares=[[share(A, 1)], [share(B, 2)]],
                    left=";;",
                    bind_phase="success",
                    phase="Running",
                )
            ],
            None,
            call(served=[]),
            f"2 containers match, of default/p{LOST} default/p{END}",
            id="the kubelet has lost its checkpoint, and either container may have restarted",
        ),
        param(
            [other("q", node="n2")],
            None,
            call(),
            "no pod on the node is waiting for that many",
            id="on another node",
        ),
        param([], None, call(), "no pod on the node is waiting for that many", id="nobody"),
    ],
)
def test_a_call_is_answered_only_if_exactly_one_container_matches(pods, holder, request_, outcome):
    assert summary(find_container(pods, holder, request_)) == outcome


@pytest.mark.parametrize(
    "pod, request_, writes, finished",
    [
        param(ONE, call(), {TO_ALLOCATE: ";", PHASE: "success"}, True, id="the only one"),
        param(
            TWO,
            call(),
            {TO_ALLOCATE: f";{B},NVIDIA,2,0:{C},NVIDIA,3,0:;"},
            False,
            id="the first of two",
        ),
        param(HALF, call(), {TO_ALLOCATE: ";;", PHASE: "success"}, True, id="the second of two"),
        param(
            placed(asking(), text=TAKEN, left=";"),
            call(),
            {PHASE: "success"},
            True,
            id="consumed, success not written",
        ),
        param(
            placed(asking(), text=TAKEN, left=";", bind_phase="success"),
            call(),
            {},
            True,
            id="consumed",
        ),
        param(
            placed(asking(), text=TAKEN, annotations={OTHERS: "f,FPGA,1,0:;"}),
            call(other_keys=(OTHERS,)),
            {TO_ALLOCATE: ";"},
            False,
            id="another vendor's devices are outstanding",
        ),
        param(
            placed(asking(), text=TAKEN, annotations={OTHERS: ";"}),
            call(other_keys=(OTHERS,)),
            {TO_ALLOCATE: ";", PHASE: "success"},
            True,
            id="another vendor's devices are handed out",
        ),
        param(
            placed(asking(), text=TAKEN, annotations={OTHERS: "f,"}),
            call(other_keys=(OTHERS,)),
            {TO_ALLOCATE: ";"},
            False,
            id="another vendor's text cannot be read",
        ),
        param(
            TWO,
            call(2, served=[("uid-p", "x")]),
            {TO_ALLOCATE: ";;", PHASE: "success"},
            True,
            id="the kubelet has the first, which was never recorded",
        ),
    ],
)
def test_recorded_annotations(pod, request_, writes, finished):
    found = find_container([pod], HOLDER, request_)
    assert (found.annotations, found.finished) == (writes, finished)


# What schedulers have written, version by version, for a pod of these containers: (name, devices, init).
APPS = (asking("x", 0), asking("y"))
RECORDED = [
    param(
        (asking("c"),),
        "GPU-03f69c50-207a-2038-9b45-23cac89cb67d,NVIDIA,3000,30:;",
        {"c": [3000]},
        id="v2.4 one",
    ),
    param(
        (asking("x"), asking("y")),
        f"{A},NVIDIA,1,0:;{B},NVIDIA,2,0:;",
        {"x": [1], "y": [2]},
        id="v2.4 two",
    ),
    param(APPS, f",,0,0:;{A},NVIDIA,2,0:;", {"y": [2]}, id="v2.4 to v2.6 placeholder"),
    param(
        APPS,
        f",,0,0:,,0,0:;{A},NVIDIA,2,0:;",
        {"y": [2]},
        id="v2.4 to v2.6 placeholders for several devices",
    ),
    param(
        (asking("i", 0, kind=INIT), asking("c")),
        f"{A},NVIDIA,2,0:;",
        {"c": [2]},
        id="v2.4 to v2.8 init containers are left out",
    ),
    param(
        (asking("c", 2),),
        f"{A},NVIDIA,1,10:{B},NVIDIA,1,10:;",
        {"c": [1, 1]},
        id="v2.5 two devices",
    ),
    param(APPS, f";{A},NVIDIA,2,0:;", {"y": [2]}, id="v2.9 positions"),
    param(
        APPS, f"{A},NVIDIA,2,0:;", {"y": [2]}, id="v2.10 containers without devices are left out"
    ),
    param(
        (asking("i", 0, kind=INIT), asking("x", 0), asking("y")),
        f"{A},NVIDIA,2,0:;;",
        {"y": [2]},
        id="v2.10 left out, padded at the end",
    ),
    param(
        (asking("i", kind=INIT), asking("x", 0), asking("y", 2)),
        f"{A},NVIDIA,1,0:;;{A},NVIDIA,2,0:{B},NVIDIA,3,0:;",
        {"i": [1], "y": [2, 3]},
        id="after v2.10 positions",
    ),
    param((asking("c"),), f"{A},NVIDIA,1,0,0,hami-core:;", {"c": [1]}, id="more fields"),
]


@pytest.mark.parametrize("containers, text, expected", RECORDED)
def test_annotations_of_all_versions_are_read(containers, text, expected):
    found = container_shares(placed(*containers, text=text), GPU, NVIDIA)
    assert {claim.name: [share.memory_mib for share in claim.shares] for claim in found} == expected
    assert all(claim.outstanding for claim in found)


@pytest.mark.parametrize(
    "containers, text",
    [
        param(
            (asking("i", kind=INIT), asking("c")),
            f"{A},NVIDIA,2,0:;",
            id="v2.4 to v2.8 gives init containers nothing",
        ),
        param(
            (asking("x", 2), asking("y")),
            f"{A},NVIDIA,1,0:;{A},NVIDIA,1,0:{B},NVIDIA,1,0:;",
            id="numbers swapped",
        ),
        param((asking("x"),), "", id="nothing"),
        param((asking("x", 0),), f"{A},NVIDIA,2,0:;", id="nobody asks"),
    ],
)
def test_an_annotation_that_does_not_match_the_containers_is_an_error(containers, text):
    with pytest.raises(MalformedInput, match="expected as many shares"):
        container_shares(placed(*containers, text=text), GPU, NVIDIA)


@pytest.mark.parametrize("left, outstanding", [(None, True), ("", False), (";", False)])
@pytest.mark.parametrize(
    "annotations, memory",
    [
        ({}, 1),
        ({RESIZED: f"{A},NVIDIA,3,0:;"}, 3),
        ({RESIZED: f"{A},NVIDIA,3,0:;", RESIZE_TARGET: f"{A},NVIDIA,2,0:;"}, 2),
    ],
    ids=["not resized", "larger", "less"],
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


@pytest.mark.parametrize(
    "device_id, card",
    [
        param(f"{A}-0", A, id="a part"),
        param(f"{A}-17", A, id="two digits"),
        param(f"{A}::3", A, id="time slicing"),
        param(f"{A}::3-1", A, id="time slicing of HAMi"),
        param(A, A, id="a card"),
        param("MIG-0000-1", "MIG-0000-1", id="of another"),
        param(f"{A}-x", f"{A}-x", id="no number"),
        param("GPU-0-node-1-0", "GPU-0-node-1", id="a mock card's name"),
        param("GPU-0-node-1", "GPU-0-node-1", id="such a name itself"),
    ],
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


@pytest.mark.parametrize(
    "found, asked, modes, outcome",
    [
        param(served(share(B, 5)), (A,), {}, [(B, 5)], id="the kubelet's choice does not count"),
        param(
            served(share(B, 5)),
            (A,),
            {"aligned": True},
            f"container c was allocated 1 of {B}, but the kubelet chose 1 of {A}",
            id="aligned, another card",
        ),
        param(
            served(share(B, 5), share(A, 7)),
            (A, B),
            {"aligned": True},
            [(B, 5), (A, 7)],
            id="aligned by cards, not by position",
        ),
        param(
            served(share(B, 5), share(A, 7)),
            (A, A),
            {"aligned": True},
            f"container c was allocated 1 of {A}, 1 of {B}, but the kubelet chose 2 of {A}",
            id="aligned, too many",
        ),
        param(
            served(share(B, 5), inherits=True),
            (C,),
            {"aligned": True},
            [(B, 5)],
            id="aligned, but devices of an init container are handed on",
        ),
        param(
            served(share(A, 0)),
            (A,),
            {},
            f"container c was allocated 0 MiB of card {A}, which means no limit",
            id="no memory",
        ),
        param(
            served(share(A, 0)),
            (A,),
            {"operating_mode": "mig"},
            [(A, 0)],
            id="instances have no limits",
        ),
        param(
            served(share(A, 1), share(A, 2)),
            (A, A),
            {},
            f"container c was allocated one card twice: {A}",
            id="twice",
        ),
        param(
            served(share(uuid(9))),
            (A,),
            {},
            f"container c was allocated card {uuid(9)}, which is not on this node",
            id="unknown card",
        ),
        param(
            served(share(A, 0), share(uuid(9))),
            (A, B),
            {},
            f"container c was allocated 0 MiB of card {A}, which means no limit",
            id="no memory, then an unknown card",
        ),
    ],
)
def test_cards(found, asked, modes, outcome):
    assert handed(found, call(ids=ids(*asked)), **modes) == outcome


@pytest.mark.parametrize(
    "shares, available, must_include, chosen",
    [
        param([A], [f"{B}-0", f"{A}-0"], [], [f"{A}-0"], id="by card"),
        param([A, B], [f"{B}-0", f"{A}-0"], [], [f"{A}-0", f"{B}-0"], id="two cards"),
        param([A, A], [f"{A}-0", f"{A}-1"], [], [f"{A}-0", f"{A}-1"], id="twice on one card"),
        param([A], [f"{A}-0", f"{A}-1"], [f"{A}-1"], [f"{A}-1"], id="what must be"),
        param([A], [f"{A}-0", f"{B}-1"], [f"{B}-1"], [], id="what must be is of no use"),
        param([A, B], [f"{A}-0"], [], [], id="too few"),
    ],
)
def test_preferred(shares, available, must_include, chosen):
    assert preferred_ids([share(one) for one in shares], available, must_include) == tuple(chosen)


@pytest.mark.parametrize(
    "pod, over",
    [
        param(ONE, False, id="allocating"),
        param(HALF, False, id="half done"),
        param(placed(asking(), text=TAKEN, bind_phase="success"), False, id="success too early"),
        param(placed(asking(), text=TAKEN, left=";", bind_phase="success"), True, id="success"),
        param(placed(asking(), text=TAKEN, left="", bind_phase="failed"), True, id="failed"),
        param(placed(asking(), text=TAKEN, phase="Failed"), True, id="terminated"),
        param(placed(asking(), text=TAKEN, node=""), False, id="about to be bound"),
        param(placed(asking(), text=TAKEN, node="n2"), True, id="bound elsewhere"),
        param(
            placed(
                asking(),
                text=TAKEN,
                left=";",
                bind_phase="success",
                annotations={OTHERS: "f,FPGA,1,0:;"},
            ),
            False,
            id="another vendor's devices are outstanding",
        ),
    ],
)
def test_is_done_with_lock(pod, over):
    assert is_done_with_lock(pod, NODE, (TO_ALLOCATE, OTHERS)) is over


def test_the_allocated_annotation_is_not_changed():
    assert ALLOCATED not in find_container([ONE], HOLDER, call()).annotations
