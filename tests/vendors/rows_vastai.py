"""Vastai's rows of the table."""

from hami.codec.device_config import chart_config
from hami.vendors.catalog import vendors
from testing.builders import request, usage
from testing.vendor_rows import MUTEX, Rows

VASTAI = vendors(chart_config())["Vastai"]
vastai = Rows("Vastai", VASTAI)


def va(count):
    return {"vastaitech.com/va": str(count)}


def die(uuid, card, slots_used=0, **fields):
    """A die on that physical card (AIC); ``None`` if unknown."""
    info = {"DeviceStrategy": "die"} | ({} if card is None else {"AIC": card})
    return usage(uuid, slots_used, **{"info": info, "slots": 2} | fields)


def dies(*cards, used=()):
    """Dies ``d0``, ``d1`` … on these cards; those in *used* are in use."""
    return [die(f"d{index}", card, int(index in used)) for index, card in enumerate(cards)]


def fits(name, usages, count, outcome, **fields):
    return vastai.fits(name, usages, va(count), outcome, **fields)


def gets(*uuids):
    return "".join(f"{uuid},Vastai,0,0:" for uuid in uuids) + ";"


ASKS = [
    vastai.asks("one device", va(1), request(1, 0, 100, 0, "Vastai")),
    vastai.asks("requests alone", {}, request(2, 0, 100, 0, "Vastai"), requests=va(2)),
    vastai.asks("no card", va(0), None),
]

DENIED = [
    vastai.denied(
        "a card and a half",
        va("1.5"),
        "invalid vastaitech.com/va value 1.5 in container c: must be an "
        "integer between 0 and 2147483647",
    )
]

WHOLE = [usage("d0", slots=1), usage("d1", slots=1)]
FITS = [  # devices, requested count, outcome
    fits("one device", WHOLE, 1, gets("d1")),
    fits("two dies of one card", dies("1", "1", "2", "3"), 2, gets("d1", "d0")),
    fits(
        "mutex takes a free card", dies("1", "1", "2", used={0}), 1, gets("d2"), annotations=MUTEX
    ),
    fits(
        "mutex finds no free card",
        dies("1", "1", used={0}),
        1,
        "2/2 ExclusiveDeviceAllocateConflict",
        annotations=MUTEX,
    ),
    # more than a node has is told before any of its devices is looked at: the words of the scheduler, not of its fit
    fits("more devices than the node has", WHOLE, 3, "NodeInsufficientDevice"),
    fits(
        "of three cards two are free",
        [*WHOLE, usage("d2", 1, slots=1)],
        3,
        "1/3 CardTimeSlicingExhausted, 2/3 AllocatedCardsInsufficientRequest",
    ),
    fits("the largest card", dies("1", "2", "2", "1", "2"), 3, gets("d4", "d2", "d1")),
    fits("of equal cards the lowest", dies("1", "2", "1", "2"), 2, gets("d2", "d0")),
    fits(
        "dies without a card come last", dies("1", "1", None, None, None), 3, gets("d1", "d0", "d4")
    ),
    fits("one die", dies("2", "1", "1"), 1, gets("d2")),
    fits(
        "the first device says how all are used",
        [usage("w"), *dies("1", "1", "2")],
        2,
        gets("d2", "d1"),
    ),
    fits("dies may be shared", [die("a", "1", 1), die("b", "2")], 2, gets("b", "a")),
    fits(
        "a die without a card, alone", dies(None, None, used={0}), 1, gets("d1"), annotations=MUTEX
    ),
    fits(
        "whole cards, alone",
        [usage("w0", 1, info={"AIC": "1"}, slots=2), usage("w1", info={"AIC": "1"})],
        1,
        gets("w1"),
        annotations=MUTEX,
    ),
    fits("the uuid", WHOLE, 1, gets("d0"), annotations={"vastaitech.com/use-gpuuuid": "d0"}),
    fits("not that uuid", WHOLE, 1, gets("d0"), annotations={"vastaitech.com/nouse-gpuuuid": "d1"}),
    fits("not healthy", [usage("d0", healthy=False)], 1, "1/1 CardNotHealth"),
]
