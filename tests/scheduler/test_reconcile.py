"""The moves for a pod, one row for each state."""

from dataclasses import replace

import pytest

from hami.scheduler.reconcile import pod_moves
from hami.scheduler.settings import Settings
from hami.state.read_pod import PodRecord
from hami.state.sighting import OBSERVED_S, Sighting
from testing.builders import NVIDIA, ONLY_NVIDIA, pod
from testing.vendor_chart import CHART

NOW = 10_000.0
SETTINGS = Settings()


def record(**fields):
    """The record of a bound pod of ours that runs with its devices."""
    return PodRecord(
        **{
            "ref": pod().ref,
            "version": 7,
            "node": "n1",
            "scheduler_name": "hami-scheduler",
            "assigned_node": "n1",
            "label": "n1",
            "phase": "Running",
            "bind_phase": "success",
            "allocating": fields.get("bind_phase") == "allocating",
            "assigned_at": 1,
            "assigned": Sighting(NOW - 1000),
            "bound_at": 1,
            "bound": Sighting(NOW - 1000),
            "most_shares": {"NVIDIA": 1},
            "terminated": False,
            "seen_at": 0.0,
        }
        | fields
    )


STUCK = {"phase": "Pending", "bind_phase": "allocating"}
UNBOUND = {"node": "", "label": None, "phase": "Pending", "bind_phase": ""}
LONG = {"node": "n" * 64, "assigned_node": "n" * 64}
SLIPPED = UNBOUND | {"assigned_node": "", "scheduler_name": "default-scheduler"}


@pytest.mark.parametrize(
    ("fields", "settings", "reasons"),
    [
        ({}, {}, []),
        (STUCK, {}, ["AllocationExpired"]),
        (STUCK | {"allocating": False}, {}, []),
        (STUCK | {"bound": Sighting(NOW - 300)}, {}, []),
        (STUCK | {"bound": Sighting(NOW - 301)}, {}, ["AllocationExpired"]),
        (STUCK | {"bound": Sighting(NOW - OBSERVED_S, 300)}, {}, ["AllocationExpired"]),
        (STUCK | {"bound": Sighting(NOW - OBSERVED_S + 1, 300)}, {}, []),
        (STUCK | {"bound": Sighting(NOW - OBSERVED_S, 290)}, {}, []),
        (STUCK | {"bound": Sighting(NOW - 301, -3600)}, {}, ["AllocationExpired"]),
        (STUCK | {"phase": "Running"}, {}, []),
        ({"label": None}, {}, [""]),
        ({"label": "earlier"}, {}, [""]),
        (LONG | {"label": None}, {}, []),
        (LONG | {"label": "earlier"}, {}, [""]),
        ({"label": None, "assigned_node": ""}, {}, []),
        ({"label": None, "assigned_node": "another"}, {}, []),
        (STUCK | {"label": None}, {}, ["AllocationExpired", ""]),
        ({"problems": ("broken",)}, {}, ["AllocationUnreadable"]),
        (STUCK | {"terminated": True, "problems": ("broken",)}, {}, []),
        (UNBOUND, {}, ["AssignmentCleared"]),
        (UNBOUND | {"assigned": Sighting(NOW - 120)}, {}, []),
        (UNBOUND | {"assigned_at": 0}, {}, ["AssignmentCleared"]),
        (UNBOUND | {"assigned_node": ""}, {}, []),
        (UNBOUND | {"scheduler_name": "volcano"}, {}, []),
        (UNBOUND | {"scheduler_name": "hami-scheduler-claims"}, {}, ["AssignmentCleared"]),
        (SLIPPED, {}, ["NotAdmitted"]),
        (SLIPPED | {"scheduler_name": ""}, {}, ["NotAdmitted"]),
        (SLIPPED | {"scheduler_name": "volcano"}, {}, []),
        (SLIPPED | {"most_shares": {}}, {}, []),
        (SLIPPED, {"force_overwrite_default_scheduler": False}, []),
        (SLIPPED | {"node": "n1"}, {}, []),
    ],
    ids=[
        "runs",
        "stuck",
        "of a vendor without bind phase",
        "not yet stuck",
        "just stuck",
        "stuck before we started",
        "stuck before we started, which we just did",
        "bound before we started",
        "stuck, and from the future",
        "runs though allocating",
        "no label",
        "stale label",
        "no label value",
        "stale label and no label value",
        "foreign",
        "bound to another node than was assigned",
        "stuck without label",
        "unreadable",
        "terminated",
        "stale assignment",
        "fresh assignment",
        "assignment without time",
        "waits",
        "of another scheduler",
        "stale assignment of a pod with a claim",
        "not admitted",
        "not admitted, without scheduler",
        "not admitted, of another scheduler",
        "requests no device",
        "no overwriting",
        "not admitted, but bound",
    ],
)
def test_moves_for_a_pod(fields, settings, reasons):
    found = pod_moves(record(**fields), ONLY_NVIDIA, replace(SETTINGS, **settings), NOW)
    assert [move.reason for move in found] == reasons


def test_an_allocation_that_takes_too_long_fails():
    (move,) = pod_moves(record(**STUCK), ONLY_NVIDIA, SETTINGS, NOW)
    assert move.version == "7"
    assert dict(move.annotations) == {
        NVIDIA.annotations.to_allocate: "",
        "hami.io/bind-phase": "failed",
    }
    assert "has not allocated the devices within 300 s" in move.message


def test_a_stale_assignment_is_removed_completely():
    (move,) = pod_moves(record(**UNBOUND), ONLY_NVIDIA, SETTINGS, NOW)
    assert move.version == "7"
    assert dict(move.annotations) == dict.fromkeys(
        (
            "hami.io/vgpu-node",
            "hami.io/vgpu-time",
            "hami.io/bind-phase",
            "hami.io/bind-time",
            NVIDIA.annotations.to_allocate,
            NVIDIA.annotations.allocated,
            "hami.io/vgpu-mig-allocations",
            "hami.io/vgpu-devices-resized",
            "hami.io/vgpu-devices-target",
            "hami.io/resize-status",
            "hami.io/resize-applied",
        )
    )
    assert dict(move.labels) == {"hami.io/vgpu-node": None}


def test_keys_of_the_vendors_agent_are_removed_and_none_of_other_vendors():
    (move,) = pod_moves(record(**UNBOUND, vendors=("MLU",)), CHART, SETTINGS, NOW)
    cleared = dict(move.annotations)
    assert cleared["CAMBRICON_DSMLU_PROFILE"] is None
    assert cleared["CAMBRICON_DSMLU_ASSIGNED"] is None
    assert not {"assigned-containers", "predicate-time", "AWS_NEURON_IDS"} & cleared.keys()


def test_a_pod_that_was_not_admitted_gets_the_reason():
    (move,) = pod_moves(record(**SLIPPED), ONLY_NVIDIA, SETTINGS, NOW)
    assert move.reason == "NotAdmitted"
    assert "default-scheduler instead of hami-scheduler" in move.message


@pytest.mark.parametrize(
    ("fields", "label"), [({"label": None}, "n1"), (LONG, None)], ids=["missing", "invalid"]
)
def test_a_label_is_written_whatever_the_version(fields, label):
    (move,) = pod_moves(record(**fields), ONLY_NVIDIA, SETTINGS, NOW)
    assert (move.annotations, move.labels, move.version) == ({}, {"hami.io/vgpu-node": label}, "")


@pytest.mark.parametrize(
    "fields", [{"problems": ("broken",)}, SLIPPED], ids=["unreadable", "not admitted"]
)
def test_what_cannot_be_repaired_is_reported_only(fields):
    (move,) = pod_moves(record(**fields), ONLY_NVIDIA, SETTINGS, NOW)
    assert (move.annotations, move.labels) == ({}, {})
