"""What a release knows and the sources do not: the repository and the registry from which it is published.

``python -m tools.stamp --repository OWNER/NAME --registry HOST/FOLDER`` writes them into a checkout, which the release
is then built from: the chart names its images, its sources and the runbooks of its alerts, and the package and the site
name the repository. ``--image NAME=DIGEST`` also lists an image in the chart's metadata. No address is kept in the
sources, since whoever hosts a copy publishes it from an address of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from tools.krew import REPOSITORY

__all__ = ["FILES", "Release", "main", "stamp"]

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
REGISTRY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*")
SITE = re.compile(r"(https://[\w.-]+(/[\w.-]+)*/?)?")
DIGEST = re.compile(r"[a-z-]+=sha256:[0-9a-f]{64}")
UNTIL_PUBLISHED = """\
 There is no public one:
  # build them with the Containerfile. Without a registry, here or in `global.imageRegistry`, the installation stops.
"""
"""What the chart's values say of the registry while nothing is published."""
IN_A_CHECKOUT = (
    "charts/hami -n kube-system --reuse-values --set image.registry=registry.example.com"
)


@dataclass(frozen=True, slots=True)
class Release:
    """Where *version* is published. *repository*: its address. *registry*: no scheme. *images*: digests by name.

    *site*: where the sites of all versions are; empty if that is not known.
    """

    version: str
    repository: str
    registry: str
    images: Mapping[str, str] = field(default_factory=dict)
    site: str = ""

    @property
    def sources(self) -> str:
        """Address of the sources of this version."""
        return f"{self.repository}/blob/v{self.version}"

    @property
    def chart(self) -> str:
        """What Helm is given to install the chart."""
        return f"oci://{self.registry}/charts/hami --version {self.version}"


def in_values(text: str, release: Release) -> str:
    """Returns the chart's values with the registry and the runbooks."""
    text = _replaced(text, UNTIL_PUBLISHED, "\n")
    text = _replaced(text, '  registry: ""\n', f'  registry: "{release.registry}"\n')
    url = f"{release.sources}/docs/alerts.md"
    return _replaced(text, 'runbookUrl: ""\n', f'runbookUrl: "{url}"\n')


def in_chart(text: str, release: Release) -> str:
    """Returns the chart's metadata with its sources and its images, as Artifact Hub reads them."""
    text += f"home: {release.repository}\nsources: [{release.repository}]\n"
    if not release.images:
        return text
    lines = ["  artifacthub.io/images: |"]
    for name, digest in release.images.items():
        reference = f"{release.registry}/{name}:{release.version}@{digest}"
        lines += [f"    - name: {name}", f"      image: {reference}"]
    return _replaced(text, "annotations:\n", "annotations:\n" + "\n".join(lines) + "\n")


def in_notes(text: str, release: Release) -> str:
    """Returns the chart's notes with where a release has `kubectl hami`."""
    there = f"is on {release.repository}/releases/tag/v{release.version}."
    return _replaced(text, "comes from the checkout that has this chart: pip install .", there)


def in_images(text: str, release: Release) -> str:
    """Returns the templates of images: without a registry, the message does not deny that there is a public one."""
    return _replaced(
        text, "has no registry, and there is no public one: set", "has no registry: set"
    )


def in_chart_readme(text: str, release: Release) -> str:
    """Returns the chart's page with commands that take the published chart."""
    text = _replaced(text, IN_A_CHECKOUT, f"{release.chart} -n kube-system --reuse-values")
    text = _replaced(text, '`image.registry` | `""`', f"`image.registry` | `{release.registry}`")
    text = _replaced(text, UNTIL_PUBLISHED.replace("\n  #", "").rstrip("\n"), "")
    url = f"{release.sources}/docs/alerts.md"
    text = _replaced(text, '`prometheus.runbookUrl` | `""`', f"`prometheus.runbookUrl` | `{url}`")
    text = re.sub(
        r"charts/hami -n kube-system( --set image\.registry=registry\.example\.com)?",
        f"{release.chart} -n kube-system",
        text,
    )
    return text.replace("](../../", f"]({release.sources}/")


def in_package(text: str, release: Release) -> str:
    """Returns the package's metadata with the project's addresses."""
    urls = {
        "Source": release.repository,
        "Changelog": f"{release.sources}/CHANGELOG.md",
        "Issues": f"{release.repository}/issues",
    }
    lines = "".join(f"    {name} = {url}\n" for name, url in urls.items())
    before = "license = Apache-2.0\n"
    return _replaced(text, before, f"url = {release.repository}\nproject_urls =\n{lines}{before}")


def in_site(text: str, release: Release) -> str:
    """Returns the site's configuration with the repository, a menu of versions, and links that edit pages."""
    added = f"repo_url: {release.repository}\nedit_uri: edit/main/\n"
    added += "extra: {version: {provider: mike}}\n"  # whose file tools/site_versions.py writes
    if release.site:
        added += f"site_url: {release.site.rstrip('/')}/{release.version}/\n"
    text = _replaced(text, "theme:\n", f"{added}theme:\n")
    return _replaced(text, "  features: [", "  features: [content.action.edit, ")


FILES: dict[str, Callable[[str, Release], str]] = {
    "charts/hami/values.yaml": in_values,
    "charts/hami/Chart.yaml": in_chart,
    "charts/hami/README.md": in_chart_readme,
    "charts/hami/templates/NOTES.txt": in_notes,
    "charts/hami/templates/_images.tpl": in_images,
    "setup.cfg": in_package,
    "mkdocs.yml": in_site,
}
"""What is written into each file."""


def _replaced(text: str, old: str, new: str) -> str:
    """Returns *text* with the first *old* replaced. Raises: ValueError if there is none, as in a stamped file."""
    if old not in text:
        raise ValueError(f"expected, but not there: {old.strip()!r}")
    return text.replace(old, new, 1)


def stamp(root: Path, release: Release) -> None:
    """Writes *release* into the files below *root*, all or none. Raises: ClickException; OSError."""
    written = {}
    for name, change in FILES.items():
        try:
            written[root / name] = change((root / name).read_text(), release)
        except ValueError as error:
            raise click.ClickException(f"{name}: {error}") from error
    for path, text in written.items():
        path.write_text(text)


def _matching(pattern: re.Pattern[str], shape: str) -> Callable[..., str | tuple[str, ...]]:
    """Returns a callback of an option that refuses values of another *shape*."""

    def check(
        context: click.Context, option: click.Parameter, value: str | tuple[str, ...]
    ) -> str | tuple[str, ...]:
        for text in [value] if isinstance(value, str) else value:
            if pattern.fullmatch(text) is None:
                raise click.BadParameter(f"expected {shape}: {text!r}")
        return value

    return check


@click.command(help="Write where this release is published into the files of this checkout.")
@click.option("--repository", required=True, callback=_matching(REPOSITORY, "OWNER/NAME"))
@click.option("--server", default="https://github.com", show_default=True, help="Its host.")
@click.option("--registry", required=True, callback=_matching(REGISTRY, "HOST/FOLDER, lower case"))
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="NAME=DIGEST",
    callback=_matching(DIGEST, "NAME=sha256:…"),
    help="An image, by the digest under which it is published; may be repeated.",
)
@click.option("--site", default="", callback=_matching(SITE, "https://…"), help="Of the docs.")
def main(repository: str, server: str, registry: str, images: tuple[str, ...], site: str) -> None:
    version = VERSION.findall((ROOT / "hami" / "__init__.py").read_text())[0]
    digests = dict(image.split("=", 1) for image in images)
    stamp(ROOT, Release(version, f"{server}/{repository}", registry, digests, site))


if __name__ == "__main__":
    main()
