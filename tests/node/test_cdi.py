"""CDI specifications, from driver files on a host in a folder."""

import json
import os
import platform
import re
from dataclasses import dataclass

import pytest

from hami.devices.cards import Card
from hami.errors import HostError
from hami.node.cdi import DriverFile, DriverFiles, Extra, Roots, extra_document, gpu_document
from hami.node.cdi_specs import CdiSpecs
from hami.node.driver import (
    dev_root,
    driver_files,
    follow,
    instance_nodes,
    read_mig_minors,
    shared_node,
)
from testing.cases import cases

LIB = "/usr/lib/x86_64-linux-gnu"
VERSION = "570.86.15"
CUDA, ML = f"{LIB}/libcuda.so.{VERSION}", f"{LIB}/libnvidia-ml.so.{VERSION}"
KIND = "k8s.device-plugin.nvidia.com"
FILE_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
DRIVER = DriverFiles(version=VERSION, libraries=(DriverFile(CUDA, CUDA), DriverFile(ML, ML)))
CARD = Card(uuid="GPU-a", index=0, minor=3, model="A100", memory_mib=1)


@dataclass(frozen=True)
class Instance:
    """A MIG instance."""

    gpu: str = "GPU-a"
    uuid: str = "MIG-1"
    gpu_instance: int = 1
    compute_instance: int = 0


@pytest.fixture
def root(tmp_path):
    return tmp_path / "driver"


@pytest.fixture
def host(root):
    """Puts files below the root of a driver."""

    def put(*files):
        for name in files:
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return root

    return put


def link(root, path, target):
    (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, root / path.lstrip("/"))


# ---- the format


NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
FIELDS = {  # of CDI 0.5.0 (schema/defs.json), as far as we say something; a field that is not there is refused
    "deviceNodes": {"path": str, "hostPath": str, "permissions": str},
    "mounts": {"hostPath": str, "containerPath": str, "options": list},
    "hooks": {"hookName": str, "path": str, "args": list},
}
NEEDED = {
    "deviceNodes": {"path"},
    "mounts": {"hostPath", "containerPath"},
    "hooks": {"hookName", "path"},
}
STAGES = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}


def check_edits(edits):
    assert edits.keys() <= {"env", *FIELDS}
    assert all(re.fullmatch("[A-Z_]+=.*", one) for one in edits.get("env", []))
    for kind, fields in FIELDS.items():
        for one in edits.get(kind, []):
            assert NEEDED[kind] <= one.keys() <= fields.keys()
            assert all(isinstance(value, fields[key]) for key, value in one.items())
            assert all(
                one[key].startswith("/")
                for key in ("path", "hostPath", "containerPath")
                if key in one
            )
            assert one.get("hookName", "createContainer") in STAGES
            assert set(one.get("permissions", "")) <= set("rwm")


def check_document(document):
    """As the runtimes' library checks a file (pkg/cdi/spec.go, validate) before it takes anything from it."""
    assert document.keys() == {"cdiVersion", "kind", "devices", "containerEdits"}
    assert document["cdiVersion"] == "0.5.0"
    vendor, _, kind = document["kind"].partition("/")
    assert re.fullmatch(r"[a-z]([a-z0-9_.-]*[a-z0-9])?", vendor)
    assert re.fullmatch(r"[a-z]([a-z0-9_-]*[a-z0-9])?", kind)
    names = [device["name"] for device in document["devices"]]
    assert names
    assert len(set(names)) == len(names)
    for device in document["devices"]:
        assert device.keys() == {"name", "containerEdits"}
        assert NAME.fullmatch(device["name"])
        assert any(device["containerEdits"].values()), "a device has to change something"
        check_edits(device["containerEdits"])
    check_edits(document["containerEdits"])
    return document


# ---- what is in it


def gpu(driver=DRIVER, devices=None, roots=Roots()):
    return check_document(gpu_document(roots, driver, devices or {"GPU-a": ("/dev/nvidia3",)}))


def test_each_card_has_its_device_node():
    document = gpu(
        devices={
            "GPU-a": ("/dev/nvidia3",),
            "0": ("/dev/nvidia3",),
            "MIG-1": ("/dev/nvidia4", "/dev/nvidia-caps/nvidia-cap12"),
        }
    )
    assert document["kind"] == f"{KIND}/gpu"
    assert {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    } == {
        "GPU-a": ["/dev/nvidia3"],
        "0": ["/dev/nvidia3"],
        "MIG-1": ["/dev/nvidia4", "/dev/nvidia-caps/nvidia-cap12"],
        "all": ["/dev/nvidia3", "/dev/nvidia4", "/dev/nvidia-caps/nvidia-cap12"],
    }


@cases(
    "roots, node, mount",
    ("the host's own", {}, {"path": "/dev/nvidiactl", "permissions": "rw"}, CUDA),
    (
        "in a folder",
        {"driver": "/run/driver", "dev": "/run/driver"},
        {"path": "/dev/nvidiactl", "hostPath": "/run/driver/dev/nvidiactl", "permissions": "rw"},
        f"/run/driver{CUDA}",
    ),
    (
        "devices elsewhere",
        {"driver": "/run/driver/", "dev": "/"},
        {"path": "/dev/nvidiactl", "permissions": "rw"},
        f"/run/driver{CUDA}",
    ),
)
def test_host_paths_follow_the_roots(roots, node, mount):
    common = gpu(
        DriverFiles(
            version=VERSION, libraries=(DriverFile(CUDA, CUDA),), nodes=("/dev/nvidiactl",)
        ),
        roots=Roots(**roots),
    )["containerEdits"]
    assert common["deviceNodes"] == [node]
    assert common["mounts"] == [{"hostPath": mount, "containerPath": CUDA, "options": FILE_OPTIONS}]
    assert common["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


@cases(
    "hook, words",
    ("/usr/bin/nvidia-ctk", ["nvidia-ctk", "hook"]),
    ("/usr/bin/nvidia-cdi-hook", ["nvidia-cdi-hook"]),
    ("/opt/own/hook", ["hook"]),
)
def test_hooks_create_links_and_the_linker_s_cache(hook, words):
    driver = DriverFiles(
        version=VERSION,
        libraries=DRIVER.libraries,
        links=((f"libcuda.so.{VERSION}", f"{LIB}/libcuda.so.1"),),
    )
    assert gpu(driver, roots=Roots(hook=hook))["containerEdits"]["hooks"] == [
        {
            "hookName": "createContainer",
            "path": hook,
            "args": [
                *words,
                "create-symlinks",
                "--link",
                f"libcuda.so.{VERSION}::{LIB}/libcuda.so.1",
                "--link",
                f"libcuda.so.1::{LIB}/libcuda.so",
            ],
        },
        {
            "hookName": "createContainer",
            "path": hook,
            "args": [*words, "update-ldcache", "--folder", LIB],
        },
    ]


@cases(
    "library, alias",
    ("libGLX_nvidia.so.570.1", "libGLX_nvidia.so.570.1::/l/libGLX_indirect.so.0"),
    ("libnvidia-opticalflow.so.570.1", "libnvidia-opticalflow.so.1::/l/libnvidia-opticalflow.so"),
    ("libnvidia-allocator.so.570.1", "../libnvidia-allocator.so.1::/l/gbm/nvidia-drm_gbm.so"),
    (
        "libnvidia-vulkan-producer.so.570.1",
        "libnvidia-vulkan-producer.so.570.1::/l/libnvidia-vulkan-producer.so",
    ),
)
def test_missing_links_that_programs_expect_are_created(library, alias):
    document = gpu(
        DriverFiles(version="570.1", libraries=(DriverFile(f"/l/{library}", f"/l/{library}"),))
    )
    assert alias in document["containerEdits"]["hooks"][0]["args"]


def test_sockets_can_be_written_to():
    document = gpu(
        DriverFiles(version=VERSION, sockets=(DriverFile("/run/x/socket", "/run/x/socket"),))
    )
    assert document["containerEdits"]["mounts"][0]["options"] == [
        "nosuid",
        "nodev",
        "rbind",
        "rprivate",
        "noexec",
    ]


def test_without_a_device_there_is_no_specification():
    assert gpu_document(Roots(), DRIVER, {}) is None


@cases(
    "name, driver, devices",
    ("gdrcopy", {"extras": {"gdrcopy": Extra(nodes=("/dev/gdrdrv",))}}, {"all": ["/dev/gdrdrv"]}),
    (
        "mofed",
        {"extras": {"mofed": Extra(nodes=("/dev/infiniband/rdma_cm",))}},
        {"all": ["/dev/infiniband/rdma_cm"]},
    ),
    ("imex-channel", {"channels": (0,)}, {"0": ["/dev/nvidia-caps-imex-channels/channel0"]}),
)
def test_extra_classes(name, driver, devices):
    document = check_document(extra_document(Roots(), DriverFiles(version=VERSION, **driver), name))
    assert document["kind"] == f"{KIND}/{name}"
    assert {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    } == devices


def test_gds_includes_its_files():
    gds = Extra(
        nodes=("/dev/nvidia-fs0",), files=(DriverFile("/etc/cufile.json", "/etc/cufile.json"),)
    )
    document = check_document(
        extra_document(Roots(), DriverFiles(version=VERSION, extras={"gds": gds}), "gds")
    )
    assert [mount["containerPath"] for mount in document["containerEdits"]["mounts"]] == [
        "/etc/cufile.json"
    ]


@pytest.mark.parametrize("name", ["gdrcopy", "gds", "mofed", "imex-channel"])
def test_missing_extras_have_no_specification(name):
    assert extra_document(Roots(), DRIVER, name) is None


# ---- what a driver has put on a host


def test_libraries_are_those_of_the_driver_s_version(host, root):
    host(
        CUDA,
        ML,
        f"{LIB}/libc.so.6",
        f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}",
        f"{LIB}/libnvidia-nvvm70.so.4",
        "/usr/lib64/libother.so.1.2",
    )
    found = driver_files(root)
    assert found.version == VERSION
    assert {one.path for one in found.libraries} == {
        CUDA,
        ML,
        f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}",
        f"{LIB}/libnvidia-nvvm70.so.4",
    }


def test_a_folder_found_twice_counts_once(host, root):
    host(f"/usr/lib64/libcuda.so.{VERSION}")
    link(root, "/lib64", "usr/lib64")
    assert [one.path for one in driver_files(root).libraries] == [
        f"/usr/lib64/libcuda.so.{VERSION}"
    ]


def test_links_beside_the_libraries_lead_to_them(host, root):
    host(CUDA, f"{LIB}/libc.so.6")
    link(root, f"{LIB}/libcuda.so.1", f"libcuda.so.{VERSION}")
    link(root, f"{LIB}/libcuda.so", "libcuda.so.1")
    link(root, f"{LIB}/libc.so", "libc.so.6")
    link(root, f"{LIB}/libgone.so", "nothing")
    assert driver_files(root).links == (
        (f"libcuda.so.{VERSION}", f"{LIB}/libcuda.so"),
        (f"libcuda.so.{VERSION}", f"{LIB}/libcuda.so.1"),
    )


def test_debian_s_folder_and_alternatives(host, root):
    own = f"{LIB}/nvidia/current"
    host(
        f"{own}/libcuda.so.{VERSION}",
        f"{own}/libnvidia-ml.so.{VERSION}",
        f"/usr/lib/nvidia/{VERSION}/nvidia-smi",
    )
    link(root, "/usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")
    link(root, "/etc/alternatives/nvidia--nvidia-smi", f"/usr/lib/nvidia/{VERSION}/nvidia-smi")
    found = driver_files(root)
    assert {one.path for one in found.libraries} == {
        f"{own}/libcuda.so.{VERSION}",
        f"{own}/libnvidia-ml.so.{VERSION}",
    }
    assert found.programs == (
        DriverFile("/usr/bin/nvidia-smi", f"/usr/lib/nvidia/{VERSION}/nvidia-smi"),
    )


def test_programs_firmware_sockets_and_nodes(host, root):
    host(
        CUDA,
        "/usr/bin/nvidia-smi",
        "/usr/bin/ls",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "/lib/firmware/nvidia/1.2/gsp.bin",
        "/run/nvidia-persistenced/socket",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/null",
        "/dev/gdrdrv",
        "/dev/nvidia-fs0",
        "/dev/nvidia-fs1",
        "/etc/cufile.json",
        "/dev/infiniband/uverbs0",
        "/dev/nvidia-caps-imex-channels/channel0",
    )
    found = driver_files(root)
    assert [one.path for one in found.programs] == [
        "/usr/bin/nvidia-smi",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
    ]
    assert [one.path for one in found.sockets] == ["/run/nvidia-persistenced/socket"]
    assert found.nodes == ("/dev/nvidiactl", "/dev/nvidia-uvm")
    assert {name: extra.nodes for name, extra in found.extras.items()} == {
        "gdrcopy": ("/dev/gdrdrv",),
        "gds": ("/dev/nvidia-fs0", "/dev/nvidia-fs1"),
        "mofed": ("/dev/infiniband/uverbs0",),
    }
    assert [one.path for one in found.extras["gds"].files] == ["/etc/cufile.json"]
    assert found.channels == (0,)


def test_settings_of_egl_optix_and_vulkan_are_where_containers_look_for_them(host, root):
    """Missing ones are left out; of two, the first folder counts."""
    machine = f"nvidia_icd.{platform.machine()}.json"
    host(
        CUDA,
        "/usr/local/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/usr/share/nvidia/nvoptix.bin",
        f"/usr/share/vulkan/icd.d/{machine}",
        "/vulkan/icd.d/nvidia_icd.json",
        "/usr/share/X11/xorg.conf.d/10-nvidia.conf",
    )
    assert [(one.path, one.real) for one in driver_files(root).programs] == [
        (
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
            "/usr/local/share/glvnd/egl_vendor.d/10_nvidia.json",
        ),
        ("/usr/share/nvidia/nvoptix.bin", "/usr/share/nvidia/nvoptix.bin"),
        ("/etc/vulkan/icd.d/nvidia_icd.json", "/vulkan/icd.d/nvidia_icd.json"),
        (f"/etc/vulkan/icd.d/{machine}", f"/usr/share/vulkan/icd.d/{machine}"),
    ]


def test_platform_libraries_of_egl_have_versions_of_their_own(host, root):
    host(CUDA, f"{LIB}/libnvidia-egl-gbm.so.1.1.2", f"{LIB}/libnvidia-egl-other.so.1.1.2")
    link(root, f"{LIB}/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2")
    found = driver_files(root)
    assert [one.path for one in found.libraries] == [CUDA, f"{LIB}/libnvidia-egl-gbm.so.1.1.2"]
    assert ("libnvidia-egl-gbm.so.1.1.2", f"{LIB}/libnvidia-egl-gbm.so.1") in found.links


@cases(
    "program, text, has_hook",
    ("has it", "/usr/bin/nvidia-ctk", "update-ldcache enable-cuda-compat chmod", True),
    ("is older", "/usr/bin/nvidia-ctk", "update-ldcache chmod", False),
    ("is empty", "/usr/bin/nvidia-ctk", "", False),
    ("is elsewhere", "/opt/nvidia-ctk", "enable-cuda-compat", False),
)
def test_the_compatibility_hook_is_used_if_the_program_has_it(host, root, program, text, has_hook):
    host(CUDA, program)
    (root / program.lstrip("/")).write_text(text)
    driver = driver_files(root, "/usr/bin/nvidia-ctk")
    hooks = gpu(driver)["containerEdits"]["hooks"]
    names = [hook["args"][2] for hook in hooks]
    assert ("enable-cuda-compat" in names) == has_hook
    if has_hook:
        assert names[-2:] == ["enable-cuda-compat", "update-ldcache"]
        assert hooks[-2]["args"][3:] == ["--host-driver-version", VERSION]


@cases("files", ("nothing", ()), ("no driver", ("/usr/lib64/libc.so.6",)))
def test_a_host_without_a_driver_is_an_error(host, files):
    root = host(*files)
    with pytest.raises(HostError, match=f"{root}: no libcuda.so .*--driver-root-ctr-path"):
        driver_files(root)


def test_device_nodes_are_those_of_this_process_if_the_root_has_none(host, root):
    assert str(dev_root(host(CUDA))) == "/"
    assert dev_root(host("/dev/null")) == root


def test_cards_share_one_device_node_under_wsl(host):
    assert shared_node(host("/dev/null")) == ""
    assert shared_node(host("/dev/dxg")) == "/dev/dxg"


@cases(
    "links, path, real",
    ({}, "/a/file", "/a/file"),
    ({"/l": "a"}, "/l/file", "/a/file"),
    ({"/x/l": "/a/file"}, "/x/l", "/a/file"),
    ({"/x/l": "../a/./file"}, "/x/l", "/a/file"),
    ({"/x/l": "../../../../a/file"}, "/x/l", "/a/file"),
    ({"/l": "k", "/k": "/a"}, "/l/file", "/a/file"),
    ({"/l": "k", "/k": "l"}, "/l/file", None),
    ({"/l": "nothing"}, "/l", None),
    ({}, "/b", None),
)
def test_links_are_resolved_below_the_root(host, root, links, path, real):
    host("/a/file")
    for at, target in links.items():
        link(root, at, target)
    assert follow(root, path) == real


MINORS = "config 1\nmonitor 2\ngpu3/gi1/access 12\ngpu3/gi1/ci0/access 13\n"


def test_nodes_of_a_mig_instance(tmp_path):
    (tmp_path / "minors").write_text(MINORS)
    assert instance_nodes(read_mig_minors(tmp_path / "minors"), 3, 1, 0) == (
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    )
    with pytest.raises(HostError, match="no gpu3/gi2"):
        instance_nodes(read_mig_minors(tmp_path / "minors"), 3, 2, 0)
    with pytest.raises(HostError, match="nowhere: No such file"):
        read_mig_minors(tmp_path / "nowhere")


# ---- the files


@pytest.fixture
def specify(host, tmp_path):
    """CdiSpecs for a host with these files, and their folder."""

    def make(*files, wanted=()):
        (tmp_path / "minors").write_text(MINORS)
        return CdiSpecs(
            tmp_path / "cdi", host(CUDA, *files), Roots(), wanted, minors=tmp_path / "minors"
        )

    return make


def names(folder, kind="gpu"):
    path = folder / "cdi" / f"{KIND}-{kind}.json"
    return [device["name"] for device in check_document(json.loads(path.read_text()))["devices"]]


def test_the_file_follows_the_cards(specify, tmp_path):
    made = specify()
    made.update_cards([])
    assert not (tmp_path / "cdi").exists()
    made.update_cards([CARD])
    assert names(tmp_path) == ["GPU-a", "0", "all"]
    made.update_cards([CARD, Card(uuid="GPU-b", index=1, minor=4, model="A100", memory_mib=1)])
    assert names(tmp_path) == ["GPU-a", "0", "GPU-b", "1", "all"]
    made.update_cards([])
    assert list((tmp_path / "cdi").iterdir()) == []


def test_a_card_has_its_nodes_for_graphics(host, tmp_path):
    """Those of another card, and those that do not exist, are left out; so are all where the kernel names none."""
    for bus, uuid, names in (
        ("0000:65:00.0", "GPU-a", ("card1", "renderD128", "renderD129")),
        ("0000:66:00.0", "GPU-b", ("card2",)),
    ):
        about = tmp_path / "kernel/proc/driver/nvidia/gpus" / bus
        about.mkdir(parents=True)
        (about / "information").write_text(f"Model: \t\t A100\nGPU UUID: \t {uuid}\n")
        for name in names:
            (tmp_path / "kernel/sys/bus/pci/devices" / bus / "drm" / name).mkdir(parents=True)
    (tmp_path / "kernel/proc/driver/nvidia/gpus/0000:67:00.0").mkdir()
    root = host(CUDA, "/dev/dri/card1", "/dev/dri/renderD128", "/dev/dri/card2")
    made = CdiSpecs(tmp_path / "cdi", root, Roots(), (), kernel=tmp_path / "kernel")
    made.update_cards([CARD])
    own, _ = made.edits([f"{KIND}/gpu=GPU-a"])
    nodes = [node["path"] for node in own["deviceNodes"]]
    assert nodes == ["/dev/nvidia3", "/dev/dri/card1", "/dev/dri/renderD128"]


def test_an_unchanged_file_is_not_written(specify, tmp_path):
    made = specify()
    made.update_cards([CARD])
    before = (tmp_path / "cdi" / f"{KIND}-gpu.json").stat()
    made.update_cards([CARD])
    assert (tmp_path / "cdi" / f"{KIND}-gpu.json").stat().st_ino == before.st_ino
    assert before.st_mode & 0o777 == 0o644


def test_the_file_follows_the_instances(specify, tmp_path):
    made = specify()
    made.update_cards([Card(uuid="GPU-a", index=0, minor=3, model="A100", memory_mib=1, mig=True)])
    assert not (tmp_path / "cdi").exists(), "a card in MIG mode is nobody's as a whole"
    made.update_instances(
        [Instance(), Instance(gpu="GPU-x", uuid="MIG-elsewhere"), Instance(uuid="")]
    )
    assert names(tmp_path) == ["MIG-1", "all"]
    with pytest.raises(HostError, match="no gpu3/gi9"):
        made.update_instances([Instance(gpu_instance=9)])


def test_only_wanted_classes_with_devices_are_written(specify, tmp_path):
    made = specify("/dev/gdrdrv", "/dev/nvidia-fs0", wanted=("gdrcopy", "mofed"))
    made.update_cards([])
    assert made.classes() == {"gdrcopy"}
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == [f"{KIND}-gdrcopy.json"]
    assert names(tmp_path, "gdrcopy") == ["all"]
    specify("/dev/gdrdrv").update_cards([])
    assert list((tmp_path / "cdi").iterdir()) == [], "of an earlier life"


def test_the_file_follows_the_driver(specify, root, tmp_path):
    made = specify()
    made.update_cards([CARD])
    (root / CUDA.lstrip("/")).rename(root / CUDA.lstrip("/").replace(VERSION, "580.1"))
    made.update_cards([CARD])
    assert f'"{LIB}/libcuda.so.580.1"' in (tmp_path / "cdi" / f"{KIND}-gpu.json").read_text()
    (root / CUDA.lstrip("/").replace(VERSION, "580.1")).unlink()
    with pytest.raises(HostError, match="no libcuda.so"):
        made.update_cards([CARD])
    assert names(tmp_path) == ["GPU-a", "0", "all"]


def test_instances_come_after_cards(specify):
    with pytest.raises(HostError, match="not been looked up"):
        specify().update_instances([Instance()])


def test_a_folder_that_cannot_be_written_is_named(specify, tmp_path):
    made = specify()
    (tmp_path / "cdi").write_text("no folder")
    with pytest.raises(HostError, match="cdi"):
        made.update_cards([CARD])
