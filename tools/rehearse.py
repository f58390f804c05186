"""Publishes a release to a registry on this machine: ``python -m tools.rehearse INDICES CHART``.

INDICES is what ``tools.image_index`` has made, CHART what Helm has packed after ``tools.stamp`` had written the
registry ``localhost:5000`` into it. Images and chart are pushed with the commands of the workflow release, and the
chart is fetched again: it has to name each image as it was pushed, with the digest that was built.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from tenacity import RetryError, retry, retry_if_result, stop_after_delay, wait_fixed

__all__ = ["REGISTRY", "images", "main", "missing"]

REGISTRY = "localhost:5000"
START_SECONDS = 60
COMMAND_SECONDS = 600
IMAGE = re.compile(r"^\s*(?:- )?image: \"?([^\s\"]+)", re.MULTILINE)


def images(rendered: str) -> list[str]:
    """Returns the images that the objects in *rendered* name, each once."""
    return list(dict.fromkeys(IMAGE.findall(rendered)))


def missing(named: list[str], published: Mapping[str, str]) -> list[str]:
    """Returns which images of ours are not *named*, and which are named otherwise. *published*: reference by name."""
    problems = []
    for name, reference in published.items():
        if reference not in named:
            problems.append(f"{name}: the chart does not name {reference}")
    for reference in named:
        if "/" not in reference:
            problems.append(f"{reference}: an image without a registry")
    return problems


def run(*words: str | Path) -> str:
    """Runs a program; returns what it prints. Raises: ClickException."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise click.ClickException(str(error)) from None
    if done.returncode != 0:
        command = " ".join(map(str, words))
        raise click.ClickException(f"{command} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def registry(crane: str) -> Iterator[None]:
    """Serves a registry until the block ends."""
    with subprocess.Popen(
        [crane, "registry", "serve", "--address", REGISTRY], stderr=subprocess.DEVNULL
    ) as server:
        try:
            _wait_for(server, crane)
            yield
        finally:
            server.terminate()


def _wait_for(server: subprocess.Popen[bytes], crane: str) -> None:
    """Returns when the registry answers. Raises: ClickException."""

    @retry(
        retry=retry_if_result(lambda status: status != 0),
        stop=stop_after_delay(START_SECONDS),
        wait=wait_fixed(0.2),
    )
    def answers() -> int:
        if server.poll() is not None:
            raise click.ClickException(f"{crane} registry serve ended with {server.returncode}")
        return subprocess.run(
            [crane, "catalog", REGISTRY], capture_output=True, check=False, timeout=START_SECONDS
        ).returncode

    try:
        answers()
    except RetryError:
        raise click.ClickException(
            f"{REGISTRY} does not answer after {START_SECONDS} seconds"
        ) from None


def published_images(indices: Path, crane: str, version: str) -> dict[str, str]:
    """Pushes the images in *indices*; returns the reference of each by its name. Raises: ClickException."""
    result = {}
    for digest in sorted(indices.glob("*.digest")):
        name = digest.stem
        reference = f"{REGISTRY}/{name}:{version}"
        run(crane, "push", indices / name, reference)
        pushed = run(crane, "digest", reference)
        if pushed != digest.read_text().strip():
            raise click.ClickException(f"{reference}: pushed as {pushed}, built as another one")
        result[name] = reference
    return result


def rendered_chart(chart: Path, helm: str, version: str) -> str:
    """Pushes *chart*, fetches it again, and returns what it renders without a value. Raises: ClickException."""
    run(helm, "push", chart, f"oci://{REGISTRY}/charts", "--plain-http")
    with tempfile.TemporaryDirectory() as folder:
        source = f"oci://{REGISTRY}/charts/hami"
        run(helm, "pull", source, "--version", version, "--plain-http", "--destination", folder)
        (fetched,) = Path(folder).iterdir()
        return run(helm, "template", "hami", fetched, "--namespace", "kube-system")


@click.command(
    help="Publish INDICES and CHART to a registry on this machine, and fetch them again."
)
@click.argument("indices", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("chart", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--crane", default="crane", show_default=True, help="The program for registries.")
@click.option("--helm", default="helm", show_default=True, help="Helm.")
def main(indices: Path, chart: Path, crane: str, helm: str) -> None:
    version = chart.stem.rpartition("hami-")[2]
    with registry(crane):
        published = published_images(indices, crane, version)
        named = images(rendered_chart(chart, helm, version))
        problems = missing(named, published)
        if problems or not published:
            raise click.ClickException("; ".join(problems) or f"{indices}: no image")
    for reference in named:
        click.echo(reference)


if __name__ == "__main__":
    main()
