"""A cluster in memory with replicas of the scheduler, device plugins and a clock.

Everything runs in the calling thread. A replica sees the cluster through its own client and its own watch.
"""

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hami.codec.allocation import parse_shares
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, NODE_LOCK
from hami.codec.label_selector import parse_selector
from hami.errors import NodeLocked
from hami.runtime.in_flight import InFlight
from hami.runtime.settings import ALLOCATE
from hami.scheduler.admit import Admitter
from hami.scheduler.app import Verbs
from hami.scheduler.bind import Binder
from hami.scheduler.binding_writer import BindingWriter
from hami.scheduler.claim_bind import ClaimBinder
from hami.scheduler.controller import Controller
from hami.scheduler.filter import NodeFilter
from hami.scheduler.lock_states import LockStates
from hami.scheduler.locks import NodeLocks
from hami.scheduler.move_planner import MovePlanner
from hami.scheduler.mover import Mover
from hami.scheduler.planner import PreemptionPlanner
from hami.scheduler.preempt import PreemptionFilter
from hami.scheduler.preemption import Preemptor
from hami.scheduler.remediation import Remediation
from hami.scheduler.resize import Resizer
from hami.scheduler.settings import Settings
from hami.scheduling.usage import peak_charges
from hami.state.read_pod import awaits_allocation
from hami.state.store import Store
from hami.state.view import Policies
from testing.builders import NVIDIA, ONLY_NVIDIA, gpu, gpus, node, pod
from testing.fake_cluster import FakeCluster

NOON = datetime(2026, 8, 21, 12, tzinfo=UTC)


class Clock:
    """A monotonic clock and the time of day; tests advance both."""

    def __init__(self):
        self.seconds = 1000.0
        self.ahead = timedelta()

    def __call__(self):
        return self.seconds

    def wait(self, seconds):
        self.seconds += seconds

    def now(self):
        return NOON + timedelta(seconds=self.seconds - 1000) + self.ahead

    def jump(self, time):
        """Sets the time of day ahead, but not the monotonic clock."""
        self.ahead += time

    def unix(self):
        return int(self.now().timestamp())


SETTINGS = Settings()


class Journal(list):
    """The recorded events as (reason, message), what they are about, and the reasons of which a subject has one."""

    def __init__(self):
        super().__init__()
        self.subjects = []
        self.replaced = set()

    def record(self, about, type, reason, message, *, replaces=False):
        self.append((reason, message))
        if replaces:
            self.replaced.add(reason)
        self.subjects.append(about)

    def reasons(self):
        return [reason for reason, _ in self]


class RecordedMetrics:
    """The recorded reasons and waits."""

    def __init__(self):
        self.reasons, self.waits = [], []
        self.refused, self.lock_wait = self.reasons.append, self.waits.append
        self.preemptions, self.victims, self.bound_after, self.in_vain = [], 0, [], 0
        self.resizes = []
        self.remediations = []
        self.remediation = self.remediations.append
        self.resize = self.resizes.append
        self.moves = []
        self.move = self.moves.append
        self.preemption, self.preemptor_bound = self.preemptions.append, self.bound_after.append

    def evicted(self, pods):
        self.victims += pods

    def preempted_in_vain(self):
        self.in_vain += 1


class FakeLeadership:
    """The leadership of a replica that leads while ``leading`` is true, since ``began``."""

    def __init__(self, leading, began):
        self.leading, self.began = leading, began

    def since(self):
        return self.began

    def leads_until(self):
        return float("inf") if self.leading else 0.0

    def leads(self):
        return self.leading

    def require(self):
        if not self.leading:
            raise NodeLocked("this replica of the scheduler does not lead yet")


class WatchedCluster(FakeCluster):
    """A fake cluster that records every change for watches, and the pods of each node."""

    def __init__(self, **things):
        self.history = {"nodes": [], "pods": []}
        self.on = defaultdict(dict)
        self.bindings = 0
        super().__init__(**things)

    def put_pod(self, pod):
        stored = super().put_pod(pod)
        if stored.node_name:
            self.on[stored.node_name][stored.ref.uid] = stored
        self.history["pods"].append(("upsert", stored))
        return stored

    def put_node(self, node):
        stored = super().put_node(node)
        self.history["nodes"].append(("upsert", stored))
        return stored

    def delete_pod(self, namespace, name):
        pod = self.pods[namespace, name]
        super().delete_pod(namespace, name)
        self.on[pod.node_name].pop(pod.ref.uid, None)
        self.history["pods"].append(("remove", replace(pod, resource_version=self._next_version())))

    def delete_node(self, name):
        node = self.nodes.pop(name)
        self.history["nodes"].append(
            ("remove", replace(node, resource_version=self._next_version()))
        )

    def bind(self, *arguments, **options):
        super().bind(*arguments, **options)
        self.bindings += 1

    def lock_of(self, node):
        return self.nodes[node].annotations.get(NODE_LOCK)

    def allocate(self, node, *, releases=True):
        """Lets the device plugin of *node* allocate the devices of the pod that holds the lock. Returns that pod.

        Pods that were bound without a lock are admitted, too.
        """
        for bound in list(self.pods.values()):
            if bound.node_name == node and awaits_allocation(bound, ONLY_NVIDIA):
                self.put_pod(replace(bound, admitted=True))
        holder = tuple((self.lock_of(node) or "").split(",")[1:])
        pod = self.pods.get(holder)
        if pod is None or pod.node_name != node or pod.annotations.get(BIND_PHASE) != "allocating":
            return None
        key = NVIDIA.annotations.to_allocate
        assert pod.annotations[key], f"{pod.ref} holds the lock and has nothing to be handed out"
        done = {**pod.annotations, BIND_PHASE: "success", key: ""}
        self.put_pod(replace(pod, annotations=done, phase="Running"))
        if releases:
            self.release(node)
        return pod

    def release(self, node):
        annotations = {k: v for k, v in self.nodes[node].annotations.items() if k != NODE_LOCK}
        self.put_node(replace(self.nodes[node], annotations=annotations))

    def charges(self, node):
        """Returns slots, MiB and percent that pods hold, by device of *node*, from their annotations alone."""
        taken = defaultdict(lambda: [0, 0, 0])
        for bound in self.on[node].values():
            if not bound.is_terminated:
                key = NVIDIA.annotations.allocated
                shares = parse_shares(key, bound.annotations.get(key, ""))
                kinds = [container.kind for container in bound.containers]
                for charge in peak_charges(kinds, shares, init_done=bound.init_done):
                    for place, amount in enumerate((charge.slots, charge.memory_mib, charge.cores)):
                        taken[charge.uuid][place] += amount
        return taken


class Replica:
    """One process of the scheduler on *cluster*, which it has just listed.

    Unless *waits_for_locks*, a bind fails if it cannot take its locks at once. *leadership*: makes its leadership; by
    default one that *leads* or not. *sleep*: between attempts of a Binding.
    """

    def __init__(
        self,
        fake,
        clock,
        *,
        cluster=None,
        leads=True,
        vendors=ONLY_NVIDIA,
        policies=None,
        settings=SETTINGS,
        waits_for_locks=False,
        leadership=None,
        sleep=lambda seconds: None,
        claimed=None,
    ):
        self.fake, self.clock, self.cluster = fake, clock, cluster or fake
        self.leadership = leadership(self) if leadership else FakeLeadership(leads, clock())
        self.events, self.metrics = Journal(), RecordedMetrics()
        self.lock_states = LockStates(self.metrics.lock_wait)
        self.cache = Store(
            vendors,
            policies or Policies(),
            clock=clock,
            now=clock.now,
        )
        self.locks = NodeLocks(
            self.cluster,
            self.cache,
            self.lock_states,
            self.events,
            settings.node_lock_timeout,
            leading_since=self.leadership.since,
            clock=clock,
            now=clock.now,
        )
        self.is_watching = True
        claims = (
            ClaimBinder(self.cluster, now=clock.now, sleep=sleep)
            if settings.dra == ALLOCATE
            else None
        )
        writer = BindingWriter(
            self.cluster,
            self.cache,
            claims,
            self.leadership,
            is_watching=lambda: self.is_watching,
            clock=clock,
        )
        self.binder = Binder(
            self.cluster,
            self.cache,
            self.locks,
            self.events,
            self.leadership,
            writer,
            clock=clock,
            sleep=sleep,
        )
        if not waits_for_locks:
            self.binder.lock_timeout_s = 0.0
        self.node_filter = NodeFilter(
            self.cache,
            self.events,
            self.leadership,
            self.metrics,
            is_selected=parse_selector(settings.node_selector),
        )
        in_flight = InFlight()
        planner = PreemptionPlanner(
            self.cluster, settings, in_flight, clock=clock, now=clock.now, used=clock
        )
        self.preemption_filter = PreemptionFilter(
            self.cache, self.leadership, planner, clock=clock, sleep=sleep
        )
        self.preemptor = Preemptor(
            self.cluster,
            self.cache,
            self.events,
            self.leadership,
            planner,
            self.metrics,
            clock=clock,
            now=clock.now,
        )
        self.verbs = Verbs(
            Admitter(self.cache.admissions, settings),
            self.node_filter,
            self.preemption_filter,
            self.binder,
            self.cache.bindings.get,
            in_flight,
        )
        self.resizer = Resizer(
            self.cluster, self.cache, self.events, self.leadership, self.metrics, clock=clock
        )
        self.pods = self.resizer.watched(self.cache.pods)
        self.controller = Controller(
            self.cluster,
            self.cache,
            self.locks,
            self.events,
            self.leadership,
            settings,
            clock=clock,
            now=clock.now,
        )
        self.remediation = Remediation(
            self.cluster,
            self.cache,
            self.events,
            settings,
            self.metrics,
            leads=self.leadership.leads,
            clock=clock,
            claimed=claimed,
        )
        self.mover = Mover(
            self.cluster,
            self.cache,
            self.events,
            settings,
            MovePlanner(
                self.cluster,
                self.cache,
                min_runtime_s=settings.preemption_min_runtime,
                clock=clock,
                now=clock.now,
            ),
            self.metrics,
            leads=self.leadership.leads,
            clock=clock,
        )
        self.cursors = {"nodes": 0, "pods": 0}
        self.relist()

    def relist(self):
        """Lists everything, as a reflector does at first and after it has missed events."""
        started = self.clock()
        for kind, sink, things in (
            ("nodes", self.locks.watched, self.fake.nodes),
            ("pods", self.pods, self.fake.pods),
        ):
            for thing in things.values():
                sink.upsert(thing, started)
            sink.prune({t.name if kind == "nodes" else t.ref.uid for t in things.values()}, started)
            self.cursors[kind] = len(self.fake.history[kind])

    def watch(self, *kinds, events=None):
        """Delivers the next *events* changes of *kinds*; by default all changes."""
        for kind in kinds or ("nodes", "pods"):
            news = self.fake.history[kind][self.cursors[kind] :]
            self.deliver(kind, news if events is None else news[:events])

    def deliver(self, kind, news):
        """Delivers changes and advances the watch by as many."""
        for verb, thing in news:
            getattr(self.locks.watched if kind == "nodes" else self.pods, verb)(thing)
        self.cursors[kind] += len(news)

    def filter(self, pod, names=None):
        """Returns the node that is chosen for *pod*; ``None`` if there is none."""
        return self.node_filter.filter(
            pod, list(self.fake.nodes) if names is None else names
        ).chosen

    def schedule(self, pod):
        """Filters and binds, as kube-scheduler does. Returns the node."""
        node = self.filter(pod)
        assert node is not None
        self.binder.bind(pod.ref, node)
        return node


def cards(name, *taken):
    """A node of A40s."""
    return node(
        name, *(gpu(f"GPU-{name}-{n}", index=n, **fields) for n, fields in enumerate(taken))
    )


def holding(name, on, text, **fields):
    return pod(
        gpus(),
        name=name,
        node_name=on,
        annotations={ASSIGNED_NODE: on, BIND_PHASE: "success", NVIDIA.annotations.allocated: text},
        **fields,
    )


def replica(*nodes, pods=(), policies=None, copies_labels=True, **options):
    fake = WatchedCluster(nodes=nodes, pods=pods, copies_labels=copies_labels)
    return Replica(fake, Clock(), policies=policies, **options)


def without_names(requests):
    """The requests of a claim, with shares that have no names."""
    return tuple(
        replace(request, devices=tuple(replace(device, share_id="") for device in request.devices))
        for request in requests
    )
