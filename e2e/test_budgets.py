"""Budgets of namespaces in GPU-hours, with the API server's own admission of priorities and its policies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from hami.codec.keys import BIND_TIME, GPU_HOURS, OVER_BUDGET
from testing.accounts import binding, permitted, refused, wait_permitted
from testing.eventually import eventually
from testing.kube import ApiError
from testing.nodes import gpus
from testing.people import hami
from testing.pods import pod
from testing.priorities import is_admitted
from testing.recorded_usage import FLAGS, recorded, rights_to_record
from testing.sandbox import Sandbox
from testing.scheduler import Scheduler

BUDGET = "0.001/month"  # 3.6 s of one GPU
LOW, HIGH, LOWEST = "hami-low", "hami-high", "hami-lowest"
DEMOTE = {"over_budget": "demote", "over_budget_priority_class": LOW}
pytestmark = pytest.mark.usefixtures("rights")


@pytest.fixture(scope="module")
def rights(local: Any) -> Iterator[None]:
    with rights_to_record(local.kube):
        yield


@pytest.fixture(scope="module")
def classes(local: Any) -> Iterator[None]:
    """Priority classes: that of pods which exceed a budget, a higher one and a lower one."""
    for name, value in ((LOW, -10), (HIGH, 1000), (LOWEST, -20)):
        local.kube.create(priority_class(name, value))
    yield
    for name in (LOW, HIGH, LOWEST):
        local.kube.delete("PriorityClass", name)


def priority_class(name: str, value: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": "Never" if value < 0 else "PreemptLowerPriority",
    }


def annotate(sandbox: Sandbox, text: str | None) -> None:
    """Sets the budget of the sandbox's namespace."""
    patch = {"metadata": {"annotations": {GPU_HOURS: text}}}
    sandbox.kube.merge_patch("Namespace", sandbox.namespace, patch)


def told(sandbox: Sandbox, reason: str) -> str:
    """Returns the message of an event about the namespace, once there is one, while usage is recorded."""

    def message() -> str:
        recorded(sandbox, 0)
        for event in sandbox.kube.list("Event", sandbox.namespace):
            if event["involvedObject"]["kind"] == "Namespace" and event["reason"] == reason:
                return str(event["message"])
        return ""

    return eventually(message, f"an event {reason}", interval=1)


def exceed(sandbox: Sandbox) -> None:
    """Lets a pod use more than the budget, and returns when the scheduler has said so."""
    sandbox.add_gpu_nodes({"n0": gpus(4)})
    annotate(sandbox, BUDGET)
    sandbox.create(pod("before", gpu=1))
    sandbox.started(wait_for=1)
    bound = int(sandbox.annotations("before")[BIND_TIME])
    recorded(sandbox, bound + 4)
    told(sandbox, "BudgetExceeded")


def spec_of(sandbox: Sandbox, name: str) -> tuple[object, ...]:
    """Returns what a pod has of its priority."""
    spec = sandbox.kube.get("Pod", name, sandbox.namespace)["spec"]
    return spec.get("priorityClassName"), spec.get("priority"), spec.get("preemptionPolicy")


def with_class(item: dict[str, Any], name: str) -> dict[str, Any]:
    item["spec"]["priorityClassName"] = name
    return item


def admit(sandbox: Sandbox, name: str) -> None:
    """Creates a pod as soon as it is admitted."""

    def is_created() -> bool:
        with contextlib.suppress(ApiError):
            sandbox.create(pod(name, gpu=1, gpumem=1000))
            return True
        return False

    eventually(is_created, f"pod {name} is admitted", interval=1)


@pytest.mark.flags(**FLAGS, **DEMOTE)
@pytest.mark.usefixtures("classes")
def test_new_pods_get_the_priority_class(local: Any, sandbox: Sandbox) -> None:
    exceed(sandbox)
    demoted = (LOW, -10, "Never")
    sandbox.create(
        pod("plain", gpu=1, gpumem=1000),
        with_class(pod("high", gpu=1, gpumem=1000), HIGH),
        with_class(pod("lowest", gpu=1, gpumem=1000), LOWEST),
        with_class(pod("without", scheduler="nobody"), HIGH),
    )
    assert spec_of(sandbox, "plain") == demoted
    assert spec_of(sandbox, "high") == demoted
    assert spec_of(sandbox, "lowest") == (LOWEST, -20, "Never")
    assert spec_of(sandbox, "without") == (HIGH, 1000, "PreemptLowerPriority")
    assert (
        f"the pod has the priority class {LOW} in place of {HIGH}"
        in sandbox.annotations("high")[OVER_BUDGET]
    )
    sandbox.started(wait_for=4)
    said = hami(local.kubeconfig, "explain", "high", "-n", sandbox.namespace).text
    assert f"the pod has the priority class {LOW} in place of {HIGH}." in said
    assert "GPU-hours of the namespace's budget: " in said
    report = hami(local.kubeconfig, "usage", "-n", sandbox.namespace, "-o", "json").document
    (row,) = report["items"]
    assert row["budget"]["gpuHours"] == 0.001
    assert row["budget"]["usedGpuHours"] >= 0.001
    assert spec_of(sandbox, "before") == (None, 0, "PreemptLowerPriority")


@pytest.mark.flags(**FLAGS, **DEMOTE)
@pytest.mark.usefixtures("classes")
def test_without_the_class_pods_keep_their_priority(local: Any, sandbox: Sandbox) -> None:
    exceed(sandbox)
    with contextlib.ExitStack() as stack:
        local.kube.delete("PriorityClass", LOW)
        stack.callback(local.kube.create, priority_class(LOW, -10))
        probe = with_class(pod("probe", scheduler="nobody"), LOW)
        eventually(
            lambda: not is_admitted(local.kube, probe), "the API server knows that it is gone"
        )
        admit(sandbox, "kept")  # for some seconds, the webhook does not know that
        assert spec_of(sandbox, "kept") == (None, 0, "PreemptLowerPriority")


@pytest.mark.flags(**FLAGS, over_budget="refuse")
def test_new_pods_are_refused(sandbox: Sandbox) -> None:
    exceed(sandbox)
    with pytest.raises(ApiError) as refused:
        sandbox.create(pod("late", gpu=1))
    assert f"namespace {sandbox.namespace} has used " in refused.value.message
    assert "of the 0.001 GPU-hours of its budget for the month that ends" in refused.value.message
    annotate(sandbox, None)
    admit(sandbox, "late")


@pytest.mark.flags(**FLAGS)
def test_a_budget_that_cannot_be_read_is_an_event(sandbox: Sandbox, scheduler: Scheduler) -> None:
    annotate(sandbox, "many/week")
    message = told(sandbox, "BudgetUnreadable")
    assert "'many/week'" in message
    assert "such as 500/week" in message


@pytest.mark.installation
def test_who_writes_a_budget_needs_a_right(sandbox: Sandbox) -> None:
    """Whoever may edit a namespace may change its other annotations, and cannot set, change or remove the budget."""

    def edit(text: str | None, key: str = GPU_HOURS) -> tuple[object, ...]:
        patch = {"metadata": {"annotations": {key: text}}}
        return "Namespace", sandbox.namespace, patch

    with permitted(sandbox, "editor", "namespaces", "patch create delete") as editor:
        assert refused(editor.merge_patch, *edit(BUDGET)) == "hami-budgets"
        annotate(sandbox, BUDGET)
        assert refused(editor.merge_patch, *edit("9/day")) == "hami-budgets"
        assert refused(editor.merge_patch, *edit(None)) == "hami-budgets"
        editor.merge_patch(*edit("x", key="example.com/note"))
        fresh = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": f"{sandbox.namespace}-b", "annotations": {GPU_HOURS: BUDGET}},
        }
        assert refused(editor.create, fresh) == "hami-budgets"
        sandbox.kube.create(
            binding(
                sandbox,
                "editor",
                "hami-budget-writer",
                kind="ClusterRoleBinding",
                metadata={"name": f"budget-writer-{sandbox.namespace}"},
            )
        )
        wait_permitted(sandbox, editor, "write", "budgets", "hami.io")
        editor.merge_patch(*edit("9/day"))
        editor.merge_patch(*edit(None))
