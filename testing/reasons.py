"""Lists of tests with the reason why each is listed, as text files.

A line is the name of a test, two spaces or more, and the reason. Comments start with ``#``.
"""

from __future__ import annotations

import re

__all__ = ["parse_reasons"]


def parse_reasons(text: str, file: str) -> dict[str, str]:
    """Maps tests to reasons, in the order of the lines.

    *file*: its name, for errors. Raises: ValueError for a line without a reason, and for a test
    that is listed twice.
    """
    reasons: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        test, _, reason = re.sub(r"\s{2,}", "\0", line, count=1).partition("\0")
        if not reason:
            raise ValueError(f"{file}: no reason is given for {test!r}")
        if test in reasons:
            raise ValueError(f"{file}: {test!r} is listed twice")
        reasons[test] = reason
    return reasons
