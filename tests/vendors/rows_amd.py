"""AMD's rows of the table. Cores are requested in percent and allocated in compute units."""

from testing.vendor_chart import CHART, card
from testing.vendor_rows import MUTEX, Rows

AMD = CHART["AMD"]
amd = Rows("AMD", AMD)
MODEL = "AMD Instinct MI300X VF"
PERCENT = "amd.com/gpucores must be an integer percentage between 1 and 100"


def mi300(uuid="amd-0", *taken, **fields):
    return card(AMD, uuid, *taken, **{"memory_mib": 196608, "cores": 304, "model": MODEL} | fields)


def small(uuid, cores=64, memory_mib=1000):
    return mi300(uuid, cores=cores, memory_mib=memory_mib)


M1 = amd.limits(1, 16384, 25)
ASKS = [
    amd.asks("memory and cores", M1, amd.request(1, 16384, None, 25)),
    amd.asks("a whole card", amd.limits(1), amd.request(1, 0, 100, 100)),
    amd.asks(
        "memory and cores get a card",
        amd.limits(None, 16384, 25),
        amd.request(1, 16384, None, 25),
        added={AMD.resources.count: "1"},
    ),
    amd.asks(
        "memory alone gets a card",
        amd.limits(None, 16384),
        amd.request(1, 16384, None, 100),
        added={AMD.resources.count: "1"},
    ),
    amd.asks(
        "cores alone get a card",
        amd.limits(None, None, 25),
        amd.request(1, 0, 100, 25),
        added={AMD.resources.count: "1"},
    ),
    amd.asks("requests alone do not count", {}, None, requests=M1),
    amd.asks(
        "memory among requests alone does not count",
        amd.limits(1),
        amd.request(1, 0, 100, 100),
        requests=amd.limits(None, 16384),
    ),
]

DENIED = [
    amd.denied("zero percent of cores", amd.limits(1, None, 0), PERCENT, void=False),
    amd.denied("101 %", amd.limits(1, None, 101), PERCENT, void=False),
    amd.denied("12.5 %", amd.limits(1, None, "12.5"), PERCENT),
    amd.denied("many cores", amd.limits(1, None, "many"), PERCENT),
    amd.denied("no cores", amd.limits(1, None, 0), PERCENT, void=False),
    amd.denied(
        "16Gi",
        amd.limits(1, "16Gi"),
        f"invalid {AMD.resources.memory} value 16Gi in container c: must be an integer "
        "between 0 and 2147483647, in MiB, without a unit: 16384",
    ),
]


def units(name, percent, outcome, usages=None, **fields):
    request = amd.request(1, 16384, None, percent)
    return amd.fits(name, usages or [mi300()], {}, outcome, request=request, **fields)


FITS = [
    amd.fits("memory and cores", [mi300()], M1, f"amd-0,{MODEL},16384,76:;"),
    amd.fits("a whole card", [mi300()], amd.limits(1), f"amd-0,{MODEL},196608,304:;"),
    units("33 %", 33, f"amd-0,{MODEL},16384,100:;"),
    units("67 %", 67, f"amd-0,{MODEL},16384,203:;"),
    amd.fits(
        "1 %", [small("amd-0")], {}, f"amd-0,{MODEL},500,1:;", request=amd.request(1, 500, None, 1)
    ),
    amd.fits(
        "101 %",
        [small("amd-0")],
        {},
        f"amd-0,{MODEL},500,64:;",
        request=amd.request(1, 500, None, 101),
    ),
    amd.fits(
        "two whole cards",
        [small("dev-0", 100), small("dev-1", 100)],
        {},
        f"dev-1,{MODEL},1000,100:dev-0,{MODEL},1000,100:;",
        request=amd.request(2, 0, 100, 0),
    ),
    units("no cores come with part of the memory", 0, f"amd-0,{MODEL},16384,0:;"),
    units("one unit is missing", 25, "1/1 CardInsufficientCore", [mi300("amd-0", 1, 0, 229)]),
    units("the last units", 25, f"amd-0,{MODEL},16384,76:;", [mi300("amd-0", 1, 0, 228)]),
    units("a card without units", 25, "1/1 CardInsufficientCore", [mi300(cores=0)]),
    units(
        "mutex", 100, "1/1 ExclusiveDeviceAllocateConflict", [mi300("amd-0", 1)], annotations=MUTEX
    ),
    units(
        "all units are not for one alone", 100, f"amd-0,{MODEL},16384,304:;", [mi300("amd-0", 1)]
    ),
    units("type", 25, "1/1 CardTypeMismatch", annotations={"amd.com/use-gputype": "MI250"}),
    units("uuid", 25, "1/1 CardUuidMismatch", annotations={"amd.com/nouse-gpu-uuid": "amd-0"}),
]
