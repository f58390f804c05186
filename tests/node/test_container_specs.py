"""CDI specifications of single containers."""

import json
import os
import re

import pytest

from hami.errors import HostError
from hami.node.container_specs import KIND, ContainerSpecs, device_name, render_grant, spec_names
from hami.node.grant import DeviceNode, Grant, Mount
from hami.node.host import MIN_AGE_S
from testing.cases import cases

NAME, OTHER = "0123456789abcdef", "f" * 16
NOW = 1_000_000.0
CARD = {
    "env": ["NVIDIA_VISIBLE_DEVICES=void"],
    "deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw"}],
    "mounts": [{"hostPath": "/lib.so", "containerPath": "/lib.so", "options": ["ro"]}],
    "hooks": [{"hookName": "createContainer", "path": "/hook"}],
}


@pytest.fixture
def specs(tmp_path):
    """An empty folder, at a fixed time."""
    return ContainerSpecs(tmp_path / "cdi", now=lambda: NOW)


def written(tmp_path, name=NAME, age=0.0):
    path = tmp_path / "cdi" / f"hami.io-container-{name}.json"
    if age:
        os.utime(path, (NOW - age, NOW - age))
    return path


def edits(document):
    (device,) = document["devices"]
    assert (document["kind"], device["name"]) == (KIND, NAME)
    return device["containerEdits"]


def test_the_kind_does_not_crash_containerd():
    assert all(len(part) > 1 for part in KIND.split("/"))
    assert re.fullmatch(r"[a-z][a-z0-9.]*[a-z0-9]/[a-z][a-z0-9]*", KIND)


def test_a_grant_is_rendered_in_full():
    mounts = (
        Mount(container_path="/c", host_path="/h", read_only=True),
        Mount(container_path="/d", host_path="/i"),
        Mount(container_path="/e", host_path="/j", is_data=True),
    )
    grant = Grant(
        env={"A": "1", "B": "x=y"},
        mounts=mounts,
        devices=(DeviceNode(container_path="/dev/a", host_path="/host/dev/a", permissions="r"),),
    )
    assert render_grant(NAME, grant)["cdiVersion"] == "0.5.0"
    assert edits(render_grant(NAME, grant)) == {
        "env": ["A=1", "B=x=y"],
        "deviceNodes": [{"path": "/dev/a", "hostPath": "/host/dev/a", "permissions": "r"}],
        "mounts": [
            {"hostPath": "/h", "containerPath": "/c", "options": ["ro", "rbind", "rprivate"]},
            {"hostPath": "/i", "containerPath": "/d", "options": ["rw", "rbind", "rprivate"]},
            {
                "hostPath": "/j",
                "containerPath": "/e",
                "options": ["rw", "rbind", "rprivate", "noexec", "nosuid", "nodev"],
            },
        ],
    }


def test_edits_of_devices_are_merged_once():
    found = edits(
        render_grant(NAME, Grant(env={"NVIDIA_VISIBLE_DEVICES": "GPU-a", "A": "1"}), [CARD, CARD])
    )
    assert found == CARD | {"env": ["NVIDIA_VISIBLE_DEVICES=void", "A=1"]}


@cases(
    "device, names",
    (device_name(NAME), [NAME]),
    ("nvidia.com/gpu=all", []),
    (f"{KIND}={NAME}x", []),
    (f"{KIND}=../../etc/x", []),
    (f"{KIND}={NAME.upper()}", []),
    (NAME, []),
)
def test_only_our_own_names_are_recognized(device, names):
    assert spec_names([device]) == names


def test_an_unchanged_file_is_not_written(specs, tmp_path):
    specs.write(NAME, {"a": 1})
    before = written(tmp_path).stat()
    specs.write(NAME, {"a": 1})
    assert written(tmp_path).stat().st_ino == before.st_ino
    assert before.st_mode & 0o777 == 0o644
    specs.write(NAME, {"a": 2})
    assert json.loads(written(tmp_path).read_text()) == {"a": 2}
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == [written(tmp_path).name]


def test_what_a_killed_process_has_left_is_removed_when_it_is_old(specs, tmp_path):
    folder = tmp_path / "cdi"
    specs.write(NAME, {})
    old, new, foreign = (
        folder / f".hami.io-container-{NAME}.json.abcdefgh",
        folder / f".hami.io-container-{OTHER}.json.abcdefgh",
        folder / f".other-{NAME}.json.abcdefgh",
    )
    for path in (old, new, foreign):
        path.touch()
        os.utime(path, (0, 0))
    os.utime(new)
    specs.remove_leftovers()
    assert set(folder.iterdir()) == {new, foreign, written(tmp_path, NAME)}


def test_only_unused_old_files_of_ours_are_removed(specs, tmp_path):
    folder = tmp_path / "cdi"
    assert specs.names() == frozenset()
    for name in (NAME, OTHER, "1" * 16):
        specs.write(name, {})
    for name in (NAME, OTHER):
        written(tmp_path, name, MIN_AGE_S + 1)
    foreign = [
        "nvidia.json",
        f"hami.io-container-{NAME}.yaml",
        "hami.io-container-x.json",
        "hami.json",
    ]
    for name in foreign:
        (folder / name).touch()
        os.utime(folder / name, (0, 0))
    assert specs.names() == {NAME, OTHER, "1" * 16}
    assert specs.sweep(specs.names(), {OTHER}) == [NAME]
    assert specs.sweep({"2" * 16}, ()) == [], "another process has removed it"
    assert {path.name for path in folder.iterdir()} == {
        *foreign,
        written(tmp_path, OTHER).name,
        written(tmp_path, "1" * 16).name,
    }


@cases(
    "call",
    ("write", lambda specs: specs.write(NAME, {})),
    ("list", lambda specs: specs.names()),
    ("sweep", lambda specs: specs.sweep({NAME}, ())),
)
def test_a_folder_that_cannot_be_used_is_named(specs, tmp_path, call):
    (tmp_path / "cdi").write_text("no folder")
    with pytest.raises(HostError, match="cdi"):
        call(specs)
