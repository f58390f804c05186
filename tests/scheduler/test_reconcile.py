"""What is to be done about a pod, row by row."""

from dataclasses import replace

import pytest

from hami.cache.pods import PodRecord
from hami.scheduler.reconcile import Annotate, Label, PodRules, Warn, pod_moves
from tests.builders import NVIDIA, ONLY_NVIDIA, pod
from tests.vendors.chart import CHART

NOW = 10_000.0
RULES = PodRules(vendors=ONLY_NVIDIA, scheduler_name="hami-scheduler", force_overwrite=True, allocation_timeout=300.0)


def record(**fields):
    """A pod of ours that is bound and runs with what it was given."""
    return PodRecord(**{
        "ref": pod().ref, "version": 7, "node": "n1", "scheduler_name": "hami-scheduler",
        "assigned_node": "n1", "label": "n1",
        "phase": "Running", "bind_phase": "success", "allocating": fields.get("bind_phase") == "allocating",
        "assigned_at": int(NOW) - 1000, "bound_at": int(NOW) - 1000, "requests_devices": True, "terminated": False,
        "seen_at": 0.0} | fields)


STUCK = {"phase": "Pending", "bind_phase": "allocating"}
UNBOUND = {"node": "", "label": None, "phase": "Pending", "bind_phase": ""}
LONG = {"node": "n" * 64, "assigned_node": "n" * 64}
SLIPPED = UNBOUND | {"assigned_node": "", "scheduler_name": "default-scheduler"}


@pytest.mark.parametrize(("fields", "rules", "moves"), [
    ({}, {}, []),
    (STUCK, {}, [Annotate]),
    (STUCK | {"allocating": False}, {}, []),
    (STUCK | {"bound_at": int(NOW) - 300}, {}, []),
    (STUCK | {"bound_at": int(NOW) - 301}, {}, [Annotate]),
    (STUCK | {"phase": "Running"}, {}, []),
    ({"label": None}, {}, [Label]),
    ({"label": "earlier"}, {}, [Label]),
    (LONG | {"label": None}, {}, []),
    (LONG | {"label": "earlier"}, {}, [Label]),
    ({"label": None, "assigned_node": ""}, {}, []),
    ({"label": None, "assigned_node": "another"}, {}, []),
    (STUCK | {"label": None}, {}, [Annotate, Label]),
    ({"problems": ("broken",)}, {}, [Warn]),
    (STUCK | {"terminated": True, "problems": ("broken",)}, {}, []),
    (UNBOUND, {}, [Annotate]),
    (UNBOUND | {"assigned_at": int(NOW) - 120}, {}, []),
    (UNBOUND | {"assigned_at": 0}, {}, [Annotate]),
    (UNBOUND | {"assigned_node": ""}, {}, []),
    (UNBOUND | {"scheduler_name": "volcano"}, {}, []),
    (SLIPPED, {}, [Warn]),
    (SLIPPED | {"scheduler_name": ""}, {}, [Warn]),
    (SLIPPED | {"scheduler_name": "volcano"}, {}, []),
    (SLIPPED | {"requests_devices": False}, {}, []),
    (SLIPPED, {"force_overwrite": False}, []),
    (SLIPPED | {"node": "n1"}, {}, [])],
    ids=["runs", "stuck", "of a vendor whose agent never says", "not yet stuck", "just stuck",
         "runs though allocating", "no label", "stale label", "no label value", "stale label and no label value",
         "foreign", "bound to another node than was assigned", "stuck without label", "unreadable",
         "over", "stale promise", "fresh promise", "forged promise", "waits", "of another scheduler", "slipped",
         "slipped without name", "meant for another", "asks nothing", "we do not overwrite", "slipped and bound"])
def test_what_is_done(fields, rules, moves):
    assert [type(move) for move in pod_moves(record(**fields), replace(RULES, **rules), NOW)] == moves


def test_an_allocation_that_takes_too_long_is_failed():
    (move,) = pod_moves(record(**STUCK), RULES, NOW)
    assert move.version == "7" and dict(move.annotations) == {NVIDIA.to_allocate: "", "hami.io/bind-phase": "failed"}
    assert "has not allocated the devices within 300 s" in move.message


def test_a_stale_promise_is_removed_whole():
    (move,) = pod_moves(record(**UNBOUND), RULES, NOW)
    assert move.version == "7" and dict(move.annotations) == dict.fromkeys((
        "hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-phase", "hami.io/bind-time", NVIDIA.to_allocate,
        NVIDIA.allocated, "hami.io/vgpu-mig-allocations"))
    assert dict(move.labels) == {"hami.io/vgpu-node": None}


def test_what_was_written_for_the_vendors_agent_goes_too_and_nothing_of_other_vendors():
    (move,) = pod_moves(record(**UNBOUND, vendors=("MLU",)), replace(RULES, vendors=CHART), NOW)
    cleared = dict(move.annotations)
    assert cleared["CAMBRICON_DSMLU_PROFILE"] is None and cleared["CAMBRICON_DSMLU_ASSIGNED"] is None
    assert not {"assigned-containers", "predicate-time", "AWS_NEURON_IDS"} & cleared.keys()


def test_a_pod_that_slipped_past_the_webhook_learns_why_it_waits():
    (move,) = pod_moves(record(**SLIPPED), RULES, NOW)
    assert move.reason == "NotAdmitted" and "default-scheduler instead of hami-scheduler" in move.message
