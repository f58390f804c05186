"""``hami dashboard`` as a process beside the local control plane."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from testing.cluster import MANIFESTS
from testing.kube import Kube
from testing.measured import own_address
from testing.pods import pod
from testing.processes import Program
from testing.scheduler import NAMESPACE, shipped_flags

PAGES = {
    "cards": "/",
    "pods": "/pods",
    "pending": "/pending",
    "health": "/health",
    "node": "/nodes/{node}",
    "card": "/cards/{node}/{uuid}",
    "pod": "/pods/{namespace}/{pod}",
    "waiting-pod": "/pods/{namespace}/{waiting}",
    "namespaces": "/namespaces",
    "namespace": "/namespaces/{namespace}",
    "usage": "/usage",
}
"""Addresses of pages. Those of pods are of one that is bound and of one that waits."""
COMPONENT = MANIFESTS.parent / "components" / "dashboard"


@contextlib.contextmanager
def dashboard(kubeconfig: Path, folder: Path, port: int, **flags: str) -> Iterator[Program]:
    """Runs ``hami dashboard`` on *port* of loopback with the flags of the component, changed by *flags*; does not wait
    for it."""
    given = (
        shipped_flags(f"{COMPONENT}/deployment.yaml", "dashboard")
        | {
            "bind_address": f"127.0.0.1:{port}",
            "device_config_file": str(MANIFESTS / "device-config.yaml"),
        }
        | flags
    )
    program = Program(
        "hami-dashboard",
        [
            sys.executable,
            "-m",
            "hami.cli",
            "dashboard",
            *(f"--{name}={value}" for name, value in given.items()),
        ],
        folder / f"hami-dashboard-{port}.log",
        env=os.environ | {"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": NAMESPACE},
    )
    program.start()
    try:
        yield program
    finally:
        program.stop()


def publish(kube: Kube, ports: Mapping[int, int]) -> None:
    """Makes the Service of the dashboard. *ports*: of this machine, by those of the Service. The API server only
    forwards to addresses of pods, so there is one with the address of this machine."""
    name = "hami-dashboard"
    kube.create(pod(name, node_name="nowhere"), NAMESPACE)
    address = {"podIP": own_address(), "podIPs": [{"ip": own_address()}], "phase": "Running"}
    kube.merge_patch("Pod", name, {"status": address}, NAMESPACE, subresource="status")
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {
                "ports": [
                    {"name": f"port-{port}", "port": port, "targetPort": target}
                    for port, target in ports.items()
                ]
            },
        },
        NAMESPACE,
    )
    target = {"kind": "Pod", "name": name, "namespace": NAMESPACE}
    kube.call(
        "POST",
        f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "ports": [
                {"name": f"port-{port}", "port": target, "protocol": "TCP"}
                for port, target in ports.items()
            ],
            "endpoints": [
                {
                    "addresses": [own_address()],
                    "conditions": {"ready": True},
                    "targetRef": target,
                }
            ],
        },
    )
