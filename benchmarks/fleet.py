"""A synthetic cluster: nodes with eight GPUs, pods that hold parts of them, and pods that request some."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testing.nodes import Gpu, fake_node, gpus, registered

__all__ = [
    "GPUS",
    "NAMESPACE",
    "asking_pod",
    "bound_pods",
    "filter_args",
    "node_name",
    "nodes",
    "review",
    "with_defaults",
]

Object = dict[str, Any]
GPUS = 8
NAMESPACE = "default"
UID = "@UID-------------------------------@"
"""Stands where each request has another uid; as long as one."""
MEMORY = "@MEM@"
"""Stands where each request may ask for another amount of memory."""


def node_name(number: int) -> str:
    return f"gpu-node-{number:05}"


def cards(number: int) -> tuple[Gpu, ...]:
    return registered(node_name(number), gpus(GPUS))


def asked() -> dict[str, str]:
    """Returns the annotation of a node that a scheduler has known for a while, whose plugin is v2.8 or later."""
    return {"hami.io/node-handshake": f"Requesting_{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"}


def nodes(count: int, start: int = 0) -> Iterator[Object]:
    """Returns node objects of a running cluster."""
    for number in range(start, start + count):
        node = fake_node(node_name(number), cards(number), annotations=asked())
        node["status"] |= {
            "addresses": [
                {
                    "type": "InternalIP",
                    "address": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
                },
                {"type": "Hostname", "address": node_name(number)},
            ],
            "conditions": [
                condition(kind, status)
                for kind, status in (
                    ("MemoryPressure", "False"),
                    ("DiskPressure", "False"),
                    ("PIDPressure", "False"),
                    ("Ready", "True"),
                )
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": f"boot-{number}",
                "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.8.0-79-generic",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.36.3",
                "machineID": f"{number:032x}",
                "operatingSystem": "linux",
                "osImage": "Ubuntu 24.04.3 LTS",
                "systemUUID": f"{number:032x}",
            },
        }
        yield node


def condition(kind: str, status: str) -> Object:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "type": kind,
        "status": status,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": f"Kubelet{kind}",
        "message": f"kubelet has said {status} of {kind}",
    }


def bound_pods(count: int, each: int, start: int = 0) -> Iterator[Object]:
    """Returns *each* pods for every node with allocated devices, within the capacity of each device."""
    chance = random.Random(start)
    now = int(datetime.now(UTC).timestamp())
    for number in range(start, start + count):
        for place in range(each):
            card = cards(number)[chance.randrange(GPUS)]
            yield bound_pod(
                f"booked-{number:05}-{place}", number, card.uuid, chance.randrange(1000, 8000), now
            )


def bound_pod(name: str, number: int, card: str, memory_mib: int, now: int) -> Object:
    node, share = node_name(number), f"{card},NVIDIA,{memory_mib},10:;"
    pod = asking_pod(name, memory_mib=memory_mib)
    pod["metadata"] |= {
        "annotations": {
            "hami.io/vgpu-node": node,
            "hami.io/vgpu-time": str(now),
            "hami.io/bind-phase": "success",
            "hami.io/bind-time": str(now),
            "hami.io/vgpu-devices-allocated": share,
            "hami.io/vgpu-devices-to-allocate": ";",
        },
        "labels": pod["metadata"]["labels"] | {"hami.io/vgpu-node": node},
    }
    pod["spec"]["nodeName"] = node
    return pod


def asking_pod(
    name: str, *, memory_mib: int | str = 3000, cores: int = 10, policy: str | None = None
) -> Object:
    """Returns a pod as a Deployment creates it: one GPU, some memory, some cores."""
    amounts = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": str(memory_mib),
        "nvidia.com/gpucores": str(cores),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app": "benchmark", "pod-template-hash": "6d5c7f9b8d"},
            "annotations": {"hami.io/node-scheduler-policy": policy} if policy else {},
        },
        "spec": {
            "schedulerName": "hami-scheduler",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/team/model-server:1.4.2",
                    "imagePullPolicy": "Always",
                    "command": ["python", "-m", "serve", "--port=8080"],
                    "env": [{"name": "MODEL", "value": "large"}, {"name": "WORKERS", "value": "4"}],
                    "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                    "resources": {
                        "limits": {"cpu": "1", "memory": "2Gi", **amounts},
                        "requests": {"cpu": "100m", "memory": "256Mi", **amounts},
                    },
                }
            ],
            "tolerations": [
                {
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                },
                {
                    "key": "node.kubernetes.io/unreachable",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                },
            ],
        },
    }


def with_defaults(pod: Object) -> Object:
    """Returns a pod with the defaults of the API server."""
    pod["metadata"] |= {
        "uid": UID,
        "resourceVersion": "4711",
        "generation": 1,
        "creationTimestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    pod["spec"] |= {
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "securityContext": {},
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "serviceAccountName": "default",
    }
    pod["spec"]["containers"][0] |= {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    pod["status"] = {"phase": "Pending", "qosClass": "Burstable"}
    return pod


def filter_args(names: list[str], *, policy: str | None = None) -> str:
    """Returns the body of ``/filter`` as kube-scheduler renders it, with placeholders ``UID`` and ``MEMORY``."""
    pod = with_defaults(asking_pod(f"pod-{UID}", memory_mib=MEMORY, policy=policy))
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":"))


def usual_pods_file(folder: Path) -> Path:
    """Returns a file in *folder* with 64 kinds of usual pods, as many as the scheduler learns."""
    kinds = [
        {
            "pods": 1 + place % 7,
            "vendor": "NVIDIA",
            "count": count,
            "cores": cores,
            "memoryMiB": memory_mib,
            "milliCPU": milli_cpu,
        }
        for place, (count, cores, memory_mib, milli_cpu) in enumerate(
            itertools.product((1, 2, 4, 8), (10, 25, 50, 100), (3000, 12000), (100, 4000))
        )
    ]
    file = folder / "usual-pods.json"
    file.write_text(json.dumps(kinds))
    return file


def review() -> str:
    """Returns the body of ``/webhook`` for a user's pod, with the placeholder ``UID``."""
    pod = with_defaults(asking_pod("model-server-6d5c7f9b8d-x7k2p"))
    del pod["metadata"]["uid"]
    pod["spec"]["schedulerName"] = "default-scheduler"
    gvk = {"group": "", "version": "v1"}
    request = {
        "uid": UID,
        "kind": gvk | {"kind": "Pod"},
        "resource": gvk | {"resource": "pods"},
        "namespace": NAMESPACE,
        "operation": "CREATE",
        "dryRun": False,
        "oldObject": None,
        "object": pod,
        "options": None,
        "userInfo": {
            "username": "system:serviceaccount:kube-system:replicaset-controller",
            "uid": "b1",
            "groups": ["system:serviceaccounts", "system:authenticated"],
        },
    }
    return json.dumps(
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request},
        separators=(",", ":"),
    )
