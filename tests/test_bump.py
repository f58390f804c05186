"""A new version reaches each place of the old one, or none."""

import datetime
import re
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hami import __version__
from testing.cases import cases
from tools import bump

pytestmark = pytest.mark.files
ROOT = Path(__file__).parent.parent
DAY = datetime.date(2027, 1, 31)
NEW = "99.10.0"
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- x\n"
FILES = {"hami/__init__.py": '__version__ = "0.1.0"\n', "CHANGELOG.md": CHANGELOG}


@pytest.fixture(scope="module")
def project():
    """The texts of this checkout, also with changes that are not committed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bump, "require_committed", lambda root: None)
        return bump.tracked(ROOT)


@cases(
    "path, line",
    ("hami/__init__.py", '__version__ = "{}"'),
    ("charts/hami/Chart.yaml", "version: {}"),
    ("charts/hami/Chart.yaml", "appVersion: {}"),
    ("Containerfile", '      org.opencontainers.image.version="{}" \\'),
    ("Containerfile", "#   docker build -f Containerfile -t hami:{} ."),
    ("manifests/base/deployment.yaml", "        image: hami:{}"),
    ("manifests/base/monitor.yaml", "        image: hami-device-plugin:{}"),
    ("docs/quickstart.md", "docker build -f Containerfile -t hami:{} ."),
    (
        "docs/add-a-vendor.md",
        'dependencies = ["hami @ file:///wheels/hami-{}-py3-none-any.whl"]',
    ),
    ("testing/kind.py", 'RELEASE = "{}"'),
)
def test_each_form_of_the_version_is_written(project, path, line):
    assert line.format(__version__) in project[path].splitlines()
    changed = bump.bumped(project, NEW, DAY)[path]
    assert line.format(NEW) in changed.splitlines()
    assert line.format(__version__) not in changed.splitlines()


def test_no_place_in_this_project_is_forgotten(project):
    """A new form of the version needs a row in FORMS."""
    changed = bump.bumped(project, NEW, DAY)
    left = [path for path, text in changed.items() if bump.mentions(text, __version__)]
    assert left == []
    assert len(changed) > 15


def test_the_changelog_gets_a_heading_above_what_was_unreleased(project):
    text = bump.bumped(project, NEW, DAY)["CHANGELOG.md"]
    assert re.search(rf"^## \[Unreleased\]\n\n## \[{NEW}\] - 2027-01-31\n\n###", text, re.M)


@cases("version", ("0.1.0",), ("0.0.9",), ("0.0.10",))
def test_a_version_that_is_not_later_is_refused(version):
    with pytest.raises(click.ClickException, match=f"{version} is not later than 0.1.0"):
        bump.bumped(FILES, version, DAY)


def test_versions_are_compared_as_numbers():
    assert bump.bumped(FILES, "0.10.0", DAY)["hami/__init__.py"] == '__version__ = "0.10.0"\n'


@cases(
    "version", ("1.2",), ("v1.2.3",), ("1.2.3-rc1",), ("1.2.03",), ("1.2.3\n",), ("1.2.3;x",), ("",)
)
def test_what_is_no_version_is_refused(version):
    done = CliRunner().invoke(bump.main, [version])
    assert done.exit_code == 1
    assert f"expected a version such as 1.2.3: {version!r}" in done.output


@cases(
    "path, text, said",
    ("unknown form", "page.md", "since 0.1.0\n", "page.md: mentions 0.1.0 in a form"),
    ("two headings", "CHANGELOG.md", f"{CHANGELOG}## [0.2.0]\n", "none for 0.2.0"),
    ("no heading", "CHANGELOG.md", "# Changelog\n", "expected the heading"),
    ("no version", "hami/__init__.py", "", "expected a line with __version__"),
)
def test_what_cannot_be_written_is_named(path, text, said):
    with pytest.raises(click.ClickException, match=said):
        bump.bumped(FILES | {path: text}, "0.2.0", DAY)


@cases(
    "text",
    ("of an address", "10.1.0.1 10.0.1.0 0.1.0.5\n"),
    ("of something longer", "0.1.01 v20.1.0 0.1.0.1\n"),
)
def test_other_numbers_stay(text):
    assert "page.md" not in bump.bumped(FILES | {"page.md": text}, "0.2.0", DAY)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a version."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    for words in ("init -q", "add -A", "-c user.name=x -c user.email=x commit -q -m x"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    monkeypatch.setattr(bump, "ROOT", tmp_path)
    return tmp_path


def test_the_command_writes_the_files_and_names_them(repository):
    done = CliRunner().invoke(bump.main, ["0.2.0"])
    assert done.output.split() == ["hami/__init__.py", "CHANGELOG.md"]
    assert (repository / "hami/__init__.py").read_text() == '__version__ = "0.2.0"\n'
    assert "## [0.2.0] - " in (repository / "CHANGELOG.md").read_text()


def test_changes_that_are_not_committed_are_not_mixed_with_it(repository):
    (repository / "hami/__init__.py").write_text('__version__ = "0.1.0"  # mine\n')
    done = CliRunner().invoke(bump.main, ["0.2.0"])
    assert done.exit_code == 1
    assert "changes that are not committed" in done.output
    assert "# mine" in (repository / "hami/__init__.py").read_text()
