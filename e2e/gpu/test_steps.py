"""The program that asks a GPU: its steps, and the texts of programs that only run on a card."""

import ast

import pytest

from e2e.gpu.__main__ import STEPS, chosen
from e2e.gpu.programs import LAZY, OTHERS, TORCH
from e2e.gpu.questions import PROGRAMS

TEXTS = {**PROGRAMS, "lazy": LAZY, **TORCH, **{name: text for name, (_, text) in OTHERS.items()}}
SLOT_S = 13 * 60


@pytest.mark.parametrize("name", TEXTS)
def test_each_program_is_valid_python(name):
    ast.parse(TEXTS[name])


def test_the_ten_questions_fit_into_one_slot():
    steps = chosen("e", "")
    assert [step.name for step in steps] == ["a1", *(f"e{number}" for number in range(1, 11))]
    assert sum(step.seconds for step in steps) <= SLOT_S


@pytest.mark.parametrize("slot", "abcde")
def test_each_slot_begins_with_what_its_figures_belong_to(slot):
    names = [step.name for step in chosen(slot, "")]
    assert names[0] == "a1"
    assert names.count("a1") == 1


def test_all_steps_are_run_without_a_slot():
    assert chosen("", "") == list(STEPS.values())


def test_each_step_says_what_it_finds_out():
    titles = [step.title for step in STEPS.values() if step.name.startswith("e")]
    assert len(set(titles)) == 10
    assert all(titles)
