"""Files that containers may write in memory: what the component `region-mount` mounts on a real kubelet.

Its init container runs in a pod of the test. Its program is that of this machine, whose files it sees.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hami
from hami.codec.documents import parse_own_yaml
from hami.node.region_layout import COMPUTE_SIZE, REGION_SIZE
from hami.quantity import MIB
from testing.cluster import MANIFESTS
from testing.device_plugin import HOOK, DevicePlugin
from testing.joined_node import NodeUnavailable
from testing.pods import pod
from testing.realnode import IMAGE, RealNode
from testing.restarts import kill_container, restarted
from testing.sandbox import Sandbox
from testing.shown import shower

__all__ = ["FOLDER", "find_limits_again", "mounted", "run_in"]

Object = dict[str, Any]
COMPONENT = MANIFESTS.parent / "components" / "region-mount" / "kustomization.yaml"
FOLDER = f"{HOOK}/vgpu/containers"
SIZE_MIB = 16
SOURCES = str(Path(hami.__file__).parents[1])
MOUNT = (
    sys.executable,
    "-m",
    "hami.cli",
    "mount-regions",
    f"--hook-path={HOOK}",
    f"--size={SIZE_MIB}",
)


@contextlib.contextmanager
def mounted(sandbox: Sandbox, real: RealNode) -> Iterator[None]:
    """A pod mounts the file system, like that of the device plugin, and is gone. Unmounted at the end."""
    real.run(
        "rm", "-rf", FOLDER
    )  # what pods of earlier tests have left: a plugin keeps it for minutes
    real.run("mount", "--make-shared", "/var/lib")  # as where systemd runs
    sandbox.kube.create(mounting(real), sandbox.namespace)
    try:
        real.output(
            sandbox.pod("mount"),
            "mount-regions",
            until=f"{FOLDER} is a file system of {SIZE_MIB} MiB in memory",
        )
        sandbox.delete("mount")
        yield
    finally:
        with contextlib.suppress(NodeUnavailable):  # it was not mounted
            real.run("umount", "--lazy", FOLDER)


def mounting(real: RealNode) -> Object:
    """Returns a pod with the init container of the component, on the node."""
    patch = parse_own_yaml(COMPONENT.read_text())["patches"][0]["patch"]
    made = parse_own_yaml(patch)[0]["value"]
    (mount,) = made["volumeMounts"]
    assert [word.partition("=")[0] for word in made["command"]] == [
        "hami",
        "mount-regions",
        "--hook-path",
        "--size",
    ]
    made |= {
        "image": IMAGE,
        "env": [{"name": "PYTHONPATH", "value": SOURCES}],
        "command": ["chroot", "/host", *MOUNT],
        "volumeMounts": [
            {"name": "host", "mountPath": "/host"},
            mount | {"mountPath": f"/host{HOOK}/vgpu"},
        ],
    }
    item = pod("mount", inits=[made], node_name=real.name, labels={"hami.io/webhook": "ignore"})
    item["spec"]["volumes"] = [
        {"name": "host", "hostPath": {"path": "/"}},
        {"name": mount["name"], "hostPath": {"path": f"{HOOK}/vgpu", "type": "DirectoryOrCreate"}},
    ]
    return item


def run_in(sandbox: Sandbox, real: RealNode, name: str, script: str) -> str:
    """Returns the output of a script in the container of a pod, where the files are."""
    (status,) = sandbox.pod(name)["status"]["containerStatuses"]
    return real.run_in(status["containerID"], "sh", "-c", f"cd {HOOK}/vgpu; {script}")


def find_limits_again(sandbox: Sandbox, real: RealNode, plugin: DevicePlugin) -> None:
    """A container starts again after its files were lost, as by a restart of the node: the file system is another one
    when the device plugin starts."""
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000))
    sandbox.running("a")
    shown = "cat limits; for file in *.cache *.sm; do wc -c < $file; done"
    before = run_in(sandbox, real, "a", shown).splitlines()
    assert sum(f"memory={1000 * MIB}" in line for line in before) == 1
    assert before[-2:] == [str(REGION_SIZE), str(COMPUTE_SIZE)]
    plugin.kill()
    real.run("umount", "--lazy", FOLDER)
    real.run("env", f"PYTHONPATH={SOURCES}", *MOUNT)
    plugin.start().wait_registered()
    restarted(sandbox, "a", kill_container(sandbox, real, "a"))
    assert run_in(sandbox, real, "a", shown).splitlines() == before
