"""Tables of tests."""

import pytest


def cases(names, *rows):
    """Runs a test once for each of *rows*: the name of the case, if it has one, and a value for each of *names*."""
    count = len(names.split(","))
    return pytest.mark.parametrize(names, [_case(row, count) for row in rows])


def _case(row, count):
    if len(row) == count:
        return pytest.param(*row)
    name, *values = row
    return pytest.param(*values, id=name)
