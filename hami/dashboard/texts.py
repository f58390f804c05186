"""Texts of records for templates: numbers, shares, times and colors."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from hami.codec.times import render_time
from hami.dashboard.history import latest, polyline
from hami.dashboard.use import Use
from hami.inspect.gangs import gang_sentences
from hami.inspect.preemption import preemption_sentences
from hami.inspect.refusals import lacks, request_texts
from hami.inspect.top import age_text
from hami.inspect.twin_report import comparison_sentence, twin_rows, twin_sentence
from hami.plurals import are, counted

HUES = 6  # colors of namespaces in the style sheet
SCALE = 1000  # the width of a bar in its own units


def percent(used: int, total: int) -> int:
    """Returns the share in percent, 0 if there is nothing; more than everything is more than 100."""
    return 100 * used // total if total > 0 else 0


def width(part: int, total: int) -> int:
    """Returns the width of a part of a bar, at most all of it."""
    return min(SCALE, max(0, round(SCALE * part / total))) if total > 0 else 0


def hue(namespace: str | None) -> str:
    """Returns the class of a namespace's color; pods without a name are gray."""
    return "other" if namespace is None else f"hue{zlib.crc32(namespace.encode()) % HUES}"


def number(value: int) -> str:
    """Returns a number with thousands separated."""
    return f"{value:,}"


def mib(value: int) -> str:
    """Returns memory in the unit that people read most easily."""
    return (
        f"{value / 1024:,.1f} GiB".replace(".0 GiB", " GiB") if value >= 1024 else f"{value:,} MiB"
    )


def timestamp(seconds: int) -> str:
    """Returns Unix seconds in the API server's format."""
    return render_time(datetime.fromtimestamp(seconds, UTC))


def in_words(use: Use) -> str:
    """Returns what is in use, such as ``512 MiB, 40% busy``."""
    memory = [] if use.memory_mib is None else [mib(use.memory_mib)]
    compute = [] if use.compute_percent is None else [f"{use.compute_percent}% busy"]
    return ", ".join(memory + compute)


FILTERS: Mapping[str, Callable[..., Any]] = {
    "percent": percent,
    "width": width,
    "hue": hue,
    "number": number,
    "counted": counted,
    "are": are,
    "mib": mib,
    "age": age_text,
    "timestamp": timestamp,
    "lacks": lacks,
    "request_texts": request_texts,
    "in_words": in_words,
    "polyline": polyline,
    "latest": latest,
    "gang_sentences": gang_sentences,
    "preemption_sentences": preemption_sentences,
    "twin_sentence": twin_sentence,
    "twin_rows": twin_rows,
    "comparison_sentence": comparison_sentence,
}
"""Filters of templates by name."""
