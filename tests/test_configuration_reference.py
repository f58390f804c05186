"""The configuration reference says what the code reads."""

import re
from pathlib import Path

import msgspec
import pytest

from hami.codec.documents import struct_fields
from hami.errors import MalformedInput
from hami.plugin.settings import FLAGS, read_plugin_settings
from hami.scheduler.settings import Settings
from hami.scheduler.usual_pods import fixed_usual_pods
from hami.scheduling.usual_pods_file import UsualPodEntry
from testing.builders import ONLY_NVIDIA
from tools.configuration_reference import (
    MEANINGS,
    NODE_KEYS,
    USUAL_POD_KEYS,
    USUAL_PODS_EXAMPLE,
    VARIABLES,
    documented_keys,
    render,
)

ROOT = Path(__file__).parent.parent
KEYS = {field.encode_name for fields in documented_keys().values() for field in fields}


def test_every_key_that_is_read_is_explained_and_no_other():
    assert MEANINGS.keys() == KEYS


def test_every_key_of_the_shipped_file_is_one_that_is_read():
    shipped = (ROOT / "manifests" / "base" / "device-config.yaml").read_text()
    assert set(re.findall(r"^ +(?:- )?(\w+):", shipped, re.MULTILINE)) - {"device-config"} <= KEYS


def test_every_variable_of_the_code_is_named():
    text = render()
    code = "".join(path.read_text() for path in (ROOT / "hami").rglob("*.py"))
    read = set(re.findall(r'environ\.get\("(\w+)"', code)) - {
        "CONTENT_TYPE",
        "HTTP_ACCEPT",
        "HTTP_ACCEPT_ENCODING",
        "HTTP_HOST",
        "QUERY_STRING",
        "DISPLAY",
        "WAYLAND_DISPLAY",
    }
    read |= {name for flag in FLAGS.values() for name in flag.environment.split()}
    assert {name for name in read if f"`{name}`" not in text} == set()
    assert {name for name in VARIABLES if f'"{name}"' not in code} == set()


def test_every_key_of_a_usual_pod_is_explained_and_no_other():
    assert list(USUAL_POD_KEYS) == [field.encode_name for field in struct_fields(UsualPodEntry)]


def test_the_example_of_usual_pods_is_read(tmp_path):
    file = tmp_path / "usual.yaml"
    file.write_text(USUAL_PODS_EXAMPLE)
    kinds = fixed_usual_pods(Settings(usual_pods=str(file)), ONLY_NVIDIA)
    assert [kind.count for kind in kinds] == [1, 8]


@pytest.mark.parametrize("key", sorted(NODE_KEYS))
def test_keys_of_the_node_configuration_are_read(key, tmp_path):
    """What cannot be used is an error, so a key with it is one that is read."""
    file = tmp_path / "config.json"
    file.write_bytes(msgspec.json.encode({"nodeconfig": [{key: [True]}]}))
    with pytest.raises(MalformedInput):
        read_plugin_settings({"node": "n1", "node_config_file": str(file)}, {})
