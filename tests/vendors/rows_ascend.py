"""Ascend's rows of the table."""

import json
from dataclasses import replace

import msgspec
from pytest import param

from hami.codec.device_config import chart_config
from hami.vendors.catalog import vendors
from testing.builders import request, usage
from testing.vendor_rows import Asked, Denied, Fits

CHART = chart_config()


def ascend(word, *, soft=False, **chip):
    """The vendor of that common word, with *chip* (fields of AscendChip) changed for that chip."""
    chips = tuple(
        msgspec.structs.replace(one, **chip) if one.common_word == word else one
        for one in CHART.ascends
    )
    return vendors(replace(CHART, ascends=chips, hami_vnpu_core=soft), ascend=True)[word]


P310, A910, B910, C910 = map(ascend, ("Ascend310P", "Ascend910A", "Ascend910B3", "Ascend910C"))
SOFT = {"huawei.com/vnpu-mode": "hami-core"}
HARD = {"huawei.com/vnpu-mode": "template"}


def npu(vendor, count=None, memory=None, core=None):
    """Amounts in a chip's resources."""
    amounts = {"": count, "-memory": memory, "-core": core}
    return {
        vendor.resources.count + name: str(value)
        for name, value in amounts.items()
        if value is not None
    }


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


def takes(vendor, *entries):
    """The annotations beside the allocation."""
    return {
        "predicate-time": "1787313600",
        f"huawei.com/{vendor.key}": json.dumps(entries, separators=(",", ":")),
    }


def whole(vendor, *uuids, memory=65536):
    """The allocation and the annotations of whole chips."""
    return (
        "".join(f"{uuid},{vendor.key},{memory},0:" for uuid in uuids) + ";",
        takes(vendor, *({"UUID": uuid, "memory": memory} for uuid in uuids)),
    )


def parses(vendor, count, memory, becomes, request, id, core=None, annotations=None, **fields):
    return param(
        Asked(
            vendor=vendor,
            limits=npu(vendor, count, memory, core),
            added=npu(vendor, *becomes),
            requested=npu(vendor, None, becomes[1]),
            request=replace(request, vendor=vendor.key),
            annotations=annotations or {},
            **fields,
        ),
        id=id,
    )


def denied(vendor, count, memory, why, id, core=None, annotations=None, void=False):
    return param(
        Denied(
            vendor=vendor,
            limits=npu(vendor, count, memory, core),
            why=why,
            void=void,
            annotations=annotations or {},
        ),
        id=id,
    )


def fits(vendor, usages, limits, outcome, id, written=None, annotations=None):
    return param(
        Fits(
            vendor=vendor,
            usages=usages,
            limits=limits,
            outcome=outcome,
            written=written or {},
            annotations=annotations or {},
        ),
        id=id,
    )


def gets(vendor, usages, count, uuids, id, memory=65536, annotations=None):
    """A row of whole chips that fit."""
    outcome, written = whole(vendor, *uuids, memory=memory)
    return fits(vendor, usages, npu(vendor, count), outcome, id, written, annotations)


TENFOLD = ascend("Ascend310P", memory_factor=10)
GIBI = ascend("Ascend910B3", memory_factor=1024)
NO_POD = ascend("Ascend910C", super_pod=False)

ASKS = [  # vendor, count, memory, what they become, the request
    parses(
        P310, 1, 2000, (1, 3072), request(1, 3072), id="Ascend memory is rounded up to a template"
    ),
    parses(B910, 1, None, (1, 65536), request(1, 65536), id="Ascend a whole chip"),
    parses(
        B910,
        1,
        15360,
        (1, 15360),
        request(1, 15360, cores=20),
        core=20,
        annotations=SOFT,
        id="Ascend soft split",
    ),
    parses(C910, 1, None, (2, 65536), request(2, 65536), id="Ascend chips come in pairs"),
    parses(C910, 4, 65536, (4, 65536), request(4, 65536), id="Ascend two modules"),
    parses(
        C910,
        1,
        16384,
        (2, 16384),
        request(2, 16384),
        annotated={"hami.io/ascend-one-of-module": "c"},
        id="Ascend a slice of one chip, of both chips of its module",
    ),
    parses(
        C910,
        1,
        65536,
        (2, 65536),
        request(2, 65536),
        id="Ascend all memory of a chip that becomes two",
    ),
    parses(
        B910,
        1,
        15360,
        (1, 15360),
        request(1, 15360, cores=20),
        core=20,
        annotations={"huawei.com/vnpu-mode": " HAMi-core "},
        annotated=SOFT,
        id="Ascend soft split in other letters",
    ),
    parses(
        B910,
        1,
        9000,
        (1, 16384),
        request(1, 16384),
        annotations={"huawei.com/vnpu-mode": " "},
        id="Ascend a blank mode is none",
    ),
    parses(
        B910,
        1,
        9000,
        (1, 16384),
        request(1, 16384),
        annotations=HARD,
        id="Ascend hard split by its name",
    ),
    parses(P310, 1, 3072, (1, 3072), request(1, 3072), id="Ascend exactly a template"),
    parses(P310, 1, 3073, (1, 6144), request(1, 6144), id="Ascend above a template"),
    parses(P310, 1, 12289, (1, 21527), request(1, 21527), id="Ascend above all templates"),
    parses(P310, 1, 24576, (1, 21527), request(1, 21527), id="Ascend as much as the chip has"),
    parses(P310, 1, 0, (1, 3072), request(1, 3072), id="Ascend no memory"),
    parses(B910, 2, None, (2, 65536), request(2, 65536), id="Ascend two whole chips"),
    parses(B910, 2, 40000, (2, 65536), request(2, 65536), id="Ascend two chips that become whole"),
    parses(
        B910, 2, 1000, (2, 1000), request(2, 1000), annotations=SOFT, id="Ascend soft, two parts"
    ),
    parses(
        B910,
        1,
        None,
        (1, 65536),
        request(1, 65536),
        annotations=SOFT,
        id="Ascend soft, a whole chip",
    ),
    parses(
        B910, 1, None, (1, 65536), request(1, 65536), core=0, id="Ascend no cores in hard split"
    ),
    parses(
        TENFOLD,
        1,
        307,
        (1, 307),
        request(1, 3070),
        id="307 tens of MiB are less than the template of 3072",
    ),
    parses(
        TENFOLD, 1, 308, (1, 614), request(1, 6140), id="308 tens of MiB need the next template"
    ),
    parses(GIBI, 1, 9, (1, 16), request(1, 16384), id="9 GiB need the template of 16"),
    parses(GIBI, 2, 64, (2, 64), request(2, 65536), id="64 GiB are a whole chip"),
    parses(GIBI, 1, 9, (1, 9), request(1, 9216), annotations=SOFT, id="9 GiB of a soft split"),
    parses(
        NO_POD,
        3,
        None,
        (3, 65536),
        request(3, 65536),
        id="an odd number where chips do not come in pairs",
    ),
    parses(
        ascend("Ascend910B3", runtime_class="ascend"),
        1,
        None,
        (1, 65536),
        request(1, 65536),
        pod_spec={"runtimeClassName": "ascend"},
        id="Ascend runtime class",
    ),
    param(
        Asked(
            vendor=C910,
            limits=npu(C910, 1),
            requests=npu(C910, 1),
            added=npu(C910, 2, 65536),
            requested=npu(C910, 2, 65536),
            request=request(2, 65536, vendor="Ascend910C"),
        ),
        id="Ascend the request of a module, too",
    ),
    param(
        Asked(
            vendor=B910,
            limits={},
            requests=npu(B910, 1, 9000),
            added=npu(B910, 1, 16384),
            requested=npu(B910, None, 16384),
            request=request(1, 16384, vendor="Ascend910B3"),
        ),
        id="Ascend requests alone",
    ),
    param(
        Asked(
            vendor=ascend("Ascend910B3", resource_memory_name="", resource_core_name=""),
            limits={"huawei.com/Ascend910B3": "1"},
            request=request(1, 0, 100, vendor="Ascend910B3"),
        ),
        id="Ascend without a name for memory",
    ),
    param(Asked(vendor=B910, limits={"cpu": "1"}, request=None), id="Ascend nothing"),
    param(Asked(vendor=B910, limits=npu(B910, None, 5), request=None), id="Ascend memory alone"),
]

SEVERAL = "vNPU not supported for multiple devices"
DENIED = [  # vendor, count, memory, why
    denied(B910, 2, 16384, SEVERAL, id="Ascend a part of several chips"),
    denied(
        B910,
        1,
        70000,
        "huawei.com/Ascend910B3-memory 70000 is invalid",
        id="Ascend more memory than a chip has",
    ),
    denied(C910, 2, 16384, SEVERAL, id="Ascend a slice of each of two chips"),
    denied(
        C910,
        2,
        16384,
        SEVERAL,
        annotations={"hami.io/ascend-one-of-module": "cc,d"},
        id="Ascend another container has a slice of a module",
    ),
    denied(
        B910,
        1,
        9000,
        "annotation huawei.com/vnpu-mode=hami-cor: expected hami-core or template; did you mean hami-core?",
        annotations={"huawei.com/vnpu-mode": "hami-cor"},
        id="Ascend a mode that does not exist",
    ),
    denied(
        P310,
        1,
        None,
        "annotation huawei.com/vnpu-mode=enpu: expected hami-core or template",
        annotations={"huawei.com/vnpu-mode": "enpu"},
        id="Ascend a mode of newer plugins",
    ),
    denied(GIBI, 2, 16, SEVERAL, id="16 GiB are no whole chip"),
    denied(
        GIBI, 1, 65, "huawei.com/Ascend910B3-memory 65 is invalid", id="65 GiB are more than a chip"
    ),
    denied(
        C910,
        3,
        None,
        "Ascend910C device request must be 1 or 2*n, got 3",
        id="Ascend a module and a half",
    ),
    denied(
        B910,
        1,
        None,
        "huawei.com/Ascend910B3-core is only supported in hami-core (soft split) mode",
        core=20,
        id="Ascend cores in hard split",
    ),
    denied(
        B910,
        1,
        None,
        "huawei.com/Ascend910B3-core is only supported in hami-core (soft split) mode",
        core=20,
        annotations={"huawei.com/vnpu-mode": "template"},
        id="Ascend cores in the other mode",
    ),
    denied(
        B910,
        1,
        "16.5",
        "invalid huawei.com/Ascend910B3-memory value 16.5 in container c: must be an integer "
        "between 0 and 2147483647, in MiB, without a unit",
        void=True,
        id="Ascend memory that cannot be read",
    ),
    denied(
        B910,
        "-1",
        None,
        "invalid huawei.com/Ascend910B3 value -1 in container c: must be an integer between 0 and "
        "2147483647",
        void=True,
        id="Ascend -1 chips",
    ),
    denied(
        GIBI,
        1,
        2097152,
        "invalid huawei.com/Ascend910B3-memory value 2097152 in container c: must be an integer "
        "between 0 and 2097151, in units of 1024 MiB, without a unit",
        void=True,
        id="Ascend too much after scaling",
    ),
]

HALF = [chip("d", 1, 32768, 0), chip("e")]
DOZEN = chips(*[None] * 8, used={3, 5, 7})
FITS = [  # vendor, its chips in the order given to the fit (tried from the end), limits, the outcome
    fits(
        P310,
        [chip("dev-0", memory_mib=21527)],
        npu(P310, 1, 2000),
        "dev-0,Ascend310P,3072,0:;",
        written=takes(P310, {"UUID": "dev-0", "temp": "vir01", "memory": 3072}),
        id="Ascend memory is rounded up to a template",
    ),
    gets(B910, [chip("d")], 1, "d", id="Ascend a whole chip"),
    fits(
        B910,
        [chip("d", soft=True)],
        npu(B910, 1, 15360, 20),
        "d,Ascend910B3,15360,20:;",
        annotations=SOFT,
        written=takes(B910, {"UUID": "d", "memory": 15360, "core": 20}),
        id="Ascend soft split",
    ),
    fits(
        B910,
        [chip("d")],
        npu(B910, 1, 15360, 20),
        "1/1 ModeNotFit",
        annotations=SOFT,
        id="node without support",
    ),
    gets(C910, chips(*[None] * 4, used={1}), 1, ("d3", "d2"), id="Ascend chips come in pairs"),
    fits(
        C910,
        chips(*[None] * 4, used={1}),
        npu(C910, 1, 16384),
        "d3,Ascend910C,16384,0:d2,Ascend910C,16384,0:;",
        written=takes(
            C910,
            {"UUID": "d3", "temp": "vir05_1c_16g", "memory": 16384},
            {"UUID": "d2", "temp": "vir05_1c_16g", "memory": 16384},
        ),
        id="Ascend a slice of one chip, of both chips of its module",
    ),
    fits(
        C910,
        DOZEN,
        npu(C910, 4),
        "2/4 AllocatedCardsInsufficientRequest, 3/4 CardTimeSlicingExhausted",
        id="Ascend too few pairs",
    ),
    fits(
        C910,
        chips(None, None, None, used={1}),
        npu(C910, 2),
        "0/2 AllocatedCardsInsufficientRequest, 1/2 CardTimeSlicingExhausted",
        id="Ascend half a pair is free",
    ),
    gets(
        C910,
        chips(*[None] * 8, used={1}),
        4,
        ("d3", "d2", "d5", "d4"),
        id="Ascend the lowest modules",
    ),
    gets(NO_POD, DOZEN, 3, ("d6", "d4", "d2"), id="chips that do not come in pairs"),
    fits(
        B910,
        [chip("d", soft=True)],
        npu(B910, 1, 9000),
        "d,Ascend910B3,16384,0:;",
        written=takes(B910, {"UUID": "d", "temp": "vir05_1c_16g", "memory": 16384}),
        id="Ascend hard split on a node with soft split",
    ),
    fits(
        B910,
        [chip("d", soft=True)],
        npu(B910, 1, 9000),
        "1/1 ModeNotFit",
        annotations=HARD,
        id="Ascend only the hard split on a node with soft split",
    ),
    fits(
        B910,
        [chip("d")],
        npu(B910, 1, 9000),
        "d,Ascend910B3,16384,0:;",
        annotations=HARD,
        written=takes(B910, {"UUID": "d", "temp": "vir05_1c_16g", "memory": 16384}),
        id="Ascend only the hard split",
    ),
    fits(
        B910,
        [chip("d", 1, 1000, 90, soft=True)],
        npu(B910, 1, 1000, 20),
        "1/1 CardInsufficientCore",
        annotations=SOFT,
        id="Ascend soft, too few cores left",
    ),
    fits(
        B910,
        [chip("d", 1, 1000, 100, soft=True)],
        npu(B910, 1, 1000),
        "1/1 CardComputeUnitsExhausted",
        id="Ascend soft pods hold all cores",
    ),
    fits(
        B910,
        HALF,
        npu(B910, 2),
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory",
        id="Ascend one chip is divided",
    ),
    fits(
        TENFOLD,
        [chip("d", 1, 18457, 0, memory_mib=21527)],
        npu(TENFOLD, 1, 307),
        "1/1 CardInsufficientMemory",
        id="room for 3070 MiB, but not for the template",
    ),
    fits(
        TENFOLD,
        [chip("d", 1, 18455, 0, memory_mib=21527)],
        npu(TENFOLD, 1, 307),
        "d,Ascend310P,3072,0:;",
        written=takes(P310, {"UUID": "d", "temp": "vir01", "memory": 3072}),
        id="the template is what is taken",
    ),
    gets(
        B910,
        [chip("a"), chip("b")],
        1,
        "a",
        annotations={"hami.io/use-Ascend910B3-uuid": "a"},
        id="Ascend the uuid",
    ),
    fits(
        B910,
        [chip("a"), chip("b")],
        npu(B910, 2),
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardUuidMismatch",
        annotations={"hami.io/no-use-Ascend910B3-uuid": "b"},
        id="Ascend not that uuid",
    ),
    fits(
        B910,
        [],
        npu(B910, 1, 15360),
        "NodeInsufficientDevice",
        annotations=SOFT,
        id="Ascend soft, no chip at all",
    ),
    gets(B910, chips(1, 2, 2, 1, 2), 3, ("d4", "d2", "d1"), id="Ascend the largest network"),
    gets(B910, chips(1, 2, 1, 2), 2, ("d2", "d0"), id="Ascend of equal networks the lowest"),
    gets(
        B910,
        chips(1, 2, 2, 1, 2),
        4,
        ("d4", "d2", "d1", "d3"),
        id="Ascend the largest network and one more",
    ),
    gets(B910, chips(1, 2, 1), 3, ("d2", "d1", "d0"), id="Ascend all there are"),
    gets(B910, chips(1, 1, 2), 1, ("d2",), id="Ascend one of any network"),
    gets(B910, chips(1, 1, 2, None), 2, ("d3", "d2"), id="Ascend a chip without network"),
    gets(B910, chips("x", 1, "x", "x"), 2, ("d1", "d3"), id="networks that are no numbers"),
    gets(
        P310,
        chips(1, 1, 2, 1, memory_mib=21527),
        2,
        ("d3", "d2"),
        memory=21527,
        id="Ascend 310P knows no networks",
    ),
]
