"""The container of a process, by its control group."""

import os

import pytest
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

UID = "6a1f2c44-1b5e-4f1e-9d8c-0123456789ab"
SYSTEMD = UID.replace("-", "_")
ID, OTHER = "ab" * 32, "cd" * 32
FOUND = ContainerId(UID.replace("-", ""), ID)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"0::/kubepods/burstable/pod{UID}/{ID}", id="version 2, cgroupfs"),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}", id="guaranteed"),
        pytest.param(f"0::/kubepods/besteffort/pod{UID}/{ID}\n", id="best effort"),
        pytest.param(
            f"12:memory:/kubepods/burstable/pod{UID}/{ID}\n11:cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}\n"
            "0::/",
            id="version 1, cgroupfs, hybrid",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice/"
            f"cri-containerd-{ID}.scope",
            id="version 2, systemd, containerd",
        ),
        pytest.param(f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope", id="CRI-O"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope/container",
            id="CRI-O, nested",
        ),
        pytest.param(
            f"1:name=systemd:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD}.slice/"
            f"docker-{ID}.scope",
            id="version 1, systemd, Docker",
        ),
        pytest.param(
            f"0::/../../kubepods-burstable-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
            id="relative, systemd",
        ),
        pytest.param(f"0::/../../pod{UID}/{ID}", id="relative, cgroupfs"),
        pytest.param(
            f"0::/kubelet.slice/kubelet-kubepods.slice/kubepods-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
            id="below a slice of the kubelet",
        ),
        pytest.param(
            f"0::/docker/{OTHER}/kubelet/kubepods/burstable/pod{UID}/{ID}",
            id="a node in a container",
        ),
        pytest.param(
            f"0::/system.slice/containerd.service/kubepods-burstable-pod{SYSTEMD}.slice:cri-containerd:{ID}",
            id="drivers that differ",
        ),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}/user.slice/a:b", id="systemd in the container"),
    ],
)
def test_forms(text):
    assert parse_cgroups(text) == FOUND


def test_the_uid_of_a_static_pod():
    assert parse_cgroups(f"0::/kubepods/pod{'0f' * 16}/{ID}") == ContainerId("0f" * 16, ID)
    assert plain_uid(UID) == plain_uid(SYSTEMD) == FOUND.pod


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="ended"),
        pytest.param("0::/", id="the root"),
        pytest.param("0::/system.slice/sshd.service", id="a service"),
        pytest.param(f"0::/docker/{ID}", id="no pod"),
        pytest.param(f"0::/kubepods/pod{UID}", id="no container"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-conmon-{ID}.scope",
            id="CRI-O's monitor",
        ),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}x", id="not an id"),
        pytest.param(f"0::/kubepods/podx{UID}/{ID}", id="not a uid"),
        pytest.param(
            f"4:memory:/kubepods/pod{UID}/{ID}\n3:cpu:/kubepods/pod{UID}/{OTHER}",
            id="two containers",
        ),
        pytest.param("garbage\n:\n::", id="garbage"),
    ],
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


@pytest.mark.parametrize(
    ("text", "pid"),
    [
        ("Name:\tx\nNSpid:\t4007\t7\n", 7),
        ("NSpid:\t4007\t17\t3\n", 3),
        ("NSpid:\t5\n", 5),
        ("NSpid:\n", 0),
        ("NSpid:\tx\n", 0),
        ("", 0),
        ("Name:\tNSpid: 9\n", 0),
        ("NSpid:\t²\n", 0),
    ],
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
