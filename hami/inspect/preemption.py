"""The pods that are evicted, or would be, for a pod that waits, as HAMi's scheduler plans it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hami.codec.gangs import pod_group_of
from hami.codec.pods import preempting_on
from hami.inspect.cluster import InspectedCluster
from hami.inspect.gang import gang_members
from hami.inspect.tables import counted
from hami.model import DisruptionBudget, Pod
from hami.scheduling.preemption import PodGroups
from hami.state.preemption import PreemptionRules, plan_together, pods_together
from hami.state.view import View

SHOWN_PODS = 8  # that a sentence names


class PreemptionReport(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """The pods that are evicted for a waiting pod, or would be.

    *node*: where room is made, empty if nowhere. *evicted*: pods that would be evicted. *awaited*: pods that are ending
    already. *for_it*: these are evicted for the pod. *hidden*: how many of all these have no name here. *violations*:
    evictions against a PodDisruptionBudget. *never*: the pod lets nobody be evicted. *together*: for how many pods of
    its gang room is made at the same time, 0 without one; *node* then names all nodes.
    """

    node: str = ""
    evicted: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    for_it: bool = False
    hidden: int = 0
    violations: int = 0
    never: bool = False
    together: int = 0


def preemption_of(
    cluster: InspectedCluster,
    view: View,
    pod: Pod,
    budgets: Sequence[DisruptionBudget],
    pod_groups: PodGroups,
) -> PreemptionReport | None:
    """Returns what preemption does for *pod*, for which, or for whose gang, there is no room in *view*; ``None`` if all
    pods with devices have the same priority or a higher one, or if it is not planned for: its gang needs others first,
    or pods that have not been created. *pod_groups*: reads PodGroups.

    Raises: MalformedInput for an unreadable annotation of *pod*.
    """
    if not is_possible(view, pod):
        return None
    node = preempting_on(pod)
    ending = [
        record.ref.uid
        for booking in view.bookings_on(node)
        if booking.priority < pod.priority
        and (record := view.facts.pods.get(booking.uid)) is not None
        and (record.preempted or record.is_ending)
        and record.preemptor in ("", pod.ref.uid)
    ]
    if ending:
        names = pod_names(cluster, ending)
        return PreemptionReport(
            node=node, awaited=names, for_it=True, hidden=len(ending) - len(names)
        )
    if not pod.preempts:
        return PreemptionReport(never=True)
    rules = PreemptionRules(
        now=cluster.record.taken.timestamp(), budgets=budgets, pod_groups=pod_groups
    )
    group = pod_groups(pod_group_of(pod))
    required = group.min_count if group is not None else None
    members = gang_members(cluster, pod) if pod.group else [pod]
    waiting = [member for member in members if not member.node_name]
    if not (pods := pods_together(pod, waiting, len(members) - len(waiting), required)):
        return None
    together = len(pods) if pod.group else 0
    plans = [plan for _, plan in plan_together(view, pods, cluster.offered, rules)]
    uids = [uid for plan in plans for uid in plan.uids]
    ending = [uid for plan in plans for uid in plan.awaited]
    evicted, awaited = pod_names(cluster, uids), pod_names(cluster, ending)
    nodes = dict.fromkeys(plan.node for plan in plans if plan.uids or plan.awaited)
    return PreemptionReport(
        node=", ".join(nodes),
        evicted=evicted,
        awaited=awaited,
        together=together,
        violations=sum(plan.violations for plan in plans),
        hidden=len(uids) + len(ending) - len(evicted) - len(awaited),
    )


def is_possible(view: View, pod: Pod) -> bool:
    """Reports whether pods of lower priority than *pod* hold devices."""
    return any(booking.priority < pod.priority for booking in view.bookings.values())


def pod_names(cluster: InspectedCluster, uids: Iterable[str]) -> tuple[str, ...]:
    """Returns namespace and name of those of the pods that the record has, sorted."""
    return tuple(sorted(str(cluster.pods[uid].ref) for uid in uids if uid in cluster.pods))


def preemption_sentences(report: PreemptionReport) -> Iterator[str]:
    """Yields *report* in words, for the command line and the page."""
    if report.never:
        yield "Pods of lower priority hold devices. None is evicted for it: its preemptionPolicy is Never."
    elif not report.node:
        enough = "enough" + (
            f" for the {report.together:,} pods of its gang that are placed together"
            if report.together
            else ""
        )
        yield f"Pods of lower priority hold devices, but to evict those that may be evicted would not be {enough}."
    elif report.for_it or (report.awaited and not report.evicted):
        names, verb = (
            _named(report.awaited, report.hidden),
            _are(len(report.awaited) + report.hidden),
        )
        why = "evicted for it" if report.for_it else "deleted"
        yield f"It waits for {names} on {report.node}, which {verb} being {why}."
    else:
        count = len(report.evicted) + report.hidden
        who = (
            f"It and {counted(report.together - 1, 'pod')} of its gang"
            if report.together > 1
            else "It"
        )
        yield f"{who} would preempt {counted(count, 'pod')} on {report.node}: {_named(report.evicted, report.hidden)}."
        if report.violations:
            yield f"{counted(report.violations, 'eviction')} would violate a PodDisruptionBudget."


def _named(names: Sequence[str], hidden: int) -> str:
    shown = [*names[:SHOWN_PODS]]
    if more := len(names) - len(shown):
        shown.append(f"{more} more")
    if hidden:
        shown.append(f"{counted(hidden, 'pod')} of other namespaces")
    return ", ".join(shown)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
