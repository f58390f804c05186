"""The label with the devices of a node that has not registered them."""

import pytest

from hami.codec.node_template import parse_node_template, render_node_template
from hami.errors import MalformedInput
from testing.builders import gpu
from testing.cases import cases


@pytest.mark.parametrize(
    "model", ["NVIDIA A100-SXM4-80GB", "NVIDIA-T4", "NVIDIA RTX 6000 Ada Generation"]
)
def test_a_label_tells_equal_devices(model):
    device = gpu("GPU-template-0", model=model, slots=4, memory_mib=65535, cores=150)
    text = render_node_template(device, 3)
    assert [(made.uuid, made.index) for made in parse_node_template(text)] == [
        (f"GPU-template-{index}", index) for index in range(3)
    ]
    assert parse_node_template(text)[0] == device


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8",
        "8x80",
        "8x80.10.100",
        "8x80.10.100.",
        "x80.10.100.T4",
        "-1x80.10.100.T4",
        "1x99999999999.10.100.T4",
        "257x80.10.100.T4",
        "1" * 5000 + "x80.10.100.T4",
        "1x80.10.100." + "\n",
    ],
)
def test_other_labels_are_refused(text):
    with pytest.raises(MalformedInput, match="hami.io/node-template"):
        parse_node_template(text)


@cases("model", ("a character", "A/100"), ("too long", "A" * 60), ("the end", "T4 "), ("empty", ""))
def test_a_model_must_fit_into_a_label(model):
    with pytest.raises(MalformedInput, match="at most 63"):
        render_node_template(gpu(model=model), 1)
