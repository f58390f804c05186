"""The order of the nodes that fit: preferred node affinity before the policy, as kube-scheduler evaluates it."""

import random

from hypothesis import given
from hypothesis.strategies import integers

from hami.model import NodePolicy, NodePreference, NodeRequirement
from hami.scheduling.node_order import TO_CHOOSE_FROM, kube_chooses, matches, node_order_of, weights
from testing.builders import gpus, pod
from testing.cases import cases
from testing.seeds import some_preferences


@cases(
    "operator, values, met_by",
    ("Exists", (), ["", "a", "5", "-5", "x5"]),
    ("DoesNotExist", (), [None]),
    ("In", ("a", "5"), ["a", "5"]),
    ("NotIn", ("a", "5"), [None, "", "-5", "x5"]),
    ("Gt", ("4",), ["5"]),
    ("Lt", ("4",), ["-5"]),
    ("Gt", ("x",), []),
    ("Gt", (), []),
    ("Gt", ("1", "2"), []),
    ("Like", ("a",), []),
    ("", (), []),
)
def test_requirements_are_met_as_in_kubernetes(operator, values, met_by):
    """As labels.Requirement.Matches: a node without the label meets NotIn."""
    requirement = NodeRequirement("key", operator, frozenset(values))
    assert [
        value for value in (None, "", "a", "5", "-5", "x5") if matches(requirement, value)
    ] == met_by


@given(seed=integers(0, 2**32))
def test_the_weight_of_a_node_is_the_sum_of_the_terms_that_it_meets(seed):
    rng = random.Random(seed)
    preferences = some_preferences(rng)
    labels = {
        f"n{number}": {
            key: rng.choice(("x", "y", "7")) for key in ("zone", "disk") if rng.random() < 0.7
        }
        for number in range(6)
    }
    names = [*labels, "unknown"]
    expected = [
        sum(
            preference.weight
            for preference in preferences
            if all(
                matches(
                    requirement,
                    labels.get(name, {}).get(requirement.key) if requirement.key else name,
                )
                for requirement in preference.requirements
            )
        )
        for name in names
    ]
    assert weights(preferences, names, labels).tolist() == expected


@cases(
    "annotation, default, soft, policy, wanted",
    (None, "spread", False, NodePolicy.SPREAD, 1),
    ("binpack", "spread", False, NodePolicy.BINPACK, 1),
    ("kube", "spread", False, NodePolicy.SPREAD, TO_CHOOSE_FROM),
    ("kube", "binpack", True, NodePolicy.BINPACK, TO_CHOOSE_FROM),
    ("spread", "binpack", True, NodePolicy.SPREAD, TO_CHOOSE_FROM),
    (None, "kube", False, NodePolicy.BINPACK, 1),
)
def test_kube_scheduler_chooses_where_only_it_can_judge(annotation, default, soft, policy, wanted):
    annotations = {"hami.io/node-scheduler-policy": annotation} if annotation else {}
    preferences = (NodePreference(1, (NodeRequirement("disk", "Exists"),)),)
    asked = pod(gpus(), annotations=annotations, soft_constraints=soft, preferences=preferences)
    order = node_order_of(asked, default)
    assert (order.policy, order.wanted, order.preferences) == (policy, wanted, preferences)
    assert kube_chooses(asked) is (wanted > 1)
