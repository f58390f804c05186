"""A kind cluster without an image registry: parts that need neither root nor Docker."""

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testing.binaries import BUILD_VARIABLE
from testing.cases import cases
from testing.eventually import eventually
from testing.kind_cluster import __main__ as main
from testing.kind_cluster.__main__ import NAME
from testing.kind_cluster.docker import RUNC, Docker, KindUnavailable, call
from testing.kind_cluster.images import COREDNS, HERE, KIND, KUBERNETES, ON_NODES, debian_mirrors
from testing.processes import is_alive
from testing.quickstart import ROOT

ALL = 0x1FFFFFFFFFF
HELD = ["CAP_CHOWN", "CAP_SYS_RESOURCE"]


def load_runc():
    loader = importlib.machinery.SourceFileLoader("bounded_runc", str(RUNC))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("bounded_runc", loader)
    )
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module", name="runc")
def runc_module():
    return load_runc()


@cases(
    "bound, missing",
    (ALL, set()),
    (ALL & ~(1 << 24), {"CAP_SYS_RESOURCE"}),
    (ALL & ~(1 << 0 | 1 << 40), {"CAP_CHOWN", "CAP_CHECKPOINT_RESTORE"}),
)
def test_capabilities_beyond_the_bounding_set_are_named(runc, bound, missing):
    assert runc.missing(f"Name:\tx\nCapBnd:\t{bound:016x}\nNoNewPrivs:\t0\n") == missing


@cases(
    "words, name",
    ("two words", ["--root", "/r", "create", "--bundle", "{}", "id"], "config.json"),
    ("one word", ["create", "--bundle={}", "id"], "config.json"),
    ("run", ["run", "-b", "{}", "id"], "config.json"),
    ("exec", ["exec", "--process", "{}/process", "id"], "process"),
    ("exec one word", ["exec", "--process={}/process", "id"], "process"),
)
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
    assert "image: registry.k8s.io/kube-proxy:VERSION" in text
    assert "would you kindly template this file" in text


@cases(
    "text, mirrors",
    (
        "deb822",
        "Types: deb\nURIs: https://a.example/debian\nSuites: bookworm\n",
        ["https://a.example/debian"],
    ),
    (
        "lines",
        (
            "# deb https://c.example x\ndeb https://a.example/debian bookworm main\ndeb [signed-by=/k arch=amd64] "
            "https://b.example x"
        ),
        ["https://a.example/debian", "https://b.example"],
    ),
    ("none", "", []),
)
def test_the_mirror_is_that_of_the_machine(text, mirrors):
    assert debian_mirrors(text) == mirrors


def test_a_command_that_fails_says_so():
    with pytest.raises(KindUnavailable, match=r"sh -c ended with 3:\nwhy"):
        call("sh", "-c", "echo why >&2; exit 3")


def test_a_docker_that_was_not_started_here_is_not_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:1")
    docker = Docker(tmp_path)
    docker.stop()
    assert docker.environment["DOCKER_HOST"] == "tcp://elsewhere:1"
    assert list(tmp_path.iterdir()) == []


# -- a start that is ended


SCRIPTS = {
    "go": """[ "$1" != env ] || {{ echo go{version}; exit; }}
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\necho registry.k8s.io/kube-proxy:v1 registry.k8s.io/pause:1\\n' >"$2"; chmod +x "$2"
""",
    "nice": 'exec "$@"',
    "ip": 'echo "ip $*" >>{log}',
    "dockerd": """for word in "$@"; do case $word in --pidfile=*) echo $$ >"${{word#*=}}";; esac; done
echo $$ >{pid}; exec sleep 1000""",
    "docker": '[ "$1" != version ] || exec test -e {folder}/cache/hami/kind/dockerd.pid',
    "debootstrap": """for root; do case $root in */root) break;; esac; done
mkdir -p $root/proc; mount -t proc proc $root/proc
touch {folder}/waits; exec sleep 1000""",
    "iptables": "true",
    "busybox": "true",
    "umount": 'echo "umount $*" >>{log}',
}


@pytest.fixture
def machine(tmp_path):
    """The environment of a machine whose Docker and Debian are shell scripts; its files, too."""
    if os.geteuid() != 0:
        pytest.skip("only root can start Docker")
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    names = {
        "version": "1.99.0",
        "log": tmp_path / "log",
        "pid": tmp_path / "pid",
        "folder": tmp_path,
    }
    for name, text in SCRIPTS.items():
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n" + text.format(**names) + "\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {
        name: text
        for name, text in os.environ.items()
        if name not in ("DOCKER_HOST", BUILD_VARIABLE)
    }
    yield environment | {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
    }
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(dockerd(tmp_path), signal.SIGKILL)


def dockerd(folder):
    """The process of the daemon that was started."""
    return int((folder / "pid").read_text())


def when_debian_is_made(machine, folder):
    """Returns a start of the cluster that makes the image of Debian."""
    process = subprocess.Popen(
        [sys.executable, "-m", "testing.kind_cluster", "up"],
        cwd=ROOT,
        env=machine,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    eventually(
        lambda: (folder / "waits").exists() or process.poll() is not None, "Debian is being made"
    )
    return process


@cases(
    "signals",
    ("SIGTERM", [signal.SIGTERM]),
    ("twice", [signal.SIGINT, signal.SIGTERM]),
    ("SIGHUP", [signal.SIGHUP]),
)
def test_a_start_that_is_ended_leaves_nothing(machine, tmp_path, signals):
    process = when_debian_is_made(machine, tmp_path)
    for number in signals:
        process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode in [128 + number for number in signals], output
    assert "nothing is left running" in output
    eventually(lambda: not is_alive(dockerd(tmp_path)), "dockerd has ended")
    assert "ip link del hami-e2e0" in (tmp_path / "log").read_text()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_a_docker_that_was_there_already_is_left_alone(machine, tmp_path):
    folder = tmp_path / "cache" / "hami" / "kind"
    folder.mkdir(parents=True)
    (folder / "dockerd.pid").write_text(f"{os.getpid()}")
    process = when_debian_is_made(machine, tmp_path)
    process.send_signal(signal.SIGTERM)
    assert "nothing is left running" in process.communicate(timeout=120)[0]
    assert not (tmp_path / "log").exists()


class Programs:
    """Programs of a cluster that are only called: *refused* ones fail, until a cluster is created."""

    def __init__(self, clusters, refused=()):
        self.clusters, self.refused, self.called = clusters, refused, []

    def __call__(self, program, *words, **_):
        name = " ".join([Path(program).name, *(word for word in words if word[0] != "-")][:3])
        self.called.append(name)
        if name == "kind create cluster":
            self.refused = ()
        if name in self.refused:
            raise KindUnavailable(f"{name} ended with 1")
        return self.clusters if name == "kind get clusters" else ""


MADE = ["kind create cluster", "kubectl wait nodes", "kubectl rollout status"]


@cases(
    "clusters, refused, called",
    ("there is none", "No kind clusters found.", (), MADE),
    (
        "there is one that runs",
        f"other {NAME}",
        (),
        ["kind export kubeconfig", "kubectl wait nodes", "kubectl rollout status"],
    ),
    (
        "its control plane was never made",
        NAME,
        ("kind export kubeconfig",),
        ["kind export kubeconfig", "kind delete cluster", *MADE],
    ),
    (
        "its roles were never made",
        NAME,
        ("kubectl wait nodes",),
        ["kind export kubeconfig", "kubectl wait nodes", "kind delete cluster", *MADE],
    ),
)
def test_a_cluster_that_is_left_half_made_is_made_anew(
    monkeypatch, tmp_path, clusters, refused, called
):
    programs = Programs(clusters, refused)
    monkeypatch.setattr(main, "call", programs)
    monkeypatch.setattr(
        main, "find_programs", lambda say: {"kind": Path("kind"), "kubectl": Path("kubectl")}
    )
    monkeypatch.setattr(main, "ensure_node_image", lambda *_: "image")
    main.create(Docker(tmp_path), tmp_path / "kubeconfig")
    assert programs.called == ["kind get clusters", *called]
