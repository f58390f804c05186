"""The commands of a page, as a reader would type them.

``python -m testing.quickstart PAGE`` types them: those of a quickstart create clusters and install HAMi. It ends with
the first that fails. ``python -m testing.quickstart PAGE HEADING`` types only those below a heading. Standard library
only.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from testing import interrupts
from testing.arguments import file_to_read

__all__ = ["DOCS", "ROOT", "carry_out", "commands", "script"]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTION = r"^## {}\n(.*?)(?=^## |\Z)"
REMOVES = re.compile(r"^kind delete cluster\b.*$", re.MULTILINE)
"""Commands that remove what the others of a page have made outside of the processes that they start."""


def script(page: Path, heading: str = "") -> str:
    """Returns the command blocks of *page*, or of the section below *heading*, as one shell script.

    Raises: ValueError if there is no such section, or no command.
    """
    text = page.read_text()
    if heading:
        section = re.search(SECTION.format(re.escape(heading)), text, re.MULTILINE | re.DOTALL)
        if section is None:
            raise ValueError(f"{page} has no heading {heading!r}")
        text = section[1]
    blocks = CONSOLE.findall(text)
    if not blocks:
        place = f"{page}, {heading}" if heading else str(page)
        raise ValueError(f"{place}: there is no block of commands (```console)")
    return "".join(blocks)


def commands(page: Path, heading: str = "") -> list[list[str]]:
    """Returns the words of each command of *page*, or of its section, which has no here-documents."""
    lines = script(page, heading).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def carry_out(page: Path, heading: str = "", *, folder: Path = ROOT, **options: Any) -> int:
    """Runs the commands of *page*, or of its section, in *folder*; returns the exit status. *options*: of a subprocess.

    When a signal ends it, what they have made is removed by the page's own commands for that.
    """
    text = script(page, heading)
    try:
        return subprocess.run(shell(text), cwd=folder, check=False, **options).returncode
    except interrupts.Interrupted:
        for command in REMOVES.findall(text):
            subprocess.run(shell(command), cwd=folder, check=False, **options)
        raise


def shell(text: str) -> list[str]:
    """Returns the words of a shell that runs *text* until a command fails."""
    return ["bash", "-euxo", "pipefail", "-c", text]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m testing.quickstart", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "page", type=file_to_read, metavar="PAGE", help="a page such as docs/quickstart.md"
    )
    parser.add_argument(
        "heading", nargs="?", default="", metavar="HEADING", help="only the commands below it"
    )
    flags = parser.parse_args()
    try:
        return carry_out(flags.page, flags.heading)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(interrupts.run_whole(main))
