"""Where the end-to-end tests find the control plane's programs. Nothing is built here."""

import pytest

from e2e.binaries import DEFAULT, MINOR_VARIABLE, PROGRAMS, BinariesMissing, Pins, find, find_one, minor_of, minors

OTHERS = {minor: pins for minor, pins in minors().items() if pins != DEFAULT}
KUBERNETES = tuple(name for name in PROGRAMS if name.startswith("kube"))


def programs(folder, *names, version="v1.2.3"):
    """Executables in *folder*; the API server says its version."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch, tmp_path):
    """No programs on PATH, in the cache, or named by the environment; and no Go."""
    monkeypatch.delenv("HAMI_E2E_BIN", raising=False)
    monkeypatch.delenv(MINOR_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("kubelet", [False, True])
def test_programs_that_are_all_on_path_are_taken_from_there(monkeypatch, tmp_path, kubelet):
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", *PROGRAMS, "kubelet")))
    found = find(kubelet=kubelet)
    assert set(found.paths) == {*PROGRAMS, *(["kubelet"] if kubelet else [])}
    assert found["etcd"] == tmp_path / "bin" / "etcd" and found.kube_version == "v1.2.3"


def test_the_folder_that_is_named_comes_before_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", *PROGRAMS)))
    monkeypatch.setenv("HAMI_E2E_BIN", str(programs(tmp_path / "named", *PROGRAMS)))
    assert find()["kwok"] == tmp_path / "named" / "kwok"


def test_what_the_named_folder_lacks_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("HAMI_E2E_BIN", str(programs(tmp_path / "named", *PROGRAMS[1:])))
    with pytest.raises(BinariesMissing, match=f"lacks {PROGRAMS[0]}$"):
        find()


def test_programs_of_which_one_is_missing_are_those_of_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", *PROGRAMS[1:])))
    cached = programs(DEFAULT.cache_folder(), *PROGRAMS)
    found = find()
    assert found["kubectl"] == cached / "kubectl"
    assert found.kube_version == DEFAULT.kube_version


def test_without_programs_and_without_go_it_says_what_to_do():
    with pytest.raises(BinariesMissing, match="there is no 'go' on PATH. Install Go"):
        find()


@pytest.mark.parametrize("where", ["named", "path", "cache"])
def test_one_program_is_found_without_the_others(monkeypatch, tmp_path, where):
    folders = {name: programs(folder, "kwok") for name, folder in (
        ("cache", DEFAULT.cache_folder()), ("path", tmp_path / "bin"), ("named", tmp_path / "named"))}
    if where != "cache":
        monkeypatch.setenv("PATH", str(folders["path"]))
    if where == "named":
        monkeypatch.setenv("HAMI_E2E_BIN", str(folders["named"]))
    assert find_one("kwok") == folders[where] / "kwok"


def test_one_program_that_is_nowhere_wants_go_for_it_alone():
    with pytest.raises(BinariesMissing, match="folder with kwok[.]$"):
        find_one("kwok")


@pytest.mark.parametrize("minor", OTHERS)
def test_a_minor_that_is_asked_for_brings_its_own_programs_and_takes_the_rest_from_the_default(monkeypatch, minor):
    monkeypatch.setenv(MINOR_VARIABLE, minor)
    rest = programs(DEFAULT.cache_folder(), *PROGRAMS)
    own = programs(OTHERS[minor].cache_folder(), *KUBERNETES)
    found = find()
    assert found.paths == {name: (own if name in KUBERNETES else rest) / name for name in PROGRAMS}
    assert minor_of(found.kube_version) == minor


def test_the_default_minor_may_be_asked_for(monkeypatch):
    monkeypatch.setenv(MINOR_VARIABLE, minor_of(DEFAULT.kube_version))
    cached = programs(DEFAULT.cache_folder(), *PROGRAMS)
    assert set(find().paths.values()) == {cached / name for name in PROGRAMS}


@pytest.mark.parametrize("minor", ["1.12", "1", "v1.36", "1.36.3"])
def test_a_minor_that_is_not_there_is_named_with_those_that_are(monkeypatch, minor):
    monkeypatch.setenv(MINOR_VARIABLE, minor)
    with pytest.raises(BinariesMissing) as error:
        find()
    assert f"{MINOR_VARIABLE}={minor}: " in str(error.value) and ", ".join(minors()) in str(error.value)


def test_programs_on_path_of_another_minor_are_passed_by(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", *PROGRAMS)))
    monkeypatch.setenv(MINOR_VARIABLE, "1.2")
    assert find()["etcd"] == tmp_path / "bin" / "etcd"
    monkeypatch.setenv(MINOR_VARIABLE, minor_of(DEFAULT.kube_version))
    cached = programs(DEFAULT.cache_folder(), *PROGRAMS)
    assert find()["etcd"] == cached / "etcd"


def test_a_named_folder_with_another_minor_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("HAMI_E2E_BIN", str(programs(tmp_path / "named", *PROGRAMS)))
    monkeypatch.setenv(MINOR_VARIABLE, "1.2")
    assert find().kube_version == "v1.2.3"
    monkeypatch.setenv(MINOR_VARIABLE, "1.36")
    with pytest.raises(BinariesMissing, match="has Kubernetes v1.2.3, and HAMI_E2E_KUBERNETES asks for 1.36$"):
        find()


@pytest.mark.parametrize("minor", OTHERS)
def test_a_minors_folder_is_called_as_what_it_pins_and_has_all_of_kubernetes(minor):
    assert OTHERS[minor].folder.name == f"v{minor}"
    assert set(OTHERS[minor].packages()) == {*KUBERNETES, "kubelet"}


def test_minors_follow_each_other_and_the_default_is_the_newest():
    numbers = [int(minor.removeprefix("1.")) for minor in minors()]
    assert numbers == list(range(numbers[0], numbers[0] - len(numbers), -1))
    assert minors()[f"1.{numbers[0]}"] == DEFAULT


@pytest.mark.parametrize("minor", minors())
def test_kubernetes_staging_modules_are_of_its_own_version(minor):
    """Two patches of one minor in a build would be a program that nobody ships."""
    text = (minors()[minor].folder / "go.mod").read_text()
    wanted = minors()[minor].kube_version.replace("v1.", "v0.", 1)
    replaced = [line.split() for line in text.splitlines() if " => " in line]
    assert len(replaced) > 25 and all(words == [words[0], "=>", words[0], wanted] for words in replaced)


def test_a_go_mod_that_does_not_pin_kubernetes_is_named(tmp_path):
    (tmp_path / "go.mod").write_text("module a\n")
    with pytest.raises(BinariesMissing, match=f"{tmp_path}/go.mod does not require k8s.io/kubernetes"):
        Pins(tmp_path).kube_version
