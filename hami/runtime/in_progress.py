"""A sign for others that something is being done at the moment."""

from __future__ import annotations

from collections import deque


class InProgress:
    """Entered with ``with`` by each thread that does something. It takes no lock."""

    def __init__(self) -> None:
        self._marks: deque[None] = deque()  # appending and popping are atomic

    def __enter__(self) -> None:
        self._marks.append(None)

    def __exit__(self, *error: object) -> None:
        self._marks.pop()

    def is_any(self) -> bool:
        """Reports whether any thread is at it."""
        return bool(self._marks)
