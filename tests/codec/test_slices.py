"""ResourceSlices: what kube-scheduler learns of a node's cards."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.slices import (
    PublishedSlice,
    device_name,
    divided_cards,
    is_instance,
    is_published,
    parse_slice,
    render_slices,
)
from hami.errors import MalformedInput
from hami.model import Partition
from hami.quantity import parse_quantity
from testing.builders import gpu
from testing.cards import A100_PLACEMENTS, A100_PROFILES
from testing.cases import cases

UUID = "GPU-5A1C0D1E-0000-4000-8000-000000000001"
A100 = gpu(UUID, model="NVIDIA A100-SXM4-80GB", memory_mib=81920, numa=1)


def cards(number, **fields):
    return [gpu(f"GPU-{index}", index=index, **fields) for index in range(number)]


def rendered(*devices, **options):
    (document,) = render_slices("n1", devices, **options)
    return document["spec"]["devices"]


def test_a_slice_tells_what_is_known_of_a_card():
    (document,) = render_slices(
        "n1", [A100], generation=7, node_uid="node-uid", pci_bus_ids={UUID: "0000:3b:00.0"}
    )
    assert document == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": "0-gpu.hami.io-n1",
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": "n1",
                    "uid": "node-uid",
                    "controller": True,
                }
            ],
        },
        "spec": {
            "driver": "gpu.hami.io",
            "nodeName": "n1",
            "pool": {"name": "hami/n1", "generation": 7, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": "gpu-5a1c0d1e-0000-4000-8000-000000000001",
                    "allowMultipleAllocations": True,
                    "attributes": {
                        "type": {"string": "gpu"},
                        "uuid": {"string": UUID},
                        "productName": {"string": "NVIDIA A100-SXM4-80GB"},
                        "mode": {"string": "hami-core"},
                        "index": {"int": 0},
                        "memoryMiB": {"int": 81920},
                        "resource.kubernetes.io/numaNode": {"int": 1},
                        "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
                    },
                    "capacity": {
                        "memory": {
                            "value": "80Gi",
                            "requestPolicy": {
                                "default": "80Gi",
                                "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"},
                            },
                        },
                        "cores": {
                            "value": "100",
                            "requestPolicy": {
                                "default": "0",
                                "validRange": {"min": "0", "max": "100", "step": "1"},
                            },
                        },
                        "share": {
                            "value": "100",
                            "requestPolicy": {
                                "default": "10",
                                "validRange": {"min": "10", "max": "100"},
                            },
                        },
                    },
                }
            ],
        },
    }


@pytest.mark.parametrize("slots", [*range(1, 101), 256, 316])
def test_as_many_claims_fit_on_a_card_as_it_has_slots(slots):
    (device,) = rendered(gpu(slots=slots))
    assert 100 // parse_quantity(device["capacity"]["share"]["requestPolicy"]["default"]) == slots


@cases("slots, least", (0, "100"), (1, "100"), (8, "12500m"), (15, "6666m"), (2**31 - 1, "1m"))
def test_the_least_share_is_written_as_the_api_server_writes_it(slots, least):
    assert rendered(gpu(slots=slots))[0]["capacity"]["share"]["requestPolicy"]["default"] == least


@cases(
    "cores, limits",
    ("all", 100, {"min": "0", "max": "100", "step": "1"}),
    ("scaled: a claim gets at most one card's", 250, {"min": "0", "max": "100", "step": "1"}),
    ("none", 0, {"min": "0", "max": "0"}),
)
def test_cores(cores, limits):
    capacity = rendered(gpu(cores=cores))[0]["capacity"]["cores"]
    assert (capacity["value"], capacity["requestPolicy"]["validRange"]) == (str(cores), limits)


@cases(
    "device, taints",
    ("healthy", gpu(), []),
    ("cordoned", gpu(cordoned=True), ["hami.io/cordoned"]),
    ("unhealthy", gpu(healthy=False), ["hami.io/unhealthy"]),
    ("both", gpu(cordoned=True, healthy=False), ["hami.io/cordoned", "hami.io/unhealthy"]),
    ("allocated by HAMi's scheduler", gpu(by_claims=True), ["hami.io/managed"]),
)
def test_taints(device, taints):
    (rendered_device,) = rendered(device)
    assert rendered_device.get("taints", []) == [
        {"key": key, "effect": "NoSchedule"} for key in taints
    ]


@cases(
    "device",
    ("in MIG mode, without profiles", gpu(mode="mig")),
    ("no memory", gpu(memory_mib=1)),
    ("no name", gpu("GPU-a_b")),
    ("a name that is too long", gpu("GPU-" + "a" * 60)),
)
def test_what_a_slice_cannot_say_is_left_out(device):
    assert render_slices("n1", [device]) == ()
    assert [rest["name"] for rest in rendered(gpu("GPU-1"), device)] == ["gpu-1"]


def test_long_texts_are_cut():
    (device,) = rendered(gpu(model="é" * 40))
    assert device["attributes"]["productName"] == {"string": "é" * 32}


def test_the_order_is_that_of_indexes_and_equal_inventories_make_equal_slices():
    devices = cards(8)
    assert [device["name"] for device in rendered(*reversed(devices))] == [
        f"gpu-{index}" for index in range(8)
    ]
    assert render_slices("n1", reversed(devices)) == render_slices("n1", devices)


def test_of_two_cards_with_one_name_the_first_counts():
    devices = [gpu("GPU-a", index=0, memory_mib=1000), gpu("GPU-A", index=1), gpu("GPU-b", index=2)]
    assert [
        (device["name"], device["attributes"]["index"]["int"]) for device in rendered(*devices)
    ] == [("gpu-a", 0), ("gpu-b", 2)]


def test_a_pool_has_as_many_slices_as_its_cards_need():
    first, second = render_slices("n1", cards(65), generation=2)
    assert [len(document["spec"]["devices"]) for document in (first, second)] == [64, 1]
    assert [document["metadata"]["name"] for document in (first, second)] == [
        "0-gpu.hami.io-n1",
        "1-gpu.hami.io-n1",
    ]
    assert (
        first["spec"]["pool"]
        == second["spec"]["pool"]
        == {"name": "hami/n1", "generation": 2, "resourceSliceCount": 2}
    )


def test_the_name_of_a_node_must_fit():
    assert len(render_slices("n" * 237, cards(1))[0]["metadata"]["name"]) <= 253
    with pytest.raises(MalformedInput, match="at most 237"):
        render_slices("n" * 238, cards(1))


def test_what_the_api_server_adds_is_no_difference():
    (wanted,) = render_slices("n1", [gpu(cordoned=True)])
    found = json.loads(json.dumps(wanted))
    found["metadata"] |= {"resourceVersion": "7", "uid": "u"}
    found["spec"]["pool"]["generation"] = 9
    found["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-11-26T08:00:00Z"
    assert is_published(found, wanted)


@cases(
    "devices",
    ("another card", [gpu("GPU-1")]),
    ("a card more", [gpu(), gpu("GPU-1")]),
    ("memory", [gpu(memory_mib=7)]),
    ("cordoned", [gpu(cordoned=True)]),
    ("index", [gpu(index=1)]),
)
def test_any_other_difference_counts(devices):
    (found,) = render_slices("n1", [gpu()])
    assert not any(is_published(found, wanted) for wanted in render_slices("n1", devices))


def read(document):
    return parse_slice(json.dumps(document).encode())


@given(
    slots=st.integers(1, 316),
    memory=st.integers(2, 2**31 - 1),
    cores=st.integers(0, 100),
    numa=st.integers(0, 7),
    index=st.integers(0, 255),
    healthy=st.booleans(),
    cordoned=st.booleans(),
    by_claims=st.booleans(),
)
def test_a_slice_is_read_as_it_was_written(slots, memory, **fields):
    card = gpu(UUID, slots=slots, memory_mib=memory, **fields)
    (document,) = render_slices("n1", [card], generation=3)
    assert read(document) == PublishedSlice("n1", 3, (card,))


@cases("field, value", ("driver", "gpu.nvidia.com"), ("nodeName", "n2"), ("pool", {"name": "n1"}))
def test_slices_of_others_are_left_out(field, value):
    (document,) = render_slices("n1", [A100])
    document["spec"][field] = value
    assert read(document) is None


@cases(
    "part, value, words",
    ("attributes", 7, "resourceslice"),
    ("capacity", {}, r"spec\.devices\[0\]\.capacity\[share\]"),
    ("capacity", {"share": {"value": "100", "requestPolicy": {"default": "many"}}}, "many"),
    (
        "capacity",
        {"share": {"value": "100", "requestPolicy": {"default": "10"}}, "memory": {"value": "1Ei"}},
        "1Ei",
    ),
    ("attributes", {"uuid": {"string": "x" * 65}}, "resourceslice"),
    ("taints", [{"key": "x"}] * 17, "resourceslice"),
)
def test_slices_that_cannot_be_read_are_refused(part, value, words):
    (document,) = render_slices("n1", [A100])
    document["spec"]["devices"][0][part] = value
    with pytest.raises(MalformedInput, match=words):
        read(document)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_texts_that_are_no_slices_are_refused(text):
    with pytest.raises(MalformedInput, match="resourceslice"):
        parse_slice(text.encode())


@given(st.text())
def test_a_name_is_in_lower_case(uuid):
    assert device_name(uuid) == device_name(uuid.removeprefix("GPU-")).lower()


# ---- cards in MIG mode


def divided(uuid=UUID, profiles=A100_PROFILES, **fields):
    return gpu(
        uuid,
        mode="mig",
        model="NVIDIA A100-SXM4-80GB",
        memory_mib=81920,
        mig_profiles=profiles,
        **fields,
    )


def instances_of(*documents):
    return [device for document in documents for device in document["spec"].get("devices", ())]


def test_a_card_in_mig_mode_has_counters_and_a_device_for_each_place_of_an_instance():
    sets, parts = render_slices("n1", [divided(numa=1, cordoned=True)], generation=7)
    name = "gpu-5a1c0d1e-0000-4000-8000-000000000001"
    assert sets["spec"] == {
        "driver": "gpu.hami.io",
        "nodeName": "n1",
        "pool": {"name": "hami/n1", "generation": 7, "resourceSliceCount": 2},
        "sharedCounters": [
            {
                "name": name,
                "counters": {f"memory-slice-{number}": {"value": "1"} for number in range(8)},
            }
        ],
    }
    assert parts["spec"]["pool"] == sets["spec"]["pool"]
    (device,) = (
        each for each in parts["spec"]["devices"] if each["name"] == f"{name}-mig-3g-40gb-4"
    )
    assert device == {
        "name": f"{name}-mig-3g-40gb-4",
        "attributes": {
            "type": {"string": "mig"},
            "profile": {"string": "3g.40gb"},
            "parentUUID": {"string": UUID},
            "productName": {"string": "NVIDIA A100-SXM4-80GB"},
            "index": {"int": 0},
            "memoryMiB": {"int": 40192},
            "parentMemoryMiB": {"int": A100.memory_mib},
            "resource.kubernetes.io/numaNode": {"int": 1},
        },
        "capacity": {"memory": {"value": "40192Mi"}, "cores": {"value": "45"}},
        "consumesCounters": [
            {
                "counterSet": name,
                "counters": {f"memory-slice-{number}": {"value": "1"} for number in (4, 5, 6, 7)},
            }
        ],
        "taints": [{"key": "hami.io/cordoned", "effect": "NoSchedule"}],
    }


def test_instances_are_in_the_order_in_which_the_scheduler_tries_them():
    names = [
        device["name"].partition("-mig-")[2]
        for device in instances_of(*render_slices("n1", [divided()]))
    ]
    assert names == [
        *(f"1g-10gb-{start}" for start in range(6, -1, -1)),
        *(f"1g-20gb-{start}" for start in range(6, -1, -2)),
        "2g-20gb-0",
        "2g-20gb-2",
        "2g-20gb-4",
        "3g-40gb-4",
        "3g-40gb-0",
        "4g-40gb-0",
        "7g-80gb-0",
    ]


@pytest.mark.parametrize("number", [1, 8, 9, 16])
def test_slices_of_cards_in_mig_mode_keep_the_limits_of_the_api(number):
    documents = render_slices(
        "n1", [divided(f"GPU-{index}", index=index) for index in range(number)], generation=2
    )
    for place, document in enumerate(documents):
        spec = document["spec"]
        assert document["metadata"]["name"] == f"{place}-gpu.hami.io-n1"
        assert spec["pool"]["resourceSliceCount"] == len(documents)
        assert ("sharedCounters" in spec) != ("devices" in spec)
        assert len(spec.get("sharedCounters", ())) <= 8
        assert len(spec.get("devices", ())) <= 64
    names = [device["name"] for device in instances_of(*documents)]
    assert len(set(names)) == len(names) == 18 * number


@cases(
    "device",
    ("names that are too long", divided("GPU-" + "a" * 50)),
    ("no names", divided("GPU-a_b")),
    (
        "too many memory slices",
        divided(profiles=(replace(A100_PROFILES[0], placements=(Partition(32),)),)),
    ),
)
def test_instances_that_a_slice_cannot_have_are_left_out(device):
    assert render_slices("n1", [device]) == ()


def test_shared_cards_and_cards_in_mig_mode_make_one_pool():
    documents = render_slices("n1", [gpu("GPU-1", index=1), divided("GPU-0")])
    assert [
        sorted(document["spec"].keys() & {"devices", "sharedCounters"}) for document in documents
    ] == [["devices"], ["sharedCounters"], ["devices"]]
    assert [device["name"] for device in documents[0]["spec"]["devices"]] == ["gpu-1"]


def allowed(documents, chosen):
    """Whether kube-scheduler would allocate all *chosen* devices: it adds up what they consume."""
    limits = {
        (each["name"], counter): int(amount["value"])
        for document in documents
        for each in document["spec"].get("sharedCounters", ())
        for counter, amount in each["counters"].items()
    }
    used = Counter(
        (part["counterSet"], counter)
        for device in chosen
        for part in device["consumesCounters"]
        for counter, amount in part["counters"].items()
        for _ in range(int(amount["value"]))
    )
    return all(amount <= limits[counter] for counter, amount in used.items())


@given(
    st.lists(
        st.sampled_from(
            [
                (card, name, start)
                for card in range(2)
                for name in A100_PLACEMENTS
                for start in A100_PLACEMENTS[name][2]
            ]
        ),
        max_size=8,
        unique=True,
    )
)
def test_counters_allow_exactly_the_sets_of_instances_that_do_not_overlap(chosen):
    documents = render_slices("n1", [divided(f"GPU-{card}", index=card) for card in range(2)])
    devices = {device["name"]: device for device in instances_of(*documents)}
    occupied = Counter(
        (card, start + offset)
        for card, name, start in chosen
        for offset in range(A100_PLACEMENTS[name][3])
    )
    wanted = [
        devices[f"gpu-{card}-mig-{name.replace('.', '-')}-{start}"] for card, name, start in chosen
    ]
    assert allowed(documents, wanted) == all(count == 1 for count in occupied.values())
    if allowed(documents, wanted):  # then there are enough multiprocessors
        assert all(
            sum(A100_PLACEMENTS[name][1] for on, name, _ in chosen if on == card) <= 7
            for card in range(2)
        )


def test_cards_in_mig_mode_are_read_as_they_were_written():
    wanted = [
        divided(f"GPU-{index}", index=index, slots=7, numa=index % 2, cordoned=index == 1)
        for index in range(9)
    ]
    parts = [read(document) for document in render_slices("n1", wanted, generation=3)]
    assert {part.generation for part in parts} == {3}
    assert not any(part.devices for part in parts)
    found = divided_cards(instance for part in parts for instance in part.instances)
    for card, before in zip(found, wanted, strict=True):
        assert replace(card, mig_profiles=()) == replace(before, mig_profiles=())
        assert {
            (profile.name, profile.memory_mib, profile.cores, frozenset(profile.placements))
            for profile in card.mig_profiles
        } == {
            (profile.name, profile.memory_mib, profile.cores, frozenset(profile.placements))
            for profile in A100_PROFILES
        }


@pytest.mark.parametrize(
    "counters", [[], ["sm"], ["memory-slice-1", "memory-slice-3"], ["memory-slice-1", "sm"]]
)
def test_an_instance_without_a_place_is_refused(counters):
    _, document = render_slices("n1", [divided()])
    document["spec"]["devices"][0]["consumesCounters"] = [
        {"counterSet": "x", "counters": {name: {"value": "1"} for name in counters}}
    ]
    with pytest.raises(MalformedInput, match=r"spec\.devices\[0\]\.consumesCounters"):
        read(document)


def test_the_name_of_an_instance_is_no_other_devices():
    assert not is_instance(device_name(UUID))
    assert render_slices("n1", [gpu("GPU-a-mig-1g-5gb-0")]) == ()
