"""NVIDIA's rows of the table."""

import json
from dataclasses import replace

from hami.model import MigProfile, Partition
from testing.builders import NVIDIA, nvidia, request, usage
from testing.vendor_rows import INT32, Rows


def nv(count=None, **amounts):
    """Limits in NVIDIA's resources: ``nv(1, gpumem=3000)``."""
    asked = ({} if count is None else {"gpu": count}) | amounts
    return {f"nvidia.com/{name.replace('_', '-')}": str(value) for name, value in asked.items()}


cards = Rows("NVIDIA", NVIDIA)
ASKS = [  # limits, the request
    cards.asks("memory and cores", nv(1, gpumem=3000, gpucores=30), request(1, 3000, None, 30)),
    cards.asks("one card is whole", nv(1), request(1, 0, 100, 100), added=nv(gpucores=100)),
    cards.asks(
        "two halves of memory", nv(2, gpumem_percentage=50, gpucores=30), request(2, 0, 50, 30)
    ),
    cards.asks("memory alone", nv(gpumem=8000), request(1, 8000, None, 0), added=nv(1)),
    cards.asks("zero percent of memory is all", nv(1, gpumem_percentage=0), request(1, 0, 100, 0)),
    cards.asks("cores alone", nv(gpucores=30), request(1, 0, 100, 30), added=nv(1)),
    cards.asks(
        "all memory", nv(gpumem_percentage=100), request(1, 0, 100, 100), added=nv(1, gpucores=100)
    ),
    cards.asks("percent", nv(1, gpumem_percentage=50), request(1, 0, 50, 0)),
    cards.asks(
        "memory and percent", nv(1, gpumem=3000, gpumem_percentage=50), request(1, 3000, 50, 0)
    ),
    cards.asks(
        "cores above a card's", nv(1, gpumem=3000, gpucores=150), request(1, 3000, None, 150)
    ),
    cards.asks("3k", nv(1, gpumem="3k"), request(1, 3000, None, 0)),
    cards.asks("1e3", nv(1, gpumem="1e3"), request(1, 1000, None, 0)),
    cards.asks("no memory is all", nv(1, gpumem=0), request(1, 0, 100, 0)),
    cards.asks("no card", nv(0, gpumem=3000), None),
    cards.asks("priority alone", nv(priority=1), None, env={"CUDA_TASK_PRIORITY": "1"}),
    cards.asks("nothing", {"cpu": "1"}, None),
    cards.asks("no limits", {}, None),
    cards.asks(
        "factor", nv(1, gpumem=6), request(1, 3072, None, 0), vendor=nvidia(memory_factor=512)
    ),
    cards.asks(
        "default memory",
        nv(1),
        request(1, 5000, None, 100),
        vendor=nvidia(default_memory=5000),
        added=nv(gpucores=100),
    ),
    cards.asks(
        "percent before default memory",
        nv(1, gpumem_percentage=50),
        request(1, 0, 50, 0),
        vendor=nvidia(default_memory=5000),
    ),
    cards.asks(
        "default cores", nv(1, gpumem=1), request(1, 1, None, 20), vendor=nvidia(default_cores=20)
    ),
    cards.asks(
        "default count",
        nv(gpumem=1),
        request(2, 1, None, 0),
        vendor=nvidia(default_gpu_num=2),
        added=nv(2),
    ),
    cards.asks("no default count", nv(gpumem=1), None, vendor=nvidia(default_gpu_num=0)),
    cards.asks("without cores", nv(1), request(1, 0, 100, 0), vendor=nvidia(resource_core_name="")),
    cards.asks(
        "under another name",
        nv(1, gpumem=1),
        request(1, 1, None, 0),
        vendor=nvidia(resource_count_name="x.io/card"),
        added={"x.io/card": "1"},
    ),
]

DENIED = [  # limits, reason; such a pod requests nothing if it exists nevertheless
    cards.denied(
        "memory that is no integer",
        nv(1, gpumem="16Gi"),
        f"invalid nvidia.com/gpumem value 16Gi in container c: {INT32}, in MiB, without a unit: 16384",
    ),
    cards.denied(
        "-1 MiB",
        nv(1, gpumem="-1"),
        f"invalid nvidia.com/gpumem value -1 in container c: {INT32}, in MiB, without a unit",
    ),
    cards.denied(
        "1.5 MiB",
        nv(1, gpumem="1.5"),
        f"invalid nvidia.com/gpumem value 1.5 in container c: {INT32}, in MiB, without a unit",
    ),
    cards.denied(
        "lots",
        nv(1, gpumem="lots"),
        f"invalid nvidia.com/gpumem value lots in container c: {INT32}, in MiB, without a unit",
    ),
    cards.denied(
        "too many cards",
        nv("9999999999999"),
        f"invalid nvidia.com/gpu value 9999999999999 in container c: {INT32}",
    ),
    cards.denied("-1 cards", nv("-1"), f"invalid nvidia.com/gpu value -1 in container c: {INT32}"),
    cards.denied(
        "half a percent",
        nv(1, gpucores="500m"),
        f"invalid nvidia.com/gpucores value 500m in container c: {INT32}",
    ),
    cards.denied(
        "too much after scaling",
        nv(1, gpumem=4194304),
        "invalid nvidia.com/gpumem value 4194304 in container c: must be an integer between 0 and 4194303, "
        "in units of 512 MiB, without a unit",
        vendor=nvidia(memory_factor=512),
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
                name="4g.20gb", memory_mib=19968, cores=57, slices=4, placements=(Partition(0, 4),)
            ),
            MigProfile(
                name="7g.40gb", memory_mib=40192, cores=100, slices=7, placements=(Partition(0, 8),)
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


FITS = [  # devices in the order given to the fit (tried from the end), limits, the outcome, what else is written
    cards.fits(
        "memory and cores",
        [usage("GPU-a")],
        nv(1, gpumem=3000, gpucores=30),
        "GPU-a,NVIDIA,3000,30:;",
    ),
    cards.fits(
        "a whole card, one is free",
        [usage("A", 1, 3000, 30), usage("B")],
        nv(1),
        "B,NVIDIA,46068,100:;",
    ),
    cards.fits(
        "a whole card, none is free", [usage("A", 1, 3000, 30)], nv(1), "1/1 CardInsufficientMemory"
    ),
    cards.fits(
        "two halves of memory",
        [usage("d0"), usage("d1")],
        nv(2, gpumem_percentage=50, gpucores=30),
        "d1,NVIDIA,23034,30:d0,NVIDIA,23034,30:;",
    ),
    cards.fits(
        "memory alone", [usage("A", 1, 1000, 100)], nv(gpumem=8000), "1/1 CardComputeUnitsExhausted"
    ),
    cards.fits(
        "zero percent is all memory of a free card",
        [usage("A", memory_mib=11264)],
        nv(1, gpumem_percentage=0),
        "A,NVIDIA,11264,0:;",
    ),
    cards.fits(
        "zero percent is all memory, some is used",
        [usage("A", 1, 11260, 0, memory_mib=11264)],
        nv(1, gpumem_percentage=0),
        "1/1 CardInsufficientMemory",
    ),
    cards.fits(
        "topology, one card",
        TRIANGLE,
        nv(1, gpumem=100, gpucores=10),
        "dev-1,NVIDIA,100,10:;",
        annotations=TOPOLOGY,
    ),
    cards.fits(
        "topology, two linked cards",
        TRIANGLE,
        nv(2, gpumem=100, gpucores=10),
        "dev-2,NVIDIA,100,10:dev-0,NVIDIA,100,10:;",
        annotations=TOPOLOGY,
    ),
    cards.fits(
        "numa-bind",
        [usage("dev-0", numa=1), usage("dev-1", numa=1), usage("dev-2")],
        nv(2, gpumem=100, gpucores=10),
        "dev-1,NVIDIA,100,10:dev-0,NVIDIA,100,10:;",
        annotations=NUMA_BIND,
    ),
    cards.fits(
        "MIG two instances of one card",
        [MIG],
        nv(2, gpumem=8000),
        "GPU-m,NVIDIA,9984,29:GPU-m,NVIDIA,9984,29:;",
        places(("2g.10gb", 0, 2), ("2g.10gb", 2, 2)),
        annotations={"nvidia.com/vgpu-mode": "mig"},
    ),
    cards.fits(
        "MIG small profiles go to the far end",
        [MIG],
        nv(1, gpumem=4864),
        "GPU-m,NVIDIA,4864,15:;",
        places(("1g.5gb", 6, 1)),
    ),
    *(
        cards.fits(
            f"MIG {memory} MiB of an A100 with 40 GB",
            [MIG_A100],
            nv(1, gpumem=memory),
            f"GPU-m,NVIDIA,{got}:;",
            places(place),
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
    cards.fits(
        "MIG no place for the nominal size",
        [
            replace(
                MIG_A100,
                slots_used=4,
                memory_used_mib=35000,
                partitions=(*(Partition(place) for place in range(4, 7)), Partition(0, 4)),
            )
        ],
        nv(1, gpumem=5120),
        "1/1 CardMigTopologyInfeasible",
    ),
    cards.fits(
        "MIG less memory is left than the nominal size says",
        [replace(MIG_A100, slots_used=6, memory_used_mib=35672, partitions=SIX_SEVENTHS)],
        nv(1, gpumem=5120),
        "GPU-m,NVIDIA,4864,15:;",
        places(("1g.5gb", 6, 1)),
    ),
    cards.fits(
        "MIG a gap is used",
        [replace(MIG, slots_used=2, partitions=(Partition(0, 2), Partition(4, 2)))],
        nv(1, gpumem=8000),
        "GPU-m,NVIDIA,9984,29:;",
        places(("2g.10gb", 2, 2)),
    ),
    cards.fits(
        "MIG memory is left but no place",
        [replace(MIG, slots_used=2, partitions=(Partition(1, 1), Partition(3, 3)))],
        nv(1, gpumem=8000),
        "1/1 CardMigTopologyInfeasible",
    ),
    cards.fits(
        "MIG another profile beside",
        [replace(MIG, slots_used=2, partitions=(Partition(0, 2), Partition(4, 1)))],
        nv(1, gpumem=8000),
        "GPU-m,NVIDIA,9984,29:;",
        places(("2g.10gb", 2, 2)),
    ),
    cards.fits(
        "MIG full for this profile",
        [
            replace(
                MIG, slots_used=3, partitions=(Partition(0, 2), Partition(2, 2), Partition(4, 1))
            )
        ],
        nv(1, gpumem=8000),
        "1/1 CardMigTopologyInfeasible",
    ),
    cards.fits(
        "MIG seven sevenths, though each counts as 15 percent",
        [
            replace(
                MIG,
                slots_used=6,
                cores_used=90,
                partitions=tuple(Partition(place) for place in range(6)),
            )
        ],
        nv(1, gpumem=4000, gpucores=15),
        "GPU-m,NVIDIA,4864,15:;",
        places(("1g.5gb", 6, 1)),
    ),
    cards.fits(
        "MIG no cores are left by rounding",
        [replace(MIG, slots_used=3, cores_used=100, partitions=(Partition(4, 3),) * 3)],
        nv(1, gpumem=4000),
        "GPU-m,NVIDIA,4864,15:;",
        places(("1g.5gb", 3, 1)),
    ),
    cards.fits(
        "MIG a user without a place",
        [replace(MIG, slots_used=1)],
        nv(1, gpumem=8000),
        "1/1 CardNotHealth",
    ),
    cards.fits(
        "a place on a card that is not cut",
        [replace(usage("GPU-0", 1), partitions=(Partition(0, 2),))],
        nv(1, gpumem=8000),
        "1/1 CardNotHealth",
    ),
    cards.fits(
        "MIG not wanted",
        [MIG],
        nv(2, gpumem=8000),
        "1/1 CardTypeMismatch",
        annotations={"nvidia.com/vgpu-mode": "hami-core"},
    ),
    cards.fits(
        "MIG more than go on a card",
        [MIG],
        nv(4, gpumem=8000),
        "1/1 CardMigTopologyInfeasible, 3/1 AllocatedCardsInsufficientRequest",
    ),
    cards.fits(
        "cordoned cards",
        [usage("dev-0", cordoned=True), usage("dev-1", cordoned=True)],
        nv(1),
        "2/2 CardCordoned",
    ),
]
