"""The API server takes what the chart renders; tests/rendered has the rest, which needs no cluster."""

from __future__ import annotations

from pathlib import Path

import yaml

from testing.helm_examples import EXAMPLES, RenderedExamples

CRDS = Path(__file__).with_name("crds.yaml")


def test_the_api_server_takes_the_objects_of_all_examples(local, helm, tmp_path):
    """Equal objects once."""
    rendered = RenderedExamples(helm)
    texts: set[str] = set()
    for name in EXAMPLES:
        texts.update(map(yaml.safe_dump, rendered[name].values()))
    (tmp_path / "all.yaml").write_text("---\n".join(sorted(texts)))
    local.add_types(CRDS)
    taken = local.kubectl(
        "apply",
        "-f",
        str(tmp_path / "all.yaml"),
        "--server-side",
        "--field-manager=e2e",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "--output=name",
    )
    local.kubectl("delete", "-f", str(CRDS))
    assert len(EXAMPLES) >= 20
    assert len(taken.split()) == len(texts)
