"""The rows of Enflame's slices (DRS) of the table."""

from pytest import param

from hami.codec.device_config import chart_config
from hami.codec.drs import DrsProfile
from hami.model import Budget, Device, DeviceUsage, Request
from hami.vendors.catalog import vendors
from testing.vendor_rows import Asked, Denied, Fits

DRS = vendors(chart_config())["Enflame"]
COUNT, MEMORY, CORES = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
MUTEX = {"hami.io/gpu-scheduler-policy": "mutex"}
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


def parses(limits, request, id, **fields):
    """Limits are requests too after admission."""
    fields = {"requested": limits} | fields
    return param(Asked(vendor=DRS, limits=limits, request=request, **fields), id=id)


def denied(limits, why, id, **fields):
    return param(Denied(vendor=DRS, limits=limits, why=why, **fields), id=id)


def fits(usages, limits, outcome, id, written=None, **fields):
    return param(
        Fits(
            vendor=DRS,
            usages=usages,
            limits=limits,
            outcome=outcome,
            written=written or {},
            **fields,
        ),
        id=id,
    )


INT32 = "must be an integer between 0 and 2147483647"
ASKS = [
    parses({COUNT: "3"}, asked(3), id="DRS three slices"),
    parses({MEMORY: "20480", CORES: "40"}, asked(0, 20480, 40), id="DRS memory and cores"),
    parses({CORES: "60"}, asked(0, 0, 60), id="DRS cores alone"),
    parses({MEMORY: "20"}, asked(0, 20), id="DRS memory alone"),
    parses(
        {COUNT: "3", MEMORY: "40"},
        asked(3),
        requested={COUNT: "3"},
        id="DRS slices go before memory",
    ),
    parses(
        {},
        asked(3),
        requests={COUNT: "3"},
        requested={},
        added={COUNT: "3"},
        id="DRS slices among requests",
    ),
    parses(
        {MEMORY: "20"},
        asked(0, 20, 40),
        requests={CORES: "40"},
        requested={MEMORY: "20"},
        added={CORES: "40"},
        id="DRS memory among limits, cores among requests",
    ),
    parses({COUNT: "2"}, asked(2), requests={COUNT: "2"}, requested={}, id="DRS both are there"),
    parses({"cpu": "1"}, None, requested={}, id="DRS nothing"),
]

DENIED = [
    denied({COUNT: "-3"}, f"{COUNT} must be greater than 0", id="DRS -3 slices"),
    denied(
        {MEMORY: "8", CORES: "0"},
        f"{CORES} must be in range (0,100]",
        void=False,
        id="DRS no cores",
    ),
    denied(
        {MEMORY: "0", CORES: "5"},
        f"{MEMORY} must be greater than 0",
        void=False,
        id="DRS no memory",
    ),
    denied(
        {CORES: "101"},
        f"{CORES} must be in range (0,100]",
        void=False,
        id="DRS more cores than a device has",
    ),
    denied(
        {COUNT: "1.5"}, f"invalid {COUNT} value 1.5 in container c: {INT32}", id="DRS 1.5 slices"
    ),
    denied(
        {MEMORY: "many"},
        f"invalid {MEMORY} value many in container c: expected a number with an optional suffix "
        "such as k, M, Mi, Gi, m or e3",
        id="DRS memory that is no amount",
    ),
    denied(
        {MEMORY: "16Gi"},
        f"invalid {MEMORY} value 16Gi in container c: {INT32}, in GB or MiB, without a unit: 16384",
        id="DRS memory in bytes",
    ),
    denied(
        {CORES: "500m"},
        f"invalid {CORES} value 500m in container c: {INT32}",
        id="DRS half a percent",
    ),
]

TIGHT = {"Enflame": Budget(memory_mib=20479)}
FITS = [
    fits([device()], {COUNT: 3}, given(0, 20480, 50), written=WITH_HALF, id="DRS three slices"),
    fits(
        [device()],
        {MEMORY: 20480, CORES: 40},
        given(0, 20480, 50),
        written=WITH_HALF,
        id="DRS memory and cores",
    ),
    fits([device()], {CORES: 60}, given(0, 40960, 100), written=WITH_ALL, id="DRS cores alone"),
    fits([device(profiles=(SIXTH,))], {COUNT: 3}, "1/1 ModeNotFit", id="DRS no profile fits"),
    fits(
        [device(0, 1)],
        {COUNT: 3},
        "1/1 ExclusiveDeviceAllocateConflict",
        annotations=MUTEX,
        id="DRS mutex",
    ),
    fits(
        [device(), device(1)], {COUNT: 4}, "1/2 ModeNotFit", id="DRS no profile of so many slices"
    ),
    fits([device()], {MEMORY: 41}, "1/1 ModeNotFit", id="DRS more GB than a device has"),
    fits([device()], {MEMORY: 40961}, "1/1 ModeNotFit", id="DRS more MiB than a device has"),
    fits([device()], {MEMORY: 80}, "1/1 ModeNotFit", id="DRS twice the largest is still in GB"),
    fits(
        [device()],
        {MEMORY: 81},
        given(0, 6144, 17),
        written=WITH_SIXTH,
        id="DRS beyond twice the largest it is MiB",
    ),
    fits(
        [device()],
        {MEMORY: 6145},
        given(0, 20480, 50),
        written=WITH_HALF,
        id="DRS MiB are rounded up to GB",
    ),
    fits(
        [device()],
        {MEMORY: 7},
        given(0, 20480, 50),
        written=WITH_HALF,
        id="DRS the smallest that has the memory",
    ),
    fits(
        [device()],
        {CORES: 17},
        given(0, 6144, 17),
        written=WITH_SIXTH,
        id="DRS a sixth is 17 percent",
    ),
    fits(
        [device(), device(1)],
        {COUNT: 3},
        given(1, 20480, 50),
        written=agent(1, 3, f"{{{profile('3g.20gb', 3, 1)}}}"),
        id="DRS the number of the device and of its file",
    ),
    fits(
        [device()],
        [{COUNT: 1}, {"cpu": "1"}, {COUNT: 3}],
        "n-enflame-drs-0,Enflame,6144,17:;;n-enflame-drs-0,Enflame,20480,50:;",
        written=agent(0, 1, f"{{{profile('1g.6gb', 1, 0)},{profile('3g.20gb', 3, 1, 'c2')}}}"),
        id="DRS each container is described, the pod by its first",
    ),
    fits(
        [device(0, 2, 26624, 67)],
        {COUNT: 3},
        "1/1 CardInsufficientMemory",
        id="DRS memory is taken",
    ),
    fits(
        [device(0, 4, 24576, 68, profiles=(SIXTH, ALL))],
        {COUNT: 6},
        "1/1 CardInsufficientMemory",
        id="DRS four sixths are taken",
    ),
    fits(
        [device(0, 1, 20480, 50, slices=4)],
        {COUNT: 3},
        "1/1 CardInsufficientCore",
        id="one of four slices is left",
    ),
    fits(
        [device(0, 2, 40960, 100)],
        {COUNT: 1},
        "1/1 CardTimeSlicingExhausted",
        id="two halves are six slices",
    ),
    fits(
        [device(0, 1, 40960, 100)],
        {COUNT: 1},
        "1/1 CardTimeSlicingExhausted",
        id="one whole is six slices",
    ),
    fits(
        [device(0, 5, 30720, 85)],
        {COUNT: 1},
        given(0, 6144, 17),
        written=WITH_SIXTH,
        id="DRS six sixths go on a device, though six times 17 are 102",
    ),
    fits([device(0, healthy=False)], {COUNT: 1}, "1/1 CardNotHealth", id="DRS a broken device"),
    fits(
        [device()],
        {COUNT: 1},
        "1/1 CardUuidMismatch",
        annotations={"enflame.com/use-gpuuuid": "other"},
        id="DRS another device is wanted",
    ),
    fits(
        [device()],
        {COUNT: 3},
        "1/1 ResourceQuotaNotFit",
        budgets=TIGHT,
        id="a quota is on MiB, not on slices",
    ),
    fits(
        [device()],
        {MEMORY: 20},
        "1/1 ResourceQuotaNotFit",
        budgets=TIGHT,
        id="a quota is on MiB, not on GB",
    ),
    fits(
        [device()],
        {COUNT: 1},
        given(0, 6144, 17),
        budgets=TIGHT,
        written=WITH_SIXTH,
        id="a quota that suffices",
    ),
]
