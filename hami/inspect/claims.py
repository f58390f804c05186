"""Pods whose claims kube-scheduler allocates. Such claims are not judged: why a pod waits for them is said by
kube-scheduler's own event, and what they hold is shown and counted once they are allocated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hami.inspect.cluster import InspectedCluster, SchedulingEvent
from hami.inspect.explain import event_lines, waiting_line
from hami.inspect.tables import OutputRecord, printable
from hami.inspect.top import age_of
from hami.model import Pod
from hami.plurals import counted

NOT_JUDGED = "kube-scheduler allocates its claims, and they are not judged here"


class ClaimingReport(OutputRecord, frozen=True, tag_field="state", tag="Claiming"):
    """A pod that waits for claims. *claims*: what it names. *managed*: the nodes whose devices HAMi's scheduler
    allocates, and kube-scheduler gives to no claim."""

    namespace: str
    name: str
    age_s: int | None
    scheduler: str
    claims: tuple[str, ...]
    managed: tuple[str, ...]
    events: tuple[SchedulingEvent, ...]


def explain_claims(
    cluster: InspectedCluster, pod: Pod, claims: Sequence[str], events: Sequence[SchedulingEvent]
) -> ClaimingReport:
    """Returns the report on *pod*, which waits for *claims*. *events*: those about it."""
    managed = {name for name, usage in cluster.usages() if usage.device.by_claims}
    return ClaimingReport(
        namespace=pod.ref.namespace,
        name=pod.ref.name,
        age_s=age_of(pod.created, cluster.record.taken),
        scheduler=pod.scheduler_name,
        claims=tuple(claims),
        managed=tuple(sorted(managed)),
        events=tuple(events),
    )


def render_claims(report: ClaimingReport) -> str:
    """Returns *report* as text."""
    return "\n".join(printable(line) for line in _lines(report))


def _lines(report: ClaimingReport) -> Iterator[str]:
    yield waiting_line(report.namespace, report.name, report.age_s, report.scheduler)
    for claim in report.claims:
        yield f"  {claim}"
    yield ""
    yield f"Nothing is said about nodes: {NOT_JUDGED}."
    if report.managed:
        yield (
            f"HAMi's scheduler allocates the devices of {counted(len(report.managed), 'node')}, and kube-scheduler "
            "gives them to no claim that users have written."
        )
    yield from event_lines(report.events)
