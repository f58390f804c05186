"""Checks what has changed since the main branch: lint, types, and the unit tests that import a changed module.

``python -m tools.quick [--since COMMIT]`` runs in less than two minutes, so it leaves out tests with the mark ``slow``;
``tox run`` runs everything.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import click

from testing import interrupts

__all__ = ["affected"]

ROOT = Path(__file__).parents[1]
MAIN = ("origin/main", "main")


def affected(changed: Collection[str], tests: Mapping[str, str]) -> list[str]:
    """Returns the test files to run, sorted.

    *changed*: paths in the repository. *tests*: the text of each test file by its path. A test is affected if it has
    changed, imports a changed module, or, after a change of another file than a module, has the mark ``files``.
    """
    modules = {name for path in changed if path.endswith(".py") for name in names_of(path)}
    others = any(not path.endswith(".py") for path in changed)
    return sorted(
        path
        for path, text in tests.items()
        if path in changed
        or modules & set(imported(path, text))
        or (others and "pytest.mark.files" in text)
    )


def names_of(path: str) -> Iterator[str]:
    """Yields the name of a module by its path, and for ``__init__`` that of its package."""
    name = path.removesuffix(".py").replace("/", ".")
    yield name.removesuffix(".__init__")


def imported(path: str, text: str) -> Iterator[str]:
    """Yields the modules and names that a file imports. Raises: ClickException if it is no Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise click.ClickException(f"{path}:{error.lineno}: {error.msg}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def with_importers(changed: Collection[str], modules: Mapping[str, str]) -> set[str]:
    """Returns *changed* and the modules of the same package that import one of them, one step away."""
    names = {name for path in changed if path.endswith(".py") for name in names_of(path)}
    near = {
        path
        for path, text in modules.items()
        if names & set(imported(path, text))
        and str(Path(path).parent) in {str(Path(other).parent) for other in changed}
    }
    return set(changed) | near


def changed_since(commit: str) -> list[str]:
    """Returns the paths of existing files that differ from *commit*, also those that git does not have yet.

    Raises: ClickException if git refuses, such as an unknown commit."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise click.ClickException(f"git {' '.join(words)}: {' '.join(done.stderr.split())}")
        return done.stdout.splitlines()

    paths = {
        *git("diff", "--name-only", commit, "--"),
        *git("ls-files", "--others", "--exclude-standard"),
    }
    return sorted(path for path in paths if (ROOT / path).is_file())


def base() -> str:
    """Returns the commit at which the branch has left main. Raises: ClickException."""
    for name in MAIN:
        done = subprocess.run(
            ["git", "merge-base", "HEAD", name], cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode == 0:
            return done.stdout.strip()
    raise click.ClickException(
        "there is no branch main to compare with: name a commit with --since"
    )


def texts(pattern: str) -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.glob(pattern))}


@click.command(help="Check what has changed: lint, types, unit tests.")
@click.option(
    "--since", metavar="COMMIT", help="Compare with this; default: where the branch has left main."
)
def main(since: str | None) -> None:
    changed = changed_since(since or base())
    code = [path for path in changed if path.endswith(".py")]
    tests = {
        path: text
        for path, text in (texts("tests/**/test_*.py") | texts("benchmarks/test_*.py")).items()
        if not path.startswith("tests/libvgpu/")
    }
    chosen = affected(with_importers(changed, texts("hami/**/*.py")), tests)
    python, programs = [sys.executable, "-m"], Path(sys.executable).parent
    checks = []
    if code:
        checks.append([*python, "ruff", "check", *code])
        checks.append([*python, "ruff", "format", "--check", *code])
    if any(path.startswith("hami/") for path in code):
        checks.append([str(programs / "lint-imports"), "--no-logo"])
        checks.append([*python, "mypy"])
        checks.append([*python, "tools.gates"])
    if any(path.startswith(".github/") for path in changed):
        checks.append(
            [str(programs / "zizmor"), "--offline", "--strict-collection", "--quiet", ".github"]
        )
    if chosen:
        checks.append([*python, "pytest", "-n", "2", "-q", "-m", "not slow", *chosen])
    click.echo(f"{len(changed)} changed files, {len(chosen)} files of tests")
    if any([subprocess.run(check, cwd=ROOT).returncode for check in checks]):
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    sys.exit(interrupts.run_whole(main))
