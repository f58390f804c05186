"""End-to-end tests of features that an older Kubernetes lacks are left out there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.binaries import MINOR_VARIABLE, minors

SUITE = """
import pytest

def test_any(): pass
@pytest.mark.since(1, 37)
def test_new(): pass
"""


@pytest.mark.parametrize("minor, outcome", [
    ("1.36", "1 passed, 1 deselected"), ("1.37", "2 passed"), ("1.38", "2 passed"), ("", "2 passed")])
def test_a_test_is_left_out_before_its_version_and_skips_nothing(tmp_path, minor, outcome):
    (tmp_path / "test_a.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = since: first version\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "e2e.since", "-p", "e2e.strict", "-p", "no:cacheprovider", "-q"],
        cwd=tmp_path, capture_output=True, text=True, env=os.environ | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parent.parent),
            MINOR_VARIABLE: minor})
    assert f"{outcome} in" in done.stdout, done.stdout


@pytest.mark.files
def test_the_tests_of_later_versions_are_left_out_on_the_older_ones():
    """The workflow runs the suite on each version, and nothing may be skipped there."""
    files = {"e2e/test_gangs.py": "1.37", "e2e/test_device_classes.py": "1.36"}
    for minor in minors():
        done = subprocess.run([sys.executable, "-m", "pytest", *files, "--collect-only", "-qq"], capture_output=True,
                              text=True, cwd=Path(__file__).parent.parent, env=os.environ | {MINOR_VARIABLE: minor})
        assert [file for file in files if file in done.stdout] == [file for file in files if files[file] <= minor]
