"""The amounts of a pod that has a claim of its own."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.claim_amounts import is_claim_name, parse_claim_amounts, render_claim_amounts
from hami.codec.keys import CLAIM_AMOUNTS
from hami.codec.pods import convert_pod, parse_node_pod, parse_pod
from hami.errors import MalformedInput
from testing.cases import cases

NAME = "hami-" + "0123456789abcdef" * 2
ENTRY = {"name": "hami", "resourceClaimName": NAME}
GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
AMOUNTS = {"main": {GPU: "1", MEMORY: "3000"}}


def wire(text=json.dumps(AMOUNTS), entries=(ENTRY,), limits=None):
    return {
        "metadata": {"name": "p", "annotations": {} if text is None else {CLAIM_AMOUNTS: text}},
        "spec": {
            "initContainers": [{"name": "init"}],
            "containers": [{"name": "main", "resources": {"limits": limits or {}}}],
            "resourceClaims": list(entries),
        },
    }


def parsed(**changes):
    return parse_pod(json.dumps(wire(**changes)).encode())


def limits(pod):
    return {container.name: dict(container.limits) for container in pod.containers}


def test_amounts_return_to_the_containers():
    pod = parsed(limits={"cpu": "1"})
    assert (pod.claim, pod.claim_problem) == (NAME, "")
    assert limits(pod) == {"init": {}, "main": {"cpu": "1", GPU: "1", MEMORY: "3000"}}


def test_all_programs_read_the_same():
    pod = parsed()
    assert pod == convert_pod(wire()) == parse_node_pod(json.dumps(wire()).encode()).pod


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [{"name": "other", "resourceClaimName": NAME}],
        [{"name": "hami", "resourceClaimName": NAME + "0"}],
        [{"name": "hami", "resourceClaimName": NAME.upper()}],
        [{"name": "hami", "resourceClaimTemplateName": NAME}],
        [{"name": "hami", "resourceClaimName": None}],
        [{"name": "nic", "resourceClaimName": "hami-nic"}],
        [None, "x"],
    ],
)
def test_a_pod_without_such_a_claim_is_not_changed_by_the_annotation(entries):
    pod = parsed(entries=entries)
    assert (pod.claim, pod.claim_problem) == ("", "")
    assert limits(pod) == {"init": {}, "main": {}}


def test_the_claim_is_found_among_others():
    assert parsed(entries=[{"name": "nic", "resourceClaimName": "hami-nic"}, ENTRY]).claim == NAME


@cases(
    "text, problem",
    ("none", None, "missing"),
    ("empty", "", "expected amounts of resources by container"),
    ("a list", "[]", "expected amounts"),
    ("no container", "{}", "length >= 1"),
    ("no amount", '{"main": {}}', "length >= 1"),
    ("a number", '{"main": {"nvidia.com/gpu": 1}}', "got `int`"),
    ("a name without a domain", '{"main": {"gpu": "1"}}', "regex"),
    ("an empty amount", '{"main": {"nvidia.com/gpu": ""}}', "regex"),
    ("a blank", '{"main": {"nvidia.com/gpu": "1 "}}', "regex"),
    ("no name of a container", '{"Main": {"nvidia.com/gpu": "1"}}', "regex"),
    (
        "another",
        '{"other": {"nvidia.com/gpu": "1"}}',
        "expected the name of a container of the pod: 'other'",
    ),
    (
        "many containers",
        json.dumps({f"c{place}": AMOUNTS["main"] for place in range(33)}),
        "length <= 32",
    ),
    (
        "many resources",
        json.dumps({"main": {f"a.b/{place}": "1" for place in range(9)}}),
        "length <= 8",
    ),
    ("a long text", json.dumps(AMOUNTS) + " " * 16_384, "expected at most 16384"),
)
def test_a_pod_whose_amounts_cannot_be_read_says_why_and_is_read(text, problem):
    pod = parsed(text=text)
    assert pod.claim == NAME
    assert limits(pod) == {"init": {}, "main": {}}
    assert pod.claim_problem.startswith(CLAIM_AMOUNTS)
    assert problem in pod.claim_problem


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,9}[a-z0-9])?", fullmatch=True)
RESOURCES = st.from_regex(r"[a-z0-9.-]{1,9}/[A-Za-z0-9._-]{1,9}", fullmatch=True)
QUANTITIES = st.from_regex(r"[0-9A-Za-z.+-]{1,9}", fullmatch=True)


@given(
    st.dictionaries(
        NAMES,
        st.dictionaries(RESOURCES, QUANTITIES, min_size=1, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_written_is_read(amounts):
    assert parse_claim_amounts(render_claim_amounts(amounts)) == amounts


@given(
    st.text(max_size=60)
    | st.recursive(
        st.none() | st.integers() | st.sampled_from(["1", "main", GPU]),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["main", GPU, "x"]), inner, max_size=3)
        ),
        max_leaves=6,
    ).map(json.dumps)
)
def test_an_annotation_of_anybody_is_read_or_refused(text):
    pod = convert_pod(wire(text=text))
    assert bool(pod.claim_problem) is (limits(pod)["main"] == {})


@pytest.mark.parametrize("amounts", [{}, {"Main": {GPU: "1"}}, {"main": {GPU: "x" * 65}}])
def test_nothing_is_written_that_would_not_be_read(amounts):
    with pytest.raises(MalformedInput, match=CLAIM_AMOUNTS):
        render_claim_amounts(amounts)


@cases(
    "name, is_name",
    (NAME, True),
    ("hami-" + "0" * 20, False),
    (NAME[:-1], False),
    (NAME + "\n", False),
    ("x" + NAME, False),
)
def test_names_of_claims(name, is_name):
    assert is_claim_name(name) is is_name
