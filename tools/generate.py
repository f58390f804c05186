"""Every generated file of the project, and the one command that writes them.

``python -m tools.generate`` writes those that are outdated and prints their names; tests fail while there is one.
``tox run -e generate`` also makes the code of the kubelet's messages, for which it installs the compiler.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from hami.codec.device_config import chart_config
from hami.inspect.vendors import entries, render
from hami.vendors.entry_points import full_catalog
from testing import compatibility
from testing.helm_chart import Helm
from tools import (
    card_figures,
    chart,
    chart_policies,
    configuration_reference,
    documents_reference,
    events_reference,
    manifests,
    metrics_reference,
    policies,
    walk,
)
from tools.marked import marked

__all__ = ["generated_files"]

ROOT = Path(__file__).parents[1]
DEVICE_CONFIG = ROOT / "hami" / "codec" / "device-config.yaml"
DEVICES = ROOT / "docs" / "vendors.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
METRICS = ROOT / "docs" / "metrics.md"
EVENTS = ROOT / "docs" / "events.md"


def generated_files() -> dict[Path, str]:
    """Returns the content of each generated file, without the code of the kubelet's messages, and without what the
    chart makes, for which `tools.manifests` needs Helm."""
    config = chart_config()
    readme, catalog = compatibility.README, full_catalog(config)
    return {
        # a copy: kustomize reads nothing outside of its folder, and the package needs the file, too
        policies.BASE / "device-config.yaml": DEVICE_CONFIG.read_text(),
        **chart_policies.generated_files(catalog, config.nvidia),
        **chart.generated_files(),
        ROOT / "docs" / "configuration.md": configuration_reference.render(),
        ROOT / "docs" / "documents.md": documents_reference.render(),
        DEVICES: render_devices(DEVICES.read_text()),
        ARCHITECTURE: walk.rendered_page(ARCHITECTURE.read_text()),
        card_figures.PAGE: card_figures.render_page(
            card_figures.PAGE.read_text(), card_figures.Results()
        ),
        EVENTS: events_reference.rendered_page(EVENTS.read_text()),
        METRICS: metrics_reference.rendered_page(METRICS.read_text()),
        readme: compatibility.summarized(readme.read_text(), compatibility.DOCUMENT.read_text()),
    }


def render_devices(page: str) -> str:
    """Returns *page* with the table that ``hami vendors`` prints."""
    table = render(entries(chart_config()), "markdown")
    return marked(page, "hami vendors --output=markdown", f"{table}\n")


@click.command(help="Write all generated files that are outdated. Needs Helm, which is built once.")
def main() -> None:
    write(generated_files())
    with tempfile.TemporaryDirectory() as folder:
        write(manifests.generated_files(Helm(Path(folder))))


def write(files: dict[Path, str]) -> None:
    """Writes those of *files* that are outdated, and prints their names."""
    for path, content in files.items():
        if not path.exists() or path.read_text() != content:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
            click.echo(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
