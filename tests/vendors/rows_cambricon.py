"""Cambricon's rows of the table."""

from hami.model import QuotaLimits
from hami.scheduling.quota import remaining_budget
from testing.vendor_chart import CHART, asked, card, denied, fits, given, on_node, parses

MLU = CHART["MLU"]
FOUR = on_node(MLU, "n1", memory=400, cores=400)
QUOTA = QuotaLimits(
    namespace="default", name="quota", uid="uid-quota", limits={MLU.resources.memory: 50}
)


def labelled(model):
    """The device of a node whose label has this model."""
    return on_node(MLU, "n1", memory=100, cores=100, labels={"Model": model})


USE, NOUSE = "cambricon.com/use-mlutype", "cambricon.com/nouse-mlutype"


def written(profile):
    return {"CAMBRICON_DSMLU_ASSIGNED": "false", "CAMBRICON_DSMLU_PROFILE": profile}


C1 = given(MLU, 1, 20, 10)
ASKS = [
    parses(MLU, C1, asked(MLU, 1, 5120, None, 10), id="MLU memory and cores"),
    parses(MLU, given(MLU, 1), asked(MLU, 1, 0, 100, 100), id="MLU one card is whole"),
    parses(
        MLU,
        given(MLU, 1, 1000),
        asked(MLU, 1, 256000, None, 100),
        id="MLU memory in units of 256 MiB",
    ),
    parses(MLU, {}, asked(MLU, 1, 5120, None, 10), id="MLU requests alone count", requests=C1),
]

DENIED = [
    denied(
        MLU,
        given(MLU, 1, "4Gi"),
        f"invalid {MLU.resources.memory} value 4Gi in container c: must be an integer "
        "between 0 and 8388607, in units of 256 MiB, without a unit: 16",
        id="MLU 4Gi",
    ),
]

FITS = [
    fits(
        MLU,
        FOUR,
        C1,
        "n1-cambricon-mlu-3,MLU,5120,10:;",
        id="MLU memory and cores",
        written=written("3_10_20"),
    ),
    fits(
        MLU,
        FOUR,
        given(MLU, 1),
        "n1-cambricon-mlu-3,MLU,25600,100:;",
        id="MLU one card is whole",
        written=written("3_100_100"),
    ),
    fits(
        MLU,
        [card(MLU, "MLU-0", memory_mib=40960)],
        {},
        "1/1 ResourceQuotaNotFit",
        id="MLU a quota that the memory exceeds",
        request=asked(MLU, 1, 0, 100, 10),
        budgets={"MLU": remaining_budget(MLU, [QUOTA], {})},
    ),
    fits(
        MLU,
        [card(MLU, "device-0", memory_mib=256000)],
        [{"cpu": "1"}, given(MLU, 1, 1000, 1)],
        ";device-0,MLU,256000,1:;",
        id="MLU second of two containers",
        written=written("0_1_1000"),
    ),
    fits(
        MLU,
        FOUR,
        given(MLU, 2, 20, 10),
        "n1-cambricon-mlu-3,MLU,5120,10:n1-cambricon-mlu-2,MLU,5120,10:;",
        id="MLU the profile is that of the first card",
        written=written("3_10_20"),
    ),
    fits(
        MLU,
        FOUR,
        C1,
        "n1-cambricon-mlu-0,MLU,5120,10:;",
        id="MLU uuid",
        written=written("0_10_20"),
        annotations={
            "cambricon.com/use-gpuuuid": "n1-cambricon-mlu-0, n1-cambricon-mlu-1",
            "cambricon.com/nouse-gpuuuid": "n1-cambricon-mlu-1",
        },
    ),
    fits(
        MLU,
        on_node(MLU, "n1", memory=100, cores=100, taken={0: (1, 0, 95)}),
        C1,
        "1/1 CardInsufficientCore",
        id="MLU cores",
    ),
    *(
        fits(
            MLU,
            labelled(model),
            C1,
            "n1-cambricon-mlu-0,MLU,5120,10:;" if is_placed else "1/1 CardTypeMismatch",
            id=f"MLU model {model!r} with {annotations}",
            written=written("0_10_20") if is_placed else None,
            annotations=annotations,
        )
        for model, annotations, is_placed in [
            ("MLU370-X8", {USE: "mlu370"}, True),
            ("MLU370-X8", {USE: "MLU590, MLU370"}, True),
            ("MLU370-X8", {USE: "MLU590"}, False),
            ("MLU370-X8", {NOUSE: "MLU370"}, False),
            ("MLU370-X8", {NOUSE: "MLU590"}, True),
            ("MLU370-X8", {USE: "MLU", NOUSE: "X8"}, False),
            ("MLU370-X8", {USE: " ", NOUSE: ""}, True),
            (" mlu370-x8 ", {USE: "MLU370-X8"}, True),
            ("PowerEdge", {USE: "PowerEdge"}, False),
            ("PowerEdge", {USE: "MLU"}, True),
            ("", {USE: "MLU370"}, False),
            ("", {NOUSE: "MLU370"}, True),
        ]
    ),
]
