"""Filter, score and choice over the nodes of a table: the node that a pod gets, or why no node fits.

Verdicts are remembered by request and version of the node, so only nodes that have changed are evaluated again. Nodes
are evaluated in the order of their score, best first, until one fits. Rules over columns exclude nodes that cannot fit
before that. Every verdict by which a pod is placed comes from ``place_pod``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.model import Allocation, NodePolicy, NodePreference, Pod, Unfit
from hami.scheduling import columns
from hami.scheduling.columns import grown
from hami.scheduling.node_order import NodeOrder, lowest_first, weights
from hami.scheduling.placement import NodeUsage, place_pod
from hami.scheduling.pod_request import PodRequest
from hami.scheduling.quota import QuotaCheck
from hami.scheduling.refusal import Choice, NodeRefusal, Refusal
from hami.scheduling.usage import shares_of
from hami.state.closest import ClosestNodes
from hami.state.rooms import Rooms
from hami.state.table import Table

Array = NDArray[Any]

# the state of a node; a node with a state up to FITS is a candidate
UNKNOWN, POSSIBLE, FITS, UNFIT, EXCLUDED = range(5)
EVALUATE_ALL = 16  # candidates
MAX_REQUESTS = 64  # requests whose verdicts are remembered
FEW = 1  # nodes that are evaluated without columns first
MAX_PREFERENCES = 64  # preferred node affinities whose weights are remembered
# excluded nodes that are evaluated for their reasons, if columns do not tell them exactly
MAX_EXACT = 64
NO_QUOTA = QuotaCheck()


class Verdicts:
    """Verdicts on the nodes of *table*, for the most recent requests.

    *evaluate_all*: all candidates up to this number are evaluated, so that an event can name each with its score.
    """

    def __init__(
        self,
        table: Table,
        rooms: Rooms | None = None,
        max_requests: int = MAX_REQUESTS,
        evaluate_all: int = EVALUATE_ALL,
    ) -> None:
        self._table = table
        self._rooms = rooms
        self._evaluate_all = evaluate_all
        self._of = functools.lru_cache(max_requests)(functools.partial(_RequestVerdicts, table))
        self._closest = functools.lru_cache(max_requests)(functools.partial(ClosestNodes, table))
        self._weights = functools.lru_cache(MAX_PREFERENCES)(functools.partial(_weights, table))

    def rows(self, names: Sequence[str]) -> Array:
        """Returns the row of each of the nodes *names*, -1 for a node without devices."""
        return numpy.fromiter(
            map(self._table.rows.get, names, itertools.repeat(-1)),
            dtype=numpy.intp,
            count=len(names),
        )

    def weigh(self, preferences: tuple[NodePreference, ...]) -> None:
        """Remembers what `choose` needs to know about *preferences*. The table may change meanwhile."""
        if preferences:
            self._weights(preferences, self._table.label_changes)

    def choose(
        self, request: PodRequest, rows: Array, order: NodeOrder, quota: QuotaCheck = NO_QUOTA
    ) -> Choice | None:
        """Returns the first by *order* of the nodes of *rows* that fit *request*; ``None`` if none fits.

        Binpack prefers the fullest node, spread the emptiest, and least-waste the one whose room the usual pods need
        least; among equals of these the fullest. Among equals it is the first by name.
        """
        table, offered = self._table, len(rows)
        table.refresh()
        verdicts = self._of(request, quota.decided)
        rows = rows[rows >= 0]
        candidates = rows[verdicts.may_be_candidate(rows)]
        if verdicts.has_scores:
            preferred = self._weights(order.preferences, table.label_changes)[candidates]
            return verdicts.choose_by_vendor_scores(candidates, preferred, offered, order, quota)
        evaluate_all = len(candidates) <= self._evaluate_all

        chosen: tuple[str, Allocation] | None = None
        fitting: list[tuple[str, float]] = []
        keys = self._keys(request, candidates, order)
        for place in lowest_first(keys, table.rank()[candidates]):
            row = int(candidates[place])
            placement = verdicts.placement(row, quota)
            if placement is None:
                continue
            name = table.names[row]
            fitting.append((name, float(table.scores[row])))
            if chosen is None:
                chosen = name, placement
            if not evaluate_all and len(fitting) == order.wanted:
                break
        if chosen is None:
            return None
        unfit = offered - (len(fitting) if evaluate_all else len(candidates))
        return Choice(*chosen, tuple(reversed(fitting)), unfit, offered)

    def losses(
        self, names: Sequence[str], request: PodRequest, order: NodeOrder, changed: Table
    ) -> dict[str, float]:
        """Returns what a pod that makes *request* would cost on the nodes *names*, of which *changed* has those that
        differ from the table here; empty if nothing is known about that."""
        losses: dict[str, float] = {}
        if self._rooms is None:
            return losses
        changed.refresh()
        others = Rooms(changed, self._rooms.usual())
        for rooms, table in ((self._rooms, self._table), (others, changed)):
            here = [name for name in names if (name in changed.rows) is (rooms is others)]
            rows = numpy.array([table.rows[name] for name in here], dtype=numpy.intp)
            found = self._rooms.losses_beside(rooms, request, order.resources, rows)
            if found is not None:
                losses.update(zip(here, found.tolist()))
        return losses

    def scores(self, request: PodRequest | None, rows: Array, order: NodeOrder) -> list[float]:
        """Returns the scores of *rows* for *request*, higher is better by the policy of *order*; 0 for nodes without
        devices."""
        self._table.refresh()
        scores = order.sign * self._table.scores[rows]
        losses = self._losses(request, rows, order)
        if losses is not None:
            scores = -losses
        better: list[float] = numpy.where(rows >= 0, scores, 0.0).tolist()
        return better

    def _keys(self, request: PodRequest, rows: Array, order: NodeOrder) -> list[Array]:
        """Returns the numbers by which *rows* are ordered: lowest first, then those of the next ones."""
        keys = [-order.sign * self._table.scores[rows]]
        losses = self._losses(request, rows, order)
        if losses is not None:
            keys.insert(0, losses)
        if order.preferences:
            keys.insert(0, -self._weights(order.preferences, self._table.label_changes)[rows])
        return keys

    def _losses(self, request: PodRequest | None, rows: Array, order: NodeOrder) -> Array | None:
        """Returns what *request* costs on each of *rows*, if the policy of *order* asks, and that is known."""
        if request is None or self._rooms is None or not order.by_room:
            return None
        return self._rooms.losses(request, order.resources, rows)

    def refuse(
        self, request: PodRequest, names: Sequence[str], rows: Array, quota: QuotaCheck = NO_QUOTA
    ) -> Refusal:
        """Returns the reasons for each of the nodes *names*, which have *rows*, that does not fit *request*."""
        self._table.refresh()
        unknown = tuple(itertools.compress(names, (rows < 0).tolist()))
        groups = self._of(request, quota.decided).reasons(rows[rows >= 0], quota)
        return Refusal(request, groups, unknown, dict((*quota.decided, *quota.open)))

    def with_lower_priority(self, refusal: Refusal, pod: Pod) -> frozenset[str]:
        """Returns the refused nodes on which a pod of lower priority than *pod* holds devices, and the node on which
        kube-scheduler makes room for *pod*."""
        lower = numpy.flatnonzero(self._table.priorities < pod.priority).tolist()
        names = {pod.nominated_node, *(self._table.names.get(row, "") for row in lower)}
        return frozenset().union(*(names.intersection(group) for _, group in refusal.groups))

    def may_preempt_on(self, request: PodRequest, rows: Array, priority: int) -> Array:
        """Returns those of *rows*, lowest priority first, where pods of lower priority than *priority* hold devices and
        *request* may fit if the node is idle."""
        table = self._table
        table.refresh()
        rows = rows[rows >= 0]
        rows = rows[table.priorities[rows] < priority]
        rows = rows[self._of(request, ()).may_serve_idle(rows)]
        return rows[numpy.lexsort((table.rank()[rows], table.priorities[rows]))]

    def closest(self, refusal: Refusal, count: int | None = None) -> list[NodeRefusal]:
        """Returns the refused nodes that are closest to serving, at most *count*, nearest first, as they are now."""
        table = self._table
        table.refresh()
        names: list[str] = []
        for _, group in refusal.groups:
            names += group
        rows = self.rows(names)
        rows = rows[rows >= 0]
        nodes = self._closest(refusal.pod_request)
        closest: list[NodeRefusal] = []
        for row in nodes.nearest_first(rows, count):
            node = nodes.explain(row, refusal)
            if node is not None:
                closest.append(node)
        return closest


class _RequestVerdicts:
    """The verdicts on one request, by the row of the node. *budgets*: those that the request exceeds anyway."""

    def __init__(
        self, table: Table, request: PodRequest, budgets: tuple[tuple[str, Any], ...]
    ) -> None:
        self._table = table
        self._request = request
        self._budgets = dict(budgets)
        self._state = numpy.zeros(0, dtype=numpy.int8)
        self._version = numpy.zeros(0, dtype=numpy.int64)
        # of nodes that do not fit: the position in _unfits, from 1
        self._reason = numpy.zeros(0, dtype=numpy.int32)
        self._placements: dict[int, Allocation] = {}
        self._unfits: list[Unfit] = []
        self._numbers: dict[Unfit, int] = {}
        self.has_scores = any(
            vendor_request.vendor.decision.node_score is not None
            for vendor_request in request.vendor_requests
        )
        self._vendor_score = {policy: numpy.zeros(0) for policy in NodePolicy if self.has_scores}

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
        if isinstance(verdict, Unfit):
            return None
        if quota.open and not quota.covers(self._request, verdict):
            verdict = self._within(row, quota)
        return None if isinstance(verdict, Unfit) else verdict

    def choose_by_vendor_scores(
        self, rows: Array, preferred: Array, names: int, order: NodeOrder, quota: QuotaCheck
    ) -> Choice | None:
        """Returns the first by *order* of *rows*, whose weights are *preferred*, if the score depends on the
        devices that the pod would get."""
        table = self._table
        for row in rows[self._states(rows) != FITS].tolist():
            self._verdict(row)
        fits = self._state[rows] == FITS
        if quota.open:
            fits[:] = [self.placement(row, quota) is not None for row in rows.tolist()]
        rows, preferred = rows[fits], preferred[fits]
        if not len(rows):
            return None
        scores = table.scores[rows] + order.sign * self._vendor_score[order.policy][rows]
        places = numpy.lexsort((table.rank()[rows], -order.sign * scores, -preferred))
        best = int(rows[places[0]])
        placement = self.placement(best, quota)
        assert placement is not None, "a node with a score fits"
        fitting: list[tuple[str, float]] = []
        for place in places[: max(EVALUATE_ALL, order.wanted)].tolist():
            fitting.append((table.names[int(rows[place])], float(scores[place])))
        return Choice(
            table.names[best], placement, tuple(reversed(fitting)), names - len(rows), names
        )

    def reasons(self, rows: Array, quota: QuotaCheck) -> tuple[tuple[Unfit, tuple[str, ...]], ...]:
        """Returns the results for those of *rows* that do not fit, each with the names of its nodes."""
        self.may_be_candidate(rows)
        states = self._states(rows)
        for row in rows[states <= POSSIBLE].tolist():
            self._verdict(row)
        self._explain_excluded(rows[(states == EXCLUDED) & (self._reason[rows] == 0)])
        numbers = self._reason[rows]
        numbers[self._state[rows] == FITS] = 0
        if quota.open:
            for place in numpy.flatnonzero(numbers == 0).tolist():
                verdict = self._within(int(rows[place]), quota)
                if isinstance(verdict, Unfit):
                    numbers[place] = self._number(verdict)
        return self._groups(rows, numbers)

    def _groups(self, rows: Array, numbers: Array) -> tuple[tuple[Unfit, tuple[str, ...]], ...]:
        """Returns the results with these *numbers* (0 for none), each with the names of its nodes, those of *rows*."""
        # positions in *rows*, those of one result beside each other
        order = numpy.argsort(numbers, kind="stable")
        alike = numpy.split(order, numpy.flatnonzero(numpy.diff(numbers[order])) + 1)
        groups = []
        for places in sorted(alike, key=lambda places: places[:1].tolist()):
            if not numbers[places].any():
                continue
            unfit = self._unfits[numbers[places[0]] - 1]
            names = map(self._table.names.__getitem__, rows[places].tolist())
            groups.append((unfit, tuple(names)))
        return tuple(groups)

    def _explain_excluded(self, rows: Array) -> None:
        """Finds the reasons for *rows*, which columns exclude: the first request that each cannot serve."""
        left = rows
        for place, request in enumerate(self._request.in_order_of_placing):
            if not len(left):
                return
            context = self._request.fit_context(
                request.vendor, budget=self._budgets.get(request.vendor)
            )
            device_columns, at = self._table.columns.covering(left)
            excluded = ~columns.may_serve(device_columns, request, context)[at]
            unfits, which = columns.explain_nodes(device_columns, request, context)
            numbers = numpy.fromiter(
                map(self._number, unfits), dtype=numpy.int32, count=len(unfits)
            )
            self._reason[left[excluded]] = numbers[which[at][excluded]]
            # what containers that are placed before take is no part of the columns
            inexact = excluded
            if place == 0:
                inexact = excluded & columns.is_open(device_columns, request, context)[at]
            if numpy.count_nonzero(inexact) <= MAX_EXACT:
                for row in left[inexact].tolist():
                    self._verdict(row)
            left = left[~excluded]

    def may_serve_idle(self, rows: Array) -> Array:
        """Returns a mask over *rows* that is false only for nodes that certainly cannot fit, even without pods."""
        device_columns, at = self._table.columns.covering(rows)
        return self._may_serve_from(columns.idle(device_columns), at)

    def _may_serve(self, rows: Array) -> Array:
        """Returns a mask over *rows* that is false only for nodes that certainly cannot fit."""
        return self._may_serve_from(*self._table.columns.covering(rows))

    def _may_serve_from(self, device_columns: columns.DeviceColumns, at: Array | slice) -> Array:
        possible = numpy.ones(device_columns.nodes, dtype=bool)
        for request in self._request.distinct_requests:
            context = self._request.fit_context(
                request.vendor, budget=self._budgets.get(request.vendor)
            )
            possible &= columns.may_serve(device_columns, request, context)
        return numpy.asarray(possible[at])

    def _states(self, rows: Array) -> Array:
        """Returns the state of each of *rows*; UNKNOWN for nodes that have changed since."""
        versions = self._table.versions
        if len(self._state) != len(versions):
            self._state = grown(self._state, len(versions))
            self._version = grown(self._version, len(versions))
            self._reason = grown(self._reason, len(versions))
            for policy, scores in self._vendor_score.items():
                self._vendor_score[policy] = grown(scores, len(versions))
        return numpy.where(self._version[rows] == versions[rows], self._state[rows], UNKNOWN)

    def _verdict(self, row: int) -> Allocation | Unfit:
        """Returns the exact verdict on the node of *row*."""
        version = self._table.versions[row]
        if self._version[row] == version:
            if self._state[row] == FITS:
                return self._placements[row]
            if self._state[row] == UNFIT:
                return self._unfits[int(self._reason[row]) - 1]
        usages = self._table.usages(self._table.names[row])
        verdict = place_pod(usages, self._request, self._budgets)
        self._version[row] = version
        if isinstance(verdict, Unfit):
            self._state[row], self._reason[row] = UNFIT, self._number(verdict)
            self._placements.pop(row, None)
        else:
            self._state[row], self._placements[row] = FITS, verdict
            for policy, scores in self._vendor_score.items():
                scores[row] = vendor_score(self._request, usages, verdict, policy)
        return verdict

    def _within(self, row: int, quota: QuotaCheck) -> Allocation | Unfit:
        """Returns the verdict on the node of *row* beside open budgets, which change too often to be remembered."""
        return place_pod(
            self._table.usages(self._table.names[row]),
            self._request,
            self._budgets | dict(quota.open),
        )

    def _number(self, unfit: Unfit) -> int:
        """Returns the number of *unfit*, from 1; equal values have one."""
        number = self._numbers.get(unfit)
        if number is None:
            self._unfits.append(unfit)
            number = self._numbers[unfit] = len(self._unfits)
        return number


def vendor_score(
    request: PodRequest, usages: NodeUsage, placement: Allocation, policy: NodePolicy
) -> float:
    """Returns the vendors' score of *placement* on a node with *usages*. Higher is better under both policies."""
    total = 0.0
    for vendor_request in request.vendor_requests:
        vendor = vendor_request.vendor
        score = vendor.decision.node_score
        if score is not None:
            total += score(usages.get(vendor.key, ()), shares_of(vendor.key, placement), policy)
    return total


def _weights(table: Table, preferences: tuple[NodePreference, ...], label_changes: int) -> Array:
    """Returns the weight of *preferences* for each row, after so many *label_changes* of the table."""
    names = [table.names.get(row, "") for row in range(len(table.versions))]
    return weights(preferences, names, table.labels)
