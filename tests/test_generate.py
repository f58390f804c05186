"""No generated file is outdated, and the one command writes all of them."""

import re
import subprocess
from pathlib import Path

import pytest

from tools.generate import generated_files

pytestmark = pytest.mark.files
ROOT = Path(__file__).parent.parent
MADE = generated_files()
SOURCES = {
    ROOT / "tools" / "chart.README.md",
    ROOT / "charts" / "hami" / "templates" / "scheduler" / "webhook.yaml",
}
"""They say it of what is made of them."""
BY_A_RUN = {ROOT / "docs" / "compatibility.md"}
"""Written by a run of all tests, so not from other files."""


@pytest.mark.parametrize("path", MADE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_generated_file_is_up_to_date(path):
    assert path.read_text() == MADE[path], "run python -m tools.generate"


def test_every_file_that_says_it_is_generated_is_written():
    says = re.compile(
        r"^ *(?:#|<!--|//) .*\b(?:generated|written) by `python -m", re.IGNORECASE | re.MULTILINE
    )
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.yaml", "*.json"], cwd=ROOT, capture_output=True, text=True
    )
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    found = {path for path in paths if path.is_file() and says.search(path.read_text())}
    # of the chart: tests/rendered/test_generated_manifests.py
    found = {path for path in found if ROOT / "manifests" not in path.parents}
    assert found - MADE.keys() - BY_A_RUN - SOURCES == set()
    assert listed.returncode != 0 or len(found) > 5
