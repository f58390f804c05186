"""Pods whose devices the kubelet has forgotten."""

from dataclasses import replace

import pytest
from pytest import param

from hami.node.checkpoint import CheckpointEntry
from hami.plugin.lost_checkpoint import LostCheckpoint
from testing.plugin_stage import GPU, NVIDIA, A, Events, asking, placed, share


def running(name, *, count=1, **fields):
    made = placed(asking(count=count), name=name, shares=[[share(A)]] if count else [[]])
    return replace(made, ref=replace(made.ref, uid=name), **{"phase": "Running", **fields})


def entry(uid, resource=GPU):
    return CheckpointEntry(uid, "c", resource, {"-1": [f"{A}-0"]})


def told(pods, *checkpoints):
    events, left = Events(), list(checkpoints)
    checks = LostCheckpoint(lambda: pods, lambda: left.pop(0), GPU, NVIDIA, events)
    for _ in checkpoints:
        checks.check()
    return [(subject, reason) for subject, _, reason, _ in events.recorded]


@pytest.mark.parametrize(
    "pods, entries, names",
    [
        param([running("a"), running("b")], [entry("a")], ["default/b"], id="one is forgotten"),
        param([running("a")], [entry("a", "x/y")], ["default/a"], id="known of another resource"),
        param([running("a")], [entry("a")], [], id="known"),
        param([running("a", phase="Pending")], [], [], id="has not started"),
        param([running("a", phase="Failed")], [], [], id="has ended"),
        param([running("a", deleting=True)], [], [], id="ends"),
        param([running("a", count=0)], [], [], id="has no devices"),
        param([running("a")], None, [], id="there is no checkpoint"),
        param(None, [], [], id="the pods are not known"),
    ],
)
def test_running_pods_that_the_checkpoint_lacks_are_told(pods, entries, names):
    assert told(pods, entries) == [(name, "DevicesForgotten") for name in names]


def test_a_pod_is_told_once():
    assert told([running("a")], [], [], []) == [("default/a", "DevicesForgotten")]
