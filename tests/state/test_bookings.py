"""What pods' annotations say that they take; nothing is free by mistake, and nothing is taken that is not requested."""

import pytest

from testing.builders import (
    APP,
    INIT,
    NVIDIA,
    ONLY_NVIDIA,
    booking,
    booking_of,
    charge,
    container,
    gpus,
    pod,
    usage,
)
from testing.cases import cases

TWO = gpus(), gpus()
NODE = {"NVIDIA": [usage("GPU-a", memory_mib=1000), usage("GPU-b", 3, 50, 10, memory_mib=2000)]}
WHOLE_A, WHOLE_B = charge("GPU-a", 10, 1000, 100), charge("GPU-b", 10, 2000, 100)


def read(text, *containers, annotation=NVIDIA.annotations.allocated, **fields):
    annotations = {} if text is None else {annotation: text}
    asked = pod(*(containers or TWO), annotations=annotations, **fields)
    return booking_of(asked, "n1", ONLY_NVIDIA, lambda node: NODE)


@cases(
    "text, charges",
    ("no annotation", None, []),
    ("nothing", "", []),
    ("consumed", ";;", []),
    ("two containers", "GPU-a,NVIDIA,300,30:;GPU-a,NVIDIA,500,20:;", [charge("GPU-a", 2, 800, 50)]),
    ("an empty entry left out", "GPU-a,NVIDIA,300,30:;", [charge("GPU-a", 1, 300, 30)]),
    (
        "a device that the node does not have",
        "GPU-z,NVIDIA,300,30:;;",
        [charge("GPU-z", 1, 300, 30)],
    ),
)
def test_readable(text, charges):
    assert read(text) == (booking("uid-pod1", "n1", *charges), ())


@pytest.mark.parametrize("init_done, taken", [(False, 900), (True, 300)])
def test_init_containers_count_until_they_are_done(init_done, taken):
    found, _ = read(
        "GPU-a,NVIDIA,900,0:;GPU-a,NVIDIA,300,0:;",
        gpus(kind=INIT),
        gpus(kind=APP),
        init_done=init_done,
    )
    assert found == booking("uid-pod1", "n1", charge("GPU-a", 1, taken, 0))


@cases(
    "text, charges",
    ("all devices that are mentioned", "GPU-a,NVIDIA,300:;GPU-b,NVIDIA,1,1:;", [WHOLE_A, WHOLE_B]),
    ("no number", "GPU-b,NVIDIA,x,0:;", [WHOLE_B]),
    ("would make room", "GPU-a,NVIDIA,-300,0:;", [WHOLE_A]),
    ("huge", f"GPU-a,NVIDIA,{'9' * 5000},0:;", [WHOLE_A]),
    ("part of a longer word", "GPU-a-1,x", [WHOLE_A]),
    ("a device that the node does not have", "GPU-z,NVIDIA,x,0:;", []),
    ("garbage", "a,b", []),
    ("too many shares", "GPU-z,NVIDIA,0,0:;" * 3000 + "GPU-b,NVIDIA,1,1:;", [WHOLE_B]),
    ("too long", "GPU-" * 50_000 + "GPU-a", [WHOLE_A]),
)
def test_what_cannot_be_read_counts_as_whole_devices(text, charges):
    found, (problem,) = read(text)
    assert found == booking("uid-pod1", "n1", *charges)
    assert problem.startswith("hami.io/vgpu-devices-allocated: ")


@cases(
    "containers, text, charges",
    ("no device", (container(),), "GPU-a,NVIDIA,300,30:;", []),
    (
        "devices of another vendor",
        (gpus(0), container({"hygon.com/dcunum": 1})),
        "GPU-a,NVIDIA,300,30:;",
        [],
    ),
    ("no device, unreadable", (container(),), "GPU-a GPU-b", []),
    (
        "fewer devices",
        (gpus(),),
        "GPU-a,NVIDIA,300,30:GPU-b,NVIDIA,1,1:;",
        [charge("GPU-a", 1, 300, 30)],
    ),
    (
        "fewer containers",
        (gpus(), gpus(0)),
        "GPU-a,NVIDIA,300,30:;GPU-b,NVIDIA,1,1:;",
        [charge("GPU-a", 1, 300, 30)],
    ),
    (
        "an empty entry left out",
        (gpus(0), gpus()),
        "GPU-a,NVIDIA,300,30:;",
        [charge("GPU-a", 1, 300, 30)],
    ),
    (
        "all that is requested",
        (gpus(2), gpus(kind=INIT)),
        "GPU-a,NVIDIA,3,3:;GPU-a,NVIDIA,3,3:GPU-b,NVIDIA,1,1:;",
        [charge("GPU-a", 1, 3, 3), charge("GPU-b", 1, 1, 1)],
    ),
    (
        "more memory of the one device: as before a change of the configuration",
        (gpus(memory=1),),
        "GPU-a,NVIDIA,900,30:;",
        [charge("GPU-a", 1, 900, 30)],
    ),
)
def test_what_the_pod_does_not_request_is_not_taken(containers, text, charges):
    assert read(text, *containers)[0] == booking("uid-pod1", "n1", *charges)


def test_what_is_still_to_be_allocated_does_not_count_twice():
    assert read("GPU-a,NVIDIA,300,30:;", annotation=NVIDIA.annotations.to_allocate) == (
        booking("uid-pod1", "n1"),
        (),
    )
