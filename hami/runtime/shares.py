"""Values of many owners in a collection that is bounded: one owner that stores very many pushes out its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Shares(Generic[K, V]):
    """The latest values of each owner, such as a namespace, by key; at most *limit* of all owners.

    If there are more, the owner that has most of them loses its oldest. Not thread-safe.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._owners: dict[Hashable, OrderedDict[K, V]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, owner: Hashable, key: K) -> V | None:
        """Returns the value of *key* of *owner*; ``None`` if there is none."""
        values = self._owners.get(owner)
        return None if values is None else values.get(key)

    def put(self, owner: Hashable, key: K, value: V) -> V | None:
        """Stores *value* as the latest of *owner*. Returns the value that was dropped for it, if one was."""
        values = self._owners.setdefault(owner, OrderedDict())
        self._count += key not in values
        values[key] = value
        values.move_to_end(key)
        if self._count <= self._limit:
            return None
        largest = max(self._owners, key=lambda owner: len(self._owners[owner]))
        _, dropped = self._owners[largest].popitem(last=False)
        self._count -= 1
        if not self._owners[largest]:
            del self._owners[largest]
        return dropped
