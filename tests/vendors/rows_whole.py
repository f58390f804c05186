"""Rows of the table for whole cards that are counted only: Biren and Enflame."""

from testing.vendor_chart import CHART, card, on_node
from testing.vendor_rows import INT32, MUTEX, Rows

BIREN, GCU = CHART["Biren"], CHART["GCU"]
birens, gcu = Rows("Biren", BIREN), Rows("GCU", GCU)


def biren(uuid, *taken, **fields):
    return card(BIREN, uuid, *taken, **{"slots": 1} | fields)


def gcus(count, **taken):
    return on_node(GCU, count=count, **taken)


ASKS = [
    birens.asks("two cards", birens.limits(2), birens.request(2, 0, 100, 0)),
    birens.asks("one card", birens.limits(1), birens.request(1, 0, 100, 0)),
    birens.asks("three cards", birens.limits(3), birens.request(3, 0, 100, 0)),
    gcu.asks("two cards", gcu.limits(2), gcu.request(2, 0, 100, 100)),
    gcu.asks("requests alone", {}, gcu.request(2, 0, 100, 100), requests=gcu.limits(2)),
]

DENIED = [
    birens.denied(
        "1.5 cards",
        birens.limits("1.5"),
        f"invalid {BIREN.resources.count} value 1.5 in container c: {INT32}",
    )
]

FITS = [
    birens.fits(
        "two cards", [biren("c0"), biren("c1")], birens.limits(2), "c1,Biren,0,0:c0,Biren,0,0:;"
    ),
    birens.fits(
        "a card in use", [biren("c0", 1)], birens.limits(1), "1/1 CardTimeSlicingExhausted"
    ),
    # with fewer cards than requested, the scheduler rejects the node before it checks any card
    birens.fits(
        "more cards than the node has",
        [biren("c0"), biren("c1")],
        birens.limits(3),
        "NodeInsufficientDevice",
    ),
    birens.fits(
        "a third card is taken",
        [biren("c0"), biren("c1"), biren("c2", 1)],
        birens.limits(3),
        "1/3 CardTimeSlicingExhausted, 2/3 AllocatedCardsInsufficientRequest",
    ),
    birens.fits(
        "a card that may be shared", [biren("c0", 1, slots=2)], birens.limits(1), "c0,Biren,0,0:;"
    ),
    birens.fits(
        "mutex",
        [biren("c0", 1, slots=2)],
        birens.limits(1),
        "1/1 ExclusiveDeviceAllocateConflict",
        annotations=MUTEX,
    ),
    birens.fits(
        "uuid",
        [biren("c0"), biren("c1")],
        birens.limits(1),
        "c0,Biren,0,0:;",
        annotations={"birentech.com/use-gpuuuid": "c0,c1", "birentech.com/nouse-gpuuuid": "c1"},
    ),
    birens.fits(
        "a broken card", [biren("c0", healthy=False)], birens.limits(1), "1/1 CardNotHealth"
    ),
    gcu.fits("two cards", gcus(2), gcu.limits(2), "n-GCU-1,GCU,100,100:n-GCU-0,GCU,100,100:;"),
    gcu.fits(
        "one of two cards is in use",
        gcus(2, taken={0: (1, 100, 100)}),
        gcu.limits(2),
        "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict",
    ),
    gcu.fits(
        "a card each",
        gcus(2),
        [gcu.limits(1), gcu.limits(1)],
        "n-GCU-1,GCU,100,100:;n-GCU-0,GCU,100,100:;",
    ),
]
