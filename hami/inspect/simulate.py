"""``hami simulate``, ``hami capacity`` and ``hami replay``: what would be decided about pods, one after the other.

Nothing is written. Pods of manifests pass the admission of the scheduler first. A replay decides about each pod of a
record beside what was recorded before it, so that one difference does not cause others; pods that had ended by the time
of the record are missing, which is itself a reason for differences.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hami.codec.keys import CORDON, NODE_POLICY, is_scheduler_owned
from hami.codec.objects import PriorityClass
from hami.codec.policies import parse_list
from hami.errors import HamiError, MalformedInput
from hami.inspect.claims import NOT_JUDGED
from hami.inspect.cluster import ClusterRecord, InspectedCluster, holders_of, unknown_name
from hami.inspect.manifests import PodSource, with_priority
from hami.inspect.preemption import pod_names
from hami.inspect.refusals import (
    NodeShortage,
    RequestedDevices,
    nearest_nodes,
    node_lines,
    request_lines,
    requested_devices,
)
from hami.inspect.stranded import FreeReport, free_sentences
from hami.inspect.tables import Column, OutputRecord, Style, printable, render_rows
from hami.model import DisruptionBudget, Node, Pod, PodRef
from hami.plurals import counted
from hami.scheduling.preemption import PodGroups, no_pod_group
from hami.scheduling.refusal import Choice, Refusal
from hami.scheduling.refusal_text import refusal_sentence
from hami.state import dry_run
from hami.state.read_pod import assigned_at, bound_at
from hami.state.victims import PreemptionRules, plan_preemption
from hami.state.view import View
from hami.vendors.request import requests_devices

SHOWN_NODES = 3  # nearest nodes
SHOWN_DEVICES = 3  # of each of them
MAX_ADDED = 10_000  # nodes
# pods of capacity on a node: a node may register devices with any number of slots
MAX_COUNTED = 100_000
NOT_LOOKED_AT = (
    "Not looked at, since kube-scheduler decides it: CPU, memory, taints, required affinity and affinity "
    "to pods, topology spread, volumes{}. Preferred node affinity counts. Pods that wait in "
    "the cluster are left out{}."
)
WITHOUT_PREEMPTION = NOT_LOOKED_AT.format(" and preemption", "")
WITH_PREEMPTION = NOT_LOOKED_AT.format(
    "", ", and so are those that the controllers of preempted pods create"
)
DIFFERENCES = (
    "A difference need not be a fault: a snapshot has neither the pods that have ended nor the order of decisions "
    "within a second. A recording has both: see hami record --help."
)
_ADDED = re.compile(r"like=(?P<node>[^:]+):(?P<count>[1-9][0-9]{0,4})")

Admit = Callable[[View, Mapping[str, Any], str], "Pod | str"]
"""Returns a pod (as JSON) as it would be after admission in a namespace of a cluster, or why HAMi does not get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Changes of the cluster that are imagined.

    *added*: nodes as ``like=NODE:3``. *drained*: nodes whose pods are placed again elsewhere. *cordoned*: UUIDs of
    devices. *ended*: pods, as ``namespace/name`` or a name in *namespace*. *policy*: the node policy of the new pods.
    *replicas*: of each workload. ``None``: their own.
    """

    namespace: str = "default"
    added: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    cordoned: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    policy: str | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPreemption:
    """The objects that preemption depends on beside the record. *classes*: PriorityClasses by name. *pod_groups*: reads
    PodGroups."""

    budgets: Sequence[DisruptionBudget] = ()
    classes: Mapping[str, PriorityClass] = field(default_factory=dict)
    pod_groups: PodGroups = no_pod_group


@dataclass(frozen=True, slots=True)
class MovedPod:
    """A pod of a drained node, as its controller would create it again. *has_claims*: some are reserved for it."""

    pod: Pod
    has_claims: bool = False


class PlacedPod(OutputRecord, frozen=True):
    """A pod that would be placed. *cards*: by index. *preempts*: the pods that are evicted for it."""

    workload: str
    pod: str
    node: str
    cards: tuple[str, ...]
    preempts: tuple[str, ...] = ()


class Outcome(OutputRecord, frozen=True):
    """The fate of one workload. *stopped*: why the next pod is not placed, empty if all are.

    *requests*: those of the next pod. *unfit*: the number of nodes that it does not fit. *nodes*: the nearest of them.
    *devices*: how many each reason excludes.
    """

    workload: str
    wanted: int
    placed: int
    stopped: str = ""
    requests: tuple[RequestedDevices, ...] = ()
    unfit: int = 0
    nodes: tuple[NodeShortage, ...] = ()
    devices: dict[str, int] = {}


class SimulationReport(OutputRecord, frozen=True):
    """The outcomes, and where each pod would go."""

    outcomes: tuple[Outcome, ...]
    pods: tuple[PlacedPod, ...]
    with_preemption: bool = False

    @property
    def all_fit(self) -> bool:
        """Reports whether every pod is placed."""
        return all(outcome.placed == outcome.wanted for outcome in self.outcomes)


class NodeCapacity(OutputRecord, frozen=True):
    """The number of further pods of one kind that a node takes."""

    node: str
    pods: int


def change_record(
    record: ClusterRecord, scenario: Scenario
) -> tuple[ClusterRecord, list[MovedPod]]:
    """Returns *record* as in *scenario*, and the pods of drained nodes, which are to be placed again.

    Its slices and claims stay: nothing is decided by them.
    Raises: HamiError for a name that matches nothing.
    """
    nodes = {node.name: node for node in record.nodes}
    for text in scenario.added:
        nodes |= {node.name: node for node in _added(text, nodes)}
    for name in scenario.drained:
        if name not in nodes:
            raise unknown_name("node", name, nodes)
        nodes[name] = replace(nodes[name], unschedulable=True)
    gone = {_pod_named(text, scenario.namespace, record.pods).ref.uid for text in scenario.ended}
    moved = _moved(record, scenario.drained, gone)
    pods: list[Pod] = []
    for pod in record.pods:
        if pod.ref.uid not in gone and pod.node_name not in scenario.drained:
            pods.append(pod)
    changed = replace(record, nodes=tuple(nodes.values()), pods=tuple(pods))
    return _cordoned(changed, scenario.cordoned), moved


def _moved(
    record: ClusterRecord, drained: Collection[str], gone: Collection[str]
) -> list[MovedPod]:
    """Returns the pods of the nodes *drained*, but those that are *gone* (uids)."""
    holders = holders_of(record.claims)
    moved: list[MovedPod] = []
    for pod in record.pods:
        if pod.node_name in drained and pod.ref.uid not in gone:
            moved.append(MovedPod(unbound(pod), pod.ref.uid in holders))
    return moved


def simulate(
    cluster: InspectedCluster,
    sources: Sequence[PodSource],
    moved: Sequence[MovedPod],
    scenario: Scenario,
    admit: Admit,
    preemption: SimulatedPreemption | None = None,
) -> SimulationReport:
    """Returns what would become of the pods *moved* and those of *sources*, in this order. Without *preemption* none
    evicts others.

    Raises: HamiError.
    """
    placer = _Placer(cluster, preemption)
    if preemption is not None:
        sources = [
            replace(source, pod=with_priority(source.pod, preemption.classes)) for source in sources
        ]
    outcomes: list[Outcome] = []
    for item in moved:
        title = f"pod/{item.pod.ref.name}"
        if requests_devices(cluster.vendors, item.pod.containers):
            outcomes.append(placer.place(title, 1, [item.pod]))
        elif item.has_claims:
            outcomes.append(Outcome(title, 1, 0, NOT_JUDGED))
    for number, source in enumerate(sources):
        if scenario.replicas is not None:
            source = replace(source, count=scenario.replicas)
        if source.claims:
            first = _admitted(placer.view, source, scenario, admit)
            if _has_only_claims(cluster, first):
                outcomes.append(Outcome(source.title, source.count, 0, NOT_JUDGED))
                continue
        pods = _numbered(placer, source, number, scenario, admit)
        outcomes.append(placer.place(source.title, source.count, pods))
    return SimulationReport(tuple(outcomes), tuple(placer.placed), preemption is not None)


def _has_only_claims(cluster: InspectedCluster, pod: Pod | str) -> bool:
    """Reports whether *pod*, which names claims, requests no devices beside them; not for the text of a denial."""
    return isinstance(pod, Pod) and not requests_devices(cluster.vendors, pod.containers)


def count_capacity(
    cluster: InspectedCluster, source: PodSource, scenario: Scenario, admit: Admit
) -> list[NodeCapacity]:
    """Returns how many more pods of *source* each node takes, most first.

    Raises: HamiError if the pod is denied or requests no devices.
    """
    return capacity_for(cluster, admitted_pod(cluster, source, scenario, admit))


def admitted_pod(
    cluster: InspectedCluster, source: PodSource, scenario: Scenario, admit: Admit
) -> Pod:
    """Returns a pod of *source* after admission. Raises: HamiError if it is denied or requests no devices."""
    pod = _admitted(cluster.view, source, scenario, admit)
    if isinstance(pod, str):
        raise HamiError(f"{source.title}: {pod}")
    if source.claims and _has_only_claims(cluster, pod):
        raise HamiError(f"{source.title}: {NOT_JUDGED}")
    if not requests_devices(cluster.vendors, pod.containers):
        raise HamiError(f"{source.title} requests no devices that HAMi manages")
    return pod


def capacity_for(cluster: InspectedCluster, pod: Pod) -> list[NodeCapacity]:
    """Returns how many more pods like *pod* each node takes, most first."""
    capacities: list[NodeCapacity] = []
    numbers = itertools.count()
    view = cluster.view
    for name in cluster.offered:
        count = 0
        while count < MAX_COUNTED:
            another = replace(
                pod, ref=PodRef(pod.ref.namespace, pod.ref.name, f"simulated-{next(numbers)}")
            )
            choice = dry_run.choose(view, another, [name])
            if choice is None:
                break
            view, count = dry_run.placed(view, another, choice), count + 1
        if count:
            capacities.append(NodeCapacity(name, count))
    return sorted(capacities, key=lambda capacity: (-capacity.pods, capacity.node))


def render_simulation(report: SimulationReport, style: Style) -> str:
    """Returns *report* as text: the outcomes, then where each pod would go, then what was not looked at."""
    lines: list[str] = []
    for outcome in report.outcomes:
        lines += map(printable, _outcome_lines(outcome))
    if report.pods:
        lines += ["", render_rows(report.pods, _PLACED_COLUMNS, style)]
    for pod in report.pods:
        if pod.preempts:
            names = ", ".join(pod.preempts)
            lines.append(printable(f"{pod.pod} would preempt {names} on {pod.node}"))
    notes = WITH_PREEMPTION if report.with_preemption else WITHOUT_PREEMPTION
    return "\n".join([*lines, "", notes])


def _outcome_lines(outcome: Outcome) -> Iterator[str]:
    if outcome.stopped == NOT_JUDGED:
        yield f"{outcome.workload}: {NOT_JUDGED}"
        return
    yield f"{outcome.workload}: {outcome.placed} of {outcome.wanted} fit"
    if not outcome.stopped:
        return
    yield f"  the next does not: {outcome.stopped}"
    yield from request_lines(outcome.requests)
    for node in outcome.nodes:
        yield from node_lines(node, SHOWN_DEVICES)
    others = outcome.unfit - len(outcome.nodes)
    if others > 0:
        yield f"  and {others:,} more"


def render_capacity(
    title: str,
    capacities: Sequence[NodeCapacity],
    free: FreeReport | None,
    style: Style,
) -> str:
    """Returns the capacity as text, and what is *free* of the cluster, if that is known."""
    total = sum(capacity.pods for capacity in capacities)
    head = printable(f"{counted(total, 'more pod')} like those of {title} fit")
    table = [render_rows(capacities, _CAPACITY_COLUMNS, style), ""] if capacities else []
    sentences = [*free_sentences(free), ""] if free is not None else []
    return "\n".join([head, "", *table, *sentences, WITHOUT_PREEMPTION])


_PLACED_COLUMNS: tuple[Column[PlacedPod], ...] = (
    Column("POD", "pod"),
    Column("NODE", lambda row: row.node or "any"),
    Column("CARDS", lambda row: ",".join(row.cards)),
)
_CAPACITY_COLUMNS: tuple[Column[NodeCapacity], ...] = (
    Column("NODE", "node"),
    Column("PODS", lambda row: f"{row.pods:,}"),
)


class _Placer:
    """Places pods one after the other, on nodes that kube-scheduler offers. *view*: the cluster after the last one."""

    def __init__(self, cluster: InspectedCluster, preemption: SimulatedPreemption | None) -> None:
        self.placed: list[PlacedPod] = []
        self._cluster = cluster
        self._rules: PreemptionRules | None = None
        if preemption is not None:
            self._rules = PreemptionRules(
                now=cluster.record.taken.timestamp(),
                budgets=preemption.budgets,
                pod_groups=preemption.pod_groups,
            )
        self.view = cluster.view
        self._indexes = {
            (node, usage.device.vendor, usage.device.uuid): usage.device.index
            for node, usage in cluster.usages()
        }

    def place(self, title: str, wanted: int, pods: Iterable[Pod | str]) -> Outcome:
        """Places the *pods* of a workload until one does not fit, or is denied, for the reason in its place."""
        for count, pod in enumerate(pods):
            if isinstance(pod, str):
                return Outcome(title, wanted, count, pod)
            answer, self.view = dry_run.assume(self.view, pod, self._cluster.offered)
            preempts: tuple[str, ...] = ()
            evicted = self._preempt(pod) if isinstance(answer, Refusal) else None
            if evicted is not None:
                answer, preempts = evicted
            if isinstance(answer, Refusal):
                return self._refused(title, wanted, count, pod, answer)
            node, devices = "", list[str]()
            if answer is not None:
                node = answer.node
                shares = itertools.chain.from_iterable(answer.placement)
                names = dict.fromkeys((share.type, share.uuid) for share in shares)
                devices = [str(self._indexes.get((node, *name), name[1])) for name in names]
            self.placed.append(PlacedPod(title, pod.ref.name, node, tuple(devices), preempts))
        return Outcome(title, wanted, wanted)

    def _preempt(self, pod: Pod) -> tuple[Choice, tuple[str, ...]] | None:
        """Places *pod* after those that are evicted for it have ended. Returns what it gets, and these pods; ``None``
        if that makes no room for it."""
        if self._rules is None or not pod.preempts:
            return None
        names = self._cluster.offered
        plan = plan_preemption(self.view, pod, names, self._rules)
        if plan is None:
            return None
        left = self.view.what_if(without=(*plan.uids, *plan.awaited))
        choice = dry_run.choose(left, pod, [plan.node])
        if choice is None:
            return None
        self.view = dry_run.placed(left, pod, choice)
        return choice, pod_names(self._cluster, plan.uids)

    def _refused(self, title: str, wanted: int, placed: int, pod: Pod, refusal: Refusal) -> Outcome:
        reasons = {str(reason): count for reason, count in refusal.devices_by_reason.items()}
        return Outcome(
            title,
            wanted,
            placed,
            refusal_sentence(refusal),
            requested_devices(self._cluster, pod),
            refusal.nodes,
            nearest_nodes(self.view, pod, refusal, SHOWN_NODES),
            reasons,
        )


def _numbered(
    placer: _Placer, source: PodSource, number: int, scenario: Scenario, admit: Admit
) -> Iterator[Pod | str]:
    """Yields the pods of *source*, the one with this *number*, each admitted beside those placed before it; or why it
    is denied."""
    for place in range(source.count):
        pod = _admitted(placer.view, source, scenario, admit)
        if not isinstance(pod, str):
            name = source.name if source.count == 1 else f"{source.name}-{place}"
            ref = PodRef(pod.ref.namespace, name, f"simulated-{number}-{place}")
            pod = replace(pod, ref=ref)
        yield pod


def _admitted(view: View, source: PodSource, scenario: Scenario, admit: Admit) -> Pod | str:
    """Returns a pod of *source* after admission, or why it is denied."""
    namespace = source.namespace or scenario.namespace
    pod = dict(source.pod)
    meta = {**pod["metadata"], "namespace": namespace, "name": source.name}
    if scenario.policy:
        meta["annotations"] = {**(meta.get("annotations") or {}), NODE_POLICY: scenario.policy}
    return admit(view, {**pod, "metadata": meta}, namespace)


def _added(text: str, nodes: Mapping[str, Node]) -> Iterator[Node]:
    """Yields the nodes that *text* adds. Their cards are idle, with the UUIDs of the node that they are like."""
    match = _ADDED.fullmatch(text)
    if match is None or int(match["count"]) > MAX_ADDED:
        raise MalformedInput(
            "--add-node", text, f"expected like=NODE:COUNT with a count up to {MAX_ADDED}"
        )
    like = nodes.get(match["node"])
    if like is None:
        raise unknown_name("node", match["node"], nodes)
    annotations = {key: value for key, value in like.annotations.items() if key != CORDON}
    for number in range(1, int(match["count"]) + 1):
        yield replace(
            like, name=f"{like.name}-added-{number}", unschedulable=False, annotations=annotations
        )


def _pod_named(text: str, namespace: str, pods: Sequence[Pod]) -> Pod:
    """Returns the pod that *text* names. Raises: HamiError if there is none."""
    name = text if "/" in text else f"{namespace}/{text}"
    by_name = {str(pod.ref): pod for pod in pods}
    if name not in by_name:
        raise unknown_name("pod with devices", name, by_name)
    return by_name[name]


def _cordoned(record: ClusterRecord, uuids: Collection[str]) -> ClusterRecord:
    """Returns *record* with the cards *uuids* cordoned. Raises: HamiError for one that cannot be."""
    if not uuids:
        return record
    cluster = InspectedCluster(record)
    places = {usage.device.uuid: name for name, usage in cluster.usages()}
    nodes = dict(cluster.nodes)
    for uuid in uuids:
        if uuid not in places:
            raise unknown_name("card", uuid, places)
        name = places[uuid]
        annotations = nodes[name].annotations
        cordoned = [*(parse_list(annotations.get(CORDON)) or ()), uuid]
        nodes[name] = replace(nodes[name], annotations={**annotations, CORDON: ",".join(cordoned)})
    return replace(record, nodes=tuple(nodes.values()))


def unbound(pod: Pod) -> Pod:
    """Returns *pod* as its controller would create it again."""
    annotations = {
        key: text for key, text in pod.annotations.items() if not is_scheduler_owned(key)
    }
    ref = replace(pod.ref, uid=f"again-{pod.ref.uid}")
    return replace(
        pod,
        ref=ref,
        node_name="",
        phase="",
        init_done=False,
        deleting=False,
        annotations=annotations,
    )


# Replay


class ReplayedDecision(OutputRecord, frozen=True):
    """One decision. *cards*, *now_cards*: UUIDs, sorted. *now*: empty if no node fits."""

    pod: str
    node: str
    now: str
    cards: tuple[str, ...]
    now_cards: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Reports whether node and cards are the same."""
        return (self.node, self.cards) == (self.now, self.now_cards)


def replay(record: ClusterRecord) -> list[ReplayedDecision]:
    """Returns the decision on each bound pod that holds devices, in the order in which they were placed."""
    cluster = InspectedCluster(record)
    bookings = cluster.view.bookings
    bound = [pod for pod in record.pods if pod.node_name and pod.ref.uid in bookings]
    view, names = cluster.view.what_if(without=bookings), sorted(cluster.nodes)
    decisions: list[ReplayedDecision] = []
    for pod in sorted(bound, key=_order):
        booking = bookings[pod.ref.uid]
        cards: set[str] = set()
        for _, charges in booking.charges:
            cards.update(charge.uuid for charge in charges)
        node, now_cards = "", set[str]()
        choice = dry_run.choose(view, unbound(pod), names)
        if choice is not None:
            node = choice.node
            for shares in choice.placement:
                now_cards.update(share.uuid for share in shares)
        decisions.append(
            ReplayedDecision(
                pod=str(pod.ref),
                node=pod.node_name,
                now=node,
                cards=tuple(sorted(cards)),
                now_cards=tuple(sorted(now_cards)),
            )
        )
        view = view.what_if(with_=[booking])
    return decisions


def render_replay(decisions: Sequence[ReplayedDecision], style: Style) -> str:
    """Returns the number of differences, these as a table, and what they mean."""
    different = [decision for decision in decisions if not decision.is_same]
    head = f"{counted(len(decisions), 'decision')}, {len(different):,} of them different"
    if not different:
        return head
    return f"{head}\n\n{render_rows(different, _REPLAY_COLUMNS, style)}\n\n{DIFFERENCES}"


def _order(pod: Pod) -> tuple[int, str, str]:
    return assigned_at(pod) or bound_at(pod), pod.created, str(pod.ref)


_REPLAY_COLUMNS: tuple[Column[ReplayedDecision], ...] = (
    Column("POD", "pod"),
    Column("NODE", "node"),
    Column("NOW", lambda row: row.now or "none fits"),
    Column("CARDS", lambda row: ",".join(row.cards)),
    Column("CARDS NOW", lambda row: ",".join(row.now_cards)),
)
