"""Whether containers get their devices at admission or when they start."""

from dataclasses import replace

import pytest

from hami.devices.config import PluginConfig
from hami.errors import ClusterError, HamiError
from hami.model import Node
from hami.plugin.allocation_time import is_start_time, start_time_config, why_not_start
from hami.plugin.settings import PluginSettings
from testing.cases import cases
from testing.fake_cluster import FakeCluster

NODE = Node(name="n1", runtime_version="containerd://2.3.7", kubelet_version="v1.36.3")
HOST = "22 1 8:1 / / rw - ext4 /dev/a rw\n"
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.fixture
def make(tmp_path):
    """Makes settings of a node whose folder can be written."""

    def make(allocate="auto", cdi_root=str(tmp_path / "cdi"), **config):
        return PluginSettings(node="n1", **config, allocate=allocate, cdi_root=cdi_root)

    return make


@pytest.fixture
def ask(make, tmp_path):
    """Returns what keeps a node from start-time mode."""

    def ask(node=NODE, environ=None, mounts=HOST, **settings):
        (tmp_path / "mountinfo").write_text(mounts)
        return why_not_start(make(**settings), node, environ or {}, tmp_path / "mountinfo")

    return ask


@cases(
    "runtime, kubelet, reason",
    ("first containerd and kubelet", "containerd://2.0.0", "v1.29.0", ""),
    ("suffixes", "containerd://2.3.7-rc.1+x", "v1.36.3+k3s1", ""),
    ("later", "containerd://v10.0", "v2.0", ""),
    ("first CRI-O", "cri-o://1.28.0", "v1.36.3", ""),
    ("CRI-O before", "cri-o://1.27.9", "v1.36.3", "container runtime cri-o://1.27.9"),
    (
        "containerd before",
        "containerd://1.7.27",
        "v1.36.3",
        "container runtime containerd://1.7.27",
    ),
    ("Debian's", "containerd://1.6.20~ds1", "v1.36.3", "container runtime containerd://1.6.20~ds1"),
    ("another runtime", "docker://28.1.0", "v1.36.3", "container runtime docker://28.1.0"),
    ("no number", "containerd://", "v1.36.3", "container runtime containerd://"),
    ("no runtime", "", "v1.36.3", "container runtime unknown"),
    ("kubelet before", "containerd://2.0.0", "v1.28.15", "kubelet v1.28.15"),
    ("no kubelet", "containerd://2.0.0", "", "kubelet unknown"),
)
def test_runtime_and_kubelet_decide(ask, runtime, kubelet, reason):
    found = ask(replace(NODE, runtime_version=runtime, kubelet_version=kubelet))
    assert found.partition(": ")[0] == reason


@cases(
    "given, reason",
    ("no kubelet", {"kubelet_socket": ""}, "no kubelet socket"),
    ("the kubelet chooses cards", {"aligned": True}, "enablegetpreferredallocation"),
    ("no folder", {"cdi_root": ""}, "another program writes"),
    ("a folder that cannot be made", {"cdi_root": "/proc/self/cdi"}, "--cdi-root /proc/self/cdi: "),
)
def test_settings_decide(ask, given, reason):
    assert reason in ask(**given)


@cases(
    "mounted, reason",
    ("", "is no folder of the host: mount it"),
    ("/cdi", ""),
    ("/somewhere", "is no folder of the host: mount it"),
)
def test_in_a_pod_the_folder_must_be_mounted(ask, tmp_path, mounted, reason):
    mounts = HOST + (f"23 22 8:1 /x {tmp_path}{mounted} rw - ext4 /dev/a rw\n" if mounted else "")
    assert ask(environ=POD, mounts=mounts).endswith(reason)
    assert ask(mounts=mounts) == ""


@cases(
    "allocate, node, recorded, expected",
    ("wanted", "start", None, None, True),
    ("not wanted", "admission", NODE, True, False),
    ("possible", "auto", NODE, None, True),
    ("not possible", "auto", replace(NODE, runtime_version="containerd://1.7.0"), True, False),
    ("node unknown, start-time before", "auto", None, True, True),
    ("node unknown, admission before", "auto", None, False, False),
)
def test_the_mode(make, allocate, node, recorded, expected):
    cluster = FakeCluster(nodes=[node] if node is not None else [])
    assert is_start_time(make(allocate), cluster, recorded, {}) is expected


def test_a_node_that_cannot_be_read_is_an_error_where_nothing_is_recorded(make):
    cluster = FakeCluster()
    with pytest.raises(ClusterError, match="there is no node n1"):
        is_start_time(make(), cluster, None, {})
    cluster.fail("node", ClusterError("away"))
    with pytest.raises(ClusterError, match="away"):
        is_start_time(make(), cluster, None, {})


@cases(
    "runtime, is_refused",
    ("containerd://1.6.20~ds1", True),
    ("containerd://1.7.0", False),
    ("cri-o://1.22.9", True),
    ("cri-o://1.23.0", False),
    ("another://0.1", False),
    ("containerd://", False),
    ("", False),
)
def test_a_runtime_that_does_not_know_cdi_is_refused(make, runtime, is_refused):
    """It would start containers without devices and limits."""
    cluster = FakeCluster(nodes=[replace(NODE, runtime_version=runtime)])
    if is_refused:
        with pytest.raises(
            HamiError, match=f"--allocate=start: the container runtime {runtime} does not know CDI"
        ):
            is_start_time(make("start"), cluster, None, {})
    else:
        assert is_start_time(make("start"), cluster, None, {})


def test_without_a_kubelet_there_is_no_mode(make):
    assert not is_start_time(make("start", kubelet_socket=""), FakeCluster(nodes=[NODE]), None, {})


def test_the_configuration_of_start_time_mode():
    found = start_time_config(
        PluginConfig(
            node="n1", list_strategies=("envvar", "cdi-annotations", "cdi-cri"), aligned=True
        )
    )
    strategies = ("envvar", "cdi-cri")
    assert found == PluginConfig(node="n1", list_strategies=strategies, pass_device_specs=True)
