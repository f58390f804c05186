"""Long files of end-to-end tests begin first."""

from pathlib import Path
from types import SimpleNamespace

from testing.order import LONGEST, longest_first

FOLDER = Path(__file__).parent.parent / "e2e"


def item(name, file):
    return SimpleNamespace(name=name, path=FOLDER / file)


def test_the_longest_files_exist():
    assert [name for name in LONGEST if not (FOLDER / name).exists()] == []


def test_long_files_begin_first_and_the_order_within_a_file_stays():
    items = [
        item("a", "test_admission.py"),
        item("b", LONGEST[1]),
        item("c", LONGEST[0]),
        item("d", LONGEST[1]),
        item("e", "test_vendors.py"),
    ]
    assert [one.name for one in longest_first(items)] == ["c", "b", "d", "a", "e"]
