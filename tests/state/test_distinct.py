"""Distinct rows: what is alike has one number, and no other row has it."""

import numpy
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, tuples

from hami.state.distinct import DistinctRows

SOME = (0.0, 1.0, 2.5, 1e8)


@given(blocks=lists(lists(tuples(integers(0, 3), integers(0, 3), integers(0, 3)), max_size=40)))
def test_rows_have_one_number_if_they_are_equal(blocks):
    distinct = DistinctRows(3)
    of_row = {(0.0, 0.0, 0.0): 0}
    for block in blocks:
        rows = [tuple(SOME[place] for place in places) for places in block]
        numbers = distinct.numbers(numpy.array(rows, dtype=numpy.float32).reshape(-1, 3))
        assert distinct.rows[numbers].tolist() == [list(row) for row in rows]
        for row, number in zip(rows, numbers.tolist()):
            assert of_row.setdefault(row, number) == number
    assert len(distinct) == len(set(of_row.values())) == len(of_row)


@pytest.mark.parametrize("count", [3, 300])
def test_rows_whose_sums_are_rounded_to_the_same_stay_apart(count):
    rows = numpy.array([[1e8, number % 3] for number in range(count)], dtype=numpy.float32)
    distinct = DistinctRows(2)
    numbers = distinct.numbers(rows)
    assert distinct.rows[numbers].tolist() == rows.tolist()
    assert len(distinct) == 4
