"""Inventories as nodes register them, in both encodings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.register import (
    parse_bool,
    parse_devices,
    parse_devices_text,
    parse_pair_scores,
    render_devices_json,
)
from hami.errors import MalformedInput
from hami.model import Device, MigProfile, Partition
from testing.builders import gpu
from testing.cases import cases
from testing.fuzz import mutated

A40S = (gpu("GPU-a0"), gpu("GPU-a1", index=1, numa=1))
A40_JSON = (
    '[{"id":"GPU-a0","count":10,"devmem":46068,"devcore":100,"type":"NVIDIA A40","mode":"hami-core",'
    '"health":true},{"id":"GPU-a1","index":1,"count":10,"devmem":46068,"devcore":100,"type":"NVIDIA A40",'
    '"numa":1,"mode":"hami-core","health":true}]'
)
A40_TEXT = (
    "GPU-a0,10,46068,100,NVIDIA A40,0,true,0,hami-core:"
    "GPU-a1,10,46068,100,NVIDIA A40,1,true,1,hami-core:"
)
A40_TEXT_V24 = (
    "GPU-a0,10,46068,100,NVIDIA-NVIDIA A40,0,true:GPU-a1,10,46068,100,NVIDIA-NVIDIA A40,0,true:"
)
V24 = (gpu("GPU-a0", model="NVIDIA-NVIDIA A40"), gpu("GPU-a1", model="NVIDIA-NVIDIA A40"))
MIG_JSON = (
    '[{"id":"GPU-m","count":7,"devmem":40960,"devcore":100,"type":"NVIDIA A100","mode":"mig","migProfiles":'
    '[{"name":"1g.5gb","memoryMB":4864,"core":15,"sliceCount":1,"placements":[{"start":6,"size":1}]}],'
    '"health":true}]'
)
MIG = (
    gpu(
        "GPU-m",
        slots=7,
        memory_mib=40960,
        model="NVIDIA A100",
        mode="mig",
        mig_profiles=(
            MigProfile(
                name="1g.5gb", memory_mib=4864, cores=15, slices=1, placements=(Partition(6, 1),)
            ),
        ),
    ),
)

int32 = st.integers(0, 2**31 - 1)
words = st.text(
    st.characters(codec="utf-8", exclude_characters=",:;", exclude_categories=["Cs", "Cc"])
)
places = st.builds(Partition, int32, int32)
profiles = st.builds(
    MigProfile,
    name=st.text(),
    memory_mib=int32,
    cores=int32,
    slices=int32,
    placements=st.lists(places, max_size=3).map(tuple),
)


def devices(text, **fields):
    return st.lists(
        st.builds(
            Device,
            uuid=text.filter(bool),
            vendor=st.just("NVIDIA"),
            model=text,
            slots=int32,
            memory_mib=int32,
            cores=int32,
            index=int32,
            numa=st.integers(-(2**31), 2**31 - 1),
            mode=text.filter(bool),
            healthy=st.booleans(),
            cordoned=st.just(False),
            pair_scores=st.just({}),
            **{"mig_profiles": st.just(())} | fields,
        ),
        max_size=4,
    ).map(tuple)


@cases(
    "text, expected",
    ("JSON", A40_JSON, A40S),
    ("text", A40_TEXT, A40S),
    ("text of v2.4", A40_TEXT_V24, V24),
    ("MIG profile", MIG_JSON, MIG),
    ("empty text", ":", ()),
    ("two empty segments", "::", ()),
    ("empty list", "[]", ()),
    ("null", " null ", ()),
    (
        "keys of any case",
        '[{"ID":"x","Devmem":7,"HEALTH":true}]',
        (gpu("x", slots=0, memory_mib=7, cores=0, model=""),),
    ),
    (
        "no health is unhealthy",
        '[{"id":"x"}]',
        (gpu("x", slots=0, memory_mib=0, cores=0, model="", healthy=False),),
    ),
    (
        "nulls and unknown keys",
        '[{"id":"x","health":null,"index":null,"mode":null,"migProfiles":null,"migtemplate":[1],"more":{}}]',
        (gpu("x", slots=0, memory_mib=0, cores=0, model="", healthy=False),),
    ),
    (
        "text that begins as null does",
        "nGCU-0,1,100,100,GCU,0,t,2,x:",
        (gpu("nGCU-0", slots=1, memory_mib=100, model="GCU", index=2, mode="x"),),
    ),
    (
        "no NUMA node",
        "x,1,1,1,m,-1,F:",
        (gpu("x", slots=1, memory_mib=1, cores=1, model="m", numa=-1, healthy=False),),
    ),
)
def test_parse(text, expected):
    assert parse_devices("register", text, "NVIDIA") == expected


def render_devices_text(devices):
    """The text form with nine fields per device."""
    return "".join(
        f"{d.uuid},{d.slots},{d.memory_mib},{d.cores},{d.model},{d.numa},"
        f"{str(d.healthy).lower()},{d.index},{d.mode}:"
        for d in devices
    )


@cases(
    "render, given, text",
    ("JSON", render_devices_json, A40S, A40_JSON),
    ("text", render_devices_text, A40S, A40_TEXT),
    ("MIG profile", render_devices_json, MIG, MIG_JSON),
)
def test_render(render, given, text):
    assert render(given) == text


@given(devices(st.text(), mig_profiles=st.lists(profiles, max_size=2).map(tuple)))
def test_json_round_trip(given):
    assert parse_devices("register", render_devices_json(given), "NVIDIA") == given


@given(devices(words).filter(bool))
def test_text_round_trip(given):
    assert parse_devices_text("register", render_devices_text(given), "NVIDIA") == given


@cases(
    "text, quoted, problem",
    ("empty", "", "", "node annotation missing device separator"),
    ("comma", ",", ",", "node annotation missing device separator"),
    ("two fields", ",:", ",", "unexpected field count 2 in node annotation"),
    ("garbage", "garbage:", "garbage", "malformed node annotation segment"),
    ("eight fields", "a,1,1,1,m,0,true,0:", "a,1,1,1,m,0,true,0", "unexpected field count 8"),
    ("count first", "a,x,y,1,m,z,w:", "x", "invalid count field"),
    ("then memory", "a,1,1.5,1,m,z,w:", "1.5", "invalid memory field"),
    ("then cores", "a,1,1,,m,z,w:", "", "invalid core field"),
    ("then health", "a,1,1,1,m,z,yes:", "yes", "invalid health field"),
    ("then numa", "a,1,1,1,m,z,true:", "z", "invalid numa field"),
    ("then index", "a,1,1,1,m,0,true,x,m:", "x", "invalid index field"),
    ("negative index", "a,1,1,1,m,0,true,-1,m:", "-1", "index field must not be negative"),
    ("above int32", "a,2147483648,1,1,m,0,true:", "2147483648", "invalid count field"),
    ("huge", f"a,{'9' * 5000},1,1,m,0,true:", "9" * 200 + "…", "invalid count field"),
    ("digits of another script", "a,٣,1,1,m,0,true:", "٣", "invalid count field"),
    ("negative memory", "a,1,-1,1,m,0,true:", "-1", "memory field must not be negative"),
    ("truncated", "[", "[", "not valid JSON"),
    ("NaN", '[{"id":"a","count":NaN}]', '[{"id":"a","count":NaN}]', "not valid JSON"),
    ("deep", "[" * 100_000, "[" * 200 + "…", "not valid JSON"),
    ("object", "{}", "{}", "expected a JSON array"),
)
def test_malformed(text, quoted, problem):
    with pytest.raises(MalformedInput) as caught:
        parse_devices("register", text, "NVIDIA")
    assert (caught.value.field, caught.value.text) == ("register", quoted)
    assert problem in caught.value.problem


@cases(
    "text, field, quoted, problem",
    ("null device", "[null]", "f[0]", "None", "expected a mapping"),
    ("number for a device", '[{"id":"a"},3]', "f[1]", "3", "expected a mapping"),
    ("id", '[{"id":3}]', "f[0].id", "3", "expected a string"),
    ("count a text", '[{"id":"a","count":"10"}]', "f[0].count", "10", "expected an integer"),
    ("fraction", '[{"devmem":1.5}]', "f[0].devmem", "1.5", "expected an integer"),
    ("bool for a number", '[{"devmem":true}]', "f[0].devmem", "True", "expected an integer"),
    ("JSON negative memory", '[{"devmem":-1}]', "f[0].devmem", "-1", "expected an integer from 0"),
    (
        "JSON above int32",
        '[{"devcore":2147483648}]',
        "f[0].devcore",
        "2147483648",
        "expected an integer",
    ),
    (
        "JSON huge",
        '[{"devcore":99999999999999999999999}]',
        "f[0].devcore",
        "9" * 23,
        "expected an integer",
    ),
    ("JSON negative index", '[{"index":-1}]', "f[0].index", "-1", "expected an integer from 0"),
    ("health a text", '[{"health":"true"}]', "f[0].health", "true", "expected true or false"),
    ("health a number", '[{"health":1}]', "f[0].health", "1", "expected true or false"),
    ("MIG null", '[{"migProfiles":[null]}]', "f[0].migProfiles[0]", "None", "expected a mapping"),
    (
        "MIG memory",
        '[{"migProfiles":[{"memoryMB":"x"}]}]',
        "f[0].migProfiles[0].memoryMB",
        "x",
        "expected an integer",
    ),
    (
        "MIG placement",
        '[{"migProfiles":[{"placements":[{"START":-1}]}]}]',
        "f[0].migProfiles[0].placements[0].start",
        "-1",
        "expected an integer from 0",
    ),
    (
        "MIG placements",
        '[{"migProfiles":[{"placements":3}]}]',
        "f[0].migProfiles[0].placements",
        "3",
        "expected a list",
    ),
)
def test_a_malformed_field_is_named(text, field, quoted, problem):
    with pytest.raises(MalformedInput) as caught:
        parse_devices("f", text, "NVIDIA")
    assert (caught.value.field, caught.value.text) == (field, quoted)
    assert problem in caught.value.problem


@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["id", "COUNT", "devmem", "migProfiles", "placements", "health"]),
                inner,
            )
        ),
    ).map(lambda value: json.dumps([value]))
)
def test_anything_is_read_or_malformed(text):
    try:
        parse_devices("register", text, "NVIDIA")
    except MalformedInput as error:
        assert error.field.startswith("register")


@cases(
    "words, meaning",
    ("1 t T TRUE true True".split(), True),
    ("0 f F FALSE false False".split(), False),
    (["", "yes", "tRUE", "on", " true", "10"], None),
)
def test_go_bools(words, meaning):
    assert {parse_bool(word) for word in words} == {meaning}


def test_pair_scores():
    assert parse_pair_scores(
        "score", '[{"uuid":"GPU-0","score":{"GPU-1":50}},{"uuid":"GPU-1"}]'
    ) == {"GPU-0": {"GPU-1": 50}, "GPU-1": {}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[null]",
        '[{"uuid":1}]',
        '[{"score":{"a":"b"}}]',
        "[" * 100_000,
        '[{"score":{"a":2147483648}}]',
    ],
)
def test_malformed_pair_scores(text):
    with pytest.raises(MalformedInput, match="score: expected a list of uuid and score"):
        parse_pair_scores("score", text)


def outcome(document):
    """The devices in *document*, or the error without the text in which it was found."""
    try:
        return parse_devices("f", json.dumps(document), "NVIDIA")
    except MalformedInput as error:
        return error.field, error.problem


@given(mutated(json.loads(MIG_JSON)))
def test_unknown_keys_change_nothing_though_they_are_decoded_otherwise(text):
    document = json.loads(text)
    devices = document if isinstance(document, list) else []
    more = [one | {"later": 1} if isinstance(one, dict) else one for one in devices] or document
    assert outcome(document) == outcome(more)
