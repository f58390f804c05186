"""Reads a recording, as the events that a replay goes through: nodes, and pods that come, are bound and end.

The names of nodes are numbers in the order of their real names, since the first by name is taken among equals. A pod
that came before the recording began is there from its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from hami.codec.keys import PREEMPTIBLE
from hami.errors import HamiError, MalformedInput
from hami.inspect.cluster import catalog_of
from hami.inspect.recording import (
    WITH_TAINTS,
    Head,
    Line,
    RecordedBinding,
    RecordedNode,
    RecordedPod,
    RecordedRequirement,
    RecordedShape,
    RecordedTerm,
    charge_of,
    device_of,
)
from hami.inspect.segments import read_segment
from hami.model import (
    Container,
    ContainerKind,
    Device,
    NodePreference,
    NodeRequirement,
    Pod,
    PodRef,
    Taint,
    Toleration,
)
from hami.scheduling.node_resources import NodeResources
from hami.scheduling.pod_request import make_pod_request
from hami.scheduling.usage import Charge
from hami.scheduling.usual_pods import has_room
from hami.state.view import Policies
from hami.vendors.spec import Catalog

MAX_NODES = 20_000
MAX_PODS = 2_000_000
SEEN_S = 5.0
"""A pod that is seen later than so many seconds after its creation was waiting unseen."""
PARTITIONED = "drs"
"""A mode of devices whose partitions a recording has not."""
_KINDS = {kind.value: kind for kind in ContainerKind}
_SHAPE = msgspec.json.Decoder(RecordedShape)

Say = Callable[[str], None]


@dataclass(slots=True, eq=False)
class Life:
    """A pod from its arrival to its end. *since*: from when it waits. *bound*: when it was bound; ``None`` if that is
    not known, or it never was. *node*: to which. *ended*: ``None`` if it still runs. *is_initial*: it was bound when
    the recording began. *number*: in the order of arrival."""

    pod: Pod
    number: int
    since: float
    owner_kind: str = ""
    bound: float | None = None
    node: str = ""
    ended: float | None = None
    how: str = ""
    is_initial: bool = False

    @property
    def is_unbound(self) -> bool:
        """Whether it was never bound."""
        return self.bound is None and not self.is_initial

    def bind_to(self, node: str) -> None:
        """Sets the final name of the node."""
        self.node = node

    def select(self, template: Pod | None) -> None:
        """Takes over the nodes that *template* selects, if there is one."""
        if template is not None:
            self.pod = replace(
                self.pod, node_terms=template.node_terms, preferences=template.preferences
            )


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node is as it is said here from now on. *left*: CPU and memory for pods with devices."""

    at: float
    name: str
    devices: tuple[Device, ...]
    labels: dict[str, str]
    left: NodeResources
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """Pods without devices leave another part of a node."""

    at: float
    name: str
    left: NodeResources


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node has gone."""

    at: float
    name: str


@dataclass(frozen=True, slots=True)
class PodCame:
    """A pod has come."""

    at: float
    life: Life


@dataclass(frozen=True, slots=True)
class PodBound:
    """A pod holds *charges* on *node* from now on, by vendor. *is_first*: it held nothing before."""

    at: float
    life: Life
    node: str
    charges: tuple[tuple[str, tuple[Charge, ...]], ...]
    is_first: bool


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod holds nothing any more."""

    at: float
    life: Life


ReplayEvent = NodeSeen | NodeLeft | NodeGone | PodCame | PodBound | PodGone


@dataclass(slots=True)
class Recording:
    """The past. *has_places*: it says where pods were placed. *notes*: what is left out."""

    vendors: Catalog
    policies: Policies
    events: list[ReplayEvent] = field(default_factory=list)
    pods: int = 0
    has_places: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def begin(self) -> float:
        """When it begins."""
        return self.events[0].at if self.events else 0.0

    @property
    def until(self) -> float:
        """When it ends."""
        return self.events[-1].at if self.events else 0.0


def replayed_vendors(vendors: Catalog) -> frozenset[str]:
    """Returns those whose devices are recorded and replayed: the others decide by facts that a recording has not."""
    return frozenset([vendor.key for vendor in vendors if has_room(vendor)])


def read_recording(paths: Sequence[Path], note: Say, progress: Callable[[int], None]) -> Recording:
    """Returns the recording in the segments *paths*. *progress*: is called with the number of lines, now and then.

    Raises: HamiError, which names the file, the line and the field; OSError.
    """
    builder = _Builder()
    count = 0
    for path in paths:
        for place, line in read_segment(path, note):
            builder.add(line, place)
            count += 1
            if count % 10_000 == 0:
                progress(count)
    return builder.recording()


class _Builder:
    """Makes the events of lines."""

    def __init__(self) -> None:
        self._head: Head | None = None
        self._made: Recording | None = None
        self._at = 0.0
        self._place = ""
        self._order: list[str] = []  # names of nodes
        self._lives: dict[str, Life] = {}
        self._nodes: dict[str, None] = {}
        self._charges: dict[str, PodBound] = {}
        self._templates: dict[bytes, Pod] = {}
        self._alike: dict[bytes, tuple[Container, ...]] = {}
        self._terms: dict[bytes, RecordedShape] = {}  # of templates that select nodes
        self._listed: set[str] | None = None
        self._is_begun = False

    def add(self, line: Line, place: str) -> None:
        """Takes the next line. Raises: HamiError."""
        self._at = max(self._at, line.at)
        self._place = place
        if line.head is not None:
            self._begin(line.head)
        if line.node is not None:
            self._node(line.node)
        if line.node_gone:
            self._node_gone(line.node_gone)
        if line.left is not None:
            resources = NodeResources(line.left.milli_cpu, line.left.memory_mib)
            self._recording.events.append(NodeLeft(self._at, line.left.node, resources))
        if line.pod is not None:
            self._pod(line.pod)
        if line.bound is not None:
            self._bound(line.bound)
        if line.ended is not None:
            self._end(line.ended.uid, line.ended.how)
        if line.is_whole:
            self._finish_list()

    def recording(self) -> Recording:
        """Returns the recording, in which nodes have their final names."""
        recording = self._recording
        width = len(str(len(self._order)))
        names = {
            name: f"node-{number:0{width}}" for number, name in enumerate(self._order, start=1)
        }
        templates: dict[int, Pod] = {}
        for text, shape in self._terms.items():
            template = self._templates[text]
            terms, preferences = _selection(shape, names)
            made = replace(template, node_terms=terms, preferences=preferences)
            templates[id(template.containers)] = made
        for number, event in enumerate(recording.events):
            if isinstance(event, NodeSeen | NodeLeft | NodeGone):
                recording.events[number] = replace(event, name=names.get(event.name, event.name))
            elif isinstance(event, PodBound):
                node = names.get(event.node, event.node)
                recording.events[number] = replace(event, node=node)
                if event.is_first:
                    event.life.bind_to(node)
            elif isinstance(event, PodCame):
                event.life.select(templates.get(id(event.life.pod.containers)))
        return recording

    @property
    def _recording(self) -> Recording:
        if self._made is None:
            raise HamiError(f"{self._place}: head: missing before the first change")
        return self._made

    def _begin(self, head: Head) -> None:
        if self._head is not None and self._head.recording != head.recording:
            raise HamiError(
                f"{self._place}: head.recording: another recording than that of the files before"
            )
        if self._made is None:
            policies = Policies(head.node_policy, head.device_policy)
            try:
                self._made = Recording(catalog_of(head.device_config), policies)
            except HamiError as error:
                raise HamiError(f"{self._place}: head.deviceConfig: {error}") from error
        if head.version < WITH_TAINTS and self._head is None:
            self._made.notes.append("recorded by an earlier hami, without taints")
        self._head = head
        self._listed = set()

    def _finish_list(self) -> None:
        """Ends what is not in the list with which a segment begins."""
        listed, self._listed = self._listed, None
        self._is_begun = True
        if listed is None:
            return
        for uid in self._lives.keys() - listed:
            self._end(uid, "deleted")
        for name in self._nodes.keys() - listed:
            self._node_gone(name)

    def _node(self, node: RecordedNode) -> None:
        if self._listed is not None:
            self._listed.add(node.name)
        if node.name not in self._nodes:
            self._nodes[node.name] = None
            self._put_in_order(node)
        labels = {label.key: label.value for label in node.labels}
        left = NodeResources(node.milli_cpu, node.memory_mib)
        devices = tuple(self._devices(node))
        taints = tuple(Taint(taint.key, taint.value, taint.effect) for taint in node.taints)
        self._recording.events.append(
            NodeSeen(self._at, node.name, devices, labels, left, node.unschedulable, taints)
        )

    def _put_in_order(self, node: RecordedNode) -> None:
        if node.name in self._order:
            return
        if len(self._order) >= MAX_NODES:
            raise HamiError(f"{self._place}: node: more than {MAX_NODES:,} nodes")
        position = 0
        if node.after in self._order:
            position = self._order.index(node.after) + 1
        self._order.insert(position, node.name)

    def _devices(self, node: RecordedNode) -> Iterator[Device]:
        vendors = replayed_vendors(self._recording.vendors)
        for number, record in enumerate(node.devices):
            if record.vendor not in vendors or record.mode == PARTITIONED:
                raise HamiError(
                    f"{self._place}: node.devices[{number}].vendor: {record.vendor!r} with mode "
                    f"{record.mode!r} is not replayed"
                )
            yield device_of(record)

    def _node_gone(self, name: str) -> None:
        if name in self._nodes:
            del self._nodes[name]
            self._recording.events.append(NodeGone(self._at, name))

    def _pod(self, record: RecordedPod) -> None:
        if self._listed is not None:
            self._listed.add(record.uid)
        if record.uid in self._lives:
            return
        recording = self._recording
        recording.pods += 1
        if recording.pods > MAX_PODS:
            raise HamiError(f"{self._place}: pod: more than {MAX_PODS:,} pods")
        template = self._template(bytes(record.shape))
        ref = PodRef(record.namespace, f"pod-{recording.pods}", record.uid)
        pod = replace(template, ref=ref, group=record.group, controller=record.controller)
        since = self._at
        if 0 < record.created < self._at - SEEN_S:
            since = record.created
        life = Life(pod, recording.pods, since, record.owner_kind)
        self._lives[record.uid] = life
        recording.events.append(PodCame(self._at, life))

    def _bound(self, record: RecordedBinding) -> None:
        life = self._lives.get(record.uid)
        if life is None:
            raise HamiError(f"{self._place}: bound.uid: no pod {record.uid!r} has come")
        charges: dict[str, list[Charge]] = {}
        for charge in record.charges:
            charges.setdefault(charge.vendor, []).append(charge_of(charge))
        by_vendor = tuple((vendor, tuple(each)) for vendor, each in sorted(charges.items()))
        last = self._charges.get(record.uid)
        if last is not None and (last.node, last.charges) == (record.node, by_vendor):
            return
        if last is None:
            life.is_initial = not self._is_begun
            life.bound = None if life.is_initial else self._at
            if record.decided >= life.since > 0:
                life.bound = min(record.decided, self._at)
        event = PodBound(self._at, life, record.node, by_vendor, last is None)
        self._charges[record.uid] = event
        self._recording.events.append(event)

    def _end(self, uid: str, how: str) -> None:
        life = self._lives.pop(uid, None)
        self._charges.pop(uid, None)
        if life is not None:
            life.ended, life.how = self._at, how
            self._recording.events.append(PodGone(self._at, life))

    def _template(self, text: bytes) -> Pod:
        """Returns a pod of the shape *text*. Raises: HamiError."""
        if text not in self._templates:
            try:
                shape = _SHAPE.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise HamiError(f"{self._place}: pod.shape: {error}") from error
            self._templates[text] = self._pod_of(shape)
            if shape.terms or shape.preferences:
                self._terms[text] = shape
        return self._templates[text]

    def _pod_of(self, shape: RecordedShape) -> Pod:
        containers: list[Container] = []
        for number, record in enumerate(shape.containers):
            if record.kind not in _KINDS:
                raise HamiError(
                    f"{self._place}: pod.shape.containers[{number}].kind: {record.kind!r}, expected "
                    f"{', '.join(_KINDS)}"
                )
            containers.append(
                Container(
                    name=f"c{number}",
                    kind=_KINDS[record.kind],
                    limits=record.limits,
                    requests=record.requests,
                )
            )
        # pods that nodes serve alike have the same containers, which tells them
        needs = msgspec.structs.replace(shape, priority=0, preempts=True, protected=False)
        alike = self._alike.setdefault(msgspec.json.encode(needs), tuple(containers))
        pod = Pod(
            ref=PodRef("", "", ""),
            containers=alike,
            annotations=shape.annotations,
            labels={PREEMPTIBLE: "false"} if shape.protected else {},
            requests=shape.requests,
            overhead=shape.overhead,
            priority=shape.priority,
            preempts=shape.preempts,
            soft_constraints=shape.soft,
            tolerations=tuple(
                Toleration(each.key, each.operator, each.value, each.effect)
                for each in shape.tolerations
            ),
        )
        recording = self._recording
        try:
            request = make_pod_request(pod, recording.vendors, recording.policies.device)
        except MalformedInput as error:
            raise HamiError(f"{self._place}: pod.shape: {error}") from error
        if request is None:
            raise HamiError(f"{self._place}: pod.shape: it requests no devices")
        replayed = replayed_vendors(recording.vendors)
        for vendor_request in request.vendor_requests:
            key = vendor_request.vendor.key
            if key not in replayed:
                raise HamiError(f"{self._place}: pod.shape: devices of {key} are not replayed")
        return pod


Selection = tuple[tuple[tuple[NodeRequirement, ...], ...], tuple[NodePreference, ...]]
"""The terms that select nodes, and those that prefer some."""


def _selection(shape: RecordedShape, names: dict[str, str]) -> Selection:
    terms = tuple(_requirements(term, names) for term in shape.terms)
    preferences: list[NodePreference] = []
    for term in shape.preferences:
        preferences.append(NodePreference(term.weight, _requirements(term, names)))
    return terms, tuple(preferences)


def _requirements(term: RecordedTerm, names: dict[str, str]) -> tuple[NodeRequirement, ...]:
    return tuple(_requirement(record, names) for record in term.requirements)


def _requirement(record: RecordedRequirement, names: dict[str, str]) -> NodeRequirement:
    values: Iterable[str] = record.values
    if record.nodes:
        values = [names.get(node, node) for node in record.nodes]
    return NodeRequirement(record.key, record.operator, frozenset(values))
