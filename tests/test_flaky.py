"""Only listed tests get a second attempt, and the run shows it."""

import os
import subprocess
import sys

import pytest

from e2e.flaky import FILE
from e2e.reasons import parse_reasons

SUITE = """
import pytest

calls = []


@pytest.fixture
def opened():
    calls.append("opened")
    yield
    calls.append("closed")


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_listed(opened, failures):
    calls.append(failures)
    assert calls.count(failures) > failures


def test_not_listed():
    calls.append("once")
    assert calls.count("once") > 1


def test_each_attempt_has_fixtures_of_its_own():
    assert calls.count("opened") == calls.count("closed") == 5
"""
WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # whose imports take most of the time
CONFTEST = """
from e2e.flaky import FlakyTests


def pytest_configure(config):
    config.pluginmanager.register(FlakyTests({f"test_it.py::test_listed[{n}]": f"cause {n}" for n in range(3)}))
"""


@pytest.mark.parametrize("processes", [(), ("-p", "xdist", "-n", "2", "--dist", "loadfile")])
def test_only_listed_tests_get_a_second_attempt(tmp_path, pytestconfig, processes):
    (tmp_path / "test_it.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {pytestconfig.rootpath}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", *processes],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | WITHOUT_PLUGINS,
    )
    printed = done.stdout
    assert done.returncode == 1
    assert "2 failed, 3 passed" in printed
    assert "FAILED test_it.py::test_listed[2]" in printed
    assert "FAILED test_it.py::test_not_listed" in printed
    assert "test_it.py::test_listed[1]: cause 1" in printed
    assert "test_it.py::test_listed[0]: cause 0" not in printed


def test_listed_tests_exist(pytestconfig):
    for test in parse_reasons(FILE.read_text(), FILE.name):
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (pytestconfig.rootpath / file).read_text()
