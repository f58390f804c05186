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

param = pytest.param


def comparison(ours, theirs, figure="p50_ms"):
    return Comparison(group="g", what="w", figure=figure, ours=tuple(ours), theirs=tuple(theirs))


@pytest.mark.parametrize(
    ("ours", "theirs", "figure", "is_worse"),
    [
        param([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], "p50_ms", False, id="equal"),
        param([1.05, 1.05, 1.05], [1.0, 1.0, 1.0], "p50_ms", False, id="worse by 5 percent"),
        param([1.06, 1.06, 1.06], [1.0, 1.0, 1.0], "p50_ms", True, id="worse by more"),
        param([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], "p50_ms", False, id="better"),
        param([1.0, 1.2, 1.4], [1.0, 1.0, 1.0], "p50_ms", False, id="within the spread"),
        param([1.1, 1.2, 1.3], [1.0, 1.0, 1.0], "p50_ms", True, id="beyond the spread"),
        param([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], "p50_ms", False, id="the machine became slower"),
        param([1.2, 2.4, 4.8], [1.0, 2.0, 4.0], "p50_ms", True, id="worse on a slower machine"),
        param([90.0, 90.0], [100.0, 100.0], "rate", True, id="a rate fell"),
        param([110.0, 110.0], [100.0, 100.0], "rate", False, id="a rate rose"),
    ],
)
def test_a_figure_is_worse_beyond_five_percent_and_its_spread(ours, theirs, figure, is_worse):
    assert comparison(ours, theirs, figure).is_worse is is_worse


def test_ratios_are_those_of_neighbors():
    row = comparison([1.0, 3.0], [2.0, 2.0])
    assert row.ratios == [0.5, 1.5]
    assert row.ratio == 1.0
    assert row.spread == 0.5


@pytest.mark.parametrize(
    ("figures", "values"),
    [
        param({"p50_ms": 2, "max_ms": 9, "count": 7}, {"p50_ms": 2}, id="what is no cost is left out"),
        param({"milliseconds": [1, 9, 2]}, {"milliseconds": 2}, id="a series counts with its median"),
        param({"a": {"mib": 3}}, {"a.mib": 3}, id="nested"),
        param(
            {"runs": [{"rate": 1.0, "cpu_seconds": {"others": 4}}, {"rate": 3.0}]},
            {"runs.rate": 2},
            id="runs count with their mean",
        ),
        param(
            {"count": 100, "cpu_seconds": {"hami": 0.2, "others": 5}},
            {"cpu_ms": 2},
            id="processor time of a request",
        ),
        param({"cpu_seconds": 1.5}, {"cpu_seconds": 1.5}, id="processor time of a program"),
        param({"seconds": [], "disturbed": "no", "failed": True}, {}, id="nothing"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    "runs",
    [
        param([[row("a", mib=0)]], id="nothing grew"),
        param([[row("a", group="machine", seconds=1)]], id="the yardstick"),
    ],
)
def test_what_says_nothing_is_not_compared(runs):
    assert comparisons(runs, runs) == ([], [])


@pytest.fixture
def other(tmp_path):
    """A checkout whose rows take twice as long as those of this one."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__main__.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (None, "it has no interpreter .venv/bin/python"),
        ("#!/bin/sh\necho /another/hami/__init__.py\n", "is that of /another"),
        ("#!/bin/sh\nexit 1\n", "is that of None"),
    ],
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


@pytest.mark.parametrize(
    ("results", "status", "said"),
    [
        param(beside.Results(found=[comparison([1.0, 1.0], [1.0, 1.0])]), 0, "", id="equal"),
        param(
            beside.Results(found=[comparison([2.0, 2.0], [1.0, 1.0])]),
            1,
            "worse: w: p50_ms: 2.00 ± 0.00 times old\n",
            id="worse",
        ),
        param(beside.Results(failed=["dra: ended"]), 1, "failed: dra: ended\n", id="failed"),
        param(beside.Results(alone=["only here: x"]), 0, "only here: x\n", id="only here"),
    ],
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
