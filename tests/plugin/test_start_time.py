"""Start-time mode: what containers get when they start."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from hami.codec.allocation import render_shares
from hami.codec.keys import RESIZE_TARGET, RESIZED
from hami.errors import ClusterError, Conflict, HostError, Rejected
from hami.node.cdi import Roots
from hami.node.cdi_specs import CdiSpecs
from hami.node.checkpoint import CheckpointEntry
from hami.node.container_specs import ContainerSpecs, device_name, spec_names
from hami.node.grant import CONTROL_NODES
from hami.node.grant_builder import GrantBuilder
from hami.node.host import MIN_AGE_S
from hami.node.limits import ContainerLimits, DeviceLimit
from hami.node.memory_wall import MemoryWall
from hami.node.refusals import REFUSALS
from hami.plugin import api_pb2 as api
from hami.plugin.allocation_time import start_time_config
from hami.plugin.start_time import StartTimeAllocator, needs_completion
from testing.builders import NVIDIA
from testing.cases import cases
from testing.plugin_stage import (
    ALLOCATED,
    CARDS,
    FPGA,
    GPU,
    INIT,
    NODE,
    PHASE,
    SIDECAR,
    TO_ALLOCATE,
    A,
    B,
    C,
    FakeHost,
    Stage,
    asking,
    ids,
    lock_of,
    placed,
    share,
)
from tests.node.test_dynamic_mig import CUT, KEY, Driver, cut, mig_of, partition


def bound(*containers, **fields):
    """A pod that was bound without a node lock."""
    return placed(*containers, **{"bind_phase": "success", "left": ""} | fields)


ONE = bound(asking(), shares=[[share(A, 3000, 30)]])
PAIR = bound(asking("a"), asking("b", 2), shares=[[share(A, 1)], [share(B, 2), share(C, 3)]])


class Recording(FakeHost):
    """A host with the kubelet's checkpoint; ``error``: what reading it raises."""

    def __init__(self):
        super().__init__()
        self.entries = []
        self.kept = []
        self.unreadable = None

    def allocations(self):
        if self.unreadable:
            raise self.unreadable
        return self.entries

    def served(self, resource):
        return frozenset((one.pod_uid, one.container) for one in self.entries or ())

    def prepare(self, uid, container, *, keep=False):
        self.kept.append(keep)
        return super().prepare(uid, container)


class StartStage(Stage):
    """A node in start-time mode, with *pods* on it. *folder*: of the specifications."""

    def __init__(self, folder, *pods, edits=lambda names: [], **fields):
        self.folder, self._edits = folder, edits
        super().__init__(*pods, **fields)
        self.host = Recording()
        self.start()

    def start(self):
        super().start()
        self.config = start_time_config(self.config)
        self.specs = ContainerSpecs(
            self.folder, now=lambda: time.time() + 2 * MIN_AGE_S, edits=self._edits
        )
        grants = GrantBuilder(
            self.config, self.cluster, self.inventory, self.host, self.mig, node_pods=self.watch
        )
        self.allocator = StartTimeAllocator(
            self.config,
            self.cluster,
            NVIDIA,
            self.host,
            grants,
            self.specs,
            MemoryWall(self.config, self.folder / "driver"),
            node_pods=self.watch,
        )

    def admit(self, container, *device_ids, name="p", resource=GPU):
        """The kubelet asks for devices of a container, and writes down what it gets; returns the name."""
        grant = self.allocator.allocate(device_ids)
        answer = api.ContainerAllocateResponse(
            envs=dict(grant.env), cdi_devices=[api.CDIDevice(name=one) for one in grant.cdi_devices]
        )
        self.host.entries.append(
            CheckpointEntry(
                pod_uid=f"uid-{name}",
                container=container,
                resource=resource,
                by_numa={"0": list(device_ids)},
                answer=answer.SerializeToString(),
            )
        )
        return spec_names(grant.cdi_devices)[0]

    def edits(self, name):
        """The specification of this name."""
        document = json.loads((self.folder / f"hami.io-container-{name}.json").read_text())
        assert device_name(name) == f"{document['kind']}={document['devices'][0]['name']}"
        return document["devices"][0]["containerEdits"]

    def env(self, name):
        return dict(one.split("=", 1) for one in self.edits(name)["env"])

    def limits(self, name):
        """The cards and memory limits of the specification."""
        env = self.env(name)
        cards = env["NVIDIA_VISIBLE_DEVICES"].split(",")
        return [
            (card, env[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"]) for place, card in enumerate(cards)
        ]


@pytest.fixture
def stage(tmp_path):
    """Makes a node in start-time mode."""
    return lambda *pods, **fields: StartStage(tmp_path / "cdi", *pods, **fields)


def refusal(stage, *device_ids):
    with pytest.raises(Rejected) as caught:
        stage.allocator.pre_start(device_ids)
    return str(caught.value)


# ---- the driver's own limit of memory


def test_a_specification_has_the_hook_of_the_memory_wall(stage, tmp_path):
    (tmp_path / "vgpu").mkdir()
    (tmp_path / "vgpu" / "hami-memory-wall").write_text("program")
    one = stage(ONE, memory_by="both", hook_path=str(tmp_path))
    name = one.admit("c", *ids(A))
    one.allocator.pre_start(ids(A))
    (hook,) = one.edits(name)["hooks"]
    assert hook["hookName"] == "createRuntime"
    assert hook["args"][-2:] == ["--limit", f"{A}={3000 << 20}"]


def test_a_start_is_refused_where_the_driver_has_to_limit_and_cannot_be_told(stage, tmp_path):
    one = stage(ONE, memory_by="driver", hook_path=str(tmp_path))
    name = one.admit("c", *ids(A))
    with pytest.raises(HostError, match="hami-memory-wall is missing"):
        one.allocator.pre_start(ids(A))
    assert one.specs.read(name) is None


# ---- Allocate


def test_allocate_answers_with_a_new_name_and_no_call(stage):
    one = stage(ONE)
    grants = [one.allocator.allocate(ids(A)) for _ in range(3)]
    assert {len(grant.cdi_devices) for grant in grants} == {1}
    assert len({name for grant in grants for name in spec_names(grant.cdi_devices)}) == 3
    assert [(grant.env, grant.mounts, grant.devices, grant.annotations) for grant in grants] == [
        ({}, (), (), {})
    ] * 3
    assert one.cluster.calls == []


@cases(
    "asked, why",
    ("none", (), "requested no devices"),
    ("unknown", ("GPU-9-0",), "not on this node: GPU-9-0"),
    ("twice", (f"{A}-0", f"{A}-0"), "a device twice"),
)
def test_ids_are_checked(stage, asked, why):
    with pytest.raises(Rejected, match=why):
        stage(ONE).allocator.allocate(asked)


def test_variables_of_the_specification_stay_preferred_where_they_were(stage):
    one = stage(PAIR, log_level="3", disable_core_limit=True)
    assert one.allocator.allocate(ids(B, C)).env == {
        "LIBCUDA_LOG_LEVEL": "3",
        "GPU_CORE_UTILIZATION_POLICY": "disable",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    name = one.admit("b", *ids(B, C))
    one.allocator.pre_start(ids(B, C))
    assert (
        not {"LIBCUDA_LOG_LEVEL", "GPU_CORE_UTILIZATION_POLICY", "CUDA_DEVICE_ORDER"}
        & one.env(name).keys()
    )


# ---- PreStartContainer


def test_a_container_gets_its_limits_and_files(stage):
    one = stage(ONE)
    name = one.admit("c", *ids(D := CARDS[3].uuid))
    one.allocator.pre_start(ids(D))
    env = one.env(name)
    region = env.pop("CUDA_DEVICE_MEMORY_SHARED_CACHE").removeprefix("/usr/local/vgpu/")
    token, found = one.host.limits["uid-p", "c"]
    assert (f"{token}.cache", found) == (
        region,
        ContainerLimits(devices=(DeviceLimit(A, 3000 << 20, 30),)),
    )
    assert env == {
        "NVIDIA_VISIBLE_DEVICES": A,
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
    }
    own = "/usr/local/vgpu/containers/uid-p_c"
    assert {
        (one["containerPath"], one["hostPath"], one["options"][0])
        for one in one.edits(name)["mounts"]
    } == {
        ("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/libvgpu.so", "ro"),
        ("/usr/local/vgpu/limits", f"{own}/limits", "ro"),
        (f"/usr/local/vgpu/{region}", f"{own}/{region}", "rw"),
        (f"/usr/local/vgpu/{token}.sm", f"{own}/{token}.sm", "rw"),
        ("/tmp/vgpulock", f"{own}/lock", "rw"),
        ("/etc/ld.so.preload", "/usr/local/vgpu/ld.so.preload", "ro"),
    }
    assert (one.host.prepared, one.host.kept) == ([("uid-p", "c")], [True])
    assert one.cluster.calls == [], "everything is known from the watch"


def test_the_pod_s_own_settings_are_honored(stage):
    one = stage(ONE)
    one.cluster.environments["uid-p", "c"] = {
        "CUDA_DISABLE_CONTROL": "true",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }
    name = one.admit("c", *ids(A))
    one.allocator.pre_start(ids(A))
    assert "NVIDIA_VISIBLE_DEVICES" not in one.env(name)
    assert not [
        mount
        for mount in one.edits(name)["mounts"]
        if mount["containerPath"] == "/etc/ld.so.preload"
    ]


def test_a_pod_that_waits_for_the_plugin_of_another_vendor_starts(stage):
    one = stage(
        placed(
            asking(),
            shares=[[share(A, 3000)]],
            left="",
            annotations={FPGA.annotations.to_allocate: "f,FPGA,1,0:;"},
        )
    )
    name = one.admit("c", *ids(A))
    one.allocator.pre_start(ids(A))
    assert one.limits(name) == [(A, "3000m")]


def test_device_nodes_are_passed(stage):
    one = stage(ONE, pass_device_specs=True, dev_root="/driver")
    name = one.admit("c", *ids(A))
    one.allocator.pre_start(ids(A))
    assert {
        "path": "/dev/nvidia4",
        "hostPath": "/driver/dev/nvidia4",
        "permissions": "rw",
    } in one.edits(name)["deviceNodes"]


def test_the_edits_of_the_cards_are_part_of_the_specification(stage, tmp_path):
    (libraries := tmp_path / "driver/usr/lib64").mkdir(parents=True)
    (libraries / "libcuda.so.570.1").touch()
    cards = CdiSpecs(tmp_path / "cards", tmp_path / "driver", Roots(), ())
    cards.update_cards(CARDS)
    one = stage(PAIR, list_strategies=("cdi-cri",), edits=cards.edits)
    name = one.admit("b", *ids(A, A))
    one.allocator.pre_start(ids(A, A))
    edits = one.edits(name)
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidia5", "/dev/nvidia6"]
    assert [mount["containerPath"] for mount in edits["mounts"]].count(
        "/usr/lib64/libcuda.so.570.1"
    ) == 1
    assert {hook["args"][-2] for hook in edits["hooks"]} == {"--link", "--folder"}
    assert one.env(name)["NVIDIA_VISIBLE_DEVICES"] == "void"
    with pytest.raises(HostError, match="no CDI specification has the device .*=GPU-x"):
        cards.edits(["k8s.device-plugin.nvidia.com/gpu=GPU-x"])


def test_every_container_gets_its_own(stage):
    one = stage(PAIR)
    names = [one.admit("a", *ids(C)), one.admit("b", f"{A}-7", f"{B}-7")]
    one.allocator.pre_start((f"{B}-7", f"{A}-7"))
    assert one.limits(names[1]) == [(B, "2m"), (C, "3m")]
    assert one.specs.names() == {names[1]}
    one.allocator.pre_start(ids(C))
    assert one.limits(names[0]) == [(A, "1m")]


def test_ids_that_init_containers_hand_on_serve_all_containers_that_have_them(stage):
    pod = bound(
        asking("i", kind=INIT),
        asking("s", kind=SIDECAR),
        asking("a"),
        shares=[[share(A, 1)], [share(B, 2)], [share(C, 3)]],
    )
    one = stage(pod)
    names = [one.admit("i", *ids(A)), one.admit("s", *ids(A))]
    one.allocator.pre_start(ids(A))
    assert [one.limits(name) for name in names] == [[(A, "1m")], [(B, "2m")]]
    assert len({one.env(name)["CUDA_DEVICE_MEMORY_SHARED_CACHE"] for name in names}) == 2


def test_an_init_container_that_has_ended_does_not_stop_the_next(stage):
    pod = bound(asking("i", kind=INIT), asking("a"), shares=[[share(A, 1)], [share(B, 2)]])
    one = stage(pod)
    names = [one.admit("i", *ids(A)), one.admit("a", *ids(A))]
    one.inventory.report(A, "XID 79")
    one.allocator.pre_start(ids(A))
    assert one.specs.names() == {names[1]}
    one.inventory.report(B, "XID 79")
    assert "unhealthy" in refusal(one, *ids(A))


def test_a_restarted_container_finds_the_same_file(stage):
    one = stage(ONE)
    name = one.admit("c", *ids(A))
    one.allocator.pre_start(ids(A))
    before = (one.folder / f"hami.io-container-{name}.json").stat().st_ino
    one.start()
    one.allocator.pre_start(ids(A))
    assert (one.folder / f"hami.io-container-{name}.json").stat().st_ino == before
    for path in one.folder.iterdir():  # a reboot empties /run
        path.unlink()
    one.allocator.pre_start(ids(A))
    assert one.limits(name) == [(A, "3000m")]


def test_a_container_that_starts_again_gets_what_its_pod_is_to_have(stage):
    """Also in the middle of a resize."""
    one = stage(ONE)
    name = one.admit("c", *ids(A))
    one.allocator.pre_start(ids(A))
    for key, memory_mib in ((RESIZED, 5000), (RESIZE_TARGET, 2000)):
        pod = one.pod()
        one.cluster.put_pod(
            replace(
                pod,
                annotations=pod.annotations | {key: render_shares(((share(A, memory_mib, 40),),))},
            )
        )
        one.allocator.pre_start(ids(A))
        (limit,) = one.host.limits["uid-p", "c"][1].devices
        assert (one.limits(name), limit.memory >> 20, limit.cores) == (
            [(A, f"{memory_mib}m")],
            memory_mib,
            40,
        )


def test_containers_of_admission_mode_start_again(stage):
    one = stage(ONE)
    assert one.allocator.is_recorded() is None
    one.host.entries.append(
        CheckpointEntry(
            pod_uid="uid-p",
            container="c",
            resource=GPU,
            by_numa={"0": [f"{A}-0"]},
            answer=api.ContainerAllocateResponse(envs={"A": "1"}).SerializeToString(),
        )
    )
    one.allocator.pre_start([f"{A}-0"])
    assert one.specs.names() == frozenset()
    assert one.allocator.is_recorded() is False
    one.admit("c", *ids(B))
    assert one.allocator.is_recorded() is True


def by_allocate(container, *device_ids, token="t"):
    """What the kubelet has written down of a container that Allocate has served."""
    mounts = [
        api.Mount(host_path=f"/usr/local/vgpu/containers/uid-p_{container}/{name}")
        for name in ("limits", f"{token}.cache", f"{token}.sm")
    ]
    return CheckpointEntry(
        pod_uid="uid-p",
        container=container,
        resource=GPU,
        by_numa={"0": list(device_ids)},
        answer=api.ContainerAllocateResponse(mounts=mounts).SerializeToString(),
    )


def test_files_that_are_gone_are_written_again_in_admission_mode(stage):
    one = stage(PAIR)
    one.host.entries += [
        by_allocate("a", *ids(A), token="x"),
        by_allocate("b", *ids(B, C), token="y"),
    ]
    assert one.allocator.has_lost_files()
    one.allocator.pre_start(ids(B, C))
    assert {name: token for (_, name), (token, _) in one.host.limits.items()} == {"b": "y"}
    ((_, limits),) = one.host.limits.values()
    assert [(device.uuid, device.memory >> 20) for device in limits.devices] == [(B, 2), (C, 3)]
    assert one.specs.names() == frozenset()
    assert one.allocator.has_lost_files(), "those of the other container"
    one.allocator.pre_start(ids(A))
    prepared = list(one.host.prepared)
    assert not one.allocator.has_lost_files()
    one.allocator.pre_start(ids(A))
    assert one.host.prepared == prepared, "files that are there stay"


def test_a_container_does_not_start_while_its_files_cannot_be_written(stage):
    one = stage()
    one.host.entries.append(by_allocate("c", *ids(A)))
    assert "the API server knows no pod uid-p on this node" in refusal(one, *ids(A))
    one.host.unreadable = HostError("unreadable")
    assert not one.allocator.has_lost_files()


def test_forty_containers_start_at_once(stage):
    pods = [
        bound(asking(), shares=[[share(CARDS[number % 4].uuid, 1000 + number)]], name=f"p{number}")
        for number in range(40)
    ]
    one = stage(*pods)
    names = [one.admit("c", f"{A}-{number}", name=f"p{number}") for number in range(40)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: one.allocator.pre_start([f"{A}-{number}"]), range(40)))
    assert [one.limits(name) for name in names] == [
        [(CARDS[number % 4].uuid, f"{1000 + number}m")] for number in range(40)
    ]


UNBOUND = replace(ONE, annotations={})


@cases(
    "pod, why",
    ("deleted", None, "the API server knows no pod uid-p on this node: it was deleted"),
    (
        "not ours",
        UNBOUND,
        "pod default/p cannot be served: it was not assigned to node n1 by HAMi's scheduler",
    ),
    (
        "revoked",
        bound(asking(), shares=[[share(A)]], bind_phase="failed"),
        "its bind-phase is failed",
    ),
    ("no allocation", bound(asking(), shares=[]), "it has no allocation"),
    (
        "another node's",
        bound(asking(), shares=[[share(A)]], annotations={"hami.io/vgpu-node": "n2"}),
        "not assigned to node n1",
    ),
    ("unknown card", bound(asking(), shares=[[share("GPU-9")]]), "which is not on this node"),
    ("no limit", bound(asking(), shares=[[share(A, 0)]]), "means no limit"),
    (
        "another number",
        bound(asking(count=2), shares=[[share(A), share(B)]]),
        "was allocated 2 devices for container c, but the kubelet chose 1",
    ),
    (
        "no such container",
        bound(asking("d"), shares=[[share(A)]]),
        "was allocated 0 devices for container c",
    ),
)
def test_why_a_container_does_not_start(stage, pod, why):
    one = stage(*[pod] if pod is not None else [])
    one.admit("c", *ids(A))
    assert why in refusal(one, *ids(A))
    assert one.specs.names() == frozenset()


@cases(
    "pod, why",
    ("unreadable", bound(asking(), text="x,y:;"), "missing fields"),
    (
        "more than requested",
        bound(asking(), shares=[[share(A), share(B)]]),
        "expected as many shares",
    ),
)
def test_what_a_tenant_wrote_must_fit_the_pod(stage, pod, why):
    one = stage(pod)
    one.admit("c", *ids(A))
    with pytest.raises(Exception, match=why):
        one.allocator.pre_start(ids(A))
    assert one.specs.names() == frozenset()


def test_a_card_that_recovers_lets_the_container_start(stage):
    one = stage(ONE)
    name = one.admit("c", *ids(A))
    one.inventory.report(A, "XID 79")
    assert (
        refusal(one, *ids(A)) == f"container c was allocated card {A}, which is unhealthy: XID 79"
    )
    one.inventory.report(A, "")
    one.allocator.pre_start(ids(A))
    assert one.limits(name) == [(A, "3000m")]


def test_devices_that_the_kubelet_has_not_recorded(stage):
    one = stage(ONE)
    one.admit("c", *ids(A))
    one.admit("c", *ids(B), resource="example.com/other")
    assert "names 0 containers with the devices" in refusal(one, *ids(B))
    one.admit("c", *ids(A), name="other")
    assert "names 2 containers" in refusal(one, *ids(A))
    one.host.entries = None
    assert "no checkpoint" in refusal(one, *ids(A))
    one.host.unreadable = HostError("the kubelet's checkpoint cannot be read: x")
    with pytest.raises(HostError, match="cannot be read: x"):
        one.allocator.pre_start(ids(A))


def test_an_answer_that_cannot_be_read_names_nothing(stage):
    one = stage(ONE)
    one.host.entries = [
        CheckpointEntry(
            pod_uid="uid-p",
            container="c",
            resource=GPU,
            by_numa={"0": [f"{A}-0"]},
            answer=b"\xff\xff",
        )
    ]
    one.allocator.pre_start([f"{A}-0"])
    assert one.specs.names() == frozenset()


def test_a_late_watch_is_replaced_by_a_list(stage):
    one = stage()
    one.watch.lag = lambda: 1
    one.cluster.put_pod(ONE)
    name = one.admit("c", *ids(A))
    one.allocator.pre_start(ids(A))
    assert one.limits(name) == [(A, "3000m")]
    assert len(one.cluster.calls_of("pods_on")) == 1


def test_an_api_server_that_is_away_is_the_reason(stage):
    one = stage()
    one.admit("c", *ids(A))
    one.cluster.fail("pods_on", ClusterError("away"))
    with pytest.raises(ClusterError, match="away"):
        one.allocator.pre_start(ids(A))


def test_a_folder_that_cannot_be_written_is_the_reason(stage):
    one = stage(ONE)
    one.folder.write_text("")
    one.admit("c", *ids(A))
    with pytest.raises(HostError, match="cdi"):
        one.allocator.pre_start(ids(A))


# ---- MIG


@pytest.fixture
def mig_stage(stage):
    """Makes a node whose instances are created when containers start."""

    def make(driver, pod):
        one = stage(pod, operating_mode="mig", cards=CUT)
        one.mig = mig_of(driver, cluster=one.cluster, cards=CUT)
        one.start()
        return one

    return make


def recorded(stage):
    return {one["containerIndex"]: one["migUUID"] for one in json.loads(stage.annotation(KEY))}


def test_a_pod_whose_card_is_gone_is_told_after_some_refusals(tmp_path):
    """Once, though the kubelet asks for ever; a container that starts meanwhile begins anew."""
    refused = []
    one = StartStage(tmp_path, ONE)
    one.admit("c", *ids(A))
    one.allocator.refusals.listeners.append(
        lambda ref, reason, card: refused.append((str(ref), reason))
    )

    def start(times, fault):
        one.inventory.report(A, fault)
        for _ in range(times):
            with suppress(Rejected):
                one.allocator.pre_start(ids(A))

    start(REFUSALS - 1, "lost")
    start(1, "")
    start(REFUSALS - 1, "lost")
    assert refused == []
    start(10, "lost")
    ((pod, reason),) = refused
    assert pod == "default/p"
    assert "delete the pod" in reason


def test_a_container_starts_again_while_nobody_knows_the_state_of_the_cards(tmp_path):
    """As while the driver hangs; one that starts for the first time waits."""
    one = StartStage(tmp_path, ONE)
    name = one.admit("c", *ids(A))
    one.inventory.report_unknown("opened", "the driver has not answered")
    with pytest.raises(Rejected, match="the driver has not answered"):
        one.allocator.pre_start(ids(A))
    one.cluster.put_pod(replace(ONE, phase="Running"))
    one.allocator.pre_start(ids(A))
    assert one.edits(name)["deviceNodes"]


def test_a_specification_lists_the_device_nodes_of_its_cards_alone(tmp_path):
    """What NVIDIA's hook adds, the runtime does not know: a reload of systemd would take it away."""
    one = StartStage(tmp_path, PAIR)
    name = one.admit("b", *ids(B, C))
    one.allocator.pre_start(ids(B, C))
    cards = [card.node for card in CARDS if card.uuid in (B, C)]
    nodes = one.edits(name)["deviceNodes"]
    paths = [node["path"] for node in nodes]
    assert paths == [*CONTROL_NODES, *cards]
    assert {node["permissions"] for node in nodes} == {"rw"}


def test_an_instance_is_created_and_recorded_when_its_container_starts(mig_stage):
    driver = Driver()
    one = mig_stage(driver, cut(partition(1), bind_phase="success", left=""))
    name = one.admit("c0", *ids(B))
    assert (driver.uuids, one.allocator.allocate(ids(B)).env) == ([], {})
    one.allocator.pre_start(ids(B))
    assert (driver.uuids, recorded(one)) == (["MIG-new-1"], {0: "MIG-new-1"})
    assert one.env(name) == {"NVIDIA_VISIBLE_DEVICES": "MIG-new-1"}
    paths = [node["path"] for node in one.edits(name)["deviceNodes"]]
    (card,) = [card for card in CUT if card.node in paths]
    assert paths == [*CONTROL_NODES, card.node, f"/dev/cap-{card.minor}-8-0"]
    one.allocator.pre_start(ids(B))
    assert (driver.uuids, len(one.cluster.calls_of("annotate_pod"))) == (["MIG-new-1"], 1)


def test_instances_of_containers_that_start_together_are_all_recorded(mig_stage):
    one = mig_stage(
        Driver(), cut(partition(1), partition(2, container=1), bind_phase="success", left="")
    )
    one.admit("c0", *ids(A)), one.admit("c1", *ids(B))
    before = one.pod()
    one.watch.lag = lambda: 10
    one.allocator.pre_start(ids(A))
    assert before.resource_version != one.pod().resource_version
    one.cluster.fail("annotate_pod", Conflict("changed", 409))
    one.allocator.pre_start(ids(B))
    assert recorded(one) == {0: "MIG-new-1", 1: "MIG-new-2"}


def test_a_mig_pod_that_was_replaced_gets_nothing(mig_stage):
    pod = cut(partition(1), bind_phase="success", left="")
    one = mig_stage(driver := Driver(), pod)
    one.admit("c0", *ids(A))
    one.watch.lag = lambda: 1
    one.cluster.put_pod(replace(pod, ref=replace(pod.ref, uid="new")))
    assert "it was deleted" in refusal(one, *ids(A))
    assert driver.uuids == []


# ---- preferences


@cases(
    "pods, preferred",
    ("one container", [bound(asking(), shares=[[share(C)]])], (f"{C}-1",)),
    (
        "two",
        [bound(asking(), shares=[[share(C)]]), bound(asking(), shares=[[share(A)]], name="q")],
        (),
    ),
    ("none", [], ()),
)
def test_a_preference_is_a_hint_without_calls(stage, pods, preferred):
    one = stage(*pods)
    assert one.allocator.preferred((f"{A}-0", f"{C}-1"), (), 1) == preferred
    assert one.allocator.preferred((f"{A}-0",), (), 2) == ()
    assert one.cluster.calls == []


# ---- cleanup


def test_only_specifications_that_the_kubelet_does_not_name_are_removed(stage):
    one = stage(PAIR)
    kept, gone = one.admit("a", *ids(A)), "0" * 16
    foreign = one.admit("a", *ids(B), resource="example.com/other")
    for name in (kept, foreign, gone):
        one.specs.write(name, {})
    one.host.unreadable = HostError("away")
    with pytest.raises(HostError):
        one.allocator.sweep()
    one.host.unreadable = None
    one.allocator.sweep()
    assert one.specs.names() == {kept, foreign}
    one.host.entries = None
    one.allocator.sweep()
    assert one.specs.names() == {kept, foreign}


# ---- pods that were bound with a node lock


LOCKED = placed(asking(), shares=[[share(A)]])


@cases(
    "pod, needed",
    ("allocating", LOCKED, True),
    ("bound without a lock", ONE, False),
    ("failed", placed(asking(), shares=[[share(A)]], bind_phase="failed"), False),
    ("another vendor is outstanding", placed(asking(), shares=[[share(A)]], left=";"), False),
    ("ended", replace(LOCKED, phase="Succeeded"), False),
    ("elsewhere", replace(LOCKED, node_name="n2"), False),
)
def test_pods_that_need_completion(pod, needed):
    assert needs_completion(pod, NODE, NVIDIA) is needed


def test_a_pod_is_completed_and_its_lock_released(stage):
    one = stage(LOCKED, lock=lock_of(LOCKED))
    one.deferred.complete_pod(LOCKED.ref, (FPGA.annotations.to_allocate,))
    one.deferred.flush()
    assert (one.annotation(TO_ALLOCATE), one.annotation(PHASE), one.node_lock) == (
        ";",
        "success",
        None,
    )
    assert one.annotation(ALLOCATED) == LOCKED.annotations[ALLOCATED]
    writes = len(one.cluster.calls)
    one.deferred.flush()
    assert len(one.cluster.calls) == writes


def test_another_vendor_s_plugin_completes_the_pod(stage):
    pod = placed(
        asking(), shares=[[share(A)]], annotations={FPGA.annotations.to_allocate: "f,FPGA,1,0:;"}
    )
    one = stage(pod, lock=lock_of(pod))
    one.deferred.complete_pod(pod.ref, (FPGA.annotations.to_allocate,))
    one.deferred.flush()
    assert (one.annotation(TO_ALLOCATE), one.annotation(PHASE), one.node_lock) == (
        ";",
        "allocating",
        lock_of(pod),
    )


@cases(
    "later",
    ("deleted", None),
    ("another one", replace(LOCKED, ref=replace(LOCKED.ref, uid="new"))),
    ("revoked", placed(asking(), shares=[[share(A)]], bind_phase="failed", left="")),
)
def test_a_pod_that_has_changed_is_not_touched(stage, later):
    one = stage(LOCKED, lock=lock_of(LOCKED))
    one.deferred.complete_pod(LOCKED.ref, ())
    one.cluster.delete_pod("default", "p")
    if later is not None:
        one.cluster.put_pod(later)
    one.deferred.flush()
    assert one.node_lock == lock_of(LOCKED)
    assert one.cluster.calls_of("annotate_pod") == []


def test_the_lock_of_another_pod_stays(stage):
    other = "2026-01-02T03:04:05Z,default,other"
    one = stage(LOCKED, lock=other)
    one.deferred.complete_pod(LOCKED.ref, ())
    one.deferred.flush()
    assert (one.annotation(PHASE), one.node_lock) == ("success", other)


def test_a_completion_is_repeated_until_it_is_made(stage):
    one = stage(LOCKED, lock=lock_of(LOCKED))
    one.deferred.complete_pod(LOCKED.ref, ())
    one.cluster.fail("annotate_pod", Conflict("changed", 409))
    one.cluster.fail("annotate_pod", ClusterError("away"))
    one.deferred.flush()
    assert one.node_lock == lock_of(LOCKED)
    one.deferred.flush()
    assert (one.annotation(PHASE), one.node_lock) == ("success", None)
