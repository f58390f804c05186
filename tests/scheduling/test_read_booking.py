"""What pods' annotations say that they take; nothing is free by mistake."""

import pytest
from pytest import param

from hami.scheduling.read_booking import read_booking
from tests.builders import APP, INIT, NVIDIA, ONLY_NVIDIA, booking, charge, container, pod, usage

TWO = container(), container()
NODE = {"NVIDIA": [usage("GPU-a", memory_mib=1000), usage("GPU-b", 3, 50, 10, memory_mib=2000)]}
WHOLE_A, WHOLE_B = charge("GPU-a", 10, 1000, 100), charge("GPU-b", 10, 2000, 100)


def read(text, *containers, annotation=NVIDIA.allocated, **fields):
    annotations = {} if text is None else {annotation: text}
    asked = pod(*(containers or TWO), annotations=annotations, **fields)
    return read_booking(asked, "n1", ONLY_NVIDIA, lambda node: NODE)


@pytest.mark.parametrize("text, charges", [
    param(None, [], id="no annotation"),
    param("", [], id="nothing"),
    param(";;", [], id="consumed"),
    param("GPU-a,NVIDIA,300,30:;GPU-a,NVIDIA,500,20:;", [charge("GPU-a", 2, 800, 50)], id="two containers"),
    param("GPU-a,NVIDIA,300,30:;", [charge("GPU-a", 1, 300, 30)], id="an empty entry left out"),
    param("GPU-z,NVIDIA,300,30:;;", [charge("GPU-z", 1, 300, 30)], id="a device that the node does not have"),
])
def test_readable(text, charges):
    assert read(text) == (booking("uid-pod1", "n1", *charges), ())


@pytest.mark.parametrize("init_done, taken", [(False, 900), (True, 300)])
def test_init_containers_count_until_they_are_done(init_done, taken):
    found, _ = read("GPU-a,NVIDIA,900,0:;GPU-a,NVIDIA,300,0:;", container(kind=INIT), container(kind=APP),
                    init_done=init_done)
    assert found == booking("uid-pod1", "n1", charge("GPU-a", 1, taken, 0))


@pytest.mark.parametrize("text, charges", [
    param("GPU-a,NVIDIA,300:;GPU-b,NVIDIA,1,1:;", [WHOLE_A, WHOLE_B], id="all devices that are mentioned"),
    param("GPU-b,NVIDIA,x,0:;", [WHOLE_B], id="no number"),
    param("GPU-a,NVIDIA,-300,0:;", [WHOLE_A], id="would make room"),
    param(f"GPU-a,NVIDIA,{'9' * 5000},0:;", [WHOLE_A], id="huge"),
    param("GPU-a-1,x", [WHOLE_A], id="part of a longer word"),
    param("GPU-z,NVIDIA,x,0:;", [], id="a device that the node does not have"),
    param("a,b", [], id="garbage"),
])
def test_what_cannot_be_read_counts_as_whole_devices(text, charges):
    found, (problem,) = read(text)
    assert found == booking("uid-pod1", "n1", *charges)
    assert problem.startswith("hami.io/vgpu-devices-allocated: ")


def test_what_is_still_to_be_allocated_does_not_count_twice():
    assert read("GPU-a,NVIDIA,300,30:;", annotation=NVIDIA.to_allocate) == (booking("uid-pod1", "n1"), ())
