"""A part of a page is replaced between its marks. A page without them is an error: the part is not added at its end."""

import pytest

from tools.marked import marked

PAGE = (
    "# Title\n<!-- begin: a -->\nold\n<!-- end -->\n<!-- begin: b -->\nkept\n<!-- end -->\nlast\n"
)


def test_the_part_of_a_command_is_replaced():
    assert marked(PAGE, "a", "new\n") == PAGE.replace("old", "new")
    assert marked(PAGE, "b", "") == PAGE.replace("kept\n", "")


@pytest.mark.parametrize("page", ["# Title\n", "<!-- begin: a -->\nno end\n"])
def test_a_page_without_the_marks_is_refused(page):
    with pytest.raises(ValueError, match="no part <!-- begin: a -->"):
        marked(page, "a", "new\n")
