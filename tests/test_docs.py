"""What the documents name exists: tests, files, and each other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
TESTS = "".join(path.read_text() for folder in ("tests", "e2e") for path in sorted((ROOT / folder).rglob("test_*.py")))


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_what_is_named_exists(path):
    text = path.read_text()
    files = re.findall(r"`((?:tests|e2e|hami|monitoring|dashboards|manifests)/[\w./-]+)`", text)
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in TESTS] == []
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
