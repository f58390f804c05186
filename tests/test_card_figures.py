"""Figures of a GPU on the limiter's page are those of the files that the steps have written."""

import json
import re
import shutil

import pytest

from testing.cases import cases
from tools import card_figures
from tools.card_figures import ASSUMPTIONS, BLOCKS, FOLDER, PAGE, QUESTIONS, Results, render_page

pytestmark = pytest.mark.files

QUOTED = re.compile(r"<!-- begin: python -m tools\.card_figures \w+ -->\n.*?<!-- end -->\n", re.S)
OF_A_CARD = re.compile(r"H200|h200-|\((?:[abcd]\d(?:, )?)+\)")
ANSWERS = {row[0]: row[1] for row in (*ASSUMPTIONS, *QUESTIONS)}


def test_no_figure_of_a_card_is_written_by_hand():
    page = QUOTED.sub("", PAGE.read_text())
    assert [line for line in page.splitlines() if OF_A_CARD.search(line)] == []


@pytest.mark.parametrize("question", ANSWERS)
def test_each_answer_names_the_files_that_it_is_from(question):
    results = Results()
    ANSWERS[question](results)
    assert re.search(r"`h200-(\d\.json` [a-d]\d|driver\.txt`)", results.sources())
    assert results.sources() == ""


@cases(
    "file, step, value, block, expected",
    ("h200-1.json", "a2", {"functions": 7}, "assumptions", "for all 7 functions"),
    ("h200-4.json", "a8", {"counted": [0, 1 << 30]}, "questions", "0 to 1,024 MiB"),
    ("h200-3.json", "c6", {"seconds": 12}, "questions", "12 s; how long"),
    ("h200-3.json", "a8", {"counted": [0]}, "distorted", "counted as 0 MiB"),
)
def test_a_figure_follows_its_file(tmp_path, file, step, value, block, expected):
    folder = shutil.copytree(FOLDER, tmp_path / "gpu")
    steps = json.loads((folder / file).read_text())
    for row in steps:
        if row["step"] == step:
            row.update(value)
    (folder / file).write_text(json.dumps(steps))
    assert expected in BLOCKS[block](Results(folder))
    assert expected not in PAGE.read_text()


def test_results_of_an_older_library_say_so():
    results = Results()
    results.step("h200-2.json", "b4")
    assert results.sources() == "`h200-2.json` b4, older library"


def test_the_worst_program_is_told():
    assert "The worst of 10 programs is `cudaMallocAsync`: 550 of 712 MiB" in PAGE.read_text()


def test_the_results_of_a_stranger_are_a_row_of_the_table_of_cards(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "gpu")
    card = "Driver Version : 615.71\nCUDA Version : 13.4\n    Product Name : NVIDIA L4\n"
    (folder / "l4-e.json").write_text(json.dumps([{"step": "a1", "card": card}]))
    (folder / "l4-none.json").write_text("[]")
    assert "| NVIDIA L4 | 615.71 | 13.4 | `l4-e.json` |" in BLOCKS["cards"](Results(folder))


def test_a_page_without_a_mark_is_refused():
    with pytest.raises(
        ValueError, match="no part <!-- begin: python -m tools.card_figures cards -->"
    ):
        render_page("# The limiter\n", Results())


def test_the_command_prints_all_blocks(capsys):
    card_figures.main([], standalone_mode=False)
    printed = capsys.readouterr().out
    assert all(render(Results()) in printed for render in BLOCKS.values())
