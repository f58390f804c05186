"""Lists of rows, side by side: each row has what was put there last."""

import numpy
from hypothesis import given
from hypothesis.strategies import integers, lists, tuples

from hami.state.row_lists import RowLists

ROWS = 5


@given(puts=lists(tuples(integers(0, ROWS - 1), lists(integers(0, 99), max_size=40))))
def test_each_row_has_what_was_put_there_last(puts):
    row_lists, expected = RowLists(), [[] for _ in range(ROWS)]
    row_lists.grow(ROWS)
    for row, numbers in puts:
        row_lists.put(row, numpy.array(numbers, dtype=numpy.intp))
        expected[row] = numbers
    rows = [3, 0, 4, 1, 2, 3]
    numbers, owner = row_lists.of(numpy.array(rows))
    for place, row in enumerate(rows):
        assert numbers[owner == place].tolist() == expected[row]
    assert row_lists.lengths.tolist() == [len(numbers) for numbers in expected]
