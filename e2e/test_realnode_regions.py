"""Files that containers may write in memory: what the component `region-mount` mounts on a real kubelet, in both modes.

Its init container runs in a pod of the test. Its program is that of this machine, whose files it sees.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import hami
from e2e.cluster import MANIFESTS, LocalCluster
from e2e.device_plugin import HOOK, SLOTS, DevicePlugin, cards
from e2e.joined_node import NodeUnavailable
from e2e.pods import pod
from e2e.realnode import IMAGE, RealNode, Runtime, missing
from e2e.restarts import kill_container, restarted
from e2e.sandbox import Sandbox
from e2e.shown import shower
from hami.node.region_layout import COMPUTE_SIZE, REGION_SIZE
from hami.quantity import MIB

Object = dict[str, Any]
COMPONENT = MANIFESTS.parent / "components" / "region-mount" / "kustomization.yaml"
FOLDER = f"{HOOK}/vgpu/containers"
SIZE = "16"  # MiB
SOURCES = str(Path(hami.__file__).parents[1])
PINNED, DEBIAN = "containerd 2", "containerd 1.6"
pytestmark = [pytest.mark.kind, pytest.mark.parametrize("real_node, plugin", [
    (PINNED, "start"), (PINNED, "admission"), (DEBIAN, "auto")], indirect=True)]


@pytest.fixture(scope="module")
def real_node(local: LocalCluster, request: pytest.FixtureRequest) -> Iterator[RealNode]:
    """A node with this runtime; mounts of its pods reach it, as where systemd runs."""
    if reason := missing():
        pytest.skip(reason)
    try:
        runtime = Runtime.debian() if request.param == DEBIAN else Runtime.pinned()
    except NodeUnavailable as error:
        pytest.skip(str(error))
    with RealNode.joined(local, runtime=runtime) as node:
        node.run("mount", "--make-shared", "/var/lib")
        yield node


@pytest.fixture
def mounted(sandbox: Sandbox, real: RealNode) -> Iterator[None]:
    """A file system for the files of containers, which a pod mounts like that of the device plugin."""
    item = mounting(real)
    sandbox.kube.create(item, sandbox.namespace)
    try:
        real.output(sandbox.pod("mount"), "mount-regions", until=f"{FOLDER} is a file system of {SIZE} MiB in memory",
                    timeout=90)
        sandbox.delete("mount")
        yield
    finally:
        with contextlib.suppress(NodeUnavailable):  # it was not mounted
            real.run("umount", "--lazy", FOLDER)


@pytest.fixture
def plugin(real: RealNode, mounted: None, request: pytest.FixtureRequest) -> Iterator[DevicePlugin]:
    """The device plugin, in this mode."""
    made = DevicePlugin(real, allocate=request.param)
    made.insert(*cards(1))
    made.install_limiter(b"the limiter\n")
    made.start()
    try:
        made.wait_offered(SLOTS)
        yield made
    finally:
        made.close()
        real.kubelet.start()


def mounting(real: RealNode) -> Object:
    """Returns a pod with the init container of the component, on the node."""
    patch = yaml.safe_load(COMPONENT.read_text())["patches"][0]["patch"]
    made = yaml.safe_load(patch)[0]["value"]
    (mount,) = made["volumeMounts"]
    options = [f"--hook-path={HOOK}", f"--size={SIZE}"]
    assert [word.partition("=")[0] for word in made["command"]] == ["hami", "mount-regions", "--hook-path", "--size"]
    made |= {
        "image": IMAGE, "env": [{"name": "PYTHONPATH", "value": SOURCES}],
        "command": ["busybox", "chroot", "/host", sys.executable, "-m", "hami.cli", "mount-regions", *options],
        "volumeMounts": [{"name": "host", "mountPath": "/host"}, mount | {"mountPath": f"/host{HOOK}/vgpu"}]}
    item = pod("mount", inits=[made], node_name=real.name, labels={"hami.io/webhook": "ignore"})
    item["spec"]["volumes"] = [
        {"name": "host", "hostPath": {"path": "/"}},
        {"name": mount["name"], "hostPath": {"path": f"{HOOK}/vgpu", "type": "DirectoryOrCreate"}}]
    return item


def run_in(sandbox: Sandbox, real: RealNode, name: str, script: str) -> str:
    """Returns the output of a script in the container of a pod, where the files are."""
    (status,) = sandbox.pod(name)["status"]["containerStatuses"]
    return real.run_in(status["containerID"], "sh", "-c", f"cd {HOOK}/vgpu; {script}")


def test_a_container_fills_a_file_system_of_a_fixed_size_and_not_the_disk(sandbox: Sandbox, real: RealNode,
                                                                          plugin: DevicePlugin) -> None:
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000))
    sandbox.running("a")
    said = run_in(sandbox, real, "a", "for file in *.cache *.sm; do "
                  "dd if=/dev/zero of=$file bs=1M seek=4 conv=notrunc 2>&1 || true; done")
    assert said.count("No space left on device") == 2
    assert list(real.path(FOLDER).iterdir()) == [], "what lies below the mount, on the disk"
    sandbox.event("a", "RegionEnlarged")
    sandbox.create(shower(HOOK, "b", gpu=1, gpumem=2000))
    sandbox.running("b")


def test_a_container_finds_its_limits_when_the_files_are_gone(sandbox: Sandbox, real: RealNode,
                                                              plugin: DevicePlugin) -> None:
    """As after a restart of the node: the file system is another one when the device plugin starts."""
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=1000))
    sandbox.running("a")
    shown = "cat limits; for file in *.cache *.sm; do wc -c < $file; done"
    before = run_in(sandbox, real, "a", shown).splitlines()
    assert [f"memory={1000 * MIB}" in line for line in before].count(True) == 1
    assert before[-2:] == [str(REGION_SIZE), str(COMPUTE_SIZE)]
    plugin.kill()
    real.run("umount", "--lazy", FOLDER)
    real.run("env", f"PYTHONPATH={SOURCES}", sys.executable, "-m", "hami.cli", "mount-regions", f"--hook-path={HOOK}",
             f"--size={SIZE}")
    plugin.start().wait_registered()
    restarted(sandbox, "a", kill_container(sandbox, real, "a"))
    assert run_in(sandbox, real, "a", shown).splitlines() == before
