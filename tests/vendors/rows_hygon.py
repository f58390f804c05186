"""Hygon's rows of the table."""

from testing.vendor_chart import CHART, card, on_node, vendor
from testing.vendor_rows import INT32, MUTEX, Rows

DCU, HCU = CHART["DCU"], CHART["HCU"]
dcus, hcus = Rows("Hygon", DCU), Rows("Hygon", HCU)
scaled = Rows("Hygon", vendor("DCU", memory_factor=1024))
REGISTERED = on_node(
    DCU, annotations={"hami.io/node-dcu-register": "DCU-a,30,32752,100,DCU-K100_AI,0,true:"}
)
HCU_NODE = on_node(
    HCU,
    annotations={
        "hami.io/node-hcu-register": "HCU-T6T829,4,65520,100,HCU-K100_AI,0,true,0,hami:"
        "HCU-T6T830,4,65520,100,HCU-BW1000,1,true,1,hami:"
    },
)
HCU_1 = hcus.limits(1, 2000, 60)


def dcu(uuid, *taken, **fields):
    return card(DCU, uuid, *taken, **{"memory_mib": 32752, "model": "DCU-K100_AI"} | fields)


ASKS = [
    dcus.asks("memory and cores", dcus.limits(1, 2000, 60), dcus.request(1, 2000, None, 60)),
    dcus.asks("two cards are whole", dcus.limits(2), dcus.request(2, 0, 100, 100)),
    dcus.asks(
        "memory and cores among requests",
        dcus.limits(1),
        dcus.request(1, 1024, None, 1),
        requests=dcus.limits(None, 1024, 1),
    ),
    scaled.asks("memory in GiB", dcus.limits(1, 2), dcus.request(1, 2048, None, 100)),
    dcus.asks(
        "no memory is all, no cores are none", dcus.limits(1, 0, 0), dcus.request(1, 0, 100, 0)
    ),
    dcus.asks("no count", dcus.limits(None, 2000, 60), None),
    dcus.asks("no card", dcus.limits(0), None),
    hcus.asks("HCU memory and cores", HCU_1, hcus.request(1, 2000, None, 60)),
    hcus.asks("two HCUs are whole", hcus.limits(2), hcus.request(2, 0, 100, 100)),
    hcus.asks("a DCU is no HCU", dcus.limits(1), None),
]

DENIED = [
    scaled.denied(
        "too much after scaling",
        dcus.limits(1, 3000000),
        f"invalid {DCU.resources.memory} value 3000000 in container c: "
        "must be an integer between 0 and 2097151, in units of 1024 MiB, without a unit",
    ),
    dcus.denied(
        "16Gi",
        dcus.limits(1, "16Gi"),
        f"invalid {DCU.resources.memory} value 16Gi in container c: {INT32}, in MiB, without a unit: 16384",
    ),
    hcus.denied(
        "16Gi of an HCU",
        hcus.limits(1, "16Gi"),
        f"invalid hygon.com/hcumem value 16Gi in container c: {INT32}, in MiB, without a unit: 16384",
    ),
]

H1, H3 = dcus.limits(1, 2000, 60), {"hygon.com/nouse-dcutype": "K100"}
FITS = [
    dcus.fits("memory and cores", REGISTERED, H1, "DCU-a,DCU,2000,60:;"),
    dcus.fits(
        "two cards are whole",
        [dcu("DCU-0"), dcu("DCU-1")],
        dcus.limits(2),
        "DCU-1,DCU,32752,100:DCU-0,DCU,32752,100:;",
    ),
    dcus.fits("a model that is not wanted", REGISTERED, H1, "1/1 CardTypeMismatch", annotations=H3),
    dcus.fits(
        "a type by part of its name",
        REGISTERED,
        H1,
        "DCU-a,DCU,2000,60:;",
        annotations={"hygon.com/use-dcutype": "k100"},
    ),
    dcus.fits(
        "uuid",
        REGISTERED,
        H1,
        "1/1 CardUuidMismatch",
        annotations={"hygon.com/use-gpuuuid": "DCU-b"},
    ),
    dcus.fits(
        "uuid not wanted",
        [dcu("DCU-a"), dcu("DCU-b")],
        H1,
        "DCU-a,DCU,2000,60:;",
        annotations={"hygon.com/nouse-gpuuuid": "DCU-b"},
    ),
    dcus.fits(
        "a request without cores is for all of them",
        [dcu("DCU-a", 1, 1, 1)],
        dcus.limits(1, 2000),
        "1/1 CardInsufficientCore",
    ),
    dcus.fits(
        "all cores are for one alone",
        [dcu("DCU-a", 1, 1, 0)],
        dcus.limits(1, 2000),
        "1/1 ExclusiveDeviceAllocateConflict",
    ),
    dcus.fits(
        "no cores where none are left",
        [dcu("DCU-a", 1, 1, 100)],
        dcus.limits(1, 2000, 0),
        "1/1 CardComputeUnitsExhausted",
    ),
    dcus.fits(
        "mutex", [dcu("DCU-a", 1)], H1, "1/1 ExclusiveDeviceAllocateConflict", annotations=MUTEX
    ),
    dcus.fits(
        "a reason each",
        [dcu("DCU-a", healthy=False), dcu("DCU-b", 10)],
        H1,
        "1/2 CardNotHealth, 1/2 CardTimeSlicingExhausted",
    ),
    dcus.fits(
        "a container without a request keeps its place",
        [dcu("DCU-a")],
        [{"cpu": "1"}, H1],
        ";DCU-a,DCU,2000,60:;",
    ),
    hcus.fits("HCU memory and cores", HCU_NODE, HCU_1, "HCU-T6T830,HCU,2000,60:;"),
    hcus.fits(
        "an HCU by part of its name",
        HCU_NODE,
        HCU_1,
        "HCU-T6T829,HCU,2000,60:;",
        annotations={"hygon.com/use-hcutype": "k100"},
    ),
    hcus.fits(
        "not that HCU",
        HCU_NODE,
        HCU_1,
        "HCU-T6T829,HCU,2000,60:;",
        annotations={"hygon.com/nouse-hcutype": "BW1000", "hygon.com/use-dcutype": "none"},
    ),
    hcus.fits(
        "uuid of an HCU",
        HCU_NODE,
        HCU_1,
        "2/2 CardUuidMismatch",
        annotations={"hygon.com/use-gpuuuid": "HCU-T6T831"},
    ),
]
