"""Resized pods: their files, and what the device plugin answers."""

import os
from dataclasses import replace

import pytest

from hami.codec.allocation import render_shares
from hami.codec.keys import CORES_LIMIT, GPU_ALLOCATED, RESIZE_APPLIED, RESIZE_TARGET, RESIZED
from hami.codec.resize import AppliedSizes, parse_applied
from hami.devices.inventory import DeviceInventory
from hami.errors import ClusterError, NotFound
from hami.node.host import Host
from hami.node.limits import ContainerLimits, parse_limits, share_limit
from hami.node.live_limits import SETTLED_NS, read_limits, write_use
from hami.node.tenant_files import opened_directory
from hami.plugin.resize import CHECK_S, OVERBOOKED_S, PENDING_S, SILENT_S, SizeEnforcer
from testing.cards import config
from testing.cases import cases
from testing.fake_cluster import FakeCluster
from testing.plugin_stage import BOTH, CARDS, INIT, NODE, A, B, Events, asking, placed, share

MIB = 1 << 20
SMALL, OLD, LARGE = [[share(A, 500, 20)]], [[share(A, 1000, 30)]], [[share(A, 2000, 40)]]


def text(shares):
    return render_shares(tuple(map(tuple, shares)))


def resized(held, target=None, *, name="p", containers=None, **fields):
    """A running pod whose booking a scheduler has changed to *held*, and which is to have *target*."""
    annotations = {RESIZED: text(held)} | ({RESIZE_TARGET: text(target)} if target else {})
    return placed(
        *(containers or [asking() for _ in held]),
        shares=held,
        left="",
        name=name,
        bind_phase="success",
        phase="Running",
        annotations=annotations,
        **fields,
    )


class Stage:
    """A node with a card of 46,068 MiB, and its resizer."""

    def __init__(self, folder, library=b"\x7fELF hami-limits 1\0"):
        (folder / "vgpu").mkdir()
        (folder / "vgpu" / "libvgpu.so").write_bytes(library)
        self.config = config(
            node=NODE, hook_path=str(folder), kubelet_socket=str(folder / "kubelet.sock")
        )
        self.folder, self.host = folder, Host(self.config)
        self.cluster, self.events = FakeCluster(), Events()
        self.inventory = DeviceInventory()
        self.inventory.update(CARDS)
        self.time = 0.0
        self.knows_pods = True
        self.start()

    def start(self):
        """A new process of the plugin."""
        self.resizer = SizeEnforcer(
            self.config,
            self.cluster,
            BOTH,
            self.host,
            self.inventory,
            self.events,
            self.pods,
            clock=lambda: self.time,
        )

    def pods(self):
        return list(self.cluster.pods.values()) if self.knows_pods else None

    def run(self, pod, shares=OLD, name="c", most=None):
        """The pod runs, and its container *name* was started with these shares, and the limit *most* of its cores."""
        self.cluster.put_pod(pod)
        for of_container in shares:
            self.host.prepare(pod.ref.uid, name)
            self.host.write_limits(
                pod.ref.uid,
                name,
                "t",
                ContainerLimits(devices=tuple(share_limit(one, most) for one in of_container)),
            )

    def annotate(self, changes, name="p"):
        pod = self.cluster.pods["default", name]
        annotations = {
            key: value for key, value in (pod.annotations | changes).items() if value is not None
        }
        self.cluster.put_pod(replace(pod, annotations=annotations))

    def path(self, name="p", container="c"):
        return self.folder / "vgpu" / "containers" / f"uid-{name}_{container}"

    def limits(self, name="p", container="c"):
        """MiB and cores in the file."""
        limits = parse_limits((self.path(name, container) / "limits").read_text())
        return [(device.memory // MIB, device.cores) for device in limits.devices]

    def applied(self, name="p"):
        return parse_applied(self.cluster.pods["default", name].annotations.get(RESIZE_APPLIED))

    @property
    def answers(self):
        return len(self.cluster.calls_of("annotate_pod"))

    def uses(self, used, name="p"):
        """The monitor says what a container uses, by device in MiB."""
        with opened_directory(self.path(name)) as directory:
            write_use(
                directory,
                read_limits(directory).changed_ns,
                {uuid: mib * MIB for uuid, mib in used.items()},
            )


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr("hami.node.live_limits.SETTLED_NS", 0)  # of the clock of the file system
    return Stage(tmp_path)


def test_a_pod_that_grows_gets_its_file_and_then_the_answer(stage):
    stage.run(resized(LARGE))
    assert stage.resizer.step() == CHECK_S
    assert (stage.limits(), stage.applied()) == ([(2000, 40)], AppliedSizes(text(LARGE)))


def test_sizes_of_an_earlier_version_of_the_pod_are_not_confirmed(stage):
    """It has grown since, and shrinks to the same sizes again: what it has taken meanwhile is not known yet."""
    stage.run(resized(OLD))
    seen = stage.pods()
    stage.annotate({RESIZED: text(LARGE), RESIZE_TARGET: text(OLD)})
    stage.pods = lambda: seen
    stage.start()
    stage.resizer.step()
    assert stage.applied() is None


def test_cores_that_shrink_are_confirmed_at_once(stage):
    target = [[share(A, 1000, 10)]]
    stage.run(resized(OLD, target))
    assert stage.resizer.step() == CHECK_S
    assert (stage.limits(), stage.applied()) == ([(1000, 10)], AppliedSizes(text(target)))


def test_memory_that_shrinks_is_confirmed_once_the_use_fits(stage):
    stage.run(resized(OLD, SMALL))
    assert stage.resizer.step() == PENDING_S
    assert (stage.limits(), stage.applied(), stage.events.recorded) == ([(500, 20)], None, [])
    for _ in range(2):
        stage.uses({A: 501})
        assert stage.resizer.step() == PENDING_S
    assert stage.applied() is None
    assert stage.events.of("default/p") == [
        f"container c uses more of {A} than the 500 MiB that it is to have: it gets no more, and the rest stays booked "
        "until it uses less"
    ]
    stage.uses({A: 500})
    assert stage.resizer.step() == CHECK_S
    assert stage.applied() == AppliedSizes(text(SMALL))


def test_use_under_earlier_limits_confirms_nothing(stage):
    stage.run(resized(OLD))
    stage.uses({A: 1})
    stage.annotate({RESIZE_TARGET: text(SMALL)})
    assert stage.resizer.step() == PENDING_S
    stage.uses({B: 1})
    assert stage.resizer.step() == PENDING_S
    assert stage.applied() is None


def test_use_is_believed_only_once_all_processes_have_looked(stage, monkeypatch):
    monkeypatch.setattr("hami.node.live_limits.SETTLED_NS", SETTLED_NS)
    stage.run(resized(OLD, SMALL))
    stage.resizer.step()
    stage.uses({A: 1})
    assert (stage.resizer.step(), stage.applied()) == (PENDING_S, None)


def test_a_monitor_that_says_nothing_is_reported_after_a_while(stage):
    stage.run(resized(OLD, SMALL))
    stage.resizer.step()
    stage.time = SILENT_S - 1
    stage.resizer.step()
    assert stage.events.recorded == []
    for stage.time in (SILENT_S, SILENT_S + 1):
        stage.resizer.step()
    assert stage.events.recorded == [
        (
            "default/p",
            "Warning",
            "ResizePending",
            "the monitor of the node has not said how much memory container c uses",
        )
    ]


def test_a_container_that_starts_again_while_it_shrinks(stage):
    """What it used before does not count, and the answer follows."""
    stage.run(resized(OLD, SMALL))
    stage.resizer.step()
    stage.uses({A: 900})
    stage.host.prepare("uid-p", "c", keep=True)
    stage.host.write_limits(
        "uid-p", "c", "t", ContainerLimits(devices=tuple(map(share_limit, SMALL[0]))), keep=True
    )
    assert (stage.resizer.step(), stage.limits(), stage.applied()) == (PENDING_S, [(500, 20)], None)
    stage.uses({A: 0})
    assert (stage.resizer.step(), stage.applied()) == (CHECK_S, AppliedSizes(text(SMALL)))


def test_a_container_that_was_prepared_with_earlier_sizes_is_corrected(stage):
    """It started while the resize was on its way."""
    stage.run(resized(LARGE))
    stage.resizer.step()
    stage.host.write_limits(
        "uid-p", "c", "t", ContainerLimits(devices=tuple(map(share_limit, OLD[0]))), keep=True
    )
    assert (stage.resizer.step(), stage.limits(), stage.answers) == (CHECK_S, [(2000, 40)], 1)


def test_each_container_that_shrinks_must_use_less(stage):
    both = [asking("c"), asking("d")]
    stage.run(resized([*OLD, *OLD], [*SMALL, *SMALL], containers=both), OLD, "c")
    stage.run(stage.cluster.pods["default", "p"], OLD, "d")
    stage.resizer.step()
    stage.uses({A: 1})
    assert stage.resizer.step() == PENDING_S
    assert (stage.limits(), stage.limits(container="d"), stage.applied()) == (
        [(500, 20)],
        [(500, 20)],
        None,
    )


def test_the_same_answer_is_given_once(stage):
    stage.run(resized(LARGE))
    for _ in range(3):
        stage.resizer.step()
    stage.start()
    stage.resizer.step()
    assert stage.answers == 1


def test_an_answer_that_the_watch_has_not_delivered_yet_is_not_repeated(stage):
    stage.run(resized(LARGE))
    before = stage.pods()
    stage.pods = lambda: before
    stage.start()
    stage.resizer.step()
    stage.resizer.step()
    assert stage.answers == 1


def test_a_plugin_that_was_away_goes_on(stage):
    """Where the answer was lost, and where the file was left behind."""
    stage.run(resized(LARGE))
    stage.cluster.fail("annotate_pod", ClusterError("away"))
    stage.resizer.step()
    assert (stage.limits(), stage.applied()) == ([(2000, 40)], None)
    stage.start()
    stage.resizer.step()
    assert stage.applied() == AppliedSizes(text(LARGE))
    stage.annotate({RESIZED: text(OLD), GPU_ALLOCATED: text(OLD)})
    stage.start()
    stage.resizer.step()
    assert (stage.limits(), stage.applied()) == ([(1000, 30)], AppliedSizes(text(OLD)))


def test_a_file_that_disagrees_is_written_again(stage):
    stage.run(resized(LARGE))
    stage.resizer.step()
    stage.host.resize_limits("uid-p", "c", [share_limit(share(A, 1, 1))])
    assert (stage.resizer.step(), stage.limits(), stage.answers) == (CHECK_S, [(2000, 40)], 1)


@cases("annotations", ("never", {}), ("before it was bound", {RESIZED: "", RESIZE_TARGET: ""}))
def test_a_pod_that_was_not_resized_is_left_alone(stage, annotations):
    stage.run(placed(asking(), shares=LARGE, phase="Running", annotations=annotations))
    assert (stage.resizer.step(), stage.limits(), stage.answers) == (CHECK_S, [(1000, 30)], 0)


@cases(
    "fields",
    ("ended", {"phase": "Succeeded"}),
    ("elsewhere", {"node_name": "n2"}),
    ("claim", {"claim": "hami-1"}),
)
def test_pods_that_the_plugin_does_not_serve_are_left_alone(stage, fields):
    stage.run(replace(resized(LARGE), **fields))
    stage.resizer.step()
    assert (stage.limits(), stage.answers) == ([(1000, 30)], 0)


def test_before_the_pods_are_known_nothing_is_done(stage):
    stage.run(resized(LARGE))
    stage.knows_pods = False
    assert (stage.resizer.step(), stage.limits(), stage.answers) == (PENDING_S, [(1000, 30)], 0)


def test_a_container_that_has_not_started_is_confirmed(stage):
    """It gets its sizes when it starts."""
    stage.cluster.put_pod(resized(OLD, SMALL))
    assert (stage.resizer.step(), stage.applied()) == (CHECK_S, AppliedSizes(text(SMALL)))


def test_an_answer_about_what_a_pod_was_to_have_before_is_not_given(stage):
    """The scheduler would take it for an answer about the same sizes when they are wanted once more."""
    stage.run(resized(OLD, SMALL))
    stage.resizer.step()
    stage.uses({A: 400})
    stage.pods, late = (lambda: late), stage.pods()
    stage.start()
    stage.annotate({RESIZE_TARGET: None})
    assert (stage.resizer.step(), stage.applied()) == (PENDING_S, None)


def test_another_pod_of_that_name_gets_no_answer(stage):
    stage.run(resized(LARGE))
    before = stage.pods()
    stage.pods = lambda: before
    stage.start()
    stage.cluster.put_pod(resized(LARGE, uid="another"))
    assert (stage.resizer.step(), stage.applied()) == (PENDING_S, None)


@cases("error, delay", (NotFound("gone", 404), CHECK_S), (ClusterError("away"), 5.0))
def test_an_answer_that_fails_is_repeated_unless_the_pod_is_gone(stage, caplog, error, delay):
    stage.run(resized(LARGE))
    stage.cluster.fail("annotate_pod", error, times=2)
    assert [stage.resizer.step() for _ in range(2)] == [delay] * 2
    assert [one.message for one in caplog.records].count("sizes of a pod cannot be confirmed") == (
        delay == 5.0
    )


def test_files_are_written_before_the_first_answer(stage):
    """An API server that does not answer delays no file."""
    for name in "pq":
        stage.run(resized(LARGE, name=name))
    limits = []
    stage.cluster.on_call = lambda call: limits.append((stage.limits("p"), stage.limits("q")))
    stage.resizer.step()
    assert limits == [([(2000, 40)], [(2000, 40)])] * 2


# -- what is booked on a card


def test_nothing_grows_on_a_card_that_is_overbooked(stage):
    """The scheduler is told what holds, once it is sure that no pod has just ended."""
    stage.run(resized(LARGE))
    stage.cluster.put_pod(placed(asking(), shares=[[share(A, 45_000)]], name="q", phase="Running"))
    assert (stage.resizer.step(), stage.applied()) == (PENDING_S, None)
    stage.time = OVERBOOKED_S
    for _ in range(2):
        assert stage.resizer.step() == CHECK_S
    assert (stage.limits(), stage.answers) == ([(1000, 30)], 1)
    assert stage.applied() == AppliedSizes(
        text(OLD),
        (
            f"{A} has 46068 MiB and 100 percent, but 47000 MiB and 40 percent of it are "
            f"booked, so nothing can grow on it"
        ),
    )
    stage.cluster.delete_pod("default", "q")
    stage.resizer.step()
    assert (stage.limits(), stage.applied()) == ([(2000, 40)], AppliedSizes(text(LARGE)))


@cases(
    "other",
    ("just fits", placed(asking(), shares=[[share(A, 44_068, 60)]], name="q", phase="Running")),
    ("ended", placed(asking(), shares=[[share(A, 45_000)]], name="q", phase="Failed")),
    ("another card", placed(asking(), shares=[[share(B, 45_000)]], name="q", phase="Running")),
    ("not readable", placed(asking(), text="x", name="q", phase="Running")),
    ("was resized", resized([[share(A, 44_000)]], name="q")),
    (
        "one container after the other",
        placed(
            asking("i", kind=INIT),
            asking(),
            shares=[[share(A, 44_000)], [share(A, 40_000)]],
            name="q",
        ),
    ),
    (
        "asks for none",
        placed(asking("c", 0), shares=[[share(A, 45_000)]], name="q", phase="Running"),
    ),
)
def test_other_pods_that_leave_enough(stage, other):
    stage.run(resized(LARGE))
    stage.cluster.put_pod(other)
    assert (stage.resizer.step(), stage.limits()) == (CHECK_S, [(2000, 40)])


def test_an_overbooked_card_keeps_nobody_from_shrinking(stage):
    stage.run(resized(OLD, SMALL))
    stage.cluster.put_pod(placed(asking(), shares=[[share(A, 46_000)]], name="q", phase="Running"))
    stage.resizer.step()
    assert stage.limits() == [(500, 20)]


def test_nothing_grows_on_a_card_that_is_gone(stage):
    stage.run(resized(LARGE))
    stage.inventory = DeviceInventory()
    stage.inventory.update(CARDS[1:])
    stage.start()
    stage.resizer.step()
    stage.time = OVERBOOKED_S
    stage.resizer.step()
    assert stage.applied() == AppliedSizes(
        text(OLD), f"{A} is not offered by the node any more, so nothing can grow on it"
    )


# -- containers with other libraries, and what tenants do


def test_hami_s_library_gets_memory_only(tmp_path, monkeypatch):
    monkeypatch.setattr("hami.node.live_limits.SETTLED_NS", 0)
    stage = Stage(tmp_path, library=b"another limiter")
    stage.run(resized(LARGE))
    stage.resizer.step()
    kept = [[share(A, 2000, 30)]]
    assert (stage.limits(), stage.applied()) == (
        [(2000, 30)],
        AppliedSizes(
            text(kept),
            "container c has HAMi's library, with which only memory can change while it runs",
        ),
    )


def test_hami_s_library_gets_memory_without_a_problem(tmp_path):
    stage = Stage(tmp_path, library=b"another limiter")
    more = [[share(A, 2000, 30)]]
    stage.run(resized(more))
    stage.resizer.step()
    assert (stage.limits(), stage.applied()) == ([(2000, 30)], AppliedSizes(text(more)))


def test_a_container_of_hami_s_device_plugin_keeps_its_memory(stage):
    stage.run(resized(OLD, SMALL))
    os.unlink(stage.path() / "limits")
    stage.resizer.step()
    assert stage.applied() == AppliedSizes(
        text(OLD),
        "HAMi's device plugin has started container c, whose memory can only grow while it runs",
    )


def test_cores_without_a_limit_stay_none(stage):
    """A limit of 100 percent is none: it must not be booked as a whole card."""
    stage.run(resized([[share(A, 2000, 0)]]), [[share(A, 1000, 0)]])
    stage.cluster.put_pod(placed(asking(), shares=[[share(A, 45_000)]], name="q", phase="Running"))
    stage.resizer.step()
    stage.time = OVERBOOKED_S
    stage.resizer.step()
    assert stage.applied().sizes == text([[share(A, 1000, 0)]])


@cases(
    "before, after, cores",
    (0, 0, "cores=60 cores-most=60"),
    (30, 30, "cores=30 cores-most=60"),
    (0, 40, "cores=40 cores-most=60"),
)
def test_the_most_cores_of_the_pod_stay(stage, before, after, cores):
    wanted = [[share(A, 2000, after)]]
    one = resized(wanted)
    one = replace(one, annotations=one.annotations | {CORES_LIMIT: "60"})
    stage.run(one, [[share(A, 1000, before)]], most=60)
    assert (stage.resizer.step(), stage.applied()) == (CHECK_S, AppliedSizes(text(wanted)))
    assert f"memory={2000 * MIB} {cores}\n" in (stage.path() / "limits").read_text()


def test_files_that_cannot_be_changed_are_reported_and_tried_again(stage):
    stage.run(resized(LARGE))
    before = (stage.path() / "limits").read_text()
    (stage.path() / "limits").unlink()
    (stage.path() / "limits").write_text("x")
    assert [stage.resizer.step() for _ in range(2)] == [PENDING_S] * 2
    assert stage.events.of("default/p") == ["container c: limits: not a file with limits"]
    (stage.path() / "limits").write_text(before)
    assert (stage.resizer.step(), stage.applied()) == (CHECK_S, AppliedSizes(text(LARGE)))


@pytest.mark.parametrize("wanted", ["x", text([[share(A), share(B)]])])
def test_annotations_that_contradict_the_pod_change_nothing(stage, wanted):
    stage.run(resized(LARGE))
    stage.annotate({RESIZED: wanted})
    assert stage.resizer.step() == PENDING_S
    assert (stage.limits(), stage.answers, len(stage.events.recorded)) == ([(1000, 30)], 0, 1)
