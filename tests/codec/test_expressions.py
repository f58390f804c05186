"""Selectors that are read: those that admission writes mean the same as the annotations; others are left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.claim_spec import render_claim_spec
from hami.codec.expressions import MAX_EXPRESSION, attribute_of, parse_condition
from hami.model import Selector
from hami.scheduling.fit import accepts_mode, accepts_model
from tests.builders import gpu, request

ATTRIBUTES = 'device.attributes["gpu.hami.io"]'
A100 = gpu("GPU-a", model="NVIDIA A100-SXM4-80GB", memory_mib=81920, index=3, numa=1)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("device.driver == 'gpu.hami.io' && device.attributes['gpu.hami.io'].type == 'gpu'", True),
        ("device.driver == 'gpu.nvidia.com'", False),
        (f'{ATTRIBUTES}.productName.lowerAscii().contains("a100")', True),
        (f'{ATTRIBUTES}.productName.contains("a100")', False),
        (
            f'{ATTRIBUTES}.productName.startsWith("NVIDIA") && {ATTRIBUTES}.productName.endsWith("80GB")',
            True,
        ),
        (f'!({ATTRIBUTES}.uuid in ["GPU-x", "GPU-a"])', False),
        (f"{ATTRIBUTES}.uuid in []", False),
        (f"{ATTRIBUTES}.memoryMiB >= 40000", True),
        (f"{ATTRIBUTES}.memoryMiB < 40000", False),
        (
            f"{ATTRIBUTES}.memoryMiB == 1 || ({ATTRIBUTES}.index == 3 && !!({ATTRIBUTES}.index != 4))",
            True,
        ),
        ('device.attributes["resource.kubernetes.io"].numaNode == 1', True),
        ('device.capacity["gpu.hami.io"].memory.compareTo(quantity("40Gi")) >= 0', True),
        ('device.capacity["gpu.hami.io"].memory.compareTo(quantity("100Gi")) >= 0', False),
        ('"hami-core,mig".contains(device.attributes["gpu.hami.io"].mode)', True),
        (f'{ATTRIBUTES}.uuid == "GPU\\u002da"', True),
    ],
)
def test_a_selector_that_is_read(text, expected):
    condition = parse_condition(text)
    assert condition is not None
    assert condition(A100) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "true",
        "device",
        f"{ATTRIBUTES}.unknown == 1",
        'device.attributes["gpu.nvidia.com"].type == "gpu"',
        f'{ATTRIBUTES}.productName.matches("A.*")',
        f'{ATTRIBUTES}.memoryMiB == "81920"',
        f"{ATTRIBUTES}.index in [3, 'x']",
        f"{ATTRIBUTES}.memoryMiB / 1024 > 40",
        f"has({ATTRIBUTES}.uuid)",
        f"{ATTRIBUTES}.index == 3 ? true : false",
        f"{ATTRIBUTES}.index.lowerAscii() == 3",
        f"({ATTRIBUTES}.index == 3",
        f"{ATTRIBUTES}.index == 3)",
        f"{ATTRIBUTES}.index == 3 {ATTRIBUTES}.index == 3",
        f"{'(' * 5000}{ATTRIBUTES}.index == 3{')' * 5000}",
        "!" * 9000,
        f"{ATTRIBUTES}.index == {'9' * 30}",
        f'{ATTRIBUTES}.uuid == "\\x"',
        "&&",
        "(",
        'device.capacity["gpu.hami.io"].memory == 5',
        'device.capacity["gpu.hami.io"].memory.compareTo(quantity("x")) >= 0',
        f'{ATTRIBUTES}.uuid == "{"x" * MAX_EXPRESSION}"',
        f'{ATTRIBUTES}.uuid == "\ud800',
    ],
)
def test_other_selectors_are_not_read(text):
    assert parse_condition(text) is None


@given(st.text(alphabet='device.attributes["gpu.hami.io"].index =!&|()<>123\'\\', max_size=60))
def test_any_text_is_read_or_not(text):
    if (condition := parse_condition(text)) is not None:
        assert condition(A100) in (True, False)


WORDS = st.lists(
    st.sampled_from(["A100", "t4", 'q"uote', "back\\slash", "Größe", "GPU-a", "GPU-B", "\u2028"]),
    min_size=1,
    max_size=4,
).map(tuple)
SELECTORS = st.builds(
    Selector,
    use_types=st.none() | WORDS,
    nouse_types=st.none() | WORDS,
    use_uuids=st.none() | WORDS,
    nouse_uuids=st.none() | WORDS,
    mode=st.sampled_from([None, "hami-core", "hami-core,mig"]),
)  # with mig alone, of MIG instances


@given(
    SELECTORS,
    st.sampled_from(["NVIDIA A100", 'a q"uote', "back\\slash T4", "NVIDIA T4"]),
    st.sampled_from(["GPU-a", "GPU-B", "GPU-c"]),
    st.integers(1, 100),
)
def test_what_admission_writes_means_what_the_annotations_mean(selector, model, uuid, percent):
    device = gpu(uuid, model=model, memory_mib=15360)
    spec = render_claim_spec({"main": request(memory_percent=percent)}, selector, [15360])
    (wire,) = spec["devices"]["requests"]
    part = wire.get("exactly") or wire["firstAvailable"][0]
    conditions = [
        parse_condition(entry["cel"]["expression"]) for entry in part.get("selectors", ())
    ]
    assert None not in conditions
    assert all(condition(device) for condition in conditions) is (
        accepts_model(selector, model)
        and accepts_mode(selector, device.mode)
        and (selector.use_uuids is None or uuid in selector.use_uuids)
        and uuid not in (selector.nouse_uuids or ())
    )


@pytest.mark.parametrize(
    "name, value",
    [
        ("gpu.hami.io/uuid", "GPU-a"),
        ("uuid", "GPU-a"),
        ("resource.kubernetes.io/numaNode", 1),
        ("numaNode", None),
        ("resource.kubernetes.io/pciBusID", None),
    ],
)
def test_attributes(name, value):
    assert attribute_of(A100, name) == value
