"""Kunlun's rows of the table: whole cards, and slices of them (vXPU)."""

from dataclasses import replace

from hami.codec.device_config import chart_config
from hami.vendors.catalog import vendors
from testing.builders import request, usage
from testing.vendor_rows import INT32, MUTEX, Rows

ALL = vendors(chart_config())
CARDS, SLICES = ALL["kunlun"], ALL["XPU"]
whole_cards, vxpus = Rows("Kunlun", CARDS), Rows("vXPU", SLICES)
USED = {"slots_used": 1, "memory_used_mib": 98304, "cores_used": 100}


def cards(*used, name="n-kunlun-{}", order=range(8), **fields):
    """Eight cards in a server, in this order; those in *used* are fully used."""
    every = [
        usage(
            name.format(index),
            index=index,
            memory_mib=98304,
            slots=100,
            numa=index // 4,
            **(USED if index in used else {}),
            **fields,
        )
        for index in range(8)
    ]
    return [every[index] for index in order]


def sliced(**slices):
    """Eight cards ``xpu-0`` …; those named have these slices, in MiB: ``_3=[24576]``."""
    taken = {int(name[1:]): sizes for name, sizes in slices.items()}
    return [
        replace(
            card,
            slots_used=len(taken.get(index, ())),
            memory_used_mib=sum(taken.get(index, ())),
            cores_used=sum(taken.get(index, ())) * 100 // 98304,
        )
        for index, card in enumerate(cards(name="xpu-{}"))
    ]


def whole(*indexes):
    """The allocation of whole cards."""
    return "".join(f"n-kunlun-{index},kunlun,98304,100:" for index in indexes) + ";"


def quarters(*indexes):
    """The allocation of a quarter of each card."""
    return "".join(f"xpu-{index},XPU,24576,25:" for index in indexes) + ";"


def takes(name, usages, count, indexes, **fields):
    """A row of whole cards that fit."""
    written = {"BAIDU_COM_DEVICE_IDX": ",".join(map(str, indexes))}
    return whole_cards.fits(name, usages, xpu(count), whole(*indexes), written, **fields)


def none(name, usages, count, why, **fields):
    """A row of whole cards that do not fit."""
    return whole_cards.fits(name, usages, xpu(count), why, **fields)


def slices(name, usages, count, memory, outcome, **fields):
    return vxpus.fits(name, usages, vxpu(count, memory), outcome, **fields)


def xpu(count):
    return {"kunlunxin.com/xpu": count}


def vxpu(count=None, memory=None):
    amounts = {"vxpu": count, "vxpu-memory": memory}
    return {
        f"kunlunxin.com/{name}": str(value) for name, value in amounts.items() if value is not None
    }


def rounds(name, memory, becomes, cores):
    after = {} if str(memory) == str(becomes) else vxpu(None, becomes)
    rounded = request(1, becomes, None, cores, "XPU")
    return vxpus.asks(name, vxpu(1, memory), rounded, added=after, requested=vxpu(None, becomes))


ASKS = [
    whole_cards.asks("one card", xpu("1"), request(1, 0, 100, 0, "kunlun")),
    vxpus.asks(
        "memory among requests",
        vxpu(2),
        request(2, 24576, None, 25, "XPU"),
        requests=vxpu(None, 24576),
    ),
    vxpus.asks("no memory is a whole card", vxpu(1), request(1, 98304, 100, 100, "XPU")),
    rounds("memory is rounded to a quarter", 20000, 24576, 25),
    rounds("exactly a quarter", 24576, 24576, 25),
    rounds("above a quarter", 24577, 49152, 50),
    rounds("above a half", 49153, 98304, 100),
    rounds("more than a card", 98305, 98304, 100),
    rounds("no memory", 0, 24576, 25),
    vxpus.asks(
        "memory in requests is rounded, too",
        vxpu(1),
        request(1, 49152, None, 50, "XPU"),
        requests=vxpu(None, 30000),
        added=vxpu(None, 49152),
        requested=vxpu(None, 49152),
    ),
    vxpus.asks("memory alone", vxpu(None, 24576), None),
]

DENIED = [
    vxpus.denied(
        "memory that cannot be read",
        vxpu(1, "1.5"),
        f"invalid kunlunxin.com/vxpu-memory value 1.5 in container c: {INT32}, in MiB, without a unit",
    )
]

FULL = [24576] * 4
FITS = [  # cards in use, requested count, indexes of the selected cards
    takes("one card", cards(5), 1, (4,)),
    takes("two cards beside a used one", cards(5), 2, (4, 6)),
    takes("two cards linked across the wings", cards(0, 1, 2, 4, 5, 6), 2, (3, 7)),
    takes("four cards across the wings", cards(2, 3, 7), 4, (0, 1, 4, 5)),
    takes("four cards, one of each wing used", cards(3, 6), 4, (0, 1, 4, 5)),
    none("eight cards, one of them used", cards(5), 8, "1/8 NumaNotFit"),
    takes(
        "wings are those of indexes", cards(0, 4, order=(0, 4, 1, 2, 3, 5, 6, 7)), 4, (2, 3, 6, 7)
    ),
    takes("all cards", cards(), 8, range(8)),
    takes("an idle server", cards(), 1, (0,)),
    takes("a single card first", cards(1, 2, 3), 1, (0,)),
    none("three cards", cards(), 3, "1/8 NumaNotFit"),
    none("two cards that are not linked", cards(0, 1, 2, 5, 6, 7), 2, "1/8 NumaNotFit"),
    none("all cards are used", cards(*range(8)), 1, "1/8 NumaNotFit"),
    none(
        "both reasons",
        cards(0, 1, 2, 5, 6),
        2,
        "1/8 CardUuidMismatch, 1/8 NumaNotFit",
        annotations={"hami.io/no-use-xpu-uuid": "n-kunlun-7"},
    ),
    none(
        "a card that is not healthy",
        [
            replace(card, device=replace(card.device, healthy=card.device.index != 7))
            for card in cards(0, 1, 2, 5, 6)
        ],
        2,
        "1/8 CardNotHealth, 1/8 NumaNotFit",
    ),
    takes(
        "both keys for uuids",
        cards(),
        1,
        (6,),
        annotations={
            "hami.io/use-xpu-uuid": "n-kunlun-5,n-kunlun-6",
            "baidu.com/use-gpuuuid": "n-kunlun-6,n-kunlun-7",
        },
    ),
    takes(
        "both keys for uuids that are not wanted",
        cards(),
        1,
        (2,),
        annotations={
            "hami.io/no-use-xpu-uuid": "n-kunlun-0",
            "baidu.com/nouse-gpuuuid": "n-kunlun-1",
        },
    ),
    whole_cards.fits(
        "indexes of the last container",
        cards(),
        [xpu(1), {}, xpu(2)],
        whole(0) + ";" + whole(1, 2),
        {"BAIDU_COM_DEVICE_IDX": "1,2"},
    ),
    slices("memory is rounded to a quarter", [sliced()[0]], 1, 20000, quarters(0)),
    slices(
        "both keys for uuids",
        sliced(),
        1,
        24576,
        quarters(6),
        annotations={"hami.io/use-xpu-uuid": "xpu-5,xpu-6", "baidu.com/nouse-gpuuuid": "xpu-5"},
    ),
    slices(
        "four linked cards with slices of one size",
        sliced(_1=FULL[:2], _3=[49152], _5=FULL[:1]),
        4,
        24576,
        quarters(4, 5, 6, 7),
    ),
    slices(
        "mutex",
        sliced(**{f"_{index}": FULL[:1] for index in range(8)}),
        1,
        24576,
        "8/8 ExclusiveDeviceAllocateConflict",
        annotations=MUTEX,
    ),
    slices("alone on a card", sliced(_0=FULL[:1]), 1, 24576, quarters(1), annotations=MUTEX),
    slices("a whole card", sliced()[:1], 1, None, "xpu-0,XPU,98304,100:;"),
    slices("a full card", sliced(_0=FULL)[:1], 1, 24576, "1/1 CardInsufficientMemory"),
    slices(
        "slices of another size",
        sliced(_0=[49152])[:1],
        1,
        24576,
        "1/1 CardNotFoundCustomFilterRule",
    ),
    slices("the fourth slice", sliced(_0=FULL[:3])[:1], 1, 24576, quarters(0)),
    slices(
        "why one card of eight is missing",
        sliced(_7=[49152]),
        8,
        24576,
        "1/8 CardNotFoundCustomFilterRule, 7/8 AllocatedCardsInsufficientRequest",
    ),
    slices(
        "slices that are not linked",
        sliced(_1=FULL, _2=FULL, _3=FULL, _4=FULL, _6=FULL, _7=FULL),
        2,
        24576,
        "1/8 NumaNotFit, 6/8 CardInsufficientMemory",
    ),
]
