"""A node with cards, pods that were placed on it, and a kubelet that requests them; fakes only at the seams."""

import functools
import itertools
import random
from dataclasses import replace
from pathlib import Path

from hami.codec.allocation import render_shares
from hami.devices.cards import Card
from hami.devices.inventory import DeviceInventory
from hami.errors import ClusterError, HamiError
from hami.model import ContainerKind, Node, Share
from hami.node.grant import HostFacts
from hami.node.grant_builder import GrantBuilder
from hami.plugin.allocator import Allocator, Clock
from hami.plugin.cleanup import Cleanup, remove_directories
from hami.plugin.container_match import AllocateCall
from hami.plugin.deferred_writes import DeferredWrites
from hami.vendors.spec import Annotations, Catalog, Decision, Resources, Vendor
from testing.builders import APP, NVIDIA, container
from testing.builders import pod as make_pod
from testing.cards import config as plugin_config
from testing.fake_cluster import FakeCluster

NODE = "n1"
GPU = NVIDIA.resources.count
TO_ALLOCATE, ALLOCATED = NVIDIA.annotations.to_allocate, NVIDIA.annotations.allocated
LOCK, PHASE = "hami.io/mutex.lock", "hami.io/bind-phase"
FPGA = Vendor(
    key="FPGA",
    resources=Resources(count="example.com/fpga"),
    decision=Decision(inventory=lambda vendor, node: None),
    annotations=Annotations(
        to_allocate="hami.io/fpga-devices-to-allocate", allocated="hami.io/fpga-devices-allocated"
    ),
)
BOTH = Catalog([NVIDIA, FPGA])


def uuid(number):
    """A UUID as a driver has it."""
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


CARDS = tuple(
    Card(uuid=uuid(index), index=index, minor=index + 4, model="NVIDIA A40", memory_mib=46068)
    for index in range(4)
)
A, B, C, D = (card.uuid for card in CARDS)


def share(uuid, memory_mib=1000, cores=0):
    """Part of a card."""
    return Share(uuid, "NVIDIA", memory_mib, cores)


def ids(*uuids):
    """Ids of the kubelet on these cards, none twice."""
    return tuple(f"{uuid}-{place}" for place, uuid in enumerate(uuids))


def asking(name="c", count=1, kind=APP):
    """A container that requests so many cards, or for none at all."""
    return container({GPU: count} if count else {}, kind=kind, name=name)


def placed(
    *containers,
    shares=None,
    text=None,
    left=None,
    name="p",
    node=NODE,
    bind_phase="allocating",
    phase="Pending",
    annotations=None,
    **fields,
):
    """A pod that the scheduler has bound, with the shares of each of its containers; *text*, *left*: the annotations
    themselves, where they are not just made of the shares."""
    text = render_shares(tuple(map(tuple, shares or ()))) if text is None else text
    scheduled = {
        ALLOCATED: text,
        TO_ALLOCATE: text if left is None else left,
        PHASE: bind_phase,
        "hami.io/vgpu-node": node,
        "hami.io/bind-time": "1732072495",
    }
    return make_pod(
        *containers,
        name=name,
        node_name=node,
        phase=phase,
        annotations=scheduled | (annotations or {}),
        **fields,
    )


def lock_of(pod, at="2026-01-02T03:04:05Z"):
    """The node lock that names *pod*."""
    return f"{at},{pod.ref.namespace},{pod.ref.name}"


def call(count=1, served=None, **fields):
    """A call of the kubelet; *served*: (uid, container) pairs that have devices by its checkpoint."""
    return AllocateCall(
        **{
            "node": NODE,
            "resource": GPU,
            "ids": ids(*[A] * count),
            "vendor": NVIDIA,
            "served": None if served is None else frozenset(served),
        }
        | fields
    )


class Events:
    """Remembers what was recorded."""

    def __init__(self):
        self.recorded = []

    def record(self, subject, type, reason, message, *, replaces=False):
        self.recorded.append((str(subject), type, reason, message))

    def of(self, subject):
        """The messages about a pod, or the node."""
        return [message for about, _, _, message in self.recorded if about == str(subject)]


class FakeHost:
    """The host's files as far as the allocator knows them."""

    def __init__(self):
        self.checkpoint = None  # containers with devices; None if it cannot be read
        self.prepared = []
        self.limits = {}  # by uid and container: the token, and the limits in its files
        self.error = None

    def facts(self, *, limited, cards=(), instances=()):
        if self.error:
            raise self.error
        return HostFacts(
            library="/usr/local/vgpu/libvgpu.so",
            instance_nodes=tuple(
                f"/dev/cap-{minor}-{outer}-{inner}" for minor, outer, inner in instances
            ),
        )

    def prepare(self, uid, container, *, keep=False):
        self.prepared.append((uid, container))
        return Path(f"/usr/local/vgpu/containers/{uid}_{container}")

    def write_limits(self, uid, container, token, limits, *, keep=False, durable=True):
        self.limits[uid, container] = token, limits

    def has_limits(self, uid, container):
        return (uid, container) in self.limits

    def served(self, resource):
        return None if self.checkpoint is None else frozenset(self.checkpoint)

    def directories(self):
        return frozenset(f"{uid}_{name}" for uid, name in self.prepared)

    def sweep(self, directories, live):
        gone = [
            (uid, name)
            for uid, name in self.prepared
            if f"{uid}_{name}" in directories and uid not in live
        ]
        self.prepared = [one for one in self.prepared if one not in gone]
        return [f"{uid}_{name}" for uid, name in gone]


class WatchedCluster(FakeCluster):
    """One whose changes of pods a watch reports; ``history``: name of the pod, and the pod, ``None`` once deleted."""

    def __init__(self, **fields):
        self.history = []
        super().__init__(**fields)

    def put_pod(self, pod):
        stored = super().put_pod(pod)
        self.history.append(((pod.ref.namespace, pod.ref.name), stored))
        return stored

    def delete_pod(self, namespace, name):
        super().delete_pod(namespace, name)
        self.history.append(((namespace, name), None))


class LateNodePods:
    """Reports the changes of a cluster's pods in order, but not the latest *lag()* of them."""

    def __init__(self, cluster, lag=lambda: 0):
        self.cluster, self.lag = cluster, lag
        self.reported = 0

    def pods(self):
        self.reported = max(self.reported, len(self.cluster.history) - self.lag())
        pods = dict(self.cluster.history[: self.reported])
        return [pod for pod in pods.values() if pod and pod.node_name == NODE]

    def pod(self, uid):
        return next((pod for pod in self.pods() if pod.ref.uid == uid), None)

    def environment(self, uid, container):
        known = any(pod.ref.uid == uid for pod in self.pods())
        return self.cluster.environments.get((uid, container), {}) if known else None


class PromptAllocator(Allocator):
    """One whose deferred writes are made as soon as a call has ended."""

    def allocate(self, device_ids):
        try:
            return super().allocate(device_ids)
        finally:
            self._deferred.flush()


class Stage:
    """A node, its API server, and the plugin, with *pods* on it. *lock*: text of the node lock. *watched*: whether the
    plugin watches the node's pods, ``watch``, and can read the kubelet's checkpoint. *prompt*: whether deferred writes
    are made at the end of each call."""

    def __init__(self, *pods, lock=None, cards=CARDS, mig=None, watched=True, **config):
        self.watched = watched
        self.cluster = WatchedCluster(pods=pods)
        self.watch = LateNodePods(self.cluster)
        self.prompt = True
        self.cluster.put_node(Node(name=NODE, annotations={LOCK: lock} if lock else {}))
        self.host = FakeHost()
        self.host.checkpoint = set() if self.watched else None
        self.events = Events()
        self.time = 0.0
        self.cards = cards
        self.inventory = DeviceInventory()
        self.inventory.update(cards)
        self.config = plugin_config(node=NODE, **config)
        self.mig = mig
        self.start()

    def start(self):
        """A new process of the plugin."""
        tokens = (f"token-{number}" for number in itertools.count())
        watch = self.watch if self.watched else None
        self.deferred = DeferredWrites(
            self.cluster, NODE, TO_ALLOCATE, self.events, sleep=self.sleep
        )
        grants = GrantBuilder(
            self.config,
            self.cluster,
            self.inventory,
            self.host,
            self.mig,
            node_pods=watch,
            token=lambda: next(tokens),
        )
        self.allocator = (PromptAllocator if self.prompt else Allocator)(
            self.config,
            self.cluster,
            BOTH,
            self.host,
            grants,
            self.deferred,
            node_pods=watch,
            clock=Clock(lambda: self.time, self.sleep),
        )
        remove = functools.partial(remove_directories, NODE, self.cluster, self.host)
        self.sweep = Cleanup("sweep", NODE, 60.0, [remove]).step

    def clean_up(self):
        """Cleans up, and makes the deferred writes that follow."""
        steps = [self.allocator.release_stale_lock]
        if self.mig is not None:
            steps.append(self.mig.reconcile)
        Cleanup("cleanup", NODE, 60.0, steps).step()
        self.deferred.flush()

    def remember(self, container, name="p"):
        """The kubelet writes down that the container has its devices, if its checkpoint can be read at all."""
        if self.host.checkpoint is not None:
            self.host.checkpoint.add((f"uid-{name}", container))

    def sleep(self, seconds):
        self.time += max(seconds, 0.01)

    def put_locked(self, pod):
        """*pod* is bound, and the node locked for it."""
        self.cluster.put_pod(pod)
        self.set_lock(lock_of(pod))
        return pod

    def set_lock(self, text):
        node = self.cluster.nodes[NODE]
        self.cluster.put_node(replace(node, annotations={LOCK: text} if text else {}))

    @property
    def node_lock(self):
        """The lock as it stands."""
        return self.cluster.nodes[NODE].annotations.get(LOCK)

    def pod(self, name="p"):
        return self.cluster.pods["default", name]

    def annotation(self, key, name="p"):
        """An annotation of a pod."""
        return self.pod(name).annotations.get(key)


def limits(grant):
    """Memory limits of a grant by card."""
    return sorted(
        zip(
            grant.env["NVIDIA_VISIBLE_DEVICES"].split(","),
            (
                grant.env[f"CUDA_DEVICE_MEMORY_LIMIT_{place}"]
                for place in range(len(grant.env["NVIDIA_VISIBLE_DEVICES"].split(",")))
            ),
        )
    )


class Kubelet:
    """Starts pods as a kubelet does: init containers first, one call a container, and it remembers who has devices.

    *record*: whether the plugin can read its checkpoint.
    """

    def __init__(self, stage, rng=None, record=True):
        self.stage = stage
        self.rng = rng or random.Random(0)
        self.known = set()
        self.record = record
        stage.host.checkpoint = set() if record else None

    def admit(self, pod, remember=lambda name: True):
        """Start *pod*; what each of its containers was handed, by name. It fails as a whole when one call does.

        *remember*: false for a container that the kubelet forgets again, as it dies before it has written it down.
        """
        handed = {}
        for one in pod.containers:
            count = int(one.limits.get(GPU, 0))
            if not count or (pod.ref.uid, one.name) in self.known:
                continue
            every = [f"{card.uuid}-{part}" for card in self.stage.cards for part in range(10)]
            requested = self.rng.sample(every, count)
            try:
                handed[one.name] = self.stage.allocator.allocate(requested)
            except HamiError:
                self.fail(pod)
                raise
            if not remember(one.name):
                return handed
            self.known.add((pod.ref.uid, one.name))
            if self.record:
                self.stage.host.checkpoint = set(self.known)
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
