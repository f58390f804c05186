"""A node with cards, pods that were placed on it, and a kubelet that asks for them; fakes only at the seams."""

import itertools
import random
from dataclasses import replace

from hami.codec.allocation import render_shares
from hami.errors import ClusterError, HamiError
from hami.model import ContainerKind, Node, Share
from hami.plugin.allocate import Call
from hami.plugin.allocator import Allocator
from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.node.grant import HostFacts
from hami.node.pods import NodePod, NodePodsSnapshot
from hami.devices.inventory import DeviceInventory
from hami.vendors.spec import Catalog, Vendor
from tests.builders import APP, NVIDIA, container
from tests.builders import pod as make_pod
from tests.fake_cluster import FakeCluster

NODE = "n1"
GPU = NVIDIA.count
TO_ALLOCATE, ALLOCATED = NVIDIA.to_allocate, NVIDIA.allocated
LOCK, PHASE = "hami.io/mutex.lock", "hami.io/bind-phase"
FPGA = Vendor(key="FPGA", count="example.com/fpga", to_allocate="hami.io/fpga-devices-to-allocate",
              allocated="hami.io/fpga-devices-allocated", inventory=lambda vendor, node: None)
BOTH = Catalog([NVIDIA, FPGA])


def uuid(number):
    """A UUID as a driver has it."""
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


CARDS = tuple(Card(uuid=uuid(index), index=index, minor=index + 4, model="NVIDIA A40", memory_mib=46068)
              for index in range(4))
A, B, C, D = (card.uuid for card in CARDS)


def share(uuid, memory_mib=1000, cores=0):
    """Part of a card."""
    return Share(uuid, "NVIDIA", memory_mib, cores)


def ids(*uuids):
    """Ids of the kubelet on these cards, none twice."""
    return tuple(f"{uuid}-{place}" for place, uuid in enumerate(uuids))


def asking(name="c", count=1, kind=APP):
    """A container that asks for so many cards, or for none at all."""
    return container({GPU: count} if count else {}, kind=kind, name=name)


def placed(*containers, shares=None, text=None, left=None, name="p", node=NODE, bind_phase="allocating",
           phase="Pending", annotations=None, **fields):
    """A pod that the scheduler has bound, with the shares of each of its containers; *text*, *left*: the annotations
    themselves, where they are not just made of the shares."""
    text = render_shares(tuple(map(tuple, shares or ()))) if text is None else text
    said = {ALLOCATED: text, TO_ALLOCATE: text if left is None else left, PHASE: bind_phase, "hami.io/vgpu-node": node,
            "hami.io/bind-time": "1732072495"}
    said |= annotations or {}
    return make_pod(*containers, name=name, node_name=node, phase=phase, annotations=said, **fields)


def lock_of(pod, at="2026-01-02T03:04:05Z"):
    """The node lock that names *pod*."""
    return f"{at},{pod.ref.namespace},{pod.ref.name}"


def call(count=1, served=None, **fields):
    """A call of the kubelet; *served*: (uid, container) pairs that it has devices for by its own record."""
    return Call(**{"node": NODE, "resource": GPU, "ids": ids(*[A] * count), "vendor": NVIDIA,
                   "served": None if served is None else frozenset(served)} | fields)


class Events:
    """Remembers what was recorded."""

    def __init__(self):
        self.said = []

    def record(self, subject, type, reason, message):
        self.said.append((str(subject), type, reason, message))

    def of(self, subject):
        """The messages about a pod, or the node."""
        return [message for about, _, _, message in self.said if about == str(subject)]


class FakeHost:
    """The host's files as far as the allocator knows them."""

    def __init__(self):
        self.record = None  # the kubelet's; None when it cannot be read
        self.prepared = []
        self.error = None

    def facts(self, *, limited, instances=()):
        if self.error:
            raise self.error
        return HostFacts(library="/usr/local/vgpu/libvgpu.so", instance_nodes=tuple(
            f"/dev/cap-{minor}-{outer}-{inner}" for minor, outer, inner in instances))

    def prepare(self, uid, container):
        self.prepared.append((uid, container))

    def served(self, resource):
        return None if self.record is None else frozenset(self.record)

    def directories(self):
        return frozenset(f"{uid}_{name}" for uid, name in self.prepared)

    def sweep(self, directories, live):
        gone = [(uid, name) for uid, name in self.prepared if f"{uid}_{name}" in directories and uid not in live]
        self.prepared = [one for one in self.prepared if one not in gone]
        return [f"{uid}_{name}" for uid, name in gone]


class ToldCluster(FakeCluster):
    """One whose changes of pods a watch tells of; ``history``: version, name of the pod, what became of it."""

    def __init__(self, **fields):
        self.history = []
        super().__init__(**fields)

    def put_pod(self, pod):
        stored = super().put_pod(pod)
        self.history.append((int(stored.resource_version), (pod.ref.namespace, pod.ref.name), stored))
        return stored

    def delete_pod(self, namespace, name):
        super().delete_pod(namespace, name)
        self.history.append((int(self._next_version()), (namespace, name), None))


class LateWatch:
    """Tells of the changes of a cluster's pods in their order, but not of the latest *lag()*; when *hung()* it does
    not even tell of a write that is waited for."""

    def __init__(self, cluster, lag=lambda: 0, hung=lambda: False):
        self.cluster, self.lag, self.hung = cluster, lag, hung
        self.told = 0

    def now(self):
        self.told = max(self.told, len(self.cluster.history) - self.lag())
        return self.view()

    def holding(self, namespace, name, timeout):
        view = self.now()
        return view if any((pod.ref.namespace, pod.ref.name) == (namespace, name) for pod in view.pods) else None

    def after(self, view, version, timeout):
        if int(version) <= view.version or self.hung():
            return None
        self.told = max(self.told, 1 + [at for at, _, _ in self.cluster.history].index(int(version)))
        return self.view()

    def view(self):
        pods, version = {}, 0
        for version, name, pod in self.cluster.history[:self.told]:
            pods[name] = pod
        return NodePodsSnapshot(tuple(self.resident(pod) for pod in pods.values() if pod and pod.node_name == NODE), version)

    def resident(self, pod):
        return NodePod(pod, {one.name: self.cluster.environments.get((pod.ref.uid, one.name), {})
                              for one in pod.containers})


def before(call):
    """Makes a call that is to be made beside others before them."""
    try:
        value = call()
    except HamiError as error:
        value = error

    def outcome():
        if isinstance(value, HamiError):
            raise value
        return value
    return outcome


def after(call):
    """The same after them, when somebody waits for it."""
    found = []

    def outcome():
        found[:] = found or [before(call)]
        return found[0]()
    return outcome


class Stage:
    """A node, its API server, and the plugin; *served* pods are put on it as bound and locked. *watched*: whether the
    plugin has a watch, ``watch``, and the kubelet a record, without which that is not asked."""

    watched = False

    def __init__(self, *pods, lock=None, cards=CARDS, mig=None, **config):
        self.cluster = ToldCluster(pods=pods)
        self.watch = LateWatch(self.cluster)
        self.wake = None
        self.beside = before
        self.cluster.put_node(Node(name=NODE, annotations={LOCK: lock} if lock else {}))
        self.host = FakeHost()
        self.host.record = set() if self.watched else None
        self.events = Events()
        self.time = 0.0
        self.cards = cards
        self.inventory = DeviceInventory()
        self.inventory.read(cards)
        self.config = PluginConfig(node=NODE, **config)
        self.mig = mig
        self.start()

    def start(self):
        """A new process of the plugin."""
        tokens = (f"token-{number}" for number in itertools.count())
        self.allocator = Allocator(
            self.config, self.cluster, BOTH, self.inventory.roll, self.host, self.mig, self.events,
            watch=self.watch if self.watched else None, wake=self.wake, beside=self.beside,
            clock=lambda: self.time, sleep=self.sleep, token=lambda: next(tokens))

    def remember(self, container, name="p"):
        """The kubelet writes down that the container has its devices, if its record can be read at all."""
        if self.host.record is not None:
            self.host.record.add((f"uid-{name}", container))

    def sleep(self, seconds):
        self.time += max(seconds, 0.01)

    def locked(self, pod):
        """*pod* is bound, and the node locked for it."""
        self.cluster.put_pod(pod)
        self.lock(lock_of(pod))
        return pod

    def lock(self, text):
        node = self.cluster.nodes[NODE]
        self.cluster.put_node(replace(node, annotations={LOCK: text} if text else {}))

    @property
    def held(self):
        """The lock as it stands."""
        return self.cluster.nodes[NODE].annotations.get(LOCK)

    def pod(self, name="p"):
        return self.cluster.pods["default", name]

    def said(self, key, name="p"):
        """An annotation of a pod."""
        return self.pod(name).annotations.get(key)


def limits(grant):
    """Memory limits of a grant by card."""
    return sorted(zip(grant.env["NVIDIA_VISIBLE_DEVICES"].split(","),
                      (grant.env[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"]
                       for place in range(len(grant.env["NVIDIA_VISIBLE_DEVICES"].split(","))))))


class Kubelet:
    """Starts pods as a kubelet does: init containers first, one call a container, and it remembers who has devices.

    *record*: whether what it remembers can be read by the plugin.
    """

    def __init__(self, stage, rng=None, record=True):
        self.stage = stage
        self.rng = rng or random.Random(0)
        self.known = set()
        self.record = record
        stage.host.record = set() if record else None

    def admit(self, pod, remember=lambda name: True):
        """Start *pod*; what each of its containers was handed, by name. It fails as a whole when one call does.

        *remember*: false for a container that the kubelet forgets again, as it dies before it has written it down.
        """
        handed = {}
        for one in pod.containers:
            count = int(one.limits.get(GPU, 0))
            if not count or (pod.ref.uid, one.name) in self.known:
                continue
            asked = self.rng.sample([f"{card.uuid}-{part}" for card in self.stage.cards for part in range(10)], count)
            try:
                handed[one.name] = self.stage.allocator.allocate(asked)
            except HamiError:
                self.fail(pod)
                raise
            if not remember(one.name):
                return handed
            self.known.add((pod.ref.uid, one.name))
            if self.record:
                self.stage.host.record = set(self.known)
        self.set_phase(pod, "Running")
        return handed

    def fail(self, pod):
        self.set_phase(pod, "Failed")

    def set_phase(self, pod, phase):
        stored = self.stage.cluster.pods.get((pod.ref.namespace, pod.ref.name))
        if stored is not None and stored.ref.uid == pod.ref.uid:
            self.stage.cluster.put_pod(replace(stored, phase=phase))


INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR
AWAY = ClusterError("connection refused")
