"""Filter, Score and choice over all nodes: which node a pod gets, or why none.

Verdicts are remembered by request and node version, so that only nodes which have changed are asked again. Nodes
are asked in the order of their score, best first, and no more of them than it takes; a request that was never seen
before first drops, by the flat columns, nodes that cannot fit. Every verdict that counts comes from ``place``.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.model import NodePolicy, Request
from hami.scheduling.pod_request import PodRequest, VendorRequest
from hami.scheduling.fit import Unfit, accepts_model
from hami.scheduling.index import Index
from hami.scheduling.place import Placement, place
from hami.vendors.spec import Rule

__all__ = ["Choice", "Refusal", "Verdicts", "choose_node", "decide", "may_fit", "refusals"]

Array = NDArray[Any]

# what is known of a node; up to FITS it is a candidate
UNASKED, POSSIBLE, FITS, UNFIT, DROPPED = range(5)
ALL_JUDGED = 16  # up to so many candidates all are judged, so that the event can name each with its score
REMEMBERED = 64  # requests
FEW = 8  # nodes that are asked at once, without dropping any first


@dataclass(frozen=True, slots=True)
class Choice:
    """The pod goes to *node*. *fitting*: nodes that were judged to fit, with their scores, worst first.

    *unfit*: how many were judged not to fit; *candidates*: how many were offered.
    """

    node: str
    placement: Placement
    fitting: tuple[tuple[str, float], ...]
    unfit: int
    candidates: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """No node fits *ask*. *unfit*: why, for each known node; *unknown*: names that have no devices."""

    ask: PodRequest
    unfit: dict[str, Unfit]
    unknown: tuple[str, ...]


class Verdicts:
    """Remembered verdicts on all nodes, for the most recent requests."""

    def __init__(self, index: Index, remembered: int = REMEMBERED) -> None:
        self._index = index
        self._remembered = remembered
        self._tables: OrderedDict[PodRequest, _Table] = OrderedDict()

    def table(self, ask: PodRequest) -> _Table:
        """The verdicts on *ask*, empty if it was not asked lately."""
        table = self._tables.get(ask)
        if table is None:
            table = self._tables[ask] = _Table(self._index, ask)
            if len(self._tables) > self._remembered:
                self._tables.popitem(last=False)
        self._tables.move_to_end(ask)
        return table


class _Table:
    """Verdicts on one request, row by row."""

    def __init__(self, index: Index, ask: PodRequest) -> None:
        self.index = index
        self.ask = ask
        self.state = numpy.zeros(0, dtype=numpy.int8)
        self.version = numpy.zeros(0, dtype=numpy.int64)
        self.answers: dict[int, Placement | Unfit] = {}
        self.scorers = tuple((vendor_request.vendor.key, vendor_request.vendor.node_score) for vendor_request in ask.vendor_requests
                             if vendor_request.vendor.node_score is not None)
        self.unfits: dict[Unfit, Unfit] = {}

    def states(self, rows: Array) -> Array:
        """The state of each of *rows*; what has changed since counts as unasked."""
        columns = self.index.columns
        if len(self.version) != len(columns.version):
            self.state.resize(columns.version.shape, refcheck=False)
            self.version.resize(columns.version.shape, refcheck=False)
        return numpy.where(self.version[rows] == columns.version[rows], self.state[rows], UNASKED)

    def sift(self, rows: Array, possible: Array) -> Array:
        """Remember which of *rows* may fit, and that the others cannot: why is worked out when somebody wants to know.

        Returns their states.
        """
        self.state[rows] = states = numpy.where(possible, POSSIBLE, DROPPED)
        self.version[rows] = self.index.columns.version[rows]
        return states

    def judge(self, node: str) -> Placement | Unfit:
        """The exact verdict on *node*."""
        entry = self.index.nodes[node]
        version = self.index.columns.version[entry.row]
        if self.version[entry.row] == version and self.state[entry.row] in (FITS, UNFIT):
            return self.answers[entry.row]
        verdict = place(entry.views, self.ask)
        if isinstance(verdict, Unfit):
            verdict = self.unfits.setdefault(verdict, verdict)
        self.answers[entry.row] = verdict
        self.state[entry.row] = UNFIT if isinstance(verdict, Unfit) else FITS
        self.version[entry.row] = version
        return verdict

    def suits(self, node: str, placement: Placement, policy: NodePolicy) -> float:
        """How well *placement* suits *node* in the eyes of the vendors; higher is better, whatever the policy."""
        views = self.index.nodes[node].views
        return sum(score(views.get(key, ()), tuple(tuple(share for share in shares if share.type == key)
                                                   for shares in placement), policy) for key, score in self.scorers)


def decide(index: Index, verdicts: Verdicts, ask: PodRequest, names: Sequence[str], policy: NodePolicy) -> Choice | Refusal:
    """The best of the nodes *names* that fits *ask*, or why none does."""
    return choose_node(index, verdicts, ask, names, policy) or refusals(index, verdicts, ask, names)


def choose_node(index: Index, verdicts: Verdicts, ask: PodRequest, names: Sequence[str], policy: NodePolicy) -> Choice | None:
    """The best of the nodes *names* that fits *ask*; of equally good ones the first by name; ``None`` if none fits.

    Binpack takes the fullest node, spread the emptiest.
    """
    index.settle()
    table = verdicts.table(ask)
    places = numpy.fromiter(map(index.rows.get, names, itertools.repeat(-1)), dtype=numpy.intp, count=len(names))
    rows = places[places >= 0]
    candidates = rows[_open(table, rows)]
    if table.scorers:
        return _best_suited(table, candidates, names, policy)
    judge_all = len(candidates) <= ALL_JUDGED

    chosen: tuple[str, Placement] | None = None
    fitting: list[tuple[str, float]] = []
    for row in _best_first(index, candidates, policy):
        name = index.names[row]
        verdict = table.judge(name)
        if isinstance(verdict, Unfit):
            continue
        fitting.append((name, float(index.columns.score[row])))
        chosen = chosen or (name, verdict)
        if not judge_all:
            break
    if chosen is None:
        return None
    unfit = len(names) - (len(fitting) if judge_all else len(candidates))
    return Choice(*chosen, tuple(reversed(fitting)), unfit, len(names))


def _best_suited(table: _Table, candidates: Array, names: Sequence[str], policy: NodePolicy) -> Choice | None:
    """The best of all *candidates* where that depends on which devices of them are taken."""
    sign = 1.0 if policy is NodePolicy.BINPACK else -1.0
    fitting: list[tuple[float, str, Placement]] = []
    for row in candidates:
        name = table.index.names[row]
        verdict = table.judge(name)
        if not isinstance(verdict, Unfit):
            score = float(table.index.columns.score[row]) + sign * table.suits(name, verdict, policy)
            fitting.append((score, name, verdict))
    if not fitting:
        return None
    fitting.sort(key=lambda one: (-sign * one[0], one[1]))
    _, node, placement = fitting[0]
    return Choice(node, placement, tuple((name, score) for score, name, _ in reversed(fitting[:ALL_JUDGED])),
                  len(names) - len(fitting), len(names))


def refusals(index: Index, verdicts: Verdicts, ask: PodRequest, names: Sequence[str]) -> Refusal:
    """Why each of the nodes *names* that does not fit *ask* does not; nodes that fit are left out."""
    index.settle()
    table = verdicts.table(ask)
    judged = {name: table.judge(name) for name in names if name in index.rows}
    return Refusal(ask, {name: verdict for name, verdict in judged.items() if isinstance(verdict, Unfit)},
                   tuple(name for name in names if name not in index.rows))


def _open(table: _Table, rows: Array) -> Array:
    """A mask over *rows*: those that fit, or may."""
    states = table.states(rows)
    unasked = states == UNASKED
    if numpy.count_nonzero(unasked) > FEW:
        asked = rows[unasked]
        states[unasked] = table.sift(asked, may_fit(table.index, table.ask, asked))
    return numpy.asarray(states <= FITS)


def may_fit(index: Index, ask: PodRequest, rows: Array) -> Array:
    """A mask over *rows* that is false only for nodes which certainly cannot fit *ask*."""
    possible = numpy.ones(len(rows), dtype=bool)
    for request in dict.fromkeys(request for container in ask.containers for request in container.requests):
        possible &= _may_serve(index, ask.vendor_request(request.vendor), request, rows)
    return possible


def _may_serve(index: Index, vendor_request: VendorRequest, request: Request, rows: Array) -> Array:
    """Nodes with enough devices that have a slot, the memory and the cores, as far as the vendor has such rules."""
    columns, rules = index.columns, vendor_request.vendor.rules
    fits = columns.vendor[rows] == index.vendors.get(request.vendor, -1)
    if Rule.HEALTH in rules:
        fits &= columns.usable[rows]
    if Rule.SLOTS in rules:
        fits &= columns.slots_free[rows] > 0
    if Rule.MEMORY in rules:
        need: int | Array = request.memory_mib
        if request.memory_mib <= 0:
            need = columns.memory_mib[rows] * (request.memory_percent or 0) // 100
        fits &= columns.memory_free[rows] >= need
    if Rule.CORES in rules:
        fits &= (columns.cores_free[rows] >= min(request.cores, 100)) | columns.cut[rows]
    if Rule.TYPE in rules and (vendor_request.selector.use_types, vendor_request.selector.nouse_types) != (None, None):
        accepted = [number for model, number in index.models.items() if accepts_model(vendor_request.selector, model)]
        fits &= numpy.isin(columns.model[rows], accepted)
    if vendor_request.vendor.repeats is not None:
        return numpy.asarray(numpy.where((fits & columns.cut[rows]).any(axis=1), True,
                                         numpy.count_nonzero(fits, axis=1) >= request.count))
    return numpy.asarray(numpy.count_nonzero(fits, axis=1) >= request.count)


def _best_first(index: Index, rows: Array, policy: NodePolicy) -> Iterator[int]:
    """*rows* by score, best first, then by name; the first few without sorting them all."""
    scores = index.columns.score[rows] if policy is NodePolicy.BINPACK else -index.columns.score[rows]
    ranks = index.rank()[rows]
    left = numpy.ones(len(rows), dtype=bool)
    for _ in range(min(FEW, len(rows))):
        best = scores[left].max()
        ties = numpy.flatnonzero(left & (scores == best))
        place = ties[ranks[ties].argmin()]
        left[place] = False
        yield int(rows[place])
    rest = numpy.flatnonzero(left)
    for place in rest[numpy.lexsort((ranks[rest], -scores[rest]))]:
        yield int(rows[place])
