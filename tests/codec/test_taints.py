"""Taints of nodes and tolerations of pods."""

import json

import pytest

from hami.codec.objects import parse_node
from hami.codec.pods import parse_pod
from hami.codec.taints import MAX_BYTES
from hami.errors import MalformedInput
from hami.model import Taint, Toleration
from testing.cases import cases


def pod_with(tolerations):
    spec = {"tolerations": tolerations}
    return parse_pod(json.dumps({"metadata": {"name": "p"}, "spec": spec}).encode())


def test_taints_that_only_deter_are_left_out():
    taints = [
        {"key": "a", "effect": "NoSchedule", "timeAdded": "2026-11-30T00:00:00Z"},
        {"key": "b", "value": "x", "effect": "NoExecute"},
        {"key": "c", "effect": "PreferNoSchedule"},
    ]
    document = {"metadata": {"name": "n"}, "spec": {"taints": taints}}
    node = parse_node(json.dumps(document).encode())
    assert node.taints == (Taint("a", "", "NoSchedule"), Taint("b", "x", "NoExecute"))


@cases(
    "tolerations, found",
    ("none", [], ()),
    ("null", None, ()),
    ("one of all taints", [{"operator": "Exists"}], (Toleration("", "Exists"),)),
    (
        "one value",
        [{"key": "a", "value": "x", "effect": "NoSchedule"}],
        (Toleration("a", "", "x", "NoSchedule"),),
    ),
    ("for a while", [{"key": "a", "tolerationSeconds": 300}], (Toleration("a"),)),
    ("of no effect here", [{"key": "a", "effect": "PreferNoSchedule"}], ()),
)
def test_tolerations(tolerations, found):
    assert pod_with(tolerations).tolerations == found


def test_too_many_tolerations_are_not_kept():
    """A tenant writes them, and they stay in memory."""
    toleration = {"key": "a", "operator": "Exists"}
    size = len(json.dumps(toleration)) + 2
    assert pod_with([toleration] * (MAX_BYTES // size)).tolerations
    assert pod_with([toleration] * (MAX_BYTES // size + 2)).tolerations == ()


def test_tolerations_that_cannot_be_read():
    with pytest.raises(MalformedInput, match="tolerations of a pod: "):
        pod_with([{"key": 1}])
