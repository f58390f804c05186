"""Where the end-to-end tests find the control plane's programs. Nothing is built here."""

import pytest

from e2e import binaries
from e2e.binaries import PROGRAMS, BinariesMissing, find


def programs(folder, *names):
    """Executables in *folder*; the API server says its version."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\necho Kubernetes v1.2.3\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch, tmp_path):
    """No programs on PATH, in the cache, or named by the environment; and no Go."""
    monkeypatch.delenv("HAMI_E2E_BIN", raising=False)
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
    cached = binaries.cache_folder()
    cached.parent.mkdir(parents=True)
    programs(cached, *PROGRAMS)
    found = find()
    assert found["kubectl"] == cached / "kubectl"
    assert found.kube_version == binaries.pinned_version("k8s.io/kubernetes")


def test_without_programs_and_without_go_it_says_what_to_do():
    with pytest.raises(BinariesMissing, match="there is no 'go' on PATH. Install Go"):
        find()
