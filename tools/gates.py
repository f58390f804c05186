"""Gates for the shape of the code: what is hard to read now may be listed, and the lists only shrink.

``python -m tools.gates`` measures the package and prints the figures. It fails if something exceeds a limit and is not
in ``tools/gates.json``, if something in that file has become worse, or if the file lists what is within its limit by
now. ``--shrink`` writes the file again with what has become better; it never adds an entry.

Gates:

- complexity: cyclomatic complexity of a function, by lizard, which counts the branches inside expressions as well
- expressions: the share of the branches of a file that stand inside expressions (and, or, ternaries, comprehensions),
  in percent: a debugger cannot stop there, and a reader reads them twice
- comprehensions: those of a file with more than one ``for``
- methods: of a class
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import lizard

__all__ = ["GATES", "Gate", "Shape", "complaints", "measure", "shrunk"]

ROOT = Path(__file__).parents[1]
LISTS = Path(__file__).with_name("gates.json")
GENERATED = "_pb2"


@dataclass(frozen=True, slots=True)
class Gate:
    """A limit. *what*: that which is measured, for people."""

    name: str
    limit: int
    what: str


GATES = (
    Gate("complexity", 10, "cyclomatic complexity of a function"),
    Gate("expressions", 45, "percent of a file's branches that stand inside expressions"),
    Gate("comprehensions", 0, "comprehensions of a file with more than one for"),
    Gate("methods", 15, "methods of a class"),
)
LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
"""Tokens that cost a reader nothing."""
STATEMENTS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)
FEW_BRANCHES = 8
"""A file with fewer has no share: one ternary of two branches would be half of it."""

Values = dict[str, dict[str, int]]
"""By gate: the value of each function, file or class."""


@dataclass(slots=True)
class Shape:
    """Sums over all files, and what the gates look at."""

    values: Values
    tokens: int = 0
    code_lines: int = 0
    statements: int = 0
    expressions: int = 0


def measure(root: Path, folder: str = "hami") -> Shape:
    """Measures all modules below *folder*, without generated ones. Paths are relative to *root*."""
    shape = Shape({gate.name: {} for gate in GATES})
    for path in sorted((root / folder).rglob("*.py")):
        if GENERATED not in path.name:
            measure_file(path.read_text(), str(path.relative_to(root)), shape)
    return shape


def measure_file(source: str, path: str, shape: Shape) -> None:
    """Adds what the module *source* has to *shape*."""
    tree = ast.parse(source)
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in LAYOUT
    ]
    shape.tokens += len(tokens)
    docstrings = set(docstring_lines(tree))
    shape.code_lines += len({token.start[0] for token in tokens} - docstrings)
    statements, expressions = count_branches(tree)
    shape.statements += statements
    shape.expressions += expressions
    if statements + expressions >= FEW_BRANCHES:
        shape.values["expressions"][path] = round(100 * expressions / (statements + expressions))
    doubled = sum(
        isinstance(node, COMPREHENSIONS) and len(node.generators) > 1 for node in ast.walk(tree)
    )
    shape.values["comprehensions"][path] = doubled
    for name, methods in classes(tree):
        shape.values["methods"][f"{path}::{name}"] = methods
    for function in lizard.analyze_file.analyze_source_code(path, source).function_list:
        name = f"{path}::{function.name}"
        known = shape.values["complexity"].get(name, 0)
        shape.values["complexity"][name] = max(known, function.cyclomatic_complexity)


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def docstring_lines(tree: ast.AST) -> Iterator[int]:
    """Yields the lines of docstrings, and of strings below a field."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def count_branches(tree: ast.AST) -> tuple[int, int]:
    """Returns the branches that are statements, and those inside expressions."""
    statements = expressions = 0
    for node in ast.walk(tree):
        if isinstance(node, STATEMENTS):
            statements += 1
        elif isinstance(node, ast.IfExp):
            expressions += 1
        elif isinstance(node, ast.BoolOp):
            expressions += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            expressions += 1 + len(node.ifs)
    return statements, expressions


def classes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields each class with the number of its methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            functions = [member for member in node.body if isinstance(member, ast.FunctionDef)]
            yield node.name, len(functions)


def complaints(values: Values, listed: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Returns why the gates are closed; empty if they are open."""
    found = []
    for gate in GATES:
        allowed = listed.get(gate.name, {})
        for name, value in values[gate.name].items():
            if value > max(gate.limit, allowed.get(name, 0)):
                found.append(
                    f"{name}: {value} {gate.what}, {max(gate.limit, allowed.get(name, 0))} allowed"
                )
        for name, value in allowed.items():
            if values[gate.name].get(name, 0) < value:
                found.append(
                    f"{name}: listed with {value}, now {values[gate.name].get(name, 0)}: run --shrink"
                )
    return found


def shrunk(values: Values, listed: Mapping[str, Mapping[str, int]]) -> Values:
    """Returns *listed* without what is within its limit, and with smaller values where they have become smaller."""
    result: Values = {}
    for gate in GATES:
        entries = {}
        for name, value in listed.get(gate.name, {}).items():
            now = min(value, values[gate.name].get(name, 0))
            if now > gate.limit:
                entries[name] = now
        result[gate.name] = dict(sorted(entries.items()))
    return result


def figures(shape: Shape) -> list[str]:
    """Returns the sums, for people."""
    complexity = shape.values["complexity"].values()
    branches = shape.statements + shape.expressions
    return [
        f"{shape.tokens} tokens, {shape.tokens / shape.code_lines:.1f} a code line",
        f"{100 * shape.expressions / branches:.0f} % of the branches inside expressions",
        f"cyclomatic complexity: {sum(value >= 11 for value in complexity)} functions of 11 or more, "
        f"{sum(value >= 16 for value in complexity)} of 16 or more",
        f"the widest class has {max(shape.values['methods'].values())} methods",
    ]


def main(arguments: list[str]) -> int:
    """Measures the package; returns the status to exit with."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gates",
        description="Measure the shape of the code, and fail if it has become harder to read.",
    )
    parser.add_argument(
        "--shrink", action="store_true", help="write the list again with what has become better"
    )
    flags = parser.parse_args(arguments)
    shape = measure(ROOT)
    listed = json.loads(LISTS.read_text())
    if flags.shrink:
        listed = shrunk(shape.values, listed)
        LISTS.write_text(json.dumps(listed, indent=1) + "\n")
    for line in figures(shape):
        print(line)
    found = complaints(shape.values, listed)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
