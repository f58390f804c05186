"""The order in which tenants are served: nobody waits for all of what another one has."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_turn(items: Iterable[T], owner_of: Callable[[T], Hashable]) -> Iterator[T]:
    """Yields *items* of all owners, such as namespaces, in turn: the first of each owner, then the second of each. The
    order of the items of one owner stays, and so does that of the owners by their first items."""
    by_owner: dict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        by_owner[owner_of(item)].append(item)
    waiting = [deque(own) for own in by_owner.values()]
    while waiting:
        for own in waiting:
            yield own.popleft()
        waiting = [own for own in waiting if own]
