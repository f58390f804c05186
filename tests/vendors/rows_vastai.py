"""Vastai's rows of the table."""

from pytest import param

from hami.codec.device_config import chart_config
from hami.vendors.catalog import vendors
from testing.builders import request, usage
from testing.vendor_rows import Asked, Denied, Fits

VASTAI = vendors(chart_config())["Vastai"]
MUTEX = {"hami.io/gpu-scheduler-policy": "mutex"}


def va(count):
    return {"vastaitech.com/va": str(count)}


def die(uuid, card, slots_used=0, **fields):
    """A die on that physical card (AIC); ``None`` if unknown."""
    info = {"DeviceStrategy": "die"} | ({} if card is None else {"AIC": card})
    return usage(uuid, slots_used, **{"info": info, "slots": 2} | fields)


def dies(*cards, used=()):
    """Dies ``d0``, ``d1`` … on these cards; those in *used* are in use."""
    return [die(f"d{index}", card, int(index in used)) for index, card in enumerate(cards)]


def fits(usages, count, outcome, id, annotations=None):
    return param(
        Fits(
            vendor=VASTAI,
            usages=usages,
            limits=va(count),
            outcome=outcome,
            annotations=annotations or {},
        ),
        id=id,
    )


def gets(*uuids):
    return "".join(f"{uuid},Vastai,0,0:" for uuid in uuids) + ";"


ASKS = [
    param(
        Asked(vendor=VASTAI, limits=va(1), request=request(1, 0, 100, 0, "Vastai")),
        id="Vastai one device",
    ),
    param(
        Asked(vendor=VASTAI, limits={}, requests=va(2), request=request(2, 0, 100, 0, "Vastai")),
        id="Vastai requests alone",
    ),
    param(Asked(vendor=VASTAI, limits=va(0), request=None), id="Vastai no card"),
]

DENIED = [
    param(
        Denied(
            vendor=VASTAI,
            limits=va("1.5"),
            why="invalid vastaitech.com/va value 1.5 in container c: must be an "
            "integer between 0 and 2147483647",
        ),
        id="Vastai a card and a half",
    ),
]

WHOLE = [usage("d0", slots=1), usage("d1", slots=1)]
FITS = [  # devices, requested count, outcome
    fits(WHOLE, 1, gets("d1"), id="Vastai one device"),
    fits(dies("1", "1", "2", "3"), 2, gets("d1", "d0"), id="Vastai two dies of one card"),
    fits(
        dies("1", "1", "2", used={0}),
        1,
        gets("d2"),
        annotations=MUTEX,
        id="Vastai mutex takes a free card",
    ),
    fits(
        dies("1", "1", used={0}),
        1,
        "2/2 ExclusiveDeviceAllocateConflict",
        annotations=MUTEX,
        id="Vastai mutex finds no free card",
    ),
    # more than a node has is told before any of its devices is looked at: the words of the scheduler, not of its fit
    fits(WHOLE, 3, "NodeInsufficientDevice", id="Vastai more devices than the node has"),
    fits(
        [*WHOLE, usage("d2", 1, slots=1)],
        3,
        "1/3 CardTimeSlicingExhausted, 2/3 AllocatedCardsInsufficientRequest",
        id="of three cards two are free",
    ),
    fits(dies("1", "2", "2", "1", "2"), 3, gets("d4", "d2", "d1"), id="Vastai the largest card"),
    fits(dies("1", "2", "1", "2"), 2, gets("d2", "d0"), id="Vastai of equal cards the lowest"),
    fits(
        dies("1", "1", None, None, None),
        3,
        gets("d1", "d0", "d4"),
        id="Vastai dies without a card come last",
    ),
    fits(dies("2", "1", "1"), 1, gets("d2"), id="Vastai one die"),
    fits(
        [usage("w"), *dies("1", "1", "2")],
        2,
        gets("d2", "d1"),
        id="Vastai the first device says how all are used",
    ),
    fits([die("a", "1", 1), die("b", "2")], 2, gets("b", "a"), id="Vastai dies may be shared"),
    fits(
        dies(None, None, used={0}),
        1,
        gets("d1"),
        annotations=MUTEX,
        id="Vastai a die without a card, alone",
    ),
    fits(
        [usage("w0", 1, info={"AIC": "1"}, slots=2), usage("w1", info={"AIC": "1"})],
        1,
        gets("w1"),
        annotations=MUTEX,
        id="Vastai whole cards, alone",
    ),
    fits(
        WHOLE, 1, gets("d0"), annotations={"vastaitech.com/use-gpuuuid": "d0"}, id="Vastai the uuid"
    ),
    fits(
        WHOLE,
        1,
        gets("d0"),
        annotations={"vastaitech.com/nouse-gpuuuid": "d1"},
        id="Vastai not that uuid",
    ),
    fits([usage("d0", healthy=False)], 1, "1/1 CardNotHealth", id="Vastai not healthy"),
]
