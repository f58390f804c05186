"""NVIDIA's rows of the table."""

import json
from dataclasses import replace

from pytest import param

from hami.model import MigProfile, Partition
from testing.builders import NVIDIA, nvidia, request, usage
from testing.vendor_rows import Asked, Denied, Fits


def nv(count=None, **amounts):
    """Limits in NVIDIA's resources: ``nv(1, gpumem=3000)``."""
    asked = ({} if count is None else {"gpu": count}) | amounts
    return {f"nvidia.com/{name.replace('_', '-')}": str(value) for name, value in asked.items()}


def parses(vendor, limits, added, request, id):
    return param(Asked(vendor=vendor, limits=limits, added=added, request=request), id=id)


def denied(vendor, limits, why, id):
    return param(Denied(vendor=vendor, limits=limits, why=why), id=id)


def fits(vendor, usages, limits, annotations, outcome, id, written=None):
    return param(
        Fits(
            vendor=vendor,
            usages=usages,
            limits=limits,
            annotations=annotations,
            outcome=outcome,
            written=written or {},
        ),
        id=id,
    )


ASKS = [  # vendor, limits, what admission adds to them, the request
    parses(
        NVIDIA,
        nv(1, gpumem=3000, gpucores=30),
        {},
        request(1, 3000, None, 30),
        id="NVIDIA memory and cores",
    ),
    parses(NVIDIA, nv(1), nv(gpucores=100), request(1, 0, 100, 100), id="NVIDIA one card is whole"),
    parses(
        NVIDIA,
        nv(2, gpumem_percentage=50, gpucores=30),
        {},
        request(2, 0, 50, 30),
        id="NVIDIA two halves of memory",
    ),
    parses(NVIDIA, nv(gpumem=8000), nv(1), request(1, 8000, None, 0), id="NVIDIA memory alone"),
    parses(
        NVIDIA,
        nv(1, gpumem_percentage=0),
        {},
        request(1, 0, 100, 0),
        id="NVIDIA zero percent of memory is all",
    ),
    parses(NVIDIA, nv(gpucores=30), nv(1), request(1, 0, 100, 30), id="NVIDIA cores alone"),
    parses(
        NVIDIA,
        nv(gpumem_percentage=100),
        nv(1, gpucores=100),
        request(1, 0, 100, 100),
        id="NVIDIA all memory",
    ),
    parses(NVIDIA, nv(1, gpumem_percentage=50), {}, request(1, 0, 50, 0), id="NVIDIA percent"),
    parses(
        NVIDIA,
        nv(1, gpumem=3000, gpumem_percentage=50),
        {},
        request(1, 3000, 50, 0),
        id="NVIDIA memory and percent",
    ),
    parses(
        NVIDIA,
        nv(1, gpumem=3000, gpucores=150),
        {},
        request(1, 3000, None, 150),
        id="NVIDIA cores above a card's",
    ),
    parses(NVIDIA, nv(1, gpumem="3k"), {}, request(1, 3000, None, 0), id="NVIDIA 3k"),
    parses(NVIDIA, nv(1, gpumem="1e3"), {}, request(1, 1000, None, 0), id="NVIDIA 1e3"),
    parses(NVIDIA, nv(1, gpumem=0), {}, request(1, 0, 100, 0), id="NVIDIA no memory is all"),
    parses(NVIDIA, nv(0, gpumem=3000), {}, None, id="NVIDIA no card"),
    param(
        Asked(vendor=NVIDIA, limits=nv(priority=1), request=None, env={"CUDA_TASK_PRIORITY": "1"}),
        id="NVIDIA priority alone",
    ),
    parses(NVIDIA, {"cpu": "1"}, {}, None, id="NVIDIA nothing"),
    parses(NVIDIA, {}, {}, None, id="NVIDIA no limits"),
    parses(
        nvidia(memory_factor=512),
        nv(1, gpumem=6),
        {},
        request(1, 3072, None, 0),
        id="NVIDIA factor",
    ),
    parses(
        nvidia(default_memory=5000),
        nv(1),
        nv(gpucores=100),
        request(1, 5000, None, 100),
        id="NVIDIA default memory",
    ),
    parses(
        nvidia(default_memory=5000),
        nv(1, gpumem_percentage=50),
        {},
        request(1, 0, 50, 0),
        id="NVIDIA percent before default memory",
    ),
    parses(
        nvidia(default_cores=20),
        nv(1, gpumem=1),
        {},
        request(1, 1, None, 20),
        id="NVIDIA default cores",
    ),
    parses(
        nvidia(default_gpu_num=2),
        nv(gpumem=1),
        nv(2),
        request(2, 1, None, 0),
        id="NVIDIA default count",
    ),
    parses(nvidia(default_gpu_num=0), nv(gpumem=1), {}, None, id="NVIDIA no default count"),
    parses(
        nvidia(resource_core_name=""), nv(1), {}, request(1, 0, 100, 0), id="NVIDIA without cores"
    ),
    parses(
        nvidia(resource_count_name="x.io/card"),
        nv(1, gpumem=1),
        {"x.io/card": "1"},
        request(1, 1, None, 0),
        id="NVIDIA under another name",
    ),
]

INT32 = "must be an integer between 0 and 2147483647"
DENIED = [  # vendor, limits, reason; such a pod requests nothing if it exists nevertheless
    denied(
        NVIDIA,
        nv(1, gpumem="16Gi"),
        f"invalid nvidia.com/gpumem value 16Gi in container c: {INT32}, in MiB, without a unit: 16384",
        id="NVIDIA memory that is no integer",
    ),
    denied(
        NVIDIA,
        nv(1, gpumem="-1"),
        f"invalid nvidia.com/gpumem value -1 in container c: {INT32}, in MiB, without a unit",
        id="NVIDIA -1 MiB",
    ),
    denied(
        NVIDIA,
        nv(1, gpumem="1.5"),
        f"invalid nvidia.com/gpumem value 1.5 in container c: {INT32}, in MiB, without a unit",
        id="NVIDIA 1.5 MiB",
    ),
    denied(
        NVIDIA,
        nv(1, gpumem="lots"),
        f"invalid nvidia.com/gpumem value lots in container c: {INT32}, in MiB, without a unit",
        id="NVIDIA lots",
    ),
    denied(
        NVIDIA,
        nv("9999999999999"),
        f"invalid nvidia.com/gpu value 9999999999999 in container c: {INT32}",
        id="NVIDIA too many cards",
    ),
    denied(
        NVIDIA,
        nv("-1"),
        f"invalid nvidia.com/gpu value -1 in container c: {INT32}",
        id="NVIDIA -1 cards",
    ),
    denied(
        NVIDIA,
        nv(1, gpucores="500m"),
        f"invalid nvidia.com/gpucores value 500m in container c: {INT32}",
        id="NVIDIA half a percent",
    ),
    denied(
        nvidia(memory_factor=512),
        nv(1, gpumem=4194304),
        "invalid nvidia.com/gpumem value 4194304 in container c: must be an integer between 0 and 4194303, "
        "in units of 512 MiB, without a unit",
        id="NVIDIA too much after scaling",
    ),
]


def linked(uuid, **scores):
    return usage(
        uuid,
        pair_scores={f"dev-{other.removeprefix('to')}": score for other, score in scores.items()},
    )


TRIANGLE = [
    linked("dev-0", to1=100, to2=200),
    linked("dev-1", to0=100, to2=150),
    linked("dev-2", to0=200, to1=150),
]
NUMA_BIND = {"nvidia.com/numa-bind": "true"}
TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}
MIG = usage(
    "GPU-m",
    memory_mib=40960,
    slots=7,
    mode="mig",
    mig_profiles=(
        MigProfile(
            name="3g.20gb",
            memory_mib=19968,
            cores=43,
            slices=3,
            placements=(Partition(0, 4), Partition(4, 4)),
        ),
        MigProfile(
            name="1g.5gb",
            memory_mib=4864,
            cores=15,
            slices=1,
            placements=tuple(Partition(i, 1) for i in range(7)),
        ),
        MigProfile(
            name="2g.10gb",
            memory_mib=9984,
            cores=29,
            slices=2,
            placements=tuple(Partition(i, 2) for i in (0, 2, 4)),
        ),
    ),
)

MIG_A100 = replace(  # as NVML reports it: a little less than 40 GiB
    MIG,
    device=replace(
        MIG.device,
        memory_mib=40536,
        mig_profiles=(
            *MIG.device.mig_profiles,
            MigProfile(
                name="4g.20gb",
                memory_mib=19968,
                cores=57,
                slices=4,
                placements=(Partition(0, 4),),
            ),
            MigProfile(
                name="7g.40gb",
                memory_mib=40192,
                cores=100,
                slices=7,
                placements=(Partition(0, 8),),
            ),
        ),
    ),
)
SIX_SEVENTHS = tuple(Partition(place) for place in range(6))


def places(*instances):
    """The annotation with the placements of a container's instances."""
    entries = [
        {
            "containerIndex": 0,
            "deviceIndex": place,
            "gpuUUID": "GPU-m",
            "profile": profile,
            "placement": {"start": start, "size": size},
        }
        for place, (profile, start, size) in enumerate(instances)
    ]
    return {"hami.io/vgpu-mig-allocations": json.dumps(entries, separators=(",", ":"))}


FITS = [  # vendor, its devices in the order given to the fit (tried from the end), limits, annotations, the outcome
    fits(
        NVIDIA,
        [usage("GPU-a")],
        nv(1, gpumem=3000, gpucores=30),
        {},
        "GPU-a,NVIDIA,3000,30:;",
        id="NVIDIA memory and cores",
    ),
    fits(
        NVIDIA,
        [usage("A", 1, 3000, 30), usage("B")],
        nv(1),
        {},
        "B,NVIDIA,46068,100:;",
        id="NVIDIA a whole card, one is free",
    ),
    fits(
        NVIDIA,
        [usage("A", 1, 3000, 30)],
        nv(1),
        {},
        "1/1 CardInsufficientMemory",
        id="NVIDIA a whole card, none is free",
    ),
    fits(
        NVIDIA,
        [usage("d0"), usage("d1")],
        nv(2, gpumem_percentage=50, gpucores=30),
        {},
        "d1,NVIDIA,23034,30:d0,NVIDIA,23034,30:;",
        id="NVIDIA two halves of memory",
    ),
    fits(
        NVIDIA,
        [usage("A", 1, 1000, 100)],
        nv(gpumem=8000),
        {},
        "1/1 CardComputeUnitsExhausted",
        id="NVIDIA memory alone",
    ),
    fits(
        NVIDIA,
        [usage("A", memory_mib=11264)],
        nv(1, gpumem_percentage=0),
        {},
        "A,NVIDIA,11264,0:;",
        id="NVIDIA zero percent is all memory of a free card",
    ),
    fits(
        NVIDIA,
        [usage("A", 1, 11260, 0, memory_mib=11264)],
        nv(1, gpumem_percentage=0),
        {},
        "1/1 CardInsufficientMemory",
        id="NVIDIA zero percent is all memory, some is used",
    ),
    fits(
        NVIDIA,
        TRIANGLE,
        nv(1, gpumem=100, gpucores=10),
        TOPOLOGY,
        "dev-1,NVIDIA,100,10:;",
        id="NVIDIA topology, one card",
    ),
    fits(
        NVIDIA,
        TRIANGLE,
        nv(2, gpumem=100, gpucores=10),
        TOPOLOGY,
        "dev-2,NVIDIA,100,10:dev-0,NVIDIA,100,10:;",
        id="NVIDIA topology, two linked cards",
    ),
    fits(
        NVIDIA,
        [usage("dev-0", numa=1), usage("dev-1", numa=1), usage("dev-2")],
        nv(2, gpumem=100, gpucores=10),
        NUMA_BIND,
        "dev-1,NVIDIA,100,10:dev-0,NVIDIA,100,10:;",
        id="NVIDIA numa-bind",
    ),
    fits(
        NVIDIA,
        [MIG],
        nv(2, gpumem=8000),
        {"nvidia.com/vgpu-mode": "mig"},
        "GPU-m,NVIDIA,9984,29:GPU-m,NVIDIA,9984,29:;",
        written=places(("2g.10gb", 0, 2), ("2g.10gb", 2, 2)),
        id="NVIDIA MIG two instances of one card",
    ),
    fits(
        NVIDIA,
        [MIG],
        nv(1, gpumem=4864),
        {},
        "GPU-m,NVIDIA,4864,15:;",
        written=places(("1g.5gb", 6, 1)),
        id="NVIDIA MIG small profiles go to the far end",
    ),
    *(
        fits(
            NVIDIA,
            [MIG_A100],
            nv(1, gpumem=memory),
            {},
            f"GPU-m,NVIDIA,{got}:;",
            written=places(place),
            id=f"NVIDIA MIG {memory} MiB of an A100 with 40 GB",
        )
        for memory, got, place in [
            (4864, "4864,15", ("1g.5gb", 6, 1)),
            (5119, "9984,29", ("2g.10gb", 0, 2)),
            (5120, "4864,15", ("1g.5gb", 6, 1)),
            (5121, "9984,29", ("2g.10gb", 0, 2)),
            (10240, "9984,29", ("2g.10gb", 0, 2)),
            (20480, "19968,43", ("3g.20gb", 4, 4)),
            (20481, "40192,100", ("7g.40gb", 0, 8)),
            (40960, "40192,100", ("7g.40gb", 0, 8)),
        ]
    ),
    fits(
        NVIDIA,
        [
            replace(
                MIG_A100,
                slots_used=4,
                memory_used_mib=35000,
                partitions=(*(Partition(place) for place in range(4, 7)), Partition(0, 4)),
            )
        ],
        nv(1, gpumem=5120),
        {},
        "1/1 CardMigTopologyInfeasible",
        id="NVIDIA MIG no place for the nominal size",
    ),
    fits(
        NVIDIA,
        [replace(MIG_A100, slots_used=6, memory_used_mib=35672, partitions=SIX_SEVENTHS)],
        nv(1, gpumem=5120),
        {},
        "GPU-m,NVIDIA,4864,15:;",
        written=places(("1g.5gb", 6, 1)),
        id="NVIDIA MIG less memory is left than the nominal size says",
    ),
    fits(
        NVIDIA,
        [replace(MIG, slots_used=2, partitions=(Partition(0, 2), Partition(4, 2)))],
        nv(1, gpumem=8000),
        {},
        "GPU-m,NVIDIA,9984,29:;",
        written=places(("2g.10gb", 2, 2)),
        id="NVIDIA MIG a gap is used",
    ),
    fits(
        NVIDIA,
        [replace(MIG, slots_used=2, partitions=(Partition(1, 1), Partition(3, 3)))],
        nv(1, gpumem=8000),
        {},
        "1/1 CardMigTopologyInfeasible",
        id="NVIDIA MIG memory is left but no place",
    ),
    fits(
        NVIDIA,
        [replace(MIG, slots_used=2, partitions=(Partition(0, 2), Partition(4, 1)))],
        nv(1, gpumem=8000),
        {},
        "GPU-m,NVIDIA,9984,29:;",
        written=places(("2g.10gb", 2, 2)),
        id="NVIDIA MIG another profile beside",
    ),
    fits(
        NVIDIA,
        [
            replace(
                MIG, slots_used=3, partitions=(Partition(0, 2), Partition(2, 2), Partition(4, 1))
            )
        ],
        nv(1, gpumem=8000),
        {},
        "1/1 CardMigTopologyInfeasible",
        id="NVIDIA MIG full for this profile",
    ),
    fits(
        NVIDIA,
        [
            replace(
                MIG,
                slots_used=6,
                cores_used=90,
                partitions=tuple(Partition(place) for place in range(6)),
            )
        ],
        nv(1, gpumem=4000, gpucores=15),
        {},
        "GPU-m,NVIDIA,4864,15:;",
        written=places(("1g.5gb", 6, 1)),
        id="NVIDIA MIG seven sevenths, though each counts as 15 percent",
    ),
    fits(
        NVIDIA,
        [replace(MIG, slots_used=3, cores_used=100, partitions=(Partition(4, 3),) * 3)],
        nv(1, gpumem=4000),
        {},
        "GPU-m,NVIDIA,4864,15:;",
        written=places(("1g.5gb", 3, 1)),
        id="NVIDIA MIG no cores are left by rounding",
    ),
    fits(
        NVIDIA,
        [replace(MIG, slots_used=1)],
        nv(1, gpumem=8000),
        {},
        "1/1 CardNotHealth",
        id="NVIDIA MIG a user without a place",
    ),
    fits(
        NVIDIA,
        [replace(usage("GPU-0", 1), partitions=(Partition(0, 2),))],
        nv(1, gpumem=8000),
        {},
        "1/1 CardNotHealth",
        id="NVIDIA a place on a card that is not cut",
    ),
    fits(
        NVIDIA,
        [MIG],
        nv(2, gpumem=8000),
        {"nvidia.com/vgpu-mode": "hami-core"},
        "1/1 CardTypeMismatch",
        id="NVIDIA MIG not wanted",
    ),
    fits(
        NVIDIA,
        [MIG],
        nv(4, gpumem=8000),
        {},
        "1/1 CardMigTopologyInfeasible, 3/1 AllocatedCardsInsufficientRequest",
        id="NVIDIA MIG more than go on a card",
    ),
    fits(
        NVIDIA,
        [usage("dev-0", cordoned=True), usage("dev-1", cordoned=True)],
        nv(1),
        {},
        "2/2 CardCordoned",
        id="NVIDIA cordoned cards",
    ),
]
