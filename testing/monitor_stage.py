"""A node for the monitor: pods, a fake driver, processes in control groups, and regions in a directory."""

import struct

from hami.codec.allocation import render_shares
from hami.codec.pods import ContainerRuns, NodePod
from hami.devices.usage import NvmlUsage
from hami.errors import HamiError
from hami.monitor.loop import MonitorLoop
from hami.monitor.processes import HostProcesses
from hami.monitor.region_files import RegionFiles
from testing.builders import NVIDIA, ONLY_NVIDIA, container, pod, share
from testing.fake_nvml import GIB, FakeNvml, Gpu, Process
from testing.region_bytes import UUIDS, region_bytes

NOW = 1_700_000_000.0
CARD, OTHER = "GPU-0", "GPU-1"


def uid_of(name):
    """The uid of a pod, in the form of the API server."""
    number = sum(letter * 7**place for place, letter in enumerate(name.encode())) % 10**12
    return f"6a1f2c44-1b5e-4f1e-9d8c-{number:012d}"


def id_of(name, run=0):
    """The runtime's id of the container of the pod *name*."""
    return f"{sum(name.encode()):062x}{run:02x}"


def node_pod(
    name,
    *uuids,
    memory_mib=1024,
    cores=30,
    priority=None,
    ended=False,
    phase="Running",
    asked=None,
    run=0,
    **fields,
):
    """A pod with one container, ``main``, that has shares of cards."""
    text = render_shares((tuple(share(uuid, memory_mib, cores) for uuid in uuids),))
    env = {} if priority is None else {"CUDA_TASK_PRIORITY": str(priority)}
    limits = {"nvidia.com/gpu": len(uuids) if asked is None else asked}
    return NodePod(
        pod(
            container(limits, name="main"),
            name=name,
            uid=uid_of(name),
            phase=phase,
            annotations={NVIDIA.annotations.allocated: text},
            **fields,
        ),
        {"main": env},
        ContainerRuns({id_of(name, run): "main"}, frozenset({"main"} if ended else ())),
    )


class Stage:
    """The node. ``run`` makes a round; time passes by a second."""

    def __init__(self, path, *gpus, **options):
        self.nvml = FakeNvml(*(gpus or (Gpu(CARD, memory=8 * GIB), Gpu(OTHER, memory=8 * GIB))))
        self.path = path
        self.proc = path / "proc"
        self.now, self.clock = NOW, 1000.0
        self.pods = []
        self.has_driver = True
        self.rounds = MonitorLoop(
            "n1", ONLY_NVIDIA, NVIDIA, self, RegionFiles(path), HostProcesses(self.proc), **options
        )

    def read(self, now):
        try:
            return NvmlUsage(self.nvml).read(now) if self.has_driver else None
        except HamiError:
            return None

    def directory(self, name):
        path = self.path / "vgpu" / "containers" / f"{uid_of(name)}_main"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def region(self, name, *, ours=True, **fields):
        """Makes the region of a container; *ours*: with our limiter."""
        fields = {"uuids": (CARD,), "limits": (GIB,), "cores": (30,)} | fields
        (self.directory(name) / "t.cache").write_bytes(region_bytes(**fields))
        if ours:
            (self.directory(name) / "t.sm").write_bytes(bytes(4096))

    def number(self, name, offset, kind="<i"):
        with open(self.directory(name) / "t.cache", "rb") as file:
            file.seek(offset)
            return struct.unpack(kind, file.read(struct.calcsize(kind)))[0]

    def put(self, name, offset, value, kind="<i"):
        with open(self.directory(name) / "t.cache", "r+b") as file:
            file.seek(offset)
            file.write(struct.pack(kind, value))

    def recent(self, name):
        return self.number(name, 2008904)

    def switch(self, name):
        return self.number(name, 2008900)

    def launch(self, name):
        """What our limiter does at a launch: nothing while it is blocked."""
        if self.recent(name) >= 0:
            self.put(name, 2008904, 2)
            self.put(name, 2008912, int(self.now), "<Q")

    def work(self, name, pid, memory=0, sm=None, card=0, inner=1, run=0):
        """A process of a container on a card, as the driver and the kernel show it."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(
            f"0::/kubepods/burstable/pod{uid_of(name)}/{id_of(name, run)}\n"
        )
        (folder / "status").write_text(f"Name:\tx\nNSpid:\t{pid}\t{inner}\n")
        self.nvml.gpus[card].processes.append(Process(pid, memory, sm))

    def run(self):
        report = self.rounds.run_once(self.pods, self.now, self.clock)
        self.now += 1
        self.clock += 1
        return report

    def usage(self):
        """The devices of containers after a round, by pod."""
        return {one.container.pod.name: one.devices[0] for one in self.run().containers}


def wire(name, version=1):
    """A pod with a share of the card, as the API server writes it."""
    allocated = render_shares(((share(UUIDS[0], 1024, 30),),))
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": uid_of(name),
            "resourceVersion": str(version),
            "annotations": {NVIDIA.annotations.allocated: allocated},
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {"phase": "Running"},
    }
