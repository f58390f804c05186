"""What every vendor makes of a container, and which of its devices the container gets. A vendor is added as rows.

The numbers are typed in from the reference, whose row the id names.
"""

from dataclasses import replace

import pytest
from pytest import param

from hami.codec.allocation import render_shares
from hami.errors import MalformedInput
from hami.scheduling.fit import Unfit
from hami.scheduling.place import place
from hami.vendors.request import request_of
from tests.builders import NVIDIA, ask, container, nvidia, request, view


def nv(count=None, **amounts):
    """Limits in NVIDIA's resources: ``nv(1, gpumem=3000)``."""
    asked = ({} if count is None else {"gpu": count}) | amounts
    return {f"nvidia.com/{name.replace('_', '-')}": str(value) for name, value in asked.items()}


def admitted(vendor, limits):
    """The limits as admission leaves them."""
    wire = {"name": "c", "resources": {"limits": limits}}
    return vendor.admit(vendor, {}, wire).container["resources"]["limits"]


ASKS = [  # vendor, limits, what admission adds to them, the request
    param(NVIDIA, nv(1, gpumem=3000, gpucores=30), {}, request(1, 3000, None, 30), id="N1"),
    param(NVIDIA, nv(1), nv(gpucores=100), request(1, 0, 100, 100), id="N2"),
    param(NVIDIA, nv(2, gpumem_percentage=50, gpucores=30), {}, request(2, 0, 50, 30), id="N3"),
    param(NVIDIA, nv(gpumem=8000), nv(1), request(1, 8000, None, 0), id="N4"),
    param(NVIDIA, nv(1, gpumem_percentage=0), {}, request(1, 0, 100, 0), id="N5"),
    param(NVIDIA, nv(gpucores=30), nv(1), request(1, 0, 100, 30), id="NVIDIA cores alone"),
    param(NVIDIA, nv(gpumem_percentage=100), nv(1, gpucores=100), request(1, 0, 100, 100), id="NVIDIA all memory"),
    param(NVIDIA, nv(1, gpumem_percentage=50), {}, request(1, 0, 50, 0), id="NVIDIA percent"),
    param(NVIDIA, nv(1, gpumem=3000, gpumem_percentage=50), {}, request(1, 3000, 50, 0),
          id="NVIDIA memory and percent"),
    param(NVIDIA, nv(1, gpumem=3000, gpucores=150), {}, request(1, 3000, None, 150), id="NVIDIA cores above a card's"),
    param(NVIDIA, nv(1, gpumem="3k"), {}, request(1, 3000, None, 0), id="NVIDIA 3k"),
    param(NVIDIA, nv(1, gpumem="1e3"), {}, request(1, 1000, None, 0), id="NVIDIA 1e3"),
    param(NVIDIA, nv(1, gpumem=0), {}, request(1, 0, 100, 0), id="NVIDIA no memory is all"),
    param(NVIDIA, nv(0, gpumem=3000), {}, None, id="NVIDIA no card"),
    param(NVIDIA, nv(priority=1), {}, None, id="NVIDIA priority alone"),
    param(NVIDIA, {"cpu": "1"}, {}, None, id="NVIDIA nothing"),
    param(NVIDIA, {}, {}, None, id="NVIDIA no limits"),
    param(nvidia(memory_factor=512), nv(1, gpumem=6), {}, request(1, 3072, None, 0), id="NVIDIA factor"),
    param(nvidia(default_memory=5000), nv(1), nv(gpucores=100), request(1, 5000, None, 100),
          id="NVIDIA default memory"),
    param(nvidia(default_memory=5000), nv(1, gpumem_percentage=50), {}, request(1, 0, 50, 0),
          id="NVIDIA percent before default memory"),
    param(nvidia(default_cores=20), nv(1, gpumem=1), {}, request(1, 1, None, 20), id="NVIDIA default cores"),
    param(nvidia(default_gpu_num=2), nv(gpumem=1), nv(2), request(2, 1, None, 0), id="NVIDIA default count"),
    param(nvidia(default_gpu_num=0), nv(gpumem=1), {}, None, id="NVIDIA no default count"),
    param(nvidia(resource_core_name=""), nv(1), {}, request(1, 0, 100, 0), id="NVIDIA without cores"),
    param(nvidia(resource_count_name="x.io/card"), nv(1, gpumem=1), {"x.io/card": "1"}, request(1, 1, None, 0),
          id="NVIDIA under another name"),
]


@pytest.mark.parametrize("vendor, limits, added, expected", ASKS)
def test_ask(vendor, limits, added, expected):
    after = admitted(vendor, limits)
    assert after == limits | added
    assert admitted(vendor, after) == after, "admission is not at rest"
    assert request_of(vendor, container(after)) == expected


INT32 = "must be an integer between 0 and 2147483647"
DENIED = [  # vendor, limits, why; a pod that comes in nevertheless asks for nothing
    param(NVIDIA, nv(1, gpumem="16Gi"), f"invalid nvidia.com/gpumem value 16Gi in container c: {INT32}", id="N6"),
    param(NVIDIA, nv(1, gpumem="-1"), f"invalid nvidia.com/gpumem value -1 in container c: {INT32}",
          id="NVIDIA -1 MiB"),
    param(NVIDIA, nv(1, gpumem="1.5"), f"invalid nvidia.com/gpumem value 1.5 in container c: {INT32}",
          id="NVIDIA 1.5 MiB"),
    param(NVIDIA, nv(1, gpumem="lots"), f"invalid nvidia.com/gpumem value lots in container c: {INT32}",
          id="NVIDIA lots"),
    param(NVIDIA, nv("9999999999999"), f"invalid nvidia.com/gpu value 9999999999999 in container c: {INT32}",
          id="NVIDIA too many cards"),
    param(NVIDIA, nv("-1"), f"invalid nvidia.com/gpu value -1 in container c: {INT32}", id="NVIDIA -1 cards"),
    param(NVIDIA, nv(1, gpucores="500m"), f"invalid nvidia.com/gpucores value 500m in container c: {INT32}",
          id="NVIDIA half a percent"),
    param(nvidia(memory_factor=512), nv(1, gpumem=4194304),
          "invalid nvidia.com/gpumem value 4194304 in container c: must be an integer between 0 and 4194303",
          id="NVIDIA too much after scaling"),
]


@pytest.mark.parametrize("vendor, limits, why", DENIED)
def test_denied(vendor, limits, why):
    with pytest.raises(MalformedInput) as caught:
        admitted(vendor, limits)
    assert str(caught.value) == why
    assert request_of(vendor, container(limits)) is None


def linked(uuid, **scores):
    return view(uuid, pair_scores={f"dev-{other.removeprefix('to')}": score for other, score in scores.items()})


TRIANGLE = [linked("dev-0", to1=100, to2=200), linked("dev-1", to0=100, to2=150), linked("dev-2", to0=200, to1=150)]
NUMA_BIND = {"nvidia.com/numa-bind": "true"}
TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}

FITS = [  # vendor, its devices in the order given to the fit (tried from the end), limits, annotations, the outcome
    param(NVIDIA, [view("GPU-a")], nv(1, gpumem=3000, gpucores=30), {}, "GPU-a,NVIDIA,3000,30:;", id="N1"),
    param(NVIDIA, [view("A", 1, 3000, 30), view("B")], nv(1), {}, "B,NVIDIA,46068,100:;", id="N2 one is free"),
    param(NVIDIA, [view("A", 1, 3000, 30)], nv(1), {}, "1/1 CardInsufficientMemory", id="N2 none is free"),
    param(NVIDIA, [view("d0"), view("d1")], nv(2, gpumem_percentage=50, gpucores=30), {},
          "d1,NVIDIA,23034,30:d0,NVIDIA,23034,30:;", id="N3"),
    param(NVIDIA, [view("A", 1, 1000, 100)], nv(gpumem=8000), {}, "1/1 CardComputeUnitsExhausted", id="N4"),
    param(NVIDIA, [view("A", memory_mib=11264)], nv(1, gpumem_percentage=0), {}, "A,NVIDIA,11264,0:;", id="N5 free"),
    param(NVIDIA, [view("A", 1, 11260, 0, memory_mib=11264)], nv(1, gpumem_percentage=0), {},
          "1/1 CardInsufficientMemory", id="N5 used"),
    param(NVIDIA, TRIANGLE, nv(1, gpumem=100, gpucores=10), TOPOLOGY, "dev-1,NVIDIA,100,10:;", id="N7"),
    param(NVIDIA, TRIANGLE, nv(2, gpumem=100, gpucores=10), TOPOLOGY,
          "dev-2,NVIDIA,100,10:dev-0,NVIDIA,100,10:;", id="N8"),
    param(NVIDIA, [view("dev-0", numa=1), view("dev-1", numa=1), view("dev-2")], nv(2, gpumem=100, gpucores=10),
          NUMA_BIND, "dev-1,NVIDIA,100,10:dev-0,NVIDIA,100,10:;", id="N9"),
    param(NVIDIA, [view("GPU-m", mode="mig")], nv(1, gpumem=8000), {}, "1/1 CardMigTopologyInfeasible",
          id="N10 not yet: MIG"),
    param(NVIDIA, [view("dev-0", cordoned=True), view("dev-1", cordoned=True)], nv(1), {}, "2/2 CardCordoned",
          id="N11"),
]


@pytest.mark.parametrize("vendor, views, limits, annotations, outcome", FITS)
def test_fit(vendor, views, limits, annotations, outcome):
    asked = ask(container(admitted(vendor, limits)), annotations=annotations, vendors=(vendor,))
    unsorted = replace(asked, policy=replace(asked.policy, order=()))
    found = place({vendor.key: views}, unsorted)
    assert (str(found) if isinstance(found, Unfit) else render_shares(found)) == outcome
