"""Parts of the wiring of the scheduler."""

import pytest

from hami.scheduler.program import selection


@pytest.mark.parametrize(("selector", "labels", "is_selected"), [
    ("", {}, True), ("gpu=on", {"gpu": "on"}, True), ("gpu=on", {}, False), ("generation>3", {}, True),
], ids=["none", "selected", "excluded", "an operator that is left to the API server"])
def test_the_nodes_of_a_simulation_are_selected_as_those_of_the_watch(selector, labels, is_selected):
    assert selection(selector)(labels) is is_selected
