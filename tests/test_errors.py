"""What errors say."""

from hami.errors import ClusterError, Conflict, MalformedInput, NotFound
from testing.cases import cases


def test_malformed_input_names_the_field_and_quotes_the_text():
    error = MalformedInput("spec.count", 'a "b"', "expected a number")
    assert str(error) == "spec.count: expected a number: 'a \"b\"'"
    assert (error.field, error.text, error.problem) == ("spec.count", 'a "b"', "expected a number")


def test_long_texts_are_cut():
    assert str(MalformedInput("f", "x" * 1000, "too long")) == f"f: too long: '{'x' * 200}…'"


def test_the_wire_may_fix_the_sentence():
    assert (
        str(MalformedInput("Pod", "", "missing", message="extender args missing pod"))
        == "extender args missing pod"
    )


@cases(
    "error, status", (ClusterError("x"), None), (Conflict("x", 409), 409), (NotFound("x", 404), 404)
)
def test_status(error, status):
    assert (error.status, str(error)) == (status, "x")
