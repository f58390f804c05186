"""Admission for NVIDIA devices."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from hami.codec.core_limits import parse_cores_limit
from hami.codec.device_config import NvidiaConfig
from hami.codec.forms import Number
from hami.codec.keys import CORES_LIMIT
from hami.errors import PodRefused
from hami.quantity import rounded_up
from hami.vendors.admission import check_amounts
from hami.vendors.draft import ContainerDraft
from hami.vendors.request import WHOLE
from hami.vendors.resources import Resources
from hami.vendors.terms import Term

# for all devices; with suffix _0, _1, … for one
LIMIT_VARIABLES = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")
RESERVED_VARIABLES = frozenset(
    {
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "CUDA_OVERSUBSCRIBE",
        # the driver's own limits for a container, which NVIDIA's container toolkit sets from 1.20.1 on: a request
        # takes memory from the neighbors, and a limit replaces ours
        "NVIDIA_GPU_MEMORY_LIMIT",
        "NVIDIA_GPU_MEMORY_REQUEST",
    }
)
MPS_VARIABLES = "CUDA_MPS_"
"""The start of the names of variables that programs find an MPS server by."""
MPS_WARNING = "its programs may use an MPS server, which HAMi neither starts nor limits"
VISIBLE_VARIABLE, NOTHING_VISIBLE = "NVIDIA_VISIBLE_DEVICES", ("none", "void")
_OF_PLUGIN = RESERVED_VARIABLES | {*LIMIT_VARIABLES, VISIBLE_VARIABLE}
_LIMITS_OF_ONE = tuple(f"{name}_" for name in LIMIT_VARIABLES)
_STRICT_VARIABLES = frozenset(
    {
        "CUDA_DISABLE_CONTROL",
        "CUDA_REDIRECT",
        "GPU_CORE_UTILIZATION_POLICY",
        "LD_AUDIT",
        "LD_PRELOAD",
    }
)
_LIMITER_PATHS = ("/etc/ld.so.preload/", "/usr/local/vgpu/", "/tmp/vgpulock/")
# not /tmp: programs need it, and its lock limits nothing
_PATHS_ABOVE = frozenset({"/", "/etc", "/usr", "/usr/local"})
_ACCESS_VARIABLES = frozenset(
    {"NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"}
)
"""Variables by which NVIDIA's runtime gives access to memory of other nodes, and to MIG devices."""
CORES_LIMIT_TERM = Term(
    CORES_LIMIT,
    Number(1, WHOLE, "percentage of a GPU that a container may use while no other does"),
    "percent of a GPU that a container may use while no other does",
)
_SHOWN = 100  # characters of a value in a message


def admit(draft: ContainerDraft, *, config: NvidiaConfig) -> bool:
    """Admits a container. Returns whether it requests devices.

    A container that requests only memory, percent or cores gets the default number of devices. A container that
    requests whole devices gets all their cores, so that they are not shared. A pod gets the limit of cores of its
    namespace. Environment variables that would override those of the device plugin are rejected.
    Raises: PodRefused.
    Source: HAMi v2.10, pkg/device/nvidia/device.go, MutateAdmission.
    """
    resources = draft.resources
    _check_percent(draft)
    check_amounts(draft)
    given = draft.given
    is_requested = resources.count in given
    if given and not is_requested and config.default_gpu_num > 0:
        draft.set_limit(resources.count, config.default_gpu_num)
        is_requested = True
    if is_requested:
        _request_all_cores(draft)
    if draft.rounded(resources.count):
        _limit_cores(draft, config.gpucores_limits)
    _set_variables(draft, config)
    if is_requested:
        _check_variables(draft)
        _warn_of_mps(draft)
        draft.pod.spec.set_runtime_class(config.runtime_class_name)
    if config.strict:
        _check_strictly(draft, is_requested)
    return is_requested


def _request_all_cores(draft: ContainerDraft) -> None:
    """Requests all cores of whole devices, unless the container requests cores itself."""
    cores = draft.resources.cores
    if cores and cores not in draft.given and _wants_whole_devices(draft):
        draft.set_limit(cores, WHOLE)


def _set_variables(draft: ContainerDraft, config: NvidiaConfig) -> None:
    priority = draft.resources.priority
    if priority in draft.limits:
        draft.set_env("CUDA_TASK_PRIORITY", str(draft.parse(priority, draft.limits[priority])))
    if config.gpu_core_policy not in ("", "default"):
        draft.set_env("GPU_CORE_UTILIZATION_POLICY", config.gpu_core_policy)
    if _hides_devices(draft, config) and not draft.rounded(draft.resources.count):
        draft.set_env(VISIBLE_VARIABLE, "none")


def _hides_devices(draft: ContainerDraft, config: NvidiaConfig) -> bool:
    """Reports whether the container is to see no devices if it requests none."""
    return config.strict or draft.pod.hides_devices(draft.name, config.overwrite_env)


def admit_ephemeral(draft: ContainerDraft, is_requested: bool, *, config: NvidiaConfig) -> None:
    """Admits an ephemeral container, which cannot request devices. *is_requested*: its pod does.

    In such a pod, it may not set what is reserved for the device plugin: nothing limits it.
    Raises: PodRefused.
    """
    if config.strict:
        confine(draft)
        return
    if is_requested:
        _check_variables(draft)
    if _hides_devices(draft, config):
        draft.set_env(VISIBLE_VARIABLE, "none")


def confine(draft: ContainerDraft) -> None:
    """Admits a container of a pod that another scheduler places, in strict mode.

    What could lift limits is rejected as in pods of our own, and a container that requests no devices sees none.
    Raises: PodRefused.
    """
    is_requested = draft.resources.count in draft.given
    if is_requested:
        _check_variables(draft)
    _check_strictly(draft, is_requested)
    if not draft.rounded(draft.resources.count):
        draft.set_env(VISIBLE_VARIABLE, "none")


def check_claiming(draft: ContainerDraft, config: NvidiaConfig, *, is_claiming: bool) -> None:
    """Checks a container of a pod that gets devices by claims, on its node and in strict mode, as one with a request if
    it *is_claiming*. What admission writes itself is permitted. Raises: PodRefused."""
    draft = draft.seen_with(
        Resources(count=config.resource_count_name, memory=config.resource_memory_name)
    )
    name, policy = "GPU_CORE_UTILIZATION_POLICY", config.gpu_core_policy
    if policy and dict(draft.variables).get(name) == policy:
        draft.set_env(name, policy)
    if is_claiming:
        _check_variables(draft)
    _check_strictly(draft, is_claiming)


def _check_percent(draft: ContainerDraft) -> None:
    name = draft.resources.memory_percent
    if (percent := draft.rounded(name)) is not None and not 0 <= percent <= WHOLE:
        raise draft.invalid(name, percent, "must be an integer between 0 and 100")


def _limit_cores(draft: ContainerDraft, limits: Mapping[str, int]) -> None:
    """Checks the pod's limit of cores, or sets that of its namespace, which is never below what a
    container requests."""
    resources, pod = draft.resources, draft.pod
    requested = draft.rounded(resources.cores)
    cores = min(resources.default_cores if requested is None else requested, WHOLE)
    text = pod.decoded.annotations.get(CORES_LIMIT, "")
    if text.strip():
        _check_cores_limit(draft, text, cores)
    elif pod.namespace in limits:
        others = parse_cores_limit(pod.annotation(CORES_LIMIT) or "") or 0
        pod.set_annotation(CORES_LIMIT, str(max(limits[pod.namespace], cores, others)))


def _check_cores_limit(draft: ContainerDraft, text: str, cores: int) -> None:
    percent = parse_cores_limit(text)
    if percent is not None and percent < cores:
        raise PodRefused(
            f"annotation {CORES_LIMIT}={text}: expected {cores} or more, since container {draft.name} gets "
            f"{cores} percent of each GPU ({draft.resources.cores})"
        )


def _check_variables(draft: ContainerDraft) -> None:
    """Rejects variables that would lift the limits: a container's own variables override the device plugin's.

    ``CUDA_DISABLE_CONTROL`` and ``GPU_CORE_UTILIZATION_POLICY`` are for users and allowed. So is ``LD_PRELOAD``: many
    images need it, and the limiter is loaded nevertheless.
    """
    for name, value in draft.variables:
        if name == VISIBLE_VARIABLE and value in NOTHING_VISIBLE:
            continue
        if name in _OF_PLUGIN or name.startswith(_LIMITS_OF_ONE):
            raise PodRefused(
                f"container {draft.name} sets {name}, which is reserved for the device plugin: request memory and "
                f"cores as resources, such as {draft.resources.memory or draft.resources.count}"
            )


def _warn_of_mps(draft: ContainerDraft) -> None:
    """Warns of the first variable that leads to an MPS server. Pods that run a server of their own need such ones."""
    for name, _ in draft.variables:
        if name.startswith(MPS_VARIABLES):
            draft.pod.warnings.append(f"container {draft.name} sets {name[:_SHOWN]}: {MPS_WARNING}")
            return


def _check_strictly(draft: ContainerDraft, is_requested: bool) -> None:
    """Rejects what a specification can do to lift limits, or to see more devices.

    *is_requested*: the container requests devices.
    """
    lifting = _STRICT_VARIABLES - draft.env.keys() if is_requested else ()
    for name, value in draft.variables:
        shown = f"env {name}={value[:_SHOWN]}" if value is not None else f"env {name}"
        if name == VISIBLE_VARIABLE and value not in NOTHING_VISIBLE:
            raise _refused(draft, shown, f"request devices as {draft.resources.count}")
        if name in _ACCESS_VARIABLES and value not in ("", *NOTHING_VISIBLE):
            raise _refused(draft, shown, "it can give access to devices of others")
        if name in lifting:
            raise _refused(draft, shown, "it can lift the limits of devices")
    if is_requested:
        _check_sources(draft)


def _check_sources(draft: ContainerDraft) -> None:
    if draft.entries("envFrom"):
        raise _refused(
            draft,
            "envFrom",
            "it can set variables of the limiter; name its variables under env instead",
        )
    for index, mount in enumerate(draft.entries("volumeMounts")):
        text = str(mount.get("mountPath"))
        path = "/" + posixpath.normpath("/" + text).lstrip("/")
        if path in _PATHS_ABOVE or f"{path}/".startswith(_LIMITER_PATHS):
            field = f"volumeMounts[{index}].mountPath={text[:_SHOWN]}"
            raise _refused(draft, field, "it can hide files of the limiter")


def _refused(draft: ContainerDraft, field: str, reason: str) -> PodRefused:
    return PodRefused(f"container {draft.name}: {field} is not permitted in strict mode: {reason}")


def _wants_whole_devices(draft: ContainerDraft) -> bool:
    resources, amounts = draft.resources, draft.given
    if resources.memory_percent in amounts:
        return rounded_up(amounts[resources.memory_percent]) == WHOLE
    return resources.memory not in amounts
