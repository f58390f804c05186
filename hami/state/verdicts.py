"""Filter, score and choice over the nodes of a table: the node that a pod gets, or why no node fits.

Verdicts are remembered by request and version of the node, so only nodes that have changed are evaluated again. Nodes
are evaluated in the order of their score, best first, until one fits. Rules over columns exclude nodes that cannot fit
before that. Every verdict by which a pod is placed comes from ``place_pod``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.model import Allocation, NodePolicy, Pod
from hami.scheduling import columns
from hami.scheduling.fit import Unfit
from hami.scheduling.placement import NodeUsage, place_pod
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.quota import QuotaCheck
from hami.scheduling.refusal import Choice, Refusal
from hami.scheduling.usage import shares_of
from hami.state.table import Table

Array = NDArray[Any]

# the state of a node; a node with a state up to FITS is a candidate
UNKNOWN, POSSIBLE, FITS, UNFIT, EXCLUDED = range(5)
EVALUATE_ALL = 16  # evaluate all candidates up to this number, so that the event can name each with its score
MAX_REQUESTS = 64  # requests whose verdicts are remembered
FEW = 8  # nodes that are evaluated without columns first
MAX_EXACT = 64  # excluded nodes that are evaluated for their reasons, if columns do not tell them exactly
NO_QUOTA = QuotaCheck()


class Verdicts:
    """Verdicts on the nodes of *table*, for the most recent requests."""

    def __init__(self, table: Table, max_requests: int = MAX_REQUESTS) -> None:
        self._table = table
        self._of = functools.lru_cache(max_requests)(functools.partial(_RequestVerdicts, table))

    def choose(self, request: PodRequest, names: Sequence[str], policy: NodePolicy,
               quota: QuotaCheck = NO_QUOTA) -> Choice | None:
        """Returns the best of the nodes *names* that fits *request*; ``None`` if none fits.

        Binpack prefers the fullest node, spread the emptiest. Among equals it is the first by name.
        """
        table = self._table
        table.refresh()
        verdicts = self._of(request, quota.decided)
        rows = self._rows(names)
        rows = rows[rows >= 0]
        candidates = rows[verdicts.may_be_candidate(rows)]
        if verdicts.has_scores:
            return verdicts.choose_by_vendor_scores(candidates, len(names), policy, quota)
        evaluate_all = len(candidates) <= EVALUATE_ALL

        chosen: tuple[str, Allocation] | None = None
        fitting: list[tuple[str, float]] = []
        for row in _best_first(table, candidates, policy):
            if (placement := verdicts.placement(row, quota)) is None:
                continue
            name = table.names[row]
            fitting.append((name, float(table.scores[row])))
            chosen = chosen or (name, placement)
            if not evaluate_all:
                break
        if chosen is None:
            return None
        unfit = len(names) - (len(fitting) if evaluate_all else len(candidates))
        return Choice(*chosen, tuple(reversed(fitting)), unfit, len(names))

    def refuse(self, request: PodRequest, names: Sequence[str], quota: QuotaCheck = NO_QUOTA) -> Refusal:
        """Returns the reasons for each of the nodes *names* that does not fit *request*."""
        self._table.refresh()
        rows = self._rows(names)
        has_devices = rows >= 0
        names_with_devices = [name for name, has_row in zip(names, has_devices.tolist()) if has_row]
        unknown = tuple(name for name, has_row in zip(names, has_devices.tolist()) if not has_row)
        groups = self._of(request, quota.decided).reasons(rows[has_devices], names_with_devices, quota)
        return Refusal(request, groups, unknown, dict((*quota.decided, *quota.open)))

    def with_lower_priority(self, refusal: Refusal, pod: Pod) -> frozenset[str]:
        """Returns the refused nodes on which a pod of lower priority than *pod* holds devices, and the node on which
        kube-scheduler makes room for *pod*."""
        names = [name for _, group in refusal.groups for name in group]
        lower = self._table.priorities[self._rows(names)] < pod.priority
        return frozenset(name for name, is_lower in zip(names, lower.tolist())
                         if is_lower or name == pod.nominated_node)

    def closest(self, refusal: Refusal, count: int | None = None) -> list[str]:
        """Returns the refused nodes that are closest to serving, at most *count*, nearest first."""
        table, request = self._table, refusal.pod_request
        table.refresh()
        names = [name for _, group in refusal.groups for name in group if name in table.rows]
        rows = self._rows(names)
        device_columns = table.columns(rows)
        total = numpy.zeros(len(rows))
        for vendor_request in request.distinct_requests:
            total += columns.distances(device_columns, vendor_request, request.fit_context(vendor_request.vendor))
        order = numpy.lexsort((table.rank()[rows], total))
        return [names[place] for place in order[:count].tolist()]

    def _rows(self, names: Sequence[str]) -> Array:
        """Returns the row of each of *names*, -1 for a node without devices."""
        return numpy.fromiter(map(self._table.rows.get, names, itertools.repeat(-1)), dtype=numpy.intp,
                              count=len(names))


class _RequestVerdicts:
    """The verdicts on one request, by the row of the node. *budgets*: those that the request exceeds anyway."""

    def __init__(self, table: Table, request: PodRequest, budgets: tuple[tuple[str, Any], ...]) -> None:
        self._table = table
        self._request = request
        self._budgets = dict(budgets)
        self._state = numpy.zeros(0, dtype=numpy.int8)
        self._version = numpy.zeros(0, dtype=numpy.int64)
        self._reason = numpy.zeros(0, dtype=numpy.int32)  # of nodes that do not fit: the position in _unfits, from 1
        self._vendor_score = {policy: numpy.zeros(0) for policy in NodePolicy}
        self._placements: dict[int, Allocation] = {}
        self._unfits: list[Unfit] = []
        self._numbers: dict[Unfit, int] = {}
        self.has_scores = any(vendor_request.vendor.decision.node_score is not None
                              for vendor_request in request.vendor_requests)

    def may_be_candidate(self, rows: Array) -> Array:
        """Returns a mask over *rows*: nodes that fit or may fit."""
        states = self._states(rows)
        unknown = states == UNKNOWN
        if numpy.count_nonzero(unknown) > FEW or self._budgets:
            changed = rows[unknown]
            may_serve = self._may_serve(changed)
            self._state[changed] = states[unknown] = numpy.where(may_serve, POSSIBLE, EXCLUDED)
            self._version[changed] = self._table.versions[changed]
            self._reason[changed] = 0
        return numpy.asarray(states <= FITS)

    def placement(self, row: int, quota: QuotaCheck) -> Allocation | None:
        """Returns the shares that the pod gets on the node of *row*; ``None`` if it does not fit."""
        verdict = self._verdict(row)
        if isinstance(verdict, Unfit) or not quota.open or quota.covers(self._request, verdict):
            return None if isinstance(verdict, Unfit) else verdict
        verdict = self._within(row, quota)
        return None if isinstance(verdict, Unfit) else verdict

    def choose_by_vendor_scores(self, rows: Array, names: int, policy: NodePolicy, quota: QuotaCheck) -> Choice | None:
        """Returns the best of *rows* if the score depends on the devices that the pod would get."""
        table, sign = self._table, 1.0 if policy is NodePolicy.BINPACK else -1.0
        for row in rows[self._states(rows) != FITS].tolist():
            self._verdict(row)
        if quota.open:
            rows = numpy.array([row for row in rows.tolist() if self.placement(row, quota) is not None], numpy.intp)
        else:
            rows = rows[self._state[rows] == FITS]
        if not len(rows):
            return None
        scores = table.scores[rows] + sign * self._vendor_score[policy][rows]
        order = numpy.lexsort((table.rank()[rows], -sign * scores))
        best = int(rows[order[0]])
        placement = self.placement(best, quota)
        assert placement is not None, "a node with a score fits"
        fitting = tuple((table.names[int(rows[place])], float(scores[place]))
                        for place in reversed(order[:EVALUATE_ALL].tolist()))
        return Choice(table.names[best], placement, fitting, names - len(rows), names)

    def reasons(self, rows: Array, names: Sequence[str],
                quota: QuotaCheck) -> tuple[tuple[Unfit, tuple[str, ...]], ...]:
        """Returns the results for those of *rows* that do not fit, each with its nodes (of *names*)."""
        self.may_be_candidate(rows)
        states = self._states(rows)
        for row in rows[states <= POSSIBLE].tolist():
            self._verdict(row)
        self._explain_excluded(rows[(states == EXCLUDED) & (self._reason[rows] == 0)])
        numbers = self._reason[rows]
        numbers[self._state[rows] == FITS] = 0
        if quota.open:
            for place in numpy.flatnonzero(numbers == 0).tolist():
                if isinstance(verdict := self._within(int(rows[place]), quota), Unfit):
                    numbers[place] = self._number(verdict)
        groups: dict[int, list[str]] = {}
        for name, number in zip(names, numbers.tolist()):
            if number:
                groups.setdefault(number, []).append(name)
        return tuple((self._unfits[number - 1], tuple(group)) for number, group in groups.items())

    def _explain_excluded(self, rows: Array) -> None:
        """Finds the reasons for *rows*, which columns exclude: the first request that each cannot serve."""
        left = rows
        for place, request in enumerate(self._request.in_order_of_placing):
            if not len(left):
                return
            context = self._request.fit_context(request.vendor, budget=self._budgets.get(request.vendor))
            device_columns = self._table.columns(left)
            excluded = ~columns.may_serve(device_columns, request, context)
            unfits, which = columns.explain_nodes(device_columns, request, context)
            numbers = numpy.fromiter(map(self._number, unfits), dtype=numpy.int32, count=len(unfits))
            self._reason[left[excluded]] = numbers[which[excluded]]
            # what containers that are placed before take is no part of the columns
            inexact = left[excluded & ((place > 0) | columns.is_open(device_columns, request, context))]
            for row in inexact.tolist() if len(inexact) <= MAX_EXACT else ():
                self._verdict(row)
            left = left[~excluded]

    def _may_serve(self, rows: Array) -> Array:
        """Returns a mask over *rows* that is false only for nodes that certainly cannot fit."""
        table, every = self._table, 2 * len(rows) > len(self._table.versions)
        device_columns = table.all_columns() if every else table.columns(rows)
        possible = numpy.ones(device_columns.nodes, dtype=bool)
        for request in self._request.distinct_requests:
            context = self._request.fit_context(request.vendor, budget=self._budgets.get(request.vendor))
            possible &= columns.may_serve(device_columns, request, context)
        return possible[rows] if every else possible

    def _states(self, rows: Array) -> Array:
        """Returns the state of each of *rows*; UNKNOWN for nodes that have changed since."""
        versions = self._table.versions
        if len(self._version) != len(versions):
            arrays: list[Array] = [self._state, self._version, self._reason, *self._vendor_score.values()]
            for array in arrays:
                array.resize(versions.shape, refcheck=False)
        return numpy.where(self._version[rows] == versions[rows], self._state[rows], UNKNOWN)

    def _verdict(self, row: int) -> Allocation | Unfit:
        """Returns the exact verdict on the node of *row*."""
        version = self._table.versions[row]
        if self._version[row] == version and self._state[row] in (FITS, UNFIT):
            return self._placements[row] if self._state[row] == FITS else self._unfits[int(self._reason[row]) - 1]
        usages = self._table.usages(self._table.names[row])
        verdict = place_pod(usages, self._request, self._budgets)
        self._version[row] = version
        if isinstance(verdict, Unfit):
            self._state[row], self._reason[row] = UNFIT, self._number(verdict)
            self._placements.pop(row, None)
        else:
            self._state[row], self._placements[row] = FITS, verdict
            for policy, scores in self._vendor_score.items() if self.has_scores else ():
                scores[row] = vendor_score(self._request, usages, verdict, policy)
        return verdict

    def _within(self, row: int, quota: QuotaCheck) -> Allocation | Unfit:
        """Returns the verdict on the node of *row* beside open budgets, which change too often to be remembered."""
        return place_pod(self._table.usages(self._table.names[row]), self._request, self._budgets | dict(quota.open))

    def _number(self, unfit: Unfit) -> int:
        """Returns the number of *unfit*, from 1; equal values have one."""
        if (number := self._numbers.get(unfit)) is None:
            self._unfits.append(unfit)
            number = self._numbers[unfit] = len(self._unfits)
        return number


def vendor_score(request: PodRequest, usages: NodeUsage, placement: Allocation, policy: NodePolicy) -> float:
    """Returns the vendors' score of *placement* on a node with *usages*. Higher is better under both policies."""
    scorers = ((vendor.key, vendor.decision.node_score)
               for vendor in (vendor_request.vendor for vendor_request in request.vendor_requests))
    return sum(score(usages.get(key, ()), shares_of(key, placement), policy)
               for key, score in scorers if score is not None)


def _best_first(table: Table, rows: Array, policy: NodePolicy) -> Iterator[int]:
    """Yields *rows* by score, best first, then by name. The first few are found without sorting all."""
    scores = table.scores[rows] if policy is NodePolicy.BINPACK else -table.scores[rows]
    ranks = table.rank()[rows]
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
