"""The draft of a pod in admission: what its setters change in the object for the API server."""

import copy

import pytest

from hami.codec.pods import convert_pod
from hami.errors import MalformedInput
from hami.vendors.draft import PodDraft
from testing.builders import NVIDIA
from testing.cases import cases
from testing.vendor_chart import CHART

WIRE = {
    "metadata": {"name": "p", "annotations": {"team": "a"}},
    "spec": {
        "schedulerName": "ours",
        "runtimeClassName": "kata",
        "initContainers": [{"name": "i"}],
        "containers": [
            {
                "name": "c",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "resources": {
                    "limits": {"nvidia.com/gpu": "1"},
                    "requests": {"nvidia.com/gpu": "1"},
                },
            }
        ],
    },
}


def changed(change):
    """The pod after *change*, which gets the draft of WIRE and that of its app container."""
    draft, before = PodDraft(WIRE), copy.deepcopy(WIRE)
    change(draft, draft.containers[-1])
    after = draft.render()
    assert before == WIRE, "the pod that came in was changed"
    assert draft.changed().containers == convert_pod(after).containers
    return after


@cases(
    "change",
    ("nothing", lambda pod, container: None),
    ("annotation", lambda pod, container: pod.set_annotation("team", "a")),
    ("scheduler", lambda pod, container: pod.spec.set_scheduler("ours")),
    ("the pod's own runtime class", lambda pod, container: pod.spec.set_runtime_class("nvidia")),
    ("no runtime class", lambda pod, container: pod.spec.set_runtime_class("")),
    ("amount", lambda pod, container: container.set_amount("nvidia.com/gpu", 1)),
    ("variable", lambda pod, container: container.set_env("B", "2")),
)
def test_setting_what_is_there_changes_nothing(change):
    assert changed(change) is WIRE


def test_only_the_parts_that_change_are_copied():
    after = changed(lambda pod, container: container.set_limit("nvidia.com/gpucores", 100))
    assert after["metadata"] is WIRE["metadata"]
    assert after["spec"]["initContainers"] is WIRE["spec"]["initContainers"]
    (container,) = after["spec"]["containers"]
    assert container["env"] is WIRE["spec"]["containers"][0]["env"]
    assert container["resources"] == {
        "limits": {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"},
        "requests": {"nvidia.com/gpu": "1"},
    }


@cases(
    "change, fields",
    (
        "annotation",
        lambda pod: pod.set_annotation("k", "v"),
        {"metadata": {"name": "p", "annotations": {"team": "a", "k": "v"}}},
    ),
    (
        "scheduler",
        lambda pod: pod.spec.set_scheduler("other"),
        {"spec": WIRE["spec"] | {"schedulerName": "other"}},
    ),
)
def test_fields_of_the_pod(change, fields):
    assert changed(lambda pod, container: change(pod)) == WIRE | fields


def test_an_amount_that_is_requested_too_stays_equal_in_both():
    after = changed(lambda pod, container: container.set_amount("nvidia.com/gpu", 2))
    assert after["spec"]["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": "2"},
        "requests": {"nvidia.com/gpu": "2"},
    }


def test_vendors_see_the_changes_of_each_other():
    draft = PodDraft(WIRE)
    ours, theirs = (
        draft.containers[-1].seen_with(vendor.resources) for vendor in (NVIDIA, CHART["DCU"])
    )
    ours.set_limit("nvidia.com/gpumem", 5)
    ours.set_env("N", "1")
    theirs.set_env("A", "3")
    assert ours.given == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "5"}
    assert theirs.given == {}
    assert theirs.limits == ours.limits
    assert set(theirs.env) == {"N", "A"}
    assert draft.render()["spec"]["containers"][0]["env"] == [
        {"name": "B", "value": "2"},
        {"name": "N", "value": "1"},
        {"name": "A", "value": "3"},
    ]


@pytest.mark.parametrize("env", ["A=1", {"A": "1"}, ["A=1"], 3], ids=str)
def test_a_variable_cannot_be_set_in_what_is_no_list_of_variables(env):
    (container,) = PodDraft({"spec": {"containers": [{"name": "c", "env": env}]}}).containers
    with pytest.raises(MalformedInput, match="^env: expected a list of mappings"):
        container.set_env("A", "1")
