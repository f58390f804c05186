"""Kubernetes quantities, exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.errors import MalformedInput
from hami.quantity import (
    MIB,
    parse_integer,
    parse_quantity,
    render_mib,
    render_milli,
    rounded_up,
    strict_integer,
)
from testing.cases import cases


@cases(
    "text, value",
    ("0", 0),
    ("3000", 3000),
    ("+5", 5),
    ("-1", -1),
    ("007", 7),
    ("3k", 3000),
    ("3M", 3_000_000),
    ("2G", 2 * 10**9),
    ("1T", 10**12),
    ("1P", 10**15),
    ("1E", 10**18),
    ("1Ki", 1024),
    ("16Gi", 17179869184),
    ("1Mi", 1048576),
    ("1Ti", 2**40),
    ("1Pi", 2**50),
    ("1Ei", 2**60),
    ("500m", Fraction(1, 2)),
    ("1u", Fraction(1, 10**6)),
    ("1n", Fraction(1, 10**9)),
    ("1.5", Fraction(3, 2)),
    (".5", Fraction(1, 2)),
    ("5.", 5),
    ("1.5Gi", 1610612736),
    ("1e3", 1000),
    ("1E3", 1000),
    ("1e-3", Fraction(1, 1000)),
    ("1.5e3", 1500),
    ("9999999999999", 9999999999999),
    ("-0.5", Fraction(-1, 2)),
)
def test_value(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "abc",
        "1 ",
        " 1",
        "1_000",
        "1,5",
        "--1",
        "1e",
        "1e+",
        "1ki",
        "1KI",
        "1Ki2",
        "0x10",
        "NaN",
        "inf",
        ".",
        "+",
        "1.2.3",
        "٣",
        "1\n",
        "1e1000",
        "9" * 5000,
    ],
)
def test_no_quantity(text):
    with pytest.raises(
        MalformedInput, match="^quantity: expected a number with an optional suffix"
    ):
        parse_quantity(text)


@cases(
    "text, integer",
    ("3000", 3000),
    ("3k", 3000),
    ("16Gi", 17179869184),
    ("1e3", 1000),
    ("-1", -1),
    ("-1e3", -1000),
    ("1.0", None),
    ("16.0Gi", None),
    ("500m", None),
    ("1000m", None),
    ("1000e-3", None),
    ("1.5k", None),
    ("abc", None),
    ("", None),
    ("9" * 5000, None),
)
def test_strict_integer(text, integer):
    assert strict_integer(text) == integer


@cases(
    "text, integer",
    ("3000", 3000),
    ("1.5", 2),
    ("500m", 1),
    ("1.0", 1),
    ("-0.5", -1),
    ("-2", -2),
    ("0.0", 0),
    ("1n", 1),
)
def test_rounded_up(text, integer):
    assert rounded_up(text) == integer


@given(st.integers(-(10**30), 10**30))
def test_integers_are_exact(number):
    assert (
        parse_quantity(str(number))
        == strict_integer(str(number))
        == rounded_up(str(number))
        == number
    )


@given(st.text())
def test_anything_is_a_quantity_or_malformed(text):
    strict_integer(text)
    try:
        rounded_up(text)
    except MalformedInput as error:
        assert error.text == text[:200] + "…" * (len(text) > 200)


@cases(
    "text, bits, value",
    ("12", 32, 12),
    ("+12", 32, 12),
    ("-12", 32, -12),
    ("0012", 32, 12),
    ("2147483647", 32, 2**31 - 1),
    ("-2147483648", 32, -(2**31)),
    ("2147483648", 32, None),
    ("-2147483649", 32, None),
    ("2147483648", 64, 2**31),
    ("9223372036854775807", 64, 2**63 - 1),
    ("9223372036854775808", 64, None),
    ("9" * 5000, 64, None),
    ("0" * 18 + "1", 64, 1),
    ("0" * 19 + "1", 64, None),
    ("-" + "0" * 18 + "1", 64, -1),
    ("", 32, None),
    ("-", 32, None),
    ("1.0", 32, None),
    ("1 ", 32, None),
    ("1\n", 32, None),
    ("1_0", 32, None),
    ("٣", 32, None),
    ("0x1", 32, None),
    ("1e3", 32, None),
)
def test_go_integers(text, bits, value):
    assert parse_integer(text, bits) == value


@cases(
    "mib, text",
    (0, "0"),
    (1, "1Mi"),
    (3000, "3000Mi"),
    (1024, "1Gi"),
    (81920, "80Gi"),
    (2**20, "1Ti"),
    (3 * 2**40, "3Ei"),
)
def test_memory_is_written_with_the_largest_unit_that_needs_no_fraction(mib, text):
    assert render_mib(mib) == text


@cases("thousandths, text", (0, "0"), (1, "1m"), (6666, "6666m"), (10_000, "10"), (100_000, "100"))
def test_thousandths(thousandths, text):
    assert render_milli(thousandths) == text


@given(st.integers(0, 2**40))
def test_what_is_written_is_read_again(number):
    assert parse_quantity(render_mib(number)) == number * MIB
    assert parse_quantity(render_milli(number)) == Fraction(number, 1000)
