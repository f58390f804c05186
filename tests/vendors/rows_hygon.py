"""Hygon's rows of the table."""

from testing.vendor_chart import (
    CHART,
    INT32,
    MUTEX,
    asked,
    card,
    denied,
    fits,
    given,
    on_node,
    parses,
    vendor,
)

DCU = CHART["DCU"]
SCALED = vendor("DCU", memory_factor=1024)
REGISTERED = on_node(
    DCU, annotations={"hami.io/node-dcu-register": "DCU-a,30,32752,100,DCU-K100_AI,0,true:"}
)
HCU = CHART["HCU"]
HCU_NODE = on_node(
    HCU,
    annotations={
        "hami.io/node-hcu-register": "HCU-T6T829,4,65520,100,HCU-K100_AI,0,true,0,hami:"
        "HCU-T6T830,4,65520,100,HCU-BW1000,1,true,1,hami:"
    },
)
HCU_1 = given(HCU, 1, 2000, 60)


def dcu(uuid, *taken, **fields):
    return card(DCU, uuid, *taken, **{"memory_mib": 32752, "model": "DCU-K100_AI"} | fields)


ASKS = [
    parses(
        DCU, given(DCU, 1, 2000, 60), asked(DCU, 1, 2000, None, 60), id="Hygon memory and cores"
    ),
    parses(DCU, given(DCU, 2), asked(DCU, 2, 0, 100, 100), id="Hygon two cards are whole"),
    parses(
        DCU,
        given(DCU, 1),
        asked(DCU, 1, 1024, None, 1),
        id="Hygon memory and cores among requests",
        requests=given(DCU, None, 1024, 1),
    ),
    parses(SCALED, given(DCU, 1, 2), asked(DCU, 1, 2048, None, 100), id="Hygon memory in GiB"),
    parses(
        DCU,
        given(DCU, 1, 0, 0),
        asked(DCU, 1, 0, 100, 0),
        id="Hygon no memory is all, no cores are none",
    ),
    parses(DCU, given(DCU, None, 2000, 60), None, id="Hygon no count"),
    parses(DCU, given(DCU, 0), None, id="Hygon no card"),
    parses(HCU, HCU_1, asked(HCU, 1, 2000, None, 60), id="Hygon HCU memory and cores"),
    parses(HCU, given(HCU, 2), asked(HCU, 2, 0, 100, 100), id="Hygon two HCUs are whole"),
    parses(HCU, given(DCU, 1), None, id="Hygon a DCU is no HCU"),
]

DENIED = [
    denied(
        SCALED,
        given(DCU, 1, 3000000),
        f"invalid {DCU.resources.memory} value 3000000 in container c: "
        "must be an integer between 0 and 2097151, in units of 1024 MiB, without a unit",
        id="too much after scaling",
    ),
    denied(
        DCU,
        given(DCU, 1, "16Gi"),
        f"invalid {DCU.resources.memory} value 16Gi in container c: {INT32}, in MiB, without a unit: 16384",
        id="16Gi",
    ),
    denied(
        DCU,
        given(DCU, 1, 1, -1),
        f"invalid {DCU.resources.cores} value -1 in container c: {INT32}",
        id="Hygon -1 cores",
    ),
    denied(
        DCU,
        given(DCU, 1, "1.5"),
        f"invalid {DCU.resources.memory} value 1.5 in container c: {INT32}, in MiB, without a unit",
        id="Hygon memory that cannot be read is no whole card",
    ),
    denied(
        DCU,
        given(DCU, 4000000000),
        f"invalid {DCU.resources.count} value 4000000000 in container c: {INT32}",
        id="Hygon too many cards",
    ),
    denied(
        HCU,
        given(HCU, 1, "16Gi"),
        f"invalid hygon.com/hcumem value 16Gi in container c: {INT32}, in MiB, without a unit: 16384",
        id="Hygon 16Gi of an HCU",
    ),
]

H1, H3 = given(DCU, 1, 2000, 60), {"hygon.com/nouse-dcutype": "K100"}
FITS = [
    fits(DCU, REGISTERED, H1, "DCU-a,DCU,2000,60:;", id="Hygon memory and cores"),
    fits(
        DCU,
        [dcu("DCU-0"), dcu("DCU-1")],
        given(DCU, 2),
        "DCU-1,DCU,32752,100:DCU-0,DCU,32752,100:;",
        id="Hygon two cards are whole",
    ),
    fits(
        DCU,
        REGISTERED,
        H1,
        "1/1 CardTypeMismatch",
        id="Hygon a model that is not wanted",
        annotations=H3,
    ),
    fits(
        DCU,
        REGISTERED,
        H1,
        "DCU-a,DCU,2000,60:;",
        id="Hygon a type by part of its name",
        annotations={"hygon.com/use-dcutype": "k100"},
    ),
    fits(
        DCU,
        REGISTERED,
        H1,
        "1/1 CardUuidMismatch",
        id="Hygon uuid",
        annotations={"hygon.com/use-gpuuuid": "DCU-b"},
    ),
    fits(
        DCU,
        [dcu("DCU-a"), dcu("DCU-b")],
        H1,
        "DCU-a,DCU,2000,60:;",
        id="Hygon uuid not wanted",
        annotations={"hygon.com/nouse-gpuuuid": "DCU-b"},
    ),
    fits(
        DCU,
        [dcu("DCU-a", 1, 1, 1)],
        given(DCU, 1, 2000),
        "1/1 CardInsufficientCore",
        id="Hygon a request without cores is for all of them",
    ),
    fits(
        DCU,
        [dcu("DCU-a", 1, 1, 0)],
        given(DCU, 1, 2000),
        "1/1 ExclusiveDeviceAllocateConflict",
        id="Hygon all cores are for one alone",
    ),
    fits(
        DCU,
        [dcu("DCU-a", 1, 1, 100)],
        given(DCU, 1, 2000, 0),
        "1/1 CardComputeUnitsExhausted",
        id="Hygon no cores where none are left",
    ),
    fits(
        DCU,
        [dcu("DCU-a", 1)],
        H1,
        "1/1 ExclusiveDeviceAllocateConflict",
        id="Hygon mutex",
        annotations=MUTEX,
    ),
    fits(
        DCU,
        [dcu("DCU-a", healthy=False), dcu("DCU-b", 10)],
        H1,
        "1/2 CardNotHealth, 1/2 CardTimeSlicingExhausted",
        id="Hygon a reason each",
    ),
    fits(
        DCU,
        [dcu("DCU-a")],
        [{"cpu": "1"}, H1],
        ";DCU-a,DCU,2000,60:;",
        id="Hygon a container without a request keeps its place",
    ),
    fits(HCU, HCU_NODE, HCU_1, "HCU-T6T830,HCU,2000,60:;", id="Hygon HCU memory and cores"),
    fits(
        HCU,
        HCU_NODE,
        HCU_1,
        "HCU-T6T829,HCU,2000,60:;",
        id="Hygon an HCU by part of its name",
        annotations={"hygon.com/use-hcutype": "k100"},
    ),
    fits(
        HCU,
        HCU_NODE,
        HCU_1,
        "HCU-T6T829,HCU,2000,60:;",
        id="Hygon not that HCU",
        annotations={"hygon.com/nouse-hcutype": "BW1000", "hygon.com/use-dcutype": "none"},
    ),
    fits(
        HCU,
        HCU_NODE,
        HCU_1,
        "2/2 CardUuidMismatch",
        id="Hygon uuid of an HCU",
        annotations={"hygon.com/use-gpuuuid": "HCU-T6T831"},
    ),
]
