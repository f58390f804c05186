"""The distinct ones among the rows of a matrix: what is alike is kept and computed once."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

from hami.scheduling.columns import grown

Array = NDArray[Any]

FEW = 8  # rows of which each is looked up
BYTES_BESIDE = 150
"""Bytes that a distinct row takes, about, beside its numbers, which are kept twice."""


class DistinctRows:
    """Gives a number to each distinct row of *width* numbers. Number 0 is the row of zeros."""

    def __init__(self, width: int) -> None:
        self._bytes = f"V{4 * width}"
        self._factors = numpy.sqrt(numpy.arange(2, width + 2, dtype=numpy.float32))
        self._numbers: dict[bytes, int] = {bytes(4 * width): 0}
        self._rows = numpy.zeros((1, width), dtype=numpy.float32)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def rows(self) -> Array:
        """The distinct rows, by their numbers."""
        return self._rows[: len(self._numbers)]

    @property
    def nbytes(self) -> int:
        """The bytes of memory that they take, about."""
        return self._rows.nbytes + len(self) * (4 * self._rows.shape[1] + BYTES_BESIDE)

    def numbers(self, rows: Array) -> Array:
        """Returns the number of each of *rows*."""
        if len(rows) <= FEW:
            return self._look_up(rows)
        sums = rows @ self._factors
        _, firsts, which = numpy.unique(sums, return_index=True, return_inverse=True)
        distinct = rows[firsts]
        if (distinct[which] != rows).any():  # rarely, two that differ have one sum
            return self._look_up(rows)
        return numpy.asarray(self._look_up(distinct)[which])

    def _look_up(self, rows: Array) -> Array:
        numbers, known = self._numbers, len(self._numbers)
        made: list[int] = []
        for place, key in enumerate(rows.view(self._bytes)[:, 0].tolist()):
            number = numbers.setdefault(key, len(numbers))
            if number >= known:
                self._keep(number, rows[place])
            made.append(number)
        return numpy.array(made, dtype=numpy.intp)

    def _keep(self, number: int, row: Array) -> None:
        if number >= len(self._rows):
            self._rows = grown(self._rows, 2 * len(self._rows))
        self._rows[number] = row
