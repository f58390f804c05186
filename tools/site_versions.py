"""The sites of all versions, as one tree: ``python -m tools.site_versions FOLDER SITE VERSION``.

Puts SITE, which ``tools.site`` has built, into FOLDER as the site of VERSION, beside those of other versions. A reader
who names no version gets the newest; ``versions.json`` lists them for the menu of versions, as the theme reads it.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import click

__all__ = ["add", "main"]

VERSION = re.compile(r"\d+\.\d+\.\d+")
REDIRECT = """\
<!DOCTYPE html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={version}/">
<title>HAMi in Python</title>
<a href="{version}/">Version {version}</a>
"""


def add(folder: Path, site: Path, version: str) -> list[str]:
    """Makes *site* that of *version* in *folder*; returns the versions there, newest first. Raises: OSError."""
    place = folder / version
    if place.exists():
        shutil.rmtree(place)
    shutil.copytree(site, place)
    names = [path.name for path in folder.iterdir() if VERSION.fullmatch(path.name)]
    names.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    entries = [{"version": name, "title": name, "aliases": []} for name in names]
    (folder / "versions.json").write_text(json.dumps(entries, indent=1) + "\n")
    (folder / "index.html").write_text(REDIRECT.format(version=names[0]))
    (folder / ".nojekyll").write_text("")  # files as they are
    return names


@click.command(help="Put SITE into FOLDER as the site of VERSION, beside those of other versions.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("site", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("version")
def main(folder: Path, site: Path, version: str) -> None:
    if VERSION.fullmatch(version) is None:
        raise click.ClickException(f"expected a version such as 1.2.3: {version!r}")
    click.echo("\n".join(add(folder, site, version)))


if __name__ == "__main__":
    main()
