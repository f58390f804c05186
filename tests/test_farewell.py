"""The commands that a demonstration prints at its end can be copied as they stand."""

import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from testing.farewell import BEGIN, say_farewell


@pytest.fixture
def cluster(tmp_path):
    """A cluster whose folder and programs have long names with spaces; kubectl prints its words."""
    folder = tmp_path / "a folder" / ("x" * 100)
    folder.mkdir(parents=True)
    (folder / "kubectl").write_text('#!/bin/sh\necho "$KUBECONFIG: $*"\n')
    (folder / "kubectl").chmod(0o755)
    called = []
    return SimpleNamespace(
        binaries={"kubectl": folder / "kubectl"},
        kubeconfig=folder / "kubeconfig",
        called=called,
        kubectl=lambda *words: called.append(words),
    )


def test_a_shell_runs_them_as_they_were_printed(cluster):
    printed = io.StringIO()
    say_farewell(
        Console(file=printed, width=40),
        cluster,
        "demo-1",
        ["kubectl get pods -o jsonpath='{.a}'  # [all]", "command -v hami"],
        ["Logs: /tmp/log"],
    )
    first, _, *lines = printed.getvalue().splitlines()
    assert first == BEGIN
    block = lines[: lines.index("")]
    done = subprocess.run(
        ["sh", "-euc", "\n".join(block)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.splitlines() == [
        f"{cluster.kubeconfig}: get pods -o jsonpath={{.a}}",
        str(Path(sys.executable).with_name("hami")),
    ]
    assert cluster.called == [("config", "set-context", "--current", "--namespace=demo-1")]
