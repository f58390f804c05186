"""A store with one node of two devices; and a decision as tests want it."""

from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE
from hami.model import NodePolicy
from hami.scheduling.node_order import NodeOrder
from hami.scheduling.refusal import Choice
from hami.state.store import Store
from hami.state.view import Policies
from testing.builders import NVIDIA, ONLY_NVIDIA, device_usage, gpu, gpus, node, pod
from testing.replicas import Clock

BOUND = {ASSIGNED_NODE: "n1", "hami.io/vgpu-time": "1", BIND_PHASE: "success"}


def bound_to(name, text, *containers, version="50", **fields):
    """A pod that is bound and carries *text* as its allocation."""
    return pod(
        *(containers or (gpus(),)),
        name=name,
        node_name="n1",
        resource_version=version,
        annotations=BOUND | {NVIDIA.annotations.allocated: text},
        **fields,
    )


def read_pods(cache, node):
    """Records that the pods of *node* have been read. Reports whether it was foreign."""
    mark = cache.foreign_nodes.mark_of(node)
    cache.foreign_nodes.clear(node, mark)
    return mark is not None


class SmallStore(Store):
    """A store with one node of two devices, and short methods for tests."""

    def __init__(self, *nodes, **options):
        self.time = Clock()
        super().__init__(ONLY_NVIDIA, Policies(), clock=self.time, now=self.time.now, **options)
        for one in nodes or (
            node("n1", gpu("GPU-0", memory_mib=8000), gpu("GPU-1", memory_mib=8000, index=1)),
        ):
            self.nodes.upsert(one)

    def place(self, asked, *names):
        answer = self.filtering.assume(asked, names or ("n1",))
        return answer.node if isinstance(answer, Choice) else None

    def used(self, uuid="GPU-0", node="n1"):
        found = next(view for view in device_usage(self)[node] if view.device.uuid == uuid)
        return found.slots_used, found.memory_used_mib, found.cores_used

    def free(self, uuid="GPU-0"):
        return self.used(uuid) == (0, 0, 0)

    def outcome_unknown(self, asked):
        """Starts a bind of *asked* that gets no answer."""
        self.place(asked)
        reservation = self.bindings.start(asked.ref, "n1")
        self.bindings.prepare(reservation)
        self.bindings.mark_unknown(reservation)
        self.bindings.cancel(reservation)
        return reservation


def decide(verdicts, asked, names, policy=NodePolicy.BINPACK, **order):
    """The best of the nodes *names* that fits, or why none fits."""
    rows = verdicts.rows(names)
    return verdicts.choose(asked, rows, NodeOrder(policy, **order)) or verdicts.refuse(
        asked, names, rows
    )
