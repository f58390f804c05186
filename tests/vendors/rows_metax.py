"""MetaX's rows of the table: whole cards and sGPUs."""

import json

from testing.builders import APP, INIT
from testing.vendor_chart import CHART, card, on_node
from testing.vendor_rows import MUTEX, Rows

GPU, SGPU = CHART["Metax-GPU"], CHART["Metax-SGPU"]
cards, sgpus = Rows("MetaX", GPU), Rows("sGPU", SGPU)
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


def sets(name, usages, limits, shares, **fields):
    """A row for one container that gets *shares*."""
    parts = [f"{uuid},Metax-SGPU,{memory},{cores}:" for uuid, memory, cores in shares]
    return sgpus.fits(name, usages, limits, "".join(parts) + ";", written(shares), **fields)


def memory(name, text, mib):
    request = sgpus.request(1, mib, None if mib else 100, 60)
    return sgpus.asks(name, sgpus.limits(1, text, 60), request, annotated=BEST)


S1, S3 = sgpus.limits(1, 4, 60), sgpus.limits(1, 4)
ASKS = [
    cards.asks("two cards", cards.limits(2), cards.request(2, 0, 100, 100)),
    sgpus.asks("memory and cores", S1, sgpus.request(1, 4096, None, 60), annotated=BEST),
    memory("1024Mi", "1024Mi", 1024),
    sgpus.asks(
        "an online pod has no cores", S3, sgpus.request(1, 4096, None, 100), annotations=ONLINE
    ),
    sgpus.asks("whole cards", sgpus.limits(2), sgpus.request(2, 0, 100, 100), annotated=BEST),
    sgpus.asks(
        "an offline pod has a quality",
        S1,
        sgpus.request(1, 4096, None, 60),
        annotations=OFFLINE,
        annotated=BEST,
    ),
    sgpus.asks(
        "a quality that was chosen",
        S1,
        sgpus.request(1, 4096, None, 60),
        annotations={QOS: "burst-share"},
    ),
    sgpus.asks(
        "an online pod's quality does not matter",
        S1,
        sgpus.request(1, 4096, None, 60),
        annotations=ONLINE | {QOS: "burst-share"},
    ),
    sgpus.asks("requests alone do not count", {}, None, requests=S1),
    memory("4Gi", "4Gi", 4096),
    memory("512Mi", "512Mi", 512),
    memory("MiB are rounded down", "1536Ki", 1),
    memory("no memory is all", "0", 0),
    memory("2000 GiB", "2000", 2048000),
    memory("2000 GiB, as the API server writes it", "2k", 2048000),
    memory("2000 GiB with an exponent", "2e3", 2048000),
]

DENIED = [
    sgpus.denied(
        "an online pod with two devices",
        sgpus.limits(2),
        "app-class pod must request single device",
        annotations=ONLINE,
        void=False,
    ),
    sgpus.denied(
        "a class that is none",
        S1,
        f"annotation {CLASS}=nightly: expected online or offline",
        annotations={CLASS: "nightly"},
        void=False,
    ),
    sgpus.denied(
        "a quality that is none",
        S1,
        f"annotation {QOS}=best: expected best-effort, fixed-share or burst-share; did you mean best-effort?",
        annotations={QOS: "best"},
        void=False,
    ),
    sgpus.denied(
        "a decimal unit is no unit, and so many GiB nobody has",
        sgpus.limits(1, "4M"),
        f"invalid {SGPU.resources.memory} value 4M in container c: {GIB}",
    ),
    sgpus.denied(
        "less than a MiB is not the whole card",
        sgpus.limits(1, "512Ki"),
        f"invalid {SGPU.resources.memory} value 512Ki in container c: {GIB}",
    ),
    sgpus.denied(
        "memory that cannot be read is no whole card",
        sgpus.limits(1, "1.5"),
        f"invalid {SGPU.resources.memory} value 1.5 in container c: {GIB}",
    ),
    sgpus.denied(
        "4Pi",
        sgpus.limits(1, "4Pi"),
        f"invalid {SGPU.resources.memory} value 4Pi in container c: {GIB}",
    ),
]

EIGHT = on_node(GPU, count=8)
WHOLE, HALF = sgpus.limits(1, None, 100), sgpus.limits(1, 4, 50)
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
    cards.fits(
        "two cards",
        EIGHT,
        cards.limits(2),
        "n-metax-7,Metax-GPU,65536,100:n-metax-6,Metax-GPU,65536,100:;",
    ),
    cards.fits(
        "two containers do not share a card",
        EIGHT,
        [cards.limits(1), cards.limits(1)],
        "1/8 CardTimeSlicingExhausted, 7/8 CardNotFoundCustomFilterRule",
    ),
    cards.fits(
        "init and app containers may each have the card",
        EIGHT,
        [cards.limits(1), cards.limits(1)],
        "n-metax-7,Metax-GPU,65536,100:;n-metax-7,Metax-GPU,65536,100:;",
        kinds=(INIT, APP),
    ),
    sets("memory and cores", [sgpu()], S1, [("GPU-x", 4096, 60)]),
    sets("an online pod has no cores", [sgpu()], S3, [("GPU-x", 4096, 0)], annotations=ONLINE),
    sgpus.fits(
        "another quality",
        [sgpu("GPU-x", 2, 0, 40, qos="burst-share")],
        HALF,
        "1/1 CardQosPolicyMismatch",
    ),
    sgpus.fits(
        "more cores than a card has",
        [sgpu()],
        {},
        "1/1 CardInsufficientCore",
        request=sgpus.request(1, 512, None, 120),
    ),
    sets(
        "the same quality",
        [sgpu("GPU-x", 2, 0, 40, qos="best-effort")],
        HALF,
        [("GPU-x", 4096, 50)],
    ),
    sets("a card without a quality", [sgpu("GPU-x", 2, 0, 40)], HALF, [("GPU-x", 4096, 50)]),
    sets(
        "a free card takes any quality",
        [sgpu("GPU-x", qos="burst-share")],
        HALF,
        [("GPU-x", 4096, 50)],
    ),
    sgpus.fits(
        "the pods on a card know its quality before its agent says so",
        [sgpu("GPU-x", 1, 0, 40, ("fixed-share",), qos="best-effort")],
        HALF,
        "1/1 CardQosPolicyMismatch",
    ),
    sets(
        "the quality of the pods on the card",
        [sgpu("GPU-x", 1, 0, 40, ("fixed-share",), qos="best-effort")],
        HALF,
        [("GPU-x", 4096, 50)],
        annotations={QOS: "fixed-share"},
    ),
    sgpus.fits(
        "a whole card has no quality",
        [sgpu("GPU-x", 1, 0, 40, qos="burst-share")],
        WHOLE,
        "1/1 CardInsufficientCore",
    ),
    sgpus.fits(
        "a request without cores is for all of them",
        [sgpu("GPU-x", 1, 0, 10, NORMAL)],
        sgpus.limits(1, 4),
        "1/1 CardInsufficientCore",
    ),
    sgpus.fits(
        "all cores are for one alone",
        [sgpu("GPU-x", 1)],
        sgpus.limits(1, 4),
        "1/1 ExclusiveDeviceAllocateConflict",
    ),
    sgpus.fits(
        "no cores where none are left",
        [sgpu("GPU-x", 1, 0, 100, NORMAL)],
        sgpus.limits(1, 4, 0),
        "1/1 CardComputeUnitsExhausted",
    ),
    sgpus.fits("a broken card", [sgpu(healthy=False)], S1, "1/1 CardUnhealthy"),
    sgpus.fits(
        "mutex", [sgpu("GPU-x", 1)], S1, "1/1 ExclusiveDeviceAllocateConflict", annotations=MUTEX
    ),
    sets(
        "uuid",
        [sgpu("a"), sgpu("b")],
        S1,
        [("a", 4096, 60)],
        annotations={"metax-tech.com/use-gpuuuid": "a,b", "metax-tech.com/nouse-gpuuuid": "b"},
    ),
    sgpus.fits(
        "too few cards",
        [sgpu("a", 10), sgpu("b")],
        sgpus.limits(2, 4, 60),
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTimeSlicingExhausted",
    ),
    sgpus.fits(
        "online pods join no others",
        [sgpu("GPU-x", 1, 0, 40, NORMAL)],
        S3,
        "1/1 CardAppClassMismatch",
        annotations=ONLINE,
    ),
    sgpus.fits(
        "others join no online pods",
        [sgpu("GPU-x", 1, 0, 0, ONLINES)],
        HALF,
        "1/1 CardAppClassMismatch",
    ),
    sgpus.fits(
        "others join no offline pods",
        [sgpu("GPU-x", 1, 0, 40, OFFLINES)],
        HALF,
        "1/1 CardAppClassMismatch",
    ),
    sgpus.fits(
        "offline pods join no online pods",
        [sgpu("GPU-x", 2, 0, 40, ONLINES)],
        HALF,
        "1/1 CardAppClassMismatch",
        annotations=OFFLINE,
    ),
    sets(
        "offline pods join offline pods",
        [sgpu("GPU-x", 2, 0, 40, OFFLINES)],
        HALF,
        [("GPU-x", 4096, 50)],
        annotations=OFFLINE,
    ),
    sets(
        "online pods join offline pods, whatever cores and quality",
        [sgpu("GPU-x", 2, 0, 100, OFFLINES, qos="burst-share")],
        S3,
        [("GPU-x", 4096, 0)],
        annotations=ONLINE,
    ),
    sets(
        "online pods go where fewest are",
        [sgpu("free"), sgpu("one", 1, 0, 0, ("online",)), sgpu("off", 1, 0, 40, ("offline",))],
        S3,
        [("free", 4096, 0)],
        annotations=ONLINE,
    ),
    sets(
        "online pods rather join online pods than suspend others",
        [
            sgpu("off2", 2, 0, 0, OFFLINES),
            sgpu("two", 2, 0, 0, ONLINES),
            sgpu("off1", 1, 0, 0, ("offline",)),
        ],
        S3,
        [("two", 4096, 0)],
        annotations=ONLINE,
    ),
    sets(
        "online pods suspend as few as possible",
        [sgpu("off1", 1, 0, 0, ("offline",)), sgpu("off2", 2, 0, 0, OFFLINES)],
        S3,
        [("off1", 4096, 0)],
        annotations=ONLINE,
    ),
    sets(
        "of cards with as many online pods the one with fewer offline",
        [sgpu("both", 3, 0, 0, ("online", "offline")), sgpu("one", 1, 0, 0, ("online",))],
        S3,
        [("one", 4096, 0)],
        annotations=ONLINE,
    ),
    sets(
        "an offline pod gets the first",
        [sgpu("a", zone=1), sgpu("b", 1, 0, 0, ("offline best-effort",))],
        HALF,
        [("b", 4096, 50)],
        annotations=OFFLINE,
    ),
    sets("the smallest zone that has enough", ZONES, sgpus.limits(2, None, 100), whole("a2", "a1")),
    sets("the zone that has enough", ZONES, sgpus.limits(3, None, 100), whole("b3", "b2", "b1")),
    sets(
        "zone by zone, the smallest first",
        ZONES,
        sgpus.limits(4, None, 100),
        whole("a2", "a1", "b3", "b2"),
    ),
    sets(
        "zones before cards without a link",
        ZONES[:4],
        sgpus.limits(3, None, 100),
        whole("b1", "a2", "a1"),
    ),
    sets("of equal zones the lowest", ZONES[:3], sgpus.limits(1, None, 100), whole("a1")),
    sets(
        "parts of cards need no links",
        ZONES,
        sgpus.limits(2, 4, 50),
        [("b3", 4096, 50), ("b2", 4096, 50)],
    ),
    sets("as many cards as there are", ZONES[:2], sgpus.limits(2, None, 100), whole("b1", "a1")),
    sgpus.fits(
        "two containers share a card",
        [sgpu()],
        [S1, {"cpu": "1"}, sgpus.limits(1, 4, 40)],
        "GPU-x,Metax-SGPU,4096,60:;;GPU-x,Metax-SGPU,4096,40:;",
        written([("GPU-x", 4096, 60)], [], [("GPU-x", 4096, 40)]),
    ),
]
