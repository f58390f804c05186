"""The picture of what is allocated."""

import re
from xml.etree import ElementTree

from benchmarks.picture import LABEL, SHOWN, make_lines, picture

ROWS = [
    {"figures": {"seconds": 1.0}},
    {
        "figures": {
            "list": "default",
            "allocated": {"0": 0.0, "80": 80.0, "130": 95.1},
            "hami_allocated": {"0": 0.0, "80": 80.0, "130": 95.0},
        }
    },
]


def test_each_list_that_is_shown_has_a_line_for_each_policy():
    lines = make_lines(ROWS)
    assert [line.label for line in lines] == [row[2] for row in SHOWN if row[0] == "default"]
    assert [line.end for line in lines] == [95.1, 95.0]


def test_lines_end_with_their_labels_which_do_not_cover_each_other():
    root = ElementTree.fromstring(picture(make_lines(ROWS)))
    texts = [item for item in root if re.search(r": 95\.\d$", item.text or "")]
    assert [item.text for item in texts] == ["least-waste: 95.1", "binpack: 95.0"]
    first, second = (float(item.get("y")) for item in texts)
    assert second - first >= LABEL
    lines = [item.get("points").split() for item in root if item.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [2, 2]
    assert lines[0][0] == lines[1][0]
