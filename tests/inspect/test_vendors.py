"""The catalog as a table."""

import json
import re
from pathlib import Path

from hami.cli.vendors import TABLE_FORMATS
from hami.codec.device_config import DeviceConfig, NvidiaConfig, chart_config
from hami.inspect.vendors import FORMATS, Entry, entries, render
from hami.vendors.spec import Annotations, CoreUnit, Decision, Resources, SelectorKeys, Vendor
from testing.cases import cases

PAGE = Path(__file__).parent.parent.parent / "docs" / "vendors.md"


def vendor(key="Acme", annotations=Annotations(), **resources):
    """A vendor without devices."""
    return Vendor(
        key=key,
        resources=Resources(**{"count": f"{key.lower()}.com/card"} | resources),
        annotations=annotations,
        decision=Decision(inventory=lambda vendor, node: None),
    )


def chip(word, **resources):
    """One of several vendors that differ in their name."""
    annotations = Annotations(allocated=f"hami.io/{word}-devices-allocated")
    return vendor(word, annotations, count=f"acme.com/{word}", **resources)


@cases(
    "made, memory_unit, cores_unit, default",
    (vendor(), "", "", "whole devices"),
    (vendor(memory="a/m"), "MiB", "", "all memory"),
    (vendor(memory="a/m", memory_factor=256), "256 MiB", "", "all memory"),
    (
        vendor(memory="a/m", memory_factor=1024, memory_units=True),
        "1024 MiB, or as written (512Mi)",
        "",
        "all memory",
    ),
    (vendor(memory="a/m", memory_description="MiB, or half"), "MiB, or half", "", "all memory"),
    (vendor(memory_description="MiB, or half", cores_description="Cubes"), "", "", "whole devices"),
    (
        vendor(cores="a/c", core_unit=CoreUnit.COMPUTE_UNITS),
        "",
        "% of a device, as compute units",
        "whole devices",
    ),
    (vendor(memory="a/m", default_memory=5000), "MiB", "", "5000 MiB"),
    (vendor(memory_percent="a/p"), "", "", "all memory"),
    (vendor(cores="a/c"), "", "% of a device", "whole devices"),
    (
        vendor(memory="a/m", cores="a/c", default_cores=100),
        "MiB",
        "% of a device",
        "all memory, 100 cores",
    ),
    (
        vendor(memory="a/m", cores="a/c", defaults_to_all_cores=True),
        "MiB",
        "% of a device",
        "all memory, all cores if no memory is requested",
    ),
    (vendor(memory="a/m", defaults_to_all_cores=True), "MiB", "", "all memory"),
    (vendor(cores="a/c", core_unit=CoreUnit.MASK), "", "cores", "whole devices"),
    (
        vendor(cores="a/c", core_unit=CoreUnit.MASK, cores_description="Cubes"),
        "",
        "Cubes",
        "whole devices",
    ),
    (
        vendor(memory="a/m", cores="a/c", default_description="no minimum"),
        "MiB",
        "% of a device",
        "no minimum",
    ),
    (
        vendor(memory="a/m", memory_factor=512, cores="a/c", core_unit=CoreUnit.SIXTEENTHS),
        "512 MiB",
        "1/16 of a device",
        "all memory",
    ),
)
def test_units_and_defaults(made, memory_unit, cores_unit, default):
    entry = Entry(made)
    assert (entry.memory_unit, entry.cores_unit, entry.default) == (
        memory_unit,
        cores_unit,
        default,
    )


def test_names_are_those_of_the_record():
    entry = Entry(
        vendor(
            memory="a/m",
            memory_percent="a/p",
            cores="a/c",
            priority="a/y",
            annotations=Annotations(
                register="r",
                handshake="h",
                to_allocate="t",
                allocated="d",
                lock="l",
                node_keys=("n",),
                pod_keys=("p",),
                selectors=SelectorKeys(use_types="u", use_uuids=("v", "w")),
            ),
        ),
        "--enable-x",
        is_on=False,
    )
    (shown,) = json.loads(render([entry], "json"))
    keys = [word["key"] for word in shown.pop("words")]
    assert [key for key in keys if not key.startswith(("hami.io/", "nvidia.com/"))] == [
        "limits.acme.com/card",
        "limits.a/m",
        "limits.a/c",
        "u",
        "v",
        "w",
    ]
    assert [shown] == [
        {
            "backend": "Acme",
            "resources": {
                "count": "acme.com/card",
                "memory": "a/m",
                "memoryPercent": "a/p",
                "cores": "a/c",
                "priority": "a/y",
            },
            "units": {"memory": "MiB", "cores": "% of a device"},
            "default": "all memory",
            "annotations": {
                "register": "r",
                "handshake": "h",
                "toAllocate": "t",
                "allocated": "d",
                "lock": "l",
                "selectors": ["u", "v", "w"],
                "node": ["n"],
                "pod": ["p"],
            },
            "switch": "--enable-x",
            "on": False,
        }
    ]


def test_a_table_in_text_has_aligned_columns():
    table = render([Entry(vendor(memory="a/m")), Entry(vendor("B"), "--enable-b", is_on=False)])
    assert table.splitlines()[:5] == [
        "Resources",
        "",
        "backend  devices        memory  in   cores  in  default        switch",
        "Acme     acme.com/card  a/m     MiB  –      –   all memory     –",
        "B        b.com/card     –       –    –      –   whole devices  --enable-b (off)",
    ]
    assert table.splitlines()[6] == "Annotations"


def test_a_switch_that_is_on_is_shown_without_a_mark():
    assert "--enable-b\n" in render([Entry(vendor("B"), "--enable-b")])


def test_in_markdown_backends_that_differ_in_name_alone_share_a_row():
    table = render(
        [Entry(chip("C1")), Entry(chip("C2")), Entry(chip("C3", memory="acme.com/C3-memory"))],
        "markdown",
    )
    assert table.splitlines() == [
        "| backend | devices | memory | in | cores | in | default | switch |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| C1, C2 | `acme.com/‹chip›` |  |  |  |  | whole devices |  |",
        "| C3 | `acme.com/C3` | `acme.com/C3-memory` | MiB |  |  | all memory |  |",
        "",
        "| backend | node: devices | node: handshake | node: lock | pod: to allocate | pod: allocated "
        "| pod: selectors | node: also read | pod: also read |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| C1, C2, C3 |  |  | `hami.io/mutex.lock` |  | `hami.io/‹chip›-devices-allocated` |  |  |  |",
    ]


def test_markdown_shows_names_and_flags_as_code_and_units_as_words():
    entry = Entry(
        chip("C", cores="a.b/c", core_unit=CoreUnit.SIXTEENTHS), "--enable-c", is_on=False
    )
    assert "| `a.b/c` | 1/16 of a device | whole devices | `--enable-c` (off) |" in render(
        [entry], "markdown"
    )


def test_words_are_those_of_the_vocabulary():
    text = render([Entry(vendor(annotations=Annotations(selectors=SelectorKeys(use_types="u"))))])
    words = text.partition("Words")[2]
    assert "binpack, spread, least-waste or kube" in words
    assert re.search(r"^u +annotation of a pod +Acme", words, re.MULTILINE)


def test_json_has_every_field():
    made = vendor(
        memory="a/m", annotations=Annotations(register="r", selectors=SelectorKeys(use_types="u"))
    )
    entry = Entry(made, "--enable-a", is_on=False)
    (shown,) = json.loads(render([entry], "json"))
    keys = [word["key"] for word in shown.pop("words")]
    assert [key for key in keys if not key.startswith(("hami.io/", "nvidia.com/"))] == [
        "limits.acme.com/card",
        "limits.a/m",
        "u",
    ]
    assert [shown] == [
        {
            "backend": "Acme",
            "resources": {
                "count": "acme.com/card",
                "memory": "a/m",
                "memoryPercent": "",
                "cores": "",
                "priority": "",
            },
            "units": {"memory": "MiB", "cores": ""},
            "default": "all memory",
            "annotations": {
                "register": "r",
                "handshake": "",
                "toAllocate": "",
                "allocated": "",
                "lock": "hami.io/mutex.lock",
                "selectors": ["u"],
                "node": [],
                "pod": [],
            },
            "switch": "--enable-a",
            "on": False,
        }
    ]


def test_the_entries_are_those_of_the_device_configuration():
    (nvidia,) = entries(DeviceConfig(nvidia=NvidiaConfig(memory_factor=1024)))
    assert (nvidia.vendor.key, nvidia.vendor.resources.count) == ("NVIDIA", "nvidia.com/gpu")
    assert nvidia.memory_unit == "1024 MiB"
    assert (nvidia.switch, nvidia.is_on) == ("", True)


ASCENDS = {
    "Ascend910A",
    "Ascend910B2",
    "Ascend910B3",
    "Ascend910B4",
    "Ascend910B4-1",
    "Ascend910C",
    "Ascend310P",
}
ILUVATARS = {"MR-V100", "MR-V50", "BI-V150", "BI-V100"}


@cases(
    "given, off",
    ("neither", {}, ASCENDS | ILUVATARS),
    ("ascend", {"ascend": True}, ILUVATARS),
    ("iluvatar", {"iluvatar": True}, ASCENDS),
    ("both", {"ascend": True, "iluvatar": True}, set()),
)
def test_what_is_switched_off_is_shown_and_marked(given, off):
    shown = entries(chart_config(), **given)
    assert {entry.vendor.key for entry in shown if not entry.is_on} == off
    assert {entry.vendor.key for entry in shown if entry.switch == "--enable-ascend"} == ASCENDS
    assert {entry.vendor.key for entry in shown if entry.switch == "--enable-iluvatar"} == ILUVATARS


def test_the_page_of_devices_shows_the_catalog():
    _, begin, rest = PAGE.read_text().partition("<!-- begin: hami vendors --output=markdown -->\n")
    table, end, _ = rest.partition("<!-- end -->\n")
    assert begin
    assert end
    assert table == render(entries(chart_config()), "markdown") + "\n", (
        "run python -m tools.generate"
    )


def test_the_command_line_knows_the_forms():
    assert TABLE_FORMATS == tuple(FORMATS)
