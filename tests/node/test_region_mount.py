"""The file system in memory for directories of containers, in a mount namespace of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(
    subprocess.run(
        ["sh", "-c", "unshare --mount true"], capture_output=True, check=False
    ).returncode
    != 0,
    reason="only root may mount",
)
PROGRAM = """
import os, sys
from hami.cli import main
folder = sys.argv[1] + "/vgpu/containers"
for _ in range(2):
    main(["mount-regions", f"--hook-path={sys.argv[1]}", "--size=16"], standalone_mode=False)
if not os.path.ismount(folder):
    sys.exit()
descriptor = os.open(folder + "/region", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(descriptor, 0, 15 << 20)
os.ftruncate(descriptor, 1 << 40)
try:
    os.posix_fallocate(descriptor, 15 << 20, 2 << 20)
except OSError as error:
    print(error.strerror)
print([line.split()[5] for line in open("/proc/self/mountinfo") if line.split()[4] == folder])
"""


def mounted(hook: Path) -> list[str]:
    """Runs PROGRAM in a namespace of its own; returns what it has printed."""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation=private", sys.executable, "-c", PROGRAM, hook],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@needs_root
def test_containers_can_fill_it_and_nothing_else(tmp_path):
    folder = tmp_path / "vgpu" / "containers"
    assert mounted(tmp_path) == [
        f"{folder} is a file system of 16 MiB in memory",
        f"{folder} is a file system of its own already",
        "No space left on device",
        "['rw,nosuid,nodev,noexec,relatime']",
    ]
    assert list(folder.iterdir()) == []


@needs_root
def test_files_of_containers_that_run_stay_where_they_are(tmp_path):
    folder = tmp_path / "vgpu" / "containers"
    (folder / "uid_main").mkdir(parents=True)
    assert mounted(tmp_path)[0] == (
        f"{folder} stays on the disk: it has the files of 1 containers. Drain the node, and delete the pod of the "
        "device plugin on it once the folder is empty"
    )
