"""The gang of a waiting pod: its pods as they are seen, and how many of them HAMi would place now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hami.inspect.cluster import InspectedCluster
from hami.inspect.tables import OutputRecord
from hami.model import Pod
from hami.plurals import are, counted
from hami.scheduling.pod_request import make_pod_request
from hami.scheduling.refusal import Refusal
from hami.state import dry_run

MAX_TRIED = 256  # pods of a gang


class GangReport(OutputRecord, frozen=True):
    """The gang of a waiting pod, as far as its pods request devices.

    *required*: how many pods are placed together or not at all; ``None`` if that cannot be read. *bound*, *chosen*,
    *waiting*: how many pods are bound, have a node that kube-scheduler has chosen, have neither. *tried*: the pods that
    are not bound, at most 256. *fitting*: how many of them HAMi would place now, one after the other. *lacking*: how
    many of the others lack devices; only of those that the gang still needs, if *required* is known.
    """

    name: str
    required: int | None
    bound: int
    chosen: int
    waiting: int
    tried: int
    fitting: int
    lacking: int


def gang_of(cluster: InspectedCluster, pod: Pod, required: int | None) -> GangReport | None:
    """Returns the gang of *pod*, from the pods of *cluster*; ``None`` if it belongs to none.

    Raises: MalformedInput for an unreadable annotation of *pod*.
    """
    if not pod.group:
        return None
    unbound, bound = gang_members(cluster, pod)
    chosen = sum(bool(other.nominated_node) for other in unbound)
    tried = sorted(
        unbound, key=lambda other: (not other.nominated_node, other.created, other.ref.name)
    )[:MAX_TRIED]
    fitting = _count_fitting(cluster, tried)
    needed = len(tried) if required is None else min(len(tried), max(0, required - bound))
    return GangReport(
        name=pod.group,
        required=required,
        bound=bound,
        chosen=chosen,
        waiting=len(unbound) - chosen,
        tried=len(tried),
        fitting=fitting,
        lacking=max(0, needed - fitting),
    )


def gang_members(cluster: InspectedCluster, pod: Pod) -> tuple[list[Pod], int]:
    """Returns the pods of the gang of *pod* that are not bound, *pod* among them, and how many are; without those that
    have finished."""
    gang = pod.ref.namespace, pod.group
    unbound: dict[str, Pod] = {}
    bound: set[str] = set()
    for other in (*cluster.record.pods, pod):
        if (other.ref.namespace, other.group) != gang or other.is_terminated:
            continue
        if other.node_name:
            bound.add(other.ref.uid)
        else:
            unbound[other.ref.uid] = other
    # a dashboard's record lacks pods that are bound
    for record in cluster.view.facts.pods.values():
        if record.is_running and (record.ref.namespace, record.group) == gang:
            bound.add(record.ref.uid)
    return list(unbound.values()), len(bound - unbound.keys())


def gang_sentences(gang: GangReport) -> Iterator[str]:
    """Yields *gang* in words, for the command line and the page."""
    needs = "needs a number of pods together that could not be read"
    if gang.required is not None:
        needs = f"needs {counted(gang.required, 'pod')} together"
    yield (
        f"It belongs to the gang {gang.name}, which {needs}. Of its pods with devices, {gang.bound:,} "
        f"{are(gang.bound)} bound, {gang.chosen:,} {'has' if gang.chosen == 1 else 'have'} a node that "
        f"kube-scheduler has chosen, and {gang.waiting:,} {'waits' if gang.waiting == 1 else 'wait'}."
    )
    placed = f"HAMi would place {gang.fitting:,} of the {gang.tried:,} that {are(gang.tried)} not bound now"
    if gang.lacking:
        yield f"{placed}: the gang lacks devices for {counted(gang.lacking, 'pod')}."
    else:
        yield f"{placed}: it lacks no devices."


def _count_fitting(cluster: InspectedCluster, pods: Sequence[Pod]) -> int:
    """Returns how many of *pods* HAMi would place, one after the other, each on the node that is chosen for it if there
    is one. Of pods with equal requests, none is tried after one that did not fit."""
    view = cluster.view.what_if(without=[pod.ref.uid for pod in pods])
    refused, fitting = set[object](), 0
    for pod in pods:
        names = cluster.offered
        if pod.nominated_node:
            names = [pod.nominated_node]
        question = (
            make_pod_request(pod, cluster.vendors, view.facts.policies.device),
            pod.scope,
            pod.nominated_node,
        )
        if question in refused:
            continue
        answer, view = dry_run.assume(view, pod, names)
        if isinstance(answer, Refusal):
            refused.add(question)
        else:
            fitting += answer is not None
    return fitting
