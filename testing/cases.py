"""Tables of tests: a row is a name and the values of a case."""

import pytest


def cases(names, *rows):
    """Runs a test once for each of *rows*: its name first, then a value for each of the *names*."""
    return pytest.mark.parametrize(
        names, [pytest.param(*values, id=name) for name, *values in rows]
    )
