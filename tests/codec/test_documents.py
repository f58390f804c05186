"""Configuration files as records."""

import subprocess
import sys
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from hami.codec.documents import decode_yaml, describe, parse_json, parse_yaml, unknown_keys
from hami.errors import MalformedInput
from testing.cases import cases


class Wheel(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=1, description="inches, 1 or more")]
    spokes: bool = True


class Car(msgspec.Struct, rename="camel"):
    name: str = ""
    wheels: list[Wheel] = []
    spare: Wheel | None = None
    words: Annotated[tuple[str, ...], Meta(description="a list of words")] = ()
    links: dict[str, int] = {}
    max_speed: float = 0.0
    fuel: Literal["diesel", "none"] = "none"
    mark: str | int = ""


def test_a_document_becomes_a_record():
    car = decode_yaml(
        "{name: a, wheels: [{size: 17}], words: [x], maxSpeed: 3, color: red}", Car, "car.yaml"
    )
    assert car == Car(name="a", wheels=[Wheel(17)], words=("x",), max_speed=3.0)


@cases(
    "text, message",
    ("5", "car.yaml: expected a mapping: '5'"),
    ("name: 5", "car.yaml: name: expected a text: '5'"),
    ("wheels: {}", "car.yaml: wheels: expected a list: '{}'"),
    ("wheels: [{size: 1}, 5]", "car.yaml: wheels[1]: expected a mapping: '5'"),
    ("wheels: [{}]", "car.yaml: wheels[0].size: missing, expected inches, 1 or more: ''"),
    ("wheels: [{size: 0}]", "car.yaml: wheels[0].size: expected inches, 1 or more: '0'"),
    (
        "wheels: [{size: '1'}]",
        "car.yaml: wheels[0].size: expected inches, 1 or more without quotes: '1'",
    ),
    (
        "wheels: [{size: 1, color: red}]",
        "car.yaml: wheels[0].color: expected one of size, spokes: 'red'",
    ),
    ("spare: {size: 1, spokes: 1}", "car.yaml: spare.spokes: expected true or false: '1'"),
    ("words: [a, 1]", "car.yaml: words: expected a list of words: '['a', 1]'"),
    ("links: {a: b}", "car.yaml: links: expected a mapping: '{'a': 'b'}'"),
    ("maxSpeed: fast", "car.yaml: maxSpeed: expected a number without quotes: 'fast'"),
    ("fuel: coal", "car.yaml: fuel: expected diesel or none: 'coal'"),
    ("mark: true", "car.yaml: mark: expected a text or a whole number: 'True'"),
    ("1: 2", "car.yaml: expected a mapping: '{1: 2}'"),
)
def test_an_error_names_file_path_and_value(text, message):
    with pytest.raises(MalformedInput) as caught:
        decode_yaml(text, Car, "car.yaml")
    assert str(caught.value).replace('"', "'") == message


@pytest.mark.parametrize(
    "text", ["a: [", "a: \x00", "[" * 3000, 'a: "\\UFFFFFFFF"', "a: 1\n\tb: 2"]
)
def test_a_text_that_is_not_yaml_is_refused(text):
    with pytest.raises(MalformedInput, match="^car.yaml: not YAML"):
        parse_yaml(text, "car.yaml")


@cases(
    "text, place",
    ("no end", "a:\n- b: [", "line 2, .*expected the node content"),
    ("date", "a: 1\nb: 2024-13-45", "line 2, column 4: malformed value: month"),
    ("time", "a: !!timestamp x", "line 1, column 4: malformed value"),
    ("int", "a: !!int x", "line 1, column 4: malformed value"),
    ("bool", "a: !!bool x", "line 1, column 4: malformed value"),
    ("no digits", "a: 0b_", "line 1, column 4: malformed value"),
    ("digits", f"a: {'9' * 5000}", "line 1, column 4: malformed value"),
    ("hexadecimal", f"a: 0x{'9' * 5000}", "line 1, column 4: .* integer too large"),
    ("float", f"a: 1{':1' * 300}.0", "line 1, column 4: malformed value"),
    ("tag", "a: !gpu x", "line 1, column 4: .*the tag '!gpu'"),
    ("tag of a mapping", "a:\n- !gpu\n  b: 1", "line 2, .*the tag '!gpu'"),
    ("tag of a list", "a: !!str []", "line 1, .*expected a scalar node"),
    ("tag of a key", "!gpu a: 1", "line 1, .*the tag '!gpu'"),
    ("nothing to merge", "a:\n- <<: 3", "line 2, .*expected a mapping or list"),
    ("nothing to merge in a list", "{<<: [{}, 3]}", "line 1, .*expected a mapping"),
    ("<< as a value", "a: <<", "line 1, .*merge"),
    ("list as a key", "{[a]: 1}", "line 1, .*unhashable key"),
)
def test_a_malformed_value_is_named_by_its_position(text, place):
    for unique_keys in (False, True):
        with pytest.raises(MalformedInput, match=f"^car.yaml: not YAML in {place}"):
            parse_yaml(text, "car.yaml", unique_keys=unique_keys)


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2", "x: &x {b: 1}\na: {<<: *x, <<: *x}", "[{a: 1,\n  a: 1}]"]
)
def test_duplicate_keys_are_refused_on_request(text):
    parse_yaml(text, "car.yaml")
    with pytest.raises(MalformedInput, match="line 2, column .*duplicate key '(a|<<)'"):
        parse_yaml(text, "car.yaml", unique_keys=True)


def test_a_merged_key_may_be_overridden():
    text = "[{a: {b: &b {k: 1, <<: {k: 2}}}}, *b, {<<: *b, k: 7}]"
    assert parse_yaml(text, "car.yaml", unique_keys=True)[1:] == [{"k": 1}, {"k": 7}]


@pytest.mark.parametrize("text", ["{", "", "[" * 5000])
def test_a_text_that_is_not_json_is_refused(text):
    with pytest.raises(MalformedInput, match="^car.json: not JSON"):
        parse_json(text, "car.json")


def test_unknown_keys_are_listed():
    value = {"name": "a", "color": 1, "wheels": [{"size": 1, "x": 2}, 5], "spare": {"y": 1}, 3: 4}
    assert list(unknown_keys(value, Car)) == ["color", "wheels[0].x", "spare.y", "3"]


def test_a_type_without_a_description_is_described_by_its_kind():
    assert describe(Annotated[int, Meta(ge=1)]) == "a whole number"


def test_threads_may_convert_to_a_type_for_the_first_time_at_once():
    """msgspec reads the fields of a Struct when it first needs them, and does not expect other threads meanwhile."""
    script = """
import sys, threading
from hami.codec.admission import parse_review
sys.setswitchinterval(1e-6)
body = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE"}}'
ready = threading.Barrier(8)
threads = [threading.Thread(target=lambda: (ready.wait(), parse_review(body))) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
