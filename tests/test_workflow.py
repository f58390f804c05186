"""The GitHub workflows run the checks of tox and .ci/run, on the supported versions, without secrets."""

import configparser
import re
import subprocess
from fnmatch import fnmatch
from itertools import dropwhile
from pathlib import Path

import pytest
import yaml
from hypothesis import settings

from hami import __version__
from hami.codec.documents import parse_own_yaml
from testing.binaries import DEFAULT, MINOR_VARIABLE, minor_of, minors
from testing.browser import PROGRAM
from testing.cases import cases
from testing.needs import NEEDS
from testing.revision import earlier_commit
from testing.traces import TRACES
from tools.rehearse import REGISTRY

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / ".github" / "workflows" / "ci.yaml").read_text()
JOBS = parse_own_yaml(TEXT)["jobs"]
NIGHTLY = (ROOT / ".github" / "workflows" / "nightly.yaml").read_text()
NIGHTLY_JOBS = parse_own_yaml(NIGHTLY)["jobs"]
STEPS = [step for job in (*JOBS.values(), *NIGHTLY_JOBS.values()) for step in job["steps"]]
RUNS = [step["run"] for step in STEPS if "run" in step]
TOX = configparser.ConfigParser(interpolation=None)
TOX.read(ROOT / "tox.ini")
PRE_COMMIT = parse_own_yaml((ROOT / ".pre-commit-config.yaml").read_text())
UNIT = JOBS["unit"]["strategy"]["matrix"]["include"]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
PYTHONS = re.findall(r"Python :: (3\.\d+)", SETUP["metadata"]["classifiers"])
LISTED = {name.strip() for name in TOX["tox"]["env_list"].split(",")}


def tox_environments():
    """Returns the tox environments that the steps run, with the matrix expanded."""
    for job in JOBS.values():
        matrix = job.get("strategy", {}).get("matrix", {})
        rows = matrix.get("environment") or [
            row["environment"] for row in matrix.get("include", ()) if "environment" in row
        ]
        for run in (step.get("run", "") for step in job["steps"]):
            for words in re.findall(r"tox (?:-\S+ )*run -e (.+)", run):
                for word in (
                    words.replace("${{ matrix.environment }}", "MATRIX").split()[0].split(",")
                ):
                    yield from rows if word == "MATRIX" else [word]


def sections():
    """Returns the environments that sections of tox.ini define: one, or one for each name in braces."""
    for section in TOX.sections():
        prefix, _, names = section.removeprefix("testenv:").rstrip("}").partition("{")
        yield from (prefix + name for name in names.split(","))


def test_every_environment_in_use_exists():
    pythons = {f"py{version.replace('.', '')}" for version in PYTHONS}
    assert set(tox_environments()) <= LISTED | pythons | set(sections())


def test_all_default_environments_of_tox_are_run():
    """The matrix of end-to-end tests has a row for the previous Kubernetes, too, and that of unit tests each Python."""
    assert TOX["testenv:e2e-previous"]["set_env"].split()[-1] in minors()
    assert LISTED - {"e2e-previous", "py"} <= set(tox_environments())


def test_each_python_runs_its_own_environment():
    assert [row["environment"] for row in UNIT] == [
        f"py{row['python'].replace('.', '')}" for row in UNIT
    ]


def test_the_pythons_are_those_of_the_classifiers():
    assert [row["python"] for row in UNIT] == PYTHONS


def test_end_to_end_runs_each_kubernetes_and_each_python_with_one_of_the_others():
    rows = [
        (row["kubernetes"], row["python"]) for row in JOBS["e2e"]["strategy"]["matrix"]["include"]
    ]
    first, *others = minors()
    assert rows == [(minor, PYTHONS[0]) for minor in (first, *others)] + [
        (first, python) for python in PYTHONS[1:]
    ]
    assert JOBS["e2e"]["env"] == {MINOR_VARIABLE: "${{ matrix.kubernetes }}"}
    (python,) = [step for step in JOBS["e2e"]["steps"] if "setup-python" in step.get("uses", "")]
    assert python["with"]["python-version"] == "${{ matrix.python }}"


def test_the_shipped_kube_scheduler_is_the_newest_tested_version():
    manifest = (ROOT / "manifests/base/deployment.yaml").read_text()
    (image,) = re.findall(r"image: registry.k8s.io/kube-scheduler:(v\S+)", manifest)
    assert image == DEFAULT.kube_version
    assert next(iter(minors())) == minor_of(image)


def test_pre_commit_runs_the_ruff_of_tox():
    (hooks,) = PRE_COMMIT["repos"]
    assert f"ruff=={hooks['rev'].removeprefix('v')}" in TOX["testenv:lint"]["deps"].splitlines()


def test_lint_looks_at_the_workflows_without_a_network():
    """A workflow that zizmor cannot read is an error, too; otherwise it would be passed over."""
    (command,) = [
        line for line in TOX["testenv:lint"]["commands"].splitlines() if line.startswith("zizmor ")
    ]
    assert {"--offline", "--strict-collection", ".github"} <= set(command.split())
    assert re.search(r"^zizmor==[\d.]+$", TOX["testenv:lint"]["deps"], re.MULTILINE)


def test_no_run_is_repeated_until_it_passes():
    for text in (TEXT, (ROOT / ".ci" / "run").read_text(), (ROOT / "tox.ini").read_text()):
        assert not re.search(r"--(last-failed|lf|failed-first|reruns)\b", text)


def test_ci_run_calls_the_command_of_the_readme_and_prepares_nothing_that_it_would_lack():
    """Packages of Debian are the exception: without them, tests are skipped and say so."""
    ours = (ROOT / ".ci" / "run").read_text()
    commands = re.findall(r'"\$tox" -qq run .*', ours)
    assert len(commands) == 2
    assert re.match(r'"\$tox" -qq run --workdir \S+ -e kind ', commands[0])
    assert re.match(r'"\$tox" -qq run --result-json \S+ +#', commands[1])
    assert "testing.binaries" not in ours
    environments = set(re.findall(r" run .*-e ([a-z-]+)", ours))
    assert environments == {"kind", "libvgpu-big"}
    assert environments.isdisjoint(LISTED)


def test_a_check_that_has_just_been_started_has_an_output_to_follow(tmp_path):
    """Its process opens the file when it is scheduled, which is late on a busy machine."""
    start = re.search(
        r"^start\(\) \{.*?^\}", (ROOT / ".ci" / "run").read_text(), re.M | re.S
    ).group()
    script = f"""
        set -euo pipefail
        declare -A beside=()
        scratch={tmp_path}
        {start}
        for number in {{1..20}}; do
            start "$number" true
            [ -e "$scratch/$number.output" ]
        done
        wait
    """
    subprocess.run(["bash", "-c", script], check=True)


def test_the_commands_of_the_readme_run_without_caches_every_night():
    """tests/test_quickstart.py says what they are. The default shell in a container is sh, which has no `time`."""
    assert NIGHTLY_JOBS["newcomer"]["defaults"]["run"]["shell"] == "bash"
    runs = [step.get("run", "") for step in NIGHTLY_JOBS["newcomer"]["steps"]]
    homes = [
        number
        for number, run in enumerate(runs)
        if 'HOME=$RUNNER_TEMP/home" >>"$GITHUB_ENV"' in run
    ]
    typed = [number for number, run in enumerate(runs) if "testing.quickstart README.md" in run]
    assert (len(homes), len(typed)) == (1, 2)
    assert homes[0] < typed[0]
    assert not any("cache" in step.get("uses", "") for step in NIGHTLY_JOBS["newcomer"]["steps"])


@cases(
    "environment, command",
    ("e2e", "python -m testing.binaries --tests\npython -m testing.limiter.builds --driver"),
    ("e2e-previous", "python -m testing.binaries"),
    ("libvgpu", "python -m testing.limiter.builds"),
)
def test_programs_are_built_before_pytest_begins(environment, command):
    assert TOX[f"testenv:{environment}"]["commands_pre"].strip() == command


def test_end_to_end_has_a_browser():
    assert PROGRAM in {need.program for need in NEEDS}
    assert f"{PROGRAM} --version" in [step.get("run") for step in JOBS["e2e"]["steps"]]


def test_each_unit_test_runs_once_in_tox_and_on_each_python_in_the_workflow():
    """With the marks of `project`, every test is in one of the two environments."""
    assert '{posargs:-m "not files and not slow" tests benchmarks}' in TOX["testenv"]["commands"]
    assert '{posargs:-m "files or slow" tests benchmarks}' in TOX["testenv:project"]["commands"]
    assert "tox run -e ${{ matrix.environment }},project" in RUNS


def test_new_random_examples_are_tried_every_night():
    (run,) = [
        step["run"] for step in NIGHTLY_JOBS["nightly"]["steps"] if "tox run" in step.get("run", "")
    ]
    environment, profile = re.fullmatch(
        r"tox run -e (\w+) -- --hypothesis-profile=(\w+) --timeout=\d+ tests", run
    ).groups()
    assert environment in LISTED
    assert settings.get_profile(profile).derandomize is False
    assert settings.get_profile("reproducible").derandomize is True
    assert re.search(r"^  schedule:$", NIGHTLY, re.MULTILINE)


def test_kind_runs_the_same_tests_in_the_workflow_and_in_ci_run():
    ours = (ROOT / ".ci" / "run").read_text()
    command = " -e kind -- -m installation"
    assert command in ours
    assert any(command in run for run in RUNS)


WORKFLOWS = {
    path.stem: path.read_text() for path in sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_read_only_and_a_job_says_what_it_may_write(name):
    read = parse_own_yaml(WORKFLOWS[name])
    assert read["permissions"] == {"contents": "read"}
    written = {
        right
        for job in read["jobs"].values()
        for right, level in job.get("permissions", {}).items()
        if level == "write"
    }
    assert written == {
        "release": {"packages", "id-token", "attestations", "contents"},
        "security": {"security-events", "id-token"},
    }.get(name, set())
    assert "secrets." not in WORKFLOWS[name]


# what stands before a command, or is none: variables, words of the shell
BEFORE = re.compile(r"\w+=\S*|do|then|sudo|!|if|exec|env")
HARMLESS = ("skopeo", "tar", "echo", "cat", "cmp", "awk", "grep", "basename", "for", "done", "fi")
"""Programs of the runner that fetch nothing, build nothing and start nothing else, and words of the shell."""


def commands(run):
    """Returns the words of each command in the script *run*, also of those whose output others take."""
    found = []
    for line in run.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||[;|]|\$\(", line.partition("<<<")[0].partition(" #")[0]):
            words = re.sub("[\"'()]", "", part).split()
            found.append(list(dropwhile(BEFORE.fullmatch, words)))
    return [words for words in found if words]


def unpinned(run):
    """Returns the commands in the script *run* that install or build, or start what somebody else has built, unless
    they say by version and checksum what that is."""
    return [" ".join(words) for words in commands(run) if not is_pinned(words)]


def is_pinned(words):
    if re.fullmatch(r"python[\d.]*", words[0]) and words[1:2] == ["-m"]:
        words = words[2:]
    program, options = words[0], words[1:]
    verbs = [word for word in options if not word.startswith("-")]
    rule = RULES.get(program)
    return program in HARMLESS if rule is None else rule(verbs, options)


def pip_is_pinned(verbs, options):
    builds_from_installed = {"--no-index", "--no-build-isolation"} <= set(options)
    return (
        verbs[0] not in ("install", "download", "wheel")
        or "--require-hashes" in options
        or builds_from_installed
    )


def go_is_pinned(verbs, options):
    """Go's proxy and its database of checksums know one content of a version."""
    return verbs[0] in ("run", "install") and bool(re.search(r"/\S+@v\d+\.\d+\.\d+$", verbs[1]))


def docker_is_pinned(verbs, options):
    if verbs[0] in ("run", "create", "pull"):
        return any(re.search(r"@(sha256:|\$)", word) for word in verbs)
    return verbs[0] in ("login", "cp") or verbs[:2] == ["buildx", "imagetools"]


def helm_is_pinned(verbs, options):
    return verbs[0] in ("registry", "push")


def git_is_pinned(verbs, options):
    """Files are committed and pushed as they are: a new repository has no hooks."""
    return bool({"init", "add", "commit", "push"} & set(verbs[:3]))


def gh_is_pinned(verbs, options):
    return verbs[0] == "release"


RULES = {
    "pip": pip_is_pinned,
    "go": go_is_pinned,
    "docker": docker_is_pinned,
    "helm": helm_is_pinned,
    "git": git_is_pinned,
    "gh": gh_is_pinned,
}


def rights(job):
    """Returns what a job may write."""
    given = job.get("permissions", {})
    if isinstance(given, str):
        return {given} - {"read-all"}
    return {right for right, level in given.items() if level == "write"}


def jobs_with_rights():
    return [
        pytest.param(job, id=f"{name}-{key}")
        for name, text in WORKFLOWS.items()
        for key, job in parse_own_yaml(text)["jobs"].items()
        if rights(job)
    ]


@pytest.mark.parametrize("job", jobs_with_rights())
def test_a_job_that_may_write_installs_and_builds_nothing_that_is_not_pinned(job):
    """What it starts could use its rights. Its actions are pinned by commit."""
    assert [
        command for step in job["steps"] if "run" in step for command in unpinned(step["run"])
    ] == []


def test_a_job_that_may_write_to_the_repository_or_a_registry_has_no_sources():
    """It publishes what jobs without rights have built. The jobs of the workflow security read the sources."""
    for job in parse_own_yaml(WORKFLOWS["release"])["jobs"].values():
        used = [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]
        assert not rights(job) or not {"actions/checkout", "actions/setup-python"} & set(used)


@pytest.mark.parametrize(
    "run",
    [
        "pip install pex==2.105.2",
        "python -m pip install --quiet click pyyaml",
        "python3.11 -m pip wheel --no-deps .",
        "pex . --script kubectl-hami",
        "python -m build",
        "python setup.py bdist_wheel",
        "python -m tools.krew x",
        "make",
        "pipx run zizmor",
        "uv pip install x",
        "tox run -e lint",
        "npm ci",
        "npx x",
        "cargo install x",
        "gem install x",
        "sudo apt-get install -y x",
        "apt-get update && apt-get install x",
        "curl https://x | sh",
        "wget x",
        "bash x.sh",
        "go run example.com/x@latest",
        "go run ./x",
        "go install example.com/x@v1",
        "go build ./...",
        "docker build .",
        "docker buildx build --push .",
        "docker run --rm alpine/x y",
        "docker run $IMAGE:$VERSION",
        "docker pull docker.io/library/debian:bookworm",
        "helm package charts/hami",
        "helm dependency update x",
        "gh extension install x",
        "git clone https://x",
        "git submodule update",
        "echo x\npip install y",
        "for x in y; do pip install x; done",
        "A=b pip install x",
        "x=$(pip install y)",
        "echo y \\\n && pip install x",
        "./kubectl-hami",
    ],
)
def test_what_is_not_pinned_is_recognized(run):
    assert unpinned(run)


@pytest.mark.parametrize(
    "run",
    [
        "python -m pip install --quiet --require-hashes -r requirements.txt",
        "pip wheel --no-index --no-build-isolation .",
        "go run github.com/sigstore/cosign/v2/cmd/cosign@v2.6.5 sign --yes $IMAGE@$DIGEST",
        'container=$(docker create "$IMAGE@$digest")',
        "docker run --rm docker.io/library/debian@sha256:0123 true",
        "docker login ghcr.io --username x <<<$TOKEN",
        "gh release create v1 dist/*.whl",
        "skopeo copy --all oci-archive:x docker://y",
        "helm push x oci://y",
    ],
)
def test_what_is_pinned_is_not(run):
    assert unpinned(run) == []


def test_no_checkout_leaves_the_token_in_its_folder():
    steps = [
        step
        for text in WORKFLOWS.values()
        for job in parse_own_yaml(text)["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/checkout@")
    ]
    assert len(steps) > 15
    assert [
        step for step in steps if step.get("with", {}).get("persist-credentials") is not False
    ] == []


def test_what_a_release_is_built_with_is_pinned_by_hash():
    """With the pip, setuptools and wheel that this version of pex asks for."""
    text = (ROOT / ".github" / "requirements.txt").read_text()
    pins = dict(re.findall(r"^([\w-]+)==(\S+) \\$", text, re.MULTILINE))
    assert pins.keys() >= {"pex", "pip", "setuptools", "wheel", "click", "pyyaml"}
    assert all(
        "--hash=sha256:" in entry
        for entry in re.split(r"^(?=[\w-]+==)", text, flags=re.MULTILINE)[1:]
    )
    assert re.findall(r"--pip-version (\S+)", WORKFLOWS["release"]) == [pins["pip"]]


def test_what_a_job_takes_is_what_another_has_made():
    jobs = parse_own_yaml(WORKFLOWS["release"])["jobs"]
    made, taken = set(), set()
    for job in jobs.values():
        for step in job["steps"]:
            options = step.get("with", {})
            if "upload-artifact" in step.get("uses", ""):
                assert options["if-no-files-found"] == "error"
                made.add(re.sub(r"\$\{\{.*?\}\}", "x", options["name"]))
            elif "download-artifact" in step.get("uses", ""):
                taken.add(options.get("name") or options["pattern"])
    assert all(any(fnmatch(name, pattern) for pattern in taken) for name in made)
    assert all(any(fnmatch(name, pattern) for name in made) for pattern in taken)


RELEASE = parse_own_yaml(WORKFLOWS["release"])["jobs"]


def before(name):
    """Returns the jobs that have ended well when the job *name* of the release begins."""
    needs = RELEASE[name].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(before(other) for other in direct))


def test_everything_is_built_before_anything_is_published():
    publishing = {name for name, job in RELEASE.items() if rights(job)}
    building = RELEASE.keys() - publishing
    assert {"push-image", "push-chart", "publish"} <= publishing
    assert [name for name in sorted(publishing) if not building <= before(name)] == []


def test_the_releases_page_comes_last():
    assert before("publish") == RELEASE.keys() - {"publish"} - AFTER_THE_RELEASE


AFTER_THE_RELEASE = {"pages"}
"""Jobs that do not decide whether there is a release."""


def test_each_image_is_started_and_scanned_where_it_was_built():
    rows = RELEASE["image"]["strategy"]["matrix"]["include"]
    assert {(row["image"], row["architecture"]) for row in rows} == {
        (image, architecture)
        for image in ("hami", "hami-device-plugin")
        for architecture in ("amd64", "arm64")
    }
    for row in rows:
        assert row["runner"].endswith("-arm") == (row["architecture"] == "arm64")
    runs = "\n".join(step.get("run", "") for step in RELEASE["image"]["steps"])
    assert re.search(r"docker run .* built --version", runs)
    assert runs.index("tools.scan") > runs.index("docker cp")
    assert "if" not in RELEASE["image"]
    uploads = [step.get("uses", "").partition("@")[0] for step in RELEASE["image"]["steps"]]
    assert uploads[-1] == "actions/upload-artifact"


def test_images_and_chart_are_signed_and_attested():
    for job in ("sign", "push-chart"):
        text = yaml.safe_dump(RELEASE[job])
        assert "actions/attest-build-provenance@" in text
        assert re.search(r"cosign@v[\d.]+\s+sign --yes", text)


def test_images_are_labeled_with_their_source():
    text = (ROOT / "Containerfile").read_text()
    builds = [
        step["run"]
        for step in RELEASE["image"]["steps"]
        if "docker buildx build" in step.get("run", "")
    ]
    for argument, label in (("SOURCE", "source"), ("REVISION", "revision")):
        assert text.count(f'org.opencontainers.image.{label}="${{{argument}}}"') == 2
        assert all(f'--build-arg "{argument}=' in run for run in builds)


def test_a_release_is_rehearsed_every_night_with_the_programs_of_the_release():
    runs = "\n".join(step.get("run", "") for step in NIGHTLY_JOBS["release"]["steps"])
    for tool in ("image_index", "stamp", "rehearse", "scan"):
        assert f"python -m tools.{tool} " in runs
    assert f"--registry {REGISTRY}\n" in runs
    versions = re.findall(r"/(crane|osv-scanner)@(\S+)", runs + WORKFLOWS["release"])
    assert {name for name, _ in versions} == {"crane", "osv-scanner"}
    assert len(set(versions)) == 2


def test_a_release_has_the_version_of_the_package():
    (run,) = [
        step["run"]
        for step in parse_own_yaml(WORKFLOWS["release"])["jobs"]["version"]["steps"]
        if "run" in step
    ]
    files = re.findall(r"""grep -qx? ["'](.+)["'] (\S+)$""", run, re.MULTILINE)
    assert [file for _, file in files] == [
        "hami/__init__.py",
        "charts/hami/Chart.yaml",
        "CHANGELOG.md",
    ]
    for pattern, file in files[:2]:  # the changelog gets its heading with the release
        assert (
            pattern.replace("\\", "").replace("$version", __version__)
            in (ROOT / file).read_text().splitlines()
        )


@cases("text", ("ci", TEXT), ("nightly", NIGHTLY))
def test_the_workflows_have_no_secrets_and_no_write_permissions(text):
    assert "secrets." not in text
    assert "github.token" not in text.lower()
    assert parse_own_yaml(text)["permissions"] == {"contents": "read"}


def test_actions_are_pinned_by_commit_with_their_version_beside():
    lines = [
        line.strip().removeprefix("- ")
        for line in "".join(WORKFLOWS.values()).splitlines()
        if "uses:" in line
    ]
    assert len(lines) > 20
    for line in lines:
        assert re.fullmatch(
            r"uses: (?:actions|github/codeql-action|ossf)/[a-z-]+@[0-9a-f]{40} # v[\d.]+", line
        )
    assert len({line.partition("@")[0] for line in lines}) == len(set(lines)), (
        "one version of each action"
    )


def test_no_step_is_skipped_and_no_skipped_test_passes():
    assert [step for step in STEPS if "if" in step] == []
    assert parse_own_yaml(TEXT)["env"]["HAMI_E2E_STRICT"] == "1"


def test_each_end_to_end_test_that_a_runner_can_run_is_in_a_job():
    """Those of Debian's containerd 1.6 run in .ci/run; on kind, those with the mark run here, and all every night. A
    runner has no scheduler of HAMi."""
    runs = {
        name: " ".join(step.get("run", "") for step in job["steps"]) for name, job in JOBS.items()
    }
    files = {path.name for path in (ROOT / "e2e").glob("test_realnode*.py")} - {
        "test_realnode_containerd1.py"
    }
    assert {name for name in files if f"e2e/{name}" in runs["real-node"]} == files
    assert "sudo" in runs["real-node"]
    assert re.findall(r"--ignore-glob='([^']+)'", runs["e2e"]) == [
        "*/test_realnode*",
        "*/test_*kind.py",
        "*/test_trace.py",
        "*/test_upstream.py",
    ]
    assert "e2e/test_trace.py" in runs["trace"]
    assert "tox -qq run -e kind" in [step.get("run") for step in NIGHTLY_JOBS["kind"]["steps"]]


def test_the_files_of_the_published_cluster_are_pinned_where_a_job_reads_them():
    (published,) = [
        step["with"] for step in JOBS["trace"]["steps"] if "repository" in step.get("with", {})
    ]
    assert re.fullmatch(r"[0-9a-f]{40}", published["ref"])
    folder = f"/{published['path']}/{published['sparse-checkout']}"
    assert JOBS["trace"]["env"] == {TRACES: "${{ github.workspace }}" + folder}
    assert TRACES in TOX["testenv:e2e"]["pass_env"].split()


def test_jobs_that_test_upgrades_have_the_history_with_the_earlier_commit():
    assert len(earlier_commit()) == 40
    for job in ("e2e", "real-node"):
        (checkout,) = [
            step for step in JOBS[job]["steps"] if "actions/checkout" in step.get("uses", "")
        ]
        assert checkout["with"] == {"persist-credentials": False, "fetch-depth": 0}


def test_the_quickstart_on_kind_is_carried_out_every_night():
    """With the kind of the other tests, on which the version of kube-scheduler depends."""
    runs = [step.get("run", "") for step in NIGHTLY_JOBS["kind"]["steps"]]
    (installs,) = [run for run in runs if "sigs.k8s.io/kind@" in run]
    (version,) = re.findall(r"sigs\.k8s\.io/kind@(v[\d.]+) ", installs)
    assert f"{{env:KIND_VERSION:{version}}}" in TOX["testenv:kind"]["set_env"]
    assert runs.index(installs) < runs.index("python -m testing.quickstart docs/quickstart.md")


def test_the_tests_of_kubernetes_run_every_night_with_and_without_hami():
    job = NIGHTLY_JOBS["conformance"]
    assert job["strategy"]["matrix"] == {"options": ["", "--without-hami"]}
    assert job["steps"][-1]["run"] == "tox -qq run -e conformance -- ${{ matrix.options }}"
    assert TOX["testenv:conformance"]["commands"] == "python -m testing.conformance {posargs}"


def test_each_commit_of_main_has_a_run_that_ends():
    concurrency = parse_own_yaml(TEXT)["concurrency"]
    assert concurrency["cancel-in-progress"] == "${{ github.event_name == 'pull_request' }}"
    assert "github.sha" in concurrency["group"]


def test_generated_files_and_the_site_are_checked():
    runs = [step.get("run", "") for step in JOBS["checks"]["steps"]]
    assert runs.index("tox run -e generate") < runs.index("git diff --exit-code")
    assert any("docs" in run for run in runs)
