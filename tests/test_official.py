"""Official releases of programs, from a server of files: only what has its checksum is taken."""

import hashlib
import http.server
import io
import tarfile
import threading

import pytest

from testing import binaries, official
from testing.binaries import DEFAULT, fetch_missing, minors
from testing.cases import cases
from testing.official import fetch, release_of

PROGRAM = b"#!/bin/sh\necho official\n"
OTHER = hashlib.sha256(b"other").hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves *files* by path."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.files, self.asked = {}, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        body = self.server.files.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    with Server() as made:
        monkeypatch.setattr(official, "KUBERNETES", f"{made.url}/release")
        monkeypatch.setattr(official, "ETCD", f"{made.url}/etcd")
        monkeypatch.setattr(official, "unreachable", set())
        monkeypatch.setattr(official.platform, "machine", lambda: "x86_64")
        yield made
        made.shutdown()


def archive(version, name="etcd"):
    """An archive of etcd as on GitHub."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        info = tarfile.TarInfo(f"etcd-{version}-linux-amd64/{name}")
        info.size = len(PROGRAM)
        packed.addfile(info, io.BytesIO(PROGRAM))
    return buffer.getvalue()


def publish(server, path, body, sums=None):
    """Serves *body* with its checksum, or with the text *sums*."""
    server.files[path] = body
    name = path.rpartition("/")[2]
    digest = hashlib.sha256(body).hexdigest()
    if name.endswith(".tar.gz"):
        sums = sums or f"{OTHER}  {name}.other\n{digest}  {name}\n"
        server.files[f"{path.rpartition('/')[0]}/SHA256SUMS"] = sums.encode()
    else:
        server.files[f"{path}.sha256"] = (sums or digest).encode()


def kubectl(server, **fields):
    publish(server, "/release/v1.2.3/bin/linux/amd64/kubectl", PROGRAM, **fields)
    return release_of("kubectl", "v1.2.3")


def etcd(server, body, **fields):
    publish(server, "/etcd/v3.1.0/etcd-v3.1.0-linux-amd64.tar.gz", body, **fields)
    return release_of("etcd", "v3.1.0")


def test_a_program_with_its_checksum_is_taken(server, tmp_path):
    said = []
    program = fetch(kubectl(server), tmp_path, said.append)
    assert program.read_bytes() == PROGRAM
    assert program.stat().st_mode & 0o777 == 0o755
    assert said == []


def test_etcd_comes_out_of_its_archive(server, tmp_path):
    program = fetch(etcd(server, archive("v3.1.0")), tmp_path, pytest.fail)
    assert program.read_bytes() == PROGRAM


@cases(
    "made, said",
    ("another checksum", lambda server: kubectl(server, sums=OTHER), "published is " + OTHER),
    ("no checksum", lambda server: kubectl(server, sums="<html>sign in</html>"), "no SHA-256 of"),
    ("of another file", lambda server: kubectl(server, sums=f"{OTHER}  kubelet"), "no SHA-256 of"),
    (
        "no release",
        lambda server: release_of("kubectl", "v0"),
        "v0/bin/linux/amd64/kubectl.sha256: 404",
    ),
    ("no archive", lambda server: etcd(server, b"plain"), "not a gzip file"),
    ("no member", lambda server: etcd(server, archive("v3.1.0", "no")), "has no file etcd-v3.1.0"),
)
def test_what_cannot_be_trusted_or_read_is_compiled(server, tmp_path, made, said):
    lines = []
    assert fetch(made(server), tmp_path, lines.append) is None
    assert said in lines[0]
    assert "compiled instead" in lines[0]


def test_a_file_that_is_too_large_is_not_taken(server, tmp_path, monkeypatch):
    monkeypatch.setattr(official, "MOST_BYTES", len(PROGRAM) - 1)
    lines = []
    assert fetch(kubectl(server), tmp_path, lines.append) is None
    assert "is larger than" in lines[0]


def test_a_host_that_cannot_be_reached_is_asked_once(server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(binaries.BUILD_VARIABLE, raising=False)
    monkeypatch.setattr(official, "KUBERNETES", "http://127.0.0.1:1")
    lines = []
    folder = DEFAULT.cache_folder()
    fetch_missing(DEFAULT, [folder / "kubectl", folder / "kubelet"], lines.append)
    assert len(lines) == 2
    assert "kubectl" in lines[0]
    assert "127.0.0.1:1: Connection refused" in lines[1]


@cases(
    "program, machine, system",
    ("kwok", "x86_64", "Linux"),
    ("kubectl", "riscv64", "Linux"),
    ("kubectl", "x86_64", "Darwin"),
)
def test_what_has_no_release(monkeypatch, program, machine, system):
    monkeypatch.setattr(official.platform, "machine", lambda: machine)
    monkeypatch.setattr(official.platform, "system", lambda: system)
    assert release_of(program, "v1.2.3") is None


def test_the_cache_gets_releases_of_the_pinned_versions(server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(binaries.BUILD_VARIABLE, raising=False)
    for pins in (DEFAULT, minors()["1.34"]):
        version = pins.kube_version
        publish(server, f"/release/{version}/bin/linux/amd64/kubectl", PROGRAM)
        target = pins.cache_folder() / "kubectl"
        fetch_missing(pins, [target], lambda line: None)
        assert target.read_bytes() == PROGRAM
        assert [path.name for path in target.parent.parent.iterdir() if path.is_dir()] == ["bin"]
    version = DEFAULT.version_of("etcd")
    assert version.startswith("v3.")
    publish(server, f"/etcd/{version}/etcd-{version}-linux-amd64.tar.gz", archive(version))
    fetch_missing(DEFAULT, [DEFAULT.cache_folder() / "etcd"], lambda line: None)
    assert (DEFAULT.cache_folder() / "etcd").read_bytes() == PROGRAM


@cases(
    "pins, asked",
    ("always", DEFAULT, "always"),
    ("own", binaries.ORACLE, ""),
    ("other", binaries.HELM, ""),
)
def test_nothing_is_fetched_of_what_is_compiled(server, tmp_path, monkeypatch, pins, asked):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(binaries.BUILD_VARIABLE, asked)
    fetch_missing(pins, [pins.cache_folder() / next(iter(pins.packages()))], pytest.fail)
    assert server.asked == []
