"""The sample of mutants: what is changed, which tests run, and who has noticed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from testing.cases import cases
from tools.mutants import Mutant, mutants_of, reaching_tests, sample

pytestmark = pytest.mark.files
ROOT = Path(__file__).parent.parent


@cases("line, changed",
        ("if a < b: pass", [("comparison", "if (a >= b): pass"), ("boundary", "if (a <= b): pass")]),
        ("if a in b: pass", [("comparison", "if (a not in b): pass")]),
        ("if a and b and c: pass", [("and/or", "if (a or b or c): pass")]),
        ("x = not a", [("not", "x = (a)")]),
        ("x = 2", [("constant + 1", "x = (3)"), ("constant - 1", "x = (1)")]),
        ("x = True", []),
        ("x: Literal[2] = y", []),
        ("log.info('%d', 2)", []),
        ("if TYPE_CHECKING: x = 2", []),
        ("x = f'{y:2}'", []),
        ("def f(): g()", [("early return", "def f(): return\n         g()")]),
        ("def f():\n  'Says.'\n  g()", [("early return", "def f():\n  'Says.'\n  return\n  g()")]),
        ("def f(): ...", []),
        ("x = 'ä' if a == b else c", [("comparison", "x = 'ä' if (a != b) else c")]),
    )  # fmt: skip
def test_what_is_changed(line, changed):
    source = line.encode()
    found = {
        (mutant.operator, mutant.applied(source).decode()) for mutant in mutants_of("m.py", source)
    }
    assert found == set(changed)


@pytest.mark.parametrize("package", ["scheduling", "state"])
def test_every_mutant_of_the_packages_is_a_program(package):
    for path in (ROOT / "hami" / package).glob("*.py"):
        source = path.read_bytes()
        for mutant in mutants_of(path.name, source)[::10]:
            ast.parse(mutant.applied(source))


def mutant(line=1, text="(x)"):
    return Mutant(path="m.py", line=line, start=0, end=1, operator="o", text=text)


def test_a_sample_is_spread_evenly_and_the_same_for_a_seed():
    mutants = [mutant(line) for line in range(100)]
    chosen = sample(mutants, 10, seed=1)
    assert [found.line // 10 for found in chosen] == list(range(10))
    assert sample(mutants, 10, seed=1) == chosen
    assert sample(mutants, 10, seed=2) != chosen
    assert sample(mutants, 1000, seed=1) == mutants


REACH = {"m.py": {"1": ["tests/b.py::test_b", "tests/a.py::test_a"], "2": ["tests/c.py::test_c"]}}


@cases(
    "changed, tests",
    ("its line", mutant(1), ["tests/a.py::test_a", "tests/b.py::test_b"]),
    (
        "a line of the import",
        mutant(3),
        ["tests/a.py::test_a", "tests/b.py::test_b", "tests/c.py::test_c"],
    ),
    ("a function that no test calls", mutant(3, "return"), []),
)
def test_the_tests_of_a_mutant(changed, tests):
    assert reaching_tests(changed, REACH) == tests


KILLER = """
import sys
from pathlib import Path
from tools.mutants import killer
print(killer(Path(sys.argv[1]), ["test_x.py"], 60))
"""


@cases(
    "text, said",
    ("def test_a(): pass\ndef test_b(): assert False\n", "test_x.py::test_b"),
    ("def test_a(): pass\n", ""),
    ("import nothing_of_this_name\n", "pytest ends with 2"),
    ("import os\ndef test_a(): os._exit(3)\n", "ended with status 3"),
)
def test_the_first_test_that_fails_is_named(tmp_path, text, said):
    (tmp_path / "test_x.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-c", KILLER, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == said
