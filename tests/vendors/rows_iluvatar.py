"""Iluvatar's rows of the table; all chips are alike."""

from testing.vendor_chart import CHART, MUTEX, asked, card, denied, fits, given, parses

V150, V100 = CHART["BI-V150"], CHART["MR-V100"]
NAMED = {"SOL_CONTINER_NAME": "c"}
I1 = given(V150, 1, 64, 50)

ASKS = [
    parses(V150, I1, asked(V150, 1, 16384, None, 50), id="Iluvatar memory and cores", env=NAMED),
    parses(
        V150,
        given(V150, 2),
        asked(V150, 2, 0, 100, 200),
        id="Iluvatar two cards are whole",
        env=NAMED,
        added={V150.resources.cores: "200"},
    ),
    parses(
        V150,
        given(V150, 1),
        asked(V150, 1, 0, 100, 0),
        id="Iluvatar one card without more",
        env=NAMED,
    ),
    parses(
        V100,
        given(V100, 1, 1000, 100),
        asked(V100, 1, 256000, None, 100),
        id="Iluvatar memory in units of 256 MiB",
        env=NAMED,
    ),
    parses(
        V150,
        given(V150, 2, 64, 50),
        asked(V150, 2, 16384, None, 200),
        id="Iluvatar memory is that of one card",
        env=NAMED,
        added={V150.resources.cores: "200"},
    ),
    parses(
        V150,
        given(V150, 2, None, 50),
        asked(V150, 2, 0, 100, 200),
        id="Iluvatar requests stay equal to limits",
        requests=given(V150, 2, None, 50),
        env=NAMED,
        added={V150.resources.cores: "200"},
        requested={V150.resources.cores: "200"},
    ),
]

DENIED = [
    denied(
        V150,
        given(V150, 1, 8388608),
        f"invalid {V150.resources.memory} value 8388608 in container c: must be an "
        "integer between 0 and 8388607, in units of 256 MiB, without a unit",
        id="Iluvatar too much memory",
    ),
    denied(
        V150,
        given(V150, 1, "16Gi"),
        f"invalid {V150.resources.memory} value 16Gi in container c: must be an "
        "integer between 0 and 8388607, in units of 256 MiB, without a unit: 64",
        id="Iluvatar 16Gi",
    ),
]

X, Y = card(V150, "GPU-x"), card(V150, "GPU-y")
FITS = [
    fits(V150, [X], I1, "GPU-x,BI-V150,16384,50:;", id="Iluvatar memory and cores"),
    fits(
        V150,
        [X, Y],
        given(V150, 2),
        "GPU-y,BI-V150,32768,100:GPU-x,BI-V150,32768,100:;",
        id="Iluvatar two cards are whole",
    ),
    fits(
        V150,
        [card(V150, "GPU-x", 1, 16384)],
        given(V150, 1),
        "1/1 CardInsufficientMemory",
        id="Iluvatar too little memory",
    ),
    fits(
        V100,
        [card(V100, "GPU-x", 1)],
        {},
        "1/1 ExclusiveDeviceAllocateConflict",
        id="Iluvatar mutex",
        request=asked(V100, 1, 64, None, 50),
        annotations=MUTEX,
    ),
    fits(
        V150,
        [X, Y],
        I1,
        "GPU-x,BI-V150,16384,50:;",
        id="Iluvatar uuid",
        annotations={"hami.io/use-BI-V150-uuid": "GPU-x", "hami.io/use-MR-V100-uuid": "GPU-z"},
    ),
    fits(
        V150,
        [X],
        I1,
        "1/1 CardUuidMismatch",
        id="Iluvatar uuid not wanted",
        annotations={"hami.io/no-use-BI-V150-uuid": "GPU-x"},
    ),
]
