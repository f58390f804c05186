"""AMD's rows of the table. Cores are requested in percent and allocated in compute units."""

from testing.vendor_chart import CHART, MUTEX, asked, card, denied, fits, given, parses

AMD = CHART["AMD"]
MODEL = "AMD Instinct MI300X VF"
PERCENT = "amd.com/gpucores must be an integer percentage between 1 and 100"


def mi300(uuid="amd-0", *taken, **fields):
    return card(AMD, uuid, *taken, **{"memory_mib": 196608, "cores": 304, "model": MODEL} | fields)


def small(uuid, cores=64, memory_mib=1000):
    return mi300(uuid, cores=cores, memory_mib=memory_mib)


M1 = given(AMD, 1, 16384, 25)
ASKS = [
    parses(AMD, M1, asked(AMD, 1, 16384, None, 25), id="AMD memory and cores"),
    parses(AMD, given(AMD, 1), asked(AMD, 1, 0, 100, 100), id="AMD a whole card"),
    parses(
        AMD,
        given(AMD, None, 16384, 25),
        asked(AMD, 1, 16384, None, 25),
        id="memory and cores get a card",
        added={AMD.resources.count: "1"},
    ),
    parses(
        AMD,
        given(AMD, None, 16384),
        asked(AMD, 1, 16384, None, 100),
        id="AMD memory alone gets a card",
        added={AMD.resources.count: "1"},
    ),
    parses(
        AMD,
        given(AMD, None, None, 25),
        asked(AMD, 1, 0, 100, 25),
        id="AMD cores alone get a card",
        added={AMD.resources.count: "1"},
    ),
    parses(AMD, {}, None, id="AMD requests alone do not count", requests=M1),
    parses(
        AMD,
        given(AMD, 1),
        asked(AMD, 1, 0, 100, 100),
        id="AMD memory among requests alone does not count",
        requests=given(AMD, None, 16384),
    ),
]

DENIED = [
    denied(AMD, given(AMD, 1, None, 0), PERCENT, id="AMD zero percent of cores", void=False),
    denied(AMD, given(AMD, 1, None, 101), PERCENT, id="AMD 101 %", void=False),
    denied(AMD, given(AMD, 1, None, "12.5"), PERCENT, id="AMD 12.5 %"),
    denied(AMD, given(AMD, 1, None, "many"), PERCENT, id="AMD many cores"),
    denied(AMD, given(AMD, 1, None, 0), PERCENT, id="AMD no cores", void=False),
    denied(
        AMD,
        given(AMD, 1, "16Gi"),
        f"invalid {AMD.resources.memory} value 16Gi in container c: must be an integer "
        "between 0 and 2147483647, in MiB, without a unit: 16384",
        id="AMD 16Gi",
    ),
]


def units(percent, outcome, usages=None, *, id, **fields):
    return fits(
        AMD,
        usages or [mi300()],
        {},
        outcome,
        id=id,
        request=asked(AMD, 1, 16384, None, percent),
        **fields,
    )


FITS = [
    fits(AMD, [mi300()], M1, f"amd-0,{MODEL},16384,76:;", id="AMD memory and cores"),
    fits(AMD, [mi300()], given(AMD, 1), f"amd-0,{MODEL},196608,304:;", id="AMD a whole card"),
    units(33, f"amd-0,{MODEL},16384,100:;", id="33 %"),
    units(67, f"amd-0,{MODEL},16384,203:;", id="67 %"),
    fits(
        AMD,
        [small("amd-0")],
        {},
        f"amd-0,{MODEL},500,1:;",
        id="1 %",
        request=asked(AMD, 1, 500, None, 1),
    ),
    fits(
        AMD,
        [small("amd-0")],
        {},
        f"amd-0,{MODEL},500,64:;",
        id="101 %",
        request=asked(AMD, 1, 500, None, 101),
    ),
    fits(
        AMD,
        [small("dev-0", 100), small("dev-1", 100)],
        {},
        f"dev-1,{MODEL},1000,100:dev-0,{MODEL},1000,100:;",
        id="AMD two whole cards",
        request=asked(AMD, 2, 0, 100, 0),
    ),
    units(0, f"amd-0,{MODEL},16384,0:;", id="AMD no cores come with part of the memory"),
    units(
        25, "1/1 CardInsufficientCore", [mi300("amd-0", 1, 0, 229)], id="AMD one unit is missing"
    ),
    units(25, f"amd-0,{MODEL},16384,76:;", [mi300("amd-0", 1, 0, 228)], id="AMD the last units"),
    units(25, "1/1 CardInsufficientCore", [mi300(cores=0)], id="AMD a card without units"),
    units(
        100,
        "1/1 ExclusiveDeviceAllocateConflict",
        [mi300("amd-0", 1)],
        id="AMD mutex",
        annotations=MUTEX,
    ),
    units(
        100,
        f"amd-0,{MODEL},16384,304:;",
        [mi300("amd-0", 1)],
        id="AMD all units are not for one alone",
    ),
    units(25, "1/1 CardTypeMismatch", id="AMD type", annotations={"amd.com/use-gputype": "MI250"}),
    units(
        25, "1/1 CardUuidMismatch", id="AMD uuid", annotations={"amd.com/nouse-gpu-uuid": "amd-0"}
    ),
]
