"""Cambricon's rows of the table."""

from hami.model import QuotaLimits
from hami.scheduling.quota import remaining_budget
from testing.vendor_chart import CHART, card, on_node
from testing.vendor_rows import Rows

MLU = CHART["MLU"]
mlu = Rows("MLU", MLU)
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


C1 = mlu.limits(1, 20, 10)
ASKS = [
    mlu.asks("memory and cores", C1, mlu.request(1, 5120, None, 10)),
    mlu.asks("one card is whole", mlu.limits(1), mlu.request(1, 0, 100, 100)),
    mlu.asks("memory in units of 256 MiB", mlu.limits(1, 1000), mlu.request(1, 256000, None, 100)),
    mlu.asks("requests alone count", {}, mlu.request(1, 5120, None, 10), requests=C1),
]

DENIED = [
    mlu.denied(
        "4Gi",
        mlu.limits(1, "4Gi"),
        f"invalid {MLU.resources.memory} value 4Gi in container c: must be an integer "
        "between 0 and 8388607, in units of 256 MiB, without a unit: 16",
    )
]

FITS = [
    mlu.fits("memory and cores", FOUR, C1, "n1-cambricon-mlu-3,MLU,5120,10:;", written("3_10_20")),
    mlu.fits(
        "one card is whole",
        FOUR,
        mlu.limits(1),
        "n1-cambricon-mlu-3,MLU,25600,100:;",
        written("3_100_100"),
    ),
    mlu.fits(
        "a quota that the memory exceeds",
        [card(MLU, "MLU-0", memory_mib=40960)],
        {},
        "1/1 ResourceQuotaNotFit",
        request=mlu.request(1, 0, 100, 10),
        budgets={"MLU": remaining_budget(MLU, [QUOTA], {})},
    ),
    mlu.fits(
        "second of two containers",
        [card(MLU, "device-0", memory_mib=256000)],
        [{"cpu": "1"}, mlu.limits(1, 1000, 1)],
        ";device-0,MLU,256000,1:;",
        written("0_1_1000"),
    ),
    mlu.fits(
        "the profile is that of the first card",
        FOUR,
        mlu.limits(2, 20, 10),
        "n1-cambricon-mlu-3,MLU,5120,10:n1-cambricon-mlu-2,MLU,5120,10:;",
        written("3_10_20"),
    ),
    mlu.fits(
        "uuid",
        FOUR,
        C1,
        "n1-cambricon-mlu-0,MLU,5120,10:;",
        written("0_10_20"),
        annotations={
            "cambricon.com/use-gpuuuid": "n1-cambricon-mlu-0, n1-cambricon-mlu-1",
            "cambricon.com/nouse-gpuuuid": "n1-cambricon-mlu-1",
        },
    ),
    mlu.fits(
        "cores",
        on_node(MLU, "n1", memory=100, cores=100, taken={0: (1, 0, 95)}),
        C1,
        "1/1 CardInsufficientCore",
    ),
    *(
        mlu.fits(
            f"model {model!r} with {annotations}",
            labelled(model),
            C1,
            "n1-cambricon-mlu-0,MLU,5120,10:;" if is_placed else "1/1 CardTypeMismatch",
            written("0_10_20") if is_placed else None,
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
