"""The quick check runs the tests that a change concerns."""

from testing.cases import cases
from tools.quick import affected, with_importers

TESTS = {
    "tests/scheduling/test_fit.py": "from hami.scheduling.fit import fit",
    "tests/scheduling/test_score.py": "from hami.scheduling import score",
    "tests/test_docs.py": "import pytest\npytestmark = pytest.mark.files",
    "tests/kube/test_api.py": "import hami.kube",
}


@cases(
    "changed, chosen",
    (["hami/scheduling/fit.py"], ["tests/scheduling/test_fit.py"]),
    (["hami/scheduling/score.py"], ["tests/scheduling/test_score.py"]),
    (["hami/kube/__init__.py"], ["tests/kube/test_api.py"]),
    (["tests/kube/test_api.py"], ["tests/kube/test_api.py"]),
    (["docs/usage.md"], ["tests/test_docs.py"]),
    (["hami/cli/top.py"], []),
)
def test_a_change_selects_the_tests_that_import_it(changed, chosen):
    assert affected(changed, TESTS) == chosen


def test_modules_beside_a_changed_one_that_import_it_count_as_changed():
    modules = {
        "hami/scheduling/choice.py": "from hami.scheduling.fit import fit",
        "hami/inspect/explain.py": "from hami.scheduling.fit import fit",
    }
    found = with_importers(["hami/scheduling/fit.py"], modules)
    assert found == {"hami/scheduling/fit.py", "hami/scheduling/choice.py"}
