"""Debian's Chromium, driven by Playwright: pictures of pages, what its console says, and a check for accessibility."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from testing.eventually import PATIENCE_S

__all__ = ["SCHEMES", "WIDTHS", "Visit", "browser", "missing"]

PROGRAM = "chromium"
WIDTHS, SCHEMES = (375, 1440), ("light", "dark")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def missing() -> str:
    """Returns what is missing to run a browser; empty if nothing is."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not installed (Debian package {PROGRAM})"
    lacks = [
        name
        for name in ("playwright", "axe_playwright_python")
        if importlib.util.find_spec(name) is None
    ]
    return (
        f"Python packages of the extra e2e are not installed: {', '.join(lacks)}" if lacks else ""
    )


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Runs a browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # the sandbox needs user namespaces, which containers lack
        started = playwright.chromium.launch(
            executable_path=shutil.which(PROGRAM),
            args=["--no-sandbox"],
            timeout=PATIENCE_S * 1000,
        )
        yield started
        started.close()


@dataclass(slots=True)
class Visit:
    """One look at pages, with a width and a color scheme. *complaints*: of the console and of scripts."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def started(
        cls, browser: Any, *, width: int = WIDTHS[-1], scheme: str = SCHEMES[0], script: bool = True
    ) -> Iterator[Visit]:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=script,
            reduced_motion="reduce",
            ignore_https_errors=True,  # certificates of tests
        )
        context.set_default_timeout(PATIENCE_S * 1000)
        visit = cls(context.new_page())
        visit.page.on(
            "console",
            lambda said: said.type in ("error", "warning") and visit.complaints.append(said.text),
        )
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        yield visit
        context.close()

    def violations(self, *rules: str) -> list[str]:
        """Returns the rules of accessibility that the page breaks, each with an example. *rules*: only these."""
        self.page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
        found = self.page.evaluate("rules => axe.run({runOnly: rules})", rules or RULES)[
            "violations"
        ]
        return [f"{rule['id']}: {rule['nodes'][0]['html']}" for rule in found]

    def rename_links(self, text: str) -> None:
        """Gives all links of tables and lists the same *text*, as objects with such names would have."""
        self.page.evaluate(
            "text => document.querySelectorAll('main :is(table, ul) a')"
            ".forEach(link => link.textContent = text)",
            text,
        )

    def is_wider_than_the_window(self) -> bool:
        """Reports whether one has to scroll sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))

    def picture(self, file: Path, *, height: int | None = None) -> None:
        """Writes a picture of the window. *height*: of this part of it."""
        size = self.page.viewport_size
        self.page.screenshot(
            path=file,
            clip={"x": 0, "y": 0, "width": size["width"], "height": height or size["height"]},
        )
