"""Room by moves: the fewest moves after which a pod fits, why other pods cannot be moved, and how many more pods fit
after so many moves. Nothing is written but the request for moves."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from hami.codec.keys import MAKE_ROOM
from hami.codec.moves import MOST_MOVES
from hami.codec.pods import convert_pod
from hami.errors import HamiError, MalformedInput
from hami.inspect.cluster import InspectedCluster, unknown_name
from hami.inspect.tables import Column, OutputRecord, Style, printable, render_rows
from hami.kube.api import MERGE_PATCH
from hami.kube.pages import Writer
from hami.model import DisruptionBudget, Immovable, Pod
from hami.plurals import counted
from hami.scheduling.moves import MEANINGS, MoveRules
from hami.state.compaction import Compaction
from hami.state.moves import MoveLimits, MovePlan, MoveSearch, NoMovePlan, choose_with_room
from hami.vendors.request import requests_devices
from hami.vendors.resources import CoreUnit, Resources
from hami.vendors.spec import Catalog

NAMED_PODS = 20  # of each reason, in a document
SHOWN_NAMES = 3  # of each reason, in a text
EXPLAIN_S = 0.3  # of the search in an explanation
SHOWN_MOVES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)
NOT_LOOKED_AT = (
    "Not looked at, since kube-scheduler decides it: taints, affinity to pods, topology spread, volumes. Each move "
    "restarts a pod."
)
_SHAPE = re.compile(r"(?P<count>[1-9][0-9]{0,2})x(?P<part>0?\.[0-9]{1,2}|1(\.0{1,2})?)")


class PlannedMove(OutputRecord, frozen=True):
    """A pod that is evicted from *source*; its controller's next one is placed on *target*."""

    pod: str
    source: str
    target: str


class KeptPods(OutputRecord, frozen=True):
    """Pods that cannot be moved, and why. *names*: some of them."""

    reason: str
    meaning: str
    pods: int
    names: tuple[str, ...]


class MovesReport(OutputRecord, frozen=True):
    """The moves after which a pod fits *node*, in order. *fits*: it fits there without any. *found*: there is a plan.
    *proven*: no plan has fewer moves, or there is none. *kept*: the pods that cannot be moved."""

    fits: bool
    found: bool
    proven: bool
    node: str
    moves: tuple[PlannedMove, ...]
    movable: int
    kept: tuple[KeptPods, ...]


class ShapeRoom(OutputRecord, frozen=True):
    """The number of *pods* of one *shape* that fit after so many *moves*, beside those of the cluster."""

    shape: str
    moves: int
    pods: int


@dataclass(frozen=True, slots=True)
class Movables:
    """The pods of a cluster that may be moved, by uid, and why the others with devices may not."""

    pods: Mapping[str, Pod]
    kept: Mapping[Immovable, Sequence[str]]


def movables(
    cluster: InspectedCluster,
    budgets: Sequence[DisruptionBudget],
    waiting: Pod | None,
    min_runtime_s: float = 0.0,
) -> Movables:
    """Returns the pods of *cluster* that may be moved for the pod *waiting*; ``None``: for any pod."""
    claiming = set[str]()
    for uid, claims in cluster.claims_by_pod.items():
        pod = cluster.pods.get(uid)
        if pod is None or any(claim.name != pod.claim for claim in claims):
            claiming.add(uid)
    rules = MoveRules(
        now=cluster.record.taken.timestamp(),
        min_runtime_s=min_runtime_s,
        budgets=budgets,
        claiming=claiming,
    )
    pods: dict[str, Pod] = {}
    kept: dict[Immovable, list[str]] = defaultdict(list)
    for uid in cluster.view.bookings:
        pod = cluster.pods.get(uid)
        if pod is None:
            continue
        reason = rules.why_stays(pod, waiting)
        if reason is None and not requests_devices(cluster.vendors, pod.containers):
            reason = Immovable.ENDING
        if reason is None:
            pods[uid] = pod
        else:
            kept[reason].append(str(pod.ref))
    return Movables(pods, kept)


def find_moves(
    cluster: InspectedCluster,
    pod: Pod,
    movable: Movables,
    limits: MoveLimits,
    clock: Callable[[], float],
) -> MovesReport:
    """Returns the report on the moves for *pod*. *clock* is monotonic. Raises: MalformedInput."""
    view = cluster.view.what_if(without=[pod.ref.uid])
    choice = choose_with_room(view, pod, cluster.offered)
    result: MovePlan | NoMovePlan = NoMovePlan(is_proven=True)
    if choice is None:
        result = MoveSearch(cluster.offered, movable.pods, clock).plan(view, pod, limits)
    moves: tuple[PlannedMove, ...] = ()
    if isinstance(result, MovePlan):
        moves = tuple(
            PlannedMove(str(movable.pods[move.uid].ref), move.source, move.target)
            for move in result.moves
        )
        proven, node = result.is_minimal, result.node
    else:
        proven, node = result.is_proven, ""
    return MovesReport(
        fits=choice is not None,
        found=isinstance(result, MovePlan),
        proven=proven,
        node=node if choice is None else choice.node,
        moves=moves,
        movable=len(movable.pods),
        kept=tuple(_kept(movable)),
    )


def render_moves(report: MovesReport) -> str:
    """Returns *report* as text."""
    lines = [*_plan_lines(report)]
    if not report.fits:
        lines += _kept_lines(report)
        lines += ["", NOT_LOOKED_AT]
    return "\n".join(map(printable, lines))


def request_moves(request: Writer, pod: Pod, moves: int) -> str:
    """Asks the scheduler to make at most so many *moves* for *pod*, and returns what was asked. Raises: HamiError."""
    if moves > MOST_MOVES:
        raise HamiError(f"at most {MOST_MOVES} moves are made for a pod, this plan has {moves}")
    body = {"metadata": {"uid": pod.ref.uid, "labels": {MAKE_ROOM: str(moves)}}}
    path = f"/api/v1/namespaces/{pod.ref.namespace}/pods/{pod.ref.name}"
    request("PATCH", path, body=msgspec.json.encode(body), content_type=MERGE_PATCH)
    command = f"kubectl describe pod {pod.ref.name} -n {pod.ref.namespace}"
    return (
        f"Requested: {counted(moves, 'move')} at most. The scheduler plans anew, and its events tell the progress: "
        f"{command}"
    )


def moves_sentence(moves: int, command: str) -> str:
    """Returns the sentence of an explanation."""
    return f"It would fit after {counted(moves, 'move')} of other pods: {command}"


def _plan_lines(report: MovesReport) -> Iterator[str]:
    if report.fits:
        yield f"The pod fits {report.node} without a move."
        return
    if not report.found:
        if report.proven:
            yield "No plan: the pod does not fit within the moves that are searched."
        else:
            yield "No plan was found in time: give the search more --seconds."
        return
    proof = "no fewer are enough" if report.proven else "fewer may be enough"
    yield f"The pod fits {report.node} after {counted(len(report.moves), 'move')} ({proof}):"
    for number, move in enumerate(report.moves, 1):
        yield f"  {number}. {move.pod}: {move.source} -> {move.target}"
    yield (
        "Make one move at a time, with the place held, as --apply does: else what a pod leaves may be taken. "
        "Each was placed by HAMi's own decision."
    )


def _kept(movable: Movables) -> Iterator[KeptPods]:
    for reason in Immovable:
        names = movable.kept.get(reason, ())
        if names:
            some = tuple(sorted(names)[:NAMED_PODS])
            yield KeptPods(reason.value, MEANINGS[reason], len(names), some)


def _kept_lines(report: MovesReport) -> Iterator[str]:
    total = sum(kept.pods for kept in report.kept)
    if not total:
        return
    yield ""
    yield f"{counted(report.movable, 'pod')} can be moved, {total:,} cannot:"
    for kept in report.kept:
        names = ", ".join(kept.names[:SHOWN_NAMES])
        more = ", …" if kept.pods > SHOWN_NAMES else ""
        yield f"  {kept.pods:,}  {kept.meaning}: {names}{more}"


# Compaction


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of pods, and what it is called."""

    name: str
    pod: Pod


def parse_shapes(text: str, vendors: Catalog, key: str) -> list[Shape]:
    """Returns the shapes in *text*, such as ``4x1.0,1x0.5``: devices of the vendor *key*, and the part of each.

    Raises: HamiError.
    """
    names = _resources_of(vendors, key)
    shapes: list[Shape] = []
    for word in text.split(","):
        match = _SHAPE.fullmatch(word.strip())
        if match is None or float(match["part"]) == 0:
            raise MalformedInput(
                "--shapes", word, "expected COUNTxPART, such as 4x1.0 or 1x0.5, with commas between"
            )
        percent = str(round(100 * float(match["part"])))
        limits = {names.count: match["count"], names.memory_percent: percent}
        if names.cores and names.core_unit is CoreUnit.PERCENT:
            limits[names.cores] = percent
        containers = [{"name": "c", "resources": {"limits": limits}}]
        pod = {"metadata": {"namespace": "default"}, "spec": {"containers": containers}}
        shapes.append(Shape(word.strip(), convert_pod(pod)))
    return shapes


def _resources_of(vendors: Catalog, key: str) -> Resources:
    """Returns the resources of the vendor *key*. Raises: HamiError."""
    by_key = {vendor.key: vendor for vendor in vendors}
    if key not in by_key:
        raise unknown_name("vendor", key, by_key)
    if not by_key[key].resources.memory_percent:
        raise HamiError(f"--vendor {key}: its pods do not request parts of devices in percent")
    return by_key[key].resources


def queued_shapes(cluster: InspectedCluster) -> list[Shape]:
    """Returns the shapes of the pods that wait, each named by its first pod. Raises: HamiError if none waits."""
    shapes: dict[object, Shape] = {}
    for pod in sorted(cluster.record.pods, key=lambda pod: (-pod.priority, pod.created)):
        if pod.node_name or pod.is_terminated or pod.group:
            continue
        request = cluster.view.request_of(pod)
        if request is not None:
            shapes.setdefault(request, Shape(str(pod.ref), pod))
    if not shapes:
        raise HamiError("no pod with devices waits: name shapes with --shapes")
    return list(shapes.values())


def compact(
    cluster: InspectedCluster,
    shapes: Sequence[Shape],
    movable: Movables,
    limits: MoveLimits,
    clock: Callable[[], float],
) -> list[ShapeRoom]:
    """Returns how many more pods of each of *shapes* fit, each alone, without and with moves, within *limits* for each
    shape. Raises: MalformedInput."""
    rows: list[ShapeRoom] = []
    for shape in shapes:
        compaction = Compaction(shape.pod, cluster.offered, movable.pods, clock)
        for moves, pods in compaction.steps(cluster.view, limits):
            rows.append(ShapeRoom(shape.name, moves, pods))
    return rows


def render_compaction(rows: Sequence[ShapeRoom], style: Style) -> str:
    """Returns *rows* as a table, with the numbers of moves that are shown, and the last of each shape."""
    shown: list[ShapeRoom] = []
    for _, group in itertools.groupby(rows, key=lambda row: row.shape):
        of_shape = list(group)
        for row, following in zip(of_shape, [*of_shape[1:], None]):
            if following is None or _is_shown(row.moves, following.moves):
                shown.append(row)
    table = render_rows(shown, _COLUMNS, style)
    return "\n".join(
        [
            table,
            "",
            "Each shape alone, as far as the search has come within --moves and --seconds.",
            NOT_LOOKED_AT,
        ]
    )


def _is_shown(moves: int, following: int) -> bool:
    """Reports whether *moves* is the last number of moves before *following* that does not exceed a shown one."""
    return any(moves <= limit < following for limit in SHOWN_MOVES)


_COLUMNS: tuple[Column[ShapeRoom], ...] = (
    Column("SHAPE", "shape"),
    Column("MOVES", lambda row: f"{row.moves:,}"),
    Column("MORE PODS", lambda row: f"{row.pods:,}"),
)
