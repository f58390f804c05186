"""The values of HAMi's chart: what each release has, and what ours makes of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, cast

from hami.codec.documents import parse_own_yaml

__all__ = ["number", "upstream_rows", "upstream_values", "upstream_versions"]

Values = dict[str, Any]
UPSTREAM = Path(__file__).with_name("hami_values.yaml")


@cache
def upstream_rows() -> dict[str, Values]:
    """Returns what is known of each key of HAMi's chart. Callers share it."""
    return cast(dict[str, Values], parse_own_yaml(UPSTREAM.read_text()))


def upstream_values(version: str) -> Values:
    """Returns values.yaml of HAMi's chart *version*, such as ``v2.8.0``."""
    found: Values = {}
    for name, row in upstream_rows().items():
        since = [known for known in row["defaults"] if number(known) <= number(version)]
        if since and number(version) <= number(row["until"]) and not row.get("commented"):
            place = found
            *path, last = name.split(".")
            for step in path:
                place = place.setdefault(step, {})
            place[last] = row["defaults"][max(since, key=number)]
    return found


def upstream_versions() -> list[str]:
    """Returns all versions in which a value came, changed or went."""
    found = {
        version for row in upstream_rows().values() for version in (*row["defaults"], row["until"])
    }
    return sorted(found, key=number)


def number(version: str) -> list[int]:
    """Returns ``[2, 10, 0]`` for ``v2.10.0``."""
    return [int(part) for part in version.removeprefix("v").split(".")]
