"""The container of a process, by its control group."""

import os

from hypothesis import given, settings
from hypothesis import strategies as some

from hami.monitor.processes import (
    ContainerId,
    HostProcess,
    HostProcesses,
    parse_cgroups,
    parse_inner_pid,
    plain_uid,
)
from testing.cases import cases

UID = "6a1f2c44-1b5e-4f1e-9d8c-0123456789ab"
SYSTEMD = UID.replace("-", "_")
ID, OTHER = "ab" * 32, "cd" * 32
FOUND = ContainerId(UID.replace("-", ""), ID)


@cases(
    "text",
    ("version 2, cgroupfs", f"0::/kubepods/burstable/pod{UID}/{ID}"),
    ("guaranteed", f"0::/kubepods/pod{UID}/{ID}"),
    ("best effort", f"0::/kubepods/besteffort/pod{UID}/{ID}\n"),
    (
        "version 1, cgroupfs, hybrid",
        (
            f"12:memory:/kubepods/burstable/pod{UID}/{ID}\n11:cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}\n"
            "0::/"
        ),
    ),
    (
        "version 2, systemd, containerd",
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice/"
            f"cri-containerd-{ID}.scope"
        ),
    ),
    ("CRI-O", f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope"),
    ("CRI-O, nested", f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope/container"),
    (
        "version 1, systemd, Docker",
        (
            f"1:name=systemd:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD}.slice/"
            f"docker-{ID}.scope"
        ),
    ),
    (
        "relative, systemd",
        f"0::/../../kubepods-burstable-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    ),
    ("relative, cgroupfs", f"0::/../../pod{UID}/{ID}"),
    (
        "below a slice of the kubelet",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubepods-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    ),
    ("a node in a container", f"0::/docker/{OTHER}/kubelet/kubepods/burstable/pod{UID}/{ID}"),
    (
        "drivers that differ",
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{SYSTEMD}.slice:cri-containerd:{ID}",
    ),
    ("systemd in the container", f"0::/kubepods/pod{UID}/{ID}/user.slice/a:b"),
)
def test_forms(text):
    assert parse_cgroups(text) == FOUND


def test_the_uid_of_a_static_pod():
    assert parse_cgroups(f"0::/kubepods/pod{'0f' * 16}/{ID}") == ContainerId("0f" * 16, ID)
    assert plain_uid(UID) == plain_uid(SYSTEMD) == FOUND.pod


@cases(
    "text",
    ("ended", ""),
    ("the root", "0::/"),
    ("a service", "0::/system.slice/sshd.service"),
    ("no pod", f"0::/docker/{ID}"),
    ("no container", f"0::/kubepods/pod{UID}"),
    ("CRI-O's monitor", f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-conmon-{ID}.scope"),
    ("not an id", f"0::/kubepods/pod{UID}/{ID}x"),
    ("not a uid", f"0::/kubepods/podx{UID}/{ID}"),
    ("two containers", f"4:memory:/kubepods/pod{UID}/{ID}\n3:cpu:/kubepods/pod{UID}/{OTHER}"),
    ("garbage", "garbage\n:\n::"),
)
def test_no_container(text):
    assert parse_cgroups(text) is None


def test_a_container_cannot_pass_for_another_below_its_own():
    """With write access to its control groups it can make any below."""
    theirs = f"/kubepods/pod{'11' * 16}/{OTHER}"
    assert parse_cgroups(f"0::/kubepods/pod{UID}/{ID}{theirs}") == FOUND
    assert parse_cgroups(f"0::/kubepods/pod{UID}/x{theirs}") is None


@settings(max_examples=1000)
@given(
    some.lists(
        some.sampled_from(
            [
                "0::",
                "/",
                "pod",
                UID,
                SYSTEMD,
                ID,
                ".slice",
                ".scope",
                "cri-containerd-",
                "kubepods-",
                "..",
                ":",
                "\n",
                "é",
            ]
        )
    )
)
def test_any_text_is_read(words):
    found = parse_cgroups("".join(words))
    assert found is None or (len(found.pod) == 32 and len(found.container) == 64)


@cases(
    "text, pid",
    ("Name:\tx\nNSpid:\t4007\t7\n", 7),
    ("NSpid:\t4007\t17\t3\n", 3),
    ("NSpid:\t5\n", 5),
    ("NSpid:\n", 0),
    ("NSpid:\tx\n", 0),
    ("", 0),
    ("Name:\tNSpid: 9\n", 0),
    ("NSpid:\t²\n", 0),
)
def test_the_pid_in_the_container(text, pid):
    assert parse_inner_pid(text) == pid


def test_a_process_is_looked_up(tmp_path):
    (tmp_path / "4007").mkdir()
    (tmp_path / "4007/cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n")
    (tmp_path / "4007/status").write_text("Name:\tx\nNSpid:\t4007\t7\n")
    processes = HostProcesses(tmp_path)
    assert processes.find(4007) == HostProcess(4007, FOUND, 7)
    assert processes.find(1) is None
    (tmp_path / "4007/cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n" + "x" * 70_000)
    assert processes.find(4007) is None


def test_this_process_is_in_no_pod_or_in_one():
    found = HostProcesses().find(os.getpid())
    assert found is None or found.inner_pid > 0
