"""The pods that are evicted, or would be, for a pod that waits, as HAMi's scheduler plans it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hami.codec.pods import preempting_on
from hami.inspect.cluster import InspectedCluster
from hami.inspect.gangs import GangReport, gang_members
from hami.inspect.tables import OutputRecord
from hami.model import DisruptionBudget, Pod
from hami.plurals import are, counted
from hami.scheduling.preemption import PodGroups
from hami.state.victims import PreemptionRules, plan_together, pods_together
from hami.state.view import View

SHOWN_PODS = 8  # that a sentence names


class PreemptionReport(OutputRecord, frozen=True, omit_defaults=True):
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
    gang: GangReport | None,
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
    ending = _ending_for(view, pod, node)
    if ending:
        names = pod_names(cluster, ending)
        hidden = len(ending) - len(names)
        return PreemptionReport(node=node, awaited=names, for_it=True, hidden=hidden)
    if not pod.preempts:
        return PreemptionReport(never=True)
    pods = _planned_together(cluster, pod, gang)
    if not pods:
        return None
    rules = PreemptionRules(
        now=cluster.record.taken.timestamp(), budgets=budgets, pod_groups=pod_groups
    )
    uids: list[str] = []
    awaited_uids: list[str] = []
    nodes: dict[str, None] = {}
    violations = 0
    for _, plan in plan_together(view, pods, cluster.offered, rules):
        uids += plan.uids
        awaited_uids += plan.awaited
        violations += plan.violations
        if plan.uids or plan.awaited:
            nodes[plan.node] = None
    evicted, awaited = pod_names(cluster, uids), pod_names(cluster, awaited_uids)
    return PreemptionReport(
        node=", ".join(nodes),
        evicted=evicted,
        awaited=awaited,
        together=len(pods) if pod.group else 0,
        violations=violations,
        hidden=len(uids) + len(awaited_uids) - len(evicted) - len(awaited),
    )


def _ending_for(view: View, pod: Pod, node: str) -> list[str]:
    """Returns the uids of the pods of lower priority on *node* that are ending, for *pod* or for nobody."""
    ending: list[str] = []
    for booking in view.bookings_on(node):
        record = view.facts.pods.get(booking.uid)
        if record is None or booking.priority >= pod.priority:
            continue
        is_ending = record.preempted or record.is_ending
        if is_ending and record.preemptor in ("", pod.ref.uid):
            ending.append(record.ref.uid)
    return ending


def _planned_together(
    cluster: InspectedCluster, pod: Pod, gang: GangReport | None
) -> Sequence[Pod]:
    """Returns the pods for which room is made at the same time: *pod*, with those of its *gang*; none if it is not
    planned for."""
    if gang is None:
        return [pod]
    waiting, bound = gang_members(cluster, pod)
    return pods_together(pod, waiting, bound, gang.required)


def is_possible(view: View, pod: Pod) -> bool:
    """Reports whether pods of lower priority than *pod* hold devices."""
    return any(booking.priority < pod.priority for booking in view.bookings.values())


def pod_names(cluster: InspectedCluster, uids: Iterable[str]) -> tuple[str, ...]:
    """Returns namespace and name of those of the pods that have names here, sorted."""
    return tuple(sorted(str(ref) for ref in map(cluster.ref, uids) if ref is not None))


def preemption_sentences(report: PreemptionReport) -> Iterator[str]:
    """Yields *report* in words, for the command line and the page."""
    if report.never:
        yield "Pods of lower priority hold devices. None is evicted for it: its preemptionPolicy is Never."
    elif not report.node:
        enough = "enough"
        if report.together:
            enough += f" for the {report.together:,} pods of its gang that are placed together"
        yield f"Pods of lower priority hold devices, but to evict those that may be evicted would not be {enough}."
    elif report.for_it or (report.awaited and not report.evicted):
        names = _named(report.awaited, report.hidden)
        verb = are(len(report.awaited) + report.hidden)
        why = "evicted for it" if report.for_it else "deleted"
        yield f"It waits for {names} on {report.node}, which {verb} being {why}."
    else:
        who = "It"
        if report.together > 1:
            who = f"It and {counted(report.together - 1, 'pod')} of its gang"
        pods = counted(len(report.evicted) + report.hidden, "pod")
        names = _named(report.evicted, report.hidden)
        yield f"{who} would preempt {pods} on {report.node}: {names}."
        if report.violations:
            yield f"{counted(report.violations, 'eviction')} would violate a PodDisruptionBudget."


def _named(names: Sequence[str], hidden: int) -> str:
    shown = [*names[:SHOWN_PODS]]
    more = len(names) - len(shown)
    if more:
        shown.append(f"{more} more")
    if hidden:
        shown.append(f"{counted(hidden, 'pod')} of other namespaces")
    return ", ".join(shown)
