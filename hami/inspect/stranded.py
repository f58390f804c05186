"""The free devices of a cluster, what of them the usual pods cannot use, and how many more of these fit, for people.

The usual pods are those that hold devices: a command knows no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hami.inspect.tables import OutputRecord
from hami.model import NodePolicy, Pod
from hami.plurals import counted
from hami.scheduling.node_order import node_order_of
from hami.scheduling.refusal import Choice
from hami.scheduling.stranded import FreeDevices
from hami.scheduling.usual_pods import UsualPod
from hami.state import dry_run
from hami.state.stranded import stranded_in
from hami.state.view import View

SHOWN_PODS = 3  # kinds of usual pods in a sentence
MAX_PODS = 10  # in a document


class PodRoom(OutputRecord, frozen=True):
    """A kind of usual pods. *cores* (percent), *memory_mib*, *memory_percent*: of each of its *devices*. *cpu*: cores
    of its node. *pods*: how many more fit if only such pods come."""

    vendor: str
    devices: int
    cores: int
    memory_mib: int
    memory_percent: int
    cpu: float
    pods: int


class TakenRoom(OutputRecord, frozen=True):
    """The room that a placement takes from the usual pods of one kind. *pod*: with the room before. *taken*: how many
    of them do not fit any longer."""

    pod: PodRoom
    taken: int


class FreeReport(OutputRecord, frozen=True):
    """The free parts of devices, added up, and what of them is stranded, by cause. *room*: for the most common pods."""

    devices: int
    free: float
    lacks_cpu: float
    crumbs: float
    not_accepted: float
    room: tuple[PodRoom, ...]


def free_report(view: View) -> FreeReport | None:
    """Returns the report on *view*; ``None`` if too few pods hold devices to say which are usual."""
    stranded = stranded_in(view)
    if stranded is None:
        return None
    total = FreeDevices()
    for free in stranded.devices.values():
        total += free
    room: list[PodRoom] = []
    for kind, pods in list(stranded.room.items())[:MAX_PODS]:
        room.append(_pod_room(kind, pods))
    return FreeReport(
        devices=total.devices,
        free=round(total.free, 2),
        lacks_cpu=round(total.lacks_cpu, 2),
        crumbs=round(total.crumbs, 2),
        not_accepted=round(total.not_accepted, 2),
        room=tuple(room),
    )


def taken_room(view: View, pod: Pod, choice: Choice) -> tuple[TakenRoom, ...]:
    """Returns the room that *choice* for *pod* takes from the usual pods of *view*, the most common ones first; nothing
    if the pod's node policy does not ask for that, or they are not known."""
    order = node_order_of(pod, view.facts.policies.node)
    if order.policy is not NodePolicy.LEAST_WASTE:
        return ()
    before, after = stranded_in(view), stranded_in(dry_run.placed(view, pod, choice))
    if before is None or after is None:
        return ()
    found: list[TakenRoom] = []
    for kind, pods in before.room.items():
        taken = pods - after.room[kind]
        if taken > 0 and len(found) < MAX_PODS:
            found.append(TakenRoom(pod=_pod_room(kind, pods), taken=taken))
    return tuple(found)


def taken_sentence(room: Sequence[TakenRoom]) -> str:
    """Returns *room* in words."""
    texts: list[str] = []
    for each in room[:SHOWN_PODS]:
        texts.append(f"{each.taken:,} of {each.pod.pods:,} with {pod_text(each.pod)}")
    return f"There it takes least room from the usual pods: {'; '.join(texts)}."


def _pod_room(kind: UsualPod, pods: int) -> PodRoom:
    return PodRoom(
        vendor=kind.vendor,
        devices=kind.count,
        cores=kind.cores,
        memory_mib=kind.memory_mib,
        memory_percent=kind.memory_percent,
        cpu=kind.milli_cpu / 1000,
        pods=pods,
    )


def free_sentences(report: FreeReport) -> Iterator[str]:
    """Yields *report* in words."""
    yield f"Free: {report.free:,.1f} of {counted(report.devices, 'device')}{_stranded_text(report)}."
    texts = [f"{pod.pods:,} with {pod_text(pod)}" for pod in report.room[:SHOWN_PODS]]
    yield f"Room for the usual pods, if only one kind comes: {'; '.join(texts)}."


def _stranded_text(report: FreeReport) -> str:
    causes = (
        ("lacks CPU", report.lacks_cpu),
        ("lies in crumbs", report.crumbs),
        ("is of a model that none of them accepts", report.not_accepted),
    )
    stranded = report.lacks_cpu + report.crumbs + report.not_accepted
    if not report.free or not stranded:
        return ""
    parts: list[str] = []
    for cause, devices in causes:
        if devices:
            parts.append(f"{devices / report.free:.1%} {cause}")
    return f"; the usual pods cannot use {stranded / report.free:.1%} of that: {', '.join(parts)}"


def pod_text(pod: PodRoom) -> str:
    """Returns what such a pod requests."""
    amounts: list[str] = []
    if pod.cores:
        amounts.append(f"{pod.cores} cores")
    if pod.memory_mib:
        amounts.append(f"{pod.memory_mib:,} MiB")
    if pod.memory_percent:
        amounts.append(f"{pod.memory_percent} % of the memory")
    text = counted(pod.devices, "device")
    if amounts:
        text += f" ({', '.join(amounts)})"
    if pod.cpu:
        text += f" and {pod.cpu:g} CPU"
    return text
