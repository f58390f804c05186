"""What people call with a file or an argument that cannot be used ends with a line that names it, and no traceback. The
commands of hami are in test_cli.py."""

import importlib
import re
import sys

import pytest
from click.testing import CliRunner

from hami.cli import main
from testing.cases import cases
from tools import krew, quick, sbom

param = pytest.param
BILL = '{"components": [{"bom-ref": 5}]}'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with files of each kind."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "number").write_text("5")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "bill").write_text(BILL)
    (tmp_path / "kubectl-hami-linux.tar.gz").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@cases(
    "command, said",
    ("quickstart", "testing.quickstart", "the following arguments are required: PAGE"),
    ("quickstart of no file", "testing.quickstart none", "PAGE: none: No such file or directory"),
    ("quickstart of a folder", "testing.quickstart folder", "PAGE: folder: Is a directory"),
    (
        "quickstart of no text",
        "testing.quickstart binary",
        "PAGE: binary: not UTF-8 text: invalid start byte",
    ),
    (
        "quickstart without commands",
        "testing.quickstart text",
        "text: there is no block of commands",
    ),
    (
        "agent without a file",
        "testing.agent --kubeconfig=none",
        "no API server to talk to: kubeconfig none: ",
    ),
    (
        "agent of no mapping",
        "testing.agent --kubeconfig=number",
        "kubeconfig number: expected a mapping: ",
    ),
    ("reports into a file", "testing.compatibility --reports=text", "--reports: text: File exists"),
    (
        "unknown minor",
        "testing.compatibility --minors=9.9",
        "--minors: there is no 9.9; there are ",
    ),
    (
        "results of a card into a file",
        "e2e.gpu.__main__ --out=text/x",
        "--out: text/x: Not a directory",
    ),
    (
        "no library",
        "e2e.gpu.__main__ --pack --hami-core=none",
        "--hami-core: there is no file none",
    ),
    (
        "a library that is not packed",
        "e2e.gpu.__main__ --hami-core=none",
        "--hami-core needs --pack",
    ),
    ("unknown step", "e2e.gpu.__main__ --only=z9", "no such step: z9"),
    ("unknown group", "benchmarks.__main__ none", "unknown groups none; valid: "),
    (
        "no nodes",
        "benchmarks.__main__ --nodes 0",
        "--nodes: expected a whole number, 1 or more: '0'",
    ),
    (
        "no int",
        "benchmarks.__main__ --rounds x",
        "--rounds: expected a whole number, 1 or more: 'x'",
    ),
    (
        "results into a folder",
        "benchmarks.__main__ --json folder",
        "--json: folder: Is a directory",
    ),
    ("results below a file", "benchmarks.__main__ --json text/x", "--json: text: File exists"),
)
def test_an_argument_that_cannot_be_used_is_named(folder, monkeypatch, capsys, command, said):
    module, *words = command.split()
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main()
    last = (capsys.readouterr().err or str(ended.value)).splitlines()[-1]
    assert ended.value.code != 0
    assert said in last


def test_a_cache_that_cannot_be_written_is_named(folder, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "text"))
    monkeypatch.setattr(sys, "argv", ["testing.binaries"])
    monkeypatch.setenv("PATH", str(folder))
    assert importlib.import_module("testing.binaries").main() == 1
    assert re.search(r"/text/.*: Not a directory$", capsys.readouterr().err)


SYSTEM = ["--dpkg-status=number", "--os-release=number"]


@cases(
    "command, words, said",
    (
        "repository",
        krew.main,
        ["--repository=x", "kubectl-hami-linux.tar.gz"],
        "--repository: expected OWNER/NAME: 'x'",
    ),
    (
        "no archive",
        krew.main,
        ["--repository=a/b", "text"],
        "text: expected a file called kubectl-hami-OS-ARCHITECTURE.tar.gz",
    ),
    (
        "archive of no architecture",
        krew.main,
        ["--repository=a/b", "kubectl-hami-linux.tar.gz"],
        "kubectl-hami-linux.tar.gz: expected a file",
    ),
    (
        "no distribution",
        sbom.main,
        ["--check=text", *SYSTEM],
        "number: there is no ID of a distribution",
    ),
    (
        "no limiter",
        sbom.main,
        ["x", "--limiter=folder"],
        "folder/libvgpu.so: No such file or directory",
    ),
    (
        "no commit",
        quick.main,
        ["--since=none-such"],
        "git diff --name-only none-such --: fatal: bad revision",
    ),
)
def test_what_a_tool_cannot_use_is_one_line(folder, command, words, said):
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert said in done.output
    assert len(done.output.splitlines()) == 1


@cases(
    "content, said",
    ("", "bill: not JSON: "),
    ("[]", "bill: components: expected a list: 'None'"),
    ('{"components": {}}', "bill: components: expected a list: '{}'"),
    (BILL, "bill: components[0].bom-ref: expected a text: "),
)
def test_a_bill_of_materials_that_is_none_is_one_line(folder, content, said):
    (folder / "bill").write_text(content)
    (folder / "os-release").write_text("ID=debian\n")
    (folder / "status").write_text("")
    done = CliRunner().invoke(
        sbom.main, ["--check=bill", "--dpkg-status=status", "--os-release=os-release"]
    )
    assert done.exit_code == 1
    assert said in done.output
    assert len(done.output.splitlines()) == 1


def test_an_output_that_takes_nothing_is_one_line(monkeypatch):
    """Such as a file on a disk that is full."""

    class Full:
        encoding, errors = "utf-8", "strict"

        def write(self, text):
            raise OSError(28, "No space left on device")

        def flush(self):
            pass

    runner = CliRunner()
    with runner.isolation() as (_, errors, _):
        monkeypatch.setattr(sys, "stdout", Full())
        with pytest.raises(SystemExit) as ended:
            main(["version"])
        assert (ended.value.code, errors.getvalue()) == (1, b"error: No space left on device\n")
