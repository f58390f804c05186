"""Kunlun's rows of the table: whole cards, and slices of them (vXPU)."""

from dataclasses import replace

from pytest import param

from hami.codec.device_config import chart_config
from hami.vendors.catalog import vendors
from testing.builders import request, usage
from testing.vendor_rows import Asked, Denied, Fits

CARDS, SLICES = (vendors(chart_config())[key] for key in ("kunlun", "XPU"))
MUTEX = {"hami.io/gpu-scheduler-policy": "mutex"}
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


def takes(usages, count, indexes, id, annotations=None):
    """A row of whole cards that fit."""
    return param(
        Fits(
            vendor=CARDS,
            usages=usages,
            limits={"kunlunxin.com/xpu": count},
            outcome=whole(*indexes),
            node="n",
            annotations=annotations or {},
            written={"BAIDU_COM_DEVICE_IDX": ",".join(map(str, indexes))},
        ),
        id=id,
    )


def none(usages, count, why, id, annotations=None):
    """A row of whole cards that do not fit."""
    return param(
        Fits(
            vendor=CARDS,
            usages=usages,
            limits={"kunlunxin.com/xpu": count},
            outcome=why,
            annotations=annotations or {},
        ),
        id=id,
    )


def slices(usages, count, memory, outcome, id, annotations=None):
    return param(
        Fits(
            vendor=SLICES,
            usages=usages,
            limits=vxpu(count, memory),
            outcome=outcome,
            annotations=annotations or {},
        ),
        id=id,
    )


def vxpu(count=None, memory=None):
    amounts = {"vxpu": count, "vxpu-memory": memory}
    return {
        f"kunlunxin.com/{name}": str(value) for name, value in amounts.items() if value is not None
    }


def rounds(memory, becomes, cores, id):
    after = {} if str(memory) == str(becomes) else vxpu(None, becomes)
    return param(
        Asked(
            vendor=SLICES,
            limits=vxpu(1, memory),
            added=after,
            requested=vxpu(None, becomes),
            request=request(1, becomes, None, cores, "XPU"),
        ),
        id=id,
    )


ASKS = [
    param(
        Asked(
            vendor=CARDS, limits={"kunlunxin.com/xpu": "1"}, request=request(1, 0, 100, 0, "kunlun")
        ),
        id="Kunlun one card",
    ),
    param(
        Asked(
            vendor=SLICES,
            limits=vxpu(2),
            requests=vxpu(None, 24576),
            request=request(2, 24576, None, 25, "XPU"),
        ),
        id="vXPU memory among requests",
    ),
    param(
        Asked(vendor=SLICES, limits=vxpu(1), request=request(1, 98304, 100, 100, "XPU")),
        id="vXPU no memory is a whole card",
    ),
    rounds(20000, 24576, 25, id="vXPU memory is rounded to a quarter"),
    rounds(24576, 24576, 25, id="vXPU exactly a quarter"),
    rounds(24577, 49152, 50, id="vXPU above a quarter"),
    rounds(49153, 98304, 100, id="vXPU above a half"),
    rounds(98305, 98304, 100, id="vXPU more than a card"),
    rounds(0, 24576, 25, id="vXPU no memory"),
    param(
        Asked(
            vendor=SLICES,
            limits=vxpu(1),
            requests=vxpu(None, 30000),
            added=vxpu(None, 49152),
            requested=vxpu(None, 49152),
            request=request(1, 49152, None, 50, "XPU"),
        ),
        id="vXPU memory in requests is rounded, too",
    ),
    param(Asked(vendor=SLICES, limits=vxpu(None, 24576), request=None), id="vXPU memory alone"),
]

INT32 = "must be an integer between 0 and 2147483647"
DENIED = [
    param(
        Denied(
            vendor=SLICES,
            limits=vxpu(1, "1.5"),
            why=f"invalid kunlunxin.com/vxpu-memory value 1.5 in container c: {INT32}, in MiB, without a unit",
        ),
        id="vXPU memory that cannot be read",
    ),
    param(
        Denied(
            vendor=CARDS,
            limits={"kunlunxin.com/xpu": "-1"},
            why=f"invalid kunlunxin.com/xpu value -1 in container c: {INT32}",
        ),
        id="Kunlun -1 cards",
    ),
]

FULL = [24576] * 4
FITS = [  # cards in use, requested count, indexes of the selected cards
    takes(cards(5), 1, (4,), id="Kunlun one card"),
    takes(cards(5), 2, (4, 6), id="Kunlun two cards beside a used one"),
    takes(cards(0, 1, 2, 4, 5, 6), 2, (3, 7), id="Kunlun two cards linked across the wings"),
    takes(cards(2, 3, 7), 4, (0, 1, 4, 5), id="Kunlun four cards across the wings"),
    takes(cards(3, 6), 4, (0, 1, 4, 5), id="Kunlun four cards, one of each wing used"),
    none(cards(5), 8, "1/8 NumaNotFit", id="Kunlun eight cards, one of them used"),
    takes(
        cards(0, 4, order=(0, 4, 1, 2, 3, 5, 6, 7)),
        4,
        (2, 3, 6, 7),
        id="wings are those of indexes",
    ),
    takes(cards(), 8, range(8), id="Kunlun all cards"),
    takes(cards(), 1, (0,), id="Kunlun an idle server"),
    takes(cards(1, 2, 3), 1, (0,), id="Kunlun a single card first"),
    none(cards(), 3, "1/8 NumaNotFit", id="Kunlun three cards"),
    none(cards(0, 1, 2, 5, 6, 7), 2, "1/8 NumaNotFit", id="Kunlun two cards that are not linked"),
    none(cards(*range(8)), 1, "1/8 NumaNotFit", id="Kunlun all cards are used"),
    none(
        cards(0, 1, 2, 5, 6),
        2,
        "1/8 CardUuidMismatch, 1/8 NumaNotFit",
        id="both reasons",
        annotations={"hami.io/no-use-xpu-uuid": "n-kunlun-7"},
    ),
    none(
        [
            replace(card, device=replace(card.device, healthy=card.device.index != 7))
            for card in cards(0, 1, 2, 5, 6)
        ],
        2,
        "1/8 CardNotHealth, 1/8 NumaNotFit",
        id="a card that is not healthy",
    ),
    takes(
        cards(),
        1,
        (6,),
        id="Kunlun both keys for uuids",
        annotations={
            "hami.io/use-xpu-uuid": "n-kunlun-5,n-kunlun-6",
            "baidu.com/use-gpuuuid": "n-kunlun-6,n-kunlun-7",
        },
    ),
    takes(
        cards(),
        1,
        (2,),
        id="Kunlun both keys for uuids that are not wanted",
        annotations={
            "hami.io/no-use-xpu-uuid": "n-kunlun-0",
            "baidu.com/nouse-gpuuuid": "n-kunlun-1",
        },
    ),
    param(
        Fits(
            vendor=CARDS,
            usages=cards(),
            node="n",
            limits=[{"kunlunxin.com/xpu": 1}, {}, {"kunlunxin.com/xpu": 2}],
            outcome=whole(0) + ";" + whole(1, 2),
            written={"BAIDU_COM_DEVICE_IDX": "1,2"},
        ),
        id="Kunlun indexes of the last container",
    ),
    slices([sliced()[0]], 1, 20000, quarters(0), id="vXPU memory is rounded to a quarter"),
    slices(
        sliced(),
        1,
        24576,
        quarters(6),
        id="vXPU both keys for uuids",
        annotations={"hami.io/use-xpu-uuid": "xpu-5,xpu-6", "baidu.com/nouse-gpuuuid": "xpu-5"},
    ),
    slices(
        sliced(_1=FULL[:2], _3=[49152], _5=FULL[:1]),
        4,
        24576,
        quarters(4, 5, 6, 7),
        id="vXPU four linked cards with slices of one size",
    ),
    slices(
        sliced(**{f"_{index}": FULL[:1] for index in range(8)}),
        1,
        24576,
        "8/8 ExclusiveDeviceAllocateConflict",
        annotations=MUTEX,
        id="vXPU mutex",
    ),
    slices(
        sliced(_0=FULL[:1]), 1, 24576, quarters(1), annotations=MUTEX, id="vXPU alone on a card"
    ),
    slices(sliced()[:1], 1, None, "xpu-0,XPU,98304,100:;", id="vXPU a whole card"),
    slices(sliced(_0=FULL)[:1], 1, 24576, "1/1 CardInsufficientMemory", id="vXPU a full card"),
    slices(
        sliced(_0=[49152])[:1],
        1,
        24576,
        "1/1 CardNotFoundCustomFilterRule",
        id="vXPU slices of another size",
    ),
    slices(sliced(_0=FULL[:3])[:1], 1, 24576, quarters(0), id="vXPU the fourth slice"),
    slices(
        sliced(_7=[49152]),
        8,
        24576,
        "1/8 CardNotFoundCustomFilterRule, 7/8 AllocatedCardsInsufficientRequest",
        id="vXPU why one card of eight is missing",
    ),
    slices(
        sliced(_1=FULL, _2=FULL, _3=FULL, _4=FULL, _6=FULL, _7=FULL),
        2,
        24576,
        "1/8 NumaNotFit, 6/8 CardInsufficientMemory",
        id="vXPU slices that are not linked",
    ),
]
