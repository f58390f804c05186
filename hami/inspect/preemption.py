"""The pods that are evicted, or would be, for a pod that waits, as HAMi's scheduler plans it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hami.codec.pods import preempting_on
from hami.inspect.cluster import InspectedCluster
from hami.inspect.tables import counted
from hami.model import DisruptionBudget, Pod
from hami.state.preemption import PreemptionRules, plan_preemption
from hami.state.view import View

SHOWN_PODS = 8  # that a sentence names


class PreemptionReport(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """The pods that are evicted for a waiting pod, or would be.

    *node*: where room is made, empty if nowhere. *evicted*: pods that would be evicted. *awaited*: pods that are ending
    already. *for_it*: these are evicted for the pod. *hidden*: how many of all these have no name here. *violations*:
    evictions against a PodDisruptionBudget. *never*: the pod lets nobody be evicted.
    """

    node: str = ""
    evicted: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    for_it: bool = False
    hidden: int = 0
    violations: int = 0
    never: bool = False


def preemption_of(cluster: InspectedCluster, view: View, pod: Pod,
                  budgets: Sequence[DisruptionBudget]) -> PreemptionReport | None:
    """Returns what preemption does for *pod*, which fits no node of *view*; ``None`` if all pods with devices have the
    same priority or a higher one.

    Raises: MalformedInput for an unreadable annotation of *pod*.
    """
    if not is_possible(view, pod):
        return None
    node = preempting_on(pod)
    ending = [record.ref.uid for booking in view.bookings_on(node)
              if booking.priority < pod.priority and (record := view.facts.pods.get(booking.uid)) is not None
              and (record.preempted or record.ends_by) and record.preemptor in ("", pod.ref.uid)]
    if ending:
        names = pod_names(cluster, ending)
        return PreemptionReport(node=node, awaited=names, for_it=True, hidden=len(ending) - len(names))
    if not pod.preempts:
        return PreemptionReport(never=True)
    rules = PreemptionRules(now=cluster.record.taken.timestamp(), budgets=budgets)
    if (plan := plan_preemption(view, pod, cluster.offered(pod.scheduler_name), rules)) is None:
        return PreemptionReport()
    evicted, awaited = pod_names(cluster, plan.uids), pod_names(cluster, plan.awaited)
    return PreemptionReport(node=plan.node, evicted=evicted, awaited=awaited, violations=plan.violations,
                            hidden=len(plan.uids) + len(plan.awaited) - len(evicted) - len(awaited))


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
        yield "Pods of lower priority hold devices, but to evict those that may be evicted would not be enough."
    elif report.for_it or (report.awaited and not report.evicted):
        names, verb = _named(report.awaited, report.hidden), _are(len(report.awaited) + report.hidden)
        why = "evicted for it" if report.for_it else "deleted"
        yield f"It waits for {names} on {report.node}, which {verb} being {why}."
    else:
        count = len(report.evicted) + report.hidden
        yield f"It would preempt {counted(count, 'pod')} on {report.node}: {_named(report.evicted, report.hidden)}."
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
