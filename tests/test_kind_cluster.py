"""A kind cluster without an image registry: parts that need neither root nor Docker."""

import importlib.machinery
import importlib.util
import json

import pytest

from e2e.kind_cluster.docker import RUNC, Docker, KindUnavailable, call
from e2e.kind_cluster.images import COREDNS, HERE, KIND, KUBERNETES, ON_NODES, debian_mirrors

ALL = 0x1FFFFFFFFFF
HELD = ["CAP_CHOWN", "CAP_SYS_RESOURCE"]


def load_runc():
    loader = importlib.machinery.SourceFileLoader("bounded_runc", str(RUNC))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bounded_runc", loader))
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module", name="runc")
def runc_module():
    return load_runc()


@pytest.mark.parametrize("bound, missing", [
    (ALL, set()), (ALL & ~(1 << 24), {"CAP_SYS_RESOURCE"}), (ALL & ~(1 << 0 | 1 << 40), {
        "CAP_CHOWN", "CAP_CHECKPOINT_RESTORE"})])
def test_capabilities_beyond_the_bounding_set_are_named(runc, bound, missing):
    assert runc.missing(f"Name:\tx\nCapBnd:\t{bound:016x}\nNoNewPrivs:\t0\n") == missing


@pytest.mark.parametrize("words, name", [
    (["--root", "/r", "create", "--bundle", "{}", "id"], "config.json"),
    (["create", "--bundle={}", "id"], "config.json"), (["run", "-b", "{}", "id"], "config.json"),
    (["exec", "--process", "{}/process", "id"], "process"), (["exec", "--process={}/process", "id"], "process"),
], ids=["two words", "one word", "run", "exec", "exec one word"])
def test_they_are_not_asked_for(runc, tmp_path, words, name):
    process = {"args": ["sh"], "capabilities": {"bounding": HELD, "ambient": None}}
    content = process if name == "process" else {"ociVersion": "1", "process": process}
    (tmp_path / name).write_text(json.dumps(content))
    runc.reduce([word.format(tmp_path) for word in words], {"CAP_SYS_RESOURCE"})
    process["capabilities"] = {"bounding": ["CAP_CHOWN"], "ambient": []}
    assert json.loads((tmp_path / name).read_text()) == content


@pytest.mark.parametrize("words", [["kill", "id"], ["exec", "id", "sh"], ["state", "run-1"]])
def test_other_calls_are_passed_on(runc, tmp_path, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runc.reduce(words, {"CAP_CHOWN"})


def test_all_programs_of_a_node_are_pinned():
    images = {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "etcd"}
    assert set(KUBERNETES.packages()) == images | set(ON_NODES)
    assert (list(KIND.packages()), list(COREDNS.packages())) == (["kind"], ["coredns"])
    assert all(pins.version.startswith("v") for pins in (KUBERNETES, KIND, COREDNS))


def test_the_image_of_the_network_is_that_of_kube_proxy():
    text = (HERE / "node" / "default-cni.yaml").read_text()
    assert "image: registry.k8s.io/kube-proxy:VERSION" in text and "would you kindly template this file" in text


@pytest.mark.parametrize("text, mirrors", [
    ("Types: deb\nURIs: https://a.example/debian\nSuites: bookworm\n", ["https://a.example/debian"]),
    ("# deb https://c.example x\ndeb https://a.example/debian bookworm main\ndeb [signed-by=/k arch=amd64] "
     "https://b.example x", ["https://a.example/debian", "https://b.example"]), ("", []),
], ids=["deb822", "lines", "none"])
def test_the_mirror_is_that_of_the_machine(text, mirrors):
    assert debian_mirrors(text) == mirrors


def test_a_command_that_fails_says_so():
    with pytest.raises(KindUnavailable, match=r"sh -c ended with 3:\nwhy"):
        call("sh", "-c", "echo why >&2; exit 3")


def test_a_docker_that_was_not_started_here_is_not_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:1")
    docker = Docker(tmp_path)
    docker.stop()
    assert docker.environment["DOCKER_HOST"] == "tcp://elsewhere:1" and list(tmp_path.iterdir()) == []
