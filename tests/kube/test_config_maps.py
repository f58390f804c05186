"""The calls about ConfigMaps: what is sent, and what is made of the answers."""

import pytest

from hami.codec.config_maps import ConfigMapRecord
from hami.errors import Conflict, MalformedInput, NotFound
from hami.kube.config_maps import ConfigMaps
from tests.kube.test_cluster import BROKEN, REFUSED, ScriptedApi

PATH = "/api/v1/namespaces/hami-usage/configmaps"
STORED = {
    "metadata": {"namespace": "hami-usage", "name": "u", "resourceVersion": "7"},
    "data": {"usage": "text"},
}
RECORD = ConfigMapRecord(
    namespace="hami-usage", name="u", resource_version="7", data={"usage": "text"}
)


def talk(*answers):
    api = ScriptedApi(*answers)
    return api, ConfigMaps(api, sleep=lambda seconds: None)


def test_a_config_map_is_read():
    api, config_maps = talk(BROKEN, STORED, NotFound("no", 404))
    assert config_maps.config_map("hami-usage", "u") == RECORD
    assert config_maps.config_map("hami-usage", "x") is None
    assert [call[1] for call in api.calls] == [f"{PATH}/u", f"{PATH}/u", f"{PATH}/x"]


def test_a_config_map_without_data_is_empty():
    assert talk({"metadata": {"name": "u"}})[1].config_map("hami-usage", "u").data == {}


def test_a_config_map_that_cannot_be_read():
    with pytest.raises(MalformedInput):
        talk({"data": {"usage": 1}})[1].config_map("hami-usage", "u")


@pytest.mark.parametrize(
    ("version", "method", "path"),
    [("7", "PUT", f"{PATH}/u"), ("", "POST", PATH)],
    ids=["replaced", "created"],
)
def test_a_config_map_is_replaced_if_its_version_is_the_one_that_was_read(version, method, path):
    api, config_maps = talk(REFUSED, STORED)
    record = ConfigMapRecord(
        namespace="hami-usage", name="u", resource_version=version, data={"usage": "text"}
    )
    assert config_maps.write_config_map(record, {"a": "b"}) == RECORD
    sent_method, sent_path, _, body, _ = api.calls[-1]
    assert (sent_method, sent_path) == (method, path)
    assert body["metadata"].get("resourceVersion", "") == version
    assert body["metadata"]["labels"] == {"a": "b"}
    assert body["data"] == {"usage": "text"}


def test_a_write_that_may_have_arrived_is_not_repeated():
    with pytest.raises(Conflict):
        talk(Conflict("changed", 409))[1].write_config_map(RECORD, {})


def test_the_first_names_of_a_label():
    api, config_maps = talk({"metadata": {}, "items": [STORED, {"metadata": {"name": "v"}}]})
    assert config_maps.config_map_names("hami-usage", "a=b", 10) == ["u", "v"]
    assert api.queries == [{"labelSelector": "a=b", "limit": "10"}]


def test_a_config_map_is_deleted():
    api, config_maps = talk({})
    config_maps.delete_config_map("hami-usage", "u")
    assert api.calls[0][:2] == ("DELETE", f"{PATH}/u")
