"""What NVIDIA does at admission beyond counts and cores (which are in the table of all vendors)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.errors import MalformedInput
from testing import vendor_rows as rows
from testing.builders import NVIDIA, nvidia
from testing.cases import cases

ONE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}
STRICT = nvidia(strict=True)


def admit(vendor, limits=None, pod_spec=None, **fields):
    wire = {"name": "c", **({} if limits is None else {"resources": {"limits": limits}}), **fields}
    return rows.admit(vendor, wire, **pod_spec or {})


def env_of(admission):
    return {entry["name"]: entry["value"] for entry in admission.container.get("env", [])}


@cases(
    "vendor, limits, env",
    ("none by default", NVIDIA, ONE, {}),
    ("priority", NVIDIA, ONE | {"nvidia.com/priority": "1"}, {"CUDA_TASK_PRIORITY": "1"}),
    ("priority without a card", NVIDIA, {"nvidia.com/priority": "0"}, {"CUDA_TASK_PRIORITY": "0"}),
    ("core policy", nvidia(gpu_core_policy="force"), ONE, {"GPU_CORE_UTILIZATION_POLICY": "force"}),
    (
        "core policy for a container without a card",
        nvidia(gpu_core_policy="disable"),
        {"nvidia.com/priority": "1"},
        {"CUDA_TASK_PRIORITY": "1", "GPU_CORE_UTILIZATION_POLICY": "disable"},
    ),
    ("nothing in a pod that names no resource", nvidia(gpu_core_policy="disable"), {}, {}),
    ("no card to be seen", nvidia(overwrite_env=True), {}, {"NVIDIA_VISIBLE_DEVICES": "none"}),
    ("its own card to be seen", nvidia(overwrite_env=True), ONE, {}),
    ("a card by default", nvidia(overwrite_env=True), {"nvidia.com/gpumem": "1"}, {}),
    (
        "zero cards",
        nvidia(overwrite_env=True),
        {"nvidia.com/gpu": "0"},
        {"NVIDIA_VISIBLE_DEVICES": "none"},
    ),
    ("strict mode", STRICT, {}, {"NVIDIA_VISIBLE_DEVICES": "none"}),
    ("strict mode with a card", STRICT, ONE, {}),
)
def test_environment(vendor, limits, env):
    assert env_of(admit(vendor, limits)) == env


def test_an_entry_of_the_same_name_is_replaced():
    env = [
        {"name": "CUDA_TASK_PRIORITY", "value": "7"},
        {"name": "A", "valueFrom": {"fieldRef": {}}},
    ]
    assert admit(NVIDIA, {"nvidia.com/priority": "1"}, env=env).container["env"] == [
        env[1],
        {"name": "CUDA_TASK_PRIORITY", "value": "1"},
    ]


def test_entries_with_odd_names_stay():
    env = [{"name": {}}, {"name": None}, {}]
    assert admit(NVIDIA, {"nvidia.com/priority": "1"}, env=env).container["env"][:3] == env


@pytest.mark.parametrize("env", ["A=1", {"A": "1"}, ["A=1"], [None], 3])
def test_an_environment_that_is_none(env):
    with pytest.raises(MalformedInput, match="^env: expected a list of mappings"):
        admit(NVIDIA, {"nvidia.com/priority": "1"}, env=env)


@cases(
    "vendor, limits, pod_spec, expected",
    ("set", nvidia(runtime_class_name="nvidia"), ONE, {}, {"runtimeClassName": "nvidia"}),
    (
        "the pod's own stays",
        nvidia(runtime_class_name="nvidia"),
        ONE,
        {"runtimeClassName": "kata"},
        {},
    ),
    ("no card", nvidia(runtime_class_name="nvidia"), {}, {}, {}),
    ("none configured", NVIDIA, ONE, {}, {}),
)
def test_runtime_class(vendor, limits, pod_spec, expected):
    assert admit(vendor, limits, pod_spec).pod_spec == expected


@cases(
    "limits, found",
    (None, False),
    ({}, False),
    (ONE, True),
    ({"nvidia.com/gpumem": "1"}, True),
    ({"nvidia.com/gpu": "0"}, False),
    ({"nvidia.com/priority": "1"}, False),
    ({"cpu": "1"}, False),
)
def test_found(limits, found):
    assert admit(NVIDIA, limits).requests_devices is found


@pytest.mark.parametrize("percent, shown", [("120", 120), ("-1", -1), ("100.5", 101), ("1k", 1000)])
def test_percentages_out_of_range(percent, shown):
    with pytest.raises(MalformedInput) as caught:
        admit(NVIDIA, {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": percent})
    assert str(caught.value) == (
        f"invalid nvidia.com/gpumem-percentage value {shown} in container c: "
        "must be an integer between 0 and 100"
    )


@pytest.mark.parametrize("resource", ["gpu", "gpumem", "gpumem-percentage", "gpucores", "priority"])
@given(
    text=st.text(max_size=9)
    | st.integers().map(str)
    | st.none()
    | st.integers()
    | st.floats(allow_nan=False)
)
def test_any_amount_is_admitted_or_malformed(resource, text):
    try:
        admit(NVIDIA, {"nvidia.com/gpu": "1", f"nvidia.com/{resource}": text})
    except MalformedInput as error:
        assert resource in str(error)


@cases(
    "vendor, all_of_them, beside",
    ("default", NVIDIA, False, False),
    ("environment overwritten", nvidia(overwrite_env=True), True, False),
    ("core policy", nvidia(gpu_core_policy="force"), False, True),
    ("strict", STRICT, True, False),
)
def test_which_settings_concern_containers_without_devices(vendor, all_of_them, beside):
    assert vendor.admission.admits_all is all_of_them
    assert vendor.admission.admits_beside is beside


@cases(
    "entry, refused",
    ("memory", {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "80g"}, True),
    ("memory of a device", {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "80g"}, True),
    ("cores", {"name": "CUDA_DEVICE_SM_LIMIT", "value": "100"}, True),
    ("cores of a device", {"name": "CUDA_DEVICE_SM_LIMIT_7", "value": "100"}, True),
    ("shared region", {"name": "CUDA_DEVICE_MEMORY_SHARED_CACHE", "value": "/tmp/x"}, True),
    ("oversubscription", {"name": "CUDA_OVERSUBSCRIBE", "value": "true"}, True),
    ("the driver's limit", {"name": "NVIDIA_GPU_MEMORY_LIMIT", "value": "80000"}, True),
    ("the driver's promise", {"name": "NVIDIA_GPU_MEMORY_REQUEST", "value": "9000"}, True),
    ("all devices", {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, True),
    (
        "devices from elsewhere",
        {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {}}},
        True,
    ),
    ("devices without a value", {"name": "NVIDIA_VISIBLE_DEVICES"}, True),
    ("no devices", {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}, False),
    (
        "another variable of the driver",
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"},
        False,
    ),
    ("a name that begins alike", {"name": "CUDA_DEVICE_SM_LIMITER", "value": "1"}, False),
    ("without the limiter", {"name": "CUDA_DISABLE_CONTROL", "value": "true"}, False),
    ("core policy", {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}, False),
    ("preload", {"name": "LD_PRELOAD", "value": "libjemalloc.so"}, False),
)
def test_variables_that_would_lift_limits_are_refused_on_containers_with_a_card(entry, refused):
    env = [{"name": "A", "value": "1"}, entry]
    assert admit(NVIDIA, None, env=env).container["env"] == env
    if not refused:
        assert admit(NVIDIA, ONE, env=env).container["env"] == env
        return
    with pytest.raises(MalformedInput) as caught:
        admit(NVIDIA, ONE, env=env)
    assert str(caught.value) == (
        f"container c sets {entry['name']}, which is reserved for the device plugin: request "
        "memory and cores as resources, such as nvidia.com/gpumem"
    )


def env(name, value):
    return {"env": [{"name": "A", "value": "1"}, {"name": name, "value": value}]}


def mounted(path):
    return {
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "v", "mountPath": path}]
    }


FROM_ELSEWHERE = {"env": [{"name": "CUDA_DISABLE_CONTROL", "valueFrom": {"configMapKeyRef": {}}}]}
LIFTS, HIDES = "it can lift the limits of devices", "it can hide files of the limiter"


@cases(
    "fields, field, why",
    (
        "from",
        {"envFrom": [{"configMapRef": {"name": "m"}}]},
        "envFrom",
        "it can set variables of the limiter",
    ),
    (
        "without the limiter",
        env("CUDA_DISABLE_CONTROL", "true"),
        "env CUDA_DISABLE_CONTROL=true",
        LIFTS,
    ),
    ("value from elsewhere", FROM_ELSEWHERE, "env CUDA_DISABLE_CONTROL", LIFTS),
    ("another library", env("CUDA_REDIRECT", "/x.so"), "env CUDA_REDIRECT=/x.so", LIFTS),
    (
        "cores",
        env("GPU_CORE_UTILIZATION_POLICY", "disable"),
        "env GPU_CORE_UTILIZATION_POLICY=disable",
        LIFTS,
    ),
    ("preload", env("LD_PRELOAD", "/x.so"), "env LD_PRELOAD=/x.so", LIFTS),
    ("long value", env("LD_AUDIT", "x" * 1000), f"env LD_AUDIT={'x' * 100}", LIFTS),
    *(
        (path, mounted(path), f"volumeMounts[1].mountPath={path}", HIDES)
        for path in (
            "/etc/ld.so.preload",
            "/etc",
            "/etc/",
            "/",
            "/usr/local/vgpu",
            "/usr/local/vgpu/libvgpu.so",
            "/usr/local",
            "/usr",
            "/tmp/vgpulock",
            "//etc//ld.so.preload",
            "/data/../etc/./ld.so.preload",
            "etc/ld.so.preload",
        )
    ),
)
def test_strict_mode_refuses_what_could_lift_limits_of_a_container_with_a_card(fields, field, why):
    admit(NVIDIA, ONE, **fields)
    admit(STRICT, {"nvidia.com/priority": "1"}, **fields)
    with pytest.raises(MalformedInput) as caught:
        admit(STRICT, ONE, **fields)
    assert str(caught.value).startswith(
        f"container c: {field} is not permitted in strict mode: {why}"
    )


@pytest.mark.parametrize(
    "fields",
    [
        env("LD_LIBRARY_PATH", "/x"),
        env("NVIDIA_DRIVER_CAPABILITIES", "all"),
        env("NVIDIA_VISIBLE_DEVICES", "void"),
        {"env": None, "envFrom": [], "volumeMounts": None},
        mounted("/tmp"),
        mounted("/usr/local/vgpus"),
        mounted("/usr/lib"),
        mounted("/etc/ld.so.preload.d"),
        mounted("/data/etc"),
    ],
    ids=str,
)
def test_strict_mode_leaves_the_rest_alone(fields):
    admit(STRICT, ONE, **fields)


@pytest.mark.parametrize(
    "entry", [{"value": "all"}, {"value": "GPU-1"}, {}, {"valueFrom": {}}], ids=str
)
@pytest.mark.parametrize("limits", [None, {"nvidia.com/priority": "1"}, {"cpu": "1"}], ids=str)
def test_strict_mode_refuses_visible_devices_without_a_request(limits, entry):
    fields = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES"} | entry]}
    admit(NVIDIA, limits, **fields)
    with pytest.raises(
        MalformedInput,
        match="^container c: env NVIDIA_VISIBLE_DEVICES(=.*)? is not permitted in "
        "strict mode: request devices as nvidia.com/gpu$",
    ):
        admit(STRICT, limits, **fields)


@pytest.mark.parametrize(
    "name", ["NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"]
)
@pytest.mark.parametrize("limits", [None, ONE], ids=str)
def test_strict_mode_refuses_access_to_devices_of_others(name, limits):
    admit(NVIDIA, limits, **env(name, "all"))
    for value in ("", "none", "void"):
        admit(STRICT, limits, **env(name, value))
    with pytest.raises(
        MalformedInput,
        match=f"env {name}=all is not permitted in strict mode: it can give access to",
    ):
        admit(STRICT, limits, **env(name, "all"))


def test_strict_mode_accepts_what_admission_has_written():
    """A copy of an admitted pod is admitted."""
    vendor = nvidia(strict=True, gpu_core_policy="force")
    before = admit(vendor, ONE | {"nvidia.com/priority": "1"}).container
    assert env_of(rows.admit(vendor, before)) == {
        "CUDA_TASK_PRIORITY": "1",
        "GPU_CORE_UTILIZATION_POLICY": "force",
    }
