"""``hami explain pod``: why a pod waits and what would help, or what a bound pod holds and with whom.

The reports are records, which JSON and YAML show as they are; the text is made of them last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from hami.codec.claims import ClaimedDevice
from hami.codec.core_limits import pod_cores_limit
from hami.codec.gangs import pod_group_of
from hami.codec.health import parse_device_health
from hami.codec.keys import DEVICE_HEALTH, MEMORY_WALL, OVER_BUDGET, RESIZE
from hami.errors import HamiError, MalformedInput
from hami.inspect.changes import KINDS, ChangePart, find_changes
from hami.inspect.cluster import InspectedCluster, SchedulingEvent, selection_keys
from hami.inspect.gangs import GangReport, gang_of, gang_sentences
from hami.inspect.gpu_hours import BudgetReport, budget_sentence
from hami.inspect.moves import moves_sentence
from hami.inspect.preemption import PreemptionReport, preemption_of, preemption_sentences
from hami.inspect.refusals import (
    AWAITS_SCHEDULER,
    DeviceShortage,
    NodeShortage,
    ReportPart,
    RequestedDevices,
    by_frequency,
    nearest_lines,
    nearest_nodes,
    node_lines,
    request_lines,
    requested_devices,
)
from hami.inspect.resize_report import ResizeReport, resize_report
from hami.inspect.stranded import TakenRoom, taken_room, taken_sentence
from hami.inspect.tables import gib, printable
from hami.inspect.top import age_of, age_text
from hami.model import DisruptionBudget, Pod, Reason
from hami.plurals import counted
from hami.scheduling.preemption import PodGroups, no_pod_group
from hami.scheduling.refusal import Refusal
from hami.scheduling.refusal_text import refusal_head, refusal_sentence
from hami.state import dry_run
from hami.state.read_pod import bound_at
from hami.state.view import View
from hami.vendors.request import requests_devices
from hami.vendors.shares import held_shares

NEAREST_NODES = 3  # of the short text
SHOWN_SUGGESTIONS = 2  # in the short text
SHOWN_NODES = 5  # nearest nodes of a detailed text that is not wide
SHOWN_DEVICES = 4  # of each of them
MAX_OVER_BUDGET = 1000  # characters
_EXCLUDED = frozenset(
    {
        Reason.TYPE_MISMATCH,
        Reason.UUID_MISMATCH,
        Reason.CUSTOM_RULE,
        Reason.MODE,
        Reason.QOS,
        Reason.APP_CLASS,
        Reason.ALLOCATION_MODE,
    }
)
"""Reasons of devices that the pod does not ask for."""


WITHOUT_NAMES = "pods that you may not see"


class Suggestion(ReportPart, frozen=True):
    """Changes with which the pod would fit *node*."""

    changes: tuple[ChangePart, ...]
    node: str

    @property
    def text(self) -> str:
        """The changes in words."""
        return " and ".join([change.text for change in self.changes])


class WaitingReport(ReportPart, frozen=True, tag_field="state", tag="Waiting"):
    """A pod that waits. *fits*: the node that it would get now. *message*: why it fits none, in one sentence.

    *reasons*: the nodes on which each excludes devices; *devices*: how many it excludes. *nodes*: those that do not
    fit, nearest first. *without_devices*: the number of nodes without any. *suggestions*: what would help; empty if no
    known change does.
    *gang*: the group with which it is placed. *preemption*: who is evicted for it, or would be. *room*: what it takes
    from the usual pods on that node, if its node policy asks for that. *moves*: of other pods, after which it would
    fit; 0 if none are known. *budget*: that of its namespace; ``None`` if it has none. *over_budget*: what became of
    its priority class, since the budget was used; empty if nothing.
    """

    namespace: str
    name: str
    age_s: int | None
    scheduler: str
    requests: tuple[RequestedDevices, ...]
    annotations: Mapping[str, str]
    fits: str
    message: str
    reasons: Mapping[str, tuple[str, ...]]
    devices: Mapping[str, int]
    nodes: tuple[NodeShortage, ...]
    cordoned: tuple[str, ...]
    without_devices: int
    events: tuple[SchedulingEvent, ...]
    suggestions: tuple[Suggestion, ...]
    gang: GangReport | None = None
    preemption: PreemptionReport | None = None
    room: tuple[TakenRoom, ...] = ()
    moves: int = 0
    budget: BudgetReport | None = None
    over_budget: str = ""


class HeldDevice(ReportPart, frozen=True):
    """A part of a device that a container holds. *pods*: the others on it. *index*: ``None`` if it is gone."""

    container: str
    index: int | None
    uuid: str
    memory_mib: int
    cores: int
    pods: tuple[str, ...]


class BoundReport(ReportPart, frozen=True, tag_field="state", tag="Bound"):
    """A pod that is bound. *bound_s*: the seconds since; ``None`` if it is not known. *cores_limit*: percent of a GPU
    that a container may use while no other does; ``None`` if the pod does not say. *resize*: its last one. *unhealthy*:
    what the node says of unhealthy devices among its own. *memory_wall*: how the node's driver limits memory, or why it
    does not; empty if it says nothing. *budget*: that of its namespace; ``None`` if it has none. *over_budget*: what
    became of its priority class, since the budget was used; empty if nothing."""

    namespace: str
    name: str
    node: str
    phase: str
    bound_s: int | None
    requests: tuple[RequestedDevices, ...]
    cards: tuple[HeldDevice, ...]
    problems: tuple[str, ...]
    cores_limit: int | None = None
    resize: ResizeReport | None = None
    unhealthy: tuple[str, ...] = ()
    memory_wall: str = ""
    budget: BudgetReport | None = None
    over_budget: str = ""


def explain_pod(
    cluster: InspectedCluster,
    pod: Pod,
    events: Sequence[SchedulingEvent],
    *,
    budgets: Sequence[DisruptionBudget] = (),
    pod_groups: PodGroups = no_pod_group,
) -> WaitingReport | BoundReport:
    """Returns the report on *pod*. *events*: those about it. *budgets*: the PodDisruptionBudgets of the cluster.
    *pod_groups*: reads PodGroups.

    Raises: HamiError if it requests no devices or has finished.
    """
    has_claims = bool(pod.claim or pod.ref.uid in cluster.claims_by_pod)
    if not has_claims and not requests_devices(cluster.vendors, pod.containers):
        raise HamiError(
            f"pod {pod.ref} requests no devices that HAMi manages; hami vendors lists their resources"
        )
    if pod.is_terminated:
        outcome = f"{pod.phase}: {pod.failure}" if pod.failure else pod.phase
        raise HamiError(f"pod {pod.ref} has finished ({outcome}) and holds no devices")
    if pod.node_name:
        return _bound(cluster, pod)
    return _waiting(cluster, pod, events, budgets, pod_groups)


def render_report(
    report: WaitingReport | BoundReport, *, detailed: bool = False, wide: bool = False
) -> str:
    """Returns *report* as text. *detailed*: what the answer rests on, too; *wide*: with all nodes and cards."""
    if isinstance(report, BoundReport):
        lines = _bound_lines(report)
    else:
        lines = _waiting_lines(report, detailed=detailed or wide, wide=wide)
    return "\n".join(printable(line) for line in lines)


# A pod that waits


def _waiting(
    cluster: InspectedCluster,
    pod: Pod,
    events: Sequence[SchedulingEvent],
    budgets: Sequence[DisruptionBudget],
    pod_groups: PodGroups,
) -> WaitingReport:
    # another scheduler's reservation for it is not in its way
    view = cluster.view.what_if(without=[pod.ref.uid])
    offered = cluster.offered
    group = pod_groups(pod_group_of(pod))
    gang = gang_of(cluster, pod, None if group is None else group.min_count)
    choice = dry_run.choose(view, pod, offered)
    refusal = dry_run.refuse(view, pod, offered) if choice is None else None
    preemption = None
    if refusal is not None or (gang is not None and gang.lacking > 0):
        preemption = preemption_of(cluster, view, pod, gang, budgets, pod_groups)
    report = WaitingReport(
        namespace=pod.ref.namespace,
        name=pod.ref.name,
        age_s=age_of(pod.created, cluster.record.taken),
        scheduler=pod.scheduler_name,
        requests=requested_devices(cluster, pod),
        annotations=_selections(cluster, pod),
        fits=choice.node if choice is not None else "",
        message="",
        reasons={},
        devices={},
        nodes=(),
        cordoned=tuple(sorted(cluster.cordoned & cluster.view.nodes.keys())),
        without_devices=0,
        events=tuple(events),
        suggestions=(),
        gang=gang,
        preemption=preemption,
        room=() if choice is None else taken_room(view, pod, choice),
        over_budget=_over_budget(pod),
    )
    if refusal is None:
        return report
    return _with_refusal(report, cluster, view, pod, refusal)


def _with_refusal(
    report: WaitingReport, cluster: InspectedCluster, view: View, pod: Pod, refusal: Refusal
) -> WaitingReport:
    """Returns *report* on *pod*, which no node of *view* fits, with the reasons and what would help."""
    nodes = nearest_nodes(view, pod, refusal)
    changes = find_changes(cluster, view, pod, [node.node for node in nodes])
    reasons: dict[str, tuple[str, ...]] = {}
    for reason, names in refusal.nodes_by_reason.items():
        reasons[str(reason)] = tuple(sorted(names))
    return replace(
        report,
        message=_message(refusal, nodes),
        reasons=reasons,
        devices={str(reason): count for reason, count in refusal.devices_by_reason.items()},
        nodes=nodes,
        without_devices=len(refusal.unknown),
        suggestions=tuple(Suggestion(change.parts, change.node) for change in changes),
    )


def _selections(cluster: InspectedCluster, pod: Pod) -> dict[str, str]:
    """Returns the annotations with which the pod's author selects nodes and devices."""
    keys = selection_keys(cluster.vendors)
    return {key: text for key, text in sorted(pod.annotations.items()) if key in keys}


def _message(refusal: Refusal, nodes: Sequence[NodeShortage]) -> str:
    """Returns why the pod fits none of *nodes*: no device that it asks for is large enough, or else the reasons."""
    devices: list[DeviceShortage] = []
    for node in nodes:
        devices += [device for device in node.cards if device.reason not in _EXCLUDED]
    if not devices or not all(device.too_small for device in devices):
        return refusal_sentence(refusal)
    largest = max(devices, key=lambda device: (device.memory_mib, device.model))
    size = f"{gib(largest.memory_mib)} GiB"
    why = f"no device is large enough, even if idle: the largest, {largest.model}, has {size}"
    if len({device.model for device in devices}) == 1:
        why = f"no {largest.model} is large enough, even if idle: it has {size}"
    return f"{refusal_head(refusal)}: {why}"


def _waiting_lines(report: WaitingReport, *, detailed: bool, wide: bool) -> Iterator[str]:
    waits = waiting_line(report.namespace, report.name, report.age_s, report.scheduler)
    if report.fits:
        yield f"{waits}: it fits, HAMi would place it on {report.fits} now."
        if report.room:
            yield taken_sentence(report.room)
        yield AWAITS_SCHEDULER
    else:
        yield f"{waits}: {report.message}."
        yield from _suggestion_lines(report, detailed=detailed)
        if not detailed:
            yield from _nearest_lines(report)
    if report.moves:
        yield moves_sentence(
            report.moves, f"hami capacity --pod {report.name} -n {report.namespace} --defragment"
        )
    if report.gang is not None:
        yield from gang_sentences(report.gang)
    if report.preemption is not None:
        yield from preemption_sentences(report.preemption)
    yield from _budget_lines(report)
    if detailed:
        yield from _detail_lines(report, wide=wide)
    yield from event_lines(report.events)
    if not detailed and not report.fits:
        yield "More: -v."


def _detail_lines(report: WaitingReport, *, wide: bool) -> Iterator[str]:
    yield ""
    yield from request_lines(report.requests, report.annotations)
    if not report.fits:
        yield ""
        yield from _refusal_lines(report, wide=wide)
    if report.events:
        yield ""


def _nearest_lines(report: WaitingReport) -> Iterator[str]:
    if not report.nodes:
        return
    more = len(report.nodes) - NEAREST_NODES
    yield f"Nearest, with {more:,} more:" if more > 0 else "Nearest:"
    yield from nearest_lines(report.nodes[:NEAREST_NODES])


def waiting_line(namespace: str, name: str, age_s: int | None, scheduler: str) -> str:
    """Returns the line that says which pod waits, and for how long."""
    waits = "waits"
    if age_s is not None:
        waits = f"has been waiting for {age_text(age_s)}"
    return f"pod {namespace}/{name} {waits} (scheduler {scheduler or 'default-scheduler'})"


def _refusal_lines(report: WaitingReport, *, wide: bool) -> Iterator[str]:
    yield f"It fits none of {counted(len(report.nodes), 'node')} with devices:"
    for nodes, reason in by_frequency(report.reasons):
        yield f"  {nodes}  {reason}"
    if report.cordoned:
        yield f"  {counted(len(report.cordoned), 'node')}  cordoned, not asked"
    shown = report.nodes if wide else report.nodes[:SHOWN_NODES]
    if not shown:
        return
    yield ""
    if len(shown) == len(report.nodes):
        yield "Nearest first:"
    else:
        yield f"Nearest first, {len(shown)} of {len(report.nodes)} (-o wide shows all):"
    for node in shown:
        yield from node_lines(node, len(node.cards) if wide else SHOWN_DEVICES)


def event_lines(events: Sequence[SchedulingEvent]) -> Iterator[str]:
    """Yields why a pod could not be scheduled, in the latest words of each scheduler: the earlier ones are of a cluster
    that has changed."""
    latest = {event.component: event for event in events}
    for event in latest.values():
        times = "once, at" if event.count == 1 else f"{event.count} times, last at"
        yield f"{event.component} ({event.reason}, {times} {event.last}): {event.message}"


def _suggestion_lines(report: WaitingReport, *, detailed: bool) -> Iterator[str]:
    suggestions = report.suggestions
    if not suggestions:
        yield f"No change of the known kinds is enough{f': {KINDS}' if detailed else ''}."
        return
    texts = [f"{suggestion.text} (on {suggestion.node})" for suggestion in suggestions]
    if detailed:
        yield "It would fit if"
        for number, text in enumerate(texts):
            yield f"  {'or ' if number else ''}{text}"
        return
    more = len(texts) - SHOWN_SUGGESTIONS
    also = f"; {more:,} more" if more > 0 else ""
    yield f"It would fit if {', or if '.join(texts[:SHOWN_SUGGESTIONS])}{also}."


# A pod that is bound


def _bound(cluster: InspectedCluster, pod: Pod) -> BoundReport:
    record = cluster.view.facts.pods.get(pod.ref.uid)
    since = bound_at(pod)
    return BoundReport(
        namespace=pod.ref.namespace,
        name=pod.ref.name,
        node=pod.node_name,
        phase=pod.phase,
        bound_s=max(0, int(cluster.record.taken.timestamp()) - since) if since else None,
        requests=requested_devices(cluster, pod),
        cards=(*_held_by_annotations(cluster, pod), *_held_by_claims(cluster, pod)),
        problems=record.problems if record is not None else (),
        unhealthy=_unhealthy(cluster, pod),
        memory_wall=_memory_wall(cluster, pod),
        cores_limit=pod_cores_limit(pod.annotations),
        resize=resize_report(pod.annotations),
        over_budget=_over_budget(pod),
    )


def _over_budget(pod: Pod) -> str:
    """Returns what admission has written, of which no more than it would write: others could have written it."""
    return pod.annotations.get(OVER_BUDGET, "")[:MAX_OVER_BUDGET]


def _budget_lines(report: WaitingReport | BoundReport) -> Iterator[str]:
    if report.over_budget:
        yield f"When it was created: {report.over_budget}."
    if report.budget is not None:
        yield budget_sentence(report.budget)


def _memory_wall(cluster: InspectedCluster, pod: Pod) -> str:
    """Returns what the node of *pod* says of the driver's limit."""
    node = cluster.nodes.get(pod.node_name)
    return "" if node is None else node.annotations.get(MEMORY_WALL, "")


def _unhealthy(cluster: InspectedCluster, pod: Pod) -> tuple[str, ...]:
    """Returns what the node of *pod* says of the unhealthy devices that it holds."""
    node = cluster.nodes.get(pod.node_name)
    if node is None:
        return ()
    uuids: set[str] = set()
    for booking in cluster.bookings_of(pod.ref):
        for _, charges in booking.charges:
            uuids.update(charge.uuid for charge in charges)
    sentences = []
    for uuid, health in parse_device_health(node.annotations.get(DEVICE_HEALTH)).items():
        if uuid in uuids:
            remedy = health.remedy or "not known"
            sentences.append(f"{uuid} is unhealthy: {health.cause}; remedy: {remedy}")
    return tuple(sentences)


def _held_by_annotations(cluster: InspectedCluster, pod: Pod) -> Iterator[HeldDevice]:
    indexes = {
        (usage.device.vendor, usage.device.uuid): usage.device.index
        for usage in cluster.usages_on(pod.node_name)
    }
    for vendor in cluster.vendors.allocated_in(pod.annotations):
        try:
            containers = held_shares(pod.annotations, vendor)
        except MalformedInput:
            continue  # one of the problems of the report
        names = [container.name for container in pod.containers]
        if len(names) != len(containers):  # HAMi up to v2.10 leaves out containers without devices
            names = ["?"] * len(containers)
        for name, shares in zip(names, containers, strict=True):
            for share in shares:
                yield HeldDevice(
                    name,
                    indexes.get((vendor.key, share.uuid)),
                    share.uuid,
                    share.memory_mib,
                    share.cores,
                    _others_on(cluster, pod, vendor.key, share.uuid),
                )


def _held_by_claims(cluster: InspectedCluster, pod: Pod) -> Iterator[HeldDevice]:
    """Yields what claims of kube-scheduler hold for *pod*. What its own claim holds is in its annotations."""
    for claim in cluster.claims_by_pod.get(pod.ref.uid, ()):
        if claim.name == pod.claim:
            continue
        for request in claim.requests:
            for claimed in request.devices:
                yield _held_by_claim(cluster, pod, request.name, claimed)


def _held_by_claim(
    cluster: InspectedCluster, pod: Pod, request: str, claimed: ClaimedDevice
) -> HeldDevice:
    place = (claimed.pool, claimed.device)
    instance = cluster.claimed.instances.get(place)
    amounts = claimed if instance is None else instance.profile
    device = cluster.claimed.devices.get(place)
    index, uuid = None, claimed.device
    others: tuple[str, ...] = ()
    if device is not None:
        index, uuid = device.index, device.uuid
        others = _others_on(cluster, pod, device.vendor, uuid)
    return HeldDevice(request, index, uuid, amounts.memory_mib, amounts.cores, others)


def _others_on(cluster: InspectedCluster, pod: Pod, vendor: str, uuid: str) -> tuple[str, ...]:
    """Returns the other pods on a device of the node of *pod*."""
    others: set[str] = set()
    for other, _ in cluster.holders(pod.node_name, vendor, uuid):
        if other is None:
            others.add(WITHOUT_NAMES)
        elif other.ref != pod.ref:
            others.add(str(other.ref))
    return tuple(sorted(others))


def _bound_lines(report: BoundReport) -> Iterator[str]:
    since = ""
    if report.bound_s is not None:
        since = f", for {age_text(report.bound_s)}"
    yield f"pod {report.namespace}/{report.name} is bound to {report.node}{since} ({report.phase or 'no phase'})"
    yield from request_lines(report.requests)
    yield ""
    yield "It holds" if report.cards else "Its annotations name no devices."
    for device in report.cards:
        yield f"  {device.container}: {_held_text(device)}"
    for sentence in report.unhealthy:
        yield f"  {sentence}"
    for problem in report.problems:
        yield f"  unreadable: {problem}; all devices that it names count as taken"
    yield from _limit_lines(report)
    yield from _budget_lines(report)
    if report.resize is not None:
        yield from ("", f"Resize: {report.resize.sentence}")
        if report.resize.request:
            yield f"  {RESIZE}: {report.resize.request}"


def _limit_lines(report: BoundReport) -> Iterator[str]:
    if report.cores_limit is not None:
        yield f"While no other container works on a GPU, each of its own may use {report.cores_limit} percent of it."
    if report.memory_wall:
        yield f"The driver's own limit of memory on the node: {report.memory_wall}."


def _held_text(device: HeldDevice) -> str:
    place, others = "a card that is gone", "alone on it"
    if device.index is not None:
        place = f"card {device.index}"
    if device.pods:
        others = f"shared with {', '.join(device.pods)}"
    return (
        f"{device.memory_mib:,} MiB and {device.cores} cores of {place} ({device.uuid}), {others}"
    )
