"""Rows of the table for whole cards that are counted only: Biren and Enflame."""

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
)

BIREN, GCU = CHART["Biren"], CHART["GCU"]


def biren(uuid, *taken, **fields):
    return card(BIREN, uuid, *taken, **{"slots": 1} | fields)


def gcus(count, **taken):
    return on_node(GCU, count=count, **taken)


ASKS = [
    parses(BIREN, given(BIREN, 2), asked(BIREN, 2, 0, 100, 0), id="Biren two cards"),
    parses(BIREN, given(BIREN, 1), asked(BIREN, 1, 0, 100, 0), id="Biren one card"),
    parses(BIREN, given(BIREN, 3), asked(BIREN, 3, 0, 100, 0), id="Biren three cards"),
    parses(GCU, given(GCU, 2), asked(GCU, 2, 0, 100, 100), id="GCU two cards"),
    parses(GCU, {}, asked(GCU, 2, 0, 100, 100), id="GCU requests alone", requests=given(GCU, 2)),
]

DENIED = [
    denied(
        BIREN,
        given(BIREN, "1.5"),
        f"invalid {BIREN.resources.count} value 1.5 in container c: {INT32}",
        id="Biren 1.5 cards",
    ),
    denied(
        GCU,
        given(GCU, -1),
        f"invalid {GCU.resources.count} value -1 in container c: {INT32}",
        id="GCU -1 cards",
    ),
]

FITS = [
    fits(
        BIREN,
        [biren("c0"), biren("c1")],
        given(BIREN, 2),
        "c1,Biren,0,0:c0,Biren,0,0:;",
        id="Biren two cards",
    ),
    fits(
        BIREN,
        [biren("c0", 1)],
        given(BIREN, 1),
        "1/1 CardTimeSlicingExhausted",
        id="Biren a card in use",
    ),
    # with fewer cards than requested, the scheduler rejects the node before it checks any card
    fits(
        BIREN,
        [biren("c0"), biren("c1")],
        given(BIREN, 3),
        "NodeInsufficientDevice",
        id="Biren more cards than the node has",
    ),
    fits(
        BIREN,
        [biren("c0"), biren("c1"), biren("c2", 1)],
        given(BIREN, 3),
        "1/3 CardTimeSlicingExhausted, 2/3 AllocatedCardsInsufficientRequest",
        id="a third card is taken",
    ),
    fits(
        BIREN,
        [biren("c0", 1, slots=2)],
        given(BIREN, 1),
        "c0,Biren,0,0:;",
        id="Biren a card that may be shared",
    ),
    fits(
        BIREN,
        [biren("c0", 1, slots=2)],
        given(BIREN, 1),
        "1/1 ExclusiveDeviceAllocateConflict",
        id="Biren mutex",
        annotations=MUTEX,
    ),
    fits(
        BIREN,
        [biren("c0"), biren("c1")],
        given(BIREN, 1),
        "c0,Biren,0,0:;",
        id="Biren uuid",
        annotations={"birentech.com/use-gpuuuid": "c0,c1", "birentech.com/nouse-gpuuuid": "c1"},
    ),
    fits(
        BIREN,
        [biren("c0", healthy=False)],
        given(BIREN, 1),
        "1/1 CardNotHealth",
        id="Biren a broken card",
    ),
    fits(
        GCU, gcus(2), given(GCU, 2), "n-GCU-1,GCU,100,100:n-GCU-0,GCU,100,100:;", id="GCU two cards"
    ),
    fits(
        GCU,
        gcus(2, taken={0: (1, 100, 100)}),
        given(GCU, 2),
        "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict",
        id="GCU one of two cards is in use",
    ),
    fits(
        GCU,
        gcus(2),
        [given(GCU, 1), given(GCU, 1)],
        "n-GCU-1,GCU,100,100:;n-GCU-0,GCU,100,100:;",
        id="GCU a card each",
    ),
]
