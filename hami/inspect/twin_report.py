"""The report of a replay: what happened, what would have happened, and what of that the scheduler decides again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

from hami.codec.times import render_time
from hami.inspect.read_recording import NodeSeen, PodCame, Recording
from hami.inspect.tables import Column, OutputRecord, Style, render_rows
from hami.inspect.twin import Changes, Progress, Tally, replay_changed
from hami.inspect.twin_record import Comparison, replay_recorded
from hami.plurals import counted
from hami.runtime.beside import Beside

EARLIEST = 1_000_000_000  # times of traces begin with 0
LATEST = 253_402_300_799  # Unix seconds, in the year 9999
MANY_PODS = 1_000  # of which both halves of a report are computed at once
TWIN_REPORT = "TwinReport"
"""The kind of the document."""

NOT_RECORDED = (
    "not recorded: quotas, required affinity between pods, topology spread, volumes, node labels compared as "
    "numbers, and pods with claims"
)


class WaitRow(OutputRecord, frozen=True):
    """The waits of pods of one *priority*, those that were never placed until they went, or the recording ended."""

    priority: int
    pods: int
    mean_s: float
    p50_s: float
    p99_s: float


class TwinOutcome(OutputRecord, frozen=True):
    """The fate of the pods. *allocated*: the mean percent of all devices that pods held, null if it is not known.
    *stranded*: that of free devices that are of no use to the usual pods. *waiting*: those that were never placed.
    *waited*: all pods together, then by priority."""

    allocated: float | None
    stranded: float | None
    placed: int
    waiting: int
    evicted: int
    waited: WaitRow | None
    by_priority: tuple[WaitRow, ...] = ()


class CauseCount(OutputRecord, frozen=True):
    """Decisions that come out differently. *cause*: Tie (nothing but a name decides), Concurrent (other pods came or
    went meanwhile), KubeScheduler (it has the last word), NoRoom (the node has no room by the recording), UsualPods
    (the scheduler knew others), NotOffered (kube-scheduler had left the node out)."""

    cause: str
    decisions: int


class TwinDifference(OutputRecord, frozen=True):
    """A pod that would be placed elsewhere. *pod*: its number in the recording. *now*: empty if no node fits."""

    pod: int
    node: str
    now: str
    cause: str


class TwinComparison(OutputRecord, frozen=True):
    """The decisions, each made again beside what was recorded before it. *differences*: the first of them."""

    decisions: int
    same: int
    causes: tuple[CauseCount, ...] = ()
    differences: tuple[TwinDifference, ...] = ()


class TwinReport(OutputRecord, frozen=True):
    """The report on a recording. *since*, *until*: in UTC, or seconds of a trace. *node_policy*, *device_policy*: those
    of the replay. *recorded*: what happened. *replayed*: what would have happened. *comparison*: null if something is
    changed. *notes*: what is left out."""

    since: str
    until: str
    nodes: int
    pods: int
    node_policy: str
    device_policy: str
    recorded: TwinOutcome
    replayed: TwinOutcome
    comparison: TwinComparison | None = None
    notes: tuple[str, ...] = ()


def make_twin_report(recording: Recording, changes: Changes, progress: Progress) -> TwinReport:
    """Replays *recording* with *changes*. Raises: HamiError for a node that is not known."""
    compares = recording.has_places
    if changes != Changes():
        compares = False
    replayed, (recorded, comparison) = _replay_both(recording, changes, progress, compares)
    nodes: set[str] = set()
    for event in recording.events:
        if isinstance(event, NodeSeen):
            nodes.add(event.name)
    compared = None
    if compares:
        compared = _comparison(comparison)
    return TwinReport(
        since=_time_text(recording.begin),
        until=_time_text(recording.until),
        nodes=len(nodes),
        pods=recording.pods,
        node_policy=changes.node_policy or recording.policies.node,
        device_policy=changes.device_policy or recording.policies.device,
        recorded=_outcome(recorded, has_places=recording.has_places),
        replayed=_outcome(replayed),
        comparison=compared,
        notes=(*recording.notes, *_unknown(recording)),
    )


def _unknown(recording: Recording) -> Iterator[str]:
    """Yields sentences about what the replay does not know, with the number of pods where that can be told."""
    if not recording.has_places:
        return
    groups: Counter[str] = Counter()
    soft = 0
    for event in recording.events:
        if not isinstance(event, PodCame):
            continue
        pod = event.life.pod
        soft += pod.soft_constraints
        if pod.group:
            groups[pod.group] += 1
    if groups:
        come = f"{counted(groups.total(), 'pod')} of {counted(len(groups), 'group')}"
        yield f"{come}: each pod is placed by itself, the replay holds no pod back for its group"
    if soft:
        wishes = "preferences for other pods or for a spread, which only kube-scheduler judges"
        yield f"{counted(soft, 'pod')} with {wishes}"
    yield NOT_RECORDED


def _replay_both(
    recording: Recording, changes: Changes, progress: Progress, compares: bool
) -> tuple[Tally, tuple[Tally, Comparison]]:
    """Returns what would have happened, and what happened. Where both decide about many pods, they do at once."""
    if not compares or recording.pods < MANY_PODS:
        replayed = replay_changed(recording, changes, progress)
        return replayed, replay_recorded(recording, progress, compares=compares)
    beside = Beside(partial(replay_recorded, recording, _ignore, compares=True))
    replayed = replay_changed(recording, changes, progress)
    return replayed, beside.result()


def _ignore(what: str, part: float) -> None:
    """Shows no progress: that of the other half is shown."""


def _outcome(tally: Tally, *, has_places: bool = True) -> TwinOutcome:
    waits: list[float] = []
    rows: list[WaitRow] = []
    for priority, of_priority in sorted(tally.waits.items(), reverse=True):
        waits += of_priority
        row = _wait_row(priority, of_priority)
        if row is not None:
            rows.append(row)
    allocated = stranded = None
    if has_places:
        allocated = _mean_percent(tally.taken, tally.devices)
        stranded = _mean_percent(sum(tally.stranded), len(tally.stranded))
    return TwinOutcome(
        allocated=allocated,
        stranded=stranded,
        placed=tally.placed,
        waiting=len(waits) - tally.placed,
        evicted=tally.evicted,
        waited=_wait_row(0, waits),
        by_priority=tuple(rows),
    )


def _mean_percent(total: float, count: float) -> float | None:
    if not count:
        return None
    return round(100 * total / count, 2)


def _wait_row(priority: int, waits: Sequence[float]) -> WaitRow | None:
    if not waits:
        return None
    ordered = sorted(waits)

    def at(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1)

    mean = round(sum(ordered) / len(ordered), 1)
    return WaitRow(priority=priority, pods=len(ordered), mean_s=mean, p50_s=at(0.5), p99_s=at(0.99))


def _comparison(comparison: Comparison) -> TwinComparison:
    causes: list[CauseCount] = []
    for cause, count in comparison.causes.most_common():
        causes.append(CauseCount(cause=cause.value, decisions=count))
    differences: list[TwinDifference] = []
    for difference in comparison.differences:
        differences.append(
            TwinDifference(
                pod=difference.number,
                node=difference.node,
                now=difference.now,
                cause=difference.cause.value,
            )
        )
    return TwinComparison(
        decisions=comparison.decisions,
        same=comparison.same,
        causes=tuple(causes),
        differences=tuple(differences),
    )


def _time_text(at: float) -> str:
    """Returns *at* as a time of day, that of a trace in seconds."""
    if not EARLIEST < at < LATEST:
        return f"{at:.0f}"
    return render_time(datetime.fromtimestamp(at, UTC))


class TwinRow(OutputRecord, frozen=True):
    """A figure as people read it: what happened, and what would have happened."""

    what: str
    happened: str
    replayed: str


_COLUMNS: tuple[Column[TwinRow], ...] = (
    Column("", "what"),
    Column("HAPPENED", "happened"),
    Column("REPLAYED", "replayed"),
)


def render_twin(report: TwinReport, style: Style) -> str:
    """Returns *report* as a table, with sentences about the decisions."""
    lines = [twin_sentence(report), "", render_rows(twin_rows(report), _COLUMNS, style)]
    if report.comparison is not None:
        lines += ["", comparison_sentence(report.comparison)]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def twin_sentence(report: TwinReport) -> str:
    """Returns what was replayed."""
    return (
        f"{counted(report.pods, 'pod')} on {counted(report.nodes, 'node')} from {report.since} to "
        f"{report.until}; replayed with {report.node_policy} and {report.device_policy}."
    )


def twin_rows(report: TwinReport) -> list[TwinRow]:
    """Returns the figures."""
    one, other = report.recorded, report.replayed
    rows = [
        TwinRow("allocated", _percent(one.allocated), _percent(other.allocated)),
        TwinRow("stranded", _percent(one.stranded), _percent(other.stranded)),
        TwinRow("placed", f"{one.placed:,}", f"{other.placed:,}"),
        TwinRow("never placed", f"{one.waiting:,}", f"{other.waiting:,}"),
        TwinRow("evicted", f"{one.evicted:,}", f"{other.evicted:,}"),
    ]
    rows.append(TwinRow("waited: p50, p99, mean", _wait_text(one.waited), _wait_text(other.waited)))
    theirs = {row.priority: row for row in other.by_priority}
    if len(theirs) > 1:
        for row in one.by_priority:
            rows.append(
                TwinRow(
                    f"  priority {row.priority}",
                    _wait_text(row),
                    _wait_text(theirs.get(row.priority)),
                )
            )
    return rows


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return f"{share:.1f} %"


def _wait_text(row: WaitRow | None) -> str:
    if row is None:
        return ""
    return f"{row.p50_s:,.1f}, {row.p99_s:,.1f}, {row.mean_s:,.1f} s"


def comparison_sentence(comparison: TwinComparison) -> str:
    """Returns how many decisions came out as recorded, and why others did not."""
    text = f"Decided again: {comparison.same:,} of {comparison.decisions:,} as recorded"
    if comparison.causes:
        texts = [f"{count.decisions:,} {count.cause}" for count in comparison.causes]
        text += f"; others: {', '.join(texts)}"
    return f"{text}."
