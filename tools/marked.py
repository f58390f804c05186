"""The parts of pages that programs write, each between two marks: comments that a reader does not see."""

from __future__ import annotations

__all__ = ["marked"]

END = "<!-- end -->\n"


def marked(page: str, command: str, text: str) -> str:
    """Returns *page* with *text* between the mark of *command* and its end. Raises: ValueError if it lacks a mark."""
    mark = f"<!-- begin: {command} -->\n"
    before, begin, rest = page.partition(mark)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no part {mark.strip()} … {END.strip()}")
    return f"{before}{begin}{text}{end}{after}"
