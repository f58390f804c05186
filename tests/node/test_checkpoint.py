"""The kubelet's checkpoint of devices."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.errors import HostError
from hami.node import checkpoint
from hami.node.checkpoint import CHECKPOINT, read_checkpoint
from testing.cases import cases

ENTRY = {"PodUID": "u-1", "ContainerName": "c", "ResourceName": "nvidia.com/gpu"}
TEXTS = st.text(max_size=8)


def wire(*entries):
    """A checkpoint as the kubelet writes it."""
    return json.dumps(
        {"Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": {}}, "Checksum": 1}
    )


@pytest.fixture
def read(tmp_path):
    """Reads a checkpoint with this text."""

    def read(text):
        (tmp_path / CHECKPOINT).write_text(text)
        return read_checkpoint(tmp_path / CHECKPOINT)

    return read


@cases(
    "fields, ids, answer",
    (
        "by NUMA node",
        {"DeviceIDs": {"0": ["a"], "-1": ["b", "c"]}, "AllocResp": "EgA="},
        {"a", "b", "c"},
        b"\x12\0",
    ),
    ("before 1.20", {"DeviceIDs": ["a"]}, {"a"}, None),
    ("nulls", {"DeviceIDs": {"0": None}, "AllocResp": None}, set(), None),
    ("nothing", {}, set(), None),
)
def test_an_entry(read, fields, ids, answer):
    (found,) = read(wire(ENTRY | fields))
    assert (found.pod_uid, found.container, found.resource, found.ids, found.answer) == (
        "u-1",
        "c",
        "nvidia.com/gpu",
        ids,
        answer,
    )


@cases(
    "text, says",
    ("cut short", '{"Data":', "truncated"),
    ("another form", wire({"PodUID": 1}), "Expected `str`"),
    ("answer that is not base64", wire(ENTRY | {"AllocResp": "EgA"}), "base64"),
    ("nested deeply", "[" * 100_000, ""),
    ("no text", "\ud800", ""),
)
def test_what_cannot_be_read(tmp_path, text, says):
    path = tmp_path / CHECKPOINT
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(HostError, match=f"the kubelet's checkpoint cannot be read: {path}.*{says}"):
        read_checkpoint(path)


def test_a_missing_file_is_no_error(tmp_path):
    assert read_checkpoint(tmp_path / CHECKPOINT) is None


def test_a_directory_is_an_error(tmp_path):
    with pytest.raises(HostError, match="Is a directory"):
        read_checkpoint(tmp_path)


def test_the_size_is_bounded(read, monkeypatch):
    text = wire(ENTRY)
    monkeypatch.setattr(checkpoint, "MAX_BYTES", len(text))
    assert len(read(text)) == 1
    with pytest.raises(HostError, match=f"larger than {len(text)} bytes"):
        read(text + " ")


@given(
    st.lists(
        st.tuples(
            TEXTS, TEXTS, TEXTS, st.dictionaries(TEXTS, st.lists(TEXTS)), st.binary(max_size=20)
        )
    )
)
def test_all_entries_of_a_kubelet_are_read(tmp_path_factory, entries):
    path = tmp_path_factory.mktemp("kubelet") / CHECKPOINT
    path.write_text(
        wire(
            *(
                {
                    "PodUID": uid,
                    "ContainerName": container,
                    "ResourceName": resource,
                    "DeviceIDs": ids,
                    "AllocResp": base64.b64encode(answer).decode(),
                }
                for uid, container, resource, ids, answer in entries
            )
        )
    )
    assert [
        (one.pod_uid, one.container, one.resource, one.ids, one.answer)
        for one in read_checkpoint(path)
    ] == [
        (uid, container, resource, {one for some in ids.values() for one in some}, answer)
        for uid, container, resource, ids, answer in entries
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(("Data", "PodDeviceEntries", "PodUID", "DeviceIDs", "x")), inner
        )
    ),
)


@given(
    JSON.map(json.dumps)
    | st.text()
    | JSON.map(lambda value: json.dumps({"Data": {"PodDeviceEntries": [value]}}))
)
def test_anything_is_read_or_an_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("kubelet") / CHECKPOINT
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        assert all(isinstance(one.ids, frozenset) for one in read_checkpoint(path))
    except HostError as error:
        assert str(path) in str(error)
