"""The contributors' workflow runs what tox and .ci/run run, on the Pythons that we name, and is told no secrets."""

import configparser
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / ".github" / "workflows" / "ci.yaml").read_text()
JOBS = yaml.safe_load(TEXT)["jobs"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]
RUNS = [step["run"] for step in STEPS if "run" in step]
TOX = configparser.ConfigParser(interpolation=None)
TOX.read(ROOT / "tox.ini")
LISTED = {name.strip() for name in TOX["tox"]["env_list"].split(",")}


def tox_environments():
    """The environments that steps name, the matrix's in place of its expression."""
    matrix = [row["environment"] for row in JOBS["unit"]["strategy"]["matrix"]["include"]]
    for run in RUNS:
        for words in re.findall(r"tox (?:-\S+ )*run -e (\$\{\{ matrix\.environment \}\}|\S+)", run):
            yield from matrix if words.startswith("$") else words.split(",")


def test_every_environment_that_is_run_exists():
    """kind's own step looks whether it does."""
    assert set(tox_environments()) - {"kind"} <= LISTED | {name.removeprefix("testenv:") for name in TOX.sections()}
    (kind,) = [step for step in STEPS if step.get("run", "").endswith("-e kind")]
    assert "steps.suite.outputs.exists == 'yes'" in kind["if"]


def test_what_tox_runs_by_itself_is_run():
    assert LISTED <= set(tox_environments())


def test_each_python_runs_its_own_environment():
    rows = JOBS["unit"]["strategy"]["matrix"]["include"]
    assert [row["environment"] for row in rows] == [f"py{row['python'].replace('.', '')}" for row in rows]


def test_the_pythons_are_those_that_the_package_names():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"])
    assert [row["python"] for row in JOBS["unit"]["strategy"]["matrix"]["include"]] == named


def test_end_to_end_is_what_ci_run_does():
    ours = (ROOT / ".ci" / "run").read_text()
    for command in ("-m e2e.binaries --kubelet", "-qq run -e e2e"):
        assert command in ours and any(command in run for run in RUNS)


def test_no_secret_is_used_and_nothing_may_be_written():
    assert "secrets." not in TEXT and "github.token" not in TEXT.lower()
    assert yaml.safe_load(TEXT)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("action", sorted({step["uses"] for step in STEPS if "uses" in step}))
def test_actions_are_pinned_by_major_version(action):
    assert re.fullmatch(r"actions/[a-z-]+@v\d+", action)


def test_steps_with_docker_wait_for_docker():
    pattern = re.compile(r"^\s*(docker (build|run)|tox .*-e kind)", re.MULTILINE)
    using = [step for step in STEPS if pattern.search(step.get("run", ""))]
    assert using and all("answers == 'yes'" in step["if"] for step in using)
