"""The judgement of benchmarks that two checkouts ran in turns."""

import argparse
import contextlib
import json
import subprocess
import sys

import pytest

from benchmarks import beside
from benchmarks.__main__ import main_beside
from benchmarks.beside import Checkout, Comparison, comparisons, values_of
from testing.cases import cases

param = pytest.param


def comparison(ours, theirs, figure="p50_ms"):
    return Comparison(group="g", what="w", figure=figure, ours=tuple(ours), theirs=tuple(theirs))


@cases(
    "ours, theirs, figure, is_worse",
    ("equal", [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], "p50_ms", False),
    ("worse by 5 percent", [1.05, 1.05, 1.05], [1.0, 1.0, 1.0], "p50_ms", False),
    ("worse by more", [1.06, 1.06, 1.06], [1.0, 1.0, 1.0], "p50_ms", True),
    ("better", [0.5, 0.5, 0.5], [1.0, 1.0, 1.0], "p50_ms", False),
    ("within the spread", [1.0, 1.2, 1.4], [1.0, 1.0, 1.0], "p50_ms", False),
    ("beyond the spread", [1.1, 1.2, 1.3], [1.0, 1.0, 1.0], "p50_ms", True),
    ("the machine became slower", [1.0, 2.0, 4.0], [1.0, 2.0, 4.0], "p50_ms", False),
    ("worse on a slower machine", [1.2, 2.4, 4.8], [1.0, 2.0, 4.0], "p50_ms", True),
    ("a rate fell", [90.0, 90.0], [100.0, 100.0], "rate", True),
    ("a rate rose", [110.0, 110.0], [100.0, 100.0], "rate", False),
)
def test_a_figure_is_worse_beyond_five_percent_and_its_spread(ours, theirs, figure, is_worse):
    assert comparison(ours, theirs, figure).is_worse is is_worse


def test_ratios_are_those_of_neighbors():
    row = comparison([1.0, 3.0], [2.0, 2.0])
    assert row.ratios == [0.5, 1.5]
    assert row.ratio == 1.0
    assert row.spread == 0.5


@cases(
    "figures, values",
    ("what is no cost is left out", {"p50_ms": 2, "max_ms": 9, "count": 7}, {"p50_ms": 2}),
    ("a series counts with its median", {"milliseconds": [1, 9, 2]}, {"milliseconds": 2}),
    ("nested", {"a": {"mib": 3}}, {"a.mib": 3}),
    (
        "runs count with their mean",
        {"runs": [{"rate": 1.0, "cpu_seconds": {"others": 4}}, {"rate": 3.0}]},
        {"runs.rate": 2},
    ),
    (
        "processor time of a request",
        {"count": 100, "cpu_seconds": {"hami": 0.2, "others": 5}},
        {"cpu_ms": 2},
    ),
    ("processor time of a program", {"cpu_seconds": 1.5}, {"cpu_seconds": 1.5}),
    ("nothing", {"seconds": [], "disturbed": "no", "failed": True}, {}),
)
def test_figures_of_a_row(figures, values):
    assert values_of(figures) == values


def row(what, group="g", **figures):
    return {"group": group, "what": what, "figures": figures}


def test_rows_are_compared_by_name_and_others_are_listed():
    ours = [[row("a", mib=2), row("new", mib=1)], [row("a", mib=4)]]
    theirs = [[row("gone", mib=1), row("a", mib=1)], [row("a", mib=2)]]
    found, alone = comparisons(ours, theirs)
    assert found == [
        Comparison(group="g", what="a", figure="mib", ours=(2.0, 4.0), theirs=(1.0, 2.0))
    ]
    assert alone == ["only here: g · new · mib", "only there: g · gone · mib"]


@cases(
    "runs",
    ("nothing grew", [[row("a", mib=0)]]),
    ("the yardstick", [[row("a", group="machine", seconds=1)]]),
)
def test_what_says_nothing_is_not_compared(runs):
    assert comparisons(runs, runs) == ([], [])


@pytest.fixture
def other(tmp_path):
    """A checkout whose rows take twice as long as those of this one."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__main__.py").touch()
    return tmp_path


@cases(
    "python, said",
    (None, "it has no interpreter .venv/bin/python"),
    ("#!/bin/sh\necho /another/hami/__init__.py\n", "is that of /another"),
    ("#!/bin/sh\nexit 1\n", "is that of None"),
)
def test_a_checkout_needs_an_interpreter_of_its_own(other, python, said):
    if python is not None:
        file = other / ".venv" / "bin" / "python"
        file.parent.mkdir(parents=True)
        file.write_text(python)
        file.chmod(0o755)
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        beside.checkout(str(other))


def test_both_checkouts_measure_in_turns_by_the_command_line_of_old_ones(tmp_path, monkeypatch):
    calls = []

    def run(command, *, cwd, **more):
        calls.append((cwd.name, command[1:-1]))
        command[-1].write_text(json.dumps({"rows": [row("a", mib=1.0)]}))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(beside, "ROOT", tmp_path / "here")
    chosen = argparse.Namespace(
        groups=["resize"],
        nodes=[],
        large=1,
        rounds=2,
        pairs=2,
        beside=Checkout("there", tmp_path / "there", sys.executable),
    )
    results = beside.Results()
    beside.compare(argparse.Namespace(folder=tmp_path, say=calls.append), chosen, results)
    words = ["-m", "benchmarks", "resize", "--rounds", "2", "--json"]
    assert [call for call in calls if isinstance(call, tuple)] == [
        ("here", words),
        ("there", words),
        ("here", words),
        ("there", words),
    ]
    assert [found.ours for found in results.found] == [(1.0, 1.0)]


@pytest.mark.parametrize(("runs", "pairs"), [(5, 2), (4, 2), (3, 0), (0, 0)])
@pytest.mark.parametrize("end", [KeyboardInterrupt, subprocess.CalledProcessError(2, "")])
def test_complete_pairs_count_however_the_next_one_ends(tmp_path, monkeypatch, runs, pairs, end):
    done = []

    def run(command, **more):
        if len(done) == runs:
            raise end
        done.append(command)
        command[-1].write_text(json.dumps({"rows": [row("a", mib=1.0)]}))

    monkeypatch.setattr(subprocess, "run", run)
    chosen = argparse.Namespace(
        groups=["dra"],
        nodes=[],
        large=1,
        rounds=1,
        pairs=3,
        beside=Checkout("there", tmp_path, sys.executable),
    )
    results = beside.Results()
    with contextlib.suppress(KeyboardInterrupt):
        beside.compare(argparse.Namespace(folder=tmp_path, say=str), chosen, results)
    assert [len(found.ours) for found in results.found] == [pairs] * (pairs > 0)


def test_a_run_that_fails_is_told_and_the_next_one_goes_on(tmp_path, monkeypatch):
    def run(command, **more):
        raise subprocess.CalledProcessError(2, command)

    monkeypatch.setattr(subprocess, "run", run)
    chosen = argparse.Namespace(
        groups=["resize", "dra"], nodes=[], large=1, rounds=1, pairs=2, beside=None
    )
    results = beside.Results()
    beside.compare(argparse.Namespace(folder=tmp_path, say=str), chosen, results)
    assert results.failed == [
        "resize --rounds 1: ended with 2 in here",
        "dra --rounds 1: ended with 2 in here",
    ]


class Report:
    """Where results are shown and written."""

    def __init__(self):
        self.written = []

    def end(self, shown, results):
        self.written.append(results)


@cases(
    "results, status, said",
    ("equal", beside.Results(found=[comparison([1.0, 1.0], [1.0, 1.0])]), 0, ""),
    (
        "worse",
        beside.Results(found=[comparison([2.0, 2.0], [1.0, 1.0])]),
        1,
        "worse: w: p50_ms: 2.00 ± 0.00 times old\n",
    ),
    ("failed", beside.Results(failed=["dra: ended"]), 1, "failed: dra: ended\n"),
    ("only here", beside.Results(alone=["only here: x"]), 0, "only here: x\n"),
)
def test_what_is_worse_is_named_and_decides_the_exit_status(
    tmp_path, monkeypatch, capsys, results, status, said
):
    monkeypatch.setattr(beside, "Results", lambda: results)
    monkeypatch.setattr(beside, "compare", lambda run, chosen, results: None)
    chosen = argparse.Namespace(beside=Checkout("old", tmp_path, tmp_path))
    report = Report()
    assert main_beside(None, chosen, report) == status
    assert capsys.readouterr().out == said
    assert len(report.written) == len(results.found)
