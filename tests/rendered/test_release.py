"""The chart of a release installs without a value: it names the images that are published with it."""

import shutil
from pathlib import Path

import pytest

from hami import __version__
from tools import rehearse, stamp

pytestmark = pytest.mark.files
ROOT = Path(__file__).parents[2]
REGISTRY = "ghcr.io/example"


@pytest.fixture
def stamped_chart(tmp_path):
    """The chart as a release has it."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "charts", checkout / "charts", symlinks=True)
    for folder in ("monitoring", "dashboards", "hami/codec"):  # what the chart links to
        shutil.copytree(ROOT / folder, checkout / folder)
    for name in ("setup.cfg", "mkdocs.yml"):
        shutil.copy(ROOT / name, checkout)
    release = stamp.Release(__version__, "https://github.com/example/hami", REGISTRY)
    stamp.stamp(checkout, release)
    return checkout / "charts" / "hami"


def test_the_chart_of_a_release_names_its_images(helm, stamped_chart):
    rendered = helm.run("template", "hami", stamped_chart, "--namespace=kube-system")
    ours = {name: f"{REGISTRY}/{name}:{__version__}" for name in ("hami", "hami-device-plugin")}
    assert rehearse.missing(rehearse.images(rendered), ours) == []
