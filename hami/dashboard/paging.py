"""Lists that have several pages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from hami.dashboard.errors import PageError

T = TypeVar("T")

MAX_PAGES = 100_000
_PAGE = re.compile("[0-9]{1,6}")


def page_of(given: Mapping[str, str]) -> int:
    """Returns the number of the page. Raises: PageError."""
    text = given.get("page", "1")
    if _PAGE.fullmatch(text) is None or not 1 <= int(text) <= MAX_PAGES:
        raise PageError("page: expected a number from 1", 400)
    return int(text)


def paged(items: Sequence[T], page: int, size: int) -> tuple[Sequence[T], int, int]:
    """Returns the items of a page, its number, and the number of pages. After the last page, the last one."""
    pages = max(1, -(-len(items) // size))
    page = min(page, pages)
    return items[(page - 1) * size : page * size], page, pages
