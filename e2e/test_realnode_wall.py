"""The driver's own limit of memory on a real kubelet: the hook runs before the program of each container that starts.

The driver is absent, so the program of the hook only says what it is given, or why it cannot set a limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hami.node.wall_records import RECORDS, parse_record
from testing.device_plugin import HOOK, SLOTS, DevicePlugin, cards
from testing.eventually import eventually
from testing.realnode import RealNode
from testing.shown import shower

pytestmark = pytest.mark.kind
(CARD,) = cards(1)
GROUPS = Path("/sys/fs/cgroup")
PROGRAM = f"{HOOK}/vgpu/hami-memory-wall"
CALLS = f"{HOOK}/vgpu/calls"
RECORD = f"""#!/bin/sh
echo "$* $(cat | tr -d '\\n')" >>{CALLS}
"""
"""A program in its place, which writes its arguments and the state of the container."""


@pytest.fixture
def start(real: RealNode) -> Iterator[Callable[..., None]]:
    """Starts the device plugin with a program of the hook."""
    made = DevicePlugin(real, allocate="start")
    made.insert(CARD)
    made.install_limiter(b"the limiter\n")
    program, calls = real.path(PROGRAM), real.path(CALLS)

    def start(memory_by: str, content: bytes, **flags: str) -> None:
        program.write_bytes(content)
        program.chmod(0o755)
        calls.unlink(missing_ok=True)
        made.start(memory_by=memory_by, **flags).wait_offered(SLOTS)

    yield start
    made.close()
    program.unlink(missing_ok=True)


def recorded(real: RealNode) -> list[tuple[str, dict[str, object]]]:
    """Returns the arguments and the state of each call."""
    calls = []
    for line in real.path(CALLS).read_text().splitlines():
        words, brace, state = line.partition("{")
        calls.append((words.strip(), json.loads(brace + state)))
    return calls


def test_the_hook_runs_at_each_start_with_the_limits_of_the_container(sandbox, real, start):
    start("both", RECORD.encode())
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=3000), shower(HOOK, "b", gpu=1, gpumem=2000))
    sandbox.running("a", "b")
    sizes = sorted(words.rpartition("=")[2] for words, _ in recorded(real))
    assert sizes == [str(2000 << 20), str(3000 << 20)]
    for words, state in recorded(real):
        assert words.startswith("--best-effort --library libnvidia-ml.so.1 --limit ")
        assert f"--limit {CARD.uuid}=" in words
        assert state["status"] == "creating"
        assert isinstance(state["pid"], int)
    (status,) = sandbox.pod("a")["status"]["containerStatuses"]
    real.ctr("tasks", "kill", "--signal", "SIGKILL", status["containerID"].rpartition("/")[2])
    eventually(lambda: len(recorded(real)) == 3, "the hook did not run again")
    words, _ = recorded(real)[-1]
    assert words.endswith(f"={3000 << 20}")


def test_a_node_whose_driver_cannot_starts_no_container_with_driver_and_says_why(
    sandbox, real, start, builds
):
    start("driver", builds.wall().read_bytes())
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=3000))
    why = sandbox.event("a", "Failed", "error running createRuntime hook #0")
    assert "hami-memory-wall: " in why


def test_a_node_whose_driver_cannot_starts_containers_with_both(sandbox, real, start, builds):
    start("both", builds.wall().read_bytes())
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=3000))
    sandbox.running("a")


def test_the_hook_leaves_a_record_with_the_control_group_of_the_container(
    sandbox, real, start, builds
):
    """Nothing can be set without a driver, and the annotation of the node says so."""
    start("both", builds.wall().read_bytes(), cgroup_root=str(GROUPS))
    sandbox.create(shower(HOOK, "a", gpu=1, gpumem=3000))
    sandbox.running("a")
    (status,) = sandbox.pod("a")["status"]["containerStatuses"]
    id = status["containerID"].rpartition("/")[2]
    record = parse_record(real.path(f"{HOOK}/vgpu/{RECORDS}/{id}").read_text())
    assert record.limits == {CARD.uuid: 3000 << 20}
    assert record.problem != ""
    if (GROUPS / "cgroup.controllers").exists():
        assert id in record.group
        assert (GROUPS / record.group.lstrip("/")).is_dir()
    annotations = sandbox.kube.get("Node", real.name)["metadata"]["annotations"]
    assert annotations["hami.io/memory-wall"].startswith("off: ")
