"""What NVIDIA does at admission beyond counts and cores (which are in the table of all vendors)."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import param

from hami.errors import MalformedInput
from hami.vendors import admission
from tests.builders import NVIDIA, nvidia

ONE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}


def admit(vendor, limits=None, pod_spec=None, **fields):
    wire = {"name": "c", **({} if limits is None else {"resources": {"limits": limits}}), **fields}
    before = copy.deepcopy(wire)
    result = admission.admit(vendor, {"spec": pod_spec or {}}, wire)
    assert wire == before, "the container that came in was changed"
    assert (result.container is wire) == (result.container == wire)
    return result


def env_of(admission):
    return {entry["name"]: entry["value"] for entry in admission.container.get("env", [])}


@pytest.mark.parametrize("vendor, limits, env", [
    param(NVIDIA, ONE, {}, id="none by default"),
    param(NVIDIA, ONE | {"nvidia.com/priority": "1"}, {"CUDA_TASK_PRIORITY": "1"}, id="priority"),
    param(NVIDIA, {"nvidia.com/priority": "0"}, {"CUDA_TASK_PRIORITY": "0"}, id="priority without a card"),
    param(nvidia(gpu_core_policy="force"), ONE, {"GPU_CORE_UTILIZATION_POLICY": "force"}, id="core policy"),
    param(nvidia(gpu_core_policy="disable"), {}, {"GPU_CORE_UTILIZATION_POLICY": "disable"}, id="on every container"),
    param(nvidia(overwrite_env=True), {}, {"NVIDIA_VISIBLE_DEVICES": "none"}, id="no card to be seen"),
    param(nvidia(overwrite_env=True), ONE, {}, id="its own card to be seen"),
    param(nvidia(overwrite_env=True), {"nvidia.com/gpumem": "1"}, {}, id="a card by default"),
])
def test_environment(vendor, limits, env):
    assert env_of(admit(vendor, limits)) == env


def test_an_entry_of_the_same_name_is_replaced():
    env = [{"name": "CUDA_TASK_PRIORITY", "value": "7"}, {"name": "A", "valueFrom": {"fieldRef": {}}}]
    assert admit(NVIDIA, {"nvidia.com/priority": "1"}, env=env).container["env"] == [
        env[1], {"name": "CUDA_TASK_PRIORITY", "value": "1"}]


def test_entries_with_odd_names_stay():
    env = [{"name": {}}, {"name": None}, {}]
    assert admit(NVIDIA, {"nvidia.com/priority": "1"}, env=env).container["env"][:3] == env


@pytest.mark.parametrize("env", ["A=1", {"A": "1"}, ["A=1"], [None], 3])
def test_an_environment_that_is_none(env):
    with pytest.raises(MalformedInput, match="^env: expected a list of name and value"):
        admit(NVIDIA, {"nvidia.com/priority": "1"}, env=env)


@pytest.mark.parametrize("vendor, limits, pod_spec, expected", [
    (nvidia(runtime_class_name="nvidia"), ONE, {}, {"runtimeClassName": "nvidia"}),
    (nvidia(runtime_class_name="nvidia"), ONE, {"runtimeClassName": "kata"}, {}),
    (nvidia(runtime_class_name="nvidia"), {}, {}, {}),
    (NVIDIA, ONE, {}, {}),
], ids=["set", "the pod's own stays", "no card", "none configured"])
def test_runtime_class(vendor, limits, pod_spec, expected):
    assert admit(vendor, limits, pod_spec).pod_spec == expected


@pytest.mark.parametrize("limits, found", [
    (None, False), ({}, False), (ONE, True), ({"nvidia.com/gpumem": "1"}, True), ({"nvidia.com/gpu": "0"}, True),
    ({"nvidia.com/priority": "1"}, False), ({"cpu": "1"}, False),
])
def test_found(limits, found):
    assert admit(NVIDIA, limits).found is found


@pytest.mark.parametrize("percent, shown", [("120", 120), ("-1", -1), ("100.5", 101), ("1k", 1000)])
def test_percentages_out_of_range(percent, shown):
    with pytest.raises(MalformedInput) as caught:
        admit(NVIDIA, {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": percent})
    assert str(caught.value) == (f"invalid nvidia.com/gpumem-percentage value {shown} in container c: "
                                 "must be an integer between 0 and 100")


@pytest.mark.parametrize("resource", ["gpu", "gpumem", "gpumem-percentage", "gpucores", "priority"])
@given(text=st.text(max_size=9) | st.integers().map(str) | st.none() | st.integers() | st.floats(allow_nan=False))
def test_any_amount_is_admitted_or_malformed(resource, text):
    try:
        admit(NVIDIA, {"nvidia.com/gpu": "1", f"nvidia.com/{resource}": text})
    except MalformedInput as error:
        assert resource in str(error)


@pytest.mark.parametrize("vendor, all_of_them", [
    (NVIDIA, False), (nvidia(overwrite_env=True), True), (nvidia(gpu_core_policy="force"), True),
], ids=["default", "environment overwritten", "core policy"])
def test_which_settings_concern_containers_without_devices(vendor, all_of_them):
    assert vendor.admits_all is all_of_them


@pytest.mark.parametrize("entry, refused", [
    param({"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "80g"}, True, id="memory"),
    param({"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "80g"}, True, id="memory of a device"),
    param({"name": "CUDA_DEVICE_SM_LIMIT", "value": "100"}, True, id="cores"),
    param({"name": "CUDA_DEVICE_SM_LIMIT_7", "value": "100"}, True, id="cores of a device"),
    param({"name": "CUDA_DEVICE_MEMORY_SHARED_CACHE", "value": "/tmp/x"}, True, id="shared region"),
    param({"name": "CUDA_OVERSUBSCRIBE", "value": "true"}, True, id="oversubscription"),
    param({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, True, id="all devices"),
    param({"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {}}}, True, id="devices from elsewhere"),
    param({"name": "NVIDIA_VISIBLE_DEVICES"}, True, id="devices without a value"),
    param({"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}, False, id="no devices"),
    param({"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}, False, id="another variable of the driver"),
    param({"name": "CUDA_DEVICE_SM_LIMITER", "value": "1"}, False, id="a name that begins alike"),
    param({"name": "CUDA_DISABLE_CONTROL", "value": "true"}, False, id="without the limiter"),
    param({"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}, False, id="core policy"),
    param({"name": "LD_PRELOAD", "value": "libjemalloc.so"}, False, id="preload"),
])
def test_variables_that_would_lift_limits_are_refused_on_containers_with_a_card(entry, refused):
    env = [{"name": "A", "value": "1"}, entry]
    assert admit(NVIDIA, None, env=env).container["env"] == env
    if not refused:
        assert admit(NVIDIA, ONE, env=env).container["env"] == env
        return
    with pytest.raises(MalformedInput) as caught:
        admit(NVIDIA, ONE, env=env)
    assert str(caught.value) == (f"container c sets {entry['name']}, which is reserved for the device plugin: request "
                                 "memory and cores as resources, such as nvidia.com/gpumem")
