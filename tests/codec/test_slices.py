"""ResourceSlices: what kube-scheduler learns of a node's cards."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import param

from hami.codec.slices import PublishedSlice, device_name, is_published, parse_slice, render_slices
from hami.errors import MalformedInput
from hami.quantity import parse_quantity
from tests.builders import gpu

UUID = "GPU-5A1C0D1E-0000-4000-8000-000000000001"
A100 = gpu(UUID, model="NVIDIA A100-SXM4-80GB", memory_mib=81920, numa=1)


def cards(number, **fields):
    return [gpu(f"GPU-{index}", index=index, **fields) for index in range(number)]


def rendered(*devices, **options):
    (document,) = render_slices("n1", devices, **options)
    return document["spec"]["devices"]


def test_a_slice_tells_what_is_known_of_a_card():
    (document,) = render_slices("n1", [A100], generation=7, node_uid="node-uid", pci_bus_ids={UUID: "0000:3b:00.0"})
    assert document == {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": "0-gpu.hami.io-n1", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": True}]},
        "spec": {
            "driver": "gpu.hami.io", "nodeName": "n1",
            "pool": {"name": "hami/n1", "generation": 7, "resourceSliceCount": 1},
            "devices": [{
                "name": "gpu-5a1c0d1e-0000-4000-8000-000000000001", "allowMultipleAllocations": True,
                "attributes": {
                    "type": {"string": "gpu"}, "uuid": {"string": UUID},
                    "productName": {"string": "NVIDIA A100-SXM4-80GB"}, "mode": {"string": "hami-core"},
                    "index": {"int": 0}, "memoryMiB": {"int": 81920}, "resource.kubernetes.io/numaNode": {"int": 1},
                    "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"}},
                "capacity": {
                    "memory": {"value": "80Gi", "requestPolicy": {
                        "default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"}}},
                    "cores": {"value": "100", "requestPolicy": {
                        "default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}},
                    "share": {"value": "100", "requestPolicy": {
                        "default": "10", "validRange": {"min": "10", "max": "100"}}}}}]}}


@pytest.mark.parametrize("slots", [*range(1, 101), 256, 316])
def test_as_many_claims_fit_on_a_card_as_it_has_slots(slots):
    (device,) = rendered(gpu(slots=slots))
    assert 100 // parse_quantity(device["capacity"]["share"]["requestPolicy"]["default"]) == slots


@pytest.mark.parametrize("slots, least", [(0, "100"), (1, "100"), (8, "12500m"), (15, "6666m"), (2**31 - 1, "1m")])
def test_the_least_share_is_written_as_the_api_server_writes_it(slots, least):
    assert rendered(gpu(slots=slots))[0]["capacity"]["share"]["requestPolicy"]["default"] == least


@pytest.mark.parametrize("cores, limits", [
    param(100, {"min": "0", "max": "100", "step": "1"}, id="all"),
    param(250, {"min": "0", "max": "100", "step": "1"}, id="scaled: a claim gets at most one card's"),
    param(0, {"min": "0", "max": "0"}, id="none"),
])
def test_cores(cores, limits):
    capacity = rendered(gpu(cores=cores))[0]["capacity"]["cores"]
    assert (capacity["value"], capacity["requestPolicy"]["validRange"]) == (str(cores), limits)


@pytest.mark.parametrize("device, taints", [
    param(gpu(), [], id="healthy"),
    param(gpu(cordoned=True), ["hami.io/cordoned"], id="cordoned"),
    param(gpu(healthy=False), ["hami.io/unhealthy"], id="unhealthy"),
    param(gpu(cordoned=True, healthy=False), ["hami.io/cordoned", "hami.io/unhealthy"], id="both"),
    param(gpu(by_claims=True), ["hami.io/managed"], id="allocated by HAMi's scheduler"),
])
def test_taints(device, taints):
    (rendered_device,) = rendered(device)
    assert rendered_device.get("taints", []) == [{"key": key, "effect": "NoSchedule"} for key in taints]


@pytest.mark.parametrize("device", [
    param(gpu(mode="mig"), id="in MIG mode"), param(gpu(memory_mib=1), id="no memory"),
    param(gpu("GPU-a_b"), id="no name"), param(gpu("GPU-" + "a" * 60), id="a name that is too long"),
])
def test_what_a_slice_cannot_say_is_left_out(device):
    assert render_slices("n1", [device]) == ()
    assert [rest["name"] for rest in rendered(gpu("GPU-1"), device)] == ["gpu-1"]


def test_long_texts_are_cut():
    (device,) = rendered(gpu(model="é" * 40))
    assert device["attributes"]["productName"] == {"string": "é" * 32}


def test_the_order_is_that_of_indexes_and_equal_inventories_make_equal_slices():
    devices = cards(8)
    assert [device["name"] for device in rendered(*reversed(devices))] == [f"gpu-{index}" for index in range(8)]
    assert render_slices("n1", reversed(devices)) == render_slices("n1", devices)


def test_of_two_cards_with_one_name_the_first_counts():
    devices = [gpu("GPU-a", index=0, memory_mib=1000), gpu("GPU-A", index=1), gpu("GPU-b", index=2)]
    assert [(device["name"], device["attributes"]["index"]["int"]) for device in rendered(*devices)] == [
        ("gpu-a", 0), ("gpu-b", 2)]


def test_a_pool_has_as_many_slices_as_its_cards_need():
    first, second = render_slices("n1", cards(65), generation=2)
    assert [len(document["spec"]["devices"]) for document in (first, second)] == [64, 1]
    assert [document["metadata"]["name"] for document in (first, second)] == ["0-gpu.hami.io-n1", "1-gpu.hami.io-n1"]
    assert first["spec"]["pool"] == second["spec"]["pool"] == {
        "name": "hami/n1", "generation": 2, "resourceSliceCount": 2}


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


@pytest.mark.parametrize("devices", [
    param([gpu("GPU-1")], id="another card"), param([gpu(), gpu("GPU-1")], id="a card more"),
    param([gpu(memory_mib=7)], id="memory"), param([gpu(cordoned=True)], id="cordoned"),
    param([gpu(index=1)], id="index"),
])
def test_any_other_difference_counts(devices):
    (found,) = render_slices("n1", [gpu()])
    assert not any(is_published(found, wanted) for wanted in render_slices("n1", devices))


def read(document):
    return parse_slice(json.dumps(document).encode())


@given(slots=st.integers(1, 316), memory=st.integers(2, 2**31 - 1), cores=st.integers(0, 100), numa=st.integers(0, 7),
       index=st.integers(0, 255), healthy=st.booleans(), cordoned=st.booleans(), by_claims=st.booleans())
def test_a_slice_is_read_as_it_was_written(slots, memory, **fields):
    card = gpu(UUID, slots=slots, memory_mib=memory, **fields)
    (document,) = render_slices("n1", [card], generation=3)
    assert read(document) == PublishedSlice("n1", 3, (card,))


@pytest.mark.parametrize("field, value", [("driver", "gpu.nvidia.com"), ("nodeName", "n2"), ("pool", {"name": "n1"})])
def test_slices_of_others_are_left_out(field, value):
    (document,) = render_slices("n1", [A100])
    document["spec"][field] = value
    assert read(document) is None


@pytest.mark.parametrize("part, value, words", [
    ("attributes", 7, "resourceslice"), ("capacity", {}, r"spec\.devices\[0\]\.capacity\[share\]"),
    ("capacity", {"share": {"value": "100", "requestPolicy": {"default": "many"}}}, "many"),
    ("capacity", {"share": {"value": "100", "requestPolicy": {"default": "10"}}, "memory": {"value": "1Ei"}}, "1Ei"),
    ("attributes", {"uuid": {"string": "x" * 65}}, "resourceslice"), ("taints", [{"key": "x"}] * 17, "resourceslice"),
])
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
