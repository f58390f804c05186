"""Moore Threads' rows of the table. Memory and cores are written for all cards together."""

from dataclasses import replace

from hami.codec.device_config import chart_config
from hami.vendors.catalog import vendors
from testing.builders import APP, INIT
from testing.vendor_chart import CHART, INT32, asked, denied, fits, given, on_node, parses

MT = CHART["Mthreads"]


def with_cards(*sizes):
    """The vendor with these models of cards, in units of 512 MiB."""
    return vendors(replace(chart_config(), sgpu_card_sizes=sizes))["Mthreads"]


S5000, MIXED = with_cards(160), with_cards(96, 160)
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


T1, ALL = given(MT, 1, 32, 8), given(MT, None, 96, 16)
COUNTED = {"mthreads.com/request-gpu-num": "2"}
ASKS = [
    parses(MT, T1, asked(MT, 1, 16384, None, 8), id="Mthreads memory and cores"),
    parses(
        MT,
        given(MT, 2),
        asked(MT, 2, 49152, None, 16),
        id="Mthreads two cards are whole",
        added=given(MT, None, 192, 32),
        annotated=COUNTED,
    ),
    parses(MT, given(MT, 1), asked(MT, 1, 49152, None, 16), id="Mthreads one card", added=ALL),
    parses(
        S5000,
        given(MT, 1),
        asked(MT, 1, 81920, None, 16),
        id="Mthreads one S5000",
        added=given(MT, None, 160, 16),
    ),
    parses(
        S5000,
        given(MT, 2),
        asked(MT, 2, 81920, None, 16),
        id="Mthreads two S5000",
        added=given(MT, None, 320, 32),
        annotated=COUNTED,
    ),
    parses(
        S5000,
        given(MT, 1, 128, 8),
        asked(MT, 1, 65536, None, 8),
        id="Mthreads a part that only an S5000 has",
    ),
    parses(
        MIXED,
        given(MT, 1),
        asked(MT, 1, 0, 100, 16),
        id="Mthreads a card of either model",
        added=given(MT, None, None, 16),
    ),
    parses(
        MIXED,
        given(MT, 2),
        asked(MT, 2, 0, 100, 16),
        id="Mthreads two cards of either model",
        added=given(MT, None, None, 32),
        annotated=COUNTED,
    ),
    *(
        parses(
            MIXED,
            given(MT, 1, size, 8),
            asked(MT, 1, size * 512, None, 8),
            id=f"Mthreads {size} of a card of either model",
        )
        for size in (2, 64, 96, 128, 160)
    ),
    parses(
        MT,
        given(MT, 1, None, 8),
        asked(MT, 1, 49152, None, 16),
        id="Mthreads cores alone are all",
        added=ALL,
    ),
    parses(
        MT, given(MT, 1, 32), asked(MT, 1, 16384, None, 0), id="Mthreads memory alone has no cores"
    ),
    parses(
        MT,
        given(MT, 2, 4, 1),
        asked(MT, 2, 49152, None, 16),
        id="Mthreads several cards are whole",
        added=given(MT, None, 192, 32),
        annotated=COUNTED,
    ),
    parses(
        MT,
        {},
        asked(MT, 1, 49152, None, 16),
        id="Mthreads a count among requests",
        requests=given(MT, 1),
        added=ALL,
    ),
    parses(
        MT,
        given(MT, 2, 4, 1),
        asked(MT, 2, 49152, None, 16),
        id="Mthreads requests stay equal to limits",
        requests=given(MT, 2, 4, 1),
        added=given(MT, None, 192, 32),
        requested=given(MT, None, 192, 32),
        annotated=COUNTED,
    ),
]

DENIED = [
    denied(
        S5000,
        given(MT, 1, 96),
        "sGPU memory request value is invalid, valid values are [2, 4, 8, 16, 32, 64, 128, 160]",
        id="Mthreads memory of another card",
        void=False,
    ),
    denied(
        MIXED,
        given(MT, 1, 192),
        "sGPU memory request value is invalid, valid values are "
        "[2, 4, 8, 16, 32, 64, 96, 128, 160]",
        id="Mthreads memory of no card",
        void=False,
    ),
    denied(MT, given(MT, 1, 3), LEGAL, id="Mthreads memory that is no legal size", void=False),
    denied(MT, given(MT, 1, 0), LEGAL, id="Mthreads no memory", void=False),
    denied(MT, given(MT, -1), "mthreads.com/vgpu must be greater than 0", id="Mthreads -1 cards"),
    denied(
        MT,
        given(MT, 1, "1.5"),
        f"invalid {MT.resources.memory} value 1.5 in container c: must be an integer "
        "between 0 and 4194303, in units of 512 MiB, without a unit",
        id="Mthreads memory that is no integer",
    ),
    denied(
        MT,
        given(MT, 1, 32, "half"),
        f"invalid {MT.resources.cores} value half in container c: {INT32}",
        id="Mthreads cores that are no integer",
    ),
]

FITS = [
    fits(
        MIXED,
        on_node(MIXED, cores=32, memory=320),
        given(MT, 1),
        shares((1, 81920, 16)),
        id="Mthreads a card of either model is an S5000",
        written=written(1),
    ),
    fits(
        MIXED,
        on_node(MIXED, cores=32, memory=192),
        given(MT, 2),
        shares((1, 49152, 16), (0, 49152, 16)),
        id="Mthreads two cards of either model are S4000",
        written=written(1, 0),
    ),
    fits(
        MT, eight(), T1, shares((7, 16384, 8)), id="Mthreads memory and cores", written=written(7)
    ),
    fits(
        MT,
        eight(),
        given(MT, 2),
        shares((7, 49152, 16), (6, 49152, 16)),
        id="Mthreads two cards are whole",
        written=written(7, 6),
    ),
    fits(
        MT,
        eight(),
        [T1, T1],
        shares((7, 16384, 8)) + shares((7, 16384, 8)),
        id="room",
        written=written(7),
    ),
    fits(
        MT,
        eight(),
        [given(MT, 1), T1],
        "1/8 CardInsufficientMemory, 7/8 CardNotFoundCustomFilterRule",
        id="full",
    ),
    fits(
        MT,
        eight(),
        [given(MT, 2), T1],
        "2/8 CardInsufficientMemory, 6/8 CardNotFoundCustomFilterRule",
        id="Mthreads nobody joins a container that has several cards",
    ),
    fits(
        MT,
        eight(),
        [given(MT, 1), T1],
        shares((7, 49152, 16)) + shares((7, 16384, 8)),
        id="Mthreads init container",
        kinds=(INIT, APP),
        written=written(7),
    ),
    fits(
        MT,
        eight(),
        [T1, {"cpu": "1"}],
        shares((7, 16384, 8)) + ";",
        id="Mthreads the last container with a card",
        written=written(7),
    ),
    fits(
        MT,
        eight(taken={7: (1, 0, 16)}),
        given(MT, 1, 32),
        shares((6, 16384, 0)),
        id="Mthreads no cores are left",
        written=written(6),
    ),
    fits(
        MT,
        eight(taken={7: (1, 0, 9)}),
        [T1],
        shares((6, 16384, 8)),
        id="Mthreads too few cores",
        written=written(6),
    ),
    fits(
        MT,
        on_node(MT, cores=1, memory=1),
        {},
        shares((0, 8192, 16)),
        id="Mthreads a node with one core and one unit of memory",
        request=asked(MT, 1, 8192, None, 16),
        written=written(0),
    ),
    fits(
        MT,
        eight(),
        T1,
        shares((2, 16384, 8)),
        id="Mthreads uuid",
        written=written(2),
        annotations={
            "mthreads.ai/use-gpuuuid": "n-mthreads-2,n-mthreads-3",
            "mthreads.ai/nouse-gpuuuid": "n-mthreads-3",
            "mthreads.com/use-gpuuuid": "n-mthreads-1",
        },
    ),
]
