"""The files of ``manifests/`` are what the chart renders, and what ``tools.policies`` writes for vendors of others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from hami.codec.documents import parse_own_yaml
from testing.helm_chart import Helm
from testing.yaml_text import read_documents
from tools import policies
from tools.manifests import FOLDER, generated_files
from tools.patches import parse, render_patch

pytestmark = pytest.mark.files
ROOT = FOLDER.parent


def test_the_manifests_are_what_the_chart_renders(tmp_path):
    made = generated_files(Helm(tmp_path))
    outdated = [
        str(path.relative_to(ROOT))
        for path, content in made.items()
        if not path.exists() or path.read_text() != content
    ]
    assert outdated == [], "run python -m tools.generate"
    says = re.compile(r"^ *# .*\b(?:generated|written) by `python -m tools", re.I | re.M)
    found = {path for path in FOLDER.rglob("*.yaml") if says.search(path.read_text())}
    assert found <= made.keys()


def documents(folder: Path, path: Path) -> list[object]:
    return read_documents((folder / path.relative_to(FOLDER)).read_text())


def test_the_policies_of_our_catalog_are_those_of_the_chart(tmp_path):
    """A vendor's own package changes the same files, without Helm."""
    copied = Path(shutil.copytree(FOLDER, tmp_path / "manifests"))
    done = CliRunner().invoke(policies.main, [str(copied / "base")], catch_exceptions=False)
    written = [FOLDER / Path(line).relative_to(copied) for line in done.output.splitlines()]
    assert len(written) == 7
    for path in written:
        assert documents(copied, path) == documents(FOLDER, path), path


BEFORE = """\
spec:
  replicas: 2
  gone: 1
  containers:
  - {name: a, args: [x, y]}
  - name: b
    env: []
  conditions: [{name: one}, {name: two}]
  ports: [1, 2, 3]
"""
AFTER = """\
spec:
  replicas: 3
  containers:
  - {name: a, args: [x, y, z]}
  - name: b
    # why
    env:
    # what for
    - name: C
      value: d
  conditions: [{name: three}]
  ports: [1, 3]
  more: {key/with: slash}
"""


def test_a_patch_makes_one_document_of_another_and_can_be_combined():
    (before,), (after,) = parse(BEFORE), parse(AFTER)
    text = render_patch(before, after)
    assert parse_own_yaml(text) == [
        {"op": "test", "path": "/spec/replicas", "value": 2},
        {"op": "replace", "path": "/spec/replicas", "value": 3},
        {"op": "test", "path": "/spec/containers/0/name", "value": "a"},
        {"op": "add", "path": "/spec/containers/0/args/-", "value": "z"},
        {"op": "test", "path": "/spec/containers/1/name", "value": "b"},
        {
            "op": "add",
            "path": "/spec/containers/1/env/-",
            "value": {"name": "C", "value": "d"},
        },
        {"op": "replace", "path": "/spec/conditions", "value": [{"name": "three"}]},
        {"op": "remove", "path": "/spec/ports/1"},
        {"op": "add", "path": "/spec/more", "value": {"key/with": "slash"}},
        {"op": "remove", "path": "/spec/gone"},
    ]
    assert render_patch(after, after) == ""
