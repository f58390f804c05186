"""A recording of what a scheduler's store decides, and its replay."""

import gzip
import json
import random

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.errors import HamiError
from hami.inspect.line_writer import LineWriter
from hami.inspect.read_recording import PodGone, read_recording
from hami.inspect.recording import KINDS
from hami.inspect.recording_program import salt_in
from hami.inspect.segments import SegmentWriter, segments_at
from hami.inspect.tables import Style
from hami.inspect.traces import NODE_LIST, read_trace
from hami.inspect.twin import Changes
from hami.inspect.twin_report import make_twin_report, render_twin
from hami.model import NodeRequirement, Taint, Toleration
from hami.state.view import Policies
from testing.builders import gpu, gpus, node
from testing.cases import cases
from testing.recordings import POLICIES, RecordedCluster


def recording_in(folder, notes=None):
    said = [] if notes is None else notes
    return read_recording(segments_at(folder), said.append, lambda count: None)


def report_of(folder, **changes):
    return make_twin_report(recording_in(folder), Changes(**changes), lambda what, part: None)


@pytest.fixture(scope="module", params=["least-waste", "spread"])
def recorded(request, tmp_path_factory):
    """A recording of 550 pods, which the store has placed."""
    folder = tmp_path_factory.mktemp(request.param)
    cluster = RecordedCluster(folder, policies=Policies(request.param, "binpack"))
    cluster.run(550, 60, 1500, random.Random(1))
    return folder


@pytest.mark.slow
def test_the_same_decisions_are_made_again(recorded):
    report = report_of(recorded)
    comparison = report.comparison
    assert comparison.decisions >= 500
    assert comparison.same >= 0.99 * comparison.decisions
    explained = sum(count.decisions for count in comparison.causes)
    assert explained == comparison.decisions - comparison.same
    assert report.replayed.placed == pytest.approx(report.recorded.placed, abs=10)
    assert report.replayed.allocated == pytest.approx(report.recorded.allocated, abs=2.0)
    assert f"Decided again: {comparison.same} of" in render_twin(report, Style())


@pytest.fixture
def small(tmp_path):
    """A recording of 40 pods on two nodes."""
    RecordedCluster(tmp_path, nodes=2).run(40, 60, 1500, random.Random(1))
    return tmp_path


def text_in(folder):
    return "".join(gzip.decompress(path.read_bytes()).decode() for path in segments_at(folder))


def test_names_are_hashed(small):
    text = text_in(small)
    assert "secret" not in text
    assert "NVIDIA A40" in text


def test_every_field_that_is_recorded_has_a_kind():
    for record, kinds in KINDS.items():
        assert set(record.__struct_fields__) == set(kinds)


def test_fewer_nodes_mean_longer_waits(small):
    as_it_was, fewer = report_of(small), report_of(small, without=("1",))
    assert fewer.replayed.waited.mean_s > as_it_was.replayed.waited.mean_s
    assert fewer.comparison is None
    assert fewer.recorded == as_it_was.recorded


def test_more_nodes_mean_that_nobody_waits(small):
    report = report_of(small, added=("like=node-1:20",))
    assert (report.replayed.waiting, report.replayed.waited.p99_s) == (0, 0.0)


@cases(
    "changes, said",
    ({"without": ("node-3",)}, "there is no node node-3; did you mean node-2"),
    ({"without": ("2",)}, "--without=2: the recording has 2 nodes"),
    ({"added": ("node-1",)}, "--nodes=node-1: expected like=NODE:COUNT"),
    ({"added": ("like=x:1",)}, "there is no node x"),
)
def test_changes_that_are_not_possible(small, changes, said):
    with pytest.raises(HamiError) as caught:
        report_of(small, **changes)
    assert said in str(caught.value)


def test_pods_of_higher_priority_evict_others_if_they_may(tmp_path):
    cluster = RecordedCluster(tmp_path, nodes=1)
    low = [
        cluster.place(cluster.create(f"low-{number}", gpus(memory=46_000))) for number in range(4)
    ]
    cluster.at += 60
    cluster.create("high", gpus(memory=46_000), priority=10)
    cluster.at += 600
    for bound in low:
        cluster.end(bound)
    cluster.recorder.close()
    without, with_ = report_of(tmp_path), report_of(tmp_path, preemption=True)
    assert (without.replayed.evicted, with_.replayed.evicted) == (0, 1)
    waits = {row.priority: row.mean_s for row in with_.replayed.by_priority}
    assert waits == {10: 0.0, 0: 0.0}
    assert [row.mean_s for row in without.replayed.by_priority] == [600.0, 0.0]


ZONE = "zone"


def test_nobody_is_evicted_from_a_node_that_the_pod_does_not_select(tmp_path):
    cluster = RecordedCluster(tmp_path, nodes=1)
    for number in range(4):
        cluster.place(cluster.create(f"low-{number}", gpus(memory=46_000)))
    cluster.at += 60
    elsewhere = ((NodeRequirement(ZONE, "In", frozenset(["other"])),),)
    cluster.create("high", gpus(memory=46_000), priority=10, node_terms=elsewhere)
    cluster.recorder.close()
    replayed = report_of(tmp_path, preemption=True).replayed
    assert (replayed.evicted, replayed.waiting) == (0, 1)


@cases(
    "memory, requests, evicted, placed",
    ("no CPU", 46_000, {}, 1, 1),
    ("what a victim has", 46_000, {"cpu": "2", "memory": "4Gi"}, 1, 1),
    ("CPU that two of them have", 46_000, {"cpu": "4"}, 2, 1),
    ("memory that two of them have", 46_000, {"memory": "8Gi"}, 2, 1),
    ("more CPU than the node has", 46_000, {"cpu": "99"}, 0, 0),
    ("CPU, where devices are free", 20_000, {"cpu": "2"}, 1, 1),
)
def test_as_many_are_evicted_as_cpu_and_memory_need(tmp_path, memory, requests, evicted, placed):
    cluster = RecordedCluster(tmp_path, nodes=0)
    full = {"cpu": "8", "memory": "16Gi"}
    cards = [gpu(f"GPU-{number}", index=number) for number in range(4)]
    cluster.show_node(node("n", *cards, allocatable=full))
    cluster.names = ["n"]
    for number in range(4):
        low = cluster.create(
            f"low-{number}", gpus(memory=memory), requests={"cpu": "2", "memory": "4Gi"}
        )
        assert cluster.place(low) is not None
    cluster.at += 60
    cluster.create("high", gpus(memory=memory), priority=10, requests=requests)
    cluster.recorder.close()
    replayed = report_of(tmp_path, preemption=True).replayed
    assert (replayed.evicted, replayed.placed) == (evicted, 4 + placed)


TAINTS = (Taint("secret-key", "secret-value", "NoSchedule"),)


@cases(
    "tolerations, placed",
    ("none", (), 0),
    ("the taint", (Toleration("secret-key", "Equal", "secret-value"),), 1),
    ("another value", (Toleration("secret-key", "Equal", "other"),), 0),
    ("its key", (Toleration("secret-key", "Exists", "", "NoSchedule"),), 1),
    ("another effect", (Toleration("secret-key", "Exists", "", "NoExecute"),), 0),
    ("all", (Toleration("", "Exists"),), 1),
)
def test_pods_are_placed_only_where_they_tolerate_the_taints(tmp_path, tolerations, placed):
    cluster = RecordedCluster(tmp_path, nodes=0)
    tainted = node("n", gpu(), taints=TAINTS, allocatable={"cpu": "4", "memory": "8Gi"})
    cluster.recorder.nodes.upsert(tainted)
    cluster.create("pod", gpus(), tolerations=tolerations)
    cluster.recorder.close()
    assert report_of(tmp_path).replayed.placed == placed
    assert "secret" not in text_in(tmp_path)


def test_a_recording_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(packed())
    assert "recorded by an earlier hami, without taints" in report_of(path).notes


def test_the_report_counts_the_pods_of_which_the_replay_knows_less(tmp_path):
    cluster = RecordedCluster(tmp_path, nodes=1)
    for number in range(3):
        cluster.create(f"member-{number}", gpus(), group="secret-group")
    cluster.create("soft", gpus(), soft_constraints=True)
    cluster.recorder.close()
    notes = report_of(tmp_path).notes
    assert [note.partition(":")[0] for note in notes] == [
        "3 pods of 1 group",
        "1 pod with preferences for other pods or for a spread, which only kube-scheduler judges",
        "not recorded",
    ]


def test_pods_that_were_there_at_the_beginning_stay_where_they_were(tmp_path):
    first = RecordedCluster(tmp_path / "first", nodes=2)
    bound = [first.place(first.create(f"p{number}", gpus(memory=46_000))) for number in range(3)]
    first.recorder.close()
    later = RecordedCluster(tmp_path / "later", nodes=2, existing=bound)
    later.at += 100
    later.recorder.pods.remove(bound[0])
    later.at += 100
    later.recorder.close()
    report = report_of(tmp_path / "later")
    assert report.recorded.allocated == report.replayed.allocated
    assert report.replayed.placed == 0


def test_a_recording_goes_on_after_a_restart_and_in_new_segments(tmp_path):
    cluster = RecordedCluster(tmp_path, nodes=2, segment_bytes=1)
    first = cluster.place(cluster.create("a", gpus()))
    cluster.recorder.sync()
    cluster.place(cluster.create("b", gpus()))
    cluster.recorder.close()
    again = RecordedCluster(tmp_path, nodes=2, segment_bytes=1, existing=[first])
    again.recorder.close()
    assert len(segments_at(tmp_path)) == 3
    recording = recording_in(tmp_path)
    assert recording.pods == 2
    ended = [event.life.number for event in recording.events if isinstance(event, PodGone)]
    assert ended == [2]


def test_old_segments_are_deleted(tmp_path):
    writer = SegmentWriter(tmp_path, segment_bytes=100, most_bytes=400)
    lines = LineWriter(writer, "", POLICIES, b"salt", lambda: 1.0)
    for _ in range(10):
        lines.begin()
    lines.close()
    assert segments_at(tmp_path)[-1].name == "hami-00000010.jsonl.gz"
    assert len(segments_at(tmp_path)) < 4


def test_a_file_that_is_cut_short_is_read_up_to_the_last_whole_line(tmp_path):
    cluster = RecordedCluster(tmp_path, nodes=2)
    cluster.place(cluster.create("a", gpus()))
    cluster.recorder.sync()
    (path,) = segments_at(tmp_path)
    data = path.read_bytes()
    cluster.recorder.close()
    path.write_bytes(data)
    notes = []
    assert recording_in(tmp_path, notes).pods == 1
    assert notes == [f"{path} is cut short: read up to line 6"]
    path.write_bytes(data[:-20])
    assert recording_in(tmp_path, notes).pods == 1


def packed(*lines):
    head = '{"at":1,"head":{"format":"HamiRecording","version":1,"recording":"r","segment":1}}'
    return gzip.compress("".join(f"{line}\n" for line in (head, *lines)).encode())


SHAPE = '{"containers":[{"limits":{"nvidia.com/gpu":"1"}}]}'


@cases(
    "line, said",
    ('{"at":-1}', "line 2: Expected `float` >= 0.0 - at `$.at`"),
    ('{"at":1,"strange":1}', "line 2: Object contains unknown field `strange`"),
    ("{", "line 2: Input data was truncated"),
    (
        '{"node":{"name":"n","devices":[{"uuid":"u","vendor":"NVIDIA","model":"m","slots":1e99,"memoryMib":1}]}}',
        "line 2: Expected `int`, got `float` - at `$.node.devices[0].slots`",
    ),
    (
        '{"node":{"name":"n","devices":[{"uuid":"u","vendor":"x","model":"m","slots":1,"memoryMib":1}]}}',
        "line 2: node.devices[0].vendor: 'x' with mode 'hami-core' is not replayed",
    ),
    (
        '{"pod":{"uid":"u","namespace":"n","shape":{"containers":[]}}}',
        "line 2: pod.shape: it requests no devices",
    ),
    (
        '{"pod":{"uid":"u","namespace":"n","shape":{"containers":[{"kind":"x"}]}}}',
        "line 2: pod.shape.containers[0].kind: 'x', expected init, sidecar, app",
    ),
    (
        '{"pod":{"uid":"u","namespace":"n","shape":{"priority":1}}}',
        "line 2: pod.shape: Object missing required field `containers`",
    ),
    ('{"bound":{"uid":"u","node":"n"}}', "line 2: bound.uid: no pod 'u' has come"),
    (
        '{"end":{"lines":1,"sha256":"x"}}',
        "line 2: end.sha256: the checksum is not that of the lines before",
    ),
    (
        '{"head":{"format":"HamiRecording","version":1,"recording":"other","segment":2}}',
        "line 2: head.recording: another recording than that of the files before",
    ),
)
def test_errors_name_the_line_and_the_field(tmp_path, line, said):
    path = tmp_path / "hami-00000001.jsonl.gz"
    path.write_bytes(packed(line))
    with pytest.raises(HamiError) as caught:
        recording_in(tmp_path)
    assert str(caught.value).startswith(f"{path}: {said}")


LATER = b'{"head":{"format":"HamiRecording","version":3,"recording":"r","segment":1}}'


@cases(
    "data, said",
    ("empty", b"", "not a recording of hami: no whole line"),
    ("text", b"no gzip", "not a recording of hami: Error"),
    ("other", gzip.compress(b"{}\n"), "line 1: head.format: expected HamiRecording"),
    ("long", gzip.compress(b" " * (5 << 20)), "line 1: longer than 4,194,304 bytes"),
    (
        "later",
        gzip.compress(LATER + b"\n"),
        "line 1: head.version: 3, this hami reads up to 2: use a newer hami",
    ),
)
def test_files_that_are_no_recordings(tmp_path, data, said):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(HamiError) as caught:
        recording_in(path)
    assert str(caught.value).startswith(f"{path}: {said}")


def test_an_empty_recording_has_a_report(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(packed())
    report = report_of(path)
    assert report.pods == 0
    assert "0 pods on 0 nodes" in render_twin(report, Style())


NODES = "sn,cpu_milli,memory_mib,gpu,model\nnode-0,64000,262144,2,P100\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"


def trace_in(folder, *rows, nodes=NODES):
    (folder / NODE_LIST).write_text(nodes)
    path = folder / "pods.csv"
    path.write_text(PODS + "".join(f"{row}\n" for row in rows))
    return path


def test_a_published_trace_is_replayed(tmp_path):
    path = trace_in(
        tmp_path,
        "a,1000,1000,1,500,,LS,Running,0,100,10",
        "b,1000,1000,1,500,,LS,Running,5,100,20",
        "c,1000,1000,0,,,LS,Running,5,100,20",
        "d,1000,1000,2,1000,,LS,Pending,10,,",
    )
    report = make_twin_report(read_trace(path), Changes(), lambda what, part: None)
    assert (report.pods, report.recorded.placed, report.recorded.waited.mean_s) == (3, 2, 38.3)
    assert report.recorded.allocated is None
    assert report.replayed.placed == 3
    assert report.replayed.waited.p99_s == 80.0
    assert report.notes[-1] == "1 pods without GPUs are left out"


@cases(
    "row, nodes, said",
    ("a,x,1,1,500,,LS,Running,0,1,1", NODES, "line 2: cpu_milli: 'x', expected a number"),
    ("a,1,1,65,500,,LS,Running,0,1,1", NODES, "line 2: num_gpu: '65', expected a number up to 64"),
    ("a,1,1,1,1001,,LS,Running,0,1,1", NODES, "line 2: gpu_milli: '1001'"),
    ("a,1,1,1,500,,LS,Running,0,1,1", NODES + "n,1,1,-1,x\n", "line 3: gpu: '-1'"),
)
def test_errors_in_traces_name_the_line_and_the_field(tmp_path, row, nodes, said):
    with pytest.raises(HamiError, match=said):
        read_trace(trace_in(tmp_path, row, nodes=nodes))


def hami(*args):
    return CliRunner().invoke(main, [str(word) for word in args])


def test_the_command_prints_the_report(small):
    result = hami("replay", small, "-o", "json", "--policy", "spread", "--preemption", "never")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["kind"], document["nodePolicy"]) == ("TwinReport", "spread")
    (segment,) = segments_at(small)
    assert hami("replay", segment).stdout.startswith("40 pods on 2 nodes from 2026-")


@cases(
    "words, said",
    (["--without", "9"], "error: --without=9: the recording has 2 nodes"),
    (["--nodes", "x"], "error: --nodes=x: expected like=NODE:COUNT with at most 10,000 nodes"),
)
def test_the_command_says_what_is_wrong(small, words, said):
    result = hami("replay", small, *words)
    assert (result.exit_code, result.stderr) == (2, f"{said}\n")


def test_a_snapshot_has_no_changes(tmp_path):
    path = tmp_path / "snapshot"
    path.write_bytes(gzip.compress(b"{}"))
    result = hami("replay", path, "--policy", "spread")
    assert result.stderr == f"error: {path}: a snapshot has one moment: its replay has no options\n"
    assert "not a snapshot of hami" in hami("replay", path).stderr


def test_ctrl_c_is_quiet(small, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("hami.inspect.twin_report.make_twin_report", interrupted)
    result = hami("replay", small)
    assert (result.exit_code, result.output) == (130, "")


def test_the_salt_stays(tmp_path):
    salt = salt_in(tmp_path)
    assert salt_in(tmp_path) == salt
    assert (tmp_path / "salt").stat().st_mode & 0o777 == 0o600
    (tmp_path / "salt").write_bytes(b"short")
    with pytest.raises(HamiError, match="salt: 5 bytes, expected 32: use another folder"):
        salt_in(tmp_path)
