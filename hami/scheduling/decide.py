"""Filter, score and choice over all nodes: the node that a pod gets, or why no node fits.

Verdicts are cached by request and node version, so only nodes that have changed are evaluated again. Nodes are
evaluated in the order of their score, best first, until one fits. For a request that is not in the cache, a filter on
flat columns first excludes nodes that cannot fit. Every verdict that counts comes from ``place_pod``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.model import NodePolicy, Request
from hami.scheduling.fit import Unfit, accepts_model
from hami.scheduling.index import Index
from hami.scheduling.placement import Placement, place_pod
from hami.scheduling.pod_request import PodRequest, VendorRequest
from hami.vendors.spec import Rule

Array = NDArray[Any]

# the state of a node; a node with a state up to FITS is a candidate
UNKNOWN, POSSIBLE, FITS, UNFIT, EXCLUDED = range(5)
EVALUATE_ALL = 16  # evaluate all candidates up to this number, so that the event can name each with its score
MAX_REQUESTS = 64  # requests in the cache
FEW = 8  # nodes that are evaluated without a filter first


@dataclass(frozen=True, slots=True)
class Choice:
    """The node for the pod. *fitting*: the nodes that were found to fit, with their scores, worst first.

    *unfit*: the number of nodes that were found not to fit. *candidates*: the number of nodes to choose from.
    """

    node: str
    placement: Placement
    fitting: tuple[tuple[str, float], ...]
    unfit: int
    candidates: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """No node fits *pod_request*. *unfit*: the reasons for each known node. *unknown*: names without any devices."""

    pod_request: PodRequest
    unfit: dict[str, Unfit]
    unknown: tuple[str, ...]


class VerdictCache:
    """Verdicts on all nodes, for the most recent requests. ``table`` returns those on one request."""

    def __init__(self, index: Index, most_requests: int = MAX_REQUESTS) -> None:
        self.table = functools.lru_cache(most_requests)(functools.partial(_VerdictTable, index))


class _VerdictTable:
    """The verdicts on one request, by the row of the node."""

    def __init__(self, index: Index, pod_request: PodRequest) -> None:
        self.index = index
        self.pod_request = pod_request
        self.state = numpy.zeros(0, dtype=numpy.int8)
        self.version = numpy.zeros(0, dtype=numpy.int64)
        self.verdicts: dict[int, Placement | Unfit] = {}
        self.scorers = tuple((request.vendor.key, score) for request in pod_request.vendor_requests
                             if (score := request.vendor.decision.node_score) is not None)
        self.unfits: dict[Unfit, Unfit] = {}  # equal values share one object

    def states(self, rows: Array) -> Array:
        """Returns the state of each of *rows*; UNKNOWN for nodes that have changed since."""
        versions = self.index.versions
        if len(self.version) != len(versions):
            self.state.resize(versions.shape, refcheck=False)
            self.version.resize(versions.shape, refcheck=False)
        return numpy.where(self.version[rows] == versions[rows], self.state[rows], UNKNOWN)

    def exclude(self, rows: Array, possible: Array) -> Array:
        """Sets *rows* to POSSIBLE or EXCLUDED and returns the states. Reasons are worked out only when needed."""
        self.state[rows] = states = numpy.where(possible, POSSIBLE, EXCLUDED)
        self.version[rows] = self.index.versions[rows]
        return states

    def verdict(self, node: str) -> Placement | Unfit:
        """Returns the exact verdict on *node*."""
        entry = self.index.nodes[node]
        version = self.index.versions[entry.row]
        if self.version[entry.row] == version and self.state[entry.row] in (FITS, UNFIT):
            return self.verdicts[entry.row]
        verdict = place_pod(entry.usages, self.pod_request)
        if isinstance(verdict, Unfit):
            verdict = self.unfits.setdefault(verdict, verdict)
        self.verdicts[entry.row] = verdict
        self.state[entry.row] = UNFIT if isinstance(verdict, Unfit) else FITS
        self.version[entry.row] = version
        return verdict

    def vendor_score(self, node: str, placement: Placement, policy: NodePolicy) -> float:
        """Returns the vendors' score of *placement* on *node*. Higher is better under both policies."""
        usages = self.index.nodes[node].usages
        return sum(score(usages.get(key, ()), tuple(tuple(share for share in shares if share.type == key)
                                                    for shares in placement), policy) for key, score in self.scorers)


def choose_node(verdicts: VerdictCache, pod_request: PodRequest, names: Sequence[str],
                policy: NodePolicy) -> Choice | None:
    """Returns the best of the nodes *names* that fits *pod_request*; ``None`` if none fits.

    Binpack prefers the fullest node, spread the emptiest. Among equals it is the first by name.
    """
    table = verdicts.table(pod_request)
    index = table.index
    index.refresh()
    rows = numpy.fromiter(map(index.rows.get, names, itertools.repeat(-1)), dtype=numpy.intp, count=len(names))
    rows = rows[rows >= 0]
    candidates = rows[_may_be_candidate(table, rows)]
    if table.scorers:
        return _best_with_vendor_scores(table, candidates, names, policy)
    evaluate_all = len(candidates) <= EVALUATE_ALL

    chosen: tuple[str, Placement] | None = None
    fitting: list[tuple[str, float]] = []
    for row in _best_first(index, candidates, policy):
        name = index.names[row]
        verdict = table.verdict(name)
        if isinstance(verdict, Unfit):
            continue
        fitting.append((name, float(index.scores[row])))
        chosen = chosen or (name, verdict)
        if not evaluate_all:
            break
    if chosen is None:
        return None
    unfit = len(names) - (len(fitting) if evaluate_all else len(candidates))
    return Choice(*chosen, tuple(reversed(fitting)), unfit, len(names))


def _best_with_vendor_scores(table: _VerdictTable, candidates: Array, names: Sequence[str],
                             policy: NodePolicy) -> Choice | None:
    """Returns the best of all *candidates* if the score depends on the devices that the pod would get."""
    sign = 1.0 if policy is NodePolicy.BINPACK else -1.0
    fitting: list[tuple[float, str, Placement]] = []
    for row in candidates:
        name = table.index.names[row]
        verdict = table.verdict(name)
        if not isinstance(verdict, Unfit):
            score = float(table.index.scores[row]) + sign * table.vendor_score(name, verdict, policy)
            fitting.append((score, name, verdict))
    if not fitting:
        return None
    fitting.sort(key=lambda item: (-sign * item[0], item[1]))
    _, node, placement = fitting[0]
    return Choice(node, placement, tuple((name, score) for score, name, _ in reversed(fitting[:EVALUATE_ALL])),
                  len(names) - len(fitting), len(names))


def refusals(verdicts: VerdictCache, pod_request: PodRequest, names: Sequence[str]) -> Refusal:
    """Returns the reasons for each of the nodes *names* that does not fit *pod_request*."""
    table = verdicts.table(pod_request)
    rows = table.index.rows
    table.index.refresh()
    found = {name: table.verdict(name) for name in names if name in rows}
    return Refusal(pod_request, {name: verdict for name, verdict in found.items() if isinstance(verdict, Unfit)},
                   tuple(name for name in names if name not in rows))


def _may_be_candidate(table: _VerdictTable, rows: Array) -> Array:
    """Returns a mask over *rows*: nodes that fit or may fit."""
    states = table.states(rows)
    unknown = states == UNKNOWN
    if numpy.count_nonzero(unknown) > FEW:
        changed = rows[unknown]
        states[unknown] = table.exclude(changed, may_fit(table.index, table.pod_request, changed))
    return numpy.asarray(states <= FITS)


def may_fit(index: Index, pod_request: PodRequest, rows: Array) -> Array:
    """Returns a mask over *rows* that is false only for nodes that certainly cannot fit *pod_request*."""
    possible = numpy.ones(len(rows), dtype=bool)
    for request in pod_request.distinct_requests:
        possible &= _may_serve(index, pod_request.vendor_request(request.vendor), request, rows)
    return possible


def _may_serve(index: Index, vendor_request: VendorRequest, request: Request, rows: Array) -> Array:
    """Returns a mask over *rows*: nodes with enough devices that pass the rules that columns can tell."""
    devices, rules = index.devices, vendor_request.vendor.decision.rules
    fits = devices["vendor"][rows] == index.vendors.get(request.vendor, -1)
    if Rule.HEALTH in rules:
        fits &= devices["usable"][rows]
    if Rule.SLOTS in rules:
        fits &= devices["slots_free"][rows] > 0
    if Rule.MEMORY in rules:
        need: int | Array = request.memory_mib
        if request.memory_mib <= 0:
            need = devices["memory_mib"][rows] * (request.memory_percent or 0) // 100
        fits &= devices["memory_free"][rows] >= need
    if Rule.CORES in rules:
        fits &= (devices["cores_free"][rows] >= min(request.cores, 100)) | devices["partitioned"][rows]
    selector = vendor_request.selector
    if Rule.TYPE in rules and (selector.use_types, selector.nouse_types) != (None, None):
        accepted = [number for model, number in index.models.items() if accepts_model(selector, model)]
        fits &= numpy.isin(devices["model"][rows], accepted)
    enough = numpy.count_nonzero(fits, axis=1) >= request.count
    if vendor_request.vendor.decision.allows_repeats is not None:
        enough |= (fits & devices["partitioned"][rows]).any(axis=1)
    return numpy.asarray(enough)


def _best_first(index: Index, rows: Array, policy: NodePolicy) -> Iterator[int]:
    """Yields *rows* by score, best first, then by name. The first few are found without sorting all."""
    scores = index.scores[rows] if policy is NodePolicy.BINPACK else -index.scores[rows]
    ranks = index.rank()[rows]
    left = numpy.ones(len(rows), dtype=bool)
    for _ in range(min(FEW, len(rows))):
        best = scores[left].max()
        ties = numpy.flatnonzero(left & (scores == best))
        position = ties[ranks[ties].argmin()]
        left[position] = False
        yield int(rows[position])
    rest = numpy.flatnonzero(left)
    for position in rest[numpy.lexsort((ranks[rest], -scores[rest]))]:
        yield int(rows[position])
