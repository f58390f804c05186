"""The order of the nodes that a pod fits: its preferred node affinity, then the node policy.

Source of the affinity: k8s.io/component-helpers, scheduling/corev1/nodeaffinity, and k8s.io/apimachinery,
pkg/labels/selector.go.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from hami.codec.keys import KUBE_POLICY, NODE_POLICY
from hami.codec.policies import parse_node_policy
from hami.model import NodePolicy, NodePreference, NodeRequirement, Pod, Taint, Toleration, selects
from hami.quantity import parse_integer
from hami.scheduling.node_resources import NOTHING, NodeResources, requested
from hami.vendors.vocabulary import NODE_POLICY_WORDS, word_or

Array = NDArray[Any]
Labels = Mapping[str, Mapping[str, str]]
"""The labels of nodes by their names."""

TO_CHOOSE_FROM = 32  # nodes that kube-scheduler gets to choose from, if it chooses
_FEW = 8  # nodes that are found before all are sorted


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """An order of the nodes that a pod fits: by *preferences*, then by *policy*. *wanted*: how many are needed.
    *resources*: what the pod requests of its node, where the policy asks."""

    policy: NodePolicy
    preferences: tuple[NodePreference, ...] = ()
    wanted: int = 1
    resources: NodeResources = NOTHING

    @property
    def sign(self) -> float:
        """1 if full nodes come first, -1 if empty ones do."""
        return -1.0 if self.policy is NodePolicy.SPREAD else 1.0

    @property
    def by_room(self) -> bool:
        """Whether nodes come first where the usual pods lose least room."""
        return self.policy is NodePolicy.LEAST_WASTE


def node_order_of(pod: Pod, default: str) -> NodeOrder:
    """Returns the order of *pod*'s nodes. *default*: the node policy if the pod names none.

    It needs several nodes if kube-scheduler must choose, since only it can judge the pod's other wishes.
    """
    word = _policy_of(pod, default)
    if word == KUBE_POLICY:
        word = default
    policy = parse_node_policy(word)
    wanted = TO_CHOOSE_FROM if kube_chooses(pod) else 1
    resources = NOTHING
    if policy is NodePolicy.LEAST_WASTE:
        resources = requested(pod)
    return NodeOrder(policy, pod.preferences, wanted, resources)


def kube_chooses(pod: Pod) -> bool:
    """Reports whether kube-scheduler chooses *pod*'s node, among several that fit."""
    if pod.soft_constraints:
        return True
    return has_no_policy(pod)


def has_no_policy(pod: Pod) -> bool:
    """Reports whether only kube-scheduler's own scores count for the choice of *pod*'s node."""
    return _policy_of(pod, "") == KUBE_POLICY


def _policy_of(pod: Pod, default: str) -> str:
    text = pod.annotations.get(NODE_POLICY)
    if text is None:  # as nearly always
        return default
    return word_or(NODE_POLICY_WORDS, text, default)


def weights(preferences: Sequence[NodePreference], names: Sequence[str], labels: Labels) -> Array:
    """Returns, for each of the nodes *names*, the sum of the weights of the *preferences* that it meets."""
    total = numpy.zeros(len(names))
    masks: dict[NodeRequirement, Array] = {}
    for preference in preferences:
        is_met = numpy.ones(len(names), dtype=bool)
        for requirement in preference.requirements:
            if requirement not in masks:
                masks[requirement] = _mask(requirement, names, labels)
            is_met &= masks[requirement]
        total[is_met] += preference.weight
    return total


def lowest_first(keys: Sequence[Array], ranks: Array) -> Iterator[int]:
    """Yields positions, lowest first by the first of *keys*, then by the next ones, then by *ranks*. The first few are
    found without sorting all."""
    first = numpy.array(keys[0], dtype=float)  # those that are found become infinite
    for _ in range(min(_FEW, len(ranks))):
        ties = numpy.flatnonzero(first == first.min())
        for values in keys[1:]:
            of_ties = values[ties]
            ties = ties[of_ties == of_ties.min()]
        position = ties[ranks[ties].argmin()]
        first[position] = numpy.inf
        yield int(position)
    rest = numpy.flatnonzero(first != numpy.inf)
    yield from rest[
        numpy.lexsort((ranks[rest], *(values[rest] for values in reversed(keys))))
    ].tolist()


def _mask(requirement: NodeRequirement, names: Sequence[str], labels: Labels) -> Array:
    """Judges each value once: few labels have as many values as there are nodes."""
    values: Sequence[str | None] = names
    if requirement.key:
        nothing = dict[str, str]()
        values = [labels.get(name, nothing).get(requirement.key) for name in names]
    numbers: dict[str | None, int] = {}
    which = numpy.array(
        [numbers.setdefault(value, len(numbers)) for value in values], dtype=numpy.intp
    )
    return numpy.array([matches(requirement, value) for value in numbers], dtype=bool)[which]


def is_eligible(pod: Pod, node: str, labels: Mapping[str, str]) -> bool:
    """Reports whether *node* with *labels* meets the node selector and the required node affinity of *pod*."""
    if not pod.node_terms:
        return True
    for term in pod.node_terms:
        values = [labels.get(requirement.key) if requirement.key else node for requirement in term]
        if all(map(matches, term, values)):
            return True
    return False


def tolerates(pod: Pod, taints: Sequence[Taint]) -> bool:
    """Reports whether *pod* tolerates all of *taints*."""
    for taint in taints:
        if not any([_tolerates(toleration, taint) for toleration in pod.tolerations]):
            return False
    return True


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Source: k8s.io/api/core/v1, toleration.go, ToleratesTaint."""
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.key not in ("", taint.key):
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def matches(requirement: NodeRequirement, value: str | None) -> bool:
    """Reports whether a node whose label has *value* (``None``: it has none) meets *requirement*; none meets an invalid
    one."""
    compare = _COMPARE.get(requirement.operator)
    if compare is None:
        return selects(requirement.operator, requirement.values, value)
    if value is None or len(requirement.values) != 1:
        return False
    number, limit = parse_integer(value, 64), parse_integer(min(requirement.values), 64)
    if number is None or limit is None:
        return False
    return compare(number, limit)


_COMPARE: Mapping[str, Callable[[int, int], bool]] = {"Gt": operator.gt, "Lt": operator.lt}
