"""What looks like a wish for devices and is none: the warnings about a pod."""

import pytest

from hami.codec.device_config import chart_config
from hami.scheduling.quota import DeviceSizes
from hami.vendors.entry_points import full_catalog
from hami.vendors.vocabulary import Vocabulary
from hami.vendors.wishes import MAX_NAMES, MOST, Wishes
from testing.builders import container, gpus, pod
from testing.cases import cases

WISHES = Wishes(Vocabulary(full_catalog(chart_config())))
SIZES = {"NVIDIA": DeviceSizes(40_000, 80_000, False)}


def warnings(*containers, offered=(), sizes=None, **annotations):
    """The warnings about a pod in a cluster whose largest GPU has 80,000 MiB."""
    made = pod(*containers, annotations=annotations)
    return WISHES.warnings(made, offered.__contains__, SIZES if sizes is None else sizes)


@cases(
    "key, warning",
    (
        "nvidia.com/gpumem",
        "annotation nvidia.com/gpumem is no request of devices: write nvidia.com/gpumem under "
        "resources.limits of a container",
    ),
    (
        "hami.io/gpu-schedular-policy",
        "annotation hami.io/gpu-schedular-policy has no effect: did you mean hami.io/gpu-scheduler-policy?",
    ),
    (
        "nvidia.com/use-gputypes",
        "annotation nvidia.com/use-gputypes has no effect: did you mean nvidia.com/use-gputype?",
    ),
    ("hami.io/webhook", "annotation hami.io/webhook has no effect: write it as a label"),
    ("hami.io/device-cordon", "annotation hami.io/device-cordon has no effect: write it on nodes"),
    ("hami.io/xyz", "annotation hami.io/xyz has no effect: HAMi knows none of that name"),
)
def test_annotations_that_mean_nothing(key, warning):
    assert warnings(gpus(), **{key: "4000"}) == [warning]


@cases(
    "key, warnings",
    (
        "nvidia.com/gpumem",
        [
            "label nvidia.com/gpumem is no request of devices: write nvidia.com/gpumem under resources.limits of "
            "a container"
        ],
    ),
    (
        "hami.io/gpu-scheduler-policy",
        ["label hami.io/gpu-scheduler-policy has no effect: write it as an annotation"],
    ),
    ("hami.io/webhook", []),
    ("hami.io/team", []),
    ("app", []),
)
def test_labels_that_mean_something_elsewhere(key, warnings):
    made = pod(gpus(), labels={key: "x"})
    assert WISHES.warnings(made, ().__contains__, SIZES) == warnings


POLICIES = ("hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy")


@cases(
    "annotations, labels, found",
    ("annotation", {POLICIES[0]: "spread"}, {}, [(POLICIES[0], "annotation")]),
    ("label", {}, {POLICIES[1]: "spread"}, [(POLICIES[1], "label")]),
    ("words for nodes", {"hami.io/device-cordon": "a"}, {"hami.io/allocation-mode": "dra"}, []),
    (
        "words of programs",
        {"huawei.com/Ascend310P": "x", "hami.io/node-nvidia-register": "[]"},
        {"gpu": "on"},
        [],
    ),
)
def test_words_for_pods_on_a_node(annotations, labels, found):
    assert list(WISHES.misplaced_on_node(annotations, labels)) == found


@pytest.mark.parametrize(
    "key",
    [
        "hami.io/gpu-scheduler-policy",
        "hami.io/resize",
        "nvidia.com/use-gputype",
        "nvidia.com/driver-notes",
        "example.com/gpumem",
        "hami.io/vgpu-node",
    ],
)
def test_annotations_that_mean_something_or_are_not_ours(key):
    assert warnings(gpus(), **{key: "x"}) == []


@cases(
    "limits, warning",
    (
        "no resource",
        {"nvidia.com/gpu": 1, "nvidia.com/gpumemory": 4000},
        "container c: nobody manages nvidia.com/gpumemory, and no node offers it: did you mean nvidia.com/gpumem?",
    ),
    (
        "a unit",
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "1Gi"},
        (
            "container c requests 1Gi of nvidia.com/gpumem, 1,073,741,824 MiB: no device of the cluster has more "
            "than 80,000 MiB; "
            "it is in MiB, without a unit: 1024"
        ),
    ),
    (
        "too much memory",
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 80_001},
        (
            "container c requests 80001 of nvidia.com/gpumem, 80,001 MiB: no device of the cluster has more "
            "than 80,000 MiB"
        ),
    ),
    (
        "too many cores",
        {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 150},
        "container c requests 150 of nvidia.com/gpucores: no device has more than 100 percent",
    ),
    (
        "no count",
        {"hygon.com/dcumem": 2000},
        (
            "container c requests hygon.com/dcumem without hygon.com/dcunum, so it gets no device: request "
            "hygon.com/dcunum: 1, too"
        ),
    ),
)
def test_amounts_that_get_no_device(limits, warning):
    assert warnings(container(limits)) == [warning]


@pytest.mark.parametrize(
    "limits",
    [
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 80_000, "nvidia.com/gpucores": 100},
        {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 1},
        {"nvidia.com/gpu": 1, "rdma/hca": 1},
        {"nvidia.com/gpu": 0, "nvidia.com/gpumem": 0},
        {"nvidia.com/gpu": 0, "nvidia.com/gpumem": 80_001, "nvidia.com/gpucores": 150},
        {"cpu": 1},
    ],
    ids=str,
)
def test_wishes_that_can_come_true(limits):
    assert warnings(container(limits)) == []


def test_a_resource_that_a_node_offers_has_another_manager():
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumemory": 4000}
    assert warnings(container(limits), offered={"nvidia.com/gpumemory"}) == []


@pytest.mark.parametrize("others, count", [(MAX_NAMES - 1, 1), (MAX_NAMES, 0)])
def test_so_many_resources_of_a_pod_are_looked_at(others, count):
    first = container({f"nvidia.com/{'z' * 40}{n}": 1 for n in range(others)})
    assert len(warnings(first, container({"nvidia.com/gpumemory": 1}))) == count


def test_nothing_is_known_of_a_cluster_without_devices():
    assert warnings(gpus(memory=10**6), sizes={}) == []


def test_there_are_few_warnings_about_one_pod():
    assert len(warnings(gpus(), **{f"hami.io/x{n}": "" for n in range(100)})) == MOST
