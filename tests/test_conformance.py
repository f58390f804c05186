"""Kubernetes' own tests: which are run, what their reports say, and when a run has failed."""

import contextlib
import itertools
import json
import re
import shlex
import threading
from types import SimpleNamespace

import pytest

from testing.binaries import CONFORMANCE, MINOR_VARIABLE
from testing.cases import cases
from testing.conformance import selection
from testing.conformance.__main__ import main
from testing.conformance.run import Run
from testing.conformance.selection import GROUPS, ListOutdated, chosen, listed, shortcomings, stale
from testing.conformance.slices import SliceWatch
from testing.conformance.suite import Interrupted, Result, State, parse_names, parse_report
from testing.eventually import WaitTimeout
from testing.sandbox import ALLOCATED

PREDICATES = "[sig-scheduling] SchedulerPredicates"
PORTS, TAINTS = (
    f"{PREDICATES} hostPort => conflict [Serial]",
    f"{PREDICATES} taints (tolerated) [Serial]",
)
REPLICAS = "[sig-apps] ReplicaSet should scale"
OTHER = "[sig-node] Pods should be submitted"
LISTING = f"""The following spec names can be used with 'ginkgo run --focus/skip':
    k8s.io/kubernetes@v1.37.2/test/e2e/scheduling/predicates.go:632: {TAINTS}
    k8s.io/kubernetes@v1.37.2/test/e2e/apps/replica_set.go:143: {REPLICAS}
    k8s.io/kubernetes@v1.37.2/test/e2e/scheduling/predicates.go:706: {PORTS}
    k8s.io/kubernetes@v1.37.2/test/e2e/common/node/pods.go:10: {OTHER}

"""
ANY = re.compile("")


def result(test=TAINTS, state=State.PASSED, **fields):
    return Result(
        **{"test": test, "state": state, "reason": "", "seconds": 1.0, "log": "", "pods": 1}
        | fields
    )


# -- which tests are run


def test_the_names_are_read_from_the_listing():
    assert parse_names(LISTING) == (REPLICAS, OTHER, PORTS, TAINTS)


@cases(
    "focus, with_listed, tests, left_out",
    ("all", "", False, [REPLICAS, TAINTS], [PORTS]),
    ("all with listed", "", True, [REPLICAS, PORTS, TAINTS], []),
    ("focus", "hostPort|scale", False, [REPLICAS], [PORTS]),
    ("focus with listed", "hostPort|scale", True, [REPLICAS, PORTS], []),
    ("another group", "sig-node", True, [], []),
)
def test_tests_of_the_groups_are_chosen_by_focus_and_list(focus, with_listed, tests, left_out):
    choice = chosen(
        parse_names(LISTING), {PORTS: "why"}, focus=re.compile(focus), with_listed=with_listed
    )
    assert list(choice.tests) == tests
    assert choice.left_out == dict.fromkeys(left_out, "why")


@pytest.mark.parametrize("name", ["[sig-scheduling] Workload renamed", OTHER])
@pytest.mark.parametrize("with_listed", [False, True])
def test_a_listed_test_that_does_not_exist_or_is_not_chosen_is_an_error(name, with_listed):
    reasons = {PORTS: "why", name: "why"}
    with pytest.raises(ListOutdated, match=f"there is no test {re.escape(repr(name))}$"):
        chosen(parse_names(LISTING), reasons, focus=re.compile("scale"), with_listed=with_listed)


@pytest.mark.files
def test_the_list_has_tests_of_the_groups_with_reasons():
    assert all(name.startswith(GROUPS) and reason for name, reason in listed().items())


# -- what a report says


def spec(state, text=TAINTS, kind="It", message=""):
    *containers, leaf = text.split(" ") if text else [""]
    failure = {"Failure": {"Message": message}} if message else {}
    return {
        "ContainerHierarchyTexts": containers or None,
        "LeafNodeText": leaf,
        "LeafNodeType": kind,
        "State": state,
        **failure,
    }


BEFORE = spec("passed", "", "SynchronizedBeforeSuite")
FILTERED = spec("skipped", PORTS)


@cases(
    "specs, expected",
    ([BEFORE, FILTERED, spec("passed")], (State.PASSED, "")),
    (
        [BEFORE, FILTERED, spec("skipped", message="needs a cloud")],
        (State.SKIPPED, "needs a cloud"),
    ),
    ([BEFORE, spec("failed", message="\nexpected 1\n  got 2")], (State.FAILED, "expected 1 got 2")),
    (
        [BEFORE, spec("timedout", message="A spec timeout occurred")],
        (State.FAILED, "A spec timeout occurred"),
    ),
    ([BEFORE, spec("panicked")], (State.FAILED, "panicked")),
    ([spec("failed", "", "SynchronizedBeforeSuite", "no nodes")], (State.FAILED, "no nodes")),
    (
        [BEFORE, spec("passed"), spec("failed", "", "SynchronizedAfterSuite", "left")],
        (State.FAILED, "left"),
    ),
    ([BEFORE, FILTERED], (State.FAILED, "the report contains 0 tests of this name")),
    (
        [BEFORE, spec("passed"), spec("passed")],
        (State.FAILED, "the report contains 2 tests of this name"),
    ),
    (None, (State.FAILED, "the report contains 0 tests of this name")),
)
def test_the_state_of_a_test_is_read_from_the_report(specs, expected):
    assert parse_report(json.dumps([{"SpecReports": specs}]), TAINTS) == expected


# -- what results mean


@cases(
    "results, complaints",
    ("passed", [result(), result(REPLICAS, pods=0)], []),
    ("failed", [result(), result(PORTS, State.FAILED, reason="why")], [f"failed: {PORTS}: why"]),
    ("skipped", [result(), result(PORTS, State.SKIPPED, reason="why")], [f"skipped: {PORTS}: why"]),
    ("no pods", [result(pods=0)], ["no pod was bound, so that nothing has been shown about HAMi"]),
    ("no tests", [], ["no pod was bound, so that nothing has been shown about HAMi"]),
)
def test_with_hami_all_tests_have_to_pass_and_some_have_pods(results, complaints):
    assert shortcomings(results) == complaints


@cases(
    "state, is_listed, complaint",
    (State.PASSED, False, ""),
    (State.PASSED, True, f"passed, but not_on_kwok.txt lists it: {PORTS}"),
    (State.FAILED, False, f"failed, but not_on_kwok.txt does not list it: {PORTS}: why"),
    (State.FAILED, True, ""),
    (State.SKIPPED, False, f"skipped, but not_on_kwok.txt does not list it: {PORTS}: why"),
    (State.SKIPPED, True, ""),
)
def test_without_hami_the_listed_tests_are_those_that_do_not_pass(state, is_listed, complaint):
    reasons = {PORTS: "listed"} if is_listed else {}
    results = [result(PORTS, state, reason="" if state is State.PASSED else "why"), result()]
    assert stale(reasons, results) == ([complaint] if complaint else [])


# -- the pods


class Changes:
    """Stands in for the client: yields *changes*, and then waits for the end."""

    def __init__(self, *changes):
        self._changes = changes

    def follow(self, kind, ended, namespace):
        assert (kind, namespace) == ("Pod", None)
        yield from self._changes
        ended.wait(60)


def pod(name, *, node="", has_slice=False, namespace="test"):
    notes = {ALLOCATED: "GPU-0,NVIDIA,100,0:;"} if has_slice else None
    return {
        "metadata": {
            "uid": f"uid-{name}",
            "name": name,
            "namespace": namespace,
            "annotations": notes,
        },
        "spec": {"nodeName": node} if node else {},
    }


def watched(*changes):
    with SliceWatch(Changes(*changes)) as watch:
        watch.settle()
    return watch


def test_bound_pods_are_counted_once_each_also_when_they_are_gone():
    watch = watched(
        ("LISTED", {"items": None}),
        ("ADDED", pod("a")),
        ("MODIFIED", pod("a", node="n", has_slice=True)),
        ("MODIFIED", pod("a", node="n", has_slice=True)),
        ("ADDED", pod("waits")),
        ("DELETED", pod("a", node="n", has_slice=True)),
        ("DELETED", pod("waits")),
        ("LISTED", {"items": [pod("b", node="n", has_slice=True)]}),
        ("DELETED", pod("b", node="n", has_slice=True)),
    )
    assert watch.bound() == 2
    assert watch.without_slice() == []


def test_a_bound_pod_without_a_slice_is_found_except_in_namespaces_of_the_system():
    watch = watched(
        ("ADDED", pod("a", node="n")),
        ("ADDED", pod("critical", node="n", namespace="kube-system")),
        ("ADDED", pod("b", node="n", has_slice=True)),
        ("LISTED", {"items": []}),
    )
    assert watch.bound() == 2
    assert watch.without_slice() == ["test/a"]


# -- a run


class FakeSuite:
    """Returns the results of *outcomes* by test; a test without any passes."""

    def __init__(self, **outcomes):
        self.outcomes = outcomes
        self.ran = []
        self._lock = threading.Lock()

    def run(self, test, kubeconfig, folder, ended):
        with self._lock:
            self.ran.append((kubeconfig, test))
        outcome = self.outcomes.get(test, State.PASSED)
        if isinstance(outcome, Exception):
            raise outcome
        return result(
            test, outcome, reason="why" if outcome is State.FAILED else "", log="said", pods=0
        )


class FakeClusters:
    """Opens clusters that are named by their number. *objections* has those about each."""

    def __init__(self, *objections, clear=lambda: None):
        self.opened = self.closed = 0
        self._objections = objections
        self._clear = clear
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def __call__(self):
        with self._lock:
            number = self.opened
            self.opened += 1
        bound = itertools.count(0, 3)
        objections = self._objections[number] if number < len(self._objections) else []
        yield SimpleNamespace(
            cluster=SimpleNamespace(kubeconfig=f"kubeconfig-{number}", folder="folder"),
            slices=SimpleNamespace(bound=lambda: next(bound)),
            clear=self._clear,
            objections=lambda: objections,
            logs=lambda: f"logs of {number}",
        )
        with self._lock:
            self.closed += 1


def carried_out(suite, opened, *tests, clusters=1):
    reported = []
    run = Run(suite, opened, tests, report=reported.append, say=print)
    results = run.carry_out(clusters)
    assert results == reported
    return {one.test: one for one in results}


def test_the_tests_of_a_cluster_run_in_order_and_their_pods_are_counted():
    suite, opened = FakeSuite(), FakeClusters()
    results = carried_out(suite, opened, "a", "b", "c")
    assert suite.ran == [("kubeconfig-0", "a"), ("kubeconfig-0", "b"), ("kubeconfig-0", "c")]
    assert {one.state for one in results.values()} == {State.PASSED}
    assert {one.pods for one in results.values()} == {3}
    assert (opened.opened, opened.closed) == (1, 1)


def test_each_test_runs_once_on_several_clusters():
    suite, opened = FakeSuite(), FakeClusters()
    tests = [str(number) for number in range(20)]
    assert set(carried_out(suite, opened, *tests, clusters=3)) == set(tests)
    assert sorted(test for _, test in suite.ran) == sorted(tests)
    assert opened.opened == opened.closed <= 3


def test_after_a_failed_test_the_next_one_gets_a_new_cluster():
    suite, opened = FakeSuite(a=State.FAILED, b=State.SKIPPED), FakeClusters()
    results = carried_out(suite, opened, "a", "b", "c")
    assert suite.ran == [("kubeconfig-0", "a"), ("kubeconfig-1", "b"), ("kubeconfig-1", "c")]
    assert results["a"].log == "said\nlogs of 0"
    assert opened.opened == opened.closed == 2


def test_a_test_that_passes_fails_by_what_its_pods_hold():
    opened = FakeClusters(["test/a was bound without a slice", "a card is overcommitted"])
    results = carried_out(FakeSuite(), opened, "a", "b")
    assert results["a"].state is State.FAILED
    assert results["a"].reason == "test/a was bound without a slice; a card is overcommitted"
    assert results["b"].state is State.PASSED


def test_a_test_whose_pods_stay_has_failed():
    def clear():
        raise WaitTimeout("not within 300 s: the pods of the test are gone")

    results = carried_out(FakeSuite(), FakeClusters(clear=clear), "a")
    assert results["a"].state is State.FAILED
    assert results["a"].reason.endswith("the pods of the test are gone")


def test_an_interrupted_test_has_no_result():
    assert carried_out(FakeSuite(b=Interrupted()), FakeClusters(), "a", "b") == {
        "a": result("a", log="said", pods=3)
    }


def test_a_cluster_that_does_not_start_ends_the_run():
    @contextlib.contextmanager
    def broken():
        raise RuntimeError("no cluster")
        yield

    suite = FakeSuite()
    with pytest.raises(RuntimeError, match="no cluster"):
        carried_out(suite, broken, "a", "b", clusters=2)
    assert suite.ran == []


# -- the command


@pytest.fixture
def program(monkeypatch, tmp_path):
    """A program in the cache that lists the tests and can run none; PORTS cannot pass."""
    monkeypatch.delenv(MINOR_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(selection, "FILE", tmp_path / "list.txt")
    selection.FILE.write_text(f"{PORTS}  why\n")
    folder = CONFORMANCE.cache_folder()
    folder.mkdir(parents=True)
    file = folder / CONFORMANCE.own
    file.write_text(f"#!/bin/sh\nprintf %s {shlex.quote(LISTING)}\n")
    file.chmod(0o755)
    return file


@cases(
    "script, error",
    ("echo broken >&2; exit 3", "lists no tests (status 3):\nbroken\n\n"),
    ("echo The following", "lists no tests (status 0):\n\n"),
)
def test_a_program_that_lists_no_tests_is_an_error(program, script, error, capsys):
    program.write_text(f"#!/bin/sh\n{script}\n")
    assert main([]) == 1
    assert capsys.readouterr().err == f"{program} {error}"


def test_another_minor_version_of_the_control_plane_is_an_error(
    program, monkeypatch, tmp_path, capsys
):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
        "kwok",
        "kwokctl",
    ):
        (folder / name).write_text("#!/bin/sh\necho Kubernetes v1.2.3\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("HAMI_E2E_BIN", str(folder))
    assert main([]) == 1
    assert capsys.readouterr().err.startswith(
        f"the tests are those of Kubernetes {CONFORMANCE.version}, but the control plane is v1.2.3: "
    )
