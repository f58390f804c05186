"""The moves for a pod, one row for each state."""

from dataclasses import replace

from hami.scheduler.reconcile import pod_moves
from hami.scheduler.settings import Settings
from hami.state.read_pod import PodRecord
from hami.state.sighting import OBSERVED_S, Sighting
from testing.builders import NVIDIA, ONLY_NVIDIA, pod
from testing.cases import cases
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


@cases(
    "fields, settings, reasons",
    ("runs", {}, {}, []),
    ("stuck", STUCK, {}, ["AllocationExpired"]),
    ("of a vendor without bind phase", STUCK | {"allocating": False}, {}, []),
    ("not yet stuck", STUCK | {"bound": Sighting(NOW - 300)}, {}, []),
    ("just stuck", STUCK | {"bound": Sighting(NOW - 301)}, {}, ["AllocationExpired"]),
    (
        "stuck before we started",
        STUCK | {"bound": Sighting(NOW - OBSERVED_S, 300)},
        {},
        ["AllocationExpired"],
    ),
    (
        "stuck before we started, which we just did",
        STUCK | {"bound": Sighting(NOW - OBSERVED_S + 1, 300)},
        {},
        [],
    ),
    ("bound before we started", STUCK | {"bound": Sighting(NOW - OBSERVED_S, 290)}, {}, []),
    (
        "stuck, and from the future",
        STUCK | {"bound": Sighting(NOW - 301, -3600)},
        {},
        ["AllocationExpired"],
    ),
    ("runs though allocating", STUCK | {"phase": "Running"}, {}, []),
    ("no label", {"label": None}, {}, [""]),
    ("stale label", {"label": "earlier"}, {}, [""]),
    ("no label value", LONG | {"label": None}, {}, []),
    ("stale label and no label value", LONG | {"label": "earlier"}, {}, [""]),
    ("foreign", {"label": None, "assigned_node": ""}, {}, []),
    (
        "bound to another node than was assigned",
        {"label": None, "assigned_node": "another"},
        {},
        [],
    ),
    ("stuck without label", STUCK | {"label": None}, {}, ["AllocationExpired", ""]),
    ("unreadable", {"problems": ("broken",)}, {}, ["AllocationUnreadable"]),
    ("terminated", STUCK | {"terminated": True, "problems": ("broken",)}, {}, []),
    ("stale assignment", UNBOUND, {}, ["AssignmentCleared"]),
    ("fresh assignment", UNBOUND | {"assigned": Sighting(NOW - 120)}, {}, []),
    ("assignment without time", UNBOUND | {"assigned_at": 0}, {}, ["AssignmentCleared"]),
    ("waits", UNBOUND | {"assigned_node": ""}, {}, []),
    ("of another scheduler", UNBOUND | {"scheduler_name": "volcano"}, {}, []),
    (
        "stale assignment of a pod with a claim",
        UNBOUND | {"scheduler_name": "hami-scheduler-claims"},
        {},
        ["AssignmentCleared"],
    ),
    ("not admitted", SLIPPED, {}, ["NotAdmitted"]),
    ("not admitted, without scheduler", SLIPPED | {"scheduler_name": ""}, {}, ["NotAdmitted"]),
    ("not admitted, of another scheduler", SLIPPED | {"scheduler_name": "volcano"}, {}, []),
    ("requests no device", SLIPPED | {"most_shares": {}}, {}, []),
    ("no overwriting", SLIPPED, {"force_overwrite_default_scheduler": False}, []),
    ("not admitted, but bound", SLIPPED | {"node": "n1"}, {}, []),
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


@cases("fields, label", ("missing", {"label": None}, "n1"), ("invalid", LONG, None))
def test_a_label_is_written_whatever_the_version(fields, label):
    (move,) = pod_moves(record(**fields), ONLY_NVIDIA, SETTINGS, NOW)
    assert (move.annotations, move.labels, move.version) == ({}, {"hami.io/vgpu-node": label}, "")


@cases("fields", ("unreadable", {"problems": ("broken",)}), ("not admitted", SLIPPED))
def test_what_cannot_be_repaired_is_reported_only(fields):
    (move,) = pod_moves(record(**fields), ONLY_NVIDIA, SETTINGS, NOW)
    assert (move.annotations, move.labels) == ({}, {})
