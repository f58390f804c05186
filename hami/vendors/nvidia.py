"""What only NVIDIA's devices need at admission."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hami.errors import MalformedInput
from hami.quantity import rounded_up
from hami.vendors.request import WHOLE, amounts, objection
from hami.vendors.spec import Admission, Vendor

__all__ = ["admission"]

Admit = Callable[[Vendor, Mapping[str, Any], Mapping[str, Any]], Admission]


def admission(*, default_count: int, overwrite_env: bool, core_policy: str, runtime_class: str) -> Admit:
    """NVIDIA's rules of admission under the given settings.

    A container that asks for memory, percent or cores alone gets *default_count* devices; one that asks for whole
    devices gets all their cores, so that nobody shares them.
    Raises (the returned function): MalformedInput in words for the pod's author.
    Source: HAMi v2.10, pkg/device/nvidia/device.go, MutateAdmission.
    """

    def admit(vendor: Vendor, pod_spec: Mapping[str, Any], container: Mapping[str, Any]) -> Admission:
        resources = container.get("resources") or {}
        limits, requests = _texts(resources.get("limits")), _texts(resources.get("requests"))
        given = amounts(vendor, limits, requests)
        name = str(container.get("name") or "")
        _check_percent(vendor, name, given.get(vendor.memory_percent))
        if problem := objection(vendor, name, given):
            raise MalformedInput(f"container {name}", problem, "amount", says=problem)

        added: dict[str, str] = {}
        if vendor.count not in given and given and default_count > 0:
            added[vendor.count] = str(default_count)
        found = vendor.count in given or vendor.count in added
        if found and vendor.cores and vendor.cores not in given and _wants_whole_devices(vendor, given):
            added[vendor.cores] = str(WHOLE)

        env: dict[str, str] = {}
        if vendor.priority in limits:
            env["CUDA_TASK_PRIORITY"] = str(_rounded(vendor.priority, name, limits[vendor.priority]))
        if core_policy not in ("", "default"):
            env["GPU_CORE_UTILIZATION_POLICY"] = core_policy
        if not found and overwrite_env:
            env["NVIDIA_VISIBLE_DEVICES"] = "none"
        wants_class = found and runtime_class and not pod_spec.get("runtimeClassName")
        return Admission(_changed(container, added, env), found,
                         {"runtimeClassName": runtime_class} if wants_class else {})

    return admit


def _check_percent(vendor: Vendor, container: str, text: str | None) -> None:
    if text is not None and not 0 <= (percent := _rounded(vendor.memory_percent, container, text)) <= WHOLE:
        raise _invalid(vendor.memory_percent, container, percent, "must be an integer between 0 and 100")


def _rounded(name: str, container: str, text: str) -> int:
    try:
        return rounded_up(text)
    except MalformedInput as error:
        raise _invalid(name, container, text, error.problem) from error


def _invalid(name: str, container: str, value: object, problem: str) -> MalformedInput:
    says = f"invalid {name} value {value} in container {container}: {problem}"
    return MalformedInput(name, value, problem, says)


def _wants_whole_devices(vendor: Vendor, given: Mapping[str, str]) -> bool:
    percent = given.get(vendor.memory_percent)
    return rounded_up(percent) == WHOLE if percent is not None else vendor.memory not in given


def _texts(quantities: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (quantities or {}).items() if value is not None}


def _changed(container: Mapping[str, Any], limits: Mapping[str, str], env: Mapping[str, str]) -> Mapping[str, Any]:
    """*container* with more limits and environment; itself when there is nothing to add."""
    changed = dict(container)
    if limits:
        resources = dict(container.get("resources") or {})
        changed["resources"] = resources | {"limits": {**(resources.get("limits") or {}), **limits}}
    if env:
        kept = [entry for entry in _entries(container.get("env")) if entry.get("name") not in list(env)]
        changed["env"] = [*kept, *({"name": name, "value": value} for name, value in env.items())]
    return changed if limits or env else container


def _entries(env: Any) -> list[Mapping[str, Any]]:
    entries = env or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise MalformedInput("env", env, "expected a list of name and value")
    return entries
