"""Records of the hook: what is read of them, and what is refused."""

import time

import pytest

from hami.errors import MalformedInput
from hami.node.host import MIN_AGE_S
from hami.node.wall_records import MOST_LIMITS, WallRecord, WallRecords, parse_record
from testing.cases import cases

GIB = 1 << 30


@cases(
    "text, record",
    ("", WallRecord("", {})),
    ("group /kubepods/pod1/c\nlimit GPU-1=5\n", WallRecord("/kubepods/pod1/c", {"GPU-1": 5})),
    ("group \nproblem it is old: x\n", WallRecord("", {}, "it is old: x")),
    ("later 7\n", WallRecord("", {})),
    ("problem " + "x" * 999, WallRecord("", {}, "x" * 256)),
)
def test_a_record_is_read(text, record):
    assert parse_record(text) == record


@pytest.mark.parametrize(
    "text",
    [
        "group kubepods",
        "group /a/../b",
        "group /..",
        "group //a",
        "group /a\x00b",
        "group /" + "a" * 300,
        "limit GPU-1",
        "limit GPU-1=0",
        "limit GPU-1=-1",
        "limit GPU-1=" + "9" * 20,
        "limit GPU/1=1",
        "\n".join(f"limit GPU-{number}=1" for number in range(MOST_LIMITS + 1)),
    ],
)
def test_what_cannot_be_one_is_refused(text):
    with pytest.raises(MalformedInput):
        parse_record(text)


def test_records_are_files_with_ids_as_names(tmp_path):
    records = WallRecords(str(tmp_path))
    assert records.ids() == []
    records.prepare()
    assert records.folder.stat().st_mode & 0o777 == 0o700
    (records.folder / "ab").write_text(f"group /a\nlimit GPU-1={GIB}\n")
    (records.folder / ".ab.12").write_text("half")
    (records.folder / "AB").write_text("")
    assert records.ids() == ["ab"]
    assert records.read("ab") == WallRecord("/a", {"GPU-1": GIB})
    assert records.read("cd") is None
    records.remove("ab")
    records.remove("ab")
    assert records.ids() == []


def test_records_of_containers_that_are_gone_are_removed_after_a_while(tmp_path):
    """A failed hook knows no control group, and one that was killed leaves a part of a file."""
    clock = [time.time()]
    records = WallRecords(str(tmp_path), now=lambda: clock[0])
    records.sweep({})
    records.prepare()
    for name in ("ab", "cd", ".ab.12"):
        (records.folder / name).write_text("group \n")
    records.sweep({"ab": None})
    assert records.ids() == ["ab", "cd"]
    clock[0] += 2 * MIN_AGE_S
    records.sweep({"ab": None})
    assert [path.name for path in records.folder.iterdir()] == ["ab"]
