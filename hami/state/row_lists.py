"""A list of numbers for each row, all side by side."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray

from hami.scheduling.columns import grown, places_of

Array = NDArray[Any]

MIN_CAPACITY = 64


class RowLists:
    """The lists of rows, which are empty at first."""

    def __init__(self) -> None:
        self._starts = numpy.zeros(0, dtype=numpy.intp)
        self.lengths = numpy.zeros(0, dtype=numpy.intp)
        """Of the lists, by row."""
        self._numbers = numpy.zeros(0, dtype=numpy.intp)
        self._end = 0  # of the numbers in use

    def grow(self, rows: int) -> None:
        """Makes room for as many *rows*."""
        self._starts = grown(self._starts, rows)
        self.lengths = grown(self.lengths, rows)

    def put(self, row: int, numbers: Array) -> None:
        """Sets the list of *row*."""
        length = len(numbers)
        if length > self.lengths[row]:
            self.lengths[row] = 0
            if self._end + length > len(self._numbers):
                self._compact(length)
            self._starts[row] = self._end
            self._end += length
        self.lengths[row] = length
        start = self._starts[row]
        self._numbers[start : start + length] = numbers

    def of(self, rows: Array) -> tuple[Array, Array]:
        """Returns the lists of *rows* one after the other, and for each number the position of its row in *rows*."""
        places, owner = places_of(self._starts[rows], self.lengths[rows])
        return self._numbers[places], owner

    def _compact(self, more: int) -> None:
        """Moves the lists together and makes room for *more* numbers, and as many as there are beside them."""
        numbers, _ = self.of(numpy.arange(len(self._starts)))
        self._starts = numpy.cumsum(self.lengths) - self.lengths
        self._end = len(numbers)
        self._numbers = grown(numbers, max(MIN_CAPACITY, 2 * (self._end + more)))
