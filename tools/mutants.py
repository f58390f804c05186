"""A sample of mutants: do the tests of scheduling and state notice if a line says something else?

``python -m tools.mutants`` changes one place of ``hami/scheduling`` or ``hami/state`` at a time, in a copy of the
working tree, and runs the unit tests of both packages that reach its line. A mutant has survived if no test fails:
either a behavior has no test, or the place does not matter. The sample is the same for the same code and seed, and
spread evenly over both packages, so that a change of the tests can be judged: the same mutants are to be killed.

A run takes minutes. ``--results FILE`` keeps what is known, and ``--minutes N`` ends early: a further run goes on.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import pytest

__all__ = ["Mutant", "mutants_of", "sample", "reaching_tests"]

ROOT = Path(__file__).parents[1]
PACKAGES = ("scheduling", "state")
HUNG_S = 600
"""Seconds for one test without a mutant, on a machine however busy."""
HUNG = 10
"""A test hangs if it takes so many times as long as without the mutant, and a minute more."""
NEGATED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
BOUNDARIES: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
SWAPPED: Mapping[type[ast.boolop], type[ast.boolop]] = {ast.And: ast.Or, ast.Or: ast.And}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Mutant:
    """A place of a file with another text. *start*, *end*: bytes of the file."""

    path: str
    line: int
    start: int
    end: int
    operator: str
    text: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.operator}: {' '.join(self.text.split())}"


# -- what could be changed


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Returns all mutants of a module, in the order of its text."""
    tree = ast.parse(source)
    starts = line_starts(source)
    found = []
    for node in code_of(tree):
        for operator, replacement in changes(node):
            place = node.body[0] if isinstance(node, ast.FunctionDef) else node
            text = ast.unparse(replacement)
            start = starts[place.lineno - 1] + place.col_offset
            if isinstance(node, ast.FunctionDef):
                start, end = after_docstring(node, starts)
                text += "\n" + " " * place.col_offset
            else:
                end = starts[place.end_lineno - 1] + place.end_col_offset
                text = f"({text})"
            line = source.count(b"\n", 0, start) + 1
            found.append(
                Mutant(path=path, line=line, start=start, end=end, operator=operator, text=text)
            )
    return sorted(found)


def line_starts(source: bytes) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def after_docstring(function: ast.FunctionDef, starts: list[int]) -> tuple[int, int]:
    """Returns the place of an empty text before the first statement of *function*."""
    first = function.body[1] if ast.get_docstring(function) is not None else function.body[0]
    start = starts[first.lineno - 1] + first.col_offset
    return start, start


def code_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that do something: no annotations, and nothing that is for type checkers or for logs."""
    if is_text(node):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from code_of(child)


def is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return isinstance(node.func.value, ast.Name) and node.func.value.id == "log"
    return isinstance(node, ast.JoinedStr)


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yields what could stand in place of *node*, by the name of the operator."""
    if isinstance(node, ast.Compare):
        yield from changed_comparisons(node)
    elif isinstance(node, ast.BoolOp):
        swapped = copy.copy(node)
        swapped.op = SWAPPED[type(node.op)]()
        yield "and/or", swapped
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "constant + 1", ast.Constant(node.value + 1)
        yield "constant - 1", ast.Constant(node.value - 1)
    elif isinstance(node, ast.FunctionDef) and does_something(node):
        yield "early return", ast.Return(None)


def changed_comparisons(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    for operator, table in (("comparison", NEGATED), ("boundary", BOUNDARIES)):
        for index, comparison in enumerate(node.ops):
            if type(comparison) in table:
                changed = copy.copy(node)
                changed.ops = [*node.ops]
                changed.ops[index] = table[type(comparison)]()
                yield operator, changed


def does_something(function: ast.FunctionDef) -> bool:
    """Reports whether a function has more than a docstring and ``...``."""
    last = function.body[-1]
    return not (isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant))


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Returns *count* of the mutants: one of each of so many parts of equal length."""
    generator = random.Random(seed)
    count = min(count, len(mutants))
    chosen = []
    for number in range(count):
        first = len(mutants) * number // count
        last = len(mutants) * (number + 1) // count
        chosen.append(mutants[generator.randrange(first, last)])
    return chosen


def all_mutants(root: Path) -> list[Mutant]:
    found = []
    for package in PACKAGES:
        for path in sorted((root / "hami" / package).glob("*.py")):
            found += mutants_of(str(path.relative_to(root)), path.read_bytes())
    return found


# -- which tests reach it


Reach = dict[str, dict[str, list[str]]]
"""By file and line, as text: the tests that run it, as pytest names them, without parameters."""


def unit_test_folders() -> list[str]:
    return [f"tests/{package}" for package in PACKAGES]


def reach_of(root: Path) -> tuple[Reach, dict[str, float]]:
    """Runs all tests in *root*; returns which lines they reach, and how many seconds each takes at most.

    Raises: ClickException if one fails.
    """
    (root / "contexts.py").write_text(CONTEXTS)
    settings = root / "mutants.coveragerc"
    settings.write_text("[run]\nsource = hami\ndata_file = mutants.coverage\n")
    command = [sys.executable, "-m", "coverage", "run", "--rcfile", settings, "-m", "pytest", "-q"]
    done = subprocess.run(
        [*command, f"--timeout={HUNG_S}", "-p", "contexts", *unit_test_folders()],
        cwd=root,
        env=environment(root),
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise click.ClickException(f"the tests fail without any change:\n{done.stdout}")
    return read_reach(root), json.loads((root / "seconds.json").read_text())


CONTEXTS = """
import json

import coverage

SECONDS = {}

def pytest_runtest_setup(item):
    coverage.Coverage.current().switch_context(item.nodeid.partition("[")[0])

def pytest_runtest_logreport(report):
    test = report.nodeid.partition("[")[0]
    SECONDS[test] = max(SECONDS.get(test, 0), report.duration)

def pytest_sessionfinish():
    with open("seconds.json", "w") as file:
        json.dump(SECONDS, file)
"""
"""A plugin of pytest: coverage alone does not know the tests of hypothesis."""


def read_reach(root: Path) -> Reach:
    from coverage.numbits import numbits_to_nums  # only here: other tools do without this package

    rows = sqlite3.connect(root / "mutants.coverage").execute(
        "select path, context, numbits from line_bits join file on file.id = file_id "
        "join context on context.id = context_id where context != ''"
    )
    reach: Reach = {}
    for path, test, numbits in rows:
        lines = reach.setdefault(str(Path(path).relative_to(root)), {})
        for line in numbits_to_nums(numbits):
            lines.setdefault(str(line), []).append(test)
    return reach


def reaching_tests(mutant: Mutant, reach: Reach) -> list[str]:
    """Returns the tests that reach the line; those that reach its file, if the line runs only at the import."""
    lines = reach.get(mutant.path, {})
    tests = lines.get(str(mutant.line))
    if tests is None and not mutant.text.startswith("return"):
        return sorted({test for names in lines.values() for test in names})
    return sorted(set(tests or ()))


# -- whether they notice


@dataclass(slots=True)
class Results:
    """What is known about the mutants of one state of the code."""

    digest: str
    reach: Reach = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """By test: how long it takes at most."""
    killed_by: dict[str, str] = field(default_factory=dict)
    """By mutant: the first test that failed; empty if it survived."""

    @classmethod
    def read(cls, file: Path | None, digest: str) -> Results:
        """Raises: ClickException if the file is about other code."""
        if file is None or not file.exists():
            return cls(digest)
        results = cls(**json.loads(file.read_text()))
        if results.digest != digest:
            raise click.ClickException(f"{file}: these are results of other code")
        return results

    def write(self, file: Path | None) -> None:
        if file is not None:
            file.write_text(json.dumps(asdict(self), indent=1) + "\n")


class FirstFailure:
    """A plugin of pytest: remembers which test has failed."""

    def __init__(self) -> None:
        self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


def killer(root: Path, tests: list[str], hung_s: float) -> str:
    """Returns the first of *tests* that fails in *root*, or how the run ended; empty if all pass.

    A test that takes *hung_s* seconds has failed.

    A fork has imported pytest already, but nothing of the package.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        run_tests(root, tests, hung_s, writer)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"ended with status {os.waitstatus_to_exitcode(status)}"


def run_tests(root: Path, tests: list[str], hung_s: float, writer: int) -> None:
    """Runs *tests* in this process, writes which one has failed, and ends the process."""
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silent, stream)
    os.chdir(root)
    sys.path[0] = str(root)
    sys.dont_write_bytecode = True
    first = FirstFailure()
    status = pytest.main(
        ["-x", "-q", "-p", "no:xdist", f"--timeout={hung_s}", "--timeout-method=signal", *tests],
        plugins=[first],
    )
    said = "" if status == 0 else first.test or f"pytest ends with {int(status)}"
    os.write(writer, said.encode())
    os._exit(0)


def copied(root: Path, folder: Path) -> Path:
    """Copies what the tests need to *folder*."""
    for name in ("hami", "tests", "testing"):
        if (root / name).is_dir():
            shutil.copytree(
                root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
    shutil.copy(root / "setup.cfg", folder)
    return folder


def digest_of(root: Path) -> str:
    total = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / "hami" / package).glob("*.py")):
            total.update(path.read_bytes())
    return total.hexdigest()


def judge(root: Path, mutant: Mutant, results: Results) -> str:
    """Returns the first test that fails for *mutant*; empty if it survives."""
    tests = reaching_tests(mutant, results.reach)
    if not tests:
        return ""
    hung_s = 60 + HUNG * max(results.seconds[test] for test in tests)
    file = root / mutant.path
    source = file.read_bytes()
    file.write_bytes(mutant.applied(source))
    try:
        return killer(root, tests, hung_s)
    finally:
        file.write_bytes(source)


def report(results: Results, chosen: Iterable[Mutant]) -> Iterator[str]:
    counts = Counter[str]()
    for mutant in chosen:
        if str(mutant) not in results.killed_by:
            counts["not tried"] += 1
            continue
        test = results.killed_by[str(mutant)]
        counts["killed" if test else "survived"] += 1
        yield f"killed {mutant} by {test}" if test else f"survived {mutant}"
    yield ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


@click.command(
    help="Change single places of scheduling and state, and see which changes the unit tests notice."
)
@click.option("--count", default=100, show_default=True, metavar="N", help="Mutants.")
@click.option("--seed", default=1, show_default=True, metavar="N", help="Chooses other mutants.")
@click.option("--minutes", type=float, metavar="N", help="Begin no further mutant then.")
@click.option(
    "--results",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep results here, and go on with those of an earlier run.",
)
def main(count: int, seed: int, minutes: float | None, file: Path | None) -> None:
    end = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    results = Results.read(file, digest_of(ROOT))
    chosen = sample(all_mutants(ROOT), count, seed)
    with tempfile.TemporaryDirectory(prefix="hami-mutants-") as folder:
        root = copied(ROOT, Path(folder).resolve())
        if not results.reach:
            results.reach, results.seconds = reach_of(root)
            results.write(file)
        for mutant in chosen:
            if str(mutant) in results.killed_by or time.monotonic() > end:
                continue
            results.killed_by[str(mutant)] = judge(root, mutant, results)
            results.write(file)
            click.echo(f"{mutant}: {results.killed_by[str(mutant)] or 'survived'}", err=True)
    for line in report(results, chosen):
        click.echo(line)


if __name__ == "__main__":
    main()
