"""Claims that users have written on the devices of one node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import param

from hami.codec.device_requests import parse_device_claim
from hami.codec.slices import SHARE
from hami.inspect.claim_fit import (
    ClaimPlacement,
    ClaimUnfit,
    SharedDevice,
    Undecided,
    allocate,
    unread_selectors,
)
from hami.inspect.claims import nearest, shortage
from tests.builders import usage

NUMA = "resource.kubernetes.io/numaNode"
DISTINCT = {"distinctAttribute": "gpu.hami.io/uuid"}


def card(index=0, memory=0, cores=0, share=0, **fields):
    """A device of 40,000 MiB and ten slots, of which so much is taken; *share* in percent."""
    return SharedDevice(
        usage(
            f"GPU-{index}",
            share // 10,
            memory,
            cores,
            **{"memory_mib": 40_000, "index": index, "numa": index // 2} | fields,
        ),
        share * 1000,
    )


def exactly(name="main", count=1, selector="", **capacity):
    """A request."""
    return {
        "name": name,
        "exactly": {
            "deviceClassName": "gpu.hami.io",
            "count": count,
            **({"selectors": [{"cel": {"expression": selector}}]} if selector else {}),
            "capacity": {"requests": {key: str(value) for key, value in capacity.items()}},
        },
    }


def claim(*requests, constraints=(), **exact):
    """A claim of *requests*; of one, with fields of ``exactly``."""
    parts = requests or ({"name": "main", "exactly": {"deviceClassName": "gpu.hami.io"} | exact},)
    return parse_device_claim(
        {"spec": {"devices": {"requests": list(parts), "constraints": list(constraints)}}}, "c"
    )


def reasons(*devices, of):
    result = allocate(devices, [of])
    assert isinstance(result, ClaimUnfit)
    return str(result.unfit)


@pytest.mark.parametrize(
    "devices, wanted, picks",
    [
        param([card()], claim(), ((0,),), id="a whole card"),
        param(
            [card(0, 39_000), card(1)],
            claim(exactly(memory="2000Mi")),
            ((1,),),
            id="the first with room",
        ),
        param([card(0, 0, 100)], claim(exactly(memory="1Mi")), ((0,),), id="no cores need none"),
        param(
            [card(0, 0, 0, 10), card(1)],
            claim(exactly(share=100, memory="1Mi")),
            ((1,),),
            id="alone",
        ),
        param(
            [card(index) for index in range(4)],
            claim(exactly(count=2, memory="1Mi"), constraints=[{"matchAttribute": NUMA}]),
            ((0, 1),),
            id="one NUMA node",
        ),
        param(
            [card(0), card(1, 40_000), card(2), card(3)],
            claim(exactly(count=2, memory="1Mi"), constraints=[{"matchAttribute": NUMA}]),
            ((2, 3),),
            id="the other NUMA node",
        ),
        param(
            [card()],
            claim(exactly("a", memory="1Mi"), exactly("b", memory="1Mi")),
            ((0,), (0,)),
            id="two requests",
        ),
        param(
            [card(0), card(1)],
            claim(exactly("a", memory="1Mi"), exactly("b", memory="1Mi"), constraints=[DISTINCT]),
            ((0,), (1,)),
            id="two cards",
        ),
        param(
            [card(0), card(1, 39_999)],
            claim(exactly("a", memory="1Mi"), exactly("b"), constraints=[DISTINCT]),
            ((1,), (0,)),
            id="another card for the first",
        ),
        param(
            [card(0), card(1)],
            claim(exactly(selector='device.attributes["gpu.hami.io"].index == 1')),
            ((1,),),
            id="selected",
        ),
        param(
            [card(healthy=False)],
            claim(tolerations=[{"operator": "Exists"}]),
            ((0,),),
            id="all taints tolerated",
        ),
        param(
            [card(cordoned=True)],
            claim(tolerations=[{"key": "hami.io/cordoned"}]),
            ((0,),),
            id="a taint tolerated",
        ),
        param(
            [card(0, 30_000)],
            claim(
                {
                    "name": "main",
                    "firstAvailable": [
                        {"name": "large", "deviceClassName": "gpu.hami.io"},
                        {
                            "name": "small",
                            "deviceClassName": "gpu.hami.io",
                            "capacity": {"requests": {"memory": "1Gi"}},
                        },
                    ],
                }
            ),
            ((0,),),
            id="the second alternative",
        ),
    ],
)
def test_what_fits(devices, wanted, picks):
    placement = allocate(devices, [wanted])
    assert isinstance(placement, ClaimPlacement)
    assert placement.picks == picks


@pytest.mark.parametrize(
    "devices, wanted, text",
    [
        ([], claim(), "NodeInsufficientDevice"),
        ([card()], claim(count=2), "NodeInsufficientDevice"),
        ([card(0, 1)], claim(), "1/1 CardInsufficientMemory"),
        ([card(0, 0, 80)], claim(exactly(cores=30, memory="1Mi")), "1/1 CardInsufficientCore"),
        ([card(0, 0, 0, 95)], claim(exactly(memory="1Mi")), "1/1 CardTimeSlicingExhausted"),
        ([card(0, 0, 0, 10)], claim(exactly(share=100)), "1/1 ExclusiveDeviceAllocateConflict"),
        (
            [card(healthy=False), card(1, cordoned=True)],
            claim(),
            "1/2 CardCordoned, 1/2 CardNotHealth",
        ),
        (
            [card(healthy=False)],
            claim(tolerations=[{"key": "hami.io/cordoned"}]),
            "1/1 CardNotHealth",
        ),
        (
            [card()],
            claim(exactly(selector='device.attributes["gpu.hami.io"].uuid == "GPU-9"')),
            "1/1 CardUuidMismatch",
        ),
        (
            [card()],
            claim(exactly(selector='device.attributes["gpu.hami.io"].productName == "T4"')),
            "1/1 CardTypeMismatch",
        ),
        (
            [card()],
            claim(exactly(selector='device.attributes["gpu.hami.io"].index == 9')),
            "1/1 CardNotFoundCustomFilterRule",
        ),
        ([card()], claim(exactly(bandwidth=9)), "1/1 CardNotFoundCustomFilterRule"),
        (
            [card(0), card(1, 1), card(2)],
            claim(exactly(count=2, memory="40000Mi"), constraints=[{"matchAttribute": NUMA}]),
            "2/3 NumaNotFit",
        ),
        (
            [card()],
            claim(exactly("a", memory="1Mi"), exactly("b", memory="1Mi"), constraints=[DISTINCT]),
            "1/1 CardNotFoundCustomFilterRule",
        ),
        (
            [card()],
            claim(exactly("a", memory="30000Mi"), exactly("b", memory="20000Mi")),
            "1/1 CardInsufficientMemory",
        ),
    ],
)
def test_why_it_does_not_fit(devices, wanted, text):
    assert reasons(*devices, of=wanted) == text


def test_the_request_that_fails_is_told_beside_those_before_it():
    result = allocate(
        [card()], [claim(exactly("a", memory="30000Mi"), exactly("b", memory="20000Mi", cores=5))]
    )
    (device,) = result.devices
    assert (result.request, device.free.memory_mib, device.requested.memory_mib) == (
        "b",
        10_000,
        20_000,
    )
    assert device.free_text == "10000/40000 MiB, 100/100 cores, 9/10 slots free"


def test_the_nearest_alternative_is_told():
    wanted = claim(
        {
            "name": "main",
            "firstAvailable": [
                {
                    "name": name,
                    "deviceClassName": "gpu.hami.io",
                    "capacity": {"requests": {"memory": memory}},
                }
                for name, memory in (("large", "40000Mi"), ("small", "10001Mi"))
            ],
        }
    )
    (device,) = allocate([card(0, 30_000)], [wanted]).devices
    assert device.short.memory_mib == 1


def test_a_node_that_serves_more_requests_is_nearer():
    """What a later request lacks says nothing about an earlier one."""
    wanted = claim(exactly("a", memory="30000Mi"), exactly("b", memory="40000Mi"))
    first_lacks_little = allocate([card(0, 10_001)], [wanted])
    second_lacks_much = allocate([card(0, 10_000)], [wanted])
    assert (first_lacks_little.request, second_lacks_much.request) == ("a", "b")
    assert nearest({"a": first_lacks_little, "b": second_lacks_much}) == [
        ("b", second_lacks_much),
        ("a", first_lacks_little),
    ]


# the nodes of each row are in the order in which they are near, and their names are not
@pytest.mark.parametrize(
    "wanted, nodes",
    [
        param(
            claim(exactly(memory="140000Mi")),
            {"b": card(0, 10_000), "a": card(0, 20_000)},
            id="more memory than a device has",
        ),
        param(
            claim(exactly(memory="1Mi", cores=250)),
            {"b": card(0, 0, 10), "a": card(0, 0, 20)},
            id="more cores than a device has",
        ),
        param(
            claim(exactly(memory="1Mi", share=200)),
            {"c": card(0), "b": card(0, share=50), "a": card(0, share=100)},
            id="a larger share than a device has",
        ),
        param(
            claim(exactly(memory="1Mi", share=15)),
            {
                "d": card(0, share=86),
                "c": card(0, share=89),
                "b": card(0, share=91),
                "a": card(0, share=99),
            },
            id="parts of a slot",
        ),
    ],
)
def test_the_order_of_the_nearest_nodes(wanted, nodes):
    results = {name: allocate([device], [wanted]) for name, device in sorted(nodes.items())}
    assert [name for name, _ in nearest(results)] == list(nodes)


def test_the_nearest_device_of_a_node_is_told_first():
    refused = allocate(
        [card(0, share=99), card(1, share=96)], [claim(exactly(memory="1Mi", share=5))]
    )
    assert [device.uuid for device in shortage("n", refused).cards] == ["GPU-1", "GPU-0"]


def test_shares_that_are_no_whole_slots_are_counted_exactly():
    devices, wanted, count = (card(),), claim(exactly(share=15, memory="1Mi")), 0
    while isinstance(placement := allocate(devices, [wanted]), ClaimPlacement):
        devices, count = placement.devices, count + 1
    assert count == 6


def test_too_many_combinations_are_not_tried():
    constraints = [{"matchAttribute": NUMA, "requests": ["r0", "last"]}]
    parts = [exactly(f"r{number}", memory="1Mi") for number in range(8)]
    wanted = claim(*parts, exactly("last", memory="40001Mi"), constraints=constraints)
    assert isinstance(allocate([card(index) for index in range(8)], [wanted]), Undecided)
    many = claim(*[exactly(f"r{number}", memory="1Mi") for number in range(32)])
    assert isinstance(allocate([card()], [many] * 3), Undecided)


@pytest.mark.parametrize(
    "wanted, parts",
    [
        (claim(), []),
        (claim(exactly(selector="device.x")), [("main", "selector device.x")]),
        (claim(allocationMode="All"), [("main", "allocationMode All")]),
        (
            claim(constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]),
            [("", "constraint on resource.kubernetes.io/pcieRoot")],
        ),
    ],
)
def test_what_is_not_judged_is_told(wanted, parts):
    assert list(unread_selectors(wanted)) == parts
    assert isinstance(allocate([card()], [wanted]), ClaimPlacement)


AMOUNTS = st.fixed_dictionaries(
    {"memory": st.integers(1, 50_000).map("{}Mi".format)},
    optional={"cores": st.integers(0, 100), "share": st.integers(1, 100)},
)


@given(
    st.lists(st.tuples(st.integers(1, 3), AMOUNTS), min_size=1, max_size=4),
    st.integers(1, 4),
    st.lists(st.booleans(), min_size=2, max_size=2),
)
def test_no_device_is_overcommitted(wanted, count, constrained):
    constraints = [
        part
        for part, used in zip(({"matchAttribute": NUMA}, DISTINCT), constrained, strict=True)
        if used
    ]
    of = claim(
        *(
            exactly(f"r{number}", count, **amounts)
            for number, (count, amounts) in enumerate(wanted)
        ),
        constraints=constraints,
    )
    devices = [card(index, 1000 * index, 10 * index, 10 * index) for index in range(count)]
    result = allocate(devices, [of])
    if not isinstance(result, ClaimPlacement):
        return
    assert not any(
        device.usage.is_overcommitted or device.share_milli > SHARE * 1000
        for device in result.devices
    )
    assert [len(picks) for picks in result.picks] == [number for number, _ in wanted]
    assert all(len(set(picks)) == len(picks) for picks in result.picks)
    everything = [index for picks in result.picks for index in picks]
    assert not constrained[0] or len({index // 2 for index in everything}) == 1
    assert not constrained[1] or len(set(everything)) == len(everything)
