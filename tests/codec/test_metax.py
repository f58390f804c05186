"""Annotations of MetaX's node agent."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.metax import parse_cards, parse_topology, render_allocated
from hami.errors import MalformedInput
from hami.model import Device, Share
from testing.cases import cases

KEY = "metax-tech.com/node-gpu-devices"
CARD = {
    "uuid": "GPU-0",
    "bdf": "0000:3b:00.0",
    "model": "MXC500",
    "totalDevCount": 16,
    "totalCompute": 100,
    "totalVRam": 65536,
    "availableDevCount": 16,
    "numa": 1,
    "healthy": True,
    "qosPolicy": "best-effort",
    "linkZone": 2,
}


def cards(*entries):
    return parse_cards(KEY, json.dumps(entries), "Metax-SGPU")


def test_cards():
    assert cards(CARD, {"uuid": "GPU-1"}) == (
        Device(
            uuid="GPU-0",
            vendor="Metax-SGPU",
            model="Metax-SGPU",
            slots=16,
            memory_mib=65536,
            cores=100,
            index=0,
            numa=1,
            mode="",
            info={"qos": "best-effort", "model": "MXC500", "link_zone": 2},
        ),
        Device(
            uuid="GPU-1",
            vendor="Metax-SGPU",
            model="Metax-SGPU",
            slots=0,
            memory_mib=0,
            cores=0,
            index=1,
            mode="",
            healthy=False,
            info={"qos": "", "model": "", "link_zone": 0},
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[",
        "[3]",
        "[null]",
        json.dumps([{**CARD, "uuid": ""}]),
        json.dumps([{"totalDevCount": 16}]),
        json.dumps([{**CARD, "uuid": "a,b"}]),
        json.dumps([{**CARD, "totalVRam": -1}]),
        json.dumps([{**CARD, "totalVRam": 2**31}]),
        json.dumps([{**CARD, "totalCompute": "100"}]),
        "[" * 100_000,
    ],
)
def test_unreadable_cards(text):
    with pytest.raises(MalformedInput, match=f"^{KEY}: expected a list of cards"):
        parse_cards(KEY, text, "Metax-SGPU")


def test_a_node_has_256_cards_at_most():
    assert len(cards(*[CARD] * 256)) == 256
    with pytest.raises(MalformedInput, match="257 devices, expected at most 256 devices on a node"):
        cards(*[{}] * 257)


@pytest.mark.parametrize("missing", ["totalDevCount", "totalCompute", "totalVRam"])
def test_a_healthy_card_of_which_nothing_can_be_taken(missing):
    broken = {key: value for key, value in CARD.items() if key != missing}
    with pytest.raises(
        MalformedInput, match=r"node-gpu-devices\[1\]: expected totalDevCount, .* above 0"
    ):
        cards({**CARD, "uuid": "GPU-1"}, broken)


@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*CARD]), inner),
    ).map(json.dumps)
)
def test_any_text_is_cards_or_malformed(text):
    try:
        found = parse_cards(KEY, text, "Metax-SGPU")
    except MalformedInput:
        return
    assert all(device.uuid for device in found)


@cases(
    "containers, text",
    ("one", ((Share("a", "Metax-SGPU", 4096, 60),),), '[[{"uuid":"a","compute":60,"vRam":4096}]]'),
    (
        "without zeros",
        ((), (Share("a", "Metax-SGPU", 4096, 0), Share("b", "Metax-SGPU", 0, 60))),
        '[[],[{"uuid":"a","vRam":4096},{"uuid":"b","compute":60}]]',
    ),
    ("none", (), "[]"),
)
def test_allocated(containers, text):
    assert render_allocated(containers) == text


@cases(
    "text, table",
    ('{"1": 100, "2": 200}', {1: 100, 2: 200}),
    ("{}", {}),
    (None, None),
    ("", None),
    ("[1]", None),
    ('{"x": 1}', None),
    ('{"1": "x"}', None),
    ('{"1": 2147483648}', None),
    (f'{{"1": 1{"0" * 400}}}', None),
    ("{" * 100_000, None),
)
def test_topology(text, table):
    assert parse_topology(text) == table
