"""MIG profiles through NVML, and instances that are created, found and destroyed."""

import pynvml
import pytest

from hami.devices.cards import MigDevice
from hami.devices.nvml_mig import NvmlInstances, offered_profiles
from hami.errors import HamiError
from testing.cards import ALLOWLIST
from testing.cases import cases
from testing.fake_nvml import A100, GIB, FakeNvml, Gpu

UNKNOWN, OLD = pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


@pytest.fixture
def nvml():
    """A driver with a card in MIG mode, one not in MIG mode, and one without MIG support."""
    return FakeNvml(
        Gpu("GPU-0", mig=True, profiles=A100), Gpu("GPU-1", mig=False, profiles=A100), Gpu("GPU-2")
    )


@pytest.fixture
def instances(nvml):
    """The instances of its cards."""
    return NvmlInstances(nvml, ALLOWLIST)


def test_profiles_without_a_suffix_are_offered_with_their_share_of_the_card(nvml):
    found = [
        (one.name, one.cores, number)
        for number, one in offered_profiles(nvml, nvml.gpus[0]).items()
    ]
    assert found == [
        ("1g.10gb", 15, 19),
        ("2g.20gb", 29, 14),
        ("3g.40gb", 43, 9),
        ("7g.80gb", 100, 0),
        ("1g.20gb", 15, 15),
    ]


def test_profiles_of_an_older_driver_are_named_by_their_memory(nvml):
    nvml.fail("nvmlDeviceGetGpuInstanceProfileInfo v2", OLD)
    assert [one.name for one in offered_profiles(nvml, nvml.gpus[0]).values()] == [
        "1g.10gb",
        "2g.20gb",
        "3g.40gb",
        "7g.80gb",
        "1g.10gb",
        "1g.20gb",
    ]


@cases("memory, mib, name", (40 * GIB, 4864, "1g.5gb"), (24 * GIB, 5952, "1g.6gb"))
def test_profile_names_of_an_older_driver(memory, mib, name):
    nvml = FakeNvml(
        Gpu("GPU-0", memory=memory, mig=True, profiles={0: (19, "", 1, 14, mib, [(0, 1)])})
    )
    nvml.fail("nvmlDeviceGetGpuInstanceProfileInfo v2", OLD)
    assert [one.name for one in offered_profiles(nvml, nvml.gpus[0]).values()] == [name]


@cases(
    "profile, start, size, profile_id",
    ("1g.10gb", 6, 1, 19),
    ("3g.40gb", 4, 4, 9),
    ("7g.79gb", 0, 8, 0),
)
def test_an_instance_is_created_and_found_under_the_same_name(
    nvml, instances, profile, start, size, profile_id
):
    made = instances.create("GPU-0", profile, start, size)
    assert (
        made.gpu,
        made.profile,
        made.start,
        made.size,
        made.uuid,
        made.gpu_instance,
        made.compute_instance,
    ) == ("GPU-0", profile, start, size, "MIG-1", 1, 0)
    assert [one.profile for one in nvml.gpus[0].made.values()] == [profile_id]
    assert list(instances.existing("GPU-0")) == [made]


def test_several_instances_are_distinct(nvml, instances):
    made = [instances.create("GPU-0", "1g.10gb", start, 1) for start in (3, 0, 6)]
    assert list(instances.existing("GPU-0")) == sorted(made, key=lambda one: one.start)
    assert len({one.uuid for one in made}) == 3


def test_a_foreign_instance_is_found_under_the_driver_s_name(nvml, instances):
    place = pynvml.c_nvmlGpuInstancePlacement_t(start=2, size=2)
    made = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(nvml.gpus[0], 14, pynvml.byref(place))
    nvml.nvmlGpuInstanceCreateComputeInstance(made, 51)
    (found,) = instances.existing("GPU-0")
    assert (found.profile, found.start, found.size, found.uuid) == ("2g.20gb", 2, 2, "MIG-1")


def test_a_gpu_instance_without_a_compute_instance_is_found(nvml, instances):
    place = pynvml.c_nvmlGpuInstancePlacement_t(start=0, size=1)
    nvml.nvmlDeviceCreateGpuInstanceWithPlacement(nvml.gpus[0], 19, pynvml.byref(place))
    (found,) = instances.existing("GPU-0")
    assert (found.profile, found.start, found.uuid, found.busy) == ("1g.10gb", 0, "", False)
    instances.destroy(found)
    assert nvml.gpus[0].made == {}


def test_an_instance_whose_compute_instance_has_no_uuid_counts_as_busy(nvml, instances):
    instances.create("GPU-0", "1g.10gb", 0, 1)
    nvml.fail("nvmlDeviceGetMigDeviceHandleByIndex", pynvml.NVML_ERROR_NOT_FOUND)
    assert [(one.uuid, one.busy) for one in instances.existing("GPU-0")] == [("", True)]


def test_an_instance_is_busy_when_any_part_of_it_is(nvml, instances, monkeypatch):
    instances.create("GPU-0", "3g.40gb", 0, 4)
    (made,) = nvml.gpus[0].made.values()
    made.inner[1] = "MIG-part"
    monkeypatch.setattr(
        nvml, "nvmlDeviceGetMigDeviceHandleByIndex", lambda handle, index: (made, index % 2)
    )
    monkeypatch.setattr(
        nvml, "nvmlDeviceGetComputeRunningProcesses", lambda mig: ["a process"] * mig[1]
    )
    assert [one.busy for one in instances.existing("GPU-0")] == [True]


def test_profiles_with_a_suffix_have_the_driver_s_name(nvml, instances):
    instances.create("GPU-0", "1g.10gb", 0, 1)
    nvml.gpus[0].made[1].profile = 20
    assert [one.profile for one in instances.existing("GPU-0")] == ["1g.10gb+me"]


@pytest.mark.parametrize(
    "function",
    [
        "nvmlGpuInstanceGetInfo",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceGetInfo",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetUUID of MIG",
    ],
)
def test_a_creation_is_undone_when_a_later_step_fails(nvml, instances, function):
    nvml.fail(function, UNKNOWN)
    with pytest.raises(HamiError, match="GPU-0.*Unknown Error"):
        instances.create("GPU-0", "1g.10gb", 0, 1)
    assert nvml.gpus[0].made == {}
    nvml.heal()
    instances.create("GPU-0", "1g.10gb", 0, 1)


@cases(
    "gpu, profile, start, says",
    ("GPU-0", "2g.20gb", 0, "GPU-0: no profile 2g.20gb, only 1g.10gb, 3g.40gb, 7g.79gb"),
    ("GPU-0", "1g.10gb", 3, "GPU-0: 1g.10gb at 3: .*code 23"),
    ("GPU-9", "1g.10gb", 0, "GPU-9: Not Found"),
)
def test_an_instance_that_cannot_be_created_is_refused(instances, gpu, profile, start, says):
    instances.create("GPU-0", "1g.10gb", 3, 1)
    with pytest.raises(HamiError, match=says):
        instances.create(gpu, profile, start, 1)


def test_an_instance_is_destroyed(nvml, instances):
    made = instances.create("GPU-0", "3g.40gb", 0, 4)
    instances.destroy(made)
    assert list(instances.existing("GPU-0")) == []


def test_an_instance_in_use_is_not_destroyed(nvml, instances):
    made = instances.create("GPU-0", "3g.40gb", 0, 4)
    nvml.gpus[0].made[1].busy = True
    assert [one.busy for one in instances.existing("GPU-0")] == [True]
    with pytest.raises(HamiError, match=f"GPU-0: {made.uuid}: .*code 19"):
        instances.destroy(made)
    assert [one.uuid for one in instances.existing("GPU-0")] == [made.uuid]


def test_an_instance_with_unreadable_processes_counts_as_busy(nvml, instances):
    instances.create("GPU-0", "1g.10gb", 0, 1)
    nvml.fail("nvmlDeviceGetComputeRunningProcesses", UNKNOWN)
    assert [one.busy for one in instances.existing("GPU-0")] == [True]


@pytest.mark.parametrize(
    "functions",
    [
        ["nvmlDeviceGetMigMode"],
        ["nvmlDeviceGetGpuInstances"],
        ["nvmlDeviceGetName"],
        ["nvmlDeviceGetGpuInstanceProfileInfo v2"],
        ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByIndex"],
    ],
    ids=lambda functions: functions[0],
)
def test_unreadable_instances_are_an_error(nvml, instances, functions):
    for function in functions:
        nvml.fail(function, UNKNOWN, 0)
    with pytest.raises(HamiError, match="GPU-0: .*Unknown Error"):
        instances.existing("GPU-0")
    assert list(instances.existing("GPU-1")) == []


@pytest.mark.parametrize("profile, size", [("1g.10gb", 1), ("7g.79gb", 8)])
def test_an_instance_has_the_same_name_when_placements_are_unreadable(
    nvml, instances, profile, size
):
    made = instances.create("GPU-0", profile, 0, size)
    nvml.fail("nvmlDeviceGetGpuInstancePossiblePlacements", UNKNOWN)
    assert list(instances.existing("GPU-0")) == [made]


def test_a_lost_card_does_not_hide_others(nvml, instances):
    """Searching a UUID, NVML queries the lost card, too."""
    nvml.fail("nvmlDeviceGetHandleByUUID", pynvml.NVML_ERROR_GPU_IS_LOST)
    nvml.fail("nvmlDeviceGetHandleByIndex", pynvml.NVML_ERROR_GPU_IS_LOST, 1)
    made = instances.create("GPU-0", "1g.10gb", 0, 1)
    assert list(instances.existing("GPU-0")) == [made]
    with pytest.raises(HamiError, match="GPU-1: GPU is lost"):
        instances.existing("GPU-1")


def test_mig_mode_is_enabled(nvml, instances):
    instances.enable_mig("GPU-1")
    assert nvml.gpus[1].mig
    instances.enable_mig("GPU-1")
    assert nvml.calls.count("nvmlDeviceSetMigMode") == 1


def test_a_card_that_must_be_reset_first_is_an_error(nvml, instances):
    nvml.gpus[1].needs_reset = True
    with pytest.raises(HamiError, match="GPU-1: MIG mode is pending: the card must be reset"):
        instances.enable_mig("GPU-1")


def test_mig_mode_cannot_be_enabled_while_the_card_is_in_use(nvml, instances):
    nvml.fail("nvmlDeviceSetMigMode", pynvml.NVML_ERROR_IN_USE)
    with pytest.raises(HamiError, match="GPU-1: .*code 19"):
        instances.enable_mig("GPU-1")


def test_existing_devices_have_the_driver_s_names(nvml, instances):
    for profile, start in (("1g.10gb", 0), ("3g.40gb", 4)):
        instances.create("GPU-0", profile, start, {"1g.10gb": 1, "3g.40gb": 4}[profile])
    engines = nvml.gpus[0].made[1]
    engines.profile = 20
    nvml.gpus[0].made[2].part = 1
    assert list(instances.devices("GPU-0")) == [
        MigDevice(
            gpu="GPU-0",
            uuid="MIG-1",
            profile="1g.10gb+me",
            memory_mib=9728,
            gpu_instance=1,
            compute_instance=0,
        ),
        MigDevice(
            gpu="GPU-0",
            uuid="MIG-2",
            profile="1c.3g.40gb",
            memory_mib=40192,
            gpu_instance=2,
            compute_instance=0,
        ),
    ]


def test_unreadable_devices_are_an_error_that_names_the_card(nvml, instances):
    instances.create("GPU-0", "1g.10gb", 0, 1)
    nvml.fail("nvmlDeviceGetAttributes", UNKNOWN)
    with pytest.raises(HamiError, match="GPU-0: Unknown"):
        instances.devices("GPU-0")
