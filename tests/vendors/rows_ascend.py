"""Ascend's rows of the table."""

import json
from dataclasses import replace

import msgspec

from hami.codec.device_config import chart_config
from hami.vendors.catalog import vendors
from testing.builders import request, usage
from testing.vendor_rows import Rows

CHART = chart_config()


def ascend(word, *, soft=False, **chip):
    """Rows of the vendor of that common word, with *chip* (fields of AscendChip) changed for that chip."""
    chips = tuple(
        msgspec.structs.replace(one, **chip) if one.common_word == word else one
        for one in CHART.ascends
    )
    config = replace(CHART, ascends=chips, hami_vnpu_core=soft)
    return Chip("Ascend", vendors(config, ascend=True)[word])


class Chip(Rows):
    """Rows of one chip of Ascend."""

    def becomes(self, name, count, memory, becomes, request, core=None, **fields):
        """*becomes*: count and memory after admission."""
        return self.asks(
            name,
            self.limits(count, memory, core),
            replace(request, vendor=self.vendor.key),
            added=self.limits(*becomes),
            requested=self.limits(None, becomes[1]),
            **fields,
        )

    def refuses(self, name, count, memory, why, core=None, void=False, **fields):
        limits = self.limits(count, memory, core)
        return self.denied(name, limits, why, void=void, **fields)

    def gets(self, name, usages, count, uuids, memory=65536, **fields):
        """A row of whole chips that fit."""
        outcome = "".join(f"{uuid},{self.vendor.key},{memory},0:" for uuid in uuids) + ";"
        written = self.takes(*({"UUID": uuid, "memory": memory} for uuid in uuids))
        return self.fits(name, usages, self.limits(count), outcome, written, **fields)

    def takes(self, *entries):
        """The annotations beside the allocation."""
        return {
            "predicate-time": "1787313600",
            f"huawei.com/{self.vendor.key}": json.dumps(entries, separators=(",", ":")),
        }


p310, b910, c910 = map(ascend, ("Ascend310P", "Ascend910B3", "Ascend910C"))
SOFT = {"huawei.com/vnpu-mode": "hami-core"}
HARD = {"huawei.com/vnpu-mode": "template"}


def chip(
    uuid, slots_used=0, memory_used_mib=0, cores_used=0, *, soft=False, network=None, **fields
):
    """A chip with 64 GiB; *soft*: on a node with the soft split."""
    info = {"hami-vnpu-core": soft} | ({} if network is None else {"NetworkID": network})
    return usage(
        uuid,
        slots_used,
        memory_used_mib,
        cores_used,
        info=info,
        **{"memory_mib": 65536, "slots": 4} | fields,
    )


def chips(*networks, used=(), **fields):
    """Chips ``d0``, ``d1`` …, with the networks given; those with an index in *used* have no slot left."""
    return [
        chip(f"d{index}", 4 * (index in used), index=index, network=network, **fields)
        for index, network in enumerate(networks)
    ]


tenfold = ascend("Ascend310P", memory_factor=10)
gibi = ascend("Ascend910B3", memory_factor=1024)
no_pod = ascend("Ascend910C", super_pod=False)

ASKS = [  # count, memory, what they become, the request
    p310.becomes("memory is rounded up to a template", 1, 2000, (1, 3072), request(1, 3072)),
    b910.becomes("a whole chip", 1, None, (1, 65536), request(1, 65536)),
    b910.becomes(
        "soft split", 1, 15360, (1, 15360), request(1, 15360, cores=20), core=20, annotations=SOFT
    ),
    c910.becomes("chips come in pairs", 1, None, (2, 65536), request(2, 65536)),
    c910.becomes("two modules", 4, 65536, (4, 65536), request(4, 65536)),
    c910.becomes(
        "a slice of one chip, of both chips of its module",
        1,
        16384,
        (2, 16384),
        request(2, 16384),
        annotated={"hami.io/ascend-one-of-module": "c"},
    ),
    c910.becomes("all memory of a chip that becomes two", 1, 65536, (2, 65536), request(2, 65536)),
    b910.becomes(
        "soft split in other letters",
        1,
        15360,
        (1, 15360),
        request(1, 15360, cores=20),
        core=20,
        annotations={"huawei.com/vnpu-mode": " HAMi-core "},
        annotated=SOFT,
    ),
    b910.becomes(
        "a blank mode is none",
        1,
        9000,
        (1, 16384),
        request(1, 16384),
        annotations={"huawei.com/vnpu-mode": " "},
    ),
    b910.becomes(
        "hard split by its name", 1, 9000, (1, 16384), request(1, 16384), annotations=HARD
    ),
    p310.becomes("exactly a template", 1, 3072, (1, 3072), request(1, 3072)),
    p310.becomes("above a template", 1, 3073, (1, 6144), request(1, 6144)),
    p310.becomes("above all templates", 1, 12289, (1, 21527), request(1, 21527)),
    p310.becomes("as much as the chip has", 1, 24576, (1, 21527), request(1, 21527)),
    p310.becomes("no memory", 1, 0, (1, 3072), request(1, 3072)),
    b910.becomes("two whole chips", 2, None, (2, 65536), request(2, 65536)),
    b910.becomes("two chips that become whole", 2, 40000, (2, 65536), request(2, 65536)),
    b910.becomes("soft, two parts", 2, 1000, (2, 1000), request(2, 1000), annotations=SOFT),
    b910.becomes("soft, a whole chip", 1, None, (1, 65536), request(1, 65536), annotations=SOFT),
    b910.becomes("no cores in hard split", 1, None, (1, 65536), request(1, 65536), core=0),
    tenfold.becomes(
        "307 tens of MiB are less than the template of 3072", 1, 307, (1, 307), request(1, 3070)
    ),
    tenfold.becomes("308 tens of MiB need the next template", 1, 308, (1, 614), request(1, 6140)),
    gibi.becomes("9 GiB need the template of 16", 1, 9, (1, 16), request(1, 16384)),
    gibi.becomes("64 GiB are a whole chip", 2, 64, (2, 64), request(2, 65536)),
    gibi.becomes("9 GiB of a soft split", 1, 9, (1, 9), request(1, 9216), annotations=SOFT),
    no_pod.becomes(
        "an odd number where chips do not come in pairs", 3, None, (3, 65536), request(3, 65536)
    ),
    ascend("Ascend910B3", runtime_class="ascend").becomes(
        "runtime class",
        1,
        None,
        (1, 65536),
        request(1, 65536),
        pod_spec={"runtimeClassName": "ascend"},
    ),
    c910.asks(
        "the request of a module, too",
        c910.limits(1),
        c910.request(2, 65536),
        requests=c910.limits(1),
        added=c910.limits(2, 65536),
        requested=c910.limits(2, 65536),
    ),
    b910.asks(
        "requests alone",
        {},
        b910.request(1, 16384),
        requests=b910.limits(1, 9000),
        added=b910.limits(1, 16384),
        requested=b910.limits(None, 16384),
    ),
    ascend("Ascend910B3", resource_memory_name="", resource_core_name="").asks(
        "without a name for memory", {"huawei.com/Ascend910B3": "1"}, b910.request(1, 0, 100)
    ),
    b910.asks("nothing", {"cpu": "1"}, None),
    b910.asks("memory alone", b910.limits(None, 5), None),
]

SEVERAL = "vNPU not supported for multiple devices"
DENIED = [  # count, memory, why
    b910.refuses("a part of several chips", 2, 16384, SEVERAL),
    b910.refuses(
        "more memory than a chip has", 1, 70000, "huawei.com/Ascend910B3-memory 70000 is invalid"
    ),
    c910.refuses("a slice of each of two chips", 2, 16384, SEVERAL),
    c910.refuses(
        "another container has a slice of a module",
        2,
        16384,
        SEVERAL,
        annotations={"hami.io/ascend-one-of-module": "cc,d"},
    ),
    b910.refuses(
        "a mode that does not exist",
        1,
        9000,
        "annotation huawei.com/vnpu-mode=hami-cor: expected hami-core or template; did you mean hami-core?",
        annotations={"huawei.com/vnpu-mode": "hami-cor"},
    ),
    p310.refuses(
        "a mode of newer plugins",
        1,
        None,
        "annotation huawei.com/vnpu-mode=enpu: expected hami-core or template",
        annotations={"huawei.com/vnpu-mode": "enpu"},
    ),
    gibi.refuses("16 GiB are no whole chip", 2, 16, SEVERAL),
    gibi.refuses(
        "65 GiB are more than a chip", 1, 65, "huawei.com/Ascend910B3-memory 65 is invalid"
    ),
    c910.refuses(
        "a module and a half", 3, None, "Ascend910C device request must be 1 or 2*n, got 3"
    ),
    b910.refuses(
        "cores in hard split",
        1,
        None,
        "huawei.com/Ascend910B3-core is only supported in hami-core (soft split) mode",
        core=20,
    ),
    b910.refuses(
        "cores in the other mode",
        1,
        None,
        "huawei.com/Ascend910B3-core is only supported in hami-core (soft split) mode",
        core=20,
        annotations={"huawei.com/vnpu-mode": "template"},
    ),
    b910.refuses(
        "memory that cannot be read",
        1,
        "16.5",
        "invalid huawei.com/Ascend910B3-memory value 16.5 in container c: must be an integer "
        "between 0 and 2147483647, in MiB, without a unit",
        void=True,
    ),
    gibi.refuses(
        "too much after scaling",
        1,
        2097152,
        "invalid huawei.com/Ascend910B3-memory value 2097152 in container c: must be an integer "
        "between 0 and 2097151, in units of 1024 MiB, without a unit",
        void=True,
    ),
]

HALF = [chip("d", 1, 32768, 0), chip("e")]
DOZEN = chips(*[None] * 8, used={3, 5, 7})
FITS = [  # chips in the order given to the fit (tried from the end), limits, the outcome
    p310.fits(
        "memory is rounded up to a template",
        [chip("dev-0", memory_mib=21527)],
        p310.limits(1, 2000),
        "dev-0,Ascend310P,3072,0:;",
        p310.takes({"UUID": "dev-0", "temp": "vir01", "memory": 3072}),
    ),
    b910.gets("a whole chip", [chip("d")], 1, "d"),
    b910.fits(
        "soft split",
        [chip("d", soft=True)],
        b910.limits(1, 15360, 20),
        "d,Ascend910B3,15360,20:;",
        b910.takes({"UUID": "d", "memory": 15360, "core": 20}),
        annotations=SOFT,
    ),
    b910.fits(
        "node without support",
        [chip("d")],
        b910.limits(1, 15360, 20),
        "1/1 ModeNotFit",
        annotations=SOFT,
    ),
    c910.gets("chips come in pairs", chips(*[None] * 4, used={1}), 1, ("d3", "d2")),
    c910.fits(
        "a slice of one chip, of both chips of its module",
        chips(*[None] * 4, used={1}),
        c910.limits(1, 16384),
        "d3,Ascend910C,16384,0:d2,Ascend910C,16384,0:;",
        c910.takes(
            {"UUID": "d3", "temp": "vir05_1c_16g", "memory": 16384},
            {"UUID": "d2", "temp": "vir05_1c_16g", "memory": 16384},
        ),
    ),
    c910.fits(
        "too few pairs",
        DOZEN,
        c910.limits(4),
        "2/4 AllocatedCardsInsufficientRequest, 3/4 CardTimeSlicingExhausted",
    ),
    c910.fits(
        "half a pair is free",
        chips(None, None, None, used={1}),
        c910.limits(2),
        "0/2 AllocatedCardsInsufficientRequest, 1/2 CardTimeSlicingExhausted",
    ),
    c910.gets("the lowest modules", chips(*[None] * 8, used={1}), 4, ("d3", "d2", "d5", "d4")),
    no_pod.gets("chips that do not come in pairs", DOZEN, 3, ("d6", "d4", "d2")),
    b910.fits(
        "hard split on a node with soft split",
        [chip("d", soft=True)],
        b910.limits(1, 9000),
        "d,Ascend910B3,16384,0:;",
        b910.takes({"UUID": "d", "temp": "vir05_1c_16g", "memory": 16384}),
    ),
    b910.fits(
        "only the hard split on a node with soft split",
        [chip("d", soft=True)],
        b910.limits(1, 9000),
        "1/1 ModeNotFit",
        annotations=HARD,
    ),
    b910.fits(
        "only the hard split",
        [chip("d")],
        b910.limits(1, 9000),
        "d,Ascend910B3,16384,0:;",
        b910.takes({"UUID": "d", "temp": "vir05_1c_16g", "memory": 16384}),
        annotations=HARD,
    ),
    b910.fits(
        "soft, too few cores left",
        [chip("d", 1, 1000, 90, soft=True)],
        b910.limits(1, 1000, 20),
        "1/1 CardInsufficientCore",
        annotations=SOFT,
    ),
    b910.fits(
        "soft pods hold all cores",
        [chip("d", 1, 1000, 100, soft=True)],
        b910.limits(1, 1000),
        "1/1 CardComputeUnitsExhausted",
    ),
    b910.fits(
        "one chip is divided",
        HALF,
        b910.limits(2),
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
    ),
    tenfold.fits(
        "room for 3070 MiB, but not for the template",
        [chip("d", 1, 18457, 0, memory_mib=21527)],
        tenfold.limits(1, 307),
        "1/1 CardInsufficientMemory",
    ),
    tenfold.fits(
        "the template is what is taken",
        [chip("d", 1, 18455, 0, memory_mib=21527)],
        tenfold.limits(1, 307),
        "d,Ascend310P,3072,0:;",
        p310.takes({"UUID": "d", "temp": "vir01", "memory": 3072}),
    ),
    b910.gets(
        "the uuid",
        [chip("a"), chip("b")],
        1,
        "a",
        annotations={"hami.io/use-Ascend910B3-uuid": "a"},
    ),
    b910.fits(
        "not that uuid",
        [chip("a"), chip("b")],
        b910.limits(2),
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardUuidMismatch",
        annotations={"hami.io/no-use-Ascend910B3-uuid": "b"},
    ),
    b910.fits(
        "soft, no chip at all",
        [],
        b910.limits(1, 15360),
        "NodeInsufficientDevice",
        annotations=SOFT,
    ),
    b910.gets("the largest network", chips(1, 2, 2, 1, 2), 3, ("d4", "d2", "d1")),
    b910.gets("of equal networks the lowest", chips(1, 2, 1, 2), 2, ("d2", "d0")),
    b910.gets(
        "the largest network and one more", chips(1, 2, 2, 1, 2), 4, ("d4", "d2", "d1", "d3")
    ),
    b910.gets("all there are", chips(1, 2, 1), 3, ("d2", "d1", "d0")),
    b910.gets("one of any network", chips(1, 1, 2), 1, ("d2",)),
    b910.gets("a chip without network", chips(1, 1, 2, None), 2, ("d3", "d2")),
    b910.gets("networks that are no numbers", chips("x", 1, "x", "x"), 2, ("d1", "d3")),
    p310.gets(
        "310P knows no networks", chips(1, 1, 2, 1, memory_mib=21527), 2, ("d3", "d2"), memory=21527
    ),
]
