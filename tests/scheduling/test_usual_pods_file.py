"""The usual pods that an operator lists."""

import pytest
import yaml
from pytest import param

from hami.codec.device_config import chart_config
from hami.errors import MalformedInput
from hami.scheduling.node_resources import NodeResources
from hami.scheduling.usual_pods import UsualPod, usual_pod
from hami.scheduling.usual_pods_file import MAX_KINDS, parse_usual_pods
from hami.vendors.catalog import vendors
from testing.builders import gpus, pod_request

VENDORS = vendors(chart_config())


def parsed(text):
    return parse_usual_pods(text, "pods.yaml", VENDORS)


@pytest.mark.parametrize(
    ("fields", "limits", "annotations"),
    [
        param("count: 1, memoryMiB: 8000, cores: 30", gpus(1, 8000, 30), {}, id="a part"),
        param("count: 2", gpus(2), {}, id="all memory unless it is given"),
        param("count: 1, memoryPercent: 25", gpus(1, percent=25), {}, id="percent"),
        param("count: 8, cores: 100", gpus(8, cores=100), {}, id="whole devices"),
        param(
            "count: 1, useTypes: [A100, H100], nouseTypes: [A100-PCIE]",
            gpus(1),
            {"nvidia.com/use-gputype": "A100,H100", "nvidia.com/nouse-gputype": "A100-PCIE"},
            id="models",
        ),
        param(
            "count: 1, alone: true",
            gpus(1),
            {"hami.io/gpu-scheduler-policy": "mutex"},
            id="alone",
        ),
    ],
)
def test_an_entry_is_the_kind_of_the_pods_that_request_the_same(fields, limits, annotations):
    request = pod_request(limits, annotations=annotations)
    kind = usual_pod(request, NodeResources(milli_cpu=500))
    entry = "{pods: 3, vendor: NVIDIA, milliCPU: 500, " + fields + "}"
    assert parsed(f"- {entry}") == {kind: 3.0}


def test_entries_of_one_kind_are_added():
    text = """
    - {pods: 3, vendor: NVIDIA, count: 1}
    - {pods: 7, vendor: NVIDIA, count: 2, byClaims: true}
    - {pods: 4, vendor: NVIDIA, count: 1, memoryPercent: 100}
    """
    assert parsed(text) == {
        UsualPod("NVIDIA", 1, memory_percent=100): 7.0,
        UsualPod("NVIDIA", 2, memory_percent=100, by_claims=True): 7.0,
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        param("", "pods.yaml: expected a list: 'None'", id="empty"),
        param("a: 1", "pods.yaml: expected a list: ", id="a mapping"),
        param("[]", "pods.yaml: expected 1 to 64 kinds of pods: '0'", id="none"),
        param("[1]", r"pods.yaml: \[0\]: expected a mapping: '1'", id="no mapping"),
        param("- {pods: ", "not YAML in line 1", id="no YAML"),
        param("- {pods: 1, pods: 2}", "duplicate key 'pods'", id="a key twice"),
    ],
)
def test_what_is_no_list_of_kinds_is_named(text, problem):
    with pytest.raises(MalformedInput, match=problem):
        parsed(text)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("pods", "0", "expected a whole number from 1 to "),
        ("pods", "2147483648", "expected a whole number from 1 to 2147483647"),
        ("pods", ".nan", "expected a whole number from 1 to "),
        ("vendor", "nvidia", "expected one of AMD, "),
        ("vendor", "kunlun", "expected one of "),
        ("vendor", "1", "expected a text"),
        ("count", "0", "expected a whole number from 1 to "),
        ("count", "1.5", "expected a whole number from 1 to "),
        ("count", "'1'", "expected a whole number from 1 to "),
        ("cores", "101", "expected a whole number from 0 to 100"),
        ("memoryMiB", "-1", "expected a whole number from 0 to "),
        ("memoryMiB", "8Gi", "expected a whole number from 0 to "),
        ("memoryPercent", "101", "expected a whole number from 0 to 100"),
        ("milliCPU", "500m", "expected a whole number from 0 to "),
        ("alone", "1", "expected true or false"),
        ("byClaims", "maybe", "expected true or false"),
        ("useTypes", "A100", "expected a list of 1 to 64 parts of models' names"),
        ("useTypes", "[]", "expected a list of 1 to 64 parts of models' names"),
        ("nouseTypes", "['']", "expected a list of 1 to 64 parts of models' names"),
        ("nouseTypes", str(["a"] * 65), "expected a list of 1 to 64 parts of models' names"),
        ("useTypes", f"[{'a' * 257}]", "expected a list of 1 to 64 parts of models' names"),
        ("memory", "8000", "expected one of alone, byClaims, "),
    ],
)
def test_a_bad_value_is_named_with_its_entry_and_field(field, value, expected):
    given = {"pods": 1, "vendor": "NVIDIA", "count": 1} | {field: value}
    entry = ", ".join(f"{name}: {text}" for name, text in given.items())
    with pytest.raises(MalformedInput) as error:
        parsed("- {pods: 1, vendor: NVIDIA, count: 1}\n- {" + entry + "}")
    assert error.value.field == f"pods.yaml: [1].{field}"
    assert error.value.problem.startswith(expected)
    assert error.value.text == MalformedInput("", yaml.safe_load(value), "").text


@pytest.mark.parametrize("field", ["pods", "vendor", "count"])
def test_a_field_that_is_missing_is_named(field):
    given = {"pods": 1, "vendor": "NVIDIA", "count": 1}
    del given[field]
    with pytest.raises(MalformedInput, match=rf"pods.yaml: \[0\].{field}: missing, expected a "):
        parsed(str([given]))


def test_memory_is_given_once():
    with pytest.raises(
        MalformedInput,
        match=r"pods.yaml: \[0\].memoryPercent: expected none beside memoryMiB: '50'",
    ):
        parsed("- {pods: 1, vendor: NVIDIA, count: 1, memoryMiB: 8000, memoryPercent: 50}")


@pytest.mark.parametrize(("kinds", "is_accepted"), [(MAX_KINDS, True), (MAX_KINDS + 1, False)])
def test_kinds_are_bounded(kinds, is_accepted):
    text = "".join(
        f"- {{pods: 1, vendor: NVIDIA, count: {number}}}\n" for number in range(1, kinds + 1)
    )
    if is_accepted:
        assert len(parsed(text)) == kinds
        return
    with pytest.raises(MalformedInput, match="pods.yaml: expected 1 to 64 kinds of pods: '65'"):
        parsed(text)
