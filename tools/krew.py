"""The manifest with which krew installs ``kubectl hami`` from a release.

``python -m tools.krew --repository OWNER/NAME ARCHIVE…`` prints it. An archive is called
``kubectl-hami-OS-ARCHITECTURE.tar.gz``; it contains the program and the license, and is a file of the release.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from hami import __version__

__all__ = ["FILES", "main", "manifest"]

FILES = ("kubectl-hami", "LICENSE")
"""What an archive contains; the first one is the program."""
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_.][\w.-]*")
ARCHIVE = re.compile(rf"{FILES[0]}-(?P<os>[a-z0-9]+)-(?P<architecture>[a-z0-9]+)\.tar\.gz")
DESCRIPTION = """\
Shows which devices are free, who holds the others, and why a pod waits, in clusters with HAMi: of this project, or of
the upstream project from v2.4 on. Only resize writes to the cluster.
"""
CAVEATS = """\
The first call unpacks the program, with its Python, into the folder of your caches. On Windows, use it in WSL.
"""


def manifest(repository: str, archives: Sequence[Path]) -> dict[str, Any]:
    """Returns the manifest of the present version. *repository*: ``OWNER/NAME``, whose releases have *archives*."""
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "hami"},
        "spec": {
            "version": f"v{__version__}",
            "homepage": f"https://github.com/{repository}",
            "shortDescription": "Show shared GPUs and why pods wait for them",
            "description": DESCRIPTION,
            "caveats": CAVEATS,
            "platforms": [_platform(repository, archive) for archive in archives],
        },
    }


def _platform(repository: str, archive: Path) -> dict[str, Any]:
    """Returns the entry of *archive*. Raises: ClickException if it is not called as an archive; OSError."""
    name = ARCHIVE.fullmatch(archive.name)
    if name is None:
        raise click.ClickException(
            f"{archive}: expected a file called {FILES[0]}-OS-ARCHITECTURE.tar.gz"
        )
    return {
        "selector": {"matchLabels": {"os": name["os"], "arch": name["architecture"]}},
        "uri": f"https://github.com/{repository}/releases/download/v{__version__}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": FILES[0],
        "files": [{"from": name, "to": "."} for name in FILES],
    }


@click.command()
@click.option("--repository", required=True, metavar="OWNER/NAME")
@click.argument(
    "archives",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
def main(repository: str, archives: tuple[Path, ...]) -> None:
    """Print the manifest."""
    if REPOSITORY.fullmatch(repository) is None:
        raise click.ClickException(f"--repository: expected OWNER/NAME: {repository!r}")
    click.echo(yaml.safe_dump(manifest(repository, archives), sort_keys=False), nl=False)


if __name__ == "__main__":
    main()
