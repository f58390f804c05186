"""Iluvatar's rows of the table; all chips are alike."""

from testing.vendor_chart import CHART, card
from testing.vendor_rows import MUTEX, Rows

V150, V100 = CHART["BI-V150"], CHART["MR-V100"]
v150, v100 = Rows("Iluvatar", V150), Rows("Iluvatar", V100)
NAMED = {"SOL_CONTINER_NAME": "c"}
I1 = v150.limits(1, 64, 50)

ASKS = [
    v150.asks("memory and cores", I1, v150.request(1, 16384, None, 50), env=NAMED),
    v150.asks(
        "two cards are whole",
        v150.limits(2),
        v150.request(2, 0, 100, 200),
        env=NAMED,
        added={V150.resources.cores: "200"},
    ),
    v150.asks("one card without more", v150.limits(1), v150.request(1, 0, 100, 0), env=NAMED),
    v100.asks(
        "memory in units of 256 MiB",
        v100.limits(1, 1000, 100),
        v100.request(1, 256000, None, 100),
        env=NAMED,
    ),
    v150.asks(
        "memory is that of one card",
        v150.limits(2, 64, 50),
        v150.request(2, 16384, None, 200),
        env=NAMED,
        added={V150.resources.cores: "200"},
    ),
    v150.asks(
        "requests stay equal to limits",
        v150.limits(2, None, 50),
        v150.request(2, 0, 100, 200),
        requests=v150.limits(2, None, 50),
        env=NAMED,
        added={V150.resources.cores: "200"},
        requested={V150.resources.cores: "200"},
    ),
]

DENIED = [
    v150.denied(
        "too much memory",
        v150.limits(1, 8388608),
        f"invalid {V150.resources.memory} value 8388608 in container c: must be an "
        "integer between 0 and 8388607, in units of 256 MiB, without a unit",
    ),
    v150.denied(
        "16Gi",
        v150.limits(1, "16Gi"),
        f"invalid {V150.resources.memory} value 16Gi in container c: must be an "
        "integer between 0 and 8388607, in units of 256 MiB, without a unit: 64",
    ),
]

X, Y = card(V150, "GPU-x"), card(V150, "GPU-y")
FITS = [
    v150.fits("memory and cores", [X], I1, "GPU-x,BI-V150,16384,50:;"),
    v150.fits(
        "two cards are whole",
        [X, Y],
        v150.limits(2),
        "GPU-y,BI-V150,32768,100:GPU-x,BI-V150,32768,100:;",
    ),
    v150.fits(
        "too little memory",
        [card(V150, "GPU-x", 1, 16384)],
        v150.limits(1),
        "1/1 CardInsufficientMemory",
    ),
    v100.fits(
        "mutex",
        [card(V100, "GPU-x", 1)],
        {},
        "1/1 ExclusiveDeviceAllocateConflict",
        request=v100.request(1, 64, None, 50),
        annotations=MUTEX,
    ),
    v150.fits(
        "uuid",
        [X, Y],
        I1,
        "GPU-x,BI-V150,16384,50:;",
        annotations={"hami.io/use-BI-V150-uuid": "GPU-x", "hami.io/use-MR-V100-uuid": "GPU-z"},
    ),
    v150.fits(
        "uuid not wanted",
        [X],
        I1,
        "1/1 CardUuidMismatch",
        annotations={"hami.io/no-use-BI-V150-uuid": "GPU-x"},
    ),
]
