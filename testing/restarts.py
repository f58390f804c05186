"""Containers on a real node that are held before their start, or killed."""

from __future__ import annotations

import re
from typing import Any

from testing.device_plugin import HOOK
from testing.eventually import PATIENCE_S, eventually
from testing.pods import init, pod
from testing.realnode import RealNode
from testing.sandbox import Sandbox
from testing.shown import END, showing

__all__ = ["held", "holding", "kill_container", "release", "restarted", "views"]

Object = dict[str, Any]


def held(name: str, **asked: int | str) -> Object:
    """Returns a pod whose first container waits for `release`; the second one has devices."""
    waiting = init("hold") | {
        "command": ["sh", "-c", "until [ -e /go ]; do sleep 0.1; done; sleep 0.5"]
    }
    return pod(name, inits=[waiting], containers=[showing(HOOK, gpu=1, **asked)])


def holding(sandbox: Sandbox, name: str) -> str:
    """Waits until the pod is held; returns the identity of the waiting container."""

    def found(pods: dict[str, Object]) -> str | None:
        (status,) = pods[name]["status"].get("initContainerStatuses") or [{}]
        return status.get("containerID") if "running" in status.get("state", {}) else None

    return str(sandbox.kube.wait("Pod", found, sandbox.namespace, what=f"{name} is held"))


def release(sandbox: Sandbox, real: RealNode, name: str) -> None:
    real.run_in(holding(sandbox, name), "touch", "/go")


def kill_container(sandbox: Sandbox, real: RealNode, name: str) -> int:
    """Kills the only app container of a running pod after it has printed its view; returns its earlier restarts."""
    (status,) = sandbox.pod(name)["status"]["containerStatuses"]
    views(sandbox, real, name, status["restartCount"] + 1)
    real.ctr("tasks", "kill", "--signal", "SIGKILL", status["containerID"].rpartition("/")[2])
    return int(status["restartCount"])


def restarted(sandbox: Sandbox, name: str, before: int, timeout: float = PATIENCE_S) -> None:
    """Waits until the only app container runs again."""

    def runs(pods: dict[str, Object]) -> bool:
        (status,) = pods[name]["status"].get("containerStatuses") or [{"restartCount": 0}]
        return status["restartCount"] > before and "running" in status["state"]

    sandbox.kube.wait(
        "Pod", runs, sandbox.namespace, timeout=timeout, what=f"the container of {name} runs again"
    )


def views(sandbox: Sandbox, real: RealNode, name: str, runs: int) -> list[str]:
    """Returns the memory limits that all *runs* of a container have seen."""
    item = sandbox.pod(name)
    eventually(
        lambda: real.output(item).count(END) >= runs,
        lambda: f"{name} has printed {runs} times; its output is {real.output(item)!r}",
    )
    return re.findall(r"^CUDA_DEVICE_MEMORY_LIMIT_0=(.*)$", real.output(item), re.MULTILINE)
