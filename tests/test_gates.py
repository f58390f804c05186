"""The gates for the shape of the code: what they count, and that their lists only shrink."""

from testing.cases import cases
from tools.gates import Shape, complaints, measure_file, shrunk

PACKED = """
def place(node, devices):
    return [d for n in node for d in devices if d.node == n and d.free or d.shared]
"""
UNPACKED = """
def place(node, devices):
    for device in devices:
        if device.node != node:
            continue
        if device.free:
            return device
        if device.shared:
            return device
        if device.cordoned:
            raise ValueError
    while True:
        if node.full:
            for device in node:
                print(device)
"""
WIDE = "class Wide:\n" + "".join(f"    def m{number}(self): pass\n" for number in range(16))
TANGLED = "def f(x):\n" + "".join(f"    if x == {number}: x += 1\n" for number in range(11))
NONE = {"complexity": {}, "expressions": {}, "comprehensions": {}, "methods": {}}


def values(source):
    shape = Shape({name: {} for name in NONE})
    measure_file(source, "m.py", shape)
    return shape.values


@cases(
    "source, gate, name, value",
    (PACKED, "comprehensions", "m.py", 1),
    (PACKED * 2, "expressions", "m.py", 100),
    (UNPACKED, "expressions", "m.py", 0),
    (WIDE, "methods", "m.py::Wide", 16),
    (TANGLED, "complexity", "m.py::f", 12),
)
def test_what_is_counted(source, gate, name, value):
    assert values(source)[gate][name] == value


def test_a_file_with_few_branches_has_no_share():
    assert values(PACKED)["expressions"] == {}


@cases(
    "source, listed, complaint",
    (UNPACKED, {}, ""),
    (TANGLED, {}, "m.py::f: 12 cyclomatic complexity of a function, 10 allowed"),
    (TANGLED, {"complexity": {"m.py::f": 12}}, ""),
    (TANGLED, {"complexity": {"m.py::f": 11}}, "m.py::f: 12 cyclomatic complexity"),
    (TANGLED, {"complexity": {"m.py::f": 14}}, "m.py::f: listed with 14, now 12: run --shrink"),
    (UNPACKED, {"methods": {"m.py::Gone": 20}}, "m.py::Gone: listed with 20, now 0"),
)
def test_what_exceeds_a_limit_is_in_the_list_with_its_value(source, listed, complaint):
    found = complaints(values(source), listed)
    assert "\n".join(found).startswith(complaint)
    assert bool(found) == bool(complaint)


def test_the_list_only_shrinks():
    listed = {"complexity": {"m.py::f": 14, "m.py::gone": 20}}
    found = values(TANGLED + WIDE)
    assert shrunk(found, listed) == NONE | {"complexity": {"m.py::f": 12}}
    assert shrunk(found, {}) == NONE
