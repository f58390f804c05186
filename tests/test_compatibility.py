"""The table of Kubernetes versions contains what pytest reported, and manual changes are detected."""

import os
import subprocess
import sys

import pytest

from testing import compatibility
from testing.binaries import minors
from testing.cases import cases
from testing.compatibility import (
    DOCUMENT,
    README,
    Row,
    RunBroken,
    TableChanged,
    left_out,
    merged,
    outcomes,
    row,
    summarized,
    table_rows,
    write_rows,
)

SUITE = """
import pytest

def test_passes(): pass
def test_fails(): assert False
@pytest.mark.parametrize("name", ["a.b", "c"])
def test_named(name): assert name == "c"
@pytest.mark.skip
def test_skipped(): pass
@pytest.fixture
def broken(): raise OSError
def test_set_up(broken): pass
@pytest.fixture
def audited():
    yield
    raise OSError
def test_torn_down(audited): pass
def test_twice(audited): assert False
"""
EMPTY = f"""text
<!-- table: written by `python -m testing.compatibility`, not by hand; sha256 {compatibility.digest("")} -->
<!-- end of table -->
more
"""
KNOWN = ("1.36", "1.35", "1.34")


def ran(version, **but):
    values = dict(
        passed=7,
        again=(),
        failed=(),
        skipped=0,
        left_out="nothing",
        date="2026-01-02",
        commit="`abc`",
    )
    return Row(version=version, **values | but)


def test_outcomes_are_what_pytest_reports(tmp_path):
    (tmp_path / "e2e").mkdir()
    (tmp_path / "e2e" / "test_a.py").write_text(SUITE)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "e2e",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir=.",
            "--import-mode=importlib",
            "--junit-xml=report.xml",
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    found = outcomes((tmp_path / "report.xml").read_text())
    assert {name.removeprefix("e2e/test_a.py::"): outcome for name, outcome in found.items()} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_named[a.b]": "failed",
        "test_named[c]": "passed",
        "test_skipped": "skipped",
        "test_set_up": "failed",
        "test_torn_down": "failed",
        "test_twice": "failed",
    }
    assert all(name.startswith("e2e/test_a.py::") for name in found)


@cases(
    "names, text",
    (["a::1", "a::2", "b::1"], "nothing"),
    (["a::1", "a::2"], "`b`"),
    (["a::1", "b::1"], "1 of `a`"),
    ([], "`a`, `b`"),
)
def test_tests_that_did_not_run_are_listed(names, text):
    assert left_out({"e2e/a": 2, "e2e/b": 1}, [f"e2e/{name}" for name in names]) == text


def test_a_test_that_passes_in_the_second_run_is_listed():
    first = {
        "e2e/a.py::x": "failed",
        "e2e/a.py::y": "failed",
        "e2e/a.py::z": "passed",
        "e2e/a.py::s": "skipped",
    }
    second = {"e2e/a.py::x": "passed", "e2e/a.py::y": "failed"}
    made = row("v1.36.3", first, second, {"e2e/a.py": 4}, date="2026-01-02", commit="`abc`")
    assert made == ran("v1.36.3", passed=1, again=("x",), failed=("y",), skipped=1)
    assert row("v1.36.3", first, {}, {"e2e/a.py": 4}, date="", commit="").failed == ("x", "y")


def test_rows_are_written_newest_first_and_others_stay():
    first = merged(EMPTY, [ran("v1.34.4"), ran("v1.36.2")], KNOWN)
    second = merged(first, [ran("v1.35.4", passed=1), ran("v1.36.3", failed=("x",))], KNOWN)
    assert list(table_rows(second)) == ["1.36", "1.35", "1.34"]
    assert table_rows(second)["1.34"] == table_rows(first)["1.34"]
    assert "v1.36.2" not in second
    assert "1: `x`" in table_rows(second)["1.36"]
    assert second.startswith("text\n")
    assert second.endswith("<!-- end of table -->\nmore\n")


def test_a_minor_that_is_no_longer_pinned_leaves_the_table():
    first = merged(EMPTY, [ran("v1.34.4"), ran("v1.33.1")], (*KNOWN, "1.33"))
    assert list(table_rows(merged(first, [], KNOWN))) == ["1.34"]


@cases(
    "old, new",
    ("1: `x`", "0"),
    ("| 7 |", "| 8 |"),
    ("2026-01-02", "2026-01-03"),
    ("<!-- end of table -->", "<!-- end -->"),
    ("<!-- table", "<!-- tables"),
    ("| v1.35.4", "| v1.34.4"),
)
def test_a_manually_changed_table_is_an_error(old, new):
    document = merged(EMPTY, [ran("v1.35.4", failed=("x",))], KNOWN)
    assert old in document
    with pytest.raises(TableChanged):
        table_rows(document.replace(old, new, 1))
    with pytest.raises(TableChanged):
        merged(document.replace(old, new, 1), [ran("v1.36.3")], KNOWN)


def test_the_shipped_table_matches_its_digest():
    table_rows(DOCUMENT.read_text())


@pytest.mark.parametrize(("failed", "status"), [((), 0), (("x",), 1)])
def test_a_failed_test_is_in_the_table_and_in_the_exit_status(tmp_path, failed, status):
    document = tmp_path / "table.md"
    document.write_text(EMPTY)
    readme = blank(tmp_path)
    one, other = list(minors().values())[:2]
    found = {one: ran(one.kube_version), other: ran(other.kube_version, failed=failed)}
    assert (
        write_rows(document, readme, list(minors())[:2], lambda minor: found[minors()[minor]])
        == status
    )
    assert list(table_rows(document.read_text()).values()) == [str(row) for row in found.values()]


def test_the_readme_has_the_numbers_of_the_table(tmp_path):
    document = merged(
        EMPTY,
        [ran("v1.36.3", passed=3), ran("v1.35.4", again=("a", "b"), failed=("c",))],
        ["1.36", "1.35"],
    )
    text = summarized(blank(tmp_path).read_text(), document)
    assert text.splitlines()[1:-2] == [
        "| Kubernetes | v1.36.3 | v1.35.4 |",
        "| --- | --- | --- |",
        "| end-to-end tests passed | 3 | 7 |",
        "| passed when run again | 0 | 2 |",
        "| failed | 0 | 1 |",
    ]
    assert summarized(text, document) == text
    with pytest.raises(TableChanged, match="README.md has no"):
        summarized("", document)
    ours = README.read_text()
    assert summarized(ours, DOCUMENT.read_text()) == ours


def blank(folder):
    """Returns a README without numbers."""
    readme = folder / "README.md"
    readme.write_text(
        "<!-- Kubernetes: written by `python -m testing.compatibility` -->\n<!-- end of table -->\nThe end.\n"
    )
    return readme


def test_a_broken_run_keeps_its_row_and_the_next_one_starts(tmp_path, capsys):
    document = tmp_path / "table.md"
    one, other = list(minors().values())[:2]
    document.write_text(merged(EMPTY, [ran(one.kube_version, passed=3)], minors()))
    readme = blank(tmp_path)

    def run_one(minor):
        if minors()[minor] == one:
            raise RunBroken("no tests were collected")
        return ran(other.kube_version)

    assert write_rows(document, readme, list(minors())[:2], run_one) == 1
    assert [line.split()[3] for line in table_rows(document.read_text()).values()] == ["3", "7"]
    assert "no tests were collected" in capsys.readouterr().err


def test_a_changed_table_fails_before_any_test_runs(tmp_path, capsys):
    document = tmp_path / "table.md"
    document.write_text(EMPTY.replace("<!-- end", "| v1.36.3 | 9 |\n<!-- end"))
    readme = blank(tmp_path)
    assert (
        write_rows(document, readme, list(minors())[:1], lambda minor: pytest.fail("it was run"))
        == 1
    )
    assert "changed by hand" in capsys.readouterr().err
    assert "| v1.36.3 | 9 |" in document.read_text()
