"""The images consist of existing files, run the console script as a non-root user, and have our version."""

import configparser
import json
import re
import shlex
import tomllib
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hami import __version__
from hami.cli import main
from hami.codec.documents import parse_own_yaml
from hami.node.host import LIBRARY
from hami.node.library import CHECKSUMS

ROOT = Path(__file__).parent.parent
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def lines(text):
    """Returns the lines of a multi-line value of setup.cfg, without comments."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
NEEDED = [
    *lines(SETUP["options"]["install_requires"]),
    *lines(SETUP["options.extras_require"]["node"]),
    *BUILD,
]
PINS = re.findall(
    r"^(?! )(\S[^\\\n]*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
    (ROOT / "requirements.txt").read_text(),
    flags=re.MULTILINE,
)
PINNED = [Requirement(text) for text, _ in PINS]


def instructions():
    """Returns the instructions of the Containerfile as (word, rest), each on one line."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Containerfile").read_text(), flags=re.MULTILINE)
    return [
        tuple(line.split(maxsplit=1))
        for line in re.sub(r"\\\n\s*", " ", text).splitlines()
        if line.strip()
    ]


def stages():
    """Returns the instructions of each stage by its name, in order, and those before the first stage."""
    found = {"": []}
    for word, rest in instructions():
        if word == "FROM":
            base, as_, name = rest.split()
            assert as_ == "AS"
            found[name] = []
        found[name if word == "FROM" else list(found)[-1]].append((word, rest))
    return found


STAGES = stages()
IMAGES = ("device-plugin", "scheduler")


def of(stage, word):
    return [rest for found, rest in STAGES[stage] if found == word]


def copied_from_here():
    """Yields what COPY takes from the build context."""
    for word, rest in instructions():
        words = shlex.split(rest)
        if word in ("COPY", "ADD") and not any(part.startswith("--from=") for part in words):
            yield from words[:-1]


def ignored(path):
    """Reports whether .containerignore excludes *path*; the last matching line counts."""
    verdict, folders = False, [str(folder) for folder in Path(path).parents if folder != Path()]
    for line in (ROOT / ".containerignore").read_text().splitlines():
        if (
            line
            and not line.startswith("#")
            and any(fnmatch(one, line.lstrip("!")) for one in (path, *folders))
        ):
            verdict = not line.startswith("!")
    return verdict


def test_copied_files_exist_and_are_not_ignored():
    sources = [source for source in copied_from_here() if source != "ca-bundle.cr[t]"]
    assert {"setup.cfg", "pyproject.toml", "hami"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists() or ignored(source)] == []


def test_files_that_setup_cfg_reads_are_copied():
    needed = {
        SETUP["metadata"]["long_description"].removeprefix("file: "),
        SETUP["metadata"]["license_files"],
    }
    assert needed <= set(copied_from_here())


def test_the_build_context_contains_nothing_else():
    kept = {path.name for path in ROOT.iterdir() if not ignored(path.name)}
    assert kept - {"ca-bundle.crt"} == {
        source.partition("/")[0] for source in copied_from_here() if "[" not in source
    }
    assert ignored("hami/__pycache__")
    assert not ignored("ca-bundle.crt")


def test_docker_and_podman_ignore_the_same_files():
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text()


def test_the_base_is_an_argument():
    (base,) = of("", "ARG")
    assert base.startswith("BASE=")
    froms = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert froms[0] == "${BASE}"
    assert set(froms[1:]) <= STAGES.keys(), "one base only, so that one from debootstrap is enough"


@pytest.mark.parametrize("stage", IMAGES)
def test_the_entry_point_is_the_console_script(stage):
    (entry,), (command,) = of(stage, "ENTRYPOINT"), of(stage, "CMD")
    scripts = dict(
        line.split(" = ") for line in lines(SETUP["options.entry_points"]["console_scripts"])
    )
    assert json.loads(entry) == ["/opt/hami/bin/hami"], "a list: no shell is started"
    assert scripts["hami"] == "hami.cli:console_script"
    assert json.loads(command)[0] in main.all()


def test_the_default_image_is_that_of_the_scheduler_and_not_root():
    assert list(STAGES)[-1] == "scheduler"
    (user,) = of("scheduler", "USER")
    assert all(int(number) > 0 for number in user.split(":"))


@pytest.mark.parametrize("stage", IMAGES)
def test_an_image_contains_only_the_base_and_the_environment(stage):
    assert not {word for word, _ in STAGES[stage]} & {"RUN", "ADD", "SHELL", "ONBUILD"}
    *content, bill = of(stage, "COPY")
    of_the_node = (
        ["--from=node-dependencies /node/opt/hami /opt/hami"] if stage == "device-plugin" else []
    )
    limiter = ["--from=build-limiter /limiter /limiter"] if stage == "device-plugin" else []
    assert content == [
        "--from=dependencies /opt/hami /opt/hami",
        *of_the_node,
        "--from=code /code/opt/hami /opt/hami",
        *limiter,
    ], "what both have comes first, and our code, which changes most, after dependencies"
    assert bill == f"--from={stage}-sbom /sbom /usr/share/hami"
    (env,) = of(stage, "ENV")
    assert "PATH=/opt/hami/bin:" in env
    assert "PYTHONDONTWRITEBYTECODE=1" in env


def test_the_images_share_a_layer_of_dependencies_that_does_not_change_with_our_code():
    """Anything before its COPY would make it two layers."""
    for stage in IMAGES:
        assert STAGES[stage][1] == ("COPY", "--from=dependencies /opt/hami /opt/hami")
    assert of("dependencies", "FROM") == ["wheels AS dependencies"]
    assert of("dependencies", "COPY") == [
        "setup.cfg pyproject.toml LICENSE /src/",
        "hami/__init__.py /src/hami/",
    ]


@pytest.mark.parametrize("stage", IMAGES)
def test_the_bill_of_materials_is_made_from_the_content_of_the_image(stage):
    """What else its stage has, the tool does not find."""
    content, made = of(stage, "COPY")[:-1], of(f"{stage}-sbom", "COPY")
    assert made[: len(content)] == content
    assert {copy.split()[-1] for copy in made[len(content) :]} <= {
        "/src/",
        "/src/libvgpu",
        "/built-with",
    }
    assert {of(one, "FROM")[0].split()[0] for one in (stage, f"{stage}-sbom")} == {"python"}
    (run,) = of(f"{stage}-sbom", "RUN")
    name = {"scheduler": "hami", "device-plugin": "hami-device-plugin"}[stage]
    assert f"/opt/hami/bin/python3 /src/sbom.py {name} " in run
    assert run.endswith(">/sbom/sbom.json")
    assert ("--limiter /limiter" in run) == any("/limiter" in copy for copy in content)


@pytest.mark.parametrize("stage", IMAGES)
def test_an_image_has_our_version(stage):
    (label,) = of(stage, "LABEL")
    assert f'org.opencontainers.image.version="{__version__}"' in label
    assert f'org.opencontainers.image.licenses="{SETUP["metadata"]["license"]}"' in label


def test_only_the_device_plugin_image_has_its_packages():
    assert "/src[node]" in " ".join(of("node-dependencies", "RUN"))
    assert "node" in SETUP["options.extras_require"]
    assert not any(
        "[node]" in run for stage in ("dependencies", "code") for run in of(stage, "RUN")
    )


def test_the_limiter_is_the_release_build_for_the_architecture_of_the_image():
    assert "release" in of("build-limiter", "RUN")[-1]
    assert 'TARGETS="$(uname -m)"' in of("build-limiter", "RUN")[-1]
    files = f"{LIBRARY} hami-memory-wall"
    assert f"cd /limiter && sha256sum {files} >{CHECKSUMS}" in of("build-limiter", "RUN")[-1]
    assert "--from=build-limiter /limiter /limiter" in of("device-plugin", "COPY")
    assert ignored("libvgpu/build")
    assert ignored("libvgpu/tests")
    assert not ignored("libvgpu/src")


def test_ports_and_user_match_the_manifest():
    deployment = parse_own_yaml((ROOT / "manifests" / "base" / "deployment.yaml").read_text())
    spec = deployment["spec"]["template"]["spec"]
    ours = [container for container in spec["containers"] if container["name"] != "kube-scheduler"]
    ports = [port["containerPort"] for container in ours for port in container["ports"]]
    assert of("scheduler", "EXPOSE") == [" ".join(map(str, ports))]
    user, group = spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]
    assert of("scheduler", "USER") == [f"{user}:{group}"]


def test_every_package_is_pinned_by_version_and_hash():
    entries = re.findall(r"^[^#\s].*$", (ROOT / "requirements.txt").read_text(), flags=re.MULTILINE)
    assert len(PINS) == len(entries)
    assert [str(pin) for pin in PINNED if [one.operator for one in pin.specifier] != ["=="]] == []


@pytest.mark.parametrize("needed", list(map(Requirement, NEEDED)), ids=lambda needed: needed.name)
def test_dependencies_are_pinned_to_a_version_that_setup_cfg_allows(needed):
    pins = [pin for pin in PINNED if canonicalize_name(pin.name) == canonicalize_name(needed.name)]
    assert pins, "renew requirements.txt: its first lines are the command"
    assert all(needed.specifier.contains(one.version) for pin in pins for one in pin.specifier)


@pytest.mark.parametrize("name", [pin.name for pin in PINNED])
def test_dependencies_of_pinned_packages_are_pinned(name):
    try:
        wanted = list(map(Requirement, distribution(name).requires or ()))
    except PackageNotFoundError:
        pytest.skip("not installed here")
    pinned = {canonicalize_name(pin.name) for pin in PINNED}
    assert [
        str(needed)
        for needed in wanted
        if (needed.marker is None or needed.marker.evaluate({"extra": ""}))
        and canonicalize_name(needed.name) not in pinned
    ] == []


@pytest.mark.parametrize("word", ["--require-hashes", "--only-binary :all:"])
def test_an_image_contains_only_pinned_wheels(word):
    """Pinned wheels are downloaded in one step; later steps have no package index."""
    runs = [rest for stage in STAGES for rest in of(stage, "RUN") if "/bin/pip" in rest]
    assert [word in run for run in runs] == [True, *(False for _ in runs[1:])]
    (offline,) = of("wheels", "ENV")
    assert {"PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels"} <= set(offline.split())
