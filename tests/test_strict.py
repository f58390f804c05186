"""Where nothing may be skipped, a skip is a failure."""

import os
import subprocess
import sys
from pathlib import Path

SUITE = """
import pytest

def test_passes(): pass
@pytest.mark.skipif(True, reason="needs root")
def test_marked(): pass
def test_called(): pytest.skip("needs Docker")
@pytest.fixture
def lacking(): pytest.skip("needs a browser")
def test_fixture(lacking): pass
@pytest.mark.xfail
def test_expected(): assert False
"""


def test_a_skip_is_a_failure_with_its_reason(tmp_path):
    (tmp_path / "test_a.py").write_text(SUITE)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "testing.strict",
            "-p",
            "no:cacheprovider",
            "-q",
            "-rfE",
            "test_a.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    assert done.returncode == 1
    for reason in ("needs root", "needs Docker", "needs a browser"):
        assert f"nothing may be skipped here. Skipped: {reason}" in done.stdout, done.stdout
    assert "1 passed" in done.stdout
    assert "skipped," not in done.stdout
    assert "1 xfailed" in done.stdout
