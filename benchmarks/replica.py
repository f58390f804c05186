"""``hami scheduler`` as a process, with the API server of a kubeconfig."""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from benchmarks import fleet, load
from benchmarks.processes import Run
from testing.cluster import MANIFESTS
from testing.eventually import eventually
from testing.processes import Program, free_port
from testing.scheduler import Certificates

__all__ = ["PLACED", "REFUSED", "Replica", "stub_api"]

START_SECONDS = 120.0
PLACED, REFUSED = '"NodeNames":["', '"NodeNames":null'
"""Texts in an answer to ``/filter``: of a pod that has a node, and of one that no node fits."""


class Replica:
    """A ``hami scheduler`` that acts as leader. Use ``Replica.started``."""

    def __init__(
        self,
        run: Run,
        kubeconfig: Path,
        certificates: Certificates | None,
        flags: Mapping[str, str],
    ) -> None:
        self.run = run
        self.port = free_port()
        self.webhook_port = self.port if certificates is not None else free_port()
        self.certificates = certificates
        # without TLS as shipped: verbs on an address on loopback, which trusts its clients, the webhook for anybody
        addresses = (
            {"http_bind": f"127.0.0.1:{self.port}"}
            if certificates is not None
            else {
                "http_bind": f"0.0.0.0:{self.webhook_port}",
                "extender-bind-address": f"127.0.0.1:{self.port}",
            }
        )
        given = addresses | {
            "metrics-bind-address": f"127.0.0.1:{free_port()}",
            "scheduler-name": "hami-scheduler",
            "leader-elect": "false",
            "node-scheduler-policy": "binpack",
            "gpu-scheduler-policy": "spread",
            "force-overwrite-default-scheduler": "true",
            "device-config-file": str(own_copy(run, MANIFESTS / "device-config.yaml")),
        }
        if certificates is not None:
            given |= {
                "cert_file": str(certificates.cert_file),
                "key_file": str(certificates.key_file),
            }
        words = [f"--{name}={value}" for name, value in {**given, **flags}.items()]
        environment = os.environ | {
            "KUBECONFIG": str(kubeconfig),
            "POD_NAME": "",
            "POD_NAMESPACE": "kube-system",
        }
        self.program = Program(
            "hami-scheduler",
            [sys.executable, "-m", "hami.cli", "scheduler", *words],
            run.folder / f"hami-{self.port}.log",
            env=environment,
        )

    @classmethod
    @contextlib.contextmanager
    def started(
        cls,
        run: Run,
        kubeconfig: Path,
        certificates: Certificates | None = None,
        *,
        flags: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[Replica]:
        """Yields a started replica with more *flags*, without waiting for it."""
        replica = cls(run, kubeconfig, certificates, flags)
        replica.program.start()
        try:
            yield replica
        finally:
            if replica.program.running():
                replica.program.stop()

    @property
    def pid(self) -> int:
        assert self.program.pid is not None
        return self.program.pid

    def first_placement(self, names: list[str]) -> None:
        """Requests placements until one succeeds, which is when the replica is ready."""
        until_answered(
            lambda: self.post("/filter", fleet.filter_args(names)), PLACED.encode(), self.program
        )

    def wait_healthy(self) -> None:
        until_answered(lambda: self.post("/healthz", ""), b"ok", self.program)

    def post(self, path: str, body: str) -> bytes:
        """Returns a response, or nothing while nobody listens; without *body* it sends a GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if self.certificates is not None:
            context = ssl.create_default_context(cafile=str(self.certificates.ca_file))
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=60, context=context
            )
        try:
            filled = body.replace(fleet.UID, str(uuid.uuid4())).replace(fleet.MEMORY, "3000")
            connection.request(
                "POST" if body else "GET",
                path,
                filled or None,
                {"Content-Type": "application/json"},
            )
            return connection.getresponse().read()
        except (ConnectionRefusedError, ConnectionResetError):
            return b""
        finally:
            connection.close()

    def load(self, path: str, expect: str, **more: Any) -> dict[str, Any]:
        """Returns the results of a load on *path* (`benchmarks.load.job`)."""
        ca = str(self.certificates.ca_file) if self.certificates is not None else None
        port = self.webhook_port if path == "/webhook" else self.port
        job = load.job(port=port, path=path, expect=expect, ca=ca, uid=fleet.UID, **more)
        result = self.run.ask("load", job)
        if result["surprises"]:
            self.run.say(
                f"    {result['surprises']} of {len(result['latencies'])} answers were not as expected: "
                f"{result['surprise']}"
            )
        return result


def until_answered(ask: Any, expect: bytes, program: Program) -> None:
    answer = b""

    def expected() -> bool:
        nonlocal answer
        if not program.running():
            raise RuntimeError(f"hami scheduler has ended ({program.exit_code}):\n{program.tail()}")
        answer = ask() or answer
        return expect in answer

    eventually(
        expected,
        lambda: f"ready: {answer[-1000:]!r}\n{program.tail()}",
        timeout=START_SECONDS,
        interval=0.01,
    )


def own_copy(run: Run, path: Path) -> Path:
    """Copies a file into the directory of the run, which makes the process that reads it a part of the run."""
    copy = run.folder / path.name
    copy.write_bytes(path.read_bytes())
    return copy


@contextlib.contextmanager
def stub_api(run: Run, nodes: int, pods_per_node: int = 8) -> Iterator[tuple[Path, int, Program]]:
    """Yields a kubeconfig, the port and the process of a stub API server with *nodes* nodes."""
    port = free_port()
    program = Program(
        "stub-api",
        [
            sys.executable,
            "-m",
            "benchmarks.stub_api",
            f"{run.folder}/stub",
            f"--nodes={nodes}",
            f"--pods-per-node={pods_per_node}",
            f"--port={port}",
        ],
        run.folder / f"stub-{port}.log",
    ).start()
    try:
        eventually(
            lambda: "ready" in program.tail() or not program.running(),
            lambda: f"the stub API server is ready:\n{program.tail()}",
            timeout=START_SECONDS,
        )
        if not program.running():
            raise RuntimeError(f"the stub API server has ended:\n{program.tail()}")
        kubeconfig = run.folder / f"stub-{port}.kubeconfig"
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "stub",
                    "clusters": [
                        {"name": "stub", "cluster": {"server": f"http://127.0.0.1:{port}"}}
                    ],
                    "users": [{"name": "stub", "user": {}}],
                    "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
                }
            )
        )
        yield kubeconfig, port, program
    finally:
        if program.running():
            program.kill()
