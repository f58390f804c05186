"""Writes a new version into each place that has it: ``python -m tools.bump 1.2.3``.

The version is that of ``hami/__init__.py``. Places are found by their form in the files that git tracks, so a new page
with an image needs no entry here; a mention in another form is an error, before anything is written. The changelog gets
a heading, under which what was unreleased then is.
"""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click

__all__ = ["FORMS", "NOT_OURS", "bumped", "current", "main", "mentions", "tracked"]

ROOT = Path(__file__).parents[1]
SOURCE = "hami/__init__.py"
CHANGELOG = "CHANGELOG.md"
UNRELEASED = "## [Unreleased]\n"
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
FORMS = (
    r'__version__ = "{}"',  # of the package
    r"(?:^|(?<=\n))(?:version|appVersion): {}(?=\n)",  # of the chart
    r'RELEASE = "{}"',  # of the tests on kind
    r'image\.version="{}"',  # labels of images
    r"[a-z][a-z-]*:{}(?![\w.])",  # images
    r"hami-{}-py3-none-any",  # wheels
)
"""Where the version stands, with braces in its place."""
NOT_OURS = ("go.sum", "go.mod", "requirements.txt")
"""Names of files whose versions are those of other things."""
EXAMPLES = ("tests/test_docs.py", "tests/test_bump.py")
"""Files with versions that are examples."""


def current(files: Mapping[str, str]) -> str:
    """Returns the version of the package. Raises: ClickException."""
    found = re.search(r'^__version__ = "(.+)"$', files.get(SOURCE, ""), re.MULTILINE)
    if found is None:
        raise click.ClickException(f"{SOURCE}: expected a line with __version__")
    return found[1]


def mentions(text: str, version: str) -> int:
    """Returns how often *version* stands in *text*, and not as a part of another one."""
    return len(re.findall(rf"(?<![\w.]){re.escape(version)}(?![\d]|\.\d)", text))


def bumped(files: Mapping[str, str], version: str, day: datetime.date) -> dict[str, str]:
    """Returns the files that change, with *version*. *files*: text by path. Raises: ClickException."""
    old = current(files)
    if _numbers(version) <= _numbers(old):
        raise click.ClickException(f"{version} is not later than {old}, the version of {SOURCE}")
    result = {}
    for path, text in files.items():
        if path == CHANGELOG or old not in text:
            continue
        new = text
        for form in FORMS:
            place = re.compile(form.replace("{}", re.escape(old)))
            new = place.sub(lambda found: found[0].replace(old, version), new)
        if mentions(new, old):
            raise click.ClickException(
                f"{path}: mentions {old} in a form that tools/bump.py does not know"
            )
        if new != text:
            result[path] = new
    return result | {CHANGELOG: _with_heading(files.get(CHANGELOG, ""), version, day)}


def _with_heading(text: str, version: str, day: datetime.date) -> str:
    """Returns the changelog *text* with a heading for *version*. Raises: ClickException."""
    if UNRELEASED not in text or f"## [{version}]" in text:
        raise click.ClickException(
            f"{CHANGELOG}: expected the heading {UNRELEASED.strip()!r}, and none for {version}"
        )
    return text.replace(UNRELEASED, f"{UNRELEASED}\n## [{version}] - {day.isoformat()}\n", 1)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def tracked(root: Path) -> dict[str, str]:
    """Returns the text files below *root* that git tracks, by path, without those of others.

    Raises: ClickException if git cannot tell, or if a file has changes that are not committed.
    """
    require_committed(root)
    result = {}
    for path in _git(root, "ls-files", "-z").split("\0"):
        file = root / path
        if not path or path in EXAMPLES or file.name in NOT_OURS:
            continue
        if file.is_symlink() or not file.is_file():
            continue
        try:
            result[path] = file.read_text()
        except UnicodeDecodeError:
            continue  # a picture
    return result


def require_committed(root: Path) -> None:
    """Raises: ClickException if a tracked file has changes that are not committed."""
    if _git(root, "status", "--porcelain", "--untracked-files=no"):
        raise click.ClickException("there are changes that are not committed: commit them first")


def _git(root: Path, *words: str) -> str:
    """Returns what git prints. Raises: ClickException."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


@click.command(help="Write VERSION, such as 1.2.3, into each place of the version.")
@click.argument("version")
def main(version: str) -> None:
    if VERSION.fullmatch(version) is None:
        raise click.ClickException(f"expected a version such as 1.2.3: {version!r}")
    changed = bumped(tracked(ROOT), version, datetime.datetime.now(datetime.UTC).date())
    for path, text in changed.items():
        (ROOT / path).write_text(text)
        click.echo(path)


if __name__ == "__main__":
    main()
