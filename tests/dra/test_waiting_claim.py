"""The claim of a pod that waits for HAMi's scheduler: what an autoscaler reads."""

import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hami.codec.claim_spec import Inexpressible
from hami.codec.pods import convert_pod
from hami.dra.hami_claims import give_claim, waiting_claim
from hami.errors import MalformedInput
from testing.builders import ONLY_NVIDIA
from testing.cases import cases
from tests.dra.pods import (
    MIG,
    NODES,
    NOUSE_TYPE,
    NOUSE_UUID,
    OF,
    POLICY,
    SIZES,
    TYPE,
    UUID,
    annotated,
    asking,
    pod,
)
from tests.dra.test_hami_claims import NAME, SCHEDULER, admitted

TOLERATIONS = [{"key": "hami.io/managed", "operator": "Exists", "effect": "NoSchedule"}]


def devices(wire, sizes=SIZES):
    """What the claim of the pod asks for, apart from the taint that each request tolerates."""
    claimed = give_claim(admitted(wire), ONLY_NVIDIA, "spread", NAME, SCHEDULER)
    claim = waiting_claim(convert_pod(claimed), ONLY_NVIDIA, "spread", lambda: sizes)
    for request in claim["spec"]["devices"]["requests"]:
        for part in request.get("firstAvailable") or [request["exactly"]]:
            assert part.pop("tolerations") == TOLERATIONS
    return claim["spec"]["devices"]


def exactly(name="main", count=1, selectors=(), **capacity):
    return {
        "name": name,
        "exactly": {
            "deviceClassName": "gpu.hami.io",
            "count": count,
            **(
                {"selectors": [{"cel": {"expression": expression}} for expression in selectors]}
                if selectors
                else {}
            ),
            **({"capacity": {"requests": capacity}} if capacity else {}),
        },
    }


def instances(count=1, selectors=(), **capacity):
    return {
        "name": "main",
        "exactly": exactly("", count, selectors, **capacity)["exactly"]
        | {"deviceClassName": "mig.hami.io"},
    }


def of_size(size, memory, count=1, **capacity):
    found = exactly("", count, [f"{OF}.memoryMiB == {size}"], memory=memory, **capacity)["exactly"]
    return {"name": f"m{size}", **found}


def numa(*names):
    return [
        {"requests": [name], "matchAttribute": "resource.kubernetes.io/numaNode"} for name in names
    ]


GOLDEN = [  # the examples by which vendors are compared with HAMi: limits, annotations, requests, constraints
    (
        "N1 memory and cores",
        {"gpu": 1, "gpumem": 3000, "gpucores": 30},
        {},
        [exactly(memory="3000Mi", cores="30")],
        None,
    ),
    ("N2 a whole card", {"gpu": 1}, {}, [exactly(cores="100", share="100")], None),
    (
        "N3 halves of two cards",
        {"gpu": 2, "gpumem_percentage": 50, "gpucores": 30},
        {},
        [
            {
                "name": "main",
                "firstAvailable": [
                    of_size(81920, "40Gi", 2, cores="30"),
                    of_size(46068, "23034Mi", 2, cores="30"),
                ],
            }
        ],
        None,
    ),
    ("N4 memory alone", {"gpumem": 8000}, {}, [exactly(memory="8000Mi")], None),
    ("N5 zero percent is all memory", {"gpu": 1, "gpumem_percentage": 0}, {}, [exactly()], None),
    (
        "N9 one NUMA node",
        {"gpu": 2, "gpumem": 100, "gpucores": 10},
        {"nvidia.com/numa-bind": "true"},
        [exactly(count=2, memory="100Mi", cores="10")],
        numa("main"),
    ),
    ("N10 MIG", {"gpu": 2, "gpumem": 8000}, MIG, [instances(count=2, memory="8000Mi")], None),
    ("N11 a cordoned card has a taint", {"gpu": 1}, {}, [exactly(cores="100", share="100")], None),
]


@cases("amounts, annotations, requests, constraints", *GOLDEN)
def test_golden_examples(amounts, annotations, requests, constraints):
    assert devices(annotated(annotations, asking(**amounts))) == (
        {"requests": requests} | ({"constraints": constraints} if constraints else {})
    )


@cases(
    "amounts, annotations, selectors",
    ("the whole GPU", {"gpu": 1}, {}, [f"{OF}.memoryMiB * 2 > {OF}.parentMemoryMiB"]),
    (
        "the nominal size of a profile",
        {"gpumem": 5120},
        {},
        [f'{OF}.memoryMiB >= 5120 || {OF}.profile.contains(".5gb")'],
    ),
    (
        "percent, of GPUs of any size",
        {"gpumem_percentage": 50, "gpucores": 30},
        {},
        [f"{OF}.memoryMiB >= {OF}.parentMemoryMiB * 50 / 100"],
    ),
    (
        "selected GPUs",
        {"gpumem_percentage": 100},
        {UUID: "GPU-1", NOUSE_UUID: "GPU-2", TYPE: "A100"},
        [
            f"{OF}.memoryMiB * 2 > {OF}.parentMemoryMiB",
            f'{OF}.productName.lowerAscii().contains("a100")',
            f'{OF}.parentUUID in ["GPU-1"]',
            f'!({OF}.parentUUID in ["GPU-2"])',
        ],
    ),
)
def test_memory_of_mig_instances(amounts, annotations, selectors):
    for sizes in (SIZES, ()):  # they need not be known
        assert devices(annotated(MIG | annotations, asking(**amounts)), sizes=sizes)[
            "requests"
        ] == [instances(selectors=selectors)]


def test_a_pod_that_takes_either_mode_gets_a_share():
    assert devices(annotated({"nvidia.com/vgpu-mode": "mig,hami-core"}))["requests"] == [
        exactly(selectors=[f'"mig,hami-core".contains({OF}.mode)'], memory="1000Mi")
    ]


@cases(
    "annotations, expressions",
    (
        {TYPE: "A100, T4"},
        [
            f'{OF}.productName.lowerAscii().contains("a100") || '
            f'{OF}.productName.lowerAscii().contains("t4")'
        ],
    ),
    ({NOUSE_TYPE: "T4"}, [f'!({OF}.productName.lowerAscii().contains("t4"))']),
    ({UUID: "GPU-1"}, [f'{OF}.uuid in ["GPU-1"]']),
    ({NOUSE_UUID: "GPU-1,GPU-2"}, [f'!({OF}.uuid in ["GPU-1", "GPU-2"])']),
    ({"nvidia.com/vgpu-mode": "hami-core"}, [f'"hami-core".contains({OF}.mode)']),
    ({POLICY: "binpack"}, []),
    ({NODES: "kube"}, []),
    ({"hami.io/preemptible": "false"}, []),
)
def test_annotations_that_a_claim_says(annotations, expressions):
    assert devices(annotated(annotations))["requests"] == [
        exactly(selectors=expressions, memory="1000Mi")
    ]


MANY = ",".join(f"GPU-{number}" for number in range(65))


@cases(
    "wire, reason",
    (annotated({UUID: MANY}), "at most 64 types or UUIDs"),
    (annotated({TYPE: "x" * 65}), "64 characters"),
    (annotated({TYPE: ",".join("\N{GRINNING FACE}" * 60 for _ in range(64))}), "an expression of"),
)
def test_lists_that_no_claim_says(wire, reason):
    with pytest.raises(Inexpressible, match=reason):
        devices(wire)


def test_an_empty_list_of_a_pod_that_admission_has_not_seen():
    wire = annotated({UUID: ","})
    claimed = give_claim(wire, ONLY_NVIDIA, "spread", NAME, SCHEDULER)
    with pytest.raises(Inexpressible, match="empty list"):
        waiting_claim(convert_pod(claimed), ONLY_NVIDIA, "spread", lambda: SIZES)


LONG = {TYPE: ",".join(f"{number:02}{'x' * 60}" for number in range(64))}


def test_a_claim_that_etcd_does_not_take():
    wire = annotated(
        LONG | {NOUSE_UUID: LONG[TYPE]},
        *(asking(f"c{number}", gpu=1, gpumem_percentage=50) for number in range(32)),
    )
    with pytest.raises(
        Inexpressible, match="which each of 128 alternatives of requests repeats, make a claim of"
    ):
        devices(wire, range(1000, 5000, 1000))


@cases("sizes, reason", ((), "there is no GPU yet"), (range(1000, 1009), "there are 9"))
def test_percent_needs_to_know_a_few_sizes(sizes, reason):
    with pytest.raises(Inexpressible, match=reason):
        devices(pod(asking(gpumem_percentage=50)), sizes)
    assert devices(pod(asking(gpumem=50)), sizes)["requests"]


EXPRESSION = re.compile(  # what may stand outside of literals
    r'(device\.attributes\[""\]\.'
    r'(productName\.lowerAscii\(\)\.contains\(""\)|(uuid|parentUUID) in \[""(, "")*\]|memoryMiB == [0-9]+)'
    r'|device\.attributes\[""\]\.memoryMiB >= device\.attributes\[""\]\.parentMemoryMiB \* 50 / 100'
    r'|""\.contains\(device\.attributes\[""\]\.mode\)| \|\| |!\(|\))*'
)
LITERAL = re.compile(
    r'"((?:[^"\\\n\r]|\\[bfnrt"\\]|\\u00[01][0-9a-f])*)"'
)  # of CEL: a part of its grammar
TEXTS = st.text(
    st.one_of(st.sampled_from("\"\\\n\r`'|)]u"), st.characters(exclude_categories=["Cs"])),
    max_size=70,
)


@given(types=TEXTS, uuids=TEXTS, mode=TEXTS | TEXTS.map("mig{}".format), no=st.booleans())
def test_no_value_leaves_its_literal(types, uuids, mode, no):
    keys = (NOUSE_TYPE, NOUSE_UUID) if no else (TYPE, UUID)
    given_ = {keys[0]: types, keys[1]: uuids, "nvidia.com/vgpu-mode": mode}
    try:
        (request,) = devices(annotated(given_, asking(gpumem_percentage=50)))["requests"]
    except MalformedInput:
        assume(False)
    words = {item.strip() for text in (types, uuids) for item in text.split(",")}
    known = {mode, "gpu.hami.io"} | words | {word.lower() for word in words}
    for part in request.get("firstAvailable") or [request["exactly"]]:
        for selector in part.get("selectors", ()):
            expression = selector["cel"]["expression"]
            assert {json.loads(found[0]) for found in LITERAL.finditer(expression)} <= known
            assert EXPRESSION.fullmatch(LITERAL.sub('""', expression)), expression
