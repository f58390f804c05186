"""The rows of Enflame's slices (DRS) of the table."""

from hami.codec.device_config import chart_config
from hami.codec.drs import DrsProfile
from hami.model import Budget, Device, DeviceUsage, Request
from hami.vendors.catalog import vendors
from testing.vendor_rows import INT32, MUTEX, Rows

DRS = vendors(chart_config())["Enflame"]
drs = Rows("DRS", DRS)
COUNT, MEMORY, CORES = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
SIXTH, HALF, ALL = (
    DrsProfile(name=f"{slices}g.{memory}gb", number=number, slices=slices, memory_gb=memory)
    for slices, memory, number in ((1, 6, "0"), (3, 20, "1"), (6, 40, "2"))
)


def asked(slices=0, memory=0, cores=0):
    return Request(vendor="Enflame", count=1, memory_mib=memory, cores=cores, slices=slices)


def device(
    index=0, slots_used=0, memory=0, cores=0, profiles=(SIXTH, HALF, ALL), slices=6, healthy=True
):
    """A device of node n with this usage."""
    most = max(profile.memory_gb for profile in profiles)
    found = Device(
        uuid=f"n-enflame-drs-{index}",
        vendor="Enflame",
        model="Enflame",
        slots=slices,
        index=index,
        memory_mib=most * 1024,
        mode="drs",
        healthy=healthy,
        info={"minor": str(index + 7), "profiles": profiles},
    )
    return DeviceUsage(found, slots_used, memory, cores)


def given(index, memory, percent):
    return f"n-enflame-drs-{index},Enflame,{memory},{percent}:;"


def agent(index, slices, containers):
    """The annotations for Enflame's node agent."""
    return {
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": "1787313600000000000",
        "enflame.com/gcu-assigned-index": str(index),
        "enflame.com/gcu-assigned-id": str(index),
        "enflame.com/gcu-assigned-minor": str(index + 7),
        "enflame.com/gcu-request-size": str(slices),
        "assigned-containers": containers,
    }


def profile(name, slices, number, container="c0"):
    return f'"{container}":{{"allocated":false,"request":{slices},"profileID":"{number}","profileName":"{name}"}}'


WITH_HALF = agent(0, 3, f"{{{profile('3g.20gb', 3, 1)}}}")
WITH_ALL = agent(0, 6, f"{{{profile('6g.40gb', 6, 2)}}}")
WITH_SIXTH = agent(0, 1, f"{{{profile('1g.6gb', 1, 0)}}}")


def asks(name, limits, request, **fields):
    """Limits are requests too after admission."""
    return drs.asks(name, limits, request, **{"requested": limits} | fields)


ASKS = [
    asks("three slices", {COUNT: "3"}, asked(3)),
    asks("memory and cores", {MEMORY: "20480", CORES: "40"}, asked(0, 20480, 40)),
    asks("cores alone", {CORES: "60"}, asked(0, 0, 60)),
    asks("memory alone", {MEMORY: "20"}, asked(0, 20)),
    asks("slices go before memory", {COUNT: "3", MEMORY: "40"}, asked(3), requested={COUNT: "3"}),
    asks(
        "slices among requests",
        {},
        asked(3),
        requests={COUNT: "3"},
        requested={},
        added={COUNT: "3"},
    ),
    asks(
        "memory among limits, cores among requests",
        {MEMORY: "20"},
        asked(0, 20, 40),
        requests={CORES: "40"},
        requested={MEMORY: "20"},
        added={CORES: "40"},
    ),
    asks("both are there", {COUNT: "2"}, asked(2), requests={COUNT: "2"}, requested={}),
    asks("nothing", {"cpu": "1"}, None, requested={}),
]

DENIED = [
    drs.denied("-3 slices", {COUNT: "-3"}, f"{COUNT} must be greater than 0"),
    drs.denied(
        "no cores", {MEMORY: "8", CORES: "0"}, f"{CORES} must be in range (0,100]", void=False
    ),
    drs.denied(
        "no memory", {MEMORY: "0", CORES: "5"}, f"{MEMORY} must be greater than 0", void=False
    ),
    drs.denied(
        "more cores than a device has",
        {CORES: "101"},
        f"{CORES} must be in range (0,100]",
        void=False,
    ),
    drs.denied("1.5 slices", {COUNT: "1.5"}, f"invalid {COUNT} value 1.5 in container c: {INT32}"),
    drs.denied(
        "memory that is no amount",
        {MEMORY: "many"},
        f"invalid {MEMORY} value many in container c: expected a number with an optional suffix "
        "such as k, M, Mi, Gi, m or e3",
    ),
    drs.denied(
        "memory in bytes",
        {MEMORY: "16Gi"},
        f"invalid {MEMORY} value 16Gi in container c: {INT32}, in GB or MiB, without a unit: 16384",
    ),
    drs.denied(
        "half a percent", {CORES: "500m"}, f"invalid {CORES} value 500m in container c: {INT32}"
    ),
]

TIGHT = {"Enflame": Budget(memory_mib=20479)}
FITS = [
    drs.fits("three slices", [device()], {COUNT: 3}, given(0, 20480, 50), WITH_HALF),
    drs.fits(
        "memory and cores", [device()], {MEMORY: 20480, CORES: 40}, given(0, 20480, 50), WITH_HALF
    ),
    drs.fits("cores alone", [device()], {CORES: 60}, given(0, 40960, 100), WITH_ALL),
    drs.fits("no profile fits", [device(profiles=(SIXTH,))], {COUNT: 3}, "1/1 ModeNotFit"),
    drs.fits(
        "mutex",
        [device(0, 1)],
        {COUNT: 3},
        "1/1 ExclusiveDeviceAllocateConflict",
        annotations=MUTEX,
    ),
    drs.fits("no profile of so many slices", [device(), device(1)], {COUNT: 4}, "1/2 ModeNotFit"),
    drs.fits("more GB than a device has", [device()], {MEMORY: 41}, "1/1 ModeNotFit"),
    drs.fits("more MiB than a device has", [device()], {MEMORY: 40961}, "1/1 ModeNotFit"),
    drs.fits("twice the largest is still in GB", [device()], {MEMORY: 80}, "1/1 ModeNotFit"),
    drs.fits(
        "beyond twice the largest it is MiB",
        [device()],
        {MEMORY: 81},
        given(0, 6144, 17),
        WITH_SIXTH,
    ),
    drs.fits(
        "MiB are rounded up to GB", [device()], {MEMORY: 6145}, given(0, 20480, 50), WITH_HALF
    ),
    drs.fits(
        "the smallest that has the memory", [device()], {MEMORY: 7}, given(0, 20480, 50), WITH_HALF
    ),
    drs.fits("a sixth is 17 percent", [device()], {CORES: 17}, given(0, 6144, 17), WITH_SIXTH),
    drs.fits(
        "the number of the device and of its file",
        [device(), device(1)],
        {COUNT: 3},
        given(1, 20480, 50),
        agent(1, 3, f"{{{profile('3g.20gb', 3, 1)}}}"),
    ),
    drs.fits(
        "each container is described, the pod by its first",
        [device()],
        [{COUNT: 1}, {"cpu": "1"}, {COUNT: 3}],
        "n-enflame-drs-0,Enflame,6144,17:;;n-enflame-drs-0,Enflame,20480,50:;",
        agent(0, 1, f"{{{profile('1g.6gb', 1, 0)},{profile('3g.20gb', 3, 1, 'c2')}}}"),
    ),
    drs.fits(
        "memory is taken", [device(0, 2, 26624, 67)], {COUNT: 3}, "1/1 CardInsufficientMemory"
    ),
    drs.fits(
        "four sixths are taken",
        [device(0, 4, 24576, 68, profiles=(SIXTH, ALL))],
        {COUNT: 6},
        "1/1 CardInsufficientMemory",
    ),
    drs.fits(
        "one of four slices is left",
        [device(0, 1, 20480, 50, slices=4)],
        {COUNT: 3},
        "1/1 CardInsufficientCore",
    ),
    drs.fits(
        "two halves are six slices",
        [device(0, 2, 40960, 100)],
        {COUNT: 1},
        "1/1 CardTimeSlicingExhausted",
    ),
    drs.fits(
        "one whole is six slices",
        [device(0, 1, 40960, 100)],
        {COUNT: 1},
        "1/1 CardTimeSlicingExhausted",
    ),
    drs.fits(
        "six sixths go on a device, though six times 17 are 102",
        [device(0, 5, 30720, 85)],
        {COUNT: 1},
        given(0, 6144, 17),
        WITH_SIXTH,
    ),
    drs.fits("a broken device", [device(0, healthy=False)], {COUNT: 1}, "1/1 CardNotHealth"),
    drs.fits(
        "another device is wanted",
        [device()],
        {COUNT: 1},
        "1/1 CardUuidMismatch",
        annotations={"enflame.com/use-gpuuuid": "other"},
    ),
    drs.fits(
        "a quota is on MiB, not on slices",
        [device()],
        {COUNT: 3},
        "1/1 ResourceQuotaNotFit",
        budgets=TIGHT,
    ),
    drs.fits(
        "a quota is on MiB, not on GB",
        [device()],
        {MEMORY: 20},
        "1/1 ResourceQuotaNotFit",
        budgets=TIGHT,
    ),
    drs.fits(
        "a quota that suffices",
        [device()],
        {COUNT: 1},
        given(0, 6144, 17),
        WITH_SIXTH,
        budgets=TIGHT,
    ),
]
