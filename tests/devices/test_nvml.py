"""Cards through NVML. Any call may fail for a single card."""

import pynvml
import pytest

from hami.devices.nvml import NvmlCards
from hami.devices.nvml_library import LIBRARY, library_path
from hami.errors import HamiError
from testing.cards import ALLOWLIST
from testing.cases import cases
from testing.fake_nvml import A100, GIB, FakeNvml, Gpu

LOST, TIMEOUT, UNKNOWN = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_TIMEOUT,
    pynvml.NVML_ERROR_UNKNOWN,
)
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


def three(**fields):
    """A driver with three cards."""
    return FakeNvml(
        *(
            Gpu(f"GPU-{index}", minor=index + 4, bus=f"00000000:{index + 1:02X}:00.0", **fields)
            for index in range(3)
        )
    )


def test_the_properties_of_a_card(tmp_path):
    (tmp_path / "bus/pci/devices/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:01:00.0/numa_node").write_text("1\n")
    (tmp_path / "bus/pci/devices/0000:02:00.0").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:02:00.0/numa_node").write_text("-1\n")
    first, second, third = NvmlCards(three(memory=80 * GIB - 1), sysfs=tmp_path).cards()
    assert (first.uuid, first.index, first.minor, first.memory_mib, first.model, first.problem) == (
        "GPU-0",
        0,
        4,
        81919,
        "NVIDIA A100-SXM4-80GB",
        "",
    )
    assert [first.numa, second.numa, third.numa] == [1, None, None]
    assert (first.mig, first.profiles, first.links) == (False, (), {})


def test_a_card_in_mig_mode_has_the_allowed_profiles():
    card, *_ = NvmlCards(three(mig=True, profiles=A100), ALLOWLIST).cards()
    assert card.mig
    assert [
        (one.name, one.memory_mib, one.cores, one.slices, len(one.placements))
        for one in card.profiles
    ] == [("1g.10gb", 9728, 15, 1, 7), ("3g.40gb", 40192, 43, 3, 2), ("7g.79gb", 81038, 100, 7, 1)]


@cases(
    "function, status, problem",
    ("nvmlDeviceGetName", LOST, "name: GPU is lost"),
    ("nvmlDeviceGetMemoryInfo", LOST, "memory: GPU is lost"),
    ("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED, ""),
    ("nvmlDeviceGetMinorNumber", LOST, "minor number: GPU is lost"),
    ("nvmlDeviceGetMinorNumber", NOT_SUPPORTED, ""),
    ("nvmlDeviceGetMigMode", UNKNOWN, "MIG mode: Unknown Error"),
    ("nvmlDeviceGetPciInfo", LOST, ""),
    ("nvmlDeviceGetGpuInstanceProfileInfo v2", UNKNOWN, ""),
    ("nvmlDeviceGetGpuInstancePossiblePlacements", UNKNOWN, ""),
)
def test_a_call_that_fails_for_one_card_does_not_affect_the_others(function, status, problem):
    nvml = three(mig=True, profiles=A100)
    fine = NvmlCards(nvml, ALLOWLIST).cards()
    nvml.fail(function, status, 1)
    found = NvmlCards(nvml, ALLOWLIST).cards()
    assert [found[0], found[2]] == [fine[0], fine[2]]
    assert (found[1].uuid, found[1].problem) == ("GPU-1", problem)


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_card_without_a_uuid_is_skipped_and_logged_once(function, caplog):
    nvml = three()
    nvml.fail(function, LOST, 0)
    source = NvmlCards(nvml)
    for _ in range(2):
        assert [(card.uuid, card.index) for card in source.cards()] == [("GPU-1", 1), ("GPU-2", 2)]
    assert [record.message for record in caplog.records] == ["card skipped"]


def test_a_driver_that_cannot_count_cards_is_an_error():
    nvml = three()
    nvml.fail("nvmlDeviceGetCount", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(HamiError, match="cannot count the cards: Driver Not Loaded"):
        NvmlCards(nvml).cards()


def test_display_cards_are_skipped():
    assert (
        NvmlCards(FakeNvml(Gpu("GPU-0", name="DGX Display"), Gpu("GPU-1"))).cards()[0].uuid
        == "GPU-1"
    )


# ---- links


def pair(links_there=(), links_back=(), level=pynvml.NVML_TOPOLOGY_SYSTEM):
    """A driver with two cards."""
    return FakeNvml(
        Gpu("GPU-0", bus="00000000:01:00.0", links=links_there, near={1: level}),
        Gpu("GPU-1", bus="00000000:02:00.0", links=links_back, near={0: level}),
    )


@cases(
    "nvml, score",
    ("across the system", pair(level=pynvml.NVML_TOPOLOGY_SYSTEM), 10),
    ("one NUMA node", pair(level=pynvml.NVML_TOPOLOGY_NODE), 20),
    ("one host bridge", pair(level=pynvml.NVML_TOPOLOGY_HOSTBRIDGE), 30),
    ("several switches", pair(level=pynvml.NVML_TOPOLOGY_MULTIPLE), 40),
    ("one switch", pair(level=pynvml.NVML_TOPOLOGY_SINGLE), 50),
    ("one board", pair(level=pynvml.NVML_TOPOLOGY_INTERNAL), 60),
    ("two links", pair((1, 1), (0, 0)), 210),
    ("one of them off", pair((1, None), (0, None)), 110),
    ("through a switch, as many as both have", pair(("switch",) * 12, ("switch",) * 18), 1210),
    ("18 at most", pair(("switch",) * 20, ("switch",) * 20), 1810),
    ("a switch of one alone", pair(("switch",), ()), 10),
    ("a broken link", pair((1, 1), (0,)), 10),
)
def test_scores_of_a_pair(nvml, score):
    first, second = NvmlCards(nvml, links=True).cards()
    assert (first.links, second.links) == ({"GPU-1": score}, {"GPU-0": score})


def test_an_asymmetric_link_is_reported_once():
    warnings = []
    source = NvmlCards(
        pair((1, 1), (0,)), links=True, warn=lambda *warning: warnings.append(warning)
    )
    for _ in range(2):
        source.cards()
    assert warnings == [
        (
            "AsymmetricGPUP2PLink",
            "GPU-0 has 2 NVLinks to GPU-1, which has 1 back: the pair counts as not linked",
        )
    ]


@cases(
    "function, score",
    ("nvmlDeviceGetTopologyCommonAncestor", 200),
    ("nvmlDeviceGetNvLinkState", 10),
    ("nvmlDeviceGetNvLinkRemotePciInfo", 10),
    ("nvmlDeviceGetPciInfo", 10),
)
def test_an_unreadable_part_of_a_score_is_0(function, score):
    nvml = pair((1, 1), (0, 0))
    nvml.fail(function, NOT_SUPPORTED)
    assert [card.links for card in NvmlCards(nvml, links=True).cards()] == [
        {"GPU-1": score},
        {"GPU-0": score},
    ]


def test_cards_with_a_shared_node_have_no_node_of_their_own():
    nodes = [
        [card.node for card in NvmlCards(three(), shared_node=node).cards()]
        for node in ("", "/dev/dxg")
    ]
    assert nodes == [["/dev/nvidia4", "/dev/nvidia5", "/dev/nvidia6"], ["/dev/dxg"] * 3]


# ---- the library


@pytest.mark.parametrize(
    "folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"]
)
def test_the_library_in_the_driver_root_is_found(tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "libnvidia-ml.so.570").touch()
    (tmp_path / folder / LIBRARY).symlink_to("libnvidia-ml.so.570")
    assert library_path(str(tmp_path)) == str(tmp_path / folder / "libnvidia-ml.so.570")


@pytest.mark.parametrize("root", ["", "/", "/nowhere"])
def test_otherwise_the_linker_finds_the_library(root):
    assert library_path(root) == LIBRARY
