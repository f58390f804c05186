"""The usual pods of a cluster, learnt from those to which devices have been allocated."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence

from hami.scheduling.usual_pods import UsualPod, few

HALF_LIFE = 4000
"""Pods after which an earlier one counts half."""
REMEMBERED = HALF_LIFE / math.log(2)
"""Pods that an endless row of pods counts as, by the weight of the last one."""
FIRST, EIGHTH, LATEST = 16, 8, 256
"""The usual pods are estimated after FIRST pods, and again when these are an EIGHTH more, or LATEST pods more."""
ASSUMED = 30
"""Pods of which it is assumed at first that they have come and ended: that devices become free again, until more is
known, so that the first pods of a leader that take over a full cluster break no node into crumbs."""
MAX_COUNTS = 4096
"""Kinds of pods that are counted, over all namespaces."""
LARGEST_SHARE, FROM_NAMESPACES = 0.25, 4
"""The most of all pods that one namespace stands for, from so many namespaces on: tenants must not write the mix."""
MAX_UIDS = 10_000  # pods that are remembered, so that each counts once
_GROWTH = 2 ** (1 / HALF_LIFE)  # of the weight of a pod, from one to the next
_REBASE_AT = 1e100
_OTHERS = ""  # the namespace of what is counted together


class Workload:
    """Counts pods by namespace and kind; later ones count more. Its owner holds a lock."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, UsualPod], float] = {}
        self._uids: OrderedDict[str, None] = OrderedDict()
        self._weight = 1.0  # of the next pod
        self._come = self._ended = float(ASSUMED)
        self._counted = 0
        self._estimate_at = FIRST

    @property
    def turnover(self) -> float:
        """The number of pods that end for one that comes, 1 at most."""
        return min(1.0, self._ended / self._come)

    def add(self, uid: str, namespace: str, kind: UsualPod) -> None:
        """Counts the pod *uid*, to which devices are allocated, if that is the first time."""
        if uid in self._uids:
            return
        self._uids[uid] = None
        if len(self._uids) > MAX_UIDS:
            self._uids.popitem(last=False)
        self._come += self._weight
        self._count(namespace, kind, self._weight)
        self._counted += 1
        self._weight *= _GROWTH
        if self._weight > _REBASE_AT:
            self._rebase()
        if len(self._counts) > MAX_COUNTS:
            self._count_rare_together()

    def add_running(self, pods: Mapping[tuple[str, UsualPod], int]) -> None:
        """Counts pods that were there before this process: how many there are in each namespace of each kind.

        Nobody knows in which order they came, so each counts the same, and all of them at most what is remembered of
        pods that come one after the other.
        """
        total = sum(pods.values())
        weight = self._weight * min(1.0, REMEMBERED / max(1, total))
        for (namespace, kind), count in pods.items():
            self._count(namespace, kind, weight * count)
        self._counted += total
        if len(self._counts) > MAX_COUNTS:
            self._count_rare_together()

    def end(self, pods: int) -> None:
        """Counts that so many pods with devices have ended."""
        self._ended += self._weight * pods

    @property
    def size(self) -> int:
        """The number of kinds that are counted, each in each namespace."""
        return len(self._counts)

    def is_due(self) -> bool:
        """Reports whether the usual pods should be estimated again."""
        return self._counted >= self._estimate_at

    def estimate(self, current: Collection[UsualPod] = ()) -> dict[UsualPod, float]:
        """Returns the usual pods with how often each comes. *current*: those of the last estimate."""
        self._estimate_at = self._counted + min(max(FIRST, self._counted // EIGHTH), LATEST)
        parts = _parts(self._by_namespace())
        kinds: dict[UsualPod, float] = defaultdict(float)
        for (namespace, kind), count in self._counts.items():
            kinds[kind] += count * parts[namespace]
        return few(kinds, current)

    def _count(self, namespace: str, kind: UsualPod, weight: float) -> None:
        key = namespace, kind
        self._counts[key] = self._counts.get(key, 0.0) + weight

    def _rebase(self) -> None:
        self._counts = {key: count / self._weight for key, count in self._counts.items()}
        self._come /= self._weight
        self._ended /= self._weight
        self._weight = 1.0

    def _by_namespace(self) -> dict[str, float]:
        totals: dict[str, float] = defaultdict(float)
        for (namespace, _), count in self._counts.items():
            totals[namespace] += count
        return totals

    def _count_rare_together(self) -> None:
        """Counts the rarer half without their namespaces, and merged."""
        ordered = sorted(self._counts.items(), key=lambda item: -item[1])
        self._counts = dict(ordered[: MAX_COUNTS // 2])
        rare: dict[UsualPod, float] = defaultdict(float)
        for (_, kind), count in ordered[MAX_COUNTS // 2 :]:
            rare[kind] += count
        for kind, count in few(rare).items():
            self._count(_OTHERS, kind, count)


def _parts(totals: Mapping[str, float]) -> dict[str, float]:
    """Returns which part of its pods counts for each namespace, so that none stands for more than LARGEST_SHARE."""
    parts = dict.fromkeys(totals, 1.0)
    if len(totals) < FROM_NAMESPACES:
        return parts
    most = _most(sorted(totals.values(), reverse=True))
    for namespace, total in totals.items():
        if total > most:
            parts[namespace] = most / total
    return parts


def _most(totals: Sequence[float]) -> float:
    """Returns the amount to which the largest of *totals*, which descend, are cut so that none of them is more than
    LARGEST_SHARE of the sum that is left."""
    rest = sum(totals)
    if totals[0] <= LARGEST_SHARE * rest:
        return totals[0]
    for number, total in enumerate(totals[: FROM_NAMESPACES - 1], 1):
        rest -= total
        most = LARGEST_SHARE * rest / (1 - LARGEST_SHARE * number)
        if totals[number] <= most:
            break
    return most
