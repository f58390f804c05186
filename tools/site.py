"""The documentation as a site: ``python -m tools.site FOLDER`` builds it with mkdocs, and fails at a broken link.

The pages of ``mkdocs.yml`` and the files that they link to are copied, each to its own path, so that links work both on
the site and where the repository is hosted. A link to a folder becomes its name. The script that draws diagrams is a
file of the site; where it cannot be fetched, a browser takes it from unpkg.com, as the theme has it. Of the pages that
are built, each image, script, style and link below the site has to be there, and none may come from elsewhere.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from tools.diagrams import DiagramsMissing, mermaid

__all__ = ["copy_pages", "missing_files", "nav_pages"]

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "mkdocs.yml"
DIAGRAMS = "assets/mermaid.js"
UNKNOWN_ADDRESS = "404.html"
"""The page for addresses that do not exist has the links of the others, from the root of the host."""
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def nav_pages(nav: object) -> Iterator[str]:
    """Yields the paths of the pages in the *nav* of mkdocs.yml, in order."""
    match nav:
        case str():
            yield nav
        case dict():
            for below in nav.values():
                yield from nav_pages(below)
        case list():
            for below in nav:
                yield from nav_pages(below)


def copy_pages(pages: list[str], folder: Path) -> None:
    """Copies *pages* and the files that they link to from the repository into *folder*."""
    for page in pages:
        source = ROOT / page
        text = source.read_text()
        for label, target in LINK.findall(text):
            linked = source.parent / target
            if "://" in target:
                continue
            if linked.is_dir():
                text = re.sub(rf"\[{re.escape(label)}\]\({re.escape(target)}\)", f"`{label}`", text)
            elif linked.suffix != ".md" and linked.is_file():
                copy = folder / linked.resolve().relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(linked, copy)
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(text)


def add_diagrams(source: Path, config: Any) -> None:
    """Adds the script that draws diagrams to the files in *source*. Raises: DiagramsMissing."""
    script = mermaid()
    copy = source / DIAGRAMS
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(script, copy)
    config["extra_javascript"].append(DIAGRAMS)


class References(HTMLParser):
    """Collects what a page refers to: *links*, and *parts*, which a browser fetches with it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if source := named.get("src"):
            self.parts.append(source)
        if target := named.get("href"):
            is_part = tag == "link" and named.get("rel") in ("stylesheet", "icon")
            (self.parts if is_part else self.links).append(target)


def missing_files(site: Path) -> list[str]:
    """Returns what pages of *site* refer to that is not there, and the parts that come from elsewhere."""
    problems = []
    for page in sorted(site.rglob("*.html")):
        if page.name == UNKNOWN_ADDRESS:
            continue
        references = References()
        references.feed(page.read_text())
        name = page.relative_to(site)
        for target in references.parts:
            if urlsplit(target).netloc:
                problems.append(f"{name}: comes from elsewhere: {target}")
        for target in (*references.parts, *references.links):
            if not _exists(page, target):
                problems.append(f"{name}: is not there: {target}")
    return problems


def _exists(page: Path, target: str) -> bool:
    """Reports whether *target* of *page* is a file, or nothing that could be one."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or not parts.path:
        return True
    path = unquote(parts.path)
    file = page.parent / path
    return (file / "index.html").is_file() if file.is_dir() else file.is_file()


@click.command(help="Build the site into FOLDER; a broken link is an error.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def main(folder: Path) -> None:
    # of the extra docs
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    with tempfile.TemporaryDirectory() as source:
        config: Any = load_config(
            str(CONFIG), docs_dir=source, site_dir=str(folder.absolute()), strict=True
        )
        copy_pages(list(nav_pages(config["nav"])), Path(source))
        try:
            add_diagrams(Path(source), config)
        except DiagramsMissing as error:
            print(f"the site takes its diagrams from unpkg.com: {error}", file=sys.stderr)
        try:
            build(config)
        except Abort as error:
            sys.exit(str(error))
        except OSError as error:
            sys.exit(f"{error.filename}: {error.strerror}")
    if problems := missing_files(folder):
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
