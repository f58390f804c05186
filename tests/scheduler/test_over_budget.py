"""Admission of pods whose namespace has used its budget of GPU-hours."""

import base64
import json

import pytest

from hami.codec.admission import Review, render_allowed
from hami.codec.gpu_hours import GpuHours, window_of
from hami.codec.keys import OVER_BUDGET
from hami.codec.objects import PriorityClass
from hami.codec.usage_sums import HOUR_S
from hami.model import ScopeRequirement
from hami.scheduler.admit import Admitted, Admitter, Denied
from hami.scheduler.over_budget import OverBudget
from hami.scheduler.settings import DEMOTE, REFUSE, WARN, Settings
from hami.scheduling.gpu_hours import BudgetUse
from testing.builders import ONLY_NVIDIA, quota
from testing.cases import cases
from testing.replicas import Clock, Replica, WatchedCluster

USED = (
    "namespace team has used 12.5 of the 10 GPU-hours of its budget for the week that ends at "
    "2026-12-07T00:00:00Z"
)
LOW = PriorityClass(value=-10)
GPUS = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def use_of(namespace, milli=12_500):
    if namespace != "team":
        return None
    window = window_of("week", 1_796_000_000)
    return BudgetUse(
        namespace=namespace, hours=GpuHours(10_000, "week"), window=window, share_s=milli * HOUR_S
    )


def raw(container=GPUS, **spec):
    return {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", **container}], **spec},
    }


def admit(
    pod, action, priority_class=LOW, *, namespace="team", use_of=use_of, quotas=(), mirror=False
):
    """Returns the answer, and the operations of its patch by path."""
    replica = Replica(WatchedCluster(), Clock(), vendors=ONLY_NVIDIA)
    for each in quotas:
        replica.cache.quotas.upsert(each)
    over_budget = OverBudget(
        use_of=use_of, action=action, class_name="low", priority_class=lambda: priority_class
    )
    admitter = Admitter(replica.cache.admissions, Settings(), over_budget)
    groups = ("system:nodes",) if mirror else ()
    review = Review("u", namespace, pod, "v1", "AdmissionReview", groups=groups)
    answer = admitter.admit(review)
    if isinstance(answer, Denied):
        return answer, {}
    response = json.loads(render_allowed(review, answer.pod))["response"]
    patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
    return answer, {operation["path"]: operation for operation in patch}


FILLED = {"priority": 1000, "preemptionPolicy": "PreemptLowerPriority"}
"""What the API server has filled in before it asks webhooks."""


@cases(
    "spec, former",
    ({"priorityClassName": "high", **FILLED}, " in place of high"),
    ({**FILLED}, ""),
    ({}, ""),
)
def test_a_pod_gets_the_class_and_no_priority(spec, former):
    answer, patch = admit(raw(**spec), DEMOTE)
    text = f"{USED}: the pod has the priority class low{former}"
    assert answer.warnings == (text,)
    assert answer.pod["metadata"]["annotations"][OVER_BUDGET] == text
    assert patch["/spec/priorityClassName"]["value"] == "low"
    removed = {path for path, operation in patch.items() if operation["op"] == "remove"}
    assert removed == {f"/spec/{name}" for name in spec.keys() - {"priorityClassName"}}


@cases(
    "spec, priority_class, warning",
    ("a lower class", {"priorityClassName": "lowest", "priority": -11}, LOW, USED),
    ("the same priority", {"priorityClassName": "low", "priority": -10}, LOW, USED),
    (
        "the class is missing",
        FILLED,
        None,
        f"{USED}; priority class low does not exist",
    ),
)
def test_a_pod_keeps_its_class(spec, priority_class, warning):
    answer, patch = admit(raw(**spec), DEMOTE, priority_class)
    assert answer.warnings == (warning,)
    assert [path for path in patch if "riority" in path or "preemption" in path] == []
    assert OVER_BUDGET not in answer.pod["metadata"].get("annotations", {})


def test_a_pod_is_refused_in_one_sentence():
    answer, _ = admit(raw(), REFUSE)
    assert answer == Denied(f"{USED}: no more pods with devices are admitted until then", 403)


def test_a_warning_changes_nothing():
    answer, patch = admit(raw(**FILLED), WARN)
    assert answer.warnings == (USED,)
    assert patch.keys() == admit(raw(**FILLED), WARN, namespace="other")[1].keys()


@pytest.mark.parametrize("action", [WARN, DEMOTE, REFUSE])
@cases(
    "pod, options",
    ("no devices", raw({}), {}),
    ("another namespace", raw(), {"namespace": "other"}),
    ("not all is used", raw(), {"use_of": lambda name: use_of(name, 9_999)}),
    ("of another scheduler", raw(schedulerName="volcano"), {}),
    (
        "a mirror pod",
        raw() | {"metadata": {"name": "p", "annotations": {"kubernetes.io/config.mirror": "x"}}},
        {"mirror": True},
    ),
)
def test_other_pods_come_as_they_are(pod, options, action):
    pod["spec"] |= FILLED
    answer, patch = admit(pod, action, **options)
    assert isinstance(answer, Admitted)
    assert "/spec/priorityClassName" not in patch
    assert [text for text in answer.warnings if "budget" in text] == []


def test_quotas_count_the_pod_with_its_new_class():
    scopes = [ScopeRequirement("PriorityClass", "In", ("low",))]
    quotas = [quota(namespace="team", gpu=0, scopes=scopes)]
    pod = raw(priorityClassName="high", **FILLED)
    assert isinstance(admit(pod, WARN, quotas=quotas)[0], Admitted)
    assert isinstance(admit(pod, DEMOTE, quotas=quotas)[0], Denied)
