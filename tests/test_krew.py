"""krew gets a manifest that names the archives of a release, as the workflow makes them."""

import hashlib
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hami import __version__
from hami.codec.documents import parse_own_yaml
from tools.krew import FILES, main

pytestmark = pytest.mark.files
ROOT = Path(__file__).parent.parent
JOBS = parse_own_yaml((ROOT / ".github" / "workflows" / "release.yaml").read_text())["jobs"]
STEPS = {
    name: [step["run"] for step in JOBS[name]["steps"] if "run" in step]
    for name in ("kubectl", "krew")
}
PLATFORMS = [
    (row["os"], row["architecture"]) for row in JOBS["kubectl"]["strategy"]["matrix"]["include"]
]
ARCHIVES = [
    JOBS["kubectl"]["env"]["ARCHIVE"]
    .replace("${{ matrix.os }}", system)
    .replace("${{ matrix.architecture }}", architecture)
    for system, architecture in PLATFORMS
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the command of the workflow prints, read again; and the archives."""
    folder = tmp_path_factory.mktemp("release")
    paths = [folder / name for name in ARCHIVES]
    for path in paths:
        path.write_bytes(path.name.encode())
    (command,) = re.findall(
        r"^python -m tools\.krew (.*) >hami\.yaml$", "\n".join(STEPS["krew"]), re.MULTILINE
    )
    words = command.replace('"$GITHUB_REPOSITORY"', "owner/name").split()
    assert words.pop() == "kubectl-hami-*.tar.gz"
    done = CliRunner().invoke(main, [*words, *map(str, paths)])
    assert done.exit_code == 0, done.output
    return parse_own_yaml(done.output), paths


def test_a_manifest_has_what_krew_asks_for(printed):
    """https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest: names, limits and lists of the fields."""
    manifest, _ = printed
    assert (manifest["apiVersion"], manifest["kind"]) == (
        "krew.googlecontainertools.github.com/v1alpha2",
        "Plugin",
    )
    assert manifest["metadata"] == {"name": FILES[0].removeprefix("kubectl-")}
    spec = manifest["spec"]
    assert spec["version"] == f"v{__version__}"
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert len(spec["shortDescription"]) <= 50
    assert not spec["shortDescription"].endswith(".")
    assert all(len(line) <= 120 for line in (spec["description"] + spec["caveats"]).splitlines())


def test_each_archive_of_the_release_is_a_platform(printed):
    manifest, paths = printed
    found = [
        (item["selector"]["matchLabels"], item["uri"], item["sha256"])
        for item in manifest["spec"]["platforms"]
    ]
    url = f"https://github.com/owner/name/releases/download/v{__version__}/"
    assert found == [
        (
            {"os": system, "arch": architecture},
            url + path.name,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for (system, architecture), path in zip(PLATFORMS, paths, strict=True)
    ]


def test_the_files_are_those_that_the_workflow_packs(printed):
    manifest, _ = printed
    (packed,) = [run for run in STEPS["kubectl"] if run.startswith("tar ")]
    assert packed.split()[3:] == list(FILES)
    for item in manifest["spec"]["platforms"]:
        assert item["bin"] == FILES[0]
        assert item["files"] == [{"from": name, "to": "."} for name in FILES]


def test_there_is_a_program_for_linux_and_macos_on_both_architectures():
    assert PLATFORMS == [
        (system, architecture)
        for system in ("linux", "darwin")
        for architecture in ("amd64", "arm64")
    ]


def test_the_packages_of_each_program_are_pinned_by_hash_and_include_what_it_needs():
    section = (ROOT / "setup.cfg").read_text().partition("install_requires =\n")[2]
    needed = re.findall(r"^    ([a-z][\w-]*)[<>=]", section.partition("\n[")[0], re.MULTILINE)
    assert len(needed) > 8
    for row in JOBS["kubectl"]["strategy"]["matrix"]["include"]:
        text = (ROOT / row["packages"]).read_text()
        entries = re.split(r"^(?=[\w-]+==)", text, flags=re.MULTILINE)[1:]
        assert all("--hash=sha256:" in entry for entry in entries)
        assert set(needed) <= {entry.partition("==")[0] for entry in entries}


def test_the_program_brings_the_python_for_which_its_packages_are():
    (made,) = [run for run in STEPS["kubectl"] if run.startswith("pex ")]
    (setup,) = [
        step["with"] for step in JOBS["kubectl"]["steps"] if "setup-python" in step.get("uses", "")
    ]
    minor = setup["python-version"]
    assert f"Python :: {minor}\n" in (ROOT / "setup.cfg").read_text()
    assert f"--python python{minor} " in made
    assert f"--scie-python-version {minor}." in made
    assert re.search(r"--scie eager --scie-only --scie-pbs-release \d{8} ", made)
    assert f"--script {FILES[0]} " in made
    assert f"--output-file {FILES[0]} " in made
    assert f"{FILES[0]} = hami.cli.kubectl:console_script" in (ROOT / "setup.cfg").read_text()
