"""MetaX's rows of the table: whole cards and sGPUs."""

import json

from testing.builders import APP, INIT
from testing.vendor_chart import CHART, MUTEX, asked, card, denied, fits, given, on_node, parses

GPU, SGPU = CHART["Metax-GPU"], CHART["Metax-SGPU"]
CLASS, QOS = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
ONLINE, OFFLINE = {CLASS: "online"}, {CLASS: "offline"}
BEST = {QOS: "best-effort"}
GIB = "must be an integer between 0 and 2097151, or at least 1Mi with a unit such as Mi or Gi"


def sgpu(uuid="GPU-x", *taken, qos="", zone=0, **fields):
    return card(
        SGPU,
        uuid,
        *taken,
        **{"memory_mib": 65536, "info": {"qos": qos, "link_zone": zone}} | fields,
    )


def written(*containers):
    """The annotation for MetaX's node agent: each container's cards as uuid, memory and cores."""
    cards = [
        [
            {"uuid": uuid, **({"compute": cores} if cores else {}), "vRam": memory}
            for uuid, memory, cores in one
        ]
        for one in containers
    ]
    return {
        "metax-tech.com/gpu-devices-allocated": json.dumps(cards, separators=(",", ":")),
        "metax-tech.com/predicate-time": "1787313600000000000",
    }


def sets(usages, limits, shares, id, annotations=None, **fields):
    """A row for one container that gets *shares*."""
    outcome = (
        "".join(f"{uuid},Metax-SGPU,{memory},{cores}:" for uuid, memory, cores in shares) + ";"
    )
    return fits(
        SGPU,
        usages,
        limits,
        outcome,
        id=id,
        annotations=annotations or {},
        written=written(shares),
        **fields,
    )


def fails(usages, limits, outcome, id, annotations=None, **fields):
    return fits(SGPU, usages, limits, outcome, id=id, annotations=annotations or {}, **fields)


def memory(text, mib, id):
    return parses(
        SGPU,
        given(SGPU, 1, text, 60),
        asked(SGPU, 1, mib, None if mib else 100, 60),
        id=id,
        annotated=BEST,
    )


S1, S3 = given(SGPU, 1, 4, 60), given(SGPU, 1, 4)
ASKS = [
    parses(GPU, given(GPU, 2), asked(GPU, 2, 0, 100, 100), id="MetaX two cards"),
    parses(SGPU, S1, asked(SGPU, 1, 4096, None, 60), id="sGPU memory and cores", annotated=BEST),
    memory("1024Mi", 1024, id="sGPU 1024Mi"),
    parses(
        SGPU,
        S3,
        asked(SGPU, 1, 4096, None, 100),
        id="sGPU an online pod has no cores",
        annotations=ONLINE,
    ),
    parses(
        SGPU, given(SGPU, 2), asked(SGPU, 2, 0, 100, 100), id="sGPU whole cards", annotated=BEST
    ),
    parses(
        SGPU,
        S1,
        asked(SGPU, 1, 4096, None, 60),
        id="sGPU an offline pod has a quality",
        annotations=OFFLINE,
        annotated=BEST,
    ),
    parses(
        SGPU,
        S1,
        asked(SGPU, 1, 4096, None, 60),
        id="sGPU a quality that was chosen",
        annotations={QOS: "burst-share"},
    ),
    parses(
        SGPU,
        S1,
        asked(SGPU, 1, 4096, None, 60),
        id="sGPU an online pod's quality does not matter",
        annotations=ONLINE | {QOS: "burst-share"},
    ),
    parses(SGPU, {}, None, id="sGPU requests alone do not count", requests=S1),
    memory("4Gi", 4096, id="sGPU 4Gi"),
    memory("512Mi", 512, id="sGPU 512Mi"),
    memory("1536Ki", 1, id="sGPU MiB are rounded down"),
    memory("0", 0, id="sGPU no memory is all"),
    memory("2000", 2048000, id="2000 GiB"),
    memory("2k", 2048000, id="2000 GiB, as the API server writes it"),
    memory("2e3", 2048000, id="2000 GiB with an exponent"),
]

DENIED = [
    denied(
        SGPU,
        given(SGPU, 2),
        "app-class pod must request single device",
        id="sGPU an online pod with two devices",
        annotations=ONLINE,
        void=False,
    ),
    denied(
        SGPU,
        S1,
        f"annotation {CLASS}=nightly: expected online or offline",
        id="sGPU a class that is none",
        annotations={CLASS: "nightly"},
        void=False,
    ),
    denied(
        SGPU,
        S1,
        f"annotation {QOS}=best: expected best-effort, fixed-share or burst-share; did you mean best-effort?",
        id="sGPU a quality that is none",
        annotations={QOS: "best"},
        void=False,
    ),
    denied(
        SGPU,
        given(SGPU, 1, "4M"),
        f"invalid {SGPU.resources.memory} value 4M in container c: {GIB}",
        id="a decimal unit is no unit, and so many GiB nobody has",
    ),
    denied(
        SGPU,
        given(SGPU, 1, "512Ki"),
        f"invalid {SGPU.resources.memory} value 512Ki in container c: {GIB}",
        id="less than a MiB is not the whole card",
    ),
    denied(
        SGPU,
        given(SGPU, 1, "1.5"),
        f"invalid {SGPU.resources.memory} value 1.5 in container c: {GIB}",
        id="sGPU memory that cannot be read is no whole card",
    ),
    denied(
        SGPU,
        given(SGPU, 1, "4Pi"),
        f"invalid {SGPU.resources.memory} value 4Pi in container c: {GIB}",
        id="sGPU 4Pi",
    ),
    denied(
        GPU,
        given(GPU, "1.5"),
        f"invalid {GPU.resources.count} value 1.5 in container c: must be an integer "
        "between 0 and 2147483647",
        id="MetaX 1.5 cards",
    ),
]

EIGHT = on_node(GPU, count=8)
WHOLE, HALF = given(SGPU, 1, None, 100), given(SGPU, 1, 4, 50)
ONLINES, OFFLINES, NORMAL = ("online",) * 2, ("offline best-effort",) * 2, ("best-effort",)
ZONES = [
    sgpu("a1", zone=1),
    sgpu("b1", zone=2),
    sgpu("c1"),
    sgpu("a2", zone=1),
    sgpu("b2", zone=2),
    sgpu("b3", zone=2),
]


def whole(*uuids):
    return [(uuid, 65536, 100) for uuid in uuids]


FITS = [
    fits(
        GPU,
        EIGHT,
        given(GPU, 2),
        "n-metax-7,Metax-GPU,65536,100:n-metax-6,Metax-GPU,65536,100:;",
        id="MetaX two cards",
    ),
    fits(
        GPU,
        EIGHT,
        [given(GPU, 1), given(GPU, 1)],
        "1/8 CardTimeSlicingExhausted, 7/8 CardNotFoundCustomFilterRule",
        id="MetaX two containers do not share a card",
    ),
    fits(
        GPU,
        EIGHT,
        [given(GPU, 1), given(GPU, 1)],
        "n-metax-7,Metax-GPU,65536,100:;n-metax-7,Metax-GPU,65536,100:;",
        id="MetaX init and app containers may each have the card",
        kinds=(INIT, APP),
    ),
    sets([sgpu()], S1, [("GPU-x", 4096, 60)], id="sGPU memory and cores"),
    sets(
        [sgpu()], S3, [("GPU-x", 4096, 0)], id="sGPU an online pod has no cores", annotations=ONLINE
    ),
    fails(
        [sgpu("GPU-x", 2, 0, 40, qos="burst-share")],
        HALF,
        "1/1 CardQosPolicyMismatch",
        id="sGPU another quality",
    ),
    fails(
        [sgpu()],
        {},
        "1/1 CardInsufficientCore",
        id="sGPU more cores than a card has",
        request=asked(SGPU, 1, 512, None, 120),
    ),
    sets(
        [sgpu("GPU-x", 2, 0, 40, qos="best-effort")],
        HALF,
        [("GPU-x", 4096, 50)],
        id="sGPU the same quality",
    ),
    sets(
        [sgpu("GPU-x", 2, 0, 40)], HALF, [("GPU-x", 4096, 50)], id="sGPU a card without a quality"
    ),
    sets(
        [sgpu("GPU-x", qos="burst-share")],
        HALF,
        [("GPU-x", 4096, 50)],
        id="sGPU a free card takes any quality",
    ),
    fails(
        [sgpu("GPU-x", 1, 0, 40, ("fixed-share",), qos="best-effort")],
        HALF,
        "1/1 CardQosPolicyMismatch",
        id="sGPU the pods on a card know its quality before its agent says so",
    ),
    sets(
        [sgpu("GPU-x", 1, 0, 40, ("fixed-share",), qos="best-effort")],
        HALF,
        [("GPU-x", 4096, 50)],
        id="sGPU the quality of the pods on the card",
        annotations={QOS: "fixed-share"},
    ),
    fails(
        [sgpu("GPU-x", 1, 0, 40, qos="burst-share")],
        WHOLE,
        "1/1 CardInsufficientCore",
        id="sGPU a whole card has no quality",
    ),
    fails(
        [sgpu("GPU-x", 1, 0, 10, NORMAL)],
        given(SGPU, 1, 4),
        "1/1 CardInsufficientCore",
        id="sGPU a request without cores is for all of them",
    ),
    fails(
        [sgpu("GPU-x", 1)],
        given(SGPU, 1, 4),
        "1/1 ExclusiveDeviceAllocateConflict",
        id="sGPU all cores are for one alone",
    ),
    fails(
        [sgpu("GPU-x", 1, 0, 100, NORMAL)],
        given(SGPU, 1, 4, 0),
        "1/1 CardComputeUnitsExhausted",
        id="sGPU no cores where none are left",
    ),
    fails([sgpu(healthy=False)], S1, "1/1 CardUnhealthy", id="sGPU a broken card"),
    fails(
        [sgpu("GPU-x", 1)],
        S1,
        "1/1 ExclusiveDeviceAllocateConflict",
        id="sGPU mutex",
        annotations=MUTEX,
    ),
    sets(
        [sgpu("a"), sgpu("b")],
        S1,
        [("a", 4096, 60)],
        id="sGPU uuid",
        annotations={"metax-tech.com/use-gpuuuid": "a,b", "metax-tech.com/nouse-gpuuuid": "b"},
    ),
    fails(
        [sgpu("a", 10), sgpu("b")],
        given(SGPU, 2, 4, 60),
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTimeSlicingExhausted",
        id="sGPU too few cards",
    ),
    fails(
        [sgpu("GPU-x", 1, 0, 40, NORMAL)],
        S3,
        "1/1 CardAppClassMismatch",
        annotations=ONLINE,
        id="sGPU online pods join no others",
    ),
    fails(
        [sgpu("GPU-x", 1, 0, 0, ONLINES)],
        HALF,
        "1/1 CardAppClassMismatch",
        id="sGPU others join no online pods",
    ),
    fails(
        [sgpu("GPU-x", 1, 0, 40, OFFLINES)],
        HALF,
        "1/1 CardAppClassMismatch",
        id="sGPU others join no offline pods",
    ),
    fails(
        [sgpu("GPU-x", 2, 0, 40, ONLINES)],
        HALF,
        "1/1 CardAppClassMismatch",
        annotations=OFFLINE,
        id="sGPU offline pods join no online pods",
    ),
    sets(
        [sgpu("GPU-x", 2, 0, 40, OFFLINES)],
        HALF,
        [("GPU-x", 4096, 50)],
        annotations=OFFLINE,
        id="sGPU offline pods join offline pods",
    ),
    sets(
        [sgpu("GPU-x", 2, 0, 100, OFFLINES, qos="burst-share")],
        S3,
        [("GPU-x", 4096, 0)],
        annotations=ONLINE,
        id="sGPU online pods join offline pods, whatever cores and quality",
    ),
    sets(
        [sgpu("free"), sgpu("one", 1, 0, 0, ("online",)), sgpu("off", 1, 0, 40, ("offline",))],
        S3,
        [("free", 4096, 0)],
        annotations=ONLINE,
        id="sGPU online pods go where fewest are",
    ),
    sets(
        [
            sgpu("off2", 2, 0, 0, OFFLINES),
            sgpu("two", 2, 0, 0, ONLINES),
            sgpu("off1", 1, 0, 0, ("offline",)),
        ],
        S3,
        [("two", 4096, 0)],
        annotations=ONLINE,
        id="sGPU online pods rather join online pods than suspend others",
    ),
    sets(
        [sgpu("off1", 1, 0, 0, ("offline",)), sgpu("off2", 2, 0, 0, OFFLINES)],
        S3,
        [("off1", 4096, 0)],
        annotations=ONLINE,
        id="sGPU online pods suspend as few as possible",
    ),
    sets(
        [sgpu("both", 3, 0, 0, ("online", "offline")), sgpu("one", 1, 0, 0, ("online",))],
        S3,
        [("one", 4096, 0)],
        annotations=ONLINE,
        id="sGPU of cards with as many online pods the one with fewer offline",
    ),
    sets(
        [sgpu("a", zone=1), sgpu("b", 1, 0, 0, ("offline best-effort",))],
        HALF,
        [("b", 4096, 50)],
        annotations=OFFLINE,
        id="sGPU an offline pod gets the first",
    ),
    sets(
        ZONES,
        given(SGPU, 2, None, 100),
        whole("a2", "a1"),
        id="sGPU the smallest zone that has enough",
    ),
    sets(
        ZONES,
        given(SGPU, 3, None, 100),
        whole("b3", "b2", "b1"),
        id="sGPU the zone that has enough",
    ),
    sets(
        ZONES,
        given(SGPU, 4, None, 100),
        whole("a2", "a1", "b3", "b2"),
        id="sGPU zone by zone, the smallest first",
    ),
    sets(
        ZONES[:4],
        given(SGPU, 3, None, 100),
        whole("b1", "a2", "a1"),
        id="sGPU zones before cards without a link",
    ),
    sets(ZONES[:3], given(SGPU, 1, None, 100), whole("a1"), id="sGPU of equal zones the lowest"),
    sets(
        ZONES,
        given(SGPU, 2, 4, 50),
        [("b3", 4096, 50), ("b2", 4096, 50)],
        id="sGPU parts of cards need no links",
    ),
    sets(
        ZONES[:2],
        given(SGPU, 2, None, 100),
        whole("b1", "a1"),
        id="sGPU as many cards as there are",
    ),
    fits(
        SGPU,
        [sgpu()],
        [S1, {"cpu": "1"}, given(SGPU, 1, 4, 40)],
        "GPU-x,Metax-SGPU,4096,60:;;GPU-x,Metax-SGPU,4096,40:;",
        id="sGPU two containers share a card",
        written=written([("GPU-x", 4096, 60)], [], [("GPU-x", 4096, 40)]),
    ),
]
