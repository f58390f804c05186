"""Containers that print their devices and limits, and a parser of their output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from testing.pods import container, pod
from testing.sandbox import Sandbox

__all__ = ["END", "Seen", "limits", "script", "seen", "shower", "showing"]

Object = dict[str, Any]
END = "that is all"


class Printing(Protocol):
    """A node whose containers' output can be read."""

    def output(self, pod: Object, container: str = "main", *, until: str = "") -> str: ...


@dataclass(frozen=True, slots=True)
class Seen:
    """The view of a container. *mounts*: path in the container → path on the node, and whether it is writable.
    *library*: what can be printed of the first 20 bytes of the limiter."""

    env: dict[str, str]
    mounts: dict[str, tuple[str, bool]]
    library: str

    @classmethod
    def of(cls, text: str) -> Seen:
        env, mounts, library = text.partition(END)[0].split("--\n")
        found = {}
        for line in mounts.splitlines():
            _, _, _, root, path, options, *_ = line.split()
            found[path] = (root.rpartition("/root")[2], "rw" in options.split(","))
        return cls(dict(line.split("=", 1) for line in env.splitlines()), found, library)

    @property
    def limit(self) -> tuple[str, str, str]:
        """Device, memory and cores of a container with one device."""
        return (
            self.env["NVIDIA_VISIBLE_DEVICES"],
            self.env["CUDA_DEVICE_MEMORY_LIMIT_0"],
            self.env["CUDA_DEVICE_SM_LIMIT"],
        )


def script(hook: str) -> str:
    """Returns shell commands that print it. *hook*: the host directory above ``vgpu``."""
    library = f"head -c 20 {hook}/vgpu/libvgpu.so 2>/dev/null | tr -cd ' -~\\n'"
    return f"env; echo --; cat /proc/self/mountinfo; echo --; {library}; echo {END}; "


def showing(hook: str, name: str = "main", then: str = "sleep inf", **asked: int | str) -> Object:
    """Returns a container that prints its view and keeps running."""
    return container(name, **asked) | {"command": ["sh", "-c", script(hook) + then]}  # type: ignore[arg-type]


def shower(hook: str, name: str, **asked: int | str) -> Object:
    """Returns a pod with one such container."""
    return pod(name, containers=[showing(hook, **asked)], scheduler="hami-scheduler")


def seen(sandbox: Sandbox, node: Printing, name: str, container: str = "main") -> Seen:
    """Returns the view that *container* of the pod *name* has printed."""
    return Seen.of(node.output(sandbox.pod(name), container, until=END))


def limits(sandbox: Sandbox, node: Printing, *names: str) -> list[tuple[str, str]]:
    """Returns memory and cores of the pods *names*, as their containers see them."""
    return [seen(sandbox, node, name).limit[1:] for name in names]
