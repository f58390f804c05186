"""The driver's own limit of memory: set for the control group of a container before its program runs.

On the fake NVML, and with directories in place of control groups, since not each machine has those of version 2.
"""

import pytest

from testing.cases import cases
from testing.limiter.builds import TARGETS
from testing.limiter.rig import MIB, Rig, uuid_of
from testing.limiter.wall import MOUNT, NO_LIMIT, Answer, Limits, Node
from tests.libvgpu.test_build import dynamic

GIB = 1024 * MIB
DONE = Answer(0, "")
CAPABLE = Answer(0, "the driver limits device memory\n")
PIECES = 60
"""Of 256 MiB: less than the card has."""


@pytest.fixture
def node(tmp_path, builds, monkeypatch, request):
    made = Node(tmp_path, builds, getattr(request, "param", "dmem"))
    for name, value in made.environment().items():
        if name.startswith("FAKE_"):
            monkeypatch.setenv(name, value)
    return made


both = pytest.mark.parametrize("node", ["dmem", "misc"], indirect=True)
dmem = pytest.mark.parametrize("node", ["dmem"], indirect=True)
misc = pytest.mark.parametrize("node", ["misc"], indirect=True)


def failed(what):
    return Answer(1, f"hami-memory-wall: {what}\n")


@both
def test_a_static_program_is_stopped_at_its_limit_and_its_neighbor_is_not(node):
    group, other = node.add_container(11), node.add_container(12, "b")
    assert node.probe() == CAPABLE
    assert node.limits(group) is None
    assert node.hook(11, 4 * GIB) == DONE
    with node.static_program(group, PIECES) as got, node.static_program(other, 20) as free:
        assert got == [16, 2]
        assert free == [20, 0]
        assert node.limits(group) == Limits(0, 4 * GIB, 4 * GIB)
    assert node.limits(other) is None


@both
def test_all_programs_of_a_container_share_one_limit(node):
    group = node.add_container(11)
    node.hook(11, 4 * GIB)
    with node.static_program(group, 10) as one, node.static_program(group, 10) as other:
        assert one == [10, 0]
        assert other == [6, 2]


@both
def test_the_same_limit_again_changes_nothing(node):
    group = node.add_container(11)
    assert node.hook(11, 4 * GIB) == node.hook(11, 4 * GIB) == DONE
    assert node.limits(group) == Limits(0, 4 * GIB, 0)


@both
@cases("size, more", ("below use", 2, [0, 2]), ("more", 6, [12, 2]))
def test_a_resize_keeps_what_is_there_and_counts_at_once(node, size, more):
    group = node.add_container(11)
    node.hook(11, 4 * GIB)
    with node.static_program(group, 12) as got:
        assert got == [12, 0]
        assert node.hook(11, size * GIB) == DONE
        with node.static_program(group, PIECES) as beside:
            assert beside == more
    with node.static_program(group, PIECES) as alone:
        assert alone == [4 * size, 2]


@both
def test_a_restarted_container_has_a_new_group_without_limit_until_the_hook_runs_again(node):
    first = node.add_container(11)
    node.hook(11, 4 * GIB)
    node.remove(first)
    assert node.limits(first) is None
    assert node.hook(11, 4 * GIB) == failed(f"the control group is gone: {first}")
    second = node.add_container(12, "again")
    assert node.limits(second) is None
    assert node.hook(12, 4 * GIB) == DONE
    assert node.limits(second) == Limits(0, 4 * GIB, 0)


@both
def test_a_new_group_of_the_same_name_has_no_limit(node):
    group = node.add_container(11)
    node.hook(11, 4 * GIB)
    group.rename(group.with_name("other"))
    assert node.limits(node.add_container(12)) is None


@misc
def test_misc_limits_do_not_nest(node):
    group = node.add_container(11)
    node.set_limits(node.pod, soft=0, hard=4 * GIB)
    with node.static_program(group, PIECES) as inherited:
        assert inherited == [16, 2]
    node.hook(11, 8 * GIB)
    with node.static_program(group, PIECES) as own:
        assert own == [32, 2]


@dmem
def test_a_dmem_limit_of_the_pod_holds_for_all_its_containers(node):
    group, other = node.add_container(11), node.add_container(12, "b")
    node.set_limits(node.pod, soft=0, hard=4 * GIB)
    node.hook(11, 8 * GIB)
    with node.static_program(group, 12) as one, node.static_program(other, 12) as two:
        assert one == [12, 0]
        assert two == [4, 2]


@dmem
def test_a_group_without_the_controller_is_told(node):
    group = node.add_container(11, files=False)
    assert node.hook(11, GIB) == failed(f"the control group has no controller dmem: {group}")


@both
def test_a_soft_limit_of_somebody_else_is_taken_away(node):
    """It would be a guarantee, at the cost of the neighbors."""
    group = node.add_container(11)
    assert node.set_limits(group, soft=2 * GIB, hard=2 * GIB) == 0
    assert node.hook(11, 4 * GIB) == DONE
    assert node.limits(group) == Limits(0, 4 * GIB, 0)


@pytest.mark.parametrize("node", ["off"], indirect=True)
def test_a_driver_with_accounting_switched_off_is_told(node):
    off = "memory accounting is off (RmMemacctMode=0), or the device is in MIG mode"
    group = node.add_container(11)
    assert node.probe() == failed(f"{off}: {uuid_of(0)}")
    assert node.hook(11, GIB) == failed(f"{off}: {group}")


STATES = [
    ("MIG", {"FAKE_NVML_MIG": "1"}, "or the device is in MIG mode"),
    ("not root", {"FAKE_NVML_UID": "1000"}, "only root may set limits"),
    ("no device", {"FAKE_CUDA_DEVICES": "0"}, f"the node has no such device: {uuid_of(0)}"),
]


@cases("env, why", *STATES)
def test_each_state_is_told_by_probe_and_hook(node, env, why):
    node.add_container(11)
    for answer in (node.probe(**env), node.hook(11, GIB, **env)):
        assert answer.status == 1
        assert why in answer.text


def test_a_driver_from_before_release_615_is_told(node, builds):
    node.library = builds.old_nvml
    node.add_container(11)
    old = failed(f"the driver is older than release 615: {builds.old_nvml}")
    assert node.probe() == old
    assert node.hook(11, GIB) == old


def test_a_missing_library_is_told(node, tmp_path):
    node.library = tmp_path / "none.so"
    node.add_container(11)
    answer = node.hook(11, GIB)
    assert answer.status == 1
    assert answer.text.startswith("hami-memory-wall: the driver's library cannot be loaded: ")


V1 = "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@cases("mounts", ("v1", V1), ("hybrid", V1 + MOUNT.format(path="/sys/fs/cgroup/unified")))
def test_control_groups_of_version_1_are_told(node, mounts):
    node.mount(mounts)
    node.add_container(11)
    none = failed(f"the node has no control groups of version 2 alone: {node.proc}/self/mountinfo")
    assert node.probe() == none
    assert node.hook(11, GIB) == none


def test_best_effort_tells_the_same_and_lets_the_container_start(node):
    node.mount(V1)
    node.add_container(11)
    answer = node.hook(11, GIB, "--best-effort")
    assert answer.status == 0
    assert "no control groups of version 2 alone" in answer.text


def test_more_than_the_card_has_is_refused(node):
    group = node.add_container(11)
    answer = node.hook(11, 17 * GIB)
    assert answer == failed(f"the limit is more than the device has: {uuid_of(0)}")
    assert node.limits(group) is None


@cases(
    "state",
    ("annotations", {"annotations": {"pid": 12, "x": '{"pid": 12}'}, "pid": 11}),
    ("values", '{"id": "pid", "bundle": "\\"pid\\": 12", "pid" : 11}'),
    ("nested", {"process": [{"pid": 12}], "pid": 11}),
)
def test_the_process_is_that_of_the_state_and_not_of_a_name_in_it(node, state):
    group, other = node.add_container(11), node.add_container(12, "b")
    assert node.hook(11, GIB, state=state) == DONE
    assert node.limits(group) == Limits(0, GIB, 0)
    assert node.limits(other) is None


@pytest.mark.parametrize("state", ["", "{}", "[]", '{"pid": 0}', '{"pid": "', '{"pid', "not JSON"])
def test_a_state_without_a_process_is_told(node, state):
    assert node.hook(11, GIB, state=state) == failed("no pid in the state of the container")


@cases(
    "group, why",
    ("outside", "../other", "has no control group here"),
    ("topmost", "", "runs in the topmost control group"),
)
def test_a_limit_is_only_set_for_a_group_of_the_container(node, group, why):
    node.add_container(11)
    node.join(11, group)
    answer = node.hook(11, GIB)
    assert answer.status == 1
    assert why in answer.text


@pytest.mark.parametrize(
    "words, why",
    [
        ([], "expected --limit or --probe"),
        (["--probe"], "--probe needs --device"),
        (["--limits"], "unknown argument, or one without value: --limits"),
        (["--size", "1"], "unknown argument: --size"),
        (["--limit", "GPU-1"], "expected UUID=BYTES: GPU-1"),
        (["--limit", "=1"], "expected UUID=BYTES: =1"),
        (["--limit", "GPU-1="], "expected UUID=BYTES: GPU-1="),
        (["--limit", "GPU-1=0"], "expected UUID=BYTES: GPU-1=0"),
        (["--limit", "GPU-1=-1"], "expected UUID=BYTES: GPU-1=-1"),
        (["--limit", "GPU-1=1m"], "expected UUID=BYTES: GPU-1=1m"),
        (["--limit", f"GPU-1={NO_LIMIT}"], f"expected UUID=BYTES: GPU-1={NO_LIMIT}"),
        (["--limit", "GPU-1=9" + "9" * 30], "expected UUID=BYTES: GPU-1=9" + "9" * 30),
        (["--limit", "G" * 96 + "=1"], "expected UUID=BYTES: " + "G" * 96 + "=1"),
        (["--limit", "G=1"] * 17, "more limits than a container has devices: G=1"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_arguments_that_cannot_be_meant_are_refused_also_with_best_effort(node, words, why):
    answer = node.run("--best-effort", *words)
    assert answer == Answer(2, f"hami-memory-wall: {why}\n")


def test_each_card_has_its_own_limit(node, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")
    group = node.add_container(11)
    answer = node.hook(11, GIB, "--limit", f"{uuid_of(1)}={3 * GIB}", FAKE_CUDA_DEVICES="2")
    assert answer == DONE
    assert node.limits(group) == Limits(0, GIB, 0)
    assert node.limits(group, 1) == Limits(0, 3 * GIB, 0)


@both
def test_free_memory_is_subtracted_once_through_limiter_and_wall(node, builds, tmp_path):
    """The driver tells the limit of the group in place of the card's memory; the limiter tells the smaller of both."""
    group = node.add_container(11)
    node.hook(11, 4 * GIB)
    (folder := tmp_path / "container").mkdir()
    rig = Rig(folder, builds)
    rig.limit({"memory": 4 * GIB})
    try:
        client = rig.client(**node.environment(FAKE_CGROUP=str(group))).start()
        assert client.do(f"alloc plain 0 {GIB}") == 0
        assert client.do("info")[1:] == [3 * GIB, 4 * GIB]
        assert client.do(f"alloc plain 1 {3 * GIB}") == 0
        assert client.do("alloc plain 2 1") == 2
    finally:
        rig.close()


ID = "0a" * 32


def record_of(node, folder, pid=11, size=GIB, **state):
    """Runs the hook for a container with records in *folder*. Returns what it has written, by name."""
    folder.mkdir(exist_ok=True)
    given = {"id": ID, "pid": pid} | state
    node.hook(pid, size, "--best-effort", "--records", str(folder), state=given)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_the_device_plugin_is_left_a_record(node, tmp_path):
    group = node.add_container(11)
    text = f"group /{group.relative_to(node.root)}\nlimit {uuid_of(0)}={GIB}\n"
    assert record_of(node, tmp_path / "records") == {ID: text}
    assert record_of(node, tmp_path / "records") == {ID: text}


def test_a_record_says_the_first_problem(node, tmp_path):
    group = node.add_container(11)
    text = record_of(node, tmp_path / "records", size=17 * GIB)[ID]
    assert text == (
        f"group /{group.relative_to(node.root)}\nlimit {uuid_of(0)}={17 * GIB}\n"
        f"problem the limit is more than the device has: {uuid_of(0)}\n"
    )
    node.mount(V1)
    (text,) = record_of(node, tmp_path / "others").values()
    assert text.startswith("group \n")
    assert "problem the node has no control groups of version 2 alone" in text


@pytest.mark.parametrize("id", ["", "../x", "a/b", "a" * 65, "A", 7, None])
def test_an_id_that_is_no_name_of_a_file_leaves_none(node, tmp_path, id):
    group = node.add_container(11)
    assert record_of(node, tmp_path / "records", id=id) == {}
    assert node.limits(group) == Limits(0, GIB, 0)


def test_a_record_that_cannot_be_written_stops_no_container(node, tmp_path):
    group = node.add_container(11)
    words = ("--records", str(tmp_path / "none"))
    answer = node.hook(11, GIB, *words, state={"id": ID, "pid": 11})
    assert (answer.status, "cannot write" in answer.text) == (0, True)
    assert node.limits(group) == Limits(0, GIB, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_the_release_is_small_and_needs_only_the_c_library(release, target):
    program = release[target].with_name("hami-memory-wall")
    _, needed, versions = dynamic(program)
    assert {name.partition(".so")[0] for name in needed} <= {"libc", "libdl"}
    assert max(versions) <= (2, 17)
    assert program.stat().st_size < 30_000
