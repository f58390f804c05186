"""``hami capacity --defragment``, the sentence in ``hami explain``, and ``hami compact``."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.codec.keys import DO_NOT_MOVE
from hami.errors import HamiError
from hami.inspect.cluster import InspectedCluster
from hami.inspect.moves import (
    MovesReport,
    compact,
    find_moves,
    movables,
    parse_shapes,
    queued_shapes,
    render_compaction,
    render_moves,
    request_moves,
)
from hami.inspect.snapshot import render_snapshot
from hami.inspect.tables import Style
from hami.model import Immovable
from hami.state.moves import MoveLimits
from testing.builders import gpu, gpus, node, pod
from testing.cases import cases
from testing.records import held, record

MIB = 80_000
OWNED = {"controller": "rs", "controller_kind": "ReplicaSet"}
NODES = [node(name, gpu(f"GPU-{name}", memory_mib=MIB)) for name in ("n0", "n1", "n2")]
WAITS = pod(gpus(1, memory=MIB, cores=0), name="waits", scheduler_name="hami-scheduler")


def on(name, node_name, memory, annotations=None, **fields):
    """A pod that a ReplicaSet has made, with a part of the card of its node."""
    running = held(name, node_name, (f"GPU-{node_name}", memory, 0), **OWNED | fields)
    return replace(
        running,
        containers=(gpus(1, memory=memory, cores=0),),
        annotations={**running.annotations, **(annotations or {})},
    )


LAYOUT = (
    on("a", "n0", 50_000),
    on("f", "n0", 20_000),
    on("d", "n1", 30_000, annotations={DO_NOT_MOVE: "true"}),
    on("e", "n2", 60_000, controller="", controller_kind=""),
)


def still():
    return 0.0


def report_of(*pods, waits=WAITS):
    cluster = InspectedCluster(record(NODES, [*pods, waits]))
    movable = movables(cluster, (), waits)
    return find_moves(cluster, waits, movable, MoveLimits(), still)


def test_a_plan_names_the_moves_in_order_and_who_stays():
    report = report_of(*LAYOUT)
    assert [(move.pod, move.source, move.target) for move in report.moves] == [
        ("default/a", "n0", "n1"),
        ("default/f", "n0", "n2"),
    ]
    assert {kept.reason: kept.names for kept in report.kept} == {
        Immovable.DO_NOT_MOVE: ("default/d",),
        Immovable.NO_CONTROLLER: ("default/e",),
    }
    lines = render_moves(report).splitlines()
    assert lines[:3] == [
        "The pod fits n0 after 2 moves (no fewer are enough):",
        "  1. default/a: n0 -> n1",
        "  2. default/f: n0 -> n2",
    ]
    assert "2 pods can be moved, 2 cannot:" in lines


@cases(
    "pods, first",
    ("it fits", (on("a", "n0", 50_000),), "The pod fits n1 without a move."),
    ("nobody can be moved", LAYOUT[2:] + (on("x", "n0", 1, priority=9),), "No plan: "),
)
def test_without_a_plan_it_says_why(pods, first):
    assert render_moves(report_of(*pods)).startswith(first)


def test_names_of_others_reach_no_terminal_as_control_codes():
    report = MovesReport(False, False, True, "n\x1b[2J", (), 0, ())
    assert "\x1b" not in render_moves(report)


def ask(tmp_path, *words, pods=(*LAYOUT, WAITS)):
    """Runs a command on a snapshot."""
    path = tmp_path / "cluster.json.gz"
    path.write_bytes(render_snapshot(record(NODES, pods)))
    return CliRunner().invoke(main, [*words, "--snapshot", str(path)])


def test_a_plan_from_a_snapshot_is_a_document(tmp_path):
    words = ["capacity", "--pod", "waits", "--defragment", "-o", "json"]
    document = json.loads(ask(tmp_path, *words).stdout)
    assert document["kind"] == "Capacity"
    assert document["pods"] == 0
    assert document["defragmentation"]["node"] == "n0"
    assert [move["target"] for move in document["defragmentation"]["moves"]] == ["n1", "n2"]


def written_by(moves):
    """Returns the write that asks for so many moves."""
    written = []

    def request(method, path, *, query=None, body=None, content_type=""):
        written.append((method, path, json.loads(body)))
        return b""

    request_moves(request, WAITS, moves)
    return written


def test_a_request_is_a_label_with_the_number_of_moves():
    labels = {"hami.io/make-room": "2"}
    path = "/api/v1/namespaces/default/pods/waits"
    assert written_by(2) == [("PATCH", path, {"metadata": {"uid": "uid-waits", "labels": labels}})]


def test_a_longer_plan_than_is_made_is_not_requested():
    with pytest.raises(HamiError, match="at most 20 moves are made for a pod, this plan has 21"):
        written_by(21)


@cases(
    "words, error",
    ("without a pod", ["--defragment", "--apply"], "expected either -f FILE or --pod NAME"),
    ("without a plan", ["--pod", "waits", "--apply"], "--apply needs --pod NAME and --defragment"),
    ("snapshot", ["--pod", "waits", "--defragment", "--apply"], "a snapshot does not change"),
)
def test_only_moves_for_a_pod_of_the_cluster_are_requested(words, error, tmp_path):
    result = ask(tmp_path, "capacity", *words)
    assert result.exit_code
    assert error in result.stderr + str(result.exception)


def test_an_explanation_says_after_how_many_moves_the_pod_fits(tmp_path):
    text = ask(tmp_path, "explain", "waits").stdout
    expected = "It would fit after 2 moves of other pods: hami capacity --pod waits -n default --defragment"
    assert expected in text


@cases(
    "words, problem",
    ("neither", ("capacity",), "expected either -f FILE or --pod NAME"),
    ("unknown pod", ("capacity", "--pod", "x"), 'pods "x" not found'),
    ("bound pod", ("capacity", "--pod", "a"), "runs on node n0 already"),
    ("no kinds", ("compact",), "expected either --shapes or --from-queue"),
    ("both kinds", ("compact", "--from-queue", "--shapes", "1x1"), "expected either"),
    ("a word that is no shape", ("compact", "--shapes", "4x2.0"), "COUNTxPART"),
    ("nothing of a card", ("compact", "--shapes", "4x.0"), "COUNTxPART"),
    ("unknown vendor", ("compact", "--shapes", "1x1", "--vendor", "NVIDA"), "did you mean NVIDIA"),
)
def test_what_cannot_be_answered_is_said_in_a_line(tmp_path, words, problem):
    result = ask(tmp_path, *words)
    assert result.exit_code == 2
    assert problem in result.output


def test_a_compaction_counts_more_pods_after_more_moves(tmp_path):
    cluster = InspectedCluster(record(NODES, LAYOUT))
    shapes = parse_shapes("1x1.0,1x0.5", cluster.vendors, "NVIDIA")
    rows = compact(cluster, shapes, movables(cluster, (), None), MoveLimits(moves=10), still)
    assert [(row.shape, row.moves, row.pods) for row in rows] == [
        ("1x1.0", 0, 0),
        ("1x1.0", 2, 1),
        ("1x0.5", 0, 1),
        ("1x0.5", 1, 2),
    ] or [(row.shape, row.moves, row.pods) for row in rows][:2] == [
        ("1x1.0", 0, 0),
        ("1x1.0", 2, 1),
    ]
    assert "MORE PODS" in render_compaction(rows, Style())


def test_the_kinds_of_the_queue_are_those_of_pods_that_wait():
    cluster = InspectedCluster(record(NODES, [*LAYOUT, WAITS]))
    assert [shape.name for shape in queued_shapes(cluster)] == ["default/waits"]
    with pytest.raises(HamiError, match="no pod with devices waits"):
        queued_shapes(InspectedCluster(record(NODES, LAYOUT)))
