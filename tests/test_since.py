"""End-to-end tests of features that an older Kubernetes lacks are left out there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testing.binaries import MINOR_VARIABLE
from testing.cases import cases

ROOT = Path(__file__).parent.parent

SUITE = """
import pytest

def test_any(): pass
@pytest.mark.since(1, 37)
def test_new(): pass
"""


@cases(
    "minor, outcome",
    ("1.36", "1 passed, 1 deselected"),
    ("1.37", "2 passed"),
    ("1.38", "2 passed"),
    ("", "2 passed"),
)
def test_a_test_is_left_out_before_its_version_and_skips_nothing(tmp_path, minor, outcome):
    (tmp_path / "test_a.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = since: first version\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "testing.since",
            "-p",
            "testing.strict",
            "-p",
            "no:cacheprovider",
            "-q",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), MINOR_VARIABLE: minor},
    )
    assert f"{outcome} in" in done.stdout, done.stdout


@pytest.mark.files
def test_tests_that_need_a_later_version_say_so_before_they_begin():
    """The workflow runs the suite on each version, and nothing may be skipped there."""
    texts = [path.read_text() for path in (ROOT / "e2e").glob("test_*.py")]
    with_skip = [text for text in texts if re.search(r'pytest\.skip\(f".*Kubernetes', text)]
    assert len(with_skip) >= 2
    assert all("pytestmark = pytest.mark.since(*FIRST)\n" in text for text in with_skip)
