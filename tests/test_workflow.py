"""The GitHub workflows run the checks of tox and .ci/run, on the supported versions, without secrets."""

import configparser
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import settings

from e2e.binaries import DEFAULT, MINOR_VARIABLE, minor_of, minors
from e2e.browser import PROGRAM

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / ".github" / "workflows" / "ci.yaml").read_text()
JOBS = yaml.safe_load(TEXT)["jobs"]
NIGHTLY = (ROOT / ".github" / "workflows" / "nightly.yaml").read_text()
NIGHTLY_JOBS = yaml.safe_load(NIGHTLY)["jobs"]
STEPS = [step for job in (*JOBS.values(), *NIGHTLY_JOBS.values()) for step in job["steps"]]
RUNS = [step["run"] for step in STEPS if "run" in step]
TOX = configparser.ConfigParser(interpolation=None)
TOX.read(ROOT / "tox.ini")
UNIT = JOBS["unit"]["strategy"]["matrix"]["include"]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
PYTHONS = re.findall(r"Python :: (3\.\d+)", SETUP["metadata"]["classifiers"])
LISTED = {name.strip() for name in TOX["tox"]["env_list"].split(",")}


def tox_environments():
    """Returns the tox environments that the steps run, with the matrix expanded."""
    for job in JOBS.values():
        matrix = job.get("strategy", {}).get("matrix", {})
        rows = matrix.get("environment") or [row["environment"] for row in matrix.get("include", ())]
        for run in (step.get("run", "") for step in job["steps"]):
            for words in re.findall(r"tox (?:-\S+ )*run -e (\$\{\{ matrix\.environment \}\}|\S+)", run):
                yield from rows if words.startswith("$") else words.split(",")


def sections():
    """Returns the environments that sections of tox.ini define: one, or one for each name in braces."""
    for section in TOX.sections():
        prefix, _, names = section.removeprefix("testenv:").rstrip("}").partition("{")
        yield from (prefix + name for name in names.split(","))


def test_every_environment_in_use_exists():
    assert set(tox_environments()) <= LISTED | set(sections())


def test_all_default_environments_of_tox_are_run():
    assert LISTED <= set(tox_environments())


def test_each_python_runs_its_own_environment():
    assert [row["environment"] for row in UNIT] == [f"py{row['python'].replace('.', '')}" for row in UNIT]


def test_the_pythons_are_those_of_the_classifiers():
    assert [row["python"] for row in UNIT] == PYTHONS


def test_end_to_end_runs_each_python_on_each_kubernetes():
    assert JOBS["e2e"]["strategy"]["matrix"] == {"kubernetes": list(minors()), "python": PYTHONS}
    assert JOBS["e2e"]["env"] == {MINOR_VARIABLE: "${{ matrix.kubernetes }}"}
    (python,) = [step for step in JOBS["e2e"]["steps"] if "setup-python" in step.get("uses", "")]
    assert python["with"]["python-version"] == "${{ matrix.python }}"


def test_the_shipped_kube_scheduler_is_the_newest_tested_version():
    manifest = (ROOT / "manifests/base/deployment.yaml").read_text()
    (image,) = re.findall(r"image: registry.k8s.io/kube-scheduler:(v\S+)", manifest)
    assert image == DEFAULT.kube_version and next(iter(minors())) == minor_of(image)


def test_no_run_is_repeated_until_it_passes():
    for text in (TEXT, (ROOT / ".ci" / "run").read_text(), (ROOT / "tox.ini").read_text()):
        assert not re.search(r"--(last-failed|lf|failed-first|reruns)\b", text)


def test_end_to_end_is_what_ci_run_does():
    ours = (ROOT / ".ci" / "run").read_text()
    for command in ("-m e2e.binaries --kubelet", "-qq run -e e2e"):
        assert command in ours and any(command in run for run in RUNS)


def test_end_to_end_has_a_browser():
    ours = (ROOT / ".ci" / "run").read_text()
    assert f"packages+=({PROGRAM})" in ours
    assert f"{PROGRAM} --version" in [step.get("run") for step in JOBS["e2e"]["steps"]]


def test_all_tests_run_on_each_python_of_the_workflow_and_on_the_first_of_ci_run():
    assert "not slow" not in TEXT + (ROOT / "tox.ini").read_text()
    ours = (ROOT / ".ci" / "run").read_text()
    places = [ours.index(text) for text in ("options=()", '-- "${options[@]}" tests', '-m "not files and not slow")')]
    assert places == sorted(places)


def test_new_random_examples_are_tried_every_night():
    (run,) = [step["run"] for step in NIGHTLY_JOBS["nightly"]["steps"] if "tox run" in step.get("run", "")]
    environment, profile = re.fullmatch(
        r"tox run -e (\w+) -- --hypothesis-profile=(\w+) --timeout=\d+ tests", run).groups()
    assert environment in LISTED
    assert settings.get_profile(profile).derandomize is False
    assert settings.get_profile("reproducible").derandomize is True
    assert re.search(r"^  schedule:$", NIGHTLY, re.MULTILINE)


def test_kind_runs_the_same_tests_in_the_workflow_and_in_ci_run():
    ours = (ROOT / ".ci" / "run").read_text()
    command = " -e kind -- -m installation"
    assert command in ours and any(command in run for run in RUNS)


def test_ci_run_leaves_out_no_test_of_the_limiter():
    ours = (ROOT / ".ci" / "run").read_text()
    assert "-e libvgpu -- -m real_time tests/libvgpu" in ours
    assert '-e libvgpu -- -m "not real_time" tests/libvgpu' in ours


@pytest.mark.parametrize("text", [TEXT, NIGHTLY], ids=["ci", "nightly"])
def test_the_workflows_have_no_secrets_and_no_write_permissions(text):
    assert "secrets." not in text and "github.token" not in text.lower()
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


def test_actions_are_pinned_by_commit_with_their_version_beside():
    lines = [line.strip().removeprefix("- ") for line in (TEXT + NIGHTLY).splitlines() if "uses:" in line]
    assert len(lines) == sum("uses" in step for step in STEPS)
    for line in lines:
        assert re.fullmatch(r"uses: actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)
    assert len({line.partition("@")[0] for line in lines}) == len(set(lines)), "one version of each action"


def test_steps_that_need_docker_are_skipped_without_it():
    pattern = re.compile(r"^\s*(docker (build|run)|tox .*-e kind)", re.MULTILINE)
    using = [step for step in STEPS if pattern.search(step.get("run", ""))]
    assert using and all("answers == 'yes'" in step["if"] for step in using)
