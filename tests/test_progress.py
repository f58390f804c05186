"""What a demonstration shows of its steps, on a terminal and elsewhere."""

import io
import re

import pytest
from rich.console import Console

from testing import progress
from testing.eventually import eventually
from testing.progress import shown


@pytest.fixture
def log():
    """What was printed, to something that is no terminal."""
    return io.StringIO()


def lines(log):
    """The steps, without the seconds."""
    return [re.fullmatch(r" *\d+ s  (.*)", line)[1] for line in log.getvalue().splitlines()]


def test_each_step_is_a_line_as_it_begins_where_there_is_no_terminal(log):
    with shown(Console(file=log, width=40), "control plane") as steps:
        assert lines(log) == ["control plane"]
        steps.say("building [x] into /a/path/that/is/longer/than/the/console/is/wide")
        assert lines(log)[1:] == [
            "building [x] into /a/path/that/is/longer/than/the/console/is/wide"
        ]


def test_a_step_that_takes_long_is_named_again(log, monkeypatch):
    monkeypatch.setattr(progress, "QUIET_S", 0.01)
    with shown(Console(file=log), "control plane") as steps:
        eventually(lambda: lines(log).count("still: control plane") > 2, log.getvalue)
        steps.say("pods")
        eventually(lambda: "still: pods" in lines(log), log.getvalue)
        steps.stop()
        ended = log.getvalue()
    assert log.getvalue() == ended


def test_a_terminal_has_one_line_that_moves(log):
    with shown(Console(file=log, force_terminal=True, width=80), "control plane") as steps:
        steps.say("pods")
    assert "pods" in log.getvalue()
    assert "\x1b[" in log.getvalue()


def test_steps_end_with_an_error(log):
    with pytest.raises(OSError), shown(Console(file=log), "control plane"):
        raise OSError
    assert lines(log) == ["control plane"]
