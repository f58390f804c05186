"""Moore Threads' rows of the table. Memory and cores are written for all cards together."""

from dataclasses import replace

from hami.codec.device_config import chart_config
from hami.vendors.catalog import vendors
from testing.builders import APP, INIT
from testing.vendor_chart import CHART, on_node
from testing.vendor_rows import Rows

MT = CHART["Mthreads"]
mt = Rows("Mthreads", MT)


def with_cards(*sizes):
    """The vendor with these models of cards, in units of 512 MiB."""
    return vendors(replace(chart_config(), sgpu_card_sizes=sizes))["Mthreads"]


MIXED = with_cards(96, 160)
s5000, mixed = Rows("Mthreads", with_cards(160)), Rows("Mthreads", MIXED)
LEGAL = "sGPU memory request value is invalid, valid values are [2, 4, 8, 16, 32, 64, 96]"


def eight(**taken):
    return on_node(MT, cores=128, memory=768, **taken)


def shares(*parts):
    return (
        "".join(f"n-mthreads-{index},Mthreads,{memory},{cores}:" for index, memory, cores in parts)
        + ";"
    )


def written(*indexes):
    return {
        "mthreads.com/gpu-index": ",".join(map(str, indexes)),
        "mthreads.com/predicate-node": "n",
        "mthreads.com/predicate-time": "1787313600000000000",
    }


T1, ALL = mt.limits(1, 32, 8), mt.limits(None, 96, 16)
COUNTED = {"mthreads.com/request-gpu-num": "2"}
ASKS = [
    mt.asks("memory and cores", T1, mt.request(1, 16384, None, 8)),
    mt.asks(
        "two cards are whole",
        mt.limits(2),
        mt.request(2, 49152, None, 16),
        added=mt.limits(None, 192, 32),
        annotated=COUNTED,
    ),
    mt.asks("one card", mt.limits(1), mt.request(1, 49152, None, 16), added=ALL),
    s5000.asks(
        "one S5000", mt.limits(1), mt.request(1, 81920, None, 16), added=mt.limits(None, 160, 16)
    ),
    s5000.asks(
        "two S5000",
        mt.limits(2),
        mt.request(2, 81920, None, 16),
        added=mt.limits(None, 320, 32),
        annotated=COUNTED,
    ),
    s5000.asks(
        "a part that only an S5000 has", mt.limits(1, 128, 8), mt.request(1, 65536, None, 8)
    ),
    mixed.asks(
        "a card of either model",
        mt.limits(1),
        mt.request(1, 0, 100, 16),
        added=mt.limits(None, None, 16),
    ),
    mixed.asks(
        "two cards of either model",
        mt.limits(2),
        mt.request(2, 0, 100, 16),
        added=mt.limits(None, None, 32),
        annotated=COUNTED,
    ),
    *(
        mixed.asks(
            f"{size} of a card of either model",
            mt.limits(1, size, 8),
            mt.request(1, size * 512, None, 8),
        )
        for size in (2, 64, 96, 128, 160)
    ),
    mt.asks(
        "cores alone are all", mt.limits(1, None, 8), mt.request(1, 49152, None, 16), added=ALL
    ),
    mt.asks("memory alone has no cores", mt.limits(1, 32), mt.request(1, 16384, None, 0)),
    mt.asks(
        "several cards are whole",
        mt.limits(2, 4, 1),
        mt.request(2, 49152, None, 16),
        added=mt.limits(None, 192, 32),
        annotated=COUNTED,
    ),
    mt.asks(
        "a count among requests",
        {},
        mt.request(1, 49152, None, 16),
        requests=mt.limits(1),
        added=ALL,
    ),
    mt.asks(
        "requests stay equal to limits",
        mt.limits(2, 4, 1),
        mt.request(2, 49152, None, 16),
        requests=mt.limits(2, 4, 1),
        added=mt.limits(None, 192, 32),
        requested=mt.limits(None, 192, 32),
        annotated=COUNTED,
    ),
]

DENIED = [
    s5000.denied(
        "memory of another card",
        mt.limits(1, 96),
        "sGPU memory request value is invalid, valid values are [2, 4, 8, 16, 32, 64, 128, 160]",
        void=False,
    ),
    mixed.denied(
        "memory of no card",
        mt.limits(1, 192),
        "sGPU memory request value is invalid, valid values are "
        "[2, 4, 8, 16, 32, 64, 96, 128, 160]",
        void=False,
    ),
    mt.denied("memory that is no legal size", mt.limits(1, 3), LEGAL, void=False),
    mt.denied("no memory", mt.limits(1, 0), LEGAL, void=False),
    mt.denied("-1 cards", mt.limits(-1), "mthreads.com/vgpu must be greater than 0"),
    mt.denied(
        "memory that is no integer",
        mt.limits(1, "1.5"),
        f"invalid {MT.resources.memory} value 1.5 in container c: must be an integer "
        "between 0 and 4194303, in units of 512 MiB, without a unit",
    ),
]

FITS = [
    mixed.fits(
        "a card of either model is an S5000",
        on_node(MIXED, cores=32, memory=320),
        mt.limits(1),
        shares((1, 81920, 16)),
        written(1),
    ),
    mixed.fits(
        "two cards of either model are S4000",
        on_node(MIXED, cores=32, memory=192),
        mt.limits(2),
        shares((1, 49152, 16), (0, 49152, 16)),
        written(1, 0),
    ),
    mt.fits("memory and cores", eight(), T1, shares((7, 16384, 8)), written(7)),
    mt.fits(
        "two cards are whole",
        eight(),
        mt.limits(2),
        shares((7, 49152, 16), (6, 49152, 16)),
        written(7, 6),
    ),
    mt.fits("room", eight(), [T1, T1], shares((7, 16384, 8)) + shares((7, 16384, 8)), written(7)),
    mt.fits(
        "full",
        eight(),
        [mt.limits(1), T1],
        "1/8 CardInsufficientMemory, 7/8 CardNotFoundCustomFilterRule",
    ),
    mt.fits(
        "nobody joins a container that has several cards",
        eight(),
        [mt.limits(2), T1],
        "2/8 CardInsufficientMemory, 6/8 CardNotFoundCustomFilterRule",
    ),
    mt.fits(
        "init container",
        eight(),
        [mt.limits(1), T1],
        shares((7, 49152, 16)) + shares((7, 16384, 8)),
        written(7),
        kinds=(INIT, APP),
    ),
    mt.fits(
        "the last container with a card",
        eight(),
        [T1, {"cpu": "1"}],
        shares((7, 16384, 8)) + ";",
        written(7),
    ),
    mt.fits(
        "no cores are left",
        eight(taken={7: (1, 0, 16)}),
        mt.limits(1, 32),
        shares((6, 16384, 0)),
        written(6),
    ),
    mt.fits("too few cores", eight(taken={7: (1, 0, 9)}), [T1], shares((6, 16384, 8)), written(6)),
    mt.fits(
        "a node with one core and one unit of memory",
        on_node(MT, cores=1, memory=1),
        {},
        shares((0, 8192, 16)),
        written(0),
        request=mt.request(1, 8192, None, 16),
    ),
    mt.fits(
        "uuid",
        eight(),
        T1,
        shares((2, 16384, 8)),
        written(2),
        annotations={
            "mthreads.ai/use-gpuuuid": "n-mthreads-2,n-mthreads-3",
            "mthreads.ai/nouse-gpuuuid": "n-mthreads-3",
            "mthreads.com/use-gpuuuid": "n-mthreads-1",
        },
    ),
]
