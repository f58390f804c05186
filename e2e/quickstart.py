"""The commands of a quickstart, as a reader would type them.

``python -m e2e.quickstart PAGE`` types them: they create clusters and install HAMi. It ends with the first that fails.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.arguments import file_to_read

__all__ = ["DOCS", "ROOT", "carry_out", "commands", "script"]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script(page: Path) -> str:
    """Returns the command blocks of *page* as one shell script."""
    return "".join(CONSOLE.findall(page.read_text()))


def commands(page: Path) -> list[list[str]]:
    """Returns the words of each command of *page*, which has no here-documents."""
    return [shlex.split(line, comments=True) for line in script(page).replace("\\\n", " ").splitlines()]


def carry_out(page: Path, **options: Any) -> int:
    """Runs the commands of *page* where this repository lies; returns the exit status. *options*: of a subprocess."""
    words = ["bash", "-euxo", "pipefail", "-c", script(page)]
    return subprocess.run(words, cwd=ROOT, check=False, **options).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.quickstart", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=file_to_read, metavar="PAGE", help="a page such as docs/quickstart.md")
    page: Path = parser.parse_args().page
    if not script(page):
        parser.error(f"{page}: there is no block of commands (```console)")
    return carry_out(page)


if __name__ == "__main__":
    sys.exit(main())
